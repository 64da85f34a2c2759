//! `demo`, `bench` and `simulate`: builds what they need, then becomes them, so that Ctrl-C reaches them alone. And the
//! model checker.

use crate::failure::Failure;
use crate::run::{cargo, check, describe, workspace};
use crate::{builds, control_plane};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// The demo.
pub(crate) fn demo(args: &[String]) -> Result<(), Failure> {
    start("trunkline-demo", args)
}

/// The bench.
pub(crate) fn bench(args: &[String]) -> Result<(), Failure> {
    start("trunkline-bench", args)
}

/// The seeded simulation.
pub(crate) fn simulate(args: &[String]) -> Result<(), Failure> {
    let mut command = Command::new(builds::simulator()?);
    command.args(args);
    let program = describe(&command);
    let source = command.exec();
    Err(Failure::Start { program, source })
}

fn start(binary: &str, args: &[String]) -> Result<(), Failure> {
    let assets = control_plane::find_or_build()?;
    builds::all()?;
    let mut command = Command::new(workspace().join("target/debug").join(binary));
    command.args(args).env("KUBEBUILDER_ASSETS", assets);
    let program = describe(&command);
    // Returns only if the program could not be started.
    let source = command.exec();
    Err(Failure::Start { program, source })
}

/// The model checker, in its own optimised profile and with the feature that lets it take rules out. Only its own package
/// is selected, so that no other build is touched by that feature.
pub(crate) fn model(worlds: &[String]) -> Result<(), Failure> {
    let mut command = cargo();
    command.args(["run", "--quiet", "--locked", "--profile", "model"]);
    command.args(["--package", "trunkline-model", "--features", "weaken", "--"]).args(worlds);
    check(&mut command)
}
