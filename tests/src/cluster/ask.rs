//! What a user or an operator would ask: events, EC2 calls, nodes of another kind.

use super::{Cluster, STARTED_WITHIN};
use crate::objects::{self, NodeSpec, PodSpec};
use crate::{Error, Result, poll};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use std::time::Duration;
use trunkline_sim::ec2::model::{InstanceSpec, LogEntry};

impl Cluster {
    /// Launches this instance and registers its Node, with its providerID or (as before a cloud provider came) without.
    /// Returns the instance id. No agent is started.
    pub async fn join(&self, name: &str, spec: &InstanceSpec, provider: bool) -> Result<String> {
        let instance =
            self.ec2.add_instance(spec).await.map_err(|error| Error::say(error.to_string()))?;
        // The simulated kubelet corrects the boot id when it registers.
        let boot_id = "not-booted".to_owned();
        if provider {
            let labels = Vec::new();
            let (name, instance) = (name.to_owned(), instance.id.clone());
            objects::node(&self.admin, &NodeSpec { name, instance, boot_id, labels }).await?;
        } else {
            let nodes: Api<Node> = Api::all(self.admin.clone());
            let labels = json!({ "kubernetes.io/os": "linux" });
            let node = json!({ "metadata": { "name": name, "labels": labels } });
            let node = serde_json::from_value(node).map_err(|e| Error::say(e.to_string()))?;
            let made = nodes.create(&PostParams::default(), &node).await;
            made.map_err(Error::kube(format!("create node {name}")))?;
            objects::boot(&self.admin, name, &boot_id).await?;
        }
        poll::eventually(&format!("{name} is simulated"), STARTED_WITHIN, async || {
            match self.nodes.node(name).await {
                Ok(Some(_)) => Ok(()),
                Ok(None) => Err("not there".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await?;
        Ok(instance.id)
    }

    /// Gives a Node its providerID, as a cloud provider does that comes late.
    pub async fn set_provider(&self, node: &str, instance: &str) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.admin.clone());
        let patch = json!({ "spec": { "providerID": format!("aws:///us-west-2a/{instance}") } });
        let patched = nodes.patch(node, &PatchParams::default(), &Patch::Merge(&patch)).await;
        patched.map(drop).map_err(Error::kube(format!("patch node {node}")))
    }

    /// Sets a pod's annotation as an administrator does; `None` removes it.
    pub async fn annotate(&self, pod: &str, key: &str, value: Option<&str>) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.admin.clone(), "default");
        let patch = json!({ "metadata": { "annotations": { key: value } } });
        let patched = pods.patch(pod, &PatchParams::default(), &Patch::Merge(&patch)).await;
        patched.map(drop).map_err(Error::kube(format!("annotate pod {pod}")))
    }

    /// Creates a pod whose object `change` has worked on.
    pub async fn create_as(&self, spec: &PodSpec, change: impl FnOnce(&mut Value)) -> Result<Pod> {
        let bad = |error: serde_json::Error| Error::say(format!("a bad pod: {error}"));
        let mut object = serde_json::to_value(spec.object()?).map_err(bad)?;
        change(&mut object);
        let pod = serde_json::from_value(object).map_err(bad)?;
        let pods: Api<Pod> = Api::namespaced(self.admin.clone(), &spec.namespace);
        let made = pods.create(&PostParams::default(), &pod).await;
        made.map_err(Error::kube(format!("create pod {}", spec.name)))
    }

    /// Events about an object of this UID; events about nodes mostly carry the node's name there.
    pub async fn events_of(&self, uid: &str) -> Result<Vec<Event>> {
        let events: Api<Event> = Api::all(self.admin.clone());
        let mine = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
        Ok(events.list(&mine).await.map_err(Error::kube("list events"))?.items)
    }

    /// Waits for an event of this reason and type; returns it.
    pub async fn event(
        &self,
        uid: &str,
        reason: &str,
        severity: &str,
        within: Duration,
    ) -> Result<Event> {
        let what = format!("{severity} event {reason} about {uid}");
        poll::eventually(&what, within, async || {
            let events = self.events_of(uid).await.map_err(|error| error.to_string())?;
            let told =
                |e: &Event| format!("{}: {}", e.reason.as_deref().unwrap_or_default(), message(e));
            let seen: Vec<_> = events.iter().map(told).collect();
            let found = events.into_iter().find(|event| {
                event.reason.as_deref() == Some(reason) && event.type_.as_deref() == Some(severity)
            });
            found.ok_or_else(|| format!("{seen:?}"))
        })
        .await
    }

    /// The coordinators' calls of this EC2 action, from this entry of the log on.
    pub async fn calls(&self, action: &str, from: u64) -> Result<Vec<LogEntry>> {
        let log = self.ec2.log(from).await.map_err(|error| Error::say(error.to_string()))?;
        let ours =
            |call: &LogEntry| call.action == action && call.caller.starts_with(self.rules.callers);
        Ok(log.into_iter().filter(ours).collect())
    }

    /// The number of the next entry of EC2's log.
    pub async fn mark(&self) -> Result<u64> {
        Ok(self.ec2_state().await?.seq + 1)
    }

    /// Waits until EC2 shows an attached trunk of this instance; returns its id.
    pub async fn trunk(&self, instance: &str, within: Duration) -> Result<String> {
        poll::eventually(&format!("{instance} has its trunk"), within, async || {
            let state = self.ec2_state().await.map_err(|error| error.to_string())?;
            state.trunk_of(instance).map(|trunk| trunk.id.clone()).ok_or("none".to_owned())
        })
        .await
    }

    /// Waits until a pod object in `default` is gone.
    pub async fn gone(&self, name: &str, within: Duration) -> Result<()> {
        poll::eventually(&format!("pod {name} is gone"), within, async || {
            match self.pod("default", name).await {
                Ok(None) => Ok(()),
                Ok(Some(pod)) => Err(format!("still {}", pod.uid().unwrap_or_default())),
                Err(error) => Err(error.to_string()),
            }
        })
        .await
    }
}

/// An event's sentence.
pub fn message(event: &Event) -> &str {
    event.message.as_deref().unwrap_or_default()
}
