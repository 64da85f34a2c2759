//! The live MAC change on real links, with packets through it: before, lost, healed. What the cloud answers to, and how the
//! CNI sets a branch up, is in `common::wire`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on ends"
)]

mod common;

use std::net::TcpStream;
use std::time::Duration;

use common::wire::{BOTH, Family, POD, TRUNK, Wire, echo, heard, until};
use common::{LIMIT, Netns};
use trunkline_agent::links::LinkReader;
use trunkline_agent::links::heal::LinkHealer;
use trunkline_core::id::{MacAddress, VlanId};
use trunkline_core::message::{MacOutcome, SetMac};
use trunkline_core::view::Link;

const OLD: &str = "02:00:00:00:00:07";
const NEW: &str = "02:00:00:00:00:77";
const THIRD: &str = "02:00:00:00:00:99";
const SHORT: Duration = Duration::from_millis(300);

fn mac(text: &str) -> MacAddress {
    text.parse().unwrap()
}

fn request(from: &str, to: &str) -> SetMac {
    SetMac {
        request: 1,
        uid: "uid-1".parse().unwrap(),
        vlan: VlanId::new(7).unwrap(),
        from: mac(from),
        to: mac(to),
        addresses: POD.iter().map(|a| a.parse().unwrap()).collect(),
    }
}

async fn heal(node: &Netns, from: &str, to: &str) -> MacOutcome {
    LinkHealer::new(Some(&node.file())).set_mac(request(from, to), mac(TRUNK)).await
}

async fn links(node: &Netns) -> Vec<Link> {
    LinkReader::new(Some(&node.file())).dump().await.unwrap().0
}

async fn branch(node: &Netns) -> Option<Link> {
    links(node).await.into_iter().find(|l| l.name == "vlan.eth.7")
}

/// Everything but the branch link.
async fn others(node: &Netns) -> Vec<Link> {
    links(node).await.into_iter().filter(|l| l.name != "vlan.eth.7").collect()
}

/// Table 107 of both families, and the rules.
fn routes(node: &Netns) -> String {
    node.sh("ip route show table 107; ip -6 route show table 107; ip rule; ip -6 rule")
}

fn link_locals(node: &Netns) -> Vec<String> {
    let shown = node.sh("ip -6 -o addr show dev vlan.eth.7 scope link");
    shown.lines().filter_map(|l| l.split_whitespace().nth(3)).map(Into::into).collect()
}

fn is_failure(outcome: &MacOutcome, text: &str) -> bool {
    matches!(outcome, MacOutcome::Failed(why) if why.contains(text))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_whose_eni_was_replaced_works_on_after_its_links_mac_was_set() {
    let Some(wire) = Wire::new(OLD) else { return };
    let mut streams: Vec<TcpStream> = BOTH.map(|family| wire.talk(family)).into();
    for family in BOTH {
        wire.works(family);
    }
    for stream in &mut streams {
        echo(stream, b"before", LIMIT).expect("an echo before");
    }
    let (before, table, rest) =
        (branch(&wire.node).await, routes(&wire.node), others(&wire.node).await);
    assert!(table.contains("default via 10.0.1.1") && table.contains("default via fe80:ec2::1"));

    wire.accept(NEW);
    for family in BOTH {
        assert!(!wire.answers(family), "{family:?} is lost");
    }
    for stream in &mut streams {
        assert_eq!(echo(stream, b"lost", SHORT), None);
    }

    assert_eq!(heal(&wire.node, OLD, NEW).await, MacOutcome::Done);
    for family in BOTH {
        wire.works(family);
    }
    for stream in &mut streams {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        heard(stream, b"lost").expect("what was said meanwhile, when TCP tries again");
        echo(stream, b"after", LIMIT).expect("an echo after");
    }
    let link = branch(&wire.node).await.unwrap();
    assert_eq!(Some(link.index), before.map(|l| l.index));
    assert_eq!(link.mac, Some(mac(NEW)));
    assert_eq!(link_locals(&wire.node), [format!("{}/64", mac(NEW).link_local())]);
    assert_eq!(routes(&wire.node), table, "routes and rules are as they were");
    assert_eq!(others(&wire.node).await, rest, "no other link was touched");
    let told = |a: &str| wire.announced().contains(&(a.parse().unwrap(), mac(NEW)));
    until("announcement of both addresses", || POD.iter().all(|a| told(a)).then_some(()));
    for address in POD {
        let times = wire.announced().iter().filter(|(a, _)| a.to_string() == address).count();
        assert_eq!(times, 1, "{address} is announced once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_mac_alone_leaves_ipv6_dead_and_the_next_request_sees_to_it() {
    let Some(wire) = Wire::new(OLD) else { return };
    wire.accept(NEW);
    // An agent that was ended between the two steps.
    wire.node.ip(&format!("link set vlan.eth.7 address {NEW}"));
    wire.works(Family::V4);
    assert!(!wire.answers(Family::V6), "the link-local address is the old MAC's");

    assert_eq!(heal(&wire.node, OLD, NEW).await, MacOutcome::Already);
    for family in BOTH {
        wire.works(family);
    }
    assert_eq!(heal(&wire.node, OLD, NEW).await, MacOutcome::Already);
    for family in BOTH {
        wire.works(family);
    }
    assert_eq!(link_locals(&wire.node), [format!("{}/64", mac(NEW).link_local())]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_with_a_third_mac_is_left_alone() {
    let Some(wire) = Wire::new(OLD) else { return };
    let (links_before, locals) = (links(&wire.node).await, link_locals(&wire.node));
    assert_eq!(heal(&wire.node, THIRD, NEW).await, MacOutcome::Differs(mac(OLD)));
    assert_eq!(links(&wire.node).await, links_before);
    assert_eq!(link_locals(&wire.node), locals);
    for family in BOTH {
        wire.works(family);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_absent_link_is_told_and_not_made() {
    let Some(wire) = Wire::new(OLD) else { return };
    wire.node.ip("link del vlan.eth.7");
    let before = links(&wire.node).await;
    assert_eq!(heal(&wire.node, OLD, NEW).await, MacOutcome::LinkAbsent);
    // The name counts, not the MAC.
    wire.node.ip(&format!("link add link trunk0 name vlan.eth.8 address {OLD} type macvlan"));
    assert_eq!(heal(&wire.node, OLD, NEW).await, MacOutcome::LinkAbsent);
    wire.node.ip("link del vlan.eth.8");
    assert_eq!(links(&wire.node).await, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_that_do_not_show_the_trunk_say_nothing() {
    let Some(netns) = Netns::new() else { return };
    assert!(is_failure(&heal(&netns, OLD, NEW).await, "no link carries the trunk's MAC"));
    let gone = tempfile::tempdir().unwrap().path().join("netns");
    let outcome = LinkHealer::new(Some(&gone)).set_mac(request(OLD, NEW), mac(TRUNK)).await;
    assert!(is_failure(&outcome, "failed to enter the network namespace"), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_made_anew_between_the_look_and_the_change_is_not_touched() {
    let Some(wire) = Wire::new(OLD) else { return };
    let looked_at = branch(&wire.node).await.unwrap().index;
    wire.add(OLD);
    let healer = LinkHealer::new(Some(&wire.node.file()));
    let carry_out = || healer.carry_out(request(OLD, NEW), looked_at, MacOutcome::Done);
    let outcome = carry_out().await;
    assert!(is_failure(&outcome, "set the link's MAC"), "{outcome:?}");
    let anew = branch(&wire.node).await.unwrap();
    assert_ne!(anew.index, looked_at);
    assert_eq!(anew.mac, Some(mac(OLD)));
    assert_eq!(link_locals(&wire.node), [format!("{}/64", mac(OLD).link_local())]);

    // Made anew with the new annotation's MAC already, or taken away.
    wire.add(NEW);
    assert_eq!(carry_out().await, MacOutcome::Differs(mac(NEW)));
    wire.node.ip("link del vlan.eth.7");
    assert_eq!(carry_out().await, MacOutcome::LinkAbsent);

    wire.add(OLD);
    wire.accept(NEW);
    assert_eq!(heal(&wire.node, OLD, NEW).await, MacOutcome::Done);
    for family in BOTH {
        wire.works(family);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_race_with_adds_end_with_a_healed_link() {
    let Some(wire) = Wire::new(OLD) else { return };
    let wire = std::sync::Arc::new(wire);
    let adding = std::sync::Arc::clone(&wire);
    let adds = tokio::task::spawn_blocking(move || (0..8).for_each(|_| adding.add(OLD)));
    let mut outcomes = Vec::new();
    while !adds.is_finished() {
        outcomes.push(heal(&wire.node, OLD, NEW).await);
    }
    adds.await.unwrap();
    assert!(!outcomes.contains(&MacOutcome::SwitchedOff) && !outcomes.is_empty());
    wire.accept(NEW);
    let last = heal(&wire.node, OLD, NEW).await;
    assert!(matches!(last, MacOutcome::Done | MacOutcome::Already), "{last:?} after {outcomes:?}");
    for family in BOTH {
        wire.works(family);
    }
    let table = routes(&wire.node);
    assert!(table.contains("default via 10.0.1.1") && table.contains("default via fe80:ec2::1"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_node_knows_of_the_old_mac_is_dropped_on_all_links() {
    let Some(wire) = Wire::new(OLD) else { return };
    let [v4, v6] = POD;
    wire.node.sh(&format!(
        "ip neigh add {v4} lladdr {OLD} dev trunk0 nud reachable
         ip neigh add {v6} lladdr {OLD} dev trunk0 nud permanent
         ip neigh add 10.0.1.18 lladdr {OLD} dev trunk0 nud reachable
         ip neigh replace {v4} lladdr {THIRD} dev vlanpod nud permanent"
    ));
    assert_eq!(heal(&wire.node, OLD, NEW).await, MacOutcome::Done);
    let trunk = wire.node.sh("ip neigh show dev trunk0; ip -6 neigh show dev trunk0");
    let live = |address: &str| {
        trunk.lines().any(|l| l.starts_with(&format!("{address} ")) && !l.contains("FAILED"))
    };
    assert!(!live(v4) && !live(v6), "{trunk}");
    assert!(live("10.0.1.18"), "another pod's entry stays: {trunk}");
    let pod = wire.node.sh("ip neigh show dev vlanpod nud permanent");
    assert!(pod.contains(THIRD), "somebody's permanent entry with another MAC stays: {pod}");

    wire.node.sh(&format!("ip neigh add {v4} lladdr {OLD} dev trunk0 nud stale"));
    let healer = LinkHealer::new(Some(&wire.node.file()));
    healer.clear_neighbours(vec![v4.parse().unwrap()]).await.unwrap();
    let trunk = wire.node.sh("ip neigh show dev trunk0");
    assert!(!trunk.lines().any(|l| l.starts_with(v4) && l.contains(OLD)), "{trunk}");
    assert!(wire.node.sh("ip neigh show dev vlanpod nud permanent").contains(THIRD));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_local_address_that_no_mac_made_stays_and_none_is_made_without_ipv6() {
    let Some(wire) = Wire::new(OLD) else { return };
    wire.node.ip("addr add fe80::1234/64 dev vlan.eth.7 nodad");
    assert_eq!(heal(&wire.node, OLD, NEW).await, MacOutcome::Done);
    let mut locals = link_locals(&wire.node);
    locals.sort();
    let mut wanted = vec![format!("{}/64", mac(NEW).link_local()), "fe80::1234/64".into()];
    wanted.sort();
    assert_eq!(locals, wanted);

    wire.node.sh("echo 1 > /proc/sys/net/ipv6/conf/vlan.eth.7/disable_ipv6");
    let only_v4 = SetMac { addresses: vec![POD[0].parse().unwrap()], ..request(NEW, THIRD) };
    let healer = LinkHealer::new(Some(&wire.node.file()));
    assert_eq!(healer.set_mac(only_v4, mac(TRUNK)).await, MacOutcome::Done);
    assert!(link_locals(&wire.node).is_empty());
    wire.accept(THIRD);
    wire.works(Family::V4);
}
