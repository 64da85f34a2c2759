//! Round trips of every type, and every way in which something from the wire is refused.

mod refusals;
mod strategies;
mod streams;

use std::collections::BTreeSet;

use proptest::prelude::*;
use prost::Message;
use trunkline_core::id::ResourceVersion;
use trunkline_core::message::{FromAgent, ToAgent};
use trunkline_core::view::{Links, Snapshot};

use super::*;
use crate::v1;
use strategies::{from_agent, origin, to_agent, view};

/// Sends messages through bytes, as a stream would.
fn over_the_wire<M: Message + Default>(messages: &[M]) -> Vec<M> {
    messages.iter().map(|m| M::decode(m.encode_to_vec().as_slice()).unwrap()).collect()
}

/// Empty, valid snapshots of all three views, so that deltas count.
fn valid_views() -> Vec<FromAgent> {
    let rv = ResourceVersion::new("5").unwrap();
    vec![
        FromAgent::Pods(Ok(Snapshot::begin().close(rv))),
        FromAgent::Links(Ok(Links::default())),
        FromAgent::Cgroups(Ok(BTreeSet::new())),
    ]
}

/// A sender and a receiver whose views are valid.
fn greeted() -> (AgentSender, AgentReceiver) {
    let (mut sender, mut receiver) = (AgentSender::new(origin()), AgentReceiver::new(origin()));
    for view in valid_views() {
        assert_eq!(say(&mut sender, &mut receiver, &view), vec![Received::Message(view)]);
    }
    (sender, receiver)
}

/// What a message comes to at the other end, pieces apart.
fn say(
    sender: &mut AgentSender,
    receiver: &mut AgentReceiver,
    message: &FromAgent,
) -> Vec<Received> {
    let wire = over_the_wire(&sender.encode(message));
    wire.into_iter().map(|m| receiver.receive(m)).filter(|r| *r != Received::Nothing).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn every_view_survives_the_wire(view in view()) {
        let (mut sender, mut receiver) = greeted();
        prop_assert_eq!(say(&mut sender, &mut receiver, &view), vec![Received::Message(view)]);
    }

    #[test]
    fn everything_else_an_agent_says_survives_the_wire(
        messages in proptest::collection::vec(from_agent(), 1..20),
    ) {
        let (mut sender, mut receiver) = greeted();
        for message in messages {
            let outcome = say(&mut sender, &mut receiver, &message);
            prop_assert_eq!(outcome, vec![Received::Message(message)]);
        }
    }

    #[test]
    fn everything_the_coordinator_says_survives_the_wire(
        messages in proptest::collection::vec(to_agent(), 1..10),
    ) {
        let sender = CoordinatorSender::new(origin());
        let mut receiver = CoordinatorReceiver::new(origin());
        for message in messages {
            let outcome: Vec<FromCoordinator> = over_the_wire(&sender.encode(&message))
                .into_iter()
                .map(|m| receiver.receive(m).unwrap())
                .filter(|r| *r != FromCoordinator::Nothing)
                .collect();
            prop_assert_eq!(outcome, vec![FromCoordinator::Message(message)]);
        }
    }

    #[test]
    fn random_bytes_as_a_part_never_make_a_view(bytes in proptest::collection::vec(any::<u8>(), 1..200)) {
        use crate::v1::ViewKind::{Cgroups, Links, Pods};
        for kind in [Pods, Links, Cgroups] {
            let mut assembler = SnapshotAssembler::default();
            assembler.begin(kind).unwrap();
            if assembler.part(&v1::SnapshotPart { items: bytes.clone() }).is_ok() {
                let end = v1::SnapshotEnd { resource_version: "5".into(), ..Default::default() };
                prop_assert!(assembler.end(&end).is_err());
            }
        }
    }

    #[test]
    fn the_greeting_survives_the_wire(
        node in "[a-z0-9]{1,40}",
        boot in "[a-z0-9-]{1,36}",
        start in proptest::option::of(1..=u64::MAX),
        epoch in any::<u64>(),
    ) {
        let hello = Hello {
            version: PROTOCOL,
            session: origin().session,
            node: node.parse().unwrap(),
            boot: boot.parse().unwrap(),
            kubelet: start.map(trunkline_core::id::KubeletStart),
            build: "trunkline-agent 0.1.0".into(),
            highest_epoch: trunkline_core::id::Epoch(epoch),
        };
        let wire = over_the_wire(&[v1::AgentMessage::from(&hello)]).remove(0);
        prop_assert_eq!(Hello::try_from(wire), Ok(hello));
    }
}

#[test]
fn answers_to_the_greeting_survive_the_wire() {
    let session = origin().session;
    let welcome = Welcome {
        origin: origin(),
        version: PROTOCOL,
        build: "trunkline-coordinator 0.1.0".into(),
        reconnect_within: std::time::Duration::from_secs(10),
    };
    let refusal = Refusal {
        reason: v1::RefusalReason::OtherNode,
        sentence: "the token is bound to another node".into(),
        retry_after: std::time::Duration::from_millis(1500),
    };
    let read = |m| Greeting::read(m, &session).unwrap();
    assert_eq!(read((&welcome).into()), Greeting::Welcome(welcome));
    assert_eq!(read(refusal.to_message()), Greeting::Refusal(refusal));
    let address = "10.0.0.7:61790";
    assert_eq!(read(greeting::redirect(address)), Greeting::Redirect(address.into()));
}

#[test]
fn a_redirect_or_refusal_ends_a_stream_at_any_time() {
    let mut receiver = CoordinatorReceiver::new(origin());
    let sender = CoordinatorSender::new(origin());
    let begin = sender.encode(&ToAgent::OwnedAll(Vec::new())).remove(0);
    assert_eq!(receiver.receive(begin), Ok(FromCoordinator::Nothing));
    let outcome = receiver.receive(greeting::redirect("10.0.0.7:61790"));
    assert_eq!(outcome, Ok(FromCoordinator::Redirect("10.0.0.7:61790".into())));
}

#[test]
fn every_view_state_has_its_own_wire_value() {
    use trunkline_core::view::Blind;
    for blind in Blind::ALL.into_iter().map(Some).chain([None]) {
        assert_eq!(blind_of("Heartbeat", "pods", view_state(blind).into()), Ok(blind));
    }
}

#[test]
fn a_token_is_not_shown() {
    let sender = AgentSender::new(origin());
    let message = sender.token("secret-token");
    assert!(!format!("{message:?}").contains("secret-token"));
    let outcome = AgentReceiver::new(origin()).receive(message);
    assert!(!format!("{outcome:?}").contains("secret-token"));
    assert!(matches!(outcome, Received::Token(token) if token.secret() == "secret-token"));
}

#[test]
fn one_minor_version_apart_is_understood() {
    let version = |major, minor| v1::ProtocolVersion { major, minor };
    assert!(greeting::is_compatible(PROTOCOL));
    assert!(greeting::is_compatible(version(PROTOCOL.major, PROTOCOL.minor + 1)));
    assert!(!greeting::is_compatible(version(PROTOCOL.major, PROTOCOL.minor + 2)));
    assert!(!greeting::is_compatible(version(PROTOCOL.major + 1, PROTOCOL.minor)));
}

#[test]
fn the_descriptor_set_names_both_services() {
    let set = prost_types::FileDescriptorSet::decode(crate::DESCRIPTOR_SET).unwrap();
    let services: Vec<&str> = set
        .file
        .iter()
        .flat_map(|f| &f.service)
        .map(prost_types::ServiceDescriptorProto::name)
        .collect();
    assert_eq!(services, ["Nodes", "Status"]);
}
