//! Carrying out an audit: one new whole reading of EC2, a consistent LIST of each node's pods, each node's books with what
//! its agent sees, and whatever has to be asked for by id. What any of it means, [`trunkline_core::node::audit`] decides.
//!
//! A reading that fails or does not come in time ends the audit with a gap and without findings; a list that fails, or books
//! that do not answer, leave out their node in the same way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use tokio::sync::oneshot;
use tokio::time::timeout;
use trunkline_core::eni::FailureClass;
use trunkline_core::id::{EniId, InstanceId, NodeName};
use trunkline_core::node::audit::{Audit, Evidence, Finding, Shown, ownerless};
use trunkline_core::node::event::Event;
use trunkline_kit::listwatch::list_pods;

use crate::actor::Mail;
use crate::api::chain;
use crate::control::Who;
use crate::inventory::Inventory;
use crate::term::{Handle, Term};

/// How long the reading of EC2 may take. Shorter than a caller's patience.
const READING: Duration = Duration::from_secs(20);
/// How long one node's books may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Nodes that are looked at at one time.
const AT_ONCE: usize = 8;

/// Something that was found, and where.
pub struct Found {
    /// The node's books; `None` where it belongs to no node.
    pub node: Option<Handle>,
    /// What.
    pub finding: Finding,
    /// Its repair was ordered.
    pub ordered: bool,
}

/// The outcome.
#[derive(Default)]
pub struct Report {
    /// What was found, by node.
    pub findings: Vec<Found>,
    /// What could not be looked at: the node, or the cluster, and why.
    pub unknown: Vec<(Option<NodeName>, String)>,
    /// Books that were looked at.
    pub nodes: usize,
    /// ENIs in the reading.
    pub enis: usize,
    /// Pods in the lists.
    pub pods: usize,
}

/// Looks at all nodes, or at one.
pub async fn audit(term: &Arc<Term>, only: Option<&NodeName>) -> Report {
    let mut report = Report::default();
    let now = term.clock.now();
    let inventory = match timeout(READING, term.board.fresh(now)).await {
        Ok(Ok(inventory)) => inventory,
        Ok(Err(why)) => {
            report.unknown.push((None, format!("EC2's inventory could not be read: {why}")));
            return report;
        }
        Err(_) => {
            let why = term.board.failure().map_or_else(String::new, |f| format!(": {f}"));
            let within = READING.as_secs();
            let sentence = format!("EC2's inventory was not read within {within} s{why}");
            report.unknown.push((None, sentence));
            return report;
        }
    };
    report.enis = inventory.len();
    let mut targets: Vec<(InstanceId, Handle)> =
        term.actors().into_iter().filter(|(_, h)| only.is_none_or(|n| h.node == *n)).collect();
    targets.sort_by(|a, b| a.1.node.cmp(&b.1.node));
    let mut looks = stream::iter(targets)
        .map(|(instance, handle)| look(term, inventory.clone(), instance, handle))
        .buffered(AT_ONCE);
    let mut looked_at = BTreeSet::new();
    while let Some(seen) = looks.next().await {
        report.nodes += 1;
        report.pods += seen.pods;
        looked_at.extend(seen.enis);
        let node = &seen.node;
        let gaps = seen.audit.unknown.into_iter().map(|why| (Some(node.node.clone()), why));
        report.unknown.extend(gaps);
        report.findings.extend(seen.audit.findings.into_iter().map(|finding| Found {
            node: Some(node.clone()),
            finding,
            ordered: false,
        }));
    }
    if only.is_none() {
        // Nodes that are being set up have no books yet.
        for instance in term.states().into_values().filter_map(|state| state.instance) {
            looked_at.extend(inventory.of_node(&instance, None).into_iter().map(|eni| eni.id));
        }
        let left = ownerless(inventory.enis(), &looked_at);
        report.findings.extend(left.into_iter().map(|finding| Found {
            node: None,
            finding,
            ordered: false,
        }));
    }
    report
}

/// Orders the repair of what an order can repair. Nothing that was not found by this very audit is touched.
pub async fn order(term: &Arc<Term>, report: &mut Report, who: &Who) {
    let mut orders: BTreeMap<NodeName, (Handle, BTreeSet<EniId>)> = BTreeMap::new();
    for found in &report.findings {
        if let (Some(node), Some(_), Some(eni)) =
            (&found.node, found.finding.remedy, &found.finding.eni)
        {
            let entry = orders.entry(node.node.clone());
            entry.or_insert_with(|| (node.clone(), BTreeSet::new())).1.insert(eni.clone());
        }
    }
    let counts: BTreeMap<NodeName, usize> =
        orders.iter().map(|(node, (_, enis))| (node.clone(), enis.len())).collect();
    if counts.is_empty() {
        return;
    }
    // Told before it happens.
    term.control.repair_ordered(&counts, who);
    for (node, (handle, enis)) in orders {
        let event = Mail::Event(Box::new(Event::Repair(enis.clone())));
        let sent = timeout(PATIENCE, handle.mail.send(event)).await;
        if matches!(sent, Ok(Ok(()))) {
            for found in &mut report.findings {
                let here = found.node.as_ref().is_some_and(|h| h.node == node);
                found.ordered |=
                    here && found.finding.eni.as_ref().is_some_and(|eni| enis.contains(eni));
            }
        } else {
            report.unknown.push((Some(node), "its books did not take the order".to_owned()));
        }
    }
}

/// What a look at one node gave.
struct Look {
    node: Handle,
    audit: Audit,
    pods: usize,
    enis: Vec<EniId>,
}

async fn look(
    term: &Arc<Term>,
    inventory: Arc<Inventory>,
    instance: InstanceId,
    node: Handle,
) -> Look {
    let mut seen = Look { node, audit: Audit::default(), pods: 0, enis: Vec::new() };
    let Some(books) = ask(&seen.node, Mail::Report).await else {
        seen.enis = inventory.of_node(&instance, None).into_iter().map(|eni| eni.id).collect();
        seen.audit.unknown.push("its books do not answer".to_owned());
        return seen;
    };
    let trunk = books.books.trunk.ok().map(|(eni, _, _)| eni);
    let enis = inventory.of_node(&instance, trunk.as_ref());
    seen.enis = enis.iter().map(|eni| eni.id.clone()).collect();
    let listed = term.clock.now();
    let pods = match list_pods(term.api.kit(), &seen.node.node).await {
        Ok(pods) => pods,
        Err(error) => {
            let why = format!("the API server's list of its pods: {}", chain(&error));
            seen.audit.unknown.push(why);
            return seen;
        }
    };
    seen.pods = pods.len();
    let mut evidence =
        Evidence { began: inventory.began, enis, listed, pods, by_id: BTreeMap::new() };
    // The second time there is an answer for every doubt, unless the books have changed meanwhile.
    for _ in 0..2 {
        let evidence_now = Box::new(evidence.clone());
        let Some(audit) = ask(&seen.node, |reply| Mail::Audit(evidence_now, reply)).await else {
            seen.audit.unknown.push("its books do not answer".to_owned());
            return seen;
        };
        let doubts: Vec<EniId> =
            audit.doubts.iter().filter(|eni| !evidence.by_id.contains_key(eni)).cloned().collect();
        seen.audit = audit;
        if doubts.is_empty() {
            return seen;
        }
        for eni in doubts {
            let shown = match term.cloud.describe(&eni).await {
                Ok(record) => Shown::There(Box::new(record)),
                Err(failure) if failure.class == FailureClass::NotFound => Shown::NotFound,
                Err(failure) => Shown::Unknown(failure.to_string()),
            };
            evidence.by_id.insert(eni, shown);
        }
    }
    let evidence = Box::new(evidence);
    match ask(&seen.node, |reply| Mail::Audit(evidence, reply)).await {
        Some(audit) => {
            let open = audit.doubts.iter().map(|eni| format!("ENI {eni} changed meanwhile"));
            let open: Vec<String> = open.collect();
            seen.audit = audit;
            seen.audit.unknown.extend(open);
        }
        None => seen.audit.unknown.push("its books do not answer".to_owned()),
    }
    seen
}

async fn ask<T>(node: &Handle, mail: impl FnOnce(oneshot::Sender<T>) -> Mail) -> Option<T> {
    let (reply, answer) = oneshot::channel();
    let asked = async {
        node.mail.send(mail(reply)).await.ok()?;
        answer.await.ok()
    };
    timeout(PATIENCE, asked).await.ok()?
}
