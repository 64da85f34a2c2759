//! The objects the coordinator writes, and how: narrow patches that leave everything else alone (S50).

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};
use trunkline_core::annotation::{AnnotatedBranch, POD_ENI};
use trunkline_core::id::{
    InstanceId, Namespace, NodeName, NodeUid, PodName, PodRef, PodUid, ResourceVersion,
};
use trunkline_core::node::event::Annotated;

use super::{Api, ApiError};
use crate::annotation;

/// Finalizer of CNINodes.
pub const FINALIZER: &str = "networking.k8s.aws/resource-cleanup";
/// CNINode tag key with the cluster's name.
pub const CLUSTER_TAG: &str = "cluster.k8s.amazonaws.com/name";
/// CNINode tag key with the instance id.
pub const INSTANCE_TAG: &str = "node.k8s.amazonaws.com/instance_id";
/// OS label of nodes and CNINodes.
pub const OS_LABEL: &str = "kubernetes.io/os";
/// Collection of CNINodes.
pub const CNINODES: &str = "/apis/vpcresources.k8s.aws/v1alpha1/cninodes";

/// Writes the pod's annotation, bound to the UID and to the resourceVersion of the GET it was decided on (`ANN-4`), so that a
/// delayed patch can land neither on another pod of that name nor after a change.
pub async fn annotate(
    api: &Api,
    pod: &PodRef,
    rv: &ResourceVersion,
    branches: &[AnnotatedBranch],
) -> Annotated {
    let path = format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name);
    let text = annotation::write(branches);
    let mut annotations = serde_json::Map::new();
    annotations.insert(POD_ENI.to_owned(), Value::String(text.clone()));
    let body = json!({"metadata": {
        "uid": pod.uid.as_str(),
        "resourceVersion": rv.as_str(),
        "annotations": annotations,
    }});
    match api.merge_patch_object(&path, &body).await {
        Ok(answer) if carries(&answer, pod, &text) => Annotated::Done,
        // Somebody else said 200 (a proxy): the next live GET tells.
        Ok(_) => Annotated::Unknown("the answer to the patch is not the annotated pod".into()),
        // Not found: the next live GET proves it; a conflict and an absent pod are the same to whoever decides.
        Err(ApiError::Conflict(_) | ApiError::NotFound(_)) => Annotated::Conflict,
        Err(e @ (ApiError::Refused { .. } | ApiError::Fenced)) => Annotated::Refused(e.to_string()),
        Err(e @ (ApiError::NoSuchPath(_) | ApiError::Unknown(_))) => {
            Annotated::Unknown(e.to_string())
        }
    }
}

/// Whether this is the pod with this annotation.
fn carries(answer: &Value, pod: &PodRef, text: &str) -> bool {
    let uid = answer.pointer("/metadata/uid").and_then(Value::as_str);
    let annotation = answer.pointer("/metadata/annotations").and_then(|a| a.get(POD_ENI));
    uid == Some(pod.uid.as_str()) && annotation.and_then(Value::as_str) == Some(text)
}

/// Advertises the branch limit in the node's capacity (`RES-1`).
pub async fn advertise(api: &Api, node: &NodeName, limit: u32) -> Result<(), ApiError> {
    let mut capacity = serde_json::Map::new();
    capacity.insert(POD_ENI.to_owned(), Value::String(limit.to_string()));
    api.merge_patch(
        &format!("/api/v1/nodes/{node}/status"),
        &json!({"status": {"capacity": capacity}}),
    )
    .await
}

/// What a CNINode of ours carries (`CNN-1`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CniNodeParts {
    /// Name of the node and of the CNINode.
    pub name: NodeName,
    /// The Node's UID, for the owner reference.
    pub owner: NodeUid,
    /// Value of the OS label, where the node has one.
    pub os: Option<String>,
    /// Cluster name.
    pub cluster: String,
    /// Instance id; `None` is written as an empty tag.
    pub instance: Option<InstanceId>,
}

/// Creates a CNINode; one that exists already is success (`CNN-1`).
pub async fn create_cninode(api: &Api, parts: &CniNodeParts) -> Result<(), ApiError> {
    let labels: BTreeMap<&str, &str> =
        parts.os.as_deref().map(|os| (OS_LABEL, os)).into_iter().collect();
    let object = json!({
        "apiVersion": "vpcresources.k8s.aws/v1alpha1",
        "kind": "CNINode",
        "metadata": {
            "name": parts.name.as_str(),
            "labels": labels,
            "finalizers": [FINALIZER],
            "ownerReferences": owners(&parts.name, &parts.owner),
        },
        "spec": {"tags": {
            CLUSTER_TAG: parts.cluster,
            INSTANCE_TAG: parts.instance.as_ref().map_or("", InstanceId::as_str),
        }},
    });
    create(api, &object).await
}

/// Re-creates a CNINode that was deleted while its node lives: name, labels and spec stay (`CNN-6`). The owner is the Node
/// as it is now: after the Node object was re-created (S56) the old reference would have it collected again.
pub async fn recreate_cninode(
    api: &Api,
    name: &NodeName,
    owner: &NodeUid,
    labels: &Value,
    spec: &Value,
) -> Result<(), ApiError> {
    let object = json!({
        "apiVersion": "vpcresources.k8s.aws/v1alpha1",
        "kind": "CNINode",
        "metadata": {
            "name": name.as_str(),
            "labels": labels,
            "finalizers": [FINALIZER],
            "ownerReferences": owners(name, owner),
        },
        "spec": spec,
    });
    create(api, &object).await
}

fn owners(name: &NodeName, uid: &NodeUid) -> Value {
    json!([{
        "apiVersion": "v1",
        "kind": "Node",
        "name": name.as_str(),
        "uid": uid.as_str(),
        "controller": true,
    }])
}

/// One that exists already is success (`CNN-1`).
async fn create(api: &Api, cninode: &Value) -> Result<(), ApiError> {
    match api.post::<Value>(CNINODES, cninode).await {
        Ok(_) | Err(ApiError::Conflict(_)) => Ok(()),
        Err(e) => Err(e),
    }
}

/// Patches a CNINode with optimistic lock (`CNN-3`).
pub async fn patch_cninode(api: &Api, name: &NodeName, patch: &Value) -> Result<(), ApiError> {
    api.merge_patch(&format!("{CNINODES}/{name}"), patch).await
}

/// A pod's incarnation, as far as the choice between two agents needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incarnation {
    /// UID.
    pub uid: PodUid,
    /// Creation time, seconds since the Unix epoch.
    pub created: i64,
}

#[derive(Deserialize)]
struct PodObject {
    kind: Option<String>,
    metadata: PodMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodMeta {
    uid: String,
    name: String,
    creation_timestamp: String,
}

/// A live GET of an agent's pod. `Ok(None)`: proven absent.
pub async fn incarnation(
    api: &Api,
    namespace: &Namespace,
    name: &PodName,
) -> Result<Option<Incarnation>, String> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    let pod: PodObject = match api.get(&path).await {
        Ok(pod) => pod,
        Err(ApiError::NotFound(_)) => return Ok(None),
        Err(e) => return Err(e.to_string()),
    };
    if pod.kind.as_deref() != Some("Pod") || pod.metadata.name != name.as_str() {
        return Err(format!("the answer for pod {namespace}/{name} is about something else"));
    }
    let created: jiff::Timestamp =
        pod.metadata.creation_timestamp.parse().map_err(|e| format!("creationTimestamp: {e}"))?;
    let uid = pod.metadata.uid.parse().map_err(|e: trunkline_core::id::InvalidId| e.to_string())?;
    Ok(Some(Incarnation { uid, created: created.as_second() }))
}

#[cfg(test)]
mod tests;
