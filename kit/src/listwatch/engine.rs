//! The loop: list until a list is accepted, follow it until it cannot be followed any more, say so, and again.

use std::time::Duration;

use http::StatusCode;
use tokio::sync::mpsc;
use trunkline_core::id::ResourceVersion;
use trunkline_core::time::Moment;
use trunkline_core::view::Blind;

use super::{Event, ListWatch, Resource, Trouble, accept_list};
use crate::api::{ApiError, encode_query, get_request};
use crate::backoff::jitter;

/// Where the view stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing was told yet.
    NotRead,
    /// Complete and followed.
    Complete,
    /// Told to be stale, for this reason.
    Stale(Blind),
}

/// Why the loop ends: the consumer is gone.
pub(super) struct Closed;

/// Why a complete view is no longer followed.
pub(super) enum Lost {
    Closed,
    Broken(Trouble, Blind),
}

impl From<Closed> for Lost {
    fn from(Closed: Closed) -> Self {
        Self::Closed
    }
}

/// How the next list is asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Read {
    /// A consistent read: no resourceVersion.
    Consistent,
    /// Not older than what was seen.
    NotOlder,
}

/// The way to the consumer.
pub(super) struct Out<'a, T, O, F> {
    pub(super) sender: mpsc::Sender<O>,
    map: F,
    marker: std::marker::PhantomData<&'a T>,
}

impl<T, O, F: Fn(Event<T>) -> O> Out<'_, T, O, F> {
    pub(super) async fn send(&self, event: Event<T>) -> Result<(), Closed> {
        let out = (self.map)(event);
        self.sender.send(out).await.map_err(|_| Closed)
    }
}

/// Runs `watch` until the receiver is dropped.
pub(super) async fn run<R: Resource, O: Send>(
    mut watch: ListWatch<R>,
    sender: mpsc::Sender<O>,
    map: impl Fn(Event<R::Item>) -> O + Send,
) {
    let out = Out { sender, map, marker: std::marker::PhantomData };
    let mut read = Read::Consistent;
    loop {
        let Ok(last_sign) = watch.list_until_accepted(read, &out).await else {
            return;
        };
        match watch.follow(last_sign, &out).await {
            Lost::Closed => return,
            Lost::Broken(trouble, why) => {
                watch.trouble(trouble);
                if watch.stale(why, &out).await.is_err() {
                    return;
                }
                read = if trouble == Trouble::Contradicted {
                    Read::Consistent
                } else {
                    Read::NotOlder
                };
                let delay = watch.backoff.next_delay();
                if pause(delay, &out.sender).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Sleeps, unless the consumer goes away meanwhile.
async fn pause<O>(delay: Duration, sender: &mpsc::Sender<O>) -> Result<(), Closed> {
    tokio::select! {
        biased;
        () = tokio::time::sleep(delay) => Ok(()),
        () = sender.closed() => Err(Closed),
    }
}

impl<R: Resource> ListWatch<R> {
    pub(super) fn trouble(&self, trouble: Trouble) {
        self.metrics.trouble(self.resource.name(), trouble);
    }

    /// Tells the consumer that the view is not complete, once per change of reason.
    async fn stale<O, F>(&mut self, why: Blind, out: &Out<'_, R::Item, O, F>) -> Result<(), Closed>
    where
        F: Fn(Event<R::Item>) -> O,
    {
        if self.state == State::Stale(why) {
            return Ok(());
        }
        self.state = State::Stale(why);
        self.metrics.complete(self.resource.name(), false);
        tracing::warn!(
            resource = self.resource.name(),
            reason = why.name(),
            "view is stale, listing again"
        );
        out.send(Event::Stale(why)).await
    }

    /// Lists until a list is accepted and tells it; returns when it was asked for, which is how old it may be.
    async fn list_until_accepted<O, F>(
        &mut self,
        mut read: Read,
        out: &Out<'_, R::Item, O, F>,
    ) -> Result<Moment, Closed>
    where
        F: Fn(Event<R::Item>) -> O,
    {
        let mut too_large_since: Option<Moment> = None;
        loop {
            let asked = self.clock.now();
            let outcome = tokio::select! {
                biased;
                outcome = self.list(read) => outcome,
                () = out.sender.closed() => return Err(Closed),
            };
            let delay = match outcome {
                Ok((items, rv)) => {
                    self.metrics.listed(self.resource.name());
                    self.metrics.complete(self.resource.name(), true);
                    tracing::info!(resource = self.resource.name(), count = items.len(), %rv, "listed");
                    self.state = State::Complete;
                    self.rv = Some(rv.clone());
                    out.send(Event::Listed(items, rv)).await?;
                    return Ok(asked);
                }
                Err(failure) => {
                    let trouble = failure.trouble();
                    self.trouble(trouble);
                    if trouble == Trouble::TooLarge {
                        let since = *too_large_since.get_or_insert(asked);
                        if self.clock.now().since(since) > self.settings.too_large_patience {
                            self.trouble(Trouble::NewEpoch);
                            tracing::warn!(
                                resource = self.resource.name(),
                                last = ?self.rv,
                                "the API server's resourceVersions went back: new epoch"
                            );
                            self.rv = None;
                            read = Read::Consistent;
                            too_large_since = None;
                        }
                    } else {
                        too_large_since = None;
                    }
                    let cause = std::error::Error::source(&failure).map(ToString::to_string);
                    tracing::warn!(resource = self.resource.name(), error = %failure, cause, "failed to list");
                    let wait =
                        failure.retry_after().unwrap_or_default().min(self.settings.backoff_cap);
                    self.backoff.next_delay().max(wait + jitter(wait))
                }
            };
            self.stale(Blind::ReadFailed, out).await?;
            pause(delay, &out.sender).await?;
        }
    }

    async fn list(&self, read: Read) -> Result<(Vec<R::Item>, ResourceVersion), ListFailure> {
        let mut query = self.selector_query();
        if let (Read::NotOlder, Some(rv)) = (read, &self.rv) {
            query.push(format!("resourceVersion={rv}&resourceVersionMatch=NotOlderThan"));
        }
        let path = with_query(&self.resource.path(), &query);
        let response = self.api.send(get_request(&path)?).await?;
        if response.status() != StatusCode::OK {
            return Err(self.api.refused(response).await.into());
        }
        let body = self.api.read_all(response.into_body()).await?;
        Ok(accept_list(&self.resource, &body, self.rv.as_ref())?)
    }

    pub(super) fn selector_query(&self) -> Vec<String> {
        self.resource
            .field_selector()
            .map(|s| format!("fieldSelector={}", encode_query(&s)))
            .into_iter()
            .collect()
    }
}

pub(super) fn with_query(path: &str, query: &[String]) -> String {
    if query.is_empty() { path.to_owned() } else { format!("{path}?{}", query.join("&")) }
}

/// Why a list was not accepted.
#[derive(Debug, thiserror::Error)]
enum ListFailure {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Rejected(#[from] super::Rejected),
}

impl ListFailure {
    fn trouble(&self) -> Trouble {
        match self {
            Self::Rejected(_) => Trouble::ListRejected,
            Self::Api(error)
                if error.code() == Some(StatusCode::GATEWAY_TIMEOUT)
                    && error
                        .status()
                        .is_some_and(crate::api::Status::is_resource_version_too_large) =>
            {
                Trouble::TooLarge
            }
            Self::Api(_) => Trouble::ListFailed,
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Api(error) => error.retry_after(),
            Self::Rejected(_) => None,
        }
    }
}
