//! Which fields a reader asks for, so that the OpenAPI document is made from the readers themselves.
//!
//! A reader is run on a sample body while its thread records. Each field that it asks for is noted
//! with what the reader expects, whether or not the sample has it. So the document cannot name a
//! field that is not read, or leave one out.

use std::cell::RefCell;

use super::Accept;

/// The kind of value that a reader expects of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Expected {
    /// The reader looks at the JSON itself.
    Json,
    Bool,
    Number,
    /// A whole number from the first to the last value.
    Whole(i64, u64),
    String,
    List,
    /// A value that asks for nothing.
    Nothing(Accept),
}

/// A field by its full path, such as `messages[0].role`.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) expected: Expected,
}

thread_local! {
    static RECORD: RefCell<Option<Vec<Asked>>> = const { RefCell::new(None) };
}

/// Notes that a field is asked for, if this thread records.
pub(super) fn note(path: impl FnOnce() -> String, expected: Expected) {
    RECORD.with_borrow_mut(|record| {
        if let Some(record) = record {
            record.push(Asked { path: path(), expected });
        }
    });
}

/// The fields that `work` asks for on this thread.
pub(crate) fn recorded(work: impl FnOnce()) -> Vec<Asked> {
    RECORD.set(Some(Vec::new()));
    work();
    RECORD.take().unwrap_or_default()
}
