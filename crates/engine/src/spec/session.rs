//! Drafts from the session: its own [suffix automaton](super::suffix) per sequence, and the text
//! that the client predicts.

use super::suffix::SuffixAutomaton;
use super::{Abilities, Odds, Proposer, ProposerError, Row, Seen};
use pelton_base::{Request, RequestId, TokenId};
use std::collections::HashMap;

/// A token that no model has: it keeps the prediction and the prompt apart.
const BORDER: TokenId = TokenId(u32::MAX);

#[derive(Debug)]
struct Session {
    automaton: SuffixAutomaton,
    /// Tokens of the prediction and the border, which stand before the prompt.
    n_before: usize,
}

/// The longest match in everything the session holds.
#[derive(Debug, Default)]
pub struct Suffix {
    sessions: HashMap<RequestId, Session>,
    copied: Vec<TokenId>,
}

impl Session {
    /// Where the answer has not begun, the prediction is how it begins.
    fn starts_prediction(&self, row: &Row<'_>) -> bool {
        self.n_before > 1 && row.tokens.len() == row.n_prompt + 1 && {
            row.tokens.last() == self.automaton.tokens().first()
        }
    }
}

impl Proposer for Suffix {
    fn name(&self) -> &'static str {
        "suffix"
    }

    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    fn add(&mut self, request: &Request) {
        let mut automaton = SuffixAutomaton::default();
        if !request.ask.prediction.is_empty() {
            for &token in request.ask.prediction.iter().chain([&BORDER]) {
                automaton.push(token);
            }
        }
        let n_before = automaton.tokens().len();
        self.sessions.insert(request.id, Session { automaton, n_before });
    }

    fn look(&mut self, row: &Row<'_>, most: usize) -> (usize, usize) {
        let Some(session) = self.sessions.get_mut(&row.id) else { return (0, 0) };
        let n_known = session.automaton.tokens().len() - session.n_before;
        for &token in &row.tokens[n_known..] {
            session.automaton.push(token);
        }
        let n_matched = match session.starts_prediction(row) {
            true => session.n_before,
            false => session.automaton.n_matched(),
        };
        if n_matched == 0 { (0, 0) } else { (most, n_matched) }
    }

    fn propose(
        &mut self,
        rows: &mut [Row<'_>],
        _odds: Option<&mut Odds>,
    ) -> Result<(), ProposerError> {
        for row in rows {
            let Some(session) = self.sessions.get(&row.id) else { continue };
            if session.starts_prediction(row) {
                let rest = &session.automaton.tokens()[1..session.n_before - 1];
                row.drafts.extend(rest.iter().take(row.n_drafts).copied());
                continue;
            }
            self.copied.clear();
            session.automaton.propose(row.n_drafts, &mut self.copied);
            // A copy does not go on beyond the prediction.
            row.drafts.extend(self.copied.iter().copied().take_while(|&token| token != BORDER));
        }
        Ok(())
    }

    fn is_catching_up(&self, _row: &Row<'_>) -> bool {
        false
    }

    fn observe(&mut self, _seen: &Seen<'_>) {}

    fn finished(&mut self, id: RequestId) {
        self.sessions.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{drafts_for, drafts_of, request};
    use super::*;

    #[test]
    fn the_longest_match_is_copied() {
        let mut suffix = Suffix::default();
        let tokens = [1, 2, 3, 4, 5, 6, 7, 9, 9, 1, 2, 3, 4, 5];
        assert_eq!(drafts_of(&mut suffix, &tokens, 3), [6, 7, 9]);
        assert!(drafts_of(&mut suffix, &[1, 2, 3], 3).is_empty());
    }

    #[test]
    fn a_prediction_is_followed_from_where_it_is_taken_up() {
        let mut suffix = Suffix::default();
        let mut asked = request(&[1, 2]);
        asked.ask.prediction = [5, 6, 7, 8].map(TokenId).to_vec();
        suffix.add(&asked);
        let mut drafts = |tokens: &[u32], n| drafts_for(&mut suffix, (asked.id, 2), tokens, n);
        assert_eq!(drafts(&[1, 2, 5], 9), [6, 7, 8], "not beyond its end");
        assert_eq!(drafts(&[1, 2, 5, 0, 6, 7], 1), [8]);
    }

    #[test]
    fn an_answer_that_begins_as_predicted_is_not_a_copy_of_the_prompt() {
        let mut suffix = Suffix::default();
        let mut asked = request(&[4, 5, 9, 4]);
        asked.ask.prediction = [5, 6, 7].map(TokenId).to_vec();
        suffix.add(&asked);
        let mut drafts = |tokens: &[u32]| drafts_for(&mut suffix, (asked.id, 4), tokens, 2);
        assert_eq!(drafts(&[4, 5, 9, 4, 5]), [6, 7], "the first token of the answer");
        assert_eq!(drafts(&[4, 5, 9, 4, 5, 9, 4, 5]), [9, 4], "and later the longest match");
    }

    #[test]
    fn a_request_that_has_ended_is_forgotten() {
        let mut suffix = Suffix::default();
        assert_eq!(drafts_of(&mut suffix, &[1, 2, 1], 1), [2]);
        assert!(suffix.sessions.is_empty(), "{suffix:?}");
    }
}
