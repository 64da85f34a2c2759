//! Dialling a coordinator.
//!
//! A DNS name stands for all its addresses, of which one leads; after a `Redirect` the leader is dialled by its own
//! address, but the certificate must still be for the name that the user gave. So an address and the TLS name are two
//! things here. Each attempt makes a new channel: tonic's own reconnect has no back-off that could be controlled, and
//! the CA file is read again each time.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Uri};

use crate::config::{BindAddress, Target};
use crate::tls::{TlsError, read_ca};

/// Bound on connecting: TCP and TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Flow-control windows: a session is small messages both ways (`kube.md` §6.1).
const WINDOW: u32 = 256 << 10;

/// Why there is no channel.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The CA file is unusable.
    #[error("failed to use the CA file")]
    Ca(#[from] TlsError),
    /// The connection was not made.
    #[error("failed to connect to {address} as {tls_name}")]
    Connect {
        /// The address.
        address: SocketAddr,
        /// The name that its certificate must have.
        tls_name: String,
        /// Why.
        #[source]
        source: tonic::transport::Error,
    },
    /// A name has no address.
    #[error("failed to resolve {host}")]
    Resolve {
        /// The name.
        host: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The text is not an address.
    #[error("'{0}' is not HOST:PORT")]
    Address(String),
}

/// An address to dial and the name that its certificate must have.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dial {
    /// The address.
    pub address: SocketAddr,
    /// The TLS name.
    pub tls_name: String,
}

/// All addresses of all targets, without duplicates. A name that does not resolve is skipped while another does; if
/// none does, the error is the last one's.
pub async fn resolve(targets: &[Target]) -> Result<Vec<Dial>, DialError> {
    let mut found = BTreeSet::new();
    let mut failed = None;
    for target in targets {
        match lookup(&target.host, target.port).await {
            Ok(addresses) => {
                found.extend(
                    addresses
                        .into_iter()
                        .map(|address| Dial { address, tls_name: target.host.clone() }),
                );
            }
            Err(error) => {
                tracing::info!(host = target.host, error = %crate::drain::chain(&error), "not resolved");
                failed = Some(error);
            }
        }
    }
    match failed {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found.into_iter().collect()),
    }
}

/// The addresses of a `Redirect`'s or Lease's `HOST:PORT`; the TLS name stays that of the target dialled before.
pub async fn resolve_redirect(address: &str, tls_name: &str) -> Result<Vec<Dial>, DialError> {
    match address.parse::<BindAddress>() {
        Ok(BindAddress::Host(host, port)) => {
            let addresses = lookup(&host, port).await?;
            Ok(addresses
                .into_iter()
                .map(|address| Dial { address, tls_name: tls_name.to_owned() })
                .collect())
        }
        _ => Err(DialError::Address(address.chars().take(200).collect())),
    }
}

async fn lookup(host: &str, port: u16) -> Result<Vec<SocketAddr>, DialError> {
    let failed = |source| DialError::Resolve { host: host.to_owned(), source };
    let found: Vec<SocketAddr> =
        tokio::net::lookup_host((host, port)).await.map_err(failed)?.collect();
    if found.is_empty() {
        return Err(failed(std::io::Error::new(std::io::ErrorKind::NotFound, "no addresses")));
    }
    Ok(found)
}

/// Connects with TLS, verifying `dial.tls_name` against the CA file. Dead peers are noticed by HTTP/2 pings (20 s, 10 s
/// to answer), idle or not.
pub async fn connect(dial: &Dial, ca_file: &Path) -> Result<Channel, DialError> {
    let pem = read_ca(ca_file).await?;
    let failed = |source| DialError::Connect {
        address: dial.address,
        tls_name: dial.tls_name.clone(),
        source,
    };
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(pem))
        .domain_name(dial.tls_name.clone());
    let mut endpoint = Endpoint::from_shared(format!("https://{}", dial.address))
        .and_then(|endpoint| endpoint.tls_config(tls))
        .map_err(failed)?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .tcp_keepalive(Some(Duration::from_secs(20)))
        .http2_keep_alive_interval(Duration::from_secs(20))
        .keep_alive_timeout(Duration::from_secs(10))
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW);
    if let Ok(origin) = origin(dial).parse::<Uri>() {
        endpoint = endpoint.origin(origin);
    }
    endpoint.connect().await.map_err(failed)
}

/// The `:authority` that the server sees: the name, not the address.
fn origin(dial: &Dial) -> String {
    Target { host: dial.tls_name.clone(), port: dial.address.port() }.to_string()
}
