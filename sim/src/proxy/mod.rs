//! The API fault proxy: a way to a real kube-apiserver on which answers get lost, cut, emptied or aged.
//!
//! Clients speak plain HTTP/1.1 to it on loopback; their tokens are passed on, so the server sees who asks (client
//! certificates are not). Watches stream through event by event. Without faults nothing is changed.
//!
//! # Admin pages (never forwarded)
//! - `POST /_sim/faults` with a [`model::FaultSpec`] → its id. Faults strike in the order in which they were added; all
//!   that match strike. `GET /_sim/faults` → [`model::FaultState`]s; `DELETE /_sim/faults/ID`, `DELETE /_sim/faults`.
//! - `GET /_sim/log?from=SEQ` → [`model::LogEntry`]s: every request, and every watch event that was kept back.
//!
//! ```json
//! {"match": {"method": "GET", "path_end": "/pods", "query": "fieldSelector=spec.nodeName="},
//!  "fault": "expired-pages", "limit": 3, "count": 3}
//! ```

pub mod broken;
pub mod client;
pub mod fault;
pub mod forward;
pub mod model;
pub mod replica;
pub mod rewrite;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

pub use client::ProxyClient;
use fault::Faults;
use forward::{Body, Closed, Proxy, full};

/// Flags of `trunkline-sim proxy`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub bind: SocketAddr,
    /// The real API server, `https://HOST:PORT`.
    #[arg(long)]
    pub upstream: http::Uri,
    /// The authority that signed its certificate (PEM).
    #[arg(long, conflicts_with = "insecure")]
    pub ca: Option<PathBuf>,
    /// Accept any certificate.
    #[arg(long)]
    pub insecure: bool,
}

/// Why the proxy could not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address.
    #[error("failed to listen on {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: std::io::Error,
    },
    /// The way to the API server.
    #[error("failed to make a client for {upstream}")]
    Upstream {
        /// The API server.
        upstream: http::Uri,
        /// The cause.
        source: kube::Error,
    },
}

/// A running proxy; ends when dropped.
pub struct Running {
    /// Where it listens.
    pub addr: SocketAddr,
    /// The faults, for use in the same process.
    pub faults: Arc<Faults>,
    accepting: JoinHandle<()>,
}

impl Running {
    /// Base address, for kubeconfigs and [`ProxyClient`].
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// A client for it.
    pub fn client(&self) -> ProxyClient {
        ProxyClient::new(&self.url())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Starts a proxy.
pub async fn start(args: &Args) -> Result<Running, Error> {
    crate::support::install_tls_provider();
    let replicas = replica::Replicas::new(args.ca.clone(), args.insecure);
    let upstream = replicas
        .connect(args.upstream.clone())
        .map_err(|source| Error::Upstream { upstream: args.upstream.clone(), source })?;
    let bind = |source| Error::Bind { address: args.bind, source };
    let listener = TcpListener::bind(args.bind).await.map_err(bind)?;
    let addr = listener.local_addr().map_err(bind)?;
    let faults = Arc::new(Faults::default());
    let proxy = Arc::new(Proxy { upstream, replicas, faults: Arc::clone(&faults) });
    let accepting = tokio::spawn(accept(listener, proxy));
    Ok(Running { addr, faults, accepting })
}

/// Runs the proxy until it is told to end (SIGINT, SIGTERM).
pub async fn run(args: Args) -> Result<(), Error> {
    let running = start(&args).await?;
    println!("listening on {}", running.url());
    crate::support::until_signal().await;
    Ok(())
}

async fn accept(listener: TcpListener, proxy: Arc<Proxy>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    // A watch's small events must not wait for more.
                    let _best_effort = stream.set_nodelay(true);
                    let proxy = Arc::clone(&proxy);
                    connections.spawn(async move {
                        let service = service_fn(|request| route(Arc::clone(&proxy), request));
                        let io = TokioIo::new(stream);
                        if let Err(error) =
                            hyper::server::conn::http1::Builder::new().serve_connection(io, service).await
                        {
                            tracing::debug!(%error, "a connection was closed");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to accept");
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn route(proxy: Arc<Proxy>, request: Request<Incoming>) -> Result<Response<Body>, Closed> {
    if request.uri().path().starts_with("/_sim/") {
        admin(&proxy.faults, request).await
    } else {
        proxy.handle(request).await
    }
}

async fn admin(faults: &Faults, request: Request<Incoming>) -> Result<Response<Body>, Closed> {
    let (head, body) = request.into_parts();
    let (status, text) = match (&head.method, head.uri.path()) {
        (&Method::GET, "/_sim/faults") => json(&faults.states()),
        (&Method::GET, "/_sim/log") => {
            let pairs = fault::query_pairs(head.uri.query().unwrap_or_default());
            let from = pairs.iter().find(|(k, _)| k == "from").and_then(|(_, v)| v.parse().ok());
            json(&faults.lines(from.unwrap_or(0)))
        }
        (&Method::POST, "/_sim/faults") => {
            let body = body.collect().await.map_err(Closed::Request)?.to_bytes();
            match serde_json::from_slice(&body) {
                Ok(spec) => json(&faults.add(spec)),
                Err(error) => (StatusCode::BAD_REQUEST, error.to_string()),
            }
        }
        (&Method::DELETE, "/_sim/faults") => {
            faults.clear();
            json(&())
        }
        (&Method::DELETE, path) => {
            match path.strip_prefix("/_sim/faults/").and_then(|id| id.parse().ok()) {
                Some(id) => json(&faults.remove(id)),
                None => (StatusCode::NOT_FOUND, "no such page".to_owned()),
            }
        }
        _ => (StatusCode::NOT_FOUND, "no such page".to_owned()),
    };
    Response::builder()
        .status(status)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(full(text))
        .map_err(Closed::Build)
}

fn json(value: &impl serde::Serialize) -> (StatusCode, String) {
    match serde_json::to_string(value) {
        Ok(text) => (StatusCode::OK, text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}
