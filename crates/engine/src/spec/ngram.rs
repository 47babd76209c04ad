//! Drafts from the text so far: the tokens that followed the last few tokens at an earlier place.
//!
//! Of every sequence, each run of [`LENGTHS`] tokens is remembered with the place after it; the
//! longest of those that end the sequence now says where to copy from. Cheaper than the
//! [suffix automaton](super::suffix) and blind to longer matches.
//!
//! Paper: Saxena, "Prompt lookup decoding", 2023.

use super::{Abilities, Odds, Proposer, ProposerError, Row, Seen};
use pelton_base::{Request, RequestId, TokenId};
use std::collections::HashMap;

/// Lengths of the runs, the longest first.
const LENGTHS: [usize; 3] = [4, 3, 2];
const LONGEST: usize = LENGTHS[0];

/// A run of at most [`LONGEST`] tokens, filled up with a token that there is not.
type Gram = [u32; LONGEST];

/// The index of one sequence.
#[derive(Debug, Default)]
struct Index {
    /// Runs that end before the last token, with the place after their last occurrence.
    after: HashMap<Gram, u32>,
    /// Tokens whose runs are in `after`.
    n_known: usize,
}

impl Index {
    fn learn(&mut self, tokens: &[TokenId]) {
        // A run is remembered once something follows it.
        for end in self.n_known.max(1)..tokens.len() {
            for n in LENGTHS.into_iter().filter(|&n| n <= end) {
                self.after.insert(gram(&tokens[end - n..end]), end as u32);
            }
            self.n_known = end + 1;
        }
    }

    /// The place to copy the next tokens from, and the length of the match.
    fn look_up(&self, tokens: &[TokenId]) -> Option<(usize, usize)> {
        let lengths = LENGTHS.into_iter().filter(|&n| n <= tokens.len());
        let mut found = lengths.map(|n| (self.after.get(&gram(&tokens[tokens.len() - n..])), n));
        found.find_map(|(place, n)| place.map(|&place| (place as usize, n)))
    }
}

fn gram(tokens: &[TokenId]) -> Gram {
    let mut gram = [u32::MAX; LONGEST];
    for (slot, token) in gram.iter_mut().zip(tokens) {
        *slot = token.0;
    }
    gram
}

/// Prompt lookup.
#[derive(Debug, Default)]
pub struct Ngram {
    sequences: HashMap<RequestId, Index>,
}

impl Proposer for Ngram {
    fn name(&self) -> &'static str {
        "ngram"
    }

    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    fn add(&mut self, request: &Request) {
        self.sequences.insert(request.id, Index::default());
    }

    fn look(&mut self, row: &Row<'_>, most: usize) -> (usize, usize) {
        let Some(index) = self.sequences.get_mut(&row.id) else { return (0, 0) };
        index.learn(row.tokens);
        index.look_up(row.tokens).map_or((0, 0), |(_, n_matched)| (most, n_matched))
    }

    fn propose(
        &mut self,
        rows: &mut [Row<'_>],
        _odds: Option<&mut Odds>,
    ) -> Result<(), ProposerError> {
        for row in rows {
            let place = self.sequences.get(&row.id).and_then(|index| index.look_up(row.tokens));
            if let Some((place, _)) = place {
                // A copy that reaches the end goes on with itself.
                let period = row.tokens.len() - place;
                let copied = (0..row.n_drafts).map(|i| row.tokens[place + i % period]);
                row.drafts.extend(copied);
            }
        }
        Ok(())
    }

    fn is_catching_up(&self, _row: &Row<'_>) -> bool {
        false
    }

    fn observe(&mut self, _seen: &Seen<'_>) {}

    fn finished(&mut self, id: RequestId) {
        self.sequences.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::drafts_of;
    use super::*;

    #[test]
    fn the_longest_run_that_came_before_decides() {
        let mut ngram = Ngram::default();
        // `2 3` was followed by 9 later, but `1 2 3` by 4.
        assert_eq!(drafts_of(&mut ngram, &[1, 2, 3, 4, 5, 2, 3, 9, 1, 2, 3], 2), [4, 5]);
        assert!(drafts_of(&mut ngram, &[1, 2, 3, 4, 5, 6], 2).is_empty());
        assert_eq!(drafts_of(&mut ngram, &[7, 7, 7, 7], 5), [7; 5]);
        assert!(drafts_of(&mut ngram, &[1], 5).is_empty());
    }
}
