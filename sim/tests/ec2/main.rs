//! The EC2 simulator, driven with raw Query requests over HTTP.

// A test may fail by panicking, in its helpers too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod admin;
mod bodies;
mod describe;
mod faults;
mod lag;
mod network;
mod operations;
mod throttle;
mod tokens;
mod trunk;

use std::future::Future;
use std::time::Duration;

use serde_json::Value;
use trunkline_sim::ec2::client::{Answer, SimClient};
use trunkline_sim::ec2::config::{group_id, subnet_id};
use trunkline_sim::ec2::fault::{Fault, FaultKind};
use trunkline_sim::ec2::model::{EniState, InstanceSpec, LogEntry};
use trunkline_sim::ec2::{Config, Ec2Sim, Running};

/// A simulator and a caller.
struct Sim {
    _running: Running,
    client: SimClient,
}

impl Sim {
    /// Without lag and throttling.
    async fn plain() -> Self {
        Self::start(Config::plain()).await
    }

    async fn with(switches: Value) -> Self {
        let mut config = Config::plain();
        config.switches = config.switches.patched(&switches).unwrap();
        Self::start(config).await
    }

    async fn start(config: Config) -> Self {
        let running = Ec2Sim::start(config).await.unwrap();
        let client = running.client();
        Self { _running: running, client }
    }

    async fn call(&self, action: &str, params: &[(&str, &str)]) -> Answer {
        self.client.query("AKIAME", action, params).await.unwrap()
    }

    /// A call that must succeed.
    async fn ok(&self, action: &str, params: &[(&str, &str)]) -> Answer {
        let answer = self.call(action, params).await;
        assert_eq!(answer.status, 200, "{action}: {}", answer.body);
        assert!(answer.body.ends_with("Response>"));
        answer
    }

    /// A call that must be refused with that status and code.
    async fn refused(
        &self,
        action: &str,
        params: &[(&str, &str)],
        status: u16,
        code: &str,
    ) -> Answer {
        let answer = self.call(action, params).await;
        assert_eq!(
            (answer.status, answer.code()),
            (status, Some(code)),
            "{action}: {}",
            answer.body
        );
        answer
    }

    async fn inject(&self, fault: Fault) -> String {
        self.client.inject(&fault).await.unwrap()
    }

    async fn always(&self, action: &str, kind: FaultKind) -> String {
        self.inject(Fault::on(action, kind)).await
    }

    async fn instance(&self, kind: &str) -> String {
        let spec = InstanceSpec { instance_type: kind.into(), ..InstanceSpec::default() };
        self.client.add_instance(&spec).await.unwrap().id
    }

    async fn eni(&self, params: &[(&str, &str)]) -> String {
        let subnet = subnet_id(1);
        let mut all = vec![("SubnetId", subnet.as_str())];
        all.extend_from_slice(params);
        self.ok("CreateNetworkInterface", &all)
            .await
            .element("networkInterfaceId")
            .unwrap()
            .to_owned()
    }

    /// A trunk on a new instance of that type: instance, trunk, attachment.
    async fn trunk(&self, kind: &str) -> (String, String, String) {
        let instance = self.instance(kind).await;
        let trunk = self.eni(&[("InterfaceType", "trunk")]).await;
        let params = [
            ("NetworkInterfaceId", trunk.as_str()),
            ("InstanceId", &instance),
            ("DeviceIndex", "2"),
        ];
        let attached = self.ok("AttachNetworkInterface", &params).await;
        let attachment = attached.element("attachmentId").unwrap().to_owned();
        (instance, trunk, attachment)
    }

    async fn associate(&self, branch: &str, trunk: &str, vlan: &str) -> Answer {
        self.call(
            "AssociateTrunkInterface",
            &[("BranchInterfaceId", branch), ("TrunkInterfaceId", trunk), ("VlanId", vlan)],
        )
        .await
    }

    /// A new branch on that VLAN: ENI and association.
    async fn branch(&self, trunk: &str, vlan: &str) -> (String, String) {
        let branch = self.eni(&[]).await;
        let answer = self.associate(&branch, trunk, vlan).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        (branch, answer.element("associationId").unwrap().to_owned())
    }

    async fn truth(&self, eni: &str) -> Option<EniState> {
        self.client.state().await.unwrap().eni(eni).cloned()
    }

    /// The `status` that describe by id shows.
    async fn status(&self, eni: &str) -> String {
        let answer = self.call("DescribeNetworkInterfaces", &[("NetworkInterfaceId.1", eni)]).await;
        // Of an attached one the element comes first for the ENI, then for the attachment.
        answer.element("status").or(answer.code()).unwrap_or_default().to_owned()
    }

    /// The ids that a list shows.
    async fn listed(&self, filters: &[(&str, &str)]) -> Vec<String> {
        let mut params = vec![("MaxResults", "1000")];
        params.extend_from_slice(filters);
        let answer = self.ok("DescribeNetworkInterfaces", &params).await;
        answer.elements("networkInterfaceId").map(ToOwned::to_owned).collect()
    }

    /// The log entries of one action.
    async fn logged(&self, action: &str) -> Vec<LogEntry> {
        let mut log = self.client.log(1).await.unwrap();
        log.retain(|entry| entry.action == action);
        log
    }
}

/// Asks again until it holds, or fails after ten seconds.
async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while !holds().await {
        assert!(tokio::time::Instant::now() < deadline, "not within ten seconds: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
