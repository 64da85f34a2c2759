//! A live pod that lost its ENI gets it back on the whole program: agents, coordinators, real links, an API server.
//!
//! The durations are short (`Timings::short`): an ENI is believed missing after seconds where a production build waits
//! for minutes.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test's helpers")]

use kube::ResourceExt as _;
use std::collections::BTreeSet;
use std::time::Duration;
use trunkline_sim::ec2::fault::{Fault, FaultKind, PageFault};
use trunkline_sim::ec2::model::EniSpec;
use trunkline_sim::node::model::What;
use trunkline_tests::cluster::{Cluster, Options};
use trunkline_tests::invariants::annotation::Branch;
use trunkline_tests::objects::PodSpec;
use trunkline_tests::{poll, skipped};

const SOON: Duration = Duration::from_secs(40);
/// Two inventories, the age that counts, two answers, and the steps of a repair.
const HEALED: Duration = Duration::from_secs(90);

async fn cluster(test: &str, options: Options) -> Option<Cluster> {
    if let Some(why) = Cluster::missing() {
        skipped(test, &why);
        return None;
    }
    Some(Cluster::start(options).await.unwrap())
}

/// Pods of one node that run, with their branches.
async fn pods(cluster: &Cluster, count: u32) -> Vec<(String, Branch)> {
    let mut made = Vec::new();
    for number in 0..count {
        let name = format!("pod-{number}");
        cluster.create(&PodSpec::branch(&name, "node-1")).await.unwrap();
        made.push(name);
    }
    let mut pods = Vec::new();
    for name in made {
        cluster.running(&name, SOON).await.unwrap();
        let branch = cluster.annotated(&name, SOON).await.unwrap().remove(0);
        pods.push((name, branch));
    }
    pods
}

/// Waits until the pod is announced with another ENI or association than `old`, EC2 has both, and the node's link has the
/// ENI's MAC; the address and the VLAN are the old ones.
async fn healed(cluster: &Cluster, name: &str, old: &Branch) -> Branch {
    let new = poll::eventually(&format!("{name} is healed"), HEALED, async || {
        let now = cluster.annotated(name, SOON).await.map_err(|e| e.to_string())?.remove(0);
        if now.association == old.association {
            return Err("announced as before".to_owned());
        }
        let state = cluster.ec2_state().await.map_err(|e| e.to_string())?;
        let eni = state.eni(&now.eni_id).ok_or("its ENI is not in EC2")?;
        let association = eni.association.as_ref().ok_or("not associated")?;
        if association.id != now.association || association.vlan != now.vlan {
            return Err(format!("associated as {association:?}"));
        }
        let links = cluster.nodes.links("node-1").await.map_err(|e| e.to_string())?;
        let link = links.iter().find(|l| l.name == format!("vlan.eth.{}", now.vlan));
        match link {
            Some(link) if link.mac == now.mac => Ok(now),
            other => Err(format!("the link is {other:?}")),
        }
    })
    .await
    .unwrap();
    assert_eq!((&new.ipv4, new.vlan), (&old.ipv4, old.vlan), "the same address on the same VLAN");
    new
}

/// Nothing of the pod's sandbox was touched: one ADD, no DEL, its process never ended.
async fn never_restarted(cluster: &Cluster, name: &str) {
    let uid = cluster.pod("default", name).await.unwrap().unwrap().uid().unwrap();
    let log = cluster.nodes.log(1).await.unwrap();
    let of_pod = |what: What| log.iter().filter(|e| e.uid == uid && e.what == what).count();
    assert_eq!((of_pod(What::Add), of_pod(What::Del), of_pod(What::ProcessEnded)), (1, 0, 0));
}

async fn condition(cluster: &Cluster, name: &str) -> Option<(String, String)> {
    let pod = cluster.pod("default", name).await.unwrap()?;
    let conditions = pod.status?.conditions?;
    let of_ours = conditions.into_iter().find(|c| c.type_ == "trunkline.dev/BranchENI")?;
    Some((of_ours.status, of_ours.reason.unwrap_or_default()))
}

async fn condition_is(cluster: &Cluster, name: &str, status: &str) {
    poll::eventually(&format!("the condition of {name} is {status}"), SOON, async || {
        match condition(cluster, name).await {
            Some((now, _)) if now == status => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
}

/// ENIs that calls of ours changed from `from` on.
async fn changed(cluster: &Cluster, from: u64) -> BTreeSet<String> {
    let calls = cluster.ec2.log(from).await.unwrap();
    calls
        .into_iter()
        .filter(|call| call.caller.starts_with(cluster.rules.callers))
        .flat_map(|call| call.effects)
        .filter_map(|effect| {
            let value = serde_json::to_value(effect).ok()?;
            let inner = value.as_object()?.values().next()?.clone();
            let of = |key: &str| inner.get(key).or(value.get(key))?.as_str().map(str::to_owned);
            of("eni").or_else(|| of("branch")).or_else(|| of("resource"))
        })
        .collect()
}

#[tokio::test]
async fn s01_an_eni_that_was_removed_is_made_again_and_the_pod_works_on() {
    let Some(cluster) = cluster("s01 heal", Options::default()).await else { return };
    let pods = pods(&cluster, 3).await;
    let (name, old) = &pods[0];
    let uid = cluster.pod("default", name).await.unwrap().unwrap().uid().unwrap();
    let from = cluster.mark().await.unwrap();
    cluster.ec2.delete_eni(&old.eni_id).await.unwrap();
    let new = healed(&cluster, name, old).await;
    assert_ne!((&new.eni_id, &new.mac), (&old.eni_id, &old.mac));
    cluster.event(&uid, "BranchENILost", "Warning", SOON).await.unwrap();
    cluster.event(&uid, "BranchENIHealed", "Normal", SOON).await.unwrap();
    condition_is(&cluster, name, "True").await;
    never_restarted(&cluster, name).await;
    let touched = changed(&cluster, from).await;
    for (_, other) in &pods[1..] {
        assert!(!touched.contains(&other.eni_id), "{touched:?}");
    }
    // It goes again at once.
    cluster.ec2.delete_eni(&new.eni_id).await.unwrap();
    let again = healed(&cluster, name, &new).await;
    assert_ne!(again.eni_id, new.eni_id);
    never_restarted(&cluster, name).await;
    // And the pod's end gives back what it has by then.
    cluster.delete("default", name, false).await.unwrap();
    cluster.released(&uid, SOON).await.unwrap();
    cluster.finish().await.unwrap();
}

#[tokio::test]
async fn an_association_that_was_removed_is_made_again_on_the_same_eni_and_vlan() {
    let Some(cluster) = cluster("reassociate", Options::default()).await else { return };
    let pods = pods(&cluster, 2).await;
    let (name, old) = &pods[0];
    cluster.ec2.disassociate(&old.eni_id).await.unwrap();
    let new = healed(&cluster, name, old).await;
    assert_eq!((&new.eni_id, &new.mac), (&old.eni_id, &old.mac));
    condition_is(&cluster, name, "True").await;
    never_restarted(&cluster, name).await;
    cluster.finish().await.unwrap();
}

#[tokio::test]
async fn when_all_enis_of_a_node_go_at_once_repairs_wait_for_a_second_inventory() {
    let Some(cluster) = cluster("all gone", Options::default()).await else { return };
    let pods = pods(&cluster, 5).await;
    let first = cluster.pod("default", &pods[0].0).await.unwrap().unwrap().uid().unwrap();
    for (_, branch) in &pods {
        cluster.ec2.delete_eni(&branch.eni_id).await.unwrap();
    }
    cluster.event(&first, "BranchENIHealFrozen", "Warning", HEALED).await.unwrap();
    for (name, old) in &pods {
        healed(&cluster, name, old).await;
        never_restarted(&cluster, name).await;
    }
    cluster.finish().await.unwrap();
}

#[tokio::test]
async fn i6_an_ec2_that_hides_live_enis_changes_nothing() {
    let Some(cluster) = cluster("hidden", Options::default()).await else { return };
    let pods = pods(&cluster, 4).await;
    let from = cluster.mark().await.unwrap();
    let describe = |resource: Option<&str>, kind: FaultKind| Fault {
        id: String::new(),
        action: "DescribeNetworkInterfaces".to_owned(),
        resource: resource.map(str::to_owned),
        caller: None,
        nth: None,
        every: None,
        count: None,
        probability: None,
        for_ms: None,
        kind,
    };
    for (_, branch) in &pods[..2] {
        let code = "InvalidNetworkInterfaceID.NotFound".to_owned();
        let kind = FaultKind::Error { status: 400, code, message: "hidden".to_owned() };
        cluster.ec2.inject(&describe(Some(&branch.eni_id), kind)).await.unwrap();
    }
    let skip = FaultKind::Page { how: PageFault::SkipItem };
    let skipping = cluster.ec2.inject(&describe(None, skip)).await.unwrap();
    // Longer than it takes until a loss is believed, of which the searches are part.
    poll::throughout("nothing is repaired", Duration::from_secs(35), async || {
        let touched = changed(&cluster, from).await;
        if touched.is_empty() { Ok(()) } else { Err(format!("{touched:?}")) }
    })
    .await
    .unwrap();
    let hits = cluster.ec2.faults().await.unwrap();
    assert!(hits.iter().any(|(f, fired)| f.id == skipping && *fired > 1), "{hits:?}");
    cluster.ec2.clear_faults(None).await.unwrap();
    for (name, old) in &pods {
        assert_eq!(cluster.annotated(name, SOON).await.unwrap(), std::slice::from_ref(old));
    }
    cluster.finish().await.unwrap();
}

#[tokio::test]
async fn a_repair_outlives_the_coordinator_and_an_agent_and_a_pods_end_cleans_it() {
    let Some(mut cluster) = cluster("restart in mid heal", Options::default()).await else {
        return;
    };
    let pods = pods(&cluster, 3).await;
    let (name, old) = &pods[0];
    let (ended, gone) = &pods[1];
    let uid = cluster.pod("default", ended).await.unwrap().unwrap().uid().unwrap();
    // The repairs get as far as their associations, and no further.
    let stuck = Fault {
        id: "stuck".to_owned(),
        action: "AssociateTrunkInterface".to_owned(),
        resource: None,
        caller: None,
        nth: None,
        every: None,
        count: None,
        probability: None,
        for_ms: None,
        kind: FaultKind::Error {
            status: 500,
            code: "InternalError".to_owned(),
            message: "held".to_owned(),
        },
    };
    let stuck = cluster.ec2.inject(&stuck).await.unwrap();
    cluster.ec2.delete_eni(&old.eni_id).await.unwrap();
    cluster.ec2.delete_eni(&gone.eni_id).await.unwrap();
    poll::eventually("new ENIs are there", HEALED, async || {
        let state = cluster.ec2_state().await.map_err(|e| e.to_string())?;
        let made = state.enis.iter().filter(|e| e.tags.contains_key("trunkline.dev/replaces"));
        let made = made.count();
        if made == 2 { Ok(()) } else { Err(format!("{made}")) }
    })
    .await
    .unwrap();
    cluster.delete("default", ended, false).await.unwrap();
    cluster.coordinators[0].process.kill();
    cluster.restart_agent("node-1").await.unwrap();
    cluster.restart_coordinator(0).unwrap();
    cluster.ec2.clear_faults(Some(&stuck)).await.unwrap();
    healed(&cluster, name, old).await;
    never_restarted(&cluster, name).await;
    cluster.released(&uid, HEALED).await.unwrap();
    let state = cluster.ec2_state().await.unwrap();
    let made = state.enis.iter().filter(|e| e.tags.contains_key("trunkline.dev/replaces"));
    assert_eq!(made.count(), 1, "one ENI a pod");
    cluster.finish().await.unwrap();
}

#[tokio::test]
async fn an_eni_that_goes_while_nobody_leads_is_made_again() {
    let Some(mut cluster) = cluster("lost without a leader", Options::default()).await else {
        return;
    };
    let pods = pods(&cluster, 2).await;
    let (name, old) = &pods[0];
    cluster.coordinators[0].process.kill();
    cluster.ec2.delete_eni(&old.eni_id).await.unwrap();
    cluster.restart_coordinator(0).unwrap();
    healed(&cluster, name, old).await;
    never_restarted(&cluster, name).await;
    cluster.finish().await.unwrap();
}

#[tokio::test]
async fn an_address_that_another_eni_took_is_left_to_it_and_the_pod_is_told() {
    let Some(cluster) = cluster("address taken", Options::default()).await else { return };
    let pods = pods(&cluster, 2).await;
    let (name, old) = &pods[0];
    let uid = cluster.pod("default", name).await.unwrap().unwrap().uid().unwrap();
    let subnet = cluster.ec2_state().await.unwrap().eni(&old.eni_id).unwrap().subnet.clone();
    cluster.ec2.delete_eni(&old.eni_id).await.unwrap();
    let spec =
        EniSpec { private_ip: Some(old.ipv4.parse().unwrap()), subnet, ..EniSpec::default() };
    let foreign = cluster.ec2.add_eni(&spec).await.unwrap();
    let from = cluster.mark().await.unwrap();
    let event = cluster.event(&uid, "BranchENINotHealable", "Warning", HEALED).await.unwrap();
    assert!(event.message.unwrap().contains("private address"), "it says why");
    condition_is(&cluster, name, "False").await;
    assert_eq!(condition(&cluster, name).await.unwrap().1, "Missing");
    assert!(!changed(&cluster, from).await.contains(&foreign));
    // Once the address is free again, so is the way.
    cluster.ec2.delete_eni(&foreign).await.unwrap();
    healed(&cluster, name, old).await;
    condition_is(&cluster, name, "True").await;
    cluster.finish().await.unwrap();
}
