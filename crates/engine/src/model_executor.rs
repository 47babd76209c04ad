//! The executor over a real model: one forward pass per step, then one draw per sampling row.
//!
//! ```text
//! rows asked for   [ logits of A | logits of D | token of B | token of C | prompt of E ]
//!                    sampled from, reported       greedy, nothing more      scored, see `prompts`
//! ```
//!
//! A greedy request for which only the largest logit matters gets no logits: the head returns the
//! token. Its drafts are verified likewise. Tokens are the same both ways.

mod drafts;
mod masks;
mod prompts;

use crate::spec::{Odds, Verification};
use crate::{
    Drafting, Execution, Executor, ExecutorError, Extras, Fault, KvCapacity, Panicked, Sources,
    guard,
};
use pelton_base::{Request, RequestId, TokenId};
use pelton_model::{
    BlockTables, CHUNK_TOKENS, Decoder, ForwardInput, ForwardSequence, GreedyRows, Lane, Ops,
    ScoredRows, StateCopy, SwapStore,
};
use pelton_sampling::verify::Verifier;
use pelton_sampling::{Likely, Sampler, SamplerState};
use pelton_sched::{Direction, Rows, ScheduledSequence, SchedulerOutput, StateConfig, TransferId};
use std::collections::HashMap;
use std::time::Instant;

use drafts::Answered;
use masks::MaskThread;
use prompts::Prompts;

/// How much memory the KV cache takes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KvMemory {
    /// This many blocks.
    Blocks(u32),
    /// As many blocks as fit into this many bytes, over all layers, keys and values.
    Bytes(usize),
}

/// The KV memory of one [`ModelExecutor`], and the tokens that it may sample.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ModelExecutorConfig {
    /// Tokens per block; at least one.
    pub block_size: usize,
    /// Size of the KV cache.
    pub memory: KvMemory,
    /// Blocks of the swap store, in memory of the host; zero for none.
    pub host_blocks: u32,
    /// Tokens below this are sampled; the model's rows beyond it are padding that no tokenizer can
    /// turn into text. They then have no probability, in reports neither. `None`, zero or more than
    /// the model has: all are sampled.
    pub sampled_vocab: Option<usize>,
    /// Layers after which drafts that come blank are made; `None` where none come.
    pub exit_layers: Option<usize>,
    /// The way in which drafts are judged.
    pub verification: Verification,
    /// Room for the states of recurrent layers; of no use in models without such layers.
    pub states: StateRoom,
}

/// Room for the states of recurrent layers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct StateRoom {
    /// Most sequences that run at once; at least one is taken.
    pub n_lanes: u32,
    /// Most states that the prefix cache and the swap store keep together.
    pub n_snapshots: u32,
    /// Tokens of a prompt between two states that are kept for the prefix cache, rounded up to whole
    /// chunks; zero to keep states only at the end of a prompt and where it parts from another.
    pub every_tokens: usize,
}

impl Default for StateRoom {
    /// Eight of each.
    fn default() -> Self {
        Self { n_lanes: 8, n_snapshots: 8, every_tokens: 0 }
    }
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
    /// Likeliest tokens to report of each row that samples.
    n_candidates: usize,
    scratch: Scratch,
    /// Transfers that are over and not reported yet.
    transferred: Vec<TransferId>,
    /// Failures of single requests in this step.
    faults: Vec<(RequestId, Fault)>,
    masks: MaskThread,
    /// Prompts that are scored.
    prompts: Prompts,
}

/// Memory of a step, kept from step to step.
#[derive(Default)]
struct Scratch {
    /// The tokens of the plan, with drafts in place of blanks.
    tokens: Vec<TokenId>,
    /// The block tables of all sequences, one after the other.
    tables: Vec<u32>,
    /// Borders at which states are kept and their snapshots, of all sequences, one after the other.
    saves: Vec<(usize, u32)>,
    /// Empty between steps, when there is nothing that they could borrow.
    sequences: Vec<ForwardSequence<'static>>,
    /// Of each share, whether it is sampled by its likeliest tokens alone.
    is_greedy: Vec<bool>,
    /// Of each share, the leading drafts that its rule forces: their rows need no logits.
    certain: Vec<usize>,
    forced: Vec<TokenId>,
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
    pub fn new(
        mut decoder: Decoder<D>,
        config: ModelExecutorConfig,
    ) -> Result<Self, ExecutorError> {
        decoder.group_windows();
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
        let footprint = decoder.kv_footprint(n_blocks, block_size, 0);
        if footprint.most_tokens() < 2 {
            return Err(ExecutorError::KvTooSmall { n_bytes, block_bytes });
        }
        let n_host_blocks = config.host_blocks;
        let refused =
            |n_blocks| move |source| ExecutorError::KvRefused { n_blocks, block_bytes, source };
        let states = state_config(&decoder, &config)?;
        let (n_lanes, n_snapshots) = states.map_or((0, 0), |s| (s.n_lanes, s.n_snapshots));
        let kv = decoder
            .try_new_kv_for(n_blocks, block_size, n_lanes as usize, n_snapshots as usize)
            .map_err(refused(n_blocks))?;
        let footprint = footprint.with_host_blocks(n_host_blocks as usize);
        let store = SwapStore::try_new(&footprint).map_err(refused(n_host_blocks as usize))?;
        let n_blocks = u32::try_from(n_blocks).expect("invariant: bounded by 32-bit slots");
        let vocab_size = decoder.spec().vocab_size;
        let n_sampled = config.sampled_vocab.filter(|n| (1..vocab_size).contains(n));
        let n_sampled = n_sampled.unwrap_or(vocab_size);
        Ok(Self {
            decoder,
            kv,
            store,
            capacity: KvCapacity {
                n_blocks,
                n_host_blocks,
                block_size,
                states,
                windows: footprint.windows,
            },
            n_sampled,
            sampler: Sampler::new(),
            states: HashMap::new(),
            exit_layers: config.exit_layers,
            verification: config.verification,
            verifier: Verifier::new(),
            odds: Odds::default(),
            n_candidates: 0,
            scratch: Scratch::default(),
            transferred: Vec::new(),
            faults: Vec::new(),
            masks: MaskThread::default(),
            prompts: Prompts::default(),
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

    /// Carries out the plan's transfers and copies. The CPU copies at once, so the same step
    /// reports the transfers; copies come last and may be of blocks that just came in.
    fn move_blocks(&mut self, plan: &SchedulerOutput) {
        let Self { decoder, kv, store, transferred, .. } = self;
        for transfer in &plan.transfers {
            for &(block, host) in plan.moved_by(transfer) {
                match transfer.direction {
                    Direction::Out => decoder.swap_kv_out(kv, block.0, store, host.0),
                    Direction::In => decoder.swap_kv_in(kv, store, host.0, block.0),
                }
            }
            transferred.push(transfer.id);
        }
        for &(from, to) in &plan.copies {
            decoder.copy_kv_block(kv, from.0, to.0);
        }
        for &copy in &plan.state_copies {
            decoder.copy_state(kv, of_device(copy));
        }
    }

    /// Notes of each share whether the likeliest tokens are all that it needs of its rows, and how
    /// many of its rows it needs nothing of.
    fn sort_shares(&mut self, plan: &SchedulerOutput) {
        let Self { states, scratch, faults, n_candidates, .. } = self;
        let Scratch { is_greedy, certain, forced, tokens, .. } = scratch;
        is_greedy.clear();
        certain.clear();
        for share in &plan.sequences {
            let state = states.get_mut(&share.id).expect(ADDED);
            let is_asked = share.samples && *n_candidates == 0;
            let is_chain = plan.rows_of(share).parents.is_none();
            let drafts = &tokens[share.tokens.end - share.n_drafts..share.tokens.end];
            let sort = || {
                let n_certain =
                    if is_asked && is_chain { state.n_certain(drafts, forced) } else { 0 };
                (is_asked && state.takes_largest(), n_certain)
            };
            let sorted = guard(SAMPLING, sort).unwrap_or_else(|panicked| {
                faults.push((share.id, panicked.into()));
                (true, 0)
            });
            is_greedy.push(sorted.0);
            certain.push(sorted.1);
        }
    }

    /// Lets the masks of all rules be computed while the model computes.
    fn begin_masks(&mut self, plan: &SchedulerOutput) {
        let Self { states, scratch, faults, masks, n_sampled, .. } = self;
        for (share, &n_certain) in plan.sequences.iter().zip(&scratch.certain) {
            let has_failed = || faults.iter().any(|(id, _)| *id == share.id);
            let state = states.get_mut(&share.id).expect(ADDED);
            if !share.samples || state.rule().is_none() || has_failed() {
                continue;
            }
            let rows = plan.rows_of(share);
            let n_known = rows.tokens.len() - share.n_drafts;
            let drafts = &scratch.tokens[share.tokens.end - share.n_drafts..share.tokens.end];
            let drafts = drafts.iter().enumerate().map(|(idx, &token)| {
                let row = n_known + idx;
                let parent = rows.parents.map_or(row - 1, |parents| parents[row] as usize);
                (parent.checked_sub(n_known), token)
            });
            if let Some(rule) = state.take_rule() {
                masks.add(share.id, rule, n_certain, drafts);
            }
        }
        masks.launch(*n_sampled);
    }

    /// Waits for the masks, and gives the rules back to their requests.
    fn end_masks(&mut self) {
        let Self { states, faults, masks, .. } = self;
        masks.collect(|id, outcome| match outcome {
            Ok(rule) => states.get_mut(&id).expect(ADDED).set_rule(Some(rule)),
            Err(panicked) => faults.push((id, panicked.into())),
        });
    }

    /// One pass over the model: `scratch.logits` gets the rows of each share that samples, in
    /// order, but for greedy shares; `scratch.likeliest` gets theirs.
    fn forward(&mut self, plan: &SchedulerOutput) {
        let mut scratch = std::mem::take(&mut self.scratch);
        let Scratch {
            tokens,
            tables,
            saves,
            sequences: kept,
            is_greedy,
            certain,
            logits_rows,
            logits,
            likeliest,
            ..
        } = &mut scratch;
        let n_groups = self.decoder.spec().n_kv_groups();
        let shares = || plan.sequences.iter().zip(&*is_greedy).zip(&*certain);
        // Rows of the last known token and of each draft after it, but for certain ones.
        let rows_of = |wants_greedy: bool| {
            let these = shares().filter(move |((share, is_greedy), _)| {
                share.samples && **is_greedy == wants_greedy
            });
            these.flat_map(|((share, _), n_certain)| {
                share.tokens.end - 1 - share.n_drafts + n_certain..share.tokens.end
            })
        };
        logits_rows.clear();
        logits_rows.extend(rows_of(false));
        let n_logits = logits_rows.len();
        logits_rows.extend(rows_of(true));
        let n_rows = logits_rows.len() - n_logits;
        let n_scored = self.prompts.ask(plan, logits_rows);
        let mut sequences = emptied(std::mem::take(kept));
        sequences.extend(plan.sequences.iter().map(|share| ForwardSequence {
            rows: share.tokens.clone(),
            n_source: share.n_source,
            first_position: share.first_position,
            block_tables: BlockTables::new(&tables[share.blocks.clone()], n_groups),
            lane: share.lane.as_ref().map(|lane| Lane {
                idx: lane.lane.0 as usize,
                border: lane.border,
                saves: &saves[lane.saves.clone()],
            }),
            tree: plan.rows_of(share).parents,
        }));
        let input = ForwardInput { tokens, sequences: &sequences, logits_rows };
        // Any row may be greedy in the next step.
        likeliest.clear();
        likeliest.reserve(logits_rows.len());
        let Self { decoder, kv, prompts, n_sampled, .. } = self;
        let greedy = GreedyRows { n_rows, n_sampled: *n_sampled, tokens: likeliest };
        let vocab_size = decoder.spec().vocab_size;
        let scored = ScoredRows {
            n_rows: n_scored,
            piece_rows: (PIECE_BYTES / (size_of::<f32>() * vocab_size)).max(1),
            each: &mut |nth, logits| prompts.score(nth, &logits[..*n_sampled]),
        };
        decoder.forward_scored(kv, &input, logits, greedy, scored);
        *kept = emptied(sequences);
        self.scratch = scratch;
    }

    /// Samples from the rows of each share that samples, and reports the tokens.
    fn answer(&mut self, plan: &SchedulerOutput, execution: &mut Execution) {
        let vocab_size = self.decoder.spec().vocab_size;
        let tokens = std::mem::take(&mut self.scratch.tokens);
        let mut logits = std::mem::take(&mut self.scratch.logits);
        let likeliest = std::mem::take(&mut self.scratch.likeliest);
        let (mut rest, mut greedy) = (&mut logits[..], &likeliest[..]);
        execution.n_candidates = self.n_candidates;
        let is_greedy = std::mem::take(&mut self.scratch.is_greedy);
        let certain = std::mem::take(&mut self.scratch.certain);
        let shares = plan.sequences.iter().zip(&is_greedy).zip(&certain);
        for ((share, is_greedy), &n_certain) in shares.filter(|((share, _), _)| share.samples) {
            let n_rows = share.n_drafts + 1 - n_certain;
            let rows = if *is_greedy {
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
                Answered::Logits { rows, n_certain }
            };
            let planned = plan.rows_of(share);
            let planned = Rows { tokens: &tokens[share.tokens.clone()], ..planned };
            self.answer_share(share, planned, rows, execution);
        }
        (self.scratch.tokens, self.scratch.logits) = (tokens, logits);
        (self.scratch.likeliest, self.scratch.is_greedy) = (likeliest, is_greedy);
        self.scratch.certain = certain;
        self.prompts.hand_over(plan, &mut execution.prompts);
        execution.faults.append(&mut self.faults);
    }

    /// Samples for one share, which fails alone when there is nothing to sample from or when its
    /// own code panics.
    fn answer_share(
        &mut self,
        share: &ScheduledSequence,
        planned: Rows<'_>,
        rows: Answered<'_>,
        execution: &mut Execution,
    ) {
        let n_before = (execution.step.sampled.len(), execution.logprobs.len());
        let has_failed = self.faults.iter().any(|(id, _)| *id == share.id);
        // A panic leaves the request's own state half changed, which is dropped when the request
        // ends; scratch, which is filled anew for each row; and `execution`, which is cut back.
        let verify = || !has_failed && self.verify(share, planned, rows, execution);
        let is_verified = guard(SAMPLING, verify).unwrap_or_else(|panicked| {
            self.faults.push((share.id, panicked.into()));
            false
        });
        if is_verified {
            self.straighten(share);
        } else {
            execution.step.failed.push(share.id);
            execution.step.sampled.truncate(n_before.0);
            execution.logprobs.truncate(n_before.1);
        }
    }
}

/// The part of a request's work that is guarded here, for errors.
const SAMPLING: &str = "sampling (a rule or a logits processor of the request)";
const ADDED: &str = "invariant: requests are added before plans";
/// Most memory of logits that are scored a few rows at a time.
const PIECE_BYTES: usize = 32 << 20;

/// Lanes and snapshots of a model with recurrent layers.
///
/// # Errors
///
/// When such a model is asked for blocks that do not fit its chunks, or for drafts of its first layers.
fn state_config<D: Ops>(
    decoder: &Decoder<D>,
    config: &ModelExecutorConfig,
) -> Result<Option<StateConfig>, ExecutorError> {
    if !decoder.spec().is_recurrent() {
        return Ok(None);
    }
    let (block_size, chunk) = (config.block_size.max(1), CHUNK_TOKENS);
    if !chunk.is_multiple_of(block_size) {
        return Err(ExecutorError::BlockSize { block_size, chunk });
    }
    if config.exit_layers.is_some() {
        return Err(ExecutorError::ExitOfRecurrent);
    }
    let StateRoom { n_lanes, n_snapshots, every_tokens } = config.states;
    let every = every_tokens.next_multiple_of(chunk);
    // Models without attention have no blocks to compare with.
    let block_bytes = decoder.kv_bytes_per_block(block_size);
    let state_bytes = D::state_bytes(&decoder.state_shape()).snapshot;
    let n_blocks = if block_bytes > 0 { state_bytes.div_ceil(block_bytes) as u64 } else { 1 };
    Ok(Some(StateConfig { n_lanes: n_lanes.max(1), n_snapshots, chunk, every, n_blocks }))
}

/// A copy of the scheduler as the device carries it out.
fn of_device(copy: pelton_sched::StateCopy) -> StateCopy {
    use pelton_sched::StateCopy as Planned;
    match copy {
        Planned::Save { lane, snapshot } => StateCopy::Save { lane: lane.0, snapshot: snapshot.0 },
        Planned::Load { snapshot, lane } => StateCopy::Load { snapshot: snapshot.0, lane: lane.0 },
        Planned::Fork { from, to } => StateCopy::Fork { from: from.0, to: to.0 },
    }
}

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

    fn sources(&self) -> Option<Sources> {
        self.decoder.spec().encoder.as_ref().map(|encoder| Sources {
            max_source: encoder.max_source,
            max_own: encoder.max_own,
            first_tokens: encoder.first_tokens.clone(),
        })
    }

    fn drafting(&mut self) -> Option<&mut dyn Drafting> {
        Some(self)
    }

    fn add(&mut self, request: &Request, extras: Extras) -> Result<(), Panicked> {
        let n_most =
            request.ask.max_tokens.min(self.decoder.spec().max_context).min(self.n_sampled);
        // A panic drops the state that was being made and touches nothing else.
        let state = guard(SAMPLING, || {
            let mut state = SamplerState::of(request);
            state.set_logprobs_mode(extras.logprobs_mode);
            extras.processors.into_iter().for_each(|processor| state.push_processor(processor));
            state.reserve(n_most);
            state
        })?;
        self.states.insert(request.id, state);
        if let Some(n_top) = extras.prompt_logprobs {
            self.prompts.add(request, n_top);
        }
        Ok(())
    }

    fn launch(&mut self, plan: &SchedulerOutput) {
        self.move_blocks(plan);
        let Scratch { tokens, tables, saves, .. } = &mut self.scratch;
        tokens.clear();
        tokens.extend_from_slice(&plan.tokens);
        tables.clear();
        tables.reserve(plan.blocks.capacity());
        tables.extend(plan.blocks.iter().map(|block| block.0));
        saves.clear();
        saves.extend(plan.saves.iter().map(|&(border, snapshot)| (border, snapshot.0)));
    }

    fn collect(
        &mut self,
        plan: &SchedulerOutput,
        execution: &mut Execution,
    ) -> Result<(), ExecutorError> {
        execution.step.transferred.append(&mut self.transferred);
        if plan.is_empty() {
            return Ok(());
        }
        if let Some(n_layers) = self.exit_layers {
            let started = Instant::now();
            self.draft_early(plan, n_layers);
            execution.drafting = started.elapsed();
        }
        self.sort_shares(plan);
        self.begin_masks(plan);
        self.forward(plan);
        if self.masks.is_used() {
            let computed = Instant::now();
            self.end_masks();
            execution.masking = computed.elapsed();
        }
        self.answer(plan, execution);
        Ok(())
    }

    fn finished(&mut self, id: RequestId) {
        self.odds.finished(id);
        self.prompts.forget(id);
        self.states.remove(&id);
    }

    /// The decoder needs none: a pass reads nothing of an earlier one but weights and KV.
    fn reset(&mut self) {
        self.states.clear();
        self.odds = Odds::default();
        self.verifier = Verifier::new();
        self.scratch = Scratch::default();
        self.n_candidates = 0;
        self.transferred.clear();
        self.faults.clear();
        self.masks = MaskThread::default();
        self.prompts = Prompts::default();
    }
}

impl<D: Ops> Drafting for ModelExecutor<D> {
    fn report_candidates(&mut self, n: usize) {
        self.n_candidates = n.min(self.n_sampled);
    }

    fn odds(&mut self) -> Option<&mut Odds> {
        (self.verification != Verification::Match).then_some(&mut self.odds)
    }

    fn fills_blanks(&self) -> bool {
        self.exit_layers.is_some()
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

#[cfg(test)]
mod tests;
