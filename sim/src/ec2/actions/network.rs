//! DescribeSubnets and DescribeSecurityGroups (`ec2.md` §8.12, §8.13).

use super::super::error::ApiError;
use super::super::filter::Filters;
use super::super::model::{GroupSpec, SubnetState};
use super::super::world::pages::page_size;
use super::super::world::{Call, World};
use super::super::xml::{Xml, group, list, optional, text};
use super::{owned, view};

const SUBNET_FILTERS: &[&str] = &[
    "availability-zone",
    "availability-zone-id",
    "cidr-block",
    "owner-id",
    "state",
    "subnet-id",
    "tag-key",
    "vpc-id",
];

pub(super) fn subnets(world: &mut World, call: &mut Call<'_>) -> Result<Vec<Xml>, ApiError> {
    let p = call.params;
    let filters = Filters::read(p, SUBNET_FILTERS, &world.switches)?;
    let size = page_size(call, &(5..=1000))?;
    let ids = owned(&p.list("SubnetId"));
    if !ids.is_empty() && size.is_some() {
        return Err(ApiError::combination(
            "The parameters MaxResults and SubnetId may not be used together",
        ));
    }
    if let Some(id) = ids.iter().find(|id| !world.subnets.contains_key(*id)) {
        return Err(ApiError::no_subnet(id));
    }
    call.commit()?;
    let found: Vec<(String, (SubnetState, bool))> = world
        .subnets
        .values()
        .filter(|s| ids.is_empty() || ids.contains(&s.state.id))
        .filter(|s| {
            filters.pass(&s.state.tags, |name| {
                vec![match name {
                    "availability-zone" => s.state.zone.clone(),
                    "availability-zone-id" => world.zone_id(&s.state.zone),
                    "cidr-block" => s.state.cidr.clone(),
                    "owner-id" => world.account.clone(),
                    "state" => "available".into(),
                    "subnet-id" => s.state.id.clone(),
                    _ => s.state.vpc.clone(),
                }]
            })
        })
        .map(|s| (s.state.id.clone(), (s.state.clone(), s.assign_ipv6)))
        .collect();
    let (page, token) = world.page(call, size, found)?;
    let items: Vec<Vec<Xml>> =
        page.iter().map(|(state, assign)| subnet(world, state, *assign)).collect();
    let mut body = vec![list("subnetSet", items)];
    body.extend(optional("nextToken", token));
    Ok(body)
}

fn subnet(world: &mut World, s: &SubnetState, assign_ipv6: bool) -> Vec<Xml> {
    let free = world.shown_free(&s.id);
    let associations = s.ipv6_cidr.iter().map(|cidr| {
        vec![
            text("ipv6CidrBlock", cidr),
            text("associationId", s.id.replace("subnet-", "subnet-cidr-assoc-")),
            group("ipv6CidrBlockState", vec![text("state", "associated")]),
        ]
    });
    vec![
        text("subnetId", &s.id),
        text(
            "subnetArn",
            format!("arn:aws:ec2:{}:{}:subnet/{}", world.region, world.account, s.id),
        ),
        text("state", "available"),
        text("vpcId", &s.vpc),
        text("cidrBlock", &s.cidr),
        list("ipv6CidrBlockAssociationSet", associations),
        text("availableIpAddressCount", free),
        text("availabilityZone", &s.zone),
        text("availabilityZoneId", world.zone_id(&s.zone)),
        text("assignIpv6AddressOnCreation", assign_ipv6),
        text("mapPublicIpOnLaunch", false),
        text("ipv6Native", false),
        text("ownerId", &world.account),
        view::tag_set(&s.tags),
    ]
}

const GROUP_FILTERS: &[&str] =
    &["description", "group-id", "group-name", "owner-id", "tag-key", "vpc-id"];

pub(super) fn groups(world: &mut World, call: &mut Call<'_>) -> Result<Vec<Xml>, ApiError> {
    let p = call.params;
    let filters = Filters::read(p, GROUP_FILTERS, &world.switches)?;
    let size = page_size(call, &(5..=1000))?;
    let ids = owned(&p.list("GroupId"));
    let names = owned(&p.list("GroupName"));
    if !ids.is_empty() && size.is_some() {
        return Err(ApiError::combination(
            "The parameters MaxResults and GroupId may not be used together",
        ));
    }
    for id in &ids {
        if !id.starts_with("sg-") {
            return Err(ApiError::bad(
                "InvalidGroupId.Malformed",
                format!("Invalid id: \"{id}\" (expecting \"sg-...\")"),
            ));
        }
    }
    let missing = ids
        .iter()
        .find(|id| !world.groups.contains_key(*id))
        .or_else(|| names.iter().find(|name| !world.groups.values().any(|g| g.name == **name)));
    if let Some(missing) = missing {
        return Err(ApiError::bad(
            "InvalidGroup.NotFound",
            format!("The security group '{missing}' does not exist"),
        ));
    }
    call.commit()?;
    let found: Vec<(String, GroupSpec)> = world
        .groups
        .values()
        .filter(|g| ids.is_empty() || ids.contains(&g.id))
        .filter(|g| names.is_empty() || names.contains(&g.name))
        .filter(|g| {
            filters.pass(&g.tags, |name| {
                vec![match name {
                    "group-id" => g.id.clone(),
                    "owner-id" => world.account.clone(),
                    "vpc-id" => g.vpc.clone(),
                    _ => g.name.clone(),
                }]
            })
        })
        .map(|g| (g.id.clone(), g.clone()))
        .collect();
    let (page, token) = world.page(call, size, found)?;
    let items = page.iter().map(|g| {
        vec![
            text("ownerId", &world.account),
            text("groupId", &g.id),
            text("groupName", &g.name),
            text("groupDescription", &g.name),
            text("vpcId", &g.vpc),
            group("ipPermissions", Vec::new()),
            group("ipPermissionsEgress", Vec::new()),
            view::tag_set(&g.tags),
        ]
    });
    let mut body = vec![list("securityGroupInfo", items)];
    body.extend(optional("nextToken", token));
    Ok(body)
}
