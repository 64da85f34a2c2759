//! The live GET of one pod: it is known, or it is gone with proof, or nothing is known (`kube.md` §3).
//!
//! Sent without resourceVersion, so that the API server answers from etcd and not from a cache. "Gone" needs the API
//! server's own word about this very name; a 404 of a proxy or of a wrong path is as unknown as a time-out. A pod of
//! the same name with another UID is `Known`: whoever asked for a UID compares it (`PodGone::from_other_uid`).

use http::StatusCode;
use trunkline_core::fact::NotFoundStatus;
use trunkline_core::id::{NodeName, PodRef, ResourceVersion};
use trunkline_core::view::Pod;

use crate::api::{Api, ApiError, get_request};
use crate::listwatch::LivePodWire;

/// A pod as a live GET found it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LivePod {
    /// The pod; its UID may be another than was asked for.
    pub pod: Pod,
    /// Its resourceVersion, for a write that must not overwrite a newer state.
    pub rv: ResourceVersion,
    /// The node it is bound to, if it is.
    pub node: Option<NodeName>,
}

/// What a live GET says.
#[derive(Debug)]
pub enum Lookup {
    /// A pod of this name exists.
    Known(Box<LivePod>),
    /// The API server has no pod of this name.
    Gone(NotFoundStatus),
    /// No usable answer.
    Unknown(ApiError),
}

/// Asks the API server for a pod by its name.
pub async fn get_pod(api: &Api, asked: &PodRef) -> Lookup {
    match ask(api, asked).await {
        Ok(found) => found,
        Err(error) => Lookup::Unknown(error),
    }
}

async fn ask(api: &Api, asked: &PodRef) -> Result<Lookup, ApiError> {
    let path = format!("/api/v1/namespaces/{}/pods/{}", asked.namespace, asked.name);
    let response = api.send(get_request(&path)?).await?;
    match response.status() {
        StatusCode::OK => {
            let body = api.read_all(response.into_body()).await?;
            read_pod(&body, asked).map(|pod| Lookup::Known(Box::new(pod)))
        }
        _ => {
            let error = api.refused(response).await;
            Ok(not_found(&error, asked).map_or(Lookup::Unknown(error), Lookup::Gone))
        }
    }
}

fn not_found(error: &ApiError, asked: &PodRef) -> Option<NotFoundStatus> {
    let status = error.status().filter(|_| error.code() == Some(StatusCode::NOT_FOUND))?;
    let details = status.details.as_ref()?;
    NotFoundStatus::classify(&status.kind, &status.reason, &details.kind, &details.name, asked)
}

fn read_pod(body: &[u8], asked: &PodRef) -> Result<LivePod, ApiError> {
    let wire: LivePodWire = serde_json::from_slice(body).map_err(ApiError::Decode)?;
    let meta = &wire.pod.metadata;
    if wire.kind != "Pod"
        || meta.name != asked.name.as_str()
        || meta.namespace != asked.namespace.as_str()
    {
        return Err(ApiError::Unexpected(format!(
            "asked for pod {}/{}, got {} {}/{}",
            asked.namespace, asked.name, wire.kind, meta.namespace, meta.name
        )));
    }
    let rv = ResourceVersion::new(&meta.resource_version)
        .map_err(|e| ApiError::Unexpected(e.to_string()))?;
    let node = match wire.pod.spec.node_name.as_deref() {
        None | Some("") => None,
        Some(name) => Some(NodeName::new(name).map_err(|e| ApiError::Unexpected(e.to_string()))?),
    };
    let pod = wire.pod.into_pod().map_err(|e| ApiError::Unexpected(e.to_string()))?;
    Ok(LivePod { pod, rv, node })
}

#[cfg(test)]
mod tests;
