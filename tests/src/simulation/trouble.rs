//! What goes wrong for a while, or at once: crashes, restarts, reboots, partitions, lies, stale caches.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use trunkline_core::id::NodeName;

use super::coordinator::{self, Process};
use super::node::{agent, kubelet};
use super::weather::{Place, Weather};
use super::world::World;

/// The coordinators that run, by number.
pub(super) struct Coordinators {
    world: Arc<World>,
    running: Vec<Option<Process>>,
}

impl Coordinators {
    /// Starts all.
    pub(super) fn start(world: &Arc<World>) -> Self {
        let running = (0..world.plan.coordinators).map(|n| coordinator::start(world, n)).collect();
        Self { world: world.clone(), running }
    }

    fn end(&mut self, number: u32, killed: bool) {
        let slot = usize::try_from(number).ok().and_then(|n| self.running.get_mut(n));
        if let Some(process) = slot.and_then(Option::take) {
            self.world.happened(
                if killed { "coordinator-kill" } else { "coordinator-drain" },
                &number.to_string(),
            );
            if killed { process.kill() } else { process.drain() }
        }
    }

    fn begin(&mut self, number: u32) {
        let slot = usize::try_from(number).ok().and_then(|n| self.running.get_mut(n));
        if let Some(slot) = slot.filter(|slot| slot.is_none()) {
            *slot = coordinator::start(&self.world, number);
        }
    }
}

/// Makes trouble until told to stop, and mends what it broke.
pub(super) async fn run(world: Arc<World>, stop: CancellationToken) -> Coordinators {
    let mut coordinators = Coordinators::start(&world);
    *world.weather() = Weather::draw(&world.dice);
    let pause = world.dice.pick(&[20_000, 120_000, 600_000]).unwrap_or(120_000);
    // Each run has its own kinds of trouble, too.
    let kinds: Vec<u64> = (0..10).filter(|_| world.dice.chance(0.5)).collect();
    while !stop.is_cancelled() {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            () = tokio::time::sleep(world.dice.long_tailed_ms(1_000..pause * 4)) => {}
        }
        if let Some(kind) = world.dice.pick(&kinds) {
            strike(&world, &mut coordinators, kind).await;
        }
    }
    world.note("fair weather");
    *world.weather() = Weather::default();
    reset_fuse(&world, &mut coordinators);
    mend(&world);
    coordinators
}

/// The operator: lists and GETs that lied may have blown the fuse, which stays blown by design. It is reset with the
/// coordinators stopped, so that the terms to come read it.
fn reset_fuse(world: &Arc<World>, coordinators: &mut Coordinators) {
    let path = "/api/v1/namespaces/trunkline-system/configmaps/trunkline-state";
    let blown = world.store().get(path).is_some_and(|state| state.pointer("/data/fuse").is_some());
    if blown {
        world.happened("fuse-reset", "by the operator");
        for number in 0..world.plan.coordinators {
            coordinators.end(number, true);
        }
        let reset = serde_json::json!({"data": {"fuse": null}});
        let _gone = world.store().merge(world.now(), path, &reset);
    }
    for number in 0..world.plan.coordinators {
        coordinators.begin(number);
    }
}

fn mend(world: &Arc<World>) {
    for node in world.plan.node_names() {
        let found = world.machine(&node, |m| (m.up, m.kubelet.is_some(), m.agent.is_some()));
        let Some((up, has_kubelet, has_agent)) = found else { continue };
        if !up {
            world.machine(&node, super::node::machine::Machine::boot);
        }
        if !up || !has_kubelet {
            kubelet::start(world, &node);
        }
        if !up || !has_agent {
            agent::start(world, &node, true);
        }
    }
    world.store_moved.notify_waiters();
}

async fn strike(world: &Arc<World>, coordinators: &mut Coordinators, kind: u64) {
    let dice = &world.dice;
    let Some(node) = dice.pick(&world.plan.node_names()) else { return };
    let number = u32::try_from(dice.below(0..u64::from(world.plan.coordinators))).unwrap_or(0);
    let spell = dice.long_tailed_ms(2_000..400_000);
    match kind {
        0 => restart_agent(world, &node),
        1 => {
            let killed = dice.chance(0.7);
            coordinators.end(number, killed);
            tokio::time::sleep(dice.long_tailed_ms(500..60_000)).await;
            coordinators.begin(number);
        }
        2 => restart_kubelet(world, &node),
        3 => reboot(world, &node),
        4 => cut(world, Place::Node(node), Place::Api, spell),
        5 => cut(world, Place::Coordinator(number), Place::Api, spell),
        6 => cut(world, Place::Node(node), Place::Coordinator(number), spell),
        7 => {
            // Lists and GETs lie together; shorter than the slow way, which is what bounds the harm.
            world.happened("lies", node.as_str());
            world.weather().lies.insert(node.clone());
            let spell = spell.min(Duration::from_secs(90));
            later(world, spell, move |weather| weather.lies.retain(|lie| *lie != node));
        }
        8 => {
            let replica = usize::from(dice.chance(0.5));
            let behind = dice.long_tailed_ms(200..200_000);
            world.happened("cache-behind", &format!("{replica} {behind:?}"));
            let set = move |weather: &mut Weather, to| {
                if let Some(held) = weather.behind.get_mut(replica) {
                    *held = to;
                }
            };
            set(&mut world.weather(), behind);
            later(world, spell, move |weather| set(weather, Duration::ZERO));
        }
        _ => {
            let place =
                if dice.chance(0.5) { Place::Node(node) } else { Place::Coordinator(number) };
            world.happened("watches-silent", &format!("{place:?}"));
            world.weather().silent.insert(place.clone());
            world.store().compact();
            later(world, spell, move |weather| {
                weather.silent.remove(&place);
            });
        }
    }
}

/// Mends a spell after its time, unless the weather became fair before.
fn later(world: &Arc<World>, after: Duration, mend: impl FnOnce(&mut Weather) + Send + 'static) {
    let world = world.clone();
    tokio::spawn(async move {
        tokio::time::sleep(after).await;
        mend(&mut world.weather());
        world.store_moved.notify_waiters();
    });
}

fn cut(world: &Arc<World>, one: Place, other: Place, spell: Duration) {
    world.happened("cut", &format!("{one:?} {other:?} for {spell:?}"));
    let pair = (one, other);
    world.weather().cuts.insert(pair.clone());
    later(world, spell, move |weather| {
        weather.cuts.remove(&pair);
    });
}

fn restart_agent(world: &Arc<World>, node: &NodeName) {
    let killed = world.machine(node, |m| {
        let (_, life) = m.agent.take()?;
        life.over.cancel();
        Some(())
    });
    if killed.flatten().is_none() {
        return;
    }
    world.happened("agent-kill", node.as_str());
    let (world, node) = (world.clone(), node.clone());
    let keeps = world.dice.chance(0.8);
    let after = world.dice.long_tailed_ms(200..300_000);
    tokio::spawn(async move {
        tokio::time::sleep(after).await;
        if world.machine(&node, |m| m.agent.is_none()) == Some(true) {
            agent::start(&world, &node, keeps);
        }
    });
}

fn restart_kubelet(world: &Arc<World>, node: &NodeName) {
    world.machine(node, |m| m.kubelet = None);
    world.happened("kubelet-kill", node.as_str());
    let (world, node) = (world.clone(), node.clone());
    let after = world.dice.long_tailed_ms(100..200_000);
    tokio::spawn(async move {
        tokio::time::sleep(after).await;
        if world.machine(&node, |m| m.kubelet.is_none()) == Some(true) {
            kubelet::start(&world, &node);
        }
    });
}

fn reboot(world: &Arc<World>, node: &NodeName) {
    if world.machine(node, |m| m.up) != Some(true) {
        return;
    }
    world.happened("reboot", node.as_str());
    world.machine(node, super::node::machine::Machine::halt);
    let (world, node) = (world.clone(), node.clone());
    let (down, agent_after) = (world.dice.ms(5_000..120_000), world.dice.ms(500..30_000));
    tokio::spawn(async move {
        tokio::time::sleep(down).await;
        if world.machine(&node, |m| m.up) == Some(true) {
            return;
        }
        world.machine(&node, super::node::machine::Machine::boot);
        let status = serde_json::json!({"status": {"nodeInfo": {"bootID": world
            .machine(&node, |m| m.boot_id().ok().map(|id| id.to_string()))}}});
        let path = format!("/api/v1/nodes/{node}");
        let _gone = world.store().merge(world.now(), &path, &status);
        kubelet::start(&world, &node);
        tokio::time::sleep(agent_after).await;
        if world.machine(&node, |m| m.up && m.agent.is_none()) == Some(true) {
            agent::start(&world, &node, true);
        }
    });
}
