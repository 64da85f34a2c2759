//! Nodes as the API shows them: CNINodes, nodes that are left alone, trunks that are refused, the cooldown's setting, what
//! agents and coordinator ask the API server, and their health pages.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test's helpers")]

#[path = "nodes/pages.rs"]
mod pages;

use k8s_openapi::api::core::v1::{ConfigMap, Node};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
};
use kube::{Api, ResourceExt as _};
use pages::page;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use trunkline_sim::ec2::client::SimClient;
use trunkline_sim::ec2::fault::{Fault, FaultKind as Ec2Fault};
use trunkline_sim::ec2::model::{EniSpec, InstanceSpec};
use trunkline_tests::cluster::{Cluster, NAME, Options};
use trunkline_tests::objects::{self, PodSpec, RESOURCE};
use trunkline_tests::{deploy, poll, skipped};

const SOON: Duration = Duration::from_secs(40);
const FINALIZER: &str = "networking.k8s.aws/resource-cleanup";
const CLUSTER_TAG: &str = "cluster.k8s.amazonaws.com/name";
const INSTANCE_TAG: &str = "node.k8s.amazonaws.com/instance_id";
/// The simulated CNI leaves nodes with this label alone.
const NO_CNI: &str = "sim.trunkline.dev/no-cni";

async fn cluster(test: &str, options: Options) -> Option<Cluster> {
    if let Some(why) = Cluster::missing() {
        skipped(test, &why);
        return None;
    }
    Some(Cluster::start(options).await.unwrap())
}

fn cninodes(cluster: &Cluster) -> Api<DynamicObject> {
    let resource = ApiResource {
        group: "vpcresources.k8s.aws".to_owned(),
        version: "v1alpha1".to_owned(),
        api_version: "vpcresources.k8s.aws/v1alpha1".to_owned(),
        kind: "CNINode".to_owned(),
        plural: "cninodes".to_owned(),
    };
    Api::all_with(cluster.admin.clone(), &resource)
}

/// Waits until a CNINode is as `wanted` wants it.
async fn cninode(
    cluster: &Cluster,
    name: &str,
    wanted: impl Fn(&DynamicObject) -> bool,
) -> DynamicObject {
    poll::eventually(&format!("the CNINode {name} is as it should be"), SOON, async || {
        let found = cninodes(cluster).get_opt(name).await.map_err(|error| error.to_string())?;
        let found = found.ok_or("there is none")?;
        if wanted(&found) { Ok(found) } else { Err(serde_json::to_string(&found).unwrap()) }
    })
    .await
    .unwrap()
}

async fn patch_cninode(cluster: &Cluster, name: &str, patch: Value) {
    let params = PatchParams::default();
    cninodes(cluster).patch(name, &params, &Patch::Merge(&patch)).await.unwrap();
}

fn features(cninode: &DynamicObject) -> Vec<&str> {
    let all = cninode.data["spec"]["features"].as_array();
    all.into_iter().flatten().filter_map(|feature| feature["name"].as_str()).collect()
}

/// A node of another kind; returns its instance.
async fn join(cluster: &Cluster, name: &str, labels: &[(&str, &str)]) -> String {
    let instance = cluster.ec2.add_instance(&InstanceSpec::default()).await.unwrap();
    let spec = objects::NodeSpec {
        name: name.to_owned(),
        instance: instance.id.clone(),
        boot_id: "not-booted".to_owned(),
        labels: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
    };
    objects::node(&cluster.admin, &spec).await.unwrap();
    instance.id
}

async fn capacity(cluster: &Cluster, name: &str) -> Option<String> {
    let nodes: Api<Node> = Api::all(cluster.admin.clone());
    let node = nodes.get(name).await.unwrap();
    Some(node.status?.capacity?.get(RESOURCE)?.0.clone())
}

/// Waits until a node's branches are advertised.
async fn advertised(cluster: &Cluster, name: &str) {
    poll::eventually("the capacity is advertised", SOON, async || {
        let capacity = capacity(cluster, name).await;
        if capacity.as_deref() == Some("9") { Ok(()) } else { Err(format!("{capacity:?}")) }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn cnn_1_2_3_6_every_node_has_its_cninode_and_the_finalizer_waits_for_its_enis() {
    let Some(cluster) = cluster("cninodes", Options::default()).await else { return };
    let nodes: Api<Node> = Api::all(cluster.admin.clone());
    // CNN-1, CNN-2.
    let of_1 = cninode(&cluster, "node-1", |c| features(c) == ["SecurityGroupsForPods"]).await;
    let node = nodes.get("node-1").await.unwrap();
    let owner = &of_1.owner_references()[0];
    assert_eq!((&owner.kind, &owner.name), (&"Node".to_owned(), &"node-1".to_owned()));
    assert_eq!((Some(&owner.uid), owner.controller), (node.uid().as_ref(), Some(true)));
    assert_eq!(of_1.labels().get("kubernetes.io/os").map(String::as_str), Some("linux"));
    assert_eq!(of_1.finalizers(), [FINALIZER]);
    let instance = node.spec.unwrap().provider_id.unwrap();
    let instance = instance.rsplit('/').next().unwrap().to_owned();
    let tags = json!({ CLUSTER_TAG: NAME, INSTANCE_TAG: instance });
    assert_eq!(of_1.data["spec"]["tags"], tags);
    let windows = join(&cluster, "windows", &[("kubernetes.io/os", "windows"), (NO_CNI, "")]).await;
    let of_windows = cninode(&cluster, "windows", |_| true).await;
    assert_eq!(of_windows.labels()["kubernetes.io/os"], "windows");
    assert_eq!(of_windows.data["spec"]["tags"][INSTANCE_TAG], windows);
    cluster.join("bare", &InstanceSpec::default(), false).await.unwrap();
    let of_bare = cninode(&cluster, "bare", |_| true).await;
    assert_eq!(of_bare.data["spec"]["tags"][INSTANCE_TAG], "");

    // CNN-3: what is ours is restored, what is not is left as it is.
    let own =
        json!([{ "name": "SecurityGroupsForPods", "value": "" }, { "name": "Own", "value": "x" }]);
    let changed = json!({
        "metadata": { "labels": { "kubernetes.io/os": null, "mine": "1" }, "finalizers": ["example.com/mine"] },
        "spec": { "tags": { CLUSTER_TAG: "another", INSTANCE_TAG: null, "mine": "1" }, "features": own },
    });
    patch_cninode(&cluster, "node-1", changed).await;
    let mended = cninode(&cluster, "node-1", |c| {
        c.finalizers().contains(&FINALIZER.to_owned())
            && c.labels().contains_key("kubernetes.io/os")
            && c.data["spec"]["tags"][INSTANCE_TAG] == instance
    })
    .await;
    assert_eq!(mended.uid(), of_1.uid());
    assert_eq!(mended.data["spec"]["features"], own);
    assert_eq!(mended.labels()["mine"], "1");
    assert!(mended.finalizers().contains(&"example.com/mine".to_owned()));
    let tags = json!({ CLUSTER_TAG: NAME, INSTANCE_TAG: instance, "mine": "1" });
    assert_eq!(mended.data["spec"]["tags"], tags);
    patch_cninode(&cluster, "node-1", json!({ "metadata": { "finalizers": [FINALIZER] } })).await;

    // CNN-6: deleted while its node lives, it is made anew with what it carried, and no pod notices.
    cluster.create(&PodSpec::branch("lives", "node-1")).await.unwrap();
    cluster.running("lives", SOON).await.unwrap();
    let before = cluster.annotated("lives", SOON).await.unwrap();
    cninodes(&cluster).delete("node-1", &DeleteParams::default()).await.unwrap();
    let again = cninode(&cluster, "node-1", |c| c.uid() != of_1.uid()).await;
    assert_eq!(again.data["spec"]["features"], own);
    assert_eq!(again.data["spec"]["tags"], tags);
    assert_eq!(again.finalizers(), [FINALIZER]);
    assert_eq!(cluster.annotated("lives", SOON).await.unwrap(), before);

    // The finalizer (D9, T8): a node that goes has a trunk, and something that an earlier run left.
    let instance = join(&cluster, "goes", &[]).await;
    // In the middle of its set-up: what was begun is finished, so that the trunk goes with the machine.
    cluster.trunk(&instance, SOON).await.unwrap();
    let tags = BTreeMap::from([
        (format!("kubernetes.io/cluster/{NAME}"), "owned".to_owned()),
        ("eks:eni:owner".to_owned(), "eks-vpc-resource-controller".to_owned()),
        (INSTANCE_TAG.to_owned(), instance.clone()),
    ]);
    let left = EniSpec { tags, ..EniSpec::default() };
    let left = cluster.ec2.add_eni(&left).await.unwrap();
    nodes.delete("goes", &DeleteParams::default()).await.unwrap();
    // As the garbage collector does.
    cninodes(&cluster).delete("goes", &DeleteParams::default()).await.unwrap();
    let stays = async |why: &'static str| {
        poll::throughout(why, Duration::from_secs(12), async || {
            match cninodes(&cluster).get_opt("goes").await.map_err(|error| error.to_string())? {
                Some(c) if c.finalizers().contains(&FINALIZER.to_owned()) => Ok(()),
                _ => Err("the finalizer is gone".to_owned()),
            }
        })
        .await
        .unwrap();
    };
    stays("the machine runs, the finalizer stays").await;
    let from = cluster.mark().await.unwrap();
    let refused = Fault::on(
        "DeleteNetworkInterface",
        Ec2Fault::Error { status: 503, code: "Unavailable".to_owned(), message: String::new() },
    );
    let refused = cluster.ec2_fault(&refused).await.unwrap();
    cluster.ec2.terminate_instance(&instance).await.unwrap();
    stays("an ENI is left, the finalizer stays").await;
    // D44: the instance is dead, so what it left is deleted by us, and then the finalizer goes.
    cluster.ec2_struck(&refused, 1).await.unwrap();
    cluster.ec2_heals(&refused).await.unwrap();
    poll::eventually("the CNINode is gone", SOON, async || {
        match cninodes(&cluster).get_opt("goes").await {
            Ok(None) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    assert!(cluster.ec2_state().await.unwrap().eni(&left).is_none());
    let deleted = cluster.calls("DeleteNetworkInterface", from).await.unwrap();
    assert!(deleted.iter().any(|call| call.code.is_none()));
    cluster.finish().await.unwrap();
}

#[tokio::test]
async fn s60_s06_node_2_nodes_that_are_left_alone_refused_or_switched_off_and_on() {
    let Some(mut cluster) = cluster("left alone", Options::default()).await else { return };
    let from = cluster.mark().await.unwrap();
    // Not ours at all; another operating system; custom networking, told by label or by feature.
    let asks = json!([{ "name": "SecurityGroupsForPods", "value": "" }]);
    let custom = json!([
        { "name": "CustomNetworking", "value": "eth1" }, { "name": "SecurityGroupsForPods", "value": "" },
    ]);
    let mut alone = Vec::new();
    alone.push(
        join(&cluster, "auto", &[("eks.amazonaws.com/compute-type", "auto"), (NO_CNI, "")]).await,
    );
    alone.push(join(&cluster, "windows", &[("kubernetes.io/os", "windows"), (NO_CNI, "")]).await);
    alone.push(join(&cluster, "by-label", &[("vpc.amazonaws.com/eniConfig", "pods")]).await);
    alone.push(join(&cluster, "by-feature", &[(NO_CNI, "")]).await);
    cninode(&cluster, "windows", |_| true).await;
    patch_cninode(&cluster, "windows", json!({ "spec": { "features": asks } })).await;
    cninode(&cluster, "by-feature", |_| true).await;
    patch_cninode(&cluster, "by-feature", json!({ "spec": { "features": custom } })).await;
    cninode(&cluster, "by-label", |c| features(c) == ["SecurityGroupsForPods"]).await;
    for name in ["by-label", "by-feature"] {
        let event = cluster.event(name, "Unsupported", "Warning", SOON).await.unwrap();
        assert!(event.message.unwrap().contains("custom networking"));
    }

    // S60: EC2 refuses the trunk for good.
    let refuse = |actions: &[&str]| json!({ "unauthorized": actions.iter().map(|a| json!({ "action": a })).collect::<Vec<_>>() });
    cluster.ec2.set_switches(&refuse(&["CreateNetworkInterface"])).await.unwrap();
    let refused = join(&cluster, "refused", &[]).await;
    let nodes: Api<Node> = Api::all(cluster.admin.clone());
    let uid = nodes.get("refused").await.unwrap().uid().unwrap();
    let event = cluster.event(&uid, "TrunkENICreationFailed", "Warning", SOON).await.unwrap();
    let message = event.message.unwrap();
    assert!(message.contains("UnauthorizedOperation"), "{message}");
    poll::throughout(
        "there is no capacity, and no tight loop",
        Duration::from_secs(10),
        async || match capacity(&cluster, "refused").await.as_deref() {
            None | Some("0") => Ok(()),
            Some(other) => Err(other.to_owned()),
        },
    )
    .await
    .unwrap();
    let tries = cluster.calls("CreateNetworkInterface", from).await.unwrap().len();
    assert!((2..25).contains(&tries), "{tries} tries in 6 s");
    let told = cluster.events_of(&uid).await.unwrap();
    let same =
        told.iter().filter(|e| e.reason.as_deref() == Some("TrunkENICreationFailed")).count();
    assert_eq!(same, 1, "told once: {told:?}");
    cluster.ec2.set_switches(&refuse(&[])).await.unwrap();
    cluster.trunk(&refused, SOON).await.unwrap();
    advertised(&cluster, "refused").await;

    // S06: the CNI's feature goes and comes back.
    let runs = cluster.create(&PodSpec::branch("runs", "node-1")).await.unwrap();
    let ends = cluster.create(&PodSpec::branch("ends", "node-1")).await.unwrap();
    cluster.running("runs", SOON).await.unwrap();
    cluster.running("ends", SOON).await.unwrap();
    let before = cluster.annotated("runs", SOON).await.unwrap();
    patch_cninode(&cluster, "node-1", json!({ "spec": { "features": [] } })).await;
    cluster.restart_coordinator(0).unwrap();
    cluster.led(SOON).await.unwrap();
    cluster.delete("default", "ends", false).await.unwrap();
    cluster.released(&ends.uid().unwrap(), SOON).await.unwrap();
    cluster.create(&PodSpec::branch("new", "node-1")).await.unwrap();
    patch_cninode(&cluster, "node-1", json!({ "spec": { "features": asks } })).await;
    cluster.running("new", SOON).await.unwrap();
    assert_eq!(cluster.annotated("runs", SOON).await.unwrap(), before);
    cluster.running("runs", SOON).await.unwrap();
    assert!(cluster.pod("default", "runs").await.unwrap().unwrap().uid() == runs.uid());

    // Left alone means left alone.
    let state = cluster.ec2_state().await.unwrap();
    let trunks = state.enis.iter().filter(|e| e.interface_type == "trunk").count();
    assert_eq!(trunks, 2, "of node-1 and of the one that was refused at first");
    for instance in &alone {
        assert!(state.trunk_of(instance).is_none());
        assert!(!state.enis.iter().any(|e| e.tags.get(INSTANCE_TAG) == Some(instance)));
    }
    for name in ["auto", "windows", "by-label", "by-feature"] {
        assert_eq!(capacity(&cluster, name).await, None, "{name}");
    }
    assert!(cninodes(&cluster).get_opt("auto").await.unwrap().is_none());
    cluster.finish().await.unwrap();
}

/// Sets `branch-eni-cooldown`, or takes it away.
async fn set_cooldown(cluster: &Cluster, value: Option<&str>) {
    let maps: Api<ConfigMap> = Api::namespaced(cluster.admin.clone(), "kube-system");
    let patch = json!({ "data": { "branch-eni-cooldown": value } });
    maps.patch("amazon-vpc-cni", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
}

#[tokio::test]
async fn s29_t12_rel_6_the_cooldown_is_taken_from_the_cnis_configmap() {
    let Some(cluster) = cluster("cooldown", Options::default()).await else { return };
    let viewer = cluster.viewer().await.unwrap();
    let in_force = async || {
        let text = cluster.trunkline(&viewer, &["status", "-o", "json"]).await.unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["cooldown_ms"].as_u64().unwrap()
    };
    let becomes = async |ms: u64| {
        poll::eventually(&format!("the cooldown is {ms} ms"), SOON, async || {
            let now = in_force().await;
            if now == ms { Ok(()) } else { Err(now) }
        })
        .await
        .unwrap();
    };
    // This run's floor and default are both 2 s; other keys of the map are the CNI's.
    becomes(2_000).await;
    let maps: Api<ConfigMap> = Api::namespaced(cluster.admin.clone(), "kube-system");
    let map = json!({
        "metadata": { "name": "amazon-vpc-cni" },
        "data": { "branch-eni-cooldown": "7", "enable-windows-ipam": "true" },
    });
    let map = serde_json::from_value(map).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
    becomes(7_000).await;
    let nodes: Api<Node> = Api::all(cluster.admin.clone());
    let node = nodes.get("node-1").await.unwrap().uid().unwrap();
    let told = async || {
        let events = cluster.events_of(&node).await.unwrap();
        let mut told: Vec<String> = events
            .into_iter()
            .filter(|e| e.reason.as_deref() == Some("BranchENICoolDownPeriodUpdated"))
            .map(|e| e.message.unwrap_or_default())
            .collect();
        told.sort();
        told
    };
    let first =
        cluster.event(&node, "BranchENICoolDownPeriodUpdated", "Normal", SOON).await.unwrap();
    assert!(first.message.unwrap().ends_with("is 7s"));

    // A changed value applies to deletions from then on.
    let pod = cluster.create(&PodSpec::branch("cools", "node-1")).await.unwrap();
    cluster.running("cools", SOON).await.unwrap();
    cluster.delete("default", "cools", false).await.unwrap();
    cluster.released(&pod.uid().unwrap(), SOON).await.unwrap();
    let at = async |action| cluster.calls(action, 1).await.unwrap().pop().unwrap().mono_ms;
    let rested = at("DeleteNetworkInterface").await - at("DisassociateTrunkInterface").await;
    assert!(rested >= 7_000, "{rested} ms");

    // Unreadable, empty or taken away: what is in force stays. The change after each is the proof that it was read.
    for (value, expected) in [
        (Some("abc"), 7_000),
        (Some("90"), 90_000),
        (Some(""), 90_000),
        (Some("8"), 8_000),
        (None, 8_000),
    ] {
        set_cooldown(&cluster, value).await;
        becomes(expected).await;
    }
    for (value, expected) in [
        ("1", 2_000),
        ("9", 9_000),
        ("-5", 2_000),
        ("1000000000", 3_600_000),
        ("10000000000", 3_600_000),
        ("3", 3_000),
    ] {
        set_cooldown(&cluster, Some(value)).await;
        becomes(expected).await;
    }
    let log = std::fs::read_to_string(cluster.coordinators[0].process.log()).unwrap();
    assert!(log.lines().any(|line| line.contains("WARN")
        && line.contains("branch-eni-cooldown")
        && line.contains("abc")));
    let expected: Vec<String> = {
        let mut all: Vec<_> = ["7s", "1m30s", "8s", "2s", "9s", "2s", "1h0m0s", "3s"]
            .map(|d| format!("branch ENI cool down period is {d}"))
            .to_vec();
        all.sort();
        // The same sentence again within the hour is counted, not written again.
        all.dedup();
        all
    };
    poll::eventually("each change is told once", SOON, async || {
        let told = told().await;
        if told == expected { Ok(()) } else { Err(format!("{told:?}")) }
    })
    .await
    .unwrap();
    let kept = maps.get("amazon-vpc-cni").await.unwrap().data.unwrap();
    assert_eq!(kept["enable-windows-ipam"], "true");
    cluster.finish().await.unwrap();
}

#[tokio::test]
async fn d34_a_node_whose_trunk_is_gone_advertises_no_branches_until_it_has_one_again() {
    let Some(cluster) = cluster("d34", Options::default()).await else { return };
    let viewer = cluster.viewer().await.unwrap();
    advertised(&cluster, "node-1").await;
    let nodes: Api<Node> = Api::all(cluster.admin.clone());
    let node = nodes.get("node-1").await.unwrap();
    let instance = node.spec.unwrap().provider_id.unwrap().rsplit('/').next().unwrap().to_owned();
    let trunk = cluster.trunk(&instance, SOON).await.unwrap();
    let from = cluster.mark().await.unwrap();
    // Somebody deletes it, and EC2 gives no other one at first.
    let refused = json!({ "unauthorized": [{ "action": "CreateNetworkInterface" }] });
    cluster.ec2.set_switches(&refused).await.unwrap();
    cluster.ec2.delete_eni(&trunk).await.unwrap();
    let told = cluster.event("node-1", "TrunkENILost", "Warning", SOON).await.unwrap();
    assert!(told.message.unwrap().contains(&trunk));
    poll::eventually("no branches are advertised", SOON, async || {
        let capacity = capacity(&cluster, "node-1").await;
        if capacity.as_deref() == Some("0") { Ok(()) } else { Err(format!("{capacity:?}")) }
    })
    .await
    .unwrap();
    let shown = cluster.trunkline(&viewer, &["node", "node-1", "-o", "json"]).await.unwrap();
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["row"]["state"], "waiting");
    assert!(shown["row"]["why"]["sentence"].as_str().is_some_and(|s| !s.is_empty()), "{shown}");
    let waits = cluster.create(&PodSpec::branch("waits", "node-1")).await.unwrap();
    let uid = waits.uid().unwrap();
    let told = cluster.event(&uid, "BranchENIWaiting", "Normal", SOON).await.unwrap();
    assert!(told.message.unwrap().contains("trunk"));
    cluster.ec2.set_switches(&json!({ "unauthorized": [] })).await.unwrap();
    assert_ne!(cluster.trunk(&instance, SOON).await.unwrap(), trunk);
    advertised(&cluster, "node-1").await;
    cluster.running("waits", SOON).await.unwrap();
    let made = cluster.calls("CreateNetworkInterface", from).await.unwrap();
    let trunks = made.iter().filter(|call| {
        call.code.is_none() && call.params.get("InterfaceType").is_some_and(|kind| kind == "trunk")
    });
    assert_eq!(trunks.count(), 1, "one trunk in its place");
    cluster.finish().await.unwrap();
}

#[tokio::test]
async fn s75_crds_that_are_absent_or_older_at_first_are_waited_for() {
    let options = Options { agents: false, ..Options::default().coordinators(0) };
    let Some(mut cluster) = cluster("s75", options).await else { return };
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.admin.clone());
    for name in ["cninodes.vpcresources.k8s.aws", "securitygrouppolicies.vpcresources.k8s.aws"] {
        crds.delete(name, &DeleteParams::default()).await.unwrap();
    }
    poll::eventually("the CRDs are gone", SOON, async || {
        match cninodes(&cluster).list(&ListParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    cluster.add_coordinator().await.unwrap();
    cluster.start_agent("node-1").await.unwrap();
    poll::throughout("both wait and stay", Duration::from_secs(8), async || {
        cluster.coordinators[0].process.must_run().map_err(|error| error.to_string())?;
        let agent = cluster.agents.get_mut("node-1").unwrap();
        agent.process.must_run().map_err(|error| error.to_string())
    })
    .await
    .unwrap();
    let health = SimClient::new(&cluster.coordinators[0].health);
    let answer =
        health.send(http::Method::GET, "/readyz?verbose", &[], String::new()).await.unwrap();
    assert_ne!(answer.status, 200);
    assert!(answer.body.contains("CNINode"), "{}", answer.body);
    an_older_crd_is_not_ours(&mut cluster).await;
    deploy::apply(&cluster.admin).await.unwrap();
    cluster.led(SOON).await.unwrap();
    cluster.agents_ready(SOON).await.unwrap();
    cluster.create(&PodSpec::branch("served", "node-1")).await.unwrap();
    cluster.running("served", SOON).await.unwrap();
    cluster.finish().await.unwrap();
}

/// A CNINode CRD that serves an older version only, with an object in it: our version is still waited for, and the shipped
/// CRD cannot drop what is stored. It can once it serves both, and the old object is read in ours.
async fn an_older_crd_is_not_ours(cluster: &mut Cluster) {
    let crds: Api<CustomResourceDefinition> = Api::all(cluster.admin.clone());
    let name = "cninodes.vpcresources.k8s.aws";
    let documents = deploy::documents().unwrap().into_iter().map(|(_, document)| document);
    let shipped = documents.into_iter().find(|d| d["metadata"]["name"] == name).unwrap();
    let mut older: CustomResourceDefinition = serde_json::from_value(shipped).unwrap();
    let ours = older.spec.versions.clone();
    "v1alpha0".clone_into(&mut older.spec.versions[0].name);
    poll::eventually("the older CRD is there", SOON, async || {
        crds.create(&PostParams::default(), &older).await.map(drop).map_err(|e| e.to_string())
    })
    .await
    .unwrap();
    let resource = ApiResource {
        group: "vpcresources.k8s.aws".to_owned(),
        version: "v1alpha0".to_owned(),
        api_version: "vpcresources.k8s.aws/v1alpha0".to_owned(),
        kind: "CNINode".to_owned(),
        plural: "cninodes".to_owned(),
    };
    let old: Api<DynamicObject> = Api::all_with(cluster.admin.clone(), &resource);
    let mut object = DynamicObject::new("node-1", &resource);
    object.data = json!({ "spec": { "features": [{ "name": "Own", "value": "kept" }] } });
    poll::eventually("the older version is served", SOON, async || {
        old.create(&PostParams::default(), &object).await.map(drop).map_err(|e| e.to_string())
    })
    .await
    .unwrap();
    poll::throughout("both wait and stay", Duration::from_secs(5), async || {
        cluster.coordinators[0].process.must_run().map_err(|error| error.to_string())?;
        let (code, body) = page(&cluster.coordinators[0].health, "/readyz?verbose").await;
        if code == 200 { Err(body) } else { Ok(()) }
    })
    .await
    .unwrap();
    let mut both = crds.get(name).await.unwrap();
    both.spec.versions[0].storage = false;
    both.spec.versions.extend(ours);
    crds.replace(name, &PostParams::default(), &both).await.unwrap();
    let seen = cninode(cluster, "node-1", |c| c.finalizers().contains(&FINALIZER.to_owned())).await;
    assert!(features(&seen).contains(&"Own"), "what the older version stored is kept");
    // As an administrator migrates: every object was written anew, so the old version is stored no more.
    let stored = json!({ "status": { "storedVersions": ["v1alpha1"] } });
    crds.patch_status(name, &PatchParams::default(), &Patch::Merge(&stored)).await.unwrap();
}
