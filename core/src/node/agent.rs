//! What the agent's session brings: views, changes of them, suspicions; and what the agent is told.
//!
//! A change counts only for a view that is valid: a delta on top of an unknown view says nothing (I6). When the session
//! ends every view is unknown and every statement is withdrawn.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::id::{EniId, PodRef, VlanId};
use crate::lock::{self, Lock};
use crate::message::{Change, FromAgent, Heartbeat, OwnedBranch, ToAgent};
use crate::time::Moment;
use crate::view::{Blind, Links, View};

use super::event::{Effect, Notice, NoticeKind, SessionOpened};
use super::{Ask, Asked, Node, Session};

impl Node {
    pub(super) fn on_session(&mut self, opened: SessionOpened, out: &mut Vec<Effect>) {
        self.on_session_closed();
        self.session = Some(Session {
            origin: opened.origin,
            boot: opened.boot,
            kubelet: opened.kubelet,
            history: self.trunk.as_ref().is_ok_and(|t| t.fresh),
            unrecorded: false,
            links_confirmed: false,
            link_barrier: None,
            owned: None,
        });
        let mac = self.trunk.as_ref().ok().map(|t| t.mac);
        self.send(ToAgent::Trunk(mac), out);
    }

    pub(super) fn on_session_closed(&mut self) {
        self.session = None;
        self.pods_blind = Some(Blind::Disconnected);
        self.links = View::Unknown(Blind::Disconnected);
        self.cgroups = View::Unknown(Blind::Disconnected);
        for holding in self.holdings.values_mut() {
            holding.withdraw_release();
        }
    }

    pub(super) fn on_agent(&mut self, message: FromAgent, now: Moment, out: &mut Vec<Effect>) {
        if self.session.is_none() {
            return;
        }
        match message {
            FromAgent::Pods(Ok(list)) => {
                self.pods = list.into_pods();
                self.pods_blind = None;
                self.pods_changed(now, out);
                if let Some(session) = &mut self.session {
                    session.owned = None;
                }
            }
            FromAgent::Pods(Err(why)) => self.pods_blind = Some(why),
            FromAgent::Links(links) => self.on_links(links, now, out),
            FromAgent::Cgroups(cgroups) => self.cgroups = known_since(now, cgroups),
            FromAgent::VlansUsed(used) => self.on_vlans_used(used),
            FromAgent::Change(change) => self.on_change(change, now, out),
            FromAgent::Suspect(suspect) => self.on_suspect(suspect.pod(), out),
            FromAgent::Release(reported) => self.on_release(reported, now, out),
            FromAgent::Heartbeat(heartbeat) => self.on_heartbeat(heartbeat),
            FromAgent::Barrier(reply) => self.on_barrier(reply, out),
            FromAgent::MacResult { request, outcome, .. } => {
                self.on_mac_result(request, outcome, now, out);
            }
        }
    }

    pub(super) fn on_change(&mut self, change: Change, now: Moment, out: &mut Vec<Effect>) {
        match change {
            Change::PodApplied(pod) if self.pods_blind.is_none() => {
                self.pods.insert(pod.pod.uid.clone(), pod);
                self.pods_changed(now, out);
            }
            Change::PodDeleted(pod) if self.pods_blind.is_none() => {
                self.pods.remove(&pod.uid);
                self.pods_changed(now, out);
            }
            Change::PodApplied(_) | Change::PodDeleted(_) => {}
            Change::Links { added, removed } => {
                if let Some(links) = self.links.known_mut() {
                    links.0.retain(|l| !removed.contains(&l.index));
                    links.0.extend(added);
                    self.links_changed(&BTreeSet::new(), out);
                }
            }
            Change::Cgroups { added, removed } => {
                if let Some(cgroups) = self.cgroups.known_mut() {
                    cgroups.retain(|uid| !removed.contains(uid));
                    cgroups.extend(added);
                }
            }
        }
    }

    pub(super) fn on_heartbeat(&mut self, heartbeat: Heartbeat) {
        let Some(session) = &mut self.session else {
            return;
        };
        if session.boot != heartbeat.boot
            || (session.kubelet.is_some()
                && session.kubelet != heartbeat.kubelet
                && lock::holds(Lock::StartWithdraws))
        {
            for holding in self.holdings.values_mut() {
                holding.withdraw_release();
            }
        }
        session.boot = heartbeat.boot;
        session.kubelet = heartbeat.kubelet;
        if let Some(why) = heartbeat.pods {
            self.pods_blind = Some(why);
        }
        if let Some(why) = heartbeat.links {
            self.links_lost(why);
        }
        if let Some(why) = heartbeat.cgroups {
            self.cgroups = View::Unknown(why);
        }
    }

    pub(super) fn on_links(
        &mut self,
        links: Result<Links, Blind>,
        now: Moment,
        out: &mut Vec<Effect>,
    ) {
        if let Some(session) = &mut self.session {
            session.links_confirmed = false;
            session.link_barrier = None;
        }
        self.links = known_since(now, links);
        self.links_changed(&BTreeSet::new(), out);
    }

    pub(super) fn links_lost(&mut self, why: Blind) {
        self.links = View::Unknown(why);
        if let Some(session) = &mut self.session {
            session.links_confirmed = false;
            session.link_barrier = None;
        }
    }

    /// Compares the VLAN books with the link view and what a barrier showed beyond it.
    pub(super) fn links_changed(&mut self, shown: &BTreeSet<VlanId>, out: &mut Vec<Effect>) {
        let Some(links) = self.links.known() else {
            return;
        };
        let present = VlanId::all().filter(|v| links.has_vlan(*v) || shown.contains(v)).collect();
        if !self.inventory {
            return;
        }
        for vlan in self.vlans.links(&present) {
            if !self.annotated.contains(&vlan) {
                let message = format!(
                    "link {} exists on the node but no branch of this trunk has its VLAN; the VLAN is kept aside until the link is gone",
                    vlan.link_name()
                );
                out.push(Effect::Notify(Notice {
                    pod: None,
                    kind: NoticeKind::StrayLink,
                    message,
                }));
            }
        }
    }

    pub(super) fn on_vlans_used(&mut self, used: Option<BTreeMap<VlanId, Duration>>) {
        let trunk = self.trunk.as_ref().map(|t| t.fresh);
        let Some(session) = &mut self.session else {
            return;
        };
        session.history = true;
        session.unrecorded = used.is_none() && trunk.is_err();
        match used {
            None if !lock::holds(Lock::NoRecordRestsAll) => {}
            Some(_) if !lock::holds(Lock::RestIsRemembered) => {}
            // The trunk is new, or not known yet: in the second case it decides when it comes.
            None if trunk != Ok(false) => {}
            None => self.vlans.rest_all_unheld(),
            Some(used) => {
                for (vlan, age) in used {
                    if age < self.settings.vlan_rest && !self.vlans.is_held(vlan) {
                        self.vlans.rest(vlan, false);
                    }
                }
            }
        }
    }

    pub(super) fn on_suspect(&mut self, pod: &PodRef, out: &mut Vec<Effect>) {
        let asked = |a: &Asked| a.uid == pod.uid && matches!(a.what, Ask::Suspect(_));
        // The name in the books, which tags or a GET have confirmed.
        let pod = self.holdings.get(&pod.uid).map(|h| h.pod.clone());
        if let Some(pod) = pod
            && !self.open.values().any(asked)
        {
            let op = self.ask(pod.uid.clone(), Ask::Suspect(pod.clone()));
            out.push(Effect::GetPod(op, pod));
        }
    }

    // === what the agent is told ===

    pub(super) fn tell_owned(&mut self, out: &mut Vec<Effect>) {
        if self.session.is_none() || self.pods_blind.is_some() || !self.inventory {
            return;
        }
        let owned: BTreeMap<EniId, OwnedBranch> = self
            .holdings
            .values()
            .flat_map(|h| h.branches.values().filter_map(move |b| h.owned(b)))
            .map(|owned| (owned.eni.clone(), owned))
            .collect();
        let Some(session) = &mut self.session else {
            return;
        };
        match &session.owned {
            Some(told) if *told == owned => return,
            Some(told) => {
                let added = owned
                    .iter()
                    .filter(|(id, b)| told.get(id) != Some(b))
                    .map(|(_, b)| b.clone())
                    .collect();
                let removed = told.keys().filter(|id| !owned.contains_key(id)).cloned().collect();
                out.push(Effect::Send(ToAgent::OwnedChanged { added, removed }));
            }
            None => out.push(Effect::Send(ToAgent::OwnedAll(owned.values().cloned().collect()))),
        }
        session.owned = Some(owned);
    }
}

fn known_since<T>(now: Moment, value: Result<T, Blind>) -> View<T> {
    match value {
        Ok(value) => View::Valid { since: now, value },
        Err(why) => View::Unknown(why),
    }
}
