//! What an audit is given, and what it tells.

use std::collections::{BTreeMap, BTreeSet};

use crate::eni::EniRecord;
use crate::heal::Health;
use crate::id::{EniId, PodRef, VlanId};
use crate::time::Moment;
use crate::view::Pod;
use crate::wait::Wait;

/// What EC2 and the API server show of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// When the whole reading of EC2 began.
    pub began: Moment,
    /// The ENIs of this node in it, its trunk included.
    pub enis: Vec<EniRecord>,
    /// When the consistent LIST of the pods was sent.
    pub listed: Moment,
    /// The node's pods.
    pub pods: Vec<Pod>,
    /// What EC2 said of single ENIs since, asked by id.
    pub by_id: BTreeMap<EniId, Shown>,
}

/// EC2's answer for one ENI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    /// It exists.
    There(Box<EniRecord>),
    /// There is none of that id.
    NotFound,
    /// Nothing is known; with what was said.
    Unknown(String),
}

/// What an operator's order makes happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Remedy {
    /// The branch is repaired in place, whatever `--heal` and the fuse of the repairs say.
    Heal,
    /// The groups are set again.
    RestoreGroups,
    /// The tags that bind the ENI to its pod are written again.
    RestoreTags,
}

impl Remedy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Heal, Self::RestoreGroups, Self::RestoreTags];

    /// Short name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Heal => "heal",
            Self::RestoreGroups => "restore-groups",
            Self::RestoreTags => "restore-tags",
        }
    }

    /// What a person is told.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Heal => {
                "the branch is repaired in place once EC2, asked by id, confirms the loss; --heal=report and the fuse of the repairs do not stop it"
            }
            Self::RestoreGroups => "the ENI gets the groups that the pod was given",
            Self::RestoreTags => "the tags that bind the ENI to its pod and VLAN are written again",
        }
    }
}

/// What is done about a finding without any order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// It is repaired.
    Repaired,
    /// It waits for this.
    Waits(Wait),
    /// Nothing, for the coordinator runs with `--heal=report` or without `--restore-groups`.
    Ordered,
    /// It is kept, and nothing is done.
    Kept,
    /// It is released once the node's agent has stated that the pod is over, and that was confirmed.
    Released,
    /// It is deleted when its cooldown ends.
    Cools,
}

impl Next {
    /// Short name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Repaired => "repaired",
            Self::Waits(wait) => wait.name(),
            Self::Ordered => "only-by-order",
            Self::Kept => "kept",
            Self::Released => "agent-states-the-end",
            Self::Cools => "cools",
        }
    }

    /// What a person is told.
    pub fn sentence(&self) -> String {
        match self {
            Self::Repaired => "it is repaired by itself".to_owned(),
            Self::Waits(wait) => wait.to_string(),
            Self::Ordered => "nothing; it is repaired only by order (trunkline audit --repair)".to_owned(),
            Self::Kept => "it is kept as it is; a person has to look at it".to_owned(),
            Self::Released => {
                "it is released once the node's agent has stated that the pod is over and the API server confirms it"
                    .to_owned()
            }
            Self::Cools => "it is deleted when its cooldown ends".to_owned(),
        }
    }
}

/// Something that is not as it should be, or that is on its way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Its class; never [`Health::Ok`].
    pub class: Health,
    /// The ENI; `None` where only an annotation is unreadable.
    pub eni: Option<EniId>,
    /// Its VLAN, if known.
    pub vlan: Option<VlanId>,
    /// The pod.
    pub pod: Option<PodRef>,
    /// Who shows what.
    pub seen: String,
    /// What is done by itself.
    pub next: Next,
    /// What an order would add.
    pub remedy: Option<Remedy>,
}

impl Finding {
    /// A person should know of it. What merely cools down is listed, for that is what a teardown leaves for a while.
    pub fn is_trouble(&self) -> bool {
        self.class != Health::Cooling
    }
}

/// The outcome.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Audit {
    /// What was found.
    pub findings: Vec<Finding>,
    /// ENIs that have to be asked for by id before anything can be said of them.
    pub doubts: BTreeSet<EniId>,
    /// What could not be looked at, as sentences.
    pub unknown: Vec<String>,
}
