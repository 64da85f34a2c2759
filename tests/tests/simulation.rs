//! The simulation itself: it repeats, its world settles, and its oracle rings. The many seeds are `cargo xtask simulate`'s.

use std::time::Duration;

use trunkline_tests::simulation::{Mutation, Plan, run, seeds};

fn short() -> Plan {
    Plan { nodes: 2, trouble: Duration::from_secs(600), ..Plan::default() }
}

#[test]
fn a_seed_repeats_exactly_and_its_world_settles() {
    let (one, other) = (run(3, short()).unwrap(), run(3, short()).unwrap());
    assert_eq!(one.violation, None);
    assert!(one.count("pod-create") > 5 && one.count("ec2-delete") > 0, "{:?}", one.counts);
    assert_eq!(one.lines, other.lines);
    assert_eq!(one.digest, other.digest);
}

#[test]
fn i1_agents_that_do_not_see_cgroups_are_found() {
    let found = (1..=20).find_map(|seed| {
        let plan = Plan { mutation: Some(Mutation::CgroupsIgnored), ..short() };
        run(seed, plan).unwrap().violation
    });
    assert!(found.as_deref().is_some_and(|what| what.starts_with("I1")), "{found:?}");
}

#[test]
fn kept_seeds_can_be_read() {
    seeds::kept().unwrap();
}
