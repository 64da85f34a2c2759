//! `control-plane`: a real etcd and kube-apiserver.
//!
//! `KUBEBUILDER_ASSETS` is honoured first, whatever version it holds. Otherwise both are built once from the published
//! Go modules that `xtask/control-plane/go.mod` pins (`kube.md` §10), into a per-user cache outside `target`, keyed by
//! version, so that `cargo clean` and other work trees keep them. Two builds at once are harmless: each builds into a
//! folder of its own and renames it into place; the loser takes the winner's result.

use crate::failure::Failure;
use crate::run::{check, workspace};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const GO_MOD: &str = include_str!("../control-plane/go.mod");
const BINARIES: [&str; 2] = ["etcd", "kube-apiserver"];
const ASSETS: &str = "KUBEBUILDER_ASSETS";

/// The folder that holds `etcd` and `kube-apiserver`, built if need be.
pub(crate) fn find_or_build() -> Result<PathBuf, Failure> {
    if let Some(assets) = std::env::var_os(ASSETS).filter(|value| !value.is_empty()) {
        let folder = PathBuf::from(assets);
        return match missing(&folder) {
            None => Ok(folder),
            Some(name) => Err(Failure::Say(format!(
                "{ASSETS} is {}, which has no {name}: point it at a folder with etcd and kube-apiserver, or unset it \
                 to have both built from Go modules",
                folder.display()
            ))),
        };
    }
    let folder = cached()?;
    if missing(&folder).is_none() {
        return Ok(folder);
    }
    build(&folder)?;
    Ok(folder)
}

fn missing(folder: &Path) -> Option<&'static str> {
    BINARIES.into_iter().find(|name| !folder.join(name).is_file())
}

/// The version of Kubernetes, from the one place that pins it, such as `v1.36.3`.
fn version() -> Result<&'static str, Failure> {
    GO_MOD
        .lines()
        .find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes "))
        .map(str::trim)
        .ok_or_else(|| {
            Failure::Say("xtask/control-plane/go.mod pins no k8s.io/kubernetes".to_owned())
        })
}

fn cached() -> Result<PathBuf, Failure> {
    Ok(cache()?.join(format!("control-plane-{}", version()?)))
}

/// The per-user folder of everything that is built once.
pub(crate) fn cache() -> Result<PathBuf, Failure> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().map(|home| home.join(".cache")))
        .ok_or_else(|| {
            Failure::Say("neither XDG_CACHE_HOME nor HOME is set: nowhere to keep etcd".to_owned())
        })?;
    Ok(base.join("trunkline"))
}

fn build(folder: &Path) -> Result<(), Failure> {
    let go = Command::new("go").arg("version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !go.is_ok_and(|status| status.success()) {
        return Err(Failure::Say(format!(
            "etcd and kube-apiserver are needed and there is no Go (1.26 or later) to build them: install Go, or set \
             {ASSETS} to a folder that holds both (for example from `setup-envtest use -p path`)"
        )));
    }
    let parent = folder.parent().unwrap_or(folder);
    std::fs::create_dir_all(parent).map_err(Failure::file(parent))?;
    let scratch = tempfile::Builder::new()
        .prefix("building-")
        .tempdir_in(parent)
        .map_err(Failure::file(parent))?;
    eprintln!(
        "building etcd and kube-apiserver {} from Go modules, once (about 3 minutes on 2 cores)",
        version()?
    );
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| tick(&done));
        let built = compile(scratch.path());
        done.store(true, std::sync::atomic::Ordering::Release);
        built
    })?;
    let built = scratch.keep();
    if std::fs::rename(&built, folder).is_err() && missing(folder).is_some() {
        // The folder exists but is not whole (an interrupted copy by hand): replace its content.
        std::fs::create_dir_all(folder).map_err(Failure::file(folder))?;
        for name in BINARIES {
            let (from, to) = (built.join(name), folder.join(name));
            std::fs::rename(&from, &to).map_err(Failure::file(&to))?;
        }
    }
    // The loser of two builds, or the emptied folder; nothing depends on its removal.
    let _ = std::fs::remove_dir_all(&built);
    Ok(())
}

fn compile(out: &Path) -> Result<(), Failure> {
    let version = version()?;
    let mut numbers = version.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or("1"), numbers.next().unwrap_or("0"));
    let package = "k8s.io/component-base/version";
    let flags = format!(
        "-s -w -X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor} \
         -X {package}.gitTreeState=clean"
    );
    let mut target = out.as_os_str().to_owned();
    target.push("/");
    check(
        Command::new("go")
            .current_dir(workspace().join("xtask/control-plane"))
            .env("CGO_ENABLED", "0")
            .args(["build", "-trimpath", "-buildvcs=false", "-ldflags", &flags, "-o"])
            .arg(target)
            .args(["./kube-apiserver", "./etcd"])
            .stdout(Stdio::null()),
    )
    .map_err(|failure| {
        Failure::Say(format!(
            "{failure}: Go could not build the control plane (its message is above; it needs the Go module proxy or a \
             filled module cache); alternatively set {ASSETS} to a folder with etcd and kube-apiserver"
        ))
    })
}

/// A sign of life while Go compiles.
pub(crate) fn tick(done: &std::sync::atomic::AtomicBool) {
    let mut seconds = 0u32;
    while !done.load(std::sync::atomic::Ordering::Acquire) {
        std::thread::sleep(Duration::from_secs(1));
        seconds += 1;
        if seconds.is_multiple_of(20) {
            eprintln!("  still building ({seconds} s)");
        }
    }
}
