//! Fuse, mode, and releases that wait.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use trunkline_core::mode::Mode;
use trunkline_core::verdict::Keep;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    /// Out of [`Keep::name`].
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModeLabels {
    /// Out of [`Mode::name`].
    mode: &'static str,
}

/// What stops releasing, and how often something did.
#[derive(Debug, Clone, Default)]
pub struct Brakes {
    kept: Family<ReasonLabels, Counter>,
    vetoes: Counter,
    frozen_nodes: Gauge,
    frozen_cluster: Gauge,
    fuse_unknown: Gauge,
    mode: Family<ModeLabels, Gauge>,
}

impl Brakes {
    /// Registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let brakes = Self::default();
        registry.register(
            "trunkline_releases_kept",
            "Releases that began to wait, by what they wait for",
            brakes.kept.clone(),
        );
        registry.register(
            "trunkline_release_vetoes",
            "Releases that an agent asked for and the API server contradicted",
            brakes.vetoes.clone(),
        );
        registry.register(
            "trunkline_fuse_frozen_nodes",
            "Nodes on which nothing is released until an operator resets the fuse",
            brakes.frozen_nodes.clone(),
        );
        registry.register(
            "trunkline_fuse_frozen_cluster",
            "1 while nothing is released in the cluster until an operator resets the fuse",
            brakes.frozen_cluster.clone(),
        );
        registry.register(
            "trunkline_fuse_unknown",
            "1 while nothing is released because the state of the fuse cannot be read or written",
            brakes.fuse_unknown.clone(),
        );
        registry.register("trunkline_mode", "1 for the mode in force", brakes.mode.clone());
        for reason in Keep::ALL {
            drop(brakes.kept.get_or_create(&ReasonLabels { reason: reason.name() }));
        }
        brakes
    }

    /// A release waits for another reason than before.
    pub fn kept(&self, why: Keep) {
        self.kept.get_or_create(&ReasonLabels { reason: why.name() }).inc();
    }

    /// The API server contradicted an agent.
    pub fn vetoed(&self) {
        self.vetoes.inc();
        self.kept(Keep::PodAlive);
    }

    /// What the fuse says.
    pub fn fuse(&self, nodes: usize, cluster: bool, unknown: bool) {
        self.frozen_nodes.set(i64::try_from(nodes).unwrap_or(i64::MAX));
        self.frozen_cluster.set(cluster.into());
        self.fuse_unknown.set(unknown.into());
    }

    /// The mode in force.
    pub fn mode(&self, in_force: Mode) {
        for mode in Mode::ALL {
            let labels = ModeLabels { mode: mode.name() };
            self.mode.get_or_create(&labels).set((mode == in_force).into());
        }
    }
}
