//! Drafts that are judged by rejection sampling leave the distribution of the answers as it is.
//!
//! Thousands of requests that differ in their seed, each of three tokens of the four likeliest, are
//! counted against the probabilities that the model itself gives, multiplied along each path. The
//! verdicts themselves are proved in `sampling`; here it is the whole way: proposers, batches, KV.

use pelton_base::{
    Ask, Constraint, RequestId, Rule, RuleState, SamplingParams, ServiceParams, TokenId, TokenSet,
};
use pelton_engine::spec::{
    Abilities, DraftModel, Odds, Proposer, ProposerError, Row, Seen, Verification,
};
use pelton_engine::{
    Engine, EngineConfig, KvMemory, ModelExecutor, ModelExecutorConfig, SpecConfig, SpecMethod,
};
use pelton_kernels::{Cpu, Kernels};
use pelton_model::{BlockTables, CpuDevice, Decoder, LoadOptions, ModelFiles, load};
use pelton_model::{ForwardInput, ForwardSequence};
use pelton_sampling::{Masked, MinTokens, Sampler, SamplerState};
use pelton_sched::Choices;
use pelton_testkit::golden::decoder_named;
use pelton_testkit::statistics::{combined, p_value};
use std::collections::BTreeMap;
use std::sync::Arc;

const VOCAB: usize = 256;
const N_TOKENS: usize = 3;
/// Requests of each count.
const N_REQUESTS: u64 = 700;
/// Sets of requests with which each count is repeated; their p-values are combined.
const N_SETS: u64 = 2;
/// A right engine fails each of the counts below with this probability; seeds are fixed, so it either
/// always does or never.
const LEAST_P: f64 = 1e-4;

fn decoder(fixture: &str) -> Decoder<CpuDevice> {
    let folder = tempfile::tempdir().expect("a folder");
    decoder_named(fixture).checkpoint.write_bare_folder(folder.path());
    let files = ModelFiles::open(folder.path()).expect(fixture);
    let backend = CpuDevice::new(Cpu::with(Kernels::best(), 1));
    load(&files, backend, &LoadOptions::default()).expect(fixture)
}

/// Odd tokens and even ones take turns.
#[derive(Clone, Debug)]
struct Turns(u32);

impl Rule for Turns {
    fn begin(&self) -> Box<dyn RuleState> {
        Box::new(self.clone())
    }
}

impl RuleState for Turns {
    fn allow(&mut self, allowed: &mut TokenSet) {
        (0..VOCAB as u32).filter(|token| token % 2 == self.0 % 2).for_each(|token| {
            allowed.insert(TokenId(token));
        });
    }

    fn accept(&mut self, token: TokenId) -> bool {
        let is_allowed = token.0 % 2 == self.0 % 2;
        self.0 += u32::from(is_allowed);
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

fn request(chain: &Chain, seed: u64) -> Ask {
    Ask {
        prompt: [5, 9, 5, 9, 77].map(TokenId).to_vec(),
        sampling: SamplingParams { seed, ..chain.sampling.clone() },
        choice: 0,
        max_tokens: N_TOKENS,
        stop_tokens: if chain.sampling.min_tokens > 0 { ends() } else { Vec::new() },
        service: ServiceParams::default(),
        prediction: Vec::new(),
        constraint: chain.is_ruled.then(|| Constraint(Arc::new(Turns(0)))),
    }
}

/// The token that ends an answer that may end.
fn ends() -> Vec<TokenId> {
    (0..VOCAB as u32).step_by(2).map(TokenId).collect()
}

struct Chain {
    name: &'static str,
    sampling: SamplingParams,
    is_ruled: bool,
}

/// Each leaves a handful of tokens at every place, so that all answers can be counted.
fn chains() -> Vec<Chain> {
    let plain = SamplingParams { temperature: 1.5, top_k: 4, ..SamplingParams::default() };
    let chain = |name, sampling| Chain { name, sampling, is_ruled: false };
    vec![
        chain("top-k", plain.clone()),
        chain("top-p", SamplingParams { top_p: 0.7, ..plain.clone() }),
        chain("min-p", SamplingParams { min_p: 0.5, ..plain.clone() }),
        chain(
            "penalties",
            SamplingParams { presence_penalty: 1.0, frequency_penalty: 0.5, ..plain.clone() },
        ),
        // The last of its tokens is the first that may end it, so that all answers are as long.
        chain("a least length", SamplingParams { min_tokens: N_TOKENS - 1, ..plain.clone() }),
        Chain { name: "a rule", sampling: plain, is_ruled: true },
    ]
}

/// Every answer that can come, and how likely it is, by the model alone.
fn expected(chain: &Chain) -> BTreeMap<Vec<TokenId>, f64> {
    let mut decoder = decoder("qwen2");
    let mut kv = decoder.new_kv(8, 4);
    let asked = request(chain, 0);
    let mut sampler = Sampler::new();
    let mut paths = vec![(Vec::<TokenId>::new(), 1.0)];
    for place in 0..N_TOKENS {
        let mut longer = Vec::new();
        for (path, probability) in paths {
            let mut state = SamplerState::new(&asked.sampling, &asked.prompt, 0);
            if let Some(rule) = &asked.constraint {
                state.set_rule(Some(Masked::new(rule.begin())));
            }
            let min_tokens = MinTokens::new(asked.sampling.min_tokens, asked.stop_tokens.clone());
            state.push_processor(Box::new(min_tokens));
            path.iter().for_each(|&token| state.accepted(token));
            let tokens: Vec<TokenId> = asked.prompt.iter().chain(&path).copied().collect();
            let block_table: Vec<u32> = (0..8).collect();
            let rows = 0..tokens.len();
            let last = [tokens.len() - 1];
            let sequences = [ForwardSequence {
                rows,
                n_source: 0,
                first_position: 0,
                block_tables: BlockTables::one(&block_table),
                lane: None,
                tree: None,
            }];
            let input = ForwardInput { tokens: &tokens, sequences: &sequences, logits_rows: &last };
            let mut logits = Vec::new();
            decoder.forward(&mut kv, &input, &mut logits);
            let distribution = sampler.distribution(&mut state, &mut logits, place);
            for (token, p) in distribution.iter().filter(|(_, p)| *p > 0.0) {
                let path = path.iter().copied().chain([token]).collect();
                longer.push((path, probability * p));
            }
        }
        paths = longer;
    }
    paths.into_iter().collect()
}

/// The same few tokens at every place, as a tree.
#[derive(Debug)]
struct Known(Vec<TokenId>);

impl Proposer for Known {
    fn name(&self) -> &'static str {
        "known"
    }

    fn add(&mut self, _request: &pelton_base::Request) {}

    fn look(&mut self, _row: &Row<'_>, most: usize) -> (usize, usize) {
        (most, 0)
    }

    fn propose(
        &mut self,
        rows: &mut [Row<'_>],
        _odds: Option<&mut Odds>,
    ) -> Result<(), ProposerError> {
        for row in rows {
            let parents: Vec<Option<usize>> = match row.n_drafts {
                0 | 1 => vec![None],
                _ => vec![None, Some(0)],
            };
            for parent in parents {
                for &token in &self.0 {
                    row.drafts.push(parent, token);
                }
            }
            row.n_drafts = row.drafts.len();
        }
        Ok(())
    }

    fn abilities(&self) -> Abilities {
        Abilities { branches: true, ..Abilities::default() }
    }

    fn is_catching_up(&self, _row: &Row<'_>) -> bool {
        false
    }

    fn observe(&mut self, _seen: &Seen<'_>) {}

    fn finished(&mut self, _id: RequestId) {}
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Drafter {
    Other,
    Itself,
    FirstLayer,
    Prediction,
    Known,
}

fn proposers(drafter: Drafter, likely: &[TokenId]) -> Vec<Box<dyn Proposer>> {
    let model = |fixture| -> Box<dyn Proposer> {
        let memory = KvMemory::Blocks(400);
        Box::new(DraftModel::new(decoder(fixture), 4, memory, VOCAB).expect("KV memory"))
    };
    let of = |method| SpecConfig { method, ..SpecConfig::default() }.proposers();
    match drafter {
        Drafter::Other => vec![model("qwen3")],
        Drafter::Itself => vec![model("qwen2")],
        Drafter::FirstLayer => of(SpecMethod::EarlyExit),
        Drafter::Prediction => of(SpecMethod::Suffix),
        Drafter::Known => vec![Box::new(Known(likely.to_vec()))],
    }
}

/// How often each answer came, and drafts and accepted ones of all answers.
fn counts(
    chain: &Chain,
    drafter: Drafter,
    likely: &[TokenId],
    max_running: usize,
    seeds: std::ops::Range<u64>,
) -> (BTreeMap<Vec<TokenId>, u64>, u64, u64) {
    let exit_layers = (drafter == Drafter::FirstLayer).then_some(1);
    let verification = Verification::Rejection;
    let executor = ModelExecutorConfig {
        block_size: 4,
        memory: KvMemory::Blocks(200),
        host_blocks: 0,
        sampled_vocab: None,
        exit_layers,
        verification,
        states: Default::default(),
    };
    let executor = ModelExecutor::new(decoder("qwen2"), executor).expect("KV memory");
    let spec = SpecConfig {
        method: SpecMethod::Draft,
        max_drafts: 2,
        exit_layers,
        verification,
        recent_tokens: 0,
        is_forced: true,
    };
    let config = EngineConfig {
        spec,
        choices: Choices { max_running, ..Choices::default() },
        max_waiting_requests: N_REQUESTS as usize,
        ..EngineConfig::default()
    };
    let engine = Engine::spawn_with(executor, config, proposers(drafter, likely));
    let prediction = likely.to_vec();
    let asked = |seed| Ask { prediction: prediction.clone(), ..request(chain, seed) };
    let submit = |seed| engine.submit(asked(seed)).expect("taken");
    let streams: Vec<_> = seeds.map(submit).collect();
    let mut counts = BTreeMap::new();
    for mut stream in streams {
        let mut answer = Vec::new();
        while let Some(event) = stream.blocking_recv() {
            answer.extend(event.tokens.iter().map(|sampled| sampled.token));
        }
        *counts.entry(answer).or_insert(0) += 1;
    }
    engine.shutdown(true);
    engine.join();
    let spec = engine.metrics().spec;
    (counts, spec.n_drafted, spec.n_accepted)
}

/// The p-value of all sets together.
fn judge(chain: &Chain, drafter: Drafter, max_running: usize, accepted: &mut [u64; 2]) -> f64 {
    let expected = expected(chain);
    assert!((8..=64).contains(&expected.len()), "{}: {} answers", chain.name, expected.len());
    let probabilities: Vec<f64> = expected.values().copied().collect();
    let likely = expected.iter().max_by(|a, b| a.1.total_cmp(b.1)).expect("some").0;
    let mut p_values = Vec::new();
    for set in 0..N_SETS {
        let seeds = set * N_REQUESTS..(set + 1) * N_REQUESTS;
        let (counts, n_drafted, n_accepted) = counts(chain, drafter, likely, max_running, seeds);
        let impossible = counts.keys().find(|answer| !expected.contains_key(*answer));
        assert_eq!(impossible, None, "{}, {drafter:?}: it cannot come", chain.name);
        let counts: Vec<u64> =
            expected.keys().map(|answer| counts.get(answer).copied().unwrap_or(0)).collect();
        p_values.push(p_value(&counts, &probabilities));
        (accepted[0], accepted[1]) = (accepted[0] + n_drafted, accepted[1] + n_accepted);
    }
    combined(&p_values)
}

#[test]
fn answers_have_the_distribution_of_the_model_whoever_drafts() {
    for drafter in
        [Drafter::Other, Drafter::Itself, Drafter::FirstLayer, Drafter::Prediction, Drafter::Known]
    {
        let mut accepted = [0, 0];
        for chain in chains() {
            for max_running in [1, 32] {
                let p = judge(&chain, drafter, max_running, &mut accepted);
                let name = chain.name;
                assert!(p > LEAST_P, "{drafter:?} under {name}, {max_running} at once: p = {p}");
            }
        }
        let [n_drafted, n_accepted] = accepted;
        let is_right = match drafter {
            // Two random models: what is likely for one is rarely likely for the other.
            Drafter::Other => n_accepted > 0 && n_accepted < n_drafted / 50,
            Drafter::Itself => n_accepted == n_drafted,
            _ => n_accepted > n_drafted / 100 && n_accepted < n_drafted,
        };
        assert!(n_drafted > 2_000 && is_right, "{drafter:?}: {accepted:?}");
    }
}
