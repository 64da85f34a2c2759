//! A leading (or following) coordinator with one node, and an agent that speaks the wire protocol.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Server};
use trunkline_core::fact::Origin;
use trunkline_core::id::{Epoch, InstanceId, KubeletStart};
use trunkline_core::message::FromAgent;
use trunkline_core::node::event::Settings;
use trunkline_core::time::Timing;
use trunkline_kit::clock::Clock;
use trunkline_proto::convert::{
    AgentSender, CoordinatorReceiver, FromCoordinator, Greeting, Hello, PROTOCOL,
};
use trunkline_proto::v1;
use trunkline_proto::v1::nodes_client::NodesClient;
use trunkline_proto::v1::nodes_server::NodesServer;
use trunkline_proto::v1::status_server::StatusServer;

use crate::events;
use crate::grpc::admission::Sessions;
use crate::grpc::session::NodesService;
use crate::grpc::status::StatusService;
use crate::grpc::{Lead, Leading, Shared};
use crate::identity::Verifier;
use crate::metrics::Metrics;
use crate::nodes::directory::Change;
use crate::nodes::keeper::Keeper;
use crate::term::Term;
use crate::testing::{Asked, FakeCloud, begin_term, scripted};

pub(super) const BOOT: &str = "boot-1";
pub(super) const START: KubeletStart = KubeletStart(1_000);
const PATIENCE: Duration = Duration::from_secs(20);

/// What the scripted API server holds.
#[derive(Default)]
pub(super) struct ApiState {
    /// Pods by namespace/name.
    pub(super) pods: BTreeMap<String, Value>,
    /// Policies of every namespace.
    pub(super) policies: Vec<Value>,
    /// Everything that was asked.
    pub(super) log: Vec<Asked>,
    /// Whether callers may read the status.
    pub(super) status_allowed: bool,
    /// Whether callers may change fuse and mode.
    pub(super) update_allowed: bool,
}

pub(super) struct World {
    pub(super) term: Arc<Term>,
    pub(super) cloud: Arc<FakeCloud>,
    pub(super) api: Arc<Mutex<ApiState>>,
    pub(super) lead: watch::Sender<Lead>,
    pub(super) higher: mpsc::Receiver<Epoch>,
    pub(super) channel: Channel,
    _settings: watch::Sender<Settings>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.term.stop.cancel();
    }
}

pub(super) fn instance() -> InstanceId {
    "i-00000001".parse().unwrap()
}

/// Durations short enough to see a whole life.
pub(super) fn quick() -> Timing {
    let ms = Duration::from_millis;
    Timing {
        cooldown_floor: ms(50),
        cooldown_default: ms(50),
        ec2_operation: ms(20),
        ec2_list_window: ms(20),
        ec2_consistency: ms(20),
        retry_base: ms(20),
        retry_cap: ms(100),
        confirm_interval: ms(50),
        ..Timing::default()
    }
}

pub(super) fn node_object() -> Value {
    json!({
        "metadata": {"name": "n1", "uid": "node-uid-1", "labels": {"kubernetes.io/os": "linux"}},
        "spec": {"providerID": "aws:///eu-west-1a/i-00000001"},
        "status": {"capacity": {"cpu": "4"}, "nodeInfo": {"bootID": "boot-of-node"}},
    })
}

fn cninode_object() -> Value {
    json!({
        "metadata": {
            "name": "n1", "uid": "cni-1", "resourceVersion": "5",
            "labels": {"kubernetes.io/os": "linux"},
            "finalizers": ["networking.k8s.aws/resource-cleanup"],
        },
        "spec": {
            "features": [{"name": "SecurityGroupsForPods"}],
            "tags": {
                "cluster.k8s.amazonaws.com/name": "c1",
                "node.k8s.amazonaws.com/instance_id": "i-00000001",
            },
        },
    })
}

/// A token whose claims the scripted TokenReview repeats.
pub(super) fn token(change: impl FnOnce(&mut Value)) -> String {
    let mut claims = json!({
        "exp": jiff::Timestamp::now().as_second() + 3_600,
        "authenticated": true,
        "audience": "trunkline",
        "user": "system:serviceaccount:trunkline-system:trunkline-agent",
        "node": "n1",
        "node_uid": "node-uid-1",
        "pod": "agent-1",
        "pod_uid": "agent-uid-1",
    });
    change(&mut claims);
    let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(claims.to_string());
    format!("head.{claims}.sign")
}

fn review(body: &Value) -> Value {
    let token = body["spec"]["token"].as_str().unwrap_or_default();
    let claims = token.split('.').nth(1).unwrap_or_default();
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(claims).unwrap_or_default();
    let claims: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    if claims["authenticated"] != json!(true) {
        return json!({"status": {"error": "invalid token"}});
    }
    let asked = body["spec"]["audiences"][0].as_str();
    if asked.is_some_and(|a| claims["audience"] != json!(a)) {
        return json!({"status": {"error": "token audiences do not match"}});
    }
    let mut extra = serde_json::Map::new();
    for (claim, key) in [
        ("node", "node-name"),
        ("node_uid", "node-uid"),
        ("pod", "pod-name"),
        ("pod_uid", "pod-uid"),
    ] {
        if claims[claim].is_string() {
            extra.insert(format!("authentication.kubernetes.io/{key}"), json!([claims[claim]]));
        }
    }
    json!({"status": {
        "authenticated": true,
        "audiences": [claims["audience"]],
        "user": {"username": claims["user"], "extra": extra},
    }})
}

fn not_found(name: &str) -> (u16, String) {
    let status = json!({"kind": "Status", "reason": "NotFound", "message": "gone", "details": {"kind": "pods", "name": name}});
    (404, status.to_string())
}

fn answer(state: &mut ApiState, asked: &Asked) -> (u16, String) {
    state.log.push(asked.clone());
    let path = asked.path.split('?').next().unwrap_or_default().to_owned();
    if path.ends_with("/tokenreviews") {
        return (201, review(&asked.body).to_string());
    }
    if path.ends_with("/subjectaccessreviews") {
        let allowed = match asked.body["spec"]["nonResourceAttributes"]["verb"].as_str() {
            Some("get") => state.status_allowed,
            Some("update") => state.update_allowed,
            _ => false,
        };
        return (201, json!({"status": {"allowed": allowed}}).to_string());
    }
    if path.ends_with("/securitygrouppolicies") {
        let list =
            json!({"kind": "SecurityGroupPolicyList", "metadata": {}, "items": state.policies});
        return (200, list.to_string());
    }
    if let Some((namespace, name)) =
        path.strip_prefix("/api/v1/namespaces/").and_then(|rest| rest.split_once("/pods/"))
    {
        let Some(pod) = state.pods.get_mut(&format!("{namespace}/{name}")) else {
            return not_found(name);
        };
        if asked.method == "PATCH" {
            pod["metadata"]["annotations"] = asked.body["metadata"]["annotations"].clone();
        }
        return (200, pod.to_string());
    }
    (200, "{}".into())
}

/// A pod that asks for one branch on node n1.
pub(super) fn pod(name: &str, uid: &str) -> Value {
    json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {
            "name": name, "namespace": "shop", "uid": uid, "resourceVersion": "77",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"nodeName": "n1", "containers": [{"resources": {"requests": {"vpc.amazonaws.com/pod-eni": "1"}}}]},
        "status": {"phase": "Pending"},
    })
}

/// An agent's pod.
pub(super) fn agent_pod(name: &str, uid: &str, created: &str) -> Value {
    json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "trunkline-system", "uid": uid, "resourceVersion": "1", "creationTimestamp": created},
    })
}

impl World {
    pub(super) async fn leading() -> Self {
        Self::with(&quick()).await
    }

    pub(super) async fn with(timing: &Timing) -> Self {
        let state = Arc::new(Mutex::new(ApiState { status_allowed: true, ..ApiState::default() }));
        let script = state.clone();
        let api = scripted(move |asked| answer(&mut script.lock().unwrap(), &asked));
        let cloud = FakeCloud::new();
        cloud.run_instance(&instance(), "m5.large", 1);
        let (recorder, write) = events::recorder(api.clone());
        let (term, settings) = begin_term(&api, &cloud, Clock::boot(), timing, recorder);
        term.spawn(write);
        term.directory.nodes(Change::Listed(vec![serde_json::from_value(node_object()).unwrap()]));
        term.directory
            .cninodes(Change::Listed(vec![serde_json::from_value(cninode_object()).unwrap()]));
        for (name, wake) in term.directory.take_appeared() {
            term.spawn(Keeper::new(term.clone(), name, wake).run());
        }
        let verifier = Arc::new(Verifier::new(
            api.clone(),
            Clock::boot(),
            "trunkline-system",
            "trunkline-agent",
        ));
        let sessions = Arc::new(Sessions::new(term.clone(), verifier));
        let (lead, lead_rx) =
            watch::channel(Lead::Leading(Leading { term: term.clone(), sessions }));
        let (higher_tx, higher) = mpsc::channel(4);
        let shared = Shared {
            lead: lead_rx,
            higher_epochs: higher_tx,
            own_address: "10.0.0.1:61790".into(),
            identity: "me".into(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server::builder()
            .add_service(NodesServer::new(NodesService::new(
                shared.clone(),
                Metrics::register(&mut prometheus_client::registry::Registry::default()),
            )))
            .add_service(StatusServer::new(StatusService::new(shared, api)))
            .serve_with_incoming(TcpListenerStream::new(listener));
        term.spawn(async move { server.await.unwrap() });
        let channel =
            Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        Self { term, cloud, api: state, lead, higher, channel, _settings: settings }
    }

    /// Asks the scripted API server's state.
    pub(super) fn state<T>(&self, look: impl FnOnce(&mut ApiState) -> T) -> T {
        look(&mut self.api.lock().unwrap())
    }

    /// Opens a stream and greets; whatever the coordinator answers first.
    pub(super) async fn greet(&self, token: &str, hello: &Hello) -> (Greeting, Stream) {
        let (tx, rx) = mpsc::channel(64);
        tx.send(hello.into()).await.unwrap();
        let mut request = tonic::Request::new(ReceiverStream::new(rx));
        let bearer: MetadataValue<_> = format!("Bearer {token}").parse().unwrap();
        request.metadata_mut().insert("authorization", bearer);
        let mut inbound =
            NodesClient::new(self.channel.clone()).session(request).await.unwrap().into_inner();
        let first =
            tokio::time::timeout(PATIENCE, inbound.message()).await.unwrap().unwrap().unwrap();
        let greeting = Greeting::read(first, &hello.session).unwrap();
        (greeting, Stream { tx, inbound })
    }

    /// An agent that was welcomed.
    pub(super) async fn agent(&self, token: &str) -> TestAgent {
        let (greeting, stream) = self.greet(token, &hello("session-1")).await;
        let Greeting::Welcome(welcome) = greeting else { panic!("not welcome: {greeting:?}") };
        TestAgent::new(welcome.origin, stream)
    }

    /// The reason of the refusal of a greeting.
    pub(super) async fn refusal(&self, token: &str, hello: &Hello) -> v1::RefusalReason {
        match self.greet(token, hello).await.0 {
            Greeting::Refusal(refusal) => refusal.reason,
            other => panic!("not refused: {other:?}"),
        }
    }
}

pub(super) fn hello(session: &str) -> Hello {
    Hello {
        version: PROTOCOL,
        session: session.parse().unwrap(),
        node: "n1".parse().unwrap(),
        boot: BOOT.parse().unwrap(),
        kubelet: Some(START),
        build: "test".into(),
        highest_epoch: Epoch(0),
    }
}

/// A raw stream.
pub(super) struct Stream {
    pub(super) tx: mpsc::Sender<v1::AgentMessage>,
    pub(super) inbound: tonic::Streaming<v1::CoordinatorMessage>,
}

/// An agent after its greeting.
pub(super) struct TestAgent {
    pub(super) origin: Origin,
    pub(super) sender: AgentSender,
    receiver: CoordinatorReceiver,
    pub(super) stream: Stream,
}

impl TestAgent {
    fn new(origin: Origin, stream: Stream) -> Self {
        Self {
            sender: AgentSender::new(origin.clone()),
            receiver: CoordinatorReceiver::new(origin.clone()),
            origin,
            stream,
        }
    }

    pub(super) async fn say(&mut self, message: FromAgent) {
        for wire in self.sender.encode(&message) {
            self.stream.tx.send(wire).await.unwrap();
        }
    }

    /// The next complete message; `None` once the stream has ended.
    pub(super) async fn hear(&mut self) -> Option<FromCoordinator> {
        loop {
            let wire = tokio::time::timeout(PATIENCE, self.stream.inbound.message())
                .await
                .expect("silence")
                .ok()??;
            match self.receiver.receive(wire).unwrap() {
                FromCoordinator::Nothing => {}
                other => return Some(other),
            }
        }
    }

    /// Hears until `wanted` finds what it looks for.
    pub(super) async fn hear_until<T>(
        &mut self,
        mut wanted: impl FnMut(&FromCoordinator) -> Option<T>,
    ) -> T {
        loop {
            let message = self.hear().await.expect("the stream ended");
            if let Some(found) = wanted(&message) {
                return found;
            }
        }
    }

    /// The refusal that ends the stream.
    pub(super) async fn ended_by(&mut self) -> v1::RefusalReason {
        self.hear_until(|m| match m {
            FromCoordinator::Refusal(refusal) => Some(refusal.reason),
            _ => None,
        })
        .await
    }
}

/// Waits until something holds.
pub(super) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// No cgroups but the agent's own.
pub(super) fn own_cgroup() -> BTreeSet<trunkline_core::id::PodUid> {
    BTreeSet::from(["agent-uid-1".parse().unwrap()])
}
