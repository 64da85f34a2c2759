//! `trunkline-agent`: one per node.

use std::process::ExitCode;

use trunkline_agent::config::{self, NoSettings};
use trunkline_agent::run::Agent;
use trunkline_kit::config::process_env;
use trunkline_kit::{drain, telemetry};

fn main() -> ExitCode {
    let argv = std::env::args_os().map(|a| a.to_string_lossy().into_owned());
    let (settings, opening) = match config::load(argv, &process_env) {
        Ok(loaded) => loaded,
        Err(NoSettings::Exit(exit)) => return exit.report(),
        Err(NoSettings::Bad(bad)) => return bad.report(),
    };
    let _level = telemetry::start(&opening.log_level, opening.log_format);
    opening.log();
    // One node's work is small; two threads keep the health endpoints alive beside the loop.
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "failed to start the runtime");
            return ExitCode::from(drain::EXIT_FAILURE);
        }
    };
    let stopped = runtime.block_on(async { Ok(Agent::build(settings).await?.run().await) });
    // A file system that hangs must not hold up the end of the process.
    runtime.shutdown_background();
    match stopped {
        Ok(stopped) => stopped.exit_code(),
        Err(error) => {
            let error: trunkline_agent::run::StartError = error;
            tracing::error!(error = %drain::chain(&error), "failed to start");
            ExitCode::from(drain::EXIT_FAILURE)
        }
    }
}
