//! Users: pods come, run, end and are deleted, in all ways that Kubernetes has.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use trunkline_core::annotation::POD_ENI;
use trunkline_core::id::{NodeName, PodUid};

use super::api::store::{is_going, text};
use super::ec2::account::BRANCHES;
use super::node::kubelet::OWN_NAMESPACE;
use super::node::machine::Order;
use super::node::worker::path_of;
use super::world::World;

/// Runs until told to stop.
pub(super) async fn run(world: Arc<World>, stop: CancellationToken) {
    let busy = world.dice.pick(&[4_000, 15_000, 40_000]).unwrap_or(15_000);
    let mut number = 0;
    while !stop.is_cancelled() {
        tokio::time::sleep(world.dice.long_tailed_ms(100..busy * 6)).await;
        if stop.is_cancelled() {
            return;
        }
        number += 1;
        act(&world, number);
        world.store_moved.notify_waiters();
    }
}

/// A pod that asks for branches, as the API has it.
pub(super) struct Pod {
    /// Path of its object.
    pub(super) path: String,
    /// UID.
    pub(super) uid: PodUid,
    /// Node.
    pub(super) node: NodeName,
    /// All of it.
    pub(super) object: Arc<Value>,
}

/// How many branches a pod asks for.
pub(super) fn asked_by(pod: &Value) -> u64 {
    let requests = pod.pointer("/spec/containers/0/resources/requests");
    let asked = requests.and_then(|r| r.get(POD_ENI)).and_then(Value::as_str);
    asked.and_then(|n| n.parse().ok()).unwrap_or_default()
}

/// All pods that ask for branches.
pub(super) fn pods(world: &World) -> Vec<Pod> {
    let store = world.store();
    let pod = |(path, object): (&String, &Arc<Value>)| {
        (text(object, "/metadata/namespace") != OWN_NAMESPACE).then_some(())?;
        Some(Pod {
            path: path.clone(),
            uid: text(object, "/metadata/uid").parse().ok()?,
            node: text(object, "/spec/nodeName").parse().ok()?,
            object: object.clone(),
        })
    };
    store.pods().filter_map(pod).collect()
}

fn act(world: &Arc<World>, number: u64) {
    let pods = pods(world);
    let indexes: Vec<usize> = (0..pods.len()).collect();
    let Some(node) = world.dice.pick(&world.plan.node_names()) else { return };
    let on_node: u64 =
        pods.iter().filter(|pod| pod.node == node).map(|pod| asked_by(&pod.object)).sum();
    let asks = world.dice.pick(&[1, 1, 1, 2, 3]).unwrap_or(1);
    // Fewer than the trunk can have, so that all of them get their branches in the end.
    let fits = on_node + asks < BRANCHES;
    let chosen = world.dice.pick(&indexes).and_then(|index| pods.get(index));
    let kind = world.dice.below(0..100);
    match (kind, chosen) {
        (0..45, _) | (_, None) if fits => {
            create(world, &node, &format!("web-{number}"), asks, None);
        }
        (..60, Some(pod)) => {
            world.happened("pod-delete", pod.uid.as_str());
            world.store().mark_deleted(world.now(), &pod.path);
        }
        (60..75, Some(pod)) => force_delete(world, pod),
        (75..84, Some(pod)) => finish(world, pod, Order::Finish),
        (84..92, Some(pod)) => finish(world, pod, Order::Crash),
        (92..95, Some(pod)) => {
            // A successor of the same name, at once (a StatefulSet's forced replacement).
            force_delete(world, pod);
            let name = text(&pod.object, "/metadata/name").to_owned();
            create(world, &pod.node, &name, asked_by(&pod.object), None);
        }
        (95..97, Some(pod)) => {
            // Somebody else calls it over while its containers run.
            let failed = json!({"status": {"phase": "Failed"}});
            let _gone = world.store().merge(world.now(), &pod.path, &failed);
            world.happened("pod-failed-by-others", pod.uid.as_str());
        }
        (_, Some(pod)) if fits => {
            // A pod's YAML is copied with its annotation.
            let annotation =
                pod.object.pointer("/metadata/annotations").and_then(|a| a.get(POD_ENI));
            if pod.node != node
                && let Some(annotation) = annotation.and_then(Value::as_str)
            {
                create(world, &node, &format!("web-{number}"), asks, Some(annotation));
            }
        }
        _ => {}
    }
}

pub(super) fn force_delete(world: &World, pod: &Pod) {
    world.happened("pod-force-delete", pod.uid.as_str());
    // As the API server does it: marked first, then gone.
    let mut store = world.store();
    store.mark_deleted(world.now(), &pod.path);
    let _gone = store.remove(world.now(), &pod.path, pod.uid.as_str());
}

fn finish(world: &World, pod: &Pod, order: Order) {
    if !is_going(&pod.object) {
        let told = world.machine(&pod.node, |m| m.order(&pod.uid, order));
        if told == Some(true) {
            let what = if order == Order::Finish { "pod-ends" } else { "sandbox-dies" };
            world.happened(what, pod.uid.as_str());
        }
    }
}

/// A pod that asks for so many branches; whether the API server took it.
pub(super) fn create(
    world: &World,
    node: &NodeName,
    name: &str,
    asks: u64,
    annotation: Option<&str>,
) -> bool {
    let mut annotations = serde_json::Map::new();
    if let Some(text) = annotation {
        annotations.insert(POD_ENI.to_owned(), json!(text));
    }
    let pod = json!({
        "kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "shop", "labels": {"app": "web"}, "annotations": annotations},
        "spec": {
            "nodeName": node.as_str(),
            "serviceAccountName": "default",
            "containers": [{"name": "web", "resources": {"requests": {POD_ENI: asks.to_string()}}}],
        },
        "status": {"phase": "Pending"},
    });
    let made = world.store().create(world.now(), &path_of(&pod), pod);
    if let Ok(made) = &made {
        let what = if annotation.is_some() { "pod-create-copied" } else { "pod-create" };
        world.happened(what, &format!("{} on {node}", text(made, "/metadata/uid")));
    }
    made.is_ok()
}

/// How long the world may take to settle once the weather is fair.
pub(super) const SETTLES_IN: Duration = Duration::from_secs(75 * 60);
