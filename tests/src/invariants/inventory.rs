//! I3: once the faults have stopped and a bound has passed, every ENI with our tags has an owner or is gone; foreign ENIs
//! were never touched. And one pod, one ENI: what was made for a UID is kept, not thrown away and made again (D41).

use super::Violation;
use super::evidence::{Evidence, INDEX, POD_UID, Tags};
use std::collections::BTreeMap;
use trunkline_sim::ec2::model::Effect;

/// Every branch of ours in EC2 belongs to a pod that can run.
pub fn every_eni_has_an_owner(evidence: &Evidence) -> Vec<Violation> {
    let latest = evidence.history.latest();
    let mut found = Vec::new();
    let mut owned: BTreeMap<(String, String), String> = BTreeMap::new();
    for eni in &evidence.ec2.enis {
        let ours = evidence.tagged_ours(&eni.tags) && eni.interface_type != "trunk";
        if !ours || evidence.rules.kept.contains(&eni.id) {
            continue;
        }
        let Some(uid) = eni.tags.get(POD_UID) else {
            found.push(Violation::new("I3", format!("{} has our tags and no owner", eni.id)));
            continue;
        };
        if !latest.get(uid).is_some_and(crate::history::PodState::can_run) {
            found.push(Violation::new(
                "I3",
                format!("{} ({}) is left of pod {uid}", eni.id, eni.status),
            ));
        }
        let index = eni.tags.get(INDEX).cloned().unwrap_or_default();
        if let Some(other) = owned.insert((uid.clone(), index.clone()), eni.id.clone()) {
            let text = format!("pod {uid} has {other} and {} under index `{index}`", eni.id);
            found.push(Violation::new("I3", text));
        }
    }
    found
}

/// No call of ours changed an ENI that does not carry this cluster's tags.
pub fn foreign_untouched(evidence: &Evidence) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut tags = Tags::default();
    for call in &evidence.calls {
        for effect in &call.effects {
            if evidence.ours(call)
                && let Some(eni) = touched(effect)
                && tags.known(eni)
                && !evidence.tagged_ours(&tags.of(eni))
            {
                let text = format!("call {}: {} touched foreign {eni}", call.seq, call.action);
                found.push(Violation::new("I3", text));
            }
            // The tags that an ENI ends with are in the effect itself; these are those before it.
            tags.apply(effect);
        }
    }
    found
}

fn touched(effect: &Effect) -> Option<&str> {
    match effect {
        Effect::EniDeleted { eni, .. }
        | Effect::Detached { eni, .. }
        | Effect::Attached { eni, .. }
        | Effect::GroupsSet { eni, .. }
        | Effect::AttributeSet { eni, .. }
        | Effect::AddressesAssigned { eni, .. }
        | Effect::AddressesUnassigned { eni, .. } => Some(eni),
        Effect::TagsSet { resource, .. } | Effect::TagsRemoved { resource, .. } => Some(resource),
        Effect::AssociationMade { branch, .. } | Effect::AssociationRemoved { branch, .. } => {
            Some(branch)
        }
        _ => None,
    }
}

/// A second ENI for one UID and index only after the first one is gone.
pub fn one_eni_for_one_pod(evidence: &Evidence) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut live: BTreeMap<(String, String), String> = BTreeMap::new();
    for call in &evidence.calls {
        for effect in &call.effects {
            match effect {
                Effect::EniCreated { eni, tags, .. } if evidence.ours(call) => {
                    let Some(uid) = tags.get(POD_UID) else {
                        continue;
                    };
                    let key = (uid.clone(), tags.get(INDEX).cloned().unwrap_or_default());
                    if let Some(first) = live.insert(key, eni.clone()) {
                        let text = format!(
                            "call {}: {eni} made for pod {uid}, which has {first}",
                            call.seq
                        );
                        found.push(Violation::new("D41", text));
                    }
                }
                Effect::EniDeleted { eni, .. } => live.retain(|_, held| held != eni),
                _ => {}
            }
        }
    }
    found
}
