//! An agent that has gone mad: with a good token of a node's agent it states, again and again, that the node is empty and
//! that every pod of it is over, with all facts in order. What a broken build of the agent could do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kube::ResourceExt as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::metadata::MetadataValue;
use trunkline_core::fact::{
    BarrierReply, GoneBy, Origin, OverKind, ReleaseFacts, ReportedRelease, Way,
};
use trunkline_core::id::{EniId, Epoch, KubeletStart, MacAddress, PodUid, ResourceVersion};
use trunkline_core::message::{FromAgent, Heartbeat, OwnedBranch, ToAgent};
use trunkline_core::view::{Link, LinkKind, Links, Snapshot};
use trunkline_kit::grpc::{Dial, connect};
use trunkline_proto::convert::{
    AgentSender, CoordinatorReceiver, FromCoordinator, Greeting, Hello, PROTOCOL,
};
use trunkline_proto::v1;
use trunkline_proto::v1::nodes_client::NodesClient;
use trunkline_tests::cluster::Cluster;

const START: KubeletStart = KubeletStart(1);

/// A mad agent; it ends with this value.
pub(crate) struct Rogue {
    stated: Arc<Mutex<BTreeSet<PodUid>>>,
    _task: AbortOnDropHandle<()>,
}

impl Rogue {
    /// Ends the agent of `node` and speaks in its place, to the leader.
    pub(crate) async fn instead_of_agent(cluster: &mut Cluster, node: &str, leader: usize) -> Self {
        let agent = cluster.agents.get_mut(node).unwrap();
        agent.process.kill();
        let token = std::fs::read_to_string(&agent.token).unwrap();
        let own_pod = agent.pod.uid().unwrap().parse().unwrap();
        let host = cluster.nodes.node(node).await.unwrap().unwrap();
        let boot = std::fs::read_to_string(host.boot_id_file).unwrap().trim().parse().unwrap();
        let dial = Dial {
            address: cluster.coordinators[leader].address().parse().unwrap(),
            tls_name: "127.0.0.1".to_owned(),
        };
        let channel = connect(&dial, &cluster.coordinator_ca()).await.unwrap();
        let hello = Hello {
            version: PROTOCOL,
            session: format!("rogue-{node}").parse().unwrap(),
            node: node.parse().unwrap(),
            boot,
            kubelet: Some(START),
            build: "rogue".to_owned(),
            highest_epoch: Epoch(0),
        };
        let (wire, outbound) = mpsc::channel(64);
        wire.send((&hello).into()).await.unwrap();
        let mut request = tonic::Request::new(ReceiverStream::new(outbound));
        let bearer: MetadataValue<_> = format!("Bearer {}", token.trim()).parse().unwrap();
        request.metadata_mut().insert("authorization", bearer);
        let mut inbound = NodesClient::new(channel).session(request).await.unwrap().into_inner();
        let first = inbound.message().await.unwrap().unwrap();
        let Greeting::Welcome(welcome) = Greeting::read(first, &hello.session).unwrap() else {
            panic!("the rogue is not welcome");
        };
        let stated = Arc::<Mutex<BTreeSet<PodUid>>>::default();
        let mad = Mad {
            sender: AgentSender::new(welcome.origin.clone()),
            receiver: CoordinatorReceiver::new(welcome.origin.clone()),
            origin: welcome.origin,
            hello,
            own_pod,
            owned: BTreeMap::new(),
            wire,
            stated: stated.clone(),
        };
        let task = AbortOnDropHandle::new(tokio::spawn(mad.run(inbound)));
        Self { stated, _task: task }
    }

    /// How many pods it has called over.
    pub(crate) fn stated(&self) -> usize {
        self.stated.lock().unwrap().len()
    }
}

struct Mad {
    sender: AgentSender,
    receiver: CoordinatorReceiver,
    origin: Origin,
    hello: Hello,
    own_pod: PodUid,
    owned: BTreeMap<EniId, OwnedBranch>,
    wire: mpsc::Sender<v1::AgentMessage>,
    stated: Arc<Mutex<BTreeSet<PodUid>>>,
}

impl Mad {
    async fn run(mut self, mut inbound: tonic::Streaming<v1::CoordinatorMessage>) {
        let mut beat = tokio::time::interval(Duration::from_millis(500));
        loop {
            tokio::select! {
                _ = beat.tick() => {
                    let sign = Heartbeat {
                        boot: self.hello.boot.clone(),
                        kubelet: Some(START),
                        pods: None,
                        links: None,
                        cgroups: None,
                    };
                    self.say(FromAgent::Heartbeat(sign)).await;
                    self.release_everything().await;
                }
                message = inbound.message() => match message {
                    Ok(Some(message)) => match self.receiver.receive(message) {
                        Ok(FromCoordinator::Message(message)) => self.hear(message).await,
                        Ok(_) => {}
                        Err(_) => return,
                    },
                    _ => return,
                },
            }
        }
    }

    async fn say(&mut self, message: FromAgent) {
        for wire in self.sender.encode(&message) {
            // The coordinator may have ended the session.
            let _ended = self.wire.send(wire).await;
        }
    }

    async fn hear(&mut self, message: ToAgent) {
        match message {
            ToAgent::Trunk(Some(mac)) => self.show_an_empty_node(mac).await,
            ToAgent::OwnedAll(all) => {
                self.owned = all.into_iter().map(|b| (b.eni.clone(), b)).collect();
                self.release_everything().await;
            }
            ToAgent::OwnedChanged { added, removed } => {
                self.owned.retain(|eni, _| !removed.contains(eni));
                self.owned.extend(added.into_iter().map(|b| (b.eni.clone(), b)));
            }
            ToAgent::Barrier { question, uids } => {
                let reply = BarrierReply {
                    origin: self.origin.clone(),
                    question,
                    boot: self.hello.boot.clone(),
                    start: Some(START),
                    present: uids.into_iter().map(|uid| (uid, Some(false))).collect(),
                    vlans: Some(BTreeSet::new()),
                };
                self.say(FromAgent::Barrier(reply)).await;
            }
            // It does not listen to contradiction.
            _ => {}
        }
    }

    async fn show_an_empty_node(&mut self, trunk: MacAddress) {
        let link = Link {
            index: 2,
            name: "eth1".to_owned(),
            kind: LinkKind::Other(String::new()),
            mac: Some(trunk),
            parent: None,
        };
        self.say(FromAgent::VlansUsed(Some(BTreeMap::new()))).await;
        self.say(FromAgent::Links(Ok(Links(vec![link])))).await;
        self.say(FromAgent::Cgroups(Ok(BTreeSet::from([self.own_pod.clone()])))).await;
        let empty = Snapshot::begin().close(ResourceVersion::new("999999999").unwrap());
        self.say(FromAgent::Pods(Ok(empty))).await;
    }

    async fn release_everything(&mut self) {
        let mut by_pod: BTreeMap<PodUid, BTreeSet<EniId>> = BTreeMap::new();
        for branch in self.owned.values() {
            by_pod.entry(branch.pod.uid.clone()).or_default().insert(branch.eni.clone());
        }
        for (uid, enis) in by_pod {
            self.stated.lock().unwrap().insert(uid.clone());
            let facts = ReleaseFacts {
                uid,
                over: OverKind::Gone(GoneBy::WatchDeleted),
                way: Way::SeenAndGone,
                boot: self.hello.boot.clone(),
                start: START,
                enis,
            };
            let reported = ReportedRelease::received(facts, self.origin.clone());
            self.say(FromAgent::Release(reported)).await;
        }
    }
}
