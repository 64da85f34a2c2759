//! What a term watches in the API: Nodes, CNINodes, and the CNI's ConfigMap.
//!
//! Pods are not among it: agents see their own node's pods, and the coordinator asks for single ones (S64).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use trunkline_core::node::event::Settings;
use trunkline_core::time::{Timing, effective_cooldown};
use trunkline_kit::api::Timeouts;
use trunkline_kit::clock::Clock;
use trunkline_kit::listwatch::{
    self, Event, ListWatch, ListWatchMetrics, Objects, cluster_objects, named_object,
};

use crate::api::Api;
use crate::events::{Reason, Severity, Target};
use crate::nodes::directory::Change;
use crate::nodes::keeper::Keeper;
use crate::nodes::objects::{CniNodeObject, NodeObject};
use crate::term::Term;

/// Namespace and name of the CNI's ConfigMap (`CFG-2`).
const CONFIGMAP: (&str, &str) = ("kube-system", "amazon-vpc-cni");
/// Its key with the cooldown (`REL-4`).
const COOLDOWN_KEY: &str = "branch-eni-cooldown";

/// Events that may wait.
const QUEUE: usize = 1_024;

fn start<T: DeserializeOwned + Send + Sync + 'static>(
    api: &Api,
    objects: Objects<T>,
    clock: Clock,
    timing: &Timing,
    metrics: ListWatchMetrics,
) -> (mpsc::Receiver<Event<T>>, impl Future<Output = ()> + Send + 'static) {
    let (tx, rx) = mpsc::channel(QUEUE);
    let api = api.kit().with_timeouts(Timeouts::default());
    let watch = ListWatch::new(
        api,
        objects,
        clock,
        listwatch::Settings::new(timing.watch_silence),
        metrics,
    );
    (rx, watch.run(tx, |event| event))
}

fn change<T>(event: Event<T>, what: &str) -> Option<Change<T>> {
    match event {
        Event::Stale(why) => {
            tracing::warn!(what, why = why.name(), "view is stale, its last content stays");
            None
        }
        Event::Listed(items, _) => Some(Change::Listed(items)),
        Event::Applied(item, _) => Some(Change::Applied(item)),
        Event::Deleted(item, _) => Some(Change::Deleted(item)),
        Event::Bookmark(_) => None,
    }
}

/// Watches Nodes and CNINodes into the term's directory and starts a keeper for every name.
pub fn start_nodes(term: &Arc<Term>, metrics: &ListWatchMetrics) {
    let nodes = cluster_objects::<NodeObject>("nodes", "/api/v1/nodes", "Node");
    let (mut rx, watch) = start(&term.api, nodes, term.clock, &term.timing, metrics.clone());
    term.spawn(watch);
    let directory = term.directory.clone();
    term.spawn(async move {
        while let Some(event) = rx.recv().await {
            if let Some(change) = change(event, "nodes") {
                directory.nodes(change);
            }
        }
    });

    let cninodes =
        cluster_objects::<CniNodeObject>("cninodes", crate::api::objects::CNINODES, "CNINode");
    let (mut rx, watch) = start(&term.api, cninodes, term.clock, &term.timing, metrics.clone());
    term.spawn(watch);
    let directory = term.directory.clone();
    term.spawn(async move {
        while let Some(event) = rx.recv().await {
            if let Some(change) = change(event, "cninodes") {
                directory.cninodes(change);
            }
        }
    });

    let keepers = term.clone();
    term.spawn(async move {
        loop {
            for (name, wake) in keepers.directory.take_appeared() {
                keepers.spawn(Keeper::new(keepers.clone(), name, wake).run());
            }
            keepers.directory.appeared.notified().await;
        }
    });
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct ConfigMapObject {
    data: Option<BTreeMap<String, String>>,
}

impl ConfigMapObject {
    fn cooldown(&self) -> Option<&str> {
        self.data.as_ref()?.get(COOLDOWN_KEY).map(String::as_str)
    }
}

/// Where the cooldown goes.
pub struct Cooldown {
    /// Settings in force.
    pub settings: watch::Sender<Settings>,
    /// Configured VLAN rest; never less than the cooldown.
    pub vlan_rest: Duration,
    /// Told of changes.
    pub changed: mpsc::Sender<CooldownChange>,
    /// Cancelled after the first reading.
    pub read: CancellationToken,
}

/// Follows the cooldown of the ConfigMap into the settings (`REL-4`, `REL-6`, T12). Sent to `changed` whenever the value in
/// force changes after the first reading (`D40`: once per change), and for a value that cannot be used. `read` is cancelled
/// once the ConfigMap, or its absence, was read.
pub async fn follow_cooldown(term: Arc<Term>, metrics: ListWatchMetrics, cooldown: Cooldown) {
    let Cooldown { settings, vlan_rest, changed, read } = cooldown;
    let timing = term.timing;
    let objects = named_object::<ConfigMapObject>(
        "cni-configmap",
        "/api/v1",
        CONFIGMAP.0,
        "configmaps",
        "ConfigMap",
        CONFIGMAP.1,
    );
    let (mut rx, watch) = start(&term.api, objects, term.clock, &timing, metrics);
    let follow = async move {
        let mut first = true;
        while let Some(event) = rx.recv().await {
            let object = match change(event, "cni-configmap") {
                Some(Change::Listed(items)) => items.into_iter().next().unwrap_or_default(),
                Some(Change::Applied(item)) => item,
                Some(Change::Deleted(_)) => ConfigMapObject::default(),
                None => continue,
            };
            let report = take_cooldown(object.cooldown(), &settings, &timing, vlan_rest);
            if let Some(report) =
                report.filter(|r| !first || matches!(r, CooldownChange::Unusable(_)))
                && changed.send(report).await.is_err()
            {
                return;
            }
            first = false;
            read.cancel();
        }
    };
    tokio::join!(watch, follow);
}

/// What became of a configured cooldown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CooldownChange {
    /// Another value is in force.
    InForce(Duration),
    /// The text cannot be used; the value in force stays.
    Unusable(String),
}

fn take_cooldown(
    text: Option<&str>,
    settings: &watch::Sender<Settings>,
    timing: &Timing,
    vlan_rest: Duration,
) -> Option<CooldownChange> {
    let parsed = text.map(|t| t.trim().parse::<i128>());
    let configured = parsed.as_ref().and_then(|p| p.as_ref().ok()).copied();
    let before = settings.borrow().cooldown;
    let now = effective_cooldown(configured, before, timing);
    settings.send_if_modified(|s| {
        let new = Settings { cooldown: now, vlan_rest: vlan_rest.max(now), ..*s };
        std::mem::replace(s, new) != new
    });
    match parsed {
        Some(Err(_)) => {
            Some(CooldownChange::Unusable(text.unwrap_or_default().chars().take(40).collect()))
        }
        _ if now != before => Some(CooldownChange::InForce(now)),
        _ => None,
    }
}

/// Tells a change of the cooldown on every node, with the duration in Go's form.
pub fn tell_cooldown(term: &Term, change: &CooldownChange) {
    match change {
        CooldownChange::InForce(cooldown) => {
            tracing::info!(seconds = cooldown.as_secs(), "cooldown changed");
            for name in term.directory.names() {
                let Some(node) = term.directory.view(&name).and_then(|v| v.node) else {
                    continue;
                };
                term.recorder.post(
                    Target::NodeByUid(name, node.metadata.uid.clone()),
                    Severity::Normal,
                    Reason::BranchENICoolDownPeriodUpdated,
                    format!("branch ENI cool down period is {}", go_duration(*cooldown)),
                );
            }
        }
        CooldownChange::Unusable(text) => tracing::warn!(
            text,
            "{COOLDOWN_KEY} of ConfigMap {}/{} is not a whole number of seconds; the value in force stays",
            CONFIGMAP.0,
            CONFIGMAP.1
        ),
    }
}

/// `1m30s`, as Go prints durations of whole seconds.
fn go_duration(d: Duration) -> String {
    let (hours, minutes, seconds) = (d.as_secs() / 3_600, d.as_secs() / 60 % 60, d.as_secs() % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s29_t12_the_cooldown_is_taken_clamped_and_told_once_per_change() {
        let timing = Timing::default();
        let rest = Duration::from_secs(300);
        let initial = Settings {
            cooldown: timing.cooldown_default,
            vlan_rest: rest,
            read_only: false,
            no_release: false,
            heal: trunkline_core::node::event::HealMode::InPlace,
            restore_groups: false,
        };
        let settings = watch::Sender::new(initial);
        let take = |text| take_cooldown(text, &settings, &timing, rest);
        let in_force = |s| Some(CooldownChange::InForce(Duration::from_secs(s)));
        assert_eq!(take(None), None);
        assert_eq!(take(Some("60")), None);
        assert_eq!(take(Some("10")), in_force(30));
        assert_eq!(take(Some("-5")), None, "still the floor");
        assert_eq!(take(Some("45")), in_force(45));
        assert_eq!(take(Some("abc")), Some(CooldownChange::Unusable("abc".into())));
        assert_eq!(take(Some("")), Some(CooldownChange::Unusable(String::new())));
        assert_eq!(settings.borrow().cooldown, Duration::from_secs(45));
        assert_eq!(take(Some("10000000000")), in_force(3_600));
        assert_eq!(
            settings.borrow().vlan_rest,
            Duration::from_secs(3_600),
            "a VLAN rests at least the cooldown"
        );
    }

    #[test]
    fn durations_are_written_as_in_go() {
        let go = |s| go_duration(Duration::from_secs(s));
        assert_eq!([go(30), go(60), go(90), go(3_605)], ["30s", "1m0s", "1m30s", "1h0m5s"]);
    }
}
