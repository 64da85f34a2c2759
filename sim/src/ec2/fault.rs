//! Fault injections (`ec2.md` §14): which call, how often, and what happens to it.

use rand::Rng;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};

use super::error::ApiError;
use super::params::Params;

/// A fault to inject. A call is a *candidate* if action, resource and caller match. Of the candidates it fires on those
/// from the `nth` on, every `every`-th of them, with `probability`, at most `count` times and for at most `for_ms`.
/// Several faults may fire on one call; the first refusal wins.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// Name; made up if empty. Adding a fault with a known name replaces that one.
    #[serde(default)]
    pub id: String,
    /// Action; `*` at the end stands for any rest.
    pub action: String,
    /// Only calls of which a parameter has this value (an ENI id, an association id, …).
    #[serde(default)]
    pub resource: Option<String>,
    /// Only calls of this access key id.
    #[serde(default)]
    pub caller: Option<String>,
    /// First candidate that is hit, from 1.
    #[serde(default)]
    pub nth: Option<u64>,
    /// Every so many candidates.
    #[serde(default)]
    pub every: Option<u64>,
    /// How often at most.
    #[serde(default)]
    pub count: Option<u64>,
    /// Chance of each hit, 0 to 1.
    #[serde(default)]
    pub probability: Option<f64>,
    /// For how long, ms.
    #[serde(default)]
    pub for_ms: Option<u64>,
    /// What happens.
    #[serde(flatten)]
    pub kind: FaultKind,
}

impl Fault {
    /// A fault that hits every call of `action`.
    pub fn on(action: &str, kind: FaultKind) -> Self {
        Self {
            id: String::new(),
            action: action.to_owned(),
            resource: None,
            caller: None,
            nth: None,
            every: None,
            count: None,
            probability: None,
            for_ms: None,
            kind,
        }
    }

    /// The same, at most `count` times.
    #[must_use]
    pub fn times(mut self, count: u64) -> Self {
        self.count = Some(count);
        self
    }

    /// The same, from the `nth` candidate on.
    #[must_use]
    pub fn from_nth(mut self, nth: u64) -> Self {
        self.nth = Some(nth);
        self
    }

    /// The same, only for calls that name this id.
    #[must_use]
    pub fn naming(mut self, resource: &str) -> Self {
        self.resource = Some(resource.to_owned());
        self
    }
}

/// What happens to a call. Numbers as in `ec2.md` §14.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum FaultKind {
    /// 2: `RequestLimitExceeded`; nothing was done.
    Throttle {
        /// 503 or 400.
        #[serde(default = "status_503")]
        status: u16,
        /// `x-amz-retry-after`, ms.
        #[serde(default)]
        retry_after_ms: Option<u64>,
    },
    /// 3: the effect happens, the connection is closed without a reply (at once, or after a stall).
    LoseReply {
        /// Stall before the close, ms.
        #[serde(default)]
        stall_ms: u64,
    },
    /// 4, 10 to 13, 22: refused before any effect.
    Error {
        /// HTTP status.
        #[serde(default = "status_500")]
        status: u16,
        /// Error code; an empty one leaves the whole body empty.
        #[serde(default = "internal_error")]
        code: String,
        /// Message.
        #[serde(default)]
        message: String,
    },
    /// 5: the effect happens, then an error is answered.
    CommitThenError {
        /// HTTP status.
        #[serde(default = "status_500")]
        status: u16,
        /// Error code.
        #[serde(default = "internal_error")]
        code: String,
    },
    /// 6, 7, 8: what this call changes becomes visible later than it would.
    Lag {
        /// By id, ms more.
        #[serde(default)]
        by_id_ms: u64,
        /// In lists, ms more.
        #[serde(default)]
        list_ms: u64,
    },
    /// 7: this describe is answered by a replica that is so far behind.
    Stale {
        /// Age, ms.
        age_ms: u64,
    },
    /// 9: `InvalidVlanId.Duplicate` for the VLAN that was asked for; nothing was done.
    VlanDuplicate,
    /// 14: "currently in use" as `InvalidParameterValue`, or as `InvalidNetworkInterface.InUse`.
    InUse {
        /// The documented code instead of the seen one.
        #[serde(default)]
        documented: bool,
    },
    /// 15: Disassociate answers `InvalidAssociationID.NotFound`.
    AssociationNotFound {
        /// The association is in truth removed by this very call; else it stays.
        #[serde(default)]
        removed: bool,
    },
    /// 15: Disassociate answers 200, VLAN and slot stay busy.
    SlotBusy {
        /// For so long, ms.
        ms: u64,
    },
    /// 16: the call's client token is not remembered (and not looked up).
    ForgetToken,
    /// 17: the attachment stays `attaching`.
    AttachStuck {
        /// For so long, ms.
        ms: u64,
    },
    /// 20: paging goes wrong.
    Page {
        /// How.
        how: PageFault,
    },
    /// 21: 200 with a body that ends early.
    CutBody {
        /// Share of the body that is sent, 0 to 100.
        percent: u8,
        /// The connection is closed in mid body; else the framing is valid.
        #[serde(default)]
        bad_framing: bool,
    },
    /// 21, 22: after the effect, this very body.
    Body {
        /// HTTP status.
        #[serde(default = "status_200")]
        status: u16,
        /// The body.
        body: String,
        /// `content-type`.
        #[serde(default = "content_type")]
        content_type: String,
    },
    /// 18, 21, S32: these elements are missing from the reply.
    Omit {
        /// Element names.
        elements: Vec<String>,
    },
    /// 23: the `Date` header is off.
    Date {
        /// By so many seconds.
        offset_s: i64,
    },
    /// 24: the call takes longer, before its effect.
    Slow {
        /// By so much, ms.
        ms: u64,
    },
    /// The call is held before its effect until this fault is taken away, and takes effect then, whether or not its
    /// client is still there: the late call of a leader that was killed or deposed.
    Hold,
    /// 7, 18: describes show neither these ENIs nor what hangs on them, as a reboot does for a while (S07).
    Hide {
        /// ENI ids.
        enis: Vec<String>,
    },
    /// 24: the body comes in small pieces, over this time.
    Drip {
        /// How long it takes, ms.
        ms: u64,
    },
    /// Never answered, and nothing done: the connection hangs, then closes.
    Hang {
        /// For so long, ms.
        ms: u64,
    },
}

/// How paging goes wrong (§14.20).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PageFault {
    /// An empty page that carries a token which goes on where this page began.
    Empty,
    /// `<nextToken/>` on the last page.
    EmptyToken,
    /// The token that the request carried comes back, with nothing more behind it.
    RepeatToken,
    /// The first item of the page is left out.
    SkipItem,
    /// The first item of the page is shown twice.
    DoubleItem,
    /// Half a page, with a token for the rest.
    Short,
}

fn status_200() -> u16 {
    200
}
fn status_500() -> u16 {
    500
}
fn status_503() -> u16 {
    503
}
fn internal_error() -> String {
    "InternalError".into()
}
fn content_type() -> String {
    "text/xml;charset=UTF-8".into()
}

impl FaultKind {
    /// Its name in JSON, for the log.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Throttle { .. } => "throttle",
            Self::LoseReply { .. } => "lose-reply",
            Self::Error { .. } => "error",
            Self::CommitThenError { .. } => "commit-then-error",
            Self::Lag { .. } => "lag",
            Self::Stale { .. } => "stale",
            Self::VlanDuplicate => "vlan-duplicate",
            Self::InUse { .. } => "in-use",
            Self::AssociationNotFound { .. } => "association-not-found",
            Self::SlotBusy { .. } => "slot-busy",
            Self::ForgetToken => "forget-token",
            Self::AttachStuck { .. } => "attach-stuck",
            Self::Page { .. } => "page",
            Self::CutBody { .. } => "cut-body",
            Self::Body { .. } => "body",
            Self::Omit { .. } => "omit",
            Self::Date { .. } => "date",
            Self::Slow { .. } => "slow",
            Self::Hold => "hold",
            Self::Hide { .. } => "hide",
            Self::Drip { .. } => "drip",
            Self::Hang { .. } => "hang",
        }
    }

    /// The refusal, if this kind refuses the call before it has any effect.
    fn refusal(&self, params: &Params) -> Option<ApiError> {
        match self {
            Self::Throttle { status, .. } => {
                Some(ApiError { status: *status, ..ApiError::throttled() })
            }
            Self::Error { status, code, message } => {
                let message =
                    if message.is_empty() { "An internal error has occurred" } else { message };
                Some(ApiError::new(*status, code, message))
            }
            Self::VlanDuplicate => {
                let vlan = params.all().get("VlanId").and_then(|v| v.parse().ok()).unwrap_or(0);
                Some(ApiError::vlan_in_use(vlan))
            }
            Self::InUse { documented } => {
                let id = params.all().get("NetworkInterfaceId").map_or("", String::as_str);
                Some(if *documented {
                    ApiError::bad(
                        "InvalidNetworkInterface.InUse",
                        format!("Interface: [{id}] in use."),
                    )
                } else {
                    ApiError::value(format!("Network interface '{id}' is currently in use."))
                })
            }
            Self::AssociationNotFound { removed: false } => {
                let id = params.all().get("AssociationId").map_or("", String::as_str);
                Some(ApiError::no_association(id))
            }
            _ => None,
        }
    }
}

/// Does `pattern`, which may end in `*`, cover `name`?
pub(crate) fn covers(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => pattern == name,
    }
}

#[derive(Debug)]
struct Armed {
    fault: Fault,
    since: u64,
    candidates: u64,
    fired: u64,
}

/// The faults that are set.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    armed: Vec<Armed>,
    named: u64,
}

/// The faults that hit one call.
#[derive(Debug, Default)]
pub(crate) struct Fired(Vec<(String, FaultKind)>);

impl Faults {
    /// Sets a fault and answers its name.
    pub(crate) fn add(&mut self, mut fault: Fault, now: u64) -> String {
        if fault.id.is_empty() {
            self.named += 1;
            fault.id = format!("fault-{}", self.named);
        }
        let id = fault.id.clone();
        self.armed.retain(|a| a.fault.id != id);
        self.armed.push(Armed { fault, since: now, candidates: 0, fired: 0 });
        id
    }

    /// Takes one fault away, or all.
    pub(crate) fn clear(&mut self, id: Option<&str>) {
        self.armed.retain(|a| id.is_some_and(|id| a.fault.id != id));
    }

    /// Whether a fault of this name is set.
    pub(crate) fn has(&self, id: &str) -> bool {
        self.armed.iter().any(|a| a.fault.id == id)
    }

    /// The faults that are set, each with how often it fired.
    pub(crate) fn list(&self) -> Vec<(Fault, u64)> {
        self.armed.iter().map(|a| (a.fault.clone(), a.fired)).collect()
    }

    /// The faults that hit this call.
    pub(crate) fn fire(
        &mut self,
        action: &str,
        params: &Params,
        caller: &str,
        now: u64,
        rng: &mut StdRng,
    ) -> Fired {
        let mut fired = Fired::default();
        for armed in &mut self.armed {
            if armed.is_candidate(action, params, caller) && armed.hits(now, rng) {
                armed.fired += 1;
                fired.0.push((armed.fault.id.clone(), armed.fault.kind.clone()));
            }
        }
        fired
    }
}

impl Armed {
    fn is_candidate(&self, action: &str, params: &Params, caller: &str) -> bool {
        let fault = &self.fault;
        covers(&fault.action, action)
            && fault.caller.as_deref().is_none_or(|c| c == caller)
            && fault
                .resource
                .as_deref()
                .is_none_or(|wanted| params.all().values().any(|value| value == wanted))
    }

    fn hits(&mut self, now: u64, rng: &mut StdRng) -> bool {
        let fault = &self.fault;
        self.candidates += 1;
        let past = self.candidates.checked_sub(fault.nth.unwrap_or(1).max(1));
        past.is_some_and(|past| past.is_multiple_of(fault.every.unwrap_or(1).max(1)))
            && fault.count.is_none_or(|count| self.fired < count)
            && fault.for_ms.is_none_or(|ms| now < self.since + ms)
            && fault.probability.is_none_or(|p| rng.random_bool(p.clamp(0.0, 1.0)))
    }
}

impl Fired {
    /// `id:kind` of each.
    pub(crate) fn names(&self) -> Vec<String> {
        self.0.iter().map(|(id, kind)| format!("{id}:{}", kind.name())).collect()
    }

    /// The name of the fault that holds the call, if one does.
    pub(crate) fn held_by(&self) -> Option<String> {
        let hold = self.0.iter().find(|(_, kind)| *kind == FaultKind::Hold);
        hold.map(|(id, _)| id.clone())
    }

    /// Whether a describe must not show this ENI.
    pub(crate) fn hides(&self, eni: &str) -> bool {
        self.kinds().any(
            |kind| matches!(kind, FaultKind::Hide { enis } if enis.iter().any(|hidden| hidden == eni)),
        )
    }

    /// The kinds.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = &FaultKind> {
        self.0.iter().map(|(_, kind)| kind)
    }

    /// The first value that `pick` finds.
    pub(crate) fn find<'a, T>(&'a self, pick: impl Fn(&'a FaultKind) -> Option<T>) -> Option<T> {
        self.kinds().find_map(pick)
    }

    /// The first refusal before any effect.
    pub(crate) fn refusal(&self, params: &Params) -> Option<ApiError> {
        self.find(|kind| kind.refusal(params))
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn fires(faults: &mut Faults, now: u64) -> bool {
        let mut rng = StdRng::seed_from_u64(1);
        let params = Params::decode("Action=A&Id=eni-1");
        faults.fire("A", &params, "me", now, &mut rng).kinds().next().is_some()
    }

    #[test]
    fn nth_every_count_and_time_choose_the_calls_that_are_hit() {
        let mut faults = Faults::default();
        let mut fault = Fault::on("A", FaultKind::VlanDuplicate).from_nth(2).times(2);
        fault.every = Some(2);
        faults.add(fault.naming("eni-1"), 0);
        let hits: Vec<bool> = (0..8).map(|_| fires(&mut faults, 0)).collect();
        assert_eq!(hits, [false, true, false, true, false, false, false, false]);

        let mut faults = Faults::default();
        let mut fault = Fault::on("*", FaultKind::VlanDuplicate);
        fault.for_ms = Some(10);
        faults.add(fault.clone(), 0);
        assert!(fires(&mut faults, 9) && !fires(&mut faults, 10));
        faults.add(fault.naming("eni-2"), 0);
        faults.clear(Some("fault-1"));
        assert!(!fires(&mut faults, 0));
    }

    #[test]
    fn a_hold_and_what_a_describe_hides_are_told_by_name() {
        let mut faults = Faults::default();
        let id = faults.add(Fault::on("A", FaultKind::Hold), 0);
        let enis = vec!["eni-2".to_owned()];
        faults.add(Fault::on("A", FaultKind::Hide { enis }), 0);
        let mut rng = StdRng::seed_from_u64(1);
        let fired = faults.fire("A", &Params::decode("Action=A"), "me", 0, &mut rng);
        assert_eq!(fired.held_by(), Some(id.clone()));
        assert!(fired.hides("eni-2") && !fired.hides("eni-1"));
        assert!(faults.has(&id));
        faults.clear(Some(&id));
        assert!(!faults.has(&id));
    }

    #[test]
    fn faults_read_as_flat_json() {
        let json = r#"{"action":"Delete*","count":2,"kind":"in-use","documented":true}"#;
        let fault: Fault = serde_json::from_str(json).unwrap();
        assert_eq!(fault.kind, FaultKind::InUse { documented: true });
        let misspelt = r#"{"action":"Delete*","cuont":2,"kind":"slow","ms":5}"#;
        assert!(serde_json::from_str::<Fault>(misspelt).is_err());
    }
}
