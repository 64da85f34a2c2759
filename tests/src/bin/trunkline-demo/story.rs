//! The story: trunks, branches, releases, the replayed outage, the account.

use crate::{Args, loss, outage};
use kube::{Api, ResourceExt as _};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;
use trunkline_sim::ec2::config::group_id;
use trunkline_tests::cluster::{Cluster, Options};
use trunkline_tests::objects::{self, PodSpec, RESOURCE};
use trunkline_tests::{Error, Result, poll};

const SOON: Duration = Duration::from_secs(40);
/// EC2 answers after this long, as the real one does.
const LATENCY_MS: u64 = 100;

/// What the story is about.
pub(crate) struct Cast {
    /// The cluster.
    pub(crate) cluster: Cluster,
    /// Names of the pods that must live to the end.
    pub(crate) living: Vec<String>,
    /// The viewer's token.
    pub(crate) viewer: std::path::PathBuf,
}

/// Tells it; what it was about is still running afterwards.
pub(crate) async fn run(args: &Args) -> Result<Cast> {
    let begun = Instant::now();
    println!(
        "Trunkline: pods get their own branch network interfaces, and give them back safely.\n"
    );
    println!(
        "Real: kube-apiserver, etcd, RBAC, pod-bound tokens, coordinators, agents, network links."
    );
    println!("Simulated: EC2 ({LATENCY_MS} ms a call), kubelet and CNI.");
    println!("Shortened for this demo: cooldown 2 s (production: 60 s), VLAN rest 4 s (5 min).\n");
    chapter(1, "a small cluster with two coordinators comes up");
    let options = Options {
        nodes: args.nodes.max(1),
        coordinators: 2,
        proxy: true,
        progress: true,
        ec2_flags: vec![format!("--latency-ms={LATENCY_MS}")],
        ..Options::default()
    };
    let cluster = Cluster::start(options).await?;
    let viewer = cluster.viewer().await?;
    let mut cast = Cast { cluster, living: Vec::new(), viewer };
    let leader = cast.cluster.led(SOON).await?;
    println!("  coordinator {} of 2 leads; every agent is ready", leader + 1);
    trunks(&cast).await?;
    branches(&mut cast).await?;
    releases(&mut cast).await?;
    outage::replay(&mut cast).await?;
    loss::replay(&cast).await?;
    account(&cast, begun).await?;
    Ok(cast)
}

/// Prints a heading.
pub(crate) fn chapter(number: u32, title: &str) {
    println!("\n[{number}] {title}");
}

async fn trunks(cast: &Cast) -> Result<()> {
    chapter(2, "the CNI asks for branches on its node, so each node gets a trunk");
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(cast.cluster.admin.clone());
    for name in cast.cluster.node_names() {
        let (trunk, room) = poll::eventually(&format!("{name} has its trunk"), SOON, async || {
            let node = nodes.get(&name).await.map_err(|error| error.to_string())?;
            let provider =
                node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).unwrap_or_default();
            let instance = provider.rsplit('/').next().unwrap_or_default().to_owned();
            let state = cast.cluster.ec2_state().await.map_err(|error| error.to_string())?;
            let trunk = state.trunk_of(&instance).cloned().ok_or("no trunk yet")?;
            let room = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
            let room = room.and_then(|room| room.get(RESOURCE)).map(|quantity| quantity.0.clone());
            Ok::<_, String>((trunk, room.ok_or("the node offers no branches yet")?))
        })
        .await?;
        let device = trunk.attachment.as_ref().map_or(0, |attachment| attachment.device_index);
        println!("  {name}: trunk {} at device {device}, room for {room} branches", trunk.id);
    }
    Ok(())
}

async fn branches(cast: &mut Cast) -> Result<()> {
    chapter(3, "pods ask, and get a branch with the groups of their policy");
    let group = group_id(3);
    objects::policy(&cast.cluster.admin, "default", "web", &[("role", "web")], &[&group]).await?;
    println!(
        "  policy `web`: pods with role=web get {group}; pods without a policy get their node's groups\n"
    );
    println!(
        "  {:<7} {:<7} {:<22} {:>4}  {:<13} bind to annotation",
        "pod", "node", "branch", "VLAN", "address"
    );
    let nodes = cast.cluster.node_names();
    for (number, node) in nodes.iter().cycle().take(6.max(nodes.len())).enumerate() {
        let name = format!("web-{number}");
        let mut spec = PodSpec::branch(&name, node);
        if number % 2 == 0 {
            spec = spec.label("role", "web");
        }
        let begun = Instant::now();
        cast.cluster.create(&spec).await?;
        let all = cast.cluster.annotated(&name, SOON).await?;
        let took = begun.elapsed().as_millis();
        let branch = all.first().ok_or_else(|| Error::say("an empty annotation"))?;
        println!(
            "  {name:<7} {node:<7} {:<22} {:>4}  {:<13} {took} ms",
            branch.eni_id, branch.vlan, branch.ipv4
        );
        cast.living.push(name);
    }
    for name in &cast.living {
        cast.cluster.running(name, SOON).await?;
    }
    println!("  all of them run: their VLAN links are up on their nodes");
    Ok(())
}

async fn releases(cast: &mut Cast) -> Result<()> {
    chapter(4, "pods go, and their branches follow, once the node itself has let go of them");
    let gone: Vec<String> = cast.living.drain(..2).collect();
    let mut uids = Vec::new();
    for name in &gone {
        let pod = cast.cluster.pod("default", name).await?;
        uids.push(
            pod.and_then(|pod| pod.uid()).ok_or_else(|| Error::say(format!("no pod {name}")))?,
        );
        cast.cluster.delete("default", name, false).await?;
    }
    println!(
        "  deleted {}; what their branches wait for, as `trunkline waiting` tells it:",
        gone.join(" and ")
    );
    let begun = Instant::now();
    let mut told = BTreeSet::new();
    poll::eventually("both branches are gone", SOON, async || {
        for (name, why) in waits(cast, &gone).await.map_err(|error| error.to_string())? {
            if told.insert((name.clone(), why.clone())) {
                println!("    {:>4.1} s  {name}: {why}", begun.elapsed().as_secs_f32());
            }
        }
        let state = cast.cluster.ec2_state().await.map_err(|error| error.to_string())?;
        let left = state
            .enis
            .iter()
            .filter(|eni| eni.tags.values().any(|value| uids.contains(value)))
            .count();
        if left == 0 { Ok(()) } else { Err(format!("{left} left")) }
    })
    .await?;
    println!("    {:>4.1} s  both interfaces are gone from EC2", begun.elapsed().as_secs_f32());
    Ok(())
}

/// What these pods' branches wait for, in words.
pub(crate) async fn waits(cast: &Cast, names: &[String]) -> Result<Vec<(String, String)>> {
    let text = cast.cluster.trunkline(&cast.viewer, &["waiting", "-o", "json"]).await?;
    let rows: Vec<serde_json::Value> = serde_json::from_str(&text)
        .map_err(|error| Error::say(format!("`trunkline waiting`: {error}")))?;
    let told = rows.iter().filter_map(|row| {
        let name = row.pointer("/pod/name")?.as_str()?;
        let why = row.pointer("/why/sentence").and_then(serde_json::Value::as_str)?;
        names.iter().any(|wanted| wanted == name).then(|| (name.to_owned(), why.to_owned()))
    });
    Ok(told.collect())
}

async fn account(cast: &Cast, begun: Instant) -> Result<()> {
    chapter(7, "the balance, from EC2's call log and the API server");
    cast.cluster.at_rest(SOON).await?;
    let evidence = cast.cluster.evidence().await?;
    let broken = trunkline_tests::invariants::always(&evidence);
    let ours: Vec<_> = evidence.calls.iter().filter(|call| evidence.ours(call)).collect();
    let count = |action: &str| {
        ours.iter().filter(|call| call.action == action && call.code.is_none()).count()
    };
    println!(
        "  EC2 calls of the coordinators: {}, among them {} creates, {} associates, {} disassociates, {} deletes",
        ours.len(),
        count("CreateNetworkInterface"),
        count("AssociateTrunkInterface"),
        count("DisassociateTrunkInterface"),
        count("DeleteNetworkInterface"),
    );
    for line in [
        "I1  no interface of a pod that could still run was taken away",
        "I2  no VLAN was used twice at once, nor again before its rest",
        "I3  every interface has an owner; nothing foreign was touched",
        "I4  every live pod has one annotation that is true",
        "I5  EC2's budgets were kept",
        "I6  nothing followed from an answer that was cut, late or empty",
    ] {
        let hurt = broken.iter().any(|violation| line.starts_with(violation.rule));
        println!("  {} {line}", if hurt { "BROKEN" } else { "ok" });
    }
    println!("  {} s in all", begun.elapsed().as_secs());
    match broken.first() {
        None => Ok(()),
        Some(first) => {
            Err(Error::say(format!("{} broken promises, the first: {first}", broken.len())))
        }
    }
}
