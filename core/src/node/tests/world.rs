//! The world of these tests.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::annotation::{AnnotatedBranch, Annotation, AnnotationReader, NamedBranch};
use crate::eni::{
    AssociationRecord, Ec2Answer, Ec2Call, Ec2Failure, Ec2Reply, EniKind, EniRecord, EniStatus,
    EniTags, FailureClass, FoundEni, SearchBy, SubnetCidrs, Tag,
};
use crate::fact::{
    BarrierReply, GoneBy, NotFoundStatus, Origin, OverKind, ReleaseFacts, ReportedRelease, Way,
};
use crate::heal::Health;
use crate::id::*;
use crate::message::{Ack, FromAgent, MacOutcome, OwnedBranch, SetMac, ToAgent};
use crate::node::Node;
use crate::node::event::*;
use crate::time::{Moment, Timing};
use crate::verdict::{PermitStage, Term};
use crate::view::{Link, LinkKind, Links, Pod, PodPhase, Snapshot, Suspect};
use crate::wait::Step;

pub(super) const LIMIT: u32 = 3;

/// Reads the annotations of these tests: `eni/vlan/association/mac/address`, of which the last may be missing, joined with
/// commas. Where JSON has its escapes, `_` stands for `-`.
fn read(text: &str) -> Annotation {
    let one = |part: &str| {
        let mut fields = part.split('/');
        Some(NamedBranch {
            eni: fields.next()?.parse().ok()?,
            vlan: fields.next()?.parse().ok()?,
            association: fields.next().and_then(|id| id.parse().ok()),
            mac: fields.next().and_then(|mac| mac.parse().ok()),
            ipv4: fields.next().and_then(|ip| ip.parse().ok()),
            ipv6: None,
        })
    };
    match text.replace('_', "-").split(',').map(one).collect() {
        Some(named) => Annotation::Names(named),
        None => Annotation::Unreadable("not eni/vlan".into()),
    }
}

fn written(b: &AnnotatedBranch) -> String {
    let address = b.ipv4.map(|ip| ip.to_string()).unwrap_or_default();
    format!("{}/{}/{}/{}/{address}", b.eni, b.vlan, b.association, b.mac)
}

#[derive(Debug, Clone)]
pub(super) struct SimEni {
    pub record: EniRecord,
    pub association: Option<(AssociationId, VlanId)>,
}

pub(super) struct World {
    pub node: Node,
    pub now: Moment,
    pub timing: Timing,
    pub term: Term,
    /// When the term began.
    pub began: Moment,
    /// The API server's truth.
    pub api: BTreeMap<PodUid, Pod>,
    pub enis: BTreeMap<EniId, SimEni>,
    pub tokens: BTreeMap<String, EniId>,
    /// As they were created.
    pub made: BTreeMap<EniId, EniRecord>,
    pub mutations: Vec<(Step, EniId)>,
    pub creates: u32,
    /// Creates that were sent, refused and repeated ones too.
    pub creates_sent: u32,
    /// Failures to answer with instead of acting, per step.
    pub refuse: BTreeMap<Step, VecDeque<FailureClass>>,
    /// How many calls act and then lose their reply, per step.
    pub lose: BTreeMap<Step, u32>,
    pub gets_unknown: bool,
    pub groups: Result<Groups, String>,
    pub annotate: VecDeque<Annotated>,
    pub links: BTreeSet<VlanId>,
    pub cgroups: BTreeSet<PodUid>,
    pub answer_barriers: bool,
    pub sent: Vec<ToAgent>,
    pub notices: Vec<(Option<PodUid>, NoticeKind)>,
    /// What the notices say.
    pub sentences: Vec<String>,
    /// Pods by whose vetoes the node froze.
    pub froze: Vec<BTreeSet<PodUid>>,
    pub gets: u32,
    pub pace_closed: bool,
    /// Calls of these steps are under way until [`World::let_go`].
    pub hold: BTreeSet<Step>,
    pub held: Vec<(OpId, Ec2Call)>,
    /// EC2 shows every ENI as available, whatever was done to it.
    pub lagging: bool,
    /// EC2 has forgotten the tokens of associations.
    pub tokens_expired: bool,
    /// The cluster allows no repairs.
    pub heals_frozen: bool,
    pub evicted: Vec<PodUid>,
    pub conditions: BTreeMap<PodUid, Health>,
    pub healed: Vec<(PodUid, Health)>,
    /// MACs of links that are not their ENI's.
    pub macs: BTreeMap<VlanId, MacAddress>,
    /// What the agent answers when it is to change a MAC; without one it does so and its view shows it.
    pub mac_outcomes: VecDeque<MacOutcome>,
    pub mac_changes: Vec<SetMac>,
    /// EC2's reads do not show these.
    pub hidden: BTreeSet<EniId>,
    /// Somebody else's associations.
    pub foreign_vlans: BTreeSet<VlanId>,
}

pub(super) fn uid(n: u32) -> PodUid {
    format!("uid-{n}").parse().unwrap()
}

pub(super) fn pod_ref(n: u32) -> PodRef {
    PodRef {
        uid: uid(n),
        namespace: "ns".parse().unwrap(),
        name: format!("pod-{n}").parse().unwrap(),
    }
}

pub(super) fn eni_id(n: u32) -> EniId {
    format!("eni-{n:017x}").parse().unwrap()
}

pub(super) fn vlan(n: i64) -> VlanId {
    VlanId::new(n).unwrap()
}

pub(super) fn pod(n: u32, requested: u32) -> Pod {
    Pod {
        pod: pod_ref(n),
        labels: BTreeMap::new(),
        account: None,
        phase: PodPhase::Pending,
        deleting: false,
        mirror: false,
        config_hash: None,
        requested,
        odd_request: None,
        annotation: None,
    }
}

fn mac(n: u32) -> MacAddress {
    let mut octets = [2, 0, 0, 0, 0, 0];
    octets[2..].copy_from_slice(&n.to_be_bytes());
    MacAddress::from_octets(octets).unwrap()
}

pub(super) fn trunk_id() -> EniId {
    eni_id(0xfff)
}

pub(super) fn group(name: &str) -> SecurityGroupId {
    name.parse().unwrap()
}

pub(super) fn origin(term: Term) -> Origin {
    Origin { session: "session".parse().unwrap(), epoch: term.epoch, nonce: term.nonce }
}

impl World {
    /// A node whose trunk is fresh, whose inventory was read and whose agent is connected with empty views.
    pub(super) fn ready() -> Self {
        let mut world = Self::blank();
        world.inventory();
        world.trunk(true);
        world.connect();
        world
    }

    pub(super) fn blank() -> Self {
        let timing = Timing::default();
        let term = Term { epoch: Epoch(7), nonce: TermNonce(1) };
        Self {
            node: Node::new(term, settings(), AnnotationReader(read), timing, Moment(0)),
            now: Moment(1_000_000),
            timing,
            term,
            began: Moment(0),
            api: BTreeMap::new(),
            enis: BTreeMap::new(),
            tokens: BTreeMap::new(),
            made: BTreeMap::new(),
            mutations: vec![],
            creates: 0,
            creates_sent: 0,
            refuse: BTreeMap::new(),
            lose: BTreeMap::new(),
            gets_unknown: false,
            groups: Ok(Groups::Policies(vec![group("sg-a")])),
            annotate: VecDeque::new(),
            links: BTreeSet::new(),
            cgroups: BTreeSet::new(),
            answer_barriers: true,
            sent: vec![],
            notices: vec![],
            sentences: vec![],
            froze: vec![],
            gets: 0,
            pace_closed: false,
            hold: BTreeSet::new(),
            held: vec![],
            lagging: false,
            tokens_expired: false,
            heals_frozen: false,
            evicted: vec![],
            conditions: BTreeMap::new(),
            healed: vec![],
            macs: BTreeMap::new(),
            mac_outcomes: VecDeque::new(),
            mac_changes: vec![],
            hidden: BTreeSet::new(),
            foreign_vlans: BTreeSet::new(),
        }
    }

    /// The calls that were held take effect now and are answered.
    pub(super) fn let_go(&mut self) {
        self.hold.clear();
        for (op, call) in std::mem::take(&mut self.held) {
            let answer = self.ec2(call);
            self.step(Event::Answer(op, Answer::Ec2(answer)));
        }
    }

    /// The first held call takes effect; further ones are held.
    pub(super) fn let_go_one(&mut self) {
        let (op, call) = self.held.remove(0);
        let answer = self.ec2(call);
        self.step(Event::Answer(op, Answer::Ec2(answer)));
    }

    /// The next term: books start empty.
    pub(super) fn new_term(&mut self) {
        self.term =
            Term { epoch: Epoch(self.term.epoch.0 + 1), nonce: TermNonce(self.term.nonce.0 + 1) };
        self.began = self.now;
        self.node = Node::new(self.term, settings(), AnnotationReader(read), self.timing, self.now);
        self.sent.clear();
        // Calls under way take effect; nobody waits for the answers.
        self.hold.clear();
        for (_, call) in std::mem::take(&mut self.held) {
            let _unheard = self.ec2(call);
        }
    }

    pub(super) fn trunk(&mut self, fresh: bool) {
        self.trunk_for(LIMIT, fresh);
    }

    pub(super) fn trunk_for(&mut self, limit: u32, fresh: bool) {
        self.step(Event::TrunkReady(Trunk {
            instance: "i-0123456789abcdef0".parse().unwrap(),
            eni: trunk_id(),
            mac: mac(0xfff),
            limit,
            subnet: "subnet-0123456789abcdef0".parse().unwrap(),
            cidrs: SubnetCidrs { v4: "10.0.0.0/24".into(), v6: String::new() },
            default_groups: vec![group("sg-node")],
            fresh,
        }));
    }

    pub(super) fn connect(&mut self) {
        self.step(Event::SessionOpened(SessionOpened {
            origin: origin(self.term),
            boot: "boot".parse().unwrap(),
            kubelet: Some(KubeletStart(1)),
        }));
        self.tell_vlans(Some(BTreeMap::new()));
        self.tell_views();
    }

    pub(super) fn tell_vlans(&mut self, used: Option<BTreeMap<VlanId, Duration>>) {
        self.step(Event::Agent(FromAgent::VlansUsed(used)));
    }

    /// Snapshots of links, cgroups and pods, as they truly are.
    pub(super) fn tell_views(&mut self) {
        self.tell_links();
        self.step(Event::Agent(FromAgent::Cgroups(Ok(self.cgroups.clone()))));
        self.tell_pods(&self.api.values().cloned().collect::<Vec<_>>());
    }

    /// A link has the MAC of the ENI that was associated when it was made, or was told to have.
    pub(super) fn tell_links(&mut self) {
        for vlan in &self.links {
            let associated = |e: &&SimEni| e.association.as_ref().is_some_and(|(_, v)| v == vlan);
            let tagged = |e: &&SimEni| e.record.tags.vlan.value() == Some(vlan);
            let holder = self.enis.values().find(associated);
            let holder = holder.or_else(|| self.enis.values().find(tagged));
            let mac = holder.map_or_else(|| mac(1000 + u32::from(vlan.get())), |e| e.record.mac);
            self.macs.entry(*vlan).or_insert(mac);
        }
        self.macs.retain(|vlan, _| self.links.contains(vlan));
        let links = self.macs.iter().map(|(vlan, mac)| Link { mac: Some(*mac), ..link(*vlan) });
        let links = Links(links.collect());
        self.step(Event::Agent(FromAgent::Links(Ok(links))));
    }

    pub(super) fn tell_pods(&mut self, pods: &[Pod]) {
        let mut snapshot = Snapshot::begin();
        for pod in pods {
            snapshot.add(pod.clone());
        }
        let list = snapshot.close(ResourceVersion::new("10").unwrap());
        self.step(Event::Agent(FromAgent::Pods(Ok(list))));
    }

    /// Creates pods in the API and shows the view.
    pub(super) fn create(&mut self, pods: impl IntoIterator<Item = Pod>) {
        for pod in pods {
            self.api.insert(pod.pod.uid.clone(), pod);
        }
        self.tell_views();
    }

    /// Removes a pod from API, cgroups and links, shows the view and states the release.
    pub(super) fn end(&mut self, n: u32) {
        self.vanish(n);
        self.release(n, OverKind::Gone(GoneBy::WatchDeleted), Way::SeenAndGone);
    }

    pub(super) fn vanish(&mut self, n: u32) {
        self.api.remove(&uid(n));
        self.cgroups.remove(&uid(n));
        // CNI DEL knows the VLANs by itself, whatever the coordinator knows.
        let tagged = self.enis.values().filter(|e| e.record.tags.pod_uid.value() == Some(&uid(n)));
        let tagged = tagged.filter_map(|e| e.record.tags.vlan.value().copied());
        let vlans: Vec<VlanId> = self.owned(n).into_iter().map(|b| b.vlan).chain(tagged).collect();
        self.links.retain(|v| !vlans.contains(v));
        self.tell_views();
    }

    pub(super) fn release(&mut self, n: u32, over: OverKind, way: Way) {
        let enis = self.owned(n).into_iter().map(|b| b.eni).collect();
        let facts = ReleaseFacts {
            uid: uid(n),
            over,
            way,
            boot: "boot".parse().unwrap(),
            start: KubeletStart(1),
            enis,
        };
        let reported = ReportedRelease::received(facts, origin(self.term));
        self.step(Event::Agent(FromAgent::Release(reported)));
    }

    pub(super) fn suspect(&mut self, n: u32) {
        self.step(Event::Agent(FromAgent::Suspect(Suspect::reported(pod_ref(n)))));
    }

    /// What the agent was told to own for a pod.
    pub(super) fn owned(&self, n: u32) -> Vec<OwnedBranch> {
        let mut owned: BTreeMap<EniId, OwnedBranch> = BTreeMap::new();
        for message in &self.sent {
            match message {
                ToAgent::OwnedAll(all) => {
                    owned = all.iter().map(|b| (b.eni.clone(), b.clone())).collect();
                }
                ToAgent::OwnedChanged { added, removed } => {
                    owned.retain(|id, _| !removed.contains(id));
                    owned.extend(added.iter().map(|b| (b.eni.clone(), b.clone())));
                }
                _ => {}
            }
        }
        owned.into_values().filter(|b| b.pod.uid == uid(n)).collect()
    }

    pub(super) fn acks(&self, n: u32) -> Vec<Ack> {
        self.sent
            .iter()
            .filter_map(|m| match m {
                ToAgent::Ack(of, ack) if *of == uid(n) => Some(*ack),
                _ => None,
            })
            .collect()
    }

    /// The annotation as it stands, ENIs and VLANs only.
    pub(super) fn annotation(&self, n: u32) -> Option<String> {
        let short = |part: &str| part.split('/').take(2).collect::<Vec<_>>().join("/");
        let text = self.api.get(&uid(n))?.annotation.as_ref()?;
        Some(text.split(',').map(short).collect::<Vec<_>>().join(","))
    }

    pub(super) fn wait_of(&self, n: u32) -> Option<&'static str> {
        let report = self.node.report(self.now);
        let pod = report.pods.into_iter().find(|p| p.pod.uid == uid(n))?;
        pod.wait.map(|(wait, _)| wait.name())
    }

    pub(super) fn count(&self, step: Step) -> usize {
        self.mutations.iter().filter(|(s, _)| *s == step).count()
    }

    pub(super) fn inventory(&mut self) {
        let shown = |e: &&SimEni| !self.hidden.contains(&e.record.id);
        let enis = self.enis.values().filter(shown).map(|e| e.record.clone()).collect();
        self.step(Event::Inventory { began: self.now, enis });
    }

    pub(super) fn pass(&mut self, d: Duration) {
        let end = self.now.plus(d);
        let tick = Duration::from_secs((d.as_secs() / 60).max(1));
        while self.now < end {
            self.now = self.now.plus(tick).min(end);
            self.step(Event::Tick);
        }
    }

    /// Feeds an event and everything that follows from it at this moment.
    pub(super) fn step(&mut self, event: Event) {
        let mut queue = VecDeque::from([event]);
        let mut rounds = 0;
        while let Some(event) = queue.pop_front() {
            rounds += 1;
            assert!(rounds < 5_000, "the books do not come to rest");
            for effect in self.node.step(event, self.now) {
                queue.extend(self.carry_out(effect));
            }
        }
    }

    fn carry_out(&mut self, effect: Effect) -> Option<Event> {
        match effect {
            Effect::Call(op, call) if self.hold.contains(&step_of(&call)) => {
                self.held.push((op, call));
                None
            }
            Effect::Call(op, call) => {
                let answer = self.ec2(call);
                Some(Event::Answer(op, Answer::Ec2(answer)))
            }
            Effect::GetPod(op, pod) => {
                self.gets += 1;
                Some(Event::Answer(op, Answer::Pod(self.get(&pod))))
            }
            Effect::ResolveGroups(op, _) => {
                Some(Event::Answer(op, Answer::Groups(self.groups.clone())))
            }
            Effect::Annotate { op, pod, branches, .. } => {
                let answer = self.annotate.pop_front().unwrap_or(Annotated::Done);
                let committed = matches!(answer, Annotated::Done | Annotated::Unknown(_));
                if let (true, Some(target)) = (committed, self.api.get_mut(&pod.uid)) {
                    let text = branches.iter().map(written).collect::<Vec<_>>().join(",");
                    target.annotation = Some(text);
                }
                Some(Event::Answer(op, Answer::Annotated(answer)))
            }
            Effect::AskPace(op) => {
                let answer = if self.pace_closed {
                    Err(self.now.plus(Duration::from_secs(1)))
                } else {
                    Ok(())
                };
                Some(Event::Answer(op, Answer::Pace(answer)))
            }
            Effect::Send(ToAgent::Barrier { question, uids }) if self.answer_barriers => {
                let vlans = self.links.clone();
                let present = uids
                    .into_iter()
                    .map(|u| (u.clone(), Some(self.cgroups.contains(&u) || self.has_link(&u))))
                    .collect();
                let reply = BarrierReply {
                    origin: origin(self.term),
                    question,
                    boot: "boot".parse().unwrap(),
                    start: Some(KubeletStart(1)),
                    present,
                    vlans: Some(vlans),
                };
                Some(Event::Agent(FromAgent::Barrier(reply)))
            }
            Effect::Send(ToAgent::SetMac(change)) => {
                let SetMac { request, vlan, .. } = change;
                let outcome = self.mac_outcomes.pop_front().unwrap_or_else(|| {
                    match self.macs.get_mut(&vlan) {
                        None => MacOutcome::LinkAbsent,
                        Some(mac) if *mac == change.to => MacOutcome::Already,
                        Some(mac) if *mac == change.from => {
                            *mac = change.to;
                            MacOutcome::Done
                        }
                        Some(mac) => MacOutcome::Differs(*mac),
                    }
                });
                self.mac_changes.push(change);
                Some(Event::Agent(FromAgent::MacResult { request, vlan, outcome }))
            }
            Effect::Send(message) => {
                self.sent.push(message);
                None
            }
            Effect::Notify(notice) => {
                self.notices.push((notice.pod.map(|p| p.uid), notice.kind));
                self.sentences.push(notice.message);
                None
            }
            Effect::AskHeal(op) => {
                let answer = if self.heals_frozen {
                    Err(self.now.plus(Duration::from_secs(60)))
                } else {
                    Ok(())
                };
                Some(Event::Answer(op, Answer::Pace(answer)))
            }
            Effect::Evict(op, pod) => {
                self.evicted.push(pod.uid);
                Some(Event::Answer(op, Answer::Evicted(Evicted::Done)))
            }
            Effect::Condition(condition) => {
                self.conditions.insert(condition.pod.uid, condition.health);
                None
            }
            Effect::Healed(healed) => {
                self.healed.push((healed.pod.uid, healed.loss));
                None
            }
            Effect::Vetoed { froze, .. } => {
                self.froze.extend(froze);
                None
            }
            Effect::Released(_) | Effect::Cleared(_) | Effect::Kept(_) | Effect::Wake(_) => None,
        }
    }

    fn has_link(&self, uid: &PodUid) -> bool {
        self.enis.values().any(|e| {
            e.record.tags.pod_uid.value() == Some(uid)
                && e.record.tags.vlan.value().is_some_and(|v| self.links.contains(v))
        })
    }

    fn get(&self, asked: &PodRef) -> Lookup {
        if self.gets_unknown {
            return Lookup::Unknown("503".into());
        }
        match self.api.values().find(|p| p.pod.name == asked.name) {
            Some(pod) => Lookup::Found(Box::new(pod.clone()), ResourceVersion::new("11").unwrap()),
            None => {
                let proof = NotFoundStatus::classify(
                    "Status",
                    "NotFound",
                    "pods",
                    asked.name.as_str(),
                    asked,
                );
                Lookup::NotFound(proof.unwrap())
            }
        }
    }

    fn ec2(&mut self, call: Ec2Call) -> Ec2Answer {
        let step = step_of(&call);
        if let Some(class) = self.refuse.get_mut(&step).and_then(VecDeque::pop_front) {
            return Err(failure(class));
        }
        let answer = self.act(call);
        if let Some(left) = self.lose.get_mut(&step).filter(|left| **left > 0) {
            *left -= 1;
            return Err(failure(FailureClass::OutcomeUnknown));
        }
        answer
    }

    fn act(&mut self, call: Ec2Call) -> Ec2Answer {
        match call {
            Ec2Call::Create(create) => {
                self.creates_sent += 1;
                let old = create.replaced.as_ref().map(|old| old.eni.to_string());
                let token = format!(
                    "{}/{}/{}/{}",
                    create.pod.uid,
                    create.index,
                    old.unwrap_or_default(),
                    create.nonce
                );
                // Replayed after a delete it names the same ENI (`ec2.md` §13 row 8).
                if let Some(record) = self.tokens.get(&token).and_then(|id| self.made.get(id)) {
                    return Ok(Ec2Reply::Created(record.clone()));
                }
                let wanted = create.replaced.as_ref().and_then(|old| old.ipv4);
                if wanted.is_some() && self.enis.values().any(|e| e.record.ipv4 == wanted) {
                    return Err(failure(FailureClass::AddressInUse));
                }
                self.creates += 1;
                let id = eni_id(self.creates);
                let mut record = record(&id, Some(&create.pod), create.vlan, create.groups.clone());
                if let Some(old) = create.replaced {
                    record.ipv4 = old.ipv4;
                    record.tags.replaces = Tag::Is(old.named);
                    record.tags.replaces_mac = Tag::Is(old.mac);
                }
                self.tokens.insert(token, id.clone());
                self.made.insert(id.clone(), record.clone());
                self.mutations.push((Step::Create, id.clone()));
                self.enis.insert(id, SimEni { record: record.clone(), association: None });
                Ok(Ec2Reply::Created(record))
            }
            Ec2Call::Associate(ask) => {
                let taken = self.foreign_vlans.contains(&ask.vlan)
                    || self.enis.values().any(|e| {
                        e.record.id != ask.branch
                            && e.association.as_ref().is_some_and(|(_, v)| *v == ask.vlan)
                    });
                let eni = self
                    .enis
                    .get_mut(&ask.branch)
                    .ok_or_else(|| failure(FailureClass::NotFound))?;
                match &eni.association {
                    Some(_) if self.tokens_expired => Err(failure(FailureClass::AlreadyAssociated)),
                    Some((id, held)) if *held == ask.vlan => {
                        Ok(Ec2Reply::Associated(AssociationRecord {
                            id: id.clone(),
                            branch: ask.branch,
                            trunk: ask.trunk,
                            vlan: ask.vlan,
                        }))
                    }
                    Some(_) => Err(failure(FailureClass::AlreadyAssociated)),
                    None if taken => Err(failure(FailureClass::VlanInUse)),
                    None => {
                        let id: AssociationId =
                            format!("trunk-assoc-{}", self.mutations.len()).parse().unwrap();
                        eni.association = Some((id.clone(), ask.vlan));
                        eni.record.status = EniStatus::InUse;
                        self.mutations.push((Step::Associate, ask.branch.clone()));
                        Ok(Ec2Reply::Associated(AssociationRecord {
                            id,
                            branch: ask.branch,
                            trunk: ask.trunk,
                            vlan: ask.vlan,
                        }))
                    }
                }
            }
            Ec2Call::Release(permit) => Ok(self.act_release(&permit)),
            Ec2Call::FindByUid(uid) => Ok(Ec2Reply::FoundByUid(
                self.enis
                    .values()
                    .filter(|e| e.record.tags.pod_uid.value() == Some(&uid))
                    .map(|e| e.record.clone())
                    .collect(),
            )),
            Ec2Call::Search(by) => {
                let holds = |e: &&SimEni| match by {
                    SearchBy::Address(ip) => {
                        e.record.ipv4.map(std::net::IpAddr::from) == Some(ip)
                            || e.record.ipv6.map(std::net::IpAddr::from) == Some(ip)
                    }
                    SearchBy::Mac(mac) => e.record.mac == mac,
                };
                let shown = |e: &&SimEni| !self.hidden.contains(&e.record.id);
                let found = self.enis.values().filter(holds).filter(shown);
                Ok(Ec2Reply::Searched(
                    found.map(|e| FoundEni { record: e.record.clone(), ours: true }).collect(),
                ))
            }
            Ec2Call::Describe(id) => {
                let shown = self.enis.get(&id).filter(|_| !self.hidden.contains(&id));
                let eni = shown.ok_or_else(|| failure(FailureClass::NotFound))?;
                let mut record = eni.record.clone();
                if self.lagging {
                    record.status = EniStatus::Available;
                }
                Ok(Ec2Reply::Described(record))
            }
            Ec2Call::DescribeAssociation(id) => {
                let holder = self.enis.values().find_map(|e| match &e.association {
                    Some((held, vlan)) if *held == id => Some((e.record.id.clone(), *vlan)),
                    _ => None,
                });
                let (branch, vlan) = holder.ok_or_else(|| failure(FailureClass::NotFound))?;
                Ok(Ec2Reply::Associated(AssociationRecord { id, branch, trunk: trunk_id(), vlan }))
            }
            Ec2Call::Tag { eni, tags } => {
                self.mutations.push((Step::Tag, eni.clone()));
                let record = &mut self
                    .enis
                    .get_mut(&eni)
                    .ok_or_else(|| failure(FailureClass::NotFound))?
                    .record;
                let read = EniTags::read(tags.iter().map(|(k, v)| (k.as_str(), v.as_str())));
                if read.vlan != Tag::Absent {
                    record.tags.vlan = read.vlan;
                }
                if read.pod_uid != Tag::Absent {
                    record.tags.pod_uid = read.pod_uid;
                    record.tags.pod_name = read.pod_name;
                    record.tags.pod_namespace = read.pod_namespace;
                }
                Ok(Ec2Reply::Tagged)
            }
            Ec2Call::SetGroups { eni, groups } => {
                self.mutations.push((Step::SetGroups, eni.clone()));
                self.enis
                    .get_mut(&eni)
                    .ok_or_else(|| failure(FailureClass::NotFound))?
                    .record
                    .groups = groups;
                Ok(Ec2Reply::GroupsSet)
            }
        }
    }

    fn act_release(&mut self, permit: &crate::verdict::DeletePermit) -> Ec2Reply {
        let dead = matches!(permit.proof(), crate::verdict::Proof::Instance(_));
        let uid = permit.uid().filter(|_| !dead);
        assert!(dead || uid.is_some(), "I1: {} released without owner", permit.eni());
        let alive = uid.and_then(|uid| self.api.get(uid)).is_some_and(|p| !p.phase.is_ended());
        assert!(!alive, "I1: {} released under a live pod", permit.eni());
        let running = uid.is_some_and(|uid| self.cgroups.contains(uid));
        assert!(!running, "I1: {} released under a running pod", permit.eni());
        match permit.stage() {
            PermitStage::Disassociate(id) => {
                self.mutations.push((Step::Disassociate, permit.eni().clone()));
                let holder = self
                    .enis
                    .values()
                    .find(|e| e.association.as_ref().is_some_and(|(held, _)| held == id));
                assert!(
                    holder.is_none_or(|e| e.record.id == *permit.eni()),
                    "I1: {id} is the association of another ENI"
                );
                if let Some(eni) = self.enis.get_mut(permit.eni()) {
                    // Gone already is done (`InvalidAssociationID.NotFound`).
                    assert!(eni.association.as_ref().is_none_or(|(held, _)| held == id));
                    eni.association = None;
                    eni.record.status = EniStatus::Available;
                }
                Ec2Reply::Disassociated
            }
            PermitStage::Delete => {
                self.mutations.push((Step::Delete, permit.eni().clone()));
                let gone = self.enis.remove(permit.eni());
                assert!(gone.is_none_or(|e| e.association.is_none()), "deleted while associated");
                Ec2Reply::Deleted
            }
        }
    }
}

/// A whole reading of a term's beginning.
pub(super) fn whole(enis: Vec<EniRecord>) -> Event {
    Event::Inventory { began: Moment(1), enis }
}

pub(super) fn settings() -> Settings {
    Settings {
        cooldown: Duration::from_secs(60),
        vlan_rest: Duration::from_secs(300),
        read_only: false,
        no_release: false,
        heal: HealMode::InPlace,
        restore_groups: false,
    }
}

pub(super) fn failure(class: FailureClass) -> Ec2Failure {
    Ec2Failure { class, code: None, message: class.name().into() }
}

pub(super) fn link(vlan: VlanId) -> Link {
    Link {
        index: u32::from(vlan.get()),
        name: vlan.link_name(),
        kind: LinkKind::Other("macvlan".into()),
        mac: Some(mac(1000 + u32::from(vlan.get()))),
        parent: Some(1),
    }
}

pub(super) fn record(
    id: &EniId,
    pod: Option<&PodRef>,
    vlan: VlanId,
    groups: Vec<SecurityGroupId>,
) -> EniRecord {
    let number = u32::from_str_radix(id.as_str().trim_start_matches("eni-"), 16).unwrap();
    EniRecord {
        id: id.clone(),
        status: EniStatus::Available,
        kind: EniKind::Interface,
        mac: mac(number),
        ipv4: Some(std::net::Ipv4Addr::from(0x0a00_0000 + number)),
        ipv6: None,
        subnet: "subnet-0123456789abcdef0".parse().unwrap(),
        vpc: "vpc-0123456789abcdef0".parse().unwrap(),
        groups,
        tags: EniTags {
            trunk: Tag::Is(trunk_id()),
            instance: Tag::Is("i-0123456789abcdef0".parse().unwrap()),
            vlan: Tag::Is(vlan),
            pod_uid: pod.map_or(Tag::Absent, |p| Tag::Is(p.uid.clone())),
            pod_namespace: pod.map_or(Tag::Absent, |p| Tag::Is(p.namespace.clone())),
            pod_name: pod.map_or(Tag::Absent, |p| Tag::Is(p.name.clone())),
            ..EniTags::default()
        },
        attachment: None,
    }
}

pub(super) fn step_of(call: &Ec2Call) -> Step {
    match call {
        Ec2Call::Create(_) => Step::Create,
        Ec2Call::Associate(_) => Step::Associate,
        Ec2Call::Release(permit) => match permit.stage() {
            PermitStage::Disassociate(_) => Step::Disassociate,
            PermitStage::Delete => Step::Delete,
        },
        Ec2Call::FindByUid(_) => Step::ReadBack,
        Ec2Call::Describe(_) | Ec2Call::DescribeAssociation(_) => Step::Describe,
        Ec2Call::Search(_) => Step::Search,
        Ec2Call::Tag { .. } => Step::Tag,
        Ec2Call::SetGroups { .. } => Step::SetGroups,
    }
}
