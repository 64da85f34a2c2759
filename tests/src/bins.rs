//! Where the programs under test are.
//!
//! `TRUNKLINE_BINARIES` names a folder that is looked at first. Otherwise agent and coordinator come from
//! `target/timing/debug`, the build with the feature `test-timing` that alone reads `TRUNKLINE_TIMING`, and everything
//! else from the folder of the profile that the test itself was built in. `cargo xtask test` builds them all; a test
//! never builds anything.

use crate::{Error, Result};
use std::path::PathBuf;

/// Binaries that are built with `test-timing` for the tests.
pub const TIMED: [&str; 2] = ["trunkline-agent", "trunkline-coordinator"];

/// The path of one of our binaries.
pub fn find(name: &str) -> Result<PathBuf> {
    let candidates = candidates(name);
    if let Some(path) = candidates.iter().find(|path| path.is_file()) {
        return Ok(path.clone());
    }
    let looked: Vec<_> = candidates.iter().map(|path| path.display().to_string()).collect();
    Err(Error::say(format!(
        "{name} is not built (looked for {}); `cargo xtask test` or `cargo xtask demo` builds it",
        looked.join(", ")
    )))
}

fn candidates(name: &str) -> Vec<PathBuf> {
    let mut candidates = Vec::new();
    if let Some(folder) = std::env::var_os("TRUNKLINE_BINARIES") {
        candidates.push(PathBuf::from(folder).join(name));
    }
    if TIMED.contains(&name) {
        candidates.push(crate::workspace().join("target/timing/debug").join(name));
        return candidates;
    }
    if let Ok(own) = std::env::current_exe() {
        // target/<profile>/deps/<test> or target/<profile>/<binary>.
        let folders = own.ancestors().skip(1).take(2);
        candidates.extend(folders.map(|folder| folder.join(name)));
    }
    candidates.push(crate::workspace().join("target/debug").join(name));
    candidates
}
