//! The status service: who may ask, and what is told.

use serde_json::json;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request};
use trunkline_proto::LEADER_ADDRESS_METADATA;
use trunkline_proto::v1::status_client::StatusClient;
use trunkline_proto::v1::{
    GetClusterRequest, GetFuseRequest, GetModeRequest, GetNodeRequest, GetPodRequest,
    ListNodesRequest, ListReleasesRequest, ListWaitingRequest, ResetFuseRequest, SetModeRequest,
    reset_fuse_request,
};

use super::world::{World, token, until};
use crate::grpc::Lead;

fn asked<T>(message: T, token: &str) -> Request<T> {
    let mut request = Request::new(message);
    if !token.is_empty() {
        let bearer: MetadataValue<_> = format!("Bearer {token}").parse().unwrap();
        request.metadata_mut().insert("authorization", bearer);
    }
    request
}

fn person() -> String {
    token(|c| c["user"] = json!("system:serviceaccount:shop:person"))
}

#[tokio::test]
async fn callers_are_reviewed_before_anything_is_told() {
    let world = World::leading().await;
    let mut client = StatusClient::new(world.channel.clone());
    let code = |r: Result<tonic::Response<_>, tonic::Status>| r.map(drop).unwrap_err().code();
    assert_eq!(
        code(client.get_cluster(asked(GetClusterRequest {}, "")).await),
        Code::Unauthenticated
    );
    let bad = token(|c| c["authenticated"] = json!(false));
    assert_eq!(
        code(client.get_cluster(asked(GetClusterRequest {}, &bad)).await),
        Code::Unauthenticated
    );
    world.state(|s| s.status_allowed = false);
    assert_eq!(
        code(client.get_cluster(asked(GetClusterRequest {}, &person())).await),
        Code::PermissionDenied
    );
    let review = world
        .state(|s| s.log.iter().rev().find(|a| a.path.ends_with("/subjectaccessreviews")).cloned())
        .unwrap();
    assert_eq!(
        review.body["spec"]["nonResourceAttributes"],
        json!({"path": "/trunkline/status", "verb": "get"})
    );
    assert_eq!(review.body["spec"]["user"], "system:serviceaccount:shop:person");
}

#[tokio::test]
async fn who_may_read_may_not_change_and_who_changes_says_why() {
    let world = World::leading().await;
    let mut client = StatusClient::new(world.channel.clone());
    let mode = |mode: &str, reason: &str| {
        asked(SetModeRequest { mode: mode.into(), reason: reason.into() }, &person())
    };
    let reset = |reason: &str| {
        let what = Some(reset_fuse_request::What::Node("n1".into()));
        asked(ResetFuseRequest { what, reason: reason.into() }, &person())
    };
    let denied = client.set_mode(mode("read-only", "an incident")).await.unwrap_err();
    assert_eq!(denied.code(), Code::PermissionDenied);
    assert!(denied.message().contains("'update'"), "{}", denied.message());
    assert_eq!(client.reset_fuse(reset("why")).await.unwrap_err().code(), Code::PermissionDenied);
    assert!(!world.term.settings.borrow().read_only);
    world.state(|s| (s.status_allowed, s.update_allowed) = (false, true));
    let unread = client.get_fuse(asked(GetFuseRequest {}, &person())).await.unwrap_err();
    assert_eq!(
        unread.code(),
        Code::PermissionDenied,
        "the right to change is not the right to read"
    );
    world.state(|s| s.status_allowed = true);
    for (name, reason) in [("read-only", " "), ("paused", "an incident")] {
        let code = client.set_mode(mode(name, reason)).await.unwrap_err().code();
        assert_eq!(code, Code::InvalidArgument);
    }
    assert_eq!(client.reset_fuse(reset("why")).await.unwrap_err().code(), Code::NotFound);
    client.set_mode(mode("read-only", "an incident")).await.unwrap();
    assert!(world.term.settings.borrow().read_only);
    let told = client.get_mode(asked(GetModeRequest {}, &person())).await.unwrap().into_inner();
    let choice = told.choice.unwrap();
    assert_eq!((told.mode.as_str(), told.flags.as_str()), ("read-only", "normal"));
    assert_eq!(
        (choice.by.as_str(), choice.reason.as_str()),
        ("system:serviceaccount:shop:person", "an incident")
    );
    let cluster =
        client.get_cluster(asked(GetClusterRequest {}, &person())).await.unwrap().into_inner();
    assert_eq!(
        (cluster.mode.as_str(), cluster.mode_choice.unwrap().choice),
        ("read-only", Some(choice))
    );
    let mut releases = client
        .list_releases(asked(ListReleasesRequest::default(), &person()))
        .await
        .unwrap()
        .into_inner();
    assert!(releases.message().await.unwrap().is_none());
}

#[tokio::test]
async fn a_token_for_the_api_server_will_do() {
    let world = World::leading().await;
    let token = token(|c| c["audience"] = json!("https://kubernetes.default.svc"));
    let mut client = StatusClient::new(world.channel.clone());
    assert!(client.get_cluster(asked(GetClusterRequest {}, &token)).await.is_ok());
}

#[tokio::test]
async fn a_follower_names_the_leader() {
    let world = World::leading().await;
    world.lead.send_replace(Lead::Following { address: Some("10.0.0.2:61790".into()) });
    let mut client = StatusClient::new(world.channel.clone());
    let refused = client.get_cluster(asked(GetClusterRequest {}, &person())).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert_eq!(refused.metadata().get(LEADER_ADDRESS_METADATA).unwrap(), "10.0.0.2:61790");
}

#[tokio::test]
async fn cluster_node_and_waits_are_told_with_reasons() {
    let world = World::leading().await;
    until("the trunk is ready", || world.term.states().values().any(|s| s.name() == "ready")).await;
    let mut client = StatusClient::new(world.channel.clone());
    let cluster =
        client.get_cluster(asked(GetClusterRequest {}, &person())).await.unwrap().into_inner();
    assert_eq!(
        (cluster.cluster.as_str(), cluster.epoch, cluster.mode.as_str()),
        ("c1", 7, "normal")
    );
    assert!(cluster.inventory.unwrap().complete);
    let bucket = &cluster.buckets[0];
    assert_eq!(bucket.action, "AssociateTrunkInterface");
    assert_eq!((bucket.tokens, bucket.capacity, bucket.refill_per_second), (48.5, 49.0, 4.75));
    assert_eq!((bucket.waiting, bucket.throttled), (2, 3));
    let mut rows =
        client.list_nodes(asked(ListNodesRequest {}, &person())).await.unwrap().into_inner();
    let row = rows.message().await.unwrap().unwrap();
    assert_eq!((row.name.as_str(), row.managed, row.connected), ("n1", true, false));
    assert_eq!(row.state, "unknown", "it has a trunk and no agent");
    assert_eq!(row.why.unwrap().reason, "disconnected");
    assert_eq!(row.slots.unwrap().limit, 9);
    let get = |name: &str| asked(GetNodeRequest { name: name.into() }, &person());
    let node = client.get_node(get("n1")).await.unwrap().into_inner();
    assert_eq!(
        node.trunk.unwrap().eni_id,
        world.cloud.trunks(&super::world::instance())[0].id.as_str()
    );
    assert_eq!(node.views.len(), 3);
    for name in ["n2", "Not A Name"] {
        assert_eq!(client.get_node(get(name)).await.unwrap_err().code(), Code::NotFound);
    }
    let pod = asked(GetPodRequest { namespace: "shop".into(), name: "web-0".into() }, &person());
    assert_eq!(client.get_pod(pod).await.unwrap_err().code(), Code::NotFound);
    let mut waits = client
        .list_waiting(asked(ListWaitingRequest::default(), &person()))
        .await
        .unwrap()
        .into_inner();
    assert!(waits.message().await.unwrap().is_none());
}
