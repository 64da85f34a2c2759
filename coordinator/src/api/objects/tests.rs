use std::sync::{Arc, Mutex};

use serde_json::json;
use trunkline_core::eni::SubnetCidrs;
use trunkline_core::id::VlanId;

use super::*;
use crate::testing::{Asked, scripted};

fn pod() -> PodRef {
    PodRef {
        uid: "uid-1".parse().unwrap(),
        namespace: "shop".parse().unwrap(),
        name: "web-0".parse().unwrap(),
    }
}

fn branches() -> Vec<AnnotatedBranch> {
    vec![AnnotatedBranch {
        eni: "eni-0123456789abcdef0".parse().unwrap(),
        mac: "02:11:22:33:44:55".parse().unwrap(),
        ipv4: Some("10.0.1.17".parse().unwrap()),
        ipv6: None,
        vlan: VlanId::new(3).unwrap(),
        cidrs: SubnetCidrs { v4: "10.0.1.0/24".into(), v6: String::new() },
        association: "trunk-assoc-0123456789abcdef0".parse().unwrap(),
    }]
}

async fn annotate_with(code: u16, body: String) -> (Annotated, Asked) {
    let asked: Arc<Mutex<Option<Asked>>> = Arc::default();
    let log = asked.clone();
    let api = scripted(move |request| {
        *log.lock().unwrap() = Some(request);
        (code, body.clone())
    });
    let rv = ResourceVersion::new("77").unwrap();
    let result = annotate(&api, &pod(), &rv, &branches()).await;
    let asked = asked.lock().unwrap().take().unwrap();
    (result, asked)
}

fn status(reason: &str) -> String {
    json!({"kind": "Status", "reason": reason, "message": reason}).to_string()
}

#[tokio::test]
async fn ann_4_the_annotation_is_bound_to_uid_and_resource_version() {
    let pod = |annotation: String| {
        json!({"metadata": {"uid": "uid-1", "annotations": {"vpc.amazonaws.com/pod-eni": annotation}}})
            .to_string()
    };
    let (result, asked) = annotate_with(200, pod(annotation::write(&branches()))).await;
    assert_eq!(result, Annotated::Done);
    for other in ["{}".into(), "<html>proxy</html>".into(), pod(String::new())] {
        let (result, _) = annotate_with(200, other).await;
        assert!(
            matches!(result, Annotated::Unknown(_)),
            "another's 200 proves nothing: {result:?}"
        );
    }
    assert_eq!(asked.method, "PATCH");
    assert_eq!(asked.content_type, "application/merge-patch+json");
    assert!(asked.path.starts_with("/api/v1/namespaces/shop/pods/web-0?"));
    assert_eq!(asked.body["metadata"]["uid"], "uid-1");
    assert_eq!(asked.body["metadata"]["resourceVersion"], "77");
    let text = asked.body["metadata"]["annotations"]["vpc.amazonaws.com/pod-eni"].as_str().unwrap();
    assert!(text.starts_with(r#"[{"eniId":"eni-0123456789abcdef0","ifAddress":"#));
    assert_eq!(asked.body.as_object().unwrap().len(), 1, "nothing else is touched");
}

#[tokio::test]
async fn s46_s47_t2_refused_conflicting_and_lost_patches_are_told_apart() {
    assert_eq!(annotate_with(409, status("Conflict")).await.0, Annotated::Conflict);
    assert_eq!(annotate_with(404, status("NotFound")).await.0, Annotated::Conflict);
    for code in [403, 422] {
        assert!(matches!(annotate_with(code, status("Forbidden")).await.0, Annotated::Refused(_)));
    }
    for (code, body) in [
        (504, status("Timeout")),
        (500, status("InternalError")),
        (502, "<html>".into()),
        (403, "<html>".into()),
    ] {
        assert!(matches!(annotate_with(code, body).await.0, Annotated::Unknown(_)), "{code}");
    }
}

#[tokio::test]
async fn cnn_1_a_cninode_that_exists_already_is_success() {
    let parts = CniNodeParts {
        name: "n1".parse().unwrap(),
        owner: "node-uid".parse().unwrap(),
        os: None,
        cluster: "c1".into(),
        instance: None,
    };
    let api = scripted(|_| (409, status("AlreadyExists")));
    assert_eq!(create_cninode(&api, &parts).await, Ok(()));
    let api = scripted(|_| (403, status("Forbidden")));
    assert!(create_cninode(&api, &parts).await.is_err());
}

#[tokio::test]
async fn an_agents_pod_is_gone_only_by_the_api_servers_word() {
    let look = |code, body: String| async move {
        let api = scripted(move |_| (code, body.clone()));
        incarnation(&api, &"ns".parse().unwrap(), &"agent".parse().unwrap()).await
    };
    let pod = json!({"kind": "Pod", "metadata": {"name": "agent", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}});
    assert_eq!(look(200, pod.to_string()).await.unwrap().unwrap().created, 1_767_225_600);
    assert_eq!(look(404, status("NotFound")).await, Ok(None));
    assert!(look(404, "<html>".into()).await.is_err());
    assert!(look(200, json!({"kind": "Pod", "metadata": {"name": "x", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}}).to_string()).await.is_err());
}
