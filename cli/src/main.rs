//! The command `trunkline`.

use std::process::ExitCode;

use trunkline_cli::args::{self, Settings};
use trunkline_cli::client::Client;
use trunkline_kit::config::{Exit, process_env};
use trunkline_kit::drain::{EXIT_FAILURE, chain};
use trunkline_kit::tls;

fn main() -> ExitCode {
    let argv = std::env::args_os().map(|a| a.to_string_lossy().into_owned());
    let settings = match args::parse(argv, &process_env) {
        Ok(settings) => settings,
        Err(exit) => return exit.report(),
    };
    match run(&settings) {
        Ok(code) => ExitCode::from(code),
        Err(text) => Exit { text: format!("trunkline: {text}"), code: EXIT_FAILURE }.report(),
    }
}

fn run(settings: &Settings) -> Result<u8, String> {
    tls::install_provider();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| chain(&error))?;
    runtime.block_on(async {
        let file = settings.token_file.display();
        let token = tokio::fs::read_to_string(&settings.token_file).await;
        let token = token.map_err(|e| format!("failed to read the token file {file}: {e}"))?;
        let (coordinators, ca) = (settings.coordinators.clone(), settings.coordinator_ca.clone());
        let client = Client::new(coordinators, ca, token.trim())
            .ok_or_else(|| format!("the token file {file} does not hold a token"))?;
        let mut out = std::io::stdout();
        trunkline_cli::run(settings, &client, &mut out).await.map_err(|error| chain(&error))
    })
}
