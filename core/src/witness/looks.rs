//! What a look at the node adds: whether it proves to be of this node, which cgroups count as seen, which VLANs are in use,
//! and what a barrier is answered.

use std::collections::BTreeSet;

use crate::fact::{BarrierReply, CgroupSeen};
use crate::id::{PodUid, VlanId};
use crate::lock::{self, Lock};
use crate::message::{FromAgent, OwnedBranch};
use crate::time::Moment;
use crate::view::{Blind, Look};

use super::{Action, FORGET_ABOVE, LastUse, Witness};

impl Witness {
    pub(super) fn on_cgroup(&mut self, uid: PodUid, out: &mut Vec<Action>) {
        if let Some(start) = self.look.as_ref().and_then(Look::kubelet) {
            self.unplaced.insert(uid, start);
            out.push(Action::LookNow);
        }
    }

    pub(super) fn on_look(&mut self, look: Look, out: &mut Vec<Action>) {
        let look = self.prove(look);
        let before = self.seen.len();
        self.place_cgroups(&look);
        let links_changed = self.record_vlans(&look);
        for case in self.cases.values_mut() {
            let owned: Vec<&OwnedBranch> =
                self.owned.values().filter(|b| b.pod.uid == case.pod().uid).collect();
            let seen = case.kubelet_uid().and_then(|uid| self.seen.get(uid)).cloned();
            case.look(seen.as_ref(), &owned, &look, &self.timing);
        }
        self.answer_barriers(&look, out);
        let crowd = look.cgroups.as_ref().map_or(0, BTreeSet::len) + self.owned.len();
        self.look = Some(look);
        if self.seen.len() > FORGET_ABOVE + 2 * crowd {
            self.forget_what_left();
        }
        self.send_look_changes(out);
        if self.seen.len() != before || links_changed {
            out.push(Action::Save);
        }
    }

    /// Replaces links and cgroups that do not prove to be of this node by the reason.
    pub(super) fn prove(&mut self, mut look: Look) -> Look {
        if let Ok(links) = &look.links {
            let macs = || links.0.iter().filter_map(|l| l.mac).collect::<BTreeSet<_>>();
            let first = self.first_macs.get_or_insert_with(macs);
            match self.trunk {
                None => look.links = Err(Blind::TrunkUnknown),
                Some(trunk) if !links.has_mac(trunk) && lock::holds(Lock::LinkViewProves) => {
                    look.links = Err(Blind::TrunkLinkMissing);
                }
                Some(trunk) => self.history_whole |= !first.contains(&trunk),
            }
        }
        if let Ok(cgroups) = &look.cgroups
            && !cgroups.contains(&self.own_pod)
            && lock::holds(Lock::CgroupViewProves)
        {
            look.cgroups = Err(Blind::OwnPodMissing);
        }
        look
    }

    /// What was glimpsed since the last look counts if this look is valid and shows the same kubelet start. What may be left
    /// over from before this kubelet start does not, yet.
    pub(super) fn place_cgroups(&mut self, look: &Look) {
        let glimpsed = std::mem::take(&mut self.unplaced);
        let (Some(start), Ok(cgroups)) = (look.kubelet(), &look.cgroups) else {
            return;
        };
        // What inotify told of one that was left over before this look may be the old one, seen once more by a scan.
        let glimpsed: Vec<PodUid> = glimpsed
            .into_iter()
            .filter(|(uid, at)| *at == start && !self.is_left_over(uid))
            .map(|(uid, _)| uid)
            .collect();
        let known = |uid: &PodUid| self.seen.get(uid).is_some_and(|seen| seen.start == start);
        self.leftovers.look(look.at, start, cgroups, known, &self.timing);
        let there = cgroups.iter().filter(|uid| !self.is_left_over(uid)).cloned();
        let placed: Vec<PodUid> = there.chain(glimpsed).collect();
        for uid in placed {
            self.seen.insert(
                uid.clone(),
                CgroupSeen { kubelet_uid: uid, boot: look.boot.clone(), start },
            );
        }
    }

    fn is_left_over(&self, uid: &PodUid) -> bool {
        self.leftovers.contains(uid) && lock::holds(Lock::LeftoverProvesNothing)
    }

    /// Notes which VLANs have a link; whether the set changed.
    pub(super) fn record_vlans(&mut self, look: &Look) -> bool {
        let Ok(links) = &look.links else { return false };
        let mut changed = false;
        let owned = self.owned_vlans();
        for (_, last) in self.vlans.iter_mut().filter(|(v, l)| l.present && !owned.contains(v)) {
            last.present = false;
        }
        let mut present = BTreeSet::new();
        for vlan in links.0.iter().filter_map(crate::view::Link::branch_vlan) {
            present.insert(vlan);
            let last = LastUse { at: look.at, present: true };
            changed |= self.vlans.insert(vlan, last).is_none();
        }
        let before = self.look.as_ref().and_then(|l| l.links.as_ref().ok());
        let was: BTreeSet<VlanId> = before
            .into_iter()
            .flat_map(|l| &l.0)
            .filter_map(crate::view::Link::branch_vlan)
            .collect();
        changed || was != present
    }

    pub(super) fn owned_vlans(&self) -> BTreeSet<VlanId> {
        self.owned.values().map(|b| b.vlan).collect()
    }

    /// A VLAN counts as used for as long as a branch of the books has it, whether or not its link was ever seen: a create
    /// may be in flight, and the coordinator that comes after this one finds nothing of a branch that was deleted.
    pub(super) fn record_owned(
        &mut self,
        before: &BTreeSet<VlanId>,
        now: Moment,
        out: &mut Vec<Action>,
    ) {
        let owned = self.owned_vlans();
        for vlan in before.difference(&owned) {
            self.vlans.insert(*vlan, LastUse { at: now, present: false });
        }
        for vlan in owned.difference(before) {
            self.vlans.insert(*vlan, LastUse { at: now, present: true });
        }
        if owned != *before {
            out.push(Action::Save);
        }
    }

    pub(super) fn answer_barriers(&mut self, look: &Look, out: &mut Vec<Action>) {
        let Some(session) = &self.session else {
            self.barriers.clear();
            return;
        };
        let origin = session.origin.clone();
        let (due, later) = std::mem::take(&mut self.barriers)
            .into_iter()
            .partition(|(_, _, asked)| look.at >= *asked);
        self.barriers = later;
        for (question, uids, _) in Vec::from_iter::<Vec<(u64, BTreeSet<PodUid>, Moment)>>(due) {
            let present =
                uids.into_iter().map(|uid| (uid.clone(), self.is_present(&uid, look))).collect();
            let links = look.links.as_ref().ok();
            let vlans = links.map(|l| VlanId::all().filter(|v| l.has_vlan(*v)).collect());
            let reply = BarrierReply {
                origin: origin.clone(),
                question,
                boot: look.boot.clone(),
                start: look.kubelet(),
                present,
                vlans,
            };
            out.push(Action::Send(FromAgent::Barrier(reply)));
        }
    }

    /// Whether a look shows the pod's cgroup or one of its links; `None` if it cannot tell.
    pub(super) fn is_present(&self, uid: &PodUid, look: &Look) -> Option<bool> {
        let kubelet_uid = self.kubelet_uid_of(uid)?;
        let (cgroups, links) = (look.cgroups.as_ref().ok()?, look.links.as_ref().ok()?);
        let link = self.branches_of(uid).any(|b| links.has_branch(b.vlan, b.mac));
        let cgroup = lock::holds(Lock::CgroupGone) && cgroups.contains(&kubelet_uid);
        Some(cgroup || (link && lock::holds(Lock::LinkGone)))
    }
}
