//! Clients, and the one way by which a call is sent.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;

use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{AppName, BehaviorVersion, Region, SdkConfig};
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_sdk_ec2::Client;
use aws_sdk_ec2::config::http::HttpResponse;
use aws_sdk_ec2::config::retry::RetryPartition;
use aws_sdk_ec2::config::{Builder, IdentityCache};
use aws_sdk_ec2::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use tokio::time::Instant;
use trunkline_core::bucket::{Level, Priority};
use trunkline_core::eni::{Ec2Failure, FailureClass};
use trunkline_core::id::{ClusterName, VpcId};

use crate::action::{Action, PerAction};
use crate::classify;
use crate::guard::{Attempts, Guard};
use crate::lane::Lane;
use crate::metrics::Metrics;
use crate::role::RoleCredentials;
use crate::settings::{LeaseDeadline, Role, Settings, SetupError};

/// Time to make a connection, the SDK's own default, said so that it stays (`ec2.md` §4).
const CONNECT: std::time::Duration = std::time::Duration::from_millis(3100);
/// Attempts of one call.
const ATTEMPTS: u32 = 3;
const APP_NAME: &str = concat!("trunkline-", env!("CARGO_PKG_VERSION"));

/// EC2, as the rest of the program sees it. Cheap to clone; clones share buckets and connections.
#[derive(Clone)]
pub struct Ec2 {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    /// With the assumed role, where there is one.
    user: Client,
    /// With the controller's own credentials.
    own: Client,
    lanes: PerAction<Arc<Lane>>,
    deadline: Arc<dyn LeaseDeadline>,
    metrics: Metrics,
    pub(crate) cluster: ClusterName,
    pub(crate) vpc: VpcId,
    /// Our account, where ENIs belong to another one and a permission is needed to use them.
    pub(crate) grantee: Option<String>,
}

impl std::fmt::Debug for Ec2 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ec2")
            .field("cluster", &self.inner.cluster)
            .field("vpc", &self.inner.vpc)
            .field("grantee", &self.inner.grantee)
            .finish_non_exhaustive()
    }
}

/// The token bucket of one operation, for people.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// The operation.
    pub action: Action,
    /// Its bucket.
    pub level: Level,
    /// Attempts that EC2 refused for their rate, since the metrics were registered.
    pub throttled: u64,
}

/// What every call is customised with.
pub(crate) struct Call {
    pub(crate) config: Builder,
    pub(crate) guard: Guard,
}

/// Sends one operation: `send!(self, action, priority, |client| client.operation().field(…))`.
macro_rules! send {
    ($ec2:expr, $action:expr, $priority:expr, |$client:ident| $operation:expr) => {
        $ec2.run($action, $priority, |$client, call| {
            let operation = $operation.customize();
            operation.config_override(call.config).interceptor(call.guard).send()
        })
        .await
    };
}
pub(crate) use send;

impl Ec2 {
    /// Makes the clients. Asks the network only for what the settings leave out: the region from instance metadata, and
    /// with a role our own account from STS.
    pub async fn new(
        settings: Settings,
        deadline: Arc<dyn LeaseDeadline>,
        metrics: Metrics,
    ) -> Result<Self, SetupError> {
        let role = settings
            .role_arn
            .as_deref()
            .filter(|arn| !arn.trim().is_empty())
            .map(Role::parse)
            .transpose()?;
        let config = load(&settings).await?;
        let own = client(&settings, &config);
        let (user, grantee) = match role {
            None => (own.clone(), None),
            Some(role) => {
                let grantee = grantee(&settings, &config, &role).await?;
                (client(&settings, &assumed(&settings, &config, role)), grantee)
            }
        };
        Ok(Self::over(own, user, grantee, settings, deadline, metrics))
    }

    fn over(
        own: Client,
        user: Client,
        grantee: Option<String>,
        settings: Settings,
        deadline: Arc<dyn LeaseDeadline>,
        metrics: Metrics,
    ) -> Self {
        let budget = settings.budget;
        let lanes = PerAction::new(|action| Lane::new(action, budget, metrics.clone()));
        let Settings { cluster, vpc, .. } = settings;
        Self {
            inner: Arc::new(Inner { user, own, lanes, deadline, metrics, cluster, vpc, grantee }),
        }
    }

    /// The buckets of all operations; none with [`Settings::budget`] off.
    pub fn budgets(&self) -> Vec<Budget> {
        let budget = |action: Action| {
            let level = self.inner.lanes.get(action).level()?;
            Some(Budget { action, level, throttled: self.inner.metrics.throttles(action) })
        };
        Action::ALL.into_iter().filter_map(budget).collect()
    }

    /// Waits for the bucket, sends, classifies, counts.
    pub(crate) async fn run<T, E, F, Fut>(
        &self,
        action: Action,
        priority: Priority,
        make: F,
    ) -> Result<T, Ec2Failure>
    where
        E: ProvideErrorMetadata + Error + 'static,
        F: FnOnce(&Client, Call) -> Fut,
        Fut: Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    {
        let inner = &*self.inner;
        let lane = inner.lanes.get(action);
        let waited = lane.wait(priority).await;
        let began = Instant::now();
        let attempts = Arc::new(Attempts::default());
        let call = Call {
            config: Builder::default().retry_partition(RetryPartition::new(action.partition())),
            guard: Guard::new(Arc::clone(lane), Arc::clone(&inner.deadline), Arc::clone(&attempts)),
        };
        let client = if action.by_own_credentials() { &inner.own } else { &inner.user };
        let result = Box::pin(make(client, call)).await;
        let result = result.map_err(|error| classify::failure(action, &attempts, &error));
        self.count(action, waited, began.elapsed(), result.as_ref().err());
        result
    }

    /// Counts a reply that was answered with success and cannot be believed, as the failure it is.
    pub(crate) fn unbelievable(&self, action: Action, why: &dyn std::fmt::Display) -> Ec2Failure {
        let failure = classify::invalid_reply(action, &why.to_string());
        tracing::warn!(action = action.name(), error = %failure, "EC2 reply refused");
        self.inner.metrics.refused_reply(action);
        failure
    }

    fn count(
        &self,
        action: Action,
        waited: std::time::Duration,
        took: std::time::Duration,
        failed: Option<&Ec2Failure>,
    ) {
        let class: Option<FailureClass> = failed.map(|failure| failure.class);
        self.inner.metrics.called(action, waited, took, class);
        let (waited_ms, took_ms) = (waited.as_millis(), took.as_millis());
        match failed {
            None => tracing::debug!(action = action.name(), waited_ms, took_ms, "EC2 call"),
            Some(error) => {
                tracing::info!(action = action.name(), waited_ms, took_ms, %error, "EC2 call failed");
            }
        }
    }
}

/// The SDK's configuration with our own credentials.
async fn load(settings: &Settings) -> Result<SdkConfig, SetupError> {
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(CONNECT)
        .operation_attempt_timeout(settings.timing.ec2_attempt)
        .operation_timeout(settings.timing.ec2_operation)
        .build();
    let mut loader = aws_config::defaults(BehaviorVersion::latest())
        .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS))
        .timeout_config(timeouts)
        .identity_cache(IdentityCache::lazy().build());
    if let Ok(name) = AppName::new(APP_NAME) {
        loader = loader.app_name(name);
    }
    if let Some(region) = settings.region.clone().filter(|r| !r.is_empty()) {
        loader = loader.region(Region::new(region));
    }
    if let Some(credentials) = settings.credentials.clone() {
        loader = loader.credentials_provider(credentials);
    }
    let config = loader.load().await;
    if config.region().is_none() {
        return Err(SetupError::NoRegion);
    }
    Ok(config)
}

fn client(settings: &Settings, config: &SdkConfig) -> Client {
    let mut builder = Builder::from(config);
    if let Some(endpoint) = settings.endpoint.as_deref().filter(|e| !e.is_empty()) {
        builder = builder.endpoint_url(endpoint);
    }
    Client::from_conf(builder.build())
}

fn sts(settings: &Settings, config: &SdkConfig) -> aws_sdk_sts::Client {
    let mut builder = aws_sdk_sts::config::Builder::from(config);
    if let Some(endpoint) = settings.sts_endpoint.as_deref().filter(|e| !e.is_empty()) {
        builder = builder.endpoint_url(endpoint);
    }
    aws_sdk_sts::Client::from_conf(builder.build())
}

/// The same configuration with the role's credentials.
fn assumed(settings: &Settings, config: &SdkConfig, role: Role) -> SdkConfig {
    let region = config.region().map(ToString::to_string).unwrap_or_default();
    let provider = RoleCredentials::new(sts(settings, config), role, &region, &settings.cluster);
    config
        .to_builder()
        .credentials_provider(SharedCredentialsProvider::new(provider))
        .identity_cache(IdentityCache::lazy().build())
        .build()
}

/// Our account, if it is not the role's: only then is a permission needed (`ec2.md` §8.5).
async fn grantee(
    settings: &Settings,
    config: &SdkConfig,
    role: &Role,
) -> Result<Option<String>, SetupError> {
    let account = match settings.account.clone().filter(|a| !a.is_empty()) {
        Some(account) => account,
        None => {
            let identity = sts(settings, config).get_caller_identity().send().await;
            let identity =
                identity.map_err(|e| SetupError::NoAccount(DisplayErrorContext(e).to_string()))?;
            identity.account.ok_or_else(|| SetupError::NoAccount("the answer names none".into()))?
        }
    };
    Ok((account != role.account).then_some(account))
}

#[cfg(test)]
#[path = "mocked.rs"]
mod mocked;
