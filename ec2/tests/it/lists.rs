//! A list is whole or an error.

use std::collections::BTreeMap;

use serde_json::json;
use trunkline_core::eni::{Ec2Call, EniRecord, FailureClass, tag};
use trunkline_sim::ec2::config::subnet_id;
use trunkline_sim::ec2::fault::{Fault, FaultKind, PageFault};
use trunkline_sim::ec2::model::{EniSpec, GroupSpec, SubnetSpec};

use crate::support::{CLUSTER, Lease, POD, Reply, World, adapter, scripted, settings};

const DESCRIBE: &str = "DescribeNetworkInterfaces";
const ASSOCIATIONS: &str = "DescribeTrunkInterfaceAssociations";

fn tags(cluster: &str, owner: &str) -> BTreeMap<String, String> {
    [
        (tag::OWNER.to_owned(), owner.to_owned()),
        (format!("{}{cluster}", tag::CLUSTER_PREFIX), "owned".into()),
    ]
    .into()
}

async fn many(world: &World, count: usize) {
    let spec = EniSpec {
        tags: tags(CLUSTER, tag::OWNER_VALUE),
        subnet: subnet_id(2),
        ..EniSpec::default()
    };
    for _ in 0..count {
        world.sim.add_eni(&spec).await.unwrap();
    }
}

async fn inventory(world: &World) -> Result<Vec<EniRecord>, FailureClass> {
    world.ec2.inventory(POD).await.map_err(|f| f.class)
}

#[tokio::test]
async fn the_inventory_is_read_in_pages_of_1000_and_holds_exactly_ours() {
    let world = World::start().await;
    many(&world, 1_100).await;
    // Look-alikes: another cluster's, the CNI's, untagged, and one with our tags in another VPC.
    for tags in [tags("green", tag::OWNER_VALUE), tags(CLUSTER, "amazon-vpc-cni"), BTreeMap::new()]
    {
        world.sim.add_eni(&EniSpec { tags, ..EniSpec::default() }).await.unwrap();
    }
    let vpc = "vpc-00000000000000009".to_owned();
    let subnet = SubnetSpec {
        id: String::new(),
        cidr: "10.9.0.0/24".into(),
        ipv6_cidr: None,
        assign_ipv6: false,
        zone: String::new(),
        vpc: vpc.clone(),
        tags: BTreeMap::new(),
    };
    let subnet = world.sim.add_subnet(&subnet).await.unwrap();
    let group = GroupSpec { id: String::new(), name: "other".into(), vpc, tags: BTreeMap::new() };
    let group = world.sim.add_group(&group).await.unwrap();
    let copy = EniSpec {
        subnet,
        groups: vec![group],
        tags: tags(CLUSTER, tag::OWNER_VALUE),
        ..EniSpec::default()
    };
    let copy = world.sim.add_eni(&copy).await.unwrap();

    let found = inventory(&world).await.unwrap();
    assert_eq!(found.len(), 1_101, "1,100 and the trunk");
    assert!(found.iter().all(|eni| eni.id.as_str() != copy));
    let calls = world.calls(DESCRIBE).await;
    assert_eq!(calls.len(), 2);
    assert!(calls.iter().all(|c| c.params.get("MaxResults").map(String::as_str) == Some("1000")));
    let failure = world.ec2.call(Ec2Call::Describe(copy.parse().unwrap()), POD).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::Configuration, "{failure}");
}

#[tokio::test]
async fn odd_paging_gives_the_whole_list_or_an_error() {
    let world = World::start().await;
    many(&world, 1_100).await;
    for (how, whole) in
        [(PageFault::Empty, true), (PageFault::EmptyToken, true), (PageFault::RepeatToken, false)]
    {
        let name = format!("{how:?}");
        let fault = Fault::on(DESCRIBE, FaultKind::Page { how }).from_nth(2).times(1);
        let fault = world.sim.inject(&fault).await.unwrap();
        let found = inventory(&world).await;
        match found {
            Ok(found) => assert_eq!((found.len(), whole), (1_101, true), "{name}"),
            Err(class) => {
                assert_eq!((class, whole), (FailureClass::OutcomeUnknown, false), "{name}");
            }
        }
        let fired: Vec<u64> =
            world.sim.faults().await.unwrap().iter().map(|(_, fired)| *fired).collect();
        assert_eq!(fired, [1], "{name}");
        world.sim.clear_faults(Some(&fault)).await.unwrap();
    }
}

#[tokio::test]
async fn an_error_on_a_later_page_throws_the_list_away() {
    let world = World::start().await;
    many(&world, 1_100).await;
    let refusals = [
        (503, "Unavailable", 3),
        (400, "InvalidPaginationToken", 1),
        (403, "UnauthorizedOperation", 1),
    ];
    for (status, code, times) in refusals {
        let kind = FaultKind::Error { status, code: code.into(), message: String::new() };
        let fault =
            world.sim.inject(&Fault::on(DESCRIBE, kind).from_nth(2).times(times)).await.unwrap();
        assert!(inventory(&world).await.is_err(), "{code}");
        world.sim.clear_faults(Some(&fault)).await.unwrap();
    }
    assert_eq!(inventory(&world).await.unwrap().len(), 1_101);
}

#[tokio::test]
async fn a_cut_list_is_an_error_or_whole_at_every_percent_and_framing() {
    let world = World::start().await;
    many(&world, 8).await;
    for bad_framing in [false, true] {
        for percent in (0..=100).step_by(if bad_framing { 25 } else { 1 }) {
            let kind = FaultKind::CutBody { percent, bad_framing };
            let fault = world.sim.inject(&Fault::on(DESCRIBE, kind)).await.unwrap();
            match inventory(&world).await {
                Ok(found) => assert_eq!((percent, found.len()), (100, 9)),
                Err(class) => assert_eq!(class, FailureClass::OutcomeUnknown, "{percent} %"),
            }
            world.sim.clear_faults(Some(&fault)).await.unwrap();
        }
    }
}

#[tokio::test]
async fn one_reply_cut_at_every_byte_is_never_a_short_list() {
    let item = |id: &str| {
        format!(
            "<item><networkInterfaceId>{id}</networkInterfaceId><subnetId>subnet-00000001</subnetId>\
             <vpcId>vpc-00000000000000001</vpcId><macAddress>02:00:00:00:00:01</macAddress><tagSet>\
             <item><key>eks:eni:owner</key><value>eks-vpc-resource-controller</value></item>\
             <item><key>kubernetes.io/cluster/blue</key><value>owned</value></item></tagSet></item>"
        )
    };
    let whole = format!(
        "<DescribeNetworkInterfacesResponse><networkInterfaceSet>{}{}</networkInterfaceSet>\
         </DescribeNetworkInterfacesResponse>",
        item("eni-00000001"),
        item("eni-00000002"),
    );
    let length = whole.len();
    let mut cut = 0;
    let server = scripted(move |_| {
        cut += 1;
        Reply::Body(200, whole[..cut].to_owned())
    })
    .await;
    let ec2 = adapter(settings(&server.url), Lease::endless()).await;
    for cut in 1..=length {
        let found = ec2.inventory(POD).await;
        assert_eq!(found.is_ok(), cut == length, "cut at {cut} of {length}: {found:?}");
        if let Ok(found) = found {
            assert_eq!(found.len(), 2);
        }
    }
}

#[tokio::test]
async fn an_item_that_cannot_be_read_spoils_the_list() {
    let world = World::start().await;
    for element in ["networkInterfaceId", "macAddress", "subnetId", "vpcId"] {
        let kind = FaultKind::Omit { elements: vec![element.into()] };
        let fault = world.sim.inject(&Fault::on(DESCRIBE, kind)).await.unwrap();
        assert_eq!(inventory(&world).await, Err(FailureClass::OutcomeUnknown), "{element}");
        world.sim.clear_faults(Some(&fault)).await.unwrap();
    }
}

#[tokio::test]
async fn associations_are_listed_where_the_call_is_allowed() {
    let world = World::start().await;
    let (eni, association) = world.branch(7).await;
    let foreign =
        EniSpec { trunk: Some(world.trunk.to_string()), vlan: Some(4_000), ..EniSpec::default() };
    world.sim.add_eni(&foreign).await.unwrap();
    let listed = world.ec2.associations(POD).await.unwrap();
    assert_eq!(listed.len(), 2);
    let own = listed.iter().find(|a| a.id == association.id).unwrap();
    assert_eq!(
        (&own.branch, &own.trunk, own.vlan),
        (&eni.id, &world.trunk, Some(association.vlan))
    );
    assert!(listed.iter().any(|a| a.vlan.is_none()));
    world.sim.set_switches(&json!({"associations_api": "unauthorized"})).await.unwrap();
    assert_eq!(world.ec2.associations(POD).await.unwrap_err().class, FailureClass::Unauthorised);
    assert_eq!(world.calls(ASSOCIATIONS).await.len(), 2);
}
