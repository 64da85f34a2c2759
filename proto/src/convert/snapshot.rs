//! Snapshots in parts.
//!
//! The sender cuts a view into parts of at most [`PART_ITEMS`] items and about [`PART_BYTES`] bytes, each serialized once; the
//! end carries the number of items and the SHA-256 over the parts' bytes in their order. The receiver's
//! [`SnapshotAssembler`] gives a closed view only if both agree; until then nothing can be asked of it. One snapshot is open
//! at a time, and its size is bounded, so that a peer cannot make the receiver grow.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;
use sha2::{Digest, Sha256};
use trunkline_core::id::{PodUid, ResourceVersion};
use trunkline_core::message::FromAgent;
use trunkline_core::view::{Blind, Complete, Link, Links, Pod, Snapshot};

use super::WireError;
use super::item::{id, texts, view_state};
use crate::v1;
use crate::v1::ViewKind;
use crate::v1::agent_message::Body;

/// Most items of a part.
pub const PART_ITEMS: usize = 64;

/// A part ends once it has this many bytes.
pub const PART_BYTES: usize = 512 * 1024;

/// Most items of a snapshot. A node has a few hundred pods.
pub const SNAPSHOT_ITEMS: usize = 4096;

/// Most bytes of a snapshot: every pod's annotations are limited to 256 KiB by the API server.
pub const SNAPSHOT_BYTES: usize = 32 * 1024 * 1024;

// === sending ===

/// Items cut into serialized parts.
pub(crate) struct Parts {
    /// Serialized parts.
    pub(crate) bytes: Vec<Vec<u8>>,
    /// Items in all.
    pub(crate) count: u32,
    /// SHA-256 over the parts.
    pub(crate) sha256: Vec<u8>,
}

/// Cuts items into parts; `wrap` makes the message that is serialized.
pub(crate) fn cut<I: Message, M: Message>(items: Vec<I>, wrap: fn(Vec<I>) -> M) -> Parts {
    let count = u32::try_from(items.len()).unwrap_or(u32::MAX);
    let (mut parts, mut part, mut bytes) = (Vec::new(), Vec::new(), 0);
    for item in items {
        bytes += item.encoded_len();
        part.push(item);
        if part.len() >= PART_ITEMS || bytes >= PART_BYTES {
            parts.push(wrap(std::mem::take(&mut part)).encode_to_vec());
            bytes = 0;
        }
    }
    if !part.is_empty() {
        parts.push(wrap(part).encode_to_vec());
    }
    let mut hasher = Sha256::new();
    for part in &parts {
        hasher.update(part);
    }
    Parts { bytes: parts, count, sha256: hasher.finalize().to_vec() }
}

/// The messages that carry a view, or say that it is unknown. `seq` is the number of the last delta sent before. Empty for
/// messages that are not views.
pub fn snapshot_messages(view: &FromAgent, seq: u64) -> Vec<Body> {
    match view {
        FromAgent::Pods(Ok(pods)) => pod_messages(pods, seq),
        FromAgent::Links(Ok(links)) => {
            let items = links.0.iter().map(v1::LinkItem::from).collect();
            frames(ViewKind::Links, seq, cut(items, |links| v1::LinkItems { links }), "")
        }
        FromAgent::Cgroups(Ok(uids)) => {
            let items = texts(uids);
            frames(ViewKind::Cgroups, seq, cut(items, |pod_uids| v1::CgroupItems { pod_uids }), "")
        }
        FromAgent::Pods(Err(why)) => vec![begin(ViewKind::Pods, Some(*why), seq)],
        FromAgent::Links(Err(why)) => vec![begin(ViewKind::Links, Some(*why), seq)],
        FromAgent::Cgroups(Err(why)) => vec![begin(ViewKind::Cgroups, Some(*why), seq)],
        _ => Vec::new(),
    }
}

fn pod_messages(pods: &Snapshot<Complete>, seq: u64) -> Vec<Body> {
    let items = pods.pods().values().map(v1::PodItem::from).collect();
    let rv = pods.rv().map(ResourceVersion::as_str).unwrap_or_default();
    frames(ViewKind::Pods, seq, cut(items, |pods| v1::PodItems { pods }), rv)
}

fn begin(kind: ViewKind, blind: Option<Blind>, seq: u64) -> Body {
    let state = view_state(blind).into();
    Body::SnapshotBegin(v1::SnapshotBegin { kind: kind.into(), state, seq })
}

fn frames(kind: ViewKind, seq: u64, parts: Parts, rv: &str) -> Vec<Body> {
    let mut messages = vec![begin(kind, None, seq)];
    let part = |items| Body::SnapshotPart(v1::SnapshotPart { items });
    messages.extend(parts.bytes.into_iter().map(part));
    messages.push(Body::SnapshotEnd(v1::SnapshotEnd {
        count: parts.count,
        sha256: parts.sha256,
        resource_version: rv.into(),
    }));
    messages
}

// === receiving ===

/// What came of parts so far.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    items: usize,
    bytes: usize,
    hasher: Sha256,
}

impl Tally {
    /// Takes the bytes of a part; refused before they are decoded if they are too many.
    pub(crate) fn bytes(&mut self, message: &'static str, bytes: &[u8]) -> Result<(), WireError> {
        self.bytes = self.bytes.saturating_add(bytes.len());
        limit(message, "items", self.bytes, SNAPSHOT_BYTES)?;
        self.hasher.update(bytes);
        Ok(())
    }

    /// Takes the number of items in the part.
    pub(crate) fn items(&mut self, message: &'static str, items: usize) -> Result<(), WireError> {
        self.items = self.items.saturating_add(items);
        limit(message, "items", self.items, SNAPSHOT_ITEMS)
    }

    /// Compares with what the end says.
    pub(crate) fn close(
        self,
        message: &'static str,
        announced: u32,
        sha256: &[u8],
    ) -> Result<(), WireError> {
        if usize::try_from(announced) != Ok(self.items) {
            return Err(WireError::Count { message, received: self.items, announced });
        }
        if self.hasher.finalize().as_slice() != sha256 {
            return Err(WireError::Digest { message });
        }
        Ok(())
    }
}

/// Refuses a number over its limit.
pub(crate) fn limit(
    message: &'static str,
    field: &'static str,
    count: usize,
    limit: usize,
) -> Result<(), WireError> {
    if count > limit {
        return Err(WireError::TooMany { message, field, count, limit });
    }
    Ok(())
}

/// Decodes the bytes of a part.
pub(crate) fn decode<M: Message + Default>(
    message: &'static str,
    bytes: &[u8],
) -> Result<M, WireError> {
    M::decode(bytes).map_err(|e| WireError::Undecodable { message, why: e.to_string() })
}

/// Items of the open snapshot, by kind.
#[derive(Debug)]
enum Items {
    Pods(BTreeMap<PodUid, Pod>),
    Links(BTreeMap<u32, Link>),
    Cgroups(BTreeSet<PodUid>),
}

/// Puts a snapshot together again. After an error it is closed and empty.
#[derive(Debug, Default)]
pub struct SnapshotAssembler {
    open: Option<(Items, Tally)>,
}

impl SnapshotAssembler {
    /// Whether a snapshot is open.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Begins a snapshot of a valid view; refused while one is open.
    pub fn begin(&mut self, kind: ViewKind) -> Result<(), WireError> {
        if self.open.take().is_some() {
            let point = "before the end of another snapshot";
            return Err(WireError::OutOfPlace { message: "SnapshotBegin", point });
        }
        let items = match kind {
            ViewKind::Pods => Items::Pods(BTreeMap::new()),
            ViewKind::Links => Items::Links(BTreeMap::new()),
            ViewKind::Cgroups => Items::Cgroups(BTreeSet::new()),
            ViewKind::Unspecified => {
                let (message, field, value) = ("SnapshotBegin", "kind", kind.into());
                return Err(WireError::Enum { message, field, value });
            }
        };
        self.open = Some((items, Tally::default()));
        Ok(())
    }

    /// Takes a part. One refused item refuses the snapshot.
    pub fn part(&mut self, part: &v1::SnapshotPart) -> Result<(), WireError> {
        let (mut items, mut tally) = self.take("SnapshotPart")?;
        tally.bytes("SnapshotPart", &part.items)?;
        let count = match &mut items {
            Items::Pods(pods) => add_pods(pods, &part.items)?,
            Items::Links(links) => add_links(links, &part.items)?,
            Items::Cgroups(uids) => add_cgroups(uids, &part.items)?,
        };
        tally.items("SnapshotPart", count)?;
        self.open = Some((items, tally));
        Ok(())
    }

    /// Ends the snapshot: the closed view, if count and digest agree.
    pub fn end(&mut self, end: &v1::SnapshotEnd) -> Result<FromAgent, WireError> {
        let (items, tally) = self.take("SnapshotEnd")?;
        tally.close("SnapshotEnd", end.count, &end.sha256)?;
        let rv = end.resource_version.as_str();
        if !matches!(items, Items::Pods(_)) && !rv.is_empty() {
            let why = "only a list of pods has one";
            return Err(WireError::value("SnapshotEnd", "resource_version", &rv, why));
        }
        Ok(match items {
            Items::Links(links) => FromAgent::Links(Ok(Links(links.into_values().collect()))),
            Items::Cgroups(uids) => FromAgent::Cgroups(Ok(uids)),
            Items::Pods(pods) => {
                let rv = ResourceVersion::new(rv).map_err(|cause| WireError::Id {
                    message: "SnapshotEnd",
                    field: "resource_version",
                    cause,
                })?;
                let mut snapshot = Snapshot::begin();
                for pod in pods.into_values() {
                    snapshot.add(pod);
                }
                FromAgent::Pods(Ok(snapshot.close(rv)))
            }
        })
    }

    fn take(&mut self, message: &'static str) -> Result<(Items, Tally), WireError> {
        let point = "without the begin of a snapshot";
        self.open.take().ok_or(WireError::OutOfPlace { message, point })
    }
}

fn add_pods(pods: &mut BTreeMap<PodUid, Pod>, bytes: &[u8]) -> Result<usize, WireError> {
    let part: v1::PodItems = decode("PodItems", bytes)?;
    let count = part.pods.len();
    for item in part.pods {
        let pod = Pod::try_from(item)?;
        if let Some(twice) = pods.insert(pod.pod.uid.clone(), pod) {
            let value = twice.pod.uid.to_string();
            return Err(WireError::Duplicate { message: "PodItems", field: "pods", value });
        }
    }
    Ok(count)
}

fn add_links(links: &mut BTreeMap<u32, Link>, bytes: &[u8]) -> Result<usize, WireError> {
    let part: v1::LinkItems = decode("LinkItems", bytes)?;
    let count = part.links.len();
    for item in part.links {
        let link = Link::try_from(item)?;
        if let Some(twice) = links.insert(link.index, link) {
            let value = twice.index.to_string();
            return Err(WireError::Duplicate { message: "LinkItems", field: "links", value });
        }
    }
    Ok(count)
}

fn add_cgroups(uids: &mut BTreeSet<PodUid>, bytes: &[u8]) -> Result<usize, WireError> {
    let (message, field) = ("CgroupItems", "pod_uids");
    let part: v1::CgroupItems = decode(message, bytes)?;
    for text in &part.pod_uids {
        if !uids.insert(id(message, field, text)?) {
            return Err(WireError::Duplicate { message, field, value: text.clone() });
        }
    }
    Ok(part.pod_uids.len())
}
