//! What the coordinator counts. Labels are closed enums, never names or UIDs. The peer's names are in [`peer`].

pub mod brakes;
pub mod peer;

use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use trunkline_core::heal::Health;
use trunkline_core::wait::Step;
use trunkline_kit::metrics::{CounterBy, closed_label, registered};

use brakes::Brakes;
use peer::PeerMetrics;

closed_label! {
    /// Why a session was refused or ended.
    pub enum SessionEnd {
        /// The greeting was refused.
        Refused => "refused",
        /// Sent to the leader.
        Redirected => "redirected",
        /// No heartbeat for too long.
        Silent => "silent",
        /// Its token expired.
        Expired => "expired",
        /// A newer session of the node.
        Replaced => "replaced",
        /// The stream broke or was closed.
        Disconnected => "disconnected",
    }
}

closed_label! {
    enum ReleaseStep {
        Disassociate => "disassociate",
        Delete => "delete",
    }
}

closed_label! {
    enum Outcome {
        Ready => "ready",
        Failed => "failed",
    }
}

closed_label! {
    enum Loss {
        Missing => "missing",
        Disassociated => "disassociated",
        LinkDiffers => "link-differs",
        Other => "other",
    }
}

/// Upper bounds in seconds: an association is made again within a second, a new ENI takes the time that must pass before
/// its loss is believed.
const HEAL_SECONDS: [f64; 10] = [0.5, 1.0, 5.0, 15.0, 30.0, 45.0, 60.0, 120.0, 360.0, 900.0];

/// The coordinator's own metrics.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// 1 while leading.
    pub leading: Gauge,
    /// Sessions that are open.
    pub sessions: Gauge,
    /// Under the peer's names.
    pub peer: PeerMetrics,
    /// Fuse and mode.
    pub brakes: Brakes,
    ends: CounterBy<SessionEnd>,
    releases: CounterBy<ReleaseStep>,
    inits: CounterBy<Outcome>,
    /// Branches of running pods that are lost, or seem so.
    pub lost: Gauge,
    heals: CounterBy<Loss>,
    heal_seconds: Histogram,
}

impl Metrics {
    /// Registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let heal_seconds = Histogram::new(HEAL_SECONDS);
        registry.register(
            "trunkline_heal_seconds",
            "From the first sign of a loss to a branch that works again",
            heal_seconds.clone(),
        );
        Self {
            leading: registered(registry, "trunkline_leading", "1 while this coordinator leads"),
            sessions: registered(
                registry,
                "trunkline_agent_sessions",
                "Agent sessions that are open",
            ),
            lost: registered(
                registry,
                "trunkline_lost_branches",
                "Branches of running pods that are lost, or seem so",
            ),
            heal_seconds,
            heals: CounterBy::register(
                registry,
                "trunkline_heals",
                "Branches of running pods that were repaired in place, by what had been lost",
                "loss",
            ),
            ends: CounterBy::register(
                registry,
                "trunkline_agent_session_ends",
                "Agent sessions that ended or were refused",
                "end",
            ),
            releases: CounterBy::register(
                registry,
                "trunkline_releases",
                "Branches disassociated and deleted",
                "step",
            ),
            inits: CounterBy::register(
                registry,
                "trunkline_node_inits",
                "Rounds of node set-up",
                "outcome",
            ),
            peer: PeerMetrics::register(registry),
            brakes: Brakes::register(registry),
        }
    }

    /// A session ended, or was refused.
    pub fn session_end(&self, end: SessionEnd) {
        self.ends.inc(end);
    }

    /// A release step was carried out.
    pub fn released(&self, step: Step) {
        let delete = step == Step::Delete;
        self.releases.inc(if delete { ReleaseStep::Delete } else { ReleaseStep::Disassociate });
    }

    /// A lost branch works again.
    pub fn healed(&self, loss: Health, took: Duration) {
        self.heals.inc(match loss {
            Health::Missing => Loss::Missing,
            Health::Disassociated => Loss::Disassociated,
            Health::LinkDiffers => Loss::LinkDiffers,
            _ => Loss::Other,
        });
        self.heal_seconds.observe(took.as_secs_f64());
    }

    /// A round of node set-up ended.
    pub fn init(&self, ready: bool) {
        self.inits.inc(if ready { Outcome::Ready } else { Outcome::Failed });
    }
}
