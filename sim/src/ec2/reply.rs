//! HTTP replies, whole ones and broken ones.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;

pub(super) type Body = BoxBody<Bytes, io::Error>;

/// What is to be sent.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) content_type: String,
    pub(super) body: String,
    pub(super) request_id: String,
    pub(super) retry_after_ms: Option<u64>,
    pub(super) date_offset_s: Option<i64>,
    pub(super) chunked: bool,
    /// Only this share of the body, in percent, and whether the framing is broken too.
    pub(super) cut: Option<(u8, bool)>,
    /// The body comes in pieces, over this time.
    pub(super) drip: Option<Duration>,
}

impl Reply {
    /// JSON for the admin interface.
    pub(super) fn json(status: u16, body: String) -> Self {
        Self {
            status,
            content_type: "application/json".into(),
            body,
            request_id: String::new(),
            retry_after_ms: None,
            date_offset_s: None,
            chunked: false,
            cut: None,
            drip: None,
        }
    }

    pub(super) fn into_response(self) -> Response<Body> {
        let mut bytes = Bytes::from(self.body);
        let mut broken = false;
        if let Some((percent, bad_framing)) = self.cut {
            bytes.truncate(bytes.len() * usize::from(percent.min(100)) / 100);
            broken = bad_framing;
        }
        let body = if broken {
            broken_body(bytes)
        } else if let Some(time) = self.drip {
            dripping_body(&bytes, time)
        } else if self.chunked {
            BodyExt::boxed(StreamBody::new(stream::iter([Ok(Frame::data(bytes))])))
        } else {
            BodyExt::boxed(Full::new(bytes).map_err(|never| match never {}))
        };
        let mut response = Response::new(body);
        *response.status_mut() =
            StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        let mut set = |name: &'static str, value: String| {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(name, value);
            }
        };
        set("content-type", self.content_type);
        if !self.request_id.is_empty() {
            set("server", "AmazonEC2".into());
            set("x-amzn-requestid", self.request_id);
        }
        if let Some(ms) = self.retry_after_ms {
            set("x-amz-retry-after", ms.to_string());
        }
        if let Some(offset) = self.date_offset_s {
            let date = jiff::Timestamp::now()
                .checked_add(jiff::SignedDuration::from_secs(offset))
                .map(|t| t.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string());
            set("date", date.unwrap_or_default());
        }
        response
    }
}

/// Sends the bytes in twenty pieces.
fn dripping_body(bytes: &Bytes, time: Duration) -> Body {
    let pieces: Vec<Bytes> =
        bytes.chunks((bytes.len() / 20).max(1)).map(Bytes::copy_from_slice).collect();
    let pause = time / u32::try_from(pieces.len().max(1)).unwrap_or(u32::MAX);
    let pieces = stream::iter(pieces).then(move |piece| async move {
        tokio::time::sleep(pause).await;
        Ok(Frame::data(piece))
    });
    BodyExt::boxed(StreamBody::new(pieces))
}

/// Sends the bytes, waits until they are on their way, then breaks the connection.
fn broken_body(bytes: Bytes) -> Body {
    let broken = stream::once(async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        Err(io::Error::other("the fault asks for it"))
    });
    BodyExt::boxed(StreamBody::new(stream::iter([Ok(Frame::data(bytes))]).chain(broken)))
}
