//! What the coordinator asks of EC2, as a port: the real adapter is `trunkline_ec2::Ec2`, tests use a fake with state.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use trunkline_core::bucket::Level;
use trunkline_core::eni::{Ec2Answer, Ec2Call, Ec2Failure, EniRecord, SubnetCidrs};
use trunkline_core::id::{EniId, InstanceId, InstanceType, SecurityGroupId, SubnetId};
use trunkline_core::limits::LearnedType;
use trunkline_core::verdict::DeletePermit;

use crate::ec2::LeaseFence;

/// An instance as one describe showed it. Parts may be missing (S32): whoever needs one says so and asks again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// Type.
    pub kind: Option<InstanceType>,
    /// State name, for example `running`.
    pub state: String,
    /// Subnet of the primary interface.
    pub subnet: Option<SubnetId>,
    /// Groups of the interface that has the instance's private address (`TRK-1`); empty if it is not shown.
    pub primary_groups: Vec<SecurityGroupId>,
    /// Interfaces, in EC2's order.
    pub interfaces: Vec<EniRecord>,
    /// What one of the interfaces lacks; then none of them is told.
    pub missing: Option<&'static str>,
}

/// A trunk to create. The same fields give the same client token.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NewTrunk {
    /// Instance it is for.
    pub instance: InstanceId,
    /// Subnet.
    pub subnet: SubnetId,
    /// Groups.
    pub groups: Vec<SecurityGroupId>,
    /// 0, and one higher each time the token turned out to name an ENI that is gone.
    pub nonce: u32,
}

/// Our own copy of the token bucket of one EC2 action.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// The action.
    pub action: &'static str,
    /// The bucket.
    pub level: Level,
    /// Attempts that EC2 refused for their rate, since this process began.
    pub throttled: u64,
}

/// EC2 as each term gets it anew: budgets and connections live as long as the term.
pub trait Clouds: Send + Sync + 'static {
    /// Access for one term: no attempt of any call is sent once `fence` has expired. The future does what the access needs
    /// in the background and runs until the term ends. An error is a sentence for a person.
    fn open(&self, fence: Arc<LeaseFence>) -> BoxFuture<'_, Result<Opened, String>>;
}

/// What [`Clouds::open`] gives.
pub type Opened = (Arc<dyn Cloud>, BoxFuture<'static, ()>);

/// EC2, as far as the coordinator needs it. Every failure is classed; none is retried here.
pub trait Cloud: Send + Sync + 'static {
    /// The token buckets, per action; none where calls are not held back.
    fn budgets(&self) -> Vec<Budget>;
    /// A call that a node's books asked for.
    fn call(&self, call: Ec2Call) -> BoxFuture<'_, Ec2Answer>;
    /// A release, with EC2's request id where it answered with one.
    fn release(&self, permit: DeletePermit) -> BoxFuture<'_, (Ec2Answer, Option<String>)> {
        self.call(Ec2Call::Release(permit)).map(|answer| (answer, None)).boxed()
    }
    /// All ENIs of this cluster, from one whole reading (design §4.1).
    fn inventory(&self) -> BoxFuture<'_, Result<Vec<EniRecord>, Ec2Failure>>;
    /// One instance.
    fn instance<'a>(&'a self, id: &'a InstanceId) -> BoxFuture<'a, Result<Instance, Ec2Failure>>;
    /// CIDR blocks of a subnet.
    fn subnet<'a>(&'a self, id: &'a SubnetId) -> BoxFuture<'a, Result<SubnetCidrs, Ec2Failure>>;
    /// Figures of a type; optional permission.
    fn instance_type<'a>(
        &'a self,
        kind: &'a InstanceType,
    ) -> BoxFuture<'a, Result<LearnedType, Ec2Failure>>;
    /// One ENI by id.
    fn describe<'a>(&'a self, eni: &'a EniId) -> BoxFuture<'a, Result<EniRecord, Ec2Failure>>;
    /// Creates a trunk, with permission for its attachment where two accounts need one.
    fn create_trunk<'a>(
        &'a self,
        trunk: &'a NewTrunk,
    ) -> BoxFuture<'a, Result<EniRecord, Ec2Failure>>;
    /// Attaches a trunk.
    fn attach<'a>(
        &'a self,
        eni: &'a EniId,
        instance: &'a InstanceId,
        device_index: u32,
    ) -> BoxFuture<'a, Result<(), Ec2Failure>>;
    /// Lets the trunk end with its instance.
    fn delete_with_instance<'a>(
        &'a self,
        eni: &'a EniId,
        attachment: &'a str,
    ) -> BoxFuture<'a, Result<(), Ec2Failure>>;
    /// Deletes a trunk that was never attached (`TRK-13`).
    fn delete_unattached_trunk<'a>(
        &'a self,
        eni: &'a EniId,
        instance: &'a InstanceId,
    ) -> BoxFuture<'a, Result<(), Ec2Failure>>;
}
