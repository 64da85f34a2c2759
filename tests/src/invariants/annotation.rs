//! I4: every live pod that asked for a branch ends with exactly one annotation, for its own UID, that names an existing,
//! associated ENI with the right groups and subnet, or with a Warning event that says why not.
//!
//! The annotation is read the strict way (S54): the bytes must be those that the peer writes, keys in the order of `ANN-1`.

use super::evidence::{Evidence, POD_UID};
use super::{Violation, groups};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde::{Deserialize, Serialize};
use trunkline_sim::ec2::model::EniState;

/// One element of the annotation; the fields are in the order of `ANN-1`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Branch {
    /// Branch ENI id.
    #[serde(rename = "eniId")]
    pub eni_id: String,
    /// MAC.
    #[serde(rename = "ifAddress")]
    pub mac: String,
    /// Primary IPv4 or empty.
    #[serde(rename = "privateIp")]
    pub ipv4: String,
    /// IPv6 or empty.
    #[serde(rename = "ipv6Addr")]
    pub ipv6: String,
    /// VLAN id.
    #[serde(rename = "vlanId")]
    pub vlan: u32,
    /// IPv4 CIDR of the branch's subnet.
    #[serde(rename = "subnetCidr")]
    pub cidr: String,
    /// IPv6 CIDR or empty.
    #[serde(rename = "subnetV6Cidr")]
    pub cidr_v6: String,
    /// Trunk association id.
    #[serde(rename = "associationID")]
    pub association: String,
}

impl Branch {
    /// Reads an annotation strictly: known keys only, and the same bytes when written again.
    pub fn all(text: &str) -> Result<Vec<Self>, String> {
        let branches: Vec<Self> = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let again = serde_json::to_string(&branches).map_err(|error| error.to_string())?;
        if again == text { Ok(branches) } else { Err(format!("not in the peer's form: {text}")) }
    }
}

/// Checks every pod that is there.
pub fn check(evidence: &Evidence) -> Vec<Violation> {
    let mut found = Vec::new();
    for pod in &evidence.pods {
        let uid = pod.uid().unwrap_or_default();
        let states = evidence.history.of(&uid);
        let Some(last) = states.last() else { continue };
        let judged = last.can_run() && !last.terminating && last.wants > 0 && !last.node.is_empty();
        if !judged || evidence.rules.excused.contains(&uid) {
            continue;
        }
        if let Err(why) = pod_is_served(evidence, pod, &last.node, last.wants)
            && !explained(evidence, &uid)
        {
            found
                .push(Violation::new("I4", format!("pod {}/{}: {why}", last.namespace, last.name)));
        }
    }
    found
}

fn explained(evidence: &Evidence, uid: &str) -> bool {
    evidence.events.iter().any(|event| {
        event.involved_object.uid.as_deref() == Some(uid)
            && event.type_.as_deref() == Some("Warning")
    })
}

fn pod_is_served(evidence: &Evidence, pod: &Pod, node: &str, wants: u32) -> Result<(), String> {
    let text =
        pod.annotations().get(crate::objects::ANNOTATION).ok_or("no annotation and no event")?;
    let branches = Branch::all(text)?;
    if u32::try_from(branches.len()) != Ok(wants) {
        return Err(format!("asked for {wants}, got {}", branches.len()));
    }
    for branch in &branches {
        let eni = evidence
            .ec2
            .eni(&branch.eni_id)
            .ok_or_else(|| format!("{} is not in EC2", branch.eni_id))?;
        matches_eni(evidence, branch, eni, &pod.uid().unwrap_or_default())?;
        let instance = evidence.instance_of(node).unwrap_or_default();
        let trunk = evidence.ec2.trunk_of(&instance).map(|trunk| trunk.id.clone());
        if eni.association.as_ref().map(|association| association.trunk.clone()) != trunk {
            return Err(format!("{} is not on the trunk of {node}", eni.id));
        }
        groups::check(evidence, pod, &instance, eni)?;
    }
    Ok(())
}

fn matches_eni(
    evidence: &Evidence,
    branch: &Branch,
    eni: &EniState,
    uid: &str,
) -> Result<(), String> {
    let differs = |what: &str| Err(format!("{what} of {} differs: {branch:?}, {eni:?}", eni.id));
    if eni.tags.get(POD_UID).map(String::as_str) != Some(uid) {
        return Err(format!("{} is not this pod's", eni.id));
    }
    let Some(association) = &eni.association else {
        return differs("association");
    };
    if association.id != branch.association || association.vlan != branch.vlan {
        return differs("association");
    }
    let ipv6 = eni.ipv6.first().map(ToString::to_string).unwrap_or_default();
    if eni.mac != branch.mac || eni.ipv4.to_string() != branch.ipv4 || ipv6 != branch.ipv6 {
        return differs("address");
    }
    let subnet = evidence.ec2.subnets.iter().find(|subnet| subnet.id == eni.subnet);
    let Some(subnet) = subnet else {
        return differs("subnet");
    };
    if subnet.cidr != branch.cidr || subnet.ipv6_cidr.clone().unwrap_or_default() != branch.cidr_v6
    {
        return differs("subnet");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"[{"eniId":"eni-0123456789abcdef0","ifAddress":"02:11:22:33:44:55","privateIp":"10.0.1.17","ipv6Addr":"","vlanId":3,"subnetCidr":"10.0.1.0/24","subnetV6Cidr":"","associationID":"trunk-assoc-0123456789abcdef0"}]"#;

    #[test]
    fn s54_the_peers_form_is_read_and_nothing_else() {
        assert_eq!(Branch::all(GOOD).unwrap()[0].vlan, 3);
        for (from, to) in [
            ("\"ipv6Addr\":\"\",", ""),
            ("vlanId", "vlanID"),
            ("\"vlanId\":3", "\"vlanId\":\"3\""),
            ("\"vlanId\":3", "\"vlanId\": 3"),
            (
                "\"eniId\":\"eni-0123456789abcdef0\",\"ifAddress\":\"02:11:22:33:44:55\"",
                "\"ifAddress\":\"02:11:22:33:44:55\",\"eniId\":\"eni-0123456789abcdef0\"",
            ),
        ] {
            assert!(Branch::all(&GOOD.replace(from, to)).is_err(), "{from}");
        }
    }
}
