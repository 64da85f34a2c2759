//! The latest value of something, for many who wait for the next one.
//!
//! As `tokio::sync::watch`, with one difference: whoever waits is woken in the order of waiting. tokio spreads its waiters
//! at random over several lists, so that what hundreds of tasks do at one instant never comes twice in the same order, and
//! a simulation that fails could not be repeated. Used where a value has many waiters; `watch` does where it has one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

struct State<T> {
    value: T,
    version: u64,
    closed: bool,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    notify: Notify,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the value is set. Dropping it ends all waiting.
pub struct Source<T>(Arc<Shared<T>>);

/// Where it is seen. Each clone remembers for itself what it has seen.
pub struct Latest<T> {
    shared: Arc<Shared<T>>,
    seen: u64,
}

/// The source is gone: there will be no other value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there will be no other value")]
pub struct Closed;

/// A value and those who see it; the first value counts as seen.
pub fn latest<T>(value: T) -> (Source<T>, Latest<T>) {
    let state = Mutex::new(State { value, version: 0, closed: false });
    let shared = Arc::new(Shared { state, notify: Notify::new() });
    (Source(shared.clone()), Latest { shared, seen: 0 })
}

impl<T> Source<T> {
    /// Sets the value and wakes all who wait.
    pub fn set(&self, value: T) {
        let mut state = self.0.lock();
        state.value = value;
        state.version += 1;
        drop(state);
        self.0.notify.notify_waiters();
    }
}

impl<T> Drop for Source<T> {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.notify.notify_waiters();
    }
}

impl<T> Clone for Latest<T> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), seen: self.seen }
    }
}

impl<T: Clone> Latest<T> {
    /// The value; whether it was seen before stays as it is.
    pub fn get(&self) -> T {
        self.shared.lock().value.clone()
    }

    /// The value, seen from now on.
    pub fn see(&mut self) -> T {
        let state = self.shared.lock();
        self.seen = state.version;
        state.value.clone()
    }
}

impl<T> Latest<T> {
    /// Returns once there is a value that was not seen, which counts as seen then. Cancel safe.
    pub async fn changed(&mut self) -> Result<(), Closed> {
        loop {
            let notified = self.shared.notify.notified();
            tokio::pin!(notified);
            // From here on a change is not missed.
            notified.as_mut().enable();
            {
                let state = self.shared.lock();
                if state.version != self.seen {
                    self.seen = state.version;
                    return Ok(());
                }
                if state.closed {
                    return Err(Closed);
                }
            }
            notified.await;
        }
    }

    /// The value counts as not seen.
    pub fn unsee(&mut self) {
        self.seen = self.shared.lock().version.wrapping_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_who_wait_are_woken_in_their_order_and_the_end_is_told() {
        let (source, latest) = latest(0);
        let order: Arc<Mutex<Vec<u32>>> = Arc::default();
        let mut waiting = Vec::new();
        for n in 0..20 {
            let (mut seen, order) = (latest.clone(), order.clone());
            waiting.push(tokio::spawn(async move {
                while seen.changed().await.is_ok() {
                    order.lock().unwrap().push(n);
                }
            }));
        }
        for value in 1..=2 {
            tokio::task::yield_now().await;
            source.set(value);
            tokio::task::yield_now().await;
        }
        drop(source);
        for task in waiting {
            task.await.unwrap();
        }
        let twice: Vec<u32> = (0..20).chain(0..20).collect();
        assert_eq!(*order.lock().unwrap(), twice);
    }

    #[tokio::test]
    async fn a_value_set_before_anybody_waits_is_not_missed() {
        let (source, mut seen) = latest("a");
        source.set("b");
        assert_eq!(seen.changed().await, Ok(()));
        assert_eq!(seen.see(), "b");
        seen.unsee();
        assert_eq!(seen.changed().await, Ok(()));
        drop(source);
        assert_eq!(seen.changed().await, Err(Closed));
        assert_eq!(seen.get(), "b");
    }
}
