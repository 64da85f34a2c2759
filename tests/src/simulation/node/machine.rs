//! What is on a machine: boot, kubelet, cgroups, links, and the containers that run, which no agent can see.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::watch;
use trunkline_agent::signs::SignBoard;
use trunkline_agent::status::AgentStatus;
use trunkline_core::id::{
    BootId, EniId, InstanceId, InvalidId, KubeletStart, MacAddress, NodeName, PodUid, VlanId,
};
use trunkline_core::view::{Kubelet, Link, LinkKind};
use trunkline_core::witness::Journal;

use crate::simulation::world::Life;

/// What a pod's worker is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Go on.
    Run,
    /// The sandbox dies and is made again.
    Crash,
    /// The containers end by themselves.
    Finish,
    /// The pod is deleted.
    Stop,
}

/// How far a pod is on its machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// A sandbox is being made: containers may start at any moment.
    Starting,
    /// Containers run.
    Running,
    /// Told to end; containers still run.
    Stopping,
    /// No container runs or will.
    Dead,
}

/// A pod on its machine.
#[derive(Debug)]
pub struct Local {
    /// Path of its API object.
    pub path: String,
    /// How far it is.
    pub stage: Stage,
    /// Tells its worker.
    pub order: watch::Sender<Order>,
    /// The branch link that it uses.
    pub link: Option<(VlanId, MacAddress)>,
    /// The kubelet start whose worker looks after it.
    pub kubelet: u64,
    /// Its link was set up by an annotation that is not its own (a copied one).
    pub tainted: bool,
    /// Its link went by what a pod with a copied annotation did on this node; only a new sandbox brings it back.
    pub robbed: bool,
}

/// A branch link of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BranchLink {
    /// Interface index.
    pub index: u32,
    /// MAC.
    pub mac: MacAddress,
    /// The pod that it was made for.
    pub pod: PodUid,
}

/// A machine.
#[derive(Debug)]
pub struct Machine {
    /// Node name.
    pub name: NodeName,
    /// Instance.
    pub instance: InstanceId,
    /// UID of the agent's pod.
    pub own_pod: PodUid,
    /// Number of boots.
    pub boot: u64,
    /// Whether it is up.
    pub up: bool,
    /// The kubelet's start, while it accepts connections.
    pub kubelet: Option<u64>,
    /// The last kubelet start.
    pub last_start: u64,
    /// Pod cgroups.
    pub cgroups: BTreeSet<PodUid>,
    /// Branch links by VLAN.
    pub links: BTreeMap<VlanId, BranchLink>,
    /// Pods.
    pub locals: BTreeMap<PodUid, Local>,
    /// The running agent's signs, and its life.
    pub agent: Option<(Arc<SignBoard>, Arc<Life>)>,
    /// What the agent that was started last says of itself.
    pub status: Option<watch::Receiver<AgentStatus>>,
    /// What the agent wrote for after its next start.
    pub journal: Option<Journal>,
    /// Branches that its pods ever used.
    pub used: BTreeSet<EniId>,
    next_index: u32,
}

impl Machine {
    /// A machine that was started.
    pub fn new(name: NodeName, instance: InstanceId, own_pod: PodUid) -> Self {
        Self {
            name,
            instance,
            own_pod: own_pod.clone(),
            boot: 1,
            up: true,
            kubelet: None,
            last_start: 0,
            cgroups: BTreeSet::from([own_pod]),
            links: BTreeMap::new(),
            locals: BTreeMap::new(),
            agent: None,
            status: None,
            journal: None,
            used: BTreeSet::new(),
            next_index: 100,
        }
    }

    /// The kernel's boot id.
    pub fn boot_id(&self) -> Result<BootId, InvalidId> {
        BootId::new(&format!("boot-{}-{}", self.name, self.boot))
    }

    /// The kubelet as its socket shows it.
    pub fn look_at_kubelet(&self) -> Kubelet {
        self.kubelet.map_or(Kubelet::Silent, |start| Kubelet::Alive(KubeletStart(start)))
    }

    /// Whether this kubelet start is in force.
    pub fn is_kubelet(&self, start: u64) -> bool {
        self.up && self.kubelet == Some(start)
    }

    /// Whether containers of this pod run here, or may be started.
    pub fn may_run(&self, uid: &PodUid) -> bool {
        self.locals.get(uid).is_some_and(|local| local.stage != Stage::Dead)
    }

    /// A pod cgroup appears.
    pub fn add_cgroup(&mut self, uid: &PodUid, noticed: bool) {
        self.cgroups.insert(uid.clone());
        if let (Some((signs, _)), Some(start), true) = (&self.agent, self.kubelet, noticed) {
            signs.seen([uid.clone()], KubeletStart(start));
            signs.changed();
        }
    }

    /// A pod cgroup goes.
    pub fn remove_cgroup(&mut self, uid: &PodUid) {
        self.cgroups.remove(uid);
        self.tell();
    }

    /// A branch link appears; whoever had the name before loses it.
    pub fn add_link(&mut self, vlan: VlanId, mac: MacAddress, pod: &PodUid) -> Option<BranchLink> {
        self.next_index += 1;
        let link = BranchLink { index: self.next_index, mac, pod: pod.clone() };
        self.tell();
        self.links.insert(vlan, link)
    }

    /// CNI DEL: by name, whoever's it is.
    pub fn remove_link(&mut self, vlan: VlanId) -> Option<BranchLink> {
        self.tell();
        self.links.remove(&vlan)
    }

    /// A live branch link of this index gets another MAC.
    pub fn set_mac(&mut self, index: u32, mac: MacAddress) {
        if let Some(link) = self.links.values_mut().find(|link| link.index == index) {
            link.mac = mac;
        }
        self.tell();
    }

    /// Something changed that the agent's watchers notice.
    pub fn tell(&self) {
        if let Some((signs, _)) = &self.agent {
            signs.changed();
        }
    }

    /// The host's links, with these interfaces attached.
    pub fn links(&self, interfaces: impl Iterator<Item = MacAddress>) -> Vec<Link> {
        let plain = |(index, mac): (u32, MacAddress)| Link {
            index,
            name: format!("eth{index}"),
            kind: LinkKind::Other(String::new()),
            mac: Some(mac),
            parent: None,
        };
        let branch = |(vlan, link): (&VlanId, &BranchLink)| Link {
            index: link.index,
            name: vlan.link_name(),
            kind: LinkKind::Vlan(u16::from(vlan.get())),
            mac: Some(link.mac),
            parent: Some(1),
        };
        (0..).zip(interfaces).map(plain).chain(self.links.iter().map(branch)).collect()
    }

    /// Power goes.
    pub fn halt(&mut self) {
        self.up = false;
        self.kubelet = None;
        self.cgroups.clear();
        self.links.clear();
        self.locals.clear();
        self.journal = None;
        if let Some((_, life)) = self.agent.take() {
            life.over.cancel();
        }
    }

    /// And comes back.
    pub fn boot(&mut self) {
        self.up = true;
        self.boot += 1;
    }

    /// Tells the worker of a pod.
    pub fn order(&self, uid: &PodUid, order: Order) -> bool {
        self.locals.get(uid).is_some_and(|local| {
            local.order.send_if_modified(|held| {
                // A pod that was told to stop stays told.
                let open = *held != Order::Stop && *held != order;
                if open {
                    *held = order;
                }
                open
            })
        })
    }
}
