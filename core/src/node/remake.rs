//! The steps of a repair that change something in EC2 or the annotation (design §6).
//!
//! Nothing here takes anything from anybody: EC2 refuses an address or a VLAN that is in use.

use crate::annotation::Annotation;
use crate::eni::{Ec2Call, SearchBy, tag};
use crate::heal::{HealWait, Obstacle, node_limit};
use crate::id::PodUid;
use crate::time::Moment;
use crate::wait::{Step, Wait};

use super::allocate::{association_call, create_call};
use super::care::Lost;
use super::event::{Effect, HealMode, NoticeKind, Trunk};
use super::holding::{Branch, Stage};
use super::{Ask, HealAsk, Node};

impl Node {
    /// Whether anything may be repaired now: the mode, a valid pod view, and not too much lost at once (design §4.5).
    fn allowed(
        &mut self,
        uid: &PodUid,
        index: u8,
        now: Moment,
        out: &mut Vec<Effect>,
    ) -> Result<(), Wait> {
        if self.settings.read_only {
            return Err(Wait::ReadOnly);
        }
        let timing = self.timing;
        let ordered = self.branch_mut(uid, index).is_some_and(|b| b.care.is_ordered(&timing, now));
        if self.settings.heal == HealMode::Report && !ordered {
            return Err(self.obstruct(uid, index, Obstacle::ReportOnly, now, out));
        }
        if let Some(why) = self.pods_blind {
            return Err(Wait::PodView(why));
        }
        let Some(care) = self.branch_mut(uid, index).map(|b| &b.care) else {
            return Ok(());
        };
        if ordered || care.granted || care.agreed() {
            return Ok(());
        }
        let (lost, of) = (self.lost(), self.bound());
        if lost > node_limit(of) {
            let wait = HealWait::NodeFuse { lost, of };
            self.notify(uid, NoticeKind::HealFrozen, wait.name(), wait.to_string(), out);
            return Err(Wait::Heal(wait));
        }
        let op = self.ask(uid.clone(), Ask::Heal(HealAsk::Permission, index));
        self.set(uid, |h| h.call = Some(op));
        out.push(Effect::AskHeal(op));
        Err(Wait::Heal(HealWait::ClusterFuse))
    }

    /// A repair that was held back (too much lost at once, the mode, a view that was not valid) does not act on what EC2 said
    /// long ago: it may have lied then, and stopped since. Once a Create was sent it has to be seen through.
    fn forget_old_proof(&mut self, uid: &PodUid, index: u8, now: Moment) -> bool {
        let fresh = self.timing.heal_recheck.saturating_mul(2);
        let Some(branch) = self.branch_mut(uid, index) else {
            return false;
        };
        let unsent = branch.stage == Stage::Reserved && !branch.create_unsure;
        let Some(lost) = branch.care.lost.as_mut().filter(|_| unsent) else {
            return false;
        };
        let old = lost.proof.as_ref().is_some_and(|proof| now.has_passed(proof.at(), fresh));
        if old {
            lost.proof = None;
            branch.care.granted = false;
            branch.care.suspect(now);
        }
        old
    }

    /// The ENI exists, or a new one was made: it is associated, on the VLAN that the pod's link has.
    pub(super) fn associate_again(
        &mut self,
        uid: &PodUid,
        index: u8,
        trunk: &Trunk,
        now: Moment,
        out: &mut Vec<Effect>,
    ) -> Result<(), Wait> {
        self.allowed(uid, index, now, out)?;
        let Some(holding) = self.holdings.get(uid) else {
            return Ok(());
        };
        let Some(branch) = holding.branches.get(&index) else {
            return Ok(());
        };
        let Some(interface) = branch.interface() else {
            return Ok(());
        };
        let (step, call) = if branch.doubt.is_some() {
            (Step::Describe, Ec2Call::Describe(interface.eni.clone()))
        } else if interface.vlan_tag != Some(branch.vlan) {
            let tags = [(tag::VLAN.to_owned(), branch.vlan.to_string())].into();
            (Step::Tag, Ec2Call::Tag { eni: interface.eni.clone(), tags })
        } else if let Some(next) = association_call(holding, branch, trunk) {
            next
        } else {
            return Ok(());
        };
        Err(self.branch_step(uid, step, index, call, out))
    }

    /// A new ENI is made with the addresses of the lost one, for the pod as a live GET shows it, with the groups that the
    /// policies give it now.
    pub(super) fn make_again(
        &mut self,
        uid: &PodUid,
        index: u8,
        trunk: &Trunk,
        now: Moment,
        out: &mut Vec<Effect>,
    ) -> Result<(), Wait> {
        self.allowed(uid, index, now, out)?;
        if self.forget_old_proof(uid, index, now) {
            return self.check(uid, index, now, out);
        }
        let Some(holding) = self.holdings.get(uid) else {
            return Ok(());
        };
        let Some(branch) = holding.branches.get(&index) else {
            return Ok(());
        };
        let Some(lost) = &branch.care.lost else {
            return Ok(());
        };
        if lost.before.as_ref().is_some_and(|(i, _)| i.subnet != trunk.subnet) {
            return Err(self.obstruct(uid, index, Obstacle::SubnetDiffers, now, out));
        }
        let address = lost.old.ipv4.map(Into::into).or(lost.old.ipv6.map(Into::into));
        if let (true, Some(address)) = (branch.care.who_has, address) {
            let by = SearchBy::Address(address);
            let ask = HealAsk::Search(by);
            return Err(self.heal_call(uid, index, ask, Ec2Call::Search(by), out));
        }
        if branch.doubt.is_some() {
            let call = Ec2Call::FindByUid(uid.clone());
            return Err(self.branch_step(uid, Step::ReadBack, index, call, out));
        }
        self.verified(uid, out)?;
        let Some(holding) = self.holdings.get(uid) else {
            return Ok(());
        };
        let (Some((pod, _)), Some(branch)) = (&holding.verified, holding.branches.get(&index))
        else {
            return Ok(());
        };
        let replaced = branch.care.lost.as_ref().map(|lost| lost.old.clone());
        let Some(create) = create_call(holding, index, branch, trunk, replaced) else {
            let pod = pod.clone();
            let op = self.open_step(uid, Step::Groups, 0);
            out.push(Effect::ResolveGroups(op, pod));
            return Err(Wait::Call(Step::Groups));
        };
        Err(self.branch_step(uid, Step::Create, index, create, out))
    }

    /// What was lost has been made: remembers what it replaces.
    pub(super) fn after_create(&mut self, uid: &PodUid, index: u8, now: Moment) {
        let Some(branch) = self.branch_mut(uid, index) else {
            return;
        };
        if branch.interface().is_none() {
            return;
        }
        let care = &mut branch.care;
        if let Some(Lost { old, .. }) = care.lost.take() {
            care.was.insert(old.mac);
            care.replaced.extend([old.eni, old.named.clone()]);
            care.named = Some(old.named);
            care.link_mac = Some(old.mac);
            care.known = Some(now);
            care.rewrite = true;
            (care.refused, care.who_has, care.obstacle) = (None, false, None);
        }
    }

    /// The annotation is written again where an ENI or an association changed.
    pub(super) fn announce_again(
        &mut self,
        uid: &PodUid,
        trunk: &Trunk,
        out: &mut Vec<Effect>,
    ) -> Result<(), Wait> {
        let Some(holding) = self.holdings.get(uid) else {
            return Ok(());
        };
        if !holding.asked().any(|(_, b)| b.care.rewrite) {
            return Ok(());
        }
        if self.settings.read_only {
            return Err(Wait::ReadOnly);
        }
        let unread = holding.asked().find(|(_, b)| matches!(b.stage, Stage::Attached(_, None)));
        let call = unread.and_then(|(i, b)| Some((*i, association_call(holding, b, trunk)?)));
        if let Some((index, (step, call))) = call {
            return Err(self.branch_step(uid, step, index, call, out));
        }
        self.verified(uid, out)?;
        let right = self.holdings.get(uid).is_some_and(|h| {
            let Some((pod, _)) = &h.verified else { return false };
            let named = self.reader.read(pod.annotation.as_deref());
            h.asked().all(|(_, b)| announces(&named, b))
        });
        if right {
            self.announced(uid);
            return Ok(());
        }
        self.annotate(uid, trunk, out)
    }

    /// The annotation names the branches as they are.
    pub(super) fn announced(&mut self, uid: &PodUid) {
        self.set(uid, |h| {
            h.verified = None;
            for branch in h.branches.values_mut() {
                branch.care.rewrite = false;
                branch.care.named = None;
            }
        });
    }

    /// The live GET of this attempt, asking for it if there is none.
    fn verified(&mut self, uid: &PodUid, out: &mut Vec<Effect>) -> Result<(), Wait> {
        if self.holdings.get(uid).is_none_or(|h| h.verified.is_some()) {
            return Ok(());
        }
        let op = self.open_step(uid, Step::Verify, 0);
        out.extend(self.holdings.get(uid).map(|h| Effect::GetPod(op, h.pod.clone())));
        Err(Wait::Call(Step::Verify))
    }
}

/// Whether an annotation names a branch as it is, its association included.
fn announces(named: &Annotation, branch: &Branch) -> bool {
    let Annotation::Names(named) = named else {
        return false;
    };
    let Stage::Attached(interface, Some(association)) = &branch.stage else {
        return false;
    };
    named.iter().any(|n| n.eni == interface.eni && n.association.as_ref() == Some(association))
}
