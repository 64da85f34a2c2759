//! Trunk associations.
//!
//! By id an association is gone as soon as it is removed; its VLAN and its slot on the trunk linger, and so does the
//! branch's old status (`ec2.md` §13 row 5). Lists of associations lag as lists of ENIs do.

use super::super::error::ApiError;
use super::super::limits;
use super::super::model::{AssociationState, Effect};
use super::World;

/// How a branch is told apart on its trunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wire {
    Vlan(u32),
    Gre(u32),
}

impl Wire {
    /// The VLAN id; 0 for GRE.
    pub(crate) fn vlan(self) -> u32 {
        match self {
            Self::Vlan(vlan) => vlan,
            Self::Gre(_) => 0,
        }
    }
}

/// An association that exists, or that lists still show.
#[derive(Debug, Clone)]
pub(crate) struct Association {
    pub(crate) id: String,
    pub(crate) trunk: String,
    pub(crate) branch: String,
    pub(crate) wire: Wire,
    /// Until when lists show it although it is gone.
    gone_from_lists_at: Option<u64>,
}

impl World {
    /// The association of that id, if it exists.
    pub(crate) fn association(&self, id: &str) -> Option<&Association> {
        self.associations.get(id).filter(|a| a.gone_from_lists_at.is_none())
    }

    /// What a list of associations shows at that time.
    pub(crate) fn associations_listed(&self, at: u64) -> impl Iterator<Item = &Association> {
        self.associations
            .values()
            .filter(move |a| a.gone_from_lists_at.is_none_or(|gone| at < gone))
    }

    fn live_associations(&self) -> impl Iterator<Item = &Association> {
        self.associations.values().filter(|a| a.gone_from_lists_at.is_none())
    }

    /// Why the trunk cannot take a branch on that wire, if it cannot.
    pub(crate) fn check_room(&self, trunk: &str, wire: Wire) -> Result<(), ApiError> {
        let lingering = || self.lingering.iter().filter(|(t, _, _)| t == trunk);
        let taken = self.live_associations().any(|a| a.trunk == trunk && a.wire == wire)
            || lingering().any(|(_, w, _)| *w == wire);
        if taken {
            return Err(match wire {
                Wire::Vlan(vlan) => ApiError::vlan_in_use(vlan),
                Wire::Gre(key) => {
                    ApiError::bad("InvalidGreKey.Duplicate", format!("GreKey '{key}' is in use"))
                }
            });
        }
        let count =
            self.live_associations().filter(|a| a.trunk == trunk).count() + lingering().count();
        match self.branch_limit(trunk) {
            Some((limit, kind)) if count >= limit => Err(ApiError::bad(
                self.switches.branch_limit_code.clone(),
                format!("Branch interface count {} exceeds the limit for {kind}", count + 1),
            )),
            _ => Ok(()),
        }
    }

    /// How many branches a trunk may have, and for which type. A trunk without instance has no limit.
    fn branch_limit(&self, trunk: &str) -> Option<(usize, String)> {
        let attachment = self.eni(trunk)?.state.attachment.as_ref()?;
        let kind = self.instances.get(&attachment.instance)?.instance_type.clone();
        let switches = &self.switches.limits;
        let limit = match (switches.branches.get(&kind), limits::of(&kind)) {
            (Some(limit), _) => *limit,
            (None, Some(table)) if switches.common_ceiling => {
                let attached = self
                    .live()
                    .filter(|e| {
                        e.state
                            .attachment
                            .as_ref()
                            .is_some_and(|a| a.instance == attachment.instance)
                    })
                    .count();
                let extra = u32::try_from(attached.saturating_sub(2)).unwrap_or(u32::MAX);
                (table.branches + table.interfaces.saturating_sub(2)).saturating_sub(extra)
            }
            (None, Some(table)) => table.branches,
            // A type that nobody has a table for (S38): the largest value there is.
            (None, None) => 120,
        };
        Some((usize::try_from(limit).unwrap_or(usize::MAX), kind))
    }

    /// Makes an association. The caller has checked everything it wants checked.
    pub(crate) fn associate(&mut self, branch: &str, trunk: &str, wire: Wire) -> String {
        let id = self.new_id("trunk-assoc-");
        let state = AssociationState { id: id.clone(), trunk: trunk.to_owned(), vlan: wire.vlan() };
        if let Some(eni) = self.eni_mut(branch) {
            eni.drop_hold();
            eni.state.association = Some(state);
            eni.state.interface_type = "branch".into();
        }
        self.associations.insert(
            id.clone(),
            Association {
                id: id.clone(),
                trunk: trunk.to_owned(),
                branch: branch.to_owned(),
                wire,
                gone_from_lists_at: None,
            },
        );
        self.effects.push(Effect::AssociationMade {
            association: id.clone(),
            trunk: trunk.to_owned(),
            branch: branch.to_owned(),
            vlan: wire.vlan(),
        });
        let lag = self.switches.lag.associate.pick(&mut self.rng);
        self.touch(branch, (lag, lag));
        id
    }

    /// Removes an association: by id at once; VLAN and slot after `busy` ms, the branch's status after `settle` ms.
    pub(crate) fn disassociate(&mut self, id: &str, busy: u64, settle: u64) {
        let list = self.switches.lag.disassociate_list.pick(&mut self.rng);
        let gone = self.now + list;
        let Some(association) = self.associations.get_mut(id) else {
            return;
        };
        if association.gone_from_lists_at.is_some() {
            return;
        }
        association.gone_from_lists_at = Some(gone);
        let Association { trunk, branch, wire, .. } = association.clone();
        if busy > 0 {
            self.lingering.push((trunk.clone(), wire, self.now + busy));
        }
        let after = self.switches.disassociated_type.clone();
        let mut tags = std::collections::BTreeMap::new();
        if let Some(eni) = self.eni_mut(&branch) {
            eni.state.association = None;
            eni.state.interface_type = after;
            tags = eni.state.tags.clone();
        }
        self.hold_status(&branch, settle);
        self.effects.push(Effect::AssociationRemoved {
            association: id.to_owned(),
            trunk,
            branch,
            vlan: wire.vlan(),
            tags,
        });
        let now = self.now;
        self.associations
            .retain(|_, a| a.gone_from_lists_at.is_none_or(|gone| gone + 300_000 > now));
    }

    /// Removes every association that an ENI is part of, as branch or as trunk; VLANs and statuses follow after `settle` ms.
    pub(crate) fn end_associations_of(&mut self, eni: &str, settle: u64) {
        let ids: Vec<String> = self
            .live_associations()
            .filter(|a| a.trunk == eni || a.branch == eni)
            .map(|a| a.id.clone())
            .collect();
        for id in ids {
            self.disassociate(&id, settle, settle);
        }
    }

    /// The branches of a trunk.
    pub(crate) fn branches_of(&self, trunk: &str) -> Vec<String> {
        self.live_associations().filter(|a| a.trunk == trunk).map(|a| a.branch.clone()).collect()
    }
}
