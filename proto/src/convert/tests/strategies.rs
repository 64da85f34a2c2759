//! Arbitrary values of every type that crosses the wire.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use trunkline_core::fact::{
    BarrierReply, GoneBy, Origin, OverKind, ReleaseFacts, ReportedRelease, Way,
};
use trunkline_core::id::{
    AccountName, BootId, EniId, Epoch, KubeletStart, MacAddress, PodRef, PodUid, ResourceVersion,
    SessionId, TermNonce, VlanId,
};
use trunkline_core::message::{
    Ack, Change, FromAgent, Heartbeat, MacOutcome, OwnedBranch, SetMac, ToAgent,
};
use trunkline_core::view::{
    Blind, Complete, Link, LinkKind, Links, OddRequest, Pod, PodPhase, Snapshot, Suspect,
};

/// The origin of the test's stream.
pub(super) fn origin() -> Origin {
    Origin {
        session: SessionId::new("session-1").unwrap(),
        epoch: Epoch(7),
        nonce: TermNonce(u64::MAX - 3),
    }
}

pub(super) fn uid() -> impl Strategy<Value = PodUid> {
    "[A-Za-z0-9-]{1,64}".prop_map(|t| PodUid::new(&t).unwrap())
}

fn boot() -> impl Strategy<Value = BootId> {
    "[a-z0-9-]{1,36}".prop_map(|t| BootId::new(&t).unwrap())
}

fn start() -> impl Strategy<Value = KubeletStart> {
    (1..=u64::MAX).prop_map(KubeletStart)
}

fn eni() -> impl Strategy<Value = EniId> {
    "eni-[0-9a-f]{17}".prop_map(|t| EniId::new(&t).unwrap())
}

fn vlan() -> impl Strategy<Value = VlanId> {
    (1i64..=120).prop_map(|v| VlanId::new(v).unwrap())
}

fn mac() -> impl Strategy<Value = MacAddress> {
    any::<[u8; 6]>().prop_map(|mut octets| {
        octets[0] = (octets[0] & 0xfe) | 2;
        MacAddress::from_octets(octets).unwrap()
    })
}

fn blind() -> impl Strategy<Value = Blind> {
    proptest::sample::select(Blind::ALL.to_vec())
}

pub(super) fn pod_ref() -> impl Strategy<Value = PodRef> {
    (uid(), "[a-z0-9]{1,20}", "[a-z0-9]{1,20}(\\.[a-z0-9]{1,5})?").prop_map(|(uid, ns, name)| {
        PodRef { uid, namespace: ns.parse().unwrap(), name: name.parse().unwrap() }
    })
}

pub(super) fn pod() -> impl Strategy<Value = Pod> {
    use PodPhase::{Failed, Pending, Running, Succeeded, Unknown};
    let phase = proptest::sample::select(vec![Pending, Running, Succeeded, Failed, Unknown]);
    let account = "[a-z]{1,20}".prop_map(|t| AccountName::new(&t).unwrap());
    let odd = option::of(proptest::sample::select(OddRequest::ALL.to_vec()));
    let flags = (any::<(bool, bool, u32)>(), odd);
    let annotation = option::of(".{0,200}");
    let labels = btree_map("[a-z./]{1,30}", ".{0,30}", 0..5);
    (pod_ref(), labels, option::of(account), phase, flags, option::of(uid()), annotation).prop_map(
        |(pod, labels, account, phase, flags, config_hash, annotation)| Pod {
            pod,
            labels,
            account,
            phase,
            deleting: flags.0.0,
            mirror: flags.0.1,
            config_hash,
            requested: flags.0.2,
            odd_request: flags.1,
            annotation,
        },
    )
}

fn pods() -> impl Strategy<Value = Snapshot<Complete>> {
    (vec(pod(), 0..150), 1..u64::MAX).prop_map(|(pods, rv)| {
        let mut snapshot = Snapshot::begin();
        for pod in pods {
            snapshot.add(pod);
        }
        snapshot.close(ResourceVersion::new(&rv.to_string()).unwrap())
    })
}

fn link() -> impl Strategy<Value = Link> {
    let kind =
        prop_oneof![(0u16..4096).prop_map(LinkKind::Vlan), "[a-z]{0,10}".prop_map(LinkKind::Other)];
    let name = "[a-z0-9.@]{1,15}";
    (1..=u32::MAX, name, kind, option::of(mac()), option::of(any::<u32>()))
        .prop_map(|(index, name, kind, mac, parent)| Link { index, name, kind, mac, parent })
}

fn links() -> impl Strategy<Value = Links> {
    vec(link(), 0..150).prop_map(|links| {
        let by_index: BTreeMap<u32, Link> = links.into_iter().map(|l| (l.index, l)).collect();
        Links(by_index.into_values().collect())
    })
}

fn change() -> impl Strategy<Value = Change> {
    let uids = || btree_set(uid(), 0..5);
    prop_oneof![
        pod().prop_map(Change::PodApplied),
        pod_ref().prop_map(Change::PodDeleted),
        (vec(link(), 0..5), vec(any::<u32>(), 0..5))
            .prop_map(|(added, removed)| Change::Links { added, removed }),
        (uids(), uids()).prop_map(|(added, removed)| Change::Cgroups { added, removed }),
    ]
}

fn over() -> impl Strategy<Value = OverKind> {
    proptest::sample::select(vec![
        OverKind::Gone(GoneBy::WatchDeleted),
        OverKind::Gone(GoneBy::GetNotFound),
        OverKind::Gone(GoneBy::GetOtherUid),
        OverKind::Gone(GoneBy::Coordinator),
        OverKind::Ended,
    ])
}

pub(super) fn release() -> impl Strategy<Value = ReportedRelease> {
    let way = proptest::sample::select(vec![Way::SeenAndGone, Way::Slow]);
    (uid(), over(), way, boot(), start(), btree_set(eni(), 0..4)).prop_map(
        |(uid, over, way, boot, start, enis)| {
            ReportedRelease::received(ReleaseFacts { uid, over, way, boot, start, enis }, origin())
        },
    )
}

fn heartbeat() -> impl Strategy<Value = Heartbeat> {
    let view = || option::of(blind());
    (boot(), option::of(start()), view(), view(), view()).prop_map(
        |(boot, kubelet, pods, links, cgroups)| Heartbeat { boot, kubelet, pods, links, cgroups },
    )
}

fn barrier() -> impl Strategy<Value = BarrierReply> {
    let present = btree_map(uid(), option::of(any::<bool>()), 0..5);
    let vlans = option::of(btree_set(vlan(), 0..10));
    (any::<u64>(), boot(), option::of(start()), present, vlans).prop_map(
        |(question, boot, start, present, vlans)| BarrierReply {
            origin: origin(),
            question,
            boot,
            start,
            present,
            vlans,
        },
    )
}

/// A view, known or not.
pub(super) fn view() -> impl Strategy<Value = FromAgent> {
    prop_oneof![
        pods().prop_map(|v| FromAgent::Pods(Ok(v))),
        links().prop_map(|v| FromAgent::Links(Ok(v))),
        btree_set(uid(), 0..150).prop_map(|v| FromAgent::Cgroups(Ok(v))),
        blind().prop_map(|b| FromAgent::Pods(Err(b))),
        blind().prop_map(|b| FromAgent::Links(Err(b))),
        blind().prop_map(|b| FromAgent::Cgroups(Err(b))),
    ]
}

/// Anything an agent says after its snapshots, views apart.
pub(super) fn from_agent() -> impl Strategy<Value = FromAgent> {
    let age = (0u64..1 << 50).prop_map(Duration::from_millis);
    prop_oneof![
        option::of(btree_map(vlan(), age, 0..20)).prop_map(FromAgent::VlansUsed),
        change().prop_map(FromAgent::Change),
        pod_ref().prop_map(|p| FromAgent::Suspect(Suspect::reported(p))),
        release().prop_map(FromAgent::Release),
        heartbeat().prop_map(FromAgent::Heartbeat),
        barrier().prop_map(FromAgent::Barrier),
        (any::<u64>(), vlan(), mac_outcome())
            .prop_map(|(request, vlan, outcome)| FromAgent::MacResult { request, vlan, outcome }),
    ]
}

fn mac_outcome() -> impl Strategy<Value = MacOutcome> {
    prop_oneof![
        Just(MacOutcome::Done),
        Just(MacOutcome::Already),
        Just(MacOutcome::LinkAbsent),
        mac().prop_map(MacOutcome::Differs),
        Just(MacOutcome::SwitchedOff),
        ".{0,300}".prop_map(MacOutcome::Failed),
    ]
}

/// Addresses that pods can have, each once.
fn addresses() -> impl Strategy<Value = Vec<IpAddr>> {
    let v4 = (1u32..0x7f00_0000).prop_map(|n| IpAddr::V4(Ipv4Addr::from(n)));
    let v6 =
        any::<u64>().prop_map(|n| IpAddr::V6(Ipv6Addr::from(0xfd00_u128 << 112 | u128::from(n))));
    btree_set(prop_oneof![v4, v6], 0..=16).prop_map(|set| set.into_iter().collect())
}

fn set_mac() -> impl Strategy<Value = SetMac> {
    (any::<u64>(), uid(), vlan(), mac(), mac(), addresses()).prop_map(
        |(request, uid, vlan, from, to, addresses)| SetMac {
            request,
            uid,
            vlan,
            from,
            to,
            addresses,
        },
    )
}

fn branch() -> impl Strategy<Value = OwnedBranch> {
    let uids = (any::<bool>(), option::of(uid()), uid());
    (pod_ref(), uids, eni(), mac(), vlan()).prop_map(
        |(pod, (mirror, hash, own), eni, mac, vlan)| {
            let kubelet_uid = if mirror { hash } else { Some(own) };
            OwnedBranch { pod, mirror, kubelet_uid, eni, mac, vlan }
        },
    )
}

/// Branches in the order of their ENIs, as a receiver returns them.
pub(super) fn branches(most: usize) -> impl Strategy<Value = Vec<OwnedBranch>> {
    vec(branch(), 0..most).prop_map(|branches| {
        let by_eni: BTreeMap<EniId, OwnedBranch> =
            branches.into_iter().map(|b| (b.eni.clone(), b)).collect();
        by_eni.into_values().collect()
    })
}

/// Anything the coordinator says.
pub(super) fn to_agent() -> impl Strategy<Value = ToAgent> {
    let ack = proptest::sample::select(vec![Ack::Received, Ack::Executing, Ack::Deleted]);
    prop_oneof![
        option::of(mac()).prop_map(ToAgent::Trunk),
        branches(150).prop_map(ToAgent::OwnedAll),
        (branches(5), vec(eni(), 0..5))
            .prop_map(|(added, removed)| ToAgent::OwnedChanged { added, removed }),
        uid().prop_map(ToAgent::Gone),
        uid().prop_map(ToAgent::Alive),
        (uid(), ack).prop_map(|(uid, ack)| ToAgent::Ack(uid, ack)),
        (any::<u64>(), btree_set(uid(), 0..5))
            .prop_map(|(question, uids)| ToAgent::Barrier { question, uids }),
        set_mac().prop_map(ToAgent::SetMac),
        addresses().prop_map(|addresses| ToAgent::ClearNeighbours { addresses }),
    ]
}

/// A set of that many pod UIDs.
pub(super) fn many_uids(count: usize) -> BTreeSet<PodUid> {
    (0..count).map(|n| PodUid::new(&format!("uid-{n}")).unwrap()).collect()
}
