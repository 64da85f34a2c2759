//! What is counted. Labels are closed enums.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use trunkline_core::message::{FromAgent, MacOutcome};
use trunkline_kit::metrics::{ClosedLabel, CounterBy, closed_label, registered};

closed_label! {
    /// Why an attempt gave no session, or a session ended.
    pub enum SessionEnd {
        /// No coordinator's address could be found.
        Unresolved => "unresolved",
        /// The token cannot be read.
        NoToken => "no-token",
        /// No connection, or no greeting.
        Unreachable => "unreachable",
        /// The stream broke.
        Lost => "lost",
        /// Sent to the leader.
        Redirected => "redirected",
        /// The coordinator did not accept the token, or not for this node.
        RefusedIdentity => "refused-identity",
        /// The node is unknown, reborn, or served by another agent.
        RefusedNode => "refused-node",
        /// Nobody leads.
        RefusedNoLeader => "refused-no-leader",
        /// The coordinator has to raise its epoch first.
        RefusedEpoch => "refused-epoch",
        /// Versions or messages do not fit.
        RefusedProtocol => "refused-protocol",
        /// Too much load on the coordinator.
        RefusedLoad => "refused-load",
        /// The coordinator's epoch is lower than one greeted before.
        LowerEpoch => "lower-epoch",
        /// The coordinator sent something that is refused.
        BadMessage => "bad-message",
        /// The coordinator does not read.
        TooSlow => "too-slow",
    }
}

closed_label! {
    /// Kinds of messages to the coordinator.
    pub enum Sent {
        /// Pods, whole or unknown.
        Pods => "pods",
        /// Links, whole or unknown.
        Links => "links",
        /// Cgroups, whole or unknown.
        Cgroups => "cgroups",
        /// VLANs used.
        VlansUsed => "vlans-used",
        /// A change.
        Change => "change",
        /// A suspect.
        Suspect => "suspect",
        /// Local facts.
        Release => "release",
        /// Sign of life.
        Heartbeat => "heartbeat",
        /// Answer to a barrier.
        Barrier => "barrier",
        /// What became of a change of a MAC.
        MacResult => "mac-result",
    }
}

closed_label! {
    /// What became of a change of a branch link's MAC.
    pub enum MacSet {
        /// Changed.
        Done => "done",
        /// Changed before.
        Already => "already",
        /// No link.
        LinkAbsent => "link-absent",
        /// Another MAC, or made anew.
        Differs => "differs",
        /// `--heal-in-place=false`.
        SwitchedOff => "switched-off",
        /// Refused, or not right after it.
        Failed => "failed",
    }
}

closed_label! {
    /// What is looked at.
    pub enum ViewName {
        /// Pods, by the API server.
        Pods => "pods",
        /// Links.
        Links => "links",
        /// Pod cgroups.
        Cgroups => "cgroups",
        /// The kubelet's socket.
        Kubelet => "kubelet",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ViewLabel {
    view: ViewName,
}

/// Metrics of the session.
#[derive(Debug, Clone)]
pub struct SessionMetrics {
    connected: Gauge,
    ends: CounterBy<SessionEnd>,
    sent: CounterBy<Sent>,
    foreign: Counter,
    resyncs: Counter,
}

impl SessionMetrics {
    /// Registers them.
    pub fn register(registry: &mut Registry) -> Self {
        Self {
            connected: registered(
                registry,
                "trunkline_agent_session_connected",
                "1 while a session is open",
            ),
            ends: CounterBy::register(
                registry,
                "trunkline_agent_session_ends",
                "Attempts that gave no session, and sessions that ended, by reason",
                "reason",
            ),
            sent: CounterBy::register(
                registry,
                "trunkline_agent_sent",
                "Messages to the coordinator, by kind",
                "kind",
            ),
            foreign: registered(
                registry,
                "trunkline_agent_foreign_messages",
                "Messages of another session or term, dropped",
            ),
            resyncs: registered(
                registry,
                "trunkline_agent_resyncs",
                "How often the coordinator asked for everything again",
            ),
        }
    }

    pub(crate) fn connected(&self, connected: bool) {
        self.connected.set(i64::from(connected));
    }

    pub(crate) fn ended(&self, end: SessionEnd) {
        self.ends.inc(end);
    }

    pub(crate) fn foreign(&self) {
        self.foreign.inc();
    }

    pub(crate) fn resync(&self) {
        self.resyncs.inc();
    }

    pub(crate) fn sent(&self, message: &FromAgent) {
        self.sent.inc(match message {
            FromAgent::Pods(_) => Sent::Pods,
            FromAgent::Links(_) => Sent::Links,
            FromAgent::Cgroups(_) => Sent::Cgroups,
            FromAgent::VlansUsed(_) => Sent::VlansUsed,
            FromAgent::Change(_) => Sent::Change,
            FromAgent::Suspect(_) => Sent::Suspect,
            FromAgent::Release(_) => Sent::Release,
            FromAgent::Heartbeat(_) => Sent::Heartbeat,
            FromAgent::Barrier(_) => Sent::Barrier,
            FromAgent::MacResult { .. } => Sent::MacResult,
        });
    }

    /// How often attempts or sessions ended for this reason.
    pub fn ends(&self, end: SessionEnd) -> u64 {
        self.ends.get(end)
    }

    /// How many messages of another session or term were dropped.
    pub fn foreigners(&self) -> u64 {
        self.foreign.get()
    }
}

/// Metrics of the loop.
#[derive(Debug, Clone)]
pub struct LoopMetrics {
    views: Family<ViewLabel, Gauge>,
    looks: Counter,
    blind_looks: Counter,
    pods: Gauge,
    owned: Gauge,
    cases: Gauge,
    journal_failures: Counter,
    macs: CounterBy<MacSet>,
}

impl LoopMetrics {
    /// Registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            views: registered(
                registry,
                "trunkline_agent_view_valid",
                "1 while the view says something, 0 while it is unknown",
            ),
            looks: registered(
                registry,
                "trunkline_agent_looks",
                "Looks at the kubelet, cgroups and links",
            ),
            blind_looks: registered(
                registry,
                "trunkline_agent_failed_looks",
                "Looks that failed or took too long as a whole",
            ),
            pods: registered(registry, "trunkline_agent_pods", "Pods in the view"),
            owned: registered(
                registry,
                "trunkline_agent_branches",
                "Branches that the coordinator holds for this node",
            ),
            cases: registered(
                registry,
                "trunkline_agent_open_cases",
                "Pods that are over and whose branches are not deleted yet",
            ),
            journal_failures: registered(
                registry,
                "trunkline_agent_journal_failures",
                "Journal writes that failed",
            ),
            macs: CounterBy::register(
                registry,
                "trunkline_agent_macs_set",
                "Changes of a branch link's MAC that the coordinator asked for, by outcome",
                "outcome",
            ),
        };
        for view in ViewName::all() {
            metrics.view(*view, false);
        }
        metrics
    }

    pub(crate) fn view(&self, view: ViewName, valid: bool) {
        self.views.get_or_create(&ViewLabel { view }).set(i64::from(valid));
    }

    pub(crate) fn look(&self, happened: bool) {
        self.looks.inc();
        if !happened {
            self.blind_looks.inc();
        }
    }

    pub(crate) fn counts(&self, pods: usize, owned: usize, cases: usize) {
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.pods.set(number(pods));
        self.owned.set(number(owned));
        self.cases.set(number(cases));
    }

    pub(crate) fn mac_set(&self, outcome: &MacOutcome) {
        self.macs.inc(match outcome {
            MacOutcome::Done => MacSet::Done,
            MacOutcome::Already => MacSet::Already,
            MacOutcome::LinkAbsent => MacSet::LinkAbsent,
            MacOutcome::Differs(_) => MacSet::Differs,
            MacOutcome::SwitchedOff => MacSet::SwitchedOff,
            MacOutcome::Failed(_) => MacSet::Failed,
        });
    }

    pub(crate) fn journal_failed(&self) {
        self.journal_failures.inc();
    }
}
