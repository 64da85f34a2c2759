//! Which agent speaks for a node: checks 5 and 7 of `kube.md` §4, and the order of a greeting.
//!
//! The token is verified first; only then anything is kept for the agent. A node has one session. The same agent pod takes
//! over at once (it reconnected or restarted); another pod only if the one that is connected is gone, or if it is newer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use trunkline_core::fact::Origin;
use trunkline_core::id::{InstanceId, NodeName, PodUid};
use trunkline_core::node::event::SessionOpened;
use trunkline_proto::convert::greeting::is_compatible;
use trunkline_proto::convert::{Hello, Refusal};
use trunkline_proto::v1::RefusalReason;

use crate::actor::Ending;
use crate::api::objects::{Incarnation, incarnation};
use crate::identity::{Agent, Verifier};
use crate::nodes::objects::NodeObject;
use crate::term::{Handle, Term};

/// An agent that was let in.
#[derive(Debug)]
pub struct Admitted {
    /// Who.
    pub agent: Agent,
    /// For the books.
    pub opened: SessionOpened,
    /// The session's number in this term.
    pub key: u64,
    /// The instance.
    pub instance: InstanceId,
    /// Its books.
    pub handle: Handle,
    /// Ends the session.
    pub end: Ending,
}

#[derive(Clone)]
struct Current {
    key: u64,
    agent: Agent,
    end: Ending,
}

/// The sessions of a term.
pub struct Sessions {
    term: Arc<Term>,
    verifier: Arc<Verifier>,
    current: Mutex<HashMap<NodeName, Current>>,
}

impl Sessions {
    /// None yet.
    pub fn new(term: Arc<Term>, verifier: Arc<Verifier>) -> Self {
        Self { term, verifier, current: Mutex::default() }
    }

    /// The term.
    pub fn term(&self) -> &Arc<Term> {
        &self.term
    }

    /// The verifier, for renewed tokens.
    pub fn verifier(&self) -> &Verifier {
        &self.verifier
    }

    /// Judges a greeting.
    pub async fn admit(&self, hello: &Hello, token: &str) -> Result<Admitted, Refusal> {
        if !is_compatible(hello.version) {
            let sentence = format!(
                "protocol {}.{} is not supported; agent and coordinator may differ by one minor release",
                hello.version.major, hello.version.minor
            );
            return Err(refusal(RefusalReason::ProtocolVersion, sentence, 60));
        }
        let agent = self.verifier.verify(token).await.map_err(|denied| {
            let retry = if denied.is_temporary() { 1 } else { 10 };
            refusal(RefusalReason::Token, denied.to_string(), retry)
        })?;
        if agent.node != hello.node {
            let sentence =
                format!("the token is bound to node {}, not to {}", agent.node, hello.node);
            return Err(refusal(RefusalReason::OtherNode, sentence, 10));
        }
        if hello.highest_epoch > self.term.term.epoch {
            let sentence = format!(
                "epoch {} was seen by the agent, this term has {}",
                hello.highest_epoch, self.term.term.epoch
            );
            return Err(refusal(RefusalReason::Epoch, sentence, 2));
        }
        let node = self.term.directory.view(&agent.node).and_then(|v| v.node).ok_or_else(|| {
            refusal(
                RefusalReason::NodeUnknown,
                format!("there is no Node object {}", agent.node),
                2,
            )
        })?;
        same_incarnation(&node, &agent, hello)?;
        let (instance, handle) = self.term.actor_of(&agent.node).ok_or_else(|| {
            let sentence =
                "the Node's spec.providerID does not end in an EC2 instance id".to_owned();
            refusal(RefusalReason::NodeUnknown, sentence, 10)
        })?;
        let (key, end) = self.claim(&agent).await?;
        let origin = Origin {
            session: hello.session.clone(),
            epoch: self.term.term.epoch,
            nonce: self.term.term.nonce,
        };
        let opened = SessionOpened { origin, boot: hello.boot.clone(), kubelet: hello.kubelet };
        Ok(Admitted { agent, opened, key, instance, handle, end })
    }

    /// The session ended.
    pub fn release(&self, node: &NodeName, key: u64) {
        let mut current = self.lock();
        if current.get(node).is_some_and(|c| c.key == key) {
            current.remove(node);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<NodeName, Current>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Check 7.
    async fn claim(&self, agent: &Agent) -> Result<(u64, Ending), Refusal> {
        for _ in 0..3 {
            let other =
                self.lock().get(&agent.node).filter(|c| c.agent.pod_uid != agent.pod_uid).cloned();
            if let Some(other) = &other {
                self.may_take_over(agent, &other.agent).await?;
            }
            if let Some(claimed) = self.replace(agent, other.map(|o| o.key)) {
                return Ok(claimed);
            }
        }
        let sentence = "several agents of this node connect at once".to_owned();
        Err(refusal(RefusalReason::OtherAgent, sentence, 5))
    }

    /// Takes the place, unless another pod took it since it was judged.
    fn replace(&self, agent: &Agent, judged: Option<u64>) -> Option<(u64, Ending)> {
        let mut current = self.lock();
        let held =
            current.get(&agent.node).filter(|c| c.agent.pod_uid != agent.pod_uid).map(|c| c.key);
        if held != judged {
            return None;
        }
        let key = self.term.session_key();
        let end = Ending::default();
        let new = Current { key, agent: agent.clone(), end: end.clone() };
        if let Some(old) = current.insert(agent.node.clone(), new) {
            old.end.end(
                RefusalReason::OtherAgent,
                "another session of this node's agent was accepted",
            );
        }
        Some((key, end))
    }

    async fn may_take_over(&self, new: &Agent, old: &Agent) -> Result<(), Refusal> {
        let unknown = |e: String| {
            let sentence =
                format!("another agent of this node is connected, and its pod cannot be read: {e}");
            refusal(RefusalReason::OtherAgent, sentence, 5)
        };
        let of = |agent: &Agent| {
            let (namespace, pod, uid) =
                (agent.namespace.clone(), agent.pod.clone(), agent.pod_uid.clone());
            async move {
                incarnation(&self.term.api, &namespace, &pod)
                    .await
                    .map(|found| with_uid(found, &uid))
            }
        };
        let Some(old) = of(old).await.map_err(unknown)? else {
            return Ok(());
        };
        let new = of(new).await.map_err(unknown)?;
        if new.is_some_and(|new| new.created > old.created) {
            return Ok(());
        }
        let sentence =
            "another agent of this node, whose pod is not older, is connected".to_owned();
        Err(refusal(RefusalReason::OtherAgent, sentence, 10))
    }
}

/// A pod of another UID under that name means that the asked one is gone.
fn with_uid(found: Option<Incarnation>, uid: &PodUid) -> Option<Incarnation> {
    found.filter(|i| i.uid == *uid)
}

/// Check 5: the token's node UID is the Node object's, or, where the Node object was re-created (S56), the agent runs under
/// the boot that the Node's status names. An agent of a dead machine under a reused name (S55) has neither.
fn same_incarnation(node: &NodeObject, agent: &Agent, hello: &Hello) -> Result<(), Refusal> {
    let same_uid = agent.node_uid.as_ref().is_some_and(|uid| uid.as_str() == node.metadata.uid);
    if same_uid || node.boot().as_ref() == Some(&hello.boot) {
        return Ok(());
    }
    let sentence = "neither the token's node UID nor the boot id is the Node's: this is an agent of a machine that is gone".to_owned();
    Err(refusal(RefusalReason::DeadIncarnation, sentence, 10))
}

/// A refusal with the earliest next dial in seconds.
pub fn refusal(reason: RefusalReason, sentence: impl Into<String>, retry_seconds: u64) -> Refusal {
    Refusal { reason, sentence: sentence.into(), retry_after: Duration::from_secs(retry_seconds) }
}
