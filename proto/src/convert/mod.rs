//! Wire ↔ `core`.
//!
//! Sending never fails. Receiving validates every field of every item and refuses the whole message with a [`WireError`] that
//! names message, field and value; nothing is left out silently, because an item that is left out of a view would look
//! absent (I6). A refused message from an agent makes its three views unknown and asks for a resync.
//!
//! - [`greeting`]: `Hello`, `Welcome`, `Redirect`, `Refusal`, versions.
//! - [`from_agent`]: [`AgentSender`] and [`AgentReceiver`], one each per stream.
//! - [`to_agent`]: [`CoordinatorSender`] and [`CoordinatorReceiver`], one each per stream.
//! - [`snapshot`]: parts, digest, assembly; [`sequence`]: numbered deltas.
//! - [`item`]: single items and enums; [`heal`]: the messages of healing in place.
//!
//! Reported facts ([`trunkline_core::fact::ReportedRelease`], [`trunkline_core::fact::BarrierReply`]) are made in
//! [`from_agent`] only.

pub mod error;
pub mod from_agent;
pub mod greeting;
pub mod heal;
pub mod item;
pub mod sequence;
pub mod snapshot;
pub mod to_agent;

pub use error::WireError;
pub use from_agent::{AgentReceiver, AgentSender, Received};
pub use greeting::{Greeting, Hello, PROTOCOL, Refusal, Welcome};
pub use item::{blind_of, view_state};
pub use sequence::DeltaSequence;
pub use snapshot::{SnapshotAssembler, snapshot_messages};
pub use to_agent::{CoordinatorReceiver, CoordinatorSender, FromCoordinator};

#[cfg(test)]
mod tests;
