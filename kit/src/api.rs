//! Requests to the API server, with own timeouts and with answers that keep "no" and "don't know" apart.
//!
//! `kube::Client` is transport only. It sets no timeout on an answer that never comes and would hide 429, 503 and 504
//! behind minutes of retries, so its retry is off ([`crate::kube_client`]) and the waiting is bounded here: for the
//! response headers and for each read of the body. A request that failed on the way may have been executed all the
//! same; [`ApiError::is_maybe_written`] says so.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use kube::client::Body;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Largest answer that is read. A list of 15,000 whole Node objects stays below it.
const MAX_BODY: usize = 512 << 20;

/// Bounds on waiting for the API server (connecting is bounded by the client itself, 10 s).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// From sending to the response headers, connecting included.
    pub headers: Duration,
    /// Each read of the body.
    pub read: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { headers: Duration::from_secs(10), read: Duration::from_secs(90) }
    }
}

/// The API server, asked with timeouts. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    client: kube::Client,
    timeouts: Timeouts,
}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Api").field("timeouts", &self.timeouts).finish_non_exhaustive()
    }
}

/// A `Status` answer of the API server, as far as it is read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Status {
    /// `Status` if this is one.
    pub kind: String,
    /// Machine-readable reason.
    pub reason: String,
    /// For people.
    pub message: String,
    /// HTTP code.
    pub code: u16,
    /// Details.
    pub details: Option<StatusDetails>,
}

/// `details` of a [`Status`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct StatusDetails {
    /// Name of the object.
    pub name: String,
    /// Resource of the object, plural.
    pub kind: String,
    /// Causes.
    pub causes: Vec<StatusCause>,
    /// After how many seconds to ask again; 0 if unset.
    #[serde(rename = "retryAfterSeconds")]
    pub retry_after_seconds: u64,
}

/// One of a [`Status`]'s causes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct StatusCause {
    /// Machine-readable reason.
    pub reason: String,
}

impl Status {
    /// The server has not reached the asked resourceVersion (`kube.md` §1.7).
    pub fn is_resource_version_too_large(&self) -> bool {
        self.details
            .as_ref()
            .is_some_and(|d| d.causes.iter().any(|c| c.reason == "ResourceVersionTooLarge"))
    }
}

/// Why a request has no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// Nothing came in time.
    #[error("failed to get {what} from the API server within {after:?}")]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// How long.
        after: Duration,
    },
    /// The request or its answer was lost on the way.
    #[error("failed to talk to the API server")]
    Transport(#[source] Box<kube::Error>),
    /// The answer is larger than anything sensible.
    #[error("the API server's answer exceeds {limit} bytes")]
    TooLarge {
        /// The bound.
        limit: usize,
    },
    /// The server (or something before it) answered with an error code.
    #[error("the API server answered {code}: {}", status.message)]
    Refused {
        /// HTTP code.
        code: StatusCode,
        /// The Status, empty (and its `kind` not `Status`) if the body was none.
        status: Box<Status>,
        /// `Retry-After`, if sent.
        retry_after: Option<Duration>,
    },
    /// The answer does not decode.
    #[error("failed to decode the API server's answer")]
    Decode(#[source] serde_json::Error),
    /// The request cannot be built.
    #[error("failed to build the request")]
    Build(#[source] http::Error),
    /// The answer is well-formed but not what was asked for.
    #[error("the API server's answer is not what was asked for: {0}")]
    Unexpected(String),
}

impl ApiError {
    /// The HTTP code, if one came.
    pub fn code(&self) -> Option<StatusCode> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// The Status, if the API server sent one.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Refused { status, .. } if status.kind == "Status" => Some(status),
            _ => None,
        }
    }

    /// 409: somebody else wrote in between, or (for a create) was first.
    pub fn is_conflict(&self) -> bool {
        self.code() == Some(StatusCode::CONFLICT)
    }

    /// The API server itself says that the named object does not exist: a `Status` with reason `NotFound` about this
    /// resource and name. A bare 404 (a proxy, a wrong path) is not that.
    pub fn is_not_found(&self, resource: &str, name: &str) -> bool {
        self.code() == Some(StatusCode::NOT_FOUND)
            && self.status().is_some_and(|s| {
                s.reason == "NotFound"
                    && s.details.as_ref().is_some_and(|d| d.kind == resource && d.name == name)
            })
    }

    /// A write with this outcome may have been executed.
    pub fn is_maybe_written(&self) -> bool {
        match self {
            Self::Timeout { .. }
            | Self::Transport(_)
            | Self::TooLarge { .. }
            | Self::Decode(_)
            | Self::Unexpected(_) => true,
            Self::Refused { code, .. } => code.is_server_error(),
            Self::Build(_) => false,
        }
    }

    /// How long the server asks to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { status, retry_after, .. } => retry_after.or_else(|| {
                status
                    .details
                    .as_ref()
                    .map(|d| d.retry_after_seconds)
                    .filter(|s| *s > 0)
                    .map(Duration::from_secs)
            }),
            _ => None,
        }
    }
}

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> Self {
        Self::Transport(Box::new(error))
    }
}

// === impl Api ===

impl Api {
    /// Wraps a client whose own retry is off.
    pub fn new(client: kube::Client) -> Self {
        Self { client, timeouts: Timeouts::default() }
    }

    /// The same with other bounds.
    #[must_use]
    pub fn with_timeouts(&self, timeouts: Timeouts) -> Self {
        Self { client: self.client.clone(), timeouts }
    }

    /// The bounds in force.
    pub fn timeouts(&self) -> Timeouts {
        self.timeouts
    }

    /// The client below, for calls that need no care.
    pub fn client(&self) -> &kube::Client {
        &self.client
    }

    /// Sends a request and waits for the response headers, whatever their code.
    pub async fn send(&self, request: Request<Body>) -> Result<Response<Body>, ApiError> {
        let after = self.timeouts.headers;
        match tokio::time::timeout(after, self.client.send(request)).await {
            Ok(response) => Ok(response?),
            Err(_) => Err(ApiError::Timeout { what: "response headers", after }),
        }
    }

    /// The next piece of a body; `None` at its end.
    pub async fn read(&self, body: &mut Body) -> Result<Option<Bytes>, ApiError> {
        let after = self.timeouts.read;
        loop {
            let frame = tokio::time::timeout(after, body.frame())
                .await
                .map_err(|_| ApiError::Timeout { what: "the next part of the answer", after })?;
            match frame {
                None => return Ok(None),
                Some(Err(error)) => {
                    return Err(ApiError::Transport(Box::new(kube::Error::Service(error.into()))));
                }
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// A whole body.
    pub async fn read_all(&self, mut body: Body) -> Result<Bytes, ApiError> {
        let mut whole = BytesMut::new();
        while let Some(part) = self.read(&mut body).await? {
            if whole.len() + part.len() > MAX_BODY {
                return Err(ApiError::TooLarge { limit: MAX_BODY });
            }
            whole.extend_from_slice(&part);
        }
        Ok(whole.freeze())
    }

    /// Sends a request and reads the whole body of a 2xx answer; every other code is [`ApiError::Refused`].
    pub async fn body(&self, request: Request<Body>) -> Result<Bytes, ApiError> {
        let response = self.send(request).await?;
        if response.status().is_success() {
            self.read_all(response.into_body()).await
        } else {
            Err(self.refused(response).await)
        }
    }

    /// Turns an error answer into [`ApiError::Refused`].
    pub async fn refused(&self, response: Response<Body>) -> ApiError {
        let code = response.status();
        let retry_after = response
            .headers()
            .get(header::RETRY_AFTER)
            .and_then(|v| v.to_str().ok())
            .and_then(|v| v.trim().parse().ok())
            .map(Duration::from_secs);
        let status = match self.read_all(response.into_body()).await {
            Ok(body) => serde_json::from_slice::<Status>(&body).unwrap_or_else(|_| Status {
                message: String::from_utf8_lossy(&body).chars().take(200).collect(),
                ..Status::default()
            }),
            Err(error) => {
                Status { message: format!("(body not read: {error})"), ..Status::default() }
            }
        };
        ApiError::Refused { code, status: Box::new(status), retry_after }
    }

    /// GET of a path, decoded.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        let body = self.body(get_request(path)?).await?;
        serde_json::from_slice(&body).map_err(ApiError::Decode)
    }

    /// A request with a JSON body (POST, PUT, or PATCH as merge patch), its answer decoded.
    pub async fn write<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        value: &serde_json::Value,
    ) -> Result<T, ApiError> {
        let body = self.body(write_request(method, path, value)?).await?;
        serde_json::from_slice(&body).map_err(ApiError::Decode)
    }
}

/// A GET request for a path with its query.
pub fn get_request(path: &str) -> Result<Request<Body>, ApiError> {
    Request::get(path)
        .header(header::ACCEPT, "application/json")
        .body(Body::empty())
        .map_err(ApiError::Build)
}

/// A write with a JSON body; PATCH is a merge patch.
pub fn write_request(
    method: Method,
    path: &str,
    value: &serde_json::Value,
) -> Result<Request<Body>, ApiError> {
    let content =
        if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    with_body(method, path, content, value)
}

/// A strategic merge patch: list items that have a key are merged, not replaced.
pub fn strategic_patch_request(
    path: &str,
    value: &serde_json::Value,
) -> Result<Request<Body>, ApiError> {
    with_body(Method::PATCH, path, "application/strategic-merge-patch+json", value)
}

fn with_body(
    method: Method,
    path: &str,
    content: &str,
    value: &serde_json::Value,
) -> Result<Request<Body>, ApiError> {
    Request::builder()
        .method(method)
        .uri(path)
        .header(header::ACCEPT, "application/json")
        .header(header::CONTENT_TYPE, content)
        .body(Body::from(value.to_string().into_bytes()))
        .map_err(ApiError::Build)
}

/// Percent-encodes a query value.
pub fn encode_query(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.extend(["%", &format!("{byte:02X}")]);
        }
    }
    out
}
