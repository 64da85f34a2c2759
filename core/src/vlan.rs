//! VLAN books of one trunk (design §4.5).
//!
//! A VLAN that was used rests before it is handed out again: a CNI DEL of the old pod that comes late removes the link
//! of that *name*, whoever owns it by then, and a create that was in flight makes it. Rest counts only while the node's
//! views are valid, the longest rested goes first, and a VLAN whose link exists although nobody owns it is kept aside
//! until the link is gone and then rests.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::id::VlanId;
use crate::lock::{self, Lock};
use crate::time::Moment;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Slot {
    /// Held by so many branches; more than one is a contradiction that is kept.
    Held(u32),
    /// Resting since this much valid time; `unseen`: its link may never have been seen.
    Resting { since: Duration, unseen: bool },
    /// A link of it exists, nobody owns it.
    Aside,
}

/// Why a VLAN that no branch has is not handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WhyKept {
    /// It rests after its last use.
    Used,
    /// It rests, and its link was never seen: it is handed out after the ordinary rest only if no other is free.
    Unseen,
    /// A link of it exists, nobody owns it.
    StrayLink,
    /// A pod's annotation names it.
    Annotated,
}

impl WhyKept {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Used, Self::Unseen, Self::StrayLink, Self::Annotated];

    /// Short name for the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Used => "used",
            Self::Unseen => "link-never-seen",
            Self::StrayLink => "stray-link",
            Self::Annotated => "annotated",
        }
    }

    /// What a person is told.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Used => "it rests after its last use, counted while the node's views are valid",
            Self::Unseen => {
                "it rests after a use whose link was never seen; a create may still be in flight on the node, so others go first"
            }
            Self::StrayLink => {
                "a link of it exists on the node and no branch of this trunk has it; it rests once the link is gone"
            }
            Self::Annotated => "a pod's annotation names it",
        }
    }
}

/// A VLAN that no branch has and that is not handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeptVlan {
    /// Which.
    pub vlan: VlanId,
    /// How long it has rested, counted while the views are valid; `None` where it does not rest.
    pub rested: Option<Duration>,
    /// How much longer it rests at least, if the views stay valid; `None` where that does not depend on time.
    pub left: Option<Duration>,
    /// Why.
    pub why: WhyKept,
}

/// The VLANs of one trunk. An id without entry was never used.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct VlanBooks {
    rest: Duration,
    rest_unseen: Duration,
    /// How long the node's views were valid, in all.
    valid_time: Duration,
    /// When valid time was last counted, while the views are valid.
    counting: Option<Moment>,
    slots: BTreeMap<VlanId, Slot>,
}

impl VlanBooks {
    /// Empty books: every VLAN is unused.
    pub fn new(rest: Duration, rest_unseen: Duration) -> Self {
        Self {
            rest,
            rest_unseen,
            valid_time: Duration::ZERO,
            counting: None,
            slots: BTreeMap::new(),
        }
    }

    /// Changes the rest; applies to VLANs that rest already.
    pub fn set_rest(&mut self, rest: Duration, rest_unseen: Duration) {
        self.rest = rest;
        self.rest_unseen = rest_unseen;
    }

    /// Counts time; `valid` says whether the node's views are valid from now on.
    pub fn tick(&mut self, now: Moment, valid: bool) {
        if let Some(last) = self.counting {
            self.valid_time = self.valid_time.saturating_add(now.since(last));
        }
        self.counting = valid.then_some(now);
    }

    /// A branch holds this VLAN.
    pub fn hold(&mut self, vlan: VlanId) {
        let held = match self.slots.get(&vlan) {
            Some(Slot::Held(n)) => n.saturating_add(1),
            _ => 1,
        };
        self.slots.insert(vlan, Slot::Held(held));
    }

    /// A branch that was associated, or may have been, no longer holds it: it rests.
    pub fn release(&mut self, vlan: VlanId, unseen: bool) {
        match self.slots.get(&vlan) {
            Some(Slot::Held(n)) if *n > 1 => {
                self.slots.insert(vlan, Slot::Held(n - 1));
            }
            _ => {
                self.slots.remove(&vlan);
                self.rest(vlan, unseen);
            }
        }
    }

    /// A reservation that was never used ends: nothing has to rest.
    pub fn cancel(&mut self, vlan: VlanId) {
        match self.slots.get(&vlan) {
            Some(Slot::Held(n)) if *n > 1 => {
                self.slots.insert(vlan, Slot::Held(n - 1));
            }
            Some(Slot::Held(_)) => {
                self.slots.remove(&vlan);
            }
            _ => {}
        }
    }

    /// The VLAN begins to rest anew, unless it is held. What is said of a rest that goes on does not shorten it.
    pub fn rest(&mut self, vlan: VlanId, unseen: bool) {
        let unseen = match self.slots.get(&vlan) {
            Some(Slot::Held(_)) => return,
            Some(Slot::Resting { unseen: before, .. }) => unseen || *before,
            Some(Slot::Aside) | None => unseen,
        };
        self.slots.insert(vlan, Slot::Resting { since: self.valid_time, unseen });
    }

    /// Every VLAN that nobody holds begins to rest anew: nobody knows which were used of late.
    pub fn rest_all_unheld(&mut self) {
        for vlan in VlanId::all() {
            self.rest(vlan, false);
        }
    }

    /// Somebody holds it.
    pub fn is_held(&self, vlan: VlanId) -> bool {
        matches!(self.slots.get(&vlan), Some(Slot::Held(_)))
    }

    /// More than one branch holds it.
    pub fn is_contested(&self, vlan: VlanId) -> bool {
        matches!(self.slots.get(&vlan), Some(Slot::Held(n)) if *n > 1)
    }

    /// Compares with the links that exist. Returns the VLANs that have a link without owner and were not known to.
    pub fn links(&mut self, present: &BTreeSet<VlanId>) -> Vec<VlanId> {
        let mut strays = Vec::new();
        for vlan in VlanId::all() {
            match (self.slots.get(&vlan), present.contains(&vlan)) {
                (Some(Slot::Held(_) | Slot::Aside), true) => {}
                (_, true) if !lock::holds(Lock::StrayLinkKeepsVlan) => {}
                (_, true) => {
                    self.slots.insert(vlan, Slot::Aside);
                    strays.push(vlan);
                }
                (Some(Slot::Aside), false) => self.rest(vlan, false),
                (_, false) => {}
            }
        }
        strays
    }

    /// The VLANs that may be handed out now, best first: never used, then longest rested; those whose link was never
    /// seen and that rested only the shorter time come last.
    pub fn free(&self) -> Vec<VlanId> {
        let mut free: Vec<(u8, Duration, VlanId)> = VlanId::all()
            .filter_map(|vlan| match self.slots.get(&vlan) {
                None => Some((0, Duration::ZERO, vlan)),
                Some(Slot::Held(_) | Slot::Aside) => None,
                Some(Slot::Resting { since, unseen }) => {
                    let rested = self.valid_time.saturating_sub(*since);
                    match (rested >= self.rest, *unseen && rested < self.rest_unseen) {
                        (false, _) if lock::holds(Lock::VlanRests) => None,
                        (false, _) | (true, false) => Some((1, *since, vlan)),
                        (true, true) => Some((2, *since, vlan)),
                    }
                }
            })
            .collect();
        free.sort();
        free.into_iter().map(|(_, _, vlan)| vlan).collect()
    }

    /// How long until the next VLAN has rested, if the views stay valid; `None` if none rests.
    pub fn next_rested(&self) -> Option<Duration> {
        let rests = self.slots.values().filter_map(|slot| match slot {
            Slot::Resting { since, .. } => {
                Some(since.saturating_add(self.rest).saturating_sub(self.valid_time))
            }
            _ => None,
        });
        rests.filter(|left| !left.is_zero()).min()
    }

    /// Those that rest or are kept aside, by id.
    pub fn kept(&self) -> Vec<KeptVlan> {
        let kept = |(vlan, slot): (&VlanId, &Slot)| match slot {
            Slot::Held(_) => None,
            Slot::Aside => {
                Some(KeptVlan { vlan: *vlan, rested: None, left: None, why: WhyKept::StrayLink })
            }
            Slot::Resting { since, unseen } => {
                let rested = self.valid_time.saturating_sub(*since);
                let left = self.rest.checked_sub(rested).filter(|left| !left.is_zero())?;
                let why = if *unseen { WhyKept::Unseen } else { WhyKept::Used };
                Some(KeptVlan { vlan: *vlan, rested: Some(rested), left: Some(left), why })
            }
        };
        self.slots.iter().filter_map(kept).collect()
    }

    /// How many rest, and how many are kept aside.
    pub fn counts(&self) -> (usize, usize) {
        let resting = self.slots.values().filter(|s| {
            matches!(s, Slot::Resting { since, .. } if self.valid_time.saturating_sub(*since) < self.rest)
        });
        (resting.count(), self.slots.values().filter(|s| **s == Slot::Aside).count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn vlan(n: i64) -> VlanId {
        VlanId::new(n).unwrap()
    }

    fn books() -> VlanBooks {
        VlanBooks::new(Duration::from_secs(300), Duration::from_secs(900))
    }

    #[test]
    fn s28_a_vlan_comes_back_only_after_its_rest_and_last() {
        let mut books = books();
        books.tick(Moment(0), true);
        books.hold(vlan(1));
        books.release(vlan(1), false);
        books.tick(Moment(299_999), true);
        assert!(!books.free().contains(&vlan(1)));
        books.tick(Moment(300_000), true);
        assert_eq!(books.free().last(), Some(&vlan(1)));
        assert_eq!(books.free().first(), Some(&vlan(2)));
    }

    #[test]
    fn rest_counts_only_while_the_views_are_valid() {
        let mut books = books();
        books.tick(Moment(0), true);
        books.rest(vlan(7), false);
        books.tick(Moment(100_000), false);
        books.tick(Moment(900_000), true);
        assert!(!books.free().contains(&vlan(7)));
        books.tick(Moment(1_100_000), true);
        assert!(books.free().contains(&vlan(7)));
    }

    #[test]
    fn a_vlan_whose_link_was_never_seen_is_last_until_the_longer_rest_is_over() {
        let mut books = books();
        books.tick(Moment(0), true);
        for v in VlanId::all() {
            books.rest(v, v == vlan(3));
        }
        books.tick(Moment(300_000), true);
        assert_eq!(books.free().last(), Some(&vlan(3)));
        books.tick(Moment(900_000), true);
        assert_eq!(books.free().get(2), Some(&vlan(3)));
    }

    #[test]
    fn a_stray_link_is_reported_once_kept_aside_and_rests_when_it_goes() {
        let mut books = books();
        books.tick(Moment(0), true);
        let present = BTreeSet::from([vlan(9)]);
        assert_eq!(books.links(&present), vec![vlan(9)]);
        assert_eq!(books.links(&present), vec![]);
        assert!(!books.free().contains(&vlan(9)));
        books.links(&BTreeSet::new());
        assert!(!books.free().contains(&vlan(9)));
        books.tick(Moment(300_000), true);
        assert!(books.free().contains(&vlan(9)));
    }

    #[test]
    fn s81_every_vlan_that_is_not_handed_out_is_told_with_its_reason() {
        let mut books = books();
        books.tick(Moment(0), true);
        books.hold(vlan(1));
        books.rest(vlan(2), false);
        books.rest(vlan(3), true);
        books.links(&BTreeSet::from([vlan(9)]));
        books.tick(Moment(100_000), true);
        let told: Vec<_> = books
            .kept()
            .into_iter()
            .map(|k| {
                (k.vlan.get(), k.rested.map(|d| d.as_secs()), k.left.map(|d| d.as_secs()), k.why)
            })
            .collect();
        let expected = [
            (2, Some(100), Some(200), WhyKept::Used),
            (3, Some(100), Some(200), WhyKept::Unseen),
            (9, None, None, WhyKept::StrayLink),
        ];
        assert_eq!(told, expected);
        books.tick(Moment(300_000), true);
        let left: Vec<u8> = books.kept().iter().map(|k| k.vlan.get()).collect();
        assert_eq!(left, [9]);
        let free = books.free();
        assert!(books.kept().iter().all(|k| !free.contains(&k.vlan)));
    }

    #[test]
    fn s05_a_vlan_claimed_twice_stays_held_until_both_are_gone() {
        let mut books = books();
        books.hold(vlan(4));
        books.hold(vlan(4));
        books.release(vlan(4), false);
        assert!(books.is_held(vlan(4)));
        books.release(vlan(4), false);
        assert!(!books.is_held(vlan(4)) && !books.free().contains(&vlan(4)));
    }

    #[derive(Debug, Clone)]
    enum Op {
        Take,
        Release(usize),
        Cancel(usize),
        Pass(u64, bool),
        Links(BTreeSet<u8>),
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let op = prop_oneof![
            4 => Just(Op::Take),
            3 => (0..200usize).prop_map(Op::Release),
            1 => (0..200usize).prop_map(Op::Cancel),
            3 => (0..200_000u64, any::<bool>()).prop_map(|(d, v)| Op::Pass(d, v)),
            1 => proptest::collection::btree_set(1..=120u8, 0..4).prop_map(Op::Links),
        ];
        proptest::collection::vec(op, 0..120)
    }

    proptest! {
        /// Against a naive model: per VLAN the list of valid-time instants at which it was last in use.
        #[test]
        fn vlan_books_agree_with_a_naive_model(ops in ops()) {
            let mut books = books();
            let (mut now, mut valid, mut valid_ms) = (0u64, true, 0u64);
            books.tick(Moment(0), true);
            let mut held: Vec<VlanId> = Vec::new();
            let mut last_use: BTreeMap<VlanId, u64> = BTreeMap::new();
            let mut links: BTreeSet<VlanId> = BTreeSet::new();
            for op in ops {
                match op {
                    Op::Take => {
                        let expected: BTreeSet<VlanId> = VlanId::all()
                            .filter(|v| !held.contains(v) && !links.contains(v))
                            .filter(|v| last_use.get(v).is_none_or(|at| valid_ms - at >= 300_000))
                            .collect();
                        let free = books.free();
                        prop_assert_eq!(free.iter().copied().collect::<BTreeSet<_>>(), expected);
                        if let Some(v) = free.first() {
                            let oldest = free.iter().map(|v| last_use.get(v).copied()).min().flatten();
                            prop_assert_eq!(last_use.get(v).copied(), oldest);
                            books.hold(*v);
                            held.push(*v);
                        }
                    }
                    Op::Release(i) if !held.is_empty() => {
                        let v = held.swap_remove(i % held.len());
                        books.release(v, false);
                        last_use.insert(v, valid_ms);
                    }
                    Op::Cancel(i) if !held.is_empty() => {
                        let v = held.swap_remove(i % held.len());
                        books.cancel(v);
                        last_use.remove(&v);
                    }
                    Op::Pass(d, v) => {
                        now += d;
                        if valid { valid_ms += d; }
                        valid = v;
                        books.tick(Moment(now), v);
                    }
                    Op::Links(set) => {
                        let new: BTreeSet<VlanId> = set.into_iter().map(|v| vlan(i64::from(v))).filter(|v| !held.contains(v)).collect();
                        for v in links.difference(&new) {
                            last_use.insert(*v, valid_ms);
                        }
                        let mut present = new.clone();
                        present.extend(held.iter().copied());
                        books.links(&present);
                        links = new;
                    }
                    Op::Release(_) | Op::Cancel(_) => {}
                }
            }
        }
    }
}
