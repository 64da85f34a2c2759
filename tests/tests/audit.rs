//! The three-way check and the order to repair, on the whole program.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test's helpers")]

use kube::ResourceExt as _;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use trunkline_sim::ec2::fault::{Fault, FaultKind, PageFault};
use trunkline_sim::ec2::model::{EniSpec, LogEntry};
use trunkline_tests::cluster::{Cluster, Options};
use trunkline_tests::invariants::annotation::Branch;
use trunkline_tests::objects::PodSpec;
use trunkline_tests::{poll, skipped};

const SOON: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(120);

async fn cluster(test: &str, options: Options) -> Option<Cluster> {
    if let Some(why) = Cluster::missing() {
        skipped(test, &why);
        return None;
    }
    Some(Cluster::start(options).await.unwrap())
}

async fn pods(cluster: &Cluster, count: u32) -> Vec<(String, Branch)> {
    for number in 0..count {
        cluster.create(&PodSpec::branch(&format!("pod-{number}"), "node-1")).await.unwrap();
    }
    let mut pods = Vec::new();
    for number in 0..count {
        let name = format!("pod-{number}");
        cluster.running(&name, SOON).await.unwrap();
        let branch = cluster.annotated(&name, SOON).await.unwrap().remove(0);
        pods.push((name, branch));
    }
    pods
}

/// Exit code and report.
async fn audit(cluster: &Cluster, token: &Path, words: &[&str]) -> (i32, Value) {
    let words = [&["audit"], words, &["-o", "json"]].concat();
    let (code, out, error) = cluster.trunkline_code(token, &words).await.unwrap();
    assert!(error.is_empty(), "{error}");
    (code.unwrap(), serde_json::from_str(&out).unwrap())
}

/// Class by ENI.
fn found(report: &Value) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let findings = report["findings"].as_array().unwrap().iter();
    findings.map(|f| (text(&f["eni_id"]), text(&f["class"]["reason"]))).collect()
}

/// Audits until it finds just this: a young ENI is passed over, a repair that was just done may still show.
async fn finds(cluster: &Cluster, token: &Path, wanted: &[(&str, &str)]) -> Value {
    let wanted: BTreeMap<String, String> =
        wanted.iter().map(|(eni, class)| ((*eni).to_owned(), (*class).to_owned())).collect();
    poll::eventually(&format!("an audit finds {wanted:?}"), LONG, async || {
        let (code, report) = audit(cluster, token, &[]).await;
        let right = found(&report) == wanted && code == if wanted.is_empty() { 0 } else { 2 };
        if right { Ok(report) } else { Err(format!("{code}: {report:#}")) }
    })
    .await
    .unwrap()
}

/// Calls of the coordinator that changed something from `from` on.
async fn changes(cluster: &Cluster, from: u64) -> Vec<LogEntry> {
    let calls = cluster.ec2.log(from).await.unwrap().into_iter();
    calls.filter(|c| c.caller.starts_with(cluster.rules.callers) && !c.effects.is_empty()).collect()
}

fn describe_fault(kind: FaultKind) -> Fault {
    Fault {
        id: String::new(),
        action: "DescribeNetworkInterfaces".to_owned(),
        resource: None,
        caller: None,
        nth: None,
        every: None,
        count: None,
        probability: None,
        for_ms: None,
        kind,
    }
}

#[tokio::test]
async fn s25_an_audit_tells_what_was_done_to_enis_and_repairs_nothing_unasked() {
    let mut options = Options::default();
    options.coordinator_flags.push("--heal=report".to_owned());
    let Some(cluster) = cluster("audit", options).await else { return };
    let (viewer, operator) = (cluster.viewer().await.unwrap(), cluster.operator().await.unwrap());
    let pods = pods(&cluster, 3).await;
    let (gone, cut) = (&pods[0].1, &pods[1].1);
    finds(&cluster, &viewer, &[]).await;

    let from = cluster.mark().await.unwrap();
    cluster.ec2.delete_eni(&gone.eni_id).await.unwrap();
    cluster.ec2.disassociate(&cut.eni_id).await.unwrap();
    let wanted = [(gone.eni_id.as_str(), "missing"), (cut.eni_id.as_str(), "disassociated")];
    finds(&cluster, &viewer, &wanted).await;

    let (code, dry) = audit(&cluster, &viewer, &["--repair"]).await;
    assert_eq!((code, found(&dry).len()), (2, 2), "{dry:#}");
    for finding in dry["findings"].as_array().unwrap() {
        assert_eq!(finding["on_order"]["reason"], "heal", "{finding:#}");
        assert_eq!(finding["ordered"], false, "{finding:#}");
    }
    let order = ["audit", "--repair", "--yes", "--reason=looked at it"];
    let (code, _, refused) = cluster.trunkline_code(&viewer, &order).await.unwrap();
    assert_eq!(code, Some(1));
    assert!(refused.contains("trunkline-operator"), "{refused}");
    let touched = changes(&cluster, from).await;
    assert!(touched.is_empty(), "{touched:?}");

    let (_, ordered) = audit(&cluster, &operator, &order[1..]).await;
    for finding in ordered["findings"].as_array().unwrap() {
        assert_eq!(finding["ordered"], true, "{finding:#}");
    }
    cluster.event("node-1", "RepairOrdered", "Normal", SOON).await.unwrap();
    for (name, old) in &pods[..2] {
        poll::eventually(&format!("{name} is healed"), LONG, async || {
            let now = cluster.annotated(name, SOON).await.map_err(|e| e.to_string())?.remove(0);
            let right = now.association != old.association && now.ipv4 == old.ipv4;
            if right { Ok(()) } else { Err(format!("{now:?}")) }
        })
        .await
        .unwrap();
    }
    let status = cluster.trunkline(&viewer, &["status"]).await.unwrap();
    assert!(status.contains("looked at it"), "{status}");
    finds(&cluster, &viewer, &[]).await;
    cluster.finish().await.unwrap();
}

#[tokio::test]
async fn an_audit_tells_of_orphans_and_copies_and_i6_never_of_what_ec2_hides() {
    let Some(mut cluster) = cluster("audit of orphans", Options::default()).await else { return };
    let (viewer, operator) = (cluster.viewer().await.unwrap(), cluster.operator().await.unwrap());
    let pods = pods(&cluster, 2).await;
    finds(&cluster, &viewer, &[]).await;

    // A reading that leaves out an item, and answers by id that do, end in no finding; a reading that fails says nothing.
    let skipping = describe_fault(FaultKind::Page { how: PageFault::SkipItem });
    cluster.ec2.inject(&skipping).await.unwrap();
    let (code, report) = audit(&cluster, &viewer, &[]).await;
    assert!(code < 2 && found(&report).is_empty(), "{code}: {report:#}");
    cluster.ec2.clear_faults(None).await.unwrap();
    let code = "UnauthorizedOperation".to_owned();
    let refused = FaultKind::Error { status: 403, code, message: "no right".to_owned() };
    cluster.ec2.inject(&describe_fault(refused)).await.unwrap();
    let (code, report) = audit(&cluster, &viewer, &[]).await;
    assert_eq!((code, found(&report).len()), (1, 0), "{report:#}");
    assert!(report["unknown"][0]["sentence"].as_str().unwrap().contains("EC2's inventory"));
    cluster.ec2.clear_faults(None).await.unwrap();

    // Nothing is repaired, so that the copy stays as it is.
    let mode = ["mode", "read-only", "--reason=copying"];
    cluster.trunkline(&operator, &mode).await.unwrap();
    let state = cluster.ec2_state().await.unwrap();
    let own = state.eni(&pods[0].1.eni_id).unwrap();
    let mut tags = own.tags.clone();
    tags.retain(|key, _| !key.starts_with("trunkline.dev/"));
    let spec = EniSpec { subnet: own.subnet.clone(), tags, ..EniSpec::default() };
    let orphan = cluster.ec2.add_eni(&spec).await.unwrap();
    cluster.rules.kept.insert(orphan.clone());
    let original = cluster.pod("default", &pods[0].0).await.unwrap().unwrap();
    let text = original.annotations()["vpc.amazonaws.com/pod-eni"].clone();
    let mut copy = PodSpec::branch("copy", "node-1");
    copy.annotations.push(("vpc.amazonaws.com/pod-eni".to_owned(), text));
    cluster.create(&copy).await.unwrap();
    let wanted = [(orphan.as_str(), "leaked-available"), (pods[0].1.eni_id.as_str(), "foreign")];
    let report = finds(&cluster, &viewer, &wanted).await;
    let copied = report["findings"].as_array().unwrap().iter();
    let copied = copied.filter(|f| f["pod"]["name"] == "copy").count();
    assert_eq!(copied, 1, "{report:#}");
    let order = ["audit", "--repair", "--yes", "--reason=looked at it"];
    let (code, _, refused) = cluster.trunkline_code(&operator, &order).await.unwrap();
    assert_eq!(code, Some(1));
    assert!(refused.contains("read-only"), "{refused}");
    cluster.delete("default", "copy", true).await.unwrap();
    cluster.ec2.delete_eni(&orphan).await.unwrap();
    cluster.trunkline(&operator, &["mode", "normal", "--reason=done"]).await.unwrap();
    cluster.finish().await.unwrap();
}
