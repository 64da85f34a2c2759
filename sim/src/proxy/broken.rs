//! Bodies that end early, in due form or not, or that stop and never end.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;

use super::fault::{Faults, Strike};
use super::forward::{Body, BoxError};
use super::model::FaultKind;

/// How a cut body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// HTTP says that this was all.
    Framed,
    /// The connection breaks off.
    Broken,
}

impl End {
    /// What comes after the part that was sent.
    pub fn chunk(self) -> Option<Result<Bytes, BoxError>> {
        match self {
            Self::Framed => None,
            Self::Broken => Some(Err("cut by a fault".into())),
        }
    }
}

/// The first `percent` of some bytes.
pub fn part(bytes: &Bytes, percent: u8) -> Bytes {
    bytes.slice(..bytes.len() * usize::from(percent.min(100)) / 100)
}

/// The part of the body that the fault lets pass, and the end it wants.
pub fn body(bytes: &Bytes, strike: &Strike, faults: Arc<Faults>) -> Body {
    let (percent, end, stalls) = match &strike.kind {
        FaultKind::Truncate { percent, framed: true } => (*percent, End::Framed, false),
        FaultKind::Truncate { percent, framed: false } => (*percent, End::Broken, false),
        FaultKind::Stall { percent } => (*percent, End::Broken, true),
        _ => (100, End::Framed, false),
    };
    let id = strike.id;
    let first = stream::iter([Ok(part(bytes, percent))]);
    let last = stream::once(async move {
        if stalls {
            faults.until_gone(id).await;
        } else {
            // What was sent has to be on its way before the connection breaks.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        end.chunk()
    });
    let chunks = first.chain(last.filter_map(std::future::ready));
    StreamBody::new(chunks.map(|chunk| chunk.map(Frame::data))).boxed_unsync()
}
