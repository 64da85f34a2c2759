//! What must never happen, and what must be reachable, told from the world's own state.

use trunkline_core::eni::{Ec2Answer, Ec2Reply};
use trunkline_core::fact::Way;
use trunkline_core::id::VlanId;

use super::{Asked, Call, Knows, Phase, Setup, World};

/// What must never happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// I1: a pod that the API server has, or whose containers run, keeps the ENI it was given, associated.
    LivePodKeepsEni,
    /// I1: containers that run on an ENI by its link keep it, whoever it belongs to.
    RunningLinkKeepsEni,
    /// I1: nothing is deleted for a pod that the API server has alive.
    DeletedOnlyIfOver,
    /// I2: a VLAN has one association, and rests before another pod gets it.
    VlanRests,
    /// I4: a pod has one ENI for each branch it asked for.
    OneEni,
    /// I4: an annotation that we write names an ENI that is bound to this pod and associated on that VLAN.
    AnnotationTrue,
    /// "Deleted" is said only where no ENI of that pod is left or can still appear.
    DeletedIsTrue,
    /// The cooldown passes between Disassociate and Delete.
    CooldownPasses,
}

impl Rule {
    /// All rules.
    pub const ALL: [Self; 8] = [
        Self::LivePodKeepsEni,
        Self::RunningLinkKeepsEni,
        Self::DeletedOnlyIfOver,
        Self::VlanRests,
        Self::OneEni,
        Self::AnnotationTrue,
        Self::DeletedIsTrue,
        Self::CooldownPasses,
    ];

    /// Short name.
    pub fn name(self) -> &'static str {
        match self {
            Self::LivePodKeepsEni => "live-pod-keeps-eni",
            Self::RunningLinkKeepsEni => "running-link-keeps-eni",
            Self::DeletedOnlyIfOver => "deleted-only-if-over",
            Self::VlanRests => "vlan-rests",
            Self::OneEni => "one-eni",
            Self::AnnotationTrue => "annotation-true",
            Self::DeletedIsTrue => "deleted-is-true",
            Self::CooldownPasses => "cooldown-passes",
        }
    }
}

/// What must be reachable: a rule that keeps everything is safe and useless.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Goal {
    /// A branch was deleted by way (a).
    ReclaimedSeen,
    /// By way (b), and its pod never had a cgroup.
    ReclaimedNeverStarted,
    /// By way (b) after a kubelet restart.
    ReclaimedAfterKubeletStart,
    /// By way (b) after a reboot.
    ReclaimedAfterReboot,
    /// By way (b) after the agent lost its journal.
    ReclaimedAgentForgot,
    /// Of a pod that ended and stays in the API.
    ReclaimedEnded,
    /// After a change of leader.
    ReclaimedNewTerm,
    /// A pod was given its branch.
    Served,
    /// A second pod was given a VLAN that another had.
    VlanHandedOn,
    /// A new mirror of a static pod took the ENI over.
    TakenOver,
    /// All branches of dead pods are gone and "deleted" was said.
    AllReclaimed,
}

impl Goal {
    /// All goals.
    pub const ALL: [Self; 11] = [
        Self::ReclaimedSeen,
        Self::ReclaimedNeverStarted,
        Self::ReclaimedAfterKubeletStart,
        Self::ReclaimedAfterReboot,
        Self::ReclaimedAgentForgot,
        Self::ReclaimedEnded,
        Self::ReclaimedNewTerm,
        Self::Served,
        Self::VlanHandedOn,
        Self::TakenOver,
        Self::AllReclaimed,
    ];

    /// Short name.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReclaimedSeen => "reclaimed-seen-and-gone",
            Self::ReclaimedNeverStarted => "reclaimed-never-started",
            Self::ReclaimedAfterKubeletStart => "reclaimed-after-kubelet-start",
            Self::ReclaimedAfterReboot => "reclaimed-after-reboot",
            Self::ReclaimedAgentForgot => "reclaimed-agent-forgot",
            Self::ReclaimedEnded => "reclaimed-ended",
            Self::ReclaimedNewTerm => "reclaimed-new-term",
            Self::Served => "served",
            Self::VlanHandedOn => "vlan-handed-on",
            Self::TakenOver => "taken-over",
            Self::AllReclaimed => "all-reclaimed",
        }
    }
}

/// Ticks that a VLAN rests.
const REST: u8 = 2;

impl World {
    pub(super) fn breaks(&mut self, rule: Rule) {
        self.notes.broken.insert(rule);
    }

    pub(super) fn reaches(&mut self, goal: Goal) {
        self.notes.reached.insert(goal);
    }

    /// What a call does is watched before it is done.
    pub(super) fn watch_call(&mut self, setup: &Setup, call: &Call) {
        match *call {
            Call::Disassociate { eni, pod, association, .. } => {
                let held = |e: &super::Eni| e.association.is_some_and(|(id, _)| id == association);
                if self.cloud.enis.values().any(held) {
                    self.notes.cut.insert(eni, self.tick);
                }
                if self.is_named_by_other(pod, eni) {
                    self.breaks(Rule::RunningLinkKeepsEni);
                }
                // The tag says whose it is.
                let owner = self.cloud.enis.get(&eni).and_then(|e| e.owner);
                if owner.is_some_and(|pod| self.api[usize::from(pod)].phase == Phase::Alive) {
                    self.breaks(Rule::LivePodKeepsEni);
                }
            }
            Call::Delete { eni, pod, way } => {
                if self.notes.cut.get(&eni).is_some_and(|at| self.tick < at + 1) {
                    self.breaks(Rule::CooldownPasses);
                }
                if self.api[usize::from(pod)].phase == Phase::Alive {
                    self.breaks(Rule::DeletedOnlyIfOver);
                }
                self.watch_reclaim(setup, pod, way);
            }
            _ => {}
        }
    }

    /// A live pod's annotation names the ENI, so that its sandbox may be given it.
    fn is_named_by_other(&self, pod: u8, eni: u8) -> bool {
        self.api.iter().enumerate().any(|(n, api)| {
            let text = api.annotation.as_deref().unwrap_or_default();
            usize::from(pod) != n
                && api.phase == Phase::Alive
                && super::leader::named(text).iter().any(|(named, _)| *named == eni)
        })
    }

    fn watch_reclaim(&mut self, setup: &Setup, pod: u8, way: Way) {
        let tenant = self.host.tenants.get(&Self::tenant_of(setup, pod));
        let started = tenant.is_some_and(|t| t.knows != Knows::Nothing && t.told.is_some());
        let slow = way == Way::Slow;
        let goals = [
            (Goal::ReclaimedSeen, !slow),
            (Goal::ReclaimedNeverStarted, slow && !started),
            (Goal::ReclaimedAfterKubeletStart, slow && self.notes.restarted),
            (Goal::ReclaimedAfterReboot, slow && self.notes.rebooted),
            (Goal::ReclaimedAgentForgot, slow && self.notes.agent_forgot),
            (Goal::ReclaimedEnded, self.api[usize::from(pod)].phase == Phase::Ended),
            (Goal::ReclaimedNewTerm, self.leader.epoch > 1),
        ];
        for (goal, _) in goals.into_iter().filter(|(_, reached)| *reached) {
            self.reaches(goal);
        }
    }

    /// What a call did.
    pub(super) fn watch_answer(
        &mut self,
        setup: &Setup,
        call: &Call,
        answer: &Ec2Answer,
        new: bool,
    ) {
        if let (Call::Associate { eni, vlan }, Ok(Ec2Reply::Associated(_)), true) =
            (call, answer, new)
        {
            let user = self.user_of(setup, *eni);
            if let Some((last, at)) = self.notes.used.get(vlan).copied()
                && last != user
            {
                if self.tick < at + REST {
                    self.breaks(Rule::VlanRests);
                } else {
                    self.reaches(Goal::VlanHandedOn);
                }
            }
        }
        if let (Call::Tag { owner: Some(_), .. }, Ok(_)) = (call, answer) {
            self.reaches(Goal::TakenOver);
        }
    }

    fn user_of(&self, setup: &Setup, eni: u8) -> u8 {
        let owner = self.cloud.enis.get(&eni).and_then(|e| e.owner);
        owner.map_or(u8::MAX, |pod| Self::tenant_of(setup, pod))
    }

    /// An annotation of ours lands on a pod.
    pub(super) fn watch_annotation(&mut self, setup: &Setup, pod: u8, named: &[(u8, VlanId)]) {
        for (eni, vlan) in named {
            let found = self.cloud.enis.get(eni);
            let right = found.is_some_and(|e| {
                e.owner == Some(pod) && e.association.is_some_and(|(_, v)| v == *vlan)
            });
            if !right {
                self.breaks(Rule::AnnotationTrue);
            }
            self.notes.given.insert(Self::tenant_of(setup, pod), *eni);
        }
        self.reaches(Goal::Served);
    }

    /// "Deleted" is said of a pod.
    pub(super) fn watch_deleted(&mut self, pod: u8) {
        let left = self.cloud.enis.values().any(|e| e.owner == Some(pod));
        let of_pod =
            |asked: &Asked| matches!(asked, Asked::Ec2(Call::Create { pod: p, .. }) if *p == pod);
        let comes = self.late.iter().any(|(_, asked)| of_pod(asked))
            || self.leader.pending.iter().any(|(_, asked)| of_pod(asked));
        if left || comes {
            self.breaks(Rule::DeletedIsTrue);
        }
        let dead = |owner: Option<u8>| {
            owner.is_some_and(|p| self.api[usize::from(p)].phase != Phase::Alive)
        };
        if !self.cloud.enis.values().any(|e| dead(e.owner)) {
            self.reaches(Goal::AllReclaimed);
        }
    }

    /// What is true now is compared with what has to be.
    pub(super) fn watch_state(&mut self, setup: &Setup) {
        let associated =
            |eni: &u8| self.cloud.enis.get(eni).is_some_and(|e| e.association.is_some());
        let alive = |tenant: u8| {
            let of = |n: usize| u8::try_from(n).is_ok_and(|n| Self::tenant_of(setup, n) == tenant);
            self.api.iter().enumerate().any(|(n, p)| of(n) && p.phase == Phase::Alive)
        };
        let mut lost = false;
        for (tenant, eni) in &self.notes.given {
            let runs = self.host.tenants.get(tenant).is_some_and(|t| t.runs);
            lost |= (runs || alive(*tenant)) && !associated(eni);
        }
        let cut = |t: &super::Tenant| {
            t.runs && t.sound && t.link.is_some_and(|(_, eni)| !associated(&eni))
        };
        let cut = self.host.tenants.values().any(cut);
        let mut branches = std::collections::BTreeSet::new();
        let twice = self
            .cloud
            .enis
            .values()
            .any(|e| e.owner.is_some() && !branches.insert((e.owner, e.index)));
        for (rule, broken) in
            [(Rule::LivePodKeepsEni, lost), (Rule::RunningLinkKeepsEni, cut), (Rule::OneEni, twice)]
        {
            if broken {
                self.breaks(rule);
            }
        }
        // A late DEL or create follows the link; what follows the association is the cooldown, a tick less.
        let mut users = vec![];
        for (n, eni) in &self.cloud.enis {
            users.extend(
                eni.association
                    .map(|(_, v)| (v, self.user_of(setup, *n), self.tick.saturating_sub(1))),
            );
        }
        for (n, tenant) in &self.host.tenants {
            users.extend(tenant.link.map(|(vlan, _)| (vlan, *n, self.tick)));
        }
        users.extend(self.host.strays.keys().map(|vlan| (*vlan, u8::MAX, self.tick)));
        for (vlan, user, at) in users {
            let used = self.notes.used.entry(vlan).or_insert((user, at));
            if used.0 != user || used.1 < at {
                *used = (user, at);
            }
        }
    }
}
