//! What a person is told by events, beyond what the steps themselves tell.
//!
//! A wait that a person has to act on is told at once, where it arises. The others pass by themselves, and most within a
//! moment; they are told once they have lasted [`Timing::told_after`](crate::time::Timing::told_after), so that every
//! stuck pod says why within half a minute (S81) and ordinary pods say nothing. Pods whose annotation stands are served
//! and not told of what only keeps the books from looking at them, such as a new leader's inventory.

use crate::id::PodUid;
use crate::time::Moment;
use crate::view::Pod;
use crate::wait::Wait;

use super::Node;
use super::event::{Effect, Notice, NoticeKind};
use super::holding::Holding;

impl Node {
    /// Tells about a holding's pod, once per distinct `key`; says whether it was told now.
    pub(super) fn notify(
        &mut self,
        uid: &PodUid,
        kind: NoticeKind,
        key: &str,
        message: String,
        out: &mut Vec<Effect>,
    ) -> bool {
        let Some(holding) = self.holdings.get_mut(uid) else {
            return false;
        };
        let new = holding.told.get(&kind).map(String::as_str) != Some(key);
        if new {
            holding.told.insert(kind, key.to_owned());
            out.push(Effect::Notify(Notice { pod: Some(holding.pod.clone()), kind, message }));
        }
        new
    }

    /// Tells of every pod in the view whose request is odd, once (T10).
    pub(super) fn tell_odd_requests(&mut self, now: Moment, out: &mut Vec<Effect>) {
        let is_odd = |pod: &Pod| pod.odd_request.filter(|_| !pod.phase.is_ended() && !pod.deleting);
        self.told_odd.retain(|uid, _| self.pods.get(uid).is_some_and(|p| is_odd(p).is_some()));
        for pod in self.pods.values() {
            if let Some(odd) = is_odd(pod)
                && !self.told_odd.contains_key(&pod.pod.uid)
            {
                self.told_odd.insert(pod.pod.uid.clone(), now);
                out.push(Effect::Notify(Notice {
                    pod: Some(pod.pod.clone()),
                    kind: NoticeKind::OddRequest,
                    message: odd.sentence().to_owned(),
                }));
            }
        }
    }

    /// The waits that are told once they have lasted, and when.
    pub(super) fn untold_waits(&self) -> impl Iterator<Item = (PodUid, Moment)> {
        self.holdings.values().filter_map(|holding| {
            let wait = holding.wait.as_ref()?;
            let told = holding.told.get(&NoticeKind::Waiting).map(String::as_str);
            let due = self.is_told_late(holding, wait) && told != Some(wait.name());
            due.then(|| (holding.pod.uid.clone(), holding.wait_since.plus(self.timing.told_after)))
        })
    }

    fn is_told_late(&self, holding: &Holding, wait: &Wait) -> bool {
        let passes = match wait {
            Wait::Call(_)
            | Wait::Inventory
            | Wait::Trunk(_)
            | Wait::PodView(_)
            | Wait::LinkView(_)
            | Wait::VlanHistory
            | Wait::LinkBarrier
            | Wait::Queued { .. }
            | Wait::VlansResting
            | Wait::PodUnverified(_)
            | Wait::Groups(_)
            | Wait::StaticPodUnknown
            | Wait::SubnetDiffers
            | Wait::ReadOnly => true,
            // Told at once, or nothing that a pod's user waits for.
            Wait::SlotsFull { .. }
            | Wait::MoreThanTrunk { .. }
            | Wait::Ec2(..)
            | Wait::PatchRefused(_)
            | Wait::AnnotationUnreadable(_)
            | Wait::AnnotationGhost(_)
            | Wait::AwaitsAdoption(_)
            | Wait::AsksNothing(_)
            | Wait::Terminating
            | Wait::Heal(_)
            | Wait::Release(_) => false,
        };
        let releasing = holding.release.is_some() || holding.is_cooling() || holding.stopped;
        let wants = |pod: &Pod| pod.annotation.is_none();
        passes && !releasing && self.pods.get(&holding.pod.uid).is_some_and(wants)
    }

    /// Tells of the waits that have lasted, once per reason.
    pub(super) fn tell_long_waits(&mut self, now: Moment, out: &mut Vec<Effect>) {
        let due: Vec<PodUid> =
            self.untold_waits().filter(|(_, at)| *at <= now).map(|(uid, _)| uid).collect();
        for uid in due {
            let Some(wait) = self.holdings.get(&uid).and_then(|h| h.wait.clone()) else {
                continue;
            };
            let mut message = wait.to_string();
            match (&wait, self.vlans.next_rested()) {
                (Wait::VlansResting, Some(left)) => {
                    let left = left.as_secs() + 1;
                    message = format!("{message}; the next one has rested in {left} s");
                }
                (Wait::Call(step), _) if step.asks_ec2() => {
                    message += "; calls take turns by EC2's request budget, `trunkline status` shows how many wait";
                }
                _ => {}
            }
            self.notify(&uid, NoticeKind::Waiting, wait.name(), message, out);
        }
    }
}
