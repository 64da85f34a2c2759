//! The clock that rules are judged by.
//!
//! Evidence ages while a node is suspended, so every age is measured on `CLOCK_BOOTTIME`, which counts suspend;
//! `tokio::time` (`CLOCK_MONOTONIC`) does not. A sleep on tokio's timer alone would therefore end late by the length
//! of the suspend; [`Clock::sleep_until`] sleeps in slices and looks at the right clock after each, so that it is at
//! most one slice late. Being late is harmless for all users: whoever acts asks [`Clock::now`] again.
//!
//! Tests and simulations use [`Clock::virtual_time`], which follows tokio's (paused) time.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use trunkline_core::time::Moment;

/// Longest time that a sleep trusts tokio's timer.
const SLICE: Duration = Duration::from_secs(5);

/// Where the wall clock of virtual time begins: the first second of 2026.
const VIRTUAL_EPOCH: i64 = 1_767_225_600;

/// A source of [`Moment`]s. Cheap to clone; moments of clones are comparable.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Source);

#[derive(Debug, Clone, Copy)]
enum Source {
    Boot,
    Virtual(tokio::time::Instant),
}

impl Clock {
    /// `CLOCK_BOOTTIME`: the clock of the product.
    pub fn boot() -> Self {
        Self(Source::Boot)
    }

    /// A clock that follows `tokio::time`, paused or not. Starts at one hour, so that "long ago" can be expressed.
    pub fn virtual_time() -> Self {
        Self(Source::Virtual(tokio::time::Instant::now()))
    }

    /// Now.
    pub fn now(&self) -> Moment {
        match self.0 {
            Source::Boot => {
                let time = clock_gettime(ClockId::Boottime);
                let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
                let millis = u64::try_from(time.tv_nsec / 1_000_000).unwrap_or_default();
                Moment(seconds.saturating_mul(1000).saturating_add(millis))
            }
            Source::Virtual(origin) => Moment(3_600_000).plus(origin.elapsed()),
        }
    }

    /// The wall clock, in seconds since the Unix epoch: for what others date, such as the expiry of a token. Never for the
    /// age of evidence.
    pub fn unix_seconds(&self) -> i64 {
        match self.0 {
            Source::Boot => jiff::Timestamp::now().as_second(),
            Source::Virtual(origin) => VIRTUAL_EPOCH
                .saturating_add(i64::try_from(origin.elapsed().as_secs()).unwrap_or(i64::MAX)),
        }
    }

    /// Returns once [`Clock::now`] is at or after `at`.
    pub async fn sleep_until(&self, at: Moment) {
        loop {
            let left = at.since(self.now());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.min(SLICE)).await;
        }
    }

    /// Returns once `d` has passed on this clock.
    pub async fn sleep(&self, d: Duration) {
        self.sleep_until(self.now().plus(d)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_boot_clock_never_goes_back() {
        let clock = Clock::boot();
        let first = clock.now();
        clock.sleep(Duration::from_millis(5)).await;
        assert!(clock.now() >= first.plus(Duration::from_millis(5)));
    }

    #[tokio::test(start_paused = true)]
    async fn virtual_time_follows_the_paused_runtime() {
        let clock = Clock::virtual_time();
        let first = clock.now();
        clock.sleep(Duration::from_hours(1)).await;
        assert_eq!(clock.now().since(first), Duration::from_hours(1));
        assert_eq!(clock.unix_seconds(), VIRTUAL_EPOCH + 3_600);
    }
}
