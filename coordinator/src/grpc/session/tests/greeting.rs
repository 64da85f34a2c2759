//! Who is let in, and how a stream ends.

use std::time::Duration;

use serde_json::{Value, json};
use trunkline_core::id::Epoch;
use trunkline_core::time::Timing;
use trunkline_proto::convert::{FromCoordinator, Greeting, Hello};
use trunkline_proto::v1;
use trunkline_proto::v1::RefusalReason;

use super::world::{World, agent_pod, hello, node_object, quick, token, until};
use crate::grpc::Lead;
use crate::nodes::directory::Change;

#[tokio::test]
async fn tokens_that_prove_nothing_are_refused() {
    let world = World::leading().await;
    let cases: [(&str, Value); 6] = [
        ("authenticated", json!(false)),
        ("audience", json!("https://kubernetes.default.svc")),
        ("user", json!("system:serviceaccount:shop:default")),
        ("node", Value::Null),
        ("pod_uid", Value::Null),
        ("exp", json!(1_000)),
    ];
    for (claim, value) in cases {
        let token = token(|claims| claims[claim] = value.clone());
        assert_eq!(world.refusal(&token, &hello("s")).await, RefusalReason::Token, "{claim}");
    }
    assert_eq!(world.refusal("", &hello("s")).await, RefusalReason::Token);
}

#[tokio::test]
async fn an_agent_speaks_for_the_node_of_its_token_only() {
    let world = World::leading().await;
    let other = Hello { node: "n2".parse().unwrap(), ..hello("s") };
    assert_eq!(world.refusal(&token(|_| {}), &other).await, RefusalReason::OtherNode);
    let unknown = token(|c| c["node"] = json!("n2"));
    assert_eq!(world.refusal(&unknown, &other).await, RefusalReason::NodeUnknown);
}

#[tokio::test]
async fn a_node_without_usable_provider_id_has_no_books_to_speak_for() {
    let world = World::leading().await;
    let mut node = node_object();
    node["spec"]["providerID"] = json!("");
    world.term.directory.nodes(Change::Applied(serde_json::from_value(node).unwrap()));
    assert_eq!(world.refusal(&token(|_| {}), &hello("s")).await, RefusalReason::NodeUnknown);
}

#[tokio::test]
async fn s55_an_agent_of_a_dead_incarnation_is_refused_and_s56_one_of_a_recreated_node_object_is_not()
 {
    let world = World::leading().await;
    let stale = token(|c| c["node_uid"] = json!("node-uid-of-the-dead"));
    assert_eq!(world.refusal(&stale, &hello("s")).await, RefusalReason::DeadIncarnation);
    let unbound = token(|c| c["node_uid"] = Value::Null);
    assert_eq!(world.refusal(&unbound, &hello("s")).await, RefusalReason::DeadIncarnation);
    let same_boot = Hello { boot: "boot-of-node".parse().unwrap(), ..hello("s") };
    assert!(matches!(world.greet(&stale, &same_boot).await.0, Greeting::Welcome(_)));
}

#[tokio::test]
async fn protocol_and_greeting_have_to_fit() {
    let world = World::leading().await;
    let newer = Hello { version: v1::ProtocolVersion { major: 2, minor: 0 }, ..hello("s") };
    assert_eq!(world.refusal(&token(|_| {}), &newer).await, RefusalReason::ProtocolVersion);
}

#[tokio::test]
async fn a_higher_epoch_is_told_to_the_owner_of_the_election() {
    let mut world = World::leading().await;
    let ahead = Hello { highest_epoch: Epoch(9), ..hello("s") };
    assert_eq!(world.refusal(&token(|_| {}), &ahead).await, RefusalReason::Epoch);
    assert_eq!(world.higher.recv().await, Some(Epoch(9)));
}

#[tokio::test]
async fn followers_redirect_and_never_to_themselves() {
    let world = World::leading().await;
    let token = token(|_| {});
    world.lead.send_replace(Lead::Following { address: Some("10.0.0.2:61790".into()) });
    let (greeting, _) = world.greet(&token, &hello("s")).await;
    assert!(matches!(greeting, Greeting::Redirect(address) if address == "10.0.0.2:61790"));
    for lead in [
        Lead::Following { address: None },
        Lead::Following { address: Some("10.0.0.1:61790".into()) },
        Lead::Beginning,
    ] {
        world.lead.send_replace(lead);
        assert_eq!(world.refusal(&token, &hello("s")).await, RefusalReason::NoLeader);
    }
}

#[tokio::test]
async fn of_two_agents_of_one_node_the_newer_pod_wins() {
    let world = World::leading().await;
    world.state(|s| {
        let pods = [
            ("agent-1", "agent-uid-1", "2026-01-02T00:00:00Z"),
            ("agent-2", "agent-uid-2", "2026-01-01T00:00:00Z"),
        ];
        for (name, uid, created) in pods {
            s.pods.insert(format!("trunkline-system/{name}"), agent_pod(name, uid, created));
        }
    });
    let mut first = world.agent(&token(|_| {})).await;
    let second = token(|c| {
        c["pod"] = json!("agent-2");
        c["pod_uid"] = json!("agent-uid-2");
    });
    assert_eq!(
        world.refusal(&second, &hello("session-2")).await,
        RefusalReason::OtherAgent,
        "it is older"
    );
    world.state(|s| {
        s.pods.insert(
            "trunkline-system/agent-2".into(),
            agent_pod("agent-2", "agent-uid-2", "2026-01-03T00:00:00Z"),
        );
    });
    assert!(matches!(world.greet(&second, &hello("session-2")).await.0, Greeting::Welcome(_)));
    assert_eq!(first.ended_by().await, RefusalReason::OtherAgent);
}

#[tokio::test]
async fn an_agent_whose_pod_is_gone_is_replaced_and_the_same_pod_reconnects_at_once() {
    let world = World::leading().await;
    let mut first = world.agent(&token(|_| {})).await;
    let mut again = world.agent(&token(|_| {})).await;
    assert_eq!(first.ended_by().await, RefusalReason::OtherAgent);
    // Neither pod exists: the connected one's is proven gone.
    let second = token(|c| {
        c["pod"] = json!("agent-2");
        c["pod_uid"] = json!("agent-uid-2");
    });
    assert!(matches!(world.greet(&second, &hello("session-2")).await.0, Greeting::Welcome(_)));
    assert_eq!(again.ended_by().await, RefusalReason::OtherAgent);
}

#[tokio::test]
async fn a_stream_ends_with_its_token_unless_it_is_renewed_by_the_same_pod() {
    let soon = || jiff::Timestamp::now().as_second() + 2;
    let world = World::leading().await;
    let mut agent = world.agent(&token(|c| c["exp"] = json!(soon()))).await;
    assert_eq!(agent.ended_by().await, RefusalReason::Token);

    let mut renewed = world.agent(&token(|c| c["exp"] = json!(soon()))).await;
    let message = renewed.sender.token(&token(|_| {}));
    renewed.stream.tx.send(message).await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(4), renewed.ended_by()).await;
    assert!(ended.is_err(), "the stream outlives the first token");

    let foreign = renewed.sender.token(&token(|c| c["pod_uid"] = json!("agent-uid-9")));
    renewed.stream.tx.send(foreign).await.unwrap();
    assert_eq!(renewed.ended_by().await, RefusalReason::Token);
}

#[tokio::test]
async fn a_silent_agent_loses_its_session() {
    let world = World::with(&Timing { agent_silence: Duration::from_millis(200), ..quick() }).await;
    let mut agent = world.agent(&token(|_| {})).await;
    assert_eq!(agent.ended_by().await, RefusalReason::Protocol);
}

#[tokio::test]
async fn a_refused_message_asks_for_a_resync() {
    let world = World::leading().await;
    let mut agent = world.agent(&token(|_| {})).await;
    let mut broken = agent.sender.token("");
    broken.body = Some(v1::agent_message::Body::SnapshotEnd(v1::SnapshotEnd::default()));
    agent.stream.tx.send(broken).await.unwrap();
    agent.hear_until(|m| matches!(m, FromCoordinator::Resync(_)).then_some(())).await;
}

#[tokio::test]
async fn the_end_of_a_term_ends_its_sessions() {
    let world = World::leading().await;
    let mut agent = world.agent(&token(|_| {})).await;
    world.term.stop.cancel();
    // The server of this test ends with the term too: the stream may break before it tells why.
    while agent.hear().await.is_some() {}
    until("all tasks ended", || world.term.tasks.is_empty()).await;
}
