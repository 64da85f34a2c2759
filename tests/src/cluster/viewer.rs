//! People who may read the coordinator's status, and those who may change its fuse and mode.

use super::Cluster;
use crate::{Error, Result, bins, deploy, objects, tokens};
use serde_json::json;
use std::path::PathBuf;

impl Cluster {
    /// Makes the account of a viewer, binds the shipped role to it and writes its token; returns the token's file.
    pub async fn viewer(&self) -> Result<PathBuf> {
        self.person("viewer", "trunkline-status-viewer").await
    }

    /// The same for an operator.
    pub async fn operator(&self) -> Result<PathBuf> {
        self.person("operator", "trunkline-operator").await
    }

    async fn person(&self, name: &str, role: &str) -> Result<PathBuf> {
        objects::account(&self.admin, deploy::NAMESPACE, name, &[]).await?;
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": format!("{role}s") },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                "name": role },
            "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": deploy::NAMESPACE }],
        });
        let binding =
            serde_json::from_value(binding).map_err(|error| Error::say(error.to_string()))?;
        deploy::apply_one(&self.admin, binding).await?;
        let file = self.folder().join(format!("{name}.token"));
        let token =
            tokens::mint(&self.admin, deploy::NAMESPACE, name, Some(tokens::AUDIENCE), None)
                .await?;
        std::fs::write(&file, token).map_err(Error::file(&file))?;
        Ok(file)
    }

    /// The words that start the command line against this cluster, its own command left out.
    pub fn command_line(&self, token: &std::path::Path) -> Result<Vec<String>> {
        Ok(vec![
            bins::find("trunkline")?.display().to_string(),
            format!("--coordinator={}", self.coordinator_urls()),
            format!("--coordinator-ca={}", self.coordinator_ca().display()),
            format!("--token-file={}", token.display()),
        ])
    }

    /// Runs `trunkline` with these words and returns what it prints; what it says on failure is the error.
    pub async fn trunkline(&self, token: &std::path::Path, words: &[&str]) -> Result<String> {
        let output = self.command(token, words).await?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(Error::say(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    }

    /// Runs `trunkline` with these words and returns exit code, output and what it says on failure.
    pub async fn trunkline_code(
        &self,
        token: &std::path::Path,
        words: &[&str],
    ) -> Result<(Option<i32>, String, String)> {
        let output = self.command(token, words).await?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok((output.status.code(), text(&output.stdout), text(&output.stderr)))
    }

    async fn command(
        &self,
        token: &std::path::Path,
        words: &[&str],
    ) -> Result<std::process::Output> {
        let line = self.command_line(token)?;
        let (program, flags) = line.split_first().ok_or_else(|| Error::say("no command"))?;
        tokio::process::Command::new(program)
            .args(flags)
            .args(words)
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|error| Error::say(format!("cannot start {program}: {error}")))
    }
}
