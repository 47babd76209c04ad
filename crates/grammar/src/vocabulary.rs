//! The tokens of a model as a tree of bytes, and text as its tokens.
//!
//! ```text
//!   id        bytes in the tree            allowed in text
//!   text      its own bytes                where the grammar allows these bytes
//!   control   0xFF and its name            never; only where a grammar names it
//!   gap       none                         never
//!   n         0xFF and a name of ours      stands for "the grammar may end here"
//! ```
//!
//! No text contains the byte 0xFF, so a control token can never be part of one. A text token whose
//! bytes begin with 0xFF could only be part of invalid UTF-8; it is a gap here.
//!
//! An answer continues a prompt, so a SentencePiece token keeps its leading space, as in
//! `Detokenizer::continuing`.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::earley::SlicedBiasComputer;
use pelton_base::TokenId;
use pelton_text::{EncodeOptions, Tokenizer};
use toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenizerEnv};

use crate::bias::Bias;
use crate::budget::{Budget, Share};
use crate::error::GrammarError;
use crate::limits::Limits;
use crate::plain::{CLASSES, Class, Plain};

/// The tokens of one model, ready for grammars. Clones share it.
#[derive(Clone)]
pub struct Vocabulary(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    factory: ParserFactory,
    env: TokEnv,
    /// Sets of tokens that replace most of a walk inside of strings; empty where all is walked.
    plains: Arc<[Plain]>,
    /// Memory that the parsers of all answers hold.
    budget: Arc<Budget>,
    n_tokens: usize,
    /// Control tokens by name.
    control: HashMap<String, TokenId>,
}

impl Vocabulary {
    /// Builds the tree of all tokens, about 3 µs per token.
    ///
    /// # Errors
    ///
    /// When the vocabulary has no token with text.
    pub fn new(tokenizer: &Arc<Tokenizer>, limits: &Limits) -> Result<Self, GrammarError> {
        Self::with_classes(tokenizer, limits, &CLASSES)
    }

    /// The same without the sets that make masks inside of strings quick, to compare masks with.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn walked(tokenizer: &Arc<Tokenizer>, limits: &Limits) -> Result<Self, GrammarError> {
        Self::with_classes(tokenizer, limits, &[])
    }

    fn with_classes(
        tokenizer: &Arc<Tokenizer>,
        limits: &Limits,
        classes: &[Class],
    ) -> Result<Self, GrammarError> {
        let n_tokens = tokenizer.vocab_size();
        let words = words(tokenizer);
        if words.iter().all(|word| word.is_empty() || word[0] == TokTrie::SPECIAL_TOKEN_MARKER) {
            return Err(GrammarError::new("", "the vocabulary has no token with text"));
        }
        let control = (0..n_tokens as u32)
            .map(TokenId)
            .filter(|token| tokenizer.is_special(*token))
            .filter_map(|token| {
                let name = std::str::from_utf8(tokenizer.token_bytes(token)?).ok()?;
                (!name.is_empty()).then(|| (name.to_owned(), token))
            })
            .collect();
        let info = TokRxInfo::new(words.len() as u32, n_tokens as u32);
        let env: TokEnv = Arc::new(Environment {
            trie: TokTrie::from(&info, &words),
            lead: Lead::of(tokenizer),
            tokenizer: Arc::clone(tokenizer),
        });
        let capabilities = InferenceCapabilities { ff_tokens: true, ..Default::default() };
        let slices = SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, capabilities, &slices)
            .map_err(|error| GrammarError::new("", error.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = limits.parser();
        let plains = classes.iter().map(|class| Plain::new(env.tok_trie(), *class)).collect();
        let budget = Arc::new(Budget::new(limits.all_states_bytes));
        Ok(Self(Arc::new(Inner { factory, env, plains, budget, n_tokens, control })))
    }

    /// Tokens of the vocabulary, gaps included.
    pub fn n_tokens(&self) -> usize {
        self.0.n_tokens
    }

    /// The control token of this name.
    pub fn control(&self, name: &str) -> Option<TokenId> {
        self.0.control.get(name).copied()
    }

    /// The first control token whose name occurs in a text, with its place; the longest of several.
    pub(crate) fn first_control(&self, text: &str) -> Option<(usize, String, TokenId)> {
        let found = self.0.control.iter().filter_map(|(name, token)| {
            let at = text.find(name.as_str())?;
            Some((at, name.clone(), *token))
        });
        found.min_by_key(|(at, name, _)| (*at, std::cmp::Reverse(name.len())))
    }

    pub(crate) fn factory(&self) -> &ParserFactory {
        &self.0.factory
    }

    /// Computes the masks of a new parser.
    pub(crate) fn bias(&self) -> Bias {
        Bias::new(Arc::clone(&self.0.plains), self.0.factory.slicer())
    }

    /// The share of a new parser.
    pub(crate) fn share(&self) -> Share {
        Share::new(&self.0.budget)
    }

    /// Bytes that the parsers of all answers hold now.
    pub fn held_bytes(&self) -> usize {
        self.0.budget.held()
    }

    /// The bytes of text tokens, with control tokens by name.
    pub(crate) fn bytes_of(&self, tokens: &[u32]) -> Vec<u8> {
        self.0.env.tok_trie().decode(tokens)
    }

    /// Tokens of `text` that continue an answer: as the model would see them, without a space that
    /// a vocabulary puts before a text.
    pub fn tokens(&self, text: &str) -> Vec<TokenId> {
        self.0.env.tokenize_bytes(text.as_bytes()).into_iter().map(TokenId).collect()
    }
}

impl fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vocabulary").field("n_tokens", &self.0.n_tokens).finish_non_exhaustive()
    }
}

/// The bytes of every token in the tree, and of the end of the grammar behind them.
fn words(tokenizer: &Tokenizer) -> Vec<Vec<u8>> {
    let marked = |name: &[u8]| [&[TokTrie::SPECIAL_TOKEN_MARKER], name].concat();
    let mut words: Vec<Vec<u8>> = (0..tokenizer.vocab_size() as u32)
        .map(TokenId)
        .map(|token| {
            let bytes = tokenizer.token_bytes(token).unwrap_or_default();
            if tokenizer.is_special(token) {
                if bytes.is_empty() {
                    return marked(format!("<control {}>", token.0).as_bytes());
                }
                return marked(bytes);
            }
            if bytes.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) {
                return Vec::new();
            }
            bytes.to_vec()
        })
        .collect();
    words.push(marked(b"<end of the grammar>"));
    words
}

/// llguidance's view of our tokenizer.
struct Environment {
    trie: TokTrie,
    tokenizer: Arc<Tokenizer>,
    lead: Lead,
}

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            self.lead
                .encode(&self.tokenizer, text)
                .unwrap_or_else(|| self.trie.greedy_tokenize(text.as_bytes()))
        })
    }
}

/// A text before the text, so that a tokenizer treats it as the middle of one.
///
/// SentencePiece and some `tokenizer.json` files put a space before every text. Behind a character
/// that joins with nothing there is none, and the tokens of that character are cut off again.
struct Lead {
    text: &'static str,
    tokens: Vec<TokenId>,
}

impl Lead {
    /// Texts that are tried, the first that works is taken.
    const TRIED: [&str; 4] = ["", "\u{2}", "\n", "."];
    /// Texts that must come out with exactly their own bytes.
    const SAMPLES: [&str; 5] = ["{\"a\": 1}", " word", "word", "\"", "1"];

    fn of(tokenizer: &Tokenizer) -> Self {
        let leads = Self::TRIED.iter().filter_map(|text| {
            let tokens = plain(tokenizer, text)?;
            Some(Self { text, tokens })
        });
        let mut leads = leads.peekable();
        let mut best = Self { text: "", tokens: Vec::new() };
        let mut most = 0;
        for lead in leads.by_ref() {
            let works = |sample: &&str| lead.encode(tokenizer, sample).is_some();
            let n_works = Self::SAMPLES.iter().filter(|sample| works(sample)).count();
            if n_works > most {
                (best, most) = (lead, n_works);
            }
        }
        best
    }

    /// The tokens of `text`, if their bytes are exactly `text`: a normalizer may have changed it.
    fn encode(&self, tokenizer: &Tokenizer, text: &str) -> Option<Vec<u32>> {
        let all = plain(tokenizer, &format!("{}{text}", self.text))?;
        let tokens = all.strip_prefix(self.tokens.as_slice())?;
        let bytes = tokens.iter().flat_map(|token| tokenizer.token_bytes(*token).unwrap_or(b""));
        bytes.eq(text.as_bytes()).then(|| tokens.iter().map(|token| token.0).collect())
    }
}

fn plain(tokenizer: &Tokenizer, text: &str) -> Option<Vec<TokenId>> {
    let options = EncodeOptions { add_special: false, parse_special: false };
    tokenizer.encode_with(text, options).ok()
}
