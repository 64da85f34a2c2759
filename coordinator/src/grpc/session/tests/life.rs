//! One pod's life over the wire: want, branch, annotation; gone, disassociated, deleted.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use trunkline_core::fact::{BarrierReply, GoneBy, OverKind, ReleaseFacts, ReportedRelease, Way};
use trunkline_core::id::{EniId, MacAddress, PodRef, PodUid, ResourceVersion};
use trunkline_core::message::{Ack, Change, FromAgent, ToAgent};
use trunkline_core::view::{Link, LinkKind, Links, Pod, PodPhase, Snapshot};
use trunkline_proto::convert::FromCoordinator;

use super::world::{BOOT, START, TestAgent, World, instance, own_cgroup, pod, token, until};

fn reference() -> PodRef {
    PodRef {
        uid: "pod-uid-1".parse().unwrap(),
        namespace: "shop".parse().unwrap(),
        name: "web-0".parse().unwrap(),
    }
}

fn wanting() -> Pod {
    Pod {
        pod: reference(),
        labels: BTreeMap::from([("app".to_owned(), "web".to_owned())]),
        account: None,
        phase: PodPhase::Pending,
        deleting: false,
        mirror: false,
        config_hash: None,
        requested: 1,
        odd_request: None,
        annotation: None,
    }
}

fn to_agent(message: &FromCoordinator) -> Option<&ToAgent> {
    match message {
        FromCoordinator::Message(message) => Some(message),
        _ => None,
    }
}

async fn trunk_mac(agent: &mut TestAgent) -> MacAddress {
    agent
        .hear_until(|m| match to_agent(m) {
            Some(ToAgent::Trunk(mac)) => *mac,
            _ => None,
        })
        .await
}

async fn show_views(agent: &mut TestAgent, trunk: MacAddress, pods: Vec<Pod>) {
    agent.say(FromAgent::VlansUsed(Some(BTreeMap::new()))).await;
    let mut list = Snapshot::begin();
    for pod in pods {
        list.add(pod);
    }
    agent.say(FromAgent::Pods(Ok(list.close(ResourceVersion::new("9").unwrap())))).await;
    let link = Link {
        index: 3,
        name: "eth1".into(),
        kind: LinkKind::Other(String::new()),
        mac: Some(trunk),
        parent: None,
    };
    agent.say(FromAgent::Links(Ok(Links(vec![link])))).await;
    agent.say(FromAgent::Cgroups(Ok(own_cgroup()))).await;
}

/// Answers barriers with "nothing there" until `wanted` is heard.
async fn serve_until<T>(agent: &mut TestAgent, mut wanted: impl FnMut(&ToAgent) -> Option<T>) -> T {
    loop {
        let heard = agent.hear().await.expect("the stream ended");
        let Some(message) = to_agent(&heard) else { continue };
        if let Some(found) = wanted(message) {
            return found;
        }
        if let ToAgent::Barrier { question, uids } = message {
            let reply = BarrierReply {
                origin: agent.origin.clone(),
                question: *question,
                boot: BOOT.parse().unwrap(),
                start: Some(START),
                present: uids.iter().map(|uid| (uid.clone(), Some(false))).collect(),
                vlans: Some(BTreeSet::new()),
            };
            agent.say(FromAgent::Barrier(reply)).await;
        }
    }
}

async fn owned_eni(agent: &mut TestAgent) -> EniId {
    serve_until(agent, |m| match m {
        ToAgent::OwnedChanged { added, .. } => added.first().map(|b| b.eni.clone()),
        ToAgent::OwnedAll(all) => all.first().map(|b| b.eni.clone()),
        _ => None,
    })
    .await
}

fn patches(world: &World) -> Vec<Value> {
    world.state(|s| {
        let of_pod =
            |a: &&crate::testing::Asked| a.method == "PATCH" && a.path.contains("/pods/web-0");
        s.log.iter().filter(of_pod).map(|a| a.body.clone()).collect()
    })
}

async fn annotated(world: &World) -> Value {
    until("the annotation is written", || !patches(world).is_empty()).await;
    patches(world).remove(0)
}

#[tokio::test]
async fn a_pod_gets_its_branch_and_gives_it_back() {
    let world = World::leading().await;
    world.state(|s| {
        s.pods.insert("shop/web-0".into(), pod("web-0", "pod-uid-1"));
        s.policies = vec![json!({
            "metadata": {"name": "web"},
            "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "securityGroups": {"groupIds": ["sg-web"]}},
        })];
    });
    // The labels that count are those of the live pod.
    world.state(|s| {
        s.pods.get_mut("shop/web-0").unwrap()["metadata"]["labels"] = json!({"app": "web"});
    });
    let mut agent = world.agent(&token(|_| {})).await;
    let mac = trunk_mac(&mut agent).await;
    assert_eq!(mac, world.cloud.trunks(&instance())[0].mac);
    show_views(&mut agent, mac, vec![wanting()]).await;
    let eni = owned_eni(&mut agent).await;
    let patch = annotated(&world).await;
    assert_eq!(patch["metadata"]["uid"], "pod-uid-1");
    assert_eq!(patch["metadata"]["resourceVersion"], "77");
    let text = patch["metadata"]["annotations"]["vpc.amazonaws.com/pod-eni"].as_str().unwrap();
    let branch: Value = serde_json::from_str(text).unwrap();
    assert_eq!(branch[0]["eniId"], eni.as_str());
    let held = world.cloud.state().enis[&eni].clone();
    assert_eq!(held.groups, vec!["sg-web".parse().unwrap()]);
    assert_eq!(held.tags.pod_uid.value(), Some(&reference().uid));

    // The scheduler's figure is advertised once the trunk is ready.
    until("capacity", || {
        world.state(|s| {
            s.log.iter().any(|a| {
                a.path.starts_with("/api/v1/nodes/n1/status")
                    && a.body["status"]["capacity"]["vpc.amazonaws.com/pod-eni"] == "9"
            })
        })
    })
    .await;

    world.state(|s| s.pods.remove("shop/web-0"));
    agent.say(FromAgent::Change(Change::PodDeleted(reference()))).await;
    let facts = ReleaseFacts {
        uid: reference().uid,
        over: OverKind::Gone(GoneBy::WatchDeleted),
        way: Way::SeenAndGone,
        boot: BOOT.parse().unwrap(),
        start: START,
        enis: BTreeSet::from([eni.clone()]),
    };
    let release = FromAgent::Release(ReportedRelease::received(facts, agent.origin.clone()));
    agent.say(release.clone()).await;
    let uid: PodUid = reference().uid;
    serve_until(&mut agent, |m| {
        matches!(m, ToAgent::Ack(u, Ack::Executing | Ack::Deleted) if *u == uid).then_some(())
    })
    .await;
    until("the ENI is deleted", || !world.cloud.state().enis.contains_key(&eni)).await;
    agent.say(release).await;
    serve_until(&mut agent, |m| {
        matches!(m, ToAgent::Ack(u, Ack::Deleted) if *u == uid).then_some(())
    })
    .await;
    let log: Vec<&str> = world
        .cloud
        .state()
        .log
        .iter()
        .copied()
        .filter(|a| ["create", "associate", "disassociate", "delete"].contains(a))
        .collect();
    assert_eq!(log, ["create", "associate", "disassociate", "delete"]);
}

#[tokio::test]
async fn t2_t3_lost_replies_leave_one_eni_and_one_annotation() {
    let world = World::leading().await;
    world.state(|s| {
        s.pods.insert("shop/web-0".into(), pod("web-0", "pod-uid-1"));
    });
    world.cloud.state().lost_replies.extend([("create", 1), ("associate", 1)]);
    let mut agent = world.agent(&token(|_| {})).await;
    let mac = trunk_mac(&mut agent).await;
    show_views(&mut agent, mac, vec![wanting()]).await;
    let eni = owned_eni(&mut agent).await;
    let patch = annotated(&world).await;
    assert!(patch.to_string().contains(eni.as_str()));
    let of_pod = |w: &World| {
        w.cloud.state().enis.values().filter(|e| e.tags.pod_uid.value().is_some()).count()
    };
    assert_eq!(of_pod(&world), 1);
    assert_eq!(world.cloud.count("delete"), 0);
}

#[tokio::test]
async fn a_release_that_the_api_server_contradicts_is_vetoed() {
    let world = World::leading().await;
    world.state(|s| {
        s.pods.insert("shop/web-0".into(), pod("web-0", "pod-uid-1"));
    });
    let mut agent = world.agent(&token(|_| {})).await;
    let mac = trunk_mac(&mut agent).await;
    show_views(&mut agent, mac, vec![wanting()]).await;
    let eni = owned_eni(&mut agent).await;
    annotated(&world).await;
    // The agent claims that the pod is gone; the live GET still finds it.
    agent.say(FromAgent::Change(Change::PodDeleted(reference()))).await;
    let facts = ReleaseFacts {
        uid: reference().uid,
        over: OverKind::Gone(GoneBy::WatchDeleted),
        way: Way::SeenAndGone,
        boot: BOOT.parse().unwrap(),
        start: START,
        enis: BTreeSet::from([eni.clone()]),
    };
    agent.say(FromAgent::Release(ReportedRelease::received(facts, agent.origin.clone()))).await;
    let uid = reference().uid;
    serve_until(&mut agent, |m| matches!(m, ToAgent::Alive(u) if *u == uid).then_some(())).await;
    assert_eq!(world.cloud.count("disassociate"), 0);
    assert!(world.cloud.state().enis.contains_key(&eni));
}
