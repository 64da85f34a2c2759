//! Simulators: EC2, nodes (kubelet and CNI) and a faulty way to the API server.
//!
//! They exist for tests, the demo and the benches. Nothing that is shipped links this crate.

pub mod ec2;
pub mod node;
pub mod proxy;
pub mod relay;
pub mod rest;
pub mod support;
