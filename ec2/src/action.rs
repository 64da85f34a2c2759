//! The EC2 operations that are used, each with its own bucket, retry partition and metrics.

use trunkline_core::bucket::Limit;

/// An EC2 operation. Closed: also the metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // The variants are EC2's own operation names.
pub enum Action {
    CreateNetworkInterface,
    DeleteNetworkInterface,
    DescribeNetworkInterfaces,
    ModifyNetworkInterfaceAttribute,
    CreateNetworkInterfacePermission,
    AssociateTrunkInterface,
    DisassociateTrunkInterface,
    DescribeTrunkInterfaceAssociations,
    AttachNetworkInterface,
    DetachNetworkInterface,
    DescribeInstances,
    DescribeSubnets,
    DescribeInstanceTypes,
    CreateTags,
}

/// The names under which the peer counts an operation (`contract.md` §21).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PeerNames {
    /// Counter of calls.
    pub(crate) calls: &'static str,
    /// Counter of failed calls.
    pub(crate) errors: &'static str,
    /// Value of the label `api` of `aws_nw_call_latency`; the peer does not time every operation.
    pub(crate) latency: Option<&'static str>,
}

impl Action {
    /// All operations, in the order of their discriminants.
    pub const ALL: [Self; 14] = [
        Self::CreateNetworkInterface,
        Self::DeleteNetworkInterface,
        Self::DescribeNetworkInterfaces,
        Self::ModifyNetworkInterfaceAttribute,
        Self::CreateNetworkInterfacePermission,
        Self::AssociateTrunkInterface,
        Self::DisassociateTrunkInterface,
        Self::DescribeTrunkInterfaceAssociations,
        Self::AttachNetworkInterface,
        Self::DetachNetworkInterface,
        Self::DescribeInstances,
        Self::DescribeSubnets,
        Self::DescribeInstanceTypes,
        Self::CreateTags,
    ];

    /// EC2's name of the operation; a whole reply ends in `</{name}Response>`.
    pub fn name(self) -> &'static str {
        match self {
            Self::CreateNetworkInterface => "CreateNetworkInterface",
            Self::DeleteNetworkInterface => "DeleteNetworkInterface",
            Self::DescribeNetworkInterfaces => "DescribeNetworkInterfaces",
            Self::ModifyNetworkInterfaceAttribute => "ModifyNetworkInterfaceAttribute",
            Self::CreateNetworkInterfacePermission => "CreateNetworkInterfacePermission",
            Self::AssociateTrunkInterface => "AssociateTrunkInterface",
            Self::DisassociateTrunkInterface => "DisassociateTrunkInterface",
            Self::DescribeTrunkInterfaceAssociations => "DescribeTrunkInterfaceAssociations",
            Self::AttachNetworkInterface => "AttachNetworkInterface",
            Self::DetachNetworkInterface => "DetachNetworkInterface",
            Self::DescribeInstances => "DescribeInstances",
            Self::DescribeSubnets => "DescribeSubnets",
            Self::DescribeInstanceTypes => "DescribeInstanceTypes",
            Self::CreateTags => "CreateTags",
        }
    }

    /// EC2's bucket (`ec2.md` §5). Describes are always sent filtered, paginated or by id.
    pub fn limit(self) -> Limit {
        let (burst, refill) = match self {
            Self::CreateNetworkInterface
            | Self::DeleteNetworkInterface
            | Self::ModifyNetworkInterfaceAttribute => (100, 5),
            Self::CreateTags => (100, 10),
            Self::AssociateTrunkInterface
            | Self::DisassociateTrunkInterface
            | Self::AttachNetworkInterface
            | Self::DetachNetworkInterface
            | Self::CreateNetworkInterfacePermission => (50, 5),
            Self::DescribeNetworkInterfaces
            | Self::DescribeTrunkInterfaceAssociations
            | Self::DescribeInstances
            | Self::DescribeSubnets
            | Self::DescribeInstanceTypes => (100, 20),
        };
        Limit { burst, refill }
    }

    /// Whether the operation changes something, so that an attempt without an answer matters.
    pub fn mutates(self) -> bool {
        !matches!(
            self,
            Self::DescribeNetworkInterfaces
                | Self::DescribeTrunkInterfaceAssociations
                | Self::DescribeInstances
                | Self::DescribeSubnets
                | Self::DescribeInstanceTypes
        )
    }

    /// Whether the operation takes something away from a node.
    pub fn releases(self) -> bool {
        matches!(
            self,
            Self::DisassociateTrunkInterface
                | Self::DeleteNetworkInterface
                | Self::DetachNetworkInterface
        )
    }

    /// Whether the operation is done with the controller's own credentials although a role is assumed (`AWS-1`).
    pub(crate) fn by_own_credentials(self) -> bool {
        matches!(
            self,
            Self::AssociateTrunkInterface
                | Self::DisassociateTrunkInterface
                | Self::DescribeTrunkInterfaceAssociations
        )
    }

    /// The name of the SDK's retry quota: one per operation, so that a throttle storm on one does not take the retries
    /// of the others away (`ec2.md` §4).
    pub(crate) fn partition(self) -> String {
        format!("trunkline-{}", self.name())
    }

    pub(crate) fn peer(self) -> Option<PeerNames> {
        let (calls, errors, latency) = match self {
            Self::CreateNetworkInterface => (
                "ec2_create_network_interface_api_req_count",
                "ec2_create_network_interface_api_err_count",
                Some("create_network_interface"),
            ),
            Self::DeleteNetworkInterface => (
                "ec2_delete_network_interface_api_req_count",
                "ec2_delete_network_interface_api_err_count",
                Some("delete_network_interface"),
            ),
            Self::DescribeNetworkInterfaces => (
                "ec2_describe_network_interfaces_pages_api_call_count",
                "ec2_describe_network_interfaces_pages_api_err_count",
                Some("describe_network_interfaces_pages"),
            ),
            Self::ModifyNetworkInterfaceAttribute => (
                "ec2_modify_network_interface_attribute_api_call_count",
                "ec2_modify_network_interface_attribute_api_err_count",
                Some("modify_network_interface_attribute"),
            ),
            Self::CreateNetworkInterfacePermission => (
                "ec2_create_network_interface_permission_api_call_count",
                "ec2_create_network_interface_permission_api_err_count",
                None,
            ),
            Self::AssociateTrunkInterface => (
                "ec2_associate_trunk_interface_api_req_count",
                "ec2_associate_trunk_interface_api_err_count",
                Some("associate_trunk_to_branch"),
            ),
            Self::DisassociateTrunkInterface => (
                "ec2_disassociate_trunk_interface_api_req_count",
                "ec2_disassociate_trunk_interface_api_err_count",
                Some("disassociate_branch_from_trunk"),
            ),
            Self::DescribeTrunkInterfaceAssociations => (
                "ec2_describe_trunk_network_interface_association_api_call_count",
                "ec2_describe_trunk_network_interface_association_api_err_count",
                Some("describe_trunk_association"),
            ),
            Self::AttachNetworkInterface => (
                "ec2_attach_network_interface_api_req_count",
                "ec2_attach_network_interface_api_err_count",
                Some("attach_network_interface"),
            ),
            Self::DetachNetworkInterface => (
                "ec2_detach_network_interface_api_req_count",
                "ec2_detach_network_interface_api_err_count",
                Some("detach_network_interface"),
            ),
            Self::DescribeInstances => (
                "ec2_describe_instances_api_req_count",
                "ec2_describe_instances_api_err_count",
                Some("describe_instances"),
            ),
            Self::DescribeSubnets => (
                "ec2_describe_subnets_api_req_count",
                "ec2_describe_subnets_api_err_count",
                Some("describe_subnets"),
            ),
            Self::CreateTags => (
                "ec2_tag_network_interface_api_req_count",
                "ec2_tag_network_interface_api_err_count",
                Some("create_tags"),
            ),
            Self::DescribeInstanceTypes => return None,
        };
        Some(PeerNames { calls, errors, latency })
    }
}

/// One value per operation.
#[derive(Debug, Clone)]
pub(crate) struct PerAction<T>([T; Action::ALL.len()]);

impl<T> PerAction<T> {
    pub(crate) fn new(make: impl FnMut(Action) -> T) -> Self {
        Self(Action::ALL.map(make))
    }

    pub(crate) fn get(&self, action: Action) -> &T {
        let [first, ..] = &self.0;
        self.0.get(action as usize).unwrap_or(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_finds_its_own_value() {
        let names = PerAction::new(Action::name);
        for action in Action::ALL {
            assert_eq!(*names.get(action), action.name());
        }
    }
}
