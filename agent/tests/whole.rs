//! The whole agent but for the pod list-watch: loop, session over TLS and gRPC, journal, real directories, a real socket,
//! and links in a real namespace where that is possible.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on ends")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use common::{Certificates, Coordinator, Netns, Node, Stream, within};
use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use trunkline_agent::cgroups::Cgroups;
use trunkline_agent::drive::{Driver, Ports, Start};
use trunkline_agent::journal::JournalFile;
use trunkline_agent::kubelet::KubeletProbe;
use trunkline_agent::links::LinkReader;
use trunkline_agent::links::heal::LinkHealer;
use trunkline_agent::look::{HostNode, follow_links, read_boot_id};
use trunkline_agent::metrics::{LoopMetrics, SessionMetrics};
use trunkline_agent::port::LocalNode;
use trunkline_agent::session::{GrpcDialer, Identity, Session};
use trunkline_agent::signs::SignBoard;
use trunkline_agent::status::{AgentStatus, SessionStatus};
use trunkline_core::fact::Way;
use trunkline_core::id::{
    EniId, Epoch, MacAddress, Namespace, NodeName, PodName, PodRef, PodUid, ResourceVersion, VlanId,
};
use trunkline_core::message::{Ack, Change, FromAgent, MacOutcome, OwnedBranch, SetMac, ToAgent};
use trunkline_core::time::Timing;
use trunkline_core::view::{Blind, Pod, PodPhase, Snapshot};
use trunkline_kit::clock::Clock;
use trunkline_kit::config::targets;
use trunkline_kit::listwatch::{PodsEvent, Relist};
use trunkline_proto::convert::Received;
use trunkline_proto::convert::greeting::redirect;

const OWN: &str = "11111111-1111-4111-8111-111111111111";
const A: &str = "aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa";
const TRUNK: &str = "02:00:00:00:00:01";
const BRANCH: &str = "02:00:00:00:00:07";

fn uid(text: &str) -> PodUid {
    PodUid::new(text).unwrap()
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

fn owned() -> ToAgent {
    ToAgent::OwnedAll(vec![OwnedBranch {
        pod: pod_ref(A),
        mirror: false,
        kubelet_uid: Some(uid(A)),
        eni: EniId::new("eni-0123456789abcdef0").unwrap(),
        mac: BRANCH.parse().unwrap(),
        vlan: VlanId::new(7).unwrap(),
    }])
}

fn timing() -> Timing {
    Timing {
        look_interval: Duration::from_millis(50),
        heartbeat: Duration::from_millis(100),
        repeat: Duration::from_millis(200),
        slow_release: Duration::from_secs(2),
        ..Timing::default()
    }
}

struct Agent {
    pods: mpsc::Sender<PodsEvent>,
    status: watch::Receiver<AgentStatus>,
    _tasks: JoinSet<()>,
}

impl Agent {
    fn start(node: &Node, netns: Option<&Netns>, coordinators: &str) -> Self {
        Self::start_healing(node, netns, coordinators, true)
    }

    fn start_healing(
        node: &Node,
        netns: Option<&Netns>,
        coordinators: &str,
        heal_in_place: bool,
    ) -> Self {
        let clock = Clock::boot();
        let signs = Arc::new(SignBoard::default());
        let kubelet = KubeletProbe::new(&node.path("kubelet.sock"));
        let cgroups =
            Cgroups::new(&node.path("cgroup"), kubelet.clone(), Arc::clone(&signs)).unwrap();
        let file = netns.map(Netns::file);
        let links = LinkReader::new(file.as_deref());
        let boot = read_boot_id(&node.path("boot_id")).unwrap();
        let journal = JournalFile::open(&node.path("state")).unwrap();
        let host = HostNode {
            clock,
            boot_id_file: node.path("boot_id"),
            kubelet,
            cgroups: cgroups.clone(),
            links: links.clone(),
            healer: heal_in_place.then(|| LinkHealer::new(file.as_deref())),
            signs: Arc::clone(&signs),
        };
        let (pods, pods_out) = mpsc::channel(64);
        let (session_in, session_out) = mpsc::channel(64);
        let start = Start {
            node: NodeName::new("n1").unwrap(),
            own_pod: uid(OWN),
            boot: boot.clone(),
            journal: journal.load(&boot),
            timing: timing(),
        };
        let ports = Ports {
            pods: pods_out,
            relist: Relist::default(),
            node: Arc::new(host) as Arc<dyn LocalNode>,
            journal: Box::new(journal),
            session: session_out,
            clock,
        };
        let mut registry = Registry::default();
        let metrics = LoopMetrics::register(&mut registry);
        let (driver, status, kubelet_start) = Driver::new(ports, start, metrics);
        let dialer = GrpcDialer::new(
            targets(coordinators).unwrap(),
            node.path("ca.crt"),
            node.path("token"),
        );
        let identity = Identity {
            session: Identity::random_session().unwrap(),
            node: NodeName::new("n1").unwrap(),
            boot,
            build: "test".into(),
        };
        let session = Session::new(
            Arc::new(dialer),
            identity,
            kubelet_start,
            session_in,
            SessionMetrics::register(&mut registry),
            timing().heartbeat,
        );
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let _ = cgroups.follow().await;
        });
        tasks.spawn(follow_links(links, signs));
        tasks.spawn(async move {
            driver.run().await;
        });
        tasks.spawn(session.run());
        Self { pods, status, _tasks: tasks }
    }

    async fn shows(&mut self, what: &str, fits: impl FnMut(&AgentStatus) -> bool) {
        within(what, self.status.wait_for(fits)).await.unwrap();
    }
}

/// A node with a coordinator's CA and a token, and the coordinator.
async fn world() -> (Node, Certificates, Coordinator) {
    trunkline_kit::tls::install_provider();
    let node = Node::new();
    let certificates = Certificates::for_name("localhost");
    std::fs::write(node.path("ca.crt"), &certificates.ca).unwrap();
    std::fs::write(node.path("token"), "token-1\n").unwrap();
    node.make_cgroup(OWN);
    let coordinator = Coordinator::start(&certificates).await;
    (node, certificates, coordinator)
}

fn url(coordinator: &Coordinator) -> String {
    format!("https://localhost:{}", coordinator.address.port())
}

async fn sees_branch(stream: &mut Stream) {
    let vlan = VlanId::new(7).unwrap();
    let mac: MacAddress = BRANCH.parse().unwrap();
    stream
        .until("link of the branch", |message| match message {
            FromAgent::Links(Ok(links)) => links.has_branch(vlan, mac).then_some(()),
            _ => None,
        })
        .await;
}

async fn release(stream: &mut Stream) -> (PodUid, Way, usize) {
    stream
        .until("release", |message| match message {
            FromAgent::Release(release) => {
                let facts = release.facts();
                Some((facts.uid.clone(), facts.way, facts.enis.len()))
            }
            _ => None,
        })
        .await
}

async fn barrier(stream: &mut Stream, question: u64) -> Option<bool> {
    stream.tell(&ToAgent::Barrier { question, uids: BTreeSet::from([uid(A)]) }).await;
    stream
        .until("barrier reply", |message| match message {
            FromAgent::Barrier(reply) if reply.question == question => {
                Some(reply.present.get(&uid(A)).copied().flatten())
            }
            _ => None,
        })
        .await
}

/// The pod's cgroup appears after the first look, so that it is not left over from before the kubelet's start.
async fn makes_cgroup(agent: &mut Agent, node: &Node) {
    agent.shows("the first look", |s| s.cgroups.count == Some(1)).await;
    node.make_cgroup(A);
    agent.shows("the pod's cgroup", |s| s.cgroups.count == Some(2)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pods_branch_is_released_when_all_evidence_is_there_and_not_before() {
    let Some(netns) = Netns::new() else { return };
    netns.make_trunk(TRUNK);
    netns.make_branch(7, BRANCH);
    let (node, _, mut coordinator) = world().await;
    let mut agent = Agent::start(&node, Some(&netns), &url(&coordinator));
    agent.pods.send(listed(&[OWN, A])).await.unwrap();
    makes_cgroup(&mut agent, &node).await;

    let call = coordinator.call().await;
    assert_eq!(call.authorization, "Bearer token-1");
    let mut stream = call.welcome(1).await;
    stream.tell(&ToAgent::Trunk(Some(TRUNK.parse().unwrap()))).await;
    stream.tell(&owned()).await;
    sees_branch(&mut stream).await;
    agent.shows("readiness", |s| s.unready("links").is_none() && s.unready("pods").is_none()).await;

    agent.pods.send(PodsEvent::Deleted(pod_ref(A), rv())).await.unwrap();
    stream.no_release_for(5).await;
    assert_eq!(barrier(&mut stream, 1).await, Some(true));
    node.remove_cgroup(A);
    stream.no_release_for(5).await;
    netns.ip("link del vlan.eth.7");
    assert_eq!(release(&mut stream).await, (uid(A), Way::SeenAndGone, 1));
    assert_eq!(barrier(&mut stream, 2).await, Some(false));

    node.make_cgroup(A);
    assert_eq!(barrier(&mut stream, 3).await, Some(true), "it is back");
    agent.shows("withdrawal", |s| s.cases.iter().any(|c| c.state == "kubelet-holds")).await;
    node.remove_cgroup(A);
    release(&mut stream).await;
    stream.tell(&ToAgent::Ack(uid(A), Ack::Deleted)).await;
    agent.shows("end of the case", |s| s.cases.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s57_after_a_restart_the_journal_keeps_the_fast_way_and_a_broken_one_the_slow() {
    let Some(netns) = Netns::new() else { return };
    netns.make_trunk(TRUNK);
    for (break_journal, way) in [(false, Way::SeenAndGone), (true, Way::Slow)] {
        let (node, _, mut coordinator) = world().await;
        // The first agent needs no coordinator for what it sees.
        let mut first = Agent::start(&node, Some(&netns), "https://127.0.0.1:1");
        makes_cgroup(&mut first, &node).await;
        drop(first);
        node.remove_cgroup(A);
        let journal = node.path("state/journal.json");
        assert!(std::fs::read_to_string(&journal).unwrap().contains(A));
        if break_journal {
            std::fs::write(&journal, b"{").unwrap();
        }

        let second = Agent::start(&node, Some(&netns), &url(&coordinator));
        second.pods.send(listed(&[OWN])).await.unwrap();
        let mut stream = coordinator.call().await.welcome(1).await;
        stream.tell(&ToAgent::Trunk(Some(TRUNK.parse().unwrap()))).await;
        stream.tell(&owned()).await;
        stream.until("suspect", |m| matches!(m, FromAgent::Suspect(_)).then_some(())).await;
        stream.tell(&ToAgent::Gone(uid(A))).await;
        assert_eq!(release(&mut stream).await, (uid(A), way, 1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redirect_is_dialled_by_address_and_verified_by_name() {
    let (node, certificates, mut follower) = world().await;
    let mut leader = Coordinator::start(&certificates).await;
    let mut agent = Agent::start(&node, None, &url(&follower));
    let call = follower.call().await;
    call.say(redirect(&leader.address.to_string())).await;
    let stream = leader.call().await.welcome(4).await;
    assert_eq!(stream.origin.epoch, Epoch(4));
    agent.shows("session", |s| s.session == SessionStatus::Connected { epoch: 4 }).await;

    // A leader with a certificate of somebody else is not spoken to.
    drop(stream);
    let strangers = Certificates::for_name("localhost");
    let mut stranger = Coordinator::start(&strangers).await;
    let call = follower.call().await;
    call.say(redirect(&stranger.address.to_string())).await;
    agent.shows("refusal of the stranger", |s| matches!(&s.session, SessionStatus::Waiting { reason } if reason.contains("failed to connect"))).await;
    let call = tokio::select! {
        call = follower.call() => call,
        call = stranger.call() => panic!("the stranger was greeted: {:?}", call.hello),
    };
    assert_eq!(call.hello.highest_epoch, Epoch(4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_are_renewed_in_the_stream_and_read_anew_for_the_next() {
    let (node, _, mut coordinator) = world().await;
    let _agent = Agent::start(&node, None, &url(&coordinator));
    let mut stream = coordinator.call().await.welcome(1).await;
    std::fs::write(node.path("token"), "token-2").unwrap();
    let token = within("token", async {
        loop {
            if let Received::Token(token) = stream.hear().await {
                return token.secret().to_owned();
            }
        }
    });
    assert_eq!(token.await, "token-2");
    drop(stream);
    assert_eq!(coordinator.call().await.authorization, "Bearer token-2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_sent_again_on_resync_and_unknown_views_say_so() {
    let (node, _, mut coordinator) = world().await;
    let agent = Agent::start(&node, None, &url(&coordinator));
    agent.pods.send(listed(&[OWN])).await.unwrap();
    let mut stream = coordinator.call().await.welcome(1).await;
    for round in 0..3 {
        let mut left = BTreeSet::from(["pods", "links", "cgroups", "vlans"]);
        stream
            .until("all views", |message| {
                match message {
                    FromAgent::Pods(Ok(pods)) if pods.pods().len() == 1 => left.remove("pods"),
                    FromAgent::Links(Err(Blind::TrunkUnknown)) => left.remove("links"),
                    FromAgent::Cgroups(Ok(uids)) if *uids == [uid(OWN)].into() => {
                        left.remove("cgroups")
                    }
                    FromAgent::VlansUsed(None) => left.remove("vlans"),
                    _ => false,
                };
                left.is_empty().then_some(())
            })
            .await;
        if round < 2 {
            stream.resync().await;
        }
    }
    node.remove_cgroup(OWN);
    stream
        .until("blind cgroups", |m| {
            matches!(m, FromAgent::Cgroups(Err(Blind::OwnPodMissing))).then_some(())
        })
        .await;
}

// === healing ===

const HEALED: &str = "02:00:00:00:00:77";

fn set_mac(request: u64, to: &str) -> ToAgent {
    ToAgent::SetMac(SetMac {
        request,
        uid: uid(A),
        vlan: VlanId::new(7).unwrap(),
        from: BRANCH.parse().unwrap(),
        to: to.parse().unwrap(),
        addresses: vec!["10.0.1.17".parse().unwrap()],
    })
}

async fn outcome(stream: &mut Stream, asked: u64) -> MacOutcome {
    stream
        .until("result of a MAC change", |message| match message {
            FromAgent::MacResult { request, outcome, .. } => {
                assert_eq!(*request, asked);
                Some(outcome.clone())
            }
            _ => None,
        })
        .await
}

/// The change is done and the link is told with its new MAC, whichever comes first.
async fn done_and_shown(stream: &mut Stream, asked: u64, mac: &str) {
    let wanted = Some(mac.parse::<MacAddress>().unwrap());
    let (mut done, mut shown) = (false, false);
    stream
        .until("result of a MAC change and the link's new MAC", |message| {
            match message {
                FromAgent::MacResult { request, outcome, .. } => {
                    assert_eq!((*request, outcome), (asked, &MacOutcome::Done));
                    done = true;
                }
                FromAgent::Change(Change::Links { added, .. }) => {
                    shown |= added.iter().any(|l| l.name == "vlan.eth.7" && l.mac == wanted);
                }
                _ => {}
            }
            (done && shown).then_some(())
        })
        .await;
}

/// A greeted session whose agent knows the trunk and has told of the branch.
async fn greeted(coordinator: &mut Coordinator, epoch: u64) -> Stream {
    let mut stream = coordinator.call().await.welcome(epoch).await;
    stream.tell(&ToAgent::Trunk(Some(TRUNK.parse().unwrap()))).await;
    stream.until("links", |message| matches!(message, FromAgent::Links(Ok(_))).then_some(())).await;
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mac_is_set_on_the_coordinators_word_and_told_and_an_agent_restart_changes_nothing() {
    let Some(netns) = Netns::new() else { return };
    netns.make_trunk(TRUNK);
    netns.make_branch(7, BRANCH);
    netns.ip("link set trunk0 up");
    netns.ip("link set vlan.eth.7 up");
    let (node, _, mut coordinator) = world().await;
    let agent = Agent::start(&node, Some(&netns), &url(&coordinator));
    agent.pods.send(listed(&[OWN, A])).await.unwrap();
    let mut stream = greeted(&mut coordinator, 1).await;
    stream.tell(&owned()).await;
    // The books name another MAC than the link has: no reason to change anything.
    stream.no_release_for(3).await;
    stream.tell(&set_mac(3, HEALED)).await;
    done_and_shown(&mut stream, 3, HEALED).await;

    drop(agent);
    drop(stream);
    let agent = Agent::start(&node, Some(&netns), &url(&coordinator));
    agent.pods.send(listed(&[OWN, A])).await.unwrap();
    let mut stream = greeted(&mut coordinator, 2).await;
    stream.tell(&set_mac(1, HEALED)).await;
    assert_eq!(outcome(&mut stream, 1).await, MacOutcome::Already);
    stream.tell(&set_mac(2, "02:00:00:00:00:88")).await;
    assert_eq!(outcome(&mut stream, 2).await, MacOutcome::Differs(HEALED.parse().unwrap()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s11_a_deposed_leaders_request_sets_no_mac() {
    let Some(netns) = Netns::new() else { return };
    netns.make_trunk(TRUNK);
    netns.make_branch(7, BRANCH);
    let (node, _, mut coordinator) = world().await;
    let agent = Agent::start(&node, Some(&netns), &url(&coordinator));
    agent.pods.send(listed(&[OWN, A])).await.unwrap();
    let mut stream = greeted(&mut coordinator, 5).await;
    let current = stream.origin.clone();
    stream.origin.epoch = Epoch(4);
    stream.tell(&set_mac(1, HEALED)).await;
    stream.origin = current;
    // Messages are taken in order: once this one is answered, the other was dropped.
    stream.tell(&set_mac(2, BRANCH)).await;
    assert_eq!(outcome(&mut stream, 2).await, MacOutcome::Already);
    let links = LinkReader::new(Some(&netns.file())).dump().await.unwrap();
    assert!(links.has_mac(BRANCH.parse().unwrap()) && !links.has_mac(HEALED.parse().unwrap()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_must_not_heal_says_so_and_changes_nothing() {
    let Some(netns) = Netns::new() else { return };
    netns.make_trunk(TRUNK);
    netns.make_branch(7, BRANCH);
    let (node, _, mut coordinator) = world().await;
    let agent = Agent::start_healing(&node, Some(&netns), &url(&coordinator), false);
    agent.pods.send(listed(&[OWN, A])).await.unwrap();
    let mut stream = greeted(&mut coordinator, 1).await;
    stream.tell(&set_mac(1, HEALED)).await;
    assert_eq!(outcome(&mut stream, 1).await, MacOutcome::SwitchedOff);
    let links = LinkReader::new(Some(&netns.file())).dump().await.unwrap();
    assert!(links.has_mac(BRANCH.parse().unwrap()) && !links.has_mac(HEALED.parse().unwrap()));
}
