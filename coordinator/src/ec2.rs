//! [`Cloud`] on the real EC2 adapter: priorities, and the adapter's types as this crate's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use trunkline_core::eni::{Ec2Answer, Ec2Call, Ec2Failure, EniRecord, FailureClass, SubnetCidrs};
use trunkline_core::id::{EniId, InstanceId, InstanceType, SubnetId};
use trunkline_core::limits::LearnedType;
use trunkline_core::node::event::Settings;
use trunkline_core::verdict::DeletePermit;
use trunkline_ec2::{
    Action, CreateTrunk, Ec2, InstanceDetails, InstanceState, LeaseDeadline, Priority,
};
use trunkline_kit::clock::Clock;
use trunkline_kit::lease::Deadline;

use crate::api::{Fence, chain};
use crate::cloud::{Budget, Cloud, Clouds, Instance, NewTrunk, Opened};

/// A term's lease deadline on its clock, as both fences ask for it, and the mode in force.
#[derive(Debug, Clone)]
pub struct LeaseFence {
    /// The deadline.
    pub deadline: Deadline,
    /// The clock it is on.
    pub clock: Clock,
    /// Settings in force.
    pub settings: watch::Receiver<Settings>,
}

impl LeaseDeadline for LeaseFence {
    fn expired(&self) -> bool {
        self.deadline.expired(self.clock.now())
    }

    fn forbidden(&self, action: Action) -> bool {
        let settings = self.settings.borrow();
        (settings.read_only && action.mutates()) || (settings.no_release && action.releases())
    }
}

impl Fence for LeaseFence {
    fn may_write(&self) -> bool {
        !self.deadline.expired(self.clock.now())
    }
}

/// How long a describe of an instance waits for others to join it.
const GATHER: Duration = Duration::from_millis(20);
/// Instances of one reading (EC2 allows 200 values in a filter).
const BATCH: usize = 100;

/// The real EC2, as the settings say.
#[derive(Clone)]
pub struct RealClouds {
    /// Settings of each term's access.
    pub settings: trunkline_ec2::Settings,
    /// Counts all terms' calls.
    pub metrics: trunkline_ec2::Metrics,
}

impl Clouds for RealClouds {
    fn open(&self, fence: Arc<LeaseFence>) -> BoxFuture<'_, Result<Opened, String>> {
        async move {
            let ec2 = Ec2::new(self.settings.clone(), fence, self.metrics.clone())
                .await
                .map_err(|e| chain(&e))?;
            let (cloud, gather) = RealCloud::new(ec2);
            Ok((Arc::new(cloud) as Arc<dyn Cloud>, gather.boxed()))
        }
        .boxed()
    }
}

type Reply = oneshot::Sender<Result<InstanceDetails, Ec2Failure>>;

/// EC2 of one term. Budgets and connections live as long as the term.
#[derive(Clone)]
pub struct RealCloud {
    ec2: Ec2,
    describes: mpsc::Sender<(InstanceId, Reply)>,
}

impl RealCloud {
    /// The adapter, and the future that gathers describes of instances: after a restart thousands of nodes ask at once,
    /// and that costs pages, not nodes (S62, S63).
    pub fn new(ec2: Ec2) -> (Self, impl Future<Output = ()> + Send) {
        let (describes, asked) = mpsc::channel(BATCH * 4);
        (Self { ec2: ec2.clone(), describes }, gather(ec2, asked))
    }
}

async fn gather(ec2: Ec2, mut asked: mpsc::Receiver<(InstanceId, Reply)>) {
    let mut readings = JoinSet::new();
    while let Some(first) = asked.recv().await {
        tokio::time::sleep(GATHER).await;
        let mut batch = vec![first];
        while batch.len() < BATCH
            && let Ok(next) = asked.try_recv()
        {
            batch.push(next);
        }
        readings.spawn(read(ec2.clone(), batch));
        while readings.try_join_next().is_some() {}
    }
}

/// One reading for all of them. Whoever is not in it is asked for alone: a list says nothing of what it does not show.
async fn read(ec2: Ec2, batch: Vec<(InstanceId, Reply)>) {
    let mut found = BTreeMap::new();
    if batch.len() > 1 {
        let ids: Vec<InstanceId> = batch.iter().map(|(id, _)| id.clone()).collect();
        match ec2.describe_instances(&ids, Priority::NodeInit).await {
            Ok(details) => found.extend(details.into_iter().map(|d| (d.id.clone(), d))),
            Err(failure) => {
                for (_, reply) in batch {
                    // Whoever asked may have gone.
                    let _gone = reply.send(Err(failure.clone()));
                }
                return;
            }
        }
    }
    for (id, reply) in batch {
        let answer = match found.get(&id) {
            Some(details) => Ok(details.clone()),
            None => ec2.describe_instance(&id, Priority::NodeInit).await,
        };
        let _gone = reply.send(answer);
    }
}

impl Cloud for RealCloud {
    fn budgets(&self) -> Vec<Budget> {
        let budget = |b: trunkline_ec2::Budget| Budget {
            action: b.action.name(),
            level: b.level,
            throttled: b.throttled,
        };
        self.ec2.budgets().into_iter().map(budget).collect()
    }

    fn call(&self, call: Ec2Call) -> BoxFuture<'_, Ec2Answer> {
        let priority = match &call {
            Ec2Call::Release(_) => Priority::Release,
            Ec2Call::Create(create) if create.replaced.is_some() => Priority::Heal,
            Ec2Call::Search(_) => Priority::Heal,
            _ => Priority::PodStart,
        };
        self.ec2.call(call, priority).boxed()
    }

    fn release(&self, permit: DeletePermit) -> BoxFuture<'_, (Ec2Answer, Option<String>)> {
        self.ec2.release_recorded(permit).map(|done| (done.answer, done.request_id)).boxed()
    }

    fn inventory(&self) -> BoxFuture<'_, Result<Vec<EniRecord>, Ec2Failure>> {
        self.ec2.inventory(Priority::Background).boxed()
    }

    fn instance<'a>(&'a self, id: &'a InstanceId) -> BoxFuture<'a, Result<Instance, Ec2Failure>> {
        async move {
            let (reply, answer) = oneshot::channel();
            let over = |_| Ec2Failure {
                class: FailureClass::Fenced,
                code: None,
                message: "the term ended".into(),
            };
            self.describes.send((id.clone(), reply)).await.map_err(|e| over(e.to_string()))?;
            let details = answer.await.map_err(|e| over(e.to_string()))??;
            Ok(Instance {
                kind: details.instance_type,
                state: state_name(details.state).into(),
                subnet: details.subnet,
                primary_groups: details.primary_groups.unwrap_or_default(),
                interfaces: details.interfaces,
                missing: details.missing,
            })
        }
        .boxed()
    }

    fn subnet<'a>(&'a self, id: &'a SubnetId) -> BoxFuture<'a, Result<SubnetCidrs, Ec2Failure>> {
        self.ec2.describe_subnet(id, Priority::NodeInit).map(|r| r.map(|s| s.cidrs)).boxed()
    }

    fn instance_type<'a>(
        &'a self,
        kind: &'a InstanceType,
    ) -> BoxFuture<'a, Result<LearnedType, Ec2Failure>> {
        async move {
            let details = self.ec2.describe_instance_type(kind, Priority::NodeInit).await?;
            let card = details.cards.iter().find(|(index, _)| *index == details.default_card);
            Ok(LearnedType { slots: card.map_or(0, |(_, most)| details.interfaces.min(*most)) })
        }
        .boxed()
    }

    fn describe<'a>(&'a self, eni: &'a EniId) -> BoxFuture<'a, Result<EniRecord, Ec2Failure>> {
        self.ec2.describe_eni(eni, Priority::NodeInit).boxed()
    }

    fn create_trunk<'a>(
        &'a self,
        trunk: &'a NewTrunk,
    ) -> BoxFuture<'a, Result<EniRecord, Ec2Failure>> {
        async move {
            let create = CreateTrunk {
                instance: trunk.instance.clone(),
                subnet: trunk.subnet.clone(),
                groups: trunk.groups.clone(),
                nonce: trunk.nonce,
            };
            self.ec2.create_trunk(&create, Priority::NodeInit).await
        }
        .boxed()
    }

    fn attach<'a>(
        &'a self,
        eni: &'a EniId,
        instance: &'a InstanceId,
        device_index: u32,
    ) -> BoxFuture<'a, Result<(), Ec2Failure>> {
        self.ec2
            .attach_trunk(eni, instance, device_index, Priority::NodeInit)
            .map(|r| r.map(drop))
            .boxed()
    }

    fn delete_with_instance<'a>(
        &'a self,
        eni: &'a EniId,
        attachment: &'a str,
    ) -> BoxFuture<'a, Result<(), Ec2Failure>> {
        self.ec2.delete_on_termination(eni, attachment, Priority::NodeInit).boxed()
    }

    fn delete_unattached_trunk<'a>(
        &'a self,
        eni: &'a EniId,
        instance: &'a InstanceId,
    ) -> BoxFuture<'a, Result<(), Ec2Failure>> {
        self.ec2.delete_unattached_trunk(eni, instance, Priority::NodeInit).boxed()
    }
}

fn state_name(state: InstanceState) -> &'static str {
    match state {
        InstanceState::Pending => "pending",
        InstanceState::Running => "running",
        InstanceState::ShuttingDown => "shutting-down",
        InstanceState::Terminated => "terminated",
        InstanceState::Stopping => "stopping",
        InstanceState::Stopped => "stopped",
        InstanceState::Other => "in a state that is not known",
    }
}
