//! Brackets, commas and colons, with the white space around them.

use crate::book::{Book, quoted};
use crate::grammars::Layout;

/// Nothing, one space, or a new line and its indentation.
const SPACE: &str = r"(?:\x20|\n[\x20\t]{0,64})?";

/// Terminals of one layout.
pub(super) struct Punctuation {
    pub open_object: String,
    pub close_object: String,
    pub open_array: String,
    pub close_array: String,
    pub comma: String,
    /// Follows a key, in the same terminal.
    pub colon: String,
}

impl Punctuation {
    pub(super) fn new(layout: Layout, book: &mut Book) -> Self {
        let mut fixed = |comma: &str, colon: &str| Self {
            open_object: book.terminal(&quoted("{")),
            close_object: book.terminal(&quoted("}")),
            open_array: book.terminal(&quoted("[")),
            close_array: book.terminal(&quoted("]")),
            comma: book.terminal(&quoted(comma)),
            colon: book.terminal(&quoted(colon)),
        };
        match layout {
            Layout::Compact => fixed(",", ":"),
            Layout::Spaced => fixed(", ", ": "),
            Layout::Free => Self {
                open_object: book.terminal(&format!("/\\{{{SPACE}/")),
                close_object: book.terminal(&format!("/{SPACE}\\}}/")),
                open_array: book.terminal(&format!("/\\[{SPACE}/")),
                close_array: book.terminal(&format!("/{SPACE}\\]/")),
                comma: book.terminal(&format!("/,{SPACE}/")),
                colon: book.terminal("/:\\x20?/"),
            },
        }
    }
}
