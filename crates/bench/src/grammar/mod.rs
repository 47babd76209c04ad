//! Grammars on a model's vocabulary: how long they take to compile, and each mask.
//!
//! ```text
//! for each schema
//!     compile                 a new compiler, so that no cache helps
//!     begin, first mask       of the first walk
//!     for each walk           a token of the mask at random, until the answer ends
//!         mask, token
//! ```
//!
//! A walk takes half of its tokens among the ones that end something (a quote, a bracket, a comma),
//! so that it meets all kinds of places within some hundred tokens. Masks of one allowed token, which
//! an engine never asks for because the token is forced, are counted apart.

mod report;
mod schemas;
mod vocabulary;

use std::sync::Arc;
use std::time::{Duration, Instant};

use pelton_base::{Constraint, Namespace, Shape, TokenId, TokenSet};
use pelton_grammar::{Grammars, Limits, Vocabulary};
use pelton_text::Tokenizer;

use crate::{BenchError, Progress, Result, Watch};
pub use report::Report;
pub use schemas::{Schema, gather};
pub use vocabulary::synthetic;

/// Settings of the measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Walks through each schema.
    pub walks: usize,
    /// Most tokens of a walk.
    pub max_tokens: usize,
}

/// Times and counts of one schema.
#[derive(Clone, Debug, Default)]
struct Run {
    name: String,
    refused: Option<String>,
    compile: Duration,
    first_mask: Option<Duration>,
    masks: Vec<Duration>,
    /// The masks that took longest, the longest first.
    slowest: Vec<(Duration, String)>,
    n_tokens: usize,
    n_forced: usize,
    /// Walks that ended.
    n_ended: usize,
    /// Bytes of a state are not known; this is the time to copy one at the end of a walk.
    forks: Vec<Duration>,
    /// Times to begin an answer: a copy of the parser.
    begins: Vec<Duration>,
    stuck: Option<String>,
}

/// Masks that a run remembers with their places.
const REMEMBERED: usize = 8;
/// Bytes of the answer that show such a place.
const SHOWN_BYTES: usize = 32;

impl Run {
    fn note_mask(&mut self, took: Duration, answer: &[u8]) {
        self.first_mask.get_or_insert(took);
        self.masks.push(took);
        let idx = self.slowest.partition_point(|(other, _)| *other >= took);
        if idx < REMEMBERED {
            let shown = &answer[answer.len().saturating_sub(SHOWN_BYTES)..];
            self.slowest.insert(idx, (took, String::from_utf8_lossy(shown).into_owned()));
            self.slowest.truncate(REMEMBERED);
        }
    }
}

/// Measures all schemas.
///
/// # Errors
///
/// A vocabulary without text.
pub fn measure(
    name: &str,
    tokenizer: &Arc<Tokenizer>,
    schemas: &[Schema],
    config: &Config,
    watch: Watch<'_>,
) -> Result<Report> {
    let started = Instant::now();
    let limits = Limits::default();
    let vocabulary = Vocabulary::new(tokenizer, &limits)
        .map_err(|error| BenchError::invalid(error.to_string()))?;
    let building = started.elapsed();
    let subject = Subject::new(tokenizer, &vocabulary);
    let mut runs = Vec::with_capacity(schemas.len());
    for (idx, schema) in schemas.iter().enumerate() {
        if (watch.is_stopped)() {
            break;
        }
        (watch.progress)(Progress { n_done: idx, n_steps: schemas.len(), label: &schema.name });
        runs.push(subject.run(schema, config, limits));
    }
    let interrupted = runs.len() < schemas.len();
    Ok(Report::new(name, tokenizer.vocab_size(), building, &runs, interrupted))
}

/// A vocabulary, and the tokens that end something.
struct Subject<'a> {
    tokenizer: &'a Tokenizer,
    vocabulary: &'a Vocabulary,
    n_tokens: usize,
    end: TokenId,
    closing: Vec<bool>,
}

impl<'a> Subject<'a> {
    fn new(tokenizer: &'a Tokenizer, vocabulary: &'a Vocabulary) -> Self {
        let n_tokens = tokenizer.vocab_size();
        let tokens = (0..n_tokens as u32).map(TokenId);
        let closes = |token| {
            let bytes: &[u8] = tokenizer.token_bytes(token).unwrap_or_default();
            bytes.iter().any(|byte| b"\"}],".contains(byte))
        };
        let closing = tokens.clone().map(closes).collect();
        // Beyond the vocabulary where it has no control token: no token is lost then.
        let end = tokens.clone().find(|token| tokenizer.is_special(*token));
        let end = end.unwrap_or(TokenId(n_tokens as u32));
        Self { tokenizer, vocabulary, n_tokens, end, closing }
    }

    fn run(&self, schema: &Schema, config: &Config, limits: Limits) -> Run {
        let mut run = Run { name: schema.name.clone(), ..Run::default() };
        let grammars = Grammars::new(self.vocabulary.clone(), limits);
        let shape = Shape::Json { schema: schema.text.clone(), path: "schema".to_owned() };
        let started = Instant::now();
        let compiled = grammars.compile(&shape, &[self.end], Namespace::default());
        run.compile = started.elapsed();
        match compiled {
            Ok(constraint) => {
                for walk in 0..config.walks {
                    self.walk(&constraint, walk as u64, config.max_tokens, &mut run);
                }
            }
            Err(error) => run.refused = Some(error.to_string()),
        }
        run
    }

    fn walk(&self, constraint: &Constraint, seed: u64, max_tokens: usize, run: &mut Run) {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let started = Instant::now();
        let mut state = constraint.begin();
        run.begins.push(started.elapsed());
        let mut set = TokenSet::default();
        let mut forced = Vec::new();
        let mut answer = Vec::new();
        let bytes = |token| self.tokenizer.token_bytes(token).unwrap_or_default();
        for _ in 0..max_tokens {
            forced.clear();
            state.forced(&mut forced);
            if let Some(token) = forced.first() {
                run.n_forced += 1;
                run.n_tokens += 1;
                answer.extend_from_slice(bytes(*token));
                state.accept(*token);
                continue;
            }
            set.clear(self.n_tokens + 1);
            let started = Instant::now();
            state.allow(&mut set);
            let took = started.elapsed();
            run.note_mask(took, &answer);
            let Some(token) = self.pick(&set, &mut random) else {
                run.stuck = state.stuck();
                return;
            };
            run.n_tokens += 1;
            if !state.accept(token) {
                run.stuck = Some(format!("token {} was allowed and not accepted", token.0));
                return;
            }
            if token == self.end {
                run.n_ended += 1;
                return;
            }
            answer.extend_from_slice(bytes(token));
        }
        let started = Instant::now();
        let copy = state.fork();
        run.forks.push(started.elapsed());
        drop(copy);
    }

    /// The end where it is allowed, else a token that closes something, or any.
    fn pick(&self, set: &TokenSet, random: &mut Random) -> Option<TokenId> {
        if set.contains(self.end) {
            return Some(self.end);
        }
        let allowed: Vec<u32> = set
            .words()
            .iter()
            .enumerate()
            .flat_map(|(idx, word)| bits(*word).map(move |bit| idx as u32 * 64 + bit))
            .collect();
        let closing: Vec<u32> = allowed
            .iter()
            .copied()
            .filter(|token| self.closing.get(*token as usize) == Some(&true))
            .collect();
        let closes = random.next().is_multiple_of(2) && !closing.is_empty();
        let from = if closes { &closing } else { &allowed };
        let idx = random.next() as usize % from.len().max(1);
        from.get(idx).map(|token| TokenId(*token))
    }
}

fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros())?;
        word &= word - 1;
        Some(bit)
    })
}

/// Xorshift (Marsaglia 2003), the same walk every time.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }
}
