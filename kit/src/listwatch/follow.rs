//! Following an accepted list by watches, until the view cannot be trusted any more.

use std::future::Future;

use bytes::BytesMut;
use http::StatusCode;
use kube::client::Body;
use trunkline_core::time::Moment;
use trunkline_core::view::Blind;

use super::accept::{Line, read_line};
use super::engine::{Lost, Out, with_query};
use super::{Event, ListWatch, Resource, Trouble};
use crate::api::{ApiError, get_request};

/// Longest line of a watch. etcd refuses objects above 1.5 MiB; a line holds one.
const MAX_LINE: usize = 16 << 20;

impl<R: Resource> ListWatch<R> {
    /// Watches from the accepted list's resourceVersion, resuming where a watch ends, until the view cannot be trusted.
    pub(super) async fn follow<O, F>(
        &mut self,
        mut last_sign: Moment,
        out: &Out<'_, R::Item, O, F>,
    ) -> Lost
    where
        F: Fn(Event<R::Item>) -> O,
    {
        loop {
            let deadline = last_sign.plus(self.settings.silence);
            let body = match self.or_lost(deadline, out, self.open_watch()).await {
                Err(lost) => return lost,
                Ok(Ok(body)) => Some(body),
                Ok(Err(error)) if error.code() == Some(StatusCode::GONE) => {
                    return Lost::Broken(Trouble::Expired, Blind::Stale);
                }
                Ok(Err(error)) => {
                    self.trouble(Trouble::WatchFailed);
                    tracing::warn!(resource = self.resource.name(), %error, "failed to open a watch");
                    None
                }
            };
            if let Some(body) = body
                && let Err(lost) = self.read_watch(body, &mut last_sign, out).await
            {
                return lost;
            }
            let delay = self.backoff.next_delay();
            let deadline = last_sign.plus(self.settings.silence);
            if let Err(lost) = self.or_lost(deadline, out, tokio::time::sleep(delay)).await {
                return lost;
            }
        }
    }

    async fn open_watch(&self) -> Result<Body, ApiError> {
        let mut query = self.selector_query();
        query.push("watch=true&allowWatchBookmarks=true".into());
        query.push(format!("timeoutSeconds={}", crate::random::within(240..=294)));
        if let Some(rv) = &self.rv {
            query.push(format!("resourceVersion={rv}"));
        }
        let response =
            self.api.send(get_request(&with_query(&self.resource.path(), &query))?).await?;
        if response.status() == StatusCode::OK {
            Ok(response.into_body())
        } else {
            Err(self.api.refused(response).await)
        }
    }

    /// Reads a watch to its end. `Ok` means: resume at the last resourceVersion.
    async fn read_watch<O, F>(
        &mut self,
        mut body: Body,
        last_sign: &mut Moment,
        out: &Out<'_, R::Item, O, F>,
    ) -> Result<(), Lost>
    where
        F: Fn(Event<R::Item>) -> O,
    {
        let mut buffer = BytesMut::new();
        loop {
            let deadline = last_sign.plus(self.settings.silence);
            match self.or_lost(deadline, out, self.api.read(&mut body)).await? {
                Ok(Some(part)) => buffer.extend_from_slice(&part),
                // A cut-off last line is dropped with its watch; the resourceVersion has not moved past it.
                Ok(None) => return Ok(()),
                Err(error) => {
                    self.trouble(Trouble::WatchFailed);
                    tracing::info!(resource = self.resource.name(), %error, "a watch broke off, resuming");
                    return Ok(());
                }
            }
            while let Some(end) = buffer.iter().position(|b| *b == b'\n') {
                let line = buffer.split_to(end + 1);
                if line.trim_ascii().is_empty() {
                    continue;
                }
                if !self.take_line(&line, last_sign, out).await? {
                    return Ok(());
                }
            }
            if buffer.len() > MAX_LINE {
                return Err(Lost::Broken(Trouble::Undecodable, Blind::ReadFailed));
            }
        }
    }

    /// One line; `false` ends this watch, to be resumed.
    async fn take_line<O, F>(
        &mut self,
        line: &[u8],
        last_sign: &mut Moment,
        out: &Out<'_, R::Item, O, F>,
    ) -> Result<bool, Lost>
    where
        F: Fn(Event<R::Item>) -> O,
    {
        let (event, rv) = match read_line(&self.resource, line) {
            Ok(Line::Applied(item, rv)) => (Event::Applied(item, rv.clone()), rv),
            Ok(Line::Deleted(item, rv)) => (Event::Deleted(item, rv.clone()), rv),
            Ok(Line::Bookmark(rv)) => (Event::Bookmark(rv.clone()), rv),
            Ok(Line::Error(status)) if status.code == 410 => {
                return Err(Lost::Broken(Trouble::Expired, Blind::Stale));
            }
            Ok(Line::Error(status)) => {
                self.trouble(Trouble::WatchFailed);
                tracing::warn!(
                    resource = self.resource.name(),
                    ?status,
                    "a watch ended with an error, resuming"
                );
                return Ok(false);
            }
            Err(error) => {
                tracing::error!(resource = self.resource.name(), %error, "a watch event does not decode");
                return Err(Lost::Broken(Trouble::Undecodable, Blind::ReadFailed));
            }
        };
        if self.rv.as_ref().is_some_and(|known| rv < *known) {
            return Err(Lost::Broken(Trouble::WentBack, Blind::Stale));
        }
        self.rv = Some(rv);
        self.backoff.reset();
        // The sign is as old as its arrival here: a consumer that was slow to take it got an old view.
        *last_sign = self.clock.now();
        out.send(event).await?;
        if self.clock.now() > last_sign.plus(self.settings.silence) {
            return Err(Lost::Broken(Trouble::Silent, Blind::Stale));
        }
        Ok(true)
    }

    /// Waits for `future`, unless the view's silence runs out, a new list is requested or the consumer goes away. The
    /// silence is looked at again when the future is done: after a suspend both may be due at once, and an answer that
    /// waited for an hour does not make an hour-old view current.
    async fn or_lost<T, O, F>(
        &self,
        deadline: Moment,
        out: &Out<'_, R::Item, O, F>,
        future: impl Future<Output = T>,
    ) -> Result<T, Lost>
    where
        F: Fn(Event<R::Item>) -> O,
    {
        let silent = || Lost::Broken(Trouble::Silent, Blind::Stale);
        tokio::select! {
            biased;
            () = out.sender.closed() => Err(Lost::Closed),
            () = self.relist.requested() => Err(Lost::Broken(Trouble::Contradicted, Blind::Stale)),
            done = future => if self.clock.now() > deadline { Err(silent()) } else { Ok(done) },
            () = self.clock.sleep_until(deadline) => Err(silent()),
        }
    }
}
