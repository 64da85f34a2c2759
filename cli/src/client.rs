//! Finding the leader, and asking it.
//!
//! All addresses of all named coordinators are tried in their order until one answers. A follower's answer names the
//! leader; that address is dialled next, under the TLS name of the coordinator that named it (a certificate carries the
//! Service's name, not a pod's address). Only "not reachable", "unavailable" and "not the leader" lead on to another
//! address; every other answer is the leader's and is final.

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::timeout;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};
use trunkline_kit::config::Target;
use trunkline_kit::drain::chain;
use trunkline_kit::grpc::{self, Dial};
use trunkline_proto::LEADER_ADDRESS_METADATA;
use trunkline_proto::v1;
use trunkline_proto::v1::status_client::StatusClient;

/// How long one coordinator may take to answer a call.
const CALL: Duration = Duration::from_secs(30);

/// How often a redirect is followed: leadership may move while we ask.
const REDIRECTS: usize = 4;

/// Why nothing was answered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No coordinator answered.
    #[error("no coordinator could be asked: {}", Tried(.0))]
    Unreachable(Vec<(String, String)>),
    /// No coordinator leads.
    #[error("no coordinator leads at the moment ({}); try again in a few seconds", Tried(.0))]
    NoLeader(Vec<(String, String)>),
    /// The token was not accepted.
    #[error(
        "the coordinator does not accept the token: {0}; --token-file must hold a valid token \
         with the audience trunkline"
    )]
    Token(String),
    /// The caller may not ask.
    #[error(
        "not allowed: {0}; the caller needs the verb get on the non-resource URL /trunkline/status \
         (ClusterRole trunkline-status-viewer), to change something the verb update \
         (ClusterRole trunkline-operator)"
    )]
    Forbidden(String),
    /// There is no such thing in the books.
    #[error("{0}")]
    NotFound(String),
    /// Anything else the coordinator said.
    #[error("the coordinator answered {code:?}: {message}")]
    Answer {
        /// Code.
        code: Code,
        /// Message.
        message: String,
    },
}

/// Addresses that were tried, and what came of it.
struct Tried<'a>(&'a [(String, String)]);

impl fmt::Display for Tried<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (address, why)) in self.0.iter().enumerate() {
            write!(f, "{}{address}: {why}", if n > 0 { "; " } else { "" })?;
        }
        Ok(())
    }
}

/// Puts the token on every request.
#[derive(Clone)]
pub struct Bearer(MetadataValue<Ascii>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("authorization", self.0.clone());
        Ok(request)
    }
}

/// Service of one coordinator.
pub type Service = StatusClient<InterceptedService<Channel, Bearer>>;

/// Asks the leader.
pub struct Client {
    coordinators: Vec<Target>,
    ca_file: PathBuf,
    bearer: Bearer,
}

/// What came of asking one address.
enum Asked<T> {
    Answer(T),
    /// Not here; perhaps there.
    Elsewhere {
        leader: Option<String>,
        why: String,
    },
    Unreachable(String),
}

impl Client {
    /// For these coordinators, the CA certificates in that file and this token; `None` if the token cannot be sent as a
    /// header.
    pub fn new(coordinators: Vec<Target>, ca_file: PathBuf, token: &str) -> Option<Self> {
        let mut value = MetadataValue::try_from(format!("Bearer {token}")).ok()?;
        value.set_sensitive(true);
        let bearer = Bearer(value);
        (!token.is_empty()).then_some(Self { coordinators, ca_file, bearer })
    }

    /// `GetCluster`.
    pub async fn cluster(&self) -> Result<v1::ClusterStatus, Error> {
        self.ask(async |mut service: Service| {
            Ok(service.get_cluster(v1::GetClusterRequest {}).await?.into_inner())
        })
        .await
    }

    /// `ListNodes`, to its end.
    pub async fn nodes(&self) -> Result<Vec<v1::NodeRow>, Error> {
        self.ask(async |mut service: Service| {
            all(service.list_nodes(v1::ListNodesRequest {}).await?.into_inner()).await
        })
        .await
    }

    /// `GetNode`.
    pub async fn node(&self, name: &str) -> Result<v1::NodeStatus, Error> {
        self.ask(async |mut service: Service| {
            let request = v1::GetNodeRequest { name: name.to_owned() };
            Ok(service.get_node(request).await?.into_inner())
        })
        .await
    }

    /// `GetPod`.
    pub async fn pod(&self, namespace: &str, name: &str) -> Result<v1::GetPodResponse, Error> {
        self.ask(async |mut service: Service| {
            let request =
                v1::GetPodRequest { namespace: namespace.to_owned(), name: name.to_owned() };
            Ok(service.get_pod(request).await?.into_inner())
        })
        .await
    }

    /// `ListWaiting`, to its end; of one node or of all.
    pub async fn waiting(&self, node: Option<&str>) -> Result<Vec<v1::WaitingRow>, Error> {
        self.ask(async |mut service: Service| {
            let request = v1::ListWaitingRequest { node: node.unwrap_or_default().to_owned() };
            all(service.list_waiting(request).await?.into_inner()).await
        })
        .await
    }

    /// `ListReleases`, to its end.
    pub async fn releases(
        &self,
        request: &v1::ListReleasesRequest,
    ) -> Result<Vec<v1::ReleaseRow>, Error> {
        self.ask(async |mut service: Service| {
            all(service.list_releases(request.clone()).await?.into_inner()).await
        })
        .await
    }

    /// `GetFuse`.
    pub async fn fuse(&self) -> Result<v1::FuseStatus, Error> {
        self.ask(async |mut service: Service| {
            Ok(service.get_fuse(v1::GetFuseRequest {}).await?.into_inner())
        })
        .await
    }

    /// `ResetFuse`.
    pub async fn reset_fuse(
        &self,
        request: &v1::ResetFuseRequest,
    ) -> Result<v1::FuseStatus, Error> {
        self.ask(async |mut service: Service| {
            Ok(service.reset_fuse(request.clone()).await?.into_inner())
        })
        .await
    }

    /// `GetMode`.
    pub async fn mode(&self) -> Result<v1::ModeStatus, Error> {
        self.ask(async |mut service: Service| {
            Ok(service.get_mode(v1::GetModeRequest {}).await?.into_inner())
        })
        .await
    }

    /// `SetMode`.
    pub async fn set_mode(&self, request: &v1::SetModeRequest) -> Result<v1::ModeStatus, Error> {
        self.ask(async |mut service: Service| {
            Ok(service.set_mode(request.clone()).await?.into_inner())
        })
        .await
    }

    /// `Audit`; of one node or of all.
    pub async fn audit(&self, node: Option<&str>) -> Result<v1::AuditReport, Error> {
        self.ask(async |mut service: Service| {
            let request = v1::AuditRequest { node: node.unwrap_or_default().to_owned() };
            Ok(service.audit(request).await?.into_inner())
        })
        .await
    }

    /// `Repair`.
    pub async fn repair(&self, request: &v1::RepairRequest) -> Result<v1::AuditReport, Error> {
        self.ask(async |mut service: Service| {
            Ok(service.repair(request.clone()).await?.into_inner())
        })
        .await
    }

    /// Asks one coordinator after another until the leader answers.
    async fn ask<T>(&self, call: impl AsyncFn(Service) -> Result<T, Status>) -> Result<T, Error> {
        let mut tried = Vec::new();
        let mut leaderless = false;
        let mut redirects = 0;
        let mut queue = match grpc::resolve(&self.coordinators).await {
            Ok(dials) => VecDeque::from(dials),
            Err(error) => {
                let named: Vec<String> = self.coordinators.iter().map(Target::to_string).collect();
                return Err(Error::Unreachable(vec![(named.join(","), chain(&error))]));
            }
        };
        while let Some(dial) = queue.pop_front() {
            let (leader, why) = match self.ask_one(&dial, &call).await? {
                Asked::Answer(answer) => return Ok(answer),
                Asked::Unreachable(why) => (None, why),
                Asked::Elsewhere { leader, why } => {
                    leaderless = true;
                    (leader, why)
                }
            };
            tried.push((dial.address.to_string(), why));
            if let Some(leader) = leader.filter(|_| redirects < REDIRECTS) {
                redirects += 1;
                match grpc::resolve_redirect(&leader, &dial.tls_name).await {
                    Ok(dials) => dials.into_iter().rev().for_each(|d| queue.push_front(d)),
                    Err(error) => tried.push((leader, chain(&error))),
                }
            }
        }
        Err(if leaderless { Error::NoLeader(tried) } else { Error::Unreachable(tried) })
    }

    async fn ask_one<T>(
        &self,
        dial: &Dial,
        call: &impl AsyncFn(Service) -> Result<T, Status>,
    ) -> Result<Asked<T>, Error> {
        let channel = match grpc::connect(dial, &self.ca_file).await {
            Ok(channel) => channel,
            Err(error) => return Ok(Asked::Unreachable(chain(&error))),
        };
        let service = StatusClient::with_interceptor(channel, self.bearer.clone())
            .max_decoding_message_size(64 * 1024 * 1024);
        let Ok(answer) = timeout(CALL, call(service)).await else {
            return Ok(Asked::Unreachable(format!("no answer within {} s", CALL.as_secs())));
        };
        match answer {
            Ok(answer) => Ok(Asked::Answer(answer)),
            Err(status) => classify(&status),
        }
    }
}

fn classify<T>(status: &Status) -> Result<Asked<T>, Error> {
    let message = status.message().to_owned();
    Err(match status.code() {
        Code::FailedPrecondition => {
            let leader = status.metadata().get(LEADER_ADDRESS_METADATA);
            let leader = leader.and_then(|v| v.to_str().ok()).map(ToOwned::to_owned);
            let why = match &leader {
                Some(leader) => format!("the leader is {leader}"),
                None => message,
            };
            return Ok(Asked::Elsewhere { leader, why });
        }
        Code::Unavailable | Code::DeadlineExceeded => return Ok(Asked::Unreachable(message)),
        Code::Unauthenticated => Error::Token(message),
        Code::PermissionDenied => Error::Forbidden(message),
        Code::NotFound => Error::NotFound(message),
        code => Error::Answer { code, message },
    })
}

async fn all<T>(mut stream: Streaming<T>) -> Result<Vec<T>, Status> {
    let mut items = Vec::new();
    while let Some(item) = stream.message().await? {
        items.push(item);
    }
    Ok(items)
}
