//! What a person sees: `/status` as JSON, and readiness with a sentence for each reason.

use serde::Serialize;
use trunkline_core::fact::Way;
use trunkline_core::message::Heartbeat;
use trunkline_core::view::Blind;
use trunkline_core::witness::{CaseState, Witness};

/// Parts of readiness, in the order in which they are shown.
pub const CHECKS: [&str; 5] = ["pods", "cgroups", "links", "kubelet", "session"];

/// The agent as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Default)]
pub struct AgentStatus {
    /// Node name.
    pub node: String,
    /// Boot id.
    pub boot: String,
    /// Kubelet start (ctime of its socket, nanoseconds since the Unix epoch); null while it is silent.
    pub kubelet_start_ns: Option<u64>,
    /// The session.
    pub session: SessionStatus,
    /// MAC of the node's trunk; null while the coordinator names none.
    pub trunk: Option<String>,
    /// The pod view.
    pub pods: ViewStatus,
    /// The cgroup view.
    pub cgroups: ViewStatus,
    /// The link view.
    pub links: ViewStatus,
    /// Branches that the coordinator holds for this node.
    pub branches: usize,
    /// Pods that are over and whose branches are not deleted yet.
    pub cases: Vec<CaseStatus>,
    /// Why the journal could not be written, if so.
    pub journal_error: Option<String>,
}

/// The session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum SessionStatus {
    /// Open.
    Connected {
        /// Epoch of the term.
        epoch: u64,
    },
    /// None.
    Waiting {
        /// Why.
        reason: String,
    },
}

impl Default for SessionStatus {
    fn default() -> Self {
        Self::Waiting { reason: "no coordinator was dialled yet".into() }
    }
}

/// A view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Default)]
pub struct ViewStatus {
    /// How many items it holds; null while it is unknown.
    pub count: Option<usize>,
    /// Why it is unknown (closed set of short names).
    pub reason: Option<&'static str>,
    /// The same for a person.
    pub sentence: Option<&'static str>,
}

impl ViewStatus {
    fn new(count: usize, blind: Option<Blind>) -> Self {
        Self {
            count: blind.is_none().then_some(count),
            reason: blind.map(Blind::name),
            sentence: blind.map(Blind::sentence),
        }
    }
}

/// A pod that is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CaseStatus {
    /// Namespace, name and UID.
    pub pod: String,
    /// How far the evidence is (closed set of short names).
    pub state: &'static str,
    /// What is awaited.
    pub sentence: &'static str,
}

/// Short name and sentence of a case's state.
fn describe(state: CaseState) -> (&'static str, &'static str) {
    match state {
        CaseState::KubeletUidUnknown => (
            "kubelet-uid-unknown",
            "the static pod's hash is unknown, so its cgroup cannot be told from others; kept",
        ),
        CaseState::KubeletHolds => (
            "kubelet-holds",
            "the pod's cgroup has to go, or five minutes of valid looks without it and its links have to pass",
        ),
        CaseState::LinkRemains => {
            ("link-remains", "the kubelet is done, but a link of the branch is still there")
        }
        CaseState::Complete(Way::SeenAndGone) => {
            ("reported", "the evidence is complete and told to the coordinator")
        }
        CaseState::Complete(Way::Slow) => {
            ("reported-slow", "the slow evidence is complete and told to the coordinator")
        }
    }
}

impl AgentStatus {
    /// What the witness shows. `read`: numbers of cgroups and links in the last look.
    pub(crate) fn update(&mut self, witness: &Witness, read: (usize, usize)) {
        let Heartbeat { boot, kubelet, pods, links, cgroups } = witness.heartbeat();
        self.boot = boot.to_string();
        self.kubelet_start_ns = kubelet.map(|k| k.0);
        self.trunk = witness.trunk().map(|mac| mac.to_string());
        self.pods = ViewStatus::new(witness.pods().unwrap_or_default(), pods);
        self.cgroups = ViewStatus::new(read.0, cgroups);
        self.links = ViewStatus::new(read.1, links);
        self.branches = witness.owned();
        self.cases = witness
            .cases()
            .map(|(pod, state)| {
                let (state, sentence) = describe(state);
                CaseStatus { pod: pod.to_string(), state, sentence }
            })
            .collect();
    }

    /// Why one of [`CHECKS`] is not ready. A node without a trunk is ready: nothing has to be proven there.
    pub fn unready(&self, check: &str) -> Option<String> {
        let view = |view: &ViewStatus| view.sentence.map(str::to_owned);
        match check {
            "pods" => view(&self.pods),
            "cgroups" => view(&self.cgroups),
            "links" if self.links.reason == Some(Blind::TrunkUnknown.name()) => None,
            "links" => view(&self.links),
            "kubelet" if self.kubelet_start_ns.is_none() => {
                Some(Blind::KubeletSilent.sentence().to_owned())
            }
            "session" => match &self.session {
                SessionStatus::Connected { .. } => None,
                SessionStatus::Waiting { reason } => Some(reason.clone()),
            },
            _ => None,
        }
    }
}
