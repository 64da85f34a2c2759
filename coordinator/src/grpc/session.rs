//! `trunkline.v1.Nodes/Session`: one bidirectional stream per node (design §5).
//!
//! Inbound messages are checked by the wire conversion and handed to the node's books; a message that is refused makes all
//! views unknown and asks for a resync. Outbound there is one bounded queue; an agent that does not read it loses its
//! session instead of growing it. A stream ends when its token expires unless it was renewed, when the agent is silent for
//! too long, when another session takes the node over, and with the term.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use trunkline_core::message::{FromAgent, ToAgent};
use trunkline_proto::convert::{
    AgentReceiver, CoordinatorSender, Hello, PROTOCOL, Received, Refusal, Welcome, greeting,
};
use trunkline_proto::v1::nodes_server::Nodes;
use trunkline_proto::v1::{AgentMessage, CoordinatorMessage, RefusalReason};

use super::admission::{Admitted, Sessions, refusal};
use super::{Lead, Leading, Shared};
use crate::actor::{About, Link, Mail};
use crate::identity::{bearer, seconds_left};
use crate::metrics::{Metrics, SessionEnd};

/// Messages that may wait for an agent.
const OUTBOUND: usize = 512;
/// Greetings that are judged at one time; others wait.
const GREETINGS: usize = 64;
/// How long a greeting may take to arrive.
const GREETING: Duration = Duration::from_secs(10);
/// Agents of a large cluster come back over this time.
const RECONNECT_WITHIN: Duration = Duration::from_secs(2);

/// What waits for an agent.
#[derive(Debug)]
pub enum Out {
    /// From the books.
    To(ToAgent),
    /// As it is.
    Raw(Box<CoordinatorMessage>),
    /// The stream ends after this.
    Last(Box<CoordinatorMessage>),
}

/// The service.
pub struct NodesService {
    shared: Shared,
    greetings: Arc<Semaphore>,
    metrics: Metrics,
}

impl NodesService {
    /// For this replica.
    pub fn new(shared: Shared, metrics: Metrics) -> Self {
        Self { shared, greetings: Arc::new(Semaphore::new(GREETINGS)), metrics }
    }
}

impl NodesService {
    async fn greet(
        &self,
        inbound: &mut Inbound,
        token: &str,
    ) -> Result<(Leading, Admitted, String), Answer> {
        let first = tokio::time::timeout(GREETING, inbound.next()).await;
        let Ok(Some(Ok(first))) = first else {
            return Err(no(RefusalReason::BadGreeting, "no greeting arrived", 1));
        };
        let hello = Hello::try_from(first)
            .map_err(|e| no(RefusalReason::BadGreeting, &e.to_string(), 10))?;
        let lead = self.shared.lead.borrow().clone();
        let leading = match lead {
            Lead::Leading(leading) => leading,
            Lead::Beginning => {
                return Err(no(
                    RefusalReason::NoLeader,
                    "this coordinator is beginning its term",
                    1,
                ));
            }
            Lead::Following { .. } => {
                return Err(self.shared.leader_elsewhere().map_or_else(
                    || no(RefusalReason::NoLeader, "nobody leads at the moment", 2),
                    Answer::Redirect,
                ));
            }
        };
        // Whoever has not spoken yet holds no place.
        let Ok(_permit) = self.greetings.acquire().await else {
            return Err(no(RefusalReason::Draining, "shutting down", 1));
        };
        match leading.sessions.admit(&hello, token).await {
            Ok(admitted) => Ok((leading, admitted, hello.build)),
            Err(refused) => {
                if refused.reason == RefusalReason::Epoch {
                    // A full queue means that one is being handled.
                    let _told = self.shared.higher_epochs.try_send(hello.highest_epoch);
                }
                Err(Answer::Refused(refused))
            }
        }
    }
}

/// What an agent sends.
pub type Inbound = Pin<Box<dyn Stream<Item = Result<AgentMessage, Status>> + Send>>;
/// What it is answered.
pub type Replies = Pin<Box<dyn Stream<Item = Result<CoordinatorMessage, Status>> + Send>>;

#[tonic::async_trait]
impl Nodes for NodesService {
    type SessionStream = Replies;

    async fn session(
        &self,
        request: Request<Streaming<AgentMessage>>,
    ) -> Result<Response<Replies>, Status> {
        let token = bearer(request.metadata()).to_owned();
        Ok(Response::new(self.serve(&token, Box::pin(request.into_inner())).await))
    }
}

impl NodesService {
    /// Serves one stream of an agent that showed this token: greets it, and answers for as long as the session lasts. Knows
    /// nothing of gRPC, so that a simulation can bring the stream some other way.
    pub async fn serve(&self, token: &str, mut inbound: Inbound) -> Replies {
        let greeted = self.greet(&mut inbound, token).await;
        let (leading, admitted, build) = match greeted {
            Ok(greeted) => greeted,
            Err(answer) => {
                let end = match &answer {
                    Answer::Redirect(_) => SessionEnd::Redirected,
                    Answer::Refused(r) => {
                        tracing::warn!(reason = ?r.reason, "agent refused: {}", r.sentence);
                        SessionEnd::Refused
                    }
                };
                self.metrics.session_end(end);
                return Box::pin(stream::iter([Ok(answer.into_message())]));
            }
        };
        let (out, queue) = mpsc::channel(OUTBOUND);
        let origin = admitted.opened.origin.clone();
        let welcome = Welcome {
            origin: origin.clone(),
            version: PROTOCOL,
            build: trunkline_kit::config::version().to_owned(),
            reconnect_within: RECONNECT_WITHIN,
        };
        // The queue is empty: this cannot fail.
        let _queued = out.try_send(Out::Raw(Box::new((&welcome).into())));
        let session = Session {
            sessions: leading.sessions,
            admitted,
            build,
            inbound,
            out,
            metrics: self.metrics.clone(),
        };
        leading.term.tasks.spawn(session.run());
        let sender = CoordinatorSender::new(origin);
        encoded(queue, sender)
    }
}

/// The queue as messages; one that is larger than a message becomes several, with nothing between them.
fn encoded(queue: mpsc::Receiver<Out>, sender: CoordinatorSender) -> Replies {
    let ended = ReceiverStream::new(queue).scan(false, |ended, out| {
        let stop = *ended;
        *ended = matches!(out, Out::Last(_));
        std::future::ready((!stop).then_some(out))
    });
    Box::pin(ended.flat_map(move |out| {
        let messages = match out {
            Out::To(message) => sender.encode(&message),
            Out::Raw(message) | Out::Last(message) => vec![*message],
        };
        stream::iter(messages.into_iter().map(Ok))
    }))
}

enum Answer {
    Redirect(String),
    Refused(Refusal),
}

impl Answer {
    fn into_message(self) -> CoordinatorMessage {
        match self {
            Self::Redirect(address) => greeting::redirect(&address),
            Self::Refused(refusal) => refusal.to_message(),
        }
    }
}

fn no(reason: RefusalReason, sentence: &str, retry: u64) -> Answer {
    Answer::Refused(refusal(reason, sentence, retry))
}

struct Session {
    sessions: Arc<Sessions>,
    admitted: Admitted,
    build: String,
    inbound: Inbound,
    out: mpsc::Sender<Out>,
    metrics: Metrics,
}

impl Session {
    async fn run(mut self) {
        let term = self.sessions.term().clone();
        let (node, key) = (self.admitted.agent.node.clone(), self.admitted.key);
        let (beat, heartbeat) = watch::channel(term.clock.now());
        let link = Link {
            key,
            opened: self.admitted.opened.clone(),
            out: self.out.clone(),
            end: self.admitted.end.clone(),
            about: About {
                agent: self.admitted.agent.clone(),
                opened: self.admitted.opened.clone(),
                build: self.build.clone(),
                since: term.clock.now(),
                heartbeat,
            },
        };
        tracing::info!(%node, instance = %self.admitted.instance, session = %link.opened.origin.session, "agent connected");
        self.metrics.sessions.inc();
        let mail = self.admitted.handle.mail.clone();
        let opened = mail.send(Mail::Open(Box::new(link))).await;
        let (end, refusal) = match opened {
            Ok(()) => self.converse(&mail, &beat).await,
            Err(_) => (SessionEnd::Disconnected, None),
        };
        tracing::info!(%node, ?end, refusal = refusal.as_ref().map(|r| r.sentence.as_str()), "agent's session ended");
        if let Some(refusal) = refusal {
            // An agent whose queue is full does not get to know why.
            let _told = self.out.try_send(Out::Last(Box::new(refusal.to_message())));
        }
        self.sessions.release(&node, key);
        self.metrics.sessions.dec();
        self.metrics.session_end(end);
        // The books may have ended with the term.
        let _gone = mail.send(Mail::Closed(key)).await;
    }

    async fn converse(
        &mut self,
        mail: &mpsc::Sender<Mail>,
        beat: &watch::Sender<trunkline_core::time::Moment>,
    ) -> (SessionEnd, Option<Refusal>) {
        let term = self.sessions.term().clone();
        let key = self.admitted.key;
        let sender = CoordinatorSender::new(self.admitted.opened.origin.clone());
        let mut receiver = AgentReceiver::new(self.admitted.opened.origin.clone());
        let mut expires = self.admitted.agent.expires;
        loop {
            let silence = term.clock.sleep(term.timing.agent_silence);
            let message = tokio::select! {
                biased;
                () = term.stop.cancelled() => {
                    let why = refusal(RefusalReason::Draining, "this coordinator does not lead any more", 0);
                    return (SessionEnd::Disconnected, Some(why));
                }
                (reason, sentence) = self.admitted.end.ended() => {
                    return (SessionEnd::Replaced, Some(refusal(reason, sentence, 1)));
                }
                () = tokio::time::sleep(seconds_left(term.clock, expires)) => {
                    let why = refusal(RefusalReason::Token, "the token has expired and was not renewed", 0);
                    return (SessionEnd::Expired, Some(why));
                }
                () = silence => {
                    let why = refusal(RefusalReason::Protocol, "no message came for too long", 0);
                    return (SessionEnd::Silent, Some(why));
                }
                message = self.inbound.next() => message,
            };
            let Some(Ok(message)) = message else { return (SessionEnd::Disconnected, None) };
            let said = match receiver.receive(message) {
                Received::Message(message) => {
                    if matches!(message, FromAgent::Heartbeat(_)) {
                        beat.send_replace(term.clock.now());
                    }
                    vec![message]
                }
                Received::Token(token) => match self.renewed(token.secret(), expires).await {
                    Ok(until) => {
                        expires = until;
                        Vec::new()
                    }
                    Err(refused) => return (SessionEnd::Refused, Some(refused)),
                },
                Received::Nothing | Received::Foreign => Vec::new(),
                Received::Broken { error, views } => {
                    tracing::warn!(node = %self.admitted.agent.node, "agent's message refused, its views are unknown: {error}");
                    if self
                        .out
                        .try_send(Out::Raw(Box::new(sender.resync(&error.to_string()))))
                        .is_err()
                    {
                        let why = refusal(
                            RefusalReason::TooSlow,
                            "the agent does not read its stream fast enough",
                            1,
                        );
                        return (SessionEnd::Refused, Some(why));
                    }
                    views.into_iter().collect()
                }
            };
            for message in said {
                if mail.send(Mail::Said(key, message)).await.is_err() {
                    return (SessionEnd::Disconnected, None);
                }
            }
        }
    }

    /// A renewed token has to be of the same pod. A review without answer changes nothing: the old token still counts.
    async fn renewed(&mut self, token: &str, expires: i64) -> Result<i64, Refusal> {
        let held = &self.admitted.agent;
        match self.sessions.verifier().verify(token).await {
            Ok(agent) if agent.node == held.node && agent.pod_uid == held.pod_uid => {
                Ok(agent.expires)
            }
            Ok(_) => Err(refusal(
                RefusalReason::Token,
                "the renewed token is of another pod or node",
                10,
            )),
            Err(denied) if denied.is_temporary() => {
                tracing::warn!(node = %held.node, "renewed token not reviewed: {denied}");
                Ok(expires)
            }
            Err(denied) => Err(refusal(RefusalReason::Token, denied.to_string(), 10)),
        }
    }
}

#[cfg(test)]
mod tests;
