//! The election loop.

use std::future::Future;

use http::Method;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use trunkline_core::time::Moment;

use super::record::Record;
use super::{Deadline, Election, Leadership, Term};
use crate::api::ApiError;
use crate::backoff::jitter;

/// What the election remembers between attempts.
struct Elector {
    election: Election,
    /// The last record and when its spec was seen to change.
    observed: Option<(Record, Moment)>,
    term: Option<Term>,
    terms: u64,
}

/// What an attempt came to.
enum Attempt {
    /// We hold the lease; the request that proved it was sent at this moment.
    Held(Moment),
    /// Somebody else holds it.
    Other,
    /// The Lease does not exist, and did while we led.
    Vanished,
    /// Nothing is known.
    Unknown(ApiError),
}

pub(super) async fn run(election: Election, release: CancellationToken) {
    let mut elector = Elector { election, observed: None, term: None, terms: 0 };
    loop {
        let began = elector.election.clock.now();
        let deadline = elector.deadline_passed();
        let attempt = tokio::select! {
            biased;
            attempt = elector.attempt() => attempt,
            // Ends a term whose renewals hang, at its deadline.
            () = deadline => {
                elector.step_down("no renewal succeeded before the renew deadline");
                continue;
            }
            () = release.cancelled() => break,
        };
        elector.settle(attempt);
        let pause = elector.pause(began);
        tokio::select! {
            biased;
            () = tokio::time::sleep(pause) => {}
            () = elector.deadline_passed() => {
                elector.step_down("no renewal succeeded before the renew deadline");
            }
            () = release.cancelled() => break,
        }
    }
    elector.release().await;
}

impl Elector {
    fn path(&self) -> String {
        let settings = &self.election.settings;
        format!(
            "/apis/coordination.k8s.io/v1/namespaces/{}/leases/{}",
            settings.namespace, settings.name
        )
    }

    /// Renewals are regular, counted from when the last one was sent, as the deadline is: on a slow API server the pause
    /// would otherwise come out of the time that a renewal has (S70). Candidates spread out (client-go's jitter factor
    /// 1.2).
    fn pause(&self, began: Moment) -> std::time::Duration {
        let period = self.election.settings.retry_period;
        if self.term.is_some() {
            period.saturating_sub(self.election.clock.now().since(began))
        } else {
            period + jitter(period.mul_f64(1.2))
        }
    }

    /// Returns at the term's deadline as it stands now; never without a term.
    fn deadline_passed(&self) -> impl Future<Output = ()> + Send + use<> {
        let clock = self.election.clock;
        let moment = self.term.as_ref().map(|term| term.deadline.moment());
        async move {
            match moment {
                Some(moment) => clock.sleep_until(moment).await,
                None => std::future::pending().await,
            }
        }
    }

    /// One attempt to acquire or renew.
    async fn attempt(&mut self) -> Attempt {
        if self.term.is_some()
            && let Some((record, _)) = self.observed.clone()
            && record.holder() == Some(self.election.settings.identity.as_str())
        {
            // The usual renewal needs no read; a conflict falls through to one.
            let sent = self.election.clock.now();
            match self.put(&record).await {
                Ok(()) => return Attempt::Held(sent),
                Err(error) if error.code().is_some() => {}
                Err(error) => return Attempt::Unknown(error),
            }
        }
        match self.election.api.get::<Value>(&self.path()).await {
            Ok(found) => self.observe(Record(found)),
            Err(error) if error.is_not_found("leases", &self.election.settings.name) => {
                if self.term.is_some() {
                    return Attempt::Vanished;
                }
                return self.create().await;
            }
            Err(error) => return Attempt::Unknown(error),
        }
        let Some((record, seen)) = self.observed.clone() else {
            return Attempt::Other;
        };
        let ours = record.holder() == Some(self.election.settings.identity.as_str());
        let duration = record.duration().unwrap_or(self.election.settings.lease_duration);
        let free =
            record.holder().is_none() || self.election.clock.now().has_passed(seen, duration);
        if !ours && (self.term.is_some() || !free) {
            return Attempt::Other;
        }
        let sent = self.election.clock.now();
        match self.put(&record).await {
            Ok(()) => Attempt::Held(sent),
            Err(error) if error.is_conflict() => Attempt::Other,
            Err(error) => Attempt::Unknown(error),
        }
    }

    async fn create(&mut self) -> Attempt {
        let settings = &self.election.settings;
        let record = Record::absent(settings).held_by_us(settings);
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", settings.namespace);
        let sent = self.election.clock.now();
        match self.election.api.write::<Value>(Method::POST, &path, &record.0).await {
            Ok(made) => {
                self.observe(Record(made));
                Attempt::Held(sent)
            }
            Err(error) if error.is_conflict() => Attempt::Other,
            Err(error) => Attempt::Unknown(error),
        }
    }

    async fn put(&mut self, record: &Record) -> Result<(), ApiError> {
        let next = record.held_by_us(&self.election.settings);
        let written = self.election.api.write::<Value>(Method::PUT, &self.path(), &next.0).await?;
        self.observe(Record(written));
        Ok(())
    }

    /// Remembers a record; its age counts from when its spec was first seen like this.
    fn observe(&mut self, record: Record) {
        let seen = match &self.observed {
            Some((held, seen)) if held.observable() == record.observable() => *seen,
            _ => self.election.clock.now(),
        };
        self.observed = Some((record, seen));
    }

    fn settle(&mut self, attempt: Attempt) {
        match attempt {
            Attempt::Held(sent) => self.held(sent),
            Attempt::Other => {
                if self.term.is_some() {
                    self.step_down("another holds the lease");
                } else {
                    self.follow();
                }
            }
            Attempt::Vanished => self.step_down("the Lease vanished"),
            Attempt::Unknown(error) => {
                tracing::warn!(%error, leading = self.term.is_some(), "failed to acquire or renew the lease");
                if self.term.is_none() {
                    self.follow();
                }
            }
        }
    }

    fn held(&mut self, sent: Moment) {
        let until = sent.plus(self.election.settings.renew_deadline);
        if let Some(term) = &self.term {
            if !term.deadline.expired(self.election.clock.now()) {
                term.deadline.renew(until);
                return;
            }
            // The renewal was confirmed too late: whoever asked the deadline has stopped. A new term may begin.
            self.step_down("the renewal came back after the renew deadline");
        }
        if self.election.clock.now() >= until {
            return;
        }
        self.terms += 1;
        let transitions = self.observed.as_ref().map(|(r, _)| r.transitions()).unwrap_or_default();
        let term = Term { number: self.terms, transitions, deadline: Deadline::at(until) };
        tracing::info!(term = term.number, transitions, identity = %self.election.settings.identity, "leading");
        self.term = Some(term.clone());
        self.election.out.send_replace(Leadership::Leading(term));
    }

    fn step_down(&mut self, why: &str) {
        if let Some(term) = self.term.take() {
            term.deadline.end();
            tracing::error!(term = term.number, why, "lost the leadership");
        }
        self.follow();
    }

    fn follow(&mut self) {
        let ours = &self.election.settings.identity;
        let address = self
            .observed
            .as_ref()
            .filter(|(record, _)| record.holder() != Some(ours.as_str()))
            .and_then(|(record, _)| record.address())
            .map(str::to_owned);
        self.election.out.send_if_modified(|held| match held {
            Leadership::Following { leader_address } if *leader_address == address => false,
            _ => {
                *held = Leadership::Following { leader_address: address };
                true
            }
        });
    }

    /// Gives the lease back, if we hold it. The record is read anew: a renewal may have been cut off on its way, and
    /// may even arrive between this read and this write.
    async fn release(mut self) {
        let Some(term) = self.term.take() else { return };
        term.deadline.end();
        self.election.out.send_replace(Leadership::Following { leader_address: None });
        for _ in 0..3 {
            match self.clear_holder().await {
                Ok(()) => return tracing::info!(term = term.number, "released the lease"),
                Err(error) if error.is_conflict() => {}
                Err(error) => {
                    return tracing::warn!(%error, "failed to release the lease; it expires by itself");
                }
            }
        }
        tracing::warn!("failed to release the lease: it kept changing; it expires by itself");
    }

    async fn clear_holder(&self) -> Result<(), ApiError> {
        let record = Record(self.election.api.get::<Value>(&self.path()).await?);
        if record.holder() != Some(self.election.settings.identity.as_str()) {
            return Ok(());
        }
        self.election
            .api
            .write::<Value>(Method::PUT, &self.path(), &record.released().0)
            .await
            .map(|_| ())
    }
}
