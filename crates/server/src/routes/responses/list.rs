//! The queries of stored responses, and the list of an input's items.

use serde::Serialize;
use serde_json::value::RawValue;

use super::record::InputItem;
use crate::error::ApiError;
use crate::wire::Parameters;
use crate::wire::json::brief;

/// Items of a page, where the request does not say.
const PAGE: usize = 20;
/// Most items of a page.
const MOST: usize = 100;

/// A page of the items of an input.
#[derive(Debug, Serialize)]
pub(crate) struct Page {
    object: &'static str,
    data: Vec<Box<RawValue>>,
    first_id: Option<String>,
    last_id: Option<String>,
    has_more: bool,
}

/// The page of items that a request asks for.
#[derive(Debug)]
pub(crate) struct PageQuery {
    limit: usize,
    is_ascending: bool,
    after: Option<String>,
}

/// The parameters of a query, without those that say which fields to include: there are none to
/// add, and no padding to leave out.
fn pairs(query: &Parameters) -> impl Iterator<Item = (&str, &str)> {
    const NOTHING: &[(&str, Option<&str>)] =
        &[("include", None), ("include[]", None), ("include_obfuscation", Some("false"))];
    let asks = |(name, value): &(&str, &str)| {
        !NOTHING.iter().any(|(known, only)| name == known && only.is_none_or(|only| only == *value))
    };
    query.iter().filter(asks)
}

fn wrong(name: &str, expected: &str, got: &str) -> ApiError {
    let message = format!("`{name}` must be {expected}, got `{}`", brief(got));
    ApiError::param(name, message)
}

impl PageQuery {
    pub(crate) fn read(query: &Parameters) -> Result<Self, ApiError> {
        let mut page = Self { limit: PAGE, is_ascending: false, after: None };
        for (name, value) in pairs(query) {
            match name {
                "limit" => {
                    let limit = value.parse().ok().filter(|n| (1..=MOST).contains(n));
                    page.limit = limit.ok_or_else(|| wrong(name, "from 1 to 100", value))?;
                }
                "order" => {
                    page.is_ascending = match value {
                        "asc" => true,
                        "desc" => false,
                        _ => return Err(wrong(name, "asc or desc", value)),
                    }
                }
                "after" => page.after = Some(value.to_owned()),
                _ => return Err(Parameters::unknown(name, "limit, order, after, include")),
            }
        }
        Ok(page)
    }

    /// The page of these items.
    pub(crate) fn of(&self, items: &[InputItem]) -> Result<Page, ApiError> {
        let mut order: Vec<&InputItem> = items.iter().collect();
        if !self.is_ascending {
            order.reverse();
        }
        let start = match &self.after {
            None => 0,
            Some(after) => {
                let found = order.iter().position(|item| item.id == *after);
                found.ok_or_else(|| wrong("after", "the id of an item of this input", after))? + 1
            }
        };
        let page = order[start..].iter().take(self.limit);
        let id = |item: &&InputItem| item.id.clone();
        let ids: Vec<String> = page.clone().map(id).collect();
        let json = |item: &&InputItem| RawValue::from_string(item.json.to_string());
        let data: Result<_, _> = page.map(json).collect();
        Ok(Page {
            object: "list",
            data: data.expect("invariant: items are stored as JSON"),
            first_id: ids.first().cloned(),
            last_id: ids.last().cloned(),
            has_more: order.len() > start + ids.len(),
        })
    }
}

/// Reads the query of a stored response: the number of the first event to stream, or `None` where
/// the response itself is asked for.
pub(crate) fn stream_from(query: &Parameters) -> Result<Option<usize>, ApiError> {
    let (mut is_stream, mut from) = (false, 0);
    for (name, value) in pairs(query) {
        match name {
            "stream" => {
                is_stream = match value {
                    "true" => true,
                    "false" => false,
                    _ => return Err(wrong(name, "true or false", value)),
                }
            }
            "starting_after" => {
                let after: Option<usize> = value.parse().ok();
                let next = after.and_then(|after| after.checked_add(1));
                from = next.ok_or_else(|| wrong(name, "the number of an event", value))?;
            }
            _ => return Err(Parameters::unknown(name, "stream, starting_after, include")),
        }
    }
    if from > 0 && !is_stream {
        let message = "`starting_after` needs `stream` to be true";
        return Err(ApiError::param("starting_after", message));
    }
    Ok(is_stream.then_some(from))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(query: &str) -> Result<(Vec<String>, bool), ApiError> {
        let item = |id: &str| InputItem { id: id.to_owned(), json: format!("\"{id}\"").into() };
        let items = [item("a"), item("b"), item("c")];
        let page = PageQuery::read(&Parameters::parse(query)?)?.of(&items)?;
        let ids = page.data.iter().map(|json| json.get().trim_matches('"').to_owned());
        assert_eq!(page.first_id.as_deref(), ids.clone().next().as_deref());
        Ok((ids.collect(), page.has_more))
    }

    #[test]
    fn items_come_in_pages_newest_first() {
        let list = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
        assert_eq!(ids(""), Ok((list(&["c", "b", "a"]), false)));
        assert_eq!(ids("limit=2&include[]=x"), Ok((list(&["c", "b"]), true)));
        assert_eq!(ids("limit=2&order=asc&after=b"), Ok((list(&["c"]), false)));
        assert_eq!(ids("after=a"), Ok((list(&[]), false)));
        for (param, query) in [
            ("limit", "limit=0"),
            ("limit", "limit=101"),
            ("order", "order=up"),
            ("after", "after=z"),
            ("x", "x=1"),
            ("limit", "limit=1&limit=2"),
        ] {
            assert_eq!(ids(query).expect_err(query).body.param.as_deref(), Some(param));
        }
    }

    #[test]
    fn a_stream_begins_after_an_event() {
        let stream_from = |query| Parameters::parse(query).and_then(|query| stream_from(&query));
        assert_eq!(stream_from(""), Ok(None));
        assert_eq!(stream_from("stream=true&include_obfuscation=false"), Ok(Some(0)));
        assert!(stream_from("stream=true&include_obfuscation=true").is_err());
        assert!(stream_from("includefoo=1").is_err());
        assert_eq!(stream_from("stream=true&starting_after=4"), Ok(Some(5)));
        for query in ["stream=1", "starting_after=1", "stream=true&starting_after=x", "y"] {
            assert!(stream_from(query).is_err(), "{query}");
        }
    }
}
