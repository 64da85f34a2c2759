//! The pods of one node.

use std::collections::BTreeMap;
use std::future::Future;

use serde::Deserialize;
use tokio::sync::mpsc;
use trunkline_core::id::{
    AccountName, Namespace, NodeName, PodName, PodRef, PodUid, ResourceVersion,
};
use trunkline_core::time::Timing;
use trunkline_core::view::{Blind, Complete, OddRequest, Pod, PodPhase, Snapshot};

use super::{Event, ListWatch, ListWatchMetrics, Relist, Resource, Settings, Undecodable};
use crate::api::Api;
use crate::clock::Clock;

/// What an agent is told of its node's pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodsEvent {
    /// The view is not complete (any more); it is being listed again. Once per change of reason.
    Stale(Blind),
    /// A complete list; replaces everything told before.
    Listed(Snapshot<Complete>),
    /// A pod was added or changed.
    Applied(Pod, ResourceVersion),
    /// A watch DELETED event carried this UID.
    Deleted(PodRef, ResourceVersion),
    /// Nothing changed up to this resourceVersion.
    Bookmark(ResourceVersion),
}

impl From<Event<Pod>> for PodsEvent {
    fn from(event: Event<Pod>) -> Self {
        match event {
            Event::Stale(why) => Self::Stale(why),
            Event::Listed(pods, rv) => {
                let mut snapshot = Snapshot::begin();
                for pod in pods {
                    snapshot.add(pod);
                }
                Self::Listed(snapshot.close(rv))
            }
            Event::Applied(pod, rv) => Self::Applied(pod, rv),
            Event::Deleted(pod, rv) => Self::Deleted(pod.pod, rv),
            Event::Bookmark(rv) => Self::Bookmark(rv),
        }
    }
}

/// The pods whose `spec.nodeName` is this node.
#[derive(Debug, Clone)]
pub struct PodsOfNode(pub NodeName);

impl Resource for PodsOfNode {
    type Wire = PodWire;
    type Item = Pod;

    fn name(&self) -> &'static str {
        "pods"
    }

    fn path(&self) -> String {
        "/api/v1/pods".into()
    }

    fn kind(&self) -> &'static str {
        "Pod"
    }

    fn field_selector(&self) -> Option<String> {
        Some(format!("spec.nodeName={}", self.0))
    }

    fn convert(&self, wire: PodWire) -> Result<Pod, Undecodable> {
        if wire.spec.node_name.as_deref() != Some(self.0.as_str()) {
            return Err(Undecodable(format!(
                "pod {}/{} is on node {:?}, not on {}",
                wire.metadata.namespace, wire.metadata.name, wire.spec.node_name, self.0
            )));
        }
        wire.into_pod()
    }
}

/// The list-watch of a node's pods: the events, a handle to list again, and the future that does the work until the
/// receiver is dropped.
pub fn watch_pods(
    api: Api,
    node: NodeName,
    clock: Clock,
    timing: &Timing,
    metrics: ListWatchMetrics,
) -> (mpsc::Receiver<PodsEvent>, Relist, impl Future<Output = ()> + Send + use<>) {
    let (sender, receiver) = mpsc::channel(64);
    let watch =
        ListWatch::new(api, PodsOfNode(node), clock, Settings::new(timing.watch_silence), metrics);
    let relist = watch.relist();
    (receiver, relist, watch.run(sender, PodsEvent::from))
}

/// The part of a Pod that is decoded.
#[derive(Debug, Deserialize)]
pub struct PodWire {
    pub(crate) metadata: Metadata,
    #[serde(default)]
    pub(crate) spec: Spec,
    #[serde(default)]
    status: PodStatus,
}

/// A whole answer to a GET of one pod.
#[derive(Debug, Deserialize)]
pub(crate) struct LivePodWire {
    #[serde(default)]
    pub(crate) kind: String,
    #[serde(flatten)]
    pub(crate) pod: PodWire,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Metadata {
    uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) resource_version: String,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<Annotations>,
    deletion_timestamp: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Annotations {
    #[serde(rename = "vpc.amazonaws.com/pod-eni")]
    pod_eni: Option<String>,
    #[serde(rename = "kubernetes.io/config.mirror")]
    mirror: Option<String>,
    #[serde(rename = "kubernetes.io/config.hash")]
    hash: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Spec {
    pub(crate) node_name: Option<String>,
    service_account_name: Option<String>,
    containers: Option<Vec<Container>>,
    init_containers: Option<Vec<Container>>,
}

#[derive(Debug, Deserialize)]
struct Container {
    resources: Option<Resources>,
}

impl Container {
    /// The amount of the resource, where it is named.
    fn asks(&self) -> Option<&serde_json::Value> {
        self.resources.as_ref()?.requests.as_ref()?.pod_eni.as_ref()
    }
}

#[derive(Debug, Deserialize)]
struct Resources {
    requests: Option<Requests>,
}

#[derive(Debug, Deserialize)]
struct Requests {
    #[serde(rename = "vpc.amazonaws.com/pod-eni")]
    pod_eni: Option<serde_json::Value>,
}

#[derive(Debug, Default, Deserialize)]
struct PodStatus {
    phase: Option<String>,
}

impl PodWire {
    /// Validates the ids; everything that is only looked at by rules which tolerate its absence is dropped if it is
    /// malformed (account, hash, phase, quantity).
    pub(crate) fn into_pod(self) -> Result<Pod, Undecodable> {
        let bad = |e: trunkline_core::id::InvalidId| Undecodable(e.to_string());
        let annotations = self.metadata.annotations.unwrap_or_default();
        let containers = self.spec.containers.unwrap_or_default();
        let init_containers = self.spec.init_containers.unwrap_or_default();
        let requested = requested(&containers);
        Ok(Pod {
            pod: PodRef {
                uid: PodUid::new(&self.metadata.uid).map_err(bad)?,
                namespace: Namespace::new(&self.metadata.namespace).map_err(bad)?,
                name: PodName::new(&self.metadata.name).map_err(bad)?,
            },
            labels: self.metadata.labels.unwrap_or_default(),
            account: self.spec.service_account_name.and_then(|a| AccountName::new(&a).ok()),
            phase: phase(self.status.phase.as_deref()),
            deleting: self.metadata.deletion_timestamp.is_some(),
            mirror: annotations.mirror.is_some(),
            config_hash: annotations.hash.and_then(|h| PodUid::new(&h).ok()),
            requested,
            odd_request: odd_request(requested, &containers, &init_containers),
            annotation: annotations.pod_eni,
        })
    }
}

/// Decodes a pod from the JSON of a Pod object.
pub fn parse_pod(object: &serde_json::Value) -> Result<Pod, Undecodable> {
    let wire = PodWire::deserialize(object).map_err(|e| Undecodable(e.to_string()))?;
    wire.into_pod()
}

fn phase(text: Option<&str>) -> PodPhase {
    match text {
        Some("Pending") => PodPhase::Pending,
        Some("Running") => PodPhase::Running,
        Some("Succeeded") => PodPhase::Succeeded,
        Some("Failed") => PodPhase::Failed,
        _ => PodPhase::Unknown,
    }
}

/// `ANN-6`: the sum over the containers; what is not an integer counts nothing.
fn requested(containers: &[Container]) -> u32 {
    containers.iter().filter_map(Container::asks).filter_map(quantity).fold(0, u32::saturating_add)
}

fn odd_request(
    requested: u32,
    containers: &[Container],
    init_containers: &[Container],
) -> Option<OddRequest> {
    let names = |c: &Container| c.asks().is_some();
    match requested {
        0 if containers.iter().any(names) => Some(OddRequest::Zero),
        0 if init_containers.iter().any(names) => Some(OddRequest::InitOnly),
        0 => None,
        _ => (!containers.first().is_some_and(names)).then_some(OddRequest::NotFirst),
    }
}

/// An integer quantity as the API server writes it: plain digits, or thousands as `k`.
fn quantity(value: &serde_json::Value) -> Option<u32> {
    match value {
        serde_json::Value::Number(n) => n.as_u64().and_then(|n| u32::try_from(n).ok()),
        serde_json::Value::String(text) => match text.strip_suffix('k') {
            Some(thousands) => digits(thousands)?.checked_mul(1000),
            None => digits(text),
        },
        _ => None,
    }
}

fn digits(text: &str) -> Option<u32> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}
