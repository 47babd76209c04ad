//! How the text of an answer is read: machines that take text as it comes, and what they give.
//!
//! ```text
//! text ─► Driver ── step, step, ... ─► Machine ─► Output ─► deltas
//!            └ the end of the text, where it may be the beginning of a mark
//! ```
//!
//! **Linear.** A machine takes every byte once and goes on where it failed: nothing is read again.
//! A driver keeps no more of the text than the beginning of a mark, whatever the answer is.

mod arguments;
mod driver;
mod json;
mod kinds;
mod marks;
mod object;
mod output;
mod program;
mod python;
mod run;
mod value;

pub(crate) use arguments::{ArgumentsReader, Took};
pub(crate) use driver::{Driver, Machine};
pub(crate) use json::quoted;
pub(crate) use kinds::{ValueForm, alternatives, form_of, is_bare};
#[cfg(test)]
pub(crate) use marks::WORK;
pub(crate) use marks::{Begins, Found, begins, find};
pub(crate) use output::Output;
pub(crate) use program::{NameForm, Next, Part, Program, Trigger, at, on};
pub(crate) use run::{Calls, MOST_NAME, is_key, is_name};
pub(crate) use value::json_of;
