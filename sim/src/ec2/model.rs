//! The JSON that the admin interface speaks: call log, truth, and what can be added. Tests and tools deserialise these.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// One request, in the order in which requests took effect. Admin calls are in the log too, as action `_sim/…` of caller
/// `admin`, so that a replay of the effects always gives the truth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogEntry {
    /// Position in the log, from 1, without holes.
    pub seq: u64,
    /// Wall time at which the request had come in, ms since the Unix epoch.
    pub arrived_ms: i64,
    /// Wall time at which it took effect (or was refused), ms since the Unix epoch.
    pub wall_ms: i64,
    /// The same on the simulator's monotonic clock, ms since its start.
    pub mono_ms: u64,
    /// EC2 action, or `_sim/…`.
    pub action: String,
    /// Decoded parameters. Of an admin call: `body`.
    pub params: BTreeMap<String, String>,
    /// Access key id of the SigV4 credential; empty if unsigned.
    pub caller: String,
    /// Account of the caller.
    pub account: String,
    /// User agent.
    pub user_agent: String,
    /// `amz-sdk-invocation-id`: one per SDK operation, the same over its retries.
    pub invocation: Option<String>,
    /// Attempt number out of `amz-sdk-request`.
    pub attempt: Option<u32>,
    /// Request id, also in the reply.
    pub request_id: String,
    /// HTTP status; `None` if the connection was closed without an answer.
    pub status: Option<u16>,
    /// Error code, if refused. An injected error after the effect is one too.
    pub code: Option<String>,
    /// The faults that fired: `id:kind`.
    pub faults: Vec<String>,
    /// A client token was replayed: nothing was done again.
    pub replay: bool,
    /// What changed.
    pub effects: Vec<Effect>,
}

/// A change of the truth.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "effect", rename_all = "kebab-case")]
pub enum Effect {
    /// An ENI was made.
    EniCreated {
        /// ENI id.
        eni: String,
        /// `interface`, `trunk` or `branch`.
        interface_type: String,
        /// Subnet id.
        subnet: String,
        /// Primary IPv4 address.
        ipv4: Ipv4Addr,
        /// MAC address.
        mac: String,
        /// Security groups.
        groups: Vec<String>,
        /// Tags given in the call.
        tags: BTreeMap<String, String>,
    },
    /// An ENI is gone. Associations it had are reported as removed before.
    EniDeleted {
        /// ENI id.
        eni: String,
        /// Its type.
        interface_type: String,
        /// The tags it carried at the end.
        tags: BTreeMap<String, String>,
    },
    /// A branch was associated.
    AssociationMade {
        /// Association id.
        association: String,
        /// Trunk ENI id.
        trunk: String,
        /// Branch ENI id.
        branch: String,
        /// VLAN id; 0 for GRE.
        vlan: u32,
    },
    /// An association is gone, by Disassociate or because one of its ends went.
    AssociationRemoved {
        /// Association id.
        association: String,
        /// Trunk ENI id.
        trunk: String,
        /// Branch ENI id.
        branch: String,
        /// VLAN id; 0 for GRE.
        vlan: u32,
        /// The branch's tags at that moment.
        tags: BTreeMap<String, String>,
    },
    /// Tags were set.
    TagsSet {
        /// Resource id.
        resource: String,
        /// Keys and values.
        tags: BTreeMap<String, String>,
    },
    /// Tags were removed.
    TagsRemoved {
        /// Resource id.
        resource: String,
        /// Keys.
        keys: Vec<String>,
    },
    /// An attachment was made.
    Attached {
        /// ENI id.
        eni: String,
        /// Instance id.
        instance: String,
        /// Attachment id.
        attachment: String,
        /// Device index.
        device_index: u32,
    },
    /// An attachment is being taken away (or is gone at once, where an instance ends).
    Detached {
        /// ENI id.
        eni: String,
        /// Instance id.
        instance: String,
        /// Attachment id.
        attachment: String,
    },
    /// The security groups were replaced.
    GroupsSet {
        /// ENI id.
        eni: String,
        /// The new set.
        groups: Vec<String>,
    },
    /// Another attribute was modified.
    AttributeSet {
        /// ENI id.
        eni: String,
        /// Attribute, spelled as in the request.
        attribute: String,
        /// New value.
        value: String,
    },
    /// Addresses or prefixes were added to an ENI.
    AddressesAssigned {
        /// ENI id.
        eni: String,
        /// Addresses or prefixes.
        addresses: Vec<String>,
    },
    /// Addresses or prefixes were taken from an ENI.
    AddressesUnassigned {
        /// ENI id.
        eni: String,
        /// Addresses or prefixes.
        addresses: Vec<String>,
    },
    /// A permission was granted.
    PermissionGranted {
        /// Permission id.
        permission: String,
        /// ENI id.
        eni: String,
        /// To this account.
        account: String,
    },
    /// An instance was added by the admin.
    InstanceAdded {
        /// Instance id.
        instance: String,
        /// Its type.
        instance_type: String,
    },
    /// An instance has another state.
    InstanceState {
        /// Instance id.
        instance: String,
        /// `running`, `shutting-down`, `terminated`, …, or `forgotten`.
        state: String,
    },
    /// A subnet was added.
    SubnetAdded {
        /// Subnet id.
        subnet: String,
    },
    /// A security group was added.
    GroupAdded {
        /// Group id.
        group: String,
    },
    /// A security group was removed.
    GroupRemoved {
        /// Group id.
        group: String,
    },
}

/// The whole truth, without lag and without faults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Wall time, ms since the Unix epoch.
    pub wall_ms: i64,
    /// Monotonic time, ms since the start.
    pub mono_ms: u64,
    /// Sequence number of the last log entry.
    pub seq: u64,
    /// VPC id.
    pub vpc: String,
    /// Account of the ENIs.
    pub account: String,
    /// Region.
    pub region: String,
    /// Every ENI that exists.
    pub enis: Vec<EniState>,
    /// Every instance that has not been forgotten.
    pub instances: Vec<InstanceState>,
    /// Subnets.
    pub subnets: Vec<SubnetState>,
    /// Security groups.
    pub security_groups: Vec<GroupSpec>,
}

impl State {
    /// The ENI of that id.
    pub fn eni(&self, id: &str) -> Option<&EniState> {
        self.enis.iter().find(|e| e.id == id)
    }

    /// The trunk of an instance.
    pub fn trunk_of(&self, instance: &str) -> Option<&EniState> {
        self.enis.iter().find(|e| {
            e.interface_type == "trunk"
                && e.attachment.as_ref().is_some_and(|a| a.instance == instance)
        })
    }

    /// The branches that are associated with a trunk.
    pub fn branches_of<'a>(&'a self, trunk: &'a str) -> impl Iterator<Item = &'a EniState> {
        self.enis.iter().filter(move |e| e.association.as_ref().is_some_and(|a| a.trunk == trunk))
    }
}

/// An ENI.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EniState {
    /// Id.
    pub id: String,
    /// Status as a describe without lag would show it.
    pub status: String,
    /// `interface`, `trunk` or `branch`.
    pub interface_type: String,
    /// Description.
    pub description: String,
    /// MAC address.
    pub mac: String,
    /// Primary IPv4 address.
    pub ipv4: Ipv4Addr,
    /// Further IPv4 addresses.
    pub secondary_ipv4: Vec<Ipv4Addr>,
    /// IPv6 addresses.
    pub ipv6: Vec<Ipv6Addr>,
    /// IPv4 prefixes.
    pub ipv4_prefixes: Vec<String>,
    /// IPv6 prefixes.
    pub ipv6_prefixes: Vec<String>,
    /// Subnet.
    pub subnet: String,
    /// VPC.
    pub vpc: String,
    /// Availability zone.
    pub zone: String,
    /// Owning account.
    pub owner: String,
    /// Security groups.
    pub groups: Vec<String>,
    /// Tags.
    pub tags: BTreeMap<String, String>,
    /// Attachment to an instance.
    pub attachment: Option<AttachmentState>,
    /// Association with a trunk.
    pub association: Option<AssociationState>,
    /// When it was made, ms since the Unix epoch.
    pub created_ms: i64,
}

/// An attachment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachmentState {
    /// `eni-attach-…`
    pub id: String,
    /// Instance id.
    pub instance: String,
    /// Device index.
    pub device_index: u32,
    /// Network card index.
    pub card: u32,
    /// `attaching`, `attached` or `detaching`.
    pub status: String,
    /// Goes with the instance.
    pub delete_on_termination: bool,
    /// When it was made, ms since the Unix epoch.
    pub attached_ms: i64,
}

/// An association as its branch has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssociationState {
    /// `trunk-assoc-…`
    pub id: String,
    /// Trunk ENI id.
    pub trunk: String,
    /// VLAN id; 0 for GRE.
    pub vlan: u32,
}

/// An instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceState {
    /// Id.
    pub id: String,
    /// Type.
    pub instance_type: String,
    /// `pending`, `running`, `shutting-down`, `terminated`, `stopping` or `stopped`.
    pub state: String,
    /// Subnet of the primary ENI.
    pub subnet: String,
    /// VPC.
    pub vpc: String,
    /// Availability zone.
    pub zone: String,
    /// Primary private address.
    pub private_ip: Ipv4Addr,
    /// Private DNS name.
    pub private_dns: String,
    /// Id of the ENI at device 0 (also after it is gone).
    pub primary_eni: String,
    /// Security groups of the primary ENI at launch.
    pub groups: Vec<String>,
    /// Tags.
    pub tags: BTreeMap<String, String>,
}

/// A subnet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubnetState {
    /// Id.
    pub id: String,
    /// VPC.
    pub vpc: String,
    /// Availability zone.
    pub zone: String,
    /// IPv4 CIDR block.
    pub cidr: String,
    /// IPv6 CIDR block.
    pub ipv6_cidr: Option<String>,
    /// Free IPv4 addresses.
    pub free: u32,
    /// Tags.
    pub tags: BTreeMap<String, String>,
}

/// A subnet to have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubnetSpec {
    /// Id; made up if empty.
    #[serde(default)]
    pub id: String,
    /// IPv4 CIDR block, /16 to /28.
    pub cidr: String,
    /// IPv6 CIDR block, a /64; new ENIs get an address from it if `assign_ipv6`.
    #[serde(default)]
    pub ipv6_cidr: Option<String>,
    /// `assignIpv6AddressOnCreation`.
    #[serde(default)]
    pub assign_ipv6: bool,
    /// Availability zone; `<region>a` if empty.
    #[serde(default)]
    pub zone: String,
    /// VPC; the default one if empty.
    #[serde(default)]
    pub vpc: String,
    /// Tags.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
}

/// A security group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupSpec {
    /// Id; made up if empty.
    #[serde(default)]
    pub id: String,
    /// Name.
    #[serde(default)]
    pub name: String,
    /// VPC; the default one if empty.
    #[serde(default)]
    pub vpc: String,
    /// Tags.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
}

/// An instance to add.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InstanceSpec {
    /// Id; made up if empty.
    pub id: String,
    /// Type; `m5.large` if empty. Types that are not in the table are accepted (S38).
    pub instance_type: String,
    /// Subnet; the first if empty.
    pub subnet: String,
    /// Security groups; the node group if empty.
    pub groups: Vec<String>,
    /// Private address; a free one if absent.
    pub private_ip: Option<Ipv4Addr>,
    /// Ordinary ENIs besides the primary one, at device 1 and up.
    pub extra_enis: u32,
    /// Tags.
    pub tags: BTreeMap<String, String>,
}

/// An ENI to make out of band: a peer's branch, a look-alike, another cluster's ENI.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EniSpec {
    /// Id; made up if empty.
    pub id: String,
    /// Subnet; the first if empty.
    pub subnet: String,
    /// Security groups; the VPC's default if empty.
    pub groups: Vec<String>,
    /// `interface` if empty.
    pub interface_type: String,
    /// Description.
    pub description: String,
    /// Tags.
    pub tags: BTreeMap<String, String>,
    /// Private address; a free one if absent.
    pub private_ip: Option<Ipv4Addr>,
    /// MAC address; made up if empty.
    pub mac: String,
    /// Owning account; the default one if empty.
    pub owner: String,
    /// Instance to attach it to, at the next free device index.
    pub attach_to: Option<String>,
    /// Trunk to associate it with.
    pub trunk: Option<String>,
    /// VLAN of that association.
    pub vlan: Option<u32>,
}

/// A change of tags out of band.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TagEdit {
    /// Resource id.
    pub id: String,
    /// Keys and values to set.
    pub set: BTreeMap<String, String>,
    /// Keys to remove.
    pub remove: Vec<String>,
}

/// An instance's new state.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InstanceEdit {
    /// Instance id.
    pub id: String,
    /// `running`, `stopped`, `shutting-down`, `terminated`, or `forgotten` (NotFound from then on).
    pub state: String,
}

/// A thing named by its id.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ById {
    /// The id.
    pub id: String,
}

/// An association made out of band.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AssociateSpec {
    /// Branch ENI id.
    pub branch: String,
    /// Trunk ENI id.
    pub trunk: String,
    /// VLAN id.
    pub vlan: u32,
}

/// Security groups set out of band.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupsEdit {
    /// ENI id.
    pub id: String,
    /// The new set.
    pub groups: Vec<String>,
}
