//! Runs that measure one thing in a world in which only EC2 fails: create/delete cycles, and losses of live pods' branches.
//!
//! No budgets hold calls back here, for the simulated EC2 sits at the coordinator's port, above the adapter.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use trunkline_core::id::NodeName;

use super::api::store::{is_going, text};
use super::trouble::Coordinators;
use super::weather::Weather;
use super::world::World;
use super::{losses, oracle, reasons, workload};

/// Share of EC2 calls that end in an error for the caller; of a third of them EC2 has done the work.
const ERRORS: f64 = 0.05;
/// Pods of a node at one time.
const PODS: usize = 8;
/// Pods that are to lose branches, of a node.
const LASTING: u64 = 6;
/// A branch that is known for less than five minutes is not believed to be missing; the first losses come after that.
const OLD_ENOUGH: Duration = Duration::from_secs(330);
/// How long slots and VLANs may stay taken once no pod is left: the cooldown, the longest rest, and reading anew.
const COMES_BACK_IN: Duration = Duration::from_secs(45 * 60);

fn errors() -> Weather {
    Weather { ec2_failed: ERRORS * 2.0 / 3.0, ec2_reply_lost: ERRORS / 3.0, ..Weather::default() }
}

/// So many pods come and go, on all nodes. In the end no slot is lost (S23) and no ENI is left (I3).
pub(super) async fn cycles(world: &Arc<World>, count: u64) {
    let _coordinators = Coordinators::start(world);
    *world.weather() = errors();
    let (mut made, mut left) = (0, count);
    while left > 0 {
        tokio::time::sleep(world.dice.ms(600..1_400)).await;
        let mut of_node: BTreeMap<NodeName, usize> = BTreeMap::new();
        let pods = workload::pods(world);
        for pod in &pods {
            *of_node.entry(pod.node.clone()).or_default() += 1;
            let runs = text(&pod.object, "/status/phase") == "Running" && !is_going(&pod.object);
            if runs && world.dice.chance(0.3) {
                left -= 1;
                end(world, pod);
            }
        }
        for node in world.plan.node_names() {
            // A trunk has 121 VLANs, each rests five minutes: more than two pods in five seconds would wait for one.
            if made < count
                && of_node.get(&node).copied().unwrap_or_default() < PODS
                && world.dice.chance(0.38)
                && workload::create(world, &node, &format!("web-{made}"), 1, None)
            {
                made += 1;
            }
        }
        world.store_moved.notify_waiters();
    }
    // Errors go on while the last ones are released.
    tokio::time::sleep(Duration::from_secs(600)).await;
    *world.weather() = Weather::default();
    let begun = world.now();
    loop {
        tokio::time::sleep(Duration::from_secs(30)).await;
        let open = taken(world).await;
        if open.is_empty() && oracle::unsettled(world).is_empty() {
            world.note("settled");
            return;
        }
        if world.now().since(begun) > COMES_BACK_IN {
            world.explained(reasons::told(world).await);
            let leaks = oracle::unsettled(world);
            world.broken(format!("S23, I3: slots lost: {open:?}; left: {leaks:?}"));
            return;
        }
    }
}

fn end(world: &Arc<World>, pod: &workload::Pod) {
    match world.dice.below(0..10) {
        0 | 1 => workload::force_delete(world, pod),
        _ => {
            world.happened("pod-delete", pod.uid.as_str());
            world.store().mark_deleted(world.now(), &pod.path);
        }
    }
}

/// What the leader's books still count as taken: slots, pods, and VLANs that are kept.
async fn taken(world: &Arc<World>) -> Vec<String> {
    let Some(books) = reasons::books(world).await else { return vec!["nobody leads".to_owned()] };
    let is_free = |(_, report): &(NodeName, reasons::Books)| {
        report.used == 0 && report.pods.is_empty() && report.kept.is_empty() && report.free > 0
    };
    let tell = |(node, report): (NodeName, reasons::Books)| {
        let (used, free, pods) = (report.used, report.free, report.pods.len());
        format!(
            "{node}: {used} slots taken, {free} free, {pods} pods, VLANs kept {:?}",
            report.kept
        )
    };
    let mut open: Vec<String> =
        books.iter().filter(|of_node| !is_free(of_node)).cloned().map(tell).collect();
    if books.len() != world.plan.node_names().len() {
        open.push(format!("{} nodes have books", books.len()));
    }
    open
}

/// Live pods lose branches, one loss after the other, while EC2 errs, answers late and shows the past.
pub(super) async fn losses(world: &Arc<World>, count: u64, at_once: bool) {
    let _coordinators = Coordinators::start(world);
    for node in world.plan.node_names() {
        for number in 0..LASTING {
            workload::create(world, &node, &format!("{node}-{number}"), 1, None);
        }
    }
    world.store_moved.notify_waiters();
    while !oracle::unsettled(world).is_empty() {
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    tokio::time::sleep(OLD_ENOUGH).await;
    let rates = [0.0, 0.02, 0.05, 0.15];
    let rate = || world.dice.pick(&rates).unwrap_or_default();
    let weather = Weather {
        ec2_failed: rate(),
        ec2_reply_lost: rate(),
        ec2_slow: rate(),
        ec2_lag: rate(),
        ..Weather::default()
    };
    *world.weather() = weather;
    let mut left = count;
    while left > 0 {
        // Five minutes on average: what the inventory shows at one time is seldom more than three branches, beyond which
        // the brake waits for another reading.
        tokio::time::sleep(world.dice.long_tailed_ms(60_000..900_000)).await;
        if losses::strike(world) {
            left -= 1;
            if at_once {
                losses::reveal(world);
            }
        }
    }
    *world.weather() = Weather::default();
    let begun = world.now();
    loop {
        tokio::time::sleep(Duration::from_secs(15)).await;
        losses::sweep(world);
        if oracle::unsettled(world).is_empty() && losses::unhealed(world).is_empty() {
            world.note("settled");
            return;
        }
        if world.now().since(begun) > workload::SETTLES_IN {
            world.explained(reasons::told(world).await);
            let (open, left) = (losses::unhealed(world), oracle::unsettled(world));
            world.broken(format!("I-heal: not healed: {open:?}; {left:?}"));
            return;
        }
    }
}
