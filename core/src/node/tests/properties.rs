//! Random histories: whatever fails and in whatever order things come, I1 and I2 hold, and once faults stop everything
//! comes to rest.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use proptest::prelude::*;

use crate::eni::{EniStatus, FailureClass};
use crate::fact::{GoneBy, OverKind, Way};
use crate::id::{EniId, KubeletStart, VlanId};
use crate::message::{FromAgent, Heartbeat};
use crate::node::event::{Annotated, Event, Settings};
use crate::wait::Step;

use super::world::*;

#[derive(Debug, Clone)]
enum Act {
    Create(u32, u32),
    End(u32),
    WrongRelease(u32),
    Refuse(Step, FailureClass),
    Lose(Step),
    EmptyView,
    Views,
    GetsUnknown(bool),
    Disconnect,
    Connect,
    NewTerm,
    Pass(u64),
    Hold(Step),
    LetGo,
    Inventory,
    NoRelease(bool),
    Barriers(bool),
    Lag(bool),
    Restart(u64),
    /// Somebody deletes the n-th ENI.
    Vanish(usize),
    /// Somebody takes the n-th ENI's association away.
    Part(usize),
    /// Reads do not show the n-th ENI, for long, if a pod runs with it: while one is made they lag behind for seconds.
    Hide(usize),
    Show,
    RefuseAnnotation(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let step = prop_oneof![
        Just(Step::Create),
        Just(Step::Associate),
        Just(Step::Disassociate),
        Just(Step::Delete)
    ];
    let held = prop_oneof![step.clone(), Just(Step::Describe), Just(Step::ReadBack)];
    let class = prop_oneof![
        Just(FailureClass::Throttled),
        Just(FailureClass::NotFound),
        Just(FailureClass::OutcomeUnknown),
        Just(FailureClass::VlanInUse),
        Just(FailureClass::TokenMismatch),
        Just(FailureClass::InUse)
    ];
    let act = prop_oneof![
        6 => (1..6u32, 1..3u32).prop_map(|(n, r)| Act::Create(n, r)),
        5 => (1..6u32).prop_map(Act::End),
        2 => (1..6u32).prop_map(Act::WrongRelease),
        2 => (step.clone(), class).prop_map(|(s, c)| Act::Refuse(s, c)),
        2 => step.prop_map(Act::Lose),
        1 => Just(Act::EmptyView),
        2 => Just(Act::Views),
        1 => any::<bool>().prop_map(Act::GetsUnknown),
        1 => Just(Act::Disconnect),
        2 => Just(Act::Connect),
        1 => Just(Act::NewTerm),
        6 => (1..200u64).prop_map(Act::Pass),
        2 => held.prop_map(Act::Hold),
        3 => Just(Act::LetGo),
        1 => Just(Act::Inventory),
        1 => any::<bool>().prop_map(Act::NoRelease),
        1 => any::<bool>().prop_map(Act::Barriers),
        1 => any::<bool>().prop_map(Act::Lag),
        1 => (1..3u64).prop_map(Act::Restart),
        2 => (0..6usize).prop_map(Act::Vanish),
        2 => (0..6usize).prop_map(Act::Part),
        1 => (0..6usize).prop_map(Act::Hide),
        2 => Just(Act::Show),
        1 => (1..4usize).prop_map(Act::RefuseAnnotation),
        2 => Just(Act::Inventory),
        2 => (200..600u64).prop_map(Act::Pass),
    ];
    proptest::collection::vec(act, 1..40)
}

/// Pods are made once per number and never come back: UIDs are not reused.
fn run(acts: Vec<Act>) -> World {
    let mut world = World::ready();
    let mut made: BTreeMap<u32, bool> = BTreeMap::new();
    for act in acts {
        match act {
            Act::Create(n, requested) if !made.contains_key(&n) => {
                made.insert(n, true);
                world.cgroups.insert(uid(n));
                world.create([pod(n, requested)]);
                let vlans: Vec<VlanId> = world.owned(n).iter().map(|b| b.vlan).collect();
                world.links.extend(vlans);
                world.tell_links();
            }
            Act::End(n) if made.get(&n) == Some(&true) => {
                made.insert(n, false);
                world.end(n);
            }
            Act::WrongRelease(n) => {
                world.release(n, OverKind::Gone(GoneBy::WatchDeleted), Way::SeenAndGone);
            }
            Act::Refuse(step, class) => world.refuse.entry(step).or_default().push_back(class),
            Act::Lose(step) => *world.lose.entry(step).or_default() += 1,
            Act::EmptyView => world.tell_pods(&[]),
            Act::Views => world.tell_views(),
            Act::GetsUnknown(unknown) => world.gets_unknown = unknown,
            Act::Disconnect => world.step(Event::SessionClosed),
            Act::Connect => world.connect(),
            Act::Hold(step) => {
                world.hold.insert(step);
            }
            Act::LetGo => world.let_go(),
            Act::Inventory => world.inventory(),
            Act::NoRelease(no_release) => {
                world.step(Event::Settings(Settings { no_release, ..settings() }));
            }
            Act::Barriers(answered) => world.answer_barriers = answered,
            Act::Lag(lagging) => world.lagging = lagging,
            Act::Restart(start) => world.step(Event::Agent(FromAgent::Heartbeat(Heartbeat {
                boot: "boot".parse().unwrap(),
                kubelet: Some(KubeletStart(start)),
                pods: None,
                links: None,
                cgroups: None,
            }))),
            Act::NewTerm => {
                world.new_term();
                world.inventory();
                world.trunk(false);
                world.connect();
            }
            Act::Pass(seconds) => {
                // No read lags behind for longer than the consistency window.
                world.lagging &= seconds < 20;
                world.pass(Duration::from_secs(seconds));
            }
            Act::Vanish(n) => {
                let eni = world.enis.keys().nth(n).cloned();
                eni.map(|eni| world.enis.remove(&eni));
            }
            Act::Part(n) => {
                if let Some(eni) = world.enis.values_mut().nth(n) {
                    eni.association = None;
                    eni.record.status = EniStatus::Available;
                }
            }
            Act::Hide(n) => {
                let eni = world.enis.keys().nth(n).filter(|eni| is_announced(&world, eni)).cloned();
                world.hidden.extend(eni);
            }
            Act::Show => world.hidden.clear(),
            Act::RefuseAnnotation(times) => {
                world.annotate.extend((0..times).map(|_| Annotated::Refused("403".into())));
            }
            Act::Create(..) | Act::End(_) => {}
        }
        one_association_per_vlan(&world);
    }
    world
}

/// Where the node has no link there is nothing that an annotation without ENI could be believed by.
fn has_link(world: &World, pod: &crate::view::Pod) -> bool {
    let vlans = pod.annotation.iter().flat_map(|text| text.split(','));
    vlans.filter_map(|part| part.split('/').nth(1)?.parse().ok()).all(|v| world.links.contains(&v))
}

fn is_announced(world: &World, eni: &EniId) -> bool {
    let texts = world.api.values().filter_map(|p| p.annotation.as_deref());
    texts.into_iter().any(|text| text.contains(eni.as_str()))
}

/// I2.
fn one_association_per_vlan(world: &World) {
    let mut held: BTreeMap<VlanId, &EniId> = BTreeMap::new();
    for (id, eni) in &world.enis {
        if let Some((_, vlan)) = &eni.association {
            assert_eq!(held.insert(*vlan, id), None, "I2: {vlan} twice");
        }
    }
}

/// Faults stop; the agent repeats what is true until all is done.
fn settle(world: &mut World) {
    world.refuse = BTreeMap::<Step, VecDeque<FailureClass>>::new();
    world.lose.clear();
    world.gets_unknown = false;
    world.lagging = false;
    world.hidden.clear();
    world.annotate.clear();
    world.answer_barriers = true;
    world.let_go();
    world.new_term();
    world.inventory();
    world.trunk(false);
    world.connect();
    for _ in 0..40 {
        world.tell_views();
        for n in 1..6 {
            if !world.api.contains_key(&uid(n)) {
                world.release(n, OverKind::Gone(GoneBy::WatchDeleted), Way::SeenAndGone);
            }
        }
        for _ in 0..6 {
            world.now = world.now.plus(Duration::from_secs(5));
            world.step(Event::Tick);
        }
        world.inventory();
        one_association_per_vlan(world);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_live_pods_keep_their_enis_and_dead_ones_give_them_back(acts in acts()) {
        let mut world = run(acts);
        settle(&mut world);
        for (id, eni) in &world.enis {
            let owner = eni.record.tags.pod_uid.value();
            prop_assert!(owner.is_some_and(|uid| world.api.contains_key(uid)), "I3: {} leaks", id);
        }
        for n in 1..6 {
            let Some(live) = world.api.get(&uid(n)) else { continue };
            let waits = world.wait_of(n);
            let served = live.annotation.as_ref().is_some_and(|text| {
                text.split(',').all(|part| {
                    let id: EniId = part.split('/').next().unwrap().parse().unwrap();
                    world.enis.get(&id).is_some_and(|e| e.association.is_some())
                })
            });
            prop_assert!(served || waits.is_some_and(|w| ["slots-full", "queued", "more-than-trunk", "heal-no-slot"].contains(&w) || (w == "annotation-ghost" && !has_link(&world, live))), "I4: pod {} {:?} {:?}", n, live.annotation, waits);
        }
    }

    #[test]
    fn the_same_history_gives_the_same_books(acts in acts()) {
        let (a, b) = (run(acts.clone()), run(acts));
        prop_assert_eq!(a.node, b.node);
        prop_assert_eq!(a.mutations, b.mutations);
    }
}
