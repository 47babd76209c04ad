//! Forms made into rules, each once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use llguidance::api::{GrammarInit, TopLevelGrammar};
use llguidance::panic_utils;
use pelton_base::{Constraint, Namespace, RuleState, Shape, TokenId, TokenSet};
use xxhash_rust::xxh3::xxh3_128;

use crate::cache::Cache;
use crate::compose::compose;
use crate::error::GrammarError;
use crate::limits::Limits;
use crate::parser::Parser;
use crate::rule::GrammarRule;
use crate::state::in_words;
use crate::vocabulary::Vocabulary;

/// White space inside of JSON.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum Layout {
    /// As the model likes: none, one space, or a new line and its indentation, nothing else. The
    /// model decides at each place, so fewer tokens are forced.
    #[default]
    Free,
    /// One space after `:` and `,`, as in the training data of most tool calls. Everything but the
    /// values is forced.
    Spaced,
    /// None at all.
    Compact,
}

/// Numbers of the cache.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CacheStats {
    /// Grammars that were found.
    pub hits: u64,
    /// Grammars that were compiled.
    pub misses: u64,
    /// Grammars that are kept now.
    pub entries: usize,
    /// Bytes of their sources.
    pub bytes: usize,
}

/// Tokens of an answer that are tried when its form is compiled: brackets, quotation marks and the
/// beginning of a name.
const REHEARSED_TOKENS: usize = 8;
/// Tokens among which each of them is chosen.
const REHEARSED_CHOICES: usize = 256;

/// Compiles forms for one vocabulary, and keeps the results.
#[derive(Debug)]
pub struct Grammars {
    vocabulary: Vocabulary,
    limits: Limits,
    cache: Mutex<Cache>,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl Grammars {
    /// A compiler with an empty cache.
    pub fn new(vocabulary: Vocabulary, limits: Limits) -> Self {
        let cache = Mutex::new(Cache::new(limits.cached, limits.cached_bytes));
        Self { vocabulary, limits, cache, hits: AtomicU64::new(0), misses: AtomicU64::new(0) }
    }

    /// The vocabulary.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// The rule of a form with [`Layout::Free`]; any token of `ends` may come where the form may
    /// end, and ends the answer.
    ///
    /// # Errors
    ///
    /// When the form is malformed, too large, or cannot be enforced as a whole; names the place. A
    /// panic of the compiler is such an error, too.
    pub fn compile(
        &self,
        shape: &Shape,
        ends: &[TokenId],
        namespace: Namespace,
    ) -> Result<Constraint, GrammarError> {
        self.compile_as(shape, Layout::default(), ends, namespace)
    }

    /// The rule of a form with the white space of its JSON as `layout` says; otherwise as
    /// [`Grammars::compile`].
    ///
    /// # Errors
    ///
    /// As [`Grammars::compile`].
    pub fn compile_as(
        &self,
        shape: &Shape,
        layout: Layout,
        ends: &[TokenId],
        namespace: Namespace,
    ) -> Result<Constraint, GrammarError> {
        let source = format!("{layout:?} {ends:?} {shape:?}");
        let key = (namespace.0, xxh3_128(source.as_bytes()));
        let cache = || self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(constraint) = cache().get(key) {
            self.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(constraint);
        }
        self.misses.fetch_add(1, Ordering::Relaxed);
        let constraint = self.compile_anew(shape, layout, ends)?;
        cache().put(key, constraint.clone(), source.len());
        Ok(constraint)
    }

    /// The numbers of the cache.
    pub fn cache_stats(&self) -> CacheStats {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        CacheStats {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            entries: cache.len(),
            bytes: cache.used_bytes(),
        }
    }

    fn compile_anew(
        &self,
        shape: &Shape,
        layout: Layout,
        ends: &[TokenId],
    ) -> Result<Constraint, GrammarError> {
        let guarded = panic_utils::catch_unwind(std::panic::AssertUnwindSafe(|| {
            Ok(self.compile_unguarded(shape, layout, ends))
        }));
        guarded.unwrap_or_else(|error| Err(GrammarError::new("", in_words(&error.to_string()))))
    }

    fn compile_unguarded(
        &self,
        shape: &Shape,
        layout: Layout,
        ends: &[TokenId],
    ) -> Result<Constraint, GrammarError> {
        let grammars = compose(shape, layout, &self.vocabulary, &self.limits)?;
        let top = TopLevelGrammar { grammars, max_tokens: None };
        let init = GrammarInit::Serialized(top);
        let parser = self
            .vocabulary
            .factory()
            .create_parser_from_init_default(init)
            .map_err(|error| GrammarError::new("", in_words(&error.to_string())))?;
        let parser = Parser::new(parser, self.vocabulary.bias());
        let rule = GrammarRule::new(parser, self.vocabulary.clone(), ends);
        rehearse(&rule, &self.vocabulary)?;
        Ok(Constraint(Arc::new(rule)))
    }
}

/// Goes the first steps of an answer, which is where a grammar of very many alternatives (an object
/// of hundreds of optional properties) exceeds the limits of the parser: better before the request
/// begins than at its first token.
///
/// It writes quotation marks wherever they may stand, and white space nowhere.
fn rehearse(rule: &GrammarRule, vocabulary: &Vocabulary) -> Result<(), GrammarError> {
    let n_tokens = vocabulary.n_tokens();
    let rank = |token: &TokenId| match vocabulary.bytes_of(&[token.0]).first() {
        Some(b'"') => 0,
        Some(byte) if !byte.is_ascii_whitespace() => 1,
        _ => 2,
    };
    let (mut state, mut allowed) = (rule.rehearsal(), TokenSet::default());
    for _ in 0..REHEARSED_TOKENS {
        allowed.clear(n_tokens);
        state.allow(&mut allowed);
        let next = tokens_of(&allowed).take(REHEARSED_CHOICES).min_by_key(rank);
        if !next.is_some_and(|token| state.accept(token)) {
            break;
        }
    }
    match state.failure() {
        Some(why) => Err(GrammarError::new("", format!("too large to enforce: {why}"))),
        None => Ok(()),
    }
}

/// The tokens of a set, ascending; words without a token are passed over.
fn tokens_of(set: &TokenSet) -> impl Iterator<Item = TokenId> {
    let words = (0_u32..).zip(set.words()).filter(|(_, word)| **word != 0);
    words.flat_map(|(idx, word)| {
        let bits = (0..64).filter(move |bit| word >> bit & 1 == 1);
        bits.map(move |bit| TokenId(idx * 64 + bit))
    })
}
