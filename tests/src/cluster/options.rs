//! What a cluster is made of, and the durations it runs with.

use crate::control_plane;
use std::collections::BTreeMap;
use std::time::Duration;

/// How a cluster is made.
#[derive(Debug, Clone)]
pub struct Options {
    /// Nodes at the start, `node-1` and on.
    pub nodes: u32,
    /// Coordinators at the start.
    pub coordinators: u32,
    /// Start an agent on every node.
    pub agents: bool,
    /// EC2 type of the nodes. `m5.large` has 9 branches.
    pub instance_type: String,
    /// Put the fault proxy between agents and coordinators and the API server.
    pub proxy: bool,
    /// Put a relay between agents and each coordinator, which can be cut or frozen.
    pub relayed: bool,
    /// EC2's buckets are the documented ones, so that I5 is judged.
    pub budget: bool,
    /// The lease: its duration, the deadline for renewing it, and the pace of tries, in seconds.
    pub lease: [u32; 3],
    /// Durations of the rules.
    pub timings: Timings,
    /// How the API server is started.
    pub plane: control_plane::Options,
    /// More flags of `trunkline-sim ec2`.
    pub ec2_flags: Vec<String>,
    /// More flags of `trunkline-sim node`.
    pub node_flags: Vec<String>,
    /// More flags of every coordinator.
    pub coordinator_flags: Vec<String>,
    /// More flags of every agent.
    pub agent_flags: Vec<String>,
    /// Print what is being started.
    pub progress: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            nodes: 1,
            coordinators: 1,
            agents: true,
            instance_type: "m5.large".to_owned(),
            proxy: false,
            relayed: false,
            budget: true,
            lease: [6, 4, 1],
            timings: Timings::short(),
            plane: control_plane::Options::default(),
            ec2_flags: Vec::new(),
            node_flags: Vec::new(),
            coordinator_flags: Vec::new(),
            agent_flags: Vec::new(),
            progress: false,
        }
    }
}

impl Options {
    /// Says what is being started, if that was asked for.
    pub(super) fn tell(&self, what: &str) {
        if self.progress {
            println!("  starting {what}");
        }
    }

    /// With so many nodes.
    #[must_use]
    pub fn nodes(mut self, nodes: u32) -> Self {
        self.nodes = nodes;
        self
    }

    /// With so many coordinators.
    #[must_use]
    pub fn coordinators(mut self, coordinators: u32) -> Self {
        self.coordinators = coordinators;
        self
    }

    /// With the fault proxy in between.
    #[must_use]
    pub fn proxied(mut self) -> Self {
        self.proxy = true;
        self
    }

    /// With relays between agents and coordinators.
    #[must_use]
    pub fn relayed(mut self) -> Self {
        self.relayed = true;
        self
    }

    /// With another instance type.
    #[must_use]
    pub fn instance_type(mut self, name: &str) -> Self {
        name.clone_into(&mut self.instance_type);
        self
    }

    /// With one duration changed.
    #[must_use]
    pub fn timing(mut self, field: &'static str, value: Duration) -> Self {
        self.timings.0.insert(field, value);
        self
    }
}

/// Durations by the names of the rules' `Timing`; what is not named keeps its default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timings(BTreeMap<&'static str, Duration>);

impl Timings {
    /// Short ones: seconds where a production build waits for minutes. Their order is that of the real ones.
    pub fn short() -> Self {
        let ms = Duration::from_millis;
        Self(BTreeMap::from([
            ("cooldown_floor", ms(2_000)),
            ("cooldown_default", ms(2_000)),
            ("slow_release", ms(5_000)),
            ("look_gap", ms(3_000)),
            ("look_interval", ms(250)),
            ("lingering_link", ms(5_000)),
            ("vlan_rest", ms(4_000)),
            ("vlan_rest_unseen", ms(8_000)),
            ("repeat", ms(500)),
            ("agent_silence", ms(4_000)),
            ("heartbeat", ms(500)),
            ("ec2_consistency", ms(4_000)),
            ("trunk_hidden", ms(8_000)),
            ("told_after", ms(2_000)),
            // What the simulator's lists really lag behind.
            ("ec2_list_window", ms(12_000)),
            ("retry_base", ms(200)),
            ("retry_cap", ms(2_000)),
            ("confirm_interval", ms(500)),
            ("adoption_window", ms(4_000)),
            ("barrier_timeout", ms(2_000)),
            ("inventory_interval", ms(10_000)),
            ("heal_age", ms(8_000)),
            ("heal_recheck", ms(2_000)),
            ("heal_link_change", ms(3_000)),
            ("link_missing", ms(5_000)),
            ("evict_window", ms(10_000)),
            ("dead_check", ms(2_000)),
            ("dead_absence", ms(10_000)),
        ]))
    }

    /// The production durations.
    pub fn production() -> Self {
        Self(BTreeMap::new())
    }

    /// One duration, if it is not the default.
    pub fn get(&self, field: &str) -> Option<Duration> {
        self.0.get(field).copied()
    }

    /// The cooldown in force.
    pub fn cooldown(&self) -> Duration {
        self.get("cooldown_default").unwrap_or(Duration::from_mins(1))
    }

    /// The rest of a VLAN in force.
    pub fn vlan_rest(&self) -> Duration {
        self.get("vlan_rest").unwrap_or(Duration::from_mins(5))
    }

    /// The value of `TRUNKLINE_TIMING`.
    pub fn variable(&self) -> String {
        let fields: Vec<_> =
            self.0.iter().map(|(name, value)| format!("{name}={}ms", value.as_millis())).collect();
        fields.join(",")
    }

    /// Flags of the coordinator for those durations that are settings too.
    pub fn flags(&self) -> Vec<String> {
        let flag = |field: &str, flag: &str| {
            self.get(field).map(|value| format!("--{flag}={}ms", value.as_millis()))
        };
        let rest = flag("vlan_rest", "vlan-rest");
        let inventory = flag("inventory_interval", "inventory-interval");
        rest.into_iter().chain(inventory).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_durations_keep_the_order_of_the_real_ones() {
        let short = Timings::short();
        let ms = |field: &str| short.get(field).unwrap().as_millis();
        assert!(ms("vlan_rest") >= ms("cooldown_default"));
        assert!(ms("vlan_rest_unseen") > ms("vlan_rest"));
        assert!(ms("slow_release") > ms("look_gap") && ms("look_gap") > ms("look_interval"));
        assert!(ms("agent_silence") > ms("heartbeat"));
        assert!(ms("trunk_hidden") > ms("ec2_consistency"));
        assert!(ms("heal_age") > ms("ec2_consistency") && ms("heal_age") > ms("heal_recheck"));
        assert!(short.variable().contains("cooldown_default=2000ms"));
        assert!(short.flags().contains(&"--vlan-rest=4000ms".to_owned()));
        assert_eq!(Timings::production().variable(), "");
    }
}
