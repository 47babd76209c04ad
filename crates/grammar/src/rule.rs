//! A compiled grammar, from which every answer of a request begins.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use pelton_base::{Rule, RuleState, TokenId};

use crate::parser::Parser;
use crate::state::GrammarState;
use crate::vocabulary::Vocabulary;

/// A grammar at its beginning, with the tokens that end an answer.
pub(crate) struct GrammarRule {
    /// The parser at the beginning; answers take copies that share nothing with it, so that an
    /// answer that explodes or panics spoils no other.
    start: Mutex<Parser>,
    vocabulary: Vocabulary,
    ends: Arc<[TokenId]>,
}

impl GrammarRule {
    pub(crate) fn new(start: Parser, vocabulary: Vocabulary, ends: &[TokenId]) -> Self {
        Self { start: Mutex::new(start), vocabulary, ends: ends.into() }
    }

    pub(crate) fn state(&self) -> GrammarState {
        let share = self.vocabulary.share();
        let start = self.start.lock().unwrap_or_else(PoisonError::into_inner).copy(share);
        GrammarState::new(start, self.vocabulary.clone(), Arc::clone(&self.ends))
    }

    /// A state that shares the states of the lexer with all answers that begin later: what it finds
    /// out they need not find out again.
    pub(crate) fn rehearsal(&self) -> GrammarState {
        let start = self.start.lock().unwrap_or_else(PoisonError::into_inner).fork();
        GrammarState::new(start, self.vocabulary.clone(), Arc::clone(&self.ends))
    }
}

impl Rule for GrammarRule {
    fn begin(&self) -> Box<dyn RuleState> {
        Box::new(self.state())
    }
}

impl fmt::Debug for GrammarRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarRule").field("ends", &self.ends).finish_non_exhaustive()
    }
}
