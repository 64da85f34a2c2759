//! One term of leadership after another, as the election gives and takes them.
//!
//! Losing the lease ends a term and nothing else: its fences refuse further writes by the deadline, its tasks end, and the
//! process goes on as a follower. A term that cannot begin (EC2 credentials, the state ConfigMap) is tried again while the
//! lease is held.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use trunkline_core::id::{Epoch, TermNonce};
use trunkline_core::limits::Limits;
use trunkline_core::mode::Mode;
use trunkline_core::node::event::Settings;
use trunkline_core::verdict;
use trunkline_kit::backoff::Backoff;
use trunkline_kit::clock::Clock;
use trunkline_kit::epoch::{EpochError, StateStore};
use trunkline_kit::lease::{self, Leadership};
use trunkline_kit::listwatch::ListWatchMetrics;
use trunkline_kit::random;
use trunkline_kit::readiness::ReadyHandle;

use crate::api::{Api, chain};
use crate::cloud::Clouds;
use crate::config::Config;
use crate::control::{self, ConfigMapShelf, Control};
use crate::ec2::LeaseFence;
use crate::grpc::admission::Sessions;
use crate::grpc::{Lead, Leading};
use crate::identity::Verifier;
use crate::ledger::Ledger;
use crate::metrics::Metrics;
use crate::run::{OLDEST_MINOR, RunError};
use crate::term::{Parts, Term};
use crate::{events, inventory, reaper, watchers};

/// Name of the agents' ServiceAccount (design §8).
const AGENT_ACCOUNT: &str = "trunkline-agent";
/// How long a term waits for the CNI's ConfigMap before it goes on with the default cooldown.
const CONFIGMAP_PATIENCE: Duration = Duration::from_secs(5);

/// Begins and ends terms.
pub(crate) struct Terms {
    pub(crate) config: Config,
    pub(crate) kube: trunkline_kit::api::Api,
    pub(crate) limits: Limits,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    pub(crate) watch_metrics: ListWatchMetrics,
    pub(crate) clouds: Arc<dyn Clouds>,
    pub(crate) lead: watch::Sender<Lead>,
    pub(crate) higher: mpsc::Receiver<Epoch>,
    pub(crate) reported: Option<Epoch>,
    pub(crate) ready: ReadyHandle,
    pub(crate) ledger: Ledger,
}

impl Terms {
    /// Follows the election until told to stop.
    pub(crate) async fn run(
        mut self,
        mut leadership: watch::Receiver<Leadership>,
        stop: CancellationToken,
    ) -> Result<(), RunError> {
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            checked = self.check_version() => checked?,
        }
        loop {
            if stop.is_cancelled() {
                return Ok(());
            }
            let now = leadership.borrow_and_update().clone();
            match now {
                Leadership::Following { leader_address } => {
                    self.ready.set_ready();
                    self.lead.send_replace(Lead::Following { address: leader_address });
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => return Ok(()),
                        changed = leadership.changed() => if changed.is_err() { return Ok(()) },
                    }
                }
                Leadership::Leading(term) => {
                    self.metrics.leading.set(1);
                    self.lead.send_replace(Lead::Beginning);
                    self.lead_once(&term, &mut leadership, &stop).await;
                    self.lead.send_replace(Lead::Following { address: None });
                    self.metrics.leading.set(0);
                }
            }
        }
    }

    /// Design §7: an older API server is refused clearly. One that does not answer is asked again.
    async fn check_version(&self) -> Result<(), RunError> {
        #[derive(Deserialize)]
        struct Version {
            major: String,
            minor: String,
            #[serde(rename = "gitVersion")]
            git: String,
        }
        let mut backoff = Backoff::new(self.config.timing.retry_base, Duration::from_secs(10));
        loop {
            match self.kube.get::<Version>("/version").await {
                Ok(version) => {
                    let digits: String =
                        version.minor.chars().take_while(char::is_ascii_digit).collect();
                    // A version that cannot be read is not an old one.
                    let old = version.major == "1"
                        && digits.parse::<u32>().is_ok_and(|m| m < OLDEST_MINOR);
                    tracing::info!(kubernetes = version.git, "API server");
                    return if old { Err(RunError::TooOld(version.git)) } else { Ok(()) };
                }
                Err(e) => {
                    self.ready
                        .set_unready(format!("the API server does not answer: {}", chain(&e)));
                    tracing::warn!("the API server does not answer: {}", chain(&e));
                    tokio::time::sleep(Duration::from_millis(500) + backoff.next_delay()).await;
                }
            }
        }
    }

    /// One term, from taking an epoch to its end, whatever ends it.
    async fn lead_once(
        &mut self,
        term: &lease::Term,
        leadership: &mut watch::Receiver<Leadership>,
        stop: &CancellationToken,
    ) {
        let number = term.number;
        let lost = {
            let mut leadership = leadership.clone();
            async move {
                // A closed channel means that nobody takes the lease away.
                if leadership
                    .wait_for(|l| l.term().is_none_or(|t| t.number != number))
                    .await
                    .is_err()
                {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::pin!(lost);
        self.ready.set_unready("a term of leadership begins");
        let begun = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = &mut lost => return,
            begun = self.begin(term) => begun,
        };
        let Some((running, settings)) = begun else {
            // The lease may be gone already; its owner says so in a moment.
            tokio::time::sleep(Duration::from_millis(200)).await;
            return;
        };
        let term_stop = running.stop.clone();
        tracing::info!(epoch = %running.term.epoch, "leading");
        let setup = self.set_up(running.clone(), settings);
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = &mut lost => tracing::warn!("the lease is lost; the term ends"),
            () = term_stop.cancelled() => {}
            () = setup => {}
        }
        self.lead.send_replace(Lead::Following { address: None });
        running.end().await;
        // Followers say nothing of the fuse.
        self.metrics.brakes.fuse(0, false, false);
        tracing::info!(epoch = %running.term.epoch, "the term has ended");
    }

    /// Takes an epoch and builds what lives in the term; `None` to try again.
    async fn begin(&mut self, term: &lease::Term) -> Option<(Arc<Term>, watch::Sender<Settings>)> {
        let store = StateStore::new(self.kube.clone(), self.config.namespace.as_str(), self.clock);
        let mut backoff = Backoff::new(self.config.timing.retry_base, Duration::from_secs(5));
        let state = loop {
            match store.begin(term, self.reported).await {
                Ok(state) => break state,
                Err(EpochError::TermOver) => return None,
                Err(e @ EpochError::Jump { .. }) => {
                    tracing::error!("{e}");
                    self.reported = None;
                }
                Err(e) => {
                    let text = chain(&e);
                    tracing::error!("no epoch for the term: {text}");
                    self.ready.set_unready(text);
                    tokio::time::sleep(Duration::from_millis(200) + backoff.next_delay()).await;
                }
            }
        };
        self.reported = None;
        let timing = self.config.timing;
        let (settings_tx, in_force) = watch::channel(Settings {
            cooldown: timing.cooldown_default.max(timing.cooldown_floor),
            vlan_rest: self.config.vlan_rest.max(timing.cooldown_default),
            // Until the stored mode has been looked at, in a moment.
            read_only: true,
            no_release: true,
            heal: self.config.heal,
            restore_groups: self.config.restore_groups,
        });
        let fence = Arc::new(LeaseFence {
            deadline: term.deadline.clone(),
            clock: self.clock,
            settings: in_force.clone(),
        });
        let (cloud, work) = match self.clouds.open(fence.clone()).await {
            Ok(opened) => opened,
            Err(text) => {
                tracing::error!("EC2 cannot be set up: {text}");
                self.ready.set_unready(text);
                tokio::time::sleep(Duration::from_secs(2)).await;
                return None;
            }
        };
        let api = Api::new(self.kube.client().clone(), fence);
        let (board, keep) =
            inventory::board(cloud.clone(), self.clock, timing, self.config.inventory_interval);
        let (recorder, write_events) = events::recorder(api.clone());
        let parts = control::Parts {
            shelf: Box::new(ConfigMapShelf { store, term: term.clone() }),
            settings: settings_tx.clone(),
            recorder: recorder.clone(),
            metrics: self.metrics.brakes.clone(),
            namespace: self.config.namespace.clone(),
            retry_base: timing.retry_base,
        };
        let flags = Mode::from_flags(self.config.read_only, self.config.no_release);
        let control = Control::begin(parts, flags, state.mode.as_deref(), state.fuse.as_deref());
        let running = Term::begin(Parts {
            cluster: self.config.cluster.clone(),
            term: verdict::Term { epoch: state.epoch, nonce: TermNonce(random::bits64()) },
            api,
            cloud,
            board,
            recorder,
            settings: in_force,
            limits: self.limits.clone(),
            clock: self.clock,
            timing,
            node_writes: self.config.node_writes,
            metrics: self.metrics.clone(),
            control: control.clone(),
            ledger: self.ledger.clone(),
        });
        running.spawn(control.keep_saved());
        running.spawn(keep);
        running.settle_inventory();
        running.spawn(work);
        running.spawn(write_events);
        Some((running, settings_tx))
    }

    /// Starts the term's work and serves agents; returns when the term has to be begun anew.
    async fn set_up(&mut self, term: Arc<Term>, settings: watch::Sender<Settings>) {
        let (changes_tx, mut changes) = mpsc::channel(16);
        let cooldown_read = CancellationToken::new();
        let cooldown = watchers::Cooldown {
            settings,
            vlan_rest: self.config.vlan_rest,
            changed: changes_tx,
            read: cooldown_read.clone(),
        };
        let metrics = self.watch_metrics.clone();
        term.spawn(watchers::follow_cooldown(term.clone(), metrics, cooldown));
        watchers::start_nodes(&term, &self.watch_metrics);
        term.spawn(reaper::run(term.clone()));
        let namespace = self.config.namespace.as_str();
        let verifier =
            Arc::new(Verifier::new(term.api.clone(), self.clock, namespace, AGENT_ACCOUNT));
        let sessions = Arc::new(Sessions::new(term.clone(), verifier));
        self.ready.set_unready("Nodes and CNINodes are being listed");
        term.directory.completed().await;
        // Without an answer the default cooldown is in force, as long as it takes.
        let _patience = tokio::time::timeout(CONFIGMAP_PATIENCE, cooldown_read.cancelled()).await;
        self.lead.send_replace(Lead::Leading(Leading { term: term.clone(), sessions }));
        self.ready.set_unready("EC2 is being read");
        let mut inventories = term.board.subscribe();
        loop {
            if term.board.last().is_some() {
                self.ready.set_ready();
            }
            tokio::select! {
                biased;
                Some(change) = changes.recv() => watchers::tell_cooldown(&term, &change),
                Some(epoch) = self.higher.recv() => {
                    if epoch > term.term.epoch {
                        tracing::warn!(%epoch, own = %term.term.epoch, "an agent has seen a higher epoch; the term begins anew");
                        self.reported = Some(epoch);
                        return;
                    }
                }
                Ok(()) = inventories.changed() => {}
            }
        }
    }
}
