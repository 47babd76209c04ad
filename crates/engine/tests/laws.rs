//! Same request, same tokens, through the real executor: architectures, weight formats, batches,
//! chunks, preemption, swapping, cached prefixes, choices that share a prompt, drafts, threads,
//! instruction sets. Log probabilities are compared too, to the bit.

use pelton_base::{
    Constraint, FinishReason, Request, RequestId, Rule, RuleState, SamplingParams, ServiceParams,
    Slo, TokenId, TokenSet, Usage,
};
use pelton_engine::spec::{DraftModel, Odds, Proposer, ProposerError, Row, Verification};
use pelton_engine::{
    Engine, EngineConfig, EngineHandle, EngineMetrics, Execution, Executor, ExecutorError,
    KvCapacity, KvMemory, ModelExecutor, ModelExecutorConfig, NewRequest, SampledToken, SpecConfig,
    SpecMethod, SpecStats, TokenStream,
};
use pelton_kernels::{Cpu, Kernels};
use pelton_model::{Compute, CpuBackend, LoadOptions, ModelFiles, export_gguf, load as load_model};
use pelton_sched::{Choices, PolicyKind, PreemptionMode, SchedulerOutput};
use pelton_testkit::golden::decoder_named;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tempfile::TempDir;

const FORMATS: [(&str, Compute); 4] = [
    ("F32", Compute::F32),
    ("BF16", Compute::Auto),
    ("Q8_0", Compute::Auto),
    ("Q4_0", Compute::Auto),
];
/// Fixtures of the model crate; the window of `mistral` is 8 tokens.
const FIXTURES: [&str; 4] = ["llama3", "mistral", "qwen2", "qwen3"];
const VOCAB: u32 = 256;

/// The fixture as a GGUF file of each format, with room for sequences of several KV chunks.
fn open(fixture: &str, format: &str) -> (ModelFiles, TempDir) {
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

/// A rule that asks something else of every token: that its third is the place, and that it is another
/// than the one before.
#[derive(Clone, Debug, Default)]
struct Comb {
    place: u32,
    last: Option<TokenId>,
    /// Where it allows nothing any more.
    end: Option<u32>,
    /// Whether drafts are made without knowing it.
    is_secret: bool,
}

impl Comb {
    fn allows(&self, token: TokenId) -> bool {
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

    fn fork(&self) -> Box<dyn RuleState> {
        self.begin()
    }
}

/// Eight requests: greedy and sampled in every way, the fourth of more than one KV chunk, the third and
/// the last under a rule, of which drafts for the last know nothing.
fn requests() -> Vec<NewRequest> {
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
        .map(|(i, sampling)| NewRequest {
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

/// Where and how requests are computed.
#[derive(Clone)]
struct World {
    kernels: &'static Kernels,
    n_threads: usize,
    n_blocks: u32,
    n_host_blocks: u32,
    sampled_vocab: Option<usize>,
    /// Whether drafts are trees.
    branches: bool,
    config: EngineConfig,
}

impl World {
    fn plain() -> Self {
        Self {
            kernels: Kernels::best(),
            n_threads: 1,
            n_blocks: 400,
            n_host_blocks: 0,
            sampled_vocab: None,
            branches: false,
            config: EngineConfig::default(),
        }
    }
}

type Answer = (Vec<SampledToken>, FinishReason, Usage);

fn collect(mut stream: TokenStream) -> Answer {
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

/// Makes one step for each that is sent, and all that it likes when the sender is gone.
struct Held<E> {
    inner: E,
    leave: Receiver<()>,
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

    fn report_candidates(&mut self, n: usize) {
        self.inner.report_candidates(n);
    }

    fn add(&mut self, request: &Request) {
        self.inner.add(request);
    }

    fn execute(
        &mut self,
        plan: &SchedulerOutput,
        execution: &mut Execution,
    ) -> Result<(), ExecutorError> {
        let _ = self.leave.recv();
        self.inner.execute(plan, execution)
    }

    fn finished(&mut self, id: RequestId) {
        self.inner.finished(id);
    }
}

/// The model as its own draft, with too little memory for everyone.
fn drafter(files: &ModelFiles, compute: Compute, world: &World) -> Box<dyn Proposer> {
    let backend = CpuBackend::new(Cpu::with(world.kernels, 1));
    let options = LoadOptions { compute, ..LoadOptions::default() };
    let decoder = load_model(files, backend, &options).expect("it loads");
    let draft = DraftModel::new(decoder, 4, KvMemory::Blocks(100), VOCAB as usize);
    Box::new(draft.expect("KV memory"))
}

/// An engine that waits for leave to make its first step.
fn start(files: &ModelFiles, compute: Compute, world: &World) -> (EngineHandle, Sender<()>) {
    let backend = CpuBackend::new(Cpu::with(world.kernels, world.n_threads));
    let options = LoadOptions { compute, ..LoadOptions::default() };
    let decoder = load_model(files, backend, &options).expect("it loads");
    let config = ModelExecutorConfig {
        block_size: 4,
        memory: KvMemory::Blocks(world.n_blocks),
        host_blocks: world.n_host_blocks,
        sampled_vocab: world.sampled_vocab,
        exit_layers: world.config.spec.exit_layers,
        verification: world.config.spec.verification,
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
    (Engine::spawn_with(Held { inner, leave }, world.config.clone(), proposers), hold)
}

/// What an engine counted, once it has nothing more to do.
fn stop(engine: EngineHandle) -> EngineMetrics {
    engine.shutdown(true);
    engine.join();
    let metrics = engine.metrics();
    assert_eq!(metrics.n_free_blocks, metrics.n_blocks, "no block is lost");
    metrics
}

/// Beside each draft of another proposer, and before it, one that is probably wrong: what is right has
/// to move.
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

    fn branches(&self) -> bool {
        true
    }

    fn finished(&mut self, id: RequestId) {
        self.0.finished(id);
    }
}

/// The answers to `requests`, submitted one after the other's end or all at once.
fn answers(
    files: &ModelFiles,
    compute: Compute,
    world: &World,
    requests: Vec<NewRequest>,
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
fn everything() -> EngineConfig {
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
fn chunked() -> Choices {
    Choices { max_batch_tokens: 37, max_chunk_tokens: Some(29), ..Choices::default() }
}

/// Drafts at every step, whatever they cost.
fn forced(method: SpecMethod) -> EngineConfig {
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

fn law_holds_for(fixture: &str) {
    for (format, compute) in FORMATS {
        let (files, _folder) = open(fixture, format);
        let plain = World::plain();
        let (alone, metrics) = answers(&files, compute, &plain, requests(), false);
        let n_tokens: usize = alone.iter().map(|(tokens, ..)| tokens.len()).sum();
        assert_eq!(
            n_tokens,
            requests().iter().map(|request| request.max_tokens).sum::<usize>(),
            "{fixture} {format}"
        );
        for i in [2, 7] {
            let (mut rule, tokens) = (Comb::default(), &alone[i].0);
            assert!(tokens.iter().all(|sampled| rule.accept(sampled.token)), "{tokens:?}");
        }
        let n_steps_alone = metrics.n_steps;

        let together = |what: &str, world: &World| {
            let (answers, metrics) = answers(&files, compute, world, requests(), true);
            for (i, (got, expected)) in answers.iter().zip(&alone).enumerate() {
                assert_eq!(got, expected, "{fixture} {format}: request {i}, {what}");
            }
            metrics
        };
        let metrics = together("in a batch of eight", &plain);
        assert!(metrics.n_steps * 4 < n_steps_alone, "they share steps: {metrics:?}");

        let chunks = EngineConfig { choices: chunked(), ..Default::default() };
        together("in chunks", &World { config: chunks, ..plain.clone() });

        let metrics = together("preempted", &World { n_blocks: 84, ..plain.clone() });
        assert!(metrics.n_preemptions > 0, "{metrics:?}");

        let choices = Choices { preemption: PreemptionMode::Swap, ..Choices::default() };
        let swap = EngineConfig { choices, ..Default::default() };
        let swapped = World { n_blocks: 84, n_host_blocks: 400, config: swap, ..plain.clone() };
        let metrics = together("swapped out", &swapped);
        assert!(metrics.swapped_in_blocks > 0, "{metrics:?}");

        let choices = Choices { prefix_cache: false, ..Choices::default() };
        let uncached = EngineConfig { choices, ..Default::default() };
        together("without a cache", &World { config: uncached, ..plain.clone() });

        let drafting = World { config: forced(SpecMethod::Draft), ..plain.clone() };
        let metrics = together("drafted by itself", &drafting);
        let SpecStats { n_drafted, n_accepted, .. } = metrics.spec;
        // It knows nothing of the penalties that two of the requests have.
        assert!(n_accepted * 2 > n_drafted && n_drafted > 30, "{metrics:?}");

        let metrics = together("drafted in trees", &World { branches: true, ..drafting });
        let SpecStats { n_drafted, n_accepted, .. } = metrics.spec;
        assert!(n_accepted * 6 > n_drafted && n_drafted > 90, "{metrics:?}");

        let drafting = World { config: forced(SpecMethod::EarlyExit), ..plain.clone() };
        let metrics = together("drafted by its first layer", &drafting);
        assert!(metrics.spec.n_drafted > 30, "{metrics:?}");
        // The whole model is right about itself, but for the penalties.
        let mut whole = drafting.clone();
        whole.config.spec.exit_layers = Some(2);
        let metrics = together("drafted by all its layers", &whole);
        let SpecStats { n_drafted, n_accepted, .. } = metrics.spec;
        assert!(n_accepted * 2 > n_drafted && n_drafted > 30, "{metrics:?}");

        for method in [SpecMethod::Ngram, SpecMethod::Suffix] {
            let drafting = World { config: forced(method), ..plain.clone() };
            let metrics = together(method.name(), &drafting);
            // A run of two tokens need not come again, a single one does.
            assert!(method == SpecMethod::Ngram || metrics.spec.n_drafted > 0, "{metrics:?}");
        }

        for method in [SpecMethod::Recycle, SpecMethod::Lookahead, SpecMethod::Auto] {
            let mut drafting = World { config: forced(method), ..plain.clone() };
            drafting.config.spec.recent_tokens = 64;
            let metrics = together(method.name(), &drafting);
            assert!(metrics.spec.n_drafted > 20, "{method:?}: {metrics:?}");
        }

        let all = World { n_threads: 2, config: everything(), ..swapped.clone() };
        let metrics = together("with everything at once", &all);
        assert!(metrics.spec.n_drafted > 0, "{metrics:?}");

        together("on two threads", &World { n_threads: 2, ..plain.clone() });
        for kernels in Kernels::available().skip(1) {
            together(kernels.name, &World { kernels, ..plain.clone() });
        }
    }
}

#[test]
fn llama_answers_alike_in_every_world() {
    law_holds_for(FIXTURES[0]);
}

#[test]
fn mistral_with_its_window_answers_alike_in_every_world() {
    law_holds_for(FIXTURES[1]);
}

#[test]
fn qwen2_answers_alike_in_every_world() {
    law_holds_for(FIXTURES[2]);
}

#[test]
fn qwen3_answers_alike_in_every_world() {
    law_holds_for(FIXTURES[3]);
}

/// Who wants no log probabilities: greedy ones are then told the likeliest token and get no logits, but
/// where a penalty or a rule wants them; who samples beside them does.
#[test]
fn what_gets_no_logits_answers_like_what_does() {
    let quiet = || -> Vec<NewRequest> {
        let quiet = |request: NewRequest| NewRequest {
            sampling: SamplingParams { logprobs: None, ..request.sampling },
            ..request
        };
        requests().into_iter().map(quiet).collect()
    };
    let tokens = |answers: &[Answer]| -> Vec<Vec<TokenId>> {
        let tokens = |(sampled, ..): &Answer| sampled.iter().map(|it| it.token).collect();
        answers.iter().map(tokens).collect()
    };
    for (format, compute) in FORMATS {
        let (files, _folder) = open("qwen2", format);
        for sampled_vocab in [None, Some(100)] {
            let plain = World { sampled_vocab, ..World::plain() };
            let told = tokens(&answers(&files, compute, &plain, requests(), false).0);
            let check = |what: &str, world: &World, together| {
                let (answers, metrics) = answers(&files, compute, world, quiet(), together);
                assert_eq!(tokens(&answers), told, "{format} {sampled_vocab:?}: {what}");
                metrics
            };
            check("alone", &plain, false);
            check("together", &plain, true);
            check("on three threads", &World { n_threads: 3, ..plain.clone() }, true);
            for method in [SpecMethod::Suffix, SpecMethod::Draft, SpecMethod::EarlyExit] {
                let drafting = World { config: forced(method), ..plain.clone() };
                check(method.name(), &drafting, true);
                // The executor makes drafts of early exits later: nothing can branch off them here.
                if method != SpecMethod::EarlyExit {
                    let metrics = check("in trees", &World { branches: true, ..drafting }, true);
                    assert!(metrics.spec.n_drafted > 0, "{method:?}: {metrics:?}");
                }
            }
            // Asks for the likeliest tokens of all rows.
            check(
                "recycling",
                &World { config: forced(SpecMethod::Recycle), ..plain.clone() },
                true,
            );
            for kernels in Kernels::available().skip(1) {
                check(kernels.name, &World { kernels, ..plain.clone() }, true);
            }
            // Judged by chance, greedy answers are what they were.
            for verification in [Verification::Rejection, Verification::Typical] {
                let mut drafting = World { config: forced(SpecMethod::Draft), ..plain.clone() };
                drafting.config.spec.verification = verification;
                let (answers, _) = answers(&files, compute, &drafting, quiet(), true);
                let got = tokens(&answers);
                for i in [0, 3, 6, 7] {
                    assert_eq!(got[i], told[i], "{format}: {verification:?}, request {i}");
                }
            }
        }
    }
}

/// Weights that are no numbers end every request with an error, whoever looks at the logits.
#[test]
fn damaged_weights_end_a_request_with_or_without_logits() {
    let (_, folder) = open("llama3", "BF16");
    let path = folder.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).expect("weights");
    let n_header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    bytes[8 + n_header..].fill(0xff);
    std::fs::write(&path, bytes).expect("weights");
    std::fs::remove_file(folder.path().join("model.gguf")).expect("ours");
    let files = ModelFiles::open(folder.path()).expect("a model");
    for method in [SpecMethod::Off, SpecMethod::Draft, SpecMethod::EarlyExit] {
        let world = World { config: forced(method), ..World::plain() };
        for logprobs in [None, Some(1)] {
            let asked = requests().into_iter().map(|request| NewRequest {
                sampling: SamplingParams { logprobs, ..request.sampling },
                ..request
            });
            let (ended, _) = answers(&files, Compute::Auto, &world, asked.collect(), true);
            for (tokens, finish, _) in ended {
                assert_eq!((tokens.len(), finish), (0, FinishReason::Error), "{method:?}");
            }
        }
    }
}

/// Requests of which each comes a second time, and choices of one prompt, which goes on with what
/// the first computed.
#[test]
fn what_is_cached_or_shared_answers_like_what_is_computed() {
    for format in ["Q8_0", "BF16"] {
        let (files, _folder) = open("qwen3", format);
        let plain = World::plain();
        let (alone, _) = answers(&files, Compute::Auto, &plain, requests(), false);
        for n_blocks in [400, 84] {
            let twice = requests().into_iter().chain(requests()).collect();
            let world = World { n_blocks, ..plain.clone() };
            let (again, metrics) = answers(&files, Compute::Auto, &world, twice, false);
            assert_eq!(again[..8], alone[..], "{format}, {n_blocks} blocks");
            assert_eq!(again[8..], alone[..], "{format}, {n_blocks} blocks, the second time");
            assert!(metrics.cached_prompt_tokens > 0, "{metrics:?}");
            assert!(n_blocks < 400 || metrics.copied_blocks > 0, "{metrics:?}");
        }
        // All choices of the fourth request, whose prompt does not end with a block.
        let choices = |fork_of: Option<RequestId>| {
            let service = ServiceParams { fork_of, ..ServiceParams::default() };
            let request = requests().swap_remove(4);
            (0..3).map(move |choice| NewRequest { choice, service, ..request.clone() }).collect()
        };
        let (apart, _) = answers(&files, Compute::Auto, &plain, choices(None), false);
        let fork = Some(RequestId(0));
        let (forked, metrics) = answers(&files, Compute::Auto, &plain, choices(fork), true);
        assert_eq!(forked, apart, "{format}");
        assert!(metrics.copied_blocks >= 2, "{metrics:?}");
    }
}

/// A rule under which an answer cannot go on ends it with an error, drafted or not, and nobody else's.
#[test]
fn a_rule_that_allows_nothing_ends_its_request_alone() {
    let (files, _folder) = open("llama3", "BF16");
    let (alone, _) = answers(&files, Compute::Auto, &World::plain(), requests(), false);
    let mut asked = requests();
    let end = Comb { end: Some(3), ..Comb::default() };
    asked[2].constraint = Some(Constraint(Arc::new(end)));
    for method in [SpecMethod::Off, SpecMethod::Suffix, SpecMethod::Draft, SpecMethod::EarlyExit] {
        let world = World { config: forced(method), ..World::plain() };
        let (mut ended, _) = answers(&files, Compute::Auto, &world, asked.clone(), true);
        let (tokens, finish, _) = ended.remove(2);
        assert_eq!(finish, FinishReason::Error, "{method:?}");
        assert!(alone[2].0.starts_with(&tokens) && tokens.len() <= 3, "{tokens:?}");
        assert_eq!((&ended[..2], &ended[2..]), (&alone[..2], &alone[3..]), "{method:?}");
    }
}

/// The same requests where every other token would end the answer, and each has to have so many first;
/// the sixth as many as it may have at all, the last none.
fn bounded() -> Vec<NewRequest> {
    let min_tokens = [1, 4, 7, 11, 5, 13, 8, 0];
    let ends: Vec<TokenId> = (0..VOCAB).step_by(2).map(TokenId).collect();
    let bounded = requests().into_iter().zip(min_tokens).map(|(request, min_tokens)| NewRequest {
        sampling: SamplingParams { min_tokens, ..request.sampling },
        stop_tokens: ends.clone(),
        ..request
    });
    bounded.collect()
}

/// Where an answer may not end yet, what would end it is masked place by place: drafts are of four
/// tokens, so those of most requests go across the place from which on it may.
#[test]
fn an_answer_that_may_not_end_yet_is_the_same_in_every_world() {
    let is_end = |sampled: &SampledToken| sampled.token.0.is_multiple_of(2);
    for format in ["BF16", "Q8_0"] {
        let (files, _folder) = open("llama3", format);
        let plain = World::plain();
        let (alone, _) = answers(&files, Compute::Auto, &plain, bounded(), false);
        for ((tokens, finish, _), asked) in alone.iter().zip(bounded()) {
            let n_before = tokens.iter().position(is_end).unwrap_or(tokens.len());
            assert!(n_before >= asked.sampling.min_tokens, "{tokens:?}");
            let ended = (n_before + 1 == tokens.len(), *finish);
            let cut = (n_before == asked.max_tokens, FinishReason::Length);
            assert!(ended == (true, FinishReason::Stop) || cut.0 && *finish == cut.1, "{tokens:?}");
        }
        // The model's own log probabilities are told: what it would have said may be an end.
        let all = || alone.iter().flat_map(|(tokens, ..)| tokens);
        let likeliest = |sampled: &SampledToken| sampled.logprobs.as_ref().expect("asked").top[0].0;
        let n_masked =
            all().filter(|sampled| !is_end(sampled) && likeliest(sampled).0 % 2 == 0).count();
        assert!(n_masked > 15, "{n_masked}");

        let together = |what: &str, world: &World| {
            let (answers, metrics) = answers(&files, Compute::Auto, world, bounded(), true);
            for (i, (got, expected)) in answers.iter().zip(&alone).enumerate() {
                assert_eq!(got, expected, "{format}: request {i}, {what}");
            }
            metrics
        };
        let metrics = together("preempted", &World { n_blocks: 74, ..plain.clone() });
        assert!(metrics.n_preemptions > 0, "{metrics:?}");
        let all = World { n_blocks: 84, n_host_blocks: 400, config: everything(), ..plain.clone() };
        together("with everything at once", &all);
        for method in SpecMethod::ALL.iter().filter(|method| **method != SpecMethod::Off) {
            let mut world = World { config: forced(*method), ..plain.clone() };
            world.config.spec.recent_tokens = 64;
            let metrics = together(method.name(), &world);
            assert!(*method == SpecMethod::Ngram || metrics.spec.n_drafted > 0, "{metrics:?}");
            if [SpecMethod::Suffix, SpecMethod::Draft].contains(method) {
                together("drafted in trees", &World { branches: true, ..world });
            }
        }
        // The whole model masks its own drafts as it masks what it says.
        let mut itself = World { config: forced(SpecMethod::EarlyExit), ..plain.clone() };
        itself.config.spec.exit_layers = Some(2);
        for world in [itself, World { config: forced(SpecMethod::Draft), ..plain.clone() }] {
            let SpecStats { n_drafted, n_accepted, .. } = together("by itself", &world).spec;
            assert!(n_accepted * 2 > n_drafted && n_drafted > 30, "{n_accepted} of {n_drafted}");
        }

        let twice = bounded().into_iter().chain(bounded()).collect();
        let (again, metrics) = answers(&files, Compute::Auto, &plain, twice, false);
        assert_eq!((&again[..8], &again[8..]), (&alone[..], &alone[..]), "{format}, cached");
        assert!(metrics.cached_prompt_tokens > 0, "{metrics:?}");
        let choices = |fork_of: Option<RequestId>| {
            let service = ServiceParams { fork_of, ..ServiceParams::default() };
            let request = bounded().swap_remove(4);
            (0..3).map(move |choice| NewRequest { choice, service, ..request.clone() }).collect()
        };
        let (apart, _) = answers(&files, Compute::Auto, &plain, choices(None), false);
        let fork = Some(RequestId(0));
        let (forked, _) = answers(&files, Compute::Auto, &plain, choices(fork), true);
        assert_eq!(forked, apart, "{format}, choices");
    }
}

/// Where all tokens would end an answer that may not end, it ends with an error, and nobody else's.
#[test]
fn an_answer_that_can_neither_end_nor_go_on_ends_alone() {
    let (files, _folder) = open("llama3", "BF16");
    let (alone, _) = answers(&files, Compute::Auto, &World::plain(), requests(), false);
    let mut asked = requests();
    asked[1].stop_tokens = (0..VOCAB).map(TokenId).collect();
    asked[1].sampling.min_tokens = 1;
    for method in [SpecMethod::Off, SpecMethod::EarlyExit] {
        let world = World { config: forced(method), ..World::plain() };
        let (mut ended, _) = answers(&files, Compute::Auto, &world, asked.clone(), true);
        let (tokens, finish, _) = ended.remove(1);
        assert_eq!((tokens, finish), (Vec::new(), FinishReason::Error));
        assert_eq!((&ended[..1], &ended[1..]), (&alone[..1], &alone[2..]), "{method:?}");
    }
}

/// A request that goes on from where another's answer is just now, as beams do.
#[test]
fn a_fork_of_an_answer_answers_like_one_that_computes_it_all() {
    let (files, _folder) = open("qwen3", "Q8_0");
    let request = |prompt, max_tokens, fork_of| NewRequest {
        prompt,
        max_tokens,
        service: ServiceParams { fork_of, ..ServiceParams::default() },
        ..requests().swap_remove(4)
    };
    let choices = Choices { prefix_cache: false, ..Choices::default() };
    let uncached = EngineConfig { choices, ..Default::default() };
    for config in [EngineConfig::default(), uncached] {
        let world = World { config, ..World::plain() };
        let (engine, step) = start(&files, Compute::Auto, &world);
        let mut prompt: Vec<TokenId> = (1..20).map(TokenId).collect();
        let mut parent = engine.submit(request(prompt.clone(), 60, None)).expect("taken");
        for _ in 0..20 {
            step.send(()).expect("it runs");
            let event = parent.blocking_recv().expect("a token a step");
            prompt.extend(event.tokens.iter().map(|sampled| sampled.token));
        }
        // One token of its own, three less than the other has, and all that it has.
        let mut forks: Vec<Vec<TokenId>> = vec![prompt.clone(), prompt.clone(), prompt];
        forks[0].push(TokenId(9));
        forks[1].truncate(36);
        let asked = forks.into_iter().map(|prompt| request(prompt, 30, Some(parent.id())));
        let asked: Vec<NewRequest> = asked.collect();
        let submitted: Vec<TokenStream> =
            asked.iter().map(|fork| engine.submit(fork.clone()).expect("taken")).collect();
        drop(step);
        let forked: Vec<Answer> = submitted.into_iter().map(collect).collect();
        collect(parent);
        let metrics = stop(engine);
        assert!(metrics.cached_prompt_tokens >= 38 + 35 + 38, "{metrics:?}");
        assert!(metrics.copied_blocks >= 2, "{metrics:?}");
        let (alone, _) = answers(&files, Compute::Auto, &World::plain(), asked, false);
        assert_eq!(forked, alone);
    }
}

#[test]
fn rows_of_padding_are_neither_sampled_nor_reported() {
    const N_REAL: usize = 50;
    let (files, _folder) = open("llama3", "Q8_0");
    let requests: Vec<NewRequest> = [0.0, 5.0]
        .map(|temperature| NewRequest {
            prompt: vec![TokenId(1), TokenId(200)],
            sampling: SamplingParams {
                temperature,
                logprobs: Some(20),
                logit_bias: vec![(TokenId(VOCAB - 1), 100.0)],
                ..SamplingParams::default()
            },
            choice: 0,
            max_tokens: 60,
            stop_tokens: Vec::new(),
            service: ServiceParams::default(),
            prediction: Vec::new(),
            constraint: None,
        })
        .into();
    let run = |sampled_vocab| {
        let world = World { sampled_vocab, ..World::plain() };
        answers(&files, Compute::Auto, &world, requests.clone(), true).0
    };
    for (tokens, ..) in run(Some(N_REAL)) {
        assert_eq!(tokens.len(), 60);
        for SampledToken { token, logprobs } in tokens {
            let top = logprobs.expect("asked for").top;
            assert_eq!(top.len(), 20);
            let ids = top.iter().map(|(id, _)| id).chain([&token]);
            assert!(ids.into_iter().all(|id| (id.0 as usize) < N_REAL), "{token}, {top:?}");
        }
    }
    let all = run(None);
    assert_eq!(all, run(Some(0)));
    assert_eq!(all, run(Some(VOCAB as usize + 1)));
    assert!(all.iter().flat_map(|answer| &answer.0).all(|sampled| sampled.token.0 == VOCAB - 1));
}
