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
    let raws = read::read(&document, path, limits)?;
    let nodes = solve::solve(raws, limits)?;
    let alive = live::check(&nodes)?;
    emit::emit(&nodes, &alive, layout, book)
}
