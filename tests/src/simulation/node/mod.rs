//! A node: the machine with its kernel and runtime ([`machine`]), the kubelet on it ([`kubelet`], with a worker for each pod,
//! [`worker`]), and the agent's process ([`agent`]) with its way to the coordinators ([`session`]).
//!
//! The order of a pod's end is that of a real kubelet and containerd (`real-node.md` §1 to §3): containers, link, cgroup,
//! then the API object; creates in flight that nobody sees, links that come back, DELs that are repeated later.

pub mod agent;
pub mod kubelet;
pub mod machine;
pub mod session;
pub mod worker;
