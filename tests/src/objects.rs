//! Objects that a cloud, a kubelet or a user would make.

use crate::{Error, Result};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ServiceAccount};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

/// The resource that asks for a branch ENI.
pub const RESOURCE: &str = "vpc.amazonaws.com/pod-eni";
/// The annotation that names it.
pub const ANNOTATION: &str = "vpc.amazonaws.com/pod-eni";

/// A Node as a cloud would register it.
#[derive(Debug, Clone)]
pub struct NodeSpec {
    /// Node name.
    pub name: String,
    /// EC2 instance id.
    pub instance: String,
    /// Boot id, as the node's `/proc/sys/kernel/random/boot_id` says.
    pub boot_id: String,
    /// More labels.
    pub labels: Vec<(String, String)>,
}

fn decode<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> Result<T> {
    serde_json::from_value(value)
        .map_err(|error| Error::say(format!("a bad object in the harness: {error}")))
}

/// Creates a Node (OS label, providerID) and writes its status (boot id, capacity, ready).
pub async fn node(admin: &Client, spec: &NodeSpec) -> Result<Node> {
    let nodes: Api<Node> = Api::all(admin.clone());
    let mut labels = serde_json::Map::new();
    labels.insert("kubernetes.io/os".to_owned(), "linux".into());
    labels.insert("kubernetes.io/arch".to_owned(), "amd64".into());
    labels.insert("kubernetes.io/hostname".to_owned(), spec.name.clone().into());
    for (key, value) in &spec.labels {
        labels.insert(key.clone(), value.clone().into());
    }
    let node: Node = decode(json!({
        "metadata": { "name": spec.name, "labels": labels },
        "spec": { "providerID": format!("aws:///us-west-2a/{}", spec.instance) },
    }))?;
    let what = format!("create node {}", spec.name);
    nodes.create(&PostParams::default(), &node).await.map_err(Error::kube(what))?;
    boot(admin, &spec.name, &spec.boot_id).await
}

/// Writes a node's status: this boot id, ordinary capacity, ready.
pub async fn boot(admin: &Client, name: &str, boot_id: &str) -> Result<Node> {
    let nodes: Api<Node> = Api::all(admin.clone());
    let room = json!({ "cpu": "8", "memory": "32Gi", "pods": "250", "ephemeral-storage": "100Gi" });
    let status = json!({ "status": {
        "capacity": room, "allocatable": room,
        "conditions": [{ "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "simulated",
            "lastHeartbeatTime": null, "lastTransitionTime": null }],
        "nodeInfo": { "bootID": boot_id, "machineID": name, "systemUUID": name, "kernelVersion": "6.1",
            "osImage": "simulated", "containerRuntimeVersion": "simulated://1", "kubeletVersion": "v1.36.3",
            "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "amd64" },
    }});
    let params = PatchParams::default();
    let what = format!("write the status of node {name}");
    nodes.patch_status(name, &params, &Patch::Merge(&status)).await.map_err(Error::kube(what))
}

/// Creates a namespace with its default ServiceAccount; both may exist.
pub async fn namespace(admin: &Client, name: &str) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(admin.clone());
    let object: Namespace = decode(json!({ "metadata": { "name": name } }))?;
    unless_present(
        namespaces.create(&PostParams::default(), &object).await,
        &format!("create namespace {name}"),
    )?;
    account(admin, name, "default", &[]).await
}

/// Creates a ServiceAccount; it may exist.
pub async fn account(
    admin: &Client,
    namespace: &str,
    name: &str,
    labels: &[(&str, &str)],
) -> Result<()> {
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), namespace);
    let labels: serde_json::Map<_, _> =
        labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
    let object: ServiceAccount = decode(json!({ "metadata": { "name": name, "labels": labels } }))?;
    let created = accounts.create(&PostParams::default(), &object).await;
    unless_present(created, &format!("create account {namespace}/{name}"))
}

fn unless_present<T>(created: kube::Result<T>, what: &str) -> Result<()> {
    match created {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(error) => Err(Error::kube(what)(error)),
    }
}

/// A pod to create.
#[derive(Debug, Clone)]
pub struct PodSpec {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Node it is bound to from the start; `None` leaves it unbound.
    pub node: Option<String>,
    /// Branches its first container asks for; 0 leaves the resource out.
    pub branches: u32,
    /// Labels.
    pub labels: Vec<(String, String)>,
    /// Annotations.
    pub annotations: Vec<(String, String)>,
    /// ServiceAccount.
    pub account: String,
}

impl PodSpec {
    /// A pod in `default` on `node` that asks for one branch.
    pub fn branch(name: &str, node: &str) -> Self {
        Self {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            node: Some(node.to_owned()),
            branches: 1,
            labels: vec![("app".to_owned(), name.to_owned())],
            annotations: Vec::new(),
            account: "default".to_owned(),
        }
    }

    /// The same without any branch.
    #[must_use]
    pub fn plain(mut self) -> Self {
        self.branches = 0;
        self
    }

    /// With one more label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.retain(|(had, _)| had != key);
        self.labels.push((key.to_owned(), value.to_owned()));
        self
    }

    /// With one more annotation.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.push((key.to_owned(), value.to_owned()));
        self
    }

    /// The object.
    pub fn object(&self) -> Result<Pod> {
        let map = |pairs: &[(String, String)]| -> serde_json::Map<String, serde_json::Value> {
            pairs.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect()
        };
        let resources = if self.branches > 0 {
            let amount = json!({ RESOURCE: self.branches.to_string() });
            json!({ "limits": amount, "requests": amount })
        } else {
            json!({})
        };
        // A null field is a missing one.
        let spec = json!({
            "containers": [{ "name": "main", "image": "registry.k8s.io/pause:3.10", "resources": resources }],
            "nodeName": self.node,
            "serviceAccountName": self.account,
            "terminationGracePeriodSeconds": 2,
            "automountServiceAccountToken": false,
        });
        decode(json!({
            "metadata": {
                "namespace": self.namespace, "name": self.name,
                "labels": map(&self.labels), "annotations": map(&self.annotations),
            },
            "spec": spec,
        }))
    }
}

/// Creates a pod.
pub async fn pod(admin: &Client, spec: &PodSpec) -> Result<Pod> {
    let pods: Api<Pod> = Api::namespaced(admin.clone(), &spec.namespace);
    let what = format!("create pod {}/{}", spec.namespace, spec.name);
    pods.create(&PostParams::default(), &spec.object()?).await.map_err(Error::kube(what))
}

/// Deletes a pod; `force` with grace period 0, which removes the object at once.
pub async fn delete_pod(admin: &Client, namespace: &str, name: &str, force: bool) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(admin.clone(), namespace);
    let params =
        if force { DeleteParams::default().grace_period(0) } else { DeleteParams::default() };
    let what = format!("delete pod {namespace}/{name}");
    match pods.delete(name, &params).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(Error::kube(what)(error)),
    }
}

/// A SecurityGroupPolicy that selects pods by labels.
pub async fn policy(
    admin: &Client,
    namespace: &str,
    name: &str,
    labels: &[(&str, &str)],
    groups: &[&str],
) -> Result<DynamicObject> {
    let labels: serde_json::Map<_, _> =
        labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
    let object = decode(json!({
        "apiVersion": "vpcresources.k8s.aws/v1beta1", "kind": "SecurityGroupPolicy",
        "metadata": { "namespace": namespace, "name": name },
        "spec": { "podSelector": { "matchLabels": labels }, "securityGroups": { "groupIds": groups } },
    }))?;
    crate::deploy::apply_one(admin, object).await
}
