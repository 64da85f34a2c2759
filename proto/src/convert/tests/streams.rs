//! Order on a stream: holes, cuts, what may come between, what is of another term.

use proptest::prelude::*;
use prost::Message;
use trunkline_core::id::{Epoch, SessionId, TermNonce};
use trunkline_core::message::{Change, FromAgent, Heartbeat, ToAgent};
use trunkline_core::view::Blind;

use super::strategies::{branches, many_uids, origin, view};
use super::{greeted, say, valid_views};
use crate::convert::*;
use crate::v1;
use crate::v1::agent_message::Body;

fn deleted(n: u32) -> FromAgent {
    let key = v1::PodKey { uid: format!("uid-{n}"), namespace: "ns".into(), name: "pod".into() };
    FromAgent::Change(Change::PodDeleted(key.try_into().unwrap()))
}

fn beat() -> FromAgent {
    FromAgent::Heartbeat(Heartbeat {
        boot: "boot-1".parse().unwrap(),
        kubelet: None,
        pods: None,
        links: None,
        cgroups: Some(Blind::OwnPodMissing),
    })
}

fn blind_views() -> Box<[FromAgent; 3]> {
    let why = Blind::NotRead;
    let views =
        [FromAgent::Pods(Err(why)), FromAgent::Links(Err(why)), FromAgent::Cgroups(Err(why))];
    Box::new(views)
}

#[test]
fn a_missing_delta_blinds_all_views_until_they_come_anew() {
    let (mut sender, mut receiver) = greeted();
    sender.encode(&deleted(1));
    let outcome = say(&mut sender, &mut receiver, &deleted(2));
    let error = WireError::Hole { message: "Delta", expected: 1, found: 2 };
    assert_eq!(outcome, vec![Received::Broken { error, views: blind_views() }]);
    // What was under way says nothing any more.
    assert_eq!(say(&mut sender, &mut receiver, &deleted(3)), vec![]);
    // A new snapshot of one kind makes deltas of that kind count again, and of no other.
    let pods = valid_views().remove(0);
    assert_eq!(say(&mut sender, &mut receiver, &pods), vec![Received::Message(pods)]);
    let (added, removed) = (many_uids(1), many_uids(0));
    let cgroups = FromAgent::Change(Change::Cgroups { added, removed });
    assert_eq!(say(&mut sender, &mut receiver, &cgroups), vec![]);
    let pod = deleted(4);
    assert_eq!(say(&mut sender, &mut receiver, &pod), vec![Received::Message(pod)]);
}

#[test]
fn a_missing_last_delta_shows_in_the_heartbeat_and_in_facts() {
    let (mut sender, mut receiver) = greeted();
    sender.encode(&deleted(1));
    let outcome = say(&mut sender, &mut receiver, &beat());
    let error = WireError::Hole { message: "Heartbeat", expected: 0, found: 1 };
    assert_eq!(outcome, vec![Received::Broken { error, views: blind_views() }]);
    // The sign of life itself is taken after that: it does not depend on the views.
    assert_eq!(say(&mut sender, &mut receiver, &beat()), vec![Received::Message(beat())]);
}

#[test]
fn a_repeated_delta_is_a_hole_too() {
    let (mut sender, mut receiver) = greeted();
    let messages = sender.encode(&deleted(1));
    assert!(matches!(receiver.receive(messages[0].clone()), Received::Message(_)));
    assert!(matches!(receiver.receive(messages[0].clone()), Received::Broken { .. }));
}

#[test]
fn a_delta_of_an_unknown_view_is_numbered_and_says_nothing() {
    let (mut sender, mut receiver) = greeted();
    let unknown = FromAgent::Pods(Err(Blind::Stale));
    assert_eq!(say(&mut sender, &mut receiver, &unknown), vec![Received::Message(unknown)]);
    assert_eq!(say(&mut sender, &mut receiver, &deleted(1)), vec![]);
    assert_eq!(say(&mut sender, &mut receiver, &beat()), vec![Received::Message(beat())]);
}

#[test]
fn messages_of_another_session_epoch_or_term_are_dropped() {
    for change in [
        |o: &mut trunkline_core::fact::Origin| o.session = SessionId::new("other").unwrap(),
        |o: &mut trunkline_core::fact::Origin| o.epoch = Epoch(6),
        |o: &mut trunkline_core::fact::Origin| o.nonce = TermNonce(1),
    ] {
        let mut other = origin();
        change(&mut other);
        let (_, mut receiver) = greeted();
        let mut stranger = AgentSender::new(other.clone());
        for message in valid_views().iter().chain([&deleted(1), &beat()]) {
            for wire in stranger.encode(message) {
                assert_eq!(receiver.receive(wire), Received::Foreign);
            }
        }
        let wire = CoordinatorSender::new(other).encode(&ToAgent::Trunk(None)).remove(0);
        let outcome = CoordinatorReceiver::new(origin()).receive(wire);
        assert_eq!(outcome, Ok(FromCoordinator::Foreign));
    }
}

#[test]
fn only_signs_of_life_answers_and_tokens_come_between_the_parts() {
    let view = FromAgent::Cgroups(Ok(many_uids(100)));
    for (message, allowed) in
        [(beat(), true), (deleted(1), false), (valid_views().remove(0), false)]
    {
        let (mut sender, mut receiver) = greeted();
        let frames = sender.encode(&view);
        assert_eq!(frames.len(), 4, "begin, two parts, end");
        assert_eq!(receiver.receive(frames[0].clone()), Received::Nothing);
        assert_eq!(receiver.receive(frames[1].clone()), Received::Nothing);
        let outcome = receiver.receive(sender.encode(&message).remove(0));
        assert_eq!(matches!(outcome, Received::Broken { .. }), !allowed, "{outcome:?}");
        assert_eq!(receiver.receive(frames[2].clone()), Received::Nothing);
        let end = receiver.receive(frames[3].clone());
        let expected = if allowed { Received::Message(view.clone()) } else { Received::Nothing };
        assert_eq!(end, expected);
    }
}

#[test]
fn a_second_greeting_is_refused() {
    let hello = Hello {
        version: PROTOCOL,
        session: origin().session,
        node: "node-1".parse().unwrap(),
        boot: "boot-1".parse().unwrap(),
        kubelet: None,
        build: String::new(),
        highest_epoch: Epoch(0),
    };
    let (_, mut receiver) = greeted();
    let mut message = v1::AgentMessage::from(&hello);
    message.epoch = origin().epoch.0;
    message.term_nonce = origin().nonce.0;
    assert!(matches!(receiver.receive(message), Received::Broken { .. }));
}

#[test]
fn another_session_is_not_welcomed() {
    let welcome = Welcome {
        origin: origin(),
        version: PROTOCOL,
        build: String::new(),
        reconnect_within: std::time::Duration::ZERO,
    };
    let other = SessionId::new("other").unwrap();
    assert!(Greeting::read((&welcome).into(), &other).is_err());
}

/// Whether it says something about what is there.
fn is_known_view(outcome: &Received) -> bool {
    matches!(
        outcome,
        Received::Message(
            FromAgent::Pods(Ok(_)) | FromAgent::Links(Ok(_)) | FromAgent::Cgroups(Ok(_))
        )
    )
}

fn is_broken(outcome: &Received) -> bool {
    matches!(outcome, Received::Broken { .. })
}

fn is_part(message: &v1::AgentMessage) -> bool {
    matches!(message.body, Some(Body::SnapshotPart(_)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// S01's kind of fault on this wire: whatever piece is lost, repeated or swapped, no view comes out of it.
    #[test]
    fn a_snapshot_with_a_lost_or_repeated_message_is_no_view(
        view in view(),
        at in any::<proptest::sample::Index>(),
        twice in any::<bool>(),
    ) {
        let (mut sender, mut receiver) = greeted();
        let mut frames = sender.encode(&view);
        prop_assume!(frames.len() > 1);
        let at = at.index(frames.len());
        let last = at == frames.len() - 1;
        if twice {
            frames.insert(at, frames[at].clone());
        } else {
            frames.remove(at);
        }
        let outcome: Vec<Received> = frames.into_iter().map(|m| receiver.receive(m)).collect();
        let known = outcome.iter().filter(|r| is_known_view(r)).count();
        let broken = outcome.iter().filter(|r| matches!(r, Received::Broken { .. })).count();
        if last {
            // A second end comes after the view was closed and is refused; without an end there is no view yet.
            prop_assert_eq!((known, broken), if twice { (1, 1) } else { (0, 0) });
        } else {
            prop_assert_eq!((known, broken), (0, 1), "{:?}", outcome);
        }
    }

    #[test]
    fn parts_in_another_order_are_no_view(view in view()) {
        let (mut sender, mut receiver) = greeted();
        let mut frames = sender.encode(&view);
        prop_assume!(frames.iter().filter(|m| is_part(m)).count() > 1);
        frames.swap(1, 2);
        let mut outcome: Vec<Received> = frames.into_iter().map(|m| receiver.receive(m)).collect();
        let broken = outcome.pop().unwrap();
        prop_assert!(is_broken(&broken), "{:?}", broken);
        prop_assert!(outcome.iter().all(|r| *r == Received::Nothing));
    }

    #[test]
    fn a_changed_byte_is_no_view(
        view in view(),
        at in any::<proptest::sample::Index>(),
        by in 1u8..=255,
    ) {
        let (mut sender, mut receiver) = greeted();
        let mut frames = sender.encode(&view);
        prop_assume!(frames.len() > 2);
        let Some(Body::SnapshotPart(part)) = &mut frames[1].body else { unreachable!() };
        let at = at.index(part.items.len());
        part.items[at] ^= by;
        let outcome: Vec<Received> = frames.into_iter().map(|m| receiver.receive(m)).collect();
        prop_assert!(!outcome.iter().any(is_known_view));
        prop_assert!(outcome.iter().any(is_broken));
    }

    #[test]
    fn books_with_a_lost_or_repeated_message_do_not_count(
        branches in branches(200),
        at in any::<proptest::sample::Index>(),
        twice in any::<bool>(),
    ) {
        prop_assume!(!branches.is_empty());
        let mut frames = CoordinatorSender::new(origin()).encode(&ToAgent::OwnedAll(branches));
        let at = at.index(frames.len() - 1);
        if twice { frames.insert(at, frames[at].clone()) } else { frames.remove(at); }
        let mut receiver = CoordinatorReceiver::new(origin());
        let outcome: Result<Vec<_>, _> = frames.into_iter().map(|m| receiver.receive(m)).collect();
        prop_assert!(outcome.is_err());
    }

    #[test]
    fn parts_are_small(view in view()) {
        for frame in AgentSender::new(origin()).encode(&view) {
            prop_assert!(frame.encoded_len() < 1024 * 1024);
        }
    }
}

#[test]
fn a_snapshot_over_the_limit_is_refused_and_one_at_the_limit_is_not() {
    let (mut sender, mut receiver) = greeted();
    let full = FromAgent::Cgroups(Ok(many_uids(snapshot::SNAPSHOT_ITEMS)));
    assert_eq!(say(&mut sender, &mut receiver, &full), vec![Received::Message(full)]);
    let over = FromAgent::Cgroups(Ok(many_uids(snapshot::SNAPSHOT_ITEMS + 1)));
    let outcome = say(&mut sender, &mut receiver, &over);
    let [Received::Broken { error, .. }] = outcome.as_slice() else { panic!("{outcome:?}") };
    assert!(matches!(error, WireError::TooMany { .. }), "{error}");
}

#[test]
fn a_snapshot_of_too_many_bytes_is_refused_before_it_is_decoded() {
    let mut assembler = SnapshotAssembler::default();
    assembler.begin(v1::ViewKind::Pods).unwrap();
    let part = v1::SnapshotPart { items: vec![0xff; snapshot::SNAPSHOT_BYTES + 1] };
    assert!(matches!(assembler.part(&part), Err(WireError::TooMany { .. })));
    assert!(!assembler.is_open());
}

#[test]
fn large_annotations_are_cut_by_bytes() {
    let mut pods = trunkline_core::view::Snapshot::begin();
    for n in 0..10 {
        let key = v1::PodKey { uid: format!("uid-{n}"), namespace: "ns".into(), name: "p".into() };
        let item = v1::PodItem {
            key: Some(key),
            phase: v1::PodPhase::Running.into(),
            annotation: Some("x".repeat(250 * 1024)),
            ..Default::default()
        };
        pods.add(item.try_into().unwrap());
    }
    let rv = trunkline_core::id::ResourceVersion::new("9").unwrap();
    let view = FromAgent::Pods(Ok(pods.close(rv)));
    let frames = AgentSender::new(origin()).encode(&view);
    assert!(frames.iter().filter(|m| is_part(m)).count() > 3);
    assert!(frames.iter().all(|m| m.encoded_len() < 2 * 1024 * 1024));
}
