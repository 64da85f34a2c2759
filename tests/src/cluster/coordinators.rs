//! Coordinators: processes in the role of the Deployment's pods.

use super::{CALLERS, Cluster, NAME};
use crate::kubeconfig::Identity;
use crate::process::Proc;
use crate::{Error, Result, bins, deploy, poll, ports, tokens};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use trunkline_sim::ec2::client::SimClient;
use trunkline_sim::relay::Relay;

/// One coordinator.
pub struct Coordinator {
    /// Its pod.
    pub pod: Pod,
    /// Its process.
    pub process: Proc,
    /// `https://127.0.0.1:PORT` of its gRPC server.
    pub url: String,
    /// `http://127.0.0.1:PORT` of its health pages.
    pub health: String,
    /// `http://127.0.0.1:PORT` of its metrics.
    pub metrics: String,
    /// The agents' way to it, if [`super::Options::relayed`] asked for one.
    pub relay: Option<Relay>,
    folder: PathBuf,
    ports: [u16; 4],
    /// The port that agents and the other coordinator are told.
    advertised: u16,
    caller: String,
}

impl Coordinator {
    /// The address that it writes into the Lease.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.advertised)
    }

    /// The file of its token for the API server.
    pub fn api_token(&self) -> PathBuf {
        self.folder.join("api-token")
    }

    /// Its access key id in EC2's call log.
    pub fn caller(&self) -> &str {
        &self.caller
    }
}

impl Cluster {
    /// Makes a coordinator's pod, mounts its token and starts it. Agents that were started before do not know it.
    pub async fn add_coordinator(&mut self) -> Result<()> {
        let serial = self.next_serial();
        let pod = deploy::coordinator_pod(&self.admin, serial).await?;
        let folder = self.folder().join(format!("coordinator-{serial}"));
        std::fs::create_dir_all(&folder).map_err(Error::file(&folder))?;
        let token = folder.join("api-token");
        tokens::mount(&self.admin, &pod, None, &token).await?;
        self.kubeconfig(&folder.join("kubeconfig"), Identity::TokenFile(&token))?;
        let ports = [ports::free()?, ports::free()?, ports::free()?, ports::free()?];
        let caller = format!("{CALLERS}{serial}");
        let relay = if self.options().relayed {
            let started = Relay::start(([127, 0, 0, 1], ports[0]).into()).await;
            Some(started.map_err(|error| Error::say(format!("no relay: {error}")))?)
        } else {
            None
        };
        let advertised = relay.as_ref().map_or(ports[0], |relay| relay.addr().port());
        let process = self.run_coordinator(&pod, &folder, ports, advertised, &caller)?;
        let at = |port: u16, scheme: &str| format!("{scheme}://127.0.0.1:{port}");
        self.coordinators.push(Coordinator {
            pod,
            process,
            url: at(advertised, "https"),
            health: at(ports[1], "http"),
            metrics: at(ports[2], "http"),
            relay,
            folder,
            ports,
            advertised,
            caller,
        });
        Ok(())
    }

    fn run_coordinator(
        &self,
        pod: &Pod,
        folder: &std::path::Path,
        [grpc, health, metrics, webhook]: [u16; 4],
        advertised: u16,
        caller: &str,
    ) -> Result<Proc> {
        let name = pod.name_any();
        let options = self.options();
        let [duration, deadline, period] = options.lease;
        let mut command = Command::new(bins::find("trunkline-coordinator")?);
        command
            .arg(format!("--cluster-name={NAME}"))
            .arg(format!("--vpc-id={}", trunkline_sim::ec2::config::VPC_ID))
            .args(["--aws-region=eu-west-1", "--aws-account-id=123456789012"])
            .arg(format!("--ec2-endpoint={}", self.ec2.url()))
            .arg(format!("--kubeconfig={}", folder.join("kubeconfig").display()))
            .arg(format!("--grpc-bind=127.0.0.1:{grpc}"))
            .arg(format!("--advertise-address=127.0.0.1:{advertised}"))
            .arg(format!("--health-bind=127.0.0.1:{health}"))
            .arg(format!("--metrics-bind-address=127.0.0.1:{metrics}"))
            .arg(format!("--webhook-bind=127.0.0.1:{webhook}"))
            .arg(format!("--tls-cert={}", self.served.cert.display()))
            .arg(format!("--tls-key={}", self.served.key.display()))
            .arg(format!("--leader-lease-duration-seconds={duration}"))
            .arg(format!("--leader-lease-renew-deadline={deadline}"))
            .arg(format!("--leader-lease-retry-period={period}"))
            .args(["--log-format=text", "--log-level=debug"])
            .args(options.timings.flags())
            .args(&options.coordinator_flags)
            .env("TRUNKLINE_TIMING", options.timings.variable())
            .env("POD_NAME", &name)
            .env("POD_NAMESPACE", deploy::NAMESPACE)
            .env("POD_UID", pod.uid().unwrap_or_default())
            .env("AWS_ACCESS_KEY_ID", caller)
            .env("AWS_SECRET_ACCESS_KEY", "secret-of-a-simulator")
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .env_remove("KUBECONFIG");
        Proc::start(&name, &mut command, &self.folder().join(format!("{name}.log")))
    }

    /// Ends a coordinator (SIGKILL) and starts it again in the same pod, as the kubelet restarts a container.
    pub fn restart_coordinator(&mut self, index: usize) -> Result<()> {
        let Some(coordinator) = self.coordinators.get_mut(index) else {
            return Err(Error::say(format!("no coordinator {index}")));
        };
        coordinator.process.kill();
        let (pod, folder) = (coordinator.pod.clone(), coordinator.folder.clone());
        let (ports, caller) = (coordinator.ports, coordinator.caller.clone());
        let advertised = coordinator.advertised;
        let process = self.run_coordinator(&pod, &folder, ports, advertised, &caller)?;
        if let Some(coordinator) = self.coordinators.get_mut(index) {
            coordinator.process = process;
        }
        Ok(())
    }

    /// `--coordinator` of agents and of the command line.
    pub fn coordinator_urls(&self) -> String {
        self.coordinators.iter().map(|c| c.url.as_str()).collect::<Vec<_>>().join(",")
    }

    /// The index of the coordinator that the Lease names, if it names a living one.
    pub async fn leader(&mut self) -> Result<Option<usize>> {
        let leases: Api<Lease> = Api::namespaced(self.admin.clone(), "kube-system");
        let lease = leases
            .get_opt("cp-vpc-resource-controller")
            .await
            .map_err(Error::kube("get the lease"))?;
        let Some(lease) = lease else { return Ok(None) };
        let held = lease
            .spec
            .as_ref()
            .and_then(|spec| spec.holder_identity.as_deref())
            .unwrap_or_default();
        let address =
            lease.annotations().get("trunkline.dev/leader-address").filter(|_| !held.is_empty());
        let found = self.coordinators.iter_mut().position(|coordinator| {
            Some(&coordinator.address()) == address && coordinator.process.exited().is_none()
        });
        Ok(found)
    }

    /// Waits until a coordinator leads and says it is ready; returns its index.
    pub async fn led(&mut self, within: Duration) -> Result<usize> {
        let led = poll::eventually("a coordinator leads and is ready", within, async || {
            for coordinator in &mut self.coordinators {
                if let Err(ended) = coordinator.process.must_run() {
                    return Ok(Err(ended));
                }
            }
            let leader = self.leader().await.map_err(|error| error.to_string())?;
            let index = leader.ok_or_else(|| "the lease names none of them".to_owned())?;
            let health = self.coordinators.get(index).map(|c| c.health.clone()).unwrap_or_default();
            super::observe::ready(&SimClient::new(&health)).await?;
            Ok::<_, String>(Ok(index))
        })
        .await;
        match led {
            Ok(index) => index,
            Err(error) => {
                let logs: Vec<_> = self.coordinators.iter().map(|c| c.process.tail(15)).collect();
                Err(Error::say(format!("{error}\n{}", logs.join("\n---\n"))))
            }
        }
    }
}
