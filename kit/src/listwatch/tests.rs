//! The list-watch against a scripted API server: every fault of `kube.md` §8.2 and `safety.md` §7 that can reach it.

mod faults;
mod liveness;
mod pods;

use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use trunkline_core::id::NodeName;
use trunkline_core::time::Timing;
use trunkline_core::view::Blind;

use super::*;
use crate::script::{Asked, Script, Stream, scripted};

struct Rig {
    script: Script,
    events: mpsc::Receiver<PodsEvent>,
    relist: Relist,
    metrics: ListWatchMetrics,
    clock: Clock,
    task: JoinHandle<()>,
}

fn rig() -> Rig {
    let (api, script) = scripted();
    let clock = Clock::virtual_time();
    let metrics = ListWatchMetrics::default();
    let node = NodeName::new("n1").unwrap();
    let (events, relist, task) = watch_pods(api, node, clock, &Timing::default(), metrics.clone());
    Rig { script, events, relist, metrics, clock, task: tokio::spawn(task) }
}

impl Rig {
    async fn event(&mut self) -> PodsEvent {
        self.events.recv().await.unwrap()
    }

    async fn list(&mut self) -> Asked {
        let asked = self.script.next().await;
        assert!(!asked.asks("watch=true"), "expected a list, got a watch");
        asked
    }

    async fn watch(&mut self) -> Asked {
        let asked = self.script.next().await;
        assert!(asked.asks("watch=true"), "expected a watch, got a list");
        asked
    }

    async fn listed(&mut self) -> Vec<String> {
        match self.event().await {
            PodsEvent::Listed(snapshot) => {
                snapshot.pods().keys().map(ToString::to_string).collect()
            }
            other => panic!("expected a list, got {other:?}"),
        }
    }

    async fn stale(&mut self) -> Blind {
        match self.event().await {
            PodsEvent::Stale(why) => why,
            other => panic!("expected Stale, got {other:?}"),
        }
    }

    /// Lists `uids` at `rv` and opens the watch.
    async fn complete(&mut self, uids: &[&str], rv: &str) -> Stream {
        self.list().await.json(200, &list(uids, rv));
        assert_eq!(self.listed().await.len(), uids.len());
        self.watch().await.stream(200)
    }

    fn troubles(&self, trouble: Trouble) -> u64 {
        self.metrics.count("pods", trouble)
    }
}

fn pod(uid: &str, rv: &str) -> Value {
    json!({
        "metadata": {"uid": uid, "namespace": "default", "name": format!("pod-{uid}"), "resourceVersion": rv},
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Running"},
    })
}

fn list(uids: &[&str], rv: &str) -> Value {
    let items: Vec<Value> = uids.iter().map(|uid| pod(uid, rv)).collect();
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": rv}, "items": items})
}

fn event(what: &str, mut object: Value) -> Value {
    object["kind"] = json!("Pod");
    json!({"type": what, "object": object})
}

fn bookmark(rv: &str) -> Value {
    json!({"type": "BOOKMARK", "object": {"kind": "Pod", "apiVersion": "v1",
           "metadata": {"resourceVersion": rv, "creationTimestamp": null}, "spec": {"containers": null}, "status": {}}})
}
