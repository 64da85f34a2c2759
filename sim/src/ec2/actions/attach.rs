//! AttachNetworkInterface and DetachNetworkInterface (`ec2.md` §8.9, §8.10).

use super::super::error::ApiError;
use super::super::fault::FaultKind;
use super::super::limits;
use super::super::world::{Call, World};
use super::super::xml::{Xml, text};
use super::done;

pub(super) fn attach(world: &mut World, call: &mut Call<'_>) -> Result<Vec<Xml>, ApiError> {
    let p = call.params;
    let eni_id = p.required("NetworkInterfaceId")?;
    let instance_id = p.required("InstanceId")?;
    let device: u32 = p.number("DeviceIndex")?.ok_or_else(|| ApiError::missing("deviceIndex"))?;
    let card: u32 = p.number("NetworkCardIndex")?.unwrap_or(0);
    p.ignore("EnaQueueCount");
    p.ignore("EnaSrdSpecification");
    let eni = world.need_eni(eni_id)?;
    let instance =
        world.instances.get(instance_id).ok_or_else(|| ApiError::no_instance(instance_id))?;
    if !["running", "stopped"].contains(&instance.state.as_str()) {
        return Err(ApiError::bad(
            "IncorrectState",
            format!("Instance '{instance_id}' is not 'running' or 'stopped'"),
        ));
    }
    if eni.state.attachment.is_some() || eni.state.association.is_some() {
        return Err(ApiError::bad(
            "InvalidNetworkInterface.InUse",
            format!("Interface: [{eni_id}] in use."),
        ));
    }
    if eni.state.zone != instance.zone {
        return Err(ApiError::combination(format!(
            "You may not attach a network interface to an instance if they are not in the same availability zone: \
             '{eni_id}', '{instance_id}'"
        )));
    }
    let taken: Vec<(u32, u32)> =
        world.attachments_of(instance_id).map(|(_, a)| (a.device_index, a.card)).collect();
    if taken.contains(&(device, card)) {
        return Err(ApiError::value(format!(
            "Instance '{instance_id}' already has an interface attached at device index '{device}'."
        )));
    }
    let kind = &instance.instance_type;
    if let Some(table) = limits::of(kind) {
        let room = usize::try_from(table.interfaces).unwrap_or(usize::MAX);
        if taken.len() >= room {
            return Err(ApiError::bad(
                "AttachmentLimitExceeded",
                format!("Interface count {} exceeds the limit for {kind}", taken.len() + 1),
            ));
        }
        if eni.state.interface_type == "trunk" && !table.trunking {
            return Err(ApiError::bad(
                "UnsupportedOperation",
                format!("Trunk interfaces are not supported for {kind}"),
            ));
        }
    }
    call.commit()?;
    let stuck = call.fired.find(|kind| match kind {
        FaultKind::AttachStuck { ms } => Some(*ms),
        _ => None,
    });
    let delay = world.switches.lag.attach.pick(&mut world.rng);
    let id = world.attach(eni_id, instance_id, (device, card), false, stuck.unwrap_or(delay));
    Ok(vec![text("attachmentId", id), text("networkCardIndex", card)])
}

pub(super) fn detach(world: &mut World, call: &mut Call<'_>) -> Result<Vec<Xml>, ApiError> {
    let p = call.params;
    let id = p.required("AttachmentId")?;
    p.flag("Force")?;
    if !super::super::error::is_ec2_id(id, "eni-attach-") {
        return Err(ApiError::bad(
            "InvalidNetworkInterfaceAttachmentId.Malformed",
            format!("Invalid id: \"{id}\" (expecting \"eni-attach-...\")"),
        ));
    }
    let not_found = || {
        ApiError::bad(
            "InvalidAttachmentID.NotFound",
            format!("The attachment ID '{id}' does not exist"),
        )
    };
    let (eni, attachment) = world.by_attachment(id).ok_or_else(not_found)?;
    if attachment.device_index == 0 {
        return Err(ApiError::bad(
            "OperationNotPermitted",
            "The network interface at device index 0 cannot be detached.",
        ));
    }
    call.commit()?;
    if attachment.status != "detaching" {
        world.detach(&eni);
    }
    Ok(done())
}
