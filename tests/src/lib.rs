//! The harness of the black-box suites, the demo and the benches.
//!
//! Everything real that fits on one machine is real: etcd and kube-apiserver run as processes with RBAC on, the manifests
//! of `deploy/` are applied as they are, agents and coordinators run as processes with tokens that are bound to their
//! pods and with no other rights. EC2, the kubelet and the CNI are simulated by `trunkline-sim`.
//!
//! What no controller does here the harness does as a cluster administrator: default ServiceAccounts, Node objects, the
//! pods of the DaemonSet and the Deployment, bound tokens. Nothing the harness does uses Trunkline's own code paths, and
//! the [`invariants`] are checked from EC2's call log, the API server's contents, a recorded pod history and the node
//! simulator's record, never from Trunkline's metrics.
//!
//! Start at [`cluster::Cluster`]; a test that needs only the API server takes [`control_plane::ControlPlane`].

pub mod bins;
pub mod certs;
pub mod cluster;
pub mod control_plane;
pub mod deploy;
pub mod error;
pub mod history;
pub mod invariants;
pub mod kubeconfig;
pub mod objects;
pub mod poll;
pub mod ports;
pub mod process;
pub mod runtime;
pub mod simulation;
pub mod tokens;

pub use error::{Error, Result};

use std::path::{Path, PathBuf};

/// The workspace's folder.
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// Milliseconds since the Unix epoch; the simulators stamp their records with the same clock of the same machine.
pub fn now_ms() -> i64 {
    k8s_openapi::jiff::Timestamp::now().as_millisecond()
}

/// Notes that a test could not run here and why. `cargo xtask test` lists these at its end; a plain `cargo test` shows
/// the line on the test's output.
pub fn skipped(test: &str, why: &str) {
    eprintln!("SKIPPED {test}: {why}");
    if let Some(file) = std::env::var_os("TRUNKLINE_SKIPS") {
        use std::io::Write as _;
        let line = format!("{test}: {why}\n");
        let noted = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(file)
            .and_then(|mut file| file.write_all(line.as_bytes()));
        if let Err(error) = noted {
            eprintln!("cannot note the skipped test: {error}");
        }
    }
}
