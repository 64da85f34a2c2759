//! What the answers mean that a repair waits for.
//!
//! An answer by id that shows the ENI ends every doubt about its existence. "Not found" is only counted
//! ([`MissingCase`](crate::heal::MissingCase)); a refusal, a timeout or an answer that cannot be believed says nothing (I6).

use crate::eni::{
    Ec2Answer, Ec2Call, Ec2Failure, Ec2Reply, EniRecord, EniStatus, FailureClass, FoundEni,
    SearchBy, Tag,
};
use crate::heal::{EniMissing, HealWait, Health, MissingCase, Obstacle};
use crate::id::{PodUid, VlanId};
use crate::message::MacOutcome;
use crate::time::Moment;
use crate::wait::{Step, Wait};

use super::answers::{associate_shows, stage_of};
use super::event::{Answer, Effect, Evicted, NoticeKind};
use super::holding::{Branch, Interface, Stage};
use super::{HealAsk, Node};

impl Node {
    pub(super) fn on_heal_answer(
        &mut self,
        uid: &PodUid,
        index: u8,
        ask: HealAsk,
        answer: Answer,
        now: Moment,
        out: &mut Vec<Effect>,
    ) {
        match (ask, answer) {
            (HealAsk::Check, Answer::Ec2(answer)) => self.on_checked(uid, index, answer, now, out),
            (HealAsk::Association, Answer::Ec2(answer)) => {
                self.on_association(uid, index, answer, now, out);
            }
            (HealAsk::Search(by), Answer::Ec2(answer)) => {
                self.on_searched(uid, index, by, answer, now, out);
            }
            (HealAsk::Permission, Answer::Pace(granted)) => {
                let soonest = now.plus(self.timing.retry_base);
                match granted {
                    Ok(()) => {
                        if let Some(branch) = self.branch_mut(uid, index) {
                            branch.care.granted = true;
                        }
                    }
                    Err(next) => self.set(uid, |h| h.retry_at = Some(next.max(soonest))),
                }
            }
            (HealAsk::Evict, Answer::Evicted(evicted)) => {
                self.on_evicted(uid, index, &evicted, now, out);
            }
            _ => self.back_off(uid, now),
        }
    }

    /// What EC2 says of an ENI that was asked for by its id.
    fn on_checked(
        &mut self,
        uid: &PodUid,
        index: u8,
        answer: Ec2Answer,
        now: Moment,
        out: &mut Vec<Effect>,
    ) {
        let timing = self.timing;
        match answer {
            Ok(Ec2Reply::Described(record)) => self.on_shown(uid, index, &record, now, out),
            Err(failure) if failure.class == FailureClass::NotFound => {
                if let Some(case) =
                    self.branch_mut(uid, index).and_then(|b| b.care.missing.as_mut())
                {
                    case.not_found(&timing, now);
                }
            }
            // It exists, and somebody took its tags away.
            Err(failure) if failure.class == FailureClass::Configuration => {
                if let Some(branch) = self.branch_mut(uid, index) {
                    branch.care.health = Health::WrongTags;
                    branch.care.cleared();
                }
                self.tell_drift(uid, index, out);
            }
            Err(failure) => self.asked_in_vain(uid, Step::Check, &failure, now),
            Ok(_) => self.back_off(uid, now),
        }
    }

    /// An answer that says nothing: it is asked again.
    fn asked_in_vain(&mut self, uid: &PodUid, step: Step, failure: &Ec2Failure, now: Moment) {
        self.back_off(uid, now);
        let wait = Wait::Ec2(step, failure.class, failure.told());
        self.set(uid, |h| h.wait = Some(wait));
    }

    /// EC2 shows the ENI.
    fn on_shown(
        &mut self,
        uid: &PodUid,
        index: u8,
        record: &EniRecord,
        now: Moment,
        out: &mut Vec<Effect>,
    ) {
        let timing = self.timing;
        let place = self.trunk.as_ref().is_ok_and(|trunk| {
            record.tags.trunk.value() == Some(&trunk.eni)
                && record.tags.instance.value() == Some(&trunk.instance)
        });
        let ours = place && record.tags.pod_uid.value() == Some(uid);
        let Some(branch) = self.branch_mut(uid, index) else {
            return;
        };
        let Some(interface) = branch.interface().cloned() else {
            return self.on_ghost_shown(uid, index);
        };
        let last = branch.maybe_associated.map(|last| associate_shows(&timing, last));
        let shows = last.max(branch.care.association_shows(timing.ec2_consistency)).unwrap_or(now);
        match record.status {
            EniStatus::InUse | EniStatus::Associated => {
                let tagged = ours && record.tags.vlan == Tag::Is(branch.vlan);
                self.on_in_use(uid, index, interface, ours, tagged, now, out);
            }
            EniStatus::Available if now < shows => {
                let wait = Wait::Heal(HealWait::Consistency);
                self.set(uid, |h| {
                    h.retry_at = Some(shows);
                    h.wait = Some(wait);
                });
            }
            EniStatus::Available => {
                let care = &mut branch.care;
                care.health = Health::Disassociated;
                (care.suspect, care.missing) = (false, None);
                if !ours {
                    self.obstruct(uid, index, Obstacle::NotOurs, now, out);
                    return;
                }
                care.rewrite = true;
                branch.stage = Stage::Made(interface);
                branch.associate_nonce = branch.associate_nonce.saturating_add(1);
                branch.hint = None;
                branch.doubt = None;
                let message = format!(
                    "Branch ENI {} of the running pod has lost its association; it is associated again on VLAN {}",
                    record.id, branch.vlan
                );
                let (kind, health) = (NoticeKind::BranchLost, Health::Disassociated);
                self.tell_loss(uid, kind, record.id.as_str(), health, message, out);
            }
            EniStatus::Pending | EniStatus::Other => self.back_off(uid, now),
        }
    }

    /// It is associated; where its tags say that it is not this branch's, its association is asked for.
    #[expect(clippy::too_many_arguments, reason = "what one describe showed")]
    fn on_in_use(
        &mut self,
        uid: &PodUid,
        index: u8,
        interface: Interface,
        ours: bool,
        tagged: bool,
        now: Moment,
        out: &mut Vec<Effect>,
    ) {
        let Some(branch) = self.branch_mut(uid, index) else {
            return;
        };
        branch.care.cleared();
        branch.care.confirmed = ours.then_some(now);
        let association = match &branch.stage {
            Stage::Attached(_, id) => id.clone(),
            Stage::Made(_) | Stage::AssociateUnsure(_) => {
                branch.stage = Stage::Attached(interface, None);
                branch.doubt = None;
                None
            }
            _ => None,
        };
        let care = &mut branch.care;
        if tagged {
            if care.health == Health::WrongTags {
                care.health = Health::Ok;
            }
            care.obstacle = care.obstacle.filter(|o| *o != Obstacle::NotOurs);
            return;
        }
        if let Some(id) = association {
            let call = Ec2Call::DescribeAssociation(id);
            self.heal_call(uid, index, HealAsk::Association, call, out);
        } else {
            care.health = Health::WrongTags;
            self.tell_drift(uid, index, out);
        }
    }

    /// Where an ENI hangs whose tags say something else than the books. A refusal leaves it at the tags.
    fn on_association(
        &mut self,
        uid: &PodUid,
        index: u8,
        answer: Ec2Answer,
        now: Moment,
        out: &mut Vec<Effect>,
    ) {
        let trunk = self.trunk.as_ref().ok().map(|t| t.eni.clone());
        let Some(branch) = self.branch_mut(uid, index) else {
            return;
        };
        let elsewhere = match answer {
            Ok(Ec2Reply::Associated(shown)) => {
                Some(&shown.branch) != branch.eni()
                    || Some(&shown.trunk) != trunk.as_ref()
                    || shown.vlan != branch.vlan
            }
            Err(failure) => failure.class == FailureClass::NotFound,
            Ok(_) => false,
        };
        if elsewhere {
            branch.care.health = Health::Elsewhere;
            self.obstruct(uid, index, Obstacle::NotOurs, now, out);
        } else {
            branch.care.health = Health::WrongTags;
            self.tell_drift(uid, index, out);
        }
    }

    /// An ENI that only an annotation told of exists after all: whose it is has to be asked anew.
    fn on_ghost_shown(&mut self, uid: &PodUid, index: u8) {
        let Some(holding) = self.holdings.get_mut(uid) else {
            return;
        };
        if let Some(branch) = holding.branches.remove(&index) {
            if let Some(lost) = &branch.care.lost {
                holding.named.remove(&lost.old.eni);
            }
            self.vlans.release(branch.vlan, true);
        }
    }

    /// What a search shows: nothing, the lost ENI itself, the one that an earlier attempt made, or somebody else's.
    fn on_searched(
        &mut self,
        uid: &PodUid,
        index: u8,
        by: SearchBy,
        answer: Ec2Answer,
        now: Moment,
        out: &mut Vec<Effect>,
    ) {
        let found = match answer {
            Ok(Ec2Reply::Searched(found)) => found,
            Err(failure) => return self.asked_in_vain(uid, Step::Search, &failure, now),
            Ok(_) => return self.back_off(uid, now),
        };
        let Some(branch) = self.holdings.get(uid).and_then(|h| h.branches.get(&index)) else {
            return;
        };
        let old = branch.eni().or(branch.care.lost.as_ref().map(|l| &l.old.eni)).cloned();
        let who_has = branch.care.who_has;
        if found.iter().any(|f| Some(&f.record.id) == old.as_ref()) {
            return self.on_old_shown(uid, index, now);
        }
        if let Some(own) = found.iter().find(|f| self.is_own_attempt(uid, branch.vlan, f)) {
            let record = own.record.clone();
            return self.take_attempt(uid, index, &record, now);
        }
        match (by, found.is_empty()) {
            (SearchBy::Address(_), false) => {
                self.lost_to_another(uid, index);
                self.obstruct(uid, index, Obstacle::AddressTaken, now, out);
            }
            // Nobody has it, although EC2 said so: it lags behind. After a while it counts as taken all the same.
            (SearchBy::Address(_), true) if who_has => self.on_nobody_has(uid, index, now, out),
            (SearchBy::Address(_), true) => self.case(uid, index, |c| c.nothing_by_address(now)),
            (SearchBy::Mac(_), true) => self.case(uid, index, |c| c.nothing_by_mac(now)),
            (SearchBy::Mac(_), false) => self.back_off(uid, now),
        }
        let proof: Option<EniMissing> = self
            .branch_mut(uid, index)
            .and_then(|b| b.care.missing.as_ref())
            .and_then(MissingCase::conclude);
        if let Some(proof) = proof {
            self.lose(uid, index, proof, out);
        }
    }

    fn case(&mut self, uid: &PodUid, index: u8, change: impl FnOnce(&mut MissingCase)) {
        if let Some(case) = self.branch_mut(uid, index).and_then(|b| b.care.missing.as_mut()) {
            change(case);
        }
    }

    fn is_own_attempt(&self, uid: &PodUid, vlan: VlanId, found: &FoundEni) -> bool {
        let record = &found.record;
        found.ours
            && record.tags.pod_uid.value() == Some(uid)
            && record.tags.vlan == Tag::Is(vlan)
            && record.attachment.is_none()
            && !record.tags.condemned
            && !self.deleted.contains_key(&record.id)
            && !self.holdings.values().any(|h| h.has_eni(&record.id))
    }

    /// The lost ENI is there: the repair ends.
    pub(super) fn on_old_shown(&mut self, uid: &PodUid, index: u8, now: Moment) {
        let Some(branch) = self.branch_mut(uid, index) else {
            return;
        };
        let care = &mut branch.care;
        (care.missing, care.who_has, care.refused) = (None, false, None);
        let Some(lost) = care.lost.take() else {
            // Asked for by its id again: which of the two answers is true shows then.
            care.suspect(now);
            return self.back_off(uid, now);
        };
        care.health = Health::Ok;
        care.resumed = true;
        care.suspect(now);
        match lost.before {
            Some((interface, association)) => {
                branch.stage = Stage::Attached(interface, association);
            }
            None => {
                care.lost = Some(lost);
                self.on_ghost_shown(uid, index);
            }
        }
    }

    /// An earlier attempt's ENI, of which no answer told: it is the repair's own.
    fn take_attempt(&mut self, uid: &PodUid, index: u8, record: &EniRecord, now: Moment) {
        let subject = self.branch_mut(uid, index).and_then(|b| super::heal::subject(b));
        let stranger = self.strangers.remove(&record.id);
        if let Some((_, Some(vlan))) = stranger {
            self.vlans.release(vlan, true);
        }
        let Some(branch) = self.branch_mut(uid, index) else {
            return;
        };
        if branch.care.lost.is_none()
            && let Some(old) = subject
        {
            let named = branch.care.named.clone().unwrap_or_else(|| old.eni.clone());
            let mac = branch.care.link_mac.unwrap_or(old.mac);
            let old = crate::eni::Replaced { named, mac, ..old };
            branch.care.was.insert(old.mac);
            branch.care.lost = Some(super::care::Lost { old, proof: None, before: None });
        }
        branch.care.health = Health::Missing;
        (branch.care.suspect, branch.care.missing) = (false, None);
        branch.make_anew();
        branch.stage = stage_of(record);
        branch.maybe_associated = Some(now);
        self.after_create(uid, index, now);
    }

    /// The old ENI cannot exist any more, for another one has its address.
    fn lost_to_another(&mut self, uid: &PodUid, index: u8) {
        if let Some(branch) = self.branch_mut(uid, index) {
            branch.care.health = Health::Missing;
            branch.care.suspect = false;
        }
    }

    fn on_nobody_has(&mut self, uid: &PodUid, index: u8, now: Moment, out: &mut Vec<Effect>) {
        let window = self.timing.ec2_consistency;
        let Some(care) = self.branch_mut(uid, index).map(|b| &mut b.care) else {
            return;
        };
        care.who_has = false;
        let since = *care.refused.get_or_insert(now);
        if now.has_passed(since, window) {
            self.obstruct(uid, index, Obstacle::AddressTaken, now, out);
        } else {
            self.back_off(uid, now);
        }
    }

    fn on_evicted(
        &mut self,
        uid: &PodUid,
        index: u8,
        evicted: &Evicted,
        now: Moment,
        out: &mut Vec<Effect>,
    ) {
        let told = match evicted {
            Evicted::Done => "The pod is evicted: its branch is lost and cannot be repaired in place".into(),
            Evicted::NoController => "The pod is not evicted although its branch is lost: no controller would replace it; recreate it by hand".into(),
            Evicted::Refused(why) => format!("The eviction was refused and is asked again: {why}"),
            Evicted::Paced(next) => {
                let next = *next;
                return self.set(uid, |h| h.retry_at = Some(next.max(now)));
            }
        };
        if matches!(evicted, Evicted::Done | Evicted::NoController)
            && let Some(branch) = self.branch_mut(uid, index)
        {
            branch.care.evicted = true;
        }
        self.back_off(uid, now);
        self.notify(uid, NoticeKind::Evicted, &told, told.clone(), out);
    }

    /// The agent tried to change the MAC of a link.
    pub(super) fn on_mac_result(
        &mut self,
        request: u64,
        outcome: MacOutcome,
        now: Moment,
        out: &mut Vec<Effect>,
    ) {
        let asked = |b: &Branch| b.care.link_change.is_some_and(|(asked, _)| asked == request);
        let found = self.holdings.iter().find_map(|(uid, h)| {
            h.branches.iter().find(|(_, b)| asked(b)).map(|(index, _)| (uid.clone(), *index))
        });
        let Some((uid, index)) = found else {
            return;
        };
        match outcome {
            // The link view is what shows that it is so.
            MacOutcome::Done | MacOutcome::Already => {}
            MacOutcome::LinkAbsent | MacOutcome::Differs(_) => {
                if let Some(branch) = self.branch_mut(&uid, index) {
                    branch.care.link_change = Some((0, now));
                }
            }
            MacOutcome::SwitchedOff => {
                if let Some(branch) = self.branch_mut(&uid, index) {
                    branch.care.link_change = Some((0, now));
                }
                self.obstruct(&uid, index, Obstacle::AgentOff, now, out);
            }
            MacOutcome::Failed(why) => {
                if let Some(branch) = self.branch_mut(&uid, index) {
                    branch.care.link_failed = Some(why);
                }
            }
        }
    }

    /// Tags or groups of a live pod's ENI are not as they were: told, and left as they are.
    pub(super) fn tell_drift(&mut self, uid: &PodUid, index: u8, out: &mut Vec<Effect>) {
        let Some(branch) = self.branch_mut(uid, index) else {
            return;
        };
        let health = branch.care.health;
        let eni = branch.eni().map(ToString::to_string).unwrap_or_default();
        let shown = branch.care.drift.iter().flatten();
        let groups = shown.map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let mut message = format!("Branch ENI {eni}: {}", health.sentence());
        if health == Health::WrongGroups {
            message = format!("{message}; it has [{groups}] now");
        }
        let key = format!("{}/{groups}", health.name());
        self.notify(uid, NoticeKind::BranchDrifted, &key, message, out);
    }
}

/// An interface whose groups somebody changed; `None` if they are ours, or nobody knows what ours are.
pub(super) fn drifted(interface: &Interface, record: &EniRecord) -> bool {
    let sorted = |groups: &[crate::id::SecurityGroupId]| {
        groups.iter().cloned().collect::<std::collections::BTreeSet<_>>()
    };
    interface.groups_right && sorted(&interface.groups) != sorted(&record.groups)
}
