//! I2: one (trunk, VLAN) pair has at most one association; neither a VLAN nor an address is handed out again before its
//! cooldown.
//!
//! A VLAN may come back early only to the pod that had it. An address comes back when its ENI is deleted, so the delete
//! must keep the cooldown after the disassociation.

use super::Violation;
use super::evidence::{Evidence, POD_UID, Tags};
use std::collections::BTreeMap;
use trunkline_sim::ec2::model::Effect;

/// Replays the log per trunk.
pub fn check(evidence: &Evidence) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut tags = Tags::default();
    // (trunk, VLAN) → branch; (trunk, VLAN) → when it became free and whose it was; branch → when it was disassociated.
    let mut taken: BTreeMap<(String, u32), String> = BTreeMap::new();
    let mut freed: BTreeMap<(String, u32), (u64, Option<String>)> = BTreeMap::new();
    let mut parted: BTreeMap<String, u64> = BTreeMap::new();
    for call in &evidence.calls {
        let ours = evidence.ours(call);
        if ours && call.code.as_deref() == Some("InvalidVlanId.Duplicate") && call.faults.is_empty()
        {
            found.push(Violation::new(
                "I2",
                format!("call {}: EC2 refused a VLAN that is in use", call.seq),
            ));
        }
        for effect in &call.effects {
            match effect {
                Effect::AssociationMade { trunk, branch, vlan, .. } => {
                    let key = (trunk.clone(), *vlan);
                    if let Some(other) = taken.insert(key.clone(), branch.clone()) {
                        found.push(Violation::new(
                            "I2",
                            format!("VLAN {vlan} of {trunk}: {other} and {branch}"),
                        ));
                    }
                    let uid = tags.get(branch, POD_UID).cloned();
                    if let Some((since, whose)) = freed.get(&key)
                        && ours
                        && (uid.is_none() || *whose != uid)
                    {
                        let rested = u128::from(call.mono_ms.saturating_sub(*since));
                        if rested < evidence.rules.vlan_rest.as_millis() {
                            let text = format!(
                                "call {}: VLAN {vlan} of {trunk} after {rested} ms",
                                call.seq
                            );
                            found.push(Violation::new("I2", text));
                        }
                    }
                }
                Effect::AssociationRemoved { trunk, branch, vlan, tags, .. } => {
                    let key = (trunk.clone(), *vlan);
                    taken.remove(&key);
                    freed.insert(key, (call.mono_ms, tags.get(POD_UID).cloned()));
                    parted.insert(branch.clone(), call.mono_ms);
                }
                Effect::EniDeleted { eni, .. } if ours => {
                    if let Some(since) = parted.get(eni) {
                        let rested = u128::from(call.mono_ms.saturating_sub(*since));
                        if rested < evidence.rules.cooldown.as_millis() {
                            let text = format!(
                                "call {}: {eni} deleted {rested} ms after it was parted",
                                call.seq
                            );
                            found.push(Violation::new("I2", text));
                        }
                    }
                }
                _ => {}
            }
            tags.apply(effect);
        }
    }
    found
}
