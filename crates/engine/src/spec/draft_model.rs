//! Drafts by a smaller model of the same vocabulary.
//!
//! ```text
//! known    [ t t t t t t | t t ]     tokens of the target; KV exists here for the first part
//! catch up             └─────┘       one pass over all rows: KV of the rest, logits of the last
//! draft 1, 2, ... k                  a pass each over the rows that want more
//! ```
//!
//! The drafts of a step are dropped at the next: accepted ones are then among the known tokens, and
//! the KV of rejected ones is overwritten. Each draft is drawn with the parameters and the random
//! number that the target will use at its place, so two models that agree draw the same token at
//! any temperature: also under penalties and rules, which see the drafts before it. Where drafts
//! are judged by rejection sampling, other random numbers are used, and the distribution of each
//! draft is kept.
//!
//! Memory: KV blocks of its own. A row that finds none gets no drafts.
//!
//! **A chain and nothing beside it.** The second likeliest token of each place costs no pass here
//! and could be a leaf beside the chain. It was left out. Drafts of a tree are judged one by one in
//! the order in which they are made, and how long the chain is changes from step to step: the draft
//! at one place would be a link in one step and a leaf in the next, and the estimate a mixture of
//! both, where a chain's is exact: each link is judged only if all before it were right, whatever
//! the length. Time would be blurred as well: a leaf costs no pass and a link does. And above
//! temperature zero the drawn token is no more likely to be replaced by the second likeliest than
//! by any other, because both models draw with the same random number.

use super::{Abilities, Odds, Proposer, ProposerError, Row, Seen};
use crate::{ExecutorError, KvMemory};
use pelton_base::{Request, RequestId, TokenId};
use pelton_model::{BlockTables, Decoder, ForwardInput, ForwardSequence, GreedyRows, Ops};
use pelton_sampling::{Sampler, SamplerState};
use std::collections::HashMap;

/// Most tokens of one pass, so that a long prompt does not hold the step up for long.
const CHUNK: usize = 512;

/// A model that drafts.
pub struct DraftModel<D: Ops> {
    decoder: Decoder<D>,
    kv: D::Kv,
    block_size: usize,
    /// Free blocks.
    free: Vec<u32>,
    sequences: HashMap<RequestId, Sequence>,
    sampler: Sampler,
    logits: Vec<f32>,
    /// In place of logits, where all rows of a pass are greedy.
    likeliest: Vec<Option<TokenId>>,
    n_sampled: usize,
}

struct Sequence {
    /// Tokens whose KV exists.
    computed: Vec<TokenId>,
    table: Vec<u32>,
    /// Has seen the first `n_seen` output tokens.
    state: SamplerState,
    n_seen: usize,
    /// Has seen the drafts of this step besides.
    drafting: Option<SamplerState>,
}

/// A row in one pass.
struct Share {
    /// Index among the rows of the step.
    row: usize,
    tokens: Vec<TokenId>,
    first_position: usize,
}

impl<D: Ops> DraftModel<D> {
    /// Takes a model whose first `n_sampled` tokens are those of the target, and allocates its KV.
    ///
    /// # Errors
    ///
    /// When the model has recurrent layers, not even one block fits, or the system refuses the memory.
    pub fn new(
        decoder: Decoder<D>,
        block_size: usize,
        memory: KvMemory,
        n_sampled: usize,
    ) -> Result<Self, ExecutorError> {
        if decoder.spec().is_recurrent() {
            return Err(ExecutorError::RecurrentDraft);
        }
        let block_bytes = decoder.kv_bytes_per_block(block_size);
        let (n_blocks, n_bytes) = match memory {
            KvMemory::Blocks(n) => (n as usize, (n as usize).saturating_mul(block_bytes)),
            KvMemory::Bytes(n_bytes) => (n_bytes / block_bytes.max(1), n_bytes),
        };
        let n_blocks = n_blocks.min(u32::MAX as usize / block_size);
        if n_blocks == 0 {
            return Err(ExecutorError::KvTooSmall { n_bytes, block_bytes });
        }
        let kv = decoder
            .try_new_kv(n_blocks, block_size)
            .map_err(|source| ExecutorError::KvRefused { n_blocks, block_bytes, source })?;
        let n_sampled = n_sampled.min(decoder.spec().vocab_size);
        Ok(Self {
            decoder,
            kv,
            block_size,
            free: (0..n_blocks as u32).rev().collect(),
            sequences: HashMap::new(),
            sampler: Sampler::new(),
            logits: Vec::new(),
            likeliest: Vec::new(),
            n_sampled,
        })
    }

    /// Blocks for `n_tokens` tokens of a sequence; `false` when there are not enough.
    fn grow(free: &mut Vec<u32>, table: &mut Vec<u32>, n_blocks: usize) -> bool {
        let n_missing = n_blocks.saturating_sub(table.len());
        let Some(split) = free.len().checked_sub(n_missing) else { return false };
        table.extend(free.drain(split..));
        true
    }

    /// One pass over the model; for the last token of each share a row of logits, or the likeliest
    /// token.
    fn forward(&mut self, shares: &[Share], ids: &[RequestId], is_greedy: bool) {
        let tokens: Vec<TokenId> =
            shares.iter().flat_map(|share| share.tokens.iter().copied()).collect();
        let (mut sequences, mut last_rows, mut first) = (Vec::new(), Vec::new(), 0);
        for share in shares {
            let end = first + share.tokens.len();
            sequences.push(ForwardSequence {
                rows: first..end,
                n_source: 0,
                first_position: share.first_position,
                block_tables: BlockTables::one(&self.sequences[&ids[share.row]].table),
                lane: None,
                tree: None,
            });
            last_rows.push(end - 1);
            first = end;
        }
        let input =
            ForwardInput { tokens: &tokens, sequences: &sequences, logits_rows: &last_rows };
        let n_rows = if is_greedy { shares.len() } else { 0 };
        let greedy = GreedyRows { n_rows, n_sampled: self.n_sampled, tokens: &mut self.likeliest };
        let n_layers = self.decoder.spec().layers.len();
        self.decoder.forward_greedy(n_layers, &mut self.kv, &input, &mut self.logits, greedy);
        for share in shares {
            let sequence = self.sequences.get_mut(&ids[share.row]).expect("invariant: just used");
            sequence.computed.truncate(share.first_position);
            sequence.computed.extend_from_slice(&share.tokens);
        }
    }

    /// Whether the likeliest tokens alone are the drafts of these shares.
    fn is_greedy(&self, shares: &[Share], ids: &[RequestId], odds: Option<&Odds>) -> bool {
        let mut sequences = shares.iter().filter_map(|share| self.sequences.get(&ids[share.row]));
        odds.is_none() && sequences.all(|sequence| sequence.state.takes_largest())
    }

    /// Draws a draft for each share from its row of the pass.
    fn draw(
        &mut self,
        shares: &[Share],
        ids: &[RequestId],
        n_outputs: &[usize],
        mut odds: Option<&mut Odds>,
    ) -> Vec<TokenId> {
        let vocab = self.decoder.spec().vocab_size;
        let is_greedy = self.logits.is_empty();
        let draw = |(i, share): (usize, &Share)| {
            let sequence =
                self.sequences.get_mut(&ids[share.row]).expect("invariant: just computed");
            let state = sequence.drafting.get_or_insert_with(|| sequence.state.fork());
            let draft = if is_greedy {
                self.likeliest[i].unwrap_or(TokenId(0))
            } else {
                let row = &mut self.logits[i * vocab..][..self.n_sampled];
                let position = n_outputs[share.row];
                match odds.as_deref_mut() {
                    None => self.sampler.sample(state, row, position).token,
                    Some(odds) => {
                        let chain = odds.chain(ids[share.row]);
                        chain.draw(&mut self.sampler, state, row, position)
                    }
                }
            };
            state.accepted(draft);
            draft
        };
        shares.iter().enumerate().map(draw).collect()
    }

    /// Computes the known tokens that the draft model lacks, all but the last chunk of each row.
    /// The last chunks come back, to be computed together.
    fn catch_up(&mut self, rows: &[Row<'_>], ids: &[RequestId]) -> Vec<Share> {
        let context = self.decoder.spec().max_context;
        let mut shares = Vec::new();
        for (i, row) in rows.iter().enumerate() {
            let n_most = row.tokens.len() + row.n_drafts;
            let Some(sequence) = self.sequences.get_mut(&row.id) else { continue };
            sequence.drafting = None;
            for &token in &row.tokens[row.n_prompt + sequence.n_seen..] {
                sequence.state.accepted(token);
                sequence.n_seen += 1;
            }
            let n_blocks = n_most.div_ceil(self.block_size);
            if n_most > context || !Self::grow(&mut self.free, &mut sequence.table, n_blocks) {
                continue;
            }
            let known = sequence.computed.iter().zip(row.tokens);
            let n_valid = known.take_while(|(a, b)| a == b).count().min(row.tokens.len() - 1);
            let mut first_position = n_valid;
            while row.tokens.len() - first_position > CHUNK {
                let tokens = row.tokens[first_position..][..CHUNK].to_vec();
                self.forward(&[Share { row: i, tokens, first_position }], ids, true);
                first_position += CHUNK;
            }
            let tokens = row.tokens[first_position..].to_vec();
            shares.push(Share { row: i, tokens, first_position });
        }
        shares
    }
}

impl<D> Proposer for DraftModel<D>
where
    D: Ops + 'static,
    Decoder<D>: Send,
{
    fn name(&self) -> &'static str {
        "draft"
    }

    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    fn add(&mut self, request: &Request) {
        let state = SamplerState::of_drafts(request);
        let (computed, table) = (Vec::new(), Vec::new());
        let sequence = Sequence { computed, table, state, n_seen: 0, drafting: None };
        self.sequences.insert(request.id, sequence);
    }

    fn look(&mut self, _row: &Row<'_>, most: usize) -> (usize, usize) {
        (most, 0)
    }

    fn propose(
        &mut self,
        rows: &mut [Row<'_>],
        mut odds: Option<&mut Odds>,
    ) -> Result<(), ProposerError> {
        let ids: Vec<RequestId> = rows.iter().map(|row| row.id).collect();
        let mut n_outputs: Vec<usize> =
            rows.iter().map(|row| row.tokens.len() - row.n_prompt).collect();
        let mut shares = self.catch_up(rows, &ids);
        while !shares.is_empty() {
            let is_greedy = self.is_greedy(&shares, &ids, odds.as_deref());
            self.forward(&shares, &ids, is_greedy);
            let drafts = self.draw(&shares, &ids, &n_outputs, odds.as_deref_mut());
            let mut next = Vec::new();
            for (share, draft) in shares.into_iter().zip(drafts) {
                let row = &mut rows[share.row];
                row.drafts.extend([draft]);
                n_outputs[share.row] += 1;
                if row.drafts.len() < row.n_drafts {
                    let first_position = share.first_position + share.tokens.len();
                    next.push(Share { row: share.row, tokens: vec![draft], first_position });
                }
            }
            shares = next;
        }
        Ok(())
    }

    fn is_catching_up(&self, row: &Row<'_>) -> bool {
        // Normally it lacks the token that was sampled last and the draft before it.
        let n_computed = self.sequences.get(&row.id).map_or(0, |known| known.computed.len());
        row.tokens.len() > n_computed + 2
    }

    fn observe(&mut self, _seen: &Seen<'_>) {}

    fn finished(&mut self, id: RequestId) {
        if let Some(sequence) = self.sequences.remove(&id) {
            self.free.extend(sequence.table);
        }
    }
}

impl<D: Ops> std::fmt::Debug for DraftModel<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DraftModel")
            .field("n_free_blocks", &self.free.len())
            .field("n_sequences", &self.sequences.len())
            .finish_non_exhaustive()
    }
}
