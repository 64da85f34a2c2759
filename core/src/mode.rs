//! Modes: how much the coordinator may do (`IDEA-12`).
//!
//! The flags `--read-only` and `--no-release` are the default; an operator may choose another mode while it runs, which is
//! stored and outlives terms and restarts. A stored choice replaces the flags over which it was made. Once the flags are
//! others, nobody knows which of the two decisions is the later one, and the stricter counts.

use std::fmt;

/// How much may be done. Ordered: a later one forbids more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Mode {
    /// Everything.
    #[default]
    Normal,
    /// No Disassociate and no Delete.
    NoRelease,
    /// No EC2 call that changes something, and no annotation.
    ReadOnly,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Normal, Self::NoRelease, Self::ReadOnly];

    /// Short name for the wire, the command line and what is stored.
    pub fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::NoRelease => "no-release",
            Self::ReadOnly => "read-only",
        }
    }

    /// The mode of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }

    /// What the flags say.
    pub fn from_flags(read_only: bool, no_release: bool) -> Self {
        match (read_only, no_release) {
            (true, _) => Self::ReadOnly,
            (false, true) => Self::NoRelease,
            (false, false) => Self::Normal,
        }
    }

    /// Nothing may be released.
    pub fn forbids_release(self) -> bool {
        self >= Self::NoRelease
    }

    /// Nothing may be changed.
    pub fn forbids_change(self) -> bool {
        self >= Self::ReadOnly
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An operator's choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Choice {
    /// What was chosen.
    pub mode: Mode,
    /// What the flags said then.
    pub over: Mode,
}

/// The mode in force, of a stored choice (if there is one) and the flags.
pub fn in_force(choice: Option<Choice>, flags: Mode) -> Mode {
    match choice {
        None => flags,
        Some(choice) if choice.over == flags => choice.mode,
        Some(choice) => choice.mode.max(flags),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_are_not() {
        for mode in Mode::ALL {
            assert_eq!(Mode::parse(mode.name()), Some(mode));
        }
        assert_eq!(Mode::parse("paused"), None);
    }

    #[test]
    fn a_choice_replaces_the_flags_it_was_made_over_and_never_loosens_others() {
        for flags in Mode::ALL {
            assert_eq!(in_force(None, flags), flags);
            for mode in Mode::ALL {
                assert_eq!(in_force(Some(Choice { mode, over: flags }), flags), mode);
                for over in Mode::ALL.into_iter().filter(|over| *over != flags) {
                    assert!(in_force(Some(Choice { mode, over }), flags) >= mode.max(flags));
                }
            }
        }
    }

    #[test]
    fn a_mode_that_forbids_more_forbids_what_the_others_forbid() {
        let forbidden = Mode::ALL.map(|m| (m.forbids_release(), m.forbids_change()));
        assert_eq!(forbidden, [(false, false), (true, false), (true, true)]);
        assert_eq!(Mode::from_flags(true, true), Mode::ReadOnly);
        assert_eq!(Mode::from_flags(false, true), Mode::NoRelease);
    }
}
