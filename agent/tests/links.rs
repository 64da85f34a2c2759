//! The netlink adapter in real network namespaces.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on ends")]

mod common;

use common::{Netns, within};
use trunkline_agent::links::LinkReader;
use trunkline_core::id::{MacAddress, VlanId};
use trunkline_core::view::LinkKind;

const TRUNK: &str = "02:00:00:00:00:01";
const BRANCH: &str = "02:00:00:00:00:07";

fn vlan() -> VlanId {
    VlanId::new(7).unwrap()
}

#[tokio::test]
async fn links_of_another_namespace_are_read_and_its_own_are_not_mixed_in() {
    let Some(netns) = Netns::new() else { return };
    netns.make_trunk(TRUNK);
    netns.make_branch(7, BRANCH);
    let inside = LinkReader::new(Some(&netns.file()));
    let links = inside.dump().await.unwrap();
    let trunk: MacAddress = TRUNK.parse().unwrap();
    let branch: MacAddress = BRANCH.parse().unwrap();
    assert!(links.has_mac(trunk) && links.has_branch(vlan(), branch));
    let link = links.0.iter().find(|l| l.name == "vlan.eth.7").unwrap();
    assert_eq!(link.kind, LinkKind::Other("macvlan".into()));
    let parent = links.0.iter().find(|l| Some(l.index) == link.parent).unwrap();
    assert_eq!((parent.name.as_str(), parent.mac), ("trunk0", Some(trunk)));

    let outside = LinkReader::new(None).dump().await.unwrap();
    assert!(!outside.has_mac(trunk) && !outside.has_vlan(vlan()));

    netns.ip("link del vlan.eth.7");
    let links = inside.dump().await.unwrap();
    assert!(links.has_mac(trunk) && !links.has_branch(vlan(), branch));
}

#[tokio::test]
async fn a_real_vlan_link_is_known_by_its_id_whatever_its_name() {
    let Some(netns) = Netns::new() else { return };
    netns.make_trunk(TRUNK);
    if !netns.try_ip("link add link trunk0 name other type vlan id 7") {
        eprintln!("skipped: the kernel has no 802.1q");
        return;
    }
    let links = LinkReader::new(Some(&netns.file())).dump().await.unwrap();
    assert!(links.has_vlan(vlan()));
    let link = links.0.iter().find(|l| l.name == "other").unwrap();
    assert_eq!(link.kind, LinkKind::Vlan(7));
}

#[tokio::test]
async fn many_links_fit_into_one_dump() {
    let Some(netns) = Netns::new() else { return };
    netns.make_trunk(TRUNK);
    for n in 1..=60 {
        netns.make_branch(n, &format!("02:00:00:00:01:{n:02x}"));
    }
    let links = LinkReader::new(Some(&netns.file())).dump().await.unwrap();
    let found = links.0.iter().filter_map(trunkline_core::view::Link::branch_vlan).count();
    assert_eq!(found, 60);
}

#[tokio::test]
async fn changes_are_told() {
    let Some(netns) = Netns::new() else { return };
    netns.make_trunk(TRUNK);
    let mut events = LinkReader::new(Some(&netns.file())).events().await.unwrap();
    netns.make_branch(7, BRANCH);
    within("event", events.changed()).await.unwrap();
    netns.ip("link del vlan.eth.7");
    within("event", events.changed()).await.unwrap();
}

#[tokio::test]
async fn a_missing_namespace_is_an_error_and_never_an_empty_list() {
    let dir = tempfile::tempdir().unwrap();
    assert!(LinkReader::new(Some(&dir.path().join("gone"))).dump().await.is_err());
    let file = dir.path().join("file");
    std::fs::write(&file, b"").unwrap();
    assert!(LinkReader::new(Some(&file)).dump().await.is_err());
    assert!(LinkReader::new(Some(&file)).events().await.is_err());
}

#[tokio::test]
async fn the_own_namespace_needs_no_rights() {
    let links = LinkReader::new(None).dump().await.unwrap();
    assert!(links.0.iter().any(|l| l.name == "lo"));
}
