//! The admin server: `/livez`, `/readyz`, `/healthz`, `/metrics` and `/status` over plain HTTP.
//!
//! Bound before anything runs, so that a port in use is a start error and tests learn the port. `/healthz` runs the
//! registered checks (`OBS-1`) and answers as the peer does; `/livez` runs the same ones; `/readyz` asks
//! [`Readiness`]. `/status` tells about pods and ENIs and answers loopback peers only, unless told otherwise.
//! `/metrics` can be bound to an address of its own.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::config::BindAddress;
use crate::net::{BindError, bind};
use crate::readiness::Readiness;

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Check = Arc<dyn Fn() -> BoxFuture<Result<(), String>> + Send + Sync>;
type Status = Arc<dyn Fn() -> BoxFuture<serde_json::Value> + Send + Sync>;

/// What the server shows.
#[derive(Clone)]
pub struct Admin {
    readiness: Readiness,
    metrics: Option<Arc<Registry>>,
    status: Option<Status>,
    remote_status: bool,
    checks: BTreeMap<&'static str, Check>,
    check_timeout: Duration,
}

impl Admin {
    /// Readiness only; checks 28 s (the peer's default).
    pub fn new(readiness: Readiness) -> Self {
        Self {
            readiness,
            metrics: None,
            status: None,
            remote_status: false,
            checks: BTreeMap::new(),
            check_timeout: Duration::from_secs(28),
        }
    }

    /// Shows this registry under `/metrics`.
    #[must_use]
    pub fn metrics(mut self, registry: Arc<Registry>) -> Self {
        self.metrics = Some(registry);
        self
    }

    /// Shows what `provider` returns under `/status`; to loopback peers only unless `remote`.
    #[must_use]
    pub fn status<F>(
        mut self,
        remote: bool,
        provider: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = serde_json::Value> + Send + 'static,
    {
        self.status = Some(Arc::new(move || Box::pin(provider())));
        self.remote_status = remote;
        self
    }

    /// Adds a health check; its error is a sentence.
    #[must_use]
    pub fn check<F>(
        mut self,
        name: &'static str,
        check: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        self.checks.insert(name, Arc::new(move || Box::pin(check())));
        self
    }

    /// Bound on each check (`--health-check-timeout`).
    #[must_use]
    pub fn check_timeout(mut self, timeout: Duration) -> Self {
        self.check_timeout = timeout;
        self
    }

    fn router(self) -> Router {
        Router::new()
            .route("/livez", get(healthz))
            .route("/healthz", get(healthz))
            .route("/healthz/{check}", get(one_check))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .route("/status", get(status))
            .with_state(Arc::new(self))
    }
}

/// A bound server that does not answer yet.
#[derive(Debug)]
pub struct AdminServer {
    listener: TcpListener,
    address: SocketAddr,
}

impl AdminServer {
    /// Binds.
    pub async fn bind(address: &BindAddress) -> Result<Self, BindError> {
        let listener = bind(address).await?;
        let local = listener
            .local_addr()
            .map_err(|source| BindError { address: address.clone(), source })?;
        Ok(Self { listener, address: local })
    }

    /// The bound address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until the token is cancelled.
    pub async fn run(self, admin: Admin, stop: CancellationToken) -> io::Result<()> {
        let service = admin.router().into_make_service_with_connect_info::<SocketAddr>();
        let served = axum::serve(self.listener, service)
            .with_graceful_shutdown({
                let stop = stop.clone();
                async move { stop.cancelled().await }
            })
            .into_future();
        // A peer that keeps its connection must not hold up the end of the process.
        let cut_off = async {
            stop.cancelled().await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        };
        tokio::select! {
            result = served => result,
            () = cut_off => Ok(()),
        }
    }
}

#[derive(serde::Deserialize)]
struct Asked {
    verbose: Option<String>,
}

/// The peer's (controller-runtime's) form: `ok`, or a line per check.
fn report(name: &str, results: &BTreeMap<&str, Result<(), String>>, verbose: bool) -> Response {
    let failed = results.values().any(Result::is_err);
    if !failed && !verbose {
        return (StatusCode::OK, "ok").into_response();
    }
    let mut text = String::new();
    for (check, result) in results {
        match result {
            Ok(()) => text.extend(["[+]", check, " ok\n"]),
            Err(reason) => text.extend(["[-]", check, " failed: ", reason, "\n"]),
        }
    }
    text.extend([name, " check ", if failed { "failed" } else { "passed" }, "\n"]);
    let code = if failed { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::OK };
    (code, text).into_response()
}

async fn run_check(admin: &Admin, check: &Check) -> Result<(), String> {
    tokio::time::timeout(admin.check_timeout, check())
        .await
        .unwrap_or_else(|_| Err(format!("no answer within {:?}", admin.check_timeout)))
}

async fn healthz(State(admin): State<Arc<Admin>>, Query(asked): Query<Asked>) -> Response {
    let mut results = BTreeMap::new();
    for (name, check) in &admin.checks {
        results.insert(*name, run_check(&admin, check).await);
    }
    report("healthz", &results, asked.verbose.is_some())
}

async fn one_check(State(admin): State<Arc<Admin>>, Path(name): Path<String>) -> Response {
    match admin.checks.get(name.as_str()) {
        None => (StatusCode::NOT_FOUND, format!("no check is named '{name}'\n")).into_response(),
        Some(check) => match run_check(&admin, check).await {
            Ok(()) => (StatusCode::OK, "ok").into_response(),
            Err(reason) => {
                (StatusCode::INTERNAL_SERVER_ERROR, format!("failed: {reason}\n")).into_response()
            }
        },
    }
}

async fn readyz(State(admin): State<Arc<Admin>>, Query(asked): Query<Asked>) -> Response {
    let states = admin.readiness.states();
    let results =
        states.into_iter().map(|(name, state)| (name, state.map_or(Ok(()), Err))).collect();
    let mut response = report("readyz", &results, asked.verbose.is_some());
    if response.status() != StatusCode::OK {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}

async fn metrics(State(admin): State<Arc<Admin>>) -> Response {
    let Some(registry) = &admin.metrics else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let mut text = String::new();
    match prometheus_client::encoding::text::encode(&mut text, registry) {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], Body::from(text)).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn status(
    State(admin): State<Arc<Admin>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
) -> Response {
    let Some(provider) = &admin.status else {
        return StatusCode::NOT_FOUND.into_response();
    };
    if !admin.remote_status && !is_loopback(peer.ip()) {
        return (StatusCode::FORBIDDEN, "the status is shown on loopback only\n").into_response();
    }
    axum::Json(provider().await).into_response()
}

/// Also for IPv4 on a socket for both families.
fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests;
