//! The queue in front of one operation: [`trunkline_core::bucket`] with tokio's clock.
//!
//! A waiter that is dropped (its caller gave up) leaves the queue. After every change of the queue all waiters look
//! again; only the first of them then sleeps for a token.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use trunkline_core::bucket::{Bucket, Level, Priority, Ticket, Turn};
use trunkline_core::time::Moment;

use crate::action::Action;
use crate::metrics::Metrics;

/// One operation's queue.
#[derive(Debug)]
pub(crate) struct Lane {
    action: Action,
    /// `None`: calls are not held back.
    bucket: Option<Mutex<Bucket>>,
    changed: Notify,
    origin: Instant,
    metrics: Metrics,
}

impl Lane {
    pub(crate) fn new(action: Action, budget: bool, metrics: Metrics) -> Arc<Self> {
        Arc::new(Self {
            action,
            bucket: budget.then(|| Mutex::new(Bucket::new(action.limit(), Moment(0)))),
            changed: Notify::new(),
            origin: Instant::now(),
            metrics,
        })
    }

    /// Waits for a token and returns how long that took.
    pub(crate) async fn wait(&self, priority: Priority) -> Duration {
        let Some(bucket) = &self.bucket else {
            return Duration::ZERO;
        };
        let began = Instant::now();
        let mut place = Place { lane: self, ticket: Some(lock(bucket).enter(priority)) };
        self.metrics.waits(self.action, 1);
        while let Some(ticket) = place.ticket {
            let changed = self.changed.notified();
            let turn = lock(bucket).take(ticket, self.now());
            match turn {
                Turn::Granted => place.ticket = None,
                Turn::WaitUntil(at) => {
                    let until = self.origin + Duration::from_millis(at.0);
                    tokio::select! {
                        () = tokio::time::sleep_until(until) => {}
                        () = changed => {}
                    }
                }
                Turn::Behind => changed.await,
            }
        }
        began.elapsed()
    }

    /// An attempt that did not wait (a retry inside the SDK) was sent.
    pub(crate) fn charge(&self) {
        if let Some(bucket) = &self.bucket {
            lock(bucket).charge(self.now());
        }
    }

    /// EC2 refused an attempt for its rate.
    pub(crate) fn throttled(&self) {
        self.metrics.throttled(self.action);
        if let Some(bucket) = &self.bucket {
            lock(bucket).on_throttle(self.now());
        }
    }

    /// The bucket as it is now; `None` where calls are not held back.
    pub(crate) fn level(&self) -> Option<Level> {
        self.bucket.as_ref().map(|bucket| lock(bucket).show(self.now()))
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub(crate) fn action(&self) -> Action {
        self.action
    }

    fn now(&self) -> Moment {
        Moment(0).plus(self.origin.elapsed())
    }
}

/// A place in the queue, given up on drop.
struct Place<'a> {
    lane: &'a Lane,
    ticket: Option<Ticket>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let (Some(ticket), Some(bucket)) = (self.ticket, &self.lane.bucket) {
            lock(bucket).leave(ticket);
        }
        self.lane.metrics.waits(self.lane.action, -1);
        self.lane.changed.notify_waiters();
    }
}

/// The books are numbers that are whole after every step, so a panic elsewhere does not spoil them.
fn lock(bucket: &Mutex<Bucket>) -> MutexGuard<'_, Bucket> {
    bucket.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(budget: bool) -> Arc<Lane> {
        let metrics = Metrics::register(&mut prometheus_client::registry::Registry::default());
        Lane::new(Action::AssociateTrunkInterface, budget, metrics)
    }

    #[tokio::test(start_paused = true)]
    async fn the_burst_passes_at_once_and_the_rest_at_95_percent_of_the_refill() {
        let lane = lane(true);
        let began = Instant::now();
        for _ in 0..49 {
            lane.wait(Priority::PodStart).await;
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
        for _ in 0..19 {
            lane.wait(Priority::PodStart).await;
        }
        let took = began.elapsed();
        assert!(
            (Duration::from_millis(3_990)..Duration::from_millis(4_030)).contains(&took),
            "{took:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_pod_start_overtakes_a_heal_and_a_dropped_waiter_blocks_nobody() {
        let lane = lane(true);
        for _ in 0..49 {
            lane.wait(Priority::PodStart).await;
        }
        let order = Arc::new(Mutex::new(Vec::new()));
        let waiter = |priority: Priority| {
            let (lane, order) = (Arc::clone(&lane), Arc::clone(&order));
            tokio::spawn(async move {
                lane.wait(priority).await;
                order.lock().unwrap().push(priority);
            })
        };
        let heal = waiter(Priority::Heal);
        let given_up = waiter(Priority::PodStart);
        tokio::task::yield_now().await;
        given_up.abort();
        let pod = waiter(Priority::PodStart);
        heal.await.unwrap();
        pod.await.unwrap();
        assert!(given_up.await.unwrap_err().is_cancelled());
        assert_eq!(*order.lock().unwrap(), [Priority::PodStart, Priority::Heal]);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_budget_nothing_waits() {
        let lane = lane(false);
        let began = Instant::now();
        for _ in 0..1_000 {
            lane.wait(Priority::Background).await;
        }
        lane.throttled();
        lane.charge();
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
