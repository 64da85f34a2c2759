//! The worlds: each small enough to be explored whole in seconds, each with the faults that its rules are about.

use crate::world::{First, Goal, Kind, Manual, Plan, Rule, Setup};

const MANY: u8 = u8::MAX;

const AUTOMATIC: Manual = Manual {
    mutations: false,
    reads: false,
    patches: false,
    gets: false,
    releases: false,
    looks: false,
    inventory: false,
};

const LOOKS: Manual = Manual { looks: true, ..AUTOMATIC };

const BASE: Setup = Setup {
    name: "",
    about: "",
    pods: &[],
    moves: &[],
    manual: AUTOMATIC,
    vlans: 0,
    liar: false,
    residual: false,
    fresh: true,
    horizon: 8,
    rules: &[Rule::LivePodKeepsEni, Rule::RunningLinkKeepsEni, Rule::DeletedIsTrue],
    goals: &[Goal::AllReclaimed],
};

const RUNNING: &[Plan] = &[Plan::new(0).first(First::Running)];

/// World B and the first half of world C of the safety notes.
pub const KUBELET: Setup = Setup {
    name: "kubelet",
    about: "a running pod: deletions the kubelet has not heard of, sandbox restarts, creates in flight, a cgroup view of another tree",
    pods: RUNNING,
    moves: &[
        (Kind::Tick, MANY),
        (Kind::Delete, 1),
        (Kind::End, 1),
        (Kind::Start, MANY),
        (Kind::Made, MANY),
        (Kind::Dies, 1),
        (Kind::Hear, MANY),
        (Kind::Kill, MANY),
        (Kind::Rmdir, MANY),
        (Kind::Look, MANY),
        (Kind::WrongCgroups, 1),
    ],
    manual: LOOKS,
    horizon: 7,
    rules: &[Rule::LivePodKeepsEni, Rule::RunningLinkKeepsEni, Rule::CooldownPasses],
    goals: &[Goal::ReclaimedSeen, Goal::ReclaimedEnded, Goal::AllReclaimed],
    ..BASE
};

/// Way (b) where the kubelet never started the pod, or has not yet.
pub const UNSTARTED: Setup = Setup {
    name: "unstarted",
    about: "a pod that was given its branch and is unknown to the kubelet: it may start late, or never; the node may sleep",
    pods: &[Plan::new(0).first(First::Given)],
    moves: &[
        (Kind::Tick, MANY),
        (Kind::Suspend, 1),
        (Kind::Delete, 1),
        (Kind::End, 1),
        (Kind::Learn, MANY),
        (Kind::MakeCgroup, MANY),
        (Kind::Start, MANY),
        (Kind::Made, MANY),
        (Kind::Hear, MANY),
        (Kind::Kill, MANY),
        (Kind::Rmdir, MANY),
        (Kind::Look, MANY),
    ],
    manual: LOOKS,
    horizon: 10,
    goals: &[
        Goal::ReclaimedSeen,
        Goal::ReclaimedNeverStarted,
        Goal::ReclaimedEnded,
        Goal::AllReclaimed,
    ],
    ..BASE
};

/// The second half of world C: what a new kubelet believes.
pub const RESTART: Setup = Setup {
    name: "restart",
    about: "the kubelet dies and starts, also onto a server that shows the time before the deletion or before the creation",
    pods: RUNNING,
    moves: &[
        (Kind::Tick, MANY),
        (Kind::Delete, 1),
        (Kind::Learn, MANY),
        (Kind::MakeCgroup, MANY),
        (Kind::Run, 1),
        (Kind::Finish, MANY),
        (Kind::Rmdir, MANY),
        (Kind::KubeletStops, 1),
        (Kind::KubeletStarts, 1),
        (Kind::KubeletStartsOld, 1),
        (Kind::KubeletStartsOlder, 1),
        (Kind::Look, MANY),
    ],
    manual: LOOKS,
    horizon: 9,
    goals: &[Goal::ReclaimedSeen, Goal::ReclaimedAfterKubeletStart, Goal::AllReclaimed],
    ..BASE
};

/// Way (b) and a new kubelet.
pub const RELEARN: Setup = Setup {
    name: "relearn",
    about: "a pod that was given its branch and is unknown to the kubelet, which is replaced while way (b) runs",
    moves: &[
        (Kind::Tick, MANY),
        (Kind::Delete, 1),
        (Kind::Learn, MANY),
        (Kind::MakeCgroup, MANY),
        (Kind::Run, 1),
        (Kind::Finish, MANY),
        (Kind::KubeletStops, 1),
        (Kind::KubeletStartsOlder, 1),
        (Kind::Look, MANY),
    ],
    horizon: 9,
    goals: &[Goal::ReclaimedNeverStarted],
    ..UNSTARTED
};

const MOMENT_MOVES: &[(Kind, u8)] = &[
    (Kind::Tick, MANY),
    (Kind::Delete, 1),
    (Kind::Learn, 1),
    (Kind::MakeCgroup, MANY),
    (Kind::Run, 1),
    (Kind::Finish, MANY),
    (Kind::KubeletStops, 1),
    (Kind::KubeletStartsOlder, 1),
    (Kind::LookBegin, 3),
    (Kind::LookEnd, MANY),
    (Kind::Heartbeat, 1),
    (Kind::Up, MANY),
];

/// What can happen between the agent's statement and the call.
pub const MOMENT: Setup = Setup {
    name: "moment",
    about: "between a statement and its call: the statement is late, looks take time, the kubelet is replaced meanwhile",
    pods: RUNNING,
    moves: MOMENT_MOVES,
    manual: Manual { looks: true, releases: true, ..AUTOMATIC },
    horizon: 6,
    rules: &[Rule::LivePodKeepsEni, Rule::RunningLinkKeepsEni],
    goals: &[Goal::ReclaimedSeen],
    ..BASE
};

/// A reply that lies about.
pub const BRAKE: Setup = Setup {
    name: "brake",
    about: "releasing is switched off between the question and the reply of a barrier, and on again later",
    moves: &[
        (Kind::Tick, MANY),
        (Kind::Delete, 1),
        (Kind::Learn, 1),
        (Kind::MakeCgroup, MANY),
        (Kind::Run, 1),
        (Kind::Finish, MANY),
        (Kind::KubeletStops, 1),
        (Kind::KubeletStartsOlder, 1),
        (Kind::Look, 3),
        (Kind::Brake, 2),
    ],
    manual: LOOKS,
    horizon: 7,
    ..MOMENT
};

/// What no local evidence can close: shown, not checked.
pub const REMAINS: Setup = Setup {
    name: "remains",
    about: "as 'moment', and a kubelet may start onto an old server even after the last look before the call",
    residual: true,
    goals: &[],
    ..MOMENT
};

/// Power loss.
pub const REBOOT: Setup = Setup {
    name: "reboot",
    about: "power loss: every cgroup and link goes at once; kubelet and agent come back in any order, the journal may have been kept",
    pods: RUNNING,
    moves: &[
        (Kind::Tick, MANY),
        (Kind::Delete, 1),
        (Kind::Learn, MANY),
        (Kind::MakeCgroup, MANY),
        (Kind::Run, 1),
        (Kind::Finish, MANY),
        (Kind::Reboot, 1),
        (Kind::KubeletStarts, 1),
        (Kind::KubeletStartsOlder, 1),
        (Kind::AgentStarts, MANY),
        (Kind::Look, MANY),
    ],
    manual: LOOKS,
    horizon: 9,
    goals: &[Goal::ReclaimedSeen, Goal::ReclaimedAfterReboot, Goal::AllReclaimed],
    ..BASE
};

/// World A: lists that lie.
pub const LISTS: Setup = Setup {
    name: "lists",
    about: "complete-looking empty lists, restarts of the agent with and without its journal",
    pods: &[Plan::new(0).first(First::Running), Plan::new(1).first(First::Given)],
    moves: &[
        (Kind::Tick, MANY),
        (Kind::Delete, 1),
        (Kind::Run, 1),
        (Kind::Finish, MANY),
        (Kind::ListEmpty, 2),
        (Kind::JournalLost, 1),
        (Kind::AgentStarts, MANY),
    ],
    horizon: 9,
    goals: &[Goal::ReclaimedSeen, Goal::ReclaimedAgentForgot],
    ..BASE
};

/// Copied annotations.
pub const COPIES: Setup = Setup {
    name: "copies",
    about: "a pod created with another pod's annotation, which may get a sandbox before the annotation is replaced; a link view of another namespace",
    pods: &[Plan::new(0).first(First::Running), Plan { copies: Some(0), ..Plan::new(1) }],
    moves: &[
        (Kind::Tick, MANY),
        (Kind::Create, 1),
        (Kind::Run, 1),
        (Kind::Delete, 1),
        (Kind::Finish, MANY),
        (Kind::WrongLinks, 1),
        (Kind::Answer, MANY),
    ],
    manual: Manual { patches: true, ..AUTOMATIC },
    horizon: 8,
    goals: &[Goal::ReclaimedSeen, Goal::Served],
    ..BASE
};

/// What a new leader takes an annotation for.
pub const ADOPTED: Setup = Setup {
    name: "adopted",
    about: "a pod created with another pod's annotation; a user takes that pod's annotation away, its sandbox restarts, and a new leader reads what is there",
    moves: &[
        (Kind::Tick, MANY),
        (Kind::Create, 1),
        (Kind::Dies, 1),
        (Kind::Delete, 1),
        (Kind::Strip, 1),
        (Kind::NewTerm, 1),
    ],
    horizon: 8,
    goals: &[],
    ..COPIES
};

/// Tags that somebody else rewrote.
pub const TAGS: Setup = Setup {
    name: "tags",
    about: "two pods; somebody binds an ENI to the other pod by its tag; a new leader",
    pods: &[Plan::new(0).first(First::Running), Plan::new(1).first(First::Running)],
    moves: &[
        (Kind::Tick, MANY),
        (Kind::Delete, 1),
        (Kind::Finish, MANY),
        (Kind::Retag, 1),
        (Kind::NewTerm, 1),
    ],
    horizon: 8,
    rules: &[Rule::LivePodKeepsEni, Rule::RunningLinkKeepsEni],
    goals: &[Goal::ReclaimedSeen, Goal::ReclaimedNewTerm],
    ..BASE
};

/// Forged association ids.
pub const FORGED: Setup = Setup {
    name: "forged",
    about: "two pods; one's annotation is given the other's association id; a new leader",
    pods: &[Plan::new(0).first(First::Running), Plan::new(1).first(First::Running)],
    moves: &[
        (Kind::Tick, MANY),
        (Kind::Delete, 1),
        (Kind::Finish, MANY),
        (Kind::Forge, 1),
        (Kind::NewTerm, 2),
    ],
    horizon: 8,
    goals: &[Goal::ReclaimedSeen, Goal::ReclaimedNewTerm],
    ..BASE
};

/// An agent that is wrong about everything.
pub const LIAR: Setup = Setup {
    name: "liar",
    about: "an agent that states of any pod that it is over, and confirms it when asked; what the API server knows protects",
    pods: &[Plan::new(0).first(First::Given), Plan::new(1).first(First::Given)],
    moves: &[(Kind::Tick, MANY), (Kind::LieRelease, 3), (Kind::Delete, 1), (Kind::NewTerm, 1)],
    liar: true,
    horizon: 8,
    rules: &[Rule::LivePodKeepsEni, Rule::DeletedOnlyIfOver],
    goals: &[Goal::ReclaimedSeen],
    ..BASE
};

/// The same, and the API server errs once as well.
pub const LIARS: Setup = Setup {
    name: "liars",
    about: "the same, and one live GET is answered wrongly: what is cut off then is at least not deleted",
    moves: &[
        (Kind::Tick, MANY),
        (Kind::LieRelease, 2),
        (Kind::Answer, MANY),
        (Kind::LieNotFound, 1),
        (Kind::Delete, 1),
    ],
    manual: Manual { gets: true, ..AUTOMATIC },
    rules: &[Rule::DeletedOnlyIfOver],
    ..LIAR
};

/// Lost replies and changes of leader.
pub const TERMS: Setup = Setup {
    name: "terms",
    about: "one pod from its creation on: EC2 calls and patches take time, a reply is lost, reads lag, a new leader begins while calls of the old one still land",
    pods: &[Plan::new(0)],
    moves: &[
        (Kind::Tick, MANY),
        (Kind::Create, 1),
        (Kind::Delete, 1),
        (Kind::Answer, MANY),
        (Kind::Lose, 1),
        (Kind::Lag, 1),
        (Kind::NewTerm, 1),
        (Kind::Late, MANY),
    ],
    manual: Manual { mutations: true, reads: true, patches: true, ..AUTOMATIC },
    horizon: 11,
    rules: &[
        Rule::LivePodKeepsEni,
        Rule::OneEni,
        Rule::AnnotationTrue,
        Rule::DeletedIsTrue,
        Rule::VlanRests,
        Rule::CooldownPasses,
    ],
    goals: &[Goal::Served, Goal::ReclaimedNewTerm, Goal::ReclaimedNeverStarted, Goal::AllReclaimed],
    ..BASE
};

/// Same-named successors.
pub const NAMES: Setup = Setup {
    name: "names",
    about: "a pod is replaced by another of the same name while its annotation is being written; a new leader",
    pods: &[Plan::new(0), Plan::new(0)],
    moves: &[
        (Kind::Tick, MANY),
        (Kind::Create, 2),
        (Kind::Delete, 1),
        (Kind::Answer, MANY),
        (Kind::NewTerm, 1),
        (Kind::Late, MANY),
        (Kind::Run, 1),
        (Kind::Finish, MANY),
    ],
    manual: Manual { patches: true, ..AUTOMATIC },
    horizon: 8,
    rules: &[Rule::LivePodKeepsEni, Rule::OneEni, Rule::AnnotationTrue, Rule::DeletedIsTrue],
    goals: &[Goal::Served, Goal::ReclaimedSeen],
    ..BASE
};

/// One VLAN for two pods.
pub const VLANS: Setup = Setup {
    name: "vlans",
    about: "one VLAN for two pods: links that come late and stay, a link view of another namespace",
    pods: &[Plan::new(0).first(First::Running), Plan::new(1)],
    moves: &[
        (Kind::Tick, MANY),
        (Kind::Create, 1),
        (Kind::Delete, 1),
        (Kind::Finish, MANY),
        (Kind::StrayLink, 2),
        (Kind::WrongLinks, 2),
    ],
    vlans: 1,
    horizon: 10,
    rules: &[Rule::LivePodKeepsEni, Rule::VlanRests, Rule::OneEni],
    goals: &[Goal::VlanHandedOn, Goal::ReclaimedSeen],
    ..BASE
};

/// One VLAN for two pods, and the memory of its use.
pub const RECORDS: Setup = Setup {
    name: "records",
    about: "one VLAN for two pods: an agent that lost its record, a new leader",
    moves: &[
        (Kind::Tick, MANY),
        (Kind::Create, 1),
        (Kind::Delete, 1),
        (Kind::Finish, MANY),
        (Kind::JournalLost, 1),
        (Kind::AgentStarts, MANY),
        (Kind::NewTerm, 1),
    ],
    horizon: 9,
    ..VLANS
};

/// Static pods.
pub const STATIC: Setup = Setup {
    name: "static",
    about: "a static pod whose mirror is deleted and made anew, whose sandbox restarts, whose file goes; a new leader",
    pods: &[
        Plan { hash: Some(0), ..Plan::new(0) }.first(First::Running),
        Plan { hash: Some(0), ..Plan::new(0) },
    ],
    moves: &[
        (Kind::Tick, MANY),
        (Kind::Delete, 2),
        (Kind::Create, 1),
        (Kind::Dies, 1),
        (Kind::Run, 1),
        (Kind::StaticGoes, 1),
        (Kind::Finish, MANY),
        (Kind::NewTerm, 1),
    ],
    horizon: 9,
    goals: &[Goal::TakenOver, Goal::ReclaimedSeen, Goal::AllReclaimed],
    ..BASE
};

/// All worlds in which every rule has to hold.
pub const ALL: &[&Setup] = &[
    &KUBELET, &UNSTARTED, &RESTART, &RELEARN, &MOMENT, &BRAKE, &REBOOT, &LISTS, &COPIES, &ADOPTED,
    &TAGS, &FORGED, &LIAR, &LIARS, &TERMS, &NAMES, &VLANS, &RECORDS, &STATIC,
];
