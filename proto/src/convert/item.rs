//! Single items and enums.

use std::collections::BTreeSet;
use std::str::FromStr;

use prost::UnknownEnumValue;
use trunkline_core::fact::{GoneBy, OverKind, Way};
use trunkline_core::id::{InvalidId, KubeletStart, MacAddress, PodRef, PodUid, VlanId};
use trunkline_core::message::{Ack, OwnedBranch};
use trunkline_core::view::{Blind, Link, LinkKind, OddRequest, Pod, PodPhase};

use super::WireError;
use crate::v1;

// === primitives ===

/// Parses an id.
pub(crate) fn id<T: FromStr<Err = InvalidId>>(
    message: &'static str,
    field: &'static str,
    text: &str,
) -> Result<T, WireError> {
    text.parse().map_err(|cause| WireError::Id { message, field, cause })
}

/// Parses an optional id.
pub(crate) fn optional<T: FromStr<Err = InvalidId>>(
    message: &'static str,
    field: &'static str,
    text: Option<&str>,
) -> Result<Option<T>, WireError> {
    text.map(|t| id(message, field, t)).transpose()
}

/// Unwraps a field that has to be set.
pub(crate) fn required<T>(
    message: &'static str,
    field: &'static str,
    value: Option<T>,
) -> Result<T, WireError> {
    value.ok_or(WireError::Missing { message, field })
}

/// Reads an enum value; 0 is left to the caller, which has no meaning for it.
pub(crate) fn enumeration<T: TryFrom<i32, Error = UnknownEnumValue>>(
    message: &'static str,
    field: &'static str,
    value: i32,
) -> Result<T, WireError> {
    T::try_from(value).map_err(|_| WireError::Enum { message, field, value })
}

/// Reads a VLAN id.
pub(crate) fn vlan(
    message: &'static str,
    field: &'static str,
    value: u32,
) -> Result<VlanId, WireError> {
    VlanId::new(i64::from(value)).map_err(|cause| WireError::Id { message, field, cause })
}

/// Reads a set of UIDs, each of which may come once.
pub(crate) fn uids(
    message: &'static str,
    field: &'static str,
    texts: &[String],
) -> Result<BTreeSet<PodUid>, WireError> {
    let mut set = BTreeSet::new();
    for text in texts {
        if !set.insert(id(message, field, text)?) {
            return Err(WireError::Duplicate { message, field, value: text.clone() });
        }
    }
    Ok(set)
}

/// Writes a set of UIDs.
pub(crate) fn texts<'a>(uids: impl IntoIterator<Item = &'a PodUid>) -> Vec<String> {
    uids.into_iter().map(ToString::to_string).collect()
}

/// Reads a kubelet start.
pub(crate) fn kubelet(message: &'static str, nanoseconds: u64) -> Result<KubeletStart, WireError> {
    if nanoseconds == 0 {
        let why = "a ctime in nanoseconds";
        return Err(WireError::value(message, "kubelet_start_ns", &nanoseconds, why));
    }
    Ok(KubeletStart(nanoseconds))
}

/// Reads an optional kubelet start.
pub(crate) fn optional_kubelet(
    message: &'static str,
    nanoseconds: Option<u64>,
) -> Result<Option<KubeletStart>, WireError> {
    nanoseconds.map(|n| kubelet(message, n)).transpose()
}

// === enums ===

/// The wire's word for a view: `None` is valid.
pub fn view_state(blind: Option<Blind>) -> v1::ViewState {
    match blind {
        None => v1::ViewState::Valid,
        Some(Blind::NotRead) => v1::ViewState::NotRead,
        Some(Blind::Stale) => v1::ViewState::Stale,
        Some(Blind::ReadFailed) => v1::ViewState::ReadFailed,
        Some(Blind::TrunkUnknown) => v1::ViewState::TrunkUnknown,
        Some(Blind::TrunkLinkMissing) => v1::ViewState::TrunkLinkMissing,
        Some(Blind::OwnPodMissing) => v1::ViewState::OwnPodMissing,
        Some(Blind::KubeletSilent) => v1::ViewState::KubeletSilent,
        Some(Blind::Disconnected) => v1::ViewState::Disconnected,
    }
}

/// Reads a view's state; `Ok(None)` is valid.
pub fn blind_of(
    message: &'static str,
    field: &'static str,
    value: i32,
) -> Result<Option<Blind>, WireError> {
    Ok(Some(match enumeration(message, field, value)? {
        v1::ViewState::Unspecified => {
            return Err(WireError::Enum { message, field, value });
        }
        v1::ViewState::Valid => return Ok(None),
        v1::ViewState::NotRead => Blind::NotRead,
        v1::ViewState::Stale => Blind::Stale,
        v1::ViewState::ReadFailed => Blind::ReadFailed,
        v1::ViewState::TrunkUnknown => Blind::TrunkUnknown,
        v1::ViewState::TrunkLinkMissing => Blind::TrunkLinkMissing,
        v1::ViewState::OwnPodMissing => Blind::OwnPodMissing,
        v1::ViewState::KubeletSilent => Blind::KubeletSilent,
        v1::ViewState::Disconnected => Blind::Disconnected,
    }))
}

pub(crate) fn over_to_wire(over: OverKind) -> v1::PodOver {
    match over {
        OverKind::Gone(GoneBy::WatchDeleted) => v1::PodOver::WatchDeleted,
        OverKind::Gone(GoneBy::GetNotFound) => v1::PodOver::GetNotFound,
        OverKind::Gone(GoneBy::GetOtherUid) => v1::PodOver::GetOtherUid,
        OverKind::Gone(GoneBy::Coordinator) => v1::PodOver::Coordinator,
        OverKind::Ended => v1::PodOver::Ended,
    }
}

pub(crate) fn over_from_wire(value: i32) -> Result<OverKind, WireError> {
    let (message, field) = ("Release", "over");
    Ok(match enumeration(message, field, value)? {
        v1::PodOver::Unspecified => {
            return Err(WireError::Enum { message, field, value });
        }
        v1::PodOver::WatchDeleted => OverKind::Gone(GoneBy::WatchDeleted),
        v1::PodOver::GetNotFound => OverKind::Gone(GoneBy::GetNotFound),
        v1::PodOver::GetOtherUid => OverKind::Gone(GoneBy::GetOtherUid),
        v1::PodOver::Coordinator => OverKind::Gone(GoneBy::Coordinator),
        v1::PodOver::Ended => OverKind::Ended,
    })
}

pub(crate) fn way_to_wire(way: Way) -> v1::ReleaseWay {
    match way {
        Way::SeenAndGone => v1::ReleaseWay::SeenAndGone,
        Way::Slow => v1::ReleaseWay::Slow,
    }
}

pub(crate) fn way_from_wire(value: i32) -> Result<Way, WireError> {
    let (message, field) = ("KubeletReleased", "way");
    match enumeration(message, field, value)? {
        v1::ReleaseWay::Unspecified => Err(WireError::Enum { message, field, value }),
        v1::ReleaseWay::SeenAndGone => Ok(Way::SeenAndGone),
        v1::ReleaseWay::Slow => Ok(Way::Slow),
    }
}

pub(crate) fn ack_to_wire(ack: Ack) -> v1::AckState {
    match ack {
        Ack::Received => v1::AckState::Received,
        Ack::Executing => v1::AckState::Executing,
        Ack::Deleted => v1::AckState::Deleted,
    }
}

pub(crate) fn ack_from_wire(value: i32) -> Result<Ack, WireError> {
    let (message, field) = ("Ack", "state");
    match enumeration(message, field, value)? {
        v1::AckState::Unspecified => Err(WireError::Enum { message, field, value }),
        v1::AckState::Received => Ok(Ack::Received),
        v1::AckState::Executing => Ok(Ack::Executing),
        v1::AckState::Deleted => Ok(Ack::Deleted),
    }
}

fn phase_to_wire(phase: PodPhase) -> v1::PodPhase {
    match phase {
        PodPhase::Pending => v1::PodPhase::Pending,
        PodPhase::Running => v1::PodPhase::Running,
        PodPhase::Succeeded => v1::PodPhase::Succeeded,
        PodPhase::Failed => v1::PodPhase::Failed,
        PodPhase::Unknown => v1::PodPhase::Unknown,
    }
}

fn phase_from_wire(value: i32) -> Result<PodPhase, WireError> {
    let (message, field) = ("PodItem", "phase");
    Ok(match enumeration(message, field, value)? {
        v1::PodPhase::Unspecified => {
            return Err(WireError::Enum { message, field, value });
        }
        v1::PodPhase::Pending => PodPhase::Pending,
        v1::PodPhase::Running => PodPhase::Running,
        v1::PodPhase::Succeeded => PodPhase::Succeeded,
        v1::PodPhase::Failed => PodPhase::Failed,
        v1::PodPhase::Unknown => PodPhase::Unknown,
    })
}

// === pods ===

impl From<&PodRef> for v1::PodKey {
    fn from(pod: &PodRef) -> Self {
        Self {
            uid: pod.uid.to_string(),
            namespace: pod.namespace.to_string(),
            name: pod.name.to_string(),
        }
    }
}

/// Reads a pod's name and UID; `message` is the one it is part of.
pub(crate) fn pod_ref(message: &'static str, key: Option<v1::PodKey>) -> Result<PodRef, WireError> {
    PodRef::try_from(required(message, "key", key)?)
}

impl TryFrom<v1::PodKey> for PodRef {
    type Error = WireError;

    fn try_from(key: v1::PodKey) -> Result<Self, WireError> {
        Ok(Self {
            uid: id("PodKey", "uid", &key.uid)?,
            namespace: id("PodKey", "namespace", &key.namespace)?,
            name: id("PodKey", "name", &key.name)?,
        })
    }
}

impl From<&Pod> for v1::PodItem {
    fn from(pod: &Pod) -> Self {
        Self {
            key: Some((&pod.pod).into()),
            labels: pod.labels.clone(),
            account: pod.account.as_ref().map(ToString::to_string),
            phase: phase_to_wire(pod.phase).into(),
            deleting: pod.deleting,
            mirror: pod.mirror,
            config_hash: pod.config_hash.as_ref().map(ToString::to_string),
            requested: pod.requested,
            odd_request: pod.odd_request.map(|odd| odd_to_wire(odd).into()),
            annotation: pod.annotation.clone(),
        }
    }
}

impl TryFrom<v1::PodItem> for Pod {
    type Error = WireError;

    fn try_from(item: v1::PodItem) -> Result<Self, WireError> {
        Ok(Self {
            pod: pod_ref("PodItem", item.key)?,
            labels: item.labels,
            account: optional("PodItem", "account", item.account.as_deref())?,
            phase: phase_from_wire(item.phase)?,
            deleting: item.deleting,
            mirror: item.mirror,
            config_hash: optional("PodItem", "config_hash", item.config_hash.as_deref())?,
            requested: item.requested,
            odd_request: item.odd_request.map(odd_from_wire).transpose()?,
            annotation: item.annotation,
        })
    }
}

fn odd_to_wire(odd: OddRequest) -> v1::OddRequest {
    match odd {
        OddRequest::Zero => v1::OddRequest::Zero,
        OddRequest::InitOnly => v1::OddRequest::InitOnly,
        OddRequest::NotFirst => v1::OddRequest::NotFirst,
    }
}

fn odd_from_wire(value: i32) -> Result<OddRequest, WireError> {
    let (message, field) = ("PodItem", "odd_request");
    Ok(match enumeration(message, field, value)? {
        v1::OddRequest::Unspecified => return Err(WireError::Enum { message, field, value }),
        v1::OddRequest::Zero => OddRequest::Zero,
        v1::OddRequest::InitOnly => OddRequest::InitOnly,
        v1::OddRequest::NotFirst => OddRequest::NotFirst,
    })
}

// === links ===

impl From<&Link> for v1::LinkItem {
    fn from(link: &Link) -> Self {
        Self {
            index: link.index,
            name: link.name.clone(),
            kind: Some(match &link.kind {
                LinkKind::Vlan(vlan) => v1::link_item::Kind::Vlan(u32::from(*vlan)),
                LinkKind::Other(kind) => v1::link_item::Kind::Other(kind.clone()),
            }),
            mac: link.mac.map(|m| m.to_string()),
            parent: link.parent,
        }
    }
}

impl TryFrom<v1::LinkItem> for Link {
    type Error = WireError;

    fn try_from(item: v1::LinkItem) -> Result<Self, WireError> {
        let kind = match required("LinkItem", "kind", item.kind)? {
            v1::link_item::Kind::Other(kind) => LinkKind::Other(kind),
            v1::link_item::Kind::Vlan(vlan) => match u16::try_from(vlan) {
                Ok(vlan) if vlan < 4096 => LinkKind::Vlan(vlan),
                _ => {
                    let why = "an 802.1q id is 0 to 4095";
                    return Err(WireError::value("LinkItem", "vlan", &vlan, why));
                }
            },
        };
        if item.index == 0 {
            let why = "an interface index is positive";
            return Err(WireError::value("LinkItem", "index", &item.index, why));
        }
        if item.name.is_empty() {
            return Err(WireError::Missing { message: "LinkItem", field: "name" });
        }
        let mac: Option<MacAddress> = optional("LinkItem", "mac", item.mac.as_deref())?;
        Ok(Self { index: item.index, name: item.name, kind, mac, parent: item.parent })
    }
}

// === branches ===

impl From<&OwnedBranch> for v1::OwnedBranch {
    fn from(branch: &OwnedBranch) -> Self {
        Self {
            key: Some((&branch.pod).into()),
            mirror: branch.mirror,
            kubelet_uid: branch.kubelet_uid.as_ref().map(ToString::to_string),
            eni_id: branch.eni.to_string(),
            mac: branch.mac.to_string(),
            vlan: u32::from(branch.vlan.get()),
        }
    }
}

impl TryFrom<v1::OwnedBranch> for OwnedBranch {
    type Error = WireError;

    fn try_from(branch: v1::OwnedBranch) -> Result<Self, WireError> {
        let message = "OwnedBranch";
        let kubelet_uid = optional(message, "kubelet_uid", branch.kubelet_uid.as_deref())?;
        if kubelet_uid.is_none() && !branch.mirror {
            return Err(WireError::Missing { message, field: "kubelet_uid" });
        }
        Ok(Self {
            pod: pod_ref(message, branch.key)?,
            mirror: branch.mirror,
            kubelet_uid,
            eni: id(message, "eni_id", &branch.eni_id)?,
            mac: id(message, "mac", &branch.mac)?,
            vlan: vlan(message, "vlan", branch.vlan)?,
        })
    }
}
