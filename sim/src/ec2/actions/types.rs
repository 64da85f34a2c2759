//! DescribeInstanceTypes (`ec2.md` §8.16), out of the table of §10. Whether a type can trunk is not in it, as in EC2.

use super::super::error::ApiError;
use super::super::filter::Filters;
use super::super::limits::{self, TypeLimits};
use super::super::world::pages::page_size;
use super::super::world::{Call, World};
use super::super::xml::{Xml, group, list, optional, text};
use super::owned;

const FILTERS: &[&str] = &["bare-metal", "hypervisor", "instance-type"];

pub(super) fn describe(world: &mut World, call: &mut Call<'_>) -> Result<Vec<Xml>, ApiError> {
    let p = call.params;
    p.flag("IncludeUnsupportedInRegion")?;
    let filters = Filters::read(p, FILTERS, &world.switches)?;
    let size = page_size(call, &(5..=100))?;
    let wanted = owned(&p.list("InstanceType"));
    if wanted.len() > 100 {
        return Err(ApiError::value("Too many instance types"));
    }
    if !wanted.is_empty() && size.is_some() {
        return Err(ApiError::combination(
            "The parameters MaxResults and InstanceType may not be used together",
        ));
    }
    if let Some(unknown) = wanted.iter().find(|t| limits::of(t).is_none()) {
        return Err(ApiError::bad(
            "InvalidInstanceType",
            format!("The following supplied instance types do not exist: [{unknown}]"),
        ));
    }
    call.commit()?;
    let none = std::collections::BTreeMap::new();
    let found: Vec<(String, (&str, &TypeLimits))> = limits::all()
        .filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|w| w == name))
        .filter(|(name, limits)| {
            filters.pass(&none, |filter| {
                vec![match filter {
                    "bare-metal" => limits.bare_metal.to_string(),
                    "hypervisor" => limits.hypervisor.clone(),
                    _ => (*name).to_owned(),
                }]
            })
        })
        .map(|(name, limits)| (name.to_owned(), (name, limits)))
        .collect();
    // Without a page size, pages of 100 as EC2 makes them.
    let size = size.or_else(|| wanted.is_empty().then_some(100));
    let (page, token) = world.page(call, size, found)?;
    let mut body =
        vec![list("instanceTypeSet", page.into_iter().map(|(name, limits)| fields(name, limits)))];
    body.extend(optional("nextToken", token));
    Ok(body)
}

fn fields(name: &str, limits: &TypeLimits) -> Vec<Xml> {
    let cards = limits.cards.iter().map(|(index, interfaces)| {
        vec![text("networkCardIndex", index), text("maximumNetworkInterfaces", interfaces)]
    });
    let mut fields = vec![text("instanceType", name), text("bareMetal", limits.bare_metal)];
    fields.extend(optional(
        "hypervisor",
        (!limits.hypervisor.is_empty()).then_some(&limits.hypervisor),
    ));
    fields.push(group(
        "networkInfo",
        vec![
            text("maximumNetworkInterfaces", limits.interfaces),
            text("maximumNetworkCards", limits.cards.len()),
            text("defaultNetworkCardIndex", limits.default_card),
            list("networkCards", cards),
            text("ipv4AddressesPerInterface", limits.ipv4_per_interface),
            text("ipv6AddressesPerInterface", limits.ipv4_per_interface),
            text("ipv6Supported", limits.hypervisor != "xen"),
        ],
    ));
    fields
}
