//! The Dockerfiles, checked without a container engine: what they build, from what, and what the images hold.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test's helpers")]

use std::collections::BTreeSet;
use trunkline_tests::workspace;

/// One instruction, continuation lines joined.
#[derive(Debug, Clone)]
struct Instruction {
    word: String,
    rest: String,
}

/// The stages of a Dockerfile, each beginning with its FROM.
fn stages(file: &str) -> Vec<Vec<Instruction>> {
    let text = std::fs::read_to_string(workspace().join(file)).unwrap();
    let text = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .collect::<Vec<_>>()
        .join("\n");
    let mut stages: Vec<Vec<Instruction>> = Vec::new();
    for line in text.replace("\\\n", " ").lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (word, rest) = line.split_once(' ').unwrap();
        let instruction = Instruction { word: word.to_owned(), rest: rest.trim().to_owned() };
        if word == "FROM" {
            stages.push(Vec::new());
        }
        stages.last_mut().unwrap().push(instruction);
    }
    stages
}

fn of<'a>(stage: &'a [Instruction], word: &str) -> Vec<&'a str> {
    stage.iter().filter(|i| i.word == word).map(|i| i.rest.as_str()).collect()
}

/// Package, binary, place in the image.
type Binary = (&'static str, &'static str, &'static str);

/// File, and package → binary → place in the image; the first one is the entry point.
const IMAGES: &[(&str, &[Binary])] = &[
    ("Dockerfile.agent", &[("trunkline-agent", "trunkline-agent", "/trunkline-agent")]),
    (
        "Dockerfile.coordinator",
        &[
            ("trunkline-coordinator", "trunkline-coordinator", "/trunkline-coordinator"),
            ("trunkline-cli", "trunkline", "/usr/bin/trunkline"),
        ],
    ),
];

#[test]
fn the_builds_use_the_lock_file_and_name_the_shipped_packages_only() {
    for (file, binaries) in IMAGES {
        let stages = stages(file);
        let builds: Vec<_> =
            of(&stages[0], "RUN").into_iter().filter(|run| run.contains("cargo ")).collect();
        assert_eq!(builds.len(), 1, "{file}: one cargo call");
        let words: Vec<_> = builds[0].split_whitespace().collect();
        assert_eq!(words[..2], ["cargo", "build"], "{file}");
        assert!(
            words.contains(&"--locked") && words.contains(&"--release"),
            "{file}: {}",
            builds[0]
        );
        let after = |flag: &str| -> Vec<&str> {
            words.windows(2).filter(|pair| pair[0] == flag).map(|pair| pair[1]).collect()
        };
        assert_eq!(after("--package"), binaries.iter().map(|b| b.0).collect::<Vec<_>>(), "{file}");
        assert_eq!(after("--bin"), binaries.iter().map(|b| b.1).collect::<Vec<_>>(), "{file}");
        for flag in ["--features", "--all-features", "-F", "--workspace", "--config", "--profile"] {
            assert!(!words.iter().any(|word| word.starts_with(flag)), "{file}: {flag}");
        }
    }
}

#[test]
fn the_packages_and_binaries_that_are_built_exist() {
    for (file, binaries) in IMAGES {
        for (package, binary, _) in *binaries {
            let folder = workspace().join(package.trim_start_matches("trunkline-"));
            let manifest: toml::Table =
                std::fs::read_to_string(folder.join("Cargo.toml")).unwrap().parse().unwrap();
            assert_eq!(manifest["package"]["name"].as_str(), Some(*package), "{file}");
            let named = manifest.get("bin").and_then(toml::Value::as_array).is_some_and(|bins| {
                bins.iter().any(|bin| bin.get("name").and_then(toml::Value::as_str) == Some(binary))
            });
            let implied = package == binary && folder.join("src/main.rs").is_file()
                || folder.join(format!("src/bin/{binary}.rs")).is_file();
            assert!(named || implied, "{file}: {package} has no binary {binary}");
        }
    }
}

#[test]
fn a_build_that_reads_test_timings_is_refused() {
    for (file, binaries) in IMAGES {
        let stages = stages(file);
        let check =
            of(&stages[0], "RUN").into_iter().find(|run| run.contains("--version")).unwrap();
        assert!(check.contains(&format!("target/release/{} --version", binaries[0].1)), "{file}");
        assert!(check.contains("*test-timing*") && check.contains("exit 1"), "{file}: {check}");
        let text = std::fs::read_to_string(workspace().join(file)).unwrap();
        assert!(!text.contains("ENV TRUNKLINE") && !text.contains("ARG "), "{file}");
    }
}

#[test]
fn the_images_hold_the_binaries_and_nothing_else() {
    for (file, binaries) in IMAGES {
        let stages = stages(file);
        assert_eq!(stages.len(), 2, "{file}: a build stage and a final one");
        let last = &stages[1];
        let words: BTreeSet<_> = last.iter().map(|i| i.word.as_str()).collect();
        let allowed = BTreeSet::from(["FROM", "COPY", "USER", "ENTRYPOINT"]);
        assert!(words.is_subset(&allowed), "{file}: {words:?}");
        let base = of(last, "FROM")[0];
        assert!(base.starts_with("gcr.io/distroless/"), "{file}: {base}");
        let copies = of(last, "COPY");
        let wanted: Vec<_> = binaries
            .iter()
            .map(|(_, binary, place)| format!("--from=build /src/target/release/{binary} {place}"))
            .collect();
        assert_eq!(copies, wanted, "{file}");
        assert_eq!(of(last, "ENTRYPOINT"), [format!("[\"{}\"]", binaries[0].2)], "{file}");
    }
}

#[test]
fn what_is_copied_into_the_build_is_there_and_leaves_out_what_must_not_be() {
    let ignored = std::fs::read_to_string(workspace().join(".dockerignore")).unwrap();
    assert!(
        ignored.lines().any(|line| line == "target"),
        "a build on the host must not reach the image"
    );
    for file in
        ["Cargo.toml", "Cargo.lock", "agent/Cargo.toml", "coordinator/Cargo.toml", "cli/Cargo.toml"]
    {
        assert!(workspace().join(file).is_file(), "{file}");
        assert!(!ignored.lines().any(|line| file.starts_with(line)), "{file} is ignored");
    }
    for (file, _) in IMAGES {
        let stages = stages(file);
        assert_eq!(of(&stages[0], "COPY"), [". ."], "{file}");
        let compiler = of(&stages[0], "FROM")[0];
        let root: toml::Table =
            std::fs::read_to_string(workspace().join("Cargo.toml")).unwrap().parse().unwrap();
        let wanted = root["workspace"]["package"]["rust-version"].as_str().unwrap();
        assert!(
            compiler.contains(&format!("rust:{wanted}")),
            "{file}: {compiler}, rust-version {wanted}"
        );
    }
}

#[test]
fn the_manifests_name_these_images_in_this_version() {
    let root: toml::Table =
        std::fs::read_to_string(workspace().join("Cargo.toml")).unwrap().parse().unwrap();
    let version = root["workspace"]["package"]["version"].as_str().unwrap();
    let mut images = Vec::new();
    for (_, document) in trunkline_tests::deploy::documents().unwrap() {
        let containers =
            document.pointer("/spec/template/spec/containers").and_then(|c| c.as_array());
        for container in containers.into_iter().flatten() {
            images.push(container["image"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(
        images,
        [format!("trunkline-coordinator:{version}"), format!("trunkline-agent:{version}")]
    );
}
