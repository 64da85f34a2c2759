//! What EC2 keeps.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use trunkline_coordinator::cloud::{Instance, NewTrunk};
use trunkline_core::eni::{
    AssociateBranch, AssociationRecord, Attachment, CreateBranch, Ec2Failure, Ec2Reply, EniKind,
    EniRecord, EniStatus, EniTags, FailureClass, Tag,
};
use trunkline_core::id::{
    AssociationId, EniId, InstanceId, InvalidId, MacAddress, PodUid, SecurityGroupId, VlanId,
};
use trunkline_core::time::Moment;

/// Branches that a trunk of the simulated type can have.
pub const BRANCHES: u64 = 9;
/// The simulated instance type.
pub const TYPE: &str = "m5.large";

/// A network interface.
#[derive(Debug, Clone)]
pub struct Eni {
    /// As it is; `None` once deleted.
    pub now: Option<EniRecord>,
    /// As it was, for describes that lag.
    history: Vec<(Moment, Option<EniRecord>)>,
    /// The pod that it was made for, as the call that made it said. Tags may change; this does not.
    pub owner: Option<PodUid>,
    /// Its association.
    pub association: Option<Association>,
}

/// A branch's association.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Association {
    /// Id.
    pub id: AssociationId,
    /// Trunk.
    pub trunk: EniId,
    /// VLAN.
    pub vlan: VlanId,
    /// Token.
    nonce: u32,
}

/// What makes two create calls one.
type Token = (EniId, PodUid, u8, Option<EniId>, u32);

/// The account.
#[derive(Debug, Default)]
pub struct Account {
    enis: BTreeMap<EniId, Eni>,
    primaries: BTreeMap<InstanceId, EniId>,
    /// What was ever attached to an instance: every look at a machine asks, and most interfaces are branches.
    attached: BTreeMap<InstanceId, Vec<EniId>>,
    tokens: BTreeMap<Token, (CreateBranch, EniId)>,
    trunk_tokens: BTreeMap<(InstanceId, u32), EniId>,
    left: BTreeMap<(EniId, VlanId), (Moment, Option<PodUid>)>,
    made: BTreeMap<(PodUid, u8), u32>,
    lost: BTreeMap<PodUid, u32>,
    next: u32,
}

/// A failure that EC2 answers.
pub fn failure(class: FailureClass, code: &str) -> Ec2Failure {
    Ec2Failure { class, code: Some(code.into()), message: format!("{code} (simulated)") }
}

fn not_found() -> Ec2Failure {
    failure(FailureClass::NotFound, "InvalidNetworkInterfaceID.NotFound")
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn bad_id(e: InvalidId) -> Ec2Failure {
    Ec2Failure { class: FailureClass::Malformed, code: None, message: e.to_string() }
}

impl Account {
    /// All interfaces, deleted ones too.
    pub fn enis(&self) -> &BTreeMap<EniId, Eni> {
        &self.enis
    }

    /// An interface that is there.
    pub fn eni(&self, id: &EniId) -> Option<&Eni> {
        self.enis.get(id).filter(|eni| eni.now.is_some())
    }

    /// How often a branch was made for a pod: the most for any one of those that it asks for.
    pub fn made_for(&self, uid: &PodUid) -> u32 {
        let of_pod = self.made.iter().filter(|((pod, _), _)| pod == uid);
        of_pod.map(|(_, times)| *times).max().unwrap_or_default()
    }

    /// How many of a pod's branches somebody took away.
    pub fn lost_by(&self, uid: &PodUid) -> u32 {
        self.lost.get(uid).copied().unwrap_or_default()
    }

    /// An interface that is there and has this address.
    pub fn holder_of(&self, ip: Ipv4Addr) -> Option<&Eni> {
        let has = |eni: &&Eni| eni.now.as_ref().is_some_and(|record| record.ipv4 == Some(ip));
        self.enis.values().find(has)
    }

    /// An interface that is gone, as it last was.
    pub fn last_of(&self, id: &EniId) -> Option<&EniRecord> {
        self.enis.get(id)?.history.iter().rev().find_map(|(_, record)| record.as_ref())
    }

    /// Who left a trunk's VLAN last, and when.
    pub fn left(&self, trunk: &EniId, vlan: VlanId) -> Option<&(Moment, Option<PodUid>)> {
        self.left.get(&(trunk.clone(), vlan))
    }

    fn touch(&mut self, now: Moment, id: &EniId) {
        if let Some(eni) = self.enis.get_mut(id) {
            eni.history.push((now, eni.now.clone()));
        }
    }

    fn blank(
        &mut self,
        kind: EniKind,
        groups: &[SecurityGroupId],
    ) -> Result<EniRecord, Ec2Failure> {
        self.next += 1;
        let [_, high, middle, low] = self.next.to_be_bytes();
        Ok(EniRecord {
            id: format!("eni-{:017x}", self.next).parse().map_err(bad_id)?,
            status: EniStatus::Available,
            kind,
            mac: MacAddress::from_octets([2, 0, 0, high, middle, low]).map_err(bad_id)?,
            ipv4: Some(Ipv4Addr::new(10, high, middle, low)),
            ipv6: None,
            subnet: "subnet-00000001".parse().map_err(bad_id)?,
            vpc: "vpc-0123456789abcdef0".parse().map_err(bad_id)?,
            groups: groups.to_vec(),
            tags: EniTags::default(),
            attachment: None,
        })
    }

    fn insert(&mut self, now: Moment, record: EniRecord, owner: Option<PodUid>) {
        let id = record.id.clone();
        let eni = Eni { now: Some(record), history: Vec::new(), owner, association: None };
        self.enis.insert(id.clone(), eni);
        self.touch(now, &id);
    }

    /// Starts an instance.
    pub fn run_instance(&mut self, now: Moment, id: &InstanceId) -> Result<(), Ec2Failure> {
        let group = "sg-0000000000000000a".parse().map_err(bad_id)?;
        let mut primary = self.blank(EniKind::Interface, &[group])?;
        attach(&mut primary, id, 0);
        self.primaries.insert(id.clone(), primary.id.clone());
        self.attached.entry(id.clone()).or_default().push(primary.id.clone());
        self.insert(now, primary, None);
        Ok(())
    }

    /// Interfaces that hang on an instance, for its kernel.
    pub fn attached_to<'a>(&'a self, id: &'a InstanceId) -> impl Iterator<Item = &'a EniRecord> {
        let ever = self.attached.get(id).into_iter().flatten();
        ever.filter_map(|eni| self.eni(eni)?.now.as_ref()).filter(move |record| {
            record.attachment.as_ref().is_some_and(|a| a.instance.as_ref() == Some(id))
        })
    }

    // === what calls do ===

    /// `CreateNetworkInterface` for a branch.
    pub fn create(&mut self, now: Moment, asked: &CreateBranch) -> Result<EniRecord, Ec2Failure> {
        let CreateBranch { pod, index, trunk, replaced, nonce, .. } = asked;
        let gone = replaced.as_ref().map(|old| old.eni.clone());
        let token = (trunk.clone(), pod.uid.clone(), *index, gone, *nonce);
        if let Some((before, id)) = self.tokens.get(&token) {
            if before != asked {
                return Err(failure(FailureClass::TokenMismatch, "IdempotentParameterMismatch"));
            }
            // A token goes on naming what it made, deleted or not.
            let eni = self.enis.get(id).ok_or_else(not_found)?;
            let made = eni.history.iter().find_map(|(_, record)| record.clone());
            return eni.now.clone().or(made).ok_or_else(not_found);
        }
        if replaced.as_ref().and_then(|old| old.ipv4).is_some_and(|ip| self.holder_of(ip).is_some())
        {
            return Err(failure(FailureClass::AddressInUse, "InvalidIPAddress.InUse"));
        }
        let mut record = self.blank(EniKind::Interface, &asked.groups)?;
        if let Some(old) = replaced {
            // Without a wish EC2 gives what is free.
            record.ipv4 = old.ipv4.or(record.ipv4);
            record.ipv6 = old.ipv6;
        }
        record.tags = EniTags {
            replaces: replaced.as_ref().map_or(Tag::Absent, |old| Tag::Is(old.named.clone())),
            replaces_mac: replaced.as_ref().map_or(Tag::Absent, |old| Tag::Is(old.mac)),
            instance: Tag::Is(asked.instance.clone()),
            trunk: Tag::Is(asked.trunk.clone()),
            vlan: Tag::Is(asked.vlan),
            pod_uid: Tag::Is(asked.pod.uid.clone()),
            pod_namespace: Tag::Is(asked.pod.namespace.clone()),
            pod_name: Tag::Is(asked.pod.name.clone()),
            index: Tag::Is(asked.index),
            config_hash: asked.config_hash.clone().map_or(Tag::Absent, Tag::Is),
            condemned: false,
        };
        *self.made.entry((pod.uid.clone(), *index)).or_default() += 1;
        self.tokens.insert(token, (asked.clone(), record.id.clone()));
        self.insert(now, record.clone(), Some(pod.uid.clone()));
        Ok(record)
    }

    /// `AssociateTrunkInterface`.
    pub fn associate(
        &mut self,
        now: Moment,
        asked: &AssociateBranch,
    ) -> Result<AssociationRecord, Ec2Failure> {
        let AssociateBranch { branch, trunk, vlan, nonce } = asked;
        self.eni(trunk).ok_or_else(not_found)?;
        let record = |id: &AssociationId| AssociationRecord {
            id: id.clone(),
            branch: branch.clone(),
            trunk: trunk.clone(),
            vlan: *vlan,
        };
        if let Some(held) = &self.eni(branch).ok_or_else(not_found)?.association {
            let same = held.trunk == *trunk && held.vlan == *vlan && held.nonce == *nonce;
            return if same {
                Ok(record(&held.id))
            } else if held.trunk == *trunk && held.vlan == *vlan {
                Err(failure(FailureClass::VlanInUse, "InvalidVlanId.Duplicate"))
            } else {
                Err(failure(FailureClass::AlreadyAssociated, "InvalidParameterValue"))
            };
        }
        let of_trunk: Vec<&Association> = self
            .enis
            .values()
            .filter_map(|eni| eni.association.as_ref())
            .filter(|held| held.trunk == *trunk)
            .collect();
        if of_trunk.iter().any(|held| held.vlan == *vlan) {
            return Err(failure(FailureClass::VlanInUse, "InvalidVlanId.Duplicate"));
        }
        if u64::try_from(of_trunk.len()).is_ok_and(|held| held >= BRANCHES) {
            return Err(failure(FailureClass::BranchLimit, "AttachmentLimitExceeded"));
        }
        self.next += 1;
        let id: AssociationId =
            format!("trunk-assoc-{:017x}", self.next).parse().map_err(bad_id)?;
        if let Some(eni) = self.enis.get_mut(branch) {
            let (trunk, vlan, nonce) = (trunk.clone(), *vlan, *nonce);
            eni.association = Some(Association { id: id.clone(), trunk, vlan, nonce });
            if let Some(record) = &mut eni.now {
                record.status = EniStatus::InUse;
                record.kind = EniKind::Branch;
            }
        }
        self.touch(now, branch);
        Ok(record(&id))
    }

    /// The branch of an association.
    pub fn branch_of(&self, id: &AssociationId) -> Option<EniId> {
        let has = |eni: &Eni| eni.association.as_ref().is_some_and(|held| held.id == *id);
        self.enis.iter().find(|(_, eni)| has(eni)).map(|(id, _)| id.clone())
    }

    /// `DescribeTrunkInterfaceAssociations` by id.
    pub fn association(&self, id: &AssociationId) -> Result<AssociationRecord, Ec2Failure> {
        let gone = || failure(FailureClass::NotFound, "InvalidAssociationID.NotFound");
        let branch = self.branch_of(id).ok_or_else(gone)?;
        let eni = self.enis.get(&branch).ok_or_else(gone)?;
        let held = eni.association.as_ref().ok_or_else(gone)?;
        let (trunk, vlan) = (held.trunk.clone(), held.vlan);
        Ok(AssociationRecord { id: id.clone(), branch, trunk, vlan })
    }

    /// `DisassociateTrunkInterface`; gone already is done.
    pub fn disassociate(&mut self, now: Moment, id: &AssociationId) -> Ec2Reply {
        if let Some(branch) = self.branch_of(id) {
            self.part(now, &branch);
        }
        Ec2Reply::Disassociated
    }

    fn part(&mut self, now: Moment, branch: &EniId) {
        let Some(eni) = self.enis.get_mut(branch) else { return };
        if let Some(held) = eni.association.take() {
            self.left.insert((held.trunk, held.vlan), (now, eni.owner.clone()));
        }
        if let Some(record) = &mut eni.now {
            record.status = EniStatus::Available;
        }
        self.touch(now, branch);
    }

    /// `DeleteNetworkInterface`; gone already is done. EC2 takes an associated branch, too.
    pub fn delete(&mut self, now: Moment, id: &EniId) -> Ec2Reply {
        self.part(now, id);
        if let Some(eni) = self.enis.get_mut(id) {
            eni.now = None;
        }
        self.touch(now, id);
        Ec2Reply::Deleted
    }

    /// Somebody else takes a branch's association away, or the branch.
    pub fn lose(&mut self, now: Moment, id: &EniId, whole: bool) {
        if let Some(owner) = self.enis.get(id).and_then(|eni| eni.owner.clone()) {
            *self.lost.entry(owner).or_default() += 1;
        }
        self.part(now, id);
        if whole {
            self.delete(now, id);
        }
    }

    /// `CreateTags`.
    pub fn tag(
        &mut self,
        now: Moment,
        id: &EniId,
        tags: &BTreeMap<String, String>,
    ) -> Result<(), Ec2Failure> {
        let eni = self.enis.get_mut(id).and_then(|eni| eni.now.as_mut()).ok_or_else(not_found)?;
        let new = EniTags::read(tags.iter().map(|(key, value)| (key.as_str(), value.as_str())));
        let held = &mut eni.tags;
        overlay(&mut held.instance, new.instance);
        overlay(&mut held.trunk, new.trunk);
        overlay(&mut held.vlan, new.vlan);
        overlay(&mut held.pod_uid, new.pod_uid);
        overlay(&mut held.pod_namespace, new.pod_namespace);
        overlay(&mut held.pod_name, new.pod_name);
        overlay(&mut held.index, new.index);
        overlay(&mut held.config_hash, new.config_hash);
        held.condemned |= new.condemned;
        self.touch(now, id);
        Ok(())
    }

    /// `ModifyNetworkInterfaceAttribute`.
    pub fn set_groups(
        &mut self,
        now: Moment,
        id: &EniId,
        groups: Vec<SecurityGroupId>,
    ) -> Result<(), Ec2Failure> {
        let eni = self.enis.get_mut(id).and_then(|eni| eni.now.as_mut()).ok_or_else(not_found)?;
        eni.groups = groups;
        self.touch(now, id);
        Ok(())
    }

    /// `CreateNetworkInterface` for a trunk.
    pub fn create_trunk(&mut self, now: Moment, asked: &NewTrunk) -> Result<EniRecord, Ec2Failure> {
        let token = (asked.instance.clone(), asked.nonce);
        if let Some(id) = self.trunk_tokens.get(&token) {
            return self.eni(id).and_then(|eni| eni.now.clone()).ok_or_else(not_found);
        }
        let mut record = self.blank(EniKind::Trunk, &asked.groups)?;
        record.tags.instance = Tag::Is(asked.instance.clone());
        self.trunk_tokens.insert(token, record.id.clone());
        self.insert(now, record.clone(), None);
        Ok(record)
    }

    /// `AttachNetworkInterface`.
    pub fn attach(
        &mut self,
        now: Moment,
        id: &EniId,
        instance: &InstanceId,
        index: u32,
    ) -> Result<(), Ec2Failure> {
        let taken: BTreeSet<u32> = self
            .attached_to(instance)
            .filter_map(|eni| eni.attachment.as_ref().map(|a| a.device_index))
            .collect();
        if taken.contains(&index) {
            return Err(failure(FailureClass::Configuration, "InvalidParameterValue"));
        }
        let eni = self.enis.get_mut(id).and_then(|eni| eni.now.as_mut()).ok_or_else(not_found)?;
        if eni.attachment.is_some() {
            return Err(failure(FailureClass::InUse, "InvalidNetworkInterface.InUse"));
        }
        attach(eni, instance, index);
        self.attached.entry(instance.clone()).or_default().push(id.clone());
        self.touch(now, id);
        Ok(())
    }

    // === what describes show ===

    /// An interface as it was at a moment.
    pub fn as_of(&self, id: &EniId, at: Moment) -> Option<EniRecord> {
        let history = &self.enis.get(id)?.history;
        history.iter().rev().find(|(since, _)| *since <= at).and_then(|(_, record)| record.clone())
    }

    /// All interfaces of this cluster; each as `of` says it is shown.
    pub fn inventory(&self, of: impl Fn(&EniId) -> Moment) -> Vec<EniRecord> {
        let ours = |record: &EniRecord| record.tags.instance != Tag::Absent;
        self.enis.keys().filter_map(|id| self.as_of(id, of(id))).filter(ours).collect()
    }

    /// `DescribeInstances`: tags are not shown, nor the instance inside of attachments.
    pub fn instance(&self, id: &InstanceId) -> Result<Instance, Ec2Failure> {
        let gone = || failure(FailureClass::NotFound, "InvalidInstanceID.NotFound");
        let primary = self.primaries.get(id).and_then(|eni| self.eni(eni)).ok_or_else(gone)?;
        let primary = primary.now.as_ref().ok_or_else(gone)?;
        let mut interfaces: Vec<EniRecord> = self.attached_to(id).cloned().collect();
        for eni in &mut interfaces {
            eni.tags = EniTags::default();
            if let Some(attachment) = &mut eni.attachment {
                attachment.instance = None;
            }
        }
        Ok(Instance {
            kind: Some(TYPE.parse().map_err(bad_id)?),
            state: "running".into(),
            subnet: Some(primary.subnet.clone()),
            primary_groups: primary.groups.clone(),
            interfaces,
            missing: None,
        })
    }
}

fn attach(eni: &mut EniRecord, instance: &InstanceId, device_index: u32) {
    eni.status = EniStatus::InUse;
    eni.attachment = Some(Attachment {
        id: eni.id.as_str().replace("eni-", "eni-attach-"),
        instance: Some(instance.clone()),
        device_index,
        card: 0,
        attached: true,
        delete_on_termination: true,
    });
}

fn overlay<T>(held: &mut Tag<T>, new: Tag<T>) {
    if !matches!(new, Tag::Absent) {
        *held = new;
    }
}
