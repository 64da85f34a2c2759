//! A real containerd with runc, for tests of what the agent reads off a machine.
//!
//! What a kubelet does with cgroups the caller does by hand: it makes the pod's cgroup in every hierarchy, containers are
//! run below it, and it is removed when they are gone.

pub mod room;
pub mod witness;

pub use room::Room;
pub use witness::Witness;

use crate::process::Proc;
use crate::{Error, Result, poll};
use std::path::{Path, PathBuf};
use std::time::Duration;

const GO_MOD: &str = include_str!("../../../xtask/runtime/go.mod");
const FILES: [&str; 5] = ["containerd", "containerd-shim-runc-v2", "ctr", "runc", "pause.tar"];
const IMAGE: &str = "trunkline.test/pause:1";
const SOON: Duration = Duration::from_secs(60);

/// A running containerd. It ends before its room does.
#[derive(Debug)]
pub struct Runtime {
    _containerd: Proc,
    /// Where it runs.
    pub room: Room,
    binaries: PathBuf,
    socket: String,
}

/// The folder that `cargo xtask runtime` fills, or what is missing.
fn binaries() -> Result<PathBuf> {
    let version = GO_MOD
        .lines()
        .find_map(|line| line.trim().strip_prefix("github.com/containerd/containerd/v2 "))
        .and_then(|rest| rest.split_whitespace().next())
        .unwrap_or_default();
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .filter(|folder| !folder.is_empty())
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().map(|home| home.join(".cache")));
    let folder = cache.map(|cache| cache.join("trunkline").join(format!("runtime-{version}")));
    folder.filter(|folder| FILES.iter().all(|name| folder.join(name).is_file())).ok_or_else(|| {
        Error::say("no containerd: run `cargo xtask runtime` (needs Go and a C compiler)")
    })
}

impl Runtime {
    /// Why none can be started here; `None` if it can, as far as that can be told without trying.
    pub fn missing() -> Option<String> {
        if !rustix::process::geteuid().is_root() {
            return Some("a container runtime needs uid 0".to_owned());
        }
        binaries().err().map(|why| why.to_string())
    }

    /// Starts it in a room whose files are in `folder`.
    pub async fn start(folder: &Path) -> Result<Self> {
        let binaries = binaries()?;
        let room = Room::enter(folder).await?;
        let config = folder.join("containerd.toml");
        let socket = folder.join("containerd.sock").display().to_string();
        std::fs::write(&config, configuration(folder, &socket)).map_err(Error::file(&config))?;
        let args = ["--config".to_owned(), config.display().to_string()];
        let mut containerd =
            room.start("containerd", &binaries.join("containerd"), &args, &binaries)?;
        let image = binaries.join("pause.tar").display().to_string();
        let (ctr, base) = (binaries.join("ctr"), ["-a", socket.as_str()]);
        let import = ["images", "import", "--local", "--snapshotter", "native", &image];
        let taken = poll::eventually("containerd takes the image", SOON, async || match containerd
            .must_run()
        {
            Ok(()) => room.run(&ctr, &[&base[..], &import[..]].concat()).map(Ok),
            Err(ended) => Ok(Err(ended)),
        });
        taken.await??;
        Ok(Self { _containerd: containerd, room, binaries, socket })
    }

    fn ctr(&self, args: &[&str]) -> Result<String> {
        let base = ["-a", self.socket.as_str()];
        self.room.run(&self.binaries.join("ctr"), &[&base[..], args].concat())
    }

    /// Starts a container in this cgroup (a path below every hierarchy's root); it waits until it is killed.
    pub fn run(&self, name: &str, cgroup: &str) -> Result<()> {
        let runc = self.binaries.join("runc").display().to_string();
        let args = [
            "run",
            "--detach",
            "--snapshotter",
            "native",
            "--runc-binary",
            &runc,
            "--cgroup",
            cgroup,
        ];
        self.ctr(&[&args[..], &[IMAGE, name][..]].concat()).map(drop)
    }

    /// Kills a container and removes it, with its cgroup.
    pub async fn remove(&self, name: &str) -> Result<()> {
        self.ctr(&["tasks", "kill", "--signal", "SIGKILL", name])?;
        poll::eventually(&format!("{name} can be removed"), SOON, async || {
            self.ctr(&["tasks", "delete", name])
        })
        .await?;
        self.ctr(&["containers", "delete", name]).map(drop)
    }
}

/// The parts that need more than a test has are off.
fn configuration(folder: &Path, socket: &str) -> String {
    let at = |name: &str| folder.join(name).display().to_string();
    format!(
        r#"version = 3
root = "{root}"
state = "{state}"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.erofs", "io.containerd.differ.v1.erofs", "io.containerd.nri.v1.nri"]

[grpc]
address = "{socket}"

[plugins."io.containerd.internal.v1.opt"]
path = "{opt}"
"#,
        root = at("containerd"),
        state = at("containerd-state"),
        opt = at("opt"),
    )
}
