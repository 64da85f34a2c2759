//! Readiness as handles: each component says for itself whether it is ready, and why not.
//!
//! A component registers before it starts and is not ready until it says so, so that a forgotten one shows. A handle
//! that is dropped (its component ended) makes the process unready for good.

use std::collections::BTreeMap;

use tokio::sync::watch;

/// The state of every registered component: `None` is ready, else the sentence that says what is awaited.
type States = BTreeMap<&'static str, Option<String>>;

/// All components of a process. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Readiness(watch::Sender<States>);

impl Default for Readiness {
    fn default() -> Self {
        Self(watch::Sender::new(States::new()))
    }
}

/// One component's say.
#[derive(Debug)]
pub struct ReadyHandle {
    name: &'static str,
    states: watch::Sender<States>,
}

impl Readiness {
    /// No components: ready.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a component, not ready yet.
    pub fn register(&self, name: &'static str) -> ReadyHandle {
        let handle = ReadyHandle { name, states: self.0.clone() };
        handle.set_unready("starting");
        handle
    }

    /// Every component with the reason why it is not ready, if it is not.
    pub fn states(&self) -> BTreeMap<&'static str, Option<String>> {
        self.0.borrow().clone()
    }

    /// All components are ready.
    pub fn is_ready(&self) -> bool {
        self.0.borrow().values().all(Option::is_none)
    }
}

impl ReadyHandle {
    /// Ready.
    pub fn set_ready(&self) {
        self.set(None);
    }

    /// Not ready, with a sentence a person can act on.
    pub fn set_unready(&self, reason: impl Into<String>) {
        self.set(Some(reason.into()));
    }

    /// Ready or not.
    pub fn set(&self, state: Option<String>) {
        let name = self.name;
        let text = state.clone();
        let changed = self.states.send_if_modified(|states| {
            let held = states.insert(name, state.clone());
            held != Some(state)
        });
        if changed {
            match text {
                None => tracing::info!(component = name, "ready"),
                Some(reason) => tracing::info!(component = name, reason, "not ready"),
            }
        }
    }
}

impl Drop for ReadyHandle {
    fn drop(&mut self) {
        self.set_unready("the component has ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_ready_when_every_component_says_so_and_none_has_ended() {
        let readiness = Readiness::new();
        let pods = readiness.register("pods");
        let links = readiness.register("links");
        pods.set_ready();
        assert!(!readiness.is_ready());
        links.set_unready("no link carries the trunk's MAC");
        assert_eq!(readiness.states()["links"].as_deref(), Some("no link carries the trunk's MAC"));
        links.set_ready();
        assert!(readiness.is_ready());
        drop(pods);
        assert!(!readiness.is_ready());
    }
}
