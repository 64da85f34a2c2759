//! Full-jitter back-off whose owner decides what counts as progress.
//!
//! `backon`'s retries wrap one call; here the attempts of several requests share one back-off (a list, then a watch,
//! then a list again), and only an event or a bookmark may reset it: a server that answers lists and then refuses
//! watches must not be asked in a tight loop (`kube.md` §1.5).

use std::time::Duration;

/// Delays `rand(0, min(cap, base·2^n))`.
#[derive(Debug, Clone)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
    attempts: u32,
}

impl Backoff {
    /// A back-off that has seen no failure.
    pub fn new(base: Duration, cap: Duration) -> Self {
        Self { base, cap, attempts: 0 }
    }

    /// The next delay; counts one more attempt.
    pub fn next_delay(&mut self) -> Duration {
        let bound = self.base.saturating_mul(2u32.saturating_pow(self.attempts)).min(self.cap);
        self.attempts = self.attempts.saturating_add(1);
        jitter(bound)
    }

    /// Progress was made.
    pub fn reset(&mut self) {
        self.attempts = 0;
    }
}

/// A random duration from zero to `bound`, in milliseconds.
pub fn jitter(bound: Duration) -> Duration {
    let millis = u64::try_from(bound.as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(crate::random::within(0..=millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_stay_below_the_doubling_bound_and_the_cap() {
        let mut backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(30));
        for n in 0..70u32 {
            let bound = Duration::from_millis(500).saturating_mul(2u32.saturating_pow(n));
            assert!(backoff.next_delay() <= bound.min(Duration::from_secs(30)));
        }
        backoff.reset();
        assert!(backoff.next_delay() <= Duration::from_millis(500));
    }
}
