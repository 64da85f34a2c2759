//! The client to the API server: `--kubeconfig`, else `KUBECONFIG`, else in-cluster.
//!
//! Its own retry is off, because it would hide 429, 503 and 504 for minutes (`kube.md` §1.2); waiting is bounded by
//! [`crate::api`]. Token files are read again by the client about once a minute, the in-cluster CA with each client.

use std::path::Path;
use std::time::Duration;

use http::{HeaderValue, header};
use kube::config::{Config, InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};

use crate::api::Api;

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum KubeClientError {
    /// `--kubeconfig` or `KUBECONFIG` cannot be used.
    #[error("failed to read the kubeconfig")]
    Kubeconfig(#[source] Box<KubeconfigError>),
    /// Neither a kubeconfig nor a pod's environment.
    #[error("failed to find the API server: no --kubeconfig, no KUBECONFIG, and not in a pod")]
    InCluster(#[source] InClusterError),
    /// The client cannot be made.
    #[error("failed to make a Kubernetes client")]
    Client(#[source] Box<kube::Error>),
}

/// Makes a client. `user_agent` such as `trunkline-agent/0.1.0`. Must be called inside a tokio runtime.
pub async fn connect(kubeconfig: Option<&Path>, user_agent: &str) -> Result<Api, KubeClientError> {
    let mut config = load(kubeconfig).await?;
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(10));
    config.read_timeout = None;
    config.write_timeout = Some(Duration::from_secs(30));
    if let Ok(value) = HeaderValue::from_str(user_agent) {
        config.headers.push((header::USER_AGENT, value));
    }
    let client =
        kube::Client::try_from(config).map_err(|e| KubeClientError::Client(Box::new(e)))?;
    Ok(Api::new(client))
}

async fn load(kubeconfig: Option<&Path>) -> Result<Config, KubeClientError> {
    let bad = |e: KubeconfigError| KubeClientError::Kubeconfig(Box::new(e));
    let found = match kubeconfig {
        Some(path) => Some(Kubeconfig::read_from(path).map_err(bad)?),
        None => Kubeconfig::from_env().map_err(bad)?,
    };
    match found {
        Some(found) => {
            Config::from_custom_kubeconfig(found, &KubeConfigOptions::default()).await.map_err(bad)
        }
        None => Config::incluster().map_err(KubeClientError::InCluster),
    }
}
