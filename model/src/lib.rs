//! The model checker: the decisions of `core`, run against every order of events of small worlds.
//!
//! A [`world`] holds an API server, EC2, one node with its kubelet, an agent and a leading coordinator. The last two are
//! the real ones: every step of theirs is a call of [`trunkline_core::witness::Witness::step`] or
//! [`trunkline_core::node::Node::step`]; the world only plays the adapters and what lies behind them. From each state
//! every enabled [`world::Move`] is tried, breadth first, up to the world's horizon; several small worlds with few kinds of moves each
//! ([`worlds`]) see more than one large world could.
//!
//! What must never happen and what must be reachable stands in [`world::Rule`] and [`world::Goal`]. The checker itself is
//! checked: [`table`] lists, for every rule in [`trunkline_core::lock::Lock`], the world in which its absence must be
//! found.
//!
//! Nothing of this is compiled without the feature `weaken`, so that neither stateright nor the removable rules reach a
//! build that ships.
#![cfg(feature = "weaken")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "ids and indexes of worlds that are fixed in this crate; a wrong one must stop the checker"
)]

pub mod check;
pub mod table;
pub mod world;
pub mod worlds;
