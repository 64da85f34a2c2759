//! Faults on the node and on the way between agent and coordinator: partitions, late messages, stopped and restarted
//! programs, reboots, sandboxes that die, plugins that are slow, and what comes back after a pod's end.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test's helpers")]

use kube::ResourceExt as _;
use rustix::process::Signal;
use std::time::Duration;
use trunkline_sim::node::model::{KubeletAction, LateCreate, LinkState, What};
use trunkline_sim::proxy::model::{FaultKind, FaultSpec, Match};
use trunkline_sim::relay::Mode;
use trunkline_tests::cluster::campaign::{SOON, Served};
use trunkline_tests::cluster::{Cluster, Options};
use trunkline_tests::objects::PodSpec;
use trunkline_tests::poll;

/// Longer than way (b) and the coordinator's patience with a silent agent, with the durations of these tests.
const LONG: Duration = Duration::from_secs(7);
const SLOW_ADD: &str = "sim.trunkline.dev/slow-add";
const SLOW_DEL: &str = "sim.trunkline.dev/slow-del";

/// Waits until the node simulator's record has a line of this kind about a pod (or a node), and returns its wall time.
async fn recorded(cluster: &Cluster, uid: &str, node: &str, what: What, from: u64) -> i64 {
    poll::eventually(&format!("{what:?} of {uid} on {node}"), SOON, async || {
        let log = cluster.nodes.log(from).await.map_err(|error| error.to_string())?;
        let found = log.iter().find(|e| e.what == what && e.node == node && e.uid == uid);
        found.map(|entry| entry.time_ms).ok_or_else(|| "not yet".to_owned())
    })
    .await
    .unwrap()
}

async fn node_mark(cluster: &Cluster) -> u64 {
    cluster.nodes.log(1).await.unwrap().len() as u64 + 1
}

/// When this ENI was disassociated.
async fn parted_at(cluster: &Cluster, eni: &str) -> i64 {
    use trunkline_sim::ec2::model::Effect;
    let log = cluster.ec2.log(1).await.unwrap();
    let parted = |effect: &Effect| matches!(effect, Effect::AssociationRemoved { branch, .. } if branch == eni);
    log.iter().find(|call| call.effects.iter().any(parted)).unwrap().wall_ms
}

#[tokio::test]
async fn s09_partitions_late_messages_and_agents_that_stop() {
    let Some(mut cluster) =
        Cluster::for_test("s09", Options::default().nodes(2).relayed()).await.unwrap()
    else {
        return;
    };
    let live = vec![
        cluster.serve("live-1", "node-1").await.unwrap(),
        cluster.serve("live-2", "node-2").await.unwrap(),
    ];
    partitions(&cluster, &live).await;
    s09_late_messages(&cluster).await;
    a_stopped_agent(&mut cluster, &live).await;
    Box::pin(s57_a_node_without_agent(&mut cluster, &live)).await;
    cluster.still_served(&live).await.unwrap();
    cluster.conclude("s09").await.unwrap();
}

/// Neither a frozen way nor a cut one is a reason for anything; afterwards everything catches up.
async fn partitions(cluster: &Cluster, live: &[Served]) {
    let relay = || cluster.coordinators[0].relay.as_ref().unwrap();
    for mode in [Mode::Freeze, Mode::Cut] {
        let name = format!("{mode:?}").to_lowercase();
        let forced = cluster.serve(&format!("forced-{name}"), "node-1").await.unwrap();
        let ended = cluster.serve(&format!("ended-{name}"), "node-2").await.unwrap();
        let from = cluster.mark().await.unwrap();
        relay().set(mode);
        cluster.force_away(&forced).await.unwrap();
        cluster.delete("default", &ended.name, false).await.unwrap();
        cluster.off_node(&ended.uid).await.unwrap();
        let waits = format!("waits-{name}");
        let waiting = cluster.create(&PodSpec::branch(&waits, "node-1")).await.unwrap();
        cluster.nothing_released(from, LONG).await.unwrap();
        relay().set(Mode::Pass);
        cluster.released(&forced.uid, SOON).await.unwrap();
        cluster.released(&ended.uid, SOON).await.unwrap();
        cluster.running(&waits, SOON).await.unwrap();
        cluster.served(&waits, &waiting.uid().unwrap()).await.unwrap();
        cluster.still_served(live).await.unwrap();
    }
}

/// S09: churn while everything between the two arrives late. Barriers still answer within their time.
async fn s09_late_messages(cluster: &Cluster) {
    let relay = cluster.coordinators[0].relay.as_ref().unwrap();
    relay.set(Mode::Late(Duration::from_millis(600)));
    let mut ended = Vec::new();
    for round in 0..3 {
        let mut made = Vec::new();
        for node in ["node-1", "node-2"] {
            let name = format!("late-{round}-{node}");
            let pod = cluster.create(&PodSpec::branch(&name, node)).await.unwrap();
            made.push((name, pod.uid().unwrap()));
        }
        for (name, uid) in made {
            // The first goes before anything is known of it, the others from their running.
            if round > 0 {
                cluster.running(&name, SOON).await.unwrap();
            }
            cluster.delete("default", &name, round % 2 == 0).await.unwrap();
            ended.push(uid);
        }
    }
    for uid in ended {
        cluster.released(&uid, SOON).await.unwrap();
    }
    relay.set(Mode::Pass);
}

/// SIGSTOP for longer than the coordinator waits; the kubelet is restarted meanwhile, so that what the agent saw before
/// is worth nothing when it goes on.
async fn a_stopped_agent(cluster: &mut Cluster, live: &[Served]) {
    let gone = cluster.serve("gone-while-stopped", "node-1").await.unwrap();
    let from = cluster.mark().await.unwrap();
    cluster.agents["node-1"].process.signal(Signal::STOP).unwrap();
    cluster.force_away(&gone).await.unwrap();
    let waiting = cluster.create(&PodSpec::branch("waits-stopped", "node-1")).await.unwrap();
    cluster.nodes.kubelet("node-1", KubeletAction::Restart).await.unwrap();
    cluster.nothing_released(from, LONG).await.unwrap();
    // The other node is not concerned.
    cluster.serve("meanwhile", "node-2").await.unwrap();
    cluster.agents["node-1"].process.signal(Signal::CONT).unwrap();
    cluster.released(&gone.uid, SOON).await.unwrap();
    cluster.running("waits-stopped", SOON).await.unwrap();
    cluster.served("waits-stopped", &waiting.uid().unwrap()).await.unwrap();
    cluster.still_served(live).await.unwrap();
}

/// S57: the DaemonSet's pod is evicted; pods come and go without it; a new one comes.
async fn s57_a_node_without_agent(cluster: &mut Cluster, live: &[Served]) {
    let gone = cluster.serve("gone-without-agent", "node-2").await.unwrap();
    let from = cluster.mark().await.unwrap();
    cluster.stop_agent("node-2").await.unwrap();
    cluster.force_away(&gone).await.unwrap();
    let waiting = cluster.create(&PodSpec::branch("waits-for-agent", "node-2")).await.unwrap();
    cluster.nothing_released(from, LONG).await.unwrap();
    cluster.start_agent("node-2").await.unwrap();
    cluster.released(&gone.uid, SOON).await.unwrap();
    cluster.running("waits-for-agent", SOON).await.unwrap();
    cluster.served("waits-for-agent", &waiting.uid().unwrap()).await.unwrap();
    cluster.still_served(live).await.unwrap();
}

async fn two_nodes(test: &str) -> Option<(Cluster, Vec<Served>)> {
    let options = Options::default().nodes(2).proxied();
    let cluster = Cluster::for_test(test, options).await.unwrap()?;
    let live = vec![
        cluster.serve("live-1", "node-1").await.unwrap(),
        cluster.serve("live-2", "node-2").await.unwrap(),
    ];
    Some((cluster, live))
}

#[tokio::test]
async fn s07_s10_kubelets_that_restart_and_nodes_that_reboot() {
    let Some((mut cluster, live)) = two_nodes("s07 node").await else { return };
    a_kubelet_restart_withdraws_what_was_seen(&cluster).await;
    a_stopped_kubelet(&cluster, &live).await;
    s07_a_reboot(&mut cluster, &live).await;
    cluster.conclude("s07 node").await.unwrap();
}

#[tokio::test]
async fn s10_sandboxes_that_die_slow_plugins_and_what_comes_back() {
    let Some((cluster, live)) = two_nodes("s10").await else { return };
    a_sandbox_dies(&cluster, &live).await;
    slow_plugins(&cluster).await;
    a_late_link(&cluster).await;
    a_late_cgroup(&cluster).await;
    cluster.still_served(&live).await.unwrap();
    cluster.conclude("s10").await.unwrap();
}

/// The agent's evidence is complete and told; while the coordinator asks the API server, the kubelet restarts. What was
/// seen is withdrawn, and the slow way is gone from its beginning.
async fn a_kubelet_restart_withdraws_what_was_seen(cluster: &Cluster) {
    let pod = cluster.serve("restarted-under", "node-1").await.unwrap();
    let get = Match::request("GET", "/namespaces/default/pods/restarted-under");
    let held = cluster.api_fault(&FaultSpec::new(get, FaultKind::Hold)).await.unwrap();
    cluster.force_away(&pod).await.unwrap();
    cluster.api_struck(held, 1).await.unwrap();
    let mark = node_mark(cluster).await;
    cluster.nodes.kubelet("node-1", KubeletAction::Restart).await.unwrap();
    let restarted = recorded(cluster, "", "node-1", What::KubeletStarted, mark).await;
    cluster.api_heals(held).await.unwrap();
    cluster.released(&pod.uid, SOON).await.unwrap();
    let waited = parted_at(cluster, &pod.eni).await - restarted;
    let slow = cluster.options().timings.get("slow_release").unwrap();
    assert!(
        waited >= i64::try_from(slow.as_millis()).unwrap(),
        "released {waited} ms after the kubelet's start"
    );
}

/// No kubelet answers: no look counts, however empty the node is.
async fn a_stopped_kubelet(cluster: &Cluster, live: &[Served]) {
    let pod = cluster.serve("under-no-kubelet", "node-1").await.unwrap();
    let from = cluster.mark().await.unwrap();
    cluster.nodes.kubelet("node-1", KubeletAction::Stop).await.unwrap();
    cluster.delete("default", &pod.name, true).await.unwrap();
    cluster.nothing_released(from, LONG).await.unwrap();
    cluster.nodes.kubelet("node-1", KubeletAction::Start).await.unwrap();
    cluster.released(&pod.uid, SOON).await.unwrap();
    cluster.still_served(live).await.unwrap();
}

/// S07: pods come back with the ENIs they had; one that was deleted while the machine was off goes the slow way. The agent
/// and its journal die with the boot.
async fn s07_a_reboot(cluster: &mut Cluster, live: &[Served]) {
    let pod = cluster.serve("off", "node-2").await.unwrap();
    let from = cluster.mark().await.unwrap();
    cluster.agents.get_mut("node-2").unwrap().process.kill();
    let off = cluster.nodes.kubelet("node-2", KubeletAction::PowerOff).await.unwrap();
    for entry in std::fs::read_dir(off.state_dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            std::fs::remove_file(path).unwrap();
        }
    }
    cluster.delete("default", &pod.name, true).await.unwrap();
    cluster.nothing_released(from, LONG).await.unwrap();
    cluster.nodes.kubelet("node-2", KubeletAction::Reboot).await.unwrap();
    cluster.restart_agent("node-2").await.unwrap();
    cluster.still_served(live).await.unwrap();
    cluster.released(&pod.uid, SOON).await.unwrap();
    cluster.agent_ready("node-2", true).await.unwrap();
    cluster.serve("after-boot", "node-2").await.unwrap();
}

/// The link goes and comes back under a live pod: nothing happens in EC2.
async fn a_sandbox_dies(cluster: &Cluster, live: &[Served]) {
    let from = cluster.mark().await.unwrap();
    let spec = PodSpec::branch("reborn", "node-1").annotation(SLOW_DEL, "1s");
    let pod = cluster.serve_as(&spec).await.unwrap();
    for _ in 0..2 {
        let before = node_mark(cluster).await;
        cluster.nodes.restart_sandbox("node-1", &pod.uid).await.unwrap();
        recorded(cluster, &pod.uid, "node-1", What::LinkGone, before).await;
        recorded(cluster, &pod.uid, "node-1", What::Running, before).await;
    }
    cluster.nothing_released(from, Duration::from_secs(1)).await.unwrap();
    let mut all = live.to_vec();
    all.push(pod.clone());
    cluster.still_served(&all).await.unwrap();
    // Deleted in the middle of it.
    let mark = node_mark(cluster).await;
    cluster.nodes.restart_sandbox("node-1", &pod.uid).await.unwrap();
    recorded(cluster, &pod.uid, "node-1", What::SandboxRestarted, mark).await;
    cluster.delete("default", &pod.name, true).await.unwrap();
    cluster.released(&pod.uid, SOON).await.unwrap();
}

/// A plugin that was started finishes what it began: the pod's object is gone, its link is still to come.
async fn slow_plugins(cluster: &Cluster) {
    for (name, key) in [("slow-add", SLOW_ADD), ("slow-del", SLOW_DEL)] {
        let mark = node_mark(cluster).await;
        let spec = PodSpec::branch(name, "node-1").annotation(key, "4s");
        let pod = cluster.create(&spec).await.unwrap();
        let uid = pod.uid().unwrap();
        let eni = cluster.annotated(name, SOON).await.unwrap().remove(0).eni_id;
        if key == SLOW_DEL {
            cluster.running(name, SOON).await.unwrap();
        }
        cluster.delete("default", name, true).await.unwrap();
        let gone = recorded(cluster, &uid, "node-1", What::CgroupGone, mark).await;
        cluster.released(&uid, SOON).await.unwrap();
        assert!(parted_at(cluster, &eni).await >= gone, "{name}");
    }
}

/// A child of a plugin makes the link after everything has gone and the ENI was released: its VLAN is not handed out as
/// long as it is there.
async fn a_late_link(cluster: &Cluster) {
    let pod = cluster.serve("late-link", "node-1").await.unwrap();
    cluster.delete("default", &pod.name, true).await.unwrap();
    cluster.released(&pod.uid, SOON).await.unwrap();
    let link = LinkState { name: format!("vlan.eth.{}", pod.vlan), mac: pod.mac.clone() };
    let late = LateCreate {
        node: "node-1".to_owned(),
        uid: pod.uid.clone(),
        cgroup: false,
        link: Some(link.clone()),
        for_ms: 12_000,
    };
    cluster.nodes.late_create(&late).await.unwrap();
    // More pods, one after the other, than a rest of four seconds keeps apart: VLANs come round.
    for round in 0..4 {
        let next = cluster.serve(&format!("beside-{round}"), "node-1").await.unwrap();
        let there = cluster.nodes.links("node-1").await.unwrap().contains(&link);
        assert!(!there || next.vlan != pod.vlan, "{next:?}");
        cluster.delete("default", &next.name, false).await.unwrap();
        cluster.released(&next.uid, SOON).await.unwrap();
    }
}

/// A kubelet on a stale server starts the pod again when the agent's evidence is complete and told, and the coordinator
/// still asks the API server: what is back withdraws it.
async fn a_late_cgroup(cluster: &Cluster) {
    let pod = cluster.serve("late-cgroup", "node-2").await.unwrap();
    let from = cluster.mark().await.unwrap();
    let get = Match::request("GET", "/namespaces/default/pods/late-cgroup");
    let held = cluster.api_fault(&FaultSpec::new(get, FaultKind::Hold)).await.unwrap();
    cluster.force_away(&pod).await.unwrap();
    cluster.api_struck(held, 1).await.unwrap();
    let late = LateCreate {
        node: "node-2".to_owned(),
        uid: pod.uid.clone(),
        cgroup: true,
        link: Some(LinkState { name: format!("vlan.eth.{}", pod.vlan), mac: pod.mac.clone() }),
        for_ms: 8_000,
    };
    cluster.nodes.late_create(&late).await.unwrap();
    cluster.api_heals(held).await.unwrap();
    cluster.nothing_released(from, Duration::from_secs(5)).await.unwrap();
    // It comes once it has gone for good.
    cluster.released(&pod.uid, SOON).await.unwrap();
}
