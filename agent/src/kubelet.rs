//! The kubelet's two signs: its start is the ctime of its socket, its life is that the socket accepts (`real-node.md` §4).
//!
//! The ctime is read before and after the connection, so that a kubelet that restarts between the two does not lend its
//! new life to its old start. Everything that is not a clear answer is [`Kubelet::Silent`].

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixStream;
use trunkline_core::id::KubeletStart;
use trunkline_core::view::Kubelet;

/// How long a kubelet may take to accept. A local socket with a free backlog accepts at once.
const CONNECT: Duration = Duration::from_secs(1);

/// Looks at the kubelet's socket.
#[derive(Debug, Clone)]
pub struct KubeletProbe {
    socket: PathBuf,
}

impl KubeletProbe {
    /// For the socket at this path (`--kubelet-socket`).
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    /// The kubelet's start as the socket's ctime tells it; an error if there is no socket. Says nothing about life.
    pub fn start(&self) -> io::Result<KubeletStart> {
        let meta = std::fs::metadata(&self.socket)?;
        if !meta.file_type().is_socket() {
            return Err(io::Error::other("not a socket"));
        }
        let nanos = i128::from(meta.ctime()) * 1_000_000_000 + i128::from(meta.ctime_nsec());
        u64::try_from(nanos)
            .map(KubeletStart)
            .map_err(|_| io::Error::other("ctime before the Unix epoch"))
    }

    /// Start and life.
    pub async fn look(&self) -> Kubelet {
        match self.try_look().await {
            Ok(start) => Kubelet::Alive(start),
            Err(error) => {
                tracing::debug!(%error, socket = %self.socket.display(), "the kubelet's socket does not answer");
                Kubelet::Silent
            }
        }
    }

    async fn try_look(&self) -> io::Result<KubeletStart> {
        let before = self.start()?;
        tokio::time::timeout(CONNECT, UnixStream::connect(&self.socket)).await??;
        if self.start()? == before {
            Ok(before)
        } else {
            Err(io::Error::other("the socket was made anew meanwhile"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::UnixListener;

    #[tokio::test]
    async fn an_accepting_socket_is_alive_and_a_new_one_is_another_start() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubelet.sock");
        let probe = KubeletProbe::new(&path);
        assert_eq!(probe.look().await, Kubelet::Silent);

        let first = UnixListener::bind(&path).unwrap();
        let Kubelet::Alive(start) = probe.look().await else { panic!("silent") };
        assert_eq!(probe.look().await, Kubelet::Alive(start));

        drop(first);
        assert_eq!(probe.look().await, Kubelet::Silent, "a socket without listener is no life");
        assert_eq!(probe.start().unwrap(), start);

        std::fs::remove_file(&path).unwrap();
        let _second = UnixListener::bind(&path).unwrap();
        let Kubelet::Alive(later) = probe.look().await else { panic!("silent") };
        assert_ne!(later, start);
    }

    #[tokio::test]
    async fn a_file_in_the_place_of_the_socket_is_silent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubelet.sock");
        std::fs::write(&path, b"").unwrap();
        assert_eq!(KubeletProbe::new(&path).look().await, Kubelet::Silent);
    }
}
