//! Explores every world with all rules in force, then takes rules out one row at a time, and prints what was found.
//!
//! Arguments name the worlds to be explored; without, all are. Fails if a rule of the world is broken, a goal is not
//! reached, a removed rule is not missed, or a lock stands in no row.

use std::collections::BTreeSet;
use std::process::ExitCode;

use trunkline_core::lock::{self, Lock};
use trunkline_model::check::{Outcome, explore};
use trunkline_model::table::{REMAINS, ROWS};
use trunkline_model::world::{Move, Setup};
use trunkline_model::worlds;

fn trace(moves: &[Move]) -> String {
    let one = |m: &Move| format!("{:?}({})", m.0, m.1);
    moves.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn seconds(outcome: &Outcome) -> String {
    format!("{:.1} s", outcome.took.as_secs_f32())
}

/// Worlds with all rules in force.
fn worlds_hold(wanted: &dyn Fn(&Setup) -> bool) -> (u32, usize) {
    println!("{:<10} {:>8} {:>6} {:>9}  about", "world", "states", "depth", "time");
    let (mut failed, mut states) = (0, 0);
    lock::remove(&[]);
    for setup in worlds::ALL.iter().copied().filter(|setup| wanted(setup)) {
        let found = explore(setup, true);
        states += found.states;
        let time = seconds(&found);
        println!(
            "{:<10} {:>8} {:>6} {time:>9}  {}",
            setup.name, found.states, found.depth, setup.about
        );
        for (rule, moves) in &found.broken {
            failed += 1;
            println!("  BROKEN {rule}: {}", trace(moves));
        }
        for goal in &found.missed {
            failed += 1;
            println!("  NEVER REACHED {goal}");
        }
    }
    (failed, states)
}

/// Rules taken out.
fn locks_are_missed(wanted: &dyn Fn(&Setup) -> bool) -> u32 {
    println!(
        "\n{:<10} {:>8} {:>6} {:>9}  {:<24} mistake: rules taken out",
        "world", "states", "moves", "time", "broken"
    );
    let mut failed = 0;
    for row in ROWS.iter().filter(|row| wanted(row.world)) {
        lock::remove(row.locks);
        let found = explore(row.world, false);
        let names = row.locks.iter().map(|l| l.name()).collect::<Vec<_>>().join(" + ");
        let first = found.broken.iter().min_by_key(|(_, moves)| moves.len());
        let (broken, moves) = first.map_or(("NOT FOUND", 0), |(rule, moves)| (*rule, moves.len()));
        failed += u32::from(first.is_none());
        let (states, time) = (found.states, seconds(&found));
        println!(
            "{:<10} {states:>8} {moves:>6} {time:>9}  {broken:<24} {}: {names}",
            row.world.name, row.mistake
        );
    }
    lock::remove(&[]);
    failed
}

/// What remains.
fn rest_is_shown(wanted: &dyn Fn(&Setup) -> bool) -> u32 {
    println!("\nwhat no local evidence can close, found with every rule in force:");
    let mut failed = 0;
    for setup in REMAINS.iter().copied().filter(|setup| wanted(setup)) {
        let found = explore(setup, false);
        match found.broken.iter().min_by_key(|(_, moves)| moves.len()) {
            Some((rule, moves)) => {
                println!("{:<10} {} ({rule} after {} moves)", setup.name, setup.about, moves.len());
                println!("           {}", trace(moves));
            }
            None => {
                failed += 1;
                println!(
                    "{:<10} NOT FOUND: the documentation of what remains is wrong",
                    setup.name
                );
            }
        }
    }
    failed
}

fn main() -> ExitCode {
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |setup: &Setup| asked.is_empty() || asked.iter().any(|name| name == setup.name);
    let (broken, states) = worlds_hold(&wanted);
    let missed = locks_are_missed(&wanted);
    let shown = rest_is_shown(&wanted);
    let covered: BTreeSet<Lock> = ROWS.iter().flat_map(|row| row.locks).copied().collect();
    let bare: Vec<_> = Lock::ALL.iter().filter(|lock| !covered.contains(lock)).collect();
    println!(
        "\n{states} states; {} of {} mistakes found; {} rules can be taken out; locks without a row: {bare:?}",
        ROWS.iter().filter(|row| wanted(row.world)).count() - usize::try_from(missed).unwrap_or(0),
        ROWS.iter().filter(|row| wanted(row.world)).count(),
        Lock::ALL.len(),
    );
    if broken + missed + shown == 0 && bare.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
