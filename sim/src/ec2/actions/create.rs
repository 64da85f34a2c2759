//! CreateNetworkInterface (`ec2.md` §8.1).

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::super::error::ApiError;
use super::super::limits;
use super::super::params::Params;
use super::super::world::{Call, NewEni, Outcome, Wanted, World};
use super::super::xml::{Xml, group, optional};
use super::{owned, tags, view};

/// More prefixes than any interface can hold.
const MOST_PREFIXES: usize = 1000;

pub(super) fn create(world: &mut World, call: &mut Call<'_>) -> Result<Vec<Xml>, ApiError> {
    if let Some(Outcome::Made(id)) = world.replayed(call)? {
        // Row 8: the same id, although describe does not find it any more; or a mismatch.
        let gone = world.eni(&id).is_none();
        if gone
            && world.switches.create_replay_after_delete
                == super::super::switches::AfterDelete::Mismatch
        {
            return Err(ApiError::mismatch());
        }
        return reply(world, call, &id);
    }
    let new = read(world, call)?;
    if world.live_enis() >= world.switches.limits.enis {
        return Err(ApiError::bad(
            "NetworkInterfaceLimitExceeded",
            "You have reached the limit on the number of network interfaces.",
        ));
    }
    call.commit()?;
    let id = world.create_eni(new)?;
    world.remember(call, Outcome::Made(id.clone()));
    reply(world, call, &id)
}

fn reply(world: &World, call: &Call<'_>, id: &str) -> Result<Vec<Xml>, ApiError> {
    let eni = world.last_seen(id).ok_or_else(|| ApiError::no_eni(id))?;
    let mut body = vec![group("networkInterface", view::interface(world, &eni))];
    body.extend(optional("clientToken", call.params.text("ClientToken")));
    Ok(body)
}

fn read(world: &World, call: &Call<'_>) -> Result<NewEni, ApiError> {
    let p = call.params;
    p.ignore("ConnectionTrackingSpecification");
    p.ignore("Operator");
    let subnet_id = p.required("SubnetId")?.to_owned();
    let subnet = world.subnets.get(&subnet_id).ok_or_else(|| ApiError::no_subnet(&subnet_id))?;
    let vpc = &subnet.state.vpc;
    let mut groups = owned(&p.list("SecurityGroupId"));
    if groups.is_empty() {
        groups = world.default_group(vpc);
    }
    world.check_groups(&groups, vpc)?;
    let mut new = NewEni {
        owner: call.account.to_owned(),
        requester: call.caller.to_owned(),
        subnet: subnet_id,
        interface_type: interface_type(world, p)?,
        description: p.text("Description").unwrap_or_default().to_owned(),
        groups,
        tags: tag_specification(p)?,
        primary_ipv6: p.flag("EnablePrimaryIpv6")?.unwrap_or(false),
        ..NewEni::default()
    };
    ipv4(p, &mut new.addresses)?;
    ipv6(p, &mut new.addresses, subnet.assign_ipv6 && subnet.pool.has_v6())?;
    let a = &new.addresses;
    let wanted =
        a.ipv4.len().max(1).saturating_add(a.more_ipv4).saturating_add(a.ipv4_prefixes.len());
    let most = limits::all().map(|(_, l)| l.ipv4_per_interface).max().unwrap_or(50);
    if u32::try_from(wanted).unwrap_or(u32::MAX) > most {
        return Err(ApiError::bad(
            "PrivateIpAddressLimitExceeded",
            "Number of private addresses will exceed limit.",
        ));
    }
    Ok(new)
}

fn interface_type(world: &World, p: &Params) -> Result<String, ApiError> {
    let refused = |kind: &str| {
        Err(ApiError::value(format!("Value ({kind}) for parameter interfaceType is invalid.")))
    };
    match p.text("InterfaceType").unwrap_or("interface") {
        "trunk" if !world.switches.trunks_allowed => refused("trunk"),
        // Row 25: accepted as a plain ENI.
        "branch" if world.switches.refuse_branch_type => refused("branch"),
        "branch" => Ok("interface".into()),
        kind @ ("interface" | "trunk" | "efa" | "efa-only") => Ok(kind.into()),
        kind => refused(kind),
    }
}

/// Tags of a `TagSpecification` for network interfaces.
fn tag_specification(p: &Params) -> Result<BTreeMap<String, String>, ApiError> {
    let mut found = BTreeMap::new();
    for specification in p.structures("TagSpecification") {
        let kind = p.required(&format!("{specification}.ResourceType"))?;
        if kind != "network-interface" {
            return Err(ApiError::value(format!(
                "'{kind}' is not a valid taggable resource type for this operation."
            )));
        }
        for tag in tags::read(p, &format!("{specification}.Tag"))? {
            let key = tag.0.clone();
            if found.insert(tag.0, tag.1.unwrap_or_default()).is_some() {
                return Err(ApiError::value(format!("Duplicate tag key '{key}' specified.")));
            }
        }
    }
    tags::check(&found, found.len())?;
    Ok(found)
}

/// Reads an address list.
pub(super) fn addresses<T: FromStr>(values: &[&str]) -> Result<Vec<T>, ApiError> {
    let parse = |v: &&str| {
        v.parse()
            .map_err(|_| ApiError::bad("InvalidParameterValue", format!("Invalid address '{v}'")))
    };
    values.iter().map(parse).collect()
}

/// Prefixes given one by one (`field` names the value inside each), or as many as `…Count` says.
pub(super) fn prefixes(
    p: &Params,
    name: &str,
    field: &str,
) -> Result<Vec<Option<String>>, ApiError> {
    let given = p.structures(name);
    let count: usize = p.number(&format!("{name}Count"))?.unwrap_or(0);
    if !given.is_empty() && count > 0 {
        return Err(ApiError::combination(
            "Prefixes and a count of them may not be given together",
        ));
    }
    if count > MOST_PREFIXES {
        return Err(ApiError::value(format!(
            "At most {MOST_PREFIXES} prefixes can be assigned at once"
        )));
    }
    let one = |item: &String| p.required(&format!("{item}{field}")).map(|v| Some(v.to_owned()));
    let mut wanted: Vec<Option<String>> = given.iter().map(one).collect::<Result<_, _>>()?;
    wanted.resize(wanted.len() + count, None);
    Ok(wanted)
}

fn ipv4(p: &Params, new: &mut Wanted) -> Result<(), ApiError> {
    let single: Option<Ipv4Addr> =
        addresses(&p.text("PrivateIpAddress").into_iter().collect::<Vec<_>>())?.pop();
    let mut primary = single;
    let mut secondary = Vec::new();
    for item in p.structures("PrivateIpAddresses") {
        let address = addresses(&[p.required(&format!("{item}.PrivateIpAddress"))?])?;
        if p.flag(&format!("{item}.Primary"))? == Some(true) {
            if primary.is_some() {
                return Err(ApiError::combination(
                    "Only one primary private IP address can be specified",
                ));
            }
            primary = address.first().copied();
        } else {
            secondary.extend(address);
        }
    }
    if primary.is_none() && !secondary.is_empty() {
        return Err(ApiError::combination("A primary private IP address must be specified"));
    }
    new.more_ipv4 = p.number("SecondaryPrivateIpAddressCount")?.unwrap_or(0);
    new.ipv4_prefixes = prefixes(p, "Ipv4Prefix", ".Ipv4Prefix")?;
    if !secondary.is_empty() && new.more_ipv4 > 0 {
        return Err(ApiError::combination(
            "Private addresses and a count of them may not be given together",
        ));
    }
    new.ipv4.extend(primary);
    new.ipv4.extend(secondary);
    Ok(())
}

fn ipv6(p: &Params, new: &mut Wanted, assign: bool) -> Result<(), ApiError> {
    for item in p.structures("Ipv6Addresses") {
        let address: Vec<Ipv6Addr> = addresses(&[p.required(&format!("{item}.Ipv6Address"))?])?;
        p.flag(&format!("{item}.IsPrimaryIpv6"))?;
        new.ipv6.extend(address);
    }
    let count: Option<usize> = p.number("Ipv6AddressCount")?;
    new.ipv6_prefixes = prefixes(p, "Ipv6Prefix", ".Ipv6Prefix")?;
    if !new.ipv6.is_empty() && count.is_some_and(|c| c > 0) {
        return Err(ApiError::combination(
            "IPv6 addresses and a count of them may not be given together",
        ));
    }
    // An explicit 0 overrides the subnet.
    new.more_ipv6 = count.unwrap_or_else(|| usize::from(assign && new.ipv6.is_empty()));
    Ok(())
}
