//! Applies `deploy/` as it is, and makes pods from its templates, since no controller does so here.

use crate::{Error, Result, poll};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, ObjectMeta, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt as _};
use serde::Deserialize as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Namespace of everything that `deploy/manifests` makes.
pub const NAMESPACE: &str = "trunkline-system";
/// ServiceAccount of the agents.
pub const AGENT: &str = "trunkline-agent";
/// ServiceAccount of the coordinators.
pub const COORDINATOR: &str = "trunkline-coordinator";

/// The documents of `deploy/crds` and `deploy/manifests`, in the order of their files.
pub fn documents() -> Result<Vec<(PathBuf, serde_json::Value)>> {
    let mut documents = Vec::new();
    for folder in ["deploy/crds", "deploy/manifests"] {
        let folder = crate::workspace().join(folder);
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&folder).map_err(Error::file(&folder))? {
            let path = entry.map_err(Error::file(&folder))?.path();
            if path.extension().is_some_and(|end| end == "yaml") {
                files.push(path);
            }
        }
        files.sort();
        for file in files {
            for document in parse(&file)? {
                documents.push((file.clone(), document));
            }
        }
    }
    Ok(documents)
}

fn parse(file: &Path) -> Result<Vec<serde_json::Value>> {
    let text = std::fs::read_to_string(file).map_err(Error::file(file))?;
    serde_yaml::Deserializer::from_str(&text)
        .map(|document| {
            serde_json::Value::deserialize(document)
                .map_err(|error| Error::say(format!("{}: {error}", file.display())))
        })
        .collect()
}

/// Applies all of it by server-side apply and waits until the CRDs are served.
pub async fn apply(admin: &Client) -> Result<Vec<DynamicObject>> {
    let mut applied = Vec::new();
    for (file, document) in documents()? {
        let object: DynamicObject = serde_json::from_value(document)
            .map_err(|error| Error::say(format!("{}: {error}", file.display())))?;
        applied.push(apply_one(admin, object).await?);
    }
    let crds: Api<CustomResourceDefinition> = Api::all(admin.clone());
    poll::eventually("the CRDs are established", Duration::from_secs(30), async || {
        let list = crds
            .list(&kube::api::ListParams::default())
            .await
            .map_err(|error| error.to_string())?;
        let waiting = list.items.iter().find(|crd| {
            let conditions = crd.status.as_ref().and_then(|status| status.conditions.as_ref());
            !conditions.is_some_and(|all| {
                all.iter().any(|c| c.type_ == "Established" && c.status == "True")
            })
        });
        waiting.map_or(Ok(()), |crd| Err(format!("{} is not", crd.name_any())))
    })
    .await?;
    Ok(applied)
}

/// Applies one object, whatever its kind.
pub async fn apply_one(admin: &Client, object: DynamicObject) -> Result<DynamicObject> {
    let types = object.types.clone().ok_or_else(|| Error::say("a manifest without kind"))?;
    let what = format!("apply {} {}", types.kind, object.name_any());
    let gvk = GroupVersionKind::try_from(&types)
        .map_err(|_| Error::say("a manifest with a bad apiVersion"))?;
    let (resource, capabilities) =
        kube::discovery::pinned_kind(admin, &gvk).await.map_err(Error::kube(what.clone()))?;
    let api: Api<DynamicObject> = match (capabilities.scope, object.namespace()) {
        (kube::discovery::Scope::Namespaced, Some(namespace)) => {
            Api::namespaced_with(admin.clone(), &namespace, &resource)
        }
        (kube::discovery::Scope::Namespaced, None) => {
            Api::namespaced_with(admin.clone(), "default", &resource)
        }
        (kube::discovery::Scope::Cluster, _) => Api::all_with(admin.clone(), &resource),
    };
    let params = PatchParams::apply("trunkline-harness").force().validation_strict();
    api.patch(&object.name_any(), &params, &Patch::Apply(&object)).await.map_err(Error::kube(what))
}

/// The agent's pod on `node`, from the DaemonSet's template as the API server stores it.
pub async fn agent_pod(admin: &Client, node: &str, serial: u32) -> Result<Pod> {
    let sets: Api<DaemonSet> = Api::namespaced(admin.clone(), NAMESPACE);
    let set = sets.get(AGENT).await.map_err(Error::kube("get the agent's DaemonSet"))?;
    let template = set.spec.map(|spec| spec.template).unwrap_or_default();
    pod_from(admin, template, &format!("{AGENT}-{node}-{serial}"), Some(node)).await
}

/// A coordinator's pod, from the Deployment's template. It names no node: none is simulated for it.
pub async fn coordinator_pod(admin: &Client, serial: u32) -> Result<Pod> {
    let deployments: Api<Deployment> = Api::namespaced(admin.clone(), NAMESPACE);
    let deployment = deployments
        .get(COORDINATOR)
        .await
        .map_err(Error::kube("get the coordinator's Deployment"))?;
    let template = deployment.spec.map(|spec| spec.template).unwrap_or_default();
    pod_from(admin, template, &format!("{COORDINATOR}-{serial}"), None).await
}

async fn pod_from(
    admin: &Client,
    template: PodTemplateSpec,
    name: &str,
    node: Option<&str>,
) -> Result<Pod> {
    let from = template.metadata.unwrap_or_default();
    let mut spec = template.spec.ok_or_else(|| Error::say("a pod template without spec"))?;
    spec.node_name = node.map(str::to_owned);
    let pod = Pod {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(NAMESPACE.to_owned()),
            labels: from.labels,
            annotations: from.annotations,
            ..ObjectMeta::default()
        },
        spec: Some(spec),
        status: None,
    };
    let pods: Api<Pod> = Api::namespaced(admin.clone(), NAMESPACE);
    pods.create(&PostParams::default(), &pod)
        .await
        .map_err(Error::kube(format!("create pod {name}")))
}
