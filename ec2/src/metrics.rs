//! What EC2 costs and how it answers, per operation.
//!
//! Beside our own names the peer's are kept (`MET-1`). Its counters have no `_total` and its latency is a sum and a count
//! without buckets, which no metric type of the library writes; they are small types of their own here.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::{
    EncodeLabelSet, EncodeLabelValue, EncodeMetric, LabelSetEncoder, LabelValueEncoder,
    MetricEncoder,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};
use trunkline_core::eni::FailureClass;

use crate::action::{Action, PeerNames, PerAction};

/// The adapter's metrics. Clones share their values.
#[derive(Debug, Clone)]
pub struct Metrics {
    attempts: Family<ByAction, Counter>,
    throttled: Family<ByAction, Counter>,
    calls: Family<ByOutcome, Counter>,
    latency: Family<ByAction, Histogram>,
    wait: Family<ByAction, Histogram>,
    waiting: Family<ByAction, Gauge>,
    refused: Family<ByAction, Counter>,
    peer_calls: PeerCounter,
    peer_errors: PeerCounter,
    peer: PerAction<Option<Peer>>,
}

#[derive(Debug, Clone)]
struct Peer {
    calls: PeerCounter,
    errors: PeerCounter,
    latency: Option<PeerSummary>,
}

impl Metrics {
    /// Makes the metrics and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let peer =
            PerAction::new(|action| action.peer().map(|names| Peer::register(registry, names)));
        let latency = PerAction::new(|action| {
            let label = action.peer()?.latency?;
            peer.get(action).as_ref()?.latency.clone().map(|summary| (label, summary))
        });
        registry.register(
            "aws_nw_call_latency",
            "EC2 call latency in milliseconds, own rate limit included",
            PeerLatency(latency),
        );
        let metrics = Self {
            attempts: Family::default(),
            throttled: Family::default(),
            calls: Family::default(),
            latency: Family::new_with_constructor(seconds),
            wait: Family::new_with_constructor(seconds),
            waiting: Family::default(),
            refused: Family::default(),
            peer_calls: PeerCounter::default(),
            peer_errors: PeerCounter::default(),
            peer,
        };
        let own = registry.sub_registry_with_prefix("trunkline_ec2");
        own.register(
            "attempts",
            "Requests sent to EC2, retries included",
            metrics.attempts.clone(),
        );
        own.register(
            "throttled_attempts",
            "Requests that EC2 refused for their rate",
            metrics.throttled.clone(),
        );
        own.register("calls", "Finished EC2 calls by outcome", metrics.calls.clone());
        own.register(
            "call_seconds",
            "Duration of EC2 calls, retries included, own rate limit not",
            metrics.latency.clone(),
        );
        own.register(
            "bucket_wait_seconds",
            "Time that calls waited for our own token bucket",
            metrics.wait.clone(),
        );
        own.register(
            "bucket_waiting",
            "Calls that wait for our own token bucket",
            metrics.waiting.clone(),
        );
        own.register("refused_replies", "Replies that were not believed", metrics.refused.clone());
        registry.register("ec2_api_req_count", "EC2 calls", metrics.peer_calls.clone());
        registry.register("ec2_api_err_count", "Failed EC2 calls", metrics.peer_errors.clone());
        for action in Action::ALL {
            drop(metrics.attempts.get_or_create(&ByAction(action)));
            drop(metrics.throttled.get_or_create(&ByAction(action)));
            drop(metrics.waiting.get_or_create(&ByAction(action)));
            drop(metrics.refused.get_or_create(&ByAction(action)));
        }
        metrics
    }

    pub(crate) fn attempt(&self, action: Action) {
        self.attempts.get_or_create(&ByAction(action)).inc();
    }

    pub(crate) fn throttled(&self, action: Action) {
        self.throttled.get_or_create(&ByAction(action)).inc();
    }

    /// Attempts that EC2 refused for their rate.
    pub(crate) fn throttles(&self, action: Action) -> u64 {
        self.throttled.get_or_create(&ByAction(action)).get()
    }

    /// A success whose content was not believed; the caller gets an unknown outcome.
    pub(crate) fn refused_reply(&self, action: Action) {
        self.refused.get_or_create(&ByAction(action)).inc();
    }

    pub(crate) fn waits(&self, action: Action, by: i64) {
        self.waiting.get_or_create(&ByAction(action)).inc_by(by);
    }

    pub(crate) fn called(
        &self,
        action: Action,
        waited: Duration,
        took: Duration,
        failed: Option<FailureClass>,
    ) {
        self.wait.get_or_create(&ByAction(action)).observe(waited.as_secs_f64());
        self.latency.get_or_create(&ByAction(action)).observe(took.as_secs_f64());
        self.calls.get_or_create(&ByOutcome(action, failed)).inc();
        self.peer_calls.add(1);
        if failed.is_some() {
            self.peer_errors.add(1);
        }
        let Some(peer) = self.peer.get(action) else {
            return;
        };
        peer.calls.add(1);
        if failed.is_some() {
            peer.errors.add(1);
        }
        if let Some(latency) = &peer.latency {
            latency.observe(waited.saturating_add(took));
        }
    }

    /// Finished calls of an operation with an outcome (`None`: success).
    #[cfg(test)]
    pub(crate) fn count(&self, action: Action, failed: Option<FailureClass>) -> u64 {
        self.calls.get_or_create(&ByOutcome(action, failed)).get()
    }
}

impl Peer {
    fn register(registry: &mut Registry, names: PeerNames) -> Self {
        let peer = Self {
            calls: PeerCounter::default(),
            errors: PeerCounter::default(),
            latency: names.latency.map(|_| PeerSummary::default()),
        };
        registry.register(names.calls, "EC2 calls of one operation", peer.calls.clone());
        registry.register(names.errors, "Failed EC2 calls of one operation", peer.errors.clone());
        peer
    }
}

fn seconds() -> Histogram {
    Histogram::new([0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0])
}

// === impl labels ===

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ByAction(Action);

impl EncodeLabelSet for ByAction {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        label(encoder, "action", self.0.name())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ByOutcome(Action, Option<FailureClass>);

impl EncodeLabelSet for ByOutcome {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        label(encoder, "action", self.0.name())?;
        label(encoder, "outcome", self.1.map_or("ok", FailureClass::name))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Labelled(&'static str, &'static str);

impl EncodeLabelSet for Labelled {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        label(encoder, self.0, self.1)
    }
}

fn label(encoder: &mut LabelSetEncoder<'_>, key: &str, value: &'static str) -> fmt::Result {
    let mut label = encoder.encode_label();
    let mut name = label.encode_label_key()?;
    name.write_str(key)?;
    let mut text: LabelValueEncoder<'_> = name.encode_label_value()?;
    EncodeLabelValue::encode(&value, &mut text)?;
    text.finish()
}

// === impl the peer's types ===

/// A counter as the peer's exporter writes it: its name gets no suffix.
#[derive(Debug, Clone, Default)]
pub struct PeerCounter(Arc<AtomicU64>);

impl PeerCounter {
    /// Counts one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Counters of one name, told apart by the value of the label `key`.
    pub fn family(key: &'static str, by_value: BTreeMap<&'static str, Self>) -> impl Metric {
        PeerFamily(key, by_value)
    }

    fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }
}

impl EncodeMetric for PeerCounter {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        encoder.encode_gauge(&self.0.load(Ordering::Relaxed))
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Unknown
    }
}

#[derive(Debug)]
struct PeerFamily(&'static str, BTreeMap<&'static str, PeerCounter>);

impl EncodeMetric for PeerFamily {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (value, counter) in &self.1 {
            counter.encode(encoder.encode_family(&Labelled(self.0, value))?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Unknown
    }
}

#[derive(Debug, Clone, Default)]
struct PeerSummary {
    micros: Arc<AtomicU64>,
    count: Arc<AtomicU64>,
}

impl PeerSummary {
    fn observe(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.micros.fetch_add(micros, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

/// `aws_nw_call_latency_sum` and `_count`, in milliseconds.
#[derive(Debug)]
struct PeerLatency(PerAction<Option<(&'static str, PeerSummary)>>);

impl EncodeMetric for PeerLatency {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for action in Action::ALL {
            let Some((api, summary)) = self.0.get(action) else {
                continue;
            };
            let micros = Duration::from_micros(summary.micros.load(Ordering::Relaxed));
            let count = summary.count.load(Ordering::Relaxed);
            let labels = Labelled("api", api);
            let mut one = encoder.encode_family(&labels)?;
            one.encode_histogram(micros.as_secs_f64() * 1000.0, count, &[], None::<&NoExemplars>)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Unknown
    }
}

type NoExemplars =
    std::collections::HashMap<usize, prometheus_client::metrics::exemplar::Exemplar<ByAction, f64>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peers_names_are_kept_exactly() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let second = Duration::from_secs(1);
        metrics.called(
            Action::AssociateTrunkInterface,
            second,
            second,
            Some(FailureClass::VlanInUse),
        );
        metrics.attempt(Action::AssociateTrunkInterface);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "ec2_api_req_count 1",
            "ec2_api_err_count 1",
            "ec2_associate_trunk_interface_api_req_count 1",
            "ec2_associate_trunk_interface_api_err_count 1",
            "ec2_describe_network_interfaces_pages_api_call_count 0",
            "aws_nw_call_latency_sum{api=\"associate_trunk_to_branch\"} 2000.0",
            "aws_nw_call_latency_count{api=\"associate_trunk_to_branch\"} 1",
            "trunkline_ec2_calls_total{action=\"AssociateTrunkInterface\",outcome=\"vlan-in-use\"} 1",
            "trunkline_ec2_attempts_total{action=\"AssociateTrunkInterface\"} 1",
            "trunkline_ec2_throttled_attempts_total{action=\"CreateTags\"} 0",
        ] {
            assert!(text.lines().any(|l| l == line), "missing {line} in\n{text}");
        }
    }
}
