//! Settings: flags as in Go, an environment variable for each, and all mistakes in one message (`CFG-1`).
//!
//! Each binary has one clap struct whose fields are all `String` or `Option<String>`, with a `long` name and, where it
//! has one, a `default_value`. [`load`] reads the command line itself before clap sees it, because clap stops at the
//! first mistake and does not know Go's spelling:
//!
//! * `--flag value`, `--flag=value`, `-flag value` and `-flag=value` are the same; the last one wins;
//! * a flag with `value_name = "BOOL"` may stand alone (`--flag`), and then takes no separate value: `--flag=false`;
//! * a flag beats `TRUNKLINE_<FLAG>`, that beats the variable named by clap's `env` (`NODE_NAME`), that beats the
//!   default; an empty variable counts as unset;
//! * unknown flags and stray arguments are collected in [`Problems`], as are the mistakes that the binary finds when it
//!   turns the texts into types. [`Problems::into_error`] tells all of them; the exit code is 64.
//!
//! ```
//! use trunkline_kit::config::{self, BindAddress};
//!
//! #[derive(clap::Parser)]
//! #[command(name = "trunkline-agent", version = config::version())]
//! struct Args {
//!     /// Node this agent speaks for.
//!     #[arg(long, env = "NODE_NAME", value_name = "NAME")]
//!     node_name: Option<String>,
//!     /// Address of the health endpoints.
//!     #[arg(long, default_value = ":61780")]
//!     health_bind: String,
//!     /// Heal branches in place.
//!     #[arg(long, default_value = "true", value_name = "BOOL")]
//!     heal_in_place: String,
//! }
//!
//! let argv = ["trunkline-agent", "-health-bind", ":x", "--heal-in-place=perhaps", "--nodename=n"];
//! let mut loaded = config::load::<Args>(argv.map(String::from), &|_| None).unwrap();
//! let problems = &mut loaded.problems;
//! problems.required("node-name", loaded.args.node_name.as_deref(), |n| n.parse::<String>());
//! problems.parsed("health-bind", &loaded.args.health_bind, str::parse::<BindAddress>);
//! problems.parsed("heal-in-place", &loaded.args.heal_in_place, config::boolean);
//! assert_eq!(loaded.problems.into_error().problems.len(), 4);
//! ```

mod argv;
mod problems;
#[cfg(test)]
mod tests;
mod values;

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::{Command, CommandFactory, FromArgMatches};

pub use problems::{BadSettings, Problem, Problems};
pub use values::{
    BindAddress, Target, boolean, duration, file, number, seconds_or_duration, target, targets,
};

use crate::drain::{EXIT_OK, EXIT_USAGE};

/// Reads environment variables; a parameter, so that tests need not change the process's.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The process's environment.
pub fn process_env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The version as `--version` shows it: with ` (test-timing)` in builds that read `TRUNKLINE_TIMING`.
pub const fn version() -> &'static str {
    if cfg!(feature = "test-timing") {
        concat!(env!("CARGO_PKG_VERSION"), " (test-timing)")
    } else {
        env!("CARGO_PKG_VERSION")
    }
}

/// The variable of a flag: `health-bind` → `TRUNKLINE_HEALTH_BIND`.
pub fn variable(flag: &str) -> String {
    format!("TRUNKLINE_{}", flag.replace('-', "_").to_ascii_uppercase())
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The command line.
    Flag,
    /// This environment variable.
    Variable(String),
    /// The default.
    Default,
}

/// Settings as texts, and what is wrong so far.
#[derive(Debug)]
pub struct Loaded<T> {
    /// The clap struct.
    pub args: T,
    /// Unknown flags so far; the binary adds what it finds.
    pub problems: Problems,
    values: BTreeMap<String, (String, Source)>,
    secret: Vec<String>,
}

/// A process that ends before it starts: help, version, or bad settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// What to print.
    pub text: String,
    /// 0 or 64.
    pub code: u8,
}

impl Exit {
    /// Prints the text (help and version to standard output, mistakes to standard error) and returns the code.
    pub fn report(&self) -> ExitCode {
        use std::io::Write;
        let text = self.text.trim_end();
        // A closed pipe is no reason to fail.
        let _written = if self.code == EXIT_OK {
            writeln!(std::io::stdout(), "{text}")
        } else {
            writeln!(std::io::stderr(), "{text}")
        };
        ExitCode::from(self.code)
    }
}

/// Reads the process's command line and environment.
pub fn load_process<T: CommandFactory + FromArgMatches>() -> Result<Loaded<T>, Exit> {
    let argv = std::env::args_os().map(|a| a.to_string_lossy().into_owned());
    load(argv, &process_env)
}

/// Reads a command line (its first element is the program's name) and an environment.
pub fn load<T: CommandFactory + FromArgMatches>(
    words: impl IntoIterator<Item = String>,
    env: Env<'_>,
) -> Result<Loaded<T>, Exit> {
    let mut words = words.into_iter();
    let program = words.next().unwrap_or_default();
    let command = T::command();
    let flags = argv::Flag::all(&command);
    let read = argv::read(words, &flags);
    match read.asked {
        Some(argv::Asked::Help) => {
            return Err(Exit {
                text: documented(command).render_long_help().to_string(),
                code: EXIT_OK,
            });
        }
        Some(argv::Asked::Version) => {
            return Err(Exit { text: command.render_version(), code: EXIT_OK });
        }
        None => {}
    }
    let mut values = read.values;
    for flag in &flags {
        if let Some((variable, value)) =
            flag.variable_value(env).filter(|_| !values.contains_key(&flag.name))
        {
            values.insert(flag.name.clone(), (value, Source::Variable(variable)));
        }
    }
    let problems = Problems::new(command.get_name(), &flags, &values, read.problems);
    let words = values.iter().map(|(flag, (value, _))| format!("--{flag}={value}"));
    let parsed = command
        .try_get_matches_from(std::iter::once(program).chain(words))
        .and_then(|matches| T::from_arg_matches(&matches));
    match parsed {
        Ok(args) => {
            for flag in &flags {
                if let Some(default) =
                    flag.default.clone().filter(|_| !values.contains_key(&flag.name))
                {
                    values.insert(flag.name.clone(), (default, Source::Default));
                }
            }
            let secret = flags.iter().filter(|f| f.secret).map(|f| f.name.clone()).collect();
            Ok(Loaded { args, problems, values, secret })
        }
        // Only a struct with other fields than texts gets here.
        Err(error) => {
            Err(Exit { text: format!("{}\n{error}", problems.into_error()), code: EXIT_USAGE })
        }
    }
}

/// Adds each flag's variable to the help.
fn documented(command: Command) -> Command {
    command.mut_args(|arg| {
        let Some(long) = arg.get_long().map(str::to_owned) else {
            return arg;
        };
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let other =
            arg.get_env().map(|e| format!(" or {}", e.to_string_lossy())).unwrap_or_default();
        arg.help(format!("{help} [env: {}{other}]", variable(&long))).hide_env(true)
    })
}

impl<T> Loaded<T> {
    /// Where a flag's value came from; `None` if it has none.
    pub fn source(&self, flag: &str) -> Option<&Source> {
        self.values.get(flag).map(|(_, source)| source)
    }

    /// The flag was given, on the command line or by a variable.
    pub fn is_given(&self, flag: &str) -> bool {
        self.source(flag).is_some_and(|source| *source != Source::Default)
    }

    /// All values as one JSON object, secrets (flags with clap's `hide_env_values`) as `***`; to be logged once.
    pub fn describe(&self) -> String {
        let shown = |flag: &String, value: &String| {
            if self.secret.contains(flag) { "***".to_owned() } else { value.clone() }
        };
        let all: BTreeMap<&String, String> =
            self.values.iter().map(|(f, (v, _))| (f, shown(f, v))).collect();
        serde_json::to_string(&all).unwrap_or_default()
    }

    /// Logs the whole configuration, once, and which given flags have no meaning here.
    pub fn log(&self, unused: &[&str]) {
        tracing::info!(version = version(), settings = self.describe(), "starting");
        for flag in unused.iter().filter(|flag| self.is_given(flag)) {
            tracing::warn!(flag, "this flag is accepted for compatibility and has no effect");
        }
    }
}
