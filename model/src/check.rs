//! Running the checker.

use std::time::Duration;

use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::world::{Goal, Move, Rule, Setup, World};

/// One world to be explored.
#[derive(Debug, Clone, Copy)]
pub struct Explored(pub &'static Setup);

macro_rules! properties {
    ($always:ident: $($rule:ident),*; $sometimes:ident: $($goal:ident),*) => {
        fn rule(rule: Rule) -> Property<Explored> {
            match rule {
                $( Rule::$rule => Property::<Explored>::always(Rule::$rule.name(), |_, w| !w.is_broken(Rule::$rule)), )*
            }
        }
        fn goal(goal: Goal) -> Property<Explored> {
            match goal {
                $( Goal::$goal => Property::<Explored>::sometimes(Goal::$goal.name(), |_, w| w.has_reached(Goal::$goal)), )*
            }
        }
    };
}

properties!(
    always: LivePodKeepsEni, RunningLinkKeepsEni, DeletedOnlyIfOver, VlanRests, OneEni, AnnotationTrue, DeletedIsTrue, CooldownPasses;
    sometimes: ReclaimedSeen, ReclaimedNeverStarted, ReclaimedAfterKubeletStart, ReclaimedAfterReboot, ReclaimedAgentForgot, ReclaimedEnded, ReclaimedNewTerm, Served, VlanHandedOn, TakenOver, AllReclaimed
);

impl Model for Explored {
    type State = World;
    type Action = Move;

    fn init_states(&self) -> Vec<World> {
        vec![World::begin(self.0)]
    }

    fn actions(&self, state: &World, actions: &mut Vec<Move>) {
        // What comes after a broken rule is of no interest.
        if !self.0.rules.iter().any(|rule| state.is_broken(*rule)) {
            state.moves(self.0, actions);
        }
    }

    fn next_state(&self, state: &World, action: Move) -> Option<World> {
        Some(state.after(self.0, action)).filter(|next| next != state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let rules = self.0.rules.iter().map(|r| rule(*r));
        rules.chain(self.0.goals.iter().map(|g| goal(*g))).collect()
    }
}

/// What an exploration found.
#[derive(Debug)]
pub struct Outcome {
    /// Distinct states.
    pub states: usize,
    /// Greatest depth.
    pub depth: usize,
    /// Rules that were broken, each with the moves that lead there.
    pub broken: Vec<(&'static str, Vec<Move>)>,
    /// Goals that were not reached.
    pub missed: Vec<&'static str>,
    /// How long it took.
    pub took: Duration,
}

/// Explores a world: whole, or until the first rule is broken.
pub fn explore(setup: &'static Setup, whole: bool) -> Outcome {
    #[allow(clippy::disallowed_methods, reason = "how long it took, for a person to read")]
    let begun = std::time::Instant::now();
    let finish = if whole { HasDiscoveries::All } else { HasDiscoveries::AnyFailures };
    let checker = Explored(setup).checker().finish_when(finish).spawn_bfs().join();
    let discoveries = checker.discoveries();
    let broken = setup.rules.iter().filter_map(|rule| {
        let path = discoveries.get(rule.name())?;
        Some((rule.name(), path.clone().into_actions()))
    });
    let missed = setup.goals.iter().map(|goal| goal.name());
    Outcome {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        broken: broken.collect(),
        missed: missed.filter(|goal| !discoveries.contains_key(goal)).collect(),
        took: begun.elapsed(),
    }
}
