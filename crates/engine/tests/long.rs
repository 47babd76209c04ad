//! Every method of drafting gives the tokens of plain decoding, over more than ten thousand tokens
//! of a trained model: alone and in batches, in chunks, with and without cached prefixes, and with
//! so few KV blocks that requests are preempted.

use pelton_base::{Ask, FinishReason, Request, RequestId, SamplingParams, ServiceParams, TokenId};
use pelton_engine::spec::{DraftModel, Proposer, Row};
use pelton_engine::{
    Engine, EngineConfig, EngineMetrics, KvMemory, ModelExecutor, ModelExecutorConfig, SpecConfig,
    SpecMethod,
};
use pelton_kernels::{Cpu, Kernels};
use pelton_model::{CpuDevice, Decoder, LoadOptions, ModelFiles, load};
use pelton_sched::{Choices, DraftTree};
use std::path::Path;
use std::sync::OnceLock;

const BLOCK: usize = 16;
const VOCAB: u32 = 4096;
/// Requests of a run, and tokens of each answer.
const N_REQUESTS: usize = 8;
const N_TOKENS: usize = 320;
/// KV blocks for all requests, and for less than half of them.
const MANY: u32 = 200;
const FEW: u32 = 80;

/// How requests are served.
#[derive(Clone, Copy, Debug)]
struct World {
    n_running: usize,
    n_chunk: usize,
    prefix_cache: bool,
    n_blocks: u32,
}

/// Each value is combined with each method; all combinations of values would take too long.
const WORLDS: [World; 4] = [
    World { n_running: 1, n_chunk: 512, prefix_cache: true, n_blocks: MANY },
    World { n_running: 8, n_chunk: 512, prefix_cache: false, n_blocks: MANY },
    World { n_running: 8, n_chunk: 13, prefix_cache: true, n_blocks: FEW },
    World { n_running: 8, n_chunk: 7, prefix_cache: false, n_blocks: FEW },
];

fn requests() -> Vec<Ask> {
    (0..N_REQUESTS as u32)
        .map(|i| Ask {
            // All prompts begin with the same tokens, so that they can share a prefix.
            prompt: (0..40)
                .map(|j| TokenId(1 + (j * 131 + if j < 34 { 0 } else { i * 977 }) % (VOCAB - 1)))
                .collect(),
            sampling: SamplingParams::greedy(),
            choice: 0,
            max_tokens: N_TOKENS,
            stop_tokens: Vec::new(),
            service: ServiceParams::default(),
            prediction: Vec::new(),
            constraint: None,
        })
        .collect()
}

fn decoder() -> Decoder<CpuDevice> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/model/story-draft-q8_0.gguf");
    let files = ModelFiles::open(&file).expect("the draft model of the story-teller");
    let backend = CpuDevice::new(Cpu::with(Kernels::best(), 1));
    load(&files, backend, &LoadOptions::default()).expect("it loads")
}

/// The answers, and what the engine counted.
fn run(world: World, spec: SpecConfig) -> (Vec<Vec<TokenId>>, EngineMetrics) {
    run_with(world, spec, Vec::new(), requests())
}

fn run_with(
    world: World,
    spec: SpecConfig,
    proposers: Vec<Box<dyn Proposer>>,
    requests: Vec<Ask>,
) -> (Vec<Vec<TokenId>>, EngineMetrics) {
    let executor = ModelExecutorConfig {
        block_size: BLOCK,
        memory: KvMemory::Blocks(world.n_blocks),
        host_blocks: 0,
        sampled_vocab: None,
        exit_layers: spec.exit_layers,
        verification: Default::default(),
        states: Default::default(),
    };
    let executor = ModelExecutor::new(decoder(), executor).expect("KV memory");
    let config = EngineConfig {
        choices: Choices {
            max_running: world.n_running,
            max_chunk_tokens: Some(world.n_chunk),
            prefix_cache: world.prefix_cache,
            ..Choices::default()
        },
        spec,
        ..Default::default()
    };
    let proposers = if proposers.is_empty() { config.spec.proposers() } else { proposers };
    let engine = Engine::spawn_with(executor, config, proposers);
    let streams: Vec<_> =
        requests.into_iter().map(|request| engine.submit(request).expect("taken")).collect();
    let mut answers = Vec::new();
    for mut stream in streams {
        let mut tokens = Vec::new();
        while let Some(event) = stream.blocking_recv() {
            tokens.extend(event.tokens.iter().map(|sampled| sampled.token));
            assert!(matches!(event.finish, None | Some(FinishReason::Length)), "{event:?}");
        }
        answers.push(tokens);
    }
    engine.shutdown(true);
    engine.join();
    let metrics = engine.metrics();
    assert_eq!(metrics.n_free_blocks, metrics.n_blocks, "no block is lost");
    (answers, metrics)
}

/// Drafts at every step, whatever they cost.
fn forced(method: SpecMethod) -> SpecConfig {
    let exit_layers = (method == SpecMethod::EarlyExit).then_some(2);
    SpecConfig {
        method,
        max_drafts: 6,
        exit_layers,
        recent_tokens: 1000,
        is_forced: true,
        ..SpecConfig::default()
    }
}

/// The answer of plain decoding.
static PLAIN: OnceLock<Vec<Vec<TokenId>>> = OnceLock::new();

fn law_holds_for(method: SpecMethod) {
    let plain = PLAIN.get_or_init(|| run(WORLDS[1], SpecConfig::default()).0);
    assert!(plain.iter().all(|answer| answer.len() == N_TOKENS));
    assert!(WORLDS.len() * N_REQUESTS * N_TOKENS >= 10_000);
    for world in WORLDS {
        let (answers, metrics) = run(world, forced(method));
        for (i, (got, expected)) in answers.iter().zip(plain).enumerate() {
            assert_eq!(got, expected, "{method:?}, request {i}, in {world:?}");
        }
        assert!(metrics.spec.n_accepted > 0, "{method:?} in {world:?}: {metrics:?}");
        assert!(world.n_blocks == MANY || metrics.n_preemptions > 0, "{metrics:?}");
        assert_eq!(world.prefix_cache, metrics.cached_prompt_tokens > 0, "{metrics:?}");
    }
}

#[test]
fn runs_that_came_before_change_no_token() {
    law_holds_for(SpecMethod::Ngram);
}

#[test]
fn long_matches_change_no_token() {
    law_holds_for(SpecMethod::Suffix);
}

#[test]
fn the_first_layers_change_no_token() {
    law_holds_for(SpecMethod::EarlyExit);
}

#[test]
fn recycled_tokens_change_no_token() {
    law_holds_for(SpecMethod::Recycle);
}

#[test]
fn guesses_ahead_change_no_token() {
    law_holds_for(SpecMethod::Lookahead);
}

#[test]
fn many_ways_at_once_change_no_token() {
    law_holds_for(SpecMethod::Auto);
}

/// The answers of a small model to nonsense soon go round in circles.
#[test]
fn lookahead_learns_a_text_that_repeats_itself() {
    let (answers, metrics) = run(WORLDS[0], forced(SpecMethod::Lookahead));
    let n_tokens: usize = answers.iter().map(Vec::len).sum();
    assert!(metrics.spec.n_accepted as usize * 8 > n_tokens, "{metrics:?}");
}

/// A draft model computes long prompts in passes of 512 tokens.
#[test]
fn a_model_that_drafts_for_itself_is_right_behind_a_prompt_of_any_length() {
    for n_prompt in [1, 2, 511, 512, 513, 1023, 1024, 1025] {
        let mut ask = requests().swap_remove(0);
        ask.prompt = (0..n_prompt).map(|j| TokenId(1 + j * 131 % (VOCAB - 1))).collect();
        ask.max_tokens = 13;
        let drafts = DraftModel::new(decoder(), BLOCK, KvMemory::Blocks(MANY), VOCAB as usize);
        let drafts: Vec<Box<dyn Proposer>> = vec![Box::new(drafts.expect("KV memory"))];
        let world = WORLDS[0];
        let (answers, metrics) =
            run_with(world, forced(SpecMethod::Draft), drafts, vec![ask.clone()]);
        let (plain, _) = run_with(world, SpecConfig::default(), Vec::new(), vec![ask]);
        assert_eq!(answers, plain, "behind {n_prompt} tokens");
        let spec = metrics.spec;
        assert!(spec.n_drafted > 0, "behind {n_prompt} tokens: {spec:?}");
        assert_eq!(spec.n_accepted, spec.n_drafted, "behind {n_prompt} tokens: {spec:?}");
    }
}

#[test]
fn a_draft_model_has_its_memory_back_when_a_request_ends() {
    let mut model = DraftModel::new(decoder(), BLOCK, KvMemory::Blocks(MANY), VOCAB as usize)
        .expect("KV memory");
    let request = Request { id: RequestId(1), ask: requests().swap_remove(0) };
    let empty = format!("{model:?}");
    model.add(&request);
    let mut drafts = DraftTree::default();
    let tokens = &request.ask.prompt;
    let (n_prompt, n_drafts) = (tokens.len(), 3);
    let row = Row { id: request.id, tokens, n_prompt, n_drafts, drafts: &mut drafts };
    model.propose(&mut [row], None).expect("it drafts");
    assert_ne!(format!("{model:?}"), empty, "it holds keys and values");
    model.finished(request.id);
    assert_eq!(format!("{model:?}"), empty);
}

/// Where a step verifies fewer drafts than there are, the token after them may be the next draft.
#[test]
fn a_draft_that_was_computed_but_not_verified_is_computed_again_as_a_token() {
    let ask = requests().swap_remove(0);
    let request = Request { id: RequestId(1), ask };
    let prompt = &request.ask.prompt;
    let drafts_after = |texts: &[&[TokenId]]| {
        let mut model = DraftModel::new(decoder(), BLOCK, KvMemory::Blocks(MANY), VOCAB as usize)
            .expect("KV memory");
        model.add(&request);
        let mut last = Vec::new();
        for tokens in texts {
            let mut drafts = DraftTree::default();
            let row = Row {
                id: request.id,
                tokens,
                n_prompt: prompt.len(),
                n_drafts: 5,
                drafts: &mut drafts,
            };
            model.propose(&mut [row], None).expect("it drafts");
            last = drafts.tokens().to_vec();
        }
        last
    };
    let first = drafts_after(&[prompt]);
    assert_eq!(first.len(), 5);
    for n_known in 1..first.len() {
        let text = [prompt, &first[..n_known]].concat();
        assert_eq!(drafts_after(&[prompt, &text]), drafts_after(&[&text]), "{n_known} of 5 drafts");
    }
}
