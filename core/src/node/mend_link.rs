//! The last step of a repair: the pod's link gets the MAC of its ENI, and all is well again (design §6).

use crate::heal::{HealWait, Health, Obstacle};
use crate::id::{MacAddress, PodUid, VlanId};
use crate::message::{SetMac, ToAgent};
use crate::time::Moment;
use crate::view::PodPhase;
use crate::wait::Wait;

use super::Node;
use super::event::{Condition, Effect, HealMode, Healed, NoticeKind};
use super::holding::{Interface, Stage};

impl Node {
    /// Has the agent give the pod's link the MAC of its ENI, where the link has that of one that the ENI replaces. EC2 is
    /// asked for the ENI by id right before.
    pub(super) fn mend_link(
        &mut self,
        uid: &PodUid,
        index: u8,
        now: Moment,
        out: &mut Vec<Effect>,
    ) -> Result<(), Wait> {
        let timeout = self.timing.heal_link_change;
        let running = self.pods.get(uid).is_some_and(|p| p.phase == PodPhase::Running);
        let blind = self.links.blind();
        let Some(branch) = self.holdings.get(uid).and_then(|h| h.branches.get(&index)) else {
            return Ok(());
        };
        let (care, vlan) = (&branch.care, branch.vlan);
        let Stage::Attached(interface, _) = &branch.stage else {
            return Ok(());
        };
        let to = interface.mac;
        if let Some(why) = blind {
            let pending = care.link_mac.is_some() && !care.resumed;
            return if pending { Err(Wait::LinkView(why)) } else { Ok(()) };
        }
        let from = match self.link_mac(vlan) {
            Some(mac) if mac == to => return Ok(()),
            Some(mac) => mac,
            None => {
                let gone =
                    care.link_gone.is_some_and(|at| now.has_passed(at, self.timing.link_missing));
                if running && gone && care.link_seen {
                    self.set_health(uid, index, Health::LinkMissing);
                    return Err(self.obstruct(uid, index, Obstacle::LinkGone, now, out));
                }
                return Ok(());
            }
        };
        if care.health == Health::Ok {
            self.set_health(uid, index, Health::LinkDiffers);
        }
        let Some(care) =
            self.holdings.get(uid).and_then(|h| h.branches.get(&index)).map(|b| &b.care)
        else {
            return Ok(());
        };
        if !care.was.contains(&from) {
            return Err(self.obstruct(uid, index, Obstacle::LinkUnknown, now, out));
        }
        if let Some((_, asked)) = care.link_change
            && !now.has_passed(asked, timeout)
        {
            return Err(Wait::Heal(match &care.link_failed {
                Some(why) => HealWait::LinkChangeFailed(why.clone()),
                None => HealWait::LinkChange { to },
            }));
        }
        if care.confirmed.is_none_or(|at| now.has_passed(at, timeout)) {
            if let Some(branch) = self.branch_mut(uid, index) {
                branch.care.suspect(now);
            }
            return self.check(uid, index, now, out);
        }
        let ordered = care.is_ordered(&self.timing, now);
        if self.settings.heal == HealMode::Report && !ordered {
            return Err(self.obstruct(uid, index, Obstacle::ReportOnly, now, out));
        }
        let addresses =
            match self.holdings.get(uid).and_then(|h| h.branches.get(&index)?.interface()) {
                Some(interface) => addresses(interface),
                None => return Ok(()),
            };
        self.next_op += 1;
        let request = self.next_op;
        if let Some(branch) = self.branch_mut(uid, index) {
            branch.care.link_change = Some((request, now));
            branch.care.link_failed = None;
            branch.care.noticed.get_or_insert(now);
        }
        let change = SetMac { request, uid: uid.clone(), vlan, from, to, addresses };
        self.send(ToAgent::SetMac(change), out);
        Err(Wait::Heal(HealWait::LinkChange { to }))
    }

    /// The MAC of the link of a VLAN, in a valid view.
    pub(super) fn link_mac(&self, vlan: VlanId) -> Option<MacAddress> {
        let links = self.links.known()?;
        links.0.iter().find(|l| l.branch_vlan() == Some(vlan)).and_then(|l| l.mac)
    }

    /// A branch that is attached, announced and has its link: whatever was the matter is over.
    pub(super) fn settle(&mut self, uid: &PodUid, index: u8, now: Moment, out: &mut Vec<Effect>) {
        let Some(branch) = self.branch_mut(uid, index) else {
            return;
        };
        let care = &mut branch.care;
        if care.suspect || care.missing.is_some() || branch.doubt.is_some() {
            return;
        }
        let drifted = matches!(care.health, Health::WrongGroups | Health::WrongTags);
        let (loss, noticed, resumed) = (care.health, care.noticed, care.resumed);
        if drifted || (noticed.is_none() && !resumed && loss == Health::Ok) {
            return;
        }
        care.settled();
        let Some(eni) = branch.eni().cloned() else {
            return;
        };
        let Some(pod) = self.holdings.get(uid).map(|h| h.pod.clone()) else {
            return;
        };
        self.set(uid, |h| {
            let over =
                [NoticeKind::BranchLost, NoticeKind::HealNotPossible, NoticeKind::HealFrozen];
            for kind in over {
                h.told.remove(&kind);
            }
        });
        if let (Some(noticed), true) = (noticed, loss != Health::Ok) {
            let took = now.since(noticed);
            let message = format!(
                "The pod's branch works again after {} s: ENI {eni} (it was {})",
                took.as_secs(),
                loss.name()
            );
            self.notify(uid, NoticeKind::BranchHealed, &message, message.clone(), out);
            out.push(Effect::Healed(Healed { pod: pod.clone(), eni, loss, took }));
        }
        if resumed || loss != Health::Ok {
            let message = Health::Ok.sentence().to_owned();
            out.push(Effect::Condition(Condition { pod, health: Health::Ok, message }));
        }
    }
}

fn addresses(interface: &Interface) -> Vec<std::net::IpAddr> {
    let v4 = interface.ipv4.map(Into::into);
    v4.into_iter().chain(interface.ipv6.map(Into::into)).collect()
}
