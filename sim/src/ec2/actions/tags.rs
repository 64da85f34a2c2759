//! CreateTags and DeleteTags (`ec2.md` §8.14).

use std::collections::BTreeMap;

use super::super::error::{ApiError, is_ec2_id};
use super::super::model::Effect;
use super::super::params::Params;
use super::super::world::{Call, World};
use super::super::xml::Xml;
use super::{done, owned};

/// Keys, and values where given, of a list of tags.
pub(super) fn read(p: &Params, prefix: &str) -> Result<Vec<(String, Option<String>)>, ApiError> {
    p.structures(prefix)
        .into_iter()
        .map(|tag| {
            let key = p.required(&format!("{tag}.Key"))?.to_owned();
            Ok((key, p.text(&format!("{tag}.Value")).map(ToOwned::to_owned)))
        })
        .collect()
}

/// Checks tags to set, and how many there will be.
pub(super) fn check(tags: &BTreeMap<String, String>, count: usize) -> Result<(), ApiError> {
    for (key, value) in tags {
        if key.starts_with("aws:") {
            return Err(ApiError::value(
                "Tag keys starting with 'aws:' are reserved for internal use",
            ));
        }
        if key.chars().count() > 127 {
            return Err(ApiError::bad(
                "InvalidTagKey.Malformed",
                "Tag key exceeds the maximum length of 127 characters",
            ));
        }
        if value.chars().count() > 256 {
            return Err(ApiError::value("Tag value exceeds the maximum length of 256 characters"));
        }
    }
    if count > 50 {
        return Err(ApiError::bad(
            "TagLimitExceeded",
            "The maximum number of Tags for a resource has been reached.",
        ));
    }
    Ok(())
}

/// The resources of a call; every one must exist.
fn resources(world: &mut World, p: &Params) -> Result<Vec<String>, ApiError> {
    let ids = owned(&p.list("ResourceId"));
    if ids.is_empty() {
        return Err(ApiError::missing("resourceIdSet"));
    }
    if ids.len() > 1000 {
        return Err(ApiError::value("Too many resources"));
    }
    for id in &ids {
        if world.tags_mut(id).is_none() {
            let known = ["subnet-", "sg-", "i-"].iter().any(|prefix| is_ec2_id(id, prefix));
            return Err(match id.as_str() {
                id if is_ec2_id(id, "eni-") => ApiError::no_eni(id),
                id if known => ApiError::bad("InvalidID", format!("The ID '{id}' does not exist")),
                id => ApiError::bad("InvalidID", format!("The ID '{id}' is not valid")),
            });
        }
    }
    Ok(ids)
}

pub(super) fn create(world: &mut World, call: &mut Call<'_>) -> Result<Vec<Xml>, ApiError> {
    let ids = resources(world, call.params)?;
    let tags: BTreeMap<String, String> =
        read(call.params, "Tag")?.into_iter().map(|(k, v)| (k, v.unwrap_or_default())).collect();
    if tags.is_empty() {
        return Err(ApiError::missing("tagSet"));
    }
    for id in &ids {
        let present = world.tags_mut(id).map(|t| t.clone()).unwrap_or_default();
        let new = tags.keys().filter(|k| !present.contains_key(*k)).count();
        check(&tags, present.len() + new)?;
    }
    call.commit()?;
    for id in &ids {
        set(world, id, &tags);
    }
    Ok(done())
}

pub(super) fn delete(world: &mut World, call: &mut Call<'_>) -> Result<Vec<Xml>, ApiError> {
    let ids = resources(world, call.params)?;
    let wanted = read(call.params, "Tag")?;
    call.commit()?;
    for id in &ids {
        let present = world.tags_mut(id).map(|t| t.clone()).unwrap_or_default();
        let keys = present
            .iter()
            .filter(|(key, value)| {
                wanted.is_empty()
                    || wanted
                        .iter()
                        .any(|(k, v)| k == *key && v.as_ref().is_none_or(|v| v == *value))
            })
            .map(|(key, _)| key.clone())
            .collect();
        remove(world, id, keys);
    }
    Ok(done())
}

/// Sets tags.
pub(crate) fn set(world: &mut World, id: &str, tags: &BTreeMap<String, String>) {
    if let Some(present) = world.tags_mut(id) {
        present.extend(tags.clone());
    }
    changed(world, id);
    world.effects.push(Effect::TagsSet { resource: id.to_owned(), tags: tags.clone() });
}

/// Removes tags.
pub(crate) fn remove(world: &mut World, id: &str, keys: Vec<String>) {
    if keys.is_empty() {
        return;
    }
    if let Some(present) = world.tags_mut(id) {
        present.retain(|key, _| !keys.contains(key));
    }
    changed(world, id);
    world.effects.push(Effect::TagsRemoved { resource: id.to_owned(), keys });
}

fn changed(world: &mut World, id: &str) {
    let lag = world.switches.lag.tags.pick(&mut world.rng);
    world.touch(id, (lag, lag));
}
