//! Seeds that once failed: `tests/seeds.txt`, run before any other.
//!
//! A line is a seed and, after `#`, what it found. A run that fails is added by whoever runs it, so that the fault it found
//! stays found.

use std::path::{Path, PathBuf};

/// The file.
pub fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds.txt")
}

/// The seeds of a text; an unreadable line is an error, not a comment.
pub fn read(text: &str) -> Result<Vec<u64>, String> {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
        .filter(|seed| !seed.is_empty())
        .map(|seed| seed.parse().map_err(|e| format!("seed '{seed}': {e}")))
        .collect()
}

/// The kept seeds.
pub fn kept() -> Result<Vec<u64>, String> {
    let path = file();
    let text = std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    read(&text)
}

/// Adds a seed that failed, unless it is there.
pub fn keep(path: &Path, seed: u64, what: &str) -> std::io::Result<()> {
    let mut text = std::fs::read_to_string(path).unwrap_or_default();
    if read(&text).is_ok_and(|seeds| seeds.contains(&seed)) {
        return Ok(());
    }
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    let what: String = what.chars().take(160).map(|c| if c == '\n' { ' ' } else { c }).collect();
    std::fs::write(path, format!("{text}{seed} # {what}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_kept_once_with_what_they_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("seeds.txt");
        keep(&path, 7, "I1: a line\nand more").unwrap();
        keep(&path, 9, "I3").unwrap();
        keep(&path, 7, "again").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(read(&text), Ok(vec![7, 9]));
        assert!(text.contains("7 # I1: a line and more\n"));
        assert!(read("seven").is_err());
    }
}
