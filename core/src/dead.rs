//! Is an instance dead? (design §4.4, first row)
//!
//! A dead instance is the one origin of a release beside the agent's statement, so what proves it is kept apart from
//! everything that only looks like it. A Node object that is gone proves nothing: somebody may have deleted it while the
//! machine and its pods go on (S56). Neither does an instance that is stopped (it may be started again) or shutting
//! down, nor one that EC2 does not know *once*: a reading may be served by something that lags.
//!
//! [`InstanceDead`] has two constructors, one per proof: [`InstanceDead::from_state`], for EC2 says `terminated`, a state that never
//! reverts; and [`InstanceDead::from_absences`], for two looks half an hour apart in each of which EC2 knew, by id, neither the instance
//! nor any trunk that its branches name, and no Node object named it. [`Watch`] gathers the looks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::id::{EniId, InstanceId};
use crate::time::{Moment, Timing};

/// What `DescribeInstances` by id said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InstanceSight {
    /// State `terminated`.
    Terminated,
    /// Any other state that is known: `running`, `shutting-down`, `stopped`, …
    There,
    /// EC2 does not know the id.
    NotFound,
    /// No answer, or one that cannot be read. Says nothing.
    Unknown,
}

/// What `DescribeNetworkInterfaces` by id said of a trunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrunkSight {
    /// It exists.
    There,
    /// EC2 does not know the id.
    NotFound,
    /// No answer. Says nothing.
    Unknown,
}

/// What the complete list of Nodes says of the instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeSight {
    /// A Node names it.
    There,
    /// None does.
    Absent,
    /// The Nodes are not known, or one of them may be this instance's.
    Unknown,
}

/// One look at an instance. Whatever was not asked is `Unknown` or, for trunks, left out.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Look {
    /// The instance.
    pub instance: InstanceSight,
    /// Every trunk that tags of this cluster's ENIs give the instance.
    pub trunks: BTreeMap<EniId, TrunkSight>,
    /// Its Node object.
    pub node: NodeSight,
}

/// In one look, nothing was left of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Absence {
    instance: InstanceId,
    trunks: BTreeSet<EniId>,
    at: Moment,
}

impl Absence {
    /// `None` unless EC2 knows neither the instance nor any of its trunks, of which there has to be one, and no Node
    /// names it.
    pub fn from_look(instance: &InstanceId, look: &Look, at: Moment) -> Option<Self> {
        let absent = look.instance == InstanceSight::NotFound
            && look.node == NodeSight::Absent
            && !look.trunks.is_empty()
            && look.trunks.values().all(|sight| *sight == TrunkSight::NotFound);
        absent.then(|| Self {
            instance: instance.clone(),
            trunks: look.trunks.keys().cloned().collect(),
            at,
        })
    }
}

/// What proved it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeadBy {
    /// EC2 said `terminated`.
    Terminated,
    /// Nothing was left of it in two looks; when the first one was.
    Vanished(Moment),
}

impl DeadBy {
    /// Short name for logs and the record.
    pub fn name(self) -> &'static str {
        match self {
            Self::Terminated => "terminated",
            Self::Vanished(_) => "vanished",
        }
    }
}

/// The instance is dead, for ever.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct InstanceDead {
    instance: InstanceId,
    by: DeadBy,
    at: Moment,
}

impl InstanceDead {
    /// EC2 says that it is terminated.
    pub fn from_state(instance: &InstanceId, look: &Look, at: Moment) -> Option<Self> {
        let dead = look.instance == InstanceSight::Terminated;
        dead.then(|| Self { instance: instance.clone(), by: DeadBy::Terminated, at })
    }

    /// Nothing was left of it, twice, at least `distance` apart. A trunk that only the second look knew was not looked for
    /// in the first one.
    pub fn from_absences(first: &Absence, second: &Absence, distance: Duration) -> Option<Self> {
        let dead = first.instance == second.instance
            && second.trunks.is_subset(&first.trunks)
            && second.at.has_passed(first.at, distance);
        dead.then(|| Self {
            instance: second.instance.clone(),
            by: DeadBy::Vanished(first.at),
            at: second.at,
        })
    }

    /// The instance.
    pub fn instance(&self) -> &InstanceId {
        &self.instance
    }

    /// What proved it.
    pub fn by(&self) -> DeadBy {
        self.by
    }

    /// When it was proved.
    pub fn at(&self) -> Moment {
        self.at
    }
}

/// What the looks at one instance have shown, within one term.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Watch {
    instance: InstanceId,
    absent: Option<Absence>,
    dead: Option<InstanceDead>,
}

impl Watch {
    /// Nothing was seen yet.
    pub fn new(instance: InstanceId) -> Self {
        Self { instance, absent: None, dead: None }
    }

    /// The proof, once there is one. It stays.
    pub fn dead(&self) -> Option<&InstanceDead> {
        self.dead.as_ref()
    }

    /// Takes a look in. Whatever shows a part of the instance makes the two looks begin anew; what shows nothing changes
    /// nothing.
    pub fn observe(&mut self, look: &Look, now: Moment, timing: &Timing) {
        if self.dead.is_some() {
            return;
        }
        self.dead = InstanceDead::from_state(&self.instance, look, now);
        let shown = look.instance == InstanceSight::There
            || look.node == NodeSight::There
            || look.trunks.values().any(|sight| *sight == TrunkSight::There);
        if shown {
            self.absent = None;
        }
        let Some(absence) = Absence::from_look(&self.instance, look, now) else {
            return;
        };
        match &self.absent {
            Some(first) if absence.trunks.is_subset(&first.trunks) => {
                let proof = InstanceDead::from_absences(first, &absence, timing.dead_absence);
                self.dead = self.dead.take().or(proof);
            }
            _ => self.absent = Some(absence),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INSTANCES: [InstanceSight; 4] = [
        InstanceSight::Terminated,
        InstanceSight::There,
        InstanceSight::NotFound,
        InstanceSight::Unknown,
    ];
    const NODES: [NodeSight; 3] = [NodeSight::There, NodeSight::Absent, NodeSight::Unknown];
    const TRUNKS: [TrunkSight; 3] = [TrunkSight::There, TrunkSight::NotFound, TrunkSight::Unknown];

    fn id() -> InstanceId {
        "i-00000001".parse().unwrap()
    }

    fn trunk(n: u32) -> EniId {
        format!("eni-{n:017x}").parse().unwrap()
    }

    fn looks() -> Vec<Look> {
        let mut trunks = vec![BTreeMap::new()];
        trunks.extend(TRUNKS.map(|t| BTreeMap::from([(trunk(1), t)])));
        trunks.extend(
            TRUNKS.map(|t| BTreeMap::from([(trunk(1), TrunkSight::NotFound), (trunk(2), t)])),
        );
        let mut all = Vec::new();
        for instance in INSTANCES {
            for node in NODES {
                all.extend(trunks.iter().map(|t| Look { instance, trunks: t.clone(), node }));
            }
        }
        all
    }

    fn gone() -> Look {
        Look {
            instance: InstanceSight::NotFound,
            trunks: BTreeMap::from([(trunk(1), TrunkSight::NotFound)]),
            node: NodeSight::Absent,
        }
    }

    #[test]
    fn s56_one_look_proves_only_what_is_terminated() {
        for look in looks() {
            let mut watch = Watch::new(id());
            watch.observe(&look, Moment(5), &Timing::default());
            assert_eq!(
                watch.dead().is_some(),
                look.instance == InstanceSight::Terminated,
                "{look:?}"
            );
        }
    }

    #[test]
    fn two_looks_prove_it_only_where_both_found_nothing_and_half_an_hour_lies_between() {
        let timing = Timing::default();
        let late = Moment(5).plus(timing.dead_absence);
        let early = Moment(late.0 - 1);
        let absent = |look: &Look| Absence::from_look(&id(), look, Moment(0)).is_some();
        for first in looks() {
            for second in looks() {
                for (at, far) in [(late, true), (early, false)] {
                    let mut watch = Watch::new(id());
                    watch.observe(&first, Moment(5), &timing);
                    watch.observe(&second, at, &timing);
                    let terminated =
                        [&first, &second].iter().any(|l| l.instance == InstanceSight::Terminated);
                    let asked = second.trunks.keys().all(|t| first.trunks.contains_key(t));
                    let vanished = far && asked && absent(&first) && absent(&second);
                    assert_eq!(
                        watch.dead().is_some(),
                        terminated || vanished,
                        "{first:?} {second:?} {at:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn i6_fewer_facts_never_prove_more() {
        // Whatever of a look is not known, the look proves no more than before.
        for look in looks() {
            let mut poorer = vec![
                Look { instance: InstanceSight::Unknown, ..look.clone() },
                Look { node: NodeSight::Unknown, ..look.clone() },
            ];
            for asked in look.trunks.keys() {
                let mut trunks = look.trunks.clone();
                trunks.insert(asked.clone(), TrunkSight::Unknown);
                poorer.push(Look { trunks, ..look.clone() });
            }
            for poor in poorer {
                let proves = |l: &Look| {
                    InstanceDead::from_state(&id(), l, Moment(1)).is_some()
                        || Absence::from_look(&id(), l, Moment(1)).is_some()
                };
                assert!(!proves(&poor) || proves(&look), "{look:?} {poor:?}");
            }
        }
    }

    #[test]
    fn whatever_shows_a_part_of_it_begins_the_half_hour_anew_and_no_answer_does_not() {
        let timing = Timing::default();
        let half = Moment(0).plus(timing.dead_absence / 2);
        let end = Moment(0).plus(timing.dead_absence);
        for between in looks() {
            if between.instance == InstanceSight::Terminated || between.trunks.len() > 1 {
                continue;
            }
            let mut watch = Watch::new(id());
            watch.observe(&gone(), Moment(0), &timing);
            watch.observe(&between, half, &timing);
            watch.observe(&gone(), end, &timing);
            let shown = between.instance == InstanceSight::There
                || between.node == NodeSight::There
                || between.trunks.values().any(|t| *t == TrunkSight::There);
            assert_eq!(watch.dead().is_none(), shown, "{between:?}");
        }
    }

    #[test]
    fn looks_at_two_instances_prove_nothing_of_either() {
        let first = Absence::from_look(&"i-00000002".parse().unwrap(), &gone(), Moment(0)).unwrap();
        let second = Absence::from_look(&id(), &gone(), Moment(9)).unwrap();
        assert_eq!(InstanceDead::from_absences(&first, &second, Duration::ZERO), None);
    }
}
