//! What a keeper does for its CNINode (`CNN-1`…`CNN-6`).

use std::time::Duration;

use trunkline_core::id::NodeUid;
use trunkline_kit::backoff::jitter;

use super::Keeper;
use crate::api::{ApiError, objects};
use crate::events::{Reason, Severity, Target};
use crate::nodes::directory::NodeView;
use crate::nodes::objects::CniNodeObject;
use crate::nodes::plan::{CniNodeStep, without_finalizer};

/// How long a finalizer waits for ENIs at most (`D9`).
const FINALIZER_HOLD: Duration = Duration::from_secs(3_600);
/// How often a waiting finalizer looks.
const FINALIZER_LOOK: Duration = Duration::from_secs(60);

impl Keeper {
    /// Does what the CNINode needs; returns when to look again.
    pub(super) async fn cninode(&mut self, step: CniNodeStep, view: &NodeView) -> Option<Duration> {
        if !matches!(step, CniNodeStep::Finalize) {
            self.finalizing_since = None;
            self.told_finalizer = false;
        }
        let object = view.cninode.clone().flatten();
        let term = self.term.clone();
        let result = match (step, object) {
            (CniNodeStep::Nothing, _) => {
                self.backoff.reset();
                return None;
            }
            (CniNodeStep::Create(parts), _) => {
                let _permit = term.node_writes.acquire().await;
                let result = objects::create_cninode(&term.api, &parts).await;
                self.warn_on(
                    &result,
                    Reason::CNINodeCreationFailed,
                    "the CNINode cannot be created",
                );
                result
            }
            (CniNodeStep::Patch(patch), _) => {
                let _permit = term.node_writes.acquire().await;
                objects::patch_cninode(&term.api, &self.name, &patch).await
            }
            (CniNodeStep::Recreate(owner), Some(object)) => self.recreate(&object, &owner).await,
            (CniNodeStep::Finalize, Some(object)) => return self.finalize(&object).await,
            (CniNodeStep::Recreate(_) | CniNodeStep::Finalize, None) => return None,
        };
        match result {
            // The watch brings the new object; without it we look again.
            Ok(()) => Some(Duration::from_secs(30)),
            Err(ApiError::Conflict(_)) => {
                Some(Duration::from_millis(100) + jitter(Duration::from_millis(400)))
            }
            Err(e) => {
                tracing::warn!(node = %self.name, "CNINode not written: {e}");
                Some(self.backoff.next_delay().max(Duration::from_millis(200)))
            }
        }
    }

    fn warn_on(&self, result: &Result<(), ApiError>, reason: Reason, what: &str) {
        if let Err(e @ ApiError::Refused { .. }) = result {
            self.term.recorder.post(
                Target::Node(self.name.clone()),
                Severity::Warning,
                reason,
                format!("{what}: {e}"),
            );
        }
    }

    /// `CNN-6`: the finalizer goes, then the object, then it is made anew with what it carried.
    async fn recreate(&self, object: &CniNodeObject, owner: &NodeUid) -> Result<(), ApiError> {
        let term = &self.term;
        let _permit = term.node_writes.acquire().await;
        if object.has_finalizer() {
            objects::patch_cninode(&term.api, &self.name, &without_finalizer(object)).await?;
        }
        let path = format!("{}/{}", objects::CNINODES, self.name);
        for _ in 0..6 {
            match term.api.get::<CniNodeObject>(&path).await {
                Err(ApiError::NotFound(_)) => {
                    let labels =
                        serde_json::json!(object.metadata.labels.clone().unwrap_or_default());
                    let result = objects::recreate_cninode(
                        &term.api,
                        &self.name,
                        owner,
                        &labels,
                        &object.spec,
                    )
                    .await;
                    term.metrics.peer.recreated_cninode(result.is_err());
                    self.warn_on(
                        &result,
                        Reason::CNINodeCreationFailed,
                        "the deleted CNINode cannot be re-created",
                    );
                    return result;
                }
                Ok(now) if now.metadata.uid != object.metadata.uid => return Ok(()),
                Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
            }
        }
        term.recorder.post(
            Target::CniNode(self.name.clone(), object.metadata.uid.clone()),
            Severity::Warning,
            Reason::CNINodeDeletionFailed,
            "the CNINode was deleted while its node lives and does not go away; it is re-created once it has",
        );
        Err(ApiError::Unknown("the CNINode is still being deleted".into()))
    }

    /// `D9`, T8: the finalizer goes once no ENI carries the node's instance id any more, or after an hour with an event.
    async fn finalize(&mut self, object: &CniNodeObject) -> Option<Duration> {
        let now = self.term.clock.now();
        let since = *self.finalizing_since.get_or_insert(now);
        // A complete list without the Node is confirmed by the API server's own word (D3).
        let node: Result<serde_json::Value, ApiError> =
            self.term.api.get(&format!("/api/v1/nodes/{}", self.name)).await;
        if !matches!(node, Err(ApiError::NotFound(_))) {
            return Some(FINALIZER_LOOK);
        }
        let linux = object.metadata.label(objects::OS_LABEL) == Some("linux");
        let left = match object.instance().filter(|_| linux) {
            None => Some(0),
            // A reading of our own would cost pages for every node that goes; a regular one will do, once no call for the
            // node can be under way and lists show what the last ones made (I6).
            Some(instance) => {
                let settled = self.term.timing.ec2_operation + self.term.timing.ec2_list_window;
                let last = self.term.board.last().filter(|i| i.began >= since.plus(settled));
                last.map(|i| i.of_node(&instance, None).len())
            }
        };
        let overdue = now.since(since) >= FINALIZER_HOLD;
        if left != Some(0) && !overdue {
            return Some(FINALIZER_LOOK);
        }
        let term = self.term.clone();
        let _permit = term.node_writes.acquire().await;
        match objects::patch_cninode(&term.api, &self.name, &without_finalizer(object)).await {
            Ok(()) | Err(ApiError::NotFound(_)) => {
                self.tell_left(object, left);
                Some(FINALIZER_LOOK)
            }
            Err(e) => {
                tracing::warn!(node = %self.name, "CNINode finalizer not removed: {e}");
                Some(self.backoff.next_delay().max(Duration::from_secs(1)))
            }
        }
    }

    /// What the finalizer did not wait for, once.
    fn tell_left(&mut self, object: &CniNodeObject, left: Option<usize>) {
        if left == Some(0) || std::mem::replace(&mut self.told_finalizer, true) {
            return;
        }
        let left = left.map_or("an unknown number of".to_owned(), |n| n.to_string());
        self.term.recorder.post(
            Target::CniNode(self.name.clone(), object.metadata.uid.clone()),
            Severity::Warning,
            Reason::CNINodeFinalizerRemoved,
            format!("{left} network interfaces of the removed node are left in EC2; their tags remain the record"),
        );
    }
}
