//! The texts under the keys `fuse` and `mode` of the ConfigMap `trunkline-state`: JSON that a person can read with kubectl.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use trunkline_core::fuse::{FrozenNode, Fuse};
use trunkline_core::mode::{Choice, Mode};

use super::Who;

/// Longest user name or reason that is kept.
const TEXT: usize = 500;

/// What a person decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// In short.
    pub what: String,
    /// User name by TokenReview.
    pub by: String,
    /// The reason given.
    pub reason: String,
    /// When, RFC 3339.
    pub at: String,
}

impl Decision {
    /// Decided now.
    pub fn now(what: String, who: &Who) -> Self {
        let cut = |text: &str| text.chars().take(TEXT).collect();
        Self { what, by: cut(&who.user), reason: cut(&who.reason), at: written(super::now_unix()) }
    }

    /// When, in seconds since the Unix epoch; 0 if that cannot be read.
    pub fn at_unix(&self) -> u64 {
        read_time(&self.at).unwrap_or_default()
    }
}

/// The fuse, with what people are told beside it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoredFuse {
    /// All freezes.
    pub fuse: Fuse,
    /// The last reset.
    pub last_reset: Option<Decision>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FuseText {
    nodes: BTreeMap<String, NodeText>,
    cluster: Option<ClusterText>,
    #[serde(rename = "lastReset", default)]
    last_reset: Option<Decision>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NodeText {
    node: String,
    pods: BTreeSet<String>,
    since: String,
    counts: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterText {
    since: String,
}

fn written(unix: u64) -> String {
    let seconds = i64::try_from(unix).unwrap_or_default();
    jiff::Timestamp::from_second(seconds).unwrap_or_default().to_string()
}

fn read_time(text: &str) -> Result<u64, String> {
    let at: jiff::Timestamp = text.parse().map_err(|e: jiff::Error| e.to_string())?;
    Ok(u64::try_from(at.as_second()).unwrap_or_default())
}

impl StoredFuse {
    /// As it is stored.
    pub fn text(&self) -> String {
        let node = |frozen: &FrozenNode| NodeText {
            node: frozen.node.to_string(),
            pods: frozen.pods.iter().map(ToString::to_string).collect(),
            since: written(frozen.at),
            counts: frozen.counts,
        };
        let text = FuseText {
            nodes: self.fuse.nodes.iter().map(|(i, f)| (i.to_string(), node(f))).collect(),
            cluster: self.fuse.cluster.map(|at| ClusterText { since: written(at) }),
            last_reset: self.last_reset.clone(),
        };
        // Strings and booleans under string keys always serialise.
        serde_json::to_string(&text).unwrap_or_default()
    }

    /// Reads what was stored. Anything that is not understood whole is an error: half a freeze is none.
    pub fn read(text: &str) -> Result<Self, String> {
        let read: FuseText = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let mut fuse = Fuse::default();
        for (instance, node) in read.nodes {
            let instance = instance.parse().map_err(|e| format!("nodes: {e}"))?;
            let pods: Result<_, _> = node.pods.iter().map(|uid| uid.parse()).collect();
            let frozen = FrozenNode {
                node: node.node.parse().map_err(|e| format!("nodes: {e}"))?,
                pods: pods.map_err(|e| format!("nodes: {e}"))?,
                at: read_time(&node.since)?,
                counts: node.counts,
            };
            fuse.nodes.insert(instance, frozen);
        }
        fuse.cluster = read.cluster.map(|c| read_time(&c.since)).transpose()?;
        Ok(Self { fuse, last_reset: read.last_reset })
    }
}

/// An operator's choice of mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChosenMode {
    /// What was chosen, and over which flags.
    pub choice: Choice,
    /// By whom.
    pub decision: Decision,
}

#[derive(Serialize, Deserialize)]
struct ModeText {
    mode: String,
    over: String,
    by: String,
    reason: String,
    at: String,
}

impl ChosenMode {
    /// As it is stored.
    pub fn text(&self) -> String {
        let text = ModeText {
            mode: self.choice.mode.name().to_owned(),
            over: self.choice.over.name().to_owned(),
            by: self.decision.by.clone(),
            reason: self.decision.reason.clone(),
            at: self.decision.at.clone(),
        };
        serde_json::to_string(&text).unwrap_or_default()
    }

    /// Reads what was stored.
    pub fn read(text: &str) -> Result<Self, String> {
        let read: ModeText = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let mode = |name: &str| Mode::parse(name).ok_or(format!("'{name}' is not a mode"));
        let choice = Choice { mode: mode(&read.mode)?, over: mode(&read.over)? };
        let decision = Decision { what: read.mode, by: read.by, reason: read.reason, at: read.at };
        Ok(Self { choice, decision })
    }

    /// Stands for a text that cannot be read: nothing is changed until somebody chooses again.
    pub fn unreadable(flags: Mode, why: &str) -> Self {
        let decision = Decision {
            what: Mode::ReadOnly.name().to_owned(),
            by: String::new(),
            reason: format!("the stored mode cannot be read: {why}"),
            at: String::new(),
        };
        Self { choice: Choice { mode: Mode::ReadOnly, over: flags }, decision }
    }
}
