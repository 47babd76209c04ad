//! One server, its clients, and the hand that decides who acts next.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use futures_util::FutureExt;
use pelton_base::{SamplingParams, TokenId};
use pelton_engine::spec::{Proposer, Verification};
use pelton_engine::{Engine, EngineConfig, Executor, ManualEngine, SpecConfig, SpecMethod};
use pelton_llm::{Dialect, Llm, LlmInfo, LlmOptions, LlmParts};
use pelton_sched::{Batching, Choices, PolicyKind, PreemptionMode};
use pelton_sim::Random;
use pelton_text::Tokenizer;
use serde_json::json;
use tokio::task::JoinHandle;

use super::client::{self, End, Plan};
use super::fake::{FakeExecutor, VOCAB};
use super::faults::{Faulty, FaultyProposer, Happened, Rates};
use super::one_in;
use crate::ServeConfig;
use crate::gateway::{Gateway, GatewayConfig};
use crate::models::{Catalog, Served};
use crate::routes::router;
use crate::state::AppState;

const CONTEXT: usize = 64;
/// The token that ends an answer.
const END: TokenId = TokenId(VOCAB as u32 - 4);

/// Events of one seed, or of many.
#[derive(Clone, Debug, Default)]
pub(super) struct Deeds {
    n_answers: u64,
    n_left: u64,
    /// By status and code.
    errors: BTreeMap<(u16, String), u64>,
    n_faults: u64,
    n_restarts: u64,
    n_failed_engines: u64,
    n_preemptions: u64,
    n_swapped: u64,
    n_drafted: u64,
    n_proposer_failures: u64,
}

impl Deeds {
    pub(super) fn add(&mut self, other: &Self) {
        self.n_answers += other.n_answers;
        self.n_left += other.n_left;
        for (error, n) in &other.errors {
            *self.errors.entry(error.clone()).or_default() += n;
        }
        self.n_faults += other.n_faults;
        self.n_restarts += other.n_restarts;
        self.n_failed_engines += other.n_failed_engines;
        self.n_preemptions += other.n_preemptions;
        self.n_swapped += other.n_swapped;
        self.n_drafted += other.n_drafted;
        self.n_proposer_failures += other.n_proposer_failures;
    }

    /// Fails where the seeds have not seen all that the simulation is about.
    pub(super) fn check_coverage(&self) {
        let Self { n_answers, n_left, n_faults, n_restarts, n_failed_engines, .. } = self;
        let Self { n_preemptions, n_swapped, n_drafted, n_proposer_failures, .. } = self;
        let all = [n_answers, n_left, n_faults, n_restarts, n_failed_engines];
        let more = [n_preemptions, n_swapped, n_drafted, n_proposer_failures];
        assert!(all.into_iter().chain(more).all(|n| *n > 0), "{self:?}");
        for code in ["none", "shutting_down", "engine_failed", "rate_limit_exceeded"] {
            assert!(self.errors.keys().any(|(_, known)| known == code), "no {code}: {self:?}");
        }
    }
}

/// A server in this process.
struct House {
    llm: Arc<Llm>,
    state: AppState,
    router: Router,
    engine: ManualEngine,
    /// Whether the engine's loop goes on.
    runs: bool,
}

impl House {
    fn new(
        executor: impl Executor,
        config: EngineConfig,
        proposers: Vec<Box<dyn Proposer>>,
    ) -> Self {
        let (engine, manual) = Engine::manual(executor, config, proposers);
        let info = LlmInfo {
            name: "simulated".to_owned(),
            architecture: "Fake".to_owned(),
            vocab_size: VOCAB,
            context_tokens: CONTEXT,
            weight_bytes: 0,
            loaded_bytes: 0,
            rounded_to: None,
            kv_bytes: 0,
            kv_bytes_per_token: 0,
            n_long_requests: 0,
            states: Default::default(),
            n_threads: 1,
        };
        let llm = Arc::new(
            Llm::from_parts(LlmParts {
                info,
                has_text: true,
                tokenizer: tokenizer(),
                template: Err("it has none".to_owned()),
                dialect: Dialect::choose(None, &LlmOptions::default()).expect("known"),
                engine,
                eos: vec![END],
                sampling: Some(SamplingParams::greedy()),
                suppressed: Default::default(),
                share_prefixes: true,
                verification: Verification::Match,
            })
            .expect("parts that fit"),
        );
        let state = AppState::new(
            Catalog::of(Served::Text(Arc::clone(&llm))),
            ServeConfig::default(),
            Gateway::open(&GatewayConfig::default(), &["default".to_owned()]).expect("no files"),
        );
        let router = router(state.clone());
        Self { llm, state, router, engine: manual, runs: true }
    }

    fn turn(&mut self) {
        self.runs = self.runs && self.engine.turn();
    }
}

/// A tokenizer whose tokens are single letters.
fn tokenizer() -> Arc<Tokenizer> {
    static ONCE: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    let made = ONCE.get_or_init(|| {
        let letters = ('a'..='z').chain('A'..='Z').take(VOCAB);
        let vocab: serde_json::Map<_, _> =
            letters.enumerate().map(|(i, letter)| (letter.to_string(), i.into())).collect();
        let json = json!({
            "version": "1.0",
            "added_tokens": [],
            "decoder": {
                "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                "use_regex": false
            },
            "model": {"type": "BPE", "vocab": vocab, "merges": []}
        });
        Arc::new(Tokenizer::from_bytes(json.to_string().as_bytes()).expect("a tokenizer"))
    });
    Arc::clone(made)
}

/// One seed's server and clients.
pub(super) struct World {
    random: Random,
    house: House,
    happened: Arc<Mutex<Happened>>,
    has_faults: bool,
    clients: Vec<(Plan, JoinHandle<End>)>,
    n_to_come: u64,
    /// Whether an operator stops the server before the last request came.
    drains: bool,
    is_draining: bool,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed, 0);
        let block_size = 1 + random.below(4) as usize;
        // At least the longest request fits.
        let n_blocks = (CONTEXT / block_size) as u64 + 2 + random.below(24);
        let n_host_blocks = random.below(2) * random.below(100);
        let choices = Choices {
            policy: PolicyKind::ALL[random.below(PolicyKind::ALL.len() as u64) as usize],
            batching: if one_in(&mut random, 6) { Batching::Static } else { Batching::Continuous },
            preemption: if one_in(&mut random, 2) {
                PreemptionMode::Swap
            } else {
                PreemptionMode::Recompute
            },
            prefix_cache: !one_in(&mut random, 3),
            max_batch_tokens: 8 + random.below(60) as usize,
            max_running: 1 + random.below(8) as usize,
            ..Choices::default()
        };
        let methods = [SpecMethod::Off, SpecMethod::Suffix, SpecMethod::Ngram];
        let spec = SpecConfig {
            method: methods[random.below(3) as usize],
            max_drafts: 1 + random.below(4) as usize,
            exit_layers: None,
            verification: Verification::Match,
            recent_tokens: random.below(2) as usize * 64,
            is_forced: true,
        };
        let config = EngineConfig {
            choices,
            max_waiting_requests: 1 + random.below(12) as usize,
            max_context_tokens: CONTEXT,
            spec,
            ..EngineConfig::default()
        };
        let inner = FakeExecutor::new(n_blocks as u32, block_size)
            .with_host_blocks(n_host_blocks as u32)
            .with_slow_transfers(random.below(4) as usize);
        let happened = Arc::default();
        let rates = Rates::of(&mut random);
        let executor =
            Faulty { inner, rates, random: Random::new(seed, 1), happened: Arc::clone(&happened) };
        let has_faults = rates.any();
        let proposers = config.spec.proposers().into_iter();
        let proposers = proposers.map(|inner| {
            let (rate, random) = (rates.proposer_panics, Random::new(seed, 2));
            Box::new(FaultyProposer { inner, rate, random }) as Box<dyn Proposer>
        });
        let proposers = proposers.collect();
        Self {
            house: House::new(executor, config, proposers),
            happened,
            has_faults,
            clients: Vec::new(),
            n_to_come: 2 + random.below(8),
            drains: one_in(&mut random, 5),
            is_draining: false,
            random,
        }
    }

    /// Lets one party act; `false` when no more requests will come.
    pub(super) async fn act(&mut self) -> bool {
        match self.random.below(24) {
            0..6 => {
                let plan = Plan::of(&mut self.random);
                let asking = client::ask(self.house.router.clone(), plan.clone());
                self.clients.push((plan, tokio::spawn(asking)));
                self.n_to_come -= 1;
            }
            6..20 => {
                for _ in 0..=self.random.below(4) {
                    self.house.turn();
                }
            }
            20 => tokio::time::advance(Duration::from_millis(1 << self.random.below(20))).await,
            21 if self.drains && one_in(&mut self.random, 4) => self.stop_more(),
            _ => self.probe().await,
        }
        settle().await;
        self.n_to_come > 0
    }

    /// First signal, second signal.
    fn stop_more(&mut self) {
        if self.is_draining {
            self.house.state.models().shutdown();
        }
        self.house.state.start_draining();
        self.is_draining = true;
    }

    /// The engine starts anew after its first panic, and only then.
    fn has_failed(&self) -> bool {
        self.happened.lock().expect("plain").n_panics > 1
    }

    /// Asks how the server is, and compares with how it is.
    async fn probe(&mut self) {
        let has_failed = self.has_failed();
        let (health, body) = client::get(self.house.router.clone(), "/health").await;
        assert_eq!(health == StatusCode::OK, !has_failed, "{health}");
        assert_eq!(body["status"] == "failed", has_failed, "{body}");
        let (ready, _) = client::get(self.house.router.clone(), "/ready").await;
        assert_eq!(ready == StatusCode::OK, !has_failed && !self.is_draining, "{ready}");
        let (metrics, _) = client::get(self.house.router.clone(), "/metrics").await;
        assert_eq!(metrics, StatusCode::OK);
    }

    /// Runs to the end and checks everything.
    pub(super) async fn finish(mut self, most_turns: usize) -> Deeds {
        let mut n_turns = 0;
        while !self.clients.iter().all(|(_, end)| end.is_finished()) {
            assert!(n_turns < most_turns, "requests that never end: {:?}", self.clients);
            for _ in 0..4 {
                self.house.turn();
            }
            n_turns += 4;
            // Clients that stall go on.
            tokio::time::advance(Duration::from_secs(10)).await;
            settle().await;
        }
        // Departures are mail, too.
        for _ in 0..8 {
            self.house.turn();
        }
        self.probe().await;
        let mut deeds = self.quiet();
        let clients = std::mem::take(&mut self.clients);
        let mut calm = House::new(FakeExecutor::new(64, 4), calm_config(), Vec::new());
        for (plan, end) in clients {
            match end.await.expect("a client does not panic") {
                End::Left => deeds.n_left += 1,
                End::Error(status, code) => {
                    self.check_error(status, &code);
                    *deeds.errors.entry((status, code)).or_default() += 1;
                }
                End::Answer(choices) => {
                    deeds.n_answers += 1;
                    assert_eq!(
                        End::Answer(choices),
                        undisturbed(&mut calm, &plan).await,
                        "{plan:?}"
                    );
                }
            }
        }
        deeds
    }

    /// Checks that nothing is left of any request.
    fn quiet(&self) -> Deeds {
        let metrics = self.house.llm.metrics();
        assert!(self.house.state.idle().now_or_never().is_some(), "a request counts as running");
        assert_eq!((metrics.n_running, metrics.n_waiting), (0, 0), "{metrics:?}");
        assert_eq!(metrics.n_submitted, metrics.n_finished, "{metrics:?}");
        if !self.has_failed() {
            assert_eq!(metrics.n_free_blocks, metrics.n_blocks, "{metrics:?}");
        }
        let Happened { n_errors, n_panics } = *self.happened.lock().expect("plain");
        assert!(self.house.runs || self.is_draining || n_panics > 1, "it ended by itself");
        assert_eq!(metrics.n_restarts > 0 || self.has_failed(), n_panics > 0, "{metrics:?}");
        Deeds {
            n_faults: n_errors + n_panics,
            n_restarts: metrics.n_restarts,
            n_failed_engines: u64::from(self.has_failed()),
            n_preemptions: metrics.n_preemptions,
            n_swapped: metrics.swapped_in_blocks,
            n_drafted: metrics.spec.n_drafted,
            n_proposer_failures: metrics.spec.n_failures,
            ..Deeds::default()
        }
    }

    fn check_error(&self, status: u16, code: &str) {
        let is_due = match code {
            "rate_limit_exceeded" => true,
            "shutting_down" => self.is_draining,
            "engine_failed" => self.has_failed(),
            "none" => self.has_faults,
            _ => false,
        };
        assert!(is_due, "{status} {code}");
    }
}

fn calm_config() -> EngineConfig {
    EngineConfig { max_context_tokens: CONTEXT, ..EngineConfig::default() }
}

/// The answer to the same request alone on an engine without faults.
async fn undisturbed(calm: &mut House, plan: &Plan) -> End {
    let asking = tokio::spawn(client::ask(calm.router.clone(), plan.undisturbed()));
    while !asking.is_finished() {
        calm.turn();
        settle().await;
    }
    asking.await.expect("a client does not panic")
}

/// Lets tasks and blocking work go on until none of them can.
async fn settle() {
    for _ in 0..2 {
        for _ in 0..6 {
            tokio::task::yield_now().await;
        }
        // Work that was handed to the one blocking thread before this has been done after it.
        tokio::task::spawn_blocking(|| ()).await.expect("no panic");
    }
    for _ in 0..6 {
        tokio::task::yield_now().await;
    }
}
