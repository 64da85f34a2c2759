//! The invariants I1 to I6, judged after every black-box run (`scenarios.md` §1).
//!
//! The evidence is EC2's call log with its effects, EC2's state, the API server's pods, events and policies, the recorded
//! pod history and the node simulator's record. I6 ("unknown is never absent") has no check of its own: whatever answer
//! was cut, late, old or refused, a release that follows from it is a release of a pod that can still run, which I1 finds.

pub mod annotation;
pub mod budget;
pub mod evidence;
pub mod groups;
pub mod inventory;
pub mod release;
pub mod vlan;

pub use evidence::{Evidence, Rules};

use std::fmt;

/// One broken promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// `I1` … `I5`, or the rule's id.
    pub rule: &'static str,
    /// What was seen.
    pub seen: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.seen)
    }
}

impl Violation {
    fn new(rule: &'static str, seen: impl Into<String>) -> Self {
        Self { rule, seen: seen.into() }
    }
}

/// What must hold at every moment, whatever is still going on.
pub fn always(evidence: &Evidence) -> Vec<Violation> {
    let mut found = release::check(evidence);
    found.extend(vlan::check(evidence));
    found.extend(inventory::foreign_untouched(evidence));
    found.extend(inventory::one_eni_for_one_pod(evidence));
    found.extend(budget::check(evidence));
    found
}

/// What must hold once the faults have stopped and the bound has passed.
pub fn at_rest(evidence: &Evidence) -> Vec<Violation> {
    let mut found = inventory::every_eni_has_an_owner(evidence);
    found.extend(annotation::check(evidence));
    found
}
