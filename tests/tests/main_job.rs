//! The main job on the whole program: pods get branches and give them back; restarts, lies and churn in between.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test's helpers")]

use kube::ResourceExt as _;
use std::collections::BTreeSet;
use std::time::Duration;
use trunkline_sim::ec2::config::group_id;
use trunkline_sim::proxy::model::{EmptyVersion, FaultKind, FaultSpec, Match};
use trunkline_tests::cluster::{Cluster, Options};
use trunkline_tests::objects::{self, PodSpec};
use trunkline_tests::{poll, skipped};

const SOON: Duration = Duration::from_secs(40);

async fn cluster(test: &str, options: Options) -> Option<Cluster> {
    if let Some(why) = Cluster::missing() {
        skipped(test, &why);
        return None;
    }
    Some(Cluster::start(options).await.unwrap())
}

/// The pods' ENIs, as their annotations name them.
async fn enis(cluster: &Cluster, names: &[String]) -> BTreeSet<String> {
    let mut enis = BTreeSet::new();
    for name in names {
        enis.extend(
            cluster.annotated(name, SOON).await.unwrap().into_iter().map(|branch| branch.eni_id),
        );
    }
    enis
}

async fn pods(cluster: &Cluster, prefix: &str, count: u32, nodes: u32) -> Vec<String> {
    let mut names = Vec::new();
    for number in 0..count {
        let name = format!("{prefix}-{number}");
        cluster
            .create(&PodSpec::branch(&name, &format!("node-{}", number % nodes + 1)))
            .await
            .unwrap();
        names.push(name);
    }
    names
}

/// How many calls of a coordinator released something since `from`.
async fn releases(cluster: &Cluster, from: u64) -> usize {
    let calls = cluster.ec2.log(from).await.unwrap();
    calls
        .iter()
        .filter(|call| {
            ["DisassociateTrunkInterface", "DeleteNetworkInterface"].contains(&call.action.as_str())
        })
        .count()
}

#[tokio::test]
async fn pods_get_a_branch_with_their_policys_groups_and_give_it_back() {
    let Some(cluster) = cluster("give and take", Options::default().nodes(2).coordinators(2)).await
    else {
        return;
    };
    objects::policy(&cluster.admin, "default", "web", &[("role", "web")], &[&group_id(3)])
        .await
        .unwrap();
    let web = cluster.create(&PodSpec::branch("web", "node-1").label("role", "web")).await.unwrap();
    let other = cluster.create(&PodSpec::branch("other", "node-2")).await.unwrap();
    let plain = cluster.create(&PodSpec::branch("plain", "node-2").plain()).await.unwrap();
    for name in ["web", "other", "plain"] {
        cluster.running(name, SOON).await.unwrap();
    }
    let branch = cluster.annotated("web", SOON).await.unwrap();
    let state = cluster.ec2_state().await.unwrap();
    assert_eq!(state.eni(&branch[0].eni_id).unwrap().groups, [group_id(3)]);
    assert!(cluster.pod("default", "plain").await.unwrap().unwrap().annotations().is_empty());
    cluster.delete("default", "web", false).await.unwrap();
    cluster.delete("default", "other", true).await.unwrap();
    for pod in [&web, &other, &plain] {
        if *pod != plain {
            cluster.released(&pod.uid().unwrap(), SOON).await.unwrap();
        }
    }
    cluster.finish().await.unwrap();
}

#[tokio::test]
async fn s01_a_list_cut_by_410_is_no_reason_to_release_anything() {
    let options = Options::default().proxied().instance_type("m5.4xlarge");
    let Some(mut cluster) = cluster("s01", options).await else { return };
    let names = pods(&cluster, "live", 20, 1).await;
    let before = enis(&cluster, &names).await;
    assert_eq!(before.len(), 20);
    let from = cluster.ec2_state().await.unwrap().seq + 1;
    let proxy = cluster.proxy.clone().unwrap();
    let cut = FaultKind::ExpiredPages { limit: 3, follow: false };
    let id = proxy.add(&FaultSpec::times(Match::agents(), cut, 3)).await.unwrap();
    cluster.restart_coordinator(0).unwrap();
    cluster.restart_agent("node-1").await.unwrap();
    poll::eventually("three lists were cut", SOON, async || {
        let hits = proxy.hits(id).await.map_err(|error| error.to_string())?;
        if hits >= 3 { Ok(()) } else { Err(format!("{hits}")) }
    })
    .await
    .unwrap();
    cluster.led(SOON).await.unwrap();
    cluster.agents_ready(SOON).await.unwrap();
    let after = pods(&cluster, "after", 1, 1).await;
    cluster.running(&after[0], SOON).await.unwrap();
    assert_eq!(releases(&cluster, from).await, 0);
    assert_eq!(enis(&cluster, &names).await, before);
    cluster.finish().await.unwrap();
}

#[tokio::test]
async fn s12_complete_looking_empty_lists_release_nothing_and_real_deletes_still_do() {
    let Some(mut cluster) = cluster("s12", Options::default().proxied()).await else { return };
    let names = pods(&cluster, "live", 5, 1).await;
    let before = enis(&cluster, &names).await;
    let proxy = cluster.proxy.clone().unwrap();
    for version in [EmptyVersion::Behind(1), EmptyVersion::Current] {
        let from = cluster.ec2_state().await.unwrap().seq + 1;
        let id = proxy
            .add(&FaultSpec::new(Match::agents(), FaultKind::EmptyList { version }))
            .await
            .unwrap();
        cluster.restart_agent("node-1").await.unwrap();
        poll::eventually("the agent was lied to", SOON, async || {
            let hits = proxy.hits(id).await.map_err(|error| error.to_string())?;
            if hits > 0 { Ok(()) } else { Err("not yet") }.map_err(str::to_owned)
        })
        .await
        .unwrap();
        poll::throughout("nothing is released", Duration::from_secs(10), async || {
            if releases(&cluster, from).await == 0 { Ok(()) } else { Err("a release") }
        })
        .await
        .unwrap();
        proxy.remove(id).await.unwrap();
    }
    let uid = cluster.pod("default", &names[0]).await.unwrap().unwrap().uid().unwrap();
    cluster.delete("default", &names[0], false).await.unwrap();
    cluster.released(&uid, SOON).await.unwrap();
    assert_eq!(enis(&cluster, &names[1..]).await.len(), before.len() - 1);
    cluster.finish().await.unwrap();
}

#[tokio::test]
async fn s21_a_name_that_comes_back_at_once_gets_an_eni_of_its_own() {
    let options = Options::default().instance_type("m5.4xlarge");
    let Some(cluster) = cluster("s21", options).await else { return };
    let mut uids = BTreeSet::new();
    for round in 0..10_u64 {
        let pod = cluster.create(&PodSpec::branch("again", "node-1")).await.unwrap();
        uids.insert(pod.uid().unwrap());
        // From "before anything happened" to "in the middle of it" to "running".
        if round % 3 == 1 {
            cluster.annotated("again", SOON).await.unwrap();
        } else if round % 3 == 2 {
            cluster.running("again", SOON).await.unwrap();
        }
        cluster.delete("default", "again", true).await.unwrap();
    }
    let last = cluster.create(&PodSpec::branch("again", "node-1")).await.unwrap();
    cluster.running("again", SOON).await.unwrap();
    for uid in &uids {
        cluster.released(uid, Duration::from_mins(2)).await.unwrap();
    }
    let branch = cluster.annotated("again", SOON).await.unwrap();
    let state = cluster.ec2_state().await.unwrap();
    assert_eq!(
        state.eni(&branch[0].eni_id).unwrap().tags.get("trunkline.dev/pod-uid"),
        last.uid().as_ref()
    );
    cluster.finish().await.unwrap();
}

#[tokio::test]
async fn a_killed_leader_is_followed_by_another_that_finishes_its_work() {
    let options = Options {
        ec2_flags: vec!["--latency-ms=300".to_owned()],
        ..Options::default().nodes(2).coordinators(2)
    };
    let Some(mut cluster) = cluster("leader change", options).await else { return };
    let leader = cluster.led(SOON).await.unwrap();
    let names = pods(&cluster, "pod", 8, 2).await;
    poll::eventually("the leader is in the middle of it", SOON, async || {
        let calls = cluster.ec2.log(1).await.map_err(|error| error.to_string())?;
        let made = calls.iter().filter(|call| {
            call.action == "CreateNetworkInterface" && call.caller.starts_with("TR")
        });
        // Two of them are the trunks.
        if made.count() > 3 { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await
    .unwrap();
    cluster.coordinators[leader].process.kill();
    let next = poll::eventually("the other leads", SOON, async || match cluster.leader().await {
        Ok(Some(index)) if index != leader => Ok(index),
        other => Err(format!("{other:?}")),
    })
    .await
    .unwrap();
    assert_ne!(next, leader);
    for name in &names {
        cluster.running(name, SOON).await.unwrap();
    }
    cluster.restart_coordinator(leader).unwrap();
    cluster.finish().await.unwrap();
}
