//! The EC2 adapter: the only crate that links the AWS SDK.
//!
//! It executes the calls that `core` asks for and the calls a node's set-up needs, and turns every answer into a reply
//! that can be believed or into one of the classes of [`trunkline_core::eni::FailureClass`]. Three rules shape it:
//!
//! - **Unknown is not absent.** A reply that is cut, incomplete or contradicts the request, a 5xx, a timeout, a lost
//!   connection leave the outcome unknown; a list is whole or an error.
//! - **One door.** [`Ec2::release`] takes a [`trunkline_core::verdict::DeletePermit`] and is the only way to disassociate
//!   or delete a branch.
//! - **No attempt after the lease.** [`LeaseDeadline`] is asked before every attempt, the SDK's retries included.
//!
//! Calls are held back by our own token buckets, one an operation ([`trunkline_core::bucket`]), by priority.

mod action;
mod body;
mod call;
mod classify;
mod client;
mod convert;
mod guard;
mod lane;
mod list;
mod metrics;
mod node;
mod release;
mod role;
mod settings;
mod token;

pub use action::Action;
pub use aws_credential_types::Credentials;
pub use client::{Budget, Ec2};
pub use list::ListedAssociation;
pub use metrics::{Metrics, PeerCounter};
pub use node::{
    CreateTrunk, InstanceDetails, InstanceState, ReadyInstance, SubnetDetails, TypeDetails,
};
pub use release::Done as Released;
pub use settings::{LeaseDeadline, Settings, SetupError};
pub use trunkline_core::bucket::Priority;
