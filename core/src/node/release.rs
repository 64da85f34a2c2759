//! Taking: from the agent's statement to a deleted ENI (design §4.3).
//!
//! Each round begins with our own live GET and a barrier, so that the verdict looks at fresh answers; one Disassociate
//! follows, and the next branch begins a new round. After the cooldown the GET is asked again and the verdict given
//! again before Delete. An alive answer is a veto: it is counted, the agent is told that its view is wrong, and the
//! statement is dropped. Nothing is ever forgotten: a refused call is asked again, with growing distance (`D16`, `D33`).

use std::collections::BTreeSet;

use crate::eni::Ec2Call;
use crate::fact::{BarrierReply, GoneBy, Over, OverKind, ReportedRelease};
use crate::fuse::FuseState;
use crate::id::{PodRef, PodUid};
use crate::lock::{self, Lock};
use crate::message::{Ack, ToAgent};
use crate::time::Moment;
use crate::verdict::{self, Ask as Question, Attached, Brake, Case, Keep, Verdict};
use crate::wait::{Step, Wait};

use super::allocate::association_call;
use super::event::{Answer, Basis, Effect, Lookup};
use super::holding::{About, Branch, Confirmed, Doubt, Holding, ReleaseCase, Stage};
use super::{Ask, Node, over_from};

impl Node {
    /// The agent states that a pod is over and nothing of it is left on the node.
    pub(super) fn on_release(
        &mut self,
        reported: ReportedRelease,
        now: Moment,
        out: &mut Vec<Effect>,
    ) {
        let uid = reported.facts().uid.clone();
        let knows_all = self.knows_all_enis() && self.dead.is_none();
        let Some(holding) = self.holdings.get_mut(&uid) else {
            let ack = if knows_all { Ack::Deleted } else { Ack::Received };
            self.ack(&uid, ack, out);
            return;
        };
        if holding.accepted.is_some() && !holding.holds_slot() {
            self.ack(&uid, Ack::Executing, out);
            return;
        }
        let same = holding.release.as_ref().is_some_and(|case| case.reported == reported);
        if !same {
            if holding.call.is_none() {
                holding.attempt = 0;
                holding.retry_at = None;
            }
            holding.release = Some(ReleaseCase {
                reported,
                stated: now,
                own: None,
                barrier: None,
                node_pace: false,
                cluster_pace: false,
            });
        }
        self.ack(&uid, Ack::Received, out);
    }

    pub(super) fn on_barrier(&mut self, reply: BarrierReply, out: &mut Vec<Effect>) {
        let asked =
            self.session.as_ref().and_then(|s| s.link_barrier).map(|(question, _)| question);
        if asked == Some(reply.question) {
            if let Some(session) = &mut self.session {
                session.link_barrier = None;
                session.links_confirmed = reply.vlans.is_some();
            }
            self.links_changed(&reply.vlans.unwrap_or_default(), out);
            return;
        }
        for holding in self.holdings.values_mut() {
            if let Some(case) = &mut holding.release
                && let Some((question, _, answer)) = &mut case.barrier
                && (*question == reply.question || !lock::holds(Lock::BarrierFresh))
            {
                *answer = Some(reply);
                return;
            }
        }
    }

    /// The next step of a release.
    pub(super) fn advance_release(
        &mut self,
        uid: &PodUid,
        now: Moment,
        out: &mut Vec<Effect>,
    ) -> Result<(), Wait> {
        self.forget_reservations(uid);
        if let Some(wait) = self.read_back(uid, now, out) {
            return Err(wait);
        }
        let Some(holding) = self.holdings.get(uid) else {
            return Ok(());
        };
        if holding.branches.is_empty() {
            return self.finish(uid, now, out);
        }
        if holding.release.is_none() || !holding.holds_slot() {
            return self.advance_delete(uid, now, out);
        }
        let outcome = self.advance_disassociate(uid, now, out);
        let cooldown = self.settings.cooldown;
        let idle = self
            .holdings
            .get(uid)
            .is_some_and(|h| h.is_free(now) && h.next_cooled(cooldown).is_some_and(|at| at <= now));
        // A branch that waits does not keep those that have cooled down.
        if idle { self.advance_delete(uid, now, out) } else { outcome }
    }

    /// Before anything is released, and once nothing new is made for the pod, it must be known what there is: a Create in
    /// doubt is read back by UID tag, an Associate in doubt by the ENI's id.
    pub(super) fn read_back(
        &mut self,
        uid: &PodUid,
        now: Moment,
        out: &mut Vec<Effect>,
    ) -> Option<Wait> {
        let holding = self.holdings.get_mut(uid)?;
        let doubtful = |b: &Branch| match b.stage {
            Stage::CreateUnsure | Stage::AssociateUnsure(_) => true,
            Stage::Made(_) => b.maybe_associated.is_some() || b.doubt.is_some(),
            _ => b.doubt.is_some(),
        };
        if !lock::holds(Lock::ReadBack) {
            holding.branches.retain(|_, b| b.stage != Stage::CreateUnsure);
            for branch in holding.branches.values_mut() {
                if let Stage::AssociateUnsure(interface) = &branch.stage {
                    branch.stage = Stage::Made(interface.clone());
                }
                branch.maybe_associated = None;
                branch.doubt = None;
            }
        }
        let (index, branch) = holding.branches.iter_mut().find(|(_, b)| doubtful(b))?;
        let index = *index;
        match branch.interface().cloned() {
            Some(interface) => {
                let eni = interface.eni.clone();
                if let Stage::AssociateUnsure(_) = branch.stage {
                    branch.maybe_associated.get_or_insert(now);
                }
                branch.stage = Stage::Made(interface);
                Some(self.call(uid, Step::Describe, index, Ec2Call::Describe(eni), out))
            }
            None => {
                branch.doubt = Some(Doubt::or_new(branch.doubt, About::Lag, now));
                Some(self.call(uid, Step::ReadBack, index, Ec2Call::FindByUid(uid.clone()), out))
            }
        }
    }

    fn advance_disassociate(
        &mut self,
        uid: &PodUid,
        now: Moment,
        out: &mut Vec<Effect>,
    ) -> Result<(), Wait> {
        let session = self.current_session();
        let Some(case) = self.holdings.get(uid).and_then(|h| h.release.as_ref()) else {
            return Ok(());
        };
        if !verdict::is_current(&case.reported, Some(self.term), session.as_ref()) {
            return Err(Wait::Release(Keep::FactsOutdated));
        }
        if let Brake::On(why) = self.brake() {
            return Err(Wait::Release(why));
        }
        let Some(own) = case.own.clone().or_else(|| unasked(Lock::OwnGet, uid, now)) else {
            return Err(self.confirm(uid, false, out));
        };
        self.keep_pace(uid, now, out)?;
        self.read_association(uid, out)?;
        let reply =
            if lock::holds(Lock::BarrierAsked) { Some(self.barrier(uid, now, out)?) } else { None };
        let Some((index, verdict)) =
            self.judge_disassociate(uid, session.as_ref(), &own.over, reply.as_ref())
        else {
            return Ok(());
        };
        match verdict {
            Verdict::Permit(permit) => {
                let proof = permit.proof().clone();
                self.set(uid, |h| {
                    h.accepted = h.to_accept();
                    if let Some(case) = &mut h.release {
                        let (stated, rv) = (case.stated, own.rv);
                        h.basis = Some(Basis { proof, stated, rv, permitted: now });
                        case.own = None;
                        case.barrier = None;
                    }
                });
                Err(self.call(uid, Step::Disassociate, index, Ec2Call::Release(permit), out))
            }
            Verdict::Accept => {
                self.set(uid, |h| h.accepted = h.to_accept());
                self.cool(uid, index, now);
                self.advance_release(uid, now, out)
            }
            Verdict::Keep(Keep::BarrierDisagrees) => {
                self.set(uid, Holding::withdraw_release);
                Err(Wait::Release(Keep::BarrierDisagrees))
            }
            Verdict::Keep(why) => {
                self.restart_round(uid);
                self.back_off(uid, now);
                Err(Wait::Release(why))
            }
        }
    }

    /// The verdict on the first branch that still takes a slot.
    fn judge_disassociate(
        &self,
        uid: &PodUid,
        session: Option<&verdict::CurrentSession>,
        own: &Over,
        reply: Option<&(u64, BarrierReply)>,
    ) -> Option<(u8, Verdict)> {
        let holding = self.holdings.get(uid)?;
        let (index, branch) = holding.branches.iter().find(|(_, b)| b.takes_slot())?;
        let interface = branch.interface()?;
        let association = match &branch.stage {
            Stage::Attached(_, Some(id)) => Attached::By(id),
            Stage::Made(_) if branch.maybe_associated.is_none() => Attached::Never,
            _ => Attached::Unread,
        };
        let verdict = verdict::judge(&Case {
            eni: &interface.eni,
            uid,
            tag: &interface.uid_tag,
            term: Some(self.term),
            reported: holding.release.as_ref().map(|case| &case.reported),
            own: Some(own),
            named: self.named_elsewhere(uid, &interface.eni, false),
            brake: self.brake(),
            ask: Question::Disassociate {
                association,
                session,
                barrier: reply.map(|(question, reply)| (*question, reply)),
            },
        });
        Some((*index, verdict))
    }

    fn advance_delete(
        &mut self,
        uid: &PodUid,
        now: Moment,
        out: &mut Vec<Effect>,
    ) -> Result<(), Wait> {
        let cooldown = self.settings.cooldown;
        let Some(holding) = self.holdings.get(uid) else {
            return Ok(());
        };
        let coolest = holding.branches.iter().find_map(|(index, b)| match b.stage {
            Stage::Cooling(_, since)
                if now.has_passed(since, cooldown) || !lock::holds(Lock::Cooldown) =>
            {
                Some((*index, since))
            }
            _ => None,
        });
        let Some((index, since)) = coolest else {
            let cooling = holding.is_cooling();
            return Err(Wait::Release(if cooling { Keep::Cooling } else { Keep::NoAgentFacts }));
        };
        if let Brake::On(why) = self.brake() {
            return Err(Wait::Release(why));
        }
        let own = holding.confirmed.clone().or_else(|| unasked(Lock::SecondJudgement, uid, now));
        let Some(own) = own else {
            return Err(self.confirm(uid, true, out));
        };
        let Some(interface) = holding.branches.get(&index).and_then(Branch::interface).cloned()
        else {
            return Ok(());
        };
        let eni = interface.eni.clone();
        let stated = holding.accepted.as_ref().map_or(now, |accepted| accepted.stated);
        let verdict = verdict::judge(&Case {
            eni: &eni,
            uid,
            tag: &interface.uid_tag,
            term: Some(self.term),
            reported: holding.accepted.as_ref().map(|accepted| &accepted.reported),
            own: Some(&own.over),
            named: self.named_elsewhere(uid, &eni, true),
            brake: self.brake(),
            ask: Question::Delete { since: Some(since), cooldown, now },
        });
        self.set(uid, |h| h.confirmed = None);
        match verdict {
            Verdict::Permit(permit) => {
                let proof = permit.proof().clone();
                let basis = Basis { proof, stated, rv: own.rv, permitted: now };
                self.set(uid, |h| h.basis = Some(basis));
                Err(self.call(uid, Step::Delete, index, Ec2Call::Release(permit), out))
            }
            Verdict::Keep(why) => {
                self.back_off(uid, now);
                Err(Wait::Release(why))
            }
            Verdict::Accept => Ok(()),
        }
    }

    // === the pieces of a round ===

    fn confirm(&mut self, uid: &PodUid, delete: bool, out: &mut Vec<Effect>) -> Wait {
        let op = self.ask(uid.clone(), Ask::Confirm(delete));
        if let Some(holding) = self.holdings.get_mut(uid) {
            holding.call = Some(op);
            out.push(Effect::GetPod(op, holding.pod.clone()));
        }
        Wait::Release(Keep::NotConfirmed)
    }

    /// Our own live GET for a release was answered.
    pub(super) fn on_confirmed(
        &mut self,
        uid: &PodUid,
        delete: bool,
        answer: Answer,
        now: Moment,
        out: &mut Vec<Effect>,
    ) {
        let (Answer::Pod(lookup), Some(holding)) = (answer, self.holdings.get_mut(uid)) else {
            return;
        };
        match (over_from(&holding.pod, &lookup, now), lookup) {
            (Some(over), lookup) => {
                let rv = match lookup {
                    Lookup::Found(_, rv) => Some(rv),
                    Lookup::NotFound(_) | Lookup::Unknown(_) => None,
                };
                holding.attempt = 0;
                holding.retry_at = None;
                holding.stopped |= matches!(over, Over::Ended(_));
                let confirmed = Some(Confirmed { over, rv });
                match &mut holding.release {
                    _ if delete => holding.confirmed = confirmed,
                    Some(case) => case.own = confirmed,
                    None => {}
                }
            }
            (None, Lookup::Found(..)) => {
                holding.withdraw_release();
                holding.wait = Some(Wait::Release(Keep::PodAlive));
                let pod = holding.pod.clone();
                self.veto(pod, now, out);
                self.send(ToAgent::Alive(uid.clone()), out);
                self.back_off(uid, now);
            }
            (None, _) => self.back_off(uid, now),
        }
    }

    /// The agent was contradicted. Enough of that freezes these books at once; nobody has to be asked for it.
    fn veto(&mut self, pod: PodRef, now: Moment, out: &mut Vec<Effect>) {
        let enough = self.vetoes.count(pod.uid.clone(), now);
        let froze = enough.filter(|_| self.fuse != FuseState::NodeBlown);
        if froze.is_some() {
            self.fuse = FuseState::NodeBlown;
        }
        out.push(Effect::Vetoed { pod, froze });
    }

    pub(super) fn brake(&self) -> Brake {
        if self.settings.no_release || self.settings.read_only {
            return Brake::On(Keep::ModeForbids);
        }
        self.fuse.keep().map_or(Brake::Off, Brake::On)
    }

    /// A release that no watch event announced takes a place in the node's and the cluster's pace.
    fn keep_pace(&mut self, uid: &PodUid, now: Moment, out: &mut Vec<Effect>) -> Result<(), Wait> {
        let Some(case) = self.holdings.get(uid).and_then(|h| h.release.as_ref()) else {
            return Ok(());
        };
        if case.cluster_pace || case.reported.facts().over != OverKind::Gone(GoneBy::Coordinator) {
            return Ok(());
        }
        if !case.node_pace {
            let branches = self.holdings.values().map(|h| h.branches.len()).sum();
            if let Err(next) = self.pace.take(branches, now) {
                self.set(uid, |h| h.retry_at = Some(next));
                return Err(Wait::Release(Keep::Paced));
            }
            self.set(uid, |h| h.release.iter_mut().for_each(|case| case.node_pace = true));
        }
        let op = self.open_step(uid, Step::Pace, 0);
        out.push(Effect::AskPace(op));
        Err(Wait::Release(Keep::Paced))
    }

    pub(super) fn on_pace(&mut self, uid: &PodUid, granted: Result<(), Moment>, now: Moment) {
        let soonest = now.plus(self.timing.retry_base);
        self.set(uid, |h| match (granted, &mut h.release) {
            (Ok(()), Some(case)) => case.cluster_pace = true,
            (Err(next), _) => h.retry_at = Some(next.max(soonest)),
            (Ok(()), None) => {}
        });
    }

    /// Finds the association id out where it is not known.
    fn read_association(&mut self, uid: &PodUid, out: &mut Vec<Effect>) -> Result<(), Wait> {
        let Some(holding) = self.holdings.get(uid) else {
            return Ok(());
        };
        let unread = |b: &&Branch| matches!(b.stage, Stage::Attached(_, None));
        let Some((index, branch)) = holding.branches.iter().find(|(_, b)| unread(b)) else {
            return Ok(());
        };
        let call = self.trunk.as_ref().ok().and_then(|t| association_call(holding, branch, t));
        if let Some((step, call)) = call {
            self.call(uid, step, *index, call, out);
        }
        Err(Wait::Release(Keep::AssociationUnknown))
    }

    /// The reply to this round's barrier, asking for it where that was not done or took too long. A reply that lay about
    /// (a brake was on, a call was open) is as good as none: what was gone then may be back.
    fn barrier(
        &mut self,
        uid: &PodUid,
        now: Moment,
        out: &mut Vec<Effect>,
    ) -> Result<(u64, BarrierReply), Wait> {
        let timeout = self.timing.barrier_timeout;
        let Some(case) = self.holdings.get_mut(uid).and_then(|h| h.release.as_mut()) else {
            return Err(Wait::Release(Keep::NoAgentFacts));
        };
        match &case.barrier {
            Some((question, asked, reply))
                if !now.has_passed(*asked, timeout) || !lock::holds(Lock::BarrierFresh) =>
            {
                let reply = reply.clone().ok_or(Wait::Release(Keep::BarrierAwaited))?;
                return Ok((*question, reply));
            }
            Some(_) => {
                // Too late: the GET is old by now, too.
                case.own = None;
                case.barrier = None;
                return Err(self.confirm(uid, false, out));
            }
            None => {}
        }
        self.next_op += 1;
        case.barrier = Some((self.next_op, now, None));
        out.push(Effect::Send(ToAgent::Barrier {
            question: self.next_op,
            uids: BTreeSet::from([uid.clone()]),
        }));
        Err(Wait::Release(Keep::BarrierAwaited))
    }

    fn restart_round(&mut self, uid: &PodUid) {
        self.set(uid, |h| {
            if let Some(case) = &mut h.release {
                case.own = None;
                case.barrier = None;
            }
        });
    }

    /// What a coordinator does that undoes a step whose reply was lost: the ENI that the step may have announced is cut
    /// off, and the next attempt makes another.
    #[cfg(feature = "weaken")]
    pub(super) fn undo(&mut self, uid: &PodUid, now: Moment, out: &mut Vec<Effect>) {
        let (term, epoch) = (self.term, self.term.epoch);
        let facts = crate::fact::ReleaseFacts {
            uid: uid.clone(),
            over: OverKind::Ended,
            way: crate::fact::Way::SeenAndGone,
            boot: "undo".parse().unwrap_or_else(|_| unreachable!("a valid id")),
            start: crate::id::KubeletStart(0),
            enis: BTreeSet::new(),
        };
        let origin = crate::fact::Origin {
            session: "undo".parse().unwrap_or_else(|_| unreachable!("a valid id")),
            epoch,
            nonce: term.nonce,
        };
        let reported = ReportedRelease::received(facts, origin);
        let Some(own) = unasked(Lock::NoUndo, uid, now) else { return };
        let Some(holding) = self.holdings.get_mut(uid) else { return };
        let mut calls = Vec::new();
        for branch in holding.branches.values_mut() {
            if let Stage::Attached(interface, Some(id)) = &branch.stage {
                let permit = verdict::undo(&interface.eni, uid, epoch, id, &reported, &own.over);
                calls.push(Ec2Call::Release(permit));
                branch.renew();
            }
        }
        for call in calls {
            // Nobody waits for the answer.
            let op = self.ask(uid.clone(), Ask::Holding(Step::Verify, u8::MAX));
            out.push(Effect::Call(op, call));
        }
    }
}

/// What stands in for our own live GET where its rule was taken out; `None` in every build that ships.
fn unasked(rule: Lock, uid: &PodUid, now: Moment) -> Option<Confirmed> {
    (!lock::holds(rule)).then(|| Confirmed {
        over: Over::Gone(crate::fact::PodGone::from_coordinator(uid.clone(), now)),
        rv: None,
    })
}
