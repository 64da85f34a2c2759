//! The truth of one simulated account and Region, and what of it a describe shows when.
//!
//! Every ENI keeps its recent *versions*. A version becomes visible by id and in lists at times of its own; a reader takes
//! the newest version it may see, and versions become visible in their order. So a reader never goes back in time unless
//! it asks a stale replica, which is a reader whose clock is behind. By id a deletion shows at once.
//!
//! Changes that EC2 makes on its own (`pending` to `available`, `attaching` to `attached`, …) are timers, carried out by
//! [`World::advance`] before anything else looks at the truth.

mod address;
mod association;
mod attachment;
mod build;
mod eni;
pub(crate) mod pages;
mod tokens;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

pub(crate) use self::address::Pool;
pub(crate) use self::association::{Association, Wire};
pub(crate) use self::eni::{Eni, NewEni, Slot, Taken, View, Wanted};
use self::pages::Pages;
pub(crate) use self::tokens::Outcome;
use self::tokens::Tokens;
use super::error::ApiError;
use super::fault::{FaultKind, Fired};
use super::model::{Effect, GroupSpec, InstanceState, State, SubnetState};
use super::params::Params;
use super::switches::Switches;

/// One request, as handlers see it.
pub(crate) struct Call<'a> {
    pub(crate) action: &'a str,
    pub(crate) params: &'a Params,
    pub(crate) caller: &'a str,
    pub(crate) account: &'a str,
    pub(crate) fired: &'a Fired,
    /// The time a describe reads at: now, or earlier on a replica that lags behind.
    pub(crate) read_at: u64,
    /// Set when a client token was replayed.
    pub(crate) replay: bool,
}

impl Call<'_> {
    /// To be called after all checks and before any effect: refuses unknown parameters and ends dry runs.
    pub(crate) fn commit(&self) -> Result<(), ApiError> {
        self.params.finish()?;
        if self.params.flag("DryRun")? == Some(true) {
            return Err(ApiError::new(
                412,
                "DryRunOperation",
                "Request would have succeeded, but DryRun flag is set.",
            ));
        }
        Ok(())
    }

    /// As [`Call::commit`], for the actions that know no dry run (`ec2.md` §2).
    pub(crate) fn commit_without_dry_run(&self) -> Result<(), ApiError> {
        if self.params.has("DryRun") {
            return Err(ApiError::bad(
                "UnknownParameter",
                "The parameter DryRun is not recognized",
            ));
        }
        self.params.finish()
    }
}

/// A subnet and its addresses.
#[derive(Debug)]
pub(crate) struct Subnet {
    pub(crate) state: SubnetState,
    pub(crate) assign_ipv6: bool,
    pub(crate) pool: Pool,
    /// The count that describes show, and until when.
    shown_free: (u32, u64),
}

/// A permission to attach an ENI of another account.
#[derive(Debug, Clone)]
pub(crate) struct Permission {
    pub(crate) id: String,
    pub(crate) eni: String,
    pub(crate) account: String,
    pub(crate) kind: String,
    pub(crate) granted_at: u64,
}

#[derive(Debug)]
enum Timer {
    /// A new ENI is ready.
    Ready(String),
    /// A former branch shows its new status; valid for the hold with this number only.
    Settle(String, u64),
    /// An attachment is complete.
    Attached(String, String),
    /// A detachment is complete.
    Detached(String, String),
}

/// The truth.
pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) wall_ms: i64,
    pub(crate) rng: StdRng,
    pub(crate) switches: Switches,
    pub(crate) region: String,
    pub(crate) account: String,
    pub(crate) accounts: BTreeMap<String, String>,
    pub(crate) vpc: String,
    pub(crate) subnets: BTreeMap<String, Subnet>,
    pub(crate) groups: BTreeMap<String, GroupSpec>,
    pub(crate) instances: BTreeMap<String, InstanceState>,
    pub(crate) permissions: Vec<Permission>,
    /// Effects of the call under way.
    pub(crate) effects: Vec<Effect>,
    /// Further lag of the call under way: by id, in lists.
    pub(crate) more_lag: (u64, u64),
    enis: BTreeMap<String, Slot>,
    live_enis: usize,
    associations: BTreeMap<String, Association>,
    /// VLANs and slots that a Disassociate has not freed yet: trunk, VLAN, until.
    lingering: Vec<(String, Wire, u64)>,
    timers: BTreeMap<(u64, u64), Timer>,
    counter: u64,
    macs: BTreeSet<String>,
    tokens: Tokens,
    pages: Pages,
}

impl World {
    fn empty(seed: u64, switches: Switches) -> Self {
        Self {
            now: 0,
            wall_ms: 0,
            rng: StdRng::seed_from_u64(seed),
            switches,
            region: String::new(),
            account: String::new(),
            accounts: BTreeMap::new(),
            vpc: String::new(),
            subnets: BTreeMap::new(),
            groups: BTreeMap::new(),
            instances: BTreeMap::new(),
            permissions: Vec::new(),
            effects: Vec::new(),
            more_lag: (0, 0),
            enis: BTreeMap::new(),
            live_enis: 0,
            associations: BTreeMap::new(),
            lingering: Vec::new(),
            timers: BTreeMap::new(),
            counter: 0,
            macs: BTreeSet::new(),
            tokens: Tokens::default(),
            pages: Pages::default(),
        }
    }

    /// Carries out what has become due.
    pub(crate) fn advance(&mut self, now: u64, wall_ms: i64) {
        self.wall_ms = wall_ms;
        while let Some(entry) = self.timers.first_entry() {
            if entry.key().0 > now {
                break;
            }
            self.now = entry.key().0;
            let timer = entry.remove();
            self.carry_out(timer);
        }
        self.now = now;
        self.lingering.retain(|(_, _, until)| *until > now);
    }

    fn carry_out(&mut self, timer: Timer) {
        match timer {
            Timer::Ready(eni) => {
                if let Some(truth) = self.eni_mut(&eni) {
                    truth.pending = false;
                    self.touch(&eni, (0, 0));
                }
            }
            Timer::Settle(eni, hold) => {
                if self.eni_mut(&eni).is_some_and(|truth| truth.release_hold(hold)) {
                    let list = self.switches.lag.disassociate_list.pick(&mut self.rng);
                    self.touch(&eni, (0, list));
                }
            }
            Timer::Attached(eni, attachment) => self.attachment_complete(&eni, &attachment),
            Timer::Detached(eni, attachment) => self.detachment_complete(&eni, &attachment),
        }
    }

    fn at(&mut self, delay: u64, timer: Timer) {
        if delay == 0 {
            self.carry_out(timer);
        } else {
            self.counter += 1;
            self.timers.insert((self.now + delay, self.counter), timer);
        }
    }

    /// A new id: `prefix` and 17 hex digits.
    pub(crate) fn new_id(&mut self, prefix: &str) -> String {
        let low = self.rng.random_range(0..1_u64 << 60);
        // A leading 0, as real ids have.
        format!("{prefix}0{low:016x}")
    }

    pub(crate) fn new_mac(&mut self) -> String {
        loop {
            let octets: [u8; 5] = self.rng.random();
            let mac =
                octets.iter().fold("0a".to_owned(), |mac, octet| format!("{mac}:{octet:02x}"));
            if self.macs.insert(mac.clone()) {
                return mac;
            }
        }
    }

    /// Private DNS name of an address.
    pub(crate) fn dns(&self, address: Ipv4Addr) -> String {
        format!("ip-{}.{}.compute.internal", address.to_string().replace('.', "-"), self.region)
    }

    /// Zone id: `<region>-az<n>`, from the letter of the zone.
    pub(crate) fn zone_id(&self, zone: &str) -> String {
        let letter = zone.bytes().last().unwrap_or(b'a');
        format!("{}-az{}", self.region, letter.saturating_sub(b'a') + 1)
    }

    /// Checks that the groups exist, fit the VPC and are not too many.
    pub(crate) fn check_groups(&self, groups: &[String], vpc: &str) -> Result<(), ApiError> {
        for id in groups {
            if !id.starts_with("sg-") {
                return Err(ApiError::bad(
                    "InvalidGroupId.Malformed",
                    format!("Invalid id: \"{id}\" (expecting \"sg-...\")"),
                ));
            }
            let group = self.groups.get(id).ok_or_else(|| {
                ApiError::bad(
                    "InvalidGroup.NotFound",
                    format!("The security group '{id}' does not exist"),
                )
            })?;
            if group.vpc != vpc {
                return Err(ApiError::bad(
                    "InvalidSecurityGroupID.NotFound",
                    format!("The security group '{id}' does not exist in VPC '{vpc}'"),
                ));
            }
        }
        if groups.len() > self.switches.limits.groups_per_eni {
            return Err(ApiError::bad(
                "SecurityGroupsPerInterfaceLimitExceeded",
                "You have exceeded the maximum number of security groups allowed per network interface.",
            ));
        }
        Ok(())
    }

    /// The free count that describes show (row 20).
    pub(crate) fn shown_free(&mut self, id: &str) -> u32 {
        let hold = self.switches.lag.free_count.pick(&mut self.rng);
        let now = self.now;
        self.subnets.get_mut(id).map_or(0, |subnet| {
            if subnet.shown_free.1 <= now {
                subnet.shown_free = (subnet.pool.free_count(), now + hold);
            }
            subnet.shown_free.0
        })
    }

    /// The tags of a resource, if it exists.
    pub(crate) fn tags_mut(&mut self, id: &str) -> Option<&mut BTreeMap<String, String>> {
        if id.starts_with("eni-") {
            return self.eni_mut(id).map(|e| &mut e.state.tags);
        }
        if let Some(subnet) = self.subnets.get_mut(id) {
            return Some(&mut subnet.state.tags);
        }
        if let Some(group) = self.groups.get_mut(id) {
            return Some(&mut group.tags);
        }
        self.instances.get_mut(id).map(|i| &mut i.tags)
    }

    /// The whole truth. `seq` is the log's business.
    pub(crate) fn state(&self, seq: u64) -> State {
        State {
            wall_ms: self.wall_ms,
            mono_ms: self.now,
            seq,
            vpc: self.vpc.clone(),
            account: self.account.clone(),
            region: self.region.clone(),
            enis: self.live().map(|e| e.state.clone()).collect(),
            instances: self.instances.values().cloned().collect(),
            subnets: self
                .subnets
                .values()
                .map(|s| SubnetState { free: s.pool.free_count(), ..s.state.clone() })
                .collect(),
            security_groups: self.groups.values().cloned().collect(),
        }
    }

    /// Takes what the call under way changed.
    pub(crate) fn take_effects(&mut self) -> Vec<Effect> {
        self.more_lag = (0, 0);
        std::mem::take(&mut self.effects)
    }

    /// Sets the lag that a fault adds to the call under way.
    pub(crate) fn add_lag(&mut self, fired: &Fired) {
        let more = fired.find(|kind| match kind {
            FaultKind::Lag { by_id_ms, list_ms } => Some((*by_id_ms, *list_ms)),
            _ => None,
        });
        self.more_lag = more.unwrap_or((0, 0));
    }
}
