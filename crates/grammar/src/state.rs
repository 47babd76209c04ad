//! How far one answer has come in its grammar.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use pelton_base::{RuleState, TokenId, TokenSet};

use crate::parser::Parser;
use crate::vocabulary::Vocabulary;

/// Tokens of the answer that an error shows.
const SHOWN_TOKENS: usize = 12;

/// A state of llguidance's parser, with the end tokens of the request beside it.
///
/// ```text
///   queue empty       mask = tokens of the grammar, and every end token where it may end
///   queue a b c       mask = { a }: these bytes must come, and these are their tokens
///   failed            mask = {}; `stuck` tells the reason
/// ```
///
/// The queue is computed right after each token, so it depends on nothing but the grammar and the
/// tokens so far.
pub(crate) struct GrammarState {
    parser: Parser,
    vocabulary: Vocabulary,
    ends: Arc<[TokenId]>,
    /// Tokens that must come next.
    queue: VecDeque<u32>,
    /// The last tokens, for errors.
    last: VecDeque<u32>,
    ended: bool,
}

impl GrammarState {
    pub(crate) fn new(parser: Parser, vocabulary: Vocabulary, ends: Arc<[TokenId]>) -> Self {
        let mut state = Self {
            parser,
            vocabulary,
            ends,
            queue: VecDeque::new(),
            last: VecDeque::new(),
            ended: false,
        };
        state.look_ahead();
        state
    }

    /// Finds the tokens that must come next.
    fn look_ahead(&mut self) {
        if self.queue.is_empty() && !self.parser.is_stopped() {
            self.queue.extend(self.parser.forced());
        }
    }

    /// Why the parser gave up, if it did.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.parser.failure()
    }

    fn may_end(&mut self) -> bool {
        self.queue.is_empty() && self.parser.may_end()
    }

    /// Advances the parser by a token that it allows.
    fn consume(&mut self, token: TokenId) -> bool {
        if !self.parser.consume(token) {
            self.queue.clear();
            return false;
        }
        if self.last.len() == SHOWN_TOKENS {
            self.last.pop_front();
        }
        self.last.push_back(token.0);
        self.look_ahead();
        true
    }
}

impl RuleState for GrammarState {
    fn allow(&mut self, allowed: &mut TokenSet) {
        if self.ended || self.failure().is_some() {
            return;
        }
        if let Some(token) = self.queue.front() {
            allowed.insert(TokenId(*token));
            return;
        }
        let may_end = self.may_end();
        if !self.parser.is_stopped()
            && let Some(mask) = self.parser.mask()
        {
            copy(mask.as_slice(), self.vocabulary.n_tokens(), allowed.words_mut());
        }
        if may_end && self.failure().is_none() {
            self.ends.iter().for_each(|token| allowed.insert(*token));
        }
    }

    fn accept(&mut self, token: TokenId) -> bool {
        if self.ended || self.failure().is_some() {
            return false;
        }
        if let Some(forced) = self.queue.front() {
            if *forced != token.0 {
                return false;
            }
            self.queue.pop_front();
            return self.consume(token);
        }
        if self.ends.contains(&token) && self.may_end() {
            self.ended = true;
            return true;
        }
        if token.0 as usize >= self.vocabulary.n_tokens() || self.parser.is_stopped() {
            return false;
        }
        self.parser.takes(token) && self.consume(token)
    }

    fn forced(&mut self, tokens: &mut Vec<TokenId>) {
        tokens.extend(self.queue.iter().map(|token| TokenId(*token)));
    }

    fn stuck(&self) -> Option<String> {
        let last: Vec<u32> = self.last.iter().copied().collect();
        let bytes = self.vocabulary.bytes_of(&last);
        let after = if bytes.is_empty() {
            "at the beginning of the answer".to_owned()
        } else {
            format!("after {:?}", String::from_utf8_lossy(&bytes))
        };
        Some(match self.failure() {
            Some(why) => format!("{after}, {why}"),
            None => format!("{after}, no token of the vocabulary fits the grammar"),
        })
    }

    fn fork(&self) -> Box<dyn RuleState> {
        Box::new(Self {
            parser: self.parser.fork(),
            vocabulary: self.vocabulary.clone(),
            ends: Arc::clone(&self.ends),
            queue: self.queue.clone(),
            last: self.last.clone(),
            ended: self.ended,
        })
    }
}

impl fmt::Debug for GrammarState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarState")
            .field("queue", &self.queue)
            .field("ended", &self.ended)
            .field("failed", &self.failure())
            .finish_non_exhaustive()
    }
}

/// Copies the bits of the first `n_tokens` tokens, 32 to a word, into words of 64.
fn copy(from: &[u32], n_tokens: usize, to: &mut [u64]) {
    for (idx, word) in to.iter_mut().enumerate().take(n_tokens.div_ceil(64)) {
        let half = |at: usize| u64::from(from.get(at).copied().unwrap_or(0));
        let mut bits = half(2 * idx) | half(2 * idx + 1) << 32;
        let n_kept = n_tokens - idx * 64;
        if n_kept < 64 {
            bits &= (1 << n_kept) - 1;
        }
        *word |= bits;
    }
}

/// The first line of an error of llguidance, without its state.
pub(crate) fn in_words(error: &str) -> String {
    let line = error.lines().next().unwrap_or_default().trim();
    let line = line.strip_prefix("Parser Error: ").unwrap_or(line);
    let known = [
        ("NoExtensionBias", "no token of the vocabulary fits the grammar"),
        ("panic:", "the parser of the grammar failed"),
    ];
    let known = known.iter().find(|(start, _)| line.starts_with(start));
    known.map_or_else(|| line.chars().take(300).collect(), |(_, words)| (*words).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copied_mask_has_the_bits_of_the_vocabulary_and_no_others() {
        let from = [u32::MAX; 4];
        let mut words = [0_u64; 3];
        copy(&from, 70, &mut words);
        assert_eq!(words, [u64::MAX, 0b11_1111, 0]);
        let mut fewer = [0_u64; 1];
        copy(&from, 70, &mut fewer);
        assert_eq!(fewer, [u64::MAX]);
    }
}
