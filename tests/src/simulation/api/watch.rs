//! Watches: what a replica's cache has seen, line by line, for as long as the connection holds.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use hyper::body::Frame;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;

use super::serve::{Answer, Asked, number_of, status, status_object, streamed};
use super::store::{Change, Selection};
use crate::simulation::weather::Place;
use crate::simulation::world::{Life, World};

/// Distance of bookmarks.
const BOOKMARK: Duration = Duration::from_secs(60);

/// The version that a replica's cache has seen. It never goes back: how far it is behind only changes when the next change
/// is shown.
pub(super) fn seen(world: &World, replica: usize) -> u64 {
    let behind = world.weather().behind.get(replica).copied().unwrap_or_default();
    let store = world.store();
    if behind.is_zero() {
        return store.rv();
    }
    let at = world.now().0.saturating_sub(u64::try_from(behind.as_millis()).unwrap_or_default());
    store.rv_at(trunkline_core::time::Moment(at))
}

/// Opens a watch.
pub(super) fn answer(world: &Arc<World>, life: &Arc<Life>, asked: &Asked) -> Answer {
    let from = number_of(&asked.query, "resourceVersion=");
    let expired = from < world.store().compacted();
    let gone = world.weather().gone;
    if expired && world.dice.chance(0.5) || world.dice.chance(gone) {
        return status(410, "Expired", &json!({}));
    }
    let (lines, body) = mpsc::channel(64);
    let seconds = number_of(&asked.query, "timeoutSeconds=");
    let pump = Pump {
        world: world.clone(),
        life: life.clone(),
        selection: Selection::read(&asked.path, &asked.query),
        replica: asked.replica,
        position: from,
        scanned: from,
        until: Instant::now() + Duration::from_secs(seconds),
        lines,
        expired,
    };
    tokio::spawn(pump.run());
    streamed(200, ReceiverStream::new(body).boxed())
}

struct Pump {
    world: Arc<World>,
    life: Arc<Life>,
    selection: Selection,
    replica: usize,
    /// What was shown.
    position: u64,
    /// Up to here nothing is to be shown any more.
    scanned: u64,
    until: Instant,
    lines: mpsc::Sender<Result<Frame<Bytes>, io::Error>>,
    expired: bool,
}

/// The watch is over.
struct Over;

impl Pump {
    async fn run(mut self) {
        if self.expired {
            let object = status_object(410, "Expired", &json!({}));
            let _closed = self.send(&json!({"type": "ERROR", "object": object})).await;
            return;
        }
        let mut bookmark = Instant::now() + BOOKMARK;
        loop {
            let world = self.world.clone();
            let moved = world.store_moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            let due = match self.show().await {
                Ok(due) => due,
                Err(Over) => return,
            };
            let wake = due.map_or(bookmark, |due| due.min(bookmark)).min(self.until);
            tokio::select! {
                biased;
                () = self.life.over.cancelled() => return,
                () = self.lines.closed() => return,
                () = tokio::time::sleep_until(wake) => {}
                () = moved => {}
            }
            if Instant::now() >= self.until {
                return;
            }
            if Instant::now() >= bookmark {
                bookmark = Instant::now() + BOOKMARK;
                self.position = self.position.max(seen(&self.world, self.replica));
                let object = json!({
                    "kind": self.kind(),
                    "metadata": {"resourceVersion": self.position.max(1).to_string()},
                });
                if self.send(&json!({"type": "BOOKMARK", "object": object})).await.is_err() {
                    return;
                }
            }
        }
    }

    fn kind(&self) -> &'static str {
        match &self.selection {
            Selection::PodsOfNode(_) => "Pod",
            Selection::All(path) if path.ends_with("/nodes/") => "Node",
            Selection::All(_) => "CNINode",
            Selection::One(_) => "ConfigMap",
        }
    }

    /// Shows the changes that the cache has seen; returns when the next one is due, if there is one.
    async fn show(&mut self) -> Result<Option<Instant>, Over> {
        loop {
            let seen = seen(&self.world, self.replica);
            let next = {
                let store = self.world.store();
                store.next_change(&self.selection, self.scanned.max(self.position)).cloned()
            };
            let change = match next {
                Ok(change) => change,
                Err(scanned) => {
                    self.scanned = scanned;
                    return Ok(None);
                }
            };
            if change.rv > seen {
                let behind =
                    self.world.weather().behind.get(self.replica).copied().unwrap_or_default();
                let left = change.at.plus(behind).since(self.world.now());
                return Ok(Some(Instant::now() + left.max(Duration::from_millis(1))));
            }
            self.position = change.rv;
            self.send(&line(&change)).await?;
        }
    }

    async fn send(&self, line: &Value) -> Result<(), Over> {
        let world = &self.world;
        let (cut, silent) = {
            let weather = world.weather();
            (weather.watch_cut, weather.silent.contains(&self.life.place))
        };
        if silent || world.is_cut(&self.life.place, &Place::Api) {
            // The connection lives, and nothing comes any more.
            tokio::select! {
                biased;
                () = self.lines.closed() => {}
                () = self.life.over.cancelled() => {}
                () = tokio::time::sleep_until(self.until) => {}
            }
            return Err(Over);
        }
        let text = format!("{line}\n");
        if world.dice.chance(cut) {
            let broken = match world.dice.below(0..3) {
                0 => return Err(Over),
                1 => {
                    let half = text.chars().take(text.len() / 2).collect::<String>();
                    Ok(Frame::data(Bytes::from(half)))
                }
                _ => Err(io::Error::new(io::ErrorKind::ConnectionReset, "reset")),
            };
            let _closed = self.lines.send(broken).await;
            return Err(Over);
        }
        self.lines.send(Ok(Frame::data(Bytes::from(text)))).await.map_err(|_| Over)
    }
}

fn line(change: &Change) -> Value {
    match (&change.before, &change.after) {
        (None, Some(after)) => json!({"type": "ADDED", "object": **after}),
        (Some(_), Some(after)) => json!({"type": "MODIFIED", "object": **after}),
        (before, None) => {
            let mut object = before.as_ref().map(|b| (**b).clone()).unwrap_or_default();
            if let Some(meta) = object.pointer_mut("/metadata").and_then(Value::as_object_mut) {
                meta.insert("resourceVersion".into(), json!(change.rv.to_string()));
            }
            json!({"type": "DELETED", "object": object})
        }
    }
}
