//! The project's own tools: everything a person or the pipeline runs besides `cargo build`.
//!
//! This crate depends on none of the product's crates, so that `cargo xtask gen` works while the wire contract does not
//! compile, and `cargo xtask control-plane` can build etcd and kube-apiserver before anything else exists. What needs
//! the product (`demo`, `bench`) is a binary of the `tests` crate that is built and started from here.

mod builds;
mod control_plane;
mod deny;
mod failure;
mod generate;
mod run;
mod runtime;
mod suites;
mod tools;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", about = "Trunkline's own tools")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Generate the Rust code and the descriptor set of the wire contract from proto/.
    Gen {
        /// Only compare: exit 1 if the committed files differ from what would be generated.
        #[arg(long)]
        check: bool,
    },
    /// Find or build etcd and kube-apiserver and print the folder that holds them.
    ControlPlane,
    /// Find or build containerd and runc, for the suite on a real container runtime, and print the folder that holds them.
    Runtime,
    /// Run every suite, set-up included.
    Test(suites::Options),
    /// The model checker: every order of events of small worlds, with all rules and with each rule taken out.
    Model {
        /// Only these worlds.
        worlds: Vec<String>,
    },
    /// Run cargo-deny (bans, licences, sources); installs it locked when it is missing.
    Deny,
    /// The story in two minutes: pods get branch ENIs and give them back, on a real API server.
    Demo {
        /// Passed to the demo, for example `--keep`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Real agents and coordinators in a simulated world that fails, in virtual time, from seeds.
    Simulate {
        /// Passed to the simulation, for example `--seeds 500`, `--seed 7 --seeds 1`, `--minutes 10`, `--self-check`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Measure what the project promises (times, calls, memory).
    Bench {
        /// Passed to the bench.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Gen { check } => generate::run(check),
        Command::ControlPlane => control_plane::find_or_build().map(|folder| {
            println!("{}", folder.display());
        }),
        Command::Runtime => runtime::find_or_build().map(|folder| {
            println!("{}", folder.display());
        }),
        Command::Test(options) => suites::run(&options),
        Command::Model { worlds } => tools::model(&worlds),
        Command::Deny => deny::run(),
        Command::Demo { args } => tools::demo(&args),
        Command::Bench { args } => tools::bench(&args),
        Command::Simulate { args } => tools::simulate(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::FAILURE
        }
    }
}
