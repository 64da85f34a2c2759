//! Tables of what stops releasing, and of what was released.

use trunkline_proto::v1;

use crate::table::{dash, facts, new, pod_name, text, why, yes};

/// RFC 3339, to the second.
fn time(unix_ms: u64) -> String {
    let seconds = i64::try_from(unix_ms / 1_000).unwrap_or_default();
    jiff::Timestamp::from_second(seconds).unwrap_or_default().to_string()
}

fn decided(decision: &v1::Decision) -> String {
    let by = if decision.by.is_empty() { "nobody known" } else { &decision.by };
    format!("by {by} at {}: {}", time(decision.at_ms), decision.reason)
}

/// The fuse in one line.
pub(crate) fn fuse_words(fuse: &v1::FuseStatus) -> String {
    let cluster = fuse.frozen.as_ref().map(|frozen| why(Some(frozen)));
    match (cluster, fuse.nodes.len()) {
        (Some(cluster), _) => cluster,
        (None, 0) => "intact".to_owned(),
        (None, n) => format!("blown on {n} node(s), see trunkline fuse"),
    }
}

/// The last order to repair in one line; empty without.
pub(crate) fn repair_words(order: Option<&v1::Decision>) -> String {
    order.map_or_else(String::new, |order| format!("{} ordered {}", order.what, decided(order)))
}

/// The mode in one line.
pub(crate) fn mode_words(mode: &v1::ModeStatus) -> String {
    match &mode.choice {
        None => format!("{}, as the flags say", mode.mode),
        Some(choice) => {
            let but = if choice.what == mode.mode { "" } else { "stricter than what was " };
            format!("{}, {but}set {} (the flags say {})", mode.mode, decided(choice), mode.flags)
        }
    }
}

/// `trunkline fuse`.
pub fn fuse(fuse: &v1::FuseStatus) -> String {
    let cluster = match (&fuse.frozen, fuse.since_ms) {
        (None, _) => "intact".to_owned(),
        (Some(frozen), None) => why(Some(frozen)),
        (Some(frozen), Some(since)) => {
            format!("frozen since {}, {}", time(since), why(Some(frozen)))
        }
    };
    let nodes = match fuse.nodes.len() {
        0 => "none frozen".to_owned(),
        n => format!("{n} frozen"),
    };
    let reset = fuse.last_reset.as_ref();
    let reset = reset.map_or_else(String::new, |d| format!("{} {}", d.what, decided(d)));
    let mut out = facts(&[("cluster", cluster), ("nodes", nodes), ("last reset", reset)]);
    if !fuse.nodes.is_empty() {
        let mut table =
            new(&["FROZEN NODE", "INSTANCE", "SINCE", "COUNTS", "PODS THAT THE API SERVER HAS"]);
        for node in &fuse.nodes {
            table.add_row([
                node.node.clone(),
                node.instance_id.clone(),
                time(node.since_ms),
                yes(node.counts),
                node.pod_uids.join(", "),
            ]);
        }
        out += "\n";
        out += &text(&table);
    }
    out
}

/// `trunkline mode`.
pub fn mode(mode: &v1::ModeStatus) -> String {
    facts(&[("mode", mode_words(mode))])
}

/// `trunkline releases`.
pub fn releases(rows: &[v1::ReleaseRow]) -> String {
    if rows.is_empty() {
        return "this leader has released nothing that fits\n".to_owned();
    }
    let mut table = new(&[
        "AT",
        "STEP",
        "ENI",
        "VLAN",
        "NODE",
        "POD",
        "EPOCH",
        "THE AGENT STATED",
        "OUR GET SAID",
        "EC2 REQUEST",
    ]);
    for row in rows {
        let stated = row.stated.as_ref();
        table.add_row([
            time(row.at_ms),
            row.step.clone(),
            row.eni_id.clone(),
            row.vlan.to_string(),
            row.node.clone(),
            pod_name(row.pod.as_ref()),
            row.epoch.to_string(),
            dash(&stated.map_or_else(String::new, |s| format!("{}, {}", s.over, s.way))),
            dash(&row.confirmed.as_ref().map_or_else(String::new, confirmed)),
            dash(&row.ec2_request_id),
        ]);
    }
    text(&table)
}

fn confirmed(get: &v1::ConfirmedGet) -> String {
    match get.resource_version.as_str() {
        "" => get.said.clone(),
        rv => format!("{} (resourceVersion {rv})", get.said),
    }
}
