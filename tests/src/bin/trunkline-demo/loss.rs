//! A running pod's ENI is removed behind everybody's back, and the pod gets it back without a restart.

use crate::story::{Cast, chapter, waits};
use kube::ResourceExt as _;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;
use trunkline_tests::invariants::annotation::Branch;
use trunkline_tests::{Error, Result, poll};

/// The age that counts, an inventory, two answers, and the steps of a repair.
const PATIENCE: Duration = Duration::from_secs(90);

/// Plays it; fails unless the pod ends with the same address and the link with the new ENI's MAC.
pub(crate) async fn replay(cast: &Cast) -> Result<()> {
    chapter(6, "somebody deletes a running pod's interface in EC2");
    println!(
        "  Shortened for this demo: inventory every 10 s (production: 5 min), an ENI is believed missing after 8 s of\n  \
         age and two answers 2 s apart (5 min, 30 s).\n"
    );
    let name = cast.living.first().ok_or_else(|| Error::say("no pod is left"))?;
    let pod = cast.cluster.pod("default", name).await?;
    let pod = pod.ok_or_else(|| Error::say(format!("no pod {name}")))?;
    let node = pod.spec.as_ref().and_then(|s| s.node_name.clone()).unwrap_or_default();
    let old = only(cast.cluster.annotated(name, PATIENCE).await?)?;
    let begun = Instant::now();
    let removed = cast.cluster.ec2.delete_eni(&old.eni_id).await;
    removed.map_err(|error| Error::say(error.to_string()))?;
    println!("  0.0 s {} of {name} ({}, MAC {}) is gone", old.eni_id, old.ipv4, old.mac);
    let mut told = BTreeSet::new();
    let names = [name.clone()];
    let new = poll::eventually("the pod is healed", PATIENCE, async || {
        for (_, why) in waits(cast, &names).await.map_err(|error| error.to_string())? {
            if told.insert(why.clone()) {
                println!("  {:>3.1} s {why}", begun.elapsed().as_secs_f32());
            }
        }
        let now = cast.cluster.annotated(name, PATIENCE).await.map_err(|e| e.to_string())?;
        let now = only(now).map_err(|error| error.to_string())?;
        let links = cast.cluster.nodes.links(&node).await.map_err(|error| error.to_string())?;
        let link = format!("vlan.eth.{}", now.vlan);
        let up = links.iter().any(|l| l.name == link && l.mac == now.mac);
        if now.eni_id != old.eni_id && up { Ok(now) } else { Err("not yet".to_owned()) }
    })
    .await?;
    let took = begun.elapsed().as_secs_f32();
    println!("  {took:>3.1} s {} has the address {} and VLAN {}", new.eni_id, new.ipv4, new.vlan);
    println!("        and the pod's link on {node} its MAC {}; the pod was not restarted", new.mac);
    if (&new.ipv4, new.vlan) != (&old.ipv4, old.vlan) {
        return Err(Error::say(format!("{name} had {old:?} and has {new:?}")));
    }
    let uid = pod.uid().unwrap_or_default();
    for reason in ["BranchENILost", "BranchENIHealed"] {
        let severity = if reason == "BranchENIHealed" { "Normal" } else { "Warning" };
        let event = cast.cluster.event(&uid, reason, severity, PATIENCE).await?;
        println!("  event {reason}: {}", event.message.unwrap_or_default());
    }
    Ok(())
}

fn only(branches: Vec<Branch>) -> Result<Branch> {
    branches.into_iter().next().ok_or_else(|| Error::say("an empty annotation"))
}
