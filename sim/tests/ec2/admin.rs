//! The admin side, the start state and the binary.

use std::process::Stdio;

use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use trunkline_sim::ec2::client::ClientError;
use trunkline_sim::ec2::model::{Effect, EniSpec, State, TagEdit};

use super::*;

#[tokio::test]
async fn a_peers_branch_can_be_faked_and_everything_be_changed_out_of_band() {
    let sim = Sim::plain().await;
    let (_, trunk, _) = sim.trunk("m5.large").await;
    let spec = EniSpec {
        description: "aws-k8s-branch-eni".into(),
        tags: [("vpcresources.k8s.aws/vlan-id".into(), "4".into())].into(),
        trunk: Some(trunk.clone()),
        vlan: Some(4),
        ..EniSpec::default()
    };
    let branch = sim.client.add_eni(&spec).await.unwrap();
    let shown = sim.ok("DescribeNetworkInterfaces", &[("NetworkInterfaceId.1", &branch)]).await;
    assert_eq!(
        (shown.element("status"), shown.element("interfaceType")),
        (Some("in-use"), Some("branch"))
    );
    let edit = TagEdit {
        id: branch.clone(),
        set: [("a".into(), "b".into())].into(),
        remove: vec!["vpcresources.k8s.aws/vlan-id".into()],
    };
    sim.client.edit_tags(&edit).await.unwrap();
    assert_eq!(sim.truth(&branch).await.unwrap().tags, edit.set);
    sim.client.set_groups(&branch, &[group_id(5)]).await.unwrap();
    assert_eq!(sim.truth(&branch).await.unwrap().groups, [group_id(5)]);
    sim.client.delete_eni(&branch).await.unwrap();
    assert_eq!(sim.truth(&branch).await, None);
    sim.client.detach_eni(&trunk).await.unwrap();
    assert_eq!(sim.status(&trunk).await, "available");

    let by_admin: Vec<_> = sim
        .client
        .log(1)
        .await
        .unwrap()
        .into_iter()
        .filter(|e| e.action == "_sim/enis/delete")
        .collect();
    assert_eq!(by_admin[0].caller, "admin");
    assert!(matches!(
        &by_admin[0].effects[..],
        [Effect::AssociationRemoved { vlan: 4, .. }, Effect::EniDeleted { .. }]
    ));
}

#[tokio::test]
async fn bad_admin_calls_are_refused_with_a_sentence() {
    let sim = Sim::plain().await;
    let refused = |outcome: Result<String, ClientError>| match outcome {
        Err(ClientError::Refused { status, body, .. }) => (status, body),
        other => panic!("{other:?}"),
    };
    let spec = EniSpec { subnet: "subnet-0123456789abcdef0".into(), ..EniSpec::default() };
    assert!(refused(sim.client.add_eni(&spec).await).1.contains("does not exist"));
    let spec = EniSpec { attach_to: Some("i-0123456789abcdef0".into()), ..EniSpec::default() };
    assert!(refused(sim.client.add_eni(&spec).await).1.contains("does not exist"));
    assert!(sim.client.set_switches(&json!({"lagg": {}})).await.is_err());
    assert!(sim.client.terminate_instance("i-0123456789abcdef0").await.is_err());
    let unknown =
        sim.client.send(http::Method::POST, "/_sim/nothing", &[], "{}".into()).await.unwrap();
    assert_eq!(unknown.status, 404);
    assert!(sim.client.state().await.unwrap().enis.is_empty());
}

#[tokio::test]
async fn the_same_seed_gives_the_same_ids_and_addresses() {
    let mut first: Option<State> = None;
    for _ in 0..2 {
        let sim = Sim::start(Config { seed: 42, ..Config::plain() }).await;
        let (_, trunk, _) = sim.trunk("m5.large").await;
        sim.branch(&trunk, "1").await;
        let state = sim.client.state().await.unwrap();
        let ids = |s: &State| {
            s.enis.iter().map(|e| (e.id.clone(), e.ipv4, e.mac.clone())).collect::<Vec<_>>()
        };
        match &first {
            None => first = Some(state),
            Some(first) => assert_eq!(ids(first), ids(&state)),
        }
    }
}

#[tokio::test]
async fn the_log_can_be_read_from_anywhere() {
    let sim = Sim::plain().await;
    for _ in 0..3 {
        sim.ok("DescribeSubnets", &[]).await;
    }
    let all = sim.client.log(1).await.unwrap();
    assert_eq!(all[0].action, "_sim/start");
    assert_eq!(sim.client.log(3).await.unwrap(), all[2..]);
    assert!(sim.client.log(99).await.unwrap().is_empty());
    assert_eq!(sim.client.state().await.unwrap().seq, 4);
    let page =
        sim.client.send(http::Method::GET, "/_sim/log?from=2&limit=1", &[], String::new()).await;
    let page: Vec<LogEntry> = serde_json::from_str(&page.unwrap().body).unwrap();
    assert_eq!(page, all[1..2]);
}

#[tokio::test]
async fn the_binary_says_where_it_listens_and_reads_its_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.json");
    let config = json!({"instances": [{"id": "i-0123456789abcdef0", "instance_type": "c5.large", "extra_enis": 1}]});
    tokio::fs::write(&file, config.to_string()).await.unwrap();
    let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_trunkline-sim"))
        .args(["ec2", "--no-lag", "--no-throttle", "--seed", "3", "--config"])
        .arg(&file)
        .args(["--bind", "127.0.0.1:0", "--switches", r#"{"limits":{"enis":7}}"#])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.next_line().await.unwrap().unwrap();
    let client = SimClient::new(line.strip_prefix("listening on ").unwrap());
    client.health().await.unwrap();
    let switches = client.switches().await.unwrap();
    assert!(!switches.throttle.enabled);
    assert_eq!(switches.limits.enis, 7);
    let state = client.state().await.unwrap();
    assert_eq!((state.enis.len(), state.instances[0].instance_type.as_str()), (2, "c5.large"));
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id().unwrap()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(child.wait().await.unwrap().success());
}
