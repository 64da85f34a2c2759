//! One coordinator without its sockets: election, terms, and the service that agents talk to.
//!
//! [`crate::run`] puts servers, certificates and signals around it. A simulation runs it as it is, with an API server and an
//! EC2 of its own, in virtual time.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use trunkline_core::limits::Limits;
use trunkline_kit::api::Api;
use trunkline_kit::clock::Clock;
use trunkline_kit::lease::{self, Deadline, Election, Leadership, LeaseSettings};
use trunkline_kit::listwatch::ListWatchMetrics;
use trunkline_kit::readiness::ReadyHandle;

use crate::cloud::Clouds;
use crate::config::{Config, Lease};
use crate::grpc::session::NodesService;
use crate::grpc::{Lead, Shared};
use crate::ledger::Ledger;
use crate::metrics::Metrics;
use crate::run::RunError;
use crate::terms::Terms;

/// What a replica needs from outside.
pub struct Outside {
    /// The API server.
    pub kube: Api,
    /// EC2.
    pub clouds: Arc<dyn Clouds>,
    /// The clock of all rules.
    pub clock: Clock,
    /// Limits by instance type.
    pub limits: Limits,
    /// Told whether this replica does its part.
    pub ready: ReadyHandle,
    /// Metrics.
    pub metrics: Metrics,
    /// Metrics of list-watches.
    pub watch_metrics: ListWatchMetrics,
}

/// A replica that does not run yet.
pub struct Replica {
    election: Option<Election>,
    leadership: watch::Receiver<Leadership>,
    terms: Terms,
    shared: Shared,
    metrics: Metrics,
}

/// Election settings of `kit` out of ours.
pub fn lease_settings(lease: &Lease, identity: String) -> LeaseSettings {
    LeaseSettings {
        lease_duration: lease.duration,
        renew_deadline: lease.renew_deadline,
        retry_period: lease.retry_period,
        ..LeaseSettings::new(&lease.namespace, &lease.name, identity)
    }
}

impl Replica {
    /// Puts the parts together; nothing is sent yet.
    pub fn new(config: Config, outside: Outside) -> Self {
        let Outside { kube, clouds, clock, limits, ready, metrics, watch_metrics } = outside;
        ready.set_unready("nothing is known of the lease yet");
        let (lead_tx, lead) = watch::channel(Lead::Following { address: None });
        let (higher_tx, higher) = mpsc::channel(1);
        let identity = lease::identity(&config.pod_uid);
        let shared = Shared {
            lead,
            higher_epochs: higher_tx,
            own_address: config.advertise_address.as_str().into(),
            identity: identity.as_str().into(),
        };
        let (election, leadership) = match &config.lease {
            Some(lease) => {
                let mut settings = lease_settings(lease, identity);
                settings.address = Some(config.advertise_address.clone());
                let (election, leadership) = Election::new(&kube, clock, settings);
                (Some(election), leadership)
            }
            None => {
                let alone = lease::Term { number: 1, transitions: 0, deadline: Deadline::never() };
                // Without a sender the value stays.
                (None, watch::channel(Leadership::Leading(alone)).1)
            }
        };
        let terms = Terms {
            config,
            kube,
            limits,
            clock,
            metrics: metrics.clone(),
            watch_metrics,
            clouds,
            lead: lead_tx,
            higher,
            reported: None,
            ready,
            ledger: Ledger::default(),
        };
        Self { election, leadership, terms, shared, metrics }
    }

    /// What all services of this replica share.
    pub fn shared(&self) -> Shared {
        self.shared.clone()
    }

    /// The service that agents talk to.
    pub fn nodes(&self) -> NodesService {
        NodesService::new(self.shared(), self.metrics.clone())
    }

    /// The two futures that do the work: the terms until `stop`, and the election (if there is one) until `release`, which
    /// is to be cancelled only once the terms have ended.
    #[allow(clippy::type_complexity, reason = "two futures, named in the text above")]
    pub fn work(
        self,
        stop: CancellationToken,
        release: CancellationToken,
    ) -> (
        impl Future<Output = Result<(), RunError>> + Send + 'static,
        Option<impl Future<Output = ()> + Send + 'static>,
    ) {
        let election = self.election.map(|election| election.run(release));
        (self.terms.run(self.leadership, stop), election)
    }
}
