//! ENIs that only an annotation tells of: they may have been lost while nobody led.

use crate::annotation::{Annotation, NamedBranch};
use crate::eni::Replaced;
use crate::heal::HealWait;
use crate::id::{EniId, PodUid};
use crate::wait::Wait;

use super::Node;
use super::care::Lost;
use super::event::Trunk;
use super::holding::{Branch, NamedEni};

impl Node {
    /// Slots of other running pods whose annotated ENIs are in no books: they may have been lost, and then their pods get
    /// new ones, for which a slot must be left. The scheduler counts them too.
    pub(super) fn ghost_slots(&self, but: &PodUid) -> u32 {
        let ghosts = self.pods.values().filter(|p| p.pod.uid != *but && !p.deleting);
        let slots = ghosts.filter_map(|pod| {
            let holding = self.holdings.get(&pod.pod.uid).filter(|h| !h.stopped)?;
            let Annotation::Names(named) = self.reader.read(pod.annotation.as_deref()) else {
                return None;
            };
            let unknown = |eni: &EniId| {
                !holding.has_eni(eni)
                    && !holding.replaces(eni)
                    && holding.named.get(eni) != Some(&NamedEni::Foreign)
                    && !self.strangers.contains_key(eni)
                    && !self.holdings.values().any(|h| h.has_eni(eni))
            };
            let lacking = (holding.requested as usize).saturating_sub(holding.branches.len());
            Some(named.iter().filter(|n| unknown(&n.eni)).count().min(lacking))
        });
        u32::try_from(slots.sum::<usize>()).unwrap_or(u32::MAX)
    }

    /// An annotation names an ENI that EC2 does not show and no books know. Where the node has the very link that the
    /// annotation tells of, and nobody else its VLAN, the ENI was this pod's, and is looked after as one that is lost.
    pub(super) fn take_up_ghost(
        &mut self,
        uid: &PodUid,
        named: &NamedBranch,
        trunk: &Trunk,
    ) -> Result<(), Wait> {
        let unproven = || Wait::AnnotationGhost(named.eni.to_string());
        let (Some(mac), Some(holding)) = (named.mac, self.holdings.get(uid)) else {
            return Err(unproven());
        };
        let proven = self.link_mac(named.vlan) == Some(mac)
            && (named.ipv4.is_some() || named.ipv6.is_some())
            && !self.vlans.is_held(named.vlan)
            && !self.deleted.contains_key(&named.eni)
            && holding.branches.len() < holding.requested as usize;
        if !proven {
            return Err(unproven());
        }
        if self.used_slots() >= trunk.limit {
            return Err(Wait::Heal(HealWait::NoSlot));
        }
        let Some(index) = (0..=u8::MAX).find(|i| !holding.branches.contains_key(i)) else {
            return Err(unproven());
        };
        let old = Replaced {
            eni: named.eni.clone(),
            named: named.eni.clone(),
            mac,
            ipv4: named.ipv4,
            ipv6: named.ipv6,
        };
        let mut branch = Branch { vlan_used: true, ..Branch::reserved(named.vlan) };
        branch.care.bound = true;
        branch.care.known = Some(holding.since);
        branch.care.was.insert(mac);
        branch.care.lost = Some(Lost { old, proof: None, before: None });
        self.vlans.hold(named.vlan);
        self.set(uid, |h| {
            h.branches.insert(index, branch);
        });
        Ok(())
    }
}
