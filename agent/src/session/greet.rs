//! Opening a stream and exchanging greetings.

use std::time::Duration;

use futures::StreamExt;
use tokio::sync::mpsc;
use trunkline_core::id::Epoch;
use trunkline_proto::convert::greeting::is_compatible;
use trunkline_proto::convert::{Greeting, Hello, PROTOCOL, Welcome};
use trunkline_proto::v1;

use super::{Outcome, Session, refused};
use crate::metrics::SessionEnd;
use crate::port::{Inbound, Target};

/// Bound on connecting, and on waiting for the answer to the greeting.
const GREETING: Duration = Duration::from_secs(10);
/// Messages between the session and the transport.
const WIRE: usize = 16;

/// A stream whose greetings were exchanged.
pub(super) struct Greeted {
    pub(super) welcome: Welcome,
    pub(super) inbound: Inbound,
    pub(super) wire: mpsc::Sender<v1::AgentMessage>,
    pub(super) token: String,
}

impl Session {
    pub(super) async fn greet(&self, target: &Target) -> Result<Greeted, Outcome> {
        let token =
            self.dialer.token().map_err(|e| Outcome::failed(SessionEnd::NoToken, e.to_string()))?;
        let (wire, outbound) = mpsc::channel(WIRE);
        let hello = v1::AgentMessage::from(&self.hello());
        // A fresh queue has room.
        let _ = wire.try_send(hello);
        let opened = tokio::time::timeout(GREETING, self.dialer.open(target, outbound)).await;
        let mut inbound = match opened {
            Ok(Ok(inbound)) => inbound,
            Ok(Err(error)) => {
                return Err(Outcome::failed(SessionEnd::Unreachable, error.to_string()));
            }
            Err(_) => {
                return Err(Outcome::failed(SessionEnd::Unreachable, "no connection in time"));
            }
        };
        let answer = match tokio::time::timeout(GREETING, inbound.next()).await {
            Ok(Some(Ok(answer))) => answer,
            Ok(Some(Err(error))) => {
                return Err(Outcome::failed(SessionEnd::Unreachable, error.to_string()));
            }
            Ok(None) => {
                return Err(Outcome::failed(
                    SessionEnd::Lost,
                    "the stream ended before a greeting",
                ));
            }
            Err(_) => {
                return Err(Outcome::failed(SessionEnd::Unreachable, "no greeting in time"));
            }
        };
        match Greeting::read(answer, &self.identity.session) {
            Ok(Greeting::Welcome(welcome)) => {
                self.check(&welcome)?;
                Ok(Greeted { welcome, inbound, wire, token })
            }
            Ok(Greeting::Redirect(address)) => Err(Outcome::Redirect(address)),
            Ok(Greeting::Refusal(refusal)) => Err(refused(&refusal)),
            Err(error) => Err(Outcome::failed(SessionEnd::BadMessage, error.to_string())),
        }
    }

    fn hello(&self) -> Hello {
        Hello {
            version: PROTOCOL,
            session: self.identity.session.clone(),
            node: self.identity.node.clone(),
            boot: self.identity.boot.clone(),
            kubelet: *self.kubelet.borrow(),
            build: self.identity.build.clone(),
            highest_epoch: self.highest,
        }
    }

    fn check(&self, welcome: &Welcome) -> Result<(), Outcome> {
        if !is_compatible(welcome.version) {
            let sentence = format!(
                "the coordinator speaks protocol {}.{}, this agent {}.{}",
                welcome.version.major, welcome.version.minor, PROTOCOL.major, PROTOCOL.minor
            );
            return Err(Outcome::failed(SessionEnd::RefusedProtocol, sentence));
        }
        let Epoch(epoch) = welcome.origin.epoch;
        if welcome.origin.epoch < self.highest {
            let sentence = format!(
                "the coordinator is of epoch {epoch}, but {} was greeted before: it no longer leads",
                self.highest
            );
            return Err(Outcome::failed(SessionEnd::LowerEpoch, sentence));
        }
        Ok(())
    }
}
