//! The arrows between crates (design §3): who may know whom, and what must not be linked where.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test's helpers")]

use std::collections::BTreeSet;
use std::path::Path;
use trunkline_tests::workspace;

/// Folder, crates of ours it may depend on, and external crates it must not name.
const ROOMS: &[(&str, &[&str], &[&str])] = &[
    ("core", &[], &[]),
    ("proto", &["core"], &["kube", "k8s-openapi", "aws-", "tokio", "axum"]),
    ("kit", &["core"], &["aws-sdk", "aws-config"]),
    ("ec2", &["core"], &["kube", "k8s-openapi", "tonic"]),
    ("agent", &["core", "proto", "kit"], &["aws-"]),
    (
        "coordinator",
        &["core", "proto", "kit", "ec2"],
        &["rtnetlink", "inotify", "aws-sdk", "aws-config"],
    ),
    ("cli", &["core", "proto", "kit"], &["aws-", "rtnetlink", "inotify"]),
    ("sim", &["core", "proto"], &["aws-sdk", "aws-config"]),
    ("tests", &["core", "proto", "kit", "ec2", "agent", "coordinator", "cli", "sim"], &[]),
    ("model", &["core"], &["kube", "k8s-openapi", "aws-", "tokio", "tonic"]),
    ("xtask", &[], &["kube", "aws-"]),
];

fn manifest(folder: &Path) -> toml::Table {
    let path = folder.join("Cargo.toml");
    std::fs::read_to_string(&path)
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        .parse()
        .unwrap()
}

/// The names in `[KIND]` and in every `[target.*.KIND]`.
fn named(manifest: &toml::Table, kind: &str) -> BTreeSet<String> {
    let targets = manifest.get("target").and_then(toml::Value::as_table);
    let tables =
        targets.into_iter().flat_map(|targets| targets.values().filter_map(toml::Value::as_table));
    std::iter::once(manifest)
        .chain(tables)
        .filter_map(|table| table.get(kind)?.as_table())
        .flat_map(|table| {
            table.iter().map(|(name, how)| {
                // `alias = { package = "name" }` is about the package.
                let package = how.get("package").and_then(toml::Value::as_str);
                package.unwrap_or(name).to_owned()
            })
        })
        .collect()
}

fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push((path.display().to_string(), std::fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn every_crate_of_the_workspace_has_a_room() {
    let workspace = manifest(&workspace());
    let members = workspace["workspace"]["members"].as_array().unwrap();
    let members: BTreeSet<_> = members.iter().map(|member| member.as_str().unwrap()).collect();
    assert_eq!(members, ROOMS.iter().map(|(name, _, _)| *name).collect());
}

#[test]
fn arrows_between_crates_only_go_down() {
    for (room, allowed, banned) in ROOMS {
        let manifest = manifest(&workspace().join(room));
        for dependency in named(&manifest, "dependencies") {
            if let Some(ours) = dependency.strip_prefix("trunkline-") {
                assert!(allowed.contains(&ours), "{room} must not depend on {ours}");
            }
            let hit = banned.iter().find(|name| {
                dependency == **name
                    || (name.ends_with('-') || **name == "aws-sdk")
                        && dependency.starts_with(**name)
            });
            assert_eq!(hit, None, "{room} must not depend on {dependency}");
        }
        assert_eq!(
            named(&manifest, "build-dependencies"),
            BTreeSet::new(),
            "{room} has a build script"
        );
        assert!(!workspace().join(room).join("build.rs").exists(), "{room} has a build script");
    }
}

#[test]
fn only_ec2_links_the_sdk_and_only_tests_link_the_simulators() {
    for (room, _, _) in ROOMS {
        let dependencies = named(&manifest(&workspace().join(room)), "dependencies");
        for sdk in ["aws-sdk-ec2", "aws-sdk-sts", "aws-config"] {
            assert!(*room == "ec2" || !dependencies.contains(sdk), "{room} links {sdk}");
        }
        assert!(
            *room == "tests" || !dependencies.contains("trunkline-sim"),
            "{room} links the simulators"
        );
    }
}

#[test]
fn core_knows_thiserror_and_std_only_and_neither_clock_nor_io() {
    let core = workspace().join("core");
    let names = named(&manifest(&core), "dependencies");
    assert!(names.iter().all(|name| name == "thiserror"), "core depends on {names:?}");
    let mut found = Vec::new();
    sources(&core.join("src"), &mut found);
    assert!(found.len() > 5, "core's sources were not found");
    let banned = [
        "async fn",
        "async move",
        ".await",
        "Instant::now",
        "SystemTime",
        "std::env::",
        "std::fs",
        "TcpStream",
        "TcpListener",
        "UdpSocket",
        "std::thread",
        "std::process",
        "tokio",
        "rand::",
        "HashMap",
        "HashSet",
        "k8s_openapi",
        "kube::",
        "aws_sdk",
        "aws_config",
        "aws_smithy",
    ];
    for (path, text) in found {
        for (number, line) in text.lines().enumerate() {
            let bare = line.split("//").next().unwrap();
            let hit = banned.iter().find(|word| bare.contains(**word));
            assert_eq!(hit, None, "{path}:{}: {line}", number + 1);
        }
    }
}

/// Features that no build that ships may have: other durations, rules that can be taken out.
const TEST_ONLY: [&str; 2] = ["test-timing", "weaken"];

#[test]
fn features_for_tests_only_are_on_by_default_nowhere() {
    for (room, _, _) in ROOMS {
        let manifest = manifest(&workspace().join(room));
        let default = manifest.get("features").and_then(|features| features.get("default"));
        let default = default.map(toml::Value::to_string).unwrap_or_default();
        let dependencies =
            manifest.get("dependencies").map(toml::Value::to_string).unwrap_or_default();
        for feature in TEST_ONLY {
            assert!(!default.contains(feature), "{room}: {default}");
            assert!(!dependencies.contains(feature), "{room} turns {feature} on in a dependency");
        }
    }
}

#[test]
fn only_the_model_checker_can_take_rules_out() {
    for (room, _, _) in ROOMS.iter().filter(|(room, _, _)| !["core", "model"].contains(room)) {
        let features = manifest(&workspace().join(room)).get("features").cloned();
        let features = features.map(|features| features.to_string()).unwrap_or_default();
        assert!(!features.contains("weaken"), "{room}: {features}");
    }
    for name in ["Dockerfile.agent", "Dockerfile.coordinator", ".ci/run"] {
        let text = std::fs::read_to_string(workspace().join(name)).unwrap();
        assert!(!text.contains("weaken") && !text.contains("all-features"), "{name}");
    }
}
