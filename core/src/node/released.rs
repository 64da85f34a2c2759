//! What becomes of a release: the answer to a Disassociate or Delete, the cooldown, and the end of a pod's books.

use crate::eni::{Ec2Answer, Ec2Reply, FailureClass};
use crate::fact::Way;
use crate::id::PodUid;
use crate::message::Ack;
use crate::time::Moment;
use crate::wait::{Step, Wait};

use super::Node;
use super::event::{Effect, NoticeKind, Released, shows_all};
use super::holding::Stage;

impl Node {
    pub(super) fn on_released(
        &mut self,
        uid: &PodUid,
        index: u8,
        step: Step,
        answer: Ec2Answer,
        now: Moment,
        out: &mut Vec<Effect>,
    ) {
        let Some(holding) = self.holdings.get(uid) else {
            return;
        };
        let Some(branch) = holding.branches.get(&index) else {
            return;
        };
        let (pod, vlan, eni) = (holding.pod.clone(), branch.vlan, branch.eni().cloned());
        let basis = holding.basis.clone();
        match answer {
            Ok(Ec2Reply::Disassociated) => self.cool(uid, index, now),
            Ok(Ec2Reply::Deleted) => {
                self.set(uid, |h| {
                    h.branches.remove(&index);
                    h.attempt = 0;
                    h.retry_at = None;
                });
                self.deleted.extend(eni.clone().map(|eni| (eni, now)));
            }
            Ok(_) => return,
            Err(failure) => {
                self.back_off(uid, now);
                if failure.class != FailureClass::Fenced {
                    self.set(uid, |h| {
                        h.wait = Some(Wait::Ec2(step, failure.class, failure.told()));
                    });
                }
                if needs_a_person(failure.class) {
                    let (step, class) = (step.name(), failure.class.name());
                    let message =
                        format!("{step} failed: {failure}; the ENI is kept and it is tried again");
                    let key = format!("{step}/{class}");
                    self.notify(uid, NoticeKind::ReleaseFailed, &key, message, out);
                }
                return;
            }
        }
        if let Some(eni) = eni {
            out.push(Effect::Released(Released { eni, pod, vlan, step, basis }));
        }
        self.ack(uid, Ack::Executing, out);
    }

    /// The slot is free, the VLAN rests, the cooldown runs.
    pub(super) fn cool(&mut self, uid: &PodUid, index: u8, now: Moment) {
        let Some(holding) = self.holdings.get_mut(uid) else {
            return;
        };
        let unseen = holding.accepted.as_ref().is_none_or(|a| a.reported.facts().way == Way::Slow);
        holding.attempt = 0;
        holding.retry_at = None;
        let Some(branch) = holding.branches.get_mut(&index) else {
            return;
        };
        if let Some(interface) = branch.interface().cloned() {
            branch.stage = Stage::Cooling(interface, now);
            let vlan = branch.vlan;
            self.vlans.release(vlan, unseen);
        }
    }

    /// Nothing is left in the books for this UID. "Deleted" is said only once it can be known (design §4.1).
    pub(super) fn finish(
        &mut self,
        uid: &PodUid,
        now: Moment,
        out: &mut Vec<Effect>,
    ) -> Result<(), Wait> {
        if !self.knows_all_enis() {
            let at = shows_all(self.began, &self.timing).max(now.plus(self.timing.retry_base));
            self.set(uid, |h| h.retry_at = Some(at));
            return Err(Wait::Inventory);
        }
        self.ack(uid, Ack::Deleted, out);
        self.holdings.remove(uid);
        Ok(())
    }
}

/// Refusals of a release that do not pass by themselves.
fn needs_a_person(class: FailureClass) -> bool {
    matches!(
        class,
        FailureClass::Unauthorised
            | FailureClass::Credentials
            | FailureClass::Configuration
            | FailureClass::Malformed
            | FailureClass::Unrecognised
    )
}
