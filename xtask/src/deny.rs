//! cargo-deny, installed locked at a fixed version into `target/tools`.

use crate::failure::Failure;
use crate::run::{cargo, check, workspace};
use std::path::PathBuf;
use std::process::Command;

/// The version whose configuration format `deny.toml` is written for.
const VERSION: &str = "0.20.2";

/// Checks bans, licences and sources. Advisories need a database from the network and are not part of the gate.
pub(crate) fn run() -> Result<(), Failure> {
    let program = installed()?;
    // Builds fetch what this machine's platform needs; the graph of all platforms needs the rest.
    check(cargo().args(["fetch", "--locked"]))?;
    check(Command::new(program).current_dir(workspace()).args([
        "--workspace",
        "--all-features",
        "--offline",
        "check",
        "bans",
        "licenses",
        "sources",
    ]))
}

/// Where cargo-deny is, or would be.
pub(crate) fn path() -> PathBuf {
    workspace().join("target/tools/bin/cargo-deny")
}

fn installed() -> Result<PathBuf, Failure> {
    let program = path();
    let current = Command::new(&program).arg("--version").output();
    if current.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).contains(VERSION)) {
        return Ok(program);
    }
    let root = workspace().join("target/tools");
    eprintln!("installing cargo-deny {VERSION} into target/tools (once)");
    check(
        cargo()
            .args(["install", "cargo-deny", "--locked", "--version", VERSION, "--force", "--root"])
            .arg(&root)
            .env("CARGO_TARGET_DIR", workspace().join("target/tools/build")),
    )?;
    Ok(program)
}
