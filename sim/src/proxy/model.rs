//! What the proxy is told and what it says over HTTP. Times are milliseconds since the Unix epoch.

use serde::{Deserialize, Serialize};

/// Which requests a fault is for. All given fields must match; an empty match is every request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Match {
    /// HTTP method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Part of the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// End of the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_end: Option<String>,
    /// Part of the decoded query, such as `fieldSelector=spec.nodeName=node-1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
    /// Part of the user agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_agent: Option<String>,
    /// Part of the caller: the subject of its bearer token, such as
    /// `system:serviceaccount:trunkline-system:trunkline-agent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caller: Option<String>,
    /// Name of the pod that the caller's token is bound to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
}

impl Match {
    /// Everything that the process in this pod asks for.
    pub fn of_pod(name: &str) -> Self {
        Self { pod: Some(name.to_owned()), ..Self::default() }
    }

    /// The agents' pod LISTs and watches: pods by `spec.nodeName`.
    pub fn agents() -> Self {
        Self {
            method: Some("GET".to_owned()),
            path_end: Some("/pods".to_owned()),
            query: Some("fieldSelector=spec.nodeName=".to_owned()),
            ..Self::default()
        }
    }

    /// The same, of one node's agent. A name that is the start of another's matches both.
    pub fn agent_of(node: &str) -> Self {
        Self { query: Some(format!("fieldSelector=spec.nodeName={node}")), ..Self::agents() }
    }

    /// Requests of a method whose path contains `path`.
    pub fn request(method: &str, path: &str) -> Self {
        Self { method: Some(method.to_owned()), path: Some(path.to_owned()), ..Self::default() }
    }
}

/// The resourceVersion of a list that was emptied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EmptyVersion {
    /// The true one: the list looks complete and current.
    Current,
    /// This many below the true one (at least 1): what a lagging server says.
    Behind(u64),
    /// This one.
    Given(String),
}

/// What is done to a request, an answer, or a watch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fault", rename_all = "kebab-case")]
pub enum FaultKind {
    /// LIST: a `limit` is forced on it, so that the real server answers with a continue token; a request that carries a
    /// continue token is answered with the 410 of an expired one. A hit is a LIST that really got a token.
    ExpiredPages {
        /// Items a page.
        #[serde(default = "three")]
        limit: u32,
        /// Lets requests with the `-1` token of our 410 through to the real server, which serves the inconsistent rest
        /// (`kube.md` §2.4). Otherwise they get a 410 too.
        #[serde(default)]
        follow: bool,
    },
    /// LIST: a `limit` is forced on it; whoever follows the continue token is served by the real server. A hit is a LIST
    /// that really got a token.
    Pages {
        /// Items a page.
        #[serde(default = "three")]
        limit: u32,
    },
    /// LIST: no items, no continue token.
    EmptyList {
        /// With this resourceVersion.
        version: EmptyVersion,
    },
    /// LIST: one item is missing.
    DropItem {
        /// Its name; `None`: the first one.
        #[serde(default)]
        name: Option<String>,
    },
    /// LIST: the last page names an empty continue token, as some servers do.
    EmptyContinue,
    /// Watch: a DELETED event does not arrive.
    SwallowDelete {
        /// Of the object of this name; `None`: of any.
        #[serde(default)]
        name: Option<String>,
    },
    /// Watch: nothing arrives any more, bookmarks neither; the stream stays open.
    SilentWatch,
    /// Watch (open or new): an ERROR event with code 410 ends it.
    ExpireWatch,
    /// The request is forwarded and takes effect; then the connection is closed without an answer.
    LostReply,
    /// The connection is closed without forwarding the request.
    Cut,
    /// The request is refused without forwarding it.
    Refuse {
        /// HTTP status.
        code: u16,
        /// Reason of the Status, such as `TooManyRequests`.
        #[serde(default)]
        reason: String,
        /// Seconds of a `Retry-After` header.
        #[serde(default)]
        retry_after: Option<u32>,
    },
    /// The request is forwarded this much later.
    Delay {
        /// Milliseconds.
        ms: u64,
    },
    /// The request is held back until the fault is taken away. If its client leaves meanwhile, it is never forwarded.
    Hold,
    /// The request is held back until the fault is taken away and is forwarded then, whether or not its client is still
    /// there: a write that lands after its writer has died.
    Late,
    /// The request is forwarded and takes effect; its answer is held back until the fault is taken away.
    HoldReply,
    /// The request is neither forwarded nor answered; its connection is closed when the fault is taken away.
    Hang,
    /// GET of one object: the API server's own way to say that it does not exist, fresh in every respect.
    NotFound,
    /// The answer stops after this share of its body; the connection stays open until the fault is taken away.
    Stall {
        /// 0 to 100.
        percent: u8,
    },
    /// The answer (of a watch: its next event) ends after this share of its body.
    Truncate {
        /// 0 to 100.
        percent: u8,
        /// HTTP says that this was all; otherwise the connection breaks off.
        #[serde(default)]
        framed: bool,
    },
    /// The request is answered by another API server, such as one that is minutes behind.
    Replica {
        /// `https://HOST:PORT`; its certificate has the same authority.
        upstream: String,
    },
}

fn three() -> u32 {
    3
}

impl FaultKind {
    /// Short name for the log.
    pub fn name(&self) -> &'static str {
        match self {
            Self::ExpiredPages { .. } => "expired-pages",
            Self::Pages { .. } => "pages",
            Self::EmptyList { .. } => "empty-list",
            Self::DropItem { .. } => "drop-item",
            Self::EmptyContinue => "empty-continue",
            Self::SwallowDelete { .. } => "swallow-delete",
            Self::SilentWatch => "silent-watch",
            Self::ExpireWatch => "expire-watch",
            Self::LostReply => "lost-reply",
            Self::Cut => "cut",
            Self::Refuse { .. } => "refuse",
            Self::Delay { .. } => "delay",
            Self::Hold => "hold",
            Self::Late => "late",
            Self::HoldReply => "hold-reply",
            Self::Hang => "hang",
            Self::NotFound => "not-found",
            Self::Stall { .. } => "stall",
            Self::Truncate { .. } => "truncate",
            Self::Replica { .. } => "replica",
        }
    }
}

/// `POST /_sim/faults`: a fault to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultSpec {
    /// For which requests.
    #[serde(default, rename = "match")]
    pub matches: Match,
    /// What to do.
    #[serde(flatten)]
    pub kind: FaultKind,
    /// How often; `None`: until it is taken away.
    #[serde(default)]
    pub count: Option<u64>,
    /// How many matching ones pass first.
    #[serde(default)]
    pub skip: u64,
    /// For how long, in milliseconds; `None`: until it is taken away.
    #[serde(default)]
    pub for_ms: Option<u64>,
}

impl FaultSpec {
    /// A fault without end.
    pub fn new(matches: Match, kind: FaultKind) -> Self {
        Self { matches, kind, count: None, skip: 0, for_ms: None }
    }

    /// The fault, `count` times.
    pub fn times(matches: Match, kind: FaultKind, count: u64) -> Self {
        Self { count: Some(count), ..Self::new(matches, kind) }
    }

    /// The fault, for a period.
    pub fn period(matches: Match, kind: FaultKind, period: std::time::Duration) -> Self {
        let for_ms = u64::try_from(period.as_millis()).unwrap_or(u64::MAX);
        Self { for_ms: Some(for_ms), ..Self::new(matches, kind) }
    }
}

/// A fault and how often it struck.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultState {
    /// Its id.
    pub id: u64,
    /// What was asked for.
    pub spec: FaultSpec,
    /// How often it struck.
    pub hits: u64,
    /// It will not strike again.
    pub exhausted: bool,
}

/// One request, or one watch event that was kept back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// 1, 2, 3… without holes.
    pub seq: u64,
    /// Wall time of the request (of the event).
    pub time_ms: i64,
    /// HTTP method.
    pub method: String,
    /// Path.
    pub path: String,
    /// Decoded query, as the client sent it.
    pub query: String,
    /// User agent.
    pub user_agent: String,
    /// Subject of the bearer token; empty if there is none that can be read.
    pub caller: String,
    /// Name of the pod that the token is bound to; empty if it is bound to none.
    #[serde(default)]
    pub pod: String,
    /// Status that the client got; `None` if the connection was closed.
    pub status: Option<u16>,
    /// The faults that struck: `id:name`.
    pub faults: Vec<String>,
    /// For a kept-back watch event: its type and object, `DELETED ns/name uid`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
}
