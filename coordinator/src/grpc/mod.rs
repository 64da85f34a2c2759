//! The gRPC server: agents' sessions and the status service. Every replica serves it; followers point to the leader.

pub mod admission;
pub mod session;
pub mod status;

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use trunkline_core::id::Epoch;

use crate::term::Term;

/// Who leads, as this replica knows it.
#[derive(Clone)]
pub enum Lead {
    /// Another replica, or nobody.
    Following {
        /// Its HOST:PORT, where known.
        address: Option<String>,
    },
    /// This one, and the term is not ready for sessions yet.
    Beginning,
    /// This one.
    Leading(Leading),
}

/// A term that serves.
#[derive(Clone)]
pub struct Leading {
    /// The term.
    pub term: Arc<Term>,
    /// Sessions of its nodes.
    pub sessions: Arc<admission::Sessions>,
}

/// What all services share.
#[derive(Clone)]
pub struct Shared {
    /// Who leads.
    pub lead: watch::Receiver<Lead>,
    /// Tells the election's owner of epochs higher than this term's (design §5).
    pub higher_epochs: mpsc::Sender<Epoch>,
    /// `HOST:PORT` of this replica.
    pub own_address: Arc<str>,
    /// Holder identity of this replica.
    pub identity: Arc<str>,
}

impl Shared {
    /// The leader's address, unless it is our own.
    pub fn leader_elsewhere(&self) -> Option<String> {
        match &*self.lead.borrow() {
            Lead::Following { address } => address.clone().filter(|a| **a != *self.own_address),
            Lead::Beginning | Lead::Leading(_) => None,
        }
    }
}
