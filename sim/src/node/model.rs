//! What the node simulator says over HTTP. All times are milliseconds: `time_ms` since the Unix epoch, `mono_ms` since
//! the simulator's start.

use serde::{Deserialize, Serialize};

/// What happened to a pod, or to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// The pod's cgroup directory was made.
    CgroupMade,
    /// CNI ADD was refused; `detail` says why. Logged once per reason; the runtime tries again for ever.
    AddFailed,
    /// CNI ADD succeeded: the link exists (for a pod without a branch: nothing was made).
    Add,
    /// The process runs and the API server was told so.
    Running,
    /// A tear-down began; `detail` says why.
    Del,
    /// The process ended.
    ProcessEnded,
    /// The pod's link was removed.
    LinkGone,
    /// The API server was told a terminal phase (`detail`).
    Ended,
    /// The pod's cgroup directory was removed.
    CgroupGone,
    /// The simulated kubelet deleted the API object with grace 0.
    ObjectDeleted,
    /// A link was removed or made by an admin call, or by another pod's ADD or DEL of the same name.
    LinkChanged,
    /// The node joined.
    NodeJoined,
    /// The trunk link was made.
    TrunkUp,
    /// The CNI wrote its feature into the CNINode.
    FeatureWritten,
    /// The kubelet (re)started: its socket has a new ctime.
    KubeletStarted,
    /// The kubelet was stopped: its socket refuses.
    KubeletStopped,
    /// The sandbox died and is made anew in the same pod.
    SandboxRestarted,
    /// The node rebooted: a new boot id, no links, no cgroups.
    Rebooted,
}

/// One line of the append-only record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// 1, 2, 3… without holes.
    pub seq: u64,
    /// Wall time.
    pub time_ms: i64,
    /// Time since the simulator's start; never goes back.
    pub mono_ms: u64,
    /// Node name.
    pub node: String,
    /// Pod UID; empty for what concerns the node.
    #[serde(default)]
    pub uid: String,
    /// `namespace/name` of the pod; empty for what concerns the node.
    #[serde(default)]
    pub pod: String,
    /// What happened.
    pub what: What,
    /// ENI of the pod's annotation, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eni: Option<String>,
    /// VLAN of the pod's annotation, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// A reason or a name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// A pod that has something left on its node: a process, a link or a cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodState {
    /// Node name.
    pub node: String,
    /// Pod UID (for a static pod: of its current or last mirror).
    pub uid: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// The UID by which the kubelet knows the pod: `config.hash` for a static pod, else `uid`.
    pub kubelet_uid: String,
    /// Whether its first container asks for a branch.
    pub wants_branch: bool,
    /// The process runs.
    pub running: bool,
    /// The cgroup directory exists.
    pub cgroup: bool,
    /// The branch that ADD took from the annotation, until its link is torn down.
    pub branch: Option<BranchState>,
    /// Whether a link of the branch's name *and* MAC exists now.
    pub link_up: bool,
}

/// What ADD took from the annotation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BranchState {
    /// ENI id.
    pub eni: String,
    /// VLAN id.
    pub vlan: u16,
    /// MAC, lower case.
    pub mac: String,
    /// Address the pod got.
    pub ip: String,
}

/// A link of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkState {
    /// Name.
    pub name: String,
    /// MAC, lower case.
    pub mac: String,
}

/// A simulated node, with the values of the agent's flags (design §8).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeState {
    /// Node name.
    pub name: String,
    /// Instance id from `spec.providerID`; `None` when there is none.
    pub instance: Option<String>,
    /// `--cgroup-root`.
    pub cgroup_root: String,
    /// `--kubelet-socket`.
    pub kubelet_socket: String,
    /// `--boot-id-file`.
    pub boot_id_file: String,
    /// `--host-netns`; `None` with `--links none`.
    pub host_netns: Option<String>,
    /// `--state-dir`, made empty.
    pub state_dir: String,
    /// MAC of the trunk link, once it exists.
    pub trunk: Option<String>,
    /// Whether the CNI's feature was written.
    pub feature: bool,
    /// Whether the kubelet runs.
    pub kubelet_up: bool,
    /// Whether ADDs are held.
    pub hold_add: bool,
}

/// `POST /_sim/nodes`: let a node join. Its Node object may appear later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Join {
    /// Node name.
    pub node: String,
}

/// `POST /_sim/hold-add`: hold or free CNI ADD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldAdd {
    /// Node name; `None`: every node.
    #[serde(default)]
    pub node: Option<String>,
    /// Hold (true) or free (false).
    pub hold: bool,
}

/// What is done to a kubelet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KubeletAction {
    /// Stop and start: the socket gets a new ctime.
    Restart,
    /// Stop: the socket refuses and no pod is acted on.
    Stop,
    /// Start after a stop.
    Start,
    /// The whole node reboots: new boot id, no links, no cgroups; pods that are still in the API start again.
    Reboot,
    /// The machine stops: no kubelet, no links, no cgroups. API objects stay. `Reboot` brings it back.
    PowerOff,
}

/// `POST /_sim/kubelet`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubeletCommand {
    /// Node name.
    pub node: String,
    /// What to do.
    pub action: KubeletAction,
}

/// `POST /_sim/links`: remove a link, or (with a MAC) make one, replacing a link of that name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkCommand {
    /// Node name.
    pub node: String,
    /// Link name, `vlan.eth.N`.
    pub name: String,
    /// MAC of the link to make; `None` removes.
    #[serde(default)]
    pub mac: Option<String>,
}

/// `POST /_sim/static-pods`: the manifest of a static pod is taken away; its sandbox ends in the measured order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveStatic {
    /// Node name.
    pub node: String,
    /// `kubernetes.io/config.hash`.
    pub hash: String,
}

/// `POST /_sim/sandbox`: a running pod's sandbox dies; the kubelet makes a new one in the same pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartSandbox {
    /// Node name.
    pub node: String,
    /// The UID by which the kubelet knows the pod.
    pub uid: String,
}

/// `POST /_sim/late-create`: what a runtime or a child of a plugin leaves behind although the pod is over in every
/// respect (`real-node.md` §2). It comes back at once and goes after a while, the link first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LateCreate {
    /// Node name.
    pub node: String,
    /// Pod UID.
    pub uid: String,
    /// Whether the cgroup comes back.
    pub cgroup: bool,
    /// The link that comes back.
    #[serde(default)]
    pub link: Option<LinkState>,
    /// For how long, ms.
    pub for_ms: u64,
}
