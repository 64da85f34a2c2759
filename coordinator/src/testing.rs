//! Doubles for tests: a scripted API server (a function from request to answer under a real `kube::Client`) and an EC2 in
//! memory.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use kube::client::Body;
use tokio::sync::watch;
use trunkline_core::bucket::Level;
use trunkline_core::eni::{
    AssociateBranch, AssociationRecord, Attachment, CreateBranch, Ec2Answer, Ec2Call, Ec2Failure,
    Ec2Reply, EniKind, EniRecord, EniStatus, EniTags, FailureClass, FoundEni, SearchBy,
    SubnetCidrs, Tag,
};
use trunkline_core::id::{
    AssociationId, EniId, Epoch, InstanceId, InstanceType, MacAddress, SubnetId, TermNonce, VlanId,
};
use trunkline_core::limits::{LearnedType, Limits};
use trunkline_core::mode::Mode;
use trunkline_core::node::event::Settings;
use trunkline_core::time::Timing;
use trunkline_core::verdict::{self, PermitStage};
use trunkline_kit::clock::Clock;

use crate::api::{Api, NoFence};
use crate::cloud::{Budget, Cloud, Instance, NewTrunk};
use crate::control::{self, Control, Shelf};
use crate::events::Recorder;
use crate::inventory;
use crate::ledger::Ledger;
use crate::metrics::Metrics;
use crate::metrics::brakes::Brakes;
use crate::term::{Parts, Term};

/// A request as the script sees it.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    /// Method.
    pub(crate) method: String,
    /// Path and query.
    pub(crate) path: String,
    /// Content type.
    pub(crate) content_type: String,
    /// Body, as JSON; null without.
    pub(crate) body: serde_json::Value,
}

/// An [`Api`] whose server answers by this script: status and body.
pub(crate) fn scripted(script: impl Fn(Asked) -> (u16, String) + Send + Sync + 'static) -> Api {
    Api::new(scripted_client(script), Arc::new(NoFence))
}

/// The client alone.
pub(crate) fn scripted_client(
    script: impl Fn(Asked) -> (u16, String) + Send + Sync + 'static,
) -> kube::Client {
    let script = Arc::new(script);
    let service = tower::service_fn(move |request: Request<Body>| {
        let script = script.clone();
        async move {
            let (parts, body) = request.into_parts();
            let bytes = body.collect_bytes().await?;
            let asked = Asked {
                method: parts.method.to_string(),
                path: parts.uri.path_and_query().map_or_else(String::new, ToString::to_string),
                content_type: parts
                    .headers
                    .get("content-type")
                    .and_then(|v| v.to_str().ok())
                    .unwrap_or_default()
                    .to_owned(),
                body: serde_json::from_slice(&bytes).unwrap_or_default(),
            };
            let (status, text) = script(asked);
            let response =
                Response::builder().status(status).body(Body::from(text.into_bytes())).unwrap();
            Ok::<_, kube::Error>(response)
        }
    });
    kube::Client::new(service, "default")
}

/// An ENI id out of a number.
pub(crate) fn eni_id(n: u32) -> EniId {
    EniId::new(&format!("eni-{n:08x}")).unwrap()
}

/// An ENI without tags and attachment.
pub(crate) fn eni(n: u32, kind: EniKind) -> EniRecord {
    let [_, _, high, low] = n.to_be_bytes();
    EniRecord {
        id: eni_id(n),
        status: EniStatus::Available,
        kind,
        mac: MacAddress::from_octets([2, 0, 0, 0, high, low]).unwrap(),
        ipv4: Some(std::net::Ipv4Addr::new(10, 0, high, low)),
        ipv6: None,
        subnet: "subnet-00000001".parse().unwrap(),
        vpc: "vpc-00000001".parse().unwrap(),
        groups: vec!["sg-1".parse().unwrap()],
        tags: EniTags::default(),
        attachment: None,
    }
}

/// An attached interface.
pub(crate) fn attached(mut eni: EniRecord, instance: &InstanceId, device_index: u32) -> EniRecord {
    eni.status = EniStatus::InUse;
    eni.attachment = Some(Attachment {
        id: format!("eni-attach-{}", eni.id.as_str().trim_start_matches("eni-")),
        instance: Some(instance.clone()),
        device_index,
        card: 0,
        attached: true,
        delete_on_termination: true,
    });
    eni
}

/// A trunk of ours, attached to this instance.
pub(crate) fn trunk_eni(n: u32, instance: &InstanceId) -> EniRecord {
    let mut trunk = attached(eni(n, EniKind::Trunk), instance, 2);
    trunk.tags.instance = Tag::Is(instance.clone());
    trunk
}

/// A branch of ours, tagged with trunk, instance and VLAN.
pub(crate) fn branch(n: u32, trunk: u32, instance: &InstanceId, vlan: i64) -> EniRecord {
    let mut branch = eni(n, EniKind::Branch);
    branch.status = EniStatus::InUse;
    branch.tags.instance = Tag::Is(instance.clone());
    branch.tags.trunk = Tag::Is(eni_id(trunk));
    branch.tags.vlan = Tag::Is(VlanId::new(vlan).unwrap());
    branch
}

/// A failure.
pub(crate) fn failure(class: FailureClass, code: &str) -> Ec2Failure {
    Ec2Failure { class, code: Some(code.into()), message: format!("{code} happened") }
}

/// What a [`FakeCloud`] knows.
#[derive(Default)]
pub(crate) struct CloudState {
    /// All ENIs.
    pub(crate) enis: BTreeMap<EniId, EniRecord>,
    /// Instances: type, state and plain interfaces.
    pub(crate) instances: BTreeMap<InstanceId, Instance>,
    /// Interfaces that `DescribeInstances` leaves out.
    pub(crate) hidden: std::collections::BTreeSet<EniId>,
    /// Answers to come, by action, before the real ones.
    pub(crate) failures: BTreeMap<&'static str, Vec<Ec2Failure>>,
    /// Failures that come although the effect is applied, by action.
    pub(crate) lost_replies: BTreeMap<&'static str, usize>,
    /// Actions in order.
    pub(crate) log: Vec<&'static str>,
    /// Branches by association.
    pub(crate) associations: BTreeMap<AssociationId, EniId>,
    tokens: BTreeMap<(InstanceId, u32), EniId>,
    next: u32,
}

impl CloudState {
    fn create(&mut self, create: &CreateBranch) -> EniRecord {
        let same = |e: &&EniRecord| {
            e.tags.pod_uid.value() == Some(&create.pod.uid)
                && e.tags.index.value() == Some(&create.index)
        };
        if let Some(held) = self.enis.values().find(same) {
            return held.clone();
        }
        self.next += 1;
        let mut made = eni(self.next, EniKind::Interface);
        made.groups.clone_from(&create.groups);
        made.tags = EniTags {
            instance: Tag::Is(create.instance.clone()),
            trunk: Tag::Is(create.trunk.clone()),
            vlan: Tag::Is(create.vlan),
            pod_uid: Tag::Is(create.pod.uid.clone()),
            pod_namespace: Tag::Is(create.pod.namespace.clone()),
            pod_name: Tag::Is(create.pod.name.clone()),
            index: Tag::Is(create.index),
            ..EniTags::default()
        };
        self.enis.insert(made.id.clone(), made.clone());
        made
    }

    fn associate(&mut self, asked: &AssociateBranch) -> Ec2Answer {
        let branch = self.enis.get_mut(&asked.branch).ok_or_else(not_found)?;
        branch.status = EniStatus::InUse;
        branch.kind = EniKind::Branch;
        let id: AssociationId =
            format!("trunk-assoc-{}", asked.branch.as_str().trim_start_matches("eni-"))
                .parse()
                .unwrap();
        self.associations.insert(id.clone(), asked.branch.clone());
        Ok(Ec2Reply::Associated(AssociationRecord {
            id,
            branch: asked.branch.clone(),
            trunk: asked.trunk.clone(),
            vlan: asked.vlan,
        }))
    }

    fn disassociate(&mut self, id: &AssociationId) -> Ec2Reply {
        if let Some(branch) = self.associations.remove(id).and_then(|eni| self.enis.get_mut(&eni)) {
            branch.status = EniStatus::Available;
        }
        Ec2Reply::Disassociated
    }
}

/// EC2 in memory: enough for trunks, branches and inventories.
pub(crate) struct FakeCloud(pub(crate) Mutex<CloudState>);

impl FakeCloud {
    /// An empty account.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(CloudState { next: 1_000, ..CloudState::default() })))
    }

    /// The state.
    pub(crate) fn state(&self) -> MutexGuard<'_, CloudState> {
        self.0.lock().unwrap()
    }

    /// Adds an ENI.
    pub(crate) fn put(&self, eni: EniRecord) {
        self.state().enis.insert(eni.id.clone(), eni);
    }

    /// Adds a running instance with its primary interface.
    pub(crate) fn run_instance(&self, instance: &InstanceId, kind: &str, primary: u32) {
        let primary = attached(eni(primary, EniKind::Interface), instance, 0);
        self.state().instances.insert(
            instance.clone(),
            Instance {
                kind: Some(kind.parse().unwrap()),
                state: "running".into(),
                subnet: Some(primary.subnet.clone()),
                primary_groups: primary.groups.clone(),
                interfaces: vec![primary],
                missing: None,
            },
        );
    }

    /// The next readings of the inventory fail.
    pub(crate) fn fail_inventories(&self, times: usize) {
        let fault = failure(FailureClass::OutcomeUnknown, "InternalError");
        self.state().failures.insert("inventory", vec![fault; times]);
    }

    /// The next calls of this action fail like that.
    pub(crate) fn fail(&self, action: &'static str, failures: Vec<Ec2Failure>) {
        self.state().failures.insert(action, failures);
    }

    /// How often an action was asked for.
    pub(crate) fn count(&self, action: &str) -> usize {
        self.state().log.iter().filter(|a| **a == action).count()
    }

    /// Trunks of an instance.
    pub(crate) fn trunks(&self, instance: &InstanceId) -> Vec<EniRecord> {
        let of =
            |e: &&EniRecord| e.kind == EniKind::Trunk && e.tags.instance.value() == Some(instance);
        self.state().enis.values().filter(of).cloned().collect()
    }

    fn act<T>(
        &self,
        action: &'static str,
        effect: impl FnOnce(&mut CloudState) -> Result<T, Ec2Failure>,
    ) -> Result<T, Ec2Failure> {
        let mut state = self.state();
        state.log.push(action);
        if let Some(next) =
            state.failures.get_mut(action).filter(|f| !f.is_empty()).map(|f| f.remove(0))
        {
            return Err(next);
        }
        let result = effect(&mut state);
        if let Some(left) = state.lost_replies.get_mut(action).filter(|n| **n > 0) {
            *left -= 1;
            return Err(failure(FailureClass::OutcomeUnknown, "timeout"));
        }
        result
    }
}

fn not_found() -> Ec2Failure {
    failure(FailureClass::NotFound, "InvalidNetworkInterfaceID.NotFound")
}

impl Cloud for FakeCloud {
    fn budgets(&self) -> Vec<Budget> {
        let level = Level { tokens: 48.5, capacity: 49.0, refill: 4.75, waiting: 2 };
        vec![Budget { action: "AssociateTrunkInterface", level, throttled: 3 }]
    }

    fn call(&self, call: Ec2Call) -> BoxFuture<'_, Ec2Answer> {
        let answer = match call {
            Ec2Call::Create(create) => {
                self.act("create", |s| Ok(Ec2Reply::Created(s.create(&create))))
            }
            Ec2Call::Associate(asked) => self.act("associate", |s| s.associate(&asked)),
            Ec2Call::Release(permit) => match permit.stage() {
                PermitStage::Disassociate(id) => {
                    self.act("disassociate", |s| Ok(s.disassociate(id)))
                }
                PermitStage::Delete => self.act("delete", |s| {
                    s.enis.remove(permit.eni());
                    Ok(Ec2Reply::Deleted)
                }),
            },
            Ec2Call::FindByUid(uid) => self.act("find", |s| {
                let of = |e: &&EniRecord| e.tags.pod_uid.value() == Some(&uid);
                Ok(Ec2Reply::FoundByUid(s.enis.values().filter(of).cloned().collect()))
            }),
            Ec2Call::Describe(eni) => self.act("describe", |s| {
                s.enis.get(&eni).cloned().map(Ec2Reply::Described).ok_or_else(not_found)
            }),
            Ec2Call::Search(by) => self.act("search", |s| {
                let holds = |e: &&EniRecord| match by {
                    SearchBy::Address(ip) => {
                        e.ipv4.map(IpAddr::from) == Some(ip) || e.ipv6.map(IpAddr::from) == Some(ip)
                    }
                    SearchBy::Mac(mac) => e.mac == mac,
                };
                let found = s.enis.values().filter(holds);
                Ok(Ec2Reply::Searched(
                    found.map(|e| FoundEni { record: e.clone(), ours: true }).collect(),
                ))
            }),
            Ec2Call::DescribeAssociation(_) => {
                self.act("describe_association", |_| Err(not_found()))
            }
            Ec2Call::Tag { .. } => self.act("tag", |_| Ok(Ec2Reply::Tagged)),
            Ec2Call::SetGroups { eni, groups } => self.act("set_groups", |s| {
                s.enis.get_mut(&eni).ok_or_else(not_found)?.groups = groups;
                Ok(Ec2Reply::GroupsSet)
            }),
        };
        std::future::ready(answer).boxed()
    }

    fn inventory(&self) -> BoxFuture<'_, Result<Vec<EniRecord>, Ec2Failure>> {
        std::future::ready(self.act("inventory", |s| Ok(s.enis.values().cloned().collect())))
            .boxed()
    }

    fn instance<'a>(&'a self, id: &'a InstanceId) -> BoxFuture<'a, Result<Instance, Ec2Failure>> {
        let found = self.act("instance", |s| {
            let mut instance = s.instances.get(id).cloned().ok_or_else(not_found)?;
            let on_it = |e: &&EniRecord| {
                e.attachment.as_ref().is_some_and(|a| a.instance.as_ref() == Some(id))
            };
            let visible = s.enis.values().filter(on_it).filter(|e| !s.hidden.contains(&e.id));
            // As in EC2: attachments inside of an instance name no instance, and there are no tags.
            instance.interfaces.extend(visible.cloned().map(|mut e| {
                e.tags = EniTags::default();
                if let Some(a) = &mut e.attachment {
                    a.instance = None;
                }
                e
            }));
            Ok(instance)
        });
        std::future::ready(found).boxed()
    }

    fn subnet<'a>(&'a self, _: &'a SubnetId) -> BoxFuture<'a, Result<SubnetCidrs, Ec2Failure>> {
        let cidrs = SubnetCidrs { v4: "10.0.0.0/16".into(), v6: String::new() };
        std::future::ready(self.act("subnet", |_| Ok(cidrs))).boxed()
    }

    fn instance_type<'a>(
        &'a self,
        _: &'a InstanceType,
    ) -> BoxFuture<'a, Result<LearnedType, Ec2Failure>> {
        std::future::ready(self.act("instance_type", |_| Ok(LearnedType { slots: 4 }))).boxed()
    }

    fn describe<'a>(&'a self, eni: &'a EniId) -> BoxFuture<'a, Result<EniRecord, Ec2Failure>> {
        std::future::ready(self.act("describe", |s| s.enis.get(eni).cloned().ok_or_else(not_found)))
            .boxed()
    }

    fn create_trunk<'a>(
        &'a self,
        trunk: &'a NewTrunk,
    ) -> BoxFuture<'a, Result<EniRecord, Ec2Failure>> {
        let made = self.act("create_trunk", |s| {
            let token = (trunk.instance.clone(), trunk.nonce);
            if let Some(held) = s.tokens.get(&token).and_then(|id| s.enis.get(id)) {
                return Ok(held.clone());
            }
            s.next += 1;
            let mut made = eni(s.next, EniKind::Trunk);
            made.tags.instance = Tag::Is(trunk.instance.clone());
            s.tokens.insert(token, made.id.clone());
            s.enis.insert(made.id.clone(), made.clone());
            Ok(made)
        });
        std::future::ready(made).boxed()
    }

    fn attach<'a>(
        &'a self,
        eni: &'a EniId,
        instance: &'a InstanceId,
        device_index: u32,
    ) -> BoxFuture<'a, Result<(), Ec2Failure>> {
        let done = self.act("attach", |s| {
            let free = s.enis.get(eni).cloned().ok_or_else(not_found)?;
            let mut on = attached(free, instance, device_index);
            if let Some(a) = &mut on.attachment {
                a.delete_on_termination = false;
            }
            s.enis.insert(eni.clone(), on);
            Ok(())
        });
        std::future::ready(done).boxed()
    }

    fn delete_with_instance<'a>(
        &'a self,
        eni: &'a EniId,
        _: &'a str,
    ) -> BoxFuture<'a, Result<(), Ec2Failure>> {
        let done = self.act("delete_with_instance", |s| {
            let eni = s.enis.get_mut(eni).ok_or_else(not_found)?;
            if let Some(a) = &mut eni.attachment {
                a.delete_on_termination = true;
            }
            Ok(())
        });
        std::future::ready(done).boxed()
    }

    fn delete_unattached_trunk<'a>(
        &'a self,
        eni: &'a EniId,
        _: &'a InstanceId,
    ) -> BoxFuture<'a, Result<(), Ec2Failure>> {
        let done = self.act("delete_trunk", |s| s.enis.remove(eni).map(drop).ok_or_else(not_found));
        std::future::ready(done).boxed()
    }
}

/// Settings with nothing forbidden.
pub(crate) fn settings_in_force() -> Settings {
    let timing = Timing::default();
    Settings {
        cooldown: timing.cooldown_default,
        vlan_rest: timing.vlan_rest,
        read_only: false,
        no_release: false,
        heal: trunkline_core::node::event::HealMode::InPlace,
        restore_groups: false,
    }
}

/// What a shelf holds: the texts of the keys `mode` and `fuse`, and whether writes fail.
#[derive(Debug, Default)]
pub(crate) struct ShelfState {
    /// `mode`.
    pub(crate) mode: Option<String>,
    /// `fuse`.
    pub(crate) fuse: Option<String>,
    /// Writes fail, without effect.
    pub(crate) broken: bool,
    /// Writes that were tried.
    pub(crate) writes: usize,
}

/// The ConfigMap in memory. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryShelf(Arc<Mutex<ShelfState>>);

impl MemoryShelf {
    /// The state.
    pub(crate) fn state(&self) -> MutexGuard<'_, ShelfState> {
        self.0.lock().unwrap()
    }
}

impl Shelf for MemoryShelf {
    fn write(&self, mode: Option<String>, fuse: String) -> BoxFuture<'_, Result<(), String>> {
        let mut state = self.state();
        state.writes += 1;
        let result = if state.broken {
            Err("the API server is away".to_owned())
        } else {
            (state.mode, state.fuse) = (mode, Some(fuse));
            Ok(())
        };
        std::future::ready(result).boxed()
    }
}

/// Fuse and mode as that shelf has them, under flags that forbid nothing.
pub(crate) fn begin_control(
    shelf: &MemoryShelf,
    settings: &watch::Sender<Settings>,
    recorder: Recorder,
) -> Arc<Control> {
    let (mode, fuse) = {
        let state = shelf.state();
        (state.mode.clone(), state.fuse.clone())
    };
    let parts = control::Parts {
        shelf: Box::new(shelf.clone()),
        settings: settings.clone(),
        recorder,
        metrics: Brakes::default(),
        namespace: "trunkline-system".parse().unwrap(),
        retry_base: std::time::Duration::from_millis(10),
    };
    Control::begin(parts, Mode::Normal, mode.as_deref(), fuse.as_deref())
}

/// A term with epoch 7 and nonce 70, its inventory being read.
pub(crate) fn begin_term(
    api: &Api,
    cloud: &Arc<FakeCloud>,
    clock: Clock,
    timing: &Timing,
    recorder: Recorder,
) -> (Arc<Term>, watch::Sender<Settings>) {
    let (board, keep) = inventory::board(cloud.clone(), clock, *timing, timing.inventory_interval);
    let (settings, in_force) = watch::channel(Settings {
        cooldown: timing.cooldown_default,
        vlan_rest: timing.vlan_rest,
        ..settings_in_force()
    });
    let shelf = MemoryShelf::default();
    let control = begin_control(&shelf, &settings, recorder.clone());
    let term = Term::begin(Parts {
        cluster: "c1".parse().unwrap(),
        term: verdict::Term { epoch: Epoch(7), nonce: TermNonce(70) },
        api: api.clone(),
        cloud: cloud.clone(),
        board,
        recorder,
        settings: in_force,
        limits: Limits::new(BTreeMap::new()).unwrap(),
        clock,
        timing: *timing,
        node_writes: 4,
        metrics: Metrics::register(&mut prometheus_client::registry::Registry::default()),
        control: control.clone(),
        ledger: Ledger::default(),
    });
    term.spawn(control.keep_saved());
    term.spawn(keep);
    term.settle_inventory();
    (term, settings)
}
