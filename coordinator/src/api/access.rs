//! Who is calling: TokenReview and SubjectAccessReview (`kube.md` §4, design §8).

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::json;

use super::{Api, ApiError};

/// What the API server says of a token.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reviewed {
    /// The token is good.
    pub authenticated: bool,
    /// Audiences for which it is good.
    pub audiences: Vec<String>,
    /// User name.
    pub username: String,
    /// User UID.
    pub uid: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Extras.
    pub extra: BTreeMap<String, Vec<String>>,
    /// Why not, where the API server says so.
    pub error: String,
}

impl Reviewed {
    /// The only value of an extra; `None` if there is none or more than one.
    pub fn only(&self, key: &str) -> Option<&str> {
        match self.extra.get(key).map(Vec::as_slice) {
            Some([one]) => Some(one),
            _ => None,
        }
    }
}

#[derive(Deserialize)]
struct ReviewObject {
    #[serde(default)]
    status: ReviewStatus,
}

#[derive(Deserialize, Default)]
struct ReviewStatus {
    #[serde(default)]
    authenticated: bool,
    #[serde(default)]
    audiences: Option<Vec<String>>,
    #[serde(default)]
    user: Option<UserObject>,
    #[serde(default)]
    error: Option<String>,
}

#[derive(Deserialize, Default)]
struct UserObject {
    #[serde(default)]
    username: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    groups: Option<Vec<String>>,
    #[serde(default)]
    extra: Option<BTreeMap<String, Vec<String>>>,
}

/// Reviews a token for an audience; `None` asks for the API server's own audiences.
pub async fn review_token(
    api: &Api,
    token: &str,
    audience: Option<&str>,
) -> Result<Reviewed, ApiError> {
    let mut spec = json!({"token": token});
    if let (Some(audience), Some(spec)) = (audience, spec.as_object_mut()) {
        spec.insert("audiences".into(), json!([audience]));
    }
    let review =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec});
    let answer: ReviewObject =
        api.ask("/apis/authentication.k8s.io/v1/tokenreviews", &review).await?;
    let user = answer.status.user.unwrap_or_default();
    Ok(Reviewed {
        authenticated: answer.status.authenticated,
        audiences: answer.status.audiences.unwrap_or_default(),
        username: user.username,
        uid: user.uid,
        groups: user.groups.unwrap_or_default(),
        extra: user.extra.unwrap_or_default(),
        error: answer.status.error.unwrap_or_default(),
    })
}

/// Whether this user may do `verb` on a non-resource path.
pub async fn may(api: &Api, user: &Reviewed, verb: &str, path: &str) -> Result<bool, ApiError> {
    #[derive(Deserialize)]
    struct AccessObject {
        #[serde(default)]
        status: AccessStatus,
    }
    #[derive(Deserialize, Default)]
    struct AccessStatus {
        #[serde(default)]
        allowed: bool,
        #[serde(default)]
        denied: bool,
    }
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": user.username,
            "uid": user.uid,
            "groups": user.groups,
            "extra": user.extra,
            "nonResourceAttributes": {"path": path, "verb": verb},
        },
    });
    let answer: AccessObject =
        api.ask("/apis/authorization.k8s.io/v1/subjectaccessreviews", &review).await?;
    Ok(answer.status.allowed && !answer.status.denied)
}
