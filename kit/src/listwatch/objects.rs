//! List-watch of any kind, whole objects in a minimal struct of the consumer's.

use std::marker::PhantomData;

use serde::de::DeserializeOwned;

use super::{Resource, Undecodable};

/// Objects of one kind, cluster-wide, in one namespace, or one by name.
#[derive(Debug, Clone)]
pub struct Objects<T> {
    name: &'static str,
    path: String,
    kind: String,
    selector: Option<String>,
    item: PhantomData<fn() -> T>,
}

/// All objects of a kind. `path` such as `/api/v1/nodes`, `kind` such as `Node`.
pub fn cluster_objects<T>(name: &'static str, path: &str, kind: &str) -> Objects<T> {
    Objects { name, path: path.into(), kind: kind.into(), selector: None, item: PhantomData }
}

/// All objects of a kind in one namespace. `group` is `/api/v1` or `/apis/<group>/<version>`, `resource` the plural.
pub fn namespaced_objects<T>(
    name: &'static str,
    group: &str,
    namespace: &str,
    resource: &str,
    kind: &str,
) -> Objects<T> {
    let path = format!("{group}/namespaces/{namespace}/{resource}");
    Objects { name, path, kind: kind.into(), selector: None, item: PhantomData }
}

/// One object of a namespace, present or not (`list` and `watch` with `metadata.name`; RBAC may name it).
pub fn named_object<T>(
    name: &'static str,
    group: &str,
    namespace: &str,
    resource: &str,
    kind: &str,
    object: &str,
) -> Objects<T> {
    let mut objects = namespaced_objects(name, group, namespace, resource, kind);
    objects.selector = Some(format!("metadata.name={object}"));
    objects
}

impl<T: DeserializeOwned + Send + 'static> Resource for Objects<T> {
    type Wire = T;
    type Item = T;

    fn name(&self) -> &'static str {
        self.name
    }

    fn path(&self) -> String {
        self.path.clone()
    }

    fn kind(&self) -> &str {
        &self.kind
    }

    fn field_selector(&self) -> Option<String> {
        self.selector.clone()
    }

    fn convert(&self, wire: T) -> Result<T, Undecodable> {
        Ok(wire)
    }
}
