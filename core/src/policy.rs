//! Which security groups a pod gets: `SecurityGroupPolicy` matching (`POL-1`…`POL-7`, `D20`).
//!
//! Matching is done in two steps, because the account's labels cost an API call that must not be made, and cannot fail,
//! when no policy of the namespace needs them: [`candidates`] looks at the pod's labels only and says whether the account
//! is needed; [`Candidates::resolve`] finishes with the account's labels.
//!
//! "No policy matches" is an answer here, and only here: it is given for a whole, successful list. An unreadable list never
//! reaches this module (I6).

use std::collections::{BTreeMap, BTreeSet};

use crate::id::SecurityGroupId;

/// Labels of a pod or an account.
pub type Labels = BTreeMap<String, String>;

/// A policy as the API server serves it, selectors still unchecked.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Policy {
    /// `metadata.name`; results are ordered by it (`POL-7`).
    pub name: String,
    /// `spec.podSelector`.
    pub pods: Option<RawSelector>,
    /// `spec.serviceAccountSelector`.
    pub accounts: Option<RawSelector>,
    /// `spec.securityGroups.groupIds`.
    pub groups: Vec<String>,
}

/// A label selector as written.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct RawSelector {
    /// `matchLabels`.
    pub labels: Labels,
    /// `matchExpressions`.
    pub expressions: Vec<RawExpression>,
}

/// One entry of `matchExpressions`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct RawExpression {
    /// Label key.
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist` (`CRD-1`).
    pub operator: String,
    /// Values of `In` and `NotIn`.
    pub values: Vec<String>,
}

/// Why a policy was left out (`POL-5`, `POL-6`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Skip {
    /// `POL-5`.
    #[error("it has neither podSelector nor serviceAccountSelector")]
    NoSelector,
    /// `POL-5`.
    #[error("it names no security group")]
    NoGroups,
    /// `POL-6`.
    #[error("its {which} cannot be used: {problem}")]
    BadSelector {
        /// `podSelector` or `serviceAccountSelector`.
        which: &'static str,
        /// What is wrong.
        problem: String,
    },
}

/// A policy that matches names something that is no group id. The pod waits: taking the other groups would leave out one
/// that the user asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[error("policy {policy} names '{group}', which is not a security group id")]
pub struct BadGroup {
    /// Policy name.
    pub policy: String,
    /// The text.
    pub group: String,
}

/// What matched.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Matched {
    /// Groups of all matching policies, in the order of the policies' names, duplicates removed, first kept (`POL-7`).
    /// Empty: no policy matches.
    pub groups: Vec<SecurityGroupId>,
    /// Names of the matching policies.
    pub policies: Vec<String>,
}

/// The policies of a namespace that may match a pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Candidates {
    sure: Vec<Policy>,
    by_account: Vec<(Policy, Selector)>,
    skipped: Vec<(String, Skip)>,
}

/// First step: looks at the selectors and at the pod's labels.
pub fn candidates(mut policies: Vec<Policy>, pod: &Labels) -> Candidates {
    policies.sort_by(|a, b| a.name.cmp(&b.name));
    let mut found = Candidates::default();
    for policy in policies {
        match check(&policy, pod) {
            Ok(Match::No) => {}
            Ok(Match::Yes) => found.sure.push(policy),
            Ok(Match::IfAccount(selector)) => found.by_account.push((policy, selector)),
            Err(skip) => found.skipped.push((policy.name, skip)),
        }
    }
    found
}

enum Match {
    No,
    Yes,
    IfAccount(Selector),
}

fn check(policy: &Policy, pod: &Labels) -> Result<Match, Skip> {
    if policy.groups.is_empty() {
        return Err(Skip::NoGroups);
    }
    let convert = |raw: &Option<RawSelector>, which| {
        raw.as_ref()
            .map(|raw| Selector::new(raw).map_err(|problem| Skip::BadSelector { which, problem }))
            .transpose()
    };
    let pods = convert(&policy.pods, "podSelector")?;
    let accounts = convert(&policy.accounts, "serviceAccountSelector")?;
    if pods.is_none() && accounts.is_none() {
        return Err(Skip::NoSelector);
    }
    if pods.is_some_and(|s| !s.matches(pod)) {
        return Ok(Match::No);
    }
    Ok(match accounts {
        Some(selector) if !selector.is_everything() => Match::IfAccount(selector),
        _ => Match::Yes,
    })
}

impl Candidates {
    /// Whether the account's labels decide anything (`D20`).
    pub fn needs_account(&self) -> bool {
        !self.by_account.is_empty()
    }

    /// Policies that were left out, and why; for the log.
    pub fn skipped(&self) -> &[(String, Skip)] {
        &self.skipped
    }

    /// Second step. `account` are the labels of the pod's account; they are looked at only if
    /// [`Self::needs_account`].
    pub fn resolve(self, account: &Labels) -> Result<Matched, BadGroup> {
        let mut matching = self.sure;
        matching.extend(
            self.by_account.into_iter().filter(|(_, s)| s.matches(account)).map(|(p, _)| p),
        );
        matching.sort_by(|a, b| a.name.cmp(&b.name));
        let mut result = Matched::default();
        let mut seen = BTreeSet::new();
        for policy in matching {
            for text in policy.groups {
                let Ok(group) = SecurityGroupId::new(&text) else {
                    return Err(BadGroup { policy: policy.name, group: text });
                };
                if seen.insert(text) {
                    result.groups.push(group);
                }
            }
            result.policies.push(policy.name);
        }
        Ok(result)
    }
}

/// A label selector that was checked by the API server's own rules.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Selector(Vec<Requirement>);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Requirement {
    In(String, BTreeSet<String>),
    NotIn(String, BTreeSet<String>),
    Exists(String),
    DoesNotExist(String),
}

impl Selector {
    fn new(raw: &RawSelector) -> Result<Self, String> {
        let mut requirements = Vec::new();
        for (key, value) in &raw.labels {
            check_key(key)?;
            check_value(value)?;
            requirements.push(Requirement::In(key.clone(), BTreeSet::from([value.clone()])));
        }
        for expression in &raw.expressions {
            requirements.push(requirement(expression)?);
        }
        Ok(Self(requirements))
    }

    fn is_everything(&self) -> bool {
        self.0.is_empty()
    }

    fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| match requirement {
            Requirement::In(key, values) => labels.get(key).is_some_and(|v| values.contains(v)),
            // A missing label satisfies NotIn, as everywhere in Kubernetes.
            Requirement::NotIn(key, values) => labels.get(key).is_none_or(|v| !values.contains(v)),
            Requirement::Exists(key) => labels.contains_key(key),
            Requirement::DoesNotExist(key) => !labels.contains_key(key),
        })
    }
}

fn requirement(raw: &RawExpression) -> Result<Requirement, String> {
    check_key(&raw.key)?;
    let key = raw.key.clone();
    let values = || -> Result<BTreeSet<String>, String> {
        if raw.values.is_empty() {
            return Err(format!("operator {} of key '{}' needs values", raw.operator, raw.key));
        }
        raw.values.iter().map(|v| check_value(v).map(|()| v.clone())).collect()
    };
    let no_values = || {
        if raw.values.is_empty() {
            Ok(())
        } else {
            Err(format!("operator {} of key '{}' takes no values", raw.operator, raw.key))
        }
    };
    match raw.operator.as_str() {
        "In" => Ok(Requirement::In(key, values()?)),
        "NotIn" => Ok(Requirement::NotIn(key, values()?)),
        "Exists" => no_values().map(|()| Requirement::Exists(key)),
        "DoesNotExist" => no_values().map(|()| Requirement::DoesNotExist(key)),
        other => Err(format!("'{other}' is not an operator")),
    }
}

/// A qualified name: an optional DNS prefix and `/`, then 1 to 63 characters.
fn check_key(key: &str) -> Result<(), String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let prefix_is_dns = prefix.is_none_or(|p| {
        !p.is_empty()
            && p.len() <= 253
            && p.split('.').all(|label| {
                !label.is_empty()
                    && label
                        .bytes()
                        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
                    && !label.starts_with('-')
                    && !label.ends_with('-')
            })
    });
    if prefix_is_dns && !name.is_empty() && is_label_text(name) {
        Ok(())
    } else {
        Err(format!("'{key}' is not a label key"))
    }
}

fn check_value(value: &str) -> Result<(), String> {
    if value.is_empty() || is_label_text(value) {
        Ok(())
    } else {
        Err(format!("'{value}' is not a label value"))
    }
}

fn is_label_text(text: &str) -> bool {
    let alphanumeric_at = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    text.len() <= 63
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && alphanumeric_at(text.as_bytes().first())
        && alphanumeric_at(text.as_bytes().last())
}

#[cfg(test)]
#[expect(
    clippy::unnecessary_wraps,
    clippy::type_complexity,
    reason = "helpers have the shape of the field they fill; a table of cases"
)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    fn by_labels(pairs: &[(&str, &str)]) -> Option<RawSelector> {
        Some(RawSelector { labels: labels(pairs), expressions: vec![] })
    }

    fn by_expression(key: &str, operator: &str, values: &[&str]) -> Option<RawSelector> {
        let values = values.iter().map(|v| (*v).to_owned()).collect();
        let expression = RawExpression { key: key.into(), operator: operator.into(), values };
        Some(RawSelector { labels: Labels::new(), expressions: vec![expression] })
    }

    fn policy(
        name: &str,
        pods: Option<RawSelector>,
        accounts: Option<RawSelector>,
        groups: &[&str],
    ) -> Policy {
        Policy {
            name: name.into(),
            pods,
            accounts,
            groups: groups.iter().map(|g| (*g).to_owned()).collect(),
        }
    }

    fn groups(policies: Vec<Policy>, pod: &Labels, account: &Labels) -> Vec<String> {
        let matched = candidates(policies, pod).resolve(account).unwrap();
        matched.groups.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn s41_all_matches_are_united_in_name_order_without_duplicates_and_empty_ones_are_ignored() {
        let pod = labels(&[("app", "web")]);
        let account = labels(&[("team", "a")]);
        let policies = vec![
            policy(
                "c",
                by_labels(&[("app", "web")]),
                by_labels(&[("team", "a")]),
                &["sg-3", "sg-1"],
            ),
            policy("a", by_labels(&[("app", "web")]), None, &["sg-1", "sg-2", "sg-1"]),
            policy("b", None, by_labels(&[("team", "a")]), &["sg-2", "sg-4"]),
            policy("d", None, None, &["sg-9"]),
            policy("e", by_labels(&[]), None, &[]),
        ];
        let found = candidates(policies.clone(), &pod);
        assert!(found.needs_account());
        assert_eq!(
            found.skipped(),
            [("d".to_owned(), Skip::NoSelector), ("e".to_owned(), Skip::NoGroups)]
        );
        assert_eq!(groups(policies, &pod, &account), ["sg-1", "sg-2", "sg-4", "sg-3"]);
    }

    #[test]
    fn both_selectors_have_to_match() {
        let both = || {
            vec![policy("a", by_labels(&[("app", "web")]), by_labels(&[("team", "a")]), &["sg-1"])]
        };
        let (web, team) = (labels(&[("app", "web")]), labels(&[("team", "a")]));
        assert_eq!(groups(both(), &web, &team), ["sg-1"]);
        assert!(groups(both(), &web, &Labels::new()).is_empty());
        assert!(groups(both(), &Labels::new(), &team).is_empty());
        assert!(
            !candidates(both(), &Labels::new()).needs_account(),
            "the pod's labels ruled the policy out"
        );
    }

    #[test]
    fn an_empty_selector_matches_everything_and_needs_no_account() {
        let all = vec![policy("a", by_labels(&[]), by_labels(&[]), &["sg-1"])];
        assert!(!candidates(all.clone(), &Labels::new()).needs_account());
        assert_eq!(groups(all, &Labels::new(), &Labels::new()), ["sg-1"]);
    }

    #[test]
    fn operators_follow_the_api_server() {
        let cases: [(&str, &[&str], &[(&str, &str)], bool); 8] = [
            ("In", &["a", "b"], &[("k", "b")], true),
            ("In", &["a"], &[], false),
            ("NotIn", &["a"], &[("k", "b")], true),
            ("NotIn", &["a"], &[], true),
            ("NotIn", &["a"], &[("k", "a")], false),
            ("Exists", &[], &[("k", "")], true),
            ("DoesNotExist", &[], &[("k", "")], false),
            ("DoesNotExist", &[], &[], true),
        ];
        for (operator, values, pod, expected) in cases {
            let policies = vec![policy("p", by_expression("k", operator, values), None, &["sg-1"])];
            assert_eq!(
                !groups(policies, &labels(pod), &Labels::new()).is_empty(),
                expected,
                "{operator} {values:?} {pod:?}"
            );
        }
    }

    #[test]
    fn a_selector_that_cannot_be_converted_does_not_match_and_says_why() {
        for (key, operator, values) in [
            ("k", "Like", &[][..]),
            ("k", "In", &[]),
            ("k", "Exists", &["v"]),
            ("", "Exists", &[]),
            ("a/b/c", "Exists", &[]),
            ("UPPER.io/x", "Exists", &[]),
            ("k", "In", &["not a value"]),
        ] {
            let policies = vec![policy("p", by_expression(key, operator, values), None, &["sg-1"])];
            let found = candidates(policies, &labels(&[("k", "v")]));
            assert!(matches!(found.skipped(), [(_, Skip::BadSelector { .. })]), "{key} {operator}");
            assert_eq!(found.resolve(&Labels::new()).unwrap(), Matched::default());
        }
    }

    #[test]
    fn a_matching_policy_with_an_impossible_group_id_is_an_error_not_a_smaller_set() {
        let policies = vec![policy("p", by_labels(&[]), None, &["sg-1", "my group"])];
        let error = candidates(policies, &Labels::new()).resolve(&Labels::new()).unwrap_err();
        assert_eq!(error, BadGroup { policy: "p".into(), group: "my group".into() });
        let elsewhere = vec![policy("p", by_labels(&[("x", "y")]), None, &["my group"])];
        assert!(groups(elsewhere, &Labels::new(), &Labels::new()).is_empty());
    }
}
