//! Whether the MAC of a live link may be changed (design §6).
//!
//! The agent acts on the coordinator's word alone and looks itself before it acts. What it sees decides:
//!
//! * links that do not show the trunk are not this node's: nothing can be said, least of all that a link is absent;
//! * no link of the name, or one with a third MAC: nothing is changed;
//! * a link of the name that is an 802.1q link of another id is not what the CNI makes: nothing is changed;
//! * a MAC that another link carries would take that link's traffic away: nothing is changed.
//!
//! A request is carried out in the session it came in. One that the session did not outlive is not begun any more; one that
//! was under way is finished, and its answer goes to nobody.

use std::collections::BTreeMap;

use crate::fact::Origin;
use crate::id::{MacAddress, VlanId};
use crate::message::{FromAgent, MacOutcome, SetMac};
use crate::view::{Link, LinkKind, Links};

use super::{Action, Witness};

/// What a look at the links means for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MacPlan {
    /// Set the new MAC on the link of this index, and on no other.
    Change(u32),
    /// The link of this index carries it already; see to the rest.
    Already(u32),
    /// Nothing is to be done.
    Over(MacOutcome),
}

/// Compare-and-set: what is to be done with the links as they are. `trunk` is the MAC of the node's trunk.
pub fn plan_mac(links: &Links, set: &SetMac, trunk: MacAddress) -> MacPlan {
    let refuse = |why: String| MacPlan::Over(MacOutcome::Failed(why));
    if !links.has_mac(trunk) {
        return refuse(format!("no link carries the trunk's MAC {trunk}"));
    }
    let named = |link: &&Link| link.branch_vlan() == Some(set.vlan);
    let Some(link) = links.0.iter().find(named) else {
        return MacPlan::Over(MacOutcome::LinkAbsent);
    };
    if let LinkKind::Vlan(id) = link.kind
        && id != u16::from(set.vlan.get())
    {
        return refuse(format!("{} is an 802.1q link of id {id}", link.name));
    }
    let other = links.0.iter().find(|l| l.index != link.index && l.mac == Some(set.to));
    if let Some(other) = other {
        return refuse(format!("{} carries the MAC {} already", other.name, set.to));
    }
    match link.mac {
        Some(mac) if mac == set.to => MacPlan::Already(link.index),
        Some(mac) if mac == set.from => MacPlan::Change(link.index),
        Some(mac) => MacPlan::Over(MacOutcome::Differs(mac)),
        None => refuse(format!("{} has no unicast MAC", link.name)),
    }
}

/// What is to be said after the MAC was set on the link of index `changed`: whether it is there still and carries it.
/// `None`: it does.
pub fn judge_mac(links: &Links, set: &SetMac, changed: u32) -> Option<MacOutcome> {
    let link = links.0.iter().find(|l| l.branch_vlan() == Some(set.vlan));
    match link.map(|l| (l.index, l.mac)) {
        None => Some(MacOutcome::LinkAbsent),
        Some((index, Some(mac))) if index == changed && mac == set.to => None,
        Some((_, Some(mac))) => Some(MacOutcome::Differs(mac)),
        Some((_, None)) => Some(MacOutcome::Failed("the link has no unicast MAC any more".into())),
    }
}

/// The requests of a session that are not answered yet.
pub(super) type Open = BTreeMap<u64, VlanId>;

impl Witness {
    pub(super) fn on_set_mac(&mut self, set: SetMac, out: &mut Vec<Action>) {
        let Some(session) = &mut self.session else {
            return;
        };
        let (request, vlan) = (set.request, set.vlan);
        let Some(trunk) = self.trunk else {
            let why = "the trunk's MAC is not known, so no link view can be trusted";
            let outcome = MacOutcome::Failed(why.into());
            out.push(Action::Send(FromAgent::MacResult { request, vlan, outcome }));
            return;
        };
        // The same request again while it is under way: one answer is enough.
        if session.macs.insert(request, vlan).is_none() {
            out.push(Action::SetMac { origin: session.origin.clone(), set, trunk });
        }
    }

    pub(super) fn on_mac_set(
        &mut self,
        origin: &Origin,
        request: u64,
        outcome: MacOutcome,
        out: &mut Vec<Action>,
    ) {
        if matches!(outcome, MacOutcome::Done | MacOutcome::Differs(_) | MacOutcome::LinkAbsent) {
            // The links are not as the coordinator thinks, or no longer as it was told.
            out.push(Action::LookNow);
        }
        let Some(session) = self.session.as_mut().filter(|s| s.origin == *origin) else {
            return;
        };
        if let Some(vlan) = session.macs.remove(&request) {
            out.push(Action::Send(FromAgent::MacResult { request, vlan, outcome }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(n: u8) -> MacAddress {
        MacAddress::from_octets([2, 0, 0, 0, 0, n]).unwrap()
    }

    fn link(index: u32, name: &str, address: Option<u8>) -> Link {
        let kind = LinkKind::Other("macvlan".into());
        Link { index, name: name.into(), kind, mac: address.map(mac), parent: Some(2) }
    }

    fn set() -> SetMac {
        SetMac {
            request: 1,
            uid: "uid-1".parse().unwrap(),
            vlan: VlanId::new(7).unwrap(),
            from: mac(7),
            to: mac(8),
            addresses: vec![],
        }
    }

    fn plan(links: &[Link]) -> MacPlan {
        plan_mac(&Links(links.to_vec()), &set(), mac(1))
    }

    fn refused(links: &[Link]) -> String {
        match plan(links) {
            MacPlan::Over(MacOutcome::Failed(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_the_link_of_the_vlan_that_carries_the_old_mac_is_changed() {
        let trunk = link(2, "eth1", Some(1));
        let other = link(8, "vlan.eth.8", Some(9));
        let links = |mac| [trunk.clone(), other.clone(), link(9, "vlan.eth.7", Some(mac))];
        assert_eq!(plan(&links(7)), MacPlan::Change(9));
        assert_eq!(plan(&links(8)), MacPlan::Already(9));
        assert_eq!(plan(&links(6)), MacPlan::Over(MacOutcome::Differs(mac(6))));
        assert_eq!(plan(&[trunk, other]), MacPlan::Over(MacOutcome::LinkAbsent));
    }

    #[test]
    fn a_link_is_never_absent_in_links_that_do_not_show_the_trunk() {
        assert_eq!(refused(&[]), "no link carries the trunk's MAC 02:00:00:00:00:01");
        assert!(refused(&[link(9, "vlan.eth.7", Some(7))]).contains("the trunk's MAC"));
    }

    #[test]
    fn the_old_macs_link_under_another_name_is_left_alone() {
        let links = [link(2, "eth1", Some(1)), link(9, "eth2", Some(7))];
        assert_eq!(plan(&links), MacPlan::Over(MacOutcome::LinkAbsent));
    }

    #[test]
    fn an_802_1q_link_must_be_of_the_vlan_that_its_name_says() {
        let with_id = |id| Link { kind: LinkKind::Vlan(id), ..link(9, "vlan.eth.7", Some(7)) };
        let trunk = link(2, "eth1", Some(1));
        assert_eq!(plan(&[trunk.clone(), with_id(7)]), MacPlan::Change(9));
        assert_eq!(refused(&[trunk, with_id(70)]), "vlan.eth.7 is an 802.1q link of id 70");
    }

    #[test]
    fn a_mac_that_another_link_carries_is_refused() {
        let branch = link(9, "vlan.eth.7", Some(7));
        let links = [link(2, "eth1", Some(1)), branch.clone(), link(4, "vlan.eth.9", Some(8))];
        assert_eq!(refused(&links), "vlan.eth.9 carries the MAC 02:00:00:00:00:08 already");
        // The trunk's own above all.
        let to_trunk = SetMac { to: mac(1), ..set() };
        let links = Links(vec![link(2, "eth1", Some(1)), branch]);
        assert!(matches!(
            plan_mac(&links, &to_trunk, mac(1)),
            MacPlan::Over(MacOutcome::Failed(_))
        ));
    }

    #[test]
    fn a_change_counts_only_on_the_link_that_was_changed() {
        let judge = |links: &[Link]| judge_mac(&Links(links.to_vec()), &set(), 9);
        assert_eq!(judge(&[link(9, "vlan.eth.7", Some(8))]), None);
        assert_eq!(judge(&[]), Some(MacOutcome::LinkAbsent));
        assert_eq!(judge(&[link(9, "renamed", Some(8))]), Some(MacOutcome::LinkAbsent));
        for (index, found) in [(9, 7), (10, 7), (10, 8)] {
            let made_anew = link(index, "vlan.eth.7", Some(found));
            assert_eq!(judge(&[made_anew]), Some(MacOutcome::Differs(mac(found))));
        }
    }
}
