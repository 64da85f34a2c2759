//! Giving: from a want to an annotated branch (design §5).
//!
//! Slots and VLANs are reserved for the full count at once (`D8`); then the pod is verified by a live GET, the groups are
//! matched, and each branch is created and associated, every call with the token its fields give. A failed or lost call
//! is repeated with the same token and the same ENI (`D41`); a token that no longer fits is read back by UID tag through
//! the consistency window before a new one is used. The annotation carries the resourceVersion of the GET it was decided
//! on, so a conflict means: GET again.

use std::collections::{BTreeMap, BTreeSet};

use crate::annotation::AnnotatedBranch;
use crate::eni::{AssociateBranch, CreateBranch, Ec2Call, Replaced, Tag, tag};
use crate::id::{PodUid, VlanId};
use crate::lock::{self, Lock};
use crate::message::ToAgent;
use crate::time::Moment;
use crate::verdict::Keep;
use crate::view::Pod;
use crate::wait::{Step, Wait};

use super::event::{Answer, Effect, NoticeKind, Trunk};
use super::holding::{Branch, Holding, Stage};
use super::named::Meaning;
use super::{Ask, Node};

impl Node {
    /// The next step for a pod that is to be served. `Ok` means that nothing is awaited.
    pub(super) fn advance_allocation(
        &mut self,
        uid: &PodUid,
        queue_closed: bool,
        now: Moment,
        out: &mut Vec<Effect>,
    ) -> Result<(), Wait> {
        let Some(holding) = self.holdings.get(uid) else {
            return Ok(());
        };
        if !self.inventory {
            return Err(Wait::Inventory);
        }
        if holding.stopped {
            return Err(self.ended(uid, now, out));
        }
        let trunk = self.trunk.clone().map_err(Wait::Trunk)?;
        let Some(pod) = self.pod_of(holding).cloned() else {
            return self.unseen(uid, now, out);
        };
        match self.meaning(holding, &pod) {
            Meaning::Ours => {
                let shown = self.pods.get(uid).is_some_and(|p| p.annotation.is_some());
                self.set(uid, |h| {
                    h.annotated = true;
                    h.written &= !shown;
                    if !h.is_mending() {
                        h.verified = None;
                    }
                });
                return self.advance_heal(uid, &trunk, now, out);
            }
            Meaning::Ghost(named) => {
                if let Err(wait) = self.take_up_ghost(uid, &named, &trunk) {
                    self.notify_parked(uid, &wait, out);
                    return Err(wait);
                }
                return self.advance_heal(uid, &trunk, now, out);
            }
            Meaning::Parked(wait) => {
                self.notify_parked(uid, &wait, out);
                return Err(wait);
            }
            Meaning::Describe(eni) => return Err(self.describe_named(uid, eni, out)),
            Meaning::Copied => self.set(uid, |h| h.copied = true),
            Meaning::None => {}
        }
        self.set(uid, |h| h.annotated = false);
        if self.settings.read_only {
            return Err(Wait::ReadOnly);
        }
        if self.holdings.get(uid).is_some_and(|h| h.kubelet_uid.is_none()) {
            return Err(Wait::StaticPodUnknown);
        }
        if let Some(wait) = self.take_over_static(uid, out) {
            return Err(wait);
        }
        self.reserve(uid, &trunk, queue_closed, now, out)?;
        let Some(holding) = self.holdings.get(uid) else {
            return Ok(());
        };
        let Some((verified, _)) = &holding.verified else {
            let op = self.open_step(uid, Step::Verify, 0);
            if let Some(pod) = self.holdings.get(uid).map(|h| h.pod.clone()) {
                out.push(Effect::GetPod(op, pod));
            }
            return Err(Wait::Call(Step::Verify));
        };
        if holding.groups.is_none() {
            let pod = verified.clone();
            let op = self.open_step(uid, Step::Groups, 0);
            out.push(Effect::ResolveGroups(op, pod));
            return Err(Wait::Call(Step::Groups));
        }
        if let Some(wait) = self.next_branch_step(uid, &trunk, out) {
            return Err(wait);
        }
        self.annotate(uid, &trunk, out)
    }

    /// The pod as the last GET of this attempt, or else the view, shows it.
    fn pod_of<'a>(&'a self, holding: &'a Holding) -> Option<&'a Pod> {
        holding.verified.as_ref().map(|(pod, _)| &**pod).or_else(|| self.pods.get(&holding.pod.uid))
    }

    /// A holding whose pod no view shows: adopted from EC2, or gone from the view.
    fn unseen(&mut self, uid: &PodUid, now: Moment, out: &mut Vec<Effect>) -> Result<(), Wait> {
        match self.pods_blind {
            Some(why) => Err(Wait::PodView(why)),
            None => Err(self.ended(uid, now, out)),
        }
    }

    /// Nothing new is made for this pod. What there is has to be known before the agent can be told to look after it;
    /// then it is for the agent to say that the pod is over.
    fn ended(&mut self, uid: &PodUid, now: Moment, out: &mut Vec<Effect>) -> Wait {
        if let Some(wait) = self.read_back(uid, now, out) {
            return wait;
        }
        if self.holdings.get(uid).is_some_and(Holding::in_ec2) {
            Wait::Release(Keep::NoAgentFacts)
        } else {
            Wait::Terminating
        }
    }

    pub(super) fn set(&mut self, uid: &PodUid, change: impl FnOnce(&mut Holding)) {
        if let Some(holding) = self.holdings.get_mut(uid) {
            change(holding);
        }
    }

    // === reservation ===

    /// Reserves slots and VLANs for every branch that is still missing, all or none.
    fn reserve(
        &mut self,
        uid: &PodUid,
        trunk: &Trunk,
        queue_closed: bool,
        now: Moment,
        out: &mut Vec<Effect>,
    ) -> Result<(), Wait> {
        let Some(holding) = self.holdings.get(uid) else {
            return Ok(());
        };
        let needed = holding.requested;
        let have = u32::try_from(holding.branches.len()).unwrap_or(u32::MAX);
        if needed <= have {
            return Ok(());
        }
        let missing = needed - have;
        if needed > trunk.limit {
            let wait = Wait::MoreThanTrunk { needed, limit: trunk.limit };
            self.notify(uid, NoticeKind::TrunkFull, wait.name(), wait.to_string(), out);
            return Err(wait);
        }
        if let Some(why) = self.pods_blind {
            return Err(Wait::PodView(why));
        }
        let free = trunk.limit.saturating_sub(self.used_slots() + self.ghost_slots(uid));
        if queue_closed && free >= missing {
            return Err(Wait::Queued { free, limit: trunk.limit });
        }
        if free < missing {
            let wait = Wait::SlotsFull { needed: missing, free, limit: trunk.limit };
            self.notify(uid, NoticeKind::TrunkFull, wait.name(), wait.to_string(), out);
            return Err(wait);
        }
        self.links_ready(now, out)?;
        let vlans: Vec<VlanId> = self.usable_vlans().take(missing as usize).collect();
        if vlans.len() < missing as usize {
            return Err(Wait::VlansResting);
        }
        let Some(holding) = self.holdings.get_mut(uid) else {
            return Ok(());
        };
        let indexes = (0..=u8::MAX).filter(|i| !holding.branches.contains_key(i)).take(vlans.len());
        for (index, vlan) in indexes.collect::<Vec<_>>().into_iter().zip(vlans) {
            self.vlans.hold(vlan);
            holding.branches.insert(index, Branch::reserved(vlan));
        }
        holding.told.remove(&NoticeKind::TrunkFull);
        Ok(())
    }

    /// The VLANs that may be handed out now, best first: rested, named by no pod's annotation, without a link.
    pub(super) fn usable_vlans(&self) -> impl Iterator<Item = VlanId> {
        let links = self.links.known();
        let usable = move |v: &VlanId| !self.annotated.contains(v) && linkless(links, *v);
        self.vlans.free().into_iter().filter(usable)
    }

    /// VLANs are handed out only on a valid link view that a barrier confirmed since the last re-list, and once the
    /// agent has told which VLANs were used of late (design §4.5).
    pub(super) fn links_ready(&mut self, now: Moment, out: &mut Vec<Effect>) -> Result<(), Wait> {
        let links_matter = lock::holds(Lock::LinkViewForVlans);
        if let Some(why) = self.links.blind().filter(|_| links_matter) {
            return Err(Wait::LinkView(why));
        }
        let timeout = self.timing.barrier_timeout;
        let Some(session) = &mut self.session else {
            return Err(Wait::LinkBarrier);
        };
        if !session.history && lock::holds(Lock::RestIsRemembered) {
            return Err(Wait::VlanHistory);
        }
        if session.links_confirmed || !links_matter {
            return Ok(());
        }
        if session.link_barrier.is_none_or(|(_, asked)| now.has_passed(asked, timeout)) {
            self.next_op += 1;
            session.link_barrier = Some((self.next_op, now));
            out.push(Effect::Send(ToAgent::Barrier {
                question: self.next_op,
                uids: BTreeSet::new(),
            }));
        }
        Err(Wait::LinkBarrier)
    }

    /// A new mirror of the same static pod takes the old one's ENI over by re-tagging (design §4.1). The two cannot exist
    /// at one time, for they have the same name. Until the answer comes nothing is done to the old one.
    fn take_over_static(&mut self, uid: &PodUid, out: &mut Vec<Effect>) -> Option<Wait> {
        let heir = self.holdings.get(uid)?;
        if !heir.mirror || heir.branches.len() >= heir.requested as usize {
            return None;
        }
        let hash = heir.kubelet_uid.as_ref()?;
        let is_donor = |h: &&Holding| {
            h.pod.uid != *uid
                && (&h.pod.namespace, &h.pod.name) == (&heir.pod.namespace, &heir.pod.name)
                && h.mirror
                && h.kubelet_uid.as_ref() == Some(hash)
                && h.call.is_none()
                && h.accepted.is_none()
                && !h.handing_over
                && !self.pods.contains_key(&h.pod.uid)
        };
        let (donor, index, eni) = self.holdings.values().filter(is_donor).find_map(|h| {
            let free = |i: &u8| !heir.branches.contains_key(i);
            let (i, eni) = h
                .branches
                .iter()
                .find_map(|(i, b)| Some((*i, b.eni()?.clone())).filter(|(i, _)| free(i)))?;
            Some((h.pod.uid.clone(), i, eni))
        })?;
        let tags = BTreeMap::from([
            (tag::POD_UID.to_owned(), heir.pod.uid.to_string()),
            (tag::POD_NAMESPACE.to_owned(), heir.pod.namespace.to_string()),
            (tag::POD_NAME.to_owned(), heir.pod.name.to_string()),
        ]);
        let op = self.ask(uid.clone(), Ask::TakeOver(donor.clone(), index));
        self.set(uid, |h| h.call = Some(op));
        self.set(&donor, |h| h.handing_over = true);
        out.push(Effect::Call(op, Ec2Call::Tag { eni, tags }));
        Some(Wait::Call(Step::Tag))
    }

    /// The tags that bind a donor's branch to `uid` were written, or not.
    pub(super) fn on_taken_over(
        &mut self,
        uid: &PodUid,
        donor: &PodUid,
        index: u8,
        answer: Answer,
        now: Moment,
        out: &mut Vec<Effect>,
    ) {
        self.set(donor, |h| h.handing_over = false);
        match answer {
            Answer::Ec2(Ok(_)) => {}
            Answer::Ec2(Err(failure)) => {
                return self.on_branch_failure(uid, Step::Tag, index, &failure, now, out);
            }
            _ => return,
        }
        let Some(old) = self.holdings.get_mut(donor) else {
            return;
        };
        old.release = None;
        let branch = old.branches.remove(&index);
        if old.branches.is_empty() {
            self.holdings.remove(donor);
        }
        self.set(uid, |h| {
            if let Some(mut branch) = branch {
                if let Some(interface) = branch.interface_mut() {
                    interface.uid_tag = Tag::Is(h.pod.uid.clone());
                }
                h.branches.insert(index, branch);
            }
            h.progressed();
        });
    }

    // === branches ===

    /// The next EC2 step of the first branch that needs one.
    fn next_branch_step(
        &mut self,
        uid: &PodUid,
        trunk: &Trunk,
        out: &mut Vec<Effect>,
    ) -> Option<Wait> {
        let (index, step, call) = branch_call(self.holdings.get(uid)?, trunk)?;
        Some(self.branch_step(uid, step, index, call, out))
    }

    /// Asks for an EC2 step of a branch, and notes that it may take effect from now on.
    pub(super) fn branch_step(
        &mut self,
        uid: &PodUid,
        step: Step,
        index: u8,
        call: Ec2Call,
        out: &mut Vec<Effect>,
    ) -> Wait {
        if step == Step::Create {
            self.set_stage(uid, index, Stage::CreateUnsure);
        }
        if step == Step::Associate
            && let Some(branch) =
                self.holdings.get_mut(uid).and_then(|h| h.branches.get_mut(&index))
        {
            branch.vlan_used = true;
            if let Stage::Made(i) = branch.stage.clone() {
                branch.stage = Stage::AssociateUnsure(i);
            }
        }
        self.call(uid, step, index, call, out)
    }

    pub(super) fn set_stage(&mut self, uid: &PodUid, index: u8, stage: Stage) {
        if let Some(branch) = self.holdings.get_mut(uid).and_then(|h| h.branches.get_mut(&index)) {
            branch.stage = stage;
        }
    }

    // === annotation ===

    pub(super) fn annotate(
        &mut self,
        uid: &PodUid,
        trunk: &Trunk,
        out: &mut Vec<Effect>,
    ) -> Result<(), Wait> {
        let Some(holding) = self.holdings.get(uid) else {
            return Ok(());
        };
        let Some((_, rv)) = holding.verified.clone() else {
            return Ok(());
        };
        let mut branches = Vec::new();
        for (_, branch) in holding.asked() {
            let Stage::Attached(i, Some(association)) = &branch.stage else {
                return Ok(());
            };
            if i.subnet != trunk.subnet {
                return Err(Wait::SubnetDiffers);
            }
            branches.push(AnnotatedBranch {
                eni: i.eni.clone(),
                mac: i.mac,
                ipv4: i.ipv4,
                ipv6: i.ipv6,
                vlan: branch.vlan,
                cidrs: trunk.cidrs.clone(),
                association: association.clone(),
            });
        }
        if branches.is_empty() {
            return Ok(());
        }
        let pod = holding.pod.clone();
        let op = self.open_step(uid, Step::Annotate, 0);
        out.push(Effect::Annotate { op, pod, rv, branches });
        Err(Wait::Call(Step::Annotate))
    }
}

/// The link view shows that no link has this VLAN.
fn linkless(links: Option<&crate::view::Links>, vlan: VlanId) -> bool {
    match links {
        Some(links) => !links.has_vlan(vlan) || !lock::holds(Lock::StrayLinkKeepsVlan),
        None => !lock::holds(Lock::LinkViewForVlans),
    }
}

/// The call that the first branch which is not attached needs next.
fn branch_call(holding: &Holding, trunk: &Trunk) -> Option<(u8, Step, Ec2Call)> {
    for (index, branch) in holding.asked() {
        let (index, step, call) = match &branch.stage {
            Stage::Reserved | Stage::CreateUnsure if branch.doubt.is_some() => {
                (*index, Step::ReadBack, Ec2Call::FindByUid(holding.pod.uid.clone()))
            }
            Stage::Reserved | Stage::CreateUnsure => {
                (*index, Step::Create, create_call(holding, *index, branch, trunk, None)?)
            }
            Stage::Made(i) if branch.doubt.is_some() => {
                (*index, Step::Describe, Ec2Call::Describe(i.eni.clone()))
            }
            Stage::Made(i) | Stage::AssociateUnsure(i) | Stage::Attached(i, _)
                if !i.groups_right =>
            {
                let groups = holding.groups.clone()?;
                (*index, Step::SetGroups, Ec2Call::SetGroups { eni: i.eni.clone(), groups })
            }
            Stage::Made(i) | Stage::AssociateUnsure(i) | Stage::Attached(i, _)
                if i.vlan_tag != Some(branch.vlan) =>
            {
                let tags = BTreeMap::from([(tag::VLAN.to_owned(), branch.vlan.to_string())]);
                (*index, Step::Tag, Ec2Call::Tag { eni: i.eni.clone(), tags })
            }
            Stage::Made(_) | Stage::AssociateUnsure(_) | Stage::Attached(_, None) => {
                let (step, call) = association_call(holding, branch, trunk)?;
                (*index, step, call)
            }
            Stage::Attached(_, Some(_)) | Stage::Cooling(..) => continue,
        };
        return Some((index, step, call));
    }
    None
}

/// The call that makes the ENI of a branch; `None` until the groups are known.
pub(super) fn create_call(
    holding: &Holding,
    index: u8,
    branch: &Branch,
    trunk: &Trunk,
    replaced: Option<Replaced>,
) -> Option<Ec2Call> {
    Some(Ec2Call::Create(CreateBranch {
        pod: holding.pod.clone(),
        index,
        config_hash: holding.mirror.then(|| holding.kubelet_uid.clone()).flatten(),
        trunk: trunk.eni.clone(),
        instance: trunk.instance.clone(),
        vlan: branch.vlan,
        subnet: trunk.subnet.clone(),
        groups: holding.groups.clone()?,
        replaced,
        nonce: branch.create_nonce,
    }))
}

/// The call that makes an association or finds its id out. Where an annotation names an id, EC2 is asked whose it is; where
/// that is refused, or nothing names it, Associate is sent or sent again: the same token gives the id back (design §5).
pub(super) fn association_call(
    holding: &Holding,
    branch: &Branch,
    trunk: &Trunk,
) -> Option<(Step, Ec2Call)> {
    let attached = matches!(branch.stage, Stage::Attached(..));
    let hint = branch.hint.as_ref().filter(|_| attached && holding.attempt.is_multiple_of(2));
    if let Some(id) = hint {
        return Some((Step::Describe, Ec2Call::DescribeAssociation(id.clone())));
    }
    let associate = AssociateBranch {
        branch: branch.eni()?.clone(),
        trunk: trunk.eni.clone(),
        vlan: branch.vlan,
        nonce: branch.associate_nonce,
    };
    Some((Step::Associate, Ec2Call::Associate(associate)))
}
