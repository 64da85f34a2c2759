//! What kubelet and CNI write to the API server.
//!
//! Every write is bound to the object's UID, and is repeated until it is done or the object is over: a kubelet never
//! gives up either.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use super::cni::POD_ENI;
use super::pod;

/// The feature that the CNI writes (`contract.md` §23.1).
pub const FEATURE: &str = "SecurityGroupsForPods";

/// How a write ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// It is in the API server.
    Done,
    /// The object, with that UID, is no more.
    Over,
}

/// The API resource of CNINodes.
pub fn cninode() -> ApiResource {
    ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("vpcresources.k8s.aws", "v1alpha1", "CNINode"),
        "cninodes",
    )
}

/// Whether a CNINode carries the feature.
pub fn has_feature(cninode: &DynamicObject) -> bool {
    features(cninode).iter().any(|f| f.get("name").and_then(Value::as_str) == Some(FEATURE))
}

fn features(cninode: &DynamicObject) -> Vec<Value> {
    cninode.data.pointer("/spec/features").and_then(Value::as_array).cloned().unwrap_or_default()
}

/// The writer.
#[derive(Clone)]
pub struct Writer {
    client: kube::Client,
}

impl Writer {
    /// A writer through `client`.
    pub fn new(client: kube::Client) -> Self {
        Self { client }
    }

    fn pods(&self, of: &Pod) -> Api<Pod> {
        Api::namespaced(self.client.clone(), pod::namespace(of))
    }

    /// Phase Running, ready, with an address.
    pub async fn running(&self, of: &Pod, ip: &str, host_ip: Option<&str>) -> Written {
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let containers = container_statuses(of, &json!({"running": {"startedAt": now}}), true);
        let mut status = json!({
            "phase": "Running",
            "startTime": now,
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "conditions": conditions(&now, true, None),
            "containerStatuses": containers,
        });
        if let (Some(host), Some(fields)) = (host_ip, status.as_object_mut()) {
            fields.insert("hostIP".to_owned(), json!(host));
            fields.insert("hostIPs".to_owned(), json!([{"ip": host}]));
        }
        self.pod_status(of, status).await
    }

    /// A terminal phase.
    pub async fn ended(&self, of: &Pod, phase: &str) -> Written {
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let code = i32::from(phase == "Failed");
        let terminated = json!({"terminated": {"exitCode": code, "finishedAt": now,
            "reason": if code == 0 { "Completed" } else { "Error" }}});
        let status = json!({
            "phase": phase,
            "conditions": conditions(&now, false, Some("PodCompleted")),
            "containerStatuses": container_statuses(of, &terminated, false),
        });
        self.pod_status(of, status).await
    }

    async fn pod_status(&self, of: &Pod, status: Value) -> Written {
        let patch = Patch::Strategic(json!({"metadata": {"uid": pod::uid(of)}, "status": status}));
        self.insist("write a pod's status", || async {
            let pods = self.pods(of);
            pods.patch_status(pod::name(of), &PatchParams::default(), &patch).await.map(drop)
        })
        .await
    }

    /// Ends the API object, with grace 0 and the UID as a precondition.
    pub async fn delete(&self, of: &Pod) -> Written {
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions {
                uid: Some(pod::uid(of).to_owned()),
                ..Preconditions::default()
            }),
            ..DeleteParams::default()
        };
        self.insist("delete a pod object", || async {
            self.pods(of).delete(pod::name(of), &params).await.map(drop)
        })
        .await
    }

    /// Makes a new mirror for a static pod that lost its own.
    pub async fn recreate_mirror(&self, of: &Pod) -> Written {
        let mut mirror = Pod { spec: of.spec.clone(), ..Pod::default() };
        mirror.metadata.name.clone_from(&of.metadata.name);
        mirror.metadata.namespace.clone_from(&of.metadata.namespace);
        mirror.metadata.labels.clone_from(&of.metadata.labels);
        mirror.metadata.annotations.clone_from(&of.metadata.annotations);
        if let Some(annotations) = mirror.metadata.annotations.as_mut() {
            // The mirror is made from the manifest, which never had this one.
            annotations.remove(POD_ENI);
        }
        self.insist("make a mirror pod", || async {
            self.pods(of).create(&PostParams::default(), &mirror).await.map(drop)
        })
        .await
    }

    /// The kubelet's copy of the resource: allocatable as capacity says. Nothing to do is success.
    pub async fn copy_capacity(&self, node: &Node) -> Result<(), kube::Error> {
        let status = node.status.as_ref();
        let quantity = |map: Option<&std::collections::BTreeMap<String, _>>| {
            map.and_then(|m| m.get(POD_ENI))
                .map(|q: &k8s_openapi::apimachinery::pkg::api::resource::Quantity| q.0.clone())
        };
        let capacity = quantity(status.and_then(|s| s.capacity.as_ref()));
        if capacity.is_none() || capacity == quantity(status.and_then(|s| s.allocatable.as_ref())) {
            return Ok(());
        }
        let patch = json!({"status": {"allocatable": {POD_ENI: capacity}}});
        self.node_status(node, patch).await
    }

    /// The boot id in the Node's status.
    pub async fn boot_id(&self, node: &Node, boot_id: &str) -> Result<(), kube::Error> {
        self.node_status(node, json!({"status": {"nodeInfo": {"bootID": boot_id}}})).await
    }

    async fn node_status(&self, node: &Node, patch: Value) -> Result<(), kube::Error> {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.patch_status(name, &PatchParams::default(), &Patch::Strategic(patch)).await.map(drop)
    }

    /// The CNI's feature: a merge patch under optimistic lock; an entry of the same name is replaced.
    pub async fn feature(&self, cninode: &DynamicObject) -> Result<(), kube::Error> {
        let mut features = features(cninode);
        features.retain(|f| f.get("name").and_then(Value::as_str) != Some(FEATURE));
        features.push(json!({"name": FEATURE, "value": ""}));
        let patch = json!({
            "metadata": {"resourceVersion": cninode.metadata.resource_version},
            "spec": {"features": features},
        });
        let all: Api<DynamicObject> = Api::all_with(self.client.clone(), &self::cninode());
        let name = cninode.metadata.name.as_deref().unwrap_or_default();
        all.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
    }

    async fn insist<F, R>(&self, what: &str, mut write: F) -> Written
    where
        F: FnMut() -> R,
        R: Future<Output = Result<(), kube::Error>>,
    {
        let mut wait = Duration::from_millis(100);
        loop {
            match write().await {
                Ok(()) => return Written::Done,
                Err(kube::Error::Api(status)) if status.code == 404 => return Written::Over,
                // A precondition (or the UID in the patch) did not hold, or the mirror exists: another object.
                Err(kube::Error::Api(status)) if status.code == 409 => return Written::Over,
                Err(error) => tracing::warn!(%error, "failed to {what}; trying again"),
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_secs(2));
        }
    }
}

fn conditions(now: &str, ready: bool, reason: Option<&str>) -> Value {
    let of = |kind: &str, holds: bool| {
        let status = if holds { "True" } else { "False" };
        let mut condition = json!({"type": kind, "status": status, "lastTransitionTime": now});
        if let (false, Some(reason), Some(fields)) = (holds, reason, condition.as_object_mut()) {
            fields.insert("reason".to_owned(), json!(reason));
        }
        condition
    };
    json!([
        of("PodScheduled", true),
        of("PodReadyToStartContainers", ready),
        of("Initialized", true),
        of("ContainersReady", ready),
        of("Ready", ready),
    ])
}

fn container_statuses(of: &Pod, state: &Value, ready: bool) -> Value {
    let containers = of.spec.as_ref().map(|s| s.containers.as_slice()).unwrap_or_default();
    containers
        .iter()
        .map(|c| {
            json!({
                "name": c.name, "image": c.image.clone().unwrap_or_default(), "imageID": "sim",
                "ready": ready, "started": ready, "restartCount": 0, "state": state,
            })
        })
        .collect()
}
