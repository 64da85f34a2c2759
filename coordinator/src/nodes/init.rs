//! Getting a node its trunk: instance details, limits, trunk (`TRK-1`, `LIM-1`…`LIM-3`, `TRK-10`…`TRK-13`).
//!
//! One task a node, no lock shared with other nodes (`D25`, S63). A failed round is repeated with capped backoff for as long
//! as the node wants a trunk (`D22`); what a round made is kept and found again by the next (S31). The decisions are
//! `trunkline_core::trunk`'s; here they are carried out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use trunkline_core::eni::{
    Attachment, Ec2Failure, EniKind, EniRecord, EniStatus, FailureClass, SubnetCidrs, Tag,
};
use trunkline_core::id::{EniId, InstanceId, InstanceType, SubnetId};
use trunkline_core::limits::{Limits, NoLimits, NodeLimits};
use trunkline_core::node::event::{Settings, Trunk};
use trunkline_core::time::{Moment, Timing};
use trunkline_core::trunk::{
    AfterFailure, Away, KnownTrunk, Refusal, Sight, Situation, Step, after_failed_attach, next,
};
use trunkline_kit::clock::Clock;

use crate::cloud::{Cloud, Instance, NewTrunk};
use crate::inventory::Board;

/// Steps of one round; a round that needs more goes in a circle.
const MAX_STEPS: usize = 12;
/// Delays between polls for "attached" (`TRK-11`).
const POLLS_MS: [u64; 7] = [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000];

/// What all nodes' initialisations share.
#[derive(Clone)]
pub struct Shared {
    /// EC2.
    pub cloud: Arc<dyn Cloud>,
    /// Limits by type.
    pub limits: Arc<Mutex<Limits>>,
    /// Inventory.
    pub board: Board,
    /// CIDR blocks by subnet; they never change.
    pub subnets: Arc<Mutex<BTreeMap<SubnetId, SubnetCidrs>>>,
    /// Clock.
    pub clock: Clock,
    /// Durations.
    pub timing: Timing,
    /// Settings in force: in read-only mode nothing is created or attached.
    pub settings: watch::Receiver<Settings>,
}

impl Shared {
    fn read_only(&self) -> bool {
        self.settings.borrow().read_only
    }
}

/// Why a round failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failed {
    /// An EC2 call.
    #[error("failed to {what}: {failure}")]
    Ec2 {
        /// What was tried.
        what: &'static str,
        /// EC2's answer.
        failure: Ec2Failure,
    },
    /// S32.
    #[error("EC2's description of the instance has no {0}; it is read again")]
    Incomplete(&'static str),
    /// The instance is not one that gets a trunk.
    #[error("the instance is {0}")]
    NotRunning(String),
    /// `LIM-1`…`LIM-5`.
    #[error("instance type {0}: {1}")]
    NoLimits(InstanceType, NoLimits),
    /// See [`Refusal`].
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// `TRK-11`.
    #[error("the trunk {0} is not attached yet")]
    NotAttached(EniId),
    /// Read-only mode.
    #[error("the node needs a new trunk, and the mode read-only forbids making one")]
    ReadOnly,
    /// Nobody asks for a trunk, and there is none to take over.
    #[error("the node needs a new trunk, and nobody asks for one")]
    NotWanted,
    /// The term ended.
    #[error("this coordinator does not lead any more")]
    TermOver,
    /// The round went in a circle.
    #[error("EC2's answers about the trunk contradict each other")]
    Contradiction,
}

impl Failed {
    /// Short name of the reason, for status and metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ec2 { failure, .. } => failure.class.name(),
            Self::Incomplete(_) => "instance-incomplete",
            Self::NotRunning(_) => "instance-not-running",
            Self::NoLimits(_, NoLimits::UnknownType) => "unknown-instance-type",
            Self::NoLimits(_, NoLimits::NoTrunking) => "no-trunking",
            Self::NoLimits(_, NoLimits::NoSlots) => "slots-unknown",
            Self::Refused(Refusal::WithoutType(_)) => "interface-without-type",
            Self::Refused(Refusal::NoFreeSlot(_)) => "no-free-slot",
            Self::Refused(Refusal::Hidden(_)) => "trunk-hidden",
            Self::NotAttached(_) => "trunk-attaching",
            Self::ReadOnly => "read-only",
            Self::NotWanted => "not-asked",
            Self::TermOver => "not-leading",
            Self::Contradiction => "contradiction",
        }
    }

    /// Lasts until an operator, not time, changes something (`D23`).
    pub fn is_lasting(&self) -> bool {
        matches!(self, Self::NoLimits(..))
    }

    /// EC2's error code.
    pub fn ec2_code(&self) -> Option<&str> {
        match self {
            Self::Ec2 { failure, .. } => failure.code.as_deref(),
            _ => None,
        }
    }
}

/// A node that is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ready {
    /// For the node's books.
    pub trunk: Trunk,
    /// Instance type.
    pub kind: InstanceType,
    /// Other attached trunks; a person should look.
    pub others: Vec<EniId>,
}

/// The memory that one node's rounds share.
pub struct Init {
    shared: Shared,
    instance: InstanceId,
    known: BTreeMap<EniId, Known>,
    nonce: u32,
    made_here: BTreeSet<EniId>,
    unused: BTreeSet<EniId>,
    adopt_only: bool,
}

#[derive(Default)]
struct Known {
    shown: Option<Box<EniRecord>>,
    missing_since: Option<Moment>,
    /// Answers in a row that did not show it attached to the instance.
    away: Option<Away>,
    asked: bool,
}

struct Details {
    kind: InstanceType,
    subnet: SubnetId,
    instance: Instance,
}

impl Init {
    /// For one instance; nothing is known yet. `adopt_only`: a trunk is taken over, never made or attached.
    pub fn new(shared: Shared, instance: InstanceId, adopt_only: bool) -> Self {
        let (known, made_here, unused) = Default::default();
        Self { shared, instance, known, nonce: 0, made_here, unused, adopt_only }
    }

    /// One round: looks, takes the steps that are needed, and returns the trunk or the first thing that is in the way.
    pub async fn round(&mut self) -> Result<Ready, Failed> {
        // The trunks of an earlier term are in the inventory, so there is no round without one.
        let inventory = self.shared.board.since(Moment(0)).await.ok_or(Failed::TermOver)?;
        for eni in inventory.trunks_of(&self.instance) {
            self.known.entry(eni).or_default();
        }
        for known in self.known.values_mut() {
            known.asked = false;
        }
        let mut details = self.details().await?;
        let limits = self.limits(&details.kind).await?;
        let mut taken = BTreeSet::new();
        for _ in 0..MAX_STEPS {
            match self.next(&details.instance, limits, &taken) {
                Step::Adopt { eni, others } => {
                    return self.adopt(&eni, others, &details, limits).await;
                }
                Step::Wait(eni) => self.wait_attached(&eni).await?,
                Step::Look(eni) => {
                    self.look(&eni).await?;
                    continue;
                }
                Step::Create { .. } => {
                    self.create(&details).await?;
                    continue;
                }
                Step::Attach { eni, device_index } => {
                    self.attach(&eni, device_index, &mut taken).await?;
                }
                Step::Refuse(refusal) => return Err(refusal.into()),
            }
            details = self.details().await?;
        }
        Err(Failed::Contradiction)
    }

    fn next(&self, instance: &Instance, limits: NodeLimits, taken: &BTreeSet<u32>) -> Step {
        let now = self.shared.clock.now();
        let known: Vec<KnownTrunk> = self
            .known
            .iter()
            .map(|(eni, known)| {
                let sight = match (&known.shown, known.missing_since) {
                    _ if !known.asked => Sight::Unread,
                    (Some(record), _) => Sight::Shown(record.clone()),
                    (None, Some(since)) => Sight::NotFound(now.since(since)),
                    (None, None) => Sight::Unread,
                };
                KnownTrunk { eni: eni.clone(), sight }
            })
            .collect();
        next(&Situation {
            instance: &self.instance,
            interfaces: &instance.interfaces,
            slots: limits.slots,
            taken,
            known: &known,
            hidden_for: self.shared.timing.trunk_hidden,
        })
    }

    async fn details(&self) -> Result<Details, Failed> {
        let instance = self
            .shared
            .cloud
            .instance(&self.instance)
            .await
            .map_err(ec2("describe the instance"))?;
        if !matches!(instance.state.as_str(), "running" | "pending") {
            return Err(Failed::NotRunning(instance.state));
        }
        if let Some(missing) = instance.missing {
            return Err(Failed::Incomplete(missing));
        }
        if instance.interfaces.is_empty() {
            return Err(Failed::Incomplete("network interfaces"));
        }
        let kind = instance.kind.clone().ok_or(Failed::Incomplete("instance type"))?;
        let subnet = instance.subnet.clone().ok_or(Failed::Incomplete("subnet id"))?;
        if instance.primary_groups.is_empty() {
            return Err(Failed::Incomplete("security groups of its primary interface"));
        }
        Ok(Details { kind, subnet, instance })
    }

    async fn limits(&self, kind: &InstanceType) -> Result<NodeLimits, Failed> {
        let lock = || self.shared.limits.lock().unwrap_or_else(PoisonError::into_inner);
        let wants_learning = lock().wants_learning(kind);
        if wants_learning {
            // An optional permission: without it the operator gives the figure (LIM-1).
            match self.shared.cloud.instance_type(kind).await {
                Ok(learned) => lock().learn_type(kind.clone(), learned),
                Err(failure) => {
                    tracing::warn!(instance_type = %kind, "instance type cannot be described: {failure}");
                }
            }
        }
        let found = lock().lookup(kind);
        found.map_err(|why| Failed::NoLimits(kind.clone(), why))
    }

    async fn look(&mut self, eni: &EniId) -> Result<(), Failed> {
        let answer = self.shared.cloud.describe(eni).await;
        let now = self.shared.clock.now();
        let known = self.known.entry(eni.clone()).or_default();
        match answer {
            Ok(record) => {
                let here =
                    |a: &Attachment| a.attached && a.instance.as_ref() == Some(&self.instance);
                let attached = record.attachment.as_ref().is_some_and(here);
                known.away = (!attached).then(|| Away::again(known.away, now));
                known.shown = Some(Box::new(record));
                known.missing_since = None;
                known.asked = true;
            }
            Err(f) if f.class == FailureClass::NotFound => {
                known.away = Some(Away::again(known.away, now));
                known.shown = None;
                known.missing_since.get_or_insert(now);
                known.asked = true;
            }
            Err(failure) => {
                return Err(Failed::Ec2 { what: "describe the known trunk", failure });
            }
        }
        Ok(())
    }

    /// The trunks that are known of this instance, where every one of them is lost (`D34`); else none.
    pub fn lost(&self) -> Vec<EniId> {
        let now = self.shared.clock.now();
        let lost = |k: &Known| k.away.is_some_and(|away| away.is_lost(now, &self.shared.timing));
        if self.known.values().all(lost) {
            self.known.keys().cloned().collect()
        } else {
            Vec::new()
        }
    }

    fn may_mutate(&self) -> Result<(), Failed> {
        match (self.shared.read_only(), self.adopt_only) {
            (true, _) => Err(Failed::ReadOnly),
            (false, true) => Err(Failed::NotWanted),
            (false, false) => Ok(()),
        }
    }

    async fn create(&mut self, details: &Details) -> Result<(), Failed> {
        self.may_mutate()?;
        let now = self.shared.clock.now();
        let hidden_for = self.shared.timing.trunk_hidden;
        // The token named an ENI that has been gone for long: the next one needs another token.
        let gone =
            |k: &Known| k.missing_since.is_some_and(|since| now.has_passed(since, hidden_for));
        let lost: Vec<EniId> = self
            .known
            .iter()
            .filter(|(eni, k)| gone(k) && self.made_here.contains(*eni))
            .map(|(eni, _)| eni.clone())
            .collect();
        for eni in lost {
            self.made_here.remove(&eni);
            self.nonce += 1;
        }
        let trunk = NewTrunk {
            instance: self.instance.clone(),
            subnet: details.subnet.clone(),
            groups: details.instance.primary_groups.clone(),
            nonce: self.nonce,
        };
        match self.shared.cloud.create_trunk(&trunk).await {
            Ok(mut record) => {
                tracing::info!(instance = %self.instance, trunk = %record.id, "trunk created");
                // The tags were in the call, whether or not the answer repeats them.
                record.tags.instance = Tag::Is(self.instance.clone());
                record.kind = EniKind::Trunk;
                self.made_here.insert(record.id.clone());
                // A replayed token may name a trunk that was used before.
                if record.attachment.is_none()
                    && matches!(record.status, EniStatus::Pending | EniStatus::Available)
                {
                    self.unused.insert(record.id.clone());
                }
                self.known.insert(
                    record.id.clone(),
                    Known { shown: Some(Box::new(record)), asked: true, ..Known::default() },
                );
                Ok(())
            }
            Err(failure) if failure.class == FailureClass::TokenMismatch => {
                // An earlier attempt had other groups or another subnet. What it made carries our tags: read back first.
                let fresh = self
                    .shared
                    .board
                    .since(self.shared.clock.now())
                    .await
                    .ok_or(Failed::TermOver)?;
                let found = fresh.trunks_of(&self.instance);
                if found.iter().all(|eni| self.known.contains_key(eni)) {
                    self.nonce += 1;
                }
                Err(Failed::Ec2 { what: "create the trunk", failure })
            }
            Err(failure) => Err(Failed::Ec2 { what: "create the trunk", failure }),
        }
    }

    async fn attach(
        &mut self,
        eni: &EniId,
        device_index: u32,
        taken: &mut BTreeSet<u32>,
    ) -> Result<(), Failed> {
        self.may_mutate()?;
        let failure = match self.shared.cloud.attach(eni, &self.instance, device_index).await {
            Ok(()) => return self.wait_attached(eni).await,
            Err(failure) => failure,
        };
        match after_failed_attach(&failure) {
            AfterFailure::NextSlot if taken.insert(device_index) => return Ok(()),
            AfterFailure::RollBack => {
                tracing::warn!(instance = %self.instance, trunk = %eni, "EC2 does not attach the trunk, it is deleted: {failure}");
                self.shared
                    .cloud
                    .delete_unattached_trunk(eni, &self.instance)
                    .await
                    .map_err(ec2("delete the trunk that cannot be attached"))?;
                self.known.remove(eni);
                if self.made_here.remove(eni) {
                    self.nonce += 1;
                }
            }
            AfterFailure::NextSlot | AfterFailure::Keep => {
                if let Some(known) = self.known.get_mut(eni) {
                    known.asked = false;
                }
            }
        }
        Err(Failed::Ec2 { what: "attach the trunk", failure })
    }

    /// Polls until exactly this ENI is attached (`D15`); an answer of another kind ends the wait without success.
    async fn wait_attached(&mut self, eni: &EniId) -> Result<(), Failed> {
        for delay in POLLS_MS {
            self.look(eni).await?;
            let shown = self.known.get(eni).and_then(|k| k.shown.as_deref());
            if shown.and_then(|r| r.attachment.as_ref()).is_some_and(|a| a.attached) {
                return Ok(());
            }
            self.shared.clock.sleep(Duration::from_millis(delay)).await;
        }
        Err(Failed::NotAttached(eni.clone()))
    }

    async fn adopt(
        &mut self,
        eni: &EniId,
        others: Vec<EniId>,
        details: &Details,
        limits: NodeLimits,
    ) -> Result<Ready, Failed> {
        let known = self.known.get(eni).and_then(|k| k.shown.as_deref());
        let on_instance = details.instance.interfaces.iter().find(|i| i.id == *eni);
        let record = on_instance.or(known).ok_or(Failed::Contradiction)?.clone();
        let tagged_for_us = known.is_some_and(|r| r.tags.instance.value() == Some(&self.instance))
            || record.tags.instance.value() == Some(&self.instance);
        if let Some(attachment) = record.attachment.as_ref().filter(|a| !a.delete_on_termination)
            && tagged_for_us
            && !self.shared.read_only()
            && let Err(failure) = self.shared.cloud.delete_with_instance(eni, &attachment.id).await
        {
            // The trunk works all the same; the next round tries again.
            tracing::warn!(trunk = %eni, "trunk will outlive its instance, DeleteOnTermination not set: {failure}");
        }
        let cidrs = self.cidrs(&details.subnet).await?;
        // Only the first time: from now on it is in use.
        let fresh = self.unused.remove(eni);
        self.known.entry(eni.clone()).or_default().away = None;
        Ok(Ready {
            trunk: Trunk {
                instance: self.instance.clone(),
                eni: eni.clone(),
                mac: record.mac,
                limit: limits.branches,
                subnet: details.subnet.clone(),
                cidrs,
                default_groups: details.instance.primary_groups.clone(),
                fresh,
            },
            kind: details.kind.clone(),
            others,
        })
    }

    async fn cidrs(&self, subnet: &SubnetId) -> Result<SubnetCidrs, Failed> {
        let lock = || self.shared.subnets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lock().get(subnet).cloned() {
            return Ok(known);
        }
        let cidrs = self.shared.cloud.subnet(subnet).await.map_err(ec2("describe the subnet"))?;
        if cidrs.v4.is_empty() {
            return Err(Failed::Incomplete("IPv4 CIDR block of its subnet"));
        }
        lock().insert(subnet.clone(), cidrs.clone());
        Ok(cidrs)
    }
}

fn ec2(what: &'static str) -> impl Fn(Ec2Failure) -> Failed {
    move |failure| Failed::Ec2 { what, failure }
}

#[cfg(test)]
mod tests;
