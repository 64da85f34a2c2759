//! `trunkline.v1.Status`: the leader's books for people and scripts, and the little that they may change.
//!
//! Callers are reviewed (TokenReview, then SubjectAccessReview on `/trunkline/status`, verb `get`, or `update` for what
//! changes something) before anything is looked at. A follower answers FAILED_PRECONDITION with the leader's address in the
//! metadata. Whoever changes something says why; user and reason are logged, stored and told in an event.

mod audit;
mod brakes;
mod build;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use futures::{Stream, stream};
use tokio::sync::{Semaphore, oneshot};
use tonic::{Code, Request, Response};
use trunkline_core::id::NodeName;
use trunkline_core::mode::Mode;
use trunkline_proto::LEADER_ADDRESS_METADATA;
use trunkline_proto::v1::reset_fuse_request::What;
use trunkline_proto::v1::status_server::Status;
use trunkline_proto::v1::{
    AuditReport, AuditRequest, ClusterStatus, FuseStatus, GetClusterRequest, GetFuseRequest,
    GetModeRequest, GetNodeRequest, GetPodRequest, GetPodResponse, ListNodesRequest,
    ListReleasesRequest, ListWaitingRequest, ModeStatus, NodeRow, NodeStatus, ReleaseRow,
    RepairRequest, ResetFuseRequest, SetModeRequest, WaitingRow,
};

use super::{Lead, Leading, Shared};
use crate::actor::{Mail, NodeReport};
use crate::api::Api;
use crate::api::access::{Reviewed, may, review_token};
use crate::audit as audits;
use crate::control::{ControlError, Opens, Who};
use crate::identity::{AUDIENCE, bearer};
use crate::nodes::keeper::NodeState;
use crate::term::Term;

/// What callers need a right on.
const PATH: &str = "/trunkline/status";
/// Reviews at one time.
const IN_FLIGHT: usize = 8;
/// How long one node's books may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The service.
pub struct StatusService {
    shared: Shared,
    api: Api,
    reviews: Semaphore,
}

/// A node as the term knows it: its set-up, and its books where they are there.
pub struct Seen {
    /// Its name.
    pub name: NodeName,
    /// Its set-up.
    pub state: Option<NodeState>,
    /// Its books.
    pub books: Option<NodeReport>,
}

type Rows<T> = Pin<Box<dyn Stream<Item = Result<T, tonic::Status>> + Send>>;

fn rows<T: Send + 'static>(rows: Vec<T>) -> Response<Rows<T>> {
    Response::new(Box::pin(stream::iter(rows.into_iter().map(Ok))))
}

impl StatusService {
    /// For this replica; the API server is asked who may ask.
    pub fn new(shared: Shared, api: Api) -> Self {
        Self { shared, api, reviews: Semaphore::new(IN_FLIGHT) }
    }

    async fn may_read<T>(&self, request: &Request<T>) -> Result<Leading, tonic::Status> {
        self.allow(request, "get").await?;
        self.leading()
    }

    /// Who may change something, with the reason that has to be given.
    async fn may_change<T>(
        &self,
        request: &Request<T>,
        reason: &str,
    ) -> Result<(Leading, Who), tonic::Status> {
        let user = self.allow(request, "update").await?.username;
        let leading = self.leading()?;
        let reason = reason.trim().to_owned();
        if reason.is_empty() {
            return Err(tonic::Status::invalid_argument(
                "a reason is needed, for those who ask later",
            ));
        }
        Ok((leading, Who { user, reason }))
    }

    async fn allow<T>(&self, request: &Request<T>, verb: &str) -> Result<Reviewed, tonic::Status> {
        let token = bearer(request.metadata());
        if token.is_empty() {
            return Err(tonic::Status::unauthenticated(
                "send a token: authorization: Bearer TOKEN",
            ));
        }
        let unanswered = |e: crate::api::ApiError| {
            tonic::Status::unavailable(format!("the caller cannot be reviewed: {e}"))
        };
        let _permit = self
            .reviews
            .acquire()
            .await
            .map_err(|_| tonic::Status::unavailable("shutting down"))?;
        // Our own audience first; a caller without such a token may use one for the API server.
        let mut user = review_token(&self.api, token, Some(AUDIENCE)).await.map_err(unanswered)?;
        if !user.authenticated || !user.audiences.iter().any(|a| a == AUDIENCE) {
            user = review_token(&self.api, token, None).await.map_err(unanswered)?;
        }
        if !user.authenticated {
            return Err(tonic::Status::unauthenticated(format!(
                "the API server does not accept the token: {}",
                user.error
            )));
        }
        if !may(&self.api, &user, verb, PATH).await.map_err(unanswered)? {
            let message =
                format!("user '{}' may not '{verb}' the non-resource URL {PATH}", user.username);
            return Err(tonic::Status::permission_denied(message));
        }
        Ok(user)
    }

    fn leading(&self) -> Result<Leading, tonic::Status> {
        let lead = self.shared.lead.borrow().clone();
        match lead {
            Lead::Leading(leading) => Ok(leading),
            Lead::Beginning => {
                Err(tonic::Status::unavailable("this coordinator is beginning its term"))
            }
            Lead::Following { .. } => {
                let Some(address) = self.shared.leader_elsewhere() else {
                    return Err(tonic::Status::unavailable("nobody leads at the moment"));
                };
                let mut status = tonic::Status::new(
                    Code::FailedPrecondition,
                    format!("the leader is at {address}"),
                );
                if let Ok(value) = address.parse() {
                    status.metadata_mut().insert(LEADER_ADDRESS_METADATA, value);
                }
                Err(status)
            }
        }
    }
}

/// The books of one node.
async fn books(term: &Arc<Term>, name: &NodeName) -> Option<NodeReport> {
    let (_, handle) = term.actor_of(name)?;
    let (ask, answer) = oneshot::channel();
    handle.mail.send(Mail::Report(ask)).await.ok()?;
    tokio::time::timeout(PATIENCE, answer).await.ok()?.ok()
}

/// All nodes, and books of instances whose Node object is gone.
pub async fn everything(term: &Arc<Term>) -> Vec<Seen> {
    let states = term.states();
    let ask = |handle: crate::term::Handle| async move {
        let (ask, answer) = oneshot::channel();
        handle.mail.send(Mail::Report(ask)).await.ok()?;
        tokio::time::timeout(PATIENCE, answer).await.ok()?.ok()
    };
    let reports = join_all(term.actors().into_iter().map(|(_, handle)| ask(handle))).await;
    let mut seen: Vec<Seen> = Vec::new();
    let mut of_current: BTreeMap<NodeName, NodeReport> = BTreeMap::new();
    for report in reports.into_iter().flatten() {
        let current =
            states.get(&report.node).and_then(|s| s.instance.as_ref()) == Some(&report.instance);
        if current {
            of_current.insert(report.node.clone(), report);
        } else if !report.books.pods.is_empty() {
            seen.push(Seen { name: report.node.clone(), state: None, books: Some(report) });
        }
    }
    for (name, state) in states {
        let books = of_current.remove(&name);
        seen.push(Seen { name, state: Some(state), books });
    }
    seen.sort_by(|a, b| a.name.cmp(&b.name));
    seen
}

#[tonic::async_trait]
impl Status for StatusService {
    async fn get_cluster(
        &self,
        request: Request<GetClusterRequest>,
    ) -> Result<Response<ClusterStatus>, tonic::Status> {
        let leading = self.may_read(&request).await?;
        let seen = everything(&leading.term).await;
        Ok(Response::new(build::cluster(&leading.term, &self.shared, &seen)))
    }

    type ListNodesStream = Rows<NodeRow>;

    async fn list_nodes(
        &self,
        request: Request<ListNodesRequest>,
    ) -> Result<Response<Rows<NodeRow>>, tonic::Status> {
        let leading = self.may_read(&request).await?;
        Ok(rows(everything(&leading.term).await.iter().map(build::node_row).collect()))
    }

    async fn get_node(
        &self,
        request: Request<GetNodeRequest>,
    ) -> Result<Response<NodeStatus>, tonic::Status> {
        let leading = self.may_read(&request).await?;
        let unknown = || tonic::Status::not_found("there is no such node in the books");
        let name: NodeName = request.into_inner().name.parse().map_err(|_| unknown())?;
        let state = leading.term.states().get(&name).cloned().ok_or_else(unknown)?;
        let books = books(&leading.term, &name).await;
        let seen = Seen { name, state: Some(state), books };
        Ok(Response::new(build::node(&seen, leading.term.clock.now())))
    }

    async fn get_pod(
        &self,
        request: Request<GetPodRequest>,
    ) -> Result<Response<GetPodResponse>, tonic::Status> {
        let leading = self.may_read(&request).await?;
        let asked = request.into_inner();
        let seen = everything(&leading.term).await;
        let pods = build::pods(&seen, &asked.namespace, &asked.name);
        if pods.is_empty() {
            return Err(tonic::Status::not_found("nothing is known of a pod of that name"));
        }
        Ok(Response::new(GetPodResponse { pods }))
    }

    type ListWaitingStream = Rows<WaitingRow>;

    async fn list_waiting(
        &self,
        request: Request<ListWaitingRequest>,
    ) -> Result<Response<Rows<WaitingRow>>, tonic::Status> {
        let leading = self.may_read(&request).await?;
        let node = request.into_inner().node;
        let seen = everything(&leading.term).await;
        Ok(rows(build::waiting(&seen, &node, leading.term.clock.now())))
    }

    type ListReleasesStream = Rows<ReleaseRow>;

    async fn list_releases(
        &self,
        request: Request<ListReleasesRequest>,
    ) -> Result<Response<Rows<ReleaseRow>>, tonic::Status> {
        let leading = self.may_read(&request).await?;
        let asked = request.into_inner();
        let now = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or_default();
        let found = leading.term.ledger.select(|record| brakes::wanted(record, &asked, now));
        Ok(rows(found.iter().map(brakes::release).collect()))
    }

    async fn get_fuse(
        &self,
        request: Request<GetFuseRequest>,
    ) -> Result<Response<FuseStatus>, tonic::Status> {
        let leading = self.may_read(&request).await?;
        Ok(Response::new(brakes::fuse(&leading.term.control.view())))
    }

    async fn reset_fuse(
        &self,
        request: Request<ResetFuseRequest>,
    ) -> Result<Response<FuseStatus>, tonic::Status> {
        let (leading, who) = self.may_change(&request, &request.get_ref().reason).await?;
        let what = match request.into_inner().what {
            Some(What::Node(node)) if !node.is_empty() => Opens::Node(node),
            Some(What::Cluster(true)) => Opens::Cluster,
            _ => return Err(tonic::Status::invalid_argument("name a node, or the cluster")),
        };
        let view = leading.term.control.open(&what, &who).await.map_err(|e| not_changed(&e))?;
        Ok(Response::new(brakes::fuse(&view)))
    }

    async fn get_mode(
        &self,
        request: Request<GetModeRequest>,
    ) -> Result<Response<ModeStatus>, tonic::Status> {
        let leading = self.may_read(&request).await?;
        Ok(Response::new(brakes::mode(&leading.term.control.view())))
    }

    async fn set_mode(
        &self,
        request: Request<SetModeRequest>,
    ) -> Result<Response<ModeStatus>, tonic::Status> {
        let (leading, who) = self.may_change(&request, &request.get_ref().reason).await?;
        let name = request.into_inner().mode;
        let mode = Mode::parse(&name)
            .ok_or_else(|| tonic::Status::invalid_argument(format!("'{name}' is not a mode")))?;
        let view = leading.term.control.choose(mode, &who).await.map_err(|e| not_changed(&e))?;
        Ok(Response::new(brakes::mode(&view)))
    }

    async fn audit(
        &self,
        request: Request<AuditRequest>,
    ) -> Result<Response<AuditReport>, tonic::Status> {
        let leading = self.may_read(&request).await?;
        let node = known_node(&leading.term, &request.into_inner().node)?;
        let report = audits::audit(&leading.term, node.as_ref()).await;
        Ok(Response::new(audit::report(&report)))
    }

    async fn repair(
        &self,
        request: Request<RepairRequest>,
    ) -> Result<Response<AuditReport>, tonic::Status> {
        let (leading, who) = self.may_change(&request, &request.get_ref().reason).await?;
        let term = &leading.term;
        let node = known_node(term, &request.into_inner().node)?;
        if term.settings.borrow().read_only {
            return Err(tonic::Status::aborted(
                "the mode is read-only and nothing can be repaired; set another with trunkline mode first",
            ));
        }
        let mut report = audits::audit(term, node.as_ref()).await;
        audits::order(term, &mut report, &who).await;
        Ok(Response::new(audit::report(&report)))
    }
}

/// The node that was named, if one was.
fn known_node(term: &Term, name: &str) -> Result<Option<NodeName>, tonic::Status> {
    if name.is_empty() {
        return Ok(None);
    }
    let unknown = || tonic::Status::not_found("there is no such node in the books");
    let name: NodeName = name.parse().map_err(|_| unknown())?;
    let known = term.states().contains_key(&name)
        || term.actors().iter().any(|(_, handle)| handle.node == name);
    if known { Ok(Some(name)) } else { Err(unknown()) }
}

/// ABORTED, not UNAVAILABLE: another coordinator would not do better, and the caller must read this.
fn not_changed(error: &ControlError) -> tonic::Status {
    match error {
        ControlError::NotFrozen(_) => tonic::Status::not_found(error.to_string()),
        ControlError::NotStored(_) | ControlError::InForceOnly(_) => {
            tonic::Status::aborted(error.to_string())
        }
    }
}
