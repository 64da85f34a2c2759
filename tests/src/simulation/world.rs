//! Everything that is not ours in a run, and what is true in it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::registry::Registry;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use trunkline_coordinator::grpc::Shared;
use trunkline_coordinator::grpc::session::NodesService;
use trunkline_core::id::{NodeName, PodUid};
use trunkline_core::time::Moment;
use trunkline_kit::clock::Clock;

use super::Plan;
use super::api::store::{Store, text};
use super::dice::Dice;
use super::ec2::account::Account;
use super::losses::Losses;
use super::node::machine::Machine;
use super::record::Record;
use super::weather::{Place, Weather};

/// The life of one process. What it asks for after its end never leaves it.
#[derive(Debug)]
pub struct Life {
    /// Where it runs.
    pub place: Place,
    /// Cancelled when it ends, however it ends.
    pub over: CancellationToken,
}

impl Life {
    /// A process that begins.
    pub fn begin(place: Place) -> Arc<Self> {
        Arc::new(Self { place, over: CancellationToken::new() })
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }
}

/// Where agents find a coordinator.
#[derive(Clone)]
pub struct Door {
    /// The process.
    pub life: Arc<Life>,
    /// Its service.
    pub service: Arc<NodesService>,
    /// Who leads, as it knows it.
    pub shared: Shared,
}

/// The world of one run.
pub struct World {
    /// All chance.
    pub dice: Dice,
    /// Virtual time.
    pub clock: Clock,
    /// What kind of run it is.
    pub plan: Plan,
    /// Notified with every change that somebody may watch.
    pub store_moved: Notify,
    /// Cancelled when a promise was broken.
    pub alarm: CancellationToken,
    weather: Mutex<Weather>,
    store: Mutex<Store>,
    account: Mutex<Account>,
    machines: Mutex<BTreeMap<NodeName, Machine>>,
    doors: Mutex<BTreeMap<String, Door>>,
    record: Mutex<Record>,
    losses: Mutex<Losses>,
    metrics: Mutex<Vec<Registry>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    /// An empty world in fair weather. Must be made inside a runtime with paused time.
    pub fn new(seed: u64, plan: Plan) -> Arc<Self> {
        Arc::new(Self {
            dice: Dice::new(seed),
            clock: Clock::virtual_time(),
            record: Mutex::new(Record::new(plan.whole_record)),
            plan,
            store_moved: Notify::new(),
            alarm: CancellationToken::new(),
            weather: Mutex::default(),
            store: Mutex::default(),
            account: Mutex::default(),
            machines: Mutex::default(),
            doors: Mutex::default(),
            losses: Mutex::default(),
            metrics: Mutex::default(),
        })
    }

    /// Now.
    pub fn now(&self) -> Moment {
        self.clock.now()
    }

    /// The weather.
    pub fn weather(&self) -> MutexGuard<'_, Weather> {
        lock(&self.weather)
    }

    /// The API server's objects.
    pub fn store(&self) -> MutexGuard<'_, Store> {
        lock(&self.store)
    }

    /// EC2.
    pub fn account(&self) -> MutexGuard<'_, Account> {
        lock(&self.account)
    }

    /// The nodes' machines.
    pub fn machines(&self) -> MutexGuard<'_, BTreeMap<NodeName, Machine>> {
        lock(&self.machines)
    }

    /// Looks at a machine, or changes it.
    pub fn machine<T>(&self, node: &NodeName, look: impl FnOnce(&mut Machine) -> T) -> Option<T> {
        self.machines().get_mut(node).map(look)
    }

    /// Coordinators by address.
    pub fn doors(&self) -> MutexGuard<'_, BTreeMap<String, Door>> {
        lock(&self.doors)
    }

    /// The record.
    pub fn record(&self) -> MutexGuard<'_, Record> {
        lock(&self.record)
    }

    /// What live pods lost.
    pub fn losses(&self) -> MutexGuard<'_, Losses> {
        lock(&self.losses)
    }

    /// The metrics of all coordinators that were ever started.
    pub fn metrics(&self) -> MutexGuard<'_, Vec<Registry>> {
        lock(&self.metrics)
    }

    /// Counts what is not worth a line.
    pub fn count(&self, what: &'static str) {
        lock(&self.record).count(what);
    }

    /// Something happened.
    pub fn note(&self, line: &str) {
        lock(&self.record).note(self.now(), line);
    }

    /// Something happened, and is counted.
    pub fn happened(&self, what: &'static str, line: &str) {
        let mut record = lock(&self.record);
        record.count(what);
        record.note(self.now(), &format!("{what} {line}"));
    }

    /// A promise was broken.
    pub fn broken(&self, what: String) {
        lock(&self.record).broken(self.now(), what);
        self.alarm.cancel();
    }

    /// What the product says of a world that does not settle.
    pub fn explained(&self, why: Vec<String>) {
        lock(&self.record).explained(self.now(), why);
    }

    /// Whether these two cannot reach each other now.
    pub fn is_cut(&self, one: &Place, other: &Place) -> bool {
        let weather = self.weather();
        !weather.cuts.is_empty() && weather.is_cut(one, other)
    }

    /// Whether the API still has this pod, not ended.
    pub fn is_in_api(&self, uid: &PodUid) -> bool {
        self.store().pods().any(|(_, pod)| {
            text(pod, "/metadata/uid") == uid.as_str()
                && !matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
        })
    }

    /// The truth that I1 is judged by: containers of this pod run, or a kubelet may still start them.
    pub fn can_run(&self, uid: &PodUid) -> Option<&'static str> {
        if self.machines().values().any(|machine| machine.may_run(uid)) {
            return Some("its node runs it or may start it");
        }
        self.is_in_api(uid).then_some("the API server has it, and it has not ended")
    }
}
