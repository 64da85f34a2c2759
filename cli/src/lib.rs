//! `trunkline`: what the cluster's branches are doing, why anything waits, and the brakes of releasing.
//!
//! Asks the leading coordinator's status service (`trunkline.v1.Status`). Any coordinator may be named: a follower answers
//! with the leader's address, which is dialled under the TLS name of the one that was named. The defaults are those of the
//! coordinator's image, so that `kubectl exec deploy/trunkline-coordinator -- trunkline status` works.
//!
//! Exit codes: 0, 2 where an audit found something, 64 for bad usage, 1 for everything else, an audit that could not look at
//! everything and found nothing included.

pub mod args;
pub mod audit;
pub mod brakes;
pub mod client;
pub mod json;
pub mod table;

use std::io::Write;
use std::time::Duration;

use args::{Command, Output, Repair, Settings};
use client::Client;
use trunkline_proto::v1;
use trunkline_proto::v1::reset_fuse_request::What;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The coordinators.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// JSON.
    #[error("failed to write JSON: {0}")]
    Json(#[from] json::Error),
    /// The output.
    #[error("failed to write the output: {0}")]
    Output(#[from] std::io::Error),
}

/// Asks, and writes the answer to `out`; the exit code.
pub async fn run(settings: &Settings, client: &Client, out: &mut impl Write) -> Result<u8, Error> {
    let mut code = 0;
    let text = match &settings.command {
        Command::Status => {
            let answer = client.cluster().await?;
            match settings.output {
                Output::Json => json::one("ClusterStatus", &answer)?,
                Output::Table => table::cluster(&answer),
            }
        }
        Command::Nodes => {
            let rows = client.nodes().await?;
            match settings.output {
                Output::Json => json::many("NodeRow", &rows)?,
                Output::Table => table::nodes(&rows),
            }
        }
        Command::Node(name) => {
            let answer = client.node(name).await?;
            match settings.output {
                Output::Json => json::one("NodeStatus", &answer)?,
                Output::Table => table::node(&answer),
            }
        }
        Command::Pod { namespace, name } => {
            let answer = client.pod(namespace, name).await?;
            match settings.output {
                Output::Json => json::many::<v1::PodStatus>("PodStatus", &answer.pods)?,
                Output::Table => table::pods(&answer.pods),
            }
        }
        Command::Waiting { node } => {
            let rows = client.waiting(node.as_deref()).await?;
            match settings.output {
                Output::Json => json::many("WaitingRow", &rows)?,
                Output::Table => table::waiting(&rows),
            }
        }
        Command::Releases { node, pod, eni, since } => {
            let rows = client.releases(&releases(node, pod, eni, *since)).await?;
            match settings.output {
                Output::Json => json::many("ReleaseRow", &rows)?,
                Output::Table => brakes::releases(&rows),
            }
        }
        Command::Fuse => fuse(settings.output, &client.fuse().await?)?,
        Command::Reset { node, reason } => {
            let what = match node {
                Some(node) => What::Node(node.clone()),
                None => What::Cluster(true),
            };
            let request = v1::ResetFuseRequest { what: Some(what), reason: reason.clone() };
            fuse(settings.output, &client.reset_fuse(&request).await?)?
        }
        Command::Audit { node, repair } => {
            let report = match repair {
                Repair::No | Repair::DryRun => client.audit(node.as_deref()).await?,
                Repair::Order(reason) => {
                    let node = node.clone().unwrap_or_default();
                    let request = v1::RepairRequest { node, reason: reason.clone() };
                    client.repair(&request).await?
                }
            };
            code = audit::exit_code(&report);
            match settings.output {
                Output::Json => json::one("AuditReport", &report)?,
                Output::Table => audit::table(&report, *repair != Repair::No),
            }
        }
        Command::Mode => mode(settings.output, &client.mode().await?)?,
        Command::SetMode { mode: name, reason } => {
            let request = v1::SetModeRequest { mode: name.clone(), reason: reason.clone() };
            mode(settings.output, &client.set_mode(&request).await?)?
        }
    };
    writeln!(out, "{}", text.trim_end())?;
    Ok(code)
}

fn releases(node: &str, pod: &str, eni: &str, since: Option<Duration>) -> v1::ListReleasesRequest {
    v1::ListReleasesRequest {
        node: node.to_owned(),
        pod: pod.to_owned(),
        eni_id: eni.to_owned(),
        since_ms: since.map(|since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX)),
    }
}

fn fuse(output: Output, answer: &v1::FuseStatus) -> Result<String, Error> {
    Ok(match output {
        Output::Json => json::one("FuseStatus", answer)?,
        Output::Table => brakes::fuse(answer),
    })
}

fn mode(output: Output, answer: &v1::ModeStatus) -> Result<String, Error> {
    Ok(match output {
        Output::Json => json::one("ModeStatus", answer)?,
        Output::Table => brakes::mode(answer),
    })
}
