//! What the invariants are judged by, collected once.

use crate::history::History;
use k8s_openapi::api::core::v1::{Event, Node, Pod, ServiceAccount};
use kube::api::DynamicObject;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use trunkline_sim::ec2::model::{Effect, LogEntry, State};
use trunkline_sim::node::model::LogEntry as NodeEntry;

/// The tag that binds an ENI to a pod.
pub const POD_UID: &str = "trunkline.dev/pod-uid";
/// The tag that counts a pod's ENIs.
pub const INDEX: &str = "trunkline.dev/index";
/// The tag of a static pod's identity.
pub const CONFIG_HASH: &str = "trunkline.dev/config-hash";
/// The peer's owner tag and our value.
pub const OWNER: (&str, &str) = ("eks:eni:owner", "eks-vpc-resource-controller");
/// The instance that an ENI was made for.
pub const INSTANCE: &str = "node.k8s.amazonaws.com/instance_id";

/// What was in force during the run.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Cluster name.
    pub cluster: String,
    /// Access key ids of the coordinators begin with this.
    pub callers: &'static str,
    /// Shortest cooldown between Disassociate and Delete.
    pub cooldown: Duration,
    /// Shortest rest of a VLAN between two pods.
    pub vlan_rest: Duration,
    /// How late the pod history may be.
    pub slack: Duration,
    /// EC2's buckets were on and had their documented sizes.
    pub budget: bool,
    /// Pods (by UID) whose final state a test judges itself, with the reason in the test.
    pub excused: BTreeSet<String>,
    /// ENIs without owner that a test expects to be kept.
    pub kept: BTreeSet<String>,
}

/// Everything that was seen.
pub struct Evidence<'a> {
    /// What was in force.
    pub rules: &'a Rules,
    /// EC2's call log from its beginning.
    pub calls: Vec<LogEntry>,
    /// EC2's state.
    pub ec2: State,
    /// Recorded pods.
    pub history: &'a History,
    /// The node simulator's record.
    pub nodes_log: Vec<NodeEntry>,
    /// Pods as they are.
    pub pods: Vec<Pod>,
    /// Nodes as they are.
    pub nodes: Vec<Node>,
    /// Events.
    pub events: Vec<Event>,
    /// SecurityGroupPolicies.
    pub policies: Vec<DynamicObject>,
    /// ServiceAccounts.
    pub accounts: Vec<ServiceAccount>,
}

impl Evidence<'_> {
    /// Whether a call came from a coordinator.
    pub fn ours(&self, call: &LogEntry) -> bool {
        call.caller.starts_with(self.rules.callers)
    }

    /// Whether tags say that an ENI belongs to this cluster's controller.
    pub fn tagged_ours(&self, tags: &BTreeMap<String, String>) -> bool {
        let cluster = format!("kubernetes.io/cluster/{}", self.rules.cluster);
        tags.get(&cluster).is_some_and(|value| value == "owned")
            && tags.get(OWNER.0).is_some_and(|value| value == OWNER.1)
    }

    /// The instance of a node, from its Node object.
    pub fn instance_of(&self, node: &str) -> Option<String> {
        let node = self.nodes.iter().find(|n| n.metadata.name.as_deref() == Some(node))?;
        let provider = node.spec.as_ref()?.provider_id.as_ref()?;
        Some(provider.rsplit('/').next()?.to_owned())
    }

    /// Whether an instance was terminated (or forgotten) before `at_ms`.
    pub fn instance_ended(&self, instance: &str, at_ms: i64) -> bool {
        self.calls.iter().filter(|call| call.wall_ms <= at_ms).flat_map(|call| &call.effects).any(
            |effect| {
                matches!(effect, Effect::InstanceState { instance: id, state }
                if id == instance && (state == "terminated" || state == "forgotten"))
            },
        )
    }

    /// The rules' slack in milliseconds.
    pub fn slack_ms(&self) -> i64 {
        i64::try_from(self.rules.slack.as_millis()).unwrap_or(i64::MAX)
    }
}

/// Replays the tags of every ENI: `(tags before the call at hand)`.
#[derive(Debug, Default)]
pub struct Tags(BTreeMap<String, BTreeMap<String, String>>);

impl Tags {
    /// The tags of an ENI as of the last effect that was applied.
    pub fn of(&self, eni: &str) -> BTreeMap<String, String> {
        self.0.get(eni).cloned().unwrap_or_default()
    }

    /// One tag of an ENI.
    pub fn get(&self, eni: &str, key: &str) -> Option<&String> {
        self.0.get(eni)?.get(key)
    }

    /// Whether the ENI was made within the log.
    pub fn known(&self, eni: &str) -> bool {
        self.0.contains_key(eni)
    }

    /// Applies an effect.
    pub fn apply(&mut self, effect: &Effect) {
        match effect {
            Effect::EniCreated { eni, tags, .. } => {
                self.0.insert(eni.clone(), tags.clone());
            }
            Effect::TagsSet { resource, tags } => {
                self.0.entry(resource.clone()).or_default().extend(tags.clone());
            }
            Effect::TagsRemoved { resource, keys } => {
                let had = self.0.entry(resource.clone()).or_default();
                had.retain(|key, _| !keys.contains(key));
            }
            Effect::EniDeleted { eni, .. } => {
                self.0.remove(eni);
            }
            _ => {}
        }
    }
}
