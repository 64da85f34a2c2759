//! Branches that live pods lose: somebody deletes or disassociates ENIs behind our back.
//!
//! A loss strikes a pod that runs with all that it asked for. It is over once the pod again has what it asked for, judged by
//! the world's own state at every change that could bring it about (an association, an annotation, a link's MAC), or once
//! the pod is. I-heal: the pod gets an ENI with the address of the lost one, and keeps an ENI that was only disassociated.
//! An address that somebody else has by then (only a copier can, here) excuses that.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use trunkline_core::eni::{Ec2Call, SearchBy};
use trunkline_core::id::{EniId, Epoch, MacAddress, NodeName, PodUid};
use trunkline_core::time::Moment;

use super::api::store::{is_going, text};
use super::world::World;
use super::{oracle, reasons};

/// How a branch is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The ENI is deleted.
    Deleted,
    /// Its association is taken away.
    Disassociated,
}

/// How a loss ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The pod has what it asked for again.
    Healed(Moment),
    /// The pod was deleted, or ended.
    PodOver,
}

/// One loss.
#[derive(Debug, Clone)]
pub struct Loss {
    /// How.
    pub kind: Kind,
    /// Whose.
    pub pod: PodUid,
    /// Where.
    pub node: NodeName,
    /// Which.
    pub eni: EniId,
    /// Its address.
    pub ip: Option<Ipv4Addr>,
    /// Its MAC.
    pub mac: Option<MacAddress>,
    /// When.
    pub at: Moment,
    /// When EC2 was first asked for this ENI by its id after that.
    pub noticed: Option<Moment>,
    /// How often EC2 was asked for, or about, this branch until the end.
    pub calls: u32,
    /// Its end.
    pub end: Option<End>,
    /// Its place in the annotation.
    index: usize,
    /// Epoch of the term in which it happened; none where nobody led.
    epoch: Option<Epoch>,
}

impl Loss {
    /// From the loss to the first sign of it.
    pub fn noticed_after(&self) -> Option<Duration> {
        self.noticed.map(|at| at.since(self.at))
    }

    /// From the loss to its end by healing.
    pub fn healed_after(&self) -> Option<Duration> {
        match self.end {
            Some(End::Healed(at)) => Some(at.since(self.at)),
            _ => None,
        }
    }
}

/// All losses of a run.
#[derive(Debug, Default)]
pub struct Losses {
    all: Vec<Loss>,
    /// How many have no end yet.
    open: usize,
}

impl Losses {
    /// In the order in which they happened.
    pub fn all(&self) -> &[Loss] {
        &self.all
    }

    fn open(&mut self) -> impl Iterator<Item = &mut Loss> {
        self.all.iter_mut().filter(|loss| loss.end.is_none())
    }

    fn is_open(&self, pod: &PodUid) -> bool {
        self.all.iter().any(|loss| loss.end.is_none() && loss.pod == *pod)
    }
}

/// Losses as this seed has them, until told to stop.
pub(super) async fn run(world: Arc<World>, stop: CancellationToken) {
    let Some(pause) = world.dice.pick(&[None, Some(60_000), Some(300_000)]).flatten() else {
        return;
    };
    while !stop.is_cancelled() {
        tokio::time::sleep(world.dice.long_tailed_ms(1_000..pause * 4)).await;
        // Now and then several at once: more than that looks like an EC2 that lies, and waits for a second reading.
        let times = world.dice.pick(&[1, 1, 1, 1, 2, 5]).unwrap_or(1);
        for _ in 0..times {
            if !stop.is_cancelled() {
                strike(&world);
            }
        }
    }
}

/// Takes a branch away from a pod that has all it asked for; whether there was one.
pub(super) fn strike(world: &World) -> bool {
    sweep(world);
    let mut served = oracle::served(world);
    {
        let losses = world.losses();
        served.retain(|pod| !losses.is_open(&pod.uid));
    }
    let enis: Vec<(usize, EniId)> = (0..)
        .zip(&served)
        .flat_map(|(n, pod)| pod.enis.iter().map(move |eni| (n, eni.clone())))
        .collect();
    let Some((n, eni)) = world.dice.pick(&enis) else { return false };
    let Some(pod) = served.get(n) else { return false };
    let kind = if world.dice.chance(0.5) { Kind::Deleted } else { Kind::Disassociated };
    let (ip, mac) = {
        let mut account = world.account();
        let found = account.eni(&eni).and_then(|eni| eni.now.as_ref());
        let shown = (found.and_then(|record| record.ipv4), found.map(|record| record.mac));
        account.lose(world.now(), &eni, kind == Kind::Deleted);
        shown
    };
    let what = match kind {
        Kind::Deleted => "loss-deleted",
        Kind::Disassociated => "loss-disassociated",
    };
    world.happened(what, &format!("{eni} of {} on {}", pod.uid, pod.node));
    let index = pod.enis.iter().position(|id| *id == eni).unwrap_or_default();
    let epoch = epoch(world);
    let mut losses = world.losses();
    losses.open += 1;
    losses.all.push(Loss {
        kind,
        pod: pod.uid.clone(),
        node: pod.node.clone(),
        eni,
        ip,
        mac,
        at: world.now(),
        noticed: None,
        calls: 0,
        end: None,
        index,
        epoch,
    });
    true
}

/// Epoch of who leads.
fn epoch(world: &World) -> Option<Epoch> {
    let leads = reasons::leading(world);
    leads.into_iter().map(|(_, leading)| leading.term.term.epoch).max()
}

/// A deleted ENI that only the annotation tells of, and no link: the VPC CNI makes one for the first branch alone. Whoever
/// led when it was lost knew it as the pod's and heals it. Who led after that has an annotation that anybody could have
/// copied, parks the pod and tells it so (`annotation-ghost`).
pub(super) fn is_unproven(world: &World, eni: &EniId) -> bool {
    let losses = world.losses();
    let loss = losses.all.iter().find(|loss| loss.end.is_none() && loss.eni == *eni);
    loss.is_some_and(|loss| {
        let now = epoch(world);
        loss.kind == Kind::Deleted && loss.index > 0 && (loss.epoch.is_none() || loss.epoch != now)
    })
}

/// What reveals a loss at once: the leader reads EC2 anew, as after a change of leader, of a trunk, or for an audit.
pub(super) fn reveal(world: &World) {
    for (_, leading) in reasons::leading(world) {
        let (board, now) = (leading.term.board.clone(), world.now());
        leading.term.spawn(async move {
            // The reading goes to the books by itself.
            let _ended = board.since(now).await;
        });
    }
}

/// A coordinator asks EC2 for something.
pub(super) fn asked(world: &World, call: &Ec2Call) {
    let mut losses = world.losses();
    if losses.open == 0 {
        return;
    }
    let now = world.now();
    for loss in losses.open() {
        let is_about = match call {
            Ec2Call::Create(asked) => asked.pod.uid == loss.pod,
            Ec2Call::FindByUid(uid) => *uid == loss.pod,
            Ec2Call::Describe(eni) | Ec2Call::Tag { eni, .. } | Ec2Call::SetGroups { eni, .. } => {
                belongs(world, eni, loss)
            }
            Ec2Call::Associate(asked) => belongs(world, &asked.branch, loss),
            Ec2Call::Search(SearchBy::Address(ip)) => loss.ip.map(Into::into) == Some(*ip),
            Ec2Call::Search(SearchBy::Mac(mac)) => loss.mac == Some(*mac),
            Ec2Call::DescribeAssociation(id) => {
                let branch = world.account().branch_of(id);
                branch.is_some_and(|eni| belongs(world, &eni, loss))
            }
            Ec2Call::Release(_) => false,
        };
        if is_about {
            loss.calls += 1;
            if matches!(call, Ec2Call::Describe(eni) if *eni == loss.eni) {
                loss.noticed.get_or_insert(now);
            }
        }
    }
}

fn belongs(world: &World, eni: &EniId, loss: &Loss) -> bool {
    let account = world.account();
    account.enis().get(eni).is_some_and(|found| found.owner.as_ref() == Some(&loss.pod))
}

/// Something changed that may have ended a loss.
pub(super) fn look(world: &World) {
    if world.losses().open == 0 {
        return;
    }
    let served = oracle::served(world);
    let mut healed = Vec::new();
    {
        let mut losses = world.losses();
        let now = world.now();
        let mut ended = 0;
        for loss in losses.open() {
            if let Some(pod) = served.iter().find(|pod| pod.uid == loss.pod) {
                loss.end = Some(End::Healed(now));
                ended += 1;
                healed.push((loss.clone(), pod.enis.clone()));
            }
        }
        losses.open = losses.open.saturating_sub(ended);
    }
    for (loss, enis) in healed {
        world.happened("healed", &format!("{} of {}", loss.eni, loss.pod));
        let same = {
            let account = world.account();
            let mut records = enis.iter().filter_map(|id| account.eni(id)?.now.as_ref());
            match loss.kind {
                Kind::Deleted => records.any(|record| record.ipv4 == loss.ip),
                Kind::Disassociated => records.any(|record| record.id == loss.eni),
            }
        };
        if !same {
            world.broken(format!(
                "I-heal: pod {} lost {} ({:?}, {:?}) and has {enis:?} instead, with another address",
                loss.pod, loss.eni, loss.kind, loss.ip
            ));
        }
    }
}

/// Ends the losses of pods that are over, and of those that settled without a change that is looked at.
pub(super) fn sweep(world: &World) {
    look(world);
    let mut losses = world.losses();
    if losses.open == 0 {
        return;
    }
    let alive: Vec<String> = {
        let store = world.store();
        let lives = |pod: &serde_json::Value| {
            !is_going(pod) && !matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
        };
        let uid = |pod: &serde_json::Value| text(pod, "/metadata/uid").to_owned();
        store.pods().filter(|(_, pod)| lives(pod)).map(|(_, pod)| uid(pod)).collect()
    };
    let mut ended = 0;
    for loss in losses.open() {
        if !alive.iter().any(|uid| uid == loss.pod.as_str()) {
            loss.end = Some(End::PodOver);
            ended += 1;
        }
    }
    losses.open = losses.open.saturating_sub(ended);
}

/// I-heal: the losses that should have been healed by now.
pub(super) fn unhealed(world: &World) -> Vec<String> {
    sweep(world);
    let open: Vec<Loss> = world.losses().open().map(|loss| loss.clone()).collect();
    // The address went to a pod that copied the annotation: told to the pod, and not healed in place.
    let is_taken = |loss: &Loss| {
        let account = world.account();
        let holder = loss.ip.and_then(|ip| account.holder_of(ip));
        holder.is_some_and(|other| other.owner.as_ref() != Some(&loss.pod))
    };
    open.iter()
        .filter(|loss| !is_taken(loss) && !is_unproven(world, &loss.eni))
        .map(|loss| format!("{} of pod {} on {} ({:?})", loss.eni, loss.pod, loss.node, loss.kind))
        .collect()
}
