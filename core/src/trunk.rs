//! Which interface is a node's trunk, and what has to be done to get one (`TRK-10`…`TRK-13`, `D15`, `D19`).
//!
//! The decision is made from scratch each round, from what EC2 shows *and* from trunks that are known by other ways: the
//! inventory, the trunk tags of branches, an earlier round. A trunk that `DescribeInstances` leaves out for a while (after
//! a reboot, S07) or that an interrupted round left behind unattached (S31, S44) is therefore found again instead of a
//! second one being made. Unknown is not absent here either: a known trunk that EC2 does not show stops the node from
//! getting another one until it has been NotFound by id for [`Timing::trunk_hidden`]. Long before that, once EC2 has said
//! by id for its consistency window that a trunk which served is not on its instance, it counts as [lost](Away::is_lost)
//! and the node advertises no branches (`D34`).
//!
//! A trunk is never detached (`TRK-18`). The roll-back of a failed round is to delete a trunk that was never attached, and
//! only where EC2 has refused this very attachment for a reason that waiting does not mend ([`after_failed_attach`]).

use std::collections::BTreeSet;
use std::time::Duration;

use crate::eni::{Ec2Failure, EniKind, EniRecord, EniStatus, FailureClass};
use crate::id::{EniId, InstanceId};
use crate::time::{Moment, Timing};

/// Answers by id in a row that did not show a trunk attached to its instance. An answer that failed is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Away {
    /// The first of them.
    pub since: Moment,
    /// How many.
    pub looks: u32,
}

impl Away {
    /// One more.
    #[must_use]
    pub fn again(before: Option<Self>, now: Moment) -> Self {
        before.map_or(Self { since: now, looks: 1 }, |b| Self {
            looks: b.looks.saturating_add(1),
            ..b
        })
    }

    /// Said repeatedly, and for longer than EC2 may lag behind: pods can get no branch from this trunk.
    pub fn is_lost(self, now: Moment, timing: &Timing) -> bool {
        self.looks >= 2 && now.has_passed(self.since, timing.ec2_consistency)
    }
}

/// What is known of a trunk that `DescribeInstances` does not show.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Sight {
    /// Not asked by id yet.
    Unread,
    /// Described by id.
    Shown(Box<EniRecord>),
    /// NotFound by id, in every round for this long.
    NotFound(Duration),
}

/// A trunk of this instance that is known by its tags, by its branches or from an earlier round.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KnownTrunk {
    /// Id.
    pub eni: EniId,
    /// What EC2 said of it by id.
    pub sight: Sight,
}

/// What a round looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Situation<'a> {
    /// The instance.
    pub instance: &'a InstanceId,
    /// Its interfaces, from `DescribeInstances`, in EC2's order.
    pub interfaces: &'a [EniRecord],
    /// Device slots on the default card (`LIM-3`).
    pub slots: u32,
    /// Device indexes that EC2 called taken in this round although it did not show them.
    pub taken: &'a BTreeSet<u32>,
    /// Known trunks.
    pub known: &'a [KnownTrunk],
    /// [`Timing::trunk_hidden`].
    pub hidden_for: Duration,
}

/// What to do next. Every step but [`Step::Adopt`] is followed by another look.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Step {
    /// This is the trunk, it is attached. `others`: further attached trunks, which a person should look at (`contract.md`
    /// §23.5: the CNI takes the last one too).
    Adopt {
        /// The trunk.
        eni: EniId,
        /// Other attached trunks.
        others: Vec<EniId>,
    },
    /// It is being attached: poll by id (`TRK-11`).
    Wait(EniId),
    /// Ask EC2 for this ENI by id.
    Look(EniId),
    /// It is there and free: attach it.
    Attach {
        /// The trunk.
        eni: EniId,
        /// Device index on the default card.
        device_index: u32,
    },
    /// Make one.
    Create {
        /// The slot it will go to.
        device_index: u32,
    },
    /// Nothing can be done now.
    Refuse(Refusal),
}

/// Why nothing can be done now.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// `TRK-10`.
    #[error("EC2 shows {0} without interfaceType, as it does while an instance goes away")]
    WithoutType(EniId),
    /// `TRK-12`.
    #[error("all {0} device slots of the default network card are in use")]
    NoFreeSlot(u32),
    /// S07.
    #[error(
        "the trunk {0} is known, but EC2 does not show it at the moment; a second trunk is not made meanwhile"
    )]
    Hidden(EniId),
}

/// Decides the next step.
pub fn next(situation: &Situation<'_>) -> Step {
    if let Some(odd) = situation.interfaces.iter().find(|i| i.kind == EniKind::Other) {
        return Step::Refuse(Refusal::WithoutType(odd.id.clone()));
    }
    let trunks: Vec<&EniRecord> =
        situation.interfaces.iter().filter(|i| i.kind == EniKind::Trunk).collect();
    let attached: Vec<&EniRecord> = trunks.iter().copied().filter(|t| is_attached(t)).collect();
    if let Some((last, others)) = attached.split_last() {
        return Step::Adopt {
            eni: last.id.clone(),
            others: others.iter().map(|o| o.id.clone()).collect(),
        };
    }
    if let Some(last) = trunks.last() {
        return Step::Wait(last.id.clone());
    }
    if let Some(step) = situation.known.iter().find_map(|known| of_known(situation, known)) {
        return step;
    }
    free_slot(situation).map_or_else(
        || Step::Refuse(Refusal::NoFreeSlot(situation.slots)),
        |device_index| Step::Create { device_index },
    )
}

fn is_attached(eni: &EniRecord) -> bool {
    eni.attachment.as_ref().is_some_and(|a| a.attached)
}

fn of_known(situation: &Situation<'_>, known: &KnownTrunk) -> Option<Step> {
    let eni = known.eni.clone();
    let record = match &known.sight {
        Sight::Unread => return Some(Step::Look(eni)),
        Sight::NotFound(so_long) if *so_long < situation.hidden_for => {
            return Some(Step::Refuse(Refusal::Hidden(eni)));
        }
        Sight::NotFound(_) => return None,
        Sight::Shown(record) => record,
    };
    if record.kind != EniKind::Trunk {
        return None;
    }
    match &record.attachment {
        Some(attachment) if attachment.instance.as_ref() != Some(situation.instance) => None,
        Some(attachment) if attachment.attached => Some(Step::Adopt { eni, others: Vec::new() }),
        Some(_) => Some(Step::Wait(eni)),
        None if record.tags.instance.value() != Some(situation.instance)
            || record.tags.condemned =>
        {
            None
        }
        None if matches!(record.status, EniStatus::Available | EniStatus::Pending) => Some(
            free_slot(situation)
                .map_or(Step::Refuse(Refusal::NoFreeSlot(situation.slots)), |device_index| {
                    Step::Attach { eni, device_index }
                }),
        ),
        None => Some(Step::Refuse(Refusal::Hidden(eni))),
    }
}

/// The highest free device index on the default card: the CNI fills from the bottom (`TRK-12`). Indexes of other cards do
/// not count (`D19`).
fn free_slot(situation: &Situation<'_>) -> Option<u32> {
    let used: BTreeSet<u32> = situation
        .interfaces
        .iter()
        .filter_map(|i| i.attachment.as_ref())
        .filter(|a| a.card == 0)
        .map(|a| a.device_index)
        .collect();
    (0..situation.slots)
        .rev()
        .find(|index| !used.contains(index) && !situation.taken.contains(index))
}

/// What to do with a trunk whose attachment failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AfterFailure {
    /// Keep it and look again later: it may be attached already, or waiting helps.
    Keep,
    /// The slot is taken: try the next lower one.
    NextSlot,
    /// EC2 will not attach this ENI to this instance: delete it (`TRK-13`).
    RollBack,
}

/// Classifies the failure of `AttachNetworkInterface`.
pub fn after_failed_attach(failure: &Ec2Failure) -> AfterFailure {
    let code = failure.code.as_deref().unwrap_or_default();
    if failure.class.may_have_happened() {
        return AfterFailure::Keep;
    }
    // "Instance 'i-x' already has an interface attached at device index 'n'." (ec2.md §8.9)
    if code == "InvalidParameterValue" && failure.message.contains("device index") {
        return AfterFailure::NextSlot;
    }
    match code {
        "AttachmentLimitExceeded"
        | "InvalidInstanceID.NotFound"
        | "InvalidParameterCombination" => AfterFailure::RollBack,
        _ if failure.class == FailureClass::Malformed => AfterFailure::RollBack,
        _ => AfterFailure::Keep,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eni::{Attachment, EniTags, Tag};

    fn id(n: u32) -> EniId {
        EniId::new(&format!("eni-{n:08x}")).unwrap()
    }

    fn instance() -> InstanceId {
        InstanceId::new("i-00000001").unwrap()
    }

    fn attachment(card: u32, device_index: u32, attached: bool) -> Attachment {
        Attachment {
            id: "eni-attach-1".into(),
            instance: None,
            device_index,
            card,
            attached,
            delete_on_termination: true,
        }
    }

    fn eni(n: u32, kind: EniKind, attachment: Option<Attachment>) -> EniRecord {
        EniRecord {
            id: id(n),
            status: if attachment.is_some() { EniStatus::InUse } else { EniStatus::Available },
            kind,
            mac: "02:00:00:00:00:01".parse().unwrap(),
            ipv4: None,
            ipv6: None,
            subnet: "subnet-00000001".parse().unwrap(),
            vpc: "vpc-00000001".parse().unwrap(),
            groups: vec![],
            tags: EniTags { instance: Tag::Is(instance()), ..EniTags::default() },
            attachment,
        }
    }

    #[test]
    fn d34_a_trunk_is_lost_only_when_ec2_says_so_again_and_after_its_consistency_window() {
        let timing = Timing::default();
        let once = Away::again(None, Moment(1_000));
        assert!(!once.is_lost(Moment(900_000), &timing), "one answer may be an echo");
        let twice = Away::again(Some(once), Moment(20_000));
        assert!(!twice.is_lost(Moment(30_999), &timing));
        assert!(twice.is_lost(Moment(31_000), &timing));
    }

    fn plain(n: u32, card: u32, index: u32) -> EniRecord {
        eni(n, EniKind::Interface, Some(attachment(card, index, true)))
    }

    const HIDDEN_FOR: Duration = Duration::from_mins(5);

    fn decide(interfaces: &[EniRecord], slots: u32, known: &[KnownTrunk]) -> Step {
        next(&Situation {
            instance: &instance(),
            interfaces,
            slots,
            taken: &BTreeSet::new(),
            known,
            hidden_for: HIDDEN_FOR,
        })
    }

    fn shown(record: EniRecord) -> KnownTrunk {
        KnownTrunk { eni: record.id.clone(), sight: Sight::Shown(Box::new(record)) }
    }

    #[test]
    fn an_attached_trunk_is_adopted_and_of_two_the_last_wins() {
        let one = [plain(1, 0, 0), eni(2, EniKind::Trunk, Some(attachment(0, 2, true)))];
        assert_eq!(decide(&one, 3, &[]), Step::Adopt { eni: id(2), others: vec![] });
        let two = [one[1].clone(), eni(3, EniKind::Trunk, Some(attachment(0, 1, true)))];
        assert_eq!(decide(&two, 3, &[]), Step::Adopt { eni: id(3), others: vec![id(2)] });
    }

    #[test]
    fn a_trunk_that_is_being_attached_is_waited_for() {
        let interfaces = [plain(1, 0, 0), eni(2, EniKind::Trunk, Some(attachment(0, 2, false)))];
        assert_eq!(decide(&interfaces, 3, &[]), Step::Wait(id(2)));
    }

    #[test]
    fn d19_only_slots_of_the_default_card_count_and_the_highest_free_one_is_taken() {
        let interfaces = [plain(1, 0, 0), plain(2, 1, 2), plain(3, 1, 90)];
        assert_eq!(decide(&interfaces, 3, &[]), Step::Create { device_index: 2 });
        let full = [plain(1, 0, 0), plain(2, 0, 1), plain(3, 0, 2)];
        assert_eq!(decide(&full, 3, &[]), Step::Refuse(Refusal::NoFreeSlot(3)));
        let taken = BTreeSet::from([2]);
        let situation = Situation {
            instance: &instance(),
            interfaces: &interfaces,
            slots: 3,
            taken: &taken,
            known: &[],
            hidden_for: HIDDEN_FOR,
        };
        assert_eq!(next(&situation), Step::Create { device_index: 1 });
    }

    #[test]
    fn s32_an_interface_without_type_stops_the_round() {
        let interfaces = [plain(1, 0, 0), eni(2, EniKind::Other, Some(attachment(0, 1, true)))];
        assert_eq!(decide(&interfaces, 3, &[]), Step::Refuse(Refusal::WithoutType(id(2))));
    }

    #[test]
    fn s07_a_known_trunk_that_is_not_shown_is_asked_for_and_no_second_one_is_made() {
        let interfaces = [plain(1, 0, 0)];
        let known = |sight| [KnownTrunk { eni: id(9), sight }];
        assert_eq!(decide(&interfaces, 3, &known(Sight::Unread)), Step::Look(id(9)));
        let hidden = Step::Refuse(Refusal::Hidden(id(9)));
        assert_eq!(
            decide(&interfaces, 3, &known(Sight::NotFound(Duration::from_secs(299)))),
            hidden
        );
        let gone = known(Sight::NotFound(HIDDEN_FOR));
        assert_eq!(decide(&interfaces, 3, &gone), Step::Create { device_index: 2 });
        let mut attached = eni(9, EniKind::Trunk, Some(attachment(0, 2, true)));
        attached.attachment.as_mut().unwrap().instance = Some(instance());
        assert_eq!(
            decide(&interfaces, 3, &[shown(attached)]),
            Step::Adopt { eni: id(9), others: vec![] }
        );
    }

    #[test]
    fn s31_s44_a_trunk_left_unattached_by_an_earlier_round_is_attached() {
        let interfaces = [plain(1, 0, 0)];
        let left = shown(eni(9, EniKind::Trunk, None));
        assert_eq!(decide(&interfaces, 3, &[left]), Step::Attach { eni: id(9), device_index: 2 });
        let mut foreign = eni(9, EniKind::Trunk, None);
        foreign.tags.instance = Tag::Is(InstanceId::new("i-00000002").unwrap());
        assert_eq!(decide(&interfaces, 3, &[shown(foreign)]), Step::Create { device_index: 2 });
        let mut detaching = eni(9, EniKind::Trunk, None);
        detaching.status = EniStatus::InUse;
        assert_eq!(
            decide(&interfaces, 3, &[shown(detaching)]),
            Step::Refuse(Refusal::Hidden(id(9)))
        );
    }

    #[test]
    fn a_trunk_is_deleted_only_after_a_refusal_that_waiting_does_not_mend() {
        let failure = |class, code: Option<&str>, message: &str| Ec2Failure {
            class,
            code: code.map(Into::into),
            message: message.into(),
        };
        let after = |class, code, message| after_failed_attach(&failure(class, code, message));
        let taken = "Instance 'i-1' already has an interface attached at device index '2'.";
        assert_eq!(
            after(FailureClass::Malformed, Some("InvalidParameterValue"), taken),
            AfterFailure::NextSlot
        );
        assert_eq!(
            after(FailureClass::Quota, Some("AttachmentLimitExceeded"), ""),
            AfterFailure::RollBack
        );
        assert_eq!(after(FailureClass::OutcomeUnknown, None, ""), AfterFailure::Keep);
        assert_eq!(after(FailureClass::Unrecognised, Some("Strange"), ""), AfterFailure::Keep);
        assert_eq!(
            after(FailureClass::Throttled, Some("RequestLimitExceeded"), ""),
            AfterFailure::Keep
        );
        assert_eq!(
            after(FailureClass::Unauthorised, Some("UnauthorizedOperation"), ""),
            AfterFailure::Keep
        );
        assert_eq!(
            after(FailureClass::InUse, Some("InvalidNetworkInterface.InUse"), ""),
            AfterFailure::Keep
        );
    }
}
