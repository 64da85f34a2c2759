//! The messages of healing in place.

use std::net::IpAddr;

use trunkline_core::id::VlanId;
use trunkline_core::message::{FromAgent, MacOutcome, SetMac};

use super::WireError;
use super::item::{enumeration, id, required, vlan};
use super::snapshot::limit;
use crate::v1;

/// Most addresses in one message; a branch has one of each family.
const ADDRESSES: usize = 16;

/// Longest sentence that is sent and kept, in characters.
const SENTENCE: usize = 300;

impl From<&SetMac> for v1::SetMac {
    fn from(set: &SetMac) -> Self {
        Self {
            request: set.request,
            pod_uid: set.uid.to_string(),
            vlan: u32::from(set.vlan.get()),
            from: set.from.to_string(),
            to: set.to.to_string(),
            addresses: set.addresses.iter().map(ToString::to_string).collect(),
        }
    }
}

impl TryFrom<v1::SetMac> for SetMac {
    type Error = WireError;

    fn try_from(set: v1::SetMac) -> Result<Self, WireError> {
        let message = "SetMac";
        Ok(Self {
            request: set.request,
            uid: id(message, "pod_uid", &set.pod_uid)?,
            vlan: vlan(message, "vlan", set.vlan)?,
            from: id(message, "from", &set.from)?,
            to: id(message, "to", &set.to)?,
            addresses: addresses(message, &set.addresses)?,
        })
    }
}

pub(crate) fn clear_neighbours(addresses: &[IpAddr]) -> v1::ClearNeighbours {
    v1::ClearNeighbours { addresses: addresses.iter().map(ToString::to_string).collect() }
}

/// Reads addresses that a pod can have.
pub(crate) fn addresses(message: &'static str, texts: &[String]) -> Result<Vec<IpAddr>, WireError> {
    let field = "addresses";
    limit(message, field, texts.len(), ADDRESSES)?;
    let mut all = Vec::with_capacity(texts.len());
    for text in texts {
        let why = "it is not an IP address that a pod can have";
        let refused = || WireError::value(message, field, text, why);
        let address = text.parse().ok().filter(is_unicast).ok_or_else(refused)?;
        if all.contains(&address) {
            return Err(WireError::Duplicate { message, field, value: address.to_string() });
        }
        all.push(address);
    }
    Ok(all)
}

fn is_unicast(address: &IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    !address.is_unspecified() && !address.is_loopback() && !address.is_multicast() && !broadcast
}

pub(crate) fn mac_result_to_wire(
    request: u64,
    vlan: VlanId,
    outcome: &MacOutcome,
) -> v1::MacResult {
    let (mut mac, mut sentence) = (None, None);
    let outcome = match outcome {
        MacOutcome::Done => v1::MacOutcome::Done,
        MacOutcome::Already => v1::MacOutcome::Already,
        MacOutcome::LinkAbsent => v1::MacOutcome::LinkAbsent,
        MacOutcome::Differs(found) => {
            mac = Some(found.to_string());
            v1::MacOutcome::Differs
        }
        MacOutcome::SwitchedOff => v1::MacOutcome::SwitchedOff,
        MacOutcome::Failed(why) => {
            sentence = Some(why.chars().take(SENTENCE).collect());
            v1::MacOutcome::Failed
        }
    };
    v1::MacResult { request, vlan: vlan.get().into(), outcome: outcome.into(), mac, sentence }
}

pub(crate) fn mac_result_from_wire(result: v1::MacResult) -> Result<FromAgent, WireError> {
    let (message, field, value) = ("MacResult", "outcome", result.outcome);
    let kind = enumeration(message, field, value)?;
    if let Some(mac) = result.mac.as_ref().filter(|_| kind != v1::MacOutcome::Differs) {
        return Err(WireError::value(message, "mac", mac, "it comes with DIFFERS only"));
    }
    if let Some(why) = result.sentence.as_ref().filter(|_| kind != v1::MacOutcome::Failed) {
        return Err(WireError::value(message, "sentence", why, "it comes with FAILED only"));
    }
    let outcome = match kind {
        v1::MacOutcome::Unspecified => return Err(WireError::Enum { message, field, value }),
        v1::MacOutcome::Done => MacOutcome::Done,
        v1::MacOutcome::Already => MacOutcome::Already,
        v1::MacOutcome::LinkAbsent => MacOutcome::LinkAbsent,
        v1::MacOutcome::Differs => {
            MacOutcome::Differs(id(message, "mac", &required(message, "mac", result.mac)?)?)
        }
        v1::MacOutcome::SwitchedOff => MacOutcome::SwitchedOff,
        v1::MacOutcome::Failed => {
            let why = required(message, "sentence", result.sentence)?;
            MacOutcome::Failed(why.chars().take(SENTENCE).collect())
        }
    };
    let vlan = vlan(message, "vlan", result.vlan)?;
    Ok(FromAgent::MacResult { request: result.request, vlan, outcome })
}
