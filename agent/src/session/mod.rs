//! The one stream to the coordinator (design §5).
//!
//! The agent dials the addresses of all coordinators in random order; followers send it on to the leader. Each attempt has
//! a connection of its own, because a channel that reconnects by itself knows no back-off. After a lost session the first
//! dial waits a random time that the coordinator named, so that all nodes of a cluster do not come back in one instant.
//!
//! A term is known by its epoch. The highest one that this process greeted is kept and told to every coordinator; a
//! welcome with a lower one is a deposed leader's and refused. Every message carries session, epoch and nonce; one that
//! carries others is dropped and counted.
//!
//! Both directions are bounded. The loop never waits for the session: it hands over messages by a queue, and a queue that
//! is full means that the coordinator does not read, which ends the session. While the coordinator does not read, the
//! agent still does.

mod greet;
mod grpc;
mod stream;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use trunkline_core::fact::Origin;
use trunkline_core::id::{BootId, Epoch, KubeletStart, NodeName, SessionId};
use trunkline_core::message::{FromAgent, ToAgent};
use trunkline_kit::backoff::{Backoff, jitter};
use trunkline_kit::random;
use trunkline_proto::v1::RefusalReason;

use crate::metrics::{SessionEnd, SessionMetrics};
use crate::port::{Dialer, Target};
pub use grpc::GrpcDialer;

/// Messages that may wait for the coordinator to read; more ends the session.
pub const OUTBOUND: usize = 1024;
/// First back-off bound.
const BACKOFF_BASE: Duration = Duration::from_millis(500);
/// Largest back-off bound.
const BACKOFF_CAP: Duration = Duration::from_secs(30);
/// A session that lasted this long was progress.
const LASTED: Duration = Duration::from_secs(5);
/// Redirects that are followed without a pause.
const MAX_HOPS: u32 = 3;

/// What the session tells the loop.
#[derive(Debug)]
pub enum SessionEvent {
    /// A coordinator accepted the session; what is put into `outbound` goes to it and to no other.
    Connected {
        /// Session, epoch and nonce.
        origin: Origin,
        /// Dropping it ends the session.
        outbound: mpsc::Sender<FromAgent>,
    },
    /// The coordinator said something.
    Told(ToAgent),
    /// The coordinator asks for everything again.
    Resync,
    /// The session ended. Comes once after each `Connected`.
    Disconnected,
    /// There is no session, and why: for status and readiness.
    Waiting(String),
}

/// Who this agent is.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Its session, chosen at random once per process.
    pub session: SessionId,
    /// Its node.
    pub node: NodeName,
    /// Boot id at the start of the process.
    pub boot: BootId,
    /// Version, for people.
    pub build: String,
}

impl Identity {
    /// A random session id: 32 hex digits.
    pub fn random_session() -> Result<SessionId, trunkline_core::id::InvalidId> {
        SessionId::new(&format!("{:032x}", random::bits128()))
    }
}

/// The session's task.
pub struct Session {
    dialer: Arc<dyn Dialer>,
    identity: Identity,
    kubelet: watch::Receiver<Option<KubeletStart>>,
    events: mpsc::Sender<SessionEvent>,
    metrics: SessionMetrics,
    /// How often the token is looked at for a renewal.
    token_check: Duration,
    highest: Epoch,
}

/// How an attempt ended.
#[derive(Debug)]
enum Outcome {
    /// No session came about, or it was lost.
    Failed {
        end: SessionEnd,
        sentence: String,
        /// Earliest next dial.
        wait: Duration,
        /// Whether a session stood for a while.
        lasted: bool,
    },
    /// Go there.
    Redirect(String),
    /// The loop is gone.
    Over,
}

impl Outcome {
    fn failed(end: SessionEnd, sentence: impl Into<String>) -> Self {
        Self::Failed { end, sentence: sentence.into(), wait: Duration::ZERO, lasted: false }
    }
}

impl Session {
    /// A session that does nothing before [`Self::run`]. `kubelet`: start of the kubelet as last seen, for the greeting.
    pub fn new(
        dialer: Arc<dyn Dialer>,
        identity: Identity,
        kubelet: watch::Receiver<Option<KubeletStart>>,
        events: mpsc::Sender<SessionEvent>,
        metrics: SessionMetrics,
        token_check: Duration,
    ) -> Self {
        Self { dialer, identity, kubelet, events, metrics, token_check, highest: Epoch(0) }
    }

    /// Keeps a session open for as long as the loop receives.
    pub async fn run(mut self) {
        let mut backoff = Backoff::new(BACKOFF_BASE, BACKOFF_CAP);
        let mut redirected: Vec<Target> = Vec::new();
        let mut hops = 0;
        while !self.events.is_closed() {
            let targets = match std::mem::take(&mut redirected) {
                none if none.is_empty() => self.all_targets().await,
                some => some,
            };
            let mut wait = Duration::ZERO;
            for target in targets {
                match self.attempt(&target).await {
                    Outcome::Over => return,
                    Outcome::Redirect(address) if hops < MAX_HOPS => {
                        tracing::info!(from = %target.address, leader = %address, "redirected");
                        hops += 1;
                        self.metrics.ended(SessionEnd::Redirected);
                        redirected = vec![Target { address, server_name: target.server_name }];
                        break;
                    }
                    Outcome::Redirect(address) => {
                        self.metrics.ended(SessionEnd::Redirected);
                        let sentence =
                            format!("sent from one coordinator to the next, last to {address}");
                        self.waiting(&target, sentence).await;
                    }
                    Outcome::Failed { end, sentence, wait: least, lasted } => {
                        self.metrics.ended(end);
                        self.waiting(&target, sentence).await;
                        wait = wait.max(least);
                        if lasted {
                            backoff.reset();
                            break;
                        }
                    }
                }
            }
            if redirected.is_empty() {
                hops = 0;
                self.pause(wait.max(backoff.next_delay())).await;
            }
        }
    }

    /// All coordinators in random order.
    async fn all_targets(&self) -> Vec<Target> {
        match self.dialer.targets().await {
            Ok(mut targets) => {
                random::shuffle(&mut targets);
                targets
            }
            Err(error) => {
                self.metrics.ended(SessionEnd::Unresolved);
                tracing::warn!(%error, "failed to find a coordinator");
                let _ = self.events.send(SessionEvent::Waiting(error.to_string())).await;
                Vec::new()
            }
        }
    }

    async fn attempt(&mut self, target: &Target) -> Outcome {
        let greeted = match self.greet(target).await {
            Ok(greeted) => greeted,
            Err(outcome) => return outcome,
        };
        let origin = greeted.welcome.origin.clone();
        self.highest = origin.epoch;
        tracing::info!(
            coordinator = %target.address,
            epoch = %origin.epoch,
            build = %greeted.welcome.build,
            "session open"
        );
        self.metrics.connected(true);
        let began = Instant::now();
        let reconnect_within = greeted.welcome.reconnect_within;
        let outcome = self.serve(greeted).await;
        self.metrics.connected(false);
        if self.events.send(SessionEvent::Disconnected).await.is_err() {
            return Outcome::Over;
        }
        match outcome {
            Outcome::Failed { end, sentence, wait, .. } => Outcome::Failed {
                end,
                sentence,
                wait: wait.max(jitter(reconnect_within)),
                lasted: began.elapsed() >= LASTED,
            },
            outcome => outcome,
        }
    }

    async fn waiting(&self, target: &Target, sentence: String) {
        tracing::warn!(coordinator = %target.address, reason = %sentence, "no session");
        let _ = self.events.send(SessionEvent::Waiting(sentence)).await;
    }

    /// Sleeps, unless the loop goes away.
    async fn pause(&self, delay: Duration) {
        tokio::select! {
            biased;
            () = tokio::time::sleep(delay) => {}
            () = self.events.closed() => {}
        }
    }
}

/// What a refusal means for the next attempt.
fn refused(refusal: &trunkline_proto::convert::Refusal) -> Outcome {
    let end = match refusal.reason {
        RefusalReason::Token | RefusalReason::OtherNode => SessionEnd::RefusedIdentity,
        RefusalReason::NodeUnknown | RefusalReason::DeadIncarnation | RefusalReason::OtherAgent => {
            SessionEnd::RefusedNode
        }
        RefusalReason::NoLeader | RefusalReason::Draining => SessionEnd::RefusedNoLeader,
        RefusalReason::Epoch => SessionEnd::RefusedEpoch,
        RefusalReason::ProtocolVersion
        | RefusalReason::BadGreeting
        | RefusalReason::Protocol
        | RefusalReason::Unspecified => SessionEnd::RefusedProtocol,
        RefusalReason::Overloaded | RefusalReason::TooSlow => SessionEnd::RefusedLoad,
    };
    Outcome::Failed {
        end,
        sentence: format!("the coordinator refused: {}", refusal.sentence),
        wait: refusal.retry_after,
        lasted: false,
    }
}
