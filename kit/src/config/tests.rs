use std::time::Duration;

use super::*;

#[derive(clap::Parser, Debug)]
#[command(name = "trunkline-test", version = version())]
struct Args {
    /// Node.
    #[arg(long, env = "NODE_NAME")]
    node_name: Option<String>,
    /// Health.
    #[arg(long, default_value = ":61780")]
    health_bind: String,
    /// Heal.
    #[arg(long, default_value = "true", value_name = "BOOL")]
    heal_in_place: String,
    /// Interval.
    #[arg(long, default_value = "5m")]
    inventory_interval: String,
    /// A password.
    #[arg(long, hide_env_values = true)]
    password: Option<String>,
}

struct Settings {
    node: String,
    health: BindAddress,
    heal: bool,
    interval: Duration,
}

fn validate(loaded: Loaded<Args>) -> Result<Settings, BadSettings> {
    let Loaded { args, mut problems, .. } = loaded;
    let node = problems
        .required("node-name", args.node_name.as_deref(), |n| Ok::<_, String>(n.to_owned()));
    let health = problems.parsed("health-bind", &args.health_bind, str::parse);
    let heal = problems.parsed("heal-in-place", &args.heal_in_place, boolean);
    let interval = problems.parsed("inventory-interval", &args.inventory_interval, duration);
    match (node, health, heal, interval) {
        (Some(node), Some(health), Some(heal), Some(interval)) if problems.is_empty() => {
            Ok(Settings { node, health, heal, interval })
        }
        _ => Err(problems.into_error()),
    }
}

fn words(argv: &[&str]) -> Vec<String> {
    std::iter::once("trunkline-test").chain(argv.iter().copied()).map(String::from).collect()
}

fn settings(argv: &[&str], env: &[(&str, &str)]) -> Result<Settings, BadSettings> {
    let env = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
    validate(load::<Args>(words(argv), &env).unwrap())
}

#[test]
fn all_bad_settings_are_reported_at_once_with_their_source() {
    let bad = settings(
        &[
            "--health-bind",
            "8080",
            "-heal-in-place=maybe",
            "--inventory-intervall=5m",
            "stray",
            "--password",
        ],
        &[("TRUNKLINE_INVENTORY_INTERVAL", "5 minutes")],
    )
    .err()
    .unwrap();
    let text = bad.to_string();
    assert!(text.starts_with("trunkline-test: 7 settings are wrong:"), "{text}");
    for expected in [
        "--inventory-intervall is not a flag: did you mean --inventory-interval?",
        "unexpected argument 'stray'",
        "--password: needs a value",
        "--node-name: is required: set it or TRUNKLINE_NODE_NAME or NODE_NAME",
        "--health-bind: '8080' is not a bind address",
        "--heal-in-place: 'maybe' is not a boolean",
        "--inventory-interval (from TRUNKLINE_INVENTORY_INTERVAL): '5 minutes' is not a duration",
    ] {
        assert!(text.contains(expected), "{expected} is missing in {text}");
    }
}

#[test]
fn flags_are_accepted_as_go_accepts_them() {
    for argv in [
        ["--node-name", "n1", "--heal-in-place"].as_slice(),
        &["-node-name", "n1", "-heal-in-place"],
        &["-node-name=n1", "--heal-in-place=true"],
        &["--node-name=other", "--heal-in-place=false", "--node-name=n1", "-heal-in-place=1"],
    ] {
        let read = settings(argv, &[]).unwrap();
        assert_eq!((read.node.as_str(), read.heal), ("n1", true), "{argv:?}");
    }
    assert!(!settings(&["-node-name=n1", "-heal-in-place=false"], &[]).unwrap().heal);
}

#[test]
fn a_flag_beats_its_variable_and_that_beats_the_other_variable_and_the_default() {
    let env = [
        ("TRUNKLINE_NODE_NAME", "own"),
        ("NODE_NAME", "other"),
        ("TRUNKLINE_HEALTH_BIND", "[::1]:7"),
    ];
    assert_eq!(settings(&["--node-name=flag"], &env).unwrap().node, "flag");
    assert_eq!(settings(&[], &env).unwrap().node, "own");
    assert_eq!(settings(&[], &env).unwrap().health, BindAddress::Host("::1".into(), 7));
    let read = settings(&[], &[("NODE_NAME", "other"), ("TRUNKLINE_NODE_NAME", "")]).unwrap();
    assert_eq!((read.node.as_str(), read.interval), ("other", Duration::from_mins(5)));
}

#[test]
fn help_and_version_end_well_and_name_the_variables_and_the_build() {
    let help = load::<Args>(words(&["--nonsense", "-help"]), &|_| None).unwrap_err();
    assert_eq!(help.code, 0);
    assert!(help.text.contains("TRUNKLINE_NODE_NAME or NODE_NAME"), "{}", help.text);
    let version = load::<Args>(words(&["--version"]), &|_| None).unwrap_err();
    assert_eq!(version.code, 0);
    assert!(version.text.starts_with("trunkline-test 0.1.0"), "{}", version.text);
    assert_eq!(version.text.contains("(test-timing)"), cfg!(feature = "test-timing"));
}

#[test]
fn the_configuration_is_described_without_secrets() {
    let loaded = load::<Args>(words(&["--password=hunter2", "--node-name=n"]), &|_| None).unwrap();
    let text = loaded.describe();
    assert!(!text.contains("hunter2") && text.contains(r#""password":"***""#), "{text}");
    assert!(text.contains(r#""health-bind":":61780""#), "{text}");
    assert!(loaded.is_given("node-name") && !loaded.is_given("health-bind"));
}

#[test]
fn durations_are_read_as_go_writes_them() {
    for (text, millis) in [
        ("5m", 300_000),
        ("1m30s", 90_000),
        ("250ms", 250),
        ("1.5h", 5_400_000),
        ("0", 0),
        ("0s", 0),
        ("1h0m0s", 3_600_000),
    ] {
        assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
    }
    for text in ["", "5", "m", "-1s", "5 m", "1x", "1m30", ".s", "1e3s", "99999999999999999999h"] {
        assert!(duration(text).is_err(), "{text}");
    }
    assert_eq!(seconds_or_duration("30"), Ok(Duration::from_secs(30)));
    assert_eq!(seconds_or_duration("30ms"), Ok(Duration::from_millis(30)));
    assert!(seconds_or_duration("-3").is_err());
}

#[test]
fn bind_addresses_and_targets_are_validated() {
    assert_eq!(":8080".parse(), Ok(BindAddress::All(8080)));
    assert_eq!("[::]:8080".parse::<BindAddress>().unwrap().to_string(), "[::]:8080");
    assert_eq!("10.0.0.1:1".parse::<BindAddress>().unwrap().concrete_host(), Some("10.0.0.1"));
    assert_eq!("0.0.0.0:1".parse::<BindAddress>().unwrap().concrete_host(), None);
    for text in ["", "8080", "::1:80", "host:", "host:70000", "host:+1", "[x]:1", "a b:1"] {
        assert!(text.parse::<BindAddress>().is_err(), "{text}");
    }
    let two = targets("https://c.trunkline-system.svc:61790,https://[::1]:1").unwrap();
    assert_eq!(
        two.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        "https://c.trunkline-system.svc:61790,https://[::1]:1"
    );
    for text in ["", "http://a:1", "https://a", "https://:1", "https://a:0", "https://a:1,"] {
        assert!(targets(text).is_err(), "{text}");
    }
}
