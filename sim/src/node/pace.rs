//! How long the steps of a pod's end take: the times measured on a real kubelet (`real-node.md` §1), divided by
//! `--speed`.

use std::time::Duration;

use rand::Rng;

/// The measured times at a chosen speed.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    speed: f64,
}

/// A step whose time was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// From the delete (or the force delete) to the end of the process.
    ProcessEnd,
    /// From the end of the process to the end of CNI DEL.
    LinkGone,
    /// From the end of the link to the terminal phase in the API.
    PhaseWritten,
    /// From there to the end of the cgroup.
    CgroupGone,
    /// From the cgroup's end to the end of the API object.
    ObjectDeleted,
    /// From bind to the sandbox's first ADD.
    SandboxStart,
    /// From ADD to Running.
    ContainerStart,
    /// The runtime's wait before ADD is tried again when nothing changed.
    AddRetry,
    /// From the start of the kubelet to its first action on a pod.
    KubeletStart,
}

impl Step {
    /// Shortest and longest, in milliseconds.
    fn range(self) -> (u64, u64) {
        match self {
            Self::ProcessEnd => (40, 100),
            Self::LinkGone | Self::SandboxStart => (20, 60),
            Self::PhaseWritten => (50, 70),
            Self::CgroupGone => (600, 900),
            Self::ObjectDeleted => (5, 40),
            Self::ContainerStart => (100, 250),
            Self::AddRetry => (900, 1100),
            Self::KubeletStart => (1200, 1500),
        }
    }
}

impl Pace {
    /// `speed` 1 is real time, 10 ten times faster. Values that are not positive count as 1.
    pub fn new(speed: f64) -> Self {
        Self { speed: if speed.is_finite() && speed > 0.0 { speed } else { 1.0 } }
    }

    /// A time for this step.
    pub fn of(self, step: Step) -> Duration {
        let (low, high) = step.range();
        self.scaled(Duration::from_millis(rand::rng().random_range(low..=high)))
    }

    /// A given time at this speed.
    pub fn scaled(self, time: Duration) -> Duration {
        time.div_f64(self.speed)
    }
}

/// Reads `2s`, `1500ms`, `1m`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at_checked(digits)?;
    let number: f64 = number.parse().ok()?;
    let seconds = match unit {
        "ms" => number / 1000.0,
        "s" => number,
        "m" => number * 60.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_with_their_unit() {
        assert_eq!(parse_duration("2s"), Some(Duration::from_secs(2)));
        assert_eq!(parse_duration("1500ms"), Some(Duration::from_millis(1500)));
        assert_eq!(parse_duration("1m"), Some(Duration::from_secs(60)));
        for text in ["", "2", "s", "2h", "-1s", "2 s"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn speed_divides_and_nonsense_counts_as_one() {
        assert_eq!(Pace::new(10.0).scaled(Duration::from_secs(1)), Duration::from_millis(100));
        for speed in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Pace::new(speed).scaled(Duration::from_secs(1)), Duration::from_secs(1));
        }
    }

    #[test]
    fn the_cgroup_is_the_last_local_thing_to_go() {
        let (cgroup, _) = Step::CgroupGone.range();
        let (_, process) = Step::ProcessEnd.range();
        let (_, link) = Step::LinkGone.range();
        assert!(cgroup > process + link);
    }
}
