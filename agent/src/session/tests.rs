//! The session against coordinators that are channels, in paused time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;

use futures::FutureExt;
use futures::future::BoxFuture;
use prometheus_client::registry::Registry;
use tokio_stream::wrappers::ReceiverStream;
use trunkline_core::id::TermNonce;
use trunkline_core::id::{Namespace, PodName, PodRef, PodUid};
use trunkline_core::message::{Change, Heartbeat};
use trunkline_proto::convert::greeting::redirect;
use trunkline_proto::convert::{CoordinatorSender, Hello, PROTOCOL, Refusal, Welcome};
use trunkline_proto::v1;
use trunkline_proto::v1::agent_message::Body;

use super::*;
use crate::port::{DialError, Inbound};

/// One stream as the coordinator holds it.
struct Call {
    address: String,
    server_name: String,
    hello: Hello,
    from_agent: mpsc::Receiver<v1::AgentMessage>,
    to_agent: mpsc::Sender<Result<v1::CoordinatorMessage, DialError>>,
}

struct Fake {
    addresses: Vec<String>,
    unreachable: Mutex<Vec<String>>,
    dialled: Mutex<Vec<String>>,
    token: Mutex<String>,
    calls: mpsc::Sender<Call>,
}

impl Dialer for Fake {
    fn targets(&self) -> BoxFuture<'_, Result<Vec<Target>, DialError>> {
        let target = |address: &String| Target {
            address: address.clone(),
            server_name: "coordinator.trunkline".into(),
        };
        let targets: Vec<Target> = self.addresses.iter().map(target).collect();
        async move {
            if targets.is_empty() {
                Err(DialError("no address".into()))
            } else {
                Ok(targets)
            }
        }
        .boxed()
    }

    fn open<'a>(
        &'a self,
        target: &'a Target,
        mut outbound: mpsc::Receiver<v1::AgentMessage>,
    ) -> BoxFuture<'a, Result<Inbound, DialError>> {
        async move {
            self.dialled.lock().unwrap().push(target.address.clone());
            if self.unreachable.lock().unwrap().contains(&target.address) {
                return Err(DialError("connection refused".into()));
            }
            let hello = Hello::try_from(outbound.recv().await.unwrap()).unwrap();
            let (to_agent, inbound) = mpsc::channel(16);
            let call = Call {
                address: target.address.clone(),
                server_name: target.server_name.clone(),
                hello,
                from_agent: outbound,
                to_agent,
            };
            self.calls.send(call).await.map_err(|e| DialError(e.to_string()))?;
            Ok(Box::pin(ReceiverStream::new(inbound)) as Inbound)
        }
        .boxed()
    }

    fn token(&self) -> Result<String, DialError> {
        Ok(self.token.lock().unwrap().clone())
    }
}

struct World {
    dialer: Arc<Fake>,
    calls: mpsc::Receiver<Call>,
    events: mpsc::Receiver<SessionEvent>,
    metrics: SessionMetrics,
}

impl World {
    fn new(addresses: &[&str]) -> Self {
        let (calls_in, calls) = mpsc::channel(16);
        let dialer = Arc::new(Fake {
            addresses: addresses.iter().map(ToString::to_string).collect(),
            unreachable: Mutex::default(),
            dialled: Mutex::default(),
            token: Mutex::new("first".into()),
            calls: calls_in,
        });
        let (events_in, events) = mpsc::channel(64);
        let metrics = SessionMetrics::register(&mut Registry::default());
        let identity = Identity {
            session: SessionId::new("s1").unwrap(),
            node: NodeName::new("node-1").unwrap(),
            boot: BootId::new("b1").unwrap(),
            build: "test".into(),
        };
        let (_, kubelet) = watch::channel(Some(KubeletStart(7)));
        let session = Session::new(
            Arc::clone(&dialer) as Arc<dyn Dialer>,
            identity,
            kubelet,
            events_in,
            metrics.clone(),
            Duration::from_secs(5),
        );
        tokio::spawn(session.run());
        Self { dialer, calls, events, metrics }
    }

    async fn call(&mut self) -> Call {
        self.calls.recv().await.unwrap()
    }

    /// The next event that is not `Waiting`.
    async fn event(&mut self) -> SessionEvent {
        loop {
            match self.events.recv().await.unwrap() {
                SessionEvent::Waiting(_) => {}
                event => return event,
            }
        }
    }

    /// The next event, which must be `Waiting`.
    async fn waiting(&mut self) -> String {
        match self.events.recv().await.unwrap() {
            SessionEvent::Waiting(sentence) => sentence,
            other => panic!("{other:?}"),
        }
    }

    /// A call that is welcomed, and the loop's end of it.
    async fn welcomed(&mut self, epoch: u64) -> (Call, Origin, mpsc::Sender<FromAgent>) {
        let call = self.call().await;
        let origin = origin(epoch);
        call.say(welcome(&origin)).await;
        match self.event().await {
            SessionEvent::Connected { origin: connected, outbound } => {
                assert_eq!(connected, origin);
                (call, origin, outbound)
            }
            other => panic!("{other:?}"),
        }
    }
}

impl Call {
    async fn say(&self, message: v1::CoordinatorMessage) {
        self.to_agent.send(Ok(message)).await.unwrap();
    }

    async fn say_all(&self, origin: &Origin, message: &ToAgent) {
        for message in CoordinatorSender::new(origin.clone()).encode(message) {
            self.say(message).await;
        }
    }

    async fn hear(&mut self) -> v1::AgentMessage {
        self.from_agent.recv().await.unwrap()
    }
}

fn origin(epoch: u64) -> Origin {
    Origin {
        session: SessionId::new("s1").unwrap(),
        epoch: Epoch(epoch),
        nonce: TermNonce(epoch * 1000),
    }
}

fn welcome(origin: &Origin) -> v1::CoordinatorMessage {
    (&Welcome {
        origin: origin.clone(),
        version: PROTOCOL,
        build: "test".into(),
        reconnect_within: Duration::ZERO,
    })
        .into()
}

fn refusal(reason: RefusalReason, retry_after: Duration) -> v1::CoordinatorMessage {
    Refusal { reason, sentence: "a sentence".into(), retry_after }.to_message()
}

fn uid(text: &str) -> PodUid {
    PodUid::new(text).unwrap()
}

fn deleted(n: usize) -> FromAgent {
    FromAgent::Change(Change::PodDeleted(PodRef {
        uid: uid(&format!("u{n}")),
        namespace: Namespace::new("default").unwrap(),
        name: PodName::new("p").unwrap(),
    }))
}

#[tokio::test(start_paused = true)]
async fn the_greeting_names_the_agent_and_opens_the_session() {
    let mut world = World::new(&["a:1"]);
    let (mut call, origin, outbound) = world.welcomed(3).await;
    assert_eq!(call.server_name, "coordinator.trunkline");
    assert_eq!(call.hello.node.as_str(), "node-1");
    assert_eq!(call.hello.kubelet, Some(KubeletStart(7)));
    assert_eq!(call.hello.highest_epoch, Epoch(0));

    outbound.send(FromAgent::VlansUsed(Some(BTreeMap::new()))).await.unwrap();
    outbound.send(deleted(1)).await.unwrap();
    outbound.send(deleted(2)).await.unwrap();
    assert!(matches!(call.hear().await.body, Some(Body::VlansUsed(_))));
    for seq in [1, 2] {
        let message = call.hear().await;
        assert_eq!((message.session.as_str(), message.epoch, message.term_nonce), ("s1", 3, 3000));
        let Some(Body::Delta(delta)) = message.body else { panic!() };
        assert_eq!(delta.seq, seq);
    }
    call.say_all(&origin, &ToAgent::Gone(uid("u1"))).await;
    assert!(matches!(world.event().await, SessionEvent::Told(ToAgent::Gone(u)) if u == uid("u1")));
}

#[tokio::test(start_paused = true)]
async fn a_redirect_is_followed_at_once_and_keeps_the_tls_name() {
    let mut world = World::new(&["a:1"]);
    let first = world.call().await;
    let before = Instant::now();
    first.say(redirect("leader:9")).await;
    let (call, ..) = world.welcomed(1).await;
    assert_eq!(
        (call.address.as_str(), call.server_name.as_str()),
        ("leader:9", "coordinator.trunkline")
    );
    assert_eq!(before.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn coordinators_that_send_one_on_in_a_circle_are_dialled_with_back_off() {
    let mut world = World::new(&["a:1"]);
    let before = Instant::now();
    for _ in 0..40 {
        let call = world.call().await;
        call.say(redirect("a:1")).await;
    }
    assert!(before.elapsed() > Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn all_addresses_are_tried_before_a_pause() {
    let mut world = World::new(&["a:1", "b:1", "c:1"]);
    world.dialer.unreachable.lock().unwrap().extend(["a:1".into(), "b:1".into()]);
    let (call, ..) = world.welcomed(1).await;
    assert_eq!(call.address, "c:1");
    assert!(world.dialer.dialled.lock().unwrap().len() <= 3);
}

#[tokio::test(start_paused = true)]
async fn unreachable_coordinators_are_dialled_ever_less_often() {
    let world = World::new(&["a:1"]);
    world.dialer.unreachable.lock().unwrap().push("a:1".into());
    tokio::time::sleep(Duration::from_secs(600)).await;
    let dialled = world.dialer.dialled.lock().unwrap().len();
    assert!((20..120).contains(&dialled), "{dialled} dials in ten minutes");
    assert!(world.metrics.ends(SessionEnd::Unreachable) > 0);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_waited_out_and_told() {
    let mut world = World::new(&["a:1"]);
    let call = world.call().await;
    let before = Instant::now();
    call.say(refusal(RefusalReason::OtherNode, Duration::from_secs(100))).await;
    assert_eq!(world.waiting().await, "the coordinator refused: a sentence");
    let (..) = world.welcomed(1).await;
    assert!(before.elapsed() >= Duration::from_secs(100));
    assert_eq!(world.metrics.ends(SessionEnd::RefusedIdentity), 1);
}

#[tokio::test(start_paused = true)]
async fn s11_a_lower_epoch_is_refused_and_the_highest_is_told() {
    let mut world = World::new(&["a:1"]);
    let (call, ..) = world.welcomed(5).await;
    drop(call);
    assert!(matches!(world.event().await, SessionEvent::Disconnected));

    let deposed = world.call().await;
    assert_eq!(deposed.hello.highest_epoch, Epoch(5));
    deposed.say(welcome(&origin(4))).await;
    let (call, ..) = world.welcomed(6).await;
    assert_eq!(call.hello.highest_epoch, Epoch(5));
    assert_eq!(world.metrics.ends(SessionEnd::LowerEpoch), 1);
}

#[tokio::test(start_paused = true)]
async fn messages_of_another_session_epoch_or_nonce_are_dropped() {
    let mut world = World::new(&["a:1"]);
    let (call, origin, _outbound) = world.welcomed(5).await;
    for other in [
        Origin { session: SessionId::new("s2").unwrap(), ..origin.clone() },
        Origin { epoch: Epoch(4), ..origin.clone() },
        Origin { epoch: Epoch(6), ..origin.clone() },
        Origin { nonce: TermNonce(1), ..origin.clone() },
    ] {
        call.say_all(&other, &ToAgent::Gone(uid("wrong"))).await;
    }
    call.say_all(&origin, &ToAgent::Gone(uid("right"))).await;
    assert!(
        matches!(world.event().await, SessionEvent::Told(ToAgent::Gone(u)) if u == uid("right"))
    );
    assert_eq!(world.metrics.foreigners(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_resync_reaches_the_loop() {
    let mut world = World::new(&["a:1"]);
    let (call, origin, _outbound) = world.welcomed(1).await;
    call.say(CoordinatorSender::new(origin).resync("a hole")).await;
    assert!(matches!(world.event().await, SessionEvent::Resync));
}

#[tokio::test(start_paused = true)]
async fn a_renewed_token_is_sent_in_the_stream_once() {
    let mut world = World::new(&["a:1"]);
    let (mut call, _, outbound) = world.welcomed(1).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(call.from_agent.try_recv().is_err(), "the token is the one of the greeting");
    *world.dialer.token.lock().unwrap() = "second".into();
    let Some(Body::Token(token)) = call.hear().await.body else { panic!() };
    assert_eq!(token.token, "second");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(call.from_agent.try_recv().is_err());
    drop(outbound);
}

#[tokio::test(start_paused = true)]
async fn a_coordinator_that_does_not_read_ends_the_session_and_is_still_heard() {
    let mut world = World::new(&["a:1"]);
    let (call, origin, outbound) = world.welcomed(1).await;
    let mut sent = 0;
    while outbound.try_send(deleted(sent)).is_ok() {
        sent += 1;
        tokio::task::yield_now().await;
        assert!(sent < 3 * OUTBOUND, "the queue has no bound");
    }
    call.say_all(&origin, &ToAgent::Gone(uid("u1"))).await;
    assert!(matches!(world.event().await, SessionEvent::Told(ToAgent::Gone(_))));
    drop(outbound);
    drop(call.from_agent);
    assert!(matches!(world.event().await, SessionEvent::Disconnected));
    let (..) = world.welcomed(1).await;
}

#[tokio::test(start_paused = true)]
async fn the_loop_ends_a_session_by_dropping_its_end() {
    let mut world = World::new(&["a:1"]);
    let (_call, _, outbound) = world.welcomed(1).await;
    drop(outbound);
    assert!(matches!(world.event().await, SessionEvent::Disconnected));
    let (..) = world.welcomed(1).await;
    assert_eq!(world.metrics.ends(SessionEnd::TooSlow), 1);
}

#[tokio::test(start_paused = true)]
async fn a_broken_message_ends_the_session() {
    let mut world = World::new(&["a:1"]);
    let (call, origin, _outbound) = world.welcomed(1).await;
    let mut message = CoordinatorSender::new(origin).encode(&ToAgent::Gone(uid("u1"))).remove(0);
    message.body = Some(v1::coordinator_message::Body::Gone(v1::Gone { pod_uid: String::new() }));
    call.say(message).await;
    assert!(matches!(world.event().await, SessionEvent::Disconnected));
    let (..) = world.welcomed(1).await;
    assert_eq!(world.metrics.ends(SessionEnd::BadMessage), 1);
}

#[tokio::test(start_paused = true)]
async fn another_protocol_version_is_no_session() {
    let mut world = World::new(&["a:1"]);
    let call = world.call().await;
    let mut message = welcome(&origin(9));
    if let Some(v1::coordinator_message::Body::Welcome(welcome)) = &mut message.body {
        welcome.version = Some(v1::ProtocolVersion { major: 2, minor: 0 });
    }
    call.say(message).await;
    assert!(world.waiting().await.contains("protocol 2.0"));
    let (call, ..) = world.welcomed(1).await;
    assert_eq!(
        call.hello.highest_epoch,
        Epoch(0),
        "a session that did not open counts for nothing"
    );
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_goes_away_is_not_dialled_by_all_nodes_at_once() {
    let mut waits = VecDeque::new();
    for _ in 0..20 {
        let mut world = World::new(&["a:1"]);
        let call = world.call().await;
        let origin = origin(1);
        let mut message = welcome(&origin);
        if let Some(v1::coordinator_message::Body::Welcome(welcome)) = &mut message.body {
            welcome.reconnect_within_ms = 10_000;
        }
        call.say(message).await;
        let SessionEvent::Connected { outbound, .. } = world.event().await else { panic!() };
        let beat = Heartbeat {
            boot: BootId::new("b1").unwrap(),
            kubelet: None,
            pods: None,
            links: None,
            cgroups: None,
        };
        outbound.send(FromAgent::Heartbeat(beat)).await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        let before = Instant::now();
        drop(call);
        world.call().await;
        waits.push_back(before.elapsed());
    }
    let late = waits.iter().filter(|w| **w > Duration::from_secs(1)).count();
    assert!(late >= 10, "{waits:?}");
    assert!(waits.iter().all(|w| *w <= Duration::from_secs(11)), "{waits:?}");
}
