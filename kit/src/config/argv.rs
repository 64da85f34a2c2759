//! The command line, read as Go reads it.

use std::collections::BTreeMap;

use clap::{Arg, Command};

use super::problems::Problem;
use super::{Env, Source, variable};

/// A flag as clap's struct declares it.
#[derive(Debug, Clone)]
pub(super) struct Flag {
    pub(super) name: String,
    pub(super) boolean: bool,
    pub(super) secret: bool,
    pub(super) default: Option<String>,
    pub(super) other_variable: Option<String>,
}

impl Flag {
    pub(super) fn all(command: &Command) -> Vec<Self> {
        command.get_arguments().filter_map(Self::of).collect()
    }

    fn of(arg: &Arg) -> Option<Self> {
        let name = arg.get_long().filter(|n| !matches!(*n, "help" | "version"))?;
        let named_bool =
            arg.get_value_names().is_some_and(|names| names.iter().any(|n| n.as_str() == "BOOL"));
        Some(Self {
            name: name.to_owned(),
            boolean: named_bool || arg.get_num_args().is_some_and(|n| n.min_values() == 0),
            secret: arg.is_hide_env_values_set(),
            default: arg.get_default_values().first().map(|d| d.to_string_lossy().into_owned()),
            other_variable: arg.get_env().map(|e| e.to_string_lossy().into_owned()),
        })
    }

    /// The variables of this flag, the first one wins.
    pub(super) fn variables(&self) -> Vec<String> {
        std::iter::once(variable(&self.name)).chain(self.other_variable.clone()).collect()
    }

    pub(super) fn variable_value(&self, env: Env<'_>) -> Option<(String, String)> {
        let set =
            |name: String| env(&name).filter(|value| !value.is_empty()).map(|value| (name, value));
        self.variables().into_iter().find_map(set)
    }
}

/// What the command line asks for instead of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    Help,
    Version,
}

/// A command line.
#[derive(Debug, Default)]
pub(super) struct Read {
    pub(super) asked: Option<Asked>,
    pub(super) values: BTreeMap<String, (String, Source)>,
    pub(super) problems: Vec<Problem>,
}

pub(super) fn read(argv: impl Iterator<Item = String>, flags: &[Flag]) -> Read {
    let mut read = Read::default();
    let mut argv = argv.peekable();
    while let Some(word) = argv.next() {
        let Some(rest) =
            word.strip_prefix("--").or_else(|| word.strip_prefix('-')).filter(|r| !r.is_empty())
        else {
            let what = format!("unexpected argument '{word}': only flags are understood");
            read.problems.push(Problem::other(what));
            continue;
        };
        let (name, value) = match rest.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (rest, None),
        };
        match name {
            "help" | "h" => read.asked = Some(read.asked.unwrap_or(Asked::Help)),
            "version" | "V" => read.asked = Some(read.asked.unwrap_or(Asked::Version)),
            _ => match flags.iter().find(|flag| flag.name == name) {
                Some(flag) => take(flag, value, &mut argv, &mut read),
                None => {
                    read.problems.push(unknown(name, flags));
                    // What follows an unknown flag is taken for its value, so that one mistake is told once.
                    if value.is_none() {
                        argv.next_if(|next| !next.starts_with('-'));
                    }
                }
            },
        }
    }
    read
}

fn take(
    flag: &Flag,
    value: Option<String>,
    argv: &mut std::iter::Peekable<impl Iterator<Item = String>>,
    read: &mut Read,
) {
    let value = match value {
        Some(value) => Some(value),
        None if flag.boolean => Some("true".to_owned()),
        None => argv.next(),
    };
    match value {
        Some(value) => {
            read.values.insert(flag.name.clone(), (value, Source::Flag));
        }
        None => {
            read.problems.push(Problem::of(&flag.name, "needs a value: write --flag=value".into()));
        }
    }
}

fn unknown(name: &str, flags: &[Flag]) -> Problem {
    let nearest = flags.iter().map(|flag| (distance(name, &flag.name), &flag.name)).min();
    let hint = match nearest {
        Some((distance, flag)) if distance <= 3 && distance < name.len() => {
            format!(": did you mean --{flag}?")
        }
        _ => ": --help lists all flags".into(),
    };
    Problem::other(format!("--{name} is not a flag{hint}"))
}

/// Edit distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut next = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let replace = row.get(j).copied().unwrap_or_default() + usize::from(x != *y);
            let delete = row.get(j + 1).copied().unwrap_or_default() + 1;
            let insert = next.last().copied().unwrap_or_default() + 1;
            next.push(replace.min(delete).min(insert));
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}
