//! Agents: processes in the role of the DaemonSet's pods.

use super::Cluster;
use crate::kubeconfig::Identity;
use crate::process::Proc;
use crate::tokens::{self, AUDIENCE};
use crate::{Error, Result, bins, deploy, objects, poll, ports};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use trunkline_sim::ec2::client::SimClient;

/// One agent.
pub struct Agent {
    /// Its node.
    pub node: String,
    /// Its pod.
    pub pod: Pod,
    /// Its process.
    pub process: Proc,
    /// `http://127.0.0.1:PORT` of its health pages.
    pub health: String,
    /// The token for the coordinator.
    pub token: PathBuf,
    folder: PathBuf,
    health_port: u16,
}

impl Cluster {
    /// Makes the agent's pod on `node`, mounts its tokens and starts it. The old pod of that node must be gone.
    pub async fn start_agent(&mut self, node: &str) -> Result<()> {
        let serial = self.next_serial();
        let pod = deploy::agent_pod(&self.admin, node, serial).await?;
        // One of its own for each pod: a node may have two agents for a while.
        let folder = self.folder().join(format!("agent-{node}-{serial}"));
        std::fs::create_dir_all(&folder).map_err(Error::file(&folder))?;
        let api_token = folder.join("api-token");
        tokens::mount(&self.admin, &pod, None, &api_token).await?;
        let token = folder.join("token");
        tokens::mount(&self.admin, &pod, Some(AUDIENCE), &token).await?;
        self.kubeconfig(&folder.join("kubeconfig"), Identity::TokenFile(&api_token))?;
        let health_port = ports::free()?;
        let process = self.run_agent(node, &pod, &folder, health_port).await?;
        let agent = Agent {
            node: node.to_owned(),
            pod,
            process,
            health: format!("http://127.0.0.1:{health_port}"),
            token,
            folder,
            health_port,
        };
        self.agents.insert(node.to_owned(), agent);
        Ok(())
    }

    async fn run_agent(
        &self,
        node: &str,
        pod: &Pod,
        folder: &std::path::Path,
        health_port: u16,
    ) -> Result<Proc> {
        let host = self.nodes.node(node).await.map_err(|error| Error::say(error.to_string()))?;
        let host = host.ok_or_else(|| Error::say(format!("{node} is not simulated")))?;
        let mut command = Command::new(bins::find("trunkline-agent")?);
        command
            .arg(format!("--node-name={node}"))
            .arg(format!("--pod-uid={}", pod.uid().unwrap_or_default()))
            .arg(format!("--coordinator={}", self.coordinator_urls()))
            .arg(format!("--coordinator-ca={}", self.coordinator_ca().display()))
            .arg(format!("--token-file={}", folder.join("token").display()))
            .arg(format!("--kubeconfig={}", folder.join("kubeconfig").display()))
            .arg(format!("--health-bind=127.0.0.1:{health_port}"))
            .arg(format!("--cgroup-root={}", host.cgroup_root))
            .arg(format!("--kubelet-socket={}", host.kubelet_socket))
            .arg(format!("--boot-id-file={}", host.boot_id_file))
            .arg(format!("--state-dir={}", host.state_dir))
            .arg("--log-format=text")
            .arg("--log-level=debug")
            .args(&self.options().agent_flags)
            .env("TRUNKLINE_TIMING", self.options().timings.variable())
            .env_remove("KUBECONFIG");
        if let Some(netns) = &host.host_netns {
            command.arg(format!("--host-netns={netns}"));
        }
        Proc::start(
            &format!("agent of {node}"),
            &mut command,
            &self.folder().join(format!("agent-{node}.log")),
        )
    }

    /// Ends the agent's process (SIGKILL) and starts it again in the same pod, as the kubelet restarts a container.
    pub async fn restart_agent(&mut self, node: &str) -> Result<()> {
        let missing = || Error::say(format!("no agent on {node}"));
        let mut agent = self.agents.remove(node).ok_or_else(missing)?;
        agent.process.kill();
        agent.process = self.run_agent(node, &agent.pod, &agent.folder, agent.health_port).await?;
        self.agents.insert(node.to_owned(), agent);
        Ok(())
    }

    /// Ends the agent's process and starts a new pod of the DaemonSet.
    pub async fn replace_agent(&mut self, node: &str) -> Result<()> {
        self.stop_agent(node).await?;
        self.start_agent(node).await
    }

    /// Ends the agent's process and deletes its pod.
    pub async fn stop_agent(&mut self, node: &str) -> Result<()> {
        let mut agent =
            self.agents.remove(node).ok_or_else(|| Error::say(format!("no agent on {node}")))?;
        agent.process.kill();
        objects::delete_pod(&self.admin, deploy::NAMESPACE, &agent.pod.name_any(), true).await
    }

    /// Every mounted token: pod, file, audience.
    pub fn mounted(&self) -> Vec<(Pod, PathBuf, Option<&'static str>)> {
        let agents = self.agents.values().flat_map(|agent| {
            let (api, own) = (agent.folder.join("api-token"), agent.token.clone());
            [(agent.pod.clone(), api, None), (agent.pod.clone(), own, Some(AUDIENCE))]
        });
        let coordinators = self.coordinators.iter().map(|c| (c.pod.clone(), c.api_token(), None));
        agents.chain(coordinators).collect()
    }

    /// Waits until every agent says it is ready.
    pub async fn agents_ready(&mut self, within: Duration) -> Result<()> {
        for agent in self.agents.values_mut() {
            let what = format!("the agent of {} is ready", agent.node);
            let client = SimClient::new(&agent.health);
            let ready = poll::eventually(&what, within, async || {
                if let Err(ended) = agent.process.must_run() {
                    return Ok(Err(ended));
                }
                super::observe::ready(&client).await.map(Ok)
            })
            .await;
            match ready {
                Ok(done) => done?,
                Err(error) => {
                    return Err(Error::say(format!("{error}\n{}", agent.process.tail(20))));
                }
            }
        }
        Ok(())
    }
}
