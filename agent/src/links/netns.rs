//! Running something inside another network namespace.
//!
//! `setns` moves the calling thread, and a thread of the runtime's pool would carry the namespace on to whatever it runs
//! next. So each call has a thread of its own that ends with it. Sockets stay in the namespace they were made in. The
//! file is opened anew every time: a namespace that was made again under the same name is found.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::sync::oneshot;

use super::LinkError;

/// Runs `work` in the namespace behind `netns`, or where the process is.
pub(super) async fn inside<T: Send + 'static>(
    netns: Option<PathBuf>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, LinkError> {
    let (answer, result) = oneshot::channel();
    std::thread::Builder::new().name("links".into()).spawn(move || {
        let done = match netns {
            None => Ok(work()),
            Some(path) => enter(path).map(|()| work()),
        };
        // The asker may have been cancelled.
        let _ = answer.send(done);
    })?;
    result.await.map_err(|_| LinkError::Worker)?
}

fn enter(path: PathBuf) -> Result<(), LinkError> {
    let entered = File::open(&path).and_then(|file| {
        Ok(move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?)
    });
    entered.map_err(|source| LinkError::Namespace { path, source })
}
