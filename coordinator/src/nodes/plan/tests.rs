use super::*;

fn node(change: impl FnOnce(&mut Value)) -> NodeObject {
    let mut object = json!({
        "metadata": {"name": "n1", "uid": "node-uid", "labels": {"kubernetes.io/os": "linux"}},
        "spec": {"providerID": "aws:///eu-west-1a/i-0123456789abcdef0"},
        "status": {"nodeInfo": {"bootID": "boot"}},
    });
    change(&mut object);
    serde_json::from_value(object).unwrap()
}

fn cninode(change: impl FnOnce(&mut Value)) -> CniNodeObject {
    let mut object = json!({
        "metadata": {
            "name": "n1", "uid": "cni-uid", "resourceVersion": "7",
            "labels": {"kubernetes.io/os": "linux"},
            "finalizers": ["networking.k8s.aws/resource-cleanup"],
        },
        "spec": {
            "features": [{"name": "SecurityGroupsForPods"}],
            "tags": {
                "cluster.k8s.amazonaws.com/name": "c1",
                "node.k8s.amazonaws.com/instance_id": "i-0123456789abcdef0",
            },
        },
    });
    change(&mut object);
    serde_json::from_value(object).unwrap()
}

fn instance() -> InstanceId {
    InstanceId::new("i-0123456789abcdef0").unwrap()
}

fn no(why: NotManaged) -> Managed {
    Managed::No(why)
}

#[test]
fn a_linux_node_is_managed_when_the_cni_or_the_old_label_asks() {
    let asked = cninode(|_| {});
    assert_eq!(managed(&node(|_| {}), Seen::There(&asked)), Managed::Yes(instance()));
    let plain = cninode(|o| o["spec"]["features"] = json!([]));
    assert_eq!(managed(&node(|_| {}), Seen::There(&plain)), no(NotManaged::NotAsked));
    let labelled = node(|o| o["metadata"]["labels"][LABEL_TRUNK] = json!("false"));
    assert_eq!(managed(&labelled, Seen::There(&plain)), Managed::Yes(instance()));
}

#[test]
fn d11_an_unread_cninode_is_not_an_unmanaged_node() {
    assert_eq!(managed(&node(|_| {}), Seen::Unknown), no(NotManaged::CniNodeUnknown));
    let labelled = node(|o| o["metadata"]["labels"][LABEL_TRUNK] = json!("true"));
    assert_eq!(managed(&labelled, Seen::Unknown), no(NotManaged::CniNodeUnknown));
    assert_eq!(managed(&node(|_| {}), Seen::Absent), no(NotManaged::NotAsked));
}

#[test]
fn nodes_of_others_and_other_systems_are_left_alone() {
    let asked = cninode(|_| {});
    let auto = node(|o| o["metadata"]["labels"][LABEL_COMPUTE] = json!("auto"));
    assert_eq!(managed(&auto, Seen::There(&asked)), no(NotManaged::Foreign));
    assert_eq!(cninode_step("c1", Some(&auto), Seen::Absent), CniNodeStep::Nothing);
    let foreign = cninode(|o| o["spec"]["managedBy"] = json!("eks-auto-mode"));
    assert_eq!(managed(&node(|_| {}), Seen::There(&foreign)), no(NotManaged::Foreign));
    let broken = cninode(|o| {
        o["spec"] = json!({"managedBy": "eks-auto-mode"});
        o["metadata"]["finalizers"] = json!([]);
    });
    assert_eq!(cninode_step("c1", Some(&node(|_| {})), Seen::There(&broken)), CniNodeStep::Nothing);
    let windows = node(|o| o["metadata"]["labels"]["kubernetes.io/os"] = json!("windows"));
    assert_eq!(managed(&windows, Seen::There(&asked)), no(NotManaged::OtherOs("windows".into())));
    let unlabelled = node(|o| o["metadata"]["labels"] = json!({}));
    assert_eq!(managed(&unlabelled, Seen::There(&asked)), no(NotManaged::NoOs));
    let beta = node(|o| o["metadata"]["labels"] = json!({"beta.kubernetes.io/os": "linux"}));
    assert_eq!(managed(&beta, Seen::There(&asked)), Managed::Yes(instance()));
}

#[test]
fn custom_networking_is_left_alone_and_told() {
    let asked = cninode(|_| {});
    let labelled = node(|o| o["metadata"]["labels"][LABEL_ENICONFIG] = json!("zone-a"));
    assert_eq!(managed(&labelled, Seen::There(&asked)), no(NotManaged::CustomNetworking));
    let custom = cninode(|o| {
        o["spec"]["features"] =
            json!([{"name": "CustomNetworking", "value": "a"}, {"name": "SecurityGroupsForPods"}]);
    });
    assert_eq!(managed(&node(|_| {}), Seen::There(&custom)), no(NotManaged::CustomNetworking));
    assert!(NotManaged::CustomNetworking.is_refusal());
    assert!(!NotManaged::NotAsked.is_refusal());
}

#[test]
fn a_node_without_usable_provider_id_is_told_only_if_somebody_asked() {
    for id in [Value::Null, json!(""), json!("kind://docker/a/b"), json!("aws:///a/i-XYZ")] {
        let broken = node(|o| o["spec"]["providerID"] = id.clone());
        assert!(matches!(
            managed(&broken, Seen::There(&cninode(|_| {}))),
            Managed::No(NotManaged::NoInstance(_))
        ));
        let unasked = cninode(|o| o["spec"]["features"] = json!([]));
        assert_eq!(managed(&broken, Seen::There(&unasked)), no(NotManaged::NotAsked));
    }
}

#[test]
fn every_node_gets_a_cninode_whatever_its_system() {
    let windows = node(|o| {
        o["metadata"]["labels"]["kubernetes.io/os"] = json!("windows");
        o["spec"]["providerID"] = json!("");
    });
    let CniNodeStep::Create(parts) = cninode_step("c1", Some(&windows), Seen::Absent) else {
        panic!()
    };
    assert_eq!(parts.os.as_deref(), Some("windows"));
    assert_eq!(parts.instance, None);
    assert_eq!(cninode_step("c1", Some(&windows), Seen::Unknown), CniNodeStep::Nothing);
    assert_eq!(cninode_step("c1", None, Seen::Absent), CniNodeStep::Nothing);
}

#[test]
fn a_live_cninode_is_mended_narrowly_and_under_its_resource_version() {
    assert_eq!(
        cninode_step("c1", Some(&node(|_| {})), Seen::There(&cninode(|_| {}))),
        CniNodeStep::Nothing
    );
    let damaged = cninode(|o| {
        o["metadata"]["finalizers"] = json!(["other"]);
        o["metadata"]["labels"] = json!({"x": "y"});
        o["spec"]["tags"] =
            json!({"node.k8s.amazonaws.com/instance_id": "i-00000000", "own": "kept"});
    });
    let CniNodeStep::Patch(patch) = cninode_step("c1", Some(&node(|_| {})), Seen::There(&damaged))
    else {
        panic!()
    };
    assert_eq!(
        patch,
        json!({
            "metadata": {
                "resourceVersion": "7",
                "labels": {"kubernetes.io/os": "linux"},
                "finalizers": ["other", "networking.k8s.aws/resource-cleanup"],
            },
            "spec": {"tags": {
                "cluster.k8s.amazonaws.com/name": "c1",
                "node.k8s.amazonaws.com/instance_id": "i-0123456789abcdef0",
            }},
        })
    );
}

#[test]
fn an_unusable_provider_id_does_not_overwrite_the_record_of_the_instance() {
    let broken = node(|o| o["spec"]["providerID"] = json!(""));
    assert_eq!(
        cninode_step("c1", Some(&broken), Seen::There(&cninode(|_| {}))),
        CniNodeStep::Nothing
    );
}

#[test]
fn d9_d10_the_finalizer_goes_only_with_the_node_and_nothing_is_written_without_one() {
    let going = |o: &mut Value| o["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(cninode_step("c1", None, Seen::There(&cninode(going))), CniNodeStep::Finalize);
    assert_eq!(
        cninode_step("c1", Some(&node(|_| {})), Seen::There(&cninode(going))),
        CniNodeStep::Recreate(NodeUid::new("node-uid").unwrap())
    );
    let unlabelled = cninode(|o| o["metadata"]["labels"] = json!({}));
    assert_eq!(cninode_step("c1", None, Seen::There(&unlabelled)), CniNodeStep::Nothing);
    let object = cninode(|o| o["metadata"]["finalizers"] = json!(["a", FINALIZER, "b"]));
    assert_eq!(
        without_finalizer(&object),
        json!({"metadata": {"uid": "cni-uid", "resourceVersion": "7", "finalizers": ["a", "b"]}})
    );
}
