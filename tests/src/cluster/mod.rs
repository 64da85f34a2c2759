//! A whole cluster on one machine: API server, EC2, nodes, agents, coordinators.
//!
//! [`Cluster::start`] brings everything up and returns when a leader serves and every agent is ready. Tests then make and
//! delete pods as a user would, break things, and end with [`Cluster::finish`], which waits until the cluster is at rest
//! and judges the invariants. If a test panics, the folder with all logs is kept and named.

pub mod agents;
pub mod ask;
pub mod campaign;
pub mod coordinators;
pub mod observe;
pub mod options;
pub mod viewer;

pub use agents::Agent;
pub use coordinators::Coordinator;
pub use options::{Options, Timings};

use crate::certs::{Authority, COORDINATOR, Served};
use crate::control_plane::ControlPlane;
use crate::history::History;
use crate::invariants::Rules;
use crate::process::Proc;
use crate::{Error, Result, bins, deploy, objects};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use trunkline_sim::ec2::client::SimClient;
use trunkline_sim::ec2::model::InstanceSpec;
use trunkline_sim::node::NodeSimClient;
use trunkline_sim::proxy::ProxyClient;

/// Name of the cluster in tags.
pub const NAME: &str = "demo";
/// Access key ids of the coordinators begin with this.
pub const CALLERS: &str = "TRUNKLINE";
const STARTED_WITHIN: Duration = Duration::from_secs(60);

/// A running cluster. Fields drop in this order: whoever depends on another goes first.
pub struct Cluster {
    /// Agents by node.
    pub agents: BTreeMap<String, Agent>,
    /// Coordinators in the order of their start.
    pub coordinators: Vec<Coordinator>,
    /// The node simulator.
    pub nodes: NodeSimClient,
    /// The fault proxy between agents and coordinators and the API server, if asked for.
    pub proxy: Option<ProxyClient>,
    /// EC2.
    pub ec2: SimClient,
    /// An administrator at the real API server.
    pub admin: Client,
    /// What was recorded of every pod.
    pub history: History,
    /// What the invariants allow; tests may add excuses.
    pub rules: Rules,
    options: Options,
    authority: Authority,
    served: Served,
    proxy_url: Option<String>,
    node_sim: Proc,
    _proxy: Option<Proc>,
    ec2_sim: Proc,
    /// The API server.
    pub plane: ControlPlane,
    folder: Folder,
}

/// The run's folder; kept when the test fails.
struct Folder(Option<tempfile::TempDir>);

impl Folder {
    fn path(&self) -> &Path {
        self.0.as_ref().map_or(Path::new("."), tempfile::TempDir::path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(folder) = self.0.take()
        {
            eprintln!("logs of this run: {}", folder.keep().display());
        }
    }
}

impl Cluster {
    /// Why no cluster can be made here (no control plane, binaries not built, no network namespaces); `None` if it can.
    pub fn missing() -> Option<String> {
        Self::missing_of(&[
            "trunkline-agent",
            "trunkline-coordinator",
            "trunkline-sim",
            "trunkline",
        ])
    }

    /// The same for a cluster of which only these binaries are used.
    pub fn missing_of(binaries: &[&str]) -> Option<String> {
        let needed = || -> Result<()> {
            crate::control_plane::assets()?;
            binaries.iter().try_for_each(|name| bins::find(name).map(drop))
        };
        if let Err(why) = needed() {
            return Some(why.to_string());
        }
        (!rustix::process::geteuid().is_root()).then(|| {
            "network namespaces need uid 0 here (the links of the simulated nodes)".to_owned()
        })
    }

    /// Starts everything.
    pub async fn start(options: Options) -> Result<Self> {
        // The steps together make a large future; callers need not carry it.
        Box::pin(Self::start_all(options)).await
    }

    async fn start_all(options: Options) -> Result<Self> {
        let temporary = |error| Error::say(format!("no temporary folder: {error}"));
        let folder = Folder(Some(
            tempfile::Builder::new().prefix("trunkline-").tempdir().map_err(temporary)?,
        ));
        trunkline_sim::support::install_tls_provider();
        options.tell("etcd and kube-apiserver");
        let plane = ControlPlane::start(&folder.path().join("kube"), options.plane.clone()).await?;
        let admin = plane.admin()?;
        for namespace in ["kube-system", "default"] {
            objects::namespace(&admin, namespace).await?;
        }
        deploy::apply(&admin).await?;
        let history = History::start(&admin).await?;
        options.tell("EC2, kubelets and CNI (simulated)");
        let (ec2_sim, ec2) = start_ec2(&folder, &options).await?;
        let (proxy_process, proxy_url) = start_proxy(&folder, &options, &plane).await?;
        let (node_sim, nodes) = start_nodes(&folder, &options, &plane, ec2.url()).await?;
        let authority = Authority::new(folder.path(), "trunkline-ca")?;
        let served = authority.serve(
            folder.path(),
            "coordinator",
            &[COORDINATOR, "127.0.0.1", "localhost"],
        )?;
        let rules = Rules {
            cluster: NAME.to_owned(),
            callers: CALLERS,
            cooldown: options.timings.cooldown(),
            vlan_rest: options.timings.vlan_rest(),
            slack: Duration::from_secs(1),
            budget: options.budget,
            excused: BTreeSet::new(),
            kept: BTreeSet::new(),
        };
        let mut cluster = Self {
            agents: BTreeMap::new(),
            coordinators: Vec::new(),
            nodes,
            proxy: proxy_url.as_deref().map(ProxyClient::new),
            ec2,
            admin,
            history,
            rules,
            authority,
            served,
            proxy_url,
            node_sim,
            _proxy: proxy_process,
            ec2_sim,
            plane,
            folder,
            options,
        };
        cluster.options.tell("instances and Node objects");
        for number in 1..=cluster.options.nodes {
            let name = format!("node-{number}");
            cluster.add_node(&name).await?;
        }
        cluster.options.tell("coordinators");
        for _ in 0..cluster.options.coordinators {
            cluster.add_coordinator().await?;
        }
        if cluster.options.coordinators > 0 {
            cluster.led(STARTED_WITHIN).await?;
        }
        if cluster.options.agents {
            cluster.options.tell("agents");
            for node in cluster.node_names() {
                cluster.start_agent(&node).await?;
            }
            if cluster.options.coordinators > 0 {
                cluster.agents_ready(STARTED_WITHIN).await?;
            }
        }
        Ok(cluster)
    }

    /// The folder with all logs.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The options it was started with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// CA file by which the coordinators are verified.
    pub fn coordinator_ca(&self) -> PathBuf {
        self.authority.file().to_owned()
    }

    /// Names of the nodes that were added by [`Cluster::add_node`] and counted in the options.
    pub fn node_names(&self) -> Vec<String> {
        (1..=self.options.nodes).map(|number| format!("node-{number}")).collect()
    }

    /// Launches an instance and registers its Node; returns the instance id. No agent is started.
    pub async fn add_node(&mut self, name: &str) -> Result<String> {
        self.node_sim.must_run()?;
        let spec = InstanceSpec {
            instance_type: self.options.instance_type.clone(),
            ..InstanceSpec::default()
        };
        self.join(name, &spec, true).await
    }

    /// Creates a pod.
    pub async fn create(&self, spec: &objects::PodSpec) -> Result<Pod> {
        objects::pod(&self.admin, spec).await
    }

    /// Deletes a pod the ordinary way, or by force (grace period 0).
    pub async fn delete(&self, namespace: &str, name: &str, force: bool) -> Result<()> {
        objects::delete_pod(&self.admin, namespace, name, force).await
    }

    /// Writes a kubeconfig for agents or coordinators: by the proxy if there is one.
    fn kubeconfig(&self, path: &Path, who: crate::kubeconfig::Identity<'_>) -> Result<()> {
        match &self.proxy_url {
            Some(proxy) => crate::kubeconfig::write(path, proxy, None, who),
            None => self.plane.kubeconfig(path, who),
        }
    }

    /// Fails if a simulator has ended.
    fn simulators_run(&mut self) -> Result<()> {
        self.ec2_sim.must_run()?;
        self.node_sim.must_run()
    }
}

async fn start_ec2(folder: &Folder, options: &Options) -> Result<(Proc, SimClient)> {
    let mut command = Command::new(bins::find("trunkline-sim")?);
    command.args(["ec2", "--bind", "127.0.0.1:0"]).args(&options.ec2_flags);
    let mut process = Proc::start("EC2 simulator", &mut command, &folder.path().join("ec2.log"))?;
    let url = process.announced("listening on ", STARTED_WITHIN).await?;
    Ok((process, SimClient::new(&url)))
}

async fn start_proxy(
    folder: &Folder,
    options: &Options,
    plane: &ControlPlane,
) -> Result<(Option<Proc>, Option<String>)> {
    if !options.proxy {
        return Ok((None, None));
    }
    let mut command = Command::new(bins::find("trunkline-sim")?);
    command
        .args(["proxy", "--bind", "127.0.0.1:0", "--upstream", &plane.url(), "--ca"])
        .arg(plane.ca_file());
    let mut process = Proc::start("fault proxy", &mut command, &folder.path().join("proxy.log"))?;
    let url = process.announced("listening on ", STARTED_WITHIN).await?;
    Ok((Some(process), Some(url)))
}

async fn start_nodes(
    folder: &Folder,
    options: &Options,
    plane: &ControlPlane,
    ec2: &str,
) -> Result<(Proc, NodeSimClient)> {
    let kubeconfig = folder.path().join("admin.kubeconfig");
    plane.kubeconfig(&kubeconfig, crate::kubeconfig::Identity::Token(plane.admin_token()))?;
    let mut command = Command::new(bins::find("trunkline-sim")?);
    command
        .args(["node", "--bind", "127.0.0.1:0", "--all-nodes", "--ec2", ec2, "--kubeconfig"])
        .arg(&kubeconfig)
        .arg("--root")
        .arg(folder.path().join("nodes"))
        .args(&options.node_flags);
    let process = Proc::start("node simulator", &mut command, &folder.path().join("nodes.log"))?;
    // It removes its network namespaces when it ends.
    let mut process = process.patiently(Duration::from_secs(10));
    let url = process.announced("listening on ", STARTED_WITHIN).await?;
    Ok((process, NodeSimClient::new(&url)))
}
