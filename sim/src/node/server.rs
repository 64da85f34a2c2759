//! The admin pages of the node simulator, all below `/_sim/`; shapes in [`super::model`].

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use tokio::sync::{mpsc, oneshot};

use super::host::{self, Host, lock};
use super::model::{
    HoldAdd, Join, KubeletAction, KubeletCommand, LateCreate, LinkCommand, LinkState, LogEntry,
    NodeState, PodState, RemoveStatic, RestartSandbox, What,
};
use super::record::Record;
use super::world::{self, Hosts};

/// What the pages look at.
#[derive(Clone)]
pub struct Admin {
    /// The nodes.
    pub hosts: Hosts,
    /// The record.
    pub record: Arc<Record>,
    /// Wishes to join.
    pub joins: mpsc::Sender<world::Join>,
}

/// Why an admin call was refused.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("there is no node '{0}' here")]
    NoNode(String),
    #[error("there is no static pod '{0}' on that node")]
    NoStaticPod(String),
    #[error("there is no pod '{0}' on that node")]
    NoPod(String),
    #[error(transparent)]
    Host(#[from] host::Error),
    #[error("the simulator is ending")]
    Ending,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::NoNode(_) | Self::NoStaticPod(_) | Self::NoPod(_) => StatusCode::NOT_FOUND,
            Self::Host(_) | Self::Ending => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, crate::support::causes(&self)).into_response()
    }
}

#[derive(Debug, Deserialize)]
struct From {
    #[serde(default)]
    from: u64,
}

#[derive(Debug, Deserialize)]
struct OfNode {
    #[serde(default)]
    node: Option<String>,
}

/// The pages.
pub fn router(admin: Admin) -> Router {
    Router::new()
        .route("/_sim/pods", get(pods))
        .route("/_sim/log", get(log))
        .route("/_sim/nodes", get(nodes).post(join))
        .route("/_sim/links", get(links).post(change_link))
        .route("/_sim/hold-add", post(hold_add))
        .route("/_sim/kubelet", post(kubelet))
        .route("/_sim/static-pods", post(remove_static))
        .route("/_sim/sandbox", post(restart_sandbox))
        .route("/_sim/late-create", post(late_create))
        .with_state(admin)
}

impl Admin {
    fn host(&self, name: &str) -> Result<Arc<Host>, Refusal> {
        lock(&self.hosts).get(name).cloned().ok_or_else(|| Refusal::NoNode(name.to_owned()))
    }

    /// The named node, or all.
    fn chosen(&self, name: Option<&str>) -> Result<Vec<Arc<Host>>, Refusal> {
        match name {
            Some(name) => Ok(vec![self.host(name)?]),
            None => Ok(lock(&self.hosts).values().cloned().collect()),
        }
    }
}

async fn pods(
    State(admin): State<Admin>,
    Query(of): Query<OfNode>,
) -> Result<Json<Vec<PodState>>, Refusal> {
    let mut found = Vec::new();
    for host in admin.chosen(of.node.as_deref())? {
        found.extend(host.pods().await?);
    }
    Ok(Json(found))
}

async fn log(State(admin): State<Admin>, Query(from): Query<From>) -> Json<Vec<LogEntry>> {
    Json(admin.record.from(from.from))
}

async fn nodes(State(admin): State<Admin>) -> Json<Vec<NodeState>> {
    Json(lock(&admin.hosts).values().map(|h| h.state()).collect())
}

async fn join(
    State(admin): State<Admin>,
    Json(join): Json<Join>,
) -> Result<Json<NodeState>, Refusal> {
    let (done, joined) = oneshot::channel();
    let wish = world::Join { node: join.node.clone(), done };
    admin.joins.send(wish).await.map_err(|_| Refusal::Ending)?;
    joined.await.map_err(|_| Refusal::Ending)??;
    Ok(Json(admin.host(&join.node)?.state()))
}

async fn links(
    State(admin): State<Admin>,
    Query(of): Query<OfNode>,
) -> Result<Json<Vec<LinkState>>, Refusal> {
    let mut found = Vec::new();
    for host in admin.chosen(of.node.as_deref())? {
        let links = host.links.all().await.map_err(host::Error::from)?;
        found.extend(links.into_iter().map(|(name, mac)| LinkState { name, mac }));
    }
    Ok(Json(found))
}

async fn change_link(
    State(admin): State<Admin>,
    Json(command): Json<LinkCommand>,
) -> Result<Json<()>, Refusal> {
    let host = admin.host(&command.node)?;
    match &command.mac {
        Some(mac) => {
            host.links.add_branch(&command.name, mac).await.map_err(host::Error::from)?;
            host.log(What::LinkChanged, format!("admin made {} with MAC {mac}", command.name));
        }
        None => {
            host.links.remove(&command.name).await.map_err(host::Error::from)?;
            host.log(What::LinkChanged, format!("admin removed {}", command.name));
        }
    }
    Ok(Json(()))
}

async fn hold_add(
    State(admin): State<Admin>,
    Json(hold): Json<HoldAdd>,
) -> Result<Json<()>, Refusal> {
    for host in admin.chosen(hold.node.as_deref())? {
        host.hold_add(hold.hold);
    }
    Ok(Json(()))
}

async fn kubelet(
    State(admin): State<Admin>,
    Json(command): Json<KubeletCommand>,
) -> Result<Json<NodeState>, Refusal> {
    let host = admin.host(&command.node)?;
    match command.action {
        KubeletAction::Restart => {
            host.stop_kubelet();
            host.start_kubelet()?;
        }
        KubeletAction::Stop => host.stop_kubelet(),
        KubeletAction::Start => host.start_kubelet()?,
        KubeletAction::Reboot => host.reboot().await?,
        KubeletAction::PowerOff => host.power_off().await?,
    }
    Ok(Json(host.state()))
}

async fn remove_static(
    State(admin): State<Admin>,
    Json(remove): Json<RemoveStatic>,
) -> Result<Json<()>, Refusal> {
    if admin.host(&remove.node)?.remove_static(&remove.hash) {
        Ok(Json(()))
    } else {
        Err(Refusal::NoStaticPod(remove.hash))
    }
}

async fn restart_sandbox(
    State(admin): State<Admin>,
    Json(restart): Json<RestartSandbox>,
) -> Result<Json<()>, Refusal> {
    if admin.host(&restart.node)?.restart_sandbox(&restart.uid) {
        Ok(Json(()))
    } else {
        Err(Refusal::NoPod(restart.uid))
    }
}

async fn late_create(
    State(admin): State<Admin>,
    Json(late): Json<LateCreate>,
) -> Result<Json<()>, Refusal> {
    let host = admin.host(&late.node)?;
    super::late::begin(&host, &late).await?;
    tokio::spawn(super::late::end(host, late));
    Ok(Json(()))
}
