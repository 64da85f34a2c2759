//! The coordinator's side: the real books of the node, and the calls they ask for.

use trunkline_core::annotation::{Annotation, AnnotationReader, NamedBranch};
use trunkline_core::eni::{FailureClass, SubnetCidrs};
use trunkline_core::fact::NotFoundStatus;
use trunkline_core::id::{Epoch, ResourceVersion, TermNonce, VlanId};
use trunkline_core::lock::{self, Lock};
use trunkline_core::message::{Ack, FromAgent, ToAgent};
use trunkline_core::node::Node;
use trunkline_core::node::event::{Annotated, Answer, Effect, Event, Groups, Lookup, OpId, Trunk};
use trunkline_core::verdict::Term;
use trunkline_core::witness::Sighting;

use super::{Asked, Call, Leader, Phase, Setup, World, cloud, ids, settings, timing};

/// Reads the annotations of these worlds: `eni/vlan/association`, joined by commas; `all-but-N` names every
/// VLAN above N.
fn read(text: &str) -> Annotation {
    let branch = |eni: u8, vlan: u8, association: Option<u8>| NamedBranch {
        eni: ids::eni(eni),
        vlan: ids::vlan(vlan),
        mac: None,
        ipv4: None,
        ipv6: None,
        association: association.map(ids::association),
    };
    if let Some(few) = text.strip_prefix("all-but-").and_then(|n| n.parse::<u8>().ok()) {
        return Annotation::Names((few + 1..=VlanId::MAX).map(|v| branch(14, v, None)).collect());
    }
    let mut named = vec![];
    for part in text.split(',') {
        let fields: Vec<u8> = part.split('/').filter_map(|f| f.parse().ok()).collect();
        match fields.as_slice() {
            [eni, vlan, association] => named.push(branch(*eni, *vlan, Some(*association))),
            _ => return Annotation::Unreadable("not eni/vlan/association".into()),
        }
    }
    Annotation::Names(named)
}

pub(super) fn named(text: &str) -> Vec<(u8, VlanId)> {
    match read(text) {
        Annotation::Names(named) => {
            named.iter().map(|b| (ids::eni_number(&b.eni), b.vlan)).collect()
        }
        _ => vec![],
    }
}

impl Leader {
    pub(super) fn new(epoch: u8, began: u8) -> Self {
        let term = Term { epoch: Epoch(u64::from(epoch)), nonce: TermNonce(u64::from(epoch)) };
        let moment = trunkline_core::time::Moment(u64::from(began) * 1000);
        Self {
            node: Node::new(term, settings(false), AnnotationReader(read), timing(), moment),
            epoch,
            began,
            pending: vec![],
            braked: false,
        }
    }
}

impl World {
    /// A leader of this term learns trunk, session and inventory, in the order that is the hardest for it: the agent is
    /// quicker than the inventory.
    pub(super) fn greet_leader(&mut self, setup: &Setup, fresh: bool) {
        self.step(
            setup,
            Event::TrunkReady(Trunk {
                instance: "i-00000001".parse().unwrap(),
                eni: ids::eni(ids::OWN),
                mac: ids::mac(ids::OWN),
                limit: 4,
                subnet: "subnet-00000001".parse().unwrap(),
                cidrs: SubnetCidrs::default(),
                default_groups: vec![ids::group()],
                fresh,
            }),
        );
        if self.agent.witness.is_some() {
            self.connect(setup);
            self.settle(setup);
            self.look(setup);
            self.heartbeat();
            self.settle(setup);
        }
        if !setup.manual.inventory || self.leader.epoch == 1 {
            self.take_inventory(setup);
        }
    }

    pub(super) fn take_inventory(&mut self, setup: &Setup) {
        let enis = self.cloud.inventory();
        self.step(setup, Event::Inventory { began: self.now(), enis });
    }

    /// Another leader: what the one before has under way may still land until its lease has ended.
    pub(super) fn new_term(&mut self, setup: &Setup) {
        self.disconnect();
        let ends = self.tick + 1;
        let pending = std::mem::take(&mut self.leader.pending);
        let writes = |asked: &Asked| match asked {
            Asked::Ec2(call) => call.mutates(),
            Asked::Patch(..) => true,
            Asked::Get(_) => false,
        };
        let late = pending.into_iter().map(|(_, asked)| asked).filter(writes);
        self.late.extend(late.map(|asked| (ends, asked)));
        self.leader = Leader::new(self.leader.epoch + 1, self.tick);
        self.greet_leader(setup, false);
    }

    /// The node's books take in an event; what they ask for is carried out or waits.
    #[expect(clippy::only_used_in_recursion, reason = "every move of a world is told its setup")]
    pub(super) fn step(&mut self, setup: &Setup, event: Event) {
        let now = self.now();
        for effect in self.leader.node.step(event, now) {
            match effect {
                Effect::Call(op, call) => {
                    self.leader.pending.push((op, Asked::Ec2(Call::sent(call))));
                }
                Effect::GetPod(op, pod) => {
                    self.leader.pending.push((op, Asked::Get(ids::number(&pod.uid))));
                }
                Effect::ResolveGroups(op, _) => {
                    let groups = Groups::Policies(vec![ids::group()]);
                    self.step(setup, Event::Answer(op, Answer::Groups(Ok(groups))));
                }
                Effect::Annotate { op, pod, rv, branches } => {
                    let one = |b: &trunkline_core::annotation::AnnotatedBranch| {
                        let association = ids::association_number(&b.association);
                        format!("{}/{}/{association}", ids::eni_number(&b.eni), b.vlan)
                    };
                    let text = branches.iter().map(one).collect::<Vec<_>>().join(",");
                    let version = rv.as_str().parse().unwrap();
                    let asked = Asked::Patch(ids::number(&pod.uid), version, text);
                    self.leader.pending.push((op, asked));
                }
                Effect::AskPace(op) | Effect::AskHeal(op) => {
                    self.step(setup, Event::Answer(op, Answer::Pace(Ok(()))));
                }
                Effect::Send(message) => {
                    if let ToAgent::Ack(uid, Ack::Deleted) = &message {
                        self.watch_deleted(ids::number(uid));
                    }
                    if self.agent.connected {
                        self.agent.down.push_back(message);
                    }
                }
                Effect::Notify(_)
                | Effect::Released(_)
                | Effect::Cleared(_)
                | Effect::Kept(_)
                | Effect::Vetoed { .. }
                | Effect::Condition(_)
                | Effect::Healed(_)
                // These worlds heal in place only, so that nobody is evicted.
                | Effect::Evict(..)
                | Effect::Wake(_) => {}
            }
        }
    }

    /// What follows by itself, until nothing does.
    pub(super) fn settle(&mut self, setup: &Setup) {
        loop {
            if let Some(message) = self.agent.down.pop_front() {
                self.sees(Sighting::Told(message), setup);
                if !setup.manual.looks {
                    self.look(setup);
                }
            } else if let Some(i) =
                self.leader.pending.iter().position(|(_, a)| !is_manual(setup, a))
            {
                self.answer(setup, i);
            } else if self.agent.up.front().is_some_and(|m| !waits(setup, m)) {
                self.deliver(setup);
            } else {
                break;
            }
        }
        self.watch_state(setup);
    }

    pub(super) fn deliver(&mut self, setup: &Setup) {
        if let Some(mut message) = self.agent.up.pop_front() {
            if let (FromAgent::Barrier(reply), true) = (&mut message, setup.liar) {
                reply.present.values_mut().for_each(|present| *present = Some(false));
            }
            self.step(setup, Event::Agent(message));
        }
    }

    /// An ask is carried out and answered.
    pub(super) fn answer(&mut self, setup: &Setup, i: usize) {
        let (op, asked) = self.leader.pending.remove(i);
        let answer = self.carry_out(setup, &asked);
        self.step(setup, Event::Answer(op, answer));
    }

    /// An ask is carried out and its reply lost.
    pub(super) fn lose(&mut self, setup: &Setup, i: usize) {
        let (op, asked) = self.leader.pending.remove(i);
        let _lost = self.carry_out(setup, &asked);
        self.step(setup, Event::Answer(op, unknown(&asked)));
    }

    /// A read is answered from before the last change.
    pub(super) fn lag(&mut self, setup: &Setup, i: usize) {
        let Some((_, mut old)) = self.before.clone() else { return };
        let (op, asked) = self.leader.pending.remove(i);
        if let Asked::Ec2(call) = &asked {
            self.step(setup, Event::Answer(op, Answer::Ec2(old.act(call))));
        }
    }

    /// A live GET is answered "not found" although the pod is there.
    pub(super) fn lie_not_found(&mut self, setup: &Setup, i: usize) {
        let (op, asked): (OpId, Asked) = self.leader.pending.remove(i);
        if let Asked::Get(n) = asked {
            let lookup = Lookup::NotFound(not_found(setup, n));
            self.step(setup, Event::Answer(op, Answer::Pod(lookup)));
        }
    }

    pub(super) fn carry_out(&mut self, setup: &Setup, asked: &Asked) -> Answer {
        match asked {
            Asked::Ec2(call) => {
                self.watch_call(setup, call);
                let was = self.cloud.clone();
                let answer = self.cloud.act(call);
                let changed = was != self.cloud;
                self.watch_answer(setup, call, &answer, changed);
                if changed {
                    self.before = Some((self.tick, was));
                }
                self.watch_state(setup);
                Answer::Ec2(answer)
            }
            Asked::Get(n) => Answer::Pod(self.get(setup, *n)),
            Asked::Patch(pod, version, text) => {
                Answer::Annotated(self.patch(setup, *pod, *version, text))
            }
        }
    }

    fn get(&self, setup: &Setup, n: u8) -> Lookup {
        let name = setup.pods[usize::from(n)].name;
        match self.named_now(setup, name) {
            Some(found) => {
                let version = self.api[usize::from(found)].version.to_string();
                let version = ResourceVersion::new(&version).unwrap();
                Lookup::Found(Box::new(self.pod(setup, found)), version)
            }
            None => Lookup::NotFound(not_found(setup, n)),
        }
    }

    /// The pod that the API has under a name.
    pub(super) fn named_now(&self, setup: &Setup, name: u8) -> Option<u8> {
        let there = |n: &usize| {
            setup.pods[*n].name == name && matches!(self.api[*n].phase, Phase::Alive | Phase::Ended)
        };
        (0..self.api.len()).find(there).and_then(|n| u8::try_from(n).ok())
    }

    fn patch(&mut self, setup: &Setup, pod: u8, version: u8, text: &str) -> Annotated {
        let name = setup.pods[usize::from(pod)].name;
        let Some(target) = self.named_now(setup, name) else {
            return Annotated::Refused("not found".into());
        };
        let fits = target == pod && self.api[usize::from(target)].version == version;
        if !fits && lock::holds(Lock::PatchIsBound) {
            return Annotated::Conflict;
        }
        let api = &mut self.api[usize::from(target)];
        api.version += 1;
        api.annotation = Some(text.to_owned());
        self.watch_annotation(setup, target, &named(text));
        self.watch_shows(setup, target);
        Annotated::Done
    }
}

fn not_found(setup: &Setup, n: u8) -> NotFoundStatus {
    let asked = ids::pod_ref(n, setup.pods[usize::from(n)].name);
    NotFoundStatus::classify("Status", "NotFound", "pods", asked.name.as_str(), &asked).unwrap()
}

fn unknown(asked: &Asked) -> Answer {
    match asked {
        Asked::Ec2(_) => Answer::Ec2(cloud::failed(FailureClass::OutcomeUnknown)),
        Asked::Get(_) => Answer::Pod(Lookup::Unknown(String::new())),
        Asked::Patch(..) => Answer::Annotated(Annotated::Unknown(String::new())),
    }
}

fn is_manual(setup: &Setup, asked: &Asked) -> bool {
    let manual = setup.manual;
    match asked {
        Asked::Ec2(call) if call.mutates() => manual.mutations,
        Asked::Ec2(_) => manual.reads,
        Asked::Get(_) => manual.gets,
        Asked::Patch(..) => manual.patches,
    }
}

fn waits(setup: &Setup, message: &FromAgent) -> bool {
    setup.manual.releases && matches!(message, FromAgent::Release(_))
}
