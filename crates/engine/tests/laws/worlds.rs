//! Where and how requests are computed: models, requests, engines.

use pelton_base::{
    Ask, Constraint, FinishReason, Request, RequestId, Rule, RuleState, SamplingParams,
    ServiceParams, Slo, TokenId, TokenSet, Usage,
};
use pelton_engine::spec::{
    Abilities, DraftModel, Odds, Proposer, ProposerError, Row, Seen, Verification,
};
use pelton_engine::{
    Drafting, Engine, EngineConfig, EngineHandle, EngineMetrics, Execution, Executor,
    ExecutorError, Extras, KvCapacity, KvMemory, ModelExecutor, ModelExecutorConfig, Panicked,
    SampledToken, Sources, SpecConfig, SpecMethod, TokenStream,
};
use pelton_kernels::{Cpu, Kernels};
use pelton_model::{
    Compute, CpuDevice, LoadOptions, ModelFiles, StateDtype, export_gguf, load as load_model,
};
use pelton_sched::{Choices, PolicyKind, PreemptionMode, SchedulerOutput};
use pelton_testkit::golden::decoder_named;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tempfile::TempDir;

pub(crate) const FORMATS: [(&str, Compute); 4] = [
    ("F32", Compute::F32),
    ("BF16", Compute::Auto),
    ("Q8_0", Compute::Auto),
    ("Q4_0", Compute::Auto),
];
/// Fixtures of the model crate; the window of `mistral` is 8 tokens.
pub(crate) const FIXTURES: [&str; 4] = ["llama3", "mistral", "qwen2", "qwen3"];
pub(crate) const VOCAB: u32 = 256;
/// Tokens of a block.
pub(crate) const BLOCK: usize = 4;

/// The fixture as a GGUF file of this format, with room for sequences of several KV chunks.
pub(crate) fn open(fixture: &str, format: &str) -> (ModelFiles, TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    decoder_named(fixture).checkpoint.write_bare_folder(folder.path());
    let config = std::fs::read_to_string(folder.path().join("config.json")).expect("config");
    let (short, long) = ("\"max_position_embeddings\": 128", "\"max_position_embeddings\": 512");
    assert!(config.contains(short));
    std::fs::write(folder.path().join("config.json"), config.replace(short, long)).expect("config");
    let file = folder.path().join("model.gguf");
    let files = ModelFiles::open(folder.path()).expect(fixture);
    export_gguf(&files, format, &file, None).expect(fixture);
    (ModelFiles::open(&file).expect(fixture), folder)
}

/// The folder of a fixture, with room for sequences of several chunks and windows.
pub(crate) fn open_folder(fixture: &str) -> (ModelFiles, TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    decoder_named(fixture).checkpoint.write_bare_folder(folder.path());
    let path = folder.path().join("config.json");
    let config = std::fs::read_to_string(&path).expect("config");
    let names = ["max_position_embeddings", "model_max_length"];
    let longer = names.iter().fold(config, |config, name| {
        config
            .replace(&format!("\"{name}\": 128"), &format!("\"{name}\": 512"))
            .replace(&format!("\"{name}\": 256"), &format!("\"{name}\": 1024"))
    });
    std::fs::write(&path, longer).expect("config");
    (ModelFiles::open(folder.path()).expect(fixture), folder)
}

/// A rule that depends on the place: token `i` of an answer is `i` modulo 3, and differs from the
/// token before it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Comb {
    pub(crate) place: u32,
    pub(crate) last: Option<TokenId>,
    /// Place at which it allows nothing.
    pub(crate) end: Option<u32>,
    /// Whether drafts are made without regard to it.
    pub(crate) is_secret: bool,
}

impl Comb {
    pub(crate) fn allows(&self, token: TokenId) -> bool {
        self.end != Some(self.place) && token.0 % 3 == self.place % 3 && Some(token) != self.last
    }
}

impl Rule for Comb {
    fn begin(&self) -> Box<dyn RuleState> {
        Box::new(self.clone())
    }

    fn binds_drafts(&self) -> bool {
        !self.is_secret
    }
}

impl RuleState for Comb {
    fn allow(&mut self, allowed: &mut TokenSet) {
        (0..VOCAB).map(TokenId).filter(|&token| self.allows(token)).for_each(|t| allowed.insert(t));
    }

    fn accept(&mut self, token: TokenId) -> bool {
        let is_allowed = self.allows(token);
        if is_allowed {
            (self.place, self.last) = (self.place + 1, Some(token));
        }
        is_allowed
    }

    fn forced(&mut self, _tokens: &mut Vec<TokenId>) {}

    fn stuck(&self) -> Option<String> {
        None
    }

    fn fork(&self) -> Box<dyn RuleState> {
        self.begin()
    }
}

/// Eight requests: greedy and sampled in every way. The prompt of the fourth is longer than one KV
/// chunk; the third and the last are under a rule, and drafts for the last are made without it.
pub(crate) fn requests() -> Vec<Ask> {
    let plain = SamplingParams::default();
    let greedy = SamplingParams::greedy();
    let sampling = [
        greedy.clone(),
        plain.clone(),
        SamplingParams { top_p: 0.8, ..plain.clone() },
        greedy.clone(),
        SamplingParams { temperature: 0.7, top_k: 20, top_p: 0.9, ..plain.clone() },
        SamplingParams { repetition_penalty: 1.3, min_p: 0.02, ..plain },
        SamplingParams { frequency_penalty: 0.5, ..greedy.clone() },
        greedy,
    ];
    (0..8_u32)
        .zip(sampling)
        .map(|(i, sampling)| Ask {
            prompt: (0..if i == 3 { 261 } else { 3 + i * 5 % 17 })
                // The seventh repeats itself, so that there is something to guess.
                .map(|j| if i == 6 { j % 2 } else { j })
                .map(|j| TokenId((i * 31 + j * 7 + j * j) % VOCAB))
                .collect(),
            sampling: SamplingParams { seed: u64::from(i), logprobs: Some(3), ..sampling },
            choice: i % 3,
            // The long one goes on alone: its chunks are then what threads share.
            max_tokens: if i == 3 { 24 } else { 8 + i as usize },
            stop_tokens: Vec::new(),
            service: ServiceParams::default(),
            prediction: Vec::new(),
            constraint: (i == 2 || i == 7)
                .then(|| Constraint(Arc::new(Comb { is_secret: i == 7, ..Comb::default() }))),
        })
        .collect()
}

/// A greedy request without a rule.
pub(crate) fn ask(prompt: Vec<TokenId>, max_tokens: usize) -> Ask {
    Ask {
        prompt,
        max_tokens,
        sampling: SamplingParams { logprobs: Some(2), ..SamplingParams::greedy() },
        ..requests().swap_remove(0)
    }
}

/// Tokens that are others for another seed.
pub(crate) fn tokens(seed: u32, n: usize) -> Vec<TokenId> {
    (0..n as u32).map(|i| TokenId((seed * 31 + i * 7 + i * i) % VOCAB)).collect()
}

/// Holds a conversation whose turns add 30 tokens and are answered by 20, the first by 90, and compares
/// each answer with that of its prompt alone. Returns the tokens of all prompts, and how many of them
/// were cached.
pub(crate) fn conversation(files: &ModelFiles, world: &World, n_turns: u32) -> (usize, usize) {
    let (engine, hold) = start(files, Compute::Auto, world);
    drop(hold);
    let mut text = tokens(1, 90);
    let (mut n_prompt, mut turns) = (0, Vec::new());
    for turn in 0..n_turns {
        let answer = collect(engine.submit(ask(text.clone(), 20)).expect("taken"));
        turns.push((text.clone(), answer.clone()));
        n_prompt += text.len();
        text.extend(answer.0.iter().map(|sampled| sampled.token));
        text.extend(tokens(turn + 2, 30));
    }
    let metrics = stop(engine);
    for (prompt, answer) in turns {
        let alone = answers(files, Compute::Auto, world, vec![ask(prompt, 20)], false);
        assert_eq!(answer, alone.0[0]);
    }
    (n_prompt, metrics.cached_prompt_tokens as usize)
}

/// Where and how requests are computed.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) kernels: &'static Kernels,
    pub(crate) n_threads: usize,
    /// Blocks of tokens that there is room for; layers with a window take as much again for each of their
    /// groups.
    pub(crate) n_blocks: u32,
    /// Blocks of the pool, in place of that.
    pub(crate) pool: Option<u32>,
    pub(crate) n_host_blocks: u32,
    pub(crate) sampled_vocab: Option<usize>,
    /// How states are stored.
    pub(crate) state_dtype: StateDtype,
    /// Whether drafts are trees.
    pub(crate) branches: bool,
    /// The executor panics once, here.
    pub(crate) panics: Option<(Moment, usize)>,
    pub(crate) config: EngineConfig,
}

/// A moment of a step, counted from 0.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Moment {
    BeforeLaunch,
    AfterLaunch,
    /// Before the outcome reaches the scheduler.
    AfterCollect,
}

impl World {
    pub(crate) fn plain() -> Self {
        Self {
            kernels: Kernels::best(),
            n_threads: 1,
            n_blocks: 400,
            pool: None,
            n_host_blocks: 0,
            sampled_vocab: None,
            state_dtype: StateDtype::F32,
            branches: false,
            panics: None,
            config: EngineConfig::default(),
        }
    }
}

pub(crate) type Answer = (Vec<SampledToken>, FinishReason, Usage);

pub(crate) fn collect(mut stream: TokenStream) -> Answer {
    let mut tokens = Vec::new();
    while let Some(event) = stream.blocking_recv() {
        tokens.extend(event.tokens);
        if let Some(reason) = event.finish {
            // How an answer came about may differ, what it says may not.
            let Usage { prompt_tokens, completion_tokens, .. } = event.usage;
            let usage = Usage { prompt_tokens, completion_tokens, ..Usage::default() };
            return (tokens, reason, usage);
        }
    }
    panic!("the stream broke off without an end");
}

/// An executor that makes one step per message, and as many as it likes once the sender is dropped.
struct Held<E> {
    inner: E,
    leave: Receiver<()>,
    panics: Option<(Moment, usize)>,
    n_steps: usize,
}

impl<E> Held<E> {
    fn pass(&mut self, moment: Moment) {
        if self.panics == Some((moment, self.n_steps)) {
            self.panics = None;
            panic!("as the test asked");
        }
    }
}

impl<E: Executor> Executor for Held<E> {
    fn kv_capacity(&self) -> KvCapacity {
        self.inner.kv_capacity()
    }

    fn vocab_size(&self) -> usize {
        self.inner.vocab_size()
    }

    fn max_context_tokens(&self) -> usize {
        self.inner.max_context_tokens()
    }

    fn sources(&self) -> Option<Sources> {
        self.inner.sources()
    }

    fn drafting(&mut self) -> Option<&mut dyn Drafting> {
        self.inner.drafting()
    }

    fn add(&mut self, request: &Request, extras: Extras) -> Result<(), Panicked> {
        self.inner.add(request, extras)
    }

    fn launch(&mut self, plan: &SchedulerOutput) {
        let _ = self.leave.recv();
        self.pass(Moment::BeforeLaunch);
        self.inner.launch(plan);
        self.pass(Moment::AfterLaunch);
    }

    fn collect(
        &mut self,
        plan: &SchedulerOutput,
        execution: &mut Execution,
    ) -> Result<(), ExecutorError> {
        let outcome = self.inner.collect(plan, execution);
        self.pass(Moment::AfterCollect);
        self.n_steps += 1;
        outcome
    }

    fn finished(&mut self, id: RequestId) {
        self.inner.finished(id);
    }

    fn reset(&mut self) {
        self.inner.reset();
    }
}

/// The model as its own draft, with too little memory for all requests.
fn drafter(files: &ModelFiles, compute: Compute, world: &World) -> Box<dyn Proposer> {
    let backend = CpuDevice::new(Cpu::with(world.kernels, 1));
    let options = LoadOptions { compute, ..LoadOptions::default() };
    let decoder = load_model(files, backend, &options).expect("it loads");
    let draft = DraftModel::new(decoder, 4, KvMemory::Blocks(100), VOCAB as usize);
    Box::new(draft.expect("KV memory"))
}

/// An engine that waits for a message, or for the end of the sender, before its first step.
pub(crate) fn start(
    files: &ModelFiles,
    compute: Compute,
    world: &World,
) -> (EngineHandle, Sender<()>) {
    let backend = CpuDevice::new(Cpu::with(world.kernels, world.n_threads));
    let state_dtype = world.state_dtype;
    let options = LoadOptions { compute, state_dtype, ..LoadOptions::default() };
    let decoder = load_model(files, backend, &options).expect("it loads");
    let n_groups = decoder.spec().kv_windows().map_or(1, |windows| windows.n_groups() as u32);
    let config = ModelExecutorConfig {
        block_size: BLOCK,
        memory: KvMemory::Blocks(world.pool.unwrap_or(world.n_blocks * n_groups)),
        host_blocks: world.n_host_blocks,
        sampled_vocab: world.sampled_vocab,
        exit_layers: world.config.spec.exit_layers,
        verification: world.config.spec.verification,
        states: Default::default(),
    };
    let inner = ModelExecutor::new(decoder, config).expect("KV memory");
    let (hold, leave) = channel();
    let mut proposers = world.config.spec.proposers();
    if world.config.spec.method == SpecMethod::Draft {
        proposers.push(drafter(files, compute, world));
    }
    if world.branches {
        proposers = proposers.into_iter().map(|it| Box::new(Bushes(it)) as _).collect();
    }
    let executor = Held { inner, leave, panics: world.panics, n_steps: 0 };
    (Engine::spawn_with(executor, world.config.clone(), proposers), hold)
}

/// Ends an engine that has finished its requests, and returns what it counted.
pub(crate) fn stop(engine: EngineHandle) -> EngineMetrics {
    engine.shutdown(true);
    engine.join();
    let metrics = engine.metrics();
    assert_eq!(metrics.n_free_blocks, metrics.n_blocks, "no block is lost");
    metrics
}

/// Puts a draft that is probably wrong before each draft of another proposer, so that the right one
/// has to move.
#[derive(Debug)]
struct Bushes(Box<dyn Proposer>);

impl Proposer for Bushes {
    fn name(&self) -> &'static str {
        "bushes"
    }

    fn add(&mut self, request: &Request) {
        self.0.add(request);
    }

    fn look(&mut self, row: &Row<'_>, most: usize) -> (usize, usize) {
        self.0.look(row, most)
    }

    fn propose(
        &mut self,
        rows: &mut [Row<'_>],
        odds: Option<&mut Odds>,
    ) -> Result<(), ProposerError> {
        self.0.propose(rows, odds)?;
        for row in rows {
            let trunk = row.drafts.tokens().to_vec();
            row.drafts.clear();
            let mut parent = None;
            for token in trunk {
                let wrong = row.drafts.push(parent, TokenId((token.0 + 1) % VOCAB));
                row.drafts.push(Some(wrong), token);
                parent = Some(row.drafts.push(parent, token));
            }
            row.n_drafts = row.drafts.len();
        }
        Ok(())
    }

    fn abilities(&self) -> Abilities {
        Abilities { branches: true, ..self.0.abilities() }
    }

    fn is_catching_up(&self, row: &Row<'_>) -> bool {
        self.0.is_catching_up(row)
    }

    fn observe(&mut self, seen: &Seen<'_>) {
        self.0.observe(seen);
    }

    fn finished(&mut self, id: RequestId) {
        self.0.finished(id);
    }
}

/// The answers to `requests`, submitted all at once or each after the end of the one before.
pub(crate) fn answers(
    files: &ModelFiles,
    compute: Compute,
    world: &World,
    requests: Vec<Ask>,
    together: bool,
) -> (Vec<Answer>, EngineMetrics) {
    let (engine, hold) = start(files, compute, world);
    let submit = |request| engine.submit(request).expect("taken");
    let answers = if together {
        let streams: Vec<TokenStream> = requests.into_iter().map(submit).collect();
        drop(hold);
        streams.into_iter().map(collect).collect()
    } else {
        drop(hold);
        requests.into_iter().map(|request| collect(submit(request))).collect()
    };
    (answers, stop(engine))
}

/// Chunks, swapping, a cache, drafts, and a policy that reorders.
pub(crate) fn everything() -> EngineConfig {
    EngineConfig {
        choices: Choices {
            slo: Slo { ttft: None, tpot: Some(Duration::from_millis(1)) },
            policy: PolicyKind::Sla,
            preemption: PreemptionMode::Swap,
            ..chunked()
        },
        spec: SpecConfig { max_drafts: 3, ..forced(SpecMethod::Suffix).spec },
        ..Default::default()
    }
}

/// Small steps, and chunks smaller still.
pub(crate) fn chunked() -> Choices {
    Choices { max_batch_tokens: 37, max_chunk_tokens: Some(29), ..Choices::default() }
}

/// Drafts at every step, whatever they cost.
pub(crate) fn forced(method: SpecMethod) -> EngineConfig {
    let exit_layers = (method == SpecMethod::EarlyExit).then_some(1);
    let spec = SpecConfig {
        method,
        max_drafts: 4,
        exit_layers,
        recent_tokens: 0,
        verification: Verification::Match,
        is_forced: true,
    };
    EngineConfig { spec, ..Default::default() }
}
