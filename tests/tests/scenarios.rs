//! `docs/scenarios.md` names every field scenario, and every test it names exists.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test's helpers")]

use std::collections::BTreeSet;
use std::path::Path;
use trunkline_tests::workspace;

/// The names of all functions in Rust sources below `folder`.
fn functions(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            functions(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let after = text.split("fn ").skip(1);
            found.extend(after.map(|rest| {
                rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
            }));
        }
    }
}

/// First cell of each row and the rest of it.
fn rows() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(workspace().join("docs/scenarios.md")).unwrap();
    let cells = |line: &str| {
        let (id, rest) = line.strip_prefix("| ")?.split_once(" | ")?;
        Some((id.to_owned(), rest.to_owned()))
    };
    text.lines().filter_map(cells).filter(|(id, _)| id.starts_with(['S', 'T'])).collect()
}

#[test]
fn every_scenario_has_a_row() {
    let listed: BTreeSet<String> = rows()
        .iter()
        .flat_map(|(id, _)| id.split(", ").map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let wanted = (1..=82).map(|n| format!("S{n:02}")).chain((1..=12).map(|n| format!("T{n}")));
    let missing: Vec<_> = wanted.filter(|id| !listed.contains(id)).collect();
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn every_row_names_tests_that_exist_or_says_that_it_is_open() {
    let mut known = BTreeSet::new();
    functions(&workspace(), &mut known);
    for (id, rest) in rows() {
        let is_name = |text: &&str| text.contains('_') && !text.contains([' ', ':', '/']);
        let named: Vec<_> = rest.split('`').skip(1).step_by(2).filter(is_name).collect();
        for name in &named {
            assert!(known.contains(*name), "{id}: no test {name}");
        }
        assert!(
            !named.is_empty() || rest.contains("open") || rest.contains("every black-box test"),
            "{id} names no test and does not say that it is open"
        );
    }
}
