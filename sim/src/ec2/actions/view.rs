//! How ENIs, attachments and tags are written.

use std::collections::BTreeMap;

use super::super::model::AttachmentState;
use super::super::world::{Eni, World};
use super::super::xml::{Xml, group, list, text};

/// `2026-01-02T03:04:05.000Z`
pub(super) fn timestamp(wall_ms: i64) -> String {
    jiff::Timestamp::from_millisecond(wall_ms)
        .map(|t| t.strftime("%Y-%m-%dT%H:%M:%S.000Z").to_string())
        .unwrap_or_default()
}

pub(super) fn tag_set(tags: &BTreeMap<String, String>) -> Xml {
    list("tagSet", tags.iter().map(|(k, v)| vec![text("key", k), text("value", v)]))
}

pub(super) fn group_set(world: &World, groups: &[String]) -> Xml {
    list(
        "groupSet",
        groups.iter().map(|id| {
            let name = world.groups.get(id).map_or("", |g| g.name.as_str());
            vec![text("groupId", id), text("groupName", name)]
        }),
    )
}

/// The `attachment` element; inside DescribeInstances it names no instance.
pub(super) fn attachment(world: &World, a: &AttachmentState, with_instance: bool) -> Xml {
    let mut fields = vec![text("attachmentId", &a.id)];
    if with_instance {
        fields.push(text("instanceId", &a.instance));
        fields.push(text("instanceOwnerId", &world.account));
    }
    fields.extend([
        text("deviceIndex", a.device_index),
        text("networkCardIndex", a.card),
        text("status", &a.status),
        text("attachTime", timestamp(a.attached_ms)),
        text("deleteOnTermination", a.delete_on_termination),
    ]);
    group("attachment", fields)
}

/// The address sets that both kinds of describe show.
pub(super) fn address_sets(world: &World, eni: &Eni) -> Vec<Xml> {
    let s = &eni.state;
    let ipv4 = std::iter::once((s.ipv4, true)).chain(s.secondary_ipv4.iter().map(|a| (*a, false)));
    vec![
        list(
            "privateIpAddressesSet",
            ipv4.map(|(address, primary)| {
                vec![
                    text("privateIpAddress", address),
                    text("privateDnsName", world.dns(address)),
                    text("primary", primary),
                ]
            }),
        ),
        list(
            "ipv6AddressesSet",
            s.ipv6.iter().enumerate().map(|(n, address)| {
                vec![
                    text("ipv6Address", address),
                    text("isPrimaryIpv6", n == 0 && eni.primary_ipv6),
                ]
            }),
        ),
        list("ipv4PrefixSet", s.ipv4_prefixes.iter().map(|p| vec![text("ipv4Prefix", p)])),
        list("ipv6PrefixSet", s.ipv6_prefixes.iter().map(|p| vec![text("ipv6Prefix", p)])),
    ]
}

/// The fields of `ec2.md` §8.3.
pub(super) fn interface(world: &World, eni: &Eni) -> Vec<Xml> {
    let s = &eni.state;
    let mut fields = vec![
        text("networkInterfaceId", &s.id),
        text("subnetId", &s.subnet),
        text("vpcId", &s.vpc),
        text("availabilityZone", &s.zone),
        text("availabilityZoneId", world.zone_id(&s.zone)),
        text("description", &s.description),
        text("ownerId", &s.owner),
        text("requesterId", &eni.requester),
        text("requesterManaged", false),
        text("status", &s.status),
        text("macAddress", &s.mac),
        text("privateIpAddress", s.ipv4),
        text("privateDnsName", world.dns(s.ipv4)),
        text("sourceDestCheck", eni.source_dest_check),
        text("interfaceType", &s.interface_type),
        text("ipv6Native", false),
    ];
    fields.extend(s.ipv6.first().map(|a| text("ipv6Address", a)));
    fields.push(group_set(world, &s.groups));
    fields.push(tag_set(&s.tags));
    fields.extend(s.attachment.as_ref().map(|a| attachment(world, a, true)));
    fields.extend(address_sets(world, eni));
    fields
}
