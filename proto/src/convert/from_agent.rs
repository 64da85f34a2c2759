//! From the agent to the coordinator.
//!
//! [`AgentSender`] numbers deltas and puts the stream's origin on every message. [`AgentReceiver`] is its counterpart: it drops
//! what is of another session or term, assembles snapshots, watches the numbers, and refuses whole messages. After a
//! refusal all three views are unknown until their snapshots come anew; what was under way until then does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use trunkline_core::fact::{BarrierReply, Origin, ReleaseFacts, ReportedRelease};
use trunkline_core::id::{BootId, EniId, KubeletStart, VlanId};
use trunkline_core::message::{Change, FromAgent, Heartbeat};
use trunkline_core::view::{Blind, Link, Pod, Suspect};

use super::WireError;
use super::greeting::milliseconds;
use super::heal::{mac_result_from_wire, mac_result_to_wire};
use super::item::{
    blind_of, enumeration, id, kubelet, optional_kubelet, over_from_wire, over_to_wire, pod_ref,
    required, texts, uids, view_state, vlan, way_from_wire, way_to_wire,
};
use super::sequence::DeltaSequence;
use super::snapshot::{SNAPSHOT_ITEMS, SnapshotAssembler, limit, snapshot_messages};
use crate::v1;
use crate::v1::ViewKind;
use crate::v1::agent_message::Body;

// === sending ===

/// The agent's side of a greeted stream.
#[derive(Debug, Clone)]
pub struct AgentSender {
    origin: Origin,
    seq: u64,
}

impl AgentSender {
    /// For the stream of that origin; no delta was sent yet.
    pub fn new(origin: Origin) -> Self {
        Self { origin, seq: 0 }
    }

    /// The messages that say it, to be sent in this order with nothing between them but what the contract allows. The
    /// origin inside of reported facts is replaced by the stream's.
    pub fn encode(&mut self, message: &FromAgent) -> Vec<v1::AgentMessage> {
        let bodies = match message {
            FromAgent::Pods(_) | FromAgent::Links(_) | FromAgent::Cgroups(_) => {
                snapshot_messages(message, self.seq)
            }
            FromAgent::VlansUsed(uses) => vec![Body::VlansUsed(vlans_to_wire(uses.as_ref()))],
            FromAgent::Change(change) => {
                self.seq += 1;
                vec![Body::Delta(delta_to_wire(change, self.seq))]
            }
            FromAgent::Suspect(suspect) => {
                vec![Body::Suspect(v1::Suspect { key: Some(suspect.pod().into()) })]
            }
            FromAgent::Release(release) => {
                vec![Body::Release(release_to_wire(release.facts(), self.seq))]
            }
            FromAgent::Heartbeat(beat) => vec![Body::Heartbeat(heartbeat_to_wire(beat, self.seq))],
            FromAgent::Barrier(reply) => vec![Body::BarrierReply(barrier_to_wire(reply))],
            FromAgent::MacResult { request, vlan, outcome } => {
                vec![Body::MacResult(mac_result_to_wire(*request, *vlan, outcome))]
            }
        };
        bodies.into_iter().map(|body| self.envelope(body)).collect()
    }

    /// The message that renews the token.
    pub fn token(&self, token: &str) -> v1::AgentMessage {
        self.envelope(Body::Token(v1::Token { token: token.into() }))
    }

    fn envelope(&self, body: Body) -> v1::AgentMessage {
        v1::AgentMessage {
            session: self.origin.session.to_string(),
            epoch: self.origin.epoch.0,
            term_nonce: self.origin.nonce.0,
            body: Some(body),
        }
    }
}

fn vlans_to_wire(uses: Option<&BTreeMap<VlanId, Duration>>) -> v1::VlansUsed {
    let one = |(vlan, age): (&VlanId, &Duration)| v1::VlanUse {
        vlan: u32::from(vlan.get()),
        age_ms: milliseconds(*age),
    };
    v1::VlansUsed { journal: uses.is_some(), uses: uses.into_iter().flatten().map(one).collect() }
}

fn delta_to_wire(change: &Change, seq: u64) -> v1::Delta {
    use v1::delta::Change as Wire;
    let change = match change {
        Change::PodApplied(pod) => Wire::PodApplied(pod.into()),
        Change::PodDeleted(pod) => Wire::PodDeleted(pod.into()),
        Change::Links { added, removed } => Wire::Links(v1::LinkChange {
            added: added.iter().map(Into::into).collect(),
            removed: removed.clone(),
        }),
        Change::Cgroups { added, removed } => {
            Wire::Cgroups(v1::CgroupChange { added: texts(added), removed: texts(removed) })
        }
    };
    v1::Delta { seq, change: Some(change) }
}

fn release_to_wire(facts: &ReleaseFacts, seq: u64) -> v1::Release {
    let stamp = || {
        Some(v1::Stamp { boot_id: facts.boot.to_string(), kubelet_start_ns: facts.start.0, seq })
    };
    let gone = |eni: &EniId| v1::SandboxGone { stamp: stamp(), eni_id: eni.to_string() };
    v1::Release {
        pod_uid: facts.uid.to_string(),
        over: over_to_wire(facts.over).into(),
        kubelet_released: Some(v1::KubeletReleased {
            stamp: stamp(),
            way: way_to_wire(facts.way).into(),
        }),
        sandbox_gone: facts.enis.iter().map(gone).collect(),
    }
}

fn heartbeat_to_wire(beat: &Heartbeat, seq: u64) -> v1::Heartbeat {
    v1::Heartbeat {
        boot_id: beat.boot.to_string(),
        kubelet_start_ns: beat.kubelet.map(|k| k.0),
        pods: view_state(beat.pods).into(),
        links: view_state(beat.links).into(),
        cgroups: view_state(beat.cgroups).into(),
        seq,
    }
}

fn barrier_to_wire(reply: &BarrierReply) -> v1::BarrierReply {
    let presence = |present: &Option<bool>| match present {
        Some(true) => v1::Presence::Present,
        Some(false) => v1::Presence::Absent,
        None => v1::Presence::Unknown,
    };
    let pods = reply.present.iter().map(|(uid, present)| v1::PodPresence {
        pod_uid: uid.to_string(),
        presence: presence(present).into(),
    });
    let numbers = |set: &BTreeSet<VlanId>| v1::VlanSet {
        vlans: set.iter().map(|v| u32::from(v.get())).collect(),
    };
    v1::BarrierReply {
        question: reply.question,
        boot_id: reply.boot.to_string(),
        kubelet_start_ns: reply.start.map(|k| k.0),
        pods: pods.collect(),
        vlans: reply.vlans.as_ref().map(numbers),
    }
}

// === receiving ===

/// A renewed token; not shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct BearerToken(String);

impl BearerToken {
    /// The token itself.
    pub fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken")
    }
}

/// What a message of an agent comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// Something for the node.
    Message(FromAgent),
    /// A renewed token.
    Token(BearerToken),
    /// A piece of a snapshot, or something that a snapshot to come replaces.
    Nothing,
    /// Of another session or term: dropped.
    Foreign,
    /// Refused. `views` (all three, unknown) go to the node, and the agent is asked for a resync with the error's text.
    Broken {
        /// Why.
        error: WireError,
        /// What is known now: nothing.
        views: Box<[FromAgent; 3]>,
    },
}

/// The coordinator's side of a greeted stream.
#[derive(Debug)]
pub struct AgentReceiver {
    origin: Origin,
    sequence: DeltaSequence,
    assembler: SnapshotAssembler,
    /// Kind of the open snapshot.
    open: Option<ViewKind>,
    /// Kinds whose last snapshot was of a valid view.
    valid: BTreeSet<ViewKind>,
}

impl AgentReceiver {
    /// For the stream of that origin.
    pub fn new(origin: Origin) -> Self {
        Self {
            origin,
            sequence: DeltaSequence::default(),
            assembler: SnapshotAssembler::default(),
            open: None,
            valid: BTreeSet::new(),
        }
    }

    /// Takes the next message of the stream.
    pub fn receive(&mut self, message: v1::AgentMessage) -> Received {
        if message.session != self.origin.session.as_str()
            || message.epoch != self.origin.epoch.0
            || message.term_nonce != self.origin.nonce.0
        {
            return Received::Foreign;
        }
        match self.read(message.body) {
            Ok(received) => received,
            Err(error) => {
                self.sequence.break_off();
                self.assembler = SnapshotAssembler::default();
                self.open = None;
                self.valid.clear();
                let why = Blind::NotRead;
                let views = Box::new([
                    FromAgent::Pods(Err(why)),
                    FromAgent::Links(Err(why)),
                    FromAgent::Cgroups(Err(why)),
                ]);
                Received::Broken { error, views }
            }
        }
    }

    fn read(&mut self, body: Option<Body>) -> Result<Received, WireError> {
        let body = required("AgentMessage", "body", body)?;
        if self.assembler.is_open() && !may_interleave(&body) {
            let point = "between begin and end of a snapshot";
            return Err(WireError::OutOfPlace { message: name(&body), point });
        }
        let message = match body {
            Body::Hello(_) => {
                let point = "after the greeting";
                return Err(WireError::OutOfPlace { message: "Hello", point });
            }
            Body::SnapshotBegin(begin) => return self.begin(begin),
            Body::SnapshotPart(part) => {
                if !self.sequence.is_broken() {
                    self.assembler.part(&part)?;
                }
                return Ok(Received::Nothing);
            }
            Body::SnapshotEnd(end) => {
                if self.sequence.is_broken() {
                    return Ok(Received::Nothing);
                }
                let view = self.assembler.end(&end)?;
                self.valid.extend(self.open.take());
                view
            }
            Body::Delta(delta) => return self.delta(delta),
            Body::VlansUsed(used) => FromAgent::VlansUsed(vlans_from_wire(used)?),
            Body::Suspect(suspect) => {
                FromAgent::Suspect(Suspect::reported(pod_ref("Suspect", suspect.key)?))
            }
            Body::Release(release) => {
                let (facts, seqs) = release_from_wire(release)?;
                for seq in seqs {
                    self.sequence.last("Stamp", seq)?;
                }
                FromAgent::Release(ReportedRelease::received(facts, self.origin.clone()))
            }
            Body::Heartbeat(beat) => {
                self.sequence.last("Heartbeat", beat.seq)?;
                FromAgent::Heartbeat(heartbeat_from_wire(&beat)?)
            }
            Body::BarrierReply(reply) => {
                FromAgent::Barrier(barrier_from_wire(reply, self.origin.clone())?)
            }
            Body::MacResult(result) => mac_result_from_wire(result)?,
            Body::Token(token) if token.token.is_empty() => {
                return Err(WireError::Missing { message: "Token", field: "token" });
            }
            Body::Token(token) => return Ok(Received::Token(BearerToken(token.token))),
        };
        Ok(Received::Message(message))
    }

    fn begin(&mut self, begin: v1::SnapshotBegin) -> Result<Received, WireError> {
        let message = "SnapshotBegin";
        self.sequence.begin(begin.seq)?;
        let kind: ViewKind = enumeration(message, "kind", begin.kind)?;
        let Some(why) = blind_of(message, "state", begin.state)? else {
            self.assembler.begin(kind)?;
            self.open = Some(kind);
            return Ok(Received::Nothing);
        };
        self.valid.remove(&kind);
        Ok(Received::Message(match kind {
            ViewKind::Pods => FromAgent::Pods(Err(why)),
            ViewKind::Links => FromAgent::Links(Err(why)),
            ViewKind::Cgroups => FromAgent::Cgroups(Err(why)),
            ViewKind::Unspecified => {
                return Err(WireError::Enum { message, field: "kind", value: begin.kind });
            }
        }))
    }

    fn delta(&mut self, delta: v1::Delta) -> Result<Received, WireError> {
        if !self.sequence.delta(delta.seq)? {
            return Ok(Received::Nothing);
        }
        let (kind, change) = change_from_wire(required("Delta", "change", delta.change)?)?;
        // A change of an unknown view says nothing about the view: its next snapshot will.
        let counts = self.valid.contains(&kind);
        Ok(if counts { Received::Message(FromAgent::Change(change)) } else { Received::Nothing })
    }
}

fn may_interleave(body: &Body) -> bool {
    matches!(
        body,
        Body::SnapshotPart(_)
            | Body::SnapshotEnd(_)
            | Body::Heartbeat(_)
            | Body::BarrierReply(_)
            | Body::Token(_)
    )
}

fn name(body: &Body) -> &'static str {
    match body {
        Body::Hello(_) => "Hello",
        Body::SnapshotBegin(_) => "SnapshotBegin",
        Body::SnapshotPart(_) => "SnapshotPart",
        Body::SnapshotEnd(_) => "SnapshotEnd",
        Body::VlansUsed(_) => "VlansUsed",
        Body::Delta(_) => "Delta",
        Body::Suspect(_) => "Suspect",
        Body::Release(_) => "Release",
        Body::Heartbeat(_) => "Heartbeat",
        Body::BarrierReply(_) => "BarrierReply",
        Body::Token(_) => "Token",
        Body::MacResult(_) => "MacResult",
    }
}

fn vlans_from_wire(used: v1::VlansUsed) -> Result<Option<BTreeMap<VlanId, Duration>>, WireError> {
    let (message, field) = ("VlansUsed", "uses");
    if !used.journal {
        let why = "there are none without a journal";
        return match used.uses.first() {
            Some(first) => Err(WireError::value(message, field, &first.vlan, why)),
            None => Ok(None),
        };
    }
    let mut ages = BTreeMap::new();
    for one in used.uses {
        let id = vlan("VlanUse", "vlan", one.vlan)?;
        if ages.insert(id, Duration::from_millis(one.age_ms)).is_some() {
            return Err(WireError::Duplicate { message, field, value: id.to_string() });
        }
    }
    Ok(Some(ages))
}

fn change_from_wire(change: v1::delta::Change) -> Result<(ViewKind, Change), WireError> {
    use v1::delta::Change as Wire;
    Ok(match change {
        Wire::PodApplied(pod) => (ViewKind::Pods, Change::PodApplied(Pod::try_from(pod)?)),
        Wire::PodDeleted(key) => (ViewKind::Pods, Change::PodDeleted(key.try_into()?)),
        Wire::Links(links) => {
            limit("LinkChange", "added", links.added.len(), SNAPSHOT_ITEMS)?;
            limit("LinkChange", "removed", links.removed.len(), SNAPSHOT_ITEMS)?;
            let added: Result<Vec<Link>, _> = links.added.into_iter().map(Link::try_from).collect();
            (ViewKind::Links, Change::Links { added: added?, removed: links.removed })
        }
        Wire::Cgroups(change) => {
            limit("CgroupChange", "added", change.added.len(), SNAPSHOT_ITEMS)?;
            limit("CgroupChange", "removed", change.removed.len(), SNAPSHOT_ITEMS)?;
            let added = uids("CgroupChange", "added", &change.added)?;
            let removed = uids("CgroupChange", "removed", &change.removed)?;
            (ViewKind::Cgroups, Change::Cgroups { added, removed })
        }
    })
}

/// The facts, and the `seq` of their stamps. Facts of different boots or kubelet starts are refused: together they prove
/// nothing.
fn release_from_wire(release: v1::Release) -> Result<(ReleaseFacts, BTreeSet<u64>), WireError> {
    let message = "Release";
    let released = required(message, "kubelet_released", release.kubelet_released)?;
    let stamp = required("KubeletReleased", "stamp", released.stamp)?;
    let (boot, start) = life(&stamp)?;
    let mut seqs = BTreeSet::from([stamp.seq]);
    let mut enis = BTreeSet::new();
    limit(message, "sandbox_gone", release.sandbox_gone.len(), SNAPSHOT_ITEMS)?;
    for gone in release.sandbox_gone {
        let stamp = required("SandboxGone", "stamp", gone.stamp)?;
        if life(&stamp)? != (boot.clone(), start) {
            let why = "it is of another boot or kubelet start than KubeletReleased";
            return Err(WireError::value("SandboxGone", "stamp", &stamp.boot_id, why));
        }
        seqs.insert(stamp.seq);
        if !enis.insert(id("SandboxGone", "eni_id", &gone.eni_id)?) {
            let field = "sandbox_gone";
            return Err(WireError::Duplicate { message, field, value: gone.eni_id });
        }
    }
    let facts = ReleaseFacts {
        uid: id(message, "pod_uid", &release.pod_uid)?,
        over: over_from_wire(release.over)?,
        way: way_from_wire(released.way)?,
        boot,
        start,
        enis,
    };
    Ok((facts, seqs))
}

fn life(stamp: &v1::Stamp) -> Result<(BootId, KubeletStart), WireError> {
    Ok((id("Stamp", "boot_id", &stamp.boot_id)?, kubelet("Stamp", stamp.kubelet_start_ns)?))
}

fn heartbeat_from_wire(beat: &v1::Heartbeat) -> Result<Heartbeat, WireError> {
    let message = "Heartbeat";
    Ok(Heartbeat {
        boot: id(message, "boot_id", &beat.boot_id)?,
        kubelet: optional_kubelet(message, beat.kubelet_start_ns)?,
        pods: blind_of(message, "pods", beat.pods)?,
        links: blind_of(message, "links", beat.links)?,
        cgroups: blind_of(message, "cgroups", beat.cgroups)?,
    })
}

fn barrier_from_wire(reply: v1::BarrierReply, origin: Origin) -> Result<BarrierReply, WireError> {
    let message = "BarrierReply";
    limit(message, "pods", reply.pods.len(), SNAPSHOT_ITEMS)?;
    let mut present = BTreeMap::new();
    for pod in reply.pods {
        let (item, field, value) = ("PodPresence", "presence", pod.presence);
        let answer = match enumeration(item, field, value)? {
            v1::Presence::Unspecified => {
                return Err(WireError::Enum { message: item, field, value });
            }
            v1::Presence::Present => Some(true),
            v1::Presence::Absent => Some(false),
            v1::Presence::Unknown => None,
        };
        if present.insert(id(item, "pod_uid", &pod.pod_uid)?, answer).is_some() {
            return Err(WireError::Duplicate { message, field: "pods", value: pod.pod_uid });
        }
    }
    Ok(BarrierReply {
        origin,
        question: reply.question,
        boot: id(message, "boot_id", &reply.boot_id)?,
        start: optional_kubelet(message, reply.kubelet_start_ns)?,
        present,
        vlans: reply.vlans.map(vlan_set).transpose()?,
    })
}

fn vlan_set(set: v1::VlanSet) -> Result<BTreeSet<VlanId>, WireError> {
    let (message, field) = ("VlanSet", "vlans");
    let mut vlans = BTreeSet::new();
    for number in set.vlans {
        if !vlans.insert(vlan(message, field, number)?) {
            return Err(WireError::Duplicate { message, field, value: number.to_string() });
        }
    }
    Ok(vlans)
}
