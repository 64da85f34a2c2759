//! Epochs: the number that every term of leadership shows, and that agents refuse to see go down (design §5).
//!
//! Kept in the ConfigMap `trunkline-state` beside `mode` and `fuse`. Each term takes one above the largest of the stored
//! value, the Lease's transitions and any epoch an agent reports; so a deleted Lease or a deleted ConfigMap does not
//! bring an old epoch back. Every write is a PUT with the resourceVersion that was read, and asks the term's deadline
//! first. A stored epoch that cannot be read is an error, never "zero". A reported epoch more than 2^20 above the rest
//! is refused: one broken agent must not use the numbers up.

#[cfg(test)]
mod tests;

use http::Method;
use serde_json::{Value, json};
use trunkline_core::id::Epoch;

use crate::api::{Api, ApiError};
use crate::clock::Clock;
use crate::lease::Term;

/// Name of the ConfigMap.
pub const STATE_CONFIGMAP: &str = "trunkline-state";
/// Largest accepted step above what is known otherwise.
pub const LARGEST_JUMP: u64 = 1 << 20;
const ATTEMPTS: usize = 10;

/// What `trunkline-state` holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct State {
    /// The last epoch taken; 0 if none.
    pub epoch: Epoch,
    /// Operating mode, as written; `None` if unset.
    pub mode: Option<String>,
    /// Fuse state, as written; `None` if unset.
    pub fuse: Option<String>,
}

/// Why the state could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum EpochError {
    /// The API server did not answer usably.
    #[error("failed to read or write the ConfigMap {STATE_CONFIGMAP}")]
    Api(#[from] ApiError),
    /// The stored epoch is not a number.
    #[error(
        "the epoch in ConfigMap {STATE_CONFIGMAP} is '{0}', not a number: a person must correct it"
    )]
    Unreadable(String),
    /// The term ended meanwhile.
    #[error("the term ended before the ConfigMap {STATE_CONFIGMAP} was written")]
    TermOver,
    /// A reported epoch is too far above everything else.
    #[error("an agent reports epoch {reported}, more than {LARGEST_JUMP} above {known}; refused")]
    Jump {
        /// Reported.
        reported: Epoch,
        /// The largest otherwise known.
        known: Epoch,
    },
    /// Others wrote every time.
    #[error(
        "failed to write the ConfigMap {STATE_CONFIGMAP}: somebody else wrote each time, {ATTEMPTS} times in a row"
    )]
    Contended,
}

/// The ConfigMap `trunkline-state` in one namespace.
#[derive(Debug, Clone)]
pub struct StateStore {
    api: Api,
    namespace: String,
    clock: Clock,
}

impl StateStore {
    /// In this namespace.
    pub fn new(api: Api, namespace: &str, clock: Clock) -> Self {
        Self { api, namespace: namespace.into(), clock }
    }

    /// Reads the state; the default if the ConfigMap does not exist.
    pub async fn read(&self) -> Result<State, EpochError> {
        match self.fetch().await? {
            Some(object) => parse(&object),
            None => Ok(State::default()),
        }
    }

    /// Takes the epoch of a new term: one above the largest of the stored value, the Lease's transitions and
    /// `reported` (the highest epoch that any agent has shown).
    pub async fn take(&self, term: &Term, reported: Option<Epoch>) -> Result<Epoch, EpochError> {
        self.begin(term, reported).await.map(|state| state.epoch)
    }

    /// Takes the epoch of a new term, and tells what else is stored: read and written with one resourceVersion, so that
    /// nothing of an earlier term comes in between.
    pub async fn begin(&self, term: &Term, reported: Option<Epoch>) -> Result<State, EpochError> {
        self.update(term, |state| {
            state.epoch = next_epoch(state.epoch, term.transitions, reported)?;
            Ok(state.clone())
        })
        .await
    }

    /// Stores a changed state. `change` may be called several times, each time on a fresh reading; an epoch that it
    /// lowers is refused by keeping the stored one.
    pub async fn update<T>(
        &self,
        term: &Term,
        mut change: impl FnMut(&mut State) -> Result<T, EpochError>,
    ) -> Result<T, EpochError> {
        for _ in 0..ATTEMPTS {
            let found = self.fetch().await?;
            let mut state = found.as_ref().map(parse).transpose()?.unwrap_or_default();
            let floor = state.epoch;
            let result = change(&mut state)?;
            state.epoch = state.epoch.max(floor);
            if term.deadline.expired(self.clock.now()) {
                return Err(EpochError::TermOver);
            }
            let (method, path) = match found {
                Some(_) => (Method::PUT, self.object_path()),
                None => (Method::POST, self.collection_path()),
            };
            let object = render(found, &state, &self.namespace);
            match self.api.write::<Value>(method, &path, &object).await {
                Ok(_) if term.deadline.expired(self.clock.now()) => {
                    return Err(EpochError::TermOver);
                }
                Ok(_) => return Ok(result),
                // Somebody wrote in between, or the answer was lost: read again. A number that was taken in vain is
                // skipped, which is harmless.
                Err(error) if error.is_conflict() || error.is_maybe_written() => {
                    tracing::info!(%error, "the ConfigMap {STATE_CONFIGMAP} is read again");
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(EpochError::Contended)
    }

    async fn fetch(&self) -> Result<Option<Value>, EpochError> {
        match self.api.get::<Value>(&self.object_path()).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found("configmaps", STATE_CONFIGMAP) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn collection_path(&self) -> String {
        format!("/api/v1/namespaces/{}/configmaps", self.namespace)
    }

    fn object_path(&self) -> String {
        format!("{}/{STATE_CONFIGMAP}", self.collection_path())
    }
}

/// One above the largest of the three; a report too far above the others is refused.
pub fn next_epoch(
    stored: Epoch,
    transitions: u64,
    reported: Option<Epoch>,
) -> Result<Epoch, EpochError> {
    let known = Epoch(stored.0.max(transitions));
    let highest = match reported {
        Some(reported) if reported.0 > known.0.saturating_add(LARGEST_JUMP) => {
            return Err(EpochError::Jump { reported, known });
        }
        Some(reported) => known.max(reported),
        None => known,
    };
    Ok(Epoch(highest.0.saturating_add(1)))
}

fn parse(object: &Value) -> Result<State, EpochError> {
    let text = |key: &str| {
        object.pointer(&format!("/data/{key}")).and_then(Value::as_str).map(str::to_owned)
    };
    let epoch = match text("epoch") {
        None => Epoch(0),
        Some(text) => Epoch(text.trim().parse().map_err(|_| EpochError::Unreadable(text))?),
    };
    Ok(State { epoch, mode: text("mode"), fuse: text("fuse") })
}

/// The object with the state put in; everything else in it stays.
fn render(found: Option<Value>, state: &State, namespace: &str) -> Value {
    let mut object = found.unwrap_or_else(|| {
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": STATE_CONFIGMAP, "namespace": namespace},
        })
    });
    let mut data = object.get("data").and_then(Value::as_object).cloned().unwrap_or_default();
    data.insert("epoch".into(), json!(state.epoch.to_string()));
    for (key, value) in [("mode", &state.mode), ("fuse", &state.fuse)] {
        match value {
            Some(value) => data.insert(key.into(), json!(value)),
            None => data.remove(key),
        };
    }
    if let Some(map) = object.as_object_mut() {
        map.insert("data".into(), Value::Object(data));
    }
    object
}
