//! Logs: JSON (time key `timestamp`, ISO 8601, `OBS-6`) or text, on standard error, with a level that can be changed
//! while the process runs.

use std::io::IsTerminal;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

/// How a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// One JSON object a line.
    #[default]
    Json,
    /// For people.
    Text,
}

impl std::str::FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "json" => Ok(Self::Json),
            "text" => Ok(Self::Text),
            other => Err(format!("'{other}' is not a log format: expected 'json' or 'text'")),
        }
    }
}

/// A log level that is one; anything else becomes `info` with a warning (`CFG-1`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLevel {
    level: &'static str,
    /// Logged once the log is up.
    pub warning: Option<String>,
}

impl LogLevel {
    /// Reads a level; never fails.
    pub fn parse(text: &str) -> Self {
        let known = ["error", "warn", "info", "debug", "trace"];
        let lower = text.trim().to_ascii_lowercase();
        match known.into_iter().find(|level| *level == lower) {
            Some(level) => Self { level, warning: None },
            None => Self {
                level: "info",
                warning: Some(format!(
                    "unknown log level '{text}', using 'info'; known are error, warn, info, debug and trace"
                )),
            },
        }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.level
    }

    /// The libraries below us are quieter than we are, unless everything is wanted.
    fn filter(&self) -> EnvFilter {
        match self.level {
            "trace" => EnvFilter::new("trace"),
            level => EnvFilter::new(format!(
                "{level},hyper=warn,hyper_util=warn,h2=warn,tower=warn,rustls=warn,kube_client=warn,tonic=warn,aws_config=warn,aws_smithy_runtime=warn,netlink_proto=warn"
            )),
        }
    }
}

/// Changes the level of a running process.
#[derive(Debug, Clone)]
pub struct LevelHandle(reload::Handle<EnvFilter, Registry>);

impl LevelHandle {
    /// Sets the level; `false` if the log is gone.
    pub fn set(&self, level: &LogLevel) -> bool {
        self.0.reload(level.filter()).is_ok()
    }
}

/// Starts logging. A second start in one process (tests) changes nothing and returns a handle without effect.
pub fn start(level: &LogLevel, format: LogFormat) -> LevelHandle {
    let (filter, handle) = reload::Layer::new(level.filter());
    let registry = tracing_subscriber::registry().with(filter);
    let started = match format {
        LogFormat::Json => {
            let lines = fmt::layer()
                .json()
                .flatten_event(true)
                .with_span_list(false)
                .with_writer(std::io::stderr);
            registry.with(lines).try_init()
        }
        LogFormat::Text => {
            let colour = std::io::stderr().is_terminal();
            registry.with(fmt::layer().with_ansi(colour).with_writer(std::io::stderr)).try_init()
        }
    };
    match started {
        Ok(()) => {
            if let Some(warning) = &level.warning {
                tracing::warn!("{warning}");
            }
        }
        Err(error) => tracing::debug!(%error, "the log was started before"),
    }
    LevelHandle(handle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_log_level_is_info_with_a_warning() {
        let level = LogLevel::parse("loud");
        assert_eq!(level.name(), "info");
        assert!(level.warning.unwrap().contains("'loud'"));
        assert_eq!(LogLevel::parse("DEBUG"), LogLevel { level: "debug", warning: None });
    }

    #[test]
    fn log_formats_are_json_and_text() {
        assert_eq!("text".parse(), Ok(LogFormat::Text));
        assert!("yaml".parse::<LogFormat>().is_err());
    }
}
