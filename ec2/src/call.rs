//! The calls that `core`'s step asks for.

use std::collections::BTreeMap;

use aws_sdk_ec2::types::{
    Filter, InstanceIpv6Address, InterfacePermissionType, ResourceType, Tag as SdkTag,
    TagSpecification,
};
use trunkline_core::bucket::Priority;
use trunkline_core::eni::{
    AssociateBranch, AssociationRecord, CreateBranch, Ec2Answer, Ec2Call, Ec2Failure, Ec2Reply,
    EniRecord, EniTags, FailureClass, Replaced, tag,
};
use trunkline_core::id::{ClusterName, EniId, InstanceId, PodUid, SecurityGroupId};

use crate::action::Action;
use crate::client::{Ec2, send};
use crate::convert;
use crate::token;

impl Ec2 {
    /// Executes a call. The answer of a call that may have taken effect although no reply arrived has a class for which
    /// [`FailureClass::may_have_happened`] holds. Dropping the future undoes nothing: what was sent may take effect.
    pub async fn call(&self, call: Ec2Call, priority: Priority) -> Ec2Answer {
        match call {
            Ec2Call::Create(create) => self.create(&create, priority).await.map(Ec2Reply::Created),
            Ec2Call::Associate(associate) => {
                self.associate(&associate, priority).await.map(Ec2Reply::Associated)
            }
            Ec2Call::Release(permit) => self.release(permit).await,
            Ec2Call::FindByUid(uid) => {
                self.find_by_uid(&uid, priority).await.map(Ec2Reply::FoundByUid)
            }
            Ec2Call::Describe(eni) => {
                self.describe_own(&eni, priority).await.map(Ec2Reply::Described)
            }
            Ec2Call::Search(by) => self.search(by, priority).await.map(Ec2Reply::Searched),
            Ec2Call::DescribeAssociation(id) => {
                self.association(&id, priority).await.map(Ec2Reply::Associated)
            }
            Ec2Call::Tag { eni, tags } => {
                self.tag(&eni, &tags, priority).await.map(|()| Ec2Reply::Tagged)
            }
            Ec2Call::SetGroups { eni, groups } => {
                self.set_groups(&eni, &groups, priority).await.map(|()| Ec2Reply::GroupsSet)
            }
        }
    }

    async fn create(
        &self,
        create: &CreateBranch,
        priority: Priority,
    ) -> Result<EniRecord, Ec2Failure> {
        let action = Action::CreateNetworkInterface;
        let asked = branch_tags(&self.inner.cluster, create);
        let reply = send!(self, action, priority, |client| client
            .create_network_interface()
            .description(tag::BRANCH_DESCRIPTION)
            .subnet_id(create.subnet.as_str())
            .set_groups(Some(texts(&create.groups)))
            .set_private_ip_address(address(create, |r| r.ipv4.map(|ip| ip.to_string())))
            .set_ipv6_addresses(address(create, |r| r.ipv6).map(|ip| {
                vec![InstanceIpv6Address::builder().ipv6_address(ip.to_string()).build()]
            }))
            .tag_specifications(specification(&asked))
            .client_token(token::create(&self.inner.cluster, create)))?;
        let mut record = self.created(reply.network_interface(), &asked)?;
        self.same_addresses(create, &record)?;
        if record.subnet != create.subnet {
            let why = format!("subnetId is '{}', asked was '{}'", record.subnet, create.subnet);
            return Err(self.unbelievable(action, &why));
        }
        if record.groups.is_empty() {
            record.groups.clone_from(&create.groups);
        }
        Ok(record)
    }

    /// An ENI that heals must have the addresses of the one it replaces; with others the pod would stay cut off.
    fn same_addresses(&self, create: &CreateBranch, record: &EniRecord) -> Result<(), Ec2Failure> {
        let Some(old) = &create.replaced else {
            return Ok(());
        };
        let v4 = old.ipv4.is_none() || record.ipv4.is_none() || old.ipv4 == record.ipv4;
        let v6 = old.ipv6.is_none() || record.ipv6.is_none() || old.ipv6 == record.ipv6;
        if v4 && v6 {
            return Ok(());
        }
        let why = format!("{} has other addresses than were asked for", record.id);
        Err(self.unbelievable(Action::CreateNetworkInterface, &why))
    }

    /// The ENI of a create reply. The tags are part of the call, so a reply that shows none has those.
    pub(crate) fn created(
        &self,
        reply: Option<&aws_sdk_ec2::types::NetworkInterface>,
        asked: &[(String, String)],
    ) -> Result<EniRecord, Ec2Failure> {
        let action = Action::CreateNetworkInterface;
        let eni = reply.ok_or_else(|| self.unbelievable(action, &"networkInterface is missing"))?;
        let described = convert::eni(eni, &self.inner.cluster, &self.inner.vpc)
            .map_err(|why| self.unbelievable(action, &why))?;
        let mut record = described.record;
        if eni.tag_set().is_empty() {
            record.tags = EniTags::read(asked.iter().map(|(k, v)| (k.as_str(), v.as_str())));
        }
        Ok(record)
    }

    /// Associates, or replays an association: the same fields carry the same token, so a repeat tells the association
    /// that the lost reply had told.
    async fn associate(
        &self,
        asked: &AssociateBranch,
        priority: Priority,
    ) -> Result<AssociationRecord, Ec2Failure> {
        self.grant_attach(&asked.branch, priority).await?;
        let action = Action::AssociateTrunkInterface;
        let reply = send!(self, action, priority, |client| client
            .associate_trunk_interface()
            .branch_interface_id(asked.branch.as_str())
            .trunk_interface_id(asked.trunk.as_str())
            .vlan_id(i32::from(asked.vlan.get()))
            .client_token(token::associate(asked)))?;
        let association = reply
            .interface_association()
            .ok_or_else(|| self.unbelievable(action, &"interfaceAssociation is missing"))?;
        convert::association(association, &asked.branch, &asked.trunk, asked.vlan)
            .map_err(|why| self.unbelievable(action, &why))
    }

    /// Allows our account to use an ENI of the role's account (`ALC-8`). Within one account nothing is sent. A repeat
    /// is harmless.
    pub async fn grant_attach(&self, eni: &EniId, priority: Priority) -> Result<(), Ec2Failure> {
        let Some(account) = &self.inner.grantee else {
            return Ok(());
        };
        send!(self, Action::CreateNetworkInterfacePermission, priority, |client| client
            .create_network_interface_permission()
            .network_interface_id(eni.as_str())
            .aws_account_id(account)
            .permission(InterfacePermissionType::InstanceAttach))?;
        Ok(())
    }

    async fn tag(
        &self,
        eni: &EniId,
        tags: &BTreeMap<String, String>,
        priority: Priority,
    ) -> Result<(), Ec2Failure> {
        let tags = tags.iter().map(|(key, value)| sdk_tag(key, value)).collect();
        send!(self, Action::CreateTags, priority, |client| client
            .create_tags()
            .resources(eni.as_str())
            .set_tags(Some(tags)))?;
        Ok(())
    }

    async fn set_groups(
        &self,
        eni: &EniId,
        groups: &[SecurityGroupId],
        priority: Priority,
    ) -> Result<(), Ec2Failure> {
        send!(self, Action::ModifyNetworkInterfaceAttribute, priority, |client| client
            .modify_network_interface_attribute()
            .network_interface_id(eni.as_str())
            .set_groups(Some(texts(groups))))?;
        Ok(())
    }

    async fn find_by_uid(
        &self,
        uid: &PodUid,
        priority: Priority,
    ) -> Result<Vec<EniRecord>, Ec2Failure> {
        let mut filters = self.inventory_filter();
        filters.push(filter(&format!("tag:{}", tag::POD_UID), uid.as_str()));
        self.list(filters, priority).await
    }

    /// An ENI by id that must be one of this cluster's: an annotation can name any.
    async fn describe_own(&self, eni: &EniId, priority: Priority) -> Result<EniRecord, Ec2Failure> {
        let described = self.describe_by_id(eni, priority).await?;
        if described.ours {
            return Ok(described.record);
        }
        Err(Ec2Failure {
            class: FailureClass::Configuration,
            code: None,
            message: format!(
                "{eni} exists, but does not carry the tags of cluster {} or is not in {}",
                self.inner.cluster, self.inner.vpc
            ),
        })
    }
}

/// Key and value pairs that every ENI of ours carries.
pub(crate) fn owner_tags(cluster: &ClusterName, instance: &InstanceId) -> Vec<(String, String)> {
    vec![
        (tag::OWNER.into(), tag::OWNER_VALUE.into()),
        (format!("{}{cluster}", tag::CLUSTER_PREFIX), tag::CLUSTER_VALUE.into()),
        (tag::INSTANCE.into(), instance.to_string()),
    ]
}

/// The tags of a branch. Always in the same order: a replayed token must carry the same request.
fn branch_tags(cluster: &ClusterName, create: &CreateBranch) -> Vec<(String, String)> {
    let mut tags = owner_tags(cluster, &create.instance);
    tags.extend([
        (tag::TRUNK.into(), create.trunk.to_string()),
        (tag::VLAN.into(), create.vlan.to_string()),
        (tag::POD_UID.into(), create.pod.uid.to_string()),
        (tag::POD_NAMESPACE.into(), create.pod.namespace.to_string()),
        (tag::POD_NAME.into(), create.pod.name.to_string()),
        (tag::INDEX.into(), create.index.to_string()),
    ]);
    if let Some(old) = &create.replaced {
        tags.push((tag::REPLACES.into(), old.named.to_string()));
        tags.push((tag::REPLACES_MAC.into(), old.mac.to_string()));
    }
    if let Some(hash) = &create.config_hash {
        tags.push((tag::CONFIG_HASH.into(), hash.to_string()));
    }
    tags
}

/// An address that the ENI must have.
fn address<T>(create: &CreateBranch, of: impl FnOnce(&Replaced) -> Option<T>) -> Option<T> {
    create.replaced.as_ref().and_then(of)
}

pub(crate) fn specification(tags: &[(String, String)]) -> TagSpecification {
    TagSpecification::builder()
        .resource_type(ResourceType::NetworkInterface)
        .set_tags(Some(tags.iter().map(|(key, value)| sdk_tag(key, value)).collect()))
        .build()
}

fn sdk_tag(key: &str, value: &str) -> SdkTag {
    SdkTag::builder().key(key).value(value).build()
}

pub(crate) fn filter(name: &str, value: &str) -> Filter {
    Filter::builder().name(name).values(value).build()
}

pub(crate) fn texts(groups: &[SecurityGroupId]) -> Vec<String> {
    groups.iter().map(ToString::to_string).collect()
}
