//! What an agent sees of its node, and what may be concluded from it.
//!
//! A [`View`] is either valid or unknown with a reason; "unknown" is a value of its own on every path, never an empty
//! list (I6). A pod list is a [`Snapshot`]: while it is open nothing can be asked of it, and once complete its only
//! statement about a pod it does not contain is a [`Suspect`], whose only use is "GET this pod".

use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;

use crate::id::{
    AccountName, BootId, KubeletStart, MacAddress, PodRef, PodUid, ResourceVersion, VlanId,
};
use crate::lock::{self, Lock};
use crate::time::Moment;

/// Why a view says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Blind {
    /// Nothing was read yet.
    NotRead,
    /// The pod watch showed no event and no bookmark for too long, or was contradicted.
    Stale,
    /// The last read failed.
    ReadFailed,
    /// The coordinator has not told the trunk's MAC yet.
    TrunkUnknown,
    /// No link carries the trunk's MAC: this is not the node's network namespace, or the trunk is not attached.
    TrunkLinkMissing,
    /// The agent's own pod is not among the cgroups: this is not the node's cgroup tree.
    OwnPodMissing,
    /// The kubelet's socket does not accept.
    KubeletSilent,
    /// The agent is not connected.
    Disconnected,
}

impl Blind {
    /// All reasons.
    pub const ALL: [Self; 8] = [
        Self::NotRead,
        Self::Stale,
        Self::ReadFailed,
        Self::TrunkUnknown,
        Self::TrunkLinkMissing,
        Self::OwnPodMissing,
        Self::KubeletSilent,
        Self::Disconnected,
    ];

    /// Short name for the wire, logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotRead => "not-read",
            Self::Stale => "stale",
            Self::ReadFailed => "read-failed",
            Self::TrunkUnknown => "trunk-unknown",
            Self::TrunkLinkMissing => "trunk-link-missing",
            Self::OwnPodMissing => "own-pod-missing",
            Self::KubeletSilent => "kubelet-silent",
            Self::Disconnected => "disconnected",
        }
    }

    /// What a person is told.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::NotRead => "nothing was read yet",
            Self::Stale => "the view is too old and is being read again",
            Self::ReadFailed => "the last read failed and is being repeated",
            Self::TrunkUnknown => "the coordinator has not named the node's trunk yet",
            Self::TrunkLinkMissing => {
                "no link carries the trunk's MAC: the trunk is not attached, or the agent is not in the host's network namespace"
            }
            Self::OwnPodMissing => {
                "the agent's own pod is not among the pod cgroups: wrong cgroup root, or cgroupsPerQOS is off"
            }
            Self::KubeletSilent => "the kubelet's socket does not accept connections",
            Self::Disconnected => "the agent is not connected",
        }
    }
}

/// A look at something that can fail to be seen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum View<T> {
    /// Nothing is known, and why.
    Unknown(Blind),
    /// Known, without a break since the given moment (on the clock of whoever holds the view).
    Valid {
        /// Since when.
        since: Moment,
        /// What.
        value: T,
    },
}

impl<T> View<T> {
    /// The value, if valid.
    pub fn known(&self) -> Option<&T> {
        match self {
            Self::Valid { value, .. } => Some(value),
            Self::Unknown(_) => None,
        }
    }

    /// The value, if valid, to be changed in place.
    pub fn known_mut(&mut self) -> Option<&mut T> {
        match self {
            Self::Valid { value, .. } => Some(value),
            Self::Unknown(_) => None,
        }
    }

    /// Why nothing is known.
    pub fn blind(&self) -> Option<Blind> {
        match self {
            Self::Unknown(why) => Some(*why),
            Self::Valid { .. } => None,
        }
    }
}

/// `status.phase` of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PodPhase {
    /// Not all containers run yet.
    Pending,
    /// Running.
    Running,
    /// All containers ended well; terminal.
    Succeeded,
    /// All containers ended, one badly; terminal.
    Failed,
    /// Missing or not one of the above.
    Unknown,
}

impl PodPhase {
    /// Succeeded or Failed.
    pub fn is_ended(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// A request for branches that does not do what its author will have meant (`ANN-6`, T10). The VPC CNI looks for the
/// resource's *name* in the limits of the first container, whatever its amount (`contract.md` §23.2); here the amounts of
/// all containers are summed and init containers do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OddRequest {
    /// Containers name the resource and ask for 0 in all.
    Zero,
    /// Only init containers name it.
    InitOnly,
    /// Branches are asked for, but not by the first container.
    NotFirst,
}

impl OddRequest {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Zero, Self::InitOnly, Self::NotFirst];

    /// Short name for the wire and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Zero => "asks-for-0",
            Self::InitOnly => "init-container-asks",
            Self::NotFirst => "first-container-does-not-ask",
        }
    }

    /// What a person is told.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Zero => {
                "the pod names vpc.amazonaws.com/pod-eni but asks for 0 in all, so it gets no branch, while the VPC CNI, which looks for the name only, waits for one: let its first container ask for 1, or leave the resource out"
            }
            Self::InitOnly => {
                "only init containers of the pod ask for vpc.amazonaws.com/pod-eni, which does not count: the pod gets no branch and runs with the node's network; let its first container ask"
            }
            Self::NotFirst => {
                "the pod gets its branch, but the VPC CNI looks at the first container only, which does not ask for vpc.amazonaws.com/pod-eni: the pod runs with the node's network; let its first container ask"
            }
        }
    }
}

/// What is kept of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pod {
    /// Name and UID.
    pub pod: PodRef,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// `spec.serviceAccountName`, where set and well-formed.
    pub account: Option<AccountName>,
    /// `status.phase`.
    pub phase: PodPhase,
    /// `metadata.deletionTimestamp` is set.
    pub deleting: bool,
    /// Mirror of a static pod (`kubernetes.io/config.mirror`).
    pub mirror: bool,
    /// `kubernetes.io/config.hash`: the UID by which the kubelet knows a static pod.
    pub config_hash: Option<PodUid>,
    /// Sum of `requests["vpc.amazonaws.com/pod-eni"]` over `spec.containers` (`ANN-6`).
    pub requested: u32,
    /// What is odd about that request.
    pub odd_request: Option<OddRequest>,
    /// The annotation `vpc.amazonaws.com/pod-eni` as it stands.
    pub annotation: Option<String>,
}

impl Pod {
    /// The UID in this pod's cgroup name: the config hash for a static pod, else the API's UID. `None` for a mirror
    /// pod whose hash is unknown: nothing can be concluded for it.
    pub fn kubelet_uid(&self) -> Option<&PodUid> {
        if self.mirror && lock::holds(Lock::MirrorByHash) {
            self.config_hash.as_ref()
        } else {
            Some(&self.pod.uid)
        }
    }
}

/// Marker of a [`Snapshot`] that is still being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Open;

/// Marker of a [`Snapshot`] that was read to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Complete;

/// The pods of one node, from one list. Only a complete one answers questions.
///
/// ```compile_fail
/// use trunkline_core::view::{Open, Snapshot};
/// fn partial(list: &Snapshot<Open>, held: &[trunkline_core::id::PodRef]) {
///     let _ = list.absent(held); // an open snapshot has no `absent`
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Snapshot<State> {
    pods: BTreeMap<PodUid, Pod>,
    rv: Option<ResourceVersion>,
    state: PhantomData<State>,
}

impl Snapshot<Open> {
    /// Starts an empty snapshot.
    pub fn begin() -> Self {
        Self { pods: BTreeMap::new(), rv: None, state: PhantomData }
    }

    /// Adds a pod that the list contains.
    pub fn add(&mut self, pod: Pod) {
        self.pods.insert(pod.pod.uid.clone(), pod);
    }

    /// The list ended and was accepted as whole (`kube.md` §1.7), at this resourceVersion.
    pub fn close(self, rv: ResourceVersion) -> Snapshot<Complete> {
        Snapshot { pods: self.pods, rv: Some(rv), state: PhantomData }
    }
}

impl Snapshot<Complete> {
    /// The pods, by UID.
    pub fn pods(&self) -> &BTreeMap<PodUid, Pod> {
        &self.pods
    }

    /// The pods, by UID.
    pub fn into_pods(self) -> BTreeMap<PodUid, Pod> {
        self.pods
    }

    /// The list's resourceVersion.
    pub fn rv(&self) -> Option<&ResourceVersion> {
        self.rv.as_ref()
    }

    /// The held pods that the list does not contain. Each is only suspect: a list says nothing about what it does not
    /// mention.
    pub fn absent<'a>(&self, held: impl IntoIterator<Item = &'a PodRef>) -> Vec<Suspect> {
        held.into_iter()
            .filter(|p| !self.pods.contains_key(&p.uid))
            .map(|p| Suspect(p.clone()))
            .collect()
    }
}

/// A pod that a complete list did not contain. Its only use is to be asked for by a live GET.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Suspect(PodRef);

impl Suspect {
    /// The pod to ask for.
    pub fn pod(&self) -> &PodRef {
        &self.0
    }

    /// A suspicion that an agent reported. It proves nothing either, so it may be made from what the wire says.
    pub fn reported(pod: PodRef) -> Self {
        Self(pod)
    }
}

/// Kind of a network link as far as rules care.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkKind {
    /// An 802.1q link with its VLAN id.
    Vlan(u16),
    /// Any other kind, by the kernel's name (`macvlan`, `veth`, empty for a plain device).
    Other(String),
}

/// A link in the host's network namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Link {
    /// Interface index; another index under the same name is another link.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Kind.
    pub kind: LinkKind,
    /// MAC address, where it has a unicast one.
    pub mac: Option<MacAddress>,
    /// Interface index of the parent link.
    pub parent: Option<u32>,
}

impl Link {
    /// The VLAN whose branch link this is. A branch link is known by its name; where the kind is `vlan` its id must
    /// agree, else the link counts for both ids (see [`Links::has_vlan`]).
    pub fn branch_vlan(&self) -> Option<VlanId> {
        VlanId::from_link_name(&self.name)
    }
}

/// The links of the host's network namespace. Valid only if one carries the trunk's MAC.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Links(pub Vec<Link>);

impl Links {
    /// A link of this VLAN exists: named `vlan.eth.N`, or an 802.1q link with that id.
    pub fn has_vlan(&self, vlan: VlanId) -> bool {
        self.0.iter().any(|l| {
            l.branch_vlan() == Some(vlan) || l.kind == LinkKind::Vlan(u16::from(vlan.get()))
        })
    }

    /// A link carries this MAC.
    pub fn has_mac(&self, mac: MacAddress) -> bool {
        self.0.iter().any(|l| l.mac == Some(mac))
    }

    /// A link of this VLAN or with this MAC exists.
    pub fn has_branch(&self, vlan: VlanId, mac: MacAddress) -> bool {
        self.has_vlan(vlan) || self.has_mac(mac)
    }
}

/// The kubelet as one look found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kubelet {
    /// The socket accepted a connection; the start is its ctime.
    Alive(KubeletStart),
    /// It did not accept, or there is none.
    Silent,
}

/// One look at the node's local evidence. The adapter reads in this order, so that whatever the kubelet does between
/// the two kubelet looks shows: kubelet, cgroups, links, kubelet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Look {
    /// When the look began. Whatever a fact requires to have been "observed after" something is compared with this.
    pub at: Moment,
    /// Boot id.
    pub boot: BootId,
    /// The kubelet before the other two were read.
    pub kubelet_before: Kubelet,
    /// UIDs in pod cgroup names; valid only if the agent's own pod is among them.
    pub cgroups: Result<BTreeSet<PodUid>, Blind>,
    /// Links; valid only if the trunk's MAC is among them.
    pub links: Result<Links, Blind>,
    /// The kubelet after the other two were read.
    pub kubelet_after: Kubelet,
}

impl Look {
    /// The kubelet start under which the whole look happened; `None` if the kubelet was silent or changed.
    pub fn kubelet(&self) -> Option<KubeletStart> {
        match (self.kubelet_before, self.kubelet_after) {
            (Kubelet::Alive(before), Kubelet::Alive(after))
                if before == after || !lock::holds(Lock::KubeletSameInLook) =>
            {
                Some(before)
            }
            _ if lock::holds(Lock::KubeletAlive) => None,
            _ => Some(KubeletStart(0)),
        }
    }
}
