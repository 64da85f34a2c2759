//! Pace: releases whose `PodGone` came from a `Suspect`, that is, which no watch event announced, go on at a limited rate
//! (design §4.5). Ordinary drains are announced by DELETED events and are not slowed.

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::Moment;

/// A sliding window over grants.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pace {
    floor: usize,
    per_cent: usize,
    window: Duration,
    granted: VecDeque<Moment>,
}

impl Pace {
    /// Of one node: max(5, 20 % of its branches) in a window.
    pub fn of_node(window: Duration) -> Self {
        Self { floor: 5, per_cent: 20, window, granted: VecDeque::new() }
    }

    /// Of the cluster: max(20, 2 % of its branches) in a window.
    pub fn of_cluster(window: Duration) -> Self {
        Self { floor: 20, per_cent: 2, window, granted: VecDeque::new() }
    }

    /// Evictions of pods that cannot be healed, in the cluster: max(5, 1 % of its branches) in a window.
    pub fn of_evictions(window: Duration) -> Self {
        Self { floor: 5, per_cent: 1, window, granted: VecDeque::new() }
    }

    /// Takes a place, or says when the next one is free.
    pub fn take(&mut self, branches: usize, now: Moment) -> Result<(), Moment> {
        while self.granted.front().is_some_and(|at| now.has_passed(*at, self.window)) {
            self.granted.pop_front();
        }
        let limit = self.floor.max(branches * self.per_cent / 100);
        match self.granted.front() {
            Some(oldest) if self.granted.len() >= limit => Err(oldest.plus(self.window)),
            _ => {
                self.granted.push_back(now);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_node_releases_five_a_window_and_then_waits_for_the_oldest() {
        let mut pace = Pace::of_node(Duration::from_secs(60));
        for i in 0..5 {
            assert_eq!(pace.take(10, Moment(i * 1000)), Ok(()));
        }
        assert_eq!(pace.take(10, Moment(5000)), Err(Moment(60_000)));
        assert_eq!(pace.take(10, Moment(60_000)), Ok(()));
    }

    #[test]
    fn a_large_node_releases_a_share_of_its_branches() {
        let mut pace = Pace::of_node(Duration::from_secs(60));
        let granted = (0..100).filter(|_| pace.take(100, Moment(0)).is_ok()).count();
        assert_eq!(granted, 20);
    }
}
