//! Nodes: which exist, which get a trunk, and what their objects in the API need.

pub mod directory;
pub mod init;
pub mod keeper;
pub mod objects;
pub mod plan;
