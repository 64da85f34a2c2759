//! Associations, their limits, and what becomes of them when an end goes away.

use serde_json::json;

use super::*;

#[tokio::test]
async fn one_vlan_goes_to_one_branch_of_a_trunk() {
    let sim = Sim::plain().await;
    let (_, trunk, _) = sim.trunk("m5.large").await;
    let (_, other, _) = sim.trunk("m5.large").await;
    sim.branch(&trunk, "1").await;
    let late = sim.eni(&[]).await;
    let answer = sim.associate(&late, &trunk, "1").await;
    assert_eq!((answer.status, answer.code()), (400, Some("InvalidVlanId.Duplicate")));
    assert_eq!(answer.element("Message"), Some("VlanId '1' is in use"));
    assert_eq!(sim.associate(&late, &other, "1").await.status, 200);
    let state = sim.client.state().await.unwrap();
    assert_eq!(state.branches_of(&trunk).count(), 1);
}

#[tokio::test]
async fn associations_that_make_no_sense_are_refused() {
    let sim = Sim::plain().await;
    let (_, trunk, _) = sim.trunk("m5.large").await;
    let (branch, _) = sim.branch(&trunk, "1").await;
    let plain = sim.eni(&[]).await;
    let primary = sim.client.state().await.unwrap().instances[0].primary_eni.clone();
    let zone_b = subnet_id(2);
    let far = sim.ok("CreateNetworkInterface", &[("SubnetId", &zone_b)]).await;
    let far = far.element("networkInterfaceId").unwrap();
    let again = sim.associate(&branch, &trunk, "2").await;
    assert_eq!(again.code(), Some("InvalidParameterValue"));
    assert!(again.element("Message").unwrap().ends_with("is already associated"));
    assert_eq!(sim.associate(&plain, &branch, "2").await.code(), Some("InvalidParameterValue"));
    assert_eq!(
        sim.associate(&primary, &trunk, "2").await.code(),
        Some("InvalidNetworkInterface.InUse")
    );
    assert_eq!(sim.associate(far, &trunk, "2").await.code(), Some("InvalidParameterValue"));
    for vlan in ["0", "4095", "-1", "x"] {
        assert_eq!(
            sim.associate(&plain, &trunk, vlan).await.code(),
            Some("InvalidParameterValue"),
            "{vlan}"
        );
    }
    let no_wire = [("BranchInterfaceId", plain.as_str()), ("TrunkInterfaceId", trunk.as_str())];
    sim.refused("AssociateTrunkInterface", &no_wire, 400, "MissingParameter").await;

    // The other sides of rows 1 and 4.
    let switches = json!({
        "already_associated_code": "InvalidNetworkInterface.InUse", "limits": {"vlan_max": 120},
    });
    sim.client.set_switches(&switches).await.unwrap();
    let again = sim.associate(&branch, &trunk, "2").await;
    assert_eq!(again.code(), Some("InvalidNetworkInterface.InUse"));
    assert_eq!(sim.associate(&plain, &trunk, "121").await.code(), Some("InvalidParameterValue"));
    assert_eq!(sim.associate(&plain, &trunk, "120").await.status, 200);
}

#[tokio::test]
async fn a_trunk_takes_as_many_branches_as_its_type_allows() {
    let sim = Sim::plain().await;
    let (_, trunk, _) = sim.trunk("m5.large").await;
    for vlan in 1..=9 {
        sim.branch(&trunk, &vlan.to_string()).await;
    }
    let tenth = sim.eni(&[]).await;
    assert_eq!(sim.associate(&tenth, &trunk, "10").await.code(), Some("AttachmentLimitExceeded"));
    sim.client.set_switches(&json!({"branch_limit_code": "BranchesExhausted"})).await.unwrap();
    assert_eq!(sim.associate(&tenth, &trunk, "10").await.code(), Some("BranchesExhausted"));
    // m5.large: 9 branches and 3 interfaces make a ceiling of 10.
    sim.client.set_switches(&json!({"limits": {"common_ceiling": true}})).await.unwrap();
    assert_eq!(sim.associate(&tenth, &trunk, "10").await.status, 200);
    let more = sim.eni(&[]).await;
    sim.client.set_switches(&json!({"limits": {"branches": {"m5.large": 11}}})).await.unwrap();
    assert_eq!(sim.associate(&more, &trunk, "11").await.status, 200);
}

#[tokio::test]
async fn an_associated_branch_and_a_loose_trunk_can_be_deleted_as_they_are() {
    let sim = Sim::plain().await;
    let (_, trunk, attachment) = sim.trunk("m5.large").await;
    let (branch, association) = sim.branch(&trunk, "1").await;
    sim.ok("DeleteNetworkInterface", &[("NetworkInterfaceId", &branch)]).await;
    let by_id = [("AssociationId.1", association.as_str())];
    sim.refused("DescribeTrunkInterfaceAssociations", &by_id, 400, "InvalidAssociationID.NotFound")
        .await;

    let (branch, _) = sim.branch(&trunk, "1").await;
    let of_trunk = [("NetworkInterfaceId", trunk.as_str())];
    let refused =
        sim.refused("DeleteNetworkInterface", &of_trunk, 400, "InvalidParameterValue").await;
    assert!(refused.element("Message").unwrap().ends_with("is currently in use."));
    sim.ok("DetachNetworkInterface", &[("AttachmentId", &attachment)]).await;
    assert_eq!(sim.status(&branch).await, "associated");
    sim.ok("DeleteNetworkInterface", &of_trunk).await;
    assert_eq!(sim.status(&branch).await, "available");
    assert_eq!(sim.truth(&branch).await.unwrap().association, None);
}

#[tokio::test]
async fn a_terminated_instance_leaves_its_branches_behind() {
    let sim = Sim::with(json!({"disassociated_type": "interface"})).await;
    let (instance, trunk, attachment) = sim.trunk("m5.large").await;
    let delete_it = [
        ("NetworkInterfaceId", trunk.as_str()),
        ("Attachment.AttachmentId", &attachment),
        ("Attachment.DeleteOnTermination", "true"),
    ];
    sim.ok("ModifyNetworkInterfaceAttribute", &delete_it).await;
    let (branch, _) = sim.branch(&trunk, "1").await;
    sim.client.terminate_instance(&instance).await.unwrap();
    assert_eq!(sim.status(&trunk).await, "InvalidNetworkInterfaceID.NotFound");
    let left = sim.truth(&branch).await.unwrap();
    assert_eq!((left.status.as_str(), left.interface_type.as_str()), ("available", "interface"));
    let by_id = [("InstanceId.1", instance.as_str())];
    let shown = sim.ok("DescribeInstances", &by_id).await;
    assert!(shown.body.contains("<name>terminated</name>") && !shown.body.contains("<subnetId>"));
    sim.client.set_instance_state(&instance, "forgotten").await.unwrap();
    sim.refused("DescribeInstances", &by_id, 400, "InvalidInstanceID.NotFound").await;
}

#[tokio::test]
async fn associations_are_listed_by_trunk_unless_row_10_says_otherwise() {
    let sim = Sim::plain().await;
    let (_, trunk, _) = sim.trunk("m5.large").await;
    let (_, other, _) = sim.trunk("m5.large").await;
    for vlan in ["1", "2", "3", "4", "5", "6"] {
        sim.branch(&trunk, vlan).await;
    }
    sim.branch(&other, "1").await;
    let describe = "DescribeTrunkInterfaceAssociations";
    let by_trunk = [
        ("Filter.1.Name", "trunk-interface-association.trunk-interface-id"),
        ("Filter.1.Value.1", trunk.as_str()),
        ("MaxResults", "5"),
    ];
    let first = sim.ok(describe, &by_trunk).await;
    assert_eq!(first.elements("vlanId").count(), 5);
    let mut next = by_trunk.to_vec();
    next.push(("NextToken", first.element("nextToken").unwrap()));
    let second = sim.ok(describe, &next).await;
    assert_eq!(second.elements("vlanId").count(), 1);
    assert_eq!(second.element("nextToken"), None);
    let by_protocol = [("Filter.1.Name", "interface-protocol"), ("Filter.1.Value.1", "VLAN")];
    assert_eq!(sim.ok(describe, &by_protocol).await.elements("vlanId").count(), 7);

    sim.client.set_switches(&json!({"associations_api": "documented-filters"})).await.unwrap();
    sim.refused(describe, &by_trunk, 400, "InvalidFilter").await;
    sim.client.set_switches(&json!({"associations_api": "unauthorized"})).await.unwrap();
    sim.refused(describe, &by_protocol, 403, "UnauthorizedOperation").await;
}

#[tokio::test]
async fn another_account_needs_a_permission_to_associate() {
    let mut config = Config::plain();
    config.accounts.insert("AKIAOTHER".into(), "210987654321".into());
    config.switches.lag.permission = trunkline_sim::ec2::switches::Range(100, 100);
    let sim = Sim::start(config).await;
    let (_, trunk, _) = sim.trunk("m5.large").await;
    let branch = sim.eni(&[]).await;
    let params = [
        ("BranchInterfaceId", branch.as_str()),
        ("TrunkInterfaceId", trunk.as_str()),
        ("VlanId", "1"),
    ];
    let associate = || sim.client.query("AKIAOTHER", "AssociateTrunkInterface", &params);
    assert_eq!(associate().await.unwrap().code(), Some("OperationNotPermitted"));
    let permit = [
        ("NetworkInterfaceId", branch.as_str()),
        ("AwsAccountId", "210987654321"),
        ("Permission", "INSTANCE-ATTACH"),
    ];
    let granted = sim.ok("CreateNetworkInterfacePermission", &permit).await;
    assert_eq!(granted.element("state"), Some("pending"));
    assert_eq!(associate().await.unwrap().code(), Some("OperationNotPermitted"));
    eventually("the permission is granted", || async { associate().await.unwrap().status == 200 })
        .await;
}
