//! What was seen, kept across a restart of the agent within one boot.
//!
//! One small JSON file in `--state-dir`, which lives on a file system that dies with the boot (`/run`). It is written
//! whole to another name and then renamed over, so a reader finds an old or a new journal and nothing in between. A
//! journal that cannot be read in every part is no journal: without it pods are released the slow way and all unowned
//! VLANs rest, which is slow and safe. One of another boot says nothing about this one.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use trunkline_core::id::{BootId, InvalidId, KubeletStart, PodUid, VlanId};
use trunkline_core::time::Moment;
use trunkline_core::witness::{Journal, LastUse};

use crate::port::JournalStore;

/// Format of the file; another number is not read.
const VERSION: u32 = 1;
/// Largest file that is read.
const MAX_BYTES: u64 = 4 << 20;
/// Most seen cgroups that are written; without a session they are not forgotten, so a bound is needed.
const MAX_SEEN: usize = 16_384;

/// Why a file is no journal.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// The file cannot be read.
    #[error("failed to read the file")]
    Io(#[from] io::Error),
    /// It is not this format.
    #[error("failed to parse it")]
    Json(#[from] serde_json::Error),
    /// An id in it is none.
    #[error("failed to read an id in it")]
    Id(#[from] InvalidId),
    /// It is of another version of this format.
    #[error("it has format {0}, not {VERSION}")]
    Version(u32),
    /// It is too large.
    #[error("it is larger than {MAX_BYTES} bytes")]
    TooLarge,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    version: u32,
    boot: String,
    since_ms: u64,
    whole: bool,
    /// UID → kubelet start in nanoseconds.
    seen: BTreeMap<String, u64>,
    /// VLAN id → last use.
    vlans: BTreeMap<u8, WireUse>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireUse {
    at_ms: u64,
    present: bool,
}

/// The file.
#[derive(Debug)]
pub struct JournalFile {
    path: PathBuf,
    temporary: PathBuf,
}

impl JournalFile {
    /// The journal in this directory, which is made if it is missing.
    pub fn open(state_dir: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(state_dir)?;
        Ok(Self {
            path: state_dir.join("journal.json"),
            temporary: state_dir.join("journal.json.tmp"),
        })
    }

    /// The journal of this boot, if there is a readable one.
    pub fn load(&self, boot: &BootId) -> Option<Journal> {
        match self.read() {
            Ok(Some(journal)) if journal.boot == *boot => Some(journal),
            Ok(Some(journal)) => {
                tracing::info!(of = %journal.boot, "the journal is of another boot and says nothing");
                None
            }
            Ok(None) => None,
            Err(error) => {
                tracing::warn!(
                    path = %self.path.display(),
                    error = %crate::chain(&error),
                    "the journal is unreadable: going on without, which makes releases and VLANs slow for a while"
                );
                None
            }
        }
    }

    fn read(&self) -> Result<Option<Journal>, Unreadable> {
        let file = match fs::File::open(&self.path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let mut bytes = Vec::new();
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
        if u64::try_from(bytes.len()).is_ok_and(|n| n > MAX_BYTES) {
            return Err(Unreadable::TooLarge);
        }
        let wire: Wire = serde_json::from_slice(&bytes)?;
        if wire.version != VERSION {
            return Err(Unreadable::Version(wire.version));
        }
        from_wire(wire).map(Some)
    }
}

impl JournalStore for JournalFile {
    fn save(&mut self, journal: &Journal) -> io::Result<()> {
        let bytes = serde_json::to_vec(&to_wire(journal))?;
        let mut file = fs::File::create(&self.temporary)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&self.temporary, &self.path)
    }
}

fn to_wire(journal: &Journal) -> Wire {
    let seen = journal.seen.iter().take(MAX_SEEN);
    Wire {
        version: VERSION,
        boot: journal.boot.to_string(),
        since_ms: journal.since.0,
        whole: journal.whole,
        seen: seen.map(|(uid, start)| (uid.to_string(), start.0)).collect(),
        vlans: journal
            .vlans
            .iter()
            .map(|(vlan, last)| (vlan.get(), WireUse { at_ms: last.at.0, present: last.present }))
            .collect(),
    }
}

fn from_wire(wire: Wire) -> Result<Journal, Unreadable> {
    let mut journal = Journal {
        boot: BootId::new(&wire.boot)?,
        seen: BTreeMap::new(),
        vlans: BTreeMap::new(),
        since: Moment(wire.since_ms),
        whole: wire.whole,
    };
    for (uid, start) in wire.seen {
        journal.seen.insert(PodUid::new(&uid)?, KubeletStart(start));
    }
    for (vlan, last) in wire.vlans {
        let last = LastUse { at: Moment(last.at_ms), present: last.present };
        journal.vlans.insert(VlanId::new(i64::from(vlan))?, last);
    }
    Ok(journal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot(text: &str) -> BootId {
        BootId::new(text).unwrap()
    }

    fn journal() -> Journal {
        Journal {
            boot: boot("b1"),
            seen: [(PodUid::new("u1").unwrap(), KubeletStart(7))].into(),
            vlans: [(VlanId::new(3).unwrap(), LastUse { at: Moment(5), present: true })].into(),
            since: Moment(2),
            whole: true,
        }
    }

    #[test]
    fn what_was_saved_is_loaded_in_the_same_boot_only() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("run/trunkline");
        let mut file = JournalFile::open(&state).unwrap();
        assert_eq!(file.load(&boot("b1")), None);
        file.save(&journal()).unwrap();
        assert_eq!(JournalFile::open(&state).unwrap().load(&boot("b1")), Some(journal()));
        assert_eq!(file.load(&boot("b2")), None);
    }

    #[test]
    fn every_corruption_is_no_journal() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = JournalFile::open(dir.path()).unwrap();
        file.save(&journal()).unwrap();
        let path = dir.path().join("journal.json");
        let good = fs::read(&path).unwrap();
        for length in 0..good.len() {
            fs::write(&path, &good[..length]).unwrap();
            assert_eq!(file.load(&boot("b1")), None, "cut at {length}");
        }
        let text = String::from_utf8(good).unwrap();
        for (from, to) in [
            ("\"version\":1", "\"version\":2"),
            ("\"3\":{", "\"121\":{"),
            ("\"3\":{", "\"0\":{"),
            ("\"u1\":7", "\"u 1\":7"),
            ("\"u1\":7", "\"u1\":-7"),
            ("\"whole\":true", "\"whole\":true,\"more\":1"),
        ] {
            assert!(text.contains(from), "{from} in {text}");
            fs::write(&path, text.replace(from, to)).unwrap();
            assert_eq!(file.load(&boot("b1")), None, "{to}");
        }
        fs::write(&path, vec![b' '; usize::try_from(MAX_BYTES).unwrap() + 1]).unwrap();
        assert_eq!(file.load(&boot("b1")), None, "too large");
        fs::write(&path, [0xff, 0xfe]).unwrap();
        assert_eq!(file.load(&boot("b1")), None);
        file.save(&journal()).unwrap();
        assert_eq!(file.load(&boot("b1")), Some(journal()), "the next save mends it");
    }

    #[test]
    fn a_crash_before_the_rename_leaves_the_old_journal() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = JournalFile::open(dir.path()).unwrap();
        file.save(&journal()).unwrap();
        fs::write(dir.path().join("journal.json.tmp"), b"{\"version\":").unwrap();
        assert_eq!(file.load(&boot("b1")), Some(journal()));
        file.save(&journal()).unwrap();
        assert!(!dir.path().join("journal.json.tmp").exists());
    }

    #[test]
    fn the_file_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = JournalFile::open(dir.path()).unwrap();
        let mut large = journal();
        for n in 0..100_000u64 {
            let uid = format!("00000000-0000-4000-8000-{n:012}");
            large.seen.insert(PodUid::new(&uid).unwrap(), KubeletStart(n));
        }
        file.save(&large).unwrap();
        assert_eq!(file.load(&boot("b1")).unwrap().seen.len(), MAX_SEEN);
    }
}
