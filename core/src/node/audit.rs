//! The three-way check: EC2, the API server and the node against these books.
//!
//! What is found has one of the classes of [`Health`], says who shows what, what is done about it by itself, and what an
//! operator's order ([`Event::Repair`](super::event::Event::Repair)) would add. An audit decides nothing and changes
//! nothing; an order only lifts what stops a repair (`--heal=report`, the fuse of the repairs, `--restore-groups` not
//! given). The proof that an ENI is missing, the guards of every call and all rules of release stay as they are.
//!
//! Unknown is never absent: an ENI that a whole reading does not show is a doubt, to be asked for by its id
//! ([`Audit::doubts`]). An answer that says nothing, and a view that the agent does not have, end in [`Audit::unknown`] and
//! in no finding. What is too young for a reading or a list to show is passed over, and so is what ends at the moment.

mod finding;

use std::collections::{BTreeMap, BTreeSet};

use crate::annotation::Annotation;
use crate::eni::{EniKind, EniRecord, EniStatus, Tag};
use crate::heal::{Health, Obstacle};
use crate::id::{EniId, PodUid};
use crate::time::Moment;
use crate::view::{Pod, PodPhase};
use crate::wait::Wait;

pub use finding::{Audit, Evidence, Finding, Next, Remedy, Shown};

use super::Node;
use super::adopt::may_be_associated;
use super::event::HealMode;
use super::holding::{Branch, Holding, Interface, Stage};
use super::mended::drifted;

/// What is known of one branch while it is looked at.
struct Case<'a> {
    holding: &'a Holding,
    branch: &'a Branch,
    interface: &'a Interface,
    evidence: &'a Evidence,
    record: Option<&'a EniRecord>,
    live: Option<&'a Pod>,
}

impl Node {
    /// Compares what EC2, the API server and the node show with these books.
    pub fn audit(&self, evidence: &Evidence, now: Moment) -> Audit {
        let mut audit = Audit::default();
        if !self.inventory {
            audit.unknown.push("these books have not seen EC2's inventory yet".to_owned());
            return audit;
        }
        let views = [self.pods_blind, self.links.blind(), self.cgroups.blind()];
        for (name, blind) in ["pods", "links", "cgroups"].into_iter().zip(views) {
            if let Some(why) = blind {
                audit.unknown.push(format!("the agent's view of the {name}: {}", why.sentence()));
            }
        }
        let records: BTreeMap<&EniId, &EniRecord> =
            evidence.enis.iter().map(|r| (&r.id, r)).collect();
        let live: BTreeMap<&PodUid, &Pod> =
            evidence.pods.iter().filter(|p| !p.phase.is_ended()).map(|p| (&p.pod.uid, p)).collect();
        for holding in self.holdings.values() {
            for branch in holding.branches.values() {
                let live = live.get(&holding.pod.uid).copied();
                self.audit_branch(holding, branch, evidence, &records, live, now, &mut audit);
            }
        }
        self.audit_strangers(&records, &live, &mut audit);
        self.audit_unbooked(evidence, &mut audit);
        for pod in live.values() {
            self.audit_annotation(pod, evidence, &records, &mut audit);
        }
        audit
    }

    #[expect(clippy::too_many_arguments, reason = "what the three sides show of one branch")]
    fn audit_branch(
        &self,
        holding: &Holding,
        branch: &Branch,
        evidence: &Evidence,
        records: &BTreeMap<&EniId, &EniRecord>,
        live: Option<&Pod>,
        now: Moment,
        audit: &mut Audit,
    ) {
        let Some(interface) = branch.interface() else {
            if let (Some(lost), Some(_)) = (&branch.care.lost, live) {
                let proven = lost.proof.is_some();
                let class = if proven { Health::Missing } else { Health::GhostAnnotation };
                let seen = if proven {
                    "EC2 has no such ENI, by id, address and MAC; the pod is alive"
                } else {
                    "the pod's annotation names it, EC2's inventory does not show it"
                };
                audit.findings.push(Finding {
                    class,
                    eni: Some(lost.old.eni.clone()),
                    vlan: Some(branch.vlan),
                    pod: Some(holding.pod.clone()),
                    seen: seen.to_owned(),
                    next: self.next_of(holding),
                    remedy: heals(branch),
                });
            }
            return;
        };
        let record = records.get(&interface.eni).copied();
        let case = Case { holding, branch, interface, evidence, record, live };
        if matches!(branch.stage, Stage::Cooling(..)) {
            let seen = "EC2 shows it without association; its pod is over".to_owned();
            audit
                .findings
                .extend(record.map(|_| case.finding(Health::Cooling, seen, Next::Cools, None)));
        } else if live.is_none() {
            audit.findings.extend(self.left_behind(&case));
        } else if branch.care.bound && holding.release.is_none() && !holding.stopped {
            self.audit_bound(&case, now, audit);
        }
    }

    /// A branch whose pod the API server's list does not have. While the agent is connected and sees the end, its release
    /// is under way and `trunkline waiting` tells of it.
    fn left_behind(&self, case: &Case<'_>) -> Option<Finding> {
        let holding = case.holding;
        let record = case.record?;
        let under_way = self.session.is_some() && (holding.stopped || holding.release.is_some());
        let seen_alive = self.pods_blind.is_none() && self.pods.contains_key(&holding.pod.uid);
        let young = holding.since >= case.evidence.listed;
        if under_way || seen_alive || young || holding.mirror {
            return None;
        }
        let class = if may_be_associated(record) {
            Health::LeakedAssociated
        } else {
            Health::LeakedAvailable
        };
        let next = match &holding.wait {
            Some(wait @ Wait::Release(_)) => Next::Waits(wait.clone()),
            _ => Next::Released,
        };
        let seen =
            "EC2 has it, tagged for a pod that the API server's list does not have".to_owned();
        Some(case.finding(class, seen, next, None))
    }

    /// A branch that a live pod has.
    fn audit_bound(&self, case: &Case<'_>, now: Moment, audit: &mut Audit) {
        let timing = self.timing;
        let (branch, interface) = (case.branch, case.interface);
        let health = &branch.care;
        let window = timing.ec2_list_window;
        let young = health.known.is_none_or(|known| case.evidence.began < known.plus(window))
            || health.association_shows(timing.ec2_consistency).is_some_and(|shows| now < shows);
        if young {
            return;
        }
        let doubtful = case.record.is_none_or(|r| r.status == EniStatus::Available);
        let shown = match (doubtful, case.evidence.by_id.get(&interface.eni), case.record) {
            (false, _, Some(record)) => record,
            (_, Some(Shown::There(record)), _) => record,
            (_, Some(Shown::NotFound), _) => {
                let seen = "EC2 shows it neither in its inventory nor by its id; the pod is alive";
                audit.findings.push(self.loss(case, Health::Missing, seen));
                return;
            }
            (_, Some(Shown::Unknown(why)), _) => {
                audit.unknown.push(format!("ENI {} of {}: {why}", interface.eni, case.holding.pod));
                return;
            }
            (_, None, _) => {
                audit.doubts.insert(interface.eni.clone());
                return;
            }
        };
        if shown.status == EniStatus::Available {
            let seen = "EC2 shows it without association; the pod is alive";
            audit.findings.push(self.loss(case, Health::Disassociated, seen));
        } else {
            audit.findings.extend(self.drift(case, shown).or_else(|| self.audit_link(case, now)));
        }
    }

    /// Tags, place and groups.
    fn drift(&self, case: &Case<'_>, shown: &EniRecord) -> Option<Finding> {
        let (noticed, tags) = (&case.branch.care, &shown.tags);
        let uid = &case.holding.pod.uid;
        let trunk = self.trunk.as_ref().ok().map(|t| (&t.eni, &t.instance));
        let tagged = tags.pod_uid == Tag::Is(uid.clone())
            && tags.vlan == Tag::Is(case.branch.vlan)
            && trunk.is_none_or(|(eni, instance)| {
                tags.trunk.value() == Some(eni) && tags.instance.value() == Some(instance)
            });
        if noticed.health == Health::Elsewhere {
            let seen = "EC2 shows its association on another trunk or VLAN than the books";
            return Some(self.loss(case, Health::Elsewhere, seen));
        }
        if !tagged {
            let foreign = tags.pod_uid.value().is_some_and(|other| other != uid);
            let seen = match &tags.pod_uid {
                Tag::Is(other) if foreign => format!("EC2 shows the tag of pod UID {other}"),
                Tag::Is(_) => {
                    "EC2 shows other tags of trunk, instance or VLAN than the books".to_owned()
                }
                Tag::Absent | Tag::Unreadable(_) => {
                    "EC2 shows no readable tag of a pod UID".to_owned()
                }
            };
            let remedy = (!foreign).then_some(Remedy::RestoreTags);
            let next = if foreign { Next::Kept } else { Next::Ordered };
            return Some(case.finding(Health::WrongTags, seen, next, remedy));
        }
        if drifted(case.interface, shown) {
            let groups: Vec<String> = shown.groups.iter().map(ToString::to_string).collect();
            let seen = format!("EC2 shows the groups [{}]", groups.join(", "));
            let next = if self.settings.restore_groups { Next::Repaired } else { Next::Ordered };
            let remedy = Some(Remedy::RestoreGroups);
            return Some(case.finding(Health::WrongGroups, seen, next, remedy));
        }
        let contested = self.vlans.is_contested(case.branch.vlan)
            || noticed.obstacle == Some(Obstacle::VlanTaken);
        contested.then(|| {
            let seen = format!("two of the node's branches have VLAN {}", case.branch.vlan);
            case.finding(Health::VlanConflict, seen, Next::Kept, None)
        })
    }

    /// The link on the node.
    fn audit_link(&self, case: &Case<'_>, now: Moment) -> Option<Finding> {
        let running = case.live.is_some_and(|p| p.phase == PodPhase::Running);
        if !running || !case.holding.annotated || self.links.blind().is_some() {
            return None;
        }
        match self.link_mac(case.branch.vlan) {
            Some(mac) if mac == case.interface.mac => None,
            Some(mac) => {
                let seen =
                    format!("EC2 shows MAC {}, the node's link has {mac}", case.interface.mac);
                Some(self.loss(case, Health::LinkDiffers, &seen))
            }
            None => {
                let gone = case.branch.care.link_gone?;
                now.has_passed(gone, self.timing.link_missing).then(|| {
                    let seen = "EC2 and the API server show it, the node has no link of its VLAN";
                    self.loss(case, Health::LinkMissing, seen)
                })
            }
        }
    }

    fn loss(&self, case: &Case<'_>, class: Health, seen: &str) -> Finding {
        let healable = !matches!(class, Health::LinkMissing | Health::Elsewhere);
        let remedy = heals(case.branch).filter(|_| healable);
        case.finding(class, seen.to_owned(), self.next_of(case.holding), remedy)
    }

    fn next_of(&self, holding: &Holding) -> Next {
        match &holding.wait {
            Some(wait @ Wait::Heal(_)) => Next::Waits(wait.clone()),
            _ if self.settings.heal == HealMode::Report => Next::Ordered,
            _ if self.settings.read_only => Next::Waits(Wait::ReadOnly),
            _ => Next::Repaired,
        }
    }

    /// ENIs of the trunk that no tag binds to a pod.
    fn audit_strangers(
        &self,
        records: &BTreeMap<&EniId, &EniRecord>,
        live: &BTreeMap<&PodUid, &Pod>,
        audit: &mut Audit,
    ) {
        for (id, (booked, vlan)) in &self.strangers {
            let record = records.get(id).copied().unwrap_or(booked);
            let named = live
                .values()
                .find(|p| self.reader.read(p.annotation.as_deref()).names(id) == Some(true));
            let class = match (named, may_be_associated(record)) {
                (Some(_), _) => Health::Foreign,
                (None, true) => Health::LeakedAssociated,
                (None, false) => Health::LeakedAvailable,
            };
            let who = if named.is_some() { "a pod names it" } else { "no pod names it" };
            audit.findings.push(Finding {
                class,
                eni: Some(id.clone()),
                vlan: *vlan,
                pod: named.map(|p| p.pod.clone()),
                seen: format!("EC2 shows it without readable tags of a pod; {who}"),
                next: Next::Kept,
                remedy: None,
            });
        }
    }

    /// ENIs tagged for this node and a pod that these books do not have although they should by now.
    fn audit_unbooked(&self, evidence: &Evidence, audit: &mut Audit) {
        let booked = |id: &EniId| {
            self.strangers.contains_key(id)
                || self.deleted.contains_key(id)
                || self.holdings.values().any(|h| h.has_eni(id) || h.replaces(id))
        };
        let trunk = self.trunk.as_ref().ok().map(|t| &t.eni);
        for record in &evidence.enis {
            let pod = record.tags.bound_pod();
            // The trunk, the instance's own and the CNI's interfaces are not branches.
            let branch = record.kind != EniKind::Trunk
                && record.attachment.is_none()
                && Some(&record.id) != trunk
                && record.tags.trunk.value().is_some();
            let making = pod.as_ref().is_some_and(|p| self.holdings.contains_key(&p.uid));
            if !branch || making || booked(&record.id) {
                continue;
            }
            let class = if may_be_associated(record) {
                Health::LeakedAssociated
            } else {
                Health::LeakedAvailable
            };
            audit.findings.push(Finding {
                class,
                eni: Some(record.id.clone()),
                vlan: record.tags.vlan.value().copied(),
                pod,
                seen: "EC2 shows it for this node, and the coordinator's books do not have it"
                    .to_owned(),
                next: Next::Kept,
                remedy: None,
            });
        }
    }

    /// What the annotation of a live pod names and these books do not have for it.
    fn audit_annotation(
        &self,
        pod: &Pod,
        evidence: &Evidence,
        records: &BTreeMap<&EniId, &EniRecord>,
        audit: &mut Audit,
    ) {
        let Annotation::Names(named) = self.reader.read(pod.annotation.as_deref()) else {
            return;
        };
        let own = self.holdings.get(&pod.pod.uid);
        for name in named {
            let known = self.strangers.contains_key(&name.eni)
                || own.is_some_and(|h| h.has_eni(&name.eni) || h.replaces(&name.eni));
            if known {
                continue;
            }
            let mut finding = Finding {
                class: Health::Foreign,
                eni: Some(name.eni.clone()),
                vlan: Some(name.vlan),
                pod: Some(pod.pod.clone()),
                seen: String::new(),
                next: own.and_then(|h| h.wait.clone()).map_or(Next::Repaired, Next::Waits),
                remedy: None,
            };
            let by_id = evidence.by_id.get(&name.eni);
            let shown = records.get(&name.eni).copied().or(match by_id {
                Some(Shown::There(record)) => Some(&**record),
                _ => None,
            });
            match (shown, by_id) {
                (Some(record), _) if record.tags.pod_uid == Tag::Is(pod.pod.uid.clone()) => {
                    continue;
                }
                (Some(record), _) => {
                    finding.seen = match record.tags.pod_uid.value() {
                        Some(uid) => format!(
                            "the pod's annotation names it, EC2 shows it tagged for pod UID {uid}: the annotation is a copy"
                        ),
                        None => {
                            "the pod's annotation names it, EC2 shows no tag of a pod".to_owned()
                        }
                    };
                }
                (None, Some(Shown::NotFound)) => {
                    finding.class = Health::GhostAnnotation;
                    "the pod's annotation names it, EC2 has no such ENI"
                        .clone_into(&mut finding.seen);
                }
                (None, Some(Shown::Unknown(why))) => {
                    audit.unknown.push(format!("ENI {} of {}: {why}", name.eni, pod.pod));
                    continue;
                }
                (None, _) => {
                    audit.doubts.insert(name.eni);
                    continue;
                }
            }
            audit.findings.push(finding);
        }
    }

    /// An operator orders the repair of these ENIs' branches, as far as they are live pods'.
    pub(super) fn on_repair(&mut self, enis: &BTreeSet<EniId>, now: Moment) {
        for holding in self.holdings.values_mut() {
            if holding.stopped || holding.release.is_some() {
                continue;
            }
            let mut any = false;
            for branch in holding.branches.values_mut() {
                let lost = branch.care.lost.as_ref().map(|l| &l.old.eni);
                let named = branch.eni().or(lost).is_some_and(|eni| enis.contains(eni));
                if !named || !branch.care.bound {
                    continue;
                }
                any = true;
                let drifted = matches!(branch.care.health, Health::WrongGroups | Health::WrongTags);
                let care = &mut branch.care;
                care.ordered = Some(now);
                care.obstacle = care.obstacle.filter(|o| *o != Obstacle::ReportOnly);
                if care.lost.is_none() && !drifted {
                    care.suspect(now);
                }
            }
            if any {
                (holding.retry_at, holding.attempt) = (None, 0);
            }
        }
    }
}

impl Case<'_> {
    fn finding(&self, class: Health, seen: String, next: Next, remedy: Option<Remedy>) -> Finding {
        Finding {
            class,
            eni: Some(self.interface.eni.clone()),
            vlan: Some(self.branch.vlan),
            pod: Some(self.holding.pod.clone()),
            seen,
            next,
            remedy,
        }
    }
}

/// ENIs of a whole reading that belong to no node whose books were looked at: what a teardown, or a node that went, left.
/// Interfaces with an ordinary attachment, trunks that are attached among them, are their instances' own.
pub fn ownerless<'a>(
    enis: impl IntoIterator<Item = &'a EniRecord>,
    looked_at: &BTreeSet<EniId>,
) -> Vec<Finding> {
    enis.into_iter()
        .filter(|r| !looked_at.contains(&r.id) && r.attachment.is_none())
        .map(|record| Finding {
            class: if may_be_associated(record) {
                Health::LeakedAssociated
            } else {
                Health::LeakedAvailable
            },
            eni: Some(record.id.clone()),
            vlan: record.tags.vlan.value().copied(),
            pod: record.tags.bound_pod(),
            seen: "EC2 shows it with this cluster's tags, for no node that has books".to_owned(),
            next: Next::Kept,
            remedy: None,
        })
        .collect()
}

/// Whether an order would lift anything.
fn heals(branch: &Branch) -> Option<Remedy> {
    let liftable = branch.care.obstacle.is_none_or(|o| o == Obstacle::ReportOnly);
    liftable.then_some(Remedy::Heal)
}
