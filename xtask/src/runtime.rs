//! `runtime`: a real containerd and runc, and the one image that is run in them.
//!
//! Built once from the Go modules that `xtask/runtime/go.mod` pins, into the per-user cache of the control plane and by the
//! same rules. The image is one static program, packed here, so that no registry is asked.
//!
//! runc is a module of its own, because its requirements and those of containerd do not fit into one; `go install` takes
//! them from runc's own files. It is built without libseccomp.

use crate::control_plane::{cache, tick};
use crate::failure::Failure;
use crate::run::{check, workspace};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const GO_MOD: &str = include_str!("../runtime/go.mod");
const RUNC: &str = "github.com/opencontainers/runc@v1.3.4";
/// Packages that `go build` makes of our module, and the tool's name.
const PACKAGES: [&str; 5] = [
    "github.com/containerd/containerd/v2/cmd/containerd",
    "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
    "github.com/containerd/containerd/v2/cmd/ctr",
    "./pause",
    "./image",
];
/// What the folder holds in the end.
const FILES: [&str; 5] = ["containerd", "containerd-shim-runc-v2", "ctr", "runc", "pause.tar"];
/// Name of the image.
const NAME: &str = "trunkline.test/pause:1";
/// Snapshotters that the suite has no use for.
const TAGS: &str = "no_btrfs no_devmapper no_zfs no_aufs";

/// Changes whenever what is built from this repository does, so that an older cache is not taken for it.
const OURS: [&str; 3] = [
    include_str!("../runtime/go.mod"),
    include_str!("../runtime/pause/main.go"),
    include_str!("../runtime/image/main.go"),
];

/// The folder that holds all of it, built if need be.
pub(crate) fn find_or_build() -> Result<PathBuf, Failure> {
    let folder = cache()?.join(format!("runtime-{}", version()?));
    let stamp = OURS.concat() + RUNC;
    let whole = FILES.iter().all(|name| folder.join(name).is_file());
    if whole && std::fs::read_to_string(folder.join("stamp")).is_ok_and(|text| text == stamp) {
        return Ok(folder);
    }
    let go = Command::new("go").arg("version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !go.is_ok_and(|status| status.success()) {
        return Err(Failure::Say(
            "containerd and runc are built with Go (1.26 or later), which is not on this machine: install it"
                .to_owned(),
        ));
    }
    let parent = cache()?;
    std::fs::create_dir_all(&parent).map_err(Failure::file(&parent))?;
    let scratch = tempfile::Builder::new()
        .prefix("building-")
        .tempdir_in(&parent)
        .map_err(Failure::file(&parent))?;
    eprintln!(
        "building containerd {} and runc from Go modules, once (about 2 minutes on 2 cores)",
        version()?
    );
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| tick(&done));
        let built = compile(scratch.path());
        done.store(true, std::sync::atomic::Ordering::Release);
        built
    })?;
    let mark = scratch.path().join("stamp");
    std::fs::write(&mark, stamp).map_err(Failure::file(&mark))?;
    // Replaced as a whole; whoever runs from the old folder keeps its open files.
    let _ = std::fs::remove_dir_all(&folder);
    let built = scratch.keep();
    std::fs::rename(&built, &folder).map_err(Failure::file(&folder))?;
    Ok(folder)
}

/// The version of containerd, from the one place that pins it, such as `v2.3.7`.
fn version() -> Result<&'static str, Failure> {
    GO_MOD
        .lines()
        .find_map(|line| line.trim().strip_prefix("github.com/containerd/containerd/v2 "))
        .and_then(|rest| rest.split_whitespace().next())
        .ok_or_else(|| Failure::Say("xtask/runtime/go.mod pins no containerd".to_owned()))
}

fn compile(out: &Path) -> Result<(), Failure> {
    let say = |failure: Failure| {
        Failure::Say(format!(
            "{failure}: Go could not build the container runtime (its message is above; it needs the Go module proxy or a \
             filled module cache, and a C compiler for runc)"
        ))
    };
    let runc = Command::new("go")
        .env("GOBIN", out)
        .env("CGO_ENABLED", "1")
        .args(["install", "-trimpath", "-ldflags", "-s -w", RUNC])
        .stdout(Stdio::null())
        .status();
    if !runc.is_ok_and(|status| status.success()) {
        return Err(say(Failure::Say(format!("`go install {RUNC}` failed"))));
    }
    let mut target = out.as_os_str().to_owned();
    target.push("/");
    check(
        Command::new("go")
            .current_dir(workspace().join("xtask/runtime"))
            .env("CGO_ENABLED", "0")
            .args([
                "build",
                "-trimpath",
                "-buildvcs=false",
                "-tags",
                TAGS,
                "-ldflags",
                "-s -w",
                "-o",
            ])
            .arg(target)
            .args(PACKAGES)
            .stdout(Stdio::null()),
    )
    .map_err(say)?;
    check(
        Command::new(out.join("image")).arg(out.join("pause.tar")).arg(out.join("pause")).arg(NAME),
    )
}
