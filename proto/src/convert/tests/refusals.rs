//! Items that are refused, with message, field and value in the text.

#![allow(
    clippy::unnecessary_wraps,
    reason = "a body is optional on the wire, and its absence is a case here"
)]

use trunkline_core::id::VlanId;
use trunkline_core::message::{FromAgent, MacOutcome};

use super::greeted;
use super::strategies::origin;
use crate::convert::*;
use crate::v1;
use crate::v1::agent_message::Body;
use crate::v1::coordinator_message::Body as ToAgentBody;

/// The error of a message that an agent with valid views sends.
fn refused(body: Option<Body>) -> String {
    let (_, mut receiver) = greeted();
    let origin = origin();
    let message = v1::AgentMessage {
        session: origin.session.to_string(),
        epoch: origin.epoch.0,
        term_nonce: origin.nonce.0,
        body,
    };
    match receiver.receive(message) {
        Received::Broken { error, views } => {
            assert_eq!(views.len(), 3);
            error.to_string()
        }
        other => panic!("not refused: {other:?}"),
    }
}

/// The error of a message of the coordinator.
fn refused_by_agent(body: Option<ToAgentBody>) -> String {
    let origin = origin();
    let message = v1::CoordinatorMessage {
        session: origin.session.to_string(),
        epoch: origin.epoch.0,
        term_nonce: origin.nonce.0,
        body,
    };
    CoordinatorReceiver::new(origin).receive(message).unwrap_err().to_string()
}

fn pod() -> v1::PodItem {
    v1::PodItem {
        key: Some(v1::PodKey { uid: "uid-1".into(), namespace: "ns".into(), name: "pod".into() }),
        phase: v1::PodPhase::Running.into(),
        ..Default::default()
    }
}

fn link() -> v1::LinkItem {
    v1::LinkItem {
        index: 7,
        name: "vlan.eth.7".into(),
        kind: Some(v1::link_item::Kind::Other("macvlan".into())),
        ..Default::default()
    }
}

fn stamp() -> Option<v1::Stamp> {
    Some(v1::Stamp { boot_id: "boot-1".into(), kubelet_start_ns: 5, seq: 0 })
}

fn release() -> v1::Release {
    v1::Release {
        pod_uid: "uid-1".into(),
        over: v1::PodOver::WatchDeleted.into(),
        kubelet_released: Some(v1::KubeletReleased {
            stamp: stamp(),
            way: v1::ReleaseWay::SeenAndGone.into(),
        }),
        sandbox_gone: vec![v1::SandboxGone { stamp: stamp(), eni_id: "eni-01234567".into() }],
    }
}

fn branch() -> v1::OwnedBranch {
    v1::OwnedBranch {
        key: pod().key,
        mirror: false,
        kubelet_uid: Some("uid-1".into()),
        eni_id: "eni-01234567".into(),
        mac: "02:00:00:00:00:01".into(),
        vlan: 7,
    }
}

/// A change of one item as a delta.
fn applied(change: impl FnOnce(&mut v1::PodItem)) -> Option<Body> {
    let mut item = pod();
    change(&mut item);
    let change = Some(v1::delta::Change::PodApplied(item));
    Some(Body::Delta(v1::Delta { seq: 1, change }))
}

fn linked(change: impl FnOnce(&mut v1::LinkItem)) -> Option<Body> {
    let mut item = link();
    change(&mut item);
    let links = v1::LinkChange { added: vec![item], removed: vec![] };
    Some(Body::Delta(v1::Delta { seq: 1, change: Some(v1::delta::Change::Links(links)) }))
}

fn released(change: impl FnOnce(&mut v1::Release)) -> Option<Body> {
    let mut item = release();
    change(&mut item);
    Some(Body::Release(item))
}

fn owned(change: impl FnOnce(&mut v1::OwnedBranch)) -> Option<ToAgentBody> {
    let mut item = branch();
    change(&mut item);
    let change = v1::OwnedChange { added: vec![item], removed_eni_ids: vec![] };
    Some(ToAgentBody::OwnedChange(change))
}

fn cgroups(added: &[&str]) -> Option<Body> {
    let added = added.iter().map(ToString::to_string).collect();
    let change = v1::delta::Change::Cgroups(v1::CgroupChange { added, removed: vec![] });
    Some(Body::Delta(v1::Delta { seq: 1, change: Some(change) }))
}

fn vlans(journal: bool, numbers: &[u32]) -> Option<Body> {
    let uses = numbers.iter().map(|n| v1::VlanUse { vlan: *n, age_ms: 1 }).collect();
    Some(Body::VlansUsed(v1::VlansUsed { journal, uses }))
}

fn reply(change: impl FnOnce(&mut v1::BarrierReply)) -> Option<Body> {
    let mut item = v1::BarrierReply {
        question: 1,
        boot_id: "boot-1".into(),
        kubelet_start_ns: Some(5),
        pods: vec![],
        vlans: None,
    };
    change(&mut item);
    Some(Body::BarrierReply(item))
}

fn set_mac(change: impl FnOnce(&mut v1::SetMac)) -> Option<ToAgentBody> {
    let mut item = v1::SetMac {
        request: 1,
        pod_uid: "uid-1".into(),
        vlan: 7,
        from: "02:00:00:00:00:01".into(),
        to: "02:00:00:00:00:02".into(),
        addresses: vec!["10.0.1.17".into(), "2001:db8::17".into()],
    };
    change(&mut item);
    Some(ToAgentBody::SetMac(item))
}

fn mac_result(outcome: i32, mac: Option<&str>, sentence: Option<&str>) -> Option<Body> {
    Some(Body::MacResult(v1::MacResult {
        request: 1,
        vlan: 7,
        outcome,
        mac: mac.map(Into::into),
        sentence: sentence.map(Into::into),
    }))
}

fn begin(kind: i32, state: i32) -> Option<Body> {
    Some(Body::SnapshotBegin(v1::SnapshotBegin { kind, state, seq: 0 }))
}

#[test]
fn nothing_is_wrong_with_the_examples() {
    let (_, mut receiver) = greeted();
    let origin = origin();
    let (delta, link) = (applied(|_| {}), linked(|l| l.index += 1));
    let link = link.map(|b| match b {
        Body::Delta(delta) => Body::Delta(v1::Delta { seq: 2, ..delta }),
        other => other,
    });
    let healed = mac_result(v1::MacOutcome::Done.into(), None, None);
    for body in [released(|_| {}), reply(|_| {}), vlans(true, &[1, 120]), delta, link, healed] {
        let message = v1::AgentMessage {
            session: origin.session.to_string(),
            epoch: origin.epoch.0,
            term_nonce: origin.nonce.0,
            body,
        };
        let outcome = receiver.receive(message);
        assert!(matches!(outcome, Received::Message(_)), "{outcome:?}");
    }
}

#[test]
fn unset_and_unknown_enum_values_are_refused() {
    for value in [0, 99, -1] {
        let phase = refused(applied(|p| p.phase = value));
        assert_eq!(phase, format!("PodItem.phase: {value} is not a value this version knows"));
        let cases = [
            (refused(begin(value, 1)), "SnapshotBegin.kind"),
            (refused(begin(1, value)), "SnapshotBegin.state"),
            (refused(begin(value, 2)), "SnapshotBegin.kind"),
            (refused(released(|r| r.over = value)), "Release.over"),
            (
                refused(released(|r| r.kubelet_released.as_mut().unwrap().way = value)),
                "KubeletReleased.way",
            ),
            (
                refused(reply(|r| {
                    r.pods.push(v1::PodPresence { pod_uid: "uid-1".into(), presence: value });
                })),
                "PodPresence.presence",
            ),
            (
                refused(Some(Body::Heartbeat(v1::Heartbeat {
                    boot_id: "boot-1".into(),
                    pods: 1,
                    links: value,
                    cgroups: 1,
                    ..Default::default()
                }))),
                "Heartbeat.links",
            ),
            (
                refused_by_agent(Some(ToAgentBody::Ack(v1::Ack {
                    pod_uid: "uid-1".into(),
                    state: value,
                }))),
                "Ack.state",
            ),
            (refused(mac_result(value, None, None)), "MacResult.outcome"),
            (
                refused_by_agent(Some(ToAgentBody::Refusal(v1::Refusal {
                    reason: value,
                    ..Default::default()
                }))),
                "Refusal.reason",
            ),
        ];
        for (text, field) in cases {
            assert_eq!(text, format!("{field}: {value} is not a value this version knows"));
        }
    }
}

#[test]
fn t11_vlans_out_of_range_are_refused() {
    for number in [0, 121, 4095, u32::MAX] {
        let cases = [
            refused(vlans(true, &[number])),
            refused(reply(|r| r.vlans = Some(v1::VlanSet { vlans: vec![number] }))),
            refused_by_agent(owned(|b| b.vlan = number)),
            refused_by_agent(set_mac(|s| s.vlan = number)),
            refused(mac_result(1, None, None).map(|body| match body {
                Body::MacResult(result) => {
                    Body::MacResult(v1::MacResult { vlan: number, ..result })
                }
                other => other,
            })),
        ];
        for text in cases {
            assert!(text.contains("vlan") && text.contains(&number.to_string()), "{text}");
        }
    }
    // A link of any 802.1q id may exist on a node; only what is none is refused.
    let text = refused(linked(|l| l.kind = Some(v1::link_item::Kind::Vlan(4096))));
    assert_eq!(text, "LinkItem.vlan: '4096' is not allowed: an 802.1q id is 0 to 4095");
}

#[test]
fn fields_that_have_to_be_set_are_missed() {
    let cases = [
        (refused(None), "AgentMessage.body is missing"),
        (refused(applied(|p| p.key = None)), "PodItem.key is missing"),
        (refused(linked(|l| l.kind = None)), "LinkItem.kind is missing"),
        (refused(linked(|l| l.name.clear())), "LinkItem.name is missing"),
        (refused(Some(Body::Suspect(v1::Suspect { key: None }))), "Suspect.key is missing"),
        (refused(Some(Body::Delta(v1::Delta { seq: 1, change: None }))), "Delta.change is missing"),
        (refused(Some(Body::Token(v1::Token { token: String::new() }))), "Token.token is missing"),
        (refused(released(|r| r.kubelet_released = None)), "Release.kubelet_released is missing"),
        (refused(released(|r| r.sandbox_gone[0].stamp = None)), "SandboxGone.stamp is missing"),
        (refused(mac_result(4, None, None)), "MacResult.mac is missing"),
        (refused(mac_result(6, None, None)), "MacResult.sentence is missing"),
        (refused_by_agent(None), "CoordinatorMessage.body is missing"),
        (refused_by_agent(owned(|b| b.key = None)), "OwnedBranch.key is missing"),
        (refused_by_agent(owned(|b| b.kubelet_uid = None)), "OwnedBranch.kubelet_uid is missing"),
    ];
    for (text, expected) in cases {
        assert_eq!(text, expected);
    }
}

#[test]
fn ids_that_are_none_are_refused_by_name_and_value() {
    let key = |uid: &str, name: &str| {
        Some(v1::PodKey { uid: uid.into(), namespace: "ns".into(), name: name.into() })
    };
    let cases = [
        (refused(applied(|p| p.key = key("", "pod"))), "PodKey.uid: ''"),
        (refused(applied(|p| p.key = key("uid", "Pod_1"))), "PodKey.name: 'Pod_1'"),
        (refused(applied(|p| p.account = Some("-".into()))), "PodItem.account: '-'"),
        (refused(applied(|p| p.config_hash = Some("a b".into()))), "PodItem.config_hash: 'a b'"),
        (refused(linked(|l| l.mac = Some("02:00".into()))), "LinkItem.mac: '02:00'"),
        (refused(linked(|l| l.index = 0)), "LinkItem.index: '0'"),
        (refused(cgroups(&["uid/1"])), "CgroupChange.added: 'uid/1'"),
        (refused(released(|r| r.pod_uid.clear())), "Release.pod_uid: ''"),
        (
            refused(released(|r| r.sandbox_gone[0].eni_id = "eni-".into())),
            "SandboxGone.eni_id: 'eni-'",
        ),
        (refused(reply(|r| r.boot_id.clear())), "BarrierReply.boot_id: ''"),
        (refused(reply(|r| r.kubelet_start_ns = Some(0))), "BarrierReply.kubelet_start_ns: '0'"),
        (
            refused_by_agent(owned(|b| b.eni_id = "i-01234567".into())),
            "OwnedBranch.eni_id: 'i-01234567'",
        ),
        (refused_by_agent(owned(|b| b.mac.clear())), "OwnedBranch.mac: ''"),
        (refused_by_agent(set_mac(|s| s.pod_uid.clear())), "SetMac.pod_uid: ''"),
        (
            refused_by_agent(set_mac(|s| s.from = "01:00:5e:00:00:01".into())),
            "SetMac.from: '01:00:5e:00:00:01'",
        ),
        (
            refused_by_agent(set_mac(|s| s.to = "00:00:00:00:00:00".into())),
            "SetMac.to: '00:00:00:00:00:00'",
        ),
        (refused(mac_result(4, Some("x"), None)), "MacResult.mac: 'x'"),
        (
            refused_by_agent(Some(ToAgentBody::Trunk(v1::Trunk { mac: Some("x".into()) }))),
            "Trunk.mac: 'x'",
        ),
        (
            refused_by_agent(Some(ToAgentBody::Gone(v1::Gone { pod_uid: String::new() }))),
            "Gone.pod_uid: ''",
        ),
    ];
    for (text, expected) in cases {
        assert!(text.starts_with(expected), "{text} does not start with {expected}");
    }
}

#[test]
fn items_that_come_twice_are_refused() {
    let cases = [
        (refused(vlans(true, &[7, 7])), "VlansUsed.uses: '7' comes twice"),
        (refused(cgroups(&["u", "u"])), "CgroupChange.added: 'u' comes twice"),
        (
            refused(released(|r| r.sandbox_gone.push(r.sandbox_gone[0].clone()))),
            "Release.sandbox_gone: 'eni-01234567' comes twice",
        ),
        (
            refused(reply(|r| r.vlans = Some(v1::VlanSet { vlans: vec![3, 3] }))),
            "VlanSet.vlans: '3' comes twice",
        ),
        (
            refused_by_agent(Some(ToAgentBody::OwnedChange(v1::OwnedChange {
                added: vec![branch(), branch()],
                removed_eni_ids: vec![],
            }))),
            "OwnedItems.branches: 'eni-01234567' comes twice",
        ),
        (
            refused_by_agent(set_mac(|s| s.addresses.push("10.0.1.17".into()))),
            "SetMac.addresses: '10.0.1.17' comes twice",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(text, expected);
    }
}

#[test]
fn facts_of_two_lives_of_a_node_are_refused() {
    let other_boot = refused(released(|r| {
        r.sandbox_gone[0].stamp.as_mut().unwrap().boot_id = "boot-2".into();
    }));
    assert!(other_boot.starts_with("SandboxGone.stamp: 'boot-2'"), "{other_boot}");
    let other_start = refused(released(|r| {
        r.sandbox_gone[0].stamp.as_mut().unwrap().kubelet_start_ns = 6;
    }));
    assert!(other_start.starts_with("SandboxGone.stamp"), "{other_start}");
    let hole = refused(released(|r| r.sandbox_gone[0].stamp.as_mut().unwrap().seq = 3));
    assert_eq!(hole, "Stamp.seq: 3 where 0 was expected: a delta is missing");
}

#[test]
fn vlans_without_a_journal_are_refused() {
    let text = refused(vlans(false, &[7]));
    assert_eq!(text, "VlansUsed.uses: '7' is not allowed: there are none without a journal");
}

#[test]
fn one_bad_item_refuses_the_snapshot_it_is_in() {
    use prost::Message;
    let mut bad = pod();
    bad.phase = 0;
    bad.key = Some(v1::PodKey { uid: "uid-2".into(), namespace: "ns".into(), name: "b".into() });
    let part = |pods| v1::SnapshotPart { items: v1::PodItems { pods }.encode_to_vec() };
    let mut assembler = SnapshotAssembler::default();
    assembler.begin(v1::ViewKind::Pods).unwrap();
    assembler.part(&part(vec![pod()])).unwrap();
    assert!(matches!(assembler.part(&part(vec![bad])), Err(WireError::Enum { .. })));
    assert!(!assembler.is_open(), "nothing of it is left");
    assembler.begin(v1::ViewKind::Pods).unwrap();
    let twice = assembler.part(&part(vec![pod(), pod()]));
    assert!(matches!(twice, Err(WireError::Duplicate { .. })));
}

#[test]
fn a_list_of_pods_needs_its_resource_version_and_only_that_has_one() {
    use sha2::{Digest, Sha256};
    let sha256 = Sha256::digest([]).to_vec();
    for (kind, rv) in
        [(v1::ViewKind::Pods, ""), (v1::ViewKind::Pods, "0"), (v1::ViewKind::Links, "5")]
    {
        let mut assembler = SnapshotAssembler::default();
        assembler.begin(kind).unwrap();
        let end = v1::SnapshotEnd { count: 0, sha256: sha256.clone(), resource_version: rv.into() };
        let text = assembler.end(&end).unwrap_err().to_string();
        assert!(text.starts_with("SnapshotEnd.resource_version"), "{text}");
    }
}

#[test]
fn addresses_that_no_pod_can_have_are_refused() {
    let none = ["", "10.0.1", "10.0.1.17/32", "0.0.0.0", "127.0.0.1", "224.0.0.1", "::", "::1"];
    for address in none.into_iter().chain(["255.255.255.255", "ff02::1", "fe80::1%eth0"]) {
        let clear = v1::ClearNeighbours { addresses: vec![address.into()] };
        let cases = [
            ("SetMac", refused_by_agent(set_mac(|s| s.addresses = vec![address.into()]))),
            ("ClearNeighbours", refused_by_agent(Some(ToAgentBody::ClearNeighbours(clear)))),
        ];
        for (message, text) in cases {
            assert!(text.starts_with(&format!("{message}.addresses: '{address}'")), "{text}");
        }
    }
    let many = (0..17).map(|n| format!("10.0.1.{}", n + 1)).collect();
    let text = refused_by_agent(set_mac(|s| s.addresses = many));
    assert_eq!(text, "SetMac.addresses: 17 is over the limit of 16");
}

#[test]
fn a_mac_or_sentence_comes_with_its_outcome_only() {
    for outcome in [1, 2, 3, 5, 6] {
        let text = refused(mac_result(outcome, Some("02:00:00:00:00:01"), None));
        assert!(text.starts_with("MacResult.mac: '02:00:00:00:00:01' is not allowed"), "{text}");
    }
    for outcome in [1, 2, 3, 4, 5] {
        let text = refused(mac_result(outcome, None, Some("why")));
        assert!(text.starts_with("MacResult.sentence: 'why' is not allowed"), "{text}");
    }
}

#[test]
fn a_long_sentence_is_cut_on_both_sides() {
    let long = "é".repeat(400);
    let outcome = MacOutcome::Failed(long.clone());
    let sent = heal::mac_result_to_wire(1, VlanId::new(7).unwrap(), &outcome);
    assert_eq!(sent.sentence.unwrap().chars().count(), 300);
    let wire = v1::MacResult {
        vlan: 7,
        outcome: v1::MacOutcome::Failed.into(),
        sentence: Some(long),
        ..Default::default()
    };
    match heal::mac_result_from_wire(wire).unwrap() {
        FromAgent::MacResult { outcome: MacOutcome::Failed(why), .. } => {
            assert_eq!(why.chars().count(), 300);
        }
        other => panic!("{other:?}"),
    }
}
