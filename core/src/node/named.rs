//! What a pod's annotation means (design §4.1).
//!
//! The UID tag decides, never the annotation. "An annotation we did not write" is one that names an ENI whose tag carries
//! another UID, or that is not on this node's trunk: then the pod gets an ENI of its own and the annotation is replaced.
//! An ENI that EC2 does not show is not a copy but may be one that was lost ([`super::heal`]), and one without our UID tag
//! is adopted first; what cannot be told is parked. An annotation that does not parse is left alone.

use std::collections::BTreeSet;

use crate::annotation::{Annotation, NamedBranch};
use crate::eni::{Ec2Call, Ec2Reply, FailureClass, Tag};
use crate::id::{EniId, PodUid, VlanId};
use crate::time::Moment;
use crate::verdict::NamedElsewhere;
use crate::view::Pod;
use crate::wait::{Step, Wait};

use super::event::{Answer, Effect, NoticeKind};
use super::holding::{Holding, NamedEni, Stage};
use super::{Ask, Node};

/// What is to be done about a pod's annotation.
pub(super) enum Meaning {
    /// There is none.
    None,
    /// It names this holding's branches and is as it should be.
    Ours,
    /// It has to be replaced.
    Copied,
    /// Nothing can be done while it stands.
    Parked(Wait),
    /// It names an ENI that EC2 does not show.
    Ghost(NamedBranch),
    /// An ENI that it names has to be described first.
    Describe(EniId),
}

impl Node {
    /// The pods of the view changed: new wants, VLANs named by annotations.
    pub(super) fn pods_changed(&mut self, now: Moment, out: &mut Vec<Effect>) {
        self.tell_odd_requests(now, out);
        let (mut named, mut past) = (BTreeSet::new(), BTreeSet::new());
        for pod in self.pods.values() {
            if let Annotation::Names(branches) = self.reader.read(pod.annotation.as_deref()) {
                // Of a pod that has ended and given its branch back, the annotation is history.
                let over = pod.phase.is_ended() && !self.holdings.contains_key(&pod.pod.uid);
                let set = if over { &mut past } else { &mut named };
                set.extend(branches.iter().map(|b| b.vlan));
            }
        }
        let left = self.annotated.difference(&named).chain(past.difference(&self.annotated_past));
        for vlan in left {
            self.vlans.rest(*vlan, false);
        }
        self.annotated = named;
        self.annotated_past = past;
        for pod in self.pods.values() {
            let over = pod.phase.is_ended() || pod.deleting;
            match self.holdings.get_mut(&pod.pod.uid) {
                Some(holding) => {
                    holding.learn(pod);
                    holding.stopped |= over;
                    let read = self.reader.read(pod.annotation.as_deref());
                    holding.named.retain(|eni, _| read.names(eni) == Some(true));
                }
                None if pod.requested > 0 && !over => {
                    self.arrivals += 1;
                    let mut holding = Holding::new(pod.pod.clone(), self.arrivals, now);
                    holding.learn(pod);
                    self.holdings.insert(pod.pod.uid.clone(), holding);
                }
                None => {}
            }
        }
    }

    /// A want whose pod left the view, or ended, and for which EC2 was never asked, is no longer one (S27).
    pub(super) fn drop_idle(&mut self) {
        if self.pods_blind.is_some() {
            return;
        }
        let idle = |h: &Holding| !h.in_ec2() && h.call.is_none() && h.release.is_none();
        let over = |h: &Holding| h.stopped || !self.pods.contains_key(&h.pod.uid);
        let drop: Vec<PodUid> = self
            .holdings
            .values()
            .filter(|h| idle(h) && over(h))
            .map(|h| h.pod.uid.clone())
            .collect();
        for uid in drop {
            self.forget_reservations(&uid);
            self.holdings.remove(&uid);
        }
    }

    /// Gives back reservations that EC2 knows nothing of.
    pub(super) fn forget_reservations(&mut self, uid: &PodUid) {
        let Some(holding) = self.holdings.get_mut(uid) else {
            return;
        };
        let reserved: Vec<_> =
            holding.branches.extract_if(.., |_, b| b.stage == Stage::Reserved).collect();
        for (_, branch) in reserved {
            self.give_back_vlan(&branch);
        }
    }

    /// What the annotation of `pod` means for its holding.
    pub(super) fn meaning(&self, holding: &Holding, pod: &Pod) -> Meaning {
        let named = match self.reader.read(pod.annotation.as_deref()) {
            Annotation::Absent if holding.written && holding.verified.is_none() => {
                return Meaning::Ours;
            }
            Annotation::Absent => return Meaning::None,
            Annotation::Unreadable(why) => return Meaning::Parked(Wait::AnnotationUnreadable(why)),
            Annotation::Names(named) if named.len() > usize::from(VlanId::MAX) => {
                let why = format!("it names {} ENIs, more than a trunk has VLANs", named.len());
                return Meaning::Parked(Wait::AnnotationUnreadable(why));
            }
            Annotation::Names(named) => named,
        };
        let mut copied = named.is_empty();
        for branch in &named {
            if holding.has_eni(&branch.eni) || holding.replaces(&branch.eni) {
                continue;
            }
            let elsewhere = self
                .holdings
                .values()
                .any(|h| h.pod.uid != holding.pod.uid && h.has_eni(&branch.eni));
            if elsewhere {
                copied = true;
            } else if self.strangers.contains_key(&branch.eni) {
                return Meaning::Parked(Wait::AwaitsAdoption(branch.eni.to_string()));
            } else {
                match holding.named.get(&branch.eni) {
                    None => return Meaning::Describe(branch.eni.clone()),
                    Some(NamedEni::Foreign) => copied = true,
                    Some(NamedEni::Untagged) => {
                        return Meaning::Parked(Wait::AwaitsAdoption(branch.eni.to_string()));
                    }
                    Some(NamedEni::Ghost) => return Meaning::Ghost(branch.clone()),
                }
            }
        }
        let whole = named.len() >= holding.requested as usize;
        if copied || !whole { Meaning::Copied } else { Meaning::Ours }
    }

    pub(super) fn describe_named(
        &mut self,
        uid: &PodUid,
        eni: EniId,
        out: &mut Vec<Effect>,
    ) -> Wait {
        let op = self.ask(uid.clone(), Ask::Named(eni.clone()));
        if let Some(holding) = self.holdings.get_mut(uid) {
            holding.call = Some(op);
        }
        out.push(Effect::Call(op, Ec2Call::Describe(eni)));
        Wait::Call(Step::Describe)
    }

    pub(super) fn on_named_answer(
        &mut self,
        uid: &PodUid,
        eni: &EniId,
        answer: Answer,
        now: Moment,
    ) {
        let told = match (answer, &self.trunk) {
            (Answer::Ec2(Ok(Ec2Reply::Described(record))), Ok(trunk)) => {
                // A tag that is missing or cannot be read makes it nobody else's.
                match (&record.tags.pod_uid, &record.tags.trunk) {
                    (Tag::Is(tagged), _) if tagged != uid => NamedEni::Foreign,
                    (_, Tag::Is(of)) if *of != trunk.eni => NamedEni::Foreign,
                    _ => NamedEni::Untagged,
                }
            }
            (Answer::Ec2(Err(failure)), _) if failure.class == FailureClass::NotFound => {
                NamedEni::Ghost
            }
            _ => {
                self.back_off(uid, now);
                return;
            }
        };
        self.set(uid, |h| {
            h.named.insert(eni.clone(), told);
        });
    }

    /// Tells the user why the pod's annotation stops everything.
    pub(super) fn notify_parked(&mut self, uid: &PodUid, wait: &Wait, out: &mut Vec<Effect>) {
        self.notify(uid, NoticeKind::AnnotationUnusable, wait.name(), wait.to_string(), out);
    }

    /// Whether another live pod in the view names this ENI. The text is searched for the id, so that an annotation
    /// that does not parse protects what it mentions; and it is read, for JSON can spell an id with escapes. For a Delete the last view serves where there is no valid one:
    /// the ENI is disassociated by then, and no pod can be using it.
    pub(super) fn named_elsewhere(
        &self,
        uid: &PodUid,
        eni: &EniId,
        for_delete: bool,
    ) -> NamedElsewhere {
        if self.pods_blind.is_some() && !for_delete {
            return NamedElsewhere::Unknown;
        }
        let names = |pod: &Pod| {
            pod.annotation.as_deref().is_some_and(|text| {
                text.contains(eni.as_str()) || self.reader.read(Some(text)).names(eni) == Some(true)
            })
        };
        let other =
            self.pods.values().any(|p| p.pod.uid != *uid && !p.phase.is_ended() && names(p));
        if other { NamedElsewhere::Yes } else { NamedElsewhere::No }
    }
}
