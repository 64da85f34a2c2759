//! One error type: the harness's callers are tests and the demo, which only show it.

use std::path::{Path, PathBuf};

/// Result of everything here.
pub type Result<T> = std::result::Result<T, Error>;

/// Why the harness could not do something.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file or folder could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// What was touched.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The API server refused, or could not be reached.
    #[error("failed to {what}: {source}")]
    Kube {
        /// The attempt, such as `create pod a/b`.
        what: String,
        /// What the client said.
        source: Box<kube::Error>,
    },
    /// Something is not there (in time).
    #[error("{0}")]
    Say(String),
}

impl Error {
    /// Wraps an I/O error with the path it belongs to.
    pub fn file(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { path, source }
    }

    /// Wraps an API error with what was attempted.
    pub fn kube(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let what = what.into();
        move |source| Self::Kube { what, source: Box::new(source) }
    }

    /// An error that is a sentence.
    pub fn say(text: impl Into<String>) -> Self {
        Self::Say(text.into())
    }
}
