//! Changes to answers of the API server: lists, Status answers and watch events, all JSON.

use serde_json::{Map, Value, json};

use super::fault::inconsistent_token;
use super::model::{EmptyVersion, FaultKind};

/// The query with `limit` set to at most `limit`.
pub fn with_limit(pairs: &[(String, String)], limit: u32) -> String {
    let mut kept: Vec<String> = Vec::with_capacity(pairs.len() + 1);
    let mut limit = limit;
    for (key, value) in pairs {
        if key == "limit" {
            limit = value.parse().ok().filter(|own| (1..limit).contains(own)).unwrap_or(limit);
        } else {
            kept.push(format!("{}={}", super::fault::encode(key), super::fault::encode(value)));
        }
    }
    kept.push(format!("limit={limit}"));
    kept.join("&")
}

/// A list answer, or `None` if the body is something else.
pub fn as_list(body: &[u8]) -> Option<Map<String, Value>> {
    let list: Map<String, Value> = serde_json::from_slice(body).ok()?;
    let is_list = list.get("kind").and_then(Value::as_str).is_some_and(|k| k.ends_with("List"));
    is_list.then_some(list)
}

/// The list's continue token, if it is not its last page.
pub fn continue_token(list: &Map<String, Value>) -> Option<&str> {
    list.get("metadata")?.get("continue")?.as_str().filter(|t| !t.is_empty())
}

/// Applies a fault to a list; says whether it changed anything.
pub fn change_list(list: &mut Map<String, Value>, kind: &FaultKind) -> bool {
    match kind {
        FaultKind::EmptyList { version } => {
            list.insert("items".to_owned(), json!([]));
            if let Some(metadata) = list.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.remove("continue");
                metadata.remove("remainingItemCount");
                let current =
                    metadata.get("resourceVersion").and_then(Value::as_str).unwrap_or("1");
                let version = emptied_version(version, current);
                metadata.insert("resourceVersion".to_owned(), json!(version));
            }
            true
        }
        FaultKind::DropItem { name } => {
            let Some(items) = list.get_mut("items").and_then(Value::as_array_mut) else {
                return false;
            };
            let dropped = items.iter().position(|item| {
                name.is_none() || text_at(item, "/metadata/name") == name.as_deref()
            });
            dropped.map(|at| items.remove(at)).is_some()
        }
        FaultKind::EmptyContinue => {
            let whole = continue_token(list).is_none();
            let metadata = list.get_mut("metadata").and_then(Value::as_object_mut);
            metadata.filter(|_| whole).is_some_and(|metadata| {
                metadata.insert("continue".to_owned(), json!(""));
                true
            })
        }
        _ => false,
    }
}

fn emptied_version(version: &EmptyVersion, current: &str) -> String {
    match version {
        EmptyVersion::Current => current.to_owned(),
        EmptyVersion::Given(given) => given.clone(),
        EmptyVersion::Behind(by) => {
            current.parse::<u64>().map_or(1, |v| v.saturating_sub(*by).max(1)).to_string()
        }
    }
}

fn text_at<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer).and_then(Value::as_str)
}

/// The 410 that the API server gives for an expired continue token.
pub fn expired_page(token: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1",
        "metadata": {"continue": inconsistent_token(token)},
        "status": "Failure",
        "message": "The provided continue parameter is too old to display a consistent list result. You can start a new \
                    list without the continue parameter, or use the continue token in this response to retrieve the \
                    remainder of the results. Continuing with the provided token results in an inconsistent list - \
                    objects that were created, modified, or deleted between the time the first chunk was returned and \
                    now may show up in the list.",
        "reason": "Expired", "code": 410,
    })
}

/// A refusal.
pub fn refusal(code: u16, reason: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "refused by the fault proxy", "reason": reason, "code": code,
    })
}

/// The API server's own answer to a GET of an object that does not exist, from the request's path.
pub fn not_found(path: &str) -> Value {
    let mut parts = path.rsplit('/');
    let name = parts.next().unwrap_or_default();
    let resource = parts.next().unwrap_or_default();
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": format!("{resource} \"{name}\" not found"),
        "reason": "NotFound", "details": {"name": name, "kind": resource}, "code": 404,
    })
}

/// The ERROR event of a watch whose resourceVersion is too old, with its line feed.
pub fn expired_watch() -> Vec<u8> {
    let event = json!({"type": "ERROR", "object": {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "too old resource version", "reason": "Expired", "code": 410,
    }});
    let mut line = event.to_string().into_bytes();
    line.push(b'\n');
    line
}

/// A watch event as far as faults look at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventHead {
    /// `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK` or `ERROR`.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// `TYPE namespace/name uid`, for the log.
    pub label: String,
}

/// Reads a line of a watch; `None` if it is not an event.
pub fn event_head(line: &[u8]) -> Option<EventHead> {
    let event: Value = serde_json::from_slice(line).ok()?;
    let kind = text_at(&event, "/type")?.to_owned();
    let of = |pointer| text_at(&event, pointer).unwrap_or_default();
    let name = of("/object/metadata/name").to_owned();
    let label = format!(
        "{kind} {}/{name} {}",
        of("/object/metadata/namespace"),
        of("/object/metadata/uid")
    );
    Some(EventHead { kind, name, label })
}

/// Whether a fault keeps this event back.
pub fn keeps_back(kind: &FaultKind, event: &EventHead) -> bool {
    match kind {
        FaultKind::SwallowDelete { name } => {
            event.kind == "DELETED" && name.as_ref().is_none_or(|n| *n == event.name)
        }
        FaultKind::SilentWatch => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> Map<String, Value> {
        as_list(
            br#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"500","continue":"x","remainingItemCount":4},
                "items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}"#,
        )
        .unwrap()
    }

    #[test]
    fn an_emptied_list_looks_complete() {
        for (version, expected) in [
            (EmptyVersion::Current, "500"),
            (EmptyVersion::Behind(100), "400"),
            (EmptyVersion::Behind(1000), "1"),
            (EmptyVersion::Given("7".to_owned()), "7"),
        ] {
            let mut list = list();
            assert!(change_list(&mut list, &FaultKind::EmptyList { version }));
            assert_eq!(list["items"], json!([]));
            assert_eq!(list["metadata"], json!({"resourceVersion": expected}));
            assert_eq!(continue_token(&list), None);
        }
    }

    #[test]
    fn one_item_is_dropped_by_name_or_the_first() {
        let names = |list: &Map<String, Value>| list["items"].to_string();
        let mut by_name = list();
        assert!(change_list(&mut by_name, &FaultKind::DropItem { name: Some("b".to_owned()) }));
        assert!(names(&by_name).contains("\"a\"") && !names(&by_name).contains("\"b\""));
        let mut first = list();
        assert!(change_list(&mut first, &FaultKind::DropItem { name: None }));
        assert!(!names(&first).contains("\"a\""));
        assert!(!change_list(&mut list(), &FaultKind::DropItem { name: Some("z".to_owned()) }));
    }

    #[test]
    fn an_empty_continue_token_is_put_on_a_last_page_only() {
        let mut list = list();
        assert!(!change_list(&mut list, &FaultKind::EmptyContinue));
        list["metadata"].as_object_mut().unwrap().remove("continue");
        assert!(change_list(&mut list, &FaultKind::EmptyContinue));
        assert_eq!(list["metadata"]["continue"], "");
        assert_eq!(list["items"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn a_smaller_limit_of_the_client_is_kept() {
        let pairs = |text| super::super::fault::query_pairs(text);
        assert_eq!(
            with_limit(&pairs("fieldSelector=spec.nodeName%3Dn"), 3),
            "fieldSelector=spec.nodeName%3Dn&limit=3"
        );
        assert_eq!(with_limit(&pairs("limit=500"), 3), "limit=3");
        assert_eq!(with_limit(&pairs("limit=2"), 3), "limit=2");
        assert_eq!(with_limit(&pairs("limit=0"), 3), "limit=3");
    }

    #[test]
    fn a_made_up_not_found_names_kind_and_object() {
        let status = not_found("/api/v1/namespaces/default/pods/web-0");
        assert_eq!(status["details"], json!({"name": "web-0", "kind": "pods"}));
        assert_eq!(status["message"], json!("pods \"web-0\" not found"));
        assert_eq!((&status["reason"], &status["code"]), (&json!("NotFound"), &json!(404)));
    }

    #[test]
    fn only_deletes_are_swallowed() {
        let line = |kind: &str| {
            format!(
                r#"{{"type":"{kind}","object":{{"metadata":{{"name":"p","namespace":"ns","uid":"u"}}}}}}"#
            )
        };
        let deleted = event_head(line("DELETED").as_bytes()).unwrap();
        let modified = event_head(line("MODIFIED").as_bytes()).unwrap();
        let any = FaultKind::SwallowDelete { name: None };
        let other = FaultKind::SwallowDelete { name: Some("q".to_owned()) };
        assert!(keeps_back(&any, &deleted) && !keeps_back(&any, &modified));
        assert!(!keeps_back(&other, &deleted));
        assert_eq!(deleted.label, "DELETED ns/p u");
        assert_eq!(event_head(b"not json"), None);
    }
}
