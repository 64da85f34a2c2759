//! MAC changes on live links: one at a time, in order, and never after the session that asked for them.

use trunkline_core::id::VlanId;
use trunkline_core::message::{MacOutcome, SetMac, ToAgent};

use super::super::*;
use super::world::*;

fn set_mac(request: u64, vlan: i64) -> SetMac {
    SetMac {
        request,
        uid: uid("a"),
        vlan: VlanId::new(vlan).unwrap(),
        from: mac(BRANCH),
        to: mac("02:00:00:00:00:08"),
        addresses: vec![],
    }
}

fn answered(sent: &mut mpsc::Receiver<FromAgent>) -> Vec<u64> {
    let request = |message| match message {
        FromAgent::MacResult { request, outcome: MacOutcome::Done, .. } => Some(request),
        _ => None,
    };
    all(sent).into_iter().filter_map(request).collect()
}

#[tokio::test(start_paused = true)]
async fn links_are_healed_one_at_a_time_and_in_order() {
    let (world, mut sent) = World::settled(None).await;
    world.told(ToAgent::SetMac(set_mac(1, 7))).await;
    world.told(ToAgent::ClearNeighbours { addresses: vec!["10.0.1.17".parse().unwrap()] }).await;
    world.told(ToAgent::SetMac(set_mac(2, 8))).await;
    let heals = || world.node.heals.lock().unwrap().len();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!((heals(), answered(&mut sent)), (1, vec![]));
    seconds(1).await;
    assert_eq!((heals(), answered(&mut sent)), (2, vec![1]));
    seconds(2).await;
    assert_eq!(answered(&mut sent), [2]);
    assert_eq!(
        *world.node.heals.lock().unwrap(),
        [
            "7 to 02:00:00:00:00:08, trunk 02:00:00:00:00:01",
            "clear [10.0.1.17]",
            "8 to 02:00:00:00:00:08, trunk 02:00:00:00:00:01",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn looks_and_heartbeats_go_on_while_a_link_is_healed() {
    let (world, mut sent) = World::settled(None).await;
    for request in 0..20 {
        world.told(ToAgent::SetMac(set_mac(request, 7))).await;
    }
    all(&mut sent);
    let looks = world.node.looks.lock().unwrap().len();
    seconds(12).await;
    assert!(world.node.looks.lock().unwrap().len() > looks + 1);
    let messages = all(&mut sent);
    assert!(messages.iter().filter(|m| matches!(m, FromAgent::Heartbeat(_))).count() >= 2);
}

#[tokio::test(start_paused = true)]
async fn what_was_not_begun_when_the_session_ended_is_never_done() {
    let (world, mut sent) = World::settled(None).await;
    world.told(ToAgent::SetMac(set_mac(1, 7))).await;
    world.told(ToAgent::SetMac(set_mac(2, 8))).await;
    world.session.send(SessionEvent::Disconnected).await.unwrap();
    seconds(5).await;
    assert_eq!(world.node.heals.lock().unwrap().len(), 1, "the one under way is finished");
    assert!(answered(&mut sent).is_empty());

    let mut sent = world.connect().await;
    seconds(1).await;
    world.told(ToAgent::SetMac(set_mac(2, 8))).await;
    seconds(2).await;
    assert_eq!(answered(&mut sent), [2]);
}

#[tokio::test(start_paused = true)]
async fn more_requests_than_a_node_has_branches_are_refused_one_by_one() {
    let (world, mut sent) = World::settled(None).await;
    let failed = |message| match message {
        FromAgent::MacResult { request, outcome: MacOutcome::Failed(_), .. } => Some(request),
        _ => None,
    };
    let mut refused: Vec<u64> = Vec::new();
    for request in 0..300 {
        world.told(ToAgent::SetMac(set_mac(request, 7))).await;
        refused.extend(all(&mut sent).into_iter().filter_map(failed));
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    refused.extend(all(&mut sent).into_iter().filter_map(failed));
    // One is under way, 256 wait.
    assert_eq!(refused, (257..300).collect::<Vec<_>>());
}
