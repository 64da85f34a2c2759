//! The way of a request through the proxy.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::BoxStream;
use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, RETRY_AFTER, TRANSFER_ENCODING,
};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use kube::client::Body as KubeBody;
use tokio::sync::watch;

use super::fault::{Ask, Faults, Strike, query_pairs};
use super::model::FaultKind;
use super::replica::Replicas;
use super::{broken, rewrite};

/// What can go wrong in a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// A body to the client.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// Why the connection to the client is closed without an answer.
#[derive(Debug, thiserror::Error)]
pub enum Closed {
    /// A fault wants it so.
    #[error("closed by fault {0}")]
    Fault(String),
    /// The client broke off.
    #[error("failed to read the request")]
    Request(#[source] hyper::Error),
    /// An answer could not be put together.
    #[error("failed to build an answer")]
    Build(#[source] http::Error),
}

/// The proxy's state.
pub struct Proxy {
    /// To the real API server; carries no credentials of its own.
    pub upstream: kube::Client,
    /// To others, by address.
    pub replicas: Replicas,
    /// The faults.
    pub faults: Arc<Faults>,
}

/// A body that is whole.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never: Infallible| match never {}).boxed_unsync()
}

fn json_answer(status: u16, body: &serde_json::Value) -> Result<Response<Body>, Closed> {
    Response::builder()
        .status(status)
        .header(CONTENT_TYPE, "application/json")
        .body(full(body.to_string()))
        .map_err(Closed::Build)
}

fn is_json(headers: &HeaderMap) -> bool {
    headers
        .get(CONTENT_TYPE)
        .and_then(|v| v.to_str().ok())
        .is_some_and(|v| v.starts_with("application/json"))
}

/// Takes away what belongs to one connection only.
fn strip(headers: &mut HeaderMap) {
    for name in [HOST, CONNECTION, TRANSFER_ENCODING, CONTENT_LENGTH] {
        headers.remove(name);
    }
}

impl Proxy {
    /// Answers a request, or closes its connection.
    pub async fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Closed> {
        let (head, body) = request.into_parts();
        let ask = Ask::of(&head);
        let mut strikes = self.before(&ask).await;
        if let Some(answer) = self.refuse(&ask, &strikes)? {
            return Ok(answer);
        }
        if let Some(late) = strikes.iter().find(|s| s.kind == FaultKind::Late) {
            let request = self.upstream_request(head, body, &[]).await?;
            return Arc::clone(&self).late(ask, late.clone(), request).await;
        }
        if let Some(token) = &ask.continues
            && let Some(label) = self.faults.expired(&ask, token)
        {
            self.faults.log(&ask, Some(410), vec![label], None);
            return json_answer(410, &rewrite::expired_page(token));
        }
        let changes_list = |kind: &FaultKind| {
            matches!(
                kind,
                FaultKind::EmptyList { .. } | FaultKind::DropItem { .. } | FaultKind::EmptyContinue
            ) || (matches!(kind, FaultKind::ExpiredPages { .. } | FaultKind::Pages { .. })
                && ask.continues.is_none())
        };
        let list_faults = if ask.method == "GET" && !ask.watch {
            self.faults.strike(&ask, changes_list)
        } else {
            Vec::new()
        };
        let shape = if ask.watch { None } else { self.shape(&ask) };
        let request = self.upstream_request(head, body, &list_faults).await?;
        let answer = match self.upstream(&strikes).send(request).await {
            Ok(answer) => answer,
            Err(error) => {
                let error = crate::support::causes(&error);
                tracing::warn!(path = ask.path, error, "the API server did not answer");
                self.faults.log(&ask, Some(502), labels(&strikes), None);
                return json_answer(502, &rewrite::refusal(502, "BadGateway"));
            }
        };
        if let Some(lost) = strikes.iter().find(|s| s.kind == FaultKind::LostReply) {
            // The answer is read to its end: only then has the request certainly taken effect.
            let _whatever = answer.into_body().collect().await;
            self.faults.log(&ask, None, labels(&strikes), None);
            return Err(Closed::Fault(lost.label()));
        }
        if let Some(held) = strikes.iter().find(|s| s.kind == FaultKind::HoldReply) {
            return self.hold_reply(&ask, held, answer).await;
        }
        if let Some(shape) = shape {
            strikes.push(shape.clone());
            self.faults.log(&ask, Some(answer.status().as_u16()), labels(&strikes), None);
            let (mut head, body) = answer.into_parts();
            strip(&mut head.headers);
            let body = body.collect().await.map_err(upstream_broke)?.to_bytes();
            let body = broken::body(&body, &shape, Arc::clone(&self.faults));
            return Ok(Response::from_parts(head, body));
        }
        if !list_faults.is_empty() {
            let (answer, struck) = self.change_list(answer, &list_faults).await?;
            strikes.extend(struck);
            self.faults.log(&ask, Some(answer.status().as_u16()), labels(&strikes), None);
            return Ok(answer);
        }
        self.faults.log(&ask, Some(answer.status().as_u16()), labels(&strikes), None);
        Ok(self.pass(ask, answer))
    }

    /// Faults that strike before anything is forwarded, and those that wait are waited for here.
    async fn before(&self, ask: &Ask) -> Vec<Strike> {
        let strikes = self.faults.strike(ask, |kind| {
            matches!(
                kind,
                FaultKind::Delay { .. }
                    | FaultKind::Hold
                    | FaultKind::HoldReply
                    | FaultKind::Late
                    | FaultKind::Hang
                    | FaultKind::NotFound
                    | FaultKind::Replica { .. }
                    | FaultKind::Cut
                    | FaultKind::Refuse { .. }
                    | FaultKind::LostReply
            )
        });
        for strike in &strikes {
            match strike.kind {
                FaultKind::Delay { ms } => tokio::time::sleep(Duration::from_millis(ms)).await,
                FaultKind::Hold | FaultKind::Hang => self.faults.until_gone(strike.id).await,
                _ => {}
            }
        }
        strikes
    }

    fn refuse(&self, ask: &Ask, strikes: &[Strike]) -> Result<Option<Response<Body>>, Closed> {
        for strike in strikes {
            match &strike.kind {
                FaultKind::NotFound if ask.method == "GET" && !ask.watch => {
                    self.faults.log(ask, Some(404), labels(strikes), None);
                    return json_answer(404, &rewrite::not_found(&ask.path)).map(Some);
                }
                FaultKind::Cut | FaultKind::Hang => {
                    self.faults.log(ask, None, labels(strikes), None);
                    return Err(Closed::Fault(strike.label()));
                }
                FaultKind::Refuse { code, reason, retry_after } => {
                    self.faults.log(ask, Some(*code), labels(strikes), None);
                    let mut answer = json_answer(*code, &rewrite::refusal(*code, reason))?;
                    if let Some(seconds) = retry_after {
                        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(*seconds));
                    }
                    return Ok(Some(answer));
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// The API server that answers.
    fn upstream(&self, strikes: &[Strike]) -> kube::Client {
        let replica = strikes.iter().find_map(|s| match &s.kind {
            FaultKind::Replica { upstream } => Some(upstream),
            _ => None,
        });
        replica.and_then(|url| self.replicas.client(url)).unwrap_or_else(|| self.upstream.clone())
    }

    /// The fault that breaks off the body, if one does.
    fn shape(&self, ask: &Ask) -> Option<Strike> {
        let breaks =
            |kind: &FaultKind| matches!(kind, FaultKind::Stall { .. } | FaultKind::Truncate { .. });
        self.faults.strike(ask, breaks).into_iter().next()
    }

    /// Waits, then forwards. The task outlives the connection that it came by.
    async fn late(
        self: Arc<Self>,
        ask: Ask,
        late: Strike,
        request: Request<KubeBody>,
    ) -> Result<Response<Body>, Closed> {
        let label = late.label();
        let done = tokio::spawn(async move {
            self.faults.until_gone(late.id).await;
            let answer = self.upstream.send(request).await.map_err(upstream_broke)?;
            let (mut head, body) = answer.into_parts();
            strip(&mut head.headers);
            let body = body.collect().await.map_err(upstream_broke)?.to_bytes();
            self.faults.log(&ask, Some(head.status.as_u16()), vec![late.label()], None);
            Ok(Response::from_parts(head, full(body)))
        });
        done.await.unwrap_or(Err(Closed::Fault(label)))
    }

    async fn hold_reply(
        &self,
        ask: &Ask,
        held: &Strike,
        answer: Response<KubeBody>,
    ) -> Result<Response<Body>, Closed> {
        let (mut parts, body) = answer.into_parts();
        strip(&mut parts.headers);
        // Read to its end: only then has the request certainly taken effect.
        let body = body.collect().await.map_err(upstream_broke)?.to_bytes();
        self.faults.log(ask, Some(parts.status.as_u16()), vec![held.label()], None);
        self.faults.until_gone(held.id).await;
        Ok(Response::from_parts(parts, full(body)))
    }

    async fn upstream_request(
        &self,
        mut head: http::request::Parts,
        body: Incoming,
        list_faults: &[Strike],
    ) -> Result<Request<KubeBody>, Closed> {
        let body = body.collect().await.map_err(Closed::Request)?.to_bytes();
        let forced = list_faults.iter().find_map(|s| match s.kind {
            FaultKind::ExpiredPages { limit, .. } | FaultKind::Pages { limit } => Some(limit),
            _ => None,
        });
        let uri = match forced {
            Some(limit) => {
                let pairs = query_pairs(head.uri.query().unwrap_or_default());
                format!("{}?{}", head.uri.path(), rewrite::with_limit(&pairs, limit))
            }
            None => {
                head.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str).to_owned()
            }
        };
        strip(&mut head.headers);
        // Answers are looked into: they have to come uncompressed.
        head.headers.remove(http::header::ACCEPT_ENCODING);
        let mut request = Request::builder()
            .method(head.method)
            .uri(uri)
            .body(KubeBody::from(body.to_vec()))
            .map_err(Closed::Build)?;
        *request.headers_mut() = head.headers;
        Ok(request)
    }

    /// Reads a list whole and changes it. Strikes that turned out to have no effect are taken back.
    async fn change_list(
        &self,
        answer: Response<KubeBody>,
        list_faults: &[Strike],
    ) -> Result<(Response<Body>, Vec<Strike>), Closed> {
        let (mut head, body) = answer.into_parts();
        strip(&mut head.headers);
        let body = match body.collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => return Err(upstream_broke(error)),
        };
        let list = if head.status == StatusCode::OK { rewrite::as_list(&body) } else { None };
        let Some(mut list) = list else {
            for strike in list_faults {
                self.faults.take_back(strike.id);
            }
            return Ok((Response::from_parts(head, full(body)), Vec::new()));
        };
        let mut struck = Vec::new();
        for strike in list_faults {
            let effective = if let FaultKind::Pages { .. } = strike.kind {
                rewrite::continue_token(&list).is_some()
            } else if let FaultKind::ExpiredPages { .. } = strike.kind {
                let token = rewrite::continue_token(&list).map(str::to_owned);
                if let Some(token) = &token {
                    self.faults.token_given(token);
                }
                token.is_some()
            } else {
                rewrite::change_list(&mut list, &strike.kind)
            };
            if effective {
                struck.push(strike.clone());
            } else {
                self.faults.take_back(strike.id);
            }
        }
        let body = serde_json::Value::Object(list).to_string();
        Ok((Response::from_parts(head, full(body)), struck))
    }

    /// Passes an answer on as it comes; a watch's events one by one.
    fn pass(self: Arc<Self>, ask: Ask, answer: Response<KubeBody>) -> Response<Body> {
        let (mut head, body) = answer.into_parts();
        let filtered = ask.watch && head.status == StatusCode::OK && is_json(&head.headers);
        let chunked = head.headers.get(CONTENT_LENGTH).cloned();
        strip(&mut head.headers);
        let body = if filtered {
            let chunks = body.into_data_stream().map(|c| c.map_err(BoxError::from)).boxed();
            let changes = self.faults.changes();
            let buffer = BytesMut::new();
            let events =
                Events { proxy: self, ask, chunks, changes, buffer, cut: None, ended: false };

            StreamBody::new(events.stream()).boxed_unsync()
        } else {
            if let Some(length) = chunked {
                head.headers.insert(CONTENT_LENGTH, length);
            }
            body.map_err(BoxError::from).boxed_unsync()
        };
        Response::from_parts(head, body)
    }
}

fn upstream_broke(error: impl std::fmt::Display) -> Closed {
    tracing::warn!(%error, "the API server's answer broke off");
    Closed::Fault("upstream".to_owned())
}

fn labels(strikes: &[Strike]) -> Vec<String> {
    strikes.iter().map(Strike::label).collect()
}

/// A watch on its way to the client. Only whole lines are passed on; the server sends whole lines, so nothing waits.
struct Events {
    proxy: Arc<Proxy>,
    ask: Ask,
    chunks: BoxStream<'static, Result<Bytes, BoxError>>,
    changes: watch::Receiver<u64>,
    buffer: BytesMut,
    /// The last event was cut; the stream ends in due form or breaks off.
    cut: Option<broken::End>,
    ended: bool,
}

impl Events {
    fn stream(self) -> BoxStream<'static, Result<Frame<Bytes>, BoxError>> {
        futures::stream::unfold(self, |mut events| async move {
            let next = events.next().await?;
            Some((next.map(Frame::data), events))
        })
        .boxed()
    }

    async fn next(&mut self) -> Option<Result<Bytes, BoxError>> {
        loop {
            if self.ended {
                return None;
            }
            if let Some(end) = self.cut.take() {
                self.ended = true;
                return end.chunk();
            }
            self.changes.mark_unchanged();
            if self.expires() {
                self.ended = true;
                return Some(Ok(Bytes::from(rewrite::expired_watch())));
            }
            if let Some(line) = self.line() {
                if self.kept_back(&line) {
                    continue;
                }
                return Some(Ok(self.cut_off(line)));
            }
            tokio::select! {
                chunk = self.chunks.next() => match chunk {
                    Some(Ok(chunk)) => self.buffer.extend_from_slice(&chunk),
                    Some(Err(error)) => {
                        self.ended = true;
                        return Some(Err(error));
                    }
                    None => {
                        self.ended = true;
                        // A cut last line is passed on as it came.
                        let rest = self.buffer.split().freeze();
                        return (!rest.is_empty()).then_some(Ok(rest));
                    }
                },
                _ = self.changes.changed() => {}
            }
        }
    }

    fn line(&mut self) -> Option<Bytes> {
        let end = self.buffer.iter().position(|b| *b == b'\n')?;
        Some(self.buffer.split_to(end + 1).freeze())
    }

    fn expires(&self) -> bool {
        let strikes = self.proxy.faults.strike(&self.ask, |k| *k == FaultKind::ExpireWatch);
        if !strikes.is_empty() {
            self.proxy.faults.log(
                &self.ask,
                Some(200),
                labels(&strikes),
                Some("ERROR 410".to_owned()),
            );
        }
        !strikes.is_empty()
    }

    /// The line, or its part if a fault cuts it.
    fn cut_off(&mut self, line: Bytes) -> Bytes {
        let strikes =
            self.proxy.faults.strike(&self.ask, |k| matches!(k, FaultKind::Truncate { .. }));
        let Some(FaultKind::Truncate { percent, framed }) = strikes.first().map(|s| &s.kind) else {
            return line;
        };
        let event = rewrite::event_head(&line).map(|head| head.label);
        self.proxy.faults.log(&self.ask, Some(200), labels(&strikes), event);
        self.cut = Some(if *framed { broken::End::Framed } else { broken::End::Broken });
        broken::part(&line, *percent)
    }

    fn kept_back(&self, line: &[u8]) -> bool {
        let Some(event) = rewrite::event_head(line) else {
            return false;
        };
        let strikes = self.proxy.faults.strike(&self.ask, |kind| rewrite::keeps_back(kind, &event));
        if strikes.is_empty() {
            return false;
        }
        self.proxy.faults.log(&self.ask, Some(200), labels(&strikes), Some(event.label));
        true
    }
}
