//! HTTP in and out, and the way of one request: latency, bucket, faults, action, log, reply.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rand::Rng as _;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::actions::dispatch;
use super::config::Config;
use super::error::ApiError;
use super::fault::{FaultKind, Faults, Fired, covers};
use super::model::LogEntry;
use super::params::Params;
use super::reply::{Body, Reply};
use super::throttle::{Buckets, bucket_of};
use super::world::{Call, World};
use super::xml::{self, Xml};
use super::{Error, admin};

/// Requests larger than this are refused.
const LARGEST_REQUEST: usize = 4 << 20;

/// The simulator; [`Ec2Sim::start`] makes it run.
#[derive(Debug)]
pub struct Ec2Sim;

/// A running simulator. It stops when this is dropped.
#[derive(Debug)]
pub struct Running {
    addr: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// Everything behind the lock: an effect and its log entry are one step.
pub(super) struct Inner {
    pub(super) world: World,
    pub(super) faults: Faults,
    pub(super) log: Vec<LogEntry>,
    buckets: Buckets,
}

/// What connections share.
pub(super) struct Shared {
    inner: Mutex<Inner>,
    start: Instant,
}

impl Ec2Sim {
    /// Binds and serves in the background.
    pub async fn start(config: Config) -> Result<Running, Error> {
        let mut world = World::new(&config, wall_ms()).map_err(|e| Error::Setup(e.message))?;
        let effects = world.take_effects();
        let mut faults = Faults::default();
        for fault in config.faults {
            faults.add(fault, 0);
        }
        let mut inner = Inner { world, faults, log: Vec::new(), buckets: Buckets::default() };
        let mut setup = Caller::admin("_sim/start", String::new()).entry();
        setup.effects = effects;
        inner.record(setup);
        let address = config.bind;
        let bound = async {
            let listener = TcpListener::bind(address).await?;
            let addr = listener.local_addr()?;
            Ok((listener, addr))
        };
        let (listener, addr) = bound.await.map_err(|source| Error::Bind { address, source })?;
        let shared = Arc::new(Shared { inner: Mutex::new(inner), start: Instant::now() });
        let stop = CancellationToken::new();
        let task = tokio::spawn(accept(listener, shared, stop.clone()));
        Ok(Running { addr, stop, task })
    }
}

impl Running {
    /// The bound address.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `http://ADDRESS`
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// A client for it.
    pub fn client(&self) -> super::client::SimClient {
        super::client::SimClient::new(&self.url())
    }

    /// Stops serving and waits until that is done.
    pub async fn shutdown(mut self) {
        self.stop.cancel();
        let _ = (&mut self.task).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, stop: CancellationToken) {
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        let _ = stream.set_nodelay(true);
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let shared = Arc::clone(&shared);
                async move { Shared::serve(&shared, request).await }
            });
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
            if let Err(error) = served {
                tracing::debug!(%error, "connection ended");
            }
        });
        while connections.try_join_next().is_some() {}
    }
    connections.shutdown().await;
}

/// The connection is to be closed without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the connection is closed without a reply, as a fault asks")]
struct Lost;

fn wall_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// Who asks what, as far as the log wants to know.
pub(super) struct Caller {
    arrived_ms: i64,
    action: String,
    params: BTreeMap<String, String>,
    key: String,
    user_agent: String,
    invocation: Option<String>,
    attempt: Option<u32>,
}

impl Caller {
    fn read(headers: &HeaderMap, params: &Params) -> Self {
        let header =
            |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).map(ToOwned::to_owned);
        let key = header("authorization")
            .and_then(|a| Some(a.split_once("Credential=")?.1.split('/').next()?.to_owned()));
        let attempt = header("amz-sdk-request").and_then(|r| {
            r.split(';').find_map(|part| part.trim().strip_prefix("attempt=")?.parse().ok())
        });
        Self {
            arrived_ms: wall_ms(),
            action: params.text("Action").unwrap_or_default().to_owned(),
            params: params.all().clone(),
            key: key.unwrap_or_default(),
            user_agent: header("user-agent").unwrap_or_default(),
            invocation: header("amz-sdk-invocation-id"),
            attempt,
        }
    }

    pub(super) fn admin(action: &str, body: String) -> Self {
        Self {
            arrived_ms: wall_ms(),
            action: action.to_owned(),
            params: BTreeMap::from([("body".to_owned(), body)]),
            key: "admin".into(),
            user_agent: String::new(),
            invocation: None,
            attempt: None,
        }
    }

    /// A log entry to be completed; [`Inner::record`] numbers it.
    pub(super) fn entry(self) -> LogEntry {
        LogEntry {
            seq: 0,
            arrived_ms: self.arrived_ms,
            wall_ms: wall_ms(),
            mono_ms: 0,
            action: self.action,
            params: self.params,
            caller: self.key,
            account: String::new(),
            user_agent: self.user_agent,
            invocation: self.invocation,
            attempt: self.attempt,
            request_id: String::new(),
            status: Some(200),
            code: None,
            faults: Vec::new(),
            replay: false,
            effects: Vec::new(),
        }
    }
}

/// What to do with a request once it has taken effect.
struct Fate {
    reply: Option<Reply>,
    /// Before the reply, or before the connection is closed.
    wait: Duration,
}

impl Shared {
    async fn serve(self: &Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>, Lost> {
        let (parts, body) = request.into_parts();
        let body = http_body_util::Limited::new(body, LARGEST_REQUEST).collect().await;
        let text = match body {
            Ok(body) => String::from_utf8_lossy(&body.to_bytes()).into_owned(),
            Err(_) => return Ok(Reply::json(413, "{}".into()).into_response()),
        };
        if parts.uri.path().starts_with("/_sim/") {
            let mut inner = self.lock().await;
            let query = parts.uri.query().unwrap_or_default();
            let reply = admin::serve(&mut inner, &parts.method, parts.uri.path(), query, &text);
            return Ok(reply.into_response());
        }
        let query =
            if parts.method == Method::GET { parts.uri.query().unwrap_or_default() } else { &text };
        let params = Params::decode(query);
        let caller = Caller::read(&parts.headers, &params);
        let (before, after) = self.latency(&caller.action).await;
        tokio::time::sleep(before).await;
        let fate = self.lock().await.answer(caller, &params);
        let (fate, slow) = match fate {
            Decision::Now(fate) => (fate, Duration::ZERO),
            Decision::Later(caller, fired, slow) => {
                // A task of its own: what EC2 has accepted takes effect although the client leaves meanwhile.
                let (shared, params) = (Arc::clone(self), Params::decode(query));
                let later = tokio::spawn(async move {
                    tokio::time::sleep(slow).await;
                    shared.until_freed(&fired).await;
                    shared.lock().await.act(caller, &params, &fired)
                });
                (later.await.map_err(|_| Lost)?, slow)
            }
        };
        tracing::debug!(
            action = params.text("Action"),
            ?slow,
            lost = fate.reply.is_none(),
            "served"
        );
        tokio::time::sleep(after + fate.wait).await;
        fate.reply.map(Reply::into_response).ok_or(Lost)
    }

    /// Waits until the fault that holds a call is taken away.
    async fn until_freed(&self, fired: &Fired) {
        let Some(id) = fired.held_by() else { return };
        while self.inner.lock().await.faults.has(&id) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The truth as of now.
    async fn lock(&self) -> tokio::sync::MutexGuard<'_, Inner> {
        let mut inner = self.inner.lock().await;
        // From 1 on: what stands since the start is older than what any call makes, also for a stale replica.
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        inner.world.advance(now.saturating_add(1), wall_ms());
        inner
    }

    async fn latency(&self, action: &str) -> (Duration, Duration) {
        let mut inner = self.inner.lock().await;
        let world = &mut inner.world;
        let ms = world.switches.latency.of(action, &mut world.rng);
        (Duration::from_millis(ms / 2), Duration::from_millis(ms - ms / 2))
    }
}

/// A request is dealt with at once, or goes on after a fault's delay.
enum Decision {
    Now(Fate),
    Later(Caller, Fired, Duration),
}

impl Inner {
    /// Adds an entry to the log.
    pub(super) fn record(&mut self, mut entry: LogEntry) {
        entry.seq = u64::try_from(self.log.len()).unwrap_or(u64::MAX).saturating_add(1);
        entry.mono_ms = self.world.now;
        self.log.push(entry);
    }

    fn answer(&mut self, caller: Caller, params: &Params) -> Decision {
        let fired = self.faults.fire(
            &caller.action,
            params,
            &caller.key,
            self.world.now,
            &mut self.world.rng,
        );
        let slow = fired.find(|kind| match kind {
            FaultKind::Slow { ms } | FaultKind::Hang { ms } => Some(Duration::from_millis(*ms)),
            FaultKind::Hold => Some(Duration::ZERO),
            _ => None,
        });
        match slow {
            Some(slow) => Decision::Later(caller, fired, slow),
            None => Decision::Now(self.act(caller, params, &fired)),
        }
    }

    /// The step in which a request takes effect.
    fn act(&mut self, caller: Caller, params: &Params, fired: &Fired) -> Fate {
        let request_id = self.request_id();
        let account = self.world.accounts.get(&caller.key).unwrap_or(&self.world.account).clone();
        let mut entry = caller.entry();
        entry.account.clone_from(&account);
        entry.request_id.clone_from(&request_id);
        entry.faults = fired.names();
        if fired.kinds().any(|kind| matches!(kind, FaultKind::Hang { .. })) {
            entry.status = None;
            self.record(entry);
            return Fate { reply: None, wait: Duration::ZERO };
        }
        let mut call = Call {
            action: &entry.action,
            params,
            caller: &entry.caller,
            account: &account,
            fired,
            read_at: self.read_at(fired),
            replay: false,
        };
        let outcome = self.outcome(&mut call);
        entry.replay = call.replay;
        entry.effects = self.world.take_effects();
        let fate = self.fate(&mut entry, outcome, fired);
        self.record(entry);
        fate
    }

    fn request_id(&mut self) -> String {
        let [a, b, c, d]: [u32; 4] = self.world.rng.random();
        format!(
            "{a:08x}-{:04x}-4{:03x}-a{:03x}-{:04x}{d:08x}",
            b >> 16,
            b & 0xfff,
            c >> 20,
            c & 0xffff
        )
    }

    /// A describe may be answered by a replica that lags behind.
    fn read_at(&mut self, fired: &Fired) -> u64 {
        let world = &mut self.world;
        let share = world.switches.lag.stale_share.clamp(0.0, 1.0);
        let by_fault = fired.find(|kind| match kind {
            FaultKind::Stale { age_ms } => Some(*age_ms),
            _ => None,
        });
        let age = match by_fault {
            Some(age) => age,
            None if share > 0.0 && world.rng.random_bool(share) => {
                world.switches.lag.stale.pick(&mut world.rng)
            }
            None => 0,
        };
        world.now.saturating_sub(age)
    }

    fn outcome(&mut self, call: &mut Call<'_>) -> Result<Vec<Xml>, ApiError> {
        let bucket = bucket_of(call.action, call.params);
        let now = self.world.now;
        if !self.buckets.take(&bucket, &self.world.switches.throttle, now) {
            return Err(ApiError::throttled());
        }
        let outcome = self.permitted(call);
        if outcome.is_err() && !self.world.switches.throttle.failures_spend {
            self.buckets.give_back(&bucket, &self.world.switches.throttle);
        }
        outcome
    }

    fn permitted(&mut self, call: &mut Call<'_>) -> Result<Vec<Xml>, ApiError> {
        if let Some(refusal) = call.fired.refusal(call.params) {
            return Err(refusal);
        }
        let switches = &self.world.switches;
        if switches.auth_failure {
            return Err(ApiError::new(
                401,
                "AuthFailure",
                "AWS was not able to validate the provided access credentials",
            ));
        }
        let refused = switches.unauthorized.iter().any(|r| {
            covers(&r.action, call.action) && r.caller.as_deref().is_none_or(|c| c == call.caller)
        });
        if refused {
            return Err(ApiError::unauthorized());
        }
        if call.action.is_empty() {
            return Err(ApiError::bad("MissingAction", "The request is missing an action."));
        }
        if call.params.text("Version") != Some("2016-11-15") {
            return Err(ApiError::bad("NoSuchVersion", "The requested version is not 2016-11-15"));
        }
        self.world.add_lag(call.fired);
        dispatch(&mut self.world, call)
    }

    /// The reply, after the faults that hit it.
    fn fate(
        &self,
        entry: &mut LogEntry,
        outcome: Result<Vec<Xml>, ApiError>,
        fired: &Fired,
    ) -> Fate {
        let committed = outcome.is_ok();
        let outcome = outcome.and_then(|body| match fired.find(commit_error) {
            Some(error) => Err(error),
            None => Ok(body),
        });
        let (mut status, mut body) = match outcome {
            Ok(body) => {
                let omit = fired.find(|kind| match kind {
                    FaultKind::Omit { elements } => Some(elements.as_slice()),
                    _ => None,
                });
                (
                    200,
                    xml::response(&entry.action, &entry.request_id, body, omit.unwrap_or_default()),
                )
            }
            Err(error) => {
                let body = if error.code.is_empty() {
                    String::new()
                } else {
                    xml::error(&error.code, &error.message, &entry.request_id)
                };
                entry.code = Some(error.code);
                (error.status, body)
            }
        };
        let mut content_type = "text/xml;charset=UTF-8".to_owned();
        let mut cut = None;
        let mut wait = Duration::ZERO;
        let mut lost = false;
        let mut retry_after_ms = None;
        let mut date_offset_s = None;
        let mut drip = None;
        for kind in fired.kinds() {
            match kind {
                FaultKind::LoseReply { stall_ms } => {
                    lost = true;
                    wait = Duration::from_millis(*stall_ms);
                }
                FaultKind::CutBody { percent, bad_framing } if committed => {
                    cut = Some((*percent, *bad_framing));
                }
                FaultKind::Body { status: s, body: b, content_type: c } => {
                    (status, body, content_type) = (*s, b.clone(), c.clone());
                }
                FaultKind::Throttle { retry_after_ms: Some(ms), .. } => retry_after_ms = Some(*ms),
                FaultKind::Drip { ms } => drip = Some(Duration::from_millis(*ms)),
                FaultKind::Date { offset_s } => date_offset_s = Some(*offset_s),
                _ => {}
            }
        }
        entry.status = (!lost).then_some(status);
        let reply = Reply {
            status,
            content_type,
            body,
            request_id: entry.request_id.clone(),
            retry_after_ms,
            date_offset_s,
            chunked: self.world.switches.chunked,
            cut,
            drip,
        };
        Fate { reply: (!lost).then_some(reply), wait }
    }
}

/// The error that a fault answers after the effect (§14.5).
fn commit_error(kind: &FaultKind) -> Option<ApiError> {
    match kind {
        FaultKind::CommitThenError { status, code } => {
            Some(ApiError::new(*status, code, "An internal error has occurred"))
        }
        _ => None,
    }
}
