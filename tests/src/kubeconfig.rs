//! Kubeconfig files. JSON is YAML, so no YAML writer is needed.

use crate::{Error, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::path::Path;

/// Who a kubeconfig says it is.
#[derive(Debug, Clone, Copy)]
pub enum Identity<'a> {
    /// A token in the file itself.
    Token(&'a str),
    /// A file that holds the token and may be renewed.
    TokenFile(&'a Path),
}

/// Writes a kubeconfig for `server`; `authority` is the PEM of its authority (none for plain HTTP).
pub fn write(path: &Path, server: &str, authority: Option<&str>, who: Identity<'_>) -> Result<()> {
    let mut cluster = serde_json::json!({ "server": server });
    if let (Some(pem), Some(fields)) = (authority, cluster.as_object_mut()) {
        fields.insert("certificate-authority-data".to_owned(), STANDARD.encode(pem).into());
    }
    let user = match who {
        Identity::Token(token) => serde_json::json!({ "token": token }),
        Identity::TokenFile(file) => serde_json::json!({ "tokenFile": file }),
    };
    let config = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "trunkline",
        "clusters": [{ "name": "trunkline", "cluster": cluster }],
        "users": [{ "name": "trunkline", "user": user }],
        "contexts": [{ "name": "trunkline", "context": { "cluster": "trunkline", "user": "trunkline" } }],
    });
    let text = serde_json::to_vec_pretty(&config)
        .map_err(|error| Error::say(format!("cannot write a kubeconfig: {error}")))?;
    std::fs::write(path, text).map_err(Error::file(path))
}
