use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use crate::eni::FailureClass;
use crate::fact::{GoneBy, OverKind, Way};
use crate::fuse::FuseState;
use crate::id::KubeletStart;
use crate::message::{Ack, FromAgent, Heartbeat, ToAgent};
use crate::node::event::{Event, NoticeKind, Settings};
use crate::verdict::Keep;
use crate::view::PodPhase;
use crate::wait::Step;

use super::world::*;

fn served() -> World {
    let mut world = World::ready();
    world.cgroups.insert(uid(1));
    world.create([pod(1, 1)]);
    world.links.insert(vlan(1));
    world.tell_views();
    world
}

#[test]
fn d45_a_gone_pod_is_disassociated_at_once_and_deleted_after_the_cooldown() {
    let mut world = served();
    world.end(1);
    assert_eq!((world.count(Step::Disassociate), world.count(Step::Delete)), (1, 0));
    assert_eq!(world.wait_of(1), Some("cooling"));
    world.pass(Duration::from_secs(59));
    assert_eq!(world.count(Step::Delete), 0);
    world.pass(Duration::from_secs(2));
    assert_eq!((world.count(Step::Delete), world.enis.len()), (1, 0));
    assert_eq!(world.acks(1).last(), Some(&Ack::Deleted));
}

#[test]
fn i1_an_agent_that_is_wrong_is_vetoed_by_our_own_get() {
    let mut world = served();
    world.release(1, OverKind::Gone(GoneBy::WatchDeleted), Way::SeenAndGone);
    world.pass(Duration::from_secs(120));
    assert_eq!(world.count(Step::Disassociate), 0);
    assert!(world.sent.contains(&ToAgent::Alive(uid(1))));
    assert_eq!(world.node.report(world.now).vetoes, 1);
}

#[test]
fn i6_a_get_that_is_not_answered_keeps_the_eni() {
    let mut world = served();
    world.gets_unknown = true;
    world.end(1);
    world.pass(Duration::from_secs(300));
    assert_eq!((world.count(Step::Disassociate), world.wait_of(1)), (0, Some("not-confirmed")));
    world.gets_unknown = false;
    world.pass(Duration::from_secs(61));
    assert_eq!(world.count(Step::Disassociate), 1);
}

#[test]
fn a_pod_deleted_in_the_api_whose_containers_run_keeps_its_eni() {
    let mut world = served();
    world.api.clear();
    world.tell_views();
    // The agent's facts are wrong: the barrier shows the cgroup.
    world.release(1, OverKind::Gone(GoneBy::WatchDeleted), Way::SeenAndGone);
    world.pass(Duration::from_secs(120));
    assert_eq!(world.count(Step::Disassociate), 0);
}

#[test]
fn without_an_answer_to_the_barrier_nothing_is_released() {
    let mut world = served();
    world.answer_barriers = false;
    world.end(1);
    world.pass(Duration::from_secs(60));
    assert_eq!(world.count(Step::Disassociate), 0);
    world.answer_barriers = true;
    world.pass(Duration::from_secs(30));
    assert_eq!(world.count(Step::Disassociate), 1);
}

#[test]
fn a_kubelet_start_after_the_statement_withdraws_it() {
    let mut world = served();
    world.answer_barriers = false;
    world.end(1);
    world.step(Event::Agent(FromAgent::Heartbeat(Heartbeat {
        boot: "boot".parse().unwrap(),
        kubelet: Some(KubeletStart(2)),
        pods: None,
        links: None,
        cgroups: None,
    })));
    world.answer_barriers = true;
    world.pass(Duration::from_secs(120));
    assert_eq!(world.count(Step::Disassociate), 0);
    // The agent still repeats what it saw under the old start.
    world.release(1, OverKind::Gone(GoneBy::WatchDeleted), Way::SeenAndGone);
    world.pass(Duration::from_secs(120));
    assert_eq!((world.count(Step::Disassociate), world.wait_of(1)), (0, Some("facts-outdated")));
}

#[test]
fn s20_a_finished_pod_gives_its_branch_back_while_its_object_remains() {
    let mut world = served();
    world.cgroups.clear();
    world.links.clear();
    let ended = world.api.get_mut(&uid(1)).unwrap();
    ended.phase = PodPhase::Succeeded;
    world.tell_views();
    world.release(1, OverKind::Ended, Way::SeenAndGone);
    world.pass(Duration::from_secs(61));
    assert_eq!((world.count(Step::Delete), world.acks(1).last()), (1, Some(&Ack::Deleted)));
    // Deleting the finished pod later releases nothing twice.
    world.api.clear();
    world.tell_views();
    world.release(1, OverKind::Gone(GoneBy::WatchDeleted), Way::SeenAndGone);
    world.pass(Duration::from_secs(61));
    assert_eq!((world.count(Step::Disassociate), world.count(Step::Delete)), (1, 1));
}

#[test]
fn s19_failing_deletes_keep_neither_slot_nor_peace() {
    let mut world = served();
    world.refuse.insert(Step::Delete, VecDeque::from(vec![FailureClass::InUse; 12]));
    world.end(1);
    assert_eq!(world.node.report(world.now).used, 0);
    world.pass(Duration::from_secs(900));
    assert_eq!((world.count(Step::Delete), world.enis.len()), (1, 0));
}

#[test]
fn s22_a_release_that_iam_refuses_is_told_once_and_goes_on_when_the_right_is_back() {
    let mut world = served();
    world.refuse.insert(Step::Disassociate, VecDeque::from(vec![FailureClass::Unauthorised; 4]));
    world.end(1);
    world.pass(Duration::from_secs(300));
    let told = (Some(uid(1)), NoticeKind::ReleaseFailed);
    assert_eq!(world.notices.iter().filter(|notice| **notice == told).count(), 1);
    assert_eq!((world.count(Step::Delete), world.enis.len()), (1, 0));
}

#[test]
fn a_lost_reply_to_disassociate_is_asked_again_with_fresh_evidence() {
    let mut world = served();
    world.lose.insert(Step::Disassociate, 1);
    world.refuse.entry(Step::Associate).or_default();
    world.end(1);
    let gets = world.gets;
    world.pass(Duration::from_secs(5));
    assert!(world.gets > gets);
    assert_eq!(world.count(Step::Disassociate), 2);
    world.pass(Duration::from_secs(61));
    assert_eq!(world.enis.len(), 0);
}

#[test]
fn a_release_in_the_middle_of_a_lost_create_reads_back_before_it_ends() {
    let mut world = World::ready();
    world.lose.insert(Step::Create, 1);
    world.create([pod(1, 1)]);
    assert_eq!(world.annotation(1), None);
    world.api.clear();
    world.tell_views();
    world.release(1, OverKind::Gone(GoneBy::WatchDeleted), Way::SeenAndGone);
    world.pass(Duration::from_secs(5));
    assert_eq!(world.owned(1).len(), 1, "the ENI was found by its tag and is told to the agent");
    assert_ne!(world.acks(1).last(), Some(&Ack::Deleted));
    world.release(1, OverKind::Gone(GoneBy::WatchDeleted), Way::SeenAndGone);
    world.pass(Duration::from_secs(65));
    assert_eq!((world.enis.len(), world.acks(1).last()), (0, Some(&Ack::Deleted)));
}

#[test]
fn s28_a_released_vlan_rests_before_it_is_handed_out() {
    let mut world = served();
    world.end(1);
    world.create([pod(2, 1)]);
    assert_eq!(world.annotation(2), Some(format!("{}/2", eni_id(2))));
}

#[test]
fn a_live_pod_that_names_the_eni_keeps_it() {
    let mut world = served();
    let text = world.annotation(1);
    world.vanish(1);
    let mut other = pod(2, 0);
    other.annotation = text;
    world.create([other]);
    world.release(1, OverKind::Gone(GoneBy::WatchDeleted), Way::SeenAndGone);
    world.pass(Duration::from_secs(120));
    assert_eq!((world.count(Step::Disassociate), world.wait_of(1)), (0, Some("named-by-other")));
}

#[test]
fn after_disassociation_the_session_may_go_and_the_delete_still_comes() {
    let mut world = served();
    world.end(1);
    world.step(Event::SessionClosed);
    world.pass(Duration::from_secs(62));
    assert_eq!(world.count(Step::Delete), 1);
}

#[test]
fn before_disassociation_a_lost_session_stops_the_release() {
    let mut world = served();
    world.answer_barriers = false;
    world.end(1);
    world.step(Event::SessionClosed);
    world.pass(Duration::from_secs(120));
    assert_eq!(world.count(Step::Disassociate), 0);
}

#[test]
fn a_suspect_is_asked_for_and_only_told_gone_when_the_api_server_says_so() {
    let mut world = served();
    world.suspect(1);
    assert!(world.sent.contains(&ToAgent::Alive(uid(1))));
    world.gets_unknown = true;
    world.sent.retain(|m| matches!(m, ToAgent::OwnedAll(_) | ToAgent::OwnedChanged { .. }));
    world.suspect(1);
    assert!(!world.sent.iter().any(|m| matches!(m, ToAgent::Alive(_) | ToAgent::Gone(_))));
    world.gets_unknown = false;
    world.api.clear();
    world.suspect(1);
    assert!(world.sent.contains(&ToAgent::Gone(uid(1))));
}

#[test]
fn s13_three_vetoes_of_different_pods_stop_releasing_on_the_node() {
    let mut world = World::ready();
    world.create((1..=3).map(|n| pod(n, 1)));
    for n in 1..=3 {
        world.release(n, OverKind::Gone(GoneBy::WatchDeleted), Way::SeenAndGone);
    }
    assert_eq!(world.froze, [BTreeSet::from([uid(1), uid(2), uid(3)])]);
    world.end(1);
    world.pass(Duration::from_secs(60));
    assert_eq!((world.count(Step::Disassociate), world.wait_of(1)), (0, Some("fuse-blown")));
    // It does not open by itself, whatever becomes of the window, and tells its freeze once.
    world.pass(Duration::from_secs(3_600));
    assert_eq!((world.count(Step::Disassociate), world.wait_of(1)), (0, Some("fuse-blown")));
    assert_eq!(world.froze.len(), 1);
    // Nor by what is opened elsewhere in the cluster: the adapter repeats this node's own state.
    world.step(Event::Fuse(FuseState::NodeBlown));
    world.pass(Duration::from_secs(60));
    assert_eq!(world.count(Step::Disassociate), 0);
    world.step(Event::Fuse(FuseState::Intact));
    world.pass(Duration::from_secs(120));
    assert_eq!((world.count(Step::Disassociate), world.count(Step::Delete)), (1, 1));
    // What was counted before the reset is settled: it takes three new ones.
    world.release(2, OverKind::Gone(GoneBy::WatchDeleted), Way::SeenAndGone);
    assert_eq!((world.node.report(world.now).fuse, world.froze.len()), (FuseState::Intact, 1));
}

#[test]
fn a_frozen_cluster_and_an_unknown_fuse_stop_both_calls_and_let_them_go_on() {
    for state in [FuseState::ClusterBlown, FuseState::Unknown, FuseState::NodeBlown] {
        let why = state.keep().map(Keep::name);
        let mut world = served();
        world.step(Event::Fuse(state));
        world.end(1);
        world.pass(Duration::from_secs(120));
        assert_eq!((world.count(Step::Disassociate), world.wait_of(1)), (0, why));
        world.step(Event::Fuse(FuseState::Intact));
        world.pass(Duration::from_secs(1));
        assert_eq!(world.count(Step::Disassociate), 1);
        world.step(Event::Fuse(state));
        world.pass(Duration::from_secs(600));
        assert_eq!((world.count(Step::Delete), world.wait_of(1)), (0, why));
        world.step(Event::Fuse(FuseState::Intact));
        world.pass(Duration::from_secs(60));
        assert_eq!(world.count(Step::Delete), 1);
    }
}

#[test]
fn vetoes_while_the_cluster_is_opened_are_not_forgotten() {
    let mut world = World::ready();
    world.create((1..=3).map(|n| pod(n, 1)));
    for n in 1..=2 {
        world.release(n, OverKind::Gone(GoneBy::WatchDeleted), Way::SeenAndGone);
    }
    world.step(Event::Fuse(FuseState::ClusterBlown));
    world.step(Event::Fuse(FuseState::Intact));
    world.release(3, OverKind::Gone(GoneBy::WatchDeleted), Way::SeenAndGone);
    assert_eq!(world.node.report(world.now).fuse, FuseState::NodeBlown);
}

#[test]
fn s13_an_ordinary_drain_of_thirty_pods_touches_neither_fuse_nor_pace() {
    let mut world = World::ready();
    world.trunk_for(40, true);
    world.create((1..=30).map(|n| pod(n, 1)));
    world.pass(Duration::from_secs(1));
    assert_eq!(world.enis.len(), 30);
    for n in 1..=30 {
        world.end(n);
    }
    world.pass(Duration::from_secs(10));
    assert_eq!(world.count(Step::Disassociate), 30, "slots are free at once");
    world.pass(Duration::from_secs(120));
    assert_eq!((world.count(Step::Delete), world.froze.len()), (30, 0));
}

#[test]
fn releases_that_no_watch_announced_are_paced_by_the_cluster() {
    let mut world = served();
    world.pace_closed = true;
    world.vanish(1);
    world.release(1, OverKind::Gone(GoneBy::Coordinator), Way::Slow);
    world.pass(Duration::from_secs(30));
    assert_eq!((world.count(Step::Disassociate), world.wait_of(1)), (0, Some("paced")));
    world.pace_closed = false;
    world.pass(Duration::from_secs(5));
    assert_eq!(world.count(Step::Disassociate), 1);
}

#[test]
fn no_release_keeps_everything_and_goes_on_when_it_is_lifted() {
    let mut world = served();
    world.step(Event::Settings(Settings { no_release: true, ..settings() }));
    world.end(1);
    assert_eq!((world.count(Step::Disassociate), world.wait_of(1)), (0, Some("mode-forbids")));
    world.step(Event::Settings(settings()));
    assert_eq!(world.count(Step::Disassociate), 1);
}
