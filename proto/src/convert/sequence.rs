//! Numbered deltas: a hole is noticed, and mended by new snapshots only.
//!
//! Deltas of a stream are numbered from 1 over all kinds together. Heartbeats, snapshots and facts repeat the number of the
//! last delta before them, so that a lost last delta shows too. After a hole nothing that is already under way counts;
//! the next snapshot's begin says from which number on the count goes on.

use super::WireError;

/// The receiver's side of the count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeltaSequence {
    /// Number of the next delta; `None` after a hole.
    next: Option<u64>,
}

impl Default for DeltaSequence {
    fn default() -> Self {
        Self { next: Some(1) }
    }
}

impl DeltaSequence {
    /// Takes the number of a delta. `Ok(true)`: it is the next one. `Ok(false)`: there was a hole before, and it does not
    /// count. An error is a hole.
    pub fn delta(&mut self, seq: u64) -> Result<bool, WireError> {
        let Some(expected) = self.next else {
            return Ok(false);
        };
        self.compare("Delta", expected, seq)?;
        self.next = expected.checked_add(1);
        Ok(true)
    }

    /// Compares the number of the last delta that another message names. Says nothing after a hole.
    pub fn last(&mut self, message: &'static str, seq: u64) -> Result<(), WireError> {
        match self.next {
            Some(next) => self.compare(message, next - 1, seq),
            None => Ok(()),
        }
    }

    /// Takes the number of the last delta before a snapshot: after a hole the count goes on from there.
    pub fn begin(&mut self, seq: u64) -> Result<(), WireError> {
        if self.next.is_none() {
            self.next = seq.checked_add(1);
            return Ok(());
        }
        self.last("SnapshotBegin", seq)
    }

    /// Makes a hole: something that came was refused.
    pub fn break_off(&mut self) {
        self.next = None;
    }

    /// Whether there was a hole and no snapshot since.
    pub fn is_broken(&self) -> bool {
        self.next.is_none()
    }

    fn compare(
        &mut self,
        message: &'static str,
        expected: u64,
        found: u64,
    ) -> Result<(), WireError> {
        if expected == found {
            return Ok(());
        }
        self.break_off();
        Err(WireError::Hole { message, expected, found })
    }
}
