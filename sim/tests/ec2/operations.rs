//! The way of a branch, and what is refused on it.

use trunkline_sim::ec2::model::Effect;

use super::*;

/// Action, parameters, code.
type Refusal<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str);

#[tokio::test]
async fn a_branch_lives_from_create_to_delete_and_the_log_tells_it() {
    let sim = Sim::plain().await;
    let (instance, trunk, attachment) = sim.trunk("m5.large").await;
    sim.ok(
        "ModifyNetworkInterfaceAttribute",
        &[
            ("NetworkInterfaceId", &trunk),
            ("Attachment.AttachmentId", &attachment),
            ("Attachment.DeleteOnTermination", "true"),
        ],
    )
    .await;
    let group = group_id(3);
    let branch = sim
        .eni(&[
            ("Description", "aws-k8s-branch-eni"),
            ("SecurityGroupId.1", &group),
            ("TagSpecification.1.ResourceType", "network-interface"),
            ("TagSpecification.1.Tag.1.Key", "trunkline.dev/pod-uid"),
            ("TagSpecification.1.Tag.1.Value", "u-1"),
            ("TagSpecification.1.Tag.2.Key", "empty & <odd>"),
            ("TagSpecification.1.Tag.2.Value", ""),
        ])
        .await;
    let answer = sim.associate(&branch, &trunk, "7").await;
    let association = answer.element("associationId").unwrap().to_owned();
    assert!(association.starts_with("trunk-assoc-"));
    assert_eq!(answer.element("vlanId"), Some("7"));
    assert_eq!(answer.element("interfaceProtocol"), Some("VLAN"));

    let shown = sim.ok("DescribeNetworkInterfaces", &[("NetworkInterfaceId.1", &branch)]).await;
    assert_eq!(shown.element("status"), Some("in-use"));
    assert_eq!(shown.element("interfaceType"), Some("branch"));
    assert_eq!(shown.element("groupId"), Some(group.as_str()));
    assert!(shown.body.contains("<key>empty &amp; &lt;odd&gt;</key><value></value>"));
    assert!(!shown.body.contains("<attachment>") && !shown.body.contains(&trunk));

    let truth = sim.client.state().await.unwrap();
    assert_eq!(truth.trunk_of(&instance).unwrap().id, trunk);
    let held = truth.branches_of(&trunk).next().unwrap();
    assert_eq!((held.id.as_str(), held.association.as_ref().unwrap().vlan), (branch.as_str(), 7));

    sim.ok("DisassociateTrunkInterface", &[("AssociationId", &association)]).await;
    let gone = [("AssociationId", association.as_str())];
    sim.refused("DisassociateTrunkInterface", &gone, 400, "InvalidAssociationID.NotFound").await;
    assert_eq!(sim.status(&branch).await, "available");
    sim.ok("DeleteNetworkInterface", &[("NetworkInterfaceId", &branch)]).await;
    let gone = [("NetworkInterfaceId", branch.as_str())];
    sim.refused("DeleteNetworkInterface", &gone, 400, "InvalidNetworkInterfaceID.NotFound").await;

    let log = sim.client.log(1).await.unwrap();
    assert!(log.iter().zip(1..).all(|(entry, seq)| entry.seq == seq));
    let effects: Vec<_> =
        log.iter().filter(|e| e.caller == "AKIAME").flat_map(|e| &e.effects).collect();
    assert!(matches!(effects[1], Effect::Attached { eni, device_index: 2, .. } if *eni == trunk));
    assert!(matches!(effects[3], Effect::EniCreated { eni, tags, .. }
        if *eni == branch && tags["trunkline.dev/pod-uid"] == "u-1"));
    assert!(matches!(effects[4], Effect::AssociationMade { vlan: 7, .. }));
    assert!(matches!(effects[5], Effect::AssociationRemoved { tags, .. } if tags.len() == 2));
    assert!(matches!(effects[6], Effect::EniDeleted { eni, .. } if *eni == branch));
    assert_eq!(effects.len(), 7);
}

#[tokio::test]
async fn the_log_tells_callers_attempts_and_parameters_apart() {
    let sim = Sim::plain().await;
    let headers = [
        (
            "authorization",
            "AWS4-HMAC-SHA256 Credential=AKIAONE/20260101/eu-west-1/ec2/aws4_request, SignedHeaders=x",
        ),
        ("amz-sdk-invocation-id", "0000-1"),
        ("amz-sdk-request", "ttl=1; attempt=2; max=3"),
        ("user-agent", "aws-sdk-rust/1"),
    ];
    let body =
        "Action=DescribeSubnets&Version=2016-11-15&Filter.1.Name=vpc-id&Filter.1.Value.1=a%3Ab+c";
    let answer = sim.client.send(http::Method::POST, "/", &headers, body.into()).await.unwrap();
    let entry = sim.logged("DescribeSubnets").await.remove(0);
    assert_eq!(entry.caller, "AKIAONE");
    assert_eq!(entry.account, "123456789012");
    assert_eq!(entry.invocation.as_deref(), Some("0000-1"));
    assert_eq!(entry.attempt, Some(2));
    assert_eq!(entry.user_agent, "aws-sdk-rust/1");
    assert_eq!(entry.params["Filter.1.Value.1"], "a:b c");
    assert_eq!(answer.headers["x-amzn-requestid"], entry.request_id);
    assert_eq!(answer.element("requestId"), Some(entry.request_id.as_str()));
    assert_eq!(answer.headers["server"], "AmazonEC2");
    assert_eq!(answer.headers["transfer-encoding"], "chunked");
    assert!(answer.headers.contains_key("date"));
    assert!(entry.arrived_ms <= entry.wall_ms);
}

#[tokio::test]
async fn what_does_not_fit_is_refused_with_ec2s_codes() {
    let sim = Sim::plain().await;
    let (_, trunk, attachment) = sim.trunk("m5.large").await;
    let subnet = subnet_id(1);
    let s = subnet.as_str();
    let create = "CreateNetworkInterface";
    let absent = "eni-0123456789abcdef0";
    let cases: &[Refusal<'_>] = &[
        (create, &[], "MissingParameter"),
        (create, &[("SubnetId", "subnet-0123456789abcdef0")], "InvalidSubnetID.NotFound"),
        (
            create,
            &[("SubnetId", s), ("SecurityGroupId.1", "sg-0123456789abcdef0")],
            "InvalidGroup.NotFound",
        ),
        (create, &[("SubnetId", s), ("SecurityGroupId.1", "pods")], "InvalidGroupId.Malformed"),
        (create, &[("SubnetId", s), ("InterfaceType", "wormhole")], "InvalidParameterValue"),
        (create, &[("SubnetId", s), ("Colour", "red")], "UnknownParameter"),
        (create, &[("SubnetId", s), ("PrivateIpAddress", "10.9.0.5")], "InvalidParameterValue"),
        (create, &[("SubnetId", s), ("PrivateIpAddress", "10.0.0.3")], "InvalidParameterValue"),
        (
            create,
            &[("SubnetId", s), ("SecondaryPrivateIpAddressCount", "x")],
            "InvalidParameterValue",
        ),
        (
            create,
            &[("SubnetId", s), ("SecondaryPrivateIpAddressCount", "200")],
            "PrivateIpAddressLimitExceeded",
        ),
        (
            "DeleteNetworkInterface",
            &[("NetworkInterfaceId", "eni-1")],
            "InvalidNetworkInterfaceId.Malformed",
        ),
        ("DeleteNetworkInterface", &[("NetworkInterfaceId", &trunk)], "InvalidParameterValue"),
        (
            "DescribeNetworkInterfaces",
            &[("NetworkInterfaceId.1", absent)],
            "InvalidNetworkInterfaceID.NotFound",
        ),
        (
            "DescribeNetworkInterfaces",
            &[("NetworkInterfaceId.1", &trunk), ("MaxResults", "5")],
            "InvalidParameterCombination",
        ),
        ("DescribeNetworkInterfaces", &[("MaxResults", "4")], "InvalidParameterValue"),
        (
            "DescribeNetworkInterfaces",
            &[("MaxResults", "5"), ("NextToken", "no")],
            "InvalidPaginationToken",
        ),
        (
            "DescribeNetworkInterfaces",
            &[("Filter.1.Name", "colour"), ("Filter.1.Value.1", "x")],
            "InvalidParameterValue",
        ),
        ("ModifyNetworkInterfaceAttribute", &[("NetworkInterfaceId", &trunk)], "MissingParameter"),
        (
            "ModifyNetworkInterfaceAttribute",
            &[
                ("NetworkInterfaceId", &trunk),
                ("Description.Value", "a"),
                ("SourceDestCheck.Value", "true"),
            ],
            "InvalidParameterCombination",
        ),
        (
            "ModifyNetworkInterfaceAttribute",
            &[
                ("NetworkInterfaceId", &trunk),
                ("Attachment.AttachmentId", "eni-attach-0123456789abcdef0"),
                ("Attachment.DeleteOnTermination", "true"),
            ],
            "InvalidAttachmentID.NotFound",
        ),
        (
            "DetachNetworkInterface",
            &[("AttachmentId", "eni-attach-0123456789abcdef0")],
            "InvalidAttachmentID.NotFound",
        ),
        (
            "DetachNetworkInterface",
            &[("AttachmentId", "x")],
            "InvalidNetworkInterfaceAttachmentId.Malformed",
        ),
        (
            "DescribeInstances",
            &[("InstanceId.1", "i-0123456789abcdef0")],
            "InvalidInstanceID.NotFound",
        ),
        ("DescribeInstanceTypes", &[("InstanceType.1", "zz9.large")], "InvalidInstanceType"),
        (
            "DescribeSecurityGroups",
            &[("GroupId.1", "sg-0123456789abcdef0")],
            "InvalidGroup.NotFound",
        ),
        (
            "DescribeSubnets",
            &[("SubnetId.1", "subnet-0123456789abcdef0")],
            "InvalidSubnetID.NotFound",
        ),
        ("CreateTags", &[("ResourceId.1", "thing"), ("Tag.1.Key", "a")], "InvalidID"),
        (
            "CreateTags",
            &[("ResourceId.1", absent), ("Tag.1.Key", "a")],
            "InvalidNetworkInterfaceID.NotFound",
        ),
        (
            "CreateTags",
            &[("ResourceId.1", &trunk), ("Tag.1.Key", "aws:x")],
            "InvalidParameterValue",
        ),
        ("RunInstances", &[], "InvalidAction"),
    ];
    let before = sim.client.state().await.unwrap();
    for (action, params, code) in cases {
        sim.refused(action, params, 400, code).await;
    }
    let after = sim.client.state().await.unwrap();
    assert_eq!(before.enis, after.enis, "refused calls have no effect");
    let log = sim.client.log(before.seq + 1).await.unwrap();
    assert!(log.iter().all(|entry| entry.effects.is_empty() && entry.status == Some(400)));
    assert_eq!(log.len(), cases.len());
    // A dry run ends before any effect too.
    let dry = [("AttachmentId", attachment.as_str()), ("DryRun", "true")];
    sim.refused("DetachNetworkInterface", &dry, 412, "DryRunOperation").await;
    let dry =
        [("NetworkInterfaceId", trunk.as_str()), ("Ipv6AddressCount", "1"), ("DryRun", "true")];
    sim.refused("AssignIpv6Addresses", &dry, 400, "UnknownParameter").await;
    assert_eq!(sim.truth(&trunk).await.unwrap().attachment.unwrap().status, "attached");
}

async fn attach(sim: &Sim, eni: &str, instance: &str, device: &str) -> Answer {
    let params = [("NetworkInterfaceId", eni), ("InstanceId", instance), ("DeviceIndex", device)];
    sim.call("AttachNetworkInterface", &params).await
}

#[tokio::test]
async fn attaching_knows_slots_indexes_zones_and_types() {
    let sim = Sim::plain().await;
    let instance = sim.instance("t3.medium").await;
    let (first, second, third) = (sim.eni(&[]).await, sim.eni(&[]).await, sim.eni(&[]).await);
    let other_zone = subnet_id(2);
    let far = sim.ok("CreateNetworkInterface", &[("SubnetId", &other_zone)]).await;
    let far = far.element("networkInterfaceId").unwrap().to_owned();
    let trunk = sim.eni(&[("InterfaceType", "trunk")]).await;
    assert_eq!(attach(&sim, &first, &instance, "0").await.code(), Some("InvalidParameterValue"));
    assert_eq!(
        attach(&sim, &far, &instance, "1").await.code(),
        Some("InvalidParameterCombination")
    );
    assert_eq!(attach(&sim, &trunk, &instance, "1").await.code(), Some("UnsupportedOperation"));
    let attachment = attach(&sim, &first, &instance, "1").await;
    let attachment = attachment.element("attachmentId").unwrap();
    let again = attach(&sim, &first, &instance, "2").await;
    assert_eq!(again.code(), Some("InvalidNetworkInterface.InUse"));
    assert_eq!(attach(&sim, &second, &instance, "2").await.status, 200);
    let full = attach(&sim, &third, &instance, "3").await;
    assert_eq!(full.code(), Some("AttachmentLimitExceeded"));
    assert_eq!(full.element("Message"), Some("Interface count 4 exceeds the limit for t3.medium"));
    sim.ok("DetachNetworkInterface", &[("AttachmentId", attachment)]).await;
    assert_eq!(sim.status(&first).await, "available");
    assert_eq!(attach(&sim, &third, &instance, "1").await.status, 200);
    sim.client.set_instance_state(&instance, "shutting-down").await.unwrap();
    assert_eq!(attach(&sim, &first, &instance, "1").await.code(), Some("IncorrectState"));
    let primary = sim.client.state().await.unwrap();
    let primary = primary.instances.iter().find(|i| i.id == instance).unwrap().primary_eni.clone();
    let primary = sim.truth(&primary).await.unwrap().attachment.unwrap().id;
    sim.refused(
        "DetachNetworkInterface",
        &[("AttachmentId", &primary)],
        400,
        "OperationNotPermitted",
    )
    .await;
}

#[tokio::test]
async fn groups_of_an_associated_branch_change_and_the_association_stays() {
    let sim = Sim::plain().await;
    let (_, trunk, _) = sim.trunk("m5.large").await;
    let (branch, association) = sim.branch(&trunk, "3").await;
    let groups: Vec<String> = (3..=8).map(group_id).collect();
    let keys: Vec<String> = (1..=6).map(|n| format!("SecurityGroupId.{n}")).collect();
    let mut params: Vec<(&str, &str)> = vec![("NetworkInterfaceId", &branch)];
    params.extend(keys.iter().map(String::as_str).zip(groups.iter().map(String::as_str)));
    let modify = "ModifyNetworkInterfaceAttribute";
    sim.refused(modify, &params, 400, "SecurityGroupsPerInterfaceLimitExceeded").await;
    sim.ok(modify, &params[..6]).await;
    let truth = sim.truth(&branch).await.unwrap();
    assert_eq!(truth.groups, groups[..5]);
    assert_eq!(truth.association.unwrap().id, association);
}

#[tokio::test]
async fn quotas_are_refused_and_recover_on_delete() {
    let sim = Sim::with(serde_json::json!({"limits": {"enis": 2}})).await;
    let first = sim.eni(&[]).await;
    sim.eni(&[]).await;
    let subnet = subnet_id(1);
    let params = [("SubnetId", subnet.as_str())];
    sim.refused("CreateNetworkInterface", &params, 400, "NetworkInterfaceLimitExceeded").await;
    sim.ok("DeleteNetworkInterface", &[("NetworkInterfaceId", &first)]).await;
    sim.eni(&[]).await;
}

#[tokio::test]
async fn permissions_and_row_25_follow_their_switches() {
    let sim = Sim::plain().await;
    let eni = sim.eni(&[("InterfaceType", "branch")]).await;
    assert_eq!(sim.truth(&eni).await.unwrap().interface_type, "interface");
    let params = [
        ("NetworkInterfaceId", eni.as_str()),
        ("AwsAccountId", "210987654321"),
        ("Permission", "INSTANCE-ATTACH"),
    ];
    let first = sim.ok("CreateNetworkInterfacePermission", &params).await;
    assert_eq!(first.element("state"), Some("granted"));
    let again = sim.ok("CreateNetworkInterfacePermission", &params).await;
    let id = first.element("networkInterfacePermissionId");
    assert_eq!(again.element("networkInterfacePermissionId"), id);
    let listed = sim.ok("DescribeNetworkInterfacePermissions", &[]).await;
    assert_eq!(listed.element("networkInterfacePermissionId"), id);

    sim.client
        .set_switches(&serde_json::json!({
            "refuse_branch_type": true, "trunks_allowed": false,
            "unauthorized": [{"action": "Detach*"}, {"action": "CreateTags", "caller": "AKIAYOU"}],
        }))
        .await
        .unwrap();
    let subnet = subnet_id(1);
    for kind in ["branch", "trunk"] {
        let params = [("SubnetId", subnet.as_str()), ("InterfaceType", kind)];
        sim.refused("CreateNetworkInterface", &params, 400, "InvalidParameterValue").await;
    }
    sim.refused("DetachNetworkInterface", &[("AttachmentId", "x")], 403, "UnauthorizedOperation")
        .await;
    sim.ok("CreateTags", &[("ResourceId.1", &eni), ("Tag.1.Key", "a")]).await;
    sim.client.set_switches(&serde_json::json!({"auth_failure": true})).await.unwrap();
    sim.refused("DescribeSubnets", &[], 401, "AuthFailure").await;
}
