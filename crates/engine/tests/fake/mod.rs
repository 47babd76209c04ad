//! An executor without a model: the logits of a row are a hash of every token up to it.
//!
//! The hash of each position is kept in a fake KV memory and read back through the block table, so
//! wrong blocks, skipped tokens and stale memory change the answer. Blocks are swapped and copied as
//! plans say; transfers may take several steps. Sampling is the real one.

use pelton_base::{Request, RequestId, TokenId};
use pelton_engine::{
    Drafting, Execution, Executor, ExecutorError, Extras, KvCapacity, Panicked, Sources,
};
use pelton_sampling::{Philox, Sampler, SamplerState};
use pelton_sched::{BlockId, Direction, HostBlockId, ScheduledSequence, SchedulerOutput, Transfer};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

pub(crate) const VOCAB: usize = 40;
/// A prompt with this token makes every step that computes it fail.
pub(crate) const FAILS_STEP: TokenId = TokenId(37);
/// A prompt with this token makes its own share fail.
pub(crate) const FAILS_ALONE: TokenId = TokenId(38);
/// A prompt with this token makes the executor panic.
pub(crate) const PANICS: TokenId = TokenId(39);

/// The hash before the first token.
const BEGIN: u64 = 7;

fn absorb(hash: u64, token: TokenId) -> u64 {
    (hash ^ u64::from(token.0)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
}

/// The logits after tokens of this hash. No special token is ever sampled.
fn logits(hash: u64) -> Vec<f32> {
    let rng = Philox::new(hash, 0);
    (0..VOCAB as u64 - 3).map(|id| rng.uniform(id) as f32 * 4.0).collect()
}

/// The logits after these tokens.
pub(crate) fn logits_after(tokens: &[TokenId]) -> Vec<f32> {
    logits(tokens.iter().fold(BEGIN, |hash, &token| absorb(hash, token)))
}

/// The part of the executor that a test sees from outside.
#[derive(Clone, Default)]
pub(crate) struct Log {
    pub(crate) plans: Arc<Mutex<Vec<SchedulerOutput>>>,
    pub(crate) finished: Arc<Mutex<Vec<RequestId>>>,
}

impl Log {
    /// Number of plans that mention a request.
    pub(crate) fn n_plans_with(&self, id: RequestId) -> usize {
        let plans = self.plans.lock().unwrap();
        plans.iter().filter(|plan| plan.sequences.iter().any(|share| share.id == id)).count()
    }
}

pub(crate) struct FakeExecutor {
    capacity: KvCapacity,
    kv: Vec<u64>,
    host: Vec<u64>,
    moving: Vec<Moving>,
    /// Most steps that a transfer goes on after the one that starts it.
    transfer_steps: usize,
    /// Of the rows of the share at hand that are sampled, if it is sampled.
    hashes: Vec<u64>,
    states: HashMap<RequestId, SamplerState>,
    sampler: Sampler,
    log: Log,
    gate: Option<Gate>,
}

/// A transfer under way.
struct Moving {
    transfer: Transfer,
    moved: Vec<(BlockId, HostBlockId)>,
    /// Steps until it is over.
    n_left: usize,
}

/// Lets a test decide when a step goes on: each step announces itself and waits for leave.
struct Gate {
    arrived: Sender<()>,
    leave: Receiver<()>,
}

/// The test's side of a gate. Dropping it opens the gate for good.
pub(crate) struct GateKeeper {
    arrived: Receiver<()>,
    leave: Sender<()>,
}

impl GateKeeper {
    /// Waits until a step stands at the gate.
    pub(crate) fn wait(&self) {
        self.arrived.recv().expect("the engine runs");
    }

    /// Lets that step go on.
    pub(crate) fn open(&self) {
        self.leave.send(()).expect("the engine runs");
    }
}

impl FakeExecutor {
    pub(crate) fn new(n_blocks: u32, block_size: usize) -> Self {
        Self {
            capacity: KvCapacity {
                n_blocks,
                n_host_blocks: 0,
                block_size,
                states: None,
                windows: None,
            },
            kv: vec![0; n_blocks as usize * block_size],
            host: Vec::new(),
            moving: Vec::new(),
            transfer_steps: 0,
            hashes: Vec::new(),
            states: HashMap::new(),
            sampler: Sampler::new(),
            log: Log::default(),
            gate: None,
        }
    }

    /// The same with a swap store.
    pub(crate) fn with_host_blocks(mut self, n_host_blocks: u32) -> Self {
        self.capacity.n_host_blocks = n_host_blocks;
        self.host = vec![0; n_host_blocks as usize * self.capacity.block_size];
        self
    }

    pub(crate) fn log(&self) -> Log {
        self.log.clone()
    }

    pub(crate) fn gated(mut self) -> (Self, GateKeeper) {
        let ((arrived, keeper_arrived), (keeper_leave, leave)) = (channel(), channel());
        self.gate = Some(Gate { arrived, leave });
        (self, GateKeeper { arrived: keeper_arrived, leave: keeper_leave })
    }

    /// Lets each transfer go on for up to `n_steps` steps after the one that starts it.
    pub(crate) fn with_slow_transfers(mut self, n_steps: usize) -> Self {
        self.transfer_steps = n_steps;
        self
    }

    fn slots(&self, block: u32) -> Range<usize> {
        let n = self.capacity.block_size;
        block as usize * n..(block as usize + 1) * n
    }

    /// Copies blocks and starts transfers. Blocks that KV comes in to are spoilt until it is there.
    fn move_blocks(&mut self, plan: &SchedulerOutput) {
        for &(from, to) in &plan.copies {
            let (from, to) = (self.slots(from.0), self.slots(to.0));
            self.kv.copy_within(from, to.start);
        }
        for transfer in &plan.transfers {
            let moved = plan.moved_by(transfer).to_vec();
            if transfer.direction == Direction::In {
                for (block, _) in &moved {
                    let slots = self.slots(block.0);
                    self.kv[slots].fill(u64::MAX);
                }
            }
            let n_left = transfer.id.0 as usize % (self.transfer_steps + 1);
            self.moving.push(Moving { transfer: transfer.clone(), moved, n_left });
        }
    }

    /// Ends the transfers whose time has come; the oldest in any case when there is nothing else to do.
    fn end_transfers(&mut self, plan: &SchedulerOutput, execution: &mut Execution) {
        let mut moving = std::mem::take(&mut self.moving);
        if plan.is_empty() && moving.iter().all(|moving| moving.n_left > 0) {
            moving.iter_mut().take(1).for_each(|moving| moving.n_left = 0);
        }
        for Moving { transfer, moved, .. } in moving.extract_if(.., |moving| moving.n_left == 0) {
            for (block, host) in moved {
                let (kv, store) = (self.slots(block.0), self.slots(host.0));
                match transfer.direction {
                    Direction::Out => self.host[store].copy_from_slice(&self.kv[kv]),
                    Direction::In => self.kv[kv].copy_from_slice(&self.host[store]),
                }
            }
            execution.step.transferred.push(transfer.id);
        }
        moving.iter_mut().for_each(|moving| moving.n_left -= 1);
        self.moving = moving;
    }

    /// Leaves the hashes of the last known token and of each draft in `hashes`; drafts are a chain.
    fn compute(&mut self, plan: &SchedulerOutput, share: &ScheduledSequence) {
        let block_table = plan.block_table_of(share);
        let block_size = self.capacity.block_size;
        let slot = |position: usize| {
            block_table[position / block_size].0 as usize * block_size + position % block_size
        };
        let mut hash = match share.first_position {
            0 => BEGIN,
            position => self.kv[slot(position - 1)],
        };
        for (i, token) in plan.tokens_of(share).iter().enumerate() {
            hash = absorb(hash, *token);
            self.kv[slot(share.first_position + i)] = hash;
            if i == 0 || i + share.n_drafts < share.tokens.len() {
                self.hashes.clear();
            }
            self.hashes.push(hash);
        }
    }

    /// Samples along the drafts of a share while each is what is sampled.
    fn verify(&mut self, share: &ScheduledSequence, drafts: &[TokenId], execution: &mut Execution) {
        let state = self.states.get_mut(&share.id).expect("added before planned");
        let mut all_logprobs = Vec::new();
        for (place, &hash) in self.hashes.iter().enumerate() {
            let mut logits = logits(hash);
            let sampled = self.sampler.sample(state, &mut logits, share.n_generated + place);
            state.accepted(sampled.token);
            execution.step.sampled.push((share.id, sampled.token));
            all_logprobs.extend(sampled.logprobs);
            if drafts.get(place) != Some(&sampled.token) {
                break;
            }
        }
        if !all_logprobs.is_empty() {
            execution.logprobs.push((share.id, all_logprobs));
        }
    }
}

impl Executor for FakeExecutor {
    fn kv_capacity(&self) -> KvCapacity {
        self.capacity
    }

    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn max_context_tokens(&self) -> usize {
        1 << 20
    }

    fn sources(&self) -> Option<Sources> {
        None
    }

    fn drafting(&mut self) -> Option<&mut dyn Drafting> {
        None
    }

    fn add(&mut self, request: &Request, extras: Extras) -> Result<(), Panicked> {
        let mut state = SamplerState::of(request);
        extras.processors.into_iter().for_each(|processor| state.push_processor(processor));
        self.states.insert(request.id, state);
        Ok(())
    }

    fn launch(&mut self, plan: &SchedulerOutput) {
        self.move_blocks(plan);
    }

    fn collect(
        &mut self,
        plan: &SchedulerOutput,
        execution: &mut Execution,
    ) -> Result<(), ExecutorError> {
        self.log.plans.lock().unwrap().push(plan.clone());
        if let Some(gate) = &self.gate {
            let _ = gate.arrived.send(());
            if gate.leave.recv().is_err() {
                self.gate = None;
            }
        }
        self.end_transfers(plan, execution);
        for share in &plan.sequences {
            let tokens = plan.tokens_of(share);
            assert!(!tokens.contains(&PANICS), "as the test asked");
            if share.first_position == 0 && tokens.contains(&FAILS_STEP) {
                return Err(ExecutorError::Forward("as the test asked".into()));
            }
            if share.first_position == 0 && tokens.contains(&FAILS_ALONE) {
                execution.step.failed.push(share.id);
                continue;
            }
            self.compute(plan, share);
            if share.samples {
                self.verify(share, &tokens[tokens.len() - share.n_drafts..], execution);
            }
        }
        Ok(())
    }

    fn finished(&mut self, id: RequestId) {
        assert!(self.states.remove(&id).is_some(), "{id} finished twice");
        self.log.finished.lock().unwrap().push(id);
    }

    fn reset(&mut self) {
        self.states.clear();
        self.moving.clear();
        self.kv.fill(0);
    }
}
