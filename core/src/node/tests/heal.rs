//! A live pod that lost its branch gets it back, and nobody is disturbed by an EC2 that lies.

use std::time::Duration;

use crate::eni::{EniStatus, FailureClass, Tag};
use crate::heal::Health;
use crate::id::MacAddress;
use crate::message::MacOutcome;
use crate::node::event::{Annotated, Event, HealMode, NoticeKind, Settings};
use crate::view::PodPhase;
use crate::wait::Step;

use super::world::*;

const OLD: Duration = Duration::from_secs(301);
const INTERVAL: Duration = Duration::from_secs(300);

/// Pods 1 to `n`, running, announced, with their links; old enough to be believed missing.
fn running(n: u32) -> World {
    let mut world = World::ready();
    for n in 1..=n {
        world.cgroups.insert(uid(n));
        let mut p = pod(n, 1);
        p.phase = PodPhase::Running;
        world.create([p]);
        let vlans: Vec<_> = world.owned(n).iter().map(|b| b.vlan).collect();
        world.links.extend(vlans);
    }
    world.tell_views();
    world.pass(OLD);
    world.sent.retain(|_| true);
    world
}

fn remove(world: &mut World, n: u32) {
    world.enis.remove(&eni_id(n)).unwrap();
}

/// The agent's views and EC2's inventory come as they do in `times` intervals.
fn rounds(world: &mut World, times: u32) {
    for _ in 0..times {
        world.inventory();
        for _ in 0..10 {
            world.pass(INTERVAL / 10);
            world.tell_links();
            world.tell_views();
        }
    }
}

fn mac_of(world: &World, n: u32) -> MacAddress {
    world.enis[&eni_id(n)].record.mac
}

fn address(world: &World, n: u32) -> Option<std::net::Ipv4Addr> {
    world.enis[&eni_id(n)].record.ipv4
}

fn class_of(world: &World, n: u32) -> Health {
    let report = world.node.report(world.now);
    let pod = report.pods.into_iter().find(|p| p.pod.uid == uid(n)).unwrap();
    pod.branches[0].health
}

// === the mildest repair ===

#[test]
fn an_association_that_is_gone_is_made_again_on_the_same_vlan() {
    let mut world = running(1);
    let eni = world.enis.get_mut(&eni_id(1)).unwrap();
    let (_, held) = eni.association.take().unwrap();
    eni.record.status = EniStatus::Available;
    rounds(&mut world, 1);
    let (association, vlan) = world.enis[&eni_id(1)].association.clone().unwrap();
    assert_eq!((vlan, world.creates), (held, 1));
    let text = world.api[&uid(1)].annotation.clone().unwrap();
    assert!(text.contains(association.as_str()), "the new association is announced: {text}");
    assert_eq!(world.healed, vec![(uid(1), Health::Disassociated)]);
    assert_eq!(world.conditions[&uid(1)], Health::Ok);
    assert_eq!((class_of(&world, 1), world.wait_of(1)), (Health::Ok, None));
    assert!(world.mac_changes.is_empty(), "the ENI is the same");
}

#[test]
fn an_eni_that_is_not_tagged_for_this_node_is_not_associated_again() {
    let mut world = running(1);
    let eni = world.enis.get_mut(&eni_id(1)).unwrap();
    eni.association = None;
    eni.record.status = EniStatus::Available;
    eni.record.tags.instance = Tag::Is("i-0123456789abcdef9".parse().unwrap());
    rounds(&mut world, 2);
    assert_eq!(world.count(Step::Associate), 1, "only the first one");
    assert_eq!(world.wait_of(1), Some("heal-not-possible"));
    assert_eq!(world.conditions[&uid(1)], Health::Disassociated);
}

#[test]
fn a_describe_that_shows_an_associated_eni_as_available_does_no_harm() {
    let mut world = running(1);
    let before = world.enis[&eni_id(1)].association.clone();
    world.lagging = true;
    let eni = world.enis.get_mut(&eni_id(1)).unwrap();
    eni.record.status = EniStatus::Available;
    world.inventory();
    world.pass(Duration::from_secs(60));
    world.lagging = false;
    world.enis.get_mut(&eni_id(1)).unwrap().record.status = EniStatus::InUse;
    rounds(&mut world, 2);
    assert_eq!(world.enis[&eni_id(1)].association, before);
    assert_eq!((world.creates, world.wait_of(1)), (1, None));
}

// === a new ENI ===

#[test]
fn s01_an_eni_that_was_deleted_is_made_again_with_address_vlan_and_the_links_mac() {
    let mut world = running(2);
    let (ip, old) = (address(&world, 1), mac_of(&world, 1));
    remove(&mut world, 1);
    rounds(&mut world, 2);
    assert_eq!(address(&world, 3), ip);
    let (_, held) = world.enis[&eni_id(3)].association.clone().unwrap();
    assert_eq!(held, vlan(1));
    assert_eq!(world.annotation(1), Some(format!("{}/1", eni_id(3))));
    let change = world.mac_changes.first().unwrap();
    assert_eq!((change.from, change.to), (old, mac_of(&world, 3)));
    assert_eq!((change.vlan, change.addresses.clone()), (vlan(1), vec![ip.unwrap().into()]));
    assert_eq!(world.macs[&vlan(1)], mac_of(&world, 3));
    assert_eq!(world.healed, vec![(uid(1), Health::Missing)]);
    assert_eq!((world.wait_of(1), world.wait_of(2)), (None, None));
    let others = world.mutations.iter().filter(|(_, e)| *e == eni_id(2)).count();
    assert_eq!(others, 2, "pod 2: create and associate, long ago");
}

#[test]
fn an_eni_is_believed_missing_only_when_two_answers_and_two_searches_agree() {
    let mut world = running(1);
    remove(&mut world, 1);
    world.inventory();
    world.pass(Duration::from_secs(20));
    assert_eq!((world.creates, world.wait_of(1)), (1, Some("heal-asked-again")));
    world.pass(Duration::from_secs(40));
    assert_eq!(world.creates, 2);
}

#[test]
fn i6_one_lie_of_a_describe_makes_nothing() {
    let mut world = running(1);
    world.hidden.insert(eni_id(1));
    world.inventory();
    world.pass(Duration::from_secs(20));
    world.hidden.clear();
    rounds(&mut world, 2);
    assert_eq!((world.creates, world.healed.len(), world.wait_of(1)), (1, 0, None));
    assert_eq!(world.conditions.len(), 0, "nobody is told of a loss that was none");
}

#[test]
fn i6_refusals_and_timeouts_are_no_answer() {
    let mut world = running(1);
    world.hidden.insert(eni_id(1));
    for class in [FailureClass::Unauthorised, FailureClass::OutcomeUnknown, FailureClass::Throttled]
    {
        world.refuse.entry(Step::Describe).or_default().extend([class; 40]);
    }
    rounds(&mut world, 1);
    assert_eq!(world.creates, 1);
}

#[test]
fn a_young_eni_is_not_believed_missing() {
    let mut world = World::ready();
    world.create([pod(1, 1)]);
    remove(&mut world, 1);
    world.pass(Duration::from_secs(60));
    world.inventory();
    world.pass(Duration::from_secs(60));
    assert_eq!((world.creates, world.wait_of(1)), (1, Some("heal-young")));
}

#[test]
fn an_ec2_that_hides_half_of_a_nodes_enis_heals_none() {
    let mut world = running(3);
    let before: Vec<_> = world.mutations.clone();
    for n in [1, 2] {
        world.hidden.insert(eni_id(n));
    }
    rounds(&mut world, 1);
    // By id and by search they are hidden as well, for longer than anybody asks; the address is what is left.
    rounds(&mut world, 3);
    assert_eq!(world.creates, 3, "EC2 refuses an address that is in use");
    assert!(world.mac_changes.is_empty());
    world.hidden.clear();
    rounds(&mut world, 4);
    let after: Vec<_> = world.mutations.iter().filter(|(s, _)| *s != Step::Tag).cloned().collect();
    assert_eq!(after, before);
    for n in 1..=3 {
        assert_eq!((class_of(&world, n), world.wait_of(n)), (Health::Ok, None), "pod {n}");
        assert!(world.conditions.get(&uid(n)).is_none_or(|h| *h == Health::Ok), "pod {n}");
    }
}

#[test]
fn a_search_that_shows_the_old_eni_ends_the_repair() {
    let mut world = running(1);
    world.refuse.entry(Step::Describe).or_default().extend([FailureClass::NotFound; 2]);
    world.hidden.insert(eni_id(1));
    world.inventory();
    world.hidden.clear();
    world.pass(Duration::from_secs(100));
    rounds(&mut world, 1);
    assert_eq!((world.creates, world.wait_of(1), class_of(&world, 1)), (1, None, Health::Ok));
}

// === many at once ===

fn crowded(pods: u32) -> World {
    let mut world = World::ready();
    world.trunk_for(pods + 2, true);
    for n in 1..=pods {
        let mut p = pod(n, 1);
        p.phase = PodPhase::Running;
        world.cgroups.insert(uid(n));
        world.create([p]);
        let vlans: Vec<_> = world.owned(n).iter().map(|b| b.vlan).collect();
        world.links.extend(vlans);
    }
    world.tell_views();
    world.pass(OLD);
    world
}

#[test]
fn when_all_enis_of_a_node_are_missing_a_second_whole_inventory_has_to_agree() {
    let mut world = crowded(6);
    world.enis.clear();
    world.inventory();
    world.pass(Duration::from_secs(200));
    assert_eq!((world.creates, world.wait_of(1)), (6, Some("heal-node-fuse")));
    world.step(Event::Inventory { began: world.now, enis: vec![] });
    world.pass(Duration::from_secs(1));
    assert_eq!(world.creates, 6, "what EC2 said of each by id is old by now: it is asked again");
    world.pass(Duration::from_secs(60));
    assert_eq!(world.creates, 12);
    rounds(&mut world, 2);
    assert_eq!(world.healed.len(), 6);
}

#[test]
fn a_repair_that_the_fuse_held_back_does_not_act_on_what_ec2_said_before() {
    let mut world = crowded(6);
    let all = world.enis.clone();
    world.enis.clear();
    world.inventory();
    world.pass(Duration::from_secs(200));
    assert_eq!(world.wait_of(1), Some("heal-node-fuse"));
    // EC2 had lied, and shows everything again; the reading that opens the fuse is still of before.
    let began = world.now;
    world.enis = all;
    world.step(Event::Inventory { began, enis: vec![] });
    world.pass(Duration::from_secs(300));
    rounds(&mut world, 2);
    assert_eq!(world.creates_sent, 6, "nobody needed another ENI, and none was asked for");
    for n in 1..=6 {
        assert_eq!((class_of(&world, n), world.wait_of(n)), (Health::Ok, None));
    }
}

#[test]
fn the_same_reading_told_twice_is_not_a_second_one() {
    let mut world = crowded(6);
    world.enis.clear();
    let began = world.now;
    world.step(Event::Inventory { began, enis: vec![] });
    world.pass(Duration::from_secs(200));
    world.step(Event::Inventory { began, enis: vec![] });
    world.pass(Duration::from_secs(200));
    assert_eq!(world.creates, 6);
}

#[test]
fn the_cluster_can_freeze_repairs_too_until_a_second_inventory_agrees() {
    let mut world = running(1);
    remove(&mut world, 1);
    world.heals_frozen = true;
    world.inventory();
    world.pass(Duration::from_secs(200));
    assert_eq!((world.creates, world.wait_of(1)), (1, Some("heal-cluster-fuse")));
    world.inventory();
    world.pass(Duration::from_secs(120));
    assert_eq!(world.creates, 2);
}

#[test]
fn two_pods_of_a_node_are_healed_side_by_side() {
    let mut world = running(3);
    let addresses = [address(&world, 1), address(&world, 2)];
    remove(&mut world, 1);
    remove(&mut world, 2);
    rounds(&mut world, 2);
    assert_eq!(world.healed.len(), 2);
    for (n, ip) in [1, 2].into_iter().zip(addresses) {
        let text = world.api[&uid(n)].annotation.clone().unwrap();
        assert!(text.ends_with(&ip.unwrap().to_string()), "{text}");
        assert_eq!(class_of(&world, n), Health::Ok);
    }
}

// === one ENI a pod, whatever fails ===

#[test]
fn an_annotation_that_is_refused_for_ever_leaves_one_eni() {
    let mut world = running(1);
    remove(&mut world, 1);
    world.annotate.extend((0..400).map(|_| Annotated::Refused("403".into())));
    rounds(&mut world, 5);
    assert_eq!((world.enis.len(), world.creates), (1, 2));
    assert_eq!(world.wait_of(1), Some("patch-refused"));
    world.annotate.clear();
    rounds(&mut world, 1);
    assert_eq!((world.healed.len(), world.creates), (1, 2));
}

#[test]
fn a_lost_reply_to_the_create_makes_no_second_eni() {
    let mut world = running(1);
    remove(&mut world, 1);
    world.lose.insert(Step::Create, 3);
    rounds(&mut world, 2);
    assert_eq!((world.creates, world.enis.len(), world.healed.len()), (2, 1, 1));
}

#[test]
fn a_repair_is_taken_up_by_the_next_term_wherever_it_was_cut_off() {
    for cut in [Step::Create, Step::Associate, Step::Describe] {
        let mut world = running(1);
        let ip = address(&world, 1);
        remove(&mut world, 1);
        world.inventory();
        world.pass(Duration::from_secs(20));
        world.hold.insert(cut);
        world.pass(Duration::from_secs(60));
        world.new_term();
        world.inventory();
        world.trunk(false);
        world.connect();
        rounds(&mut world, 4);
        assert_eq!(world.enis.len(), 1, "{cut:?}");
        let eni = world.enis.values().next().unwrap();
        assert_eq!((eni.record.ipv4, eni.association.is_some()), (ip, true), "{cut:?}");
        let named = world.annotation(1).unwrap();
        assert_eq!(named, format!("{}/1", eni.record.id), "{cut:?}");
        assert_eq!(world.macs[&vlan(1)], eni.record.mac, "{cut:?}");
        assert_eq!(world.wait_of(1), None, "{cut:?}");
    }
}

#[test]
fn a_repair_that_was_announced_before_a_change_of_leader_still_gets_its_link_changed() {
    let mut world = running(1);
    remove(&mut world, 1);
    world.mac_outcomes.extend((0..400).map(|_| MacOutcome::Failed("busy".into())));
    rounds(&mut world, 1);
    assert_eq!(world.annotation(1), Some(format!("{}/1", eni_id(2))));
    assert_ne!(world.macs[&vlan(1)], mac_of(&world, 2));
    world.mac_outcomes.clear();
    world.new_term();
    world.inventory();
    world.trunk(false);
    world.connect();
    rounds(&mut world, 1);
    assert_eq!(world.macs[&vlan(1)], mac_of(&world, 2));
    assert_eq!((world.wait_of(1), world.creates), (None, 2));
}

#[test]
fn an_eni_that_goes_again_right_after_the_repair_is_repaired_again() {
    let mut world = running(1);
    let ip = address(&world, 1);
    remove(&mut world, 1);
    rounds(&mut world, 1);
    remove(&mut world, 2);
    rounds(&mut world, 4);
    assert_eq!((address(&world, 3), world.enis.len(), world.healed.len()), (ip, 1, 2));
    assert_eq!(world.macs[&vlan(1)], mac_of(&world, 3));
}

#[test]
fn an_eni_that_goes_again_before_it_was_announced_is_repaired_again_also_by_the_next_term() {
    let mut world = running(1);
    let ip = address(&world, 1);
    remove(&mut world, 1);
    world.annotate.extend((0..400).map(|_| Annotated::Refused("403".into())));
    rounds(&mut world, 1);
    remove(&mut world, 2);
    rounds(&mut world, 4);
    world.annotate.clear();
    world.new_term();
    world.inventory();
    world.trunk(false);
    world.connect();
    rounds(&mut world, 3);
    assert_eq!((world.enis.len(), world.wait_of(1)), (1, None));
    let eni = world.enis.values().next().unwrap();
    assert_eq!(eni.record.ipv4, ip);
    assert_eq!(world.annotation(1), Some(format!("{}/1", eni.record.id)));
    assert_eq!(world.macs[&vlan(1)], eni.record.mac);
}

#[test]
fn t6_an_eni_that_went_while_nobody_led_is_known_by_its_annotation_and_the_link() {
    let mut world = running(1);
    let ip = address(&world, 1);
    remove(&mut world, 1);
    world.new_term();
    world.inventory();
    world.trunk(false);
    world.connect();
    world.pass(Duration::from_secs(60));
    assert_eq!(world.creates, 1);
    rounds(&mut world, 3);
    assert_eq!((address(&world, 2), world.wait_of(1)), (ip, None));
    assert_eq!(world.macs[&vlan(1)], mac_of(&world, 2));
}

#[test]
fn an_annotation_of_an_eni_that_never_was_is_not_healed() {
    let mut world = World::ready();
    let mut p = pod(1, 1);
    p.phase = PodPhase::Running;
    p.annotation = Some(format!("{}/7/trunk-assoc-1/02:00:00:00:00:77/10.0.0.77", eni_id(77)));
    world.create([p]);
    rounds(&mut world, 4);
    assert_eq!((world.creates, world.wait_of(1)), (0, Some("annotation-ghost")));
}

// === the pod ends meanwhile ===

#[test]
fn a_pod_that_ends_in_mid_repair_leaves_nothing() {
    for cut in [Step::Describe, Step::Search, Step::Create, Step::Associate] {
        let mut world = running(1);
        remove(&mut world, 1);
        world.inventory();
        world.pass(Duration::from_secs(20));
        world.hold.insert(cut);
        world.pass(Duration::from_secs(60));
        world.end(1);
        world.let_go();
        for _ in 0..40 {
            world.tell_views();
            world.release(
                1,
                crate::fact::OverKind::Gone(crate::fact::GoneBy::WatchDeleted),
                crate::fact::Way::SeenAndGone,
            );
            world.pass(Duration::from_secs(10));
        }
        assert_eq!(world.enis.len(), 0, "{cut:?}");
        assert!(world.node.report(world.now).pods.is_empty(), "{cut:?}");
    }
}

#[test]
fn nothing_is_made_for_a_pod_that_is_terminating() {
    let mut world = running(1);
    remove(&mut world, 1);
    world.api.get_mut(&uid(1)).unwrap().deleting = true;
    world.tell_views();
    rounds(&mut world, 3);
    assert_eq!(world.creates, 1);
}

#[test]
fn nothing_is_made_without_the_api_servers_word_that_the_pod_is_there() {
    let mut world = running(1);
    remove(&mut world, 1);
    world.gets_unknown = true;
    rounds(&mut world, 3);
    assert_eq!((world.creates, world.wait_of(1)), (1, Some("pod-unverified")));
}

// === what cannot be repaired in place ===

#[test]
fn an_address_that_somebody_else_has_by_now_is_left_to_them() {
    let mut world = running(1);
    let ip = address(&world, 1);
    remove(&mut world, 1);
    let mut foreign = record(&eni_id(90), None, vlan(90), vec![group("sg-x")]);
    foreign.ipv4 = ip;
    foreign.tags = crate::eni::EniTags::default();
    world.enis.insert(eni_id(90), SimEni { record: foreign, association: None });
    world.step(Event::Inventory { began: world.now, enis: vec![] });
    world.pass(Duration::from_secs(300));
    assert_eq!((world.creates, world.wait_of(1)), (1, Some("heal-not-possible")));
    assert_eq!(world.conditions[&uid(1)], Health::Missing);
    assert!(world.notices.contains(&(Some(uid(1)), NoticeKind::HealNotPossible)));
    assert!(world.evicted.is_empty(), "only with --heal=evict");
    assert_eq!(world.mutations.iter().filter(|(_, e)| *e == eni_id(90)).count(), 0);
}

#[test]
fn a_pod_that_cannot_be_repaired_in_place_is_evicted_once_where_that_is_wanted() {
    let mut world = running(1);
    let ip = address(&world, 1);
    world.step(Event::Settings(Settings { heal: HealMode::Evict, ..settings() }));
    remove(&mut world, 1);
    let mut foreign = record(&eni_id(90), None, vlan(90), vec![group("sg-x")]);
    foreign.ipv4 = ip;
    foreign.tags = crate::eni::EniTags::default();
    world.enis.insert(eni_id(90), SimEni { record: foreign, association: None });
    world.step(Event::Inventory { began: world.now, enis: vec![] });
    world.pass(Duration::from_secs(1200));
    assert_eq!(world.evicted, vec![uid(1)]);
}

#[test]
fn with_heal_report_a_loss_is_told_and_nothing_is_done() {
    let mut world = running(1);
    world.step(Event::Settings(Settings { heal: HealMode::Report, ..settings() }));
    remove(&mut world, 1);
    rounds(&mut world, 3);
    assert_eq!((world.creates, world.evicted.len()), (1, 0));
    assert_eq!(
        (world.wait_of(1), world.conditions[&uid(1)]),
        (Some("heal-not-possible"), Health::Missing)
    );
}

#[test]
fn somebody_elses_association_on_the_vlan_is_told_and_left() {
    let mut world = running(1);
    world.foreign_vlans.insert(vlan(1));
    let eni = world.enis.get_mut(&eni_id(1)).unwrap();
    eni.association = None;
    eni.record.status = EniStatus::Available;
    rounds(&mut world, 2);
    assert_eq!(world.wait_of(1), Some("heal-not-possible"));
    assert_eq!(world.count(Step::Tag), 0, "the VLAN is not changed under a running pod");
    assert_eq!((world.count(Step::Disassociate), world.count(Step::Delete)), (0, 0));
    world.foreign_vlans.clear();
    rounds(&mut world, 3);
    assert_eq!(
        (world.healed.len(), world.enis[&eni_id(1)].association.clone().unwrap().1),
        (1, vlan(1))
    );
}

#[test]
fn an_agent_that_may_not_change_links_is_told_to_the_user() {
    let mut world = running(1);
    world.mac_outcomes.extend((0..100).map(|_| MacOutcome::SwitchedOff));
    remove(&mut world, 1);
    rounds(&mut world, 2);
    assert_eq!(world.wait_of(1), Some("heal-not-possible"));
    assert_eq!((world.enis.len(), world.creates), (1, 2));
}

#[test]
fn a_link_with_a_mac_of_nobody_is_not_changed() {
    let mut world = running(1);
    world.macs.insert(vlan(1), "02:00:00:00:99:99".parse().unwrap());
    rounds(&mut world, 2);
    assert!(world.mac_changes.is_empty());
    assert_eq!((class_of(&world, 1), world.evicted.len()), (Health::LinkDiffers, 0));
}

#[test]
fn a_running_pods_link_that_went_is_told_and_the_pod_evicted_where_that_is_wanted() {
    let mut world = running(1);
    world.step(Event::Settings(Settings { heal: HealMode::Evict, ..settings() }));
    world.links.clear();
    world.tell_views();
    world.pass(Duration::from_secs(30));
    assert_eq!((class_of(&world, 1), world.evicted.len()), (Health::Ok, 0));
    world.pass(Duration::from_secs(60));
    assert_eq!((class_of(&world, 1), world.evicted.clone()), (Health::LinkMissing, vec![uid(1)]));
}

#[test]
fn groups_that_somebody_changed_are_told_and_set_again_only_where_that_is_wanted() {
    let mut world = running(1);
    world.enis.get_mut(&eni_id(1)).unwrap().record.groups = vec![group("sg-evil")];
    rounds(&mut world, 2);
    assert_eq!((world.count(Step::SetGroups), class_of(&world, 1)), (0, Health::WrongGroups));
    let told = world.notices.iter().filter(|(_, k)| *k == NoticeKind::BranchDrifted).count();
    assert_eq!(told, 1);
    world.step(Event::Settings(Settings { restore_groups: true, ..settings() }));
    rounds(&mut world, 1);
    assert_eq!(world.enis[&eni_id(1)].record.groups, vec![group("sg-a")]);
    assert_eq!(class_of(&world, 1), Health::Ok);
}

#[test]
fn read_only_repairs_nothing() {
    let mut world = running(1);
    world.step(Event::Settings(Settings { read_only: true, ..settings() }));
    remove(&mut world, 1);
    rounds(&mut world, 3);
    assert_eq!((world.creates, world.wait_of(1)), (1, Some("read-only")));
}

#[test]
fn a_new_eni_that_ec2_does_not_show_at_once_does_not_put_the_link_off_for_minutes() {
    let mut world = running(1);
    remove(&mut world, 1);
    world.hold.insert(Step::Create);
    world.inventory();
    world.pass(Duration::from_secs(60));
    world.hidden.insert(eni_id(2));
    world.let_go();
    world.pass(Duration::from_secs(10));
    assert_eq!((world.creates, world.mac_changes.len()), (2, 0));
    world.hidden.clear();
    world.pass(Duration::from_secs(20));
    assert_eq!(world.macs[&vlan(1)], mac_of(&world, 2));
}
