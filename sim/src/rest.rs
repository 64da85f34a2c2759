//! A small JSON-over-HTTP client for the simulators' admin pages.
//!
//! Tests, the demo and the simulators among themselves speak plain HTTP/1.1 on loopback, so this is all that is
//! needed: no TLS, no redirects, one attempt per call. Whoever wants a retry loops.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// How long one call may take in all.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Why an admin call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request could not be built (bad path or address).
    #[error("failed to build the request to {url}")]
    Build {
        /// The whole address.
        url: String,
        /// The cause.
        source: http::Error,
    },
    /// The connection failed or broke.
    #[error("failed to reach {url}")]
    Connect {
        /// The whole address.
        url: String,
        /// The cause.
        source: hyper_util::client::legacy::Error,
    },
    /// The answer broke off.
    #[error("failed to read the answer of {url}")]
    Body {
        /// The whole address.
        url: String,
        /// The cause.
        source: hyper::Error,
    },
    /// No answer in time.
    #[error("no answer from {url} within {} s", TIMEOUT.as_secs())]
    Timeout {
        /// The whole address.
        url: String,
    },
    /// The server refused; `message` is its body.
    #[error("{url} answered {status}: {message}")]
    Refused {
        /// The whole address.
        url: String,
        /// HTTP status.
        status: StatusCode,
        /// The body, as text.
        message: String,
    },
    /// The body is not the expected JSON.
    #[error("failed to decode the answer of {url}")]
    Decode {
        /// The whole address.
        url: String,
        /// The cause.
        source: serde_json::Error,
    },
}

/// Talks JSON to one base address such as `http://127.0.0.1:4566`.
#[derive(Debug, Clone)]
pub struct RestClient {
    base: String,
    http: Client<HttpConnector, Full<Bytes>>,
}

impl RestClient {
    /// A client for `base`, with or without a slash at its end.
    pub fn new(base: &str) -> Self {
        let http = Client::builder(TokioExecutor::new()).build_http();
        Self { base: base.trim_end_matches('/').to_owned(), http }
    }

    /// The base address, without a slash at its end.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// GET `path`, decoded.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.call(Method::GET, path, None::<&()>).await
    }

    /// POST `body` to `path`; the answer decoded.
    pub async fn post<B: Serialize + Sync, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<T, Error> {
        self.call(Method::POST, path, Some(body)).await
    }

    /// DELETE `path`; the answer decoded.
    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.call(Method::DELETE, path, None::<&()>).await
    }

    async fn call<B: Serialize + Sync, T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
    ) -> Result<T, Error> {
        let url = format!("{}{path}", self.base);
        let decode = |source| Error::Decode { url: url.clone(), source };
        let bytes = body.map(serde_json::to_vec).transpose().map_err(decode)?.unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(&url)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(bytes)))
            .map_err(|source| Error::Build { url: url.clone(), source })?;
        let exchange = async {
            let answer = self
                .http
                .request(request)
                .await
                .map_err(|source| Error::Connect { url: url.clone(), source })?;
            let status = answer.status();
            let body = answer
                .into_body()
                .collect()
                .await
                .map_err(|source| Error::Body { url: url.clone(), source })?
                .to_bytes();
            Ok((status, body))
        };
        let (status, body) = tokio::time::timeout(TIMEOUT, exchange)
            .await
            .map_err(|_| Error::Timeout { url: url.clone() })??;
        if !status.is_success() {
            let message = String::from_utf8_lossy(&body).into_owned();
            return Err(Error::Refused { url, status, message });
        }
        // An empty answer reads as JSON null, so that `()` can be asked for.
        let body: &[u8] = if body.is_empty() { b"null" } else { &body };
        serde_json::from_slice(body).map_err(decode)
    }
}
