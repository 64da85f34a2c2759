//! From settings to a running coordinator: bind everything, then run.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use trunkline_core::limits::{BadTable, Limits};
use trunkline_kit::admin::{Admin, AdminServer};
use trunkline_kit::clock::Clock;
use trunkline_kit::drain::{Stopped, Tasks};
use trunkline_kit::kube_client::{self, KubeClientError};
use trunkline_kit::listwatch::ListWatchMetrics;
use trunkline_kit::net::{BindError, bind, raise_file_limit};
use trunkline_kit::readiness::Readiness;
use trunkline_kit::tls::{self, ServerCertificate, TlsError};
use trunkline_proto::v1::nodes_server::NodesServer;
use trunkline_proto::v1::status_server::StatusServer;

use crate::api::{Api, NoFence};
use crate::config::Config;
use crate::ec2::RealClouds;
use crate::grpc::Shared;
use crate::grpc::session::NodesService;
use crate::grpc::status::StatusService;
use crate::health;
use crate::metrics::Metrics;
use crate::replica::{Outside, Replica};

/// How long a drain may take.
const DRAIN: Duration = Duration::from_secs(20);
/// Longest message of an agent.
const MAX_MESSAGE: usize = 4 << 20;
/// Oldest supported Kubernetes, minor version of major 1 (design §7).
pub(crate) const OLDEST_MINOR: u32 = 33;

/// Why the coordinator cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The API server cannot be reached by configuration.
    #[error("failed to set up access to the API server")]
    Client(#[from] KubeClientError),
    /// A port.
    #[error("failed to bind")]
    Bind(#[from] BindError),
    /// The certificate.
    #[error("failed to load the server's certificate")]
    Tls(#[from] TlsError),
    /// The limits table.
    #[error("failed to read the compiled-in limits")]
    Limits(#[from] BadTable),
    /// Design §7.
    #[error("Kubernetes {0} is too old: 1.{OLDEST_MINOR} or newer is needed")]
    TooOld(String),
    /// A server.
    #[error("failed to serve")]
    Serve(#[from] tonic::transport::Error),
    /// The reflection service.
    #[error("failed to set up gRPC reflection")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// A coordinator whose ports are bound and that does not run yet.
pub struct Bound {
    config: Config,
    kube: trunkline_kit::api::Api,
    certificate: Arc<ServerCertificate>,
    grpc: TcpListener,
    status: Option<TcpListener>,
    health: AdminServer,
    metrics: AdminServer,
    limits: Limits,
}

/// Binds everything, so that a port in use or a bad certificate is a start error.
pub async fn build(config: Config) -> Result<Bound, RunError> {
    tls::install_provider();
    if let Some(limit) = raise_file_limit() {
        tracing::info!(limit, "open files");
    }
    let user_agent = format!("trunkline-coordinator/{}", env!("CARGO_PKG_VERSION"));
    let kube =
        kube_client::connect(config.kubeconfig.as_deref().map(Path::new), &user_agent).await?;
    let certificate = ServerCertificate::load(&config.tls_cert, &config.tls_key).await?;
    let status = match &config.status_bind {
        Some(address) => Some(bind(address).await?),
        None => None,
    };
    Ok(Bound {
        grpc: bind(&config.grpc_bind).await?,
        status,
        health: AdminServer::bind(&config.health_bind).await?,
        metrics: AdminServer::bind(&config.metrics_bind).await?,
        limits: Limits::new(config.instance_limits.clone())?,
        kube,
        certificate,
        config,
    })
}

impl Bound {
    /// Runs until a signal, or until a part of it fails.
    pub async fn run(self) -> Stopped {
        let mut tasks = Tasks::new();
        let stop = tasks.stop_token();
        let clock = Clock::boot();
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let watch_metrics = ListWatchMetrics::register(&mut registry);
        let ec2_metrics = trunkline_ec2::Metrics::register(&mut registry);
        let registry = Arc::new(registry);
        let readiness = Readiness::new();
        let clouds = RealClouds { settings: ec2_settings(&self.config), metrics: ec2_metrics };
        let kube = self.kube.clone();
        let (remote_status, check_timeout) =
            (self.config.remote_status, self.config.health_check_timeout);
        let replica = Replica::new(
            self.config,
            Outside {
                kube: kube.clone(),
                clouds: Arc::new(clouds),
                clock,
                limits: self.limits,
                ready: readiness.register("leadership"),
                metrics,
                watch_metrics,
            },
        );
        let shared = replica.shared();
        let nodes = replica.nodes();
        let reviews = Api::new(kube.client().clone(), Arc::new(NoFence));
        let (terms, election) = replica.work(stop.clone(), tasks.last_token());
        if let Some(election) = election {
            tasks.spawn_last("election", async move {
                election.await;
                Ok::<_, RunError>(())
            });
        }

        let admin = Admin::new(readiness).check_timeout(check_timeout);
        let admin = health::add(admin, &shared.lead, remote_status);
        let last = tasks.last_token();
        tasks.spawn_last("health", self.health.run(admin, last.clone()));
        tasks.spawn_last(
            "metrics",
            self.metrics.run(Admin::new(Readiness::new()).metrics(registry), last),
        );
        tasks.spawn_unfailing("certificates", self.certificate.clone().follow(stop.clone()));
        tasks.spawn(
            "grpc",
            serve(
                self.grpc,
                self.certificate.clone(),
                Some(nodes),
                shared.clone(),
                reviews.clone(),
                stop.clone(),
            ),
        );
        if let Some(listener) = self.status {
            tasks.spawn(
                "status",
                serve(
                    listener,
                    self.certificate.clone(),
                    None,
                    shared.clone(),
                    reviews.clone(),
                    stop.clone(),
                ),
            );
        }
        tasks.spawn("terms", terms);
        tasks.run(DRAIN).await
    }
}

fn ec2_settings(config: &Config) -> trunkline_ec2::Settings {
    trunkline_ec2::Settings {
        region: config.region.clone(),
        account: config.account.clone(),
        endpoint: config.ec2_endpoint.clone(),
        role_arn: config.role_arn.clone(),
        budget: config.ec2_budget,
        timing: config.timing,
        ..trunkline_ec2::Settings::new(config.cluster.clone(), config.vpc.clone())
    }
}

async fn serve(
    listener: TcpListener,
    certificate: Arc<ServerCertificate>,
    nodes: Option<NodesService>,
    shared: Shared,
    reviews: Api,
    stop: CancellationToken,
) -> Result<(), RunError> {
    let tls = certificate.server_config(&["h2"])?;
    let incoming = tls::incoming(listener, tls);
    let (health_reporter, health) = tonic_health::server::health_reporter();
    health_reporter.set_serving::<StatusServer<StatusService>>().await;
    if nodes.is_some() {
        health_reporter.set_serving::<NodesServer<NodesService>>().await;
    }
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(trunkline_proto::DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()?;
    // Older clients still ask for the first version.
    let reflection_alpha = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(trunkline_proto::DESCRIPTOR_SET)
        .build_v1alpha()?;
    let window = 128 * 1024;
    let mut builder = Server::builder()
        .max_concurrent_streams(8)
        .http2_keepalive_interval(Some(Duration::from_secs(20)))
        .http2_keepalive_timeout(Some(Duration::from_secs(10)))
        .initial_stream_window_size(window)
        .initial_connection_window_size(window * 2);
    let router = builder
        .add_optional_service(
            nodes.map(|n| NodesServer::new(n).max_decoding_message_size(MAX_MESSAGE)),
        )
        .add_service(StatusServer::new(StatusService::new(shared, reviews)))
        .add_service(health)
        .add_service(reflection)
        .add_service(reflection_alpha);
    let drain = stop.clone();
    // Sessions end with the term; a peer that keeps its connection does not hold up the drain.
    let served =
        router.serve_with_incoming_shutdown(incoming, async move { drain.cancelled().await });
    let cut_off = async {
        stop.cancelled().await;
        tokio::time::sleep(Duration::from_secs(3)).await;
    };
    tokio::select! {
        served = served => served.map_err(RunError::from),
        () = cut_off => Ok(()),
    }
}
