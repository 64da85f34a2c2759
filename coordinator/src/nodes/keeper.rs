//! One task per node name: keeps the CNINode right, gets the node its trunk, advertises the capacity.
//!
//! It acts on what the directory shows now and is woken by changes, so that a lost or repeated wake harms nothing. Whatever
//! fails is repeated with capped backoff (`D22`). No lock is held across a call (`D25`); API writes of all keepers share a
//! bounded number of permits.

mod cninode;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use trunkline_core::eni::EniRecord;
use trunkline_core::id::{EniId, InstanceId, InstanceType, MacAddress, NodeName};
use trunkline_core::node::event::Event;
use trunkline_core::time::Moment;
use trunkline_kit::backoff::{Backoff, jitter};

use super::directory::NodeView;
use super::init::{Failed, Init, Ready};
use super::objects::NodeObject;
use super::plan::{Managed, NotManaged, cninode_step, managed};
use crate::actor::Mail;
use crate::api::objects;
use crate::events::{Reason, Severity, Target};
use crate::term::Term;

/// How often a ready node's details are read again (`D26`); spread over the second half of it.
const REFRESH: Duration = Duration::from_secs(3_600);
/// How long a node that cannot have a trunk is left alone before it is looked at again.
const LASTING: Duration = Duration::from_secs(1_800);

/// Where a node is in its set-up; for status.
#[derive(Debug, Clone)]
pub struct NodeState {
    /// Instance, where the Node names one.
    pub instance: Option<InstanceId>,
    /// Instance type, once described.
    pub kind: Option<InstanceType>,
    /// Whether pods get branches here, or why not: short name and sentence.
    pub managed: Result<(), (&'static str, String)>,
    /// The trunk.
    pub trunk: Option<(EniId, MacAddress)>,
    /// Why there is none: short name and sentence.
    pub trouble: Option<(&'static str, String)>,
    /// EC2's code of the last failure.
    pub ec2_code: Option<String>,
    /// Rounds that failed in a row.
    pub attempts: u32,
    /// Since when it is in this state.
    pub since: Moment,
}

impl NodeState {
    /// Nothing is known yet.
    pub fn new(now: Moment) -> Self {
        Self {
            instance: None,
            kind: None,
            managed: Err(("cninode-unknown", "the node is not known yet".into())),
            trunk: None,
            trouble: None,
            ec2_code: None,
            attempts: 0,
            since: now,
        }
    }

    /// Short name of the state.
    pub fn name(&self) -> &'static str {
        match (&self.managed, &self.trunk, &self.trouble) {
            (_, Some(_), _) => "ready",
            (Err(_), None, _) => "unmanaged",
            (Ok(()), None, None) => "initialising",
            (Ok(()), None, Some(_)) => "waiting",
        }
    }
}

/// The task.
pub struct Keeper {
    term: Arc<Term>,
    name: NodeName,
    wake: watch::Receiver<u64>,
    init: Option<Running>,
    reports: mpsc::Receiver<Report>,
    report_to: mpsc::Sender<Report>,
    ready: Option<(InstanceId, Ready)>,
    managed: Option<Managed>,
    backoff: Backoff,
    finalizing_since: Option<Moment>,
    told_finalizer: bool,
    told_trouble: Option<&'static str>,
    downs: Option<(InstanceId, String)>,
    /// The trunk is lost, and until one is ready no branches are advertised (`D34`).
    lost: bool,
}

struct Running {
    instance: InstanceId,
    adopt_only: bool,
    look_again: watch::Sender<()>,
    wanted: watch::Sender<bool>,
    _stop: DropGuard,
}

struct Report {
    instance: InstanceId,
    outcome: Result<Ready, Failed>,
    /// [`Init::lost`].
    lost: Vec<EniId>,
}

impl Keeper {
    /// For one name.
    pub fn new(term: Arc<Term>, name: NodeName, wake: watch::Receiver<u64>) -> Self {
        let (report_to, reports) = mpsc::channel(4);
        let backoff = Backoff::new(term.timing.retry_base, term.timing.retry_cap);
        Self {
            term,
            name,
            wake,
            init: None,
            reports,
            report_to,
            ready: None,
            managed: None,
            backoff,
            finalizing_since: None,
            told_finalizer: false,
            told_trouble: None,
            downs: None,
            lost: false,
        }
    }

    /// Runs until neither object is left.
    pub async fn run(mut self) {
        let mut inventories = self.term.board.subscribe();
        loop {
            let retry = match self.term.directory.view(&self.name) {
                None => None,
                Some(view) => {
                    if view.node.is_none()
                        && view.cninode == Some(None)
                        && self.term.directory.retire(&self.name)
                    {
                        break;
                    }
                    self.look(&view).await
                }
            };
            tokio::select! {
                biased;
                woken = self.wake.changed() => if woken.is_err() { break },
                Some(report) = self.reports.recv() => self.reported(report).await,
                Ok(()) = inventories.changed() => self.trunk_in_inventory(),
                () = async { if let Some(d) = retry { tokio::time::sleep(d).await } }, if retry.is_some() => {}
            }
        }
        self.term.forget(&self.name);
    }

    /// Acts on what is known; returns when to look again without being woken.
    async fn look(&mut self, view: &NodeView) -> Option<Duration> {
        let step = cninode_step(self.term.cluster.as_str(), view.node.as_deref(), view.seen());
        let mut retry = self.cninode(step, view).await;
        if let Some(node) = &view.node {
            self.decide(node, view).await;
            retry = sooner(retry, self.advertise(node).await);
        } else {
            // The Node object is gone, which proves nothing about the machine (S56): the books stay, no round of set-up
            // begins. One that is under way ends by itself: cut off, it could leave a trunk that outlives its instance.
            if let Some(running) = &self.init {
                running.wanted.send_replace(false);
            }
        }
        retry
    }

    // === managed or not ===

    async fn decide(&mut self, node: &NodeObject, view: &NodeView) {
        let decided = managed(node, view.seen());
        let instance = node.instance().ok();
        if self.managed.as_ref() != Some(&decided) {
            self.tell_decision(&decided);
        }
        self.term.note(&self.name, |state| {
            state.instance.clone_from(&instance);
            state.managed = match &decided {
                Managed::Yes(_) => Ok(()),
                Managed::No(why) => Err((why.name(), why.to_string())),
            };
        });
        let known_trunk = |instance: &InstanceId| {
            self.term.board.last().is_some_and(|i| !i.trunks_of(instance).is_empty())
        };
        match &decided {
            Managed::Yes(instance) => self.start(instance, false),
            // Its pods' branches still end by the rules, and for that the trunk has to be known (S06, D4).
            Managed::No(NotManaged::NotAsked) if instance.as_ref().is_some_and(known_trunk) => {
                if let Some(instance) = &instance {
                    self.start(instance, true);
                }
            }
            // Unknown is not unmanaged (D11).
            Managed::No(NotManaged::CniNodeUnknown) => {}
            Managed::No(NotManaged::NotAsked) if self.ready.is_some() => {}
            Managed::No(why) => {
                self.init = None;
                if let Some(instance) = &instance {
                    self.down(instance, why.to_string()).await;
                }
                if self.ready.take().is_some() {
                    self.term.note(&self.name, |s| s.trunk = None);
                }
            }
        }
        if let Managed::Yes(instance) = &decided {
            if self.ready.as_ref().is_some_and(|(i, _)| i != instance) {
                // Another machine under the same name (S55): its books are others.
                self.ready = None;
                self.term.note(&self.name, |s| s.trunk = None);
            }
            if self.ready.is_none() && self.downs.is_none() {
                self.down(instance, "the node's trunk is being set up".into()).await;
            }
        }
        self.managed = Some(decided);
    }

    fn tell_decision(&self, decided: &Managed) {
        let Managed::No(why) = decided else { return };
        tracing::info!(node = %self.name, reason = why.name(), "node gets no branches: {why}");
        if why.is_refusal() {
            let reason = match why {
                NotManaged::CustomNetworking => Reason::Unsupported,
                _ => Reason::NodeNotManaged,
            };
            self.term.recorder.post(
                Target::Node(self.name.clone()),
                Severity::Warning,
                reason,
                why.to_string(),
            );
        }
    }

    /// Tells the books why there is no trunk, once per sentence.
    async fn down(&mut self, instance: &InstanceId, why: String) {
        let told = Some((instance.clone(), why.clone()));
        if self.downs != told {
            self.downs = told;
            self.mail(instance, Event::TrunkDown(why)).await;
        }
    }

    async fn mail(&self, instance: &InstanceId, event: Event) {
        let handle = self.term.actor(instance, &self.name);
        // The books end with the term only.
        let _ended = handle.mail.send(Mail::Event(Box::new(event))).await;
    }

    // === set-up ===

    fn start(&mut self, instance: &InstanceId, adopt_only: bool) {
        let same =
            |r: &&Running| r.instance == *instance && (r.adopt_only == adopt_only || !r.adopt_only);
        if let Some(running) = self.init.as_ref().filter(same) {
            running.wanted.send_if_modified(|wanted| !std::mem::replace(wanted, true));
            return;
        }
        self.lost = false;
        let stop = CancellationToken::new();
        let (look_again, looks) = watch::channel(());
        let (wanted, is_wanted) = watch::channel(true);
        let init = Init::new(self.term.init.clone(), instance.clone(), adopt_only);
        let signs = Signs { looks, wanted: is_wanted };
        let run = rounds(self.term.clone(), init, instance.clone(), self.report_to.clone(), signs);
        let stopped = stop.clone();
        self.term.spawn(async move {
            tokio::select! {
                biased;
                () = stopped.cancelled() => {}
                () = run => {}
            }
        });
        self.init = Some(Running {
            instance: instance.clone(),
            adopt_only,
            look_again,
            wanted,
            _stop: stop.drop_guard(),
        });
        if !adopt_only {
            self.term.recorder.post(
                Target::Node(self.name.clone()),
                Severity::Normal,
                Reason::ControllerVersionNotice,
                format!(
                    "the node is managed by trunkline-coordinator {}",
                    env!("CARGO_PKG_VERSION")
                ),
            );
        }
    }

    async fn reported(&mut self, report: Report) {
        if self.init.as_ref().is_none_or(|r| r.instance != report.instance) {
            return;
        }
        self.term.metrics.init(report.outcome.is_ok());
        match report.outcome {
            Ok(ready) => self.became_ready(report.instance, ready).await,
            Err(failed) => {
                if !report.lost.is_empty() {
                    self.trunk_lost(&report.instance, &report.lost);
                }
                self.round_failed(report.instance, &failed).await;
            }
        }
    }

    async fn became_ready(&mut self, instance: InstanceId, ready: Ready) {
        let before = self.ready.as_ref().filter(|(i, _)| *i == instance).map(|(_, r)| r);
        let same_trunk = before.is_some_and(|b| b.trunk.eni == ready.trunk.eni);
        if before.is_none_or(|b| b.trunk != ready.trunk) || self.downs.is_some() {
            self.downs = None;
            self.mail(&instance, Event::TrunkReady(ready.trunk.clone())).await;
        }
        if !same_trunk {
            let others = if ready.others.is_empty() {
                String::new()
            } else {
                let ids: Vec<&str> = ready.others.iter().map(EniId::as_str).collect();
                format!(
                    "; other trunks are attached too, which is not supported: {}",
                    ids.join(", ")
                )
            };
            self.term.recorder.post(
                Target::Node(self.name.clone()),
                if ready.others.is_empty() { Severity::Normal } else { Severity::Warning },
                Reason::NodeTrunkInitiated,
                format!(
                    "trunk {} is ready for {} branches{others}",
                    ready.trunk.eni, ready.trunk.limit
                ),
            );
        }
        self.told_trouble = None;
        self.lost = false;
        self.term.note(&self.name, |state| {
            state.kind = Some(ready.kind.clone());
            state.trunk = Some((ready.trunk.eni.clone(), ready.trunk.mac));
            state.trouble = None;
            state.ec2_code = None;
            state.attempts = 0;
        });
        self.ready = Some((instance, ready));
    }

    async fn round_failed(&mut self, instance: InstanceId, failed: &Failed) {
        let sentence = failed.to_string();
        tracing::warn!(node = %self.name, %instance, reason = failed.name(), "node set-up: {sentence}");
        self.term.metrics.peer.init_failed(failed);
        self.term.note(&self.name, |state| {
            if let Failed::NoLimits(kind, _) = failed {
                state.kind = Some(kind.clone());
            }
            state.trouble = Some((failed.name(), sentence.clone()));
            state.ec2_code = failed.ec2_code().map(ToOwned::to_owned);
            state.attempts += 1;
        });
        if self.told_trouble != Some(failed.name()) {
            self.told_trouble = Some(failed.name());
            self.tell_failure(failed, &sentence);
        }
        // A trunk that works is not taken away by a reading that failed.
        if self.ready.is_none() {
            self.down(&instance, sentence).await;
        }
    }

    /// `D34`: EC2 has said by id, repeatedly and for its consistency window, that the trunk is not on the instance. Told
    /// where pods could be sent here for it; a node that never had a trunk has none to lose.
    fn trunk_lost(&mut self, instance: &InstanceId, lost: &[EniId]) {
        let advertises = || {
            let node = self.term.directory.view(&self.name).and_then(|view| view.node);
            node.is_some_and(|n| !matches!(n.advertised(), None | Some(None | Some("0"))))
        };
        if self.lost || (self.ready.is_none() && !advertises()) {
            return;
        }
        self.lost = true;
        self.ready = None;
        let ids: Vec<&str> = lost.iter().map(EniId::as_str).collect();
        let sentence = format!(
            "EC2 does not show the trunk {} on the instance any more; the node advertises no branches until it is back or another one is ready",
            ids.join(", ")
        );
        tracing::warn!(node = %self.name, %instance, "{sentence}");
        self.term.recorder.post(
            Target::Node(self.name.clone()),
            Severity::Warning,
            Reason::TrunkENILost,
            sentence,
        );
        self.term.note(&self.name, |state| state.trunk = None);
    }

    fn tell_failure(&self, failed: &Failed, sentence: &str) {
        let node = Target::Node(self.name.clone());
        let post = |target, reason, message| {
            self.term.recorder.post(target, Severity::Warning, reason, message);
        };
        match failed {
            Failed::NoLimits(..) => return post(node, Reason::Unsupported, sentence.to_owned()),
            Failed::NotAttached(_) | Failed::TermOver | Failed::NotWanted => return,
            Failed::Ec2 { failure, .. } => {
                let view = self.term.directory.view(&self.name).and_then(|v| v.node);
                let uid = view.map(|n| n.metadata.uid.clone()).unwrap_or_default();
                let hint = match failure.code.as_deref() {
                    Some("UnauthorizedOperation") => {
                        "; does the role have the policy AmazonEKSVPCResourceController?"
                    }
                    _ => "",
                };
                post(
                    Target::NodeByUid(self.name.clone(), uid),
                    Reason::TrunkENICreationFailed,
                    format!("{sentence}{hint}"),
                );
            }
            _ => {}
        }
        post(node, Reason::NodeTrunkFailedInit, sentence.to_owned());
    }

    /// The inventory no longer shows the trunk attached: look closely before concluding anything.
    fn trunk_in_inventory(&mut self) {
        let (Some((instance, ready)), Some(inventory)) = (&self.ready, self.term.board.last())
        else {
            return;
        };
        let attached = |eni: &EniRecord| {
            eni.id == ready.trunk.eni && eni.attachment.as_ref().is_some_and(|a| a.attached)
        };
        if !inventory.of_node(instance, None).iter().any(attached)
            && let Some(init) = &self.init
        {
            init.look_again.send_replace(());
        }
    }

    // === capacity ===

    /// `RES-1`…`RES-3`: written if absent or different; healed after kubelet resets; taken back when the trunk is lost.
    async fn advertise(&mut self, node: &NodeObject) -> Option<Duration> {
        let limit = match &self.ready {
            Some((_, ready)) => self.limit_now(ready),
            None if self.lost => 0,
            None => return None,
        };
        if self.ready.as_ref().is_some_and(|(_, ready)| ready.trunk.limit != limit) {
            // EC2 allows less than the table says (LIM-2): the books have to know too.
            if let Some(init) = &self.init {
                init.look_again.send_replace(());
            }
        }
        let Some(advertised) = node.advertised() else {
            // The kubelet has not written its status yet.
            return Some(Duration::from_secs(1));
        };
        if advertised == Some(limit.to_string().as_str()) || (limit == 0 && advertised.is_none()) {
            return None;
        }
        let term = self.term.clone();
        let _permit = term.node_writes.acquire().await;
        let written = objects::advertise(&term.api, &self.name, limit).await;
        term.metrics.peer.advertised(written.is_err());
        match written {
            Ok(()) => {
                tracing::info!(node = %self.name, limit, "capacity advertised");
                Some(Duration::from_secs(30))
            }
            Err(e) => {
                tracing::warn!(node = %self.name, "capacity not advertised: {e}");
                Some(self.backoff.next_delay().max(Duration::from_millis(200)))
            }
        }
    }

    fn limit_now(&self, ready: &Ready) -> u32 {
        let limits =
            self.term.init.limits.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        limits.lookup(&ready.kind).map_or(ready.trunk.limit, |l| l.branches)
    }
}

fn sooner(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// What the rounds of a node's set-up are told.
struct Signs {
    /// Look again now.
    looks: watch::Receiver<()>,
    /// Whether a further round may begin.
    wanted: watch::Receiver<bool>,
}

/// Rounds of set-up: until ready with backoff, then again at an interval or when asked.
async fn rounds(
    term: Arc<Term>,
    mut init: Init,
    instance: InstanceId,
    reports: mpsc::Sender<Report>,
    Signs { mut looks, mut wanted }: Signs,
) {
    let mut failures: u32 = 0;
    loop {
        if wanted.wait_for(|wanted| *wanted).await.is_err() {
            return;
        }
        let outcome = init.round().await;
        let pause = match &outcome {
            Ok(_) => {
                failures = 0;
                REFRESH / 2 + jitter(REFRESH / 2)
            }
            Err(Failed::TermOver) => return,
            Err(failed) if failed.is_lasting() => LASTING,
            Err(_) => {
                failures = failures.saturating_add(1);
                // Full jitter alone could repeat at once; half of the bound is certain.
                let bound = term
                    .timing
                    .retry_base
                    .saturating_mul(1 << failures.min(10))
                    .min(term.timing.retry_cap);
                bound / 2 + jitter(bound / 2)
            }
        };
        let lost = init.lost();
        if reports.send(Report { instance: instance.clone(), outcome, lost }).await.is_err() {
            return;
        }
        tokio::select! {
            biased;
            () = term.clock.sleep(pause) => {}
            changed = looks.changed() => if changed.is_err() { return },
        }
    }
}

#[cfg(test)]
mod tests;
