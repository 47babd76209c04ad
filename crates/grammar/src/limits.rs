//! Bounds on what one request may cost.

use std::time::Duration;

use llguidance::api::ParserLimits;

/// Bounds on the size, the time and the memory of a grammar. A form beyond one of them is refused by
/// name, or its answer ends with that reason.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Bytes of one schema, expression or grammar.
    pub source_bytes: usize,
    /// Depth of nested forms, schemas and groups.
    pub nesting: usize,
    /// Texts of one choice or one `enum`.
    pub choices: usize,
    /// Symbols of a compiled grammar.
    pub symbols: usize,
    /// Steps of building the lexer while compiling; about 50,000 take a millisecond.
    pub compile_steps: u64,
    /// Time for everything before the lexer: reading a schema and joining its parts.
    pub compile_time: Duration,
    /// Steps of the lexer for one mask; about 14,000 take a millisecond.
    pub mask_steps: u64,
    /// Items of the parser for one mask; about 20,000 take a millisecond.
    pub mask_items: usize,
    /// Items in one row of the parser, hence ways in which the text may be read at one place.
    pub row_items: usize,
    /// States of the lexer of one answer; each takes 1 to 2 KiB.
    pub lexer_states: usize,
    /// Bytes of the states of all answers together that are being written, for one vocabulary.
    /// Beyond it, answers with more than an equal share end.
    pub all_states_bytes: usize,
    /// Grammars in the cache.
    pub cached: usize,
    /// Bytes of sources in the cache.
    pub cached_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            source_bytes: 2 << 20,
            nesting: 64,
            choices: 10_000,
            symbols: 200_000,
            compile_steps: 1_000_000,
            compile_time: Duration::from_secs(2),
            mask_steps: 400_000,
            mask_items: 100_000,
            row_items: 2_000,
            lexer_states: 50_000,
            all_states_bytes: 1 << 30,
            cached: 256,
            cached_bytes: 16 << 20,
        }
    }
}

impl Limits {
    pub(crate) fn parser(&self) -> ParserLimits {
        ParserLimits {
            max_items_in_row: self.row_items,
            initial_lexer_fuel: self.compile_steps,
            step_lexer_fuel: self.mask_steps,
            step_max_items: self.mask_items,
            max_lexer_states: self.lexer_states,
            max_grammar_size: self.symbols,
            precompute_large_lexemes: false,
            verbose_errors: false,
        }
    }
}
