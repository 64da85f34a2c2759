//! Why the product keeps what it keeps, in its own words: for whoever reads about a world that does not settle.
//!
//! Nothing of this is judged. The oracle knows what is left; the leader's books and the agents' status say what is awaited.

use std::sync::Arc;

use trunkline_coordinator::grpc::status::{Seen, everything};
use trunkline_coordinator::grpc::{Lead, Leading};
use trunkline_core::heal::Health;
use trunkline_core::id::NodeName;
use trunkline_core::node::report::PodReport;

use super::world::{Door, World};

pub(super) use trunkline_core::node::report::NodeReport as Books;

/// The books of every node, by whoever leads; `None` where nobody does.
pub(super) async fn books(world: &Arc<World>) -> Option<Vec<(NodeName, Books)>> {
    let (_, leading) = leading(world).into_iter().next()?;
    let seen = everything(&leading.term).await;
    Some(seen.into_iter().filter_map(|seen| Some((seen.name, seen.books?.books))).collect())
}

/// Who leads, by address. In the time between two leaders there may be none, or one that does not know that it is over.
pub(super) fn leading(world: &World) -> Vec<(String, Leading)> {
    let doors = world.doors();
    let leads = |(address, door): (&String, &Door)| match &*door.shared.lead.borrow() {
        Lead::Leading(leading) if !door.life.is_over() => Some((address.clone(), leading.clone())),
        _ => None,
    };
    doors.iter().filter_map(leads).collect()
}

/// One line for each thing that is awaited; says so where nobody leads.
pub(super) async fn told(world: &Arc<World>) -> Vec<String> {
    let mut lines = Vec::new();
    let leads = leading(world);
    if leads.is_empty() {
        lines.push("no coordinator leads".to_owned());
    }
    for (address, leading) in leads {
        lines.push(format!("the leader at {address}, epoch {}:", leading.term.term.epoch));
        lines.extend(everything(&leading.term).await.iter().flat_map(node));
    }
    for (name, machine) in world.machines().iter() {
        let Some(status) = &machine.status else { continue };
        let status = status.borrow();
        for (view, shown) in
            [("pods", &status.pods), ("cgroups", &status.cgroups), ("links", &status.links)]
        {
            if let Some(why) = shown.sentence {
                lines.push(format!("  agent of {name}: {view} are unknown: {why}"));
            }
        }
        for case in &status.cases {
            lines.push(format!("  agent of {name}: {}: {}", case.pod, case.sentence));
        }
    }
    lines
}

fn node(seen: &Seen) -> Vec<String> {
    let name = &seen.name;
    let mut lines = Vec::new();
    if let Some(state) = &seen.state
        && state.name() != "ready"
    {
        lines.push(format!(
            "  {name} is {}: {:?} {:?}",
            state.name(),
            state.managed,
            state.trouble
        ));
    }
    let Some(report) = &seen.books else {
        lines.push(format!("  {name} has no books"));
        return lines;
    };
    let books = &report.books;
    for (view, blind) in ["pods", "links", "cgroups"].iter().zip(books.views) {
        if let Some(why) = blind {
            lines.push(format!("  {name}: {view} are unknown: {}", why.sentence()));
        }
    }
    if !books.strangers.is_empty() {
        lines.push(format!("  {name}: ENIs without our UID tag: {:?}", books.strangers));
    }
    if !books.inventory {
        lines.push(format!("  {name}: the inventory was not read"));
    }
    lines.extend(books.pods.iter().filter_map(|pod| waiting(name.as_str(), pod)));
    lines
}

fn waiting(node: &str, pod: &PodReport) -> Option<String> {
    let odd = pod.branches.iter().any(|branch| branch.health != Health::Ok);
    if pod.wait.is_none() && !odd {
        return None;
    }
    let branches: Vec<String> = pod
        .branches
        .iter()
        .map(|branch| {
            let eni = branch.eni.as_ref().map_or("no ENI", |eni| eni.as_str());
            let (state, health) = (branch.state.name(), branch.health.name());
            format!("{eni} vlan {} {state} {health}", branch.vlan)
        })
        .collect();
    let wait = pod.wait.as_ref().map_or_else(
        || "nothing is awaited".to_owned(),
        |(wait, since)| format!("{} for {since:?}: {wait}", wait.name()),
    );
    let (uid, branches) = (&pod.pod.uid, branches.join(", "));
    Some(format!("  {node}: pod {uid} [{branches}]: {wait}"))
}
