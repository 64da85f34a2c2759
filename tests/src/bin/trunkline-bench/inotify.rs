//! Every agent has an inotify instance, and the kernel counts them per user: 128 by default. On real nodes each agent has
//! its node's limit to itself; here all of them share one.

use std::path::Path;
use trunkline_tests::{Error, Result};

const LIMIT: &str = "/proc/sys/fs/inotify/max_user_instances";

/// Puts the old limit back when it is dropped.
#[derive(Debug)]
pub(crate) struct Raised(Option<u32>);

impl Drop for Raised {
    fn drop(&mut self) {
        if let Some(before) = self.0
            && let Err(error) = std::fs::write(LIMIT, before.to_string())
        {
            eprintln!("{LIMIT} could not be set back to {before}: {error}");
        }
    }
}

/// Makes sure that this many instances are allowed; root may raise the limit for as long as the answer lives.
pub(crate) fn room_for(instances: u32) -> Result<Raised> {
    let text = std::fs::read_to_string(LIMIT).map_err(Error::file(Path::new(LIMIT)))?;
    let before: u32 = text
        .trim()
        .parse()
        .map_err(|error| Error::say(format!("{LIMIT} says '{}': {error}", text.trim())))?;
    if before >= instances {
        return Ok(Raised(None));
    }
    std::fs::write(LIMIT, instances.to_string()).map_err(|error| {
        Error::say(format!(
            "this needs {instances} inotify instances and {before} are allowed ({error}); run `sysctl fs.inotify.max_user_instances={instances}` as root first"
        ))
    })?;
    Ok(Raised(Some(before)))
}
