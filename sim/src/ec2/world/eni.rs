//! ENIs: truth, versions, creation and deletion.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::super::error::{ApiError, is_ec2_id};
use super::super::model::{Effect, EniState};
use super::{Timer, World};

/// Versions older than this are forgotten, ms: the largest age a stale replica may have.
const KEEP_MS: u64 = 300_000;

/// An ENI.
#[derive(Debug, Clone)]
pub(crate) struct Eni {
    /// `status` in it is brought up to date by [`World::touch`].
    pub(crate) state: EniState,
    pub(crate) pending: bool,
    pub(crate) source_dest_check: bool,
    /// Access key id of who made it.
    pub(crate) requester: String,
    pub(crate) primary_ipv6: bool,
    /// A status that is still shown although its reason is gone, with the number of the hold.
    held: Option<(String, u64)>,
}

impl Eni {
    /// Ends the hold of that number.
    pub(super) fn release_hold(&mut self, hold: u64) -> bool {
        let ours = self.held.as_ref().is_some_and(|(_, number)| *number == hold);
        if ours {
            self.held = None;
        }
        ours
    }

    pub(super) fn drop_hold(&mut self) {
        self.held = None;
    }
}

/// What a describe shows.
pub(crate) type View = Arc<Eni>;

#[derive(Debug)]
struct Version {
    by_id_from: u64,
    list_from: u64,
    /// `None`: deleted.
    view: Option<View>,
}

/// An ENI that exists or existed.
#[derive(Debug)]
pub(crate) struct Slot {
    truth: Option<Eni>,
    versions: Vec<Version>,
    /// As it was last, for the replay of a Create whose ENI is gone.
    last: View,
}

impl Slot {
    fn seen(&self, visible: impl Fn(&Version) -> bool) -> Option<View> {
        self.versions.iter().rev().find(|v| visible(v)).and_then(|v| v.view.clone())
    }

    fn forget_old(&mut self, now: u64) {
        let horizon = now.saturating_sub(KEEP_MS);
        let newest = self.versions.iter().rposition(|v| v.by_id_from.max(v.list_from) <= horizon);
        if let Some(newest) = newest {
            self.versions.drain(..newest);
        }
    }
}

/// What to create.
#[derive(Debug, Default)]
pub(crate) struct NewEni {
    pub(crate) id: String,
    pub(crate) owner: String,
    pub(crate) requester: String,
    pub(crate) subnet: String,
    pub(crate) interface_type: String,
    pub(crate) description: String,
    pub(crate) mac: String,
    pub(crate) groups: Vec<String>,
    pub(crate) tags: BTreeMap<String, String>,
    /// The first IPv4 address is the primary one; with none, one is chosen.
    pub(crate) addresses: Wanted,
    pub(crate) primary_ipv6: bool,
}

/// Addresses and prefixes to take: given ones, and how many more.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) ipv4: Vec<Ipv4Addr>,
    pub(crate) more_ipv4: usize,
    /// Each this one, or any.
    pub(crate) ipv4_prefixes: Vec<Option<String>>,
    pub(crate) ipv6: Vec<Ipv6Addr>,
    pub(crate) more_ipv6: usize,
    /// Each this one, or any.
    pub(crate) ipv6_prefixes: Vec<Option<String>>,
}

/// Addresses that were taken.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    pub(crate) ipv4: Vec<Ipv4Addr>,
    pub(crate) ipv4_prefixes: Vec<String>,
    pub(crate) ipv6: Vec<Ipv6Addr>,
    pub(crate) ipv6_prefixes: Vec<String>,
}

impl World {
    /// The truth of an ENI.
    pub(crate) fn eni(&self, id: &str) -> Option<&Eni> {
        self.enis.get(id)?.truth.as_ref()
    }

    pub(crate) fn eni_mut(&mut self, id: &str) -> Option<&mut Eni> {
        self.enis.get_mut(id)?.truth.as_mut()
    }

    /// The truth of an ENI, or why not.
    pub(crate) fn need_eni(&self, id: &str) -> Result<&Eni, ApiError> {
        if !is_ec2_id(id, "eni-") {
            return Err(ApiError::bad(
                "InvalidNetworkInterfaceId.Malformed",
                format!("Invalid id: \"{id}\" (expecting \"eni-...\")"),
            ));
        }
        self.eni(id).ok_or_else(|| ApiError::no_eni(id))
    }

    /// Every ENI that exists.
    pub(crate) fn live(&self) -> impl Iterator<Item = &Eni> {
        self.enis.values().filter_map(|slot| slot.truth.as_ref())
    }

    /// How many ENIs exist.
    pub(crate) fn live_enis(&self) -> usize {
        self.live_enis
    }

    /// What a describe by id shows at that time.
    pub(crate) fn seen_by_id(&self, id: &str, at: u64) -> Option<View> {
        self.enis.get(id)?.seen(|v| v.by_id_from <= at)
    }

    /// What a list shows at that time, by id.
    pub(crate) fn seen_in_list(&self, at: u64) -> impl Iterator<Item = (&String, View)> {
        self.enis.iter().filter_map(move |(id, slot)| Some((id, slot.seen(|v| v.list_from <= at)?)))
    }

    /// The ENI as it is, or as it was last.
    pub(crate) fn last_seen(&self, id: &str) -> Option<View> {
        self.enis.get(id).map(|slot| Arc::clone(&slot.last))
    }

    /// Records a new version of an ENI, visible after `lag` (by id, in lists).
    pub(crate) fn touch(&mut self, id: &str, lag: (u64, u64)) {
        let Some(eni) = self.eni(id) else { return };
        let status = self.status_of(eni).to_owned();
        let (now, more) = (self.now, self.more_lag);
        let Some(slot) = self.enis.get_mut(id) else {
            return;
        };
        let Some(truth) = slot.truth.as_mut() else {
            return;
        };
        truth.state.status = status;
        slot.last = Arc::new(truth.clone());
        // In order: a later change never shows an earlier one before its time.
        let (by_id, list) = slot.versions.last().map_or((0, 0), |v| (v.by_id_from, v.list_from));
        slot.versions.push(Version {
            by_id_from: by_id.max(now + lag.0 + more.0),
            list_from: list.max(now + lag.1 + more.1),
            view: Some(Arc::clone(&slot.last)),
        });
        slot.forget_old(now);
    }

    fn status_of<'a>(&'a self, eni: &'a Eni) -> &'a str {
        if let Some((held, _)) = &eni.held {
            return held;
        }
        if eni.state.attachment.is_some() {
            return "in-use";
        }
        match &eni.state.association {
            Some(a) if self.eni(&a.trunk).is_some_and(|t| t.state.attachment.is_some()) => "in-use",
            Some(_) => "associated",
            None if eni.pending => "pending",
            None => "available",
        }
    }

    /// Keeps showing the present status for a while.
    pub(super) fn hold_status(&mut self, id: &str, settle: u64) {
        self.counter += 1;
        let hold = self.counter;
        if let Some(eni) = self.eni_mut(id) {
            eni.held = Some((eni.state.status.clone(), hold));
        }
        self.at(settle, Timer::Settle(id.to_owned(), hold));
    }

    /// Makes an ENI. The caller has checked subnet, groups and quota; addresses may still run out.
    pub(crate) fn create_eni(&mut self, mut new: NewEni) -> Result<String, ApiError> {
        new.addresses.more_ipv4 += usize::from(new.addresses.ipv4.is_empty());
        let taken = self.take_addresses(&new.subnet, &new.addresses)?;
        let id = if new.id.is_empty() { self.new_id("eni-") } else { new.id };
        let mac = if new.mac.is_empty() { self.new_mac() } else { new.mac };
        let subnet =
            self.subnets.get(&new.subnet).ok_or_else(|| ApiError::no_subnet(&new.subnet))?;
        let mut ipv4 = taken.ipv4.into_iter();
        let primary = ipv4.next().ok_or_else(ApiError::subnet_full)?;
        let eni = Eni {
            state: EniState {
                id: id.clone(),
                status: "pending".into(),
                interface_type: new.interface_type,
                description: new.description,
                mac,
                ipv4: primary,
                secondary_ipv4: ipv4.collect(),
                ipv6: taken.ipv6,
                ipv4_prefixes: taken.ipv4_prefixes,
                ipv6_prefixes: taken.ipv6_prefixes,
                subnet: new.subnet,
                vpc: subnet.state.vpc.clone(),
                zone: subnet.state.zone.clone(),
                owner: new.owner,
                groups: new.groups,
                tags: new.tags,
                attachment: None,
                association: None,
                created_ms: self.wall_ms,
            },
            pending: true,
            source_dest_check: true,
            requester: new.requester,
            primary_ipv6: new.primary_ipv6,
            held: None,
        };
        self.effects.push(Effect::EniCreated {
            eni: id.clone(),
            interface_type: eni.state.interface_type.clone(),
            subnet: eni.state.subnet.clone(),
            ipv4: primary,
            mac: eni.state.mac.clone(),
            groups: eni.state.groups.clone(),
            tags: eni.state.tags.clone(),
        });
        let last = Arc::new(eni.clone());
        self.enis.insert(id.clone(), Slot { truth: Some(eni), versions: Vec::new(), last });
        self.live_enis += 1;
        let lag = self.switches.lag.clone();
        let seen = (lag.create_by_id.pick(&mut self.rng), lag.create_list.pick(&mut self.rng));
        self.touch(&id, seen);
        let pending = lag.pending.pick(&mut self.rng);
        self.at(pending, Timer::Ready(id.clone()));
        Ok(id)
    }

    /// Takes all that is wanted, or nothing.
    pub(crate) fn take_addresses(
        &mut self,
        subnet: &str,
        wanted: &Wanted,
    ) -> Result<Taken, ApiError> {
        let mut taken = Taken::default();
        let result = self.take_into(subnet, wanted, &mut taken);
        if result.is_err() {
            self.give_addresses(subnet, &taken);
        }
        result.map(|()| taken)
    }

    fn take_into(
        &mut self,
        subnet: &str,
        wanted: &Wanted,
        taken: &mut Taken,
    ) -> Result<(), ApiError> {
        let lifo = self.switches.addresses_lifo;
        let subnet = self.subnets.get_mut(subnet).ok_or_else(|| ApiError::no_subnet(subnet))?;
        let pool = &mut subnet.pool;
        for address in &wanted.ipv4 {
            pool.take(*address)?;
            taken.ipv4.push(*address);
        }
        for _ in 0..wanted.more_ipv4 {
            taken.ipv4.push(pool.take_any(lifo, &mut self.rng)?);
        }
        for prefix in &wanted.ipv4_prefixes {
            taken.ipv4_prefixes.push(pool.take_prefix(prefix.as_deref())?);
        }
        for address in &wanted.ipv6 {
            pool.take_v6(*address)?;
            taken.ipv6.push(*address);
        }
        for _ in 0..wanted.more_ipv6 {
            taken.ipv6.push(pool.take_any_v6(&mut self.rng)?);
        }
        for prefix in &wanted.ipv6_prefixes {
            let prefix = pool.take_prefix_v6(prefix.as_deref(), &mut self.rng)?;
            taken.ipv6_prefixes.push(prefix);
        }
        Ok(())
    }

    /// Gives addresses back to their subnet.
    pub(crate) fn give_addresses(&mut self, subnet: &str, taken: &Taken) {
        let Some(subnet) = self.subnets.get_mut(subnet) else {
            return;
        };
        taken.ipv4.iter().for_each(|a| subnet.pool.give(*a));
        taken.ipv4_prefixes.iter().for_each(|p| subnet.pool.give_prefix(p));
        taken.ipv6.iter().for_each(|a| subnet.pool.give_v6(*a));
        for prefix in &taken.ipv6_prefixes {
            if let Some(base) = prefix.strip_suffix("/80").and_then(|p| p.parse().ok()) {
                subnet.pool.give_v6(base);
            }
        }
    }

    /// Removes an ENI, with its associations, attachment, permissions and addresses.
    pub(crate) fn delete_eni(&mut self, id: &str) {
        let settle = self.switches.lag.disassociate.pick(&mut self.rng);
        self.end_associations_of(id, settle);
        self.end_attachment(id);
        self.permissions.retain(|p| p.eni != id);
        let list = self.switches.lag.delete_list.pick(&mut self.rng);
        let (now, more) = (self.now, self.more_lag);
        let Some(slot) = self.enis.get_mut(id) else {
            return;
        };
        let Some(eni) = slot.truth.take() else { return };
        slot.last = Arc::new(eni.clone());
        slot.versions.push(Version {
            by_id_from: now + more.0,
            list_from: slot.versions.last().map_or(0, |v| v.list_from).max(now + list + more.1),
            view: None,
        });
        self.live_enis -= 1;
        self.macs.remove(&eni.state.mac);
        let mut ipv4 = vec![eni.state.ipv4];
        ipv4.extend(eni.state.secondary_ipv4);
        let taken = Taken {
            ipv4,
            ipv4_prefixes: eni.state.ipv4_prefixes,
            ipv6: eni.state.ipv6,
            ipv6_prefixes: eni.state.ipv6_prefixes,
        };
        self.give_addresses(&eni.state.subnet, &taken);
        self.effects.push(Effect::EniDeleted {
            eni: id.to_owned(),
            interface_type: eni.state.interface_type,
            tags: eni.state.tags,
        });
    }
}
