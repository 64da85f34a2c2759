//! What a Node and its CNINode ask for: pure decisions, executed by the keeper.
//!
//! A CNINode that could not be read is not "absent" and its node is not "unmanaged" (`D11`): both answers come only from a
//! complete list. A Node that is gone is believed for its CNINode only after a live GET says so too.

use serde_json::{Value, json};
use trunkline_core::id::{InstanceId, NodeUid};

use super::objects::{CniNodeObject, NodeObject};
use crate::api::objects::{CLUSTER_TAG, CniNodeParts, FINALIZER, INSTANCE_TAG, OS_LABEL};

/// Feature by which the CNI asks for a trunk.
pub const FEATURE_SGP: &str = "SecurityGroupsForPods";
/// Feature by which the CNI announces custom networking.
pub const FEATURE_CUSTOM: &str = "CustomNetworking";
/// Label of old CNI versions that asks for a trunk, whatever its value.
pub const LABEL_TRUNK: &str = "vpc.amazonaws.com/has-trunk-attached";
/// Label that names an ENIConfig.
pub const LABEL_ENICONFIG: &str = "vpc.amazonaws.com/eniConfig";
/// Label of compute that others manage.
pub const LABEL_COMPUTE: &str = "eks.amazonaws.com/compute-type";

/// Whether pods of a node get branches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Managed {
    /// They do, on this instance.
    Yes(InstanceId),
    /// They do not.
    No(NotManaged),
}

/// Why not. Closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotManaged {
    /// `NODE-2`, `CRD-8`.
    #[error("the node is managed by EKS Auto Mode; it is left alone")]
    Foreign,
    /// `NODE-3`.
    #[error("the node has no kubernetes.io/os label yet")]
    NoOs,
    /// Windows is a later step.
    #[error("nodes with operating system '{0}' get no branches")]
    OtherOs(String),
    /// `NODE-3`, `CNN-2`.
    #[error("the node's spec.providerID does not end in an EC2 instance id: '{0}'")]
    NoInstance(String),
    /// A trunk in the node's own subnet would be in the wrong one for good.
    #[error(
        "the node uses custom networking (ENIConfig), which is not supported yet; it is left alone"
    )]
    CustomNetworking,
    /// `NODE-4`.
    #[error(
        "neither the VPC CNI (feature SecurityGroupsForPods of the CNINode) nor the label vpc.amazonaws.com/has-trunk-attached asks for a trunk"
    )]
    NotAsked,
    /// `D11`.
    #[error("the node's CNINode is not known yet")]
    CniNodeUnknown,
}

impl NotManaged {
    /// Short name for status and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Foreign => "foreign",
            Self::NoOs => "no-os-label",
            Self::OtherOs(_) => "other-os",
            Self::NoInstance(_) => "no-instance-id",
            Self::CustomNetworking => "custom-networking",
            Self::NotAsked => "not-asked",
            Self::CniNodeUnknown => "cninode-unknown",
        }
    }

    /// Whether a user has to be told by an event: somebody asked for a trunk and does not get one.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::NoInstance(_) | Self::CustomNetworking)
    }
}

/// A CNINode as the complete list shows it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Seen<'a> {
    /// No complete list yet.
    Unknown,
    /// The complete list does not contain it.
    Absent,
    /// It is there.
    There(&'a CniNodeObject),
}

/// `NODE-2`…`NODE-4`. Asked for first, so that nodes nobody wants a trunk on are not called broken.
pub fn managed(node: &NodeObject, cninode: Seen<'_>) -> Managed {
    let refuse = |why| Managed::No(why);
    if is_foreign(node, cninode) {
        return refuse(NotManaged::Foreign);
    }
    match node.os() {
        None | Some("") => return refuse(NotManaged::NoOs),
        Some("linux") => {}
        Some(other) => return refuse(NotManaged::OtherOs(other.to_owned())),
    }
    let (asked, custom) = match cninode {
        Seen::There(object) => {
            (object.feature(FEATURE_SGP).is_some(), object.feature(FEATURE_CUSTOM).is_some())
        }
        Seen::Unknown | Seen::Absent => (false, false),
    };
    if !asked && node.metadata.label(LABEL_TRUNK).is_none() {
        return refuse(match cninode {
            Seen::Unknown => NotManaged::CniNodeUnknown,
            Seen::Absent | Seen::There(_) => NotManaged::NotAsked,
        });
    }
    if custom || node.metadata.label(LABEL_ENICONFIG).is_some() {
        return refuse(NotManaged::CustomNetworking);
    }
    // The CNI writes CustomNetworking before SecurityGroupsForPods (ENC-5), but a label alone says nothing of it.
    if matches!(cninode, Seen::Unknown) {
        return refuse(NotManaged::CniNodeUnknown);
    }
    node.instance().map_or_else(
        |_| refuse(NotManaged::NoInstance(node.spec.provider_id.clone().unwrap_or_default())),
        Managed::Yes,
    )
}

fn is_foreign(node: &NodeObject, cninode: Seen<'_>) -> bool {
    node.metadata.label(LABEL_COMPUTE) == Some("auto")
        || matches!(cninode, Seen::There(object) if object.managed_by() == "eks-auto-mode")
}

/// What a CNINode needs.
#[derive(Debug, Clone, PartialEq)]
pub enum CniNodeStep {
    /// Nothing.
    Nothing,
    /// To be created (`CNN-1`).
    Create(CniNodeParts),
    /// To be mended by this merge patch (`CNN-3`).
    Patch(Value),
    /// It is being deleted although its node (of this UID) lives: let it go and make it anew (`CNN-6`).
    Recreate(NodeUid),
    /// It is being deleted and its node is gone: the finalizer goes once the node's ENIs are gone (`D9`).
    Finalize,
}

/// Decides what a CNINode needs. `node`: `None` only if the complete list does not contain it.
pub fn cninode_step(cluster: &str, node: Option<&NodeObject>, cninode: Seen<'_>) -> CniNodeStep {
    let object = match cninode {
        Seen::Unknown => return CniNodeStep::Nothing,
        Seen::Absent => {
            return node
                .and_then(|n| create(cluster, n))
                .map_or(CniNodeStep::Nothing, CniNodeStep::Create);
        }
        Seen::There(object) => object,
    };
    if object.managed_by() == "eks-auto-mode" {
        return CniNodeStep::Nothing;
    }
    match (node, object.is_going()) {
        (Some(node), _) if is_foreign(node, cninode) => CniNodeStep::Nothing,
        // No writes without a Node (D10); the finalizer waits for the deletion.
        (None, true) if object.has_finalizer() => CniNodeStep::Finalize,
        (None, _) => CniNodeStep::Nothing,
        (Some(node), true) => {
            NodeUid::new(&node.metadata.uid).map_or(CniNodeStep::Nothing, CniNodeStep::Recreate)
        }
        (Some(node), false) => {
            mend(cluster, node, object).map_or(CniNodeStep::Nothing, CniNodeStep::Patch)
        }
    }
}

fn create(cluster: &str, node: &NodeObject) -> Option<CniNodeParts> {
    if is_foreign(node, Seen::Absent) || node.metadata.deletion_timestamp.is_some() {
        return None;
    }
    Some(CniNodeParts {
        name: node.metadata.name.parse().ok()?,
        owner: NodeUid::new(&node.metadata.uid).ok()?,
        os: node.os().map(ToOwned::to_owned),
        cluster: cluster.to_owned(),
        instance: node.instance().ok(),
    })
}

/// Tags, OS label, finalizer, with optimistic lock; `features` and everything else untouched (`CNN-3`).
fn mend(cluster: &str, node: &NodeObject, object: &CniNodeObject) -> Option<Value> {
    let mut metadata = serde_json::Map::new();
    let mut tags = serde_json::Map::new();
    if object.cluster() != Some(cluster) {
        tags.insert(CLUSTER_TAG.into(), json!(cluster));
    }
    // An unusable id never overwrites a good one: the tag is the record of which ENIs have to go (T8).
    match node.instance() {
        Ok(id) if object.tag(INSTANCE_TAG) != Some(id.as_str()) => {
            tags.insert(INSTANCE_TAG.into(), json!(id.as_str()));
        }
        Err(_) if object.tag(INSTANCE_TAG).is_none() => {
            tags.insert(INSTANCE_TAG.into(), json!(""));
        }
        Ok(_) | Err(_) => {}
    }
    if let Some(os) = node.os().filter(|os| object.metadata.label(OS_LABEL) != Some(os)) {
        metadata.insert("labels".into(), json!({OS_LABEL: os}));
    }
    if !object.has_finalizer() {
        let mut finalizers = object.other_finalizers();
        finalizers.push(FINALIZER.to_owned());
        metadata.insert("finalizers".into(), json!(finalizers));
    }
    if metadata.is_empty() && tags.is_empty() {
        return None;
    }
    metadata.insert("resourceVersion".into(), json!(object.metadata.resource_version));
    let mut patch = json!({"metadata": metadata});
    if !tags.is_empty()
        && let Some(patch) = patch.as_object_mut()
    {
        patch.insert("spec".into(), json!({"tags": tags}));
    }
    Some(patch)
}

/// The patch that takes our finalizer away from exactly this object.
pub fn without_finalizer(object: &CniNodeObject) -> Value {
    json!({"metadata": {
        "uid": object.metadata.uid,
        "resourceVersion": object.metadata.resource_version,
        "finalizers": object.other_finalizers(),
    }})
}

#[cfg(test)]
mod tests;
