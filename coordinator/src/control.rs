//! What stops releasing in a term: the fuse and the mode, kept in the ConfigMap `trunkline-state` (design §4.5, §5).
//!
//! The rule of every change: towards *less* it is in force first and stored after, towards *more* it is stored first and in
//! force after. A node freezes in its own books, in the step that sees the third veto; until that is stored nothing is
//! released anywhere ([`FuseState::Unknown`]), so that a leader that dies then cannot have gone on with a freeze that its
//! successor knows nothing of. The same holds where what was stored cannot be read. The leader is the only writer; every
//! write is a PUT with the resourceVersion that was read and asks the term's deadline first.

mod stored;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{Notify, watch};
use trunkline_core::fuse::{Froze, FuseState};
use trunkline_core::id::{InstanceId, Namespace, NodeName, PodUid};
use trunkline_core::mode::{Choice, Mode, in_force};
use trunkline_core::node::event::Settings;
use trunkline_kit::backoff::Backoff;
use trunkline_kit::epoch::{EpochError, State, StateStore};
use trunkline_kit::latest::{Latest, Source, latest};
use trunkline_kit::lease;

use crate::api::chain;
use crate::events::{Reason, Recorder, Severity, Target};
use crate::metrics::brakes::Brakes;

pub use stored::{ChosenMode, Decision, StoredFuse};

/// Longest distance between two tries to store a freeze.
const SAVE_CAP: Duration = Duration::from_secs(10);

/// Where `mode` and `fuse` are kept; the texts are written as they are.
pub trait Shelf: Send + Sync + 'static {
    /// Writes both keys; without a mode its key is removed.
    fn write(&self, mode: Option<String>, fuse: String) -> BoxFuture<'_, Result<(), String>>;
}

/// The ConfigMap, in one term.
pub struct ConfigMapShelf {
    /// The ConfigMap.
    pub store: StateStore,
    /// The term whose deadline fences the writes.
    pub term: lease::Term,
}

impl Shelf for ConfigMapShelf {
    fn write(&self, mode: Option<String>, fuse: String) -> BoxFuture<'_, Result<(), String>> {
        async move {
            let put = |state: &mut State| {
                state.mode.clone_from(&mode);
                state.fuse = Some(fuse.clone());
                Ok::<_, EpochError>(())
            };
            self.store.update(&self.term, put).await.map_err(|e| chain(&e))
        }
        .boxed()
    }
}

/// Why a change was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// There is nothing to open.
    #[error("{0} is not frozen by the fuse")]
    NotFrozen(String),
    /// It could not be stored, and nothing was changed.
    #[error("the ConfigMap trunkline-state could not be written, nothing was changed: {0}")]
    NotStored(String),
    /// It could not be stored, and is in force all the same.
    #[error(
        "the mode is in force until this coordinator's term ends; it could not be stored in the ConfigMap trunkline-state: {0}"
    )]
    InForceOnly(String),
}

/// Who decided, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    /// User name by TokenReview.
    pub user: String,
    /// The reason given.
    pub reason: String,
}

/// What a reset opens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opens {
    /// A node, by name or instance id.
    Node(String),
    /// The cluster.
    Cluster,
}

/// What status shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// Freezes and the last reset.
    pub fuse: StoredFuse,
    /// Why the fuse's state is unknown; `None` if it is known and stored.
    pub unknown: Option<String>,
    /// The mode in force.
    pub mode: Mode,
    /// What the flags say.
    pub flags: Mode,
    /// The operator's choice.
    pub choice: Option<ChosenMode>,
    /// The last order to repair in this term.
    pub repair: Option<Decision>,
}

struct Inner {
    fuse: StoredFuse,
    /// What was stored could not be read.
    unreadable: Option<String>,
    /// What is in force has not been stored yet, with the last failure.
    unsaved: Option<String>,
    choice: Option<ChosenMode>,
    /// The last order to repair in this term.
    repair: Option<Decision>,
    flags: Mode,
    /// Rises with every change of the fuse.
    version: u64,
}

/// The fuse and the mode of a term.
pub struct Control {
    shelf: Box<dyn Shelf>,
    inner: Mutex<Inner>,
    /// One write at a time, and with it one person's change.
    writing: tokio::sync::Mutex<()>,
    changed: Source<()>,
    seen: Latest<()>,
    to_save: Notify,
    settings: watch::Sender<Settings>,
    recorder: Recorder,
    metrics: Brakes,
    namespace: Namespace,
    retry_base: Duration,
}

/// What a [`Control`] is made of.
pub struct Parts {
    /// Where it is kept.
    pub shelf: Box<dyn Shelf>,
    /// Settings in force; modes are put into them.
    pub settings: watch::Sender<Settings>,
    /// Events.
    pub recorder: Recorder,
    /// Metrics.
    pub metrics: Brakes,
    /// The coordinator's namespace, where the ConfigMap is.
    pub namespace: Namespace,
    /// First distance between two tries to store a freeze.
    pub retry_base: Duration,
}

fn now_unix() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or_default()
}

impl Control {
    /// From what was stored. What cannot be read stops: an unreadable fuse stops releases, an unreadable mode everything.
    pub fn begin(parts: Parts, flags: Mode, mode: Option<&str>, fuse: Option<&str>) -> Arc<Self> {
        let (fuse, unreadable) = match fuse.map(StoredFuse::read) {
            None => (StoredFuse::default(), None),
            Some(Ok(fuse)) => (fuse, None),
            Some(Err(why)) => {
                tracing::error!(
                    "the key fuse of ConfigMap trunkline-state cannot be read, nothing is released until trunkline fuse reset --cluster: {why}"
                );
                (StoredFuse::default(), Some(format!("the stored text cannot be read: {why}")))
            }
        };
        let choice = mode.map(|text| ChosenMode::read(text).unwrap_or_else(|why| {
            tracing::error!(
                "the key mode of ConfigMap trunkline-state cannot be read, nothing is changed until trunkline mode: {why}"
            );
            ChosenMode::unreadable(flags, &why)
        }));
        let Parts { shelf, settings, recorder, metrics, namespace, retry_base } = parts;
        let (changed, seen) = latest(());
        let control = Arc::new(Self {
            shelf,
            inner: Mutex::new(Inner {
                fuse,
                unreadable,
                unsaved: None,
                choice,
                repair: None,
                flags,
                version: 0,
            }),
            writing: tokio::sync::Mutex::new(()),
            changed,
            seen,
            to_save: Notify::new(),
            settings,
            recorder,
            metrics,
            namespace,
            retry_base,
        });
        let view = control.view();
        control.put_in_force(view.mode);
        control.measure();
        if let Some(choice) = &view.choice {
            tracing::info!(mode = %view.mode, flags = %flags, by = choice.decision.by, reason = choice.decision.reason, "mode");
        }
        if !view.fuse.fuse.nodes.is_empty() || view.fuse.fuse.cluster.is_some() {
            let (nodes, cluster) = (view.fuse.fuse.nodes.len(), view.fuse.fuse.cluster.is_some());
            tracing::warn!(
                nodes,
                cluster,
                "the fuse has blown in an earlier term; see trunkline fuse"
            );
        }
        control
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells of every change of the fuse.
    pub fn subscribe(&self) -> Latest<()> {
        self.seen.clone()
    }

    /// What the fuse says to the books of this instance.
    pub fn fuse_of(&self, instance: &InstanceId) -> FuseState {
        let inner = self.lock();
        match inner.fuse.fuse.state_of(instance) {
            FuseState::Intact if inner.unknown().is_some() => FuseState::Unknown,
            state => state,
        }
    }

    /// Everything, for status.
    pub fn view(&self) -> View {
        let inner = self.lock();
        View {
            fuse: inner.fuse.clone(),
            unknown: inner.unknown().map(ToOwned::to_owned),
            mode: inner.mode(),
            flags: inner.flags,
            choice: inner.choice.clone(),
            repair: inner.repair.clone(),
        }
    }

    // === freezing ===

    /// A node's books have frozen themselves.
    pub fn freeze(&self, instance: &InstanceId, node: &NodeName, pods: BTreeSet<PodUid>) {
        let told: Vec<&str> = pods.iter().map(PodUid::as_str).collect();
        let told = told.join(", ");
        let froze = {
            let mut inner = self.lock();
            let froze = inner.fuse.fuse.freeze(instance.clone(), node.clone(), pods, now_unix());
            if froze == Froze::Already {
                return;
            }
            inner.unsaved = Some("it is being written".to_owned());
            inner.version += 1;
            froze
        };
        tracing::error!(%node, %instance, pods = told, "the fuse has blown: nothing is released on this node until it is reset");
        self.recorder.post(
            Target::Node(node.clone()),
            Severity::Warning,
            Reason::ReleaseFuseBlown,
            format!(
                "the agent said that pods {told} are gone, the API server says that they are alive; nothing is released on this node until somebody runs trunkline fuse reset --node {node}"
            ),
        );
        if froze == Froze::Cluster {
            tracing::error!(
                "the fuse has blown on three nodes: nothing is released in the cluster until it is reset"
            );
            self.tell(
                Severity::Warning,
                Reason::ReleaseFuseBlown,
                "the fuse has blown on three nodes; nothing is released in the cluster until somebody runs trunkline fuse reset --cluster",
            );
        }
        self.announce();
        self.to_save.notify_one();
    }

    /// Stores freezes, until the term ends.
    pub async fn keep_saved(self: Arc<Self>) {
        let mut backoff = Backoff::new(self.retry_base, SAVE_CAP);
        loop {
            self.to_save.notified().await;
            while self.lock().unsaved.is_some() {
                let saved = self.save().await;
                match saved {
                    Ok(()) => backoff = Backoff::new(self.retry_base, SAVE_CAP),
                    Err(why) => {
                        tracing::error!(
                            "a freeze could not be stored; nothing is released until it is: {why}"
                        );
                        self.lock().unsaved = Some(why);
                        tokio::time::sleep(Duration::from_millis(100) + backoff.next_delay()).await;
                    }
                }
            }
        }
    }

    async fn save(&self) -> Result<(), String> {
        let _one = self.writing.lock().await;
        let (version, mode, fuse) = {
            let inner = self.lock();
            (inner.version, inner.choice.as_ref().map(ChosenMode::text), inner.fuse.text())
        };
        self.shelf.write(mode, fuse).await?;
        let saved = {
            let mut inner = self.lock();
            let saved = inner.version == version;
            if saved {
                inner.unsaved = None;
            }
            saved
        };
        if saved {
            self.announce();
        }
        Ok(())
    }

    // === what a person decides ===

    /// Opens what is frozen. Stored first; a freeze that happens meanwhile stays.
    pub async fn open(&self, what: &Opens, who: &Who) -> Result<View, ControlError> {
        let _one = self.writing.lock().await;
        let (before, mode, unreadable) = {
            let inner = self.lock();
            let mode = inner.choice.as_ref().map(ChosenMode::text);
            (inner.fuse.clone(), mode, inner.unreadable.is_some())
        };
        let mut after = before.clone();
        let (name, opened) = match what {
            Opens::Node(which) => (format!("node {which}"), after.fuse.open_node(which)),
            Opens::Cluster => {
                if !after.fuse.open_cluster() && !unreadable {
                    return Err(ControlError::NotFrozen("the cluster".to_owned()));
                }
                ("the cluster".to_owned(), Vec::new())
            }
        };
        if matches!(what, Opens::Node(_)) && opened.is_empty() {
            return Err(ControlError::NotFrozen(name));
        }
        after.last_reset = Some(Decision::now(name.clone(), who));
        let written = self.shelf.write(mode, after.text()).await;
        written.map_err(|why| self.not_stored(why))?;
        self.take(after, &before, what);
        tracing::warn!(what = name, by = who.user, reason = who.reason, "fuse reset");
        let sentence = format!("{} has reset the fuse of {name}: {}", who.user, who.reason);
        for instance in &opened {
            if let Some(node) = before.fuse.nodes.get(instance) {
                self.recorder.post(
                    Target::Node(node.node.clone()),
                    Severity::Normal,
                    Reason::ReleaseFuseReset,
                    sentence.clone(),
                );
            }
        }
        self.tell(Severity::Normal, Reason::ReleaseFuseReset, sentence);
        self.announce();
        Ok(self.view())
    }

    /// A write that failed may have been carried out all the same: what is in force is written once more.
    fn not_stored(&self, why: String) -> ControlError {
        {
            let mut inner = self.lock();
            inner.version += 1;
            inner.unsaved = Some(why.clone());
        }
        self.announce();
        self.to_save.notify_one();
        ControlError::NotStored(why)
    }

    /// What was stored is in force, with the freezes of the meantime on top.
    fn take(&self, after: StoredFuse, before: &StoredFuse, what: &Opens) {
        let mut inner = self.lock();
        let now = std::mem::replace(&mut inner.fuse, after);
        for (instance, frozen) in now.fuse.nodes {
            if !before.fuse.nodes.contains_key(&instance) {
                inner.fuse.fuse.freeze(instance, frozen.node, frozen.pods, frozen.at);
            }
        }
        if *what == Opens::Cluster {
            inner.unreadable = None;
        }
        inner.version += 1;
    }

    /// Chooses a mode.
    pub async fn choose(&self, mode: Mode, who: &Who) -> Result<View, ControlError> {
        let _one = self.writing.lock().await;
        let (before, over, fuse) = {
            let inner = self.lock();
            let kept = inner.unreadable.is_none();
            (inner.mode(), inner.flags, kept.then(|| inner.fuse.text()))
        };
        let choice = ChosenMode {
            choice: Choice { mode, over },
            decision: Decision::now(mode.name().to_owned(), who),
        };
        let stricter = mode >= before;
        if stricter {
            self.put_in_force(mode);
        }
        let written = match fuse {
            Some(fuse) => self.shelf.write(Some(choice.text()), fuse).await,
            // An unreadable text is left for a person to look at.
            None => Err("the stored fuse cannot be read; reset it first".to_owned()),
        };
        match written {
            Err(why) if stricter => {
                self.lock().choice = Some(choice);
                self.tell_mode(mode, who);
                return Err(ControlError::InForceOnly(why));
            }
            Err(why) => return Err(self.not_stored(why)),
            Ok(()) => self.lock().choice = Some(choice),
        }
        self.put_in_force(mode);
        self.tell_mode(mode, who);
        Ok(self.view())
    }

    fn tell_mode(&self, mode: Mode, who: &Who) {
        tracing::warn!(%mode, by = who.user, reason = who.reason, "mode changed");
        let severity = if mode == Mode::Normal { Severity::Normal } else { Severity::Warning };
        let sentence = format!("{} has set the mode {mode}: {}", who.user, who.reason);
        self.tell(severity, Reason::ModeChanged, sentence);
    }

    fn put_in_force(&self, mode: Mode) {
        self.settings.send_if_modified(|s| {
            let new = Settings {
                read_only: mode.forbids_change(),
                no_release: mode.forbids_release(),
                ..*s
            };
            std::mem::replace(s, new) != new
        });
        self.metrics.mode(mode);
    }

    /// Somebody ordered repairs on these nodes, of so many branches each: logged, evented and shown, in this term only; the
    /// orders themselves are the books' and end with the term too.
    pub fn repair_ordered(&self, nodes: &BTreeMap<NodeName, usize>, who: &Who) {
        let total: usize = nodes.values().sum();
        let what = format!("repair of {total} branch(es)");
        tracing::warn!(branches = total, by = who.user, reason = who.reason, "repair ordered");
        self.lock().repair = Some(Decision::now(what, who));
        for (node, count) in nodes {
            let sentence = format!(
                "{} has ordered the repair of {count} branch(es) of this node: {}",
                who.user, who.reason
            );
            let target = Target::Node(node.clone());
            self.recorder.post(target, Severity::Normal, Reason::RepairOrdered, sentence);
        }
    }

    /// An event about the cluster's state.
    fn tell(&self, severity: Severity, reason: Reason, sentence: impl Into<String>) {
        self.recorder.post(Target::State(self.namespace.clone()), severity, reason, sentence);
    }

    fn announce(&self) {
        self.measure();
        self.changed.set(());
    }

    fn measure(&self) {
        let view = self.view();
        let nodes = view.fuse.fuse.nodes.len();
        self.metrics.fuse(nodes, view.fuse.fuse.cluster.is_some(), view.unknown.is_some());
    }
}

impl Inner {
    fn unknown(&self) -> Option<&str> {
        self.unreadable.as_deref().or(self.unsaved.as_deref())
    }

    fn mode(&self) -> Mode {
        in_force(self.choice.as_ref().map(|c| c.choice), self.flags)
    }
}
