//! Client tokens (`ec2.md` §6, rows 8 and 9 of §13): scope is account, Region (there is one) and action.

use std::collections::BTreeMap;

use super::super::error::ApiError;
use super::super::fault::FaultKind;
use super::{Call, World};

/// What the first call with a token did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Made this ENI or association.
    Made(String),
    /// Removed an association.
    Removed,
}

#[derive(Debug)]
struct Entry {
    fingerprint: String,
    until: u64,
    outcome: Outcome,
}

#[derive(Debug, Default)]
pub(super) struct Tokens(BTreeMap<(String, String, String), Entry>);

fn key(call: &Call<'_>, token: &str) -> (String, String, String) {
    (call.account.to_owned(), call.action.to_owned(), token.to_owned())
}

impl World {
    /// What an earlier call with the same token and the same parameters did.
    pub(crate) fn replayed(&self, call: &mut Call<'_>) -> Result<Option<Outcome>, ApiError> {
        let Some(token) = call.params.text("ClientToken") else {
            return Ok(None);
        };
        if token.is_empty() || token.len() > 64 || !token.is_ascii() {
            return Err(ApiError::value(
                "Invalid client token: at most 64 ASCII characters are allowed",
            ));
        }
        if call.fired.kinds().any(|kind| *kind == FaultKind::ForgetToken) {
            return Ok(None);
        }
        let Some(entry) = self.tokens.0.get(&key(call, token)).filter(|e| e.until > self.now)
        else {
            return Ok(None);
        };
        if entry.fingerprint != call.params.fingerprint() {
            return Err(ApiError::mismatch());
        }
        call.replay = true;
        Ok(Some(entry.outcome.clone()))
    }

    /// Remembers what a call with a token did.
    pub(crate) fn remember(&mut self, call: &Call<'_>, outcome: Outcome) {
        let Some(token) = call.params.text("ClientToken") else {
            return;
        };
        if call.fired.kinds().any(|kind| *kind == FaultKind::ForgetToken) {
            return;
        }
        let entry = Entry {
            fingerprint: call.params.fingerprint(),
            until: self.now + self.switches.token_ms,
            outcome,
        };
        self.tokens.0.insert(key(call, token), entry);
    }
}
