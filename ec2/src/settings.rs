//! What the adapter has to be told, and what it asks of its owner.

use aws_credential_types::Credentials;
use trunkline_core::id::{ClusterName, VpcId};
use trunkline_core::time::Timing;

use crate::action::Action;

/// Whether this process may still act. Asked before every attempt, retries inside the SDK included (design §4.3).
///
/// The answer must turn `true` at least one [`Timing::ec2_attempt`] before another process may act in our place: an
/// attempt that was let through may take that long to reach EC2.
pub trait LeaseDeadline: Send + Sync + 'static {
    /// Whether the deadline has passed.
    fn expired(&self) -> bool;

    /// Whether the mode in force forbids this operation (`IDEA-12`). A call that waits for its budget, or for a retry, when
    /// the mode changes is not sent.
    fn forbidden(&self, _action: Action) -> bool {
        false
    }
}

/// Settings of [`crate::Ec2`].
#[derive(Debug, Clone)]
pub struct Settings {
    /// Cluster, for tags, filters and client tokens.
    pub cluster: ClusterName,
    /// The cluster's VPC; ENIs of other VPCs are never ours.
    pub vpc: VpcId,
    /// `--aws-region`; without it the SDK's default chain (environment, profile, instance metadata).
    pub region: Option<String>,
    /// `--aws-account-id`: the account of our own credentials. Without it STS is asked, and only where it matters (with
    /// a role).
    pub account: Option<String>,
    /// `--ec2-endpoint`; without it the SDK's default, `AWS_ENDPOINT_URL_EC2` included.
    pub endpoint: Option<String>,
    /// Endpoint of STS; without it the SDK's default, which is the region's.
    pub sts_endpoint: Option<String>,
    /// `--role-arn` (`AWS-1`): assumed for everything but associations. Quotes around it are ignored (`AWS-3`).
    pub role_arn: Option<String>,
    /// Fixed credentials; without them the SDK's default chain (web identity, instance metadata, environment).
    pub credentials: Option<Credentials>,
    /// Whether our own token buckets hold calls back (design §7). Off only where EC2's are off too.
    pub budget: bool,
    /// [`Timing::ec2_attempt`] and [`Timing::ec2_operation`] are used.
    pub timing: Timing,
}

impl Settings {
    /// Settings with everything else at its default.
    pub fn new(cluster: ClusterName, vpc: VpcId) -> Self {
        Self {
            cluster,
            vpc,
            region: None,
            account: None,
            endpoint: None,
            sts_endpoint: None,
            role_arn: None,
            credentials: None,
            budget: true,
            timing: Timing::default(),
        }
    }
}

/// Why [`crate::Ec2`] could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// Nothing names a region.
    #[error("no AWS region: set --aws-region or AWS_REGION; instance metadata did not tell one")]
    NoRegion,
    /// `--role-arn` (`AWS-3`).
    #[error(
        "--role-arn: '{0}' is not the ARN of an IAM role (arn:<partition>:iam::<account>:role/<name>)"
    )]
    InvalidRole(String),
    /// Our account is needed to grant the permission of a foreign account's ENIs.
    #[error("failed to learn the own AWS account from STS, set --aws-account-id: {0}")]
    NoAccount(String),
}

/// A role's ARN, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Role {
    pub(crate) arn: String,
    pub(crate) partition: String,
    pub(crate) account: String,
}

impl Role {
    pub(crate) fn parse(text: &str) -> Result<Self, SetupError> {
        let arn = text.trim().trim_matches(['"', '\'']).trim();
        let refused = || SetupError::InvalidRole(arn.chars().take(200).collect());
        let parts: Vec<&str> = arn.splitn(6, ':').collect();
        let ["arn", partition, "iam", "", account, resource] = parts[..] else {
            return Err(refused());
        };
        let valid = !partition.is_empty()
            && account.len() == 12
            && account.bytes().all(|b| b.is_ascii_digit())
            && resource.strip_prefix("role/").is_some_and(|name| !name.is_empty());
        if valid {
            Ok(Self { arn: arn.into(), partition: partition.into(), account: account.into() })
        } else {
            Err(refused())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_arn_may_be_quoted_and_everything_else_is_refused() {
        let role = Role::parse("\"arn:aws-cn:iam::123456789012:role/path/ec2\"").unwrap();
        assert_eq!(role.arn, "arn:aws-cn:iam::123456789012:role/path/ec2");
        assert_eq!((role.partition.as_str(), role.account.as_str()), ("aws-cn", "123456789012"));
        for text in [
            "",
            "ec2",
            "arn:aws:iam::123456789012:user/x",
            "arn:aws:iam::12345:role/x",
            "arn:aws:iam::123456789012:role/",
        ] {
            assert!(Role::parse(text).is_err(), "{text}");
        }
    }
}
