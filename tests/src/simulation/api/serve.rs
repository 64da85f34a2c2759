//! One request after another: what the weather does to it, and the answer.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::store::{Refused, Selection, text};
use super::watch;
use crate::simulation::weather::Place;
use crate::simulation::world::{Life, World};
use crate::simulation::{losses, oracle};

/// Longest that a request waits for a server that cannot be reached.
const CONNECT: Duration = Duration::from_secs(30);

type Piece = Result<Frame<Bytes>, io::Error>;
pub(super) type Answer = Response<StreamBody<BoxStream<'static, Piece>>>;

/// A request without its transport.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) query: String,
    pub(super) body: Value,
    /// Which replica answers.
    pub(super) replica: usize,
}

/// A client of a process.
pub fn client(world: &Arc<World>, life: &Arc<Life>) -> trunkline_kit::api::Api {
    let (world, life) = (world.clone(), life.clone());
    let service = tower::service_fn(move |request: Request<Body>| {
        let (world, life) = (world.clone(), life.clone());
        async move {
            let (parts, body) = request.into_parts();
            let body =
                body.collect().await.map_err(|e| io::Error::other(e.to_string()))?.to_bytes();
            let asked = Asked {
                method: parts.method,
                path: parts.uri.path().to_owned(),
                query: parts.uri.query().unwrap_or_default().to_owned(),
                body: serde_json::from_slice(&body).unwrap_or_default(),
                replica: usize::from(world.dice.chance(0.5)),
            };
            tokio::select! {
                biased;
                () = life.over.cancelled() => Err(lost("the process has ended")),
                answer = travel(&world, &life, asked) => answer,
            }
        }
    });
    trunkline_kit::api::Api::new(kube::Client::new(service, "default"))
}

fn lost(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, why.to_owned())
}

/// The way there and back.
async fn travel(world: &Arc<World>, life: &Arc<Life>, asked: Asked) -> io::Result<Answer> {
    if world.is_cut(&life.place, &Place::Api) {
        tokio::time::sleep(CONNECT).await;
        return Err(lost("no route"));
    }
    let (slow, request_lost, reply_lost) = {
        let weather = world.weather();
        (weather.api_slow, weather.api_lost, weather.api_reply_lost)
    };
    let dice = &world.dice;
    let there = if dice.chance(slow) { dice.long_tailed_ms(100..20_000) } else { dice.ms(0..8) };
    if dice.chance(request_lost) {
        world.count("fault: an API request is lost");
        tokio::time::sleep(there).await;
        return Err(lost("the request was lost"));
    }
    let what = format!("{:?} {} {}", life.place, asked.method, asked.path);
    // A write that is on its way arrives whether or not anybody waits for it.
    let answer = if asked.method == Method::GET {
        tokio::time::sleep(there).await;
        answer(world, life, &asked)
    } else {
        let (done, answered) = oneshot::channel();
        let (world, life) = (world.clone(), life.clone());
        tokio::spawn(async move {
            tokio::time::sleep(there).await;
            // Whoever asked may have stopped waiting.
            let _gone = done.send(answer(&world, &life, &asked));
        });
        answered.await.map_err(|_| lost("the run ends"))?
    };
    let code = answer.status();
    if dice.chance(reply_lost) || world.is_cut(&life.place, &Place::Api) {
        world.count("fault: an API answer is lost");
        world.note(&format!("api {what} {code}, answer lost"));
        tokio::time::sleep(dice.ms(0..8)).await;
        return Err(lost("the answer was lost"));
    }
    world.note(&format!("api {what} {code}"));
    Ok(answer)
}

fn answer(world: &Arc<World>, life: &Arc<Life>, asked: &Asked) -> Answer {
    let (refused, imposter) = {
        let weather = world.weather();
        (weather.api_refused, weather.api_imposter)
    };
    let dice = &world.dice;
    if dice.chance(refused) {
        world.count("fault: an API request is refused");
        let codes = [(429, "TooManyRequests"), (500, "InternalError"), (503, "ServiceUnavailable")];
        let (code, reason) = dice.pick(&codes).unwrap_or((500, "InternalError"));
        return status(code, reason, &json!({}));
    }
    if dice.chance(imposter) {
        world.count("fault: somebody else answers for the API");
        let code = dice.pick(&[200, 404, 502]).unwrap_or(502);
        return whole(code, "<html><body>proxy</body></html>".into());
    }
    match asked.method.as_str() {
        "GET" if asked.query.contains("watch=true") => watch::answer(world, life, asked),
        "GET" if is_list(&asked.path) => list(world, asked),
        "GET" => get(world, asked),
        _ => write(world, asked),
    }
}

fn is_list(path: &str) -> bool {
    path == "/api/v1/pods"
        || ["/nodes", "/cninodes", "/configmaps", "/securitygrouppolicies"]
            .iter()
            .any(|collection| path.ends_with(collection))
}

fn get(world: &World, asked: &Asked) -> Answer {
    if asked.path == "/version" {
        return full(200, &json!({"major": "1", "minor": "36", "gitVersion": "v1.36.3"}));
    }
    let found = world.store().get(&asked.path);
    let lies = &world.weather().lies;
    match found {
        Some(object)
            if !lies.is_empty()
                && asked.path.contains("/pods/")
                && lies.iter().any(|node| text(&object, "/spec/nodeName") == node.as_str()) =>
        {
            missing(&asked.path)
        }
        Some(object) => full(200, &object),
        None => missing(&asked.path),
    }
}

fn list(world: &World, asked: &Asked) -> Answer {
    let selection = Selection::read(&asked.path, &asked.query);
    let (broken, mut empty, gone, lied) = {
        let weather = world.weather();
        let lied = matches!(&selection, Selection::PodsOfNode(node)
            if weather.lies.iter().any(|lie| lie.as_str() == node));
        (weather.list_broken, weather.list_empty, weather.gone, lied)
    };
    let dice = &world.dice;
    if dice.chance(gone) {
        return status(410, "Expired", &json!({}));
    }
    if !matches!(selection, Selection::PodsOfNode(_)) {
        // An empty list of Nodes is an outage of its own kind; this is about pods.
        empty = 0.0;
    }
    let cached = asked.query.contains("resourceVersionMatch=NotOlderThan");
    let wanted = number_of(&asked.query, "resourceVersion=");
    let seen = if cached { watch::seen(world, asked.replica) } else { world.store().rv() };
    if seen < wanted {
        let causes = json!({"causes": [{"reason": "ResourceVersionTooLarge"}]});
        return status(504, "Timeout", &causes);
    }
    let items = if lied || dice.chance(empty) {
        world.count("fault: an empty list");
        Vec::new()
    } else {
        world.store().list_at(&selection, seen)
    };
    let mut body = json!({
        "kind": list_kind(&asked.path),
        "apiVersion": "v1",
        "metadata": {"resourceVersion": seen.max(1).to_string()},
        "items": items.iter().map(|item| (**item).clone()).collect::<Vec<Value>>(),
    });
    if dice.chance(broken) {
        world.count("fault: a list that is not whole");
        match dice.below(0..4) {
            0 => {
                let text = body.to_string();
                let cut = text.len() / 2;
                return whole(200, text.chars().take(cut).collect());
            }
            1 => set(&mut body, "/items", Value::Null),
            2 => {
                if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
                    metadata.insert("continue".to_owned(), json!("more"));
                }
                if let Some(items) = body.get_mut("items").and_then(Value::as_array_mut) {
                    items.truncate(items.len() / 2);
                }
            }
            _ => {
                set(&mut body, "/metadata/resourceVersion", json!("1"));
                set(&mut body, "/items", json!([]));
            }
        }
    }
    full(200, &body)
}

/// Replaces what is there.
fn set(body: &mut Value, pointer: &str, value: Value) {
    if let Some(place) = body.pointer_mut(pointer) {
        *place = value;
    }
}

fn list_kind(path: &str) -> &'static str {
    match path.rsplit('/').next().unwrap_or_default() {
        "pods" => "PodList",
        "nodes" => "NodeList",
        "cninodes" => "CNINodeList",
        "configmaps" => "ConfigMapList",
        _ => "SecurityGroupPolicyList",
    }
}

/// A number in a query; 0 without it.
pub(super) fn number_of(query: &str, key: &str) -> u64 {
    let found = query.split('&').find_map(|q| q.strip_prefix(key));
    found.and_then(|n| n.parse().ok()).unwrap_or_default()
}

fn write(world: &World, asked: &Asked) -> Answer {
    if asked.path.ends_with("/tokenreviews") {
        return full(201, &review(world, &asked.body));
    }
    if asked.path.contains("/events") {
        world.happened("event", text(&asked.body, "/reason"));
        return full(201, &json!({}));
    }
    let now = world.now();
    let (mut object, name) = (asked.body.clone(), text(&asked.body, "/metadata/name"));
    // By whoever's wall clock. Whether a patch changes anything must not depend on when the run is made.
    for condition in
        object.pointer_mut("/status/conditions").and_then(Value::as_array_mut).into_iter().flatten()
    {
        set(condition, "/lastTransitionTime", json!(world.clock.unix_seconds().to_string()));
    }
    let path = asked.path.strip_suffix("/status").unwrap_or(&asked.path);
    let mut store = world.store();
    let moves = store.moves();
    let done = match asked.method.as_str() {
        "POST" => store.create(now, &format!("{path}/{name}"), object).map(|made| (201, made)),
        "PUT" => store.replace(now, path, object).map(|made| (200, made)),
        "PATCH" => store.merge(now, path, &object).map(|made| (200, made)),
        "DELETE" => {
            let uid = text(&asked.body, "/preconditions/uid");
            let held = store.get(path).map(|held| (200, held));
            store.remove(now, path, uid).and_then(|()| held.ok_or(Refused::NotFound))
        }
        _ => return status(405, "MethodNotAllowed", &json!({})),
    };
    let has_changed = store.moves() > moves;
    drop(store);
    if has_changed {
        world.store_moved.notify_waiters();
    }
    // A condition is patched in, too, and says nothing of the annotation that the pod has.
    let annotates = asked.body.pointer("/metadata/annotations").is_some_and(Value::is_object);
    if let Ok((_, object)) = &done
        && asked.method == Method::PATCH
        && path.contains("/pods/")
        && annotates
    {
        oracle::after_annotation(world, object);
        losses::look(world);
    }
    match done {
        Ok((code, object)) => full(code, &object),
        Err(Refused::NotFound) => missing(path),
        Err(Refused::Conflict) => status(409, "Conflict", &json!({})),
    }
}

/// A token whose claims are its middle part.
fn review(world: &World, body: &Value) -> Value {
    let token = text(body, "/spec/token");
    let claims = token.split('.').nth(1).unwrap_or_default();
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(claims);
    let claims: Value = serde_json::from_slice(&bytes.unwrap_or_default()).unwrap_or_default();
    let expires = claims.get("exp").and_then(Value::as_i64).unwrap_or_default();
    if expires <= world.clock.unix_seconds() {
        return json!({"status": {"authenticated": false, "error": "the token has expired"}});
    }
    let mut extra = serde_json::Map::new();
    for key in ["node-name", "node-uid", "pod-name", "pod-uid"] {
        extra.insert(
            format!("authentication.kubernetes.io/{key}"),
            json!([claims.get(key).cloned().unwrap_or_default()]),
        );
    }
    json!({"status": {
        "authenticated": true,
        "audiences": ["trunkline"],
        "user": {
            "username": "system:serviceaccount:trunkline-system:trunkline-agent",
            "extra": extra,
        },
    }})
}

fn missing(path: &str) -> Answer {
    let mut parts = path.rsplit('/');
    let (name, kind) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    status(404, "NotFound", &json!({"name": name, "kind": kind}))
}

/// A `Status`.
pub(super) fn status(code: u16, reason: &str, details: &Value) -> Answer {
    full(code, &status_object(code, reason, details))
}

pub(super) fn status_object(code: u16, reason: &str, details: &Value) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "reason": reason, "message": reason, "details": details,
    })
}

fn full(code: u16, object: &Value) -> Answer {
    whole(code, object.to_string())
}

fn whole(code: u16, text: String) -> Answer {
    let piece = Ok(Frame::data(Bytes::from(text)));
    streamed(code, stream::iter([piece]).boxed())
}

/// An answer whose body comes in pieces.
pub(super) fn streamed(code: u16, pieces: BoxStream<'static, Piece>) -> Answer {
    let mut answer = Response::new(StreamBody::new(pieces));
    *answer.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::IM_A_TEAPOT);
    answer
}
