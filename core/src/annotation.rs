//! The pod annotation `vpc.amazonaws.com/pod-eni`, as far as decisions need it (`ANN-1`).
//!
//! The text is JSON; reading and writing it is the adapters' business. What an annotation says is never proof of
//! anything: a pod's YAML can be copied with it (design §4.1).

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::eni::SubnetCidrs;
use crate::id::{AssociationId, EniId, MacAddress, VlanId};

/// Annotation and extended resource name.
pub const POD_ENI: &str = "vpc.amazonaws.com/pod-eni";

/// What an annotation names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Annotation {
    /// The pod has none.
    Absent,
    /// It does not parse, or contains an id or VLAN that cannot be right (T1, T11); with the reason.
    Unreadable(String),
    /// It names these branches, in order.
    Names(Vec<NamedBranch>),
}

impl Annotation {
    /// Whether it names this ENI. An unreadable one might, so the answer is `None`.
    pub fn names(&self, eni: &EniId) -> Option<bool> {
        match self {
            Self::Absent => Some(false),
            Self::Unreadable(_) => None,
            Self::Names(branches) => Some(branches.iter().any(|b| b.eni == *eni)),
        }
    }
}

/// One element of an annotation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NamedBranch {
    /// `eniId`.
    pub eni: EniId,
    /// `vlanId`.
    pub vlan: VlanId,
    /// `ifAddress`, where readable.
    pub mac: Option<MacAddress>,
    /// `privateIp`, where readable.
    pub ipv4: Option<Ipv4Addr>,
    /// `ipv6Addr`, where readable.
    pub ipv6: Option<Ipv6Addr>,
    /// `associationID`, where readable: association ids of ENIs made by the peer survive only here (`REC-2`).
    pub association: Option<AssociationId>,
}

/// One element of an annotation to be written. Keys and order are those of `ANN-1`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AnnotatedBranch {
    /// `eniId`.
    pub eni: EniId,
    /// `ifAddress`.
    pub mac: MacAddress,
    /// `privateIp`.
    pub ipv4: Option<Ipv4Addr>,
    /// `ipv6Addr`.
    pub ipv6: Option<Ipv6Addr>,
    /// `vlanId`.
    pub vlan: VlanId,
    /// `subnetCidr` and `subnetV6Cidr`.
    pub cidrs: SubnetCidrs,
    /// `associationID`.
    pub association: AssociationId,
}

/// How the text of an annotation is read. Injected, so that `core` needs no JSON; it must be a pure function.
#[derive(Clone, Copy)]
pub struct AnnotationReader(pub fn(&str) -> Annotation);

impl AnnotationReader {
    /// Reads an annotation that may be missing.
    pub fn read(self, text: Option<&str>) -> Annotation {
        text.map_or(Annotation::Absent, self.0)
    }
}

impl std::fmt::Debug for AnnotationReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AnnotationReader")
    }
}

impl PartialEq for AnnotationReader {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for AnnotationReader {}

impl std::hash::Hash for AnnotationReader {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}
