//! One consistent LIST of a node's pods, for who needs to know once and does not watch.

use http::StatusCode;
use trunkline_core::id::NodeName;
use trunkline_core::view::Pod;

use super::engine::with_query;
use super::{PodsOfNode, Rejected, Resource, accept_list};
use crate::api::{Api, ApiError, encode_query, get_request};

/// Why there is no complete list.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    /// The API server did not answer, or refused.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// It answered with something that is not a complete list.
    #[error(transparent)]
    Rejected(#[from] Rejected),
}

/// The pods of a node, as etcd has them: sent without resourceVersion and without a page size, so that the API server
/// answers neither from a cache nor with a part. Accepted whole or not at all.
pub async fn list_pods(api: &Api, node: &NodeName) -> Result<Vec<Pod>, ListError> {
    let resource = PodsOfNode(node.clone());
    let selector = resource.field_selector().unwrap_or_default();
    let query = [format!("fieldSelector={}", encode_query(&selector))];
    let response = api.send(get_request(&with_query(&resource.path(), &query))?).await?;
    if response.status() != StatusCode::OK {
        return Err(api.refused(response).await.into());
    }
    let body = api.read_all(response.into_body()).await?;
    Ok(accept_list(&resource, &body, None)?.0)
}
