//! The only loop: what the ports tell goes to the witness as a sighting, what the witness says is done.
//!
//! Nothing here waits for anything but the next event: looks run beside the loop one at a time, messages to the
//! coordinator go into a queue, and a full queue ends the session instead of holding up the watch of the pods.
//!
//! A look that fails as a whole, or takes longer than the rules allow between two looks, is fed as one in which nothing
//! could be seen; otherwise the last good look would go on speaking for the node.

mod heal;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;
use trunkline_core::id::{BootId, KubeletStart, NodeName, PodUid};
use trunkline_core::message::FromAgent;
use trunkline_core::time::{Moment, Timing};
use trunkline_core::view::{Blind, Kubelet, Look};
use trunkline_core::witness::{Action, Journal, Sighting, Witness};
use trunkline_kit::clock::Clock;
use trunkline_kit::listwatch::{PodsEvent, Relist};

use crate::chain;
use crate::metrics::{LoopMetrics, ViewName};
use crate::port::{JournalStore, LocalNode, LookError};
use crate::session::SessionEvent;
use crate::signs::{SignBoard, Signs};
use crate::status::{AgentStatus, SessionStatus};

use heal::{Heal, Heals};

/// Shortest distance between the starts of two looks that signs ask for.
const SIGN_SPACING: Duration = Duration::from_millis(100);
/// Shortest distance between the starts of any two looks.
const SPACING: Duration = Duration::from_millis(10);
/// The same after a look that failed as a whole.
const FAILED_SPACING: Duration = Duration::from_secs(1);

/// Everything the loop needs from outside.
pub struct Ports {
    /// The pods of the node.
    pub pods: mpsc::Receiver<PodsEvent>,
    /// Makes them be listed again.
    pub relist: Relist,
    /// The node.
    pub node: Arc<dyn LocalNode>,
    /// Where the journal is kept.
    pub journal: Box<dyn JournalStore>,
    /// What the session tells.
    pub session: mpsc::Receiver<SessionEvent>,
    /// The clock of all moments.
    pub clock: Clock,
}

/// What the loop starts with.
#[derive(Debug, Clone)]
pub struct Start {
    /// The node's name.
    pub node: NodeName,
    /// The agent's own pod.
    pub own_pod: PodUid,
    /// Boot id at the start of the process.
    pub boot: BootId,
    /// The journal, if there is one.
    pub journal: Option<Journal>,
    /// Durations.
    pub timing: Timing,
}

/// Why the loop ended; it does not end by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    /// The list-watch of the pods ended.
    #[error("the list-watch of the pods ended")]
    Pods,
    /// The session's task ended.
    #[error("the session's task ended")]
    Session,
}

/// The loop and its books.
pub struct Driver {
    witness: Witness,
    ports: Ports,
    signs: Arc<SignBoard>,
    timing: Timing,
    metrics: LoopMetrics,
    boot: BootId,
    outbound: Option<mpsc::Sender<FromAgent>>,
    looking: Option<BoxFuture<'static, Result<Look, Blindness>>>,
    heals: Heals,
    /// Start of the last look.
    looked: Moment,
    /// A look is wanted at this moment, before the next regular one.
    hurry: Option<Moment>,
    /// No look before this moment.
    not_before: Moment,
    /// Kubelet start in the last look.
    start: Option<KubeletStart>,
    /// Cgroups and links in the last look.
    read: (usize, usize),
    unsaved: bool,
    kubelet: watch::Sender<Option<KubeletStart>>,
    status: watch::Sender<AgentStatus>,
    shown: AgentStatus,
    pulse: Pulse,
}

/// Tells when the loop last came round.
#[derive(Debug, Clone)]
pub struct Pulse {
    last: Arc<AtomicU64>,
    clock: Clock,
}

impl Pulse {
    fn beat(&self) {
        self.last.store(self.clock.now().0, Ordering::Relaxed);
    }

    /// How long ago that was.
    pub fn silent(&self) -> Duration {
        self.clock.now().since(Moment(self.last.load(Ordering::Relaxed)))
    }
}

/// Why a look failed as a whole.
enum Blindness {
    Failed(LookError),
    TooLate,
}

impl Driver {
    /// The loop, its status, and the kubelet's start for the session's greeting.
    pub fn new(
        ports: Ports,
        start: Start,
        metrics: LoopMetrics,
    ) -> (Self, watch::Receiver<AgentStatus>, watch::Receiver<Option<KubeletStart>>) {
        let Start { node, own_pod, boot, journal, timing } = start;
        let now = ports.clock.now();
        let shown = AgentStatus { node: node.to_string(), ..AgentStatus::default() };
        let (status, seen_status) = watch::channel(shown.clone());
        let (kubelet, seen_kubelet) = watch::channel(None);
        let driver = Self {
            witness: Witness::new(own_pod, boot.clone(), journal, timing, now),
            signs: ports.node.signs(),
            pulse: Pulse { last: Arc::new(AtomicU64::new(now.0)), clock: ports.clock },
            ports,
            timing,
            metrics,
            boot,
            outbound: None,
            looking: None,
            heals: Heals::default(),
            looked: now,
            hurry: Some(now),
            not_before: now,
            start: None,
            read: (0, 0),
            unsaved: false,
            kubelet,
            status,
            shown,
        };
        (driver, seen_status, seen_kubelet)
    }

    /// Tells when the loop last came round.
    pub fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }

    /// Runs until a port closes.
    pub async fn run(mut self) -> Ended {
        let mut heartbeat = tokio::time::interval(self.timing.heartbeat);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut tick = tokio::time::interval(self.timing.look_interval);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let due = self.look_due();
            let signs = Arc::clone(&self.signs);
            let clock = self.ports.clock;
            // In this order, so that whatever is busy holds up neither signs of life nor looks; what is due at one instant
            // is done in the same order every time.
            tokio::select! {
                biased;
                _ = heartbeat.tick() => self.beat(),
                _ = tick.tick() => self.step(Sighting::Tick),
                look = wait_for(&mut self.looking), if self.looking.is_some() => self.on_look(look),
                () = clock.sleep_until(due), if self.looking.is_none() => self.begin_look(),
                healed = self.heals.done(), if self.heals.is_busy() => self.on_healed(healed),
                event = self.ports.session.recv() => match event {
                    Some(event) => self.on_session(event),
                    None => return Ended::Session,
                },
                signs = signs.next() => self.on_signs(signs),
                pods = self.ports.pods.recv() => match pods {
                    Some(event) => self.on_pods(event),
                    None => return Ended::Pods,
                },
            }
            self.save();
            self.show();
            self.pulse.beat();
        }
    }

    // === events ===

    fn on_pods(&mut self, event: PodsEvent) {
        self.step(match event {
            PodsEvent::Stale(why) => Sighting::PodsLost(why),
            PodsEvent::Listed(list) => Sighting::PodsListed(list),
            PodsEvent::Applied(pod, _) => Sighting::PodApplied(pod),
            PodsEvent::Deleted(pod, _) => Sighting::PodDeleted(pod),
            PodsEvent::Bookmark(_) => return,
        });
    }

    fn on_session(&mut self, event: SessionEvent) {
        match event {
            SessionEvent::Connected { origin, outbound } => {
                self.outbound = Some(outbound);
                self.heals.forget();
                self.shown.session = SessionStatus::Connected { epoch: origin.epoch.0 };
                self.step(Sighting::Connected(origin));
            }
            SessionEvent::Told(message) => self.step(Sighting::Told(message)),
            SessionEvent::Resync => self.step(Sighting::Resync),
            SessionEvent::Disconnected => {
                self.outbound = None;
                self.heals.forget();
                self.shown.session =
                    SessionStatus::Waiting { reason: Blind::Disconnected.sentence().into() };
                self.step(Sighting::Disconnected);
            }
            SessionEvent::Waiting(reason) => self.shown.session = SessionStatus::Waiting { reason },
        }
    }

    /// A cgroup that appeared counts under the kubelet start of the last look. Its sign carries a start that was in force
    /// some time before it appeared; where the two differ the kubelet restarted in between, and the pod, if it is still
    /// there, is seen by the next look.
    fn on_signs(&mut self, signs: Signs) {
        for (uid, start) in signs.seen {
            if self.start == Some(start) {
                self.step(Sighting::CgroupAppeared(uid));
            }
        }
        if signs.changed {
            self.want_look(self.looked.plus(SIGN_SPACING));
        }
    }

    /// A sign of life tells what the last look saw. After a suspend that is too old to be told; the next look comes first.
    fn beat(&mut self) {
        let now = self.ports.clock.now();
        if now.since(self.looked) > self.timing.look_gap {
            self.want_look(now);
        } else if self.outbound.is_some() {
            self.send(FromAgent::Heartbeat(self.witness.heartbeat()));
        }
    }

    // === looks ===

    fn look_due(&self) -> Moment {
        let regular = self.looked.plus(self.witness.next_look());
        self.hurry.map_or(regular, |hurry| hurry.min(regular)).max(self.not_before)
    }

    fn want_look(&mut self, at: Moment) {
        self.hurry = Some(self.hurry.map_or(at, |hurry| hurry.min(at)));
    }

    fn begin_look(&mut self) {
        let now = self.ports.clock.now();
        self.looked = now;
        self.hurry = None;
        self.not_before = now.plus(SPACING);
        let look = self.ports.node.look();
        let limit = self.timing.look_gap;
        self.looking = Some(
            async move {
                match tokio::time::timeout(limit, look).await {
                    Ok(look) => look.map_err(Blindness::Failed),
                    Err(_) => Err(Blindness::TooLate),
                }
            }
            .boxed(),
        );
    }

    fn on_look(&mut self, look: Result<Look, Blindness>) {
        self.looking = None;
        self.metrics.look(look.is_ok());
        let look = look.unwrap_or_else(|why| {
            match why {
                Blindness::Failed(error) => {
                    tracing::warn!(error = %chain(&error), "failed to look at the node");
                }
                Blindness::TooLate => tracing::warn!("a look at the node took too long"),
            }
            self.not_before = self.ports.clock.now().plus(FAILED_SPACING);
            Look {
                at: self.looked,
                boot: self.boot.clone(),
                kubelet_before: Kubelet::Silent,
                cgroups: Err(Blind::ReadFailed),
                links: Err(Blind::ReadFailed),
                kubelet_after: Kubelet::Silent,
            }
        });
        if look.kubelet() != self.start {
            tracing::info!(before = ?self.start, now = ?look.kubelet(), "the kubelet's state changed");
        }
        self.start = look.kubelet();
        self.kubelet.send_replace(self.start);
        self.read = (
            look.cgroups.as_ref().map_or(0, std::collections::BTreeSet::len),
            look.links.as_ref().map_or(0, |l| l.0.len()),
        );
        self.step(Sighting::Look(look));
    }

    // === actions ===

    fn step(&mut self, sighting: Sighting) {
        let now = self.ports.clock.now();
        for action in self.witness.step(sighting, now) {
            match action {
                Action::Send(message) => self.send(message),
                Action::Relist => self.ports.relist.contradicted(),
                Action::LookNow => self.want_look(now),
                Action::Save => self.unsaved = true,
                Action::SetMac { origin, set, trunk } => {
                    self.heal(Heal::SetMac { origin, set, trunk });
                }
                Action::ClearNeighbours(addresses) => self.heal(Heal::Neighbours(addresses)),
            }
        }
    }

    fn send(&mut self, message: FromAgent) {
        match &message {
            FromAgent::Release(release) => {
                let facts = release.facts();
                tracing::info!(uid = %facts.uid, way = ?facts.way, over = ?facts.over, enis = ?facts.enis, "release");
            }
            FromAgent::Suspect(suspect) => tracing::info!(pod = %suspect.pod(), "suspect"),
            _ => {}
        }
        let Some(outbound) = &self.outbound else {
            return;
        };
        if outbound.try_send(message).is_err() {
            // Full: the session ends, and the next one begins with everything. Closed: it has ended already.
            self.outbound = None;
        }
    }

    fn save(&mut self) {
        if !std::mem::take(&mut self.unsaved) {
            return;
        }
        self.shown.journal_error = None;
        if let Err(error) = self.ports.journal.save(&self.witness.journal()) {
            self.metrics.journal_failed();
            tracing::warn!(%error, "failed to write the journal");
            self.shown.journal_error = Some(error.to_string());
        }
    }

    fn show(&mut self) {
        self.shown.update(&self.witness, self.read);
        let status = &self.shown;
        self.metrics.view(ViewName::Pods, status.pods.count.is_some());
        self.metrics.view(ViewName::Links, status.links.count.is_some());
        self.metrics.view(ViewName::Cgroups, status.cgroups.count.is_some());
        self.metrics.view(ViewName::Kubelet, status.kubelet_start_ns.is_some());
        let pods = status.pods.count.unwrap_or_default();
        self.metrics.counts(pods, status.branches, status.cases.len());
        self.status.send_if_modified(|old| {
            let changed = *old != self.shown;
            if changed {
                old.clone_from(&self.shown);
            }
            changed
        });
    }
}

/// Waits for what is under way; only called while something is.
async fn wait_for<T>(under_way: &mut Option<BoxFuture<'static, T>>) -> T {
    match under_way {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
