//! Builds what the black-box tests, the demo, the benches and the simulation run.
//!
//! Agent and coordinator are built twice: as shipped, and with the feature `test-timing`, which alone reads
//! `TRUNKLINE_TIMING`, into the folder `target/timing`, so that the two are never mistaken for each other.
//!
//! Cargo picks the features of dependencies by the packages *and kinds of targets* that a command selects. The AWS SDK
//! takes minutes to compile, so every command here and in the suites selects the same: the whole workspace, development
//! dependencies included. The second build starts from a copy of what the first one left, and compiles little more than
//! the crates that know the feature.

use crate::failure::Failure;
use crate::run::{cargo, check, workspace};
use std::fs::{File, FileTimes};
use std::path::{Path, PathBuf};

/// Selects every binary; and one small test, for the development dependencies' features.
const BINARIES: [&str; 4] = ["--workspace", "--bins", "--test", "architecture"];

/// Builds every binary, and the timed agent and coordinator.
pub(crate) fn all() -> Result<(), Failure> {
    eprintln!("building all binaries (the AWS SDK alone takes 4 minutes on 2 cores, once)");
    check(cargo().args(["build", "--locked"]).args(BINARIES))?;
    let target = workspace().join("target");
    let (from, to) = (target.join("debug"), target.join("timing/debug"));
    prepare(&from, &to);
    eprintln!("building agent and coordinator with test-timing into target/timing");
    check(
        cargo()
            .args(["build", "--locked"])
            .args(BINARIES)
            .args(["--features", "trunkline-agent/test-timing,trunkline-coordinator/test-timing"])
            .arg("--target-dir")
            .arg(target.join("timing")),
    )
}

/// Our own crates that the simulation runs, which are optimised for it. The others stay as they are compiled already.
const OPTIMISED: [&str; 6] = ["core", "proto", "kit", "agent", "coordinator", "tests"];

/// Builds the seeded simulation, our own crates optimised, into `target/simulate`, and returns where it is.
pub(crate) fn simulator() -> Result<PathBuf, Failure> {
    let target = workspace().join("target");
    let folder = target.join("simulate");
    if !folder.join("debug").exists() {
        check(cargo().args(["build", "--locked"]).args(BINARIES))?;
        prepare(&target.join("debug"), &folder.join("debug"));
    }
    eprintln!("building the simulation into target/simulate");
    let optimised =
        OPTIMISED.map(|name| format!("--config=profile.dev.package.trunkline-{name}.opt-level=2"));
    check(
        cargo()
            .args(["build", "--locked"])
            .args(BINARIES)
            .args(optimised)
            .arg("--target-dir")
            .arg(&folder),
    )?;
    Ok(folder.join("debug/trunkline-simulate"))
}

/// The seeded simulation as the other tests are compiled: slower, and without an optimised build of its own.
pub(crate) fn simulator_to_test() -> Result<PathBuf, Failure> {
    check(cargo().args(["build", "--locked"]).args(BINARIES))?;
    Ok(workspace().join("target/debug/trunkline-simulate"))
}

/// Fills a target folder that does not exist yet with what another one has compiled.
fn prepare(from: &Path, to: &Path) {
    if to.exists() {
        return;
    }
    eprintln!("preparing {} from what {} has", to.display(), from.display());
    if let Err(failure) = seed(from, to) {
        // Only time is lost: cargo builds from nothing.
        eprintln!("not prepared ({failure}); building from nothing");
        let _ = std::fs::remove_dir_all(to);
    }
}

/// Copies cargo's books and libraries, with their times, while no cargo works in `from`.
fn seed(from: &Path, to: &Path) -> Result<(), Failure> {
    let lock = from.join(".cargo-lock");
    let held = File::open(&lock).map_err(Failure::file(&lock))?;
    held.lock().map_err(Failure::file(&lock))?;
    for part in [".fingerprint", "build", "deps"] {
        copy(&from.join(part), &to.join(part))?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(to).map_err(Failure::file(to))?;
    for entry in std::fs::read_dir(from).map_err(Failure::file(from))? {
        let entry = entry.map_err(Failure::file(from))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            copy(&source, &target)?;
        } else if !is_program_of_deps(&source) {
            std::fs::copy(&source, &target).map_err(Failure::file(&source))?;
            let times = std::fs::metadata(&source)
                .and_then(|data| Ok(FileTimes::new().set_modified(data.modified()?)))
                .map_err(Failure::file(&source))?;
            File::options()
                .append(true)
                .open(&target)
                .and_then(|file| file.set_times(times))
                .map_err(Failure::file(&target))?;
        }
    }
    Ok(())
}

/// Test and other programs in `deps` are large and of no use in the copy.
fn is_program_of_deps(path: &Path) -> bool {
    path.extension().is_none() && path.parent().is_some_and(|folder| folder.ends_with("deps"))
}
