//! The demo as a person runs it, and ends it in the middle.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test's helpers")]

use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use trunkline_tests::cluster::Cluster;
use trunkline_tests::{bins, poll, skipped};

const NETNS: &str = "/run/netns";

/// Processes that were started with `TMPDIR` in this folder: whatever the demo starts inherits it.
fn of(folder: &Path) -> Vec<String> {
    let mark = format!("TMPDIR={}", folder.display());
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let own = processes.filter(|process| {
        let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes())
    });
    own.map(|process| process.file_name().to_string_lossy().into_owned()).collect()
}

fn entries(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[tokio::test]
async fn ctrl_c_in_the_middle_of_the_demo_leaves_nothing_behind() {
    if let Some(why) = Cluster::missing_of(&["trunkline-demo", "trunkline-sim"]) {
        return skipped("demo", &why);
    }
    let folder = tempfile::tempdir().unwrap();
    let namespaces = entries(Path::new(NETNS));
    let mut demo = Command::new(bins::find("trunkline-demo").unwrap())
        .env("TMPDIR", folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = Pid::from_raw(i32::try_from(demo.id()).unwrap()).unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines().map_while(Result::ok);
    // By then nodes, agents, coordinators and pods are there.
    assert!(lines.any(|line| line.contains("all of them run")), "the story does not get that far");
    assert!(of(folder.path()).len() > 5 && !entries(folder.path()).is_empty());
    assert!(entries(Path::new(NETNS)).len() > namespaces.len());
    kill_process(pid, Signal::INT).unwrap();
    poll::eventually("the demo has ended", Duration::from_secs(60), async || {
        match demo.try_wait() {
            Ok(Some(status)) if !status.success() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    poll::eventually("nothing is left of it", Duration::from_secs(20), async || {
        let left = (of(folder.path()), entries(folder.path()));
        let more: Vec<_> = entries(Path::new(NETNS)).difference(&namespaces).cloned().collect();
        if left.0.is_empty() && left.1.is_empty() && more.is_empty() {
            Ok(())
        } else {
            Err(format!("{left:?} {more:?}"))
        }
    })
    .await
    .unwrap();
}
