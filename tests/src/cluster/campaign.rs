//! What the fault suites share: pods that are known by UID and ENI, faults that must have struck, and "nothing is
//! released" over a while.

use super::{Cluster, Options};
use crate::objects::PodSpec;
use crate::{Error, Result, poll, skipped};
use kube::ResourceExt as _;
use std::time::Duration;
use trunkline_sim::ec2::client::SimClient;
use trunkline_sim::ec2::fault::Fault;
use trunkline_sim::ec2::model::LogEntry;
use trunkline_sim::proxy::model::FaultSpec;

/// How long anything may take that is expected to happen.
pub const SOON: Duration = Duration::from_secs(60);

/// A pod with its branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    /// Pod name, in namespace `default`.
    pub name: String,
    /// Pod UID.
    pub uid: String,
    /// ENI id.
    pub eni: String,
    /// VLAN id.
    pub vlan: u32,
    /// MAC of the branch.
    pub mac: String,
}

impl Cluster {
    /// Starts a cluster, or notes why this machine cannot.
    pub async fn for_test(test: &str, options: Options) -> Result<Option<Self>> {
        if let Some(why) = Self::missing() {
            skipped(test, &why);
            return Ok(None);
        }
        Self::start(options).await.map(Some)
    }

    /// Creates a pod and waits until it runs on its branch.
    pub async fn serve(&self, name: &str, node: &str) -> Result<Served> {
        self.serve_as(&PodSpec::branch(name, node)).await
    }

    /// The same for any pod in `default` that asks for one branch.
    pub async fn serve_as(&self, spec: &PodSpec) -> Result<Served> {
        let pod = self.create(spec).await?;
        self.running(&spec.name, SOON).await?;
        self.served(&spec.name, &pod.uid().unwrap_or_default()).await
    }

    /// What a pod was given.
    pub async fn served(&self, name: &str, uid: &str) -> Result<Served> {
        let branch = self.annotated(name, SOON).await?.into_iter().next();
        let branch = branch.ok_or_else(|| Error::say(format!("{name} has an empty annotation")))?;
        let (eni, vlan, mac) = (branch.eni_id, branch.vlan, branch.mac);
        Ok(Served { name: name.to_owned(), uid: uid.to_owned(), eni, vlan, mac })
    }

    /// Waits until each of these pods runs on the branch it had.
    pub async fn still_served(&self, pods: &[Served]) -> Result<()> {
        for pod in pods {
            self.running(&pod.name, SOON).await?;
            let now = self.served(&pod.name, &pod.uid).await?;
            if now != *pod {
                return Err(Error::say(format!("{} had {pod:?}, has {now:?}", pod.name)));
            }
        }
        Ok(())
    }

    /// Deletes a pod by force and waits until its node is done with it.
    pub async fn force_away(&self, pod: &Served) -> Result<()> {
        self.delete("default", &pod.name, true).await?;
        self.off_node(&pod.uid).await
    }

    /// Waits until a pod has neither process nor cgroup nor link on its node.
    pub async fn off_node(&self, uid: &str) -> Result<()> {
        poll::eventually(&format!("the node of {uid} is done with it"), SOON, async || {
            let pods = self.nodes.pods().await.map_err(|error| error.to_string())?;
            pods.iter().find(|pod| pod.uid == uid).map_or(Ok(()), |pod| Err(format!("{pod:?}")))
        })
        .await
    }

    /// The coordinators' calls since `from` that took something away, refused ones too.
    pub async fn releases(&self, from: u64) -> Result<Vec<LogEntry>> {
        let mut calls = self.calls("DisassociateTrunkInterface", from).await?;
        calls.extend(self.calls("DeleteNetworkInterface", from).await?);
        Ok(calls)
    }

    /// Watches for a while that nothing is released since `from`.
    pub async fn nothing_released(&self, from: u64, during: Duration) -> Result<()> {
        poll::throughout("nothing is released", during, async || {
            let calls = self.releases(from).await.map_err(|error| error.to_string())?;
            let told = |call: &LogEntry| format!("{} {:?}", call.action, call.params);
            calls.first().map_or(Ok(()), |call| Err(told(call)))
        })
        .await
    }

    /// Adds a fault on the way to the API server.
    pub async fn api_fault(&self, spec: &FaultSpec) -> Result<u64> {
        let proxy = self.proxy.as_ref().ok_or_else(|| Error::say("no proxy"))?;
        proxy.add(spec).await.map_err(|error| Error::say(error.to_string()))
    }

    /// Takes one away.
    pub async fn api_heals(&self, id: u64) -> Result<()> {
        let proxy = self.proxy.as_ref().ok_or_else(|| Error::say("no proxy"))?;
        proxy.remove(id).await.map(drop).map_err(|error| Error::say(error.to_string()))
    }

    /// Waits until a fault on the way to the API server has struck so often.
    pub async fn api_struck(&self, id: u64, times: u64) -> Result<()> {
        let proxy = self.proxy.as_ref().ok_or_else(|| Error::say("no proxy"))?;
        poll::eventually(&format!("API fault {id} struck"), SOON, async || {
            let hits = proxy.hits(id).await.map_err(|error| error.to_string())?;
            if hits >= times { Ok(()) } else { Err(format!("{hits} times")) }
        })
        .await
    }

    /// Adds a fault in EC2.
    pub async fn ec2_fault(&self, fault: &Fault) -> Result<String> {
        self.ec2.inject(fault).await.map_err(|error| Error::say(error.to_string()))
    }

    /// Takes one away.
    pub async fn ec2_heals(&self, id: &str) -> Result<()> {
        self.ec2.clear_faults(Some(id)).await.map_err(|error| Error::say(error.to_string()))
    }

    /// Waits until a fault in EC2 has struck so often.
    pub async fn ec2_struck(&self, id: &str, times: u64) -> Result<()> {
        poll::eventually(&format!("{id} struck {times} times"), SOON, async || {
            let faults = self.ec2.faults().await.map_err(|error| error.to_string())?;
            let hits = faults.iter().find(|(fault, _)| fault.id == id).map(|(_, fired)| *fired);
            if hits >= Some(times) { Ok(()) } else { Err(format!("{hits:?} times")) }
        })
        .await
    }

    /// Waits until an agent's `/readyz` says 200, or something else.
    pub async fn agent_ready(&self, node: &str, wanted: bool) -> Result<()> {
        let agent =
            self.agents.get(node).ok_or_else(|| Error::say(format!("no agent on {node}")))?;
        let health = SimClient::new(&agent.health);
        poll::eventually(&format!("the agent of {node} is ready: {wanted}"), SOON, async || {
            match super::observe::ready(&health).await {
                Ok(()) if wanted => Ok(()),
                Err(why) if wanted => Err(why),
                Ok(()) => Err("it is ready".to_owned()),
                Err(_) => Ok(()),
            }
        })
        .await
    }

    /// Prints how many faults struck and what was released, then ends the test: [`Cluster::finish_within`] two minutes.
    pub async fn conclude(self, test: &str) -> Result<()> {
        let calls = self.ec2.log(1).await.map_err(|error| Error::say(error.to_string()))?;
        let ours = |call: &&LogEntry| call.caller.starts_with(self.rules.callers);
        let in_ec2 = calls.iter().filter(ours).filter(|call| !call.faults.is_empty()).count();
        let on_the_way = match &self.proxy {
            Some(proxy) => {
                let log = proxy.log(1).await.map_err(|error| Error::say(error.to_string()))?;
                log.iter().filter(|entry| !entry.faults.is_empty()).count()
            }
            None => 0,
        };
        let releases = self.releases(1).await?.iter().filter(|call| call.code.is_none()).count();
        println!(
            "{test}: faults struck {in_ec2} EC2 calls and {on_the_way} API requests; {releases} release calls went through"
        );
        self.finish_within(Duration::from_mins(2)).await
    }
}
