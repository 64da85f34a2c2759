//! The Lease object as far as the election reads and writes it. The object is changed in place, so that whatever else
//! it carries stays.

use serde_json::{Map, Value, json};
use std::time::Duration;

use super::{LEADER_ADDRESS, LEADER_HOLDER, LeaseSettings};

/// A Lease as the API server sent it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Record(pub(super) Value);

impl Record {
    fn spec(&self, field: &str) -> Option<&Value> {
        self.0.get("spec")?.get(field)
    }

    /// The holder; `None` if nobody holds it.
    pub(super) fn holder(&self) -> Option<&str> {
        self.spec("holderIdentity")?.as_str().filter(|h| !h.is_empty())
    }

    /// How long the holder's lease is valid after the record was seen to change.
    pub(super) fn duration(&self) -> Option<Duration> {
        self.spec("leaseDurationSeconds")?.as_u64().filter(|s| *s > 0).map(Duration::from_secs)
    }

    /// How often the holder changed.
    pub(super) fn transitions(&self) -> u64 {
        self.spec("leaseTransitions").and_then(Value::as_u64).unwrap_or_default()
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.0.get("metadata")?.get("annotations")?.get(key)?.as_str()
    }

    /// The leader's address, if the holder itself wrote it.
    pub(super) fn address(&self) -> Option<&str> {
        let holder = self.holder()?;
        self.annotation(LEADER_HOLDER).filter(|h| *h == holder)?;
        self.annotation(LEADER_ADDRESS)
    }

    /// The part whose change shows that somebody wrote: the spec.
    pub(super) fn observable(&self) -> Option<&Value> {
        self.0.get("spec")
    }

    /// A Lease that does not exist yet, held by nobody.
    pub(super) fn absent(settings: &LeaseSettings) -> Self {
        Self(json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": settings.name, "namespace": settings.namespace},
            "spec": {},
        }))
    }

    /// The record with us as its holder. Times are for people and for other implementations; we never compare them.
    pub(super) fn held_by_us(&self, settings: &LeaseSettings) -> Self {
        let mut next = self.clone();
        let now = micro_time();
        let renewing = self.holder() == Some(settings.identity.as_str());
        let first = self.holder().is_none() && self.spec("leaseTransitions").is_none();
        let transitions =
            if renewing || first { self.transitions() } else { self.transitions() + 1 };
        if let Some(spec) = object(&mut next.0, "spec") {
            spec.insert("holderIdentity".into(), json!(settings.identity));
            spec.insert(
                "leaseDurationSeconds".into(),
                json!(settings.lease_duration.as_secs().max(1)),
            );
            spec.insert("leaseTransitions".into(), json!(transitions));
            if !renewing {
                spec.insert("acquireTime".into(), json!(now));
            }
            spec.insert("renewTime".into(), json!(now));
        }
        if let Some(annotations) =
            object(&mut next.0, "metadata").and_then(|m| object_in(m, "annotations"))
        {
            annotations.insert(LEADER_HOLDER.into(), json!(settings.identity));
            match &settings.address {
                Some(address) => annotations.insert(LEADER_ADDRESS.into(), json!(address)),
                None => annotations.remove(LEADER_ADDRESS),
            };
        }
        next
    }

    /// The record with nobody as its holder.
    pub(super) fn released(&self) -> Self {
        let mut next = self.clone();
        if let Some(spec) = object(&mut next.0, "spec") {
            spec.remove("holderIdentity");
            spec.insert("leaseDurationSeconds".into(), json!(1));
            spec.insert("renewTime".into(), json!(micro_time()));
        }
        if let Some(annotations) =
            object(&mut next.0, "metadata").and_then(|m| object_in(m, "annotations"))
        {
            annotations.remove(LEADER_HOLDER);
            annotations.remove(LEADER_ADDRESS);
        }
        next
    }
}

fn object<'a>(value: &'a mut Value, key: &str) -> Option<&'a mut Map<String, Value>> {
    object_in(value.as_object_mut()?, key)
}

fn object_in<'a>(map: &'a mut Map<String, Value>, key: &str) -> Option<&'a mut Map<String, Value>> {
    let slot = map.entry(key).or_insert(Value::Null);
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    slot.as_object_mut()
}

/// `metav1.MicroTime` of now, UTC.
fn micro_time() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}
