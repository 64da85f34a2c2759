//! The judges of the invariants, tried on wrongs that are committed on purpose: an alarm that cannot ring proves nothing.
//!
//! No agent and no coordinator runs here; the test itself calls EC2 under a coordinator's name.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test's helpers")]

use kube::ResourceExt as _;
use std::time::Duration;
use trunkline_sim::ec2::config::subnet_id;
use trunkline_sim::ec2::model::EniSpec;
use trunkline_tests::cluster::{CALLERS, Cluster, Options};
use trunkline_tests::invariants::{self, Violation};
use trunkline_tests::objects::PodSpec;
use trunkline_tests::{poll, skipped};

const SOON: Duration = Duration::from_secs(30);

async fn bare(test: &str) -> Option<Cluster> {
    if let Some(why) = Cluster::missing_of(&["trunkline-sim"]) {
        skipped(test, &why);
        return None;
    }
    let options = Options {
        coordinators: 0,
        agents: false,
        ec2_flags: vec!["--no-lag".to_owned()],
        ..Options::default()
    };
    Some(Cluster::start(options).await.unwrap())
}

async fn call(
    cluster: &Cluster,
    action: &str,
    params: &[(&str, &str)],
) -> trunkline_sim::ec2::client::Answer {
    let answer = cluster.ec2.query(&format!("{CALLERS}0"), action, params).await.unwrap();
    assert_eq!(answer.status, 200, "{action}: {}", answer.body);
    answer
}

/// Makes an ENI as a coordinator would; `kind` is `trunk` or empty.
async fn create(cluster: &Cluster, kind: &str, uid: &str, instance: &str) -> String {
    let subnet = subnet_id(1);
    let tags = [
        ("kubernetes.io/cluster/demo", "owned"),
        ("eks:eni:owner", "eks-vpc-resource-controller"),
        ("node.k8s.amazonaws.com/instance_id", instance),
        ("trunkline.dev/pod-uid", uid),
        ("trunkline.dev/index", "0"),
    ];
    let mut params = vec![
        ("SubnetId".to_owned(), subnet),
        ("TagSpecification.1.ResourceType".to_owned(), "network-interface".to_owned()),
    ];
    if kind == "trunk" {
        params.push(("InterfaceType".to_owned(), kind.to_owned()));
    }
    for (number, (key, value)) in tags.iter().filter(|(_, value)| !value.is_empty()).enumerate() {
        params.push((format!("TagSpecification.1.Tag.{}.Key", number + 1), (*key).to_owned()));
        params.push((format!("TagSpecification.1.Tag.{}.Value", number + 1), (*value).to_owned()));
    }
    let params: Vec<_> = params.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    let answer = call(cluster, "CreateNetworkInterface", &params).await;
    answer.element("networkInterfaceId").unwrap().to_owned()
}

async fn associate(cluster: &Cluster, branch: &str, trunk: &str, vlan: &str) -> String {
    let params = [("BranchInterfaceId", branch), ("TrunkInterfaceId", trunk), ("VlanId", vlan)];
    call(cluster, "AssociateTrunkInterface", &params)
        .await
        .element("associationId")
        .unwrap()
        .to_owned()
}

fn rules(violations: &[Violation]) -> Vec<&'static str> {
    let mut rules: Vec<_> = violations.iter().map(|violation| violation.rule).collect();
    rules.sort_unstable();
    rules.dedup();
    rules
}

async fn always(cluster: &Cluster) -> Vec<Violation> {
    cluster.violations().await.unwrap()
}

async fn recorded(cluster: &Cluster, uid: &str, gone: bool) {
    poll::eventually("the history has it", SOON, async || {
        let states = cluster.history.of(uid);
        let last = states.last().ok_or("not seen")?;
        if last.deleted == gone { Ok(()) } else { Err("not yet") }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn wrongs_that_are_committed_on_purpose_are_found() {
    let Some(cluster) = bare("oracle").await else {
        return;
    };
    let node = cluster.ec2_state().await.unwrap().instances[0].id.clone();
    let trunk = create(&cluster, "trunk", "", &node).await;
    let device =
        [("NetworkInterfaceId", trunk.as_str()), ("InstanceId", &node), ("DeviceIndex", "2")];
    call(&cluster, "AttachNetworkInterface", &device).await;
    assert_eq!(always(&cluster).await, []);

    // I4: a live pod asks, and neither an annotation nor an event is there.
    let pod = cluster.create(&PodSpec::branch("p", "node-1")).await.unwrap();
    let uid = pod.uid().unwrap();
    recorded(&cluster, &uid, false).await;
    let evidence = cluster.evidence().await.unwrap();
    assert_eq!(rules(&invariants::at_rest(&evidence)), ["I4"]);
    drop(evidence);

    // I1, by disassociation: the pod lives.
    let branch = create(&cluster, "", &uid, &node).await;
    let association = associate(&cluster, &branch, &trunk, "7").await;
    assert_eq!(always(&cluster).await, []);
    call(&cluster, "DisassociateTrunkInterface", &[("AssociationId", &association)]).await;
    assert_eq!(rules(&always(&cluster).await), ["I1"]);

    // I2, by a VLAN without rest, and D41, by a second interface for one pod.
    let second = create(&cluster, "", &uid, &node).await;
    assert_eq!(rules(&always(&cluster).await), ["D41", "I1"]);
    let stranger = create(&cluster, "", "11111111-2222-3333-4444-555555555555", &node).await;
    associate(&cluster, &stranger, &trunk, "7").await;
    assert_eq!(rules(&always(&cluster).await), ["D41", "I1", "I2"]);

    // I3: an interface of a pod that does not exist, and two of one pod.
    let evidence = cluster.evidence().await.unwrap();
    let open = invariants::at_rest(&evidence);
    let says = |what: &str| open.iter().any(|v| v.rule == "I3" && v.seen.contains(what));
    assert!(says(&stranger) && says(&second), "{open:?}");
}

#[tokio::test]
async fn a_release_of_a_gone_pod_is_right_only_after_its_node_let_go() {
    let Some(cluster) = bare("oracle, node").await else {
        return;
    };
    let node = cluster.ec2_state().await.unwrap().instances[0].id.clone();
    // A plain pod: its cgroup and process exist without any branch.
    let pod = cluster.create(&PodSpec::branch("p", "node-1").plain()).await.unwrap();
    let uid = pod.uid().unwrap();
    cluster.running("p", SOON).await.unwrap();
    let early = create(&cluster, "", &uid, &node).await;
    cluster.delete("default", "p", true).await.unwrap();
    recorded(&cluster, &uid, true).await;
    call(&cluster, "DeleteNetworkInterface", &[("NetworkInterfaceId", &early)]).await;
    let found = always(&cluster).await;
    assert_eq!(rules(&found), ["I1"], "{found:?}");
    assert!(found[0].seen.contains("node-1 still had"), "{found:?}");

    poll::eventually("the node let go", SOON, async || {
        let pods = cluster.nodes.pods().await.map_err(|error| error.to_string())?;
        if pods.iter().any(|pod| pod.uid == uid) { Err("still there".to_owned()) } else { Ok(()) }
    })
    .await
    .unwrap();
    let late = create(&cluster, "", &uid, &node).await;
    call(&cluster, "DeleteNetworkInterface", &[("NetworkInterfaceId", &late)]).await;
    assert_eq!(always(&cluster).await.len(), found.len(), "the second delete was right");
}

#[tokio::test]
async fn foreign_interfaces_trunks_and_cooldowns_are_watched() {
    let Some(cluster) = bare("oracle, foreign").await else {
        return;
    };
    let node = cluster.ec2_state().await.unwrap().instances[0].id.clone();
    let foreign = cluster.ec2.add_eni(&EniSpec::default()).await.unwrap();
    call(&cluster, "DeleteNetworkInterface", &[("NetworkInterfaceId", &foreign)]).await;
    let found = always(&cluster).await;
    // It carries no UID either, which is a wrong of its own.
    assert_eq!(rules(&found), ["I1", "I3"], "{found:?}");

    // A branch of a pod that never was: gone at once after it was parted.
    let trunk = create(&cluster, "trunk", "", &node).await;
    let branch = create(&cluster, "", "11111111-2222-3333-4444-555555555555", &node).await;
    let association = associate(&cluster, &branch, &trunk, "9").await;
    call(&cluster, "DisassociateTrunkInterface", &[("AssociationId", &association)]).await;
    call(&cluster, "DeleteNetworkInterface", &[("NetworkInterfaceId", &branch)]).await;
    assert_eq!(rules(&always(&cluster).await), ["I1", "I2", "I3"]);

    // The trunk carried a branch and its instance lives.
    let before = always(&cluster).await.len();
    call(&cluster, "DeleteNetworkInterface", &[("NetworkInterfaceId", &trunk)]).await;
    let found = always(&cluster).await;
    assert_eq!(found.len(), before + 1, "{found:?}");
    assert!(found.iter().any(|v| v.rule == "I1" && v.seen.contains(&trunk)));
}
