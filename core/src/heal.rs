//! What may become of a live pod's branch, and what its repair waits for (design §6, `NEW-7`).
//!
//! A difference between the books and what EC2 or the node shows means nothing by itself: it only makes somebody ask EC2
//! for the ENI by its id. Only [`EniMissing`] says that an ENI does not exist any more, and it has one constructor.

use std::fmt;

use crate::id::{EniId, MacAddress};
use crate::time::{Moment, Timing};

/// How a branch is. Closed; each has a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Health {
    /// As it should be, as far as anybody looked.
    #[default]
    Ok,
    /// The ENI does not exist any more.
    Missing,
    /// The ENI exists without association.
    Disassociated,
    /// The ENI hangs on another trunk or VLAN than the books say.
    Elsewhere,
    /// The pod runs, and the node has no link for its branch.
    LinkMissing,
    /// The link on the node has another MAC than the ENI.
    LinkDiffers,
    /// The ENI has other security groups than the pod was given.
    WrongGroups,
    /// The ENI's tags do not bind it to this pod, trunk or VLAN.
    WrongTags,
    /// Somebody else's association, or another pod, has the VLAN.
    VlanConflict,
    /// Disassociated after its pod's end, in its cooldown.
    Cooling,
    /// An ENI of this node without pod, not associated.
    LeakedAvailable,
    /// An ENI of this node without pod, associated.
    LeakedAssociated,
    /// A pod's annotation names an ENI that EC2 does not show.
    GhostAnnotation,
    /// An ENI of this node's trunk that is not tagged for a pod, and that a live pod names.
    Foreign,
}

impl Health {
    /// All classes.
    pub const ALL: [Self; 14] = [
        Self::Ok,
        Self::Missing,
        Self::Disassociated,
        Self::Elsewhere,
        Self::LinkMissing,
        Self::LinkDiffers,
        Self::WrongGroups,
        Self::WrongTags,
        Self::VlanConflict,
        Self::Cooling,
        Self::LeakedAvailable,
        Self::LeakedAssociated,
        Self::GhostAnnotation,
        Self::Foreign,
    ];

    /// Short name for the wire, logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Missing => "missing",
            Self::Disassociated => "disassociated",
            Self::Elsewhere => "elsewhere",
            Self::LinkMissing => "link-missing",
            Self::LinkDiffers => "link-differs",
            Self::WrongGroups => "wrong-groups",
            Self::WrongTags => "wrong-tags",
            Self::VlanConflict => "vlan-conflict",
            Self::Cooling => "cooling",
            Self::LeakedAvailable => "leaked-available",
            Self::LeakedAssociated => "leaked-associated",
            Self::GhostAnnotation => "ghost-annotation",
            Self::Foreign => "foreign",
        }
    }

    /// What a person is told.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Ok => "the branch is as it should be",
            Self::Missing => "the pod's ENI does not exist any more",
            Self::Disassociated => {
                "the pod's ENI exists, but it is not associated with the node's trunk any more"
            }
            Self::Elsewhere => {
                "the pod's ENI is associated with another trunk or VLAN than the pod was given"
            }
            Self::LinkMissing => "the pod runs, but the node has no link for its branch",
            Self::LinkDiffers => "the pod's link on the node has another MAC than its ENI",
            Self::WrongGroups => {
                "somebody changed the ENI's security groups (--restore-groups sets them again)"
            }
            Self::WrongTags => "the ENI's tags do not bind it to this pod, trunk and VLAN any more",
            Self::VlanConflict => "somebody else has the pod's VLAN on the node's trunk",
            Self::Cooling => "the pod is over, the ENI cools down before it is deleted",
            Self::LeakedAvailable => "no pod is known for the ENI, and it is not associated",
            Self::LeakedAssociated => "no pod is known for the ENI, and it is associated",
            Self::GhostAnnotation => "the pod's annotation names an ENI that EC2 does not show",
            Self::Foreign => {
                "a pod names the ENI, but it is not tagged for that pod; it is kept as it is"
            }
        }
    }

    /// The pod is cut off: EC2 does not carry its traffic.
    pub fn is_loss(self) -> bool {
        matches!(self, Self::Missing | Self::Disassociated | Self::Elsewhere)
    }
}

/// Why a branch cannot be repaired in place. Closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Obstacle {
    /// Another ENI has the pod's address.
    AddressTaken,
    /// Somebody else's association has the pod's VLAN.
    VlanTaken,
    /// The ENI exists on another trunk or VLAN, or its tags are not this node's and pod's.
    NotOurs,
    /// The ENI was in another subnet than the node's branches are made in now.
    SubnetDiffers,
    /// `--heal=report`.
    ReportOnly,
    /// The agent runs with `--heal-in-place=false`.
    AgentOff,
    /// The link is gone from the node although the pod runs.
    LinkGone,
    /// The link has a MAC that no ENI of this pod ever had.
    LinkUnknown,
    /// An annotation names an ENI that does not exist, and nothing on the node shows that it was this pod's.
    Unproven,
}

impl Obstacle {
    /// Short name.
    pub fn name(self) -> &'static str {
        match self {
            Self::AddressTaken => "address-taken",
            Self::VlanTaken => "vlan-taken",
            Self::NotOurs => "not-ours",
            Self::SubnetDiffers => "subnet-differs",
            Self::ReportOnly => "report-only",
            Self::AgentOff => "agent-off",
            Self::LinkGone => "link-gone",
            Self::LinkUnknown => "link-unknown",
            Self::Unproven => "unproven",
        }
    }

    /// What a person is told.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::AddressTaken => {
                "another ENI has the pod's private address by now; recreate the pod"
            }
            Self::VlanTaken => {
                "somebody else's association has the pod's VLAN; remove it, or recreate the pod"
            }
            Self::NotOurs => {
                "the ENI is on another trunk or VLAN, or not tagged for this pod and node; it is left alone, recreate the pod"
            }
            Self::SubnetDiffers => {
                "the pod's address is of another subnet than the node's branches are made in now; recreate the pod"
            }
            Self::ReportOnly => "the coordinator runs with --heal=report; recreate the pod",
            Self::AgentOff => {
                "the node's agent runs with --heal-in-place=false and does not change the link's MAC; recreate the pod"
            }
            Self::LinkGone => {
                "the link of the pod's branch is gone from the node, and only a new sandbox brings it back; recreate the pod"
            }
            Self::LinkUnknown => {
                "the link has a MAC that no ENI of this pod had; it is not changed"
            }
            Self::Unproven => {
                "the annotation names an ENI that EC2 does not show, and the node has no link that proves it was this pod's; recreate the pod"
            }
        }
    }

    /// Whether it is a positive sign that the pod is cut off for good, so that `--heal=evict` may evict it.
    pub fn evicts(self) -> bool {
        match self {
            Self::AddressTaken
            | Self::VlanTaken
            | Self::SubnetDiffers
            | Self::AgentOff
            | Self::LinkGone => true,
            Self::NotOurs | Self::ReportOnly | Self::LinkUnknown | Self::Unproven => false,
        }
    }
}

/// What a repair waits for. Closed; each has a sentence.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HealWait {
    /// The ENI is too young for a "not found" to mean anything.
    Young,
    /// EC2 did not find the ENI once; it is asked again.
    AskedAgain,
    /// EC2 may still show what was before.
    Consistency,
    /// Many branches of the node are lost at once.
    NodeFuse {
        /// How many.
        lost: usize,
        /// Of how many.
        of: usize,
    },
    /// Many branches of the cluster are lost at once.
    ClusterFuse,
    /// The trunk has no slot for it.
    NoSlot,
    /// The agent is asked to change the MAC of the pod's link.
    LinkChange {
        /// To.
        to: MacAddress,
    },
    /// The agent could not change the MAC.
    LinkChangeFailed(String),
    /// It cannot be repaired in place.
    NotPossible(Health, Obstacle),
}

impl HealWait {
    /// Short name of the reason.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Young => "heal-young",
            Self::AskedAgain => "heal-asked-again",
            Self::Consistency => "heal-consistency",
            Self::NodeFuse { .. } => "heal-node-fuse",
            Self::ClusterFuse => "heal-cluster-fuse",
            Self::NoSlot => "heal-no-slot",
            Self::LinkChange { .. } => "heal-link-change",
            Self::LinkChangeFailed(_) => "heal-link-change-failed",
            Self::NotPossible(..) => "heal-not-possible",
        }
    }
}

impl fmt::Display for HealWait {
    /// The sentence a person is told.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Young => f.write_str(
                "EC2 does not show the pod's ENI; it is believed only of an ENI that has been known for five minutes",
            ),
            Self::AskedAgain => f.write_str(
                "EC2 does not show the pod's ENI; it is asked again, and for the address and the MAC, before that is believed",
            ),
            Self::Consistency => f.write_str(
                "the pod's ENI seems to have lost its association; EC2 may still show what was before, so it is asked again",
            ),
            Self::NodeFuse { lost, of } => write!(
                f,
                "{lost} of the node's {of} branches seem lost at once; nothing is repaired until a second whole inventory agrees"
            ),
            Self::ClusterFuse => f.write_str(
                "many branches of the cluster seem lost at once; nothing is repaired until a second whole inventory agrees",
            ),
            Self::NoSlot => f.write_str(
                "the pod's ENI is gone and the trunk has no free slot for a new one; it goes on when a pod on this node ends",
            ),
            Self::LinkChange { to } => {
                write!(f, "the node's agent is asked to give the pod's link the MAC {to}")
            }
            Self::LinkChangeFailed(why) => write!(
                f,
                "the node's agent could not change the MAC of the pod's link: {why}; it is asked again"
            ),
            Self::NotPossible(health, obstacle) => {
                write!(f, "{}, and cannot be repaired in place: {}", health.sentence(), obstacle.sentence())
            }
        }
    }
}

/// How many branches of a node may be lost at once before its repairs stop (design §4.5).
pub fn node_limit(branches: usize) -> usize {
    (branches * 5 / 100).max(3)
}

/// How many branches of the cluster may be lost at once before all repairs stop. Below 150 branches its two per cent would
/// be fewer than one node may lose.
pub fn cluster_limit(branches: usize) -> usize {
    (branches * 2 / 100).max(3)
}

/// An ENI does not exist any more (design §6). Made only by [`MissingCase::conclude`].
///
/// ```compile_fail
/// let fact = trunkline_core::heal::EniMissing { };
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EniMissing {
    eni: EniId,
    at: Moment,
}

impl EniMissing {
    /// The ENI.
    pub fn eni(&self) -> &EniId {
        &self.eni
    }

    /// When it was established.
    pub fn at(&self) -> Moment {
        self.at
    }
}

/// What EC2 has said so far of an ENI that may be missing. Any answer that shows the ENI ends the case.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MissingCase {
    eni: EniId,
    known: Moment,
    /// When it was last not found while it was too young for that to mean anything.
    early: Option<Moment>,
    first: Option<Moment>,
    second: Option<Moment>,
    by_address: Option<Moment>,
    by_mac: Option<Moment>,
}

/// What is to be asked next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NextLook {
    /// By id, now.
    ById,
    /// By id, at this moment: the ENI is too young (true), or was not found once.
    Later(Moment, bool),
    /// By private address.
    ByAddress,
    /// By MAC.
    ByMac,
}

impl MissingCase {
    /// `known`: since when the ENI is known to exist, or to have existed.
    pub fn open(eni: EniId, known: Moment) -> Self {
        Self { eni, known, early: None, first: None, second: None, by_address: None, by_mac: None }
    }

    /// EC2 did not find it at least once, when it was old enough for that to mean something.
    pub fn not_found_once(&self) -> bool {
        self.first.is_some()
    }

    /// What is to be asked next.
    pub fn next(&self, timing: &Timing, now: Moment) -> NextLook {
        let old_enough = self.known.plus(timing.heal_age);
        match (self.first, self.second) {
            // A young one may be shown in a moment, which ends the case: it is not left alone until it is old enough.
            (None, _)
                if self
                    .early
                    .is_some_and(|at| now < old_enough.min(at.plus(timing.confirm_interval))) =>
            {
                let again = self.early.map_or(old_enough, |at| at.plus(timing.confirm_interval));
                NextLook::Later(old_enough.min(again), true)
            }
            (None, _) => NextLook::ById,
            (Some(first), None) => {
                let again = first.plus(timing.heal_recheck);
                if now < again { NextLook::Later(again, false) } else { NextLook::ById }
            }
            (Some(_), Some(_)) if self.by_address.is_none() => NextLook::ByAddress,
            (Some(_), Some(_)) => NextLook::ByMac,
        }
    }

    /// EC2 answered "not found" for its id. Soon after its creation, or soon after the last time, that adds nothing.
    pub fn not_found(&mut self, timing: &Timing, now: Moment) {
        if !now.has_passed(self.known, timing.heal_age) {
            self.early = Some(now);
            return;
        }
        match self.first {
            None => self.first = Some(now),
            Some(first) if now.has_passed(first, timing.heal_recheck) => {
                self.second.get_or_insert(now);
            }
            Some(_) => {}
        }
    }

    /// A search by its address found nothing. Counts only after the second "not found".
    pub fn nothing_by_address(&mut self, now: Moment) {
        self.by_address = self.second.map(|_| now);
    }

    /// A search by its MAC found nothing. Counts only after the one by address.
    pub fn nothing_by_mac(&mut self, now: Moment) {
        self.by_mac = self.by_address.map(|_| now);
    }

    /// The fact, once all of it was asked.
    pub fn conclude(&self) -> Option<EniMissing> {
        self.first?;
        self.second?;
        self.by_address?;
        Some(EniMissing { eni: self.eni.clone(), at: self.by_mac? })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MINUTE: u64 = 60_000;

    fn case() -> MissingCase {
        MissingCase::open(EniId::new("eni-0123456789abcdef0").unwrap(), Moment(0))
    }

    #[test]
    fn an_eni_is_missing_only_after_two_not_founds_thirty_seconds_apart_and_two_searches() {
        let timing = Timing::default();
        let mut case = case();
        let early = Moment(4 * MINUTE);
        case.not_found(&timing, early);
        assert!(!case.not_found_once(), "too young");
        let soon = early.plus(timing.confirm_interval);
        assert_eq!(case.next(&timing, early), NextLook::Later(soon, true));
        assert_eq!(case.next(&timing, soon), NextLook::ById, "EC2 may show it any moment");
        let at = Moment(5 * MINUTE);
        assert_eq!(case.next(&timing, at), NextLook::ById);
        case.not_found(&timing, at);
        case.not_found(&timing, at.plus(Duration::from_secs(29)));
        assert_eq!(
            case.next(&timing, at.plus(Duration::from_secs(29))),
            NextLook::Later(at.plus(Duration::from_secs(30)), false)
        );
        let again = at.plus(Duration::from_secs(30));
        case.nothing_by_address(again);
        case.nothing_by_mac(again);
        assert_eq!(case.conclude(), None, "searches before the second answer count for nothing");
        case.not_found(&timing, again);
        assert_eq!(case.next(&timing, again), NextLook::ByAddress);
        case.nothing_by_mac(again);
        assert_eq!(case.conclude(), None);
        case.nothing_by_address(again);
        assert_eq!((case.next(&timing, again), case.conclude()), (NextLook::ByMac, None));
        case.nothing_by_mac(again);
        assert_eq!(case.conclude().map(|f| f.at()), Some(again));
    }

    #[test]
    fn losing_any_piece_of_the_evidence_leaves_no_fact() {
        let (timing, at) = (Timing::default(), Moment(5 * MINUTE));
        let again = at.plus(timing.heal_recheck);
        for missing in 0..4 {
            let mut case = case();
            if missing != 0 {
                case.not_found(&timing, at);
            }
            if missing != 1 {
                case.not_found(&timing, again);
            }
            if missing != 2 {
                case.nothing_by_address(again);
            }
            if missing != 3 {
                case.nothing_by_mac(again);
            }
            assert_eq!(case.conclude(), None, "{missing}");
        }
    }

    #[test]
    fn names_are_distinct_and_sentences_are_there() {
        let names: std::collections::BTreeSet<_> = Health::ALL.iter().map(|h| h.name()).collect();
        assert_eq!(names.len(), Health::ALL.len());
        assert!(Health::ALL.iter().all(|h| !h.sentence().is_empty()));
    }
}
