//! Processes that end with their owner.
//!
//! Output goes to a log file, whose end is part of every error. Each process is the leader of a process group of its own,
//! so that Ctrl-C on the terminal reaches the owner only, which then ends its processes in order.

use crate::{Error, Result};
use rustix::process::{Pid, Signal};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// A running child process.
#[derive(Debug)]
pub struct Proc {
    name: String,
    child: Child,
    log: PathBuf,
    patience: Duration,
}

impl Proc {
    /// Starts `command`; both outputs are appended to `log`.
    pub fn start(name: &str, command: &mut Command, log: &Path) -> Result<Self> {
        let file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .map_err(Error::file(log))?;
        let copy = file.try_clone().map_err(Error::file(log))?;
        let group = std::os::unix::process::CommandExt::process_group(command, 0);
        let child = group
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(copy)
            .spawn()
            .map_err(|error| Error::say(format!("cannot start {name}: {error}")))?;
        Ok(Self { name: name.to_owned(), child, log: log.to_owned(), patience: Duration::ZERO })
    }

    /// When dropped, it gets SIGTERM and this long to tidy up (it made more than files) before it is killed.
    #[must_use]
    pub fn patiently(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The name it was started under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its log file.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The last `lines` lines of its log.
    pub fn tail(&self, lines: usize) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let all: Vec<_> = text.lines().collect();
        all.get(all.len().saturating_sub(lines)..).unwrap_or_default().join("\n")
    }

    /// Its exit status once it has ended.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Fails with the end of the log if the process has ended.
    pub fn must_run(&mut self) -> Result<()> {
        match self.exited() {
            None => Ok(()),
            Some(status) => Err(Error::say(format!(
                "{} ended ({status}); its last words:\n{}",
                self.name,
                self.tail(30)
            ))),
        }
    }

    /// Sends a signal, such as `Signal::TERM`, `Signal::STOP` or `Signal::CONT`.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| Error::say("a process id that is none"))?;
        rustix::process::kill_process(pid, signal)
            .map_err(|error| Error::say(format!("cannot signal {}: {error}", self.name)))
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) {
        // Both fail only when the process is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM, then waits at most `within`; SIGKILL after that is an error.
    pub async fn stop(&mut self, within: Duration) -> Result<ExitStatus> {
        if let Some(status) = self.exited() {
            return Ok(status);
        }
        self.signal(Signal::TERM)?;
        let name = self.name.clone();
        let ended =
            crate::poll::eventually(&format!("{name} ends on SIGTERM"), within, async || {
                self.exited().ok_or("still running")
            })
            .await;
        if ended.is_err() {
            self.kill();
        }
        ended
    }

    /// Waits until a line of the log contains `mark` and returns what follows it on that line.
    pub async fn announced(&mut self, mark: &str, within: Duration) -> Result<String> {
        let what = format!("{} announces `{mark}`", self.name);
        let mut ended = None;
        let found = crate::poll::eventually(&what, within, async || {
            let text = std::fs::read(&self.log).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            // A line counts once it is whole.
            let found = text
                .split_inclusive('\n')
                .filter(|line| line.ends_with('\n'))
                .find_map(|line| line.split_once(mark).map(|(_, rest)| rest.trim().to_owned()));
            if found.is_none()
                && let Some(status) = self.exited()
            {
                ended = Some(status);
                return Ok(None);
            }
            found.map(Some).ok_or("nothing yet")
        })
        .await;
        match (found, ended) {
            (Ok(Some(rest)), _) => Ok(rest),
            (Ok(None), Some(status)) => Err(Error::say(format!(
                "{} ended ({status}); its last words:\n{}",
                self.name,
                self.tail(30)
            ))),
            (Ok(None), None) => Err(Error::say(what)),
            (Err(error), _) => Err(Error::say(format!("{error}; its log:\n{}", self.tail(30)))),
        }
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        if !self.patience.is_zero() && self.signal(Signal::TERM).is_ok() {
            let pause = Duration::from_millis(20);
            for _ in 0..self.patience.as_millis() / pause.as_millis() {
                if self.exited().is_some() {
                    break;
                }
                std::thread::sleep(pause);
            }
        }
        self.kill();
    }
}
