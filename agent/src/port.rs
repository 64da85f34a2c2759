//! What the loop needs from outside.
//!
//! Production fills these with the kernel, the kubelet, files and gRPC; a simulation with a scripted world. Pods come
//! from `trunkline_kit::listwatch` through its channel in either case.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use futures::Stream;
use futures::future::BoxFuture;
use tokio::sync::mpsc;
use trunkline_core::id::MacAddress;
use trunkline_core::message::{MacOutcome, SetMac};
use trunkline_core::view::Look;
use trunkline_core::witness::Journal;
use trunkline_proto::v1;

use crate::signs::SignBoard;

/// The node's local evidence.
pub trait LocalNode: Send + Sync + 'static {
    /// One look: kubelet, cgroups, links, kubelet, in this order. Links and cgroups as they were read; `core` judges
    /// whether they are of this node. An error is a look that did not happen.
    fn look(&self) -> BoxFuture<'static, Result<Look, LookError>>;

    /// Where the watchers of cgroups and links put their signs.
    fn signs(&self) -> Arc<SignBoard>;

    /// Changes the MAC of a branch link, as `trunkline_core::witness::mac` decides on a fresh look at the links. `trunk` is
    /// the MAC of the node's trunk. Called for one link at a time; ends within seconds.
    fn set_mac(&self, set: SetMac, trunk: MacAddress) -> BoxFuture<'static, MacOutcome>;

    /// Drops the node's neighbour entries for these addresses. What goes wrong is logged.
    fn clear_neighbours(&self, addresses: Vec<IpAddr>) -> BoxFuture<'static, ()>;
}

/// Why there is no look.
#[derive(Debug, thiserror::Error)]
#[error("failed to read the boot id")]
pub struct LookError(#[from] pub crate::look::BootIdError);

/// Where the journal is kept. Losing it costs time, never safety.
pub trait JournalStore: Send + 'static {
    /// Replaces what is kept.
    fn save(&mut self, journal: &Journal) -> std::io::Result<()>;
}

/// One address of a coordinator.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// `HOST:PORT` that is dialled; an IP address where names have been resolved.
    pub address: String,
    /// Name that the coordinator's certificate must carry. A redirect keeps it.
    pub server_name: String,
}

/// What a coordinator sends.
pub type Inbound =
    Pin<Box<dyn Stream<Item = Result<v1::CoordinatorMessage, DialError>> + Send + 'static>>;

/// Why a coordinator could not be reached, or was lost. The text is for the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DialError(pub String);

/// The way to the coordinators.
pub trait Dialer: Send + Sync + 'static {
    /// All addresses, names resolved anew.
    fn targets(&self) -> BoxFuture<'_, Result<Vec<Target>, DialError>>;

    /// Opens a stream on a connection of its own. `outbound` already holds the greeting.
    fn open<'a>(
        &'a self,
        target: &'a Target,
        outbound: mpsc::Receiver<v1::AgentMessage>,
    ) -> BoxFuture<'a, Result<Inbound, DialError>>;

    /// The agent's token as it is now.
    fn token(&self) -> Result<String, DialError>;
}
