//! EC2 as `core` sees it: what an ENI looks like, which calls are asked for, and how their answers are classed.
//!
//! EC2's describe output of a branch names neither its trunk nor its VLAN (`ec2.md` §7); our tags do. They are read into
//! [`EniTags`] item by item: an unreadable tag is a value of its own, never an absent one.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::id::{
    AssociationId, EniId, InstanceId, MacAddress, Namespace, PodName, PodRef, PodUid,
    SecurityGroupId, SubnetId, VlanId, VpcId,
};
use crate::verdict::DeletePermit;

/// Tag keys on every ENI that we create (`contract.md` §2, design §4.1).
pub mod tag {
    /// Owner of the ENI; value [`OWNER_VALUE`].
    pub const OWNER: &str = "eks:eni:owner";
    /// The owner value of the peer, kept so that either can take over from the other.
    pub const OWNER_VALUE: &str = "eks-vpc-resource-controller";
    /// Prefix of the cluster tag; the cluster name follows, the value is [`CLUSTER_VALUE`].
    pub const CLUSTER_PREFIX: &str = "kubernetes.io/cluster/";
    /// Value of the cluster tag.
    pub const CLUSTER_VALUE: &str = "owned";
    /// Instance id.
    pub const INSTANCE: &str = "node.k8s.amazonaws.com/instance_id";
    /// Trunk ENI id, on branches.
    pub const TRUNK: &str = "vpcresources.k8s.aws/trunk-eni-id";
    /// Decimal VLAN id, on branches.
    pub const VLAN: &str = "vpcresources.k8s.aws/vlan-id";
    /// UID of the pod the branch is bound to.
    pub const POD_UID: &str = "trunkline.dev/pod-uid";
    /// Namespace of that pod.
    pub const POD_NAMESPACE: &str = "trunkline.dev/pod-namespace";
    /// Name of that pod.
    pub const POD_NAME: &str = "trunkline.dev/pod-name";
    /// Index of the branch among the pod's branches, from 0.
    pub const INDEX: &str = "trunkline.dev/index";
    /// The `kubernetes.io/config.hash` of a static pod: the UID by which the kubelet knows it, without which a restart
    /// could not tell its cgroup.
    pub const CONFIG_HASH: &str = "trunkline.dev/config-hash";
    /// On an ENI that was made to heal: the ENI that the pod's annotation named then (design §6).
    pub const REPLACES: &str = "trunkline.dev/replaces";
    /// On an ENI that was made to heal: the MAC that the pod's link had then. Only a link with this MAC is changed to the
    /// new ENI's.
    pub const REPLACES_MAC: &str = "trunkline.dev/replaces-mac";
    /// Set before a rule without stable UID facts acts (design §4.4).
    pub const CONDEMNED: &str = "trunkline.dev/condemned";
    /// `Description` of a trunk.
    pub const TRUNK_DESCRIPTION: &str = "aws-k8s-trunk-eni";
    /// `Description` of a branch.
    pub const BRANCH_DESCRIPTION: &str = "aws-k8s-branch-eni";
}

/// A tag that may be missing or unreadable. "Unreadable" never counts as "absent".
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Tag<T> {
    /// The ENI does not carry the tag.
    #[default]
    Absent,
    /// The tag is there, its value is not of the expected form.
    Unreadable(String),
    /// The value.
    Is(T),
}

impl<T> Tag<T> {
    /// The value, if the tag is there and readable.
    pub fn value(&self) -> Option<&T> {
        match self {
            Self::Is(value) => Some(value),
            Self::Absent | Self::Unreadable(_) => None,
        }
    }
}

/// The tags that rules look at.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct EniTags {
    /// [`tag::INSTANCE`].
    pub instance: Tag<InstanceId>,
    /// [`tag::TRUNK`].
    pub trunk: Tag<EniId>,
    /// [`tag::VLAN`].
    pub vlan: Tag<VlanId>,
    /// [`tag::POD_UID`].
    pub pod_uid: Tag<PodUid>,
    /// [`tag::POD_NAMESPACE`].
    pub pod_namespace: Tag<Namespace>,
    /// [`tag::POD_NAME`].
    pub pod_name: Tag<PodName>,
    /// [`tag::INDEX`].
    pub index: Tag<u8>,
    /// [`tag::CONFIG_HASH`].
    pub config_hash: Tag<PodUid>,
    /// [`tag::REPLACES`].
    pub replaces: Tag<EniId>,
    /// [`tag::REPLACES_MAC`].
    pub replaces_mac: Tag<MacAddress>,
    /// [`tag::CONDEMNED`] is set, whatever its value.
    pub condemned: bool,
}

impl EniTags {
    /// Reads the known keys out of a tag set.
    pub fn read<'a>(tags: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        fn parse<T: std::str::FromStr>(value: &str) -> Tag<T> {
            value
                .parse()
                .map_or_else(|_| Tag::Unreadable(value.chars().take(80).collect()), Tag::Is)
        }
        let mut read = Self::default();
        for (key, value) in tags {
            match key {
                tag::INSTANCE => read.instance = parse(value),
                tag::TRUNK => read.trunk = parse(value),
                tag::VLAN => read.vlan = parse(value),
                tag::POD_UID => read.pod_uid = parse(value),
                tag::POD_NAMESPACE => read.pod_namespace = parse(value),
                tag::POD_NAME => read.pod_name = parse(value),
                tag::INDEX => read.index = parse(value),
                tag::CONFIG_HASH => read.config_hash = parse(value),
                tag::REPLACES => read.replaces = parse(value),
                tag::REPLACES_MAC => read.replaces_mac = parse(value),
                tag::CONDEMNED => read.condemned = true,
                _ => {}
            }
        }
        read
    }

    /// The pod this ENI is bound to by its tags; `None` unless UID, namespace and name are all readable.
    pub fn bound_pod(&self) -> Option<PodRef> {
        Some(PodRef {
            uid: self.pod_uid.value()?.clone(),
            namespace: self.pod_namespace.value()?.clone(),
            name: self.pod_name.value()?.clone(),
        })
    }
}

/// `status` of an ENI (`ec2.md` §7). Values the SDK does not know are [`EniStatus::Other`] and count as in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EniStatus {
    /// Just created.
    Pending,
    /// Free.
    Available,
    /// Branch of a trunk that is not attached.
    Associated,
    /// Attached, or branch of an attached trunk.
    InUse,
    /// Anything else.
    Other,
}

/// `interfaceType` of an ENI as far as rules care.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EniKind {
    /// A trunk.
    Trunk,
    /// A branch that is (or was) associated.
    Branch,
    /// An ordinary interface; a branch is one before its association.
    Interface,
    /// Missing (an instance that goes away, `TRK-10`) or unknown.
    Other,
}

/// The `attachment` element of an ENI.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Attachment {
    /// Attachment id (`eni-attach-…`).
    pub id: String,
    /// The instance; missing inside `DescribeInstances`.
    pub instance: Option<InstanceId>,
    /// Device index on the card.
    pub device_index: u32,
    /// Network card index.
    pub card: u32,
    /// `status` is `attached`.
    pub attached: bool,
    /// `deleteOnTermination`.
    pub delete_on_termination: bool,
}

/// An ENI as a describe call showed it. Whether it is ours was checked by the adapter (design §4.1, inventory filter).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EniRecord {
    /// Id.
    pub id: EniId,
    /// `status`.
    pub status: EniStatus,
    /// `interfaceType`.
    pub kind: EniKind,
    /// MAC address.
    pub mac: MacAddress,
    /// Primary private IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// First IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
    /// Subnet.
    pub subnet: SubnetId,
    /// VPC.
    pub vpc: VpcId,
    /// Security groups, in EC2's order.
    pub groups: Vec<SecurityGroupId>,
    /// The known tags.
    pub tags: EniTags,
    /// Ordinary attachment; branches have none.
    pub attachment: Option<Attachment>,
}

/// CIDR blocks of a branch's subnet, as the annotation carries them (`ENC-6`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct SubnetCidrs {
    /// IPv4 CIDR block.
    pub v4: String,
    /// First IPv6 CIDR block, or empty.
    pub v6: String,
}

/// A branch ENI to create. The client token is derived from these fields (design §5): the same fields give the same
/// token, so that a repeated call cannot make a second ENI.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CreateBranch {
    /// The pod that the ENI is for: its tags bind the ENI to it.
    pub pod: PodRef,
    /// Index among the pod's branches.
    pub index: u8,
    /// Config hash of a static pod (tag only).
    pub config_hash: Option<PodUid>,
    /// Trunk of the node.
    pub trunk: EniId,
    /// Instance of the node.
    pub instance: InstanceId,
    /// VLAN that is reserved for it (tag only).
    pub vlan: VlanId,
    /// Subnet.
    pub subnet: SubnetId,
    /// Security groups; never empty.
    pub groups: Vec<SecurityGroupId>,
    /// What it replaces (healing): it gets the same addresses.
    pub replaced: Option<Replaced>,
    /// 0 until a mismatch was read back; then one higher each time.
    pub nonce: u32,
}

/// A branch whose ENI is gone, as far as a new one must be like it (design §6).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Replaced {
    /// The ENI that is gone.
    pub eni: EniId,
    /// The ENI that the pod's annotation names: another one where that was replaced before and could not be announced
    /// (tag only).
    pub named: EniId,
    /// The MAC that the pod's link has (tag only).
    pub mac: MacAddress,
    /// Primary IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
}

/// What an ENI is searched by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SearchBy {
    /// A private address, primary or not, IPv4 or IPv6, in the cluster's VPC.
    Address(IpAddr),
    /// A MAC address.
    Mac(MacAddress),
}

/// An ENI that a search showed, whoever's it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FoundEni {
    /// The ENI.
    pub record: EniRecord,
    /// It passes the inventory filter: this cluster's, in its VPC.
    pub ours: bool,
}

/// An association to make, or to replay.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AssociateBranch {
    /// The branch ENI.
    pub branch: EniId,
    /// The trunk ENI.
    pub trunk: EniId,
    /// The VLAN id.
    pub vlan: VlanId,
    /// As in [`CreateBranch::nonce`].
    pub nonce: u32,
}

/// What an association call answered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AssociationRecord {
    /// Association id.
    pub id: AssociationId,
    /// Branch, as asked.
    pub branch: EniId,
    /// Trunk, as asked.
    pub trunk: EniId,
    /// VLAN.
    pub vlan: VlanId,
}

/// An EC2 call that `step` asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Ec2Call {
    /// `CreateNetworkInterface` for a branch, tags in the call.
    Create(CreateBranch),
    /// `AssociateTrunkInterface`.
    Associate(AssociateBranch),
    /// The one door to Disassociate and Delete.
    Release(DeletePermit),
    /// `DescribeNetworkInterfaces` by the UID tag (with the inventory filter): reads back what a lost reply hid.
    FindByUid(PodUid),
    /// `DescribeNetworkInterfaces` by id.
    Describe(EniId),
    /// `DescribeTrunkInterfaceAssociations` by id: whose association is it? Optional, the call may be refused. Answered
    /// by [`Ec2Reply::Associated`].
    DescribeAssociation(AssociationId),
    /// `DescribeNetworkInterfaces` by address or MAC, of whatever owner: who has it?
    Search(SearchBy),
    /// `CreateTags`: rewrites the given keys.
    Tag {
        /// The ENI.
        eni: EniId,
        /// Keys and values to set.
        tags: BTreeMap<String, String>,
    },
    /// `ModifyNetworkInterfaceAttribute`, groups only.
    SetGroups {
        /// The ENI.
        eni: EniId,
        /// The whole new set; never empty.
        groups: Vec<SecurityGroupId>,
    },
}

/// What a call that succeeded answered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Ec2Reply {
    /// The ENI that was made, or that the token named.
    Created(EniRecord),
    /// The association that was made, that the token named, or that was asked for by id.
    Associated(AssociationRecord),
    /// Disassociated, or gone already.
    Disassociated,
    /// Deleted, or gone already.
    Deleted,
    /// ENIs with that UID tag; may lag behind.
    FoundByUid(Vec<EniRecord>),
    /// The ENI by id.
    Described(EniRecord),
    /// ENIs that a search showed; may lag behind.
    Searched(Vec<FoundEni>),
    /// Tags written.
    Tagged,
    /// Groups written.
    GroupsSet,
}

/// Why a call failed, in the classes of `ec2.md` §9. Closed: codes that are not known go to
/// [`FailureClass::Unrecognised`], which takes the cautious branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FailureClass {
    /// `RequestLimitExceeded`.
    Throttled,
    /// The subnet has no free address, in each of its spellings (S45).
    SubnetFull,
    /// The private address that was asked for is taken.
    AddressInUse,
    /// `NetworkInterfaceLimitExceeded`.
    Quota,
    /// `InvalidVlanId.Duplicate`.
    VlanInUse,
    /// The branch is associated already (`ec2.md` §13 row 1).
    AlreadyAssociated,
    /// The ENI is in use.
    InUse,
    /// EC2 allows no further branch on this trunk.
    BranchLimit,
    /// The id is not known to EC2 (yet, or any more).
    NotFound,
    /// `IdempotentParameterMismatch`.
    TokenMismatch,
    /// Groups, subnet or ids that EC2 refuses: the user has to mend them.
    Configuration,
    /// IAM.
    Unauthorised,
    /// Credentials or clock.
    Credentials,
    /// Short-lived refusals the SDK does not retry (`IncorrectState`, `ConcurrentTagAccess`).
    Transient,
    /// We sent what EC2 cannot accept.
    Malformed,
    /// The lease deadline had passed: the attempt was not sent.
    Fenced,
    /// The outcome is unknown: 5xx, timeout, cut body, no code.
    OutcomeUnknown,
    /// A code that is not in the table.
    Unrecognised,
}

impl FailureClass {
    /// Short name for logs, metrics and status.
    pub fn name(self) -> &'static str {
        match self {
            Self::Throttled => "throttled",
            Self::SubnetFull => "subnet-full",
            Self::AddressInUse => "address-in-use",
            Self::Quota => "quota",
            Self::VlanInUse => "vlan-in-use",
            Self::AlreadyAssociated => "already-associated",
            Self::InUse => "in-use",
            Self::BranchLimit => "branch-limit",
            Self::NotFound => "not-found",
            Self::TokenMismatch => "token-mismatch",
            Self::Configuration => "configuration",
            Self::Unauthorised => "unauthorised",
            Self::Credentials => "credentials",
            Self::Transient => "transient",
            Self::Malformed => "malformed",
            Self::Fenced => "fenced",
            Self::OutcomeUnknown => "outcome-unknown",
            Self::Unrecognised => "unrecognised",
        }
    }

    /// Whether the call may have taken effect although it failed.
    pub fn may_have_happened(self) -> bool {
        matches!(
            self,
            Self::OutcomeUnknown
                | Self::Unrecognised
                | Self::TokenMismatch
                | Self::AlreadyAssociated
        )
    }
}

/// A failed call.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{}{}: {message}", class.name(), code.as_deref().map(|c| format!(" ({c})")).unwrap_or_default())]
pub struct Ec2Failure {
    /// Its class.
    pub class: FailureClass,
    /// EC2's error code, where there was one.
    pub code: Option<String>,
    /// What EC2 or the SDK said.
    pub message: String,
}

impl Ec2Failure {
    /// What a person is told: EC2's code, where there was one, and the message.
    pub fn told(&self) -> String {
        match &self.code {
            Some(code) => format!("{code}: {}", self.message),
            None => self.message.clone(),
        }
    }
}

/// The answer to an [`Ec2Call`].
pub type Ec2Answer = Result<Ec2Reply, Ec2Failure>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_tag_is_not_an_absent_one() {
        let tags = EniTags::read([(tag::VLAN, "121"), (tag::POD_UID, "")]);
        assert_eq!(tags.vlan, Tag::Unreadable("121".into()));
        assert_eq!(tags.pod_uid, Tag::Unreadable(String::new()));
        assert_eq!(tags.trunk, Tag::Absent);
        assert_eq!(tags.bound_pod(), None);
    }
}
