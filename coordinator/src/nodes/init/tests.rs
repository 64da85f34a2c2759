use super::*;
use crate::inventory;
use crate::testing::{
    FakeCloud, attached, branch, eni, eni_id, failure, settings_in_force, trunk_eni,
};

fn instance() -> InstanceId {
    "i-00000001".parse().unwrap()
}

struct World {
    cloud: Arc<FakeCloud>,
    clock: Clock,
    shared: Shared,
    keep: tokio::task::JoinHandle<()>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.keep.abort();
    }
}

fn world(prepare: impl FnOnce(&FakeCloud)) -> World {
    let cloud = FakeCloud::new();
    cloud.run_instance(&instance(), "m5.large", 1);
    prepare(&cloud);
    let clock = Clock::virtual_time();
    let timing = Timing::default();
    let (board, keep) = inventory::board(cloud.clone(), clock, timing, timing.inventory_interval);
    let overrides = trunkline_core::limits::parse_overrides("zz9.large=5").unwrap();
    let shared = Shared {
        cloud: cloud.clone(),
        limits: Arc::new(Mutex::new(Limits::new(overrides).unwrap())),
        board,
        subnets: Arc::default(),
        clock,
        timing,
        settings: watch::channel(settings_in_force()).1,
    };
    World { cloud, clock, shared, keep: tokio::spawn(keep) }
}

impl World {
    fn init(&self) -> Init {
        Init::new(self.shared.clone(), instance(), false)
    }
}

/// Rounds until one succeeds, with a pause between them.
async fn until_ready(init: &mut Init, clock: Clock) -> (Ready, u32) {
    for failed in 0..200 {
        match init.round().await {
            Ok(ready) => return (ready, failed),
            Err(_) => clock.sleep(Duration::from_secs(10)).await,
        }
    }
    panic!("the node never became ready");
}

#[tokio::test(start_paused = true)]
async fn a_new_node_gets_a_trunk_in_the_highest_slot_that_ends_with_its_instance() {
    let world = world(|_| {});
    let ready = world.init().round().await.unwrap();
    let [trunk] = &world.cloud.trunks(&instance())[..] else { panic!("one trunk") };
    assert_eq!(ready.trunk.eni, trunk.id);
    assert_eq!(ready.trunk.limit, 9);
    assert!(ready.trunk.fresh);
    assert_eq!(ready.trunk.cidrs.v4, "10.0.0.0/16");
    assert_eq!(ready.trunk.default_groups, vec!["sg-1".parse().unwrap()]);
    let attachment = trunk.attachment.as_ref().unwrap();
    assert_eq!(attachment.device_index, 2);
    assert!(attachment.delete_on_termination);
}

#[tokio::test(start_paused = true)]
async fn an_attached_trunk_is_adopted_without_a_mutation_and_is_not_fresh() {
    let world = world(|c| c.put(trunk_eni(7, &instance())));
    let mut init = world.init();
    let ready = init.round().await.unwrap();
    assert_eq!(ready.trunk.eni, eni_id(7));
    assert!(!ready.trunk.fresh);
    for action in ["create_trunk", "attach", "delete_with_instance", "delete_trunk"] {
        assert_eq!(world.cloud.count(action), 0, "{action}");
    }
}

#[tokio::test(start_paused = true)]
async fn s31_a_failure_at_any_step_leaves_one_trunk_in_the_end() {
    for action in
        ["instance", "subnet", "create_trunk", "attach", "describe", "delete_with_instance"]
    {
        for class in
            [FailureClass::OutcomeUnknown, FailureClass::Throttled, FailureClass::Unauthorised]
        {
            let world = world(|c| c.fail(action, vec![failure(class, "Failure"); 2]));
            let (ready, _) = until_ready(&mut world.init(), world.clock).await;
            let trunks = world.cloud.trunks(&instance());
            assert_eq!(trunks.len(), 1, "{action} {class:?}");
            assert_eq!(ready.trunk.eni, trunks[0].id);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn s44_lost_replies_to_create_and_attach_make_no_second_trunk() {
    for action in ["create_trunk", "attach"] {
        let world = world(|c| {
            c.state().lost_replies.insert(action, 2);
        });
        until_ready(&mut world.init(), world.clock).await;
        assert_eq!(world.cloud.trunks(&instance()).len(), 1, "{action}");
    }
}

#[tokio::test(start_paused = true)]
async fn s44_a_new_term_attaches_the_trunk_that_the_last_one_only_created() {
    let world = world(|c| {
        let mut left = eni(7, EniKind::Trunk);
        left.tags.instance = Tag::Is(instance());
        c.put(left);
    });
    let ready = world.init().round().await.unwrap();
    assert_eq!(ready.trunk.eni, eni_id(7));
    assert_eq!(world.cloud.count("create_trunk"), 0);
}

#[tokio::test(start_paused = true)]
async fn s07_a_hidden_trunk_is_found_by_id_and_not_made_again() {
    let world = world(|c| {
        c.put(trunk_eni(7, &instance()));
        c.state().hidden.insert(eni_id(7));
    });
    assert_eq!(world.init().round().await.unwrap().trunk.eni, eni_id(7));
    assert_eq!(world.cloud.count("create_trunk"), 0);
}

#[tokio::test(start_paused = true)]
async fn s07_a_trunk_that_only_its_branches_name_is_waited_for() {
    let world = world(|c| c.put(branch(8, 7, &instance(), 3)));
    let mut init = world.init();
    assert_eq!(init.round().await, Err(Failed::Refused(Refusal::Hidden(eni_id(7)))));
    world.cloud.put(trunk_eni(7, &instance()));
    assert_eq!(init.round().await.unwrap().trunk.eni, eni_id(7));
    assert_eq!(world.cloud.count("create_trunk"), 0);
}

#[tokio::test(start_paused = true)]
async fn s32_an_incomplete_instance_is_read_again() {
    let without = |change: fn(&mut Instance)| {
        world(move |c| c.state().instances.values_mut().for_each(change))
    };
    let cases: [(World, Failed); 5] = [
        (without(|i| i.interfaces.clear()), Failed::Incomplete("network interfaces")),
        (without(|i| i.missing = Some("subnetId")), Failed::Incomplete("subnetId")),
        (without(|i| i.subnet = None), Failed::Incomplete("subnet id")),
        (without(|i| i.kind = None), Failed::Incomplete("instance type")),
        (without(|i| i.state = "terminated".into()), Failed::NotRunning("terminated".into())),
    ];
    for (world, expected) in cases {
        assert_eq!(world.init().round().await, Err(expected));
    }
    let untyped = world(|c| {
        c.put(attached(eni(9, EniKind::Other), &instance(), 1));
    });
    let refused = untyped.init().round().await.unwrap_err();
    assert_eq!(refused.name(), "interface-without-type");
    untyped.cloud.state().enis.clear();
    assert!(untyped.init().round().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn trk_13_a_trunk_that_ec2_will_not_attach_is_deleted_and_the_next_has_another_token() {
    let world =
        world(|c| c.fail("attach", vec![failure(FailureClass::Quota, "AttachmentLimitExceeded")]));
    let mut init = world.init();
    let failed = init.round().await.unwrap_err();
    assert_eq!(failed.ec2_code(), Some("AttachmentLimitExceeded"));
    assert!(world.cloud.trunks(&instance()).is_empty());
    assert!(init.round().await.is_ok());
    assert_eq!(world.cloud.trunks(&instance()).len(), 1);
    assert_eq!(world.cloud.count("create_trunk"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_taken_slot_leads_to_the_next_lower_one() {
    let taken = Ec2Failure {
        class: FailureClass::Malformed,
        code: Some("InvalidParameterValue".into()),
        message: "Instance 'i-1' already has an interface attached at device index '2'.".into(),
    };
    let world = world(|c| c.fail("attach", vec![taken]));
    world.init().round().await.unwrap();
    assert_eq!(world.cloud.trunks(&instance())[0].attachment.as_ref().unwrap().device_index, 1);
}

#[tokio::test(start_paused = true)]
async fn read_only_and_adopt_only_rounds_mutate_nothing() {
    let world = world(|_| {});
    let forbidden = Settings { read_only: true, ..settings_in_force() };
    let read_only = Shared { settings: watch::channel(forbidden).1, ..world.shared.clone() };
    assert_eq!(Init::new(read_only, instance(), false).round().await, Err(Failed::ReadOnly));
    assert_eq!(
        Init::new(world.shared.clone(), instance(), true).round().await,
        Err(Failed::NotWanted)
    );
    assert_eq!(world.cloud.count("create_trunk"), 0);
}

#[tokio::test(start_paused = true)]
async fn s38_s39_types_without_limits_fail_lastingly_and_slots_are_learned() {
    let kind = |name: &'static str| world(move |c| c.run_instance(&instance(), name, 1));
    let unknown = kind("zz1.large").init().round().await.unwrap_err();
    assert!(unknown.is_lasting());
    assert_eq!(unknown.name(), "unknown-instance-type");
    assert_eq!(kind("c3.large").init().round().await.unwrap_err().name(), "no-trunking");
    let learned = kind("zz9.large");
    let ready = learned.init().round().await.unwrap();
    assert_eq!(ready.trunk.limit, 5);
    assert_eq!(learned.cloud.trunks(&instance())[0].attachment.as_ref().unwrap().device_index, 3);
}
