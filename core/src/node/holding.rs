//! What is held for one pod UID.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::eni::{EniRecord, Tag};
use crate::fact::{BarrierReply, Over, ReportedRelease};
use crate::id::{
    AssociationId, EniId, MacAddress, PodRef, PodUid, ResourceVersion, SecurityGroupId, SubnetId,
    VlanId,
};
use crate::lock::{self, Lock};
use crate::message::OwnedBranch;
use crate::time::{Moment, Timing};
use crate::view::Pod;
use crate::wait::Wait;

use super::care::Care;
use super::event::{Basis, NoticeKind, OpId};

/// What is held for one pod UID.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Holding {
    pub(super) pod: PodRef,
    pub(super) mirror: bool,
    /// UID by which the kubelet knows the pod; `None` for a mirror pod whose hash is unknown.
    pub(super) kubelet_uid: Option<PodUid>,
    /// Order of arrival, for the queue.
    pub(super) arrival: u64,
    pub(super) since: Moment,
    /// How many branches the pod asks for, as far as a view or GET told.
    pub(super) requested: u32,
    pub(super) branches: BTreeMap<u8, Branch>,
    /// The pod's annotation is known to name exactly these branches.
    pub(super) annotated: bool,
    /// The pod carries another pod's annotation, which is to be replaced.
    pub(super) copied: bool,
    /// What a describe by id told of ENIs that the annotation names and the books do not have.
    pub(super) named: BTreeMap<EniId, NamedEni>,
    /// The live GET of this attempt.
    pub(super) verified: Option<(Box<Pod>, ResourceVersion)>,
    /// The groups of this attempt, and whether they come from policies.
    pub(super) groups: Option<Vec<SecurityGroupId>>,
    /// The pod is over or terminating, as a view or our own GET once showed: nothing new is made for it, ever.
    pub(super) stopped: bool,
    pub(super) release: Option<ReleaseCase>,
    /// The statement that was accepted in this term; it stays good for the Delete.
    pub(super) accepted: Option<Accepted>,
    /// Our own live GET before a Delete.
    pub(super) confirmed: Option<Confirmed>,
    /// A branch of it is being re-tagged for a new mirror of the same static pod.
    pub(super) handing_over: bool,
    /// Our annotation was written and the view does not show it yet.
    pub(super) written: bool,
    /// What the permit in the open call rests on.
    pub(super) basis: Option<Basis>,
    pub(super) call: Option<OpId>,
    pub(super) attempt: u32,
    pub(super) retry_at: Option<Moment>,
    pub(super) wait: Option<Wait>,
    pub(super) wait_since: Moment,
    pub(super) told: BTreeMap<NoticeKind, String>,
}

/// What a describe by id told of an ENI that an annotation names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum NamedEni {
    /// It is another pod's or another trunk's: the annotation is a copy.
    Foreign,
    /// It is of this trunk and has no UID tag of ours.
    Untagged,
    /// EC2 does not show it.
    Ghost,
}

/// A release under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ReleaseCase {
    pub(super) reported: ReportedRelease,
    /// When it came.
    pub(super) stated: Moment,
    /// Our own live GET of this round.
    pub(super) own: Option<Confirmed>,
    /// The barrier of this round: its nonce, when it was asked, and the reply.
    pub(super) barrier: Option<(u64, Moment, Option<BarrierReply>)>,
    /// The node's pace has let it through.
    pub(super) node_pace: bool,
    /// The cluster's pace has let it through.
    pub(super) cluster_pace: bool,
}

/// A statement that was accepted, and when it came.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Accepted {
    pub(super) reported: ReportedRelease,
    pub(super) stated: Moment,
}

/// What our own live GET proved, and the resourceVersion of the object it returned, if it returned one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Confirmed {
    pub(super) over: Over,
    pub(super) rv: Option<ResourceVersion>,
}

/// One branch of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Branch {
    pub(super) vlan: VlanId,
    pub(super) stage: Stage,
    pub(super) create_nonce: u32,
    pub(super) associate_nonce: u32,
    /// A Create of the current token may have taken effect.
    pub(super) create_unsure: bool,
    /// An association of it may exist or have existed, so that its VLAN has to rest when it is given back.
    pub(super) vlan_used: bool,
    /// The last moment at which an Associate of it may have been under way, ours or an earlier term's. `None` once EC2,
    /// asked by id long enough after, said that it is available; then it is surely not associated.
    pub(super) maybe_associated: Option<Moment>,
    /// The association id that the pod's annotation names. Anybody who may patch the pod may have written it: it is used
    /// only after EC2 has said that it is this ENI's.
    pub(super) hint: Option<AssociationId>,
    /// EC2 does not know its id, asked by id, since then.
    pub(super) missing: Option<Moment>,
    /// An answer that contradicts the books is being read back.
    pub(super) doubt: Option<Doubt>,
    /// What is known of its health once its pod may be using it.
    pub(super) care: Care,
}

/// Something EC2 said that the books do not explain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Doubt {
    pub(super) since: Moment,
    pub(super) about: About,
}

/// What a doubt is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum About {
    /// The ENI or its state may lag behind.
    Lag,
    /// The token no longer fits.
    Token,
    /// Somebody else has the VLAN.
    Vlan,
}

impl Doubt {
    /// The doubt, or the one that was there before.
    pub(super) fn or_new(doubt: Option<Self>, about: About, now: Moment) -> Self {
        doubt.unwrap_or(Self { since: now, about })
    }

    /// How long it is read back before it is believed.
    pub(super) fn window(self, timing: &Timing) -> Duration {
        match self.about {
            About::Lag | About::Token => timing.ec2_consistency,
            About::Vlan => timing.ec2_attempt,
        }
    }

    pub(super) fn is_settled(self, timing: &Timing, now: Moment) -> bool {
        now.has_passed(self.since, self.window(timing))
    }
}

/// Where a branch is on its way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// Slot and VLAN are reserved, EC2 was not asked for anything.
    Reserved,
    /// A Create was sent and nobody knows whether it took effect.
    CreateUnsure,
    /// The ENI exists, without association.
    Made(Interface),
    /// An Associate was sent and nobody knows whether it took effect.
    AssociateUnsure(Interface),
    /// Associated; the id may have to be read back.
    Attached(Interface, Option<AssociationId>),
    /// Disassociated (or never associated, and its release accepted) since then; to be deleted after the cooldown.
    Cooling(Interface, Moment),
}

/// An ENI that exists.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Interface {
    pub(super) eni: EniId,
    pub(super) mac: MacAddress,
    pub(super) ipv4: Option<Ipv4Addr>,
    pub(super) ipv6: Option<Ipv6Addr>,
    pub(super) subnet: SubnetId,
    pub(super) groups: Vec<SecurityGroupId>,
    /// UID in its tag.
    pub(super) uid_tag: Tag<PodUid>,
    /// VLAN in its tag, if readable.
    pub(super) vlan_tag: Option<VlanId>,
    /// Its groups are known to be the pod's.
    pub(super) groups_right: bool,
}

impl Interface {
    pub(super) fn from_record(record: &EniRecord, groups_right: bool) -> Self {
        Self {
            eni: record.id.clone(),
            mac: record.mac,
            ipv4: record.ipv4,
            ipv6: record.ipv6,
            subnet: record.subnet.clone(),
            groups: record.groups.clone(),
            uid_tag: record.tags.pod_uid.clone(),
            vlan_tag: record.tags.vlan.value().copied(),
            groups_right,
        }
    }
}

impl Branch {
    pub(super) fn reserved(vlan: VlanId) -> Self {
        Self {
            vlan,
            stage: Stage::Reserved,
            create_nonce: 0,
            associate_nonce: 0,
            create_unsure: false,
            vlan_used: false,
            maybe_associated: None,
            hint: None,
            missing: None,
            doubt: None,
            care: Care::default(),
        }
    }

    /// Of an ENI that another term may have associated; that term's calls ended when this one began.
    pub(super) fn adopted(vlan: VlanId, stage: Stage, began: Moment) -> Self {
        Self { stage, vlan_used: true, maybe_associated: Some(began), ..Self::reserved(vlan) }
    }

    /// What was made for it does not exist, or not any more: a new token is due.
    pub(super) fn renew(&mut self) {
        self.stage = Stage::Reserved;
        self.create_nonce = self.create_nonce.saturating_add(1);
        self.create_unsure = false;
        self.maybe_associated = None;
        self.hint = None;
        self.missing = None;
        self.doubt = None;
    }

    /// Its ENI is gone, and another one is made in its place: with tokens of their own, for they name the one that is
    /// replaced.
    pub(super) fn make_anew(&mut self) {
        self.renew();
        self.create_nonce = 0;
        self.associate_nonce = 0;
    }

    pub(super) fn interface(&self) -> Option<&Interface> {
        match &self.stage {
            Stage::Reserved | Stage::CreateUnsure => None,
            Stage::Made(i)
            | Stage::AssociateUnsure(i)
            | Stage::Attached(i, _)
            | Stage::Cooling(i, _) => Some(i),
        }
    }

    pub(super) fn interface_mut(&mut self) -> Option<&mut Interface> {
        match &mut self.stage {
            Stage::Reserved | Stage::CreateUnsure => None,
            Stage::Made(i)
            | Stage::AssociateUnsure(i)
            | Stage::Attached(i, _)
            | Stage::Cooling(i, _) => Some(i),
        }
    }

    pub(super) fn eni(&self) -> Option<&EniId> {
        self.interface().map(|i| &i.eni)
    }

    pub(super) fn takes_slot(&self) -> bool {
        !matches!(self.stage, Stage::Cooling(..))
    }
}

impl Holding {
    pub(super) fn new(pod: PodRef, arrival: u64, now: Moment) -> Self {
        Self {
            kubelet_uid: Some(pod.uid.clone()),
            pod,
            mirror: false,
            arrival,
            since: now,
            requested: 0,
            branches: BTreeMap::new(),
            annotated: false,
            copied: false,
            named: BTreeMap::new(),
            verified: None,
            groups: None,
            stopped: false,
            release: None,
            accepted: None,
            confirmed: None,
            handing_over: false,
            written: false,
            basis: None,
            call: None,
            attempt: 0,
            retry_at: None,
            wait: None,
            wait_since: now,
            told: BTreeMap::new(),
        }
    }

    /// Takes over what a view or GET says of the pod.
    ///
    /// A mirror pod is never known to the kubelet by its own UID, so without a hash there is none. A hash that is known
    /// stays: a mirror with another hash has another UID.
    pub(super) fn learn(&mut self, pod: &Pod) {
        self.requested = pod.requested;
        let known = self.mirror && self.kubelet_uid.is_some();
        self.mirror |= pod.mirror;
        if self.mirror && !known && lock::holds(Lock::MirrorByHash) {
            self.kubelet_uid.clone_from(&pod.config_hash);
        }
    }

    /// The branches that the pod asked for; an adopted surplus comes after them and is left alone while the pod lives.
    pub(super) fn asked(&self) -> impl Iterator<Item = (&u8, &Branch)> {
        self.branches.iter().take(self.requested as usize)
    }

    pub(super) fn has_eni(&self, eni: &EniId) -> bool {
        self.branches.values().any(|b| b.eni() == Some(eni))
    }

    pub(super) fn is_cooling(&self) -> bool {
        self.branches.values().any(|b| matches!(b.stage, Stage::Cooling(..)))
    }

    /// Its next step may be taken now.
    pub(super) fn is_free(&self, now: Moment) -> bool {
        self.call.is_none() && !self.handing_over && self.retry_at.is_none_or(|at| at <= now)
    }

    /// A branch still takes a slot.
    pub(super) fn holds_slot(&self) -> bool {
        self.branches.values().any(Branch::takes_slot)
    }

    /// EC2 has, or may have, something of this UID.
    pub(super) fn in_ec2(&self) -> bool {
        self.branches.values().any(|b| b.stage != Stage::Reserved)
    }

    /// A branch of it is being repaired.
    pub(super) fn is_mending(&self) -> bool {
        self.branches.values().any(|b| b.care.rewrite || b.care.lost.is_some())
    }

    /// Whether one of its ENIs replaces this one, or is to.
    pub(super) fn replaces(&self, eni: &EniId) -> bool {
        self.branches.values().any(|b| b.care.replaces(eni))
    }

    /// A branch that is being repaired is told as the ENI that is lost, so that the agent goes on following its pod.
    pub(super) fn owned(&self, branch: &Branch) -> Option<OwnedBranch> {
        let lost = branch.care.lost.as_ref().map(|lost| (&lost.old.eni, lost.old.mac));
        let (eni, mac) = branch.interface().map(|i| (&i.eni, i.mac)).or(lost)?;
        Some(OwnedBranch {
            pod: self.pod.clone(),
            mirror: self.mirror,
            kubelet_uid: self.kubelet_uid.clone(),
            eni: eni.clone(),
            mac,
            vlan: branch.vlan,
        })
    }

    /// The agent's statement no longer counts for a new Disassociate; what was accepted stays accepted.
    pub(super) fn withdraw_release(&mut self) {
        self.release = None;
    }

    /// A step went well: the next one is not put off.
    pub(super) fn progressed(&mut self) {
        self.attempt = 0;
        self.retry_at = None;
        self.told.remove(&NoticeKind::AllocationFailed);
        self.told.remove(&NoticeKind::AnnotationFailed);
    }

    /// The statement under way, as it is accepted.
    pub(super) fn to_accept(&self) -> Option<Accepted> {
        let case = self.release.as_ref()?;
        Some(Accepted { reported: case.reported.clone(), stated: case.stated })
    }

    pub(super) fn next_cooled(&self, cooldown: Duration) -> Option<Moment> {
        let since = |b: &Branch| match b.stage {
            Stage::Cooling(_, since) => Some(since.plus(cooldown)),
            _ => None,
        };
        self.branches.values().filter_map(since).min()
    }

    pub(super) fn barrier_deadline(&self, timing: &Timing) -> Option<Moment> {
        match &self.release.as_ref()?.barrier {
            Some((_, asked, None)) => Some(asked.plus(timing.barrier_timeout)),
            _ => None,
        }
    }
}
