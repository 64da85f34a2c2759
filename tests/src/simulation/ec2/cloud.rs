//! The way to EC2: the port that the coordinator's terms are given, and what the weather does to a call.
//!
//! An effect comes when it comes, whether or not anybody still waits: a call that its caller gave up on, or whose caller
//! died, or whose term ended, may still be carried out, within one operation timeout of its sending. Retries, budgets and
//! error codes are the real adapter's business and are not in here.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::oneshot;
use trunkline_coordinator::cloud::{Budget, Cloud, Clouds, Instance, NewTrunk, Opened};
use trunkline_coordinator::ec2::LeaseFence;
use trunkline_core::eni::{
    Ec2Answer, Ec2Call, Ec2Failure, Ec2Reply, EniRecord, FailureClass, FoundEni, SearchBy,
    SubnetCidrs,
};
use trunkline_core::id::{EniId, InstanceId, InstanceType, PodUid, SubnetId};
use trunkline_core::limits::LearnedType;
use trunkline_core::time::Moment;
use trunkline_core::verdict::{DeletePermit, PermitStage};

use super::account::{Account, failure};
use crate::simulation::world::{Life, World};
use crate::simulation::{Mutation, losses, oracle};

/// How long a caller waits (`Timing::ec2_operation`).
const OPERATION: Duration = Duration::from_secs(20);
/// How far describes may be behind: a little less than the window that rules rely on (`Timing::ec2_list_window`).
const WINDOW_MS: u64 = 25_000;

/// EC2 for one coordinator process.
pub struct SimClouds {
    /// The world.
    pub world: Arc<World>,
    /// The process.
    pub life: Arc<Life>,
}

impl Clouds for SimClouds {
    fn open(&self, fence: Arc<LeaseFence>) -> BoxFuture<'_, Result<Opened, String>> {
        let cloud = SimCloud { world: self.world.clone(), life: self.life.clone(), fence };
        let opened = (Arc::new(cloud) as Arc<dyn Cloud>, std::future::pending().boxed());
        std::future::ready(Ok(opened)).boxed()
    }
}

/// EC2 for one term.
struct SimCloud {
    world: Arc<World>,
    life: Arc<Life>,
    fence: Arc<LeaseFence>,
}

fn unknown(why: &str) -> Ec2Failure {
    Ec2Failure { class: FailureClass::OutcomeUnknown, code: None, message: why.to_owned() }
}

impl SimCloud {
    /// One call: fenced, sent, carried out, answered, each as the weather allows.
    async fn act<T: Send + 'static>(
        &self,
        action: &'static str,
        effect: impl FnOnce(&World) -> Result<T, Ec2Failure> + Send + 'static,
    ) -> Result<T, Ec2Failure> {
        use trunkline_coordinator::api::Fence;
        if !self.fence.may_write() {
            let message = "the lease deadline has passed".to_owned();
            return Err(Ec2Failure { class: FailureClass::Fenced, code: None, message });
        }
        if self.life.is_over() {
            return Err(unknown("the process has ended"));
        }
        let (failed, reply_lost, slow) = {
            let weather = self.world.weather();
            (weather.ec2_failed, weather.ec2_reply_lost, weather.ec2_slow)
        };
        let dice = &self.world.dice;
        // Its work is done within the operation timeout; the answer may be later than anybody waits.
        let there =
            if dice.chance(slow) { dice.long_tailed_ms(200..18_000) } else { dice.ms(5..80) };
        let back =
            if dice.chance(slow) { dice.long_tailed_ms(200..30_000) } else { dice.ms(5..80) };
        if dice.chance(failed) {
            let (class, code) = dice
                .pick(&[
                    (FailureClass::Throttled, "RequestLimitExceeded"),
                    (FailureClass::OutcomeUnknown, "InternalError"),
                    (FailureClass::Transient, "IncorrectState"),
                ])
                .unwrap_or((FailureClass::OutcomeUnknown, "InternalError"));
            self.world.count("fault: EC2 fails");
            tokio::time::sleep(there).await;
            self.world.note(&format!("ec2 {action} {code}"));
            return Err(failure(class, code));
        }
        let lost = dice.chance(reply_lost);
        if lost {
            self.world.count("fault: EC2's answer is lost");
        }
        let (done, answered) = oneshot::channel();
        let world = self.world.clone();
        tokio::spawn(async move {
            tokio::time::sleep(there).await;
            let outcome = effect(&world);
            world.happened(action, outcome.as_ref().err().map_or("", |e| e.class.name()));
            if !lost {
                tokio::time::sleep(back).await;
                // Whoever asked may have stopped waiting.
                let _gone = done.send(outcome);
            }
        });
        let waited = tokio::select! {
            biased;
            () = self.life.over.cancelled() => return Err(unknown("the process has ended")),
            waited = tokio::time::timeout(OPERATION, answered) => waited,
        };
        match waited {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(unknown("the connection was lost")),
            Err(_) => Err(unknown("no answer in time")),
        }
    }

    /// A describe of one state, as old as the weather says.
    async fn look<T: Send + 'static>(
        &self,
        action: &'static str,
        look: impl FnOnce(&Account, Moment) -> Result<T, Ec2Failure> + Send + 'static,
    ) -> Result<T, Ec2Failure> {
        self.act(action, move |world| {
            let at = seen_at(world);
            look(&world.account(), at)
        })
        .await
    }
}

/// How old a state a describe shows.
fn seen_at(world: &World) -> Moment {
    let lag = world.weather().ec2_lag;
    let behind = if world.dice.chance(lag) { world.dice.below(0..WINDOW_MS) } else { 0 };
    Moment(world.now().0.saturating_sub(behind))
}

fn released(world: &World, permit: &DeletePermit) -> Ec2Reply {
    oracle::before_release(world, permit);
    let now = world.now();
    let mut account = world.account();
    match permit.stage() {
        PermitStage::Disassociate(id) => account.disassociate(now, id),
        PermitStage::Delete => account.delete(now, permit.eni()),
    }
}

impl Cloud for SimCloud {
    fn budgets(&self) -> Vec<Budget> {
        Vec::new()
    }

    fn call(&self, call: Ec2Call) -> BoxFuture<'_, Ec2Answer> {
        losses::asked(&self.world, &call);
        match call {
            Ec2Call::Create(mut asked) => self
                .act("ec2-create", move |world| {
                    match world.plan.mutation {
                        Some(Mutation::TokensDiffer) => {
                            asked.nonce = u32::try_from(world.dice.below(0..1 << 31)).unwrap_or(0);
                        }
                        Some(Mutation::AddressForgotten) => {
                            asked.replaced.iter_mut().for_each(|old| old.ipv4 = None);
                        }
                        _ => {}
                    }
                    let made = world.account().create(world.now(), &asked)?;
                    world.note(&format!("made {} for {} vlan {}", made.id, asked.pod, asked.vlan));
                    Ok(Ec2Reply::Created(made))
                })
                .boxed(),
            Ec2Call::Associate(asked) => self
                .act("ec2-associate", move |world| {
                    let done = world.account().associate(world.now(), &asked)?;
                    world.note(&format!(
                        "associated {} with {} vlan {}",
                        asked.branch, asked.trunk, asked.vlan
                    ));
                    oracle::after_associate(world, &done);
                    losses::look(world);
                    Ok(Ec2Reply::Associated(done))
                })
                .boxed(),
            Ec2Call::Release(permit) => {
                let action = match permit.stage() {
                    PermitStage::Disassociate(_) => "ec2-disassociate",
                    PermitStage::Delete => "ec2-delete",
                };
                self.act(action, move |world| {
                    world.note(&format!(
                        "{action} {} of {}",
                        permit.eni(),
                        permit.uid().map_or("nobody", PodUid::as_str)
                    ));
                    Ok(released(world, &permit))
                })
                .boxed()
            }
            Ec2Call::FindByUid(uid) => self
                .look("ec2-find", move |account, at| {
                    let mut found = account.inventory(|_| at);
                    found.retain(|eni| eni.tags.pod_uid.value() == Some(&uid));
                    Ok(Ec2Reply::FoundByUid(found))
                })
                .boxed(),
            Ec2Call::Describe(eni) => self
                .look("ec2-describe", move |account, at| {
                    account.as_of(&eni, at).map(Ec2Reply::Described).ok_or_else(missing)
                })
                .boxed(),
            Ec2Call::Search(by) => self
                .look("ec2-search", move |account, at| {
                    let mut found = account.inventory(|_| at);
                    found.retain(|eni| match by {
                        SearchBy::Address(IpAddr::V4(ip)) => eni.ipv4 == Some(ip),
                        SearchBy::Address(IpAddr::V6(ip)) => eni.ipv6 == Some(ip),
                        SearchBy::Mac(mac) => eni.mac == mac,
                    });
                    let ours = |record| FoundEni { record, ours: true };
                    Ok(Ec2Reply::Searched(found.into_iter().map(ours).collect()))
                })
                .boxed(),
            Ec2Call::DescribeAssociation(id) => self
                .look("ec2-association", move |account, _| {
                    account.association(&id).map(Ec2Reply::Associated)
                })
                .boxed(),
            Ec2Call::Tag { eni, tags } => self
                .act("ec2-tag", move |world| {
                    world.account().tag(world.now(), &eni, &tags).map(|()| Ec2Reply::Tagged)
                })
                .boxed(),
            Ec2Call::SetGroups { eni, groups } => self
                .act("ec2-set-groups", move |world| {
                    let done = world.account().set_groups(world.now(), &eni, groups);
                    done.map(|()| Ec2Reply::GroupsSet)
                })
                .boxed(),
        }
    }

    fn inventory(&self) -> BoxFuture<'_, Result<Vec<EniRecord>, Ec2Failure>> {
        self.act("ec2-inventory", |world| {
            // A list is not one state: each item may be as old as the window.
            let lag = world.weather().ec2_lag;
            let now = world.now();
            let account = world.account();
            let dice = &world.dice;
            Ok(account.inventory(|_| {
                let behind = if dice.chance(lag) { dice.below(0..WINDOW_MS) } else { 0 };
                Moment(now.0.saturating_sub(behind))
            }))
        })
        .boxed()
    }

    fn instance<'a>(&'a self, id: &'a InstanceId) -> BoxFuture<'a, Result<Instance, Ec2Failure>> {
        let id = id.clone();
        self.look("ec2-instance", move |account, _| account.instance(&id)).boxed()
    }

    fn subnet<'a>(&'a self, _: &'a SubnetId) -> BoxFuture<'a, Result<SubnetCidrs, Ec2Failure>> {
        let cidrs = SubnetCidrs { v4: "10.0.0.0/8".into(), v6: String::new() };
        self.look("ec2-subnet", move |_, _| Ok(cidrs)).boxed()
    }

    fn instance_type<'a>(
        &'a self,
        _: &'a InstanceType,
    ) -> BoxFuture<'a, Result<LearnedType, Ec2Failure>> {
        self.look("ec2-type", |_, _| Ok(LearnedType { slots: 3 })).boxed()
    }

    fn describe<'a>(&'a self, eni: &'a EniId) -> BoxFuture<'a, Result<EniRecord, Ec2Failure>> {
        let eni = eni.clone();
        self.look("ec2-describe", move |account, at| account.as_of(&eni, at).ok_or_else(missing))
            .boxed()
    }

    fn create_trunk<'a>(
        &'a self,
        trunk: &'a NewTrunk,
    ) -> BoxFuture<'a, Result<EniRecord, Ec2Failure>> {
        let trunk = trunk.clone();
        self.act("ec2-create-trunk", move |world| world.account().create_trunk(world.now(), &trunk))
            .boxed()
    }

    fn attach<'a>(
        &'a self,
        eni: &'a EniId,
        instance: &'a InstanceId,
        device_index: u32,
    ) -> BoxFuture<'a, Result<(), Ec2Failure>> {
        let (eni, instance) = (eni.clone(), instance.clone());
        self.act("ec2-attach", move |world| {
            world.account().attach(world.now(), &eni, &instance, device_index)
        })
        .boxed()
    }

    fn delete_with_instance<'a>(
        &'a self,
        _: &'a EniId,
        _: &'a str,
    ) -> BoxFuture<'a, Result<(), Ec2Failure>> {
        self.act("ec2-modify", |_| Ok(())).boxed()
    }

    fn delete_unattached_trunk<'a>(
        &'a self,
        eni: &'a EniId,
        _: &'a InstanceId,
    ) -> BoxFuture<'a, Result<(), Ec2Failure>> {
        let eni = eni.clone();
        self.act("ec2-delete-trunk", move |world| {
            oracle::before_trunk_goes(world, &eni);
            world.account().delete(world.now(), &eni);
            Ok(())
        })
        .boxed()
    }
}

fn missing() -> Ec2Failure {
    failure(FailureClass::NotFound, "InvalidNetworkInterfaceID.NotFound")
}
