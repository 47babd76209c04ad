//! Blocks that move: to the host and back, and beside each other. Plans are written by hand, so each
//! kind of move is met alone and in one plan with the others.

use pelton_base::{Ask, Request, RequestId, SamplingParams, ServiceParams, TokenId};
use pelton_engine::{Execution, Executor, ExecutorError, Extras, KvMemory, ModelExecutor};
use pelton_engine::{KvCapacity, ModelExecutorConfig};
use pelton_model::{CpuDevice, KvDtype, LoadOptions, ModelFiles, load_cpu};
use pelton_sched::Direction::{In, Out};
use pelton_sched::{
    BlockId, Direction, HostBlockId, ScheduledSequence, SchedulerOutput, Transfer, TransferId,
};
use pelton_tensor::DType;
use pelton_testkit::TinyModel;

/// No multiple of the kernels' groups of 16.
const BLOCK: usize = 5;
const N_PROMPT: usize = 13;

struct World {
    files: ModelFiles,
    kv_dtype: KvDtype,
}

impl World {
    fn executor(&self) -> ModelExecutor<CpuDevice> {
        let options = LoadOptions {
            kv_dtype: Some(self.kv_dtype),
            n_threads: Some(1),
            ..LoadOptions::default()
        };
        let decoder = load_cpu(&self.files, &options).expect("it loads");
        let config = ModelExecutorConfig {
            block_size: BLOCK,
            memory: KvMemory::Blocks(12),
            host_blocks: 4,
            sampled_vocab: None,
            exit_layers: None,
            verification: Default::default(),
            states: Default::default(),
        };
        let mut executor = ModelExecutor::new(decoder, config).expect("memory");
        let kv = KvCapacity {
            n_blocks: 12,
            n_host_blocks: 4,
            block_size: BLOCK,
            states: None,
            windows: None,
        };
        assert_eq!(executor.kv_capacity(), kv);
        for id in 0..2 {
            executor.add(&request(id), Extras::default()).expect("no rule panics");
        }
        executor
    }
}

fn request(id: u64) -> Request {
    Request {
        id: RequestId(id),
        ask: Ask {
            prompt: prompt(id),
            sampling: SamplingParams { logprobs: Some(5), ..SamplingParams::greedy() },
            choice: 0,
            max_tokens: 100,
            stop_tokens: Vec::new(),
            service: ServiceParams::default(),
            prediction: Vec::new(),
            constraint: None,
        },
    }
}

fn prompt(id: u64) -> Vec<TokenId> {
    (0..N_PROMPT as u32).map(|i| TokenId((i * 17 + id as u32 * 91) % 250)).collect()
}

/// A plan of one share, which samples.
fn plan(id: u64, first_position: usize, tokens: &[TokenId], blocks: &[u32]) -> SchedulerOutput {
    SchedulerOutput {
        sequences: vec![ScheduledSequence {
            id: RequestId(id),
            tokens: 0..tokens.len(),
            first_position,
            blocks: 0..blocks.len(),
            samples: true,
            parents: 0..0,
            n_drafts: 0,
            n_source: 0,
            n_generated: (first_position + tokens.len()) - N_PROMPT,
            lane: None,
        }],
        tokens: tokens.to_vec(),
        blocks: blocks.iter().map(|&block| BlockId(block)).collect(),
        ..SchedulerOutput::default()
    }
}

/// Adds a transfer to a plan.
fn transfer(plan: &mut SchedulerOutput, direction: Direction, pairs: &[(u32, u32)]) {
    let first = plan.moved.len();
    plan.moved.extend(pairs.iter().map(|&(block, host)| (BlockId(block), HostBlockId(host))));
    let (id, moved) = (TransferId(plan.transfers.len() as u64), first..plan.moved.len());
    plan.transfers.push(Transfer { id, direction, moved });
}

fn run(executor: &mut impl Executor, plan: &SchedulerOutput) -> Execution {
    let mut execution = Execution::default();
    executor.launch(plan);
    let outcome: Result<(), ExecutorError> = executor.collect(plan, &mut execution);
    outcome.expect("it computes");
    assert_eq!(execution.step.sampled.len(), plan.sequences.len());
    let started: Vec<_> = plan.transfers.iter().map(|transfer| transfer.id).collect();
    assert_eq!(std::mem::take(&mut execution.step.transferred), started, "at once");
    execution
}

/// Prefill of request 0 in blocks 0, 1, 2, then `between`, then one more token with the table and the
/// moves of `last`; what came of that.
fn world(
    world: &World,
    between: &[SchedulerOutput],
    last: impl Fn(&mut SchedulerOutput),
    blocks: &[u32],
) -> Execution {
    let mut executor = world.executor();
    let first = run(&mut executor, &plan(0, 0, &prompt(0), &[0, 1, 2]));
    let token = first.step.sampled[0].1;
    for plan in between {
        run(&mut executor, plan);
    }
    let mut next = plan(0, N_PROMPT, &[token], blocks);
    last(&mut next);
    run(&mut executor, &next)
}

fn worlds() -> Vec<World> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("model.gguf");
    let model = TinyModel { tokenizer: false, max_context: 128, ..TinyModel::default() };
    model.write_gguf(&file, DType::Q8_0);
    // The files stay mapped when the folder is gone.
    KvDtype::ALL
        .map(|kv_dtype| World { files: ModelFiles::open(&file).expect("a model"), kv_dtype })
        .into()
}

#[test]
fn a_sequence_that_was_swapped_out_goes_on_elsewhere_with_the_same_bits() {
    for w in worlds() {
        let expected = world(&w, &[], |_| {}, &[0, 1, 2]);
        // Request 1 gets all its blocks, in the very plan that takes them away.
        let mut other = plan(1, 0, &prompt(1), &[2, 0, 1]);
        transfer(&mut other, Out, &[(0, 3), (1, 0), (2, 2)]);
        let back = |next: &mut SchedulerOutput| {
            transfer(next, In, &[(9, 3), (4, 0), (11, 2)]);
        };
        let got = world(&w, std::slice::from_ref(&other), back, &[9, 4, 11]);
        assert_eq!(got, expected, "{}", w.kv_dtype);
        let stale = world(&w, &[other], |_| {}, &[0, 1, 2]);
        assert_ne!(stale, expected, "{}: what was taken is really gone", w.kv_dtype);
    }
}

#[test]
fn blocks_go_out_before_others_come_in_and_copies_are_of_what_came() {
    for w in worlds() {
        let expected = world(&w, &[], |_| {}, &[0, 1, 2]);
        let mut out = plan(1, 0, &prompt(1), &[2, 5, 6]);
        transfer(&mut out, Out, &[(2, 1)]);
        // Block 2 changes hands in one plan, and host block 1 too: request 1 goes, request 0 comes.
        let exchange = |next: &mut SchedulerOutput| {
            transfer(next, Out, &[(2, 0)]);
            transfer(next, In, &[(2, 1)]);
            next.copies = vec![(BlockId(2), BlockId(7)), (BlockId(0), BlockId(8))];
        };
        let got = world(&w, std::slice::from_ref(&out), exchange, &[8, 1, 7]);
        assert_eq!(got, expected, "{}", w.kv_dtype);
        let got = world(&w, &[out], exchange, &[0, 1, 2]);
        assert_eq!(got, expected, "{}: the copied block is left as it was", w.kv_dtype);
    }
}

#[test]
fn whoever_goes_out_in_the_plan_that_takes_its_block_loses_nothing() {
    for w in worlds() {
        let mut executor = w.executor();
        let prompts = [0, 1].map(prompt);
        let [a, b] = [[0, 1, 2], [3, 4, 5]].map(|blocks| blocks.map(BlockId));
        let mut next: Vec<SchedulerOutput> = (0..2)
            .map(|id| {
                let blocks = [a, b][id].map(|block| block.0);
                let first = run(&mut executor, &plan(id as u64, 0, &prompts[id], &blocks));
                plan(id as u64, N_PROMPT, &[first.step.sampled[0].1], &blocks)
            })
            .collect();
        let mut apart = w.executor();
        let expected: Vec<Execution> = [[0, 1, 2], [3, 4, 5]]
            .iter()
            .enumerate()
            .map(|(id, blocks)| {
                run(&mut apart, &plan(id as u64, 0, &prompts[id], blocks));
                run(&mut apart, &next[id])
            })
            .collect();
        // Request 1 is outside; 0 goes out, and 1 comes in to where 0 was.
        let mut only = SchedulerOutput::default();
        transfer(&mut only, Out, &[(3, 0), (4, 1), (5, 2)]);
        run(&mut executor, &only);
        next[1].blocks = a.to_vec();
        transfer(&mut next[1], Out, &[(2, 3)]);
        transfer(&mut next[1], In, &[(0, 0), (1, 1), (2, 2)]);
        // The other two blocks of 0 are kept beside it.
        let kept = vec![(BlockId(0), BlockId(8)), (BlockId(1), BlockId(9))];
        run(&mut executor, &SchedulerOutput { copies: kept, ..SchedulerOutput::default() });
        assert_eq!(run(&mut executor, &next[1]), expected[1], "{}", w.kv_dtype);
        next[0].blocks = [8, 9, 10].map(BlockId).to_vec();
        transfer(&mut next[0], In, &[(10, 3)]);
        assert_eq!(run(&mut executor, &next[0]), expected[0], "{}", w.kv_dtype);
    }
}

#[test]
fn a_plan_without_rows_moves_its_blocks_all_the_same() {
    let w = &worlds()[0];
    let expected = world(w, &[], |_| {}, &[0, 1, 2]);
    let mut only = SchedulerOutput::default();
    transfer(&mut only, Out, &[(1, 1)]);
    let back = |next: &mut SchedulerOutput| transfer(next, In, &[(3, 1)]);
    let other = plan(1, 0, &prompt(1), &[1, 5, 6]);
    assert_eq!(world(w, &[only, other], back, &[0, 3, 2]), expected);
}
