//! Drafts from the text so far: a suffix automaton over the session.
//!
//! ```text
//! tokens   a b c d . . . a b c          the longest suffix that occurred before is `a b c`
//!                ^             ^        after it came `d`: the draft goes on from there
//! ```
//!
//! The automaton grows by each token in constant time (amortised) and knows at any moment the
//! longest suffix of all tokens that occurs earlier, and where it ended last. Memory: at most two
//! states per token, 16 bytes each, and at most three edges per token.
//!
//! Papers: Blumer et al., "The smallest automaton recognizing the subwords of a text", TCS 1985;
//! Oliaro et al., "SuffixDecoding", 2024, and Saxena, "Prompt lookup decoding", 2023 (the idea).
//! Where those search for n-grams of fixed lengths or count in a tree, this takes the longest
//! match, and what followed it when it was matched last.

use pelton_base::TokenId;
use std::collections::HashMap;

/// Index of a state; the first is the empty suffix.
type StateId = u32;

const ROOT: StateId = 0;
const NONE: StateId = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct State {
    /// Longest suffix that leads here.
    len: u32,
    /// The state of the longest suffix that leads elsewhere.
    link: StateId,
    /// Where it ended when it was seen last: the index of the token after it.
    end: u32,
}

/// All substrings of a growing sequence of tokens.
#[derive(Clone, Debug)]
pub struct SuffixAutomaton {
    tokens: Vec<TokenId>,
    states: Vec<State>,
    edges: HashMap<(StateId, TokenId), StateId>,
    /// The edges of each state, so that a state can be copied.
    outgoing: Vec<Vec<TokenId>>,
    /// The state of the whole sequence.
    last: StateId,
    /// The longest suffix that occurs earlier as well, and how long it is.
    matched: (StateId, u32),
}

impl Default for SuffixAutomaton {
    fn default() -> Self {
        let root = State { len: 0, link: NONE, end: 0 };
        Self {
            tokens: Vec::new(),
            states: vec![root],
            edges: HashMap::new(),
            outgoing: vec![Vec::new()],
            last: ROOT,
            matched: (ROOT, 0),
        }
    }
}

impl SuffixAutomaton {
    /// The tokens so far.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Appends a token.
    pub fn push(&mut self, token: TokenId) {
        // From now on the match is the latest occurrence.
        let (matched, len) = self.matched;
        if len > 0 {
            self.states[matched as usize].end = self.tokens.len() as u32;
        }
        self.follow(token);
        let end = self.tokens.len() as u32 + 1;
        let new = self.state(State { len: end, link: ROOT, end });
        let mut from = self.last;
        while from != NONE && !self.edges.contains_key(&(from, token)) {
            self.edge(from, token, new);
            from = self.states[from as usize].link;
        }
        if from != NONE {
            let to = self.edges[&(from, token)];
            let link = self.split(from, token, to);
            self.states[new as usize].link = link;
        }
        self.last = new;
        self.tokens.push(token);
    }

    /// Keeps the match: the match goes on with `token`, or a shorter suffix of it does. Called
    /// before the token is appended, so that only earlier text matches.
    fn follow(&mut self, token: TokenId) {
        let (mut state, mut len) = self.matched;
        loop {
            if let Some(&next) = self.edges.get(&(state, token)) {
                self.matched = (next, len + 1);
                return;
            }
            if state == ROOT {
                self.matched = (ROOT, 0);
                return;
            }
            state = self.states[state as usize].link;
            len = self.states[state as usize].len;
        }
    }

    /// The state that a suffix of length `len(from) + 1` leads to: `to` itself, or a copy of it for
    /// the shorter ones of its suffixes.
    fn split(&mut self, from: StateId, token: TokenId, to: StateId) -> StateId {
        let len = self.states[from as usize].len + 1;
        if self.states[to as usize].len == len {
            return to;
        }
        let copy = self.state(State { len, ..self.states[to as usize] });
        for i in 0..self.outgoing[to as usize].len() {
            let token = self.outgoing[to as usize][i];
            let target = self.edges[&(to, token)];
            self.edge(copy, token, target);
        }
        let mut from = from;
        while from != NONE && self.edges.get(&(from, token)) == Some(&to) {
            self.edges.insert((from, token), copy);
            from = self.states[from as usize].link;
        }
        self.states[to as usize].link = copy;
        // The match may be one of the shorter suffixes.
        if self.matched.0 == to && self.matched.1 <= len {
            self.matched.0 = copy;
        }
        copy
    }

    fn state(&mut self, state: State) -> StateId {
        self.states.push(state);
        self.outgoing.push(Vec::new());
        (self.states.len() - 1) as StateId
    }

    fn edge(&mut self, from: StateId, token: TokenId, to: StateId) {
        self.outgoing[from as usize].push(token);
        self.edges.insert((from, token), to);
    }

    /// Length of the longest suffix that occurred before.
    pub fn n_matched(&self) -> usize {
        self.matched.1 as usize
    }

    /// The tokens that followed the longest suffix that occurred before, at most `n_most`; where
    /// the copied part reaches the end it goes on with itself.
    pub fn propose(&self, n_most: usize, drafts: &mut Vec<TokenId>) {
        let (state, len) = self.matched;
        if len == 0 {
            return;
        }
        let end = self.states[state as usize].end as usize;
        let period = self.tokens.len() - end;
        if period == 0 {
            return;
        }
        drafts.extend((0..n_most).map(|i| self.tokens[end + i % period]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(tokens: &[u32]) -> SuffixAutomaton {
        let mut automaton = SuffixAutomaton::default();
        for &token in tokens {
            automaton.push(TokenId(token));
        }
        automaton
    }

    fn drafts(automaton: &SuffixAutomaton, n: usize) -> Vec<u32> {
        let mut drafts = Vec::new();
        automaton.propose(n, &mut drafts);
        drafts.iter().map(|token| token.0).collect()
    }

    /// Length of the longest suffix that ends earlier as well, by trying all.
    fn longest(tokens: &[u32]) -> usize {
        let n = tokens.len();
        let occurs = |len: usize| (len..n).any(|end| tokens[end - len..end] == tokens[n - len..]);
        (1..n).rev().find(|&len| occurs(len)).unwrap_or(0)
    }

    #[test]
    fn what_came_before_comes_again() {
        let automaton = of(&[1, 2, 3, 4, 9, 1, 2, 3]);
        assert_eq!(automaton.n_matched(), 3);
        assert_eq!(drafts(&automaton, 3), [4, 9, 1]);
        assert_eq!(drafts(&of(&[1, 2, 3]), 3), [0; 0]);
        // A loop goes on for as long as one likes.
        assert_eq!(drafts(&of(&[5, 1, 2, 1, 2, 1]), 5), [2, 1, 2, 1, 2]);
        // The last continuation seen is proposed first.
        assert_eq!(drafts(&of(&[1, 2, 7, 1, 2, 8, 1, 2]), 1), [8]);
    }

    proptest! {
        #[test]
        fn the_longest_match_is_found(tokens in prop::collection::vec(0..3_u32, 1..60)) {
            let automaton = of(&tokens);
            prop_assert_eq!(automaton.n_matched(), longest(&tokens));
            prop_assert!(automaton.states.len() <= 2 * tokens.len() + 1);
            let draft = drafts(&automaton, 1);
            if let (&[draft], len @ 1..) = (&draft[..], automaton.n_matched()) {
                let n = tokens.len();
                let follows = (len..n).any(|end| {
                    tokens[end - len..end] == tokens[n - len..] && tokens[end] == draft
                });
                prop_assert!(follows, "{draft} never followed the match");
            }
        }
    }
}
