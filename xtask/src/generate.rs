//! `gen`: the wire contract's Rust code, without protoc.
//!
//! protox compiles `proto/trunkline/v1/*.proto`; tonic-prost-build writes messages, client and server. The result is
//! committed, so that a build needs no generator and a reviewer sees what changed. The descriptor set (for gRPC
//! reflection) is committed beside it. `--check` generates into a temporary folder and compares byte by byte; files
//! that would no longer be generated count as a difference too.

use crate::failure::Failure;
use crate::run::workspace;
use prost::Message as _;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const HEADER: &str = "// Generated from proto/trunkline/v1 by `cargo xtask gen`; do not edit.\n";
const DESCRIPTORS: &str = "trunkline.v1.bin";

/// Generates, or with `check` compares.
pub(crate) fn run(check: bool) -> Result<(), Failure> {
    let target = workspace().join("proto/src/generated");
    let wanted = generate(&workspace().join("proto"))?;
    let present = read(&target)?;
    if wanted == present {
        println!("proto/src/generated is current ({} files)", wanted.len());
        return Ok(());
    }
    if check {
        let differing: Vec<_> = wanted
            .keys()
            .chain(present.keys())
            .filter(|name| wanted.get(*name) != present.get(*name))
            .map(String::as_str)
            .collect();
        return Err(Failure::Say(format!(
            "proto/src/generated differs from proto/trunkline/v1 ({}); run `cargo xtask gen`",
            differing.join(", ")
        )));
    }
    std::fs::create_dir_all(&target).map_err(Failure::file(&target))?;
    for name in present.keys().filter(|name| !wanted.contains_key(*name)) {
        let path = target.join(name);
        std::fs::remove_file(&path).map_err(Failure::file(&path))?;
    }
    for (name, content) in &wanted {
        let path = target.join(name);
        std::fs::write(&path, content).map_err(Failure::file(&path))?;
        println!("wrote proto/src/generated/{name}");
    }
    Ok(())
}

/// File name to content of everything that belongs into the generated folder.
fn generate(root: &Path) -> Result<BTreeMap<String, Vec<u8>>, Failure> {
    let sources = sources(&root.join("trunkline/v1"))?;
    let proto = |error: protox::Error| Failure::Proto(format!("{error:?}"));
    let mut compiler = protox::Compiler::new([root]).map_err(proto)?;
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files(&sources).map_err(proto)?;
    let with_comments = compiler.file_descriptor_set();
    let out = tempfile::tempdir()
        .map_err(|error| Failure::Say(format!("no temporary folder: {error}")))?;
    tonic_prost_build::configure()
        .out_dir(out.path())
        .emit_rerun_if_changed(false)
        .btree_map(".")
        // Written by hand in the crate `proto`, so that no log shows a token.
        .skip_debug([".trunkline.v1.Token"])
        .compile_fds(with_comments.clone())
        .map_err(|error| Failure::Proto(error.to_string()))?;
    let mut files = read(out.path())?;
    for content in files.values_mut() {
        content.splice(0..0, HEADER.bytes());
    }
    files.insert(DESCRIPTORS.to_owned(), with_comments.encode_to_vec());
    Ok(files)
}

fn sources(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(Failure::file(folder))? {
        let path = entry.map_err(Failure::file(folder))?.path();
        if path.extension().is_some_and(|end| end == "proto") {
            found.push(path);
        }
    }
    found.sort();
    if found.is_empty() {
        return Err(Failure::Say(format!("no .proto file in {}", folder.display())));
    }
    Ok(found)
}

fn read(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>, Failure> {
    let mut files = BTreeMap::new();
    if !folder.exists() {
        return Ok(files);
    }
    for entry in std::fs::read_dir(folder).map_err(Failure::file(folder))? {
        let entry = entry.map_err(Failure::file(folder))?;
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        // A `mod.rs` beside the generated files is written by hand.
        if name == "mod.rs" || path.is_dir() {
            continue;
        }
        files.insert(name, std::fs::read(&path).map_err(Failure::file(&path))?);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTRACT: &str = r#"
        syntax = "proto3";
        package trunkline.v1;
        import "google/protobuf/duration.proto";
        // A greeting.
        message Hello { string node = 1; google.protobuf.Duration age = 2; }
        service Nodes { rpc Session(stream Hello) returns (stream Hello); }
    "#;

    fn contract(text: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("trunkline/v1")).unwrap();
        std::fs::write(root.path().join("trunkline/v1/nodes.proto"), text).unwrap();
        root
    }

    #[test]
    fn a_contract_becomes_messages_client_server_and_descriptors() {
        let root = contract(CONTRACT);
        let files = generate(root.path()).unwrap();
        let code = String::from_utf8(files["trunkline.v1.rs"].clone()).unwrap();
        assert!(code.starts_with(HEADER));
        for wanted in
            ["pub struct Hello", "mod nodes_client", "mod nodes_server", "/// A greeting."]
        {
            assert!(code.contains(wanted), "{wanted} is missing");
        }
        let set = prost_types::FileDescriptorSet::decode(files[DESCRIPTORS].as_slice()).unwrap();
        let names: Vec<_> = set.file.iter().map(prost_types::FileDescriptorProto::name).collect();
        assert_eq!(names, ["google/protobuf/duration.proto", "trunkline/v1/nodes.proto"]);
        assert_eq!(files, generate(root.path()).unwrap(), "the same input gives the same bytes");
    }

    #[test]
    fn a_contract_that_does_not_compile_is_refused_with_its_place() {
        let root = contract("syntax = \"proto3\"; message A { Missing b = 1; }");
        let failure = generate(root.path()).unwrap_err().to_string();
        assert!(failure.contains("Missing"), "{failure}");
    }
}
