//! The Nodes and CNINodes of the cluster, as the last complete lists and the events since showed them.
//!
//! A view that has become stale keeps its last content and wakes nobody: stale is not empty. Only a new complete list
//! removes what it does not contain.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};
use trunkline_core::id::{InstanceId, NodeName};

use super::objects::{CniNodeObject, NodeObject};
use super::plan::Seen;

/// What is known of one name.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeView {
    /// The Node; `None` if the complete list has none.
    pub node: Option<Arc<NodeObject>>,
    /// The CNINode; outer `None` before the first complete list.
    pub cninode: Option<Option<Arc<CniNodeObject>>>,
}

impl NodeView {
    /// The CNINode as `plan` wants it.
    pub fn seen(&self) -> Seen<'_> {
        match &self.cninode {
            None => Seen::Unknown,
            Some(None) => Seen::Absent,
            Some(Some(object)) => Seen::There(object),
        }
    }
}

#[derive(Default)]
struct Books {
    nodes: Option<BTreeMap<NodeName, Arc<NodeObject>>>,
    cninodes: Option<BTreeMap<NodeName, Arc<CniNodeObject>>>,
    wakes: BTreeMap<NodeName, watch::Sender<u64>>,
    appeared: Vec<NodeName>,
}

/// Shared, and never locked across an await.
#[derive(Clone)]
pub struct Directory {
    books: Arc<Mutex<Books>>,
    complete: Arc<watch::Sender<bool>>,
    /// Notified when a name appears that no keeper looks after.
    pub appeared: Arc<Notify>,
}

/// A change of one of the two lists.
#[derive(Debug, Clone)]
pub enum Change<T> {
    /// A complete list.
    Listed(Vec<T>),
    /// Added or changed.
    Applied(T),
    /// Deleted.
    Deleted(T),
}

impl Default for Directory {
    fn default() -> Self {
        Self {
            books: Arc::default(),
            complete: Arc::new(watch::Sender::new(false)),
            appeared: Arc::default(),
        }
    }
}

impl Directory {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a change of the Nodes in.
    pub fn nodes(&self, change: Change<NodeObject>) {
        let mut books = self.books();
        let touched = apply(&mut books.nodes, change, |n| n.metadata.name.parse().ok());
        books.wake(touched);
        self.tell(&books);
    }

    /// Takes a change of the CNINodes in.
    pub fn cninodes(&self, change: Change<CniNodeObject>) {
        let mut books = self.books();
        let first = books.cninodes.is_none();
        let mut touched = apply(&mut books.cninodes, change, |n| n.metadata.name.parse().ok());
        if first && let Some(nodes) = &books.nodes {
            // Until now every CNINode was unknown.
            touched.extend(nodes.keys().cloned());
        }
        books.wake(touched);
        self.tell(&books);
    }

    fn tell(&self, books: &Books) {
        let complete = books.nodes.is_some() && books.cninodes.is_some();
        self.complete.send_if_modified(|c| std::mem::replace(c, complete) != complete);
        if !books.appeared.is_empty() {
            self.appeared.notify_one();
        }
    }

    /// Both lists were read whole at least once.
    pub fn is_complete(&self) -> bool {
        let books = self.books();
        books.nodes.is_some() && books.cninodes.is_some()
    }

    /// Returns once both lists were read whole.
    pub async fn completed(&self) {
        let mut complete = self.complete.subscribe();
        // The sender lives as long as we do.
        let _changed = complete.wait_for(|complete| *complete).await;
    }

    /// What is known of a name; `None` before the Nodes were listed.
    pub fn view(&self, name: &NodeName) -> Option<NodeView> {
        let books = self.books();
        let nodes = books.nodes.as_ref()?;
        Some(NodeView {
            node: nodes.get(name).cloned(),
            cninode: books.cninodes.as_ref().map(|c| c.get(name).cloned()),
        })
    }

    /// Every Node; `None` before they were listed.
    pub fn node_objects(&self) -> Option<BTreeMap<NodeName, Arc<NodeObject>>> {
        self.books().nodes.clone()
    }

    /// The names of CNINodes that carry this instance's tag.
    pub fn cninode_of(&self, instance: &InstanceId) -> Option<NodeName> {
        let books = self.books();
        let of = |o: &CniNodeObject| o.instance().as_ref() == Some(instance);
        books.cninodes.iter().flatten().find(|(_, o)| of(o)).map(|(name, _)| name.clone())
    }

    /// All names.
    pub fn names(&self) -> BTreeSet<NodeName> {
        let books = self.books();
        books
            .nodes
            .iter()
            .flat_map(BTreeMap::keys)
            .chain(books.cninodes.iter().flat_map(BTreeMap::keys))
            .cloned()
            .collect()
    }

    /// Names that appeared since the last call, each with a receiver that changes whenever the name's objects do.
    pub fn take_appeared(&self) -> Vec<(NodeName, watch::Receiver<u64>)> {
        let mut books = self.books();
        let names = std::mem::take(&mut books.appeared);
        names
            .into_iter()
            .filter_map(|name| books.wakes.get(&name).map(|w| (name.clone(), w.subscribe())))
            .collect()
    }

    /// Wakes the keeper of a name, or of all names.
    pub fn wake(&self, name: Option<&NodeName>) {
        let books = self.books();
        match name {
            Some(name) => books.wakes.get(name).into_iter().for_each(bump),
            None => books.wakes.values().for_each(bump),
        }
    }

    /// The keeper of a name ends if neither object is there; otherwise it has to go on.
    pub fn retire(&self, name: &NodeName) -> bool {
        let mut books = self.books();
        let there = books.nodes.as_ref().is_none_or(|n| n.contains_key(name))
            || books.cninodes.as_ref().is_none_or(|c| c.contains_key(name));
        if !there {
            books.wakes.remove(name);
        }
        !there
    }
}

impl Books {
    fn wake(&mut self, names: BTreeSet<NodeName>) {
        for name in names {
            if let Some(wake) = self.wakes.get(&name) {
                bump(wake);
            } else {
                self.wakes.insert(name.clone(), watch::Sender::new(0));
                self.appeared.push(name);
            }
        }
    }
}

fn bump(wake: &watch::Sender<u64>) {
    wake.send_modify(|n| *n = n.wrapping_add(1));
}

/// Applies a change and returns the names it touched. Objects without a usable name cannot exist on an API server.
fn apply<T: PartialEq>(
    books: &mut Option<BTreeMap<NodeName, Arc<T>>>,
    change: Change<T>,
    name: impl Fn(&T) -> Option<NodeName>,
) -> BTreeSet<NodeName> {
    match change {
        Change::Listed(items) => {
            let new: BTreeMap<NodeName, Arc<T>> =
                items.into_iter().filter_map(|i| Some((name(&i)?, Arc::new(i)))).collect();
            let old = books.take().unwrap_or_default();
            let gone = old.keys().filter(|n| !new.contains_key(*n)).cloned();
            let changed =
                new.iter().filter(|(n, i)| old.get(*n) != Some(*i)).map(|(n, _)| n.clone());
            let touched = gone.chain(changed).collect();
            *books = Some(new);
            touched
        }
        Change::Applied(item) => {
            let (Some(books), Some(name)) = (books, name(&item)) else {
                return BTreeSet::new();
            };
            books.insert(name.clone(), Arc::new(item));
            BTreeSet::from([name])
        }
        Change::Deleted(item) => {
            let (Some(books), Some(name)) = (books, name(&item)) else {
                return BTreeSet::new();
            };
            books.remove(&name);
            BTreeSet::from([name])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> NodeObject {
        serde_json::from_value(serde_json::json!({"metadata": {"name": name}})).unwrap()
    }

    fn cninode(name: &str) -> CniNodeObject {
        serde_json::from_value(serde_json::json!({"metadata": {"name": name}})).unwrap()
    }

    fn name(text: &str) -> NodeName {
        text.parse().unwrap()
    }

    #[test]
    fn before_the_first_list_nothing_is_known_and_an_unlisted_cninode_is_unknown() {
        let directory = Directory::default();
        assert_eq!(directory.view(&name("a")), None);
        directory.nodes(Change::Applied(node("a")));
        assert_eq!(directory.view(&name("a")), None, "an event without a list is not a view");
        directory.nodes(Change::Listed(vec![node("a")]));
        assert_eq!(directory.view(&name("a")).unwrap().seen(), Seen::Unknown);
        directory.cninodes(Change::Listed(vec![]));
        assert_eq!(directory.view(&name("a")).unwrap().seen(), Seen::Absent);
        assert!(directory.is_complete());
    }

    #[test]
    fn keepers_are_asked_for_once_woken_by_changes_and_retired_when_both_objects_are_gone() {
        let directory = Directory::default();
        directory.nodes(Change::Listed(vec![node("a"), node("b")]));
        directory.cninodes(Change::Listed(vec![cninode("a")]));
        let mut appeared = directory.take_appeared();
        assert_eq!(appeared.iter().map(|(n, _)| n.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert!(directory.take_appeared().is_empty());
        let (_, wake) = &mut appeared[0];
        wake.mark_unchanged();
        directory.nodes(Change::Listed(vec![node("a"), node("b")]));
        assert!(!wake.has_changed().unwrap(), "nothing changed");
        directory.nodes(Change::Listed(vec![node("b")]));
        assert!(wake.has_changed().unwrap());
        assert!(!directory.retire(&name("a")), "the CNINode is still there");
        directory.cninodes(Change::Deleted(cninode("a")));
        assert!(directory.retire(&name("a")));
        directory.nodes(Change::Applied(node("a")));
        assert_eq!(directory.take_appeared().len(), 1);
    }
}
