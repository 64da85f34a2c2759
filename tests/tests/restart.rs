//! Restarts and changes of leader: nothing of a live pod is lost, nothing of an ended one is forgotten.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test's helpers")]

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Event, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use trunkline_sim::ec2::client::SimClient;
use trunkline_sim::ec2::fault::{Fault, FaultKind as Ec2Fault};
use trunkline_sim::ec2::model::{Effect, EniSpec, EniState, LogEntry, TagEdit};
use trunkline_sim::proxy::model::{FaultKind, FaultSpec, Match};
use trunkline_tests::cluster::{Cluster, NAME, Options};
use trunkline_tests::objects::{ANNOTATION, PodSpec};
use trunkline_tests::{deploy, poll, skipped};

const SOON: Duration = Duration::from_secs(40);
const POD_UID: &str = "trunkline.dev/pod-uid";

async fn cluster(test: &str, options: Options) -> Option<Cluster> {
    if let Some(why) = Cluster::missing() {
        skipped(test, &why);
        return None;
    }
    Some(Cluster::start(options).await.unwrap())
}

async fn run(cluster: &Cluster, name: &str, node: &str) -> Pod {
    let pod = cluster.create(&PodSpec::branch(name, node)).await.unwrap();
    cluster.running(name, SOON).await.unwrap();
    pod
}

/// The coordinators' calls from `from` on that changed something.
async fn mutations(cluster: &Cluster, from: u64) -> Vec<LogEntry> {
    let calls = cluster.ec2.log(from).await.unwrap();
    let ours = |call: &LogEntry| call.caller.starts_with(cluster.rules.callers);
    calls.into_iter().filter(|call| ours(call) && !call.action.starts_with("Describe")).collect()
}

async fn next_call(cluster: &Cluster) -> u64 {
    cluster.ec2_state().await.unwrap().seq + 1
}

async fn eni_of(cluster: &Cluster, uid: &str) -> Vec<EniState> {
    let state = cluster.ec2_state().await.unwrap();
    state.enis.into_iter().filter(|e| e.tags.get(POD_UID).is_some_and(|u| u == uid)).collect()
}

/// Positions in the log at which an ENI was disassociated and deleted.
async fn end_of(cluster: &Cluster, eni: &str) -> (Option<u64>, Option<u64>) {
    let (mut disassociated, mut deleted) = (None, None);
    for call in cluster.ec2.log(1).await.unwrap() {
        for effect in &call.effects {
            match effect {
                Effect::AssociationRemoved { branch, .. } if branch == eni => {
                    assert_eq!(call.action, "DisassociateTrunkInterface", "not a side effect (T5)");
                    disassociated = Some(call.seq);
                }
                Effect::EniDeleted { eni: gone, .. } if gone == eni => deleted = Some(call.seq),
                _ => {}
            }
        }
    }
    (disassociated, deleted)
}

#[tokio::test]
async fn s02_restarts_under_a_slow_api_change_nothing_in_ec2() {
    let options = Options::default().nodes(3).instance_type("m5.4xlarge").proxied();
    let Some(mut cluster) = cluster("s02", options).await else { return };
    let mut names = Vec::new();
    for number in 0..12 {
        let node = format!("node-{}", number % 3 + 1);
        let name = format!("branch-{number}");
        cluster.create(&PodSpec::branch(&name, &node)).await.unwrap();
        cluster.create(&PodSpec::branch(&format!("plain-{number}"), &node).plain()).await.unwrap();
        names.push(name);
    }
    let mut before = BTreeMap::new();
    for name in &names {
        cluster.running(name, SOON).await.unwrap();
        before.insert(name.clone(), cluster.annotated(name, SOON).await.unwrap());
    }
    let from = next_call(&cluster).await;
    let proxy = cluster.proxy.clone().unwrap();
    // The lease is left out: its own timeouts are shorter here than two seconds.
    let slow = async |path: &str| {
        let spec = FaultSpec::new(Match::request("GET", path), FaultKind::Delay { ms: 2_000 });
        proxy.add(&spec).await.unwrap()
    };
    let nodes = slow("/api/v1/nodes").await;
    slow("/cninodes").await;
    slow("/pods").await;
    slow("/configmaps").await;
    for round in 0..5 {
        let had = proxy.hits(nodes).await.unwrap();
        cluster.restart_coordinator(0).unwrap();
        // From "in the middle of its start" to "it leads".
        poll::eventually("it lists Nodes, slowly", SOON, async || {
            let hits = proxy.hits(nodes).await.map_err(|error| error.to_string())?;
            if hits > had { Ok(()) } else { Err(format!("{hits}")) }
        })
        .await
        .unwrap();
        if round == 2 {
            cluster.led(SOON).await.unwrap();
        }
        if round == 2 {
            cluster.restart_agent("node-1").await.unwrap();
        }
    }
    cluster.led(SOON).await.unwrap();
    cluster.agents_ready(SOON).await.unwrap();
    proxy.clear().await.unwrap();
    for name in &names {
        assert_eq!(cluster.annotated(name, SOON).await.unwrap(), before[name]);
        cluster.running(name, SOON).await.unwrap();
    }
    let changed = mutations(&cluster, from).await;
    assert!(changed.is_empty(), "{changed:?}");
    run(&cluster, "after", "node-2").await;
    cluster.finish().await.unwrap();
}

#[tokio::test]
async fn s17_an_empty_continue_token_ends_a_list() {
    let Some(mut cluster) = cluster("s17", Options::default().proxied()).await else { return };
    run(&cluster, "before", "node-1").await;
    let proxy = cluster.proxy.clone().unwrap();
    let empty =
        proxy.add(&FaultSpec::new(Match::default(), FaultKind::EmptyContinue)).await.unwrap();
    let from = proxy.log(1).await.unwrap().len() as u64 + 1;
    cluster.restart_agent("node-1").await.unwrap();
    cluster.restart_coordinator(0).unwrap();
    cluster.led(SOON).await.unwrap();
    cluster.agents_ready(SOON).await.unwrap();
    run(&cluster, "after", "node-1").await;
    assert!(proxy.hits(empty).await.unwrap() >= 2, "lists of both were changed");
    // A page that ends in an empty token is the last one: each list is one request, and none asks for more.
    let log = proxy.log(from).await.unwrap();
    let by_agent = Match::agent_of("node-1");
    let selector = by_agent.query.unwrap();
    let lists: Vec<_> = log
        .iter()
        .filter(|r| r.event.is_none() && r.caller.ends_with(deploy::AGENT))
        .filter(|r| r.query.contains(&selector) && !r.query.contains("watch="))
        .collect();
    assert_eq!(lists.len(), 1, "{lists:?}");
    assert!(log.iter().all(|r| !r.query.contains("continue=")), "nobody follows an empty token");
    cluster.finish().await.unwrap();
}

#[tokio::test]
async fn s03_d12_t5_what_ended_while_nobody_led_or_cools_down_is_released_by_the_rules() {
    let options = Options::default().nodes(2).timing("cooldown_default", Duration::from_secs(8));
    let Some(mut cluster) = cluster("s03", options).await else { return };
    // S03: only the coordinator was away. D12, T5: the agent too, and its record of the pod.
    let a = run(&cluster, "a", "node-1").await;
    let orphan = run(&cluster, "orphan", "node-2").await;
    let of_a = cluster.annotated("a", SOON).await.unwrap().remove(0);
    let of_orphan = cluster.annotated("orphan", SOON).await.unwrap().remove(0);
    cluster.coordinators[0].process.kill();
    cluster.stop_agent("node-2").await.unwrap();
    cluster.delete("default", "a", true).await.unwrap();
    cluster.delete("default", "orphan", true).await.unwrap();
    cluster.create(&PodSpec::branch("b", "node-1")).await.unwrap();
    let state_dir = cluster.nodes.node("node-2").await.unwrap().unwrap().state_dir;
    poll::eventually("the orphan's node is done with it", SOON, async || {
        let pods = cluster.nodes.pods().await.map_err(|e| e.to_string())?;
        if pods.iter().any(|p| p.name == "orphan") { Err("still there".to_owned()) } else { Ok(()) }
    })
    .await
    .unwrap();
    for entry in std::fs::read_dir(state_dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::remove_file(path).unwrap();
        }
    }
    cluster.restart_coordinator(0).unwrap();
    cluster.led(SOON).await.unwrap();
    cluster.start_agent("node-2").await.unwrap();
    cluster.running("b", SOON).await.unwrap();
    let of_b = cluster.annotated("b", SOON).await.unwrap().remove(0);
    for (pod, branch) in [(a, of_a), (orphan, of_orphan)] {
        cluster.released(&pod.uid().unwrap(), SOON).await.unwrap();
        let (disassociated, deleted) = end_of(&cluster, &branch.eni_id).await;
        assert!(disassociated.is_some() && disassociated < deleted, "{}", branch.eni_id);
        // B may have waited for A's VLAN to rest; I2 judges that.
        assert_ne!(of_b.eni_id, branch.eni_id);
    }
    let calls = cluster.ec2.log(1).await.unwrap();
    let vlan_errors: Vec<_> =
        calls.iter().filter(|c| c.code.as_deref().is_some_and(|c| c.contains("Vlan"))).collect();
    assert!(vlan_errors.is_empty(), "{vlan_errors:?}");
    restart_in_the_cooldown(&mut cluster).await;
    cluster.finish().await.unwrap();
}

/// A restart in the cooldown forgets nothing and shortens nothing.
async fn restart_in_the_cooldown(cluster: &mut Cluster) {
    let pod = run(cluster, "cools", "node-1").await;
    let eni = cluster.annotated("cools", SOON).await.unwrap().remove(0).eni_id;
    cluster.delete("default", "cools", false).await.unwrap();
    poll::eventually("it is disassociated", SOON, async || {
        end_of(cluster, &eni).await.0.ok_or("not yet")
    })
    .await
    .unwrap();
    cluster.restart_coordinator(0).unwrap();
    cluster.led(SOON).await.unwrap();
    assert_eq!(eni_of(cluster, &pod.uid().unwrap()).await.len(), 1, "deleted in the cooldown");
    // An ENI that a new leader finds available may have an Associate under way until the old leader's calls have ended and
    // show; only then the cooldown begins.
    cluster.released(&pod.uid().unwrap(), SOON * 2).await.unwrap();
    let (disassociated, deleted) = end_of(cluster, &eni).await;
    let calls = cluster.ec2.log(1).await.unwrap();
    let at = |seq: Option<u64>| calls.iter().find(|c| Some(c.seq) == seq).unwrap().mono_ms;
    let rested = at(deleted) - at(disassociated);
    assert!(rested >= 8_000, "{rested} ms");
}

#[tokio::test]
async fn s08_mig_4_an_eni_that_is_not_associated_yet_and_those_of_the_peer_outlive_restarts() {
    let options = Options::default().timing("inventory_interval", Duration::from_secs(3));
    let Some(mut cluster) = cluster("s08", options).await else { return };
    between_create_and_associate(&mut cluster).await;
    branches_of_the_peer(&mut cluster).await;
    cluster.finish().await.unwrap();
}

/// S08: it outlives sweeps of this coordinator and of the next.
async fn between_create_and_associate(cluster: &mut Cluster) {
    let refused =
        Ec2Fault::Error { status: 500, code: "InternalError".to_owned(), message: String::new() };
    let fault = Fault::on("AssociateTrunkInterface", refused);
    let fault = cluster.ec2.inject(&fault).await.unwrap();
    let pod = cluster.create(&PodSpec::branch("early", "node-1")).await.unwrap();
    let uid = pod.uid().unwrap();
    let made = poll::eventually("its ENI is made", SOON, async || {
        eni_of(cluster, &uid).await.pop().ok_or("not yet")
    })
    .await
    .unwrap();
    let sweeps = async |cluster: &Cluster, from: u64| {
        poll::eventually("two sweeps", SOON, async || {
            let calls = cluster.ec2.log(from).await.map_err(|error| error.to_string())?;
            let by_tag = |c: &&LogEntry| {
                c.action == "DescribeNetworkInterfaces"
                    && c.params.values().any(|v| v.contains("kubernetes.io/cluster/"))
            };
            let sweeps = calls.iter().filter(by_tag).count();
            if sweeps >= 2 { Ok(()) } else { Err(format!("{sweeps}")) }
        })
        .await
        .unwrap();
        let enis = eni_of(cluster, &uid).await;
        assert_eq!(enis.len(), 1);
        assert_eq!((&enis[0].id, enis[0].association.is_none()), (&made.id, true));
    };
    sweeps(cluster, next_call(cluster).await).await;
    let from = next_call(cluster).await;
    cluster.restart_coordinator(0).unwrap();
    cluster.led(SOON).await.unwrap();
    sweeps(cluster, from).await;
    cluster.ec2.clear_faults(Some(&fault)).await.unwrap();
    cluster.running("early", SOON).await.unwrap();
    let branch = cluster.annotated("early", SOON).await.unwrap();
    assert_eq!(branch[0].eni_id, made.id, "the pod is served by the ENI that was made for it");
}

/// MIG-4: kept, told, and not doubled.
async fn branches_of_the_peer(cluster: &mut Cluster) {
    // What the peer leaves behind: everything but our own tags.
    let pod = run(cluster, "peers", "node-1").await;
    let uid = pod.uid().unwrap();
    let branch = cluster.annotated("peers", SOON).await.unwrap().remove(0);
    cluster.coordinators[0].process.kill();
    let tags = cluster.ec2_state().await.unwrap().eni(&branch.eni_id).unwrap().tags.clone();
    let remove: Vec<String> =
        tags.keys().filter(|key| key.starts_with("trunkline.dev/")).cloned().collect();
    assert!(remove.contains(&POD_UID.to_owned()));
    let edit = TagEdit { id: branch.eni_id.clone(), set: BTreeMap::new(), remove };
    cluster.ec2.edit_tags(&edit).await.unwrap();
    // And a branch that no pod names.
    let state = cluster.ec2_state().await.unwrap();
    let trunk = state.enis.iter().find(|e| e.interface_type == "trunk").unwrap();
    let mut left_tags = tags.clone();
    left_tags.retain(|key, _| !key.starts_with("trunkline.dev/"));
    left_tags.insert("vpcresources.k8s.aws/vlan-id".to_owned(), "77".to_owned());
    assert_eq!(left_tags[&format!("kubernetes.io/cluster/{NAME}")], "owned");
    let left = EniSpec {
        interface_type: "branch".to_owned(),
        tags: left_tags,
        trunk: Some(trunk.id.clone()),
        vlan: Some(77),
        ..EniSpec::default()
    };
    let left = cluster.ec2.add_eni(&left).await.unwrap();
    cluster.rules.kept.extend([branch.eni_id.clone(), left.clone()]);
    cluster.rules.excused.insert(uid.clone());
    let from = next_call(cluster).await;
    cluster.restart_coordinator(0).unwrap();
    cluster.led(SOON).await.unwrap();
    cluster.restart_agent("node-1").await.unwrap();
    cluster.agents_ready(SOON).await.unwrap();
    let next = run(cluster, "next", "node-1").await;
    let events: Api<Event> = Api::all(cluster.admin.clone());
    poll::eventually("both are told", SOON, async || {
        let all = events.list(&ListParams::default()).await.map_err(|e| e.to_string())?;
        let told = |eni: &str| {
            all.items.iter().any(|e| {
                e.type_.as_deref() == Some("Warning")
                    && e.message.as_deref().unwrap_or_default().contains(eni)
            })
        };
        if told(&branch.eni_id) && told(&left) { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await
    .unwrap();
    poll::throughout("both are left alone", Duration::from_secs(8), async || {
        let state = cluster.ec2_state().await.map_err(|e| e.to_string())?;
        for eni in [&branch.eni_id, &left] {
            let kept = state.eni(eni).is_some_and(|e| e.association.is_some());
            if !kept {
                return Err(format!("{eni} is not as it was"));
            }
        }
        Ok(())
    })
    .await
    .unwrap();
    let now = cluster.pod("default", "peers").await.unwrap().unwrap();
    assert_eq!(now.annotations().get(ANNOTATION), pod_annotation(&branch).as_ref());
    cluster.running("peers", SOON).await.unwrap();
    let made: BTreeSet<String> = mutations(cluster, from)
        .await
        .iter()
        .flat_map(|call| &call.effects)
        .filter_map(|effect| match effect {
            Effect::EniCreated { tags, .. } => tags.get(POD_UID).cloned(),
            _ => None,
        })
        .collect();
    assert_eq!(made, BTreeSet::from([next.uid().unwrap()]), "a second ENI for a pod that has one");
    let taken = cluster.annotated("next", SOON).await.unwrap().remove(0).vlan;
    assert!(taken != 77 && taken != branch.vlan);
}

fn pod_annotation(branch: &trunkline_tests::invariants::annotation::Branch) -> Option<String> {
    serde_json::to_string(&[branch]).ok()
}

async fn lease(cluster: &Cluster) -> (LeaseSpec, BTreeMap<String, String>) {
    let leases: Api<Lease> = Api::namespaced(cluster.admin.clone(), "kube-system");
    let lease = leases.get("cp-vpc-resource-controller").await.unwrap();
    (lease.spec.clone().unwrap(), lease.annotations().clone())
}

async fn epoch(cluster: &Cluster) -> u64 {
    let maps: Api<ConfigMap> = Api::namespaced(cluster.admin.clone(), deploy::NAMESPACE);
    let state = maps.get("trunkline-state").await.unwrap();
    state.data.unwrap()["epoch"].parse().unwrap()
}

/// This one of the coordinators leads and is ready; the other need not run.
async fn leads(cluster: &mut Cluster, which: usize) {
    poll::eventually("it leads", SOON, async || {
        match cluster.leader().await {
            Ok(Some(index)) if index == which => {}
            other => return Err(format!("{other:?}")),
        }
        let health = SimClient::new(&cluster.coordinators[which].health);
        let answer = health.send(http::Method::GET, "/readyz", &[], String::new()).await;
        let answer = answer.map_err(|error| error.to_string())?;
        if answer.status == 200 { Ok(()) } else { Err(answer.body) }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn leadership_changes_hands_by_client_gos_rules_and_every_term_has_a_higher_epoch() {
    let Some(mut cluster) = cluster("election", Options::default().coordinators(2)).await else {
        return;
    };
    let first = cluster.led(SOON).await.unwrap();
    let (spec, annotations) = lease(&cluster).await;
    let holder = spec.holder_identity.clone().unwrap();
    let pod = cluster.coordinators[first].pod.uid().unwrap();
    assert!(holder.starts_with(&pod) && holder.len() > pod.len(), "{holder}");
    assert_eq!(spec.lease_duration_seconds, Some(6));
    assert_eq!(spec.lease_transitions, Some(0));
    assert!(spec.acquire_time.is_some() && spec.renew_time >= spec.acquire_time);
    let address = "trunkline.dev/leader-address";
    assert_eq!(annotations[address], cluster.coordinators[first].address());
    let renewed = spec.renew_time.clone();
    poll::eventually("the lease is renewed", SOON, async || {
        let (now, _) = lease(&cluster).await;
        assert_eq!(now.acquire_time, spec.acquire_time, "renewing is not acquiring");
        if now.renew_time > renewed { Ok(()) } else { Err("not yet") }
    })
    .await
    .unwrap();
    let epoch_1 = epoch(&cluster).await;
    run(&cluster, "first", "node-1").await;

    // SIGTERM: the lease is given up, so that the other need not wait for it to run out.
    let ended = cluster.coordinators[first].process.stop(Duration::from_secs(20)).await.unwrap();
    assert!(ended.success(), "{ended}");
    let leases: Api<Lease> = Api::namespaced(cluster.admin.clone(), "kube-system");
    leads(&mut cluster, 1 - first).await;
    let (spec, annotations) = lease(&cluster).await;
    assert!(!spec.holder_identity.clone().unwrap().starts_with(&pod));
    assert_eq!(spec.lease_transitions, Some(1));
    assert_eq!(annotations[address], cluster.coordinators[1 - first].address());
    let epoch_2 = epoch(&cluster).await;
    assert!(epoch_2 > epoch_1, "{epoch_1}, then {epoch_2}");
    run(&cluster, "second", "node-1").await;

    // SIGTERM with nobody to follow: nobody holds it, and it says so.
    let second = 1 - first;
    cluster.coordinators[second].process.stop(Duration::from_secs(20)).await.unwrap();
    let (spec, annotations) = lease(&cluster).await;
    assert_eq!(spec.holder_identity.as_deref().unwrap_or_default(), "");
    assert!(!annotations.contains_key(address), "{annotations:?}");
    assert_eq!(spec.lease_transitions, Some(1));

    // SIGKILL: the lease runs out by its own duration, not before.
    cluster.restart_coordinator(first).unwrap();
    leads(&mut cluster, first).await;
    let epoch_3 = epoch(&cluster).await;
    assert!(epoch_3 > epoch_2);
    cluster.restart_coordinator(second).unwrap();
    cluster.coordinators[first].process.signal(Signal::KILL).unwrap();
    let last = leases.get("cp-vpc-resource-controller").await.unwrap().spec.unwrap();
    leads(&mut cluster, 1 - first).await;
    let (spec, _) = lease(&cluster).await;
    let waited = spec.acquire_time.unwrap().0.duration_since(last.renew_time.unwrap().0);
    assert!(waited.as_secs() >= 5, "taken over after {waited:?}, the lease lasts 6 s");
    assert!(epoch(&cluster).await > epoch_3);
    assert_eq!(spec.lease_transitions, last.lease_transitions.map(|n| n + 1));
    cluster.agents_ready(SOON).await.unwrap();
    run(&cluster, "third", "node-1").await;
    cluster.restart_coordinator(first).unwrap();
    cluster.finish().await.unwrap();
}
