//! Real namespaces and links. They need root and `ip`; without either the tests say so and do nothing.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "a test's helpers")]

use trunkline_sim::node::netns::{self, Netns, TRUNK_LINK};

const TRUNK: &str = "02:00:00:00:10:01";
const ONE: &str = "02:00:00:00:10:02";
const TWO: &str = "02:00:00:00:10:03";

async fn possible() -> bool {
    match netns::probe().await {
        Ok(()) => true,
        Err(error) => {
            eprintln!("skipped: {error}");
            false
        }
    }
}

fn name(suffix: &str) -> String {
    format!("{}{suffix}", netns::run_prefix())
}

#[tokio::test]
async fn a_node_has_a_trunk_and_branches_in_its_own_namespace() {
    if !possible().await {
        return;
    }
    let netns = Netns::create(&name("links")).await.unwrap();
    assert!(netns.add_branch("vlan.eth.7", ONE).await.is_err(), "there is no trunk yet");
    netns.set_trunk(TRUNK).await.unwrap();
    netns.add_branch("vlan.eth.7", ONE).await.unwrap();
    assert_eq!(netns.mac_of(TRUNK_LINK).await.unwrap().as_deref(), Some(TRUNK));
    assert_eq!(netns.mac_of("vlan.eth.7").await.unwrap().as_deref(), Some(ONE));
    // An existing link of the name is replaced, as the CNI does.
    netns.add_branch("vlan.eth.7", TWO).await.unwrap();
    assert_eq!(netns.links().await.unwrap().get("vlan.eth.7").map(String::as_str), Some(TWO));
    assert!(netns.remove("vlan.eth.7").await.unwrap());
    assert!(!netns.remove("vlan.eth.7").await.unwrap());
    assert_eq!(netns.mac_of("vlan.eth.7").await.unwrap(), None);
    // Nothing of this is visible outside.
    assert!(!std::path::Path::new("/sys/class/net/vlan.eth.7").exists());
}

#[tokio::test]
async fn branches_go_with_their_trunk() {
    if !possible().await {
        return;
    }
    let netns = Netns::create(&name("trunk")).await.unwrap();
    netns.set_trunk(TRUNK).await.unwrap();
    netns.add_branch("vlan.eth.1", ONE).await.unwrap();
    netns.set_trunk(TWO).await.unwrap();
    let links = netns.links().await.unwrap();
    assert_eq!(links.get(TRUNK_LINK).map(String::as_str), Some(TWO));
    assert!(!links.contains_key("vlan.eth.1"));
}

#[tokio::test]
async fn a_dropped_namespace_is_gone_and_a_dead_runs_one_is_removed() {
    if !possible().await {
        return;
    }
    let netns = Netns::create(&name("drop")).await.unwrap();
    let path = netns.path();
    assert!(path.exists());
    drop(netns);
    assert!(!path.exists());
    let live = Netns::create(&name("live")).await.unwrap();
    // Start time 1 is not this process's: a run that has ended, whose id came back.
    let stale = format!("tlsim-{}.1-stale", std::process::id());
    let made = std::process::Command::new("ip").args(["netns", "add", &stale]).status().unwrap();
    assert!(made.success());
    netns::remove_stale();
    assert!(!std::path::Path::new("/run/netns").join(&stale).exists());
    assert!(live.path().exists());
}
