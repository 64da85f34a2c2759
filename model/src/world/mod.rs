//! One small world: what is true in it, what can happen next, and what must never be.
//!
//! Time is counted in ticks of a second; everything else happens at once, in any order. What one move sets off runs on by
//! itself ([`World::settle`]) as far as the [`Setup`] does not make a step of its own of it: messages, calls and replies
//! that a setup calls manual wait until a move delivers, loses or delays them.

mod agent;
mod cloud;
mod host;
mod ids;
mod leader;
mod moves;
mod rules;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use trunkline_core::id::VlanId;
use trunkline_core::message::{FromAgent, ToAgent};
use trunkline_core::node::Node;
use trunkline_core::node::event::{HealMode, OpId, Settings};
use trunkline_core::time::{Moment, Timing};
use trunkline_core::view::Look;
use trunkline_core::witness::{Journal, Witness};

pub use cloud::{Call, Cloud, Eni};
pub use host::{CREATE, Host, Knows, LEARN, Tenant};
pub use moves::Move;
pub use rules::{Goal, Rule};

/// Kinds of moves; a setup lists which are possible and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "each is explained at the move of the same name")]
pub enum Kind {
    Tick,
    Suspend,
    Create,
    Delete,
    End,
    StaticGoes,
    Learn,
    MakeCgroup,
    Start,
    Made,
    Dies,
    Hear,
    Kill,
    Rmdir,
    Run,
    Finish,
    KubeletStops,
    KubeletStarts,
    KubeletStartsOld,
    KubeletStartsOlder,
    Reboot,
    Look,
    LookBegin,
    LookEnd,
    Heartbeat,
    AgentDies,
    JournalLost,
    AgentStarts,
    ListEmpty,
    Up,
    Break,
    Connect,
    OldRelease,
    Answer,
    Lose,
    Lag,
    LieNotFound,
    NewTerm,
    Inventory,
    Late,
    LieRelease,
    Strip,
    Forge,
    Retag,
    WrongCgroups,
    WrongLinks,
    StrayLink,
    Brake,
}

/// Which answers are moves of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Manual {
    /// EC2 calls that change something.
    pub mutations: bool,
    /// EC2 calls that only read.
    pub reads: bool,
    /// Annotation patches.
    pub patches: bool,
    /// Live GETs of a release.
    pub gets: bool,
    /// The agent's statements; what follows them in the session waits behind them.
    pub releases: bool,
    /// The agent's looks: without, it looks after every move and every tick.
    pub looks: bool,
    /// Inventories after a new term.
    pub inventory: bool,
}

/// A pod that exists at some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Plan {
    /// Number of its name.
    pub name: u8,
    /// It is the mirror of the static pod with this hash.
    pub hash: Option<u8>,
    /// It is created with the annotation of this pod.
    pub copies: Option<u8>,
    /// There from the beginning, with its branch; and running.
    pub first: Option<First>,
}

/// How far a pod is when the world begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum First {
    /// In the API with its branch, unknown to the kubelet.
    Given,
    /// Running with its branch.
    Running,
}

impl Plan {
    /// An ordinary pod.
    pub const fn new(name: u8) -> Self {
        Self { name, hash: None, copies: None, first: None }
    }

    /// There from the beginning.
    #[must_use]
    pub const fn first(self, first: First) -> Self {
        Self { first: Some(first), ..self }
    }
}

/// A kind of world.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    /// Name.
    pub name: &'static str,
    /// What it is about.
    pub about: &'static str,
    /// The pods, by number.
    pub pods: &'static [Plan],
    /// What can happen, and how often (255: without limit).
    pub moves: &'static [(Kind, u8)],
    /// What waits for a move.
    pub manual: Manual,
    /// Only this many VLANs can be handed out; 0: all.
    pub vlans: u8,
    /// The agent answers every barrier with "nothing there".
    pub liar: bool,
    /// A kubelet may start onto an old server even after the last look (the risk that remains).
    pub residual: bool,
    /// The trunk is new, so that no VLAN of it was ever used.
    pub fresh: bool,
    /// Last tick.
    pub horizon: u8,
    /// What must never happen.
    pub rules: &'static [Rule],
    /// What must be reachable.
    pub goals: &'static [Goal],
}

/// State of a pod in the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Not created yet.
    Unborn,
    /// There.
    Alive,
    /// There, in a terminal phase.
    Ended,
    /// Deleted.
    Gone,
}

/// A pod in the API.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ApiPod {
    phase: Phase,
    version: u8,
    annotation: Option<String>,
}

/// The agent and its session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Agent {
    witness: Option<Witness>,
    journal: Option<Journal>,
    looking: Option<Look>,
    session: u8,
    connected: bool,
    up: VecDeque<FromAgent>,
    down: VecDeque<ToAgent>,
    /// A statement that was under way when its session ended.
    old_release: Option<FromAgent>,
}

/// What is asked of the world.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Asked {
    /// An EC2 call.
    Ec2(Call),
    /// A live GET: pod number.
    Get(u8),
    /// An annotation patch: pod, resourceVersion, text.
    Patch(u8, u8, String),
}

/// The leading coordinator.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Leader {
    node: Node,
    epoch: u8,
    began: u8,
    pending: Vec<(OpId, Asked)>,
    braked: bool,
}

/// What the checker remembers beside what is true.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Notes {
    /// Rules that were broken.
    broken: BTreeSet<Rule>,
    /// Goals that were reached.
    reached: BTreeSet<Goal>,
    /// ENI that a tenant was given.
    given: BTreeMap<u8, u8>,
    /// Who used a VLAN last, and when.
    used: BTreeMap<VlanId, (u8, u8)>,
    /// When an ENI was disassociated.
    cut: BTreeMap<u8, u8>,
    /// The agent's look on which a release rests was taken: what a kubelet that starts onto an old server does from
    /// here on is the risk that remains.
    sealed: Option<u8>,
    rebooted: bool,
    restarted: bool,
    agent_forgot: bool,
}

/// A world.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    tick: u8,
    api: Vec<ApiPod>,
    cloud: Cloud,
    /// EC2 as reads may still show it, and until which tick.
    before: Option<(u8, Cloud)>,
    host: Host,
    agent: Agent,
    leader: Leader,
    /// Calls of deposed leaders, and the tick at which their lease ends.
    late: Vec<(u8, Asked)>,
    left: Vec<u8>,
    notes: Notes,
}

/// First tick of a world: its term began long before.
const BEGIN: u8 = 4;

impl World {
    /// The world as a setup begins, for each agreement of the pods that are there from the beginning.
    ///
    /// # Panics
    ///
    /// If a rule is broken before the first move: the setup is wrong.
    pub fn begin(setup: &Setup) -> Self {
        let api = ApiPod { phase: Phase::Unborn, version: 1, annotation: None };
        let mut world = Self {
            tick: 0,
            api: vec![api; setup.pods.len()],
            cloud: Cloud::default(),
            before: None,
            host: Host::new(),
            agent: Agent::new(),
            leader: Leader::new(1, 0),
            late: vec![],
            left: setup.moves.iter().map(|(_, budget)| *budget).collect(),
            notes: Notes::default(),
        };
        let quiet = Setup { manual: Manual::default(), ..*setup };
        world.agent_starts(&quiet);
        world.greet_leader(&quiet, setup.fresh);
        world.settle(&quiet);
        for (n, plan) in setup.pods.iter().enumerate() {
            if let (Some(first), Ok(n)) = (plan.first, u8::try_from(n)) {
                world.create(&quiet, n);
                world.settle(&quiet);
                world.look(&quiet);
                world.settle(&quiet);
                if first == First::Running {
                    world.run(Self::tenant_of(setup, n), &quiet);
                    world.look(&quiet);
                    world.settle(&quiet);
                }
            }
        }
        world.pass(&quiet, BEGIN, false);
        world.take_inventory(&quiet);
        world.settle(&quiet);
        world.look(&quiet);
        world.heartbeat();
        world.settle(&quiet);
        world.notes.reached.clear();
        assert!(world.notes.broken.is_empty(), "{}: begins broken: {:?}", setup.name, world.notes);
        world
    }

    /// The present moment.
    fn now(&self) -> Moment {
        Moment(u64::from(self.tick) * 1000)
    }

    /// Whether a rule has been broken.
    pub fn is_broken(&self, rule: Rule) -> bool {
        self.notes.broken.contains(&rule)
    }

    /// Whether a goal has been reached.
    pub fn has_reached(&self, goal: Goal) -> bool {
        self.notes.reached.contains(&goal)
    }

    /// Number of the tenant of a pod: its own, or its static pod's.
    fn tenant_of(setup: &Setup, pod: u8) -> u8 {
        setup.pods[usize::from(pod)].hash.map_or(pod, |hash| hash + 32)
    }
}

/// Durations of these worlds, in ticks of a second. Their order is that of production: way (b) outlasts what may still be
/// started, a VLAN rests longer than the cooldown.
pub fn timing() -> Timing {
    let tick = Duration::from_secs(1);
    Timing {
        slow_release: 3 * tick,
        look_gap: tick,
        look_interval: tick,
        lingering_link: 100 * tick,
        vlan_rest: 2 * tick,
        vlan_rest_unseen: 2 * tick,
        repeat: tick,
        watch_silence: 100 * tick,
        agent_silence: 100 * tick,
        ec2_attempt: tick,
        ec2_operation: tick,
        ec2_consistency: tick,
        ec2_list_window: tick,
        retry_base: tick,
        retry_cap: tick,
        confirm_interval: tick,
        pace_window: tick,
        barrier_timeout: 2 * tick,
        ..Timing::default()
    }
}

/// Cooldown and rest of these worlds.
fn settings(braked: bool) -> Settings {
    Settings {
        cooldown: Duration::from_secs(1),
        vlan_rest: Duration::from_secs(2),
        read_only: false,
        no_release: braked,
        heal: HealMode::InPlace,
        restore_groups: false,
    }
}
