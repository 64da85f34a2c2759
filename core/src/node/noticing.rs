//! Noticing that a live pod's branch may be lost: from whole inventories, from what EC2 answers, from the node's links.
//!
//! What is noticed here means nothing by itself. It marks the branch, and [`super::heal`] asks EC2 for the ENI by its id.
//! Equal counts prove nothing, so readings are compared ENI by ENI; an ENI that the books know for less than EC2's lists
//! may lag behind is passed over.

use std::collections::BTreeMap;

use crate::eni::{EniRecord, EniStatus, Tag};
use crate::heal::Health;
use crate::id::{EniId, PodUid};
use crate::time::Moment;

use super::Node;
use super::event::Effect;
use super::holding::{Branch, Stage};
use super::mended::drifted;

impl Node {
    /// How many branches of running pods are lost, or seem so at the moment.
    pub fn lost(&self) -> usize {
        self.branches().filter(|b| b.care.seems_lost()).count()
    }

    /// How many branches running pods have.
    pub(super) fn bound(&self) -> usize {
        self.branches().filter(|b| b.care.bound).count()
    }

    fn branches(&self) -> impl Iterator<Item = &Branch> {
        self.holdings.values().filter(|h| !h.stopped).flat_map(|h| h.branches.values())
    }

    /// Compares the branches of live pods with a whole reading that began then.
    pub(super) fn compare(
        &mut self,
        began: Moment,
        enis: &BTreeMap<EniId, EniRecord>,
        now: Moment,
        out: &mut Vec<Effect>,
    ) {
        let window = self.timing.ec2_list_window;
        let trunk = self.trunk.as_ref().ok().map(|t| t.eni.clone());
        let mut drifts: Vec<(PodUid, u8)> = Vec::new();
        for (uid, holding) in &mut self.holdings {
            if holding.stopped || holding.release.is_some() {
                continue;
            }
            for (index, branch) in &mut holding.branches {
                let young = branch.care.known.is_none_or(|known| began < known.plus(window));
                if !branch.care.bound || young {
                    continue;
                }
                let Some(interface) = branch.interface().cloned() else {
                    seen_absent(branch, began);
                    continue;
                };
                let attached = matches!(branch.stage, Stage::Attached(..));
                match enis.get(&interface.eni) {
                    Some(record) if attached && record.status != EniStatus::Available => {
                        if !branch.care.health.is_loss() {
                            branch.care.absent = None;
                        }
                        let tags = &record.tags;
                        let tagged = tags.pod_uid == Tag::Is(uid.clone())
                            && tags.vlan == Tag::Is(branch.vlan)
                            && tags.trunk.value() == trunk.as_ref();
                        if note_drift(branch, record, tagged) {
                            if !tagged {
                                branch.care.suspect(now);
                            }
                            drifts.push((uid.clone(), *index));
                        }
                        if tagged && branch.care.health == Health::Elsewhere {
                            branch.care.suspect(now);
                        }
                    }
                    _ => {
                        seen_absent(branch, began);
                        if attached {
                            branch.care.suspect(now);
                        }
                    }
                }
            }
        }
        for (uid, index) in drifts {
            self.tell_drift(&uid, index, out);
        }
    }

    /// What the node's links say of a branch whose pod is announced.
    pub(super) fn watch(&mut self, uid: &PodUid, index: u8, now: Moment) {
        let known = self.links.known().is_some();
        let Some(vlan) = self.branch_mut(uid, index).map(|b| b.vlan) else {
            return;
        };
        let link = self.link_mac(vlan);
        let present = self.links.known().is_some_and(|l| l.has_vlan(vlan));
        let Some(branch) = self.branch_mut(uid, index) else {
            return;
        };
        let mac = branch.interface().map(|i| i.mac);
        let attached = matches!(branch.stage, Stage::Attached(..));
        let care = &mut branch.care;
        care.bound = true;
        if mac.is_some() {
            care.known.get_or_insert(now);
        }
        match (link, mac) {
            (Some(link), Some(mac)) if link == mac => {
                care.link_seen = true;
                care.link_gone = None;
                care.link_asked = None;
                if matches!(care.health, Health::LinkMissing) {
                    care.settled();
                }
            }
            (Some(link), Some(_)) => {
                care.link_gone = None;
                if attached && care.link_asked != Some(link) && !care.health.is_loss() {
                    care.link_asked = Some(link);
                    care.suspect(now);
                }
            }
            _ if present || !known => care.link_gone = None,
            _ => {
                care.link_gone.get_or_insert(now);
            }
        }
    }

    /// The moments at which an absent link begins to count.
    pub(super) fn link_wakes(&self) -> impl Iterator<Item = Moment> {
        let timing = self.timing;
        self.branches().filter(|b| b.care.bound).flat_map(move |b| {
            let change = b.care.link_change.map(|(_, at)| at.plus(timing.heal_link_change));
            let gone = b.care.link_gone.filter(|_| b.care.link_seen);
            gone.map(|at| at.plus(timing.link_missing)).into_iter().chain(change)
        })
    }
}

/// A whole reading that began then does not show the branch as it should be.
fn seen_absent(branch: &mut Branch, began: Moment) {
    let first = branch.care.absent.map_or(began, |(first, _)| first);
    branch.care.absent = Some((first, began.max(first)));
}

/// Notes groups and tags that are not ours; true if that is new.
fn note_drift(branch: &mut Branch, record: &EniRecord, tagged: bool) -> bool {
    let groups = branch.interface().is_some_and(|i| drifted(i, record));
    let care = &mut branch.care;
    let was = (care.health, care.drift.clone());
    care.drift = groups.then(|| record.groups.clone());
    match care.health {
        Health::Ok | Health::WrongGroups | Health::WrongTags => {
            care.health = match (groups, tagged) {
                (_, false) => Health::WrongTags,
                (true, true) => Health::WrongGroups,
                (false, true) => Health::Ok,
            };
        }
        _ => {}
    }
    care.health != Health::Ok && was != (care.health, care.drift.clone())
}
