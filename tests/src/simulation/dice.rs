//! All chance of a run: one source, made from the seed.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// The source. Clones are the same source.
#[derive(Debug, Clone)]
pub struct Dice(Arc<Mutex<StdRng>>);

impl Dice {
    /// Everything it gives follows from the seed and from the order in which it is asked.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(StdRng::seed_from_u64(seed))))
    }

    fn with<T>(&self, draw: impl FnOnce(&mut StdRng) -> T) -> T {
        draw(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// True in this share of the cases. Asks the source only where chance has a say.
    pub fn chance(&self, share: f64) -> bool {
        share > 0.0 && self.with(|source| source.random_bool(share.min(1.0)))
    }

    /// A number of the range.
    pub fn below(&self, range: Range<u64>) -> u64 {
        if range.is_empty() { range.start } else { self.with(|source| source.random_range(range)) }
    }

    /// A duration of the range, in milliseconds.
    pub fn ms(&self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.below(range))
    }

    /// Mostly short, now and then long: each order of magnitude of the range is as likely as the next.
    pub fn long_tailed_ms(&self, range: Range<u64>) -> Duration {
        #[allow(clippy::cast_precision_loss, reason = "milliseconds of a run are far below 2^52")]
        let span = |ms: u64| (ms.max(1) as f64).ln();
        let exponent = self.with(|source| {
            source.random_range(span(range.start)..span(range.end).max(span(range.start) + 1e-9))
        });
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an exponent between the logarithms of two u64"
        )]
        Duration::from_millis(exponent.exp() as u64)
    }

    /// One of these; `None` if there are none.
    pub fn pick<T: Clone>(&self, items: &[T]) -> Option<T> {
        let index = self.below(0..u64::try_from(items.len()).unwrap_or_default());
        items.get(usize::try_from(index).ok()?).cloned()
    }
}
