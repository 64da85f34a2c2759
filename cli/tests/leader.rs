//! The command against real TLS servers: finding the leader, and what is shown.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of a test outside of its test functions"
)]

use std::pin::Pin;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};
use trunkline_cli::args::{self, Settings};
use trunkline_cli::client::{Client, Error};
use trunkline_kit::tls::{ServerCertificate, incoming, install_provider};
use trunkline_proto::LEADER_ADDRESS_METADATA;
use trunkline_proto::v1;
use trunkline_proto::v1::status_server::{Status as StatusService, StatusServer};

const TOKEN: &str = "a-token";

/// What one coordinator is.
#[derive(Clone)]
enum Role {
    Leader,
    /// Names the leader, or nobody.
    Follower(Option<String>),
}

struct Coordinator(Role);

impl Coordinator {
    fn check<T>(&self, request: &Request<T>) -> Result<(), Status> {
        if let Role::Follower(leader) = &self.0 {
            let mut status = Status::failed_precondition("this coordinator does not lead");
            if let Some(leader) = leader {
                status.metadata_mut().insert(LEADER_ADDRESS_METADATA, leader.parse().unwrap());
            }
            return Err(status);
        }
        let sent = request.metadata().get("authorization").map(|v| v.to_str().unwrap());
        match sent {
            Some("Bearer a-token") => Ok(()),
            Some("Bearer of-another") => Err(Status::permission_denied("user 'other' may not")),
            _ => Err(Status::unauthenticated("the token is expired")),
        }
    }
}

type Rows<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn stream<T: Send + 'static>(rows: Vec<T>) -> Response<Rows<T>> {
    Response::new(Box::pin(tokio_stream::iter(rows.into_iter().map(Ok))))
}

fn explained(reason: &str, sentence: &str) -> v1::Explanation {
    v1::Explanation { reason: reason.into(), sentence: sentence.into() }
}

fn key() -> v1::PodKey {
    let (uid, namespace, name) = ("uid-1".into(), "shop".into(), "cart-0".into());
    v1::PodKey { uid, namespace, name }
}

fn row() -> v1::NodeRow {
    v1::NodeRow {
        name: "node-1".into(),
        instance_id: "i-0123456789abcdef0".into(),
        instance_type: "m5.large".into(),
        managed: true,
        state: "ready".into(),
        why: None,
        connected: true,
        slots: Some(v1::Slots { limit: 9, used: 2, free: 7, cooling: 1 }),
        frozen: None,
    }
}

fn branch() -> v1::BranchStatus {
    v1::BranchStatus {
        eni_id: "eni-0123456789abcdef0".into(),
        vlan: 7,
        mac: "02:00:00:00:00:01".into(),
        ipv4: "10.0.0.9".into(),
        pod: Some(key()),
        state: "cooling".into(),
        since_ms: 12_000,
        why: Some(explained("cooling", "the ENI cools down before it is deleted")),
        cooling_ms: Some(48_000),
        health: "cooling".into(),
        ..Default::default()
    }
}

#[tonic::async_trait]
impl StatusService for Coordinator {
    type ListNodesStream = Rows<v1::NodeRow>;
    type ListWaitingStream = Rows<v1::WaitingRow>;
    type ListReleasesStream = Rows<v1::ReleaseRow>;

    async fn get_cluster(
        &self,
        request: Request<v1::GetClusterRequest>,
    ) -> Result<Response<v1::ClusterStatus>, Status> {
        self.check(&request)?;
        Ok(Response::new(v1::ClusterStatus {
            cluster: "prod".into(),
            leader_identity: "uid-leader".into(),
            leader_address: "10.0.0.7:61790".into(),
            epoch: 18_446_744_073_709_551_615,
            term_age_ms: 3_600_000 * 5 + 60_000,
            mode: "normal".into(),
            cooldown_ms: 60_000,
            inventory: Some(v1::InventoryStatus {
                complete: true,
                age_ms: Some(61_000),
                enis: 1600,
                failure: None,
            }),
            nodes: vec![v1::Count { name: "ready".into(), count: 200 }],
            buckets: vec![v1::BucketStatus {
                action: "CreateNetworkInterface".into(),
                tokens: 99.4,
                capacity: 100.0,
                refill_per_second: 4.75,
                waiting: 0,
                throttled: 2,
            }],
            ..Default::default()
        }))
    }

    async fn list_nodes(
        &self,
        request: Request<v1::ListNodesRequest>,
    ) -> Result<Response<Self::ListNodesStream>, Status> {
        self.check(&request)?;
        let bare = v1::NodeRow {
            name: "node-2".into(),
            state: "failed".into(),
            why: Some(explained("no-provider-id", "Node.spec.providerID is missing")),
            ..Default::default()
        };
        Ok(stream(vec![row(), bare]))
    }

    async fn get_node(
        &self,
        request: Request<v1::GetNodeRequest>,
    ) -> Result<Response<v1::NodeStatus>, Status> {
        self.check(&request)?;
        let name = request.into_inner().name;
        if name != "node-1" {
            return Err(Status::not_found(format!("node '{name}' is not in the books")));
        }
        Ok(Response::new(v1::NodeStatus {
            row: Some(row()),
            views: vec![v1::ViewStatus {
                kind: v1::ViewKind::Cgroups.into(),
                state: v1::ViewState::OwnPodMissing.into(),
                sentence: "the agent's own pod is not among the pod cgroups".into(),
                ..Default::default()
            }],
            vlans: vec![v1::VlanStatus {
                vlan: 3,
                rests_ms: Some(200_000),
                rested_ms: Some(100_000),
                why: Some(explained("resting", "it was used a moment ago")),
            }],
            branches: vec![branch()],
            health: vec![v1::Count { name: "missing".into(), count: 1 }],
            ..Default::default()
        }))
    }

    async fn get_pod(
        &self,
        request: Request<v1::GetPodRequest>,
    ) -> Result<Response<v1::GetPodResponse>, Status> {
        self.check(&request)?;
        let asked = request.into_inner();
        assert_eq!((asked.namespace.as_str(), asked.name.as_str()), ("shop", "cart-0"));
        Ok(Response::new(v1::GetPodResponse {
            pods: vec![v1::PodStatus {
                key: Some(key()),
                node: "node-1".into(),
                requested: 1,
                stage: "associate".into(),
                since_ms: 2500,
                why: Some(explained(
                    "ec2-budget",
                    "the budget of AssociateTrunkInterface is used up",
                )),
                attempts: 3,
                last_error: Some(v1::LastError {
                    class: "throttled".into(),
                    ec2_code: "RequestLimitExceeded".into(),
                    message: "Request limit exceeded.".into(),
                    age_ms: Some(900),
                }),
                branches: vec![],
            }],
        }))
    }

    async fn audit(
        &self,
        request: Request<v1::AuditRequest>,
    ) -> Result<Response<v1::AuditReport>, Status> {
        self.check(&request)?;
        Ok(Response::new(v1::AuditReport { nodes: 2, ..Default::default() }))
    }

    async fn repair(
        &self,
        request: Request<v1::RepairRequest>,
    ) -> Result<Response<v1::AuditReport>, Status> {
        self.check(&request)?;
        let asked = request.into_inner();
        assert_eq!((asked.node.as_str(), asked.reason.as_str()), ("node-1", "looked at it"));
        let found = v1::AuditFinding { ordered: true, trouble: true, ..Default::default() };
        Ok(Response::new(v1::AuditReport { findings: vec![found], ..Default::default() }))
    }

    async fn list_waiting(
        &self,
        request: Request<v1::ListWaitingRequest>,
    ) -> Result<Response<Self::ListWaitingStream>, Status> {
        self.check(&request)?;
        if request.into_inner().node == "idle" {
            return Ok(stream(vec![]));
        }
        Ok(stream(vec![v1::WaitingRow {
            kind: v1::WaitingKind::Allocation.into(),
            node: "node-1".into(),
            pod: Some(key()),
            why: Some(explained("subnet-full", "the subnet has no free address")),
            since_ms: 130_000,
            attempts: 4,
            ec2_code: "InsufficientFreeAddressesInSubnet".into(),
            eni_id: String::new(),
        }]))
    }

    async fn list_releases(
        &self,
        request: Request<v1::ListReleasesRequest>,
    ) -> Result<Response<Self::ListReleasesStream>, Status> {
        self.check(&request)?;
        let asked = request.into_inner();
        if asked.node == "idle" {
            return Ok(stream(vec![]));
        }
        assert_eq!((asked.pod.as_str(), asked.since_ms), ("shop/cart-0", Some(1_800_000)));
        Ok(stream(vec![v1::ReleaseRow {
            at_ms: 1_790_000_000_000,
            step: "disassociate".into(),
            eni_id: "eni-0123456789abcdef0".into(),
            vlan: 7,
            pod: Some(key()),
            node: "node-1".into(),
            epoch: 4,
            ec2_request_id: "request-1".into(),
            stated: Some(v1::StatedFacts {
                received_ms: 1_789_999_999_000,
                over: "watch-deleted".into(),
                way: "cgroup-seen-and-gone".into(),
                ..Default::default()
            }),
            confirmed: Some(v1::ConfirmedGet {
                at_ms: 1_789_999_999_500,
                said: "other-uid".into(),
                resource_version: "77".into(),
            }),
            ..Default::default()
        }]))
    }

    async fn get_fuse(
        &self,
        request: Request<v1::GetFuseRequest>,
    ) -> Result<Response<v1::FuseStatus>, Status> {
        self.check(&request)?;
        Ok(Response::new(blown()))
    }

    async fn reset_fuse(
        &self,
        request: Request<v1::ResetFuseRequest>,
    ) -> Result<Response<v1::FuseStatus>, Status> {
        self.check(&request)?;
        let asked = request.into_inner();
        if asked.what == Some(v1::reset_fuse_request::What::Cluster(true)) {
            return Err(Status::not_found("the cluster is not frozen by the fuse"));
        }
        let last_reset = v1::Decision {
            what: "node node-1".into(),
            by: "ann".into(),
            reason: asked.reason,
            at_ms: 1_790_000_060_000,
        };
        Ok(Response::new(v1::FuseStatus { last_reset: Some(last_reset), ..Default::default() }))
    }

    async fn get_mode(
        &self,
        request: Request<v1::GetModeRequest>,
    ) -> Result<Response<v1::ModeStatus>, Status> {
        self.check(&request)?;
        let (mode, flags) = ("normal".into(), "normal".into());
        Ok(Response::new(v1::ModeStatus { mode, flags, choice: None }))
    }

    async fn set_mode(
        &self,
        request: Request<v1::SetModeRequest>,
    ) -> Result<Response<v1::ModeStatus>, Status> {
        self.check(&request)?;
        let asked = request.into_inner();
        let choice = v1::Decision {
            what: asked.mode.clone(),
            by: "ann".into(),
            reason: asked.reason,
            at_ms: 1_790_000_000_000,
        };
        let flags = "normal".into();
        Ok(Response::new(v1::ModeStatus { mode: asked.mode, flags, choice: Some(choice) }))
    }
}

/// A node that is frozen.
fn blown() -> v1::FuseStatus {
    v1::FuseStatus {
        nodes: vec![v1::FrozenNode {
            node: "node-1".into(),
            instance_id: "i-0123456789abcdef0".into(),
            since_ms: 1_790_000_000_000,
            pod_uids: vec!["uid-1".into(), "uid-2".into()],
            counts: true,
        }],
        ..Default::default()
    }
}

/// Certificates for `localhost`, files, and servers that stop with it.
struct World {
    files: TempDir,
    certificate: Arc<ServerCertificate>,
    servers: JoinSet<()>,
}

impl World {
    async fn new() -> Self {
        install_provider();
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        // Not for 127.0.0.1: a dial after a redirect must keep the name.
        let leaf = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let leaf = leaf.signed_by(&key, &ca).unwrap();
        let files = tempfile::tempdir().unwrap();
        let path = |name: &str| files.path().join(name);
        std::fs::write(path("ca"), ca.pem()).unwrap();
        std::fs::write(path("cert"), leaf.pem()).unwrap();
        std::fs::write(path("key"), key.serialize_pem()).unwrap();
        let certificate = ServerCertificate::load(&path("cert"), &path("key")).await.unwrap();
        Self { files, certificate, servers: JoinSet::new() }
    }

    /// A coordinator; its port.
    async fn serve(&mut self, role: Role) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let config = self.certificate.server_config(&["h2"]).unwrap();
        let service = StatusServer::new(Coordinator(role));
        self.servers.spawn(async move {
            let server = tonic::transport::Server::builder().add_service(service);
            server.serve_with_incoming(incoming(listener, config)).await.unwrap();
        });
        port
    }

    fn settings(&self, coordinators: &str, words: &[&str]) -> Settings {
        let ca = format!("--coordinator-ca={}", self.files.path().join("ca").display());
        let coordinators = format!("--coordinator={coordinators}");
        let flags = ["trunkline".to_owned(), coordinators, ca];
        let words = words.iter().map(ToString::to_string);
        args::parse(flags.into_iter().chain(words), &|_| None).unwrap()
    }

    async fn run_as(
        &self,
        token: &str,
        coordinators: &str,
        words: &[&str],
    ) -> Result<String, trunkline_cli::Error> {
        let settings = self.settings(coordinators, words);
        let ca = settings.coordinator_ca.clone();
        let client = Client::new(settings.coordinators.clone(), ca, token).unwrap();
        let mut out = Vec::new();
        trunkline_cli::run(&settings, &client, &mut out).await?;
        Ok(String::from_utf8(out).unwrap())
    }

    async fn run(
        &self,
        coordinators: &str,
        words: &[&str],
    ) -> Result<String, trunkline_cli::Error> {
        self.run_as(TOKEN, coordinators, words).await
    }

    async fn fail(&self, token: &str, coordinators: &str, words: &[&str]) -> Error {
        match self.run_as(token, coordinators, words).await {
            Err(trunkline_cli::Error::Client(error)) => error,
            other => panic!("expected an error of the client: {other:?}"),
        }
    }
}

fn at(port: u16) -> String {
    format!("https://localhost:{port}")
}

/// A port nobody listens on.
async fn closed_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port()
}

/// Words of a line, so that column widths do not matter.
fn has_line(text: &str, words: &str) -> bool {
    let wanted: Vec<&str> = words.split_whitespace().collect();
    text.lines().any(|line| line.split_whitespace().collect::<Vec<_>>() == wanted)
}

#[tokio::test]
async fn a_follower_sends_us_to_the_leader_under_the_name_we_were_given() {
    let mut world = World::new().await;
    let leader = world.serve(Role::Leader).await;
    let named = Some(format!("127.0.0.1:{leader}"));
    let follower = world.serve(Role::Follower(named)).await;
    let text = world.run(&at(follower), &["status"]).await.unwrap();
    assert!(has_line(&text, "cluster prod"), "{text}");
}

#[tokio::test]
async fn an_audit_ends_with_its_exit_code_and_an_order_carries_node_and_reason() {
    let mut world = World::new().await;
    let leader = at(world.serve(Role::Leader).await);
    for (words, code) in [
        (["audit"].as_slice(), 0),
        (&["audit", "--repair", "--yes", "--node=node-1", "--reason=looked at it"], 2),
    ] {
        let settings = world.settings(&leader, words);
        let ca = settings.coordinator_ca.clone();
        let client = Client::new(settings.coordinators.clone(), ca, TOKEN).unwrap();
        let mut out = Vec::new();
        assert_eq!(trunkline_cli::run(&settings, &client, &mut out).await.unwrap(), code);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.contains("ordered"), code == 2, "{text}");
    }
}

#[tokio::test]
async fn dead_coordinators_and_dead_leaders_are_passed_over() {
    let mut world = World::new().await;
    let leader = world.serve(Role::Leader).await;
    let dead = closed_port().await;
    let misled = world.serve(Role::Follower(Some(format!("127.0.0.1:{dead}")))).await;
    let all = format!("{},{},{}", at(dead), at(misled), at(leader));
    let text = world.run(&all, &["status"]).await.unwrap();
    assert!(has_line(&text, "cluster prod"), "{text}");
}

#[tokio::test]
async fn without_a_leader_the_error_says_so_and_two_that_name_each_other_end_it() {
    let mut world = World::new().await;
    let alone = world.serve(Role::Follower(None)).await;
    let error = world.fail(TOKEN, &at(alone), &["nodes"]).await;
    assert!(matches!(error, Error::NoLeader(_)), "{error}");
    assert!(error.to_string().contains("this coordinator does not lead"), "{error}");

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let one = world.serve(Role::Follower(Some(format!("127.0.0.1:{port}")))).await;
    let error = world.fail(TOKEN, &at(one), &["nodes"]).await;
    assert!(matches!(&error, Error::NoLeader(tried) if tried.len() == 2), "{error}");

    // Names itself for ever.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let config = world.certificate.server_config(&["h2"]).unwrap();
    let role = Role::Follower(Some(format!("127.0.0.1:{port}")));
    let service = StatusServer::new(Coordinator(role));
    world.servers.spawn(async move {
        let server = tonic::transport::Server::builder().add_service(service);
        server.serve_with_incoming(incoming(listener, config)).await.unwrap();
    });
    let error = world.fail(TOKEN, &at(port), &["nodes"]).await;
    assert!(matches!(&error, Error::NoLeader(tried) if tried.len() < 10), "{error}");
}

#[tokio::test]
async fn nobody_there_and_a_certificate_of_another_ca_are_told_apart() {
    let mut world = World::new().await;
    let dead = closed_port().await;
    let error = world.fail(TOKEN, &at(dead), &["status"]).await;
    assert!(matches!(error, Error::Unreachable(_)), "{error}");
    assert!(error.to_string().contains(&dead.to_string()), "{error}");

    let leader = world.serve(Role::Leader).await;
    let other = World::new().await;
    let error = other.fail(TOKEN, &at(leader), &["status"]).await;
    assert!(matches!(error, Error::Unreachable(_)), "{error}");
    assert!(error.to_string().to_lowercase().contains("certificate"), "{error}");

    // The certificate is for localhost, not for the address.
    let error = world.fail(TOKEN, &format!("https://127.0.0.1:{leader}"), &["status"]).await;
    assert!(matches!(error, Error::Unreachable(_)), "{error}");
}

#[tokio::test]
async fn refusals_say_what_to_do() {
    let mut world = World::new().await;
    let leader = at(world.serve(Role::Leader).await);
    let error = world.fail("expired", &leader, &["status"]).await.to_string();
    assert!(error.contains("the token is expired") && error.contains("--token-file"), "{error}");
    let error = world.fail("of-another", &leader, &["status"]).await.to_string();
    assert!(error.contains("trunkline-status-viewer"), "{error}");
    let error = world.fail(TOKEN, &leader, &["node", "node-9"]).await.to_string();
    assert_eq!(error, "node 'node-9' is not in the books");
}

#[tokio::test]
async fn tables_show_state_and_reasons() {
    let mut world = World::new().await;
    let leader = at(world.serve(Role::Leader).await);
    let status = world.run(&leader, &["status"]).await.unwrap();
    for line in [
        "leader uid-leader at 10.0.0.7:61790",
        "epoch 18446744073709551615, for 5h1m",
        "inventory whole, 1600 ENIs, 1m1s old",
        "nodes 200 ready",
        "branches none",
        "CreateNetworkInterface 99 100 4.8 0 2",
    ] {
        assert!(has_line(&status, line), "{line} is missing in\n{status}");
    }
    let nodes = world.run(&leader, &["nodes"]).await.unwrap();
    for line in [
        "node-1 i-0123456789abcdef0 m5.large ready connected 2 9 1",
        "node-2 - - failed - - - - no-provider-id: Node.spec.providerID is missing",
    ] {
        assert!(has_line(&nodes, line), "{line} is missing in\n{nodes}");
    }
    let node = world.run(&leader, &["node", "node-1"]).await.unwrap();
    for line in [
        "slots 2 of 9 used, 7 free, 1 cooling",
        "agent not connected",
        "ENIs 1 missing",
        "cgroups own-pod-missing - - the agent's own pod is not among the pod cgroups",
        "3 1m40s 3m20s resting: it was used a moment ago",
        "eni-0123456789abcdef0 7 02:00:00:00:00:01 10.0.0.9 shop/cart-0 cooling cooling 12s \
         cooling: the ENI cools down before it is deleted (48s left)",
    ] {
        assert!(has_line(&node, line), "{line} is missing in\n{node}");
    }
    let pod = world.run(&leader, &["pod", "shop/cart-0"]).await.unwrap();
    for line in [
        "stage associate, for 2s",
        "waits for ec2-budget: the budget of AssociateTrunkInterface is used up",
        "last failure throttled (RequestLimitExceeded): Request limit exceeded., 900ms ago",
    ] {
        assert!(has_line(&pod, line), "{line} is missing in\n{pod}");
    }
    let waiting = world.run(&leader, &["waiting"]).await.unwrap();
    let line = "allocation node-1 shop/cart-0 - 2m10s 4 InsufficientFreeAddressesInSubnet \
                subnet-full: the subnet has no free address";
    assert!(has_line(&waiting, line), "{line} is missing in\n{waiting}");
    let nothing = world.run(&leader, &["waiting", "--node=idle"]).await.unwrap();
    assert_eq!(nothing, "nothing waits\n");
}

#[tokio::test]
async fn json_has_the_contracts_fields_and_numbers() {
    let mut world = World::new().await;
    let leader = at(world.serve(Role::Leader).await);
    let json = async |words: &[&str]| -> serde_json::Value {
        let words = [words, ["-o", "json"].as_slice()].concat();
        serde_json::from_str(&world.run(&leader, &words).await.unwrap()).unwrap()
    };
    let status = json(&["status"]).await;
    assert_eq!(status["epoch"], 18_446_744_073_709_551_615_u64);
    assert_eq!(status["inventory"]["enis"], 1600);
    assert_eq!(status["branches"], serde_json::json!([]));
    let nodes = json(&["nodes"]).await;
    assert_eq!(nodes[0]["slots"]["free"], 7);
    assert_eq!(nodes[1]["why"]["reason"], "no-provider-id");
    let node = json(&["node", "node-1"]).await;
    assert_eq!(node["views"][0]["state"], "VIEW_STATE_OWN_POD_MISSING");
    assert_eq!(node["branches"][0]["pod"]["namespace"], "shop");
    let pods = json(&["pod", "shop/cart-0"]).await;
    assert_eq!(pods[0]["last_error"]["ec2_code"], "RequestLimitExceeded");
    let waiting = json(&["waiting"]).await;
    assert_eq!(waiting[0]["kind"], "WAITING_KIND_ALLOCATION");
    assert_eq!(json(&["waiting", "--node", "idle"]).await, serde_json::json!([]));
}

#[tokio::test]
async fn fuse_mode_and_releases_are_shown_and_changed() {
    let mut world = World::new().await;
    let leader = at(world.serve(Role::Leader).await);
    let fuse = world.run(&leader, &["fuse"]).await.unwrap();
    for line in
        ["cluster intact", "node-1 i-0123456789abcdef0 2026-09-21T14:13:20Z yes uid-1, uid-2"]
    {
        assert!(has_line(&fuse, line), "{line} is missing in\n{fuse}");
    }
    let words = ["fuse", "reset", "--node=node-1", "--reason=agent replaced"];
    let reset = world.run(&leader, &words).await.unwrap();
    for line in [
        "nodes none frozen",
        "last reset node node-1 by ann at 2026-09-21T14:14:20Z: agent replaced",
    ] {
        assert!(has_line(&reset, line), "{line} is missing in\n{reset}");
    }
    let error = world.fail(TOKEN, &leader, &["fuse", "reset", "--cluster", "--reason=x"]).await;
    assert_eq!(error.to_string(), "the cluster is not frozen by the fuse");
    let mode = world.run(&leader, &["mode"]).await.unwrap();
    assert!(has_line(&mode, "mode normal, as the flags say"), "{mode}");
    let mode = world.run(&leader, &["mode", "read-only", "--reason=an incident"]).await.unwrap();
    let line = "mode read-only, set by ann at 2026-09-21T14:13:20Z: an incident \
                (the flags say normal)";
    assert!(has_line(&mode, line), "{mode}");
    let words = ["releases", "--pod=shop/cart-0", "--since=30m"];
    let releases = world.run(&leader, &words).await.unwrap();
    let line = "2026-09-21T14:13:20Z disassociate eni-0123456789abcdef0 7 node-1 shop/cart-0 4 \
                watch-deleted, cgroup-seen-and-gone other-uid (resourceVersion 77) request-1";
    assert!(has_line(&releases, line), "{line} is missing in\n{releases}");
    let none = world.run(&leader, &["releases", "--node=idle"]).await.unwrap();
    assert_eq!(none, "this leader has released nothing that fits\n");
    let words = [&words[..], &["-o", "json"]].concat();
    let json: serde_json::Value =
        serde_json::from_str(&world.run(&leader, &words).await.unwrap()).unwrap();
    assert_eq!(json[0]["confirmed"]["resource_version"], "77");
    assert_eq!(json[0]["at_ms"], 1_790_000_000_000_u64);
}
