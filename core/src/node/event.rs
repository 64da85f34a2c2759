//! What happens to a node's books, and what they ask for.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::annotation::AnnotatedBranch;
use crate::dead::InstanceDead;
use crate::eni::{Ec2Answer, Ec2Call, EniRecord, SubnetCidrs};
use crate::fact::{NotFoundStatus, Origin};
use crate::fuse::FuseState;
use crate::heal::Health;
use crate::id::{
    BootId, EniId, InstanceId, KubeletStart, MacAddress, PodRef, PodUid, ResourceVersion,
    SecurityGroupId, SubnetId, VlanId,
};
use crate::message::{FromAgent, ToAgent};
use crate::time::{Moment, Timing};
use crate::verdict::{Keep, Proof};
use crate::view::Pod;
use crate::wait::Step;

/// Names one asked-for call of one node; the answer carries it back. An answer whose id is not open is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u64);

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "events are moved once, from a mailbox into `step`")]
pub enum Event {
    /// The trunk is ready. Sent again when a limit, group or CIDR changed.
    TrunkReady(Trunk),
    /// There is no usable trunk; with the reason a person is told.
    TrunkDown(String),
    /// Every ENI of the inventory whose trunk tag or instance tag is this node's, from one whole inventory of this term.
    /// Comes again with each reading.
    Inventory {
        /// When the reading began; the same reading may come twice.
        began: Moment,
        /// The ENIs.
        enis: Vec<EniRecord>,
    },
    /// An agent's session was accepted. A session that was open is replaced.
    SessionOpened(SessionOpened),
    /// The agent's session ended, or it was silent for too long.
    SessionClosed,
    /// The agent said something, in its session.
    Agent(FromAgent),
    /// The answer to an effect.
    Answer(OpId, Answer),
    /// The instance is dead. Comes again with every look at it.
    Dead(InstanceDead),
    /// What operators and the cluster decide.
    Settings(Settings),
    /// What the cluster's fuse says to this node, at the start of a term and whenever that changes.
    Fuse(FuseState),
    /// An operator orders the repair of the branches that have, or have lost, these ENIs: what is proven lost is repaired in
    /// place whatever `--heal` and the fuse of the repairs say; groups and tags that drifted are written again.
    Repair(BTreeSet<EniId>),
    /// Time passed, or something outside changed that may end a wait.
    Tick,
}

/// From when on a reading of EC2 shows everything that a term before the one that began at `began` has made: its calls have
/// ended by then, and lists show them.
pub fn shows_all(began: Moment, timing: &Timing) -> Moment {
    began.plus(timing.ec2_operation + timing.ec2_list_window)
}

/// A node's trunk, ready for use.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Trunk {
    /// The instance.
    pub instance: InstanceId,
    /// The trunk ENI.
    pub eni: EniId,
    /// Its MAC.
    pub mac: MacAddress,
    /// Branch limit (`LIM-1`).
    pub limit: u32,
    /// Subnet in which branches are made.
    pub subnet: SubnetId,
    /// Its CIDR blocks.
    pub cidrs: SubnetCidrs,
    /// Groups used where no policy matches: those of the primary ENI (`TRK-1`).
    pub default_groups: Vec<SecurityGroupId>,
    /// The trunk was created in this term by this coordinator, so no VLAN of it was ever used before.
    pub fresh: bool,
}

/// An accepted session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SessionOpened {
    /// Session, epoch and nonce that all its messages carry.
    pub origin: Origin,
    /// Boot id.
    pub boot: BootId,
    /// Kubelet start, if the kubelet is alive.
    pub kubelet: Option<KubeletStart>,
}

/// What operators and the cluster decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Settings {
    /// Cooldown in force ([`crate::time::effective_cooldown`]).
    pub cooldown: Duration,
    /// Rest of a VLAN (`--vlan-rest`, not below the cooldown).
    pub vlan_rest: Duration,
    /// No mutating EC2 call and no annotation.
    pub read_only: bool,
    /// No Disassociate and no Delete.
    pub no_release: bool,
    /// What is done for a live pod that lost its branch (`--heal`).
    pub heal: HealMode,
    /// Groups that were changed out of band are set again (`--restore-groups`).
    pub restore_groups: bool,
}

/// What is done for a live pod that lost its branch. Whatever it is, the loss is evented and shown in a pod condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum HealMode {
    /// The branch is repaired in place where that is possible.
    #[default]
    InPlace,
    /// The branch is repaired in place; where that is not possible the pod is evicted, if a controller replaces it.
    Evict,
    /// Nothing is repaired.
    Report,
}

impl HealMode {
    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::InPlace => "in-place",
            Self::Evict => "evict",
            Self::Report => "report",
        }
    }
}

/// An answer from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "answers are moved once, from a mailbox into `step`")]
pub enum Answer {
    /// To [`Effect::Call`].
    Ec2(Ec2Answer),
    /// To [`Effect::GetPod`].
    Pod(Lookup),
    /// To [`Effect::ResolveGroups`].
    Groups(Result<Groups, String>),
    /// To [`Effect::Annotate`].
    Annotated(Annotated),
    /// To [`Effect::AskPace`] and [`Effect::AskHeal`]: granted, or not before.
    Pace(Result<(), Moment>),
    /// To [`Effect::Evict`].
    Evicted(Evicted),
}

/// A live GET of a pod, sent without resourceVersion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup {
    /// The name exists. The UID may be another one.
    Found(Box<Pod>, ResourceVersion),
    /// Proven absent.
    NotFound(NotFoundStatus),
    /// Anything else; says nothing about the pod.
    Unknown(String),
}

/// The outcome of matching policies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Groups {
    /// Groups of the policies that match, joined (`POL-7`); never empty.
    Policies(Vec<SecurityGroupId>),
    /// The list succeeded and no policy matches: the node's groups apply (`ALC-3`).
    NoMatch,
}

/// The outcome of an annotation patch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Annotated {
    /// Written.
    Done,
    /// 409: the resourceVersion or UID no longer fits.
    Conflict,
    /// Refused for another reason, surely not written.
    Refused(String),
    /// Nobody knows whether it was written.
    Unknown(String),
}

/// What a node asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// An EC2 call.
    Call(OpId, Ec2Call),
    /// A live GET of a pod.
    GetPod(OpId, PodRef),
    /// Match the policies of the pod's namespace, by a consistent LIST.
    ResolveGroups(OpId, Box<Pod>),
    /// Patch the annotation, bound to the UID and to this resourceVersion.
    Annotate {
        /// Operation.
        op: OpId,
        /// The pod.
        pod: PodRef,
        /// resourceVersion of the GET it was decided on.
        rv: ResourceVersion,
        /// What to write.
        branches: Vec<AnnotatedBranch>,
    },
    /// Ask the cluster's pace for a place.
    AskPace(OpId),
    /// Ask whether the cluster allows a repair: it does not while too many of its branches are lost at once (design
    /// §4.5). Answered by [`Answer::Pace`].
    AskHeal(OpId),
    /// Evict a pod that is cut off for good, through the eviction API, if a controller replaces it.
    Evict(OpId, PodRef),
    /// Show in the pod's condition how its branch is.
    Condition(Condition),
    /// A lost branch works again; for the record.
    Healed(Healed),
    /// Send to the agent.
    Send(ToAgent),
    /// Tell a person, as a Kubernetes event.
    Notify(Notice),
    /// A branch was released; for the record.
    Released(Released),
    /// An ENI of a dead instance was deleted; for the record.
    Cleared(Cleared),
    /// A release waits for another reason than before; for counting.
    Kept(Keep),
    /// An agent's statement was contradicted by our own live GET.
    Vetoed {
        /// The pod, which lives.
        pod: PodRef,
        /// The pods that froze the node, if this one did. The books are frozen already; it has to be stored.
        froze: Option<BTreeSet<PodUid>>,
    },
    /// Send [`Event::Tick`] at this moment, or earlier.
    Wake(Moment),
}

/// How a pod's branch is, for its condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The pod.
    pub pod: PodRef,
    /// [`Health::Ok`] once it works again.
    pub health: Health,
    /// What is being done, or why nothing can be.
    pub message: String,
}

/// How a lost branch was repaired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Healed {
    /// The pod.
    pub pod: PodRef,
    /// The ENI that works now.
    pub eni: EniId,
    /// What had been lost.
    pub loss: Health,
    /// How long it took since somebody noticed the first sign.
    pub took: Duration,
}

/// The outcome of an eviction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evicted {
    /// The API server accepted it.
    Done,
    /// Nothing would replace the pod: it was left alone.
    NoController,
    /// Too many evictions of late; not before this moment.
    Paced(Moment),
    /// Refused (a disruption budget), or nobody knows.
    Refused(String),
}

/// A message for a person, once per change of state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The pod it is about; `None` for the node.
    pub pod: Option<PodRef>,
    /// What kind.
    pub kind: NoticeKind,
    /// The sentence.
    pub message: String,
}

/// Kinds of notices. The adapter maps them to event reasons (`contract.md` §20).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NoticeKind {
    /// Groups from policies were chosen.
    GroupsFromPolicies,
    /// No policy matches: the node's groups apply.
    GroupsFromNode,
    /// The annotation was written.
    Allocated,
    /// Create or associate failed.
    AllocationFailed,
    /// The annotation was refused.
    AnnotationFailed,
    /// Disassociate or delete is refused for a reason that a person has to mend (S22).
    ReleaseFailed,
    /// The pod waits for a slot.
    TrunkFull,
    /// The pod has been waiting for a while, for a reason that passes or that is told nowhere else.
    Waiting,
    /// The pod's request does not do what its author will have meant.
    OddRequest,
    /// The pod carried another pod's annotation, which was replaced.
    AnnotationReplaced,
    /// The pod's annotation cannot be read, or names what does not exist.
    AnnotationUnusable,
    /// An ENI without our UID tag is kept.
    UnboundBranch,
    /// A link of a VLAN that nobody owns.
    StrayLink,
    /// What is known of a branch contradicts itself; it is kept.
    Quarantined,
    /// A live pod's branch is lost.
    BranchLost,
    /// It works again.
    BranchHealed,
    /// It cannot be repaired in place.
    HealNotPossible,
    /// The pod was evicted because of that, or was not.
    Evicted,
    /// Repairs stop because too many branches are lost at once.
    HealFrozen,
    /// Groups or tags of a live pod's ENI were changed by somebody else.
    BranchDrifted,
    /// An ENI of a dead instance cannot be deleted yet.
    RemainsKept,
}

/// A release that was carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Released {
    /// The ENI.
    pub eni: EniId,
    /// Its pod.
    pub pod: PodRef,
    /// Its VLAN.
    pub vlan: VlanId,
    /// [`Step::Disassociate`] or [`Step::Delete`].
    pub step: Step,
    /// What it rested on; `None` where no permit led to it.
    pub basis: Option<Basis>,
}

/// An ENI of a dead instance that was deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cleared {
    /// The ENI.
    pub eni: EniId,
    /// Its pod, as far as its tags told.
    pub pod: Option<PodRef>,
    /// Its VLAN, as far as that was known.
    pub vlan: Option<VlanId>,
    /// What proved the instance dead.
    pub dead: InstanceDead,
}

/// What a permit rested on, and when.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Basis {
    /// The agent's statement and our own live GET.
    pub proof: Proof,
    /// When the statement came.
    pub stated: Moment,
    /// resourceVersion of the object that the GET returned; `None` if it was answered NotFound.
    pub rv: Option<ResourceVersion>,
    /// When the permit was given.
    pub permitted: Moment,
}
