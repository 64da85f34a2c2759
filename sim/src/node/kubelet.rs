//! The kubelet as far as an agent looks at it: a Unix socket that accepts, and whose ctime is the kubelet's start.

use std::io;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;
use tokio::task::JoinHandle;

/// `sun_path` holds 108 bytes, the last one zero.
const LONGEST_PATH: usize = 107;

/// Why the socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Unix sockets have short paths.
    #[error("the kubelet socket's path {} is longer than {LONGEST_PATH} bytes: choose a shorter --root", .0.display())]
    TooLong(PathBuf),
    /// Anything else.
    #[error("failed to open the kubelet socket {}", path.display())]
    Socket {
        /// Its path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// A running kubelet's socket. Dropped, it refuses connections; the file stays, as after a real stop.
#[derive(Debug)]
pub struct Socket {
    accepting: JoinHandle<()>,
}

impl Socket {
    /// Starts: the file is made anew, so its ctime is now.
    pub fn open(path: &Path) -> Result<Self, Error> {
        if path.as_os_str().len() > LONGEST_PATH {
            return Err(Error::TooLong(path.to_owned()));
        }
        let failed = |source| Error::Socket { path: path.to_owned(), source };
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(e)),
            _ => {}
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        let accepting = tokio::spawn(async move {
            loop {
                // A connection is closed as soon as it was accepted: nothing is served here.
                if listener.accept().await.is_err() {
                    tokio::task::yield_now().await;
                }
            }
        });
        Ok(Self { accepting })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[tokio::test]
    async fn a_restart_gives_the_socket_a_new_ctime_and_it_accepts_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubelet.sock");
        let ctime = || {
            let meta = std::fs::metadata(&path).unwrap();
            (meta.ctime(), meta.ctime_nsec())
        };
        let first = Socket::open(&path).unwrap();
        let before = ctime();
        tokio::net::UnixStream::connect(&path).await.unwrap();
        drop(first);
        while tokio::net::UnixStream::connect(&path).await.is_ok() {
            tokio::task::yield_now().await;
        }
        let _second = Socket::open(&path).unwrap();
        assert!(ctime() > before);
        tokio::net::UnixStream::connect(&path).await.unwrap();
    }

    #[tokio::test]
    async fn a_path_that_is_too_long_is_told_apart() {
        let path = PathBuf::from(format!("/tmp/{}/kubelet.sock", "x".repeat(100)));
        assert!(matches!(Socket::open(&path), Err(Error::TooLong(_))));
    }
}
