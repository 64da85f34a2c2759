use super::*;

use serde_json::{Value, json};
use trunkline_core::fact::PodGone;
use trunkline_core::id::{Namespace, PodName, PodUid};
use trunkline_core::time::Moment;

use crate::script::{scripted, status};

fn asked() -> PodRef {
    PodRef {
        uid: PodUid::new("u1").unwrap(),
        namespace: Namespace::new("web").unwrap(),
        name: PodName::new("shop-0").unwrap(),
    }
}

fn pod(uid: &str) -> Value {
    json!({"kind": "Pod", "apiVersion": "v1",
           "metadata": {"uid": uid, "namespace": "web", "name": "shop-0", "resourceVersion": "77"},
           "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}})
}

/// What the lookup says when the answer is this.
async fn lookup(code: u16, text: &str) -> Lookup {
    let (api, mut script) = scripted();
    let asked = asked();
    let (found, ()) = tokio::join!(get_pod(&api, &asked), async {
        let request = script.next().await;
        assert_eq!(request.path, "/api/v1/namespaces/web/pods/shop-0");
        assert_eq!(request.query, [""], "no resourceVersion: answered from etcd");
        request.text(code, text);
    });
    found
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_known_with_its_version_and_node_whatever_its_uid() {
    for uid in ["u1", "u2"] {
        let Lookup::Known(live) = lookup(200, &pod(uid).to_string()).await else {
            panic!("not known")
        };
        assert_eq!((live.pod.pod.uid.as_str(), live.rv.as_str()), (uid, "77"));
        assert_eq!(live.node.unwrap().as_str(), "n1");
        let gone = PodGone::from_other_uid(&asked(), &live.pod.pod.uid, Moment(1));
        assert_eq!(gone.is_some(), uid == "u2");
    }
}

#[tokio::test(start_paused = true)]
async fn gone_needs_the_api_servers_word_about_this_very_pod() {
    let gone = status(404, "NotFound", &json!({"name": "shop-0", "kind": "pods"}));
    assert!(matches!(lookup(404, &gone.to_string()).await, Lookup::Gone(_)));
}

#[tokio::test(start_paused = true)]
async fn every_other_404_is_unknown() {
    let bad = [
        status(404, "NotFound", &json!({})),
        status(404, "NotFound", &json!({"name": "shop-1", "kind": "pods"})),
        status(404, "NotFound", &json!({"name": "web", "kind": "namespaces"})),
        status(404, "NotFound", &json!({"kind": "pods"})),
        status(404, "Gone", &json!({"name": "shop-0", "kind": "pods"})),
        json!({"reason": "NotFound", "details": {"name": "shop-0", "kind": "pods"}}),
        json!("404 page not found"),
    ];
    for answer in bad {
        assert!(matches!(lookup(404, &answer.to_string()).await, Lookup::Unknown(_)), "{answer}");
    }
    assert!(matches!(lookup(404, "<html>no such page</html>").await, Lookup::Unknown(_)));
    let gone = status(404, "NotFound", &json!({"name": "shop-0", "kind": "pods"})).to_string();
    for code in [200, 403, 410, 500, 503] {
        assert!(matches!(lookup(code, &gone).await, Lookup::Unknown(_)), "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_about_something_else_is_unknown() {
    let mut other_name = pod("u1");
    other_name["metadata"]["name"] = json!("shop-1");
    let mut other_kind = pod("u1");
    other_kind["kind"] = json!("PodList");
    let mut no_version = pod("u1");
    no_version["metadata"]["resourceVersion"] = json!("");
    let mut no_uid = pod("u1");
    no_uid["metadata"]["uid"] = json!("");
    for answer in [other_name, other_kind, no_version, no_uid, json!({}), json!([])] {
        assert!(matches!(lookup(200, &answer.to_string()).await, Lookup::Unknown(_)), "{answer}");
    }
    assert!(matches!(lookup(200, "").await, Lookup::Unknown(_)));
}

#[tokio::test(start_paused = true)]
async fn a_lost_and_a_late_answer_are_unknown() {
    let (api, mut script) = scripted();
    let asked = asked();
    let (found, ()) = tokio::join!(get_pod(&api, &asked), async { drop(script.next().await) });
    assert!(matches!(found, Lookup::Unknown(ApiError::Transport(_))));
    let late = get_pod(&api, &asked).await;
    assert!(matches!(late, Lookup::Unknown(ApiError::Timeout { .. })));
}
