//! The faults in force: which one strikes which request, and how often.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tokio::sync::watch;
use tokio::time::Instant;

use super::model::{FaultKind, FaultSpec, FaultState, LogEntry, Match};

/// A request as far as matching is concerned.
#[derive(Debug, Clone)]
pub struct Ask {
    /// HTTP method.
    pub method: String,
    /// Path.
    pub path: String,
    /// Decoded query.
    pub query: String,
    /// User agent.
    pub user_agent: String,
    /// Subject of the bearer token.
    pub caller: String,
    /// Name of the pod that the token is bound to.
    pub pod: String,
    /// Value of `continue`.
    pub continues: Option<String>,
    /// It is a watch.
    pub watch: bool,
}

impl Ask {
    /// Reads a request's head.
    pub fn of(head: &http::request::Parts) -> Self {
        let header = |name| {
            head.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned()
        };
        let pairs = query_pairs(head.uri.query().unwrap_or_default());
        let value = |key: &str| pairs.iter().find(|(k, _)| k == key).map(|(_, v)| v.clone());
        let query: Vec<String> = pairs.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let bearer = header(http::header::AUTHORIZATION);
        let claims = bearer.strip_prefix("Bearer ").and_then(claims_of).unwrap_or_default();
        let claim = |path: &str| {
            claims.pointer(path).and_then(|v| v.as_str()).unwrap_or_default().to_owned()
        };
        Self {
            method: head.method.to_string(),
            path: head.uri.path().to_owned(),
            query: query.join("&"),
            user_agent: header(http::header::USER_AGENT),
            caller: claim("/sub"),
            pod: claim("/kubernetes.io/pod/name"),
            continues: value("continue").filter(|v| !v.is_empty()),
            watch: value("watch").is_some_and(|v| matches!(v.as_str(), "1" | "true" | "True")),
        }
    }

    fn matches(&self, by: &Match) -> bool {
        let within = |part: &Option<String>, text: &str| {
            part.as_deref().is_none_or(|part| text.contains(part))
        };
        by.method.as_deref().is_none_or(|m| m.eq_ignore_ascii_case(&self.method))
            && within(&by.path, &self.path)
            && by.path_end.as_deref().is_none_or(|end| self.path.ends_with(end))
            && within(&by.query, &self.query)
            && within(&by.user_agent, &self.user_agent)
            && within(&by.caller, &self.caller)
            && by.pod.as_deref().is_none_or(|pod| pod == self.pod)
    }
}

/// Splits and decodes a query.
pub fn query_pairs(query: &str) -> Vec<(String, String)> {
    query
        .split('&')
        .filter(|p| !p.is_empty())
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key), decode(value))
        })
        .collect()
}

/// Percent and plus decoding; bad escapes stay as they are.
fn decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        let escaped = || std::str::from_utf8(tail.get(..2)?).ok();
        match byte {
            b'+' => out.push(b' '),
            b'%' => match escaped().and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                Some(value) => {
                    out.push(value);
                    rest = tail.get(2..).unwrap_or_default();
                }
                None => out.push(byte),
            },
            other => out.push(other),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Percent-encodes everything that is not unreserved.
pub fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            for half in [byte >> 4, byte & 0xf] {
                out.extend(char::from_digit(u32::from(half), 16).map(|c| c.to_ascii_uppercase()));
            }
        }
    }
    out
}

/// The claims of a JWT, unverified.
fn claims_of(token: &str) -> Option<serde_json::Value> {
    let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    serde_json::from_slice(&payload).ok()
}

/// A fault that strikes.
#[derive(Debug, Clone)]
pub struct Strike {
    /// The fault's id.
    pub id: u64,
    /// What it does.
    pub kind: FaultKind,
}

impl Strike {
    /// `id:name`, for the log.
    pub fn label(&self) -> String {
        format!("{}:{}", self.id, self.kind.name())
    }
}

#[derive(Debug)]
struct Fault {
    spec: FaultSpec,
    since: Instant,
    skipped: u64,
    hits: u64,
}

impl Fault {
    fn exhausted(&self) -> bool {
        let over = |ms| self.since.elapsed() >= Duration::from_millis(ms);
        self.spec.count.is_some_and(|count| self.hits >= count)
            || self.spec.for_ms.is_some_and(over)
    }

    /// Counts a match; says whether it strikes.
    fn strikes(&mut self) -> bool {
        if self.exhausted() {
            return false;
        }
        if self.skipped < self.spec.skip {
            self.skipped += 1;
            return false;
        }
        self.hits += 1;
        true
    }
}

#[derive(Debug, Default)]
struct Books {
    next: u64,
    faults: BTreeMap<u64, Fault>,
    /// Continue tokens of pages that were forced.
    tokens: BTreeSet<String>,
    log: Vec<LogEntry>,
}

/// The faults, the forced tokens and the log.
#[derive(Debug, Default)]
pub struct Faults {
    books: Mutex<Books>,
    /// Changes with every fault that comes or goes: held requests and open watches look again.
    changes: watch::Sender<u64>,
}

impl Faults {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes whenever a fault comes or goes.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Adds a fault; returns its id.
    pub fn add(&self, spec: FaultSpec) -> u64 {
        let id = {
            let mut books = self.books();
            books.next += 1;
            let id = books.next;
            books.faults.insert(id, Fault { spec, since: Instant::now(), skipped: 0, hits: 0 });
            id
        };
        self.changes.send_modify(|n| *n += 1);
        id
    }

    /// Takes a fault away; says whether it was there.
    pub fn remove(&self, id: u64) -> bool {
        let removed = self.books().faults.remove(&id).is_some();
        self.changes.send_modify(|n| *n += 1);
        removed
    }

    /// Takes all faults away. Tokens of forced pages stay expired.
    pub fn clear(&self) {
        self.books().faults.clear();
        self.changes.send_modify(|n| *n += 1);
    }

    /// All faults.
    pub fn states(&self) -> Vec<FaultState> {
        let state = |(id, f): (&u64, &Fault)| FaultState {
            id: *id,
            spec: f.spec.clone(),
            hits: f.hits,
            exhausted: f.exhausted(),
        };
        self.books().faults.iter().map(state).collect()
    }

    /// Returns once a fault was taken away.
    pub async fn until_gone(&self, id: u64) {
        let mut changes = self.changes();
        while self.has(id) && changes.changed().await.is_ok() {}
    }

    /// Whether a fault is still there.
    pub fn has(&self, id: u64) -> bool {
        self.books().faults.contains_key(&id)
    }

    /// The faults that strike `ask` among those that `chosen` accepts, in the order in which they were added.
    pub fn strike(&self, ask: &Ask, chosen: impl Fn(&FaultKind) -> bool) -> Vec<Strike> {
        let mut books = self.books();
        let mut strikes = Vec::new();
        for (id, fault) in &mut books.faults {
            if chosen(&fault.spec.kind) && ask.matches(&fault.spec.matches) && fault.strikes() {
                strikes.push(Strike { id: *id, kind: fault.spec.kind.clone() });
            }
        }
        strikes
    }

    /// A strike had no effect after all.
    pub fn take_back(&self, id: u64) {
        if let Some(fault) = self.books().faults.get_mut(&id) {
            fault.hits = fault.hits.saturating_sub(1);
        }
    }

    /// A forced page handed out this token.
    pub fn token_given(&self, token: &str) {
        self.books().tokens.insert(token.to_owned());
    }

    /// Whether a request with this continue token is answered with 410, and by which fault. Tokens of forced pages are
    /// expired for good; others as long as a fault for forced pages is in force.
    pub fn expired(&self, ask: &Ask, token: &str) -> Option<String> {
        let books = self.books();
        let forced = books.faults.iter().find(|(_, f)| {
            matches!(f.spec.kind, FaultKind::ExpiredPages { .. }) && ask.matches(&f.spec.matches)
        });
        let follow = forced.is_some_and(|(_, f)| {
            matches!(f.spec.kind, FaultKind::ExpiredPages { follow: true, .. })
        });
        if follow && is_inconsistent(token) {
            return None;
        }
        let in_force = forced.filter(|(_, f)| !f.exhausted());
        if in_force.is_none() && !books.tokens.contains(token) {
            return None;
        }
        Some(
            forced.map_or_else(
                || "0:expired-pages".to_owned(),
                |(id, _)| format!("{id}:expired-pages"),
            ),
        )
    }

    /// Appends to the log.
    pub fn log(&self, ask: &Ask, status: Option<u16>, faults: Vec<String>, event: Option<String>) {
        let mut books = self.books();
        let seq = books.log.len() as u64 + 1;
        books.log.push(LogEntry {
            seq,
            time_ms: jiff::Timestamp::now().as_millisecond(),
            method: ask.method.clone(),
            path: ask.path.clone(),
            query: ask.query.clone(),
            user_agent: ask.user_agent.clone(),
            caller: ask.caller.clone(),
            pod: ask.pod.clone(),
            status,
            faults,
            event,
        });
    }

    /// All lines with `seq >= from`.
    pub fn lines(&self, from: u64) -> Vec<LogEntry> {
        let skip = usize::try_from(from.saturating_sub(1)).unwrap_or(usize::MAX);
        self.books().log.iter().skip(skip).cloned().collect()
    }
}

/// A continue token of the API server, decoded.
fn token_json(token: &str) -> Option<serde_json::Map<String, serde_json::Value>> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token.trim_end_matches('=')).ok()?).ok()
}

/// Whether a token says "the rest, at whatever version" (`kube.md` §2.3).
fn is_inconsistent(token: &str) -> bool {
    token_json(token).is_some_and(|t| t.get("rv").and_then(serde_json::Value::as_i64) == Some(-1))
}

/// The `-1` token for the rest after `token`, as the real server makes it; a token that cannot be read gives itself.
pub fn inconsistent_token(token: &str) -> String {
    let Some(mut json) = token_json(token) else {
        return token.to_owned();
    };
    json.insert("rv".to_owned(), serde_json::json!(-1));
    URL_SAFE_NO_PAD.encode(serde_json::Value::Object(json).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(method: &str, uri: &str) -> Ask {
        let request = http::Request::builder().method(method).uri(uri).body(()).unwrap();
        Ask::of(&request.into_parts().0)
    }

    #[test]
    fn the_agents_lists_are_told_by_their_selector() {
        let agent =
            ask("GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-1&resourceVersion=7");
        let other = ask("GET", "/api/v1/pods?fieldSelector=metadata.name%3Dnode-1");
        assert!(agent.matches(&Match::agents()));
        assert!(agent.matches(&Match::agent_of("node-1")));
        assert!(!agent.matches(&Match::agent_of("node-2")));
        assert!(!other.matches(&Match::agents()));
        assert!(!agent.watch);
        assert!(ask("GET", "/api/v1/pods?watch=true").watch);
    }

    #[test]
    fn count_and_skip_say_when_a_fault_strikes() {
        let faults = Faults::default();
        let spec = FaultSpec { skip: 1, ..FaultSpec::times(Match::default(), FaultKind::Cut, 2) };
        let id = faults.add(spec);
        let struck: Vec<bool> =
            (0..5).map(|_| !faults.strike(&ask("GET", "/x"), |_| true).is_empty()).collect();
        assert_eq!(struck, [false, true, true, false, false]);
        faults.take_back(id);
        assert_eq!(faults.states()[0].hits, 1);
    }

    #[test]
    fn a_period_ends_by_itself() {
        let strikes = |period| {
            let faults = Faults::default();
            faults.add(FaultSpec::period(Match::default(), FaultKind::Cut, period));
            !faults.strike(&ask("GET", "/x"), |_| true).is_empty()
        };
        assert!(strikes(Duration::from_secs(3_600)));
        assert!(!strikes(Duration::ZERO));
    }

    #[test]
    fn forced_tokens_stay_expired_and_only_the_minus_one_token_may_be_followed() {
        let faults = Faults::default();
        let token =
            URL_SAFE_NO_PAD.encode(r#"{"v":"meta.k8s.io/v1","rv":102410,"start":"ns/p3\u0000"}"#);
        let page2 = ask("GET", &format!("/api/v1/pods?continue={token}"));
        assert_eq!(faults.expired(&page2, &token), None);
        let kind = FaultKind::ExpiredPages { limit: 3, follow: true };
        let id = faults.add(FaultSpec::new(Match::default(), kind));
        assert!(faults.expired(&page2, &token).is_some());
        let rest = inconsistent_token(&token);
        assert!(is_inconsistent(&rest) && !is_inconsistent(&token));
        assert_eq!(faults.expired(&page2, &rest), None);
        faults.token_given(&token);
        faults.remove(id);
        assert!(faults.expired(&page2, &token).is_some());
    }

    #[test]
    fn callers_are_read_from_their_token() {
        let claims =
            r#"{"sub":"system:serviceaccount:ns:agent","kubernetes.io":{"pod":{"name":"a-1"}}}"#;
        let payload = URL_SAFE_NO_PAD.encode(claims);
        let request = http::Request::builder()
            .uri("/x")
            .header("authorization", format!("Bearer h.{payload}.s"))
            .body(())
            .unwrap();
        let ask = Ask::of(&request.into_parts().0);
        assert_eq!(
            (ask.caller.as_str(), ask.pod.as_str()),
            ("system:serviceaccount:ns:agent", "a-1")
        );
        assert!(ask.matches(&Match::of_pod("a-1")) && !ask.matches(&Match::of_pod("a")));
    }

    #[test]
    fn queries_survive_decoding_and_encoding() {
        let pairs = query_pairs("a=b%2Cc&d=%zz&e=f+g&h");
        let expected = [("a", "b,c"), ("d", "%zz"), ("e", "f g"), ("h", "")];
        assert_eq!(pairs, expected.map(|(k, v)| (k.to_owned(), v.to_owned())));
        assert_eq!(decode(&encode("a=b c/%ü")), "a=b c/%ü");
    }
}
