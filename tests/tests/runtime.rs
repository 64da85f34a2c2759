//! The agent's view of pod cgroups on real cgroup file systems, with containers of a real containerd and runc in them.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test's helpers")]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use trunkline_agent::cgroups::Cgroups;
use trunkline_agent::kubelet::KubeletProbe;
use trunkline_agent::signs::SignBoard;
use trunkline_core::id::PodUid;
use trunkline_tests::runtime::{Runtime, Witness};
use trunkline_tests::{poll, skipped};

const FIRST: &str = "8dbc5577-d0e2-4706-8787-57d52c03ddf2";
const SECOND: &str = "0b1c2d3e-d0e2-4706-8787-57d52c03ddf2";

/// A pod is there from its first cgroup to its last one: whether or not a container of it runs, and in whichever
/// hierarchy the last one is. The other pod is never touched by it.
#[tokio::test]
async fn s10_a_pod_is_there_until_the_last_of_its_cgroups_is_gone() {
    if let Some(why) = Runtime::missing() {
        skipped("s10 runtime", &why);
        return;
    }
    let folder = tempfile::Builder::new().prefix("tlroom-").tempdir().unwrap();
    let runtime = match Runtime::start(&folder.path().join("room")).await {
        Ok(runtime) => runtime,
        Err(why) if why.to_string().contains("namespaces cannot be made") => {
            skipped("s10 runtime", &why.to_string());
            return;
        }
        Err(why) => panic!("{why}"),
    };
    let hierarchies = runtime.room.cgroup_folders();
    let witness = Witness::start(hierarchies.clone());
    let _socket = std::os::unix::net::UnixListener::bind(folder.path().join("k.sock")).unwrap();
    let kubelet = KubeletProbe::new(&folder.path().join("k.sock"));
    let signs: Arc<SignBoard> = Arc::default();
    let cgroups = Cgroups::new(Path::new("/sys/fs/cgroup"), kubelet, Arc::clone(&signs)).unwrap();
    assert!(!seen(&cgroups).await.contains(FIRST));

    // As a kubelet does: the pod's cgroup in every hierarchy, then containers.
    let below = format!("kubepods/besteffort/pod{FIRST}");
    for hierarchy in &hierarchies {
        make(hierarchy, &below);
        make(hierarchy, &format!("kubepods/pod{SECOND}"));
    }
    assert!(seen(&cgroups).await.is_superset(&set([FIRST, SECOND])));
    let appeared = signs.next().await.seen;
    assert!(appeared.iter().any(|(uid, _)| uid.as_str() == FIRST), "{appeared:?}");

    let path = format!("{}/{below}/main", runtime.room.cgroup());
    runtime.run("main", &path).unwrap();
    poll::eventually("the witness sees its process", Duration::from_secs(60), async || {
        let seen = witness.of(FIRST);
        if seen.process_last > 0 { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await
    .unwrap();
    assert!(seen(&cgroups).await.contains(FIRST));

    // No container any more, the pod's own cgroup is left.
    runtime.remove("main").await.unwrap();
    assert!(hierarchies.iter().all(|hierarchy| !hierarchy.join(&below).join("main").exists()));
    assert!(seen(&cgroups).await.contains(FIRST));

    // One hierarchy after the other: the last one counts.
    for (gone, hierarchy) in hierarchies.iter().enumerate() {
        let uids = seen(&cgroups).await;
        assert!(uids.contains(FIRST), "not seen with {gone} of {} gone", hierarchies.len());
        std::fs::remove_dir(hierarchy.join(&below)).unwrap();
    }
    let uids = seen(&cgroups).await;
    assert!(!uids.contains(FIRST) && uids.contains(SECOND), "{uids:?}");
    assert_eq!(witness.of(SECOND).process_last, 0);
}

fn make(hierarchy: &Path, below: &str) {
    let mut folder = hierarchy.to_owned();
    for part in below.split('/') {
        let parent = folder.clone();
        folder.push(part);
        if folder.is_dir() {
            continue;
        }
        std::fs::create_dir(&folder).unwrap();
        // An empty cpuset of version 1 takes no process; version 2 inherits.
        for name in ["cpuset.cpus", "cpuset.mems"] {
            if parent.join(name).is_file() && hierarchy.ends_with("cpuset") {
                std::fs::write(folder.join(name), std::fs::read(parent.join(name)).unwrap())
                    .unwrap();
            }
        }
    }
}

async fn seen(cgroups: &Cgroups) -> BTreeSet<String> {
    let uids: BTreeSet<PodUid> = cgroups.look().await.unwrap();
    uids.iter().map(|uid| uid.as_str().to_owned()).collect()
}

fn set<const N: usize>(uids: [&str; N]) -> BTreeSet<String> {
    uids.into_iter().map(str::to_owned).collect()
}
