//! Health checks under the peer's names (`OBS-1`), and the JSON of `/status`.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use trunkline_kit::admin::Admin;

use crate::grpc::Lead;
use crate::grpc::status::{Seen, everything};

/// Checks of the peer that always succeed there too.
const ALWAYS: [&str; 6] = [
    "health-root-manager-ping",
    "health-resource-manager",
    "health-pod-controller",
    "health-custom-pod-controller",
    "health-node-controller",
    "health-cm-controller",
];

/// Adds the checks and the status page.
pub fn add(admin: Admin, lead: &watch::Receiver<Lead>, remote_status: bool) -> Admin {
    let mut admin = ALWAYS
        .into_iter()
        .fold(admin, |admin, name| admin.check(name, || std::future::ready(Ok(()))));
    let of_branches = lead.clone();
    admin = admin.check("health-branch-provider", move || probe(of_branches.clone()));
    let of_nodes = lead.clone();
    admin = admin.check("health-node-manager", move || probe_nodes(of_nodes.clone()));
    let of_status = lead.clone();
    admin.status(remote_status, move || status(of_status.clone()))
}

/// One node's books answer.
async fn probe(lead: watch::Receiver<Lead>) -> Result<(), String> {
    let Lead::Leading(leading) = lead.borrow().clone() else {
        return Ok(());
    };
    let Some((_, handle)) = leading.term.actors().into_iter().next() else {
        return Ok(());
    };
    let (ask, answer) = tokio::sync::oneshot::channel();
    // Books that have ended with their term are not unwell; books that hang run into the check's timeout.
    if handle.mail.send(crate::actor::Mail::Report(ask)).await.is_ok() {
        let _ended = answer.await;
    }
    Ok(())
}

/// The node books are not locked for good.
async fn probe_nodes(lead: watch::Receiver<Lead>) -> Result<(), String> {
    let Lead::Leading(leading) = lead.borrow().clone() else {
        return Ok(());
    };
    let directory = leading.term.directory.clone();
    let look = tokio::task::spawn_blocking(move || directory.is_complete());
    match tokio::time::timeout(Duration::from_secs(20), look).await {
        Ok(_) => Ok(()),
        Err(_) => Err("the node directory does not answer".into()),
    }
}

async fn status(lead: watch::Receiver<Lead>) -> Value {
    let lead = lead.borrow().clone();
    match lead {
        Lead::Following { address } => json!({"leading": false, "leader": address}),
        Lead::Beginning => json!({"leading": true, "ready": false}),
        Lead::Leading(leading) => {
            let nodes: serde_json::Map<String, Value> = everything(&leading.term)
                .await
                .iter()
                .map(|s| (s.name.to_string(), node(s)))
                .collect();
            json!({
                "leading": true,
                "ready": true,
                "epoch": leading.term.term.epoch.0,
                "inventory": leading.term.board.last().map(|i| i.len()),
                "nodes": nodes,
            })
        }
    }
}

fn node(seen: &Seen) -> Value {
    let pods: Vec<Value> = seen
        .books
        .iter()
        .flat_map(|b| &b.books.pods)
        .map(|p| {
            json!({
                "uid": p.pod.uid.as_str(),
                "namespace": p.pod.namespace.as_str(),
                "name": p.pod.name.as_str(),
                "releasing": p.releasing,
                "wait": p.wait.as_ref().map(|(w, _)| w.name()),
                "sentence": p.wait.as_ref().map(|(w, _)| w.to_string()),
                "branches": p.branches.iter().map(|b| json!({
                    "eni": b.eni.as_ref().map(ToString::to_string),
                    "vlan": b.vlan.get(),
                    "state": b.state.name(),
                })).collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({
        "state": seen.state.as_ref().map(crate::nodes::keeper::NodeState::name),
        "instance": seen.state.as_ref().and_then(|s| s.instance.as_ref()).map(ToString::to_string),
        "trouble": seen.state.as_ref().and_then(|s| s.trouble.as_ref()).map(|(_, sentence)| sentence.clone()),
        "connected": seen.books.as_ref().is_some_and(|b| b.books.connected),
        "used": seen.books.as_ref().map(|b| b.books.used),
        "free": seen.books.as_ref().map(|b| b.books.free),
        "pods": pods,
    })
}
