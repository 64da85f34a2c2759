//! One error type for all tools: a sentence for the person in front of the terminal.

use std::path::{Path, PathBuf};

/// Why a tool stopped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// A file or folder could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// What was touched.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A program could not be started.
    #[error("cannot start `{program}`: {source}")]
    Start {
        /// The program's name.
        program: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A program ran and failed.
    #[error("`{program}` failed ({status})")]
    Program {
        /// The command line, shortened.
        program: String,
        /// Its exit status.
        status: std::process::ExitStatus,
    },
    /// The wire contract does not compile.
    #[error("the wire contract does not compile: {0}")]
    Proto(String),
    /// Anything that a sentence says best.
    #[error("{0}")]
    Say(String),
}

impl Failure {
    /// Wraps an I/O error with the path it belongs to.
    pub(crate) fn file(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { path, source }
    }
}
