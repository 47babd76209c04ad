//! From token lists to vectors: the steps of an embedding model after its last layer.
//!
//! ```text
//! tokens of texts ── Decoder::hidden ──> rows [n, hidden] ── pool ──> [width] ── dense.. ──> normalise
//! ```
//!
//! The files beside the checkpoint say which steps follow ([`EmbedSpec`]): the folders of
//! sentence-transformers, or the metadata of a GGUF file.
//!
//! **Canonical order.** Rows of a text attend to rows of that text alone. Pooling adds rows in their order,
//! in f64; a dense layer adds inputs in their order, in f64; a length is a sum in order, in f64. So the
//! vector of a text has the same bits alone, in any batch and with any number of threads.
//!
//! **Memory.** Keys and values of one layer for the texts of a step, in f32, and the rows that are
//! pooled. A step of 2,048 tokens of a model with 1,024 key elements takes 16 MiB.

mod classes;
mod dense;
mod pooling;
mod spec;

use pelton_base::TokenId;
use pelton_base::limits::BLOCK_TOKENS;

use crate::decoder::{Decoder, ForwardInput};
use crate::device::{BlockTables, ForwardSequence, Ops};

pub use classes::{ClassActivation, ClassSpec};
pub use dense::Dense;
pub use pooling::{Pooling, UnknownPooling};
pub use spec::EmbedSpec;

/// Tokens of a step unless one text has more: enough for every product to be limited by arithmetic,
/// few enough that waiting texts do not wait long.
const STEP_TOKENS: usize = 2048;

/// A model that makes vectors of texts.
pub struct VectorModel<D: Ops> {
    decoder: Decoder<D>,
    spec: EmbedSpec,
    kv: D::Kv,
    n_blocks: usize,
    hidden: Vec<f32>,
}

/// The tokens of a text, or of a pair of texts that a classifier reads together.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TypedTokens {
    /// The tokens, special ones included.
    pub tokens: Vec<TokenId>,
    /// The kind of each token: 0 for the first text, 1 for the second. Empty where all are 0.
    pub types: Vec<u8>,
}

impl From<Vec<TokenId>> for TypedTokens {
    fn from(tokens: Vec<TokenId>) -> Self {
        Self { tokens, types: Vec::new() }
    }
}

impl<D: Ops> VectorModel<D> {
    /// A model whose texts have at most `max_tokens` tokens each.
    ///
    /// # Errors
    ///
    /// When the memory for keys and values is refused.
    ///
    /// # Panics
    ///
    /// When `max_tokens` is zero, or beyond the context of the decoder.
    pub fn new(decoder: Decoder<D>, spec: EmbedSpec, max_tokens: usize) -> std::io::Result<Self> {
        let most = decoder.spec().max_context;
        assert!((1..=most).contains(&max_tokens), "{max_tokens} tokens in a context of {most}");
        let spec = EmbedSpec { max_tokens, ..spec };
        let n_blocks = STEP_TOKENS.max(max_tokens).div_ceil(BLOCK_TOKENS);
        let kv = decoder.try_new_passing_kv(n_blocks, BLOCK_TOKENS)?;
        Ok(Self { decoder, spec, kv, n_blocks, hidden: Vec::new() })
    }

    /// The decoder.
    pub fn decoder(&self) -> &Decoder<D> {
        &self.decoder
    }

    /// The steps after the last layer, and the longest text, in tokens.
    pub fn spec(&self) -> &EmbedSpec {
        &self.spec
    }

    /// Elements of a vector.
    pub fn n_dimensions(&self) -> usize {
        self.spec.n_dimensions(self.decoder.spec().hidden_size)
    }

    /// Places that a text of `n_tokens` tokens takes in a step, which has [`n_places`](Self::n_places).
    pub fn places_of(n_tokens: usize) -> usize {
        n_tokens.div_ceil(BLOCK_TOKENS)
    }

    /// Places of one step; every text fits into one alone.
    pub fn n_places(&self) -> usize {
        self.n_blocks
    }

    /// Vectors of texts, computed in one step.
    ///
    /// # Shapes
    ///
    /// One vector of [`n_dimensions`](Self::n_dimensions) per text.
    ///
    /// # Panics
    ///
    /// When a text is empty or longer than the spec says, a token is outside of the vocabulary, or
    /// the texts do not fit into one step.
    pub fn embed(&mut self, texts: &[&[TokenId]]) -> Vec<Vec<f32>> {
        let texts: Vec<(&[TokenId], &[u8])> = texts.iter().map(|text| (*text, &[][..])).collect();
        self.step(&texts)
    }

    /// As [`embed`](Self::embed), with a kind for each token. A model with fewer than two kinds of
    /// tokens takes all of them for the first kind.
    ///
    /// # Panics
    ///
    /// As [`embed`](Self::embed), and when a text has kinds and not one for each token.
    pub fn embed_typed(&mut self, texts: &[TypedTokens]) -> Vec<Vec<f32>> {
        let texts: Vec<(&[TokenId], &[u8])> =
            texts.iter().map(|text| (text.tokens.as_slice(), text.types.as_slice())).collect();
        self.step(&texts)
    }

    fn step(&mut self, texts: &[(&[TokenId], &[u8])]) -> Vec<Vec<f32>> {
        let needs_all = self.spec.pooling.iter().any(|pooling| pooling.needs_all_rows());
        let blocks: Vec<u32> = (0..self.n_blocks as u32).collect();
        let (mut tokens, mut rows, mut sequences) = (Vec::new(), Vec::new(), Vec::new());
        let mut kinds: Vec<TokenId> = Vec::new();
        let n_kinds = self.decoder.spec().ends.n_token_types;
        let mut block = 0;
        for (text, types) in texts {
            let (n, first) = (text.len(), tokens.len());
            assert!(types.is_empty() || types.len() == n, "{} kinds of {n} tokens", types.len());
            assert!((1..=self.spec.max_tokens).contains(&n), "a text of {n} tokens");
            let end = block + Self::places_of(n);
            assert!(end <= self.n_blocks, "the texts of a step fit into it");
            sequences.push(ForwardSequence {
                rows: first..first + n,
                n_source: 0,
                first_position: 0,
                block_tables: BlockTables::one(&blocks[block..end]),
                lane: None,
                tree: None,
            });
            match needs_all {
                true => rows.extend(first..first + n),
                false => rows.extend([first, first + n - 1]),
            }
            tokens.extend_from_slice(text);
            if n_kinds > 1 {
                kinds.extend(types.iter().map(|kind| TokenId(u32::from(*kind).min(1))));
                kinds.resize(tokens.len(), TokenId(0));
            }
            block = end;
        }
        let input = ForwardInput { tokens: &tokens, sequences: &sequences, logits_rows: &rows };
        self.decoder.hidden_typed(&mut self.kv, &input, &kinds, &mut self.hidden);
        let width = self.decoder.spec().hidden_size;
        let mut rest = self.hidden.as_slice();
        let mut vectors = Vec::with_capacity(texts.len());
        for (text, _) in texts {
            let n_rows = if needs_all { text.len() } else { 2 };
            let (rows, after) = rest.split_at(n_rows * width);
            rest = after;
            vectors.push(self.spec.finish(rows, width));
        }
        vectors
    }
}

impl<D: Ops> std::fmt::Debug for VectorModel<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VectorModel").field("spec", &self.spec).finish_non_exhaustive()
    }
}

/// Scales a vector to the length 1; one of length 0 stays.
pub fn normalise(vector: &mut [f32]) {
    let square: f64 = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    if square == 0.0 {
        return;
    }
    let factor = square.sqrt().recip();
    vector.iter_mut().for_each(|x| *x = (f64::from(*x) * factor) as f32);
}
