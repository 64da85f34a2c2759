//! What a simulator starts with.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::fault::Fault;
use super::model::{GroupSpec, InstanceSpec, SubnetSpec};
use super::switches::Switches;

/// The start state. As JSON every field may be left out; the defaults are one VPC `10.0.0.0/16` with a /18 subnet in each
/// of three zones and nine security groups (see [`subnet_id`] and [`group_id`]).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where to listen; port 0 for any free one.
    pub bind: SocketAddr,
    /// Seed of everything random: ids, addresses, lags, faults.
    pub seed: u64,
    /// Region.
    pub region: String,
    /// Account that owns everything unless said otherwise.
    pub account: String,
    /// Accounts of access key ids that are not the default one's.
    pub accounts: BTreeMap<String, String>,
    /// VPC id.
    pub vpc: String,
    /// Subnets; the first is the default for instances and ENIs.
    pub subnets: Vec<SubnetSpec>,
    /// Security groups. The first is the VPC's default, the second the nodes'.
    pub security_groups: Vec<GroupSpec>,
    /// Instances that run from the start.
    pub instances: Vec<InstanceSpec>,
    /// Switches.
    pub switches: Switches,
    /// Faults that are set from the start.
    pub faults: Vec<Fault>,
}

/// Id of the default VPC.
pub const VPC_ID: &str = "vpc-00000000000000001";

/// Id of the `n`-th default subnet, 1 to 3: zones a to c.
pub fn subnet_id(n: u8) -> String {
    format!("subnet-{n:017x}")
}

/// Id of the `n`-th default security group, 1 to 9: 1 is the VPC's default, 2 the nodes', the rest are for pods.
pub fn group_id(n: u8) -> String {
    format!("sg-{n:017x}")
}

impl Default for Config {
    fn default() -> Self {
        let region = "eu-west-1".to_owned();
        let subnets = (1..=3_u8)
            .map(|n| SubnetSpec {
                id: subnet_id(n),
                cidr: format!("10.0.{}.0/18", u32::from(n - 1) * 64),
                ipv6_cidr: Some(format!("2600:1f18:0:{n}::/64")),
                assign_ipv6: false,
                zone: format!("{region}{}", char::from(b'a' + n - 1)),
                vpc: VPC_ID.into(),
                tags: BTreeMap::new(),
            })
            .collect();
        let security_groups = (1..=9_u8)
            .map(|n| GroupSpec {
                id: group_id(n),
                name: match n {
                    1 => "default".to_owned(),
                    2 => "nodes".to_owned(),
                    n => format!("pods-{}", n - 2),
                },
                vpc: VPC_ID.into(),
                tags: BTreeMap::new(),
            })
            .collect();
        Self {
            bind: SocketAddr::from(([127, 0, 0, 1], 0)),
            seed: 1,
            region,
            account: "123456789012".into(),
            accounts: BTreeMap::new(),
            vpc: VPC_ID.into(),
            subnets,
            security_groups,
            instances: Vec::new(),
            switches: Switches::default(),
            faults: Vec::new(),
        }
    }
}

impl Config {
    /// No lag and no throttling ([`Switches::plain`]).
    pub fn plain() -> Self {
        Self { switches: Switches::plain(), ..Self::default() }
    }
}
