//! What an audit finds, what it leaves alone, and what an operator's order lifts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::eni::{EniStatus, Tag};
use crate::heal::Health;
use crate::id::EniId;
use crate::node::audit::{Audit, Evidence, Next, Remedy, Shown, ownerless};
use crate::node::event::{Event, HealMode, Settings};
use crate::view::PodPhase;
use crate::wait::Step;

use super::world::*;

const OLD: Duration = Duration::from_secs(301);

fn running(n: u32, heal: HealMode) -> World {
    let mut world = World::ready();
    world.trunk_for(9, false);
    world.step(Event::Settings(Settings { heal, ..settings() }));
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
    // The views of an agent come all the time.
    world.tell_links();
    world.tell_views();
    world
}

fn evidence(world: &World) -> Evidence {
    let shown = |id: &EniId| !world.hidden.contains(id);
    Evidence {
        began: world.now,
        enis: world.enis.values().map(|e| e.record.clone()).filter(|r| shown(&r.id)).collect(),
        listed: world.now,
        pods: world.api.values().cloned().collect(),
        by_id: BTreeMap::new(),
    }
}

/// As the coordinator does it: what is doubtful is asked for by id.
fn audit(world: &World) -> Audit {
    let mut evidence = evidence(world);
    let doubts = world.node.audit(&evidence, world.now).doubts;
    for eni in doubts {
        let shown = match world.enis.get(&eni) {
            Some(eni) => Shown::There(Box::new(eni.record.clone())),
            None => Shown::NotFound,
        };
        evidence.by_id.insert(eni, shown);
    }
    world.node.audit(&evidence, world.now)
}

fn classes(audit: &Audit) -> Vec<(Health, Option<EniId>)> {
    audit.findings.iter().map(|f| (f.class, f.eni.clone())).collect()
}

fn order(world: &mut World, enis: impl IntoIterator<Item = EniId>) {
    world.step(Event::Repair(enis.into_iter().collect()));
}

/// Time for two answers by id, with views all along.
fn minutes(world: &mut World, n: u32) {
    for _ in 0..n * 4 {
        world.pass(Duration::from_secs(15));
        world.tell_links();
        world.tell_views();
    }
}

#[test]
fn what_is_as_it_should_be_is_not_found() {
    let world = running(3, HealMode::InPlace);
    assert_eq!(audit(&world), Audit::default());
}

#[test]
fn i6_what_a_reading_does_not_show_is_a_doubt_and_no_finding() {
    let mut world = running(2, HealMode::InPlace);
    world.hidden.insert(eni_id(1));
    let mut evidence = evidence(&world);
    let first = world.node.audit(&evidence, world.now);
    assert_eq!((first.findings, first.doubts), (vec![], BTreeSet::from([eni_id(1)])));
    assert_eq!(audit(&world), Audit::default(), "by id it is there");
    evidence.by_id.insert(eni_id(1), Shown::Unknown("Unavailable".to_owned()));
    let unknown = world.node.audit(&evidence, world.now);
    assert_eq!((unknown.findings.len(), unknown.unknown.len()), (0, 1));
}

#[test]
fn an_eni_that_is_gone_and_one_without_association_are_told_with_what_an_order_does() {
    let mut world = running(3, HealMode::Report);
    world.enis.remove(&eni_id(1)).unwrap();
    let second = world.enis.get_mut(&eni_id(2)).unwrap();
    second.association = None;
    second.record.status = EniStatus::Available;
    let found = audit(&world);
    assert_eq!(
        classes(&found),
        vec![(Health::Missing, Some(eni_id(1))), (Health::Disassociated, Some(eni_id(2)))]
    );
    assert!(found.findings.iter().all(|f| f.remedy == Some(Remedy::Heal)), "{found:?}");
    assert!(found.findings.iter().all(|f| f.next == Next::Ordered), "{found:?}");
}

#[test]
fn an_eni_that_is_too_young_for_a_reading_is_passed_over() {
    let mut world = running(1, HealMode::InPlace);
    let mut p = pod(2, 1);
    p.phase = PodPhase::Running;
    world.cgroups.insert(uid(2));
    world.create([p]);
    let mut evidence = evidence(&world);
    evidence.enis.retain(|e| e.id != eni_id(2));
    assert_eq!(world.node.audit(&evidence, world.now), Audit::default());
}

#[test]
fn a_copied_annotation_is_told_as_foreign_and_never_offered_for_repair() {
    let mut world = running(1, HealMode::InPlace);
    let text = world.api[&uid(1)].annotation.clone();
    let mut copy = pod(2, 1);
    copy.annotation = text;
    let mut evidence = evidence(&world);
    evidence.pods.push(copy);
    let found = world.node.audit(&evidence, world.now);
    assert_eq!(classes(&found), vec![(Health::Foreign, Some(eni_id(1)))]);
    assert_eq!((found.findings[0].pod.clone(), found.findings[0].remedy), (Some(pod_ref(2)), None));
    world.step(Event::Repair([eni_id(1)].into()));
    assert_eq!((world.creates, world.count(Step::Disassociate)), (1, 0));
}

#[test]
fn changed_groups_and_tags_are_told_and_restored_by_order() {
    let mut world = running(2, HealMode::Report);
    world.enis.get_mut(&eni_id(1)).unwrap().record.groups = vec![group("sg-other")];
    world.enis.get_mut(&eni_id(2)).unwrap().record.tags.pod_uid = Tag::Absent;
    world.inventory();
    let found = audit(&world);
    let remedies: Vec<_> = found.findings.iter().map(|f| (f.class, f.remedy)).collect();
    assert_eq!(
        remedies,
        vec![
            (Health::WrongGroups, Some(Remedy::RestoreGroups)),
            (Health::WrongTags, Some(Remedy::RestoreTags))
        ]
    );
    assert_eq!((world.count(Step::SetGroups), world.count(Step::Tag)), (0, 0));
    order(&mut world, [eni_id(1), eni_id(2)]);
    minutes(&mut world, 2);
    assert_eq!(world.enis[&eni_id(1)].record.groups, vec![group("sg-a")]);
    assert_eq!(world.enis[&eni_id(2)].record.tags.pod_uid, Tag::Is(uid(2)));
    world.inventory();
    minutes(&mut world, 2);
    assert_eq!(audit(&world), Audit::default());
    // An order counts once.
    world.enis.get_mut(&eni_id(1)).unwrap().record.groups = vec![group("sg-other")];
    world.inventory();
    minutes(&mut world, 2);
    assert_eq!(world.enis[&eni_id(1)].record.groups, vec![group("sg-other")]);
}

#[test]
fn a_tag_that_names_another_pod_is_never_written_over() {
    let mut world = running(1, HealMode::Report);
    world.enis.get_mut(&eni_id(1)).unwrap().record.tags.pod_uid = Tag::Is(uid(7));
    world.inventory();
    let found = audit(&world);
    assert_eq!(found.findings[0].remedy, None, "{found:?}");
    order(&mut world, [eni_id(1)]);
    minutes(&mut world, 3);
    assert_eq!((world.count(Step::Tag), world.count(Step::Disassociate)), (0, 0));
}

#[test]
fn an_order_repairs_under_heal_report_with_the_same_proof_and_only_what_it_names() {
    let mut world = running(2, HealMode::Report);
    world.enis.remove(&eni_id(1)).unwrap();
    world.enis.remove(&eni_id(2)).unwrap();
    world.inventory();
    minutes(&mut world, 3);
    assert_eq!((world.creates, world.wait_of(1)), (2, Some("heal-not-possible")));
    order(&mut world, [eni_id(1)]);
    minutes(&mut world, 6);
    assert_eq!(world.creates, 3, "one for the one that was named");
    assert_eq!(world.healed, vec![(uid(1), Health::Missing)]);
    assert_eq!(world.wait_of(2), Some("heal-not-possible"));
}

#[test]
fn an_order_lifts_the_fuse_of_the_repairs_and_not_the_mode() {
    let mut world = running(5, HealMode::InPlace);
    for n in 1..=5 {
        world.enis.remove(&eni_id(n)).unwrap();
    }
    world.inventory();
    minutes(&mut world, 2);
    assert_eq!((world.creates, world.wait_of(1)), (5, Some("heal-node-fuse")));
    let read_only = Settings { read_only: true, ..settings() };
    world.step(Event::Settings(read_only));
    order(&mut world, [eni_id(1)]);
    minutes(&mut world, 2);
    assert_eq!((world.creates, world.wait_of(1)), (5, Some("read-only")));
    world.step(Event::Settings(settings()));
    minutes(&mut world, 3);
    assert_eq!(world.creates, 6, "only the one that was named");
}

#[test]
fn an_order_for_an_eni_that_is_there_makes_nothing() {
    let mut world = running(1, HealMode::Report);
    order(&mut world, [eni_id(1), eni_id(99)]);
    minutes(&mut world, 3);
    assert_eq!((world.creates, world.mutations.len()), (1, 2), "create and associate, long ago");
    assert_eq!(audit(&world), Audit::default());
}

#[test]
fn s25_what_a_teardown_leaves_is_listed() {
    let mut world = running(2, HealMode::InPlace);
    world.step(Event::SessionClosed);
    let mut evidence = evidence(&world);
    evidence.pods.retain(|p| p.pod.uid != uid(1));
    let found = world.node.audit(&evidence, world.now);
    assert_eq!(classes(&found), vec![(Health::LeakedAssociated, Some(eni_id(1)))]);
    assert_eq!(found.findings[0].remedy, None, "no order releases");
    assert_eq!(found.unknown.len(), 3, "and that the agent's views are missing");
    let all: Vec<_> = world.enis.values().map(|e| e.record.clone()).collect();
    let left = ownerless(&all, &BTreeSet::from([eni_id(1)]));
    assert_eq!(left.iter().map(|f| f.eni.clone()).collect::<Vec<_>>(), vec![Some(eni_id(2))]);
}
