//! Time as `core` sees it: an argument, never a clock.
//!
//! A [`Moment`] counts milliseconds on a clock that also counts suspend (`CLOCK_BOOTTIME`), so that a node that slept
//! for an hour does not take old evidence for new. All durations that rules use sit in [`Timing`].

use std::time::Duration;

/// A point on the local clock, in milliseconds since an arbitrary origin of this boot. Moments of different processes
/// are not comparable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(pub u64);

impl Moment {
    /// This moment and `d`; saturates.
    #[must_use]
    pub fn plus(self, d: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(d.as_millis()).unwrap_or(u64::MAX)))
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// True once at least `d` has passed since `earlier`.
    pub fn has_passed(self, earlier: Self, d: Duration) -> bool {
        self >= earlier.plus(d)
    }
}

macro_rules! timing {
    ($( $(#[$doc:meta])* $field:ident = $ms:literal ),* $(,)?) => {
        /// Every duration that a rule uses. Production runs [`Timing::default`]; shorter values exist only in builds with
        /// the feature `test-timing`, which say so in `--version`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub struct Timing { $( $(#[$doc])* pub $field: Duration, )* }

        impl Default for Timing {
            fn default() -> Self {
                Self { $( $field: Duration::from_millis($ms), )* }
            }
        }

        impl Timing {
            /// The names of all fields, for messages and for [`Timing::set`].
            pub const FIELDS: &'static [&'static str] = &[$( stringify!($field), )*];

            /// Sets one duration by its field name; `false` if there is no such field.
            pub fn set(&mut self, field: &str, value: Duration) -> bool {
                match field {
                    $( stringify!($field) => self.$field = value, )*
                    _ => return false,
                }
                true
            }
        }
    };
}

timing! {
    /// Shortest cooldown between the answer to Disassociate and Delete, whatever is configured (`REL-4`).
    cooldown_floor = 30_000,
    /// Cooldown when nothing is configured (`REL-4`).
    cooldown_default = 60_000,
    /// Longest cooldown that is accepted (T12): larger configured values are clamped.
    cooldown_ceiling = 3_600_000,
    /// Way (b): how long valid views must show neither cgroup nor link (design §4.2). More than the runtime's
    /// four-minute create bound.
    slow_release = 300_000,
    /// Longest distance between two looks of one way (b) window.
    look_gap = 10_000,
    /// How often an agent looks while anything waits for local evidence.
    look_interval = 1_000,
    /// After this long a link that lingers although its cgroup is gone counts as absent (design §4.2).
    lingering_link = 300_000,
    /// Rest of a VLAN after disassociation (design §4.5).
    vlan_rest = 300_000,
    /// Rest of a VLAN whose link was never seen, while others are free.
    vlan_rest_unseen = 900_000,
    /// How often an agent repeats `Suspect` and `Release`.
    repeat = 10_000,
    /// Agent: no event and no bookmark for this long makes the pod view stale.
    watch_silence = 90_000,
    /// Coordinator: an agent silent for this long makes its node Unknown.
    agent_silence = 20_000,
    /// Agent heartbeat interval.
    heartbeat = 5_000,
    /// One attempt of an EC2 call.
    ec2_attempt = 5_000,
    /// One EC2 call with all its SDK attempts.
    ec2_operation = 20_000,
    /// How long EC2 may not show what was just made (`ec2.md` §7).
    ec2_consistency = 30_000,
    /// How long a known trunk must be NotFound by id before another one is made (S07).
    trunk_hidden = 300_000,
    /// How long EC2 lists may lag behind; part of the meaning of `deleted` (design §4.1).
    ec2_list_window = 30_000,
    /// First retry delay of a refused or failed step; doubles per attempt.
    retry_base = 500,
    /// Longest retry delay.
    retry_cap = 60_000,
    /// How long a pod has to wait before an event tells why, where nothing else tells at once (S81).
    told_after = 10_000,
    /// How often a waiting release asks for its facts again.
    confirm_interval = 5_000,
    /// Adoption: how long every pod cgroup of the node must have belonged to a pod of the API view (design §4.1).
    adoption_window = 300_000,
    /// Fuse: window in which vetoes are counted (design §4.5).
    fuse_window = 600_000,
    /// Pace: window for releases that came from `Suspect` (design §4.5).
    pace_window = 60_000,
    /// How long a `Barrier` waits for its reply.
    barrier_timeout = 5_000,
    /// Healing: an ENI must have been known for this long before "not found" means anything (design §6).
    heal_age = 300_000,
    /// Healing: shortest distance between the two "not found" that count.
    heal_recheck = 30_000,
    /// Healing: how long an agent has to answer that it changed a link's MAC, and its view to show it.
    heal_link_change = 10_000,
    /// A running pod's link must have been absent for this long before it counts as lost.
    link_missing = 60_000,
    /// Window in which evictions of pods that cannot be healed are counted.
    evict_window = 60_000,
    /// How long an operator's order to repair a branch counts, where nothing comes of it earlier.
    repair_order = 3_600_000,
    /// How often an instance whose Node object is gone is looked at.
    dead_check = 60_000,
    /// Shortest distance between the two looks in which nothing was left of an instance (design §4.4).
    dead_absence = 1_800_000,
    /// EC2 inventory interval.
    inventory_interval = 300_000,
}

/// The cooldown in force, from a configured number of seconds (`REL-4`, T12): below the floor acts as the floor, above
/// the ceiling as the ceiling, `None` (missing or unreadable) leaves the value in force.
pub fn effective_cooldown(
    configured_seconds: Option<i128>,
    in_force: Duration,
    timing: &Timing,
) -> Duration {
    let Some(seconds) = configured_seconds else {
        return in_force;
    };
    let ceiling = i128::from(timing.cooldown_ceiling.as_secs());
    let seconds = u64::try_from(seconds.clamp(0, ceiling)).unwrap_or_default();
    Duration::from_secs(seconds)
        .clamp(timing.cooldown_floor, timing.cooldown_ceiling.max(timing.cooldown_floor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t12_the_cooldown_is_clamped_and_an_unreadable_one_changes_nothing() {
        let timing = Timing::default();
        let in_force = Duration::from_secs(77);
        let effective = |s| effective_cooldown(s, in_force, &timing).as_secs();
        assert_eq!(effective(Some(-5)), 30);
        assert_eq!(effective(Some(10)), 30);
        assert_eq!(effective(Some(45)), 45);
        assert_eq!(effective(Some(1_000_000_000)), 3600);
        assert_eq!(effective(Some(10_000_000_000)), 3600);
        assert_eq!(effective(Some(i128::MAX)), 3600);
        assert_eq!(effective(None), 77);
    }

    #[test]
    fn way_b_outlasts_the_runtime_create_bound() {
        assert!(Timing::default().slow_release > Duration::from_secs(240));
    }

    #[test]
    fn every_field_can_be_set_by_name() {
        let mut timing = Timing::default();
        for field in Timing::FIELDS {
            assert!(timing.set(field, Duration::from_millis(7)));
        }
        assert!(!timing.set("no_such", Duration::ZERO));
        assert_eq!(timing.vlan_rest, Duration::from_millis(7));
    }
}
