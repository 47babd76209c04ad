//! A panic in the code of one request ends that request, and no other answer changes.

use pelton_base::{
    Ask, Constraint, FinishReason, Request, RequestId, Rule, RuleState, SamplingParams,
    ServiceParams, TokenId, TokenSet,
};
use pelton_engine::spec::{Abilities, Odds, Proposer, ProposerError, Row, Seen};
use pelton_engine::{
    Engine, EngineConfig, EngineMetrics, Fault, KvMemory, ModelExecutor, ModelExecutorConfig,
    SpecConfig, SpecMethod,
};
use pelton_model::{LoadOptions, ModelFiles, load_cpu};
use pelton_tensor::DType;
use pelton_testkit::TinyModel;
use std::sync::Arc;

/// Output tokens before a rule panics.
const PLACE: usize = 3;
const N_TOKENS: usize = 16;
/// The request with the faulty rule, between two neighbours.
const FAULTY: usize = 1;

/// The call in which a rule panics.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Call {
    Begin,
    Allow,
    Accept,
    Fork,
}

/// A rule that allows every token and panics in one call, once the answer has [`PLACE`] tokens.
#[derive(Clone, Debug)]
struct Faulty {
    call: Call,
    n_seen: usize,
}

impl Faulty {
    fn check(&self, call: Call) {
        let is_here = call == Call::Begin || self.n_seen >= PLACE;
        assert!(!(is_here && self.call == call), "as the test asked");
    }
}

impl Rule for Faulty {
    fn begin(&self) -> Box<dyn RuleState> {
        self.check(Call::Begin);
        Box::new(self.clone())
    }
}

impl RuleState for Faulty {
    fn allow(&mut self, allowed: &mut TokenSet) {
        self.check(Call::Allow);
        allowed.words_mut().fill(u64::MAX);
    }

    fn accept(&mut self, _token: TokenId) -> bool {
        self.check(Call::Accept);
        self.n_seen += 1;
        true
    }

    fn forced(&mut self, _tokens: &mut Vec<TokenId>) {}

    fn stuck(&self) -> Option<String> {
        None
    }

    fn fork(&self) -> Box<dyn RuleState> {
        self.check(Call::Fork);
        Box::new(self.clone())
    }
}

struct World {
    files: ModelFiles,
}

/// The tokens of an answer, how it ended, and the panic that ended it.
type Answer = (Vec<TokenId>, FinishReason, Option<Fault>);

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("model.gguf");
        TinyModel { tokenizer: false, ..TinyModel::default() }.write_gguf(&file, DType::Bf16);
        // The files stay mapped when the folder is gone.
        Self { files: ModelFiles::open(&file).expect("a model") }
    }

    /// The answers to three requests, the second under `rule`; then that of one more, which proves
    /// that the engine goes on.
    fn answers(
        &self,
        rule: Option<Faulty>,
        spec: SpecConfig,
        proposers: Vec<Box<dyn Proposer>>,
    ) -> (Vec<Answer>, EngineMetrics) {
        let options = LoadOptions { n_threads: Some(1), ..LoadOptions::default() };
        let decoder = load_cpu(&self.files, &options).expect("it loads");
        let config = ModelExecutorConfig {
            block_size: 4,
            memory: KvMemory::Blocks(64),
            host_blocks: 0,
            sampled_vocab: None,
            exit_layers: spec.exit_layers,
            verification: spec.verification,
            states: Default::default(),
        };
        let executor = ModelExecutor::new(decoder, config).expect("memory");
        let engine =
            Engine::spawn_with(executor, EngineConfig { spec, ..Default::default() }, proposers);
        let submit = |request| engine.submit(request).expect("taken");
        let mut streams: Vec<_> = (0..3).map(|i| submit(request(i, rule.as_ref()))).collect();
        streams.push(submit(request(3, None)));
        let mut answers = Vec::new();
        for mut stream in streams {
            let mut tokens = Vec::new();
            while let Some(event) = stream.blocking_recv() {
                tokens.extend(event.tokens.iter().map(|sampled| sampled.token));
                if let Some(finish) = event.finish {
                    answers.push((std::mem::take(&mut tokens), finish, event.fault));
                }
            }
        }
        engine.shutdown(true);
        engine.join();
        let metrics = engine.metrics();
        assert_eq!(metrics.n_free_blocks, metrics.n_blocks, "no block is lost");
        assert_eq!(metrics.n_finished, 4);
        (answers, metrics)
    }

    fn plain(&self) -> Vec<Answer> {
        let (answers, _) = self.answers(None, SpecConfig::default(), Vec::new());
        assert!(answers.iter().all(|(tokens, finish, panicked)| {
            tokens.len() == N_TOKENS && *finish == FinishReason::Length && panicked.is_none()
        }));
        answers
    }
}

/// A prompt that repeats itself, so that there is something to guess.
fn request(i: usize, rule: Option<&Faulty>) -> Ask {
    let sampling = match i % 2 {
        0 => SamplingParams::default(),
        _ => SamplingParams::greedy(),
    };
    let rule = rule.filter(|_| i == FAULTY);
    Ask {
        prompt: (0..12).map(|j| TokenId((j % 4 + 7 * i) as u32)).collect(),
        sampling: SamplingParams { seed: i as u64, ..sampling },
        choice: 0,
        max_tokens: N_TOKENS,
        stop_tokens: Vec::new(),
        service: ServiceParams::default(),
        prediction: Vec::new(),
        constraint: rule.map(|rule| Constraint(Arc::new(rule.clone()))),
    }
}

/// Only the faulty request may differ, and its tokens are right as far as they come.
fn check(answers: &[Answer], plain: &[Answer], n_tokens: usize, context: &str) {
    for (i, (answer, plain)) in answers.iter().zip(plain).enumerate() {
        if i != FAULTY {
            assert_eq!(answer, plain, "{context}: request {i}");
            continue;
        }
        let (tokens, finish, panicked) = answer;
        assert_eq!(tokens[..], plain.0[..n_tokens], "{context}");
        assert_eq!(*finish, FinishReason::Error, "{context}");
        let error = panicked.as_ref().expect(context).to_string();
        assert!(error.contains("bug in Pelton") && error.contains("as the test asked"), "{error}");
    }
}

#[test]
fn a_rule_that_panics_ends_its_request_and_no_other() {
    let world = World::new();
    let plain = world.plain();
    for (call, n_tokens) in [(Call::Begin, 0), (Call::Allow, PLACE), (Call::Accept, PLACE)] {
        let rule = Faulty { call, n_seen: 0 };
        let (answers, metrics) = world.answers(Some(rule), SpecConfig::default(), Vec::new());
        check(&answers, &plain, n_tokens, &format!("{call:?}"));
        assert_eq!(metrics.n_panicked, 1, "{call:?}");
    }
}

#[test]
fn a_rule_that_panics_while_the_executor_drafts_ends_its_request_and_no_other() {
    let world = World::new();
    let plain = world.plain();
    let spec = SpecConfig {
        method: SpecMethod::EarlyExit,
        exit_layers: Some(1),
        max_drafts: 1,
        is_forced: true,
        ..SpecConfig::default()
    };
    for call in [Call::Fork, Call::Allow, Call::Accept] {
        let rule = Faulty { call, n_seen: 0 };
        let (answers, metrics) = world.answers(Some(rule), spec, spec.proposers());
        let n_tokens = answers[FAULTY].0.len();
        // A draft is seen before the token at its place, and a step brings two tokens where it is right.
        assert!((PLACE - 1..=PLACE + 1).contains(&n_tokens), "{call:?}: {n_tokens}");
        check(&answers, &plain, n_tokens, &format!("{call:?}"));
        assert_eq!(metrics.n_panicked, 1, "{call:?}");
    }
}

#[test]
fn a_rule_that_panics_while_drafts_are_cut_costs_its_request_drafts_and_no_token() {
    let world = World::new();
    let spec = SpecConfig { max_drafts: 2, is_forced: true, ..SpecConfig::default() };
    let rule = Faulty { call: Call::Fork, n_seen: 0 };
    let (answers, metrics) = world.answers(Some(rule), spec, vec![Box::new(Always)]);
    assert_eq!(answers, world.plain());
    assert_eq!((metrics.n_panicked, metrics.spec.n_failures), (0, 1));
    assert!(metrics.spec.n_drafted > 0);
}

/// Drafts the last token again, twice.
#[derive(Debug)]
struct Always;

impl Proposer for Always {
    fn name(&self) -> &'static str {
        "always"
    }

    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    fn add(&mut self, _request: &Request) {}

    fn look(&mut self, _row: &Row<'_>, most: usize) -> (usize, usize) {
        (most, 1)
    }

    fn propose(
        &mut self,
        rows: &mut [Row<'_>],
        _odds: Option<&mut Odds>,
    ) -> Result<(), ProposerError> {
        for row in rows {
            row.drafts.extend(std::iter::repeat_n(row.tokens[row.tokens.len() - 1], row.n_drafts));
        }
        Ok(())
    }

    fn is_catching_up(&self, _row: &Row<'_>) -> bool {
        false
    }

    fn observe(&mut self, _seen: &Seen<'_>) {}

    fn finished(&mut self, _id: RequestId) {}
}

/// [`Always`], with a panic at one call.
#[derive(Debug)]
struct FaultyProposer {
    call: &'static str,
    n_calls: usize,
}

impl FaultyProposer {
    fn check(&mut self, call: &str) {
        if call == self.call {
            self.n_calls += 1;
            assert!(self.n_calls < 3, "as the test asked");
        }
        assert!(self.n_calls <= 3, "a proposer that panicked is called again");
    }
}

impl Proposer for FaultyProposer {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    fn add(&mut self, _request: &Request) {
        self.check("add");
    }

    fn look(&mut self, row: &Row<'_>, most: usize) -> (usize, usize) {
        self.check("look");
        Always.look(row, most)
    }

    fn propose(
        &mut self,
        rows: &mut [Row<'_>],
        odds: Option<&mut Odds>,
    ) -> Result<(), ProposerError> {
        Always.propose(rows, odds)?;
        self.check("propose");
        Ok(())
    }

    fn is_catching_up(&self, _row: &Row<'_>) -> bool {
        false
    }

    fn observe(&mut self, _seen: &Seen<'_>) {
        self.check("observe");
    }

    fn finished(&mut self, _id: RequestId) {
        self.check("finished");
    }
}

#[test]
fn a_proposer_that_panics_is_off_from_then_on_and_no_token_changes() {
    let world = World::new();
    let plain = world.plain();
    let spec = SpecConfig { max_drafts: 2, is_forced: true, ..SpecConfig::default() };
    for call in ["add", "look", "propose", "observe", "finished"] {
        let faulty = FaultyProposer { call, n_calls: 0 };
        let (answers, metrics) =
            world.answers(None, spec, vec![Box::new(faulty), Box::new(Always)]);
        assert_eq!(answers, plain, "{call}");
        assert_eq!((metrics.n_panicked, metrics.spec.n_failures), (0, 1), "{call}");
        assert!(metrics.spec.n_drafted > 0, "{call}: the other proposer drafts on");
    }
}
