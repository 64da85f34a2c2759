//! Taking over what EC2 shows: at the start of a term, and again later for ENIs that a call of the term before made.
//!
//! The UID tag binds (design §4.1). An ENI whose UID, namespace and name tags are readable becomes a branch of that UID,
//! whatever the pods look like at the moment; one without is kept as a stranger, with an event, and keeps its slot and
//! its VLAN. The association id comes back by replaying Associate, or survives in the annotation (`REC-2`, `D12`), which anybody
//! who may patch the pod can write: it is used only after EC2 has said whose it is.
//! VLAN books are tag ∪ annotation ∪ association: each of them keeps the VLAN from being handed out.

use std::collections::BTreeSet;

use crate::annotation::Annotation;
use crate::eni::{EniKind, EniRecord, EniStatus, Tag};
use crate::id::{AssociationId, EniId, PodUid, VlanId};
use crate::lock::{self, Lock};
use crate::time::Moment;
use crate::view::Pod;

use super::Node;
use super::answers::stage_of;
use super::event::{Effect, Notice, NoticeKind, shows_all};
use super::holding::{Branch, Holding, Stage};

/// Whether an ENI holds a branch slot of its trunk. Only "available" says that it does not.
pub(super) fn may_be_associated(record: &EniRecord) -> bool {
    !matches!(record.status, EniStatus::Available)
}

impl Node {
    /// A whole reading: what it shows and the books do not have is taken over; then the branches of live pods are compared
    /// with it.
    pub(super) fn on_inventory(
        &mut self,
        began: Moment,
        records: Vec<EniRecord>,
        now: Moment,
        out: &mut Vec<Effect>,
    ) {
        let by_id = records.iter().map(|r| (r.id.clone(), r.clone())).collect();
        self.adopt_inventory(records, now, out);
        self.settled |= began >= shows_all(self.began, &self.timing);
        if self.dead.is_none() {
            self.compare(began, &by_id, now, out);
        }
    }

    fn adopt_inventory(&mut self, records: Vec<EniRecord>, now: Moment, out: &mut Vec<Effect>) {
        let trunk = self.trunk.as_ref().ok().map(|t| t.eni.clone());
        // A list may go on showing an ENI that is gone; one that was made in its place has its address.
        let replaced: BTreeSet<EniId> =
            records.iter().filter_map(|r| r.tags.replaces.value().cloned()).collect();
        for record in records {
            let is_trunk = record.kind == EniKind::Trunk
                || Some(&record.id) == trunk.as_ref()
                || record.attachment.is_some();
            if is_trunk || self.deleted.contains_key(&record.id) || self.refresh(&record) {
                continue;
            }
            if let Some((uid, index)) = self.lost_as(&record.id) {
                self.on_old_shown(&uid, index, now);
                continue;
            }
            if replaced.contains(&record.id)
                || self.holdings.values().any(|h| h.replaces(&record.id))
            {
                continue;
            }
            let stranger = self.strangers.remove(&record.id);
            self.adopt(record, now, out);
            if let Some((_, Some(vlan))) = stranger {
                self.vlans.release(vlan, true);
            }
        }
        let first = !std::mem::replace(&mut self.inventory, true);
        if first {
            self.pods_changed(now, out);
            self.links_changed(&BTreeSet::new(), out);
        }
    }

    /// Takes over what the tag says now of an ENI in the books: who else may have written it, it binds the ENI.
    fn refresh(&mut self, record: &EniRecord) -> bool {
        let branches = self.holdings.values_mut().flat_map(|h| h.branches.values_mut());
        let known = branches.filter_map(Branch::interface_mut).find(|i| i.eni == record.id);
        if let Some(interface) = known {
            if lock::holds(Lock::AnnotationBindsNothing) {
                interface.uid_tag = record.tags.pod_uid.clone();
            }
            return true;
        }
        false
    }

    /// The branch whose lost ENI this is, while there is no other in its place.
    fn lost_as(&self, eni: &EniId) -> Option<(PodUid, u8)> {
        self.holdings.iter().find_map(|(uid, h)| {
            let lost = |b: &Branch| b.care.lost.as_ref().is_some_and(|l| l.old.eni == *eni);
            h.branches.iter().find(|(_, b)| lost(b)).map(|(index, _)| (uid.clone(), *index))
        })
    }

    fn adopt(&mut self, mut record: EniRecord, now: Moment, out: &mut Vec<Effect>) {
        if !lock::holds(Lock::AnnotationBindsNothing) {
            self.bind_to_whoever_names_it(&mut record);
        }
        let named = self.named_in_view(&record);
        let vlan = record.tags.vlan.value().copied().or(named.as_ref().map(|(vlan, _)| *vlan));
        let (Some(pod), Some(vlan)) = (record.tags.bound_pod(), vlan) else {
            self.keep_stranger(record, vlan, out);
            return;
        };
        self.vlans.hold(vlan);
        let uid = pod.uid.clone();
        if !self.holdings.contains_key(&uid) {
            self.arrivals += 1;
            let mut holding = Holding::new(pod, self.arrivals, now);
            if record.tags.config_hash != Tag::Absent && lock::holds(Lock::MirrorByHash) {
                holding.mirror = true;
                holding.kubelet_uid = record.tags.config_hash.value().cloned();
            }
            if let Some(pod) = self.pods.get(&uid) {
                holding.learn(pod);
                holding.stopped = pod.deleting || pod.phase.is_ended();
            }
            self.holdings.insert(uid.clone(), holding);
        }
        let Some(holding) = self.holdings.get_mut(&uid) else {
            return;
        };
        let mut branch = Branch::adopted(vlan, stage_of(&record), self.began);
        branch.hint = named.and_then(|(_, association)| association);
        if !lock::holds(Lock::AssociationConfirmed)
            && let Stage::Attached(_, id) = &mut branch.stage
        {
            id.clone_from(&branch.hint);
        }
        let replaced = record.tags.replaces.value().cloned();
        if let Some(old) = &replaced {
            branch.care.resume(old, record.tags.replaces_mac.value().copied(), now);
        }
        let tagged = record.tags.index.value().copied();
        // What it replaces is gone, for it has its address, whatever the books think.
        let older = |b: &Branch| {
            b.interface()
                .is_some_and(|i| replaced.as_ref() == Some(&i.eni) && i.ipv4 == record.ipv4)
        };
        if let Some(at) = holding.branches.iter().find(|(_, b)| older(b)).map(|(i, _)| *i)
            && let Some(old) = holding.branches.remove(&at)
        {
            self.vlans.release(old.vlan, true);
        }
        let taken = |i: &u8| holding.branches.get(i).is_some_and(|b| b.interface().is_some());
        let index = tagged
            .filter(|i| !taken(i))
            .or_else(|| (0..=u8::MAX).find(|i| !holding.branches.contains_key(i)));
        if let Some(index) = index
            && let Some(reserved) = holding.branches.insert(index, branch)
        {
            self.give_back_vlan(&reserved);
        }
    }

    /// The mistake that a copied annotation makes fatal: the last pod of the view that names an ENI is taken for its owner.
    fn bind_to_whoever_names_it(&self, record: &mut EniRecord) {
        let names = |pod: &&Pod| {
            self.reader.read(pod.annotation.as_deref()).names(&record.id) == Some(true)
        };
        if let Some(pod) = self.pods.values().rfind(names) {
            record.tags.pod_uid = Tag::Is(pod.pod.uid.clone());
            record.tags.pod_namespace = Tag::Is(pod.pod.namespace.clone());
            record.tags.pod_name = Tag::Is(pod.pod.name.clone());
        }
    }

    fn keep_stranger(&mut self, record: EniRecord, vlan: Option<VlanId>, out: &mut Vec<Effect>) {
        let held = vlan;
        if let Some(vlan) = vlan {
            self.vlans.hold(vlan);
        }
        if self.told_strangers.insert(record.id.clone()) {
            let vlan = vlan.map_or_else(|| "an unknown VLAN".to_owned(), |v| format!("VLAN {v}"));
            let message = format!(
                "branch ENI {} ({vlan}) of this node's trunk is not tagged with the pod it belongs to; it is kept",
                record.id
            );
            out.push(Effect::Notify(Notice {
                pod: None,
                kind: NoticeKind::UnboundBranch,
                message,
            }));
        }
        self.strangers.insert(record.id.clone(), (record, held));
    }

    /// VLAN and association id that the annotation of the ENI's own pod (or, for an untagged one, of any pod in the
    /// view) gives it.
    fn named_in_view(&self, record: &EniRecord) -> Option<(VlanId, Option<AssociationId>)> {
        let bound = record.tags.pod_uid.value();
        let own = |uid| bound.is_none_or(|b| b == uid);
        self.pods.iter().filter(|(uid, _)| own(*uid)).find_map(|(_, pod)| {
            let Annotation::Names(named) = self.reader.read(pod.annotation.as_deref()) else {
                return None;
            };
            named.into_iter().find(|b| b.eni == record.id).map(|b| (b.vlan, b.association))
        })
    }
}
