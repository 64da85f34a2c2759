//! May an ENI of a dead instance be deleted? (design §4.4, first row)
//!
//! No agent can state anything here, and no pod can run on a machine that is gone, whatever the API server still shows. So
//! the question is only whether this ENI is really of that machine and of no other: its instance tag, and what EC2 says of
//! it by id in this round. "Available" is used by nobody; "associated" hangs on a trunk that is attached to nothing,
//! and can be deleted as it is (`ec2.md` §6). Anything else, `in-use` above all, is kept.

use std::time::Duration;

use super::{Brake, DeletePermit, Keep, PermitStage, Proof, Term};
use crate::dead::InstanceDead;
use crate::eni::{EniKind, EniRecord, EniStatus};
use crate::id::EniId;
use crate::time::Moment;

/// Everything that is looked at.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DeadCase<'a> {
    /// The ENI.
    pub eni: &'a EniId,
    /// What EC2 said of it, by id, in this round.
    pub record: Option<&'a EniRecord>,
    /// Its instance is dead.
    pub dead: Option<&'a InstanceDead>,
    /// An agent of the instance is connected: then somebody is wrong.
    pub connected: bool,
    /// The term, while this coordinator leads.
    pub term: Option<Term>,
    /// Fuse and mode.
    pub brake: Brake,
    /// When it was disassociated, if that was done in this term.
    pub since: Option<Moment>,
    /// Cooldown in force.
    pub cooldown: Duration,
    /// Now.
    pub now: Moment,
}

/// Judges it.
///
/// # Errors
///
/// The first thing that is missing.
pub fn judge_dead(case: &DeadCase<'_>) -> Result<DeletePermit, Keep> {
    let term = case.term.ok_or(Keep::NotLeading)?;
    let dead = case.dead.ok_or(Keep::InstanceNotDead)?;
    if case.connected {
        return Err(Keep::AgentConnected);
    }
    if let Brake::On(why) = case.brake {
        return Err(why);
    }
    if case.since.is_some_and(|since| !case.now.has_passed(since, case.cooldown)) {
        return Err(Keep::Cooling);
    }
    let record = case.record.filter(|r| r.id == *case.eni).ok_or(Keep::NotDescribed)?;
    if record.tags.instance.value() != Some(dead.instance()) {
        return Err(Keep::OtherInstance);
    }
    if record.kind == EniKind::Trunk {
        return Err(Keep::Quarantined);
    }
    let free = matches!(record.status, EniStatus::Available | EniStatus::Associated);
    if !free || record.attachment.is_some() {
        return Err(Keep::EniInUse);
    }
    Ok(DeletePermit {
        eni: case.eni.clone(),
        uid: record.tags.pod_uid.value().cloned(),
        epoch: term.epoch,
        stage: PermitStage::Delete,
        proof: Proof::Instance(dead.clone()),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::dead::{InstanceSight, Look, NodeSight};
    use crate::eni::{Attachment, EniTags, Tag};
    use crate::id::{Epoch, TermNonce};

    const STATUSES: [EniStatus; 5] = [
        EniStatus::Pending,
        EniStatus::Available,
        EniStatus::Associated,
        EniStatus::InUse,
        EniStatus::Other,
    ];
    const KINDS: [EniKind; 4] =
        [EniKind::Trunk, EniKind::Branch, EniKind::Interface, EniKind::Other];

    fn record(status: EniStatus, kind: EniKind, instance: Tag<&str>) -> EniRecord {
        let instance = match instance {
            Tag::Absent => Tag::Absent,
            Tag::Unreadable(text) => Tag::Unreadable(text),
            Tag::Is(id) => Tag::Is(id.parse().unwrap()),
        };
        EniRecord {
            id: "eni-00000001".parse().unwrap(),
            status,
            kind,
            mac: "02:00:00:00:00:01".parse().unwrap(),
            ipv4: None,
            ipv6: None,
            subnet: "subnet-00000001".parse().unwrap(),
            vpc: "vpc-00000001".parse().unwrap(),
            groups: vec![],
            tags: EniTags { instance, ..EniTags::default() },
            attachment: None,
        }
    }

    fn dead() -> InstanceDead {
        let look = Look {
            instance: InstanceSight::Terminated,
            trunks: BTreeMap::new(),
            node: NodeSight::Unknown,
        };
        InstanceDead::from_state(&"i-00000001".parse().unwrap(), &look, Moment(1)).unwrap()
    }

    /// Every combination of what is there; whether it is permitted.
    #[test]
    fn truth_table() {
        let (dead, term) = (dead(), Term { epoch: Epoch(3), nonce: TermNonce(4) });
        let tags = [
            Tag::Is("i-00000001"),
            Tag::Is("i-00000002"),
            Tag::Absent,
            Tag::Unreadable("x".to_owned()),
        ];
        let mut permits = 0;
        for bits in 0..64_u32 {
            let has = |bit: u32| bits & (1 << bit) != 0;
            for status in STATUSES {
                for kind in KINDS {
                    for tag in &tags {
                        let mut record = record(status, kind, tag.clone());
                        record.attachment = has(5).then(|| Attachment {
                            id: "eni-attach-1".into(),
                            instance: None,
                            device_index: 1,
                            card: 0,
                            attached: false,
                            delete_on_termination: true,
                        });
                        let case = DeadCase {
                            eni: &"eni-00000001".parse().unwrap(),
                            record: has(0).then_some(&record),
                            dead: has(1).then_some(&dead),
                            connected: has(2),
                            term: has(3).then_some(term),
                            brake: if has(4) { Brake::On(Keep::FuseBlown) } else { Brake::Off },
                            since: None,
                            cooldown: Duration::from_secs(30),
                            now: Moment(9),
                        };
                        let free = matches!(status, EniStatus::Available | EniStatus::Associated);
                        let expected = has(0)
                            && has(1)
                            && !has(2)
                            && has(3)
                            && !has(4)
                            && !has(5)
                            && free
                            && kind != EniKind::Trunk
                            && *tag == Tag::Is("i-00000001");
                        let verdict = judge_dead(&case);
                        assert_eq!(verdict.is_ok(), expected, "{case:?}: {verdict:?}");
                        permits += u32::from(expected);
                    }
                }
            }
        }
        assert_eq!(permits, 6, "two states, three kinds");
    }

    #[test]
    fn a_record_of_another_eni_says_nothing_and_the_cooldown_is_kept() {
        let (dead, other) =
            (dead(), record(EniStatus::Available, EniKind::Branch, Tag::Is("i-00000001")));
        let case = DeadCase {
            eni: &"eni-00000002".parse().unwrap(),
            record: Some(&other),
            dead: Some(&dead),
            connected: false,
            term: Some(Term { epoch: Epoch(3), nonce: TermNonce(4) }),
            brake: Brake::Off,
            since: None,
            cooldown: Duration::from_secs(30),
            now: Moment(29_999),
        };
        assert_eq!(judge_dead(&case).unwrap_err(), Keep::NotDescribed);
        let case = DeadCase { eni: &other.id, since: Some(Moment(0)), ..case };
        assert_eq!(judge_dead(&case).unwrap_err(), Keep::Cooling);
        let permit = judge_dead(&DeadCase { now: Moment(30_000), ..case }).unwrap();
        assert_eq!((permit.uid(), permit.stage()), (None, &PermitStage::Delete));
    }
}
