//! Reading and writing the pod annotation `vpc.amazonaws.com/pod-eni` (`ANN-1`, `ANN-2`).
//!
//! Written byte for byte as the peer writes it: a compact JSON array, every key always present and in the peer's order,
//! because other programs parse it too (S54). Read without regard to the case of keys, unknown keys ignored, as the CNI
//! reads it; but an id or a VLAN that cannot be right makes the whole annotation unreadable, which keeps every ENI it might
//! have meant (T1, T11).

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::Serialize;
use serde_json::{Map, Value};
use trunkline_core::annotation::{AnnotatedBranch, Annotation, AnnotationReader, NamedBranch};
use trunkline_core::id::{EniId, VlanId};

/// For `core`.
pub const READER: AnnotationReader = AnnotationReader(read);

/// One element, in the peer's order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Element<'a> {
    eni_id: &'a str,
    if_address: String,
    private_ip: String,
    #[serde(rename = "ipv6Addr")]
    ipv6_addr: String,
    vlan_id: u8,
    subnet_cidr: &'a str,
    #[serde(rename = "subnetV6Cidr")]
    subnet_v6_cidr: &'a str,
    #[serde(rename = "associationID")]
    association_id: &'a str,
}

/// The text for these branches.
pub fn write(branches: &[AnnotatedBranch]) -> String {
    let elements: Vec<Element<'_>> = branches
        .iter()
        .map(|b| Element {
            eni_id: b.eni.as_str(),
            if_address: b.mac.to_string(),
            private_ip: b.ipv4.map(|ip: Ipv4Addr| ip.to_string()).unwrap_or_default(),
            ipv6_addr: b.ipv6.map(|ip: Ipv6Addr| ip.to_string()).unwrap_or_default(),
            vlan_id: b.vlan.get(),
            subnet_cidr: &b.cidrs.v4,
            subnet_v6_cidr: &b.cidrs.v6,
            association_id: b.association.as_str(),
        })
        .collect();
    // Plain strings and numbers always serialise.
    serde_json::to_string(&elements).unwrap_or_default()
}

/// What a text names.
pub fn read(text: &str) -> Annotation {
    match parse(text) {
        Ok(branches) => Annotation::Names(branches),
        Err(problem) => Annotation::Unreadable(problem),
    }
}

fn parse(text: &str) -> Result<Vec<NamedBranch>, String> {
    let value: Value = serde_json::from_str(text).map_err(|e| format!("it is not JSON: {e}"))?;
    let Value::Array(elements) = value else {
        return Err("it is not a JSON array".into());
    };
    elements
        .iter()
        .enumerate()
        .map(|(index, e)| element(e).map_err(|p| format!("element {index}: {p}")))
        .collect()
}

fn element(value: &Value) -> Result<NamedBranch, String> {
    let Value::Object(object) = value else {
        return Err("it is not an object".into());
    };
    let text = |key: &str| field(object, key).and_then(Value::as_str);
    let eni = text("eniId").ok_or("it has no text 'eniId'")?;
    let vlan = match field(object, "vlanId") {
        Some(Value::Number(n)) => {
            n.as_i64().ok_or_else(|| format!("VLAN id {n} is not an integer"))
        }
        Some(other) => Err(format!("VLAN id {other} is not a number")),
        None => Err("it has no 'vlanId'".into()),
    }?;
    Ok(NamedBranch {
        eni: EniId::new(eni).map_err(|e| e.to_string())?,
        vlan: VlanId::new(vlan).map_err(|e| e.to_string())?,
        mac: text("ifAddress").and_then(|t| t.parse().ok()),
        ipv4: text("privateIp").and_then(|t| t.parse().ok()),
        ipv6: text("ipv6Addr").and_then(|t| t.parse().ok()),
        association: text("associationID").and_then(|t| t.parse().ok()),
    })
}

/// A key without regard to case, the exact spelling first, as the CNI's decoder does (`ANN-2`).
fn field<'a>(object: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    object
        .get(key)
        .or_else(|| object.iter().find(|(k, _)| k.eq_ignore_ascii_case(key)).map(|(_, v)| v))
}

#[cfg(test)]
mod tests {
    use trunkline_core::eni::SubnetCidrs;

    use super::*;

    const PEER: &str = r#"[{"eniId":"eni-0123456789abcdef0","ifAddress":"02:11:22:33:44:55","privateIp":"10.0.1.17","ipv6Addr":"","vlanId":3,"subnetCidr":"10.0.1.0/24","subnetV6Cidr":"","associationID":"trunk-assoc-0123456789abcdef0"}]"#;

    fn branch() -> AnnotatedBranch {
        AnnotatedBranch {
            eni: "eni-0123456789abcdef0".parse().unwrap(),
            mac: "02:11:22:33:44:55".parse().unwrap(),
            ipv4: Some("10.0.1.17".parse().unwrap()),
            ipv6: None,
            vlan: VlanId::new(3).unwrap(),
            cidrs: SubnetCidrs { v4: "10.0.1.0/24".into(), v6: String::new() },
            association: "trunk-assoc-0123456789abcdef0".parse().unwrap(),
        }
    }

    #[test]
    fn s54_the_text_is_byte_for_byte_the_peers() {
        assert_eq!(write(&[branch()]), PEER);
        let dual = AnnotatedBranch {
            ipv6: Some("2001:db8::17".parse().unwrap()),
            cidrs: SubnetCidrs { v4: "10.0.1.0/24".into(), v6: "2001:db8::/64".into() },
            ..branch()
        };
        assert!(write(&[dual]).contains(r#""ipv6Addr":"2001:db8::17","vlanId":3,"subnetCidr":"10.0.1.0/24","subnetV6Cidr":"2001:db8::/64""#));
        assert_eq!(write(&[]), "[]");
    }

    #[test]
    fn what_is_written_is_read_back() {
        let Annotation::Names(named) = read(PEER) else { panic!("unreadable") };
        assert_eq!(named.len(), 1);
        assert_eq!(named[0].eni, branch().eni);
        assert_eq!(named[0].vlan, branch().vlan);
        assert_eq!(named[0].mac, Some(branch().mac));
        assert_eq!(named[0].association, Some(branch().association));
    }

    #[test]
    fn keys_are_read_in_any_case_and_unknown_ones_ignored() {
        let text = r#"[{"ENIID":"eni-01234567","vlanID":7,"ifaddress":"x","newKey":{"a":1}}]"#;
        let Annotation::Names(named) = read(text) else { panic!("unreadable") };
        assert_eq!(named[0].vlan.get(), 7);
        assert_eq!(named[0].mac, None);
        assert_eq!(named[0].association, None);
    }

    #[test]
    fn t1_t11_what_cannot_be_right_is_unreadable_never_empty() {
        for text in [
            "",
            "{}",
            "null",
            "[1]",
            "[{}]",
            r#"[{"eniId":"eni-01234567"}]"#,
            r#"[{"eniId":"eni-","vlanId":1}]"#,
            r#"[{"eniId":"eni-01234567","vlanId":"1"}]"#,
            r#"[{"eniId":"eni-01234567","vlanId":0}]"#,
            r#"[{"eniId":"eni-01234567","vlanId":121}]"#,
            r#"[{"eniId":"eni-01234567","vlanId":4095}]"#,
            r#"[{"eniId":"eni-01234567","vlanId":-1}]"#,
            r#"[{"eniId":"eni-01234567","vlanId":1.5}]"#,
        ] {
            assert!(matches!(read(text), Annotation::Unreadable(_)), "{text}");
        }
    }
}
