//! Drafts from recent answers, for clients that ask for much the same again and again.
//!
//! ```text
//! text     [ answer | border | answer | border | ... ]
//! index      namespace, run of RUN tokens ─▶ the place after its latest occurrence
//! row        ... t t t t      looked up, then compared backwards: how long the match is
//! ```
//!
//! Answers are kept, prompts are not: prompts are long, and where one comes again the
//! [session](super::Suffix) holds it already. Never across namespaces, whose names are part of
//! every key, and a copy ends at a border; within one, an answer shows in how fast the next request
//! gets the same text, as with cached prefixes. So it is off unless asked for
//! ([`SpecConfig`](super::SpecConfig)).
//!
//! Bounded: text and index are kept twice, and when the younger is half of the limit it becomes the
//! older, which goes. Per token 4 bytes of text, 32 of index and the map's slack.
//!
//! A [suffix automaton](super::suffix) over all answers was considered: it finds matches that are
//! shorter or older, for several times the memory, and each session would need a place in it that
//! splits of states move. The tokens of an answer's last step are not seen, and so not kept.
//!
//! Paper: Oliaro et al., "SuffixDecoding", 2024, whose global tree this stands for.

use super::{Abilities, Odds, Proposer, ProposerError, Row, Seen};
use pelton_base::{Namespace, Request, RequestId, TokenId};
use std::collections::HashMap;

/// Tokens that must match.
const RUN: usize = 4;
/// Length up to which matches are compared.
const MOST_MATCHED: usize = 64;
/// A token that no model has: it keeps answers apart.
const BORDER: TokenId = TokenId(u32::MAX);

type Key = (Namespace, [TokenId; RUN]);

/// Copies from recent answers.
#[derive(Debug)]
pub struct Recent {
    younger: Answers,
    older: Answers,
    most_tokens: usize,
    sessions: HashMap<RequestId, Session>,
}

/// Answers, one after the other.
#[derive(Debug, Default)]
struct Answers {
    text: Vec<TokenId>,
    after: HashMap<Key, u32>,
}

#[derive(Debug)]
struct Session {
    namespace: Namespace,
    answer: Vec<TokenId>,
}

impl Answers {
    fn push(&mut self, namespace: Namespace, answer: &[TokenId]) {
        let start = self.text.len();
        self.text.extend_from_slice(answer);
        self.text.push(BORDER);
        // A run is remembered if something follows it.
        for (i, run) in answer.windows(RUN).enumerate().take(answer.len().saturating_sub(RUN)) {
            self.after.insert(key(namespace, run), (start + i + RUN) as u32);
        }
    }

    /// The tokens that followed the end of `tokens` before, and the length of the match.
    fn look_up(&self, namespace: Namespace, tokens: &[TokenId]) -> Option<(&[TokenId], usize)> {
        let run = &tokens[tokens.len().checked_sub(RUN)?..];
        let place = *self.after.get(&key(namespace, run))? as usize;
        let before = self.text[..place].iter().rev().zip(tokens.iter().rev());
        let n_matched = before.take(MOST_MATCHED).take_while(|(a, b)| a == b).count();
        let rest = self.text[place..].split(|&token| token == BORDER).next().unwrap_or(&[]);
        Some((rest, n_matched))
    }
}

fn key(namespace: Namespace, run: &[TokenId]) -> Key {
    (namespace, run.try_into().expect("invariant: a run has its length"))
}

impl Recent {
    /// Keeps at most `most_tokens` tokens of answers.
    pub fn new(most_tokens: usize) -> Self {
        Self {
            younger: Answers::default(),
            older: Answers::default(),
            most_tokens: most_tokens.min(u32::MAX as usize),
            sessions: HashMap::new(),
        }
    }

    /// The longest match of the two, the younger of equals.
    fn look_up(&self, row: &Row<'_>) -> Option<(&[TokenId], usize)> {
        let namespace = self.sessions.get(&row.id)?.namespace;
        let found = [&self.older, &self.younger].map(|it| it.look_up(namespace, row.tokens));
        found.into_iter().flatten().max_by_key(|(_, n_matched)| *n_matched)
    }
}

impl Proposer for Recent {
    fn name(&self) -> &'static str {
        "recent"
    }

    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    fn add(&mut self, request: &Request) {
        let namespace = request.ask.service.namespace;
        self.sessions.insert(request.id, Session { namespace, answer: Vec::new() });
    }

    fn look(&mut self, row: &Row<'_>, most: usize) -> (usize, usize) {
        let Some(session) = self.sessions.get_mut(&row.id) else { return (0, 0) };
        session.answer.extend_from_slice(&row.tokens[row.n_prompt + session.answer.len()..]);
        self.look_up(row).map_or((0, 0), |(rest, n_matched)| (rest.len().min(most), n_matched))
    }

    fn propose(
        &mut self,
        rows: &mut [Row<'_>],
        _odds: Option<&mut Odds>,
    ) -> Result<(), ProposerError> {
        for row in rows {
            if let Some((rest, _)) = self.look_up(row) {
                row.drafts.extend(rest.iter().take(row.n_drafts).copied());
            }
        }
        Ok(())
    }

    fn is_catching_up(&self, _row: &Row<'_>) -> bool {
        false
    }

    fn observe(&mut self, _seen: &Seen<'_>) {}

    fn finished(&mut self, id: RequestId) {
        let Some(Session { namespace, answer }) = self.sessions.remove(&id) else { return };
        // Borders count: empty answers are not kept, long ones in part.
        let most = (self.most_tokens / 2).saturating_sub(1);
        let kept = &answer[answer.len() - answer.len().min(most)..];
        if kept.len() <= RUN {
            return;
        }
        if self.younger.text.len() + kept.len() > most {
            self.older = std::mem::take(&mut self.younger);
        }
        self.younger.push(namespace, kept);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check, request, tree_for};
    use super::*;
    use pelton_base::ServiceParams;

    /// Drafts for `tokens`, the first of which is the prompt; then the request ends.
    fn asked(recent: &mut Recent, namespace: u64, tokens: &[u32], n: usize) -> Vec<u32> {
        let service = ServiceParams { namespace: Namespace(namespace), ..ServiceParams::default() };
        let mut asked = request(&tokens[..1]);
        asked.ask.service = service;
        recent.add(&asked);
        let tree = tree_for(recent, asked.id, tokens, n);
        check(&tree, n);
        recent.finished(asked.id);
        tree.tokens().iter().map(|token| token.0).collect()
    }

    #[test]
    fn what_another_was_told_is_drafted_in_the_same_namespace_only() {
        let mut recent = Recent::new(1000);
        assert!(asked(&mut recent, 7, &[0, 1, 2, 3, 4, 5, 6, 7], 8).is_empty());
        assert_eq!(asked(&mut recent, 7, &[9, 1, 2, 3, 4], 2), [5, 6]);
        asked(&mut recent, 8, &[0, 20, 21, 22, 23, 24], 8);
        assert_eq!(asked(&mut recent, 7, &[9, 1, 2, 3, 4], 8), [5, 6, 7], "not beyond its end");
        assert!(asked(&mut recent, 8, &[9, 1, 2, 3, 4], 8).is_empty(), "another namespace");
        assert!(asked(&mut recent, 7, &[9, 0, 2, 3, 4], 8).is_empty(), "three are too few");
        assert!(asked(&mut recent, 7, &[2, 3, 4], 8).is_empty(), "a text shorter than a run");
        assert!(asked(&mut recent, 7, &[9, 0, 1, 2, 3], 8).is_empty(), "0 was in the prompt");
    }

    #[test]
    fn the_latest_answer_is_copied_and_the_oldest_are_forgotten() {
        let mut recent = Recent::new(40);
        asked(&mut recent, 0, &[0, 1, 2, 3, 4, 5, 6], 8);
        asked(&mut recent, 0, &[0, 1, 2, 3, 4, 8, 9], 8);
        assert_eq!(asked(&mut recent, 0, &[9, 1, 2, 3, 4], 1), [8]);
        for i in 0..20 {
            asked(&mut recent, 0, &[0, 1, i, i, i, i, i], 8);
            assert!(recent.younger.text.len() + recent.older.text.len() <= 40);
        }
        assert!(asked(&mut recent, 0, &[9, 1, 2, 3, 4], 1).is_empty());
        // One that is longer than all that may be kept.
        let long: Vec<u32> = (100..200).collect();
        asked(&mut recent, 0, &long, 8);
        assert!(recent.younger.text.len() <= 20);
        assert_eq!(asked(&mut recent, 0, &[0, 195, 196, 197, 198], 8), [199]);
        Recent::new(0).finished(RequestId(0));
    }
}
