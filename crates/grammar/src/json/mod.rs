//! JSON Schema as a grammar.
//!
//! ```text
//!   text ──read──► keywords of each schema ──solve──► what each place allows ──live──► finite?
//!                                                              │
//!                                                              └──emit──► rules and terminals
//! ```
//!
//! llguidance has a compiler for schemas of its own. It is not used, because it drops what it does
//! not know, accepts schemas that no value fits, refuses `oneOf`, `if` and dependencies where they
//! could be rewritten, lets a second spelling of a key slip by, and names no path.

mod admits;
mod cycles;
mod decimal;
mod disjoint;
mod ecma;
mod emit;
mod formats;
mod keywords;
mod leaf;
mod live;
mod members;
mod node;
mod object;
mod opposite;
mod pattern;
mod punctuation;
mod range;
mod raw;
mod read;
mod references;
mod solve;

pub(crate) use pattern::Expression;

use pelton_base::limits::keeps_digits;

use crate::book::Book;
use crate::error::GrammarError;
use crate::grammars::Layout;
use crate::limits::Limits;

/// Writes the rules of a schema into `book`, and returns the expression to begin with.
///
/// # Errors
///
/// Names the path of the keyword that is malformed or cannot be enforced, or that no finite value
/// fits.
pub(crate) fn compile(
    schema: &str,
    path: &str,
    layout: Layout,
    limits: &Limits,
    book: &mut Book,
) -> Result<String, GrammarError> {
    let document = serde_json::from_str(schema)
        .map_err(|error| GrammarError::new(path, format!("is not JSON: {error}")))?;
    if let Some(number) = rounded_number(schema) {
        let why = format!("the whole number {number} has more than 64 bits and would be rounded");
        return Err(GrammarError::new(path, why));
    }
    let raws = read::read(&document, path, limits)?;
    let nodes = solve::solve(raws, limits)?;
    let alive = live::check(&nodes)?;
    emit::emit(&nodes, &alive, layout, book)
}

/// A whole number in a text of JSON that its reader rounds, because it has more than 64 bits.
fn rounded_number(text: &str) -> Option<&str> {
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c == '"' || c == '-' || c.is_ascii_digit()) {
        rest = &rest[at..];
        if let Some(string) = rest.strip_prefix('"') {
            let mut is_escaped = false;
            let end = string.find(|c| {
                let is_end = c == '"' && !is_escaped;
                is_escaped = c == '\\' && !is_escaped;
                is_end
            })?;
            rest = &string[end + 1..];
            continue;
        }
        let is_part = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let number = &rest[..end];
        if !keeps_digits(number) {
            return Some(number);
        }
        rest = &rest[end..];
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_that_would_be_rounded_are_found() {
        for kept in [
            r#"{"maximum": 18446744073709551615, "minimum": -9223372036854775808}"#,
            r#"{"const": "99999999999999999999", "title": "\"99999999999999999999\\"}"#,
            r#"{"maximum": 1e300, "multipleOf": 0.10000000000000000001, "a": [-0]}"#,
        ] {
            assert_eq!(rounded_number(kept), None, "{kept}");
        }
        let first = r#"{"title": "9", "enum": [1, -99999999999999999999]}"#;
        assert_eq!(rounded_number(first), Some("-99999999999999999999"));
        assert_eq!(rounded_number("18446744073709551616"), Some("18446744073709551616"));
        let error =
            compile(first, "a.b", Layout::default(), &Limits::default(), &mut Book::default());
        assert_eq!(error.expect_err("rounded").path, "a.b");
    }
}
