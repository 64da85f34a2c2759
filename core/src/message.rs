//! What agent and coordinator tell each other, as `core` types (design §5). The wire format and its conversion are in the
//! crate `proto`; sessions, sequence numbers and digests are the adapters' business.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use crate::fact::{BarrierReply, ReportedRelease};
use crate::id::{BootId, EniId, KubeletStart, MacAddress, PodRef, PodUid, VlanId};
use crate::view::{Blind, Complete, Link, Links, Pod, Snapshot, Suspect};

/// From the agent, after the greeting. What a snapshot says counts only once it was closed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum FromAgent {
    /// The pods of the node: a closed snapshot, or why there is none.
    Pods(Result<Snapshot<Complete>, Blind>),
    /// The links, whole.
    Links(Result<Links, Blind>),
    /// The UIDs of pod cgroups, whole.
    Cgroups(Result<BTreeSet<PodUid>, Blind>),
    /// How long ago each VLAN's link was last seen, as far as the agent's journal knows. `None`: there is no journal of
    /// this boot.
    VlansUsed(Option<BTreeMap<VlanId, Duration>>),
    /// A change since the last snapshot of its kind.
    Change(Change),
    /// An owned UID is missing from a complete view.
    Suspect(Suspect),
    /// The local facts for a UID are complete.
    Release(ReportedRelease),
    /// Sign of life.
    Heartbeat(Heartbeat),
    /// Answer to a barrier.
    Barrier(BarrierReply),
    /// What became of a [`SetMac`]. Each request gets at most one answer, and only in the session that asked; when the
    /// session ends without one, nothing is known, and the same request may simply be made again in the next session.
    MacResult {
        /// The request's number.
        request: u64,
        /// Its VLAN.
        vlan: VlanId,
        /// What happened.
        outcome: MacOutcome,
    },
}

/// A change of one view.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Change {
    /// A pod was added or changed.
    PodApplied(Pod),
    /// A watch DELETED event carried this UID.
    PodDeleted(PodRef),
    /// Links appeared or went; a changed link is in both lists.
    Links {
        /// New.
        added: Vec<Link>,
        /// Gone, by interface index.
        removed: Vec<u32>,
    },
    /// Pod cgroups appeared or went.
    Cgroups {
        /// New.
        added: BTreeSet<PodUid>,
        /// Gone.
        removed: BTreeSet<PodUid>,
    },
}

/// Sign of life, every [`crate::time::Timing::heartbeat`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Heartbeat {
    /// Boot id.
    pub boot: BootId,
    /// Kubelet start, if the kubelet is alive.
    pub kubelet: Option<KubeletStart>,
    /// State of the pod view.
    pub pods: Option<Blind>,
    /// State of the link view.
    pub links: Option<Blind>,
    /// State of the cgroup view.
    pub cgroups: Option<Blind>,
}

/// To the agent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ToAgent {
    /// The MAC of the node's trunk, by which a link view proves that it looks at the right place.
    Trunk(Option<MacAddress>),
    /// Every branch in the node's books.
    OwnedAll(Vec<OwnedBranch>),
    /// Changes of the books since.
    OwnedChanged {
        /// Added or changed.
        added: Vec<OwnedBranch>,
        /// Gone.
        removed: Vec<EniId>,
    },
    /// A live GET found the pod gone (NotFound, or another UID).
    Gone(PodUid),
    /// A live GET found the pod: the agent's view is wrong, it has to list again.
    Alive(PodUid),
    /// How far a release is.
    Ack(PodUid, Ack),
    /// Look once more at these UIDs and answer.
    Barrier {
        /// Goes back in the reply.
        question: u64,
        /// The UIDs.
        uids: BTreeSet<PodUid>,
    },
    /// Change the MAC of a live branch link; answered with [`FromAgent::MacResult`].
    SetMac(SetMac),
    /// Drop what the node's neighbour tables say about these addresses, on all links. Has no answer: it is done at once,
    /// or the entries age as they always do.
    ClearNeighbours {
        /// Addresses of the node's pods.
        addresses: Vec<IpAddr>,
    },
}

/// Healing in place (design §6): the pod got a new ENI with its old address, so its link needs the new ENI's MAC.
///
/// The agent acts on this message and on nothing else, never on an annotation; the coordinator sends it only after it has
/// described the new ENI by id. It is compare-and-set: a link that carries neither `from` nor `to` is left alone. The same
/// request may be repeated, in any session; where the link already carries `to` the rest (link-local address, neighbours,
/// announcement) is done again.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SetMac {
    /// Comes back in the answer; unique within the term.
    pub request: u64,
    /// The pod, for the log and for what the agent knows of it.
    pub uid: PodUid,
    /// The branch's VLAN: the link is the one named `vlan.eth.N`.
    pub vlan: VlanId,
    /// MAC that the link is thought to carry, as the agent reported it.
    pub from: MacAddress,
    /// MAC of the ENI that is associated now.
    pub to: MacAddress,
    /// The pod's addresses, to be announced to its neighbours and dropped from the node's own neighbour tables.
    pub addresses: Vec<IpAddr>,
}

/// What became of a [`SetMac`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum MacOutcome {
    /// The link carries the new MAC, and its link-local address and routes were looked at and are right.
    Done,
    /// It carried the new MAC before, and everything else is right too.
    Already,
    /// There is no link of this name: the sandbox is not set up, or was taken down meanwhile. The annotation is what a
    /// sandbox to come will use, so nothing is left to do but to look again.
    LinkAbsent,
    /// The link carries another MAC than either, or was made anew while it was being changed; here is what it carries now.
    Differs(MacAddress),
    /// The agent runs with `--heal-in-place=false`.
    SwitchedOff,
    /// The kernel refused a step, or the link is not right after it; the sentence says what. The link may carry the new
    /// MAC; the link view tells. Worth another try.
    Failed(String),
}

/// How far a release is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ack {
    /// Received.
    Received,
    /// The branches are being released.
    Executing,
    /// No ENI of this UID is left; the agent can forget it.
    Deleted,
}

/// A branch in the node's books.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnedBranch {
    /// The pod it is bound to.
    pub pod: PodRef,
    /// The pod is a mirror of a static pod.
    pub mirror: bool,
    /// The UID by which the kubelet knows the pod; `None` for a mirror pod whose hash is unknown.
    pub kubelet_uid: Option<PodUid>,
    /// ENI.
    pub eni: EniId,
    /// MAC.
    pub mac: MacAddress,
    /// VLAN.
    pub vlan: VlanId,
}
