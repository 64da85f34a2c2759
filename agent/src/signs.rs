//! What the watchers tell the loop: that a look is worth while now, and which cgroups appeared.
//!
//! Signs are merged while nobody reads them, so that a busy node costs the memory of its pods and not of its events.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use trunkline_core::id::{KubeletStart, PodUid};

/// Cgroups that appeared and were not read yet. More than a node can run; beyond it they are dropped, which only sends
/// their pods the slow way.
const MAX_SEEN: usize = 8192;

/// What happened since the last time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Signs {
    /// UIDs whose cgroup appeared, each with a kubelet start that was in force at some time before.
    pub seen: BTreeSet<(PodUid, KubeletStart)>,
    /// Cgroups or links changed: look.
    pub changed: bool,
}

/// Where watchers put signs and the loop takes them.
#[derive(Debug, Default)]
pub struct SignBoard {
    pending: Mutex<Signs>,
    notify: Notify,
}

impl SignBoard {
    /// A pod's cgroup appeared under this kubelet start.
    pub fn seen(&self, uids: impl IntoIterator<Item = PodUid>, start: KubeletStart) {
        let mut pending = self.lock();
        for uid in uids {
            if pending.seen.len() < MAX_SEEN {
                pending.seen.insert((uid, start));
            } else {
                tracing::warn!(%uid, "too many new cgroups at once; this pod is released the slow way");
            }
        }
        drop(pending);
        self.notify.notify_one();
    }

    /// Something changed.
    pub fn changed(&self) {
        self.lock().changed = true;
        self.notify.notify_one();
    }

    /// Waits until there is a sign and takes all of them. Cancel safe.
    pub async fn next(&self) -> Signs {
        loop {
            let notified = self.notify.notified();
            let taken = std::mem::take(&mut *self.lock());
            if taken.changed || !taken.seen.is_empty() {
                return taken;
            }
            notified.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Signs> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
