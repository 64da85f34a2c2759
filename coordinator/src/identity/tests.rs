use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::*;
use crate::testing::scripted;

fn token(exp: i64) -> String {
    let claims =
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(json!({"exp": exp}).to_string());
    format!("head.{claims}.sign")
}

fn later() -> i64 {
    jiff::Timestamp::now().as_second() + 3_600
}

fn good() -> Value {
    json!({"status": {"authenticated": true, "audiences": ["trunkline"], "user": {
    "username": "system:serviceaccount:trunkline-system:trunkline-agent",
    "extra": {
        "authentication.kubernetes.io/node-name": ["n1"],
        "authentication.kubernetes.io/node-uid": ["node-uid-1"],
        "authentication.kubernetes.io/pod-name": ["agent-x"],
        "authentication.kubernetes.io/pod-uid": ["pod-uid-1"],
    }}}})
}

async fn verify(answer: Value, token: &str) -> Verdict {
    let api = scripted(move |_| (201, answer.to_string()));
    Verifier::new(api, Clock::boot(), "trunkline-system", "trunkline-agent").verify(token).await
}

#[tokio::test]
async fn a_bound_token_names_node_and_pod() {
    let agent = verify(good(), &token(later())).await.unwrap();
    assert_eq!(agent.node.as_str(), "n1");
    assert_eq!(agent.node_uid.unwrap().as_str(), "node-uid-1");
    assert_eq!((agent.namespace.as_str(), agent.pod.as_str()), ("trunkline-system", "agent-x"));
}

#[tokio::test]
async fn a_wrong_token_is_refused_with_its_reason() {
    let changed = |pointer: &str, value: Value| {
        let mut answer = good();
        *answer.pointer_mut(pointer).unwrap() = value;
        answer
    };
    let extra = "/status/user/extra/authentication.kubernetes.io~1";
    let cases = [
        (changed("/status/authenticated", json!(false)), Denied::NotAuthenticated(String::new())),
        (
            changed("/status/audiences", json!(["https://kubernetes.default.svc"])),
            Denied::OtherAudience,
        ),
        (changed("/status/audiences", Value::Null), Denied::OtherAudience),
        (changed(&format!("{extra}node-name"), json!([])), Denied::NotBound("a node")),
        (changed(&format!("{extra}node-name"), json!(["n1", "n2"])), Denied::NotBound("a node")),
        (changed(&format!("{extra}node-uid"), json!(["a", "b"])), Denied::NotBound("one node UID")),
        (changed(&format!("{extra}pod-uid"), json!([])), Denied::NotBound("a pod UID")),
    ];
    for (answer, expected) in cases {
        assert_eq!(verify(answer, &token(later())).await, Err(expected));
    }
    let other = changed(
        "/status/user/username",
        json!("system:serviceaccount:trunkline-system:trunkline-agent2"),
    );
    assert!(matches!(verify(other, &token(later())).await, Err(Denied::OtherAccount { .. })));
    assert_eq!(verify(good(), "").await, Err(Denied::Missing));
    assert_eq!(verify(good(), "not-a-jwt").await, Err(Denied::NoExpiry));
    assert_eq!(verify(good(), &token(1_000)).await, Err(Denied::Expired));
}

#[tokio::test]
async fn a_token_of_a_pod_on_a_node_without_node_object_has_no_node_uid() {
    let mut answer = good();
    answer
        .pointer_mut("/status/user/extra")
        .unwrap()
        .as_object_mut()
        .unwrap()
        .remove("authentication.kubernetes.io/node-uid");
    assert_eq!(verify(answer, &token(later())).await.unwrap().node_uid, None);
}

#[tokio::test]
async fn reviews_are_shared_and_an_unanswered_one_is_not_kept() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = calls.clone();
    let api = scripted(move |_| {
        let n = counter.fetch_add(1, Ordering::SeqCst);
        if n == 0 { (503, "unavailable".into()) } else { (201, good().to_string()) }
    });
    let verifier = Verifier::new(api, Clock::boot(), "trunkline-system", "trunkline-agent");
    let token = token(later());
    assert!(verifier.verify(&token).await.unwrap_err().is_temporary());
    let (a, b) = tokio::join!(verifier.verify(&token), verifier.verify(&token));
    assert!(a.is_ok() && b.is_ok());
    assert!(verifier.verify(&token).await.is_ok());
    assert_eq!(calls.load(Ordering::SeqCst), 2, "one unanswered, one shared by all others");
}
