//! Calls for a node: its instance, its subnet, its trunk.

use std::net::Ipv4Addr;

use aws_sdk_ec2::types::{
    Instance, NetworkInterfaceAttachmentChanges, NetworkInterfaceCreationType, Reservation,
};
use trunkline_core::bucket::Priority;
use trunkline_core::eni::{Ec2Failure, EniKind, EniRecord, SubnetCidrs, tag};
use trunkline_core::id::{EniId, InstanceId, InstanceType, SecurityGroupId, SubnetId, VpcId};

use crate::action::Action;
use crate::call::{owner_tags, specification, texts};
use crate::client::{Ec2, send};
use crate::convert::{self, Invalid};
use crate::token;

/// `instanceState` (`ec2.md` §8.11).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InstanceState {
    /// Starting.
    Pending,
    /// Running.
    Running,
    /// On its way to `Terminated`.
    ShuttingDown,
    /// Gone for ever: the only state that never reverts.
    Terminated,
    /// On its way to `Stopped`.
    Stopping,
    /// Stopped; may be started again.
    Stopped,
    /// Missing or new: nothing may be concluded.
    Other,
}

/// What `DescribeInstances` says of an instance. A dead or dying one may lack most of it, so only the id is certain;
/// [`InstanceDetails::ready`] asks for all that a node needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceDetails {
    /// Id, as asked.
    pub id: InstanceId,
    /// State.
    pub state: InstanceState,
    /// Type.
    pub instance_type: Option<InstanceType>,
    /// Subnet.
    pub subnet: Option<SubnetId>,
    /// VPC.
    pub vpc: Option<VpcId>,
    /// Availability zone.
    pub zone: Option<String>,
    /// Private IPv4 address, the primary interface's.
    pub private_ip: Option<Ipv4Addr>,
    /// Interfaces, in EC2's order; trunks are among them, branches are not. [`EniKind::Other`] stands for a missing
    /// `interfaceType`. Without tags. Empty if one of them lacks something: one that is left out would read as absent.
    pub interfaces: Vec<EniRecord>,
    /// The first thing that one of the interfaces lacks.
    pub missing: Option<&'static str>,
    /// Groups of the primary interface (`TRK-1`); `None` if no interface has the instance's address.
    pub primary_groups: Option<Vec<SecurityGroupId>>,
}

/// [`InstanceDetails`] with everything that a node needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadyInstance {
    /// Id.
    pub id: InstanceId,
    /// Type.
    pub instance_type: InstanceType,
    /// Subnet.
    pub subnet: SubnetId,
    /// VPC.
    pub vpc: VpcId,
    /// As in [`InstanceDetails::interfaces`]; never empty.
    pub interfaces: Vec<EniRecord>,
    /// Groups of the primary interface; never empty.
    pub primary_groups: Vec<SecurityGroupId>,
}

impl InstanceDetails {
    /// All of it, or the name of the first thing that is missing (S32: EC2 leaves details out while it catches up; ask
    /// again later).
    pub fn ready(self) -> Result<ReadyInstance, &'static str> {
        if let Some(missing) = self.missing {
            return Err(missing);
        }
        if self.interfaces.is_empty() {
            return Err("interfaces");
        }
        Ok(ReadyInstance {
            id: self.id,
            instance_type: self.instance_type.ok_or("type")?,
            subnet: self.subnet.ok_or("subnet")?,
            vpc: self.vpc.ok_or("VPC")?,
            interfaces: self.interfaces,
            primary_groups: self
                .primary_groups
                .filter(|g| !g.is_empty())
                .ok_or("groups of the primary interface")?,
        })
    }
}

/// What `DescribeSubnets` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubnetDetails {
    /// Id, as asked.
    pub id: SubnetId,
    /// VPC.
    pub vpc: VpcId,
    /// Availability zone.
    pub zone: Option<String>,
    /// CIDR blocks for the annotation; the IPv4 block is there (`TRK-1`).
    pub cidrs: SubnetCidrs,
    /// Free IPv4 addresses; may lag.
    pub free_addresses: Option<u32>,
}

/// What `DescribeInstanceTypes` says (`ec2.md` §8.16). How many branches a type takes is not part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeDetails {
    /// The type.
    pub instance_type: InstanceType,
    /// Interfaces over all cards.
    pub interfaces: u32,
    /// Index of the default card.
    pub default_card: u32,
    /// Interfaces of each card, by card index.
    pub cards: Vec<(u32, u32)>,
    /// IPv4 addresses of one interface.
    pub ipv4_per_interface: Option<u32>,
    /// `xen`, `nitro`.
    pub hypervisor: Option<String>,
    /// Bare metal.
    pub bare_metal: Option<bool>,
}

/// A trunk to create (`TRK-12`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CreateTrunk {
    /// The instance it is for, by its tag.
    pub instance: InstanceId,
    /// Subnet.
    pub subnet: SubnetId,
    /// Groups.
    pub groups: Vec<SecurityGroupId>,
    /// 0 until a token mismatch, or NotFound of the returned id through the consistency window, was read back; then one
    /// higher each time.
    pub nonce: u32,
}

impl Ec2 {
    /// An instance by id. One that EC2 does not know is [`trunkline_core::eni::FailureClass::NotFound`], which alone
    /// proves nothing (design §4.4).
    pub async fn describe_instance(
        &self,
        instance: &InstanceId,
        priority: Priority,
    ) -> Result<InstanceDetails, Ec2Failure> {
        let action = Action::DescribeInstances;
        let reply = send!(self, action, priority, |client| client
            .describe_instances()
            .instance_ids(instance.as_str()))?;
        let mut found = reply.reservations().iter().flat_map(Reservation::instances);
        let (Some(item), None) = (found.next(), found.next()) else {
            return Err(self.unbelievable(action, &"not exactly one instance"));
        };
        let details =
            details(item).and_then(|d| convert::same("instanceId", &d.id, instance).map(|()| d));
        details.map_err(|why| self.unbelievable(action, &why))
    }

    /// A subnet by id.
    pub async fn describe_subnet(
        &self,
        subnet: &SubnetId,
        priority: Priority,
    ) -> Result<SubnetDetails, Ec2Failure> {
        let action = Action::DescribeSubnets;
        let reply = send!(self, action, priority, |client| client
            .describe_subnets()
            .subnet_ids(subnet.as_str()))?;
        let [item] = reply.subnets() else {
            return Err(self.unbelievable(action, &"not exactly one subnet"));
        };
        let details =
            subnet_details(item).and_then(|d| convert::same("subnetId", &d.id, subnet).map(|()| d));
        details.map_err(|why| self.unbelievable(action, &why))
    }

    /// An instance type. Optional: the call is not in the documented IAM list (`contract.md` §17), so
    /// [`trunkline_core::eni::FailureClass::Unauthorised`] is an ordinary answer.
    pub async fn describe_instance_type(
        &self,
        instance_type: &InstanceType,
        priority: Priority,
    ) -> Result<TypeDetails, Ec2Failure> {
        let action = Action::DescribeInstanceTypes;
        let reply = send!(self, action, priority, |client| client
            .describe_instance_types()
            .instance_types(instance_type.as_str().into()))?;
        let [item] = reply.instance_types() else {
            return Err(self.unbelievable(action, &"not exactly one instanceType"));
        };
        let details = type_details(item).and_then(|d| {
            convert::same("instanceType", &d.instance_type, instance_type).map(|()| d)
        });
        details.map_err(|why| self.unbelievable(action, &why))
    }

    /// Any ENI by id, ours or not: a node's trunk may have been made by somebody else (`TRK-10`).
    pub async fn describe_eni(
        &self,
        eni: &EniId,
        priority: Priority,
    ) -> Result<EniRecord, Ec2Failure> {
        self.describe_by_id(eni, priority).await.map(|described| described.record)
    }

    /// Creates a trunk and, where ENIs belong to another account, allows ours to attach it. A repeat with the same
    /// fields finds the same trunk.
    pub async fn create_trunk(
        &self,
        create: &CreateTrunk,
        priority: Priority,
    ) -> Result<EniRecord, Ec2Failure> {
        let action = Action::CreateNetworkInterface;
        let asked = owner_tags(&self.inner.cluster, &create.instance);
        let reply = send!(self, action, priority, |client| client
            .create_network_interface()
            .description(tag::TRUNK_DESCRIPTION)
            .interface_type(NetworkInterfaceCreationType::Trunk)
            .subnet_id(create.subnet.as_str())
            .set_groups(Some(texts(&create.groups)))
            .tag_specifications(specification(&asked))
            .client_token(token::create_trunk(
                &self.inner.cluster,
                &create.instance,
                create.nonce
            )))?;
        let record = self.created(reply.network_interface(), &asked)?;
        if record.kind != EniKind::Trunk || record.subnet != create.subnet {
            return Err(
                self.unbelievable(action, &"it is not a trunk in the subnet that was asked for")
            );
        }
        Ok(record)
    }

    /// Attaches a trunk at a device index of the default card and returns the attachment id. EC2 has no token for this
    /// call: after an unknown outcome look at the ENI before trying again. In a foreign account's ENIs the permission is
    /// granted first.
    pub async fn attach_trunk(
        &self,
        trunk: &EniId,
        instance: &InstanceId,
        device_index: u32,
        priority: Priority,
    ) -> Result<String, Ec2Failure> {
        self.grant_attach(trunk, priority).await?;
        let action = Action::AttachNetworkInterface;
        let index = i32::try_from(device_index).unwrap_or(i32::MAX);
        let reply = send!(self, action, priority, |client| client
            .attach_network_interface()
            .network_interface_id(trunk.as_str())
            .instance_id(instance.as_str())
            .device_index(index))?;
        match reply.attachment_id() {
            Some(id) if is_attachment(id) => Ok(id.to_owned()),
            _ => Err(self.unbelievable(action, &"attachmentId is missing or not valid")),
        }
    }

    /// Lets the trunk end with its instance (`TRK-12`, `TRK-18`).
    pub async fn delete_on_termination(
        &self,
        trunk: &EniId,
        attachment: &str,
        priority: Priority,
    ) -> Result<(), Ec2Failure> {
        let change = NetworkInterfaceAttachmentChanges::builder()
            .attachment_id(attachment)
            .delete_on_termination(true)
            .build();
        send!(self, Action::ModifyNetworkInterfaceAttribute, priority, |client| client
            .modify_network_interface_attribute()
            .network_interface_id(trunk.as_str())
            .attachment(change))?;
        Ok(())
    }

    /// Detaches a trunk whose set-up failed (`TRK-13`). Refused without a call unless EC2 shows the ENI by id as a trunk
    /// of ours that is attached by exactly this attachment to this instance, and no branch names it.
    #[allow(clippy::disallowed_methods)] // The one door: checked by id just before.
    pub async fn detach_unused_trunk(
        &self,
        trunk: &EniId,
        instance: &InstanceId,
        attachment: &str,
        priority: Priority,
    ) -> Result<(), Ec2Failure> {
        let described = self.describe_by_id(trunk, priority).await?;
        let attached = described.record.attachment.as_ref();
        let matches = described.ours
            && described.record.kind == EniKind::Trunk
            && described.record.tags.instance.value() == Some(instance)
            && attached
                .is_some_and(|a| a.id == attachment && a.instance.as_ref() == Some(instance));
        if !matches {
            return Err(crate::release::refused(
                trunk,
                "it is not attached to this instance by this attachment",
            ));
        }
        self.refuse_if_branches_name(trunk, priority).await?;
        send!(self, Action::DetachNetworkInterface, priority, |client| {
            client.detach_network_interface().attachment_id(attachment)
        })?;
        Ok(())
    }
}

fn is_attachment(id: &str) -> bool {
    id.strip_prefix("eni-attach-")
        .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_alphanumeric()))
}

pub(crate) fn details(item: &Instance) -> Result<InstanceDetails, Invalid> {
    let private_ip: Option<Ipv4Addr> =
        convert::optional("privateIpAddress", item.private_ip_address())?;
    let interfaces = item
        .network_interfaces()
        .iter()
        .map(|eni| convert::instance_eni(eni, item))
        .collect::<Result<Vec<_>, _>>();
    let (interfaces, missing) = match interfaces {
        Ok(interfaces) => (interfaces, None),
        Err(Invalid::Missing(what)) => (Vec::new(), Some(what)),
        Err(why) => return Err(why),
    };
    let primary = interfaces.iter().find(|eni| private_ip.is_some() && eni.ipv4 == private_ip);
    Ok(InstanceDetails {
        id: convert::required("instanceId", item.instance_id())?,
        state: state(
            item.state().and_then(|s| s.name()).map(aws_sdk_ec2::types::InstanceStateName::as_str),
        ),
        instance_type: convert::optional(
            "instanceType",
            item.instance_type().map(aws_sdk_ec2::types::InstanceType::as_str),
        )?,
        subnet: convert::optional("subnetId", item.subnet_id())?,
        vpc: convert::optional("vpcId", item.vpc_id())?,
        zone: item.placement().and_then(|p| p.availability_zone()).map(str::to_owned),
        private_ip,
        primary_groups: primary.map(|eni| eni.groups.clone()),
        interfaces,
        missing,
    })
}

fn state(name: Option<&str>) -> InstanceState {
    match name {
        Some("pending") => InstanceState::Pending,
        Some("running") => InstanceState::Running,
        Some("shutting-down") => InstanceState::ShuttingDown,
        Some("terminated") => InstanceState::Terminated,
        Some("stopping") => InstanceState::Stopping,
        Some("stopped") => InstanceState::Stopped,
        _ => InstanceState::Other,
    }
}

fn subnet_details(item: &aws_sdk_ec2::types::Subnet) -> Result<SubnetDetails, Invalid> {
    let v6 = item
        .ipv6_cidr_block_association_set()
        .iter()
        .find_map(|a| a.ipv6_cidr_block())
        .unwrap_or_default();
    Ok(SubnetDetails {
        id: convert::required("subnetId", item.subnet_id())?,
        vpc: convert::required("vpcId", item.vpc_id())?,
        zone: item.availability_zone().map(str::to_owned),
        cidrs: SubnetCidrs {
            v4: item
                .cidr_block()
                .filter(|c| is_cidr::<Ipv4Addr>(c))
                .ok_or(Invalid::Missing("cidrBlock"))?
                .to_owned(),
            v6: v6.to_owned(),
        },
        free_addresses: item.available_ip_address_count().and_then(|n| u32::try_from(n).ok()),
    })
}

fn is_cidr<A: std::str::FromStr>(text: &str) -> bool {
    text.split_once('/')
        .is_some_and(|(address, bits)| address.parse::<A>().is_ok() && bits.parse::<u8>().is_ok())
}

fn type_details(item: &aws_sdk_ec2::types::InstanceTypeInfo) -> Result<TypeDetails, Invalid> {
    let network = item.network_info().ok_or(Invalid::Missing("networkInfo"))?;
    let count = |value: Option<i32>| value.and_then(|n| u32::try_from(n).ok());
    let cards = network.network_cards().iter().map(|card| {
        Some((count(card.network_card_index())?, count(card.maximum_network_interfaces())?))
    });
    Ok(TypeDetails {
        instance_type: convert::required(
            "instanceType",
            item.instance_type().map(aws_sdk_ec2::types::InstanceType::as_str),
        )?,
        interfaces: count(network.maximum_network_interfaces())
            .ok_or(Invalid::Missing("maximumNetworkInterfaces"))?,
        default_card: count(network.default_network_card_index()).unwrap_or_default(),
        cards: cards.collect::<Option<Vec<_>>>().ok_or(Invalid::Missing("networkCards"))?,
        ipv4_per_interface: count(network.ipv4_addresses_per_interface()),
        hypervisor: item.hypervisor().map(|h| h.as_str().to_owned()),
        bare_metal: item.bare_metal(),
    })
}
