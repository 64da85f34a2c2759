//! `deploy/` on a real API server: everything is accepted as it is, and the shipped roles allow exactly what they should
//! (S79).
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test's helpers")]
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use kube::api::{Api, DynamicObject, ListParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use trunkline_tests::control_plane::{self, ControlPlane, Options};
use trunkline_tests::{deploy, objects, skipped, tokens};

struct Applied {
    plane: ControlPlane,
    admin: Client,
    objects: Vec<DynamicObject>,
    _folder: tempfile::TempDir,
}

async fn applied(test: &str) -> Option<Applied> {
    if let Err(why) = control_plane::assets() {
        skipped(test, &why.to_string());
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let plane = ControlPlane::start(folder.path(), Options::default()).await.unwrap();
    let admin = plane.admin().unwrap();
    let objects = deploy::apply(&admin).await.unwrap();
    Some(Applied { plane, admin, objects, _folder: folder })
}

/// Asks the API server's authorizer about a ServiceAccount of ours.
async fn can(admin: &Client, account: &str, verb: &str, what: &Resource) -> bool {
    let review: SubjectAccessReview = serde_json::from_value(json!({ "spec": {
        "user": format!("system:serviceaccount:{}:{account}", deploy::NAMESPACE),
        "groups": ["system:serviceaccounts", format!("system:serviceaccounts:{}", deploy::NAMESPACE),
            "system:authenticated"],
        "resourceAttributes": {
            "verb": verb, "group": what.group, "resource": what.plural, "subresource": what.subresource,
            "namespace": what.namespace, "name": what.name,
        },
    }}))
    .unwrap();
    let reviews: Api<SubjectAccessReview> = Api::all(admin.clone());
    reviews.create(&PostParams::default(), &review).await.unwrap().status.unwrap().allowed
}

struct Resource {
    group: String,
    plural: String,
    subresource: String,
    namespace: String,
    name: String,
}

/// Asks about a non-resource URL.
async fn may(admin: &Client, account: &str, verb: &str, path: &str) -> bool {
    let review: SubjectAccessReview = serde_json::from_value(json!({ "spec": {
        "user": format!("system:serviceaccount:{}:{account}", deploy::NAMESPACE),
        "nonResourceAttributes": { "verb": verb, "path": path },
    }}))
    .unwrap();
    let reviews: Api<SubjectAccessReview> = Api::all(admin.clone());
    reviews.create(&PostParams::default(), &review).await.unwrap().status.unwrap().allowed
}

/// `group/resource/subresource@namespace=name`; each part but the resource may be left out (`/pods`).
fn resource(text: &str) -> Resource {
    let (text, name) = text.split_once('=').unwrap_or((text, ""));
    let (text, namespace) = text.split_once('@').unwrap_or((text, ""));
    let mut parts = text.split('/').map(str::to_owned);
    Resource {
        group: parts.next().unwrap(),
        plural: parts.next().unwrap(),
        subresource: parts.next().unwrap_or_default(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

const VERBS: [&str; 8] =
    ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];

const AGENT: &[(&str, &[&str])] = &[("/pods", &["list", "watch"])];

const COORDINATOR: &[(&str, &[&str])] = &[
    ("authentication.k8s.io/tokenreviews", &["create"]),
    ("authorization.k8s.io/subjectaccessreviews", &["create"]),
    ("coordination.k8s.io/leases@trunkline-system", &["create"]),
    (
        "coordination.k8s.io/leases@trunkline-system=cp-vpc-resource-controller",
        &["get", "create", "update"],
    ),
    ("coordination.k8s.io/leases@kube-system", &["create"]),
    (
        "coordination.k8s.io/leases@kube-system=cp-vpc-resource-controller",
        &["get", "create", "update"],
    ),
    ("/configmaps@trunkline-system", &["create"]),
    ("/configmaps@trunkline-system=trunkline-state", &["get", "create", "update"]),
    ("/configmaps@kube-system=amazon-vpc-cni", &["get", "list", "watch"]),
    ("/pods", &["get", "list", "patch"]),
    ("/pods/status", &["patch"]),
    ("/pods/eviction", &["create"]),
    ("/nodes", &["get", "list", "watch"]),
    ("/nodes/status", &["patch"]),
    ("/serviceaccounts", &["get"]),
    ("/events", &["create", "patch"]),
    (
        "vpcresources.k8s.aws/cninodes",
        &["get", "list", "watch", "create", "update", "patch", "delete"],
    ),
    ("vpcresources.k8s.aws/securitygrouppolicies", &["get", "list", "watch"]),
];

/// What nobody of ours may touch, beside everything that the tables above do not name.
const NEVER: &[&str] = &[
    "/secrets",
    "/secrets@trunkline-system",
    "/configmaps",
    "/configmaps@kube-system=kube-root-ca.crt",
    "/pods/exec",
    "/pods/binding",
    "/pods/ephemeralcontainers",
    "/nodes/proxy",
    "/namespaces",
    "/serviceaccounts/token",
    "/persistentvolumes",
    "apps/daemonsets",
    "apps/deployments",
    "coordination.k8s.io/leases",
    "coordination.k8s.io/leases@kube-system=kube-scheduler",
    "rbac.authorization.k8s.io/clusterroles",
    "rbac.authorization.k8s.io/clusterrolebindings",
    "vpcresources.k8s.aws/cninodes/status",
    "admissionregistration.k8s.io/mutatingwebhookconfigurations",
    "apiextensions.k8s.io/customresourcedefinitions",
    "certificates.k8s.io/certificatesigningrequests",
];

#[tokio::test]
async fn s79_the_shipped_roles_allow_exactly_what_is_written_down() {
    let Some(world) = applied("s79").await else {
        return;
    };
    let everything: std::collections::BTreeSet<&str> = AGENT
        .iter()
        .chain(COORDINATOR)
        .map(|(what, _)| *what)
        .chain(NEVER.iter().copied())
        .collect();
    for (account, table) in [(deploy::AGENT, AGENT), (deploy::COORDINATOR, COORDINATOR)] {
        for what in &everything {
            let wanted = table
                .iter()
                .find(|(name, _)| name == what)
                .map_or(&[] as &[&str], |(_, verbs)| verbs);
            for verb in VERBS {
                // A right without a name covers the rows with one.
                let bare = what.split('=').next().unwrap();
                let covered =
                    table.iter().any(|(name, verbs)| *name == bare && verbs.contains(&verb));
                let allowed = can(&world.admin, account, verb, &resource(what)).await;
                assert_eq!(allowed, wanted.contains(&verb) || covered, "{account}: {verb} {what}");
            }
        }
    }
    // The command line in the coordinator's image may look; nobody of ours may change anything.
    for (account, verb, wanted) in [
        (deploy::COORDINATOR, "get", true),
        (deploy::COORDINATOR, "update", false),
        (deploy::AGENT, "get", false),
        (deploy::AGENT, "update", false),
    ] {
        let allowed = may(&world.admin, account, verb, "/trunkline/status").await;
        assert_eq!(allowed, wanted, "{account}: {verb} /trunkline/status");
    }
}

#[tokio::test]
async fn an_agents_token_reads_pods_in_a_flow_of_its_own_and_nothing_else() {
    let Some(world) = applied("flow schema").await else {
        return;
    };
    objects::namespace(&world.admin, "default").await.unwrap();
    let spec = objects::NodeSpec {
        name: "n1".to_owned(),
        instance: "i-0123456789abcdef0".to_owned(),
        boot_id: "b".to_owned(),
        labels: Vec::new(),
    };
    objects::node(&world.admin, &spec).await.unwrap();
    let pod = deploy::agent_pod(&world.admin, "n1", 0).await.unwrap();
    let token = tokens::mint(&world.admin, deploy::NAMESPACE, deploy::AGENT, None, Some(&pod))
        .await
        .unwrap();
    let agent = world.plane.client(&token).unwrap();
    let path = "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1";
    let request = http::Request::get(path).body(kube::client::Body::empty()).unwrap();
    let answer = agent.send(request).await.unwrap();
    assert_eq!(answer.status(), 200);
    let schema = world.objects.iter().find(|object| {
        object.types.as_ref().is_some_and(|t| t.kind == "FlowSchema")
            && object.name_any() == "trunkline-agents"
    });
    let seen = answer.headers().get("x-kubernetes-pf-flowschema-uid").unwrap().to_str().unwrap();
    assert_eq!(Some(seen.to_owned()), schema.unwrap().uid());
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(agent.clone());
    assert_forbidden(nodes.list(&ListParams::default()).await);
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(agent, deploy::NAMESPACE);
    assert_forbidden(pods.get(&pod.name_any()).await);
}

fn assert_forbidden<T: std::fmt::Debug>(answer: kube::Result<T>) {
    match answer {
        Err(kube::Error::Api(status)) => assert_eq!(status.code, 403, "{status:?}"),
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn a_bound_token_names_pod_and_node_to_whoever_reviews_it() {
    let Some(world) = applied("token review").await else {
        return;
    };
    let spec = objects::NodeSpec {
        name: "n1".to_owned(),
        instance: "i-0123456789abcdef0".to_owned(),
        boot_id: "b".to_owned(),
        labels: Vec::new(),
    };
    let node = objects::node(&world.admin, &spec).await.unwrap();
    let agent = deploy::agent_pod(&world.admin, "n1", 0).await.unwrap();
    let coordinator = deploy::coordinator_pod(&world.admin, 0).await.unwrap();
    let file = world.plane.folder().join("token");
    tokens::mount(&world.admin, &agent, Some(tokens::AUDIENCE), &file).await.unwrap();
    let own = tokens::mint(
        &world.admin,
        deploy::NAMESPACE,
        deploy::COORDINATOR,
        None,
        Some(&coordinator),
    );
    let reviewer = world.plane.client(&own.await.unwrap()).unwrap();
    let review = json!({ "spec": {
        "token": std::fs::read_to_string(&file).unwrap(), "audiences": [tokens::AUDIENCE] } });
    let reviews: Api<k8s_openapi::api::authentication::v1::TokenReview> = Api::all(reviewer);
    let review = serde_json::from_value(review).unwrap();
    let status = reviews.create(&PostParams::default(), &review).await.unwrap().status.unwrap();
    assert_eq!(status.authenticated, Some(true), "{status:?}");
    assert_eq!(status.audiences, Some(vec![tokens::AUDIENCE.to_owned()]));
    let extra = status.user.unwrap().extra.unwrap();
    assert_eq!(extra["authentication.kubernetes.io/node-name"], ["n1"]);
    assert_eq!(extra["authentication.kubernetes.io/node-uid"], [node.uid().unwrap()]);
    assert_eq!(extra["authentication.kubernetes.io/pod-uid"], [agent.uid().unwrap()]);
}

#[tokio::test]
async fn the_crds_take_what_they_should_and_refuse_the_rest() {
    let Some(world) = applied("crds").await else {
        return;
    };
    objects::namespace(&world.admin, "default").await.unwrap();
    let apply = async |object: serde_json::Value| {
        deploy::apply_one(&world.admin, serde_json::from_value(object).unwrap()).await
    };
    let cninode = |spec: serde_json::Value| {
        json!({ "apiVersion": "vpcresources.k8s.aws/v1alpha1", "kind": "CNINode",
            "metadata": { "name": "n1" }, "spec": spec })
    };
    let sgp = |spec: serde_json::Value| {
        json!({ "apiVersion": "vpcresources.k8s.aws/v1beta1", "kind": "SecurityGroupPolicy",
            "metadata": { "name": "p1", "namespace": "default" }, "spec": spec })
    };
    let feature = json!([{ "name": "SecurityGroupsForPods", "value": "" }]);
    apply(cninode(json!({ "features": feature, "tags": { "a": "b" } }))).await.unwrap();
    // CRD-7: features are objects.
    apply(cninode(json!({ "features": ["SecurityGroupsForPods"] }))).await.unwrap_err();
    apply(cninode(json!({ "features": feature, "managedBy": "eks-auto-mode" }))).await.unwrap();
    apply(cninode(json!({ "managedBy": "vpc-resource-controller" }))).await.unwrap_err();
    apply(cninode(json!({ "features": feature }))).await.unwrap_err();
    apply(sgp(json!({}))).await.unwrap();
    let selector =
        json!({ "matchExpressions": [{ "key": "a", "operator": "In", "values": ["b"] }] });
    apply(sgp(json!({ "podSelector": selector, "securityGroups": { "groupIds": ["sg-1"] } })))
        .await
        .unwrap();
    apply(sgp(json!({ "securityGroups": { "groupIds": [] } }))).await.unwrap_err();
}
