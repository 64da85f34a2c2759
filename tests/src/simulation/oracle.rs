//! What is promised, judged on the world's own state: at every effect in EC2, and once the world has settled.
//!
//! Nothing here asks the product, and nothing looks at tags or annotations to learn whose an ENI is: the account remembers
//! for which pod each was made.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use trunkline_core::annotation::POD_ENI;
use trunkline_core::eni::{AssociationRecord, EniKind};
use trunkline_core::id::{EniId, NodeName, PodUid, VlanId};
use trunkline_core::verdict::{DeletePermit, PermitStage};

use super::api::store::{is_going, text};
use super::losses;
use super::node::kubelet::OWN_NAMESPACE;
use super::node::machine::{Machine, Stage};
use super::workload::asked_by;
use super::world::World;

/// `Timing::vlan_rest`.
const REST: Duration = Duration::from_secs(300);
/// `Timing::cooldown_floor`.
const COOLDOWN: Duration = Duration::from_secs(30);
/// More ENIs than this for one branch of a pod is a storm (I5): one, one for each token that was found in vain, and one for
/// each that was lost.
const MOST_FOR_ONE_BRANCH: u32 = 3;

/// I1, at the moment at which EC2 carries the release out.
pub(super) fn before_release(world: &World, permit: &DeletePermit) {
    let (owner, left) = {
        let account = world.account();
        // What is gone already cannot be taken away.
        let Some(eni) = account.eni(permit.eni()) else { return };
        let trunk = eni.now.as_ref().and_then(|record| record.tags.trunk.value().cloned());
        let vlan = eni.now.as_ref().and_then(|record| record.tags.vlan.value().copied());
        let left = trunk.zip(vlan).and_then(|(trunk, vlan)| account.left(&trunk, vlan).cloned());
        match permit.stage() {
            PermitStage::Disassociate(id) if account.branch_of(id).is_none() => return,
            _ => (eni.owner.clone(), left),
        }
    };
    let eni = permit.eni();
    let Some(owner) = owner else {
        world.broken(format!("I3: {eni} was released, and is no branch of ours"));
        return;
    };
    if let Some(why) = world.can_run(&owner) {
        world.broken(format!(
            "I1: {} of {eni} of pod {owner} was carried out: {why}",
            match permit.stage() {
                PermitStage::Disassociate(_) => "the disassociation",
                PermitStage::Delete => "the deletion",
            }
        ));
    }
    let now = world.now();
    if *permit.stage() == PermitStage::Delete
        && let Some((at, Some(last))) = left
        && last == owner
        && now.since(at) < COOLDOWN
    {
        world.broken(format!("REL-4: {eni} was deleted {:?} after it was freed", now.since(at)));
    }
}

/// No trunk is deleted while its instance lives; none of ours ever ends here.
pub(super) fn before_trunk_goes(world: &World, trunk: &EniId) {
    let branches = {
        let account = world.account();
        account
            .enis()
            .values()
            .filter(|eni| eni.association.as_ref().is_some_and(|held| held.trunk == *trunk))
            .count()
    };
    if branches > 0 {
        world.broken(format!("I1: trunk {trunk} was deleted with {branches} branches"));
    }
}

/// I2 and D41, at the moment at which EC2 has made an association.
pub(super) fn after_associate(world: &World, made: &AssociationRecord) {
    let now = world.now();
    let (owner, left, count) = {
        let account = world.account();
        let owner = account.enis().get(&made.branch).and_then(|eni| eni.owner.clone());
        let left = account.left(&made.trunk, made.vlan).cloned();
        let count = owner.as_ref().map_or(0, |uid| account.made_for(uid));
        let lost = owner.as_ref().map_or(0, |uid| account.lost_by(uid));
        (owner, left, count.saturating_sub(lost))
    };
    if let Some((at, last)) = left
        && last != owner
        && now.since(at) < REST
        && !is_copiers_own(world, made.vlan, owner.as_ref())
    {
        world.broken(format!(
            "I2: VLAN {} of {} was handed on {:?} after {last:?} left it",
            made.vlan,
            made.trunk,
            now.since(at)
        ));
    }
    if count > MOST_FOR_ONE_BRANCH {
        world.broken(format!("I5: {count} ENIs were made for one branch of pod {owner:?}"));
    }
}

/// A copied annotation whose ENI is gone, and whose link is there because the CNI believed it, looks like a loss: the pod is
/// given what it already uses, on the VLAN that it took by itself.
fn is_copiers_own(world: &World, vlan: VlanId, owner: Option<&PodUid>) -> bool {
    owner.is_some_and(|uid| {
        world.machines().values().any(|machine| {
            machine.links.get(&vlan).is_some_and(|link| link.pod == *uid)
                && machine.locals.get(uid).is_some_and(|local| local.tainted)
        })
    })
}

/// I4, at the moment at which the API server has taken an annotation from a coordinator: it names this pod's own ENIs.
pub(super) fn after_annotation(world: &World, pod: &Value) {
    let uid = text(pod, "/metadata/uid");
    let annotation = pod.pointer("/metadata/annotations").and_then(|a| a.get(POD_ENI));
    let Ok(named) = named_by(annotation.and_then(Value::as_str)) else { return };
    for eni in named {
        let owner = world.account().enis().get(&eni).and_then(|eni| eni.owner.clone());
        if owner.as_ref().map(PodUid::as_str) != Some(uid) {
            world.broken(format!(
                "I4: pod {uid} was annotated with {eni}, which was made for {owner:?}"
            ));
        }
    }
}

/// A pod's link went by what the runtime did for another pod, whose branch had the same VLAN.
pub(super) fn link_lost(world: &World, node: &NodeName, loser: &PodUid, other: &PodUid, own: bool) {
    let was_running = world.machine(node, |m| {
        m.locals.get(loser).is_some_and(|local| local.stage == Stage::Running && !local.tainted)
    });
    if !own {
        // A copied annotation names a VLAN of another trunk: whatever comes of that is the copier's doing.
        world.machine(node, |m| m.locals.get_mut(loser).map(|local| local.robbed = true));
    } else if was_running == Some(true) {
        world.broken(format!(
            "I2: pod {loser} on {node} lost its link to {other}: one VLAN, two pods"
        ));
    }
}

/// I3 and I4: what is not as it has to be in the end; empty once the world has settled.
pub(super) fn unsettled(world: &World) -> Vec<String> {
    let mut open = Vec::new();
    let mut named: BTreeMap<EniId, PodUid> = BTreeMap::new();
    let mut parked = BTreeSet::new();
    for pod in wanting(world) {
        let Wanting { uid, node, asks, .. } = &pod;
        match named_by(pod.annotation.as_deref()) {
            Ok(enis) => {
                if enis.iter().any(|eni| is_parked(world, eni, uid)) {
                    parked.insert(uid.clone());
                    continue;
                }
                for eni in &enis {
                    if let Some(other) = named.insert(eni.clone(), uid.clone()) {
                        open.push(format!("pods {uid} and {other} are both annotated with {eni}"));
                    }
                }
                if u64::try_from(enis.len()).ok() != Some(*asks) {
                    open.push(format!("pod {uid} asks for {asks} and is annotated with {enis:?}"));
                }
                if let Err(why) = serves(world, &enis, uid, node) {
                    open.push(format!("pod {uid} on {node}: {why}"));
                }
            }
            Err(why) => open.push(format!("pod {uid} on {node}: {why}")),
        }
    }
    let shielded = shielded(world);
    let account = world.account();
    for (id, eni) in account.enis() {
        if eni.now.as_ref().is_none_or(|record| record.kind == EniKind::Trunk) {
            continue;
        }
        let Some(owner) = &eni.owner else { continue };
        let has_owner = named.get(id) == Some(owner) || parked.contains(owner);
        if !has_owner && !shielded.contains(owner) {
            open.push(format!("{id} of pod {owner} is left"));
        }
    }
    open
}

/// Pods that are over and whose ENIs are rightly kept: on their own node runs a pod whose link was set up by a copied
/// annotation, and that link has the VLAN name or the MAC of one of their branches. The agent cannot tell it from the
/// branch's own link, and does not try to (a copier keeps what it copied until it ends).
fn shielded(world: &World) -> BTreeSet<PodUid> {
    let account = world.account();
    let machines = world.machines();
    let mut shielded = BTreeSet::new();
    for eni in account.enis().values() {
        let (Some(record), Some(owner)) = (&eni.now, &eni.owner) else { continue };
        let on_its_node =
            |machine: &&Machine| record.tags.instance.value() == Some(&machine.instance);
        let vlan = record.tags.vlan.value();
        let is_held = machines.values().filter(on_its_node).any(|machine| {
            machine.links.iter().any(|(name, link)| {
                let copier = machine.locals.get(&link.pod);
                (Some(name) == vlan || link.mac == record.mac)
                    && link.pod != *owner
                    && copier.is_some_and(|local| local.tainted && local.stage == Stage::Running)
            })
        });
        if is_held {
            shielded.insert(owner.clone());
        }
    }
    shielded
}

/// What is not told from a loss that cannot be healed in place: the pod is parked, and told why (design §4.1 and §6). A
/// copied annotation that names an ENI which is gone by now; a pod whose lost address another pod has, which can only be one
/// that copied its annotation; and a loss of which no link tells a new leader ([`losses::is_unproven`]).
fn is_parked(world: &World, eni: &EniId, uid: &PodUid) -> bool {
    if losses::is_unproven(world, eni) {
        return true;
    }
    let account = world.account();
    let Some(gone) = account.enis().get(eni).filter(|eni| eni.now.is_none()) else { return false };
    let address = account.last_of(eni).and_then(|record| record.ipv4);
    let holder = address.and_then(|ip| account.holder_of(ip));
    gone.owner.as_ref() != Some(uid)
        || holder.is_some_and(|other| other.owner.as_ref() != Some(uid))
}

/// A pod that lives and asks for branches.
struct Wanting {
    uid: PodUid,
    node: NodeName,
    asks: u64,
    annotation: Option<String>,
}

fn wanting(world: &World) -> Vec<Wanting> {
    let store = world.store();
    let wants = |pod: &Value| {
        (text(pod, "/metadata/namespace") != OWN_NAMESPACE
            && !matches!(text(pod, "/status/phase"), "Succeeded" | "Failed"))
        .then_some(())?;
        let annotation = pod.pointer("/metadata/annotations").and_then(|a| a.get(POD_ENI));
        Some(Wanting {
            uid: text(pod, "/metadata/uid").parse().ok()?,
            node: text(pod, "/spec/nodeName").parse().ok()?,
            asks: asked_by(pod),
            annotation: annotation.and_then(Value::as_str).map(ToOwned::to_owned),
        })
    };
    // A pod that is being deleted may have lost its annotation's ENI by no rule, but need not get one either.
    store.pods().filter(|(_, pod)| !is_going(pod)).filter_map(|(_, pod)| wants(pod)).collect()
}

/// A running pod with all that it asked for.
pub(super) struct Served {
    /// UID.
    pub(super) uid: PodUid,
    /// Node.
    pub(super) node: NodeName,
    /// Its ENIs, in the order of its annotation.
    pub(super) enis: Vec<EniId>,
}

/// The pods that run with all that they asked for, on links of their own.
pub(super) fn served(world: &World) -> Vec<Served> {
    let whole = |pod: Wanting| {
        let enis = named_by(pod.annotation.as_deref()).ok()?;
        let is_odd = world.machine(&pod.node, |m| {
            m.locals.get(&pod.uid).is_none_or(|local| local.tainted || local.robbed)
        });
        let served = is_odd == Some(false)
            && u64::try_from(enis.len()).ok() == Some(pod.asks)
            && serves(world, &enis, &pod.uid, &pod.node).is_ok();
        served.then_some(Served { uid: pod.uid, node: pod.node, enis })
    };
    wanting(world).into_iter().filter_map(whole).collect()
}

/// The ENIs that a pod's annotation names, in its order.
fn named_by(annotation: Option<&str>) -> Result<Vec<EniId>, String> {
    let text = annotation.ok_or("it has no annotation")?;
    let value: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let id = |one: &Value| one.get("eniId")?.as_str()?.parse().ok();
    let named = value.as_array().and_then(|all| all.iter().map(id).collect::<Option<Vec<_>>>());
    named.filter(|all| !all.is_empty()).ok_or_else(|| format!("its annotation is {text}"))
}

/// Whether these ENIs are this pod's, associated with its node's trunk, and its link has the MAC of the first: the VPC CNI
/// makes a link for that one only.
fn serves(world: &World, enis: &[EniId], uid: &PodUid, node: &NodeName) -> Result<(), String> {
    let instance = world.machine(node, |m| m.instance.clone()).ok_or("there is no such node")?;
    let mut first = None;
    for eni in enis {
        let account = world.account();
        let found = account.eni(eni).ok_or_else(|| format!("its {eni} does not exist"))?;
        if found.owner.as_ref() != Some(uid) {
            return Err(format!("its {eni} was made for {:?}", found.owner));
        }
        let held = found
            .association
            .as_ref()
            .ok_or_else(|| format!("its {eni} is associated with nothing"))?;
        if !account.attached_to(&instance).any(|trunk| trunk.id == held.trunk) {
            return Err(format!(
                "its {eni} is associated with {}, which is not its node's",
                held.trunk
            ));
        }
        let mac = found.now.as_ref().map(|record| record.mac);
        first.get_or_insert((held.vlan, mac));
    }
    let (vlan, mac) = first.ok_or("its annotation names nothing")?;
    let link = world.machine(node, |m| {
        let local = m.locals.get(uid)?;
        let has = m.links.get(&vlan).map(|link| link.mac) == mac;
        Some((local.stage, local.tainted || local.robbed, has))
    });
    match link.flatten() {
        Some((Stage::Running, false, true) | (_, true, _)) => Ok(()),
        Some((stage, _, has)) => {
            Err(format!("it is {stage:?}, link {}", if has { "there" } else { "missing" }))
        }
        None => Err("its node does not know it".into()),
    }
}
