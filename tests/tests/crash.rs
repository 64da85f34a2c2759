//! SIGKILL between two effects: coordinators that die while each call of allocation, release and set-up is under way, and
//! agents that die between two facts.
//!
//! Each round holds six calls of the leader at once, each for another pod (or node), and kills it there. What became of
//! the calls is the round's theme: never heard of again; in effect, with the reply lost; in effect *later*, when the next
//! leader is at work. The next leader has to end in the same state from what EC2, the API server and the agents show.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test's helpers")]

use kube::ResourceExt as _;
use std::time::Duration;
use trunkline_sim::ec2::fault::{Fault, FaultKind};
use trunkline_sim::ec2::model::{Effect, InstanceSpec};
use trunkline_sim::node::model::{KubeletAction, What};
use trunkline_sim::proxy::model::{FaultKind as ApiFault, FaultSpec, Match};
use trunkline_tests::cluster::campaign::{SOON, Served};
use trunkline_tests::cluster::{Cluster, Options};
use trunkline_tests::invariants::evidence::POD_UID;
use trunkline_tests::objects::PodSpec;
use trunkline_tests::poll;

const SLOW_DEL: &str = "sim.trunkline.dev/slow-del";

/// What becomes of the calls that are under way when the leader dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// They never take effect.
    Lost,
    /// They took effect; nobody heard of it.
    Done,
    /// They take effect under the next leader.
    Late,
}

impl Fate {
    fn in_ec2(self) -> FaultKind {
        match self {
            Self::Lost => FaultKind::Hang { ms: 3_600_000 },
            Self::Done => FaultKind::LoseReply { stall_ms: 3_600_000 },
            Self::Late => FaultKind::Hold,
        }
    }

    fn in_the_api(self) -> ApiFault {
        match self {
            Self::Lost => ApiFault::Hold,
            Self::Done => ApiFault::HoldReply,
            Self::Late => ApiFault::Late,
        }
    }
}

/// One call of `caller` is held, and every repeat of it. Returns the fault's name.
async fn hold(cluster: &Cluster, action: &str, fate: Fate, caller: &str) -> String {
    let mut fault = Fault::on(action, fate.in_ec2());
    fault.caller = Some(caller.to_owned());
    cluster.ec2_fault(&fault).await.unwrap()
}

async fn struck(cluster: &Cluster, fault: &str) {
    cluster.ec2_struck(fault, 1).await.unwrap();
}

#[tokio::test]
async fn s03_s08_s26_t2_t3_leaders_that_die_between_two_effects() {
    // Attempts outlast the preparation of a round, so that a held call is one call.
    let options = Options::default()
        .nodes(1)
        .coordinators(2)
        .proxied()
        .timing("ec2_attempt", Duration::from_secs(18));
    let Some(mut cluster) = Cluster::for_test("crash", options).await.unwrap() else { return };
    let live = vec![
        cluster.serve("live-1", "node-1").await.unwrap(),
        cluster.serve("live-2", "node-1").await.unwrap(),
    ];
    for fate in [Fate::Lost, Fate::Done, Fate::Late] {
        round(&mut cluster, fate).await;
        cluster.still_served(&live).await.unwrap();
    }
    let log = cluster.ec2.log(1).await.unwrap();
    let vlan = log.iter().filter(|call| call.code.as_deref() == Some("InvalidVlanId.Duplicate"));
    assert_eq!(vlan.count(), 0, "two leaders gave one VLAN");
    cluster.conclude("crash").await.unwrap();
}

async fn round(cluster: &mut Cluster, fate: Fate) {
    let named = |step: &str| format!("{step}-{fate:?}").to_lowercase();
    let leader = cluster.led(SOON).await.unwrap();
    let caller = cluster.coordinators[leader].caller().to_owned();
    let deleted = cluster.serve(&named("delete"), "node-1").await.unwrap();
    let parted = cluster.serve(&named("disassociate"), "node-1").await.unwrap();
    let mut faults = Vec::new();

    // Delete comes a cooldown after Disassociate, so it is the first.
    faults.push(hold(cluster, "DeleteNetworkInterface", fate, &caller).await);
    cluster.delete("default", &deleted.name, true).await.unwrap();
    struck(cluster, &faults[0]).await;
    faults.push(hold(cluster, "DisassociateTrunkInterface", fate, &caller).await);
    cluster.delete("default", &parted.name, true).await.unwrap();
    struck(cluster, &faults[1]).await;
    let path = format!("/namespaces/default/pods/{}", named("annotate"));
    let write = FaultSpec::new(Match::request("PATCH", &path), fate.in_the_api());
    let write = cluster.api_fault(&write).await.unwrap();
    let annotated = cluster.create(&PodSpec::branch(&named("annotate"), "node-1")).await.unwrap();
    cluster.api_struck(write, 1).await.unwrap();
    faults.push(hold(cluster, "AttachNetworkInterface", fate, &caller).await);
    let node = named("node");
    let instance = cluster.join(&node, &InstanceSpec::default(), true).await.unwrap();
    struck(cluster, &faults[2]).await;
    faults.push(hold(cluster, "AssociateTrunkInterface", fate, &caller).await);
    let associated = cluster.create(&PodSpec::branch(&named("associate"), "node-1")).await.unwrap();
    struck(cluster, &faults[3]).await;
    faults.push(hold(cluster, "CreateNetworkInterface", fate, &caller).await);
    let created = cluster.create(&PodSpec::branch(&named("create"), "node-1")).await.unwrap();
    struck(cluster, &faults[4]).await;

    cluster.coordinators[leader].process.kill();
    if fate != Fate::Late {
        cluster.api_heals(write).await.unwrap();
    }
    let next = poll::eventually("the other leads", SOON, async || match cluster.leader().await {
        Ok(Some(index)) if index != leader => Ok(index),
        other => Err(format!("{other:?}")),
    })
    .await
    .unwrap();
    assert_ne!(next, leader);
    if fate == Fate::Late {
        // The next leader has read EC2 and begins to act; now the dead one's calls land, all at once.
        let caller = cluster.coordinators[next].caller().to_owned();
        poll::eventually("the next leader has changed something", SOON, async || {
            let log = cluster.ec2.log(1).await.map_err(|error| error.to_string())?;
            let acts = |call: &trunkline_sim::ec2::model::LogEntry| {
                call.caller == caller && !call.action.starts_with("Describe") && call.code.is_none()
            };
            if log.iter().any(acts) { Ok(()) } else { Err("not yet".to_owned()) }
        })
        .await
        .unwrap();
        cluster.api_heals(write).await.unwrap();
    }
    for fault in &faults {
        cluster.ec2_heals(fault).await.unwrap();
    }
    cluster.restart_coordinator(leader).unwrap();
    for pod in [&annotated, &associated, &created] {
        let (name, uid) = (pod.name_any(), pod.uid().unwrap());
        cluster.running(&name, SOON).await.unwrap();
        let served = cluster.served(&name, &uid).await.unwrap();
        one_eni(cluster, &uid, &served.eni, &name).await;
    }
    for pod in [&deleted, &parted] {
        cluster.released(&pod.uid, SOON).await.unwrap();
        one_eni(cluster, &pod.uid, &pod.eni, &pod.name).await;
    }
    cluster.trunk(&instance, SOON).await.unwrap();
    one_trunk(cluster, &instance, &node).await;
    for pod in [&annotated, &associated, &created] {
        cluster.delete("default", &pod.name_any(), false).await.unwrap();
        cluster.released(&pod.uid().unwrap(), SOON).await.unwrap();
    }
}

/// Whatever happened: this ENI and no other was made for the pod.
async fn one_eni(cluster: &Cluster, uid: &str, eni: &str, name: &str) {
    let log = cluster.ec2.log(1).await.unwrap();
    let made: Vec<_> = log
        .iter()
        .flat_map(|call| &call.effects)
        .filter_map(|effect| match effect {
            Effect::EniCreated { eni, tags, .. } => {
                tags.get(POD_UID).is_some_and(|tag| tag == uid).then_some(eni.as_str())
            }
            _ => None,
        })
        .collect();
    assert_eq!(made, [eni], "{name}");
}

async fn one_trunk(cluster: &Cluster, instance: &str, node: &str) {
    let log = cluster.ec2.log(1).await.unwrap();
    let of_instance = |effect: &&Effect| {
        matches!(effect, Effect::EniCreated { interface_type, tags, .. }
            if interface_type == "trunk"
                && tags.get("node.k8s.amazonaws.com/instance_id").is_some_and(|id| id == instance))
    };
    let made = log.iter().flat_map(|call| &call.effects).filter(of_instance).count();
    assert_eq!(made, 1, "trunks of {node}");
}

#[tokio::test]
async fn s10_s57_agents_that_die_between_two_facts() {
    let Some(mut cluster) = Cluster::for_test("crash agent", Options::default()).await.unwrap()
    else {
        return;
    };
    let live = vec![cluster.serve("live", "node-1").await.unwrap()];
    // Between the end of the object and that of the process, the link, the cgroup; and after the last.
    for (number, what) in
        [What::Del, What::ProcessEnded, What::LinkGone, What::CgroupGone].into_iter().enumerate()
    {
        for journal in [true, false] {
            let name = format!("at-{number}-{journal}");
            let spec = PodSpec::branch(&name, "node-1").annotation(SLOW_DEL, "500ms");
            let pod = cluster.serve_as(&spec).await.unwrap();
            dies_at(&mut cluster, &pod, what, journal).await;
        }
        cluster.still_served(&live).await.unwrap();
    }
    // With the kubelet: two starts, neither of which the other saw.
    let pod = cluster.serve("at-kubelet", "node-1").await.unwrap();
    cluster.agents.get_mut("node-1").unwrap().process.kill();
    cluster.nodes.kubelet("node-1", KubeletAction::Restart).await.unwrap();
    cluster.force_away(&pod).await.unwrap();
    cluster.restart_agent("node-1").await.unwrap();
    cluster.released(&pod.uid, SOON).await.unwrap();
    cluster.still_served(&live).await.unwrap();
    cluster.conclude("crash agent").await.unwrap();
}

async fn dies_at(cluster: &mut Cluster, pod: &Served, what: What, journal: bool) {
    let mark = cluster.nodes.log(1).await.unwrap().len() as u64 + 1;
    cluster.delete("default", &pod.name, true).await.unwrap();
    poll::eventually(&format!("{what:?} of {}", pod.name), SOON, async || {
        let log = cluster.nodes.log(mark).await.map_err(|error| error.to_string())?;
        let seen = log.iter().any(|entry| entry.what == what && entry.uid == pod.uid);
        if seen { Ok(()) } else { Err("not yet") }.map_err(str::to_owned)
    })
    .await
    .unwrap();
    cluster.agents.get_mut("node-1").unwrap().process.kill();
    if !journal {
        let state = cluster.nodes.node("node-1").await.unwrap().unwrap().state_dir;
        for entry in std::fs::read_dir(state).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                std::fs::remove_file(path).unwrap();
            }
        }
    }
    cluster.restart_agent("node-1").await.unwrap();
    cluster.released(&pod.uid, SOON).await.unwrap();
}
