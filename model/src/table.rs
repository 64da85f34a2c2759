//! Which rule's absence is found where.

use trunkline_core::lock::Lock;

use crate::world::Setup;
use crate::worlds;

/// Rules that are taken out together, and the world in which that must be found.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// What kind of mistake it is.
    pub mistake: &'static str,
    /// The rules that are taken out.
    pub locks: &'static [Lock],
    /// Where it is found.
    pub world: &'static Setup,
}

macro_rules! rows {
    ($( $world:ident: $mistake:literal, $($lock:ident)+; )*) => {
        /// The table.
        pub const ROWS: &[Row] = &[
            $( Row { mistake: $mistake, locks: &[$(Lock::$lock),+], world: &worlds::$world }, )*
        ];
    };
}

rows! {
    LISTS: "what a list does not contain is gone", AbsenceIsSuspect OwnGet CgroupGone LinkGone;
    KUBELET: "API 404 alone", CgroupGone LinkGone;
    KUBELET: "API 404 and no link", CgroupGone;
    KUBELET: "an empty view is taken for an empty node", CgroupViewProves;
    KUBELET: "deleted at once", Cooldown;
    UNSTARTED: "no cgroup, whether it was seen or not", CgroupWasSeen;
    UNSTARTED: "way (b) shorter than what is still to come", SlowOutlastsCreates;
    UNSTARTED: "way (b) through a gap", GapStartsAnew;
    RESTART: "seen under another kubelet start", SeenUnderThisStart;
    RELEARN: "way (b) across a kubelet start", SlowUnderOneStart;
    RESTART: "a kubelet that is down", KubeletAlive;
    RESTART: "a cgroup left over from before the kubelet's start", LeftoverProvesNothing;
    REBOOT: "a journal of another boot", JournalOfThisBoot SeenUnderThisStart;
    MOMENT: "facts not withdrawn by a kubelet start", StartWithdraws;
    MOMENT: "no barrier", BarrierAsked;
    MOMENT: "a barrier that disagrees is ignored", BarrierAgrees;
    BRAKE: "an old answer to the barrier", BarrierFresh;
    MOMENT: "the kubelet is looked at once", KubeletSameInLook;
    COPIES: "no look for the link", LinkGone;
    COPIES: "no link in another namespace", LinkViewProves;
    COPIES: "nobody asks who else names the ENI", NamedByNobodyElse;
    ADOPTED: "the annotation as proof", AnnotationBindsNothing;
    TAGS: "the UID tag is not compared", TagIsUid;
    FORGED: "an association id out of an annotation", AssociationConfirmed;
    LIAR: "no own GET", OwnGet;
    LIARS: "no second judgement before Delete", SecondJudgement;
    TERMS: "undo on a lost reply", NoUndo;
    TERMS: "what a lost reply made is forgotten", ReadBack;
    TERMS: "no read-back window", ReadBackWindow;
    TERMS: "\"deleted\" is answered too early", DeletedIsKnown;
    TERMS: "a deposed leader's late calls", LeaseFences;
    NAMES: "a patch without UID and resourceVersion", PatchIsBound;
    VLANS: "no rest", VlanRests;
    RECORDS: "rest forgotten at a change of leader", RestIsRemembered;
    RECORDS: "an agent without record", NoRecordRestsAll;
    VLANS: "a VLAN whose link is there", StrayLinkKeepsVlan;
    VLANS: "VLANs handed out blindly", LinkViewForVlans;
    STATIC: "losing the mirror suffices", MirrorByHash;
}

/// What no local evidence can close: found without any rule taken out. If it is not found any more, the documentation of
/// what remains is wrong.
pub const REMAINS: &[&Setup] = &[&worlds::REMAINS];
