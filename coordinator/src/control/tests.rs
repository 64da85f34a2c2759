use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use trunkline_core::fuse::FuseState;
use trunkline_core::id::InstanceId;
use trunkline_core::mode::Mode;
use trunkline_core::node::event::Settings;

use super::*;
use crate::events::{self, Notice};
use crate::testing::{MemoryShelf, begin_control, settings_in_force};

struct World {
    shelf: MemoryShelf,
    settings: watch::Sender<Settings>,
    control: Arc<Control>,
    events: mpsc::Receiver<Notice>,
    saver: tokio::task::JoinHandle<()>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.saver.abort();
    }
}

impl World {
    fn over(shelf: MemoryShelf) -> Self {
        let settings = watch::Sender::new(settings_in_force());
        let (recorder, events) = events::captured();
        let control = begin_control(&shelf, &settings, recorder);
        let saver = tokio::spawn(control.clone().keep_saved());
        Self { shelf, settings, control, events, saver }
    }

    fn new() -> Self {
        Self::over(MemoryShelf::default())
    }

    /// The next term reads what this one has stored.
    fn next_term(&self) -> Self {
        Self::over(self.shelf.clone())
    }

    fn freeze(&self, n: u32) {
        let node = format!("node-{n}").parse().unwrap();
        let pods = (0..3).map(|p| format!("uid-{n}-{p}").parse().unwrap()).collect();
        self.control.freeze(&instance(n), &node, pods);
    }

    fn fuse_of(&self, n: u32) -> FuseState {
        self.control.fuse_of(&instance(n))
    }

    /// Waits, in virtual time, until everything is stored.
    async fn saved(&self) {
        let mut changed = self.control.subscribe();
        while self.control.view().unknown.is_some() {
            tokio::time::timeout(Duration::from_secs(60), changed.changed())
                .await
                .expect("never stored")
                .unwrap();
        }
    }

    fn told(&mut self) -> BTreeSet<(String, Reason)> {
        let mut told = BTreeSet::new();
        while let Ok(notice) = self.events.try_recv() {
            told.insert((format!("{:?}", notice.target), notice.reason));
        }
        told
    }
}

fn instance(n: u32) -> InstanceId {
    format!("i-{n:08x}").parse().unwrap()
}

fn who() -> Who {
    Who { user: "ann".into(), reason: "looked at it".into() }
}

#[tokio::test(start_paused = true)]
async fn a_freeze_is_stored_before_the_others_go_on_and_outlives_the_term() {
    let mut world = World::new();
    world.shelf.state().broken = true;
    world.freeze(1);
    assert_eq!((world.fuse_of(1), world.fuse_of(2)), (FuseState::NodeBlown, FuseState::Unknown));
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(world.fuse_of(2), FuseState::Unknown, "still not stored");
    assert!(world.shelf.state().writes > 1, "it is tried again");
    world.shelf.state().broken = false;
    world.saved().await;
    assert_eq!((world.fuse_of(1), world.fuse_of(2)), (FuseState::NodeBlown, FuseState::Intact));
    let told = world.told();
    assert!(
        told.len() == 1 && told.iter().all(|(target, _)| target.contains("node-1")),
        "{told:?}"
    );
    assert!(told.iter().all(|(_, reason)| *reason == Reason::ReleaseFuseBlown), "{told:?}");
    let next = world.next_term();
    assert_eq!((next.fuse_of(1), next.fuse_of(2)), (FuseState::NodeBlown, FuseState::Intact));
    assert_eq!(next.control.view().fuse, world.control.view().fuse);
}

#[tokio::test(start_paused = true)]
async fn three_frozen_nodes_freeze_the_cluster_over_terms() {
    let first = World::new();
    first.freeze(1);
    first.freeze(2);
    first.saved().await;
    let mut second = first.next_term();
    assert_eq!(second.fuse_of(9), FuseState::Intact);
    second.freeze(3);
    second.saved().await;
    assert_eq!(second.fuse_of(9), FuseState::ClusterBlown);
    assert!(second.told().iter().any(|(target, _)| target.contains("State")));
    assert_eq!(second.next_term().fuse_of(9), FuseState::ClusterBlown);
}

#[tokio::test(start_paused = true)]
async fn a_reset_is_stored_first_and_one_that_cannot_be_stored_opens_nothing() {
    let world = World::new();
    world.freeze(1);
    world.saved().await;
    world.shelf.state().broken = true;
    let refused = world.control.open(&Opens::Node("node-1".into()), &who()).await;
    assert!(matches!(refused, Err(ControlError::NotStored(_))), "{refused:?}");
    assert_eq!(world.fuse_of(1), FuseState::NodeBlown);
    world.shelf.state().broken = false;
    // The write may have been carried out: the freeze is written once more.
    world.shelf.state().fuse = None;
    world.saved().await;
    assert_eq!(world.next_term().fuse_of(1), FuseState::NodeBlown);
    let view = world.control.open(&Opens::Node(instance(1).to_string()), &who()).await.unwrap();
    assert_eq!(view.fuse.last_reset.unwrap().by, "ann");
    assert_eq!(world.fuse_of(1), FuseState::Intact);
    let next = world.next_term();
    assert_eq!(next.fuse_of(1), FuseState::Intact);
    assert_eq!(next.control.view().fuse.last_reset.unwrap().reason, "looked at it");
}

#[tokio::test(start_paused = true)]
async fn only_what_is_frozen_can_be_opened() {
    let world = World::new();
    for what in [Opens::Node("node-1".into()), Opens::Cluster] {
        let refused = world.control.open(&what, &who()).await;
        assert!(matches!(refused, Err(ControlError::NotFrozen(_))), "{refused:?}");
    }
    assert_eq!(world.shelf.state().writes, 0);
}

#[tokio::test(start_paused = true)]
async fn opening_the_cluster_leaves_its_nodes_frozen() {
    let world = World::new();
    (1..=3).for_each(|n| world.freeze(n));
    world.saved().await;
    world.control.open(&Opens::Cluster, &who()).await.unwrap();
    for world in [&world, &world.next_term()] {
        assert_eq!((world.fuse_of(1), world.fuse_of(9)), (FuseState::NodeBlown, FuseState::Intact));
    }
}

#[tokio::test(start_paused = true)]
async fn i6_a_fuse_that_cannot_be_read_stops_everything_until_somebody_resets_the_cluster() {
    for text in [
        "",
        "{}",
        "null",
        "[]",
        r#"{"nodes":{},"cluster":null,"more":1}"#,
        r#"{"nodes":{"not an instance":{"node":"n","pods":[],"since":"2026-01-01T00:00:00Z","counts":true}},"cluster":null}"#,
        r#"{"nodes":{"i-00000001":{"node":"n","pods":[],"since":"yesterday","counts":true}},"cluster":null}"#,
    ] {
        let shelf = MemoryShelf::default();
        shelf.state().fuse = Some(text.into());
        let world = World::over(shelf);
        assert_eq!(world.fuse_of(1), FuseState::Unknown, "{text}");
        assert!(world.control.open(&Opens::Node("n".into()), &who()).await.is_err());
        let chosen = world.control.choose(Mode::Normal, &who()).await;
        assert!(chosen.is_err(), "the text is left for a person to look at");
        world.shelf.state().fuse = Some(text.into());
        assert_eq!(world.next_term().fuse_of(1), FuseState::Unknown, "{text}");
        world.control.open(&Opens::Cluster, &who()).await.unwrap();
        world.saved().await;
        assert_eq!(world.fuse_of(1), FuseState::Intact);
        assert_eq!(world.next_term().fuse_of(1), FuseState::Intact);
    }
}

fn in_force(world: &World) -> (bool, bool) {
    let settings = *world.settings.borrow();
    (settings.read_only, settings.no_release)
}

#[tokio::test(start_paused = true)]
async fn a_stricter_mode_is_in_force_at_once_and_a_looser_one_once_it_is_stored() {
    let mut world = World::new();
    assert_eq!(in_force(&world), (false, false));
    world.shelf.state().broken = true;
    let stricter = world.control.choose(Mode::ReadOnly, &who()).await;
    assert!(matches!(stricter, Err(ControlError::InForceOnly(_))), "{stricter:?}");
    assert_eq!(in_force(&world), (true, true));
    let looser = world.control.choose(Mode::Normal, &who()).await;
    assert!(matches!(looser, Err(ControlError::NotStored(_))), "{looser:?}");
    assert_eq!(in_force(&world), (true, true));
    world.shelf.state().broken = false;
    world.control.choose(Mode::NoRelease, &who()).await.unwrap();
    assert_eq!(in_force(&world), (false, true));
    let next = world.next_term();
    assert_eq!(in_force(&next), (false, true));
    assert_eq!(next.control.view().choice.unwrap().decision.by, "ann");
    let told = world.told();
    assert!(told.iter().all(|(_, reason)| *reason == Reason::ModeChanged) && !told.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_mode_that_cannot_be_read_forbids_every_change_until_somebody_chooses() {
    let shelf = MemoryShelf::default();
    shelf.state().mode = Some("paused".into());
    let world = World::over(shelf);
    assert_eq!(in_force(&world), (true, true));
    world.control.choose(Mode::Normal, &who()).await.unwrap();
    assert_eq!(in_force(&world), (false, false));
}

#[tokio::test(start_paused = true)]
async fn a_freeze_keeps_the_mode_and_a_mode_keeps_the_freeze() {
    let world = World::new();
    world.control.choose(Mode::NoRelease, &who()).await.unwrap();
    world.freeze(1);
    world.saved().await;
    world.control.choose(Mode::Normal, &who()).await.unwrap();
    let next = world.next_term();
    assert_eq!((in_force(&next), next.fuse_of(1)), ((false, false), FuseState::NodeBlown));
    world.control.choose(Mode::NoRelease, &who()).await.unwrap();
    world.freeze(2);
    world.saved().await;
    let next = world.next_term();
    assert_eq!((in_force(&next), next.fuse_of(2)), ((false, true), FuseState::NodeBlown));
}
