//! The coordinator: sessions of agents, allocation, second judgement, execution.
//!
//! It holds the EC2 credentials and decides nothing by itself: `trunkline_core` decides, here its effects are carried out.
//!
//! * [`run`] wires everything: settings, servers, signals. In it a [`replica`] runs for leadership; one [`term`] follows
//!   another.
//! * [`nodes`]: Node and CNINode objects, trunks, capacity; one task per node name.
//! * [`actor`]: the books of one instance; one task each.
//! * `reaper`: finds instances that are dead, so that their books clear away what they left.
//! * [`grpc`]: agents' sessions and the status service; [`identity`] says which node an agent speaks for.
//! * [`control`]: what stops releasing, the fuse and the mode; [`ledger`]: what was released and why.
//! * [`api`], [`cloud`]: the Kubernetes API and EC2; [`inventory`]: what EC2 has of this cluster.

pub mod actor;
pub mod annotation;
pub mod api;
pub mod audit;
pub mod cloud;
pub mod config;
pub mod control;
pub mod ec2;
pub mod events;
pub mod grpc;
pub mod health;
pub mod identity;
pub mod inventory;
pub mod ledger;
pub mod metrics;
pub mod nodes;
mod reaper;
pub mod replica;
pub mod run;
pub mod term;
mod terms;
pub mod watchers;

#[cfg(test)]
mod testing;
