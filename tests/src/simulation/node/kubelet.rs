//! The kubelet: from the API's view of its node's pods to one worker for each.
//!
//! It acts on what it sees, which may be old: cut off from the API it keeps its pods running, restarts their sandboxes, and
//! knows nothing of deletions. It starts with a consistent list (1.36); without an API server it starts no pod at all.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use trunkline_core::id::{NodeName, PodUid};

use super::machine::{Local, Order, Stage};
use super::worker;
use crate::simulation::api::store::{Selection, is_going, text};
use crate::simulation::weather::Place;
use crate::simulation::world::World;

/// Namespace whose pods the harness keeps.
pub const OWN_NAMESPACE: &str = "trunkline-system";

/// Starts a kubelet on a machine that is up; the one before it is gone.
pub fn start(world: &Arc<World>, node: &NodeName) {
    let now = world.now().0;
    let started = world.machine(node, |machine| {
        if !machine.up {
            return None;
        }
        machine.last_start = (machine.last_start + 1).max(now);
        machine.kubelet = Some(machine.last_start);
        Some(machine.last_start)
    });
    let Some(start) = started.flatten() else { return };
    world.happened("kubelet-start", node.as_str());
    tokio::spawn(run(world.clone(), node.clone(), start));
}

async fn run(world: Arc<World>, node: NodeName, start: u64) {
    tokio::time::sleep(world.dice.ms(200..1_500)).await;
    let here = Place::Node(node.clone());
    while world.is_cut(&here, &Place::Api) {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let is_current = || world.machine(&node, |m| m.is_kubelet(start)) == Some(true);
    while is_current() {
        let moved = world.store_moved.notified();
        tokio::pin!(moved);
        moved.as_mut().enable();
        if !world.is_cut(&here, &Place::Api) {
            reconcile(&world, &node, start);
        }
        tokio::select! {
            biased;
            () = moved => {}
            () = tokio::time::sleep(Duration::from_secs(20)) => {}
        }
        tokio::time::sleep(world.dice.ms(5..400)).await;
    }
}

/// Starts and stops workers as the API's pods ask for.
fn reconcile(world: &Arc<World>, node: &NodeName, start: u64) {
    let pods = {
        let store = world.store();
        store.list_at(&Selection::PodsOfNode(node.to_string()), store.rv())
    };
    let mut seen = std::collections::BTreeSet::new();
    for pod in &pods {
        let Ok(uid) = text(pod, "/metadata/uid").parse::<PodUid>() else { continue };
        if text(pod, "/metadata/namespace") == OWN_NAMESPACE {
            continue;
        }
        let ended = matches!(text(pod, "/status/phase"), "Succeeded" | "Failed");
        if !ended && !is_going(pod) {
            seen.insert(uid.clone());
        }
        look_after(world, node, start, pod, &uid, ended);
    }
    let gone: Vec<PodUid> = world
        .machine(node, |m| m.locals.keys().filter(|uid| !seen.contains(*uid)).cloned().collect())
        .unwrap_or_default();
    for uid in gone {
        adopt(world, node, start, &uid);
        world.machine(node, |m| m.order(&uid, Order::Stop));
    }
}

/// A pod that the API has.
fn look_after(
    world: &Arc<World>,
    node: &NodeName,
    start: u64,
    pod: &Value,
    uid: &PodUid,
    ended: bool,
) {
    if adopt(world, node, start, uid) {
        return;
    }
    let path = worker::path_of(pod);
    if ended {
        return;
    }
    if is_going(pod) {
        // It never ran here, or is over: only the object is left.
        worker::finalise(world, node, &path, uid);
        return;
    }
    let local = Local {
        path,
        stage: Stage::Starting,
        order: tokio::sync::watch::Sender::new(Order::Run),
        link: None,
        kubelet: start,
        tainted: false,
        robbed: false,
    };
    let orders = local.order.subscribe();
    world.machine(node, |m| m.locals.insert(uid.clone(), local));
    worker::spawn(world, node, start, uid, orders);
}

/// A pod that an earlier kubelet left gets a worker again; whether the pod is here.
fn adopt(world: &Arc<World>, node: &NodeName, start: u64, uid: &PodUid) -> bool {
    let found = world.machine(node, |machine| {
        let local = machine.locals.get_mut(uid)?;
        let orphan = local.kubelet != start;
        local.kubelet = start;
        if orphan {
            // Orders to the worker before it are void; what the API says is told again.
            local.order = tokio::sync::watch::Sender::new(Order::Run);
        }
        Some(orphan.then(|| local.order.subscribe()))
    });
    match found.flatten() {
        Some(Some(orders)) => {
            worker::spawn(world, node, start, uid, orders);
            true
        }
        Some(None) => true,
        None => false,
    }
}
