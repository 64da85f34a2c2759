//! Which directory is a pod's cgroup, and whose.
//!
//! The kubelet names a pod's cgroup `pod<uid>` (cgroupfs driver) or `kubepods-<class>-pod<uid>.slice` with every `-` of
//! the UID written as `_` (systemd driver). The UID is the API's, or a static pod's hash, or whatever UID a static pod's
//! manifest names. A directory that merely begins with the same letters, such as the `podruntime.slice` that some
//! node images run the kubelet in, must not become a pod that the API does not know; a pod overlooked would be worse.
//! So below a `kubepods` directory every name of the shape counts, and elsewhere only one with a UID as the API server
//! and the kubelet make them.

use std::path::Path;

use trunkline_core::id::PodUid;

/// The UID in the name of a directory, if it is a pod's cgroup. `below_kubepods`: see [`is_kubepods`].
pub fn pod_uid(name: &str, below_kubepods: bool) -> Option<PodUid> {
    let uid = match name.strip_suffix(".slice") {
        Some(slice) => slice.rsplit('-').next()?.strip_prefix("pod")?.replace('_', "-"),
        None => name.strip_prefix("pod")?.to_owned(),
    };
    if !below_kubepods && !is_made_uid(&uid) {
        return None;
    }
    PodUid::new(&uid).ok()
}

/// A directory of this path, relative to the cgroup root, holds the kubelet's pods: one of its parts is `kubepods`, or
/// the slice of that name (below a configured root its name carries the root's as a prefix).
pub fn is_kubepods(path: &Path) -> bool {
    path.iter().filter_map(|part| part.to_str()).any(|part| {
        let part = part.strip_suffix(".slice").unwrap_or(part);
        part.split('-').any(|word| word == "kubepods")
    })
}

/// A UUID (API server) or 32 hex digits (the kubelet's hash of a static pod).
fn is_made_uid(uid: &str) -> bool {
    let hex = uid.bytes().filter(u8::is_ascii_hexdigit).count();
    match uid.len() {
        32 => hex == 32,
        36 => hex == 32 && uid.split('-').map(str::len).eq([8, 4, 4, 4, 12]),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "8dbc5577-d0e2-4706-8787-57d52c03ddf2";

    fn parse(path: &str) -> Option<String> {
        let path = Path::new(path);
        let below = path.parent().is_some_and(is_kubepods);
        pod_uid(path.file_name()?.to_str()?, below).map(|uid| uid.as_str().to_owned())
    }

    #[test]
    fn both_drivers_and_all_classes_are_understood() {
        let slice = UID.replace('-', "_");
        for path in [
            format!("kubepods/pod{UID}"),
            format!("kubepods/burstable/pod{UID}"),
            format!("memory/kubepods/besteffort/pod{UID}"),
            format!("kubepods.slice/kubepods-pod{slice}.slice"),
            format!("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice"),
            format!("kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{slice}.slice"),
            format!("elsewhere/pod{UID}"),
        ] {
            assert_eq!(parse(&path).as_deref(), Some(UID), "{path}");
        }
    }

    #[test]
    fn static_pods_are_known_by_their_hash_or_by_a_uid_of_their_own() {
        let hash = "4b3ff1f9ba84c9d8e2f3a5b6c7d8e9f0";
        assert_eq!(parse(&format!("kubepods/burstable/pod{hash}")).as_deref(), Some(hash));
        assert_eq!(parse("kubepods/podmy-own").as_deref(), Some("my-own"));
        assert_eq!(parse("kubepods.slice/kubepods-podmy_own.slice").as_deref(), Some("my-own"));
    }

    #[test]
    fn other_directories_are_no_pods() {
        for path in [
            "kubepods",
            "kubepods.slice",
            "podruntime.slice",
            "podruntime.slice/kubelet.service",
            "podman",
            "kubepods.slice/kubepods-burstable.slice",
            "kubepods/burstable",
            "kubepods/pod",
            "system.slice/podman.service",
        ] {
            assert_eq!(parse(path), None, "{path}");
        }
    }
}
