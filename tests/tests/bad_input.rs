//! Bad input on the whole program: annotations that lie or do not parse, odd requests, nodes that EC2 or the cloud
//! provider describes badly, settings that are wrong. Each has a clear answer, and nothing is lost.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test's helpers")]

use kube::ResourceExt as _;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;
use trunkline_sim::ec2::config::group_id;
use trunkline_sim::ec2::fault::{Fault, FaultKind};
use trunkline_sim::ec2::model::InstanceSpec;
use trunkline_sim::node::model::What;
use trunkline_tests::cluster::ask::message;
use trunkline_tests::cluster::{Cluster, Options};
use trunkline_tests::objects::{ANNOTATION, PodSpec, RESOURCE};
use trunkline_tests::{bins, deploy, poll, skipped};

const SOON: Duration = Duration::from_secs(40);

async fn cluster(test: &str, options: Options) -> Option<Cluster> {
    if let Some(why) = Cluster::missing() {
        skipped(test, &why);
        return None;
    }
    Some(Cluster::start(options).await.unwrap())
}

/// A pod that has its branch; its UID, ENI and annotation.
struct Served {
    uid: String,
    eni: String,
    text: String,
}

async fn served(cluster: &Cluster, name: &str, node: &str) -> Served {
    let pod = cluster.create(&PodSpec::branch(name, node)).await.unwrap();
    cluster.running(name, SOON).await.unwrap();
    let eni = cluster.annotated(name, SOON).await.unwrap()[0].eni_id.clone();
    Served { uid: pod.uid().unwrap(), eni, text: text_of(cluster, name).await.unwrap() }
}

async fn text_of(cluster: &Cluster, name: &str) -> Option<String> {
    let pod = cluster.pod("default", name).await.unwrap().unwrap();
    pod.annotations().get(ANNOTATION).cloned()
}

/// Waits until somebody who asks is told this of that pod or node.
async fn waits(cluster: &Cluster, viewer: &std::path::Path, who: &str, why: &str) {
    poll::eventually(&format!("{who} waits: {why}"), SOON, async || {
        let text = cluster.trunkline(viewer, &["waiting", "-o", "json"]).await;
        let text = text.map_err(|error| error.to_string())?;
        let rows: Vec<Value> = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        let told =
            rows.iter().map(Value::to_string).any(|row| row.contains(who) && row.contains(why));
        if told { Ok(()) } else { Err(text) }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn t1_t11_annotations_that_lie_or_do_not_parse_cost_nobody_an_eni() {
    let Some(mut cluster) = cluster("t1", Options::default().nodes(2)).await else { return };
    a_copied_annotation_is_replaced_and_its_owner_keeps_the_eni(&cluster).await;
    let from = cluster.mark().await.unwrap();
    let mut broken = Vec::new();
    for (number, (old, new)) in [
        ("[{", "not JSON ["),
        ("[{\"eniId\"", "[{\"interface\":1,\"eni\""),
        ("\"vlanId\":", "\"vlanId\":0,\"was\":"),
        ("\"vlanId\":", "\"vlanId\":121,\"was\":"),
        ("\"vlanId\":", "\"vlanId\":4095,\"was\":"),
        ("\"vlanId\":", "\"vlanId\":-1,\"was\":"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("broken-{number}");
        let pod = served(&cluster, &name, "node-1").await;
        let text = pod.text.replacen(old, new, 1);
        assert_ne!(text, pod.text);
        cluster.annotate(&name, ANNOTATION, Some(&text)).await.unwrap();
        broken.push((name, text, pod));
    }
    for (name, text, pod) in &broken {
        let told = cluster.event(&pod.uid, "AnnotationUnusable", "Warning", SOON).await.unwrap();
        assert!(message(&told).contains("cannot be read"), "{name} {text}: {}", message(&told));
    }
    // A new leader and a new agent know of these pods only what EC2 and the bad annotations say.
    cluster.restart_coordinator(0).unwrap();
    cluster.restart_agent("node-1").await.unwrap();
    cluster.led(SOON).await.unwrap();
    cluster.agents_ready(SOON).await.unwrap();
    let taken: BTreeSet<u32> = vlans(&cluster).await;
    let after = served(&cluster, "after", "node-1").await;
    let own = cluster.annotated("after", SOON).await.unwrap()[0].vlan;
    assert!(!taken.contains(&own), "VLAN {own} is one of {taken:?}");
    let state = cluster.ec2_state().await.unwrap();
    for (name, text, pod) in &broken {
        let eni = state.eni(&pod.eni).unwrap();
        assert!(eni.association.is_some(), "{name}");
        assert_eq!(
            text_of(&cluster, name).await.as_ref(),
            Some(text),
            "a user's text is left alone"
        );
    }
    for action in ["DisassociateTrunkInterface", "DeleteNetworkInterface"] {
        assert_eq!(cluster.calls(action, from).await.unwrap(), []);
    }
    // What the user repairs is served on, with the ENI it had; what ends is given back.
    let (name, _, pod) = &broken[0];
    cluster.annotate(name, ANNOTATION, None).await.unwrap();
    assert_eq!(cluster.annotated(name, SOON).await.unwrap()[0].eni_id, pod.eni);
    for (name, _, pod) in &broken[1..] {
        cluster.delete("default", name, false).await.unwrap();
        cluster.released(&pod.uid, SOON).await.unwrap();
    }
    assert!(cluster.ec2_state().await.unwrap().eni(&after.eni).is_some());
    cluster.finish().await.unwrap();
}

async fn vlans(cluster: &Cluster) -> BTreeSet<u32> {
    let state = cluster.ec2_state().await.unwrap();
    state.enis.iter().filter_map(|eni| Some(eni.association.as_ref()?.vlan)).collect()
}

/// Design §4.1: a pod's YAML can be copied together with its annotation, to the same node and to another.
async fn a_copied_annotation_is_replaced_and_its_owner_keeps_the_eni(cluster: &Cluster) {
    let original = served(cluster, "original", "node-1").await;
    let from = cluster.mark().await.unwrap();
    // The CNI believes any annotation; it must not get to see this one before we do.
    cluster.nodes.hold_add(None, true).await.unwrap();
    for (name, node) in [("copy-here", "node-1"), ("copy-there", "node-2")] {
        let copy = PodSpec::branch(name, node).annotation(ANNOTATION, &original.text);
        let uid = cluster.create(&copy).await.unwrap().uid().unwrap();
        let told = cluster.event(&uid, "AnnotationReplaced", "Warning", SOON).await.unwrap();
        let own = cluster.annotated(name, SOON).await.unwrap()[0].eni_id.clone();
        assert_ne!(own, original.eni);
        assert!(message(&told).contains(&own), "{}", message(&told));
    }
    cluster.nodes.hold_add(None, false).await.unwrap();
    for name in ["copy-here", "copy-there"] {
        cluster.running(name, SOON).await.unwrap();
        let uid = cluster.pod("default", name).await.unwrap().unwrap().uid().unwrap();
        cluster.delete("default", name, false).await.unwrap();
        cluster.released(&uid, SOON).await.unwrap();
    }
    assert_eq!(text_of(cluster, "original").await, Some(original.text));
    let released = cluster.calls("DeleteNetworkInterface", from).await.unwrap();
    assert!(!released.is_empty());
    assert!(released.iter().all(|call| call.params["NetworkInterfaceId"] != original.eni));
    assert!(cluster.ec2_state().await.unwrap().eni(&original.eni).unwrap().association.is_some());
}

#[tokio::test]
async fn t10_s32_s38_odd_pods_policies_and_nodes_have_a_defined_result() {
    let limits = "--instance-limits=zz9.medium=2/3".to_owned();
    let options = Options { coordinator_flags: vec![limits], ..Options::default() };
    let Some(mut cluster) = cluster("t10", options).await else { return };
    let viewer = cluster.viewer().await.unwrap();
    t10_odd_requests(&cluster, &viewer).await;
    policies_without_groups_or_selectors_are_ignored(&cluster).await;
    s32_an_incomplete_answer_delays_only_its_node(&mut cluster, &viewer).await;
    s38_an_unknown_type_waits_for_a_figure(&mut cluster, &viewer).await;
    a_node_without_provider_id_waits_for_it(&mut cluster).await;
    cluster.finish().await.unwrap();
}

/// What `trunkline pod` says of a pod: its stage, and why.
async fn stage(cluster: &Cluster, viewer: &std::path::Path, name: &str) -> (String, String) {
    let pod = format!("default/{name}");
    let text = cluster.trunkline(viewer, &["pod", &pod, "-o", "json"]).await.unwrap();
    let pods: Value = serde_json::from_str(&text).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&pods[0]["stage"]), text(&pods[0]["why"]["reason"]))
}

async fn t10_odd_requests(cluster: &Cluster, viewer: &std::path::Path) {
    let asks =
        |amount: &str| json!({ "limits": { RESOURCE: amount }, "requests": { RESOURCE: amount } });
    let two = PodSpec { branches: 2, ..PodSpec::branch("two", "node-1") };
    let two = cluster.create(&two).await.unwrap();
    let plain = PodSpec::branch("zero", "node-1").plain();
    let zero =
        cluster.create_as(&plain, |pod| pod["spec"]["containers"][0]["resources"] = asks("0"));
    let second = |pod: &mut Value| {
        let more = json!({ "name": "second", "image": "i", "resources": asks("1") });
        pod["spec"]["containers"].as_array_mut().unwrap().push(more);
    };
    let of_second = PodSpec::branch("second", "node-1").plain();
    let of_second = cluster.create_as(&of_second, second).await.unwrap().uid().unwrap();
    let init = |pod: &mut Value| {
        pod["spec"]["initContainers"] =
            json!([{ "name": "init", "image": "i", "resources": asks("1") }]);
    };
    let of_init = PodSpec::branch("init", "node-1").plain();
    let of_init = cluster.create_as(&of_init, init).await.unwrap().uid().unwrap();
    let all = |pod: &mut Value| {
        second(pod);
        init(pod);
    };
    cluster.create_as(&PodSpec::branch("each", "node-1"), all).await.unwrap();

    // The sum over the containers (ANN-6); init containers do not count.
    for (name, count) in [("two", 2), ("second", 1), ("each", 2)] {
        let branches = cluster.annotated(name, SOON).await.unwrap();
        assert_eq!(branches.len(), count, "{name}");
        let enis: BTreeSet<_> = branches.iter().map(|branch| &branch.eni_id).collect();
        let vlans: BTreeSet<_> = branches.iter().map(|branch| branch.vlan).collect();
        assert_eq!((enis.len(), vlans.len()), (count, count), "{name}");
    }
    for name in ["two", "second", "init", "each"] {
        cluster.running(name, SOON).await.unwrap();
    }
    // The CNI looks for the key only, so a pod that asks for none waits for an annotation that nobody owes it.
    let zero = zero.await.unwrap().uid().unwrap();
    poll::eventually("the CNI refuses `zero`", SOON, async || {
        let log = cluster.nodes.log(1).await.map_err(|error| error.to_string())?;
        let mut refusals = log.iter().filter(|l| l.uid == zero && l.what == What::AddFailed);
        refusals
            .any(|line| line.detail.contains("no annotation"))
            .then_some(())
            .ok_or("not yet".to_owned())
    })
    .await
    .unwrap();
    for name in ["zero", "init"] {
        assert_eq!(text_of(cluster, name).await, None, "{name}");
    }
    // Each is told what its request does, on the pod and to whoever asks.
    for (uid, part) in [
        (&zero, "asks for 0"),
        (&of_init, "only init containers"),
        (&of_second, "looks at the first container only"),
    ] {
        let told = cluster.event(uid, "BranchENIRequestOdd", "Warning", SOON).await.unwrap();
        assert!(message(&told).contains(part), "{}", message(&told));
    }
    let of = |stage: &str, why: &str| (stage.to_owned(), why.to_owned());
    assert_eq!(stage(cluster, viewer, "zero").await, of("waiting", "asks-nothing"));
    waits(cluster, viewer, "zero", "asks-nothing").await;
    assert_eq!(stage(cluster, viewer, "init").await, of("no-branch", "init-container-asks"));
    assert_eq!(stage(cluster, viewer, "second").await, of("bound", "first-container-does-not-ask"));
    assert_eq!(stage(cluster, viewer, "each").await, of("bound", ""));
    // More than the trunk can ever have: told at once, nothing made.
    let many = PodSpec { branches: 10, ..PodSpec::branch("many", "node-1") };
    let many = cluster.create(&many).await.unwrap().uid().unwrap();
    let told = cluster.event(&many, "TrunkFull", "Warning", SOON).await.unwrap();
    assert!(message(&told).contains("lower the request"), "{}", message(&told));
    let state = cluster.ec2_state().await.unwrap();
    assert_eq!(state.enis.iter().filter(|eni| eni.interface_type == "branch").count(), 5);
    for name in ["two", "zero", "second", "init", "each", "many"] {
        cluster.delete("default", name, false).await.unwrap();
    }
    cluster.released(&two.uid().unwrap(), SOON).await.unwrap();
}

async fn policies_without_groups_or_selectors_are_ignored(cluster: &Cluster) {
    let policy = |name: &str, spec: Value| {
        let policy = json!({
            "apiVersion": "vpcresources.k8s.aws/v1beta1", "kind": "SecurityGroupPolicy",
            "metadata": { "namespace": "default", "name": name }, "spec": spec,
        });
        deploy::apply_one(&cluster.admin, serde_json::from_value(policy).unwrap())
    };
    policy("empty", json!({})).await.unwrap();
    policy("no-groups", json!({ "podSelector": {}, "securityGroups": {} })).await.unwrap();
    let groups = json!({ "groupIds": [group_id(9)] });
    policy("no-selector", json!({ "securityGroups": groups })).await.unwrap();
    let pod = served(cluster, "unselected", "node-1").await;
    // The node's own group, and a Warning that no policy matches.
    assert_eq!(cluster.ec2_state().await.unwrap().eni(&pod.eni).unwrap().groups, [group_id(2)]);
    let told = cluster.event(&pod.uid, "SecurityGroupRequested", "Warning", SOON).await.unwrap();
    assert!(message(&told).contains("No SecurityGroupPolicy matches"), "{}", message(&told));
    let log = std::fs::read_to_string(cluster.coordinators[0].process.log()).unwrap();
    for name in ["empty", "no-groups", "no-selector"] {
        assert!(log.lines().any(|line| line.contains("left out") && line.contains(name)), "{name}");
    }
}

async fn s32_an_incomplete_answer_delays_only_its_node(
    cluster: &mut Cluster,
    viewer: &std::path::Path,
) {
    let missing = [
        ("networkInterfaceSet", "no network interfaces"),
        ("subnetId", "instance-incomplete"),
        ("instanceType", "no instance type"),
        ("interfaceType", "type"),
    ];
    for (number, (element, told)) in missing.into_iter().enumerate() {
        let name = format!("node-s32-{number}");
        let kind = FaultKind::Omit { elements: vec![element.to_owned()] };
        let fault = cluster.ec2.inject(&Fault::on("DescribeInstances", kind)).await.unwrap();
        let instance = cluster.join(&name, &InstanceSpec::default(), true).await.unwrap();
        waits(cluster, viewer, &name, told).await;
        let other = format!("meanwhile-{number}");
        served(cluster, &other, "node-1").await;
        cluster.delete("default", &other, false).await.unwrap();
        let state = cluster.ec2_state().await.unwrap();
        let ours = |e: &&trunkline_sim::ec2::model::EniState| {
            e.tags.get("node.k8s.amazonaws.com/instance_id") == Some(&instance)
        };
        assert_eq!(state.enis.iter().find(ours), None, "nothing was made on half an answer");
        cluster.ec2.clear_faults(Some(&fault)).await.unwrap();
        cluster.event(&name, "NodeTrunkInitiated", "Normal", SOON).await.unwrap();
    }
    cluster.start_agent("node-s32-0").await.unwrap();
    served(cluster, "late", "node-s32-0").await;
}

async fn s38_an_unknown_type_waits_for_a_figure(cluster: &mut Cluster, viewer: &std::path::Path) {
    let of =
        |kind: &str| InstanceSpec { instance_type: kind.to_owned(), ..InstanceSpec::default() };
    let instance = cluster.join("node-zz9", &of("zz9.large"), true).await.unwrap();
    cluster.start_agent("node-zz9").await.unwrap();
    cluster.create(&PodSpec::branch("on-zz9", "node-zz9")).await.unwrap();
    let told = cluster.event("node-zz9", "Unsupported", "Warning", SOON).await.unwrap();
    assert!(message(&told).contains("--instance-limits"), "{}", message(&told));
    waits(cluster, viewer, "on-zz9", "--instance-limits").await;
    let state = cluster.ec2_state().await.unwrap();
    assert!(state.trunk_of(&instance).is_none(), "no EC2 writes");
    assert_eq!(capacity(cluster, "node-zz9").await, None);
    cluster.delete("default", "on-zz9", true).await.unwrap();

    // The same without a rebuild: the operator gave the figures of this one.
    let instance = cluster.join("node-zz9-medium", &of("zz9.medium"), true).await.unwrap();
    cluster.start_agent("node-zz9-medium").await.unwrap();
    served(cluster, "on-medium", "node-zz9-medium").await;
    assert!(cluster.ec2_state().await.unwrap().trunk_of(&instance).is_some());
    assert_eq!(capacity(cluster, "node-zz9-medium").await.as_deref(), Some("2"));
}

async fn capacity(cluster: &Cluster, node: &str) -> Option<String> {
    let nodes: kube::Api<k8s_openapi::api::core::v1::Node> = kube::Api::all(cluster.admin.clone());
    let node = nodes.get(node).await.unwrap();
    Some(node.status?.capacity?.get(RESOURCE)?.0.clone())
}

async fn a_node_without_provider_id_waits_for_it(cluster: &mut Cluster) {
    let spec = InstanceSpec::default();
    let instance = cluster.join("node-nameless", &spec, false).await.unwrap();
    let told = cluster.event("node-nameless", "NodeNotManaged", "Warning", SOON).await.unwrap();
    assert!(message(&told).contains("providerID"), "{}", message(&told));
    assert!(cluster.ec2_state().await.unwrap().trunk_of(&instance).is_none());
    cluster.set_provider("node-nameless", &instance).await.unwrap();
    cluster.start_agent("node-nameless").await.unwrap();
    served(cluster, "named", "node-nameless").await;
}

/// What `--help` lists.
fn flags_of(program: &std::path::Path) -> BTreeSet<String> {
    let help = Command::new(program).arg("--help").output().unwrap();
    assert!(help.status.success());
    let text = String::from_utf8(help.stdout).unwrap();
    let flag = |line: &str| {
        let rest = line.trim_start().strip_prefix("--")?;
        Some(rest.split([' ', '=']).next()?.to_owned())
    };
    text.lines().filter_map(flag).collect()
}

/// Starts a program that must refuse its settings; what it says.
fn refused(program: &std::path::Path, flags: &[String]) -> String {
    let output = Command::new(program).args(flags).env_clear().output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(64), "{flags:?}: {text}");
    text
}

/// All bad flags of a program at once, each alone, and none that was forgotten here.
fn every_bad_flag(name: &str, good: &[(&str, &str)], bad: &[(&str, &str)], any_text: &[&str]) {
    let Ok(program) = bins::find(name) else {
        return skipped(name, "it is not built");
    };
    let tried: BTreeSet<String> = bad
        .iter()
        .map(|(flag, _)| *flag)
        .chain(any_text.iter().copied())
        .map(str::to_owned)
        .collect();
    let mut listed = flags_of(&program);
    listed.retain(|flag| !["help", "version"].contains(&flag.as_str()));
    assert_eq!(listed, tried, "the flags of {name}");

    let given = |pairs: &[(&str, &str)]| -> Vec<String> {
        pairs.iter().map(|(flag, value)| format!("--{flag}={value}")).collect()
    };
    let together = refused(&program, &given(bad));
    for (flag, _) in bad {
        assert!(together.contains(&format!("--{flag}: ")), "--{flag} in {together}");
    }
    let stray = refused(&program, &["--no-such-flag=1".to_owned(), "stray".to_owned()]);
    assert!(stray.contains("--no-such-flag is not a flag") && stray.contains("'stray'"), "{stray}");
    for (flag, value) in bad {
        let mut flags = given(good);
        flags.retain(|other| !other.starts_with(&format!("--{flag}=")));
        flags.push(format!("--{flag}={value}"));
        let alone = refused(&program, &flags);
        assert!(alone.contains("1 setting is wrong"), "--{flag}={value}: {alone}");
        assert!(alone.contains(&format!("--{flag}: ")), "--{flag}={value}: {alone}");
    }
}

#[test]
fn every_bad_flag_of_the_agent_is_told_and_ends_with_64() {
    let good = [
        ("node-name", "node-1"),
        ("coordinator", "https://127.0.0.1:1"),
        ("coordinator-ca", "/ca.crt"),
        ("token-file", "/token"),
        ("pod-uid", "8dbc5577-d0e2-4706-8787-57d52c03ddf2"),
    ];
    let bad = [
        ("node-name", "Not_A_Node"),
        ("coordinator", "http://plain:1"),
        ("coordinator-ca", ""),
        ("token-file", ""),
        ("pod-uid", "a/b"),
        ("health-bind", "61780"),
        ("cgroup-root", " "),
        ("kubelet-socket", " "),
        ("boot-id-file", " "),
        ("host-netns", " "),
        ("state-dir", " "),
        ("heal-in-place", "perhaps"),
        ("remote-status", "perhaps"),
        ("kubeconfig", " "),
        ("log-format", "yaml"),
    ];
    every_bad_flag("trunkline-agent", &good, &bad, &["log-level"]);
}

#[test]
fn every_bad_flag_of_the_coordinator_is_told_and_ends_with_64() {
    let good = [
        ("cluster-name", "c1"),
        ("vpc-id", "vpc-0123456789abcdef0"),
        ("tls-cert", "/tls.crt"),
        ("tls-key", "/tls.key"),
        ("grpc-bind", "127.0.0.1:0"),
        ("advertise-address", "127.0.0.1:61790"),
    ];
    let bad = [
        ("cluster-name", ""),
        ("vpc-id", "vpc-x"),
        ("aws-account-id", "12"),
        ("ec2-endpoint", "ftp://x"),
        ("grpc-bind", "7000"),
        ("tls-cert", ""),
        ("tls-key", ""),
        ("webhook-bind", "9443"),
        ("health-bind", "host:port"),
        ("metrics-bind-address", "8080"),
        ("status-bind", "1"),
        ("advertise-address", "here"),
        ("leader-elect", "perhaps"),
        ("lease-namespace", "Not_A_Namespace"),
        ("lease-name", "Not_A_Name"),
        ("leader-lease-duration-seconds", "-15"),
        ("leader-lease-renew-deadline", "soon"),
        ("leader-lease-retry-period", "x"),
        ("namespace", "Not_A_Namespace"),
        ("inventory-interval", "often"),
        ("vlan-rest", "-5m"),
        ("instance-limits", "m5.large=500"),
        ("read-only", "perhaps"),
        ("no-release", "maybe"),
        ("restore-groups", "maybe"),
        ("remote-status", "maybe"),
        ("health-check-timeout", "soon"),
        ("disable-controller", "maybe"),
        ("heal", "never"),
        ("ec2-budget", "much"),
        ("kubeconfig", " "),
        ("log-format", "xml"),
        ("max-node-reconcile", "-1"),
    ];
    let any_text = ["aws-region", "role-arn", "log-level"];
    every_bad_flag("trunkline-coordinator", &good, &bad, &any_text);
}
