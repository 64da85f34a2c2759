//! Validated identifiers.
//!
//! Every id that crosses a boundary (EC2, the Kubernetes API, the wire, a journal) is parsed into one of these
//! types once and carried as that type from then on, so that a half-read reply (`eni-`), a swapped argument or an
//! id of another kind cannot travel further than the adapter that read it.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;
use std::sync::Arc;

/// A text that is not a valid id of its kind. The message names the kind, the text and the expected shape.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a valid {kind}: expected {expected}")]
pub struct InvalidId {
    /// What was to be parsed, for example `branch ENI id`.
    pub kind: &'static str,
    /// The shape that was expected.
    pub expected: &'static str,
    /// The refused text, cut to 80 characters.
    pub text: String,
}

impl InvalidId {
    fn new(kind: &'static str, expected: &'static str, text: &str) -> Self {
        Self { kind, expected, text: text.chars().take(80).collect() }
    }
}

/// `prefix` followed by exactly 8 or 17 lower-case hex digits, as EC2 makes its ids.
fn is_ec2_id(text: &str, prefix: &str) -> bool {
    text.strip_prefix(prefix).is_some_and(|hex| {
        (hex.len() == 8 || hex.len() == 17)
            && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
}

/// A Kubernetes object name: 1 to 253 characters of `[a-z0-9.-]`, not starting or ending with a separator.
fn is_object_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 253
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.')
        && !text.starts_with(['-', '.'])
        && !text.ends_with(['-', '.'])
}

/// 1 to 64 characters of `[A-Za-z0-9-]`: UUIDs and the hex hashes that stand in for them.
fn is_opaque(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 64
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $expected:literal, $valid:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Parses and validates `text`.
            pub fn new(text: &str) -> Result<Self, InvalidId> {
                let valid: fn(&str) -> bool = $valid;
                if valid(text) {
                    Ok(Self(text.into()))
                } else {
                    Err(InvalidId::new($kind, $expected, text))
                }
            }

            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                Self::new(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id!(
    /// A network interface id: `eni-` and 8 or 17 hex digits.
    EniId, "network interface id", "'eni-' and 8 or 17 lower-case hex digits", |t| is_ec2_id(t, "eni-")
);
text_id!(
    /// An EC2 instance id (`CNN-2`): `i-` and 8 or 17 hex digits.
    InstanceId, "instance id", "'i-' and 8 or 17 lower-case hex digits", |t| is_ec2_id(t, "i-")
);
text_id!(
    /// A subnet id: `subnet-` and 8 or 17 hex digits.
    SubnetId, "subnet id", "'subnet-' and 8 or 17 lower-case hex digits", |t| is_ec2_id(t, "subnet-")
);
text_id!(
    /// A VPC id: `vpc-` and 8 or 17 hex digits.
    VpcId, "VPC id", "'vpc-' and 8 or 17 lower-case hex digits", |t| is_ec2_id(t, "vpc-")
);
text_id!(
    /// A security group id as a policy names it. EC2 judges it (`InvalidGroupId.Malformed`), so only its size and
    /// its alphabet are checked here.
    SecurityGroupId, "security group id", "1 to 255 printable characters without spaces",
    |t| !t.is_empty() && t.len() <= 255 && t.bytes().all(|b| b.is_ascii_graphic())
);
text_id!(
    /// A trunk association id: `trunk-assoc-` and an opaque rest (`ec2.md` §13 row 7).
    AssociationId, "trunk association id", "'trunk-assoc-' and a suffix",
    |t| t.strip_prefix("trunk-assoc-").is_some_and(|r| !r.is_empty() && r.len() <= 64 && r.bytes().all(|b| b.is_ascii_alphanumeric()))
);
text_id!(
    /// A pod's `metadata.uid`, or the `kubernetes.io/config.hash` by which a kubelet knows a static pod.
    PodUid, "pod UID", "1 to 64 characters of [A-Za-z0-9-]", is_opaque
);
text_id!(
    /// A Node object's `metadata.uid`.
    NodeUid, "node UID", "1 to 64 characters of [A-Za-z0-9-]", is_opaque
);
text_id!(
    /// A namespace name.
    Namespace, "namespace", "a Kubernetes object name", is_object_name
);
text_id!(
    /// A pod name.
    PodName, "pod name", "a Kubernetes object name", is_object_name
);
text_id!(
    /// A Node (and CNINode) name.
    NodeName, "node name", "a Kubernetes object name", is_object_name
);
text_id!(
    /// A service account name.
    AccountName, "service account name", "a Kubernetes object name", is_object_name
);
text_id!(
    /// The cluster name, part of the tag key `kubernetes.io/cluster/<cluster>`.
    ClusterName, "cluster name", "1 to 100 characters of [A-Za-z0-9_.-]",
    |t| !t.is_empty() && t.len() <= 100 && t.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
);
text_id!(
    /// The kernel's boot id (`/proc/sys/kernel/random/boot_id`): another value means that the node rebooted.
    BootId, "boot id", "1 to 64 characters of [A-Za-z0-9-]", is_opaque
);
text_id!(
    /// One run of an agent process, chosen at random by it.
    SessionId, "session id", "1 to 64 characters of [A-Za-z0-9-]", is_opaque
);
text_id!(
    /// An EC2 instance type such as `m5.large`.
    InstanceType, "instance type", "1 to 64 characters of [a-z0-9.-]",
    |t| !t.is_empty() && t.len() <= 64 && t.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'.' || b == b'-')
);

/// For a machine whose Node object nobody remembers.
impl From<&InstanceId> for NodeName {
    fn from(instance: &InstanceId) -> Self {
        Self(instance.0.clone())
    }
}

impl InstanceId {
    /// Reads the instance id from `Node.spec.providerID`: the text after the last `/` (`CNN-2`).
    pub fn from_provider_id(provider_id: &str) -> Result<Self, InvalidId> {
        Self::new(provider_id.rsplit('/').next().unwrap_or_default())
    }
}

/// A VLAN id that the controller and the VPC CNI use: 1 to 120 (`ANN-1`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VlanId(u8);

impl VlanId {
    /// The lowest VLAN id.
    pub const MIN: u8 = 1;
    /// The highest VLAN id.
    pub const MAX: u8 = 120;

    /// Accepts 1 to 120; everything else is refused and never evidence (T11).
    pub fn new(value: i64) -> Result<Self, InvalidId> {
        match u8::try_from(value) {
            Ok(v) if (Self::MIN..=Self::MAX).contains(&v) => Ok(Self(v)),
            _ => Err(InvalidId::new("VLAN id", "an integer from 1 to 120", &value.to_string())),
        }
    }

    /// All VLAN ids, ascending.
    pub fn all() -> impl Iterator<Item = Self> {
        (Self::MIN..=Self::MAX).map(Self)
    }

    /// The number.
    pub fn get(self) -> u8 {
        self.0
    }

    /// The name of the link that the VPC CNI makes for this VLAN: `vlan.eth.N` (`contract.md` §23.3).
    pub fn link_name(self) -> String {
        format!("vlan.eth.{}", self.0)
    }

    /// Reads a VLAN id from a link name; `None` for every name that is not exactly `vlan.eth.N` with 1 ≤ N ≤ 120.
    pub fn from_link_name(name: &str) -> Option<Self> {
        let digits = name.strip_prefix("vlan.eth.")?;
        let plain = digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
        if plain { digits.parse().ok() } else { None }
    }
}

impl FromStr for VlanId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        text.parse::<i64>()
            .ok()
            .and_then(|v| Self::new(v).ok())
            .ok_or_else(|| InvalidId::new("VLAN id", "an integer from 1 to 120", text))
    }
}

impl fmt::Display for VlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An Ethernet address, printed in lower case with colons.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress([u8; 6]);

impl MacAddress {
    /// From six octets. Multicast and all-zero addresses are refused: no interface carries them.
    pub fn from_octets(octets: [u8; 6]) -> Result<Self, InvalidId> {
        let [first, ..] = octets;
        if first & 1 == 1 || octets == [0; 6] {
            Err(InvalidId::new("MAC address", "a unicast address", &Self(octets).to_string()))
        } else {
            Ok(Self(octets))
        }
    }

    /// The six octets.
    pub fn octets(self) -> [u8; 6] {
        self.0
    }

    /// The IPv6 link-local address that is made from it (EUI-64, RFC 4291 appendix A).
    pub fn link_local(self) -> Ipv6Addr {
        let [one, two, three, four, five, six] = self.0;
        let made = [one ^ 2, two, three, 0xff, 0xfe, four, five, six];
        Ipv6Addr::from((0xfe80 << 112) | u128::from(u64::from_be_bytes(made)))
    }

    /// Whether an address is one that is made from some MAC as [`MacAddress::link_local`] does.
    pub fn is_made_from_one(address: Ipv6Addr) -> bool {
        matches!(address.octets(), [0xfe, 0x80, 0, 0, 0, 0, 0, 0, _, _, _, 0xff, 0xfe, _, _, _])
    }
}

impl FromStr for MacAddress {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let refused = || InvalidId::new("MAC address", "six hex octets joined by ':'", text);
        let mut octets = [0u8; 6];
        let mut parts = text.split(':');
        for octet in &mut octets {
            let part = parts.next().filter(|p| p.len() == 2).ok_or_else(refused)?;
            *octet = u8::from_str_radix(part, 16).map_err(|_| refused())?;
        }
        if parts.next().is_some() {
            return Err(refused());
        }
        Self::from_octets(octets)
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, octet) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { ":" };
            write!(f, "{separator}{octet:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// When the kubelet started: the ctime of its socket in nanoseconds since the Unix epoch. A new value means a new
/// start; the inode may repeat (`real-node.md` §4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KubeletStart(pub u64);

/// A term of leadership. Rises with every term, whoever leads; agents refuse lower ones (design §5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A random number that tells two terms apart even where their epochs do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TermNonce(pub u64);

/// A Kubernetes resourceVersion: a positive decimal without leading zeros. Versions of one resource are ordered:
/// the shorter is the smaller, equal lengths compare as text (`kube.md` §2.2).
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ResourceVersion(Arc<str>);

impl ResourceVersion {
    /// Parses a resourceVersion; `"0"`, empty and non-decimal texts are refused.
    pub fn new(text: &str) -> Result<Self, InvalidId> {
        let valid = !text.is_empty()
            && text.len() <= 64
            && !text.starts_with('0')
            && text.bytes().all(|b| b.is_ascii_digit());
        if valid {
            Ok(Self(text.into()))
        } else {
            Err(InvalidId::new("resourceVersion", "a positive decimal without leading zeros", text))
        }
    }

    /// The version as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Ord for ResourceVersion {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.len().cmp(&other.0.len()).then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for ResourceVersion {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A pod by name and UID. The UID is what everything is keyed by; the name is only how the API server is asked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodRef {
    /// `metadata.uid`.
    pub uid: PodUid,
    /// `metadata.namespace`.
    pub namespace: Namespace,
    /// `metadata.name`.
    pub name: PodName,
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} ({})", self.namespace, self.name, self.uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_read_ec2_ids_are_refused() {
        for text in ["", "eni-", "eni-0123", "eni-0123456789ABCDEF0", "i-0123456789abcdef0"] {
            assert!(EniId::new(text).is_err(), "{text}");
        }
        assert!(EniId::new("eni-0123456789abcdef0").is_ok());
        assert!(EniId::new("eni-01234567").is_ok());
    }

    #[test]
    fn t11_vlan_ids_outside_1_to_120_are_refused() {
        for value in [-1, 0, 121, 4095, i64::MAX, i64::MIN] {
            assert!(VlanId::new(value).is_err(), "{value}");
        }
        assert_eq!(VlanId::all().count(), 120);
    }

    #[test]
    fn only_exact_link_names_are_vlan_links() {
        for name in [
            "vlan.eth.",
            "vlan.eth.0",
            "vlan.eth.121",
            "vlan.eth.07",
            "vlan.eth.+7",
            "eth.7",
            "vlan.eth.7 ",
        ] {
            assert_eq!(VlanId::from_link_name(name), None, "{name}");
        }
        assert_eq!(VlanId::from_link_name("vlan.eth.7").map(VlanId::get), Some(7));
    }

    #[test]
    fn resource_versions_are_ordered_by_length_then_text() {
        let rv = |t| ResourceVersion::new(t).unwrap();
        assert!(rv("9") < rv("10"));
        assert!(rv("102418") > rv("102410"));
        for text in ["", "0", "01", "-1", "1x"] {
            assert!(ResourceVersion::new(text).is_err(), "{text}");
        }
    }

    #[test]
    fn mac_addresses_round_trip_and_multicast_is_refused() {
        let mac: MacAddress = "02:AB:22:33:44:55".parse().unwrap();
        assert_eq!(mac.to_string(), "02:ab:22:33:44:55");
        for text in [
            "01:00:00:00:00:00",
            "00:00:00:00:00:00",
            "02:11:22:33:44",
            "02:11:22:33:44:55:66",
            "2:11:22:33:44:55",
        ] {
            assert!(text.parse::<MacAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_link_local_address_is_made_from_a_mac_and_known_as_such() {
        let mac: MacAddress = "02:11:22:33:44:5f".parse().unwrap();
        let address = mac.link_local();
        assert_eq!(address.to_string(), "fe80::11:22ff:fe33:445f");
        assert!(MacAddress::is_made_from_one(address));
        for other in ["fe80::1", "fe80:ec2::1", "2001:db8::11:22ff:fe33:445f", "fe80::ff:0:0:1"] {
            assert!(!MacAddress::is_made_from_one(other.parse().unwrap()), "{other}");
        }
    }

    #[test]
    fn the_instance_id_is_the_last_part_of_the_provider_id() {
        assert!(InstanceId::from_provider_id("aws:///eu-west-1a/i-0123456789abcdef0").is_ok());
        for text in ["", "aws:///eu-west-1a/", "aws:///x/i-0123456789ABCDEF0", "kind://docker/x/y"]
        {
            assert!(InstanceId::from_provider_id(text).is_err(), "{text}");
        }
    }
}
