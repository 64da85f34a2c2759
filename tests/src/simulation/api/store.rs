//! The objects of the API server, their versions, and every change that a watch may ask for.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use trunkline_core::time::Moment;

/// One change.
#[derive(Debug, Clone)]
pub struct Change {
    /// Its resourceVersion.
    pub rv: u64,
    /// When it was made.
    pub at: Moment,
    /// Path of the object.
    pub path: String,
    /// The object before.
    pub before: Option<Arc<Value>>,
    /// The object after.
    pub after: Option<Arc<Value>>,
}

/// What a list or watch is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// Pods whose `spec.nodeName` is this.
    PodsOfNode(String),
    /// All objects of a collection.
    All(String),
    /// The object of this path.
    One(String),
}

impl Selection {
    /// Reads path and query of a request.
    pub fn read(path: &str, query: &str) -> Self {
        let selector = query.split('&').find_map(|q| q.strip_prefix("fieldSelector="));
        let selector = selector.unwrap_or_default().replace("%3D", "=");
        if let Some(node) = selector.strip_prefix("spec.nodeName=") {
            return Self::PodsOfNode(node.to_owned());
        }
        match selector.strip_prefix("metadata.name=") {
            Some(name) => Self::One(format!("{path}/{name}")),
            None => Self::All(format!("{path}/")),
        }
    }

    fn takes(&self, path: &str, object: &Value) -> bool {
        match self {
            Self::PodsOfNode(node) => {
                path.contains("/pods/") && text(object, "/spec/nodeName") == node.as_str()
            }
            Self::All(folder) => path.starts_with(folder.as_str()),
            Self::One(one) => path == one,
        }
    }
}

/// The store.
#[derive(Debug, Default)]
pub struct Store {
    objects: BTreeMap<String, Arc<Value>>,
    changes: Vec<Change>,
    rv: u64,
    compacted: u64,
    uids: u64,
}

/// A write that the API server refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// 404.
    NotFound,
    /// 409: the resourceVersion or UID does not fit, or the object exists.
    Conflict,
}

impl Store {
    /// The newest version.
    pub fn rv(&self) -> u64 {
        self.rv
    }

    /// What is older than this can no longer be watched from.
    pub fn compacted(&self) -> u64 {
        self.compacted
    }

    /// Changes before the newest version can no longer be asked for.
    pub fn compact(&mut self) {
        self.compacted = self.rv;
    }

    /// An object, by its path.
    pub fn get(&self, path: &str) -> Option<Arc<Value>> {
        self.objects.get(path).cloned()
    }

    /// All pods.
    pub fn pods(&self) -> impl Iterator<Item = (&String, &Arc<Value>)> {
        self.objects.iter().filter(|(path, _)| path.contains("/pods/"))
    }

    /// What the selection holds at a version that is not older than the kept changes.
    pub fn list_at(&self, selection: &Selection, rv: u64) -> Vec<Arc<Value>> {
        let mut seen: BTreeMap<&str, &Arc<Value>> = self
            .objects
            .iter()
            .filter(|(path, object)| selection.takes(path, object))
            .map(|(path, object)| (path.as_str(), object))
            .collect();
        for change in self.after(rv).iter().rev() {
            let any = change.before.as_ref().or(change.after.as_ref());
            if !any.is_some_and(|object| selection.takes(&change.path, object)) {
                continue;
            }
            match &change.before {
                Some(before) => seen.insert(&change.path, before),
                None => seen.remove(change.path.as_str()),
            };
        }
        seen.into_values().cloned().collect()
    }

    /// The first change after a version that the selection takes; without one, the version up to which there is none.
    pub fn next_change(&self, selection: &Selection, rv: u64) -> Result<&Change, u64> {
        let after = self.after(rv);
        let found = after.iter().find(|change| {
            let any = change.after.as_ref().or(change.before.as_ref());
            any.is_some_and(|object| selection.takes(&change.path, object))
        });
        found.ok_or_else(|| after.last().map_or(rv, |last| last.rv))
    }

    /// How many changes there were that somebody may watch.
    pub fn moves(&self) -> usize {
        self.changes.len()
    }

    fn after(&self, rv: u64) -> &[Change] {
        let from = self.changes.partition_point(|change| change.rv <= rv);
        self.changes.get(from..).unwrap_or_default()
    }

    /// The newest version that existed at a moment.
    pub fn rv_at(&self, at: Moment) -> u64 {
        match self.changes.iter().rev().find(|change| change.at <= at) {
            Some(change) if self.changes.last().is_some_and(|last| last.rv == change.rv) => self.rv,
            Some(change) => change.rv,
            None => self.changes.first().map_or(self.rv, |first| first.rv.saturating_sub(1)),
        }
    }

    fn commit(&mut self, now: Moment, path: &str, after: Option<Value>) -> Option<Arc<Value>> {
        self.rv += 1;
        let rv = self.rv;
        let after = after.map(|mut object| {
            if let Some(meta) = object.pointer_mut("/metadata").and_then(Value::as_object_mut) {
                meta.insert("resourceVersion".into(), json!(rv.to_string()));
            }
            Arc::new(object)
        });
        let before = match &after {
            Some(object) => self.objects.insert(path.to_owned(), object.clone()),
            None => self.objects.remove(path),
        };
        // Nobody watches Leases, and they change every two seconds.
        if !path.contains("/leases/") {
            let (path, after) = (path.to_owned(), after.clone());
            self.changes.push(Change { rv, at: now, path, before, after });
        }
        after
    }

    /// Creates an object; gives it a UID unless it has one.
    pub fn create(
        &mut self,
        now: Moment,
        path: &str,
        mut object: Value,
    ) -> Result<Arc<Value>, Refused> {
        if self.objects.contains_key(path) {
            return Err(Refused::Conflict);
        }
        self.uids += 1;
        let uid = format!("00000000-0000-4000-8000-{:012x}", self.uids);
        if let Some(meta) = object.pointer_mut("/metadata").and_then(Value::as_object_mut) {
            meta.entry("uid").or_insert(json!(uid));
            meta.entry("creationTimestamp").or_insert(json!("2026-01-01T00:00:00Z"));
        }
        self.commit(now, path, Some(object)).ok_or(Refused::NotFound)
    }

    /// Replaces an object; the resourceVersion must fit where one is given.
    pub fn replace(
        &mut self,
        now: Moment,
        path: &str,
        object: Value,
    ) -> Result<Arc<Value>, Refused> {
        let held = self.objects.get(path).ok_or(Refused::NotFound)?;
        if differs(&object, held, "resourceVersion") {
            return Err(Refused::Conflict);
        }
        self.commit(now, path, Some(object)).ok_or(Refused::NotFound)
    }

    /// Merges a patch in; UID and resourceVersion in it must fit. An object that is being deleted goes with its last
    /// finalizer.
    pub fn merge(
        &mut self,
        now: Moment,
        path: &str,
        change: &Value,
    ) -> Result<Arc<Value>, Refused> {
        let held = self.objects.get(path).cloned().ok_or(Refused::NotFound)?;
        if differs(change, &held, "resourceVersion") || differs(change, &held, "uid") {
            return Err(Refused::Conflict);
        }
        let mut object = (*held).clone();
        merge(&mut object, change);
        if is_going(&object) && !has_finalizers(&object) && has_finalizers(&held) {
            self.commit(now, path, None);
            return Ok(held);
        }
        if object == *held {
            return Ok(held);
        }
        self.commit(now, path, Some(object)).ok_or(Refused::NotFound)
    }

    /// Marks an object for deletion; for a pod the kubelet does the rest.
    pub fn mark_deleted(&mut self, now: Moment, path: &str) {
        let stamp = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        let _gone_already = self.merge(now, path, &stamp);
    }

    /// Takes an object away at once, if it is of this UID.
    pub fn remove(&mut self, now: Moment, path: &str, uid: &str) -> Result<(), Refused> {
        let held = self.objects.get(path).ok_or(Refused::NotFound)?;
        if text(held, "/metadata/uid") != uid {
            return Err(Refused::Conflict);
        }
        if has_finalizers(held) {
            self.mark_deleted(now, path);
        } else {
            self.commit(now, path, None);
        }
        Ok(())
    }
}

/// What a path of field names leads to. Unlike [`Value::pointer`] it knows neither escapes nor array indexes, and so copies
/// nothing: this is asked for millions of times in a run.
pub fn field<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('/').skip(1).try_fold(object, |at, name| at.get(name))
}

/// A string in an object; empty if it is not there.
pub fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    field(object, path).and_then(Value::as_str).unwrap_or_default()
}

/// Whether it is being deleted.
pub fn is_going(object: &Value) -> bool {
    field(object, "/metadata/deletionTimestamp").is_some_and(|stamp| !stamp.is_null())
}

fn has_finalizers(object: &Value) -> bool {
    field(object, "/metadata/finalizers")
        .and_then(Value::as_array)
        .is_some_and(|list| !list.is_empty())
}

fn differs(asked: &Value, held: &Value, field: &str) -> bool {
    let pointer = format!("/metadata/{field}");
    let asked = text(asked, &pointer);
    !asked.is_empty() && asked != text(held, &pointer)
}

/// JSON merge patch (RFC 7396).
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(target) = target.as_object_mut() else { return };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(node: &str) -> Value {
        json!({"kind": "Pod", "metadata": {"name": "a"}, "spec": {"nodeName": node}})
    }

    #[test]
    fn a_list_of_an_older_version_is_as_it_was() {
        let mut store = Store::default();
        let path = "/api/v1/namespaces/shop/pods/a";
        let first = store.create(Moment(1), path, pod("n1")).unwrap();
        let rv = store.rv();
        store.merge(Moment(2), path, &json!({"status": {"phase": "Running"}})).unwrap();
        store.remove(Moment(3), path, text(&first, "/metadata/uid")).unwrap();
        let of = Selection::read("/api/v1/pods", "fieldSelector=spec.nodeName%3Dn1");
        assert!(store.list_at(&of, store.rv()).is_empty());
        assert_eq!(store.list_at(&of, rv), [first]);
        assert!(store.list_at(&of, 0).is_empty());
        let change = store.next_change(&of, rv).unwrap().clone();
        assert_eq!(text(change.after.as_ref().unwrap(), "/status/phase"), "Running");
        assert_eq!(store.rv_at(Moment(2)), rv + 1);
        let nodes = Selection::read("/api/v1/nodes", "");
        assert_eq!(store.next_change(&nodes, 0).err(), Some(store.rv()));
    }

    #[test]
    fn a_patch_with_another_uid_or_an_older_version_is_a_conflict() {
        let mut store = Store::default();
        let path = "/api/v1/namespaces/shop/pods/a";
        store.create(Moment(1), path, pod("n1")).unwrap();
        for meta in [json!({"uid": "other"}), json!({"resourceVersion": "77"})] {
            let change = json!({"metadata": meta});
            assert_eq!(store.merge(Moment(2), path, &change).err(), Some(Refused::Conflict));
        }
    }
}
