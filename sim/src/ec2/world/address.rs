//! Addresses of one subnet. Five IPv4 addresses of each block are reserved.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use rand::Rng;
use rand::rngs::StdRng;

use super::super::error::ApiError;

/// Free and used addresses of a subnet.
#[derive(Debug)]
pub(crate) struct Pool {
    base: u32,
    size: u32,
    used: BTreeSet<u32>,
    /// Returned addresses, oldest first: last in, first out takes from the end.
    returned: Vec<u32>,
    v6_base: Option<u128>,
    v6_used: BTreeSet<u128>,
}

/// Splits `a.b.c.d/n` into base and number of addresses.
fn v4_block(cidr: &str) -> Option<(u32, u32)> {
    let (base, bits) = cidr.split_once('/')?;
    let bits: u32 = bits.parse().ok().filter(|b| (16..=28).contains(b))?;
    let base = u32::from(base.parse::<Ipv4Addr>().ok()?);
    let size = 1 << (32 - bits);
    (base % size == 0).then_some((base, size))
}

fn v6_block(cidr: &str) -> Option<u128> {
    let base = u128::from(cidr.strip_suffix("/64")?.parse::<Ipv6Addr>().ok()?);
    (base.trailing_zeros() >= 64).then_some(base)
}

fn prefix_base<T: FromStr>(prefix: &str, length: &str) -> Option<T> {
    prefix.strip_suffix(length)?.parse().ok()
}

fn outside(what: impl Display) -> ApiError {
    ApiError::value(format!("Address {what} does not fall within the subnet's address range"))
}

fn in_use(what: impl Display) -> ApiError {
    ApiError::bad("InvalidIPAddress.InUse", format!("Address {what} is in use."))
}

fn no_v6_block() -> ApiError {
    ApiError::value("The subnet has no IPv6 CIDR block")
}

impl Pool {
    /// `None` if a block does not parse: IPv4 must be /16 to /28, IPv6 /64.
    pub(crate) fn new(cidr: &str, ipv6_cidr: Option<&str>) -> Option<Self> {
        let (base, size) = v4_block(cidr)?;
        let v6_base = match ipv6_cidr {
            Some(cidr) => Some(v6_block(cidr)?),
            None => None,
        };
        Some(Self {
            base,
            size,
            used: BTreeSet::new(),
            returned: Vec::new(),
            v6_base,
            v6_used: BTreeSet::new(),
        })
    }

    fn usable(&self) -> u32 {
        self.size - 5
    }

    /// How many IPv4 addresses are free.
    pub(crate) fn free_count(&self) -> u32 {
        self.usable().saturating_sub(u32::try_from(self.used.len()).unwrap_or(u32::MAX))
    }

    pub(crate) fn has_v6(&self) -> bool {
        self.v6_base.is_some()
    }

    /// Takes this address.
    pub(crate) fn take(&mut self, address: Ipv4Addr) -> Result<(), ApiError> {
        let raw = u32::from(address);
        let inside = raw >= self.base + 4 && raw < self.base + self.size - 1;
        if !inside {
            return Err(outside(address));
        }
        if !self.used.insert(raw) {
            return Err(in_use(address));
        }
        self.returned.retain(|r| *r != raw);
        Ok(())
    }

    /// Takes any free address.
    pub(crate) fn take_any(&mut self, lifo: bool, rng: &mut StdRng) -> Result<Ipv4Addr, ApiError> {
        if self.free_count() == 0 {
            return Err(ApiError::subnet_full());
        }
        let raw = match self.returned.pop() {
            Some(last) if lifo => last,
            popped => {
                self.returned.extend(popped);
                let start = rng.random_range(0..self.usable());
                (0..self.usable())
                    .map(|step| self.base + 4 + (start + step) % self.usable())
                    .find(|raw| !self.used.contains(raw))
                    .ok_or_else(ApiError::subnet_full)?
            }
        };
        self.returned.retain(|r| *r != raw);
        self.used.insert(raw);
        Ok(Ipv4Addr::from(raw))
    }

    /// Takes that /28, or any free one.
    pub(crate) fn take_prefix(&mut self, wanted: Option<&str>) -> Result<String, ApiError> {
        let used = |pool: &Self, first: u32| pool.used.range(first..first + 16).next().is_some();
        // The first and the last block hold reserved addresses.
        let mut blocks = (1..(self.size / 16).saturating_sub(1)).map(|n| self.base + n * 16);
        let first = match wanted {
            Some(prefix) => {
                let first = prefix_base(prefix, "/28").map(|base: Ipv4Addr| u32::from(base));
                let first = first.filter(|first| blocks.any(|block| block == *first));
                let first = first.ok_or_else(|| outside(prefix))?;
                if used(self, first) {
                    return Err(in_use(prefix));
                }
                first
            }
            None => blocks.find(|first| !used(self, *first)).ok_or_else(|| {
                ApiError::bad(
                    "InsufficientCidrBlocks",
                    "The specified subnet does not have enough free cidr blocks to satisfy the request.",
                )
            })?,
        };
        self.used.extend(first..first + 16);
        Ok(format!("{}/28", Ipv4Addr::from(first)))
    }

    /// Gives an address back.
    pub(crate) fn give(&mut self, address: Ipv4Addr) {
        if self.used.remove(&u32::from(address)) {
            self.returned.push(u32::from(address));
        }
    }

    /// Gives a /28 back.
    pub(crate) fn give_prefix(&mut self, prefix: &str) {
        if let Some(first) = prefix.strip_suffix("/28").and_then(|p| p.parse::<Ipv4Addr>().ok()) {
            let first = u32::from(first);
            self.used.retain(|raw| !(first..first + 16).contains(raw));
        }
    }

    /// Takes this IPv6 address.
    pub(crate) fn take_v6(&mut self, address: Ipv6Addr) -> Result<(), ApiError> {
        let raw = u128::from(address);
        if self.v6_base.is_none_or(|base| raw >> 64 != base >> 64) {
            return Err(outside(address));
        }
        if !self.v6_used.insert(raw) {
            return Err(in_use(address));
        }
        Ok(())
    }

    /// Takes a random IPv6 address.
    pub(crate) fn take_any_v6(&mut self, rng: &mut StdRng) -> Result<Ipv6Addr, ApiError> {
        let base = self.v6_base.ok_or_else(no_v6_block)?;
        loop {
            let raw = base | u128::from(rng.random_range(0x1_0000..u64::MAX));
            if self.v6_used.insert(raw) {
                return Ok(Ipv6Addr::from(raw));
            }
        }
    }

    /// Takes that /80, or a random one.
    pub(crate) fn take_prefix_v6(
        &mut self,
        wanted: Option<&str>,
        rng: &mut StdRng,
    ) -> Result<String, ApiError> {
        let base = self.v6_base.ok_or_else(no_v6_block)?;
        if let Some(prefix) = wanted {
            let raw = prefix_base(prefix, "/80").map(|base: Ipv6Addr| u128::from(base));
            let raw = raw.filter(|raw| raw >> 64 == base >> 64 && raw.trailing_zeros() >= 48);
            let raw = raw.ok_or_else(|| outside(prefix))?;
            if !self.v6_used.insert(raw) {
                return Err(in_use(prefix));
            }
            return Ok(format!("{}/80", Ipv6Addr::from(raw)));
        }
        loop {
            let raw = base | (u128::from(rng.random_range(1..u16::MAX)) << 48);
            if self.v6_used.insert(raw) {
                return Ok(format!("{}/80", Ipv6Addr::from(raw)));
            }
        }
    }

    /// Gives an IPv6 address (or the base of a /80) back.
    pub(crate) fn give_v6(&mut self, address: Ipv6Addr) {
        self.v6_used.remove(&u128::from(address));
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn a_28_has_eleven_addresses_and_the_last_returned_may_come_first() {
        let mut rng = StdRng::seed_from_u64(7);
        let mut pool = Pool::new("10.0.0.0/28", None).unwrap();
        let mut all: Vec<_> = (0..11).map(|_| pool.take_any(false, &mut rng).unwrap()).collect();
        assert_eq!(
            pool.take_any(true, &mut rng).unwrap_err().code,
            "InsufficientFreeAddressesInSubnet"
        );
        assert_eq!(pool.free_count(), 0);
        all.sort();
        assert_eq!((all[0], all[10]), (Ipv4Addr::new(10, 0, 0, 4), Ipv4Addr::new(10, 0, 0, 14)));
        pool.give(all[3]);
        pool.give(all[5]);
        assert_eq!(pool.take_any(true, &mut rng).unwrap(), all[5]);
        assert_eq!(pool.take(all[5]).unwrap_err().code, "InvalidIPAddress.InUse");
    }

    #[test]
    fn blocks_that_are_not_aligned_or_too_large_are_refused() {
        for cidr in ["10.0.0.0/8", "10.0.0.1/24", "10.0.0.0", "x/24", "10.0.0.0/30"] {
            assert!(Pool::new(cidr, None).is_none(), "{cidr}");
        }
        assert!(Pool::new("10.0.0.0/24", Some("2600::/56")).is_none());
        let mut pool = Pool::new("10.0.0.0/24", Some("2600:0:0:1::/64")).unwrap();
        let address = pool.take_any_v6(&mut StdRng::seed_from_u64(1)).unwrap();
        assert_eq!(address.segments()[3], 1);
        let prefix = pool.take_prefix(None).unwrap();
        assert_eq!((prefix.as_str(), pool.free_count()), ("10.0.0.16/28", 235));
        for (wanted, code) in [
            ("10.0.0.16/28", "InvalidIPAddress.InUse"),
            ("10.0.0.0/28", "InvalidParameterValue"),
            ("10.0.0.40/28", "InvalidParameterValue"),
            ("10.0.1.16/28", "InvalidParameterValue"),
        ] {
            assert_eq!(pool.take_prefix(Some(wanted)).unwrap_err().code, code, "{wanted}");
        }
        pool.give_prefix(&prefix);
        assert_eq!(pool.free_count(), 251);
        assert_eq!(pool.take_prefix(Some("10.0.0.32/28")).unwrap(), "10.0.0.32/28");
        let mut rng = StdRng::seed_from_u64(2);
        let wanted = "2600:0:0:1:7::/80";
        assert_eq!(pool.take_prefix_v6(Some(wanted), &mut rng).unwrap(), wanted);
        let twice = pool.take_prefix_v6(Some(wanted), &mut rng).unwrap_err();
        assert_eq!(twice.code, "InvalidIPAddress.InUse");
    }
}
