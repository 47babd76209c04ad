//! Tokens through a decoder, each text over the keys and values of the one before.

use std::ops::Range;

use pelton_base::TokenId;
use pelton_base::limits::BLOCK_TOKENS;
use pelton_model::{BlockTables, CpuDevice, Decoder, Device, ForwardInput, ForwardSequence, Lane};
use pelton_sampling::Scorer;

use super::rows::likeliest;
use super::{CHUNK_ROWS, text};
use crate::{BenchError, Result};

/// One sequence at a time with its keys and values.
pub(super) struct Runner {
    kv: <CpuDevice as Device>::Kv,
    tables: Vec<u32>,
    n_groups: usize,
    vocab_size: usize,
    logits: Vec<f32>,
}

/// A token of a given continuation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scored {
    /// Its log probability in nats.
    pub(super) logprob: f64,
    /// Whether no token is likelier.
    pub(super) is_likeliest: bool,
}

impl Runner {
    /// With room for this many tokens.
    ///
    /// # Errors
    ///
    /// When the memory for keys and values is refused.
    pub(super) fn new(decoder: &Decoder<CpuDevice>, n_tokens: usize) -> Result<Self> {
        let n_blocks = n_tokens.div_ceil(BLOCK_TOKENS);
        let kv = decoder.try_new_kv(n_blocks, BLOCK_TOKENS);
        let kv = kv.map_err(|error| {
            BenchError::failed(format!("no memory for keys and values: {error}"))
        })?;
        let n_groups = decoder.spec().n_kv_groups();
        let table = 0..n_blocks as u32;
        let tables = (0..n_groups).flat_map(|_| table.clone()).collect();
        let vocab_size = decoder.spec().vocab_size;
        Ok(Self { kv, tables, n_groups, vocab_size, logits: Vec::new() })
    }

    /// Bytes of the keys and values of a token.
    pub(super) fn kv_bytes_per_token(decoder: &Decoder<CpuDevice>) -> f64 {
        decoder.kv_bytes_per_block(BLOCK_TOKENS) as f64 / BLOCK_TOKENS as f64
    }

    pub(super) fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Logits of the last call, `[rows, vocab]`.
    pub(super) fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// Computes tokens from a position on, and the logits of some of these rows.
    pub(super) fn forward(
        &mut self,
        decoder: &mut Decoder<CpuDevice>,
        tokens: &[TokenId],
        first_position: usize,
        logits_rows: &[usize],
    ) {
        let sequence = ForwardSequence {
            rows: 0..tokens.len(),
            n_source: 0,
            first_position,
            block_tables: BlockTables::new(&self.tables, self.n_groups),
            lane: decoder.spec().is_recurrent().then(|| Lane::at(0, first_position)),
            tree: None,
        };
        let input = ForwardInput { tokens, sequences: &[sequence], logits_rows };
        decoder.forward(&mut self.kv, &input, &mut self.logits);
    }

    /// Computes rows of a window, of which those that score a token leave their logits.
    pub(super) fn run_window(
        &mut self,
        decoder: &mut Decoder<CpuDevice>,
        window: &text::Window,
        rows: &Range<usize>,
    ) {
        let logits_rows: Vec<usize> =
            (rows.start.max(window.first_row())..rows.end).map(|row| row - rows.start).collect();
        self.forward(decoder, &window.inputs[rows.clone()], rows.start, &logits_rows);
    }

    /// Scores the tokens of `continuation` behind `context`.
    ///
    /// # Panics
    ///
    /// When `context` is empty, or both are longer than there is room.
    pub(super) fn score(
        &mut self,
        decoder: &mut Decoder<CpuDevice>,
        context: &[TokenId],
        continuation: &[TokenId],
    ) -> Vec<Scored> {
        let Some((_, before)) = continuation.split_last() else { return Vec::new() };
        let inputs = [context, before].concat();
        let first = context.len().checked_sub(1).expect("something before the continuation");
        let (mut scorer, mut scored) = (Scorer::default(), Vec::with_capacity(continuation.len()));
        for start in (0..inputs.len()).step_by(CHUNK_ROWS) {
            let end = inputs.len().min(start + CHUNK_ROWS);
            let rows: Vec<usize> = (start.max(first)..end).map(|row| row - start).collect();
            self.forward(decoder, &inputs[start..end], start, &rows);
            if rows.is_empty() {
                continue;
            }
            for row in self.logits.chunks_exact(self.vocab_size) {
                let token = continuation[scored.len()];
                let logprob = f64::from(scorer.score(row, token, 0).logprobs.logprob);
                let is_likeliest = likeliest(row) == Some(token.0 as usize);
                scored.push(Scored { logprob, is_likeliest });
            }
        }
        scored
    }

    /// Computes a prompt and returns the likeliest token behind it; `None` where every logit is NaN.
    pub(super) fn prompt(
        &mut self,
        decoder: &mut Decoder<CpuDevice>,
        prompt: &[TokenId],
    ) -> Option<TokenId> {
        self.forward(decoder, prompt, 0, &[prompt.len() - 1]);
        likeliest(&self.logits).map(|token| TokenId(token as u32))
    }

    /// Goes on from the first token behind a prompt of `n_prompt` tokens, always with the likeliest, to
    /// `n_tokens` in all or until `is_end` of what there is.
    pub(super) fn generate(
        &mut self,
        decoder: &mut Decoder<CpuDevice>,
        n_prompt: usize,
        first: TokenId,
        n_tokens: usize,
        mut is_end: impl FnMut(&[TokenId]) -> bool,
    ) -> Vec<TokenId> {
        let mut tokens = vec![first];
        while tokens.len() < n_tokens && !is_end(&tokens) {
            let last = tokens.len() - 1;
            self.forward(decoder, &tokens[last..], n_prompt + last, &[0]);
            let Some(next) = likeliest(&self.logits) else { break };
            tokens.push(TokenId(next as u32));
        }
        tokens
    }
}
