//! Telling the neighbours of a pod's addresses that they are at another MAC now.
//!
//! The kernel tells nobody of a changed MAC (`real-node.md` §6), and the link carries none of the pod's addresses, so the
//! frames are made here: one gratuitous ARP request (RFC 5227 §2.3) for each IPv4 address and one unsolicited neighbour
//! advertisement with the override flag (RFC 4861 §7.2.6) for each IPv6 address. Neighbours that miss them go on with the
//! old MAC until their own entries age.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, SockaddrStorage, sendto, socket,
};
use trunkline_core::id::MacAddress;

const BROADCAST: [u8; 6] = [0xff; 6];
const ETHERTYPE_ARP: [u8; 2] = [0x08, 0x06];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// The Ethernet group of [`ALL_NODES`].
const ALL_NODES_GROUP: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
const ICMPV6: u8 = 58;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const OVERRIDE: u8 = 0x20;
const TARGET_LINK_LAYER_ADDRESS: u8 = 2;

/// Sends the announcements of these addresses out of the link of that index. Must run in the link's namespace.
pub(super) fn announce(index: u32, mac: MacAddress, addresses: &[IpAddr]) -> io::Result<()> {
    let Some(link) = packet_address(index)? else {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the link is gone"));
    };
    // Protocol 0: nothing is received.
    let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None)?;
    for address in addresses {
        sendto(socket.as_raw_fd(), &frame(mac, *address), &link, MsgFlags::empty())?;
    }
    Ok(())
}

/// The address by which a packet socket names a link. The system's list of links holds ready-made ones.
fn packet_address(index: u32) -> io::Result<Option<LinkAddr>> {
    let mut links = getifaddrs()?.filter_map(|interface| {
        interface.address.as_ref().and_then(SockaddrStorage::as_link_addr).copied()
    });
    Ok(links.find(|link| u32::try_from(link.ifindex()) == Ok(index)))
}

fn frame(mac: MacAddress, address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => gratuitous_arp(mac, address),
        IpAddr::V6(address) => unsolicited_advertisement(mac, address),
    }
}

fn gratuitous_arp(mac: MacAddress, address: Ipv4Addr) -> Vec<u8> {
    let mut frame = ethernet(BROADCAST, mac, ETHERTYPE_ARP);
    // Ethernet, IPv4, lengths of both, request.
    frame.extend([0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend(mac.octets());
    frame.extend(address.octets());
    frame.extend([0; 6]);
    frame.extend(address.octets());
    frame
}

fn unsolicited_advertisement(mac: MacAddress, address: Ipv6Addr) -> Vec<u8> {
    let mut message = vec![NEIGHBOUR_ADVERTISEMENT, 0, 0, 0, OVERRIDE, 0, 0, 0];
    message.extend(address.octets());
    message.extend([TARGET_LINK_LAYER_ADDRESS, 1]);
    message.extend(mac.octets());
    let sum = checksum(address, ALL_NODES, &message).to_be_bytes();
    message.splice(2..4, sum);

    let mut frame = ethernet(ALL_NODES_GROUP, mac, ETHERTYPE_IPV6);
    frame.extend([0x60, 0, 0, 0]);
    frame.extend(u16::try_from(message.len()).unwrap_or_default().to_be_bytes());
    // Receivers drop what comes with another hop limit than 255.
    frame.extend([ICMPV6, 255]);
    frame.extend(address.octets());
    frame.extend(ALL_NODES.octets());
    frame.extend(message);
    frame
}

fn ethernet(to: [u8; 6], from: MacAddress, ethertype: [u8; 2]) -> Vec<u8> {
    [&to[..], &from.octets(), &ethertype].concat()
}

/// The Internet checksum over the IPv6 pseudo header and an ICMPv6 message whose checksum field is 0.
fn checksum(from: Ipv6Addr, to: Ipv6Addr, message: &[u8]) -> u16 {
    let length = u32::try_from(message.len()).unwrap_or_default().to_be_bytes();
    let header = [&from.octets()[..], &to.octets(), &length, &[0, 0, 0, ICMPV6]].concat();
    let mut sum = 0u32;
    for pair in header.chunks(2).chain(message.chunks(2)) {
        sum += match pair {
            [high, low] => u32::from(u16::from_be_bytes([*high, *low])),
            [high] => u32::from(*high) << 8,
            _ => 0,
        };
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac() -> MacAddress {
        "02:11:22:33:44:55".parse().unwrap()
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().fold(String::new(), |text, b| format!("{text}{b:02x}"))
    }

    #[test]
    fn a_gratuitous_arp_is_a_broadcast_request_for_the_own_address() {
        let frame = frame(mac(), "10.0.1.17".parse().unwrap());
        let expected = concat!(
            "ffffffffffff",
            "021122334455",
            "0806",
            "0001",
            "0800",
            "06",
            "04",
            "0001",
            "021122334455",
            "0a000111",
            "000000000000",
            "0a000111",
        );
        assert_eq!(hex(&frame), expected);
    }

    #[test]
    fn an_unsolicited_advertisement_overrides_and_its_checksum_is_right() {
        let address: Ipv6Addr = "2001:db8::17".parse().unwrap();
        let frame = frame(mac(), address.into());
        let (head, message) = frame.split_at(54);
        let expected = concat!(
            "333300000001",
            "021122334455",
            "86dd",
            "60000000",
            "0020",
            "3a",
            "ff",
            "20010db8000000000000000000000017",
            "ff020000000000000000000000000001",
        );
        assert_eq!(hex(head), expected);
        assert_eq!(hex(&message[..2]), "8800");
        assert_eq!(
            hex(&message[4..]),
            concat!("20000000", "20010db8000000000000000000000017", "0201", "021122334455"),
        );
        // A receiver's sum over a message with its checksum in place is all ones.
        assert_eq!(checksum(address, ALL_NODES, message), 0);
        // By hand: the sum of all 16-bit words is 0x2_6d97.
        assert_eq!(hex(&message[2..4]), format!("{:04x}", !(0x6d97u16 + 2)));
    }

    #[test]
    fn a_link_that_is_not_there_is_an_error() {
        let error = announce(u32::MAX, mac(), &[]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
