//! Trunk associations (`ec2.md` §8.6 to §8.8).

use std::collections::BTreeMap;

use super::super::error::ApiError;
use super::super::fault::FaultKind;
use super::super::filter::Filters;
use super::super::switches::AssociationsApi;
use super::super::world::pages::page_size;
use super::super::world::{Association, Call, Outcome, Wire, World};
use super::super::xml::{Xml, group, list, optional, text};

pub(super) fn associate(world: &mut World, call: &mut Call<'_>) -> Result<Vec<Xml>, ApiError> {
    if let Some(Outcome::Made(id)) = world.replayed(call)? {
        // A token whose association is gone does not bring it back (seen).
        if world.association(&id).is_none() {
            return Err(ApiError::mismatch());
        }
        return reply(world, call, &id);
    }
    let p = call.params;
    let branch = p.required("BranchInterfaceId")?;
    let trunk = p.required("TrunkInterfaceId")?;
    let wire = wire(world, call)?;
    check_ends(world, branch, trunk)?;
    check_account(world, call, branch)?;
    world.check_room(trunk, wire)?;
    call.commit()?;
    let id = world.associate(branch, trunk, wire);
    world.remember(call, Outcome::Made(id.clone()));
    reply(world, call, &id)
}

fn wire(world: &World, call: &Call<'_>) -> Result<Wire, ApiError> {
    let p = call.params;
    match (p.number::<u32>("VlanId")?, p.number::<u32>("GreKey")?) {
        (Some(_), Some(_)) => {
            Err(ApiError::combination("VlanId and GreKey may not be given together"))
        }
        (None, Some(key)) => Ok(Wire::Gre(key)),
        (None, None) => Err(ApiError::missing("VlanId")),
        (Some(vlan), None) if vlan == 0 || vlan > world.switches.limits.vlan_max => {
            Err(ApiError::value(format!("Value ({vlan}) for parameter VlanId is invalid.")))
        }
        (Some(vlan), None) => Ok(Wire::Vlan(vlan)),
    }
}

/// Rows 1 and 3 of `ec2.md` §13.
fn check_ends(world: &World, branch: &str, trunk: &str) -> Result<(), ApiError> {
    let trunk_eni = world.need_eni(trunk)?;
    let branch_eni = world.need_eni(branch)?;
    if trunk_eni.state.interface_type != "trunk" {
        return Err(ApiError::value(format!(
            "Network interface '{trunk}' is not a trunk interface"
        )));
    }
    if branch_eni.state.interface_type == "trunk" {
        return Err(ApiError::value(format!("Network interface '{branch}' is a trunk interface")));
    }
    if branch_eni.state.association.is_some() {
        return Err(ApiError::bad(
            world.switches.already_associated_code.clone(),
            format!("Network interface '{branch}' is already associated"),
        ));
    }
    if branch_eni.state.attachment.is_some() {
        return Err(ApiError::bad(
            "InvalidNetworkInterface.InUse",
            format!("Interface: [{branch}] in use."),
        ));
    }
    if branch_eni.state.zone != trunk_eni.state.zone || branch_eni.state.vpc != trunk_eni.state.vpc
    {
        return Err(ApiError::value(format!(
            "Network interfaces '{branch}' and '{trunk}' are not in the same availability zone and VPC"
        )));
    }
    Ok(())
}

/// A caller of another account than the branch's needs a permission (assumed).
fn check_account(world: &World, call: &Call<'_>, branch: &str) -> Result<(), ApiError> {
    let own = world.eni(branch).is_some_and(|e| e.state.owner == call.account);
    let granted = || {
        world.permissions.iter().any(|p| {
            p.eni == branch
                && p.account == call.account
                && p.kind == "INSTANCE-ATTACH"
                && p.granted_at <= world.now
        })
    };
    if own || granted() {
        return Ok(());
    }
    Err(ApiError::bad(
        "OperationNotPermitted",
        format!("You do not have permission to access the network interface '{branch}'"),
    ))
}

fn fields(association: &Association) -> Vec<Xml> {
    let (protocol, wire) = match association.wire {
        Wire::Vlan(vlan) => ("VLAN", text("vlanId", vlan)),
        Wire::Gre(key) => ("GRE", text("greKey", key)),
    };
    vec![
        text("associationId", &association.id),
        text("branchInterfaceId", &association.branch),
        text("trunkInterfaceId", &association.trunk),
        text("interfaceProtocol", protocol),
        wire,
    ]
}

fn reply(world: &World, call: &Call<'_>, id: &str) -> Result<Vec<Xml>, ApiError> {
    let association = world.association(id).ok_or_else(|| ApiError::no_association(id))?;
    let mut body = vec![group("interfaceAssociation", fields(association))];
    body.extend(optional("clientToken", call.params.text("ClientToken")));
    Ok(body)
}

pub(super) fn disassociate(world: &mut World, call: &mut Call<'_>) -> Result<Vec<Xml>, ApiError> {
    let p = call.params;
    let id = p.required("AssociationId")?;
    if world.replayed(call)?.is_none() {
        if world.association(id).is_none() {
            return Err(ApiError::no_association(id));
        }
        call.commit()?;
        let settle = world.switches.lag.disassociate.pick(&mut world.rng);
        let busy = call.fired.find(|kind| match kind {
            FaultKind::SlotBusy { ms } => Some(*ms),
            _ => None,
        });
        world.disassociate(id, busy.unwrap_or(settle), settle);
        world.remember(call, Outcome::Removed);
        if call.fired.kinds().any(|k| matches!(k, FaultKind::AssociationNotFound { removed: true }))
        {
            return Err(ApiError::no_association(id));
        }
    }
    let mut body = super::done();
    body.extend(optional("clientToken", p.text("ClientToken")));
    Ok(body)
}

const DOCUMENTED: &[&str] = &["gre-key", "interface-protocol"];
const WITH_VRCS: &[&str] =
    &["gre-key", "interface-protocol", "trunk-interface-association.trunk-interface-id"];

pub(super) fn describe(world: &mut World, call: &mut Call<'_>) -> Result<Vec<Xml>, ApiError> {
    let p = call.params;
    let mut switches = world.switches.clone();
    let known = match switches.associations_api {
        AssociationsApi::Unauthorized => return Err(ApiError::unauthorized()),
        AssociationsApi::Works => WITH_VRCS,
        AssociationsApi::DocumentedFilters => {
            switches.unknown_filter_code = "InvalidFilter".into();
            DOCUMENTED
        }
    };
    let filters = Filters::read(p, known, &switches)?;
    let size = page_size(call, &(5..=255))?;
    let ids = super::owned(&p.list("AssociationId"));
    if !ids.is_empty() && size.is_some() {
        return Err(ApiError::combination(
            "The parameters MaxResults and AssociationId may not be used together",
        ));
    }
    call.commit()?;
    let found: Vec<Association> = if ids.is_empty() {
        world.associations_listed(call.read_at).cloned().collect()
    } else {
        let by_id = |id: &String| {
            world.association(id).cloned().ok_or_else(|| ApiError::no_association(id))
        };
        ids.iter().map(by_id).collect::<Result<_, _>>()?
    };
    let none = BTreeMap::new();
    let passed: Vec<(String, Association)> = found
        .into_iter()
        .filter(|a| !call.fired.hides(&a.branch) && !call.fired.hides(&a.trunk))
        .filter(|a| {
            filters.pass(&none, |name| match (name, a.wire) {
                ("gre-key", Wire::Gre(key)) => vec![key.to_string()],
                ("gre-key", Wire::Vlan(_)) => Vec::new(),
                ("interface-protocol", Wire::Gre(_)) => vec!["GRE".into()],
                ("interface-protocol", Wire::Vlan(_)) => vec!["VLAN".into()],
                _ => vec![a.trunk.clone()],
            })
        })
        .map(|a| (a.id.clone(), a))
        .collect();
    let (page, token) = world.page(call, size, passed)?;
    let mut body = vec![list("interfaceAssociationSet", page.iter().map(fields))];
    body.extend(optional("nextToken", token));
    Ok(body)
}
