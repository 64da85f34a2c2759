//! A node's cgroup tree, as plain directories.
//!
//! The agent is given the directory as its `--cgroup-root`, so the layout below it is that of a real host: the cgroupfs
//! driver's `kubepods/<qos>/pod<uid>` or the systemd driver's `kubepods.slice/…-pod<uid with _>.slice`, once for
//! cgroup v2, once per hierarchy for v1. A running sandbox has a directory of its own inside, which goes first.

use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Pod;

/// `cgroupDriver` of the kubelet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Driver {
    /// `kubepods/besteffort/pod<uid>`.
    Cgroupfs,
    /// `kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod<uid>.slice`.
    Systemd,
}

/// cgroup version of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Version {
    /// One tree per controller.
    V1,
    /// One tree.
    V2,
}

/// Controllers that have a tree of their own under v1 (a selection).
const HIERARCHIES: [&str; 3] = ["cpu,cpuacct", "memory", "pids"];

/// Directory of a sandbox inside its pod's.
const SANDBOX: &str = "sandbox";

/// Layout of one node's tree.
#[derive(Debug, Clone)]
pub struct Tree {
    root: PathBuf,
    driver: Driver,
    version: Version,
}

/// A pod's QoS class as far as its cgroup's place is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Qos {
    /// Directly below `kubepods`.
    Guaranteed,
    /// Below `burstable`.
    Burstable,
    /// Below `besteffort`.
    BestEffort,
}

impl Qos {
    /// The class that the API server wrote into the status, else the cheapest.
    pub fn of(pod: &Pod) -> Self {
        match pod.status.as_ref().and_then(|s| s.qos_class.as_deref()) {
            Some("Guaranteed") => Self::Guaranteed,
            Some("Burstable") => Self::Burstable,
            _ => Self::BestEffort,
        }
    }

    fn name(self) -> Option<&'static str> {
        match self {
            Self::Guaranteed => None,
            Self::Burstable => Some("burstable"),
            Self::BestEffort => Some("besteffort"),
        }
    }
}

impl Tree {
    /// A tree below `root`, which need not exist yet.
    pub fn new(root: &Path, driver: Driver, version: Version) -> Self {
        Self { root: root.to_owned(), driver, version }
    }

    /// Makes the parents that a kubelet makes at its start.
    pub fn prepare(&self) -> io::Result<()> {
        for qos in [Qos::Guaranteed, Qos::Burstable, Qos::BestEffort] {
            for root in self.roots() {
                std::fs::create_dir_all(root.join(self.parent(qos)))?;
            }
        }
        Ok(())
    }

    /// Makes the pod's directory with its sandbox inside.
    pub fn make(&self, qos: Qos, uid: &str) -> io::Result<()> {
        self.pod_dirs(qos, uid).try_for_each(|dir| std::fs::create_dir_all(dir.join(SANDBOX)))
    }

    /// Removes what is inside the pod's directory: its processes have ended.
    pub fn empty(&self, qos: Qos, uid: &str) -> io::Result<()> {
        self.pod_dirs(qos, uid).try_for_each(|dir| remove(&dir.join(SANDBOX)))
    }

    /// Removes the pod's directory.
    pub fn remove(&self, qos: Qos, uid: &str) -> io::Result<()> {
        self.empty(qos, uid)?;
        self.pod_dirs(qos, uid).try_for_each(|dir| remove(&dir))
    }

    /// Removes everything (a reboot) and makes the parents anew.
    pub fn wipe(&self) -> io::Result<()> {
        match std::fs::remove_dir_all(&self.root) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        self.prepare()
    }

    fn roots(&self) -> Vec<PathBuf> {
        match self.version {
            Version::V2 => vec![self.root.clone()],
            Version::V1 => HIERARCHIES.iter().map(|h| self.root.join(h)).collect(),
        }
    }

    fn parent(&self, qos: Qos) -> PathBuf {
        match (self.driver, qos.name()) {
            (Driver::Cgroupfs, None) => PathBuf::from("kubepods"),
            (Driver::Cgroupfs, Some(class)) => Path::new("kubepods").join(class),
            (Driver::Systemd, None) => PathBuf::from("kubepods.slice"),
            (Driver::Systemd, Some(class)) => {
                Path::new("kubepods.slice").join(format!("kubepods-{class}.slice"))
            }
        }
    }

    fn pod_dirs(&self, qos: Qos, uid: &str) -> impl Iterator<Item = PathBuf> {
        let name = match (self.driver, qos.name()) {
            (Driver::Cgroupfs, _) => format!("pod{uid}"),
            (Driver::Systemd, None) => format!("kubepods-pod{}.slice", uid.replace('-', "_")),
            (Driver::Systemd, Some(class)) => {
                format!("kubepods-{class}-pod{}.slice", uid.replace('-', "_"))
            }
        };
        let parent = self.parent(qos);
        self.roots().into_iter().map(move |root| root.join(&parent).join(&name))
    }
}

fn remove(dir: &Path) -> io::Result<()> {
    match std::fs::remove_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "5c9e2b52-1b0e-4b3b-8a53-0d7c2f9d5a11";

    #[test]
    fn pod_directories_have_the_drivers_names() {
        let dir = tempfile::tempdir().unwrap();
        for (driver, qos, path) in [
            (Driver::Cgroupfs, Qos::BestEffort, format!("kubepods/besteffort/pod{UID}")),
            (Driver::Cgroupfs, Qos::Guaranteed, format!("kubepods/pod{UID}")),
            (
                Driver::Systemd,
                Qos::Burstable,
                format!(
                    "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice",
                    UID.replace('-', "_")
                ),
            ),
        ] {
            let tree = Tree::new(&dir.path().join("v2"), driver, Version::V2);
            tree.prepare().unwrap();
            tree.make(qos, UID).unwrap();
            let made = dir.path().join("v2").join(&path);
            assert!(made.is_dir(), "{path}");
            tree.remove(qos, UID).unwrap();
            assert!(!made.exists() && made.parent().unwrap().is_dir(), "{path}");
        }
    }

    #[test]
    fn v1_has_the_pod_in_every_hierarchy() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::new(dir.path(), Driver::Cgroupfs, Version::V1);
        tree.prepare().unwrap();
        tree.make(Qos::BestEffort, UID).unwrap();
        let pod = |h: &str| dir.path().join(h).join(format!("kubepods/besteffort/pod{UID}"));
        assert!(HIERARCHIES.iter().all(|h| pod(h).is_dir()));
        tree.wipe().unwrap();
        assert!(HIERARCHIES.iter().all(|h| !pod(h).exists()));
    }
}
