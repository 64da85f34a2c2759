//! What counts as a complete list, and what a line of a watch says.

use serde::Deserialize;
use trunkline_core::id::ResourceVersion;

use super::{Resource, Undecodable};
use crate::api::Status;

/// Why a 200 answer to a list is not a complete list.
#[derive(Debug, thiserror::Error)]
pub enum Rejected {
    /// Not JSON, not of this shape, or an item that does not decode.
    #[error("failed to decode the list")]
    Undecodable(#[source] serde_json::Error),
    /// Another kind than asked for.
    #[error("the list is of kind '{found}', not '{expected}'")]
    Kind {
        /// Kind of the answer.
        found: String,
        /// Kind that was asked for.
        expected: String,
    },
    /// `items` is missing or null.
    #[error("the list has no items array")]
    NoItems,
    /// No well-formed resourceVersion.
    #[error("the list has no usable resourceVersion: '{0}'")]
    ResourceVersion(String),
    /// The list is older than what was seen before.
    #[error("the list is of resourceVersion {found}, older than {known}")]
    WentBack {
        /// Of the list.
        found: ResourceVersion,
        /// Seen before.
        known: ResourceVersion,
    },
    /// The list has more pages, which are never followed.
    #[error("the list is only a page of a longer one")]
    Paged,
    /// An item is not acceptable.
    #[error("failed to accept an item of the list")]
    Item(#[from] Undecodable),
}

#[derive(Deserialize)]
struct ListWire<W> {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    metadata: ListMeta,
    items: Option<Vec<W>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ListMeta {
    #[serde(rename = "resourceVersion")]
    resource_version: Option<String>,
    #[serde(rename = "continue")]
    continue_token: Option<String>,
    #[serde(rename = "remainingItemCount")]
    remaining: Option<i64>,
}

/// Accepts the body of a 200 answer as a complete list, or says why not: the expected kind, `items` present and an
/// array, a well-formed resourceVersion not older than `known`, no further page, every item decodes and is acceptable.
pub fn accept_list<R: Resource>(
    resource: &R,
    body: &[u8],
    known: Option<&ResourceVersion>,
) -> Result<(Vec<R::Item>, ResourceVersion), Rejected> {
    let list: ListWire<R::Wire> = serde_json::from_slice(body).map_err(Rejected::Undecodable)?;
    let expected = format!("{}List", resource.kind());
    if list.kind != expected {
        return Err(Rejected::Kind { found: list.kind.chars().take(80).collect(), expected });
    }
    let wires = list.items.ok_or(Rejected::NoItems)?;
    let text = list.metadata.resource_version.unwrap_or_default();
    let rv = ResourceVersion::new(&text)
        .map_err(|_| Rejected::ResourceVersion(text.chars().take(80).collect()))?;
    if let Some(known) = known.filter(|known| rv < **known) {
        return Err(Rejected::WentBack { found: rv, known: known.clone() });
    }
    let more = list.metadata.continue_token.is_some_and(|t| !t.is_empty());
    if more || list.metadata.remaining.is_some_and(|n| n > 0) {
        return Err(Rejected::Paged);
    }
    let mut items = Vec::with_capacity(wires.len());
    for wire in wires {
        items.push(resource.convert(wire)?);
    }
    Ok((items, rv))
}

/// One line of a watch.
pub(super) enum Line<T> {
    Applied(T, ResourceVersion),
    Deleted(T, ResourceVersion),
    Bookmark(ResourceVersion),
    Error(Status),
}

#[derive(Deserialize)]
struct LineWire {
    #[serde(rename = "type")]
    what: String,
    object: serde_json::Value,
}

/// Reads one line of a watch. Every error means that the view can no longer be trusted.
pub(super) fn read_line<R: Resource>(
    resource: &R,
    line: &[u8],
) -> Result<Line<R::Item>, Undecodable> {
    let wire: LineWire =
        serde_json::from_slice(line).map_err(|e| Undecodable(format!("watch event: {e}")))?;
    if wire.what == "ERROR" {
        let status = serde_json::from_value(wire.object)
            .map_err(|e| Undecodable(format!("ERROR event: {e}")))?;
        return Ok(Line::Error(status));
    }
    let kind = wire.object.get("kind").and_then(|k| k.as_str()).unwrap_or_default();
    if kind != resource.kind() {
        return Err(Undecodable(format!("{} event about a '{kind}'", wire.what)));
    }
    let rv = wire
        .object
        .pointer("/metadata/resourceVersion")
        .and_then(|v| v.as_str())
        .unwrap_or_default();
    let rv = ResourceVersion::new(rv).map_err(|e| Undecodable(e.to_string()))?;
    if wire.what == "BOOKMARK" {
        return Ok(Line::Bookmark(rv));
    }
    let object = serde_json::from_value(wire.object)
        .map_err(|e| Undecodable(format!("{} event: {e}", wire.what)))
        .and_then(|object| resource.convert(object));
    match wire.what.as_str() {
        "ADDED" | "MODIFIED" => Ok(Line::Applied(object?, rv)),
        "DELETED" => Ok(Line::Deleted(object?, rv)),
        other => Err(Undecodable(format!("event of unknown type '{other}'"))),
    }
}
