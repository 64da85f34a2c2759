//! The node: kubelet, runtime and CNI, as a real one was seen to behave (`docs/safety.md`).
//!
//! The kubelet has a view of its own, which may lag: it may not have heard of a deletion for as long as it likes, but what
//! it is to start it learns of, and gives a cgroup, within [`LEARN`] ticks awake of its own start or of the pod's creation.
//! Making a sandbox is a call in flight that no look shows and that may outlive the kubelet that made it, up to
//! [`CREATE`] ticks. Within one kubelet life the worker is serial: the cgroup goes last. A new kubelet removes the cgroup of
//! a pod that it does not know at once, whatever is still in flight.

use std::collections::BTreeMap;

use trunkline_core::id::VlanId;

/// Ticks awake within which a kubelet knows, and has a cgroup for, each pod that its server shows.
pub const LEARN: u8 = 3;
/// Ticks that a sandbox creation may take.
pub const CREATE: u8 = 2;

/// What this life of the kubelet knows of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Knows {
    /// Nothing yet.
    Nothing,
    /// It is to run.
    Wanted,
    /// It is to end.
    Over,
    /// It has ended; this life never starts it again.
    Done,
}

/// A pod on the node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tenant {
    /// What the kubelet knows.
    pub knows: Knows,
    /// Ticks awake until it knows for certain; 0: it does.
    pub learns: u8,
    /// Its cgroup is there.
    pub cgroup: bool,
    /// A sandbox is being made: ticks left, and whether its kubelet has died.
    pub making: Option<(u8, bool)>,
    /// Sandbox and containers run.
    pub runs: bool,
    /// Its link: VLAN and the ENI whose MAC it has.
    pub link: Option<(VlanId, u8)>,
    /// The ENI of the link was associated when the link was made.
    pub sound: bool,
    /// ENI and VLAN that the CNI plugin was told.
    pub told: Option<(u8, VlanId)>,
}

impl Tenant {
    pub(super) fn new() -> Self {
        Self {
            knows: Knows::Nothing,
            learns: LEARN,
            cgroup: false,
            making: None,
            runs: false,
            link: None,
            sound: false,
            told: None,
        }
    }

    pub(super) fn stop(&mut self) {
        self.runs = false;
        self.link = None;
    }
}

/// The node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Host {
    /// Boots so far.
    pub boot: u8,
    /// Kubelet starts so far.
    pub start: u8,
    /// The kubelet's socket accepts.
    pub kubelet: bool,
    /// Pods by number.
    pub tenants: BTreeMap<u8, Tenant>,
    /// Links that nobody owns: VLAN and MAC number.
    pub strays: BTreeMap<VlanId, u8>,
    /// What the agent sees of cgroups is another tree.
    pub wrong_cgroups: bool,
    /// What the agent sees of links is another namespace.
    pub wrong_links: bool,
}

impl Host {
    pub(super) fn new() -> Self {
        Self {
            boot: 1,
            start: 1,
            kubelet: true,
            tenants: BTreeMap::new(),
            strays: BTreeMap::new(),
            wrong_cgroups: false,
            wrong_links: false,
        }
    }

    /// One tick awake: what is bounded comes to its bound. `alive` tells which pods the API server has.
    pub(super) fn tick(&mut self, alive: impl Fn(u8) -> bool) {
        for (n, tenant) in &mut self.tenants {
            if let Some((left, orphan)) = tenant.making {
                tenant.making = (left > 1).then(|| (left - 1, orphan));
            }
            if !self.kubelet || tenant.learns == 0 {
                continue;
            }
            tenant.learns -= 1;
            if tenant.learns == 0 {
                if tenant.knows == Knows::Nothing {
                    tenant.knows = if alive(*n) { Knows::Wanted } else { Knows::Done };
                }
                tenant.cgroup |= tenant.knows == Knows::Wanted;
            }
        }
    }

    /// The kubelet process ends.
    pub(super) fn kubelet_stops(&mut self) {
        self.kubelet = false;
        for tenant in self.tenants.values_mut() {
            tenant.making = tenant.making.map(|(left, _)| (left, true));
        }
    }

    /// A kubelet starts; `knows` tells what its first list shows of each pod.
    pub(super) fn kubelet_starts(&mut self, knows: impl Fn(u8) -> (Knows, u8)) {
        self.kubelet = true;
        self.start += 1;
        for (n, tenant) in &mut self.tenants {
            (tenant.knows, tenant.learns) = knows(*n);
        }
    }

    /// Power loss.
    pub(super) fn reboots(&mut self) {
        self.boot += 1;
        self.kubelet = false;
        self.strays.clear();
        for tenant in self.tenants.values_mut() {
            tenant.stop();
            tenant.cgroup = false;
            tenant.making = None;
            tenant.knows = Knows::Nothing;
        }
    }
}
