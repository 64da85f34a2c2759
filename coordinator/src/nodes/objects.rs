//! Node and CNINode as far as the coordinator reads them. Minimal and lenient: an odd value in a field is a value to judge,
//! not a reason to lose the object.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use trunkline_core::annotation::POD_ENI;
use trunkline_core::id::{BootId, InstanceId, InvalidId};

use crate::api::objects::{CLUSTER_TAG, FINALIZER, INSTANCE_TAG, OS_LABEL};

/// `metadata` of either.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// resourceVersion.
    pub resource_version: String,
    /// Labels.
    pub labels: Option<BTreeMap<String, String>>,
    /// Finalizers.
    pub finalizers: Option<Vec<String>>,
    /// Set once the object is being deleted.
    pub deletion_timestamp: Option<String>,
}

impl Meta {
    /// A label's value.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.as_ref()?.get(key).map(String::as_str)
    }
}

/// A Node.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct NodeObject {
    /// Metadata.
    pub metadata: Meta,
    /// Spec.
    pub spec: NodeSpec,
    /// Status.
    pub status: NodeStatus,
}

/// Spec of a Node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// Provider id, with the instance id after its last `/`.
    #[serde(rename = "providerID")]
    pub provider_id: Option<String>,
}

/// Status of a Node.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    /// Capacity; `None` while the kubelet has not written any.
    pub capacity: Option<BTreeMap<String, Value>>,
    /// Node info.
    pub node_info: NodeInfo,
}

/// Node info.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct NodeInfo {
    /// Boot id.
    #[serde(rename = "bootID")]
    pub boot_id: Option<String>,
}

impl NodeObject {
    /// The instance id (`CNN-2`).
    pub fn instance(&self) -> Result<InstanceId, InvalidId> {
        InstanceId::from_provider_id(self.spec.provider_id.as_deref().unwrap_or_default())
    }

    /// The operating system.
    pub fn os(&self) -> Option<&str> {
        self.metadata.label(OS_LABEL).or_else(|| self.metadata.label("beta.kubernetes.io/os"))
    }

    /// The boot id of the current boot, as the kubelet reports it.
    pub fn boot(&self) -> Option<BootId> {
        self.status.node_info.boot_id.as_deref().and_then(|b| b.parse().ok())
    }

    /// What the node advertises for branches; `None` while it has no capacity at all.
    pub fn advertised(&self) -> Option<Option<&str>> {
        let capacity = self.status.capacity.as_ref()?;
        Some(capacity.get(POD_ENI).and_then(Value::as_str))
    }
}

/// A CNINode.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct CniNodeObject {
    /// Metadata.
    pub metadata: Meta,
    /// Spec, raw: entries that we do not know are carried over when it is re-created.
    pub spec: Value,
}

impl CniNodeObject {
    /// The value of a feature; `Some("")` for a feature without value (`CRD-5`).
    pub fn feature(&self, name: &str) -> Option<&str> {
        self.spec
            .get("features")?
            .as_array()?
            .iter()
            .find(|f| f.get("name").and_then(Value::as_str) == Some(name))
            .map(|f| f.get("value").and_then(Value::as_str).unwrap_or_default())
    }

    /// `spec.managedBy` (`CRD-8`).
    pub fn managed_by(&self) -> &str {
        self.spec.get("managedBy").and_then(Value::as_str).unwrap_or_default()
    }

    /// A tag of `spec.tags`.
    pub fn tag(&self, key: &str) -> Option<&str> {
        self.spec.get("tags")?.get(key)?.as_str()
    }

    /// The instance whose ENIs have to be gone before the finalizer may go.
    pub fn instance(&self) -> Option<InstanceId> {
        self.tag(INSTANCE_TAG)?.parse().ok()
    }

    /// Whether our finalizer is set.
    pub fn has_finalizer(&self) -> bool {
        self.metadata.finalizers.as_ref().is_some_and(|f| f.iter().any(|f| f == FINALIZER))
    }

    /// Finalizers without ours.
    pub fn other_finalizers(&self) -> Vec<String> {
        self.metadata.finalizers.iter().flatten().filter(|f| *f != FINALIZER).cloned().collect()
    }

    /// The cluster tag.
    pub fn cluster(&self) -> Option<&str> {
        self.tag(CLUSTER_TAG)
    }

    /// Whether it is being deleted.
    pub fn is_going(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
}
