//! The agent's flags (design §8).

use std::path::PathBuf;

use trunkline_core::id::{NodeName, PodUid};
use trunkline_core::time::Timing;
use trunkline_kit::config::{
    self, BadSettings, BindAddress, Env, Exit, Loaded, Target, boolean, file, targets,
};
use trunkline_kit::telemetry::{LogFormat, LogLevel};
use trunkline_kit::timing;

/// Watches the pods, the kubelet, the cgroups and the links of one node, and states to the coordinator what it sees.
#[derive(Debug, clap::Parser)]
#[command(name = "trunkline-agent", version = config::version())]
pub struct Args {
    /// Node this agent runs on
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    node_name: Option<String>,
    /// Coordinators: https://HOST:PORT[,…]; a DNS name stands for all its addresses
    #[arg(long, value_name = "URLS")]
    coordinator: Option<String>,
    /// CA certificates (PEM) by which the coordinator's certificate is verified
    #[arg(long, value_name = "FILE")]
    coordinator_ca: Option<String>,
    /// Pod-bound token of audience 'trunkline', read at each connection and when it changes
    #[arg(long, value_name = "FILE")]
    token_file: Option<String>,
    /// Address of /livez, /readyz, /metrics and /status
    #[arg(long, value_name = "ADDRESS", default_value = ":61780")]
    health_bind: String,
    /// Root of the node's cgroup tree
    #[arg(long, value_name = "DIR", default_value = "/sys/fs/cgroup")]
    cgroup_root: String,
    /// Socket of the kubelet that tells its start and life
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/var/lib/kubelet/pod-resources/kubelet.sock"
    )]
    kubelet_socket: String,
    /// File with the kernel's boot id
    #[arg(long, value_name = "FILE", default_value = "/proc/sys/kernel/random/boot_id")]
    boot_id_file: String,
    /// The host's network namespace; default: the agent's own
    #[arg(long, value_name = "FILE")]
    host_netns: Option<String>,
    /// Where the journal is kept; should not survive a reboot
    #[arg(long, value_name = "DIR", default_value = "/run/trunkline")]
    state_dir: String,
    /// UID of the agent's own pod, by which the cgroup tree is recognised
    #[arg(long, env = "POD_UID", value_name = "UID")]
    pod_uid: Option<String>,
    /// Change a live branch link's MAC when the coordinator made its pod a new ENI
    #[arg(long, value_name = "BOOL", default_value = "true")]
    heal_in_place: String,
    /// Show /status to others than this machine; it tells pods and ENIs of the node to whoever asks
    #[arg(long, value_name = "BOOL", default_value = "false")]
    remote_status: String,
    /// Kubeconfig; default: KUBECONFIG, else the pod's own account
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<String>,
    /// error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: String,
    /// json or text
    #[arg(long, value_name = "FORMAT", default_value = "json")]
    log_format: String,
}

/// Settings that are right, as far as that can be told without trying.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Node this agent runs on.
    pub node: NodeName,
    /// Coordinators.
    pub coordinators: Vec<Target>,
    /// CA certificates.
    pub coordinator_ca: PathBuf,
    /// Token.
    pub token_file: PathBuf,
    /// Health endpoints.
    pub health_bind: BindAddress,
    /// Root of the cgroup tree.
    pub cgroup_root: PathBuf,
    /// The kubelet's socket.
    pub kubelet_socket: PathBuf,
    /// Boot id.
    pub boot_id_file: PathBuf,
    /// The host's network namespace, if it is not the agent's own.
    pub host_netns: Option<PathBuf>,
    /// Where the journal is kept.
    pub state_dir: PathBuf,
    /// The agent's own pod.
    pub own_pod: PodUid,
    /// Live MAC changes are carried out.
    pub heal_in_place: bool,
    /// `/status` answers others than loopback peers.
    pub remote_status: bool,
    /// Kubeconfig, if given by flag.
    pub kubeconfig: Option<PathBuf>,
    /// Durations of the rules.
    pub timing: Timing,
}

/// How the log is written, and what is logged first.
#[derive(Debug)]
pub struct Opening {
    /// Level.
    pub log_level: LogLevel,
    /// Format.
    pub log_format: LogFormat,
    /// Said about `TRUNKLINE_TIMING`.
    pub timing_warning: Option<String>,
    loaded: Loaded<Args>,
}

impl Opening {
    /// Logs the whole configuration, once.
    pub fn log(&self) {
        self.loaded.log(&[]);
        if let Some(warning) = &self.timing_warning {
            tracing::warn!("{warning}");
        }
    }
}

/// Why there are no settings.
#[derive(Debug)]
pub enum NoSettings {
    /// Help or version was asked for.
    Exit(Exit),
    /// All that is wrong.
    Bad(BadSettings),
}

/// Reads a command line and an environment; all mistakes are told at once.
pub fn load(
    command_line: impl IntoIterator<Item = String>,
    env: Env<'_>,
) -> Result<(Settings, Opening), NoSettings> {
    let mut loaded = config::load::<Args>(command_line, env).map_err(NoSettings::Exit)?;
    let problems = &mut loaded.problems;
    let args = &loaded.args;
    let node = problems.required("node-name", args.node_name.as_deref(), NodeName::new);
    let coordinators = problems.required("coordinator", args.coordinator.as_deref(), targets);
    let coordinator_ca = problems.required("coordinator-ca", args.coordinator_ca.as_deref(), file);
    let token_file = problems.required("token-file", args.token_file.as_deref(), file);
    let own_pod = problems.required("pod-uid", args.pod_uid.as_deref(), PodUid::new);
    let health_bind = problems.parsed("health-bind", &args.health_bind, str::parse::<BindAddress>);
    let cgroup_root = problems.parsed("cgroup-root", &args.cgroup_root, file);
    let kubelet_socket = problems.parsed("kubelet-socket", &args.kubelet_socket, file);
    let boot_id_file = problems.parsed("boot-id-file", &args.boot_id_file, file);
    let host_netns = problems.optional("host-netns", args.host_netns.as_deref(), file);
    let state_dir = problems.parsed("state-dir", &args.state_dir, file);
    let kubeconfig = problems.optional("kubeconfig", args.kubeconfig.as_deref(), file);
    let log_format = problems.parsed("log-format", &args.log_format, str::parse::<LogFormat>);
    let heal_in_place = problems.parsed("heal-in-place", &args.heal_in_place, boolean);
    let remote_status = problems.parsed("remote-status", &args.remote_status, boolean);
    let log_level = LogLevel::parse(&args.log_level);
    let (timing, timing_warning) = timing::load(env, problems);

    let settings = (|| {
        Some(Settings {
            node: node?,
            coordinators: coordinators?,
            coordinator_ca: coordinator_ca?,
            token_file: token_file?,
            health_bind: health_bind?,
            cgroup_root: cgroup_root?,
            kubelet_socket: kubelet_socket?,
            boot_id_file: boot_id_file?,
            host_netns,
            state_dir: state_dir?,
            own_pod: own_pod?,
            heal_in_place: heal_in_place?,
            remote_status: remote_status?,
            kubeconfig,
            timing,
        })
    })();
    match (settings, log_format) {
        (Some(settings), Some(log_format)) if loaded.problems.is_empty() => {
            Ok((settings, Opening { log_level, log_format, timing_warning, loaded }))
        }
        _ => Err(NoSettings::Bad(loaded.problems.into_error())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: [&str; 6] = [
        "trunkline-agent",
        "--node-name=n1",
        "--coordinator=https://c.trunkline-system.svc:61790",
        "--coordinator-ca=/ca.crt",
        "--token-file=/token",
        "--pod-uid=8dbc5577-d0e2-4706-8787-57d52c03ddf2",
    ];

    fn load_these(argv: &[&str], env: &[(&str, &str)]) -> Result<Settings, Vec<String>> {
        let env =
            |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        match load(argv.iter().map(ToString::to_string), &env) {
            Ok((settings, _)) => Ok(settings),
            Err(NoSettings::Bad(bad)) => Err(bad.problems),
            Err(NoSettings::Exit(exit)) => panic!("{exit:?}"),
        }
    }

    #[test]
    fn the_defaults_are_those_of_a_node() {
        let settings = load_these(&GOOD, &[]).unwrap();
        assert_eq!(settings.health_bind, BindAddress::All(61780));
        assert_eq!(settings.cgroup_root, PathBuf::from("/sys/fs/cgroup"));
        assert_eq!(
            settings.kubelet_socket,
            PathBuf::from("/var/lib/kubelet/pod-resources/kubelet.sock")
        );
        assert_eq!(settings.boot_id_file, PathBuf::from("/proc/sys/kernel/random/boot_id"));
        assert_eq!(settings.host_netns, None);
        assert_eq!(settings.state_dir, PathBuf::from("/run/trunkline"));
        assert!(settings.heal_in_place);
        assert_eq!(settings.timing, Timing::default());
    }

    #[test]
    fn everything_can_come_from_the_environment_and_flags_win() {
        let settings = load_these(
            &["trunkline-agent", "-coordinator-ca", "/flag.crt"],
            &[
                ("NODE_NAME", "n1"),
                ("POD_UID", "u1"),
                ("TRUNKLINE_POD_UID", "u2"),
                ("TRUNKLINE_COORDINATOR", "https://a:1,https://b:2"),
                ("TRUNKLINE_COORDINATOR_CA", "/env.crt"),
                ("TRUNKLINE_TOKEN_FILE", "/token"),
                ("TRUNKLINE_HOST_NETNS", "/run/netns/n1"),
                ("TRUNKLINE_HEALTH_BIND", "127.0.0.1:0"),
                ("TRUNKLINE_HEAL_IN_PLACE", "false"),
            ],
        )
        .unwrap();
        assert_eq!(settings.own_pod.as_str(), "u2");
        assert_eq!(settings.coordinators.len(), 2);
        assert_eq!(settings.coordinator_ca, PathBuf::from("/flag.crt"));
        assert_eq!(settings.host_netns, Some(PathBuf::from("/run/netns/n1")));
        assert!(!settings.heal_in_place);
    }

    #[test]
    fn all_mistakes_are_told_at_once() {
        let problems = load_these(
            &[
                "trunkline-agent",
                "--node-name=Not_A_Node",
                "--coordinator=http://plain:1",
                "--health-bind=61780",
                "--heal-in-place=perhaps",
                "--log-format=yaml",
                "--no-such-flag",
            ],
            &[],
        )
        .unwrap_err();
        for flag in [
            "--node-name",
            "--coordinator:",
            "--coordinator-ca",
            "--token-file",
            "--pod-uid",
            "--health-bind",
            "--heal-in-place",
            "--log-format",
            "no-such-flag",
        ] {
            assert!(problems.iter().any(|p| p.contains(flag)), "{flag} in {problems:#?}");
        }
    }
}
