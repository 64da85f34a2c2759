//! The agent's side: the real witness, what it sees, and its session.

use std::collections::{BTreeSet, VecDeque};

use trunkline_core::fact::Origin;
use trunkline_core::id::{Epoch, KubeletStart, ResourceVersion, TermNonce};
use trunkline_core::message::FromAgent;
use trunkline_core::node::event::{Event, SessionOpened};
use trunkline_core::view::{Kubelet, Link, LinkKind, Links, Look, Pod, PodPhase, Snapshot};
use trunkline_core::witness::{Action, Sighting, Witness};

use super::{Agent, Phase, Setup, World, ids, timing};

impl Agent {
    pub(super) fn new() -> Self {
        Self {
            witness: None,
            journal: None,
            looking: None,
            session: 0,
            connected: false,
            up: VecDeque::new(),
            down: VecDeque::new(),
            old_release: None,
        }
    }
}

impl World {
    /// A pod as the API shows it.
    pub(super) fn pod(&self, setup: &Setup, n: u8) -> Pod {
        let plan = setup.pods[usize::from(n)];
        let api = &self.api[usize::from(n)];
        Pod {
            pod: ids::pod_ref(n, plan.name),
            labels: std::collections::BTreeMap::new(),
            account: None,
            phase: if api.phase == Phase::Ended { PodPhase::Failed } else { PodPhase::Running },
            deleting: false,
            mirror: plan.hash.is_some(),
            config_hash: plan.hash.map(ids::hash),
            requested: 1,
            odd_request: None,
            annotation: api.annotation.clone(),
        }
    }

    /// A pod whose annotation names every VLAN but the first few, so that these worlds have no more.
    fn bystander(vlans: u8) -> Pod {
        Pod {
            pod: ids::pod_ref(ids::OWN, ids::OWN),
            labels: std::collections::BTreeMap::new(),
            account: None,
            phase: PodPhase::Running,
            deleting: false,
            mirror: false,
            config_hash: None,
            requested: 0,
            odd_request: None,
            annotation: Some(format!("all-but-{vlans}")),
        }
    }

    /// A list of the pods; what the API truly has, or nothing at all.
    pub(super) fn list(&mut self, setup: &Setup, empty: bool) {
        let mut list = Snapshot::begin();
        if setup.vlans > 0 && !empty {
            list.add(Self::bystander(setup.vlans));
        }
        for n in (0..self.api.len()).filter_map(|n| u8::try_from(n).ok()) {
            if !empty && matches!(self.api[usize::from(n)].phase, Phase::Alive | Phase::Ended) {
                list.add(self.pod(setup, n));
            }
        }
        let list = list.close(ResourceVersion::new("5").unwrap());
        self.sees(Sighting::PodsListed(list), setup);
    }

    /// The watch shows what became of a pod.
    pub(super) fn watch_shows(&mut self, setup: &Setup, n: u8) {
        let pod = self.pod(setup, n);
        let sighting = match self.api[usize::from(n)].phase {
            Phase::Gone => Sighting::PodDeleted(pod.pod),
            _ => Sighting::PodApplied(pod),
        };
        self.sees(sighting, setup);
    }

    pub(super) fn sees(&mut self, sighting: Sighting, setup: &Setup) {
        let now = self.now();
        let Some(witness) = &mut self.agent.witness else { return };
        let actions = witness.step(sighting, now);
        for action in actions {
            match action {
                // The same statement twice in a row says nothing new.
                Action::Send(message) if self.agent.up.contains(&message) => {}
                Action::Send(message) if self.agent.connected => self.agent.up.push_back(message),
                Action::Relist => self.list(setup, false),
                Action::Save => {
                    self.agent.journal = self.agent.witness.as_ref().map(Witness::journal);
                }
                // The links of these worlds keep their MAC.
                Action::Send(_)
                | Action::LookNow
                | Action::SetMac { .. }
                | Action::ClearNeighbours(_) => {}
            }
        }
    }

    pub(super) fn agent_starts(&mut self, setup: &Setup) {
        let now = self.now();
        let boot = ids::boot(self.host.boot);
        let journal = self.agent.journal.clone();
        self.agent.witness = Some(Witness::new(ids::uid(ids::OWN), boot, journal, timing(), now));
        self.list(setup, false);
    }

    /// The process ends; its journal stays.
    pub(super) fn agent_dies(&mut self) {
        self.disconnect();
        self.agent.witness = None;
        self.agent.looking = None;
    }

    /// A session begins: the agent greets, the coordinator accepts.
    pub(super) fn connect(&mut self, setup: &Setup) {
        let Some(witness) = &self.agent.witness else { return };
        let kubelet = witness.heartbeat().kubelet;
        self.agent.session += 1;
        self.agent.connected = true;
        let origin = self.origin();
        let boot = ids::boot(self.host.boot);
        let opened = SessionOpened { origin: origin.clone(), boot, kubelet };
        self.step(setup, Event::SessionOpened(opened));
        self.sees(Sighting::Connected(origin), setup);
    }

    pub(super) fn origin(&self) -> Origin {
        Origin {
            session: ids::session(self.agent.session),
            epoch: Epoch(u64::from(self.leader.epoch)),
            nonce: TermNonce(u64::from(self.leader.epoch)),
        }
    }

    /// The session ends; what was under way is lost, but for a statement that may still be somewhere.
    pub(super) fn disconnect(&mut self) {
        let now = self.now();
        let released = |m: &&FromAgent| matches!(m, FromAgent::Release(_));
        if let Some(release) = self.agent.up.iter().rfind(released) {
            self.agent.old_release = Some(release.clone());
        }
        self.agent.connected = false;
        self.agent.up.clear();
        self.agent.down.clear();
        if let Some(witness) = &mut self.agent.witness {
            witness.step(Sighting::Disconnected, now);
        }
    }

    pub(super) fn heartbeat(&mut self) {
        if let (Some(witness), true) = (&self.agent.witness, self.agent.connected) {
            let beat = FromAgent::Heartbeat(witness.heartbeat());
            if !self.agent.up.contains(&beat) {
                self.agent.up.push_back(beat);
            }
        }
    }

    fn kubelet(&self) -> Kubelet {
        if self.host.kubelet {
            Kubelet::Alive(KubeletStart(u64::from(self.host.start)))
        } else {
            Kubelet::Silent
        }
    }

    /// The first half of a look: kubelet, cgroups.
    pub(super) fn look_begins(&self) -> Look {
        let cgroup = |(n, t): (&u8, &super::Tenant)| t.cgroup.then(|| ids::uid(*n));
        let mut cgroups: BTreeSet<_> = self.host.tenants.iter().filter_map(cgroup).collect();
        if self.host.wrong_cgroups {
            cgroups.clear();
        } else {
            cgroups.insert(ids::uid(ids::OWN));
        }
        Look {
            at: self.now(),
            boot: ids::boot(self.host.boot),
            kubelet_before: self.kubelet(),
            cgroups: Ok(cgroups),
            links: Ok(Links::default()),
            kubelet_after: Kubelet::Silent,
        }
    }

    /// The second half: links, kubelet. What it shows goes to the witness.
    pub(super) fn look_ends(&mut self, mut look: Look, setup: &Setup) {
        let link = |index: u32, name: String, mac: u8| Link {
            index,
            name,
            kind: LinkKind::Other("macvlan".into()),
            mac: Some(ids::mac(mac)),
            parent: None,
        };
        let mut links = vec![];
        if !self.host.wrong_links {
            links.push(link(1, "eth1".into(), ids::OWN));
            let held = self.host.tenants.iter().filter_map(|(n, t)| {
                t.link.map(|(vlan, eni)| link(10 + u32::from(*n), vlan.link_name(), eni))
            });
            links.extend(held);
            for (vlan, eni) in &self.host.strays {
                links.push(link(100 + u32::from(vlan.get()), vlan.link_name(), *eni));
            }
        }
        look.links = Ok(Links(links));
        look.kubelet_after = self.kubelet();
        let sound = look.kubelet_before == look.kubelet_after && self.host.kubelet;
        let before = self.agent.up.len();
        self.sees(Sighting::Look(look), setup);
        // The reply to a release's barrier: the last look before its call.
        let sealed = self.agent.up.iter().skip(before).any(|m| match m {
            FromAgent::Barrier(reply) => {
                reply.start.is_some() && reply.present.values().any(|p| *p == Some(false))
            }
            _ => false,
        });
        if sealed && sound {
            self.notes.sealed = Some(self.tick);
        }
    }

    pub(super) fn look(&mut self, setup: &Setup) {
        if self.agent.witness.is_some() {
            let look = self.look_begins();
            self.look_ends(look, setup);
        }
    }
}
