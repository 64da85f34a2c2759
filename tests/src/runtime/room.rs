//! A room of its own for containerd and its containers: mount and process namespaces and a cgroup.
//!
//! Process 1 of the room reads a pipe that only the test's process holds. When that ends, however it ends, process 1 ends
//! and the kernel kills everything in the room; mounts go with the namespace. What is left are empty cgroups, which are
//! removed when this value is dropped, or else by the next room.

use crate::process::Proc;
use crate::{Error, Result, poll};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Start of the names of our cgroups; the test's process id follows.
const CGROUP: &str = "trunkline-room-";
const CGROUPS: &str = "/sys/fs/cgroup";

/// What process 1 does before it waits: `$1` is the run's folder.
const SET_UP: &str = r#"
set -eu
mount --make-rprivate /
mkdir -p "$1/run-containerd" /run/containerd
mount --bind "$1/run-containerd" /run/containerd
mount --make-rshared /
echo ready > "$1/ready"
cat > /dev/null
exit 0
"#;

/// The room.
#[derive(Debug)]
pub struct Room {
    keeper: Child,
    folder: PathBuf,
    cgroup: String,
}

impl Room {
    /// Makes it; its files are in `folder`.
    pub async fn enter(folder: &Path) -> Result<Self> {
        remove_stale_cgroups();
        std::fs::create_dir_all(folder).map_err(Error::file(folder))?;
        let log = folder.join("room.log");
        let out = std::fs::File::create(&log).map_err(Error::file(&log))?;
        let keeper = Command::new("unshare")
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["sh", "-c", SET_UP, "room"])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(out)
            .spawn()
            .map_err(|error| Error::say(format!("cannot start unshare: {error}")))?;
        let cgroup = format!("{CGROUP}{}", std::process::id());
        let mut room = Self { keeper, folder: folder.to_owned(), cgroup };
        let ready = folder.join("ready");
        let up = poll::eventually("the room is ready", Duration::from_secs(30), async || {
            if room.keeper.try_wait().ok().flatten().is_some() {
                return Ok(false);
            }
            if ready.is_file() { Ok(true) } else { Err("not yet") }
        })
        .await?;
        if !up {
            let why = std::fs::read_to_string(&log).unwrap_or_default();
            return Err(Error::say(format!("namespaces cannot be made here: {}", why.trim())));
        }
        for controller in controllers() {
            let folder = controller.join(&room.cgroup);
            std::fs::create_dir_all(&folder).map_err(Error::file(&folder))?;
            // cpuset of version 1 starts empty, and an empty one takes no process.
            for name in ["cpuset.cpus", "cpuset.mems"] {
                if let Ok(value) = std::fs::read_to_string(controller.join(name)) {
                    // Of version 2 there is nothing to be copied.
                    let _ = std::fs::write(folder.join(name), value.trim());
                }
            }
        }
        Ok(room)
    }

    /// The cgroup's path below every hierarchy's root.
    pub fn cgroup(&self) -> String {
        format!("/{}", self.cgroup)
    }

    /// Our cgroup in each hierarchy.
    pub fn cgroup_folders(&self) -> Vec<PathBuf> {
        controllers().into_iter().map(|controller| controller.join(&self.cgroup)).collect()
    }

    fn nsenter(&self) -> Command {
        let mut command = Command::new("nsenter");
        let own = format!("/proc/{}/ns", self.keeper.id());
        command.args([format!("--mount={own}/mnt"), format!("--pid={own}/pid_for_children")]);
        command
    }

    /// Starts a program in the room; `path` is looked at first for the programs that it starts.
    pub fn start(&self, name: &str, program: &Path, args: &[String], path: &Path) -> Result<Proc> {
        let mut command = self.nsenter();
        command
            .arg(program)
            .args(args)
            .env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", path.display()));
        Proc::start(name, &mut command, &self.folder.join(format!("{name}.log")))
    }

    /// Runs a program in the room to its end.
    pub fn run(&self, program: &Path, args: &[&str]) -> Result<String> {
        told(self.nsenter().arg(program).args(args))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // Kills process 1 with it, and that everything in the room.
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
        for folder in self.cgroup_folders() {
            // Processes that were killed are still on their way out.
            for _ in 0..250 {
                if remove_tree(&folder) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

fn told(command: &mut Command) -> Result<String> {
    let program = format!("{command:?}");
    let done =
        command.output().map_err(|error| Error::say(format!("cannot start {program}: {error}")))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    let why = String::from_utf8_lossy(&done.stderr);
    Err(Error::say(format!("{program} failed ({}): {}", done.status, why.trim())))
}

/// The roots of the hierarchies: each controller's of version 1, or the one of version 2.
fn controllers() -> Vec<PathBuf> {
    let root = Path::new(CGROUPS);
    if root.join("cgroup.controllers").is_file() {
        return vec![root.to_owned()];
    }
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.path()).filter(|path| path.join("cgroup.procs").is_file()).collect()
}

/// Removes a cgroup and what is below; true if nothing is left.
fn remove_tree(folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return true };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path());
        }
    }
    std::fs::remove_dir(folder).is_ok()
}

/// Removes the cgroups of tests that were killed.
fn remove_stale_cgroups() {
    for controller in controllers() {
        for entry in std::fs::read_dir(&controller).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let pid = name.strip_prefix(CGROUP).and_then(|pid| pid.parse::<u32>().ok());
            if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                remove_tree(&entry.path());
            }
        }
    }
}
