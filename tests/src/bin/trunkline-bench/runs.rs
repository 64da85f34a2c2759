//! The measurements.

use crate::figures::{resident, spread, ticks};
use kube::ResourceExt as _;
use std::time::Duration;
use tokio::time::Instant;
use trunkline_sim::ec2::model::{Effect, LogEntry};
use trunkline_tests::cluster::{Cluster, Options};
use trunkline_tests::objects::PodSpec;
use trunkline_tests::{Error, Result, now_ms, poll};

const LONG: Duration = Duration::from_mins(3);

fn latency(ms: u32) -> Vec<String> {
    vec![format!("--latency-ms={ms}")]
}

/// When the pod was first seen, and when it first had its annotation.
fn served(cluster: &Cluster, uid: &str) -> Option<(i64, i64)> {
    let states = cluster.history.of(uid);
    let made = states.first()?.time_ms;
    Some((made, states.iter().find(|state| state.annotation.is_some())?.time_ms))
}

async fn all_served(cluster: &Cluster, uids: &[String]) -> Result<Vec<(i64, i64)>> {
    poll::eventually("every pod has its annotation", LONG, async || {
        let times: Vec<_> = uids.iter().filter_map(|uid| served(cluster, uid)).collect();
        if times.len() == uids.len() {
            Ok(times)
        } else {
            Err(format!("{} of {}", times.len(), uids.len()))
        }
    })
    .await
}

async fn make(cluster: &Cluster, name: &str, node: &str) -> Result<String> {
    let pod = cluster.create(&PodSpec::branch(name, node)).await?;
    pod.uid().ok_or_else(|| Error::say("a pod without UID"))
}

/// Production durations, but for those that the first pods would wait for.
fn production() -> Options {
    let mut options = Options { lease: [15, 10, 2], ..Options::default() };
    options.timings = trunkline_tests::cluster::Timings::production();
    for (field, seconds) in
        [("cooldown_floor", 2), ("cooldown_default", 2), ("vlan_rest", 4), ("vlan_rest_unseen", 8)]
    {
        options = options.timing(field, Duration::from_secs(seconds));
    }
    options
}

/// A pod a node comes and stays, so that trunks, views and connections are there before anything is measured; then
/// EC2's buckets fill again.
async fn warm(cluster: &Cluster) -> Result<()> {
    let mut uids = Vec::new();
    for node in cluster.node_names() {
        uids.push(make(cluster, &format!("warm-{node}"), &node).await?);
    }
    all_served(cluster, &uids).await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    Ok(())
}

/// Single pods, one after the other.
pub(crate) async fn singles(count: u32) -> Result<()> {
    println!("singles: {count} single pods on an idle system, EC2 {} ms a call", 100);
    let options = Options {
        ec2_flags: latency(100),
        ..Options::default().nodes(2).instance_type("m5.24xlarge")
    };
    let cluster = Cluster::start(options).await?;
    warm(&cluster).await?;
    let mut times = Vec::new();
    for number in 0..count {
        let uid = make(&cluster, &format!("single-{number}"), &format!("node-{}", number % 2 + 1))
            .await?;
        times.extend(
            all_served(&cluster, &[uid]).await?.into_iter().map(|(made, served)| served - made),
        );
        // Idle again: EC2's buckets refill 5 a second, and a person does not create pods back to back.
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    spread("bind to annotation", times);
    println!("  wanted: p50 below 1000 ms, p99 below 3000 ms");
    cluster.finish_within(LONG).await
}

/// Many pods at once.
pub(crate) async fn burst() -> Result<()> {
    const PODS: u32 = 80;
    println!(
        "burst: {PODS} pods at once on 10 nodes, under EC2's buckets (Associate 50, then 5 a second)"
    );
    // Room for 8 pods a node beside the one that warms it up.
    let options = Options { ec2_flags: latency(100), ..Options::default().nodes(10) };
    let cluster = Cluster::start(options).await?;
    warm(&cluster).await?;
    let names: Vec<_> =
        (0..PODS).map(|n| (format!("burst-{n}"), format!("node-{}", n % 10 + 1))).collect();
    let made =
        futures::future::try_join_all(names.iter().map(|(name, node)| make(&cluster, name, node)));
    let uids = made.await?;
    let times = all_served(&cluster, &uids).await?;
    let begun = times.iter().map(|(made, _)| *made).min().unwrap_or_default();
    let last = times.iter().map(|(_, served)| *served).max().unwrap_or_default();
    spread("creation to annotation", times.iter().map(|(made, served)| served - made).collect());
    // 50 at once, the other 30 at 5 a second; and one create, one associate.
    println!(
        "  all after {} ms; the buckets allow {} ms",
        last - begun,
        (PODS - 50) * 1000 / 5 + 200
    );
    cluster.finish_within(LONG).await
}

/// EC2 calls a pod, and how soon a slot is free.
pub(crate) async fn release() -> Result<()> {
    const PODS: u32 = 8;
    println!("release: {PODS} pods given and taken, EC2 100 ms a call");
    let options = Options { ec2_flags: latency(100), ..Options::default() };
    let cluster = Cluster::start(options).await?;
    warm(&cluster).await?;
    let start = cluster.ec2_state().await?.seq + 1;
    let mut uids = Vec::new();
    for number in 0..PODS {
        uids.push(make(&cluster, &format!("pod-{number}"), "node-1").await?);
    }
    all_served(&cluster, &uids).await?;
    for number in 0..PODS {
        cluster.running(&format!("pod-{number}"), LONG).await?;
    }
    let given = mutations(&cluster, start).await?;
    let middle = cluster.ec2_state().await?.seq + 1;
    for number in 0..PODS {
        cluster.delete("default", &format!("pod-{number}"), false).await?;
    }
    for uid in &uids {
        cluster.released(uid, LONG).await?;
    }
    let taken = mutations(&cluster, middle).await?;
    println!(
        "  mutations to give {PODS}: {} (2 a pod wanted), to take: {}",
        given.len(),
        taken.len()
    );
    let parted = |uid: &String| {
        let tags_of = |call: &LogEntry| {
            call.effects.iter().any(|effect| {
                matches!(effect, Effect::AssociationRemoved { tags, .. } if tags.values().any(|value| value == uid))
            })
        };
        let call = taken.iter().find(|call| tags_of(call))?;
        let gone = cluster.history.of(uid).iter().find(|state| state.deleted)?.time_ms;
        Some(call.wall_ms - gone)
    };
    spread("pod gone to slot free (5000 ms wanted)", uids.iter().filter_map(parted).collect());
    cluster.finish_within(LONG).await
}

async fn mutations(cluster: &Cluster, from: u64) -> Result<Vec<LogEntry>> {
    let calls = cluster.ec2.log(from).await.map_err(|error| Error::say(error.to_string()))?;
    let caller = trunkline_tests::cluster::CALLERS;
    Ok(calls
        .into_iter()
        .filter(|c| c.caller.starts_with(caller) && !c.action.starts_with("Describe"))
        .collect())
}

/// Memory and CPU at rest, with production durations.
pub(crate) async fn idle() -> Result<()> {
    println!("idle: 2 nodes, 2 coordinators, 8 branches, production durations, 30 s");
    let options = production().nodes(2).coordinators(2);
    let cluster = Cluster::start(options).await?;
    let mut uids = Vec::new();
    for number in 0..8 {
        uids.push(
            make(&cluster, &format!("pod-{number}"), &format!("node-{}", number % 2 + 1)).await?,
        );
    }
    all_served(&cluster, &uids).await?;
    let agents = cluster.agents.values().map(|agent| &agent.process);
    let processes: Vec<_> = agents.chain(cluster.coordinators.iter().map(|c| &c.process)).collect();
    let before: Vec<_> =
        processes.iter().map(|process| ticks(process.id())).collect::<Result<_>>()?;
    tokio::time::sleep(Duration::from_secs(30)).await;
    for (process, before) in processes.iter().zip(before) {
        let used = (ticks(process.id())? - before) * 10;
        println!(
            "  {}: {} KiB resident, {used} ms of CPU in 30 s",
            process.name(),
            resident(process.id())?
        );
    }
    let broken = cluster.violations().await?;
    broken.first().map_or(Ok(()), |violation| Err(Error::say(violation.to_string())))
}

/// All coordinators restart on a large cluster.
pub(crate) async fn restart(nodes: u32) -> Result<()> {
    // One for each agent, and some that others on this machine may have.
    let _inotify = crate::inotify::room_for(nodes + 64)?;
    println!("restart: {nodes} nodes with 8 branches each, EC2's buckets off while they are made");
    let begun = Instant::now();
    let mut options = Options {
        ec2_flags: vec!["--no-throttle".to_owned()],
        progress: true,
        ..production().nodes(nodes)
    };
    options.coordinator_flags = vec!["--ec2-budget=false".to_owned()];
    options.budget = false;
    let mut cluster = Cluster::start(options).await?;
    println!("  {nodes} nodes and agents are up after {} s", begun.elapsed().as_secs());
    let names: Vec<_> =
        (0..nodes * 8).map(|n| (format!("pod-{n}"), format!("node-{}", n % nodes + 1))).collect();
    let mut uids = Vec::new();
    for some in names.chunks(64) {
        let made = futures::future::try_join_all(
            some.iter().map(|(name, node)| make(&cluster, name, node)),
        );
        let made = made.await?;
        all_served(&cluster, &made).await?;
        uids.extend(made);
        println!("  {} pods have their branch after {} s", uids.len(), begun.elapsed().as_secs());
    }
    cluster.ec2.set_throttle(true).await.map_err(|error| Error::say(error.to_string()))?;
    println!("  {} branches are there", uids.len());
    let from = cluster.ec2_state().await?.seq + 1;
    let begun = now_ms();
    for index in 0..cluster.coordinators.len() {
        cluster.restart_coordinator(index)?;
    }
    let uid = make(&cluster, "first", "node-1").await?;
    let served = all_served(&cluster, &[uid]).await?;
    let last = served.iter().map(|(_, served)| *served).max().unwrap_or(begun);
    let calls = cluster.ec2.log(from).await.map_err(|error| Error::say(error.to_string()))?;
    let reads = calls.iter().filter(|call| call.action.starts_with("Describe")).count();
    let changed = mutations(&cluster, from).await?.len();
    let ours =
        calls.iter().filter(|call| call.caller.starts_with(trunkline_tests::cluster::CALLERS));
    let led = ours.map(|call| call.wall_ms).min().unwrap_or(begun);
    println!(
        "  first new pod served {} ms after the kill, {} ms after the new term's first EC2 call (the lease of the killed leader has to run out first)",
        last - begun,
        last - led
    );
    println!("  until then {reads} EC2 reads, {changed} mutations (2 of them for the new pod)");
    for coordinator in &cluster.coordinators {
        println!("  coordinator: {} KiB resident", resident(coordinator.process.id())?);
    }
    if let Some(agent) = cluster.agents.values().next() {
        println!("  an agent: {} KiB resident", resident(agent.process.id())?);
    }
    let broken = cluster.violations().await?;
    broken.first().map_or(Ok(()), |violation| Err(Error::say(violation.to_string())))
}
