//! Runs the seeded simulation: `cargo xtask simulate`.

mod campaigns;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Parser;
use trunkline_tests::simulation::{self, Mutation, Plan, Report, seeds};

#[derive(Parser)]
#[command(about = "Real agents and coordinators in a simulated world that fails, from seeds")]
struct Args {
    /// How many seeds, beginning with --seed; the kept ones run before.
    #[arg(long, default_value_t = 50)]
    seeds: u64,
    /// The first seed. With --seeds 1 only this one runs, and its whole record is printed.
    #[arg(long)]
    seed: Option<u64>,
    /// End after this many minutes, whatever is left.
    #[arg(long)]
    minutes: Option<f64>,
    /// Runs at one time.
    #[arg(long)]
    jobs: Option<usize>,
    /// Nodes of each run.
    #[arg(long, default_value_t = 3)]
    nodes: u32,
    /// Instead: show that the oracle rings when a rule is weakened, and that a run repeats exactly.
    #[arg(long)]
    self_check: bool,
    /// Instead: so many pods come and go while 5 % of all EC2 calls fail; leaks and lost slots are counted.
    #[arg(long, value_name = "N", conflicts_with_all = ["self_check", "losses"])]
    cycles: Option<u64>,
    /// Instead: live pods lose so many branches while EC2 errs, lags and is slow; how they are noticed and healed.
    #[arg(long, value_name = "N", conflicts_with = "self_check")]
    losses: Option<u64>,
    /// Minutes of trouble in each run, in virtual time.
    #[arg(long, default_value_t = 60)]
    trouble: u64,
}

/// What all runs came to.
#[derive(Default)]
struct Sum {
    runs: u64,
    node_days: f64,
    counts: std::collections::BTreeMap<&'static str, u64>,
    kept: std::collections::BTreeMap<String, u64>,
    failed: Vec<Report>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.self_check {
        return self_check();
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let jobs = args.jobs.unwrap_or(cores).max(1);
    if let Some(count) = args.cycles {
        return campaigns::cycles(args.seed.unwrap_or(1), count, args.nodes);
    }
    if let Some(count) = args.losses {
        return campaigns::losses(args.seed.unwrap_or(1), count, args.nodes, jobs);
    }
    let single = args.seed.filter(|_| args.seeds == 1);
    let first = args.seed.unwrap_or(1);
    let kept = if args.seed.is_none() { seeds::kept() } else { Ok(Vec::new()) };
    let kept = match kept {
        Ok(kept) => kept,
        Err(why) => {
            eprintln!("simulate: {why}");
            return ExitCode::FAILURE;
        }
    };
    let all: Vec<u64> = kept.into_iter().chain(first..first.saturating_add(args.seeds)).collect();
    let plan = Plan {
        nodes: args.nodes,
        trouble: Duration::from_secs(args.trouble * 60),
        whole_record: single.is_some(),
        ..Plan::default()
    };
    #[allow(clippy::disallowed_methods, reason = "how long it takes, for a person to read")]
    let begun = Instant::now();
    let until = args.minutes.map(|minutes| Duration::from_secs_f64(minutes * 60.0));
    let sum = Mutex::new(Sum::default());
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) && until.is_none_or(|u| begun.elapsed() < u) {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(seed) = usize::try_from(index).ok().and_then(|i| all.get(i)) else {
                        return;
                    };
                    one(*seed, &plan, &sum, &stop);
                }
            });
        }
    });
    let sum = sum.into_inner().unwrap_or_else(PoisonError::into_inner);
    tell(&sum, begun.elapsed(), single.is_some())
}

/// Seeds that are tried for each weakened rule.
const TRIES: u64 = 40;

fn self_check() -> ExitCode {
    let mut good = true;
    let twice = [3, 3].map(|seed| simulation::run(seed, Plan::default()).map(|r| r.digest));
    match &twice {
        [Ok(one), Ok(other)] if one == other => println!("ok      seed 3 twice: {one:016x}"),
        [one, other] => {
            good = false;
            println!("FAILED  seed 3 twice: {one:?}, {other:?}");
        }
    }
    for (mutation, promise) in Mutation::ALL {
        let found = (1..=TRIES).find_map(|seed| {
            let plan = Plan { mutation: Some(mutation), ..Plan::default() };
            let what = simulation::run(seed, plan).ok()?.violation?;
            what.starts_with(promise).then_some((seed, what))
        });
        match found {
            Some((seed, what)) => println!("ok      {mutation:?} is found by seed {seed}: {what}"),
            None => {
                good = false;
                println!("FAILED  {mutation:?} is found by none of {TRIES} seeds");
            }
        }
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn one(seed: u64, plan: &Plan, sum: &Mutex<Sum>, stop: &AtomicBool) {
    match simulation::run(seed, plan.clone()) {
        Ok(report) => {
            let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
            sum.runs += 1;
            sum.node_days += report.node_days();
            for (what, times) in &report.counts {
                *sum.counts.entry(what).or_default() += times;
            }
            for (reason, times) in &report.kept {
                *sum.kept.entry(reason.clone()).or_default() += times;
            }
            if let Some(what) = &report.violation {
                eprintln!("seed {seed} FAILED: {what}");
                if sum.failed.len() >= 10 {
                    stop.store(true, Ordering::Relaxed);
                }
            }
            if report.violation.is_some() || plan.whole_record {
                sum.failed.push(report);
            }
        }
        Err(error) => {
            eprintln!("seed {seed}: {error}");
            stop.store(true, Ordering::Relaxed);
        }
    }
}

fn tell(sum: &Sum, took: Duration, single: bool) -> ExitCode {
    if single {
        for line in sum.failed.iter().flat_map(|report| &report.lines) {
            println!("{line}");
        }
    }
    let minutes = took.as_secs_f64() / 60.0;
    println!(
        "{} runs, {:.1} node-days in {:.1} s: {:.1} node-days a minute",
        sum.runs,
        sum.node_days,
        took.as_secs_f64(),
        sum.node_days / minutes.max(1e-9)
    );
    for (what, times) in &sum.counts {
        println!("{times:>9} {what}");
    }
    for (reason, times) in &sum.kept {
        println!("{times:>9} releases began to wait: {reason}");
    }
    let mut bad = false;
    for report in &sum.failed {
        let Some(what) = &report.violation else { continue };
        bad = true;
        println!("seed {} digest {:016x} FAILED: {what}", report.seed, report.digest);
        for line in &report.reasons {
            println!("  {line}");
        }
        println!("  again: cargo xtask simulate --seed {} --seeds 1", report.seed);
        if let Err(error) = seeds::keep(&seeds::file(), report.seed, what) {
            eprintln!("simulate: the seed cannot be kept: {error}");
        }
    }
    if bad || sum.runs == 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
