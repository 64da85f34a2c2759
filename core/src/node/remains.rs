//! What is left of a dead instance (design §4.4, first row).
//!
//! Once the instance is proved dead nothing is given any more and nothing is repaired: the books of its pods are closed one by
//! one, each as soon as no call of it is open, and what they had in EC2 is cleared away ENI by ENI, together with what
//! was never tagged for a pod. Before each Delete the ENI is described by its id, and the verdict looks at that answer;
//! so an ENI is handled once (T9), and one that turns up later, because a call that was under way made it, comes with
//! the next inventory. A Create in doubt is not read back for the same reason. Nothing is disassociated: the
//! association ends with the machine, and where the trunk is left, a branch of it can be deleted as it is.

use std::collections::BTreeSet;

use crate::dead::InstanceDead;
use crate::eni::{Ec2Answer, Ec2Call, Ec2Reply, FailureClass};
use crate::id::{EniId, PodRef, VlanId};
use crate::time::Moment;
use crate::verdict::{DeadCase, Keep, judge_dead};
use crate::wait::{Step, Wait};

use super::Node;
use super::event::{Cleared, Effect, Notice, NoticeKind, OpId};
use super::holding::Stage;

/// An ENI of a dead instance.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Remain {
    /// Its pod, as far as its tags told.
    pub(super) pod: Option<PodRef>,
    pub(super) vlan: Option<VlanId>,
    pub(super) since: Moment,
    /// When it was disassociated, if that was done in this term.
    cooling: Option<Moment>,
    call: Option<(OpId, Step)>,
    attempt: u32,
    retry_at: Option<Moment>,
    pub(super) wait: Wait,
    told: bool,
}

impl Remain {
    fn new(pod: Option<PodRef>, vlan: Option<VlanId>, now: Moment) -> Self {
        Self {
            pod,
            vlan,
            since: now,
            cooling: None,
            call: None,
            attempt: 0,
            retry_at: None,
            wait: Wait::Release(Keep::NotDescribed),
            told: false,
        }
    }
}

impl Node {
    /// The instance is dead. Comes again with every look; the first proof stays.
    pub(super) fn on_dead(&mut self, dead: InstanceDead) {
        self.dead.get_or_insert(dead);
    }

    /// Closes what can be closed and takes the next step for every ENI that is left.
    pub(super) fn clear_remains(&mut self, now: Moment, out: &mut Vec<Effect>) {
        self.deleted.retain(|_, at| !now.has_passed(*at, self.timing.ec2_list_window));
        self.close_holdings(now);
        for (eni, (record, vlan)) in std::mem::take(&mut self.strangers) {
            let remain = Remain::new(record.tags.bound_pod(), vlan, now);
            self.remains.entry(eni).or_insert(remain);
        }
        let cooldown = self.settings.cooldown;
        let due: Vec<EniId> = self
            .remains
            .iter()
            .filter(|(_, r)| r.call.is_none() && r.retry_at.is_none_or(|at| at <= now))
            .filter(|(_, r)| r.cooling.is_none_or(|since| now.has_passed(since, cooldown)))
            .map(|(eni, _)| eni.clone())
            .collect();
        for eni in due {
            // Whatever would forbid the Delete makes the question needless.
            let why = self.judge_remain(&eni, None, now).err();
            match why {
                Some(Keep::NotDescribed) => {
                    self.call_remain(&eni, Step::Describe, Ec2Call::Describe(eni.clone()), out);
                }
                Some(why) => self.keep_remain(&eni, Wait::Release(why), now, out),
                None => {}
            }
        }
    }

    /// Ends the books of every pod that no call is open for; its ENIs are what is left.
    fn close_holdings(&mut self, now: Moment) {
        let open = |h: &super::holding::Holding| h.call.is_some() || h.handing_over;
        let closed: BTreeSet<_> =
            self.holdings.iter().filter(|(_, h)| !open(h)).map(|(uid, _)| uid.clone()).collect();
        for uid in closed {
            let Some(holding) = self.holdings.remove(&uid) else { continue };
            for branch in holding.branches.into_values() {
                self.vlans.release(branch.vlan, true);
                let Some(eni) = branch.eni().cloned() else { continue };
                let mut remain = Remain::new(Some(holding.pod.clone()), Some(branch.vlan), now);
                if let Stage::Cooling(_, since) = branch.stage {
                    remain.cooling = Some(since);
                    remain.wait = Wait::Release(Keep::Cooling);
                }
                self.remains.entry(eni).or_insert(remain);
            }
        }
    }

    fn judge_remain(
        &self,
        eni: &EniId,
        record: Option<&crate::eni::EniRecord>,
        now: Moment,
    ) -> Result<crate::verdict::DeletePermit, Keep> {
        judge_dead(&DeadCase {
            eni,
            record,
            dead: self.dead.as_ref(),
            connected: self.session.is_some(),
            term: Some(self.term),
            brake: self.brake(),
            since: self.remains.get(eni).and_then(|r| r.cooling),
            cooldown: self.settings.cooldown,
            now,
        })
    }

    fn call_remain(&mut self, eni: &EniId, step: Step, call: Ec2Call, out: &mut Vec<Effect>) {
        self.next_op += 1;
        let op = OpId(self.next_op);
        if let Some(remain) = self.remains.get_mut(eni) {
            remain.call = Some((op, step));
            remain.wait = Wait::Call(step);
            out.push(Effect::Call(op, call));
        }
    }

    /// The answer to a call for one of them; `false` if the operation is not such a call.
    pub(super) fn on_remain_answer(
        &mut self,
        op: OpId,
        answer: Option<&Ec2Answer>,
        now: Moment,
        out: &mut Vec<Effect>,
    ) -> bool {
        let asked = self.remains.iter_mut().find_map(|(eni, remain)| {
            let (_, step) = remain.call.take_if(|(open, _)| *open == op)?;
            Some((eni.clone(), step))
        });
        let Some((eni, step)) = asked else {
            return false;
        };
        match (step, answer) {
            (Step::Describe, Some(Ok(Ec2Reply::Described(record)))) => {
                match self.judge_remain(&eni, Some(record), now) {
                    Ok(permit) => {
                        self.call_remain(&eni, Step::Delete, Ec2Call::Release(permit), out);
                    }
                    Err(why) => self.keep_remain(&eni, Wait::Release(why), now, out),
                }
            }
            // It is no longer there to be deleted. An inventory that shows it brings it back.
            (Step::Describe, Some(Err(failure))) if failure.class == FailureClass::NotFound => {
                self.remains.remove(&eni);
            }
            (Step::Delete, Some(Ok(Ec2Reply::Deleted))) => {
                if let Some(remain) = self.remains.remove(&eni) {
                    self.deleted.insert(eni.clone(), now);
                    out.extend(self.dead.clone().map(|dead| {
                        Effect::Cleared(Cleared { eni, pod: remain.pod, vlan: remain.vlan, dead })
                    }));
                }
            }
            (step, Some(Err(failure))) => {
                let wait = Wait::Ec2(step, failure.class, failure.told());
                self.keep_remain(&eni, wait, now, out);
            }
            _ => self.keep_remain(&eni, Wait::Release(Keep::NotDescribed), now, out),
        }
        true
    }

    /// It stays until the next try, and a person is told once why.
    fn keep_remain(&mut self, eni: &EniId, wait: Wait, now: Moment, out: &mut Vec<Effect>) {
        let (base, cap) = (self.timing.retry_base, self.timing.retry_cap);
        let Some(remain) = self.remains.get_mut(eni) else { return };
        if remain.wait.name() != wait.name()
            && let Wait::Release(why) = &wait
        {
            out.push(Effect::Kept(*why));
        }
        let delay = base.saturating_mul(1 << remain.attempt.min(16)).min(cap);
        remain.attempt = remain.attempt.saturating_add(1);
        remain.retry_at = Some(now.plus(delay));
        let lasts = now.has_passed(remain.since, self.timing.told_after);
        if lasts && !std::mem::replace(&mut remain.told, true) {
            out.push(Effect::Notify(Notice {
                pod: None,
                kind: NoticeKind::RemainsKept,
                message: format!("{eni} of the dead instance is still there: {wait}"),
            }));
        }
        remain.wait = wait;
    }

    /// When the next one is due.
    pub(super) fn remain_wakes(&self) -> impl Iterator<Item = Moment> {
        let cooldown = self.settings.cooldown;
        self.remains
            .values()
            .filter(|r| r.call.is_none())
            .flat_map(move |r| [r.retry_at, r.cooling.map(|since| since.plus(cooldown))])
            .flatten()
    }
}
