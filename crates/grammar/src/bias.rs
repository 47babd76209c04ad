//! The mask of one place in a grammar.
//!
//! ```text
//!   state of the lexer ── plain characters lead to one state each ──► sets of `plain`, and rests
//!                      └─ else ───────────────────────────────────► llguidance: slices, a walk
//! ```
//!
//! Tried on a made vocabulary of 128k tokens and an Intel Xeon with AVX-512 VNNI:
//!
//! - llguidance alone walks the whole vocabulary in 2 ms wherever no slice fits. Its slices fit while
//!   the rest of the string is longer than they are, so the last characters of every string with
//!   `maxLength` took 2 ms each, and the first mask in any string up to 1 ms for the tokens with a
//!   quotation mark: p95 0.8 ms, p99 2.0 ms over the schemas of `pelton bench grammar`.
//! - More slices of other lengths do not help: the tokens of the next slice are still walked as far
//!   as they fit.
//! - With the sets of `plain`: p95 0.06 ms, p99 0.37 ms. The rest is states of the lexer, 30
//!   to 60 µs for each character of a bounded string that no mask of this answer has looked at
//!   before. It was not moved to the compilation, which would take 10 ms for `maxLength` 200, nor
//!   are states shared between answers, because an answer must not depend on others.

use std::sync::{Arc, Mutex, PoisonError};

use llguidance::derivre::StateID;
use llguidance::earley::{BiasComputer, ParserRecognizer, SlicedBiasComputer};
use toktrie::{Recognizer, SimpleVob, TokTrie};

use crate::plain::{Class, MOST_CHARS, Plain, SAMPLE};

/// The tokens that may follow a state of the lexer.
#[derive(Clone, Copy, Debug, Default)]
enum Step {
    /// Not known yet.
    #[default]
    Unknown,
    /// Plain characters lead to this state, whichever it is.
    Next(StateID),
    /// No plain character may come.
    End,
    /// Plain characters differ.
    Uneven,
}

/// Computes masks; knows the states of one lexer.
pub(crate) struct Bias {
    plains: Arc<[Plain]>,
    slicer: Arc<SlicedBiasComputer>,
    /// For each class, by state.
    steps: Mutex<Vec<Vec<Step>>>,
}

impl Bias {
    pub(crate) fn new(plains: Arc<[Plain]>, slicer: Arc<SlicedBiasComputer>) -> Self {
        let steps = Mutex::new(vec![Vec::new(); plains.len()]);
        Self { plains, slicer, steps }
    }

    /// For a copy of the lexer.
    pub(crate) fn copy(&self) -> Self {
        let steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (plains, slicer) = (Arc::clone(&self.plains), Arc::clone(&self.slicer));
        Self { plains, slicer, steps: Mutex::new(steps) }
    }
}

impl BiasComputer for Bias {
    fn compute_bias(&self, place: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        let mut all = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        for (plain, steps) in self.plains.iter().zip(all.iter_mut()).filter(|_| start.is_empty()) {
            if let Some(mask) = mask(plain, place, steps, self.trie()) {
                return mask;
            }
        }
        self.slicer.compute_bias(place, start)
    }

    fn trie(&self) -> &TokTrie {
        self.slicer.trie()
    }
}

/// The mask of a place after which plain characters lead to one state each.
fn mask(
    plain: &Plain,
    place: &mut ParserRecognizer<'_>,
    steps: &mut Vec<Step>,
    trie: &TokTrie,
) -> Option<SimpleVob> {
    let start = place.lexer_state();
    let (mut state, mut n_chars) = (start, 0);
    while n_chars < MOST_CHARS {
        match step(plain.class, place, steps, state) {
            Step::Next(next) if next == start => return Some(endless(plain, place, trie)),
            Step::Next(next) => (state, n_chars) = (next, n_chars + 1),
            Step::End => break,
            Step::Uneven | Step::Unknown => return None,
        }
    }
    let mut set = trie.alloc_token_set();
    if let Some(tokens) = n_chars.checked_sub(1).and_then(|idx| plain.up_to.get(idx)) {
        set.or(tokens);
    }
    place.trie_started("plain");
    if n_chars == MOST_CHARS {
        plain.long.add(place, &mut set);
    }
    for (n_before, rests) in plain.rests_at.iter().enumerate().take(n_chars + 1) {
        if n_before > 0 && !place.try_push_byte(SAMPLE) {
            break;
        }
        rests.add(place, &mut set);
    }
    place.trie_finished();
    Some(set)
}

/// The mask of a place that plain characters do not leave.
fn endless(plain: &Plain, place: &mut ParserRecognizer<'_>, trie: &TokTrie) -> SimpleVob {
    let mut set = trie.alloc_token_set();
    set.or(&plain.whole);
    place.trie_started("plain");
    plain.rests.add(place, &mut set);
    place.trie_finished();
    set
}

/// Where plain characters lead from a state; the answer is kept.
fn step(
    class: Class,
    place: &mut ParserRecognizer<'_>,
    steps: &mut Vec<Step>,
    state: StateID,
) -> Step {
    if let Some(step) = steps.get(state.as_usize())
        && !matches!(step, Step::Unknown)
    {
        return *step;
    }
    let found = find(class, place, state);
    if steps.len() <= state.as_usize() {
        steps.resize(state.as_usize() + 1, Step::Unknown);
    }
    steps[state.as_usize()] = found;
    found
}

/// First bytes of characters beyond ASCII, and the bytes that may follow them, in UTF-8.
const BEYOND_ASCII: [([u8; 2], &[[u8; 2]]); 8] = [
    ([0xC2, 0xDF], &[ANY]),
    ([0xE0, 0xE0], &[[0xA0, 0xBF], ANY]),
    ([0xE1, 0xEC], &[ANY, ANY]),
    ([0xED, 0xED], &[[0x80, 0x9F], ANY]),
    ([0xEE, 0xEF], &[ANY, ANY]),
    ([0xF0, 0xF0], &[[0x90, 0xBF], ANY, ANY]),
    ([0xF1, 0xF3], &[ANY, ANY, ANY]),
    ([0xF4, 0xF4], &[[0x80, 0x8F], ANY, ANY]),
];
const ANY: [u8; 2] = [0x80, 0xBF];

fn find(class: Class, place: &mut ParserRecognizer<'_>, state: StateID) -> Step {
    let lexer = place.lexer_mut();
    let mut go = |from: StateID, byte: u8| lexer.transition_start_state(from, Some(byte), &None);
    let next = go(state, SAMPLE);
    // A state that ends a piece of the lexer would lead on in the parser.
    if next.has_lowest_match() {
        return Step::Uneven;
    }
    if (0..0x80).any(|byte| (class.ascii)(byte) && go(state, byte) != next) {
        return Step::Uneven;
    }
    if next.is_dead() {
        // Where a piece could end, a plain character might begin the next one.
        let is_end = (0xC2..=0xF4).all(|byte| go(state, byte).is_dead())
            && lexer.try_lexeme_end(state).is_error();
        return if is_end { Step::End } else { Step::Uneven };
    }
    for ([low, high], followers) in BEYOND_ASCII {
        let mut reached: Vec<StateID> = Vec::new();
        spread(&mut reached, (low..=high).map(|byte| go(state, byte)));
        for [low, high] in followers {
            let before = std::mem::take(&mut reached);
            if before.iter().any(|state| state.is_dead() || state.has_lowest_match()) {
                return Step::Uneven;
            }
            for from in before {
                spread(&mut reached, (*low..=*high).map(|byte| go(from, byte)));
            }
        }
        if reached != [next] {
            return Step::Uneven;
        }
    }
    Step::Next(next)
}

/// Adds states that are not there yet.
fn spread(reached: &mut Vec<StateID>, states: impl Iterator<Item = StateID>) {
    for state in states {
        if !reached.contains(&state) {
            reached.push(state);
        }
    }
}
