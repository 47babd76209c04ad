//! Drafts that end an answer too soon, verified by a real model without anybody cutting them before:
//! each row of a draft, in a tree too, is masked by its own place in the answer.
//!
//! ```text
//! answer         a0   a1   a2 │ a3   a4        min_tokens = 3, half of all tokens are stop tokens
//! drafts         u1 ─ x       │                u: what the model says unmasked, mostly a stop token
//!                a1 ─ u2 ─ x  │                a: what it says under the mask
//!                 └── a2 ─────┼─ a3 ── ...     one path across the place from which on it may end
//! ```

use pelton_base::{Ask, FinishReason, Request, RequestId, SamplingParams, ServiceParams, TokenId};
use pelton_engine::{Execution, Executor, Extras, KvMemory, ModelExecutor, ModelExecutorConfig};
use pelton_kernels::{Cpu, Kernels};
use pelton_model::{CpuDevice, LoadOptions, ModelFiles, load};
use pelton_sampling::TokenLogprobs;
use pelton_sched::{
    DraftTree, Scheduler, SchedulerConfig, SchedulerOutput, Signals, StepUpdates, Tick,
};
use pelton_tensor::DType;
use pelton_testkit::TinyModel;

const ID: RequestId = RequestId(1);
const MOST: usize = 16;

fn is_end(token: TokenId) -> bool {
    token.0.is_multiple_of(2)
}

fn request(sampling: SamplingParams, min_tokens: usize) -> Request {
    Request {
        id: ID,
        ask: Ask {
            prompt: [5, 9, 5, 9, 77].map(TokenId).to_vec(),
            sampling: SamplingParams { min_tokens, logprobs: Some(1), seed: 3, ..sampling },
            choice: 0,
            max_tokens: MOST,
            stop_tokens: (0..300).map(TokenId).filter(|&token| is_end(token)).collect(),
            service: ServiceParams::default(),
            prediction: Vec::new(),
            constraint: None,
        },
    }
}

/// An answer, why it ended, and in how many steps it came.
struct Answer {
    tokens: Vec<TokenLogprobs>,
    finish: FinishReason,
    n_steps: usize,
}

impl Answer {
    fn ids(&self) -> Vec<TokenId> {
        self.tokens.iter().map(|sampled| sampled.token).collect()
    }
}

/// Generates an answer; `draft` is asked for drafts where so many tokens are there.
fn generate(files: &ModelFiles, request: Request, draft: impl Fn(usize, &mut DraftTree)) -> Answer {
    let backend = CpuDevice::new(Cpu::with(Kernels::best(), 1));
    let decoder = load(files, backend, &LoadOptions::default()).expect("loads");
    let config = ModelExecutorConfig {
        block_size: 4,
        memory: KvMemory::Blocks(64),
        host_blocks: 0,
        sampled_vocab: None,
        exit_layers: None,
        verification: Default::default(),
        states: Default::default(),
    };
    let mut executor = ModelExecutor::new(decoder, config).expect("KV memory");
    let mut scheduler = Scheduler::new(SchedulerConfig::new(64, 4));
    executor.add(&request, Extras::default()).expect("no rule panics");
    scheduler.add(request);
    let (mut plan, mut execution) = (SchedulerOutput::default(), Execution::default());
    let (mut updates, mut tokens) = (StepUpdates::default(), Vec::new());
    for n_steps in 1.. {
        for row in scheduler.generating() {
            draft(row.tokens.len() - row.n_prompt, row.drafts);
        }
        scheduler.schedule(Tick(n_steps as u64), &Signals::default(), &mut plan);
        execution.clear();
        executor.launch(&plan);
        executor.collect(&plan, &mut execution).expect("it computes");
        scheduler.update(&execution.step, &mut updates);
        let update = &updates.sequences[0];
        // The step knows no end; what it said after it is not part of the answer.
        let logprobs = execution.logprobs.drain(..).flat_map(|(_, logprobs)| logprobs);
        tokens.extend(logprobs.take(updates.tokens_of(update).len()));
        if let Some(finish) = update.finish {
            return Answer { tokens, finish, n_steps };
        }
    }
    unreachable!("every answer ends")
}

/// For each way of choosing: the model, an answer in plain steps, and the request.
fn for_each(min_tokens: usize, check: impl Fn(&ModelFiles, &Answer, &Request)) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("model.gguf");
    TinyModel { tokenizer: false, ..TinyModel::default() }.write_gguf(&file, DType::Bf16);
    let files = ModelFiles::open(&file).expect("a model");
    let (greedy, plain) = (SamplingParams::greedy(), SamplingParams::default());
    let penalties = SamplingParams { repetition_penalty: 1.3, ..greedy.clone() };
    let few = SamplingParams { temperature: 0.8, top_k: 30, top_p: 0.95, ..plain.clone() };
    for sampling in [greedy, penalties, plain, few] {
        let request = request(sampling, min_tokens);
        let answer = generate(&files, request.clone(), |_, _| {});
        assert_eq!(answer.n_steps, answer.tokens.len());
        check(&files, &answer, &request);
    }
}

#[test]
fn a_draft_across_the_place_where_an_answer_may_end_is_judged_row_by_row() {
    for min_tokens in [1, 3, 6, 8] {
        for_each(min_tokens, |files, plain, request| {
            let n_odd = plain.ids().iter().take_while(|&&token| !is_end(token)).count();
            assert!(n_odd >= min_tokens, "{:?}", plain.ids());
            let right = plain.ids();
            // The model's likeliest tokens, which are its greedy answer without a mask.
            let unmasked: Vec<TokenId> =
                plain.tokens.iter().map(|sampled| sampled.top[0].0).collect();
            let drafted = generate(files, request.clone(), |n_there, drafts| {
                let mut parent = None;
                for place in n_there..(n_there + 5).min(right.len()).min(MOST - 1) {
                    if unmasked[place] != right[place] {
                        let wrong = drafts.push(parent, unmasked[place]);
                        drafts.push(Some(wrong), right[place]);
                    }
                    parent = Some(drafts.push(parent, right[place]));
                }
            });
            assert_eq!(drafted.tokens, plain.tokens, "{:?}", request.ask.sampling);
            assert_eq!(drafted.finish, plain.finish);
            // The first token, then five drafts and one more at a time, fewer before the end.
            assert!(2 * drafted.n_steps <= plain.n_steps + 3, "{right:?}: {}", drafted.n_steps);
        });
    }
}

#[test]
fn a_stop_token_that_is_drafted_too_soon_is_no_token_of_the_answer() {
    const MIN_TOKENS: usize = 6;
    for_each(MIN_TOKENS, |files, plain, request| {
        // Nothing but ends, one after the other.
        let drafted = generate(files, request.clone(), |n_there, drafts| {
            drafts.extend((n_there..(n_there + 4).min(MOST - 2)).map(|i| TokenId(2 * i as u32)));
        });
        assert_eq!((&drafted.tokens, drafted.finish), (&plain.tokens, plain.finish));
        // From the minimum on the right end is taken, and nothing after it.
        let right = plain.ids();
        let drafted = generate(files, request.clone(), |n_there, drafts| {
            let rest = right[n_there..].iter().copied().chain([8, 10, 12].map(TokenId));
            drafts.extend(rest.take(MOST - 1 - n_there));
        });
        assert_eq!((&drafted.tokens, drafted.finish), (&plain.tokens, plain.finish));
        assert_eq!(drafted.n_steps, 2, "{right:?}");
    });
}

#[test]
fn an_answer_as_long_as_it_may_be_and_must_be_never_ends_by_itself() {
    for_each(MOST, |files, plain, request| {
        let right = plain.ids();
        assert_eq!((right.len(), plain.finish), (MOST, FinishReason::Length));
        assert!(!right.iter().any(|&token| is_end(token)), "{right:?}");
        let drafted = generate(files, request.clone(), |n_there, drafts| {
            drafts.extend(right[n_there..MOST - 1].iter().copied().take(7));
        });
        assert_eq!((&drafted.tokens, drafted.finish), (&plain.tokens, plain.finish));
    });
}
