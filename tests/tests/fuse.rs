//! The fuse, the modes and the record of releases, on the whole program.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test's helpers")]

#[path = "fuse/rogue.rs"]
mod rogue;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use rogue::Rogue;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use trunkline_sim::ec2::client::SimClient;
use trunkline_sim::ec2::fault::{Fault, FaultKind};
use trunkline_sim::ec2::model::LogEntry;
use trunkline_tests::cluster::ask::message;
use trunkline_tests::cluster::{Cluster, Options};
use trunkline_tests::objects::PodSpec;
use trunkline_tests::{deploy, poll, skipped};

const SOON: Duration = Duration::from_secs(60);

async fn cluster(test: &str, options: Options) -> Option<Cluster> {
    if let Some(why) = Cluster::missing() {
        skipped(test, &why);
        return None;
    }
    Some(Cluster::start(options).await.unwrap())
}

/// Runs so many pods on a node; their UIDs.
async fn run(cluster: &Cluster, prefix: &str, node: &str, count: usize) -> Vec<String> {
    let mut uids = Vec::new();
    for n in 0..count {
        let pod = cluster.create(&PodSpec::branch(&format!("{prefix}-{n}"), node)).await.unwrap();
        uids.push(pod.uid().unwrap());
    }
    for n in 0..count {
        cluster.running(&format!("{prefix}-{n}"), SOON).await.unwrap();
    }
    uids
}

/// What the command line says, as JSON.
async fn told(cluster: &Cluster, token: &Path, words: &[&str]) -> Value {
    let words = [words, &["-o", "json"]].concat();
    serde_json::from_str(&cluster.trunkline(token, &words).await.unwrap()).unwrap()
}

/// Waits until this pod's release waits for this reason.
async fn waits(cluster: &Cluster, token: &Path, uid: &str, why: &str) {
    poll::eventually(&format!("{uid} waits: {why}"), SOON, async || {
        let text = cluster.trunkline(token, &["waiting", "-o", "json"]).await;
        let rows: Vec<Value> =
            serde_json::from_str(&text.map_err(|e| e.to_string())?).map_err(|e| e.to_string())?;
        let is = |row: &&Value| row["pod"]["uid"] == uid && row["why"]["reason"] == why;
        rows.iter().find(is).map(drop).ok_or(format!("{rows:?}"))
    })
    .await
    .unwrap();
}

/// The release calls of all coordinators from `from` on.
async fn releases(cluster: &Cluster, from: u64) -> Vec<LogEntry> {
    let mut calls = cluster.calls("DisassociateTrunkInterface", from).await.unwrap();
    calls.extend(cluster.calls("DeleteNetworkInterface", from).await.unwrap());
    calls
}

/// Names of frozen nodes.
async fn frozen(cluster: &Cluster, token: &Path) -> Vec<String> {
    let fuse = told(cluster, token, &["fuse"]).await;
    let nodes = fuse["nodes"].as_array().unwrap();
    nodes.iter().map(|n| n["node"].as_str().unwrap().to_owned()).collect()
}

async fn metric(cluster: &Cluster, leader: usize, name: &str) -> String {
    let client = SimClient::new(&cluster.coordinators[leader].metrics);
    let page = client.send(http::Method::GET, "/metrics", &[], String::new()).await.unwrap();
    let line = page.body.lines().find(|line| line.starts_with(&format!("{name} ")));
    line.unwrap_or_default().trim_start_matches(name).trim().to_owned()
}

async fn patch_state(cluster: &Cluster, key: &str, text: &str) {
    let maps: Api<ConfigMap> = Api::namespaced(cluster.admin.clone(), deploy::NAMESPACE);
    let patch = json!({ "data": { key: text } });
    maps.patch("trunkline-state", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
}

#[tokio::test]
async fn s13_a_drain_of_thirty_passes_and_an_agent_that_reports_an_empty_node_loses_nothing() {
    let options = Options::default().nodes(2).coordinators(2).instance_type("m5.4xlarge");
    let Some(mut cluster) = cluster("s13", options).await else { return };
    let (viewer, operator) = (cluster.viewer().await.unwrap(), cluster.operator().await.unwrap());
    let leader = cluster.led(SOON).await.unwrap();

    // An ordinary drain.
    let drained = run(&cluster, "drained", "node-2", 30).await;
    for n in 0..30 {
        cluster.delete("default", &format!("drained-{n}"), false).await.unwrap();
    }
    for uid in &drained {
        cluster.released(uid, SOON).await.unwrap();
    }
    assert_eq!(frozen(&cluster, &viewer).await, Vec::<String>::new());
    assert_eq!(metric(&cluster, leader, "trunkline_release_vetoes_total").await, "0");

    // The agent of node-1 goes mad.
    let live = run(&cluster, "live", "node-1", 30).await;
    let from = cluster.mark().await.unwrap();
    let rogue = Rogue::instead_of_agent(&mut cluster, "node-1", leader).await;
    let blown = cluster.event("node-1", "ReleaseFuseBlown", "Warning", SOON).await.unwrap();
    assert!(message(&blown).contains("trunkline fuse reset --node node-1"), "{}", message(&blown));
    poll::eventually("it has called every pod over", SOON, async || {
        if rogue.stated() == 30 { Ok(()) } else { Err(rogue.stated().to_string()) }
    })
    .await
    .unwrap();
    poll::throughout("no ENI is touched", Duration::from_secs(5), async || {
        let calls = releases(&cluster, from).await;
        if calls.is_empty() { Ok(()) } else { Err(format!("{calls:?}")) }
    })
    .await
    .unwrap();
    let fuse = told(&cluster, &viewer, &["fuse"]).await;
    assert_eq!((&fuse["nodes"][0]["node"], &fuse["frozen"]), (&json!("node-1"), &Value::Null));
    let named = fuse["nodes"][0]["pod_uids"].as_array().unwrap();
    assert_eq!(named.len(), 3);
    assert!(named.iter().all(|uid| live.contains(&uid.as_str().unwrap().to_owned())));
    assert_eq!(metric(&cluster, leader, "trunkline_fuse_frozen_nodes").await, "1");
    assert_eq!(metric(&cluster, leader, "trunkline_fuse_frozen_cluster").await, "0");
    let table = cluster.trunkline(&viewer, &["nodes"]).await.unwrap();
    let row = table.lines().find(|line| line.starts_with("node-1")).unwrap();
    assert!(row.contains("fuse-blown"), "{table}");
    let status = cluster.trunkline(&viewer, &["status"]).await.unwrap();
    assert!(status.contains("blown on 1 node(s)"), "{status}");
    drop(rogue);

    a_freeze_outlives_the_leader(&mut cluster, leader, &viewer).await;
    only_an_operator_resets(&cluster, &live[0], &viewer, &operator).await;
    cluster.finish().await.unwrap();
}

/// The leader dies; the next one has read the freeze before it releases anything. Other nodes go on.
async fn a_freeze_outlives_the_leader(cluster: &mut Cluster, leader: usize, viewer: &Path) {
    cluster.restart_agent("node-1").await.unwrap();
    let uids = run(cluster, "other", "node-2", 1).await;
    cluster.delete("default", "live-0", false).await.unwrap();
    cluster.coordinators[leader].process.kill();
    poll::eventually("the other leads", SOON, async || match cluster.leader().await {
        Ok(Some(now)) if now != leader => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await
    .unwrap();
    cluster.restart_coordinator(leader).unwrap();
    cluster.led(SOON).await.unwrap();
    cluster.agents_ready(SOON).await.unwrap();
    let live = told(cluster, viewer, &["fuse"]).await;
    assert_eq!(live["nodes"][0]["node"], "node-1");
    cluster.delete("default", "other-0", false).await.unwrap();
    cluster.released(&uids[0], SOON).await.unwrap();
}

async fn only_an_operator_resets(cluster: &Cluster, uid: &str, viewer: &Path, operator: &Path) {
    waits(cluster, viewer, uid, "fuse-blown").await;
    let reset = ["fuse", "reset", "--node=node-1", "--reason=the agent was replaced"];
    let refused = cluster.trunkline(viewer, &reset).await.unwrap_err().to_string();
    assert!(refused.contains("not allowed") && refused.contains("trunkline-operator"), "{refused}");
    assert_eq!(frozen(cluster, viewer).await, ["node-1"]);
    let from = cluster.mark().await.unwrap();
    assert!(releases(cluster, from).await.is_empty());
    cluster.trunkline(operator, &reset).await.unwrap();
    assert_eq!(frozen(cluster, viewer).await, Vec::<String>::new());
    cluster.released(uid, SOON).await.unwrap();
    let told_of = cluster.event("node-1", "ReleaseFuseReset", "Normal", SOON).await.unwrap();
    for part in ["system:serviceaccount:trunkline-system:operator", "the agent was replaced"] {
        assert!(message(&told_of).contains(part), "{}", message(&told_of));
    }
    let again = cluster.trunkline(operator, &reset).await.unwrap_err().to_string();
    assert!(again.contains("is not frozen"), "{again}");
}

#[tokio::test]
async fn s13_three_mad_agents_freeze_the_cluster_until_an_operator_opens_it() {
    let Some(mut cluster) = cluster("three", Options::default().nodes(4)).await else { return };
    let (viewer, operator) = (cluster.viewer().await.unwrap(), cluster.operator().await.unwrap());
    let leader = cluster.led(SOON).await.unwrap();
    let from = cluster.mark().await.unwrap();
    let calm = run(&cluster, "calm", "node-4", 1).await.remove(0);
    for n in 1..=3 {
        let node = format!("node-{n}");
        run(&cluster, &format!("on-{n}"), &node, 3).await;
        let rogue = Rogue::instead_of_agent(&mut cluster, &node, leader).await;
        cluster.event(&node, "ReleaseFuseBlown", "Warning", SOON).await.unwrap();
        drop(rogue);
    }
    let fuse = told(&cluster, &viewer, &["fuse"]).await;
    assert_eq!(fuse["frozen"]["reason"], "cluster-fuse-blown");
    assert_eq!(metric(&cluster, leader, "trunkline_fuse_frozen_cluster").await, "1");
    cluster.delete("default", "calm-0", false).await.unwrap();
    waits(&cluster, &viewer, &calm, "cluster-fuse-blown").await;
    // Pods start all the same.
    run(&cluster, "new", "node-4", 1).await;
    cluster.restart_coordinator(0).unwrap();
    cluster.led(SOON).await.unwrap();
    for n in 1..=3 {
        cluster.restart_agent(&format!("node-{n}")).await.unwrap();
    }
    cluster.agents_ready(SOON).await.unwrap();
    waits(&cluster, &viewer, &calm, "cluster-fuse-blown").await;
    assert_eq!(releases(&cluster, from).await, []);

    // The cluster goes on; the three are still being looked at.
    let words = ["fuse", "reset", "--cluster", "--reason=one bad image"];
    cluster.trunkline(&operator, &words).await.unwrap();
    cluster.released(&calm, SOON).await.unwrap();
    let gone = cluster.pod("default", "on-1-0").await.unwrap().unwrap().uid().unwrap();
    cluster.delete("default", "on-1-0", false).await.unwrap();
    waits(&cluster, &viewer, &gone, "fuse-blown").await;
    for n in 1..=3 {
        let node = format!("--node=node-{n}");
        let words = ["fuse", "reset", &node, "--reason=image replaced"];
        cluster.trunkline(&operator, &words).await.unwrap();
    }
    cluster.released(&gone, SOON).await.unwrap();

    // What is stored and cannot be read stops releasing, too.
    patch_state(&cluster, "fuse", "{\"nodes\":").await;
    cluster.restart_coordinator(0).unwrap();
    cluster.led(SOON).await.unwrap();
    cluster.agents_ready(SOON).await.unwrap();
    let from = cluster.mark().await.unwrap();
    let gone = cluster.pod("default", "on-2-0").await.unwrap().unwrap().uid().unwrap();
    cluster.delete("default", "on-2-0", false).await.unwrap();
    waits(&cluster, &viewer, &gone, "fuse-unknown").await;
    assert_eq!(releases(&cluster, from).await, []);
    cluster.trunkline(&operator, &words).await.unwrap();
    cluster.released(&gone, SOON).await.unwrap();
    cluster.finish().await.unwrap();
}

#[tokio::test]
async fn modes_change_while_it_runs_and_every_release_has_its_record() {
    let Some(mut cluster) = cluster("modes", Options::default()).await else { return };
    let (viewer, operator) = (cluster.viewer().await.unwrap(), cluster.operator().await.unwrap());
    let set = async |cluster: &Cluster, mode: &str| {
        cluster.trunkline(&operator, &["mode", mode, "--reason=a test"]).await.unwrap()
    };
    let refused = cluster.trunkline(&viewer, &["mode", "read-only", "--reason=x"]).await;
    assert!(refused.unwrap_err().to_string().contains("trunkline-operator"));
    assert_eq!(told(&cluster, &viewer, &["mode"]).await["mode"], "normal");

    // No release: pods start, nothing ends.
    let first = run(&cluster, "first", "node-1", 1).await.remove(0);
    set(&cluster, "no-release").await;
    let from = cluster.mark().await.unwrap();
    cluster.delete("default", "first-0", false).await.unwrap();
    waits(&cluster, &viewer, &first, "mode-forbids").await;
    run(&cluster, "second", "node-1", 1).await;

    // Read only: a create that EC2 keeps refusing is not tried once more, and nothing else is sent.
    let refuse = FaultKind::Throttle { status: 503, retry_after_ms: Some(100) };
    let fault = cluster.ec2.inject(&Fault::on("CreateNetworkInterface", refuse)).await.unwrap();
    let third = cluster.create(&PodSpec::branch("third", "node-1")).await.unwrap();
    poll::eventually("a create is tried", SOON, async || {
        let tried = cluster.calls("CreateNetworkInterface", from).await.unwrap();
        let refused = tried.iter().filter(|c| c.status == Some(503)).count();
        if refused >= 2 { Ok(()) } else { Err(refused.to_string()) }
    })
    .await
    .unwrap();
    set(&cluster, "read-only").await;
    let read_only = cluster.mark().await.unwrap();
    cluster.ec2.clear_faults(Some(&fault)).await.unwrap();
    let third = third.uid().unwrap();
    waits(&cluster, &viewer, &third, "read-only").await;
    // It outlives the leader.
    cluster.restart_coordinator(0).unwrap();
    cluster.led(SOON).await.unwrap();
    cluster.agents_ready(SOON).await.unwrap();
    waits(&cluster, &viewer, &third, "read-only").await;
    let mode = told(&cluster, &viewer, &["mode"]).await;
    assert_eq!((&mode["mode"], &mode["flags"]), (&json!("read-only"), &json!("normal")));
    assert_eq!(mode["choice"]["by"], "system:serviceaccount:trunkline-system:operator");
    let changed = |calls: Vec<LogEntry>| -> Vec<LogEntry> {
        let ours = |c: &LogEntry| c.caller.starts_with("TRUNKLINE");
        calls.into_iter().filter(|c| ours(c) && !c.action.starts_with("Describe")).collect()
    };
    assert_eq!(changed(cluster.ec2.log(read_only).await.unwrap()), []);
    let pod = cluster.pod("default", "third").await.unwrap().unwrap();
    assert!(pod.annotations().is_empty(), "{:?}", pod.annotations());
    assert_eq!(releases(&cluster, from).await, []);

    set(&cluster, "normal").await;
    cluster.running("third", SOON).await.unwrap();
    cluster.released(&first, SOON).await.unwrap();
    every_release_has_its_record(&cluster, &viewer, &first).await;
    cluster.finish().await.unwrap();
}

/// Two rows for the pod that ended, with EC2's own request ids, and times in their order.
async fn every_release_has_its_record(cluster: &Cluster, viewer: &Path, uid: &str) {
    let rows = told(cluster, viewer, &["releases", "--pod=default/first-0", "--since=10m"]).await;
    let rows = rows.as_array().unwrap();
    let steps: Vec<&Value> = rows.iter().map(|row| &row["step"]).collect();
    assert_eq!(steps, ["delete-eni", "disassociate"], "newest first");
    for row in rows {
        let action = if row["step"] == "disassociate" {
            "DisassociateTrunkInterface"
        } else {
            "DeleteNetworkInterface"
        };
        let calls = cluster.calls(action, 1).await.unwrap();
        assert!(calls.iter().any(|c| row["ec2_request_id"] == c.request_id.as_str()), "{row}");
        assert_eq!((&row["pod"]["uid"], &row["node"]), (&json!(uid), &json!("node-1")));
        // A pod that ended is over before its object goes; the object's version is in the record then.
        let said = row["confirmed"]["said"].as_str().unwrap();
        let version = row["confirmed"]["resource_version"].as_str().unwrap();
        assert!((said == "not-found") == version.is_empty(), "{row}");
        assert!(["not-found", "ended"].contains(&said), "{row}");
        assert!(
            ["watch-deleted", "ended", "coordinator-get", "get-not-found"]
                .contains(&row["stated"]["over"].as_str().unwrap())
        );
        assert!(row["epoch"].as_u64().unwrap() >= 2);
        let at = |value: &Value| value.as_u64().unwrap();
        assert!(at(&row["confirmed"]["at_ms"]) <= at(&row["permitted_ms"]), "{row}");
        assert!(at(&row["stated"]["received_ms"]) <= at(&row["permitted_ms"]), "{row}");
        assert!(at(&row["permitted_ms"]) <= at(&row["at_ms"]), "{row}");
    }
    let none = told(cluster, viewer, &["releases", "--node=node-9"]).await;
    assert_eq!(none, json!([]));
    let leader = &cluster.coordinators[0];
    let log =
        std::fs::read_to_string(cluster.folder().join(format!("{}.log", leader.pod.name_any())));
    let log = log.unwrap();
    let line = log.lines().find(|l| l.contains("released") && l.contains(uid)).unwrap();
    for part in ["ec2_request_id", "get_said", "epoch", "boot"] {
        assert!(line.contains(part), "{part} is missing in {line}");
    }
}
