//! Leader election by client-go's rules (`kube.md` §5), with a deadline that fences our own calls.
//!
//! * The age of somebody else's lease is measured only on our own clock, from the moment its record was *seen* to
//!   change; times written by other hosts are never compared with ours.
//! * Every write is a PUT with the resourceVersion that was read, so a race ends with 409 for one side.
//! * A PUT without answer may have been executed; the next look decides.
//! * A term's [`Deadline`] runs out one renew deadline after the last successful renewal was *sent*. Whoever acts for
//!   the term asks it before each call. It belongs to one term and never comes back to life, so that work left over
//!   from a lost term cannot go on under the next one.
//! * A Lease that vanishes while we lead ends the term: somebody may have led in between.
//!
//! A lease alone never fences; epochs ([`crate::epoch`]) do the rest. The peer's election uses the same Lease, so that
//! it and we cannot lead at once; what it writes is kept, and its record's own duration is honoured. Its lease has no
//! address of ours: `trunkline.dev/leader-address` counts only while `trunkline.dev/leader-holder` names the holder.

mod elector;
mod record;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use trunkline_core::time::Moment;

use crate::api::{Api, Timeouts};
use crate::clock::Clock;

/// Annotation with the leader's gRPC address.
pub const LEADER_ADDRESS: &str = "trunkline.dev/leader-address";
/// Annotation with the holder identity that wrote [`LEADER_ADDRESS`].
pub const LEADER_HOLDER: &str = "trunkline.dev/leader-holder";

/// How to run for leadership.
#[derive(Debug, Clone)]
pub struct LeaseSettings {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Who we are; must be new per process, see [`identity`].
    pub identity: String,
    /// Address written while leading.
    pub address: Option<String>,
    /// How long others wait after our last renewal (15 s).
    pub lease_duration: Duration,
    /// How long we act after sending our last successful renewal (10 s).
    pub renew_deadline: Duration,
    /// Pause between attempts (2 s).
    pub retry_period: Duration,
}

impl LeaseSettings {
    /// client-go's durations: 15, 10 and 2 s.
    pub fn new(namespace: &str, name: &str, identity: String) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity,
            address: None,
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }

    /// Why these durations cannot work (client-go's rules), if they cannot.
    pub fn problem(&self) -> Option<String> {
        if self.lease_duration <= self.renew_deadline {
            return Some("the lease duration must be longer than the renew deadline".into());
        }
        if self.renew_deadline <= self.retry_period.mul_f64(1.2) {
            return Some(
                "the renew deadline must be longer than 1.2 times the retry period".into(),
            );
        }
        if self.retry_period.is_zero() || self.lease_duration < Duration::from_secs(1) {
            return Some(
                "the lease duration must be at least 1 s and the retry period above zero".into(),
            );
        }
        None
    }
}

/// A holder identity: the pod's UID and a random part, new per process.
pub fn identity(pod_uid: &str) -> String {
    format!("{pod_uid}_{:016x}", crate::random::bits64())
}

/// Until when a term may act, on the clock of the lease. Cheap to clone; all clones are one deadline.
#[derive(Debug, Clone)]
pub struct Deadline(Arc<AtomicU64>);

impl Deadline {
    /// A deadline that never expires: for a process that runs without election.
    pub fn never() -> Self {
        Self(Arc::new(AtomicU64::new(u64::MAX)))
    }

    /// A deadline at a moment; for tests and for doubles of the election.
    pub fn at(moment: Moment) -> Self {
        Self(Arc::new(AtomicU64::new(moment.0)))
    }

    /// True once the term must not act any more.
    pub fn expired(&self, now: Moment) -> bool {
        now >= self.moment()
    }

    /// The moment at which it runs out, unless a renewal moves it.
    pub fn moment(&self) -> Moment {
        Moment(self.0.load(Ordering::SeqCst))
    }

    /// Ends it at once and for good.
    pub fn end(&self) {
        self.0.store(0, Ordering::SeqCst);
    }

    /// Moves it, unless it was ended.
    fn renew(&self, until: Moment) {
        let keep_ended = |held: u64| (held != 0).then_some(until.0);
        // An ended deadline stays ended; both outcomes are right.
        let _moved = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, keep_ended);
    }
}

/// One term of leadership in this process.
#[derive(Debug, Clone)]
pub struct Term {
    /// Counts the terms of this process, from 1.
    pub number: u64,
    /// The Lease's `leaseTransitions` (one of the epoch's lower bounds).
    pub transitions: u64,
    /// Until when the term may act.
    pub deadline: Deadline,
}

/// Whether we lead.
#[derive(Debug, Clone)]
pub enum Leadership {
    /// Another leads, or nobody.
    Following {
        /// Where the leader can be dialled, if it says so.
        leader_address: Option<String>,
    },
    /// We lead.
    Leading(Term),
}

impl Leadership {
    /// The term, while we lead.
    pub fn term(&self) -> Option<&Term> {
        match self {
            Self::Leading(term) => Some(term),
            Self::Following { .. } => None,
        }
    }
}

/// An election that is not running yet.
pub struct Election {
    api: Api,
    clock: Clock,
    settings: LeaseSettings,
    out: watch::Sender<Leadership>,
}

impl Election {
    /// Prepares it; the receiver shows `Following` without address until something is known.
    pub fn new(
        api: &Api,
        clock: Clock,
        settings: LeaseSettings,
    ) -> (Self, watch::Receiver<Leadership>) {
        let (out, receiver) = watch::channel(Leadership::Following { leader_address: None });
        let bound = settings.renew_deadline / 2;
        let api = api.with_timeouts(Timeouts { headers: bound, read: bound });
        (Self { api, clock, settings, out }, receiver)
    }

    /// Runs until `release` is cancelled; then, if we lead, ends the term and clears the holder so that another can
    /// take over at once. Cancel it only when everything that acts for the term has stopped.
    pub async fn run(self, release: CancellationToken) {
        elector::run(self, release).await;
    }
}
