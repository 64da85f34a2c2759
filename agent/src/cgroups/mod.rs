//! The pod cgroups of this node.
//!
//! [`Cgroups::look`] walks the whole tree. Whether it is the right tree, `core` judges: the agent's own pod must be in it,
//! which proves that the kubelet makes pod cgroups at all (`cgroupsPerQOS`). [`Cgroups::follow`] reports cgroups as they
//! appear.
//!
//! **Under which kubelet start was a cgroup seen?** An event may have waited in the queue while the kubelet restarted. So
//! it is stamped with the start that was read before the queue was last found empty: that start was in force at some time
//! before the event. If the kubelet restarted in between, the stamp is too old, fits no later look, and the pod goes the
//! slow way; it can never be too new.

pub mod name;
mod tree;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use trunkline_core::id::{KubeletStart, PodUid};
use trunkline_core::view::Blind;

use self::tree::CgroupTree;
use crate::kubelet::KubeletProbe;
use crate::signs::SignBoard;

/// Pause after a failed read of events.
const RETRY: Duration = Duration::from_secs(1);

/// The pod cgroups below one root.
#[derive(Debug, Clone)]
pub struct Cgroups(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Held by whoever reads, so that a file system that hangs holds up one thread and not one per look.
    turn: Arc<tokio::sync::Mutex<()>>,
    kubelet: KubeletProbe,
    signs: Arc<SignBoard>,
}

#[derive(Debug)]
struct State {
    tree: CgroupTree,
    /// Kubelet start that was read before the event queue was last empty.
    stamp: Option<KubeletStart>,
}

impl Cgroups {
    /// The tree below `root`.
    pub fn new(root: &Path, kubelet: KubeletProbe, signs: Arc<SignBoard>) -> io::Result<Self> {
        let stamp = kubelet.start().ok();
        let state = Mutex::new(State { tree: CgroupTree::new(root)?, stamp });
        Ok(Self(Arc::new(Shared { state, turn: Arc::default(), kubelet, signs })))
    }

    /// UIDs of all pod cgroups, or why they are not known.
    pub async fn look(&self) -> Result<BTreeSet<PodUid>, Blind> {
        let uids = self.blocking(|shared| {
            shared.drain()?;
            shared.with_state(|state| state.tree.scan())
        });
        uids.await.map_err(|error| {
            tracing::warn!(%error, "failed to read the cgroup tree");
            Blind::ReadFailed
        })
    }

    /// Number of watched directories.
    pub fn watches(&self) -> usize {
        self.0.with_state(|state| state.tree.watches())
    }

    /// Reports cgroups as they come and go, for ever.
    pub async fn follow(&self) -> io::Result<()> {
        let wake = crate::wait_fd(self.0.with_state(|s| s.tree.wake_fd())?)?;
        loop {
            wake.readable().await?.clear_ready();
            while let Err(error) = self.blocking(Shared::drain).await {
                tracing::warn!(%error, "failed to follow the cgroup tree");
                tokio::time::sleep(RETRY).await;
            }
            self.0.signs.changed();
        }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let shared = Arc::clone(&self.0);
        let turn = Arc::clone(&self.0.turn).lock_owned().await;
        let work = move || {
            let _turn = turn;
            work(&shared)
        };
        tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
    }
}

impl Shared {
    /// Reads all events; cgroups that appeared are put on the board.
    fn drain(&self) -> io::Result<()> {
        self.with_state(|state| {
            let next = self.kubelet.start().ok();
            let seen = state.tree.drain();
            let stamp = std::mem::replace(&mut state.stamp, next);
            let seen = seen?;
            if let Some(start) = stamp.filter(|_| !seen.is_empty()) {
                self.signs.seen(seen, start);
            }
            Ok(())
        })
    }

    fn with_state<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
