//! List-watch of our own: a view is complete, or it says that it is not (`kube.md` §1.7).
//!
//! ```text
//! listing ─► complete, watched ─► stale ─► listing …
//! ```
//!
//! kube's own watcher hides resourceVersions, bookmarks and reconnects, takes `items: null` for an empty list, and goes
//! silent without a word (`safety.md` §7). Here
//!
//! * a list counts only if all of it is right ([`accept_list`]); one page only, a continue token is never followed;
//! * after a loss the list is asked `NotOlderThan` the last resourceVersion, so that the view never goes back; when the
//!   server cannot reach that version for more than 30 s (an etcd restore), a new epoch begins with a consistent list;
//! * a contradicted view ([`Relist::contradicted`]) is read consistently, because a cache may repeat its mistake;
//! * an event that does not decode ends the view: it is listed again, never skipped;
//! * silence (neither event nor bookmark) makes the view stale, however healthy the connection looks. Silence is judged
//!   on a clock that counts suspend, also when the next event is already waiting after the suspend;
//! * the back-off is reset by an event or a bookmark, never by a successful list, and applies to watches that end at
//!   once too.
//!
//! Memory is bounded by the objects listed; nothing is cached here.

mod accept;
mod engine;
mod follow;
mod metrics;
mod objects;
mod once;
mod pods;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::sync::{Notify, mpsc};
use trunkline_core::id::ResourceVersion;
use trunkline_core::view::Blind;

pub use accept::{Rejected, accept_list};
pub use metrics::{ListWatchMetrics, Trouble};
pub use objects::{Objects, cluster_objects, named_object, namespaced_objects};
pub use once::{ListError, list_pods};
pub(crate) use pods::LivePodWire;
pub use pods::{PodWire, PodsEvent, PodsOfNode, parse_pod, watch_pods};

use crate::api::Api;
use crate::backoff::Backoff;
use crate::clock::Clock;

/// What is listed and watched.
pub trait Resource: Send + Sync + 'static {
    /// The part of an object that is decoded. Keep it minimal: what is not used cannot fail to decode.
    type Wire: DeserializeOwned + Send;
    /// What the consumer gets.
    type Item: Send + 'static;

    /// Name for logs and metrics, for example `pods`.
    fn name(&self) -> &'static str;
    /// Path without query.
    fn path(&self) -> String;
    /// Kind of one object, for example `Pod`; lists are of this kind with `List` appended.
    fn kind(&self) -> &str;
    /// Field selector, if any.
    fn field_selector(&self) -> Option<String>;
    /// Validates an object; an error ends the view (a list is rejected whole, an event makes it be listed again).
    fn convert(&self, wire: Self::Wire) -> Result<Self::Item, Undecodable>;
}

/// An object that cannot be understood, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("an object cannot be understood: {0}")]
pub struct Undecodable(pub String);

/// What a list-watch tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<T> {
    /// The view is no longer complete (or still is not); whatever was told before may be out of date. Sent once per
    /// change of reason.
    Stale(Blind),
    /// A complete list; replaces everything told before.
    Listed(Vec<T>, ResourceVersion),
    /// An object was added or changed.
    Applied(T, ResourceVersion),
    /// An object was deleted; its last state.
    Deleted(T, ResourceVersion),
    /// Nothing changed up to this resourceVersion.
    Bookmark(ResourceVersion),
}

/// Makes a list-watch list again.
#[derive(Debug, Clone, Default)]
pub struct Relist(Arc<Notify>);

impl Relist {
    /// Something contradicts the view: it becomes stale at once and is listed again by a consistent read. A request
    /// during a list leads to another list after it.
    pub fn contradicted(&self) {
        self.0.notify_one();
    }

    async fn requested(&self) {
        self.0.notified().await;
    }
}

/// How a list-watch behaves.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// No event and no bookmark for this long makes the view stale (`Timing::watch_silence`).
    pub silence: Duration,
    /// First back-off bound.
    pub backoff_base: Duration,
    /// Largest back-off bound.
    pub backoff_cap: Duration,
    /// `ResourceVersionTooLarge` for longer than this begins a new epoch.
    pub too_large_patience: Duration,
}

impl Settings {
    /// The defaults, with the silence that rules name.
    pub fn new(silence: Duration) -> Self {
        Self {
            silence,
            backoff_base: Duration::from_millis(500),
            backoff_cap: Duration::from_secs(30),
            too_large_patience: Duration::from_secs(30),
        }
    }
}

/// A list-watch that is not running yet.
pub struct ListWatch<R: Resource> {
    resource: R,
    api: Api,
    clock: Clock,
    settings: Settings,
    metrics: ListWatchMetrics,
    relist: Relist,
    backoff: Backoff,
    rv: Option<ResourceVersion>,
    state: engine::State,
}

impl<R: Resource> ListWatch<R> {
    /// Prepares a list-watch; nothing is sent before [`ListWatch::run`].
    pub fn new(
        api: Api,
        resource: R,
        clock: Clock,
        settings: Settings,
        metrics: ListWatchMetrics,
    ) -> Self {
        Self {
            resource,
            api,
            clock,
            settings,
            metrics,
            relist: Relist::default(),
            backoff: Backoff::new(settings.backoff_base, settings.backoff_cap),
            rv: None,
            state: engine::State::NotRead,
        }
    }

    /// A handle that makes it list again.
    pub fn relist(&self) -> Relist {
        self.relist.clone()
    }

    /// Runs until the receiver is dropped. Each event passes through `map` on its way. A consumer that does not
    /// receive is waited for; the server then closes the watch, which is resumed.
    pub async fn run<O: Send>(
        self,
        out: mpsc::Sender<O>,
        map: impl Fn(Event<R::Item>) -> O + Send,
    ) {
        engine::run(self, out, map).await;
    }
}
