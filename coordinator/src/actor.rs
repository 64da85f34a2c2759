//! One task per instance: owns the node's books, carries their effects out, feeds the answers back.
//!
//! The mailbox is drained at once and every call runs beside it, so that a node whose EC2 call hangs holds up nobody, not even
//! its own other pods. At most one call per pod is open (that is the books' rule), which bounds what runs here.
//!
//! When the term ends nothing new is begun; calls under way are waited for, and what they did is read back by the next
//! term.

mod limit;
mod reason;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use trunkline_core::eni::{Ec2Call, FailureClass};
use trunkline_core::id::{EniId, InstanceId, NodeName, PodRef, PodUid};
use trunkline_core::message::{FromAgent, ToAgent};
use trunkline_core::node::Node;
use trunkline_core::node::audit::{Audit, Evidence};
use trunkline_core::node::event::{
    Annotated, Answer, Cleared, Effect, Event, Evicted, Lookup, Notice, OpId, Released,
    SessionOpened,
};
use trunkline_core::node::report::NodeReport as Books;
use trunkline_core::time::Moment;
use trunkline_core::verdict::PermitStage;
use trunkline_core::wait::Step;
use trunkline_kit::pod_get::{self, get_pod};
use trunkline_proto::v1::RefusalReason;

use crate::annotation;
use crate::api::{chain, lost, objects, policies};
use crate::events::Target;
use crate::grpc::session::Out;
use crate::identity::Agent;
use crate::inventory::Inventory;
use crate::ledger::Record;
use crate::term::Term;
use limit::may_be_associated;
use reason::reason_of;

/// Mails that may wait. Senders wait beyond it, which slows the agent's stream and nothing else.
pub const MAILBOX: usize = 128;

/// Something for the actor.
#[derive(Debug)]
pub enum Mail {
    /// For the books.
    Event(Box<Event>),
    /// An agent's session was accepted.
    Open(Box<Link>),
    /// The agent of this session said something.
    Said(u64, FromAgent),
    /// This session ended.
    Closed(u64),
    /// Tell what the books show.
    Report(oneshot::Sender<NodeReport>),
    /// Compare the books with this evidence.
    Audit(Box<Evidence>, oneshot::Sender<Audit>),
}

/// The way to a connected agent.
#[derive(Debug)]
pub struct Link {
    /// Tells sessions of one term apart.
    pub key: u64,
    /// For the books.
    pub opened: SessionOpened,
    /// To the agent; bounded, a full one ends the session.
    pub out: mpsc::Sender<Out>,
    /// Ends the session with a refusal.
    pub end: Ending,
    /// Who it is.
    pub about: About,
}

/// Ends a session from outside, once.
#[derive(Debug, Clone)]
pub struct Ending {
    reason: watch::Sender<Option<(RefusalReason, String)>>,
    ended: CancellationToken,
}

impl Default for Ending {
    fn default() -> Self {
        Self { reason: watch::Sender::new(None), ended: CancellationToken::new() }
    }
}

impl Ending {
    /// Ends it; the first reason stays.
    pub fn end(&self, reason: RefusalReason, sentence: impl Into<String>) {
        self.reason.send_if_modified(|r| {
            let first = r.is_none();
            if first {
                *r = Some((reason, sentence.into()));
            }
            first
        });
        self.ended.cancel();
    }

    /// Returns once it was ended.
    pub async fn ended(&self) -> (RefusalReason, String) {
        self.ended.cancelled().await;
        self.reason.borrow().clone().unwrap_or((RefusalReason::Draining, "the session ends".into()))
    }
}

/// What people are told of a session.
#[derive(Debug, Clone)]
pub struct About {
    /// The verified agent.
    pub agent: Agent,
    /// Its greeting.
    pub opened: SessionOpened,
    /// Its build.
    pub build: String,
    /// When it connected.
    pub since: Moment,
    /// Changes with every heartbeat.
    pub heartbeat: watch::Receiver<Moment>,
}

/// What the books and the session show.
#[derive(Debug)]
pub struct NodeReport {
    /// The instance.
    pub instance: InstanceId,
    /// The node's name.
    pub node: NodeName,
    /// The books.
    pub books: Books,
    /// The session.
    pub session: Option<About>,
}

/// The actor.
pub struct Actor {
    term: Arc<Term>,
    instance: InstanceId,
    name: NodeName,
    node: Node,
    mailbox: mpsc::Receiver<Mail>,
    link: Option<Link>,
    wake: Option<Moment>,
    calls: JoinSet<Answered>,
    /// Associates under way, with their branch.
    associating: BTreeMap<OpId, EniId>,
    trunk: Option<EniId>,
    /// ENIs that were deleted, and when EC2 said so: a reading that began earlier may still show them.
    deleted: BTreeMap<EniId, Moment>,
    /// EC2's id of the release that was answered last.
    request_id: Option<String>,
    /// Branches of running pods that are lost, as was told last.
    lost: usize,
}

/// A call's answer, and of a release EC2's request id.
type Answered = (OpId, Answer, Option<String>);

impl Actor {
    /// Empty books.
    pub fn new(
        term: Arc<Term>,
        instance: InstanceId,
        name: NodeName,
        mailbox: mpsc::Receiver<Mail>,
    ) -> Self {
        let settings = *term.settings.borrow();
        let node = Node::new(term.term, settings, annotation::READER, term.timing, term.began);
        Self {
            term,
            instance,
            name,
            node,
            mailbox,
            link: None,
            wake: None,
            calls: JoinSet::new(),
            associating: BTreeMap::new(),
            trunk: None,
            deleted: BTreeMap::new(),
            request_id: None,
            lost: 0,
        }
    }

    /// Runs until the term ends.
    pub async fn run(mut self) {
        let mut inventories = self.term.board.subscribe();
        let mut settings = self.term.settings.clone();
        let mut fuse = self.term.control.subscribe();
        // What is stored of the fuse comes before anything else.
        self.ask_fuse();
        inventories.unsee();
        loop {
            let wake = self.wake;
            let clock = self.term.clock;
            tokio::select! {
                biased;
                () = self.term.stop.cancelled() => break,
                Some(done) = self.calls.join_next() => self.answered(done),
                mail = self.mailbox.recv() => match mail {
                    Some(mail) => self.receive(mail),
                    None => break,
                },
                Ok(()) = inventories.changed() => {
                    let whole = inventories.see();
                    if let Some(inventory) = whole {
                        self.inventory(&inventory);
                    }
                }
                Ok(()) = settings.changed() => {
                    let settings = *settings.borrow_and_update();
                    self.step(Event::Settings(settings));
                }
                Ok(()) = fuse.changed() => self.ask_fuse(),
                () = async { if let Some(at) = wake { clock.sleep_until(at).await } }, if wake.is_some() => {
                    self.wake = None;
                    self.step(Event::Tick);
                }
            }
        }
        if let Some(link) = self.link.take() {
            link.end.end(RefusalReason::Draining, "this coordinator does not lead any more");
        }
        while self.calls.join_next().await.is_some() {}
    }

    fn receive(&mut self, mail: Mail) {
        match mail {
            Mail::Event(event) => {
                let event = *event;
                let trunk = match &event {
                    Event::TrunkReady(trunk) => Some(trunk.eni.clone()),
                    _ => self.trunk.clone(),
                };
                self.step(event);
                if trunk != self.trunk {
                    self.trunk_changed(trunk);
                }
            }
            Mail::Open(link) => {
                if let Some(old) = self.link.take() {
                    old.end.end(
                        RefusalReason::OtherAgent,
                        "another session of this node's agent was accepted",
                    );
                }
                let opened = link.opened.clone();
                self.link = Some(*link);
                self.step(Event::SessionOpened(opened));
            }
            Mail::Said(key, message) if self.is_current(key) => self.step(Event::Agent(message)),
            Mail::Closed(key) if self.is_current(key) => {
                self.link = None;
                self.step(Event::SessionClosed);
            }
            Mail::Said(..) | Mail::Closed(_) => {}
            Mail::Audit(evidence, reply) => {
                let audit = self.node.audit(&evidence, self.term.clock.now());
                // Whoever asked may have gone.
                let _gone = reply.send(audit);
            }
            Mail::Report(reply) => {
                let report = NodeReport {
                    instance: self.instance.clone(),
                    node: self.name.clone(),
                    books: self.node.report(self.term.clock.now()),
                    session: self.link.as_ref().map(|l| l.about.clone()),
                };
                // Whoever asked may have gone.
                let _gone = reply.send(report);
            }
        }
    }

    fn is_current(&self, key: u64) -> bool {
        self.link.as_ref().is_some_and(|l| l.key == key)
    }

    /// A trunk's branches are found by its tag too. For the first trunk of these books the last inventory is good enough:
    /// nothing was done on that trunk since. For another one a new reading is asked for.
    fn trunk_changed(&mut self, trunk: Option<EniId>) {
        let first = self.trunk.is_none();
        self.trunk = trunk;
        if first {
            if let Some(inventory) = self.term.board.last() {
                self.inventory(&inventory);
            }
        } else {
            let term = self.term.clone();
            let now = term.clock.now();
            self.term.spawn(async move {
                term.board.since(now).await;
            });
        }
    }

    fn inventory(&mut self, inventory: &Inventory) {
        let window = self.term.timing.ec2_list_window;
        self.deleted.retain(|_, at| inventory.began < at.plus(window));
        let mut records = inventory.of_node(&self.instance, self.trunk.as_ref());
        records.retain(|eni| !self.deleted.contains_key(&eni.id));
        self.step(Event::Inventory { began: inventory.began, enis: records });
    }

    /// ENIs of this node that were deleted within the time for which EC2 may go on counting them.
    fn deleted_of_late(&self) -> usize {
        let (now, window) = (self.term.clock.now(), self.term.timing.ec2_consistency);
        self.deleted.values().filter(|at| !now.has_passed(**at, window)).count()
    }

    fn ask_fuse(&mut self) {
        let state = self.term.control.fuse_of(&self.instance);
        self.step(Event::Fuse(state));
    }

    fn answered(&mut self, done: Result<Answered, tokio::task::JoinError>) {
        match done {
            Ok((op, answer, request_id)) => {
                self.request_id = request_id;
                if let (Some(branch), Answer::Ec2(Err(failure))) =
                    (self.associating.remove(&op), &answer)
                    && failure.class == FailureClass::BranchLimit
                {
                    let books = self.node.report(self.term.clock.now());
                    let others = books.strangers.len() + self.deleted_of_late();
                    let held = may_be_associated(&books.pods, others, &branch);
                    self.term.branch_limit_refused(&self.name, held);
                }
                self.step(Event::Answer(op, answer));
            }
            // A call that ended without an answer leaves its operation open for good: begin these books anew in the next
            // term rather than guess.
            Err(e) => tracing::error!(node = %self.name, "a call ended without answer: {e}"),
        }
    }

    fn step(&mut self, event: Event) {
        let effects = self.node.step(event, self.term.clock.now());
        let lost = self.node.lost();
        if lost != self.lost {
            self.lost = lost;
            self.term.note_lost(&self.instance, lost);
        }
        for effect in effects {
            self.carry_out(effect);
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        let term = self.term.clone();
        match effect {
            Effect::Call(op, call) => self.call(op, call),
            Effect::GetPod(op, pod) => {
                self.calls.spawn(async move {
                    let found = match get_pod(term.api.kit(), &pod).await {
                        pod_get::Lookup::Known(live) => Lookup::Found(Box::new(live.pod), live.rv),
                        pod_get::Lookup::Gone(proof) => Lookup::NotFound(proof),
                        pod_get::Lookup::Unknown(e) => Lookup::Unknown(chain(&e)),
                    };
                    term.metrics.peer.got_pod(matches!(found, Lookup::Unknown(_)));
                    (op, Answer::Pod(found), None)
                });
            }
            Effect::ResolveGroups(op, pod) => {
                self.calls.spawn(async move {
                    (op, Answer::Groups(policies::resolve(&term.api, &pod).await), None)
                });
            }
            Effect::Annotate { op, pod, rv, branches } => {
                self.calls.spawn(async move {
                    // The mode may have changed since the books asked for it: not sent, and looked at anew.
                    let answer = if term.settings.borrow().read_only {
                        Annotated::Conflict
                    } else {
                        let answer = objects::annotate(&term.api, &pod, &rv, &branches).await;
                        term.metrics.peer.annotated(answer != Annotated::Done);
                        answer
                    };
                    (op, Answer::Annotated(answer), None)
                });
            }
            Effect::AskPace(op) => {
                let answer = term.pace();
                self.calls.spawn(std::future::ready((op, Answer::Pace(answer), None)));
            }
            Effect::AskHeal(op) => {
                let answer = term.may_heal();
                self.calls.spawn(std::future::ready((op, Answer::Pace(answer), None)));
            }
            Effect::Evict(op, pod) => {
                self.calls.spawn(async move {
                    let evicted = match term.may_evict() {
                        Ok(()) => lost::evict(&term.api, &pod).await,
                        Err(next) => Evicted::Paced(next),
                    };
                    tracing::info!(%pod, ?evicted, "eviction of a pod that cannot be healed");
                    (op, Answer::Evicted(evicted), None)
                });
            }
            Effect::Condition(condition) => {
                let term = term.clone();
                self.term.spawn(async move {
                    // The event says the same; the next change writes it again.
                    if let Err(e) = lost::set_condition(&term.api, &condition).await {
                        tracing::warn!(pod = %condition.pod, "the pod's condition was not written: {e}");
                    }
                });
            }
            Effect::Healed(healed) => {
                self.term.metrics.healed(healed.loss, healed.took);
                tracing::info!(
                    node = %self.name,
                    pod = %healed.pod,
                    eni = %healed.eni,
                    loss = healed.loss.name(),
                    took_ms = healed.took.as_millis(),
                    "healed"
                );
            }
            Effect::Send(message) => self.send(message),
            Effect::Notify(notice) => self.notify(notice),
            Effect::Released(released) => self.released(&released),
            Effect::Cleared(cleared) => self.cleared(cleared),
            Effect::Kept(why) => term.metrics.brakes.kept(why),
            Effect::Vetoed { pod, froze } => self.vetoed(&pod, froze),
            Effect::Wake(at) => self.wake = Some(self.wake.map_or(at, |w| w.min(at))),
        }
    }

    fn call(&mut self, op: OpId, call: Ec2Call) {
        let term = self.term.clone();
        if let Ec2Call::Associate(associate) = &call {
            self.associating.insert(op, associate.branch.clone());
        }
        let step = counted_step(&call);
        self.calls.spawn(async move {
            let (answer, request_id) = match call {
                Ec2Call::Release(permit) => term.cloud.release(permit).await,
                call => (term.cloud.call(call).await, None),
            };
            if let Some(step) = step {
                term.metrics.peer.branch_step(step, &answer);
            }
            (op, Answer::Ec2(answer), request_id)
        });
    }

    fn send(&mut self, message: ToAgent) {
        let Some(link) = &self.link else { return };
        if link.out.try_send(Out::To(message)).is_err() {
            link.end.end(RefusalReason::TooSlow, "the agent does not read its stream fast enough");
        }
    }

    fn notify(&self, notice: Notice) {
        let (severity, reason) = reason_of(notice.kind);
        let pod = notice.pod.as_ref().map(tracing::field::display);
        tracing::info!(node = %self.name, pod, ?reason, "{}", notice.message);
        let target = notice.pod.map_or_else(|| Target::Node(self.name.clone()), Target::Pod);
        self.term.recorder.post(target, severity, reason, notice.message);
    }

    fn released(&mut self, released: &Released) {
        if released.step == Step::Delete {
            self.deleted.insert(released.eni.clone(), self.term.clock.now());
        }
        self.term.metrics.released(released.step);
        self.term.ledger.record(Record::new(
            released,
            &self.name,
            &self.instance,
            self.term.term.epoch,
            self.request_id.take(),
            self.term.clock.now(),
        ));
    }

    /// The lasting record of an ENI that went with its instance is this line; where its pod and VLAN are known, the
    /// release record has it, too.
    fn cleared(&mut self, cleared: Cleared) {
        let pod = cleared.pod.as_ref().map(tracing::field::display);
        tracing::info!(
            node = %self.name,
            instance = %cleared.dead.instance(),
            eni = %cleared.eni,
            pod,
            dead = cleared.dead.by().name(),
            "deleted what a dead instance left"
        );
        if let (Some(pod), Some(vlan)) = (cleared.pod, cleared.vlan) {
            let (eni, step) = (cleared.eni, Step::Delete);
            self.released(&Released { eni, pod, vlan, step, basis: None });
        } else {
            self.deleted.insert(cleared.eni, self.term.clock.now());
            self.term.metrics.released(Step::Delete);
        }
    }

    fn vetoed(&self, pod: &PodRef, froze: Option<BTreeSet<PodUid>>) {
        self.term.metrics.brakes.vetoed();
        tracing::warn!(
            node = %self.name, %pod,
            "the agent said that this pod is over and the API server says that it is alive; nothing is released"
        );
        if let Some(pods) = froze {
            self.term.control.freeze(&self.instance, &self.name, pods);
        }
    }
}

/// The step of a branch's life that a call is, where the peer counts it.
fn counted_step(call: &Ec2Call) -> Option<Step> {
    match call {
        Ec2Call::Create(_) => Some(Step::Create),
        Ec2Call::Associate(_) => Some(Step::Associate),
        Ec2Call::Release(permit) => Some(match permit.stage() {
            PermitStage::Disassociate(_) => Step::Disassociate,
            PermitStage::Delete => Step::Delete,
        }),
        _ => None,
    }
}
