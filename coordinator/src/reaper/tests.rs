use std::time::Duration;

use serde_json::json;
use trunkline_core::eni::{EniStatus, Tag};
use trunkline_core::time::Timing;
use trunkline_kit::clock::Clock;

use super::*;
use crate::events::captured;
use crate::nodes::directory::Change;
use crate::testing::{CloudState, FakeCloud, begin_term, branch, eni_id, scripted, trunk_eni};

struct World {
    term: Arc<Term>,
    cloud: Arc<FakeCloud>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.term.stop.cancel();
    }
}

fn instance() -> InstanceId {
    "i-00000001".parse().unwrap()
}

/// An instance with a trunk and two branches, one of them without owner, and no Node.
fn world() -> World {
    let cloud = FakeCloud::new();
    cloud.run_instance(&instance(), "m5.large", 1);
    cloud.put(trunk_eni(2, &instance()));
    let mut owned = branch(3, 2, &instance(), 1);
    owned.tags.pod_uid = Tag::Is("uid-1".parse().unwrap());
    owned.tags.pod_namespace = Tag::Is("ns".parse().unwrap());
    owned.tags.pod_name = Tag::Is("p".parse().unwrap());
    cloud.put(owned);
    cloud.put(branch(4, 2, &instance(), 2));
    // Another instance's, with a Node of its own.
    let other: InstanceId = "i-00000002".parse().unwrap();
    cloud.run_instance(&other, "m5.large", 5);
    cloud.put(trunk_eni(6, &other));
    let mut free = branch(7, 6, &other, 1);
    free.status = EniStatus::Available;
    cloud.put(free);
    let (recorder, _notices) = captured();
    let api = scripted(|_| (200, "{}".into()));
    let (term, _settings) =
        begin_term(&api, &cloud, Clock::virtual_time(), &Timing::default(), recorder);
    let node = json!({
        "metadata": {"name": "n2", "uid": "u2"},
        "spec": {"providerID": "aws:///eu-west-1a/i-00000002"},
    });
    term.directory.nodes(Change::Listed(vec![serde_json::from_value(node).unwrap()]));
    term.directory.cninodes(Change::Listed(vec![]));
    term.spawn(run(term.clone()));
    World { term, cloud }
}

impl World {
    /// What EC2 does when an instance ends whose trunk goes with it.
    fn terminate(&self, state: &str) {
        let mut cloud = self.cloud.state();
        cloud.instances.get_mut(&instance()).unwrap().state = state.into();
        cloud.enis.remove(&eni_id(2));
        Self::free(&mut cloud);
    }

    fn free(cloud: &mut CloudState) {
        for n in [3, 4] {
            cloud.enis.get_mut(&eni_id(n)).unwrap().status = EniStatus::Available;
        }
    }

    fn left(&self) -> Vec<EniId> {
        self.cloud.state().enis.keys().cloned().collect()
    }
}

fn minutes(n: u64) -> Duration {
    Duration::from_secs(n * 60)
}

#[tokio::test(start_paused = true)]
async fn s24_what_a_terminated_instance_left_is_cleared_away_and_nothing_else() {
    let world = world();
    world.terminate("terminated");
    tokio::time::sleep(minutes(20)).await;
    assert_eq!(world.left(), [eni_id(6), eni_id(7)]);
    assert_eq!(world.cloud.count("delete_trunk"), 0);
}

#[tokio::test(start_paused = true)]
async fn s56_an_instance_that_only_lost_its_node_or_is_stopped_keeps_everything() {
    for state in ["running", "stopped", "stopping", "shutting-down", "in a state that is not known"]
    {
        let world = world();
        world.terminate(state);
        tokio::time::sleep(minutes(180)).await;
        assert_eq!(world.left().len(), 4, "{state}");
    }
}

#[tokio::test(start_paused = true)]
async fn i6_an_instance_that_ec2_does_not_know_is_dead_after_half_an_hour_without_its_trunk() {
    let world = world();
    world.cloud.state().instances.remove(&instance());
    World::free(&mut world.cloud.state());
    tokio::time::sleep(minutes(180)).await;
    assert_eq!(world.left().len(), 5, "its trunk is there");
    world.cloud.state().enis.remove(&eni_id(2));
    tokio::time::sleep(minutes(25)).await;
    assert_eq!(world.left().len(), 4, "for less than half an hour");
    tokio::time::sleep(minutes(20)).await;
    assert_eq!(world.left(), [eni_id(6), eni_id(7)]);
}

#[tokio::test(start_paused = true)]
async fn a_trunk_that_outlives_its_instance_goes_after_its_branches() {
    let world = world();
    {
        let mut cloud = world.cloud.state();
        cloud.instances.get_mut(&instance()).unwrap().state = "terminated".into();
        let trunk = cloud.enis.get_mut(&eni_id(2)).unwrap();
        (trunk.attachment, trunk.status) = (None, EniStatus::Available);
        for n in [3, 4] {
            cloud.enis.get_mut(&eni_id(n)).unwrap().status = EniStatus::Associated;
        }
    }
    tokio::time::sleep(minutes(20)).await;
    assert_eq!(world.left(), [eni_id(6), eni_id(7)]);
    let log = world.cloud.state().log.clone();
    let trunk = log.iter().position(|a| *a == "delete_trunk").unwrap();
    assert!(log[..trunk].iter().filter(|a| **a == "delete").count() >= 2, "{log:?}");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_names_the_instance_again_ends_the_suspicion() {
    let world = world();
    world.cloud.state().instances.remove(&instance());
    world.cloud.state().enis.remove(&eni_id(2));
    World::free(&mut world.cloud.state());
    tokio::time::sleep(minutes(25)).await;
    let node = |name: &str, id: &str| {
        let node = json!({
            "metadata": {"name": name, "uid": name},
            "spec": {"providerID": format!("aws:///eu-west-1a/{id}")},
        });
        serde_json::from_value(node).unwrap()
    };
    world.term.directory.nodes(Change::Applied(node("n1", "i-00000001")));
    tokio::time::sleep(minutes(60)).await;
    assert_eq!(world.left().len(), 4);
    world.term.directory.nodes(Change::Deleted(node("n1", "i-00000001")));
    tokio::time::sleep(minutes(25)).await;
    assert_eq!(world.left().len(), 4, "the half hour begins anew");
    tokio::time::sleep(minutes(20)).await;
    assert_eq!(world.left(), [eni_id(6), eni_id(7)]);
}
