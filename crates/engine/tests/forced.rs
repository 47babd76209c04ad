//! Tokens that a rule forces are computed together, and the answer is the same as without.

use pelton_base::{
    Ask, Constraint, FinishReason, Rule, RuleState, SamplingParams, ServiceParams, TokenId,
    TokenSet,
};
use pelton_engine::spec::Verification;
use pelton_engine::{
    Engine, EngineConfig, EngineMetrics, Fault, KvMemory, ModelExecutor, ModelExecutorConfig,
    SpecConfig, SpecMethod,
};
use pelton_model::{LoadOptions, ModelFiles, load_cpu};
use pelton_tensor::DType;
use pelton_testkit::TinyModel;
use std::ops::Range;
use std::sync::Arc;

const N_TOKENS: usize = 40;
/// Length of a round: one free token, then tokens that it decides.
const ROUND: usize = 7;

/// A free choice of the tokens below 50, and six tokens that follow from it, over and over.
#[derive(Clone, Debug)]
struct Form {
    answer: Vec<TokenId>,
    /// Whether it tells what it forces.
    tells: bool,
    /// Tokens after which nothing is allowed.
    ends_at: usize,
}

impl Form {
    fn next(&self) -> Option<TokenId> {
        let (place, start) = (self.answer.len() % ROUND, self.answer.len() / ROUND * ROUND);
        (place > 0).then(|| TokenId((self.answer[start].0 * 3 + place as u32 * 5) % 100))
    }
}

impl Rule for Form {
    fn begin(&self) -> Box<dyn RuleState> {
        Box::new(self.clone())
    }
}

impl RuleState for Form {
    fn allow(&mut self, allowed: &mut TokenSet) {
        if self.answer.len() >= self.ends_at {
            return;
        }
        match self.next() {
            Some(token) => allowed.insert(token),
            None => (0..50).for_each(|token| allowed.insert(TokenId(token))),
        }
    }

    fn accept(&mut self, token: TokenId) -> bool {
        let is_allowed = self.next().map_or(token.0 < 50, |next| next == token);
        if is_allowed {
            self.answer.push(token);
        }
        is_allowed
    }

    fn forced(&mut self, tokens: &mut Vec<TokenId>) {
        let mut ahead = self.clone();
        while let Some(token) = ahead.next().filter(|_| self.tells) {
            tokens.push(token);
            ahead.answer.push(token);
        }
    }

    fn stuck(&self) -> Option<String> {
        Some("the form is full".to_owned())
    }

    fn fork(&self) -> Box<dyn RuleState> {
        self.begin()
    }
}

type Answer = (Vec<(TokenId, Option<f32>)>, FinishReason, Option<Fault>);

/// Requests that are sampled in every way; the odd ones are under a rule.
const ALL: Range<u64> = 0..8;

/// The answers to some requests.
fn answers(
    requests: Range<u64>,
    tells: bool,
    ends_at: usize,
    spec: SpecConfig,
) -> (Vec<Answer>, EngineMetrics) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("model.gguf");
    TinyModel { tokenizer: false, ..TinyModel::default() }.write_gguf(&file, DType::Bf16);
    let files = ModelFiles::open(&file).expect("a model");
    let options = LoadOptions { n_threads: Some(1), ..LoadOptions::default() };
    let config = ModelExecutorConfig {
        block_size: 4,
        memory: KvMemory::Blocks(48),
        host_blocks: 8,
        sampled_vocab: Some(200),
        exit_layers: spec.exit_layers,
        verification: spec.verification,
        states: Default::default(),
    };
    let decoder = load_cpu(&files, &options).expect("it loads");
    let executor = ModelExecutor::new(decoder, config).expect("memory");
    let proposers = if spec.max_drafts > 0 { spec.proposers() } else { Vec::new() };
    let engine =
        Engine::spawn_with(executor, EngineConfig { spec, ..Default::default() }, proposers);
    let request = |i: u64| {
        let sampling = match i / 2 {
            0 => SamplingParams::greedy(),
            1 => SamplingParams { top_k: 9, ..SamplingParams::default() },
            2 => SamplingParams { logprobs: Some(2), ..SamplingParams::default() },
            _ => SamplingParams { repetition_penalty: 1.4, ..SamplingParams::default() },
        };
        let form = Form { answer: Vec::new(), tells, ends_at };
        Ask {
            prompt: (0..9).map(|j| TokenId((j % 4 + 3 * i) as u32)).collect(),
            sampling: SamplingParams { seed: i, ..sampling },
            choice: 0,
            max_tokens: N_TOKENS,
            stop_tokens: Vec::new(),
            service: ServiceParams::default(),
            prediction: Vec::new(),
            constraint: (i % 2 == 1).then(|| Constraint(Arc::new(form))),
        }
    };
    let streams: Vec<_> = requests.map(|i| engine.submit(request(i)).expect("taken")).collect();
    let mut answers = Vec::new();
    for mut stream in streams {
        let mut tokens = Vec::new();
        while let Some(event) = stream.blocking_recv() {
            let logprob =
                |of: &pelton_engine::SampledToken| of.logprobs.as_ref().map(|l| l.logprob);
            tokens.extend(event.tokens.iter().map(|sampled| (sampled.token, logprob(sampled))));
            if let Some(finish) = event.finish {
                answers.push((std::mem::take(&mut tokens), finish, event.fault));
            }
        }
    }
    engine.shutdown(true);
    engine.join();
    let metrics = engine.metrics();
    assert_eq!(metrics.n_free_blocks, metrics.n_blocks, "no block is lost");
    (answers, metrics)
}

#[test]
fn forced_tokens_are_computed_together_and_change_no_answer() {
    let none = SpecConfig { max_drafts: 0, ..SpecConfig::default() };
    let (plain, before) = answers(ALL, false, usize::MAX, none);
    assert_eq!(before.spec.n_forced, 0);
    for (i, (tokens, finish, _)) in plain.iter().enumerate() {
        assert_eq!((tokens.len(), *finish), (N_TOKENS, FinishReason::Length), "request {i}");
    }
    let drafts = |method| SpecConfig { method, max_drafts: 3, is_forced: true, ..none };
    let early = SpecConfig { exit_layers: Some(1), ..drafts(SpecMethod::EarlyExit) };
    let recycled = drafts(SpecMethod::Recycle);
    for spec in [none, drafts(SpecMethod::Ngram), recycled, early] {
        let (forced, after) = answers(ALL, true, usize::MAX, spec);
        assert_eq!(forced, plain, "{spec:?}");
        // Four of eight answers have six forced tokens of seven.
        assert!(after.spec.n_forced >= 4 * 30, "{:?}", after.spec);
        assert_eq!(after.spec.n_failures, 0, "{spec:?}");
    }
}

#[test]
fn answers_under_one_rule_take_a_step_per_choice() {
    let none = SpecConfig { max_drafts: 0, ..SpecConfig::default() };
    let rejection = SpecConfig { verification: Verification::Rejection, ..none };
    // One request at a time: how many steps several take depends on when they come.
    for (spec, i) in [(none, 1), (none, 5), (rejection, 3), (rejection, 7)] {
        let (plain, before) = answers(i..i + 1, false, usize::MAX, spec);
        let (forced, after) = answers(i..i + 1, true, usize::MAX, spec);
        assert_eq!(forced, plain);
        assert_eq!(before.generated_tokens, after.generated_tokens);
        assert!(before.n_steps >= N_TOKENS as u64, "{}", before.n_steps);
        // The free token of a round, and the six that follow from it.
        let most = 2 * N_TOKENS.div_ceil(ROUND) as u64;
        assert!(after.n_steps <= most, "request {i}: {} {}", after.n_steps, before.n_steps);
        assert_eq!(before.spec.n_forced, 0);
        assert!(after.spec.n_forced >= 30, "{:?}", after.spec);
    }
}

#[test]
fn a_rule_that_allows_nothing_ends_its_request_with_its_reason() {
    let none = SpecConfig { max_drafts: 0, ..SpecConfig::default() };
    let (plain, _) = answers(ALL, false, usize::MAX, none);
    let (stuck, _) = answers(ALL, true, 2 * ROUND, none);
    for (i, ((tokens, finish, fault), plain)) in stuck.iter().zip(&plain).enumerate() {
        if i % 2 == 0 {
            assert_eq!(&(tokens.clone(), *finish, fault.clone()), plain);
            continue;
        }
        // The tokens of the step that fails are lost with it.
        assert!((ROUND + 1..=2 * ROUND).contains(&tokens.len()), "request {i}: {}", tokens.len());
        assert_eq!(tokens[..], plain.0[..tokens.len()], "request {i}");
        assert_eq!(*finish, FinishReason::Error);
        assert_eq!(fault, &Some(Fault::Stuck("the form is full".to_owned())));
    }
}
