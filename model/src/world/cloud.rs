//! EC2 as far as a trunk's branches go: ENIs with tags, associations, client tokens, reads that lag.

use std::collections::BTreeMap;
use std::net::IpAddr;

use trunkline_core::eni::{
    AssociationRecord, Ec2Answer, Ec2Call, Ec2Failure, Ec2Reply, EniKind, EniRecord, EniStatus,
    EniTags, FailureClass, FoundEni, SearchBy, Tag,
};
use trunkline_core::fact::Way;
use trunkline_core::id::VlanId;
use trunkline_core::verdict::{PermitStage, Proof};

use super::ids;

/// A branch ENI.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Eni {
    /// Pod number in its UID tag.
    pub owner: Option<u8>,
    /// Name number in its name tag.
    pub name: u8,
    /// Index tag.
    pub index: u8,
    /// Number of the UID in its config hash tag.
    pub hash: Option<u8>,
    /// VLAN tag.
    pub vlan: VlanId,
    /// Association number and VLAN.
    pub association: Option<(u8, VlanId)>,
}

/// EC2.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Cloud {
    /// ENIs by number.
    pub enis: BTreeMap<u8, Eni>,
    /// Create tokens: pod, index, nonce.
    tokens: BTreeMap<(u8, u8, u32), (u8, VlanId)>,
    made: u8,
    associations: u8,
}

/// A call on its way. Permits are consumed when a call is sent, so that what is in flight is plain data.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the fields are numbers of what their names say")]
pub enum Call {
    /// Create for a pod (number, name), index, VLAN, nonce, config hash.
    Create { pod: u8, name: u8, index: u8, vlan: VlanId, nonce: u32, hash: Option<u8> },
    /// Associate.
    Associate { eni: u8, vlan: VlanId },
    /// Disassociate an association that was said to be of this ENI and pod.
    Disassociate { eni: u8, pod: u8, association: u8, way: Way },
    /// Delete.
    Delete { eni: u8, pod: u8, way: Way },
    /// By UID tag.
    FindByUid(u8),
    /// By id.
    Describe(u8),
    /// By address or MAC, both of which end in the ENI's number.
    Search(u8),
    /// Whose association.
    DescribeAssociation(u8),
    /// Rewrites the UID and name tags, or the VLAN tag.
    Tag { eni: u8, owner: Option<(u8, u8)>, vlan: Option<VlanId> },
    /// Groups.
    SetGroups(u8),
}

impl Call {
    /// Sends a call.
    pub(super) fn sent(call: Ec2Call) -> Self {
        match call {
            Ec2Call::Create(c) => Self::Create {
                pod: ids::number(&c.pod.uid),
                name: name_number(c.pod.name.as_str()),
                index: c.index,
                vlan: c.vlan,
                nonce: c.nonce,
                hash: c.config_hash.as_ref().map(ids::number),
            },
            Ec2Call::Associate(a) => {
                Self::Associate { eni: ids::eni_number(&a.branch), vlan: a.vlan }
            }
            Ec2Call::Release(permit) => {
                let (Proof::Pod(proof), Some(uid)) = (permit.proof(), permit.uid()) else {
                    unreachable!("these worlds have no instance that dies");
                };
                let (eni, pod) = (ids::eni_number(permit.eni()), ids::number(uid));
                let way = proof.reported.facts().way;
                match permit.stage() {
                    PermitStage::Disassociate(id) => {
                        let association = ids::association_number(id);
                        Self::Disassociate { eni, pod, association, way }
                    }
                    PermitStage::Delete => Self::Delete { eni, pod, way },
                }
            }
            Ec2Call::FindByUid(uid) => Self::FindByUid(ids::number(&uid)),
            Ec2Call::Search(SearchBy::Address(IpAddr::V4(address))) => {
                Self::Search(address.octets()[3])
            }
            // These worlds have no IPv6 address.
            Ec2Call::Search(SearchBy::Address(IpAddr::V6(_))) => Self::Search(0),
            Ec2Call::Search(SearchBy::Mac(mac)) => Self::Search(mac.octets()[5]),
            Ec2Call::Describe(id) => Self::Describe(ids::eni_number(&id)),
            Ec2Call::DescribeAssociation(id) => {
                Self::DescribeAssociation(ids::association_number(&id))
            }
            Ec2Call::Tag { eni, tags } => {
                let read = EniTags::read(tags.iter().map(|(k, v)| (k.as_str(), v.as_str())));
                let name = read.pod_name.value().map_or(0, |n| name_number(n.as_str()));
                Self::Tag {
                    eni: ids::eni_number(&eni),
                    owner: read.pod_uid.value().map(|uid| (ids::number(uid), name)),
                    vlan: read.vlan.value().copied(),
                }
            }
            Ec2Call::SetGroups { eni, .. } => Self::SetGroups(ids::eni_number(&eni)),
        }
    }

    /// Whether it changes anything.
    pub(super) fn mutates(&self) -> bool {
        !matches!(
            self,
            Self::FindByUid(_) | Self::Describe(_) | Self::DescribeAssociation(_) | Self::Search(_)
        )
    }
}

pub(super) fn name_number(name: &str) -> u8 {
    name.trim_start_matches("pod-").parse().unwrap_or(0)
}

pub(super) fn failed(class: FailureClass) -> Ec2Answer {
    Err(Ec2Failure { class, code: None, message: String::new() })
}

impl Cloud {
    /// An ENI as a read shows it.
    pub(super) fn record(&self, n: u8) -> Option<EniRecord> {
        let eni = self.enis.get(&n)?;
        let owner = eni.owner.map(|o| ids::pod_ref(o, eni.name));
        Some(EniRecord {
            id: ids::eni(n),
            status: if eni.association.is_some() { EniStatus::InUse } else { EniStatus::Available },
            kind: if eni.association.is_some() { EniKind::Branch } else { EniKind::Interface },
            mac: ids::mac(n),
            ipv4: Some(std::net::Ipv4Addr::new(10, 0, 0, n)),
            ipv6: None,
            subnet: "subnet-00000001".parse().unwrap(),
            vpc: "vpc-00000001".parse().unwrap(),
            groups: vec![ids::group()],
            tags: EniTags {
                trunk: Tag::Is(ids::eni(ids::OWN)),
                vlan: Tag::Is(eni.vlan),
                pod_uid: owner.as_ref().map_or(Tag::Absent, |p| Tag::Is(p.uid.clone())),
                pod_namespace: owner.as_ref().map_or(Tag::Absent, |p| Tag::Is(p.namespace.clone())),
                pod_name: owner.as_ref().map_or(Tag::Absent, |p| Tag::Is(p.name.clone())),
                index: Tag::Is(eni.index),
                config_hash: eni.hash.map_or(Tag::Absent, |h| Tag::Is(ids::uid(h))),
                ..EniTags::default()
            },
            attachment: None,
        })
    }

    /// All branches.
    pub(super) fn inventory(&self) -> Vec<EniRecord> {
        self.enis.keys().filter_map(|n| self.record(*n)).collect()
    }

    /// Carries a call out.
    pub(super) fn act(&mut self, call: &Call) -> Ec2Answer {
        match *call {
            Call::Create { pod, name, index, vlan, nonce, hash } => {
                if let Some((n, with)) = self.tokens.get(&(pod, index, nonce)) {
                    // The VLAN is only a tag, but part of the call all the same.
                    return match self.record(*n) {
                        _ if *with != vlan => failed(FailureClass::TokenMismatch),
                        Some(record) => Ok(Ec2Reply::Created(record)),
                        None => failed(FailureClass::NotFound),
                    };
                }
                self.made += 1;
                let eni = Eni { owner: Some(pod), name, index, hash, vlan, association: None };
                self.enis.insert(self.made, eni);
                self.tokens.insert((pod, index, nonce), (self.made, vlan));
                self.record(self.made)
                    .map_or(failed(FailureClass::NotFound), |r| Ok(Ec2Reply::Created(r)))
            }
            Call::Associate { eni, vlan } => self.associate(eni, vlan),
            Call::Disassociate { association, .. } => {
                let held = self
                    .enis
                    .values_mut()
                    .find(|e| e.association.is_some_and(|a| a.0 == association));
                if let Some(eni) = held {
                    eni.association = None;
                }
                Ok(Ec2Reply::Disassociated)
            }
            Call::Delete { eni, .. } => match self.enis.get(&eni) {
                Some(found) if found.association.is_some() => failed(FailureClass::InUse),
                _ => {
                    self.enis.remove(&eni);
                    Ok(Ec2Reply::Deleted)
                }
            },
            Call::FindByUid(pod) => {
                let of = |(n, e): (&u8, &Eni)| (e.owner == Some(pod)).then_some(*n);
                let found: Vec<u8> = self.enis.iter().filter_map(of).collect();
                Ok(Ec2Reply::FoundByUid(found.into_iter().filter_map(|n| self.record(n)).collect()))
            }
            Call::Search(n) => {
                let found = self.record(n).map(|record| FoundEni { record, ours: true });
                Ok(Ec2Reply::Searched(found.into_iter().collect()))
            }
            Call::Describe(n) => self
                .record(n)
                .map_or(failed(FailureClass::NotFound), |r| Ok(Ec2Reply::Described(r))),
            Call::DescribeAssociation(id) => {
                let held = self.enis.iter().find_map(|(n, e)| {
                    e.association.filter(|(held, _)| *held == id).map(|(_, vlan)| (*n, vlan))
                });
                held.map_or(failed(FailureClass::NotFound), |(n, vlan)| Ok(associated(id, n, vlan)))
            }
            Call::Tag { eni, owner, vlan } => match self.enis.get_mut(&eni) {
                Some(found) => {
                    found.vlan = vlan.unwrap_or(found.vlan);
                    if let Some((owner, name)) = owner {
                        (found.owner, found.name) = (Some(owner), name);
                    }
                    Ok(Ec2Reply::Tagged)
                }
                None => failed(FailureClass::NotFound),
            },
            Call::SetGroups(eni) if self.enis.contains_key(&eni) => Ok(Ec2Reply::GroupsSet),
            Call::SetGroups(_) => failed(FailureClass::NotFound),
        }
    }

    fn associate(&mut self, n: u8, vlan: VlanId) -> Ec2Answer {
        let taken = self
            .enis
            .iter()
            .any(|(other, e)| *other != n && e.association.is_some_and(|(_, held)| held == vlan));
        let Some(eni) = self.enis.get_mut(&n) else {
            return failed(FailureClass::NotFound);
        };
        match eni.association {
            Some((id, held)) if held == vlan => Ok(associated(id, n, vlan)),
            Some(_) => failed(FailureClass::AlreadyAssociated),
            None if taken => failed(FailureClass::VlanInUse),
            None => {
                self.associations += 1;
                eni.association = Some((self.associations, vlan));
                Ok(associated(self.associations, n, vlan))
            }
        }
    }
}

fn associated(id: u8, eni: u8, vlan: VlanId) -> Ec2Reply {
    Ec2Reply::Associated(AssociationRecord {
        id: ids::association(id),
        branch: ids::eni(eni),
        trunk: ids::eni(ids::OWN),
        vlan,
    })
}
