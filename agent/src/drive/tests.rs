//! The loop against a scripted node and coordinator, in paused time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Mutex;

use prometheus_client::registry::Registry;
use trunkline_core::fact::{Origin, Way};
use trunkline_core::id::{
    EniId, Epoch, MacAddress, Namespace, PodName, PodRef, ResourceVersion, SessionId, TermNonce,
    VlanId,
};
use trunkline_core::message::{Change, MacOutcome, OwnedBranch, SetMac, ToAgent};
use trunkline_core::view::{Link, LinkKind, Links, Pod, PodPhase, Snapshot};

use super::*;
use crate::session::OUTBOUND;

const TRUNK: &str = "02:00:00:00:00:01";
const BRANCH: &str = "02:00:00:00:00:07";

/// What the next looks show.
#[derive(Clone)]
struct Scene {
    start: Option<u64>,
    cgroups: Result<BTreeSet<PodUid>, Blind>,
    branch_link: bool,
    hangs: bool,
    boot_fails: bool,
}

struct Node {
    scene: Mutex<Scene>,
    looks: Mutex<VecDeque<Moment>>,
    signs: Arc<SignBoard>,
    clock: Clock,
    /// What was asked of the links, in order; each takes a second.
    heals: Mutex<Vec<String>>,
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
struct Shelf(Arc<Mutex<Vec<Journal>>>);

impl JournalStore for Shelf {
    fn save(&mut self, journal: &Journal) -> std::io::Result<()> {
        self.0.lock().unwrap().push(journal.clone());
        Ok(())
    }
}

struct World {
    node: Arc<Node>,
    shelf: Shelf,
    pods: mpsc::Sender<PodsEvent>,
    session: mpsc::Sender<SessionEvent>,
    status: watch::Receiver<AgentStatus>,
    pulse: Pulse,
}

fn uid(text: &str) -> PodUid {
    PodUid::new(text).unwrap()
}

fn boot() -> BootId {
    BootId::new("b1").unwrap()
}

fn mac(text: &str) -> MacAddress {
    text.parse().unwrap()
}

fn link(index: u32, name: &str, address: &str) -> Link {
    Link {
        index,
        name: name.into(),
        kind: LinkKind::Other("macvlan".into()),
        mac: Some(mac(address)),
        parent: None,
    }
}

fn pod_ref(text: &str) -> PodRef {
    PodRef {
        uid: uid(text),
        namespace: Namespace::new("default").unwrap(),
        name: PodName::new(text).unwrap(),
    }
}

fn pod(text: &str) -> Pod {
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

fn owned(text: &str) -> OwnedBranch {
    OwnedBranch {
        pod: pod_ref(text),
        mirror: false,
        kubelet_uid: Some(uid(text)),
        eni: EniId::new("eni-0123456789abcdef0").unwrap(),
        mac: mac(BRANCH),
        vlan: VlanId::new(7).unwrap(),
    }
}

fn rv() -> ResourceVersion {
    ResourceVersion::new("10").unwrap()
}

fn listed(pods: &[&str]) -> PodsEvent {
    let mut snapshot = Snapshot::begin();
    for text in pods {
        snapshot.add(pod(text));
    }
    PodsEvent::Listed(snapshot.close(rv()))
}

impl World {
    /// A node with the agent's pod and pod `a`, whose branch link is there.
    fn new(journal: Option<Journal>) -> Self {
        let clock = Clock::virtual_time();
        let node = Arc::new(Node {
            scene: Mutex::new(Scene {
                start: Some(1),
                cgroups: Ok([uid("own"), uid("a")].into()),
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

    fn scene(&self, change: impl FnOnce(&mut Scene)) {
        change(&mut self.node.scene.lock().unwrap());
    }

    async fn connect(&self) -> mpsc::Receiver<FromAgent> {
        let (outbound, sent) = mpsc::channel(OUTBOUND);
        let origin =
            Origin { session: SessionId::new("s1").unwrap(), epoch: Epoch(1), nonce: TermNonce(1) };
        self.session.send(SessionEvent::Connected { origin, outbound }).await.unwrap();
        self.told(ToAgent::Trunk(Some(mac(TRUNK)))).await;
        sent
    }

    async fn told(&self, message: ToAgent) {
        self.session.send(SessionEvent::Told(message)).await.unwrap();
    }

    /// Connected, pod `a` listed and owned.
    async fn settled(journal: Option<Journal>) -> (Self, mpsc::Receiver<FromAgent>) {
        let world = Self::new(journal);
        let sent = world.connect().await;
        world.told(ToAgent::OwnedAll(vec![owned("a")])).await;
        world.pods.send(listed(&["own", "a"])).await.unwrap();
        seconds(12).await;
        (world, sent)
    }

    async fn delete(&self, text: &str) {
        self.pods.send(PodsEvent::Deleted(pod_ref(text), rv())).await.unwrap();
    }
}

async fn seconds(n: u64) {
    tokio::time::sleep(Duration::from_secs(n)).await;
}

fn all(sent: &mut mpsc::Receiver<FromAgent>) -> Vec<FromAgent> {
    let mut messages = Vec::new();
    while let Ok(message) = sent.try_recv() {
        messages.push(message);
    }
    messages
}

fn releases(sent: &mut mpsc::Receiver<FromAgent>) -> Vec<Way> {
    let way = |message| match message {
        FromAgent::Release(release) => Some(release.facts().way),
        _ => None,
    };
    all(sent).into_iter().filter_map(way).collect()
}

#[tokio::test(start_paused = true)]
async fn a_deleted_pod_is_released_once_cgroup_and_link_are_gone() {
    let (world, mut sent) = World::settled(None).await;
    world.delete("a").await;
    seconds(30).await;
    assert!(releases(&mut sent).is_empty(), "the cgroup is there");
    world.scene(|s| s.cgroups = Ok([uid("own")].into()));
    seconds(30).await;
    assert!(releases(&mut sent).is_empty(), "the link is there");
    assert_eq!(world.status.borrow().cases[0].state, "link-remains");
    world.scene(|s| s.branch_link = false);
    seconds(2).await;
    assert_eq!(releases(&mut sent), [Way::SeenAndGone]);
    seconds(30).await;
    assert!(releases(&mut sent).len() >= 2, "repeated until it is deleted");
    world.told(ToAgent::Ack(uid("a"), trunkline_core::message::Ack::Deleted)).await;
    seconds(1).await;
    all(&mut sent);
    seconds(30).await;
    assert!(releases(&mut sent).is_empty());
    assert!(world.status.borrow().cases.is_empty());
}

#[tokio::test(start_paused = true)]
async fn s57_an_agent_that_was_away_goes_by_its_journal_or_slowly_without() {
    let (world, _sent) = World::settled(None).await;
    let journal = world.shelf.0.lock().unwrap().last().cloned().unwrap();
    assert_eq!(journal.seen.get(&uid("a")), Some(&KubeletStart(1)));

    for (journal, fast) in [(Some(journal), true), (None, false)] {
        let world = World::new(journal);
        world.scene(|s| {
            s.cgroups = Ok([uid("own")].into());
            s.branch_link = false;
        });
        let mut sent = world.connect().await;
        world.told(ToAgent::OwnedAll(vec![owned("a")])).await;
        world.pods.send(listed(&["own"])).await.unwrap();
        seconds(1).await;
        let suspects =
            |m: &FromAgent| matches!(m, FromAgent::Suspect(s) if s.pod().uid == uid("a"));
        assert!(all(&mut sent).iter().any(suspects));
        world.told(ToAgent::Gone(uid("a"))).await;
        seconds(60).await;
        assert_eq!(!releases(&mut sent).is_empty(), fast);
        seconds(300).await;
        let ways = releases(&mut sent);
        let expected = if fast { Way::SeenAndGone } else { Way::Slow };
        assert!(!ways.is_empty() && ways.iter().all(|way| *way == expected), "{ways:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_restart_withdraws_and_leaves_the_slow_way() {
    let (world, mut sent) = World::settled(None).await;
    world.scene(|s| {
        s.start = Some(2);
        s.cgroups = Ok([uid("own")].into());
        s.branch_link = false;
    });
    world.delete("a").await;
    seconds(200).await;
    assert!(releases(&mut sent).is_empty());
    seconds(150).await;
    let ways = releases(&mut sent);
    assert!(!ways.is_empty() && ways.iter().all(|way| *way == Way::Slow), "{ways:?}");
}

#[tokio::test(start_paused = true)]
async fn a_view_that_does_not_prove_itself_releases_nothing() {
    type Blinding = fn(&mut Scene);
    let blindings: [Blinding; 5] = [
        |s| s.cgroups = Ok(BTreeSet::new()),
        |s| s.cgroups = Err(Blind::ReadFailed),
        |s| s.start = None,
        |s| s.boot_fails = true,
        |s| s.hangs = true,
    ];
    for (n, blind) in blindings.into_iter().enumerate() {
        let (world, mut sent) = World::settled(None).await;
        world.scene(|s| {
            s.cgroups = Ok([uid("own")].into());
            s.branch_link = false;
            blind(s);
        });
        seconds(20).await;
        world.delete("a").await;
        seconds(700).await;
        assert!(releases(&mut sent).is_empty(), "blinding {n}");
        let status = world.status.borrow().clone();
        assert!(["cgroups", "kubelet"].iter().any(|c| status.unready(c).is_some()), "{n}");
        drop(status);
        world.scene(|s| {
            s.cgroups = Ok([uid("own")].into());
            s.start = Some(1);
            s.boot_fails = false;
            s.hangs = false;
        });
        seconds(30).await;
        assert!(!releases(&mut sent).is_empty(), "after blinding {n} it goes on");
    }
}

#[tokio::test(start_paused = true)]
async fn heartbeats_go_on_while_a_look_hangs_and_say_that_nothing_is_seen() {
    let (world, mut sent) = World::settled(None).await;
    world.scene(|s| s.hangs = true);
    seconds(30).await;
    all(&mut sent);
    seconds(20).await;
    let beats: Vec<_> = all(&mut sent)
        .into_iter()
        .filter_map(|m| if let FromAgent::Heartbeat(beat) = m { Some(beat) } else { None })
        .collect();
    assert!(beats.len() >= 3);
    assert!(beats.iter().all(|b| b.kubelet.is_none() && b.cgroups == Some(Blind::ReadFailed)));
    assert!(world.pulse.silent() < Duration::from_secs(2));
}

#[tokio::test(start_paused = true)]
async fn a_short_lived_pod_counts_as_seen_only_under_the_start_it_appeared_under() {
    for (stamp, fast) in [(1, true), (9, false)] {
        let (world, mut sent) = World::settled(None).await;
        world.scene(|s| s.branch_link = false);
        world.node.signs.seen([uid("short")], KubeletStart(stamp));
        seconds(1).await;
        let mut branch = owned("short");
        branch.eni = EniId::new("eni-0123456789abcdef1").unwrap();
        world.told(ToAgent::OwnedChanged { added: vec![branch], removed: vec![] }).await;
        world.told(ToAgent::Gone(uid("short"))).await;
        seconds(5).await;
        assert_eq!(!releases(&mut sent).is_empty(), fast, "stamp {stamp}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sign_leads_to_a_look_at_once_and_many_signs_to_few() {
    let (world, _sent) = World::settled(None).await;
    let count = || world.node.looks.lock().unwrap().len();
    let before = count();
    world.node.signs.changed();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(count(), before + 1);
    for _ in 0..1000 {
        world.node.signs.changed();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(count() - before <= 13, "{} looks in a second", count() - before);
}

#[tokio::test(start_paused = true)]
async fn a_barrier_is_answered_from_a_look_that_began_after_it() {
    let (world, mut sent) = World::settled(None).await;
    all(&mut sent);
    let uids = BTreeSet::from([uid("a")]);
    world.told(ToAgent::Barrier { question: 5, uids }).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let reply = all(&mut sent).into_iter().find_map(|m| match m {
        FromAgent::Barrier(reply) => Some(reply),
        _ => None,
    });
    let reply = reply.unwrap();
    assert_eq!((reply.question, reply.start), (5, Some(KubeletStart(1))));
    assert_eq!(reply.present.get(&uid("a")), Some(&Some(true)));
}

#[tokio::test(start_paused = true)]
async fn views_are_sent_after_the_greeting_and_again_on_resync_then_as_changes() {
    let (world, mut sent) = World::settled(None).await;
    let whole = |messages: &[FromAgent]| {
        let has = |f: fn(&FromAgent) -> bool| messages.iter().any(f);
        has(|m| matches!(m, FromAgent::Pods(Ok(_))))
            && has(|m| matches!(m, FromAgent::Links(Ok(_))))
            && has(|m| matches!(m, FromAgent::Cgroups(Ok(_))))
            && has(|m| matches!(m, FromAgent::VlansUsed(_)))
    };
    assert!(whole(&all(&mut sent)));
    world.scene(|s| s.cgroups = Ok([uid("own"), uid("a"), uid("b")].into()));
    seconds(6).await;
    let changes = all(&mut sent);
    assert!(changes.iter().any(
        |m| matches!(m, FromAgent::Change(Change::Cgroups { added, .. }) if *added == [uid("b")].into())
    ));
    assert!(!changes.iter().any(|m| matches!(m, FromAgent::Cgroups(_))));
    world.session.send(SessionEvent::Resync).await.unwrap();
    seconds(1).await;
    assert!(whole(&all(&mut sent)));
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_ends_the_session_and_the_next_one_begins_with_everything() {
    let (world, mut sent) = World::settled(None).await;
    for n in 0..=OUTBOUND {
        world.pods.send(PodsEvent::Applied(pod(&format!("p{n}")), rv())).await.unwrap();
    }
    seconds(1).await;
    while sent.recv().await.is_some() {}
    world.session.send(SessionEvent::Disconnected).await.unwrap();
    let mut sent = world.connect().await;
    seconds(1).await;
    let pods = all(&mut sent).into_iter().find_map(|m| match m {
        FromAgent::Pods(Ok(pods)) => Some(pods),
        _ => None,
    });
    assert_eq!(pods.unwrap().pods().len(), OUTBOUND + 3);
}

#[tokio::test(start_paused = true)]
async fn s14_before_the_first_list_the_pods_are_unknown() {
    let world = World::new(None);
    let mut sent = world.connect().await;
    world.told(ToAgent::OwnedAll(vec![owned("a")])).await;
    world.scene(|s| {
        s.cgroups = Ok([uid("own")].into());
        s.branch_link = false;
    });
    seconds(600).await;
    let messages = all(&mut sent);
    assert!(messages.iter().any(|m| matches!(m, FromAgent::Pods(Err(Blind::NotRead)))));
    assert!(!messages.iter().any(|m| matches!(m, FromAgent::Suspect(_) | FromAgent::Release(_))));
    assert!(world.status.borrow().unready("pods").is_some());
}

#[tokio::test(start_paused = true)]
async fn readiness_names_each_view_and_a_node_without_trunk_is_ready() {
    let (world, _sent) = World::settled(None).await;
    let checks = crate::status::CHECKS;
    let unready = |world: &World| {
        let status = world.status.borrow().clone();
        checks.into_iter().filter(|c| status.unready(c).is_some()).collect::<Vec<_>>()
    };
    assert_eq!(unready(&world), [""; 0]);
    world.scene(|s| s.cgroups = Ok([uid("a")].into()));
    world.told(ToAgent::Trunk(Some(mac("02:00:00:00:00:99")))).await;
    seconds(12).await;
    assert_eq!(unready(&world), ["cgroups", "links"]);
    assert!(world.status.borrow().unready("cgroups").unwrap().contains("cgroupsPerQOS"));
    world.told(ToAgent::Trunk(None)).await;
    seconds(12).await;
    assert_eq!(unready(&world), ["cgroups"]);
    world.scene(|s| s.start = None);
    world.session.send(SessionEvent::Disconnected).await.unwrap();
    world.session.send(SessionEvent::Waiting("refused: why".into())).await.unwrap();
    seconds(12).await;
    assert_eq!(unready(&world), ["cgroups", "kubelet", "session"]);
    assert_eq!(world.status.borrow().unready("session").as_deref(), Some("refused: why"));
}

// === healing ===

fn set_mac(request: u64, vlan: i64) -> SetMac {
    SetMac {
        request,
        uid: uid("a"),
        vlan: VlanId::new(vlan).unwrap(),
        from: mac(BRANCH),
        to: mac("02:00:00:00:00:08"),
        addresses: vec![],
    }
}

fn answered(sent: &mut mpsc::Receiver<FromAgent>) -> Vec<u64> {
    let request = |message| match message {
        FromAgent::MacResult { request, outcome: MacOutcome::Done, .. } => Some(request),
        _ => None,
    };
    all(sent).into_iter().filter_map(request).collect()
}

#[tokio::test(start_paused = true)]
async fn links_are_healed_one_at_a_time_and_in_order() {
    let (world, mut sent) = World::settled(None).await;
    world.told(ToAgent::SetMac(set_mac(1, 7))).await;
    world.told(ToAgent::ClearNeighbours { addresses: vec!["10.0.1.17".parse().unwrap()] }).await;
    world.told(ToAgent::SetMac(set_mac(2, 8))).await;
    let heals = || world.node.heals.lock().unwrap().len();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!((heals(), answered(&mut sent)), (1, vec![]));
    seconds(1).await;
    assert_eq!((heals(), answered(&mut sent)), (2, vec![1]));
    seconds(2).await;
    assert_eq!(answered(&mut sent), [2]);
    assert_eq!(
        *world.node.heals.lock().unwrap(),
        [
            "7 to 02:00:00:00:00:08, trunk 02:00:00:00:00:01",
            "clear [10.0.1.17]",
            "8 to 02:00:00:00:00:08, trunk 02:00:00:00:00:01",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn looks_and_heartbeats_go_on_while_a_link_is_healed() {
    let (world, mut sent) = World::settled(None).await;
    for request in 0..20 {
        world.told(ToAgent::SetMac(set_mac(request, 7))).await;
    }
    all(&mut sent);
    let looks = world.node.looks.lock().unwrap().len();
    seconds(12).await;
    assert!(world.node.looks.lock().unwrap().len() > looks + 1);
    let messages = all(&mut sent);
    assert!(messages.iter().filter(|m| matches!(m, FromAgent::Heartbeat(_))).count() >= 2);
}

#[tokio::test(start_paused = true)]
async fn what_was_not_begun_when_the_session_ended_is_never_done() {
    let (world, mut sent) = World::settled(None).await;
    world.told(ToAgent::SetMac(set_mac(1, 7))).await;
    world.told(ToAgent::SetMac(set_mac(2, 8))).await;
    world.session.send(SessionEvent::Disconnected).await.unwrap();
    seconds(5).await;
    assert_eq!(world.node.heals.lock().unwrap().len(), 1, "the one under way is finished");
    assert!(answered(&mut sent).is_empty());

    let mut sent = world.connect().await;
    seconds(1).await;
    world.told(ToAgent::SetMac(set_mac(2, 8))).await;
    seconds(2).await;
    assert_eq!(answered(&mut sent), [2]);
}

#[tokio::test(start_paused = true)]
async fn more_requests_than_a_node_has_branches_are_refused_one_by_one() {
    let (world, mut sent) = World::settled(None).await;
    let failed = |message| match message {
        FromAgent::MacResult { request, outcome: MacOutcome::Failed(_), .. } => Some(request),
        _ => None,
    };
    let mut refused: Vec<u64> = Vec::new();
    for request in 0..300 {
        world.told(ToAgent::SetMac(set_mac(request, 7))).await;
        refused.extend(all(&mut sent).into_iter().filter_map(failed));
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    refused.extend(all(&mut sent).into_iter().filter_map(failed));
    // One is under way, 256 wait.
    assert_eq!(refused, (257..300).collect::<Vec<_>>());
}
