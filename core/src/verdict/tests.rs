//! The truth table of [`judge`] over all subsets of evidence, and that less evidence never deletes more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::*;
use crate::fact::{GoneBy, NotFoundStatus, Origin, OverKind, PodEnded, PodGone, ReleaseFacts};
use crate::id::PodRef;
use crate::view::PodPhase;

/// One bit of evidence each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bit {
    Leading,
    TagIsUid,
    Reported,
    Covered,
    SameTerm,
    SameSession,
    SameBoot,
    SameStart,
    ViewValid,
    NobodyElse,
    OwnGet,
    NoBrake,
    BarrierAnswered,
    BarrierSameLife,
    BarrierGone,
    AssociationKnown,
    Cooled,
}

const BITS: [Bit; 17] = [
    Bit::Leading,
    Bit::TagIsUid,
    Bit::Reported,
    Bit::Covered,
    Bit::SameTerm,
    Bit::SameSession,
    Bit::SameBoot,
    Bit::SameStart,
    Bit::ViewValid,
    Bit::NobodyElse,
    Bit::OwnGet,
    Bit::NoBrake,
    Bit::BarrierAnswered,
    Bit::BarrierSameLife,
    Bit::BarrierGone,
    Bit::AssociationKnown,
    Bit::Cooled,
];

/// What a Delete does not ask again: the facts were accepted in this term.
const NOT_FOR_DELETE: [Bit; 7] = [
    Bit::SameSession,
    Bit::SameBoot,
    Bit::SameStart,
    Bit::BarrierAnswered,
    Bit::BarrierSameLife,
    Bit::BarrierGone,
    Bit::AssociationKnown,
];

fn verdict_of(evidence: u32, delete: bool) -> Verdict {
    let has =
        |bit: Bit| BITS.iter().position(|b| *b == bit).is_some_and(|i| evidence & (1 << i) != 0);
    let uid: PodUid = "uid-1".parse().unwrap();
    let eni: EniId = "eni-00000001".parse().unwrap();
    let term = Term { epoch: Epoch(2), nonce: TermNonce(3) };
    let origin = Origin {
        session: if has(Bit::SameSession) { "now" } else { "before" }.parse().unwrap(),
        epoch: if has(Bit::SameTerm) { Epoch(2) } else { Epoch(1) },
        nonce: TermNonce(3),
    };
    let facts = ReleaseFacts {
        uid: uid.clone(),
        over: OverKind::Gone(GoneBy::WatchDeleted),
        way: Way::SeenAndGone,
        boot: if has(Bit::SameBoot) { "boot" } else { "reboot" }.parse().unwrap(),
        start: KubeletStart(if has(Bit::SameStart) { 1 } else { 2 }),
        enis: if has(Bit::Covered) { BTreeSet::from([eni.clone()]) } else { BTreeSet::new() },
    };
    let reply = BarrierReply {
        origin: origin.clone(),
        question: 9,
        boot: facts.boot.clone(),
        start: has(Bit::BarrierSameLife).then_some(facts.start),
        present: BTreeMap::from([(
            uid.clone(),
            if has(Bit::BarrierGone) { Some(false) } else { Some(true) },
        )]),
        vlans: None,
    };
    let reported = ReportedRelease::received(facts, origin);
    let session = CurrentSession {
        session: "now".parse().unwrap(),
        boot: "boot".parse().unwrap(),
        start: KubeletStart(1),
    };
    let own = Over::Ended(PodEnded::from_phase(&uid, PodPhase::Succeeded, Moment(1)).unwrap());
    let association: AssociationId = "trunk-assoc-1".parse().unwrap();
    let tag = if has(Bit::TagIsUid) { Tag::Is(uid.clone()) } else { Tag::Absent };
    let ask = if delete {
        Ask::Delete {
            since: Some(Moment(0)),
            cooldown: Duration::from_secs(60),
            now: Moment(if has(Bit::Cooled) { 60_000 } else { 59_999 }),
        }
    } else {
        Ask::Disassociate {
            association: if has(Bit::AssociationKnown) {
                Attached::By(&association)
            } else {
                Attached::Unread
            },
            session: Some(&session),
            barrier: has(Bit::BarrierAnswered).then_some((9, &reply)),
        }
    };
    judge(&Case {
        eni: &eni,
        uid: &uid,
        tag: &tag,
        term: has(Bit::Leading).then_some(term),
        reported: has(Bit::Reported).then_some(&reported),
        own: has(Bit::OwnGet).then_some(&own),
        named: match (has(Bit::ViewValid), has(Bit::NobodyElse)) {
            (false, _) => NamedElsewhere::Unknown,
            (true, false) => NamedElsewhere::Yes,
            (true, true) => NamedElsewhere::No,
        },
        brake: if has(Bit::NoBrake) { Brake::Off } else { Brake::On(Keep::FuseBlown) },
        ask,
    })
}

/// Whether each subset of the evidence permits.
fn table(delete: bool) -> Vec<bool> {
    (0..1u32 << BITS.len())
        .map(|evidence| matches!(verdict_of(evidence, delete), Verdict::Permit(_)))
        .collect()
}

fn mask(bits: impl Iterator<Item = Bit>) -> u32 {
    bits.filter_map(|bit| BITS.iter().position(|b| *b == bit)).fold(0, |m, i| m | (1 << i))
}

#[test]
fn only_the_whole_evidence_permits_and_every_single_piece_is_needed() {
    let needed_to_disassociate = mask(BITS.into_iter().filter(|b| *b != Bit::Cooled));
    let needed_to_delete = mask(BITS.into_iter().filter(|b| !NOT_FOR_DELETE.contains(b)));
    for (delete, needed) in [(false, needed_to_disassociate), (true, needed_to_delete)] {
        for (evidence, permits) in (0u32..).zip(table(delete)) {
            assert_eq!(permits, evidence & needed == needed, "delete {delete}, {evidence:017b}");
        }
    }
}

#[test]
fn taking_any_piece_away_never_turns_keep_into_a_permit() {
    for table in [table(false), table(true)] {
        for (evidence, permits) in table.iter().enumerate().filter(|(_, permits)| !**permits) {
            let more = (0..BITS.len()).map(|bit| evidence & !(1 << bit));
            for less in more {
                assert!(!table[less], "{evidence:017b} keeps, {less:017b} does not ({permits})");
            }
        }
    }
}

#[test]
fn every_reason_to_keep_has_a_name_and_a_sentence_of_its_own() {
    let names: BTreeSet<_> = Keep::ALL.iter().map(|k| k.name()).collect();
    let sentences: BTreeSet<_> = Keep::ALL.iter().map(|k| k.sentence()).collect();
    assert_eq!((names.len(), sentences.len()), (Keep::ALL.len(), Keep::ALL.len()));
}

#[test]
fn a_404_that_is_not_about_this_pod_proves_nothing() {
    let asked = PodRef {
        uid: "u".parse().unwrap(),
        namespace: "ns".parse().unwrap(),
        name: "web-0".parse().unwrap(),
    };
    for (kind, reason, about, name) in [
        ("Status", "NotFound", "pods", "web-1"),
        ("Status", "NotFound", "namespaces", "web-0"),
        ("Status", "NotFound", "", ""),
        ("Status", "Forbidden", "pods", "web-0"),
        ("Pod", "NotFound", "pods", "web-0"),
    ] {
        assert_eq!(NotFoundStatus::classify(kind, reason, about, name, &asked), None);
    }
    let proof = NotFoundStatus::classify("Status", "NotFound", "pods", "web-0", &asked).unwrap();
    assert_eq!(Over::Gone(PodGone::from_not_found(&asked, &proof, Moment(1))).uid(), &asked.uid);
}
