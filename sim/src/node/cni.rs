//! CNI ADD's look at a pod, exactly as the VPC CNI does it (`contract.md` §23.2).
//!
//! Two things are surprising and therefore copied with care: only `containers[0].resources.limits` counts, by key
//! *prefix*; and of the annotation only element 0 is used, its keys compared without regard to case (Go's decoder), so
//! that `vlanID` and `vlanId` are one key. Nothing else is checked: no UID, no existence, no association.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Map, Value};

/// The annotation and the resource (`contract.md` §6).
pub const POD_ENI: &str = "vpc.amazonaws.com/pod-eni";

/// The address family of the cluster: decides which address, CIDR and gateway ADD needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Family {
    /// IPv4 cluster.
    V4,
    /// IPv6 cluster.
    V6,
}

/// What ADD takes from the annotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Branch {
    /// `eniId`; the CNI does not need it.
    pub eni: String,
    /// `ifAddress`.
    pub mac: String,
    /// `vlanId`.
    pub vlan: u16,
    /// `privateIp` or `ipv6Addr`, by family.
    pub ip: String,
}

/// Why ADD fails. The runtime tries again without limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// No annotation yet.
    #[error("no annotation {POD_ENI} on the pod")]
    NoAnnotation,
    /// The annotation is not a JSON array of objects.
    #[error("failed to read the annotation: {0}")]
    Unreadable(String),
    /// The array is empty.
    #[error("the annotation is an empty list")]
    Empty,
    /// A field of element 0 that ADD needs is missing or empty.
    #[error("the annotation's first element lacks {0}")]
    Missing(&'static str),
    /// The family's CIDR is not one.
    #[error("the annotation's subnet '{0}' is not a CIDR block")]
    Subnet(String),
    /// The node has no trunk link yet.
    #[error("the trunk is not known yet")]
    NoTrunk,
    /// ADDs are held by an admin call.
    #[error("held by the test")]
    Held,
    /// The link could not be made.
    #[error("failed to make the link: {0}")]
    Link(String),
}

/// Whether the CNI would give the pod a branch: the first container's limits have a key that starts with the
/// resource's name.
pub fn wants_branch(pod: &Pod) -> bool {
    pod.spec
        .as_ref()
        .and_then(|s| s.containers.first())
        .and_then(|c| c.resources.as_ref())
        .and_then(|r| r.limits.as_ref())
        .is_some_and(|limits| limits.keys().any(|key| key.starts_with(POD_ENI)))
}

/// Reads element 0 of the pod's annotation.
pub fn branch_of(pod: &Pod, family: Family) -> Result<Branch, AddError> {
    let annotation = pod
        .metadata
        .annotations
        .as_ref()
        .and_then(|a| a.get(POD_ENI))
        .ok_or(AddError::NoAnnotation)?;
    read_annotation(annotation, family)
}

/// Reads element 0 of an annotation's text.
pub fn read_annotation(text: &str, family: Family) -> Result<Branch, AddError> {
    let elements: Vec<Map<String, Value>> =
        serde_json::from_str(text).map_err(|e| AddError::Unreadable(e.to_string()))?;
    let first = elements.first().ok_or(AddError::Empty)?;
    // Go decodes the whole array into its struct: a field of the wrong type anywhere fails all of it.
    for element in &elements {
        check_types(element)?;
    }
    let (ip_key, cidr_key, gateway_width) = match family {
        Family::V4 => ("privateIp", "subnetCidr", 32),
        Family::V6 => ("ipv6Addr", "subnetV6Cidr", 128),
    };
    let ip = text_of(first, ip_key);
    if ip.is_empty() {
        return Err(AddError::Missing(ip_key));
    }
    let cidr = text_of(first, cidr_key);
    if cidr.is_empty() {
        return Err(AddError::Missing(cidr_key));
    }
    if !is_cidr(&cidr, family, gateway_width) {
        return Err(AddError::Subnet(cidr));
    }
    let mac = text_of(first, "ifAddress").to_ascii_lowercase();
    if mac.is_empty() {
        return Err(AddError::Missing("ifAddress"));
    }
    let vlan = field(first, "vlanId").and_then(Value::as_i64).unwrap_or(0);
    let vlan = u16::try_from(vlan).ok().filter(|v| *v != 0).ok_or(AddError::Missing("vlanId"))?;
    Ok(Branch { eni: text_of(first, "eniId"), mac, vlan, ip })
}

/// The last key that matches wins, as in Go's decoder.
fn field<'a>(element: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    element.iter().filter(|(k, _)| k.eq_ignore_ascii_case(key)).map(|(_, v)| v).next_back()
}

fn text_of(element: &Map<String, Value>, key: &str) -> String {
    field(element, key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn check_types(element: &Map<String, Value>) -> Result<(), AddError> {
    for key in ["eniId", "ifAddress", "privateIp", "ipv6Addr", "subnetCidr", "subnetV6Cidr"] {
        if field(element, key).is_some_and(|v| !v.is_string() && !v.is_null()) {
            return Err(AddError::Unreadable(format!("{key} is not a string")));
        }
    }
    match field(element, "vlanId") {
        None | Some(Value::Null) => Ok(()),
        Some(v) if v.as_i64().is_some() => Ok(()),
        Some(_) => Err(AddError::Unreadable("vlanId is not an integer".to_owned())),
    }
}

fn is_cidr(text: &str, family: Family, width: u8) -> bool {
    let Some((base, prefix)) = text.split_once('/') else {
        return false;
    };
    let base_ok = match family {
        Family::V4 => base.parse::<std::net::Ipv4Addr>().is_ok(),
        Family::V6 => base.parse::<std::net::Ipv6Addr>().is_ok(),
    };
    base_ok && prefix.parse::<u8>().is_ok_and(|p| p <= width)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"[{"eniId":"eni-0123456789abcdef0","ifAddress":"02:11:22:33:44:5F","privateIp":"10.0.1.17","ipv6Addr":"","vlanId":3,"subnetCidr":"10.0.1.0/24","subnetV6Cidr":"","associationID":"trunk-assoc-1"}]"#;

    #[test]
    fn a_good_annotation_gives_the_first_elements_branch() {
        let branch = read_annotation(GOOD, Family::V4).unwrap();
        assert_eq!(branch.eni, "eni-0123456789abcdef0");
        assert_eq!((branch.vlan, branch.ip.as_str()), (3, "10.0.1.17"));
        assert_eq!(branch.mac, "02:11:22:33:44:5f");
    }

    #[test]
    fn keys_are_compared_without_regard_to_case() {
        let text = GOOD.replace("vlanId", "vlanID").replace("privateIp", "PRIVATEIP");
        assert_eq!(read_annotation(&text, Family::V4).unwrap().vlan, 3);
    }

    #[test]
    fn the_familys_address_and_subnet_are_needed() {
        assert_eq!(read_annotation(GOOD, Family::V6), Err(AddError::Missing("ipv6Addr")));
        let no_cidr = GOOD.replace("10.0.1.0/24", "");
        assert_eq!(read_annotation(&no_cidr, Family::V4), Err(AddError::Missing("subnetCidr")));
        let bad_cidr = GOOD.replace("10.0.1.0/24", "10.0.1.0/33");
        assert!(matches!(read_annotation(&bad_cidr, Family::V4), Err(AddError::Subnet(_))));
    }

    #[test]
    fn t11_bad_annotations_are_refused() {
        for (text, error) in [
            (GOOD.replace("\"vlanId\":3", "\"vlanId\":0"), AddError::Missing("vlanId")),
            (GOOD.replace("\"vlanId\":3", "\"vlanId\":-1"), AddError::Missing("vlanId")),
            (GOOD.replace("02:11:22:33:44:5F", ""), AddError::Missing("ifAddress")),
            ("[]".to_owned(), AddError::Empty),
        ] {
            assert_eq!(read_annotation(&text, Family::V4), Err(error), "{text}");
        }
        for text in ["", "{}", "[1]", "null", &GOOD.replace("\"vlanId\":3", "\"vlanId\":\"3\"")] {
            assert!(
                matches!(read_annotation(text, Family::V4), Err(AddError::Unreadable(_))),
                "{text}"
            );
        }
    }

    #[test]
    fn only_the_first_containers_limits_count() {
        let pod = |json: serde_json::Value| -> Pod { serde_json::from_value(json).unwrap() };
        let limits = serde_json::json!({"limits": {POD_ENI: "1"}});
        let first =
            pod(serde_json::json!({"spec": {"containers": [{"name": "a", "resources": limits}]}}));
        let second = pod(
            serde_json::json!({"spec": {"containers": [{"name": "a"}, {"name": "b", "resources": limits}]}}),
        );
        let requests = pod(serde_json::json!({"spec": {"containers": [
            {"name": "a", "resources": {"requests": {POD_ENI: "1"}}}]}}));
        assert!(wants_branch(&first));
        assert!(!wants_branch(&second));
        assert!(!wants_branch(&requests));
    }
}
