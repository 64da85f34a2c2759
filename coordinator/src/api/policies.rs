//! Reads what group matching needs: policies by a consistent LIST, the account by a GET only if it decides anything (`D20`).

use serde::Deserialize;
use trunkline_core::id::{AccountName, Namespace};
use trunkline_core::node::event::Groups;
use trunkline_core::policy::{self, Labels, Policy, RawExpression, RawSelector};
use trunkline_core::view::Pod;

use super::{Api, ApiError};

#[derive(Deserialize)]
struct PolicyList {
    kind: String,
    items: Vec<PolicyObject>,
    #[serde(default)]
    metadata: ListMeta,
}

#[derive(Deserialize, Default)]
struct ListMeta {
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

#[derive(Deserialize)]
struct PolicyObject {
    metadata: Meta,
    #[serde(default)]
    spec: Option<PolicySpec>,
}

#[derive(Deserialize, Default)]
struct Meta {
    #[serde(default)]
    name: String,
    #[serde(default)]
    labels: Option<Labels>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct PolicySpec {
    #[serde(default)]
    pod_selector: Option<SelectorObject>,
    #[serde(default)]
    service_account_selector: Option<SelectorObject>,
    #[serde(default)]
    security_groups: Option<GroupsObject>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct GroupsObject {
    #[serde(default)]
    group_ids: Option<Vec<String>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct SelectorObject {
    #[serde(default)]
    match_labels: Option<Labels>,
    #[serde(default)]
    match_expressions: Option<Vec<ExpressionObject>>,
}

#[derive(Deserialize)]
struct ExpressionObject {
    key: String,
    operator: String,
    #[serde(default)]
    values: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct AccountObject {
    kind: Option<String>,
    metadata: Meta,
}

impl From<SelectorObject> for RawSelector {
    fn from(object: SelectorObject) -> Self {
        let expression = |e: ExpressionObject| RawExpression {
            key: e.key,
            operator: e.operator,
            values: e.values.unwrap_or_default(),
        };
        Self {
            labels: object.match_labels.unwrap_or_default(),
            expressions: object
                .match_expressions
                .unwrap_or_default()
                .into_iter()
                .map(expression)
                .collect(),
        }
    }
}

impl From<PolicyObject> for Policy {
    fn from(object: PolicyObject) -> Self {
        let spec = object.spec.unwrap_or_default();
        Self {
            name: object.metadata.name,
            pods: spec.pod_selector.map(Into::into),
            accounts: spec.service_account_selector.map(Into::into),
            groups: spec.security_groups.and_then(|g| g.group_ids).unwrap_or_default(),
        }
    }
}

/// The groups of a pod. An error is something to wait for, never "no policy" (design §5, allocation); it is told in a
/// sentence for a person.
pub async fn resolve(api: &Api, pod: &Pod) -> Result<Groups, String> {
    let policies = list(api, &pod.pod.namespace).await?;
    let candidates = policy::candidates(policies, &pod.labels);
    for (name, why) in candidates.skipped() {
        tracing::info!(namespace = %pod.pod.namespace, policy = %name, "SecurityGroupPolicy left out: {why}");
    }
    let account = if candidates.needs_account() {
        account_labels(api, &pod.pod.namespace, pod.account.as_ref()).await?
    } else {
        Labels::new()
    };
    let matched = candidates.resolve(&account).map_err(|e| e.to_string())?;
    Ok(if matched.groups.is_empty() { Groups::NoMatch } else { Groups::Policies(matched.groups) })
}

async fn list(api: &Api, namespace: &Namespace) -> Result<Vec<Policy>, String> {
    let path =
        format!("/apis/vpcresources.k8s.aws/v1beta1/namespaces/{namespace}/securitygrouppolicies");
    let list: PolicyList = match api.get(&path).await {
        Ok(list) => list,
        // A list of a kind that exists is never NotFound: the kind is not registered (POL-9).
        Err(ApiError::NotFound(_) | ApiError::NoSuchPath(_)) => return kind_missing(api).await,
        Err(e) => {
            return Err(format!(
                "the SecurityGroupPolicies of namespace {namespace} cannot be listed: {e}"
            ));
        }
    };
    if list.kind != "SecurityGroupPolicyList" {
        return Err(format!("the list of SecurityGroupPolicies came back as '{}'", list.kind));
    }
    if list.metadata.next.is_some_and(|n| !n.is_empty()) {
        return Err("the list of SecurityGroupPolicies came back in parts".into());
    }
    Ok(list.items.into_iter().map(Into::into).collect())
}

/// `POL-9`, on positive evidence: the group is not served, or is served without the kind. Anything else is an error.
async fn kind_missing(api: &Api) -> Result<Vec<Policy>, String> {
    #[derive(Deserialize)]
    struct GroupList {
        kind: String,
        groups: Vec<Group>,
    }
    #[derive(Deserialize)]
    struct Group {
        name: String,
        versions: Vec<Version>,
    }
    #[derive(Deserialize)]
    struct Version {
        version: String,
    }
    #[derive(Deserialize)]
    struct ResourceList {
        kind: String,
        resources: Vec<Resource>,
    }
    #[derive(Deserialize)]
    struct Resource {
        name: String,
    }
    let unsure =
        |e: String| format!("whether SecurityGroupPolicy is installed cannot be read: {e}");
    let groups: GroupList = api.get("/apis").await.map_err(|e| unsure(e.to_string()))?;
    if groups.kind != "APIGroupList" {
        return Err(unsure(format!("unexpected kind '{}'", groups.kind)));
    }
    let group = groups.groups.iter().find(|g| g.name == "vpcresources.k8s.aws");
    if group.is_some_and(|g| g.versions.iter().any(|v| v.version == "v1beta1")) {
        let served: ResourceList = api
            .get("/apis/vpcresources.k8s.aws/v1beta1")
            .await
            .map_err(|e| unsure(e.to_string()))?;
        if served.kind != "APIResourceList" {
            return Err(unsure(format!("unexpected kind '{}'", served.kind)));
        }
        if served.resources.iter().any(|r| r.name == "securitygrouppolicies") {
            return Err(unsure("its list was answered with 404 although it is served".into()));
        }
    }
    tracing::info!("SecurityGroupPolicy is not installed: pods get the groups of their node");
    Ok(Vec::new())
}

async fn account_labels(
    api: &Api,
    namespace: &Namespace,
    account: Option<&AccountName>,
) -> Result<Labels, String> {
    let Some(account) = account else {
        return Err("a policy selects by service account, and the pod names none".into());
    };
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}");
    let object: AccountObject = api.get(&path).await.map_err(|e| {
        format!(
            "a policy selects by service account, and {namespace}/{account} cannot be read: {e}"
        )
    })?;
    if object.kind.as_deref() != Some("ServiceAccount") || object.metadata.name != account.as_str()
    {
        return Err(format!(
            "the answer for service account {namespace}/{account} is about something else"
        ));
    }
    Ok(object.metadata.labels.unwrap_or_default())
}

#[cfg(test)]
mod tests;
