//! An audit as a status message.

use trunkline_proto::v1::{AuditFinding, AuditGap, AuditReport, Explanation};

use crate::audit::{Found, Report};

fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

fn explain(name: &str, sentence: impl Into<String>) -> Explanation {
    Explanation { reason: name.to_owned(), sentence: sentence.into() }
}

/// The whole of it.
pub(super) fn report(report: &Report) -> AuditReport {
    AuditReport {
        findings: report.findings.iter().map(finding).collect(),
        unknown: report
            .unknown
            .iter()
            .map(|(node, sentence)| AuditGap {
                node: node.as_ref().map(ToString::to_string).unwrap_or_default(),
                sentence: sentence.clone(),
            })
            .collect(),
        nodes: count(report.nodes),
        enis: count(report.enis),
        pods: count(report.pods),
    }
}

fn finding(found: &Found) -> AuditFinding {
    let finding = &found.finding;
    AuditFinding {
        class: Some(explain(finding.class.name(), finding.class.sentence())),
        node: found.node.as_ref().map(|h| h.node.to_string()).unwrap_or_default(),
        eni_id: finding.eni.as_ref().map(ToString::to_string).unwrap_or_default(),
        vlan: finding.vlan.map_or(0, |vlan| u32::from(vlan.get())),
        pod: finding.pod.as_ref().map(Into::into),
        seen: finding.seen.clone(),
        by_itself: Some(explain(finding.next.name(), finding.next.sentence())),
        on_order: finding.remedy.map(|remedy| explain(remedy.name(), remedy.sentence())),
        ordered: found.ordered,
        trouble: finding.is_trouble(),
    }
}
