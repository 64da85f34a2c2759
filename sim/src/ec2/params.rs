//! The decoded parameters of one Query request (`ec2.md` §2).
//!
//! Every handler takes the parameters it knows; [`Params::finish`] then refuses what nobody took, as EC2 does with
//! `UnknownParameter`. That keeps a misspelt parameter of the adapter from passing unnoticed.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use super::error::ApiError;

#[derive(Debug, Default)]
pub(crate) struct Params {
    map: BTreeMap<String, String>,
    used: RefCell<BTreeSet<String>>,
    ignored: RefCell<Vec<String>>,
}

impl Params {
    /// Decodes `application/x-www-form-urlencoded`. `+` counts as a space.
    pub(crate) fn decode(body: &str) -> Self {
        let map = body
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                (percent_decode(key), percent_decode(value))
            })
            .collect();
        Self { map, ..Self::default() }
    }

    /// All parameters, for the log.
    pub(crate) fn all(&self) -> &BTreeMap<String, String> {
        &self.map
    }

    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        let value = self.map.get(key)?;
        self.used.borrow_mut().insert(key.to_owned());
        Some(value)
    }

    pub(crate) fn required(&self, key: &str) -> Result<&str, ApiError> {
        self.text(key).filter(|v| !v.is_empty()).ok_or_else(|| ApiError::missing(key))
    }

    pub(crate) fn number<T: FromStr>(&self, key: &str) -> Result<Option<T>, ApiError> {
        self.text(key)
            .map(|v| {
                v.parse().map_err(|_| {
                    ApiError::value(format!("Invalid value '{v}' for {key}: not an integer"))
                })
            })
            .transpose()
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, ApiError> {
        self.text(key)
            .map(|v| match v {
                "true" => Ok(true),
                "false" => Ok(false),
                _ => Err(ApiError::value(format!("Invalid value '{v}' for {key}: not a boolean"))),
            })
            .transpose()
    }

    /// The values of `prefix.1`, `prefix.2`, … in order of their number.
    pub(crate) fn list(&self, prefix: &str) -> Vec<&str> {
        let mut found: Vec<(u32, &str)> = Vec::new();
        for (key, rest, value) in self.below(prefix) {
            if let Ok(n) = rest.parse() {
                self.used.borrow_mut().insert(key.to_owned());
                found.push((n, value));
            }
        }
        found.sort_unstable_by_key(|(n, _)| *n);
        found.into_iter().map(|(_, value)| value).collect()
    }

    /// The prefixes `prefix.1`, `prefix.2`, … of a list of structures, in order of their number.
    pub(crate) fn structures(&self, prefix: &str) -> Vec<String> {
        let numbers: BTreeSet<u32> = self
            .below(prefix)
            .filter_map(|(_, rest, _)| rest.split('.').next()?.parse().ok())
            .collect();
        numbers.into_iter().map(|n| format!("{prefix}.{n}")).collect()
    }

    /// Whether anything is given for `prefix`, itself or below.
    pub(crate) fn has(&self, prefix: &str) -> bool {
        self.map.contains_key(prefix) || self.below(prefix).next().is_some()
    }

    /// Accepts parameters that have no effect here.
    pub(crate) fn ignore(&self, prefix: &str) {
        self.ignored.borrow_mut().push(prefix.to_owned());
    }

    /// Refuses parameters that no handler took.
    pub(crate) fn finish(&self) -> Result<(), ApiError> {
        let used = self.used.borrow();
        let ignored = self.ignored.borrow();
        let unknown = self.map.keys().find(|key| {
            !used.contains(*key)
                && !["Action", "Version", "ClientToken", "DryRun"].contains(&key.as_str())
                && !ignored.iter().any(|i| {
                    key.strip_prefix(i.as_str()).is_some_and(|r| r.is_empty() || r.starts_with('.'))
                })
        });
        match unknown {
            Some(key) => Err(ApiError::bad(
                "UnknownParameter",
                format!("The parameter {key} is not recognized"),
            )),
            None => Ok(()),
        }
    }

    /// What a client token stands for: everything but the token itself (`ec2.md` §6).
    pub(crate) fn fingerprint(&self) -> String {
        self.map
            .iter()
            .filter(|(k, _)| !["ClientToken", "DryRun", "Version"].contains(&k.as_str()))
            .flat_map(|(k, v)| [k, "=", v, "\n"])
            .collect()
    }

    fn below(&self, prefix: &str) -> impl Iterator<Item = (&str, &str, &str)> {
        let start = format!("{prefix}.");
        let skip = start.len();
        self.map
            .range(start.clone()..)
            .take_while(move |(key, _)| key.starts_with(&start))
            .filter_map(move |(key, value)| Some((key.as_str(), key.get(skip..)?, value.as_str())))
    }
}

fn percent_decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'+' => out.push(b' '),
            b'%' => {
                let rest = bytes.clone();
                let hex: Vec<u8> = rest.take(2).collect();
                let decoded = std::str::from_utf8(&hex)
                    .ok()
                    .filter(|h| h.len() == 2)
                    .and_then(|h| u8::from_str_radix(h, 16).ok());
                if let Some(value) = decoded {
                    out.push(value);
                    bytes.next();
                    bytes.next();
                } else {
                    out.push(b'%');
                }
            }
            other => out.push(other),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_come_in_number_order_and_unknown_parameters_are_refused() {
        let p = Params::decode("Action=X&G.10=j&G.2=b&T.1.Key=a%3Ab&T.1.Value=&Odd=1&S=a+b%20c%2");
        assert_eq!(p.list("G"), ["b", "j"]);
        assert_eq!(p.structures("T"), ["T.1"]);
        assert_eq!(p.text("T.1.Key"), Some("a:b"));
        assert_eq!(p.text("T.1.Value"), Some(""));
        assert_eq!(p.text("S"), Some("a b c%2"));
        assert_eq!(p.finish().unwrap_err().code, "UnknownParameter");
        p.ignore("Odd");
        p.finish().unwrap();
    }
}
