use std::time::Duration;

use crate::eni::{EniStatus, Tag};
use crate::fact::{GoneBy, OverKind, Way};
use crate::message::Ack;
use crate::node::event::NoticeKind;
use crate::wait::Step;

use super::world::*;

fn restarted(world: &mut World) {
    world.new_term();
    world.now = world.now.plus(Duration::from_secs(20));
    world.inventory();
    world.trunk(false);
}

#[test]
fn s02_a_new_term_keeps_every_live_branch_and_changes_nothing() {
    let mut world = World::ready();
    world.create((1..=3).map(|n| pod(n, 1)));
    let before = world.mutations.clone();
    restarted(&mut world);
    world.connect();
    world.pass(Duration::from_secs(600));
    assert_eq!(world.mutations, before);
    assert!((1..=3).all(|n| world.wait_of(n).is_none()));
}

#[test]
fn s01_an_empty_view_after_a_restart_takes_nothing_away() {
    let mut world = World::ready();
    world.create((1..=3).map(|n| pod(n, 1)));
    let before = world.mutations.clone();
    restarted(&mut world);
    world.connect();
    world.tell_pods(&[]);
    for n in 1..=3 {
        world.suspect(n);
    }
    world.pass(Duration::from_secs(600));
    assert_eq!(world.mutations, before);
}

#[test]
fn nothing_is_handed_out_before_this_terms_inventory_is_whole() {
    let mut world = World::ready();
    world.new_term();
    world.trunk(false);
    world.connect();
    world.create([pod(1, 1)]);
    assert_eq!((world.wait_of(1), world.creates), (Some("inventory"), 0));
}

#[test]
fn s03_an_orphans_vlan_is_not_given_to_the_next_pod() {
    let mut world = World::ready();
    world.create([pod(1, 1)]);
    world.api.clear();
    restarted(&mut world);
    world.connect();
    world.create([pod(2, 1)]);
    let given = world.annotation(2).unwrap();
    assert!(!given.ends_with("/1"), "{given}");
}

#[test]
fn s08_a_create_that_was_cut_off_is_finished_with_the_same_eni() {
    let mut world = World::ready();
    world.refuse.insert(Step::Associate, vec![crate::eni::FailureClass::Throttled; 1000].into());
    world.create([pod(1, 1)]);
    world.refuse.clear();
    restarted(&mut world);
    world.connect();
    world.pass(Duration::from_secs(5));
    assert_eq!((world.creates, world.annotation(1).is_some()), (1, true));
}

#[test]
fn one_eni_never_serves_as_two_branches_though_its_index_tag_is_lost() {
    let mut world = World::ready();
    world.annotate.push_back(crate::node::event::Annotated::Refused("403".into()));
    world.create([pod(1, 2)]);
    // The first is deleted by somebody, the second loses its index (this world's ENIs have none), the leader changes:
    // the second is taken over as the first, and the token of the second's create gives back the same ENI.
    let first = world.enis.keys().next().cloned().unwrap();
    world.enis.remove(&first);
    restarted(&mut world);
    world.connect();
    world.pass(Duration::from_secs(600));
    let owned: std::collections::BTreeSet<_> =
        world.owned(1).into_iter().map(|branch| branch.eni).collect();
    assert_eq!((world.creates, owned.len()), (3, 2));
    assert!(world.annotation(1).is_some());
}

#[test]
fn t5_an_orphan_whose_association_id_is_lost_is_disassociated_first() {
    let mut world = World::ready();
    world.create([pod(1, 1)]);
    world.api.clear();
    restarted(&mut world);
    world.connect();
    world.release(1, OverKind::Gone(GoneBy::Coordinator), Way::Slow);
    world.pass(Duration::from_secs(50));
    world.inventory();
    world.pass(Duration::from_secs(20));
    let steps: Vec<Step> = world.mutations.iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, vec![Step::Create, Step::Associate, Step::Disassociate, Step::Delete]);
    assert_eq!(world.acks(1).last(), Some(&Ack::Deleted));
}

#[test]
fn a_restart_in_the_cooldown_forgets_nothing() {
    let mut world = World::ready();
    world.create([pod(1, 1)]);
    world.end(1);
    restarted(&mut world);
    world.connect();
    assert_eq!(world.owned(1).len(), 1);
    world.release(1, OverKind::Gone(GoneBy::WatchDeleted), Way::SeenAndGone);
    // That no call of the last term associated it again shows after a while; then the cooldown runs anew.
    world.pass(Duration::from_secs(100));
    assert_eq!((world.enis.len(), world.count(Step::Disassociate)), (0, 1));
}

#[test]
fn deleted_is_not_said_before_calls_of_the_last_term_can_be_known() {
    let mut world = World::ready();
    restarted(&mut world);
    world.connect();
    world.release(9, OverKind::Gone(GoneBy::WatchDeleted), Way::SeenAndGone);
    assert_eq!(world.acks(9), vec![Ack::Received]);
    world.pass(Duration::from_secs(50));
    // The inventory of before may lack what a late Create of the last term made after it.
    world.release(9, OverKind::Gone(GoneBy::WatchDeleted), Way::SeenAndGone);
    assert_eq!(world.acks(9), vec![Ack::Received, Ack::Received]);
    world.inventory();
    world.release(9, OverKind::Gone(GoneBy::WatchDeleted), Way::SeenAndGone);
    assert_eq!(world.acks(9), vec![Ack::Received, Ack::Received, Ack::Deleted]);
}

#[test]
fn an_eni_without_our_uid_tag_is_kept_with_an_event_and_its_pod_gets_no_second_one() {
    let mut world = World::ready();
    let mut peer = record(&eni_id(50), None, vlan(1), vec![group("sg-a")]);
    peer.status = EniStatus::InUse;
    world.enis.insert(
        eni_id(50),
        SimEni { record: peer, association: Some(("trunk-assoc-9".parse().unwrap(), vlan(1))) },
    );
    restarted(&mut world);
    world.connect();
    let mut served_by_peer = pod(1, 1);
    served_by_peer.annotation = Some(format!("{}/1", eni_id(50)));
    world.create([served_by_peer, pod(2, 1)]);
    world.pass(Duration::from_secs(600));
    assert_eq!((world.wait_of(1), world.count(Step::Disassociate)), (Some("awaits-adoption"), 0));
    assert!(world.notices.contains(&(None, NoticeKind::UnboundBranch)));
    assert_eq!(world.annotation(2).unwrap(), format!("{}/2", eni_id(1)), "its VLAN stays held");
}

#[test]
fn an_agent_without_a_record_makes_every_free_vlan_rest() {
    let mut world = World::blank();
    world.step(whole(vec![]));
    world.trunk(false);
    world.connect();
    world.tell_vlans(None);
    world.create([pod(1, 1)]);
    assert_eq!(world.wait_of(1), Some("vlans-resting"));
    world.pass(Duration::from_secs(301));
    assert!(world.annotation(1).is_some());
}

#[test]
fn a_static_pods_new_mirror_takes_the_eni_over() {
    let mut world = World::ready();
    let mirror = |n: u32| {
        let mut p = pod(n, 1);
        p.pod.name = pod_ref(1).name;
        p.mirror = true;
        p.config_hash = Some("0123456789abcdef".parse().unwrap());
        p
    };
    world.create([mirror(1)]);
    world.api.clear();
    world.create([mirror(2)]);
    world.pass(Duration::from_secs(5));
    assert_eq!(world.creates, 1);
    assert_eq!(world.annotation(2), Some(format!("{}/1", eni_id(1))));
    let tag = &world.enis.get(&eni_id(1)).unwrap().record.tags.pod_uid;
    assert_eq!(*tag, Tag::Is(uid(2)));
}

#[test]
fn a_trunk_made_after_the_agent_connected_needs_no_rest() {
    let mut world = World::blank();
    world.step(whole(vec![]));
    world.connect();
    world.tell_vlans(None);
    world.trunk(true);
    world.tell_views();
    world.create([pod(1, 1)]);
    assert!(world.annotation(1).is_some(), "{:?}", world.wait_of(1));
}

#[test]
fn a_trunk_found_after_the_agent_connected_makes_every_vlan_rest() {
    let mut world = World::blank();
    world.step(whole(vec![]));
    world.connect();
    world.tell_vlans(None);
    world.trunk(false);
    world.tell_views();
    world.create([pod(1, 1)]);
    assert_eq!(world.wait_of(1), Some("vlans-resting"));
}
