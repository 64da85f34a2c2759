//! A pod with a branch as the VPC CNI sets it up in strict mode, and a cloud that answers to one MAC only.
//!
//! Three namespaces. The *pod* has its addresses on `eth0`, the other end of the node's `vlanpod`. The *node* has the trunk,
//! `vlan.eth.7` on it, table 107 with both default routes over it, and rules for what comes in by either. The *cloud* is
//! behind the trunk: a host with addresses of its own, reached by a gateway (`gw`) that the kernel lets receive only frames
//! whose source is the one MAC that is accepted, and that sends what is for the pod to this MAC without asking. For IPv6
//! the gateway's neighbour discovery is done here ([`Gateway`]), because it must answer only to the link-local address
//! made from that MAC.
#![allow(clippy::indexing_slicing, reason = "a test that cannot go on ends")]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, recvfrom,
    sendto, socket,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::time::Instant;
use trunkline_core::id::MacAddress;

use super::{LIMIT, Netns};

pub const TRUNK: &str = "02:00:00:00:00:01";
const GATEWAY: &str = "02:00:00:00:00:fe";
const VETH: &str = "02:00:00:00:01:01";
pub const POD: [&str; 2] = ["10.0.1.17", "2001:db8::17"];
const HOST: [&str; 2] = ["10.9.0.1", "2001:db8:9::1"];
const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0xec2, 0, 0, 0, 0, 0, 1);
const PORT: u16 = 7000;
/// How long an answer is waited for where there should be none.
const SILENCE: Duration = Duration::from_millis(300);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

pub const BOTH: [Family; 2] = [Family::V4, Family::V6];

impl Family {
    fn of<'a>(self, addresses: &[&'a str; 2]) -> &'a str {
        match self {
            Self::V4 => addresses[0],
            Self::V6 => addresses[1],
        }
    }

    fn host(self) -> SocketAddr {
        SocketAddr::new(self.of(&HOST).parse().unwrap(), PORT)
    }
}

/// Runs something on a thread inside a namespace; the sockets it opens stay there.
fn inside<T: Send + 'static>(file: &Path, work: impl FnOnce() -> T + Send + 'static) -> T {
    let file = file.to_owned();
    let thread = std::thread::spawn(move || {
        let namespace = std::fs::File::open(file).unwrap();
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        work()
    });
    thread.join().unwrap()
}

/// See the module.
pub struct Wire {
    pub node: Netns,
    pod: Netns,
    cloud: Netns,
    gateway: Gateway,
}

impl Wire {
    /// All of it, and a cloud that accepts `mac`; `None`, with a line that says why, where it cannot be made.
    pub fn new(mac: &str) -> Option<Self> {
        let (node, pod, cloud) = (Netns::new()?, Netns::new()?, Netns::new()?);
        node.sh("echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad
                 echo 1 > /proc/sys/net/ipv4/ip_forward
                 echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
                 ip link set lo up");
        node.sh(&format!(
            "ip link add trunk0 address {TRUNK} type veth peer name cloud0
             ip link set cloud0 netns {cloud}
             ip link set trunk0 up
             ip link add vlanpod address {VETH} type veth peer name eth0
             ip link set eth0 netns {pod}
             ip link set vlanpod up
             for family in -4 -6; do
               ip $family rule add iif vlan.eth.7 lookup 107 pref 10
               ip $family rule add iif vlanpod lookup 107 pref 10
             done",
            cloud = cloud.keeper.id(),
            pod = pod.keeper.id(),
        ));
        pod.sh(&format!(
            "ip link set lo up
             ip link set eth0 up
             ip addr add {v4}/32 dev eth0
             ip addr add {v6}/128 dev eth0 nodad
             ip neigh add 169.254.1.1 lladdr {VETH} dev eth0 nud permanent
             ip neigh add fe80::1 lladdr {VETH} dev eth0 nud permanent
             ip route add 169.254.1.1 dev eth0
             ip route add default via 169.254.1.1 dev eth0
             ip route add default via fe80::1 dev eth0",
            v4 = POD[0],
            v6 = POD[1],
        ));
        let source_mode = "link add link cloud0 name gw type macvlan mode source";
        cloud.sh("ip link set lo up
                  echo 1 > /proc/sys/net/ipv6/conf/cloud0/disable_ipv6
                  echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore
                  ip link set cloud0 up");
        if !cloud.try_ip(source_mode) {
            eprintln!("skipped: the kernel has no macvlan that filters by source");
            return None;
        }
        cloud.sh(&format!(
            "ip link set gw address {GATEWAY} up
             ip addr add 10.0.1.1/24 dev gw
             ip addr add {v4}/32 dev lo
             ip addr add {v6}/128 dev lo
             ip route add {pod6} dev gw",
            v4 = HOST[0],
            v6 = HOST[1],
            pod6 = POD[1],
        ));
        let gateway = Gateway::start(&cloud.file(), mac.parse().unwrap());
        serve(&cloud.file());
        let wire = Self { node, pod, cloud, gateway };
        wire.accept(mac);
        wire.add(mac);
        Some(wire)
    }

    /// CNI ADD: an existing link of that name is deleted first.
    pub fn add(&self, mac: &str) {
        self.node.sh(&format!(
            "ip link del vlan.eth.7 2>/dev/null || true
             ip link add link trunk0 name vlan.eth.7 address {mac} type macvlan
             ip link set vlan.eth.7 up
             ip route replace 10.0.1.1 dev vlan.eth.7 scope link table 107
             ip route replace default via 10.0.1.1 dev vlan.eth.7 onlink table 107
             ip route replace {v4} dev vlanpod scope link table 107
             ip -6 route replace {ROUTER} dev vlan.eth.7 table 107
             ip -6 route replace default via {ROUTER} dev vlan.eth.7 onlink table 107
             ip -6 route replace {v6} dev vlanpod table 107",
            v4 = POD[0],
            v6 = POD[1],
        ));
    }

    /// The cloud's branch ENI has this MAC from now on.
    pub fn accept(&self, mac: &str) {
        self.cloud.sh(&format!(
            "ip link set link dev gw type macvlan macaddr set {mac}
             ip neigh replace {v4} lladdr {mac} dev gw nud permanent
             ip neigh replace {v6} lladdr {mac} dev gw nud permanent",
            v4 = POD[0],
            v6 = POD[1],
        ));
        self.gateway.state.lock().unwrap().accepted = mac.parse().unwrap();
    }

    /// Whether a datagram of the pod is answered, soon.
    pub fn answers(&self, family: Family) -> bool {
        let from = SocketAddr::new(family.of(&POD).parse().unwrap(), 0);
        inside(&self.pod.file(), move || {
            let socket = UdpSocket::bind(from).unwrap();
            socket.set_read_timeout(Some(SILENCE)).unwrap();
            // An address that does not resolve is told as an error sooner or later; it is no answer either.
            let sent = socket.send_to(b"there?", family.host());
            sent.is_ok() && socket.recv(&mut [0; 16]).is_ok()
        })
    }

    /// Polls until it is answered.
    pub fn works(&self, family: Family) {
        until(&format!("answer in {family:?}"), || self.answers(family).then_some(()));
    }

    /// A connection from the pod to the host behind the cloud.
    pub fn talk(&self, family: Family) -> TcpStream {
        inside(&self.pod.file(), move || TcpStream::connect_timeout(&family.host(), LIMIT).unwrap())
    }

    /// What the cloud was told about the pod's addresses: which is at which MAC.
    pub fn announced(&self) -> Vec<(IpAddr, MacAddress)> {
        self.gateway.state.lock().unwrap().announced.clone()
    }
}

/// Polls with a deadline.
pub fn until<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(Instant::now() < deadline, "no {what} in time");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Says something and waits for the echo: `None` if there is none soon.
pub fn echo(stream: &mut TcpStream, word: &[u8], patience: Duration) -> Option<()> {
    stream.set_read_timeout(Some(patience)).unwrap();
    stream.write_all(word).unwrap();
    heard(stream, word)
}

/// Waits for the rest of an echo.
pub fn heard(stream: &mut TcpStream, word: &[u8]) -> Option<()> {
    let mut answer = vec![0; word.len()];
    stream.read_exact(&mut answer).ok().map(|()| assert_eq!(answer, word))
}

/// Echo servers of the host behind the cloud; they end with the process.
fn serve(cloud: &Path) {
    for family in BOTH {
        inside(cloud, move || {
            let datagrams = UdpSocket::bind(family.host()).unwrap();
            std::thread::spawn(move || {
                let mut buffer = [0; 64];
                while let Ok((length, from)) = datagrams.recv_from(&mut buffer) {
                    // Nobody may be there to hear it; that is the point.
                    let _ = datagrams.send_to(&buffer[..length], from);
                }
            });
            let listener = TcpListener::bind(family.host()).unwrap();
            std::thread::spawn(move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    std::thread::spawn(move || {
                        let mut reader = stream.try_clone().unwrap();
                        let _ = std::io::copy(&mut reader, &mut &stream);
                    });
                }
            });
        });
    }
}

// === the gateway's neighbour discovery ===

struct State {
    accepted: MacAddress,
    announced: Vec<(IpAddr, MacAddress)>,
}

/// Answers neighbour solicitations for [`ROUTER`], and notes announcements. Ends with the process.
struct Gateway {
    state: Arc<Mutex<State>>,
}

impl Gateway {
    fn start(cloud: &Path, accepted: MacAddress) -> Self {
        let state = Arc::new(Mutex::new(State { accepted, announced: Vec::new() }));
        let seen = Arc::clone(&state);
        let file: PathBuf = cloud.to_owned();
        inside(&file, move || {
            let all = SockProtocol::EthAll;
            let socket =
                socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, all).unwrap();
            let link = link_address("cloud0");
            std::thread::spawn(move || {
                let mut buffer = [0; 2048];
                while let Ok((length, from)) = recvfrom::<LinkAddr>(socket.as_raw_fd(), &mut buffer)
                {
                    // Not what was sent (packet type 4), and each frame once.
                    let from = from.unwrap();
                    if from.pkttype() == 4 || from.ifindex() != link.ifindex() {
                        continue;
                    }
                    if let Some(answer) = take(&seen, &buffer[..length]) {
                        let none = MsgFlags::empty();
                        let _ = sendto(socket.as_raw_fd(), &answer, &link, none);
                    }
                }
            });
        });
        Self { state }
    }
}

fn link_address(name: &str) -> LinkAddr {
    nix::ifaddrs::getifaddrs()
        .unwrap()
        .filter(|interface| interface.interface_name == name)
        .find_map(|i| i.address.as_ref().and_then(SockaddrStorage::as_link_addr).copied())
        .unwrap()
}

/// Takes in a frame; an answer to a solicitation that deserves one.
fn take(state: &Mutex<State>, frame: &[u8]) -> Option<Vec<u8>> {
    let mac = |at: usize| MacAddress::from_octets(frame.get(at..at + 6)?.try_into().ok()?).ok();
    let v6 = |at: usize| Some(Ipv6Addr::from(<[u8; 16]>::try_from(frame.get(at..at + 16)?).ok()?));
    let v4 = |at: usize| Some(IpAddr::from(<[u8; 4]>::try_from(frame.get(at..at + 4)?).ok()?));
    let mut state = state.lock().unwrap();
    match (frame.get(12..14)?, frame.get(54)) {
        // A request for the sender's own address.
        ([0x08, 0x06], _) if v4(28)? == v4(38)? => {
            state.announced.push((v4(28)?, mac(22)?));
            None
        }
        ([0x86, 0xdd], Some(136)) if frame[20] == 58 => {
            state.announced.push((v6(62)?.into(), mac(80)?));
            None
        }
        ([0x86, 0xdd], Some(135)) if frame[20] == 58 && v6(62)? == ROUTER => {
            let (source, address) = (mac(6)?, v6(22)?);
            let known = source == state.accepted && address == source.link_local();
            known.then(|| advertisement(source, address))
        }
        _ => None,
    }
}

/// "[`ROUTER`] is at [`GATEWAY`]": a solicited advertisement.
fn advertisement(to: MacAddress, address: Ipv6Addr) -> Vec<u8> {
    let own: MacAddress = GATEWAY.parse().unwrap();
    let mut message = vec![136, 0, 0, 0, 0xe0, 0, 0, 0];
    message.extend(ROUTER.octets());
    message.extend([2, 1]);
    message.extend(own.octets());
    let pseudo = [&ROUTER.octets()[..], &address.octets(), &[0, 0, 0, 32, 0, 0, 0, 58], &message];
    let sum: u32 = pseudo
        .concat()
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    message[2..4].copy_from_slice(&(!u16::try_from(folded).unwrap()).to_be_bytes());
    let head = [0x60, 0, 0, 0, 0, 32, 58, 255];
    let ethernet = [&to.octets()[..], &own.octets(), &[0x86, 0xdd]].concat();
    [&ethernet[..], &head, &ROUTER.octets(), &address.octets(), &message].concat()
}
