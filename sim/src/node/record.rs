//! The append-only record.

use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use super::model::{LogEntry, What};

/// Whom a line is about.
#[derive(Debug, Clone, Default)]
pub struct About {
    /// Node name.
    pub node: String,
    /// Pod UID, or empty.
    pub uid: String,
    /// `namespace/name`, or empty.
    pub pod: String,
    /// ENI of the pod.
    pub eni: Option<String>,
    /// VLAN of the pod.
    pub vlan: Option<u16>,
}

impl About {
    /// A line about the node itself.
    pub fn node(name: &str) -> Self {
        Self { node: name.to_owned(), ..Self::default() }
    }
}

/// The record of one simulator.
#[derive(Debug)]
pub struct Record {
    start: Instant,
    lines: Mutex<Vec<LogEntry>>,
}

impl Default for Record {
    fn default() -> Self {
        Self { start: Instant::now(), lines: Mutex::default() }
    }
}

impl Record {
    /// Appends a line.
    pub fn add(&self, about: &About, what: What, detail: impl Into<String>) {
        let detail = detail.into();
        tracing::debug!(node = about.node, pod = about.pod, uid = about.uid, ?what, detail);
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let seq = lines.len() as u64 + 1;
        lines.push(LogEntry {
            seq,
            time_ms: jiff::Timestamp::now().as_millisecond(),
            mono_ms: u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX),
            node: about.node.clone(),
            uid: about.uid.clone(),
            pod: about.pod.clone(),
            what,
            eni: about.eni.clone(),
            vlan: about.vlan,
            detail,
        });
    }

    /// All lines with `seq >= from`.
    pub fn from(&self, from: u64) -> Vec<LogEntry> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let skip = usize::try_from(from.saturating_sub(1)).unwrap_or(usize::MAX);
        lines.iter().skip(skip).cloned().collect()
    }
}
