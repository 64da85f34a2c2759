//! A coordinator's process: the product's replica (election, terms, keepers, actors, sessions, inventory, events), without
//! sockets.

use std::sync::Arc;

use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use trunkline_coordinator::config::{Args, Config};
use trunkline_coordinator::metrics::Metrics;
use trunkline_coordinator::replica::{Outside, Replica};
use trunkline_core::limits::Limits;
use trunkline_kit::config;
use trunkline_kit::listwatch::ListWatchMetrics;
use trunkline_kit::readiness::Readiness;

use super::ec2::cloud::SimClouds;
use super::weather::Place;
use super::world::{Door, Life, World};
use super::{Mutation, api};

/// A running coordinator.
pub(super) struct Process {
    life: Arc<Life>,
    stop: CancellationToken,
    release: CancellationToken,
}

fn address(number: u32) -> String {
    format!("10.255.0.{}:61790", number + 1)
}

fn settings(world: &World, number: u32) -> Option<Config> {
    let mut flags = vec![
        "trunkline-coordinator".to_owned(),
        "--cluster-name=c1".to_owned(),
        "--vpc-id=vpc-0123456789abcdef0".to_owned(),
        "--tls-cert=/unused".to_owned(),
        "--tls-key=/unused".to_owned(),
        format!("--grpc-bind={}", address(number)),
    ];
    match world.plan.mutation {
        Some(Mutation::NoRest) => flags.push("--vlan-rest=1s".to_owned()),
        Some(Mutation::NoHealing) => flags.push("--heal=report".to_owned()),
        _ => {}
    }
    let env = |_: &str| None;
    let mut loaded = config::load::<Args>(flags, &env).ok()?;
    let mut config = Config::check(&mut loaded, &env).ok()?;
    if world.plan.mutation == Some(Mutation::NoRest) {
        config.timing.vlan_rest_unseen = config.timing.cooldown_floor;
        config.timing.cooldown_default = config.timing.cooldown_floor;
    }
    Some(config)
}

/// Starts replica `number`.
pub(super) fn start(world: &Arc<World>, number: u32) -> Option<Process> {
    let life = Life::begin(Place::Coordinator(number));
    let config = settings(world, number)?;
    let readiness = Readiness::new();
    let mut registry = Registry::default();
    let outside = Outside {
        kube: api::client(world, &life),
        clouds: Arc::new(SimClouds { world: world.clone(), life: life.clone() }),
        clock: world.clock,
        limits: Limits::new(config.instance_limits.clone()).ok()?,
        ready: readiness.register("leadership"),
        metrics: Metrics::register(&mut registry),
        watch_metrics: ListWatchMetrics::register(&mut Registry::default()),
    };
    world.metrics().push(registry);
    let replica = Replica::new(config, outside);
    let (service, shared) = (Arc::new(replica.nodes()), replica.shared());
    world.doors().insert(address(number), Door { life: life.clone(), service, shared });
    let (stop, release) = (CancellationToken::new(), CancellationToken::new());
    let (terms, election) = replica.work(stop.clone(), release.clone());
    let released = release.clone();
    tokio::spawn(async move {
        let _ended = terms.await;
        released.cancel();
    });
    if let Some(election) = election {
        tokio::spawn(election);
    }
    world.happened("coordinator-start", &number.to_string());
    Some(Process { life, stop, release })
}

impl Process {
    /// SIGKILL: nothing it does from here on leaves it, and nothing reaches it. What it had sent is on its way. Its tasks
    /// end a little later, unseen.
    pub(super) fn kill(&self) {
        self.life.over.cancel();
        self.stop.cancel();
        self.release.cancel();
    }

    /// SIGTERM: it drains and gives the lease back.
    pub(super) fn drain(&self) {
        self.stop.cancel();
    }
}
