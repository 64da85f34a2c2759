//! Allocation on the whole program: lost replies, refused writes, full subnets and trunks, nodes that come late.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test's helpers")]

#[path = "allocation/room.rs"]
mod room;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;
use trunkline_sim::ec2::config::{group_id, subnet_id};
use trunkline_sim::ec2::fault::{Fault, FaultKind};
use trunkline_sim::ec2::model::{Effect, InstanceSpec};
use trunkline_sim::proxy::model::{FaultKind as ApiFault, FaultSpec, Match};
use trunkline_tests::cluster::ask::message;
use trunkline_tests::cluster::{Cluster, Options};
use trunkline_tests::invariants::evidence::POD_UID;
use trunkline_tests::objects::{self, ANNOTATION, PodSpec, RESOURCE};
use trunkline_tests::{deploy, poll, skipped};

const SOON: Duration = Duration::from_secs(40);
const CREATE: &str = "CreateNetworkInterface";
const ASSOCIATE: &str = "AssociateTrunkInterface";

async fn cluster(test: &str, options: Options) -> Option<Cluster> {
    if let Some(why) = Cluster::missing() {
        skipped(test, &why);
        return None;
    }
    Some(Cluster::start(options).await.unwrap())
}

/// Creates a pod and returns its UID.
async fn pod(cluster: &Cluster, name: &str, node: &str) -> String {
    cluster.create(&PodSpec::branch(name, node)).await.unwrap().uid().unwrap()
}

/// Deletes pods and waits until their ENIs are gone.
async fn done_with(cluster: &Cluster, names: &[String]) {
    let mut uids = Vec::new();
    for name in names {
        uids.push(cluster.pod("default", name).await.unwrap().unwrap().uid().unwrap());
        cluster.delete("default", name, false).await.unwrap();
    }
    for uid in uids {
        cluster.released(&uid, SOON).await.unwrap();
    }
}

/// Every ENI that was ever made for this pod.
async fn made_for(cluster: &Cluster, uid: &str) -> Vec<String> {
    let log = cluster.ec2.log(1).await.unwrap();
    let effects = log.into_iter().flat_map(|call| call.effects);
    effects
        .filter_map(|effect| match effect {
            Effect::EniCreated { eni, tags, .. } => {
                tags.get(POD_UID).is_some_and(|tag| tag == uid).then_some(eni)
            }
            _ => None,
        })
        .collect()
}

/// Waits until a fault has struck at least so often.
async fn fired(cluster: &Cluster, id: &str, times: u64) {
    poll::eventually(&format!("{id} struck {times} times"), SOON, async || {
        let faults = cluster.ec2.faults().await.map_err(|error| error.to_string())?;
        let hits = faults.iter().find(|(fault, _)| fault.id == id).map(|(_, fired)| *fired);
        if hits >= Some(times) { Ok(()) } else { Err(format!("{hits:?}")) }
    })
    .await
    .unwrap();
}

fn error(code: &str, text: &str) -> FaultKind {
    FaultKind::Error { status: 400, code: code.to_owned(), message: text.to_owned() }
}

// === EC2's replies ===

#[tokio::test]
async fn s31_s43_s44_t3_one_eni_whatever_ec2_replied() {
    let Some(mut cluster) = cluster("s44", Options::default()).await else { return };
    // Once: the SDK asks again by itself. Five times: its attempts are used up and we ask again.
    for (action, name) in [(CREATE, "s44"), (ASSOCIATE, "t3")] {
        for times in [1, 5] {
            let name = format!("{name}-{times}");
            let lost = Fault::on(action, FaultKind::LoseReply { stall_ms: 0 }).times(times);
            let id = cluster.ec2.inject(&lost).await.unwrap();
            let uid = pod(&cluster, &name, "node-1").await;
            cluster.running(&name, SOON).await.unwrap();
            fired(&cluster, &id, times).await;
            let branch = cluster.annotated(&name, SOON).await.unwrap();
            assert_eq!(made_for(&cluster, &uid).await, [branch[0].eni_id.clone()], "{name}");
            let state = cluster.ec2_state().await.unwrap();
            let association = state.eni(&branch[0].eni_id).unwrap().association.clone().unwrap();
            assert_eq!(
                (association.vlan, association.id),
                (branch[0].vlan, branch[0].association.clone())
            );
        }
    }
    s43_a_new_eni_that_is_not_found_is_asked_for_again(&cluster).await;
    let names = ["s44-1", "s44-5", "t3-1", "t3-5", "s43"].map(str::to_owned);
    s31_s44_a_failed_set_up_goes_on_with_its_trunk(&mut cluster).await;
    done_with(&cluster, &names).await;
    cluster.finish().await.unwrap();
}

async fn s43_a_new_eni_that_is_not_found_is_asked_for_again(cluster: &Cluster) {
    let text = "The networkInterface ID 'eni-0' does not exist";
    let mut lag = Fault::on(ASSOCIATE, error("InvalidNetworkInterfaceID.NotFound", text));
    lag.for_ms = Some(5_000);
    let id = cluster.ec2.inject(&lag).await.unwrap();
    let uid = pod(cluster, "s43", "node-1").await;
    cluster.running("s43", SOON).await.unwrap();
    fired(cluster, &id, 2).await;
    let branch = cluster.annotated("s43", SOON).await.unwrap();
    assert_eq!(made_for(cluster, &uid).await, [branch[0].eni_id.clone()]);
}

/// After the trunk was created, attached, adopted; and with lost replies instead of errors.
async fn s31_s44_a_failed_set_up_goes_on_with_its_trunk(cluster: &mut Cluster) {
    let broken = || FaultKind::Error {
        status: 500,
        code: "InternalError".to_owned(),
        message: String::new(),
    };
    let commit = || FaultKind::CommitThenError { status: 500, code: "InternalError".to_owned() };
    let lost = || FaultKind::LoseReply { stall_ms: 0 };
    let cases = [
        ("created", CREATE, commit(), 5),
        ("unattached", "AttachNetworkInterface", broken(), 5),
        ("attached", "AttachNetworkInterface", commit(), 5),
        ("described", "DescribeSubnets", broken(), 5),
        ("marked", "ModifyNetworkInterfaceAttribute", broken(), 5),
        ("lost-create", CREATE, lost(), 1),
        ("lost-creates", CREATE, lost(), 5),
        ("lost-attach", "AttachNetworkInterface", lost(), 5),
    ];
    for (name, action, kind, times) in cases {
        let node = format!("node-{name}");
        // A subnet of its own, whose description is not known from another node.
        let id = cluster.ec2.inject(&Fault::on(action, kind).times(times)).await.unwrap();
        let subnet = if name == "described" { subnet_id(2) } else { subnet_id(1) };
        let spec = InstanceSpec { subnet, ..InstanceSpec::default() };
        let instance = cluster.join(&node, &spec, true).await.unwrap();
        let trunk = cluster.trunk(&instance, SOON).await.unwrap();
        cluster.event(&node, "NodeTrunkInitiated", "Normal", SOON).await.unwrap();
        fired(cluster, &id, 1).await;
        let log = cluster.ec2.log(1).await.unwrap();
        let made: Vec<_> = log
            .iter()
            .flat_map(|call| &call.effects)
            .filter_map(|effect| match effect {
                Effect::EniCreated { eni, interface_type, tags, .. }
                    if interface_type == "trunk"
                        && tags.get("node.k8s.amazonaws.com/instance_id") == Some(&instance) =>
                {
                    Some(eni.clone())
                }
                _ => None,
            })
            .collect();
        assert_eq!(made, [trunk], "{name}: one trunk");
        cluster.ec2.clear_faults(Some(&id)).await.unwrap();
    }
    cluster.start_agent("node-attached").await.unwrap();
    pod(cluster, "s31", "node-attached").await;
    cluster.running("s31", SOON).await.unwrap();
}

// === the API server's replies ===

#[tokio::test]
async fn t2_s46_s47_s41_s37_writes_that_are_lost_refused_or_undone() {
    let Some(cluster) = cluster("t2", Options::default().proxied()).await else { return };
    t2_a_lost_reply_to_the_annotation_is_read_back(&cluster).await;
    s47_a_forbidden_annotation_is_written_later_with_the_same_eni(&cluster).await;
    s46_a_refused_annotation_keeps_one_eni(&cluster).await;
    s41_the_groups_of_all_matching_policies_are_joined(&cluster).await;
    s37_capacity_comes_back(&cluster).await;
    cluster.finish().await.unwrap();
}

async fn t2_a_lost_reply_to_the_annotation_is_read_back(cluster: &Cluster) {
    let proxy = cluster.proxy.as_ref().unwrap();
    let from = cluster.mark().await.unwrap();
    let patch = Match::request("PATCH", "/namespaces/default/pods/t2");
    let lost = proxy.add(&FaultSpec::times(patch, ApiFault::LostReply, 1)).await.unwrap();
    let uid = pod(cluster, "t2", "node-1").await;
    cluster.running("t2", SOON).await.unwrap();
    assert_eq!(proxy.hits(lost).await.unwrap(), 1);
    let eni = cluster.annotated("t2", SOON).await.unwrap()[0].eni_id.clone();
    assert_eq!(made_for(cluster, &uid).await, std::slice::from_ref(&eni));
    assert_eq!(cluster.calls("DisassociateTrunkInterface", from).await.unwrap(), []);
    assert!(cluster.ec2_state().await.unwrap().eni(&eni).unwrap().association.is_some());
    let warned = cluster.events_of(&uid).await.unwrap();
    let warned = warned.iter().filter(|e| e.reason.as_deref() == Some("BranchENIAnnotationFailed"));
    assert_eq!(warned.count(), 0);
    done_with(cluster, &["t2".to_owned()]).await;
}

/// Waits until RBAC answers the coordinator's own token like this.
async fn may_patch_pods(cluster: &Cluster, allowed: bool) {
    let token = std::fs::read_to_string(cluster.coordinators[0].api_token()).unwrap();
    let reviews: Api<SelfSubjectAccessReview> = Api::all(cluster.plane.client(&token).unwrap());
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                namespace: Some("default".to_owned()),
                verb: Some("patch".to_owned()),
                resource: Some("pods".to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    poll::eventually(&format!("RBAC says {allowed}"), SOON, async || {
        let answer = reviews.create(&PostParams::default(), &review).await;
        let answer = answer.map_err(|error| error.to_string())?.status.map(|s| s.allowed);
        if answer == Some(allowed) { Ok(()) } else { Err(format!("{answer:?}")) }
    })
    .await
    .unwrap();
}

async fn s47_a_forbidden_annotation_is_written_later_with_the_same_eni(cluster: &Cluster) {
    let roles: Api<ClusterRole> = Api::all(cluster.admin.clone());
    let shipped = roles.get(deploy::COORDINATOR).await.unwrap();
    let mut less = shipped.clone();
    for rule in less.rules.iter_mut().flatten() {
        if rule.resources.as_ref().is_some_and(|all| all.iter().any(|one| one == "pods")) {
            rule.verbs.retain(|verb| verb != "patch");
        }
    }
    assert_ne!(less, shipped);
    roles.replace(deploy::COORDINATOR, &PostParams::default(), &less).await.unwrap();
    may_patch_pods(cluster, false).await;
    let uid = pod(cluster, "s47", "node-1").await;
    let told = cluster.event(&uid, "BranchENIAnnotationFailed", "Warning", SOON).await.unwrap();
    assert!(message(&told).contains("forbidden"), "{}", message(&told));
    let made = made_for(cluster, &uid).await;
    assert_eq!(made.len(), 1);
    let mut again = roles.get(deploy::COORDINATOR).await.unwrap();
    again.rules = shipped.rules;
    roles.replace(deploy::COORDINATOR, &PostParams::default(), &again).await.unwrap();
    may_patch_pods(cluster, true).await;
    assert_eq!(cluster.annotated("s47", SOON).await.unwrap()[0].eni_id, made[0]);
    assert_eq!(made_for(cluster, &uid).await, made);
}

async fn apply(cluster: &Cluster, object: Value) -> DynamicObject {
    deploy::apply_one(&cluster.admin, serde_json::from_value(object).unwrap()).await.unwrap()
}

async fn s46_a_refused_annotation_keeps_one_eni(cluster: &Cluster) {
    objects::namespace(&cluster.admin, "closed").await.unwrap();
    let probe =
        PodSpec { namespace: "closed".to_owned(), node: None, ..PodSpec::branch("probe", "") };
    cluster.create(&probe.plain()).await.unwrap();
    let kind = |kind: &str, spec: Value| {
        json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": { "name": "nobody-changes-pods" }, "spec": spec })
    };
    let rules = json!([{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"] }]);
    let refusal = json!([{ "expression": "false", "message": "the auditors are in the house" }]);
    let policy = json!({ "failurePolicy": "Fail", "matchConstraints": { "resourceRules": rules }, "validations": refusal });
    apply(cluster, kind("ValidatingAdmissionPolicy", policy)).await;
    let here = json!({ "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "closed" } } });
    let binding = json!({ "policyName": "nobody-changes-pods", "validationActions": ["Deny"], "matchResources": here });
    let binding = apply(cluster, kind("ValidatingAdmissionPolicyBinding", binding)).await;
    let pods: Api<Pod> = Api::namespaced(cluster.admin.clone(), "closed");
    poll::eventually("the policy is in force", SOON, async || {
        let patch = json!({ "metadata": { "labels": { "touched": "yes" } } });
        match pods.patch("probe", &PatchParams::default(), &Patch::Merge(&patch)).await {
            Ok(_) => Err("patched"),
            Err(_) => Ok(()),
        }
    })
    .await
    .unwrap();

    let refused = PodSpec { namespace: "closed".to_owned(), ..PodSpec::branch("s46", "node-1") };
    let uid = cluster.create(&refused).await.unwrap().uid().unwrap();
    let told = cluster.event(&uid, "BranchENIAnnotationFailed", "Warning", SOON).await.unwrap();
    assert!(message(&told).contains("the auditors are in the house"), "{}", message(&told));
    pod(cluster, "s46-elsewhere", "node-1").await;
    cluster.running("s46-elsewhere", SOON).await.unwrap();
    let proxy = cluster.proxy.as_ref().unwrap();
    poll::eventually("the annotation was tried six times", SOON, async || {
        let log = proxy.log(1).await.map_err(|error| error.to_string())?;
        let path = "/api/v1/namespaces/closed/pods/s46";
        let tries = log.iter().filter(|r| r.method == "PATCH" && r.path == path).count();
        if tries >= 6 { Ok(()) } else { Err(format!("{tries}")) }
    })
    .await
    .unwrap();
    let made = made_for(cluster, &uid).await;
    assert_eq!(made.len(), 1);
    let told = cluster.events_of(&uid).await.unwrap();
    let told = told.iter().filter(|e| e.reason.as_deref() == Some("BranchENIAnnotationFailed"));
    assert_eq!(told.count(), 1, "the same refusal is told once");

    deploy_delete(cluster, &binding).await;
    poll::eventually("the annotation is written", SOON, async || {
        let pod = pods.get("s46").await.map_err(|error| error.to_string())?;
        let text = pod.annotations().get(ANNOTATION).ok_or("not yet")?;
        if text.contains(&made[0]) { Ok(()) } else { Err(text.clone()) }
    })
    .await
    .unwrap();
    assert_eq!(made_for(cluster, &uid).await, made);
    cluster.delete("closed", "probe", true).await.unwrap();
}

async fn deploy_delete(cluster: &Cluster, object: &DynamicObject) {
    let gvk = kube::core::GroupVersionKind::try_from(object.types.as_ref().unwrap()).unwrap();
    let (resource, _) = kube::discovery::pinned_kind(&cluster.admin, &gvk).await.unwrap();
    let api: Api<DynamicObject> = Api::all_with(cluster.admin.clone(), &resource);
    api.delete(&object.name_any(), &DeleteParams::default()).await.unwrap();
}

async fn s41_the_groups_of_all_matching_policies_are_joined(cluster: &Cluster) {
    objects::namespace(&cluster.admin, "groups").await.unwrap();
    objects::account(&cluster.admin, "groups", "robot", &[("team", "red")]).await.unwrap();
    let policy = |name: &str, spec: Value| {
        json!({ "apiVersion": "vpcresources.k8s.aws/v1beta1", "kind": "SecurityGroupPolicy",
            "metadata": { "namespace": "groups", "name": name }, "spec": spec })
    };
    let pods = |value: &str| json!({ "matchLabels": { "tier": value } });
    let accounts = |value: &str| json!({ "matchLabels": { "team": value } });
    let ids =
        |ids: &[u8]| json!({ "groupIds": ids.iter().map(|n| group_id(*n)).collect::<Vec<_>>() });
    for (name, spec) in [
        ("a", json!({ "podSelector": pods("web"), "securityGroups": ids(&[6, 3]) })),
        ("b", json!({ "serviceAccountSelector": accounts("red"), "securityGroups": ids(&[5, 3]) })),
        (
            "c",
            json!({ "podSelector": pods("web"), "serviceAccountSelector": accounts("red"),
            "securityGroups": ids(&[4, 6]) }),
        ),
        ("d", json!({ "securityGroups": ids(&[9]) })),
        (
            "e",
            json!({ "podSelector": pods("web"), "serviceAccountSelector": accounts("blue"),
            "securityGroups": ids(&[8]) }),
        ),
    ] {
        apply(cluster, policy(name, spec)).await;
    }
    let spec = PodSpec {
        namespace: "groups".to_owned(),
        account: "robot".to_owned(),
        ..PodSpec::branch("s41", "node-1")
    };
    let uid = cluster.create(&spec.label("tier", "web")).await.unwrap().uid().unwrap();
    let told = cluster.event(&uid, "SecurityGroupRequested", "Normal", SOON).await.unwrap();
    let union = [6, 3, 5, 4].map(group_id);
    assert!(message(&told).contains(&format!("[{}]", union.join(", "))), "{}", message(&told));
    cluster.event(&uid, "ResourceAllocated", "Normal", SOON).await.unwrap();
    let made = made_for(cluster, &uid).await;
    let groups: BTreeSet<_> =
        cluster.ec2_state().await.unwrap().eni(&made[0]).unwrap().groups.iter().cloned().collect();
    assert_eq!(groups, BTreeSet::from(union));
    let log = std::fs::read_to_string(cluster.coordinators[0].process.log()).unwrap();
    let skips = |line: &&str| line.contains("left out") && line.contains("namespace=groups");
    let skips: Vec<_> = log.lines().filter(skips).collect();
    assert!(!skips.is_empty() && skips.iter().all(|line| line.contains("policy=d")), "{skips:?}");
}

async fn s37_capacity_comes_back(cluster: &Cluster) {
    let from = cluster.mark().await.unwrap();
    let nodes: Api<Node> = Api::all(cluster.admin.clone());
    for wiped in [json!("0"), Value::Null] {
        let patch = json!({ "status": { "capacity": { RESOURCE: wiped } } });
        nodes.patch_status("node-1", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
        poll::eventually("the capacity is back, allocatable too", SOON, async || {
            let node = nodes.get("node-1").await.map_err(|error| error.to_string())?;
            let status = node.status.unwrap_or_default();
            let of = |map: Option<std::collections::BTreeMap<String, _>>| {
                map.and_then(|all| all.get(RESOURCE).cloned())
                    .map(|q: k8s_openapi::apimachinery::pkg::api::resource::Quantity| q.0)
            };
            let seen = (of(status.capacity), of(status.allocatable));
            let nine = Some("9".to_owned());
            if seen == (nine.clone(), nine) { Ok(()) } else { Err(format!("{seen:?}")) }
        })
        .await
        .unwrap();
    }
    for action in [CREATE, "DisassociateTrunkInterface", "DeleteNetworkInterface"] {
        assert_eq!(cluster.calls(action, from).await.unwrap(), [], "{action}");
    }
}
