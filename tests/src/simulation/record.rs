//! What happened: a running digest by which two runs are compared, the last lines for a person, and the counts.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use trunkline_core::time::Moment;

/// Lines that are kept of a run that nobody reads along.
const KEPT: usize = 4_000;

/// The record of one run.
#[derive(Debug)]
pub struct Record {
    digest: DefaultHasher,
    lines: VecDeque<String>,
    limit: usize,
    counts: BTreeMap<&'static str, u64>,
    violation: Option<String>,
    reasons: Vec<String>,
}

impl Record {
    /// Empty. `whole`: every line is kept.
    pub fn new(whole: bool) -> Self {
        Self {
            // Its keys are fixed.
            digest: DefaultHasher::new(),
            lines: VecDeque::new(),
            limit: if whole { usize::MAX } else { KEPT },
            counts: BTreeMap::new(),
            violation: None,
            reasons: Vec::new(),
        }
    }

    /// Something happened.
    pub fn note(&mut self, at: Moment, line: &str) {
        (at.0, line).hash(&mut self.digest);
        if self.lines.len() >= self.limit {
            self.lines.pop_front();
        }
        let (seconds, millis) = (at.0 / 1_000, at.0 % 1_000);
        self.lines.push_back(format!("{seconds:>6}.{millis:03} {line}"));
    }

    /// Counts.
    pub fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// A promise was broken; the first one stays.
    pub fn broken(&mut self, at: Moment, what: String) {
        self.note(at, &format!("BROKEN {what}"));
        self.violation.get_or_insert(what);
    }

    /// What the product says of it.
    pub fn explained(&mut self, at: Moment, why: Vec<String>) {
        for line in &why {
            self.note(at, line);
        }
        self.reasons = why;
    }

    /// What the product said of a world that does not settle.
    pub fn reasons(&self) -> &[String] {
        &self.reasons
    }

    /// The first broken promise.
    pub fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    /// The same for the same seed.
    pub fn digest(&self) -> u64 {
        self.digest.finish()
    }

    /// The counts.
    pub fn counts(&self) -> &BTreeMap<&'static str, u64> {
        &self.counts
    }

    /// The lines, oldest first.
    pub fn lines(&self) -> impl Iterator<Item = &String> {
        self.lines.iter()
    }
}
