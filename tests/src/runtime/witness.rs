//! What the machine really had, and when: read by nobody else than this witness, and not by the agent's code.
//!
//! A thread looks at every hierarchy each 20 ms and notes when a pod's cgroup, and a process in it, was last there.

use crate::now_ms;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Pause between two looks.
const PACE: Duration = Duration::from_millis(20);

/// What was seen of one pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seen {
    /// When its cgroup was first there, in milliseconds since the Unix epoch.
    pub cgroup_first: i64,
    /// When it was last there.
    pub cgroup_last: i64,
    /// When a process was last in it.
    pub process_last: i64,
}

/// The witness; ends with this value.
#[derive(Debug)]
pub struct Witness {
    seen: Arc<Mutex<BTreeMap<String, Seen>>>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Witness {
    /// Looks below these cgroups from now on.
    pub fn start(folders: Vec<PathBuf>) -> Self {
        let seen: Arc<Mutex<BTreeMap<String, Seen>>> = Arc::default();
        let stop: Arc<AtomicBool> = Arc::default();
        let (board, end) = (Arc::clone(&seen), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !end.load(Ordering::Acquire) {
                let mut found = BTreeMap::new();
                for folder in &folders {
                    look(folder, &mut found);
                }
                let now = now_ms();
                let mut board = board.lock().unwrap_or_else(PoisonError::into_inner);
                for (uid, process) in found {
                    let seen = board.entry(uid).or_default();
                    if seen.cgroup_first == 0 {
                        seen.cgroup_first = now;
                    }
                    seen.cgroup_last = now;
                    if process {
                        seen.process_last = now;
                    }
                }
                drop(board);
                std::thread::sleep(PACE);
            }
        });
        Self { seen, stop, thread: Some(thread) }
    }

    /// What was seen of a pod so far.
    pub fn of(&self, uid: &str) -> Seen {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(uid).copied().unwrap_or_default()
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A witness that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// Notes each pod cgroup below `folder`, and whether a process is in it.
fn look(folder: &Path, found: &mut BTreeMap<String, bool>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        match name.strip_prefix("pod") {
            Some(uid) => *found.entry(uid.to_owned()).or_default() |= has_process(&path),
            None => look(&path, found),
        }
    }
}

fn has_process(folder: &Path) -> bool {
    let own = std::fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    if !own.is_empty() {
        return true;
    }
    let below = std::fs::read_dir(folder).into_iter().flatten().flatten();
    below
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .any(|entry| has_process(&entry.path()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_and_their_processes_are_found_in_any_class() {
        let folder = tempfile::tempdir().unwrap();
        let main = folder.path().join("kubepods/besteffort/podabc/main");
        std::fs::create_dir_all(&main).unwrap();
        std::fs::write(main.join("cgroup.procs"), "12\n").unwrap();
        std::fs::create_dir_all(folder.path().join("kubepods/podxyz")).unwrap();
        let mut found = BTreeMap::new();
        look(folder.path(), &mut found);
        let wanted = [("abc".to_owned(), true), ("xyz".to_owned(), false)];
        assert_eq!(found, BTreeMap::from(wanted));
    }
}
