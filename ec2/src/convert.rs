//! From the SDK's types to `core`'s, item by item.
//!
//! A reply is believed only if what it must contain is there and well-formed (`ec2.md` §16); anything else makes the
//! whole reply unusable, because an item that is left out would read as "absent". Elements that EC2 may leave out
//! (`interfaceType` while an instance goes away, `attachment` of a branch) have values of their own.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use aws_sdk_ec2::types::{
    Instance, InstanceNetworkInterface, NetworkInterface, NetworkInterfaceStatus,
    TrunkInterfaceAssociation,
};
use trunkline_core::eni::{
    AssociationRecord, Attachment, EniKind, EniRecord, EniStatus, EniTags, tag,
};
use trunkline_core::id::{AssociationId, ClusterName, EniId, InstanceId, SubnetId, VlanId, VpcId};

/// Why an item cannot be believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Invalid {
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{field} '{value}' is not valid")]
    Value { field: &'static str, value: String },
    #[error("{field} is '{found}', asked was '{asked}'")]
    Other { field: &'static str, found: String, asked: String },
}

pub(crate) fn required<T: FromStr>(field: &'static str, value: Option<&str>) -> Result<T, Invalid> {
    optional(field, value)?.ok_or(Invalid::Missing(field))
}

pub(crate) fn optional<T: FromStr>(
    field: &'static str,
    value: Option<&str>,
) -> Result<Option<T>, Invalid> {
    value
        .map(|text| {
            text.parse()
                .map_err(|_| Invalid::Value { field, value: text.chars().take(80).collect() })
        })
        .transpose()
}

fn number(field: &'static str, value: Option<i32>) -> Result<u32, Invalid> {
    let value = value.ok_or(Invalid::Missing(field))?;
    u32::try_from(value).map_err(|_| Invalid::Value { field, value: value.to_string() })
}

pub(crate) fn same<T: PartialEq + ToString>(
    field: &'static str,
    found: &T,
    asked: &T,
) -> Result<(), Invalid> {
    if found == asked {
        Ok(())
    } else {
        Err(Invalid::Other { field, found: found.to_string(), asked: asked.to_string() })
    }
}

fn status(status: Option<&NetworkInterfaceStatus>) -> EniStatus {
    match status.map(NetworkInterfaceStatus::as_str) {
        Some("pending") => EniStatus::Pending,
        Some("available") => EniStatus::Available,
        Some("associated") => EniStatus::Associated,
        Some("in-use") => EniStatus::InUse,
        _ => EniStatus::Other,
    }
}

fn kind(kind: Option<&str>) -> EniKind {
    match kind {
        Some("trunk") => EniKind::Trunk,
        Some("branch") => EniKind::Branch,
        // Every other named type is an interface that is neither.
        Some(name) if !name.is_empty() => EniKind::Interface,
        _ => EniKind::Other,
    }
}

/// An attachment; the SDK has two types for it, which differ in who names the instance.
macro_rules! attachment {
    ($a:ident, $instance:expr) => {
        Ok::<_, Invalid>(Attachment {
            id: required("attachmentId", $a.attachment_id())?,
            instance: optional::<InstanceId>("instanceId", $instance)?,
            device_index: number("deviceIndex", $a.device_index())?,
            card: $a
                .network_card_index()
                .map_or(Ok(0), |card| number("networkCardIndex", Some(card)))?,
            attached: $a.status().is_some_and(|s| s.as_str() == "attached"),
            delete_on_termination: $a.delete_on_termination().unwrap_or_default(),
        })
    };
}

/// An ENI, and whether it is ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Described {
    pub(crate) record: EniRecord,
    /// The tags of the inventory filter are there and the VPC is right (design §4.1).
    pub(crate) ours: bool,
}

/// `eni` as a describe or create reply shows it.
pub(crate) fn eni(
    eni: &NetworkInterface,
    cluster: &ClusterName,
    ours_vpc: &VpcId,
) -> Result<Described, Invalid> {
    let tags: BTreeMap<&str, &str> = eni
        .tag_set()
        .iter()
        .filter_map(|t| Some((t.key()?, t.value().unwrap_or_default())))
        .collect();
    let vpc: VpcId = required("vpcId", eni.vpc_id())?;
    let cluster_key = format!("{}{cluster}", tag::CLUSTER_PREFIX);
    let ours = tags.get(tag::OWNER) == Some(&tag::OWNER_VALUE)
        && tags.get(cluster_key.as_str()) == Some(&tag::CLUSTER_VALUE)
        && vpc == *ours_vpc;
    let first_v6 = eni.ipv6_addresses().first().and_then(|a| a.ipv6_address());
    let record = EniRecord {
        id: required("networkInterfaceId", eni.network_interface_id())?,
        status: status(eni.status()),
        kind: kind(eni.interface_type().map(aws_sdk_ec2::types::NetworkInterfaceType::as_str)),
        mac: required("macAddress", eni.mac_address())?,
        ipv4: optional::<Ipv4Addr>("privateIpAddress", eni.private_ip_address())?,
        ipv6: optional::<Ipv6Addr>("ipv6Address", eni.ipv6_address().or(first_v6))?,
        subnet: required("subnetId", eni.subnet_id())?,
        vpc,
        groups: eni
            .groups()
            .iter()
            .map(|g| required("groupId", g.group_id()))
            .collect::<Result<_, _>>()?,
        tags: EniTags::read(tags),
        attachment: eni.attachment().map(|a| attachment!(a, a.instance_id())).transpose()?,
    };
    Ok(Described { record, ours })
}

/// An interface inside `DescribeInstances`. Its attachment names no instance, its subnet and VPC may be left to the
/// instance, and it has no tags.
pub(crate) fn instance_eni(
    eni: &InstanceNetworkInterface,
    instance: &Instance,
) -> Result<EniRecord, Invalid> {
    let first_v6 = eni.ipv6_addresses().first().and_then(|a| a.ipv6_address());
    Ok(EniRecord {
        id: required("networkInterfaceId", eni.network_interface_id())?,
        status: status(eni.status()),
        kind: kind(eni.interface_type()),
        mac: required("macAddress", eni.mac_address())?,
        ipv4: optional("privateIpAddress", eni.private_ip_address())?,
        ipv6: optional("ipv6Address", first_v6)?,
        subnet: required::<SubnetId>("subnetId", eni.subnet_id().or(instance.subnet_id()))?,
        vpc: required("vpcId", eni.vpc_id().or(instance.vpc_id()))?,
        groups: eni
            .groups()
            .iter()
            .map(|g| required("groupId", g.group_id()))
            .collect::<Result<_, _>>()?,
        tags: EniTags::default(),
        attachment: eni.attachment().map(|a| attachment!(a, instance.instance_id())).transpose()?,
    })
}

/// An association, whoever's it is.
pub(crate) fn any_association(
    reply: &TrunkInterfaceAssociation,
) -> Result<AssociationRecord, Invalid> {
    Ok(AssociationRecord {
        id: required::<AssociationId>("associationId", reply.association_id())?,
        branch: required("branchInterfaceId", reply.branch_interface_id())?,
        trunk: required("trunkInterfaceId", reply.trunk_interface_id())?,
        vlan: VlanId::new(i64::from(reply.vlan_id().ok_or(Invalid::Missing("vlanId"))?)).map_err(
            |_| Invalid::Value { field: "vlanId", value: format!("{:?}", reply.vlan_id()) },
        )?,
    })
}

/// The association of an Associate reply, which must be the one that was asked for.
pub(crate) fn association(
    reply: &TrunkInterfaceAssociation,
    branch: &EniId,
    trunk: &EniId,
    vlan: VlanId,
) -> Result<AssociationRecord, Invalid> {
    let record = any_association(reply)?;
    same("branchInterfaceId", &record.branch, branch)?;
    same("trunkInterfaceId", &record.trunk, trunk)?;
    same("vlanId", &record.vlan, &vlan)?;
    Ok(record)
}
