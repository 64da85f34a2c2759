//! The bench: what the project promises in numbers, measured on the whole program.
//!
//! Times are taken from the recorded pod history and EC2's call log, which share one clock, not from the programs under
//! test. Every run ends with the invariants.

mod figures;
mod inotify;
mod runs;

use clap::{Parser, ValueEnum};
use std::process::ExitCode;
use trunkline_tests::cluster::Cluster;

/// Measures Trunkline.
#[derive(Debug, Parser)]
#[command(name = "trunkline-bench", bin_name = "cargo xtask bench")]
struct Args {
    /// What to measure; everything but `restart` if left out.
    #[arg(value_enum)]
    runs: Vec<Run>,
    /// Pods of `singles`.
    #[arg(long, default_value_t = 100)]
    singles: u32,
    /// Nodes of `restart`; each has 8 branches.
    #[arg(long, default_value_t = 200)]
    restart_nodes: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Run {
    /// Single pods on an idle system, EC2 taking 100 ms a call: creation to annotation.
    Singles,
    /// 80 pods at once on 10 nodes, under EC2's buckets.
    Burst,
    /// EC2 calls a pod; from the pod's end to its free slot.
    Release,
    /// Memory and CPU of agent and coordinator at rest.
    Idle,
    /// All coordinators restart on a large cluster.
    Restart,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(missing) = Cluster::missing() {
        eprintln!("The bench cannot run here: {missing}.");
        return ExitCode::FAILURE;
    }
    let all = [Run::Singles, Run::Burst, Run::Release, Run::Idle];
    let chosen = if args.runs.is_empty() { all.to_vec() } else { args.runs.clone() };
    let mut failed = false;
    for run in chosen {
        let done = match run {
            Run::Singles => runs::singles(args.singles).await,
            Run::Burst => runs::burst().await,
            Run::Release => runs::release().await,
            Run::Idle => runs::idle().await,
            Run::Restart => runs::restart(args.restart_nodes).await,
        };
        if let Err(error) = done {
            eprintln!("{run:?} failed: {error}");
            failed = true;
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
