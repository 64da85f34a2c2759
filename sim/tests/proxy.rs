//! The fault proxy against a scripted upstream: what the client gets, and what reached the server.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test's helpers")]

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use futures::StreamExt;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};
use tokio::sync::broadcast;
use trunkline_sim::proxy::model::{EmptyVersion, FaultKind, FaultSpec, Match};
use trunkline_sim::proxy::{self, ProxyClient};

const LIST: &str = "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-1";
const TOKEN: &str = "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6NTAwLCJzdGFydCI6Im5zL3AzXHUwMDAwIn0";

/// What the scripted server saw, and what its watches say.
#[derive(Clone)]
struct Upstream {
    seen: Arc<Mutex<Vec<String>>>,
    tokens: Arc<Mutex<Vec<String>>>,
    events: broadcast::Sender<String>,
}

#[derive(Debug, serde::Deserialize)]
struct Params {
    limit: Option<usize>,
    #[serde(rename = "continue")]
    token: Option<String>,
    watch: Option<String>,
}

async fn pods(
    State(up): State<Upstream>,
    uri: Uri,
    headers: HeaderMap,
    Query(params): Query<Params>,
) -> Response {
    up.seen.lock().unwrap().push(format!("GET {uri}"));
    let bearer = headers.get("authorization").map_or("", |v| v.to_str().unwrap());
    up.tokens.lock().unwrap().push(bearer.to_owned());
    if params.watch.is_some() {
        let events = tokio_stream::wrappers::BroadcastStream::new(up.events.subscribe())
            .map(|line| Ok::<_, Infallible>(Bytes::from(line.unwrap() + "\n")));
        let headers = [("content-type", "application/json")];
        return (headers, Body::from_stream(events)).into_response();
    }
    let names = ["p1", "p2", "p3", "p4", "p5"];
    let names: Vec<&str> = match &params.token {
        Some(_) => names[3..].to_vec(),
        None => names[..params.limit.unwrap_or(5).min(5)].to_vec(),
    };
    let mut metadata = json!({"resourceVersion": "500"});
    if params.token.is_none() && names.len() < 5 {
        metadata["continue"] = json!(TOKEN);
        metadata["remainingItemCount"] = json!(5 - names.len());
    }
    let items: Vec<Value> = names.iter().map(|n| json!({"metadata": {"name": n}})).collect();
    axum::Json(json!({"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items}))
        .into_response()
}

async fn created(State(up): State<Upstream>, uri: Uri, body: String) -> Response {
    up.seen.lock().unwrap().push(format!("POST {uri} {body}"));
    (StatusCode::CREATED, axum::Json(json!({"kind": "Pod"}))).into_response()
}

struct Setup {
    up: Upstream,
    proxy: proxy::Running,
    client: ProxyClient,
    http: Client<HttpConnector, Full<Bytes>>,
}

impl Setup {
    async fn new() -> Self {
        let up = Upstream {
            seen: Arc::default(),
            tokens: Arc::default(),
            events: broadcast::channel(64).0,
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let router =
            Router::new().route("/api/v1/pods", get(pods).post(created)).with_state(up.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        let args = proxy::Args {
            bind: "127.0.0.1:0".parse().unwrap(),
            upstream: format!("http://{addr}").parse().unwrap(),
            ca: None,
            insecure: true,
        };
        let proxy = proxy::start(&args).await.unwrap();
        let client = proxy.client();
        Self { up, proxy, client, http: Client::builder(TokioExecutor::new()).build_http() }
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        body: &'static str,
    ) -> Result<http::Response<hyper::body::Incoming>, hyper_util::client::legacy::Error> {
        let request = http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.proxy.url()))
            .header("authorization", "Bearer secret")
            .body(Full::new(Bytes::from_static(body.as_bytes())))
            .unwrap();
        self.http.request(request).await
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        let answer = self.send("GET", path, "").await.unwrap();
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice(&body).unwrap())
    }

    async fn names(&self) -> Vec<String> {
        let (status, list) = self.get(LIST).await;
        assert_eq!(status, 200);
        let items = list["items"].as_array().unwrap();
        items.iter().map(|i| i["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }

    fn seen(&self) -> Vec<String> {
        self.up.seen.lock().unwrap().clone()
    }

    /// Opens a watch; its lines come through the returned stream.
    async fn watch(&self) -> impl futures::Stream<Item = Value> + Unpin + use<> {
        let answer = self.send("GET", &format!("{LIST}&watch=true"), "").await.unwrap();
        assert_eq!(answer.status(), 200);
        let before = self.up.events.receiver_count();
        assert!(before > 0, "the server's stream is open once the headers have come");
        answer
            .into_body()
            .into_data_stream()
            .map(|chunk| serde_json::from_slice(&chunk.unwrap()).unwrap())
            .boxed()
    }

    fn event(&self, kind: &str, name: &str) {
        let object = json!({"metadata": {"name": name, "namespace": "ns", "uid": "u"}});
        self.up.events.send(json!({"type": kind, "object": object}).to_string()).unwrap();
    }
}

async fn next(stream: &mut (impl futures::Stream<Item = Value> + Unpin)) -> Value {
    tokio::time::timeout(Duration::from_secs(10), stream.next()).await.unwrap().unwrap()
}

#[tokio::test]
async fn without_faults_nothing_is_changed_and_tokens_are_passed_on() {
    let s = Setup::new().await;
    assert_eq!(s.names().await, ["p1", "p2", "p3", "p4", "p5"]);
    assert_eq!(s.seen(), [format!("GET {LIST}")]);
    assert_eq!(*s.up.tokens.lock().unwrap(), ["Bearer secret"]);
    let log = s.client.log(0).await.unwrap();
    assert_eq!((log.len(), log[0].status, log[0].faults.len()), (1, Some(200), 0));
    assert_eq!(log[0].query, "fieldSelector=spec.nodeName=node-1");
}

#[tokio::test]
async fn s01_pages_are_forced_and_the_continue_token_is_expired_three_times_then_it_works() {
    let s = Setup::new().await;
    let kind = FaultKind::ExpiredPages { limit: 3, follow: false };
    let id = s.client.add(&FaultSpec::times(Match::agents(), kind, 3)).await.unwrap();
    for _ in 0..3 {
        let (status, page) = s.get(LIST).await;
        assert_eq!((status, page["items"].as_array().unwrap().len()), (200, 3));
        let token = page["metadata"]["continue"].as_str().unwrap();
        let (status, expired) = s.get(&format!("{LIST}&limit=3&continue={token}")).await;
        assert_eq!(
            (status, &expired["reason"], &expired["code"]),
            (410, &json!("Expired"), &json!(410))
        );
        assert_ne!(
            expired["metadata"]["continue"],
            json!(token),
            "the token of the 410 is the -1 one"
        );
    }
    assert_eq!(s.names().await.len(), 5);
    assert_eq!(s.client.hits(id).await.unwrap(), 3);
    let seen = s.seen();
    assert_eq!(seen.len(), 4, "no continue request reached the server: {seen:?}");
    assert!(seen[..3].iter().all(|r| r.ends_with("&limit=3")), "{seen:?}");
}

#[tokio::test]
async fn a_minus_one_token_may_be_followed_to_show_the_trap() {
    let s = Setup::new().await;
    let kind = FaultKind::ExpiredPages { limit: 3, follow: true };
    s.client.add(&FaultSpec::new(Match::agents(), kind)).await.unwrap();
    let (_, page) = s.get(LIST).await;
    let token = page["metadata"]["continue"].as_str().unwrap();
    let (status, expired) = s.get(&format!("{LIST}&continue={token}")).await;
    assert_eq!(status, 410);
    let rest = expired["metadata"]["continue"].as_str().unwrap();
    let (status, list) = s.get(&format!("{LIST}&continue={rest}")).await;
    assert_eq!((status, list["items"].as_array().unwrap().len()), (200, 2));
}

#[tokio::test]
async fn lists_come_empty_with_an_old_or_the_true_version_or_lack_an_item() {
    let s = Setup::new().await;
    for (version, expected) in [(EmptyVersion::Current, "500"), (EmptyVersion::Behind(400), "100")]
    {
        let kind = FaultKind::EmptyList { version };
        s.client.add(&FaultSpec::times(Match::agent_of("node-1"), kind, 1)).await.unwrap();
        let (_, list) = s.get(LIST).await;
        assert_eq!(list["items"], json!([]));
        assert_eq!(list["metadata"], json!({"resourceVersion": expected}));
    }
    let kind = FaultKind::DropItem { name: Some("p3".to_owned()) };
    let id = s.client.add(&FaultSpec::new(Match::agents(), kind)).await.unwrap();
    assert_eq!(s.names().await, ["p1", "p2", "p4", "p5"]);
    assert!(s.client.remove(id).await.unwrap());
    assert_eq!(s.names().await.len(), 5);
}

#[tokio::test]
async fn other_requests_than_the_matched_ones_are_left_alone() {
    let s = Setup::new().await;
    let kind = FaultKind::EmptyList { version: EmptyVersion::Current };
    let id = s.client.add(&FaultSpec::new(Match::agent_of("node-2"), kind)).await.unwrap();
    assert_eq!(s.names().await.len(), 5);
    assert_eq!(s.client.hits(id).await.unwrap(), 0);
}

#[tokio::test]
async fn a_watch_streams_event_by_event_and_only_the_deleted_event_is_swallowed() {
    let s = Setup::new().await;
    let mut events = s.watch().await;
    s.event("ADDED", "p1");
    assert_eq!(next(&mut events).await["type"], "ADDED");
    let kind = FaultKind::SwallowDelete { name: Some("p1".to_owned()) };
    let id = s.client.add(&FaultSpec::new(Match::agents(), kind)).await.unwrap();
    s.event("DELETED", "p1");
    s.event("DELETED", "p2");
    let event = next(&mut events).await;
    assert_eq!(
        (&event["type"], &event["object"]["metadata"]["name"]),
        (&json!("DELETED"), &json!("p2"))
    );
    assert_eq!(s.client.hits(id).await.unwrap(), 1);
    let log = s.client.log(0).await.unwrap();
    assert!(log.iter().any(|l| l.event.as_deref() == Some("DELETED ns/p1 u")));
}

#[tokio::test]
async fn an_open_watch_is_ended_with_an_error_event() {
    let s = Setup::new().await;
    let mut events = s.watch().await;
    s.client.add(&FaultSpec::times(Match::agents(), FaultKind::ExpireWatch, 1)).await.unwrap();
    let event = next(&mut events).await;
    assert_eq!((&event["type"], &event["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert!(events.next().await.is_none());
    let mut again = s.watch().await;
    s.event("ADDED", "p1");
    assert_eq!(next(&mut again).await["type"], "ADDED");
}

#[tokio::test]
async fn t1_a_lost_reply_takes_effect_and_a_cut_request_does_not() {
    let s = Setup::new().await;
    let on_post = Match::request("POST", "/pods");
    s.client.add(&FaultSpec::times(on_post.clone(), FaultKind::LostReply, 1)).await.unwrap();
    s.send("POST", "/api/v1/pods", "one").await.unwrap_err();
    assert_eq!(s.seen(), ["POST /api/v1/pods one"]);
    s.client.add(&FaultSpec::times(on_post, FaultKind::Cut, 1)).await.unwrap();
    s.send("POST", "/api/v1/pods", "two").await.unwrap_err();
    assert_eq!(s.seen().len(), 1);
    assert_eq!(s.send("POST", "/api/v1/pods", "three").await.unwrap().status(), 201);
    let statuses: Vec<_> = s.client.log(0).await.unwrap().into_iter().map(|l| l.status).collect();
    assert_eq!(statuses, [None, None, Some(201)]);
}

#[tokio::test]
async fn requests_are_refused_with_retry_after_and_held_until_the_fault_goes() {
    let s = Setup::new().await;
    let kind =
        FaultKind::Refuse { code: 429, reason: "TooManyRequests".to_owned(), retry_after: Some(7) };
    s.client.add(&FaultSpec::times(Match::agents(), kind, 1)).await.unwrap();
    let refused = s.send("GET", LIST, "").await.unwrap();
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers()["retry-after"], "7");
    let id = s.client.add(&FaultSpec::new(Match::agents(), FaultKind::Hold)).await.unwrap();
    let mut held = std::pin::pin!(s.get(LIST));
    let arrived = async {
        while s.client.hits(id).await.unwrap() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        _ = &mut held => panic!("a held request was answered"),
        () = arrived => {}
    }
    assert!(s.seen().is_empty());
    s.client.clear().await.unwrap();
    assert_eq!(held.await.0, 200);
}

#[tokio::test]
async fn bodies_end_early_in_form_or_not_or_stop_until_the_fault_goes() {
    let s = Setup::new().await;
    let whole = s.get(LIST).await.1.to_string();
    let body = async |kind: FaultKind| {
        s.client.add(&FaultSpec::times(Match::agents(), kind, 1)).await.unwrap();
        s.send("GET", LIST, "").await.unwrap().into_body().collect().await
    };
    let half = body(FaultKind::Truncate { percent: 50, framed: true }).await.unwrap().to_bytes();
    assert!((1..whole.len()).contains(&half.len()), "{half:?}");
    assert!(body(FaultKind::Truncate { percent: 50, framed: false }).await.is_err());
    let stall = FaultSpec::new(Match::agents(), FaultKind::Stall { percent: 50 });
    let id = s.client.add(&stall).await.unwrap();
    let mut answer = s.send("GET", LIST, "").await.unwrap().into_body();
    let first = answer.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(first.len(), half.len());
    let more = tokio::time::timeout(Duration::from_millis(200), answer.frame()).await;
    assert!(more.is_err(), "it stops there");
    s.client.remove(id).await.unwrap();
    assert!(answer.frame().await.unwrap().is_err());
    let mut events = s.watch().await;
    s.event("ADDED", "p1");
    assert_eq!(next(&mut events).await["type"], "ADDED");
    drop(events);
    let cut = FaultKind::Truncate { percent: 50, framed: true };
    s.client.add(&FaultSpec::times(Match::agents(), cut, 1)).await.unwrap();
    let watch = s.send("GET", &format!("{LIST}&watch=true"), "").await.unwrap().into_body();
    s.event("ADDED", "p2");
    let part = watch.collect().await.unwrap().to_bytes();
    assert!(!part.is_empty() && serde_json::from_slice::<Value>(&part).is_err(), "{part:?}");
}

#[tokio::test]
async fn t2_a_held_reply_has_taken_effect_and_a_late_request_outlives_its_client() {
    let s = Setup::new().await;
    let on_post = Match::request("POST", "/pods");
    let gives_up = async |body: &'static str| {
        let sent = s.send("POST", "/api/v1/pods", body);
        assert!(tokio::time::timeout(Duration::from_millis(300), sent).await.is_err());
    };
    let held = FaultSpec::new(on_post.clone(), FaultKind::HoldReply);
    let held = s.client.add(&held).await.unwrap();
    gives_up("one").await;
    assert_eq!(s.seen(), ["POST /api/v1/pods one"]);
    s.client.remove(held).await.unwrap();
    let late = s.client.add(&FaultSpec::new(on_post.clone(), FaultKind::Late)).await.unwrap();
    gives_up("two").await;
    assert_eq!(s.seen().len(), 1);
    s.client.remove(late).await.unwrap();
    let hang = s.client.add(&FaultSpec::new(on_post, FaultKind::Hang)).await.unwrap();
    gives_up("three").await;
    s.client.remove(hang).await.unwrap();
    tokio::time::timeout(Duration::from_secs(10), async {
        while s.seen().len() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    assert_eq!(s.seen()[1], "POST /api/v1/pods two");
}

#[tokio::test]
async fn another_server_answers_what_a_replica_is_asked_and_a_made_up_not_found_is_whole() {
    let s = Setup::new().await;
    let behind = Setup::new().await;
    let upstream = behind.proxy.url();
    s.client
        .add(&FaultSpec::times(Match::agents(), FaultKind::Replica { upstream }, 1))
        .await
        .unwrap();
    s.get(LIST).await;
    assert_eq!((s.seen().len(), behind.seen().len()), (0, 1));
    s.get(LIST).await;
    assert_eq!((s.seen().len(), behind.seen().len()), (1, 1));
    let one = Match::request("GET", "/namespaces/ns/pods/");
    s.client.add(&FaultSpec::new(one, FaultKind::NotFound)).await.unwrap();
    let (code, status) = s.get("/api/v1/namespaces/ns/pods/p1").await;
    assert_eq!(code, 404);
    assert_eq!(status["details"], json!({"name": "p1", "kind": "pods"}));
    s.client
        .add(&FaultSpec::times(Match::agents(), FaultKind::Pages { limit: 3 }, 1))
        .await
        .unwrap();
    let (_, page) = s.get(LIST).await;
    let token = page["metadata"]["continue"].as_str().unwrap().to_owned();
    let (code, rest) = s.get(&format!("{LIST}&continue={token}")).await;
    assert_eq!((code, rest["items"].as_array().unwrap().len()), (200, 2));
}
