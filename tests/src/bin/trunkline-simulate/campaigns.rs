//! `--cycles` and `--losses`: runs that measure one thing, and what they print.

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use trunkline_tests::simulation::losses::{End, Kind, Loss};
use trunkline_tests::simulation::{self, Course, Plan, Report};

/// Losses of one world; more are spread over several, each with a seed and EC2 faults of its own.
const LOSSES_OF_ONE: u64 = 100;

/// Runs each course with a seed of its own, counted from `first`, on so many threads.
fn run(first: u64, courses: &[Course], nodes: u32, jobs: usize) -> Result<Vec<Report>, String> {
    // One world of few losses is for reading along.
    let whole_record = matches!(courses, [Course::Losses { count: 1..=5, .. }]);
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(course) = courses.get(index) else { return };
                    let seed = first.saturating_add(u64::try_from(index).unwrap_or_default());
                    let plan = Plan { nodes, course: *course, whole_record, ..Plan::default() };
                    let report = simulation::run(seed, plan).map_err(|e| e.to_string());
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    done.push((index, report));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, report)| report).collect()
}

/// Create/delete cycles.
pub(crate) fn cycles(first: u64, count: u64, nodes: u32) -> ExitCode {
    let reports = match run(first, &[Course::Cycles(count)], nodes, 1) {
        Ok(reports) => reports,
        Err(why) => return failed(&why),
    };
    let mut good = true;
    for report in &reports {
        let faults = report.count("fault: EC2 fails") + report.count("fault: EC2's answer is lost");
        let calls: u64 = report
            .counts
            .iter()
            .filter(|(what, _)| what.starts_with("ec2-"))
            .map(|(_, times)| times)
            .sum::<u64>()
            + report.count("fault: EC2 fails");
        println!(
            "{count} create/delete cycles on {nodes} nodes in {:.1} virtual hours: {calls} EC2 calls, {faults} of them failed for their caller",
            report.took.as_secs_f64() / 3_600.0,
        );
        println!("  made {}, deleted {}", report.count("ec2-create"), report.count("ec2-delete"));
        kept(report);
        match &report.violation {
            None => println!("  leaks at rest: 0, slots lost: 0"),
            Some(what) => {
                good = false;
                tell_violation(report, what);
            }
        }
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Losses of live pods' branches, once noticed by the inventory every five minutes, once revealed at once.
pub(crate) fn losses(first: u64, count: u64, nodes: u32, jobs: usize) -> ExitCode {
    let mut good = true;
    for (at_once, name) in [(false, "inventory every 5 min"), (true, "revealed at once")] {
        let mut courses = Vec::new();
        let mut left = count;
        while left > 0 {
            let count = left.min(LOSSES_OF_ONE);
            courses.push(Course::Losses { count, at_once });
            left -= count;
        }
        let reports = match run(first, &courses, nodes, jobs) {
            Ok(reports) => reports,
            Err(why) => return failed(&why),
        };
        if let [report] = reports.as_slice()
            && count <= 5
        {
            report.lines.iter().for_each(|line| println!("{line}"));
        }
        let all: Vec<Loss> = reports.iter().flat_map(|report| report.losses.clone()).collect();
        let healed = all.iter().filter(|l| matches!(l.end, Some(End::Healed(_)))).count();
        let over = all.iter().filter(|l| l.end == Some(End::PodOver)).count();
        let days: f64 = reports.iter().map(Report::node_days).sum();
        println!(
            "{name}: {healed} healed in place of {} tried, {over} pods over before, {days:.1} node-days",
            all.len() - over,
        );
        for kind in [Kind::Deleted, Kind::Disassociated] {
            let of_kind: Vec<&Loss> = all.iter().filter(|l| l.kind == kind).collect();
            println!("  {kind:?} ({}):", of_kind.len());
            row("loss -> noticed", of_kind.iter().filter_map(|l| l.noticed_after()));
            let from_sign = |l: &&&Loss| l.healed_after()?.checked_sub(l.noticed_after()?);
            row("noticed -> healed", of_kind.iter().filter_map(|l| from_sign(&l)));
            row("loss -> healed", of_kind.iter().filter_map(|l| l.healed_after()));
            calls(of_kind.iter().filter(|l| l.healed_after().is_some()).map(|l| l.calls));
        }
        for report in &reports {
            if let Some(what) = &report.violation {
                good = false;
                tell_violation(report, what);
            }
        }
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn failed(why: &str) -> ExitCode {
    eprintln!("simulate: {why}");
    ExitCode::FAILURE
}

fn tell_violation(report: &Report, what: &str) {
    println!("  seed {} digest {:016x} FAILED: {what}", report.seed, report.digest);
    for line in &report.reasons {
        println!("    {line}");
    }
}

/// What releases waited for.
pub(crate) fn kept(report: &Report) {
    for (reason, times) in &report.kept {
        println!("{times:>9} releases began to wait: {reason}");
    }
}

/// The value below which this share of the values lies (nearest rank); `None` without values.
fn percentile<T: Copy>(sorted: &[T], share: usize) -> Option<T> {
    let rank = (sorted.len() * share).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

fn row(name: &str, values: impl Iterator<Item = Duration>) {
    let mut values: Vec<Duration> = values.collect();
    values.sort();
    let show = |share| {
        percentile(&values, share)
            .map_or_else(|| "-".to_owned(), |value| format!("{:.1} s", value.as_secs_f64()))
    };
    println!("    {name:<18} p50 {:>9}  p99 {:>9}  most {:>9}", show(50), show(99), show(100));
}

fn calls(values: impl Iterator<Item = u32>) {
    let mut values: Vec<u32> = values.collect();
    values.sort_unstable();
    let show = |share| percentile(&values, share).unwrap_or_default();
    println!(
        "    EC2 calls a heal   p50 {:>9}  p99 {:>9}  most {:>9}",
        show(50),
        show(99),
        show(100)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_value_of_its_rank() {
        let values: Vec<u32> = (1..=200).collect();
        assert_eq!(
            [50, 99, 100].map(|share| percentile(&values, share)),
            [Some(100), Some(198), Some(200)]
        );
        assert_eq!(percentile(&[7], 50), Some(7));
        assert_eq!(percentile::<u32>(&[], 50), None);
    }
}
