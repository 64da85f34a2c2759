//! Waiting for a state: polled until it is there or a deadline has passed; never a bare sleep.

use crate::{Error, Result};
use std::fmt::Display;
use std::time::Duration;

/// Asks `look` until it returns `Ok(value)`, at most `within`; its last refusal is in the error.
pub async fn eventually<T, E, F>(what: &str, within: Duration, mut look: F) -> Result<T>
where
    F: AsyncFnMut() -> std::result::Result<T, E>,
    E: Display,
{
    let deadline = tokio::time::Instant::now() + within;
    let mut pause = Duration::from_millis(20);
    loop {
        let last = match look().await {
            Ok(value) => return Ok(value),
            Err(last) => last,
        };
        if tokio::time::Instant::now() >= deadline {
            return Err(Error::say(format!("not within {within:?}: {what}; last seen: {last}")));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(250));
    }
}

/// Asks `look` for the whole of `during`; the first refusal is the error. For what must *not* happen.
pub async fn throughout<E, F>(what: &str, during: Duration, mut look: F) -> Result<()>
where
    F: AsyncFnMut() -> std::result::Result<(), E>,
    E: Display,
{
    let end = tokio::time::Instant::now() + during;
    loop {
        if let Err(seen) = look().await {
            return Err(Error::say(format!("did not hold: {what}; seen: {seen}")));
        }
        if tokio::time::Instant::now() >= end {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
