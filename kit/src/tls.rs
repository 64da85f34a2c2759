//! TLS with one provider (aws-lc): server certificates that are exchanged while running, and accepted connections for
//! tonic.
//!
//! tonic's own server configuration is static, so the gRPC port has its own rustls configuration whose certificate
//! comes from [`ServerCertificate`]. Mounted Secrets change by swapping a symlink, so the files' contents are compared,
//! not their times. A pair that does not fit (half of a rotation) is not taken; the old one stays in use.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig, crypto::CryptoProvider};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// How often certificate files are looked at.
const POLL: Duration = Duration::from_secs(10);
/// Handshakes at a time; more wait in the listener's queue.
const HANDSHAKES: usize = 256;
/// Longest handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a certificate, key or CA cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("failed to read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file is not PEM with what is expected in it.
    #[error("failed to find {what} in {}", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What is expected.
        what: &'static str,
        /// Why; absent if it simply is not there.
        #[source]
        source: Option<rustls::pki_types::pem::Error>,
    },
    /// Certificate and key do not fit, or the provider refuses them.
    #[error("failed to use the certificate {} with its key", path.display())]
    Key {
        /// The certificate's file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rustls::Error,
    },
    /// No configuration can be made.
    #[error("failed to configure TLS")]
    Config(#[source] rustls::Error),
}

/// Makes aws-lc the process's only provider. Call it first; calling it again is harmless.
pub fn install_provider() {
    // An error means that a provider is installed already, by an earlier call.
    let _installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

fn provider() -> Arc<CryptoProvider> {
    CryptoProvider::get_default()
        .cloned()
        .unwrap_or_else(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
}

/// A file, whole.
async fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    tokio::fs::read(path).await.map_err(|source| TlsError::Read { path: path.into(), source })
}

/// A server certificate from PEM files, followed while it changes.
#[derive(Debug)]
pub struct ServerCertificate {
    cert: PathBuf,
    key: PathBuf,
    current: watch::Sender<Arc<CertifiedKey>>,
}

impl ServerCertificate {
    /// Reads the files (`--tls-cert`, `--tls-key`).
    pub async fn load(cert: &Path, key: &Path) -> Result<Arc<Self>, TlsError> {
        let (loaded, _) = load_pair(cert, key).await?;
        Ok(Arc::new(Self {
            cert: cert.into(),
            key: key.into(),
            current: watch::Sender::new(loaded),
        }))
    }

    /// A rustls configuration that always serves the current certificate, for these ALPN protocols (`h2` for gRPC).
    pub fn server_config(self: &Arc<Self>, alpn: &[&str]) -> Result<Arc<ServerConfig>, TlsError> {
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Config)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::<Self>::clone(self));
        config.alpn_protocols = alpn.iter().map(|p| p.as_bytes().to_vec()).collect();
        Ok(Arc::new(config))
    }

    /// Follows the files until the token is cancelled.
    pub async fn follow(self: Arc<Self>, stop: CancellationToken) {
        let mut seen: Option<(Vec<u8>, Vec<u8>)> = None;
        loop {
            match self.reload(&mut seen).await {
                Ok(true) => {
                    tracing::info!(cert = %self.cert.display(), "serving a new certificate");
                }
                Ok(false) => {}
                Err(error) => tracing::warn!(
                    error = %crate::drain::chain(&error),
                    "failed to reload the certificate; the old one stays in use"
                ),
            }
            tokio::select! {
                () = tokio::time::sleep(POLL) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Takes the files' contents into use if they changed since `seen`; true if another certificate is served now.
    async fn reload(&self, seen: &mut Option<(Vec<u8>, Vec<u8>)>) -> Result<bool, TlsError> {
        let contents = (read(&self.cert).await?, read(&self.key).await?);
        if seen.as_ref() == Some(&contents) {
            return Ok(false);
        }
        let loaded = certified_key(&self.cert, &self.key, &contents.0, &contents.1);
        // A bad pair is told once, not at each look.
        *seen = Some(contents);
        let loaded = loaded?;
        Ok(self.current.send_if_modified(|held| {
            let other = held.cert != loaded.cert;
            if other {
                *held = loaded;
            }
            other
        }))
    }
}

impl ResolvesServerCert for ServerCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.borrow()))
    }
}

async fn load_pair(
    cert: &Path,
    key: &Path,
) -> Result<(Arc<CertifiedKey>, (Vec<u8>, Vec<u8>)), TlsError> {
    let contents = (read(cert).await?, read(key).await?);
    Ok((certified_key(cert, key, &contents.0, &contents.1)?, contents))
}

fn certified_key(
    cert: &Path,
    key: &Path,
    cert_pem: &[u8],
    key_pem: &[u8],
) -> Result<Arc<CertifiedKey>, TlsError> {
    let chain = certificates(cert, cert_pem)?;
    let private = PrivateKeyDer::from_pem_slice(key_pem).map_err(|e| TlsError::Pem {
        path: key.into(),
        what: "a private key",
        source: Some(e),
    })?;
    let refused = |source| TlsError::Key { path: cert.into(), source };
    let loaded = CertifiedKey::from_der(chain, private, &provider()).map_err(refused)?;
    loaded.keys_match().map_err(refused)?;
    Ok(Arc::new(loaded))
}

/// All certificates of a PEM file, at least one.
fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let missing = |source| TlsError::Pem { path: path.into(), what: "a certificate", source };
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|e| missing(Some(e)))?;
    if found.is_empty() { Err(missing(None)) } else { Ok(found) }
}

/// The CA certificates of a PEM file (several during a rotation), checked; the PEM itself, as tonic takes it.
pub async fn read_ca(path: &Path) -> Result<Vec<u8>, TlsError> {
    let pem = read(path).await?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, &pem)? {
        roots.add(certificate).map_err(|source| TlsError::Key { path: path.into(), source })?;
    }
    Ok(pem)
}

/// Accepted TLS connections, for tonic's `serve_with_incoming`. Sockets are tuned (no delay, keepalive); handshakes run
/// beside each other, bounded in number and time; a failed one is logged and forgotten. Never ends and never fails.
pub fn incoming(
    listener: TcpListener,
    config: Arc<ServerConfig>,
) -> impl Stream<Item = io::Result<TlsStream<TcpStream>>> + Send + use<> {
    let acceptor = TlsAcceptor::from(config);
    TcpListenerStream::new(listener)
        .then(|accepted| async move {
            if let Err(error) = &accepted {
                tracing::warn!(%error, "failed to accept a connection");
                // Out of file descriptors, most likely; asking again at once would only burn the CPU.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            accepted.ok()
        })
        .filter_map(std::future::ready)
        .map(move |stream| {
            let handshake = handshake(acceptor.clone(), stream);
            AbortOnDropHandle::new(tokio::spawn(handshake))
        })
        .buffer_unordered(HANDSHAKES)
        .filter_map(|done| std::future::ready(done.ok().flatten().map(Ok)))
}

async fn handshake(acceptor: TlsAcceptor, stream: TcpStream) -> Option<TlsStream<TcpStream>> {
    let peer: Option<SocketAddr> = stream.peer_addr().ok();
    if let Err(error) = crate::net::tune(&stream) {
        tracing::debug!(%error, ?peer, "failed to tune a connection");
    }
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::info!(%error, ?peer, "a TLS handshake failed");
            None
        }
        Err(_) => {
            tracing::info!(?peer, "a TLS handshake took too long");
            None
        }
    }
}

#[cfg(test)]
mod tests;
