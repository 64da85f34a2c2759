//! Facts: what was observed, once true for ever, and the only ways to have observed it.
//!
//! Absence from a list, a cache, a report or a describe is not a fact and has no constructor here (`safety.md` §3). The
//! order of observation is part of the types: [`KubeletReleased`] is made from an [`Over`] and a later [`Look`],
//! [`SandboxGone`] from a [`KubeletReleased`] and a look that is not earlier. Local facts carry the boot id and kubelet
//! start under which they were seen; a change of either withdraws them.
//!
//! Facts of the node's own agent are observed; what the coordinator receives of them is a [`ReportedRelease`], another
//! type, so that the two are never mixed.

use std::collections::BTreeSet;

use crate::id::{
    BootId, EniId, Epoch, KubeletStart, MacAddress, PodRef, PodUid, SessionId, TermNonce, VlanId,
};
use crate::lock::{self, Lock};
use crate::time::{Moment, Timing};
use crate::view::{Look, PodPhase};

/// Proof that a live GET was answered by the API server itself with "this pod does not exist": a `Status` with reason
/// `NotFound`, about `pods`, with our name. A bare HTTP 404 (a proxy, a wrong path) is not this.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NotFoundStatus(());

impl NotFoundStatus {
    /// Classifies the answer to `GET …/pods/<asked>`; `None` unless all of kind, reason, `details.kind` and
    /// `details.name` are right (`kube.md` §3).
    pub fn classify(
        kind: &str,
        reason: &str,
        details_kind: &str,
        details_name: &str,
        asked: &PodRef,
    ) -> Option<Self> {
        (kind == "Status"
            && reason == "NotFound"
            && details_kind == "pods"
            && details_name == asked.name.as_str())
        .then_some(Self(()))
    }
}

/// How a pod was seen to be gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GoneBy {
    /// A watch DELETED event carried this UID.
    WatchDeleted,
    /// A live GET was answered NotFound.
    GetNotFound,
    /// A live GET of the name was answered with another UID.
    GetOtherUid,
    /// The coordinator said so, from its own live GET.
    Coordinator,
}

/// The API server no longer knows the pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodGone {
    uid: PodUid,
    by: GoneBy,
    at: Moment,
}

impl PodGone {
    /// From a watch DELETED event that carried this UID.
    pub fn from_watch_deleted(uid: PodUid, at: Moment) -> Self {
        Self { uid, by: GoneBy::WatchDeleted, at }
    }

    /// From a live GET answered NotFound.
    pub fn from_not_found(asked: &PodRef, _proof: &NotFoundStatus, at: Moment) -> Self {
        Self { uid: asked.uid.clone(), by: GoneBy::GetNotFound, at }
    }

    /// From a live GET answered with a pod of another UID; `None` if it is the same.
    pub fn from_other_uid(asked: &PodRef, found: &PodUid, at: Moment) -> Option<Self> {
        (asked.uid != *found).then(|| Self { uid: asked.uid.clone(), by: GoneBy::GetOtherUid, at })
    }

    /// From the coordinator's `Gone(uid)`, which it sends from its own live GET only.
    pub fn from_coordinator(uid: PodUid, at: Moment) -> Self {
        Self { uid, by: GoneBy::Coordinator, at }
    }
}

/// The pod reached a terminal phase.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodEnded {
    uid: PodUid,
    at: Moment,
}

impl PodEnded {
    /// From the phase of an object with this UID; `None` unless Succeeded or Failed.
    pub fn from_phase(uid: &PodUid, phase: PodPhase, at: Moment) -> Option<Self> {
        phase.is_ended().then(|| Self { uid: uid.clone(), at })
    }
}

/// [`PodGone`] or [`PodEnded`]: as far as the API is concerned the pod is over.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Over {
    /// Gone.
    Gone(PodGone),
    /// Ended.
    Ended(PodEnded),
}

impl Over {
    /// The pod.
    pub fn uid(&self) -> &PodUid {
        match self {
            Self::Gone(gone) => &gone.uid,
            Self::Ended(ended) => &ended.uid,
        }
    }

    /// When it was observed.
    pub fn at(&self) -> Moment {
        match self {
            Self::Gone(gone) => gone.at,
            Self::Ended(ended) => ended.at,
        }
    }

    /// The short form that is reported.
    pub fn kind(&self) -> OverKind {
        match self {
            Self::Gone(gone) => OverKind::Gone(gone.by),
            Self::Ended(_) => OverKind::Ended,
        }
    }
}

/// Which of the two, and how it was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OverKind {
    /// The pod object is gone.
    Gone(GoneBy),
    /// The pod object is in a terminal phase.
    Ended,
}

/// That a pod's cgroup was seen, under one boot and one kubelet start.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CgroupSeen {
    /// UID in the cgroup's name (for a static pod its config hash).
    pub kubelet_uid: PodUid,
    /// Boot id.
    pub boot: BootId,
    /// Kubelet start.
    pub start: KubeletStart,
}

/// A run of valid looks in which neither the pod's cgroup nor its links were there (way b).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AbsenceWindow {
    kubelet_uid: PodUid,
    boot: BootId,
    start: KubeletStart,
    began: Moment,
    last: Moment,
}

impl AbsenceWindow {
    /// Starts a window with a look after `over`, or `None` if that look does not show absence.
    pub fn begin(
        over: &Over,
        kubelet_uid: &PodUid,
        links: &BTreeSet<(VlanId, MacAddress)>,
        look: &Look,
    ) -> Option<Self> {
        let start = shows_absence(kubelet_uid, links, look)?;
        (look.at > over.at()).then(|| Self {
            kubelet_uid: kubelet_uid.clone(),
            boot: look.boot.clone(),
            start,
            began: look.at,
            last: look.at,
        })
    }

    /// Goes on with another look. `None` if the look does not show absence, is of another boot or kubelet start, or
    /// comes more than [`Timing::look_gap`] after the last (suspend included): the window must start anew.
    #[must_use]
    pub fn extend(
        self,
        links: &BTreeSet<(VlanId, MacAddress)>,
        look: &Look,
        timing: &Timing,
    ) -> Option<Self> {
        let start = shows_absence(&self.kubelet_uid, links, look)?;
        let one_life = !lock::holds(Lock::SlowUnderOneStart)
            || (start == self.start && look.boot == self.boot);
        let no_gap =
            !lock::holds(Lock::GapStartsAnew) || look.at.since(self.last) <= timing.look_gap;
        (one_life && no_gap && look.at >= self.last).then_some(Self {
            boot: look.boot.clone(),
            start,
            last: look.at,
            ..self
        })
    }

    /// How long it has lasted.
    pub fn lasted(&self) -> std::time::Duration {
        self.last.since(self.began)
    }
}

/// The kubelet start of a valid look without this cgroup and without these links.
fn shows_absence(
    kubelet_uid: &PodUid,
    links: &BTreeSet<(VlanId, MacAddress)>,
    look: &Look,
) -> Option<KubeletStart> {
    let start = look.kubelet()?;
    let cgroups = look.cgroups.as_ref().ok()?;
    let seen = look.links.as_ref().ok()?;
    let cgroup = lock::holds(Lock::CgroupGone) && cgroups.contains(kubelet_uid);
    let link =
        lock::holds(Lock::LinkGone) && links.iter().any(|(vlan, mac)| seen.has_branch(*vlan, *mac));
    (!cgroup && !link).then_some(start)
}

/// The way in which [`KubeletReleased`] was observed (design §4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// The cgroup was seen under this boot and kubelet start, and was gone in a look after the pod was over.
    SeenAndGone,
    /// Five minutes of valid looks without cgroup and link.
    Slow,
}

/// The kubelet is done with this UID.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KubeletReleased {
    uid: PodUid,
    over: OverKind,
    way: Way,
    boot: BootId,
    start: KubeletStart,
    at: Moment,
}

impl KubeletReleased {
    /// Way (a).
    pub fn seen_and_gone(
        over: &Over,
        seen: &CgroupSeen,
        kubelet_uid: &PodUid,
        look: &Look,
    ) -> Option<Self> {
        let start = look.kubelet()?;
        let cgroups = look.cgroups.as_ref().ok()?;
        let holds = look.at > over.at()
            && seen.kubelet_uid == *kubelet_uid
            && (seen.boot == look.boot || !lock::holds(Lock::JournalOfThisBoot))
            && (seen.start == start || !lock::holds(Lock::SeenUnderThisStart))
            && !(cgroups.contains(kubelet_uid) && lock::holds(Lock::CgroupGone));
        holds.then(|| Self {
            uid: over.uid().clone(),
            over: over.kind(),
            way: Way::SeenAndGone,
            boot: look.boot.clone(),
            start,
            at: look.at,
        })
    }

    /// Way (b): the window lasted [`Timing::slow_release`] after the pod was over.
    pub fn slow(over: &Over, window: &AbsenceWindow, timing: &Timing) -> Option<Self> {
        let long_enough = if lock::holds(Lock::SlowOutlastsCreates) {
            timing.slow_release
        } else {
            timing.look_gap
        };
        (window.began > over.at() && window.lasted() >= long_enough).then(|| Self {
            uid: over.uid().clone(),
            over: over.kind(),
            way: Way::Slow,
            boot: window.boot.clone(),
            start: window.start,
            at: window.last,
        })
    }

    /// Whether a look still agrees: same boot and kubelet start, and no such cgroup. An invalid look neither agrees
    /// nor contradicts and returns `None`.
    pub fn still_holds(&self, kubelet_uid: &PodUid, look: &Look) -> Option<bool> {
        if look.boot != self.boot {
            return Some(false);
        }
        let other = |start| lock::holds(Lock::StartWithdraws) && start != self.start;
        match (look.kubelet(), &look.cgroups) {
            (Some(start), Ok(cgroups)) => {
                let back = lock::holds(Lock::CgroupGone) && cgroups.contains(kubelet_uid);
                Some(!other(start) && !back)
            }
            (Some(start), Err(_)) if other(start) => Some(false),
            _ => None,
        }
    }

    /// The pod.
    pub fn uid(&self) -> &PodUid {
        &self.uid
    }

    /// The way.
    pub fn way(&self) -> Way {
        self.way
    }
}

/// No link of the branch is left.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SandboxGone {
    released: KubeletReleased,
    eni: EniId,
}

impl SandboxGone {
    /// From a look that is not earlier than `released` (the look reads links after cgroups) under the same boot and
    /// kubelet start, in which no link has this branch's name or MAC.
    pub fn observe(
        released: &KubeletReleased,
        eni: &EniId,
        vlan: VlanId,
        mac: MacAddress,
        look: &Look,
    ) -> Option<Self> {
        let start = look.kubelet()?;
        let links = look.links.as_ref().ok()?;
        let holds = look.at >= released.at
            && look.boot == released.boot
            && (start == released.start || !lock::holds(Lock::StartWithdraws))
            && !(links.has_branch(vlan, mac) && lock::holds(Lock::LinkGone));
        holds.then(|| Self { released: released.clone(), eni: eni.clone() })
    }

    /// The ENI.
    pub fn eni(&self) -> &EniId {
        &self.eni
    }

    /// The fact it rests on.
    pub fn released(&self) -> &KubeletReleased {
        &self.released
    }
}

/// What an agent states when the local facts for a UID are complete. Keyed by UID; covers exactly the named ENIs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReleaseFacts {
    /// The pod.
    pub uid: PodUid,
    /// How it is over.
    pub over: OverKind,
    /// How the kubelet released it.
    pub way: Way,
    /// Boot id of the local facts.
    pub boot: BootId,
    /// Kubelet start of the local facts.
    pub start: KubeletStart,
    /// The ENIs without link.
    pub enis: BTreeSet<EniId>,
}

impl ReleaseFacts {
    /// From facts of one pod, or `None` if they are not all of the same pod, boot and kubelet start, or none.
    pub fn from_observed(gone: &[SandboxGone]) -> Option<Self> {
        let first = gone.first()?.released();
        let same = |s: &SandboxGone| {
            s.released.uid == first.uid
                && s.released.boot == first.boot
                && s.released.start == first.start
        };
        gone.iter().all(same).then(|| Self {
            uid: first.uid.clone(),
            over: first.over,
            way: first.way,
            boot: first.boot.clone(),
            start: first.start,
            enis: gone.iter().map(|s| s.eni.clone()).collect(),
        })
    }

    /// For a pod without any branch in the books: nothing is left to look for, and the coordinator is told that the
    /// kubelet is done.
    pub fn without_branches(released: &KubeletReleased) -> Self {
        Self {
            uid: released.uid.clone(),
            over: released.over,
            way: released.way,
            boot: released.boot.clone(),
            start: released.start,
            enis: BTreeSet::new(),
        }
    }
}

/// Where a reported fact came from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The agent's session.
    pub session: SessionId,
    /// The term it was sent to.
    pub epoch: Epoch,
    /// The term's nonce.
    pub nonce: TermNonce,
}

/// [`ReleaseFacts`] as they came over the wire, with their origin. Made by the wire conversion only; it is as good as
/// the session it came by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReportedRelease {
    facts: ReleaseFacts,
    origin: Origin,
}

impl ReportedRelease {
    /// For the wire conversion.
    pub fn received(facts: ReleaseFacts, origin: Origin) -> Self {
        Self { facts, origin }
    }

    /// What was stated.
    pub fn facts(&self) -> &ReleaseFacts {
        &self.facts
    }

    /// Where it came from.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }
}

/// The agent's answer to a `Barrier`: what a fresh look shows, under which boot and kubelet start.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BarrierReply {
    /// Origin.
    pub origin: Origin,
    /// The nonce of the question.
    pub question: u64,
    /// Boot id.
    pub boot: BootId,
    /// Kubelet start; `None` if the kubelet was silent or changed during the look.
    pub start: Option<KubeletStart>,
    /// Per UID asked: `Some(true)` if a cgroup or one of its branches' links is there, `Some(false)` if neither is,
    /// `None` if a view was not valid.
    pub present: std::collections::BTreeMap<PodUid, Option<bool>>,
    /// VLANs whose link exists now; `None` without a valid link view.
    pub vlans: Option<BTreeSet<VlanId>>,
}
