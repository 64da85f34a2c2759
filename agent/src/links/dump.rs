//! One whole link dump.

use std::io;

use rtnetlink::sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use trunkline_core::view::{Link, Links};

use super::LinkError;
use super::parse::{Reply, messages};

/// Bytes for one datagram of a dump; the kernel fills at most 32 KiB.
const BUFFER: usize = 64 * 1024;
/// `recv` reports the true length of a datagram that did not fit.
const MSG_TRUNC: i32 = 0x20;
/// Dumps are repeated this often when links change meanwhile.
const ATTEMPTS: u32 = 5;

/// `RTM_GETLINK` for everything: a netlink header (length 32, type 18, REQUEST | DUMP, sequence 1) and an empty
/// `ifinfomsg`.
fn request() -> Vec<u8> {
    let mut bytes = Vec::with_capacity(32);
    bytes.extend_from_slice(&32u32.to_ne_bytes());
    bytes.extend_from_slice(&18u16.to_ne_bytes());
    bytes.extend_from_slice(&(0x1u16 | 0x300).to_ne_bytes());
    bytes.extend_from_slice(&1u32.to_ne_bytes());
    bytes.resize(32, 0);
    bytes
}

/// Reads all links of the calling thread's namespace. Blocks.
pub(super) fn dump() -> Result<Links, LinkError> {
    for _ in 0..ATTEMPTS {
        if let Some(links) = dump_once()? {
            return Ok(Links(links));
        }
    }
    Err(LinkError::Interrupted(ATTEMPTS))
}

/// `None` if the kernel says that the dump was interrupted by a change.
fn dump_once() -> Result<Option<Vec<Link>>, LinkError> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&request(), 0)?;
    let mut links = Vec::new();
    let mut whole = true;
    let mut buffer: Vec<u8> = Vec::with_capacity(BUFFER);
    loop {
        buffer.clear();
        let length = match socket.recv(&mut buffer, MSG_TRUNC) {
            Ok(length) => length,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e.into()),
        };
        if length > buffer.len() {
            return Err(LinkError::Malformed("a datagram larger than the buffer"));
        }
        for reply in messages(&buffer) {
            match reply? {
                Reply::Link { link, interrupted } => {
                    whole &= !interrupted;
                    links.push(link);
                }
                Reply::Done { interrupted } => {
                    return Ok((whole && !interrupted).then_some(links));
                }
                Reply::Refused(errno) => return Err(io::Error::from_raw_os_error(errno).into()),
                Reply::Other { interrupted } => whole &= !interrupted,
            }
        }
    }
}
