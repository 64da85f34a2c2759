//! DescribeInstances (`ec2.md` §8.11). Branches are not among an instance's interfaces; terminated instances stay visible
//! until the admin has them forgotten.

use super::super::error::{ApiError, is_ec2_id};
use super::super::filter::Filters;
use super::super::model::InstanceState;
use super::super::world::pages::page_size;
use super::super::world::{Call, Eni, View, World};
use super::super::xml::{Xml, group, list, optional, text};
use super::{owned, view};

const FILTERS: &[&str] = &[
    "availability-zone",
    "instance-id",
    "instance-state-name",
    "instance-type",
    "network-interface.network-interface-id",
    "private-dns-name",
    "private-ip-address",
    "subnet-id",
    "tag-key",
    "vpc-id",
];

pub(super) fn describe(world: &mut World, call: &mut Call<'_>) -> Result<Vec<Xml>, ApiError> {
    let p = call.params;
    p.flag("IncludeManagedResources")?;
    let filters = Filters::read(p, FILTERS, &world.switches)?;
    let size = page_size(call, &(5..=1000))?;
    let ids = owned(&p.list("InstanceId"));
    if !ids.is_empty() && size.is_some() {
        return Err(ApiError::combination(
            "The parameter instancesSet cannot be used with the parameter maxResults",
        ));
    }
    for id in &ids {
        if !is_ec2_id(id, "i-") {
            return Err(ApiError::bad(
                "InvalidInstanceID.Malformed",
                format!("Invalid id: \"{id}\""),
            ));
        }
        if !world.instances.contains_key(id) {
            return Err(ApiError::no_instance(id));
        }
    }
    call.commit()?;
    let mut interfaces = by_instance(world, call.read_at);
    for enis in interfaces.values_mut() {
        enis.retain(|eni| !call.fired.hides(&eni.state.id));
    }
    let attached = |id: &str| interfaces.get(id).map_or(&[][..], Vec::as_slice);
    let found: Vec<(String, InstanceState)> = world
        .instances
        .values()
        .filter(|i| ids.is_empty() || ids.contains(&i.id))
        .filter(|i| {
            filters.pass(&i.tags, |name| match name {
                "availability-zone" => vec![i.zone.clone()],
                "instance-id" => vec![i.id.clone()],
                "instance-state-name" => vec![i.state.clone()],
                "instance-type" => vec![i.instance_type.clone()],
                "network-interface.network-interface-id" => {
                    attached(&i.id).iter().map(|e| e.state.id.clone()).collect()
                }
                "private-dns-name" => vec![i.private_dns.clone()],
                "private-ip-address" => vec![i.private_ip.to_string()],
                "subnet-id" => vec![i.subnet.clone()],
                _ => vec![i.vpc.clone()],
            })
        })
        .map(|i| (i.id.clone(), i.clone()))
        .collect();
    let (page, token) = world.page(call, size, found)?;
    let reservations = page.iter().map(|i| {
        vec![
            text("reservationId", i.id.replacen("i-", "r-", 1)),
            text("ownerId", &world.account),
            group("groupSet", Vec::new()),
            list("instancesSet", [instance(world, i, attached(&i.id))]),
        ]
    });
    let mut body = vec![list("reservationSet", reservations)];
    body.extend(optional("nextToken", token));
    Ok(body)
}

/// The attached ENIs as seen at that time, in the order of their device index.
fn by_instance(world: &World, at: u64) -> std::collections::BTreeMap<String, Vec<View>> {
    let mut found: std::collections::BTreeMap<String, Vec<View>> =
        std::collections::BTreeMap::new();
    for eni in world.live().filter(|e| e.state.attachment.is_some()) {
        let seen = world.seen_by_id(&eni.state.id, at);
        if let Some((view, a)) = seen.and_then(|v| v.state.attachment.clone().map(|a| (v, a))) {
            found.entry(a.instance).or_default().push(view);
        }
    }
    for enis in found.values_mut() {
        enis.sort_by_key(|e| e.state.attachment.as_ref().map(|a| (a.card, a.device_index)));
    }
    found
}

fn state_code(state: &str) -> u8 {
    match state {
        "pending" => 0,
        "running" => 16,
        "shutting-down" => 32,
        "terminated" => 48,
        "stopping" => 64,
        _ => 80,
    }
}

fn instance(world: &World, i: &InstanceState, enis: &[View]) -> Vec<Xml> {
    let mut fields = vec![
        text("instanceId", &i.id),
        text("instanceType", &i.instance_type),
        group("instanceState", vec![text("code", state_code(&i.state)), text("name", &i.state)]),
        group(
            "placement",
            vec![
                text("availabilityZone", &i.zone),
                text("availabilityZoneId", world.zone_id(&i.zone)),
                text("tenancy", "default"),
            ],
        ),
        text("privateDnsName", if i.state == "terminated" { "" } else { &i.private_dns }),
    ];
    // A terminated instance shows neither addresses nor network.
    if i.state != "terminated" {
        fields.extend([
            text("subnetId", &i.subnet),
            text("vpcId", &i.vpc),
            text("privateIpAddress", i.private_ip),
            view::group_set(world, &i.groups),
        ]);
    }
    fields.push(list("networkInterfaceSet", enis.iter().map(|e| interface(world, e))));
    fields.push(view::tag_set(&i.tags));
    fields
}

fn interface(world: &World, eni: &Eni) -> Vec<Xml> {
    let s = &eni.state;
    let mut fields = vec![
        text("networkInterfaceId", &s.id),
        text("interfaceType", &s.interface_type),
        text("status", &s.status),
        text("subnetId", &s.subnet),
        text("vpcId", &s.vpc),
        text("macAddress", &s.mac),
        text("privateIpAddress", s.ipv4),
        text("privateDnsName", world.dns(s.ipv4)),
        text("sourceDestCheck", eni.source_dest_check),
        text("ownerId", &s.owner),
        text("description", &s.description),
        view::group_set(world, &s.groups),
    ];
    fields.extend(s.attachment.as_ref().map(|a| view::attachment(world, a, false)));
    fields.extend(view::address_sets(world, eni));
    fields
}
