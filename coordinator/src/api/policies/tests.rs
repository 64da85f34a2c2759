use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use trunkline_core::id::PodRef;
use trunkline_core::view::PodPhase;

use super::*;
use crate::testing::scripted;

const LIST: &str = "/apis/vpcresources.k8s.aws/v1beta1/namespaces/shop/securitygrouppolicies";
const ACCOUNT: &str = "/api/v1/namespaces/shop/serviceaccounts/web";

fn pod() -> Pod {
    Pod {
        pod: PodRef {
            uid: "uid-1".parse().unwrap(),
            namespace: "shop".parse().unwrap(),
            name: "web-0".parse().unwrap(),
        },
        labels: BTreeMap::from([("app".to_owned(), "web".to_owned())]),
        account: Some("web".parse().unwrap()),
        phase: PodPhase::Pending,
        deleting: false,
        mirror: false,
        config_hash: None,
        requested: 1,
        odd_request: None,
        annotation: None,
    }
}

fn list(items: &Value) -> (u16, Value) {
    (
        200,
        json!({"kind": "SecurityGroupPolicyList", "metadata": {"resourceVersion": "5"}, "items": items}),
    )
}

fn status(code: u16, reason: &str) -> (u16, Value) {
    (code, json!({"kind": "Status", "reason": reason, "message": reason}))
}

fn by_account() -> Value {
    json!([{"metadata": {"name": "a"}, "spec": {
        "serviceAccountSelector": {"matchExpressions": [{"key": "team", "operator": "In", "values": ["a"]}]},
        "securityGroups": {"groupIds": ["sg-a"]},
    }}])
}

fn by_pod() -> Value {
    json!([{"metadata": {"name": "p"}, "spec": {
        "podSelector": {"matchLabels": {"app": "web"}},
        "securityGroups": {"groupIds": ["sg-2", "sg-1"]},
    }}])
}

/// Resolves with these answers; returns what was asked too.
async fn resolve_with(answers: &[(&str, (u16, Value))]) -> (Result<Groups, String>, Vec<String>) {
    let answers: BTreeMap<String, (u16, Value)> =
        answers.iter().map(|(path, answer)| ((*path).to_owned(), answer.clone())).collect();
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = asked.clone();
    let api = scripted(move |request| {
        log.lock().unwrap().push(request.path.clone());
        // What a real server says of a path it does not know.
        answers
            .get(&request.path)
            .map_or((404, "404 page not found".into()), |(code, body)| (*code, body.to_string()))
    });
    let result = resolve(&api, &pod()).await;
    let asked = asked.lock().unwrap().clone();
    (result, asked)
}

fn groups(ids: &[&str]) -> Groups {
    Groups::Policies(ids.iter().map(|g| g.parse().unwrap()).collect())
}

#[tokio::test]
async fn d20_the_account_is_read_only_if_a_policy_needs_it() {
    let (result, asked) = resolve_with(&[(LIST, list(&by_pod()))]).await;
    assert_eq!(result.unwrap(), groups(&["sg-2", "sg-1"]));
    assert_eq!(asked, [LIST]);
    let account =
        json!({"kind": "ServiceAccount", "metadata": {"name": "web", "labels": {"team": "a"}}});
    let (result, asked) =
        resolve_with(&[(LIST, list(&by_account())), (ACCOUNT, (200, account))]).await;
    assert_eq!(result.unwrap(), groups(&["sg-a"]));
    assert_eq!(asked, [LIST, ACCOUNT]);
}

#[tokio::test]
async fn no_policy_is_an_answer_of_a_whole_list_only() {
    let (result, _) = resolve_with(&[(LIST, list(&json!([])))]).await;
    assert_eq!(result.unwrap(), Groups::NoMatch);
    let mut in_parts = list(&json!([]));
    in_parts.1["metadata"]["continue"] = json!("token");
    let cases = [
        in_parts,
        status(500, "InternalError"),
        status(403, "Forbidden"),
        status(429, "TooManyRequests"),
        (200, json!({"kind": "SecurityGroupPolicyList", "metadata": {}, "items": null})),
        (200, json!({"kind": "SecurityGroupPolicyList", "metadata": {}})),
        (200, json!({"kind": "List", "metadata": {}, "items": []})),
        (200, json!({"kind": "SecurityGroupPolicyList", "metadata": {}, "items": [{"spec": {}}]})),
    ];
    for answer in cases {
        let shown = answer.1.to_string();
        let (result, _) = resolve_with(&[(LIST, answer)]).await;
        assert!(result.is_err(), "{shown}");
    }
}

#[tokio::test]
async fn s49_a_missing_account_is_named_and_nobody_gets_other_groups_for_it() {
    for answer in [status(404, "NotFound"), status(500, "InternalError")] {
        let (result, _) = resolve_with(&[(LIST, list(&by_account())), (ACCOUNT, answer)]).await;
        assert!(result.unwrap_err().contains("shop/web"));
    }
    let other =
        json!({"kind": "ServiceAccount", "metadata": {"name": "other", "labels": {"team": "a"}}});
    let (result, _) = resolve_with(&[(LIST, list(&by_account())), (ACCOUNT, (200, other))]).await;
    assert!(result.is_err());
}

#[tokio::test]
async fn pol_9_a_kind_that_is_not_installed_means_no_policy_but_a_lone_404_does_not() {
    let api_groups = |groups: Value| (200, json!({"kind": "APIGroupList", "groups": groups}));
    let (result, _) = resolve_with(&[("/apis", api_groups(json!([])))]).await;
    assert_eq!(result.unwrap(), Groups::NoMatch);
    let cninodes_only =
        json!([{"name": "vpcresources.k8s.aws", "versions": [{"version": "v1alpha1"}]}]);
    let (result, _) = resolve_with(&[("/apis", api_groups(cninodes_only))]).await;
    assert_eq!(result.unwrap(), Groups::NoMatch);
    let (result, _) = resolve_with(&[]).await;
    assert!(result.is_err(), "the group list is unreadable");
    let installed = json!([{"name": "vpcresources.k8s.aws", "versions": [{"version": "v1beta1"}]}]);
    let served =
        (200, json!({"kind": "APIResourceList", "resources": [{"name": "securitygrouppolicies"}]}));
    let answers =
        [("/apis", api_groups(installed)), ("/apis/vpcresources.k8s.aws/v1beta1", served)];
    let (result, _) = resolve_with(&answers).await;
    assert!(result.is_err(), "somebody else answered the list");
}
