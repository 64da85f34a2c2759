//! A scripted API server: the test sees each request and decides what comes back, when, and in which pieces.

use std::io;

use bytes::Bytes;
use futures::stream::BoxStream;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::UnboundedReceiverStream;

use crate::api::Api;

type Piece = Result<Frame<Bytes>, io::Error>;
type Answer = Response<StreamBody<BoxStream<'static, Piece>>>;

/// The server's side.
pub(crate) struct Script {
    asked: mpsc::UnboundedReceiver<Asked>,
}

/// A request that waits for its answer. Dropping it loses the answer.
pub(crate) struct Asked {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: Vec<String>,
    pub(crate) body: Value,
    reply: oneshot::Sender<Answer>,
}

/// A body that goes on; dropping it ends the body.
pub(crate) struct Stream(mpsc::UnboundedSender<Piece>);

/// A client and the script that answers it.
pub(crate) fn scripted() -> (Api, Script) {
    let (sender, asked) = mpsc::unbounded_channel();
    let service = tower::service_fn(move |request: Request<Body>| {
        let sender = sender.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body =
                body.collect().await.map_err(|e| io::Error::other(e.to_string()))?.to_bytes();
            let (reply, answer) = oneshot::channel();
            let query = parts.uri.query().unwrap_or_default();
            let asked = Asked {
                method: parts.method,
                path: parts.uri.path().to_owned(),
                query: query.split('&').map(str::to_owned).collect(),
                body: serde_json::from_slice(&body).unwrap_or_default(),
                reply,
            };
            sender.send(asked).map_err(|_| io::Error::other("no script"))?;
            answer.await.map_err(|_| io::Error::other("the connection was lost"))
        }
    });
    (Api::new(kube::Client::new(service, "default")), Script { asked })
}

impl Script {
    /// The next request.
    pub(crate) async fn next(&mut self) -> Asked {
        self.asked.recv().await.unwrap()
    }

    /// No request is waiting now.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.asked.try_recv().is_err()
    }
}

impl Asked {
    pub(crate) fn json(self, code: u16, value: &Value) {
        self.text(code, &value.to_string());
    }

    pub(crate) fn text(self, code: u16, text: &str) {
        let stream = self.stream(code);
        stream.raw(text);
    }

    pub(crate) fn stream(self, code: u16) -> Stream {
        let (sender, receiver) = mpsc::unbounded_channel();
        let body = StreamBody::new(
            Box::pin(UnboundedReceiverStream::new(receiver)) as BoxStream<'static, Piece>
        );
        let mut answer = Response::new(body);
        *answer.status_mut() = StatusCode::from_u16(code).unwrap();
        let _lost = self.reply.send(answer);
        Stream(sender)
    }

    pub(crate) fn status(self, code: u16, reason: &str, details: &Value) {
        self.json(code, &status(code, reason, details));
    }

    pub(crate) fn asks(&self, part: &str) -> bool {
        self.query.iter().any(|q| q == part)
    }
}

impl Stream {
    pub(crate) fn raw(&self, text: &str) {
        let _gone = self.0.send(Ok(Frame::data(Bytes::from(text.to_owned()))));
    }

    pub(crate) fn line(&self, value: &Value) {
        self.raw(&format!("{value}\n"));
    }

    pub(crate) fn reset(self) {
        let _gone = self.0.send(Err(io::Error::new(io::ErrorKind::ConnectionReset, "reset")));
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

pub(crate) fn status(code: u16, reason: &str, details: &Value) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
           "message": reason, "details": details})
}

/// A small store of objects with resourceVersions behind a [`Script`]: GET, POST and PUT as the API server does them.
#[derive(Default)]
pub(crate) struct Store {
    objects: std::collections::BTreeMap<String, Value>,
    version: u64,
    pub(crate) writes: u64,
}

impl Store {
    /// Executes a request; the answer, not sent yet.
    pub(crate) fn execute(&mut self, asked: &Asked) -> (u16, Value) {
        let name = asked.path.rsplit('/').next().unwrap().to_owned();
        let resource = asked.path.rsplit('/').nth(1).unwrap().to_owned();
        match asked.method {
            Method::GET => match self.objects.get(&asked.path) {
                Some(object) => (200, object.clone()),
                None => (404, status(404, "NotFound", &json!({"name": name, "kind": resource}))),
            },
            Method::POST => {
                let path =
                    format!("{}/{}", asked.path, asked.body["metadata"]["name"].as_str().unwrap());
                if self.objects.contains_key(&path) {
                    return (409, status(409, "AlreadyExists", &json!({})));
                }
                (201, self.put(&path, asked.body.clone()))
            }
            Method::PUT => {
                let held =
                    self.objects.get(&asked.path).map(|o| o["metadata"]["resourceVersion"].clone());
                let sent = asked.body["metadata"]["resourceVersion"].clone();
                match held {
                    None => {
                        (404, status(404, "NotFound", &json!({"name": name, "kind": resource})))
                    }
                    Some(held) if held != sent => (409, status(409, "Conflict", &json!({}))),
                    Some(_) => (200, self.put(&asked.path, asked.body.clone())),
                }
            }
            _ => (405, json!(null)),
        }
    }

    pub(crate) fn put(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        self.writes += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(path.to_owned(), object.clone());
        object
    }

    pub(crate) fn get(&self, path: &str) -> Option<&Value> {
        self.objects.get(path)
    }

    pub(crate) fn remove(&mut self, path: &str) {
        self.objects.remove(path);
    }

    /// Executes and answers.
    pub(crate) fn answer(&mut self, asked: Asked) {
        let (code, value) = self.execute(&asked);
        asked.json(code, &value);
    }

    /// Executes and loses the answer.
    pub(crate) fn lose(&mut self, asked: Asked) {
        self.execute(&asked);
        drop(asked);
    }
}
