//! The assumed role of the user client (`AWS-1`, `AWS-3`, `AWS-4`).
//!
//! `AssumeRole` carries two headers by which the role's trust policy can tell for which cluster it is assumed (the
//! confused-deputy guard of managed control planes). The SDK's own provider cannot add headers, so this is a provider of
//! our own over the STS client; the SDK's identity cache keeps its credentials until shortly before they end.

use std::time::Duration;

use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{self, ProvideCredentials, future};
use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::interceptors::Intercept;
use aws_smithy_runtime_api::client::interceptors::context::BeforeTransmitInterceptorContextMut;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::config_bag::ConfigBag;
use trunkline_core::id::ClusterName;

use crate::settings::Role;

/// As the peer's, so that trust policies and audit filters go on matching.
const SESSION_NAME: &str = "amazon-vpc-resource-controller-k8s";
const LIFETIME: Duration = Duration::from_hours(1);

/// Assumes the role with the controller's own credentials.
#[derive(Debug)]
pub(crate) struct RoleCredentials {
    client: aws_sdk_sts::Client,
    role: Role,
    headers: SourceHeaders,
}

impl RoleCredentials {
    pub(crate) fn new(
        client: aws_sdk_sts::Client,
        role: Role,
        region: &str,
        cluster: &ClusterName,
    ) -> Self {
        let headers = SourceHeaders {
            arn: format!("arn:{}:eks:{region}:{}:cluster/{cluster}", role.partition, role.account),
            account: role.account.clone(),
        };
        Self { client, role, headers }
    }

    async fn assume(&self) -> provider::Result {
        let seconds = i32::try_from(LIFETIME.as_secs()).unwrap_or(i32::MAX);
        let output = self
            .client
            .assume_role()
            .role_arn(&self.role.arn)
            .role_session_name(SESSION_NAME)
            .duration_seconds(seconds)
            .customize()
            .interceptor(self.headers.clone())
            .send()
            .await
            .map_err(CredentialsError::provider_error)?;
        let found = output.credentials.ok_or_else(|| {
            CredentialsError::unhandled("AssumeRole answered without credentials")
        })?;
        let expiry = found.expiration.try_into().map_err(CredentialsError::unhandled)?;
        Ok(Credentials::new(
            found.access_key_id,
            found.secret_access_key,
            Some(found.session_token),
            Some(expiry),
            "AssumeRole",
        ))
    }
}

impl ProvideCredentials for RoleCredentials {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.assume())
    }
}

/// Adds the headers before signing, so that they are signed.
#[derive(Debug, Clone)]
struct SourceHeaders {
    arn: String,
    account: String,
}

impl Intercept for SourceHeaders {
    fn name(&self) -> &'static str {
        "SourceHeaders"
    }

    fn modify_before_signing(
        &self,
        context: &mut BeforeTransmitInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let headers = context.request_mut().headers_mut();
        headers.try_insert("x-amz-source-arn", self.arn.clone())?;
        headers.try_insert("x-amz-source-account", self.account.clone())?;
        Ok(())
    }
}
