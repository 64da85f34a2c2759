//! The tree of cgroups below the root: walked whole for every look, followed by inotify in between.
//!
//! A look is always a walk, never what inotify told: evidence of absence is read from the directories themselves. The
//! watches are there for pods so short-lived that no look meets them (they must count as *seen*, design §4.2) and to
//! start a look early. Watching a growing tree is racy, so every new watch is followed by a scan of its directory; a
//! removed directory says nothing itself, its parent does (`real-node.md` §7).
//!
//! Every directory that is not a pod's is a possible parent and is watched, because the kubelet's root can be configured
//! and cgroup v1 repeats it in every hierarchy. A directory that vanishes during the walk was a pod's or an empty
//! parent's and is gone; any other error makes the whole walk fail, since what is in there is unknown. A pod is there if
//! any hierarchy has it, so on v1 it is seen in the first and gone with the last.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::{Path, PathBuf};

use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask};
use trunkline_core::id::PodUid;

use super::name;

/// Deepest level below the root that is walked; kubelets put pods at most six deep.
const MAX_DEPTH: usize = 10;
/// More directories than this are not walked; a node has some hundreds per hierarchy.
const MAX_DIRECTORIES: usize = 50_000;
/// Bytes read from inotify at once.
const BUFFER: usize = 16 * 1024;

/// One life of a pod's cgroup. An inode number is not used again while the system runs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Incarnation {
    uid: PodUid,
    inode: u64,
}

/// The watched tree. All calls block for as long as the file system does.
#[derive(Debug)]
pub(super) struct CgroupTree {
    root: PathBuf,
    inotify: Inotify,
    by_watch: HashMap<WatchDescriptor, PathBuf>,
    watched: BTreeMap<PathBuf, (WatchDescriptor, u64)>,
    pods: BTreeMap<PathBuf, Incarnation>,
    refused_watches: bool,
}

/// State of one walk.
#[derive(Default)]
struct Walk {
    pods: BTreeMap<PathBuf, Incarnation>,
    parents: BTreeSet<PathBuf>,
    directories: usize,
}

impl CgroupTree {
    /// A tree below `root`; nothing is read or watched before the first [`Self::scan`].
    pub(super) fn new(root: &Path) -> io::Result<Self> {
        Ok(Self {
            root: root.to_owned(),
            inotify: Inotify::init()?,
            by_watch: HashMap::new(),
            watched: BTreeMap::new(),
            pods: BTreeMap::new(),
            refused_watches: false,
        })
    }

    /// A descriptor that becomes readable when [`Self::drain`] has something to read.
    pub(super) fn wake_fd(&self) -> io::Result<OwnedFd> {
        self.inotify.as_fd().try_clone_to_owned()
    }

    /// Number of watched directories.
    pub(super) fn watches(&self) -> usize {
        self.watched.len()
    }

    /// Walks the whole tree, watches what is new, and returns the UIDs of all pod cgroups.
    pub(super) fn scan(&mut self) -> io::Result<BTreeSet<PodUid>> {
        let inode = std::fs::metadata(&self.root)?.ino();
        let mut walk = Walk::default();
        let root = self.root.clone();
        self.visit(&root, inode, 0, &mut walk)?;
        self.pods = walk.pods;
        let gone: Vec<PathBuf> =
            self.watched.keys().filter(|path| !walk.parents.contains(*path)).cloned().collect();
        for path in gone {
            self.unwatch(&path);
        }
        Ok(self.pods.values().map(|pod| pod.uid.clone()).collect())
    }

    /// Reads what inotify has to say until nothing is left, and returns the UIDs whose cgroup appeared, those that are
    /// gone again included.
    pub(super) fn drain(&mut self) -> io::Result<BTreeSet<PodUid>> {
        let mut seen = BTreeSet::new();
        let mut buffer = vec![0; BUFFER];
        loop {
            let events: Vec<_> = match self.inotify.read_events(&mut buffer) {
                Ok(events) => events.map(|e| (e.wd, e.mask, e.name.map(OsStr::to_owned))).collect(),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(seen),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            };
            for (watch, mask, name) in events {
                self.on_event(&watch, mask, name.as_deref(), &mut seen)?;
            }
        }
    }

    fn on_event(
        &mut self,
        watch: &WatchDescriptor,
        mask: EventMask,
        name: Option<&OsStr>,
        seen: &mut BTreeSet<PodUid>,
    ) -> io::Result<()> {
        if mask.contains(EventMask::Q_OVERFLOW) {
            let before = self.pods.clone();
            self.scan()?;
            seen.extend(new_pods(&before, &self.pods));
            return Ok(());
        }
        let Some(parent) = self.by_watch.get(watch).cloned() else {
            return Ok(());
        };
        if mask.contains(EventMask::IGNORED) {
            self.by_watch.remove(watch);
            if self.watched.get(&parent).is_some_and(|(current, _)| current == watch) {
                self.watched.remove(&parent);
            }
            return Ok(());
        }
        let Some(name) = name.filter(|_| mask.contains(EventMask::ISDIR)) else {
            return Ok(());
        };
        let path = parent.join(name);
        if mask.intersects(EventMask::DELETE | EventMask::MOVED_FROM) {
            self.forget(&path);
        } else if mask.intersects(EventMask::CREATE | EventMask::MOVED_TO) {
            self.on_created(&path, seen)?;
        }
        Ok(())
    }

    fn on_created(&mut self, path: &Path, seen: &mut BTreeSet<PodUid>) -> io::Result<()> {
        let inode = match std::fs::symlink_metadata(path) {
            Ok(meta) => Some(meta.ino()),
            Err(e) if is_gone(&e) => None,
            Err(e) => return Err(e),
        };
        match (self.pod_at(path), inode) {
            (Some(uid), Some(inode)) => {
                let now = Incarnation { uid: uid.clone(), inode };
                if self.pods.insert(path.to_owned(), now.clone()) != Some(now) {
                    seen.insert(uid);
                }
            }
            (Some(uid), None) => {
                seen.insert(uid);
            }
            (None, Some(inode)) => {
                let mut walk = Walk::default();
                let depth = path.strip_prefix(&self.root).map_or(0, |p| p.iter().count());
                self.visit(path, inode, depth, &mut walk)?;
                seen.extend(new_pods(&self.pods, &walk.pods));
                self.pods.extend(walk.pods);
            }
            (None, None) => {}
        }
        Ok(())
    }

    /// Watches a directory that is no pod's, then reads it and everything below.
    fn visit(&mut self, dir: &Path, inode: u64, depth: usize, walk: &mut Walk) -> io::Result<()> {
        if !self.watch(dir, inode)? {
            return if depth == 0 { Err(io::ErrorKind::NotFound.into()) } else { Ok(()) };
        }
        walk.parents.insert(dir.to_owned());
        let entries = match std::fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(e) if depth > 0 && is_gone(&e) => return Ok(()),
            Err(e) => return Err(e),
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(e) if depth > 0 && is_gone(&e) => return Ok(()),
                Err(e) => return Err(e),
            };
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => {}
                Ok(_) => continue,
                Err(e) if is_gone(&e) => continue,
                Err(e) => return Err(e),
            }
            walk.directories += 1;
            if walk.directories > MAX_DIRECTORIES {
                return Err(io::Error::other("more directories than a node's cgroups can have"));
            }
            let path = entry.path();
            if let Some(uid) = self.pod_at(&path) {
                walk.pods.insert(path, Incarnation { uid, inode: entry.ino() });
            } else if depth < MAX_DEPTH {
                self.visit(&path, entry.ino(), depth + 1, walk)?;
            }
        }
        Ok(())
    }

    /// Makes sure that this incarnation of a directory is watched; `false` if it is gone. Where the system grants no
    /// further watch the walk still sees everything, only pods that live between two looks are missed.
    fn watch(&mut self, dir: &Path, inode: u64) -> io::Result<bool> {
        if self.watched.get(dir).is_some_and(|(_, watched)| *watched == inode) {
            return Ok(true);
        }
        self.unwatch(dir);
        let mask = WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVED_FROM
            | WatchMask::MOVED_TO
            | WatchMask::ONLYDIR;
        match self.inotify.watches().add(dir, mask) {
            Ok(watch) => {
                self.by_watch.insert(watch.clone(), dir.to_owned());
                self.watched.insert(dir.to_owned(), (watch, inode));
            }
            Err(e) if is_gone(&e) => return Ok(false),
            Err(e) if e.kind() == io::ErrorKind::StorageFull => {
                if !std::mem::replace(&mut self.refused_watches, true) {
                    tracing::warn!(
                        error = %e,
                        "no further inotify watch: pods that live between two looks are released the slow way; \
                         raise fs.inotify.max_user_watches"
                    );
                }
            }
            Err(e) => return Err(e),
        }
        Ok(true)
    }

    fn unwatch(&mut self, path: &Path) {
        if let Some((watch, _)) = self.watched.remove(path) {
            self.by_watch.remove(&watch);
            // Fails where the kernel dropped the watch with its directory.
            let _ = self.inotify.watches().remove(watch);
        }
    }

    /// Drops what is known of a removed directory and everything below it.
    fn forget(&mut self, path: &Path) {
        self.pods.retain(|pod, _| !pod.starts_with(path));
        let gone: Vec<PathBuf> =
            self.watched.keys().filter(|dir| dir.starts_with(path)).cloned().collect();
        for dir in gone {
            self.unwatch(&dir);
        }
    }

    fn pod_at(&self, path: &Path) -> Option<PodUid> {
        let relative = path.strip_prefix(&self.root).unwrap_or(path);
        let below = relative.parent().is_some_and(name::is_kubepods);
        name::pod_uid(path.file_name()?.to_str()?, below)
    }
}

/// UIDs of incarnations that are in `after` but not in `before`.
fn new_pods(
    before: &BTreeMap<PathBuf, Incarnation>,
    after: &BTreeMap<PathBuf, Incarnation>,
) -> BTreeSet<PodUid> {
    after
        .iter()
        .filter(|(path, pod)| before.get(*path) != Some(pod))
        .map(|(_, pod)| pod.uid.clone())
        .collect()
}

/// The file system says that the directory does not exist (any more). A cgroup removed while it is open answers ENODEV.
fn is_gone(error: &io::Error) -> bool {
    const ENODEV: i32 = 19;
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(ENODEV)
}
