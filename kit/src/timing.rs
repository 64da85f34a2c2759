//! Shorter durations for tests and the demo, in builds that say so.
//!
//! `TRUNKLINE_TIMING=cooldown_default=2s,slow_release=5s` names fields of [`Timing`]. Only a build with the cargo
//! feature `test-timing` reads it: every one of these durations is part of a safety rule. Other builds warn and keep
//! the defaults.

use trunkline_core::time::Timing;

use crate::config::{Env, Problems};

/// The variable.
pub const VARIABLE: &str = "TRUNKLINE_TIMING";

/// The durations in force and a warning to log once the log is up. Bad fields are settings mistakes.
pub fn load(env: Env<'_>, problems: &mut Problems) -> (Timing, Option<String>) {
    let timing = Timing::default();
    match env(VARIABLE).filter(|text| !text.is_empty()) {
        None => (timing, None),
        Some(text) if cfg!(feature = "test-timing") => (
            read(timing, &text, problems),
            Some(format!("test build: durations of safety rules are changed by {VARIABLE}={text}")),
        ),
        Some(_) => {
            (timing, Some(format!("{VARIABLE} is ignored: this is not a test-timing build")))
        }
    }
}

/// Reads `field=duration,…`.
fn read(mut timing: Timing, text: &str, problems: &mut Problems) -> Timing {
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let Some((field, value)) = part.split_once('=') else {
            problems.add_other(format!("{VARIABLE}: '{part}' is not FIELD=DURATION"));
            continue;
        };
        match crate::config::duration(value.trim()) {
            Ok(value) if timing.set(field.trim(), value) => {}
            Ok(_) => problems.add_other(format!(
                "{VARIABLE}: '{field}' is not a duration's name; there are {}",
                Timing::FIELDS.join(", ")
            )),
            Err(error) => problems.add_other(format!("{VARIABLE}: {field}: {error}")),
        }
    }
    timing
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn fields_are_set_by_name_and_all_bad_ones_are_reported() {
        let mut problems = Problems::default();
        let timing = read(
            Timing::default(),
            "cooldown_default=2s, look_interval=250ms,nope=1s,repeat=x,y",
            &mut problems,
        );
        assert_eq!(timing.cooldown_default, Duration::from_secs(2));
        assert_eq!(timing.look_interval, Duration::from_millis(250));
        assert_eq!(problems.into_error().problems.len(), 3);
    }

    #[test]
    fn only_a_test_timing_build_obeys_the_variable() {
        let mut problems = Problems::default();
        let (timing, warning) = load(&|_| Some("repeat=1ms".into()), &mut problems);
        assert_eq!(timing.repeat == Duration::from_millis(1), cfg!(feature = "test-timing"));
        assert!(warning.unwrap().contains(VARIABLE));
        assert_eq!(load(&|_| None, &mut problems), (Timing::default(), None));
    }
}
