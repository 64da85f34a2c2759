use std::collections::VecDeque;
use std::time::Duration;

use crate::eni::FailureClass;
use crate::id::VlanId;
use crate::node::event::{Annotated, Groups, NoticeKind};
use crate::view::{OddRequest, PodPhase};
use crate::wait::Step;

use super::world::*;

#[test]
fn a_pod_gets_a_branch_with_one_create_and_one_associate() {
    let mut world = World::ready();
    world.create([pod(1, 1)]);
    assert_eq!(world.annotation(1), Some(format!("{}/1", eni_id(1))));
    assert_eq!(world.mutations, vec![(Step::Create, eni_id(1)), (Step::Associate, eni_id(1))]);
    assert_eq!(world.wait_of(1), None);
    assert_eq!(world.owned(1).len(), 1);
}

#[test]
fn nothing_is_done_again_while_the_watch_has_not_shown_our_own_annotation() {
    let mut world = World::ready();
    world.create([pod(1, 1)]);
    let gets = world.gets;
    world.tell_pods(&[pod(1, 1)]);
    assert_eq!(world.gets, gets);
    world.tell_views();
    assert_eq!((world.gets, world.wait_of(1)), (gets, None));
}

#[test]
fn t10_a_pod_that_asks_for_two_gets_two_or_waits_for_both() {
    let mut world = World::ready();
    world.create([pod(1, 2)]);
    assert_eq!(world.annotation(1), Some(format!("{}/1,{}/2", eni_id(1), eni_id(2))));
    world.create([pod(2, 2)]);
    assert_eq!(world.wait_of(2), Some("slots-full"));
    assert_eq!(world.creates, 2, "D8: nothing is reserved for half a pod");
}

#[test]
fn a_pod_that_can_never_fit_is_told_so() {
    let mut world = World::ready();
    world.create([pod(1, LIMIT + 1)]);
    assert_eq!(world.wait_of(1), Some("more-than-trunk"));
}

#[test]
fn d31_a_full_trunk_is_told_once_and_a_freed_slot_wakes_the_waiter() {
    let mut world = World::ready();
    world.create((1..=LIMIT + 1).map(|n| pod(n, 1)));
    world.tell_views();
    let told = world.notices.iter().filter(|(_, kind)| *kind == NoticeKind::TrunkFull).count();
    assert_eq!((world.wait_of(4), told), (Some("slots-full"), 1));
    world.end(1);
    assert!(
        world.annotation(4).is_some(),
        "the slot is free as soon as the branch is disassociated"
    );
    assert_eq!(world.count(Step::Delete), 0);
}

#[test]
fn d31_who_waits_for_his_turn_is_not_told_that_the_trunk_is_full() {
    let mut world = World::ready();
    world.create([pod(1, 2)]);
    world.create([pod(2, 2)]);
    world.create([pod(3, 1)]);
    assert_eq!((world.wait_of(2), world.wait_of(3)), (Some("slots-full"), Some("queued")));
    assert!(world.notices.contains(&(Some(uid(2)), NoticeKind::TrunkFull)));
    assert!(!world.notices.contains(&(Some(uid(3)), NoticeKind::TrunkFull)));
}

#[test]
fn s44_a_lost_reply_to_create_makes_no_second_eni() {
    let mut world = World::ready();
    world.lose.insert(Step::Create, 2);
    world.create([pod(1, 1)]);
    world.pass(Duration::from_secs(10));
    assert_eq!(world.creates, 1);
    assert!(world.annotation(1).is_some());
}

#[test]
fn t3_a_lost_reply_to_associate_is_read_back_and_nothing_is_undone() {
    let mut world = World::ready();
    world.lose.insert(Step::Associate, 2);
    world.create([pod(1, 1)]);
    world.pass(Duration::from_secs(10));
    assert_eq!(world.mutations, vec![(Step::Create, eni_id(1)), (Step::Associate, eni_id(1))]);
    assert!(world.annotation(1).is_some());
}

#[test]
fn t2_a_lost_reply_to_the_annotation_is_read_back_and_the_eni_kept() {
    let mut world = World::ready();
    world.annotate = VecDeque::from([Annotated::Unknown("timeout".into())]);
    world.create([pod(1, 1)]);
    world.pass(Duration::from_secs(5));
    assert_eq!((world.mutations.len(), world.wait_of(1)), (2, None));
}

#[test]
fn s46_a_refused_annotation_keeps_one_eni_across_retries() {
    let mut world = World::ready();
    world.annotate = (0..5).map(|_| Annotated::Refused("denied by a webhook".into())).collect();
    world.create([pod(1, 1)]);
    assert_eq!(world.wait_of(1), Some("patch-refused"));
    world.pass(Duration::from_secs(60));
    assert_eq!((world.creates, world.mutations.len()), (1, 2));
    assert!(world.annotation(1).is_some());
    let told =
        world.notices.iter().filter(|(_, kind)| *kind == NoticeKind::AnnotationFailed).count();
    assert_eq!(told, 1);
}

#[test]
fn a_conflict_on_the_annotation_means_get_again() {
    let mut world = World::ready();
    world.annotate = VecDeque::from([Annotated::Conflict, Annotated::Conflict]);
    world.create([pod(1, 1)]);
    assert_eq!((world.gets, world.annotation(1).is_some()), (3, true));
}

#[test]
fn s43_not_found_right_after_create_is_retried_with_the_same_eni() {
    let mut world = World::ready();
    world.refuse.insert(Step::Associate, VecDeque::from(vec![FailureClass::NotFound; 4]));
    world.create([pod(1, 1)]);
    world.pass(Duration::from_secs(20));
    assert_eq!(world.creates, 1);
    assert!(world.annotation(1).is_some());
}

#[test]
fn a_vlan_that_somebody_else_holds_is_left_to_them_and_the_tag_follows() {
    let mut world = World::ready();
    world.refuse.insert(Step::Associate, VecDeque::from([FailureClass::VlanInUse]));
    world.create([pod(1, 1)]);
    world.pass(Duration::from_secs(30));
    assert_eq!(world.annotation(1), Some(format!("{}/2", eni_id(1))));
    let tag = world.enis.get(&eni_id(1)).unwrap().record.tags.vlan.value().copied();
    assert_eq!(tag, Some(vlan(2)));
}

#[test]
fn s45_a_full_subnet_is_waited_out_with_one_event() {
    let mut world = World::ready();
    world.refuse.insert(Step::Create, VecDeque::from(vec![FailureClass::SubnetFull; 6]));
    world.create([pod(1, 1)]);
    assert_eq!(world.wait_of(1), Some("ec2"));
    world.pass(Duration::from_secs(60));
    assert!(world.annotation(1).is_some());
    let told =
        world.notices.iter().filter(|(_, kind)| *kind == NoticeKind::AllocationFailed).count();
    assert_eq!(told, 1);
}

#[test]
fn groups_that_cannot_be_read_are_waited_for_and_never_taken_for_none() {
    let mut world = World::ready();
    world.groups = Err("the API server answered 500".into());
    world.create([pod(1, 1)]);
    world.pass(Duration::from_secs(30));
    assert_eq!((world.wait_of(1), world.creates), (Some("groups"), 0));
    world.groups = Ok(Groups::NoMatch);
    world.pass(Duration::from_secs(60));
    assert_eq!(world.enis.get(&eni_id(1)).unwrap().record.groups, vec![group("sg-node")]);
}

#[test]
fn no_vlan_is_handed_out_without_a_valid_link_view() {
    let mut world = World::ready();
    world.step(crate::node::event::Event::Agent(crate::message::FromAgent::Links(Err(
        crate::view::Blind::TrunkLinkMissing,
    ))));
    world.api.insert(uid(1), pod(1, 1));
    world.tell_pods(&[pod(1, 1)]);
    assert_eq!((world.wait_of(1), world.creates), (Some("link-view"), 0));
}

#[test]
fn a_vlan_whose_link_exists_is_not_handed_out() {
    let mut world = World::ready();
    world.links.insert(vlan(1));
    world.create([pod(1, 1)]);
    assert_eq!(world.annotation(1), Some(format!("{}/2", eni_id(1))));
    assert!(world.notices.contains(&(None, NoticeKind::StrayLink)));
}

#[test]
fn d30_a_terminating_pod_gets_nothing() {
    let mut world = World::ready();
    let mut terminating = pod(1, 1);
    terminating.deleting = true;
    world.create([terminating]);
    assert_eq!(world.creates, 0);
}

#[test]
fn t1_an_annotation_that_does_not_parse_is_left_alone() {
    let mut world = World::ready();
    let mut broken = pod(1, 1);
    broken.annotation = Some("{".into());
    world.create([broken]);
    assert_eq!((world.wait_of(1), world.creates), (Some("annotation-unreadable"), 0));
    assert!(world.notices.contains(&(Some(uid(1)), NoticeKind::AnnotationUnusable)));
}

#[test]
fn a_copied_annotation_is_replaced_and_the_original_stays_bound() {
    let mut world = World::ready();
    world.create([pod(1, 1)]);
    let original = world.annotation(1);
    let mut copy = pod(2, 1);
    copy.annotation = original.clone();
    world.create([copy]);
    assert_eq!(world.annotation(1), original);
    assert_eq!(world.annotation(2), Some(format!("{}/2", eni_id(2))));
    assert!(world.notices.contains(&(Some(uid(2)), NoticeKind::AnnotationReplaced)));
}

#[test]
fn an_annotation_that_names_what_ec2_does_not_show_is_parked() {
    let mut world = World::ready();
    let mut ghost = pod(1, 1);
    ghost.annotation = Some(format!("{}/9", eni_id(77)));
    world.create([ghost]);
    assert_eq!((world.wait_of(1), world.creates), (Some("annotation-ghost"), 0));
}

#[test]
fn s27_a_want_whose_pod_went_away_leaves_the_queue() {
    let mut world = World::ready();
    world.groups = Err("no".into());
    world.create([pod(1, 1)]);
    world.api.clear();
    world.tell_views();
    world.pass(Duration::from_secs(5));
    assert!(world.node.report(world.now).pods.is_empty());
    assert_eq!(world.node.report(world.now).used, 0);
}

#[test]
fn read_only_changes_nothing_in_ec2() {
    let mut world = World::ready();
    world.step(crate::node::event::Event::Settings(crate::node::event::Settings {
        read_only: true,
        ..settings()
    }));
    world.create([pod(1, 1)]);
    assert_eq!((world.wait_of(1), world.mutations.len()), (Some("read-only"), 0));
}

#[test]
fn t10_a_request_that_gets_no_branch_is_told_once_and_shown_until_the_pod_has_started() {
    let mut world = World::ready();
    let mut zero = pod(1, 0);
    zero.odd_request = Some(OddRequest::Zero);
    let mut init = pod(2, 0);
    init.odd_request = Some(OddRequest::InitOnly);
    let mut second = pod(3, 1);
    second.odd_request = Some(OddRequest::NotFirst);
    world.create([zero, init.clone(), second, pod(4, 0)]);
    world.tell_views();
    let told: Vec<_> =
        world.notices.iter().filter(|(_, kind)| *kind == NoticeKind::OddRequest).collect();
    let expected = [1, 2, 3].map(|n| (Some(uid(n)), NoticeKind::OddRequest));
    assert_eq!(told, expected.iter().collect::<Vec<_>>());
    assert_eq!((world.wait_of(1), world.wait_of(2)), (Some("asks-nothing"), Some("asks-nothing")));
    assert!(world.annotation(3).is_some(), "the sum over the containers counts (ANN-6)");
    assert_eq!(world.wait_of(3), None);
    let shown = |world: &World, n| {
        let report = world.node.report(world.now);
        report.pods.into_iter().find(|p| p.pod.uid == uid(n))
    };
    assert_eq!(shown(&world, 3).unwrap().odd_request, Some(OddRequest::NotFirst));
    assert_eq!(shown(&world, 4), None);
    init.phase = PodPhase::Running;
    world.create([init]);
    let running = shown(&world, 2).unwrap();
    assert_eq!((running.wait, running.odd_request), (None, Some(OddRequest::InitOnly)));
    world.vanish(1);
    assert_eq!(shown(&world, 1), None);
    assert_eq!(world.creates, 1);
}

#[test]
fn s81_a_wait_is_told_once_it_has_lasted_and_an_ordinary_one_is_not() {
    let mut world = World::ready();
    let waiting = |world: &World, n| {
        let kind = NoticeKind::Waiting;
        world.notices.iter().filter(|notice| **notice == (Some(uid(n)), kind)).count()
    };
    world.create([pod(1, 2)]);
    world.create([pod(2, 2), pod(3, 1)]);
    assert_eq!(world.wait_of(3), Some("queued"));
    world.pass(Duration::from_secs(9));
    assert_eq!(waiting(&world, 3), 0);
    world.pass(Duration::from_secs(60));
    assert_eq!(waiting(&world, 3), 1, "told once");
    assert_eq!(waiting(&world, 2), 0, "a full trunk is told at once, by its own event");
    assert_eq!(waiting(&world, 1), 0, "a pod that is served is not told");
}

#[test]
fn s81_a_call_that_takes_long_is_told_and_what_it_may_wait_for() {
    let mut world = World::ready();
    world.hold.insert(Step::Create);
    world.create([pod(1, 1)]);
    world.pass(Duration::from_secs(30));
    assert_eq!(world.notices.last(), Some(&(Some(uid(1)), NoticeKind::Waiting)));
    let told = world.sentences.last().unwrap();
    assert!(told.contains("create-eni") && told.contains("EC2's request budget"), "{told}");
    world.let_go();
    assert!(world.annotation(1).is_some());
}

#[test]
fn s81_a_pod_that_waits_for_a_vlan_to_rest_is_told_and_a_new_leader_tells_served_pods_nothing() {
    let mut world = World::ready();
    world.tell_vlans(Some(VlanId::all().map(|v| (v, Duration::ZERO)).collect()));
    world.create([pod(1, 1)]);
    assert_eq!(world.wait_of(1), Some("vlans-resting"));
    world.pass(Duration::from_secs(11));
    assert_eq!(world.notices, [(Some(uid(1)), NoticeKind::Waiting)]);
    world.pass(Duration::from_secs(300));
    assert!(world.annotation(1).is_some());
    world.notices.clear();
    world.new_term();
    world.trunk(false);
    world.connect();
    world.create([pod(2, 1)]);
    world.pass(Duration::from_secs(30));
    assert_eq!((world.wait_of(1), world.wait_of(2)), (Some("inventory"), Some("inventory")));
    assert_eq!(world.notices, [(Some(uid(2)), NoticeKind::Waiting)]);
}
