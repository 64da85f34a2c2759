//! A coordinator that has lost its lease, whether it slept (S11) or cannot renew (S70), does nothing more: no EC2 attempt,
//! no write to the API server. And one that can renew, however slowly, keeps it. Judged from EC2's log by access key and from the API server's side by the pod of the token.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test's helpers")]

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, ResourceExt as _};
use rustix::process::Signal;
use std::time::Duration;
use trunkline_sim::ec2::client::SimClient;
use trunkline_sim::ec2::fault::{Fault, FaultKind as Ec2Fault};
use trunkline_sim::ec2::model::LogEntry as Ec2Entry;
use trunkline_sim::proxy::model::{FaultKind as ApiFault, FaultSpec, LogEntry, Match};
use trunkline_tests::cluster::{Cluster, Options};
use trunkline_tests::objects::PodSpec;
use trunkline_tests::{deploy, poll, skipped};

const SOON: Duration = Duration::from_secs(60);
const PODS: usize = 8;

async fn two(test: &str) -> Option<Cluster> {
    if let Some(why) = Cluster::missing() {
        skipped(test, &why);
        return None;
    }
    let options = Options::default().nodes(2).coordinators(2).instance_type("m5.4xlarge").proxied();
    Some(Cluster::start(options).await.unwrap())
}

async fn epoch(cluster: &Cluster) -> u64 {
    let maps: Api<ConfigMap> = Api::namespaced(cluster.admin.clone(), deploy::NAMESPACE);
    maps.get("trunkline-state").await.unwrap().data.unwrap()["epoch"].parse().unwrap()
}

/// When the present holder took the lease, in milliseconds since the Unix epoch.
async fn taken_over_ms(cluster: &Cluster) -> i64 {
    let leases: Api<Lease> = Api::namespaced(cluster.admin.clone(), "kube-system");
    let lease = leases.get("cp-vpc-resource-controller").await.unwrap();
    lease.spec.unwrap().acquire_time.unwrap().0.as_millisecond()
}

/// Waits until the other coordinator leads and is ready; the old one need not answer.
async fn other_leads(cluster: &mut Cluster, old: usize) {
    poll::eventually("the other leads", SOON, async || {
        match cluster.leader().await {
            Ok(Some(now)) if now != old => {}
            other => return Err(format!("{other:?}")),
        }
        let health = SimClient::new(&cluster.coordinators[1 - old].health);
        let answer = health.send(http::Method::GET, "/readyz", &[], String::new()).await;
        let answer = answer.map_err(|error| error.to_string())?;
        if answer.status == 200 { Ok(()) } else { Err(answer.body) }
    })
    .await
    .unwrap();
}

/// Pods on both nodes, half of them new and half of them ending, while EC2 answers slowly: a leader in mid batch.
async fn a_batch(cluster: &Cluster, leader: usize) {
    for n in 0..PODS {
        let spec = PodSpec::branch(&format!("ends-{n}"), &format!("node-{}", n % 2 + 1));
        cluster.create(&spec).await.unwrap();
    }
    for n in 0..PODS {
        cluster.running(&format!("ends-{n}"), SOON).await.unwrap();
    }
    for action in ["AssociateTrunkInterface", "DisassociateTrunkInterface"] {
        let slow = Ec2Fault::Error {
            status: 500,
            code: "InternalError".to_owned(),
            message: String::new(),
        };
        cluster.ec2.inject(&Fault::on(action, slow)).await.unwrap();
    }
    let from = cluster.mark().await.unwrap();
    for n in 0..PODS {
        cluster.delete("default", &format!("ends-{n}"), true).await.unwrap();
        let spec = PodSpec::branch(&format!("begins-{n}"), &format!("node-{}", n % 2 + 1));
        cluster.create(&spec).await.unwrap();
    }
    let caller = cluster.coordinators[leader].caller().to_owned();
    poll::eventually("it is in mid batch", SOON, async || {
        let calls = cluster.ec2.log(from).await.map_err(|error| error.to_string())?;
        let made = |action: &str| {
            calls.iter().filter(|c| c.caller == caller && c.action == action).count()
        };
        let (on, off) = (made("AssociateTrunkInterface"), made("DisassociateTrunkInterface"));
        if on >= 4 && off >= 4 { Ok(()) } else { Err(format!("{on} and {off}")) }
    })
    .await
    .unwrap();
}

/// What is left of the batch is done by the other, without a VLAN given twice (I2 is judged at the end).
async fn the_batch_ends(cluster: &Cluster) {
    cluster.ec2.clear_faults(None).await.unwrap();
    for n in 0..PODS {
        cluster.running(&format!("begins-{n}"), SOON).await.unwrap();
    }
}

/// EC2 requests of this coordinator that came in at or after `at_ms`.
async fn attempts(cluster: &Cluster, coordinator: usize, at_ms: i64) -> Vec<Ec2Entry> {
    let caller = cluster.coordinators[coordinator].caller();
    let calls = cluster.ec2.log(1).await.unwrap();
    calls.into_iter().filter(|c| c.caller == caller && c.arrived_ms >= at_ms).collect()
}

/// Writes of this coordinator at or after `at_ms`, as they came to the API server. Reviews change nothing.
async fn writes(cluster: &Cluster, coordinator: usize, at_ms: i64) -> Vec<LogEntry> {
    let pod = cluster.coordinators[coordinator].pod.name_any();
    let log = cluster.proxy.as_ref().unwrap().log(1).await.unwrap();
    let write = |line: &LogEntry| {
        line.pod == pod
            && line.method != "GET"
            && !line.path.ends_with("reviews")
            && line.time_ms >= at_ms
    };
    log.into_iter().filter(write).collect()
}

/// Writes but those to the lease, which a follower that hopes for it may send.
fn beside_the_lease(writes: Vec<LogEntry>) -> Vec<LogEntry> {
    writes.into_iter().filter(|line| !line.path.contains("/leases")).collect()
}

#[tokio::test]
async fn s11_a_leader_that_was_stopped_past_its_lease_sends_nothing_when_it_wakes() {
    let Some(mut cluster) = two("s11").await else { return };
    let old = cluster.led(SOON).await.unwrap();
    let before = epoch(&cluster).await;
    a_batch(&cluster, old).await;
    cluster.coordinators[old].process.signal(Signal::STOP).unwrap();
    other_leads(&mut cluster, old).await;
    assert!(epoch(&cluster).await > before);
    let taken = taken_over_ms(&cluster).await;
    the_batch_ends(&cluster).await;
    cluster.coordinators[old].process.signal(Signal::CONT).unwrap();
    // It wakes with timers that have run out, calls in the queue and answers in its sockets.
    let health = SimClient::new(&cluster.coordinators[old].health.clone());
    poll::eventually("it knows that it follows", SOON, async || {
        let answer = health.send(http::Method::GET, "/status", &[], String::new()).await;
        let answer = answer.map_err(|error| error.to_string())?;
        let status: serde_json::Value =
            serde_json::from_str(&answer.body).map_err(|error| error.to_string())?;
        if status["leading"] == false { Ok(()) } else { Err(answer.body) }
    })
    .await
    .unwrap();
    poll::throughout("it does nothing", Duration::from_secs(6), async || {
        let calls = attempts(&cluster, old, taken).await;
        let wrote = beside_the_lease(writes(&cluster, old, taken).await);
        if calls.is_empty() && wrote.is_empty() {
            Ok(())
        } else {
            Err(format!("{calls:?} {wrote:?}"))
        }
    })
    .await
    .unwrap();
    assert!(!attempts(&cluster, 1 - old, taken).await.is_empty(), "the other works meanwhile");
    assert!(!beside_the_lease(writes(&cluster, old, 0).await).is_empty(), "it wrote before");
    cluster.agents_ready(SOON).await.unwrap();
    cluster.finish().await.unwrap();
}

/// S70 turned round: the old leader lives and works, only its renewals are refused.
#[tokio::test]
async fn s70_a_leader_that_cannot_renew_stops_before_the_next_one_begins() {
    let Some(mut cluster) = two("s70 refused").await else { return };
    let old = cluster.led(SOON).await.unwrap();
    a_batch(&cluster, old).await;
    let pod = cluster.coordinators[old].pod.name_any();
    let renewals = Match { pod: Some(pod), ..Match::request("PUT", "/leases/") };
    let refused =
        ApiFault::Refuse { code: 500, reason: "InternalError".to_owned(), retry_after: None };
    let refused = cluster.api_fault(&FaultSpec::new(renewals, refused)).await.unwrap();
    other_leads(&mut cluster, old).await;
    let taken = taken_over_ms(&cluster).await;
    the_batch_ends(&cluster).await;
    assert!(attempts(&cluster, old, taken).await.is_empty());
    assert!(beside_the_lease(writes(&cluster, old, taken).await).is_empty());
    assert!(!attempts(&cluster, 1 - old, taken).await.is_empty(), "the other works meanwhile");
    assert!(!beside_the_lease(writes(&cluster, old, 0).await).is_empty(), "it wrote before");
    cluster.api_heals(refused).await.unwrap();
    cluster.agents_ready(SOON).await.unwrap();
    cluster.finish().await.unwrap();
}

/// S70: both start onto an API server that is slow to answer them, with work waiting. One leads, and goes on leading.
#[tokio::test]
async fn s70_a_slow_api_server_and_much_to_do_do_not_cost_the_lease() {
    let Some(mut cluster) = two("s70 slow").await else { return };
    let coordinators = Match { caller: Some(deploy::COORDINATOR.to_owned()), ..Match::default() };
    let slow = FaultSpec::new(coordinators, ApiFault::Delay { ms: 1_000 });
    let slow = cluster.api_fault(&slow).await.unwrap();
    cluster.led(SOON).await.unwrap();
    let before = epoch(&cluster).await;
    for index in 0..2 {
        cluster.restart_coordinator(index).unwrap();
    }
    for n in 0..PODS {
        let spec = PodSpec::branch(&format!("p-{n}"), &format!("node-{}", n % 2 + 1));
        cluster.create(&spec).await.unwrap();
    }
    poll::eventually("one of them leads a term of its own", SOON, async || {
        let now = epoch(&cluster).await;
        if now > before { Ok(()) } else { Err(format!("epoch {now}")) }
    })
    .await
    .unwrap();
    let (taken, term) = (taken_over_ms(&cluster).await, epoch(&cluster).await);
    for n in 0..PODS {
        cluster.running(&format!("p-{n}"), SOON).await.unwrap();
    }
    for n in 0..PODS {
        cluster.delete("default", &format!("p-{n}"), true).await.unwrap();
    }
    cluster.at_rest(SOON).await.unwrap();
    assert_eq!(taken_over_ms(&cluster).await, taken, "the lease did not change hands");
    assert_eq!(epoch(&cluster).await, term);
    cluster.api_heals(slow).await.unwrap();
    cluster.finish().await.unwrap();
}
