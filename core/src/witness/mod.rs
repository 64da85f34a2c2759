//! What an agent concludes from what it sees of its node (design §4.2).
//!
//! The agent states facts, never verdicts. It opens a [`case`](case::Case) for a pod that is over, as a watch DELETED
//! event, a terminal phase or the coordinator's live GET tells. Each [`Look`] at the node then either adds evidence,
//! withdraws it, or, when it is not valid, does nothing at all:
//!
//! * **way (a)**: the pod's cgroup was seen under this boot and kubelet start, and is gone in a look after the pod was
//!   over;
//! * **way (b)**: the cgroup was never seen under this kubelet start (the agent was away, the pod never started, the
//!   kubelet restarted); then five minutes of valid looks without cgroup and link, at most ten seconds apart.
//!
//! After either, a link of the branch must be absent. A look is valid only where it proves that it looks at the right
//! place: the kubelet answers before and after, the agent's own pod is among the cgroups, the trunk's MAC among the
//! links. A reboot or kubelet start withdraws both local facts, and only way (b) is left for that pod.
//!
//! A pod that is missing from a complete list is only suspect. The coordinator is told and asks the API server; its
//! `Gone` opens the case, its `Alive` makes this agent's view stale.
//!
//! A cgroup that the first look after a kubelet start shows may be left over from before it, and counts as seen only later
//! ([`leftover`]).
//!
//! A short-lived pod's cgroup may come and go between two looks. inotify tells of it ([`Sighting::CgroupAppeared`]); it
//! counts as seen once the next look shows the kubelet start of the look before.

mod case;
mod leftover;
mod looks;
pub mod mac;
mod report;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use crate::fact::{CgroupSeen, Origin, Over, PodEnded, PodGone};
use crate::id::{BootId, EniId, KubeletStart, MacAddress, PodRef, PodUid, ResourceVersion, VlanId};
use crate::lock::{self, Lock};
use crate::message::{Ack, Change, FromAgent, Heartbeat, MacOutcome, OwnedBranch, SetMac, ToAgent};
use crate::time::{Moment, Timing};
use crate::view::{Blind, Complete, Look, Pod, Snapshot, View};

use case::Case;
pub use case::CaseState;
use leftover::Leftovers;
use report::Told;

/// Cgroups that may be remembered beyond those that are there before it is asked which are still needed.
const FORGET_ABOVE: usize = 256;

/// Something the agent saw or was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sighting {
    /// A whole pod list.
    PodsListed(Snapshot<Complete>),
    /// The watch showed a pod added or changed.
    PodApplied(Pod),
    /// The watch showed DELETED with this UID.
    PodDeleted(PodRef),
    /// The pod view no longer says anything.
    PodsLost(Blind),
    /// inotify saw a pod cgroup appear.
    CgroupAppeared(PodUid),
    /// A look. Links and cgroups as they were read; whether they prove to be of this node is judged here.
    Look(Look),
    /// The coordinator accepted the session.
    Connected(Origin),
    /// The session ended.
    Disconnected,
    /// The coordinator asks for everything again (a hole in the sequence, or a digest that does not fit).
    Resync,
    /// The coordinator said something, in this session.
    Told(ToAgent),
    /// What became of an [`Action::SetMac`].
    MacSet {
        /// Where the request came from.
        origin: Origin,
        /// Its number.
        request: u64,
        /// What happened.
        outcome: MacOutcome,
    },
    /// Time passed.
    Tick,
}

/// What the agent does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send in the current session.
    Send(FromAgent),
    /// List the pods again.
    Relist,
    /// Look at once.
    LookNow,
    /// The journal changed ([`Witness::journal`]).
    Save,
    /// Look at the links, do what [`mac::plan_mac`] says, and report it ([`Sighting::MacSet`]). One at a time, in this
    /// order; what was not begun when the session ends is dropped.
    SetMac {
        /// Where the request came from; goes back in the sighting.
        origin: Origin,
        /// The request.
        set: SetMac,
        /// MAC of the node's trunk, by which the links prove to be this node's.
        trunk: MacAddress,
    },
    /// Drop the node's neighbour entries for these addresses.
    ClearNeighbours(Vec<IpAddr>),
}

/// What survives a restart of the agent within one boot.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Journal {
    /// The boot it is of; under another one it says nothing.
    pub boot: BootId,
    /// Pod cgroups that were seen, each with the kubelet start it was seen under.
    pub seen: BTreeMap<PodUid, KubeletStart>,
    /// Last use of each VLAN.
    pub vlans: BTreeMap<VlanId, LastUse>,
    /// Since when VLANs were recorded.
    pub since: Moment,
    /// The record reaches back to before the trunk existed.
    pub whole: bool,
}

/// When a VLAN was last used: its link was seen, or a branch of the books had it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LastUse {
    /// Moment (`CLOCK_BOOTTIME`, so comparable within the boot).
    pub at: Moment,
    /// It was in use when the journal was written, so that may have ended at any time since.
    pub present: bool,
}

/// The agent's books.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Witness {
    own_pod: PodUid,
    boot: BootId,
    timing: Timing,
    trunk: Option<MacAddress>,
    pods: View<BTreeMap<PodUid, Pod>>,
    pods_rv: Option<ResourceVersion>,
    session: Option<Told>,
    owned: BTreeMap<EniId, OwnedBranch>,
    seen: BTreeMap<PodUid, CgroupSeen>,
    leftovers: Leftovers,
    unplaced: BTreeMap<PodUid, KubeletStart>,
    look: Option<Look>,
    first_macs: Option<BTreeSet<MacAddress>>,
    cases: BTreeMap<PodUid, Case>,
    closed: BTreeSet<PodUid>,
    suspects: BTreeMap<PodUid, Moment>,
    vlans: BTreeMap<VlanId, LastUse>,
    history_since: Moment,
    history_whole: bool,
    barriers: Vec<(u64, BTreeSet<PodUid>, Moment)>,
}

impl Witness {
    /// Starts with what the journal holds, if it is of this boot.
    pub fn new(
        own_pod: PodUid,
        boot: BootId,
        journal: Option<Journal>,
        timing: Timing,
        now: Moment,
    ) -> Self {
        let journal = journal.filter(|j| j.boot == boot || !lock::holds(Lock::JournalOfThisBoot));
        let (seen, vlans, history_since, history_whole) = match journal {
            None => (BTreeMap::new(), BTreeMap::new(), now, false),
            Some(j) => {
                let seen = j
                    .seen
                    .into_iter()
                    .map(|(uid, start)| {
                        (uid.clone(), CgroupSeen { kubelet_uid: uid, boot: boot.clone(), start })
                    })
                    .collect();
                let vlans = j
                    .vlans
                    .into_iter()
                    .map(|(vlan, last)| {
                        (
                            vlan,
                            if last.present { LastUse { at: now, present: false } } else { last },
                        )
                    })
                    .collect();
                (seen, vlans, j.since, j.whole)
            }
        };
        Self {
            own_pod,
            boot,
            timing,
            trunk: None,
            pods: View::Unknown(Blind::NotRead),
            pods_rv: None,
            session: None,
            owned: BTreeMap::new(),
            seen,
            leftovers: Leftovers::default(),
            unplaced: BTreeMap::new(),
            look: None,
            first_macs: None,
            cases: BTreeMap::new(),
            closed: BTreeSet::new(),
            suspects: BTreeMap::new(),
            vlans,
            history_since,
            history_whole,
            barriers: Vec::new(),
        }
    }

    /// Takes in one sighting.
    pub fn step(&mut self, sighting: Sighting, now: Moment) -> Vec<Action> {
        let mut out = Vec::new();
        match sighting {
            Sighting::PodsListed(list) => self.on_list(list, now, &mut out),
            Sighting::PodApplied(pod) => self.on_applied(&pod, now, &mut out),
            Sighting::PodDeleted(pod) => self.on_deleted(&pod, now, &mut out),
            Sighting::PodsLost(why) => self.on_pods_lost(why, &mut out),
            Sighting::CgroupAppeared(uid) => self.on_cgroup(uid, &mut out),
            Sighting::Look(look) => self.on_look(look, &mut out),
            Sighting::Connected(origin) => self.on_connected(origin, now, &mut out),
            Sighting::Disconnected => self.session = None,
            Sighting::Resync => self.send_everything(now, &mut out),
            Sighting::Told(message) => self.on_told(message, now, &mut out),
            Sighting::MacSet { origin, request, outcome } => {
                self.on_mac_set(&origin, request, outcome, &mut out);
            }
            Sighting::Tick => {}
        }
        self.repeat(now, &mut out);
        out
    }

    /// The trunk's MAC, once told.
    pub fn trunk(&self) -> Option<MacAddress> {
        self.trunk
    }

    /// The state to be kept across a restart.
    pub fn journal(&self) -> Journal {
        Journal {
            boot: self.boot.clone(),
            seen: self.seen.iter().map(|(uid, seen)| (uid.clone(), seen.start)).collect(),
            vlans: self.vlans.clone(),
            since: self.history_since,
            whole: self.history_whole,
        }
    }

    /// How long the next look may be put off.
    pub fn next_look(&self) -> Duration {
        if !self.barriers.is_empty() {
            Duration::ZERO
        } else if self.cases.is_empty() && self.unplaced.is_empty() && !self.is_blind() {
            self.timing.look_gap / 2
        } else {
            self.timing.look_interval.min(self.timing.look_gap / 2)
        }
    }

    /// The last look did not see links or cgroups, although the node has a trunk: pods may be waiting for that.
    fn is_blind(&self) -> bool {
        self.trunk.is_some()
            && self.look.as_ref().is_none_or(|l| l.links.is_err() || l.cgroups.is_err())
    }

    /// The sign of life to be sent now.
    pub fn heartbeat(&self) -> Heartbeat {
        let look = self.look.as_ref();
        Heartbeat {
            boot: self.boot.clone(),
            kubelet: look.and_then(Look::kubelet),
            pods: self.pods.blind(),
            links: look.map_or(Some(Blind::NotRead), |l| l.links.as_ref().err().copied()),
            cgroups: look.map_or(Some(Blind::NotRead), |l| l.cgroups.as_ref().err().copied()),
        }
    }

    /// The open cases, for status.
    pub fn cases(&self) -> impl Iterator<Item = (&PodRef, CaseState)> {
        self.cases
            .values()
            .map(|case| (case.pod(), case.state(self.branches_of(&case.pod().uid).count())))
    }

    /// How many pods the view holds, or why there is none.
    pub fn pods(&self) -> Result<usize, Blind> {
        match &self.pods {
            View::Valid { value, .. } => Ok(value.len()),
            View::Unknown(why) => Err(*why),
        }
    }

    /// How many branches the coordinator holds for this node.
    pub fn owned(&self) -> usize {
        self.owned.len()
    }

    fn branches_of<'a>(&'a self, uid: &'a PodUid) -> impl Iterator<Item = &'a OwnedBranch> {
        self.owned.values().filter(move |b| b.pod.uid == *uid)
    }

    fn owns(&self, uid: &PodUid) -> bool {
        self.branches_of(uid).next().is_some()
    }

    // === pods ===

    fn on_list(&mut self, list: Snapshot<Complete>, now: Moment, out: &mut Vec<Action>) {
        self.pods_rv = list.rv().cloned();
        self.send(out, || FromAgent::Pods(Ok(list.clone())));
        self.pods = View::Valid { since: now, value: list.into_pods() };
        let ended: Vec<Pod> = self
            .pods
            .known()
            .into_iter()
            .flat_map(BTreeMap::values)
            .filter(|p| p.phase.is_ended())
            .cloned()
            .collect();
        for pod in &ended {
            self.consider_ended(pod, now, out);
        }
        if !lock::holds(Lock::AbsenceIsSuspect) {
            self.believe_absence(now, out);
        }
        self.forget_what_left();
    }

    /// The mistake that this project exists for: a pod that a list does not contain is taken for gone.
    fn believe_absence(&mut self, now: Moment, out: &mut Vec<Action>) {
        let owned: Vec<OwnedBranch> = self.owned.values().cloned().collect();
        for branch in owned {
            let uid = branch.pod.uid.clone();
            if self.pods.known().is_some_and(|pods| !pods.contains_key(&uid)) {
                let over = Over::Gone(PodGone::from_coordinator(uid, now));
                self.open_case(branch.pod, over, branch.kubelet_uid, out);
            }
        }
    }

    fn on_applied(&mut self, pod: &Pod, now: Moment, out: &mut Vec<Action>) {
        let Some(pods) = self.pods.known_mut() else {
            return;
        };
        pods.insert(pod.pod.uid.clone(), pod.clone());
        self.suspects.remove(&pod.pod.uid);
        self.send(out, || FromAgent::Change(Change::PodApplied(pod.clone())));
        self.consider_ended(pod, now, out);
    }

    fn on_deleted(&mut self, pod: &PodRef, now: Moment, out: &mut Vec<Action>) {
        let known = self.pods.known_mut().and_then(|pods| pods.remove(&pod.uid));
        self.send(out, || FromAgent::Change(Change::PodDeleted(pod.clone())));
        self.closed.remove(&pod.uid);
        let wanted = known.as_ref().is_some_and(|p| p.requested > 0 || p.annotation.is_some());
        if wanted || self.owns(&pod.uid) {
            let over = Over::Gone(PodGone::from_watch_deleted(pod.uid.clone(), now));
            let kubelet_uid = match &known {
                Some(pod) => pod.kubelet_uid().cloned(),
                None => self.kubelet_uid_of(&pod.uid),
            };
            self.open_case(pod.clone(), over, kubelet_uid, out);
        }
    }

    fn on_pods_lost(&mut self, why: Blind, out: &mut Vec<Action>) {
        self.pods = View::Unknown(why);
        self.send(out, || FromAgent::Pods(Err(why)));
    }

    fn consider_ended(&mut self, pod: &Pod, now: Moment, out: &mut Vec<Action>) {
        let uid = &pod.pod.uid;
        if (pod.requested == 0 && !self.owns(uid)) || self.closed.contains(uid) {
            return;
        }
        if let Some(ended) = PodEnded::from_phase(uid, pod.phase, now) {
            self.open_case(pod.pod.clone(), Over::Ended(ended), pod.kubelet_uid().cloned(), out);
        }
    }

    fn open_case(
        &mut self,
        pod: PodRef,
        over: Over,
        kubelet_uid: Option<PodUid>,
        out: &mut Vec<Action>,
    ) {
        self.suspects.remove(&pod.uid);
        if !self.cases.contains_key(&pod.uid) {
            self.cases.insert(pod.uid.clone(), Case::open(pod, over, kubelet_uid));
            out.push(Action::LookNow);
        }
    }

    fn kubelet_uid_of(&self, uid: &PodUid) -> Option<PodUid> {
        match self.pods.known().and_then(|pods| pods.get(uid)) {
            Some(pod) => pod.kubelet_uid().cloned(),
            None => match (self.branches_of(uid).next(), self.cases.get(uid)) {
                (Some(branch), _) => branch.kubelet_uid.clone(),
                (None, Some(case)) => case.kubelet_uid().cloned(),
                (None, None) => None,
            },
        }
    }

    /// Drops what only pods need that are neither in the view nor owned nor in a case, so that memory follows the node.
    fn forget_what_left(&mut self) {
        let Some(pods) = self.pods.known() else {
            return;
        };
        // What the coordinator owns is not known yet: keep what it may ask for, within bounds.
        let owned_known = self.session.as_ref().is_some_and(|s| s.owned_known);
        if !owned_known && self.seen.len() < 16 * FORGET_ABOVE {
            return;
        }
        let mut needed: BTreeSet<&PodUid> = pods.values().filter_map(Pod::kubelet_uid).collect();
        needed.extend(self.owned.values().filter_map(|b| b.kubelet_uid.as_ref()));
        needed.extend(self.cases.values().filter_map(Case::kubelet_uid));
        if let Some(Ok(cgroups)) = self.look.as_ref().map(|l| &l.cgroups) {
            needed.extend(cgroups);
        }
        self.seen.retain(|uid, _| needed.contains(uid));
        self.closed.retain(|uid| pods.contains_key(uid));
        self.suspects.retain(|uid, _| self.owned.values().any(|b| b.pod.uid == *uid));
    }

    // === the coordinator ===

    fn on_connected(&mut self, origin: Origin, now: Moment, out: &mut Vec<Action>) {
        self.session = Some(Told::new(origin));
        self.suspects.clear();
        self.barriers.clear();
        for case in self.cases.values_mut() {
            case.not_reported();
        }
        self.send_everything(now, out);
    }

    fn on_told(&mut self, message: ToAgent, now: Moment, out: &mut Vec<Action>) {
        match message {
            ToAgent::Trunk(mac) => {
                if self.trunk != mac {
                    self.trunk = mac;
                    // The coordinator knows no links of a trunk that it withdrew, whatever it was told before.
                    if let Some(session) = &mut self.session {
                        session.forget_links();
                    }
                    out.push(Action::LookNow);
                }
            }
            ToAgent::OwnedAll(branches) => {
                let before = self.owned_vlans();
                self.owned = branches.into_iter().map(|b| (b.eni.clone(), b)).collect();
                self.record_owned(&before, now, out);
                if let Some(session) = &mut self.session {
                    session.owned_known = true;
                }
                self.owned_changed(now, out);
            }
            ToAgent::OwnedChanged { added, removed } => {
                let before = self.owned_vlans();
                for eni in &removed {
                    self.owned.remove(eni);
                }
                self.owned.extend(added.into_iter().map(|b| (b.eni.clone(), b)));
                self.record_owned(&before, now, out);
                self.owned_changed(now, out);
            }
            ToAgent::Gone(uid) => self.on_gone(&uid, now, out),
            ToAgent::Alive(uid) => {
                // Said about an older view. This one shows the pod: nothing contradicts it, and to list again would only
                // hold up whoever waits for a valid view.
                if self.pods.known().is_some_and(|pods| pods.contains_key(&uid)) {
                    return;
                }
                // The suspicion keeps its time: a replica that lags would otherwise be listed in a tight loop.
                self.cases.remove(&uid);
                self.on_pods_lost(Blind::Stale, out);
                out.push(Action::Relist);
            }
            ToAgent::Ack(uid, Ack::Deleted) => {
                if self.cases.remove(&uid).is_some()
                    && self.pods.known().is_some_and(|p| p.contains_key(&uid))
                {
                    self.closed.insert(uid);
                }
            }
            ToAgent::Ack(..) => {}
            ToAgent::Barrier { question, uids } => {
                self.barriers.push((question, uids, now));
                out.push(Action::LookNow);
            }
            ToAgent::SetMac(set) => self.on_set_mac(set, out),
            ToAgent::ClearNeighbours { addresses } => {
                out.push(Action::ClearNeighbours(addresses));
            }
        }
    }

    /// New branches may belong to pods that are over already.
    fn owned_changed(&mut self, now: Moment, out: &mut Vec<Action>) {
        for branch in self.owned.values() {
            if self.closed.remove(&branch.pod.uid)
                && let Some(case) = self.cases.get_mut(&branch.pod.uid)
            {
                case.not_reported();
            }
        }
        let pods = self.pods.known().cloned().unwrap_or_default();
        let owners: BTreeSet<PodUid> = self.owned.values().map(|b| b.pod.uid.clone()).collect();
        for pod in owners.iter().filter_map(|uid| pods.get(uid)) {
            self.consider_ended(pod, now, out);
        }
        self.forget_what_left();
    }

    fn on_gone(&mut self, uid: &PodUid, now: Moment, out: &mut Vec<Action>) {
        let Some(branch) = self.branches_of(uid).next() else {
            return;
        };
        let (pod, kubelet_uid) = (branch.pod.clone(), branch.kubelet_uid.clone());
        if let Some(pods) = self.pods.known_mut() {
            pods.remove(uid);
        }
        self.open_case(
            pod,
            Over::Gone(PodGone::from_coordinator(uid.clone(), now)),
            kubelet_uid,
            out,
        );
    }
}
