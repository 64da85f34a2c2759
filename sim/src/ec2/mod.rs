//! The EC2 simulator: one account and Region, the operations that trunks and branches need, over HTTP.
//!
//! Its rules come from `ec2.md`; what is not known about EC2 is a switch ([`switches::Switches`], §13), what goes wrong
//! is a fault ([`fault::Fault`], §14). Everything random comes from one seed. Signatures are not checked; the access key id
//! of the credential tells callers apart.
//!
//! # What it answers
//!
//! `POST /` takes a Query request and answers XML. Below `/_sim/` it speaks JSON:
//!
//! | request | does |
//! |---|---|
//! | `GET /_sim/health` | answers `ok` |
//! | `GET /_sim/log?from=SEQ&limit=N` | the call log from that sequence number on: [`model::LogEntry`]s |
//! | `GET /_sim/state` | the truth, without lag: [`model::State`] |
//! | `GET`, `POST /_sim/switches` | shows the switches; changes those in the body (JSON merge patch; `null` is the default) |
//! | `GET`, `POST /_sim/faults` | shows the faults with how often they fired; sets a [`fault::Fault`], answers `{"id"}` |
//! | `POST /_sim/faults/clear` | takes one fault away (`{"id"}`), or all (`{}`) |
//! | `POST /_sim/instances` | adds an instance ([`model::InstanceSpec`]), answers [`model::InstanceState`] |
//! | `POST /_sim/instances/state` | gives it another state ([`model::InstanceEdit`]): `terminated`, `forgotten`, … |
//! | `POST /_sim/enis` | makes an ENI out of band ([`model::EniSpec`]), answers its id |
//! | `POST /_sim/enis/delete` | deletes an ENI whatever its state ([`model::ById`]) |
//! | `POST /_sim/enis/associate` | makes an association without any check ([`model::AssociateSpec`]), answers its id |
//! | `POST /_sim/enis/disassociate` | removes an association, by its id or its branch's ([`model::ById`]) |
//! | `POST /_sim/enis/detach` | detaches an ENI ([`model::ById`]) |
//! | `POST /_sim/enis/groups` | replaces its security groups ([`model::GroupsEdit`]) |
//! | `POST /_sim/tags` | sets and removes tags of any resource ([`model::TagEdit`]) |
//! | `POST /_sim/subnets`, `/_sim/security-groups` | adds one ([`model::SubnetSpec`], [`model::GroupSpec`]), answers its id |
//! | `POST /_sim/security-groups/delete` | removes a group ([`model::ById`]) |
//!
//! [`client::SimClient`] speaks all of it. Admin calls are in the log as well, with their effects.
//!
//! # Order and time
//!
//! A request waits half its latency, then takes effect in one step together with its log entry, then waits the other half.
//! The log is therefore in the order of effects. Times in it are true wall time and a monotonic clock that starts with the
//! simulator.

mod actions;
mod admin;
pub mod client;
pub mod config;
mod error;
pub mod fault;
mod filter;
mod limits;
pub mod model;
mod params;
mod reply;
mod server;
pub mod switches;
mod throttle;
mod world;
mod xml;

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;

pub use self::config::Config;
pub use self::server::{Ec2Sim, Running};
use self::switches::Lag;

/// `trunkline-sim ec2`
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Address to listen on; port 0 for any free one. The first line printed says which.
    #[arg(long)]
    bind: Option<SocketAddr>,
    /// Start state, switches and faults as JSON. Flags win over it.
    #[arg(long)]
    config: Option<PathBuf>,
    /// Seed of everything random.
    #[arg(long)]
    seed: Option<u64>,
    /// Region.
    #[arg(long)]
    region: Option<String>,
    /// Account.
    #[arg(long)]
    account: Option<String>,
    /// Never refuse a call for its rate.
    #[arg(long)]
    no_throttle: bool,
    /// Multiply burst and refill of every bucket.
    #[arg(long)]
    throttle_scale: Option<f64>,
    /// Show every change at once.
    #[arg(long)]
    no_lag: bool,
    /// Latency of every call, in ms.
    #[arg(long)]
    latency_ms: Option<u64>,
    /// Switches to change, as JSON.
    #[arg(long, value_name = "JSON")]
    switches: Option<String>,
}

/// Why the simulator did not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration file could not be read.
    #[error("failed to read '{path}'")]
    File {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The configuration or the switches are not what they should be.
    #[error("failed to understand {what}: {source}")]
    Json {
        /// Which of them.
        what: &'static str,
        /// Why.
        source: serde_json::Error,
    },
    /// The start state contradicts itself.
    #[error("failed to set up the start state: {0}")]
    Setup(String),
    /// The address is taken, or may not be used.
    #[error("failed to listen on {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// Signals, standard output.
    #[error("failed to talk to the terminal: {0}")]
    Terminal(#[from] std::io::Error),
}

impl Args {
    async fn config(self) -> Result<Config, Error> {
        let mut config = match self.config {
            Some(path) => {
                let text = tokio::fs::read_to_string(&path)
                    .await
                    .map_err(|source| Error::File { path, source })?;
                serde_json::from_str(&text)
                    .map_err(|source| Error::Json { what: "the configuration", source })?
            }
            None => Config::default(),
        };
        config.bind = self.bind.unwrap_or(config.bind);
        config.seed = self.seed.unwrap_or(config.seed);
        config.region = self.region.unwrap_or(config.region);
        config.account = self.account.unwrap_or(config.account);
        let switches = &mut config.switches;
        switches.throttle.enabled &= !self.no_throttle;
        switches.throttle.scale = self.throttle_scale.unwrap_or(switches.throttle.scale);
        if self.no_lag {
            switches.lag = Lag::none();
        }
        switches.latency.default_ms = self.latency_ms.unwrap_or(switches.latency.default_ms);
        if let Some(patch) = self.switches {
            let json = |source| Error::Json { what: "the switches", source };
            let patch = serde_json::from_str(&patch).map_err(json)?;
            config.switches = config.switches.patched(&patch).map_err(json)?;
        }
        Ok(config)
    }
}

/// Runs the simulator until SIGINT or SIGTERM.
pub async fn run(args: Args) -> Result<(), Error> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let running = Ec2Sim::start(args.config().await?).await?;
    {
        let mut out = std::io::stdout().lock();
        writeln!(out, "listening on {}", running.url())?;
        out.flush()?;
    }
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    running.shutdown().await;
    Ok(())
}
