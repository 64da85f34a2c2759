//! What can happen next.

use trunkline_core::fact::{GoneBy, OverKind, ReleaseFacts, ReportedRelease, Way};
use trunkline_core::id::{KubeletStart, VlanId};
use trunkline_core::lock::{self, Lock};
use trunkline_core::message::FromAgent;
use trunkline_core::node::event::Event;

use super::host::{CREATE, LEARN};
use super::{Asked, Kind, Knows, Phase, Setup, Tenant, World, ids, settings};

/// Something that happens. The number is a pod, a tenant, a place in a queue or an ENI, as the kind says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Move(pub Kind, pub u8);

impl World {
    /// Every move that is possible now.
    pub fn moves(&self, setup: &Setup, out: &mut Vec<Move>) {
        for ((kind, _), left) in setup.moves.iter().zip(&self.left) {
            if *left > 0 {
                self.moves_of(setup, *kind, out);
            }
        }
    }

    fn moves_of(&self, setup: &Setup, kind: Kind, out: &mut Vec<Move>) {
        let host = &self.host;
        let up = self.agent.witness.is_some();
        let once = |possible: bool, out: &mut Vec<Move>| {
            if possible {
                out.push(Move(kind, 0));
            }
        };
        let pods = |possible: &dyn Fn(u8) -> bool, out: &mut Vec<Move>| {
            let all = (0..self.api.len()).filter_map(|n| u8::try_from(n).ok());
            out.extend(all.filter(|n| possible(*n)).map(|n| Move(kind, n)));
        };
        let tenants = |possible: &dyn Fn(u8, &Tenant) -> bool, out: &mut Vec<Move>| {
            out.extend(
                host.tenants.iter().filter(|(n, t)| possible(**n, t)).map(|(n, _)| Move(kind, *n)),
            );
        };
        let pending = |possible: &dyn Fn(&Asked) -> bool, out: &mut Vec<Move>| {
            for (i, (_, asked)) in self.leader.pending.iter().enumerate() {
                if possible(asked) {
                    out.push(Move(kind, u8::try_from(i).unwrap_or(u8::MAX)));
                }
            }
        };
        let alive = |n: u8| self.is_alive(n);
        match kind {
            Kind::Tick => once(self.tick < setup.horizon, out),
            Kind::Suspend => once(self.tick + 3 <= setup.horizon, out),
            Kind::Create => pods(&|n| self.may_create(setup, n), out),
            Kind::Delete => pods(
                &|n| matches!(self.api[usize::from(n)].phase, Phase::Alive | Phase::Ended),
                out,
            ),
            Kind::End | Kind::Strip => {
                pods(&|n| self.api[usize::from(n)].phase == Phase::Alive, out);
            }
            Kind::Forge => pods(&|n| n > 0 && self.api[usize::from(n)].phase == Phase::Alive, out),
            // Its mirror goes first, or it would be no fault of anybody.
            Kind::StaticGoes => {
                let mirror = |n: usize| setup.pods[n].hash.is_some();
                let shown =
                    (0..self.api.len()).any(|n| mirror(n) && self.api[n].phase == Phase::Alive);
                tenants(&|n, t| n >= 32 && t.knows == Knows::Wanted && !shown, out);
            }
            // The kubelet hears of a pod that the API server has, or had when its list was made.
            Kind::Learn => tenants(
                &|n, t| host.kubelet && t.knows == Knows::Nothing && (alive(n) || t.learns > 0),
                out,
            ),
            Kind::MakeCgroup => {
                tenants(&|_, t| host.kubelet && t.knows == Knows::Wanted && !t.cgroup, out);
            }
            Kind::Start => tenants(
                &|n, t| {
                    let ready =
                        t.knows == Knows::Wanted && t.cgroup && !t.runs && t.making.is_none();
                    host.kubelet && ready && (t.told.is_some() || self.told(setup, n).is_some())
                },
                out,
            ),
            Kind::Made => tenants(&|_, t| t.making.is_some(), out),
            Kind::Dies => tenants(&|_, t| t.runs, out),
            Kind::Hear => {
                tenants(&|n, t| host.kubelet && t.knows == Knows::Wanted && !alive(n), out);
            }
            Kind::Kill => {
                tenants(&|_, t| host.kubelet && t.knows == Knows::Over && t.making.is_none(), out);
            }
            Kind::Rmdir => tenants(
                &|_, t| {
                    let worker =
                        t.knows == Knows::Done && t.making.is_none_or(|(_, orphan)| orphan);
                    let unknown = t.knows == Knows::Nothing;
                    host.kubelet && t.cgroup && (worker || unknown)
                },
                out,
            ),
            Kind::Run => tenants(
                &|n, t| {
                    let wanted = alive(n) || (t.knows == Knows::Wanted && t.cgroup);
                    let told = t.told.is_some() || self.told(setup, n).is_some();
                    host.kubelet && wanted && !t.runs && told
                },
                out,
            ),
            Kind::Finish => tenants(
                &|n, t| {
                    let heard = matches!(t.knows, Knows::Wanted | Knows::Over);
                    host.kubelet && heard && !alive(n) && t.cgroup
                },
                out,
            ),
            Kind::KubeletStops => once(host.kubelet, out),
            Kind::KubeletStarts => once(!host.kubelet, out),
            // From the last look on which a release rests, an old server is the risk that remains.
            Kind::KubeletStartsOld | Kind::KubeletStartsOlder => {
                let barrier = self.notes.sealed.is_some_and(|at| self.tick < at + 2);
                let cut = !self.notes.cut.is_empty() && self.notes.sealed.is_some();
                let known = setup.residual || !(barrier || cut);
                once(!host.kubelet && known, out);
            }
            Kind::Reboot
            | Kind::WrongCgroups
            | Kind::WrongLinks
            | Kind::NewTerm
            | Kind::Brake
            | Kind::Inventory => once(true, out),
            Kind::Look | Kind::LookBegin => once(up && self.agent.looking.is_none(), out),
            Kind::LookEnd => once(up && self.agent.looking.is_some(), out),
            Kind::Heartbeat => once(self.agent.connected && self.agent.up.len() < 3, out),
            Kind::AgentDies | Kind::JournalLost | Kind::ListEmpty => once(up, out),
            Kind::AgentStarts => once(!up, out),
            Kind::Up => once(!self.agent.up.is_empty(), out),
            Kind::Break => once(self.agent.connected, out),
            Kind::Connect => once(up && !self.agent.connected, out),
            Kind::OldRelease => once(self.agent.connected && self.agent.old_release.is_some(), out),
            Kind::Answer => pending(&|_| true, out),
            Kind::Lose => pending(&|asked| !matches!(asked, Asked::Get(_)), out),
            Kind::Lag => pending(
                &|asked| {
                    let shows = self.before.as_ref().is_some_and(|(at, _)| self.tick <= *at);
                    matches!(asked, Asked::Ec2(call) if !call.mutates()) && shows
                },
                out,
            ),
            Kind::LieNotFound => pending(
                &|asked| matches!(asked, Asked::Get(n) if self.api[usize::from(*n)].phase == Phase::Alive),
                out,
            ),
            Kind::Late => {
                for (i, (ends, _)) in self.late.iter().enumerate() {
                    if self.tick <= *ends || !lock::holds(Lock::LeaseFences) {
                        out.push(Move(kind, u8::try_from(i).unwrap_or(u8::MAX)));
                    }
                }
            }
            Kind::LieRelease => pods(
                &|n| {
                    self.agent.connected
                        && self.notes.given.contains_key(&Self::tenant_of(setup, n))
                },
                out,
            ),
            Kind::Retag => {
                out.extend(self.cloud.enis.keys().map(|n| Move(kind, *n)));
            }
            Kind::StrayLink => {
                let dead =
                    |(n, t): (&u8, &Tenant)| (!alive(*n) && !t.runs).then_some(t.told).flatten();
                let vlans = host.tenants.iter().filter_map(dead).map(|(_, vlan)| vlan.get());
                out.extend(vlans.map(|vlan| Move(kind, vlan)));
                // One that comes and goes unseen leaves no trace; the rest of its VLAN covers it.
                if !host.wrong_links {
                    out.extend(host.strays.keys().map(|vlan| Move(kind, 128 + vlan.get())));
                }
            }
        }
    }

    /// The API server has a pod of this tenant, so that it is to run. A static pod runs as long as its file is there.
    fn is_alive(&self, tenant: u8) -> bool {
        if tenant >= 32 {
            return self.host.tenants.get(&tenant).is_some_and(|t| t.knows == Knows::Wanted);
        }
        self.api[usize::from(tenant)].phase == Phase::Alive
    }

    fn may_create(&self, setup: &Setup, n: u8) -> bool {
        let plan = setup.pods[usize::from(n)];
        let copied = plan.copies.is_none_or(|of| self.api[usize::from(of)].annotation.is_some());
        // Pods come in their order.
        let next = self.api.iter().position(|p| p.phase == Phase::Unborn) == Some(usize::from(n));
        next && copied && self.named_now(setup, plan.name).is_none()
    }

    /// ENI and VLAN that the CNI plugin reads in the annotation of a tenant's pod.
    fn told(&self, setup: &Setup, tenant: u8) -> Option<(u8, VlanId)> {
        let of = |n: &usize| {
            u8::try_from(*n).is_ok_and(|n| Self::tenant_of(setup, n) == tenant)
                && self.api[*n].phase != Phase::Unborn
        };
        let text = (0..self.api.len()).rfind(of).and_then(|n| self.api[n].annotation.as_deref());
        text.and_then(|text| super::leader::named(text).first().copied())
    }

    /// The world after a move.
    #[must_use]
    pub fn after(&self, setup: &Setup, step: Move) -> Self {
        let mut next = self.clone();
        if let Some(i) = setup.moves.iter().position(|(kind, _)| *kind == step.0)
            && next.left[i] != u8::MAX
        {
            next.left[i] -= 1;
        }
        next.carry(setup, step);
        next.settle(setup);
        let by_itself =
            !matches!(step.0, Kind::Up | Kind::Answer | Kind::Lose | Kind::Lag | Kind::Late);
        if !setup.manual.looks && by_itself {
            next.look(setup);
            next.heartbeat();
            next.settle(setup);
        }
        next
    }

    fn carry(&mut self, setup: &Setup, Move(kind, n): Move) {
        let at = usize::from(n);
        match kind {
            Kind::Tick => self.pass(setup, 1, true),
            Kind::Suspend => self.pass(setup, 3, false),
            Kind::Create => self.create(setup, n),
            Kind::Delete => self.set_phase(setup, n, Phase::Gone),
            Kind::End => self.set_phase(setup, n, Phase::Ended),
            Kind::Strip => {
                self.api[at].annotation = None;
                self.api[at].version += 1;
                self.watch_shows(setup, n);
            }
            Kind::Forge => self.forge(setup, n),
            Kind::Retag => {
                if let Some(eni) = self.cloud.enis.get_mut(&n) {
                    eni.owner = Some(1);
                    eni.name = setup.pods[1].name;
                }
                self.take_inventory(setup);
            }
            Kind::Run => self.run(n, setup),
            Kind::StaticGoes
            | Kind::Learn
            | Kind::MakeCgroup
            | Kind::Start
            | Kind::Made
            | Kind::Dies
            | Kind::Hear
            | Kind::Kill
            | Kind::Rmdir
            | Kind::Finish => self.tenant_move(setup, kind, n),
            Kind::KubeletStops => self.host.kubelet_stops(),
            Kind::KubeletStarts | Kind::KubeletStartsOld | Kind::KubeletStartsOlder => {
                self.kubelet_starts(kind);
            }
            Kind::Reboot => {
                self.agent_dies();
                self.step(setup, Event::SessionClosed);
                self.host.reboots();
                self.notes.rebooted = true;
            }
            Kind::WrongCgroups => self.host.wrong_cgroups = !self.host.wrong_cgroups,
            Kind::WrongLinks => self.host.wrong_links = !self.host.wrong_links,
            Kind::StrayLink if n > 128 => {
                self.host.strays.remove(&ids::vlan(n - 128));
            }
            Kind::StrayLink => {
                let told = self.host.tenants.values().filter_map(|t| t.told);
                let of = told.filter(|(_, v)| v.get() == n).map(|(eni, _)| eni).next();
                self.host.strays.insert(ids::vlan(n), of.unwrap_or(0));
            }
            Kind::Look => {
                self.look(setup);
                // The sign of life follows, where it is not a move of its own.
                if !setup.moves.iter().any(|(kind, _)| *kind == Kind::Heartbeat) {
                    self.heartbeat();
                }
            }
            Kind::LookBegin => self.agent.looking = Some(self.look_begins()),
            Kind::LookEnd => {
                if let Some(look) = self.agent.looking.take() {
                    self.look_ends(look, setup);
                }
            }
            Kind::Heartbeat => self.heartbeat(),
            Kind::AgentDies | Kind::JournalLost => {
                self.agent_dies();
                self.step(setup, Event::SessionClosed);
                if kind == Kind::JournalLost {
                    self.agent.journal = None;
                    self.notes.agent_forgot = true;
                }
            }
            Kind::AgentStarts => {
                self.agent_starts(setup);
                self.connect(setup);
            }
            Kind::ListEmpty => self.list(setup, true),
            Kind::Up => self.deliver(setup),
            Kind::Break => {
                self.disconnect();
                self.step(setup, Event::SessionClosed);
            }
            Kind::Connect => self.connect(setup),
            Kind::OldRelease => {
                if let Some(old) = self.agent.old_release.take() {
                    self.step(setup, Event::Agent(old));
                }
            }
            Kind::Answer => self.answer(setup, at),
            Kind::Lose => self.lose(setup, at),
            Kind::Lag => self.lag(setup, at),
            Kind::LieNotFound => self.lie_not_found(setup, at),
            Kind::NewTerm => self.new_term(setup),
            Kind::Inventory => self.take_inventory(setup),
            Kind::Late => {
                let (_, asked) = self.late.remove(at);
                let _unheard = self.carry_out(setup, &asked);
            }
            Kind::LieRelease => self.lie_release(setup, n),
            Kind::Brake => {
                self.leader.braked = !self.leader.braked;
                let settings = settings(self.leader.braked);
                self.step(setup, Event::Settings(settings));
            }
        }
    }

    pub(super) fn pass(&mut self, setup: &Setup, ticks: u8, awake: bool) {
        self.tick += ticks;
        if awake {
            let alive: Vec<bool> = self.api.iter().map(|p| p.phase == Phase::Alive).collect();
            self.host.tick(|n| n >= 32 || alive.get(usize::from(n)) == Some(&true));
        }
        if self.before.as_ref().is_some_and(|(at, _)| *at < self.tick) {
            self.before = None;
        }
        if lock::holds(Lock::LeaseFences) {
            self.late.retain(|(ends, _)| *ends >= self.tick);
        }
        self.sees(trunkline_core::witness::Sighting::Tick, setup);
        self.step(setup, Event::Tick);
        // The coordinator reads again once whatever an earlier term sent has ended and shows.
        if self.tick == self.leader.began + 2 && !setup.manual.inventory {
            self.take_inventory(setup);
        }
    }

    pub(super) fn create(&mut self, setup: &Setup, n: u8) {
        let plan = setup.pods[usize::from(n)];
        let copied = plan.copies.and_then(|of| self.api[usize::from(of)].annotation.clone());
        let api = &mut self.api[usize::from(n)];
        api.phase = Phase::Alive;
        api.annotation = copied;
        let tenant = Self::tenant_of(setup, n);
        let tenant = self.host.tenants.entry(tenant).or_insert_with(Tenant::new);
        if plan.hash.is_some() {
            // The kubelet makes a static pod's cgroup before it makes its mirror.
            tenant.knows = Knows::Wanted;
            tenant.cgroup = true;
        }
        self.watch_shows(setup, n);
    }

    fn set_phase(&mut self, setup: &Setup, n: u8, phase: Phase) {
        self.api[usize::from(n)].phase = phase;
        self.api[usize::from(n)].version += 1;
        self.watch_shows(setup, n);
    }

    /// The pod's annotation is given the association id of the pod before it.
    fn forge(&mut self, setup: &Setup, n: u8) {
        let id = |text: &str| text.rsplit('/').next().map(ToOwned::to_owned);
        let other = self.api[usize::from(n - 1)].annotation.as_deref().and_then(id);
        let api = &mut self.api[usize::from(n)];
        if let (Some(text), Some(other)) = (&mut api.annotation, other)
            && let Some((head, _)) = text.clone().rsplit_once('/')
        {
            *text = format!("{head}/{other}");
            api.version += 1;
        }
        self.watch_shows(setup, n);
    }

    /// From the annotation to running containers at one go, for worlds that are not about the kubelet.
    pub(super) fn run(&mut self, n: u8, setup: &Setup) {
        let told = self.told(setup, n);
        let sound = self.is_sound(told.or_else(|| self.host.tenants.get(&n)?.told));
        if let Some(tenant) = self.host.tenants.get_mut(&n) {
            tenant.told = told.or(tenant.told);
            (tenant.knows, tenant.learns) = (Knows::Wanted, 0);
            tenant.cgroup = true;
            tenant.runs = true;
            tenant.sound = sound;
            tenant.link = tenant.told.map(|(eni, vlan)| (vlan, eni));
        }
    }

    fn is_sound(&self, told: Option<(u8, VlanId)>) -> bool {
        let eni = told.and_then(|(eni, _)| self.cloud.enis.get(&eni));
        eni.is_some_and(|e| e.association.is_some())
    }

    fn tenant_move(&mut self, setup: &Setup, kind: Kind, n: u8) {
        let told = self.told(setup, n);
        let sound = self.is_sound(self.host.tenants.get(&n).and_then(|t| t.told));
        let Some(t) = self.host.tenants.get_mut(&n) else { return };
        match kind {
            Kind::Learn => t.knows = Knows::Wanted,
            Kind::MakeCgroup => t.cgroup = true,
            Kind::Start => {
                t.told = told.or(t.told);
                t.making = Some((CREATE, false));
            }
            // Containers follow only where the kubelet that asked still waits for the sandbox.
            Kind::Made => {
                let orphan = t.making.take().is_some_and(|(_, orphan)| orphan);
                t.runs = t.knows == Knows::Wanted && !orphan;
                t.sound = sound;
                if t.runs {
                    t.link = t.told.map(|(eni, vlan)| (vlan, eni));
                }
            }
            Kind::Dies => t.stop(),
            Kind::Hear | Kind::StaticGoes => t.knows = Knows::Over,
            Kind::Kill => {
                t.stop();
                t.knows = Knows::Done;
            }
            Kind::Rmdir => {
                t.stop();
                t.cgroup = false;
            }
            Kind::Finish => {
                t.stop();
                t.cgroup = false;
                t.knows = Knows::Done;
                if n >= 32 {
                    self.notes.given.remove(&n);
                }
            }
            _ => {}
        }
    }

    fn kubelet_starts(&mut self, kind: Kind) {
        let phases: Vec<Phase> = self.api.iter().map(|p| p.phase).collect();
        self.notes.restarted = true;
        self.host.kubelet_starts(|n| {
            match (kind, phases.get(usize::from(n)).copied()) {
                (_, None) => (Knows::Wanted, 0),
                // Its server shows the time before the pod was created, or before it was deleted.
                (_, Some(Phase::Unborn)) | (Kind::KubeletStartsOlder, _) => (Knows::Nothing, LEARN),
                // Its first list is whole before it removes anything.
                (Kind::KubeletStartsOld, _) | (_, Some(Phase::Alive)) => (Knows::Wanted, LEARN),
                _ => (Knows::Done, 0),
            }
        });
    }

    /// An agent that is wrong about everything states that a pod is over.
    fn lie_release(&mut self, setup: &Setup, n: u8) {
        let own = |(_, e): &(&u8, &super::Eni)| e.owner == Some(n);
        let enis = self.cloud.enis.iter().filter(own).map(|(id, _)| ids::eni(*id)).collect();
        let facts = ReleaseFacts {
            uid: ids::uid(n),
            over: OverKind::Gone(GoneBy::WatchDeleted),
            way: Way::SeenAndGone,
            boot: ids::boot(self.host.boot),
            start: KubeletStart(u64::from(self.host.start)),
            enis,
        };
        let reported = ReportedRelease::received(facts, self.origin());
        self.step(setup, Event::Agent(FromAgent::Release(reported)));
    }
}
