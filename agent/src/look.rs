//! One look at the node, from the real sources.
//!
//! The kubelet is asked before and after cgroups and links are read, so that whatever it does in between shows; the
//! moment of a look is its beginning, so that what it shows was there at or after that moment.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::BoxFuture;
use trunkline_core::id::{BootId, InvalidId, MacAddress};
use trunkline_core::message::{MacOutcome, SetMac};
use trunkline_core::view::{Blind, Look};
use trunkline_kit::clock::Clock;

use crate::cgroups::Cgroups;
use crate::chain;
use crate::kubelet::KubeletProbe;
use crate::links::LinkReader;
use crate::links::heal::LinkHealer;
use crate::port::{LocalNode, LookError};
use crate::signs::SignBoard;

/// Why the boot id is not known.
#[derive(Debug, thiserror::Error)]
pub enum BootIdError {
    /// The file cannot be read.
    #[error("failed to read '{path}'")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It holds something else.
    #[error("'{path}' does not hold a boot id")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: InvalidId,
    },
}

/// Reads the kernel's boot id (`--boot-id-file`).
pub fn read_boot_id(path: &Path) -> Result<BootId, BootIdError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| BootIdError::Read { path: path.to_owned(), source })?;
    BootId::new(text.trim())
        .map_err(|source| BootIdError::Invalid { path: path.to_owned(), source })
}

/// The node the agent runs on.
#[derive(Debug, Clone)]
pub struct HostNode {
    /// Clock of the moments.
    pub clock: Clock,
    /// File with the boot id.
    pub boot_id_file: PathBuf,
    /// The kubelet.
    pub kubelet: KubeletProbe,
    /// Its pods' cgroups.
    pub cgroups: Cgroups,
    /// The host's links.
    pub links: LinkReader,
    /// Heals them; `None` with `--heal-in-place=false`.
    pub healer: Option<LinkHealer>,
    /// Signs of the watchers.
    pub signs: Arc<SignBoard>,
}

impl LocalNode for HostNode {
    fn look(&self) -> BoxFuture<'static, Result<Look, LookError>> {
        let node = self.clone();
        Box::pin(async move {
            let at = node.clock.now();
            let boot = read_boot_id(&node.boot_id_file)?;
            let kubelet_before = node.kubelet.look().await;
            let cgroups = node.cgroups.look().await;
            let links = node.links.dump().await.map_err(|error| {
                tracing::warn!(error = %chain(&error), "failed to read the links");
                Blind::ReadFailed
            });
            let kubelet_after = node.kubelet.look().await;
            Ok(Look { at, boot, kubelet_before, cgroups, links, kubelet_after })
        })
    }

    fn signs(&self) -> Arc<SignBoard> {
        Arc::clone(&self.signs)
    }

    fn set_mac(&self, set: SetMac, trunk: MacAddress) -> BoxFuture<'static, MacOutcome> {
        let healer = self.healer.clone();
        Box::pin(async move {
            match healer {
                Some(healer) => healer.set_mac(set, trunk).await,
                None => MacOutcome::SwitchedOff,
            }
        })
    }

    fn clear_neighbours(&self, addresses: Vec<IpAddr>) -> BoxFuture<'static, ()> {
        let healer = self.healer.clone();
        Box::pin(async move {
            if let Some(healer) = healer
                && let Err(error) = healer.clear_neighbours(addresses).await
            {
                tracing::warn!(error = %chain(&error), "failed to drop neighbour entries");
            }
        })
    }
}

/// Turns link changes into signs, for ever; the subscription is renewed when it breaks.
pub async fn follow_links(links: LinkReader, signs: Arc<SignBoard>) {
    const RETRY: std::time::Duration = std::time::Duration::from_secs(5);
    loop {
        match links.events().await {
            Ok(mut events) => {
                // What changed before the subscription was there is worth a look too.
                signs.changed();
                while let Ok(()) = events.changed().await {
                    signs.changed();
                }
                tracing::warn!("the subscription to link changes broke and is renewed");
            }
            Err(error) => {
                tracing::warn!(error = %chain(&error), "failed to subscribe to link changes");
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}
