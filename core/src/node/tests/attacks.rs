//! Holes that were found by attacking the books, each closed by a rule.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::eni::{EniStatus, FailureClass, Tag};
use crate::fact::{BarrierReply, GoneBy, OverKind, Way};
use crate::id::{EniId, KubeletStart, PodUid};
use crate::message::{Ack, FromAgent, ToAgent};
use crate::node::event::{Annotated, Event, Settings};
use crate::view::PodPhase;
use crate::wait::Step;

use super::world::*;

const GONE: OverKind = OverKind::Gone(GoneBy::WatchDeleted);

fn served() -> World {
    let mut world = World::ready();
    world.cgroups.insert(uid(1));
    world.create([pod(1, 1)]);
    world.links.insert(vlan(1));
    world.tell_views();
    world
}

fn restarted(world: &mut World) {
    world.new_term();
    world.now = world.now.plus(Duration::from_secs(20));
    world.inventory();
    world.trunk(false);
    world.connect();
}

/// The agent is quicker than the inventory, so that adoption knows the annotations.
fn restarted_views_first(world: &mut World) {
    world.new_term();
    world.now = world.now.plus(Duration::from_secs(20));
    world.trunk(false);
    world.connect();
    world.inventory();
}

fn association(world: &World, n: u32) -> String {
    world.enis[&eni_id(n)].association.as_ref().unwrap().0.to_string()
}

fn annotate(world: &mut World, n: u32, text: String) {
    world.api.get_mut(&uid(n)).unwrap().annotation = Some(text);
}

fn mirror(n: u32, name: u32) -> crate::view::Pod {
    let mut p = pod(n, 1);
    p.pod.name = format!("pod-{name}").parse().unwrap();
    p.mirror = true;
    p.config_hash = Some("0123456789abcdef".parse().unwrap());
    p
}

// === the wrong thing is taken away ===

#[test]
fn i1_an_association_id_from_a_forged_annotation_disassociates_nobody_else() {
    for forged in ["of-the-other", "of-nobody"] {
        let mut world = World::ready();
        world.create([pod(1, 1), pod(2, 1)]);
        let id = match forged {
            "of-the-other" => association(&world, 2),
            _ => "trunk-assoc-77".to_owned(),
        };
        annotate(&mut world, 1, format!("{}/1/{id}", eni_id(1)));
        restarted_views_first(&mut world);
        world.end(1);
        world.pass(Duration::from_secs(200));
        assert!(world.enis[&eni_id(2)].association.is_some());
        assert!(!world.enis.contains_key(&eni_id(1)), "its own ENI is released");
    }
}

#[test]
fn d12_an_association_id_that_only_the_annotation_has_is_used_once_ec2_confirms_it() {
    let mut world = World::ready();
    world.create([pod(1, 1)]);
    let id = association(&world, 1);
    annotate(&mut world, 1, format!("{}/1/{id}", eni_id(1)));
    restarted_views_first(&mut world);
    world.tokens_expired = true;
    world.end(1);
    world.pass(Duration::from_secs(70));
    assert_eq!(world.enis.len(), 0);
    assert_eq!(world.count(Step::Associate), 1);
}

#[test]
fn i1_an_answer_to_a_barrier_of_long_ago_releases_nothing() {
    let mut world = served();
    world.answer_barriers = false;
    world.end(1);
    let question = world
        .sent
        .iter()
        .rev()
        .find_map(|m| match m {
            ToAgent::Barrier { question, uids } if !uids.is_empty() => Some(*question),
            _ => None,
        })
        .unwrap();
    world.step(Event::Settings(Settings { no_release: true, ..settings() }));
    world.step(Event::Agent(FromAgent::Barrier(BarrierReply {
        origin: origin(world.term),
        question,
        boot: "boot".parse().unwrap(),
        start: Some(KubeletStart(1)),
        present: BTreeMap::from([(uid(1), Some(false))]),
        vlans: None,
    })));
    world.pass(Duration::from_secs(3600));
    // A create that was in flight has finished meanwhile.
    world.cgroups.insert(uid(1));
    world.answer_barriers = true;
    world.step(Event::Settings(settings()));
    world.pass(Duration::from_secs(60));
    assert_eq!(world.count(Step::Disassociate), 0);
}

#[test]
fn a_mirror_pod_whose_hash_is_unknown_gets_nothing_and_is_never_followed_by_the_apis_uid() {
    let mut world = World::ready();
    let mut unknown = mirror(1, 1);
    unknown.config_hash = None;
    world.create([unknown.clone()]);
    assert_eq!((world.creates, world.wait_of(1)), (0, Some("static-pod-unknown")));
    // One that has an ENI all the same.
    world.enis.insert(
        eni_id(60),
        SimEni {
            record: record(&eni_id(60), Some(&pod_ref(1)), vlan(5), vec![group("sg-a")]),
            association: None,
        },
    );
    restarted(&mut world);
    assert_eq!(world.owned(1).first().unwrap().kubelet_uid, None);
}

#[test]
fn an_eni_that_a_new_mirror_takes_over_is_not_released_meanwhile() {
    let mut world = World::ready();
    world.create([mirror(1, 1)]);
    world.api.clear();
    world.hold.insert(Step::Tag);
    world.create([mirror(2, 1)]);
    assert_eq!(world.held.len(), 1);
    world.release(1, GONE, Way::SeenAndGone);
    world.pass(Duration::from_secs(10));
    world.let_go();
    world.pass(Duration::from_secs(10));
    assert_eq!(world.annotation(2), Some(format!("{}/1", eni_id(1))));
    assert!(world.enis[&eni_id(1)].association.is_some());
}

#[test]
fn a_pod_of_another_name_with_a_static_pods_hash_takes_nothing_over() {
    let mut world = World::ready();
    world.create([mirror(1, 1)]);
    world.api.clear();
    world.create([mirror(2, 9)]);
    assert_eq!(world.enis[&eni_id(1)].record.tags.pod_uid, Tag::Is(uid(1)));
}

#[test]
fn of_two_donors_the_one_whose_eni_was_tagged_gives_its_branch() {
    let mut world = World::ready();
    world.create([mirror(1, 1)]);
    world.enis.insert(
        eni_id(60),
        SimEni {
            record: {
                let mut r = record(&eni_id(60), Some(&mirror(3, 1).pod), vlan(5), vec![]);
                r.tags.config_hash = Tag::Is("0123456789abcdef".parse().unwrap());
                r
            },
            association: None,
        },
    );
    world.inventory();
    world.api.clear();
    world.create([mirror(2, 1)]);
    world.pass(Duration::from_secs(5));
    let text = world.annotation(2).unwrap();
    let named: EniId = text.split('/').next().unwrap().parse().unwrap();
    assert_eq!(world.enis[&named].record.tags.pod_uid, Tag::Is(uid(2)));
}

#[test]
fn an_annotation_that_hides_the_id_behind_escapes_protects_it_too() {
    let mut world = served();
    let text = world.annotation(1).unwrap().replace('-', "_");
    world.vanish(1);
    let mut other = pod(2, 0);
    other.annotation = Some(text);
    world.create([other]);
    world.release(1, GONE, Way::SeenAndGone);
    world.pass(Duration::from_secs(120));
    assert_eq!((world.count(Step::Disassociate), world.wait_of(1)), (0, Some("named-by-other")));
}

#[test]
fn a_tag_that_somebody_changed_is_seen_by_the_next_inventory_and_keeps_the_eni() {
    let mut world = served();
    world.enis.get_mut(&eni_id(1)).unwrap().record.tags.pod_uid = Tag::Is(uid(8));
    world.inventory();
    world.end(1);
    world.pass(Duration::from_secs(200));
    assert_eq!((world.count(Step::Disassociate), world.wait_of(1)), (0, Some("tag-of-other")));
}

#[test]
fn an_eni_without_a_readable_trunk_tag_is_not_taken_for_somebody_elses() {
    let mut world = World::ready();
    let mut odd = record(&eni_id(70), Some(&pod_ref(1)), vlan(9), vec![]);
    odd.tags.trunk = Tag::Absent;
    world.enis.insert(eni_id(70), SimEni { record: odd, association: None });
    let mut p = pod(1, 1);
    p.annotation = Some(format!("{}/9", eni_id(70)));
    world.create([p]);
    assert_eq!((world.creates, world.wait_of(1)), (0, Some("awaits-adoption")));
}

// === VLANs and slots ===

#[test]
fn i2_an_eni_that_may_be_associated_is_not_deleted_as_if_it_never_was() {
    let mut world = World::ready();
    world.create([pod(1, 1)]);
    world.api.clear();
    // The last term's Associate ended after the inventory was read, and EC2 lags.
    world.new_term();
    let mut old = world.enis[&eni_id(1)].record.clone();
    old.status = EniStatus::Available;
    world.step(whole(vec![old]));
    world.trunk(false);
    world.connect();
    world.lagging = true;
    world.release(1, GONE, Way::SeenAndGone);
    world.pass(Duration::from_secs(20));
    world.lagging = false;
    for _ in 0..20 {
        world.release(1, GONE, Way::SeenAndGone);
        world.pass(Duration::from_secs(10));
    }
    assert_eq!((world.count(Step::Disassociate), world.enis.len()), (1, 0));
}

#[test]
fn i2_the_vlan_of_an_eni_that_vanished_rests() {
    let mut world = World::ready();
    world.lose.insert(Step::Associate, 1);
    world.create([pod(1, 1)]);
    world.enis.clear();
    world.api.clear();
    world.tell_views();
    for _ in 0..20 {
        world.release(1, GONE, Way::SeenAndGone);
        world.pass(Duration::from_secs(10));
    }
    assert_eq!(world.acks(1).last(), Some(&Ack::Deleted));
    world.create([pod(2, 1)]);
    assert!(world.annotation(2).unwrap().ends_with("/2"), "{:?}", world.annotation(2));
}

#[test]
fn a_vlan_that_was_annotated_before_the_inventory_rests_too() {
    let mut world = World::blank();
    world.trunk(false);
    world.connect();
    let mut p = pod(1, 1);
    p.annotation = Some(format!("{}/1", eni_id(1)));
    world.create([p]);
    world.api.clear();
    world.tell_views();
    world.step(whole(vec![]));
    world.create([pod(2, 1)]);
    assert!(world.annotation(2).unwrap().ends_with("/2"), "{:?}", world.annotation(2));
}

#[test]
fn an_eni_that_the_last_term_made_late_keeps_its_own_vlan() {
    let mut world = World::ready();
    let mut late = record(&eni_id(50), Some(&pod_ref(1)), vlan(7), vec![group("sg-a")]);
    late.status = EniStatus::InUse;
    late.tags.index = Tag::Is(0);
    world.enis.insert(
        eni_id(50),
        SimEni { record: late, association: Some(("trunk-assoc-9".parse().unwrap(), vlan(7))) },
    );
    world.refuse.insert(Step::Create, VecDeque::from([FailureClass::TokenMismatch]));
    world.create([pod(1, 1)]);
    world.pass(Duration::from_secs(30));
    assert_eq!((world.creates, world.annotation(1)), (0, Some(format!("{}/7", eni_id(50)))));
}

#[test]
fn s20_finished_pods_that_stay_do_not_use_up_the_vlans() {
    let mut world = World::ready();
    for n in 1..=130 {
        world.create([pod(n, 1)]);
        world.pass(Duration::from_secs(3));
        assert!(world.annotation(n).is_some(), "pod {n} waits: {:?}", world.wait_of(n));
        world.api.get_mut(&uid(n)).unwrap().phase = PodPhase::Succeeded;
        world.tell_views();
        world.release(n, OverKind::Ended, Way::SeenAndGone);
        world.pass(Duration::from_secs(120));
    }
}

#[test]
fn a_pod_that_can_not_be_served_beside_a_strangers_eni_does_not_hold_up_the_queue() {
    let mut world = World::ready();
    let mut stranger = record(&eni_id(50), None, vlan(1), vec![]);
    stranger.status = EniStatus::InUse;
    world.enis.insert(eni_id(50), SimEni { record: stranger, association: None });
    world.inventory();
    world.create([pod(1, LIMIT), pod(2, 1)]);
    assert_eq!(world.wait_of(1), Some("slots-full"));
    assert!(world.annotation(2).is_some());
}

#[test]
fn a_stranger_whose_tags_show_later_becomes_its_pods_branch() {
    let mut world = World::ready();
    let mut eni = record(&eni_id(50), None, vlan(4), vec![group("sg-a")]);
    eni.status = EniStatus::InUse;
    world.enis.insert(
        eni_id(50),
        SimEni { record: eni, association: Some(("trunk-assoc-9".parse().unwrap(), vlan(4))) },
    );
    world.inventory();
    let tags = record(&eni_id(50), Some(&pod_ref(1)), vlan(4), vec![]).tags;
    world.enis.get_mut(&eni_id(50)).unwrap().record.tags = tags;
    world.inventory();
    assert_eq!(world.owned(1).len(), 1);
    assert_eq!(world.node.report(world.now).used, 1);
    world.end(1);
    world.pass(Duration::from_secs(70));
    assert_eq!(world.enis.len(), 0);
    assert_eq!(world.node.report(world.now).used, 0);
    world.pass(Duration::from_secs(400));
    assert_eq!(world.node.report(world.now).vlans, (0, 0), "the VLAN is held no more");
}

// === nothing gets stuck ===

#[test]
fn a_get_that_shows_the_end_of_a_pod_is_not_repeated_in_a_tight_loop() {
    let mut world = World::ready();
    world.annotate = (0..50).map(|_| Annotated::Refused("denied".into())).collect();
    world.create([pod(1, 1)]);
    world.refuse.insert(Step::Disassociate, VecDeque::from([FailureClass::Throttled]));
    world.end(1);
    world.pass(Duration::from_secs(1));
    world.step(Event::SessionClosed);
    world.connect();
    world.tell_pods(&[pod(1, 1)]); // an old list
    let gets = world.gets;
    world.pass(Duration::from_secs(10));
    assert!(world.gets <= gets + 5, "{} GETs", world.gets - gets);
}

#[test]
fn conflicts_without_end_slow_down() {
    let mut world = World::ready();
    world.annotate = (0..3000).map(|_| Annotated::Conflict).collect();
    world.create([pod(1, 1)]);
    world.pass(Duration::from_secs(60));
    assert!(world.gets < 100, "{} GETs", world.gets);
}

#[test]
fn d30_what_our_own_get_says_of_the_end_outlasts_a_view_that_lags() {
    let mut world = World::ready();
    let mut deleting = pod(1, 1);
    deleting.deleting = true;
    world.api.insert(uid(1), deleting);
    for _ in 0..3 {
        world.tell_pods(&[pod(1, 1)]);
    }
    world.pass(Duration::from_secs(60));
    assert_eq!(world.creates, 0);
}

#[test]
fn an_eni_of_a_lost_create_whose_pod_nobody_reported_is_found() {
    let mut world = World::ready();
    world.lose.insert(Step::Create, 1);
    world.create([pod(1, 1)]);
    world.api.clear();
    world.tell_views();
    world.pass(Duration::from_secs(60));
    assert_eq!(world.owned(1).len(), 1, "the agent is told and asks for it");
}

#[test]
fn a_slot_of_a_create_that_never_happened_comes_back() {
    let mut world = World::ready();
    world.refuse.insert(Step::Create, VecDeque::from([FailureClass::OutcomeUnknown]));
    world.create([pod(1, 1)]);
    world.api.clear();
    world.tell_views();
    world.pass(Duration::from_secs(200));
    assert_eq!(world.node.report(world.now).used, 0);
    assert!(world.node.report(world.now).pods.is_empty());
}

#[test]
fn an_eni_that_somebody_deleted_does_not_stay_in_the_books() {
    let mut world = World::ready();
    world.create([pod(1, 1)]);
    world.api.clear();
    restarted(&mut world);
    world.enis.clear();
    for _ in 0..20 {
        world.release(1, GONE, Way::SeenAndGone);
        world.pass(Duration::from_secs(10));
        world.inventory();
    }
    assert_eq!(world.acks(1).last(), Some(&Ack::Deleted));
    assert!(world.node.report(world.now).pods.is_empty());
}

#[test]
fn a_cooled_eni_is_deleted_although_the_pods_other_branch_is_stuck() {
    let mut world = World::ready();
    world.create([pod(1, 2)]);
    world.vanish(1);
    world.hold.insert(Step::Disassociate);
    world.release(1, GONE, Way::SeenAndGone);
    world.let_go_one();
    world.refuse.insert(Step::Disassociate, vec![FailureClass::Unauthorised; 1000].into());
    world.let_go();
    for _ in 0..20 {
        world.release(1, GONE, Way::SeenAndGone);
        world.pass(Duration::from_secs(10));
    }
    assert_eq!((world.count(Step::Disassociate), world.count(Step::Delete)), (1, 1));
}

#[test]
fn suspicions_are_asked_for_by_the_name_in_the_books() {
    let mut world = served();
    let mut wrong = pod_ref(1);
    wrong.name = "nobody".parse().unwrap();
    world.step(Event::Agent(FromAgent::Suspect(crate::view::Suspect::reported(wrong))));
    assert!(!world.sent.contains(&ToAgent::Gone(uid(1))));
    assert!(world.sent.contains(&ToAgent::Alive(uid(1))));
}

#[test]
fn what_annotations_named_once_is_forgotten() {
    let mut world = World::ready();
    for n in 100..200 {
        let mut p = pod(1, 1);
        p.annotation = Some(format!("{}/9", eni_id(n)));
        world.create([p]);
    }
    let named: usize = world.node.holdings.get(&uid(1) as &PodUid).unwrap().named.len();
    assert!(named <= 1, "{named}");
}

#[test]
fn i4_one_wrong_not_found_does_not_keep_a_live_pod_from_its_branch() {
    for made_before in [false, true] {
        let mut world = World::ready();
        if made_before {
            world.refuse.insert(Step::Associate, VecDeque::from([FailureClass::Throttled]));
        }
        let live = pod(1, 1);
        if made_before {
            world.create([live.clone()]);
        }
        world.api.clear(); // the GET lies, the view does not
        world.tell_pods(std::slice::from_ref(&live));
        world.pass(Duration::from_secs(2));
        world.api.insert(uid(1), live);
        world.pass(Duration::from_secs(60));
        assert!(world.annotation(1).is_some(), "{made_before}: {:?}", world.wait_of(1));
        assert_eq!(world.creates, 1);
    }
}

#[test]
fn an_unreadable_config_hash_is_not_an_absent_one() {
    let mut world = World::ready();
    world.create([mirror(1, 1)]);
    let record = &mut world.enis.get_mut(&eni_id(1)).unwrap().record;
    record.tags.config_hash = Tag::Unreadable("?".into());
    world.api.clear();
    restarted(&mut world);
    assert_eq!(world.owned(1).first().unwrap().kubelet_uid, None);
}

#[test]
fn without_a_trunk_nobody_can_tell_whose_an_annotated_eni_is() {
    let mut world = World::ready();
    let mut own = record(&eni_id(70), Some(&pod_ref(1)), vlan(9), vec![]);
    own.status = EniStatus::InUse;
    world.enis.insert(eni_id(70), SimEni { record: own, association: None });
    let mut p = pod(1, 1);
    p.annotation = Some(format!("{}/9", eni_id(70)));
    world.hold.insert(Step::Describe);
    world.create([p]);
    world.step(Event::TrunkDown("it is detached".into()));
    world.let_go();
    world.trunk(false);
    world.tell_views();
    world.pass(Duration::from_secs(60));
    assert_eq!((world.creates, world.wait_of(1)), (0, Some("awaits-adoption")));
}

#[test]
fn a_replayed_create_that_names_a_deleted_eni_is_made_anew_although_its_vlan_is_another_by_now() {
    let mut world = World::ready();
    world.create([pod(1, 1)]);
    world.hold.insert(Step::Associate);
    world.create([pod(2, 1)]);
    world.enis.remove(&eni_id(2));
    // So that the next term takes another VLAN for it.
    world.links.insert(vlan(2));
    restarted(&mut world);
    world.tell_views();
    world.pass(Duration::from_secs(300));
    assert_eq!(world.annotation(2), Some(format!("{}/3", eni_id(3))));
}
