//! Settings of the coordinator (design §8, `CFG-1`): its own flags and every flag of the peer.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use trunkline_core::id::{ClusterName, InstanceType, Namespace, VpcId};
use trunkline_core::limits::{Override, parse_overrides};
use trunkline_core::node::event::HealMode;
use trunkline_core::time::Timing;
use trunkline_kit::config::{
    self, BadSettings, BindAddress, Env, Loaded, Problems, boolean, duration, file, number,
    seconds_or_duration,
};
use trunkline_kit::telemetry::{LogFormat, LogLevel};
use trunkline_kit::timing;

/// The flags as texts.
#[derive(Debug, Parser)]
#[command(name = "trunkline-coordinator", version = config::version(), about = "Gives pods on AWS their own branch network interfaces.")]
pub struct Args {
    /// Name of the cluster, for tags.
    #[arg(long, value_name = "NAME")]
    cluster_name: Option<String>,
    /// VPC of the cluster.
    #[arg(long, value_name = "ID")]
    vpc_id: Option<String>,
    /// AWS region; without it the SDK's default chain.
    #[arg(long, value_name = "REGION")]
    aws_region: Option<String>,
    /// AWS account of the own credentials; without it STS is asked where it matters.
    #[arg(long, value_name = "ID")]
    aws_account_id: Option<String>,
    /// Endpoint of EC2.
    #[arg(long, value_name = "URL", env = "AWS_ENDPOINT_URL_EC2")]
    ec2_endpoint: Option<String>,
    /// Role to assume for everything but associations.
    #[arg(long, value_name = "ARN")]
    role_arn: Option<String>,
    /// Address of the gRPC server.
    #[arg(long, value_name = "ADDRESS", default_value = ":61790")]
    grpc_bind: String,
    /// Certificate of the gRPC server, PEM.
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<String>,
    /// Key of the gRPC server, PEM.
    #[arg(long, value_name = "FILE")]
    tls_key: Option<String>,
    /// Address of the webhooks; without effect, as this version has none.
    #[arg(long, value_name = "ADDRESS", default_value = ":9443")]
    webhook_bind: String,
    /// Address of the health endpoints.
    #[arg(long, value_name = "ADDRESS", default_value = ":61779")]
    health_bind: String,
    /// Address of the metrics.
    #[arg(long, value_name = "ADDRESS", default_value = ":8080")]
    metrics_bind_address: String,
    /// Further address on which only the status service is served.
    #[arg(long, value_name = "ADDRESS")]
    status_bind: Option<String>,
    /// Show /status of the health endpoints to others than this machine; it tells pods and ENIs to whoever asks.
    #[arg(long, value_name = "BOOL", default_value = "false")]
    remote_status: String,
    /// How long one health check may take.
    #[arg(long, value_name = "SECONDS", default_value = "28")]
    health_check_timeout: String,
    /// Change nothing, as --read-only does. The peer's name for it.
    #[arg(long, value_name = "BOOL", default_value = "false")]
    disable_controller: String,
    /// Address at which agents reach this coordinator; default POD_IP with the gRPC port.
    #[arg(long, value_name = "HOST:PORT")]
    advertise_address: Option<String>,
    /// Act only while holding the lease.
    #[arg(long, value_name = "BOOL", default_value = "true")]
    leader_elect: String,
    /// Namespace of the lease.
    #[arg(long, value_name = "NAME", default_value = "kube-system")]
    lease_namespace: String,
    /// Name of the lease.
    #[arg(long, value_name = "NAME", default_value = "cp-vpc-resource-controller")]
    lease_name: String,
    /// How long others wait after the last renewal.
    #[arg(long, value_name = "SECONDS", default_value = "15")]
    leader_lease_duration_seconds: String,
    /// How long this coordinator acts after its last renewal.
    #[arg(long, value_name = "SECONDS", default_value = "10")]
    leader_lease_renew_deadline: String,
    /// Pause between attempts.
    #[arg(long, value_name = "SECONDS", default_value = "2")]
    leader_lease_retry_period: String,
    /// Own namespace; agents' ServiceAccount is in it.
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE", default_value = "trunkline-system")]
    namespace: String,
    /// How often EC2 is read whole.
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    inventory_interval: String,
    /// How long a VLAN rests after its branch was disassociated; never less than the cooldown.
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    vlan_rest: String,
    /// Branch limits by instance type: TYPE=BRANCHES or TYPE=BRANCHES/SLOTS, joined with commas.
    #[arg(long, value_name = "LIMITS", default_value = "")]
    instance_limits: String,
    /// No mutating EC2 call and no annotation.
    #[arg(long, value_name = "BOOL", default_value = "false")]
    read_only: String,
    /// No branch is disassociated or deleted.
    #[arg(long, value_name = "BOOL", default_value = "false")]
    no_release: String,
    /// What is done for a live pod that lost its branch: in-place, evict (where it cannot be repaired in place) or report.
    #[arg(long, value_name = "MODE", default_value = "in-place")]
    heal: String,
    /// Set the security groups of a live pod's branch again where somebody else changed them.
    #[arg(long, value_name = "BOOL", default_value = "false")]
    restore_groups: String,
    /// Hold EC2 calls back by own token buckets.
    #[arg(long, value_name = "BOOL", default_value = "true")]
    ec2_budget: String,
    /// Kubeconfig, outside of a cluster.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<String>,
    /// Log level.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: String,
    /// Log format: json or text.
    #[arg(long, value_name = "FORMAT", default_value = "json")]
    log_format: String,
    /// API writes of nodes at one time.
    #[arg(long, value_name = "N", default_value = "10")]
    max_node_reconcile: String,
    #[command(flatten)]
    unused: Unused,
}

/// Flags of the peer that have no meaning here.
#[derive(Debug, clap::Args)]
struct Unused {
    /// Unused.
    #[arg(long, hide = true)]
    introspect_bind_addr: Option<String>,
    /// Unused.
    #[arg(long, hide = true)]
    log_file: Option<String>,
    /// Unused.
    #[arg(long, hide = true, value_name = "BOOL")]
    enable_dev_logging: Option<String>,
    /// Unused.
    #[arg(long, hide = true, value_name = "BOOL")]
    enable_profiling: Option<String>,
    /// Unused.
    #[arg(long, hide = true)]
    page_limit: Option<String>,
    /// Unused.
    #[arg(long, hide = true)]
    node_mgr_workers: Option<String>,
    /// Unused.
    #[arg(long, hide = true)]
    max_pod_reconcile: Option<String>,
    /// Unused.
    #[arg(long, hide = true)]
    user_client_qps: Option<String>,
    /// Unused.
    #[arg(long, hide = true)]
    user_client_burst: Option<String>,
    /// Unused.
    #[arg(long, hide = true)]
    instance_client_qps: Option<String>,
    /// Unused.
    #[arg(long, hide = true)]
    instance_client_burst: Option<String>,
    /// Unused.
    #[arg(long, hide = true)]
    apiserver_qps: Option<String>,
    /// Unused.
    #[arg(long, hide = true)]
    apiserver_burst: Option<String>,
    /// Unused.
    #[arg(long, hide = true, value_name = "BOOL")]
    enable_windows_prefix_delegation: Option<String>,
}

/// Flags that are accepted and have no effect: those of the peer that have no meaning here, and the address of webhooks,
/// which this version does not have.
pub const UNUSED: [&str; 15] = [
    "introspect-bind-addr",
    "log-file",
    "enable-dev-logging",
    "enable-profiling",
    "page-limit",
    "node-mgr-workers",
    "max-pod-reconcile",
    "user-client-qps",
    "user-client-burst",
    "instance-client-qps",
    "instance-client-burst",
    "apiserver-qps",
    "apiserver-burst",
    "enable-windows-prefix-delegation",
    "webhook-bind",
];

/// The settings, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// Cluster.
    pub cluster: ClusterName,
    /// VPC.
    pub vpc: VpcId,
    /// Region.
    pub region: Option<String>,
    /// Account.
    pub account: Option<String>,
    /// EC2 endpoint.
    pub ec2_endpoint: Option<String>,
    /// Role.
    pub role_arn: Option<String>,
    /// Own EC2 budgets.
    pub ec2_budget: bool,
    /// gRPC address.
    pub grpc_bind: BindAddress,
    /// Certificate.
    pub tls_cert: PathBuf,
    /// Key.
    pub tls_key: PathBuf,
    /// Health address.
    pub health_bind: BindAddress,
    /// Metrics address.
    pub metrics_bind: BindAddress,
    /// Status address.
    pub status_bind: Option<BindAddress>,
    /// `/status` answers others than loopback peers.
    pub remote_status: bool,
    /// Bound on each health check.
    pub health_check_timeout: Duration,
    /// Address for agents.
    pub advertise_address: String,
    /// Election.
    pub lease: Option<Lease>,
    /// Holder identity's first part.
    pub pod_uid: String,
    /// Own namespace.
    pub namespace: Namespace,
    /// Inventory interval.
    pub inventory_interval: Duration,
    /// VLAN rest.
    pub vlan_rest: Duration,
    /// Overrides of limits.
    pub instance_limits: BTreeMap<InstanceType, Override>,
    /// Mode.
    pub read_only: bool,
    /// Mode.
    pub no_release: bool,
    /// What is done for a live pod that lost its branch.
    pub heal: HealMode,
    /// Set groups again that somebody else changed.
    pub restore_groups: bool,
    /// Kubeconfig.
    pub kubeconfig: Option<PathBuf>,
    /// Log level.
    pub log_level: LogLevel,
    /// Log format.
    pub log_format: LogFormat,
    /// API writes of nodes at one time.
    pub node_writes: usize,
    /// Durations.
    pub timing: Timing,
    /// To be logged at start.
    pub timing_warning: Option<String>,
}

/// Settings of the election.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Lease duration.
    pub duration: Duration,
    /// Renew deadline.
    pub renew_deadline: Duration,
    /// Retry period.
    pub retry_period: Duration,
}

impl Config {
    /// Checks all texts; every mistake is told.
    pub fn check(loaded: &mut Loaded<Args>, env: Env<'_>) -> Result<Self, BadSettings> {
        let problems = &mut std::mem::take(&mut loaded.problems);
        let (timing, timing_warning) = timing::load(env, problems);
        let given = |flag: &str| loaded.is_given(flag);
        let (interval_given, rest_given) = (given("inventory-interval"), given("vlan-rest"));
        let config = Self::read(
            &loaded.args,
            env,
            problems,
            &timing,
            timing_warning,
            (interval_given, rest_given),
        );
        match config {
            Some(config) if problems.is_empty() => Ok(config),
            _ => Err(std::mem::take(problems).into_error()),
        }
    }

    fn read(
        args: &Args,
        env: Env<'_>,
        problems: &mut Problems,
        timing: &Timing,
        timing_warning: Option<String>,
        (interval_given, rest_given): (bool, bool),
    ) -> Option<Self> {
        let p = problems;
        let text = |t: &str| Ok::<_, String>(t.trim().to_owned());
        // All are read before any is missed, so that all mistakes are told at once.
        let cluster =
            p.required("cluster-name", args.cluster_name.as_deref(), str::parse::<ClusterName>);
        let vpc = p.required("vpc-id", args.vpc_id.as_deref(), str::parse::<VpcId>);
        let region = p
            .optional("aws-region", args.aws_region.as_deref(), text)
            .filter(|r| r != "CLUSTER_REGION");
        let account = p.optional("aws-account-id", args.aws_account_id.as_deref(), account_id);
        let ec2_endpoint = p.optional("ec2-endpoint", args.ec2_endpoint.as_deref(), url);
        let role_arn = p.optional("role-arn", args.role_arn.as_deref(), text);
        let ec2_budget = p.parsed("ec2-budget", &args.ec2_budget, boolean);
        let grpc_bind = p.parsed("grpc-bind", &args.grpc_bind, str::parse::<BindAddress>);
        let tls_cert = p.required("tls-cert", args.tls_cert.as_deref(), file);
        let tls_key = p.required("tls-key", args.tls_key.as_deref(), file);
        let _webhook_bind = p.parsed("webhook-bind", &args.webhook_bind, str::parse::<BindAddress>);
        let health_bind = p.parsed("health-bind", &args.health_bind, str::parse::<BindAddress>);
        let metrics_bind =
            p.parsed("metrics-bind-address", &args.metrics_bind_address, str::parse::<BindAddress>);
        let status_bind =
            p.optional("status-bind", args.status_bind.as_deref(), str::parse::<BindAddress>);
        let remote_status = p.parsed("remote-status", &args.remote_status, boolean);
        let health_check_timeout =
            p.parsed("health-check-timeout", &args.health_check_timeout, seconds_or_duration);
        let disabled = p.parsed("disable-controller", &args.disable_controller, boolean);
        let lease = read_lease(args, p);
        let namespace = p.parsed("namespace", &args.namespace, str::parse::<Namespace>);
        let inventory_interval = p.parsed("inventory-interval", &args.inventory_interval, duration);
        let vlan_rest = p.parsed("vlan-rest", &args.vlan_rest, duration);
        let instance_limits = p.parsed("instance-limits", &args.instance_limits, parse_overrides);
        let read_only = p.parsed("read-only", &args.read_only, boolean);
        let no_release = p.parsed("no-release", &args.no_release, boolean);
        let heal = p.parsed("heal", &args.heal, heal_mode);
        let restore_groups = p.parsed("restore-groups", &args.restore_groups, boolean);
        let kubeconfig = p.optional("kubeconfig", args.kubeconfig.as_deref(), file);
        let log_format = p.parsed("log-format", &args.log_format, str::parse::<LogFormat>);
        let node_writes = p.parsed("max-node-reconcile", &args.max_node_reconcile, number::<usize>);
        let advertise_address = advertise(args, env, grpc_bind.as_ref(), p);
        Some(Self {
            cluster: cluster?,
            vpc: vpc?,
            region,
            account,
            ec2_endpoint,
            role_arn,
            ec2_budget: ec2_budget?,
            grpc_bind: grpc_bind?,
            tls_cert: tls_cert?,
            tls_key: tls_key?,
            health_bind: health_bind?,
            metrics_bind: metrics_bind?,
            status_bind,
            remote_status: remote_status?,
            health_check_timeout: health_check_timeout?,
            advertise_address: advertise_address?,
            lease: lease?,
            pod_uid: env("POD_UID")
                .filter(|u| !u.is_empty())
                .unwrap_or_else(|| "coordinator".into()),
            namespace: namespace?,
            inventory_interval: if interval_given {
                inventory_interval?
            } else {
                timing.inventory_interval
            },
            vlan_rest: if rest_given { vlan_rest? } else { timing.vlan_rest },
            instance_limits: instance_limits?,
            read_only: read_only? | disabled?,
            no_release: no_release?,
            heal: heal?,
            restore_groups: restore_groups?,
            kubeconfig,
            log_level: LogLevel::parse(&args.log_level),
            log_format: log_format?,
            node_writes: node_writes?,
            timing: *timing,
            timing_warning,
        })
    }
}

/// `Some(None)`: no election.
#[allow(clippy::option_option, reason = "the outer one means: bad settings")]
fn read_lease(args: &Args, p: &mut Problems) -> Option<Option<Lease>> {
    let elect = p.parsed("leader-elect", &args.leader_elect, boolean);
    let namespace = p.parsed("lease-namespace", &args.lease_namespace, str::parse::<Namespace>);
    let name = p.parsed("lease-name", &args.lease_name, str::parse::<trunkline_core::id::PodName>);
    let seconds = seconds_or_duration;
    let duration =
        p.parsed("leader-lease-duration-seconds", &args.leader_lease_duration_seconds, seconds);
    let renew_deadline =
        p.parsed("leader-lease-renew-deadline", &args.leader_lease_renew_deadline, seconds);
    let retry_period =
        p.parsed("leader-lease-retry-period", &args.leader_lease_retry_period, seconds);
    let lease = Lease {
        namespace: namespace?.to_string(),
        name: name?.to_string(),
        duration: duration?,
        renew_deadline: renew_deadline?,
        retry_period: retry_period?,
    };
    if let Some(problem) = crate::replica::lease_settings(&lease, String::new()).problem() {
        p.add("leader-lease-duration-seconds", problem);
    }
    Some(elect?.then_some(lease))
}

fn advertise(
    args: &Args,
    env: Env<'_>,
    grpc: Option<&BindAddress>,
    p: &mut Problems,
) -> Option<String> {
    if let Some(given) = args.advertise_address.as_deref().filter(|a| !a.is_empty()) {
        return p.parsed("advertise-address", given, host_port);
    }
    let grpc = grpc?;
    let pod_ip = env("POD_IP").filter(|ip| !ip.is_empty());
    let host = pod_ip.or_else(|| grpc.concrete_host().map(ToOwned::to_owned));
    match host {
        Some(host) if host.contains(':') && !host.starts_with('[') => {
            Some(format!("[{host}]:{}", grpc.port()))
        }
        Some(host) => Some(format!("{host}:{}", grpc.port())),
        None => {
            p.add("advertise-address", "is required: set it or POD_IP, or give --grpc-bind a host");
            None
        }
    }
}

fn host_port(text: &str) -> Result<String, String> {
    let valid = text.rsplit_once(':').is_some_and(|(host, port)| {
        let host_ok = !host.is_empty()
            && (!host.contains(':') || (host.starts_with('[') && host.ends_with(']')));
        host_ok && port.parse::<u16>().is_ok_and(|p| p > 0)
    });
    if valid { Ok(text.to_owned()) } else { Err(format!("'{text}' is not HOST:PORT")) }
}

fn account_id(text: &str) -> Result<String, String> {
    if text.len() == 12 && text.bytes().all(|b| b.is_ascii_digit()) {
        Ok(text.to_owned())
    } else {
        Err(format!("'{text}' is not an AWS account id: expected 12 digits"))
    }
}

fn url(text: &str) -> Result<String, String> {
    let uri: http::Uri = text.parse().map_err(|e| format!("'{text}' is not a URL: {e}"))?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http" | "https"), Some(_)) => Ok(text.to_owned()),
        _ => Err(format!("'{text}' is not an http or https URL")),
    }
}

fn heal_mode(text: &str) -> Result<HealMode, String> {
    let all = [HealMode::InPlace, HealMode::Evict, HealMode::Report];
    all.into_iter()
        .find(|mode| mode.name() == text)
        .ok_or_else(|| format!("'{text}' is not one of: in-place, evict, report"))
}

#[cfg(test)]
mod tests;
