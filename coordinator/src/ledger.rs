//! The record of releases: what was released, when, and what it rested on.
//!
//! One structured log line per release is the lasting record; the last ones are kept in memory for `trunkline releases`,
//! over changes of leader but not over a restart.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trunkline_core::fact::{GoneBy, Over, OverKind, Way};
use trunkline_core::id::{EniId, Epoch, InstanceId, NodeName, PodRef};
use trunkline_core::node::event::Released;
use trunkline_core::time::Moment;
use trunkline_core::verdict::Proof;
use trunkline_core::wait::Step;

/// Records that are kept.
const KEPT: usize = 4_096;

/// What an agent stated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stated {
    /// When it came, ms since the Unix epoch.
    pub received_ms: u64,
    /// Session it came by.
    pub session: String,
    /// How the pod was over.
    pub over: &'static str,
    /// How the kubelet had let go.
    pub way: &'static str,
    /// Boot id.
    pub boot: String,
    /// Kubelet start, ns since the Unix epoch.
    pub kubelet_start: u64,
}

/// What our own live GET said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confirmed {
    /// When it was answered, ms since the Unix epoch.
    pub at_ms: u64,
    /// What it said.
    pub said: &'static str,
    /// resourceVersion of what it returned; empty for NotFound.
    pub rv: String,
}

/// One release call that succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// When EC2 had answered, ms since the Unix epoch.
    pub at_ms: u64,
    /// Disassociate or Delete.
    pub step: Step,
    /// The ENI.
    pub eni: EniId,
    /// Its VLAN.
    pub vlan: u32,
    /// Its pod.
    pub pod: PodRef,
    /// The node.
    pub node: NodeName,
    /// The instance.
    pub instance: InstanceId,
    /// Epoch of the term.
    pub epoch: Epoch,
    /// EC2's request id; empty where it was gone already.
    pub request_id: String,
    /// The agent's statement.
    pub stated: Option<Stated>,
    /// Our own GET.
    pub confirmed: Option<Confirmed>,
    /// When the permit was given, ms since the Unix epoch; 0 without one.
    pub permitted_ms: u64,
}

fn over_name(over: OverKind) -> &'static str {
    match over {
        OverKind::Gone(GoneBy::WatchDeleted) => "watch-deleted",
        OverKind::Gone(GoneBy::GetNotFound) => "get-not-found",
        OverKind::Gone(GoneBy::GetOtherUid) => "get-other-uid",
        OverKind::Gone(GoneBy::Coordinator) => "coordinator-get",
        OverKind::Ended => "ended",
    }
}

fn said_name(own: &Over) -> &'static str {
    match own.kind() {
        OverKind::Gone(GoneBy::GetOtherUid) => "other-uid",
        OverKind::Gone(_) => "not-found",
        OverKind::Ended => "ended",
    }
}

fn way_name(way: Way) -> &'static str {
    match way {
        Way::SeenAndGone => "cgroup-seen-and-gone",
        Way::Slow => "slow",
    }
}

impl Record {
    /// Of a release that was carried out just now.
    pub fn new(
        released: &Released,
        node: &NodeName,
        instance: &InstanceId,
        epoch: Epoch,
        request_id: Option<String>,
        now: Moment,
    ) -> Self {
        let at_ms = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default();
        let wall = |moment: Moment| {
            at_ms.saturating_sub(u64::try_from(now.since(moment).as_millis()).unwrap_or(u64::MAX))
        };
        let basis = released.basis.as_ref();
        let proof = basis.and_then(|basis| match &basis.proof {
            Proof::Pod(proof) => Some((basis, proof)),
            Proof::Instance(_) => None,
        });
        let stated = proof.map(|(basis, proof)| {
            let reported = &proof.reported;
            let facts = reported.facts();
            Stated {
                received_ms: wall(basis.stated),
                session: reported.origin().session.to_string(),
                over: over_name(facts.over),
                way: way_name(facts.way),
                boot: facts.boot.to_string(),
                kubelet_start: facts.start.0,
            }
        });
        let confirmed = proof.map(|(basis, proof)| Confirmed {
            at_ms: wall(proof.own.at()),
            said: said_name(&proof.own),
            rv: basis.rv.as_ref().map(ToString::to_string).unwrap_or_default(),
        });
        Self {
            at_ms,
            step: released.step,
            eni: released.eni.clone(),
            vlan: released.vlan.get().into(),
            pod: released.pod.clone(),
            node: node.clone(),
            instance: instance.clone(),
            epoch,
            request_id: request_id.unwrap_or_default(),
            stated,
            confirmed,
            permitted_ms: basis.map_or(0, |basis| wall(basis.permitted)),
        }
    }

    fn log(&self) {
        let stated = self.stated.as_ref();
        let confirmed = self.confirmed.as_ref();
        tracing::info!(
            step = self.step.name(),
            eni = %self.eni,
            vlan = self.vlan,
            pod = %self.pod,
            uid = %self.pod.uid,
            node = %self.node,
            instance = %self.instance,
            epoch = %self.epoch,
            ec2_request_id = self.request_id,
            stated_ms = stated.map(|s| s.received_ms),
            session = stated.map(|s| s.session.as_str()),
            over = stated.map(|s| s.over),
            way = stated.map(|s| s.way),
            boot = stated.map(|s| s.boot.as_str()),
            kubelet_start_ns = stated.map(|s| s.kubelet_start),
            get_ms = confirmed.map(|c| c.at_ms),
            get_said = confirmed.map(|c| c.said),
            get_rv = confirmed.map(|c| c.rv.as_str()),
            permitted_ms = self.permitted_ms,
            at_ms = self.at_ms,
            "released"
        );
    }
}

/// The last records of this process. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Ledger(Arc<Mutex<VecDeque<Record>>>);

impl Ledger {
    /// Logs a record and keeps it.
    pub fn record(&self, record: Record) {
        record.log();
        let mut kept = self.lock();
        if kept.len() >= KEPT {
            kept.pop_back();
        }
        kept.push_front(record);
    }

    /// Those that are wanted, newest first.
    pub fn select(&self, wanted: impl Fn(&Record) -> bool) -> Vec<Record> {
        self.lock().iter().filter(|record| wanted(record)).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Record>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
