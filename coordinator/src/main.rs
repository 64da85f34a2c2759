//! `trunkline-coordinator`.

use std::process::ExitCode;

use trunkline_coordinator::config::{Args, Config, UNUSED};
use trunkline_coordinator::run::build;
use trunkline_kit::config::{load_process, process_env};
use trunkline_kit::drain::{EXIT_FAILURE, chain};
use trunkline_kit::telemetry;

#[tokio::main]
async fn main() -> ExitCode {
    let mut loaded = match load_process::<Args>() {
        Ok(loaded) => loaded,
        Err(exit) => return exit.report(),
    };
    let config = match Config::check(&mut loaded, &process_env) {
        Ok(config) => config,
        Err(bad) => return bad.report(),
    };
    let _level = telemetry::start(&config.log_level, config.log_format);
    if let Some(warning) = &config.log_level.warning {
        tracing::warn!("{warning}");
    }
    loaded.log(&UNUSED);
    if let Some(warning) = &config.timing_warning {
        tracing::warn!("{warning}");
    }
    match build(config).await {
        Ok(bound) => bound.run().await.exit_code(),
        Err(error) => {
            tracing::error!("{}", chain(&error));
            ExitCode::from(EXIT_FAILURE)
        }
    }
}
