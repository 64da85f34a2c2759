//! A client for the admin interface, and for plain Query requests.

use std::collections::BTreeMap;

use bytes::Bytes;
use http::{Method, Request, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::fault::Fault;
use super::model::{
    AssociateSpec, ById, EniSpec, GroupSpec, GroupsEdit, InstanceEdit, InstanceSpec, InstanceState,
    LogEntry, State, SubnetSpec, TagEdit,
};
use super::switches::Switches;

/// Why a request to the simulator failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// It could not be sent, or was not answered.
    #[error("failed to reach the simulator at {url}: {reason}")]
    Unreachable {
        /// Where.
        url: String,
        /// Why.
        reason: String,
    },
    /// It was refused.
    #[error("the simulator refused '{path}' with {status}: {body}")]
    Refused {
        /// What was asked.
        path: String,
        /// HTTP status.
        status: u16,
        /// The answer.
        body: String,
    },
    /// The answer is not what was expected.
    #[error("failed to understand the simulator's answer to '{path}': {source}")]
    Unexpected {
        /// What was asked.
        path: String,
        /// Why.
        source: serde_json::Error,
    },
}

type Result<T> = std::result::Result<T, ClientError>;

/// An answer to a plain request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Headers with text values.
    pub headers: BTreeMap<String, String>,
    /// Body.
    pub body: String,
}

impl Answer {
    /// The text of the first element of that name.
    pub fn element(&self, name: &str) -> Option<&str> {
        self.elements(name).next()
    }

    /// The text of every element of that name, in order.
    pub fn elements<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        let (open, close) = (format!("<{name}>"), format!("</{name}>"));
        let mut rest = self.body.as_str();
        std::iter::from_fn(move || {
            let (_, after) = rest.split_once(&open)?;
            let (text, after) = after.split_once(&close)?;
            rest = after;
            Some(text)
        })
    }

    /// The error code, if it is an error.
    pub fn code(&self) -> Option<&str> {
        self.element("Code")
    }
}

/// The client. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SimClient {
    base: String,
    http: Client<HttpConnector, Full<Bytes>>,
}

#[derive(serde::Deserialize)]
struct Id {
    id: String,
}

impl SimClient {
    /// For the simulator at `base`, such as `http://127.0.0.1:1234`.
    pub fn new(base: &str) -> Self {
        Self {
            base: base.trim_end_matches('/').to_owned(),
            http: Client::builder(TokioExecutor::new()).build_http(),
        }
    }

    /// The simulator's URL.
    pub fn url(&self) -> &str {
        &self.base
    }

    /// Sends a request and reads the whole answer.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> Result<Answer> {
        let unreachable =
            |reason: String| ClientError::Unreachable { url: self.base.clone(), reason };
        let uri: Uri =
            format!("{}{path}", self.base).parse().map_err(|e| unreachable(format!("{e}")))?;
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request =
            request.body(Full::new(Bytes::from(body))).map_err(|e| unreachable(e.to_string()))?;
        let response =
            self.http.request(request).await.map_err(|e| unreachable(format!("{e:?}")))?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.map_err(|e| unreachable(format!("{e:?}")))?.to_bytes();
        let text = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
            Some((name.to_string(), value.to_str().ok()?.to_owned()))
        };
        Ok(Answer {
            status: parts.status.as_u16(),
            headers: parts.headers.iter().filter_map(text).collect(),
            body: String::from_utf8_lossy(&body).into_owned(),
        })
    }

    /// A Query request as the access key `caller`.
    pub async fn query(
        &self,
        caller: &str,
        action: &str,
        params: &[(&str, &str)],
    ) -> Result<Answer> {
        let mut body = format!("Action={action}&Version=2016-11-15");
        for (key, value) in params {
            body.extend(["&", *key, "=", &percent_encode(value)]);
        }
        let credential = format!(
            "AWS4-HMAC-SHA256 Credential={caller}/20260101/eu-west-1/ec2/aws4_request, SignedHeaders=host, Signature=0"
        );
        let headers = [
            ("content-type", "application/x-www-form-urlencoded"),
            ("authorization", credential.as_str()),
        ];
        self.send(Method::POST, "/", &headers, body).await
    }

    async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: String,
    ) -> Result<T> {
        let answer = self.send(method, path, &[("content-type", "application/json")], body).await?;
        if answer.status != 200 {
            return Err(ClientError::Refused {
                path: path.into(),
                status: answer.status,
                body: answer.body,
            });
        }
        serde_json::from_str(&answer.body)
            .map_err(|source| ClientError::Unexpected { path: path.into(), source })
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.json(Method::GET, path, String::new()).await
    }

    async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T> {
        let body = serde_json::to_string(body)
            .map_err(|source| ClientError::Unexpected { path: path.into(), source })?;
        self.json(Method::POST, path, body).await
    }

    async fn post_for_id(&self, path: &str, body: &impl Serialize) -> Result<String> {
        self.post::<Id>(path, body).await.map(|id| id.id)
    }

    /// Whether it answers.
    pub async fn health(&self) -> Result<()> {
        self.get::<String>("/_sim/health").await.map(drop)
    }

    /// The log from that sequence number on (1 is the first).
    pub async fn log(&self, from: u64) -> Result<Vec<LogEntry>> {
        self.get(&format!("/_sim/log?from={from}")).await
    }

    /// The truth.
    pub async fn state(&self) -> Result<State> {
        self.get("/_sim/state").await
    }

    /// The switches.
    pub async fn switches(&self) -> Result<Switches> {
        self.get("/_sim/switches").await
    }

    /// Changes the switches that are in `patch`.
    pub async fn set_switches(&self, patch: &Value) -> Result<Switches> {
        self.post("/_sim/switches", patch).await
    }

    /// Turns the token buckets on or off.
    pub async fn set_throttle(&self, enabled: bool) -> Result<()> {
        self.set_switches(&json!({"throttle": {"enabled": enabled}})).await.map(drop)
    }

    /// Sets the latency of every action.
    pub async fn set_latency(&self, ms: u64) -> Result<()> {
        self.set_switches(&json!({"latency": {"default_ms": ms}})).await.map(drop)
    }

    /// Sets a fault and answers its name.
    pub async fn inject(&self, fault: &Fault) -> Result<String> {
        self.post_for_id("/_sim/faults", fault).await
    }

    /// The faults that are set, each with how often it fired.
    pub async fn faults(&self) -> Result<Vec<(Fault, u64)>> {
        #[derive(serde::Deserialize)]
        struct Set {
            fault: Fault,
            fired: u64,
        }
        let set: Vec<Set> = self.get("/_sim/faults").await?;
        Ok(set.into_iter().map(|s| (s.fault, s.fired)).collect())
    }

    /// Takes one fault away, or all.
    pub async fn clear_faults(&self, id: Option<&str>) -> Result<()> {
        self.post::<Value>("/_sim/faults/clear", &json!({ "id": id })).await.map(drop)
    }

    /// Adds an instance.
    pub async fn add_instance(&self, spec: &InstanceSpec) -> Result<InstanceState> {
        self.post("/_sim/instances", spec).await
    }

    /// Gives an instance another state.
    pub async fn set_instance_state(&self, id: &str, state: &str) -> Result<()> {
        let edit = InstanceEdit { id: id.into(), state: state.into() };
        self.post_for_id("/_sim/instances/state", &edit).await.map(drop)
    }

    /// Terminates an instance.
    pub async fn terminate_instance(&self, id: &str) -> Result<()> {
        self.set_instance_state(id, "terminated").await
    }

    /// Makes an ENI out of band.
    pub async fn add_eni(&self, spec: &EniSpec) -> Result<String> {
        self.post_for_id("/_sim/enis", spec).await
    }

    /// Deletes an ENI out of band.
    pub async fn delete_eni(&self, id: &str) -> Result<()> {
        self.post_for_id("/_sim/enis/delete", &ById { id: id.into() }).await.map(drop)
    }

    /// Detaches an ENI out of band.
    pub async fn detach_eni(&self, id: &str) -> Result<()> {
        self.post_for_id("/_sim/enis/detach", &ById { id: id.into() }).await.map(drop)
    }

    /// Associates out of band and answers the association id.
    pub async fn associate(&self, branch: &str, trunk: &str, vlan: u32) -> Result<String> {
        let spec = AssociateSpec { branch: branch.into(), trunk: trunk.into(), vlan };
        self.post_for_id("/_sim/enis/associate", &spec).await
    }

    /// Removes an association out of band, by its id or its branch's.
    pub async fn disassociate(&self, id: &str) -> Result<()> {
        self.post_for_id("/_sim/enis/disassociate", &ById { id: id.into() }).await.map(drop)
    }

    /// Replaces an ENI's groups out of band.
    pub async fn set_groups(&self, id: &str, groups: &[String]) -> Result<()> {
        let edit = GroupsEdit { id: id.into(), groups: groups.to_vec() };
        self.post_for_id("/_sim/enis/groups", &edit).await.map(drop)
    }

    /// Sets and removes tags out of band.
    pub async fn edit_tags(&self, edit: &TagEdit) -> Result<()> {
        self.post_for_id("/_sim/tags", edit).await.map(drop)
    }

    /// Adds a subnet and answers its id.
    pub async fn add_subnet(&self, spec: &SubnetSpec) -> Result<String> {
        self.post_for_id("/_sim/subnets", spec).await
    }

    /// Adds a security group and answers its id.
    pub async fn add_group(&self, spec: &GroupSpec) -> Result<String> {
        self.post_for_id("/_sim/security-groups", spec).await
    }

    /// Removes a security group.
    pub async fn delete_group(&self, id: &str) -> Result<()> {
        self.post_for_id("/_sim/security-groups/delete", &ById { id: id.into() }).await.map(drop)
    }
}

/// As the SDK encodes: everything but unreserved characters.
fn percent_encode(text: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}
