//! What the answers to the steps of an allocation mean.
//!
//! A definite refusal proves that *this* call did nothing; whether an earlier one with the same token did is remembered.
//! An answer that contradicts the books is a doubt, read back by id or by UID tag until its window is over: EC2 may lag
//! behind its own calls (`ec2.md` §7).

use std::collections::BTreeSet;

use crate::eni::{
    AssociationRecord, Ec2Answer, Ec2Failure, Ec2Reply, EniRecord, EniStatus, FailureClass, Tag,
};
use crate::heal::{Health, Obstacle};
use crate::id::{EniId, PodUid};
use crate::lock::{self, Lock};
use crate::time::{Moment, Timing};
use crate::wait::{Step, Wait};

use super::event::{Annotated, Answer, Effect, Groups, Lookup, NoticeKind};
use super::holding::{About, Branch, Doubt, Holding, Interface, Stage};
use super::{Node, over_from};

impl Node {
    pub(super) fn on_step_answer(
        &mut self,
        uid: &PodUid,
        step: Step,
        index: u8,
        answer: Answer,
        now: Moment,
        out: &mut Vec<Effect>,
    ) {
        match answer {
            Answer::Pod(lookup) => self.on_verified(uid, lookup, now),
            Answer::Groups(groups) => self.on_groups(uid, groups, now, out),
            Answer::Annotated(answer) => self.on_annotated(uid, answer, now, out),
            Answer::Pace(granted) => self.on_pace(uid, granted, now),
            // No step of a holding asks for that.
            Answer::Evicted(_) => {}
            Answer::Ec2(answer) => match step {
                Step::Disassociate | Step::Delete => {
                    self.on_released(uid, index, step, answer, now, out);
                }
                _ => self.on_branch_answer(uid, step, index, answer, now, out),
            },
        }
    }

    fn on_verified(&mut self, uid: &PodUid, lookup: Lookup, now: Moment) {
        let Some(holding) = self.holdings.get(uid) else {
            return;
        };
        let over = over_from(&holding.pod, &lookup, now);
        match lookup {
            Lookup::Found(pod, rv) if over.is_none() => {
                self.set(uid, |h| {
                    h.learn(&pod);
                    h.stopped |= pod.deleting;
                    h.verified = Some((pod, rv));
                });
            }
            Lookup::Unknown(why) => {
                self.back_off(uid, now);
                self.set(uid, |h| h.wait = Some(Wait::PodUnverified(why)));
            }
            // An object that has ended stays so.
            Lookup::Found(pod, _) if pod.pod.uid == *uid => self.set(uid, |h| h.stopped = true),
            // The view shows a pod that is not there: it lags, or this answer is wrong. The reservation is given back,
            // and as long as the view goes on showing it the GET is repeated.
            Lookup::Found(..) | Lookup::NotFound(_) => {
                self.back_off(uid, now);
                self.set(uid, |h| h.wait = Some(Wait::Terminating));
                self.forget_reservations(uid);
            }
        }
    }

    fn on_groups(
        &mut self,
        uid: &PodUid,
        groups: Result<Groups, String>,
        now: Moment,
        out: &mut Vec<Effect>,
    ) {
        let defaults = self.trunk.as_ref().map(|t| t.default_groups.clone()).unwrap_or_default();
        let (groups, kind) = match groups {
            Ok(Groups::Policies(groups)) => (groups, NoticeKind::GroupsFromPolicies),
            Ok(Groups::NoMatch) => (defaults, NoticeKind::GroupsFromNode),
            Err(why) => {
                self.back_off(uid, now);
                self.set(uid, |h| h.wait = Some(Wait::Groups(why)));
                return;
            }
        };
        if groups.is_empty() {
            self.back_off(uid, now);
            self.set(uid, |h| {
                h.wait = Some(Wait::Groups(
                    "the node's primary interface has no security groups".into(),
                ));
            });
            return;
        }
        let list = groups.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let message = match kind {
            NoticeKind::GroupsFromPolicies => {
                format!("Pod gets the following security groups [{list}]")
            }
            _ => format!(
                "No SecurityGroupPolicy matches the pod, it gets the node's security groups [{list}]"
            ),
        };
        self.notify(uid, kind, &list, message, out);
        let wanted: BTreeSet<_> = groups.iter().cloned().collect();
        self.set(uid, |h| {
            for interface in h.branches.values_mut().filter_map(Branch::interface_mut) {
                interface.groups_right =
                    interface.groups.iter().cloned().collect::<BTreeSet<_>>() == wanted;
            }
            h.groups = Some(groups);
        });
    }

    fn on_annotated(
        &mut self,
        uid: &PodUid,
        answer: Annotated,
        now: Moment,
        out: &mut Vec<Effect>,
    ) {
        match answer {
            Annotated::Done => {
                let Some(holding) = self.holdings.get_mut(uid) else {
                    return;
                };
                holding.annotated = true;
                holding.progressed();
                holding.verified = None;
                if holding.is_mending() {
                    holding.groups = None;
                    return self.announced(uid);
                }
                holding.groups = None;
                let enis = holding
                    .branches
                    .values()
                    .filter_map(Branch::eni)
                    .map(ToString::to_string)
                    .collect::<Vec<_>>();
                let copied = std::mem::take(&mut holding.copied);
                let message = format!("Allocated branch ENI {} to the pod", enis.join(", "));
                self.notify(uid, NoticeKind::Allocated, &message, message.clone(), out);
                if copied {
                    let message = format!(
                        "The pod carried another pod's branch ENI in its annotation; it was replaced by {}. If the pod's sandbox already ran, recreate the pod",
                        enis.join(", ")
                    );
                    self.notify(
                        uid,
                        NoticeKind::AnnotationReplaced,
                        &message,
                        message.clone(),
                        out,
                    );
                }
                self.set(uid, |h| h.written = true);
            }
            Annotated::Conflict => {
                self.set(uid, |h| h.verified = None);
                // The object changed since the GET; the next one is due at once, unless it goes on like this.
                self.back_off(uid, now);
                self.set(uid, |h| {
                    h.retry_at = h.retry_at.filter(|_| h.attempt > 3);
                });
            }
            Annotated::Unknown(why) => {
                #[cfg(feature = "weaken")]
                if !lock::holds(Lock::NoUndo) {
                    self.undo(uid, now, out);
                }
                self.back_off(uid, now);
                self.set(uid, |h| {
                    h.verified = None;
                    h.wait = Some(Wait::PatchRefused(why));
                });
            }
            Annotated::Refused(why) => {
                self.back_off(uid, now);
                let wait = Wait::PatchRefused(why.clone());
                self.notify(uid, NoticeKind::AnnotationFailed, &why, wait.to_string(), out);
                self.set(uid, |h| {
                    h.verified = None;
                    h.wait = Some(wait);
                });
            }
        }
    }

    fn on_branch_answer(
        &mut self,
        uid: &PodUid,
        step: Step,
        index: u8,
        answer: Ec2Answer,
        now: Moment,
        out: &mut Vec<Effect>,
    ) {
        let reply = match answer {
            Ok(reply) => reply,
            Err(failure) => return self.on_branch_failure(uid, step, index, &failure, now, out),
        };
        // An ENI whose index tag was lost has been taken over under another index: the token of this one names it again.
        let elsewhere =
            matches!(&reply, Ec2Reply::Created(made) if self.is_of_another(uid, index, &made.id));
        let Some(holding) = self.holdings.get_mut(uid) else {
            return;
        };
        let wanted = holding.groups.clone();
        let Some(branch) = holding.branches.get_mut(&index) else {
            return;
        };
        match reply {
            Ec2Reply::Created(_) if elsewhere => branch.renew(),
            // An inventory was quicker, and with another ENI: this one is adopted by the next.
            Ec2Reply::Created(record) if branch.interface().is_some_and(|i| i.eni != record.id) => {
            }
            Ec2Reply::Created(record) => {
                let right = wanted.is_some_and(|g| {
                    g.iter().collect::<BTreeSet<_>>() == record.groups.iter().collect()
                });
                let mut interface = Interface::from_record(&record, right);
                // Tags are part of the call: a reply that does not repeat them does not mean that they are missing.
                if record.tags.pod_uid == Tag::Absent {
                    interface.uid_tag = Tag::Is(uid.clone());
                    interface.vlan_tag = Some(branch.vlan);
                }
                branch.stage = Stage::Made(interface);
                branch.create_unsure = false;
                branch.doubt = None;
            }
            Ec2Reply::Associated(association) if step == Step::Describe => {
                self.on_association_shown(uid, index, association, now);
                return;
            }
            Ec2Reply::Associated(association) => {
                if let Some(interface) = branch.interface().cloned() {
                    branch.stage = Stage::Attached(interface, Some(association.id));
                    branch.doubt = None;
                    branch.care.obstacle = None;
                    branch.care.associated(now);
                }
            }
            Ec2Reply::Tagged => {
                let vlan = branch.vlan;
                if let Some(interface) = branch.interface_mut() {
                    interface.vlan_tag = Some(vlan);
                }
                let care = &mut branch.care;
                if care.health == Health::WrongTags && care.ordered.take().is_some() {
                    // Whether they are right now, EC2 says, asked by id.
                    care.suspect(now);
                }
            }
            Ec2Reply::GroupsSet => {
                // Without new groups, ours were set again.
                if branch.care.drift.take().is_some() && branch.care.health == Health::WrongGroups {
                    branch.care.health = Health::Ok;
                    branch.care.ordered = None;
                }
                if let (Some(interface), Some(groups)) = (branch.interface_mut(), wanted) {
                    interface.groups = groups;
                    interface.groups_right = true;
                }
            }
            Ec2Reply::FoundByUid(records) => {
                self.on_found(uid, index, &records, now);
                return;
            }
            Ec2Reply::Described(record) => {
                self.on_described(uid, index, &record, now, out);
                return;
            }
            Ec2Reply::Disassociated | Ec2Reply::Deleted | Ec2Reply::Searched(_) => {}
        }
        self.after_create(uid, index, now);
        self.set(uid, Holding::progressed);
    }

    pub(super) fn on_branch_failure(
        &mut self,
        uid: &PodUid,
        step: Step,
        index: u8,
        failure: &Ec2Failure,
        now: Moment,
        out: &mut Vec<Effect>,
    ) {
        self.back_off(uid, now);
        let class = failure.class;
        let sure = !class.may_have_happened();
        let timing = self.timing;
        if let Some(holding) = self.holdings.get_mut(uid) {
            holding.verified = None;
            if step == Step::Create && sure {
                // A later attempt follows the policies as they are by then.
                holding.groups = None;
            }
            if let Some(branch) = holding.branches.get_mut(&index) {
                if step == Step::Associate {
                    branch.maybe_associated = Some(now);
                }
                if step == Step::Create && class == FailureClass::AddressInUse {
                    branch.care.who_has = true;
                    branch.care.refused.get_or_insert(now);
                }
                if class == FailureClass::NotFound && branch.care.bound && step != Step::Associate {
                    branch.care.suspect(now);
                }
                after_failure(branch, step, class, &timing, now);
            }
        }
        let wait = Wait::Ec2(step, class, failure.told());
        if !matches!(class, FailureClass::Fenced) {
            let key = format!("{}/{}", step.name(), class.name());
            let message =
                format!("{} failed: {failure}; it is tried again with the same ENI", step.name());
            if !sure || !matches!(class, FailureClass::Throttled | FailureClass::Transient) {
                self.notify(uid, NoticeKind::AllocationFailed, &key, message, out);
            }
        }
        self.set(uid, |h| h.wait = Some(wait));
    }

    /// Whether the books have this ENI under another branch.
    fn is_of_another(&self, uid: &PodUid, index: u8, eni: &EniId) -> bool {
        self.holdings.iter().any(|(other, holding)| {
            let has = |(at, branch): (&u8, &Branch)| {
                (other, *at) != (uid, index) && branch.eni() == Some(eni)
            };
            holding.branches.iter().any(has)
        })
    }

    /// What the tag shows of a Create in doubt.
    fn on_found(&mut self, uid: &PodUid, index: u8, records: &[EniRecord], now: Moment) {
        let window = self.timing.ec2_consistency + self.timing.ec2_operation;
        let mine = |r: &&EniRecord| {
            r.tags.pod_uid.value() == Some(uid)
                && r.tags.index.value().is_none_or(|i| *i == index)
                && !self.holdings.values().any(|h| h.has_eni(&r.id))
                && !self.deleted.contains_key(&r.id)
        };
        let found = records.iter().find(mine).cloned();
        let began = self.began;
        let Some(branch) = self.holdings.get_mut(uid).and_then(|h| h.branches.get_mut(&index))
        else {
            return;
        };
        match found {
            Some(record) => {
                let unassociated =
                    matches!(record.status, EniStatus::Available | EniStatus::Pending);
                let tagged = record.tags.vlan.value().copied();
                // An associated ENI keeps its VLAN; without its tag nobody knows which that is.
                let Some(vlan) = tagged.or(unassociated.then_some(branch.vlan)) else {
                    return self.back_off(uid, now);
                };
                let care = std::mem::take(&mut branch.care);
                let found = Branch { care, ..Branch::adopted(vlan, stage_of(&record), began) };
                let old = std::mem::replace(branch, found);
                self.vlans.hold(vlan);
                self.give_back_vlan(&old);
                if let Some((_, Some(held))) = self.strangers.remove(&record.id) {
                    self.vlans.release(held, true);
                }
                self.after_create(uid, index, now);
                self.set(uid, Holding::progressed);
            }
            None if branch.doubt.is_some_and(|d| now.has_passed(d.since, window))
                || !lock::holds(Lock::ReadBackWindow) =>
            {
                branch.renew();
            }
            None => self.back_off(uid, now),
        }
    }

    /// What a describe by id shows of an ENI whose association is in doubt.
    fn on_described(
        &mut self,
        uid: &PodUid,
        index: u8,
        record: &EniRecord,
        now: Moment,
        out: &mut Vec<Effect>,
    ) {
        let timing = self.timing;
        let serving = self.pods.contains_key(uid)
            && self.holdings.get(uid).is_some_and(|h| h.release.is_none() && !h.stopped);
        let Some(branch) = self.holdings.get_mut(uid).and_then(|h| h.branches.get_mut(&index))
        else {
            return;
        };
        let told_by = branch.maybe_associated.map_or(now, |last| associate_shows(&timing, last));
        branch.missing = None;
        let Some(interface) = branch.interface().cloned() else {
            return;
        };
        match (record.status, branch.doubt) {
            // It is associated, by our own earlier call, whose replay (same token) gives the id back.
            (EniStatus::InUse | EniStatus::Associated, _) => {
                branch.stage = Stage::Attached(interface, None);
                branch.doubt = None;
                branch.care.obstacle = None;
            }
            // It is there: the same call, with the same token, can be repeated.
            (EniStatus::Available | EniStatus::Pending, Some(doubt))
                if serving && doubt.about == About::Lag =>
            {
                branch.doubt = None;
            }
            (EniStatus::Available, Some(doubt)) if serving && doubt.is_settled(&timing, now) => {
                branch.doubt = None;
                branch.associate_nonce = branch.associate_nonce.saturating_add(1);
                // A pod may be running with this VLAN: another one would be of no use to it.
                if branch.care.bound && doubt.about == About::Vlan {
                    self.obstruct(uid, index, Obstacle::VlanTaken, now, out);
                } else if doubt.about == About::Vlan && !self.change_vlan(uid, index, now, out) {
                    self.back_off(uid, now);
                }
            }
            (_, Some(_)) if serving => self.back_off(uid, now),
            (EniStatus::Available, _) if now >= told_by => {
                branch.doubt = None;
                branch.maybe_associated = None;
                self.set(uid, Holding::progressed);
            }
            _ => {
                self.back_off(uid, now);
                let soonest = now.plus(timing.retry_base);
                self.set(uid, |h| h.retry_at = h.retry_at.map(|at| at.min(told_by.max(soonest))));
            }
        }
    }

    /// Whose association it is that an annotation named.
    fn on_association_shown(
        &mut self,
        uid: &PodUid,
        index: u8,
        association: AssociationRecord,
        now: Moment,
    ) {
        let trunk = self.trunk.as_ref().ok().map(|t| t.eni.clone());
        let Some(branch) = self.holdings.get_mut(uid).and_then(|h| h.branches.get_mut(&index))
        else {
            return;
        };
        let Stage::Attached(interface, None) = branch.stage.clone() else {
            return;
        };
        if association.branch != interface.eni || Some(&association.trunk) != trunk.as_ref() {
            branch.hint = None;
            return self.back_off(uid, now);
        }
        branch.stage = Stage::Attached(interface, Some(association.id));
        let old = std::mem::replace(&mut branch.vlan, association.vlan);
        if old != association.vlan {
            self.vlans.hold(association.vlan);
            self.vlans.release(old, true);
        }
        self.set(uid, Holding::progressed);
    }

    /// Takes another VLAN for a branch; the old one rests, for somebody else holds it in EC2. False if there is none.
    fn change_vlan(&mut self, uid: &PodUid, index: u8, now: Moment, out: &mut Vec<Effect>) -> bool {
        if self.links_ready(now, out).is_err() {
            return false;
        }
        let Some(new) = self.usable_vlans().next() else {
            return false;
        };
        if let Some(branch) = self.holdings.get_mut(uid).and_then(|h| h.branches.get_mut(&index)) {
            self.vlans.hold(new);
            self.vlans.release(branch.vlan, true);
            branch.vlan = new;
        }
        true
    }

    /// A branch no longer holds its VLAN. Where it was never used, nothing has to rest.
    pub(super) fn give_back_vlan(&mut self, branch: &Branch) {
        if branch.vlan_used {
            self.vlans.release(branch.vlan, true);
        } else {
            self.vlans.cancel(branch.vlan);
        }
    }
}

/// When a read of an ENI shows what any Associate of it did that ended by `last`.
pub(super) fn associate_shows(timing: &Timing, last: Moment) -> Moment {
    last.plus(timing.ec2_operation).plus(timing.ec2_consistency)
}

/// The stage that a record found in EC2 stands for.
pub(super) fn stage_of(record: &EniRecord) -> Stage {
    let interface = Interface::from_record(record, false);
    match record.status {
        EniStatus::Available | EniStatus::Pending => Stage::Made(interface),
        EniStatus::Associated | EniStatus::InUse | EniStatus::Other => {
            Stage::Attached(interface, None)
        }
    }
}

/// What a failed call means for its branch. A definite refusal proves that this call made nothing; whether an earlier
/// one with the same token did is what `create_unsure`, `maybe_associated` and doubts remember.
fn after_failure(
    branch: &mut Branch,
    step: Step,
    class: FailureClass,
    timing: &Timing,
    now: Moment,
) {
    match step {
        Step::Create => after_failed_create(branch, class, now),
        Step::Associate => after_failed_associate(branch, class, now),
        // A replayed Create names an ENI that somebody deleted since (`ec2.md` §13 row 8).
        Step::Tag | Step::SetGroups if class == FailureClass::NotFound => {
            if let Stage::Made(_) = branch.stage {
                branch.doubt = Some(Doubt::or_new(branch.doubt, About::Lag, now));
            }
        }
        Step::Describe if class == FailureClass::NotFound => match branch.stage.clone() {
            // A pod may be running with it: its loss is looked into first.
            Stage::Made(_) if branch.care.bound => branch.doubt = None,
            Stage::Made(_) => {
                let since = *branch.missing.get_or_insert(now);
                if now.has_passed(since, timing.ec2_consistency) {
                    // The ENI does not exist any more: where one is needed, a new one is due.
                    branch.renew();
                }
            }
            Stage::Attached(interface, None) => {
                // The association that the annotation named is not there: is there another one?
                branch.hint = None;
                branch.maybe_associated = Some(now);
                branch.stage = Stage::Made(interface);
            }
            _ => {}
        },
        _ => {}
    }
}

fn after_failed_create(branch: &mut Branch, class: FailureClass, now: Moment) {
    match (class, &branch.stage) {
        (FailureClass::TokenMismatch, _) => {
            branch.create_unsure = true;
            branch.doubt = Some(Doubt::or_new(branch.doubt, About::Token, now));
        }
        (class, _) if class.may_have_happened() => branch.create_unsure = true,
        (_, Stage::CreateUnsure) if !branch.create_unsure => branch.stage = Stage::Reserved,
        _ => {}
    }
}

fn after_failed_associate(branch: &mut Branch, class: FailureClass, now: Moment) {
    let about = match class {
        FailureClass::NotFound | FailureClass::InUse => About::Lag,
        FailureClass::TokenMismatch | FailureClass::AlreadyAssociated => About::Token,
        FailureClass::VlanInUse => About::Vlan,
        _ => return,
    };
    match branch.stage.clone() {
        // Another term may have used another nonce; on an associated branch a wrong token changes nothing.
        Stage::Attached(_, None) if about != About::Lag => {
            branch.associate_nonce = (branch.associate_nonce + 1) % 8;
        }
        Stage::AssociateUnsure(interface) | Stage::Attached(interface, None) => {
            branch.stage = Stage::Made(interface);
            branch.doubt = Some(Doubt::or_new(branch.doubt, about, now));
        }
        _ => {}
    }
}
