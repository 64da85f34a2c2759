//! A branch from its creation to its end, and what is lost on the way.

use trunkline_core::eni::{
    CreateBranch, Ec2Call, Ec2Reply, EniKind, EniStatus, FailureClass, Tag, tag,
};
use trunkline_sim::ec2::fault::{Fault, FaultKind};
use trunkline_sim::ec2::model::Effect;

use crate::support::{CLUSTER, OWN_KEY, POD, World, pod, vlan};

const CREATE: &str = "CreateNetworkInterface";
const ASSOCIATE: &str = "AssociateTrunkInterface";
const DISASSOCIATE: &str = "DisassociateTrunkInterface";
const DELETE: &str = "DeleteNetworkInterface";

fn lose() -> FaultKind {
    FaultKind::LoseReply { stall_ms: 0 }
}

fn commit_then_500() -> FaultKind {
    FaultKind::CommitThenError { status: 500, code: "InternalError".into() }
}

fn refuse_500() -> FaultKind {
    FaultKind::Error { status: 500, code: "InternalError".into(), message: String::new() }
}

async fn made(world: &World) -> usize {
    let entries = world.calls(CREATE).await;
    entries
        .iter()
        .flat_map(|e| &e.effects)
        .filter(|e| matches!(e, Effect::EniCreated { .. }))
        .count()
}

#[tokio::test]
async fn a_branch_takes_two_mutations_to_give_and_two_to_take() {
    let world = World::start().await;
    let (eni, association) = world.branch(7).await;
    assert_eq!(eni.tags.bound_pod(), Some(pod(7)));
    assert_eq!(eni.tags.vlan, Tag::Is(vlan(7)));
    assert_eq!(eni.groups, world.create(7).groups);
    let described = world.ec2.call(Ec2Call::Describe(eni.id.clone()), POD).await.unwrap();
    let Ec2Reply::Described(described) = described else { panic!("{described:?}") };
    assert_eq!((described.kind, described.status), (EniKind::Branch, EniStatus::InUse));

    world.disassociate(&eni.id, 7, &association.id).await.unwrap();
    world.delete(&eni.id, 7).await.unwrap();
    assert!(world.sim.state().await.unwrap().eni(eni.id.as_str()).is_none());

    let log = world.sim.log(world.ready).await.unwrap();
    let mutations: Vec<&str> = log
        .iter()
        .filter(|e| !e.action.starts_with("Describe"))
        .map(|e| e.action.as_str())
        .collect();
    assert_eq!(mutations, [CREATE, ASSOCIATE, DISASSOCIATE, DELETE]);
    for entry in &log {
        assert_eq!(entry.caller, OWN_KEY);
        assert!(entry.user_agent.contains("app/trunkline-"), "{}", entry.user_agent);
    }
}

#[tokio::test]
async fn the_create_call_carries_owner_binding_and_token_in_one() {
    let world = World::start().await;
    world.create_branch(7).await.unwrap();
    let [entry] = &world.calls(CREATE).await[..] else { panic!() };
    let Some(Effect::EniCreated { tags, interface_type, .. }) = entry.effects.first() else {
        panic!()
    };
    assert_eq!(interface_type, "interface");
    let expected = [
        (tag::OWNER.to_owned(), tag::OWNER_VALUE.to_owned()),
        (format!("{}{CLUSTER}", tag::CLUSTER_PREFIX), "owned".into()),
        (tag::INSTANCE.into(), world.instance.to_string()),
        (tag::TRUNK.into(), world.trunk.to_string()),
        (tag::VLAN.into(), "7".into()),
        (tag::POD_UID.into(), pod(7).uid.to_string()),
        (tag::POD_NAMESPACE.into(), "shop".into()),
        (tag::POD_NAME.into(), "web-7".into()),
        (tag::INDEX.into(), "0".into()),
    ];
    assert_eq!(*tags, expected.into_iter().collect());
    assert_eq!(entry.params.get("Description").map(String::as_str), Some(tag::BRANCH_DESCRIPTION));
    assert_eq!(entry.params.get("ClientToken").map(String::len), Some(32));
    for absent in ["InterfaceType", "Ipv6AddressCount", "SecondaryPrivateIpAddressCount"] {
        assert!(!entry.params.contains_key(absent), "{absent}");
    }
}

#[tokio::test]
async fn a_static_pods_branch_carries_its_config_hash() {
    let world = World::start().await;
    let hash = Some("6b1f0c1e".parse().unwrap());
    let create = CreateBranch { config_hash: hash, ..world.create(1) };
    let reply = world.ec2.call(Ec2Call::Create(create), POD).await.unwrap();
    let Ec2Reply::Created(eni) = reply else { panic!("{reply:?}") };
    assert_eq!(eni.tags.config_hash, Tag::Is("6b1f0c1e".parse().unwrap()));
}

#[tokio::test]
async fn s44_a_create_whose_reply_is_lost_makes_one_eni_however_often_it_is_repeated() {
    for fault in [lose(), commit_then_500()] {
        // Once: the SDK's retry carries the same token. Three times: the call fails, and its repeat does.
        for times in [1, 3] {
            let world = World::start().await;
            world.sim.inject(&Fault::on(CREATE, fault.clone()).times(times)).await.unwrap();
            if times == 3 {
                let failure = world.create_branch(1).await.unwrap_err();
                assert_eq!(failure.class, FailureClass::OutcomeUnknown, "{failure}");
            }
            let eni = world.create_branch(1).await.unwrap();
            assert_eq!(made(&world).await, 1);
            let found = world.ec2.call(Ec2Call::FindByUid(pod(1).uid), POD).await.unwrap();
            let Ec2Reply::FoundByUid(found) = found else { panic!() };
            assert_eq!(found.iter().map(|e| &e.id).collect::<Vec<_>>(), [&eni.id]);
        }
    }
}

#[tokio::test]
async fn a_lost_association_id_comes_back_by_repeating_the_call() {
    for fault in [lose(), commit_then_500()] {
        let world = World::start().await;
        let eni = world.create_branch(1).await.unwrap();
        world.sim.inject(&Fault::on(ASSOCIATE, fault).times(3)).await.unwrap();
        let failure = world.associate(&eni.id, 1).await.unwrap_err();
        assert_eq!(failure.class, FailureClass::OutcomeUnknown, "{failure}");
        let association = world.associate(&eni.id, 1).await.unwrap();
        let state = world.sim.state().await.unwrap();
        let truth = state.eni(eni.id.as_str()).and_then(|e| e.association.clone()).unwrap();
        assert_eq!(truth.id, association.id.as_str());
    }
}

#[tokio::test]
async fn a_release_whose_reply_is_lost_is_done_on_its_repeat() {
    for fault in [lose(), commit_then_500()] {
        for times in [1, 3] {
            let world = World::start().await;
            let (eni, association) = world.branch(1).await;
            for action in [DISASSOCIATE, DELETE] {
                world.sim.inject(&Fault::on(action, fault.clone()).times(times)).await.unwrap();
            }
            let first = world.disassociate(&eni.id, 1, &association.id).await;
            if let Err(failure) = first {
                assert_eq!(failure.class, FailureClass::OutcomeUnknown, "{failure}");
                world.disassociate(&eni.id, 1, &association.id).await.unwrap();
            }
            if let Err(failure) = world.delete(&eni.id, 1).await {
                assert_eq!(failure.class, FailureClass::OutcomeUnknown, "{failure}");
                world.delete(&eni.id, 1).await.unwrap();
            }
            assert!(world.sim.state().await.unwrap().eni(eni.id.as_str()).is_none());
        }
    }
}

#[tokio::test]
async fn a_refusal_with_500_looks_like_a_lost_reply_and_is_repeated_like_one() {
    let world = World::start().await;
    world.sim.inject(&Fault::on(CREATE, refuse_500()).times(3)).await.unwrap();
    let failure = world.create_branch(1).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::OutcomeUnknown);
    assert_eq!(failure.code.as_deref(), Some("InternalError"));
    assert_eq!(made(&world).await, 0);
    world.create_branch(1).await.unwrap();
    assert_eq!(made(&world).await, 1);
}

#[tokio::test]
async fn a_throttled_retry_does_not_hide_that_the_first_attempt_may_have_happened() {
    let world = World::start().await;
    let throttle = FaultKind::Throttle { status: 503, retry_after_ms: None };
    world.sim.inject(&Fault::on(CREATE, commit_then_500()).times(1)).await.unwrap();
    world.sim.inject(&Fault::on(CREATE, throttle).from_nth(2).times(2)).await.unwrap();
    let failure = world.create_branch(1).await.unwrap_err();
    assert_eq!(failure.code.as_deref(), Some("RequestLimitExceeded"));
    assert_eq!(failure.class, FailureClass::OutcomeUnknown, "{failure}");
    assert_eq!(made(&world).await, 1);
}

#[tokio::test]
async fn tags_and_groups_are_rewritten_on_a_live_branch() {
    let world = World::start().await;
    let (eni, _) = world.branch(1).await;
    let tags = [(tag::VLAN.to_owned(), "9".to_owned())].into();
    let call = Ec2Call::Tag { eni: eni.id.clone(), tags };
    assert_eq!(world.ec2.call(call, POD).await, Ok(Ec2Reply::Tagged));
    let groups: Vec<_> = world.create(1).groups.into_iter().take(1).collect();
    let call = Ec2Call::SetGroups { eni: eni.id.clone(), groups: groups.clone() };
    assert_eq!(world.ec2.call(call, POD).await, Ok(Ec2Reply::GroupsSet));
    let described = world.ec2.call(Ec2Call::Describe(eni.id), POD).await;
    let Ok(Ec2Reply::Described(now)) = described else { panic!("{described:?}") };
    assert_eq!((now.tags.vlan, now.groups), (Tag::Is(vlan(9)), groups));
    assert_eq!(now.kind, EniKind::Branch);
}

#[tokio::test]
async fn an_association_asked_for_by_id_tells_whose_it_is() {
    let world = World::start().await;
    let (_, first) = world.branch(1).await;
    let (second_eni, second) = world.branch(2).await;
    let asked = |id: &trunkline_core::id::AssociationId| {
        world.ec2.call(Ec2Call::DescribeAssociation(id.clone()), POD)
    };
    let Ec2Reply::Associated(shown) = asked(&second.id).await.unwrap() else { panic!() };
    assert_eq!((&shown, &shown.branch), (&second, &second_eni.id));
    world.disassociate(&first.branch, 1, &first.id).await.unwrap();
    assert_eq!(asked(&first.id).await.unwrap_err().class, FailureClass::NotFound);
}
