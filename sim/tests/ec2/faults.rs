//! Injections 2 to 5, 9, 14, 15 and 17 of `ec2.md` §14.

use super::*;

#[tokio::test]
async fn a_lost_reply_hides_an_effect() {
    let sim = Sim::plain().await;
    let fault = Fault::on("CreateNetworkInterface", FaultKind::LoseReply { stall_ms: 0 }).times(1);
    let id = sim.inject(fault).await;
    let subnet = subnet_id(1);
    let params = [("SubnetId", subnet.as_str()), ("ClientToken", "t-1")];
    assert!(sim.client.query("AKIAME", "CreateNetworkInterface", &params).await.is_err());
    let made = sim.client.state().await.unwrap().enis[0].id.clone();
    let log = sim.logged("CreateNetworkInterface").await;
    assert_eq!(log.len(), 1);
    assert_eq!((log[0].status, log[0].code.as_deref(), log[0].effects.len()), (None, None, 1));
    assert_eq!(log[0].faults, [format!("{id}:lose-reply")]);
    // The same token brings the ENI back.
    let again = sim.ok("CreateNetworkInterface", &params).await;
    assert_eq!(again.element("networkInterfaceId"), Some(made.as_str()));
    assert_eq!(sim.client.faults().await.unwrap()[0].1, 1);
}

#[tokio::test]
async fn every_mutation_can_lose_its_reply() {
    let sim = Sim::plain().await;
    let (_, trunk, _) = sim.trunk("m5.large").await;
    let branch = sim.eni(&[]).await;
    sim.always("AssociateTrunkInterface", FaultKind::LoseReply { stall_ms: 50 }).await;
    sim.always("D*", FaultKind::LoseReply { stall_ms: 0 }).await;
    let lost = |action: &'static str, params: Vec<(&'static str, String)>| {
        let client = sim.client.clone();
        async move {
            let params: Vec<(&str, &str)> = params.iter().map(|(k, v)| (*k, v.as_str())).collect();
            assert!(client.query("AKIAME", action, &params).await.is_err(), "{action}");
        }
    };
    let vlan = ("VlanId", "9".to_owned());
    let ends = [("BranchInterfaceId", branch.clone()), ("TrunkInterfaceId", trunk)];
    lost("AssociateTrunkInterface", ends.into_iter().chain([vlan]).collect()).await;
    let association = sim.truth(&branch).await.unwrap().association.unwrap().id;
    lost("DisassociateTrunkInterface", vec![("AssociationId", association)]).await;
    assert_eq!(sim.truth(&branch).await.unwrap().association, None);
    lost("DeleteNetworkInterface", vec![("NetworkInterfaceId", branch.clone())]).await;
    assert_eq!(sim.truth(&branch).await, None);
}

#[tokio::test]
async fn a_500_may_come_before_or_after_the_effect() {
    let sim = Sim::plain().await;
    let subnet = subnet_id(1);
    let params = [("SubnetId", subnet.as_str())];
    let refuse =
        FaultKind::Error { status: 503, code: "Unavailable".into(), message: String::new() };
    sim.inject(Fault::on("CreateNetworkInterface", refuse).times(1)).await;
    sim.refused("CreateNetworkInterface", &params, 503, "Unavailable").await;
    assert!(sim.client.state().await.unwrap().enis.is_empty());
    let after = FaultKind::CommitThenError { status: 500, code: "InternalError".into() };
    sim.inject(Fault::on("CreateNetworkInterface", after).times(1)).await;
    sim.refused("CreateNetworkInterface", &params, 500, "InternalError").await;
    assert_eq!(sim.client.state().await.unwrap().enis.len(), 1);
    let log = sim.logged("CreateNetworkInterface").await;
    assert_eq!(log[1].effects.len(), 1);
    assert_eq!((log[1].status, log[1].code.as_deref()), (Some(500), Some("InternalError")));
}

#[tokio::test]
async fn a_forced_throttle_has_status_and_retry_after() {
    let sim = Sim::plain().await;
    let kind = FaultKind::Throttle { status: 400, retry_after_ms: Some(1500) };
    sim.inject(Fault::on("Describe*", kind).from_nth(2).times(1)).await;
    sim.ok("DescribeSubnets", &[]).await;
    let answer = sim.refused("DescribeInstances", &[], 400, "RequestLimitExceeded").await;
    assert_eq!(answer.headers["x-amz-retry-after"], "1500");
    sim.ok("DescribeInstances", &[]).await;
}

#[tokio::test]
async fn faults_choose_resource_caller_and_chance() {
    let sim = Sim::plain().await;
    let (first, second) = (sim.eni(&[]).await, sim.eni(&[]).await);
    let in_use = FaultKind::InUse { documented: false };
    sim.inject(Fault::on("DeleteNetworkInterface", in_use).naming(&first)).await;
    sim.ok("DeleteNetworkInterface", &[("NetworkInterfaceId", &second)]).await;
    sim.refused(
        "DeleteNetworkInterface",
        &[("NetworkInterfaceId", &first)],
        400,
        "InvalidParameterValue",
    )
    .await;
    sim.client.clear_faults(None).await.unwrap();

    let mut fault = Fault::on("DescribeSubnets", FaultKind::VlanDuplicate);
    fault.caller = Some("AKIAYOU".into());
    sim.inject(fault).await;
    sim.ok("DescribeSubnets", &[]).await;
    let theirs = sim.client.query("AKIAYOU", "DescribeSubnets", &[]).await.unwrap();
    assert_eq!(theirs.code(), Some("InvalidVlanId.Duplicate"));

    let mut fault = Fault::on("DescribeInstances", FaultKind::VlanDuplicate);
    fault.probability = Some(0.5);
    sim.inject(fault).await;
    let mut hit = 0;
    for _ in 0..60 {
        hit += u32::from(sim.call("DescribeInstances", &[]).await.status != 200);
    }
    assert!((5..55).contains(&hit), "{hit}");
}

#[tokio::test]
async fn delete_is_in_use_for_some_tries_in_both_spellings() {
    let sim = Sim::plain().await;
    let eni = sim.eni(&[]).await;
    let delete = [("NetworkInterfaceId", eni.as_str())];
    let in_use =
        |documented| Fault::on("DeleteNetworkInterface", FaultKind::InUse { documented }).times(1);
    sim.inject(in_use(false)).await;
    let answer = sim.refused("DeleteNetworkInterface", &delete, 400, "InvalidParameterValue").await;
    let message = format!("Network interface '{eni}' is currently in use.");
    assert_eq!(answer.element("Message"), Some(message.as_str()));
    sim.inject(in_use(true)).await;
    sim.refused("DeleteNetworkInterface", &delete, 400, "InvalidNetworkInterface.InUse").await;
    sim.ok("DeleteNetworkInterface", &delete).await;
}

#[tokio::test]
async fn a_vlan_conflict_can_be_made_up_or_real() {
    let sim = Sim::plain().await;
    let (_, trunk, _) = sim.trunk("m5.large").await;
    let branch = sim.eni(&[]).await;
    sim.inject(Fault::on("AssociateTrunkInterface", FaultKind::VlanDuplicate).times(1)).await;
    let answer = sim.associate(&branch, &trunk, "17").await;
    assert_eq!(answer.element("Message"), Some("VlanId '17' is in use"));
    assert_eq!(sim.truth(&branch).await.unwrap().association, None);
    // A foreign association holds the VLAN.
    let foreign = sim.eni(&[]).await;
    sim.client.associate(&foreign, &trunk, 17).await.unwrap();
    assert_eq!(sim.associate(&branch, &trunk, "17").await.code(), Some("InvalidVlanId.Duplicate"));
    sim.client.disassociate(&foreign).await.unwrap();
    assert_eq!(sim.associate(&branch, &trunk, "17").await.status, 200);
}

#[tokio::test]
async fn disassociate_may_say_not_found_or_leave_the_slot_busy() {
    let sim = Sim::plain().await;
    let (_, trunk, _) = sim.trunk("m5.large").await;
    let (branch, association) = sim.branch(&trunk, "1").await;
    let params = [("AssociationId", association.as_str())];
    let disassociate = "DisassociateTrunkInterface";
    let not_found =
        |removed| Fault::on(disassociate, FaultKind::AssociationNotFound { removed }).times(1);
    sim.inject(not_found(false)).await;
    sim.refused(disassociate, &params, 400, "InvalidAssociationID.NotFound").await;
    assert!(sim.truth(&branch).await.unwrap().association.is_some());
    sim.inject(not_found(true)).await;
    sim.refused(disassociate, &params, 400, "InvalidAssociationID.NotFound").await;
    assert!(sim.truth(&branch).await.unwrap().association.is_none());
    let log = sim.logged(disassociate).await;
    assert_eq!((log[0].effects.len(), log[1].effects.len()), (0, 1));

    let (branch, association) = sim.branch(&trunk, "1").await;
    sim.inject(Fault::on(disassociate, FaultKind::SlotBusy { ms: 600_000 })).await;
    sim.ok(disassociate, &[("AssociationId", &association)]).await;
    assert_eq!(sim.truth(&branch).await.unwrap().status, "available");
    assert_eq!(sim.associate(&branch, &trunk, "1").await.code(), Some("InvalidVlanId.Duplicate"));
    for vlan in 2..=9 {
        sim.branch(&trunk, &vlan.to_string()).await;
    }
    assert_eq!(sim.associate(&branch, &trunk, "10").await.code(), Some("AttachmentLimitExceeded"));
}

#[tokio::test]
async fn a_call_can_be_slow_hang_or_stay_attaching() {
    let sim = Sim::plain().await;
    let instance = sim.instance("m5.large").await;
    let trunk = sim.eni(&[("InterfaceType", "trunk")]).await;
    sim.always("AttachNetworkInterface", FaultKind::AttachStuck { ms: 600_000 }).await;
    sim.always("AttachNetworkInterface", FaultKind::Slow { ms: 30 }).await;
    let params =
        [("NetworkInterfaceId", trunk.as_str()), ("InstanceId", &instance), ("DeviceIndex", "1")];
    sim.ok("AttachNetworkInterface", &params).await;
    assert_eq!(sim.truth(&trunk).await.unwrap().attachment.unwrap().status, "attaching");
    assert_eq!(sim.logged("AttachNetworkInterface").await[0].faults.len(), 2);

    let eni = sim.eni(&[]).await;
    sim.always("DeleteNetworkInterface", FaultKind::Hang { ms: 100 }).await;
    let params = [("NetworkInterfaceId", eni.as_str())];
    assert!(sim.client.query("AKIAME", "DeleteNetworkInterface", &params).await.is_err());
    assert!(sim.truth(&eni).await.is_some());
}

#[tokio::test]
async fn one_create_can_be_seen_later_than_others() {
    let sim = Sim::plain().await;
    let lag = FaultKind::Lag { by_id_ms: 600_000, list_ms: 600_000 };
    sim.inject(Fault::on("CreateNetworkInterface", lag).times(1)).await;
    let (hidden, seen) = (sim.eni(&[]).await, sim.eni(&[]).await);
    assert_eq!(sim.listed(&[]).await, [seen]);
    assert!(sim.truth(&hidden).await.is_some());
}

#[tokio::test]
async fn a_held_call_takes_effect_when_the_fault_goes_although_its_client_has_left() {
    let sim = Sim::plain().await;
    let id = sim.inject(Fault::on("CreateNetworkInterface", FaultKind::Hold)).await;
    let subnet = subnet_id(1);
    let params = [("SubnetId", subnet.as_str())];
    let sent = sim.client.query("AKIAME", "CreateNetworkInterface", &params);
    assert!(tokio::time::timeout(Duration::from_millis(300), sent).await.is_err());
    assert!(sim.client.state().await.unwrap().enis.is_empty());
    sim.client.clear_faults(Some(&id)).await.unwrap();
    tokio::time::timeout(Duration::from_secs(10), async {
        while sim.client.state().await.unwrap().enis.is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    assert_eq!(sim.logged("CreateNetworkInterface").await.len(), 1);
}

#[tokio::test]
async fn hidden_enis_are_in_no_describe_and_there_all_the_same() {
    let sim = Sim::plain().await;
    let (instance, trunk, _) = sim.trunk("m5.large").await;
    let branch = sim.eni(&[]).await;
    let enis = vec![trunk.clone(), branch.clone()];
    let id = sim.inject(Fault::on("Describe*", FaultKind::Hide { enis })).await;
    let by_id = [("NetworkInterfaceId.1", branch.as_str())];
    sim.refused("DescribeNetworkInterfaces", &by_id, 400, "InvalidNetworkInterfaceID.NotFound")
        .await;
    let list = sim.ok("DescribeNetworkInterfaces", &[]).await;
    let of_instance = [("InstanceId.1", instance.as_str())];
    let shown = sim.ok("DescribeInstances", &of_instance).await;
    for hidden in [&trunk, &branch] {
        assert!(!list.body.contains(hidden.as_str()) && !shown.body.contains(hidden.as_str()));
        assert!(sim.truth(hidden).await.is_some());
    }
    sim.client.clear_faults(Some(&id)).await.unwrap();
    assert!(sim.ok("DescribeInstances", &of_instance).await.body.contains(&trunk));
}
