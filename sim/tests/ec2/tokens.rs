//! Client tokens (rows 8 and 9 of `ec2.md` §13, injection 16).

use serde_json::json;

use super::*;

#[tokio::test]
async fn a_replayed_create_makes_no_second_eni() {
    let sim = Sim::plain().await;
    let first = sim.eni(&[("ClientToken", "t-1")]).await;
    assert_eq!(sim.eni(&[("ClientToken", "t-1")]).await, first);
    let subnet = subnet_id(1);
    let other = [("SubnetId", subnet.as_str()), ("ClientToken", "t-1"), ("Description", "other")];
    sim.refused("CreateNetworkInterface", &other, 400, "IdempotentParameterMismatch").await;
    assert_ne!(sim.eni(&[("ClientToken", "T-1")]).await, first, "tokens are case-sensitive");
    let too_long = "x".repeat(65);
    let params = [("SubnetId", subnet.as_str()), ("ClientToken", too_long.as_str())];
    sim.refused("CreateNetworkInterface", &params, 400, "InvalidParameterValue").await;
    let log = sim.logged("CreateNetworkInterface").await;
    assert!(!log[0].replay && log[1].replay && log[1].effects.is_empty());
}

#[tokio::test]
async fn a_create_token_outlives_its_eni_in_both_ways() {
    let sim = Sim::plain().await;
    let eni = sim.eni(&[("ClientToken", "t-1")]).await;
    sim.ok("DeleteNetworkInterface", &[("NetworkInterfaceId", &eni)]).await;
    assert_eq!(sim.eni(&[("ClientToken", "t-1")]).await, eni);
    assert_eq!(sim.status(&eni).await, "InvalidNetworkInterfaceID.NotFound");
    assert_eq!(sim.truth(&eni).await, None);
    sim.client.set_switches(&json!({"create_replay_after_delete": "mismatch"})).await.unwrap();
    let subnet = subnet_id(1);
    let params = [("SubnetId", subnet.as_str()), ("ClientToken", "t-1")];
    sim.refused("CreateNetworkInterface", &params, 400, "IdempotentParameterMismatch").await;
    sim.client.set_switches(&json!({"token_ms": 1})).await.unwrap();
    let short = sim.eni(&[("ClientToken", "t-2")]).await;
    let again = std::sync::atomic::AtomicBool::new(false);
    eventually("the token is forgotten", || async {
        let id = sim.eni(&[("ClientToken", "t-2")]).await;
        again.store(id != short, std::sync::atomic::Ordering::Relaxed);
        again.load(std::sync::atomic::Ordering::Relaxed)
    })
    .await;
}

#[tokio::test]
async fn a_replayed_associate_brings_its_id_back_until_the_association_is_gone() {
    let sim = Sim::plain().await;
    let (_, trunk, _) = sim.trunk("m5.large").await;
    let branch = sim.eni(&[]).await;
    let params = [
        ("BranchInterfaceId", branch.as_str()),
        ("TrunkInterfaceId", trunk.as_str()),
        ("VlanId", "5"),
        ("ClientToken", "a-1"),
    ];
    let first = sim.ok("AssociateTrunkInterface", &params).await;
    let again = sim.ok("AssociateTrunkInterface", &params).await;
    let id = first.element("associationId").unwrap();
    assert_eq!(again.element("associationId"), Some(id));
    assert_eq!(again.element("clientToken"), Some("a-1"));
    // Without the token one's own success comes back as a conflict.
    assert_eq!(sim.associate(&branch, &trunk, "5").await.code(), Some("InvalidParameterValue"));
    let undo = [("AssociationId", id), ("ClientToken", "d-1")];
    sim.ok("DisassociateTrunkInterface", &undo).await;
    sim.ok("DisassociateTrunkInterface", &undo).await;
    sim.refused("AssociateTrunkInterface", &params, 400, "IdempotentParameterMismatch").await;
    assert_eq!(sim.associate(&branch, &trunk, "5").await.status, 200, "a new token works");
}

#[tokio::test]
async fn a_forgotten_token_makes_a_second_eni() {
    let sim = Sim::plain().await;
    sim.inject(Fault::on("CreateNetworkInterface", FaultKind::ForgetToken).times(1)).await;
    let first = sim.eni(&[("ClientToken", "t-1")]).await;
    let second = sim.eni(&[("ClientToken", "t-1")]).await;
    assert_ne!(first, second);
    assert_eq!(sim.eni(&[("ClientToken", "t-1")]).await, second);
}
