//! llama.cpp's GBNF notation.

use crate::book::Book;
use crate::error::GrammarError;

pub(crate) fn compile(_source: &str, _book: &mut Book) -> Result<String, GrammarError> {
    Err(GrammarError::new("", "GBNF is not built yet"))
}
