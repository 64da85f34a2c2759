//! What the peer counts beside its EC2 calls, under its names (`contract.md` §21, `MET-1`), so that dashboards and alerts
//! built for it keep working. Its misspelt names are there under both spellings.
//!
//! Only what has the same meaning here. Left out: Windows and address pools (no such resources), the job queue and the
//! in-memory caches (there are none), the leak cleaner's gauges and `node_termination_eni_cleanup_failures_total` (their
//! cleaners are not part of this program), `unreconciled_trunk_network_interfaces` (ENIConfig nodes are left alone), VLAN
//! steps (VLANs are reserved in the books, which cannot fail that way), and `branch_provider_operation_latency` (quantiles
//! of one process cannot be added up).

use std::collections::BTreeMap;

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use trunkline_core::eni::{Ec2Answer, FailureClass};
use trunkline_core::wait::Step;
use trunkline_ec2::PeerCounter;

use crate::nodes::init::Failed;

/// The resource and the annotation, which have one name.
const POD_ENI: &str = "vpc.amazonaws.com/pod-eni";

const HELP: &str = "As amazon-vpc-resource-controller-k8s counts it";

/// One counter: its name, and its label with its value; both are empty without a label.
type Key = (&'static str, &'static str, &'static str);

const ADVERTISE: [&str; 2] =
    ["advertise_resource_request_call_count", "advertise_resource_request_err_count"];
const ANNOTATE: [&str; 2] = ["annotate_pod_request_call_count", "annotate_pod_request_err_count"];
const GET_POD: [&str; 2] =
    ["get_pod_from_api_server_call_count", "get_pod_from_api_server_err_count"];
const RECREATE: [&str; 2] = ["recreate_cniNode_call_count", "recreate_cniNode_err_count"];
const TRUNK_ERRORS: &str = "trunk_eni_operations_err_count";
const PROVIDER_ERRORS: &str = "branch_provider_operations_err_count";
/// As the peer spells it, and as it is spelt.
const DONE: [&str; 2] =
    ["branch_eni_opeartions_success_count", "branch_eni_operations_success_count"];
const FAILED: [&str; 2] =
    ["branch_eni_opeartions_failure_count", "branch_eni_operations_failure_count"];

/// The peer's counters. Clones share their values.
#[derive(Debug, Clone)]
pub struct PeerMetrics(BTreeMap<Key, PeerCounter>);

impl PeerMetrics {
    /// Registers them, all at 0.
    pub fn register(registry: &mut Registry) -> Self {
        let enabled = Gauge::<i64>::default();
        enabled.set(1);
        registry.register("sgp_enabled", "1: pods get security groups of their own", enabled);
        let mut counters = BTreeMap::new();
        let mut add = |name, key, values: &[&'static str]| {
            let family = values.iter().map(|value| (*value, PeerCounter::default()));
            let family: BTreeMap<_, _> = family.collect();
            for (value, counter) in &family {
                counters.insert((name, key, *value), counter.clone());
            }
            registry.register(name, HELP, PeerCounter::family(key, family));
        };
        for name in ADVERTISE {
            add(name, "resource_name", &[POD_ENI]);
        }
        for name in ANNOTATE {
            add(name, "annotate_key", &[POD_ENI]);
        }
        let operations = [
            "describe_instance_nw_interface",
            "find_free_index",
            "create_trunk_eni",
            "associate_branch",
            "disassociate_trunk_error",
        ];
        add(TRUNK_ERRORS, "operation", &operations);
        let operations =
            ["init", "advertise_capacity", "get_pod_api_server", "annotate_branch_eni"];
        add(PROVIDER_ERRORS, "branch_provider_operation", &operations);
        for name in DONE {
            add(name, "operation", &["created_branch_eni_succeeded", "deleted_branch_succesfully"]);
        }
        for name in FAILED {
            add(name, "operation", &["creating_branch_eni_failed", "delete_branch_error"]);
        }
        for name in GET_POD.into_iter().chain(RECREATE) {
            let counter = PeerCounter::default();
            counters.insert((name, "", ""), counter.clone());
            registry.register(name, HELP, counter);
        }
        Self(counters)
    }

    fn count(&self, name: &'static str, key: &'static str, value: &'static str) {
        if let Some(counter) = self.0.get(&(name, key, value)) {
            counter.inc();
        }
    }

    fn call(&self, names: [&'static str; 2], key: &'static str, value: &'static str, failed: bool) {
        let [calls, errors] = names;
        self.count(calls, key, value);
        if failed {
            self.count(errors, key, value);
        }
    }

    fn provider_error(&self, operation: &'static str) {
        self.count(PROVIDER_ERRORS, "branch_provider_operation", operation);
    }

    /// The capacity was written, or not.
    pub fn advertised(&self, failed: bool) {
        self.call(ADVERTISE, "resource_name", POD_ENI, failed);
        if failed {
            self.provider_error("advertise_capacity");
        }
    }

    /// An annotation was written, or not.
    pub fn annotated(&self, failed: bool) {
        self.call(ANNOTATE, "annotate_key", POD_ENI, failed);
        if failed {
            self.provider_error("annotate_branch_eni");
        }
    }

    /// A live GET of a pod was answered (NotFound is an answer), or not.
    pub fn got_pod(&self, failed: bool) {
        self.call(GET_POD, "", "", failed);
        if failed {
            self.provider_error("get_pod_api_server");
        }
    }

    /// A CNINode that was deleted while its node lives was made anew, or not (`CNN-6`).
    pub fn recreated_cninode(&self, failed: bool) {
        self.call(RECREATE, "", "", failed);
    }

    /// A node's set-up failed.
    pub fn init_failed(&self, failed: &Failed) {
        use trunkline_core::trunk::Refusal;
        self.provider_error("init");
        let operation = match failed {
            Failed::Refused(Refusal::NoFreeSlot(_)) => "find_free_index",
            Failed::Ec2 { what: "create the trunk", .. } => "create_trunk_eni",
            Failed::Incomplete(_) | Failed::Ec2 { what: "describe the instance", .. } => {
                "describe_instance_nw_interface"
            }
            _ => return,
        };
        self.count(TRUNK_ERRORS, "operation", operation);
    }

    /// A step of a branch was answered.
    pub fn branch_step(&self, step: Step, answer: &Ec2Answer) {
        let both = |names: [&'static str; 2], operation| {
            for name in names {
                self.count(name, "operation", operation);
            }
        };
        // The peer has no fence: what was never sent is no failure of EC2.
        let failed = match answer {
            Ok(_) => false,
            Err(failure) if failure.class == FailureClass::Fenced => return,
            Err(_) => true,
        };
        match (step, failed) {
            (Step::Create, false) => both(DONE, "created_branch_eni_succeeded"),
            (Step::Create, true) => both(FAILED, "creating_branch_eni_failed"),
            (Step::Delete, false) => both(DONE, "deleted_branch_succesfully"),
            (Step::Delete, true) => both(FAILED, "delete_branch_error"),
            (Step::Associate, true) => self.count(TRUNK_ERRORS, "operation", "associate_branch"),
            (Step::Disassociate, true) => {
                self.count(TRUNK_ERRORS, "operation", "disassociate_trunk_error");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::failure;

    #[test]
    fn the_peers_names_labels_and_values_are_kept_exactly() {
        let mut registry = Registry::default();
        let metrics = PeerMetrics::register(&mut registry);
        metrics.advertised(false);
        metrics.annotated(true);
        metrics.got_pod(false);
        metrics.recreated_cninode(false);
        metrics.init_failed(&Failed::Incomplete("subnet id"));
        let refused = failure(FailureClass::VlanInUse, "InvalidVlanId.Duplicate");
        metrics.branch_step(Step::Associate, &Err(refused.clone()));
        metrics.branch_step(Step::Delete, &Err(refused));
        metrics.branch_step(Step::Delete, &Ok(trunkline_core::eni::Ec2Reply::Deleted));
        let fenced = failure(FailureClass::Fenced, "");
        metrics.branch_step(Step::Create, &Err(fenced));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "sgp_enabled 1",
            "advertise_resource_request_call_count{resource_name=\"vpc.amazonaws.com/pod-eni\"} 1",
            "advertise_resource_request_err_count{resource_name=\"vpc.amazonaws.com/pod-eni\"} 0",
            "annotate_pod_request_err_count{annotate_key=\"vpc.amazonaws.com/pod-eni\"} 1",
            "get_pod_from_api_server_call_count 1",
            "get_pod_from_api_server_err_count 0",
            "recreate_cniNode_call_count 1",
            "trunk_eni_operations_err_count{operation=\"associate_branch\"} 1",
            "trunk_eni_operations_err_count{operation=\"describe_instance_nw_interface\"} 1",
            "branch_provider_operations_err_count{branch_provider_operation=\"init\"} 1",
            "branch_provider_operations_err_count{branch_provider_operation=\"annotate_branch_eni\"} 1",
            "branch_eni_opeartions_success_count{operation=\"deleted_branch_succesfully\"} 1",
            "branch_eni_operations_success_count{operation=\"deleted_branch_succesfully\"} 1",
            "branch_eni_opeartions_failure_count{operation=\"delete_branch_error\"} 1",
            "branch_eni_opeartions_failure_count{operation=\"creating_branch_eni_failed\"} 0",
        ] {
            assert!(text.lines().any(|l| l == line), "missing {line} in\n{text}");
        }
    }
}
