//! The evidence for one pod that is over.

use std::collections::{BTreeMap, BTreeSet};

use crate::fact::{
    AbsenceWindow, CgroupSeen, KubeletReleased, Over, ReleaseFacts, SandboxGone, Way,
};
use crate::id::{EniId, MacAddress, PodRef, PodUid, VlanId};
use crate::lock::{self, Lock};
use crate::message::OwnedBranch;
use crate::time::{Moment, Timing};
use crate::view::Look;

/// How far the evidence is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CaseState {
    /// The kubelet's UID of this (static) pod is unknown, so nothing can be concluded.
    KubeletUidUnknown,
    /// The pod's cgroup is awaited to go, or the slow way runs.
    KubeletHolds,
    /// The kubelet is done; a link is still there.
    LinkRemains,
    /// Complete.
    Complete(Way),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Case {
    pod: PodRef,
    over: Over,
    kubelet_uid: Option<PodUid>,
    window: Option<AbsenceWindow>,
    released: Option<KubeletReleased>,
    gone: BTreeMap<EniId, SandboxGone>,
    reported: Option<Moment>,
    /// The last look that could be judged agreed with what is on file.
    agreed: bool,
}

impl Case {
    pub(super) fn open(pod: PodRef, over: Over, kubelet_uid: Option<PodUid>) -> Self {
        Self {
            pod,
            over,
            kubelet_uid,
            window: None,
            released: None,
            gone: BTreeMap::new(),
            reported: None,
            agreed: false,
        }
    }

    pub(super) fn pod(&self) -> &PodRef {
        &self.pod
    }

    pub(super) fn kubelet_uid(&self) -> Option<&PodUid> {
        self.kubelet_uid.as_ref()
    }

    pub(super) fn not_reported(&mut self) {
        self.reported = None;
    }

    pub(super) fn state(&self, branches: usize) -> CaseState {
        match &self.released {
            _ if self.kubelet_uid.is_none() => CaseState::KubeletUidUnknown,
            None => CaseState::KubeletHolds,
            Some(_) if self.gone.len() < branches => CaseState::LinkRemains,
            Some(released) => CaseState::Complete(released.way()),
        }
    }

    /// Adds or withdraws evidence.
    pub(super) fn look(
        &mut self,
        seen: Option<&CgroupSeen>,
        owned: &[&OwnedBranch],
        look: &Look,
        timing: &Timing,
    ) {
        let Some(kubelet_uid) = self.kubelet_uid.clone() else {
            return;
        };
        match self.released.as_ref().map(|released| released.still_holds(&kubelet_uid, look)) {
            Some(Some(false)) => self.withdraw(),
            Some(None) => {
                self.agreed = false;
                return;
            }
            Some(Some(true)) | None => {}
        }
        let links: BTreeSet<(VlanId, MacAddress)> = owned.iter().map(|b| (b.vlan, b.mac)).collect();
        // The slow way rests on there being no link. One of a branch that was told later, or that came back, ends it.
        if self.released.as_ref().is_some_and(|r| r.way() == Way::Slow)
            && look.links.as_ref().is_ok_and(|l| links.iter().any(|(v, m)| l.has_branch(*v, *m)))
            && lock::holds(Lock::LinkGone)
        {
            self.withdraw();
        }
        if self.released.is_none() {
            self.window = match self.window.take() {
                Some(window) => window.extend(&links, look, timing),
                None => AbsenceWindow::begin(&self.over, &kubelet_uid, &links, look),
            };
            let assumed = (!lock::holds(Lock::CgroupWasSeen)).then(|| CgroupSeen {
                kubelet_uid: kubelet_uid.clone(),
                boot: look.boot.clone(),
                start: look.kubelet().unwrap_or(crate::id::KubeletStart(0)),
            });
            let fast = seen.or(assumed.as_ref()).and_then(|seen| {
                KubeletReleased::seen_and_gone(&self.over, seen, &kubelet_uid, look)
            });
            let slow =
                || self.window.as_ref().and_then(|w| KubeletReleased::slow(&self.over, w, timing));
            self.released = fast.or_else(slow);
        }
        let Some(released) = &self.released else {
            return;
        };
        self.gone = owned
            .iter()
            .filter_map(|b| SandboxGone::observe(released, &b.eni, b.vlan, b.mac, look))
            .map(|gone| (gone.eni().clone(), gone))
            .collect();
        self.agreed = true;
    }

    fn withdraw(&mut self) {
        self.window = None;
        self.released = None;
        self.gone.clear();
        self.reported = None;
        self.agreed = false;
    }

    /// The statement, if it is complete for all branches and due.
    pub(super) fn report(
        &mut self,
        branches: usize,
        timing: &Timing,
        now: Moment,
    ) -> Option<ReleaseFacts> {
        let released = self.released.as_ref().filter(|_| self.agreed)?;
        let due = self.reported.is_none_or(|at| now.has_passed(at, timing.repeat));
        if !due || self.gone.len() < branches {
            return None;
        }
        let gone: Vec<SandboxGone> = self.gone.values().cloned().collect();
        let facts = if gone.is_empty() {
            ReleaseFacts::without_branches(released)
        } else {
            ReleaseFacts::from_observed(&gone)?
        };
        self.reported = Some(now);
        Some(facts)
    }
}
