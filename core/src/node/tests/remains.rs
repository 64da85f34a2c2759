use std::collections::BTreeMap;
use std::time::Duration;

use crate::dead::{InstanceDead, InstanceSight, Look, NodeSight};
use crate::eni::{EniStatus, FailureClass, Tag};
use crate::fact::{GoneBy, OverKind, Way};
use crate::id::InstanceId;
use crate::node::event::{Event, NoticeKind};
use crate::wait::Step;

use super::world::*;

fn dead() -> InstanceDead {
    let instance: InstanceId = "i-0123456789abcdef0".parse().unwrap();
    let look = Look {
        instance: InstanceSight::Terminated,
        trunks: BTreeMap::new(),
        node: NodeSight::Unknown,
    };
    InstanceDead::from_state(&instance, &look, crate::time::Moment(1)).unwrap()
}

/// The machine is gone, and with it whatever ran on it; associations end (`ec2.md` §13 row 15).
fn die(world: &mut World) {
    for eni in world.enis.values_mut() {
        eni.association = None;
        eni.record.status = EniStatus::Available;
    }
    world.cgroups.clear();
    world.links.clear();
    world.step(Event::SessionClosed);
    world.step(Event::Dead(dead()));
}

fn deletes(world: &World) -> usize {
    world.mutations.iter().filter(|(step, _)| *step == Step::Delete).count()
}

#[test]
fn s24_whatever_a_dead_instance_left_is_deleted_once_live_objects_or_not() {
    let mut world = World::ready();
    world.create((1..=3).map(|n| pod(n, 1)));
    die(&mut world);
    world.pass(Duration::from_secs(120));
    assert!(world.enis.is_empty(), "{:?}", world.enis);
    assert_eq!(deletes(&world), 3, "each once");
    world.inventory();
    world.step(Event::Dead(dead()));
    assert_eq!(deletes(&world), 3, "and not again");
}

#[test]
fn s56_a_session_that_ended_or_a_dead_trunk_clears_nothing() {
    let mut world = World::ready();
    world.create([pod(1, 1)]);
    let before = world.mutations.clone();
    world.step(Event::SessionClosed);
    world.step(Event::TrunkDown("the Node object is gone".into()));
    world.pass(Duration::from_secs(7_200));
    world.inventory();
    assert_eq!(world.mutations, before);
}

#[test]
fn a_connected_agent_contradicts_and_nothing_is_deleted_until_it_is_gone() {
    let mut world = World::ready();
    world.create([pod(1, 1)]);
    for eni in world.enis.values_mut() {
        eni.association = None;
        eni.record.status = EniStatus::Available;
    }
    world.step(Event::Dead(dead()));
    world.pass(Duration::from_secs(60));
    assert_eq!((deletes(&world), world.wait_of(1)), (0, Some("agent-connected")));
    assert!(world.notices.iter().any(|(_, kind)| *kind == NoticeKind::RemainsKept));
    world.cgroups.clear();
    world.step(Event::SessionClosed);
    world.pass(Duration::from_secs(120));
    assert_eq!(deletes(&world), 1);
}

#[test]
fn an_eni_in_use_or_of_another_instance_stays() {
    for spoil in [
        (|e: &mut SimEni| e.record.status = EniStatus::InUse) as fn(&mut SimEni),
        |e| e.record.status = EniStatus::Pending,
        |e| e.record.tags.instance = Tag::Is("i-00000009".parse().unwrap()),
        |e| e.record.tags.instance = Tag::Absent,
    ] {
        let mut world = World::ready();
        world.create([pod(1, 1)]);
        world.enis.values_mut().for_each(|eni| eni.association = None);
        world.enis.values_mut().for_each(spoil);
        world.cgroups.clear();
        world.step(Event::SessionClosed);
        world.step(Event::Dead(dead()));
        world.pass(Duration::from_secs(600));
        assert_eq!(deletes(&world), 0, "{:?}", world.enis);
        assert!(matches!(world.wait_of(1), Some("eni-in-use" | "other-instance")));
    }
}

#[test]
fn s61_t9_a_create_under_way_while_its_instance_dies_is_cleared_once_it_shows() {
    let mut world = World::ready();
    world.hold.insert(Step::Create);
    world.create([pod(1, 1), pod(2, 1)]);
    die(&mut world);
    world.pass(Duration::from_secs(5));
    assert_eq!(deletes(&world), 0);
    // One is answered, the other's reply is lost.
    world.lose.insert(Step::Create, 1);
    world.let_go();
    world.pass(Duration::from_secs(60));
    assert_eq!((world.creates, deletes(&world)), (2, 1), "{:?}", world.enis);
    world.inventory();
    world.pass(Duration::from_secs(60));
    assert_eq!((world.creates, deletes(&world), world.enis.len()), (2, 2, 0));
    assert_eq!(world.count(Step::Associate), 0, "nothing more is made for a dead instance");
}

#[test]
fn s24_an_instance_that_dies_in_the_cooldown_or_before_any_step_of_a_release() {
    for until in [Step::Disassociate, Step::Delete] {
        for lost in [0, 1] {
            let mut world = World::ready();
            world.create([pod(1, 1)]);
            world.hold.insert(until);
            world.vanish(1);
            world.release(1, OverKind::Gone(GoneBy::WatchDeleted), Way::SeenAndGone);
            world.pass(Duration::from_secs(70));
            assert_eq!(world.held.len(), 1, "{until:?}");
            die(&mut world);
            world.lose.insert(until, lost);
            world.let_go();
            world.pass(Duration::from_secs(180));
            assert!(world.enis.is_empty(), "{until:?} {lost}: {:?}", world.enis);
        }
    }
}

#[test]
fn an_eni_without_owner_goes_with_its_instance_and_a_refusal_is_repeated() {
    let mut world = World::ready();
    let id = eni_id(0x77);
    let stranger = record(&id, None, vlan(9), vec![]);
    world.enis.insert(id.clone(), SimEni { record: stranger, association: None });
    world.inventory();
    world.pass(Duration::from_secs(7_200));
    assert_eq!(deletes(&world), 0, "nobody's, on a node that lives");
    world.refuse.insert(Step::Delete, vec![FailureClass::Unauthorised; 4].into());
    die(&mut world);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.node.report(world.now).strangers, [id], "it is still shown");
    world.pass(Duration::from_secs(600));
    assert_eq!((deletes(&world), world.enis.len()), (1, 0));
}
