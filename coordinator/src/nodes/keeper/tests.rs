use std::sync::Mutex;

use serde_json::{Value, json};
use trunkline_core::time::Timing;
use trunkline_kit::clock::Clock;

use super::*;
use crate::events::{Notice, captured};
use crate::nodes::directory::Change;
use crate::testing::{Asked, FakeCloud, begin_term, branch, eni_id, failure, scripted};

struct World {
    term: Arc<Term>,
    cloud: Arc<FakeCloud>,
    asked: Arc<Mutex<Vec<Asked>>>,
    notices: tokio::sync::mpsc::Receiver<Notice>,
    /// What GETs answer, by path; everything else is accepted.
    objects: Arc<Mutex<std::collections::BTreeMap<String, (u16, Value)>>>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.term.stop.cancel();
    }
}

fn instance() -> InstanceId {
    "i-00000001".parse().unwrap()
}

fn world() -> World {
    let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
    let objects: Arc<Mutex<std::collections::BTreeMap<String, (u16, Value)>>> = Arc::default();
    let (log, answers) = (asked.clone(), objects.clone());
    let api = scripted(move |request| {
        let found =
            answers.lock().unwrap().get(&request.path).filter(|_| request.method == "GET").cloned();
        log.lock().unwrap().push(request);
        found.map_or((200, "{}".into()), |(status, body)| (status, body.to_string()))
    });
    let cloud = FakeCloud::new();
    cloud.run_instance(&instance(), "m5.large", 1);
    let (recorder, notices) = captured();
    let (term, _settings) =
        begin_term(&api, &cloud, Clock::virtual_time(), &Timing::default(), recorder);
    World { term, cloud, asked, notices, objects }
}

impl World {
    fn show(&self, node: Option<Value>, cninode: Option<Value>) {
        let nodes = node.into_iter().map(|n| serde_json::from_value(n).unwrap()).collect();
        self.term.directory.nodes(Change::Listed(nodes));
        let cninodes = cninode.into_iter().map(|n| serde_json::from_value(n).unwrap()).collect();
        self.term.directory.cninodes(Change::Listed(cninodes));
        for (name, wake) in self.term.directory.take_appeared() {
            self.term.spawn(Keeper::new(self.term.clone(), name, wake).run());
        }
    }

    /// Writes to a path, oldest first.
    fn writes(&self, method: &str, path: &str) -> Vec<Value> {
        let asked = self.asked.lock().unwrap();
        let to = |a: &&Asked| a.method == method && a.path.split('?').next() == Some(path);
        asked.iter().filter(to).map(|a| a.body.clone()).collect()
    }

    fn reasons(&mut self) -> Vec<Reason> {
        std::iter::from_fn(|| self.notices.try_recv().ok()).map(|n| n.reason).collect()
    }
}

const CNINODE: &str = "/apis/vpcresources.k8s.aws/v1alpha1/cninodes/n1";
const STATUS: &str = "/api/v1/nodes/n1/status";

fn node(capacity: &Value) -> Value {
    json!({
        "metadata": {"name": "n1", "uid": "node-uid", "labels": {"kubernetes.io/os": "linux"}},
        "spec": {"providerID": "aws:///eu-west-1a/i-00000001"},
        "status": {"capacity": capacity},
    })
}

fn cninode() -> Value {
    json!({
        "metadata": {
            "name": "n1", "uid": "cni-uid", "resourceVersion": "7",
            "labels": {"kubernetes.io/os": "linux"},
            "finalizers": ["networking.k8s.aws/resource-cleanup"],
        },
        "spec": {
            "features": [{"name": "SecurityGroupsForPods"}],
            "tags": {
                "cluster.k8s.amazonaws.com/name": "c1",
                "node.k8s.amazonaws.com/instance_id": "i-00000001",
            },
        },
    })
}

fn going(mut object: Value) -> Value {
    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    object
}

/// Lets everything run that can; time is paused.
async fn settle() {
    tokio::time::sleep(Duration::from_secs(40)).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_node_gets_its_cninode_and_nothing_else_until_somebody_asks() {
    let world = world();
    world.show(Some(node(&json!({"cpu": "4"}))), None);
    settle().await;
    let made = world.writes("POST", "/apis/vpcresources.k8s.aws/v1alpha1/cninodes");
    assert_eq!(made[0]["metadata"]["name"], "n1");
    assert_eq!(made[0]["metadata"]["finalizers"], json!(["networking.k8s.aws/resource-cleanup"]));
    assert_eq!(
        made[0]["metadata"]["ownerReferences"],
        json!([{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-uid", "controller": true}])
    );
    assert_eq!(made[0]["metadata"]["labels"], json!({"kubernetes.io/os": "linux"}));
    assert_eq!(
        made[0]["spec"],
        json!({"tags": {
            "cluster.k8s.amazonaws.com/name": "c1",
            "node.k8s.amazonaws.com/instance_id": "i-00000001",
        }})
    );
    assert_eq!(world.cloud.count("instance"), 0);
    assert_eq!(world.term.states().values().next().unwrap().name(), "unmanaged");
}

#[tokio::test(start_paused = true)]
async fn s37_capacity_is_written_once_the_trunk_is_ready_and_again_after_a_reset() {
    let mut world = world();
    world.show(Some(node(&json!({"cpu": "4"}))), Some(cninode()));
    settle().await;
    let expected = json!({"status": {"capacity": {"vpc.amazonaws.com/pod-eni": "9"}}});
    assert_eq!(world.writes("PATCH", STATUS)[0], expected);
    assert_eq!(world.reasons(), [Reason::ControllerVersionNotice, Reason::NodeTrunkInitiated]);
    world.show(Some(node(&json!({"cpu": "4", "vpc.amazonaws.com/pod-eni": "9"}))), Some(cninode()));
    settle().await;
    let before = world.writes("PATCH", STATUS).len();
    settle().await;
    assert_eq!(world.writes("PATCH", STATUS).len(), before, "it is right");
    world.show(Some(node(&json!({"cpu": "4", "vpc.amazonaws.com/pod-eni": "0"}))), Some(cninode()));
    settle().await;
    assert!(world.writes("PATCH", STATUS).len() > before);
    assert_eq!(world.cloud.trunks(&instance()).len(), 1);
}

/// The node as it is after `limit` branches were advertised.
fn advertising(limit: &str) -> Value {
    node(&json!({"cpu": "4", "vpc.amazonaws.com/pod-eni": limit}))
}

#[tokio::test(start_paused = true)]
async fn d34_capacity_is_taken_back_when_the_trunk_is_lost_and_comes_back_with_it() {
    let mut world = world();
    world.show(Some(node(&json!({"cpu": "4"}))), Some(cninode()));
    settle().await;
    world.show(Some(advertising("9")), Some(cninode()));
    let trunk = world.cloud.trunks(&instance()).remove(0);
    world.reasons();
    let before = world.writes("PATCH", STATUS).len();
    world.cloud.state().enis.remove(&trunk.id);
    // The next inventory shows that it is gone; by id EC2 is asked again and again.
    tokio::time::sleep(Duration::from_secs(250)).await;
    let withdrawn = json!({"status": {"capacity": {"vpc.amazonaws.com/pod-eni": "0"}}});
    assert_eq!(world.writes("PATCH", STATUS)[before..].first(), Some(&withdrawn));
    world.show(Some(advertising("0")), Some(cninode()));
    let state = world.term.states().remove(&"n1".parse().unwrap()).unwrap();
    assert_eq!((state.name(), state.trouble.unwrap().0), ("waiting", "trunk-hidden"));
    assert_eq!(world.reasons(), [Reason::NodeTrunkFailedInit, Reason::TrunkENILost]);
    let (_, handle) = world.term.actors().remove(0);
    let (ask, answer) = tokio::sync::oneshot::channel();
    handle.mail.send(Mail::Report(ask)).await.unwrap();
    assert!(answer.await.unwrap().books.trunk.is_err());
    // It is back.
    world.cloud.put(trunk);
    tokio::time::sleep(Duration::from_secs(100)).await;
    let advertised = json!({"status": {"capacity": {"vpc.amazonaws.com/pod-eni": "9"}}});
    assert_eq!(world.writes("PATCH", STATUS).last(), Some(&advertised));
    assert_eq!(world.reasons(), [Reason::NodeTrunkInitiated]);
    assert_eq!(world.cloud.count("create_trunk"), 1);
}

#[tokio::test(start_paused = true)]
async fn d34_a_new_leader_takes_back_what_the_one_before_advertised_and_answers_that_fail_prove_nothing()
 {
    let mut world = world();
    // Known by its branch only.
    world.cloud.put(branch(8, 7, &instance(), 3));
    world.cloud.fail(
        "describe",
        vec![failure(trunkline_core::eni::FailureClass::OutcomeUnknown, "timeout"); 12],
    );
    world.show(Some(advertising("9")), Some(cninode()));
    tokio::time::sleep(Duration::from_secs(200)).await;
    assert!(world.cloud.count("describe") > 3);
    assert!(world.writes("PATCH", STATUS).is_empty(), "unknown is not lost");
    world.cloud.state().failures.clear();
    tokio::time::sleep(Duration::from_secs(250)).await;
    let withdrawn = json!({"status": {"capacity": {"vpc.amazonaws.com/pod-eni": "0"}}});
    assert_eq!(world.writes("PATCH", STATUS).first(), Some(&withdrawn));
    assert!(world.reasons().contains(&Reason::TrunkENILost));
}

#[tokio::test(start_paused = true)]
async fn lim_2_a_lower_limit_that_ec2_enforces_is_advertised_and_told_to_the_books() {
    let world = world();
    world.show(Some(node(&json!({"cpu": "4"}))), Some(cninode()));
    settle().await;
    world.term.branch_limit_refused(&"n1".parse().unwrap(), 6);
    settle().await;
    assert_eq!(
        world.writes("PATCH", STATUS).last().unwrap(),
        &json!({"status": {"capacity": {"vpc.amazonaws.com/pod-eni": "6"}}})
    );
    let (_, handle) = world.term.actors().remove(0);
    let (ask, answer) = tokio::sync::oneshot::channel();
    handle.mail.send(Mail::Report(ask)).await.unwrap();
    assert_eq!(answer.await.unwrap().books.trunk.unwrap().2, 6);
}

#[tokio::test(start_paused = true)]
async fn s39_an_unsupported_type_is_told_once_and_gets_no_ec2_write() {
    let mut world = world();
    world.cloud.run_instance(&instance(), "c3.large", 1);
    world.show(Some(node(&json!({"cpu": "4"}))), Some(cninode()));
    for n in 0..20 {
        tokio::time::sleep(Duration::from_secs(600)).await;
        world.show(Some(node(&json!({"cpu": n.to_string()}))), Some(cninode()));
    }
    let reasons = world.reasons();
    assert_eq!(reasons.iter().filter(|r| **r == Reason::Unsupported).count(), 1);
    assert!(world.cloud.count("instance") < 10, "a lasting failure is looked at rarely");
    assert_eq!(world.cloud.count("create_trunk"), 0);
    assert!(world.writes("PATCH", STATUS).is_empty());
    let state = world.term.states().remove(&"n1".parse().unwrap()).unwrap();
    assert_eq!(state.trouble.unwrap().0, "no-trunking");
}

#[tokio::test(start_paused = true)]
async fn s60_s82_a_failed_set_up_is_told_with_its_code_and_repeated_with_backoff() {
    let mut world = world();
    let refused = failure(trunkline_core::eni::FailureClass::Unauthorised, "UnauthorizedOperation");
    world.cloud.fail("create_trunk", vec![refused; 6]);
    world.show(Some(node(&json!({"cpu": "4"}))), Some(cninode()));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let notices: Vec<Notice> = std::iter::from_fn(|| world.notices.try_recv().ok()).collect();
    let reasons: Vec<Reason> = notices.iter().map(|n| n.reason).collect();
    assert_eq!(
        reasons,
        [
            Reason::ControllerVersionNotice,
            Reason::TrunkENICreationFailed,
            Reason::NodeTrunkFailedInit
        ]
    );
    assert!(notices[1].message.contains("UnauthorizedOperation"));
    assert_eq!(notices[1].target, Target::NodeByUid("n1".parse().unwrap(), "node-uid".into()));
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!(
        world.reasons(),
        [Reason::NodeTrunkInitiated],
        "repeated failures are not told again"
    );
    assert_eq!(world.cloud.trunks(&instance()).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn cnn_6_a_cninode_deleted_while_its_node_lives_is_made_anew_with_its_spec() {
    let world = world();
    world.objects.lock().unwrap().insert(
        CNINODE.into(),
        (404, json!({"kind": "Status", "reason": "NotFound", "details": {"kind": "cninodes", "name": "n1"}})),
    );
    world.show(Some(node(&json!({"cpu": "4"}))), Some(going(cninode())));
    settle().await;
    let freed = &world.writes("PATCH", CNINODE)[0];
    assert_eq!(freed["metadata"]["finalizers"], json!([]));
    assert_eq!(freed["metadata"]["resourceVersion"], "7");
    let made = &world.writes("POST", "/apis/vpcresources.k8s.aws/v1alpha1/cninodes")[0];
    assert_eq!(made["spec"], cninode()["spec"]);
    assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], "node-uid", "the Node as it is now");
}

#[tokio::test(start_paused = true)]
async fn d9_t8_the_finalizer_stays_until_the_nodes_enis_are_gone() {
    let world = world();
    world.cloud.put(branch(8, 7, &instance(), 3));
    let gone =
        json!({"kind": "Status", "reason": "NotFound", "details": {"kind": "nodes", "name": "n1"}});
    world.objects.lock().unwrap().insert("/api/v1/nodes/n1".into(), (404, gone));
    world.show(None, Some(going(cninode())));
    tokio::time::sleep(Duration::from_secs(900)).await;
    assert!(world.writes("PATCH", CNINODE).is_empty());
    world.cloud.state().enis.remove(&eni_id(8));
    tokio::time::sleep(Duration::from_secs(400)).await;
    assert_eq!(world.writes("PATCH", CNINODE)[0]["metadata"]["finalizers"], json!([]));
}

#[tokio::test(start_paused = true)]
async fn d3_d9_the_finalizer_needs_the_api_servers_word_that_the_node_is_gone_and_goes_after_an_hour()
 {
    let mut world = world();
    world.cloud.put(branch(8, 7, &instance(), 3));
    world.objects.lock().unwrap().insert("/api/v1/nodes/n1".into(), (503, json!({})));
    world.show(None, Some(going(cninode())));
    tokio::time::sleep(Duration::from_secs(2 * 3_600)).await;
    assert!(world.writes("PATCH", CNINODE).is_empty(), "an error is not a NotFound");
    let gone =
        json!({"kind": "Status", "reason": "NotFound", "details": {"kind": "nodes", "name": "n1"}});
    world.objects.lock().unwrap().insert("/api/v1/nodes/n1".into(), (404, gone));
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(!world.writes("PATCH", CNINODE).is_empty());
    assert_eq!(world.reasons(), [Reason::CNINodeFinalizerRemoved]);
}

#[tokio::test(start_paused = true)]
async fn s06_a_node_that_nobody_asks_for_any_more_keeps_its_trunk_for_its_pods() {
    let world = world();
    world.show(Some(node(&json!({"cpu": "4"}))), Some(cninode()));
    settle().await;
    let mut unasked = cninode();
    unasked["spec"]["features"] = json!([]);
    world.show(Some(node(&json!({"cpu": "4"}))), Some(unasked));
    settle().await;
    let (_, handle) = world.term.actors().remove(0);
    let (ask, answer) = tokio::sync::oneshot::channel();
    handle.mail.send(Mail::Report(ask)).await.unwrap();
    assert!(answer.await.unwrap().books.trunk.is_ok());
    assert_eq!(world.cloud.trunks(&instance()).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn s55_another_machine_under_the_same_name_has_books_of_its_own() {
    let world = world();
    world.show(Some(node(&json!({"cpu": "4"}))), Some(cninode()));
    settle().await;
    let second: InstanceId = "i-00000002".parse().unwrap();
    world.cloud.run_instance(&second, "m5.large", 2);
    let mut other = node(&json!({"cpu": "4"}));
    other["metadata"]["uid"] = json!("node-uid-2");
    other["spec"]["providerID"] = json!("aws:///eu-west-1a/i-00000002");
    world.show(Some(other), Some(cninode()));
    settle().await;
    assert_eq!(world.cloud.trunks(&second).len(), 1);
    assert_eq!(world.cloud.trunks(&instance()).len(), 1);
    assert_eq!(world.term.actors().len(), 2);
    assert_eq!(
        world.writes("PATCH", CNINODE)[0]["spec"]["tags"]["node.k8s.amazonaws.com/instance_id"],
        "i-00000002"
    );
}
