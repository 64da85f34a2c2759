//! Faults of EC2 on the whole program (`ec2.md` §14), and the other side of everything that is not known about it (§13).
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test's helpers")]

use kube::ResourceExt as _;
use serde_json::json;
use std::time::Duration;
use trunkline_sim::ec2::fault::{Fault, FaultKind, PageFault};
use trunkline_sim::ec2::model::{Effect, LogEntry};
use trunkline_sim::node::model::KubeletAction;
use trunkline_tests::cluster::ask::message;
use trunkline_tests::cluster::campaign::{SOON, Served};
use trunkline_tests::cluster::{Cluster, Options};
use trunkline_tests::invariants::evidence::POD_UID;
use trunkline_tests::objects::PodSpec;
use trunkline_tests::poll;

const CREATE: &str = "CreateNetworkInterface";
const ASSOCIATE: &str = "AssociateTrunkInterface";
const DISASSOCIATE: &str = "DisassociateTrunkInterface";
const DELETE: &str = "DeleteNetworkInterface";
const DESCRIBE: &str = "DescribeNetworkInterfaces";

fn error(status: u16, code: &str) -> FaultKind {
    FaultKind::Error { status, code: code.to_owned(), message: String::new() }
}

/// Every ENI that was ever made for this pod.
async fn made_for(cluster: &Cluster, uid: &str) -> Vec<String> {
    let log = cluster.ec2.log(1).await.unwrap();
    let of_pod = |effect: Effect| match effect {
        Effect::EniCreated { eni, tags, .. } => {
            tags.get(POD_UID).is_some_and(|tag| tag == uid).then_some(eni)
        }
        _ => None,
    };
    log.into_iter().flat_map(|call| call.effects).filter_map(of_pod).collect()
}

/// The coordinators' calls since `from` that changed something. The replay of a client token changes nothing.
async fn changes(cluster: &Cluster, from: u64) -> Vec<LogEntry> {
    let log = cluster.ec2.log(from).await.unwrap();
    let ours = |call: &LogEntry| call.caller.starts_with(cluster.rules.callers);
    log.into_iter().filter(|call| ours(call) && !call.effects.is_empty()).collect()
}

#[tokio::test]
async fn s44_replies_that_are_cut_odd_slow_or_refused() {
    let Some(cluster) = Cluster::for_test("s44 odd", Options::default()).await.unwrap() else {
        return;
    };
    let live = vec![cluster.serve("live", "node-1").await.unwrap()];
    odd_replies(&cluster).await;
    a_token_that_mismatches_on_replay(&cluster).await;
    cluster.still_served(&live).await.unwrap();
    cluster.conclude("s44 odd").await.unwrap();
}

#[tokio::test]
async fn s19_s22_t4_releases_that_are_refused_or_fail_for_a_while() {
    // As in production, slots are busy for less than a cooldown.
    let options = Options::default().timing("cooldown_default", Duration::from_secs(4));
    let Some(cluster) = Cluster::for_test("s22", options).await.unwrap() else { return };
    let live = vec![cluster.serve("live", "node-1").await.unwrap()];
    s22_disassociate_that_says_not_found(&cluster).await;
    s22_disassociate_without_the_right(&cluster).await;
    busy_slots(&cluster).await;
    s19_deletes_that_fail_for_a_while(&cluster).await;
    cluster.still_served(&live).await.unwrap();
    cluster.conclude("s22").await.unwrap();
}

/// §14.3–5, 21–24: each once on each call of a pod's life. One ENI each, and nothing left of it.
async fn odd_replies(cluster: &Cluster) {
    let body = |status: u16, body: &str, content_type: &str| FaultKind::Body {
        status,
        body: body.to_owned(),
        content_type: content_type.to_owned(),
    };
    let xml = "text/xml;charset=UTF-8";
    let inside = "<Response><Errors><Error><Code>InternalError</Code><Message>x</Message></Error></Errors>\
                  <RequestID>r</RequestID></Response>";
    let kinds = [
        ("cut", FaultKind::CutBody { percent: 50, bad_framing: false }),
        ("broken", FaultKind::CutBody { percent: 50, bad_framing: true }),
        ("empty", body(200, "", xml)),
        ("wrong-root", body(200, "<DescribeRegionsResponse/>", xml)),
        ("error-in-200", body(200, inside, xml)),
        ("html-502", body(502, "<html><body>Bad Gateway</body></html>", "text/html")),
        ("lost", FaultKind::LoseReply { stall_ms: 0 }),
        (
            "committed-500",
            FaultKind::CommitThenError { status: 500, code: "InternalError".to_owned() },
        ),
        ("refused-503", error(503, "Unavailable")),
        ("no-code", error(500, "")),
        ("throttle-400", FaultKind::Throttle { status: 400, retry_after_ms: Some(300) }),
        ("clock", FaultKind::Date { offset_s: 600 }),
        ("drip", FaultKind::Drip { ms: 1_500 }),
        ("slow", FaultKind::Slow { ms: 1_500 }),
    ];
    let mut pods = Vec::new();
    for (name, kind) in &kinds {
        let mut set = Vec::new();
        for action in [CREATE, ASSOCIATE] {
            set.push(cluster.ec2_fault(&Fault::on(action, kind.clone()).times(1)).await.unwrap());
        }
        let pod = cluster.serve(name, "node-1").await.unwrap();
        assert_eq!(made_for(cluster, &pod.uid).await, std::slice::from_ref(&pod.eni), "{name}");
        for action in [DISASSOCIATE, DELETE] {
            set.push(cluster.ec2_fault(&Fault::on(action, kind.clone()).times(1)).await.unwrap());
        }
        cluster.delete("default", name, false).await.unwrap();
        pods.push((pod, set));
        // Nine branches fit: the oldest makes room.
        if pods.len() >= 5 {
            let (pod, set) = pods.remove(0);
            over(cluster, &pod, &set).await;
        }
    }
    for (pod, set) in pods {
        over(cluster, &pod, &set).await;
    }
}

async fn over(cluster: &Cluster, pod: &Served, faults: &[String]) {
    cluster.released(&pod.uid, SOON).await.unwrap();
    for fault in faults {
        cluster.ec2_struck(fault, 1).await.unwrap();
    }
}

/// §14.16: the reply to Create is lost and its repeat is told a mismatch: the ENI is found by its tag.
async fn a_token_that_mismatches_on_replay(cluster: &Cluster) {
    let lost = Fault::on(CREATE, FaultKind::LoseReply { stall_ms: 0 }).times(1);
    cluster.ec2_fault(&lost).await.unwrap();
    let mismatch = error(400, "IdempotentParameterMismatch");
    let mismatch =
        cluster.ec2_fault(&Fault::on(CREATE, mismatch).from_nth(2).times(1)).await.unwrap();
    let pod = cluster.serve("mismatch", "node-1").await.unwrap();
    cluster.ec2_struck(&mismatch, 1).await.unwrap();
    assert_eq!(made_for(cluster, &pod.uid).await, std::slice::from_ref(&pod.eni));
    cluster.delete("default", "mismatch", false).await.unwrap();
    cluster.released(&pod.uid, SOON).await.unwrap();
}

/// S22 (a), §14.15: it is gone, and the reply says that it never was.
async fn s22_disassociate_that_says_not_found(cluster: &Cluster) {
    let kind = FaultKind::AssociationNotFound { removed: true };
    let fault = cluster.ec2_fault(&Fault::on(DISASSOCIATE, kind).times(1)).await.unwrap();
    let pod = cluster.serve("not-found", "node-1").await.unwrap();
    cluster.delete("default", &pod.name, false).await.unwrap();
    cluster.ec2_struck(&fault, 1).await.unwrap();
    cluster.released(&pod.uid, SOON).await.unwrap();
}

/// S22 (c): the role lost the right. An event, no hot loop, everything else goes on; it ends when the right is back.
async fn s22_disassociate_without_the_right(cluster: &Cluster) {
    let pod = cluster.serve("no-right", "node-1").await.unwrap();
    let from = cluster.mark().await.unwrap();
    let refused = json!({ "unauthorized": [{ "action": DISASSOCIATE }] });
    cluster.ec2.set_switches(&refused).await.unwrap();
    cluster.delete("default", &pod.name, false).await.unwrap();
    cluster.off_node(&pod.uid).await.unwrap();
    let tries = async || cluster.calls(DISASSOCIATE, from).await.unwrap().len();
    poll::eventually("it was tried three times", SOON, async || {
        let tries = tries().await;
        if tries >= 3 { Ok(()) } else { Err(tries) }
    })
    .await
    .unwrap();
    cluster.serve("meanwhile", "node-1").await.unwrap();
    let events = cluster.events_of(&pod.uid).await.unwrap();
    let told: Vec<_> =
        events.iter().filter(|e| message(e).contains("UnauthorizedOperation")).collect();
    assert_eq!(told.len(), 1, "{events:?}");
    // The durations of these tests space tries two seconds apart.
    assert!(tries().await <= 40, "a hot loop");
    cluster.ec2.set_switches(&json!({ "unauthorized": [] })).await.unwrap();
    cluster.released(&pod.uid, SOON).await.unwrap();
}

/// §14.15: 200, and VLAN and slot stay busy for almost the whole cooldown.
async fn busy_slots(cluster: &Cluster) {
    let busy = Fault::on(DISASSOCIATE, FaultKind::SlotBusy { ms: 3_500 }).times(2);
    let busy = cluster.ec2_fault(&busy).await.unwrap();
    for name in ["busy-1", "busy-2"] {
        let pod = cluster.serve(name, "node-1").await.unwrap();
        cluster.delete("default", name, false).await.unwrap();
        cluster.released(&pod.uid, SOON).await.unwrap();
        cluster.serve(&format!("after-{name}"), "node-1").await.unwrap();
    }
    cluster.ec2_struck(&busy, 2).await.unwrap();
}

/// S19, T4, §14.14: the trunk is full and deletes fail, in both spellings of "in use" and otherwise. The slot is free after
/// the disassociation; the deletes are repeated until they go through.
async fn s19_deletes_that_fail_for_a_while(cluster: &Cluster) {
    let kinds = [
        FaultKind::InUse { documented: false },
        FaultKind::InUse { documented: true },
        error(500, "InternalError"),
    ];
    let mut faults = Vec::new();
    for kind in kinds {
        let mut fault = Fault::on(DELETE, kind);
        fault.every = Some(3);
        fault.nth = Some(faults.len() as u64 + 1);
        faults.push(cluster.ec2_fault(&fault).await.unwrap());
    }
    let mut full = Vec::new();
    loop {
        let state = cluster.ec2_state().await.unwrap();
        if state.enis.iter().filter(|eni| eni.association.is_some()).count() >= 9 {
            break;
        }
        full.push(cluster.serve(&format!("full-{}", full.len()), "node-1").await.unwrap());
    }
    let ended: Vec<_> = full.drain(..2).collect();
    for pod in &ended {
        cluster.delete("default", &pod.name, false).await.unwrap();
    }
    for number in 0..2 {
        cluster.serve(&format!("takes-slot-{number}"), "node-1").await.unwrap();
    }
    for fault in &faults {
        cluster.ec2_struck(fault, 1).await.unwrap();
    }
    let left = made_for(cluster, &ended[0].uid).await;
    assert!(cluster.ec2_state().await.unwrap().eni(&left[0]).is_some(), "deletes do fail");
    for fault in &faults {
        cluster.ec2_heals(fault).await.unwrap();
    }
    for pod in ended {
        cluster.released(&pod.uid, SOON).await.unwrap();
    }
}

/// Six pods on two nodes.
async fn six_pods(test: &str) -> Option<(Cluster, Vec<Served>)> {
    let options = Options::default()
        .nodes(2)
        .instance_type("m5.2xlarge")
        .timing("inventory_interval", Duration::from_secs(3))
        // As in production, longer than a trunk is hidden here.
        .timing("trunk_hidden", Duration::from_secs(60));
    let cluster = Cluster::for_test(test, options).await.unwrap()?;
    let mut live = Vec::new();
    for number in 0..6 {
        let node = format!("node-{}", number % 2 + 1);
        live.push(cluster.serve(&format!("live-{number}"), &node).await.unwrap());
    }
    Some((cluster, live))
}

#[tokio::test]
async fn s07_describes_that_omit_a_trunk_or_page_badly() {
    let Some((mut cluster, live)) = six_pods("s07 ec2").await else { return };
    s07_a_trunk_and_its_branches_that_are_not_shown(&mut cluster, &live).await;
    inventories_that_page_badly(&mut cluster, &live).await;
    cluster.conclude("s07 ec2").await.unwrap();
}

#[tokio::test]
async fn s23_replicas_that_lag_and_a_brown_out() {
    let Some((mut cluster, live)) = six_pods("s23").await else { return };
    replicas_that_lag(&cluster).await;
    s23_a_brown_out(&mut cluster, &live).await;
    cluster.conclude("s23").await.unwrap();
}

/// S07: after a reboot, EC2 shows neither trunk nor branches for a while; then the leader changes, too.
async fn s07_a_trunk_and_its_branches_that_are_not_shown(cluster: &mut Cluster, live: &[Served]) {
    let from = cluster.mark().await.unwrap();
    let state = cluster.ec2_state().await.unwrap();
    let instance = cluster.nodes.node("node-1").await.unwrap().unwrap().instance.unwrap();
    let trunk = state.trunk_of(&instance).unwrap().id.clone();
    let on_trunk = |eni: &&trunkline_sim::ec2::model::EniState| {
        eni.association.as_ref().is_some_and(|a| a.trunk == trunk)
    };
    let mut enis: Vec<_> = state.enis.iter().filter(on_trunk).map(|eni| eni.id.clone()).collect();
    assert_eq!(enis.len(), 3);
    enis.push(trunk.clone());
    let hidden = Fault::on("Describe*", FaultKind::Hide { enis });
    let hidden = cluster.ec2_fault(&hidden).await.unwrap();
    cluster.nodes.kubelet("node-1", KubeletAction::Reboot).await.unwrap();
    // A reboot ends the agent, too.
    cluster.replace_agent("node-1").await.unwrap();
    cluster.restart_coordinator(0).unwrap();
    cluster.led(SOON).await.unwrap();
    cluster.ec2_struck(&hidden, 6).await.unwrap();
    poll::throughout("nothing changes", Duration::from_secs(10), async || {
        let changed = changes(cluster, from).await;
        if changed.is_empty() { Ok(()) } else { Err(format!("{changed:?}")) }
    })
    .await
    .unwrap();
    cluster.ec2_heals(&hidden).await.unwrap();
    cluster.still_served(live).await.unwrap();
    cluster.serve("after-hiding", "node-1").await.unwrap();
    let state = cluster.ec2_state().await.unwrap();
    assert_eq!(state.trunk_of(&instance).unwrap().id, trunk);
    assert_eq!(state.enis.iter().filter(|eni| eni.interface_type == "trunk").count(), 2);
}

/// §14.20, under leaders that start: whatever a page leaves out or repeats, nothing is concluded from it.
async fn inventories_that_page_badly(cluster: &mut Cluster, live: &[Served]) {
    for (name, kind) in [
        ("skipped", FaultKind::Page { how: PageFault::SkipItem }),
        ("doubled", FaultKind::Page { how: PageFault::DoubleItem }),
        ("short", FaultKind::Page { how: PageFault::Short }),
        ("empty-token", FaultKind::Page { how: PageFault::EmptyToken }),
        ("cut", FaultKind::CutBody { percent: 70, bad_framing: false }),
        ("elements", FaultKind::Omit { elements: vec!["tagSet".to_owned(), "status".to_owned()] }),
    ] {
        let from = cluster.mark().await.unwrap();
        let fault = cluster.ec2_fault(&Fault::on(DESCRIBE, kind).times(6)).await.unwrap();
        cluster.restart_coordinator(0).unwrap();
        cluster.ec2_struck(&fault, 2).await.unwrap();
        cluster.led(SOON).await.unwrap();
        cluster.ec2_heals(&fault).await.unwrap();
        let pod = cluster.serve(&format!("after-{name}"), "node-1").await.unwrap();
        cluster.still_served(live).await.unwrap();
        assert_eq!(cluster.releases(from).await.unwrap(), [], "{name}");
        assert_eq!(made_for(cluster, &pod.uid).await.len(), 1, "{name}");
        cluster.delete("default", &pod.name, false).await.unwrap();
        cluster.released(&pod.uid, SOON).await.unwrap();
    }
}

/// §14.6–8: half of all describes come from a replica that is seconds behind, deleted ENIs are listed for long.
async fn replicas_that_lag(cluster: &Cluster) {
    let lag = json!({ "lag": { "stale_share": 0.5, "stale": [0, 4_000], "create_list": [0, 8_000],
        "create_by_id": [0, 2_500], "delete_list": [0, 10_000], "disassociate_list": [0, 10_000] } });
    cluster.ec2.set_switches(&lag).await.unwrap();
    let mut ended = Vec::new();
    for number in 0..4 {
        let pod = cluster.serve(&format!("lag-{number}"), "node-2").await.unwrap();
        assert_eq!(made_for(cluster, &pod.uid).await, std::slice::from_ref(&pod.eni));
        cluster.delete("default", &pod.name, number % 2 == 0).await.unwrap();
        ended.push(pod.uid);
    }
    for uid in ended {
        cluster.released(&uid, SOON).await.unwrap();
    }
    let back = json!({ "lag": { "stale_share": 0.0, "create_list": [0, 2_000],
        "create_by_id": [0, 1_000], "delete_list": [0, 2_000] } });
    cluster.ec2.set_switches(&back).await.unwrap();
}

/// S23, §14.25: a third of all calls fails and the rest is slow, with a change of leader in the middle; then all is well
/// again, with a full backlog.
async fn s23_a_brown_out(cluster: &mut Cluster, live: &[Served]) {
    let mut out = Fault::on("*", error(503, "Unavailable"));
    // Half of all calls: however few a busy machine makes of them, enough are struck.
    out.probability = Some(0.5);
    let out = cluster.ec2_fault(&out).await.unwrap();
    cluster.ec2.set_latency(400).await.unwrap();
    let mut made = Vec::new();
    let mut ended = Vec::new();
    for number in 0..8 {
        let name = format!("brown-{number}");
        let node = format!("node-{}", number % 2 + 1);
        let pod = cluster.create(&PodSpec::branch(&name, &node)).await.unwrap();
        made.push((name, pod.uid().unwrap()));
        if number == 3 {
            cluster.restart_coordinator(0).unwrap();
        }
    }
    for (name, uid) in made.drain(..4) {
        cluster.delete("default", &name, true).await.unwrap();
        ended.push(uid);
    }
    cluster.ec2_struck(&out, 10).await.unwrap();
    cluster.ec2_heals(&out).await.unwrap();
    cluster.ec2.set_latency(0).await.unwrap();
    for (name, _) in &made {
        cluster.running(name, SOON).await.unwrap();
    }
    for uid in ended {
        cluster.released(&uid, SOON).await.unwrap();
    }
    cluster.still_served(live).await.unwrap();
}

/// The other side of every switch that a pod's life can meet (§13), at once, under loss.
#[tokio::test]
async fn s44_the_other_side_of_what_is_not_known() {
    let Some(mut cluster) = Cluster::for_test("s44 other", Options::default()).await.unwrap()
    else {
        return;
    };
    let other = json!({
        "already_associated_code": "InvalidNetworkInterface.InUse",
        "branch_limit_code": "InvalidParameterValue",
        "disassociated_type": "interface",
        "create_replay_after_delete": "mismatch",
        "associations_api": "unauthorized",
        "addresses_lifo": true,
        "unknown_filter_code": "InvalidFilter",
        "refuse_branch_type": true,
        "chunked": false,
        "throttle": { "slow_trunk_actions": true, "failures_spend": false },
        "limits": { "vlan_max": 120 },
        "lag": { "pending": [1_000, 2_000], "disassociate": [2_000, 2_000], "associate": [0, 2_000],
            "tags": [0, 1_000], "create_by_id": [1_000, 2_000] },
    });
    cluster.ec2.set_switches(&other).await.unwrap();
    let live = vec![cluster.serve("live", "node-1").await.unwrap()];
    for action in [CREATE, ASSOCIATE, DISASSOCIATE, DELETE] {
        for times in [1, 5] {
            let lost = Fault::on(action, FaultKind::LoseReply { stall_ms: 0 }).times(times);
            let lost = cluster.ec2_fault(&lost).await.unwrap();
            let name = format!("{}-{times}", action.to_lowercase());
            let pod = cluster.serve(&name, "node-1").await.unwrap();
            assert_eq!(made_for(&cluster, &pod.uid).await, std::slice::from_ref(&pod.eni));
            cluster.delete("default", &name, false).await.unwrap();
            cluster.released(&pod.uid, SOON).await.unwrap();
            cluster.ec2_struck(&lost, times).await.unwrap();
        }
    }
    // More pods than branches, the refusal in the other spelling: nobody's capacity is lowered for good.
    let mut names = Vec::new();
    for number in 0..10 {
        let name = format!("many-{number}");
        cluster.create(&PodSpec::branch(&name, "node-1")).await.unwrap();
        names.push(name);
    }
    let runs = poll::eventually("eight more run", SOON, async || {
        let pods = cluster.nodes.pods().await.map_err(|error| error.to_string())?;
        let mut runs: Vec<_> = pods.into_iter().filter(|p| p.running && p.link_up).collect();
        runs.retain(|pod| names.contains(&pod.name));
        if runs.len() == 8 { Ok(runs) } else { Err(format!("{}", runs.len())) }
    })
    .await
    .unwrap();
    cluster.restart_coordinator(0).unwrap();
    cluster.led(SOON).await.unwrap();
    for pod in runs.iter().take(2) {
        cluster.delete("default", &pod.name, false).await.unwrap();
        cluster.released(&pod.uid, SOON).await.unwrap();
        names.retain(|name| *name != pod.name);
    }
    for name in &names {
        cluster.running(name, SOON).await.unwrap();
    }
    cluster.still_served(&live).await.unwrap();
    cluster.conclude("s44 other").await.unwrap();
}
