//! `trunkline audit` as a table, and its exit code.

use trunkline_proto::v1;

use crate::table::{dash, new, pod_name, text, why};

/// Something is not as it should be.
const FOUND: u8 = 2;
/// Nothing was found, and not everything could be looked at.
const UNKNOWN: u8 = 1;

/// 0 only where everything was looked at and is as it should be.
pub fn exit_code(report: &v1::AuditReport) -> u8 {
    if report.findings.iter().any(|found| found.trouble) {
        FOUND
    } else if report.unknown.is_empty() {
        0
    } else {
        UNKNOWN
    }
}

fn reason(explanation: Option<&v1::Explanation>) -> String {
    explanation.map(|e| e.reason.clone()).unwrap_or_default()
}

/// The findings, with what an order would do about them where that is asked for, and what is unknown.
pub fn table(report: &v1::AuditReport, repair: bool) -> String {
    let trouble = report.findings.iter().filter(|found| found.trouble).count();
    let mut out = format!(
        "{trouble} finding(s) in {} node(s), {} ENI(s), {} pod(s)\n",
        report.nodes, report.enis, report.pods
    );
    if !report.findings.is_empty() {
        let mut header = vec!["CLASS", "NODE", "ENI", "VLAN", "POD", "SEEN", "BY ITSELF"];
        if repair {
            header.push("BY ORDER");
        }
        let mut findings = new(&header);
        for found in &report.findings {
            let vlan = if found.vlan == 0 { String::new() } else { found.vlan.to_string() };
            let mut row = vec![
                reason(found.class.as_ref()),
                dash(&found.node),
                dash(&found.eni_id),
                dash(&vlan),
                pod_name(found.pod.as_ref()),
                found.seen.clone(),
                why(found.by_itself.as_ref()),
            ];
            if repair {
                let ordered = if found.ordered { "ordered, " } else { "" };
                let order = why(found.on_order.as_ref());
                row.push(dash(&format!("{ordered}{order}")));
            }
            findings.add_row(row);
        }
        out += "\n";
        out += &text(&findings);
    }
    if !report.unknown.is_empty() {
        out += "\nUnknown, so that this audit is not complete:\n";
        for gap in &report.unknown {
            let node = if gap.node.is_empty() { "the cluster" } else { &gap.node };
            out.extend(["  ", node, ": ", gap.sentence.as_str(), "\n"]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(class: &str, trouble: bool) -> v1::AuditFinding {
        let explain =
            |name: &str| v1::Explanation { reason: name.to_owned(), sentence: "why".to_owned() };
        v1::AuditFinding {
            class: Some(explain(class)),
            node: "node-1".to_owned(),
            eni_id: "eni-1".to_owned(),
            by_itself: Some(explain("kept")),
            on_order: trouble.then(|| explain("heal")),
            trouble,
            ..Default::default()
        }
    }

    fn report(findings: Vec<v1::AuditFinding>, unknown: &[&str]) -> v1::AuditReport {
        let gap = |text: &&str| v1::AuditGap { node: String::new(), sentence: (*text).to_owned() };
        let unknown = unknown.iter().map(gap).collect();
        v1::AuditReport { findings, unknown, nodes: 1, enis: 2, pods: 3 }
    }

    #[test]
    fn only_a_complete_audit_without_trouble_ends_with_0() {
        assert_eq!(exit_code(&report(vec![], &[])), 0);
        assert_eq!(exit_code(&report(vec![finding("cooling", false)], &[])), 0);
        assert_eq!(exit_code(&report(vec![], &["EC2"])), 1);
        assert_eq!(exit_code(&report(vec![finding("cooling", false)], &["EC2"])), 1);
        assert_eq!(exit_code(&report(vec![finding("missing", true)], &[])), 2);
        assert_eq!(exit_code(&report(vec![finding("missing", true)], &["EC2"])), 2);
    }

    #[test]
    fn the_table_names_class_eni_and_plan_and_what_an_order_does_only_where_asked() {
        let found = vec![finding("missing", true), finding("cooling", false)];
        let report = report(found, &["no view"]);
        let plain = table(&report, false);
        for expected in
            ["1 finding(s) in 1 node(s)", "missing", "eni-1", "kept: why", "the cluster: no view"]
        {
            assert!(plain.contains(expected), "{expected} in {plain}");
        }
        assert!(!plain.contains("BY ORDER") && !plain.contains("heal"), "{plain}");
        assert!(table(&report, true).contains("heal: why"));
    }
}
