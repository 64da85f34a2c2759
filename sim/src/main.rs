//! `trunkline-sim`: the simulators that tests, the demo and the benches run against.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use trunkline_sim::support::causes;
use trunkline_sim::{ec2, node, proxy};

/// Simulators for Trunkline's tests and demo. Never part of a deployment.
#[derive(Debug, Parser)]
#[command(name = "trunkline-sim", version)]
struct Cli {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// The EC2 API: Query protocol in, XML out.
    Ec2(ec2::Args),
    /// Nodes: kubelet and CNI of any number of them.
    Node(node::Args),
    /// A faulty way to the API server.
    Proxy(proxy::Args),
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into()),
        )
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    let outcome = match Cli::parse().part {
        Part::Ec2(args) => ec2::run(args).await.map_err(|e| causes(&e)),
        Part::Node(args) => node::run(args).await.map_err(|e| causes(&e)),
        Part::Proxy(args) => proxy::run(args).await.map_err(|e| causes(&e)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One plain sentence, whatever the log's level and form.
            eprintln!("trunkline-sim: {error}");
            ExitCode::FAILURE
        }
    }
}
