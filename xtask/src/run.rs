//! Paths of the workspace and the starting of programs.

use crate::failure::Failure;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The workspace's folder, from where this crate was compiled.
pub(crate) fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// The cargo that runs us, or the one on the path.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace());
    // `cargo run` tells its child about *this* package; the builds started here are not about it.
    for name in ["CARGO_MANIFEST_DIR", "CARGO_PKG_NAME", "CARGO_MANIFEST_PATH"] {
        command.env_remove(name);
    }
    command
}

/// Runs a program to its end and fails when it fails.
pub(crate) fn check(command: &mut Command) -> Result<(), Failure> {
    let program = describe(command);
    let status =
        command.status().map_err(|source| Failure::Start { program: program.clone(), source })?;
    if status.success() { Ok(()) } else { Err(Failure::Program { program, status }) }
}

/// The command line as a person would type it.
pub(crate) fn describe(command: &Command) -> String {
    let name = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let mut line = name.to_string_lossy().into_owned();
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    line
}
