//! Running a process: named tasks, one reason to stop, a drain with a deadline, an exit code.
//!
//! The first task that ends by itself, or SIGTERM or SIGINT, begins the drain: the stop token is cancelled, all tasks
//! are awaited, and whatever is left at the deadline is aborted. Tasks spawned as *last* (the election, which may give
//! the lease back only when nothing acts for the term any more; the admin server, which tells about the drain) are told
//! to stop only when the others have ended. A task that ends by itself is a failure even without an error: nothing here
//! is expected to end.

use std::fmt;
use std::future::Future;
use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Exit code after a drain that was asked for.
pub const EXIT_OK: u8 = 0;
/// Exit code after a failure.
pub const EXIT_FAILURE: u8 = 1;
/// Exit code for bad settings (`CFG-1`).
pub const EXIT_USAGE: u8 = 64;

/// What a task came to; an error is logged with its sources.
type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// The tasks of a process.
#[derive(Debug, Default)]
pub struct Tasks {
    stop: CancellationToken,
    last: CancellationToken,
    ordinary: JoinSet<(&'static str, Outcome)>,
    lasting: JoinSet<(&'static str, Outcome)>,
}

/// Why a process stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stopped {
    /// By a signal, or by the caller's token; everything ended in time.
    Drained,
    /// By a task that ended by itself.
    TaskEnded(&'static str),
    /// The drain was cut off at its deadline.
    CutOff,
}

impl Stopped {
    /// 0 after a clean drain, else 1.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(if *self == Self::Drained { EXIT_OK } else { EXIT_FAILURE })
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drained => f.write_str("drained"),
            Self::TaskEnded(name) => write!(f, "the task '{name}' ended"),
            Self::CutOff => f.write_str("the drain was cut off at its deadline"),
        }
    }
}

impl Tasks {
    /// No tasks yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Cancelled when the drain begins.
    pub fn stop_token(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Cancelled when all tasks but the last ones have ended.
    pub fn last_token(&self) -> CancellationToken {
        self.last.clone()
    }

    /// Adds a task that ends when the stop token is cancelled.
    pub fn spawn<E>(
        &mut self,
        name: &'static str,
        task: impl Future<Output = Result<(), E>> + Send + 'static,
    ) where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.ordinary.spawn(async move { (name, task.await.map_err(Into::into)) });
    }

    /// Adds a task that cannot fail and ends when the stop token is cancelled.
    pub fn spawn_unfailing(
        &mut self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.ordinary.spawn(async move {
            task.await;
            (name, Ok(()))
        });
    }

    /// Adds a task that ends when the last token is cancelled.
    pub fn spawn_last<E>(
        &mut self,
        name: &'static str,
        task: impl Future<Output = Result<(), E>> + Send + 'static,
    ) where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.lasting.spawn(async move { (name, task.await.map_err(Into::into)) });
    }

    /// Runs until a signal, or until a task ends; then drains for at most `deadline`.
    pub async fn run(self, deadline: Duration) -> Stopped {
        let signals = self.stop.clone();
        self.run_until(deadline, async move {
            match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
                (Ok(mut term), Ok(mut int)) => tokio::select! {
                    _ = term.recv() => "SIGTERM",
                    _ = int.recv() => "SIGINT",
                    () = signals.cancelled() => "asked to stop",
                },
                _ => {
                    tracing::error!("failed to listen for signals");
                    signals.cancelled().await;
                    "asked to stop"
                }
            }
        })
        .await
    }

    /// The same with another reason to stop than signals.
    pub async fn run_until(
        mut self,
        deadline: Duration,
        reason: impl Future<Output = &'static str>,
    ) -> Stopped {
        let mut stopped = tokio::select! {
            reason = reason => {
                tracing::info!(reason, "draining");
                Stopped::Drained
            }
            Some(ended) = self.ordinary.join_next() => ended_early(ended, &self.stop),
            Some(ended) = self.lasting.join_next() => ended_early(ended, &self.stop),
        };
        self.stop.cancel();
        let drained = tokio::time::timeout(deadline, async {
            drain(&mut self.ordinary).await;
            self.last.cancel();
            drain(&mut self.lasting).await;
        });
        if drained.await.is_err() {
            tracing::error!(?deadline, "the drain did not end in time; cutting it off");
            if stopped == Stopped::Drained {
                stopped = Stopped::CutOff;
            }
        }
        self.ordinary.shutdown().await;
        self.lasting.shutdown().await;
        tracing::info!(why = %stopped, "stopped");
        stopped
    }
}

fn ended_early(
    ended: Result<(&'static str, Outcome), tokio::task::JoinError>,
    stop: &CancellationToken,
) -> Stopped {
    match ended {
        // A task may see the token before this loop does.
        Ok((_, Ok(()))) if stop.is_cancelled() => Stopped::Drained,
        Ok((name, outcome)) => {
            log_end(name, &outcome);
            Stopped::TaskEnded(name)
        }
        Err(error) => {
            tracing::error!(%error, "a task broke");
            Stopped::TaskEnded("unnamed (it panicked)")
        }
    }
}

fn log_end(name: &'static str, outcome: &Outcome) {
    match outcome {
        Ok(()) => tracing::error!(task = name, "a task ended by itself; stopping"),
        Err(error) => {
            tracing::error!(task = name, error = %chain(error.as_ref()), "a task failed; stopping");
        }
    }
}

async fn drain(tasks: &mut JoinSet<(&'static str, Outcome)>) {
    while let Some(ended) = tasks.join_next().await {
        match ended {
            Ok((name, Ok(()))) => tracing::debug!(task = name, "ended"),
            Ok((name, Err(error))) => {
                tracing::warn!(task = name, error = %chain(error.as_ref()), "failed while draining");
            }
            Err(error) => tracing::error!(%error, "a task broke while draining"),
        }
    }
}

/// An error and its sources, joined by `: `.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    async fn until(token: CancellationToken) -> Result<(), Infallible> {
        token.cancelled().await;
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn last_tasks_are_stopped_only_after_the_others_have_ended() {
        let mut tasks = Tasks::new();
        let (stop, last) = (tasks.stop_token(), tasks.last_token());
        let seen = last.clone();
        tasks.spawn("slow", async move {
            stop.cancelled().await;
            tokio::time::sleep(Duration::from_secs(3)).await;
            assert!(!seen.is_cancelled());
            Ok::<_, Infallible>(())
        });
        tasks.spawn_last("lease", until(last));
        let stopped = tasks.run_until(Duration::from_secs(10), async { "test" }).await;
        assert_eq!(stopped, Stopped::Drained);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_ends_by_itself_stops_the_process() {
        let mut tasks = Tasks::new();
        tasks.spawn("other", until(tasks.stop_token()));
        tasks.spawn("short", async { Err::<(), _>(std::io::Error::other("no more")) });
        let stopped = tasks.run_until(Duration::from_secs(10), std::future::pending()).await;
        assert_eq!(stopped, Stopped::TaskEnded("short"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_is_cut_off_at_its_deadline() {
        let mut tasks = Tasks::new();
        tasks.spawn_unfailing("stuck", std::future::pending());
        let stopped = tasks.run_until(Duration::from_secs(10), async { "test" }).await;
        assert_eq!(stopped, Stopped::CutOff);
    }
}
