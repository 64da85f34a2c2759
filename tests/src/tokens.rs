//! ServiceAccount tokens that are bound to pods, as the kubelet would mint and mount them.

use crate::{Error, Result};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt as _};
use std::path::Path;
use std::time::Duration;

/// The private audience between agents and coordinator (design §8).
pub const AUDIENCE: &str = "trunkline";

/// A token of `account` in `namespace`; bound to `pod` if given. No audience means the API server's own.
pub async fn mint(
    admin: &Client,
    namespace: &str,
    account: &str,
    audience: Option<&str>,
    pod: Option<&Pod>,
) -> Result<String> {
    let api: Api<ServiceAccount> = Api::namespaced(admin.clone(), namespace);
    let bound = pod.map(|pod| BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: Some(pod.name_any()),
        uid: pod.uid(),
    });
    let request = TokenRequest {
        spec: TokenRequestSpec {
            audiences: audience.into_iter().map(str::to_owned).collect(),
            bound_object_ref: bound,
            expiration_seconds: Some(3600),
        },
        ..TokenRequest::default()
    };
    let answer = api
        .create_token_request(account, &PostParams::default(), &request)
        .await
        .map_err(Error::kube(format!("mint a token of {namespace}/{account}")))?;
    answer
        .status
        .map(|status| status.token)
        .ok_or_else(|| Error::say(format!("the token of {namespace}/{account} is empty")))
}

/// Mints a token bound to `pod` for the account that the pod names, and writes it to `path` (by rename, as the kubelet
/// does, so that a reader never sees half a token).
pub async fn mount(admin: &Client, pod: &Pod, audience: Option<&str>, path: &Path) -> Result<()> {
    let namespace = pod.namespace().unwrap_or_default();
    let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
    let account = account.unwrap_or_else(|| "default".to_owned());
    let token = mint(admin, &namespace, &account, audience, Some(pod)).await?;
    let fresh = path.with_extension("fresh");
    std::fs::write(&fresh, token).map_err(Error::file(&fresh))?;
    std::fs::rename(&fresh, path).map_err(Error::file(path))
}

/// Mounts the token again every `every`, for as long as the returned task lives. Failures are tried again a minute
/// later; the old token stays meanwhile.
pub fn renew(
    admin: Client,
    pod: Pod,
    audience: Option<&'static str>,
    path: std::path::PathBuf,
    every: Duration,
) -> tokio_util::task::AbortOnDropHandle<()> {
    let task = tokio::spawn(async move {
        let mut pause = every;
        loop {
            tokio::time::sleep(pause).await;
            pause = match mount(&admin, &pod, audience, &path).await {
                Ok(()) => every,
                Err(error) => {
                    tracing::warn!(%error, "token not renewed");
                    Duration::from_secs(60)
                }
            };
        }
    });
    tokio_util::task::AbortOnDropHandle::new(task)
}
