//! Fuse, mode and releases as status messages.

use trunkline_core::verdict::Keep;
use trunkline_proto::v1::{
    ConfirmedGet, Decision, Explanation, FrozenNode, FuseStatus, ListReleasesRequest, ModeStatus,
    ReleaseRow, StatedFacts,
};

use crate::control::{self, View};
use crate::ledger::Record;

fn ms(unix: u64) -> u64 {
    unix.saturating_mul(1_000)
}

/// A [`Keep`] as people are told.
pub(super) fn keep(why: Keep) -> Explanation {
    Explanation { reason: why.name().to_owned(), sentence: why.sentence().to_owned() }
}

/// What a person decided.
pub(super) fn decision(decision: &control::Decision) -> Decision {
    Decision {
        what: decision.what.clone(),
        by: decision.by.clone(),
        reason: decision.reason.clone(),
        at_ms: ms(decision.at_unix()),
    }
}

/// The fuse.
pub(super) fn fuse(view: &View) -> FuseStatus {
    let stored = &view.fuse;
    let frozen = match (&view.unknown, stored.fuse.cluster) {
        (_, Some(_)) => Some(keep(Keep::ClusterFuseBlown)),
        (Some(why), None) => {
            let told = keep(Keep::FuseUnknown);
            Some(Explanation { sentence: format!("{} ({why})", told.sentence), ..told })
        }
        (None, None) => None,
    };
    FuseStatus {
        frozen,
        since_ms: stored.fuse.cluster.map(ms),
        nodes: stored
            .fuse
            .nodes
            .iter()
            .map(|(instance, node)| FrozenNode {
                node: node.node.to_string(),
                instance_id: instance.to_string(),
                since_ms: ms(node.at),
                pod_uids: node.pods.iter().map(ToString::to_string).collect(),
                counts: node.counts,
            })
            .collect(),
        last_reset: stored.last_reset.as_ref().map(decision),
    }
}

/// The mode.
pub(super) fn mode(view: &View) -> ModeStatus {
    ModeStatus {
        mode: view.mode.name().to_owned(),
        flags: view.flags.name().to_owned(),
        choice: view.choice.as_ref().map(|choice| decision(&choice.decision)),
    }
}

/// Whether a release was asked for.
pub(super) fn wanted(record: &Record, asked: &ListReleasesRequest, now_ms: u64) -> bool {
    let pod = format!("{}/{}", record.pod.namespace, record.pod.name);
    let is = |asked: &str, found: &str| asked.is_empty() || asked == found;
    is(&asked.node, record.node.as_str())
        && is(&asked.pod, &pod)
        && is(&asked.eni_id, record.eni.as_str())
        && asked.since_ms.is_none_or(|since| record.at_ms >= now_ms.saturating_sub(since))
}

/// A release.
pub(super) fn release(record: &Record) -> ReleaseRow {
    ReleaseRow {
        at_ms: record.at_ms,
        step: record.step.name().to_owned(),
        eni_id: record.eni.to_string(),
        vlan: record.vlan,
        pod: Some((&record.pod).into()),
        node: record.node.to_string(),
        instance_id: record.instance.to_string(),
        epoch: record.epoch.0,
        ec2_request_id: record.request_id.clone(),
        stated: record.stated.as_ref().map(|stated| StatedFacts {
            received_ms: stated.received_ms,
            session: stated.session.clone(),
            over: stated.over.to_owned(),
            way: stated.way.to_owned(),
            boot_id: stated.boot.clone(),
            kubelet_start_ns: stated.kubelet_start,
        }),
        confirmed: record.confirmed.as_ref().map(|confirmed| ConfirmedGet {
            at_ms: confirmed.at_ms,
            said: confirmed.said.to_owned(),
            resource_version: confirmed.rv.clone(),
        }),
        permitted_ms: record.permitted_ms,
    }
}
