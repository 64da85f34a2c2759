//! The interceptor that every call carries.
//!
//! 1. **Lease fence.** Before every attempt, and again directly before it is sent (resolving credentials may take
//!    seconds), the lease deadline is asked. An attempt after the deadline is refused, the SDK's own retries included. The
//!    same holds for an operation that the mode in force forbids.
//! 2. **Whole bodies.** The SDK reads a reply that was cut or garbled anywhere after its root tag as a success with the
//!    items read so far, half-read ids and no page token (`ec2.md` §3). A 2xx whose body is not a well-formed reply of this
//!    operation ([`crate::body`]) is refused; so are errors and foreign bodies under 200, which operations without modelled
//!    output would take for success.
//! 3. **What may have happened.** Each attempt that was sent and not definitely refused is remembered, because the SDK
//!    tells only how the last attempt ended: a 500 that was in truth carried out, followed by a throttled retry, is not a
//!    throttled call.
//! 4. **Budget.** Retries are charged to the operation's bucket, throttle answers slow it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::interceptors::Intercept;
use aws_smithy_runtime_api::client::interceptors::context::{
    AfterDeserializationInterceptorContextRef, BeforeTransmitInterceptorContextRef,
    FinalizerInterceptorContextRef,
};
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::config_bag::ConfigBag;

use crate::body::is_whole;
use crate::classify;
use crate::lane::Lane;
use crate::settings::LeaseDeadline;

/// What became of the attempts of one call.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    sent: AtomicU32,
    fenced: AtomicBool,
    earlier_uncertain: AtomicBool,
    last_uncertain: AtomicBool,
}

impl Attempts {
    /// How many attempts were let through to the network.
    pub(crate) fn sent(&self) -> u32 {
        self.sent.load(Ordering::SeqCst)
    }

    /// Whether an attempt was refused for the lease or the mode.
    pub(crate) fn fenced(&self) -> bool {
        self.fenced.load(Ordering::SeqCst)
    }

    /// Whether any attempt was sent and not definitely refused.
    pub(crate) fn uncertain(&self) -> bool {
        self.earlier_uncertain.load(Ordering::SeqCst) || self.last_uncertain.load(Ordering::SeqCst)
    }

    fn sending(&self) -> u32 {
        let earlier = self.last_uncertain.swap(true, Ordering::SeqCst);
        self.earlier_uncertain.fetch_or(earlier, Ordering::SeqCst);
        self.sent.fetch_add(1, Ordering::SeqCst)
    }

    fn definitely_refused(&self) {
        self.last_uncertain.store(false, Ordering::SeqCst);
    }
}

#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("the lease deadline has passed; the attempt was not sent")]
    Fenced,
    #[error("the mode in force forbids {0}; the attempt was not sent")]
    Forbidden(&'static str),
    #[error("the reply is not a whole {0}Response")]
    NotWhole(&'static str),
    #[error("{0} answered <return>false</return>")]
    ReturnedFalse(&'static str),
}

/// One call's interceptor.
pub(crate) struct Guard {
    lane: Arc<Lane>,
    deadline: Arc<dyn LeaseDeadline>,
    attempts: Arc<Attempts>,
}

impl Guard {
    pub(crate) fn new(
        lane: Arc<Lane>,
        deadline: Arc<dyn LeaseDeadline>,
        attempts: Arc<Attempts>,
    ) -> Self {
        Self { lane, deadline, attempts }
    }

    fn fence(&self) -> Result<(), BoxError> {
        if self.deadline.expired() {
            self.attempts.fenced.store(true, Ordering::SeqCst);
            return Err(Refused::Fenced.into());
        }
        let action = self.lane.action();
        if self.deadline.forbidden(action) {
            self.attempts.fenced.store(true, Ordering::SeqCst);
            return Err(Refused::Forbidden(action.name()).into());
        }
        Ok(())
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("attempts", &self.attempts).finish_non_exhaustive()
    }
}

impl Intercept for Guard {
    fn name(&self) -> &'static str {
        "Guard"
    }

    fn read_before_attempt(
        &self,
        _: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        self.fence()
    }

    fn read_before_transmit(
        &self,
        _: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        self.fence()?;
        if self.attempts.sending() > 0 {
            self.lane.charge();
        }
        self.lane.metrics().attempt(self.lane.action());
        Ok(())
    }

    fn read_after_deserialization(
        &self,
        context: &AfterDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let response = context.response();
        if !response.status().is_success() {
            return Ok(());
        }
        let name = self.lane.action().name();
        let body = response.body().bytes().unwrap_or_default();
        if !is_whole(body, name) {
            return Err(Refused::NotWhole(name).into());
        }
        let text = String::from_utf8_lossy(body);
        if text.contains("<return>false</return>") {
            return Err(Refused::ReturnedFalse(name).into());
        }
        Ok(())
    }

    fn read_after_attempt(
        &self,
        context: &FinalizerInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let Some(response) = context.response() else {
            return Ok(());
        };
        if response.status().is_success() {
            return Ok(());
        }
        let code = classify::code_in(response.body().bytes().unwrap_or_default());
        let status = response.status().as_u16();
        if classify::is_throttle(status, code.as_deref()) {
            self.lane.throttled();
            self.attempts.definitely_refused();
        } else if classify::is_definite(status, code.as_deref()) {
            self.attempts.definitely_refused();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unanswered_attempt_is_not_forgotten_when_a_later_one_is_refused() {
        let attempts = Attempts::default();
        assert!(!attempts.uncertain());
        assert_eq!(attempts.sending(), 0);
        assert!(attempts.uncertain());
        assert_eq!(attempts.sending(), 1);
        attempts.definitely_refused();
        assert!(attempts.uncertain());

        let refused = Attempts::default();
        refused.sending();
        refused.definitely_refused();
        refused.sending();
        refused.definitely_refused();
        assert!(!refused.uncertain());
    }
}
