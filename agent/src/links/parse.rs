//! Netlink messages of a link dump, as far as rules care.
//!
//! Only the five attributes that matter are read, so that a newer kernel's attributes cannot make a view fail; what is
//! read must be whole, or the dump is refused.

use trunkline_core::id::MacAddress;
use trunkline_core::view::{Link, LinkKind};

use super::LinkError;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLMSG_OVERRUN: u16 = 4;
const RTM_NEWLINK: u16 = 16;
const NLM_F_DUMP_INTR: u16 = 0x10;
const MESSAGE_HEADER: usize = 16;
const LINK_HEADER: usize = 16;
const ATTRIBUTE_HEADER: usize = 4;
/// The two upper bits of an attribute's type are flags.
const TYPE_MASK: u16 = 0x3fff;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINK: u16 = 5;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const IFLA_VLAN_ID: u16 = 1;

/// One message of a dump. `interrupted`: the kernel says that the dump may have missed something.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Link { link: Link, interrupted: bool },
    Done { interrupted: bool },
    Refused(i32),
    Other { interrupted: bool },
}

/// The messages of one datagram.
pub(super) fn messages(mut rest: &[u8]) -> impl Iterator<Item = Result<Reply, LinkError>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let parsed = split(rest).and_then(|(message, tail)| {
            rest = tail;
            reply(message)
        });
        if parsed.is_err() {
            rest = &[];
        }
        Some(parsed)
    })
}

/// Cuts off the first message, its padding included.
fn split(bytes: &[u8]) -> Result<(&[u8], &[u8]), LinkError> {
    let length = u32_at(bytes, 0).and_then(|l| usize::try_from(l).ok()).unwrap_or_default();
    let message = bytes
        .get(..length)
        .filter(|m| m.len() >= MESSAGE_HEADER)
        .ok_or(LinkError::Malformed("a message is cut off"))?;
    Ok((message, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

fn reply(message: &[u8]) -> Result<Reply, LinkError> {
    let kind = u16_at(message, 4).unwrap_or_default();
    let interrupted = u16_at(message, 6).unwrap_or_default() & NLM_F_DUMP_INTR != 0;
    let payload = message.get(MESSAGE_HEADER..).unwrap_or_default();
    match kind {
        RTM_NEWLINK => Ok(Reply::Link { link: link(payload)?, interrupted }),
        NLMSG_DONE | NLMSG_ERROR => {
            let status = u32_at(payload, 0).unwrap_or_default().cast_signed();
            match (kind, status) {
                (_, ..0) => Ok(Reply::Refused(status.saturating_neg())),
                (NLMSG_DONE, _) => Ok(Reply::Done { interrupted }),
                _ => Ok(Reply::Other { interrupted }),
            }
        }
        NLMSG_OVERRUN => Err(LinkError::Malformed("the kernel reports lost data")),
        _ => Ok(Reply::Other { interrupted }),
    }
}

fn link(payload: &[u8]) -> Result<Link, LinkError> {
    let index = u32_at(payload, 4).ok_or(LinkError::Malformed("a link without header"))?;
    let mut link = Link {
        index,
        name: String::new(),
        kind: LinkKind::Other(String::new()),
        mac: None,
        parent: None,
    };
    for (kind, value) in attributes(payload.get(LINK_HEADER..).unwrap_or_default())? {
        match kind {
            IFLA_IFNAME => link.name = text(value),
            IFLA_ADDRESS => link.mac = mac(value),
            IFLA_LINK => link.parent = u32_at(value, 0).filter(|parent| *parent != 0),
            IFLA_LINKINFO => link.kind = info(value)?,
            _ => {}
        }
    }
    if link.name.is_empty() {
        return Err(LinkError::Malformed("a link without name"));
    }
    Ok(link)
}

fn info(value: &[u8]) -> Result<LinkKind, LinkError> {
    let mut kind = String::new();
    let mut vlan = None;
    for (attribute, value) in attributes(value)? {
        match attribute {
            IFLA_INFO_KIND => kind = text(value),
            IFLA_INFO_DATA if kind == "vlan" => {
                let id = attributes(value)?.into_iter().find(|(k, _)| *k == IFLA_VLAN_ID);
                vlan = id.and_then(|(_, value)| u16_at(value, 0));
            }
            _ => {}
        }
    }
    match (kind.as_str(), vlan) {
        ("vlan", Some(id)) => Ok(LinkKind::Vlan(id)),
        ("vlan", None) => Err(LinkError::Malformed("a vlan link without id")),
        _ => Ok(LinkKind::Other(kind)),
    }
}

fn attributes(mut rest: &[u8]) -> Result<Vec<(u16, &[u8])>, LinkError> {
    let mut all = Vec::new();
    while !rest.is_empty() {
        let length = usize::from(u16_at(rest, 0).unwrap_or_default());
        let kind = u16_at(rest, 2).unwrap_or_default() & TYPE_MASK;
        let value = rest
            .get(ATTRIBUTE_HEADER..length)
            .ok_or(LinkError::Malformed("an attribute is cut off"))?;
        all.push((kind, value));
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(all)
}

/// A unicast Ethernet address; loopback and tunnels have none.
fn mac(value: &[u8]) -> Option<MacAddress> {
    MacAddress::from_octets(<[u8; 6]>::try_from(value).ok()?).ok()
}

/// A NUL-terminated text. The kernel refuses names with control characters, but not those that are not UTF-8; such a
/// name is no `vlan.eth.N` in any reading.
fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.split(|b| *b == 0).next().unwrap_or_default()).into_owned()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = u16::try_from(value.len() + 4).unwrap();
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn message(kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len() + 16).unwrap();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend_from_slice(payload);
        bytes
    }

    fn vlan_link() -> Vec<u8> {
        let mut payload = vec![0; 16];
        payload[4] = 9;
        payload.extend(attribute(IFLA_IFNAME, b"vlan.eth.7\0"));
        payload.extend(attribute(IFLA_ADDRESS, &[2, 0, 0, 0, 0, 7]));
        payload.extend(attribute(IFLA_LINK, &3u32.to_ne_bytes()));
        payload.extend(attribute(999, &[1, 2, 3]));
        let data = attribute(IFLA_VLAN_ID, &7u16.to_ne_bytes());
        let info =
            [attribute(IFLA_INFO_KIND, b"vlan\0"), attribute(IFLA_INFO_DATA | 0x8000, &data)];
        payload.extend(attribute(IFLA_LINKINFO | 0x8000, &info.concat()));
        payload
    }

    #[test]
    fn a_vlan_link_is_read_with_unknown_attributes_around() {
        let bytes =
            [message(RTM_NEWLINK, 0, &vlan_link()), message(NLMSG_DONE, 0, &[0; 4])].concat();
        let read: Vec<_> = messages(&bytes).map(Result::unwrap).collect();
        let link = Link {
            index: 9,
            name: "vlan.eth.7".into(),
            kind: LinkKind::Vlan(7),
            mac: Some("02:00:00:00:00:07".parse().unwrap()),
            parent: Some(3),
        };
        assert_eq!(
            read,
            [Reply::Link { link, interrupted: false }, Reply::Done { interrupted: false }]
        );
    }

    #[test]
    fn an_interrupted_dump_says_so() {
        let bytes = message(RTM_NEWLINK, NLM_F_DUMP_INTR, &vlan_link());
        assert!(matches!(messages(&bytes).next(), Some(Ok(Reply::Link { interrupted: true, .. }))));
        let done = message(NLMSG_DONE, NLM_F_DUMP_INTR, &[0; 4]);
        assert!(matches!(messages(&done).next(), Some(Ok(Reply::Done { interrupted: true }))));
        let failed = message(NLMSG_DONE, 0, &(-90i32).to_ne_bytes());
        assert!(matches!(messages(&failed).next(), Some(Ok(Reply::Refused(90)))));
    }

    #[test]
    fn cut_messages_are_errors_at_every_length() {
        let bytes = message(RTM_NEWLINK, 0, &vlan_link());
        for length in 1..bytes.len() {
            let mut cut = bytes[..length].to_vec();
            assert!(messages(&cut).any(|r| r.is_err()), "cut at {length}");
            // The same with a header that claims to be whole: the attribute that is cut shows, or the name is missing,
            // or what is left is a whole link with fewer attributes only where a whole attribute was cut off.
            if length > 4 {
                cut[..4].copy_from_slice(&u32::try_from(length).unwrap().to_ne_bytes());
                for reply in messages(&cut) {
                    if let Ok(Reply::Link { link, .. }) = reply {
                        assert_eq!(link.name, "vlan.eth.7", "cut at {length}");
                    }
                }
            }
        }
    }
}
