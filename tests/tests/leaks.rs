//! What a machine that is gone leaves in EC2, and what one that only lost its Node object keeps (design §4.4).
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test's helpers")]

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::DeleteParams;
use std::time::Duration;
use trunkline_sim::ec2::fault::{Fault, FaultKind};
use trunkline_sim::node::model::KubeletAction;
use trunkline_tests::cluster::{Cluster, Options};
use trunkline_tests::objects::PodSpec;
use trunkline_tests::poll;

const SOON: Duration = Duration::from_secs(90);

fn unavailable(action: &str) -> Fault {
    let (code, message) = ("Unavailable".to_owned(), String::new());
    Fault::on(action, FaultKind::Error { status: 503, code, message })
}

/// What is left in EC2 of an instance, by the tags.
async fn left_of(cluster: &Cluster, instance: &str) -> Vec<String> {
    let state = cluster.ec2_state().await.unwrap();
    let tagged = |tags: &std::collections::BTreeMap<String, String>| {
        tags.get("node.k8s.amazonaws.com/instance_id").is_some_and(|id| id == instance)
    };
    state.enis.iter().filter(|eni| tagged(&eni.tags)).map(|eni| eni.id.clone()).collect()
}

/// The machine dies with branches in every step of their life: in use, being taken back, cooling down, being made.
#[tokio::test]
async fn s24_s58_s61_t9_what_a_terminated_instance_leaves_goes_whatever_was_under_way() {
    let options = Options::default().nodes(2);
    let Some(mut cluster) = Cluster::for_test("s24", options).await.unwrap() else { return };
    let stays = cluster.serve("stays", "node-1").await.unwrap();
    let instance = cluster.nodes.node("node-2").await.unwrap().unwrap().instance.unwrap();
    let mut names = Vec::new();
    for n in 0..3 {
        names.push(cluster.serve(&format!("dies-{n}"), "node-2").await.unwrap().name);
    }
    // One cannot be disassociated, one (made before the fault) cannot be deleted, one is made and cannot be associated.
    let off = cluster.ec2_fault(&unavailable("DisassociateTrunkInterface")).await.unwrap();
    let on = cluster.ec2_fault(&unavailable("AssociateTrunkInterface")).await.unwrap();
    cluster.delete("default", "dies-0", false).await.unwrap();
    cluster.create(&PodSpec::branch("begins", "node-2")).await.unwrap();
    names.push("begins".to_owned());
    cluster.ec2_struck(&off, 1).await.unwrap();
    cluster.ec2_struck(&on, 1).await.unwrap();

    cluster.stop_agent("node-2").await.unwrap();
    cluster.nodes.kubelet("node-2", KubeletAction::PowerOff).await.unwrap();
    cluster.ec2.terminate_instance(&instance).await.unwrap();
    let nodes: Api<Node> = Api::all(cluster.admin.clone());
    nodes.delete("node-2", &DeleteParams::default()).await.unwrap();
    for name in &names {
        if cluster.pod("default", name).await.unwrap().is_some() {
            cluster.delete("default", name, true).await.unwrap();
        }
    }
    for fault in [off, on] {
        cluster.ec2_heals(&fault).await.unwrap();
    }
    poll::eventually("nothing is left of the machine", SOON, async || {
        let left = left_of(&cluster, &instance).await;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await
    .unwrap();
    cluster.still_served(std::slice::from_ref(&stays)).await.unwrap();
    cluster.finish().await.unwrap();
}

/// Somebody deletes the Node object of a machine that works on. Nothing of it goes, and it is served on once it is back.
#[tokio::test]
async fn s56_t7_a_node_object_that_is_deleted_takes_no_eni_with_it() {
    let options = Options::default().nodes(2);
    let Some(cluster) = Cluster::for_test("s56", options).await.unwrap() else { return };
    let pod = cluster.serve("stays", "node-2").await.unwrap();
    let from = cluster.mark().await.unwrap();
    let nodes: Api<Node> = Api::all(cluster.admin.clone());
    let mut node = nodes.get("node-2").await.unwrap();
    nodes.delete("node-2", &DeleteParams::default()).await.unwrap();
    cluster.nothing_released(from, Duration::from_secs(15)).await.unwrap();
    node.metadata.resource_version = None;
    node.metadata.uid = None;
    nodes.create(&kube::api::PostParams::default(), &node).await.unwrap();
    cluster.still_served(std::slice::from_ref(&pod)).await.unwrap();
    cluster.serve("after", "node-2").await.unwrap();
    cluster.finish().await.unwrap();
}
