//! Every refusal and every odd reply ends in the right class.

use std::time::Duration;

use serde_json::json;
use trunkline_core::eni::{Ec2Call, Ec2Reply, FailureClass};
use trunkline_core::id::EniId;
use trunkline_core::time::Timing;
use trunkline_ec2::{Priority, Settings};
use trunkline_sim::ec2::Config;
use trunkline_sim::ec2::fault::{Fault, FaultKind};
use trunkline_sim::ec2::model::{EniSpec, SubnetSpec};
use trunkline_sim::ec2::switches::Switches;

use crate::support::{POD, World, permit, pod, vlan};

const CREATE: &str = "CreateNetworkInterface";
const ASSOCIATE: &str = "AssociateTrunkInterface";
const DISASSOCIATE: &str = "DisassociateTrunkInterface";
const DELETE: &str = "DeleteNetworkInterface";
const DESCRIBE: &str = "DescribeNetworkInterfaces";

fn error(status: u16, code: &str, message: &str) -> FaultKind {
    FaultKind::Error { status, code: code.into(), message: message.into() }
}

#[tokio::test]
async fn every_injected_code_has_its_class() {
    use FailureClass as C;
    let world = World::start().await;
    let eni = world.create_branch(1).await.unwrap();
    let table = [
        (CREATE, 400, "InsufficientFreeAddressesInSubnet", "", C::SubnetFull),
        (CREATE, 400, "InsufficientCidrBlocks", "", C::SubnetFull),
        (
            CREATE,
            400,
            "InvalidParameterValue",
            "There aren't sufficient free Ipv4 addresses",
            C::SubnetFull,
        ),
        (CREATE, 400, "NetworkInterfaceLimitExceeded", "", C::Quota),
        (CREATE, 400, "SecurityGroupsPerInterfaceLimitExceeded", "", C::Configuration),
        (CREATE, 400, "InvalidGroup.NotFound", "", C::Configuration),
        (CREATE, 400, "InvalidSecurityGroupID.NotFound", "", C::Configuration),
        (CREATE, 400, "InvalidGroupId.Malformed", "", C::Configuration),
        (CREATE, 400, "InvalidSubnetID.NotFound", "", C::Configuration),
        (CREATE, 400, "IdempotentParameterMismatch", "", C::TokenMismatch),
        (CREATE, 400, "MissingParameter", "", C::Malformed),
        (CREATE, 400, "InvalidParameterCombination", "", C::Malformed),
        (CREATE, 400, "ConcurrentTagAccess", "", C::Transient),
        (CREATE, 400, "Client.NetworkInterfaceLimitExceeded", "", C::Quota),
        (CREATE, 403, "UnauthorizedOperation", "", C::Unauthorised),
        (CREATE, 400, "RequestExpired", "", C::Credentials),
        (CREATE, 400, "SomethingNew", "", C::Unrecognised),
        (CREATE, 400, "Client.RequestLimitExceeded", "", C::Throttled),
        (CREATE, 500, "SomethingNew", "", C::OutcomeUnknown),
        (CREATE, 503, "Unavailable", "", C::OutcomeUnknown),
        (CREATE, 400, "InternalError", "", C::OutcomeUnknown),
        (ASSOCIATE, 400, "InvalidVlanId.Duplicate", "VlanId '1' is in use", C::VlanInUse),
        (ASSOCIATE, 400, "AttachmentLimitExceeded", "", C::BranchLimit),
        (
            ASSOCIATE,
            400,
            "InvalidParameterValue",
            "eni is already associated",
            C::AlreadyAssociated,
        ),
        (ASSOCIATE, 400, "InvalidNetworkInterface.InUse", "", C::AlreadyAssociated),
        (ASSOCIATE, 400, "InvalidNetworkInterfaceID.NotFound", "", C::NotFound),
        (ASSOCIATE, 400, "IncorrectState", "", C::Transient),
        (ASSOCIATE, 400, "TrunkBranchLimitReached", "", C::Unrecognised),
    ];
    for (action, status, code, message, class) in table {
        let fault =
            world.sim.inject(&Fault::on(action, error(status, code, message))).await.unwrap();
        let failure = if action == CREATE {
            world.create_branch(2).await.unwrap_err()
        } else {
            world.associate(&eni.id, 1).await.unwrap_err()
        };
        assert_eq!(failure.class, class, "{action} {status} {code}: {failure}");
        assert_eq!(failure.code.as_deref(), Some(code));
        world.sim.clear_faults(Some(&fault)).await.unwrap();
    }
}

#[tokio::test]
async fn error_bodies_without_a_code_leave_the_outcome_unknown() {
    let world = World::start().await;
    for (status, body) in [
        (502, "<html>bad gateway</html>"),
        (403, "<html>forbidden by the proxy</html>"),
        (500, ""),
        (400, "<Response><Errors><Error><Message>no code</Message></Error></Errors></Response>"),
    ] {
        let kind = FaultKind::Body { status, body: body.into(), content_type: "text/html".into() };
        let fault = world.sim.inject(&Fault::on(CREATE, kind)).await.unwrap();
        let failure = world.create_branch(1).await.unwrap_err();
        assert_eq!(failure.class, FailureClass::OutcomeUnknown, "{status}: {failure}");
        assert_eq!(failure.code, None);
        world.sim.clear_faults(Some(&fault)).await.unwrap();
    }
}

#[tokio::test]
async fn a_success_with_a_foreign_body_is_never_taken_for_done() {
    let world = World::start().await;
    let (eni, _) = world.branch(1).await;
    for body in [
        "",
        "garbage",
        "<Response><Errors><Error><Code>InternalError</Code></Error></Errors></Response>",
        "<DescribeInstancesResponse></DescribeInstancesResponse>",
        "<CreateTagsResponse><return>false</return></CreateTagsResponse>",
        "<CreateTagsResponse><return>true</return></CreateTagsRespo",
    ] {
        let kind =
            FaultKind::Body { status: 200, body: body.into(), content_type: "text/xml".into() };
        let fault = world.sim.inject(&Fault::on("CreateTags", kind)).await.unwrap();
        let tags = [("a".to_owned(), "b".to_owned())].into();
        let failure =
            world.ec2.call(Ec2Call::Tag { eni: eni.id.clone(), tags }, POD).await.unwrap_err();
        assert_eq!(failure.class, FailureClass::OutcomeUnknown, "{body}: {failure}");
        world.sim.clear_faults(Some(&fault)).await.unwrap();
    }
}

#[tokio::test]
async fn a_throttled_call_is_tried_three_times_and_says_so() {
    for status in [503, 400] {
        let world = World::start().await;
        let kind = FaultKind::Throttle { status, retry_after_ms: Some(10) };
        world.sim.inject(&Fault::on(CREATE, kind).times(3)).await.unwrap();
        let failure = world.create_branch(1).await.unwrap_err();
        assert_eq!(failure.class, FailureClass::Throttled);
        assert!(!failure.class.may_have_happened());
        let calls = world.calls(CREATE).await;
        assert_eq!(calls.iter().filter_map(|c| c.attempt).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(
            calls.iter().map(|c| &c.invocation).collect::<std::collections::BTreeSet<_>>().len(),
            1
        );
        world.create_branch(1).await.unwrap();
    }
}

#[tokio::test]
async fn a_server_that_never_answers_costs_three_attempts_and_no_more() {
    let short = |settings: Settings| Settings {
        timing: Timing {
            ec2_attempt: Duration::from_millis(200),
            ec2_operation: Duration::from_secs(8),
            ..Timing::default()
        },
        ..settings
    };
    let world = World::with(Config::plain(), short).await;
    world.sim.inject(&Fault::on(CREATE, FaultKind::Hang { ms: 60_000 })).await.unwrap();
    let failure = world.create_branch(1).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::OutcomeUnknown, "{failure}");
    let fired: Vec<u64> =
        world.sim.faults().await.unwrap().iter().map(|(_, fired)| *fired).collect();
    assert_eq!(fired, [3]);
}

#[tokio::test]
async fn a_reply_that_stalls_past_the_timeout_is_read_back_by_its_repeat() {
    let short = |settings: Settings| Settings {
        timing: Timing { ec2_attempt: Duration::from_millis(300), ..settings.timing },
        ..settings
    };
    let world = World::with(Config::plain(), short).await;
    world
        .sim
        .inject(&Fault::on(CREATE, FaultKind::LoseReply { stall_ms: 5_000 }).times(1))
        .await
        .unwrap();
    let eni = world.create_branch(1).await.unwrap();
    let state = world.sim.state().await.unwrap();
    let uid = pod(1).uid;
    let of_pod = state.enis.iter().filter(|e| e.tags.values().any(|v| v == uid.as_str()));
    assert_eq!(of_pod.map(|e| e.id.as_str()).collect::<Vec<_>>(), [eni.id.as_str()]);
}

#[tokio::test]
async fn s43_an_eni_that_ec2_does_not_show_yet_is_not_found_and_later_there() {
    let world = World::start().await;
    let lag = FaultKind::Lag { by_id_ms: 400, list_ms: 800 };
    world.sim.inject(&Fault::on(CREATE, lag).times(1)).await.unwrap();
    let eni = world.create_branch(1).await.unwrap();
    let failure = world.ec2.call(Ec2Call::Describe(eni.id.clone()), POD).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::NotFound);
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    loop {
        let found = world.ec2.call(Ec2Call::FindByUid(pod(1).uid), POD).await.unwrap();
        let Ec2Reply::FoundByUid(found) = found else { panic!() };
        if found.len() == 1 {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    world.ec2.call(Ec2Call::Describe(eni.id), POD).await.unwrap();
}

#[tokio::test]
async fn a_duplicate_vlan_is_a_class_of_its_own_whoever_holds_it() {
    let world = World::start().await;
    let eni = world.create_branch(1).await.unwrap();
    world.sim.inject(&Fault::on(ASSOCIATE, FaultKind::VlanDuplicate).times(1)).await.unwrap();
    let failure = world.associate(&eni.id, 1).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::VlanInUse);
    // A foreign association on the VLAN.
    let foreign =
        EniSpec { trunk: Some(world.trunk.to_string()), vlan: Some(1), ..EniSpec::default() };
    world.sim.add_eni(&foreign).await.unwrap();
    let failure = world.associate(&eni.id, 1).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::VlanInUse);
    // Our own earlier success, its token forgotten.
    let other = world.create_branch(2).await.unwrap();
    world.sim.inject(&Fault::on(ASSOCIATE, FaultKind::ForgetToken).times(2)).await.unwrap();
    world.associate(&other.id, 2).await.unwrap();
    let failure = world.associate(&other.id, 2).await.unwrap_err();
    assert!(
        matches!(failure.class, FailureClass::VlanInUse | FailureClass::AlreadyAssociated),
        "{failure}"
    );
}

#[tokio::test]
async fn a_branch_that_is_associated_elsewhere_is_told_apart_under_both_codes() {
    for code in ["InvalidParameterValue", "InvalidNetworkInterface.InUse"] {
        let world = World::start().await;
        world.sim.set_switches(&json!({ "already_associated_code": code })).await.unwrap();
        let (eni, _) = world.branch(1).await;
        let failure = world.associate(&eni.id, 2).await.unwrap_err();
        assert_eq!(failure.class, FailureClass::AlreadyAssociated, "{failure}");
    }
}

#[tokio::test]
async fn a_token_that_ec2_forgot_makes_a_second_eni_that_the_uid_finds() {
    let world = World::start().await;
    world.sim.inject(&Fault::on(CREATE, FaultKind::ForgetToken).times(2)).await.unwrap();
    let first = world.create_branch(1).await.unwrap();
    let second = world.create_branch(1).await.unwrap();
    assert_ne!(first.id, second.id);
    let found = world.ec2.call(Ec2Call::FindByUid(pod(1).uid), POD).await.unwrap();
    let Ec2Reply::FoundByUid(found) = found else { panic!() };
    assert_eq!(found.len(), 2);
}

#[tokio::test]
async fn a_token_with_other_parameters_is_a_mismatch_and_the_next_nonce_is_free() {
    let world = World::start().await;
    world.create_branch(1).await.unwrap();
    let mut create = world.create(1);
    create.vlan = vlan(2);
    let failure = world.ec2.call(Ec2Call::Create(create.clone()), POD).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::TokenMismatch);
    create.nonce = 1;
    world.ec2.call(Ec2Call::Create(create), POD).await.unwrap();
}

#[tokio::test]
async fn delete_of_an_eni_in_use_is_busy_under_both_codes_and_works_later() {
    for documented in [false, true] {
        let world = World::start().await;
        let eni = world.create_branch(1).await.unwrap();
        world
            .sim
            .inject(&Fault::on(DELETE, FaultKind::InUse { documented }).times(1))
            .await
            .unwrap();
        let failure = world.delete(&eni.id, 1).await.unwrap_err();
        assert_eq!(failure.class, FailureClass::InUse, "{failure}");
        world.delete(&eni.id, 1).await.unwrap();
    }
}

#[tokio::test]
async fn s22_an_association_that_is_gone_is_success_and_a_busy_slot_is_not_hidden() {
    let world = World::start().await;
    let (eni, association) = world.branch(1).await;
    world.sim.disassociate(association.id.as_str()).await.unwrap();
    world.disassociate(&eni.id, 1, &association.id).await.unwrap();
    let (other, association) = world.branch(2).await;
    let gone = FaultKind::AssociationNotFound { removed: true };
    world.sim.inject(&Fault::on(DISASSOCIATE, gone).times(1)).await.unwrap();
    world.disassociate(&other.id, 2, &association.id).await.unwrap();
    let (busy, association) = world.branch(3).await;
    world
        .sim
        .inject(&Fault::on(DISASSOCIATE, FaultKind::SlotBusy { ms: 600_000 }).times(1))
        .await
        .unwrap();
    world.disassociate(&busy.id, 3, &association.id).await.unwrap();
    let next = world.create_branch(4).await.unwrap();
    let failure = world.associate(&next.id, 3).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::VlanInUse);
}

#[tokio::test]
async fn s22_disassociate_without_the_right_is_reported_and_changes_nothing() {
    let world = World::start().await;
    let (eni, association) = world.branch(1).await;
    world.sim.set_switches(&json!({"unauthorized": [{"action": DISASSOCIATE}]})).await.unwrap();
    let failure = world.disassociate(&eni.id, 1, &association.id).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::Unauthorised);
    assert_eq!(world.calls(DISASSOCIATE).await.len(), 1);
}

#[tokio::test]
async fn an_eni_that_is_gone_is_deleted() {
    let world = World::start().await;
    let never: EniId = "eni-0123456789abcdef0".parse().unwrap();
    assert_eq!(world.ec2.release(permit(&never, &pod(1).uid, None)).await, Ok(Ec2Reply::Deleted));
    // A refusal for another reason is not read as absence.
    world.sim.set_switches(&json!({ "auth_failure": true })).await.unwrap();
    let failure = world.ec2.release(permit(&never, &pod(1).uid, None)).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::Credentials);
}

#[tokio::test]
async fn incomplete_replies_are_not_believed() {
    let world = World::start().await;
    let eni = world.create_branch(1).await.unwrap();
    for (action, element) in [
        (CREATE, "networkInterfaceId"),
        (CREATE, "macAddress"),
        (CREATE, "networkInterface"),
        (ASSOCIATE, "associationId"),
        (ASSOCIATE, "interfaceAssociation"),
        (ASSOCIATE, "vlanId"),
        (DESCRIBE, "networkInterfaceSet"),
        (DESCRIBE, "vpcId"),
    ] {
        let kind = FaultKind::Omit { elements: vec![element.into()] };
        let fault = world.sim.inject(&Fault::on(action, kind)).await.unwrap();
        let failure = match action {
            CREATE => world.create_branch(2).await.unwrap_err(),
            ASSOCIATE => world.associate(&eni.id, 1).await.unwrap_err(),
            _ => world.ec2.call(Ec2Call::Describe(eni.id.clone()), POD).await.unwrap_err(),
        };
        assert_eq!(
            failure.class,
            FailureClass::OutcomeUnknown,
            "{action} without {element}: {failure}"
        );
        world.sim.clear_faults(Some(&fault)).await.unwrap();
        // What was made in truth is found by the repeat.
        if action == ASSOCIATE {
            world.associate(&eni.id, 1).await.unwrap();
        }
    }
}

#[tokio::test]
async fn cut_replies_of_mutations_are_unknown_and_their_repeat_finds_the_truth() {
    for percent in (0..100).step_by(9) {
        let world = World::start().await;
        let cut = FaultKind::CutBody { percent, bad_framing: false };
        world.sim.inject(&Fault::on(CREATE, cut.clone()).times(1)).await.unwrap();
        let failure = world.create_branch(1).await.unwrap_err();
        assert_eq!(failure.class, FailureClass::OutcomeUnknown, "{percent} %: {failure}");
        let eni = world.create_branch(1).await.unwrap();
        world.sim.inject(&Fault::on(ASSOCIATE, cut).times(1)).await.unwrap();
        let failure = world.associate(&eni.id, 1).await.unwrap_err();
        assert_eq!(failure.class, FailureClass::OutcomeUnknown, "{percent} %: {failure}");
        world.associate(&eni.id, 1).await.unwrap();
    }
}

#[tokio::test]
async fn s45_a_full_subnet_and_a_full_region_are_told_apart() {
    let world = World::start().await;
    let spec = SubnetSpec {
        id: String::new(),
        cidr: "10.0.240.0/28".into(),
        ipv6_cidr: None,
        assign_ipv6: false,
        zone: String::new(),
        vpc: String::new(),
        tags: [].into(),
    };
    let subnet = world.sim.add_subnet(&spec).await.unwrap();
    let mut outcomes = Vec::new();
    for n in 1..=13 {
        let create = trunkline_core::eni::CreateBranch {
            subnet: subnet.parse().unwrap(),
            ..world.create(n)
        };
        outcomes.push(world.ec2.call(Ec2Call::Create(create), POD).await.map_err(|f| f.class));
    }
    let full = outcomes.iter().filter(|o| **o == Err(FailureClass::SubnetFull)).count();
    assert_eq!((outcomes.iter().filter(|o| o.is_ok()).count(), full), (11, 2), "{outcomes:?}");
    let enis = world.sim.state().await.unwrap().enis.len();
    world.sim.set_switches(&json!({"limits": {"enis": enis}})).await.unwrap();
    assert_eq!(world.create_branch(20).await.unwrap_err().class, FailureClass::Quota);
}

#[tokio::test]
async fn the_branch_limit_of_the_table_is_seen_under_its_codes() {
    for (code, class) in [
        ("AttachmentLimitExceeded", FailureClass::BranchLimit),
        ("InvalidParameterValue", FailureClass::Unrecognised),
    ] {
        let world = World::start().await;
        world.sim.set_switches(&json!({ "branch_limit_code": code })).await.unwrap();
        for n in 1..=9 {
            world.branch(n).await;
        }
        let eni = world.create_branch(10).await.unwrap();
        assert_eq!(world.associate(&eni.id, 10).await.unwrap_err().class, class);
    }
}

#[tokio::test]
async fn stale_reads_and_a_wrong_date_are_survived() {
    let world = World::start().await;
    let (eni, _) = world.branch(1).await;
    world
        .sim
        .inject(&Fault::on(DESCRIBE, FaultKind::Date { offset_s: 600 }).times(1))
        .await
        .unwrap();
    world.ec2.call(Ec2Call::Describe(eni.id.clone()), POD).await.unwrap();
    world.sim.inject(&Fault::on(DESCRIBE, FaultKind::Slow { ms: 200 }).times(1)).await.unwrap();
    world.ec2.call(Ec2Call::Describe(eni.id.clone()), POD).await.unwrap();
    world
        .sim
        .inject(&Fault::on(DESCRIBE, FaultKind::Stale { age_ms: 3_600_000 }).times(1))
        .await
        .unwrap();
    let failure = world.ec2.call(Ec2Call::Describe(eni.id), POD).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::NotFound);
}

#[tokio::test]
async fn s30_a_burst_beyond_the_bucket_waits_in_ours_and_no_call_fails() {
    let switches = Switches {
        throttle: trunkline_sim::ec2::switches::Throttle::default(),
        ..Switches::plain()
    };
    assert!(switches.throttle.enabled);
    let config = Config { switches, ..Config::plain() };
    let world = World::with(config, |settings| Settings { budget: true, ..settings }).await;
    let limits = json!({"limits": {"branches": {"m5.large": 120}}});
    world.sim.set_switches(&limits).await.unwrap();
    let mut enis = Vec::new();
    for n in 1..=60 {
        enis.push((n, world.create_branch(n).await.unwrap().id));
    }
    let calls = enis.iter().map(|(n, eni)| {
        let (ec2, call) = (world.ec2.clone(), Ec2Call::Associate(world.association(eni, *n)));
        tokio::spawn(async move { ec2.call(call, Priority::PodStart).await })
    });
    let calls: Vec<_> = calls.collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let refused = world.calls(ASSOCIATE).await.iter().filter(|c| c.status == Some(503)).count();
    assert!(refused <= 6, "{refused} refused of 60");
    assert_eq!(world.sim.state().await.unwrap().branches_of(world.trunk.as_str()).count(), 60);
}

#[tokio::test]
async fn s68_beside_a_noisy_neighbour_every_call_gets_through_without_a_storm() {
    let mut config = Config { switches: Switches::plain(), ..Config::plain() };
    config.switches.throttle = trunkline_sim::ec2::switches::Throttle::default();
    config.switches.throttle.neighbour = [(ASSOCIATE.to_owned(), 2.5)].into();
    config.switches.limits.branches = [("m5.large".to_owned(), 120)].into();
    let world = World::with(config, |settings| Settings { budget: true, ..settings }).await;
    let mut calls = Vec::new();
    for n in 1..=56 {
        let eni = world.create_branch(n).await.unwrap().id;
        let (ec2, association) = (world.ec2.clone(), world.association(&eni, n));
        calls.push(tokio::spawn(async move {
            loop {
                match ec2.call(Ec2Call::Associate(association.clone()), Priority::PodStart).await {
                    Err(failure) if failure.class == FailureClass::Throttled => {}
                    answer => return answer,
                }
            }
        }));
    }
    for call in calls {
        call.await.unwrap().unwrap();
    }
    let calls = world.calls(ASSOCIATE).await.len();
    assert!(calls <= 56 + 40, "{calls} calls for 56 associations");
}
