//! The EC2 inventory of this term: every ENI of this cluster, read in pages by tag, whole or not at all (S62, S69).
//!
//! Nothing is allocated and no trunk is made before the first whole reading of a term. Later readings come at an interval,
//! or when somebody asks for one that began after a given moment. A failed reading changes nothing.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use trunkline_core::eni::{Ec2Failure, EniKind, EniRecord};
use trunkline_core::id::{EniId, InstanceId};
use trunkline_core::time::{Moment, Timing};
use trunkline_kit::backoff::Backoff;
use trunkline_kit::clock::Clock;
use trunkline_kit::latest::{Latest, latest};

use crate::cloud::Cloud;

/// One whole reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inventory {
    /// When the reading began: what was made later may be missing.
    pub began: Moment,
    enis: Vec<EniRecord>,
    by_instance: HashMap<InstanceId, Vec<usize>>,
    by_trunk: HashMap<EniId, Vec<usize>>,
}

impl Inventory {
    /// Indexes a reading.
    pub fn new(began: Moment, enis: Vec<EniRecord>) -> Self {
        let mut by_instance: HashMap<InstanceId, Vec<usize>> = HashMap::new();
        let mut by_trunk: HashMap<EniId, Vec<usize>> = HashMap::new();
        for (index, eni) in enis.iter().enumerate() {
            let attached_to = eni.attachment.as_ref().and_then(|a| a.instance.as_ref());
            let instances: BTreeSet<&InstanceId> =
                eni.tags.instance.value().into_iter().chain(attached_to).collect();
            for instance in instances {
                by_instance.entry(instance.clone()).or_default().push(index);
            }
            if let Some(trunk) = eni.tags.trunk.value() {
                by_trunk.entry(trunk.clone()).or_default().push(index);
            }
        }
        Self { began, enis, by_instance, by_trunk }
    }

    /// Number of ENIs.
    pub fn len(&self) -> usize {
        self.enis.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.enis.is_empty()
    }

    /// All ENIs.
    pub fn enis(&self) -> &[EniRecord] {
        &self.enis
    }

    /// ENIs whose trunk tag or instance tag is this node's, trunks included.
    pub fn of_node(&self, instance: &InstanceId, trunk: Option<&EniId>) -> Vec<EniRecord> {
        let indexes: BTreeSet<usize> = self
            .by_instance
            .get(instance)
            .into_iter()
            .chain(trunk.and_then(|t| self.by_trunk.get(t)))
            .flatten()
            .copied()
            .collect();
        indexes.into_iter().filter_map(|i| self.enis.get(i).cloned()).collect()
    }

    /// Every instance that an ENI's tag, or its attachment, names.
    pub fn instances(&self) -> impl Iterator<Item = &InstanceId> {
        self.by_instance.keys()
    }

    /// Trunks that must exist, or have existed, for this instance: by their own tag, or named by its branches.
    pub fn trunks_of(&self, instance: &InstanceId) -> BTreeSet<EniId> {
        self.of_node(instance, None)
            .into_iter()
            .filter_map(|eni| match eni.kind {
                EniKind::Trunk => Some(eni.id),
                _ if eni.tags.instance.value() == Some(instance) => eni.tags.trunk.value().cloned(),
                _ => None,
            })
            .collect()
    }
}

/// Where the last whole reading can be seen, and another one asked for. Cheap to clone.
#[derive(Clone)]
pub struct Board {
    seen: Latest<Option<Arc<Inventory>>>,
    failed: watch::Receiver<Option<Ec2Failure>>,
    ask: Arc<Notify>,
}

impl Board {
    /// The last whole reading of this term.
    pub fn last(&self) -> Option<Arc<Inventory>> {
        self.seen.get()
    }

    /// Why the last reading failed, if it did.
    pub fn failure(&self) -> Option<Ec2Failure> {
        self.failed.borrow().clone()
    }

    /// Changes with every whole reading.
    pub fn subscribe(&self) -> Latest<Option<Arc<Inventory>>> {
        self.seen.clone()
    }

    /// A reading that begins now, whole or failed; an error is what failed. Waits for no second try.
    pub async fn fresh(&self, now: Moment) -> Result<Arc<Inventory>, String> {
        let mut failed = self.failed.clone();
        failed.mark_unchanged();
        tokio::select! {
            biased;
            whole = self.since(now) => whole.ok_or_else(|| "the term has ended".to_owned()),
            why = async {
                loop {
                    if failed.changed().await.is_err() {
                        break "the term has ended".to_owned();
                    }
                    // The result of a reading that began before `now` may come first: a success of it is passed over.
                    if let Some(failure) = failed.borrow_and_update().as_ref() {
                        break failure.to_string();
                    }
                }
            } => Err(why),
        }
    }

    /// The next whole reading that began at or after `since`, reading anew if need be; `None` when the term ends.
    pub async fn since(&self, since: Moment) -> Option<Arc<Inventory>> {
        let mut seen = self.seen.clone();
        loop {
            if let Some(inventory) = seen.see().filter(|i| i.began >= since) {
                return Some(inventory);
            }
            self.ask.notify_one();
            seen.changed().await.ok()?;
        }
    }
}

/// A board and the future that keeps it.
pub fn board(
    cloud: Arc<dyn Cloud>,
    clock: Clock,
    timing: Timing,
    interval: Duration,
) -> (Board, impl Future<Output = ()> + Send) {
    let (seen_tx, seen) = latest(None);
    let (failed_tx, failed) = watch::channel(None);
    let ask = Arc::new(Notify::new());
    let board = Board { seen, failed, ask: ask.clone() };
    let keep = async move {
        let mut backoff = Backoff::new(timing.retry_base, timing.retry_cap);
        loop {
            let began = clock.now();
            let pause = match cloud.inventory().await {
                Ok(enis) => {
                    backoff.reset();
                    tracing::info!(
                        enis = enis.len(),
                        took_ms = clock.now().since(began).as_millis(),
                        "EC2 inventory is whole"
                    );
                    failed_tx.send_replace(None);
                    seen_tx.set(Some(Arc::new(Inventory::new(began, enis))));
                    interval
                }
                Err(failure) => {
                    tracing::warn!("EC2 inventory failed, nothing follows from it: {failure}");
                    failed_tx.send_replace(Some(failure));
                    // At least a second, so that a refused reading is not repeated tightly.
                    timing.retry_base.max(Duration::from_secs(1)) + backoff.next_delay()
                }
            };
            tokio::select! {
                biased;
                () = clock.sleep(pause) => {}
                () = ask.notified(), if pause == interval => {}
            }
        }
    };
    (board, keep)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FakeCloud, branch, trunk_eni};

    #[test]
    fn enis_are_found_by_instance_and_by_trunk_and_known_trunks_by_their_branches() {
        let (i1, i2) = ("i-00000001".parse().unwrap(), "i-00000002".parse().unwrap());
        let trunk = trunk_eni(1, &i1);
        let of_gone_trunk = branch(3, 9, &i2, 4);
        let inventory = Inventory::new(
            Moment(1),
            vec![trunk.clone(), branch(2, 1, &i1, 3), of_gone_trunk.clone()],
        );
        assert_eq!(inventory.of_node(&i1, None).len(), 2);
        assert_eq!(
            inventory.of_node(&i2, Some(&trunk.id)).len(),
            2,
            "its own and those tagged with the trunk"
        );
        assert_eq!(inventory.trunks_of(&i1), BTreeSet::from([trunk.id]));
        assert_eq!(
            inventory.trunks_of(&i2),
            BTreeSet::from([of_gone_trunk.tags.trunk.value().unwrap().clone()])
        );
    }

    #[tokio::test(start_paused = true)]
    async fn i6_a_failed_reading_changes_nothing_and_is_repeated() {
        let cloud = FakeCloud::new();
        cloud.fail_inventories(2);
        let i1 = "i-00000001".parse().unwrap();
        cloud.put(trunk_eni(1, &i1));
        let clock = Clock::virtual_time();
        let (board, keep) =
            board(cloud.clone(), clock, Timing::default(), Duration::from_secs(300));
        let keep = tokio::spawn(keep);
        let first = board.since(Moment(0)).await.unwrap();
        assert_eq!(first.len(), 1);
        cloud.fail_inventories(1);
        let again = board.since(clock.now().plus(Duration::from_millis(1))).await.unwrap();
        assert!(again.began > first.began);
        keep.abort();
    }
}
