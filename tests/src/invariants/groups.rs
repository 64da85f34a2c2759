//! The groups that a pod's policies give it (`POL-1` to `POL-7`), computed apart from the product.
//!
//! A pod keeps the groups of its allocation (`POL-11`), so it is judged only if none of its namespace's policies was made
//! or changed after it. Node groups are those of the instance at launch.

use super::evidence::Evidence;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::DynamicObject;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use trunkline_sim::ec2::model::EniState;

/// Compares an ENI's groups with what the policies say.
pub fn check(evidence: &Evidence, pod: &Pod, instance: &str, eni: &EniState) -> Result<(), String> {
    let namespace = pod.namespace();
    let policies: Vec<_> =
        evidence.policies.iter().filter(|policy| policy.namespace() == namespace).collect();
    let born = pod.metadata.creation_timestamp.as_ref();
    let later = policies.iter().any(|policy| {
        policy.metadata.generation != Some(1) || policy.metadata.creation_timestamp.as_ref() > born
    });
    if later {
        return Ok(());
    }
    let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
    let account = evidence
        .accounts
        .iter()
        .find(|a| a.namespace() == namespace && Some(a.name_any()) == account);
    let account_labels = account.map(|account| account.labels().clone());
    let wanted: BTreeSet<String> = policies
        .iter()
        .filter(|policy| matches(policy, pod.labels(), account_labels.as_ref()))
        .flat_map(|policy| groups_of(policy))
        .collect();
    let wanted = if wanted.is_empty() {
        let node = evidence.ec2.instances.iter().find(|i| i.id == instance);
        node.map(|node| node.groups.iter().cloned().collect()).unwrap_or_default()
    } else {
        wanted
    };
    let has: BTreeSet<_> = eni.groups.iter().cloned().collect();
    if has == wanted {
        Ok(())
    } else {
        Err(format!("{} has groups {has:?}, wanted {wanted:?}", eni.id))
    }
}

fn groups_of(policy: &DynamicObject) -> Vec<String> {
    let ids = policy.data.pointer("/spec/securityGroups/groupIds").and_then(Value::as_array);
    ids.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

type Labels = BTreeMap<String, String>;

fn matches(policy: &DynamicObject, pod: &Labels, account: Option<&Labels>) -> bool {
    let pod_selector = policy.data.pointer("/spec/podSelector");
    let account_selector = policy.data.pointer("/spec/serviceAccountSelector");
    if pod_selector.is_none() && account_selector.is_none() {
        return false;
    }
    pod_selector.is_none_or(|selector| selects(selector, pod))
        && account_selector
            .is_none_or(|selector| account.is_some_and(|labels| selects(selector, labels)))
}

fn selects(selector: &Value, labels: &Labels) -> bool {
    let equal = selector.get("matchLabels").and_then(Value::as_object);
    let equal = equal
        .into_iter()
        .flatten()
        .all(|(key, value)| labels.get(key).map(String::as_str) == value.as_str());
    let rules = selector.get("matchExpressions").and_then(Value::as_array);
    equal && rules.into_iter().flatten().all(|rule| satisfied(rule, labels))
}

fn satisfied(rule: &Value, labels: &Labels) -> bool {
    let text = |key: &str| rule.get(key).and_then(Value::as_str).unwrap_or_default();
    let values = rule.get("values").and_then(Value::as_array);
    let values: Vec<_> = values.into_iter().flatten().filter_map(Value::as_str).collect();
    let has = labels.get(text("key"));
    match text("operator") {
        "In" => has.is_some_and(|value| values.contains(&value.as_str())),
        "NotIn" => has.is_none_or(|value| !values.contains(&value.as_str())),
        "Exists" => has.is_some(),
        "DoesNotExist" => has.is_none(),
        _ => false,
    }
}
