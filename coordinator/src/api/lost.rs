//! What a pod that lost its branch is told on its own object, and its eviction.
//!
//! The condition `trunkline.dev/BranchENI` is `False` from the moment on at which a loss is established until the branch
//! works again. Both writes are bound to the pod's UID, so that a pod of the same name is never meant.

use serde::Deserialize;
use serde_json::json;
use trunkline_core::heal::Health;
use trunkline_core::id::PodRef;
use trunkline_core::node::event::{Condition, Evicted};

use super::{Api, ApiError};

/// Type of the pod condition.
pub const CONDITION: &str = "trunkline.dev/BranchENI";

fn path(pod: &PodRef) -> String {
    format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name)
}

/// Writes the pod's condition.
pub async fn set_condition(api: &Api, condition: &Condition) -> Result<(), ApiError> {
    let works = condition.health == Health::Ok;
    let message: String = condition.message.chars().take(1_000).collect();
    let body = json!({
        "metadata": {"uid": condition.pod.uid.as_str()},
        "status": {"conditions": [{
            "type": CONDITION,
            "status": if works { "True" } else { "False" },
            "reason": format!("{:?}", condition.health),
            "message": message,
            "lastTransitionTime": jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        }]},
    });
    api.strategic_patch(&format!("{}/status", path(&condition.pod)), &body).await
}

#[derive(Deserialize)]
struct PodObject {
    metadata: PodMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodMeta {
    uid: String,
    #[serde(default)]
    owner_references: Vec<Owner>,
}

#[derive(Deserialize)]
struct Owner {
    #[serde(default)]
    controller: bool,
}

/// Evicts a pod that a controller replaces, through the eviction API, which keeps disruption budgets.
pub async fn evict(api: &Api, pod: &PodRef) -> Evicted {
    let found: PodObject = match api.get(&path(pod)).await {
        Ok(found) => found,
        Err(e) => return Evicted::Refused(e.to_string()),
    };
    if found.metadata.uid != pod.uid.as_str() {
        return Evicted::Refused("the name belongs to another pod by now".into());
    }
    if !found.metadata.owner_references.iter().any(|o| o.controller) {
        return Evicted::NoController;
    }
    let eviction = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": pod.namespace.as_str(), "name": pod.name.as_str()},
        "deleteOptions": {"preconditions": {"uid": pod.uid.as_str()}},
    });
    match api.post::<serde_json::Value>(&format!("{}/eviction", path(pod)), &eviction).await {
        Ok(_) => Evicted::Done,
        Err(e) => Evicted::Refused(e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::testing::{Asked, scripted};

    fn pod() -> PodRef {
        PodRef {
            uid: "uid-1".parse().unwrap(),
            namespace: "shop".parse().unwrap(),
            name: "web-0".parse().unwrap(),
        }
    }

    fn object(uid: &str, owners: &serde_json::Value) -> String {
        json!({"kind": "Pod", "metadata": {"uid": uid, "ownerReferences": owners}}).to_string()
    }

    async fn evicted(object: String, answer: u16) -> (Evicted, Vec<Asked>) {
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let log = asked.clone();
        let api = scripted(move |request| {
            let get = request.method == "GET";
            log.lock().unwrap().push(request);
            let status = json!({"kind": "Status", "reason": "TooManyRequests", "message": "pdb"});
            if get { (200, object.clone()) } else { (answer, status.to_string()) }
        });
        let outcome = evict(&api, &pod()).await;
        let asked = asked.lock().unwrap().clone();
        (outcome, asked)
    }

    #[tokio::test]
    async fn only_a_pod_with_a_controller_and_the_same_uid_is_evicted() {
        let owned = json!([{"controller": true}]);
        let (outcome, asked) = evicted(object("uid-1", &owned), 201).await;
        assert_eq!(outcome, Evicted::Done);
        assert_eq!(asked[1].path, "/api/v1/namespaces/shop/pods/web-0/eviction");
        assert_eq!(asked[1].body["deleteOptions"]["preconditions"]["uid"], "uid-1");
        let (outcome, asked) = evicted(object("uid-1", &json!([{}])), 201).await;
        assert_eq!((outcome, asked.len()), (Evicted::NoController, 1));
        let (outcome, asked) = evicted(object("uid-2", &owned), 201).await;
        assert!(matches!(outcome, Evicted::Refused(_)) && asked.len() == 1);
        let (outcome, _) = evicted(object("uid-1", &owned), 429).await;
        assert!(matches!(outcome, Evicted::Refused(_)), "a disruption budget refuses");
    }

    #[tokio::test]
    async fn the_condition_is_merged_into_the_pods_status_and_bound_to_its_uid() {
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let log = asked.clone();
        let api = scripted(move |request| {
            log.lock().unwrap().push(request);
            (200, "{}".into())
        });
        let condition = Condition { pod: pod(), health: Health::Missing, message: "gone".into() };
        set_condition(&api, &condition).await.unwrap();
        let asked = asked.lock().unwrap();
        assert!(asked[0].path.starts_with("/api/v1/namespaces/shop/pods/web-0/status?"));
        assert_eq!(asked[0].content_type, "application/strategic-merge-patch+json");
        assert_eq!(asked[0].body["metadata"]["uid"], "uid-1");
        let written = &asked[0].body["status"]["conditions"][0];
        assert_eq!(
            (written["type"].as_str(), written["status"].as_str()),
            (Some(CONDITION), Some("False"))
        );
        assert_eq!(written["reason"], "Missing");
    }
}
