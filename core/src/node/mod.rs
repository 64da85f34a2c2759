//! The books of one node, and what is done for its pods.
//!
//! [`Node`] is keyed by instance id and lives for one term of leadership. It starts knowing nothing: without this term's
//! EC2 inventory, a trunk and closed snapshots of the agent's current session it hands out nothing, and without the
//! agent's facts it takes nothing away. [`Node::step`] takes one [`Event`] and returns [`Effect`]s; adapters carry them
//! out and report back with [`Event::Answer`].
//!
//! Per pod UID there is one [`Holding`](holding::Holding): the branches made for that UID and what is under way for it.
//! At most one call is open per holding, so operations on one UID are serial while different UIDs run side by side. After
//! every event each holding is looked at again and decides its next step from what is known *now*; nothing is remembered
//! as "to do". That makes lost, late and repeated answers harmless: a step is asked again, with the same client token,
//! until it is known to be done (design §4.1, "no undo while the UID lives").
//!
//! * [`allocate`] gives: reserve, verify by a live GET, groups, create, associate, annotate; [`answers`] says what the
//!   answers mean.
//! * [`release`] takes: the agent's facts, an own GET, a barrier, the verdict, disassociate, cooldown, GET and verdict
//!   again, delete.
//! * [`agent`] takes in what the agent's session brings.
//! * [`noticing`] notices that a live pod's branch may be lost, [`ghost`] that one was lost earlier; [`heal`] says how it is
//!   repaired, [`remake`] and [`mend_link`] take the steps, [`mended`] says what the answers mean.
//! * [`adopt`] takes over what the inventory shows.
//! * [`remains`] clears away what a dead instance left.
//! * [`named`] says what a pod's annotation means.
//! * [`audit`] compares EC2, the API server and the node with the books, and takes in an operator's order to repair.
//! * [`notices`] tells of odd requests and of waits that last.

mod adopt;
mod agent;
mod allocate;
mod answers;
pub mod audit;
mod care;
pub mod event;
mod ghost;
mod heal;
mod holding;
mod mend_link;
mod mended;
mod named;
mod notices;
mod noticing;
mod release;
mod released;
mod remains;
mod remake;
pub mod report;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::annotation::AnnotationReader;
use crate::dead::InstanceDead;
use crate::eni::{Ec2Call, EniRecord, SearchBy};
use crate::fact::{Origin, Over, PodEnded, PodGone};
use crate::fuse::{FuseState, Vetoes};
use crate::id::{BootId, EniId, KubeletStart, PodRef, PodUid, VlanId};
use crate::lock::{self, Lock};
use crate::message::{Ack, OwnedBranch, ToAgent};
use crate::pace::Pace;
use crate::time::{Moment, Timing};
use crate::verdict::{CurrentSession, Keep, Term};
use crate::view::{Blind, Links, Pod, View};
use crate::vlan::VlanBooks;
use crate::wait::{Step, Wait};

use event::{Answer, Effect, Event, Lookup, OpId, Settings, Trunk};
use holding::Holding;
use remains::Remain;

/// The books of one node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Node {
    term: Term,
    began: Moment,
    timing: Timing,
    settings: Settings,
    reader: AnnotationReader,
    trunk: Result<Trunk, String>,
    /// This term's inventory was whole.
    inventory: bool,
    /// One was read since calls of an earlier term have ended and show.
    settled: bool,
    session: Option<Session>,
    /// The pods of the last valid view, and whether it still is valid.
    pods: BTreeMap<PodUid, Pod>,
    pods_blind: Option<Blind>,
    links: View<Links>,
    cgroups: View<BTreeSet<PodUid>>,
    /// VLANs that annotations of pods in the view name.
    annotated: BTreeSet<VlanId>,
    /// VLANs that annotations of pods name which ended and gave their branches back.
    annotated_past: BTreeSet<VlanId>,
    holdings: BTreeMap<PodUid, Holding>,
    /// ENIs of this trunk that cannot be told to belong to a UID; kept, and so is the VLAN that each is known to have.
    strangers: BTreeMap<EniId, (EniRecord, Option<VlanId>)>,
    /// ENIs that were deleted of late: a list that lags may still show them.
    deleted: BTreeMap<EniId, Moment>,
    vlans: VlanBooks,
    open: BTreeMap<OpId, Asked>,
    next_op: u64,
    arrivals: u64,
    pace: Pace,
    vetoes: Vetoes,
    fuse: FuseState,
    /// The instance is dead.
    dead: Option<InstanceDead>,
    /// What it left in EC2.
    remains: BTreeMap<EniId, Remain>,
    told_strangers: BTreeSet<EniId>,
    /// Pods of the view with an odd request that a person was told of, and when.
    told_odd: BTreeMap<PodUid, Moment>,
}

/// What an open call was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Asked {
    uid: PodUid,
    what: Ask,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Ask {
    /// A step of the holding's allocation or release; the index where it is about one branch.
    Holding(Step, u8),
    /// `DescribeNetworkInterfaces` of an ENI that the pod's annotation names.
    Named(EniId),
    /// A GET for an agent's suspicion.
    Suspect(PodRef),
    /// Our own live GET before a Disassociate, or (true) before a Delete.
    Confirm(bool),
    /// The tags that bind a static pod's branch to a new mirror: the holding that has it so far, and its index there.
    TakeOver(PodUid, u8),
    /// A step of a repair, and the index of its branch.
    Heal(HealAsk, u8),
}

/// What a repair asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum HealAsk {
    /// The ENI by its id.
    Check,
    /// The association by its id.
    Association,
    /// Who has the address or MAC.
    Search(SearchBy),
    /// Whether the cluster allows repairs.
    Permission,
    /// The pod's eviction.
    Evict,
}

/// The agent's session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Session {
    origin: Origin,
    boot: BootId,
    kubelet: Option<KubeletStart>,
    /// The agent told which VLANs were used of late.
    history: bool,
    /// It had no record to tell of, and the trunk was not known yet: whether that matters, the trunk decides.
    unrecorded: bool,
    /// A barrier confirmed the links since the last re-list.
    links_confirmed: bool,
    link_barrier: Option<(u64, Moment)>,
    /// What the agent was told to own, once told.
    owned: Option<BTreeMap<EniId, OwnedBranch>>,
}

impl Node {
    /// Empty books for a term. `reader` reads annotations; `began` is when the term began.
    pub fn new(
        term: Term,
        settings: Settings,
        reader: AnnotationReader,
        timing: Timing,
        began: Moment,
    ) -> Self {
        let unseen = settings.vlan_rest.max(timing.vlan_rest_unseen);
        Self {
            term,
            began,
            timing,
            settings,
            reader,
            trunk: Err("the node's set-up has not begun".into()),
            inventory: false,
            settled: false,
            session: None,
            pods: BTreeMap::new(),
            pods_blind: Some(Blind::Disconnected),
            links: View::Unknown(Blind::Disconnected),
            cgroups: View::Unknown(Blind::Disconnected),
            annotated: BTreeSet::new(),
            annotated_past: BTreeSet::new(),
            holdings: BTreeMap::new(),
            strangers: BTreeMap::new(),
            deleted: BTreeMap::new(),
            vlans: VlanBooks::new(settings.vlan_rest, unseen),
            open: BTreeMap::new(),
            next_op: 0,
            arrivals: 0,
            pace: Pace::of_node(timing.pace_window),
            vetoes: Vetoes::new(timing.fuse_window),
            fuse: FuseState::Intact,
            dead: None,
            remains: BTreeMap::new(),
            told_strangers: BTreeSet::new(),
            told_odd: BTreeMap::new(),
        }
    }

    /// Takes in one event.
    pub fn step(&mut self, event: Event, now: Moment) -> Vec<Effect> {
        let mut out = Vec::new();
        self.vlans.tick(now, self.views_valid());
        match event {
            Event::TrunkReady(trunk) => self.on_trunk(trunk, &mut out),
            Event::TrunkDown(why) => {
                self.trunk = Err(why);
                self.links_lost(Blind::TrunkUnknown);
                self.send(ToAgent::Trunk(None), &mut out);
            }
            Event::Inventory { began, enis } => self.on_inventory(began, enis, now, &mut out),
            Event::SessionOpened(opened) => self.on_session(opened, &mut out),
            Event::SessionClosed => self.on_session_closed(),
            Event::Agent(message) => self.on_agent(message, now, &mut out),
            Event::Answer(op, answer) => self.on_answer(op, answer, now, &mut out),
            Event::Dead(dead) => self.on_dead(dead),
            Event::Settings(settings) => self.on_settings(settings),
            Event::Fuse(state) => self.on_fuse(state),
            Event::Repair(enis) => self.on_repair(&enis, now),
            Event::Tick => {}
        }
        self.vlans.tick(now, self.views_valid());
        if self.dead.is_some() {
            self.clear_remains(now, &mut out);
        } else {
            self.advance(now, &mut out);
        }
        self.tell_long_waits(now, &mut out);
        self.tell_owned(&mut out);
        out.extend(self.next_wake(now).map(Effect::Wake));
        out
    }

    // === events ===

    fn on_trunk(&mut self, trunk: Trunk, out: &mut Vec<Effect>) {
        let told = self.trunk.as_ref().ok().map(|t| t.mac) == Some(trunk.mac);
        if let Some(session) = &mut self.session {
            session.history |= trunk.fresh;
            if std::mem::take(&mut session.unrecorded) && !trunk.fresh {
                self.vlans.rest_all_unheld();
            }
        }
        let mac = trunk.mac;
        if self.trunk.as_ref().ok().map(|old| &old.eni) != Some(&trunk.eni) {
            // Which ENIs are of this trunk has to be asked again.
            self.holdings.values_mut().for_each(|h| h.named.clear());
        }
        self.trunk = Ok(trunk);
        if !told {
            self.send(ToAgent::Trunk(Some(mac)), out);
        }
    }

    fn on_settings(&mut self, settings: Settings) {
        self.settings = settings;
        self.vlans
            .set_rest(settings.vlan_rest, settings.vlan_rest.max(self.timing.vlan_rest_unseen));
    }

    /// A person who opens this node has looked at it; what was counted before is settled.
    fn on_fuse(&mut self, state: FuseState) {
        if self.fuse == FuseState::NodeBlown && state != FuseState::NodeBlown {
            self.vetoes.clear();
        }
        self.fuse = state;
    }

    fn on_answer(&mut self, op: OpId, answer: Answer, now: Moment, out: &mut Vec<Effect>) {
        let ec2 = if let Answer::Ec2(answer) = &answer { Some(answer) } else { None };
        if self.on_remain_answer(op, ec2, now, out) {
            return;
        }
        let Some(asked) = self.open.remove(&op) else {
            return;
        };
        match asked.what {
            Ask::Suspect(pod) => {
                if let Answer::Pod(lookup) = answer {
                    match over_from(&pod, &lookup, now) {
                        Some(Over::Gone(_)) => self.send(ToAgent::Gone(pod.uid), out),
                        Some(Over::Ended(_)) => self.send(ToAgent::Alive(pod.uid), out),
                        None if matches!(lookup, Lookup::Found(..)) => {
                            self.send(ToAgent::Alive(pod.uid), out);
                        }
                        None => {}
                    }
                }
            }
            what => {
                let holding = self.holdings.get_mut(&asked.uid);
                let Some(holding) = holding.filter(|h| h.call == Some(op)) else {
                    return;
                };
                holding.call = None;
                match what {
                    Ask::Named(eni) => self.on_named_answer(&asked.uid, &eni, answer, now),
                    Ask::Confirm(delete) => {
                        self.on_confirmed(&asked.uid, delete, answer, now, out);
                    }
                    Ask::TakeOver(donor, index) => {
                        self.on_taken_over(&asked.uid, &donor, index, answer, now, out);
                    }
                    Ask::Heal(ask, index) => {
                        self.on_heal_answer(&asked.uid, index, ask, answer, now, out);
                    }
                    Ask::Holding(step, index) => {
                        self.on_step_answer(&asked.uid, step, index, answer, now, out);
                    }
                    Ask::Suspect(_) => {}
                }
            }
        }
    }

    // === progress ===

    fn advance(&mut self, now: Moment, out: &mut Vec<Effect>) {
        self.deleted.retain(|_, at| !now.has_passed(*at, self.timing.ec2_list_window));
        self.vetoes.forget(now);
        self.drop_idle();
        loop {
            let used = self.used_slots();
            self.advance_all(now, out);
            if self.used_slots() >= used {
                break;
            }
            // A slot became free; those that were looked at before it may be waiting for one.
        }
    }

    /// Every holding decides its next step, in the order in which the pods came.
    fn advance_all(&mut self, now: Moment, out: &mut Vec<Effect>) {
        let mut order: Vec<(u64, PodUid)> =
            self.holdings.iter().map(|(uid, h)| (h.arrival, uid.clone())).collect();
        order.sort();
        let mut queue_closed = false;
        for (_, uid) in order {
            let Some(holding) = self.holdings.get(&uid) else {
                continue;
            };
            if !holding.is_free(now) {
                continue;
            }
            let requested = holding.requested;
            let outcome = if holding.release.is_some() || holding.is_cooling() {
                self.advance_release(&uid, now, out)
            } else {
                self.advance_allocation(&uid, queue_closed, now, out)
            };
            queue_closed |= match outcome {
                // One that no end of a pod can help must not hold up the others.
                Err(Wait::SlotsFull { limit, .. }) => {
                    requested.saturating_add(self.stranger_slots()) <= limit
                }
                Err(Wait::VlansResting) => true,
                _ => false,
            };
            if let Some(holding) = self.holdings.get_mut(&uid) {
                let wait = outcome.err();
                if holding.wait.as_ref().map(Wait::name) != wait.as_ref().map(Wait::name) {
                    holding.wait_since = now;
                    if let Some(Wait::Release(why)) = &wait {
                        out.push(Effect::Kept(*why));
                    }
                }
                holding.wait = wait;
            }
        }
    }

    /// Opens a step of a holding.
    fn open_step(&mut self, uid: &PodUid, step: Step, index: u8) -> OpId {
        let op = self.ask(uid.clone(), Ask::Holding(step, index));
        if let Some(holding) = self.holdings.get_mut(uid) {
            holding.call = Some(op);
        }
        op
    }

    fn call(
        &mut self,
        uid: &PodUid,
        step: Step,
        index: u8,
        call: Ec2Call,
        out: &mut Vec<Effect>,
    ) -> Wait {
        let op = self.open_step(uid, step, index);
        out.push(Effect::Call(op, call));
        Wait::Call(step)
    }

    fn ask(&mut self, uid: PodUid, what: Ask) -> OpId {
        self.next_op += 1;
        let op = OpId(self.next_op);
        self.open.insert(op, Asked { uid, what });
        op
    }

    fn send(&self, message: ToAgent, out: &mut Vec<Effect>) {
        if self.session.is_some() {
            out.push(Effect::Send(message));
        }
    }

    fn ack(&self, uid: &PodUid, ack: Ack, out: &mut Vec<Effect>) {
        self.send(ToAgent::Ack(uid.clone(), ack), out);
    }

    /// The holding's next step waits, longer each time.
    fn back_off(&mut self, uid: &PodUid, now: Moment) {
        self.back_off_to(uid, self.timing.retry_cap, now);
    }

    /// As [`Self::back_off`], up to another distance.
    fn back_off_to(&mut self, uid: &PodUid, cap: Duration, now: Moment) {
        let base = self.timing.retry_base;
        if let Some(holding) = self.holdings.get_mut(uid) {
            let delay = base.saturating_mul(1 << holding.attempt.min(16)).min(cap);
            holding.attempt = holding.attempt.saturating_add(1);
            holding.retry_at = Some(now.plus(delay));
        }
    }

    // === what is known ===

    fn views_valid(&self) -> bool {
        self.pods_blind.is_none() && self.links.known().is_some() && self.cgroups.known().is_some()
    }

    fn current_session(&self) -> Option<CurrentSession> {
        let session = self.session.as_ref()?;
        Some(CurrentSession {
            session: session.origin.session.clone(),
            boot: session.boot.clone(),
            start: session.kubelet?,
        })
    }

    /// Slots that are taken: every ENI that is or may be associated, and every reservation.
    fn used_slots(&self) -> u32 {
        let branches = self
            .holdings
            .values()
            .flat_map(|h| h.branches.values())
            .filter(|b| b.takes_slot())
            .count();
        u32::try_from(branches).unwrap_or(u32::MAX).saturating_add(self.stranger_slots())
    }

    fn stranger_slots(&self) -> u32 {
        let strangers =
            self.strangers.values().filter(|(r, _)| adopt::may_be_associated(r)).count();
        u32::try_from(strangers).unwrap_or(u32::MAX)
    }

    /// Whether "no ENI of this UID is left" can be said at all: an inventory was read since calls that an earlier term
    /// sent have ended and show in lists (design §4.1). One of before may lack what such a call made after it.
    fn knows_all_enis(&self) -> bool {
        self.settled || !lock::holds(Lock::DeletedIsKnown)
    }

    fn next_wake(&self, now: Moment) -> Option<Moment> {
        let mut wakes: Vec<Moment> = Vec::new();
        for holding in self.holdings.values().filter(|h| h.call.is_none()) {
            wakes.extend(holding.retry_at);
            wakes.extend(holding.next_cooled(self.settings.cooldown));
            wakes.extend(holding.barrier_deadline(&self.timing));
            match holding.wait {
                Some(Wait::VlansResting) => {
                    wakes.extend(self.vlans.next_rested().map(|left| now.plus(left)));
                }
                Some(Wait::Release(Keep::NotConfirmed | Keep::NoAgentFacts))
                    if holding.release.is_some() =>
                {
                    wakes.push(now.plus(self.timing.confirm_interval));
                }
                _ => {}
            }
        }
        wakes.extend(self.untold_waits().map(|(_, at)| at));
        wakes.extend(self.link_wakes());
        wakes.extend(self.remain_wakes());
        if let Some((_, asked)) = self.session.as_ref().and_then(|s| s.link_barrier) {
            wakes.push(asked.plus(self.timing.barrier_timeout));
        }
        wakes.into_iter().filter(|at| *at > now).min()
    }
}

/// What a live GET proves about a pod; `None` if the pod is there and not ended, or the answer says nothing.
fn over_from(pod: &PodRef, lookup: &Lookup, now: Moment) -> Option<Over> {
    match lookup {
        Lookup::NotFound(proof) => Some(Over::Gone(PodGone::from_not_found(pod, proof, now))),
        Lookup::Found(found, _) => match PodGone::from_other_uid(pod, &found.pod.uid, now) {
            Some(gone) => Some(Over::Gone(gone)),
            None => PodEnded::from_phase(&pod.uid, found.phase, now).map(Over::Ended),
        },
        Lookup::Unknown(_) => None,
    }
}
