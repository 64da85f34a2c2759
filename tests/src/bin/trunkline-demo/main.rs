//! The demo: a story that a person can follow in about two minutes, on a real API server.
//!
//! Every claim it prints is checked from EC2's call log and the API server's contents; it exits with 0 only if all of
//! them held. Ctrl-C at any moment ends every process and removes every network namespace and file it made.

mod keep;
mod loss;
mod outage;
mod story;

use clap::Parser;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};
use trunkline_tests::cluster::Cluster;
use trunkline_tests::{Error, Result};

/// Trunkline's main job, end to end, on this machine.
#[derive(Debug, Clone, Parser)]
#[command(name = "trunkline-demo", bin_name = "cargo xtask demo")]
struct Args {
    /// Leave everything running at the end, and say how to look around.
    #[arg(long)]
    keep: bool,
    /// Nodes.
    #[arg(long, default_value_t = 3)]
    nodes: u32,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(missing) = Cluster::missing() {
        eprintln!("The demo cannot run here: {missing}.");
        return ExitCode::FAILURE;
    }
    let told = tokio::select! {
        told = story::run(&args) => told,
        () = interrupted() => Err(Error::say("interrupted; everything it started is ended")),
    };
    let ended = match told {
        Ok(cast) if args.keep => {
            tokio::select! {
                kept = keep::running(&cast) => kept,
                () = interrupted() => {
                    println!("\nended, with everything it started");
                    Ok(())
                }
            }
        }
        // The last judgement takes its time, and can be left as everything before it.
        Ok(cast) => tokio::select! {
            finished = cast.cluster.finish() => finished,
            () = interrupted() => Err(Error::say("interrupted; everything it started is ended")),
        },
        Err(error) => Err(error),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nThe demo failed: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn interrupted() {
    let handlers = || -> Result<_> {
        let handler = |kind| signal(kind).map_err(|error| Error::say(error.to_string()));
        Ok((handler(SignalKind::interrupt())?, handler(SignalKind::terminate())?))
    };
    match handlers() {
        Ok((mut interrupt, mut terminate)) => {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        }
        // Without handlers the signals' own action ends the process.
        Err(_) => std::future::pending().await,
    }
}
