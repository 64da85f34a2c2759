//! The field failure replayed: a paged list is cut by 410, and the part that arrived is taken for the whole; then answers
//! that look complete and are empty. Agents and coordinators start anew in the middle of it.

use crate::story::{Cast, chapter};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;
use trunkline_sim::proxy::model::{EmptyVersion, FaultKind, FaultSpec, Match};
use trunkline_tests::objects::PodSpec;
use trunkline_tests::{Error, Result};

const SOON: Duration = Duration::from_secs(60);

/// Plays it; fails if any live branch was touched.
pub(crate) async fn replay(cast: &mut Cast) -> Result<()> {
    chapter(5, "the outage that took networks away from running pods elsewhere, replayed here");
    let before = branches(cast).await?;
    let from = cast.cluster.ec2_state().await?.seq + 1;
    let scenes = [
        (
            "lists are cut after the first pod by 410 Expired",
            FaultKind::ExpiredPages { limit: 1, follow: true },
        ),
        (
            "lists look complete, are empty and old",
            FaultKind::EmptyList { version: EmptyVersion::Behind(1) },
        ),
        (
            "lists look complete, are empty and current",
            FaultKind::EmptyList { version: EmptyVersion::Current },
        ),
    ];
    for (title, fault) in scenes {
        scene(cast, title, fault).await?;
        untouched(cast, &before, from).await?;
    }
    println!("  the API server answers properly again");
    cast.cluster.led(SOON).await?;
    cast.cluster.agents_ready(SOON).await?;
    let node = cast.cluster.node_names().into_iter().next().unwrap_or_default();
    let begun = Instant::now();
    cast.cluster.create(&PodSpec::branch("after", &node)).await?;
    cast.cluster.annotated("after", SOON).await?;
    println!("  a new pod gets its branch after {} ms", begun.elapsed().as_millis());
    cast.cluster.running("after", SOON).await?;
    untouched(cast, &before, from).await?;
    cast.living.push("after".to_owned());
    for name in &cast.living {
        cast.cluster.running(name, SOON).await?;
    }
    println!(
        "  {} branches before, the same {} after; every pod runs with its link up",
        before.len(),
        before.len()
    );
    Ok(())
}

/// Branch → (trunk, VLAN).
async fn branches(cast: &Cast) -> Result<BTreeMap<String, (String, u32)>> {
    let state = cast.cluster.ec2_state().await?;
    let held = state.enis.iter().filter_map(|eni| {
        let association = eni.association.as_ref()?;
        Some((eni.id.clone(), (association.trunk.clone(), association.vlan)))
    });
    Ok(held.collect())
}

async fn scene(cast: &mut Cast, title: &str, fault: FaultKind) -> Result<()> {
    println!("  while {title}: all agents and coordinators are killed and start again");
    let proxy = cast.cluster.proxy.clone().ok_or_else(|| Error::say("no fault proxy"))?;
    let say = |error: &dyn std::fmt::Display| Error::say(error.to_string());
    let id =
        proxy.add(&FaultSpec::new(Match::agents(), fault)).await.map_err(|error| say(&error))?;
    for index in 0..cast.cluster.coordinators.len() {
        cast.cluster.restart_coordinator(index)?;
    }
    for node in cast.cluster.node_names() {
        cast.cluster.restart_agent(&node).await?;
    }
    cast.cluster.led(SOON).await?;
    // Long enough for a rule that believes such a list to act: more than cooldown, rest and every repeat.
    let nodes = cast.cluster.node_names().len();
    let wanted = u64::try_from(nodes).unwrap_or(u64::MAX);
    trunkline_tests::poll::eventually("every agent was lied to", SOON, async || {
        let hits = proxy.hits(id).await.map_err(|error| error.to_string())?;
        if hits >= wanted { Ok(()) } else { Err(format!("{hits} of {wanted} answers")) }
    })
    .await?;
    trunkline_tests::poll::throughout("nothing is released", Duration::from_secs(8), async || {
        let violations = cast.cluster.violations().await.map_err(|error| error.to_string())?;
        violations.first().map_or(Ok(()), |violation| Err(violation.to_string()))
    })
    .await?;
    let hits = proxy.hits(id).await.map_err(|error| say(&error))?;
    proxy.remove(id).await.map_err(|error| say(&error))?;
    let given = if hits == 1 {
        "1 such answer was".to_owned()
    } else {
        format!("{hits} such answers were")
    };
    println!("    {given} given; nobody believed it, no branch was touched");
    Ok(())
}

async fn untouched(cast: &Cast, before: &BTreeMap<String, (String, u32)>, from: u64) -> Result<()> {
    let now = branches(cast).await?;
    for (eni, place) in before {
        if now.get(eni) != Some(place) {
            return Err(Error::say(format!("{eni} was at {place:?} and is at {:?}", now.get(eni))));
        }
    }
    let calls = cast.cluster.ec2.log(from).await.map_err(|error| Error::say(error.to_string()))?;
    let taken = calls.iter().find(|call| {
        ["DisassociateTrunkInterface", "DeleteNetworkInterface", "DetachNetworkInterface"]
            .contains(&call.action.as_str())
    });
    taken.map_or(Ok(()), |call| {
        Err(Error::say(format!("call {}: {} {:?}", call.seq, call.action, call.params)))
    })
}
