//! Filters (`ec2.md` §2): values of one filter are ORed, filters are ANDed, case-sensitive, `*` and `?` are wildcards.

use std::collections::BTreeMap;

use super::error::ApiError;
use super::params::Params;
use super::switches::Switches;

/// The filters of one request.
#[derive(Debug, Default)]
pub(crate) struct Filters(Vec<(String, Vec<String>)>);

impl Filters {
    /// Reads `Filter.N.…`; names must be in `known`, or `tag:<key>` or `tag-key` where those make sense.
    pub(crate) fn read(
        params: &Params,
        known: &[&str],
        switches: &Switches,
    ) -> Result<Self, ApiError> {
        let mut filters = Vec::new();
        for prefix in params.structures("Filter") {
            let name = params.required(&format!("{prefix}.Name"))?;
            let values: Vec<String> = params
                .list(&format!("{prefix}.Value"))
                .into_iter()
                .map(ToOwned::to_owned)
                .collect();
            let tags = known.contains(&"tag-key") && name.starts_with("tag:");
            if !known.contains(&name) && !tags {
                return Err(ApiError::bad(
                    switches.unknown_filter_code.clone(),
                    format!("The filter '{name}' is invalid"),
                ));
            }
            if values.is_empty() {
                return Err(ApiError::bad(
                    "InvalidParameterValue",
                    format!("The filter '{name}' must have at least one value"),
                ));
            }
            filters.push((name.to_owned(), values));
        }
        Ok(Self(filters))
    }

    /// Whether any filter has one of these names.
    pub(crate) fn names_any(&self, names: &[&str]) -> bool {
        self.0.iter().any(|(name, _)| names.contains(&name.as_str()))
    }

    /// Whether a thing passes: `values` gives what it has under a filter name, `tags` are its tags.
    pub(crate) fn pass(
        &self,
        tags: &BTreeMap<String, String>,
        values: impl Fn(&str) -> Vec<String>,
    ) -> bool {
        self.0.iter().all(|(name, wanted)| {
            let has = match name.strip_prefix("tag:") {
                Some(key) => tags.get(key).cloned().into_iter().collect(),
                None if name == "tag-key" => tags.keys().cloned().collect(),
                None => values(name),
            };
            has.iter().any(|value| wanted.iter().any(|pattern| matches(pattern, value)))
        })
    }
}

/// `*` stands for any run, `?` for any one character, `\` takes the next one as it is.
fn matches(pattern: &str, value: &str) -> bool {
    fn go(pattern: &[char], value: &[char]) -> bool {
        match (pattern, value) {
            ([], []) => true,
            (['*', rest @ ..], _) => {
                (0..=value.len()).any(|skip| value.get(skip..).is_some_and(|value| go(rest, value)))
            }
            (['?', rest @ ..], [_, value @ ..]) => go(rest, value),
            (['\\', c, rest @ ..] | [c, rest @ ..], [v, value @ ..]) => c == v && go(rest, value),
            _ => false,
        }
    }
    if !pattern.contains(['*', '?', '\\']) {
        return pattern == value;
    }
    go(&pattern.chars().collect::<Vec<_>>(), &value.chars().collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn wildcards_match_and_case_counts() {
        for (pattern, value) in
            [("*", ""), ("a*c", "abbc"), ("a?c", "abc"), ("a\\*", "a*"), ("*b*", "abc")]
        {
            assert!(matches(pattern, value), "{pattern} {value}");
        }
        for (pattern, value) in [("A*", "abc"), ("a?", "a"), ("a\\*", "ab"), ("", "a"), ("?", "")] {
            assert!(!matches(pattern, value), "{pattern} {value}");
        }
    }
}
