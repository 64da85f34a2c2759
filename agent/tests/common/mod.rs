//! A coordinator over real TLS and gRPC, a node made of a temporary directory, and network namespaces.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on ends")]

pub mod wire;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::{Identity, Server, ServerTlsConfig};
use trunkline_core::fact::Origin;
use trunkline_core::id::{Epoch, TermNonce};
use trunkline_core::message::{FromAgent, ToAgent};
use trunkline_proto::convert::{
    AgentReceiver, CoordinatorSender, Hello, PROTOCOL, Received, Welcome,
};
use trunkline_proto::v1;
use trunkline_proto::v1::nodes_server::{Nodes, NodesServer};

pub const LIMIT: Duration = Duration::from_secs(30);

/// Waits for something with a deadline.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.unwrap_or_else(|_| panic!("no {what} in time"))
}

// === coordinator ===

/// A CA and a certificate for one name.
pub struct Certificates {
    pub ca: String,
    cert: String,
    key: String,
}

impl Certificates {
    pub fn for_name(name: &str) -> Self {
        let ca_key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca = params.self_signed(&ca_key).unwrap();
        let issuer = rcgen::Issuer::from_params(&params, &ca_key);
        let key = rcgen::KeyPair::generate().unwrap();
        let leaf = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        let cert = leaf.signed_by(&key, &issuer).unwrap();
        Self { ca: ca.pem(), cert: cert.pem(), key: key.serialize_pem() }
    }
}

struct Service(mpsc::Sender<Call>);

/// A stream, before its greeting was answered.
pub struct Call {
    pub authorization: String,
    pub hello: Hello,
    inbound: tonic::Streaming<v1::AgentMessage>,
    outbound: mpsc::Sender<Result<v1::CoordinatorMessage, tonic::Status>>,
}

/// A greeted stream.
pub struct Stream {
    pub origin: Origin,
    inbound: tonic::Streaming<v1::AgentMessage>,
    outbound: mpsc::Sender<Result<v1::CoordinatorMessage, tonic::Status>>,
    receiver: AgentReceiver,
}

#[tonic::async_trait]
impl Nodes for Service {
    type SessionStream = ReceiverStream<Result<v1::CoordinatorMessage, tonic::Status>>;

    async fn session(
        &self,
        request: tonic::Request<tonic::Streaming<v1::AgentMessage>>,
    ) -> Result<tonic::Response<Self::SessionStream>, tonic::Status> {
        let authorization = request.metadata().get("authorization");
        let authorization =
            authorization.map(|v| v.to_str().unwrap().to_owned()).unwrap_or_default();
        let mut inbound = request.into_inner();
        let hello = inbound.message().await?.ok_or_else(|| tonic::Status::aborted("no hello"))?;
        let hello =
            Hello::try_from(hello).map_err(|e| tonic::Status::invalid_argument(e.to_string()))?;
        let (outbound, stream) = mpsc::channel(16);
        let call = Call { authorization, hello, inbound, outbound };
        self.0.send(call).await.map_err(|_| tonic::Status::unavailable("the test is over"))?;
        Ok(tonic::Response::new(ReceiverStream::new(stream)))
    }
}

/// A coordinator whose every word the test says.
pub struct Coordinator {
    pub address: SocketAddr,
    calls: mpsc::Receiver<Call>,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Coordinator {
    pub async fn start(certificates: &Certificates) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (calls_in, calls) = mpsc::channel(16);
        let identity = Identity::from_pem(&certificates.cert, &certificates.key);
        let mut server =
            Server::builder().tls_config(ServerTlsConfig::new().identity(identity)).unwrap();
        let router = server.add_service(NodesServer::new(Service(calls_in)));
        let server = tokio::spawn(async move {
            router.serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
        });
        Self { address, calls, server }
    }

    pub async fn call(&mut self) -> Call {
        within("call", self.calls.recv()).await.unwrap()
    }
}

impl Call {
    pub async fn say(&self, message: v1::CoordinatorMessage) {
        self.outbound.send(Ok(message)).await.unwrap();
    }

    pub async fn welcome(self, epoch: u64) -> Stream {
        let origin = Origin {
            session: self.hello.session.clone(),
            epoch: Epoch(epoch),
            nonce: TermNonce(epoch),
        };
        let welcome = Welcome {
            origin: origin.clone(),
            version: PROTOCOL,
            build: "test".into(),
            reconnect_within: Duration::ZERO,
        };
        self.say((&welcome).into()).await;
        let receiver = AgentReceiver::new(origin.clone());
        Stream { origin, inbound: self.inbound, outbound: self.outbound, receiver }
    }
}

impl Stream {
    pub async fn tell(&self, message: &ToAgent) {
        for message in CoordinatorSender::new(self.origin.clone()).encode(message) {
            self.outbound.send(Ok(message)).await.unwrap();
        }
    }

    pub async fn resync(&self) {
        let message = CoordinatorSender::new(self.origin.clone()).resync("a test asks");
        self.outbound.send(Ok(message)).await.unwrap();
    }

    /// The next thing that comes to something.
    pub async fn hear(&mut self) -> Received {
        loop {
            let message = within("message", self.inbound.message()).await.unwrap().unwrap();
            match self.receiver.receive(message) {
                Received::Nothing => {}
                received => return received,
            }
        }
    }

    /// The first message that fits; a broken or foreign one fails the test.
    pub async fn until<T>(
        &mut self,
        what: &str,
        mut fits: impl FnMut(&FromAgent) -> Option<T>,
    ) -> T {
        within(what, async {
            loop {
                match self.hear().await {
                    Received::Message(message) => {
                        if let Some(found) = fits(&message) {
                            return found;
                        }
                    }
                    Received::Token(_) => {}
                    other => panic!("{other:?} while waiting for {what}"),
                }
            }
        })
        .await
    }

    /// This many heartbeats; a release fails the test.
    pub async fn no_release_for(&mut self, beats: usize) {
        let mut left = beats;
        self.until("heartbeats", |message| match message {
            FromAgent::Release(release) => panic!("{release:?}"),
            FromAgent::Heartbeat(_) => {
                left -= 1;
                (left == 0).then_some(())
            }
            _ => None,
        })
        .await;
    }
}

// === node ===

/// What a node shows: cgroups, the kubelet's socket, a boot id.
pub struct Node {
    pub dir: tempfile::TempDir,
    kubelet: Option<UnixListener>,
}

impl Node {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("cgroup")).unwrap();
        fs::write(dir.path().join("boot_id"), "boot-1\n").unwrap();
        let mut node = Self { dir, kubelet: None };
        node.start_kubelet();
        node
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn start_kubelet(&mut self) {
        self.kubelet = None;
        let _ = fs::remove_file(self.path("kubelet.sock"));
        self.kubelet = Some(UnixListener::bind(self.path("kubelet.sock")).unwrap());
    }

    pub fn make_cgroup(&self, uid: &str) {
        fs::create_dir_all(self.path("cgroup/kubepods/burstable").join(format!("pod{uid}")))
            .unwrap();
    }

    pub fn remove_cgroup(&self, uid: &str) {
        fs::remove_dir(self.path("cgroup/kubepods/burstable").join(format!("pod{uid}"))).unwrap();
    }
}

/// A network namespace, kept by a sleeping process.
pub struct Netns {
    keeper: Child,
}

impl Netns {
    /// `None`, with a line that says why, where namespaces cannot be made.
    pub fn new() -> Option<Self> {
        let keeper = Command::new("unshare")
            .args(["-n", "sh", "-c", "ip link show lo >/dev/null && echo ready && exec sleep 600"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut keeper = match keeper {
            Ok(keeper) => keeper,
            Err(error) => {
                eprintln!("skipped: 'unshare' cannot be run: {error}");
                return None;
            }
        };
        let mut line = String::new();
        let _ = BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line);
        if line.trim() != "ready" {
            let output = keeper.wait_with_output().unwrap();
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            eprintln!("skipped: needs root and ip(8) for network namespaces: {}", why.trim());
            return None;
        }
        Some(Self { keeper })
    }

    /// The file for `--host-netns`.
    pub fn file(&self) -> PathBuf {
        Path::new("/proc").join(self.keeper.id().to_string()).join("ns/net")
    }

    /// Runs `ip` inside; whether it succeeded.
    pub fn try_ip(&self, words: &str) -> bool {
        let status = Command::new("nsenter")
            .arg(format!("--net={}", self.file().display()))
            .arg("ip")
            .args(words.split_whitespace())
            .stderr(Stdio::null())
            .status();
        status.unwrap().success()
    }

    pub fn ip(&self, words: &str) {
        assert!(self.try_ip(words), "ip {words}");
    }

    /// Runs a shell script inside; what it prints.
    pub fn sh(&self, script: &str) -> String {
        let output = Command::new("nsenter")
            .arg(format!("--net={}", self.file().display()))
            .args(["sh", "-e", "-c", script])
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{script}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A veth pair whose near end is the trunk.
    pub fn make_trunk(&self, mac: &str) {
        self.ip("link add trunk0 type veth peer name cloud0");
        self.ip(&format!("link set trunk0 address {mac}"));
    }

    /// A macvlan named as the CNI names its VLAN links.
    pub fn make_branch(&self, vlan: u8, mac: &str) {
        self.ip(&format!("link add link trunk0 name vlan.eth.{vlan} address {mac} type macvlan"));
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}
