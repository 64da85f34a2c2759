//! A client for the node simulator's admin pages.

use super::model::{
    HoldAdd, Join, KubeletAction, KubeletCommand, LateCreate, LinkCommand, LinkState, LogEntry,
    NodeState, PodState, RemoveStatic, RestartSandbox,
};
use crate::rest::{Error, RestClient};

/// Talks to one node simulator.
#[derive(Debug, Clone)]
pub struct NodeSimClient(RestClient);

impl NodeSimClient {
    /// A client for the address that the simulator printed.
    pub fn new(base: &str) -> Self {
        Self(RestClient::new(base))
    }

    /// All pods that have a process, a cgroup or a link.
    pub async fn pods(&self) -> Result<Vec<PodState>, Error> {
        self.0.get("/_sim/pods").await
    }

    /// The record's lines with `seq >= from`.
    pub async fn log(&self, from: u64) -> Result<Vec<LogEntry>, Error> {
        self.0.get(&format!("/_sim/log?from={from}")).await
    }

    /// All nodes, with the values of their agents' flags.
    pub async fn nodes(&self) -> Result<Vec<NodeState>, Error> {
        self.0.get("/_sim/nodes").await
    }

    /// One node.
    pub async fn node(&self, name: &str) -> Result<Option<NodeState>, Error> {
        Ok(self.nodes().await?.into_iter().find(|n| n.name == name))
    }

    /// Lets a node join; does nothing if it is there.
    pub async fn join(&self, node: &str) -> Result<NodeState, Error> {
        self.0.post("/_sim/nodes", &Join { node: node.to_owned() }).await
    }

    /// The links of one node.
    pub async fn links(&self, node: &str) -> Result<Vec<LinkState>, Error> {
        self.0.get(&format!("/_sim/links?node={node}")).await
    }

    /// Removes a link.
    pub async fn remove_link(&self, node: &str, name: &str) -> Result<(), Error> {
        let command = LinkCommand { node: node.to_owned(), name: name.to_owned(), mac: None };
        self.0.post("/_sim/links", &command).await
    }

    /// Makes a link, replacing one of that name.
    pub async fn make_link(&self, node: &str, name: &str, mac: &str) -> Result<(), Error> {
        let (node, name, mac) = (node.to_owned(), name.to_owned(), Some(mac.to_owned()));
        self.0.post("/_sim/links", &LinkCommand { node, name, mac }).await
    }

    /// Holds or frees CNI ADD on one node, or on all.
    pub async fn hold_add(&self, node: Option<&str>, hold: bool) -> Result<(), Error> {
        self.0.post("/_sim/hold-add", &HoldAdd { node: node.map(str::to_owned), hold }).await
    }

    /// Stops, starts or restarts a kubelet, or reboots the node.
    pub async fn kubelet(&self, node: &str, action: KubeletAction) -> Result<NodeState, Error> {
        self.0.post("/_sim/kubelet", &KubeletCommand { node: node.to_owned(), action }).await
    }

    /// Takes a static pod's manifest away.
    pub async fn remove_static(&self, node: &str, hash: &str) -> Result<(), Error> {
        let (node, hash) = (node.to_owned(), hash.to_owned());
        self.0.post("/_sim/static-pods", &RemoveStatic { node, hash }).await
    }

    /// Lets a running pod's sandbox die and be made anew.
    pub async fn restart_sandbox(&self, node: &str, uid: &str) -> Result<(), Error> {
        let (node, uid) = (node.to_owned(), uid.to_owned());
        self.0.post("/_sim/sandbox", &RestartSandbox { node, uid }).await
    }

    /// Brings parts of an ended pod back for a while.
    pub async fn late_create(&self, late: &LateCreate) -> Result<(), Error> {
        self.0.post("/_sim/late-create", late).await
    }
}
