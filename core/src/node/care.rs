//! What is known of the health of a branch that its pod may be using.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::eni::Replaced;
use crate::heal::{EniMissing, Health, MissingCase, Obstacle};
use crate::id::{AssociationId, EniId, MacAddress, SecurityGroupId};
use crate::time::{Moment, Timing};

use super::holding::Interface;

/// What is known of a branch's health, and how far its repair is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Care {
    /// The pod's annotation names it, or what it replaces: the pod may be running with it, so its VLAN stays.
    pub(super) bound: bool,
    /// Since when these books know the ENI.
    pub(super) known: Option<Moment>,
    /// What the last check settled.
    pub(super) health: Health,
    /// EC2 is to be asked for the ENI by its id.
    pub(super) suspect: bool,
    /// When the first sign of what is the matter now was seen.
    pub(super) noticed: Option<Moment>,
    /// What EC2 said of an ENI that may be missing.
    pub(super) missing: Option<MissingCase>,
    /// The first and the last whole reading, by when they began, that did not show it as it should be.
    pub(super) absent: Option<(Moment, Moment)>,
    /// The ENI that is lost, while there is no other.
    pub(super) lost: Option<Lost>,
    /// ENIs that the present one replaces.
    pub(super) replaced: BTreeSet<EniId>,
    /// It had been repaired, or was being, when this term began, or turned out to be whole after all: the pod's condition
    /// may still say that it is lost.
    pub(super) resumed: bool,
    /// The ENI that the annotation names while it is to be written again.
    pub(super) named: Option<EniId>,
    /// The MAC that the pod's link has as long as it was not changed.
    pub(super) link_mac: Option<MacAddress>,
    /// MACs that earlier ENIs of this branch had: the only ones that the pod's link is changed from.
    pub(super) was: BTreeSet<MacAddress>,
    /// The annotation has to be written again.
    pub(super) rewrite: bool,
    /// When EC2 last said that it made the association, and how often it was made again without all being well after it:
    /// until that shows, a read may be of the time before.
    pub(super) associated: Option<(Moment, u32)>,
    /// When EC2, asked by id, last showed the present ENI as it should be.
    pub(super) confirmed: Option<Moment>,
    /// The agent was asked to change the link's MAC: the request, and when.
    pub(super) link_change: Option<(u64, Moment)>,
    /// The agent said why it could not.
    pub(super) link_failed: Option<String>,
    /// Why it cannot be repaired in place.
    pub(super) obstacle: Option<Obstacle>,
    /// EC2 refused the address because it is in use, since then.
    pub(super) refused: Option<Moment>,
    /// It is to be asked who has the address.
    pub(super) who_has: bool,
    /// The cluster allowed this repair.
    pub(super) granted: bool,
    /// When an operator ordered its repair.
    pub(super) ordered: Option<Moment>,
    /// The pod was evicted, or cannot be.
    pub(super) evicted: bool,
    /// The link was seen as it should be.
    pub(super) link_seen: bool,
    /// Since when a valid link view has not shown it.
    pub(super) link_gone: Option<Moment>,
    /// The other MAC that the link had when EC2 was last asked because of it.
    pub(super) link_asked: Option<MacAddress>,
    /// Groups that EC2 shows instead of ours.
    pub(super) drift: Option<Vec<SecurityGroupId>>,
}

/// An ENI that is lost.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Lost {
    /// What a new one must be like.
    pub(super) old: Replaced,
    /// That it is missing; until then nothing is made in its place.
    pub(super) proof: Option<EniMissing>,
    /// What the books had of it; nothing where only the annotation tells of it.
    pub(super) before: Option<(Interface, Option<AssociationId>)>,
}

impl Care {
    /// Whether the present ENI replaces this one, or is to.
    pub(super) fn replaces(&self, eni: &EniId) -> bool {
        self.replaced.contains(eni) || self.lost.as_ref().is_some_and(|l| l.old.eni == *eni)
    }

    /// It replaces another ENI, as its tag tells: whether that was announced, and the link changed, has to be found out.
    pub(super) fn resume(&mut self, old: &EniId, link: Option<MacAddress>, now: Moment) {
        self.bound = true;
        self.known = Some(now);
        self.resumed = true;
        self.rewrite = true;
        self.replaced.insert(old.clone());
        self.named = Some(old.clone());
        self.link_mac = link;
        self.was.extend(link);
    }

    /// Somebody saw a sign that it may be lost.
    pub(super) fn suspect(&mut self, now: Moment) {
        self.suspect = true;
        self.noticed.get_or_insert(now);
    }

    /// It is lost, or seems so at the moment; for the fuse.
    pub(super) fn seems_lost(&self) -> bool {
        let asked = self.missing.as_ref().is_some_and(MissingCase::not_found_once);
        self.bound && (self.health.is_loss() || asked || self.absent.is_some())
    }

    /// An operator's order to repair it counts: once, and not for ever.
    pub(super) fn is_ordered(&self, timing: &Timing, now: Moment) -> bool {
        self.ordered.is_some_and(|at| !now.has_passed(at, timing.repair_order))
    }

    /// Two whole readings agree that it is lost.
    pub(super) fn agreed(&self) -> bool {
        self.absent.is_some_and(|(first, last)| first != last)
    }

    /// EC2 shows the ENI: nothing is suspected.
    pub(super) fn cleared(&mut self) {
        self.suspect = false;
        self.missing = None;
        self.absent = None;
    }

    /// All is well again.
    pub(super) fn settled(&mut self) {
        self.health = Health::Ok;
        self.suspect = false;
        self.noticed = None;
        self.missing = None;
        self.absent = None;
        self.obstacle = None;
        self.refused = None;
        self.who_has = false;
        self.resumed = false;
        self.named = None;
        self.link_mac = None;
        self.granted = false;
        self.ordered = None;
        self.evicted = false;
        self.link_change = None;
        self.link_failed = None;
        self.confirmed = None;
        self.associated = self.associated.map(|(at, _)| (at, 0));
    }

    /// EC2 said that it made the association.
    pub(super) fn associated(&mut self, now: Moment) {
        let times = self.associated.map_or(0, |(_, times)| times.saturating_add(1));
        self.associated = Some((now, times));
    }

    /// When a read shows what the last Associate did; later each time that it had to be made again.
    pub(super) fn association_shows(&self, window: Duration) -> Option<Moment> {
        self.associated.map(|(at, times)| at.plus(window.saturating_mul(1 << times.min(4))))
    }
}
