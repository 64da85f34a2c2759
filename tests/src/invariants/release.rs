//! I1: no disassociate or delete for an ENI whose pod can still run; no delete of a trunk that carries branches while its
//! instance lives.
//!
//! A pod can still run if the API server had it, not ended, at the time of the call, or if its node still had its process
//! or its cgroup. The only exception is a dead instance. An ENI without a UID tag may not be released at all.

use super::Violation;
use super::evidence::{CONFIG_HASH, Evidence, INSTANCE, POD_UID};
use crate::history::PodState;
use crate::invariants::annotation::Branch;
use std::collections::{BTreeMap, BTreeSet};
use trunkline_sim::ec2::model::{Effect, LogEntry};
use trunkline_sim::node::model::What;

/// Checks every release in EC2's log.
pub fn check(evidence: &Evidence) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut carried: BTreeSet<&str> = BTreeSet::new();
    for call in &evidence.calls {
        for effect in &call.effects {
            if let Effect::AssociationMade { trunk, .. } = effect {
                carried.insert(trunk);
            }
            if !evidence.ours(call) {
                continue;
            }
            match effect {
                Effect::AssociationRemoved { branch, tags, .. } => {
                    found.extend(branch_released(evidence, call, branch, tags, "disassociated"));
                }
                Effect::EniDeleted { eni, interface_type, tags } if interface_type == "trunk" => {
                    found.extend(trunk_deleted(
                        evidence,
                        call,
                        eni,
                        tags,
                        carried.contains(eni.as_str()),
                    ));
                }
                Effect::EniDeleted { eni, tags, .. } => {
                    found.extend(branch_released(evidence, call, eni, tags, "deleted"));
                }
                _ => {}
            }
        }
    }
    found
}

fn trunk_deleted(
    evidence: &Evidence,
    call: &LogEntry,
    trunk: &str,
    tags: &BTreeMap<String, String>,
    carried: bool,
) -> Option<Violation> {
    let instance = tags.get(INSTANCE).cloned().unwrap_or_default();
    // A trunk that never carried a branch is the roll-back of its own creation (TRK-13).
    if !carried || evidence.instance_ended(&instance, call.wall_ms) {
        return None;
    }
    Some(Violation::new(
        "I1",
        format!("call {}: trunk {trunk} deleted while {instance} lives", call.seq),
    ))
}

fn branch_released(
    evidence: &Evidence,
    call: &LogEntry,
    eni: &str,
    tags: &BTreeMap<String, String>,
    how: &str,
) -> Vec<Violation> {
    let at = call.wall_ms;
    let instance = tags.get(INSTANCE).cloned().unwrap_or_default();
    if evidence.instance_ended(&instance, at) {
        return Vec::new();
    }
    let tell = |why: String| {
        Violation::new("I1", format!("call {} at {at}: {eni} {how}, {why}", call.seq))
    };
    let Some(uid) = tags.get(POD_UID) else {
        return vec![tell("which carries no pod UID".to_owned())];
    };
    let mut found = Vec::new();
    if evidence.history.could_run(uid, at, evidence.slack_ms()) == Some(true) {
        found.push(tell(format!("while pod {uid} could still run")));
    }
    let then = evidence.history.at(at + evidence.slack_ms());
    let alive = |states: &BTreeMap<String, PodState>| -> Vec<(String, PodState)> {
        states.iter().filter(|(_, s)| s.can_run()).map(|(u, s)| (u.clone(), s.clone())).collect()
    };
    for (other, state) in alive(&then) {
        let same_node = evidence.instance_of(&state.node).as_deref() == Some(instance.as_str());
        if other != *uid && same_node && names(&state, eni) {
            found.push(tell(format!("while live pod {other} on {} names it", state.node)));
        }
        let hash = tags.get(CONFIG_HASH);
        if other != *uid && hash.is_some() && state.static_hash.as_ref() == hash {
            found.push(tell(format!("while static pod {other} of the same hash is there")));
        }
    }
    found.extend(still_on_node(evidence, uid, at).map(tell));
    found
}

fn names(state: &PodState, eni: &str) -> bool {
    let branches = state.annotation.as_deref().and_then(|text| Branch::all(text).ok());
    branches.is_some_and(|all| all.iter().any(|branch| branch.eni_id == eni))
}

/// What the node simulator still had of a pod at that time.
fn still_on_node(evidence: &Evidence, uid: &str, at_ms: i64) -> Option<String> {
    let (mut process, mut cgroup, mut node) = (false, false, "");
    for entry in evidence.nodes_log.iter().take_while(|entry| entry.time_ms <= at_ms) {
        if entry.uid == uid {
            node = &entry.node;
            match entry.what {
                What::CgroupMade => cgroup = true,
                What::CgroupGone => cgroup = false,
                What::Running => process = true,
                What::ProcessEnded | What::Ended => process = false,
                _ => {}
            }
        } else if entry.what == What::Rebooted && entry.node == node {
            (process, cgroup) = (false, false);
        }
    }
    let what = match (process, cgroup) {
        (true, _) => "process",
        (false, true) => "cgroup",
        (false, false) => return None,
    };
    Some(format!("while node {node} still had the {what} of pod {uid}"))
}
