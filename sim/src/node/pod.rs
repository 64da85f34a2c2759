//! What the simulated kubelet reads out of a pod object.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use super::pace::parse_duration;
use super::record::About;

/// Annotation or label: the process ends by itself, with success, this long after it started (`2s`, `500ms`).
pub const EXIT_AFTER: &str = "sim.trunkline.dev/exit-after";
/// Annotation or label: CNI ADD takes this long between reading the annotation and making the link.
pub const SLOW_ADD: &str = "sim.trunkline.dev/slow-add";
/// Annotation or label: CNI DEL takes this long; the cgroup stays until it is done (`real-node.md` §1).
pub const SLOW_DEL: &str = "sim.trunkline.dev/slow-del";
/// Annotation or label: the process ignores SIGTERM this long.
pub const IGNORE_TERM: &str = "sim.trunkline.dev/ignore-term";
/// Set on mirror pods.
pub const MIRROR: &str = "kubernetes.io/config.mirror";
/// The UID by which the kubelet knows a static pod.
pub const HASH: &str = "kubernetes.io/config.hash";

/// `metadata.uid`, or empty.
pub fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

/// `metadata.name`, or empty.
pub fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// `metadata.namespace`, or empty.
pub fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

/// `spec.nodeName`, if bound.
pub fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|n| !n.is_empty())
}

/// The node's network namespace is the pod's.
pub fn host_network(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|s| s.host_network).unwrap_or(false)
}

/// An annotation's value.
pub fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// A mirror pod stands for a static pod: it is not what makes the pod run.
pub fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, MIRROR).is_some()
}

/// The UID by which the kubelet knows the pod.
pub fn kubelet_uid(pod: &Pod) -> &str {
    if is_mirror(pod) { annotation(pod, HASH).unwrap_or_else(|| uid(pod)) } else { uid(pod) }
}

/// `metadata.deletionTimestamp` is set.
pub fn is_deleting(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Succeeded or Failed.
pub fn is_ended(pod: &Pod) -> bool {
    matches!(pod.status.as_ref().and_then(|s| s.phase.as_deref()), Some("Succeeded" | "Failed"))
}

/// A time from an annotation, else from a label, of this key.
pub fn time(pod: &Pod, key: &str) -> Option<Duration> {
    annotation(pod, key)
        .or_else(|| pod.metadata.labels.as_ref()?.get(key).map(String::as_str))
        .and_then(parse_duration)
}

/// Whom a line of the record is about.
pub fn about(node: &str, pod: &Pod) -> About {
    About {
        node: node.to_owned(),
        uid: uid(pod).to_owned(),
        pod: format!("{}/{}", namespace(pod), name(pod)),
        eni: None,
        vlan: None,
    }
}
