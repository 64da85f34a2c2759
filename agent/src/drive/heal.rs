//! Healing in place: one link at a time, in the order of the requests, beside the loop.
//!
//! A request that was not begun when its session ended is dropped: whoever leads next asks anew. One that is under way is
//! finished; half of it would be worse than all of it, and compare-and-set makes a repetition harmless.

use std::collections::VecDeque;
use std::net::IpAddr;

use futures::FutureExt;
use futures::future::BoxFuture;
use trunkline_core::fact::Origin;
use trunkline_core::id::MacAddress;
use trunkline_core::message::{MacOutcome, SetMac};
use trunkline_core::witness::Sighting;

use super::{Driver, wait_for};

/// Requests that may wait for their turn; a node has fewer branches than this.
const WAITING: usize = 256;

/// A step of healing in place.
pub(super) enum Heal {
    SetMac { origin: Origin, set: SetMac, trunk: MacAddress },
    Neighbours(Vec<IpAddr>),
}

/// What waits, and what is under way.
#[derive(Default)]
pub(super) struct Heals {
    waiting: VecDeque<Heal>,
    under_way: Option<BoxFuture<'static, Option<Sighting>>>,
}

impl Heals {
    pub(super) fn is_busy(&self) -> bool {
        self.under_way.is_some()
    }

    /// What the step under way came to, if the witness wants to know. Cancel safe; only called while one is.
    pub(super) async fn done(&mut self) -> Option<Sighting> {
        wait_for(&mut self.under_way).await
    }

    /// The session ended.
    pub(super) fn forget(&mut self) {
        self.waiting.clear();
    }
}

impl Driver {
    pub(super) fn heal(&mut self, heal: Heal) {
        if self.heals.waiting.len() < WAITING {
            self.heals.waiting.push_back(heal);
            self.begin_heal();
        } else if let Heal::SetMac { origin, set, .. } = heal {
            let outcome = MacOutcome::Failed(format!("{WAITING} requests are waiting already"));
            self.step(Sighting::MacSet { origin, request: set.request, outcome });
        }
    }

    pub(super) fn on_healed(&mut self, sighting: Option<Sighting>) {
        self.heals.under_way = None;
        if let Some(sighting) = sighting {
            self.step(sighting);
        }
        self.begin_heal();
    }

    fn begin_heal(&mut self) {
        if self.heals.is_busy() {
            return;
        }
        self.heals.under_way = self.heals.waiting.pop_front().map(|heal| match heal {
            Heal::SetMac { origin, set, trunk } => self.set_mac(origin, set, trunk),
            Heal::Neighbours(addresses) => {
                self.ports.node.clear_neighbours(addresses).map(|()| None).boxed()
            }
        });
    }

    fn set_mac(
        &self,
        origin: Origin,
        set: SetMac,
        trunk: MacAddress,
    ) -> BoxFuture<'static, Option<Sighting>> {
        let metrics = self.metrics.clone();
        let SetMac { request, uid, vlan, from, to, .. } = set.clone();
        let setting = self.ports.node.set_mac(set, trunk);
        async move {
            let outcome = setting.await;
            tracing::info!(%uid, %vlan, %from, %to, ?outcome, "a branch link's MAC was to be changed");
            metrics.mac_set(&outcome);
            Some(Sighting::MacSet { origin, request, outcome })
        }
        .boxed()
    }
}
