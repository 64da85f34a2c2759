//! Assigning and unassigning addresses and prefixes (`ec2.md` §8.15). No token and no dry run.

use super::super::error::ApiError;
use super::super::limits;
use super::super::model::Effect;
use super::super::params::Params;
use super::super::world::{Call, Taken, Wanted, World};
use super::super::xml::{Xml, list, text, texts};
use super::create::{addresses, prefixes};
use super::{done, owned};

/// Exactly one of the ways must be given.
fn one_way(p: &Params, ways: &[&str]) -> Result<(), ApiError> {
    match ways.iter().filter(|way| p.has(way)).count() {
        1 => Ok(()),
        0 => Err(ApiError::missing(ways.first().copied().unwrap_or_default())),
        _ => Err(ApiError::combination(format!("Only one of {} may be given", ways.join(", ")))),
    }
}

/// Checks that so many more fit onto the ENI, which has `has` of them.
fn check_room(world: &World, id: &str, has: usize, more: usize) -> Result<(), ApiError> {
    let attachment = world.need_eni(id)?.state.attachment.as_ref();
    let kind = attachment
        .and_then(|a| world.instances.get(&a.instance))
        .and_then(|i| limits::of(&i.instance_type));
    let most = kind.map_or(50, |l| l.ipv4_per_interface);
    if u32::try_from(has.saturating_add(more)).unwrap_or(u32::MAX) > most {
        return Err(ApiError::bad(
            "PrivateIpAddressLimitExceeded",
            "Number of private addresses will exceed limit.",
        ));
    }
    Ok(())
}

/// Takes what is wanted and puts it onto the ENI.
fn assign(world: &mut World, id: &str, wanted: &Wanted) -> Result<Taken, ApiError> {
    let subnet = world.need_eni(id)?.state.subnet.clone();
    let taken = world.take_addresses(&subnet, wanted)?;
    if let Some(eni) = world.eni_mut(id) {
        eni.state.secondary_ipv4.extend(&taken.ipv4);
        eni.state.ipv4_prefixes.extend(taken.ipv4_prefixes.clone());
        eni.state.ipv6.extend(&taken.ipv6);
        eni.state.ipv6_prefixes.extend(taken.ipv6_prefixes.clone());
    }
    world.touch(id, (0, 0));
    world.effects.push(Effect::AddressesAssigned { eni: id.to_owned(), addresses: names(&taken) });
    Ok(taken)
}

/// Takes addresses from the ENI; each must be on it, and the primary address stays.
fn unassign(world: &mut World, call: &Call<'_>, id: &str, gone: &Taken) -> Result<(), ApiError> {
    let s = &world.need_eni(id)?.state;
    let foreign = gone.ipv4.iter().any(|a| !s.secondary_ipv4.contains(a))
        || gone.ipv4_prefixes.iter().any(|f| !s.ipv4_prefixes.contains(f))
        || gone.ipv6.iter().any(|a| !s.ipv6.contains(a))
        || gone.ipv6_prefixes.iter().any(|f| !s.ipv6_prefixes.contains(f));
    if foreign {
        return Err(ApiError::value(
            "Some of the specified addresses are not assigned to the interface, or primary",
        ));
    }
    if names(gone).is_empty() {
        return Err(ApiError::missing("addresses"));
    }
    let subnet = s.subnet.clone();
    call.commit_without_dry_run()?;
    if let Some(eni) = world.eni_mut(id) {
        eni.state.secondary_ipv4.retain(|a| !gone.ipv4.contains(a));
        eni.state.ipv4_prefixes.retain(|f| !gone.ipv4_prefixes.contains(f));
        eni.state.ipv6.retain(|a| !gone.ipv6.contains(a));
        eni.state.ipv6_prefixes.retain(|f| !gone.ipv6_prefixes.contains(f));
    }
    world.give_addresses(&subnet, gone);
    world.touch(id, (0, 0));
    world.effects.push(Effect::AddressesUnassigned { eni: id.to_owned(), addresses: names(gone) });
    Ok(())
}

fn names(taken: &Taken) -> Vec<String> {
    let v4 = taken.ipv4.iter().map(ToString::to_string);
    let v6 = taken.ipv6.iter().map(ToString::to_string);
    let prefixes = taken.ipv4_prefixes.iter().chain(&taken.ipv6_prefixes).cloned();
    v4.chain(v6).chain(prefixes).collect()
}

pub(super) fn assign_v4(world: &mut World, call: &mut Call<'_>) -> Result<Vec<Xml>, ApiError> {
    let p = call.params;
    let id = p.required("NetworkInterfaceId")?;
    p.flag("AllowReassignment")?;
    one_way(
        p,
        &["PrivateIpAddress", "SecondaryPrivateIpAddressCount", "Ipv4Prefix", "Ipv4PrefixCount"],
    )?;
    let wanted = Wanted {
        ipv4: addresses(&p.list("PrivateIpAddress"))?,
        more_ipv4: p.number("SecondaryPrivateIpAddressCount")?.unwrap_or(0),
        ipv4_prefixes: prefixes(p, "Ipv4Prefix", "")?,
        ..Wanted::default()
    };
    let s = &world.need_eni(id)?.state;
    let has = 1 + s.secondary_ipv4.len() + s.ipv4_prefixes.len();
    let more = wanted.more_ipv4.saturating_add(wanted.ipv4.len() + wanted.ipv4_prefixes.len());
    check_room(world, id, has, more)?;
    call.commit_without_dry_run()?;
    let taken = assign(world, id, &wanted)?;
    Ok(vec![
        text("networkInterfaceId", id),
        list(
            "assignedPrivateIpAddressesSet",
            taken.ipv4.iter().map(|a| vec![text("privateIpAddress", a)]),
        ),
        list(
            "assignedIpv4PrefixSet",
            taken.ipv4_prefixes.iter().map(|f| vec![text("ipv4Prefix", f)]),
        ),
        text("return", true),
    ])
}

pub(super) fn unassign_v4(world: &mut World, call: &mut Call<'_>) -> Result<Vec<Xml>, ApiError> {
    let p = call.params;
    let id = p.required("NetworkInterfaceId")?;
    let gone = Taken {
        ipv4: addresses(&p.list("PrivateIpAddress"))?,
        ipv4_prefixes: owned(&p.list("Ipv4Prefix")),
        ..Taken::default()
    };
    unassign(world, call, id, &gone)?;
    Ok(done())
}

pub(super) fn assign_v6(world: &mut World, call: &mut Call<'_>) -> Result<Vec<Xml>, ApiError> {
    let p = call.params;
    let id = p.required("NetworkInterfaceId")?;
    one_way(p, &["Ipv6Addresses", "Ipv6AddressCount", "Ipv6Prefix", "Ipv6PrefixCount"])?;
    let wanted = Wanted {
        ipv6: addresses(&p.list("Ipv6Addresses"))?,
        more_ipv6: p.number("Ipv6AddressCount")?.unwrap_or(0),
        ipv6_prefixes: prefixes(p, "Ipv6Prefix", "")?,
        ..Wanted::default()
    };
    let s = &world.need_eni(id)?.state;
    let has = s.ipv6.len() + s.ipv6_prefixes.len();
    let more = wanted.more_ipv6.saturating_add(wanted.ipv6.len() + wanted.ipv6_prefixes.len());
    check_room(world, id, has, more)?;
    call.commit_without_dry_run()?;
    let taken = assign(world, id, &wanted)?;
    Ok(vec![
        text("networkInterfaceId", id),
        texts("assignedIpv6Addresses", &taken.ipv6),
        texts("assignedIpv6PrefixSet", &taken.ipv6_prefixes),
    ])
}

pub(super) fn unassign_v6(world: &mut World, call: &mut Call<'_>) -> Result<Vec<Xml>, ApiError> {
    let p = call.params;
    let id = p.required("NetworkInterfaceId")?;
    let gone = Taken {
        ipv6: addresses(&p.list("Ipv6Addresses"))?,
        ipv6_prefixes: owned(&p.list("Ipv6Prefix")),
        ..Taken::default()
    };
    unassign(world, call, id, &gone)?;
    Ok(vec![
        text("networkInterfaceId", id),
        texts("unassignedIpv6Addresses", &gone.ipv6),
        texts("unassignedIpv6PrefixSet", &gone.ipv6_prefixes),
    ])
}
