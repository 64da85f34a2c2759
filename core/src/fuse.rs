//! The fuse: too many contradictions stop releasing until a person has looked (design §4.5).
//!
//! It counts vetoes only: an agent said gone, our own *successful* GET said alive. Drains, silence and unanswered GETs do
//! not touch it. [`Vetoes`] counts in the books of one node; three distinct pods in the window freeze the node at once, in
//! the step that sees the third. [`Fuse`] is what is kept of that for the cluster and stored where the next term reads it
//! before its first release; three frozen nodes freeze the cluster.
//!
//! Nothing opens by itself. An agent that is wrong stays wrong: a fuse that closes again after ten minutes lets it try
//! three pods every ten minutes, until one GET is answered by a server that is wrong as well. A person opens a node, or the
//! cluster. Opening the cluster leaves its frozen nodes frozen and no longer counts them, so that the other nodes go on
//! while those are looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::id::{InstanceId, NodeName, PodUid};
use crate::time::Moment;
use crate::verdict::Keep;

/// Vetoes of distinct pods that freeze a node.
pub const VETOES: usize = 3;
/// Frozen nodes that freeze the cluster.
pub const NODES: usize = 3;

/// What the fuse says to one node's books.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FuseState {
    /// Releases may go on.
    Intact,
    /// This node is frozen.
    NodeBlown,
    /// The cluster is frozen.
    ClusterBlown,
    /// What is stored could not be read, or what has to be stored could not be written.
    Unknown,
}

impl FuseState {
    /// Why nothing is released; `None` if the fuse does not forbid it.
    pub fn keep(self) -> Option<Keep> {
        match self {
            Self::Intact => None,
            Self::NodeBlown => Some(Keep::FuseBlown),
            Self::ClusterBlown => Some(Keep::ClusterFuseBlown),
            Self::Unknown => Some(Keep::FuseUnknown),
        }
    }
}

/// Vetoes of one node, by pod, in a sliding window.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Vetoes {
    window: Duration,
    last: BTreeMap<PodUid, Moment>,
}

impl Vetoes {
    /// None yet.
    pub fn new(window: Duration) -> Self {
        Self { window, last: BTreeMap::new() }
    }

    /// Counts one, and returns the pods of the window once they are enough to freeze the node.
    pub fn count(&mut self, uid: PodUid, now: Moment) -> Option<BTreeSet<PodUid>> {
        self.forget(now);
        self.last.insert(uid, now);
        (self.last.len() >= VETOES).then(|| self.last.keys().cloned().collect())
    }

    /// Forgets what has left the window.
    pub fn forget(&mut self, now: Moment) {
        self.last.retain(|_, at| !now.has_passed(*at, self.window));
    }

    /// Forgets everything: a person has looked.
    pub fn clear(&mut self) {
        self.last.clear();
    }

    /// Pods in the window.
    pub fn len(&self) -> usize {
        self.last.len()
    }

    /// None in the window.
    pub fn is_empty(&self) -> bool {
        self.last.is_empty()
    }
}

/// A frozen node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FrozenNode {
    /// Its name when it froze.
    pub node: NodeName,
    /// The pods whose release was vetoed.
    pub pods: BTreeSet<PodUid>,
    /// When, in seconds since the Unix epoch; for people, never compared.
    pub at: u64,
    /// Counts towards freezing the cluster; not after the cluster was opened with the node left frozen.
    pub counts: bool,
}

/// What a freeze came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Froze {
    /// The node was frozen already.
    Already,
    /// The node.
    Node,
    /// The node, and with it the cluster.
    Cluster,
}

/// All freezes, as they are stored.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Fuse {
    /// Frozen nodes, by instance: a name can be another machine's tomorrow.
    pub nodes: BTreeMap<InstanceId, FrozenNode>,
    /// Since when the cluster is frozen, in seconds since the Unix epoch.
    pub cluster: Option<u64>,
}

impl Fuse {
    /// A node's vetoes are enough.
    pub fn freeze(
        &mut self,
        instance: InstanceId,
        node: NodeName,
        pods: BTreeSet<PodUid>,
        at: u64,
    ) -> Froze {
        if self.nodes.contains_key(&instance) {
            return Froze::Already;
        }
        self.nodes.insert(instance, FrozenNode { node, pods, at, counts: true });
        let counted = self.nodes.values().filter(|n| n.counts).count();
        if self.cluster.is_none() && counted >= NODES {
            self.cluster = Some(at);
            return Froze::Cluster;
        }
        Froze::Node
    }

    /// Opens a node, by its name or instance id; the instances that were frozen under it. The cluster stays as it is.
    pub fn open_node(&mut self, which: &str) -> Vec<InstanceId> {
        let found: Vec<InstanceId> = self
            .nodes
            .iter()
            .filter(|(instance, n)| instance.as_str() == which || n.node.as_str() == which)
            .map(|(instance, _)| instance.clone())
            .collect();
        for instance in &found {
            self.nodes.remove(instance);
        }
        found
    }

    /// Opens the cluster; whether it was frozen. Frozen nodes stay frozen and do not count any more.
    pub fn open_cluster(&mut self) -> bool {
        for node in self.nodes.values_mut() {
            node.counts = false;
        }
        self.cluster.take().is_some()
    }

    /// What it says to the books of this instance.
    pub fn state_of(&self, instance: &InstanceId) -> FuseState {
        if self.nodes.contains_key(instance) {
            FuseState::NodeBlown
        } else if self.cluster.is_some() {
            FuseState::ClusterBlown
        } else {
            FuseState::Intact
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uid(n: u64) -> PodUid {
        format!("uid-{n}").parse().unwrap()
    }

    fn instance(n: u64) -> InstanceId {
        format!("i-{n:08x}").parse().unwrap()
    }

    fn freeze(fuse: &mut Fuse, n: u64) -> Froze {
        let node = format!("node-{n}").parse().unwrap();
        fuse.freeze(instance(n), node, BTreeSet::from([uid(n)]), n)
    }

    #[test]
    fn three_pods_in_the_window_are_enough_and_one_pod_three_times_is_not() {
        let mut vetoes = Vetoes::new(Duration::from_secs(600));
        for at in 0..9 {
            assert_eq!(vetoes.count(uid(1), Moment(at)), None);
        }
        assert_eq!(vetoes.count(uid(2), Moment(10)), None);
        // Both have left the window by then.
        assert_eq!(vetoes.count(uid(3), Moment(600_010)), None);
        assert_eq!(vetoes.count(uid(4), Moment(600_011)), None);
        let pods = vetoes.count(uid(5), Moment(600_012)).unwrap();
        assert_eq!(pods, BTreeSet::from([uid(3), uid(4), uid(5)]));
    }

    #[test]
    fn three_frozen_nodes_freeze_the_cluster() {
        let mut fuse = Fuse::default();
        assert_eq!(freeze(&mut fuse, 1), Froze::Node);
        assert_eq!(freeze(&mut fuse, 1), Froze::Already);
        assert_eq!(freeze(&mut fuse, 2), Froze::Node);
        assert_eq!(fuse.state_of(&instance(9)), FuseState::Intact);
        assert_eq!(freeze(&mut fuse, 3), Froze::Cluster);
        assert_eq!(fuse.state_of(&instance(1)), FuseState::NodeBlown);
        assert_eq!(fuse.state_of(&instance(9)), FuseState::ClusterBlown);
    }

    #[test]
    fn opening_nodes_does_not_open_the_cluster() {
        let mut fuse = Fuse::default();
        for n in 1..=3 {
            freeze(&mut fuse, n);
        }
        assert_eq!(fuse.open_node("node-1"), [instance(1)]);
        assert_eq!(fuse.open_node(instance(2).as_str()), [instance(2)]);
        assert_eq!(fuse.open_node("node-1"), []);
        assert_eq!(fuse.state_of(&instance(1)), FuseState::ClusterBlown);
    }

    #[test]
    fn opening_the_cluster_leaves_its_nodes_frozen_and_three_new_ones_freeze_it_again() {
        let mut fuse = Fuse::default();
        for n in 1..=3 {
            freeze(&mut fuse, n);
        }
        assert!(fuse.open_cluster());
        assert!(!fuse.open_cluster());
        assert_eq!(fuse.state_of(&instance(1)), FuseState::NodeBlown);
        assert_eq!(fuse.state_of(&instance(9)), FuseState::Intact);
        assert_eq!(
            [4, 5, 6].map(|n| freeze(&mut fuse, n)),
            [Froze::Node, Froze::Node, Froze::Cluster]
        );
    }
}
