//! What EC2 answers when it refuses. Statuses and codes: `ec2.md` §8 and §13 row 22.

/// A refusal: HTTP status, code, message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: u16,
    pub(crate) code: String,
    pub(crate) message: String,
}

impl ApiError {
    pub(crate) fn new(status: u16, code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { status, code: code.into(), message: message.into() }
    }

    /// Status 400.
    pub(crate) fn bad(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(400, code, message)
    }

    pub(crate) fn value(message: impl Into<String>) -> Self {
        Self::bad("InvalidParameterValue", message)
    }

    pub(crate) fn combination(message: impl Into<String>) -> Self {
        Self::bad("InvalidParameterCombination", message)
    }

    pub(crate) fn missing(parameter: &str) -> Self {
        Self::bad("MissingParameter", format!("The request must contain the parameter {parameter}"))
    }

    pub(crate) fn throttled() -> Self {
        Self::new(503, "RequestLimitExceeded", "Request limit exceeded.")
    }

    pub(crate) fn unauthorized() -> Self {
        Self::new(403, "UnauthorizedOperation", "You are not authorized to perform this operation.")
    }

    pub(crate) fn no_eni(id: &str) -> Self {
        Self::bad(
            "InvalidNetworkInterfaceID.NotFound",
            format!("The networkInterface ID '{id}' does not exist"),
        )
    }

    pub(crate) fn no_association(id: &str) -> Self {
        Self::bad(
            "InvalidAssociationID.NotFound",
            format!("The association ID '{id}' does not exist"),
        )
    }

    pub(crate) fn no_instance(id: &str) -> Self {
        Self::bad("InvalidInstanceID.NotFound", format!("The instance ID '{id}' does not exist"))
    }

    pub(crate) fn no_subnet(id: &str) -> Self {
        Self::bad("InvalidSubnetID.NotFound", format!("The subnet ID '{id}' does not exist"))
    }

    pub(crate) fn vlan_in_use(vlan: u32) -> Self {
        Self::bad("InvalidVlanId.Duplicate", format!("VlanId '{vlan}' is in use"))
    }

    pub(crate) fn mismatch() -> Self {
        Self::bad(
            "IdempotentParameterMismatch",
            "The request uses the same client token as a previous, but non-identical request.",
        )
    }

    pub(crate) fn subnet_full() -> Self {
        Self::bad(
            "InsufficientFreeAddressesInSubnet",
            "The specified subnet does not have enough free addresses to satisfy the request.",
        )
    }
}

/// Checks the shape of an EC2 id: `prefix` and 8 or 17 lower-case hex digits.
pub(crate) fn is_ec2_id(id: &str, prefix: &str) -> bool {
    id.strip_prefix(prefix).is_some_and(|rest| {
        (rest.len() == 8 || rest.len() == 17)
            && rest.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
}
