//! What the agent and the coordinator share: how a process starts, listens, tells about itself and stops, and how it
//! talks to the API server. Nothing here decides; nothing here knows EC2.
//!
//! **A process.** [`config`] reads flags and variables and reports all mistakes at once; [`timing`] are the durations of
//! the rules; [`telemetry`] starts the log; [`tls`] installs the one provider; [`net`] and [`admin`] bind; [`readiness`]
//! says what is awaited; [`drain`] runs the tasks and stops them in order. In this order in both binaries:
//!
//! ```text
//! parse → log → TLS provider → bind all sockets → tasks → first exit or signal → drain with deadline → exit code
//! ```
//!
//! **The API server.** [`kube_client`] connects; [`api`] asks with timeouts and keeps "no" and "don't know" apart;
//! [`listwatch`] gives views that are complete or say that they are not; [`pod_get`] is the live GET; [`lease`] elects,
//! [`epoch`] numbers the terms.
//!
//! **Each other.** [`grpc`] dials a coordinator, [`tls`] accepts agents.
//!
//! [`clock`] is the time that rules are judged by, [`random`] where chance comes from, [`backoff`] the pause between
//! attempts, [`metrics`] closed labels.

pub mod admin;
pub mod api;
pub mod backoff;
pub mod clock;
pub mod config;
pub mod drain;
pub mod epoch;
pub mod grpc;
pub mod kube_client;
pub mod latest;
pub mod lease;
pub mod listwatch;
pub mod metrics;
pub mod net;
pub mod pod_get;
pub mod random;
pub mod readiness;
#[cfg(test)]
mod script;
pub mod telemetry;
pub mod timing;
pub mod tls;
