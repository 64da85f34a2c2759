//! Which trunk an instance has: what the instance metadata would show, read from the EC2 simulator's truth.
//!
//! The real CNI asks the metadata service, which is not one of EC2's throttled actions; reading the truth keeps these
//! reads out of EC2's call log and budgets.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::watch;

use crate::rest::RestClient;

/// How often the truth is read.
const INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug, Deserialize)]
struct Truth {
    enis: Vec<Eni>,
}

#[derive(Debug, Deserialize)]
struct Eni {
    interface_type: String,
    mac: String,
    attachment: Option<Attachment>,
}

#[derive(Debug, Deserialize)]
struct Attachment {
    instance: String,
    status: String,
}

impl Truth {
    /// Trunk MAC by instance id; the last one wins, as with the CNI.
    fn trunks(self) -> BTreeMap<String, String> {
        self.enis
            .into_iter()
            .filter(|e| e.interface_type == "trunk")
            .filter_map(|e| {
                let attachment = e.attachment.filter(|a| a.status == "attached")?;
                Some((attachment.instance, e.mac.to_ascii_lowercase()))
            })
            .collect()
    }
}

/// Keeps the map current until every receiver is gone.
pub async fn follow(ec2: RestClient, trunks: watch::Sender<BTreeMap<String, String>>) {
    while !trunks.is_closed() {
        match ec2.get::<Truth>("/_sim/state").await {
            Ok(truth) => {
                let now = truth.trunks();
                trunks.send_if_modified(|known| {
                    let changed = *known != now;
                    *known = now;
                    changed
                });
            }
            Err(error) => tracing::debug!(%error, "failed to read EC2's state; trying again"),
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_attached_trunks_count() {
        let truth: Truth = serde_json::from_value(serde_json::json!({"enis": [
            {"interface_type": "trunk", "mac": "02:00:00:00:00:0A", "attachment": {"instance": "i-1", "status": "attached"}},
            {"interface_type": "trunk", "mac": "02:00:00:00:00:0b", "attachment": {"instance": "i-2", "status": "attaching"}},
            {"interface_type": "trunk", "mac": "02:00:00:00:00:0c", "attachment": null},
            {"interface_type": "interface", "mac": "02:00:00:00:00:0d", "attachment": {"instance": "i-3", "status": "attached"}},
        ]}))
        .unwrap();
        assert_eq!(truth.trunks(), [("i-1".to_owned(), "02:00:00:00:00:0a".to_owned())].into());
    }
}
