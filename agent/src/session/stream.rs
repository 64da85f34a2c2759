//! A greeted stream, until it ends.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::StreamExt;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use trunkline_core::message::FromAgent;
use trunkline_proto::convert::{AgentSender, CoordinatorReceiver, FromCoordinator};
use trunkline_proto::v1;

use super::greet::Greeted;
use super::{OUTBOUND, Outcome, Session, SessionEvent, refused};
use crate::metrics::SessionEnd;
use crate::port::{DialError, Dialer};

impl Session {
    pub(super) async fn serve(&self, greeted: Greeted) -> Outcome {
        let Greeted { welcome, mut inbound, wire, token } = greeted;
        let (outbound, mut from_loop) = mpsc::channel(OUTBOUND);
        let connected = SessionEvent::Connected { origin: welcome.origin.clone(), outbound };
        if self.events.send(connected).await.is_err() {
            return Outcome::Over;
        }
        let mut sender = AgentSender::new(welcome.origin.clone());
        let mut receiver = CoordinatorReceiver::new(welcome.origin);
        let mut tokens = TokenWatch { dialer: Arc::clone(&self.dialer), last: token };
        let mut checks =
            tokio::time::interval_at(Instant::now() + self.token_check, self.token_check);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut pending: VecDeque<v1::AgentMessage> = VecDeque::new();
        loop {
            tokio::select! {
                biased;
                message = inbound.next() => {
                    if let Err(end) = self.receive(&mut receiver, message).await {
                        return end;
                    }
                }
                // The next message of the loop is taken once the last one is on its way, so that what waits here is at
                // most one snapshot.
                message = from_loop.recv(), if pending.is_empty() => match message {
                    Some(message) => self.encode(&mut sender, &message, &mut pending),
                    None => return closed_by_loop(&self.events),
                },
                permit = wire.reserve(), if !pending.is_empty() => match (permit, pending.pop_front()) {
                    (Ok(permit), Some(message)) => permit.send(message),
                    _ => return Outcome::failed(SessionEnd::Lost, "the stream was closed"),
                },
                _ = checks.tick() => if let Some(token) = tokens.renewed() {
                    tracing::info!("the token was renewed");
                    pending.push_back(sender.token(&token));
                },
            }
        }
    }

    fn encode(
        &self,
        sender: &mut AgentSender,
        message: &FromAgent,
        pending: &mut VecDeque<v1::AgentMessage>,
    ) {
        self.metrics.sent(message);
        pending.extend(sender.encode(message));
    }

    async fn receive(
        &self,
        receiver: &mut CoordinatorReceiver,
        message: Option<Result<v1::CoordinatorMessage, DialError>>,
    ) -> Result<(), Outcome> {
        let message = match message {
            Some(Ok(message)) => message,
            Some(Err(error)) => return Err(Outcome::failed(SessionEnd::Lost, error.to_string())),
            None => {
                return Err(Outcome::failed(SessionEnd::Lost, "the coordinator ended the stream"));
            }
        };
        let event = match receiver.receive(message) {
            Ok(FromCoordinator::Message(message)) => SessionEvent::Told(message),
            Ok(FromCoordinator::Resync(sentence)) => {
                tracing::warn!(reason = %sentence, "the coordinator asks for everything again");
                self.metrics.resync();
                SessionEvent::Resync
            }
            Ok(FromCoordinator::Redirect(address)) => return Err(Outcome::Redirect(address)),
            Ok(FromCoordinator::Refusal(refusal)) => return Err(refused(&refusal)),
            Ok(FromCoordinator::Nothing) => return Ok(()),
            Ok(FromCoordinator::Foreign) => {
                self.metrics.foreign();
                return Ok(());
            }
            Err(error) => return Err(Outcome::failed(SessionEnd::BadMessage, error.to_string())),
        };
        self.events.send(event).await.map_err(|_| Outcome::Over)
    }
}

/// The loop dropped its end: because it is gone, or because the queue was full.
fn closed_by_loop(events: &mpsc::Sender<SessionEvent>) -> Outcome {
    if events.is_closed() {
        return Outcome::Over;
    }
    Outcome::failed(SessionEnd::TooSlow, "the coordinator does not read what it is sent")
}

/// Notices that the token file holds another token.
struct TokenWatch {
    dialer: Arc<dyn Dialer>,
    last: String,
}

impl TokenWatch {
    fn renewed(&mut self) -> Option<String> {
        match self.dialer.token() {
            Ok(token) if token != self.last => {
                self.last.clone_from(&token);
                Some(token)
            }
            Ok(_) => None,
            Err(error) => {
                tracing::warn!(%error, "failed to look for a renewed token");
                None
            }
        }
    }
}
