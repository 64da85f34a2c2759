//! One term of leadership: everything that lives exactly as long as it.
//!
//! A term begins knowing nothing (design §5): every node is Unknown until a closed snapshot of this term, nothing is
//! allocated before the EC2 inventory is whole. It ends at once: the fences of [`crate::api::Api`] and of the EC2 adapter
//! refuse further writes by the lease deadline, and all its tasks are stopped.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use trunkline_core::heal;
use trunkline_core::id::{ClusterName, InstanceId, NodeName};
use trunkline_core::limits::Limits;
use trunkline_core::node::event::{Settings, shows_all};
use trunkline_core::pace::Pace;
use trunkline_core::time::{Moment, Timing};
use trunkline_core::verdict;
use trunkline_kit::clock::Clock;

use crate::actor::{self, Actor, Mail};
use crate::api::Api;
use crate::cloud::Cloud;
use crate::control::Control;
use crate::events::Recorder;
use crate::inventory::Board;
use crate::ledger::Ledger;
use crate::metrics::Metrics;
use crate::nodes::directory::Directory;
use crate::nodes::init;
use crate::nodes::keeper::NodeState;

/// How long calls under way may go on when a term is drained.
const DRAIN: Duration = Duration::from_secs(5);

/// What a term needs from outside.
pub struct Parts {
    /// Cluster name.
    pub cluster: ClusterName,
    /// Epoch and nonce.
    pub term: verdict::Term,
    /// API server, writes fenced by this term's lease.
    pub api: Api,
    /// EC2, fenced by this term's lease.
    pub cloud: Arc<dyn Cloud>,
    /// Inventory.
    pub board: Board,
    /// Events.
    pub recorder: Recorder,
    /// Cooldown, VLAN rest and modes in force.
    pub settings: watch::Receiver<Settings>,
    /// Limits by type.
    pub limits: Limits,
    /// Clock.
    pub clock: Clock,
    /// Durations.
    pub timing: Timing,
    /// API writes of nodes at one time (`--max-node-reconcile`).
    pub node_writes: usize,
    /// Metrics.
    pub metrics: Metrics,
    /// Fuse and mode.
    pub control: Arc<Control>,
    /// What was released.
    pub ledger: Ledger,
}

/// A term. Shared by everything that runs in it.
pub struct Term {
    /// Cluster name.
    pub cluster: ClusterName,
    /// Epoch and nonce.
    pub term: verdict::Term,
    /// When it began.
    pub began: Moment,
    /// API server.
    pub api: Api,
    /// EC2.
    pub cloud: Arc<dyn Cloud>,
    /// Inventory.
    pub board: Board,
    /// Nodes and CNINodes.
    pub directory: Directory,
    /// Events.
    pub recorder: Recorder,
    /// Settings in force.
    pub settings: watch::Receiver<Settings>,
    /// What node initialisations share.
    pub init: init::Shared,
    /// Bounds the API writes of nodes.
    pub node_writes: Semaphore,
    /// Clock.
    pub clock: Clock,
    /// Durations.
    pub timing: Timing,
    /// Metrics.
    pub metrics: Metrics,
    /// Fuse and mode.
    pub control: Arc<Control>,
    /// What was released.
    pub ledger: Ledger,
    /// Ends everything of the term.
    pub stop: CancellationToken,
    /// Its tasks.
    pub tasks: TaskTracker,
    pace: Mutex<Pace>,
    evictions: Mutex<Pace>,
    lost: Mutex<HashMap<InstanceId, usize>>,
    actors: Mutex<BTreeMap<InstanceId, Handle>>,
    states: Mutex<BTreeMap<NodeName, NodeState>>,
    next_key: AtomicU64,
}

/// A way to a node's books.
#[derive(Debug, Clone)]
pub struct Handle {
    /// Name under which the instance is, or was last, known.
    pub node: NodeName,
    /// Mailbox.
    pub mail: mpsc::Sender<Mail>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Term {
    /// Begins a term.
    pub fn begin(parts: Parts) -> Arc<Self> {
        Arc::new(Self {
            cluster: parts.cluster,
            term: parts.term,
            began: parts.clock.now(),
            init: init::Shared {
                cloud: parts.cloud.clone(),
                limits: Arc::new(Mutex::new(parts.limits)),
                board: parts.board.clone(),
                subnets: Arc::default(),
                clock: parts.clock,
                timing: parts.timing,
                settings: parts.settings.clone(),
            },
            api: parts.api,
            cloud: parts.cloud,
            board: parts.board,
            directory: Directory::default(),
            recorder: parts.recorder,
            settings: parts.settings,
            node_writes: Semaphore::new(parts.node_writes.max(1)),
            clock: parts.clock,
            timing: parts.timing,
            metrics: parts.metrics,
            control: parts.control,
            ledger: parts.ledger,
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            pace: Mutex::new(Pace::of_cluster(parts.timing.pace_window)),
            evictions: Mutex::new(Pace::of_evictions(parts.timing.evict_window)),
            lost: Mutex::default(),
            actors: Mutex::default(),
            states: Mutex::default(),
            next_key: AtomicU64::new(0),
        })
    }

    /// From when on a reading of EC2 shows everything that earlier terms made.
    pub fn shows_all(&self) -> Moment {
        shows_all(self.began, &self.timing)
    }

    /// Asks for a reading as soon as one can show everything that earlier terms made: until then no node says "deleted".
    pub fn settle_inventory(self: &Arc<Self>) {
        let term = self.clone();
        self.spawn(async move {
            term.clock.sleep_until(term.shows_all()).await;
            term.board.since(term.shows_all()).await;
        });
    }

    /// Runs a task until it ends or the term does.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = task => {}
            }
        });
    }

    /// Ends the term. Calls under way may finish within a few seconds; nothing new is begun.
    pub async fn end(&self) {
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(DRAIN, self.tasks.wait()).await.is_err() {
            tracing::warn!(
                "calls under way did not end in time; the next term reads back what they did"
            );
        }
        lock(&self.actors).clear();
    }

    /// The books of an instance, begun if there are none (`D13`: keyed by instance id).
    pub fn actor(self: &Arc<Self>, instance: &InstanceId, node: &NodeName) -> Handle {
        let mut actors = lock(&self.actors);
        if let Some(handle) = actors.get_mut(instance) {
            handle.node = node.clone();
            return handle.clone();
        }
        let (mail, mailbox) = mpsc::channel(actor::MAILBOX);
        let actor = Actor::new(self.clone(), instance.clone(), node.clone(), mailbox);
        // Not `spawn`: an actor ends by itself, so that calls under way can finish.
        self.tasks.spawn(actor.run());
        let handle = Handle { node: node.clone(), mail };
        actors.insert(instance.clone(), handle.clone());
        handle
    }

    /// The books of a node, by the instance its Node object names now.
    pub fn actor_of(self: &Arc<Self>, node: &NodeName) -> Option<(InstanceId, Handle)> {
        let instance = self.directory.view(node)?.node?.instance().ok()?;
        let handle = self.actor(&instance, node);
        Some((instance, handle))
    }

    /// The name under which an instance is, or was last, known.
    pub fn name_of(&self, instance: &InstanceId) -> Option<NodeName> {
        lock(&self.actors).get(instance).map(|handle| handle.node.clone())
    }

    /// All books.
    pub fn actors(&self) -> Vec<(InstanceId, Handle)> {
        lock(&self.actors).iter().map(|(i, h)| (i.clone(), h.clone())).collect()
    }

    /// A place in the cluster's pace (design §4.5).
    pub fn pace(&self) -> Result<(), Moment> {
        let branches = self.board.last().map_or(0, |i| i.len());
        lock(&self.pace).take(branches, self.clock.now())
    }

    /// How many branches of running pods a node has lost, or seems to have.
    pub fn note_lost(&self, instance: &InstanceId, count: usize) {
        let mut lost = lock(&self.lost);
        if count == 0 {
            lost.remove(instance);
        } else {
            lost.insert(instance.clone(), count);
        }
        self.metrics.lost.set(i64::try_from(lost.values().sum::<usize>()).unwrap_or(i64::MAX));
    }

    /// Whether repairs may go on: not while too many of the cluster's branches are lost at once (design §4.5).
    pub fn may_heal(&self) -> Result<(), Moment> {
        let branches = self.board.last().map_or(0, |i| i.len());
        let lost: usize = lock(&self.lost).values().sum();
        if lost > heal::cluster_limit(branches) {
            tracing::warn!(lost, branches, "too many branches are lost at once, repairs wait");
            return Err(self.clock.now().plus(self.timing.heal_recheck));
        }
        Ok(())
    }

    /// A place among the evictions of pods that cannot be healed.
    pub fn may_evict(&self) -> Result<(), Moment> {
        let branches = self.board.last().map_or(0, |i| i.len());
        lock(&self.evictions).take(branches, self.clock.now())
    }

    /// EC2 allows no further branch on a trunk of this node: believed for its whole type (`LIM-2`).
    pub fn branch_limit_refused(&self, node: &NodeName, held: u32) {
        let Some(kind) = lock(&self.states).get(node).and_then(|s| s.kind.clone()) else {
            return;
        };
        let lowered = lock(&self.init.limits).lower_branches(&kind, held);
        if lowered {
            tracing::warn!(instance_type = %kind, branches = held, "EC2 allows fewer branches than the table says");
            self.directory.wake(None);
        }
    }

    /// Notes where a node is in its set-up.
    pub fn note(&self, node: &NodeName, change: impl FnOnce(&mut NodeState)) {
        let mut states = lock(&self.states);
        let state = states.entry(node.clone()).or_insert_with(|| NodeState::new(self.clock.now()));
        let before = state.name();
        change(state);
        if state.name() != before {
            state.since = self.clock.now();
        }
    }

    /// Forgets a node's set-up.
    pub fn forget(&self, node: &NodeName) {
        lock(&self.states).remove(node);
    }

    /// Where all nodes are in their set-up.
    pub fn states(&self) -> BTreeMap<NodeName, NodeState> {
        lock(&self.states).clone()
    }

    /// A number that no other session of this term has.
    pub fn session_key(&self) -> u64 {
        self.next_key.fetch_add(1, Ordering::Relaxed)
    }
}
