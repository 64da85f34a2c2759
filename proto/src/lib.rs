//! The wire contract: `trunkline/v1/*.proto`, the code generated from it, and the conversion to and from `core` types.
//!
//! The generated code is committed (`cargo xtask gen` writes it, a test compares), so that no build needs `protoc`. Nothing
//! outside [`convert`] should build `core` values out of wire values: it is the one place where ids are validated, closed
//! enums are refused when unknown, snapshots are checked for wholeness, and reported facts get their origin.

pub mod convert;

/// Generated messages and services of package `trunkline.v1`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    reason = "generated; its docs are the comments of the .proto files"
)]
pub mod v1 {
    include!("generated/trunkline.v1.rs");
}

/// Serialized `FileDescriptorSet` of the package, for gRPC reflection.
pub const DESCRIPTOR_SET: &[u8] = include_bytes!("generated/trunkline.v1.bin");

/// gRPC metadata in which a follower names the leader's HOST:PORT when it refuses a status call.
pub const LEADER_ADDRESS_METADATA: &str = "trunkline-leader-address";

/// Written by hand: a token never shows in a log.
impl std::fmt::Debug for v1::Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token { .. }")
    }
}
