//! The executor over a real model: one forward pass per step, then one draw per sampling row.
//!
//! ```text
//! rows asked for   [ logits of A | logits of D | token of B | token of C ]
//!                    sampled from, told of       greedy, and nobody wants to know more
//! ```
//!
//! A greedy request that nothing but the largest logit matters to gets no logits: the head tells the
//! token. Its drafts are verified likewise. Tokens are the same both ways.

mod drafts;

use crate::spec::{Odds, Verification};
use crate::{Execution, Executor, ExecutorError, KvCapacity};
use pelton_base::{Request, RequestId, TokenId};
use pelton_model::{
    BlockTables, Decoder, ForwardInput, ForwardSequence, GreedyRows, Ops, SwapStore,
};
use pelton_sampling::verify::Verifier;
use pelton_sampling::{Likely, Sampler, SamplerState};
use pelton_sched::{Rows, ScheduledSequence, SchedulerOutput};
use std::collections::HashMap;
use std::time::Instant;

use drafts::Answered;

/// How much memory the KV cache takes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KvMemory {
    /// This many blocks.
    Blocks(u32),
    /// As many blocks as fit into this many bytes, over all layers, keys and values.
    Bytes(usize),
}

/// The KV memory of one [`ModelExecutor`], and what it may sample.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ModelExecutorConfig {
    /// Tokens per block; at least one.
    pub block_size: usize,
    /// How much of it.
    pub memory: KvMemory,
    /// Blocks of the swap store, in memory of the host; zero for none.
    pub host_blocks: u32,
    /// Tokens below this are sampled; the model's rows beyond it are padding that no tokenizer can
    /// turn into text. They then have no probability, in reports neither. `None`, zero or more than
    /// the model has: all are sampled.
    pub sampled_vocab: Option<usize>,
    /// Layers after which drafts that come blank are made; `None` where none come.
    pub exit_layers: Option<usize>,
    /// By what drafts are judged.
    pub verification: Verification,
}

/// Runs plans on a [`Decoder`].
pub struct ModelExecutor<D: Ops> {
    decoder: Decoder<D>,
    kv: D::Kv,
    store: SwapStore,
    capacity: KvCapacity,
    /// Leading logits of a row that are sampled.
    n_sampled: usize,
    sampler: Sampler,
    states: HashMap<RequestId, SamplerState>,
    exit_layers: Option<usize>,
    verification: Verification,
    verifier: Verifier,
    odds: Odds,
    /// The likeliest tokens that are told of each row that samples.
    n_candidates: usize,
    scratch: Scratch,
}

/// What a step needs, kept from step to step.
#[derive(Default)]
struct Scratch {
    /// Those of the plan, with drafts in place of blanks.
    tokens: Vec<TokenId>,
    /// The block tables of all sequences, one after the other.
    tables: Vec<u32>,
    /// Empty between steps, when there is nothing that they could borrow.
    sequences: Vec<ForwardSequence<'static>>,
    logits_rows: Vec<usize>,
    /// `[logits_rows, vocab]`, but of greedy rows.
    logits: Vec<f32>,
    /// Of greedy rows.
    likeliest: Vec<Option<TokenId>>,
    /// Rows of one share whose drafts were right.
    path: Vec<usize>,
    likely: Likely,
}

impl<D: Ops> ModelExecutor<D> {
    /// Takes a model and allocates its KV cache and the swap store beside it, once and for all.
    ///
    /// # Errors
    ///
    /// When not even one block fits, or the system refuses the memory.
    pub fn new(decoder: Decoder<D>, config: ModelExecutorConfig) -> Result<Self, ExecutorError> {
        let block_size = config.block_size.max(1);
        let n_layers = decoder.spec().layers.len();
        let block_bytes = decoder.kv_bytes_per_block(block_size);
        // Slots are counted in 32 bits, and there is no use for more than that.
        let most = u32::MAX as usize / block_size;
        let (n_blocks, n_bytes) = match config.memory {
            KvMemory::Blocks(n) => (n as usize, (n as usize).saturating_mul(block_bytes)),
            KvMemory::Bytes(n_bytes) => (n_bytes / block_bytes.max(1), n_bytes),
        };
        let n_blocks = n_blocks.min(most);
        if let Some(n) = config.exit_layers.filter(|n| !(1..=n_layers).contains(n)) {
            return Err(ExecutorError::NoSuchExit { asked: n, n_layers });
        }
        // A prompt token and an output token are the least that a request can be.
        if n_blocks * block_size < 2 {
            return Err(ExecutorError::KvTooSmall { n_bytes, block_bytes });
        }
        let n_host_blocks = config.host_blocks;
        let refused =
            |n_blocks| move |source| ExecutorError::KvRefused { n_blocks, block_bytes, source };
        let kv = decoder.try_new_kv(n_blocks, block_size).map_err(refused(n_blocks))?;
        let footprint = decoder.kv_footprint(n_blocks, block_size, n_host_blocks as usize);
        let store = SwapStore::try_new(&footprint).map_err(refused(n_host_blocks as usize))?;
        let n_blocks = u32::try_from(n_blocks).expect("invariant: bounded by 32-bit slots");
        let vocab_size = decoder.spec().vocab_size;
        let n_sampled = config.sampled_vocab.filter(|n| (1..vocab_size).contains(n));
        let n_sampled = n_sampled.unwrap_or(vocab_size);
        Ok(Self {
            decoder,
            kv,
            store,
            capacity: KvCapacity { n_blocks, n_host_blocks, block_size },
            n_sampled,
            sampler: Sampler::new(),
            states: HashMap::new(),
            exit_layers: config.exit_layers,
            verification: config.verification,
            verifier: Verifier::new(),
            odds: Odds::default(),
            n_candidates: 0,
            scratch: Scratch::default(),
        })
    }

    /// The model.
    pub fn decoder(&self) -> &Decoder<D> {
        &self.decoder
    }

    /// The model, for forward passes of the caller's own on a KV cache of the caller's own.
    pub fn decoder_mut(&mut self) -> &mut Decoder<D> {
        &mut self.decoder
    }

    /// Moves blocks as the plan says: whoever goes out makes room for whoever comes in, and a copy may
    /// be of one that just came.
    fn move_blocks(&mut self, plan: &SchedulerOutput) {
        let Self { decoder, kv, store, .. } = self;
        for &(block, host_block) in &plan.swap_out {
            decoder.swap_kv_out(kv, block.0, store, host_block.0);
        }
        for &(host_block, block) in &plan.swap_in {
            decoder.swap_kv_in(kv, store, host_block.0, block.0);
        }
        for &(from, to) in &plan.copies {
            decoder.copy_kv_block(kv, from.0, to.0);
        }
    }

    /// Whether the likeliest tokens are all that this share needs of its rows.
    fn is_greedy(&self, share: &ScheduledSequence) -> bool {
        self.n_candidates == 0 && self.states.get(&share.id).expect(ADDED).takes_largest()
    }

    /// One pass over the model: `scratch.logits` gets the rows of each share that samples, in order, but
    /// for greedy shares; `scratch.likeliest` gets theirs.
    fn forward(&mut self, plan: &SchedulerOutput) {
        let mut scratch = std::mem::take(&mut self.scratch);
        let Scratch { tokens, tables, sequences: kept, logits_rows, logits, likeliest, .. } =
            &mut scratch;
        // Of the last known token, and of each draft after it.
        let rows =
            |share: &ScheduledSequence| share.tokens.end - 1 - share.n_drafts..share.tokens.end;
        let samples = || plan.sequences.iter().filter(|share| share.samples);
        logits_rows.clear();
        logits_rows.extend(samples().filter(|share| !self.is_greedy(share)).flat_map(rows));
        let n_logits = logits_rows.len();
        logits_rows.extend(samples().filter(|share| self.is_greedy(share)).flat_map(rows));
        let mut sequences = emptied(std::mem::take(kept));
        sequences.extend(plan.sequences.iter().map(|share| ForwardSequence {
            rows: share.tokens.clone(),
            first_position: share.first_position,
            block_tables: BlockTables::one(&tables[share.blocks.clone()]),
            tree: plan.rows_of(share).parents,
        }));
        let input = ForwardInput { tokens, sequences: &sequences, logits_rows };
        let n_rows = logits_rows.len() - n_logits;
        // Any row may be greedy in the next step.
        likeliest.clear();
        likeliest.reserve(logits_rows.len());
        let greedy = GreedyRows { n_rows, n_sampled: self.n_sampled, tokens: likeliest };
        let n_layers = self.decoder.spec().layers.len();
        self.decoder.forward_greedy(n_layers, &mut self.kv, &input, logits, greedy);
        *kept = emptied(sequences);
        self.scratch = scratch;
    }
}

const ADDED: &str = "invariant: requests are added before plans";

/// The memory of a vector for elements that borrow something else.
fn emptied<'a>(mut sequences: Vec<ForwardSequence<'_>>) -> Vec<ForwardSequence<'a>> {
    sequences.clear();
    // Collecting into elements of the same layout keeps the memory.
    sequences.into_iter().map(|_| unreachable!("invariant: it is empty")).collect()
}

impl<D> Executor for ModelExecutor<D>
where
    D: Ops + 'static,
    Decoder<D>: Send,
{
    fn kv_capacity(&self) -> KvCapacity {
        self.capacity
    }

    fn vocab_size(&self) -> usize {
        self.decoder.spec().vocab_size
    }

    fn max_context_tokens(&self) -> usize {
        self.decoder.spec().max_context
    }

    fn report_candidates(&mut self, n: usize) {
        self.n_candidates = n.min(self.n_sampled);
    }

    fn odds(&mut self) -> Option<&mut Odds> {
        (self.verification != Verification::Match).then_some(&mut self.odds)
    }

    fn add(&mut self, request: &Request) {
        let mut state = SamplerState::of(request);
        let context = self.decoder.spec().max_context;
        state.reserve(request.ask.max_tokens.min(context).min(self.n_sampled));
        self.states.insert(request.id, state);
    }

    fn execute(
        &mut self,
        plan: &SchedulerOutput,
        execution: &mut Execution,
    ) -> Result<(), ExecutorError> {
        self.move_blocks(plan);
        let Scratch { tokens, tables, .. } = &mut self.scratch;
        tokens.clear();
        tokens.extend_from_slice(&plan.tokens);
        tables.clear();
        tables.reserve(plan.blocks.capacity());
        tables.extend(plan.blocks.iter().map(|block| block.0));
        if let Some(n_layers) = self.exit_layers {
            let started = Instant::now();
            self.draft_early(plan, n_layers);
            execution.drafting = started.elapsed();
        }
        self.forward(plan);
        let vocab_size = self.decoder.spec().vocab_size;
        let tokens = std::mem::take(&mut self.scratch.tokens);
        let mut logits = std::mem::take(&mut self.scratch.logits);
        let likeliest = std::mem::take(&mut self.scratch.likeliest);
        let (mut rest, mut greedy) = (&mut logits[..], &likeliest[..]);
        execution.n_candidates = self.n_candidates;
        for share in plan.sequences.iter().filter(|share| share.samples) {
            let n_rows = share.n_drafts + 1;
            let rows = if self.is_greedy(share) {
                let (rows, others) = greedy.split_at(n_rows);
                greedy = others;
                Answered::Tokens(rows)
            } else {
                let (rows, others) = rest.split_at_mut(n_rows * vocab_size);
                rest = others;
                if self.n_candidates > 0 {
                    for row in rows.chunks_exact(vocab_size) {
                        let row = &row[..self.n_sampled];
                        self.scratch.likely.tell(row, self.n_candidates, &mut execution.candidates);
                    }
                }
                Answered::Logits(rows)
            };
            let n_before = (execution.step.sampled.len(), execution.logprobs.len());
            let planned = plan.rows_of(share);
            let planned = Rows { tokens: &tokens[share.tokens.clone()], ..planned };
            if self.verify(share, planned, rows, execution) {
                self.straighten(share);
            } else {
                execution.step.failed.push(share.id);
                execution.step.sampled.truncate(n_before.0);
                execution.logprobs.truncate(n_before.1);
            }
        }
        (self.scratch.tokens, self.scratch.logits) = (tokens, logits);
        self.scratch.likeliest = likeliest;
        Ok(())
    }

    fn finished(&mut self, id: RequestId) {
        self.odds.finished(id);
        self.states.remove(&id);
    }
}

impl<D: Ops> std::fmt::Debug for ModelExecutor<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelExecutor")
            .field("capacity", &self.capacity)
            .field("n_requests", &self.states.len())
            .finish_non_exhaustive()
    }
}
