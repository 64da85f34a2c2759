//! What is not known about EC2, and what a run may want to vary: the defaults of `ec2.md` §13 with their other sides,
//! throttling (§5), latency and lag (§7). All of it can be given at the start and changed while the simulator runs.

use std::collections::BTreeMap;

use rand::Rng;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};

/// All switches. As JSON every field may be left out.
// Each flag is a question about EC2 of its own.
#[allow(clippy::struct_excessive_bools)]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Switches {
    /// Token buckets (§5; rows 12 and 13).
    pub throttle: Throttle,
    /// How long calls take.
    pub latency: Latency,
    /// When changes become visible (§7; rows 5, 11, 15 to 17, 20).
    pub lag: Lag,
    /// Quotas and limits (§10; rows 2, 4, 24).
    pub limits: Limits,
    /// Row 1: code for a branch that is associated already: `InvalidParameterValue` or `InvalidNetworkInterface.InUse`.
    pub already_associated_code: String,
    /// Row 2: code beyond the branch limit: `AttachmentLimitExceeded`, `InvalidParameterValue`, or any other (§14.10).
    pub branch_limit_code: String,
    /// Row 6: `interfaceType` after disassociation: `branch` or `interface`.
    pub disassociated_type: String,
    /// Row 8: replay of a Create token after the ENI was deleted.
    pub create_replay_after_delete: AfterDelete,
    /// Row 8: how long tokens are remembered, ms.
    pub token_ms: u64,
    /// Row 10: DescribeTrunkInterfaceAssociations.
    pub associations_api: AssociationsApi,
    /// Row 18: addresses come back last in, first out, instead of at random.
    pub addresses_lifo: bool,
    /// Row 19: life of a page token, ms.
    pub page_token_ms: u64,
    /// Row 21: code for an unknown filter: `InvalidParameterValue` or `InvalidFilter`.
    pub unknown_filter_code: String,
    /// Row 25: Create with `InterfaceType=branch` is refused.
    pub refuse_branch_type: bool,
    /// `AWS-7`: the account may make trunks.
    pub trunks_allowed: bool,
    /// `UnauthorizedOperation` for these (§14.22).
    pub unauthorized: Vec<Refusal>,
    /// `AuthFailure` for every call.
    pub auth_failure: bool,
    /// Replies are sent chunked, as real EC2 does; else with a Content-Length.
    pub chunked: bool,
}

/// A refused action, for everyone or for one caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// Action; `*` at its end stands for any rest.
    pub action: String,
    /// Access key id; everyone if absent.
    #[serde(default)]
    pub caller: Option<String>,
}

/// What a Create token does after its ENI was deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AfterDelete {
    /// The same id, which describe does not find.
    SameId,
    /// `IdempotentParameterMismatch`.
    Mismatch,
}

/// What DescribeTrunkInterfaceAssociations does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AssociationsApi {
    /// Works, with the documented filters and VRC's.
    Works,
    /// `UnauthorizedOperation`, always.
    Unauthorized,
    /// Works, with the documented filters; VRC's is `InvalidFilter`.
    DocumentedFilters,
}

/// Token buckets (§5).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Throttle {
    /// Off: no call is ever refused for its rate.
    pub enabled: bool,
    /// Burst and refill are multiplied by this.
    pub scale: f64,
    /// Row 12: the trunk actions have 20/2 instead of 50/5.
    pub slow_trunk_actions: bool,
    /// Row 13: refused calls spend a token.
    pub failures_spend: bool,
    /// A noisy neighbour: tokens it takes per second, by action (§14.1).
    pub neighbour: BTreeMap<String, f64>,
    /// Other sizes, by action.
    pub sizes: BTreeMap<String, BucketSize>,
}

/// Size of one bucket.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BucketSize {
    /// Tokens at most.
    pub burst: f64,
    /// Tokens a second.
    pub refill: f64,
}

/// How long calls take, before and after their effect half each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Latency {
    /// Of every action, ms.
    pub default_ms: u64,
    /// Of single actions, ms.
    pub actions: BTreeMap<String, u64>,
    /// Spread: a call takes between (1 - jitter) and (1 + jitter) times as long.
    pub jitter: f64,
}

/// A range in ms, both ends possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range(pub u64, pub u64);

impl Range {
    /// No time at all.
    pub const NONE: Self = Self(0, 0);

    pub(crate) fn pick(self, rng: &mut StdRng) -> u64 {
        if self.0 >= self.1 { self.0 } else { rng.random_range(self.0..=self.1) }
    }
}

/// When a change becomes visible. Ranges in ms; each change draws its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Lag {
    /// A new ENI is NotFound by id (§7: about 1 s).
    pub create_by_id: Range,
    /// A new ENI is missing from lists.
    pub create_list: Range,
    /// `pending` until `available` (row 16).
    pub pending: Range,
    /// After Disassociate: VLAN and slot still taken, status unchanged (row 5).
    pub disassociate: Range,
    /// After that: lists still show the old status (row 5).
    pub disassociate_list: Range,
    /// After Associate: describes show the status of before.
    pub associate: Range,
    /// Groups after Modify (row 17).
    pub groups: Range,
    /// Tags after CreateTags and DeleteTags.
    pub tags: Range,
    /// A deleted ENI is still listed.
    pub delete_list: Range,
    /// `attaching` until `attached`.
    pub attach: Range,
    /// `detaching` until gone.
    pub detach: Range,
    /// Branches of a dead instance until `available` (row 15).
    pub terminate: Range,
    /// Age of `availableIpAddressCount` (row 20).
    pub free_count: Range,
    /// A permission is pending; Associate from another account fails meanwhile (row 11).
    pub permission: Range,
    /// Share of describes that are answered by a replica which lags behind, and by how much (§14.7).
    pub stale_share: f64,
    /// How far such a replica lags behind.
    pub stale: Range,
}

/// Quotas and limits (§10).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// ENIs in the Region (row 24).
    pub enis: usize,
    /// Security groups of one ENI.
    pub groups_per_eni: usize,
    /// Branches by instance type, instead of the table.
    pub branches: BTreeMap<String, u32>,
    /// Count branches plus extra ENIs against a common ceiling (§10), instead of the table's branches.
    pub common_ceiling: bool,
    /// Row 4: the highest VLAN id; 4094 or 120.
    pub vlan_max: u32,
    /// DescribeNetworkInterfaces with neither page size nor narrow filter fails above this many ENIs.
    pub unpaged_enis: usize,
}

impl Default for Switches {
    fn default() -> Self {
        Self {
            throttle: Throttle::default(),
            latency: Latency::default(),
            lag: Lag::default(),
            limits: Limits::default(),
            already_associated_code: "InvalidParameterValue".into(),
            branch_limit_code: "AttachmentLimitExceeded".into(),
            disassociated_type: "branch".into(),
            create_replay_after_delete: AfterDelete::SameId,
            token_ms: 24 * 3_600_000,
            associations_api: AssociationsApi::Works,
            addresses_lifo: false,
            page_token_ms: 3_600_000,
            unknown_filter_code: "InvalidParameterValue".into(),
            refuse_branch_type: false,
            trunks_allowed: true,
            unauthorized: Vec::new(),
            auth_failure: false,
            chunked: true,
        }
    }
}

impl Default for Throttle {
    fn default() -> Self {
        Self {
            enabled: true,
            scale: 1.0,
            slow_trunk_actions: false,
            failures_spend: true,
            neighbour: BTreeMap::new(),
            sizes: BTreeMap::new(),
        }
    }
}

impl Default for Latency {
    fn default() -> Self {
        Self { default_ms: 0, actions: BTreeMap::new(), jitter: 0.0 }
    }
}

impl Latency {
    pub(crate) fn of(&self, action: &str, rng: &mut StdRng) -> u64 {
        let ms = self.actions.get(action).copied().unwrap_or(self.default_ms);
        let spread = self.jitter.clamp(0.0, 1.0);
        if ms == 0 || spread == 0.0 {
            return ms;
        }
        let per_mille = (spread * 1000.0).round();
        // `spread` is at most 1, so this fits.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let per_mille = per_mille as u64;
        ms * rng.random_range(1000 - per_mille..=1000 + per_mille) / 1000
    }
}

impl Default for Lag {
    fn default() -> Self {
        Self {
            create_by_id: Range(0, 1000),
            create_list: Range(0, 2000),
            pending: Range(0, 2000),
            disassociate: Range(0, 2000),
            disassociate_list: Range(0, 10_000),
            associate: Range::NONE,
            groups: Range(0, 5000),
            tags: Range::NONE,
            delete_list: Range(0, 2000),
            attach: Range(0, 2000),
            detach: Range(0, 2000),
            terminate: Range(0, 30_000),
            free_count: Range(0, 30_000),
            permission: Range::NONE,
            stale_share: 0.0,
            stale: Range::NONE,
        }
    }
}

impl Lag {
    /// Every change is visible at once.
    pub fn none() -> Self {
        let none = Range::NONE;
        Self {
            create_by_id: none,
            create_list: none,
            pending: none,
            disassociate: none,
            disassociate_list: none,
            associate: none,
            groups: none,
            tags: none,
            delete_list: none,
            attach: none,
            detach: none,
            terminate: none,
            free_count: none,
            permission: none,
            stale_share: 0.0,
            stale: none,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            enis: 5000,
            groups_per_eni: 5,
            branches: BTreeMap::new(),
            common_ceiling: false,
            vlan_max: 4094,
            unpaged_enis: 20_000,
        }
    }
}

impl Switches {
    /// Every change visible at once, and no throttling: for tests whose subject is neither.
    pub fn plain() -> Self {
        Self {
            lag: Lag::none(),
            throttle: Throttle { enabled: false, ..Throttle::default() },
            ..Self::default()
        }
    }

    /// These switches with the fields of `patch` replaced (JSON merge patch). Unknown fields are errors.
    pub fn patched(&self, patch: &serde_json::Value) -> Result<Self, serde_json::Error> {
        let mut value = serde_json::to_value(self)?;
        merge(&mut value, patch);
        serde_json::from_value(value)
    }
}

fn merge(into: &mut serde_json::Value, patch: &serde_json::Value) {
    let (Some(target), Some(fields)) = (into.as_object_mut(), patch.as_object()) else {
        *into = patch.clone();
        return;
    };
    for (key, value) in fields {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(serde_json::Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_changes_single_fields_and_refuses_misspelt_ones() {
        let patch = serde_json::json!({"throttle": {"enabled": false, "neighbour": {"DescribeSubnets": 3.0}}});
        let patched = Switches::default().patched(&patch).unwrap();
        assert!(!patched.throttle.enabled);
        assert!(patched.throttle.failures_spend);
        assert!(Switches::default().patched(&serde_json::json!({"trottle": {}})).is_err());
        let back = patched.patched(&serde_json::json!({"throttle": null})).unwrap();
        assert_eq!(back, Switches::default());
    }
}
