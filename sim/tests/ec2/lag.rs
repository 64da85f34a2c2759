//! What is seen when (`ec2.md` §7; injections 6 to 8 and 15).

use serde_json::json;

use super::*;

const LONG: [u64; 2] = [600_000, 600_000];

#[tokio::test]
async fn a_new_eni_may_be_missing_from_lists_while_by_id_works_and_the_other_way_round() {
    let sim = Sim::with(json!({"lag": {"create_list": LONG}})).await;
    let eni = sim.eni(&[]).await;
    assert_eq!(sim.status(&eni).await, "available");
    assert!(sim.listed(&[]).await.is_empty());
    sim.client
        .set_switches(&json!({"lag": {"create_list": [0, 0], "create_by_id": LONG}}))
        .await
        .unwrap();
    let hidden = sim.eni(&[]).await;
    assert_eq!(sim.status(&hidden).await, "InvalidNetworkInterfaceID.NotFound");
    assert_eq!(sim.listed(&[]).await, [hidden.as_str()]);
    // Mutations work on the truth.
    sim.ok("DeleteNetworkInterface", &[("NetworkInterfaceId", &hidden)]).await;
}

#[tokio::test]
async fn lag_ends() {
    let sim = Sim::with(json!({"lag": {"create_by_id": [200, 200], "pending": [400, 400]}})).await;
    let eni = sim.eni(&[]).await;
    eventually("by id", || async {
        sim.status(&eni).await != "InvalidNetworkInterfaceID.NotFound"
    })
    .await;
    eventually("available", || async { sim.status(&eni).await == "available" }).await;
}

#[tokio::test]
async fn a_pending_eni_can_be_associated() {
    let sim = Sim::plain().await;
    let (_, trunk, _) = sim.trunk("m5.large").await;
    sim.client.set_switches(&json!({"lag": {"pending": LONG}})).await.unwrap();
    let branch = sim.eni(&[]).await;
    assert_eq!(sim.status(&branch).await, "pending");
    assert_eq!(sim.associate(&branch, &trunk, "1").await.status, 200);
    assert_eq!(sim.status(&branch).await, "in-use");
}

#[tokio::test]
async fn after_disassociate_the_vlan_the_slot_and_the_status_linger() {
    let sim =
        Sim::with(json!({"lag": {"disassociate": [700, 700], "disassociate_list": LONG}})).await;
    let (_, trunk, _) = sim.trunk("m5.large").await;
    let (branch, association) = sim.branch(&trunk, "1").await;
    sim.ok("DisassociateTrunkInterface", &[("AssociationId", &association)]).await;
    let by_id = [("AssociationId.1", association.as_str())];
    sim.refused("DescribeTrunkInterfaceAssociations", &by_id, 400, "InvalidAssociationID.NotFound")
        .await;
    assert!(sim.ok("DescribeTrunkInterfaceAssociations", &[]).await.body.contains(&association));
    let next = sim.eni(&[]).await;
    eventually("the VLAN is free", || async {
        let answer = sim.associate(&next, &trunk, "1").await;
        assert!(
            answer.status == 200 || answer.code() == Some("InvalidVlanId.Duplicate"),
            "{}",
            answer.body
        );
        answer.status == 200
    })
    .await;
    let tries = sim.logged("AssociateTrunkInterface").await;
    assert!(tries.iter().any(|e| e.code.as_deref() == Some("InvalidVlanId.Duplicate")));
    eventually("the branch is free", || async { sim.status(&branch).await == "available" }).await;
    let free = [("Filter.1.Name", "status"), ("Filter.1.Value.1", "available")];
    assert!(!sim.listed(&free).await.contains(&branch), "lists still show the old status");
}

#[tokio::test]
async fn attaching_and_detaching_take_their_time() {
    let sim = Sim::with(json!({"lag": {"attach": [300, 300], "detach": [300, 300]}})).await;
    let (_, trunk, attachment) = sim.trunk("m5.large").await;
    let status = || async { sim.truth(&trunk).await.unwrap().attachment.map(|a| a.status) };
    assert_eq!(status().await.as_deref(), Some("attaching"));
    eventually("attached", || async { status().await.as_deref() == Some("attached") }).await;
    sim.ok("DetachNetworkInterface", &[("AttachmentId", &attachment)]).await;
    let busy = sim.call("DeleteNetworkInterface", &[("NetworkInterfaceId", &trunk)]).await;
    assert_eq!(busy.code(), Some("InvalidParameterValue"));
    eventually("detached", || async { status().await.is_none() }).await;
    sim.ok("DeleteNetworkInterface", &[("NetworkInterfaceId", &trunk)]).await;
}

#[tokio::test]
async fn groups_tags_and_deletions_may_be_seen_late() {
    let sim = Sim::with(json!({"lag": {"groups": LONG, "tags": LONG, "delete_list": LONG}})).await;
    let (first, group) = (sim.eni(&[]).await, group_id(4));
    let id = ("NetworkInterfaceId", first.as_str());
    sim.ok("ModifyNetworkInterfaceAttribute", &[id, ("SecurityGroupId.1", &group)]).await;
    sim.ok("CreateTags", &[("ResourceId.1", &first), ("Tag.1.Key", "new")]).await;
    let shown = sim.ok("DescribeNetworkInterfaces", &[("NetworkInterfaceId.1", &first)]).await;
    assert!(!shown.body.contains(&group) && !shown.body.contains("<key>new</key>"));
    let truth = sim.truth(&first).await.unwrap();
    assert_eq!(truth.groups, [group]);
    assert!(truth.tags.contains_key("new"));
    // A ghost: listed, gone by id.
    sim.ok("DeleteNetworkInterface", &[id]).await;
    assert_eq!(sim.listed(&[]).await, [first.as_str()]);
    assert_eq!(sim.status(&first).await, "InvalidNetworkInterfaceID.NotFound");
}

#[tokio::test]
async fn a_stale_replica_shows_what_was() {
    let sim = Sim::plain().await;
    let eni = sim.eni(&[]).await;
    let by_id = [("NetworkInterfaceId.1", eni.as_str())];
    let once =
        Fault::on("DescribeNetworkInterfaces", FaultKind::Stale { age_ms: 250_000 }).times(1);
    sim.inject(once).await;
    sim.refused("DescribeNetworkInterfaces", &by_id, 400, "InvalidNetworkInterfaceID.NotFound")
        .await;
    sim.ok("DescribeNetworkInterfaces", &by_id).await;
    sim.client
        .set_switches(&json!({"lag": {"stale_share": 1.0, "stale": [250_000, 250_000]}}))
        .await
        .unwrap();
    assert!(sim.listed(&[]).await.is_empty());
}
