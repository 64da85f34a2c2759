//! `--keep`: everything stays up until Ctrl-C, and a person is told how to look around.

use crate::story::Cast;
use std::time::Duration;
use trunkline_tests::tokens::{self, AUDIENCE};
use trunkline_tests::{Error, Result};

/// Renew tokens well before their hour is over.
const RENEWAL: Duration = Duration::from_mins(30);

/// Prints the ways in and keeps tokens fresh for ever; the caller stops it at a signal.
pub(crate) async fn running(cast: &Cast) -> Result<()> {
    let cluster = &cast.cluster;
    let admin = cluster.folder().join("admin.kubeconfig");
    let line = cluster.command_line(&cast.viewer)?.join(" ");
    println!("\nEverything stays up until Ctrl-C. To look around:");
    println!("  kubectl --kubeconfig {} get pods,cninodes,events -A", admin.display());
    for words in ["status", "nodes", "node node-1", "pod default/after", "waiting"] {
        println!("  {line} {words}");
    }
    for coordinator in &cluster.coordinators {
        println!(
            "  curl {}/readyz?verbose   curl {}/metrics",
            coordinator.health, coordinator.metrics
        );
    }
    for agent in cluster.agents.values() {
        println!("  curl {}/status   # agent of {}", agent.health, agent.node);
    }
    println!("  curl {}/_sim/state   curl {0}/_sim/log   # EC2", cluster.ec2.url());
    println!("  logs: {}", cluster.folder().display());
    let mut renewals = Vec::new();
    for (pod, token, audience) in cluster.mounted() {
        renewals.push(tokens::renew(cluster.admin.clone(), pod, audience, token, RENEWAL));
    }
    loop {
        tokio::time::sleep(RENEWAL).await;
        let fresh = tokens::mint(
            &cluster.admin,
            trunkline_tests::deploy::NAMESPACE,
            "viewer",
            Some(AUDIENCE),
            None,
        );
        let fresh = fresh.await?;
        std::fs::write(&cast.viewer, fresh).map_err(Error::file(&cast.viewer))?;
    }
}
