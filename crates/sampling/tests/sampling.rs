//! The sampler against a naive oracle: what may be chosen, how often, and what never goes wrong.

mod common;

use common::{Moment, naive, random_logits};
use pelton_base::{Dry, SamplingParams, TokenId};
use pelton_sampling::{
    KeptDistribution, LogitsProcessor, LogprobsMode, RowContext, Sampler, SamplerState,
};
use proptest::prelude::*;

fn sample(params: &SamplingParams, logits: &[f32], position: usize) -> u32 {
    let mut state = SamplerState::new(params, &[], 0);
    Sampler::new().sample(&mut state, &mut logits.to_vec(), position).token.0
}

fn oracle(params: &SamplingParams, logits: &[f32]) -> Vec<f64> {
    naive(params, logits, Moment::default())
}

fn variants() -> Vec<SamplingParams> {
    let plain = SamplingParams::default();
    vec![
        plain.clone(),
        SamplingParams { temperature: 0.5, ..plain.clone() },
        SamplingParams { temperature: 2.0, min_p: 0.2, ..plain.clone() },
        SamplingParams { top_k: 7, ..plain.clone() },
        SamplingParams { top_p: 0.8, ..plain.clone() },
        SamplingParams { top_k: 20, top_p: 0.9, min_p: 0.05, temperature: 1.5, ..plain },
    ]
}

#[test]
fn tokens_come_as_often_as_their_probability_says() {
    const N_DRAWS: usize = 50_000;
    let logits = random_logits(60, 2.5, 3);
    for (seed, params) in variants().into_iter().enumerate() {
        let params = SamplingParams { seed: seed as u64, ..params };
        let probabilities = oracle(&params, &logits);
        let mut counts = vec![0_usize; logits.len()];
        let (mut sampler, mut state) = (Sampler::new(), SamplerState::new(&params, &[], 0));
        for position in 0..N_DRAWS {
            counts[sampler.sample(&mut state, &mut logits.clone(), position).token.0 as usize] += 1;
        }
        let (mut chi_square, mut degrees) = (0.0, -1.0_f64);
        for (id, (&count, &p)) in counts.iter().zip(&probabilities).enumerate() {
            assert!(p > 0.0 || count == 0, "token {id} was cut but drawn, {params:?}");
            let expected = p * N_DRAWS as f64;
            if expected > 0.0 {
                chi_square += (count as f64 - expected).powi(2) / expected;
                degrees += 1.0;
            }
        }
        // Mean `degrees`, variance 2 * `degrees`: four standard deviations.
        let limit = degrees + 4.0 * (2.0 * degrees).sqrt();
        assert!(degrees >= 3.0 && chi_square < limit, "{chi_square} of {limit}, {params:?}");
    }
}

#[test]
fn processed_log_probabilities_are_those_of_the_distribution_that_is_drawn_from() {
    let mut logits = random_logits(40, 2.5, 5);
    logits[7] = f32::NEG_INFINITY;
    let staged = SamplingParams { typical_p: 0.9, top_n_sigma: 2.0, ..SamplingParams::default() };
    for params in variants().into_iter().chain([staged, SamplingParams::greedy()]) {
        let params = SamplingParams {
            logprobs: Some(20),
            logit_bias: vec![(TokenId(3), 2.0), (TokenId(9), -50.0)],
            ..params
        };
        let is_greedy = params.temperature == 0.0;
        // Greedy rows have no temperature, so their probabilities are those at one.
        let temperature = if is_greedy { 1.0 } else { params.temperature };
        let mut biased = logits.clone();
        params.logit_bias.iter().for_each(|(token, bias)| biased[token.0 as usize] += bias);
        let expected = oracle(&SamplingParams { temperature, ..params.clone() }, &biased);
        let mut state = SamplerState::new(&params, &[], 0);
        state.set_logprobs_mode(LogprobsMode::Processed);
        for position in 0..20 {
            let sampled = Sampler::new().sample(&mut state, &mut logits.clone(), position);
            let told = sampled.logprobs.expect("asked for");
            let close = |id: TokenId, logprob: f32| {
                let p = expected[id.0 as usize];
                assert!(
                    (f64::from(logprob) - p.ln()).abs() < 1e-5,
                    "{id:?}: {logprob}, {params:?}"
                );
            };
            close(told.token, told.logprob);
            told.top.iter().for_each(|(id, logprob)| close(*id, *logprob));
            assert!(told.top.is_sorted_by(|a, b| a.1 >= b.1), "{:?}", told.top);
            let n_possible = expected.iter().filter(|p| **p > 0.0).count();
            assert_eq!(told.top.len(), n_possible.min(20), "{params:?}");
        }
    }
}

#[test]
fn only_where_it_is_largest_matters_to_a_greedy_request_that_asks_for_nothing_else() {
    let greedy = SamplingParams::greedy();
    let takes_largest =
        |params: SamplingParams| SamplerState::new(&params, &[TokenId(1)], 0).takes_largest();
    assert!(takes_largest(SamplingParams { top_k: 5, top_p: 0.5, min_p: 0.5, ..greedy.clone() }));
    for params in [
        SamplingParams { temperature: 0.1, ..greedy.clone() },
        SamplingParams { logprobs: Some(0), ..greedy.clone() },
        SamplingParams { repetition_penalty: 1.1, ..greedy.clone() },
        SamplingParams { presence_penalty: 0.1, ..greedy.clone() },
        SamplingParams { frequency_penalty: -0.1, ..greedy.clone() },
        SamplingParams { logit_bias: vec![(TokenId(3), 0.0)], ..greedy.clone() },
        SamplingParams { allowed_tokens: Some(vec![TokenId(3)]), ..greedy.clone() },
        SamplingParams { bad_words: vec![vec![TokenId(3)]], ..greedy.clone() },
        SamplingParams { dry: Dry { multiplier: 0.1, ..Dry::default() }, ..greedy.clone() },
    ] {
        assert!(!takes_largest(params.clone()), "{params:?}");
    }
    let mut state = SamplerState::new(&greedy, &[], 0);
    state.push_processor(Box::new(pelton_sampling::Penalties::new(1.0, 0.0, 0.0, &[])));
    assert!(state.takes_largest());
    state.push_processor(Box::new(pelton_sampling::LogitBias::new(vec![(TokenId(0), 1.0)])));
    assert!(!state.takes_largest());
    // What drafts for it reports nothing.
    let told = SamplingParams { logprobs: Some(2), ..greedy };
    assert!(SamplerState::new(&told, &[], 0).fork().takes_largest());
}

#[test]
fn a_large_vocabulary_gives_golden_tokens() {
    let logits = random_logits(150_000, 8.0, 5);
    let tokens: Vec<Vec<u32>> = variants()
        .iter()
        .map(|params| (0..6).map(|position| sample(params, &logits, position)).collect())
        .collect();
    assert_eq!(tokens, GOLDEN);
}

const GOLDEN: [[u32; 6]; 6] = [
    [60692, 145750, 2773, 118510, 140107, 67960],
    [60898, 145651, 2646, 118555, 139929, 67960],
    [60533, 145815, 2812, 118371, 140194, 67912],
    [90296, 75730, 31053, 121009, 75730, 49604],
    [66129, 32796, 4692, 101634, 50516, 75836],
    [119339, 7752, 31053, 44773, 101525, 15674],
];

#[test]
fn flat_distributions_make_top_p_look_further_and_keep_the_right_number() {
    // 20,000 equal logits: top-p 0.5 keeps the first half, by id.
    let logits = vec![1.0; 20_000];
    let params = SamplingParams { top_p: 0.5, ..Default::default() };
    let drawn: Vec<u32> = (0..2000).map(|position| sample(&params, &logits, position)).collect();
    assert!(drawn.iter().all(|&id| id < 10_000));
    assert!(drawn.iter().any(|&id| id > 9_900));
}

#[test]
fn greedy_takes_the_largest_and_the_lowest_id_among_equals() {
    let params = SamplingParams::greedy();
    assert_eq!(sample(&params, &[0.0, 3.0, 3.0, f32::NAN], 0), 1);
    let biased = SamplingParams { logit_bias: vec![(TokenId(0), 5.0)], ..params };
    assert_eq!(sample(&biased, &[0.0, 3.0, 3.0], 0), 0);
}

#[test]
fn a_tiny_temperature_is_greedy_and_a_huge_one_is_uniform() {
    let logits = [1.0, 1.001, 0.0];
    let cold = SamplingParams { temperature: f32::MIN_POSITIVE, ..Default::default() };
    assert!((0..100).all(|position| sample(&cold, &logits, position) == 1));
    let hot = SamplingParams { temperature: 100.0, ..Default::default() };
    let n_last = (0..3000).filter(|&position| sample(&hot, &logits, position) == 2).count();
    assert!((850..1150).contains(&n_last), "{n_last}");
}

#[test]
fn impossible_rows_have_an_answer() {
    let inf = f32::INFINITY;
    for params in variants().into_iter().chain([SamplingParams::greedy()]) {
        let params = SamplingParams { logprobs: Some(3), ..params };
        assert_eq!(sample(&params, &[], 0), 0);
        assert_eq!(sample(&params, &[-inf, f32::NAN, -inf], 0), 0);
        assert_eq!(sample(&params, &[-inf, f32::NAN, -9.0], 0), 2);
        assert_eq!(sample(&params, &[0.0, inf, f32::NAN], 0), 1);
    }
}

#[test]
fn log_probabilities_are_those_of_the_raw_logits() {
    let params = SamplingParams {
        logprobs: Some(2),
        temperature: 0.0,
        logit_bias: vec![(TokenId(3), 50.0)],
        ..Default::default()
    };
    let logits = [1.0_f32, 3.0, 2.0, 0.0, f32::NEG_INFINITY];
    let mut state = SamplerState::new(&params, &[], 0);
    let sampled = Sampler::new().sample(&mut state, &mut logits.to_vec(), 0);
    let logprobs = sampled.logprobs.expect("asked for");
    let log_sum = logits.iter().map(|&l| f64::from(l).exp()).sum::<f64>().ln();
    let expected = |id: usize| f64::from(logits[id]) - log_sum;
    assert_eq!(logprobs.token, TokenId(3), "the bias decides the token");
    assert!((f64::from(logprobs.logprob) - expected(3)).abs() < 1e-6);
    let ids: Vec<u32> = logprobs.top.iter().map(|(token, _)| token.0).collect();
    assert_eq!(ids, [1, 2], "but does not show in what is reported");
    for &(token, logprob) in &logprobs.top {
        assert!((f64::from(logprob) - expected(token.0 as usize)).abs() < 1e-6);
    }
}

#[test]
fn bias_comes_before_penalties_and_other_processors_after_them() {
    #[derive(Debug)]
    struct Watch(std::sync::mpsc::Sender<Vec<f32>>);
    impl LogitsProcessor for Watch {
        fn apply(&mut self, _row: &RowContext, logits: &mut [f32]) {
            self.0.send(logits.to_vec()).expect("the test listens");
        }
        fn accepted(&mut self, _token: TokenId) {}

        fn reserve(&mut self, _n_tokens: usize) {}

        fn fork(&self) -> Box<dyn LogitsProcessor> {
            unreachable!("no draft is made")
        }

        fn preserves_argmax(&self) -> bool {
            false
        }
    }
    let params = SamplingParams {
        repetition_penalty: 2.0,
        logit_bias: vec![(TokenId(0), 3.0)],
        ..SamplingParams::greedy()
    };
    let mut state = SamplerState::new(&params, &[TokenId(0)], 0);
    let (sender, receiver) = std::sync::mpsc::channel();
    state.push_processor(Box::new(Watch(sender)));
    Sampler::new().sample(&mut state, &mut [1.0, 0.0], 0);
    assert_eq!(receiver.recv().expect("it ran"), [(1.0 + 3.0) / 2.0, 0.0]);
}

#[test]
fn greedy_rows_skip_processors_that_keep_the_argmax() {
    #[derive(Debug)]
    struct Halve;
    impl LogitsProcessor for Halve {
        fn apply(&mut self, _row: &RowContext, logits: &mut [f32]) {
            logits.iter_mut().for_each(|logit| *logit *= 0.5);
        }
        fn accepted(&mut self, _token: TokenId) {}

        fn reserve(&mut self, _n_tokens: usize) {}

        fn fork(&self) -> Box<dyn LogitsProcessor> {
            unreachable!("no draft is made")
        }

        fn preserves_argmax(&self) -> bool {
            true
        }
    }
    for (temperature, expected) in [(0.0, [2.0, 4.0]), (1.0, [1.0, 2.0])] {
        let params = SamplingParams { temperature, ..Default::default() };
        let mut state = SamplerState::new(&params, &[], 0);
        state.push_processor(Box::new(Halve));
        let mut logits = [2.0, 4.0];
        Sampler::new().sample(&mut state, &mut logits, 0);
        assert_eq!(logits, expected);
    }
}

#[test]
fn a_used_sampler_gives_what_a_fresh_one_gives() {
    let mut used = Sampler::new();
    for (round, n) in [5000, 10, 700].into_iter().enumerate() {
        for params in variants() {
            let params = SamplingParams { logprobs: Some(2), ..params };
            let logits = random_logits(n, 4.0, round as u64);
            let mut state = SamplerState::new(&params, &[], 1);
            let ours = used.sample(&mut state, &mut logits.clone(), round);
            assert_eq!(ours, Sampler::new().sample(&mut state, &mut logits.clone(), round));
        }
    }
}

#[test]
fn a_distribution_is_what_the_oracle_says_also_when_kept() {
    let logits = random_logits(3000, 4.0, 8);
    let mut kept = KeptDistribution::default();
    assert!(kept.get().is_none());
    for params in variants().into_iter().chain([SamplingParams::greedy()]) {
        let (mut sampler, mut state) = (Sampler::new(), SamplerState::new(&params, &[], 0));
        kept.keep(&sampler.distribution(&mut state, &mut logits.clone(), 0));
        let distribution = kept.get().expect("just kept");
        let mut sum = 0.0;
        for (id, expected) in oracle(&params, &logits).into_iter().enumerate() {
            let p = distribution.probability(TokenId(id as u32));
            assert!((p - expected).abs() < 1e-6 * expected + 1e-12, "{id}: {p} of {expected}");
            sum += p;
        }
        assert!((sum - 1.0).abs() < 1e-9, "{sum}");
        assert!((distribution.iter().map(|(_, p)| p).sum::<f64>() - 1.0).abs() < 1e-9);
        assert_eq!(distribution.probability(TokenId(3000)), 0.0);
        assert_eq!(distribution.n_vocab(), 3000);
    }
}

proptest! {
    #[test]
    fn a_draw_from_the_distribution_is_the_sample(
        logits in prop_oneof![
            prop::collection::vec(prop_oneof![9 => -9.0..9.0_f32, 1 => any::<f32>()], 0..40),
            (1000..5000_usize, any::<u64>()).prop_map(|(n, seed)| random_logits(n, 6.0, seed)),
        ],
        (temperature, top_k, top_p, min_p) in (
            prop_oneof![Just(0.0_f32), 0.01..5.0_f32],
            0..50_u32,
            prop_oneof![Just(1.0_f32), 0.05..=1.0_f32],
            prop_oneof![Just(0.0_f32), 0.0..0.9_f32],
        ),
        seed in any::<u64>(),
    ) {
        let params = SamplingParams {
            temperature, top_k, top_p, min_p, seed, logprobs: Some(3), ..Default::default()
        };
        let (mut sampler, mut state) = (Sampler::new(), SamplerState::new(&params, &[], 2));
        for position in 0..8 {
            let u = state.rng().uniform(position as u64);
            let drawn =
                sampler.distribution(&mut state, &mut logits.clone(), position).draw(u);
            let logprobs = sampler.logprobs(drawn);
            let sampled = sampler.sample(&mut state, &mut logits.clone(), position);
            prop_assert_eq!(drawn, sampled.token);
            prop_assert_eq!(logprobs, sampled.logprobs);
        }
    }

    #[test]
    fn only_tokens_that_the_oracle_keeps_are_drawn(
        n in 1..400_usize,
        (scale, seed) in (0.1..20.0_f32, any::<u64>()),
        (temperature, top_k, top_p, min_p) in (0.05..5.0_f32, 0..50_u32, 0.05..=1.0_f32, 0.0..0.9_f32),
    ) {
        let params = SamplingParams { temperature, top_k, top_p, min_p, seed, ..Default::default() };
        let logits = random_logits(n, scale, seed);
        // A token that sits exactly on a cut may fall on either side of rounding: widen the cuts.
        let wider = SamplingParams {
            top_p: (top_p * 1.000_01).min(1.0), min_p: min_p * 0.999_99, ..params.clone()
        };
        let probabilities = oracle(&wider, &logits);
        for position in 0..20 {
            let id = sample(&params, &logits, position) as usize;
            prop_assert!(probabilities[id] > 0.0, "token {} of {:?}", id, params);
        }
    }

    #[test]
    fn no_row_panics(
        logits in prop::collection::vec(any::<f32>(), 0..50),
        (temperature, top_k, top_p, min_p) in (0.0..5.0_f32, 0..5_u32, 0.01..=1.0_f32, 0.0..=1.0_f32),
    ) {
        let params = SamplingParams {
            temperature, top_k, top_p, min_p, logprobs: Some(5), repetition_penalty: 1.1,
            ..Default::default()
        };
        let id = sample(&params, &logits, 0) as usize;
        prop_assert!(id < logits.len().max(1));
    }
}
