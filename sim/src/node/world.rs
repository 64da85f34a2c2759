//! Follows pods, Nodes and CNINodes in the API server and tells the simulated nodes.
//!
//! One cluster-wide watch of each kind serves all nodes: this process stands for many kubelets, and what is under test
//! is not how a kubelet reads. A list answers what is gone; a watch that ends is resumed at its last resourceVersion,
//! one that was told 410 begins with a list.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DynamicObject, ListParams, WatchEvent, WatchParams};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use super::host::{self, Common, Host, lock};
use super::pod;

/// How long after a failure a list is tried again.
const RETRY: Duration = Duration::from_millis(500);
/// How many nodes join at the same time.
const JOINS_AT_ONCE: usize = 8;

/// Something seen in the API server.
enum Event<K> {
    /// Everything there is.
    All(Vec<K>),
    /// Added or changed.
    Applied(K),
    /// Ended.
    Deleted(K),
}

/// The nodes, by name.
pub type Hosts = Arc<Mutex<BTreeMap<String, Arc<Host>>>>;

/// A wish to let a node join; the answer says whether it could.
pub struct Join {
    /// Node name.
    pub node: String,
    /// The answer.
    pub done: tokio::sync::oneshot::Sender<Result<(), host::Error>>,
}

/// The follower.
pub struct World {
    /// To the API server.
    pub client: kube::Client,
    /// What all nodes share.
    pub common: Common,
    /// The nodes.
    pub hosts: Hosts,
    /// With `Some`, every Node that matches the label selector joins by itself.
    pub all_nodes: Option<String>,
    /// Wishes to join.
    pub joins: mpsc::Receiver<Join>,
    /// How many nodes have joined so far.
    pub joined: AtomicU32,
}

#[derive(Default)]
struct Store {
    pods: BTreeMap<String, Arc<Pod>>,
    nodes: BTreeMap<String, Arc<Node>>,
    cninodes: BTreeMap<String, Arc<DynamicObject>>,
}

impl World {
    /// Follows until its task is aborted.
    pub async fn run(mut self) {
        let (pods, mut pod_events) = mpsc::channel(64);
        let (nodes, mut node_events) = mpsc::channel(64);
        let (cninodes, mut cninode_events) = mpsc::channel(64);
        let selector = self.all_nodes.clone().unwrap_or_default();
        let client = &self.client;
        let cninode_api = Api::<DynamicObject>::all_with(client.clone(), &super::api::cninode());
        let mut followers = tokio::task::JoinSet::new();
        followers.spawn(follow(Api::<Pod>::all(client.clone()), String::new(), pods));
        followers.spawn(follow(Api::<Node>::all(client.clone()), selector, nodes));
        followers.spawn(follow(cninode_api, String::new(), cninodes));
        let mut store = Store::default();
        loop {
            tokio::select! {
                Some(event) = pod_events.recv() => self.pod_event(&mut store, event),
                Some(event) = node_events.recv() => self.node_event(&mut store, event).await,
                Some(event) = cninode_events.recv() => self.cninode_event(&mut store, event),
                Some(join) = self.joins.recv() => {
                    let joined = self.join(&store, &join.node).await;
                    // Nobody may be waiting for the answer.
                    let _nobody = join.done.send(joined);
                }
                else => return,
            }
        }
    }

    fn host(&self, name: &str) -> Option<Arc<Host>> {
        lock(&self.hosts).get(name).cloned()
    }

    async fn join(&self, store: &Store, name: &str) -> Result<(), host::Error> {
        if self.host(name).is_some() {
            return Ok(());
        }
        let index = self.joined.fetch_add(1, Ordering::Relaxed);
        let host = Host::join(name, index, self.common.clone()).await?;
        if let Some(node) = store.nodes.get(name) {
            host.node_seen(Arc::clone(node));
        }
        host.cninode_seen(store.cninodes.get(name).cloned());
        for pod in store.pods.values().filter(|p| pod::node(p) == Some(name)) {
            host.pod_seen(Arc::clone(pod));
        }
        lock(&self.hosts).insert(name.to_owned(), host);
        Ok(())
    }

    fn pod_event(&self, store: &mut Store, event: Event<Pod>) {
        match event {
            Event::All(pods) => {
                let seen: BTreeSet<String> = pods.iter().map(|p| pod::uid(p).to_owned()).collect();
                let missing: Vec<_> =
                    store.pods.keys().filter(|uid| !seen.contains(*uid)).cloned().collect();
                for uid in missing {
                    self.pod_gone(store, &uid);
                }
                for pod in pods {
                    self.pod_applied(store, pod);
                }
            }
            Event::Applied(pod) => self.pod_applied(store, pod),
            Event::Deleted(pod) => self.pod_gone(store, pod::uid(&pod)),
        }
    }

    fn pod_applied(&self, store: &mut Store, pod: Pod) {
        let pod = Arc::new(pod);
        store.pods.insert(pod::uid(&pod).to_owned(), Arc::clone(&pod));
        if let Some(host) = pod::node(&pod).and_then(|node| self.host(node)) {
            host.pod_seen(pod);
        }
    }

    fn pod_gone(&self, store: &mut Store, uid: &str) {
        let last = store.pods.remove(uid);
        if let Some(host) = last.as_deref().and_then(pod::node).and_then(|n| self.host(n)) {
            host.pod_gone(uid);
        }
    }

    async fn node_event(&self, store: &mut Store, event: Event<Node>) {
        match event {
            Event::All(nodes) => {
                store.nodes = nodes.into_iter().map(|n| (n.name_any(), Arc::new(n))).collect();
                let store = &*store;
                // Namespaces take a while to make: a few nodes join at a time.
                futures::stream::iter(store.nodes.keys())
                    .for_each_concurrent(JOINS_AT_ONCE, |name| self.node_applied(store, name))
                    .await;
            }
            Event::Applied(node) => {
                let name = node.name_any();
                store.nodes.insert(name.clone(), Arc::new(node));
                self.node_applied(store, &name).await;
            }
            // A Node object that is gone does not stop the machine (S56).
            Event::Deleted(node) => {
                store.nodes.remove(&node.name_any());
            }
        }
    }

    async fn node_applied(&self, store: &Store, name: &str) {
        if self.all_nodes.is_some()
            && let Err(error) = self.join(store, name).await
        {
            tracing::error!(node = name, %error, "failed to let a node join");
        }
        if let (Some(host), Some(node)) = (self.host(name), store.nodes.get(name)) {
            host.node_seen(Arc::clone(node));
        }
    }

    fn cninode_event(&self, store: &mut Store, event: Event<DynamicObject>) {
        match event {
            Event::All(all) => {
                store.cninodes = all.into_iter().map(|c| (c.name_any(), Arc::new(c))).collect();
                for host in lock(&self.hosts).values() {
                    host.cninode_seen(store.cninodes.get(&host.name).cloned());
                }
            }
            Event::Applied(cninode) => {
                let (name, cninode) = (cninode.name_any(), Arc::new(cninode));
                store.cninodes.insert(name.clone(), Arc::clone(&cninode));
                if let Some(host) = self.host(&name) {
                    host.cninode_seen(Some(cninode));
                }
            }
            Event::Deleted(cninode) => {
                store.cninodes.remove(&cninode.name_any());
                if let Some(host) = self.host(&cninode.name_any()) {
                    host.cninode_seen(None);
                }
            }
        }
    }
}

/// Lists and watches until the receiver is gone.
async fn follow<K>(api: Api<K>, selector: String, events: mpsc::Sender<Event<K>>)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    while !events.is_closed() {
        match api.list(&ListParams::default().labels(&selector)).await {
            Ok(list) => {
                let version = list.metadata.resource_version.clone().unwrap_or_default();
                if events.send(Event::All(list.items)).await.is_ok() {
                    watch(&api, &selector, version, &events).await;
                }
            }
            // The CRD of CNINodes may not be there yet.
            Err(error) => tracing::debug!(%error, "failed to list; trying again"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Watches from `version` on, until a list is needed.
async fn watch<K>(
    api: &Api<K>,
    selector: &str,
    mut version: String,
    events: &mpsc::Sender<Event<K>>,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let params = WatchParams::default().labels(selector).timeout(280);
    loop {
        let mut stream = match api.watch(&params, &version).await {
            Ok(stream) => stream.boxed(),
            Err(error) => {
                tracing::debug!(%error, "failed to watch");
                return;
            }
        };
        loop {
            let event = match stream.try_next().await {
                Ok(Some(WatchEvent::Added(k) | WatchEvent::Modified(k))) => Event::Applied(k),
                Ok(Some(WatchEvent::Deleted(k))) => Event::Deleted(k),
                Ok(Some(WatchEvent::Bookmark(bookmark))) => {
                    version = bookmark.metadata.resource_version;
                    continue;
                }
                Ok(None) => break,
                Ok(Some(WatchEvent::Error(status))) => {
                    tracing::debug!(code = status.code, "the watch was refused; listing again");
                    return;
                }
                Err(error) => {
                    tracing::debug!(%error, "the watch broke; listing again");
                    return;
                }
            };
            if let Event::Applied(k) | Event::Deleted(k) = &event {
                version = k.resource_version().unwrap_or(version);
            }
            if events.send(event).await.is_err() {
                return;
            }
        }
        // A stream that ends at once must not make a hot loop.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
