//! The books as a person may see them: every branch, every wait, with its sentence.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::eni::{EniRecord, Tag};
use crate::fuse::FuseState;
use crate::heal::{Health, Obstacle};
use crate::id::{EniId, Epoch, MacAddress, PodRef, VlanId};
use crate::time::Moment;
use crate::verdict::Keep;
use crate::view::{Blind, OddRequest, PodPhase};
use crate::vlan::{KeptVlan, WhyKept};
use crate::wait::Wait;

use super::Node;
use super::adopt::may_be_associated;
use super::holding::{Branch, Holding, Stage};

/// State of a branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BranchState {
    /// Slot and VLAN are reserved.
    Reserved,
    /// The ENI is being created.
    Creating,
    /// The ENI exists, the association is under way.
    Created,
    /// Associated, not announced yet.
    Attached,
    /// Associated and announced to a live pod.
    Bound,
    /// The pod is over; the release is being judged.
    Fenced,
    /// Disassociated, in its cooldown.
    Cooling,
}

impl BranchState {
    /// All states.
    pub const ALL: [Self; 7] = [
        Self::Reserved,
        Self::Creating,
        Self::Created,
        Self::Attached,
        Self::Bound,
        Self::Fenced,
        Self::Cooling,
    ];

    /// Short name for the wire, logs and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reserved => "reserved",
            Self::Creating => "creating",
            Self::Created => "created",
            Self::Attached => "attached",
            Self::Bound => "bound",
            Self::Fenced => "fenced",
            Self::Cooling => "cooling",
        }
    }
}

/// One branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BranchReport {
    /// The ENI, once it is known.
    pub eni: Option<EniId>,
    /// Its MAC.
    pub mac: Option<MacAddress>,
    /// Its private addresses, as text.
    pub addresses: Vec<String>,
    /// Association id, if known.
    pub association: Option<String>,
    /// VLAN.
    pub vlan: VlanId,
    /// State.
    pub state: BranchState,
    /// How it is, as far as anybody looked (`NEW-7`).
    pub health: Health,
    /// How long until the cooldown ends, while it runs.
    pub cooling_left: Option<Duration>,
}

/// One pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodReport {
    /// The pod.
    pub pod: PodRef,
    /// How many branches it asks for.
    pub requested: u32,
    /// Its branches.
    pub branches: Vec<BranchReport>,
    /// What it waits for, and for how long; `None` while it has what it asked for.
    pub wait: Option<(Wait, Duration)>,
    /// What is odd about its request.
    pub odd_request: Option<OddRequest>,
    /// It is being released, not served.
    pub releasing: bool,
    /// A branch of it that it may be using is lost, and being repaired or not repairable.
    pub healing: bool,
    /// Failed attempts of the current step.
    pub attempts: u32,
    /// How long it is in the books.
    pub age: Duration,
}

/// One node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeReport {
    /// The term.
    pub epoch: Epoch,
    /// The trunk, or why there is none: ENI, MAC and branch limit.
    pub trunk: Result<(EniId, MacAddress, u32), String>,
    /// This term's inventory was read.
    pub inventory: bool,
    /// An agent is connected.
    pub connected: bool,
    /// Why the pod, link and cgroup views say nothing; `None` where they are valid.
    pub views: [Option<Blind>; 3],
    /// Slots taken.
    pub used: u32,
    /// Slots free; 0 without a trunk.
    pub free: u32,
    /// VLANs that rest, and VLANs kept aside because of a link without owner.
    pub vlans: (usize, usize),
    /// Every VLAN that no branch has and that is not handed out, and why.
    pub kept: Vec<KeptVlan>,
    /// Vetoes in the fuse's window.
    pub vetoes: usize,
    /// What the fuse says.
    pub fuse: FuseState,
    /// ENIs without our UID tag.
    pub strangers: Vec<EniId>,
    /// How everything of this node in EC2 is, by class: branches, ENIs without our UID tag, annotations without ENI.
    pub health: BTreeMap<Health, usize>,
    /// Pods with a branch or a wait.
    pub pods: Vec<PodReport>,
}

fn health_of(branch: &Branch, contested: bool) -> Health {
    match branch.care.health {
        _ if matches!(branch.stage, Stage::Cooling(..)) => Health::Cooling,
        _ if branch.care.obstacle == Some(Obstacle::VlanTaken) => Health::VlanConflict,
        Health::Ok if contested => Health::VlanConflict,
        health => health,
    }
}

impl Node {
    /// The books as they are.
    pub fn report(&self, now: Moment) -> NodeReport {
        let used = self.used_slots();
        let trunk =
            self.trunk.as_ref().map(|t| (t.eni.clone(), t.mac, t.limit)).map_err(Clone::clone);
        NodeReport {
            epoch: self.term.epoch,
            free: trunk.as_ref().map_or(0, |(_, _, limit)| limit.saturating_sub(used)),
            trunk,
            inventory: self.inventory,
            connected: self.session.is_some(),
            views: [self.pods_blind, self.links.blind(), self.cgroups.blind()],
            used,
            vlans: self.vlans.counts(),
            kept: self.kept_vlans(),
            vetoes: self.vetoes.len(),
            fuse: self.fuse,
            strangers: self
                .strangers
                .keys()
                .chain(self.remains.iter().filter(|(_, r)| r.pod.is_none()).map(|(eni, _)| eni))
                .cloned()
                .collect(),
            health: self.classes(),
            pods: self
                .holdings
                .values()
                .map(|h| self.pod_report(h, now))
                .chain(self.asking_nothing(now))
                .chain(self.remains_of_pods(now))
                .collect(),
        }
    }

    /// What a dead instance left of its pods.
    fn remains_of_pods(&self, now: Moment) -> impl Iterator<Item = PodReport> {
        self.remains.iter().filter_map(move |(eni, remain)| {
            let age = now.since(remain.since);
            Some(PodReport {
                pod: remain.pod.clone()?,
                requested: 0,
                branches: Vec::from_iter(remain.vlan.map(|vlan| BranchReport {
                    eni: Some(eni.clone()),
                    mac: None,
                    addresses: Vec::new(),
                    association: None,
                    vlan,
                    state: BranchState::Fenced,
                    health: Health::LeakedAvailable,
                    cooling_left: None,
                })),
                wait: Some((remain.wait.clone(), age)),
                odd_request: None,
                releasing: true,
                healing: false,
                attempts: 0,
                age,
            })
        })
    }

    /// The pods whose request gets them no branch. They wait as long as they have not started: the VPC CNI may be waiting.
    fn asking_nothing(&self, now: Moment) -> impl Iterator<Item = PodReport> {
        self.told_odd.iter().filter_map(move |(uid, since)| {
            let pod = self.pods.get(uid).filter(|_| !self.holdings.contains_key(uid))?;
            let odd = pod.odd_request?;
            let age = now.since(*since);
            let waits = pod.phase == PodPhase::Pending;
            Some(PodReport {
                pod: pod.pod.clone(),
                requested: pod.requested,
                branches: Vec::new(),
                wait: waits.then_some((Wait::AsksNothing(odd), age)),
                odd_request: Some(odd),
                releasing: false,
                healing: false,
                attempts: 0,
                age,
            })
        })
    }

    /// What the books say of resting, and what the pods' annotations add.
    fn kept_vlans(&self) -> Vec<KeptVlan> {
        let mut kept = self.vlans.kept();
        let named = self.annotated.iter().filter(|v| self.vlans.free().contains(v));
        kept.extend(named.map(|vlan| KeptVlan {
            vlan: *vlan,
            rested: None,
            left: None,
            why: WhyKept::Annotated,
        }));
        kept.sort_by_key(|k| k.vlan);
        kept
    }

    fn classes(&self) -> BTreeMap<Health, usize> {
        let branches = self.holdings.values().flat_map(|h| h.branches.values());
        let branches = branches
            .filter(|b| b.interface().is_some() || b.care.lost.is_some())
            .map(|b| health_of(b, self.vlans.is_contested(b.vlan)));
        let strangers = self.strangers.values().map(|(record, _)| self.stranger_health(record));
        let ghosts =
            self.holdings.values().filter(|h| matches!(h.wait, Some(Wait::AnnotationGhost(_))));
        let mut counted = BTreeMap::new();
        let left = self.remains.values().map(|_| Health::LeakedAvailable);
        let ghosts = ghosts.map(|_| Health::GhostAnnotation);
        for health in branches.chain(strangers).chain(ghosts).chain(left) {
            *counted.entry(health).or_default() += 1;
        }
        counted
    }

    /// An ENI that is not tagged for a pod: foreign where a pod of the view names it, else leaked, as far as is known.
    fn stranger_health(&self, record: &EniRecord) -> Health {
        let named = self
            .pods
            .values()
            .any(|p| p.annotation.as_deref().is_some_and(|text| text.contains(record.id.as_str())));
        match (named || record.tags.pod_uid != Tag::Absent, may_be_associated(record)) {
            (true, _) => Health::Foreign,
            (false, true) => Health::LeakedAssociated,
            (false, false) => Health::LeakedAvailable,
        }
    }

    fn pod_report(&self, holding: &Holding, now: Moment) -> PodReport {
        let releasing = holding.release.is_some() || holding.is_cooling() || holding.stopped;
        let cooldown = self.settings.cooldown;
        let mending = !releasing && holding.is_mending();
        let branches = holding.branches.values().map(|branch| {
            let interface = branch.interface();
            let (state, association, cooling_left) = match &branch.stage {
                Stage::Reserved => (BranchState::Reserved, None, None),
                Stage::CreateUnsure => (BranchState::Creating, None, None),
                Stage::Cooling(_, since) => {
                    let left = cooldown.saturating_sub(now.since(*since));
                    (BranchState::Cooling, None, Some(left))
                }
                _ if releasing => (BranchState::Fenced, None, None),
                Stage::Made(_) | Stage::AssociateUnsure(_) => (BranchState::Created, None, None),
                Stage::Attached(_, id) => {
                    let state =
                        if holding.annotated { BranchState::Bound } else { BranchState::Attached };
                    (state, id.as_ref().map(ToString::to_string), None)
                }
            };
            let addresses = interface.map(|i| {
                let v4 = i.ipv4.map(|a| a.to_string());
                v4.into_iter().chain(i.ipv6.map(|a| a.to_string())).collect()
            });
            BranchReport {
                eni: interface.map(|i| i.eni.clone()),
                mac: interface.map(|i| i.mac),
                addresses: addresses.unwrap_or_default(),
                association,
                vlan: branch.vlan,
                state,
                health: health_of(branch, self.vlans.is_contested(branch.vlan)),
                cooling_left,
            }
        });
        let wait = match (&holding.wait, releasing) {
            (Some(wait), _) => Some(wait.clone()),
            (None, true) => Some(Wait::Release(Keep::NoAgentFacts)),
            (None, false) => None,
        };
        PodReport {
            pod: holding.pod.clone(),
            requested: holding.requested,
            odd_request: self.pods.get(&holding.pod.uid).and_then(|p| p.odd_request),
            branches: branches.collect(),
            wait: wait.map(|wait| (wait, now.since(holding.wait_since))),
            releasing,
            healing: !releasing && matches!(holding.wait, Some(Wait::Heal(_))) || mending,
            attempts: holding.attempt,
            age: now.since(holding.since),
        }
    }
}
