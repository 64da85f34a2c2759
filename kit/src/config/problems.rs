//! All that is wrong with the settings.

use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitCode;

use super::argv::Flag;
use super::{Exit, Source, variable};
use crate::drain::EXIT_USAGE;

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The flag, without dashes; `None` for stray arguments and unknown flags.
    pub flag: Option<String>,
    /// What is wrong and how to mend it.
    pub what: String,
}

impl Problem {
    pub(super) fn of(flag: &str, what: String) -> Self {
        Self { flag: Some(flag.to_owned()), what }
    }

    pub(super) fn other(what: String) -> Self {
        Self { flag: None, what }
    }
}

/// Collects mistakes while texts become types.
#[derive(Debug, Default)]
pub struct Problems {
    program: String,
    found: Vec<Problem>,
    /// How each flag is named to the user: by where its value came from.
    variables: BTreeMap<String, Vec<String>>,
    from_variable: BTreeMap<String, String>,
}

/// The settings are bad; all mistakes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct BadSettings {
    /// Name of the program.
    pub program: String,
    /// The mistakes, in the order in which they were found.
    pub problems: Vec<String>,
}

impl fmt::Display for BadSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.problems.len();
        let noun = if count == 1 { "setting is" } else { "settings are" };
        write!(f, "{}: {count} {noun} wrong:", self.program)?;
        for problem in &self.problems {
            write!(f, "\n  {problem}")?;
        }
        Ok(())
    }
}

impl BadSettings {
    /// Prints all mistakes to standard error; exit code 64.
    pub fn report(&self) -> ExitCode {
        Exit { text: self.to_string(), code: EXIT_USAGE }.report()
    }
}

impl Problems {
    pub(super) fn new(
        program: &str,
        flags: &[Flag],
        values: &BTreeMap<String, (String, Source)>,
        found: Vec<Problem>,
    ) -> Self {
        let from_variable = values
            .iter()
            .filter_map(|(flag, (_, source))| match source {
                Source::Variable(name) => Some((flag.clone(), name.clone())),
                Source::Flag | Source::Default => None,
            })
            .collect();
        let variables = flags.iter().map(|flag| (flag.name.clone(), flag.variables())).collect();
        Self { program: program.to_owned(), found, variables, from_variable }
    }

    /// A mistake in a flag's value.
    pub fn add(&mut self, flag: &str, what: impl fmt::Display) {
        self.found.push(Problem::of(flag, what.to_string()));
    }

    /// A mistake that is not about one flag.
    pub fn add_other(&mut self, what: impl fmt::Display) {
        self.found.push(Problem::other(what.to_string()));
    }

    /// The value of a flag that always has one; `None` if it is bad.
    pub fn parsed<T, E: fmt::Display>(
        &mut self,
        flag: &str,
        text: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        parse(text).map_err(|error| self.add(flag, error)).ok()
    }

    /// The value of a flag that may be missing; `None` if it is missing, empty, or bad (then a mistake is noted).
    pub fn optional<T, E: fmt::Display>(
        &mut self,
        flag: &str,
        text: Option<&str>,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        self.parsed(flag, text.filter(|t| !t.is_empty())?, parse)
    }

    /// The value of a flag that must be given; `None` if it is missing, empty, or bad.
    pub fn required<T, E: fmt::Display>(
        &mut self,
        flag: &str,
        text: Option<&str>,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        match text.filter(|t| !t.is_empty()) {
            Some(text) => self.parsed(flag, text, parse),
            None => {
                let variables =
                    self.variables.get(flag).cloned().unwrap_or_else(|| vec![variable(flag)]);
                self.add(flag, format!("is required: set it or {}", variables.join(" or ")));
                None
            }
        }
    }

    /// Nothing is wrong so far.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// All mistakes as one error.
    pub fn into_error(self) -> BadSettings {
        let named = |problem: &Problem| match &problem.flag {
            None => problem.what.clone(),
            Some(flag) => match self.from_variable.get(flag) {
                Some(variable) => format!("--{flag} (from {variable}): {}", problem.what),
                None => format!("--{flag}: {}", problem.what),
            },
        };
        BadSettings {
            program: self.program.clone(),
            problems: self.found.iter().map(named).collect(),
        }
    }

    /// `Ok` if nothing is wrong.
    pub fn finish(self) -> Result<(), BadSettings> {
        if self.is_empty() { Ok(()) } else { Err(self.into_error()) }
    }
}
