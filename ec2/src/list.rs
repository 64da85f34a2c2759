//! Reading many.
//!
//! A list is whole or an error: an error on any page, an item that cannot be read, a page token that repeats throw all of
//! it away, because what is missing from a short list would read as absent; so does an item that is not what was asked for. Empty pages are passed over, empty tokens
//! end the list (`ec2.md` §3, §8.3). Items that a later page repeats replace the earlier ones: pages are no snapshot.
//! What a list does not show is a hint and nothing more.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use aws_sdk_ec2::types::{Filter, Reservation};
use trunkline_core::bucket::Priority;
use trunkline_core::eni::{
    AssociationRecord, Ec2Failure, EniKind, EniRecord, FoundEni, SearchBy, tag,
};
use trunkline_core::id::{AssociationId, EniId, InstanceId, VlanId};

use crate::action::Action;
use crate::call::filter;
use crate::client::{Ec2, send};
use crate::convert::{self, Described, Invalid};
use crate::node::InstanceDetails;

/// Items a page of ENIs and of instances (EC2's largest).
const PAGE: i32 = 1000;
/// Values that EC2 takes in the filters of one request.
const FILTER_VALUES: usize = 200;
/// Items a page of associations (EC2's largest).
const ASSOCIATION_PAGE: i32 = 255;

/// An association as EC2 lists it, which may be another program's: its VLAN may be out of our range.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ListedAssociation {
    /// Association id.
    pub id: AssociationId,
    /// Branch.
    pub branch: EniId,
    /// Trunk.
    pub trunk: EniId,
    /// VLAN id, if it is one of ours.
    pub vlan: Option<VlanId>,
}

/// Follows page tokens.
#[derive(Debug, Default)]
struct Pages {
    seen: BTreeSet<String>,
}

impl Pages {
    /// The token of the next page; `None` at the end; an error if it came before.
    fn next(&mut self, token: Option<&str>) -> Result<Option<String>, &'static str> {
        let Some(token) = token.filter(|t| !t.is_empty()) else {
            return Ok(None);
        };
        if self.seen.insert(token.to_owned()) {
            Ok(Some(token.to_owned()))
        } else {
            Err("a page token repeats")
        }
    }
}

impl Ec2 {
    /// All ENIs of this cluster (trunks and branches) by the inventory filter (design §4.1).
    pub async fn inventory(&self, priority: Priority) -> Result<Vec<EniRecord>, Ec2Failure> {
        self.list(self.inventory_filter(), priority).await
    }

    /// Trunks of this cluster that are tagged with the instance, attached or not. Finds what an interrupted create left
    /// behind (S44).
    pub async fn find_trunks(
        &self,
        instance: &InstanceId,
        priority: Priority,
    ) -> Result<Vec<EniRecord>, Ec2Failure> {
        let mut filters = self.inventory_filter();
        filters.push(filter(&format!("tag:{}", tag::INSTANCE), instance.as_str()));
        filters.push(filter("interface-type", "trunk"));
        let found = self.list(filters, priority).await?;
        Ok(found.into_iter().filter(|eni| eni.kind == EniKind::Trunk).collect())
    }

    /// All associations in the account and Region, other programs' included. Optional: the call is not in the
    /// documented IAM list, and may be refused ([`trunkline_core::eni::FailureClass::Unauthorised`]). A single lost
    /// association id comes back by repeating its Associate instead.
    pub async fn associations(
        &self,
        priority: Priority,
    ) -> Result<Vec<ListedAssociation>, Ec2Failure> {
        let action = Action::DescribeTrunkInterfaceAssociations;
        let mut found = BTreeMap::new();
        let (mut pages, mut token) = (Pages::default(), None);
        loop {
            let reply = send!(self, action, priority, |client| client
                .describe_trunk_interface_associations()
                .filters(filter("interface-protocol", "VLAN"))
                .max_results(ASSOCIATION_PAGE)
                .set_next_token(token.take()))?;
            for item in reply.interface_associations() {
                let listed = listed(item).map_err(|why| self.unbelievable(action, &why))?;
                found.insert(listed.id.clone(), listed);
            }
            token =
                pages.next(reply.next_token()).map_err(|why| self.unbelievable(action, &why))?;
            if token.is_none() {
                return Ok(found.into_values().collect());
            }
        }
    }

    /// One association by id, whoever's it is: what an annotation says of it is believed only after this. Optional like
    /// [`Self::associations`].
    pub(crate) async fn association(
        &self,
        id: &AssociationId,
        priority: Priority,
    ) -> Result<AssociationRecord, Ec2Failure> {
        let action = Action::DescribeTrunkInterfaceAssociations;
        let reply = send!(self, action, priority, |client| client
            .describe_trunk_interface_associations()
            .association_ids(id.as_str()))?;
        let [item] = reply.interface_associations() else {
            return Err(self.unbelievable(action, &"not exactly one interfaceAssociation"));
        };
        let record = convert::any_association(item)
            .and_then(|a| convert::same("associationId", &a.id, id).map(|()| a));
        record.map_err(|why| self.unbelievable(action, &why))
    }

    /// Several instances in one reading, by filter: what many nodes need at once costs pages, not nodes (S62). An id that
    /// the answer does not contain, or whose item cannot be read, says nothing and is left out: ask for it by itself.
    pub async fn describe_instances(
        &self,
        instances: &[InstanceId],
        priority: Priority,
    ) -> Result<Vec<InstanceDetails>, Ec2Failure> {
        let mut found = Vec::new();
        for some in instances.chunks(FILTER_VALUES) {
            let ids = some.iter().map(ToString::to_string).collect();
            let by_id = Filter::builder().name("instance-id").set_values(Some(ids)).build();
            self.described_instances(&by_id, priority, &mut found).await?;
        }
        Ok(found)
    }

    async fn described_instances(
        &self,
        filter: &Filter,
        priority: Priority,
        found: &mut Vec<InstanceDetails>,
    ) -> Result<(), Ec2Failure> {
        let action = Action::DescribeInstances;
        let (mut pages, mut token) = (Pages::default(), None);
        loop {
            let reply = send!(self, action, priority, |client| client
                .describe_instances()
                .filters(filter.clone())
                .max_results(PAGE)
                .set_next_token(token.take()))?;
            let items = reply.reservations().iter().flat_map(Reservation::instances);
            found.extend(items.filter_map(|item| crate::node::details(item).ok()));
            token =
                pages.next(reply.next_token()).map_err(|why| self.unbelievable(action, &why))?;
            if token.is_none() {
                return Ok(());
            }
        }
    }

    /// The filters that select this cluster's ENIs. Tags may be copied to another VPC's.
    pub(crate) fn inventory_filter(&self) -> Vec<Filter> {
        vec![
            filter("vpc-id", self.inner.vpc.as_str()),
            filter(
                &format!("tag:{}{}", tag::CLUSTER_PREFIX, self.inner.cluster),
                tag::CLUSTER_VALUE,
            ),
            filter(&format!("tag:{}", tag::OWNER), tag::OWNER_VALUE),
        ]
    }

    /// ENIs of this cluster that match; `filters` contain [`Ec2::inventory_filter`].
    pub(crate) async fn list(
        &self,
        filters: Vec<Filter>,
        priority: Priority,
    ) -> Result<Vec<EniRecord>, Ec2Failure> {
        let found = self.list_all(filters, priority).await?;
        // To leave it out would make one of ours disappear whose tag or VPC was garbled on its way.
        if let Some(odd) = found.iter().find(|d| !d.ours) {
            let why =
                format!("{} does not have the tags and VPC that were asked for", odd.record.id);
            return Err(self.unbelievable(Action::DescribeNetworkInterfaces, &why));
        }
        Ok(found.into_iter().map(|d| d.record).collect())
    }

    /// All ENIs that match, by id.
    async fn list_all(
        &self,
        filters: Vec<Filter>,
        priority: Priority,
    ) -> Result<Vec<Described>, Ec2Failure> {
        let action = Action::DescribeNetworkInterfaces;
        let mut found = BTreeMap::new();
        let (mut pages, mut token) = (Pages::default(), None);
        loop {
            let reply = send!(self, action, priority, |client| client
                .describe_network_interfaces()
                .set_filters(Some(filters.clone()))
                .max_results(PAGE)
                .set_next_token(token.take()))?;
            for item in reply.network_interfaces() {
                let described = convert::eni(item, &self.inner.cluster, &self.inner.vpc)
                    .map_err(|why| self.unbelievable(action, &why))?;
                found.insert(described.record.id.clone(), described);
            }
            token =
                pages.next(reply.next_token()).map_err(|why| self.unbelievable(action, &why))?;
            if token.is_none() {
                return Ok(found.into_values().collect());
            }
        }
    }

    /// ENIs of this VPC that have an address, or a MAC, whoever's they are: an ENI that holds what a lost one had may be
    /// anybody's. What it does not show is a hint and nothing more.
    pub(crate) async fn search(
        &self,
        by: SearchBy,
        priority: Priority,
    ) -> Result<Vec<FoundEni>, Ec2Failure> {
        let vpc = self.inner.vpc.to_string();
        let by = match by {
            SearchBy::Address(IpAddr::V4(ip)) => {
                filter("addresses.private-ip-address", &ip.to_string())
            }
            SearchBy::Address(IpAddr::V6(ip)) => {
                filter("ipv6-addresses.ipv6-address", &ip.to_string())
            }
            SearchBy::Mac(mac) => filter("mac-address", &mac.to_string()),
        };
        let found = self.list_all(vec![by, filter("vpc-id", &vpc)], priority).await?;
        Ok(found.into_iter().map(|d| FoundEni { record: d.record, ours: d.ours }).collect())
    }

    /// One ENI by id, ours or not. An id that EC2 does not know is [`trunkline_core::eni::FailureClass::NotFound`],
    /// which soon after a create means nothing (`ec2.md` §7).
    pub(crate) async fn describe_by_id(
        &self,
        eni: &EniId,
        priority: Priority,
    ) -> Result<Described, Ec2Failure> {
        let action = Action::DescribeNetworkInterfaces;
        let reply = send!(self, action, priority, |client| client
            .describe_network_interfaces()
            .network_interface_ids(eni.as_str()))?;
        let [item] = reply.network_interfaces() else {
            return Err(self.unbelievable(action, &"not exactly one networkInterface"));
        };
        let described = convert::eni(item, &self.inner.cluster, &self.inner.vpc)
            .and_then(|d| convert::same("networkInterfaceId", &d.record.id, eni).map(|()| d));
        described.map_err(|why| self.unbelievable(action, &why))
    }
}

fn listed(
    item: &aws_sdk_ec2::types::TrunkInterfaceAssociation,
) -> Result<ListedAssociation, Invalid> {
    Ok(ListedAssociation {
        id: convert::required("associationId", item.association_id())?,
        branch: convert::required("branchInterfaceId", item.branch_interface_id())?,
        trunk: convert::required("trunkInterfaceId", item.trunk_interface_id())?,
        vlan: item.vlan_id().and_then(|vlan| VlanId::new(i64::from(vlan)).ok()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_token_ends_the_list_and_a_repeated_one_is_an_error() {
        let mut pages = Pages::default();
        assert_eq!(pages.next(Some("a")), Ok(Some("a".into())));
        assert_eq!(pages.next(Some("b")), Ok(Some("b".into())));
        assert!(pages.next(Some("a")).is_err());
        assert_eq!(pages.next(Some("")), Ok(None));
        assert_eq!(pages.next(None), Ok(None));
    }
}
