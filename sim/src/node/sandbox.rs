//! One pod's life on its node, from the cgroup to the end of the API object.
//!
//! The order of the end is the measured one (`real-node.md` §1), because the rules of release rest on it: the process
//! ends, then the link goes (CNI DEL), then the phase is written, then the cgroup goes, and only then the kubelet
//! deletes the API object. A force-deleted pod's object is gone first; the rest follows in the same order. The cgroup
//! never goes before DEL has succeeded.
//!
//! Links are addressed by name alone, as the CNI does: an ADD deletes another pod's link of its name, and a late DEL
//! removes a successor's. Both are recorded.
//!
//! A static pod does not end with its mirror: the mirror is made again, until the manifest is taken away.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::api::Written;
use super::cgroup::Qos;
use super::cni::{self, AddError, Branch};
use super::host::{Host, Seen};
use super::model::{BranchState, What};
use super::pace::Step;
use super::pod;
use super::record::About;

/// Name of the link for a VLAN. The CNI does not check the VLAN's range.
pub fn link_name(vlan: u16) -> String {
    format!("vlan.eth.{vlan}")
}

/// Why a pod ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// `deletionTimestamp` was set.
    Deleted,
    /// The API object is gone already.
    ForceDeleted,
    /// Its process ended by itself.
    Completed,
    /// The static pod's manifest was taken away.
    ManifestRemoved,
}

impl Cause {
    fn name(self) -> &'static str {
        match self {
            Self::Deleted => "deleted",
            Self::ForceDeleted => "force-deleted",
            Self::Completed => "completed",
            Self::ManifestRemoved => "manifest-removed",
        }
    }
}

/// Runs a pod to its end.
pub async fn live(
    host: Arc<Host>,
    seen: watch::Receiver<Seen>,
    deaths: watch::Receiver<u64>,
    key: String,
) {
    let qos = Qos::of(&seen.borrow().pod);
    let mut sandbox = Sandbox { host, seen, deaths, key, qos, branch: None };
    sandbox.live().await;
    sandbox.host.forget(&sandbox.key);
}

struct Sandbox {
    host: Arc<Host>,
    seen: watch::Receiver<Seen>,
    /// Changes when the sandbox dies.
    deaths: watch::Receiver<u64>,
    /// The UID by which the kubelet knows the pod.
    key: String,
    qos: Qos,
    branch: Option<Branch>,
}

impl Sandbox {
    async fn live(&mut self) {
        self.host.kubelet_up().await;
        if pod::is_ended(&self.pod()) {
            // It ended under an earlier kubelet: nothing is made for it.
            return self.end_object(Cause::Completed).await;
        }
        if let Some(cause) = self.over() {
            return self.end_object(cause).await;
        }
        self.make_cgroup().await;
        sleep(self.host.common.pace.of(Step::SandboxStart)).await;
        if let Some(cause) = self.add().await {
            return self.tear_down(cause, false).await;
        }
        sleep(self.host.common.pace.of(Step::ContainerStart)).await;
        let cause = self.run().await;
        self.tear_down(cause, true).await;
    }

    fn pod(&self) -> Arc<Pod> {
        Arc::clone(&self.seen.borrow().pod)
    }

    fn about(&self) -> About {
        let mut about = pod::about(&self.host.name, &self.pod());
        if let Some(branch) = &self.branch {
            about.eni = Some(branch.eni.clone());
            about.vlan = Some(branch.vlan);
        }
        about
    }

    fn log(&self, what: What, detail: impl Into<String>) {
        self.host.common.record.add(&self.about(), what, detail);
    }

    fn time(&self, key: &str) -> Duration {
        pod::time(&self.pod(), key).map_or(Duration::ZERO, |t| self.host.common.pace.scaled(t))
    }

    /// Whether the pod has to end, by what the API says. A static pod does not end with its mirror.
    fn over(&self) -> Option<Cause> {
        let seen = self.seen.borrow();
        if pod::is_mirror(&seen.pod) {
            seen.removed.then_some(Cause::ManifestRemoved)
        } else if seen.gone {
            Some(Cause::ForceDeleted)
        } else {
            pod::is_deleting(&seen.pod).then_some(Cause::Deleted)
        }
    }

    /// Waits until the API shows something new. The channel's other end lives as long as this task is in the table.
    async fn changed(&mut self) {
        if self.seen.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    async fn make_cgroup(&self) {
        while let Err(error) = self.host.tree.make(self.qos, &self.key) {
            tracing::warn!(node = self.host.name, %error, "failed to make a pod cgroup; trying again");
            sleep(self.host.common.pace.of(Step::AddRetry)).await;
        }
        self.host.update(&self.key, |s| s.cgroup = true);
        self.log(What::CgroupMade, "");
    }

    /// CNI ADD, tried again without limit until it succeeds or the pod is over.
    async fn add(&mut self) -> Option<Cause> {
        let mut told = None;
        let mut hold = self.host.held();
        let mut trunk = self.host.trunk();
        loop {
            self.host.kubelet_up().await;
            self.seen.mark_unchanged();
            if let Some(cause) = self.over() {
                return Some(cause);
            }
            let is_held = *hold.borrow_and_update();
            trunk.mark_unchanged();
            match self.try_add(is_held).await {
                Ok(()) => {
                    self.log(What::Add, "");
                    return None;
                }
                Err(error) if told.as_ref() == Some(&error) => {}
                Err(error) => {
                    self.log(What::AddFailed, error.to_string());
                    told = Some(error);
                }
            }
            let retry = self.host.common.pace.of(Step::AddRetry);
            tokio::select! {
                () = self.changed() => {}
                _ = hold.changed() => {}
                _ = trunk.changed() => {}
                () = sleep(retry) => {}
            }
        }
    }

    async fn try_add(&mut self, is_held: bool) -> Result<(), AddError> {
        let pod = self.pod();
        if is_held {
            return Err(AddError::Held);
        }
        if !cni::wants_branch(&pod) {
            return Ok(());
        }
        if self.host.trunk().borrow().is_none() {
            return Err(AddError::NoTrunk);
        }
        let branch = cni::branch_of(&pod, self.host.common.family)?;
        // A plugin that was started finishes what it began, whatever becomes of the pod meanwhile.
        sleep(self.time(pod::SLOW_ADD)).await;
        let name = link_name(branch.vlan);
        let links = &self.host.links;
        let failed = |e: super::netns::Error| AddError::Link(e.to_string());
        if let Some(mac) = links.mac_of(&name).await.map_err(failed)? {
            self.log(
                What::LinkChanged,
                format!("ADD deletes the existing link {name} with MAC {mac}"),
            );
        }
        links.add_branch(&name, &branch.mac).await.map_err(failed)?;
        self.host.update(&self.key, |s| s.branch = Some(shown(&branch)));
        self.branch = Some(branch);
        Ok(())
    }

    /// Runs until something ends it. The process may end by itself while the kubelet is down.
    async fn run(&mut self) -> Cause {
        self.host.update(&self.key, |s| s.running = true);
        let ip = match &self.branch {
            Some(branch) => branch.ip.clone(),
            None if pod::host_network(&self.pod()) => {
                self.host.host_ip().unwrap_or_else(|| self.host.new_ip())
            }
            None => self.host.new_ip(),
        };
        let end = pod::time(&self.pod(), pod::EXIT_AFTER)
            .map(|t| Instant::now() + self.host.common.pace.scaled(t));
        let mut told = String::new();
        loop {
            self.host.kubelet_up().await;
            self.seen.mark_unchanged();
            if let Some(cause) = self.over() {
                return cause;
            }
            self.keep_mirror().await;
            let pod = self.pod();
            if told != pod::uid(&pod) && !self.seen.borrow().gone {
                let host_ip = self.host.host_ip();
                let written = self.host.common.writer.running(&pod, &ip, host_ip.as_deref()).await;
                if written == Written::Done {
                    pod::uid(&pod).clone_into(&mut told);
                    self.log(What::Running, ip.clone());
                }
            }
            let exit = async {
                match end {
                    Some(end) => sleep_until(end).await,
                    None => std::future::pending().await,
                }
            };
            let mut deaths = self.deaths.clone();
            tokio::select! {
                () = self.changed() => {}
                () = exit => return Cause::Completed,
                Ok(()) = deaths.changed() => {
                    self.deaths = deaths;
                    if let Some(cause) = self.restart().await {
                        return cause;
                    }
                }
            }
        }
    }

    /// The sandbox is made anew in the same pod: cgroup and annotation stay, the link goes and comes back. A pod that
    /// ends meanwhile says why.
    async fn restart(&mut self) -> Option<Cause> {
        self.log(What::SandboxRestarted, "");
        self.host.update(&self.key, |s| s.running = false);
        self.log(What::ProcessEnded, "the sandbox died");
        self.del().await;
        sleep(self.host.common.pace.of(Step::SandboxStart)).await;
        if let Some(cause) = self.add().await {
            return Some(cause);
        }
        sleep(self.host.common.pace.of(Step::ContainerStart)).await;
        self.host.update(&self.key, |s| s.running = true);
        self.log(What::Running, "again");
        None
    }

    /// A mirror that is being deleted is let go; one that is gone is made again.
    async fn keep_mirror(&self) {
        let seen = self.seen.borrow().clone();
        if !pod::is_mirror(&seen.pod) {
            return;
        }
        let writer = &self.host.common.writer;
        if seen.gone {
            writer.recreate_mirror(&seen.pod).await;
        } else if pod::is_deleting(&seen.pod) && writer.delete(&seen.pod).await == Written::Done {
            self.log(What::ObjectDeleted, "mirror");
        }
    }

    async fn tear_down(&mut self, cause: Cause, started: bool) {
        let pace = self.host.common.pace;
        self.host.kubelet_up().await;
        self.log(What::Del, cause.name());
        if started {
            if cause != Cause::Completed {
                sleep(pace.of(Step::ProcessEnd) + self.time(pod::IGNORE_TERM)).await;
            }
            self.host.update(&self.key, |s| s.running = false);
            self.log(What::ProcessEnded, "");
        }
        if let Err(error) = self.host.tree.empty(self.qos, &self.key) {
            tracing::warn!(node = self.host.name, %error, "failed to empty a pod cgroup");
        }
        self.del().await;
        let phase = if started { "Succeeded" } else { "Failed" };
        tokio::join!(self.write_phase(cause, phase), self.remove_cgroup());
        self.end_object(cause).await;
    }

    /// CNI DEL: removes the link by its name, whoever made it.
    async fn del(&mut self) {
        sleep(self.time(pod::SLOW_DEL) + self.host.common.pace.of(Step::LinkGone)).await;
        let Some(branch) = self.branch.clone() else {
            return;
        };
        let name = link_name(branch.vlan);
        loop {
            let removed = async {
                let mac = self.host.links.mac_of(&name).await?;
                self.host.links.remove(&name).await?;
                Ok::<_, super::netns::Error>(mac)
            };
            match removed.await {
                Ok(mac) => {
                    if mac.as_ref().is_some_and(|m| *m != branch.mac) {
                        let mac = mac.unwrap_or_default();
                        self.log(
                            What::LinkChanged,
                            format!("DEL removes {name} of another pod, MAC {mac}"),
                        );
                    }
                    break;
                }
                Err(error) => {
                    tracing::warn!(node = self.host.name, %error, "CNI DEL failed; trying again");
                    sleep(self.host.common.pace.of(Step::AddRetry)).await;
                }
            }
        }
        self.log(What::LinkGone, name);
        self.host.update(&self.key, |s| s.branch = None);
    }

    async fn write_phase(&self, cause: Cause, phase: &str) {
        sleep(self.host.common.pace.of(Step::PhaseWritten)).await;
        if cause == Cause::ForceDeleted || self.seen.borrow().gone {
            return;
        }
        if self.host.common.writer.ended(&self.pod(), phase).await == Written::Done {
            self.log(What::Ended, phase);
        }
    }

    async fn remove_cgroup(&self) {
        sleep(self.host.common.pace.of(Step::CgroupGone)).await;
        while let Err(error) = self.host.tree.remove(self.qos, &self.key) {
            tracing::warn!(node = self.host.name, %error, "failed to remove a pod cgroup; trying again");
            sleep(self.host.common.pace.of(Step::AddRetry)).await;
        }
        self.log(What::CgroupGone, "");
        self.host.update(&self.key, |s| s.cgroup = false);
    }

    /// The API object goes once it is being deleted. Only when the watch has shown its end is the pod forgotten: an
    /// event that is still on its way must not start it again.
    async fn end_object(&mut self, cause: Cause) {
        loop {
            self.host.kubelet_up().await;
            self.seen.mark_unchanged();
            let seen = self.seen.borrow().clone();
            if seen.gone {
                return;
            }
            if pod::is_deleting(&seen.pod) || cause == Cause::ManifestRemoved {
                sleep(self.host.common.pace.of(Step::ObjectDeleted)).await;
                if self.host.common.writer.delete(&seen.pod).await == Written::Done {
                    self.log(What::ObjectDeleted, "");
                }
                let uid = pod::uid(&seen.pod).to_owned();
                // The channel's other end lives as long as this task is in the table.
                let _gone = self.seen.wait_for(|s| s.gone && pod::uid(&s.pod) == uid).await;
                return;
            }
            self.changed().await;
        }
    }
}

fn shown(branch: &Branch) -> BranchState {
    BranchState {
        eni: branch.eni.clone(),
        vlan: branch.vlan,
        mac: branch.mac.clone(),
        ip: branch.ip.clone(),
    }
}
