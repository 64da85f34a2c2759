//! Pages (`ec2.md` §13 row 19). A token is a cursor, not a snapshot: what comes or goes between two pages may be missed.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::super::error::ApiError;
use super::super::fault::{FaultKind, PageFault};
use super::{Call, World};

#[derive(Debug)]
struct Cursor {
    action: String,
    after: String,
    until: u64,
}

#[derive(Debug, Default)]
pub(super) struct Pages(BTreeMap<String, Cursor>);

/// The `MaxResults` of a call.
pub(crate) fn page_size(
    call: &Call<'_>,
    allowed: &RangeInclusive<usize>,
) -> Result<Option<usize>, ApiError> {
    // Taken here, so that every paged action knows it.
    call.params.text("NextToken");
    let size = call.params.number("MaxResults")?;
    match size {
        Some(size) if !allowed.contains(&size) => Err(ApiError::value(format!(
            "Value ( {size} ) for parameter maxResults is invalid. Expecting a value between {} and {}.",
            allowed.start(),
            allowed.end()
        ))),
        size => Ok(size),
    }
}

impl World {
    /// Cuts the page out of `items`, which are in the order of their keys. The page comes with the token of the next.
    pub(crate) fn page<T: Clone>(
        &mut self,
        call: &Call<'_>,
        size: Option<usize>,
        items: impl IntoIterator<Item = (String, T)>,
    ) -> Result<(Vec<T>, Option<String>), ApiError> {
        let given = call.params.text("NextToken").filter(|t| !t.is_empty());
        let after = match given {
            Some(token) => {
                let cursor = self
                    .pages
                    .0
                    .get(token)
                    .filter(|c| c.until > self.now && c.action == call.action);
                let cursor = cursor.ok_or_else(|| {
                    ApiError::bad(
                        "InvalidPaginationToken",
                        "The pagination token is invalid or has expired",
                    )
                })?;
                Some(cursor.after.clone())
            }
            None => None,
        };
        let fault = call.fired.find(|kind| match kind {
            FaultKind::Page { how } => Some(*how),
            _ => None,
        });
        if fault == Some(PageFault::Empty) {
            let token = self.page_token(call, after.unwrap_or_default());
            return Ok((Vec::new(), Some(token)));
        }
        let skip = usize::from(fault == Some(PageFault::SkipItem));
        let mut rest = items
            .into_iter()
            .filter(|(key, _)| after.as_ref().is_none_or(|after| key > after))
            .skip(skip)
            .peekable();
        // Half of what was asked for, at least one.
        let size = match (fault, size) {
            (Some(PageFault::Short), Some(size)) => Some((size / 2).max(1)),
            (Some(PageFault::Short), None) => Some(1),
            (_, size) => size,
        };
        let mut page: Vec<T> = Vec::new();
        let mut last = String::new();
        while let Some((key, item)) = rest.next_if(|_| size.is_none_or(|size| page.len() < size)) {
            last = key;
            page.push(item);
        }
        let more = rest.peek().is_some();
        if fault == Some(PageFault::DoubleItem) {
            page.extend(page.first().cloned());
        }
        let token = match fault {
            Some(PageFault::EmptyToken) if !more => Some(String::new()),
            Some(PageFault::RepeatToken) if given.is_some() => given.map(ToOwned::to_owned),
            _ => more.then(|| self.page_token(call, last)),
        };
        Ok((page, token))
    }

    fn page_token(&mut self, call: &Call<'_>, after: String) -> String {
        let token = self.new_id("eyJ2IjoiMiJ9-");
        let (now, until) = (self.now, self.now + self.switches.page_token_ms);
        self.pages.0.retain(|_, cursor| cursor.until > now);
        self.pages.0.insert(token.clone(), Cursor { action: call.action.to_owned(), after, until });
        token
    }
}
