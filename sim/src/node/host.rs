//! One simulated node: its files, its kubelet's socket, its links and its pods.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::DynamicObject;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use trunkline_core::id::InstanceId;

use super::api::{Writer, has_feature};
use super::cgroup::{self, Tree};
use super::cni::{self, Family};
use super::kubelet::Socket;
use super::links::{self, Links};
use super::model::{NodeState, PodState, What};
use super::netns;
use super::pace::{Pace, Step};
use super::record::{About, Record};
use super::{pod, sandbox};

/// A Node with this label (any value) has no CNI: nobody writes the feature.
pub const NO_CNI: &str = "sim.trunkline.dev/no-cni";

/// What all nodes share.
#[derive(Clone)]
pub struct Common {
    /// Writes to the API server.
    pub writer: Writer,
    /// The record.
    pub record: Arc<Record>,
    /// Times.
    pub pace: Pace,
    /// Address family of the cluster.
    pub family: Family,
    /// Trunk MACs by instance id, as EC2 has them.
    pub trunks: watch::Receiver<BTreeMap<String, String>>,
    /// Below it, one folder a node.
    pub root: PathBuf,
    /// cgroup driver.
    pub driver: cgroup::Driver,
    /// cgroup version.
    pub version: cgroup::Version,
    /// Where links live.
    pub links: links::Kind,
}

/// Why a node could not be set up or changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its files.
    #[error("failed to write {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// Its links.
    #[error(transparent)]
    Links(#[from] netns::Error),
    /// Its kubelet.
    #[error(transparent)]
    Kubelet(#[from] super::kubelet::Error),
}

/// The last seen state of a pod's API object.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The object; after its end, the last one.
    pub pod: Arc<Pod>,
    /// It is no more.
    pub gone: bool,
    /// A static pod's manifest was taken away.
    pub removed: bool,
}

/// A pod on the node.
struct Entry {
    seen: watch::Sender<Seen>,
    /// How often its sandbox died.
    deaths: watch::Sender<u64>,
    state: PodState,
    task: AbortHandle,
}

/// A node.
pub struct Host {
    /// Node name.
    pub name: String,
    /// What all nodes share.
    pub common: Common,
    /// Links.
    pub links: Links,
    /// cgroups.
    pub tree: Tree,
    dir: PathBuf,
    node: watch::Sender<Option<Arc<Node>>>,
    cninode: watch::Sender<Option<Arc<DynamicObject>>>,
    trunk: watch::Sender<Option<String>>,
    up: watch::Sender<bool>,
    hold: watch::Sender<bool>,
    feature: watch::Sender<bool>,
    socket: Mutex<Option<Socket>>,
    pods: Mutex<BTreeMap<String, Entry>>,
    keeper: Mutex<Option<AbortHandle>>,
    next_ip: std::sync::atomic::AtomicU32,
}

impl Host {
    /// Sets the node up and starts its kubelet and CNI. `index` makes the addresses of pods without a branch differ
    /// between nodes.
    pub async fn join(name: &str, index: u32, common: Common) -> Result<Arc<Self>, Error> {
        let dir = common.root.join(name);
        let tree = Tree::new(&dir.join("cgroup"), common.driver, common.version);
        for path in [dir.clone(), dir.join("state")] {
            std::fs::create_dir_all(&path).map_err(|source| Error::File { path, source })?;
        }
        tree.wipe().map_err(|source| Error::File { path: dir.join("cgroup"), source })?;
        let links = Links::create(common.links, &format!("{}{name}", netns::run_prefix())).await?;
        let host = Arc::new(Self {
            name: name.to_owned(),
            links,
            tree,
            dir,
            node: watch::Sender::new(None),
            cninode: watch::Sender::new(None),
            trunk: watch::Sender::new(None),
            up: watch::Sender::new(false),
            hold: watch::Sender::new(false),
            feature: watch::Sender::new(false),
            socket: Mutex::default(),
            pods: Mutex::default(),
            keeper: Mutex::default(),
            next_ip: std::sync::atomic::AtomicU32::new(index.wrapping_mul(256)),
            common,
        });
        host.write_boot_id(&random_uuid())?;
        host.log(What::NodeJoined, "");
        host.start_kubelet()?;
        let keeper = tokio::spawn(keep(Arc::clone(&host)));
        *lock(&host.keeper) = Some(keeper.abort_handle());
        Ok(host)
    }

    /// A line about the node.
    pub fn log(&self, what: What, detail: impl Into<String>) {
        self.common.record.add(&About::node(&self.name), what, detail);
    }

    fn boot_id_file(&self) -> PathBuf {
        self.dir.join("boot_id")
    }

    fn socket_path(&self) -> PathBuf {
        self.dir.join("kubelet.sock")
    }

    fn write_boot_id(&self, boot_id: &str) -> Result<(), Error> {
        let path = self.boot_id_file();
        let part = self.dir.join("boot_id.new");
        // Renamed into place: a reader never sees half an id.
        std::fs::write(&part, format!("{boot_id}\n"))
            .and_then(|()| std::fs::rename(&part, &path))
            .map_err(|source| Error::File { path, source })
    }

    fn boot_id(&self) -> String {
        std::fs::read_to_string(self.boot_id_file()).unwrap_or_default().trim().to_owned()
    }

    /// Starts the kubelet, or restarts it: its socket gets a new ctime.
    pub fn start_kubelet(&self) -> Result<(), Error> {
        *lock(&self.socket) = None;
        let socket = Socket::open(&self.socket_path())?;
        *lock(&self.socket) = Some(socket);
        self.log(What::KubeletStarted, "");
        self.up.send_replace(true);
        Ok(())
    }

    /// Stops the kubelet: its socket refuses, no pod is acted on.
    pub fn stop_kubelet(&self) {
        self.up.send_replace(false);
        *lock(&self.socket) = None;
        self.log(What::KubeletStopped, "");
    }

    /// Ends all processes at once: cgroups and links go with them. API objects stay.
    pub async fn power_off(&self) -> Result<(), Error> {
        self.stop_kubelet();
        for entry in lock(&self.pods).values_mut() {
            entry.task.abort();
            entry.state.running = false;
            entry.state.cgroup = false;
            entry.state.branch = None;
        }
        self.tree.wipe().map_err(|source| Error::File { path: self.dir.join("cgroup"), source })?;
        self.links.clear().await?;
        self.trunk.send_replace(None);
        Ok(())
    }

    /// Power off and on: a new boot id; pods that are still in the API start again.
    pub async fn reboot(self: &Arc<Self>) -> Result<(), Error> {
        self.power_off().await?;
        let boot_id = random_uuid();
        self.write_boot_id(&boot_id)?;
        self.log(What::Rebooted, boot_id);
        self.feature.send_replace(false);
        tokio::time::sleep(self.common.pace.of(Step::KubeletStart)).await;
        self.start_kubelet()?;
        let old = std::mem::take(&mut *lock(&self.pods));
        for entry in old.into_values() {
            let seen = entry.seen.borrow().clone();
            if !seen.gone {
                self.begin(seen);
            }
        }
        Ok(())
    }

    /// Holds or frees CNI ADD.
    pub fn hold_add(&self, hold: bool) {
        self.hold.send_replace(hold);
    }

    /// Whether ADD is held.
    pub fn held(&self) -> watch::Receiver<bool> {
        self.hold.subscribe()
    }

    /// The trunk link's MAC.
    pub fn trunk(&self) -> watch::Receiver<Option<String>> {
        self.trunk.subscribe()
    }

    /// Returns once the kubelet runs.
    pub async fn kubelet_up(&self) {
        let mut up = self.up.subscribe();
        // The sender lives in `self`, so this cannot fail.
        let _up = up.wait_for(|up| *up).await;
    }

    /// The Node object was seen.
    pub fn node_seen(&self, node: Arc<Node>) {
        self.node.send_replace(Some(node));
    }

    /// The CNINode was seen.
    pub fn cninode_seen(&self, cninode: Option<Arc<DynamicObject>>) {
        self.cninode.send_replace(cninode);
    }

    /// The node's own address, from its status.
    pub fn host_ip(&self) -> Option<String> {
        let node = self.node.borrow().clone()?;
        let addresses = node.status.as_ref()?.addresses.as_ref()?;
        addresses.iter().find(|a| a.type_ == "InternalIP").map(|a| a.address.clone())
    }

    /// An address for a pod without a branch, unique in this simulator.
    pub fn new_ip(&self) -> String {
        let n = self.next_ip.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let [_, b, c, d] = n.to_be_bytes();
        match self.common.family {
            Family::V4 => format!("100.{}.{c}.{d}", 64 + b % 64),
            Family::V6 => format!("fd00::{b:x}:{c:x}:{d:x}"),
        }
    }

    /// A pod of this node was seen in the API.
    pub fn pod_seen(self: &Arc<Self>, pod: Arc<Pod>) {
        self.begin(Seen { pod, gone: false, removed: false });
    }

    /// The API object with this UID is no more.
    pub fn pod_gone(&self, uid: &str) {
        for entry in lock(&self.pods).values() {
            entry.seen.send_if_modified(|seen| {
                let ours = pod::uid(&seen.pod) == uid && !seen.gone;
                seen.gone |= ours;
                ours
            });
        }
    }

    /// The UIDs of the API objects that this node believes to exist.
    pub fn known_uids(&self) -> Vec<String> {
        let alive = |e: &Entry| {
            let seen = e.seen.borrow();
            (!seen.gone).then(|| pod::uid(&seen.pod).to_owned())
        };
        lock(&self.pods).values().filter_map(alive).collect()
    }

    /// A static pod's manifest was taken away; says whether it was known.
    pub fn remove_static(&self, hash: &str) -> bool {
        lock(&self.pods).get(hash).is_some_and(|entry| {
            entry.seen.send_modify(|seen| seen.removed = true);
            true
        })
    }

    /// The pod's sandbox dies; says whether the pod is known.
    pub fn restart_sandbox(&self, kubelet_uid: &str) -> bool {
        lock(&self.pods).get(kubelet_uid).is_some_and(|entry| {
            entry.deaths.send_modify(|n| *n += 1);
            true
        })
    }

    /// Tells the pod's task what was seen, or starts one. All under one lock: a task cannot leave the table before
    /// it is in it, and no pod gets two.
    fn begin(self: &Arc<Self>, seen: Seen) {
        let key = pod::kubelet_uid(&seen.pod).to_owned();
        let mut pods = lock(&self.pods);
        if let Some(entry) = pods.get_mut(&key) {
            pod::uid(&seen.pod).clone_into(&mut entry.state.uid);
            let removed = entry.seen.borrow().removed;
            entry.seen.send_replace(Seen { removed, ..seen });
            return;
        }
        let state = PodState {
            node: self.name.clone(),
            uid: pod::uid(&seen.pod).to_owned(),
            namespace: pod::namespace(&seen.pod).to_owned(),
            name: pod::name(&seen.pod).to_owned(),
            kubelet_uid: key.clone(),
            wants_branch: cni::wants_branch(&seen.pod),
            running: false,
            cgroup: false,
            branch: None,
            link_up: false,
        };
        let (sender, receiver) = watch::channel(seen);
        let deaths = watch::Sender::new(0);
        let life = sandbox::live(Arc::clone(self), receiver, deaths.subscribe(), key.clone());
        let task = tokio::spawn(life).abort_handle();
        pods.insert(key, Entry { seen: sender, deaths, state, task });
    }

    /// Changes what is shown of a pod.
    pub fn update(&self, kubelet_uid: &str, change: impl FnOnce(&mut PodState)) {
        if let Some(entry) = lock(&self.pods).get_mut(kubelet_uid) {
            change(&mut entry.state);
        }
    }

    /// The pod is over in every respect.
    pub fn forget(&self, kubelet_uid: &str) {
        lock(&self.pods).remove(kubelet_uid);
    }

    /// The pods that have a process, a cgroup or a link, with a look at the links.
    pub async fn pods(&self) -> Result<Vec<PodState>, Error> {
        let mut states: Vec<PodState> = lock(&self.pods)
            .values()
            .map(|e| e.state.clone())
            .filter(|s| s.running || s.cgroup || s.branch.is_some())
            .collect();
        if states.iter().any(|s| s.branch.is_some()) {
            let links = self.links.all().await?;
            for state in &mut states {
                state.link_up = state
                    .branch
                    .as_ref()
                    .is_some_and(|b| links.get(&sandbox::link_name(b.vlan)) == Some(&b.mac));
            }
        }
        Ok(states)
    }

    /// The instance id, once the Node object with a usable providerID was seen.
    pub fn instance(&self) -> Option<String> {
        instance_of(self.node.borrow().as_deref()?)
    }

    /// What is shown of the node.
    pub fn state(&self) -> NodeState {
        let text = |path: &Path| path.display().to_string();
        NodeState {
            name: self.name.clone(),
            instance: self.instance(),
            cgroup_root: text(&self.dir.join("cgroup")),
            kubelet_socket: text(&self.socket_path()),
            boot_id_file: text(&self.boot_id_file()),
            host_netns: self.links.netns().map(|p| text(&p)),
            state_dir: text(&self.dir.join("state")),
            trunk: self.trunk.borrow().clone(),
            feature: *self.feature.borrow(),
            kubelet_up: *self.up.borrow(),
            hold_add: *self.hold.borrow(),
        }
    }

    /// Ends every task of the node and removes its namespace. Its files stay.
    pub fn shut_down(&self) {
        if let Some(keeper) = lock(&self.keeper).take() {
            keeper.abort();
        }
        for entry in std::mem::take(&mut *lock(&self.pods)).into_values() {
            entry.task.abort();
        }
        *lock(&self.socket) = None;
        self.links.destroy();
    }
}

fn instance_of(node: &Node) -> Option<String> {
    let provider_id = node.spec.as_ref()?.provider_id.as_deref()?;
    InstanceId::from_provider_id(provider_id).ok().map(|id| id.to_string())
}

/// The node's housekeeping: the trunk link, the CNI's feature, capacity and boot id.
async fn keep(host: Arc<Host>) {
    let mut trunks = host.common.trunks.clone();
    let mut node = host.node.subscribe();
    let mut cninode = host.cninode.subscribe();
    let mut up = host.up.subscribe();
    loop {
        let settled =
            *up.borrow_and_update() && settle(&host, &mut trunks, &mut node, &mut cninode).await;
        let retry = async {
            if settled {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        };
        tokio::select! {
            _ = trunks.changed() => {}
            _ = node.changed() => {}
            _ = cninode.changed() => {}
            _ = up.changed() => {}
            () = retry => {}
        }
    }
}

/// Does what is to do; says whether nothing has to be tried again.
async fn settle(
    host: &Host,
    trunks: &mut watch::Receiver<BTreeMap<String, String>>,
    node: &mut watch::Receiver<Option<Arc<Node>>>,
    cninode: &mut watch::Receiver<Option<Arc<DynamicObject>>>,
) -> bool {
    let mut settled = true;
    let seen_node = node.borrow_and_update().clone();
    let mac = host.instance().and_then(|id| trunks.borrow_and_update().get(&id).cloned());
    if let Some(mac) = mac
        && host.trunk.borrow().as_ref() != Some(&mac)
    {
        match host.links.set_trunk(&mac).await {
            Ok(()) => {
                host.log(What::TrunkUp, mac.clone());
                host.trunk.send_replace(Some(mac));
            }
            Err(error) => {
                tracing::warn!(
                    node = host.name,
                    error = &error as &dyn std::error::Error,
                    "no trunk link"
                );
                settled = false;
            }
        }
    }
    if let Some(node) = &seen_node {
        settled &= node_status(host, node).await;
    }
    let no_cni = seen_node
        .as_ref()
        .and_then(|n| n.metadata.labels.as_ref())
        .is_some_and(|labels| labels.contains_key(NO_CNI));
    let seen_cninode = cninode.borrow_and_update().clone();
    if let Some(cninode) = seen_cninode
        && !no_cni
        && !*host.feature.borrow()
    {
        settled &= feature(host, &cninode).await;
    }
    settled
}

async fn node_status(host: &Host, node: &Node) -> bool {
    let told = node.status.as_ref().and_then(|s| s.node_info.as_ref()).map(|i| i.boot_id.as_str());
    let boot_id = host.boot_id();
    let done = async {
        if told != Some(boot_id.as_str()) {
            host.common.writer.boot_id(node, &boot_id).await?;
        }
        host.common.writer.copy_capacity(node).await
    };
    report(host, "write the node's status", &done.await)
}

/// The CNI writes its feature once in its life and never takes it away.
async fn feature(host: &Host, cninode: &DynamicObject) -> bool {
    if !has_feature(cninode) {
        if !report(host, "write the CNINode's feature", &host.common.writer.feature(cninode).await)
        {
            return false;
        }
        host.log(What::FeatureWritten, "");
    }
    host.feature.send_replace(true);
    true
}

fn report(host: &Host, what: &str, outcome: &Result<(), kube::Error>) -> bool {
    if let Err(error) = outcome {
        tracing::debug!(node = host.name, %error, "failed to {what}; trying again");
    }
    outcome.is_ok()
}

/// A random UUID (version 4).
fn random_uuid() -> String {
    let n = (rand::random::<u128>() & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{n:032x}");
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    format!("{}-{}-{}-{}-{}", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32))
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
