//! What the API server said about every pod, and when: the witness that the invariants are judged by.
//!
//! An administrator's list and watch of all pods, straight from the API server (never through a fault proxy), writes
//! down each change of phase, annotation and existence with the wall time of its arrival. A call of ours is judged
//! against the state at the time of the call. The arrival lags the truth by the watch's delay, so questions about "had
//! it gone by then" take a slack.

use crate::objects::{ANNOTATION, RESOURCE};
use crate::{Error, Result, now_ms};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt as _};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio_util::task::AbortOnDropHandle;

/// One state of one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodState {
    /// When it was seen, in milliseconds since the Unix epoch.
    pub time_ms: i64,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Node, empty while unbound.
    pub node: String,
    /// Phase, as the API says.
    pub phase: String,
    /// The object is gone.
    pub deleted: bool,
    /// A deletion timestamp is set.
    pub terminating: bool,
    /// Branches its containers ask for.
    pub wants: u32,
    /// Our annotation as it stands.
    pub annotation: Option<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Why this pod of a static pod's UID is special: `kubernetes.io/config.hash`.
    pub static_hash: Option<String>,
}

impl PodState {
    /// Whether a pod in this state can still run.
    pub fn can_run(&self) -> bool {
        !self.deleted && self.phase != "Succeeded" && self.phase != "Failed"
    }
}

type Log = BTreeMap<String, Vec<PodState>>;

/// The recorder; stops with this value.
pub struct History {
    log: Arc<Mutex<Log>>,
    _task: AbortOnDropHandle<()>,
}

impl History {
    /// Lists all pods, then follows them.
    pub async fn start(admin: &Client) -> Result<Self> {
        let pods: Api<Pod> = Api::all(admin.clone());
        let log = Arc::new(Mutex::new(Log::new()));
        let version = list(&pods, &log).await?;
        let follower = follow(pods, Arc::clone(&log), version);
        Ok(Self { log, _task: AbortOnDropHandle::new(tokio::spawn(follower)) })
    }

    /// All states of a UID, oldest first; empty for a UID that was never seen.
    pub fn of(&self, uid: &str) -> Vec<PodState> {
        self.lock().get(uid).cloned().unwrap_or_default()
    }

    /// Whether this UID could still run at `at_ms`; `None` if it was never seen. `slack_ms` forgives the watch's delay.
    pub fn could_run(&self, uid: &str, at_ms: i64, slack_ms: i64) -> Option<bool> {
        let log = self.lock();
        let states = log.get(uid)?;
        Some(states.iter().take_while(|state| state.time_ms <= at_ms + slack_ms).last()?.can_run())
    }

    /// The state of every UID at `at_ms`.
    pub fn at(&self, at_ms: i64) -> BTreeMap<String, PodState> {
        let log = self.lock();
        let last = |states: &Vec<PodState>| {
            states.iter().take_while(|s| s.time_ms <= at_ms).last().cloned()
        };
        log.iter().filter_map(|(uid, states)| Some((uid.clone(), last(states)?))).collect()
    }

    /// The last known state of every UID.
    pub fn latest(&self) -> BTreeMap<String, PodState> {
        self.at(i64::MAX)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn list(pods: &Api<Pod>, log: &Mutex<Log>) -> Result<String> {
    let listed = pods.list(&ListParams::default()).await.map_err(Error::kube("list all pods"))?;
    let now = now_ms();
    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
    let present: std::collections::BTreeSet<_> = listed.items.iter().filter_map(Pod::uid).collect();
    for pod in &listed.items {
        note(&mut log, pod, false, now);
    }
    // A whole list of an administrator without any cache between: what it lacks is gone.
    for (uid, states) in log.iter_mut() {
        if let Some(last) =
            states.last().filter(|last| !last.deleted && !present.contains(uid)).cloned()
        {
            states.push(PodState { time_ms: now, deleted: true, ..last });
        }
    }
    Ok(listed.metadata.resource_version.unwrap_or_default())
}

async fn follow(pods: Api<Pod>, log: Arc<Mutex<Log>>, mut version: String) {
    loop {
        if let Some(next) = watch(&pods, &log, &version).await {
            version = next;
            continue;
        }
        // The version is too old, or the server is away: list again.
        match list(&pods, &log).await {
            Ok(next) => version = next,
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(200)).await,
        }
    }
}

/// Follows from `version`; the version to go on from, or `None` to list again.
async fn watch(pods: &Api<Pod>, log: &Mutex<Log>, version: &str) -> Option<String> {
    let params = WatchParams::default().timeout(290);
    let mut events = std::pin::pin!(pods.watch(&params, version).await.ok()?);
    let mut version = version.to_owned();
    while let Some(event) = events.next().await {
        let (pod, gone) = match event {
            Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod)) => (pod, false),
            Ok(WatchEvent::Deleted(pod)) => (pod, true),
            Ok(WatchEvent::Bookmark(mark)) => {
                version = mark.metadata.resource_version;
                continue;
            }
            Ok(WatchEvent::Error(_)) | Err(_) => return None,
        };
        version = pod.resource_version().unwrap_or(version);
        note(&mut log.lock().unwrap_or_else(PoisonError::into_inner), &pod, gone, now_ms());
    }
    Some(version)
}

fn note(log: &mut Log, pod: &Pod, deleted: bool, time_ms: i64) {
    let Some(uid) = pod.uid() else { return };
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let requests =
        containers.filter_map(|c| c.resources.as_ref()?.requests.as_ref()?.get(RESOURCE));
    let state = PodState {
        time_ms,
        namespace: pod.namespace().unwrap_or_default(),
        name: pod.name_any(),
        node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
        phase: pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default(),
        deleted,
        terminating: pod.metadata.deletion_timestamp.is_some(),
        wants: requests.filter_map(|quantity| quantity.0.parse::<u32>().ok()).sum(),
        annotation: pod.annotations().get(ANNOTATION).cloned(),
        labels: pod.labels().clone(),
        static_hash: pod.annotations().get("kubernetes.io/config.hash").cloned(),
    };
    let states = log.entry(uid).or_default();
    let same = states.last().is_some_and(|last| PodState { time_ms, ..last.clone() } == state);
    if !same {
        states.push(state);
    }
}
