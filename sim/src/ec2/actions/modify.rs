//! ModifyNetworkInterfaceAttribute and the permissions (`ec2.md` §8.4, §8.5).

use super::super::error::ApiError;
use super::super::filter::Filters;
use super::super::model::Effect;
use super::super::world::pages::page_size;
use super::super::world::{Call, Permission, World};
use super::super::xml::{Xml, group, list, optional, text};
use super::{done, owned};

/// Each attribute, by the parameters that it stands in.
const ATTRIBUTES: &[&str] = &[
    "SecurityGroupId",
    "Description",
    "SourceDestCheck",
    "Attachment",
    "EnablePrimaryIpv6",
    "ConnectionTrackingSpecification",
    "EnaSrdSpecification",
    "AssociatePublicIpAddress",
    "AssociatedSubnetId",
];

pub(super) fn modify(world: &mut World, call: &mut Call<'_>) -> Result<Vec<Xml>, ApiError> {
    let p = call.params;
    let id = p.required("NetworkInterfaceId")?;
    let eni = world.need_eni(id)?;
    let given: Vec<&str> = ATTRIBUTES.iter().copied().filter(|a| p.has(a)).collect();
    let [attribute] = given.as_slice() else {
        return Err(if given.is_empty() {
            ApiError::missing("attribute")
        } else {
            ApiError::combination("Fields for multiple attribute types specified")
        });
    };
    let vpc = eni.state.vpc.clone();
    match *attribute {
        "SecurityGroupId" => {
            let groups = owned(&p.list("SecurityGroupId"));
            world.check_groups(&groups, &vpc)?;
            call.commit()?;
            set_groups(world, id, groups);
        }
        "Description" => {
            let value = p.text("Description.Value").unwrap_or_default().to_owned();
            call.commit()?;
            change(world, id, "Description", &value, |e| e.state.description.clone_from(&value));
        }
        "SourceDestCheck" => {
            let value =
                p.flag("SourceDestCheck.Value")?.ok_or_else(|| ApiError::missing("value"))?;
            call.commit()?;
            change(world, id, "SourceDestCheck", &value.to_string(), |e| {
                e.source_dest_check = value;
            });
        }
        "Attachment" => {
            let attachment = p.required("Attachment.AttachmentId")?;
            let value = p.flag("Attachment.DeleteOnTermination")?;
            let value = value.ok_or_else(|| ApiError::missing("Attachment.DeleteOnTermination"))?;
            if eni.state.attachment.as_ref().is_none_or(|a| a.id != attachment) {
                return Err(ApiError::bad(
                    "InvalidAttachmentID.NotFound",
                    format!("The attachment ID '{attachment}' does not exist"),
                ));
            }
            call.commit()?;
            change(world, id, "DeleteOnTermination", &value.to_string(), |e| {
                if let Some(a) = &mut e.state.attachment {
                    a.delete_on_termination = value;
                }
            });
        }
        "EnablePrimaryIpv6" => {
            let value = p.flag("EnablePrimaryIpv6")?.unwrap_or(false);
            call.commit()?;
            change(world, id, "EnablePrimaryIpv6", &value.to_string(), |e| e.primary_ipv6 = value);
        }
        other => {
            p.ignore(other);
            call.commit()?;
        }
    }
    Ok(done())
}

/// Replaces the groups of an ENI. Describes may show it late (row 17).
pub(crate) fn set_groups(world: &mut World, id: &str, groups: Vec<String>) {
    if let Some(eni) = world.eni_mut(id) {
        eni.state.groups.clone_from(&groups);
    }
    let lag = world.switches.lag.groups.pick(&mut world.rng);
    world.touch(id, (lag, lag));
    world.effects.push(Effect::GroupsSet { eni: id.to_owned(), groups });
}

fn change(
    world: &mut World,
    id: &str,
    attribute: &str,
    value: &str,
    apply: impl FnOnce(&mut super::super::world::Eni),
) {
    if let Some(eni) = world.eni_mut(id) {
        apply(eni);
    }
    world.touch(id, (0, 0));
    world.effects.push(Effect::AttributeSet {
        eni: id.to_owned(),
        attribute: attribute.to_owned(),
        value: value.to_owned(),
    });
}

pub(super) fn permit(world: &mut World, call: &mut Call<'_>) -> Result<Vec<Xml>, ApiError> {
    let p = call.params;
    let eni = p.required("NetworkInterfaceId")?;
    world.need_eni(eni)?;
    p.ignore("AwsService");
    let account = p.required("AwsAccountId")?;
    let kind = p.required("Permission")?;
    if !["INSTANCE-ATTACH", "EIP-ASSOCIATE"].contains(&kind) {
        return Err(ApiError::value(format!(
            "Value ({kind}) for parameter permission is invalid."
        )));
    }
    call.commit()?;
    let same = |g: &&Permission| g.eni == eni && g.account == account && g.kind == kind;
    let permission = match world.permissions.iter().find(same) {
        Some(permission) => permission.clone(),
        None => {
            let wait = world.switches.lag.permission.pick(&mut world.rng);
            let permission = Permission {
                id: world.new_id("eni-perm-"),
                eni: eni.to_owned(),
                account: account.to_owned(),
                kind: kind.to_owned(),
                granted_at: world.now + wait,
            };
            world.effects.push(Effect::PermissionGranted {
                permission: permission.id.clone(),
                eni: eni.to_owned(),
                account: account.to_owned(),
            });
            world.permissions.push(permission.clone());
            permission
        }
    };
    Ok(vec![group("interfacePermission", fields(&permission, world.now))])
}

fn fields(p: &Permission, now: u64) -> Vec<Xml> {
    let state = if p.granted_at <= now { "granted" } else { "pending" };
    vec![
        text("networkInterfacePermissionId", &p.id),
        text("networkInterfaceId", &p.eni),
        text("awsAccountId", &p.account),
        text("permission", &p.kind),
        group("permissionState", vec![text("state", state)]),
    ]
}

pub(super) fn permissions(world: &mut World, call: &mut Call<'_>) -> Result<Vec<Xml>, ApiError> {
    let p = call.params;
    let ids = owned(&p.list("NetworkInterfacePermissionId"));
    let known = [
        "network-interface-permission.network-interface-permission-id",
        "network-interface-permission.network-interface-id",
        "network-interface-permission.aws-account-id",
        "network-interface-permission.permission",
    ];
    let filters = Filters::read(p, &known, &world.switches)?;
    let size = page_size(call, &(5..=255))?;
    call.commit_without_dry_run()?;
    if let Some(id) = ids.iter().find(|id| !world.permissions.iter().any(|p| p.id == **id)) {
        return Err(ApiError::bad(
            "InvalidPermissionID.NotFound",
            format!("The permission ID '{id}' does not exist"),
        ));
    }
    let mut found: Vec<(String, Permission)> = world
        .permissions
        .iter()
        .filter(|p| ids.is_empty() || ids.contains(&p.id))
        .filter(|p| {
            filters.pass(&std::collections::BTreeMap::new(), |name| {
                vec![
                    match name.rsplit('.').next() {
                        Some("network-interface-permission-id") => &p.id,
                        Some("network-interface-id") => &p.eni,
                        Some("aws-account-id") => &p.account,
                        _ => &p.kind,
                    }
                    .clone(),
                ]
            })
        })
        .map(|p| (p.id.clone(), p.clone()))
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    let (page, token) = world.page(call, size, found)?;
    let now = world.now;
    let mut body = vec![list("networkInterfacePermissions", page.iter().map(|p| fields(p, now)))];
    body.extend(optional("nextToken", token));
    Ok(body)
}
