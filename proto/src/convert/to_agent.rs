//! From the coordinator to the agent.
//!
//! The books of a node come in parts, with count and digest, as snapshots do. The agent drops what is of another session or
//! term; a message it refuses ends the stream, and the next greeting brings the books anew.

use std::collections::BTreeMap;

use trunkline_core::fact::Origin;
use trunkline_core::id::EniId;
use trunkline_core::message::{OwnedBranch, ToAgent};

use super::WireError;
use super::greeting::{Refusal, envelope, read_redirect};
use super::heal::{addresses, clear_neighbours};
use super::item::{ack_from_wire, ack_to_wire, id, optional, required, texts, uids};
use super::snapshot::{SNAPSHOT_ITEMS, Tally, cut, decode, limit};
use crate::v1;
use crate::v1::coordinator_message::Body;

// === sending ===

/// The coordinator's side of a greeted stream.
#[derive(Debug, Clone)]
pub struct CoordinatorSender {
    origin: Origin,
}

impl CoordinatorSender {
    /// For the stream of that origin.
    pub fn new(origin: Origin) -> Self {
        Self { origin }
    }

    /// The messages that say it, to be sent in this order with nothing between them.
    pub fn encode(&self, message: &ToAgent) -> Vec<v1::CoordinatorMessage> {
        let body = match message {
            ToAgent::OwnedAll(branches) => return self.owned(branches),
            ToAgent::Trunk(mac) => Body::Trunk(v1::Trunk { mac: mac.map(|m| m.to_string()) }),
            ToAgent::OwnedChanged { added, removed } => Body::OwnedChange(v1::OwnedChange {
                added: added.iter().map(Into::into).collect(),
                removed_eni_ids: removed.iter().map(ToString::to_string).collect(),
            }),
            ToAgent::Gone(uid) => Body::Gone(v1::Gone { pod_uid: uid.to_string() }),
            ToAgent::Alive(uid) => Body::Alive(v1::Alive { pod_uid: uid.to_string() }),
            ToAgent::Ack(uid, ack) => {
                Body::Ack(v1::Ack { pod_uid: uid.to_string(), state: ack_to_wire(*ack).into() })
            }
            ToAgent::Barrier { question, uids } => {
                Body::Barrier(v1::Barrier { question: *question, pod_uids: texts(uids) })
            }
            ToAgent::SetMac(set) => Body::SetMac(set.into()),
            ToAgent::ClearNeighbours { addresses } => {
                Body::ClearNeighbours(clear_neighbours(addresses))
            }
        };
        vec![envelope(&self.origin, body)]
    }

    /// Asks for all snapshots; the sentence is for the agent's log.
    pub fn resync(&self, sentence: &str) -> v1::CoordinatorMessage {
        envelope(&self.origin, Body::Resync(v1::Resync { sentence: sentence.into() }))
    }

    fn owned(&self, branches: &[OwnedBranch]) -> Vec<v1::CoordinatorMessage> {
        let items = branches.iter().map(v1::OwnedBranch::from).collect();
        let parts = cut(items, |branches| v1::OwnedItems { branches });
        let part = |items| Body::OwnedPart(v1::OwnedPart { items });
        let end = v1::OwnedEnd { count: parts.count, sha256: parts.sha256 };
        std::iter::once(Body::OwnedBegin(v1::OwnedBegin {}))
            .chain(parts.bytes.into_iter().map(part))
            .chain(std::iter::once(Body::OwnedEnd(end)))
            .map(|body| envelope(&self.origin, body))
            .collect()
    }
}

// === receiving ===

/// What a message of the coordinator comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromCoordinator {
    /// Something for the agent.
    Message(ToAgent),
    /// All snapshots and the VLANs used are to be sent again; why.
    Resync(String),
    /// Another coordinator leads now, at this HOST:PORT; the stream ends.
    Redirect(String),
    /// The stream ends.
    Refusal(Refusal),
    /// A piece of the books.
    Nothing,
    /// Of another session or term: dropped.
    Foreign,
}

/// The agent's side of a greeted stream. After an error the stream is to be closed.
#[derive(Debug)]
pub struct CoordinatorReceiver {
    origin: Origin,
    owned: Option<(BTreeMap<EniId, OwnedBranch>, Tally)>,
}

impl CoordinatorReceiver {
    /// For the stream of that origin.
    pub fn new(origin: Origin) -> Self {
        Self { origin, owned: None }
    }

    /// Takes the next message of the stream. Redirects and refusals end the stream and count whatever their origin.
    pub fn receive(
        &mut self,
        message: v1::CoordinatorMessage,
    ) -> Result<FromCoordinator, WireError> {
        let body = required("CoordinatorMessage", "body", message.body)?;
        let body = match body {
            Body::Redirect(redirect) => {
                return read_redirect(redirect).map(FromCoordinator::Redirect);
            }
            Body::Refusal(refusal) => return Refusal::read(refusal).map(FromCoordinator::Refusal),
            body => body,
        };
        if message.session != self.origin.session.as_str()
            || message.epoch != self.origin.epoch.0
            || message.term_nonce != self.origin.nonce.0
        {
            return Ok(FromCoordinator::Foreign);
        }
        self.read(body)
    }

    fn read(&mut self, body: Body) -> Result<FromCoordinator, WireError> {
        if self.owned.is_some() && !matches!(body, Body::OwnedPart(_) | Body::OwnedEnd(_)) {
            let (message, point) = ("CoordinatorMessage", "between OwnedBegin and OwnedEnd");
            return Err(WireError::OutOfPlace { message, point });
        }
        let message = match body {
            Body::OwnedBegin(_) => {
                self.owned = Some((BTreeMap::new(), Tally::default()));
                return Ok(FromCoordinator::Nothing);
            }
            Body::OwnedPart(part) => {
                let (mut branches, mut tally) = self.take("OwnedPart")?;
                tally.bytes("OwnedPart", &part.items)?;
                let items: v1::OwnedItems = decode("OwnedItems", &part.items)?;
                tally.items("OwnedPart", items.branches.len())?;
                add(&mut branches, items.branches)?;
                self.owned = Some((branches, tally));
                return Ok(FromCoordinator::Nothing);
            }
            Body::OwnedEnd(end) => {
                let (branches, tally) = self.take("OwnedEnd")?;
                tally.close("OwnedEnd", end.count, &end.sha256)?;
                ToAgent::OwnedAll(branches.into_values().collect())
            }
            Body::OwnedChange(change) => {
                limit("OwnedChange", "added", change.added.len(), SNAPSHOT_ITEMS)?;
                let mut added = BTreeMap::new();
                add(&mut added, change.added)?;
                let field = "removed_eni_ids";
                let removed = change.removed_eni_ids.iter().map(|t| id("OwnedChange", field, t));
                ToAgent::OwnedChanged {
                    added: added.into_values().collect(),
                    removed: removed.collect::<Result<_, _>>()?,
                }
            }
            Body::Trunk(trunk) => ToAgent::Trunk(optional("Trunk", "mac", trunk.mac.as_deref())?),
            Body::Gone(gone) => ToAgent::Gone(id("Gone", "pod_uid", &gone.pod_uid)?),
            Body::Alive(alive) => ToAgent::Alive(id("Alive", "pod_uid", &alive.pod_uid)?),
            Body::Ack(ack) => {
                ToAgent::Ack(id("Ack", "pod_uid", &ack.pod_uid)?, ack_from_wire(ack.state)?)
            }
            Body::Barrier(barrier) => {
                limit("Barrier", "pod_uids", barrier.pod_uids.len(), SNAPSHOT_ITEMS)?;
                ToAgent::Barrier {
                    question: barrier.question,
                    uids: uids("Barrier", "pod_uids", &barrier.pod_uids)?,
                }
            }
            Body::SetMac(set) => ToAgent::SetMac(set.try_into()?),
            Body::ClearNeighbours(clear) => ToAgent::ClearNeighbours {
                addresses: addresses("ClearNeighbours", &clear.addresses)?,
            },
            Body::Resync(resync) => return Ok(FromCoordinator::Resync(resync.sentence)),
            Body::Welcome(_) | Body::Redirect(_) | Body::Refusal(_) => {
                let point = "after the greeting";
                return Err(WireError::OutOfPlace { message: "Welcome", point });
            }
        };
        Ok(FromCoordinator::Message(message))
    }

    fn take(
        &mut self,
        message: &'static str,
    ) -> Result<(BTreeMap<EniId, OwnedBranch>, Tally), WireError> {
        let point = "without OwnedBegin";
        self.owned.take().ok_or(WireError::OutOfPlace { message, point })
    }
}

fn add(
    branches: &mut BTreeMap<EniId, OwnedBranch>,
    items: Vec<v1::OwnedBranch>,
) -> Result<(), WireError> {
    for item in items {
        let branch = OwnedBranch::try_from(item)?;
        if let Some(twice) = branches.insert(branch.eni.clone(), branch) {
            let (message, field, value) = ("OwnedItems", "branches", twice.eni.to_string());
            return Err(WireError::Duplicate { message, field, value });
        }
    }
    Ok(())
}
