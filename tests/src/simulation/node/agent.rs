//! The agent's process: the product's loop, session and list-watch, over this machine.
//!
//! As `trunkline_agent::run` puts them together, without its sockets and files. What is not run of the agent is the code
//! that reads the kernel (cgroups, links, the kubelet's socket), which has tests of its own on real ones.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use prometheus_client::registry::Registry;
use tokio::sync::mpsc;
use trunkline_agent::drive::{Driver, Ports, Start};
use trunkline_agent::look::BootIdError;
use trunkline_agent::metrics::{LoopMetrics, SessionMetrics};
use trunkline_agent::port::{JournalStore, LocalNode, LookError};
use trunkline_agent::session::{Identity, Session};
use trunkline_agent::signs::SignBoard;
use trunkline_core::id::{MacAddress, NodeName};
use trunkline_core::message::{MacOutcome, SetMac};
use trunkline_core::time::Timing;
use trunkline_core::view::{Blind, Links, Look};
use trunkline_core::witness::Journal;
use trunkline_core::witness::mac::{MacPlan, judge_mac, plan_mac};
use trunkline_kit::listwatch::{ListWatchMetrics, watch_pods};

use super::session::SimDialer;
use crate::simulation::weather::Place;
use crate::simulation::world::{Life, World};
use crate::simulation::{Mutation, api, losses};

/// Starts the agent of a machine that is up. `keeps_journal`: its state directory is as it left it.
pub fn start(world: &Arc<World>, node: &NodeName, keeps_journal: bool) {
    let life = Life::begin(Place::Node(node.clone()));
    let signs = Arc::new(SignBoard::default());
    let found = world.machine(node, |machine| {
        if !machine.up {
            return None;
        }
        if let Some((_, old)) = machine.agent.replace((signs.clone(), life.clone())) {
            old.over.cancel();
        }
        if !keeps_journal {
            machine.journal = None;
        }
        machine.cgroups.insert(machine.own_pod.clone());
        let boot = machine.boot_id().ok()?;
        Some((machine.own_pod.clone(), boot, machine.journal.clone()))
    });
    let Some((own_pod, boot, journal)) = found.flatten() else { return };
    world.happened("agent-start", node.as_str());

    let timing = Timing::default();
    let api = api::client(world, &life);
    let metrics = ListWatchMetrics::register(&mut Registry::default());
    let (pods, relist, watching) = watch_pods(api, node.clone(), world.clock, &timing, metrics);
    let (session_in, session) = mpsc::channel(64);
    let ports = Ports {
        pods,
        relist,
        node: Arc::new(Eyes { world: world.clone(), node: node.clone(), signs }),
        journal: Box::new(Shelf { world: world.clone(), node: node.clone(), life: life.clone() }),
        session,
        clock: world.clock,
    };
    let start = Start { node: node.clone(), own_pod, boot: boot.clone(), journal, timing };
    let (driver, status, kubelet) =
        Driver::new(ports, start, LoopMetrics::register(&mut Registry::default()));
    world.machine(node, |m| m.status = Some(status));
    let Ok(id) = Identity::random_session() else { return };
    let identity =
        Identity { session: id, node: node.clone(), boot, build: "simulation".to_owned() };
    let dialer = SimDialer { world: world.clone(), node: node.clone(), life: life.clone() };
    let session = Session::new(
        Arc::new(dialer),
        identity,
        kubelet,
        session_in,
        SessionMetrics::register(&mut Registry::default()),
        timing.heartbeat,
    );
    until_over(&life, watching);
    until_over(&life, async move {
        let _ended = driver.run().await;
    });
    until_over(&life, session.run());
}

/// Runs a task that dies with its process, wherever it is.
fn until_over(life: &Arc<Life>, task: impl Future<Output = ()> + Send + 'static) {
    let life = life.clone();
    tokio::spawn(async move {
        tokio::select! {
            biased;
            () = life.over.cancelled() => {}
            () = task => {}
        }
    });
}

/// Looks at the machine.
struct Eyes {
    world: Arc<World>,
    node: NodeName,
    signs: Arc<SignBoard>,
}

fn no_boot_id() -> LookError {
    let source = std::io::Error::other("simulated");
    LookError(BootIdError::Read { path: "boot_id".into(), source })
}

impl LocalNode for Eyes {
    fn look(&self) -> BoxFuture<'static, Result<Look, LookError>> {
        let (world, node) = (self.world.clone(), self.node.clone());
        Box::pin(async move {
            let failed = world.weather().look_failed;
            let pause = || async {
                if world.dice.chance(failed) {
                    tokio::time::sleep(world.dice.long_tailed_ms(5..9_000)).await;
                } else if world.dice.chance(0.1) {
                    tokio::time::sleep(world.dice.ms(1..30)).await;
                }
            };
            if world.dice.chance(failed) {
                return Err(no_boot_id());
            }
            let at = world.now();
            let look = world.machine(&node, |m| {
                Some(Look {
                    at,
                    boot: m.boot_id().ok()?,
                    kubelet_before: m.look_at_kubelet(),
                    cgroups: Err(Blind::NotRead),
                    links: Err(Blind::NotRead),
                    kubelet_after: m.look_at_kubelet(),
                })
            });
            let Some(mut look) = look.flatten() else { return Err(no_boot_id()) };
            pause().await;
            look.cgroups = if world.dice.chance(failed) {
                Err(Blind::ReadFailed)
            } else {
                Ok(world.machine(&node, |m| m.cgroups.clone()).unwrap_or_default())
            };
            pause().await;
            look.links = if world.dice.chance(failed) {
                Err(Blind::ReadFailed)
            } else {
                Ok(Links(links(&world, &node)))
            };
            pause().await;
            let after = world.machine(&node, |m| m.look_at_kubelet());
            look.kubelet_after = after.unwrap_or(look.kubelet_after);
            lie(&world, &node, &mut look);
            Ok(look)
        })
    }

    fn signs(&self) -> Arc<SignBoard> {
        self.signs.clone()
    }

    fn set_mac(&self, set: SetMac, trunk: MacAddress) -> BoxFuture<'static, MacOutcome> {
        let (world, node) = (self.world.clone(), self.node.clone());
        Box::pin(async move {
            match plan_mac(&Links(links(&world, &node)), &set, trunk) {
                MacPlan::Over(outcome) => outcome,
                MacPlan::Already(_) => MacOutcome::Already,
                MacPlan::Change(index) => {
                    tokio::time::sleep(world.dice.ms(1..40)).await;
                    world.machine(&node, |m| m.set_mac(index, set.to));
                    losses::look(&world);
                    let found = Links(links(&world, &node));
                    world.happened("mac-set", node.as_str());
                    judge_mac(&found, &set, index).unwrap_or(MacOutcome::Done)
                }
            }
        })
    }

    fn clear_neighbours(&self, _: Vec<IpAddr>) -> BoxFuture<'static, ()> {
        // There is no traffic here that a neighbour entry could mislead.
        Box::pin(std::future::ready(()))
    }
}

fn links(world: &World, node: &NodeName) -> Vec<trunkline_core::view::Link> {
    let instance = world.machine(node, |m| m.instance.clone());
    let macs: Vec<_> = instance
        .map(|id| world.account().attached_to(&id).map(|eni| eni.mac).collect())
        .unwrap_or_default();
    world.machine(node, |m| m.links(macs.into_iter())).unwrap_or_default()
}

/// What an agent would tell that looks at the wrong place.
fn lie(world: &World, node: &NodeName, look: &mut Look) {
    if world.plan.mutation != Some(Mutation::CgroupsIgnored) {
        return;
    }
    let own = world.machine(node, |m| m.own_pod.clone());
    if let (Ok(cgroups), Some(own)) = (&mut look.cgroups, own) {
        cgroups.retain(|uid| *uid == own);
    }
    if let Ok(links) = &mut look.links {
        links.0.retain(|link| link.branch_vlan().is_none());
    }
}

/// The state directory.
struct Shelf {
    world: Arc<World>,
    node: NodeName,
    life: Arc<Life>,
}

impl JournalStore for Shelf {
    fn save(&mut self, journal: &Journal) -> std::io::Result<()> {
        if !self.life.is_over() {
            self.world.machine(&self.node, |m| m.journal = Some(journal.clone()));
        }
        Ok(())
    }
}

/// How long a token lives.
pub const TOKEN_LIFE: Duration = Duration::from_secs(3_600);
