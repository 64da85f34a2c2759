//! From settings to a running agent: everything is bound and opened first, then all parts run until one ends or a signal
//! comes.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use trunkline_kit::admin::{Admin, AdminServer};
use trunkline_kit::clock::Clock;
use trunkline_kit::drain::{Stopped, Tasks};
use trunkline_kit::listwatch::{ListWatchMetrics, watch_pods};
use trunkline_kit::net::BindError;
use trunkline_kit::readiness::Readiness;
use trunkline_kit::{config as kit_config, kube_client, tls};

use crate::cgroups::Cgroups;
use crate::config::Settings;
use crate::drive::{Driver, Ports, Pulse, Start};
use crate::journal::JournalFile;
use crate::kubelet::KubeletProbe;
use crate::links::LinkReader;
use crate::links::heal::LinkHealer;
use crate::look::{BootIdError, HostNode, follow_links, read_boot_id};
use crate::metrics::{LoopMetrics, SessionMetrics};
use crate::port::{Dialer, LocalNode};
use crate::session::{GrpcDialer, Identity, Session};
use crate::signs::SignBoard;
use crate::status::{AgentStatus, CHECKS};

/// Bound on the drain; the agent holds nothing that has to be finished.
const DRAIN: Duration = Duration::from_secs(5);
/// Events of the session that may wait for the loop.
const SESSION_EVENTS: usize = 64;
/// A loop that has not come round for this long is stuck.
const STUCK: Duration = Duration::from_secs(60);

/// Why the agent does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The health address.
    #[error("failed to open the health endpoints")]
    Bind(#[from] BindError),
    /// The API server's address or credentials.
    #[error("failed to set up access to the API server")]
    Kube(#[from] kube_client::KubeClientError),
    /// The boot id.
    #[error("failed to learn the boot id")]
    Boot(#[from] BootIdError),
    /// The state directory.
    #[error("failed to open the state directory '{path}'")]
    State {
        /// The directory.
        path: std::path::PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// inotify.
    #[error("failed to set up inotify")]
    Inotify(#[source] std::io::Error),
    /// The session id.
    #[error("failed to choose a session id")]
    Session(#[from] trunkline_core::id::InvalidId),
}

/// An agent with everything open, not running yet.
pub struct Agent {
    tasks: Tasks,
    health: SocketAddr,
}

impl Agent {
    /// Opens everything. Must be called inside a runtime.
    pub async fn build(settings: Settings) -> Result<Self, StartError> {
        tls::install_provider();
        let server = AdminServer::bind(&settings.health_bind).await?;
        let health = server.address();
        let user_agent = format!("trunkline-agent/{}", env!("CARGO_PKG_VERSION"));
        let api = kube_client::connect(settings.kubeconfig.as_deref(), &user_agent).await?;
        let boot = read_boot_id(&settings.boot_id_file)?;
        let journal = JournalFile::open(&settings.state_dir)
            .map_err(|source| StartError::State { path: settings.state_dir.clone(), source })?;
        let clock = Clock::boot();
        let mut registry = Registry::default();
        let mut tasks = Tasks::new();
        let stop = tasks.stop_token();

        let signs = Arc::new(SignBoard::default());
        let kubelet = KubeletProbe::new(&settings.kubelet_socket);
        let cgroups = Cgroups::new(&settings.cgroup_root, kubelet.clone(), Arc::clone(&signs))
            .map_err(StartError::Inotify)?;
        let links = LinkReader::new(settings.host_netns.as_deref());
        let node: Arc<dyn LocalNode> = Arc::new(HostNode {
            clock,
            boot_id_file: settings.boot_id_file,
            kubelet,
            cgroups: cgroups.clone(),
            links: links.clone(),
            healer: settings.heal_in_place.then(|| LinkHealer::new(settings.host_netns.as_deref())),
            signs: Arc::clone(&signs),
        });
        let follow = async move { cgroups.follow().await };
        tasks.spawn("cgroups", until_result(stop.clone(), follow));
        tasks.spawn_unfailing("links", until(stop.clone(), follow_links(links, signs)));

        let metrics = ListWatchMetrics::register(&mut registry);
        let (pods, relist, watching) =
            watch_pods(api, settings.node.clone(), clock, &settings.timing, metrics);
        tasks.spawn_unfailing("pods", until(stop.clone(), watching));

        let (session_in, session) = mpsc::channel(SESSION_EVENTS);
        let start = Start {
            node: settings.node.clone(),
            own_pod: settings.own_pod,
            boot: boot.clone(),
            journal: journal.load(&boot),
            timing: settings.timing,
        };
        let ports = Ports { pods, relist, node, journal: Box::new(journal), session, clock };
        let loop_metrics = LoopMetrics::register(&mut registry);
        let (driver, status, kubelet_start) = Driver::new(ports, start, loop_metrics);
        let pulse = driver.pulse();
        tasks.spawn("loop", until_result(stop.clone(), async { Err::<(), _>(driver.run().await) }));

        let dialer: Arc<dyn Dialer> = Arc::new(GrpcDialer::new(
            settings.coordinators,
            settings.coordinator_ca,
            settings.token_file,
        ));
        let identity = Identity {
            session: Identity::random_session()?,
            node: settings.node,
            boot,
            build: kit_config::version().to_owned(),
        };
        let session = Session::new(
            dialer,
            identity,
            kubelet_start,
            session_in,
            SessionMetrics::register(&mut registry),
            settings.timing.heartbeat,
        );
        tasks.spawn_unfailing("session", until(stop.clone(), session.run()));

        let readiness = Readiness::new();
        let telling = tell_readiness(status.clone(), readiness.clone());
        tasks.spawn_unfailing("readiness", until(stop, telling));
        let admin = admin(readiness, registry, status, settings.remote_status, pulse);
        let last = tasks.last_token();
        tasks.spawn_last("admin", server.run(admin, last));
        Ok(Self { tasks, health })
    }

    /// Where the health endpoints are.
    pub fn health(&self) -> SocketAddr {
        self.health
    }

    /// Stops the agent when cancelled.
    pub fn stop_token(&self) -> CancellationToken {
        self.tasks.stop_token()
    }

    /// Runs until a signal, the stop token, or the first part that ends.
    pub async fn run(self) -> Stopped {
        tracing::info!(health = %self.health, "running");
        self.tasks.run(DRAIN).await
    }
}

fn admin(
    readiness: Readiness,
    registry: Registry,
    status: watch::Receiver<AgentStatus>,
    remote_status: bool,
    pulse: Pulse,
) -> Admin {
    Admin::new(readiness)
        .metrics(Arc::new(registry))
        .status(remote_status, move || {
            let shown = serde_json::to_value(&*status.borrow()).unwrap_or_default();
            async move { shown }
        })
        .check("loop", move || {
            let silent = pulse.silent();
            async move {
                if silent < STUCK {
                    Ok(())
                } else {
                    Err(format!("the loop has not come round for {} s", silent.as_secs()))
                }
            }
        })
}

/// Keeps readiness as the status says, for as long as the loop lives.
async fn tell_readiness(mut status: watch::Receiver<AgentStatus>, readiness: Readiness) {
    let handles = CHECKS.map(|check| (check, readiness.register(check)));
    loop {
        {
            let status = status.borrow_and_update();
            for (check, handle) in &handles {
                handle.set(status.unready(check));
            }
        }
        if status.changed().await.is_err() {
            return;
        }
    }
}

/// Runs a part until the drain begins.
async fn until(stop: CancellationToken, part: impl Future<Output = ()>) {
    tokio::select! {
        biased;
        () = part => {}
        () = stop.cancelled() => {}
    }
}

async fn until_result<E>(
    stop: CancellationToken,
    part: impl Future<Output = Result<(), E>>,
) -> Result<(), E> {
    tokio::select! {
        biased;
        result = part => result,
        () = stop.cancelled() => Ok(()),
    }
}
