//! The states of a request, as types: a transition consumes the old state and makes the new one.

use crate::{
    BlockPool, BlockTable, Namespace, PrefixCache, PrefixHandle, ScheduledSequence,
    SchedulerOutput, SequenceUpdate,
};
use pelton_base::{FinishReason, Request, RequestId, TokenId, Usage};

/// What a request keeps through all its states.
#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) id: RequestId,
    /// Rank by arrival; smaller is older.
    pub(crate) arrival: u64,
    /// Whose it is, as an index into the configured tenants.
    pub(crate) tenant: usize,
    /// Prompt, then output.
    pub(crate) tokens: Vec<TokenId>,
    n_prompt: usize,
    max_tokens: usize,
    stop_tokens: Vec<TokenId>,
    /// Prompt tokens found in the cache at the first admission; `None` before it.
    n_cached: Option<usize>,
}

impl Sequence {
    /// Most tokens that it can come to hold.
    pub(crate) fn most_tokens(&self, context: usize) -> usize {
        self.n_prompt.saturating_add(self.max_tokens).min(context)
    }

    fn n_generated(&self) -> usize {
        self.tokens.len() - self.n_prompt
    }

    fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.n_prompt,
            completion_tokens: self.n_generated(),
            cached_tokens: self.n_cached.unwrap_or(0),
        }
    }

    /// Appends sampled tokens up to the one that ends the sequence, if one does.
    fn append(
        &mut self,
        sampled: impl Iterator<Item = TokenId>,
        context: usize,
    ) -> Option<FinishReason> {
        for token in sampled {
            self.tokens.push(token);
            if self.stop_tokens.contains(&token) {
                return Some(FinishReason::Stop);
            }
            if self.n_generated() >= self.max_tokens || self.tokens.len() >= context {
                return Some(FinishReason::Length);
            }
        }
        None
    }
}

/// Never ran; holds no blocks.
#[derive(Debug)]
pub(crate) struct Waiting(pub(crate) Sequence);

impl Waiting {
    pub(crate) fn new(request: Request, arrival: u64) -> Self {
        Self(Sequence {
            id: request.id,
            arrival,
            tenant: request.service.tenant.0 as usize,
            n_prompt: request.prompt.len(),
            tokens: request.prompt,
            max_tokens: request.max_tokens,
            stop_tokens: request.stop_tokens,
            n_cached: None,
        })
    }
}

/// Ran, and gave its blocks up; its tokens will be computed anew.
#[derive(Debug)]
pub(crate) struct Preempted(pub(crate) Sequence);

/// What a plan asked of a sequence and `update` has not answered yet.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    n_tokens: usize,
    samples: bool,
}

/// Holds blocks for its tokens and is computed.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) sequence: Sequence,
    pub(crate) table: BlockTable,
    prefix: PrefixHandle,
    /// Tokens whose KV exists.
    pub(crate) n_computed: usize,
    /// Tokens it came with; while fewer are computed it is still catching up.
    n_at_admission: usize,
    in_flight: Option<InFlight>,
}

/// Blocks with which a sequence starts to run.
#[derive(Debug)]
pub(crate) struct Admission {
    pub(crate) table: BlockTable,
    pub(crate) prefix: PrefixHandle,
    /// Leading tokens whose KV came from the cache.
    pub(crate) n_cached: usize,
}

impl Running {
    pub(crate) fn new(mut sequence: Sequence, admission: Admission, context: usize) -> Self {
        let n_cached = admission.n_cached;
        let n_more = sequence.most_tokens(context) - sequence.tokens.len();
        sequence.tokens.reserve_exact(n_more);
        sequence.n_cached.get_or_insert(n_cached.min(sequence.n_prompt));
        Self {
            n_at_admission: sequence.tokens.len(),
            n_computed: n_cached,
            sequence,
            table: admission.table,
            prefix: admission.prefix,
            in_flight: None,
        }
    }

    /// Adds its next `n_tokens` tokens to a plan. The table must already hold blocks for them.
    pub(crate) fn plan(&mut self, n_tokens: usize, output: &mut SchedulerOutput) {
        assert!(n_tokens > 0, "an empty share of a step");
        let end = self.n_computed + n_tokens;
        let samples = end == self.sequence.tokens.len();
        self.in_flight = Some(InFlight { n_tokens, samples });
        let SchedulerOutput { sequences, tokens, blocks, load, .. } = output;
        let (first_token, first_block) = (tokens.len(), blocks.len());
        tokens.extend_from_slice(&self.sequence.tokens[self.n_computed..end]);
        blocks.extend_from_slice(self.table.blocks());
        load.add_rows(self.n_computed, n_tokens, usize::from(samples));
        sequences.push(ScheduledSequence {
            id: self.sequence.id,
            tokens: first_token..tokens.len(),
            first_position: self.n_computed,
            blocks: first_block..blocks.len(),
            samples,
            n_drafts: 0,
            n_generated: self.sequence.n_generated(),
        });
    }

    /// Takes in what came of its share of the step, and adds what is new to `new_tokens`; `None`
    /// when it had no share or no news.
    pub(crate) fn absorb(
        &mut self,
        sampled: impl ExactSizeIterator<Item = TokenId>,
        failed: bool,
        context: usize,
        new_tokens: &mut Vec<TokenId>,
    ) -> Option<SequenceUpdate> {
        let in_flight = self.in_flight.take()?;
        let n_before = self.sequence.tokens.len();
        let finish = match (in_flight.samples, sampled.len()) {
            _ if failed => Some(FinishReason::Error),
            (true, 1..) => {
                self.n_computed += in_flight.n_tokens;
                self.sequence.append(sampled, context)
            }
            (false, 0) => {
                self.n_computed += in_flight.n_tokens;
                return None;
            }
            _ => Some(FinishReason::Error),
        };
        let first = new_tokens.len();
        new_tokens.extend_from_slice(&self.sequence.tokens[n_before..]);
        Some(SequenceUpdate {
            id: self.sequence.id,
            new_tokens: first..new_tokens.len(),
            finish,
            usage: self.sequence.usage(),
        })
    }

    /// Gives its blocks up; it will run again from the start.
    pub(crate) fn preempt(self, parts: Release<'_>) -> Preempted {
        Preempted(self.release(parts))
    }

    /// Ends it, whatever the reason. Completed requests leave nothing behind in the scheduler.
    pub(crate) fn complete(self, parts: Release<'_>) {
        self.release(parts);
    }

    /// Tokens without KV.
    pub(crate) fn n_remaining(&self) -> usize {
        self.sequence.tokens.len() - self.n_computed
    }

    /// Whether it still computes the tokens it was admitted with.
    pub(crate) fn is_catching_up(&self) -> bool {
        self.n_computed < self.n_at_admission
    }

    pub(crate) fn is_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    fn release(self, parts: Release<'_>) -> Sequence {
        let n_full = self.n_computed / parts.block_size;
        let kept = parts
            .cache
            .insert(
                Namespace::default(),
                &self.sequence.tokens[..n_full * parts.block_size],
                &self.table.blocks()[..n_full],
            )
            .kept;
        for block in kept {
            parts.pool.retain(block);
        }
        parts.cache.unlock(self.prefix);
        self.table.release(parts.pool);
        self.sequence
    }
}

/// The parts of the scheduler that a departing sequence gives its blocks back to.
pub(crate) struct Release<'a> {
    pub(crate) pool: &'a mut BlockPool,
    pub(crate) cache: &'a mut dyn PrefixCache,
    pub(crate) block_size: usize,
}
