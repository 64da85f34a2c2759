//! The operations of `ec2.md` §8. Each handler checks everything, calls [`Call::commit`], and only then changes the truth,
//! so that a refused or dry call has no effect.

mod addresses;
mod attach;
mod create;
mod instances;
mod interfaces;
mod modify;
mod network;
mod tags;
mod trunk;
mod types;
mod view;

pub(crate) use self::modify::set_groups;
pub(crate) use self::tags::{remove as unset_tags, set as set_tags};
use super::error::ApiError;
use super::world::{Call, World};
use super::xml::{Xml, text};

/// Carries out one action. The children of the response element are answered.
pub(crate) fn dispatch(world: &mut World, call: &mut Call<'_>) -> Result<Vec<Xml>, ApiError> {
    match call.action {
        "CreateNetworkInterface" => create::create(world, call),
        "DeleteNetworkInterface" => interfaces::delete(world, call),
        "DescribeNetworkInterfaces" => interfaces::describe(world, call),
        "ModifyNetworkInterfaceAttribute" => modify::modify(world, call),
        "CreateNetworkInterfacePermission" => modify::permit(world, call),
        "DescribeNetworkInterfacePermissions" => modify::permissions(world, call),
        "AssociateTrunkInterface" => trunk::associate(world, call),
        "DisassociateTrunkInterface" => trunk::disassociate(world, call),
        "DescribeTrunkInterfaceAssociations" => trunk::describe(world, call),
        "AttachNetworkInterface" => attach::attach(world, call),
        "DetachNetworkInterface" => attach::detach(world, call),
        "DescribeInstances" => instances::describe(world, call),
        "DescribeSubnets" => network::subnets(world, call),
        "DescribeSecurityGroups" => network::groups(world, call),
        "CreateTags" => tags::create(world, call),
        "DeleteTags" => tags::delete(world, call),
        "AssignPrivateIpAddresses" => addresses::assign_v4(world, call),
        "UnassignPrivateIpAddresses" => addresses::unassign_v4(world, call),
        "AssignIpv6Addresses" => addresses::assign_v6(world, call),
        "UnassignIpv6Addresses" => addresses::unassign_v6(world, call),
        "DescribeInstanceTypes" => types::describe(world, call),
        other => Err(ApiError::bad(
            "InvalidAction",
            format!("The action {other} is not valid for this web service."),
        )),
    }
}

/// `<return>true</return>`
fn done() -> Vec<Xml> {
    vec![text("return", true)]
}

/// Owned copies.
fn owned(values: &[&str]) -> Vec<String> {
    values.iter().map(|v| (*v).to_owned()).collect()
}
