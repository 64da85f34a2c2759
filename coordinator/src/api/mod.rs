//! The Kubernetes API as the coordinator uses it: few requests, minimal objects, and an answer to "did it happen?".
//!
//! Every write is refused once the lease deadline has passed ([`Fence`]), is bounded by a timeout, and is classified: a
//! refusal was surely not carried out, an [`ApiError::Unknown`] may have been. Nothing here retries by itself; whoever
//! asked decides on the strength of that difference.

pub mod access;
pub mod lost;
pub mod objects;
pub mod policies;

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use serde::de::DeserializeOwned;
use serde_json::Value;
use trunkline_kit::api::{
    self as kit, Timeouts, get_request, strategic_patch_request, write_request,
};

/// Bounds on waiting for an answer: a node's work must not hang on one request.
const TIMEOUTS: Timeouts =
    Timeouts { headers: Duration::from_secs(10), read: Duration::from_secs(20) };

/// Field manager of our patches.
pub const FIELD_MANAGER: &str = "trunkline-coordinator";

/// Whether writes are allowed now. Asked directly before each.
pub trait Fence: Send + Sync + 'static {
    /// False once the lease's renew deadline has passed.
    fn may_write(&self) -> bool;
}

/// Never closed; for tests and for requests that do not depend on leading.
#[derive(Debug, Clone, Copy)]
pub struct NoFence;

impl Fence for NoFence {
    fn may_write(&self) -> bool {
        true
    }
}

/// A request that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// A `Status` with reason `NotFound`: the API server itself says that the object (or its kind) does not exist.
    #[error("not found: {0}")]
    NotFound(String),
    /// 404 without such a `Status`: the server does not know the path, or somebody else answered.
    #[error("HTTP 404: {0}")]
    NoSuchPath(String),
    /// 409: the resourceVersion or UID no longer fits, or the object exists already.
    #[error("conflict: {0}")]
    Conflict(String),
    /// Refused, surely not carried out.
    #[error("refused with {code}: {message}")]
    Refused {
        /// HTTP status.
        code: u16,
        /// What the server said.
        message: String,
    },
    /// The lease deadline had passed: not sent.
    #[error("not sent: this coordinator does not lead any more")]
    Fenced,
    /// Anything else. A write may have been carried out.
    #[error("no usable answer: {0}")]
    Unknown(String),
}

/// Requests to the API server.
#[derive(Clone)]
pub struct Api {
    inner: kit::Api,
    fence: Arc<dyn Fence>,
}

impl Api {
    /// Requests through this client, writes while the fence allows.
    pub fn new(client: kube::Client, fence: Arc<dyn Fence>) -> Self {
        Self { inner: kit::Api::new(client).with_timeouts(TIMEOUTS), fence }
    }

    /// The unfenced requests of `kit`, for its adapters.
    pub fn kit(&self) -> &kit::Api {
        &self.inner
    }

    /// Whether writes are allowed now.
    pub fn may_write(&self) -> bool {
        self.fence.may_write()
    }

    /// GET, without resourceVersion: a quorum read.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        self.inner.get(path).await.map_err(ApiError::from)
    }

    /// POST.
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        object: &Value,
    ) -> Result<T, ApiError> {
        self.check_fence()?;
        self.ask(path, object).await
    }

    /// POST of a review, which changes nothing and needs no lease.
    pub async fn ask<T: DeserializeOwned>(
        &self,
        path: &str,
        object: &Value,
    ) -> Result<T, ApiError> {
        self.inner.write(Method::POST, path, object).await.map_err(ApiError::from)
    }

    /// PATCH with a JSON merge patch.
    pub async fn merge_patch(&self, path: &str, body: &Value) -> Result<(), ApiError> {
        self.check_fence()?;
        let path = format!("{path}?fieldManager={FIELD_MANAGER}");
        let request = write_request(Method::PATCH, &path, body)?;
        self.inner.body(request).await.map(drop).map_err(ApiError::from)
    }

    /// PATCH with a strategic merge patch, which merges lists by their keys.
    pub async fn strategic_patch(&self, path: &str, body: &Value) -> Result<(), ApiError> {
        self.check_fence()?;
        let path = format!("{path}?fieldManager={FIELD_MANAGER}");
        let request = strategic_patch_request(&path, body)?;
        self.inner.body(request).await.map(drop).map_err(ApiError::from)
    }

    /// The same, and the object as the API server answers with it. An answer that is no JSON (a proxy's 200) leaves the
    /// outcome open.
    pub async fn merge_patch_object(&self, path: &str, body: &Value) -> Result<Value, ApiError> {
        self.check_fence()?;
        let path = format!("{path}?fieldManager={FIELD_MANAGER}");
        let request = write_request(Method::PATCH, &path, body)?;
        let answer = self.inner.body(request).await.map_err(ApiError::from)?;
        serde_json::from_slice(&answer)
            .map_err(|e| ApiError::Unknown(format!("the answer to the patch is not JSON: {e}")))
    }

    /// DELETE, only of the incarnation with this UID.
    pub async fn delete(&self, path: &str, uid: &str) -> Result<(), ApiError> {
        self.check_fence()?;
        let options = serde_json::json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid},
        });
        let request = write_request(Method::DELETE, path, &options)?;
        self.inner.body(request).await.map(drop).map_err(ApiError::from)
    }

    /// Whether the API server answers at all; for health.
    pub async fn ping(&self) -> Result<(), ApiError> {
        self.inner.body(get_request("/version")?).await.map(drop).map_err(ApiError::from)
    }

    fn check_fence(&self) -> Result<(), ApiError> {
        if self.fence.may_write() { Ok(()) } else { Err(ApiError::Fenced) }
    }
}

/// An error and its sources in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(next) = source {
        text = format!("{text}: {next}");
        source = next.source();
    }
    text
}

impl From<kit::ApiError> for ApiError {
    /// Tells refusals from answers that leave the outcome open. A 404 counts as [`ApiError::NotFound`] only with a `Status`
    /// of that reason: a proxy's 404 says nothing (`kube.md` §3).
    fn from(error: kit::ApiError) -> Self {
        let kit::ApiError::Refused { code, status, .. } = &error else {
            return Self::Unknown(chain(&error));
        };
        let of_server = status.kind == "Status";
        let message = status.message.clone();
        match (code.as_u16(), status.reason.as_str()) {
            (404, "NotFound") if of_server => Self::NotFound(message),
            (404, _) => Self::NoSuchPath(message),
            (409, _) if of_server => Self::Conflict(message),
            (code @ 400..=499, _) if of_server => Self::Refused { code, message },
            (code, _) => Self::Unknown(format!("HTTP {code}: {message}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{scripted, scripted_client};

    async fn error(code: u16, body: String) -> ApiError {
        let api = scripted(move |_| (code, body.clone()));
        api.merge_patch("/x", &json!({})).await.unwrap_err()
    }

    fn status(reason: &str) -> String {
        json!({"kind": "Status", "reason": reason, "message": "m"}).to_string()
    }

    #[tokio::test]
    async fn only_the_api_servers_own_status_is_a_refusal_or_a_not_found() {
        assert_eq!(error(404, status("NotFound")).await, ApiError::NotFound("m".into()));
        assert!(matches!(error(404, "<html>".into()).await, ApiError::NoSuchPath(_)));
        assert!(matches!(error(404, status("")).await, ApiError::NoSuchPath(_)));
        assert!(matches!(error(409, status("Conflict")).await, ApiError::Conflict(_)));
        assert!(matches!(
            error(403, status("Forbidden")).await,
            ApiError::Refused { code: 403, .. }
        ));
        assert!(matches!(error(403, "proxy".into()).await, ApiError::Unknown(_)));
        for code in [500, 502, 503, 504] {
            assert!(
                matches!(error(code, status("InternalError")).await, ApiError::Unknown(_)),
                "{code}"
            );
        }
    }

    #[tokio::test]
    async fn s11_after_the_lease_deadline_nothing_is_written_but_reads_go_on() {
        struct Closed;
        impl Fence for Closed {
            fn may_write(&self) -> bool {
                false
            }
        }
        let client = scripted_client(|asked| {
            assert_eq!(asked.method, "GET");
            (200, "{}".into())
        });
        let api = Api::new(client, Arc::new(Closed));
        assert_eq!(api.merge_patch("/x", &json!({})).await, Err(ApiError::Fenced));
        assert_eq!(api.post::<Value>("/x", &json!({})).await, Err(ApiError::Fenced));
        assert_eq!(api.delete("/x", "uid").await, Err(ApiError::Fenced));
        assert!(api.get::<Value>("/x").await.is_ok());
    }
}
