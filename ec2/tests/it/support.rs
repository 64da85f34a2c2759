//! A simulator with one node, an adapter on it, and permits as `core` gives them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use trunkline_core::eni::{
    AssociateBranch, AssociationRecord, CreateBranch, Ec2Call, Ec2Failure, Ec2Reply, EniRecord, Tag,
};
use trunkline_core::fact::{
    BarrierReply, GoneBy, Origin, Over, OverKind, PodGone, ReleaseFacts, ReportedRelease, Way,
};
use trunkline_core::id::{
    AssociationId, EniId, Epoch, InstanceId, KubeletStart, PodRef, PodUid, TermNonce, VlanId,
};
use trunkline_core::time::{Moment, Timing};
use trunkline_core::verdict::{
    Ask, Attached, Brake, Case, CurrentSession, DeletePermit, NamedElsewhere, Term, Verdict, judge,
};
use trunkline_ec2::{
    Action, CreateTrunk, Credentials, Ec2, LeaseDeadline, Metrics, Priority, Settings,
};
use trunkline_sim::ec2::client::SimClient;
use trunkline_sim::ec2::config::{VPC_ID, group_id, subnet_id};
use trunkline_sim::ec2::model::{InstanceSpec, LogEntry};
use trunkline_sim::ec2::{Config, Ec2Sim, Running};

pub(crate) const CLUSTER: &str = "blue";
pub(crate) const ACCOUNT: &str = "123456789012";
pub(crate) const OWN_KEY: &str = "AKIDOWN";
pub(crate) const POD: Priority = Priority::PodStart;

/// What the mode forbids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Forbids {
    Nothing,
    Releases,
    Changes,
}

/// A lease that ends after so many questions, and a mode.
pub(crate) struct Lease(AtomicI64, Mutex<Forbids>);

impl Lease {
    pub(crate) fn endless() -> Arc<Self> {
        Arc::new(Self(AtomicI64::new(i64::MAX), Mutex::new(Forbids::Nothing)))
    }

    pub(crate) fn end_after(&self, questions: i64) {
        self.0.store(questions, Ordering::SeqCst);
    }

    pub(crate) fn forbid(&self, what: Forbids) {
        *self.1.lock().unwrap() = what;
    }
}

impl LeaseDeadline for Lease {
    fn expired(&self) -> bool {
        self.0.fetch_sub(1, Ordering::SeqCst) <= 0
    }

    fn forbidden(&self, action: Action) -> bool {
        match *self.1.lock().unwrap() {
            Forbids::Nothing => false,
            Forbids::Releases => action.releases(),
            Forbids::Changes => action.mutates(),
        }
    }
}

pub(crate) fn settings(url: &str) -> Settings {
    Settings {
        region: Some("eu-west-1".into()),
        account: Some(ACCOUNT.into()),
        endpoint: Some(url.into()),
        credentials: Some(Credentials::new(OWN_KEY, "secret", None, None, "test")),
        budget: false,
        timing: Timing {
            ec2_attempt: Duration::from_secs(2),
            ec2_operation: Duration::from_secs(10),
            ..Timing::default()
        },
        ..Settings::new(CLUSTER.parse().unwrap(), VPC_ID.parse().unwrap())
    }
}

pub(crate) fn metrics() -> Metrics {
    Metrics::register(&mut prometheus_client::registry::Registry::default())
}

pub(crate) async fn adapter(settings: Settings, lease: Arc<Lease>) -> Ec2 {
    Ec2::new(settings, lease, metrics()).await.unwrap()
}

/// A simulator with one instance and its trunk.
pub(crate) struct World {
    /// Serves as long as it lives.
    _running: Running,
    pub(crate) sim: SimClient,
    pub(crate) ec2: Ec2,
    pub(crate) lease: Arc<Lease>,
    pub(crate) instance: InstanceId,
    pub(crate) trunk: EniId,
    /// Log position after the set-up.
    pub(crate) ready: u64,
}

impl World {
    pub(crate) async fn start() -> Self {
        Self::with(Config::plain(), |settings| settings).await
    }

    pub(crate) async fn with(config: Config, change: impl FnOnce(Settings) -> Settings) -> Self {
        let running = Ec2Sim::start(config).await.unwrap();
        let sim = running.client();
        let lease = Lease::endless();
        let ec2 = Box::pin(adapter(change(settings(&running.url())), Arc::clone(&lease))).await;
        let instance: InstanceId =
            sim.add_instance(&InstanceSpec::default()).await.unwrap().id.parse().unwrap();
        let create = CreateTrunk {
            instance: instance.clone(),
            subnet: subnet_id(1).parse().unwrap(),
            groups: vec![group_id(2).parse().unwrap()],
            nonce: 0,
        };
        let trunk = Box::pin(ec2.create_trunk(&create, Priority::NodeInit)).await.unwrap().id;
        Box::pin(ec2.attach_trunk(&trunk, &instance, 2, Priority::NodeInit)).await.unwrap();
        let ready = sim.state().await.unwrap().seq + 1;
        Self { _running: running, sim, ec2, lease, instance, trunk, ready }
    }

    /// The calls of an action since the set-up.
    pub(crate) async fn calls(&self, action: &str) -> Vec<LogEntry> {
        let log = self.sim.log(self.ready).await.unwrap();
        log.into_iter().filter(|entry| entry.action == action).collect()
    }

    pub(crate) fn create(&self, n: u8) -> CreateBranch {
        CreateBranch {
            pod: pod(n),
            index: 0,
            config_hash: None,
            trunk: self.trunk.clone(),
            instance: self.instance.clone(),
            vlan: vlan(n),
            subnet: subnet_id(1).parse().unwrap(),
            groups: vec![group_id(3).parse().unwrap(), group_id(4).parse().unwrap()],
            replaced: None,
            nonce: 0,
        }
    }

    pub(crate) async fn create_branch(&self, n: u8) -> Result<EniRecord, Ec2Failure> {
        match self.ec2.call(Ec2Call::Create(self.create(n)), POD).await? {
            Ec2Reply::Created(eni) => Ok(eni),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn association(&self, branch: &EniId, n: u8) -> AssociateBranch {
        AssociateBranch {
            branch: branch.clone(),
            trunk: self.trunk.clone(),
            vlan: vlan(n),
            nonce: 0,
        }
    }

    pub(crate) async fn associate(
        &self,
        branch: &EniId,
        n: u8,
    ) -> Result<AssociationRecord, Ec2Failure> {
        match self.ec2.call(Ec2Call::Associate(self.association(branch, n)), POD).await? {
            Ec2Reply::Associated(association) => Ok(association),
            other => panic!("{other:?}"),
        }
    }

    /// A branch that is associated.
    pub(crate) async fn branch(&self, n: u8) -> (EniRecord, AssociationRecord) {
        let eni = self.create_branch(n).await.unwrap();
        let association = self.associate(&eni.id, n).await.unwrap();
        (eni, association)
    }

    pub(crate) async fn disassociate(
        &self,
        eni: &EniId,
        n: u8,
        association: &AssociationId,
    ) -> Result<(), Ec2Failure> {
        let reply = self.ec2.release(permit(eni, &pod(n).uid, Some(association))).await?;
        assert_eq!(reply, Ec2Reply::Disassociated);
        Ok(())
    }

    pub(crate) async fn delete(&self, eni: &EniId, n: u8) -> Result<(), Ec2Failure> {
        let reply = self.ec2.release(permit(eni, &pod(n).uid, None)).await?;
        assert_eq!(reply, Ec2Reply::Deleted);
        Ok(())
    }
}

pub(crate) fn vlan(n: u8) -> VlanId {
    VlanId::new(i64::from(n)).unwrap()
}

pub(crate) fn pod(n: u8) -> PodRef {
    PodRef {
        uid: format!("00000000-0000-0000-0000-{n:012}").parse().unwrap(),
        namespace: "shop".parse().unwrap(),
        name: format!("web-{n}").parse().unwrap(),
    }
}

/// A permit as a judgement gives it when all facts are there: for the association, or for the delete.
pub(crate) fn permit(
    eni: &EniId,
    uid: &PodUid,
    association: Option<&AssociationId>,
) -> DeletePermit {
    let session = CurrentSession {
        session: "session-1".parse().unwrap(),
        boot: "boot-1".parse().unwrap(),
        start: KubeletStart(1),
    };
    let term = Term { epoch: Epoch(1), nonce: TermNonce(1) };
    let origin = Origin { session: session.session.clone(), epoch: term.epoch, nonce: term.nonce };
    let facts = ReleaseFacts {
        uid: uid.clone(),
        over: OverKind::Gone(GoneBy::WatchDeleted),
        way: Way::SeenAndGone,
        boot: session.boot.clone(),
        start: session.start,
        enis: BTreeSet::from([eni.clone()]),
    };
    let barrier = BarrierReply {
        origin: origin.clone(),
        question: 1,
        boot: session.boot.clone(),
        start: Some(session.start),
        present: BTreeMap::from([(uid.clone(), Some(false))]),
        vlans: Some(BTreeSet::new()),
    };
    let reported = ReportedRelease::received(facts, origin);
    let own = Over::Gone(PodGone::from_coordinator(uid.clone(), Moment(1)));
    let ask = match association {
        Some(id) => Ask::Disassociate {
            association: Attached::By(id),
            session: Some(&session),
            barrier: Some((1, &barrier)),
        },
        None => Ask::Delete { since: Some(Moment(0)), cooldown: Duration::ZERO, now: Moment(1) },
    };
    let case = Case {
        eni,
        uid,
        tag: &Tag::Is(uid.clone()),
        term: Some(term),
        reported: Some(&reported),
        own: Some(&own),
        named: NamedElsewhere::No,
        brake: Brake::Off,
        ask,
    };
    match judge(&case) {
        Verdict::Permit(permit) => permit,
        other => panic!("{other:?}"),
    }
}

/// A server that answers every request with the next of `replies` and reports the requests.
pub(crate) struct Scripted {
    pub(crate) url: String,
    pub(crate) requests: mpsc::UnboundedReceiver<String>,
}

/// What a scripted server does with a request.
pub(crate) enum Reply {
    /// Status and body, rightly framed.
    Body(u16, String),
    /// Closes without an answer.
    Close,
}

pub(crate) async fn scripted(mut reply: impl FnMut(&str) -> Reply + Send + 'static) -> Scripted {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (seen, requests) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let Some(request) = read_request(&mut stream).await else {
                continue;
            };
            let answer = reply(&request);
            if seen.send(request).is_err() {
                return;
            }
            if let Reply::Body(status, body) = answer {
                let head = format!(
                    "HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    body.len()
                );
                let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        }
    });
    Scripted { url, requests }
}

async fn read_request(stream: &mut tokio::net::TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length")
                    .then(|| value.trim().parse::<usize>().ok())?
            });
            if body.len() >= length.unwrap_or_default() {
                return Some(text);
            }
        }
        let read = stream.read(&mut buffer).await.ok()?;
        if read == 0 {
            return None;
        }
        bytes.extend_from_slice(&buffer[..read]);
    }
}
