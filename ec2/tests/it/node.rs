//! A node's instance, subnet and trunk.

use serde_json::json;
use trunkline_core::eni::{EniKind, EniStatus, FailureClass, Tag, tag};
use trunkline_core::id::EniId;
use trunkline_ec2::{CreateTrunk, InstanceState, Priority};
use trunkline_sim::ec2::config::{group_id, subnet_id};
use trunkline_sim::ec2::fault::{Fault, FaultKind};
use trunkline_sim::ec2::model::{EniSpec, InstanceSpec};

use crate::support::{CLUSTER, World};

const INIT: Priority = Priority::NodeInit;

fn create(world: &World, nonce: u32) -> CreateTrunk {
    CreateTrunk {
        instance: world.instance.clone(),
        subnet: subnet_id(1).parse().unwrap(),
        groups: vec![group_id(2).parse().unwrap()],
        nonce,
    }
}

/// A trunk that is not attached.
async fn free_trunk(world: &World) -> EniId {
    world.ec2.create_trunk(&create(world, 1), INIT).await.unwrap().id
}

#[tokio::test]
async fn an_instance_shows_its_interfaces_the_trunk_and_the_primary_groups() {
    let world = World::start().await;
    let found = world.ec2.describe_instance(&world.instance, INIT).await.unwrap();
    assert_eq!(found.state, InstanceState::Running);
    let ready = found.ready().unwrap();
    assert_eq!(ready.instance_type.as_str(), "m5.large");
    assert_eq!(ready.primary_groups, [group_id(2).parse().unwrap()]);
    let trunks: Vec<_> = ready.interfaces.iter().filter(|i| i.kind == EniKind::Trunk).collect();
    let [trunk] = trunks[..] else { panic!("{trunks:?}") };
    assert_eq!(trunk.id, world.trunk);
    let attachment = trunk.attachment.as_ref().unwrap();
    assert_eq!((attachment.device_index, attachment.attached), (2, true));
    assert_eq!(attachment.instance.as_ref(), Some(&world.instance));
}

#[tokio::test]
async fn s32_an_instance_without_interfaces_subnet_or_type_is_not_ready_and_says_what_is_missing() {
    let world = World::start().await;
    for (element, missing) in
        [("networkInterfaceSet", "interfaces"), ("instanceType", "type"), ("subnetId", "subnetId")]
    {
        let kind = FaultKind::Omit { elements: vec![element.into()] };
        let fault = world.sim.inject(&Fault::on("DescribeInstances", kind)).await.unwrap();
        let found = world.ec2.describe_instance(&world.instance, INIT).await.unwrap();
        assert_eq!(found.ready().unwrap_err(), missing);
        world.sim.clear_faults(Some(&fault)).await.unwrap();
    }
    let kind = FaultKind::Omit { elements: vec!["interfaceType".into()] };
    world.sim.inject(&Fault::on("DescribeInstances", kind)).await.unwrap();
    let found = world.ec2.describe_instance(&world.instance, INIT).await.unwrap();
    assert!(found.interfaces.iter().all(|eni| eni.kind == EniKind::Other));
}

#[tokio::test]
async fn a_terminated_instance_is_told_apart_from_one_that_is_not_found() {
    let world = World::start().await;
    let other = world.sim.add_instance(&InstanceSpec::default()).await.unwrap().id;
    world.sim.terminate_instance(&other).await.unwrap();
    let found = world.ec2.describe_instance(&other.parse().unwrap(), INIT).await.unwrap();
    assert_eq!(found.state, InstanceState::Terminated);
    world.sim.set_instance_state(&other, "forgotten").await.unwrap();
    let failure = world.ec2.describe_instance(&other.parse().unwrap(), INIT).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::NotFound);
}

#[tokio::test]
async fn a_subnet_tells_its_blocks() {
    let world = World::start().await;
    let subnet = world.ec2.describe_subnet(&subnet_id(1).parse().unwrap(), INIT).await.unwrap();
    assert_eq!(
        (subnet.cidrs.v4.as_str(), subnet.cidrs.v6.as_str()),
        ("10.0.0.0/18", "2600:1f18:0:1::/64")
    );
    assert!(subnet.free_addresses.is_some_and(|free| free > 16_000));
    let missing =
        world.ec2.describe_subnet(&"subnet-0123456789abcdef0".parse().unwrap(), INIT).await;
    assert_eq!(missing.unwrap_err().class, FailureClass::Configuration);
}

#[tokio::test]
async fn an_instance_type_is_described_where_the_call_is_allowed() {
    let world = World::start().await;
    let found = world.ec2.describe_instance_type(&"m5.large".parse().unwrap(), INIT).await.unwrap();
    assert_eq!(found.interfaces, 3);
    world
        .sim
        .set_switches(&json!({"unauthorized": [{"action": "DescribeInstanceTypes"}]}))
        .await
        .unwrap();
    let refused = world.ec2.describe_instance_type(&"m5.large".parse().unwrap(), INIT).await;
    assert_eq!(refused.unwrap_err().class, FailureClass::Unauthorised);
}

#[tokio::test]
async fn s44_a_trunk_whose_reply_is_lost_is_found_by_its_repeat_and_by_its_tag() {
    let world = World::start().await;
    let lose = FaultKind::LoseReply { stall_ms: 0 };
    world.sim.inject(&Fault::on("CreateNetworkInterface", lose).times(3)).await.unwrap();
    let failure = world.ec2.create_trunk(&create(&world, 1), INIT).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::OutcomeUnknown);
    let trunk = free_trunk(&world).await;
    let mut found: Vec<_> = world
        .ec2
        .find_trunks(&world.instance, INIT)
        .await
        .unwrap()
        .into_iter()
        .map(|t| t.id)
        .collect();
    let mut expected = vec![world.trunk.clone(), trunk];
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

#[tokio::test]
async fn a_trunk_is_attached_and_set_to_end_with_its_instance() {
    let world = World::start().await;
    let shown = world.ec2.describe_eni(&world.trunk, INIT).await.unwrap();
    assert_eq!(shown.tags.instance, Tag::Is(world.instance.clone()));
    let attachment = shown.attachment.unwrap();
    assert!(attachment.attached);
    world.ec2.delete_on_termination(&world.trunk, &attachment.id, INIT).await.unwrap();
    let shown = world.ec2.describe_eni(&world.trunk, INIT).await.unwrap();
    assert!(shown.attachment.unwrap().delete_on_termination);
    // The slot is taken now.
    let second = free_trunk(&world).await;
    let failure = world.ec2.attach_trunk(&second, &world.instance, 2, INIT).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::InUse, "{failure}");
    assert_eq!(failure.code.as_deref(), Some("InvalidParameterValue"));
}

#[tokio::test]
async fn an_attachment_that_is_stuck_is_shown_as_not_attached() {
    let world = World::start().await;
    let trunk = free_trunk(&world).await;
    let stuck = FaultKind::AttachStuck { ms: 600_000 };
    world.sim.inject(&Fault::on("AttachNetworkInterface", stuck).times(1)).await.unwrap();
    world.ec2.attach_trunk(&trunk, &world.instance, 1, INIT).await.unwrap();
    let shown = world.ec2.describe_eni(&trunk, INIT).await.unwrap();
    assert_eq!(shown.attachment.map(|a| a.attached), Some(false));
}

#[tokio::test]
async fn only_a_free_trunk_of_this_instance_that_no_branch_names_is_rolled_back() {
    let world = World::start().await;
    let refused = |eni: EniId| {
        let world = &world;
        async move {
            let failure =
                world.ec2.delete_unattached_trunk(&eni, &world.instance, INIT).await.unwrap_err();
            assert_eq!(failure.class, FailureClass::InUse, "{failure}");
            assert!(world.sim.state().await.unwrap().eni(eni.as_str()).is_some());
        }
    };
    // Attached.
    refused(world.trunk.clone()).await;
    // A branch.
    let (branch, _) = world.branch(1).await;
    refused(branch.id).await;
    // Another cluster's.
    let owner = (tag::OWNER.to_owned(), tag::OWNER_VALUE.to_owned());
    let instance = (tag::INSTANCE.to_owned(), world.instance.to_string());
    let cluster = |name: &str| (format!("{}{name}", tag::CLUSTER_PREFIX), "owned".to_owned());
    let foreign = EniSpec {
        interface_type: "trunk".into(),
        tags: [owner.clone(), cluster("green"), instance].into(),
        ..EniSpec::default()
    };
    refused(world.sim.add_eni(&foreign).await.unwrap().parse().unwrap()).await;
    // Another instance's.
    let other = (tag::INSTANCE.to_owned(), "i-0123456789abcdef0".to_owned());
    let others = EniSpec { tags: [owner, cluster(CLUSTER), other].into(), ..foreign };
    refused(world.sim.add_eni(&others).await.unwrap().parse().unwrap()).await;
    // One that a branch names.
    let named = free_trunk(&world).await;
    let create = trunkline_core::eni::CreateBranch { trunk: named.clone(), ..world.create(2) };
    world.ec2.call(trunkline_core::eni::Ec2Call::Create(create), INIT).await.unwrap();
    refused(named).await;
    // And one that may go, twice.
    let trunk = world.ec2.create_trunk(&self::create(&world, 2), INIT).await.unwrap();
    assert_eq!((trunk.kind, trunk.attachment), (EniKind::Trunk, None));
    assert!(matches!(trunk.status, EniStatus::Available | EniStatus::Pending));
    world.ec2.delete_unattached_trunk(&trunk.id, &world.instance, INIT).await.unwrap();
    world.ec2.delete_unattached_trunk(&trunk.id, &world.instance, INIT).await.unwrap();
    assert!(world.sim.state().await.unwrap().eni(trunk.id.as_str()).is_none());
}

#[tokio::test]
async fn a_trunk_with_branches_is_not_detached_and_an_unused_one_is() {
    let world = World::start().await;
    let attachment =
        world.ec2.describe_eni(&world.trunk, INIT).await.unwrap().attachment.unwrap().id;
    let (_branch, _) = world.branch(1).await;
    let failure = world
        .ec2
        .detach_unused_trunk(&world.trunk, &world.instance, &attachment, INIT)
        .await
        .unwrap_err();
    assert_eq!(failure.class, FailureClass::InUse);
    assert!(world.calls("DetachNetworkInterface").await.is_empty());

    let unused = free_trunk(&world).await;
    let attachment = world.ec2.attach_trunk(&unused, &world.instance, 1, INIT).await.unwrap();
    world.ec2.detach_unused_trunk(&unused, &world.instance, &attachment, INIT).await.unwrap();
    world.ec2.delete_unattached_trunk(&unused, &world.instance, INIT).await.unwrap();
}

#[tokio::test]
async fn an_attach_whose_reply_is_lost_is_not_repeated_blindly_but_unknown() {
    let world = World::start().await;
    let trunk = free_trunk(&world).await;
    let lose = FaultKind::LoseReply { stall_ms: 0 };
    world.sim.inject(&Fault::on("AttachNetworkInterface", lose).times(1)).await.unwrap();
    let failure = world.ec2.attach_trunk(&trunk, &world.instance, 1, INIT).await.unwrap_err();
    assert_eq!(
        failure.class,
        FailureClass::OutcomeUnknown,
        "the retry was refused as in use: {failure}"
    );
    let shown = world.ec2.describe_eni(&trunk, INIT).await.unwrap();
    assert_eq!(shown.attachment.map(|a| (a.device_index, a.attached)), Some((1, true)));
}

#[tokio::test]
async fn s62_many_instances_are_read_in_pages_and_an_unknown_id_is_left_out() {
    let world = World::start().await;
    let mut ids = vec![world.instance.clone(), "i-0123456789abcdef0".parse().unwrap()];
    for _ in 0..250 {
        ids.push(
            world.sim.add_instance(&InstanceSpec::default()).await.unwrap().id.parse().unwrap(),
        );
    }
    let found = world.ec2.describe_instances(&ids, INIT).await.unwrap();
    let mut known: Vec<_> = found.into_iter().map(|details| details.id).collect();
    known.sort();
    ids.remove(1);
    ids.sort();
    assert_eq!(known, ids);
    assert_eq!(world.calls("DescribeInstances").await.len(), 2, "200 ids a request");
}
