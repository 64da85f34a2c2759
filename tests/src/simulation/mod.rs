//! Seeded simulation of the whole: real agents and coordinators in one process, in virtual time, in a world that fails.
//!
//! **Real** is everything between the ports: the agent's loop, witness, session and list-watch; the coordinator's election,
//! epochs, terms, keepers, node set-up, actors, sessions, identity, inventory and events; `kube::Client`, the wire contract
//! and its conversion. They are the product's libraries, not copies of their loops.
//!
//! **Simulated** are the API server ([`api`]: HTTP and JSON below the real client), EC2 ([`ec2`], at the coordinator's
//! port, so without the SDK and the adapter's retries and budgets), machines with kernel, runtime, CNI and kubelet
//! ([`node`]), and the connection between agent and coordinator (messages of the contract instead of gRPC over TLS). Not in
//! it: suspend and SIGSTOP, nodes that go for good, static pods, a change of the cooldown.
//!
//! **One seed** gives everything: the weather ([`weather`]), users ([`workload`]), losses ([`losses`]), crashes and
//! partitions ([`trouble`]), and the product's own random numbers (`trunkline_kit::random`). Time is tokio's paused time on
//! one thread, so a run repeats exactly; its digest over all that happened shows that.
//!
//! A [`Course`] other than trouble measures one thing ([`campaign`]).
//!
//! **The oracle** ([`oracle`]) judges every effect in EC2 as it happens (I1, I2, I5), and after an hour of trouble and some
//! time of fair weather what is left (I3, I4, I-heal). [`Mutation`]s show that it rings.

pub mod api;
mod campaign;
mod coordinator;
pub mod dice;
pub mod ec2;
pub mod losses;
pub mod node;
mod oracle;
mod reasons;
pub mod record;
pub mod seeds;
mod trouble;
pub mod weather;
mod workload;
pub mod world;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio_util::sync::CancellationToken;
use trunkline_core::id::NodeName;

use losses::Loss;
use node::machine::Machine;
use world::World;

/// A rule made weaker at one of the ports, to show that the oracle notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// Agents see neither pod cgroups nor branch links: a pod that the API has deleted looks over at once.
    CgroupsIgnored,
    /// VLANs are handed on at once after the cooldown.
    NoRest,
    /// Each create call has a token of its own.
    TokensDiffer,
    /// Nothing is healed in place.
    NoHealing,
    /// What replaces a lost ENI gets another address.
    AddressForgotten,
}

/// What happens in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Course {
    /// Trouble of this seed's own kinds.
    #[default]
    Trouble,
    /// So many pods come and go while EC2 errs.
    Cycles(u64),
    /// Live pods lose so many branches while EC2 errs.
    Losses {
        /// How many.
        count: u64,
        /// EC2 is read anew right after each loss, instead of at the next interval.
        at_once: bool,
    },
}

/// What kind of run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Nodes.
    pub nodes: u32,
    /// Coordinators.
    pub coordinators: u32,
    /// What happens.
    pub course: Course,
    /// How long there is trouble.
    pub trouble: Duration,
    /// A weakened rule.
    pub mutation: Option<Mutation>,
    /// Keep every line of the record.
    pub whole_record: bool,
}

impl Mutation {
    /// All of them, each with the promise that it breaks.
    pub const ALL: [(Self, &str); 5] = [
        (Self::CgroupsIgnored, "I1"),
        (Self::NoRest, "I2"),
        (Self::TokensDiffer, "I"),
        (Self::NoHealing, "I-heal"),
        (Self::AddressForgotten, "I-heal"),
    ];
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            nodes: 3,
            coordinators: 2,
            course: Course::default(),
            trouble: Duration::from_secs(3_600),
            mutation: None,
            whole_record: false,
        }
    }
}

impl Plan {
    /// Names of the nodes.
    pub fn node_names(&self) -> Vec<NodeName> {
        (1..=self.nodes).filter_map(|n| NodeName::new(&format!("n{n}")).ok()).collect()
    }
}

/// What came of a run.
#[derive(Debug)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// Equal for equal runs.
    pub digest: u64,
    /// Virtual time.
    pub took: Duration,
    /// Nodes.
    pub nodes: u32,
    /// What happened how often.
    pub counts: BTreeMap<&'static str, u64>,
    /// What live pods lost.
    pub losses: Vec<Loss>,
    /// Releases that began to wait, by what they waited for.
    pub kept: BTreeMap<String, u64>,
    /// The first broken promise.
    pub violation: Option<String>,
    /// Where the world did not settle: what the leader and the agents say they await.
    pub reasons: Vec<String>,
    /// The last of what happened, or all of it.
    pub lines: Vec<String>,
}

impl Report {
    /// Simulated node-days.
    pub fn node_days(&self) -> f64 {
        self.took.as_secs_f64() * f64::from(self.nodes) / 86_400.0
    }

    /// How often something happened.
    pub fn count(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or_default()
    }
}

/// Why there was no run.
#[derive(Debug, thiserror::Error)]
#[error("failed to set up the simulation: {0}")]
pub struct SetUpError(String);

/// Runs one seed.
pub fn run(seed: u64, plan: Plan) -> Result<Report, SetUpError> {
    let failed = |e: &dyn std::error::Error| SetUpError(e.to_string());
    let _seeded = trunkline_kit::random::seed_this_thread(seed ^ 0x5eed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .map_err(|e| failed(&e))?;
    runtime.block_on(async {
        let world = World::new(seed, plan);
        set_up(&world).map_err(SetUpError)?;
        let begun = world.now();
        tokio::select! {
            biased;
            () = world.alarm.cancelled() => {}
            () = live(&world) => {}
        }
        let (losses, kept) = (world.losses().all().to_vec(), kept(&world));
        let record = world.record();
        Ok(Report {
            seed,
            digest: record.digest(),
            took: world.now().since(begun),
            nodes: world.plan.nodes,
            counts: record.counts().clone(),
            losses,
            kept,
            violation: record.violation().map(ToOwned::to_owned),
            reasons: record.reasons().to_vec(),
            lines: record.lines().cloned().collect(),
        })
    })
}

/// `trunkline_releases_kept` of all coordinators, by reason.
fn kept(world: &World) -> BTreeMap<String, u64> {
    let mut sum = BTreeMap::new();
    for registry in world.metrics().iter() {
        let mut text = String::new();
        if prometheus_client::encoding::text::encode(&mut text, registry).is_err() {
            continue;
        }
        let counter = "trunkline_releases_kept_total{reason=\"";
        for line in text.lines().filter_map(|line| line.strip_prefix(counter)) {
            let Some((reason, times)) = line.split_once("\"} ") else { continue };
            *sum.entry(reason.to_owned()).or_default() += times.parse::<u64>().unwrap_or_default();
        }
    }
    sum.retain(|_, times| *times > 0);
    sum
}

/// Nodes that the CNI has asked trunks for, with running kubelets and agents.
fn set_up(world: &Arc<World>) -> Result<(), String> {
    let now = world.now();
    for (number, node) in (1_u32..).zip(world.plan.node_names()) {
        let told = |e: trunkline_core::id::InvalidId| e.to_string();
        let instance = format!("i-{number:017x}").parse().map_err(told)?;
        let own_pod = format!("00000000-0000-4000-9000-{number:012x}").parse().map_err(told)?;
        world.account().run_instance(now, &instance).map_err(|e| e.to_string())?;
        let machine = Machine::new(node.clone(), instance.clone(), own_pod);
        let boot = machine.boot_id().map_err(told)?;
        let own = json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {
                "name": format!("agent-{node}"), "namespace": node::kubelet::OWN_NAMESPACE,
                "uid": machine.own_pod.as_str(),
            },
            "spec": {"nodeName": node.as_str()},
            "status": {"phase": "Running"},
        });
        world.machines().insert(node.clone(), machine);
        let object = json!({
            "kind": "Node", "apiVersion": "v1",
            "metadata": {
                "name": node.as_str(), "uid": format!("uid-of-{node}"),
                "labels": {"kubernetes.io/os": "linux"},
            },
            "spec": {"providerID": format!("aws:///eu-west-1a/{instance}")},
            "status": {"capacity": {"cpu": "4"}, "nodeInfo": {"bootID": boot.as_str()}},
        });
        let cninode = json!({
            "kind": "CNINode", "apiVersion": "vpcresources.k8s.aws/v1alpha1",
            "metadata": {"name": node.as_str()},
            "spec": {"features": [{"name": "SecurityGroupsForPods"}]},
        });
        for (path, object) in [
            (format!("/api/v1/nodes/{node}"), object),
            (format!("/apis/vpcresources.k8s.aws/v1alpha1/cninodes/{node}"), cninode),
            (node::worker::path_of(&own), own),
        ] {
            world.store().create(now, &path, object).map_err(|e| format!("{path}: {e:?}"))?;
        }
    }
    let policy = json!({
        "kind": "SecurityGroupPolicy", "apiVersion": "vpcresources.k8s.aws/v1beta1",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "web"}},
            "securityGroups": {"groupIds": ["sg-0000000000000000b"]},
        },
    });
    let path = "/apis/vpcresources.k8s.aws/v1beta1/namespaces/shop/securitygrouppolicies/web";
    world.store().create(now, path, policy).map_err(|e| format!("{path}: {e:?}"))?;
    Ok(())
}

async fn live(world: &Arc<World>) {
    for node in world.plan.node_names() {
        node::kubelet::start(world, &node);
        node::agent::start(world, &node, true);
    }
    match world.plan.course {
        Course::Trouble => trouble(world).await,
        Course::Cycles(count) => campaign::cycles(world, count).await,
        Course::Losses { count, at_once } => campaign::losses(world, count, at_once).await,
    }
}

/// Trouble, then fair weather until the world has settled.
async fn trouble(world: &Arc<World>) {
    let stop = CancellationToken::new();
    let users = tokio::spawn(workload::run(world.clone(), stop.clone()));
    let trouble = tokio::spawn(trouble::run(world.clone(), stop.clone()));
    let losses = tokio::spawn(losses::run(world.clone(), stop.clone()));
    tokio::time::sleep(world.plan.trouble).await;
    stop.cancel();
    losses.abort();
    let _coordinators = trouble.await;
    let _ended = users.await;
    let calm = world.now();
    loop {
        tokio::time::sleep(Duration::from_secs(15)).await;
        let (unhealed, open) = (losses::unhealed(world), oracle::unsettled(world));
        if open.is_empty() && unhealed.is_empty() {
            world.note("settled");
            return;
        }
        if world.now().since(calm) > workload::SETTLES_IN {
            world.explained(reasons::told(world).await);
            let promise = if unhealed.is_empty() { "I3, I4" } else { "I-heal" };
            let first: Vec<String> = unhealed.into_iter().chain(open).take(5).collect();
            world.broken(format!("{promise}: not settled: {}", first.join("; ")));
            return;
        }
    }
}
