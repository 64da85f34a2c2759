//! Against real directories and real inotify; a plain directory tree behaves like cgroupfs in all that is used here.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use super::*;

const OWN: &str = "11111111-1111-4111-8111-111111111111";
const A: &str = "aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa";
const B: &str = "bbbbbbbb-bbbb-4bbb-8bbb-bbbbbbbbbbbb";

struct Node {
    dir: tempfile::TempDir,
    cgroups: Cgroups,
    signs: Arc<SignBoard>,
    kubelet: Option<UnixListener>,
}

fn uid(text: &str) -> PodUid {
    PodUid::new(text).unwrap()
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("cgroup")).unwrap();
        let socket = dir.path().join("kubelet.sock");
        let kubelet = Some(UnixListener::bind(&socket).unwrap());
        let signs = Arc::new(SignBoard::default());
        let probe = KubeletProbe::new(&socket);
        let root = dir.path().join("cgroup");
        let cgroups = Cgroups::new(&root, probe, Arc::clone(&signs)).unwrap();
        Self { dir, cgroups, signs, kubelet }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join("cgroup").join(path)
    }

    fn make(&self, path: &str) {
        fs::create_dir_all(self.path(path)).unwrap();
    }

    fn remove(&self, path: &str) {
        fs::remove_dir_all(self.path(path)).unwrap();
    }

    fn restart_kubelet(&mut self) {
        let socket = self.dir.path().join("kubelet.sock");
        let before = self.start();
        self.kubelet = None;
        fs::remove_file(&socket).unwrap();
        self.kubelet = Some(UnixListener::bind(&socket).unwrap());
        assert_ne!(self.start(), before);
    }

    fn start(&self) -> KubeletStart {
        self.cgroups.0.kubelet.start().unwrap()
    }

    async fn uids(&self) -> Vec<String> {
        let uids = self.cgroups.look().await.unwrap();
        uids.iter().map(|u| u.as_str().to_owned()).collect()
    }

    /// Everything seen so far; looks first, which reads the queue.
    async fn seen(&self) -> Vec<(PodUid, KubeletStart)> {
        let _ = self.cgroups.look().await;
        self.signs.changed();
        self.signs.next().await.seen.into_iter().collect()
    }
}

#[tokio::test]
async fn cgroupfs_on_v2_is_read() {
    let node = Node::new();
    node.make(&format!("kubepods/besteffort/pod{OWN}/container"));
    node.make(&format!("kubepods/burstable/pod{A}"));
    node.make(&format!("kubepods/pod{B}"));
    node.make("system.slice/kubelet.service");
    assert_eq!(node.uids().await, [OWN, A, B]);
    node.remove(&format!("kubepods/burstable/pod{A}"));
    assert_eq!(node.uids().await, [OWN, B]);
}

#[tokio::test]
async fn systemd_slices_are_read() {
    let node = Node::new();
    let slice = |uid: &str| uid.replace('-', "_");
    node.make(&format!("kubepods.slice/kubepods-pod{}.slice", slice(OWN)));
    node.make(&format!(
        "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice/cri-containerd-1.scope",
        slice(A)
    ));
    node.make("podruntime.slice/kubelet.service");
    assert_eq!(node.uids().await, [OWN, A]);
}

#[tokio::test]
async fn on_v1_a_pod_is_gone_only_from_all_hierarchies() {
    let node = Node::new();
    for hierarchy in ["cpu", "memory", "systemd"] {
        node.make(&format!("{hierarchy}/kubepods/besteffort/pod{OWN}"));
    }
    node.make(&format!("memory/kubepods/burstable/pod{A}"));
    node.make(&format!("cpu/kubepods/burstable/pod{A}"));
    assert_eq!(node.uids().await, [OWN, A]);
    node.remove(&format!("cpu/kubepods/burstable/pod{A}"));
    assert_eq!(node.uids().await, [OWN, A]);
    node.remove(&format!("memory/kubepods/burstable/pod{A}"));
    assert_eq!(node.uids().await, [OWN]);
}

#[tokio::test]
async fn a_missing_tree_is_unknown_and_never_empty() {
    let node = Node::new();
    node.make(&format!("kubepods/besteffort/pod{A}"));
    assert_eq!(node.uids().await, [A]);
    fs::remove_dir_all(node.path("")).unwrap();
    assert_eq!(node.cgroups.look().await, Err(Blind::ReadFailed));
}

#[tokio::test]
async fn links_to_directories_are_not_followed() {
    let node = Node::new();
    node.make(&format!("cpu,cpuacct/kubepods/pod{OWN}"));
    std::os::unix::fs::symlink(node.path("cpu,cpuacct"), node.path("cpu")).unwrap();
    std::os::unix::fs::symlink(node.path(""), node.path("cpu,cpuacct/loop")).unwrap();
    assert_eq!(node.uids().await, [OWN]);
}

#[tokio::test]
async fn pods_that_come_and_go_between_two_looks_are_seen() {
    let node = Node::new();
    node.make(&format!("kubepods/besteffort/pod{OWN}"));
    node.uids().await;
    for n in 0..50 {
        let path = format!("kubepods/besteffort/pod00000000-0000-4000-8000-{n:012}");
        node.make(&path);
        node.remove(&path);
    }
    assert_eq!(node.seen().await.len(), 50);
    assert_eq!(node.uids().await, [OWN]);
}

#[tokio::test]
async fn a_pod_made_at_once_in_a_new_directory_is_seen_by_the_scan_after_the_watch() {
    let node = Node::new();
    node.make(&format!("kubepods/besteffort/pod{OWN}"));
    node.uids().await;
    node.make(&format!("kubepods/burstable/pod{A}"));
    node.cgroups.blocking(Shared::drain).await.unwrap();
    node.remove("kubepods/burstable");
    assert_eq!(node.seen().await, [(uid(A), node.start())]);
    assert_eq!(node.uids().await, [OWN]);
}

#[tokio::test]
async fn a_directory_made_again_under_the_same_name_is_watched_again() {
    let node = Node::new();
    node.make(&format!("kubepods/besteffort/pod{OWN}"));
    node.make("kubepods/burstable");
    node.uids().await;
    for _ in 0..3 {
        node.remove("kubepods/burstable");
        node.make("kubepods/burstable");
        node.cgroups.blocking(Shared::drain).await.unwrap();
        node.make(&format!("kubepods/burstable/pod{B}"));
        node.remove(&format!("kubepods/burstable/pod{B}"));
        assert_eq!(node.seen().await.len(), 1);
    }
    let watches = node.cgroups.watches();
    node.remove("kubepods/burstable");
    node.uids().await;
    assert_eq!(node.cgroups.watches(), watches - 1);
}

#[tokio::test]
async fn a_new_incarnation_of_a_pods_cgroup_is_seen_again() {
    let node = Node::new();
    node.make(&format!("kubepods/besteffort/pod{OWN}"));
    node.make(&format!("kubepods/burstable/pod{A}"));
    node.uids().await;
    assert!(node.seen().await.is_empty(), "the first look itself tells what is there");
    node.remove(&format!("kubepods/burstable/pod{A}"));
    node.make(&format!("kubepods/burstable/pod{A}"));
    assert_eq!(node.seen().await.len(), 1);
}

#[tokio::test]
async fn an_event_that_waited_through_a_kubelet_restart_carries_the_old_start() {
    let mut node = Node::new();
    node.make(&format!("kubepods/besteffort/pod{OWN}"));
    node.uids().await;
    let old = node.start();
    node.make(&format!("kubepods/besteffort/pod{A}"));
    node.remove(&format!("kubepods/besteffort/pod{A}"));
    node.restart_kubelet();
    let seen = node.seen().await;
    assert_eq!(seen.iter().map(|(_, start)| *start).collect::<Vec<_>>(), [old]);

    node.make(&format!("kubepods/besteffort/pod{B}"));
    node.remove(&format!("kubepods/besteffort/pod{B}"));
    let seen = node.seen().await;
    assert_eq!(seen.iter().map(|(_, start)| *start).collect::<Vec<_>>(), [node.start()]);
}

#[tokio::test]
async fn following_reports_without_a_look() {
    let node = Node::new();
    node.make(&format!("kubepods/besteffort/pod{OWN}"));
    node.uids().await;
    let cgroups = node.cgroups.clone();
    let following = tokio::spawn(async move { cgroups.follow().await });
    node.make(&format!("kubepods/besteffort/pod{A}"));
    let limit = Duration::from_secs(20);
    let mut seen = std::collections::BTreeSet::new();
    while seen.is_empty() {
        seen = tokio::time::timeout(limit, node.signs.next()).await.unwrap().seen;
    }
    assert_eq!(seen, [(uid(A), node.start())].into());
    following.abort();
}
