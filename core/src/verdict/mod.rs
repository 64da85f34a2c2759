//! May this branch ENI be disassociated, may it be deleted?
//!
//! [`judge`] looks at a [`Case`] and answers with a [`DeletePermit`] or with the first thing that is missing. The permit
//! has private fields, cannot be cloned or built elsewhere, and is consumed by the one function that sends the call.
//! Losing any piece of evidence can only turn a permit into a [`Keep`], never the reverse: every condition below is a
//! conjunction of things that are *there*.
//!
//! The case is judged twice: before Disassociate, where the agent's facts must be of the current session, boot, kubelet
//! start and term and a fresh barrier agrees, and again before Delete, where those facts stay accepted for the term
//! (the association is gone, nothing on the node can use the ENI) but our own GET, the tag, the node's annotations, fuse
//! and mode are asked anew (design §4.3).

mod dead;

use std::time::Duration;

pub use dead::{DeadCase, judge_dead};

use crate::dead::InstanceDead;
use crate::eni::Tag;
use crate::fact::{BarrierReply, Over, ReportedRelease, Way};
use crate::id::{AssociationId, BootId, EniId, Epoch, KubeletStart, PodUid, SessionId, TermNonce};
use crate::lock::{self, Lock};
use crate::time::Moment;

/// A permit cannot be made outside this module:
///
/// ```compile_fail
/// let permit = trunkline_core::verdict::DeletePermit { };
/// ```
///
/// nor copied:
///
/// ```compile_fail
/// fn twice(permit: trunkline_core::verdict::DeletePermit) {
///     let _second = permit.clone();
/// }
/// ```
#[derive(Debug, PartialEq, Eq)]
pub struct DeletePermit {
    eni: EniId,
    uid: Option<PodUid>,
    epoch: Epoch,
    stage: PermitStage,
    proof: Proof,
}

/// What the permit allows, once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PermitStage {
    /// Disassociate the branch from its trunk.
    Disassociate(AssociationId),
    /// Delete the ENI.
    Delete,
}

/// What a permit rests on, for the release record.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Proof {
    /// Its pod is over.
    Pod(PodProof),
    /// Its instance is dead.
    Instance(InstanceDead),
}

/// What shows that an ENI's pod is over.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodProof {
    /// The agent's statement.
    pub reported: ReportedRelease,
    /// Our own live GET.
    pub own: Over,
}

impl DeletePermit {
    /// The ENI.
    pub fn eni(&self) -> &EniId {
        &self.eni
    }

    /// The pod it was bound to; `None` where its UID tag does not tell.
    pub fn uid(&self) -> Option<&PodUid> {
        self.uid.as_ref()
    }

    /// The term it was given in.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// What it allows.
    pub fn stage(&self) -> &PermitStage {
        &self.stage
    }

    /// What it rests on.
    pub fn proof(&self) -> &Proof {
        &self.proof
    }
}

/// Why an ENI is kept. Closed; every reason has a sentence that tells a person what is awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Keep {
    /// The term is not in force (no leader, or the epoch is another).
    NotLeading,
    /// No statement from the agent.
    NoAgentFacts,
    /// The statement does not cover this ENI.
    EniNotCovered,
    /// The statement is of another session, boot, kubelet start or term than the current one.
    FactsOutdated,
    /// Our own live GET has not confirmed it, or was not answered.
    NotConfirmed,
    /// Our own live GET found the pod alive.
    PodAlive,
    /// The ENI's UID tag is missing or unreadable.
    TagUnreadable,
    /// The ENI's UID tag names another pod.
    TagOfOther,
    /// A live pod in the node's view names the ENI.
    NamedByOther,
    /// The node's pod view is not valid, so nobody knows who names the ENI.
    ViewUnknown,
    /// The agent has not answered the barrier.
    BarrierAwaited,
    /// The barrier showed the pod's cgroup or link again, or could not be read.
    BarrierDisagrees,
    /// The cooldown runs.
    Cooling,
    /// The node is frozen by the fuse.
    FuseBlown,
    /// The cluster is frozen by the fuse.
    ClusterFuseBlown,
    /// What is stored of the fuse cannot be read or written.
    FuseUnknown,
    /// Too many releases that no watch event announced; more are let through each minute.
    Paced,
    /// Releasing is switched off.
    ModeForbids,
    /// The association id is not known yet.
    AssociationUnknown,
    /// The ENI is quarantined.
    Quarantined,
    /// Nothing proves that the ENI's instance is dead.
    InstanceNotDead,
    /// An agent of the instance that is said to be dead is connected.
    AgentConnected,
    /// EC2 has not been asked for the ENI by its id in this round.
    NotDescribed,
    /// The ENI's instance tag is missing, unreadable or another instance's.
    OtherInstance,
    /// EC2 shows the ENI in use.
    EniInUse,
}

impl Keep {
    /// All reasons.
    pub const ALL: [Self; 25] = [
        Self::NotLeading,
        Self::NoAgentFacts,
        Self::EniNotCovered,
        Self::FactsOutdated,
        Self::NotConfirmed,
        Self::PodAlive,
        Self::TagUnreadable,
        Self::TagOfOther,
        Self::NamedByOther,
        Self::ViewUnknown,
        Self::BarrierAwaited,
        Self::BarrierDisagrees,
        Self::Cooling,
        Self::FuseBlown,
        Self::ClusterFuseBlown,
        Self::FuseUnknown,
        Self::Paced,
        Self::ModeForbids,
        Self::AssociationUnknown,
        Self::Quarantined,
        Self::InstanceNotDead,
        Self::AgentConnected,
        Self::NotDescribed,
        Self::OtherInstance,
        Self::EniInUse,
    ];

    /// Short name for the wire, logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotLeading => "not-leading",
            Self::NoAgentFacts => "no-agent-facts",
            Self::EniNotCovered => "eni-not-covered",
            Self::FactsOutdated => "facts-outdated",
            Self::NotConfirmed => "not-confirmed",
            Self::PodAlive => "pod-alive",
            Self::TagUnreadable => "tag-unreadable",
            Self::TagOfOther => "tag-of-other",
            Self::NamedByOther => "named-by-other",
            Self::ViewUnknown => "view-unknown",
            Self::BarrierAwaited => "barrier-awaited",
            Self::BarrierDisagrees => "barrier-disagrees",
            Self::Cooling => "cooling",
            Self::FuseBlown => "fuse-blown",
            Self::ClusterFuseBlown => "cluster-fuse-blown",
            Self::FuseUnknown => "fuse-unknown",
            Self::Paced => "paced",
            Self::ModeForbids => "mode-forbids",
            Self::AssociationUnknown => "association-unknown",
            Self::Quarantined => "quarantined",
            Self::InstanceNotDead => "instance-not-dead",
            Self::AgentConnected => "agent-connected",
            Self::NotDescribed => "not-described",
            Self::OtherInstance => "other-instance",
            Self::EniInUse => "eni-in-use",
        }
    }

    /// What a person is told.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::NotLeading => "this coordinator does not lead; the leader decides",
            Self::NoAgentFacts => {
                "the node's agent has not stated that the pod's cgroup and link are gone; it does so after it has seen both go"
            }
            Self::EniNotCovered => {
                "the agent's statement does not cover this ENI yet; it repeats it with the ENI included"
            }
            Self::FactsOutdated => {
                "the agent's statement is from before a reconnect, reboot, kubelet start or change of leader; it is made anew"
            }
            Self::NotConfirmed => {
                "the API server has not confirmed by a live GET that the pod is over; the GET is repeated"
            }
            Self::PodAlive => "the API server says that the pod still exists and has not ended",
            Self::TagUnreadable => {
                "the ENI's trunkline.dev/pod-uid tag is missing or unreadable, so its owner is unknown"
            }
            Self::TagOfOther => "the ENI's trunkline.dev/pod-uid tag names another pod",
            Self::NamedByOther => "a live pod on the node names this ENI in its annotation",
            Self::ViewUnknown => {
                "the node's pods are not known at the moment; the agent has to connect and list them"
            }
            Self::BarrierAwaited => {
                "the agent is being asked to look once more, right before the release"
            }
            Self::BarrierDisagrees => {
                "on the last look the pod's cgroup or link was there again, or could not be read"
            }
            Self::Cooling => "the ENI is disassociated and cools down before it is deleted",
            Self::FuseBlown => {
                "the node's agent said of several pods that they are gone, and the API server says that they are alive; nothing is released on this node until somebody has looked at it and runs trunkline fuse reset --node"
            }
            Self::ClusterFuseBlown => {
                "the agents of several nodes were contradicted by the API server; nothing is released in the cluster until somebody has looked at them and runs trunkline fuse reset --cluster"
            }
            Self::FuseUnknown => {
                "whether the fuse has blown is not known or not stored, because the ConfigMap trunkline-state could not be read or written; nothing is released until it can"
            }
            Self::Paced => {
                "many pods disappeared without a delete event; releases go on at a limited rate"
            }
            Self::ModeForbids => {
                "releasing is switched off (trunkline mode, --no-release or --read-only)"
            }
            Self::AssociationUnknown => "the association id is being looked up",
            Self::Quarantined => {
                "the ENI is quarantined because what is known of it contradicts itself"
            }
            Self::InstanceNotDead => {
                "nothing proves that the ENI's instance is dead: EC2 has to say that it is terminated"
            }
            Self::AgentConnected => {
                "EC2 says that the instance is dead, but an agent of it is connected; its ENIs are deleted once the agent is gone"
            }
            Self::NotDescribed => "EC2 is being asked for the ENI by its id",
            Self::OtherInstance => {
                "the ENI's node.k8s.amazonaws.com/instance_id tag does not name the dead instance; correct the tag or delete the ENI by hand"
            }
            Self::EniInUse => {
                "EC2 shows the ENI in use although its instance is dead; it is deleted once EC2 shows it available"
            }
        }
    }
}

/// The answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The ENI stays, and why.
    Keep(Keep),
    /// The call may be made.
    Permit(DeletePermit),
    /// The facts are accepted and there is nothing to disassociate: the cooldown begins.
    Accept,
}

/// The session, boot and kubelet start that are current, as heartbeats tell.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CurrentSession {
    /// Session.
    pub session: SessionId,
    /// Boot id.
    pub boot: BootId,
    /// Kubelet start.
    pub start: KubeletStart,
}

/// The term in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Term {
    /// Epoch.
    pub epoch: Epoch,
    /// Nonce.
    pub nonce: TermNonce,
}

/// Whether another live pod in the node's view names the ENI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NamedElsewhere {
    /// The view is not valid.
    Unknown,
    /// Nobody else names it.
    No,
    /// Another live pod does.
    Yes,
}

/// Whether brakes allow a release now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Brake {
    /// Free.
    Off,
    /// A reason to wait ([`Keep::FuseBlown`], [`Keep::Paced`] or [`Keep::ModeForbids`]).
    On(Keep),
}

/// Which call is asked for, and what it needs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Ask<'a> {
    /// Disassociate: everything current, barrier included.
    Disassociate {
        /// The branch's association.
        association: Attached<'a>,
        /// The session that is current.
        session: Option<&'a CurrentSession>,
        /// Nonce of the barrier that was asked for this judgement, and its reply.
        barrier: Option<(u64, &'a BarrierReply)>,
    },
    /// Delete: the facts were accepted in this term, the association is gone since `since`.
    Delete {
        /// When the answer to Disassociate came, or, for an ENI that was never associated, when its facts were accepted.
        since: Option<Moment>,
        /// Cooldown in force.
        cooldown: Duration,
        /// Now.
        now: Moment,
    },
}

/// What is known of a branch's association.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Attached<'a> {
    /// There is none: the ENI was never associated, or is not any more. The facts can be accepted and the cooldown
    /// begins, without a call.
    Never,
    /// There is one, its id is not known yet.
    Unread,
    /// Its id.
    By(&'a AssociationId),
}

/// Everything a judgement looks at.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Case<'a> {
    /// The ENI.
    pub eni: &'a EniId,
    /// The pod whose release is asked.
    pub uid: &'a PodUid,
    /// The ENI's UID tag.
    pub tag: &'a Tag<PodUid>,
    /// The term, while this coordinator leads.
    pub term: Option<Term>,
    /// The agent's statement.
    pub reported: Option<&'a ReportedRelease>,
    /// Our own live GET of this round.
    pub own: Option<&'a Over>,
    /// Whether another pod names the ENI.
    pub named: NamedElsewhere,
    /// Fuse, pace and mode.
    pub brake: Brake,
    /// The call asked for.
    pub ask: Ask<'a>,
}

/// Judges a case.
pub fn judge(case: &Case<'_>) -> Verdict {
    permitted(case).unwrap_or_else(Verdict::Keep)
}

fn permitted(case: &Case<'_>) -> Result<Verdict, Keep> {
    let term = case.term.ok_or(Keep::NotLeading)?;
    match case.tag {
        Tag::Is(uid) if uid == case.uid => {}
        _ if !lock::holds(Lock::TagIsUid) => {}
        Tag::Is(_) => return Err(Keep::TagOfOther),
        Tag::Absent | Tag::Unreadable(_) => return Err(Keep::TagUnreadable),
    }
    let reported = case.reported.ok_or(Keep::NoAgentFacts)?;
    let facts = reported.facts();
    if facts.uid != *case.uid {
        return Err(Keep::NoAgentFacts);
    }
    if !facts.enis.contains(case.eni) {
        return Err(Keep::EniNotCovered);
    }
    let origin = reported.origin();
    let of_term = origin.epoch == term.epoch && origin.nonce == term.nonce;
    if !of_term {
        return Err(Keep::FactsOutdated);
    }
    match case.named {
        _ if !lock::holds(Lock::NamedByNobodyElse) => {}
        NamedElsewhere::Unknown => return Err(Keep::ViewUnknown),
        NamedElsewhere::Yes => return Err(Keep::NamedByOther),
        NamedElsewhere::No => {}
    }
    let own = case.own.filter(|own| own.uid() == case.uid).ok_or(Keep::NotConfirmed)?;
    if let Brake::On(why) = case.brake {
        return Err(why);
    }
    let stage = match &case.ask {
        Ask::Disassociate { association, session, barrier } => {
            let session = session.ok_or(Keep::FactsOutdated)?;
            if !is_current(reported, Some(term), Some(session)) {
                return Err(Keep::FactsOutdated);
            }
            if lock::holds(Lock::BarrierAsked) {
                barrier_agrees(case.uid, reported, *barrier)?;
            }
            match association {
                Attached::Never => return Ok(Verdict::Accept),
                Attached::Unread => return Err(Keep::AssociationUnknown),
                Attached::By(id) => PermitStage::Disassociate((*id).clone()),
            }
        }
        Ask::Delete { since, cooldown, now } => {
            let since = since.ok_or(Keep::Cooling)?;
            if !now.has_passed(since, *cooldown) && lock::holds(Lock::Cooldown) {
                return Err(Keep::Cooling);
            }
            PermitStage::Delete
        }
    };
    Ok(Verdict::Permit(DeletePermit {
        eni: case.eni.clone(),
        uid: Some(case.uid.clone()),
        epoch: term.epoch,
        stage,
        proof: Proof::Pod(PodProof { reported: reported.clone(), own: own.clone() }),
    }))
}

/// A Disassociate that no fact allows: what undoing a step with a lost reply amounts to. For the model checker only.
#[cfg(feature = "weaken")]
pub(crate) fn undo(
    eni: &EniId,
    uid: &PodUid,
    epoch: Epoch,
    association: &AssociationId,
    reported: &ReportedRelease,
    own: &Over,
) -> DeletePermit {
    DeletePermit {
        eni: eni.clone(),
        uid: Some(uid.clone()),
        epoch,
        stage: PermitStage::Disassociate(association.clone()),
        proof: Proof::Pod(PodProof { reported: reported.clone(), own: own.clone() }),
    }
}

/// The barrier's reply is to this question, of the same session and term, and repeats boot id and kubelet start with
/// neither cgroup nor link of this UID.
fn barrier_agrees(
    uid: &PodUid,
    reported: &ReportedRelease,
    barrier: Option<(u64, &BarrierReply)>,
) -> Result<(), Keep> {
    let (question, reply) = barrier.ok_or(Keep::BarrierAwaited)?;
    let this_round = reply.question == question || !lock::holds(Lock::BarrierFresh);
    if !this_round || reply.origin != *reported.origin() {
        return Err(Keep::BarrierAwaited);
    }
    let facts = reported.facts();
    let same_life = (reply.boot == facts.boot && reply.start == Some(facts.start))
        || !lock::holds(Lock::StartWithdraws);
    let gone = reply.present.get(uid) == Some(&Some(false));
    if (same_life && gone) || !lock::holds(Lock::BarrierAgrees) {
        Ok(())
    } else {
        Err(Keep::BarrierDisagrees)
    }
}

/// Whether the facts of a [`ReportedRelease`] are of the current session, boot and kubelet start, the part of
/// [`judge`] that can be answered before our own GET and the barrier are asked.
pub fn is_current(
    reported: &ReportedRelease,
    term: Option<Term>,
    session: Option<&CurrentSession>,
) -> bool {
    let (Some(term), Some(session)) = (term, session) else {
        return false;
    };
    let (facts, origin) = (reported.facts(), reported.origin());
    let of_session = origin.epoch == term.epoch
        && origin.nonce == term.nonce
        && origin.session == session.session;
    let of_life = facts.boot == session.boot && facts.start == session.start;
    of_session && (of_life || !lock::holds(Lock::StartWithdraws))
}

/// Whether a way needs the longer rest of a VLAN (`vlan_rest_unseen`): its link may never have been seen.
pub fn link_was_never_seen(way: Way) -> bool {
    way == Way::Slow
}

#[cfg(test)]
mod tests;
