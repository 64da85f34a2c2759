//! The node simulator: kubelet and CNI of any number of nodes in one process.
//!
//! It works against a real API server and the EC2 simulator, and shows agents what a real node shows them: a kubelet
//! socket, a boot id, a cgroup tree and (where the machine allows) real links in a network namespace a node. What a
//! kubelet writes into the API server, it writes: phases, addresses, allocatable, the end of pod objects; and what the
//! CNI writes, its feature in the CNINode. It never touches EC2 and knows nothing of Trunkline but the annotation.
//!
//! The order of everything that serves as evidence is the measured one ([`sandbox`]); what ADD checks is what the VPC CNI
//! checks ([`cni`]).
//!
//! # A node's folder
//! `<root>/<node>/`: `cgroup/`, `kubelet.sock`, `boot_id`, `state/` (empty, for the agent). `GET /_sim/nodes` names them
//! as the agent's flags want them, with the namespace's file.
//!
//! # Per-pod wishes
//! Annotations or labels: [`pod::EXIT_AFTER`], [`pod::SLOW_ADD`], [`pod::SLOW_DEL`], [`pod::IGNORE_TERM`]. A Node with the
//! label [`host::NO_CNI`] gets no feature.
//!
//! # Limits
//! Graceful deletion does not wait for `terminationGracePeriodSeconds`: processes end at SIGTERM unless told otherwise.
//! A kubelet restart keeps pods as they are. A sandbox dies and is made anew on request ([`model::RestartSandbox`]), and
//! parts of an ended pod come back on request ([`late`]); restarts of a container, probes, volumes and eviction do not
//! exist.

pub mod api;
pub mod cgroup;
pub mod client;
pub mod cni;
pub mod host;
pub mod kubelet;
pub mod late;
pub mod links;
pub mod model;
pub mod netns;
pub mod pace;
pub mod pod;
pub mod record;
pub mod sandbox;
pub mod server;
pub mod trunks;
pub mod world;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

pub use client::NodeSimClient;

use crate::rest::RestClient;

/// Flags of `trunkline-sim node`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Address of the admin pages.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub bind: SocketAddr,
    /// Kubeconfig; its user must be allowed what kubelets and CNI do.
    #[arg(long, env = "KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Address of the EC2 simulator, `http://127.0.0.1:PORT`; without it no node ever sees a trunk.
    #[arg(long)]
    pub ec2: Option<String>,
    /// Folder for the nodes' files.
    #[arg(long)]
    pub root: PathBuf,
    /// A node to simulate; may be repeated. Its Node object may appear later.
    #[arg(long = "node")]
    pub nodes: Vec<String>,
    /// Simulate every Node in the API server, also those that appear later.
    #[arg(long)]
    pub all_nodes: bool,
    /// With --all-nodes: only Nodes that match this label selector.
    #[arg(long, default_value = "", requires = "all_nodes")]
    pub node_selector: String,
    /// Real links in a network namespace a node, or links in memory that no agent can see.
    #[arg(long, value_enum, default_value = "real")]
    pub links: links::Kind,
    /// cgroup driver whose layout is made.
    #[arg(long, value_enum, default_value = "cgroupfs")]
    pub cgroup_driver: cgroup::Driver,
    /// cgroup version whose layout is made.
    #[arg(long, value_enum, default_value = "v2")]
    pub cgroup_version: cgroup::Version,
    /// Address family of the cluster.
    #[arg(long, value_enum, default_value = "v4")]
    pub family: cni::Family,
    /// How many times faster than a real kubelet.
    #[arg(long, default_value_t = 1.0)]
    pub speed: f64,
}

/// Why the simulator could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kubeconfig.
    #[error("failed to read the kubeconfig: {0}")]
    Kubeconfig(String),
    /// The API client.
    #[error("failed to make an API client")]
    Client(#[source] kube::Error),
    /// The admin address.
    #[error("failed to listen on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
    /// This machine cannot make the links.
    #[error(transparent)]
    Links(#[from] netns::Error),
    /// A node could not be set up.
    #[error("failed to set up node {node}")]
    Node {
        /// Its name.
        node: String,
        /// The cause.
        source: host::Error,
    },
    /// The follower ended early.
    #[error("the simulator ended while it started")]
    Ended,
}

/// A running simulator.
pub struct Running {
    /// Address of the admin pages.
    pub addr: SocketAddr,
    hosts: world::Hosts,
    tasks: JoinSet<()>,
}

impl Running {
    /// Base address of the admin pages.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// A client for it.
    pub fn client(&self) -> NodeSimClient {
        NodeSimClient::new(&self.url())
    }

    /// Ends all tasks and removes the namespaces.
    pub async fn shut_down(mut self) {
        self.tasks.shutdown().await;
        let hosts = std::mem::take(&mut *host::lock(&self.hosts));
        let mut ending = JoinSet::new();
        for host in hosts.into_values() {
            // Removing a namespace runs a command and waits for it.
            ending.spawn_blocking(move || host.shut_down());
        }
        ending.join_all().await;
    }
}

/// Starts the simulator against the API server behind `client`.
pub async fn start(args: &Args, client: kube::Client) -> Result<Running, Error> {
    if args.links == links::Kind::Real {
        netns::remove_stale();
        netns::probe().await?;
    }
    let listener = tokio::net::TcpListener::bind(args.bind)
        .await
        .map_err(|source| Error::Bind { address: args.bind, source })?;
    let addr =
        listener.local_addr().map_err(|source| Error::Bind { address: args.bind, source })?;
    let (trunk_sender, trunks) = watch::channel(BTreeMap::new());
    let record = Arc::new(record::Record::default());
    let hosts = world::Hosts::default();
    let (joins, wishes) = mpsc::channel(16);
    let common = host::Common {
        writer: api::Writer::new(client.clone()),
        record: Arc::clone(&record),
        pace: pace::Pace::new(args.speed),
        family: args.family,
        trunks,
        root: args.root.clone(),
        driver: args.cgroup_driver,
        version: args.cgroup_version,
        links: args.links,
    };
    let world = world::World {
        client,
        common,
        hosts: Arc::clone(&hosts),
        all_nodes: args.all_nodes.then(|| args.node_selector.clone()),
        joins: wishes,
        joined: AtomicU32::new(0),
    };
    let mut tasks = JoinSet::new();
    match &args.ec2 {
        Some(ec2) => tasks.spawn(trunks::follow(RestClient::new(ec2), trunk_sender)),
        // The sender has to live, else its receivers would wake for ever.
        None => tasks.spawn(async move { trunk_sender.closed().await }),
    };
    tasks.spawn(world.run());
    let admin = server::Admin { hosts: Arc::clone(&hosts), record, joins: joins.clone() };
    tasks.spawn(async move {
        if let Err(error) = axum::serve(listener, server::router(admin)).await {
            tracing::error!(%error, "the admin pages ended");
        }
    });
    let running = Running { addr, hosts, tasks };
    for node in &args.nodes {
        if let Err(error) = join(&joins, node).await {
            running.shut_down().await;
            return Err(error);
        }
    }
    Ok(running)
}

async fn join(joins: &mpsc::Sender<world::Join>, node: &str) -> Result<(), Error> {
    let (done, joined) = oneshot::channel();
    let wish = world::Join { node: node.to_owned(), done };
    joins.send(wish).await.map_err(|_| Error::Ended)?;
    let joined = joined.await.map_err(|_| Error::Ended)?;
    joined.map_err(|source| Error::Node { node: node.to_owned(), source })
}

/// Runs the simulator until it is told to end (SIGINT, SIGTERM).
pub async fn run(args: Args) -> Result<(), Error> {
    let running = start(&args, client(&args).await?).await?;
    println!("listening on {}", running.url());
    crate::support::until_signal().await;
    running.shut_down().await;
    Ok(())
}

async fn client(args: &Args) -> Result<kube::Client, Error> {
    crate::support::install_tls_provider();
    let unreadable = |e: &dyn std::error::Error| Error::Kubeconfig(crate::support::causes(e));
    let config = match &args.kubeconfig {
        Some(path) => {
            let kubeconfig =
                kube::config::Kubeconfig::read_from(path).map_err(|e| unreadable(&e))?;
            let options = kube::config::KubeConfigOptions::default();
            kube::Config::from_custom_kubeconfig(kubeconfig, &options)
                .await
                .map_err(|e| unreadable(&e))?
        }
        None => kube::Config::infer().await.map_err(|e| unreadable(&e))?,
    };
    kube::Client::try_from(config).map_err(Error::Client)
}
