//! Cgroups that may be left over from before the kubelet's start.
//!
//! Way (a) takes a cgroup that was there and is gone for the kubelet's letting go. After a start that is not so: a kubelet
//! whose API server shows the time before a pod was made removes the cgroup that its former life left behind, as of a pod that
//! it does not know, and starts the pod once its server catches up. So what the first look under a kubelet start shows
//! proves nothing by going. It counts as seen under this start once it was away and came again, for then this kubelet
//! made it, or once it has been there for as long as way (b) waits: by then the kubelet has listed its pods and thrown out
//! what it does not know.
//!
//! What an agent has recorded as seen under this start, before it was restarted, stays seen. What it finds beside that
//! may be left over as well as new; it is taken for left over.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::{KubeletStart, PodUid};
use crate::time::{Moment, Timing};

/// The cgroups that were there at the first look under the present kubelet start, each since when without a gap.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Leftovers {
    start: Option<KubeletStart>,
    since: BTreeMap<PodUid, Moment>,
    last: Moment,
}

impl Leftovers {
    /// Takes in a valid look. `known`: seen under this start already.
    pub(super) fn look(
        &mut self,
        at: Moment,
        start: KubeletStart,
        cgroups: &BTreeSet<PodUid>,
        known: impl Fn(&PodUid) -> bool,
        timing: &Timing,
    ) {
        if self.start.replace(start) != Some(start) {
            let there = cgroups.iter().filter(|uid| !known(uid));
            self.since = there.map(|uid| (uid.clone(), at)).collect();
        } else if at.since(self.last) > timing.look_gap {
            // What happened meanwhile nobody saw, and a node that slept has not lived through that time.
            self.since.values_mut().for_each(|since| *since = at);
        }
        self.last = at;
        self.since.retain(|uid, since| {
            cgroups.contains(uid) && !at.has_passed(*since, timing.slow_release)
        });
    }

    /// Whether a cgroup of this pod may be left over.
    pub(super) fn contains(&self, uid: &PodUid) -> bool {
        self.since.contains_key(uid)
    }
}
