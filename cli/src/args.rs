//! The command line: `trunkline [FLAGS] COMMAND`.
//!
//! Flags come before, between or after the command's words and are read as in the other binaries ([`trunkline_kit::config`]):
//! each is also `TRUNKLINE_<FLAG>`. All mistakes are told at once, with exit code 64.

use std::path::PathBuf;
use std::time::Duration;

use trunkline_core::mode::Mode;
use trunkline_kit::config::{self, Env, Exit, Problems, Target};
use trunkline_kit::drain::EXIT_USAGE;

const COMMANDS: &str = "\
Commands:
  status               The cluster: leader, mode, inventory, counts, EC2 budgets
  nodes                All nodes
  node NAME            One node: trunk, agent, views, resting VLANs, branches
  pod NAMESPACE/NAME   A pod: how far it is and what it waits for
  waiting              Everything that waits, longest first, and why (of one node with --node)
  releases             What was released of late, newest first, and what each release rested on
                       (with --node, --pod NAMESPACE/NAME, --eni, --since DURATION)
  fuse                 Whether the fuse has blown, where and why
  fuse reset           Lets releases go on (with --node NAME or --cluster, and --reason TEXT)
  audit                Compares EC2, the API server and the nodes with the books (of one node with --node);
                       exit code 2 if anything is not as it should be
  audit --repair       The same, and what --yes would repair; changes nothing
  audit --repair --yes Orders these repairs (with --reason TEXT)
  mode                 The mode in force
  mode MODE            Sets it: normal, no-release or read-only (with --reason TEXT)

The caller needs the verb get on the non-resource URL /trunkline/status, and for fuse reset, mode MODE and
audit --repair --yes the verb update.";

/// Shows what Trunkline does in a cluster, and why anything waits.
#[derive(Debug, clap::Parser)]
#[command(name = "trunkline", version = config::version(), after_long_help = COMMANDS)]
#[command(override_usage = "trunkline [FLAGS] COMMAND")]
struct Args {
    /// Coordinators, https://HOST:PORT[,...]; any of them, the leader is found.
    #[arg(long, default_value = "https://trunkline-coordinator.trunkline-system.svc:61790")]
    coordinator: String,
    /// CA certificates that a coordinator's certificate is verified with.
    #[arg(long, default_value = "/etc/trunkline/ca/ca.crt")]
    coordinator_ca: String,
    /// Token with the audience trunkline; read at each call.
    #[arg(long, default_value = "/var/run/secrets/trunkline/token")]
    token_file: String,
    /// table or json (also -o).
    #[arg(long, default_value = "table")]
    output: String,
    /// Node whose waits or releases are shown, whose fuse is reset, or that is audited.
    #[arg(long)]
    node: Option<String>,
    /// Pod whose releases are shown, NAMESPACE/NAME.
    #[arg(long)]
    pod: Option<String>,
    /// ENI whose releases are shown.
    #[arg(long)]
    eni: Option<String>,
    /// Releases not older than this are shown, for example 30m.
    #[arg(long)]
    since: Option<String>,
    /// The cluster's fuse is reset.
    #[arg(long, value_name = "BOOL", default_value = "false")]
    cluster: String,
    /// Shows what an order would repair.
    #[arg(long, value_name = "BOOL", default_value = "false")]
    repair: String,
    /// Orders the repairs.
    #[arg(long, value_name = "BOOL", default_value = "false")]
    yes: String,
    /// Why something is changed; logged, stored and told in an event.
    #[arg(long)]
    reason: Option<String>,
}

/// How the answer is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// For people.
    Table,
    /// For scripts.
    Json,
}

/// What is done about what an audit finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Repair {
    /// Nothing.
    No,
    /// It is shown what an order would do.
    DryRun,
    /// It is ordered, for this reason.
    Order(String),
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// The cluster.
    Status,
    /// All nodes.
    Nodes,
    /// One node.
    Node(String),
    /// One pod.
    Pod {
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
    },
    /// Everything that waits.
    Waiting {
        /// Of this node only.
        node: Option<String>,
    },
    /// What was released; empty fields choose everything.
    Releases {
        /// Of this node only.
        node: String,
        /// Of pods of this name only, NAMESPACE/NAME.
        pod: String,
        /// Of this ENI only.
        eni: String,
        /// Not older than this.
        since: Option<Duration>,
    },
    /// The fuse.
    Fuse,
    /// Opens a node, or the cluster.
    Reset {
        /// The node's name or instance id; `None` for the cluster.
        node: Option<String>,
        /// Why.
        reason: String,
    },
    /// The three-way check.
    Audit {
        /// Of this node only.
        node: Option<String>,
        /// What is done about it.
        repair: Repair,
    },
    /// The mode.
    Mode,
    /// Chooses a mode.
    SetMode {
        /// Its name.
        mode: String,
        /// Why.
        reason: String,
    },
}

/// The settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// What is asked.
    pub command: Command,
    /// How the answer is shown.
    pub output: Output,
    /// Coordinators; at least one.
    pub coordinators: Vec<Target>,
    /// CA certificates.
    pub coordinator_ca: PathBuf,
    /// The token.
    pub token_file: PathBuf,
}

/// Reads a command line (its first element is the program's name) and an environment.
pub fn parse(line: impl IntoIterator<Item = String>, env: Env<'_>) -> Result<Settings, Exit> {
    let (flags, words) = split(line);
    let loaded = config::load::<Args>(flags, env)?;
    let (args, mut problems) = (loaded.args, loaded.problems);
    let cluster = problems.parsed("cluster", &args.cluster, config::boolean).unwrap_or_default();
    let repair = problems.parsed("repair", &args.repair, config::boolean).unwrap_or_default();
    let yes = problems.parsed("yes", &args.yes, config::boolean).unwrap_or_default();
    let since = args.since.and_then(|text| problems.parsed("since", &text, config::duration));
    let choices = Choices {
        node: args.node,
        pod: args.pod,
        eni: args.eni,
        since,
        cluster: cluster.then_some(true),
        repair: repair.then_some(true),
        yes: yes.then_some(true),
        reason: args.reason.filter(|reason| !reason.trim().is_empty()),
    };
    let command = command(&words, choices, &mut problems);
    let output = problems.parsed("output", &args.output, |text| match text {
        "table" => Ok(Output::Table),
        "json" => Ok(Output::Json),
        other => Err(format!("'{other}' is not an output: expected 'table' or 'json'")),
    });
    let coordinators = problems.parsed("coordinator", &args.coordinator, config::targets);
    let coordinator_ca = problems.parsed("coordinator-ca", &args.coordinator_ca, config::file);
    let token_file = problems.parsed("token-file", &args.token_file, config::file);
    match (command, output, coordinators, coordinator_ca, token_file) {
        (
            Some(command),
            Some(output),
            Some(coordinators),
            Some(coordinator_ca),
            Some(token_file),
        ) if problems.is_empty() => {
            Ok(Settings { command, output, coordinators, coordinator_ca, token_file })
        }
        _ => {
            let text = format!("{}\n\n{COMMANDS}", problems.into_error());
            Err(Exit { text, code: EXIT_USAGE })
        }
    }
}

/// Flags that take no value unless it is joined with `=`.
const STANDS_ALONE: [&str; 7] = ["help", "h", "version", "V", "cluster", "repair", "yes"];

/// Parts the command's words from the flags. A flag without `=` takes the next word unless it stands alone.
fn split(argv: impl IntoIterator<Item = String>) -> (Vec<String>, Vec<String>) {
    let mut argv = argv.into_iter().peekable();
    let mut flags: Vec<String> = argv.next().into_iter().collect();
    let mut words = Vec::new();
    while let Some(word) = argv.next() {
        let word = match word.strip_prefix("-o") {
            Some("") => "--output".to_owned(),
            Some(value) if !value.starts_with("utput") => {
                format!("--output={}", value.trim_start_matches('='))
            }
            _ => word,
        };
        if word == "help" && words.is_empty() {
            flags.push("--help".to_owned());
        } else if !word.starts_with('-') {
            words.push(word);
        } else {
            let name = word.trim_start_matches('-');
            let alone = name.contains('=') || STANDS_ALONE.contains(&name);
            flags.push(word);
            if !alone {
                flags.extend(argv.next_if(|next| !next.starts_with('-')));
            }
        }
    }
    (flags, words)
}

/// The flags that go with some commands only.
struct Choices {
    node: Option<String>,
    pod: Option<String>,
    eni: Option<String>,
    since: Option<Duration>,
    cluster: Option<bool>,
    repair: Option<bool>,
    yes: Option<bool>,
    reason: Option<String>,
}

impl Choices {
    /// Names those that are left: they do not go with the command.
    fn refuse_the_rest(self, problems: &mut Problems) {
        let reads = "goes with the command 'releases' only";
        for (name, given, with) in [
            (
                "node",
                self.node.is_some(),
                "goes with the commands 'waiting', 'releases', 'fuse reset' and 'audit' only",
            ),
            ("pod", self.pod.is_some(), reads),
            ("eni", self.eni.is_some(), reads),
            ("since", self.since.is_some(), reads),
            ("cluster", self.cluster.is_some(), "goes with the command 'fuse reset' only"),
            ("repair", self.repair.is_some(), "goes with the command 'audit' only"),
            ("yes", self.yes.is_some(), "goes with 'audit --repair' only"),
            (
                "reason",
                self.reason.is_some(),
                "goes with the commands 'fuse reset', 'mode MODE' and 'audit --repair --yes' only",
            ),
        ] {
            if given {
                problems.add(name, with);
            }
        }
    }

    fn reset(&mut self) -> Result<Command, String> {
        let reason = self.because("fuse reset");
        match (self.node.take(), self.cluster.take()) {
            (node @ Some(_), None) => Ok(Command::Reset { node, reason: reason? }),
            (None, Some(true)) => Ok(Command::Reset { node: None, reason: reason? }),
            _ => Err("'fuse reset' needs either --node NAME or --cluster".to_owned()),
        }
    }

    fn audit(&mut self) -> Result<Command, String> {
        let node = self.node.take();
        let repair = match (self.repair.take(), self.yes.is_some()) {
            (None, _) => Repair::No,
            (Some(_), false) => Repair::DryRun,
            (Some(_), true) => {
                self.yes = None;
                Repair::Order(self.because("audit --repair --yes")?)
            }
        };
        Ok(Command::Audit { node, repair })
    }

    fn because(&mut self, command: &str) -> Result<String, String> {
        self.reason.take().ok_or_else(|| format!("'{command}' needs --reason TEXT"))
    }
}

fn command(words: &[String], mut flags: Choices, problems: &mut Problems) -> Option<Command> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let found = match words.as_slice() {
        [] => Err("a command is missing".to_owned()),
        ["status"] => Ok(Command::Status),
        ["nodes"] => Ok(Command::Nodes),
        ["node", name] => Ok(Command::Node((*name).to_owned())),
        ["node"] => Err("'node' needs the name of a node".to_owned()),
        ["pod", pod] => pod_name(pod),
        ["pod"] => Err("'pod' needs NAMESPACE/NAME".to_owned()),
        ["waiting"] => Ok(Command::Waiting { node: flags.node.take() }),
        ["releases"] => Ok(Command::Releases {
            node: flags.node.take().unwrap_or_default(),
            pod: flags.pod.take().unwrap_or_default(),
            eni: flags.eni.take().unwrap_or_default(),
            since: flags.since.take(),
        }),
        ["fuse"] => Ok(Command::Fuse),
        ["fuse", "reset"] => flags.reset(),
        ["audit"] => flags.audit(),
        ["mode"] => Ok(Command::Mode),
        ["mode", mode] if Mode::parse(mode).is_none() => {
            Err(format!("'{mode}' is not a mode: expected normal, no-release or read-only"))
        }
        ["mode", mode] => flags
            .because("mode MODE")
            .map(|reason| Command::SetMode { mode: (*mode).to_owned(), reason }),
        [
            "status" | "nodes" | "node" | "pod" | "waiting" | "releases" | "fuse" | "audit"
            | "mode",
            rest @ ..,
        ] => Err(format!("too many words: '{}'", rest.join(" "))),
        [other, ..] => Err(format!("'{other}' is not a command")),
    };
    flags.refuse_the_rest(problems);
    found.map_err(|what| problems.add_other(what)).ok()
}

fn pod_name(text: &str) -> Result<Command, String> {
    match text.split_once('/') {
        Some((namespace, name))
            if !namespace.is_empty() && !name.is_empty() && !name.contains('/') =>
        {
            Ok(Command::Pod { namespace: namespace.to_owned(), name: name.to_owned() })
        }
        _ => Err(format!("'{text}' is not a pod: expected NAMESPACE/NAME")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(argv: &[&str], env: &[(&str, &str)]) -> Result<Settings, Exit> {
        let argv = std::iter::once("trunkline").chain(argv.iter().copied()).map(String::from);
        let get = |name: &str| env.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        parse(argv, &get)
    }

    #[test]
    fn flags_may_stand_anywhere() {
        for argv in [
            ["-o", "json", "pod", "shop/cart-0"].as_slice(),
            &["pod", "-ojson", "shop/cart-0"],
            &["pod", "shop/cart-0", "--output=json"],
            &["pod", "shop/cart-0", "-output", "json"],
            &["pod", "shop/cart-0", "-o=json"],
        ] {
            let settings = read(argv, &[]).unwrap();
            let (namespace, name) = ("shop".to_owned(), "cart-0".to_owned());
            assert_eq!(settings.command, Command::Pod { namespace, name }, "{argv:?}");
            assert_eq!(settings.output, Output::Json, "{argv:?}");
        }
    }

    #[test]
    fn fuse_mode_and_releases_are_read_with_their_flags() {
        let (node, reason) = (Some("n1".to_owned()), "looked at it".to_owned());
        for (argv, expected) in [
            (["fuse"].as_slice(), Command::Fuse),
            (
                &["fuse", "reset", "--node=n1", "--reason", "looked at it"],
                Command::Reset { node, reason: reason.clone() },
            ),
            (
                &["--cluster", "fuse", "reset", "--reason=looked at it"],
                Command::Reset { node: None, reason: reason.clone() },
            ),
            (&["mode"], Command::Mode),
            (&["audit"], Command::Audit { node: None, repair: Repair::No }),
            (
                &["audit", "--repair", "--node", "n1"],
                Command::Audit { node: Some("n1".into()), repair: Repair::DryRun },
            ),
            (
                &["--repair", "--yes", "audit", "--reason=looked at it"],
                Command::Audit { node: None, repair: Repair::Order(reason.clone()) },
            ),
            (
                &["mode", "no-release", "--reason=looked at it"],
                Command::SetMode { mode: "no-release".into(), reason },
            ),
            (
                &["releases", "--pod=shop/cart-0", "--since=30m"],
                Command::Releases {
                    node: String::new(),
                    pod: "shop/cart-0".into(),
                    eni: String::new(),
                    since: Some(Duration::from_secs(1_800)),
                },
            ),
        ] {
            assert_eq!(read(argv, &[]).unwrap().command, expected, "{argv:?}");
        }
    }

    #[test]
    fn the_environment_stands_in_and_flags_win() {
        let env = [
            ("TRUNKLINE_COORDINATOR", "https://a:1,https://b:2"),
            ("TRUNKLINE_TOKEN_FILE", "/tmp/token"),
            ("TRUNKLINE_COORDINATOR_CA", "/tmp/ca"),
        ];
        let settings = read(&["waiting", "--token-file=/tmp/other", "--node=n1"], &env).unwrap();
        assert_eq!(settings.coordinators.len(), 2);
        assert_eq!(settings.coordinator_ca, PathBuf::from("/tmp/ca"));
        assert_eq!(settings.token_file, PathBuf::from("/tmp/other"));
        assert_eq!(settings.command, Command::Waiting { node: Some("n1".into()) });
    }

    #[test]
    fn the_defaults_are_those_of_the_coordinators_image() {
        let settings = read(&["status"], &[]).unwrap();
        let coordinators: Vec<String> =
            settings.coordinators.iter().map(ToString::to_string).collect();
        assert_eq!(coordinators, ["https://trunkline-coordinator.trunkline-system.svc:61790"]);
        assert_eq!(settings.coordinator_ca, PathBuf::from("/etc/trunkline/ca/ca.crt"));
        assert_eq!(settings.token_file, PathBuf::from("/var/run/secrets/trunkline/token"));
    }

    #[test]
    fn all_mistakes_are_told_at_once_with_code_64() {
        let argv = ["pods", "-o", "yaml", "--coordinator", "http://a:1", "--nod=x"];
        let exit = read(&argv, &[("TRUNKLINE_NODE", "n1")]).unwrap_err();
        assert_eq!(exit.code, 64);
        for expected in [
            "'pods' is not a command",
            "--node (from TRUNKLINE_NODE): goes with the commands 'waiting', 'releases', 'fuse reset' and 'audit' only",
            "'yaml' is not an output",
            "'http://a:1' is not a server address",
            "--nod is not a flag: did you mean --node?",
            "pod NAMESPACE/NAME",
        ] {
            assert!(exit.text.contains(expected), "{expected} is missing in {}", exit.text);
        }
    }

    #[test]
    fn words_that_do_not_fit_are_named() {
        for (argv, expected) in [
            ([].as_slice(), "a command is missing"),
            (&["node"], "'node' needs the name of a node"),
            (&["pod"], "'pod' needs NAMESPACE/NAME"),
            (&["pod", "cart-0"], "'cart-0' is not a pod"),
            (&["pod", "shop/"], "'shop/' is not a pod"),
            (&["status", "now"], "too many words: 'now'"),
            (
                &["fuse", "reset", "--reason=x"],
                "'fuse reset' needs either --node NAME or --cluster",
            ),
            (&["fuse", "reset", "--reason=x", "--node=n", "--cluster"], "needs either"),
            (&["fuse", "reset", "--node=n"], "'fuse reset' needs --reason TEXT"),
            (&["fuse", "reset", "--node=n", "--reason= "], "'fuse reset' needs --reason TEXT"),
            (&["mode", "off", "--reason=x"], "'off' is not a mode"),
            (&["mode", "read-only"], "'mode MODE' needs --reason TEXT"),
            (&["fuse", "--cluster"], "goes with the command 'fuse reset' only"),
            (&["releases", "--since=soon"], "--since"),
            (&["audit", "--repair", "--yes"], "'audit --repair --yes' needs --reason TEXT"),
            (&["audit", "--yes"], "--yes: goes with 'audit --repair' only"),
            (&["audit", "--reason=x"], "goes with the commands 'fuse reset', 'mode MODE'"),
            (&["audit", "--repair", "--reason=x"], "and 'audit --repair --yes' only"),
            (&["status", "--repair"], "goes with the command 'audit' only"),
            (&["status", "--eni=eni-1"], "goes with the command 'releases' only"),
        ] {
            let exit = read(argv, &[]).unwrap_err();
            assert_eq!(exit.code, 64);
            assert!(exit.text.contains(expected), "{expected} is missing in {}", exit.text);
        }
    }

    #[test]
    fn help_and_version_end_well() {
        for argv in [["help"].as_slice(), &["--help"], &["status", "-h"]] {
            let exit = read(argv, &[]).unwrap_err();
            assert_eq!(exit.code, 0);
            assert!(exit.text.contains("pod NAMESPACE/NAME"), "{}", exit.text);
            assert!(exit.text.contains("TRUNKLINE_COORDINATOR_CA"), "{}", exit.text);
        }
        assert!(read(&["--version"], &[]).unwrap_err().text.starts_with("trunkline 0.1.0"));
    }
}
