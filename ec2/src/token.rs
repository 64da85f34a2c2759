//! Client tokens (design §5).
//!
//! A call that is repeated after a lost reply must carry the same token, also from another process after a restart, so
//! tokens are derived from what the call is about. The nonce is empty until a mismatch, or a NotFound for the id that
//! was returned, has been read back through the consistency window; each such read-back takes the next one.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};
use trunkline_core::eni::{AssociateBranch, CreateBranch};
use trunkline_core::id::{AssociationId, ClusterName, InstanceId};

/// The first 32 hex digits of the SHA-256 over the fields, joined by NUL.
fn derive(fields: &[&str]) -> String {
    let digest = Sha256::digest(fields.join("\0").as_bytes());
    digest.iter().take(16).fold(String::with_capacity(32), |mut token, byte| {
        let _ = write!(token, "{byte:02x}");
        token
    })
}

fn nonce(number: u32) -> String {
    if number == 0 { String::new() } else { number.to_string() }
}

/// `CreateNetworkInterface` of a branch.
pub(crate) fn create(cluster: &ClusterName, create: &CreateBranch) -> String {
    derive(&[
        "create",
        cluster.as_str(),
        create.trunk.as_str(),
        create.pod.uid.as_str(),
        &create.index.to_string(),
        create.replaced.as_ref().map_or("", |old| old.eni.as_str()),
        &nonce(create.nonce),
    ])
}

/// `CreateNetworkInterface` of a trunk.
pub(crate) fn create_trunk(cluster: &ClusterName, instance: &InstanceId, number: u32) -> String {
    derive(&["create-trunk", cluster.as_str(), instance.as_str(), &nonce(number)])
}

/// `AssociateTrunkInterface`.
pub(crate) fn associate(associate: &AssociateBranch) -> String {
    derive(&[
        "associate",
        associate.branch.as_str(),
        associate.trunk.as_str(),
        &associate.vlan.to_string(),
        &nonce(associate.nonce),
    ])
}

/// `DisassociateTrunkInterface`.
pub(crate) fn disassociate(association: &AssociationId) -> String {
    derive(&["disassociate", association.as_str()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn branch() -> AssociateBranch {
        AssociateBranch {
            branch: "eni-0aaaaaaaaaaaaaaa1".parse().unwrap(),
            trunk: "eni-0bbbbbbbbbbbbbbb2".parse().unwrap(),
            vlan: "7".parse().unwrap(),
            nonce: 0,
        }
    }

    #[test]
    fn tokens_are_the_first_32_hex_digits_of_sha256_over_nul_joined_fields() {
        // printf 'disassociate\0trunk-assoc-0123' | sha256sum
        let token = disassociate(&"trunk-assoc-0123".parse().unwrap());
        assert_eq!(token, "64c92df419fee283dd18f693da30a360");
        assert_eq!(token.len(), 32);
    }

    #[test]
    fn the_same_call_has_the_same_token_and_every_field_counts() {
        let first = associate(&branch());
        assert_eq!(associate(&branch()), first);
        let others = [
            AssociateBranch { vlan: "8".parse().unwrap(), ..branch() },
            AssociateBranch { nonce: 1, ..branch() },
            AssociateBranch { branch: branch().trunk, trunk: branch().branch, ..branch() },
        ];
        for other in others {
            assert_ne!(associate(&other), first);
        }
    }
}
