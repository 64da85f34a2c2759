//! What the agent tells the coordinator, and what it has told it in this session.

use std::collections::{BTreeMap, BTreeSet};

use crate::fact::{Origin, ReportedRelease};
use crate::id::{PodUid, VlanId};
use crate::message::{Change, FromAgent};
use crate::time::Moment;
use crate::view::{Blind, Link, LinkKind, Links, Snapshot, Suspect, View};

use super::{Action, Witness};

/// State of one session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Told {
    pub(super) origin: Origin,
    /// The coordinator has told every branch in the node's books.
    pub(super) owned_known: bool,
    links: Option<Result<BTreeMap<u32, Link>, Blind>>,
    cgroups: Option<Result<BTreeSet<PodUid>, Blind>>,
    /// Changes of a MAC that are not answered yet.
    pub(super) macs: super::mac::Open,
}

impl Told {
    pub(super) fn new(origin: Origin) -> Self {
        Self { origin, owned_known: false, links: None, cgroups: None, macs: BTreeMap::new() }
    }

    /// The next look tells the links in full.
    pub(super) fn forget_links(&mut self) {
        self.links = None;
    }
}

impl Witness {
    pub(super) fn send(&self, out: &mut Vec<Action>, message: impl FnOnce() -> FromAgent) {
        if self.session.is_some() {
            out.push(Action::Send(message()));
        }
    }

    /// Every view as it is, after the greeting or when the coordinator lost the thread.
    pub(super) fn send_everything(&mut self, now: Moment, out: &mut Vec<Action>) {
        let pods = match (&self.pods, &self.pods_rv) {
            (View::Valid { value, .. }, Some(rv)) => {
                let mut snapshot = Snapshot::begin();
                for pod in value.values() {
                    snapshot.add(pod.clone());
                }
                Ok(snapshot.close(rv.clone()))
            }
            (View::Unknown(why), _) => Err(*why),
            (View::Valid { .. }, None) => Err(Blind::NotRead),
        };
        self.send(out, || FromAgent::Pods(pods));
        let used = self.vlans_used(now);
        self.send(out, || FromAgent::VlansUsed(used));
        if let Some(session) = &mut self.session {
            session.links = None;
            session.cgroups = None;
        }
        self.send_look_changes(out);
    }

    /// Ages of the last use of each VLAN; `None` if the record does not reach back far enough.
    fn vlans_used(&self, now: Moment) -> Option<BTreeMap<VlanId, std::time::Duration>> {
        let reaches =
            self.history_whole || now.has_passed(self.history_since, self.timing.vlan_rest_unseen);
        let owned = self.owned_vlans().into_iter().map(|vlan| (vlan, std::time::Duration::ZERO));
        let last = self.vlans.iter().map(|(vlan, last)| (*vlan, now.since(last.at)));
        reaches.then(|| last.chain(owned).collect())
    }

    /// The links that the coordinator needs: those of branches, 802.1q links and the trunk.
    fn reportable(&self, links: &Links) -> BTreeMap<u32, Link> {
        let owned = |l: &Link| l.mac.is_some_and(|mac| self.owned.values().any(|b| b.mac == mac));
        let wanted = |l: &&Link| {
            l.branch_vlan().is_some()
                || matches!(l.kind, LinkKind::Vlan(_))
                || (l.mac.is_some() && l.mac == self.trunk)
                || owned(l)
        };
        links.0.iter().filter(wanted).map(|l| (l.index, l.clone())).collect()
    }

    /// Sends what the last look changed, as a delta where the view stays valid.
    pub(super) fn send_look_changes(&mut self, out: &mut Vec<Action>) {
        let (links, cgroups) = match &self.look {
            None => (Err(Blind::NotRead), Err(Blind::NotRead)),
            Some(look) => (
                look.links.as_ref().map(|l| self.reportable(l)).map_err(|b| *b),
                look.cgroups.clone(),
            ),
        };
        let Some(session) = &mut self.session else {
            return;
        };
        let message = match (&session.links, &links) {
            (Some(told), now) if told == now => None,
            (Some(Ok(told)), Ok(now)) => Some(FromAgent::Change(Change::Links {
                added: now
                    .iter()
                    .filter(|(i, l)| told.get(i) != Some(l))
                    .map(|(_, l)| l.clone())
                    .collect(),
                removed: told
                    .iter()
                    .filter(|(i, l)| now.get(i) != Some(l))
                    .map(|(i, _)| *i)
                    .collect(),
            })),
            (_, now) => Some(FromAgent::Links(
                now.as_ref().map(|l| Links(l.values().cloned().collect())).map_err(|b| *b),
            )),
        };
        out.extend(message.map(Action::Send));
        let message = match (&session.cgroups, &cgroups) {
            (Some(told), now) if told == now => None,
            (Some(Ok(told)), Ok(now)) => Some(FromAgent::Change(Change::Cgroups {
                added: now.difference(told).cloned().collect(),
                removed: told.difference(now).cloned().collect(),
            })),
            (_, now) => Some(FromAgent::Cgroups(now.clone())),
        };
        out.extend(message.map(Action::Send));
        session.links = Some(links);
        session.cgroups = Some(cgroups);
    }

    /// Sends suspects and statements that are new or due again.
    pub(super) fn repeat(&mut self, now: Moment, out: &mut Vec<Action>) {
        let Some(session) = &self.session else { return };
        if !session.owned_known {
            return;
        }
        let origin = session.origin.clone();
        if let View::Valid { value: pods, .. } = &self.pods {
            let missing = self.owned.values().map(|b| &b.pod);
            let missing =
                missing.filter(|p| !pods.contains_key(&p.uid) && !self.cases.contains_key(&p.uid));
            for pod in missing.cloned().collect::<BTreeSet<_>>() {
                let due = self
                    .suspects
                    .get(&pod.uid)
                    .is_none_or(|at| now.has_passed(*at, self.timing.repeat));
                if due {
                    self.suspects.insert(pod.uid.clone(), now);
                    out.push(Action::Send(FromAgent::Suspect(Suspect::reported(pod))));
                }
            }
        }
        let counts: BTreeMap<PodUid, usize> =
            self.cases.keys().map(|uid| (uid.clone(), self.branches_of(uid).count())).collect();
        for (uid, case) in &mut self.cases {
            let branches = counts.get(uid).copied().unwrap_or_default();
            if let Some(facts) = case.report(branches, &self.timing, now) {
                out.push(Action::Send(FromAgent::Release(ReportedRelease::received(
                    facts,
                    origin.clone(),
                ))));
            }
        }
    }
}
