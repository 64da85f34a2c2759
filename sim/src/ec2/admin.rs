//! The JSON side: log, truth, switches, faults, and changes that no API call made. Routes: see [`super`].

use http::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::actions::{set_groups, set_tags, unset_tags};
use super::error::ApiError;
use super::fault::Fault;
use super::model::{
    AssociateSpec, ById, Effect, EniSpec, GroupSpec, GroupsEdit, InstanceEdit, InstanceSpec,
    SubnetSpec, TagEdit,
};
use super::params::Params;
use super::reply::Reply;
use super::server::{Caller, Inner};
use super::switches::Switches;
use super::world::{Wire, World};

/// Answers one admin request.
pub(super) fn serve(
    inner: &mut Inner,
    method: &Method,
    path: &str,
    query: &str,
    body: &str,
) -> Reply {
    let route = path.trim_start_matches("/_sim/");
    let outcome =
        if method == Method::GET { read(inner, route, query) } else { write(inner, route, body) };
    match outcome {
        Ok(body) => Reply::json(200, body),
        Err(error) => {
            let body = json!({"code": error.code, "error": error.message}).to_string();
            Reply::json(error.status, body)
        }
    }
}

fn to_json(value: &impl Serialize) -> Result<String, ApiError> {
    serde_json::to_string(value).map_err(|e| ApiError::new(500, "InternalError", e.to_string()))
}

fn parse<T: DeserializeOwned>(body: &str) -> Result<T, ApiError> {
    serde_json::from_str(body)
        .map_err(|e| ApiError::value(format!("failed to understand the body: {e}")))
}

fn no_route(route: &str) -> ApiError {
    ApiError::new(404, "NoSuchRoute", format!("there is no '/_sim/{route}' for this method"))
}

fn read(inner: &mut Inner, route: &str, query: &str) -> Result<String, ApiError> {
    match route {
        "health" => Ok("\"ok\"".into()),
        "log" => {
            let query = Params::decode(query);
            let from: usize = query.number("from")?.unwrap_or(1);
            let limit: usize = query.number("limit")?.unwrap_or(usize::MAX);
            // Entry n stands at index n - 1.
            let entries: Vec<_> =
                inner.log.iter().skip(from.saturating_sub(1)).take(limit).collect();
            to_json(&entries)
        }
        "state" => {
            let seq = u64::try_from(inner.log.len()).unwrap_or(u64::MAX);
            to_json(&inner.world.state(seq))
        }
        "switches" => to_json(&inner.world.switches),
        "faults" => {
            let faults: Vec<_> = inner
                .faults
                .list()
                .into_iter()
                .map(|(fault, fired)| json!({"fault": fault, "fired": fired}))
                .collect();
            to_json(&faults)
        }
        route => Err(no_route(route)),
    }
}

fn write(inner: &mut Inner, route: &str, body: &str) -> Result<String, ApiError> {
    let outcome = change(inner, route, body);
    let mut entry = Caller::admin(&format!("_sim/{route}"), body.to_owned()).entry();
    entry.effects = inner.world.take_effects();
    if let Err(error) = &outcome {
        entry.status = Some(error.status);
        entry.code = Some(error.code.clone());
    }
    inner.record(entry);
    outcome
}

fn id_of(id: &str) -> Result<String, ApiError> {
    to_json(&json!({ "id": id }))
}

fn change(inner: &mut Inner, route: &str, body: &str) -> Result<String, ApiError> {
    let world = &mut inner.world;
    match route {
        "switches" => {
            let patched: Result<Switches, _> = world.switches.patched(&parse(body)?);
            world.switches = patched.map_err(|e| ApiError::value(e.to_string()))?;
            to_json(&world.switches)
        }
        "faults" => {
            let now = world.now;
            id_of(&inner.faults.add(parse::<Fault>(body)?, now))
        }
        "faults/clear" => {
            let wanted: serde_json::Value = parse(body)?;
            inner.faults.clear(wanted.get("id").and_then(|id| id.as_str()));
            Ok("{}".into())
        }
        "instances" => to_json(&world.add_instance(parse::<InstanceSpec>(body)?)?),
        "instances/state" => {
            let edit: InstanceEdit = parse(body)?;
            if !world.set_instance_state(&edit.id, &edit.state) {
                return Err(ApiError::no_instance(&edit.id));
            }
            id_of(&edit.id)
        }
        "subnets" => id_of(&world.add_subnet(parse::<SubnetSpec>(body)?)?),
        "security-groups" => id_of(&world.add_group(parse::<GroupSpec>(body)?)?),
        "security-groups/delete" => {
            let ById { id } = parse(body)?;
            if world.groups.remove(&id).is_none() {
                return Err(ApiError::value(format!("there is no security group '{id}'")));
            }
            world.effects.push(Effect::GroupRemoved { group: id.clone() });
            id_of(&id)
        }
        "tags" => {
            let edit: TagEdit = parse(body)?;
            if world.tags_mut(&edit.id).is_none() {
                return Err(ApiError::value(format!("there is no '{}'", edit.id)));
            }
            unset_tags(world, &edit.id, edit.remove);
            if !edit.set.is_empty() {
                set_tags(world, &edit.id, &edit.set);
            }
            id_of(&edit.id)
        }
        "enis" => id_of(&world.add_eni(parse::<EniSpec>(body)?)?),
        route => change_eni(world, route, body),
    }
}

fn change_eni(world: &mut World, route: &str, body: &str) -> Result<String, ApiError> {
    match route {
        "enis/delete" => {
            let ById { id } = parse(body)?;
            world.need_eni(&id)?;
            world.delete_eni(&id);
            id_of(&id)
        }
        "enis/detach" => {
            let ById { id } = parse(body)?;
            world.need_eni(&id)?;
            world.detach(&id);
            id_of(&id)
        }
        "enis/groups" => {
            let edit: GroupsEdit = parse(body)?;
            let vpc = world.need_eni(&edit.id)?.state.vpc.clone();
            world.check_groups(&edit.groups, &vpc)?;
            set_groups(world, &edit.id, edit.groups);
            id_of(&edit.id)
        }
        "enis/associate" => {
            let spec: AssociateSpec = parse(body)?;
            world.need_eni(&spec.trunk)?;
            if world.need_eni(&spec.branch)?.state.association.is_some() {
                return Err(ApiError::value(format!("'{}' is associated already", spec.branch)));
            }
            id_of(&world.associate(&spec.branch, &spec.trunk, Wire::Vlan(spec.vlan)))
        }
        "enis/disassociate" => {
            let ById { id } = parse(body)?;
            let association = match world.eni(&id) {
                Some(eni) => eni.state.association.as_ref().map(|a| a.id.clone()),
                None => world.association(&id).map(|a| a.id.clone()),
            };
            let association = association.ok_or_else(|| ApiError::no_association(&id))?;
            let settle = world.switches.lag.disassociate.pick(&mut world.rng);
            world.disassociate(&association, settle, settle);
            id_of(&association)
        }
        route => Err(no_route(route)),
    }
}
