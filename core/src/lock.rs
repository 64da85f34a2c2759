//! The locks: rules whose absence would take a live pod's ENI away, or give its VLAN to somebody else.
//!
//! Each is asked for by name at the place where it decides. In every build that ships, [`holds`] is a constant `true` and
//! nothing of this module is left. Under the feature `weaken`, which no shipped crate enables (the architecture test
//! checks that), the model checker takes one rule out at a time and has to find what goes wrong: a rule whose absence is
//! not noticed is either not needed, or the checker's world is too kind.
//!
//! A lock is a rule of the design, not a line of code. Where the agent and the coordinator both hold to a rule, one name
//! stands at both places.

macro_rules! locks {
    ($( $(#[$doc:meta])* $name:ident = $text:literal ),* $(,)?) => {
        /// A rule that can be taken out by the model checker.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Lock { $( $(#[$doc])* $name, )* }

        impl Lock {
            /// All locks.
            pub const ALL: &'static [Self] = &[$( Self::$name, )*];

            /// Short name.
            pub fn name(self) -> &'static str {
                match self { $( Self::$name => $text, )* }
            }
        }
    };
}

locks! {
    // === what an agent may conclude (design §4.2) ===
    /// The pod's cgroup must be gone. Without it a kubelet that has not heard of the deletion restarts the sandbox.
    CgroupGone = "cgroup-gone",
    /// Way (a) needs the cgroup to have been seen: "never there" and "gone" look alike.
    CgroupWasSeen = "cgroup-was-seen",
    /// What was seen under another kubelet start says nothing: the new kubelet may have removed the cgroup only because
    /// its server lags, and start the pod once it catches up.
    SeenUnderThisStart = "seen-under-this-start",
    /// A cgroup that the first look after a kubelet start shows may be left over: a kubelet that does not know its pod
    /// removes it, and starts the pod later.
    LeftoverProvesNothing = "leftover-proves-nothing",
    /// A kubelet start or reboot withdraws what was stated, on the agent and at the coordinator.
    StartWithdraws = "start-withdraws",
    /// The journal is of this boot: a reboot removes every cgroup at once.
    JournalOfThisBoot = "journal-of-this-boot",
    /// The kubelet must accept a connection: one that is down will start what its server shows once it is up.
    KubeletAlive = "kubelet-alive",
    /// The kubelet is looked at before and after: it may have been replaced while the rest was read.
    KubeletSameInLook = "kubelet-same-in-look",
    /// Way (b) outlasts what a kubelet and its runtime may take to start a pod that is still to come.
    SlowOutlastsCreates = "slow-outlasts-creates",
    /// A gap between two looks starts way (b) anew: a node that slept has not lived through that time.
    GapStartsAnew = "gap-starts-anew",
    /// Way (b) is counted under one kubelet start.
    SlowUnderOneStart = "slow-under-one-start",
    /// No link of the branch may be left: another pod's sandbox may have been given it by a copied annotation.
    LinkGone = "link-gone",
    /// A cgroup view must contain the agent's own pod, or it is of another tree.
    CgroupViewProves = "cgroup-view-proves",
    /// A link view must contain the trunk's MAC, or it is of another namespace.
    LinkViewProves = "link-view-proves",
    /// A pod that a list does not contain is only suspect.
    AbsenceIsSuspect = "absence-is-suspect",
    /// A static pod is followed by its config hash; losing the mirror alone never suffices.
    MirrorByHash = "mirror-by-hash",

    // === what the coordinator requires (design §4.1, §4.3) ===
    /// Our own live GET before a Disassociate.
    OwnGet = "own-get",
    /// Everything is judged again before a Delete, our own live GET included.
    SecondJudgement = "second-judgement",
    /// The ENI's UID tag is the released UID.
    TagIsUid = "tag-is-uid",
    /// No other live pod of the node names the ENI.
    NamedByNobodyElse = "named-by-nobody-else",
    /// An annotation never binds an ENI to the pod that carries it.
    AnnotationBindsNothing = "annotation-binds-nothing",
    /// An association id out of an annotation is used only after EC2 has said whose it is.
    AssociationConfirmed = "association-confirmed",
    /// A barrier is asked directly before a Disassociate.
    BarrierAsked = "barrier-asked",
    /// A barrier that disagrees withdraws.
    BarrierAgrees = "barrier-agrees",
    /// The barrier's reply is to this round's question, and not old.
    BarrierFresh = "barrier-fresh",
    /// The cooldown between Disassociate and Delete.
    Cooldown = "cooldown",
    /// No undo while the UID lives (`D41`): what a call with a lost reply made is kept and used.
    NoUndo = "no-undo",
    /// What a lost reply may have made is read back before a release goes on.
    ReadBack = "read-back",
    /// A new client token only after the read-back window.
    ReadBackWindow = "read-back-window",
    /// "Deleted" is said only once calls of an earlier term have ended and show.
    DeletedIsKnown = "deleted-is-known",
    /// The annotation patch carries UID and resourceVersion of the GET it was decided on. Kept by the adapter.
    PatchIsBound = "patch-is-bound",
    /// A deposed leader's calls end with its lease. Kept by the adapter.
    LeaseFences = "lease-fences",

    // === VLANs (design §4.5) ===
    /// A VLAN rests before it is handed on.
    VlanRests = "vlan-rests",
    /// A new term takes over which VLANs were used of late, and waits until the agent has told.
    RestIsRemembered = "rest-is-remembered",
    /// An agent without a record makes every unowned VLAN rest.
    NoRecordRestsAll = "no-record-rests-all",
    /// A VLAN whose link exists is not handed out.
    StrayLinkKeepsVlan = "stray-link-keeps-vlan",
    /// Without a valid link view no VLAN is handed out.
    LinkViewForVlans = "link-view-for-vlans",
}

/// Whether a rule is in force.
#[cfg(not(feature = "weaken"))]
#[inline]
pub(crate) const fn holds(_: Lock) -> bool {
    true
}

#[cfg(feature = "weaken")]
pub use weakened::{holds, remove};

#[cfg(feature = "weaken")]
mod weakened {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::Lock;

    static REMOVED: AtomicU64 = AtomicU64::new(0);

    /// Whether a rule is in force.
    pub fn holds(lock: Lock) -> bool {
        REMOVED.load(Ordering::Relaxed) & (1 << lock as u64) == 0
    }

    /// Takes these rules out, for the whole process, and puts all others back.
    pub fn remove(locks: &[Lock]) {
        let set = locks.iter().fold(0, |set, lock| set | (1 << *lock as u64));
        REMOVED.store(set, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(feature = "weaken")))]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_in_force_in_an_ordinary_build() {
        assert!(Lock::ALL.iter().all(|lock| holds(*lock)));
    }

    #[test]
    fn names_are_distinct() {
        let names: std::collections::BTreeSet<_> = Lock::ALL.iter().map(|l| l.name()).collect();
        assert_eq!(names.len(), Lock::ALL.len());
        assert!(names.len() <= 64, "the removed ones are kept in one word");
    }
}
