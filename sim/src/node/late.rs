//! What comes back after a pod's end (`real-node.md` §2): a runtime that finishes what it began, a plugin's child that
//! outlives it, a kubelet on a stale server.

use std::sync::Arc;
use std::time::Duration;

use super::cgroup::Qos;
use super::host::{Error, Host};
use super::model::{LateCreate, What};
use super::record::About;

fn about(host: &Host, late: &LateCreate) -> About {
    About { uid: late.uid.clone(), ..About::node(&host.name) }
}

/// Brings it back.
pub async fn begin(host: &Host, late: &LateCreate) -> Result<(), Error> {
    let record = &host.common.record;
    if late.cgroup {
        let made = host.tree.make(Qos::BestEffort, &late.uid);
        made.map_err(|source| Error::File { path: late.uid.clone().into(), source })?;
        record.add(&about(host, late), What::CgroupMade, "late");
    }
    if let Some(link) = &late.link {
        host.links.add_branch(&link.name, &link.mac).await?;
        let text = format!("a late ADD made {} with MAC {}", link.name, link.mac);
        record.add(&about(host, late), What::LinkChanged, text);
    }
    Ok(())
}

/// Takes it away again when its time is over.
pub async fn end(host: Arc<Host>, late: LateCreate) {
    tokio::time::sleep(Duration::from_millis(late.for_ms)).await;
    let record = &host.common.record;
    if let Some(link) = &late.link {
        match host.links.remove(&link.name).await {
            Ok(_) => {
                let text = format!("a late DEL removed {}", link.name);
                record.add(&about(&host, &late), What::LinkChanged, text);
            }
            Err(error) => tracing::warn!(node = host.name, %error, "a late link stays"),
        }
    }
    if late.cgroup {
        match host.tree.remove(Qos::BestEffort, &late.uid) {
            Ok(()) => record.add(&about(&host, &late), What::CgroupGone, "late"),
            Err(error) => tracing::warn!(node = host.name, %error, "a late cgroup stays"),
        }
    }
}
