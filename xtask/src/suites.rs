//! `test`: every suite, with what it needs, and an account of what ran.
//!
//! A suite that cannot be set up has failed, it is not skipped: a gate that passes because nothing ran is worse than
//! none. Tests that need something of this machine that it lacks (network namespaces, uid 0) say so; they are counted
//! and listed as skipped, with the reason.

use crate::failure::Failure;
use crate::run::{cargo, check, workspace};
use crate::{builds, control_plane, deny, generate, runtime, tools};
use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// What to run.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only these parts, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Part>,
    /// Only black-box and unit tests whose name contains this.
    filter: Option<String>,
}

/// The parts, in the order they run.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// rustfmt, clippy, cargo-deny.
    Lint,
    /// The committed generated code is what would be generated.
    Gen,
    /// Unit, property and doc tests of every crate.
    Unit,
    /// The model checker.
    Model,
    /// The seeded simulation: kept seeds, a bounded number of others, and whether its oracle rings.
    Simulate,
    /// Suites on a real API server.
    Blackbox,
}

const ALL: [Part; 6] =
    [Part::Gen, Part::Unit, Part::Model, Part::Simulate, Part::Blackbox, Part::Lint];

/// Bounds of the simulation: seeds, and minutes.
const SEEDS: &str = "5";
const MINUTES: &str = "4";

/// The account of one part.
#[derive(Default)]
struct Account {
    name: &'static str,
    passed: u32,
    failures: Vec<String>,
    skips: Vec<String>,
    took: Duration,
}

impl Account {
    fn new(name: &'static str) -> Self {
        Self { name, ..Self::default() }
    }

    /// A check that passes or fails as a whole.
    fn step(&mut self, name: &str, done: Result<(), Failure>) -> bool {
        match done {
            Ok(()) => {
                self.passed += 1;
                true
            }
            Err(failure) => {
                eprintln!("xtask: {name}: {failure}");
                self.failures.push(format!("{name}: {failure}"));
                false
            }
        }
    }
}

/// Runs the parts and prints the account; fails if anything failed.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let parts =
        ALL.into_iter().filter(|part| options.only.is_empty() || options.only.contains(part));
    let filter = options.filter.as_deref();
    let accounts: Vec<_> = parts
        .map(|part| {
            #[allow(
                clippy::disallowed_methods,
                reason = "how long a suite took, for a person to read"
            )]
            let begun = std::time::Instant::now();
            let mut account = match part {
                Part::Lint => lint(),
                Part::Gen => generated(),
                Part::Unit => unit(filter),
                Part::Model => model(),
                Part::Simulate => simulate(),
                Part::Blackbox => blackbox(filter),
            };
            account.took = begun.elapsed();
            account
        })
        .collect();
    summary(&accounts)
}

fn lint() -> Account {
    let mut account = Account::new("lint");
    account.step("rustfmt", check(cargo().args(["fmt", "--all", "--check"])));
    let clippy = check(
        cargo()
            .args(["clippy", "--locked", "--workspace", "--all-targets", "--all-features"])
            .args(["--", "-D", "warnings"]),
    );
    account.step("clippy", clippy);
    account.step("cargo-deny", deny::run());
    account
}

fn generated() -> Account {
    let mut account = Account::new("generated code");
    account.step("gen --check", generate::run(true));
    account
}

fn unit(filter: Option<&str>) -> Account {
    let mut account = Account::new("unit and doc tests");
    let mut command = cargo();
    command.args(["test", "--locked", "--workspace", "--no-fail-fast", "--lib", "--bins"]);
    command.args(integration_tests(|member| member != "tests"));
    tests(&mut account, &mut command, filter);
    let mut command = cargo();
    command.args(["test", "--locked", "--workspace", "--no-fail-fast", "--doc"]);
    tests(&mut account, &mut command, filter);
    account
}

fn model() -> Account {
    let mut account = Account::new("model checker");
    account.step("worlds and removed rules", tools::model(&[]));
    account
}

fn simulate() -> Account {
    let mut account = Account::new("simulation");
    match builds::simulator_to_test() {
        Ok(simulator) => {
            let run = |args: &[&str]| check(Command::new(&simulator).args(args));
            account.step("seeds", run(&["--seeds", SEEDS, "--minutes", MINUTES]));
            account.step("weakened rules are found", run(&["--self-check"]));
        }
        Err(failure) => {
            account.step("simulator", Err(failure));
        }
    }
    account
}

fn blackbox(filter: Option<&str>) -> Account {
    let mut account = Account::new("black box");
    let assets = match control_plane::find_or_build() {
        Ok(assets) => assets,
        Err(failure) => {
            account.step("control plane", Err(failure));
            return account;
        }
    };
    // Only Linux with uid 0 can run it; elsewhere the suite says so and is counted as skipped.
    if cfg!(target_os = "linux") && root() {
        let built = runtime::find_or_build().map(drop);
        if built.is_err() {
            account.step("container runtime", built);
        }
    }
    if let Err(failure) = builds::all() {
        account.step("binaries", Err(failure));
        return account;
    }
    let mut command = cargo();
    command.args(["test", "--locked", "--workspace", "--no-fail-fast"]);
    command.args(integration_tests(|member| member == "tests"));
    command.env("KUBEBUILDER_ASSETS", assets);
    tests(&mut account, &mut command, filter);
    account
}

/// Whether this process has uid 0.
fn root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// `--test NAME` for every integration test of the members that `pick` picks. Naming them keeps the whole workspace
/// selected, and with it the features of everything that is compiled already.
fn integration_tests(pick: impl Fn(&str) -> bool) -> Vec<String> {
    let mut names = BTreeSet::new();
    for member in std::fs::read_dir(workspace()).into_iter().flatten().flatten() {
        let folder = member.path();
        if !folder.join("Cargo.toml").is_file() || !pick(&member.file_name().to_string_lossy()) {
            continue;
        }
        for test in std::fs::read_dir(folder.join("tests")).into_iter().flatten().flatten() {
            let path = test.path();
            let is_test =
                path.extension().is_some_and(|end| end == "rs") || path.join("main.rs").is_file();
            if let (true, Some(name)) = (is_test, path.file_stem()) {
                names.insert(name.to_string_lossy().into_owned());
            }
        }
    }
    names.into_iter().flat_map(|name| ["--test".to_owned(), name]).collect()
}

/// Runs a `cargo test`, shows its output and counts what its harnesses say.
fn tests(account: &mut Account, command: &mut Command, filter: Option<&str>) {
    let notes = skip_notes();
    let _ = std::fs::remove_file(&notes);
    command.args(filter).env("TRUNKLINE_SKIPS", &notes).stdout(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            account.failures.push(format!("cargo test did not start: {error}"));
            return;
        }
    };
    let failed_before = account.failures.len();
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            println!("{line}");
            count(account, &line);
        }
    }
    let success = child.wait().is_ok_and(|status| status.success());
    if !success && account.failures.len() == failed_before {
        account
            .failures
            .push("cargo test failed before or beside its tests (see above)".to_owned());
    }
    // A test that found it cannot run here returned early, which its harness took for a pass.
    for note in std::fs::read_to_string(&notes).unwrap_or_default().lines() {
        account.passed = account.passed.saturating_sub(1);
        account.skips.push(note.to_owned());
    }
}

fn skip_notes() -> PathBuf {
    workspace().join("target/skipped-tests.txt")
}

/// Reads a line of libtest's output: `test NAME ... ok | FAILED | ignored[, why]`, doc tests alike.
fn count(account: &mut Account, line: &str) {
    let Some((name, outcome)) =
        line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... "))
    else {
        return;
    };
    match outcome.split(',').next().unwrap_or_default() {
        "ok" => account.passed += 1,
        "FAILED" => account.failures.push(name.to_owned()),
        "ignored" => {
            let why = outcome.strip_prefix("ignored, ").unwrap_or("ignored without a reason");
            account.skips.push(format!("{name}: {why}"));
        }
        _ => {}
    }
}

fn summary(accounts: &[Account]) -> Result<(), Failure> {
    println!("\n=== what ran ===");
    for account in accounts {
        println!(
            "{:<20} {:>5} passed {:>4} failed {:>4} skipped   {:>4} s",
            account.name,
            account.passed,
            account.failures.len(),
            account.skips.len(),
            account.took.as_secs()
        );
    }
    list("skipped", accounts, |account| &account.skips);
    list("FAILED", accounts, |account| &account.failures);
    let passed: u32 = accounts.iter().map(|account| account.passed).sum();
    let failed: usize = accounts.iter().map(|account| account.failures.len()).sum();
    let skipped: usize = accounts.iter().map(|account| account.skips.len()).sum();
    println!("\n{passed} passed, {failed} failed, {skipped} skipped");
    // The line above is read by scripts; it must be out before the process ends.
    std::io::stdout().flush().map_err(|error| Failure::Say(format!("cannot write: {error}")))?;
    if failed > 0 { Err(Failure::Say("not everything passed".to_owned())) } else { Ok(()) }
}

fn list(title: &str, accounts: &[Account], pick: impl Fn(&Account) -> &Vec<String>) {
    for account in accounts {
        for entry in pick(account) {
            println!("{title}: {}: {entry}", account.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libtest_lines_are_counted_and_reasons_kept() {
        let mut account = Account::new("x");
        for line in [
            "running 3 tests",
            "test a::b ... ok",
            "test core/src/verdict.rs - verdict::DeletePermit (line 12) - compile fail ... ok",
            "test c ... FAILED",
            "test d ... ignored, needs uid 0",
            "test e ... ignored",
            "test result: FAILED. 2 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out",
        ] {
            count(&mut account, line);
        }
        assert_eq!(account.passed, 2);
        assert_eq!(account.failures, ["c"]);
        assert_eq!(account.skips, ["d: needs uid 0", "e: ignored without a reason"]);
    }

    #[test]
    fn a_failure_anywhere_fails_the_whole() {
        let mut good = Account::new("good");
        good.step("fine", Ok(()));
        assert!(summary(&[Account { passed: 1, ..Account::default() }]).is_ok());
        good.step("bad", Err(Failure::Say("no".to_owned())));
        assert!(summary(&[good]).is_err());
    }
}
