//! The doors by which an ENI can end.
//!
//! [`Ec2::release`] is the only code that sends `DisassociateTrunkInterface`, and with
//! [`Ec2::delete_unattached_trunk`] the only one that sends `DeleteNetworkInterface`; a lint bans both SDK methods
//! everywhere else. It takes a [`DeletePermit`] by value, which only `core`'s verdict makes.

use aws_sdk_ec2::config::http::HttpResponse;
use aws_sdk_ec2::error::SdkError;
use aws_sdk_ec2::operation::RequestId;
use aws_sdk_ec2::operation::delete_network_interface::{
    DeleteNetworkInterfaceError, DeleteNetworkInterfaceOutput,
};
use trunkline_core::bucket::Priority;
use trunkline_core::eni::{Ec2Answer, Ec2Failure, Ec2Reply, EniKind, EniStatus, FailureClass, tag};
use trunkline_core::id::{AssociationId, EniId, InstanceId};
use trunkline_core::verdict::{DeletePermit, PermitStage};

use crate::action::Action;
use crate::call::filter;
use crate::classify::has_code;
use crate::client::{Call, Ec2, send};
use crate::token;

/// EC2's spelling of an ENI that is not there.
const NO_ENI: &str = "InvalidNetworkInterfaceID.NotFound";
/// EC2's spelling of an association that is not there.
const NO_ASSOCIATION: &str = "InvalidAssociationID.NotFound";

/// What became of a release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// The answer.
    pub answer: Ec2Answer,
    /// EC2's id of the request that was answered with success; `None` where it was gone already.
    pub request_id: Option<String>,
}

impl Done {
    fn failed(failure: Ec2Failure) -> Self {
        Self { answer: Err(failure), request_id: None }
    }
}

impl Ec2 {
    /// Does what the permit allows. An association or ENI that is gone already is success (`ec2.md` §6).
    pub async fn release(&self, permit: DeletePermit) -> Ec2Answer {
        self.release_recorded(permit).await.answer
    }

    /// The same, with EC2's request id for the record.
    pub async fn release_recorded(&self, permit: DeletePermit) -> Done {
        let eni = permit.eni();
        let uid = permit.uid().map(tracing::field::display);
        tracing::info!(%eni, uid, epoch = %permit.epoch(), stage = ?permit.stage(), "releasing");
        match permit.stage() {
            PermitStage::Disassociate(association) => self.disassociate(association).await,
            PermitStage::Delete => match self.delete(eni, Priority::Release).await {
                Ok(request_id) => Done { answer: Ok(Ec2Reply::Deleted), request_id },
                Err(failure) => Done::failed(failure),
            },
        }
    }

    #[allow(clippy::disallowed_methods)] // The one door: only a permit leads here.
    async fn disassociate(&self, association: &AssociationId) -> Done {
        let action = Action::DisassociateTrunkInterface;
        let reply = send!(self, action, Priority::Release, |client| client
            .disassociate_trunk_interface()
            .association_id(association.as_str())
            .client_token(token::disassociate(association)));
        match reply {
            Ok(reply) if reply.r#return() == Some(false) => {
                Done::failed(self.unbelievable(action, &"return is false"))
            }
            Ok(reply) => Done {
                answer: Ok(Ec2Reply::Disassociated),
                request_id: reply.request_id().map(ToOwned::to_owned),
            },
            Err(failure) if has_code(&failure, NO_ASSOCIATION) => {
                Done { answer: Ok(Ec2Reply::Disassociated), request_id: None }
            }
            Err(failure) => Done::failed(failure),
        }
    }

    async fn delete(&self, eni: &EniId, priority: Priority) -> Result<Option<String>, Ec2Failure> {
        let action = Action::DeleteNetworkInterface;
        match self.run(action, priority, |client, call| send_delete(client, call, eni)).await {
            Ok(reply) => Ok(reply.request_id().map(ToOwned::to_owned)),
            Err(failure) if has_code(&failure, NO_ENI) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Deletes a trunk that was never attached (`TRK-13`). A trunk that may carry branches, is not ours, is another
    /// instance's or is attached, is refused without a call: EC2 deletes an unattached trunk together with its
    /// associations (`ec2.md` §8.2), so it is described by id first, and no branch may name it.
    pub async fn delete_unattached_trunk(
        &self,
        trunk: &EniId,
        instance: &InstanceId,
        priority: Priority,
    ) -> Result<(), Ec2Failure> {
        let described = match self.describe_by_id(trunk, priority).await {
            Ok(described) => described,
            Err(failure) if has_code(&failure, NO_ENI) => return Ok(()),
            Err(failure) => return Err(failure),
        };
        let record = &described.record;
        let why = if !described.ours {
            Some("it is not one of this cluster's")
        } else if record.kind != EniKind::Trunk {
            Some("it is not a trunk")
        } else if record.tags.instance.value() != Some(instance) {
            Some("it belongs to another instance")
        } else if record.attachment.is_some() || record.status != EniStatus::Available {
            Some("it is attached or not available")
        } else {
            None
        };
        if let Some(why) = why {
            return Err(refused(trunk, why));
        }
        self.refuse_if_branches_name(trunk, priority).await?;
        tracing::info!(eni = %trunk, %instance, "deleting a trunk that was never attached");
        self.delete(trunk, priority).await.map(drop)
    }

    /// Refuses unless a whole list shows no branch that is tagged with this trunk.
    pub(crate) async fn refuse_if_branches_name(
        &self,
        trunk: &EniId,
        priority: Priority,
    ) -> Result<(), Ec2Failure> {
        let mut filters = self.inventory_filter();
        filters.push(filter(&format!("tag:{}", tag::TRUNK), trunk.as_str()));
        if self.list(filters, priority).await?.is_empty() {
            Ok(())
        } else {
            Err(refused(trunk, "branches name it"))
        }
    }
}

pub(crate) fn refused(trunk: &EniId, why: &str) -> Ec2Failure {
    Ec2Failure {
        class: FailureClass::InUse,
        code: None,
        message: format!("the trunk {trunk} is left as it is: {why}"),
    }
}

#[allow(clippy::disallowed_methods)] // Reached only from the two doors above.
fn send_delete(
    client: &aws_sdk_ec2::Client,
    call: Call,
    eni: &EniId,
) -> impl Future<
    Output = Result<
        DeleteNetworkInterfaceOutput,
        SdkError<DeleteNetworkInterfaceError, HttpResponse>,
    >,
> + use<> {
    client
        .delete_network_interface()
        .network_interface_id(eni.as_str())
        .customize()
        .config_override(call.config)
        .interceptor(call.guard)
        .send()
}
