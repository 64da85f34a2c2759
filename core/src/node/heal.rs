//! Repairing the branch of a live pod, mildest first (design §6).
//!
//! A sign that a branch may be lost ([`super::noticing`]) only makes EC2 be asked for the ENI by its id. Where the ENI exists
//! without association it is associated again on the same VLAN. Where [`EniMissing`](crate::heal::EniMissing) is
//! established, a new one is made with the same addresses, associated on the same VLAN and announced; then the agent
//! changes the MAC of the pod's link. What has been done is told by the branch itself and by the tags of its ENI, so a
//! repair that a failure, a restart or a change of leader interrupts is taken up where it was: one attempt at a time and
//! one ENI a pod, whatever fails.
//!
//! Nothing here takes anything from anybody: EC2 refuses an address or a VLAN that is in use, and then the pod is told
//! that it cannot be repaired in place. A pod that ends meanwhile is released as any other.

use std::collections::BTreeMap;

use crate::eni::{Ec2Call, Replaced, SearchBy, Tag, tag};
use crate::heal::{EniMissing, HealWait, Health, MissingCase, NextLook, Obstacle};
use crate::id::PodUid;
use crate::time::Moment;
use crate::wait::{Step, Wait};

use super::care::Lost;
use super::event::{Condition, Effect, HealMode, NoticeKind, Trunk};
use super::holding::{Branch, Stage};
use super::{Ask, HealAsk, Node};

impl Node {
    /// Looks after the branches that a live pod's annotation names. `Ok` means that nothing is awaited.
    pub(super) fn advance_heal(
        &mut self,
        uid: &PodUid,
        trunk: &Trunk,
        now: Moment,
        out: &mut Vec<Effect>,
    ) -> Result<(), Wait> {
        let indexes: Vec<u8> = match self.holdings.get(uid) {
            Some(holding) => holding.asked().map(|(index, _)| *index).collect(),
            None => return Ok(()),
        };
        let mut first = Ok(());
        for index in &indexes {
            self.watch(uid, *index, now);
            let outcome = self.tend(uid, *index, trunk, now, out);
            if self.holdings.get(uid).is_none_or(|h| h.call.is_some()) {
                return outcome;
            }
            first = first.and(outcome);
        }
        first?;
        self.announce_again(uid, trunk, out)?;
        for index in indexes {
            self.mend_link(uid, index, now, out)?;
            self.settle(uid, index, now, out);
        }
        Ok(())
    }

    /// The next step that brings one branch back to being associated.
    fn tend(
        &mut self,
        uid: &PodUid,
        index: u8,
        trunk: &Trunk,
        now: Moment,
        out: &mut Vec<Effect>,
    ) -> Result<(), Wait> {
        let (restore, timing) = (self.settings.restore_groups, self.timing);
        let Some(branch) = self.branch_mut(uid, index) else {
            return Ok(());
        };
        let care = &mut branch.care;
        let explained = care.health == Health::Disassociated || !care.replaced.is_empty();
        match &branch.stage {
            Stage::Made(_) | Stage::AssociateUnsure(_) if !explained => care.suspect(now),
            Stage::Reserved | Stage::CreateUnsure
                if care.lost.as_ref().is_some_and(|l| l.proof.is_none()) =>
            {
                care.suspect(now);
            }
            _ => {}
        }
        if care.suspect || care.missing.is_some() {
            return self.check(uid, index, now, out);
        }
        let care = &branch.care;
        match &branch.stage {
            Stage::Reserved | Stage::CreateUnsure if branch.care.lost.is_some() => {
                self.make_again(uid, index, trunk, now, out)
            }
            Stage::Made(_) | Stage::AssociateUnsure(_) => {
                self.associate_again(uid, index, trunk, now, out)
            }
            Stage::Attached(..) if care.health.is_loss() && care.obstacle.is_some() => {
                let obstacle = care.obstacle.unwrap_or(Obstacle::NotOurs);
                Err(self.obstruct(uid, index, obstacle, now, out))
            }
            Stage::Attached(interface, _)
                if care.health == Health::WrongTags && care.is_ordered(&timing, now) =>
            {
                let eni = interface.eni.clone();
                match self.binding_tags(uid, index) {
                    Some(tags) => {
                        let call = Ec2Call::Tag { eni, tags };
                        Err(self.mutate(uid, Step::Tag, index, call, out)?)
                    }
                    None => Ok(()),
                }
            }
            Stage::Attached(interface, _)
                if care.drift.is_some() && (restore || care.is_ordered(&timing, now)) =>
            {
                let (eni, groups) = (interface.eni.clone(), interface.groups.clone());
                let call = Ec2Call::SetGroups { eni, groups };
                Err(self.mutate(uid, Step::SetGroups, index, call, out)?)
            }
            _ => Ok(()),
        }
    }

    /// The tags that bind an ENI to its pod, where its tag names no other pod (design §4.1: the tag decides).
    fn binding_tags(&self, uid: &PodUid, index: u8) -> Option<BTreeMap<String, String>> {
        let holding = self.holdings.get(uid)?;
        let branch = holding.branches.get(&index)?;
        let interface = branch.interface()?;
        let free = match &interface.uid_tag {
            Tag::Absent => true,
            Tag::Is(tagged) => tagged == uid,
            Tag::Unreadable(_) => false,
        };
        let pod = &holding.pod;
        free.then(|| {
            [
                (tag::POD_UID, pod.uid.to_string()),
                (tag::POD_NAMESPACE, pod.namespace.to_string()),
                (tag::POD_NAME, pod.name.to_string()),
                (tag::INDEX, index.to_string()),
                (tag::VLAN, branch.vlan.to_string()),
            ]
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect()
        })
    }

    /// A mutating call, unless the mode forbids it.
    fn mutate(
        &mut self,
        uid: &PodUid,
        step: Step,
        index: u8,
        call: Ec2Call,
        out: &mut Vec<Effect>,
    ) -> Result<Wait, Wait> {
        if self.settings.read_only {
            return Err(Wait::ReadOnly);
        }
        Ok(self.branch_step(uid, step, index, call, out))
    }

    // === is it lost? ===

    /// Asks EC2 what there is to know of an ENI that may be lost.
    pub(super) fn check(
        &mut self,
        uid: &PodUid,
        index: u8,
        now: Moment,
        out: &mut Vec<Effect>,
    ) -> Result<(), Wait> {
        let timing = self.timing;
        let Some(branch) = self.branch_mut(uid, index) else {
            return Ok(());
        };
        let Some(subject) = subject(branch) else {
            branch.care.cleared();
            return Ok(());
        };
        let known = branch.care.known.unwrap_or(now);
        let case = branch
            .care
            .missing
            .get_or_insert_with(|| MissingCase::open(subject.eni.clone(), known));
        let address = subject.ipv4.map(Into::into).or(subject.ipv6.map(Into::into));
        let mut next = case.next(&timing, now);
        if next == NextLook::ByAddress && address.is_none() {
            case.nothing_by_address(now);
            next = case.next(&timing, now);
        }
        let (ask, call) = match (next, address) {
            (NextLook::Later(at, young), _) => {
                self.set(uid, |h| h.retry_at = Some(at));
                let wait = if young { HealWait::Young } else { HealWait::AskedAgain };
                return Err(Wait::Heal(wait));
            }
            (NextLook::ByAddress, Some(address)) => {
                let by = SearchBy::Address(address);
                (HealAsk::Search(by), Ec2Call::Search(by))
            }
            (NextLook::ByMac, _) => {
                let by = SearchBy::Mac(subject.mac);
                (HealAsk::Search(by), Ec2Call::Search(by))
            }
            (NextLook::ById | NextLook::ByAddress, _) => {
                (HealAsk::Check, Ec2Call::Describe(subject.eni))
            }
        };
        Err(self.heal_call(uid, index, ask, call, out))
    }

    pub(super) fn heal_call(
        &mut self,
        uid: &PodUid,
        index: u8,
        ask: HealAsk,
        call: Ec2Call,
        out: &mut Vec<Effect>,
    ) -> Wait {
        let step = match ask {
            HealAsk::Search(_) => Step::Search,
            _ => Step::Check,
        };
        let op = self.ask(uid.clone(), Ask::Heal(ask, index));
        self.set(uid, |h| h.call = Some(op));
        out.push(Effect::Call(op, call));
        Wait::Call(step)
    }

    /// The ENI is missing: its branch is to get another one.
    pub(super) fn lose(
        &mut self,
        uid: &PodUid,
        index: u8,
        proof: EniMissing,
        out: &mut Vec<Effect>,
    ) {
        let link = self.branch_mut(uid, index).map(|b| b.vlan).and_then(|v| self.link_mac(v));
        let Some(branch) = self.branch_mut(uid, index) else {
            return;
        };
        let care = &mut branch.care;
        (care.suspect, care.missing, care.confirmed) = (false, None, None);
        care.health = Health::Missing;
        if let Some(lost) = &mut care.lost {
            lost.proof = Some(proof);
        } else if let Some(interface) = branch.interface().cloned() {
            let association = match &branch.stage {
                Stage::Attached(_, id) => id.clone(),
                _ => None,
            };
            let care = &mut branch.care;
            care.was.insert(interface.mac);
            let shown = link.filter(|mac| care.was.contains(mac));
            let old = Replaced {
                eni: interface.eni.clone(),
                named: care.named.clone().unwrap_or_else(|| interface.eni.clone()),
                mac: shown.or(care.link_mac).unwrap_or(interface.mac),
                ipv4: interface.ipv4,
                ipv6: interface.ipv6,
            };
            care.lost =
                Some(Lost { old, proof: Some(proof), before: Some((interface, association)) });
            branch.make_anew();
        }
        let eni = self
            .branch_mut(uid, index)
            .and_then(|b| b.care.lost.as_ref().map(|l| l.old.eni.clone()));
        let name = eni.map(|eni| eni.to_string()).unwrap_or_default();
        let message = format!(
            "Branch ENI {name} of the running pod does not exist any more; a new one with the same address is made in its place"
        );
        self.tell_loss(uid, NoticeKind::BranchLost, &name, Health::Missing, message, out);
    }

    // === what cannot be repaired ===

    /// A branch cannot be repaired in place: the pod is told, and evicted where that is wanted and it surely is cut off.
    pub(super) fn obstruct(
        &mut self,
        uid: &PodUid,
        index: u8,
        obstacle: Obstacle,
        now: Moment,
        out: &mut Vec<Effect>,
    ) -> Wait {
        let Some(branch) = self.branch_mut(uid, index) else {
            return Wait::Heal(HealWait::Consistency);
        };
        branch.care.obstacle = Some(obstacle);
        branch.care.noticed.get_or_insert(now);
        let (health, evicted) = (branch.care.health, branch.care.evicted);
        let wait = HealWait::NotPossible(health, obstacle);
        let key = format!("{}/{}", health.name(), obstacle.name());
        self.tell_loss(uid, NoticeKind::HealNotPossible, &key, health, wait.to_string(), out);
        let free = self.holdings.get(uid).is_some_and(|h| h.call.is_none());
        self.back_off_to(uid, self.timing.inventory_interval, now);
        if self.settings.heal == HealMode::Evict
            && obstacle.evicts()
            && !evicted
            && free
            && !self.settings.read_only
            && let Some(pod) = self.holdings.get(uid).map(|h| h.pod.clone())
        {
            let op = self.ask(uid.clone(), Ask::Heal(HealAsk::Evict, index));
            self.set(uid, |h| h.call = Some(op));
            out.push(Effect::Evict(op, pod));
        }
        let wait = Wait::Heal(wait);
        self.set(uid, |h| h.wait = Some(wait.clone()));
        wait
    }

    /// An event, and the pod's condition with it, once per `key`.
    pub(super) fn tell_loss(
        &mut self,
        uid: &PodUid,
        kind: NoticeKind,
        key: &str,
        health: Health,
        message: String,
        out: &mut Vec<Effect>,
    ) {
        if self.notify(uid, kind, key, message.clone(), out)
            && let Some(pod) = self.holdings.get(uid).map(|h| h.pod.clone())
        {
            out.push(Effect::Condition(Condition { pod, health, message }));
        }
    }

    pub(super) fn set_health(&mut self, uid: &PodUid, index: u8, health: Health) {
        if let Some(branch) = self.branch_mut(uid, index) {
            branch.care.health = health;
        }
    }

    pub(super) fn branch_mut(&mut self, uid: &PodUid, index: u8) -> Option<&mut Branch> {
        self.holdings.get_mut(uid)?.branches.get_mut(&index)
    }
}

/// What an ENI is looked for by: the present one, or the lost one.
pub(super) fn subject(branch: &Branch) -> Option<Replaced> {
    match branch.interface() {
        Some(i) => Some(Replaced {
            eni: i.eni.clone(),
            named: i.eni.clone(),
            mac: i.mac,
            ipv4: i.ipv4,
            ipv6: i.ipv6,
        }),
        None => branch.care.lost.as_ref().map(|lost| lost.old.clone()),
    }
}
