//! Small numbers for ids, and back.

use std::sync::LazyLock;

use trunkline_core::id::{
    AssociationId, BootId, EniId, MacAddress, PodRef, PodUid, SecurityGroupId, SessionId, VlanId,
};

/// Number of the agent's own pod and of the trunk ENI.
pub(super) const OWN: u8 = 15;

static UIDS: LazyLock<Vec<PodUid>> =
    LazyLock::new(|| (0..64).map(|n| format!("u{n}").parse().unwrap()).collect());
static ENIS: LazyLock<Vec<EniId>> =
    LazyLock::new(|| (0..16).map(|n| format!("eni-{n:017x}").parse().unwrap()).collect());
static GROUP: LazyLock<SecurityGroupId> = LazyLock::new(|| "sg-a".parse().unwrap());

/// UID of pod `n`; from 32 on the config hash of static pod `n - 32`.
pub(super) fn uid(n: u8) -> PodUid {
    UIDS[usize::from(n)].clone()
}

pub(super) fn hash(n: u8) -> PodUid {
    uid(n + 32)
}

pub(super) fn number(uid: &PodUid) -> u8 {
    uid.as_str().trim_start_matches('u').parse().unwrap_or(u8::MAX)
}

pub(super) fn pod_ref(n: u8, name: u8) -> PodRef {
    PodRef {
        uid: uid(n),
        namespace: "ns".parse().unwrap(),
        name: format!("pod-{name}").parse().unwrap(),
    }
}

pub(super) fn eni(n: u8) -> EniId {
    ENIS[usize::from(n)].clone()
}

pub(super) fn eni_number(id: &EniId) -> u8 {
    u8::from_str_radix(id.as_str().trim_start_matches("eni-").trim_start_matches('0'), 16)
        .unwrap_or(0)
}

pub(super) fn mac(n: u8) -> MacAddress {
    MacAddress::from_octets([2, 0, 0, 0, 0, n]).unwrap()
}

pub(super) fn vlan(n: u8) -> VlanId {
    VlanId::new(i64::from(n)).unwrap()
}

pub(super) fn group() -> SecurityGroupId {
    GROUP.clone()
}

pub(super) fn association(n: u8) -> AssociationId {
    format!("trunk-assoc-{n}").parse().unwrap()
}

pub(super) fn association_number(id: &AssociationId) -> u8 {
    id.as_str().trim_start_matches("trunk-assoc-").parse().unwrap_or(0)
}

pub(super) fn boot(n: u8) -> BootId {
    format!("boot-{n}").parse().unwrap()
}

pub(super) fn session(n: u8) -> SessionId {
    format!("session-{n}").parse().unwrap()
}
