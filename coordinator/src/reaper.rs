//! Finds instances that are dead (design §4.4, first row).
//!
//! Looked at is every instance that ENIs of the inventory are tagged with and no Node names; that only chooses whom to ask about,
//! and proves nothing (S56). What EC2 says of such an instance, by its id, goes to [`Watch`]; a proof goes to the
//! instance's books, which clear away what it left. The looks live as long as the term, so a new leader begins the half
//! hour of a vanished instance anew.
//!
//! The trunk mostly ends with its instance. One that is left, unattached and named by no branch any more, is deleted by the
//! same call, with the same checks, that rolls a trunk's creation back.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use trunkline_core::dead::{InstanceDead, InstanceSight, Look, NodeSight, TrunkSight, Watch};
use trunkline_core::eni::{EniKind, EniStatus, FailureClass};
use trunkline_core::id::{EniId, InstanceId, NodeName};
use trunkline_core::node::event::Event;

use crate::actor::Mail;
use crate::inventory::Inventory;
use crate::nodes::objects::NodeObject;
use crate::term::Term;

/// EC2's name of the one state that never reverts.
const TERMINATED: &str = "terminated";
/// The names of all other states that are known.
const LIVING: [&str; 5] = ["pending", "running", "shutting-down", "stopping", "stopped"];

/// Runs until the term ends.
pub(crate) async fn run(term: Arc<Term>) {
    term.directory.completed().await;
    let mut watches: HashMap<InstanceId, Watch> = HashMap::new();
    loop {
        if let (Some(inventory), Some(nodes)) = (term.board.last(), term.directory.node_objects()) {
            look_at_all(&term, &inventory, &nodes, &mut watches).await;
        }
        term.clock.sleep(term.timing.dead_check).await;
    }
}

async fn look_at_all(
    term: &Arc<Term>,
    inventory: &Inventory,
    nodes: &BTreeMap<NodeName, Arc<NodeObject>>,
    watches: &mut HashMap<InstanceId, Watch>,
) {
    let named: BTreeSet<InstanceId> = nodes.values().filter_map(|n| n.instance().ok()).collect();
    let suspects: BTreeSet<InstanceId> =
        inventory.instances().filter(|i| !named.contains(*i)).cloned().collect();
    // One that is not asked about has either nothing left or a Node again: its looks begin anew.
    watches.retain(|instance, _| suspects.contains(instance));
    let looks = suspects.into_iter().map(|instance| {
        let watch = watches.get(&instance).cloned().unwrap_or_else(|| Watch::new(instance.clone()));
        look_at(term, inventory, nodes, instance, watch)
    });
    for (instance, watch) in futures::future::join_all(looks).await {
        if let Some(dead) = watch.dead() {
            let fresh = watches.get(&instance).is_none_or(|w| w.dead().is_none());
            tell(term, inventory, dead, fresh).await;
        }
        watches.insert(instance, watch);
    }
}

/// One look; none is needed once the proof is there.
async fn look_at(
    term: &Arc<Term>,
    inventory: &Inventory,
    nodes: &BTreeMap<NodeName, Arc<NodeObject>>,
    instance: InstanceId,
    mut watch: Watch,
) -> (InstanceId, Watch) {
    if watch.dead().is_none() {
        let look = Look {
            instance: instance_sight(term, &instance).await,
            trunks: BTreeMap::new(),
            node: node_sight(term, nodes, &instance),
        };
        let look = match look.instance {
            InstanceSight::NotFound => {
                let trunks = inventory.trunks_of(&instance);
                let sights = trunks.into_iter().map(async |trunk| {
                    let sight = trunk_sight(term, &trunk).await;
                    (trunk, sight)
                });
                Look {
                    trunks: futures::future::join_all(sights).await.into_iter().collect(),
                    ..look
                }
            }
            _ => look,
        };
        watch.observe(&look, term.clock.now(), &term.timing);
        tracing::debug!(%instance, ?look, "an instance without Node was looked at");
    }
    (instance, watch)
}

async fn instance_sight(term: &Arc<Term>, instance: &InstanceId) -> InstanceSight {
    match term.cloud.instance(instance).await {
        Ok(seen) if seen.state == TERMINATED => InstanceSight::Terminated,
        Ok(seen) if LIVING.contains(&seen.state.as_str()) => InstanceSight::There,
        Err(failure) if failure.class == FailureClass::NotFound => InstanceSight::NotFound,
        Ok(_) | Err(_) => InstanceSight::Unknown,
    }
}

async fn trunk_sight(term: &Arc<Term>, trunk: &EniId) -> TrunkSight {
    match term.cloud.describe(trunk).await {
        Ok(_) => TrunkSight::There,
        Err(failure) if failure.class == FailureClass::NotFound => TrunkSight::NotFound,
        Err(_) => TrunkSight::Unknown,
    }
}

/// A Node that does not tell its instance may be this one's where it has the name under which the instance is known.
fn node_sight(
    term: &Arc<Term>,
    nodes: &BTreeMap<NodeName, Arc<NodeObject>>,
    instance: &InstanceId,
) -> NodeSight {
    match nodes.get(&name_of(term, instance)).map(|node| node.instance()) {
        Some(Ok(other)) if other == *instance => NodeSight::There,
        Some(Err(_)) => NodeSight::Unknown,
        Some(Ok(_)) | None => NodeSight::Absent,
    }
}

/// The name under which the instance was last known; its id where nobody remembers one.
fn name_of(term: &Arc<Term>, instance: &InstanceId) -> NodeName {
    let known = term.name_of(instance).or_else(|| term.directory.cninode_of(instance));
    known.unwrap_or_else(|| NodeName::from(instance))
}

/// Hands the proof to the books, and looks after what is no book's: the trunk.
async fn tell(term: &Arc<Term>, inventory: &Inventory, dead: &InstanceDead, fresh: bool) {
    let instance = dead.instance();
    let name = name_of(term, instance);
    let left = inventory.of_node(instance, None);
    if fresh {
        tracing::info!(
            node = %name, %instance, proof = dead.by().name(), enis = left.len(),
            "the instance is dead, what it left is cleared away"
        );
    }
    let handle = term.actor(instance, &name);
    // The books end with the term only.
    let _ended = handle.mail.send(Mail::Event(Box::new(Event::Dead(dead.clone())))).await;
    let trunks = left.iter().all(|eni| eni.kind == EniKind::Trunk);
    for trunk in left
        .iter()
        .filter(|eni| trunks && eni.attachment.is_none() && eni.status == EniStatus::Available)
    {
        if let Err(failure) = term.cloud.delete_unattached_trunk(&trunk.id, instance).await {
            tracing::warn!(%instance, trunk = %trunk.id, "the trunk of a dead instance is still there: {failure}");
        }
    }
}

#[cfg(test)]
mod tests;
