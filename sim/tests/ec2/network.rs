//! Subnets, groups and addresses.

use serde_json::json;
use trunkline_sim::ec2::model::{GroupSpec, SubnetSpec};

use super::*;

fn small() -> SubnetSpec {
    serde_json::from_value(json!({
        "id": "subnet-000000000000000aa", "cidr": "10.0.200.0/28", "ipv6_cidr": "2600:1f18:0:9::/64",
        "assign_ipv6": true,
    }))
    .unwrap()
}

#[tokio::test]
async fn a_subnet_runs_full_and_recovers() {
    let sim = Sim::with(json!({"addresses_lifo": true})).await;
    let subnet = sim.client.add_subnet(&small()).await.unwrap();
    let create = [("SubnetId", subnet.as_str())];
    let mut enis = Vec::new();
    for _ in 0..11 {
        let made = sim.ok("CreateNetworkInterface", &create).await;
        enis.push(made.element("networkInterfaceId").unwrap().to_owned());
    }
    let full = sim
        .refused("CreateNetworkInterface", &create, 400, "InsufficientFreeAddressesInSubnet")
        .await;
    assert!(full.element("Message").unwrap().contains("does not have enough free addresses"));
    let shown = sim.ok("DescribeSubnets", &[("SubnetId.1", &subnet)]).await;
    assert_eq!(shown.element("availableIpAddressCount"), Some("0"));
    assert_eq!(shown.element("ipv6CidrBlock"), Some("2600:1f18:0:9::/64"));
    let back = sim.truth(&enis[4]).await.unwrap().ipv4;
    sim.ok("DeleteNetworkInterface", &[("NetworkInterfaceId", &enis[4])]).await;
    let made = sim.ok("CreateNetworkInterface", &create).await;
    assert_eq!(
        made.element("privateIpAddress"),
        Some(back.to_string().as_str()),
        "last in, first out"
    );
    assert!(made.element("ipv6Address").unwrap().starts_with("2600:1f18:0:9:"));
    let taken = [("SubnetId", subnet.as_str()), ("PrivateIpAddress", &back.to_string())];
    sim.refused("CreateNetworkInterface", &taken, 400, "InvalidIPAddress.InUse").await;
}

#[tokio::test]
async fn the_free_count_may_be_old() {
    let sim = Sim::with(json!({"lag": {"free_count": [600_000, 600_000]}})).await;
    let subnet = sim.client.add_subnet(&small()).await.unwrap();
    let by_id = [("SubnetId.1", subnet.as_str())];
    assert_eq!(
        sim.ok("DescribeSubnets", &by_id).await.element("availableIpAddressCount"),
        Some("11")
    );
    sim.ok("CreateNetworkInterface", &[("SubnetId", &subnet), ("Ipv6AddressCount", "0")]).await;
    assert_eq!(
        sim.ok("DescribeSubnets", &by_id).await.element("availableIpAddressCount"),
        Some("11")
    );
    let state = sim.client.state().await.unwrap();
    assert_eq!(state.subnets.iter().find(|s| s.id == subnet).unwrap().free, 10);
}

#[tokio::test]
async fn addresses_and_prefixes_come_and_go() {
    let sim = Sim::plain().await;
    let eni = sim.eni(&[("SecondaryPrivateIpAddressCount", "1")]).await;
    let id = ("NetworkInterfaceId", eni.as_str());
    let v4 =
        sim.ok("AssignPrivateIpAddresses", &[id, ("SecondaryPrivateIpAddressCount", "2")]).await;
    let addresses: Vec<&str> = v4.elements("privateIpAddress").collect();
    assert_eq!(addresses.len(), 2);
    sim.ok("AssignPrivateIpAddresses", &[id, ("Ipv4Prefix.1", "10.0.32.16/28")]).await;
    let v6 = sim.ok("AssignIpv6Addresses", &[id, ("Ipv6AddressCount", "1")]).await;
    let v6 = v6.element("item").unwrap();
    let truth = sim.truth(&eni).await.unwrap();
    assert_eq!(
        (truth.secondary_ipv4.len(), truth.ipv4_prefixes.len(), truth.ipv6.len()),
        (3, 1, 1)
    );
    let both = [id, ("SecondaryPrivateIpAddressCount", "1"), ("Ipv4PrefixCount", "1")];
    sim.refused("AssignPrivateIpAddresses", &both, 400, "InvalidParameterCombination").await;
    let primary = truth.ipv4.to_string();
    let foreign = [id, ("PrivateIpAddress.1", primary.as_str())];
    sim.refused("UnassignPrivateIpAddresses", &foreign, 400, "InvalidParameterValue").await;
    let two = [id, ("PrivateIpAddress.1", addresses[0]), ("Ipv4Prefix.1", &truth.ipv4_prefixes[0])];
    sim.ok("UnassignPrivateIpAddresses", &two).await;
    sim.ok("UnassignIpv6Addresses", &[id, ("Ipv6Addresses.1", v6)]).await;
    let truth = sim.truth(&eni).await.unwrap();
    assert_eq!(
        (truth.secondary_ipv4.len(), truth.ipv4_prefixes.len(), truth.ipv6.len()),
        (2, 0, 0)
    );
}

#[tokio::test]
async fn groups_come_go_and_belong_to_a_vpc() {
    let sim = Sim::plain().await;
    let elsewhere = GroupSpec {
        id: String::new(),
        name: "elsewhere".into(),
        vpc: "vpc-000000000000000ff".into(),
        tags: [].into(),
    };
    let foreign = sim.client.add_group(&elsewhere).await.unwrap();
    let subnet = subnet_id(1);
    let create = [("SubnetId", subnet.as_str()), ("SecurityGroupId.1", foreign.as_str())];
    sim.refused("CreateNetworkInterface", &create, 400, "InvalidSecurityGroupID.NotFound").await;
    let listed = sim.ok("DescribeSecurityGroups", &[("GroupName.1", "elsewhere")]).await;
    assert_eq!(listed.element("groupId"), Some(foreign.as_str()));
    let third = group_id(3);
    sim.client.delete_group(&third).await.unwrap();
    let gone = [("SubnetId", subnet.as_str()), ("SecurityGroupId.1", third.as_str())];
    sim.refused("CreateNetworkInterface", &gone, 400, "InvalidGroup.NotFound").await;
}
