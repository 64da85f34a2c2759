//! Status messages out of the books.

use std::collections::BTreeMap;
use std::time::Duration;

use trunkline_core::heal::Health;
use trunkline_core::mode::Mode;
use trunkline_core::node::report::{BranchReport, BranchState, NodeReport as Books, PodReport};
use trunkline_core::time::Moment;
use trunkline_core::view::Blind;
use trunkline_core::vlan::KeptVlan;
use trunkline_core::wait::Wait;
use trunkline_proto::convert::view_state;
use trunkline_proto::v1::{
    BranchStatus, BucketStatus, ClusterStatus, Count, Explanation, InventoryStatus, LastError,
    NodeRow, NodeStatus, PodStatus, SessionStatus, Slots, TrunkStatus, ViewKind, ViewStatus,
    VlanStatus, WaitingKind, WaitingRow,
};

use super::Seen;
use crate::actor::About;
use crate::cloud::Budget;
use crate::grpc::Shared;
use crate::term::Term;

fn ms(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

fn explain(name: &str, sentence: impl Into<String>) -> Explanation {
    Explanation { reason: name.to_owned(), sentence: sentence.into() }
}

fn wait(wait: &Wait) -> Explanation {
    explain(wait.name(), wait.to_string())
}

fn counts<'a>(names: impl Iterator<Item = &'a str>) -> Vec<Count> {
    let mut counted: BTreeMap<&str, u64> = BTreeMap::new();
    for name in names {
        *counted.entry(name).or_default() += 1;
    }
    counted.into_iter().map(|(name, count)| Count { name: name.to_owned(), count }).collect()
}

/// The cluster.
pub(super) fn cluster(term: &Term, shared: &Shared, seen: &[Seen]) -> ClusterStatus {
    let now = term.clock.now();
    let settings = *term.settings.borrow();
    let brakes = term.control.view();
    let last = term.board.last();
    let pods = || seen.iter().filter_map(|s| s.books.as_ref()).flat_map(|b| &b.books.pods);
    let waits = waiting(seen, "", now);
    ClusterStatus {
        cluster: term.cluster.to_string(),
        build: trunkline_kit::config::version().to_owned(),
        leader_identity: shared.identity.to_string(),
        leader_address: shared.own_address.to_string(),
        epoch: term.term.epoch.0,
        term_age_ms: ms(now.since(term.began)),
        mode: Mode::from_flags(settings.read_only, settings.no_release).name().to_owned(),
        cooldown_ms: ms(settings.cooldown),
        inventory: Some(InventoryStatus {
            complete: last.is_some(),
            age_ms: last.as_ref().map(|i| ms(now.since(i.began))),
            enis: last.as_ref().map_or(0, |i| count(i.len())),
            failure: term.board.failure().map(|f| explain(f.class.name(), f.to_string())),
        }),
        nodes: counts(seen.iter().map(state_name)),
        branches: counts(pods().flat_map(|p| &p.branches).map(|b| b.state.name())),
        waiting: counts(waits.iter().filter_map(|w| w.why.as_ref()).map(|w| w.reason.as_str())),
        buckets: term.cloud.budgets().into_iter().map(bucket).collect(),
        fuse: Some(super::brakes::fuse(&brakes)),
        mode_choice: Some(super::brakes::mode(&brakes)),
        last_repair: brakes.repair.as_ref().map(super::brakes::decision),
        health: health(seen.iter().filter_map(|s| s.books.as_ref()).map(|b| &b.books)),
    }
}

fn bucket(budget: Budget) -> BucketStatus {
    BucketStatus {
        action: budget.action.to_owned(),
        tokens: budget.level.tokens,
        capacity: budget.level.capacity,
        refill_per_second: budget.level.refill,
        waiting: u32::try_from(budget.level.waiting).unwrap_or(u32::MAX),
        throttled: budget.throttled,
    }
}

/// ENIs by class (`NEW-7`).
fn health<'a>(books: impl Iterator<Item = &'a Books>) -> Vec<Count> {
    let mut counted: BTreeMap<_, u64> = BTreeMap::new();
    for (class, number) in books.flat_map(|b| &b.health) {
        *counted.entry(*class).or_default() += count(*number);
    }
    let named = |(class, count): (Health, u64)| Count { name: class.name().to_owned(), count };
    counted.into_iter().map(named).collect()
}

/// `ready` means that pods are served: without its agent a node with a trunk is `unknown`.
fn state_name(seen: &Seen) -> &'static str {
    let Some(state) = &seen.state else {
        return "gone";
    };
    match (state.name(), &seen.books) {
        ("ready", Some(books))
            if !books.books.connected || books.books.views.iter().any(Option::is_some) =>
        {
            "unknown"
        }
        (name, _) => name,
    }
}

fn state_why(seen: &Seen) -> Option<Explanation> {
    let Some(state) = &seen.state else {
        return Some(explain(
            "node-object-gone",
            "the Node object is gone; its branches end by their pods' facts",
        ));
    };
    match state_name(seen) {
        "unmanaged" => state.managed.as_ref().err().map(|(name, sentence)| explain(name, sentence)),
        "unknown" => seen
            .books
            .as_ref()
            .and_then(|b| blind(&b.books))
            .map(|b| explain(b.name(), b.sentence())),
        _ => state.trouble.as_ref().map(|(name, sentence)| explain(name, sentence)),
    }
}

fn blind(books: &Books) -> Option<Blind> {
    if books.connected {
        books.views.iter().flatten().next().copied()
    } else {
        Some(Blind::Disconnected)
    }
}

/// A node in a list.
pub(super) fn node_row(seen: &Seen) -> NodeRow {
    let books = seen.books.as_ref();
    let state = seen.state.as_ref();
    let instance =
        state.and_then(|s| s.instance.clone()).or_else(|| books.map(|b| b.instance.clone()));
    NodeRow {
        name: seen.name.to_string(),
        instance_id: instance.map(|i| i.to_string()).unwrap_or_default(),
        instance_type: state
            .and_then(|s| s.kind.as_ref())
            .map(ToString::to_string)
            .unwrap_or_default(),
        managed: state.is_some_and(|s| s.managed.is_ok()),
        state: state_name(seen).to_owned(),
        why: state_why(seen),
        connected: books.is_some_and(|b| b.books.connected),
        slots: books.and_then(|b| slots(&b.books)),
        frozen: books.and_then(|b| b.books.fuse.keep()).map(super::brakes::keep),
    }
}

fn slots(books: &Books) -> Option<Slots> {
    let (_, _, limit) = books.trunk.as_ref().ok()?;
    let cooling = books
        .pods
        .iter()
        .flat_map(|p| &p.branches)
        .filter(|b| b.state == BranchState::Cooling)
        .count();
    Some(Slots {
        limit: *limit,
        used: books.used,
        free: books.free,
        cooling: u32::try_from(cooling).unwrap_or(u32::MAX),
    })
}

/// A node.
pub(super) fn node(seen: &Seen, now: Moment) -> NodeStatus {
    let Some(report) = &seen.books else {
        return NodeStatus { row: Some(node_row(seen)), ..NodeStatus::default() };
    };
    let books = &report.books;
    let trunk = books.trunk.as_ref().ok().map(|(eni, mac, _)| TrunkStatus {
        eni_id: eni.to_string(),
        mac: mac.to_string(),
        state: "attached".to_owned(),
        why: seen
            .state
            .as_ref()
            .and_then(|s| s.trouble.as_ref())
            .map(|(name, sentence)| explain(name, sentence)),
    });
    let mut branches: Vec<BranchStatus> = books.pods.iter().flat_map(pod_branches).collect();
    branches.sort_by_key(|b| b.vlan);
    NodeStatus {
        row: Some(node_row(seen)),
        trunk,
        session: report.session.as_ref().map(|about| session(about, now)),
        views: views(books),
        vlans: books.kept.iter().map(kept_vlan).collect(),
        branches,
        health: health(std::iter::once(books)),
    }
}

fn kept_vlan(kept: &KeptVlan) -> VlanStatus {
    VlanStatus {
        vlan: u32::from(kept.vlan.get()),
        rests_ms: kept.left.map(ms),
        why: Some(explain(kept.why.name(), kept.why.sentence())),
        rested_ms: kept.rested.map(ms),
    }
}

fn session(about: &About, now: Moment) -> SessionStatus {
    SessionStatus {
        session: about.opened.origin.session.to_string(),
        build: about.build.clone(),
        agent_pod_uid: about.agent.pod_uid.to_string(),
        connected_ms: ms(now.since(about.since)),
        heartbeat_age_ms: ms(now.since(*about.heartbeat.borrow())),
        boot_id: about.opened.boot.to_string(),
        kubelet_start_ns: about.opened.kubelet.map(|k| k.0),
    }
}

fn views(books: &Books) -> Vec<ViewStatus> {
    let kinds = [ViewKind::Pods, ViewKind::Links, ViewKind::Cgroups];
    kinds
        .into_iter()
        .zip(books.views)
        .map(|(kind, blind)| ViewStatus {
            kind: kind.into(),
            state: view_state(blind).into(),
            valid_ms: None,
            items: None,
            sentence: blind.map(|b| b.sentence().to_owned()).unwrap_or_default(),
        })
        .collect()
}

fn pod_branches(pod: &PodReport) -> impl Iterator<Item = BranchStatus> {
    pod.branches.iter().map(|b| branch(pod, b))
}

fn branch(pod: &PodReport, branch: &BranchReport) -> BranchStatus {
    let address = |v6: bool| {
        branch.addresses.iter().find(|a| a.contains(':') == v6).cloned().unwrap_or_default()
    };
    BranchStatus {
        eni_id: branch.eni.as_ref().map(ToString::to_string).unwrap_or_default(),
        vlan: u32::from(branch.vlan.get()),
        mac: branch.mac.map(|m| m.to_string()).unwrap_or_default(),
        ipv4: address(false),
        ipv6: address(true),
        association_id: branch.association.clone().unwrap_or_default(),
        pod: Some((&pod.pod).into()),
        state: branch.state.name().to_owned(),
        health: branch.health.name().to_owned(),
        since_ms: ms(pod.wait.as_ref().map_or(pod.age, |(_, since)| *since)),
        why: pod.wait.as_ref().map(|(w, _)| wait(w)),
        cooling_ms: branch.cooling_left.map(ms),
    }
}

/// What is known under a pod's name, the live one first.
pub(super) fn pods(seen: &[Seen], namespace: &str, name: &str) -> Vec<PodStatus> {
    let mut found: Vec<(bool, PodStatus)> = seen
        .iter()
        .filter_map(|s| s.books.as_ref().map(|b| (s, b)))
        .flat_map(|(s, b)| b.books.pods.iter().map(move |p| (s, p)))
        .filter(|(_, p)| p.pod.namespace.as_str() == namespace && p.pod.name.as_str() == name)
        .map(|(s, p)| (p.releasing, pod(s, p)))
        .collect();
    found.sort_by_key(|(releasing, _)| *releasing);
    found.into_iter().map(|(_, p)| p).collect()
}

fn pod(seen: &Seen, pod: &PodReport) -> PodStatus {
    PodStatus {
        key: Some((&pod.pod).into()),
        node: seen.name.to_string(),
        requested: pod.requested,
        stage: stage(pod).to_owned(),
        since_ms: ms(pod.wait.as_ref().map_or(pod.age, |(_, since)| *since)),
        why: why(pod),
        attempts: pod.attempts,
        last_error: pod.wait.as_ref().and_then(|(w, _)| last_error(w)),
        branches: pod_branches(pod).collect(),
    }
}

/// What it waits for, or else what is odd about it.
fn why(pod: &PodReport) -> Option<Explanation> {
    let odd = || pod.odd_request.map(|odd| explain(odd.name(), odd.sentence()));
    pod.wait.as_ref().map(|(w, _)| wait(w)).or_else(odd)
}

fn stage(pod: &PodReport) -> &'static str {
    match (pod.releasing, &pod.wait, pod.branches.is_empty()) {
        (false, None, true) => "no-branch",
        (true, _, _) => "releasing",
        (false, _, _) if pod.healing => "healing",
        (false, None, false) => "bound",
        (false, _, true) => "waiting",
        (false, Some(_), false) => "allocating",
    }
}

fn last_error(wait: &Wait) -> Option<LastError> {
    let Wait::Ec2(_, class, message) = wait else {
        return None;
    };
    Some(LastError {
        class: class.name().to_owned(),
        ec2_code: ec2_code(message),
        message: message.clone(),
        age_ms: None,
    })
}

/// The code at the head of what [`trunkline_core::eni::Ec2Failure::told`] says; empty where there is none.
fn ec2_code(text: &str) -> String {
    let is_code =
        |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.');
    text.split_once(": ")
        .filter(|(code, _)| is_code(code))
        .map(|(code, _)| code.to_owned())
        .unwrap_or_default()
}

/// Everything that waits, longest first.
pub(super) fn waiting(seen: &[Seen], only: &str, now: Moment) -> Vec<WaitingRow> {
    let mut found = Vec::new();
    for seen in seen.iter().filter(|s| only.is_empty() || s.name.as_str() == only) {
        if let Some(state) = seen.state.as_ref().filter(|s| s.trunk.is_none() && s.managed.is_ok())
            && let Some((name, sentence)) = &state.trouble
        {
            found.push(WaitingRow {
                kind: WaitingKind::Node.into(),
                node: seen.name.to_string(),
                why: Some(explain(name, sentence)),
                since_ms: ms(now.since(state.since)),
                attempts: state.attempts,
                ec2_code: state.ec2_code.clone().unwrap_or_default(),
                ..WaitingRow::default()
            });
        }
        for pod in seen.books.iter().flat_map(|b| &b.books.pods) {
            let Some((why, since)) = &pod.wait else {
                continue;
            };
            found.push(WaitingRow {
                kind: match (pod.releasing, pod.healing) {
                    (true, _) => WaitingKind::Release,
                    (false, true) => WaitingKind::Heal,
                    (false, false) => WaitingKind::Allocation,
                }
                .into(),
                node: seen.name.to_string(),
                pod: Some((&pod.pod).into()),
                eni_id: pod
                    .branches
                    .iter()
                    .filter(|_| pod.releasing)
                    .find_map(|b| b.eni.as_ref().map(ToString::to_string))
                    .unwrap_or_default(),
                why: Some(wait(why)),
                since_ms: ms(*since),
                attempts: pod.attempts,
                ec2_code: last_error(why).map(|e| e.ec2_code).unwrap_or_default(),
            });
        }
    }
    found.sort_by_key(|w| std::cmp::Reverse(w.since_ms));
    found
}
