//! Trunkline's decisions.
//!
//! Everything that decides lives here, without clock, randomness, environment, I/O or async: what a pod is owed, when a
//! branch ENI may be released, which VLAN is handed out, what a person is told while something waits. Adapters feed
//! events in and carry effects out; the same code runs under unit tests, the model checker, the simulation and in
//! production.
//!
//! Start at [`node`] (what the coordinator does for one node), [`witness`] (what an agent concludes from what it sees)
//! and [`verdict`] (may this ENI be deleted).

pub mod annotation;
pub mod bucket;
pub mod dead;
pub mod eni;
pub mod fact;
pub mod fuse;
pub mod heal;
pub mod id;
pub mod limits;
pub mod lock;
pub mod message;
pub mod mode;
pub mod node;
pub mod pace;
pub mod policy;
pub mod time;
pub mod trunk;
pub mod verdict;
pub mod view;
pub mod vlan;
pub mod wait;
pub mod witness;
