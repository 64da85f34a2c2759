//! Clients to other API servers than the one upstream, made on first use.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// How API servers are reached, and the clients made so far.
#[derive(Default)]
pub struct Replicas {
    ca: Option<PathBuf>,
    insecure: bool,
    clients: Mutex<BTreeMap<String, kube::Client>>,
}

impl Replicas {
    /// For servers whose certificates this authority signed.
    pub fn new(ca: Option<PathBuf>, insecure: bool) -> Self {
        Self { ca, insecure, clients: Mutex::default() }
    }

    /// A client without credentials of its own.
    pub fn connect(&self, upstream: http::Uri) -> Result<kube::Client, kube::Error> {
        let mut config = kube::Config::new(upstream);
        config.accept_invalid_certs = self.insecure;
        config.root_cert_file.clone_from(&self.ca);
        // What a client sees must be what the server said, not what a retry made of it.
        config.default_retry = false;
        config.connect_timeout = Some(std::time::Duration::from_secs(5));
        kube::Client::try_from(config)
    }

    /// The client for an address; `None` if the address is none.
    pub fn client(&self, url: &str) -> Option<kube::Client> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(url) {
            return Some(client.clone());
        }
        let made = url.parse().ok().and_then(|uri| self.connect(uri).ok());
        let Some(client) = made else {
            tracing::warn!(url, "no such API server; the usual one answers");
            return None;
        };
        clients.insert(url.to_owned(), client.clone());
        Some(client)
    }
}
