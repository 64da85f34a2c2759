//! One pod on its machine, from the first create to the end of its cgroup.
//!
//! A worker dies with its kubelet at the next step; what the runtime was asked for before may be finished all the same.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use trunkline_core::annotation::POD_ENI;
use trunkline_core::id::{MacAddress, NodeName, PodUid, VlanId};

use super::machine::{Machine, Order, Stage};
use crate::simulation::api::store::{field, is_going, text};
use crate::simulation::weather::Place;
use crate::simulation::world::World;
use crate::simulation::{losses, oracle};

/// Path of a pod's object.
pub fn path_of(pod: &Value) -> String {
    let (namespace, name) = (text(pod, "/metadata/namespace"), text(pod, "/metadata/name"));
    format!("/api/v1/namespaces/{namespace}/pods/{name}")
}

/// Starts a worker.
pub fn spawn(
    world: &Arc<World>,
    node: &NodeName,
    start: u64,
    uid: &PodUid,
    orders: watch::Receiver<Order>,
) {
    let worker =
        Worker { world: world.clone(), node: node.clone(), start, uid: uid.clone(), orders };
    tokio::spawn(async move {
        // One whose kubelet is gone stops where it is.
        let _abandoned = worker.run().await;
    });
}

/// The kubelet takes a pod's object away once nothing of it is left.
pub fn finalise(world: &World, node: &NodeName, path: &str, uid: &PodUid) {
    if world.is_cut(&Place::Node(node.clone()), &Place::Api) {
        return;
    }
    let now = world.now();
    let mut store = world.store();
    if store.get(path).is_some_and(|pod| is_going(&pod)) {
        // Another pod of that name is not ours to take away.
        let _other = store.remove(now, path, uid.as_str());
    }
    drop(store);
    world.store_moved.notify_waiters();
}

/// The kubelet of this worker is gone.
struct Abandoned;

struct Worker {
    world: Arc<World>,
    node: NodeName,
    start: u64,
    uid: PodUid,
    orders: watch::Receiver<Order>,
}

/// A branch as an annotation tells it.
struct Told {
    vlan: VlanId,
    mac: MacAddress,
    own: bool,
}

impl Worker {
    async fn run(mut self) -> Result<(), Abandoned> {
        let stage = self.local(|local| local.stage)?;
        let mut running = stage == Stage::Running;
        if stage == Stage::Starting {
            self.sleep(20..600).await?;
            let unnoticed = self.world.weather().sign_lost;
            let noticed = !self.world.dice.chance(unnoticed);
            let uid = self.uid.clone();
            self.machine(|m| m.add_cgroup(&uid, noticed))?;
        }
        loop {
            let order = *self.orders.borrow_and_update();
            match order {
                Order::Stop => break,
                // An earlier kubelet's worker saw the containers end.
                _ if stage == Stage::Dead => return self.finish().await,
                Order::Finish if running => return self.finish().await,
                Order::Crash if running => {
                    running = false;
                    self.stage(Stage::Starting)?;
                    self.del().await?;
                    self.local(|local| local.order.send_replace(Order::Run))?;
                    let _seen = self.orders.borrow_and_update();
                }
                _ if !running => running = self.add().await?,
                _ => {
                    // Only orders wake it; the kubelet's end does not, and need not.
                    if self.orders.changed().await.is_err() {
                        return Err(Abandoned);
                    }
                }
            }
        }
        self.stop().await
    }

    // === the machine ===

    fn machine<T>(&self, change: impl FnOnce(&mut Machine) -> T) -> Result<T, Abandoned> {
        let start = self.start;
        let done =
            self.world.machine(&self.node, |m| m.is_kubelet(start).then(|| change(m))).flatten();
        done.ok_or(Abandoned)
    }

    fn local<T>(
        &self,
        change: impl FnOnce(&mut super::machine::Local) -> T,
    ) -> Result<T, Abandoned> {
        self.machine(|m| m.locals.get_mut(&self.uid).map(change))?.ok_or(Abandoned)
    }

    fn stage(&self, stage: Stage) -> Result<(), Abandoned> {
        self.world.note(&format!("pod {} {stage:?}", self.uid));
        self.local(|local| local.stage = stage)
    }

    async fn sleep(&self, range: std::ops::Range<u64>) -> Result<(), Abandoned> {
        tokio::time::sleep(self.world.dice.ms(range)).await;
        self.machine(|_| ())
    }

    fn is_cut(&self) -> bool {
        self.world.is_cut(&Place::Node(self.node.clone()), &Place::Api)
    }

    // === CNI ===

    /// One CNI ADD; whether containers run after it.
    async fn add(&mut self) -> Result<bool, Abandoned> {
        let Some(told) = self.annotation() else {
            // ADD fails and is tried again; a kubelet that hears of the pod's end tries no more.
            let _told =
                tokio::time::timeout(self.world.dice.ms(700..2_000), self.orders.changed()).await;
            return self.machine(|_| false);
        };
        let (slow, late) = {
            let weather = self.world.weather();
            (weather.cni_slow, weather.cni_late)
        };
        let dice = &self.world.dice;
        let mut takes =
            if dice.chance(slow) { dice.long_tailed_ms(200..60_000) } else { dice.ms(50..400) };
        if dice.chance(late) {
            // The caller's deadline passes first; the link comes all the same, and goes by a later DEL.
            let after = dice.long_tailed_ms(1_000..100_000);
            self.come_late(&told, after);
            takes = takes.min(after / 2);
            tokio::time::sleep(takes).await;
            return self.machine(|_| false);
        }
        tokio::time::sleep(takes).await;
        let uid = self.uid.clone();
        let lost = self.machine(|m| m.add_link(told.vlan, told.mac, &uid))?;
        if let Some(lost) = lost.filter(|lost| lost.pod != self.uid) {
            oracle::link_lost(&self.world, &self.node, &lost.pod, &self.uid, told.own);
        }
        self.local(|local| {
            local.link = Some((told.vlan, told.mac));
            local.tainted = !told.own;
            local.robbed = false;
        })?;
        self.stage(Stage::Running)?;
        losses::look(&self.world);
        self.tell_phase("Running");
        Ok(true)
    }

    /// What the CNI reads of the pod's annotation; it asks the API server.
    fn annotation(&self) -> Option<Told> {
        if self.is_cut() {
            return None;
        }
        let path = self.local(|local| local.path.clone()).ok()?;
        let pod = self.world.store().get(&path)?;
        if text(&pod, "/metadata/uid") != self.uid.as_str() {
            return None;
        }
        let annotation = field(&pod, "/metadata/annotations")?.get(POD_ENI)?.as_str()?;
        let named: Value = serde_json::from_str(annotation).ok()?;
        let first = named.get(0)?;
        let vlan = VlanId::new(first.get("vlanId")?.as_i64()?).ok()?;
        let mac = first.get("ifAddress")?.as_str()?.parse().ok()?;
        let eni = first.get("eniId")?.as_str()?.parse().ok()?;
        let owner = self.world.account().enis().get(&eni)?.owner.clone();
        Some(Told { vlan, mac, own: owner.as_ref() == Some(&self.uid) })
    }

    /// A create whose caller is gone: the link comes, no container does, and the runtime cleans up behind itself.
    fn come_late(&self, told: &Told, after: Duration) {
        let (world, node, uid) = (self.world.clone(), self.node.clone(), self.uid.clone());
        let (vlan, mac, own) = (told.vlan, told.mac, told.own);
        let stays = world.dice.long_tailed_ms(50..20_000);
        let boot = world.machine(&node, |m| m.boot);
        tokio::spawn(async move {
            tokio::time::sleep(after).await;
            let here = |m: &mut Machine| (m.up && Some(m.boot) == boot).then_some(());
            let taken = world
                .machine(&node, |m| {
                    here(m)?;
                    // The name is taken by the pod's own next sandbox: this create fails.
                    let own_again = m.links.get(&vlan).is_some_and(|held| held.pod == uid);
                    (!own_again).then(|| m.add_link(vlan, mac, &uid))
                })
                .flatten();
            let Some(lost) = taken else { return };
            world.happened("late-link", uid.as_str());
            if let Some(lost) = lost {
                oracle::link_lost(&world, &node, &lost.pod, &uid, own);
            }
            let made = world.machine(&node, |m| m.links.get(&vlan).cloned()).flatten();
            tokio::time::sleep(stays).await;
            world.machine(&node, |m| {
                let same = m.links.get(&vlan) == made.as_ref();
                here(m).filter(|()| same).map(|()| m.remove_link(vlan))
            });
        });
    }

    /// One CNI DEL, by the link's name. It is repeated later, as dead sandboxes are collected.
    async fn del(&mut self) -> Result<(), Abandoned> {
        let Some((vlan, _)) = self.local(|local| local.link)? else {
            return Ok(());
        };
        let slow = self.world.weather().cni_slow;
        let dice = &self.world.dice;
        let takes =
            if dice.chance(slow) { dice.long_tailed_ms(200..40_000) } else { dice.ms(30..300) };
        tokio::time::sleep(takes).await;
        let lost = self.machine(|m| m.remove_link(vlan))?;
        let own = !self.local(|local| local.tainted)?;
        if let Some(lost) = lost.filter(|lost| lost.pod != self.uid) {
            oracle::link_lost(&self.world, &self.node, &lost.pod, &self.uid, own);
        }
        self.local(|local| local.link = None)?;
        let again = dice.chance(slow).then(|| dice.ms(10_000..70_000));
        if let Some(after) = again {
            let (world, node, uid) = (self.world.clone(), self.node.clone(), self.uid.clone());
            let (tainted, boot) = (self.local(|l| l.tainted)?, self.machine(|m| m.boot)?);
            tokio::spawn(async move {
                tokio::time::sleep(after).await;
                let lost = world.machine(&node, |m| {
                    let same_pod = m.links.get(&vlan).is_some_and(|held| held.pod == uid);
                    (m.up && m.boot == boot && !same_pod).then(|| m.remove_link(vlan)).flatten()
                });
                if let Some(lost) = lost.flatten() {
                    oracle::link_lost(&world, &node, &lost.pod, &uid, !tainted);
                }
            });
        }
        Ok(())
    }

    // === ends ===

    /// The containers end by themselves: link, phase, cgroup, in this order.
    async fn finish(mut self) -> Result<(), Abandoned> {
        self.sleep(10..2_000).await?;
        self.stage(Stage::Dead)?;
        self.del().await?;
        while !self.tell_phase("Succeeded") {
            self.sleep(1_000..3_000).await?;
        }
        self.sleep(600..1_200).await?;
        self.forget()?;
        Ok(())
    }

    /// Deleted: containers, link, cgroup, then the object.
    async fn stop(mut self) -> Result<(), Abandoned> {
        if self.local(|local| local.stage)? != Stage::Dead {
            self.stage(Stage::Stopping)?;
            let grace = if self.world.dice.chance(0.1) { 10_000 } else { 1_500 };
            self.sleep(40..grace).await?;
            self.stage(Stage::Dead)?;
        }
        self.del().await?;
        self.sleep(300..1_100).await?;
        let path = self.forget()?;
        self.sleep(5..60).await?;
        finalise(&self.world, &self.node, &path, &self.uid);
        Ok(())
    }

    /// The cgroup goes; nothing of the pod is left.
    fn forget(&self) -> Result<String, Abandoned> {
        let path = self.local(|local| local.path.clone())?;
        self.machine(|m| {
            m.remove_cgroup(&self.uid);
            m.locals.remove(&self.uid);
        })?;
        self.world.note(&format!("pod {} has left its node", self.uid));
        Ok(path)
    }

    /// Writes the pod's phase, if the API can be reached; whether nothing is left to write.
    fn tell_phase(&self, phase: &str) -> bool {
        if self.is_cut() {
            return false;
        }
        let Ok(path) = self.local(|local| local.path.clone()) else { return true };
        let change = json!({"metadata": {"uid": self.uid.as_str()}, "status": {"phase": phase}});
        // A pod that is gone, or another of that name, needs no phase of ours.
        let _gone = self.world.store().merge(self.world.now(), &path, &change);
        self.world.store_moved.notify_waiters();
        true
    }
}
