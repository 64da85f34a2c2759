//! Faults on the way to the API server: lists that are cut, hung, refused, late or lies; lists and GETs that lie together;
//! watches that go silent; rights that are taken away; an API server that is killed, and one that is minutes behind.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test's helpers")]

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use std::time::Duration;
use trunkline_sim::proxy::model::{EmptyVersion, FaultKind, FaultSpec, Match};
use trunkline_tests::cluster::campaign::{SOON, Served};
use trunkline_tests::cluster::{Cluster, Options};
use trunkline_tests::objects::PodSpec;
use trunkline_tests::{control_plane, deploy, poll};

/// Longer than way (b) takes with the durations of these tests, which is the longest that a wrong release could wait.
const LONG: Duration = Duration::from_secs(8);

async fn pods(cluster: &Cluster, prefix: &str, node: &str, count: u32) -> Vec<Served> {
    for number in 0..count {
        cluster.create(&PodSpec::branch(&format!("{prefix}-{number}"), node)).await.unwrap();
    }
    let mut served = Vec::new();
    for number in 0..count {
        let name = format!("{prefix}-{number}");
        cluster.running(&name, SOON).await.unwrap();
        let uid = cluster.pod("default", &name).await.unwrap().unwrap().uid().unwrap();
        served.push(cluster.served(&name, &uid).await.unwrap());
    }
    served
}

/// GETs of single pods.
fn gets() -> Match {
    Match {
        caller: Some(format!("{}:{}", deploy::NAMESPACE, deploy::COORDINATOR)),
        ..Match::request("GET", "/namespaces/default/pods/")
    }
}

fn refuse(code: u16, reason: &str) -> FaultKind {
    FaultKind::Refuse { code, reason: reason.to_owned(), retry_after: None }
}

#[tokio::test]
async fn s01_s12_s14_answers_that_are_cut_hung_refused_or_lies() {
    let options = Options::default().proxied().instance_type("m5.4xlarge");
    let Some(mut cluster) = Cluster::for_test("s14", options).await.unwrap() else { return };
    let live = pods(&cluster, "live", "node-1", 4).await;
    broken_lists(&cluster, &live).await;
    s14_a_first_list_that_is_held(&mut cluster, &live).await;
    list_and_get_lie_together(&mut cluster, &live).await;
    gets_that_fail(&cluster, &live).await;
    rights_that_go_and_come_back(&cluster, &live).await;
    cluster.still_served(&live).await.unwrap();
    cluster.conclude("s14").await.unwrap();
}

/// In each of these states the agent knows nothing: a pod that is really gone is kept, and goes afterwards.
async fn broken_lists(cluster: &Cluster, live: &[Served]) {
    let throttled =
        FaultKind::Refuse { code: 429, reason: "TooManyRequests".to_owned(), retry_after: Some(1) };
    for (name, kind) in [
        ("cut-in-form", FaultKind::Truncate { percent: 60, framed: true }),
        ("cut", FaultKind::Truncate { percent: 60, framed: false }),
        ("empty", FaultKind::Truncate { percent: 0, framed: true }),
        ("stalled", FaultKind::Stall { percent: 60 }),
        ("hung", FaultKind::Hang),
        ("expired", refuse(410, "Expired")),
        ("missing", refuse(404, "NotFound")),
        ("throttled", throttled),
        ("unavailable", refuse(503, "ServiceUnavailable")),
    ] {
        let gone = cluster.serve(&format!("gone-{name}"), "node-1").await.unwrap();
        let from = cluster.mark().await.unwrap();
        // First the fault, then the reason to list: nothing slips through in between.
        let fault = cluster.api_fault(&FaultSpec::new(Match::agents(), kind)).await.unwrap();
        let expire = FaultSpec::times(Match::agents(), FaultKind::ExpireWatch, 1);
        let expire = cluster.api_fault(&expire).await.unwrap();
        cluster.api_struck(expire, 1).await.unwrap();
        cluster.api_struck(fault, 1).await.unwrap();
        cluster.agent_ready("node-1", false).await.unwrap();
        cluster.force_away(&gone).await.unwrap();
        cluster.nothing_released(from, Duration::from_secs(2)).await.unwrap();
        cluster.api_heals(fault).await.unwrap();
        cluster.released(&gone.uid, SOON).await.unwrap();
        cluster.agent_ready("node-1", true).await.unwrap();
        for call in cluster.releases(from).await.unwrap() {
            let others = live.iter().any(|pod| call.params.values().any(|v| *v == pod.eni));
            assert!(!others, "{name}: {call:?}");
        }
    }
}

/// S14: before its first list an agent's answer is "unknown", whatever is asked; nothing counts as absent.
async fn s14_a_first_list_that_is_held(cluster: &mut Cluster, live: &[Served]) {
    let gone = cluster.serve("gone-s14", "node-1").await.unwrap();
    let from = cluster.mark().await.unwrap();
    let held = FaultSpec::new(Match::agents(), FaultKind::Hold);
    let held = cluster.api_fault(&held).await.unwrap();
    cluster.restart_agent("node-1").await.unwrap();
    cluster.api_struck(held, 1).await.unwrap();
    cluster.force_away(&gone).await.unwrap();
    // The coordinator asks from its side too: it lists EC2's ENIs and has this agent's session.
    cluster.restart_coordinator(0).unwrap();
    cluster.led(SOON).await.unwrap();
    cluster.agent_ready("node-1", false).await.unwrap();
    cluster.nothing_released(from, LONG).await.unwrap();
    cluster.api_heals(held).await.unwrap();
    cluster.agent_ready("node-1", true).await.unwrap();
    cluster.released(&gone.uid, SOON).await.unwrap();
    cluster.still_served(live).await.unwrap();
}

/// The agent's list is empty and looks complete, and the coordinator's own GET says NotFound, fresh in every respect: the
/// API gives no hint at all. The pods run, and that alone has to hold.
async fn list_and_get_lie_together(cluster: &mut Cluster, live: &[Served]) {
    let from = cluster.mark().await.unwrap();
    let not_found = cluster.api_fault(&FaultSpec::new(gets(), FaultKind::NotFound)).await.unwrap();
    let empty = FaultKind::EmptyList { version: EmptyVersion::Current };
    let empty = cluster.api_fault(&FaultSpec::new(Match::agents(), empty)).await.unwrap();
    // Under the agent that saw the pods start, and under one that only finds them.
    for restarted in [false, true] {
        if restarted {
            cluster.restart_agent("node-1").await.unwrap();
        } else {
            let expire = FaultSpec::times(Match::agents(), FaultKind::ExpireWatch, 1);
            cluster.api_fault(&expire).await.unwrap();
        }
        let asked = if restarted { 8 } else { 4 };
        cluster.api_struck(not_found, asked).await.unwrap();
        cluster.nothing_released(from, LONG).await.unwrap();
    }
    // So does a leader that starts in the middle of it.
    cluster.restart_coordinator(0).unwrap();
    cluster.led(SOON).await.unwrap();
    cluster.nothing_released(from, LONG).await.unwrap();
    cluster.api_heals(empty).await.unwrap();
    cluster.api_heals(not_found).await.unwrap();
    cluster.restart_agent("node-1").await.unwrap();
    cluster.agent_ready("node-1", true).await.unwrap();
    cluster.still_served(live).await.unwrap();
    // The end of the lie is the end of its traces: what is deleted now goes, and nothing else does.
    let gone = cluster.serve("gone-after-lies", "node-1").await.unwrap();
    cluster.delete("default", &gone.name, false).await.unwrap();
    cluster.released(&gone.uid, SOON).await.unwrap();
    assert!(!cluster.releases(from).await.unwrap().is_empty());
}

/// The agent's evidence is whole, and the coordinator cannot ask: nothing goes before it can.
async fn gets_that_fail(cluster: &Cluster, live: &[Served]) {
    for (name, kind) in [
        ("get-403", refuse(403, "Forbidden")),
        ("get-500", refuse(500, "InternalError")),
        ("get-404-of-no-status", refuse(404, "")),
        ("get-cut", FaultKind::Truncate { percent: 50, framed: true }),
        ("get-hung", FaultKind::Hang),
    ] {
        let gone = cluster.serve(name, "node-1").await.unwrap();
        let from = cluster.mark().await.unwrap();
        let fault = cluster.api_fault(&FaultSpec::new(gets(), kind)).await.unwrap();
        cluster.force_away(&gone).await.unwrap();
        cluster.api_struck(fault, 1).await.unwrap();
        cluster.nothing_released(from, Duration::from_secs(2)).await.unwrap();
        cluster.api_heals(fault).await.unwrap();
        cluster.released(&gone.uid, SOON).await.unwrap();
    }
    cluster.still_served(live).await.unwrap();
}

/// RBAC takes the agents' pods and the coordinator's GET away for a while.
async fn rights_that_go_and_come_back(cluster: &Cluster, live: &[Served]) {
    let roles: Api<ClusterRole> = Api::all(cluster.admin.clone());
    for role in [deploy::AGENT, deploy::COORDINATOR] {
        let shipped = roles.get(role).await.unwrap();
        let mut less = shipped.clone();
        for rule in less.rules.iter_mut().flatten() {
            if let Some(resources) = &mut rule.resources {
                resources.retain(|one| one != "pods");
            }
        }
        less.rules.iter_mut().for_each(|rules| {
            rules.retain(|rule| rule.resources.as_ref().is_none_or(|all| !all.is_empty()));
        });
        assert_ne!(less, shipped);
        let gone = cluster.serve(&format!("gone-{role}"), "node-1").await.unwrap();
        let from = cluster.mark().await.unwrap();
        roles.replace(role, &PostParams::default(), &less).await.unwrap();
        // What is open stays open: the next list meets the change.
        refused_from_now_on(cluster, role).await;
        let expire = FaultSpec::times(Match::agents(), FaultKind::ExpireWatch, 1);
        let expire = cluster.api_fault(&expire).await.unwrap();
        cluster.api_struck(expire, 1).await.unwrap();
        if role == deploy::AGENT {
            cluster.agent_ready("node-1", false).await.unwrap();
        }
        cluster.force_away(&gone).await.unwrap();
        cluster.nothing_released(from, Duration::from_secs(4)).await.unwrap();
        let mut again = roles.get(role).await.unwrap();
        again.rules.clone_from(&shipped.rules);
        roles.replace(role, &PostParams::default(), &again).await.unwrap();
        cluster.released(&gone.uid, SOON).await.unwrap();
        cluster.agent_ready("node-1", true).await.unwrap();
    }
    cluster.still_served(live).await.unwrap();
}

/// Waits until the API server refuses a role's own token what it needs of pods.
async fn refused_from_now_on(cluster: &Cluster, role: &str) {
    let mounted = cluster.mounted();
    let (_, file, _) = mounted
        .iter()
        .find(|(pod, _, audience)| pod.name_any().starts_with(role) && audience.is_none())
        .unwrap();
    let token = std::fs::read_to_string(file).unwrap();
    let client = cluster.plane.client(token.trim()).unwrap();
    let all: Api<Pod> = Api::all(client.clone());
    let here: Api<Pod> = Api::namespaced(client, "default");
    let mine = ListParams::default().fields("spec.nodeName=node-1");
    poll::eventually(&format!("{role} may not read pods"), SOON, async || {
        let answer = if role == deploy::AGENT {
            all.list(&mine).await.map(drop)
        } else {
            here.get_opt("live-0").await.map(drop)
        };
        match answer {
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn s15_s16_watches_that_go_silent_or_lose_a_delete() {
    let options = Options::default().proxied().timing("watch_silence", Duration::from_secs(8));
    let Some(cluster) = Cluster::for_test("silent", options).await.unwrap() else { return };
    let live = pods(&cluster, "live", "node-1", 2).await;
    // Neither events nor bookmarks, on an open connection: the next list finds what happened.
    let gone = cluster.serve("gone-in-silence", "node-1").await.unwrap();
    let silent = FaultSpec::new(Match::agents(), FaultKind::SilentWatch);
    let silent = cluster.api_fault(&silent).await.unwrap();
    cluster.force_away(&gone).await.unwrap();
    cluster.api_struck(silent, 1).await.unwrap();
    cluster.serve("made-in-silence", "node-1").await.unwrap();
    cluster.released(&gone.uid, SOON).await.unwrap();
    cluster.api_heals(silent).await.unwrap();
    // One DELETED event is lost on a watch that lives on: kept until the next list, then asked for and released.
    let gone = cluster.serve("gone-unseen", "node-1").await.unwrap();
    let from = cluster.mark().await.unwrap();
    let swallow = FaultKind::SwallowDelete { name: Some(gone.name.clone()) };
    let swallow = cluster.api_fault(&FaultSpec::new(Match::agents(), swallow)).await.unwrap();
    cluster.force_away(&gone).await.unwrap();
    cluster.api_struck(swallow, 1).await.unwrap();
    cluster.released(&gone.uid, SOON).await.unwrap();
    for call in cluster.releases(from).await.unwrap() {
        assert!(!live.iter().any(|pod| call.params.values().any(|v| *v == pod.eni)), "{call:?}");
    }
    // An event is cut in its middle, in form and not: the view ends, nothing is skipped.
    for framed in [true, false] {
        let cut = FaultKind::Truncate { percent: 50, framed };
        let cut = cluster.api_fault(&FaultSpec::times(Match::agents(), cut, 1)).await.unwrap();
        cluster.serve(&format!("made-at-the-cut-{framed}"), "node-1").await.unwrap();
        cluster.api_struck(cut, 1).await.unwrap();
    }
    cluster.still_served(&live).await.unwrap();
    cluster.conclude("silent").await.unwrap();
}

#[tokio::test]
async fn s01_a_real_410_on_a_continue_page_and_an_api_server_that_is_killed() {
    let options = Options {
        plane: control_plane::Options {
            pages_from_etcd: true,
            ..control_plane::Options::default()
        },
        ..Options::default().proxied()
    };
    let Some(mut cluster) = Cluster::for_test("410", options).await.unwrap() else { return };
    let live = pods(&cluster, "live", "node-1", 4).await;
    s01_a_real_410_on_a_continue_page(&cluster, &live).await;
    the_api_server_is_killed(&mut cluster, &live).await;
    cluster.conclude("410").await.unwrap();
}

#[tokio::test]
async fn s12_an_api_server_that_is_behind() {
    let Some(mut cluster) = Cluster::for_test("s12", Options::default().proxied()).await.unwrap()
    else {
        return;
    };
    let live = pods(&cluster, "live", "node-1", 3).await;
    s12_an_api_server_that_stands_still(&mut cluster, &live).await;
    cluster.conclude("s12").await.unwrap();
}

/// The server really pages and its tokens really expire; the agent takes no part of a list for the list and follows no
/// token, so that it never gets there.
async fn s01_a_real_410_on_a_continue_page(cluster: &Cluster, live: &[Served]) {
    let from = cluster.mark().await.unwrap();
    let proxy = cluster.proxy.as_ref().unwrap();
    let paged = FaultSpec::new(Match::agents(), FaultKind::Pages { limit: 2 });
    let paged = cluster.api_fault(&paged).await.unwrap();
    let expire = FaultSpec::times(Match::agents(), FaultKind::ExpireWatch, 1);
    cluster.api_fault(&expire).await.unwrap();
    // What a client that does follow meets.
    let all: Api<Pod> = Api::all(cluster.admin.clone());
    let mine = ListParams::default().fields("spec.nodeName=node-1").limit(2);
    let page = all.list(&mine).await.unwrap();
    let token = page.metadata.continue_.clone().unwrap();
    poll::eventually("the real server's token has expired", SOON, async || {
        // The newest revision survives a compaction; leases are written on, so the next one takes the token's.
        cluster.plane.compact().await.map_err(|error| error.to_string())?;
        match all.list(&mine.clone().continue_token(&token)).await {
            Err(kube::Error::Api(status)) if status.code == 410 => Ok(()),
            other => Err(format!("{:?}", other.map(|list| list.items.len()))),
        }
    })
    .await
    .unwrap();
    cluster.api_struck(paged, 2).await.unwrap();
    cluster.agent_ready("node-1", false).await.unwrap();
    cluster.nothing_released(from, Duration::from_secs(6)).await.unwrap();
    let followed = proxy.log(1).await.unwrap();
    let followed = followed.iter().filter(|r| r.query.contains("continue=")).count();
    assert_eq!(followed, 0, "the agent follows no continue token");
    cluster.api_heals(paged).await.unwrap();
    cluster.agent_ready("node-1", true).await.unwrap();
    cluster.still_served(live).await.unwrap();
}

/// SIGKILL with requests and watches under way, and a pod deleted just before. Its watch cache comes back empty: the
/// resourceVersions that the agents resume from are older than its history.
async fn the_api_server_is_killed(cluster: &mut Cluster, live: &[Served]) {
    let gone = cluster.serve("gone-before-kill", "node-1").await.unwrap();
    let from = cluster.mark().await.unwrap();
    // The coordinator waits for an answer to its annotation, the agent for the rest of its list.
    let held = FaultSpec::new(
        Match::request("PATCH", "/namespaces/default/pods/in-flight"),
        FaultKind::Delay { ms: 1_500 },
    );
    let held = cluster.api_fault(&held).await.unwrap();
    let in_flight = cluster.create(&PodSpec::branch("in-flight", "node-1")).await.unwrap();
    cluster.api_struck(held, 1).await.unwrap();
    cluster.delete("default", &gone.name, true).await.unwrap();
    cluster.plane.kill_apiserver();
    cluster.api_heals(held).await.unwrap();
    cluster.agent_ready("node-1", false).await.unwrap();
    let shared: &Cluster = cluster;
    poll::throughout("no live pod's ENI is touched", LONG, async || {
        let calls = shared.releases(from).await.map_err(|error| error.to_string())?;
        let named = |eni: &str| calls.iter().any(|call| call.params.values().any(|v| v == eni));
        live.iter().find(|pod| named(&pod.eni)).map_or(Ok(()), |pod| Err(pod.eni.clone()))
    })
    .await
    .unwrap();
    cluster.plane.start_apiserver().await.unwrap();
    cluster.led(SOON).await.unwrap();
    cluster.agent_ready("node-1", true).await.unwrap();
    cluster.running("in-flight", SOON).await.unwrap();
    cluster.released(&gone.uid, SOON).await.unwrap();
    cluster.served("in-flight", &in_flight.uid().unwrap()).await.unwrap();
    cluster.still_served(live).await.unwrap();
}

/// S12: everybody is restarted onto a second API server that stands still at a time when P1 lived and P2 did not.
async fn s12_an_api_server_that_stands_still(cluster: &mut Cluster, live: &[Served]) {
    let p1 = cluster.serve("p1", "node-1").await.unwrap();
    let behind = cluster.plane.lagging_copy().await.unwrap();
    cluster.delete("default", "p1", false).await.unwrap();
    cluster.released(&p1.uid, SOON).await.unwrap();
    let p2 = cluster.serve("p2", "node-1").await.unwrap();
    let from = cluster.mark().await.unwrap();
    let replica = || FaultKind::Replica { upstream: behind.url() };
    // First only the agent's pods: P2 is unknown there, and P1 lives on.
    let lists = cluster.api_fault(&FaultSpec::new(Match::agents(), replica())).await.unwrap();
    cluster.restart_agent("node-1").await.unwrap();
    cluster.api_struck(lists, 1).await.unwrap();
    cluster.nothing_released(from, LONG).await.unwrap();
    // Then also what the coordinator reads: Nodes, CNINodes and, worst of all, its own GETs.
    let mut faults = vec![lists];
    for path in ["/api/v1/nodes", "/cninodes", "/namespaces/default/pods/"] {
        let read = FaultSpec::new(Match::request("GET", path), replica());
        faults.push(cluster.api_fault(&read).await.unwrap());
    }
    cluster.restart_coordinator(0).unwrap();
    cluster.led(SOON).await.unwrap();
    cluster.restart_agent("node-1").await.unwrap();
    cluster.api_struck(*faults.last().unwrap(), 1).await.unwrap();
    cluster.nothing_released(from, LONG).await.unwrap();
    // Onto the right one again. Streams that are open stay where they are, so both start anew.
    for fault in faults {
        cluster.api_heals(fault).await.unwrap();
    }
    drop(behind);
    cluster.restart_coordinator(0).unwrap();
    cluster.led(SOON).await.unwrap();
    cluster.restart_agent("node-1").await.unwrap();
    cluster.agent_ready("node-1", true).await.unwrap();
    let mut all = live.to_vec();
    all.push(p2.clone());
    cluster.still_served(&all).await.unwrap();
    cluster.delete("default", "p2", false).await.unwrap();
    cluster.released(&p2.uid, SOON).await.unwrap();
}
