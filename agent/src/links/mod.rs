//! The links of the host's network namespace.
//!
//! A view is a whole rtnetlink dump, made for each look on a socket of its own. A dump that the kernel marks as
//! interrupted, that does not reach its end marker, or that holds a message which cannot be read, is no view: a link
//! missed would be taken for a link that is gone. Whether it is a dump of the right namespace, `core` judges by the trunk's
//! MAC. The subscription only says *look now*; nothing is concluded from its messages, and losing some
//! loses nothing, as looks come by themselves too.
//!
//! The only thing that changes links is [`heal`], on the coordinator's word.

mod announce;
mod dump;
pub mod heal;
mod netns;
mod parse;

use std::io;
use std::path::{Path, PathBuf};

use rtnetlink::sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use tokio::io::unix::AsyncFd;
use trunkline_core::view::Links;

/// The multicast group of link changes (`RTNLGRP_LINK`).
const LINK_GROUP: u32 = 1;
/// The kernel dropped events because the socket's buffer was full (`ENOBUFS`).
const ENOBUFS: i32 = 105;

/// Why there is no dump.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The namespace of `--host-netns` could not be entered.
    #[error("failed to enter the network namespace '{path}'")]
    Namespace {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The netlink socket failed.
    #[error("failed to read the links over netlink")]
    Netlink(#[from] io::Error),
    /// The kernel sent something that is not a link dump.
    #[error("failed to read a link message: {0}")]
    Malformed(&'static str),
    /// Links kept changing during every attempt.
    #[error("the links changed during each of {0} dumps")]
    Interrupted(u32),
    /// The worker ended without an answer.
    #[error("the thread that reads the links ended without an answer")]
    Worker,
}

/// Reads the links of one network namespace.
#[derive(Debug, Clone)]
pub struct LinkReader {
    netns: Option<PathBuf>,
}

impl LinkReader {
    /// For the namespace behind this file (`--host-netns`), or the process's own.
    pub fn new(netns: Option<&Path>) -> Self {
        Self { netns: netns.map(Path::to_owned) }
    }

    /// Reads all links.
    pub async fn dump(&self) -> Result<Links, LinkError> {
        netns::inside(self.netns.clone(), dump::dump).await?
    }

    /// Subscribes to link changes.
    pub async fn events(&self) -> Result<LinkEvents, LinkError> {
        let socket = netns::inside(self.netns.clone(), || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind(&SocketAddr::new(0, 0))?;
            socket.add_membership(LINK_GROUP)?;
            socket.set_non_blocking(true)?;
            Ok::<_, io::Error>(socket)
        })
        .await??;
        Ok(LinkEvents { socket: crate::wait_fd(socket)? })
    }
}

/// A subscription to link changes.
#[derive(Debug)]
pub struct LinkEvents {
    socket: AsyncFd<Socket>,
}

impl LinkEvents {
    /// Returns once at least one link has changed since the last call. Cancel safe.
    pub async fn changed(&mut self) -> io::Result<()> {
        loop {
            let mut guard = self.socket.readable_mut().await?;
            guard.clear_ready();
            if drain(guard.get_inner())? {
                return Ok(());
            }
        }
    }
}

/// Reads until the socket is empty; whether anything was there.
fn drain(socket: &Socket) -> io::Result<bool> {
    let mut any = false;
    // The content does not matter: a message cut to this size is read, and gone, as a whole.
    let mut buffer: Vec<u8> = Vec::with_capacity(64);
    loop {
        buffer.clear();
        match socket.recv(&mut buffer, 0) {
            Ok(_) => any = true,
            Err(e) if e.raw_os_error() == Some(ENOBUFS) => any = true,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(any),
            Err(e) => return Err(e),
        }
    }
}
