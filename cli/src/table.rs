//! Answers as tables for people. One blank line between blocks; columns that would be empty in every row stay, so that
//! scripts which cut columns do not break between two calls.

use std::time::Duration;

use comfy_table::{ContentArrangement, Table, presets};
use trunkline_proto::v1;

use crate::brakes;

/// A duration in its two largest units: `5d3h`, `2m10s`, `250ms`.
pub fn duration(milliseconds: u64) -> String {
    let seconds = Duration::from_millis(milliseconds).as_secs();
    let pair = |a: u64, x: &str, b: u64, y: &str| {
        if b == 0 { format!("{a}{x}") } else { format!("{a}{x}{b}{y}") }
    };
    match seconds {
        0 => format!("{milliseconds}ms"),
        1..60 => format!("{seconds}s"),
        60..3600 => pair(seconds / 60, "m", seconds % 60, "s"),
        3600..86_400 => pair(seconds / 3600, "h", seconds % 3600 / 60, "m"),
        _ => pair(seconds / 86_400, "d", seconds % 86_400 / 3600, "h"),
    }
}

pub(crate) fn new(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    if !header.is_empty() {
        table.set_header(header.to_vec());
    }
    table
}

/// The table as text, without the margins around its cells.
pub(crate) fn text(table: &Table) -> String {
    let lines: Vec<String> =
        table.lines().map(|l| l.strip_prefix(' ').unwrap_or(&l).trim_end().to_owned()).collect();
    lines.join("\n") + "\n"
}

pub(crate) fn facts(rows: &[(&str, String)]) -> String {
    let mut table = new(&[]);
    for (name, value) in rows {
        if !value.is_empty() {
            table.add_row([*name, value.as_str()]);
        }
    }
    text(&table)
}

pub(crate) fn dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { text.to_owned() }
}

pub(crate) fn yes(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

/// `reason: sentence`.
pub(crate) fn why(why: Option<&v1::Explanation>) -> String {
    why.map_or_else(String::new, |w| match (w.reason.as_str(), w.sentence.as_str()) {
        (reason, "") => reason.to_owned(),
        ("", sentence) => sentence.to_owned(),
        (reason, sentence) => format!("{reason}: {sentence}"),
    })
}

/// Two sentences, either of which may be empty.
fn both(one: &str, other: &str) -> String {
    if one.is_empty() || other.is_empty() {
        format!("{one}{other}")
    } else {
        format!("{one}; {other}")
    }
}

fn counts(counts: &[v1::Count]) -> String {
    let each: Vec<String> = counts.iter().map(|c| format!("{} {}", c.count, c.name)).collect();
    if each.is_empty() { "none".to_owned() } else { each.join(", ") }
}

fn slots(slots: Option<&v1::Slots>) -> String {
    slots.map_or_else(
        || "-".to_owned(),
        |s| format!("{} of {} used, {} free, {} cooling", s.used, s.limit, s.free, s.cooling),
    )
}

pub(crate) fn pod_name(key: Option<&v1::PodKey>) -> String {
    key.map_or_else(|| "-".to_owned(), |k| format!("{}/{}", k.namespace, k.name))
}

/// `trunkline status`.
pub fn cluster(status: &v1::ClusterStatus) -> String {
    let inventory = status.inventory.as_ref().map_or_else(
        || "not read yet".to_owned(),
        |i| {
            let age = i.age_ms.map_or_else(String::new, |a| format!(", {} old", duration(a)));
            let whole = if i.complete { "whole" } else { "not read whole in this term yet" };
            let failure = why(i.failure.as_ref());
            let failure = if failure.is_empty() {
                failure
            } else {
                format!("; last reading failed: {failure}")
            };
            format!("{whole}, {} ENIs{age}{failure}", i.enis)
        },
    );
    let mut out = facts(&[
        ("cluster", status.cluster.clone()),
        ("leader", format!("{} at {}", status.leader_identity, status.leader_address)),
        ("epoch", format!("{}, for {}", status.epoch, duration(status.term_age_ms))),
        ("build", status.build.clone()),
        ("mode", status.mode_choice.as_ref().map_or(status.mode.clone(), brakes::mode_words)),
        ("fuse", status.fuse.as_ref().map_or_else(String::new, brakes::fuse_words)),
        ("repairs", brakes::repair_words(status.last_repair.as_ref())),
        ("cooldown", duration(status.cooldown_ms)),
        ("inventory", inventory),
        ("nodes", counts(&status.nodes)),
        ("branches", counts(&status.branches)),
        ("ENIs", counts(&status.health)),
        ("waiting", counts(&status.waiting)),
    ]);
    if !status.buckets.is_empty() {
        let mut table =
            new(&["EC2 BUDGET", "TOKENS", "CAPACITY", "PER SECOND", "WAITING", "THROTTLED"]);
        for b in &status.buckets {
            table.add_row([
                b.action.clone(),
                format!("{:.0}", b.tokens),
                format!("{:.0}", b.capacity),
                format!("{:.1}", b.refill_per_second),
                b.waiting.to_string(),
                b.throttled.to_string(),
            ]);
        }
        out += "\n";
        out += &text(&table);
    }
    out
}

/// `trunkline nodes`.
pub fn nodes(rows: &[v1::NodeRow]) -> String {
    let mut table =
        new(&["NODE", "INSTANCE", "TYPE", "STATE", "AGENT", "USED", "LIMIT", "COOLING", "WHY"]);
    for row in rows {
        let slot = |get: fn(&v1::Slots) -> u32| {
            row.slots.as_ref().map_or_else(|| "-".to_owned(), |s| get(s).to_string())
        };
        table.add_row([
            row.name.clone(),
            dash(&row.instance_id),
            dash(&row.instance_type),
            dash(&row.state),
            if row.connected { "connected" } else { "-" }.to_owned(),
            slot(|s| s.used),
            slot(|s| s.limit),
            slot(|s| s.cooling),
            both(&why(row.why.as_ref()), &why(row.frozen.as_ref())),
        ]);
    }
    text(&table)
}

/// `trunkline node NAME`.
pub fn node(status: &v1::NodeStatus) -> String {
    let row = status.row.clone().unwrap_or_default();
    let trunk = status.trunk.as_ref().map_or_else(
        || "-".to_owned(),
        |t| format!("{} ({}), {} {}", t.eni_id, t.mac, t.state, why(t.why.as_ref())),
    );
    let session = status.session.as_ref().map_or_else(
        || "not connected".to_owned(),
        |s| {
            let beat = duration(s.heartbeat_age_ms);
            format!("connected for {}, last heartbeat {beat} ago", duration(s.connected_ms))
        },
    );
    let part = |get: fn(&v1::SessionStatus) -> String| {
        status.session.as_ref().map_or_else(String::new, get)
    };
    let mut out = facts(&[
        ("node", row.name.clone()),
        ("instance", format!("{} {}", dash(&row.instance_id), row.instance_type)),
        ("managed", yes(row.managed)),
        ("state", format!("{} {}", dash(&row.state), why(row.why.as_ref()))),
        ("fuse", why(row.frozen.as_ref())),
        ("trunk", trunk),
        ("slots", slots(row.slots.as_ref())),
        ("ENIs", counts(&status.health)),
        ("agent", session),
        ("agent build", part(|s| s.build.clone())),
        ("boot id", part(|s| s.boot_id.clone())),
        ("kubelet start", part(|s| s.kubelet_start_ns.map_or("silent".into(), |k| k.to_string()))),
    ]);
    out += &views(&status.views);
    out += &vlans(&status.vlans);
    if !status.branches.is_empty() {
        out += "\n";
        out += &branches(&status.branches);
    }
    out
}

fn views(views: &[v1::ViewStatus]) -> String {
    if views.is_empty() {
        return String::new();
    }
    let mut table = new(&["VIEW", "STATE", "ITEMS", "VALID FOR", "WHY"]);
    for view in views {
        table.add_row([
            short(view.kind().as_str_name(), "VIEW_KIND_"),
            short(view.state().as_str_name(), "VIEW_STATE_"),
            view.items.map_or_else(|| "-".to_owned(), |n| n.to_string()),
            view.valid_ms.map_or_else(|| "-".to_owned(), duration),
            view.sentence.clone(),
        ]);
    }
    format!("\n{}", text(&table))
}

fn vlans(vlans: &[v1::VlanStatus]) -> String {
    if vlans.is_empty() {
        return String::new();
    }
    let mut table = new(&["RESTING VLAN", "RESTED", "LEFT", "WHY"]);
    for vlan in vlans {
        table.add_row([
            vlan.vlan.to_string(),
            vlan.rested_ms.map_or_else(|| "-".to_owned(), duration),
            vlan.rests_ms.map_or_else(|| "-".to_owned(), duration),
            why(vlan.why.as_ref()),
        ]);
    }
    format!("\n{}", text(&table))
}

fn branches(branches: &[v1::BranchStatus]) -> String {
    let mut table = new(&["ENI", "VLAN", "MAC", "IP", "POD", "STATE", "HEALTH", "FOR", "WHY"]);
    for branch in branches {
        let ip = if branch.ipv4.is_empty() { &branch.ipv6 } else { &branch.ipv4 };
        let mut reason = why(branch.why.as_ref());
        if let Some(rest) = branch.cooling_ms {
            reason = format!("{reason} ({} left)", duration(rest));
        }
        table.add_row([
            dash(&branch.eni_id),
            if branch.vlan == 0 { "-".to_owned() } else { branch.vlan.to_string() },
            dash(&branch.mac),
            dash(ip),
            pod_name(branch.pod.as_ref()),
            branch.state.clone(),
            dash(&branch.health),
            duration(branch.since_ms),
            reason,
        ]);
    }
    text(&table)
}

/// `trunkline pod NAMESPACE/NAME`.
pub fn pods(pods: &[v1::PodStatus]) -> String {
    let blocks: Vec<String> = pods.iter().map(pod).collect();
    blocks.join("\n")
}

fn pod(pod: &v1::PodStatus) -> String {
    let failure = pod.last_error.as_ref().map_or_else(String::new, |e| {
        let code = if e.ec2_code.is_empty() { String::new() } else { format!(" ({})", e.ec2_code) };
        let age = e.age_ms.map_or_else(String::new, |a| format!(", {} ago", duration(a)));
        format!("{}{code}: {}{age}", e.class, e.message)
    });
    let attempts = if pod.attempts > 1 { pod.attempts.to_string() } else { String::new() };
    let mut out = facts(&[
        ("pod", pod_name(pod.key.as_ref())),
        ("uid", pod.key.as_ref().map(|k| k.uid.clone()).unwrap_or_default()),
        ("node", dash(&pod.node)),
        ("asks for", format!("{} branch ENI(s)", pod.requested)),
        ("stage", format!("{}, for {}", pod.stage, duration(pod.since_ms))),
        ("waits for", why(pod.why.as_ref())),
        ("attempts", attempts),
        ("last failure", failure),
    ]);
    if !pod.branches.is_empty() {
        out += "\n";
        out += &branches(&pod.branches);
    }
    out
}

/// `trunkline waiting`.
pub fn waiting(rows: &[v1::WaitingRow]) -> String {
    if rows.is_empty() {
        return "nothing waits\n".to_owned();
    }
    let mut table = new(&["WHAT", "NODE", "POD", "ENI", "FOR", "ATTEMPTS", "EC2 CODE", "WHY"]);
    for row in rows {
        table.add_row([
            short(row.kind().as_str_name(), "WAITING_KIND_"),
            dash(&row.node),
            pod_name(row.pod.as_ref()),
            dash(&row.eni_id),
            duration(row.since_ms),
            row.attempts.to_string(),
            dash(&row.ec2_code),
            why(row.why.as_ref()),
        ]);
    }
    text(&table)
}

/// An enum value's name as people read it: without its prefix, in lower case, with dashes.
fn short(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_lowercase().replace('_', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_units_at_most() {
        for (milliseconds, text) in [
            (0, "0ms"),
            (999, "999ms"),
            (1000, "1s"),
            (60_000, "1m"),
            (61_999, "1m1s"),
            (3_600_000, "1h"),
            (7_260_000, "2h1m"),
            (86_400_000, "1d"),
            (450_000_000, "5d5h"),
        ] {
            assert_eq!(duration(milliseconds), text);
        }
    }
}
