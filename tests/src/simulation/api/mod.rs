//! The API server in memory, behind a real `kube::Client`: what comes back is HTTP and JSON, and goes through the product's
//! own client, list-watch, live GET, election and patches.
//!
//! GETs and writes are of the newest state (etcd), lists without resourceVersion too; other lists and all watches are
//! served by one of two replicas' caches, which may be behind. No admission, no validation: the objects are few and ours.

mod serve;
pub mod store;
mod watch;

pub use serve::client;
