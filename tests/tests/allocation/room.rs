//! Full subnets, full trunks and VLANs that rest: who waits, is told, and is served in turn.

use super::{CREATE, SOON, cluster, done_with, error, fired, made_for, pod};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;
use trunkline_sim::ec2::fault::Fault;
use trunkline_sim::ec2::model::{EniSpec, InstanceSpec, SubnetSpec};
use trunkline_tests::cluster::ask::message;
use trunkline_tests::cluster::{Cluster, Options};
use trunkline_tests::objects::{ANNOTATION, PodSpec, RESOURCE};
use trunkline_tests::poll;

#[tokio::test]
async fn s45_pods_wait_for_addresses_in_three_spellings() {
    let Some(mut cluster) = cluster("s45", Options::default()).await else { return };
    // /28: eleven addresses that EC2 gives out. Instance, trunk and seven strangers leave two.
    let small = SubnetSpec {
        id: String::new(),
        cidr: "10.0.250.0/28".to_owned(),
        ipv6_cidr: None,
        assign_ipv6: false,
        zone: String::new(),
        vpc: String::new(),
        tags: std::collections::BTreeMap::new(),
    };
    let subnet = cluster.ec2.add_subnet(&small).await.unwrap();
    let spec = InstanceSpec { subnet: subnet.clone(), ..InstanceSpec::default() };
    let instance = cluster.join("node-small", &spec, true).await.unwrap();
    cluster.trunk(&instance, SOON).await.unwrap();
    let free = |state: &trunkline_sim::ec2::model::State| {
        state.subnets.iter().find(|s| s.id == subnet).unwrap().free
    };
    let mut strangers = Vec::new();
    while free(&cluster.ec2_state().await.unwrap()) > 2 {
        let spec = EniSpec { subnet: subnet.clone(), ..EniSpec::default() };
        strangers.push(cluster.ec2.add_eni(&spec).await.unwrap());
    }
    cluster.start_agent("node-small").await.unwrap();
    let from = cluster.mark().await.unwrap();
    six_pods(&cluster, "node-small", "real", "InsufficientFreeAddressesInSubnet").await;
    let tries = cluster.calls(CREATE, from).await.unwrap().len();
    for stranger in &strangers {
        cluster.ec2.delete_eni(stranger).await.unwrap();
    }
    all_run(&cluster, "real").await;
    assert!(tries <= 6 + 4 * 12, "{tries} creates: tries are spaced out");

    for (name, code, text) in [
        (
            "cidr",
            "InsufficientCidrBlocks",
            "The specified subnet does not have enough free cidr blocks",
        ),
        (
            "value",
            "InvalidParameterValue",
            "There aren't sufficient free Ipv4 addresses or prefixes",
        ),
    ] {
        let full = Fault::on(CREATE, error(code, text)).from_nth(3);
        let id = cluster.ec2.inject(&full).await.unwrap();
        six_pods(&cluster, "node-1", name, code).await;
        cluster.ec2.clear_faults(Some(&id)).await.unwrap();
        all_run(&cluster, name).await;
    }
    cluster.finish().await.unwrap();
}

fn named(prefix: &str, count: u32) -> Vec<String> {
    (1..=count).map(|number| format!("{prefix}-{number}")).collect()
}

/// Six pods of which two run and four wait, each with one event, and try again without another.
async fn six_pods(cluster: &Cluster, node: &str, prefix: &str, code: &str) {
    let mut waiting = BTreeSet::new();
    for name in named(prefix, 6) {
        waiting.insert(pod(cluster, &name, node).await);
    }
    let served = poll::eventually("two have a branch and four were told", SOON, async || {
        let mut counts = (Vec::new(), 0);
        for uid in &waiting {
            let events = cluster.events_of(uid).await.map_err(|error| error.to_string())?;
            let with = |reason: &str| {
                events.iter().filter(|e| e.reason.as_deref() == Some(reason)).count()
            };
            if with("ResourceAllocated") > 0 {
                counts.0.push(uid.clone());
            } else if with("BranchAllocationFailed") > 0 {
                counts.1 += 1;
            }
        }
        if (counts.0.len(), counts.1) == (2, 4) { Ok(counts.0) } else { Err(format!("{counts:?}")) }
    })
    .await
    .unwrap();
    waiting.retain(|uid| !served.contains(uid));
    let from = cluster.mark().await.unwrap();
    poll::eventually("each was tried twice more", SOON, async || {
        let calls = cluster.calls(CREATE, from).await.map_err(|error| error.to_string())?;
        let of = |uid: &String| {
            calls.iter().filter(|call| call.params.values().any(|v| v == uid)).count()
        };
        let fewest = waiting.iter().map(of).min().unwrap();
        if fewest >= 2 { Ok(()) } else { Err(format!("{fewest}")) }
    })
    .await
    .unwrap();
    for uid in &waiting {
        let events = cluster.events_of(uid).await.unwrap();
        let told: Vec<_> = events
            .iter()
            .filter(|e| e.reason.as_deref() == Some("BranchAllocationFailed"))
            .collect();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(message(told[0]).contains(code), "{}", message(told[0]));
    }
}

async fn all_run(cluster: &Cluster, prefix: &str) {
    for name in named(prefix, 6) {
        cluster.running(&name, SOON).await.unwrap();
    }
    done_with(cluster, &named(prefix, 6)).await;
}

#[tokio::test]
async fn s34_s35_d8_d31_s20_s28_slots_of_a_trunk() {
    let Some(mut cluster) = cluster("s34", Options::default()).await else { return };
    s34_s35_pods_that_were_there_before_the_trunk(&mut cluster).await;
    d8_a_pod_gets_all_its_slots_or_none(&cluster).await;
    s20_ended_jobs_make_room(&cluster).await;
    s28_vlans_rotate(&cluster).await;
    // EC2 frees a slot seconds after Disassociate and refuses until then; that is no lower limit (LIM-2).
    let nodes: Api<Node> = Api::all(cluster.admin.clone());
    for node in ["node-1", "node-late"] {
        let capacity = nodes.get(node).await.unwrap().status.unwrap().capacity.unwrap();
        assert_eq!(capacity[RESOURCE].0, "9", "{node}");
    }
    cluster.finish().await.unwrap();
}

/// Agent and bound pods are there first; nine fit, two are told and follow as slots become free (D31).
async fn s34_s35_pods_that_were_there_before_the_trunk(cluster: &mut Cluster) {
    let none = error("UnauthorizedOperation", "You are not authorized to perform this operation.");
    let fault = cluster.ec2.inject(&Fault::on(CREATE, none)).await.unwrap();
    cluster.join("node-late", &InstanceSpec::default(), true).await.unwrap();
    cluster.start_agent("node-late").await.unwrap();
    let names = named("early", 11);
    let mut uids = Vec::new();
    for name in &names {
        uids.push(pod(cluster, name, "node-late").await);
    }
    cluster.event("node-late", "NodeTrunkFailedInit", "Warning", SOON).await.unwrap();
    fired(cluster, &fault, 2).await;
    cluster.ec2.clear_faults(Some(&fault)).await.unwrap();
    cluster.event("node-late", "NodeTrunkInitiated", "Normal", SOON).await.unwrap();
    let waiting = poll::eventually("nine have a branch", SOON, async || {
        let mut waiting = Vec::new();
        for name in &names {
            let pod =
                cluster.pod("default", name).await.map_err(|error| error.to_string())?.unwrap();
            if !pod.annotations().contains_key(ANNOTATION) {
                waiting.push(name.clone());
            }
        }
        if waiting.len() == 2 { Ok(waiting) } else { Err(format!("{waiting:?}")) }
    })
    .await
    .unwrap();
    for name in &waiting {
        let uid = cluster.pod("default", name).await.unwrap().unwrap().uid().unwrap();
        let told = cluster.event(&uid, "TrunkFull", "Warning", SOON).await.unwrap();
        assert!(message(&told).contains("the trunk is full"), "{}", message(&told));
        let told = cluster.events_of(&uid).await.unwrap();
        assert_eq!(told.iter().filter(|e| e.reason.as_deref() == Some("TrunkFull")).count(), 1);
    }
    let (served, leaving): (Vec<_>, Vec<_>) = {
        let served: Vec<_> = names.iter().filter(|name| !waiting.contains(name)).cloned().collect();
        (served[2..].to_vec(), served[..2].to_vec())
    };
    done_with(cluster, &leaving).await;
    for name in waiting.iter().chain(&served) {
        cluster.running(name, SOON).await.unwrap();
    }
    let rest: Vec<_> = served.into_iter().chain(waiting).collect();
    done_with(cluster, &rest).await;
}

/// Five pods of two branches on nine slots: four are served whole, the fifth has nothing until a slot is free.
async fn d8_a_pod_gets_all_its_slots_or_none(cluster: &Cluster) {
    let names = named("pair", 5);
    for name in &names {
        let spec = PodSpec { branches: 2, ..PodSpec::branch(name, "node-1") };
        cluster.create(&spec).await.unwrap();
    }
    let last = poll::eventually("four have both branches, one was told", SOON, async || {
        let mut without = Vec::new();
        for name in &names {
            let pod =
                cluster.pod("default", name).await.map_err(|error| error.to_string())?.unwrap();
            if !pod.annotations().contains_key(ANNOTATION) {
                without.push((name.clone(), pod.uid().unwrap()));
            }
        }
        let [one] = without.as_slice() else { return Err(format!("{without:?}")) };
        Ok(one.clone())
    })
    .await
    .unwrap();
    cluster.event(&last.1, "TrunkFull", "Warning", SOON).await.unwrap();
    assert_eq!(made_for(cluster, &last.1).await, Vec::<String>::new());
    // One slot is free, but it is not this pod's turn: told once that has lasted (S81).
    let single = pod(cluster, "single", "node-1").await;
    let told = cluster.event(&single, "BranchENIWaiting", "Normal", SOON).await.unwrap();
    assert!(message(&told).contains("a pod that came earlier"), "{}", message(&told));
    let first = names.iter().find(|name| **name != last.0).unwrap().clone();
    done_with(cluster, std::slice::from_ref(&first)).await;
    assert_eq!(cluster.annotated(&last.0, SOON).await.unwrap().len(), 2);
    cluster.annotated("single", SOON).await.unwrap();
    let quick = cluster.pod("default", &last.0).await.unwrap().unwrap().uid().unwrap();
    let told = cluster.events_of(&quick).await.unwrap();
    assert!(!told.iter().any(|e| e.reason.as_deref() == Some("BranchENIWaiting")), "{told:?}");
    let single = ["single".to_owned()];
    let rest: Vec<_> = names.into_iter().filter(|name| *name != first).chain(single).collect();
    done_with(cluster, &rest).await;
}

async fn s20_ended_jobs_make_room(cluster: &Cluster) {
    let from = cluster.mark().await.unwrap();
    let jobs = named("job", 9);
    for name in &jobs {
        let spec =
            PodSpec::branch(name, "node-1").annotation("sim.trunkline.dev/exit-after", "500ms");
        cluster.create(&spec).await.unwrap();
    }
    let next = named("next", 9);
    for name in &next {
        pod(cluster, name, "node-1").await;
    }
    for name in &next {
        cluster.running(name, SOON).await.unwrap();
    }
    for name in &jobs {
        let job = cluster.pod("default", name).await.unwrap().unwrap();
        assert_eq!(
            job.status.unwrap().phase.as_deref(),
            Some("Succeeded"),
            "{name} is still there"
        );
        cluster.delete("default", name, true).await.unwrap();
    }
    done_with(cluster, &next).await;
    // Each of the eighteen was taken away once.
    for (action, parameter) in [
        ("DisassociateTrunkInterface", "AssociationId"),
        ("DeleteNetworkInterface", "NetworkInterfaceId"),
    ] {
        let calls = cluster.calls(action, from).await.unwrap();
        let good: Vec<_> = calls.iter().filter(|call| call.code.is_none()).collect();
        let ids: BTreeSet<_> = good.iter().map(|call| &call.params[parameter]).collect();
        assert_eq!((good.len(), ids.len()), (18, 18), "{action}");
    }
}

async fn s28_vlans_rotate(cluster: &Cluster) {
    let mut vlans = Vec::new();
    let mut enis = BTreeSet::new();
    let mut uids = Vec::new();
    for _ in 0..12 {
        uids.push(pod(cluster, "web-0", "node-1").await);
        cluster.running("web-0", SOON).await.unwrap();
        let branch = cluster.annotated("web-0", SOON).await.unwrap();
        vlans.push(branch[0].vlan);
        enis.insert(branch[0].eni_id.clone());
        cluster.delete("default", "web-0", false).await.unwrap();
        cluster.gone("web-0", SOON).await.unwrap();
    }
    assert_eq!(enis.len(), 12);
    assert_eq!(vlans.iter().collect::<BTreeSet<_>>().len(), 12, "{vlans:?}");
    for uid in uids {
        cluster.released(&uid, SOON).await.unwrap();
    }
}

/// S81 on VLANs: an agent without its record of them lets all rest, and both the pod and the node say so.
#[tokio::test]
async fn s81_a_pod_that_waits_for_a_vlan_is_told_and_the_node_shows_each_rest() {
    let options = Options::default()
        .timing("vlan_rest", Duration::from_secs(15))
        // How far a new record has to reach back.
        .timing("vlan_rest_unseen", Duration::from_secs(60));
    let Some(mut cluster) = cluster("s81", options).await else { return };
    let viewer = cluster.viewer().await.unwrap();
    pod(&cluster, "before", "node-1").await;
    cluster.running("before", SOON).await.unwrap();
    let host = cluster.nodes.node("node-1").await.unwrap().unwrap();
    cluster.stop_agent("node-1").await.unwrap();
    std::fs::remove_dir_all(&host.state_dir).unwrap();
    std::fs::create_dir_all(&host.state_dir).unwrap();
    cluster.restart_coordinator(0).unwrap();
    cluster.led(SOON).await.unwrap();
    cluster.start_agent("node-1").await.unwrap();
    cluster.agents_ready(SOON).await.unwrap();
    let uid = pod(&cluster, "after", "node-1").await;
    let told = cluster.event(&uid, "BranchENIWaiting", "Normal", SOON).await.unwrap();
    let sentence = message(&told);
    assert!(sentence.contains("still rests") && sentence.contains("has rested in"), "{sentence}");
    let node = cluster.trunkline(&viewer, &["node", "node-1", "-o", "json"]).await.unwrap();
    let node: Value = serde_json::from_str(&node).unwrap();
    let rests = node["vlans"].as_array().unwrap();
    assert_eq!(rests.len(), 119, "every VLAN but the one that a branch has");
    for rest in rests {
        assert_eq!(rest["why"]["reason"], "used", "{rest}");
        let (rested, left) =
            (rest["rested_ms"].as_u64().unwrap(), rest["rests_ms"].as_u64().unwrap());
        assert_eq!(rested + left, 15_000, "{rest}");
    }
    let status = cluster.trunkline(&viewer, &["status", "-o", "json"]).await.unwrap();
    let status: Value = serde_json::from_str(&status).unwrap();
    let buckets = status["buckets"].as_array().unwrap();
    let create = buckets.iter().find(|b| b["action"] == CREATE).unwrap();
    assert_eq!((&create["throttled"], &create["waiting"]), (&json!(0), &json!(0)));
    assert!(create["tokens"].as_f64() <= create["capacity"].as_f64(), "{create}");
    cluster.running("after", SOON).await.unwrap();
    cluster.finish().await.unwrap();
}
