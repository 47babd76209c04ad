//! Vocabularies and walks for the tests.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::path::Path;
use std::sync::Arc;

use pelton_base::{Constraint, Namespace, RuleState, Shape, TokenId, TokenSet};
use pelton_grammar::{Grammars, Layout, Limits, Vocabulary};
use pelton_text::Tokenizer;

/// A fixture of the tests of `pelton-text`.
pub(crate) fn fixture(name: &str) -> Arc<Tokenizer> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/fixtures").join(name);
    let tokenizer = if name.ends_with(".gguf") {
        Tokenizer::from_gguf(&pelton_tensor::Gguf::open(&path).expect(name))
    } else {
        Tokenizer::from_file(&path)
    };
    Arc::new(tokenizer.expect(name))
}

/// One token per byte, and three control tokens.
pub(crate) fn bytes() -> Arc<Tokenizer> {
    let json = pelton_testkit::tokenizer_json().to_string();
    Arc::new(Tokenizer::from_bytes(json.as_bytes()).expect("a tokenizer"))
}

/// The tokenizers of the tests, by name: byte-level, SentencePiece, unigram, from both kinds of
/// files.
pub(crate) const KINDS: [&str; 7] = [
    "bytes",
    "bpe/tokenizer.json",
    "vocab/llama_legacy.tokenizer.json",
    "vocab/gemma.tokenizer.json",
    "vocab/gemma.gguf",
    "vocab/byte_level.gguf",
    "vocab/roberta.tokenizer.json",
];

/// A tokenizer of [`KINDS`].
pub(crate) fn tokenizer(kind: &str) -> Arc<Tokenizer> {
    if kind == "bytes" { bytes() } else { fixture(kind) }
}

/// A model's tokens, its compiler and the token that ends its answers.
pub(crate) struct Bench {
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) grammars: Grammars,
    pub(crate) end: TokenId,
    pub(crate) layout: Layout,
}

impl Bench {
    pub(crate) fn new(kind: &str) -> Self {
        let tokenizer = tokenizer(kind);
        let limits = Limits::default();
        let vocabulary = Vocabulary::new(&tokenizer, &limits).expect("a vocabulary");
        let n_tokens = tokenizer.vocab_size() as u32;
        let control = (0..n_tokens).map(TokenId).find(|token| tokenizer.is_special(*token));
        let end = control.expect("a control token");
        Self { tokenizer, grammars: Grammars::new(vocabulary, limits), end, layout: Layout::Free }
    }

    pub(crate) fn compile(&self, shape: &Shape) -> Constraint {
        self.try_compile(shape).unwrap_or_else(|error| panic!("{shape:?}: {error}"))
    }

    pub(crate) fn try_compile(
        &self,
        shape: &Shape,
    ) -> Result<Constraint, pelton_grammar::GrammarError> {
        self.grammars.compile_as(shape, self.layout, &[self.end], Namespace::default())
    }

    pub(crate) fn allowed(&self, state: &mut dyn RuleState) -> TokenSet {
        let mut set = TokenSet::default();
        set.clear(self.tokenizer.vocab_size());
        state.allow(&mut set);
        set
    }

    /// The tokens that may come next, ascending.
    pub(crate) fn choices(&self, state: &mut dyn RuleState) -> Vec<TokenId> {
        let set = self.allowed(state);
        let n_tokens = self.tokenizer.vocab_size() as u32;
        (0..n_tokens).map(TokenId).filter(|token| set.contains(*token)).collect()
    }

    /// Whether `text` can be written under the mask and the answer may end after it: at each place
    /// with a token of the mask, the longest that fits.
    pub(crate) fn admits(&self, constraint: &Constraint, text: &str) -> bool {
        let mut state = constraint.begin();
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let set = self.allowed(&mut *state);
            let fitting = (0..self.tokenizer.vocab_size() as u32)
                .map(TokenId)
                .filter(|token| set.contains(*token) && !self.tokenizer.is_special(*token))
                .filter_map(|token| Some((token, self.tokenizer.token_bytes(token)?)))
                .filter(|(_, bytes)| !bytes.is_empty() && rest.starts_with(bytes));
            let Some((token, bytes)) = fitting.max_by_key(|(_, bytes)| bytes.len()) else {
                return false;
            };
            rest = &rest[bytes.len()..];
            assert!(state.accept(token), "the mask allowed {token:?}");
        }
        self.allowed(&mut *state).contains(self.end) && state.accept(self.end)
    }

    /// Whether `text` can be written token by token: the forced tokens where there are some, else
    /// the longest token that is accepted. Masks are not computed, so this is quick.
    pub(crate) fn writes(&self, constraint: &Constraint, text: &str) -> bool {
        let mut state = constraint.begin();
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let mut forced = Vec::new();
            state.forced(&mut forced);
            let bytes_of = |token: &TokenId| self.tokenizer.token_bytes(*token).unwrap_or_default();
            let fits = |token: &TokenId| {
                let bytes = bytes_of(token);
                !bytes.is_empty() && rest.starts_with(bytes)
            };
            let mut fitting: Vec<TokenId> = match forced.first() {
                Some(token) => vec![*token],
                None => (0..self.tokenizer.vocab_size() as u32).map(TokenId).collect(),
            };
            fitting.retain(|token| !self.tokenizer.is_special(*token) && fits(token));
            fitting.sort_by_key(|token| std::cmp::Reverse(bytes_of(token).len()));
            let Some(token) = fitting.into_iter().find(|token| state.accept(*token)) else {
                return false;
            };
            rest = &rest[bytes_of(&token).len()..];
        }
        state.accept(self.end)
    }

    /// A walk that takes `pick` of the allowed tokens until the answer ends or has `limit` tokens;
    /// the text, and whether it ended.
    pub(crate) fn walk(
        &self,
        constraint: &Constraint,
        limit: usize,
        mut pick: impl FnMut(&[TokenId]) -> TokenId,
    ) -> (String, bool) {
        let mut state = constraint.begin();
        let mut bytes = Vec::new();
        for _ in 0..limit {
            let choices = self.choices(&mut *state);
            assert!(!choices.is_empty(), "stuck: {:?}", state.stuck());
            let token = pick(&choices);
            assert!(state.accept(token), "{token:?} was allowed and is not accepted");
            if token == self.end {
                return (String::from_utf8(bytes).expect("UTF-8"), true);
            }
            bytes.extend_from_slice(self.tokenizer.token_bytes(token).unwrap_or_default());
        }
        (String::from_utf8_lossy(&bytes).into_owned(), false)
    }
}

/// A schema as a form.
pub(crate) fn json(schema: &str) -> Shape {
    Shape::Json { schema: schema.to_owned(), path: "schema".to_owned() }
}
