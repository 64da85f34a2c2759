//! Kubernetes events: what a user must see with `kubectl describe` (`contract.md` §20).
//!
//! Nothing correct depends on them (S78): posting never waits, a full queue or a refused write loses the event and is
//! counted. The same event about the same object is written once and then only counted, at most one write a minute (`D40`).

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;
use trunkline_core::id::{Namespace, NodeName, PodRef};
use trunkline_kit::epoch::STATE_CONFIGMAP;
use trunkline_kit::random;

use crate::api::Api;

/// Event component, the peer's.
pub const COMPONENT: &str = "vpc-resource-controller";

const QUEUE: usize = 1_024;
/// Events that are remembered for counting.
const REMEMBERED: usize = 4_096;
/// A repetition later than this is a new event.
const SAME_EVENT: Duration = Duration::from_secs(3_600);
/// Shortest distance between two writes of one event's count.
const COUNT_EVERY: Duration = Duration::from_secs(60);
/// Pace of writes.
const WRITE_EVERY: Duration = Duration::from_millis(20);

/// Reasons of `contract.md` §20 and our own. Closed, so that a typing error does not compile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(
    missing_docs,
    reason = "the names are the documentation: they are the event reasons themselves"
)]
pub enum Reason {
    ControllerVersionNotice,
    NodeTrunkInitiated,
    NodeTrunkFailedInit,
    TrunkENICreationFailed,
    Unsupported,
    BranchENICoolDownPeriodUpdated,
    CNINodeCreationFailed,
    CNINodeDeletionFailed,
    SecurityGroupRequested,
    ResourceAllocated,
    BranchAllocationFailed,
    BranchENIAnnotationFailed,
    // Ours.
    NodeNotManaged,
    CNINodeFinalizerRemoved,
    TrunkFull,
    TrunkENILost,
    BranchENIWaiting,
    BranchENIRequestOdd,
    AnnotationReplaced,
    AnnotationUnusable,
    BranchENIUnbound,
    StrayLink,
    BranchENIQuarantined,
    BranchENIReleaseFailed,
    BranchENICoolDownInvalid,
    ReleaseFuseBlown,
    ReleaseFuseReset,
    ModeChanged,
    BranchENILost,
    BranchENIHealed,
    BranchENINotHealable,
    BranchENIHealFrozen,
    BranchENIDrifted,
    BranchENIPodEvicted,
    RepairOrdered,
    DeadInstanceENIKept,
}

/// Type of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    /// For information.
    Normal,
    /// Something a person may have to mend.
    Warning,
}

/// The object an event is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    /// A pod.
    Pod(PodRef),
    /// A node, with the node's *name* as UID, which is what describe tools look for (`contract.md` §20).
    Node(NodeName),
    /// A node with its real UID.
    NodeByUid(NodeName, String),
    /// A CNINode with its UID.
    CniNode(NodeName, String),
    /// The cluster's state, that is the ConfigMap `trunkline-state` in this namespace.
    State(Namespace),
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Notice {
    /// About what.
    pub target: Target,
    /// How serious.
    pub severity: Severity,
    /// Reason.
    pub reason: Reason,
    /// Sentence for a person.
    pub message: String,
}

/// Where events go. Cheap to clone; never waits.
#[derive(Debug, Clone)]
pub struct Recorder(mpsc::Sender<Notice>);

impl Recorder {
    /// Posts an event; loses it when the queue is full.
    pub fn post(
        &self,
        target: Target,
        severity: Severity,
        reason: Reason,
        message: impl Into<String>,
    ) {
        let notice = Notice { target, severity, reason, message: message.into() };
        if self.0.try_send(notice).is_err() {
            tracing::debug!(?reason, "event lost: the queue is full");
        }
    }
}

/// A recorder and the future that writes its events.
pub fn recorder(api: Api) -> (Recorder, impl Future<Output = ()> + Send) {
    let (tx, rx) = mpsc::channel(QUEUE);
    (Recorder(tx), write(api, rx))
}

/// A recorder whose events are handed to a test.
pub fn captured() -> (Recorder, mpsc::Receiver<Notice>) {
    let (tx, rx) = mpsc::channel(QUEUE);
    (Recorder(tx), rx)
}

struct Written {
    name: String,
    count: u32,
    first: Instant,
    last_write: Instant,
}

async fn write(api: Api, mut rx: mpsc::Receiver<Notice>) {
    let mut written: HashMap<Notice, Written> = HashMap::new();
    while let Some(notice) = rx.recv().await {
        if written.len() >= REMEMBERED {
            written.retain(|_, w| w.first.elapsed() < SAME_EVENT);
            if written.len() >= REMEMBERED {
                written.clear();
            }
        }
        let now = Instant::now();
        match written.get_mut(&notice).filter(|w| now.duration_since(w.first) < SAME_EVENT) {
            Some(seen) => {
                seen.count = seen.count.saturating_add(1);
                if now.duration_since(seen.last_write) < COUNT_EVERY {
                    continue;
                }
                seen.last_write = now;
                let path = format!(
                    "/api/v1/namespaces/{}/events/{}",
                    namespace(&notice.target),
                    seen.name
                );
                let body = json!({"count": seen.count, "lastTimestamp": timestamp()});
                log_failure(api.merge_patch(&path, &body).await.map(drop));
            }
            None => {
                let name = format!("{}.{:016x}", object_name(&notice.target), random::bits64());
                let path = format!("/api/v1/namespaces/{}/events", namespace(&notice.target));
                let answer = api.post::<Value>(&path, &object(&notice, &name)).await;
                if answer.is_ok() {
                    written.insert(notice, Written { name, count: 1, first: now, last_write: now });
                }
                log_failure(answer.map(drop));
            }
        }
        tokio::time::sleep(WRITE_EVERY).await;
    }
}

fn log_failure(answer: Result<(), crate::api::ApiError>) {
    if let Err(e) = answer {
        tracing::debug!("event not written: {e}");
    }
}

fn timestamp() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Events about cluster-wide objects live in `default`.
fn namespace(target: &Target) -> &str {
    match target {
        Target::Pod(pod) => pod.namespace.as_str(),
        Target::State(namespace) => namespace.as_str(),
        Target::Node(_) | Target::NodeByUid(..) | Target::CniNode(..) => "default",
    }
}

fn object_name(target: &Target) -> &str {
    match target {
        Target::Pod(pod) => pod.name.as_str(),
        Target::State(_) => STATE_CONFIGMAP,
        Target::Node(name) | Target::NodeByUid(name, _) | Target::CniNode(name, _) => name.as_str(),
    }
}

fn object(notice: &Notice, name: &str) -> Value {
    let involved = match &notice.target {
        Target::Pod(pod) => json!({
            "apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace.as_str(), "name": pod.name.as_str(),
            "uid": pod.uid.as_str(),
        }),
        Target::State(namespace) => json!({
            "apiVersion": "v1", "kind": "ConfigMap", "namespace": namespace.as_str(), "name": STATE_CONFIGMAP,
        }),
        Target::Node(node) => {
            json!({"apiVersion": "v1", "kind": "Node", "name": node.as_str(), "uid": node.as_str()})
        }
        Target::NodeByUid(node, uid) => {
            json!({"apiVersion": "v1", "kind": "Node", "name": node.as_str(), "uid": uid})
        }
        Target::CniNode(node, uid) => json!({
            "apiVersion": "vpcresources.k8s.aws/v1alpha1", "kind": "CNINode", "name": node.as_str(), "uid": uid,
        }),
    };
    let now = timestamp();
    let message: String = notice.message.chars().take(1_000).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace(&notice.target)},
        "involvedObject": involved,
        "reason": format!("{:?}", notice.reason),
        "message": message,
        "type": match notice.severity { Severity::Normal => "Normal", Severity::Warning => "Warning" },
        "source": {"component": COMPONENT},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::testing::{Asked, scripted};

    fn pod() -> Target {
        Target::Pod(PodRef {
            uid: "uid-1".parse().unwrap(),
            namespace: "shop".parse().unwrap(),
            name: "web-0".parse().unwrap(),
        })
    }

    #[tokio::test(start_paused = true)]
    async fn d40_the_same_event_is_written_once_and_then_counted() {
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let log = asked.clone();
        let api = scripted(move |request| {
            log.lock().unwrap().push(request);
            (201, "{}".into())
        });
        let (recorder, writer) = recorder(api);
        let writer = tokio::spawn(writer);
        for _ in 0..3 {
            recorder.post(pod(), Severity::Warning, Reason::TrunkFull, "no slot");
        }
        tokio::time::sleep(Duration::from_secs(61)).await;
        recorder.post(pod(), Severity::Warning, Reason::TrunkFull, "no slot");
        recorder.post(
            Target::Node("n1".parse().unwrap()),
            Severity::Normal,
            Reason::NodeTrunkInitiated,
            "ready",
        );
        drop(recorder);
        writer.await.unwrap();
        let asked = asked.lock().unwrap();
        assert_eq!(asked.len(), 3);
        assert_eq!(asked[0].path, "/api/v1/namespaces/shop/events");
        assert_eq!(asked[0].body["source"]["component"], COMPONENT);
        assert_eq!(asked[0].body["involvedObject"]["uid"], "uid-1");
        assert_eq!(asked[0].body["type"], "Warning");
        assert_eq!(asked[0].body["reason"], "TrunkFull");
        assert_eq!(asked[1].method, "PATCH");
        assert_eq!(asked[1].body["count"], 4);
        assert_eq!(asked[2].path, "/api/v1/namespaces/default/events");
        assert_eq!(
            asked[2].body["involvedObject"]["uid"], "n1",
            "describe tools look for the node's name"
        );
    }

    #[tokio::test]
    async fn s78_a_refused_or_lost_event_harms_nobody() {
        let api =
            scripted(|_| (403, r#"{"kind":"Status","reason":"Forbidden","message":"no"}"#.into()));
        let (recorder, writer) = recorder(api);
        for n in 0..QUEUE + 10 {
            recorder.post(pod(), Severity::Normal, Reason::ResourceAllocated, n.to_string());
        }
        drop(recorder);
        tokio::time::pause();
        writer.await;
    }
}
