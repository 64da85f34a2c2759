use super::*;

fn check(flags: &[&str], env: &[(&str, &str)]) -> Result<Config, BadSettings> {
    let env: Vec<(String, String)> = env.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    let look = |name: &str| env.iter().find(|(k, _)| k == name).map(|(_, v)| v.clone());
    let argv =
        std::iter::once("trunkline-coordinator").chain(flags.iter().copied()).map(String::from);
    let mut loaded = config::load::<Args>(argv, &look).unwrap();
    Config::check(&mut loaded, &look)
}

const GOOD: [&str; 5] = [
    "--cluster-name=c1",
    "--vpc-id=vpc-0123456789abcdef0",
    "--tls-cert=/c",
    "--tls-key=/k",
    "--grpc-bind=127.0.0.1:7000",
];

fn with(more: &[&'static str]) -> Vec<&'static str> {
    GOOD.iter().copied().chain(more.iter().copied()).collect()
}

#[test]
fn the_defaults_are_those_of_the_design() {
    let config = check(&GOOD, &[]).unwrap();
    assert_eq!(config.advertise_address, "127.0.0.1:7000");
    assert_eq!(config.health_bind.port(), 61779);
    assert_eq!(config.metrics_bind.port(), 8080);
    assert_eq!(config.namespace.as_str(), "trunkline-system");
    let lease = config.lease.unwrap();
    assert_eq!(
        (lease.namespace.as_str(), lease.name.as_str()),
        ("kube-system", "cp-vpc-resource-controller")
    );
    let seconds = [lease.duration, lease.renew_deadline, lease.retry_period].map(|d| d.as_secs());
    assert_eq!(seconds, [15, 10, 2]);
    assert_eq!(config.vlan_rest, Duration::from_secs(300));
    assert_eq!(config.inventory_interval, Duration::from_secs(300));
    assert!(!config.read_only && !config.no_release && config.ec2_budget);
}

#[test]
fn all_bad_settings_are_told_at_once() {
    let error = check(
        &[
            "--vpc-id=vpc-x",
            "--grpc-bind=7000",
            "--aws-account-id=12",
            "--ec2-endpoint=ftp://x",
            "--leader-elect=perhaps",
            "--instance-limits=m5.large=500",
            "--heal=never",
            "--vlan-rest=soon",
            "--log-format=xml",
            "--no-such-flag=1",
        ],
        &[],
    )
    .unwrap_err();
    let text = error.problems.join("\n");
    for flag in [
        "cluster-name",
        "vpc-id",
        "tls-cert",
        "tls-key",
        "grpc-bind",
        "aws-account-id",
        "ec2-endpoint",
        "leader-elect",
        "instance-limits",
        "heal",
        "vlan-rest",
        "log-format",
        "no-such-flag",
    ] {
        assert!(text.contains(flag), "{flag} is missing in:\n{text}");
    }
}

#[test]
fn cfg_1_every_flag_of_the_peer_is_accepted_with_one_dash_too() {
    let config = check(
        &with(&[
            "-role-arn=arn:aws:iam::123456789012:role/x",
            "--aws-region=CLUSTER_REGION",
            "--leader-elect",
            "--leader-lease-duration-seconds=30",
            "--leader-lease-renew-deadline=15",
            "--leader-lease-retry-period=5",
            "--introspect-bind-addr=:22775",
            "--health-check-timeout=28",
            "--log-level=debug",
            "--log-file=stderr",
            "--enable-dev-logging=false",
            "-enable-profiling",
            "--page-limit=1000",
            "--node-mgr-workers=10",
            "--max-pod-reconcile=20",
            "--max-node-reconcile=3",
            "--user-client-qps=12",
            "--user-client-burst=18",
            "--instance-client-qps=12",
            "--instance-client-burst=18",
            "--apiserver-qps=20",
            "--apiserver-burst=30",
            "--enable-windows-prefix-delegation=false",
            "--disable-controller=false",
        ]),
        &[],
    )
    .unwrap();
    assert_eq!(config.region, None);
    assert_eq!(config.health_check_timeout, Duration::from_secs(28));
    assert!(!config.read_only && !config.remote_status);
    assert_eq!(config.node_writes, 3);
    assert_eq!(config.lease.unwrap().duration, Duration::from_secs(30));
    assert!(check(&with(&["--leader-elect=false"]), &[]).unwrap().lease.is_none());
}

#[test]
fn cfg_1_a_disabled_controller_changes_nothing() {
    assert!(check(&with(&["--disable-controller"]), &[]).unwrap().read_only);
    assert!(check(&with(&["--read-only", "--disable-controller=false"]), &[]).unwrap().read_only);
    let short = check(&with(&["--health-check-timeout=3", "--remote-status"]), &[]).unwrap();
    assert_eq!((short.health_check_timeout, short.remote_status), (Duration::from_secs(3), true));
}

#[test]
fn the_advertised_address_comes_from_flag_pod_ip_or_a_concrete_bind() {
    let address = |flags: &[&'static str], env: &[(&str, &str)]| {
        check(&with(flags), env).map(|c| c.advertise_address)
    };
    assert_eq!(
        address(&["--grpc-bind=:7000"], &[("POD_IP", "10.0.0.7")]).unwrap(),
        "10.0.0.7:7000"
    );
    assert_eq!(
        address(&["--grpc-bind=:7000"], &[("POD_IP", "fd00::7")]).unwrap(),
        "[fd00::7]:7000"
    );
    assert_eq!(address(&["--advertise-address=c:1"], &[("POD_IP", "10.0.0.7")]).unwrap(), "c:1");
    assert!(address(&["--grpc-bind=:7000"], &[]).is_err());
    assert!(address(&["--advertise-address=c"], &[]).is_err());
}

#[test]
fn a_lease_that_cannot_work_is_refused() {
    assert!(check(&with(&["--leader-lease-duration-seconds=10"]), &[]).is_err());
}

#[test]
fn a_flag_beats_its_variable() {
    let env = [("TRUNKLINE_NO_RELEASE", "true"), ("TRUNKLINE_READ_ONLY", "true")];
    let config = check(&with(&["--no-release=false"]), &env).unwrap();
    assert!(config.read_only && !config.no_release);
}
