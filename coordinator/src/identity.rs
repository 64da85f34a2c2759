//! Which node an agent speaks for (`kube.md` §4).
//!
//! The only proof is a token that the API server issued to a pod of the agent's ServiceAccount, for our private audience,
//! bound to a pod on that node. Everything else an agent says about its identity is compared with it.
//!
//! Reviews are cached by the SHA-256 of the token: a success for a minute at most (and never beyond the token's expiry), a
//! refusal for five seconds. Concurrent reviews of one token share one request, and few are in flight at a time, so that
//! 15,000 agents that reconnect do not flood the API server. An unanswered review is not cached and refuses nobody for
//! good: the agent is told to come again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::Instant;
use trunkline_core::id::{Namespace, NodeName, NodeUid, PodName, PodUid};
use trunkline_kit::clock::Clock;

use crate::api::Api;
use crate::api::access::{Reviewed, review_token};

/// Audience of agents' and callers' tokens (design §8).
pub const AUDIENCE: &str = "trunkline";

const EXTRA: &str = "authentication.kubernetes.io/";
const CACHE_GOOD: Duration = Duration::from_secs(60);
const CACHE_BAD: Duration = Duration::from_secs(5);
const IN_FLIGHT: usize = 32;
/// Entries beyond which expired ones are swept out.
const SWEEP_AT: usize = 4_096;

/// A verified agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agent {
    /// Node the token is bound to.
    pub node: NodeName,
    /// UID of that Node object when the token was issued; `None` if there was none.
    pub node_uid: Option<NodeUid>,
    /// Namespace of the agent's pod.
    pub namespace: Namespace,
    /// Name of the agent's pod.
    pub pod: PodName,
    /// UID of the agent's pod.
    pub pod_uid: PodUid,
    /// When the token expires, seconds since the Unix epoch.
    pub expires: i64,
}

/// Why a token proves nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// No bearer token.
    #[error("no bearer token was sent")]
    Missing,
    /// The API server says no.
    #[error("the API server does not accept the token for audience '{AUDIENCE}': {0}")]
    NotAuthenticated(String),
    /// The authenticator knows nothing of audiences.
    #[error("the token is not for audience '{AUDIENCE}'")]
    OtherAudience,
    /// Another account.
    #[error("the token is of '{found}', not of '{expected}'")]
    OtherAccount {
        /// The token's user.
        found: String,
        /// The agents' account.
        expected: String,
    },
    /// Not bound to a pod on a node.
    #[error("the token is not bound to {0}; agents need a projected token of their pod")]
    NotBound(&'static str),
    /// No expiry.
    #[error("the token's expiry cannot be read")]
    NoExpiry,
    /// Expired.
    #[error("the token has expired")]
    Expired,
    /// The API server did not answer; says nothing about the token.
    #[error("the token could not be reviewed: {0}")]
    Unanswered(String),
}

impl Denied {
    /// Whether it only means "come again".
    pub fn is_temporary(&self) -> bool {
        matches!(self, Self::Unanswered(_))
    }
}

type Verdict = Result<Agent, Denied>;

struct Entry {
    cell: Arc<OnceCell<Verdict>>,
    until: Instant,
}

/// Verifies agents.
pub struct Verifier {
    api: Api,
    clock: Clock,
    account: String,
    cache: Mutex<HashMap<[u8; 32], Entry>>,
    in_flight: Semaphore,
}

impl Verifier {
    /// `namespace` and `account` name the agents' ServiceAccount.
    pub fn new(api: Api, clock: Clock, namespace: &str, account: &str) -> Self {
        Self {
            api,
            clock,
            account: format!("system:serviceaccount:{namespace}:{account}"),
            cache: Mutex::new(HashMap::new()),
            in_flight: Semaphore::new(IN_FLIGHT),
        }
    }

    /// Verifies a token.
    pub async fn verify(&self, token: &str) -> Verdict {
        if token.is_empty() {
            return Err(Denied::Missing);
        }
        let key: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let cell = self.cell(key);
        let verdict = cell.get_or_init(|| self.review(token)).await.clone();
        match &verdict {
            Err(e) if e.is_temporary() => self.forget(key),
            Err(_) => self.keep(key, CACHE_BAD),
            Ok(agent) => {
                let left = seconds_left(self.clock, agent.expires);
                if left.is_zero() {
                    self.forget(key);
                    return Err(Denied::Expired);
                }
                self.keep(key, CACHE_GOOD.min(left));
            }
        }
        verdict
    }

    fn cell(&self, key: [u8; 32]) -> Arc<OnceCell<Verdict>> {
        let now = Instant::now();
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= SWEEP_AT {
            cache.retain(|_, e| e.until > now);
        }
        let fresh = || Entry { cell: Arc::default(), until: now + CACHE_GOOD };
        let entry = cache.entry(key).or_insert_with(fresh);
        if entry.until <= now {
            *entry = fresh();
        }
        entry.cell.clone()
    }

    /// Shortens an entry's life; never lengthens it, so that a revoked token is asked for again within a minute.
    fn keep(&self, key: [u8; 32], life: Duration) {
        let until = Instant::now() + life;
        if let Some(entry) = self.cache.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&key)
        {
            entry.until = entry.until.min(until);
        }
    }

    fn forget(&self, key: [u8; 32]) {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
    }

    async fn review(&self, token: &str) -> Verdict {
        let Ok(_permit) = self.in_flight.acquire().await else {
            return Err(Denied::Unanswered("shutting down".into()));
        };
        let reviewed = review_token(&self.api, token, Some(AUDIENCE))
            .await
            .map_err(|e| Denied::Unanswered(e.to_string()))?;
        judge(&reviewed, &self.account, token)
    }
}

/// Checks 1 to 4 and 6 of `kube.md` §4; 5 and 7 need the node's books.
fn judge(reviewed: &Reviewed, account: &str, token: &str) -> Verdict {
    if !reviewed.authenticated {
        return Err(Denied::NotAuthenticated(reviewed.error.clone()));
    }
    if !reviewed.audiences.iter().any(|a| a == AUDIENCE) {
        return Err(Denied::OtherAudience);
    }
    if reviewed.username != account {
        return Err(Denied::OtherAccount {
            found: reviewed.username.clone(),
            expected: account.to_owned(),
        });
    }
    let extra = |key: &str| reviewed.only(&format!("{EXTRA}{key}"));
    let namespace = account.split(':').nth(2).unwrap_or_default();
    let node_uid = match reviewed.extra.get(&format!("{EXTRA}node-uid")) {
        None => None,
        Some(_) => Some(
            extra("node-uid")
                .and_then(|t| t.parse().ok())
                .ok_or(Denied::NotBound("one node UID"))?,
        ),
    };
    Ok(Agent {
        node: extra("node-name").and_then(|t| t.parse().ok()).ok_or(Denied::NotBound("a node"))?,
        node_uid,
        namespace: namespace.parse().map_err(|_| Denied::NotBound("a namespace"))?,
        pod: extra("pod-name").and_then(|t| t.parse().ok()).ok_or(Denied::NotBound("a pod"))?,
        pod_uid: extra("pod-uid")
            .and_then(|t| t.parse().ok())
            .ok_or(Denied::NotBound("a pod UID"))?,
        expires: expiry(token).ok_or(Denied::NoExpiry)?,
    })
}

/// `exp` of a JWT that the API server has already verified.
fn expiry(token: &str) -> Option<i64> {
    #[derive(Deserialize)]
    struct Claims {
        exp: i64,
    }
    let payload = token.split('.').nth(1)?;
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(payload).ok()?;
    serde_json::from_slice::<Claims>(&bytes).ok().map(|c| c.exp)
}

/// How long until a wall-clock second; zero if it has passed.
pub fn seconds_left(clock: Clock, expires: i64) -> Duration {
    let left = expires.saturating_sub(clock.unix_seconds());
    Duration::from_secs(u64::try_from(left).unwrap_or_default())
}

/// The token of an `authorization: Bearer` header.
pub fn bearer(metadata: &tonic::metadata::MetadataMap) -> &str {
    metadata
        .get("authorization")
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.strip_prefix("Bearer ").or_else(|| v.strip_prefix("bearer ")))
        .map_or("", str::trim)
}

#[cfg(test)]
mod tests;
