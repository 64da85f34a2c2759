//! The live MAC change of a branch link (design §6; measured on a real 802.1q link, `real-node.md` §6).
//!
//! The link is addressed by its index and stays up: `down` would lose the routes of the pod's table, and its traffic would
//! leave by the main table's default route. A link that the CNI deletes and makes again meanwhile has another index, so
//! that the kernel refuses what was meant for the old one.
//!
//! Changing the MAC flushes the neighbours of the link and nothing else. What is left to do by hand:
//!
//! * the link-local address that the kernel made from the old MAC stays, and wins over a new one. The new one is added
//!   first, without duplicate address detection, which would hold it back for a second, then the old one is deleted. A
//!   link-local address that is not made from a MAC is somebody's choice and stays;
//! * other links of the node may know the pod's address at the old MAC: those entries are dropped. A permanent entry is
//!   somebody's choice as well, unless it names the old MAC;
//! * nobody in the network is told: [`super::announce`].
//!
//! At the end everything is read again. Every route that led over the link has to be there still; link-local and multicast
//! routes follow the addresses and are not compared. A request for a link that carries the new MAC already goes through
//! all of it, because an earlier one may have been cut short.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::TryStreamExt;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{
    AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope,
};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use rtnetlink::{Handle, LinkUnspec};
use trunkline_core::id::MacAddress;
use trunkline_core::message::{MacOutcome, SetMac};
use trunkline_core::witness::mac::{MacPlan, judge_mac, plan_mac};

use super::{LinkError, announce, dump, netns};
use crate::chain;

/// Longest time for one link; the kernel answers in milliseconds.
const LIMIT: Duration = Duration::from_secs(5);
/// Prefix of the route that the kernel makes with a link-local address.
const LINK_LOCALS: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0);
/// `EEXIST`.
const EXISTS: i32 = 17;
/// `ENOENT`.
const NO_ENTRY: i32 = 2;
/// `EADDRNOTAVAIL`.
const NO_ADDRESS: i32 = 99;

/// Why a link could not be healed.
#[derive(Debug, thiserror::Error)]
pub enum HealError {
    /// The links could not be read, or the namespace not be entered.
    #[error(transparent)]
    Links(#[from] LinkError),
    /// No socket, or no runtime for it.
    #[error("failed to open a netlink socket")]
    Open(#[source] io::Error),
    /// The kernel refused a request.
    #[error("failed to {what}")]
    Netlink {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: rtnetlink::Error,
    },
    /// It took too long.
    #[error("the kernel did not answer within {} s", LIMIT.as_secs())]
    Slow,
    /// Routes that led over the link are gone.
    #[error("after the change of the MAC these routes are gone: {0}")]
    RoutesLost(String),
    /// The link-local addresses are not what they should be.
    #[error("after the change of the MAC the link has the link-local addresses {0}")]
    LinkLocal(String),
}

/// Changes the links of one network namespace.
#[derive(Debug, Clone)]
pub struct LinkHealer {
    netns: Option<PathBuf>,
}

impl LinkHealer {
    /// For the namespace behind this file (`--host-netns`), or the process's own.
    pub fn new(netns: Option<&Path>) -> Self {
        Self { netns: netns.map(Path::to_owned) }
    }

    /// Carries a request out; see the module. `trunk` is the MAC by which the namespace proves to be the node's.
    pub async fn set_mac(&self, set: SetMac, trunk: MacAddress) -> MacOutcome {
        let links = netns::inside(self.netns.clone(), dump::dump).await;
        match links.and_then(|links| links).map(|links| plan_mac(&links, &set, trunk)) {
            Err(error) => MacOutcome::Failed(chain(&error)),
            Ok(MacPlan::Over(outcome)) => outcome,
            Ok(MacPlan::Change(index)) => self.carry_out(set, index, MacOutcome::Done).await,
            Ok(MacPlan::Already(index)) => self.carry_out(set, index, MacOutcome::Already).await,
        }
    }

    /// The second half of it: what was planned for the link of that index, whatever has become of it since. `outcome`, if
    /// all is right, is `Already` where the MAC is set and `Done` where it is to be set.
    pub async fn carry_out(&self, set: SetMac, index: u32, outcome: MacOutcome) -> MacOutcome {
        let healed =
            self.connected(move |kernel| async move { heal(&kernel, &set, index, outcome).await });
        healed.await.unwrap_or_else(|error| MacOutcome::Failed(chain(&error)))
    }

    /// Drops the node's neighbour entries for these addresses on all links, permanent ones apart.
    pub async fn clear_neighbours(&self, addresses: Vec<IpAddr>) -> Result<(), HealError> {
        self.connected(|kernel| async move { kernel.clear_neighbours(&addresses, None).await })
            .await
    }

    /// Runs `work` with a netlink connection, on a thread that is in the namespace all the time: sockets and the list of
    /// links are of the namespace of the thread that opens them.
    async fn connected<T, F, W>(&self, work: W) -> Result<T, HealError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, HealError>>,
        W: FnOnce(Kernel) -> F + Send + 'static,
    {
        let run = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.map_err(HealError::Open)?.block_on(async {
                let (connection, handle, _) =
                    rtnetlink::new_connection().map_err(HealError::Open)?;
                tokio::spawn(connection);
                let done = tokio::time::timeout(LIMIT, work(Kernel(handle))).await;
                done.map_err(|_| HealError::Slow)?
            })
        };
        netns::inside(self.netns.clone(), run).await?
    }
}

async fn heal(
    kernel: &Kernel,
    set: &SetMac,
    index: u32,
    outcome: MacOutcome,
) -> Result<MacOutcome, HealError> {
    let done = change(kernel, set, index, outcome == MacOutcome::Done).await;
    // Whatever came of it: if the link is not the one any more that was changed, this is the answer.
    if let Some(other) = judge_mac(&dump::dump()?, set, index) {
        return match (done, other) {
            // The link is there, with the old MAC; why tells more than the MAC.
            (Err(error), MacOutcome::Differs(mac)) if mac == set.from => Err(error),
            (_, other) => Ok(other),
        };
    }
    done?;
    kernel.clear_neighbours(&set.addresses, Some(set.from)).await?;
    if let Err(error) = announce::announce(index, set.to, &set.addresses) {
        // The pod's own traffic works; neighbours find out when their entries age.
        tracing::warn!(%error, vlan = %set.vlan, "failed to announce the new MAC to the neighbours");
    }
    Ok(outcome)
}

/// MAC and link-local address of the link of that index, and whether all is right after it.
async fn change(kernel: &Kernel, set: &SetMac, index: u32, set_mac: bool) -> Result<(), HealError> {
    let before = kernel.routes(index).await?;
    if set_mac {
        kernel.set_mac(index, set.to).await?;
    }
    kernel.follow_with_link_local(index, set).await?;
    let after = kernel.routes(index).await?;
    let lost: Vec<String> = before.difference(&after).map(ToString::to_string).collect();
    if lost.is_empty() { Ok(()) } else { Err(HealError::RoutesLost(lost.join(", "))) }
}

/// A netlink connection inside the namespace.
struct Kernel(Handle);

impl Kernel {
    async fn set_mac(&self, index: u32, mac: MacAddress) -> Result<(), HealError> {
        let link = LinkUnspec::new_with_index(index).address(mac.octets().to_vec()).build();
        self.0.link().change(link).execute().await.map_err(failed("set the link's MAC"))
    }

    // === link-local addresses ===

    async fn follow_with_link_local(&self, index: u32, set: &SetMac) -> Result<(), HealError> {
        let wanted = set.to.link_local();
        let before = self.link_locals(index).await?;
        let made = |a: &&AddressMessage| v6(a).is_some_and(MacAddress::is_made_from_one);
        let needed = before.iter().any(|a| made(&a))
            || (before.is_empty() && set.addresses.iter().any(IpAddr::is_ipv6));
        if !needed {
            return Ok(());
        }
        if !before.iter().any(|a| v6(a) == Some(wanted)) {
            let mut adding = self.0.address().add(index, wanted.into(), 64);
            adding.message_mut().header.flags |= AddressHeaderFlags::Nodad;
            adding.message_mut().header.scope = AddressScope::Link;
            unless(EXISTS, adding.execute().await, "add the new link-local address")?;
        }
        for old in before.iter().filter(made).filter(|a| v6(a) != Some(wanted)) {
            let deleted = self.0.address().del(old.clone()).execute().await;
            unless(NO_ADDRESS, deleted, "delete the old link-local address")?;
        }
        let after = self.link_locals(index).await?;
        let held_back = AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed;
        let right =
            |a: &AddressMessage| v6(a) == Some(wanted) && !a.header.flags.intersects(held_back);
        if after.iter().filter(made).all(right) && after.iter().any(right) {
            return Ok(());
        }
        let found: Vec<String> = after.iter().filter_map(v6).map(|a| a.to_string()).collect();
        Err(HealError::LinkLocal(format!("[{}] and not {wanted} alone", found.join(", "))))
    }

    /// The IPv6 link-local addresses of a link.
    async fn link_locals(&self, index: u32) -> Result<Vec<AddressMessage>, HealError> {
        let mut asking = self.0.address().get().set_link_index_filter(index);
        asking.message_mut().header.family = AddressFamily::Inet6;
        let all: Vec<AddressMessage> =
            asking.execute().try_collect().await.map_err(failed("list the link's addresses"))?;
        Ok(all.into_iter().filter(|a| v6(a).is_some_and(|v6| v6.is_unicast_link_local())).collect())
    }

    // === routes ===

    /// The routes over a link, in all tables and both families.
    async fn routes(&self, index: u32) -> Result<BTreeSet<Route>, HealError> {
        let mut routes = BTreeSet::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut question = RouteMessage::default();
            question.header.address_family = family;
            let mut answers = self.0.route().get(question).execute();
            while let Some(route) = answers.try_next().await.map_err(failed("list the routes"))? {
                routes.extend(Route::over(index, &route));
            }
        }
        Ok(routes)
    }

    // === neighbours ===

    /// Drops entries for these addresses. A permanent entry is dropped only if it names the MAC `gone`.
    async fn clear_neighbours(
        &self,
        addresses: &[IpAddr],
        gone: Option<MacAddress>,
    ) -> Result<(), HealError> {
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let asking = self.0.neighbours().get().set_address_family(family);
            let entries: Vec<NeighbourMessage> =
                asking.execute().try_collect().await.map_err(failed("list the neighbours"))?;
            for entry in entries {
                let Some(found) = neighbour(&entry).filter(|a| addresses.contains(a)) else {
                    continue;
                };
                let state = entry.header.state;
                let fixed = matches!(state, NeighbourState::Permanent | NeighbourState::Noarp);
                if fixed && (gone.is_none() || link_layer(&entry) != gone) {
                    continue;
                }
                let mut old = NeighbourMessage::default();
                old.header.family = family;
                old.header.ifindex = entry.header.ifindex;
                old.attributes.push(NeighbourAttribute::Destination(match found {
                    IpAddr::V4(v4) => NeighbourAddress::Inet(v4),
                    IpAddr::V6(v6) => NeighbourAddress::Inet6(v6),
                }));
                let deleted = self.0.neighbours().del(old).execute().await;
                unless(NO_ENTRY, deleted, "drop a neighbour entry")?;
            }
        }
        Ok(())
    }
}

/// What tells one route from another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Route {
    table: u32,
    destination: Option<IpAddr>,
    length: u8,
    is_v6: bool,
    gateway: Option<IpAddr>,
    priority: Option<u32>,
}

impl Route {
    /// The route, if it leads over that link and does not come and go with the link's addresses.
    fn over(index: u32, message: &RouteMessage) -> Option<Self> {
        let mut route = Self {
            table: message.header.table.into(),
            destination: None,
            length: message.header.destination_prefix_length,
            is_v6: message.header.address_family == AddressFamily::Inet6,
            gateway: None,
            priority: None,
        };
        let mut over = None;
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Oif(oif) => over = Some(*oif),
                RouteAttribute::Table(table) => route.table = *table,
                RouteAttribute::Destination(address) => route.destination = ip(address),
                RouteAttribute::Gateway(address) => route.gateway = ip(address),
                RouteAttribute::Priority(priority) => route.priority = Some(*priority),
                _ => {}
            }
        }
        let follows_addresses = match route.destination {
            Some(IpAddr::V6(to)) => to.is_multicast() || (to == LINK_LOCALS && route.length == 64),
            _ => false,
        };
        let wanted =
            over == Some(index) && message.header.kind == RouteType::Unicast && !follows_addresses;
        wanted.then_some(route)
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.destination {
            Some(destination) => write!(f, "{destination}/{}", self.length)?,
            None => write!(f, "{} default", if self.is_v6 { "IPv6" } else { "IPv4" })?,
        }
        if let Some(gateway) = self.gateway {
            write!(f, " via {gateway}")?;
        }
        write!(f, " of table {}", self.table)
    }
}

// === reading ===

fn v6(message: &AddressMessage) -> Option<Ipv6Addr> {
    message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Address(IpAddr::V6(address)) => Some(*address),
        _ => None,
    })
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(v4) => Some(IpAddr::V4(*v4)),
        RouteAddress::Inet6(v6) => Some(IpAddr::V6(*v6)),
        _ => None,
    }
}

fn neighbour(entry: &NeighbourMessage) -> Option<IpAddr> {
    entry.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => Some(IpAddr::V4(*v4)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => Some(IpAddr::V6(*v6)),
        _ => None,
    })
}

fn link_layer(entry: &NeighbourMessage) -> Option<MacAddress> {
    entry.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => {
            MacAddress::from_octets(<[u8; 6]>::try_from(bytes.as_slice()).ok()?).ok()
        }
        _ => None,
    })
}

// === refusals ===

fn failed(what: &'static str) -> impl FnOnce(rtnetlink::Error) -> HealError {
    move |source| HealError::Netlink { what, source }
}

/// A refusal with this error number means that it is so already.
fn unless(
    errno: i32,
    done: Result<(), rtnetlink::Error>,
    what: &'static str,
) -> Result<(), HealError> {
    match done {
        Err(rtnetlink::Error::NetlinkError(e)) if e.raw_code() == -errno => Ok(()),
        other => other.map_err(failed(what)),
    }
}
