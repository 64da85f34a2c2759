//! Metrics of list-watches.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::metrics::{closed_label, registered};

closed_label! {
    /// What went wrong, or forced a new list.
    pub enum Trouble {
        /// A list was refused, lost or late.
        ListFailed => "list-failed",
        /// A list's 200 answer was not a complete list.
        ListRejected => "list-rejected",
        /// The server could not reach the asked resourceVersion.
        TooLarge => "resource-version-too-large",
        /// A new epoch began: the server's resourceVersions went back.
        NewEpoch => "new-epoch",
        /// A watch could not be opened or broke off.
        WatchFailed => "watch-failed",
        /// A watch was answered 410.
        Expired => "expired",
        /// An event did not decode.
        Undecodable => "undecodable",
        /// An event or bookmark was older than what was seen before.
        WentBack => "went-back",
        /// Neither event nor bookmark for too long.
        Silent => "silent",
        /// Something contradicted the view.
        Contradicted => "contradicted",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResourceLabel {
    resource: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TroubleLabel {
    resource: &'static str,
    trouble: Trouble,
}

/// Counters and gauges of all list-watches of a process.
#[derive(Debug, Clone, Default)]
pub struct ListWatchMetrics {
    troubles: Family<TroubleLabel, Counter>,
    lists: Family<ResourceLabel, Counter>,
    complete: Family<ResourceLabel, Gauge>,
}

impl ListWatchMetrics {
    /// Registers them.
    pub fn register(registry: &mut Registry) -> Self {
        Self {
            troubles: registered(
                registry,
                "trunkline_listwatch_troubles",
                "What went wrong with a list-watch, or forced a new list",
            ),
            lists: registered(registry, "trunkline_listwatch_lists", "Accepted lists"),
            complete: registered(
                registry,
                "trunkline_listwatch_complete",
                "1 while the view is complete and followed",
            ),
        }
    }

    pub(super) fn trouble(&self, resource: &'static str, trouble: Trouble) {
        self.troubles.get_or_create(&TroubleLabel { resource, trouble }).inc();
    }

    pub(super) fn listed(&self, resource: &'static str) {
        self.lists.get_or_create(&ResourceLabel { resource }).inc();
    }

    pub(super) fn complete(&self, resource: &'static str, complete: bool) {
        self.complete.get_or_create(&ResourceLabel { resource }).set(i64::from(complete));
    }

    /// How often a trouble was counted.
    pub fn count(&self, resource: &'static str, trouble: Trouble) -> u64 {
        self.troubles.get_or_create(&TroubleLabel { resource, trouble }).get()
    }
}
