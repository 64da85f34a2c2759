//! DescribeNetworkInterfaces and DeleteNetworkInterface (`ec2.md` §8.2, §8.3).

use super::super::error::ApiError;
use super::super::filter::Filters;
use super::super::world::pages::page_size;
use super::super::world::{Call, Eni, View, World};
use super::super::xml::{Xml, list, optional};
use super::{done, view};

pub(super) fn delete(world: &mut World, call: &mut Call<'_>) -> Result<Vec<Xml>, ApiError> {
    let id = call.params.required("NetworkInterfaceId")?;
    let eni = world.need_eni(id)?;
    // An associated branch, and an unattached trunk with branches, can be deleted as they are (seen).
    if eni.state.attachment.is_some() {
        return Err(ApiError::value(format!("Network interface '{id}' is currently in use.")));
    }
    call.commit()?;
    world.delete_eni(id);
    Ok(done())
}

const FILTERS: &[&str] = &[
    "addresses.private-ip-address",
    "addresses.primary",
    "attachment.attachment-id",
    "attachment.instance-id",
    "attachment.instance-owner-id",
    "attachment.device-index",
    "attachment.status",
    "attachment.delete-on-termination",
    "availability-zone",
    "availability-zone-id",
    "description",
    "group-id",
    "interface-type",
    "ipv6-addresses.ipv6-address",
    "mac-address",
    "network-interface-id",
    "owner-id",
    "private-dns-name",
    "private-ip-address",
    "requester-id",
    "requester-managed",
    "source-dest-check",
    "status",
    "subnet-id",
    "tag-key",
    "vpc-id",
];

/// Filters that make an unpaged list of a large account acceptable.
const NARROW: &[&str] = &[
    "attachment.instance-id",
    "group-id",
    "mac-address",
    "private-dns-name",
    "private-ip-address",
    "subnet-id",
    "vpc-id",
];

pub(super) fn describe(world: &mut World, call: &mut Call<'_>) -> Result<Vec<Xml>, ApiError> {
    let p = call.params;
    p.flag("IncludeManagedResources")?;
    let size = page_size(call, &(5..=1000))?;
    let paged = size.is_some() || p.text("NextToken").is_some();
    let filters = Filters::read(p, FILTERS, &world.switches)?;
    let ids = p.list("NetworkInterfaceId");
    if !ids.is_empty() && paged {
        return Err(ApiError::combination(
            "The parameters MaxResults and NetworkInterfaceId may not be used together",
        ));
    }
    let narrow = paged || !ids.is_empty() || filters.names_any(NARROW);
    if !narrow && world.live_enis() > world.switches.limits.unpaged_enis {
        return Err(ApiError::bad(
            "OperationNotPermitted",
            "The number of network interfaces is too large: use pagination or filters.",
        ));
    }
    call.commit()?;
    let found: Vec<(String, View)> = if ids.is_empty() {
        world
            .seen_in_list(call.read_at)
            .filter(|(id, _)| !call.fired.hides(id))
            .filter(|(_, eni)| filters.pass(&eni.state.tags, |name| values(world, eni, name)))
            .map(|(id, eni)| (id.clone(), eni))
            .collect()
    } else {
        let mut found = Vec::new();
        for id in ids {
            if !super::super::error::is_ec2_id(id, "eni-") {
                world.need_eni(id)?;
            }
            let seen = world.seen_by_id(id, call.read_at).filter(|_| !call.fired.hides(id));
            let eni = seen.ok_or_else(|| ApiError::no_eni(id))?;
            if filters.pass(&eni.state.tags, |name| values(world, &eni, name)) {
                found.push((id.to_owned(), eni));
            }
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found.dedup_by(|a, b| a.0 == b.0);
        found
    };
    let (page, token) = world.page(call, size, found)?;
    let mut body =
        vec![list("networkInterfaceSet", page.iter().map(|eni| view::interface(world, eni)))];
    body.extend(optional("nextToken", token));
    Ok(body)
}

/// What an ENI has under a filter name.
fn values(world: &World, eni: &Eni, name: &str) -> Vec<String> {
    let s = &eni.state;
    if let Some(field) = name.strip_prefix("attachment.") {
        let Some(a) = &s.attachment else {
            return Vec::new();
        };
        return vec![match field {
            "attachment-id" => a.id.clone(),
            "instance-id" => a.instance.clone(),
            "instance-owner-id" => world.account.clone(),
            "device-index" => a.device_index.to_string(),
            "status" => a.status.clone(),
            _ => a.delete_on_termination.to_string(),
        }];
    }
    let one = |value: &str| vec![value.to_owned()];
    match name {
        "addresses.private-ip-address" => {
            std::iter::once(&s.ipv4).chain(&s.secondary_ipv4).map(ToString::to_string).collect()
        }
        "addresses.primary" => {
            let mut has = one("true");
            has.extend((!s.secondary_ipv4.is_empty()).then(|| "false".to_owned()));
            has
        }
        "availability-zone" => one(&s.zone),
        "availability-zone-id" => one(&world.zone_id(&s.zone)),
        "description" => one(&s.description),
        "group-id" => s.groups.clone(),
        "interface-type" => one(&s.interface_type),
        "ipv6-addresses.ipv6-address" => s.ipv6.iter().map(ToString::to_string).collect(),
        "mac-address" => one(&s.mac),
        "network-interface-id" => one(&s.id),
        "owner-id" => one(&s.owner),
        "private-dns-name" => one(&world.dns(s.ipv4)),
        "private-ip-address" => one(&s.ipv4.to_string()),
        "requester-id" => one(&eni.requester),
        "requester-managed" => one("false"),
        "source-dest-check" => one(&eni.source_dest_check.to_string()),
        "status" => one(&s.status),
        "subnet-id" => one(&s.subnet),
        "vpc-id" => one(&s.vpc),
        _ => Vec::new(),
    }
}
