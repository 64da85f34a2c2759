//! Looking at a cluster: readiness, served pods, the end of releases, and the last judgement.

use super::Cluster;
use crate::invariants::annotation::Branch;
use crate::invariants::{self, Evidence, Violation};
use crate::objects::ANNOTATION;
use crate::{Error, Result, poll};
use http::Method;
use k8s_openapi::api::core::v1::{Event, Node, Pod, ServiceAccount};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, ResourceExt as _};
use std::time::Duration;
use trunkline_sim::ec2::client::SimClient;
use trunkline_sim::ec2::model::State;

/// Whether `/readyz` says so; else what it says.
pub(super) async fn ready(client: &SimClient) -> std::result::Result<(), String> {
    let answer = client.send(Method::GET, "/readyz?verbose", &[], String::new()).await;
    match answer {
        Ok(answer) if answer.status == 200 => Ok(()),
        Ok(answer) => Err(format!("{}: {}", answer.status, answer.body.trim())),
        Err(error) => Err(error.to_string()),
    }
}

impl Cluster {
    /// A number that no pod of this cluster was named with yet.
    pub(super) fn next_serial(&self) -> u32 {
        let latest = self.history.latest();
        let ours = latest.values().filter(|state| state.namespace == crate::deploy::NAMESPACE);
        let highest =
            ours.filter_map(|state| state.name.rsplit('-').next()?.parse::<u32>().ok()).max();
        highest.map_or(0, |highest| highest + 1)
    }

    /// A pod by name.
    pub async fn pod(&self, namespace: &str, name: &str) -> Result<Option<Pod>> {
        let pods: Api<Pod> = Api::namespaced(self.admin.clone(), namespace);
        pods.get_opt(name).await.map_err(Error::kube(format!("get pod {namespace}/{name}")))
    }

    /// EC2's truth.
    pub async fn ec2_state(&self) -> Result<State> {
        self.ec2.state().await.map_err(|error| Error::say(error.to_string()))
    }

    /// Waits until a pod in `default` has its annotation; returns its branches.
    pub async fn annotated(&self, name: &str, within: Duration) -> Result<Vec<Branch>> {
        poll::eventually(&format!("pod {name} has its branch"), within, async || {
            let pod = self.pod("default", name).await.map_err(|error| error.to_string())?;
            let pod = pod.ok_or("no such pod")?;
            let text = pod.annotations().get(ANNOTATION).ok_or("no annotation")?;
            Branch::all(text)
        })
        .await
    }

    /// Waits until a pod in `default` runs on its node, with its link up.
    pub async fn running(&self, name: &str, within: Duration) -> Result<()> {
        poll::eventually(&format!("pod {name} runs"), within, async || {
            let pods = self.nodes.pods().await.map_err(|error| error.to_string())?;
            let pod = pods.into_iter().find(|pod| pod.namespace == "default" && pod.name == name);
            match pod {
                Some(pod) if pod.running && (pod.link_up || !pod.wants_branch) => Ok(()),
                Some(pod) => Err(format!("running: {}, link: {}", pod.running, pod.link_up)),
                None => Err("not on its node".to_owned()),
            }
        })
        .await
    }

    /// Waits until EC2 has no ENI of this UID any more.
    pub async fn released(&self, uid: &str, within: Duration) -> Result<()> {
        poll::eventually(&format!("the ENI of {uid} is gone"), within, async || {
            let state = self.ec2.state().await.map_err(|error| error.to_string())?;
            let left = state.enis.iter().find(|e| {
                e.tags.get(invariants::evidence::POD_UID).map(String::as_str) == Some(uid)
            });
            left.map_or(Ok(()), |eni| Err(format!("{} is {}", eni.id, eni.status)))
        })
        .await
    }

    /// Collects what the invariants are judged by.
    pub async fn evidence(&self) -> Result<Evidence<'_>> {
        let sim = |error: &dyn std::fmt::Display| Error::say(error.to_string());
        let everything = ListParams::default();
        let pods: Api<Pod> = Api::all(self.admin.clone());
        let nodes: Api<Node> = Api::all(self.admin.clone());
        let events: Api<Event> = Api::all(self.admin.clone());
        let accounts: Api<ServiceAccount> = Api::all(self.admin.clone());
        let policies: Api<DynamicObject> = Api::all_with(self.admin.clone(), &policy());
        // The log is read before the state: what happens in between is then missing from the log, never from the state.
        Ok(Evidence {
            rules: &self.rules,
            calls: self.ec2.log(1).await.map_err(|error| sim(&error))?,
            nodes_log: self.nodes.log(1).await.map_err(|error| sim(&error))?,
            ec2: self.ec2_state().await?,
            history: &self.history,
            pods: pods.list(&everything).await.map_err(Error::kube("list pods"))?.items,
            nodes: nodes.list(&everything).await.map_err(Error::kube("list nodes"))?.items,
            events: events.list(&everything).await.map_err(Error::kube("list events"))?.items,
            policies: policies.list(&everything).await.map_err(Error::kube("list policies"))?.items,
            accounts: accounts.list(&everything).await.map_err(Error::kube("list accounts"))?.items,
        })
    }

    /// What is broken right now that may never be broken.
    pub async fn violations(&self) -> Result<Vec<Violation>> {
        Ok(invariants::always(&self.evidence().await?))
    }

    /// Waits until every pod is served and every left-over is gone.
    pub async fn at_rest(&self, within: Duration) -> Result<()> {
        poll::eventually("the cluster is at rest", within, async || {
            let evidence = self.evidence().await.map_err(|error| error.to_string())?;
            let open = invariants::at_rest(&evidence);
            if open.is_empty() { Ok(()) } else { Err(told(&open)) }
        })
        .await
    }

    /// The end of a test: all processes still run, the cluster comes to rest within `within`, and I1 to I6 held.
    pub async fn finish_within(mut self, within: Duration) -> Result<()> {
        self.simulators_run()?;
        for coordinator in &mut self.coordinators {
            coordinator.process.must_run()?;
        }
        for agent in self.agents.values_mut() {
            agent.process.must_run()?;
        }
        let rest = self.at_rest(within).await;
        let broken = self.violations().await?;
        if !broken.is_empty() {
            return Err(Error::say(format!("invariants are broken:\n{}", told(&broken))));
        }
        rest
    }

    /// [`Cluster::finish_within`] a minute.
    pub async fn finish(self) -> Result<()> {
        self.finish_within(Duration::from_mins(1)).await
    }
}

fn told(violations: &[Violation]) -> String {
    violations.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// SecurityGroupPolicy for the dynamic client.
pub fn policy() -> ApiResource {
    ApiResource {
        group: "vpcresources.k8s.aws".to_owned(),
        version: "v1beta1".to_owned(),
        api_version: "vpcresources.k8s.aws/v1beta1".to_owned(),
        kind: "SecurityGroupPolicy".to_owned(),
        plural: "securitygrouppolicies".to_owned(),
    }
}
