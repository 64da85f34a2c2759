//! No attempt after the lease.

use trunkline_core::eni::{Ec2Call, FailureClass};
use trunkline_sim::ec2::fault::{Fault, FaultKind};

use crate::support::{Forbids, POD, World, pod};

const CREATE: &str = "CreateNetworkInterface";

/// The guard asks twice an attempt: before it begins, and directly before it is sent.
const ONE_ATTEMPT: i64 = 2;

#[tokio::test]
async fn s11_after_the_deadline_nothing_is_sent_whatever_is_asked() {
    let world = World::start().await;
    let (eni, association) = world.branch(1).await;
    let before = world.sim.state().await.unwrap().seq;
    world.lease.end_after(0);
    let refused = [
        world.create_branch(2).await.map(drop),
        world.associate(&eni.id, 1).await.map(drop),
        world.disassociate(&eni.id, 1, &association.id).await,
        world.delete(&eni.id, 1).await,
        world.ec2.call(Ec2Call::FindByUid(pod(1).uid), POD).await.map(drop),
        world.ec2.inventory(POD).await.map(drop),
        world.ec2.describe_instance(&world.instance, POD).await.map(drop),
    ];
    for answer in refused {
        let failure = answer.unwrap_err();
        assert_eq!(failure.class, FailureClass::Fenced, "{failure}");
        assert!(failure.message.contains("lease"), "{failure}");
    }
    assert_eq!(world.sim.state().await.unwrap().seq, before);
}

#[tokio::test]
async fn s11_a_retry_inside_the_sdk_is_an_attempt_like_any_other() {
    let world = World::start().await;
    let throttle = FaultKind::Throttle { status: 503, retry_after_ms: Some(1) };
    world.sim.inject(&Fault::on(CREATE, throttle)).await.unwrap();
    world.lease.end_after(ONE_ATTEMPT);
    let failure = world.create_branch(1).await.unwrap_err();
    assert_eq!(
        failure.class,
        FailureClass::Fenced,
        "the only attempt was refused for its rate: {failure}"
    );
    assert_eq!(world.calls(CREATE).await.len(), 1);
}

#[tokio::test]
async fn a_fenced_retry_does_not_hide_that_the_first_attempt_may_have_happened() {
    let world = World::start().await;
    let commit = FaultKind::CommitThenError { status: 500, code: "InternalError".into() };
    world.sim.inject(&Fault::on(CREATE, commit)).await.unwrap();
    world.lease.end_after(ONE_ATTEMPT);
    let failure = world.create_branch(1).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::OutcomeUnknown, "{failure}");
    assert_eq!(world.calls(CREATE).await.len(), 1);
}

#[tokio::test]
async fn a_deadline_that_passes_while_credentials_are_resolved_stops_the_attempt() {
    let world = World::start().await;
    world.lease.end_after(1);
    let failure = world.create_branch(1).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::Fenced, "{failure}");
    assert!(world.calls(CREATE).await.is_empty());
}

#[tokio::test]
async fn idea_12_what_the_mode_forbids_is_not_sent_and_everything_else_is() {
    let world = World::start().await;
    let (eni, association) = world.branch(1).await;
    world.lease.forbid(Forbids::Releases);
    let before = world.sim.state().await.unwrap().seq;
    for answer in
        [world.disassociate(&eni.id, 1, &association.id).await, world.delete(&eni.id, 1).await]
    {
        let failure = answer.unwrap_err();
        assert_eq!(failure.class, FailureClass::Fenced, "{failure}");
        assert!(failure.message.contains("mode"), "{failure}");
    }
    assert_eq!(world.sim.state().await.unwrap().seq, before);
    let (other, _) = world.branch(2).await;
    world.lease.forbid(Forbids::Changes);
    let before = world.sim.state().await.unwrap().seq;
    for answer in [
        world.create_branch(3).await.map(drop),
        world.associate(&other.id, 2).await.map(drop),
        world.disassociate(&eni.id, 1, &association.id).await,
    ] {
        assert_eq!(answer.unwrap_err().class, FailureClass::Fenced);
    }
    assert_eq!(world.sim.state().await.unwrap().seq, before);
    world.ec2.inventory(POD).await.unwrap();
    world.lease.forbid(Forbids::Nothing);
    world.disassociate(&eni.id, 1, &association.id).await.unwrap();
}
