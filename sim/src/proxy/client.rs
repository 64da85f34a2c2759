//! A client for the proxy's admin pages.

use super::model::{FaultSpec, FaultState, LogEntry};
use crate::rest::{Error, RestClient};

/// Talks to one proxy.
#[derive(Debug, Clone)]
pub struct ProxyClient(RestClient);

impl ProxyClient {
    /// A client for the address that the proxy printed.
    pub fn new(base: &str) -> Self {
        Self(RestClient::new(base))
    }

    /// Adds a fault; returns its id.
    pub async fn add(&self, fault: &FaultSpec) -> Result<u64, Error> {
        self.0.post("/_sim/faults", fault).await
    }

    /// Takes a fault away; says whether it was there.
    pub async fn remove(&self, id: u64) -> Result<bool, Error> {
        self.0.delete(&format!("/_sim/faults/{id}")).await
    }

    /// Takes all faults away.
    pub async fn clear(&self) -> Result<(), Error> {
        self.0.delete("/_sim/faults").await
    }

    /// All faults, with how often each struck.
    pub async fn faults(&self) -> Result<Vec<FaultState>, Error> {
        self.0.get("/_sim/faults").await
    }

    /// How often a fault struck; 0 if it is not there.
    pub async fn hits(&self, id: u64) -> Result<u64, Error> {
        Ok(self.faults().await?.iter().find(|f| f.id == id).map_or(0, |f| f.hits))
    }

    /// The log's lines with `seq >= from`.
    pub async fn log(&self, from: u64) -> Result<Vec<LogEntry>, Error> {
        self.0.get(&format!("/_sim/log?from={from}")).await
    }
}
