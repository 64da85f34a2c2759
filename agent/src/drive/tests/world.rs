//! A scripted node and coordinator.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Mutex;

use prometheus_client::registry::Registry;
use trunkline_core::fact::{Origin, Way};
use trunkline_core::id::{
    EniId, Epoch, MacAddress, Namespace, PodName, PodRef, ResourceVersion, SessionId, TermNonce,
    VlanId,
};
use trunkline_core::message::{MacOutcome, OwnedBranch, SetMac, ToAgent};
use trunkline_core::view::{Link, LinkKind, Links, Pod, PodPhase, Snapshot};

use super::super::*;
use crate::session::OUTBOUND;

pub(super) const TRUNK: &str = "02:00:00:00:00:01";
pub(super) const BRANCH: &str = "02:00:00:00:00:07";

/// What the next looks show.
#[derive(Clone)]
pub(super) struct Scene {
    pub(super) start: Option<u64>,
    pub(super) cgroups: Result<BTreeSet<PodUid>, Blind>,
    pub(super) branch_link: bool,
    pub(super) hangs: bool,
    pub(super) boot_fails: bool,
}

pub(super) struct Node {
    pub(super) scene: Mutex<Scene>,
    pub(super) looks: Mutex<VecDeque<Moment>>,
    pub(super) signs: Arc<SignBoard>,
    pub(super) clock: Clock,
    /// What was asked of the links, in order; each takes a second.
    pub(super) heals: Mutex<Vec<String>>,
}

impl LocalNode for Node {
    fn look(&self) -> BoxFuture<'static, Result<Look, LookError>> {
        let at = self.clock.now();
        self.looks.lock().unwrap().push_back(at);
        let scene = self.scene.lock().unwrap().clone();
        async move {
            if scene.hangs {
                std::future::pending::<()>().await;
            }
            if scene.boot_fails {
                crate::look::read_boot_id(std::path::Path::new("/nonexistent/boot_id"))?;
            }
            let kubelet =
                scene.start.map_or(Kubelet::Silent, |start| Kubelet::Alive(KubeletStart(start)));
            let mut links = vec![link(2, "trunk0", TRUNK)];
            if scene.branch_link {
                links.push(link(3, "vlan.eth.7", BRANCH));
            }
            Ok(Look {
                at,
                boot: boot(),
                kubelet_before: kubelet,
                cgroups: scene.cgroups,
                links: Ok(Links(links)),
                kubelet_after: kubelet,
            })
        }
        .boxed()
    }

    fn signs(&self) -> Arc<SignBoard> {
        Arc::clone(&self.signs)
    }

    fn set_mac(&self, set: SetMac, trunk: MacAddress) -> BoxFuture<'static, MacOutcome> {
        self.heals.lock().unwrap().push(format!("{} to {}, trunk {trunk}", set.vlan, set.to));
        seconds(1).map(|()| MacOutcome::Done).boxed()
    }

    fn clear_neighbours(&self, addresses: Vec<IpAddr>) -> BoxFuture<'static, ()> {
        self.heals.lock().unwrap().push(format!("clear {addresses:?}"));
        seconds(1).boxed()
    }
}

#[derive(Clone, Default)]
pub(super) struct Shelf(pub(super) Arc<Mutex<Vec<Journal>>>);

impl JournalStore for Shelf {
    fn save(&mut self, journal: &Journal) -> std::io::Result<()> {
        self.0.lock().unwrap().push(journal.clone());
        Ok(())
    }
}

pub(super) struct World {
    pub(super) node: Arc<Node>,
    pub(super) shelf: Shelf,
    pub(super) pods: mpsc::Sender<PodsEvent>,
    pub(super) session: mpsc::Sender<SessionEvent>,
    pub(super) status: watch::Receiver<AgentStatus>,
    pub(super) pulse: Pulse,
}

pub(super) fn uid(text: &str) -> PodUid {
    PodUid::new(text).unwrap()
}

pub(super) fn boot() -> BootId {
    BootId::new("b1").unwrap()
}

pub(super) fn mac(text: &str) -> MacAddress {
    text.parse().unwrap()
}

pub(super) fn link(index: u32, name: &str, address: &str) -> Link {
    Link {
        index,
        name: name.into(),
        kind: LinkKind::Other("macvlan".into()),
        mac: Some(mac(address)),
        parent: None,
    }
}

pub(super) fn pod_ref(text: &str) -> PodRef {
    PodRef {
        uid: uid(text),
        namespace: Namespace::new("default").unwrap(),
        name: PodName::new(text).unwrap(),
    }
}

pub(super) fn pod(text: &str) -> Pod {
    Pod {
        pod: pod_ref(text),
        labels: BTreeMap::new(),
        account: None,
        phase: PodPhase::Running,
        deleting: false,
        mirror: false,
        config_hash: None,
        requested: 1,
        odd_request: None,
        annotation: None,
    }
}

pub(super) fn owned(text: &str) -> OwnedBranch {
    OwnedBranch {
        pod: pod_ref(text),
        mirror: false,
        kubelet_uid: Some(uid(text)),
        eni: EniId::new("eni-0123456789abcdef0").unwrap(),
        mac: mac(BRANCH),
        vlan: VlanId::new(7).unwrap(),
    }
}

pub(super) fn rv() -> ResourceVersion {
    ResourceVersion::new("10").unwrap()
}

pub(super) fn listed(pods: &[&str]) -> PodsEvent {
    let mut snapshot = Snapshot::begin();
    for text in pods {
        snapshot.add(pod(text));
    }
    PodsEvent::Listed(snapshot.close(rv()))
}

impl World {
    /// A node with the agent's pod. The branch link of pod `a` is there already.
    pub(super) fn new(journal: Option<Journal>) -> Self {
        let clock = Clock::virtual_time();
        let node = Arc::new(Node {
            scene: Mutex::new(Scene {
                start: Some(1),
                cgroups: Ok([uid("own")].into()),
                branch_link: true,
                hangs: false,
                boot_fails: false,
            }),
            looks: Mutex::default(),
            signs: Arc::default(),
            clock,
            heals: Mutex::default(),
        });
        let (pods, pods_out) = mpsc::channel(64);
        let (session, session_out) = mpsc::channel(64);
        let shelf = Shelf::default();
        let ports = Ports {
            pods: pods_out,
            relist: Relist::default(),
            node: Arc::clone(&node) as Arc<dyn LocalNode>,
            journal: Box::new(shelf.clone()),
            session: session_out,
            clock,
        };
        let start = Start {
            node: NodeName::new("n1").unwrap(),
            own_pod: uid("own"),
            boot: boot(),
            journal,
            timing: Timing::default(),
        };
        let metrics = LoopMetrics::register(&mut Registry::default());
        let (driver, status, _) = Driver::new(ports, start, metrics);
        let pulse = driver.pulse();
        tokio::spawn(driver.run());
        Self { node, shelf, pods, session, status, pulse }
    }

    pub(super) fn scene(&self, change: impl FnOnce(&mut Scene)) {
        change(&mut self.node.scene.lock().unwrap());
    }

    pub(super) async fn connect(&self) -> mpsc::Receiver<FromAgent> {
        let (outbound, sent) = mpsc::channel(OUTBOUND);
        let origin =
            Origin { session: SessionId::new("s1").unwrap(), epoch: Epoch(1), nonce: TermNonce(1) };
        self.session.send(SessionEvent::Connected { origin, outbound }).await.unwrap();
        self.told(ToAgent::Trunk(Some(mac(TRUNK)))).await;
        sent
    }

    pub(super) async fn told(&self, message: ToAgent) {
        self.session.send(SessionEvent::Told(message)).await.unwrap();
    }

    /// Connected, pod `a` listed and owned. Its cgroup came after the first look, so that it counts as seen.
    pub(super) async fn settled(journal: Option<Journal>) -> (Self, mpsc::Receiver<FromAgent>) {
        let world = Self::new(journal);
        let sent = world.connect().await;
        seconds(6).await;
        world.scene(|scene| scene.cgroups = Ok([uid("own"), uid("a")].into()));
        world.told(ToAgent::OwnedAll(vec![owned("a")])).await;
        world.pods.send(listed(&["own", "a"])).await.unwrap();
        seconds(12).await;
        (world, sent)
    }

    pub(super) async fn delete(&self, text: &str) {
        self.pods.send(PodsEvent::Deleted(pod_ref(text), rv())).await.unwrap();
    }
}

pub(super) async fn seconds(n: u64) {
    tokio::time::sleep(Duration::from_secs(n)).await;
}

pub(super) fn all(sent: &mut mpsc::Receiver<FromAgent>) -> Vec<FromAgent> {
    let mut messages = Vec::new();
    while let Ok(message) = sent.try_recv() {
        messages.push(message);
    }
    messages
}

pub(super) fn releases(sent: &mut mpsc::Receiver<FromAgent>) -> Vec<Way> {
    let way = |message| match message {
        FromAgent::Release(release) => Some(release.facts().way),
        _ => None,
    };
    all(sent).into_iter().filter_map(way).collect()
}
