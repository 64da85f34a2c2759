//! Network namespaces and real links.
//!
//! Each simulated node has a namespace under `/run/netns` (the agent's `--host-netns`). Its trunk link is one end of a
//! veth pair with the trunk's MAC; branch links are macvlans on it, because kernels without 802.1q are common and the
//! agent knows a branch link by its name (`vlan.eth.N`) and MAC, not by its kind (design §4.2).
//!
//! `ip netns` makes and removes the namespaces; links are made over a netlink socket that was opened inside the
//! namespace and stays there, whatever thread uses it. Names carry the process's id and start time, so that namespaces
//! of a run that was killed are recognised and removed by the next one, and those of another live run are not touched.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::TryStreamExt;
use rtnetlink::packet_route::link::{LinkAttribute, LinkMessage, MacVlanMode};
use rtnetlink::{Handle, LinkMacVlan, LinkUnspec, LinkVeth};
use trunkline_core::id::MacAddress;

/// Where `ip netns` keeps its namespaces.
const NETNS_DIR: &str = "/run/netns";
/// Start of every name.
const PREFIX: &str = "tlsim-";
/// Name of the trunk link, as the second ENI of a Linux instance is called.
pub const TRUNK_LINK: &str = "eth1";
/// The trunk's other end.
const TRUNK_PEER: &str = "cloud1";
/// `ENODEV`.
const NO_DEVICE: i32 = 19;

/// Why namespaces or links could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `ip` is not installed.
    #[error(
        "network namespaces need the command 'ip' (package iproute2), which is not on this machine"
    )]
    NoIpCommand(#[source] io::Error),
    /// `ip` refused.
    #[error(
        "network namespaces cannot be made here (root with CAP_SYS_ADMIN and CAP_NET_ADMIN is needed): {0}"
    )]
    Refused(String),
    /// The kernel lacks veth or macvlan.
    #[error("links of kind veth and macvlan cannot be made in a network namespace here: {0}")]
    NoLinks(#[source] Box<Error>),
    /// The namespace could not be entered.
    #[error("failed to enter the network namespace {name}")]
    Enter {
        /// Its name.
        name: String,
        /// The cause.
        source: io::Error,
    },
    /// A netlink request failed.
    #[error("failed to {what}")]
    Netlink {
        /// What was tried.
        what: String,
        /// The cause.
        source: rtnetlink::Error,
    },
    /// A MAC that no interface can carry.
    #[error(transparent)]
    Mac(#[from] trunkline_core::id::InvalidId),
    /// There is no trunk link to put a branch on.
    #[error("there is no trunk link")]
    NoTrunk,
}

/// A namespace; removed when dropped.
#[derive(Debug)]
pub struct Netns {
    name: String,
    handle: Handle,
    removed: AtomicBool,
}

/// Start of the names of this process's namespaces: `tlsim-<pid>.<start time>-`.
pub fn run_prefix() -> String {
    let pid = std::process::id();
    format!("{PREFIX}{pid}.{}-", start_time(pid).unwrap_or_default())
}

/// Field 22 of `/proc/<pid>/stat`: the start time in ticks since boot.
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command may contain spaces and parentheses; fields are counted after its last parenthesis.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Whether a namespace of this name was made by a run that has ended.
fn is_stale(name: &str) -> bool {
    let parse = || {
        let (pid, rest) = name.strip_prefix(PREFIX)?.split_once('.')?;
        let (start, _) = rest.split_once('-')?;
        Some((pid.parse::<u32>().ok()?, start.parse::<u64>().ok()?))
    };
    parse().is_some_and(|(pid, start)| start_time(pid) != Some(start))
}

/// Removes the namespaces of runs that have ended.
pub fn remove_stale() {
    let Ok(entries) = std::fs::read_dir(NETNS_DIR) else {
        return;
    };
    for name in entries.flatten().filter_map(|e| e.file_name().into_string().ok()) {
        if is_stale(&name) {
            tracing::info!(name, "removing the network namespace of a run that has ended");
            delete(&name);
        }
    }
}

fn delete(name: &str) {
    let done = std::process::Command::new("ip")
        .args(["netns", "del", name])
        .stderr(Stdio::null())
        .status();
    if !done.is_ok_and(|status| status.success()) {
        tracing::warn!(name, "failed to remove a network namespace");
    }
}

/// Makes a namespace with a trunk and a branch once, so that a machine that cannot is told apart at the start.
pub async fn probe() -> Result<(), Error> {
    let netns =
        Netns::create(&format!("{}probe{:08x}", run_prefix(), rand::random::<u32>())).await?;
    let tried = async {
        netns.set_trunk("02:00:00:00:00:01").await?;
        netns.add_branch("vlan.eth.1", "02:00:00:00:00:02").await
    };
    tried.await.map_err(|e| Error::NoLinks(Box::new(e)))
}

impl Netns {
    /// Makes the namespace `name`, replacing one of that name.
    pub async fn create(name: &str) -> Result<Self, Error> {
        if Path::new(NETNS_DIR).join(name).exists() {
            delete(name);
        }
        let made = tokio::process::Command::new("ip")
            .args(["netns", "add", name])
            .output()
            .await
            .map_err(Error::NoIpCommand)?;
        if !made.status.success() {
            return Err(Error::Refused(String::from_utf8_lossy(&made.stderr).trim().to_owned()));
        }
        match open_inside(name).await {
            Ok(handle) => {
                Ok(Self { name: name.to_owned(), handle, removed: AtomicBool::new(false) })
            }
            Err(source) => {
                delete(name);
                Err(Error::Enter { name: name.to_owned(), source })
            }
        }
    }

    /// The file that stands for the namespace.
    pub fn path(&self) -> PathBuf {
        Path::new(NETNS_DIR).join(&self.name)
    }

    /// Makes the trunk link with this MAC, replacing one with another MAC.
    pub async fn set_trunk(&self, mac: &str) -> Result<(), Error> {
        let address = octets(mac)?;
        self.remove(TRUNK_LINK).await?;
        let pair = LinkVeth::new(TRUNK_LINK, TRUNK_PEER).address(address).up().build();
        self.request("make the trunk link", self.handle.link().add(pair).execute()).await?;
        let peer = LinkUnspec::new_with_name(TRUNK_PEER).up().build();
        self.request("bring the trunk's other end up", self.handle.link().change(peer).execute())
            .await
    }

    /// Makes a branch link as the CNI does: an existing link of that name is deleted first.
    pub async fn add_branch(&self, name: &str, mac: &str) -> Result<(), Error> {
        let address = octets(mac)?;
        self.remove(name).await?;
        let trunk = self.index_of(TRUNK_LINK).await?.ok_or(Error::NoTrunk)?;
        let link = LinkMacVlan::new(name, trunk, MacVlanMode::Bridge).address(address).up().build();
        self.request(&format!("make the link {name}"), self.handle.link().add(link).execute()).await
    }

    /// Removes a link by name; says whether there was one.
    pub async fn remove(&self, name: &str) -> Result<bool, Error> {
        let Some(index) = self.index_of(name).await? else {
            return Ok(false);
        };
        match self.handle.link().del(index).execute().await {
            Ok(()) => Ok(true),
            Err(e) if is_no_device(&e) => Ok(false),
            Err(source) => Err(Error::Netlink { what: format!("remove the link {name}"), source }),
        }
    }

    /// All links: name to MAC.
    pub async fn links(&self) -> Result<BTreeMap<String, String>, Error> {
        let mut found = BTreeMap::new();
        let mut answers = self.handle.link().get().execute();
        while let Some(link) = answers
            .try_next()
            .await
            .map_err(|source| Error::Netlink { what: "list the links".into(), source })?
        {
            if let (Some(name), Some(mac)) = name_and_mac(&link) {
                found.insert(name, mac);
            }
        }
        Ok(found)
    }

    /// The MAC of the link of this name, if there is one.
    pub async fn mac_of(&self, name: &str) -> Result<Option<String>, Error> {
        Ok(self.find(name).await?.and_then(|link| name_and_mac(&link).1))
    }

    /// Removes the namespace; a process inside keeps it alive, without a name.
    pub fn destroy(&self) {
        if !self.removed.swap(true, Ordering::Relaxed) {
            delete(&self.name);
        }
    }

    async fn index_of(&self, name: &str) -> Result<Option<u32>, Error> {
        Ok(self.find(name).await?.map(|link| link.header.index))
    }

    async fn find(&self, name: &str) -> Result<Option<LinkMessage>, Error> {
        let mut answers = self.handle.link().get().match_name(name).execute();
        match answers.try_next().await {
            Ok(link) => Ok(link),
            Err(e) if is_no_device(&e) => Ok(None),
            Err(source) => {
                Err(Error::Netlink { what: format!("look for the link {name}"), source })
            }
        }
    }

    async fn request(
        &self,
        what: &str,
        call: impl Future<Output = Result<(), rtnetlink::Error>>,
    ) -> Result<(), Error> {
        call.await.map_err(|source| Error::Netlink { what: what.to_owned(), source })
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        self.destroy();
    }
}

fn octets(mac: &str) -> Result<Vec<u8>, Error> {
    Ok(mac.parse::<MacAddress>()?.octets().to_vec())
}

fn is_no_device(error: &rtnetlink::Error) -> bool {
    matches!(error, rtnetlink::Error::NetlinkError(e) if e.raw_code() == -NO_DEVICE)
}

fn name_and_mac(link: &LinkMessage) -> (Option<String>, Option<String>) {
    let mut found = (None, None);
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => found.0 = Some(name.clone()),
            LinkAttribute::Address(octets) => {
                let mac: Vec<String> = octets.iter().map(|b| format!("{b:02x}")).collect();
                found.1 = Some(mac.join(":"));
            }
            _ => {}
        }
    }
    found
}

/// Opens a netlink socket inside the namespace, on a thread of its own that ends right after: `setns` changes the
/// calling thread, the socket stays where it was opened.
async fn open_inside(name: &str) -> io::Result<Handle> {
    let path = Path::new(NETNS_DIR).join(name);
    let runtime = tokio::runtime::Handle::current();
    let (sender, receiver) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("enter-netns".to_owned()).spawn(move || {
        let opened = || {
            let file = File::open(&path)?;
            rustix::thread::move_into_link_name_space(
                file.as_fd(),
                Some(rustix::thread::LinkNameSpaceType::Network),
            )?;
            let _guard = runtime.enter();
            let (connection, handle, _messages) = rtnetlink::new_connection()?;
            runtime.spawn(connection);
            Ok(handle)
        };
        // The receiver is only gone when the caller was cancelled.
        let _cancelled = sender.send(opened());
    })?;
    receiver.await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_namespaces_of_ended_runs_are_stale() {
        assert!(!is_stale(&format!("{}node-1", run_prefix())));
        assert!(is_stale(&format!("tlsim-{}.1-node-1", std::process::id())));
        assert!(is_stale("tlsim-4194305.77-node-1"));
        for name in ["other", "tlsim-", "tlsim-x.y-z", "tlsim-12", "cni-5c9e2b52"] {
            assert!(!is_stale(name), "{name}");
        }
    }
}
