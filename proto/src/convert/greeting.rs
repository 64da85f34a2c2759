//! The first message in either direction, and how a stream ends.
//!
//! The greeting is the only place where protocol versions are compared, and where a stream learns the [`Origin`] (session,
//! epoch, nonce) that every later message carries.

use std::time::Duration;

use trunkline_core::fact::Origin;
use trunkline_core::id::{BootId, Epoch, KubeletStart, NodeName, SessionId, TermNonce};

use super::WireError;
use super::item::{enumeration, id, optional_kubelet, required};
use crate::v1;
use crate::v1::agent_message::Body as AgentBody;
use crate::v1::coordinator_message::Body;

/// The version of the protocol that this build speaks.
pub const PROTOCOL: v1::ProtocolVersion = v1::ProtocolVersion { major: 1, minor: 0 };

/// Longest build text that is kept, in characters.
const BUILD_LIMIT: usize = 100;

/// Whether a peer of that version is understood: the same major version, minor versions at most one apart.
pub fn is_compatible(theirs: v1::ProtocolVersion) -> bool {
    theirs.major == PROTOCOL.major && theirs.minor.abs_diff(PROTOCOL.minor) <= 1
}

/// The agent's greeting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Its protocol; see [`is_compatible`].
    pub version: v1::ProtocolVersion,
    /// Its session.
    pub session: SessionId,
    /// The node it claims; the token decides.
    pub node: NodeName,
    /// Boot id.
    pub boot: BootId,
    /// Kubelet start, unless the kubelet is silent.
    pub kubelet: Option<KubeletStart>,
    /// Version of the agent, for people.
    pub build: String,
    /// Highest epoch it has seen.
    pub highest_epoch: Epoch,
}

impl From<&Hello> for v1::AgentMessage {
    fn from(hello: &Hello) -> Self {
        Self {
            session: hello.session.to_string(),
            epoch: 0,
            term_nonce: 0,
            body: Some(AgentBody::Hello(v1::Hello {
                version: Some(hello.version),
                node: hello.node.to_string(),
                boot_id: hello.boot.to_string(),
                kubelet_start_ns: hello.kubelet.map(|k| k.0),
                build: hello.build.clone(),
                highest_epoch: hello.highest_epoch.0,
            })),
        }
    }
}

impl TryFrom<v1::AgentMessage> for Hello {
    type Error = WireError;

    fn try_from(message: v1::AgentMessage) -> Result<Self, WireError> {
        let Some(AgentBody::Hello(hello)) = message.body else {
            return Err(WireError::Missing { message: "AgentMessage", field: "hello" });
        };
        Ok(Self {
            version: required("Hello", "version", hello.version)?,
            session: id("AgentMessage", "session", &message.session)?,
            node: id("Hello", "node", &hello.node)?,
            boot: id("Hello", "boot_id", &hello.boot_id)?,
            kubelet: optional_kubelet("Hello", hello.kubelet_start_ns)?,
            build: hello.build.chars().take(BUILD_LIMIT).collect(),
            highest_epoch: Epoch(hello.highest_epoch),
        })
    }
}

/// The coordinator's greeting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// What every later message of this stream carries.
    pub origin: Origin,
    /// Its protocol; see [`is_compatible`].
    pub version: v1::ProtocolVersion,
    /// Version of the coordinator, for people.
    pub build: String,
    /// When the stream is lost, the first dial waits a random time up to this.
    pub reconnect_within: Duration,
}

impl From<&Welcome> for v1::CoordinatorMessage {
    fn from(welcome: &Welcome) -> Self {
        envelope(
            &welcome.origin,
            Body::Welcome(v1::Welcome {
                version: Some(welcome.version),
                build: welcome.build.clone(),
                reconnect_within_ms: milliseconds(welcome.reconnect_within),
            }),
        )
    }
}

/// Why a stream ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Reason.
    pub reason: v1::RefusalReason,
    /// What a person can do.
    pub sentence: String,
    /// Earliest next dial; zero leaves it to the agent's backoff.
    pub retry_after: Duration,
}

impl Refusal {
    /// The message, for a stream whose session may not be known yet.
    pub fn to_message(&self) -> v1::CoordinatorMessage {
        v1::CoordinatorMessage {
            body: Some(Body::Refusal(v1::Refusal {
                reason: self.reason.into(),
                sentence: self.sentence.clone(),
                retry_after_ms: milliseconds(self.retry_after),
            })),
            ..Default::default()
        }
    }

    pub(crate) fn read(refusal: v1::Refusal) -> Result<Self, WireError> {
        let (message, field, value) = ("Refusal", "reason", refusal.reason);
        let reason = enumeration(message, field, value)?;
        if reason == v1::RefusalReason::Unspecified {
            return Err(WireError::Enum { message, field, value });
        }
        Ok(Self {
            reason,
            sentence: refusal.sentence,
            retry_after: Duration::from_millis(refusal.retry_after_ms),
        })
    }
}

/// The message that sends an agent to the leader at `HOST:PORT`.
pub fn redirect(leader_address: &str) -> v1::CoordinatorMessage {
    v1::CoordinatorMessage {
        body: Some(Body::Redirect(v1::Redirect { leader_address: leader_address.into() })),
        ..Default::default()
    }
}

pub(crate) fn read_redirect(redirect: v1::Redirect) -> Result<String, WireError> {
    if redirect.leader_address.is_empty() {
        return Err(WireError::Missing { message: "Redirect", field: "leader_address" });
    }
    Ok(redirect.leader_address)
}

/// The answer to a `Hello`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Greeting {
    /// The session is open. The agent still compares the epoch with the highest it has seen, and the version.
    Welcome(Welcome),
    /// The leader is at this HOST:PORT.
    Redirect(String),
    /// No.
    Refusal(Refusal),
}

impl Greeting {
    /// Reads the first message of the coordinator to the agent of `session`.
    pub fn read(message: v1::CoordinatorMessage, session: &SessionId) -> Result<Self, WireError> {
        match message.body {
            Some(Body::Welcome(welcome)) => {
                let theirs: SessionId = id("CoordinatorMessage", "session", &message.session)?;
                if theirs != *session {
                    let why = "the greeting is for another session";
                    return Err(WireError::value("CoordinatorMessage", "session", &theirs, why));
                }
                Ok(Self::Welcome(Welcome {
                    origin: Origin {
                        session: theirs,
                        epoch: Epoch(message.epoch),
                        nonce: TermNonce(message.term_nonce),
                    },
                    version: required("Welcome", "version", welcome.version)?,
                    build: welcome.build.chars().take(BUILD_LIMIT).collect(),
                    reconnect_within: Duration::from_millis(welcome.reconnect_within_ms),
                }))
            }
            Some(Body::Redirect(redirect)) => read_redirect(redirect).map(Self::Redirect),
            Some(Body::Refusal(refusal)) => Refusal::read(refusal).map(Self::Refusal),
            _ => Err(WireError::Missing { message: "CoordinatorMessage", field: "welcome" }),
        }
    }
}

/// Wraps a body for the stream of `origin`.
pub(crate) fn envelope(origin: &Origin, body: Body) -> v1::CoordinatorMessage {
    v1::CoordinatorMessage {
        session: origin.session.to_string(),
        epoch: origin.epoch.0,
        term_nonce: origin.nonce.0,
        body: Some(body),
    }
}

/// Whole milliseconds of a duration; saturates.
pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
