use super::*;
use trunkline_core::view::{OddRequest, PodPhase};

#[test]
fn a_pod_is_read_with_all_that_rules_use() {
    let pod = parse_pod(&json!({
        "metadata": {
            "uid": "u1", "namespace": "web", "name": "shop-0", "resourceVersion": "5",
            "deletionTimestamp": "2026-11-01T00:00:00Z",
            "labels": {"app": "shop"},
            "annotations": {
                "vpc.amazonaws.com/pod-eni": "[{}]",
                "kubernetes.io/config.mirror": "h1",
                "kubernetes.io/config.hash": "h1",
                "other": "x",
            },
        },
        "spec": {
            "nodeName": "n1", "serviceAccountName": "shop",
            "containers": [
                {"name": "a", "resources": {"requests": {"vpc.amazonaws.com/pod-eni": "1", "cpu": "250m"}}},
                {"name": "b"},
                {"name": "c", "resources": {"requests": {"vpc.amazonaws.com/pod-eni": 2}}},
            ],
            "initContainers": [{"name": "i", "resources": {"requests": {"vpc.amazonaws.com/pod-eni": "9"}}}],
        },
        "status": {"phase": "Succeeded"},
    }))
    .unwrap();
    assert_eq!(pod.pod.to_string(), "web/shop-0 (u1)");
    assert_eq!(pod.requested, 3);
    assert_eq!(pod.annotation.as_deref(), Some("[{}]"));
    assert_eq!(pod.kubelet_uid().unwrap().as_str(), "h1");
    assert_eq!(pod.account.unwrap().as_str(), "shop");
    assert_eq!(pod.labels["app"], "shop");
    assert_eq!(pod.phase, PodPhase::Succeeded);
    assert!(pod.deleting && pod.mirror);
}

#[test]
fn t10_only_integer_quantities_count() {
    let count = |quantity: Value| {
        let mut object = pod("u", "1");
        object["spec"]["containers"] =
            json!([{"resources": {"requests": {"vpc.amazonaws.com/pod-eni": quantity}}}]);
        parse_pod(&object).unwrap().requested
    };
    assert_eq!(count(json!("0")), 0);
    assert_eq!(count(json!("2")), 2);
    assert_eq!(count(json!("1k")), 1000);
    for ignored in [
        json!("500m"),
        json!("1.5"),
        json!("-1"),
        json!(""),
        json!("k"),
        json!("9999999999"),
        json!(-3),
        json!(null),
        json!({}),
    ] {
        assert_eq!(count(ignored.clone()), 0, "{ignored}");
    }
}

#[test]
fn t10_requests_that_do_not_do_what_is_meant_are_told_apart() {
    let odd = |first: Value, second: Value, init: Value| {
        let container = |amount: Value| json!({"resources": {"requests": {"vpc.amazonaws.com/pod-eni": amount}}});
        let mut object = pod("u", "1");
        object["spec"]["containers"] = json!([container(first), container(second)]);
        object["spec"]["initContainers"] = json!([container(init)]);
        parse_pod(&object).unwrap().odd_request
    };
    let none = || json!(null);
    assert_eq!(odd(none(), none(), none()), None);
    assert_eq!(odd(json!("1"), none(), none()), None);
    assert_eq!(odd(json!("1"), json!("1"), json!("1")), None);
    assert_eq!(odd(json!("0"), none(), none()), Some(OddRequest::Zero));
    assert_eq!(odd(none(), json!("0"), json!("1")), Some(OddRequest::Zero));
    assert_eq!(odd(none(), none(), json!("1")), Some(OddRequest::InitOnly));
    assert_eq!(odd(none(), json!("1"), none()), Some(OddRequest::NotFirst));
    assert_eq!(odd(json!("0"), json!("1"), none()), None, "the CNI looks for the name only");
}

#[test]
fn what_no_rule_needs_cannot_make_a_pod_unreadable() {
    let mut object = pod("u", "1");
    object["spec"]["containers"] = json!(null);
    object["spec"]["serviceAccountName"] = json!("NOT an account");
    object["spec"]["volumes"] = json!("odd");
    object["status"] = json!({"phase": "Odd"});
    object["metadata"]["annotations"] =
        json!({"kubernetes.io/config.hash": "not a hash!", "x": "y"});
    let pod = parse_pod(&object).unwrap();
    assert_eq!((pod.account, pod.phase, pod.config_hash), (None, PodPhase::Unknown, None));
}
