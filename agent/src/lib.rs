//! The node agent: sees its own node and nothing else, states facts, decides nothing.
//!
//! What the facts mean is `trunkline_core::witness`; this crate lets it see and speak. The parts, from the outside in:
//!
//! * [`run`]: settings to running process; [`config`] are the flags.
//! * [`drive`]: the only loop. It feeds the witness what the ports tell and does what the witness says.
//! * [`port`]: everything the loop needs from outside, as traits and channels, so that a seeded simulation runs the same
//!   loop in virtual time.
//! * [`cgroups`], [`links`], [`kubelet`] make up a look at the node ([`look`]); [`signs`] say when one is worth while.
//! * [`journal`]: what survives a restart of the agent within a boot.
//! * [`session`]: the one stream to the coordinator.
//! * [`status`] and [`metrics`]: what people see.
//!
//! Memory is bounded by the node: its pods, cgroups and links, each held once, and queues of fixed length.

pub mod cgroups;
pub mod config;
pub mod drive;
pub mod journal;
pub mod kubelet;
pub mod links;
pub mod look;
pub mod metrics;
pub mod port;
pub mod run;
pub mod session;
pub mod signs;
pub mod status;

use std::io;
use std::os::fd::AsRawFd;

use tokio::io::unix::AsyncFd;

pub(crate) use trunkline_kit::drain::chain;

/// Registers a descriptor with the runtime, to wait until it is readable.
#[allow(
    deprecated,
    reason = "the successor is unsafe; the callers' types own their descriptor, which is all it asks for"
)]
pub(crate) fn wait_fd<T: AsRawFd>(fd: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(fd, tokio::io::Interest::READABLE)
}
