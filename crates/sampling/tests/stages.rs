//! Every truncation, alone and in any order, against its definition; and the states that follow a
//! sequence.

mod common;

use common::{Moment, naive, random_logits};
use pelton_base::{Dynatemp, Mirostat, SamplerStage, SamplingParams, TokenId, Xtc};
use pelton_sampling::verify::{Place, Proposal, Verifier};
use pelton_sampling::{Philox, Sampler, SamplerState, Stream};
use proptest::prelude::*;

/// Rows of every kind: ties, NaN, infinities, one token, none.
fn rows() -> impl Strategy<Value = Vec<f32>> {
    let hostile = prop_oneof![
        6 => (-3..3_i8).prop_map(f32::from),
        1 => Just(f32::NAN),
        3 => Just(f32::NEG_INFINITY),
        1 => Just(f32::INFINITY),
        4 => -9.0..9.0_f32,
    ];
    prop_oneof![
        2 => prop::collection::vec(hostile, 1..40),
        4 => (1..400_usize, 0.5..12.0_f32, any::<u64>())
            .prop_map(|(n, scale, seed)| random_logits(n, scale, seed)),
    ]
}

fn orders() -> impl Strategy<Value = Option<Vec<SamplerStage>>> {
    let all = Just(SamplerStage::ALL.to_vec()).prop_shuffle();
    let some = (all, 0..=SamplerStage::ALL.len()).prop_map(|(mut order, n)| {
        order.truncate(n);
        order
    });
    prop_oneof![Just(None), some.prop_map(Some)]
}

fn on<T: std::fmt::Debug + Clone + 'static>(
    off: T,
    values: impl Strategy<Value = T> + 'static,
) -> impl Strategy<Value = T> {
    prop_oneof![1 => Just(off), 1 => values]
}

fn parameters() -> impl Strategy<Value = SamplingParams> {
    let cuts = (
        on(0, 1..60_u32),
        on(1.0, 0.05..1.0_f32),
        on(0.0, 0.001..0.9_f32),
        on(1.0, 0.05..1.0_f32),
        on(0.0, 0.05..4.0_f32),
        on(0, 0..20_usize),
    );
    let heat = (0.2..3.0_f32, on(0.0, 0.01..2.0_f32), 0.1..3.0_f32);
    let xtc = (on(0.0, 0.2..=1.0_f32), 0.0..0.6_f32);
    (cuts, heat, xtc, orders(), any::<u64>()).prop_map(|(cuts, heat, xtc, samplers, seed)| {
        let (top_k, top_p, min_p, typical_p, top_n_sigma, min_keep) = cuts;
        let (temperature, range, exponent) = heat;
        SamplingParams {
            top_k,
            top_p,
            min_p,
            typical_p,
            top_n_sigma,
            min_keep,
            temperature,
            dynatemp: Dynatemp { range, exponent },
            xtc: Xtc { probability: xtc.0, threshold: xtc.1 },
            samplers,
            seed,
            ..SamplingParams::default()
        }
    })
}

/// Parameters that differ by no more than rounding can move a cut.
fn nearby(params: &SamplingParams) -> Vec<SamplingParams> {
    let by = |factor: f32| SamplingParams {
        top_p: (params.top_p * factor).min(1.0),
        min_p: params.min_p / factor,
        typical_p: (params.typical_p * factor).min(1.0),
        top_n_sigma: params.top_n_sigma * factor,
        xtc: Xtc { threshold: params.xtc.threshold / factor, ..params.xtc },
        ..params.clone()
    };
    vec![params.clone(), by(1.0 + 1e-5), by(1.0 - 1e-5)]
}

/// Whether two distributions agree; a token may be missing only where it hardly ever comes.
fn agree(ours: &[f64], theirs: &[f64]) -> bool {
    let is_close = |(a, b): (&f64, &f64)| (a - b).abs() <= 2e-4 * b + 1e-9;
    ours.iter().zip(theirs).all(is_close)
}

fn distribution(state: &mut SamplerState, logits: &[f32], position: usize) -> Vec<f64> {
    let mut sampler = Sampler::new();
    let mut row = logits.to_vec();
    let distribution = sampler.distribution(state, &mut row, position);
    (0..logits.len() as u32).map(|id| distribution.probability(TokenId(id))).collect()
}

fn excludes(params: &SamplingParams, position: usize) -> bool {
    let chance = Philox::new(params.seed, 0).uniform_of(Stream::Exclude, position as u64, 0);
    chance < f64::from(params.xtc.probability)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_stages_in_any_order_leave_what_their_definitions_leave(
        params in parameters(),
        logits in rows(),
        position in 0..1000_usize,
    ) {
        let ours = distribution(&mut SamplerState::new(&params, &[], 0), &logits, position);
        let moment = Moment { excludes: excludes(&params, position), mu: None };
        let theirs: Vec<_> = nearby(&params).iter().map(|it| naive(it, &logits, moment)).collect();
        prop_assert!(theirs.iter().any(|it| agree(&ours, it)), "{:?}: {:?}", ours, theirs[0]);
    }

    #[test]
    fn a_draw_from_the_staged_distribution_is_the_sample(
        params in parameters(),
        mirostat in prop::option::of(mirostats()),
        logits in rows(),
    ) {
        let params = SamplingParams { mirostat, logprobs: Some(2), ..params };
        let (mut sampler, mut state) = (Sampler::new(), SamplerState::new(&params, &[], 0));
        for position in 0..6 {
            let mut row = logits.clone();
            row.rotate_left(position % logits.len());
            let u = state.rng().uniform(position as u64);
            let drawn = sampler.distribution(&mut state, &mut row.clone(), position).draw(u);
            let logprobs = sampler.logprobs(drawn);
            let sampled = sampler.sample(&mut state, &mut row, position);
            prop_assert_eq!(drawn, sampled.token);
            prop_assert_eq!(logprobs, sampled.logprobs);
            state.accepted(drawn);
        }
    }

    #[test]
    fn mirostat_follows_the_surprise_of_the_tokens_that_were_accepted(
        settings in mirostats(),
        (temperature, min_keep) in (0.3..2.0_f32, on(0, 2..9_usize)),
        (n, scale, seed) in (1..300_usize, 1.0..9.0_f32, any::<u64>()),
    ) {
        let mirostat = Some(settings);
        let params = SamplingParams { mirostat, temperature, min_keep, seed, ..Default::default() };
        let mut state = SamplerState::new(&params, &[], 0);
        let mut mu = 2.0 * f64::from(settings.tau);
        for position in 0..20 {
            let logits = random_logits(n, scale, seed.wrapping_add(position as u64));
            let ours = distribution(&mut state, &logits, position);
            let near = [mu, mu + 1e-6, mu - 1e-6];
            let moment = |mu| Moment { excludes: false, mu: Some(mu) };
            let theirs = near.map(|mu| naive(&params, &logits, moment(mu)));
            let same = theirs.iter().find(|it| agree(&ours, it));
            prop_assert!(same.is_some(), "{}, {}: {:?}: {:?}", position, mu, ours, theirs[0]);
            let (_, token) = pick(&ours, Philox::new(seed, 5).uniform(position as u64));
            state.accepted(token);
            if n > 1 {
                let surprise = -same.expect("found")[token.0 as usize].log2();
                mu -= f64::from(settings.eta) * (surprise - f64::from(settings.tau));
            }
        }
    }

    #[test]
    fn no_staged_row_panics(
        logits in prop::collection::vec(any::<f32>(), 0..50),
        params in parameters(),
        mirostat in prop::option::of(mirostats()),
    ) {
        let params = SamplingParams { mirostat, ..params };
        let mut state = SamplerState::new(&params, &[], 0);
        for position in 0..3 {
            let token = Sampler::new().sample(&mut state, &mut logits.clone(), position).token;
            prop_assert!((token.0 as usize) < logits.len().max(1));
            let possible = logits.iter().any(|&logit| logit > f32::NEG_INFINITY);
            prop_assert!(!possible || logits[token.0 as usize] > f32::NEG_INFINITY);
            state.accepted(token);
        }
    }
}

fn mirostats() -> impl Strategy<Value = Mirostat> {
    (1..=2_u8, 0.5..8.0_f32, 0.0..=1.0_f32).prop_map(|(version, tau, eta)| Mirostat {
        version,
        tau,
        eta,
    })
}

/// The token at `u`, and its probability.
fn pick(probabilities: &[f64], u: f64) -> (f64, TokenId) {
    let mut sum = 0.0;
    let possible = || (0..).zip(probabilities).filter(|(_, p)| **p > 0.0);
    let found = possible().find(|(_, p)| {
        sum += **p;
        u < sum
    });
    let (id, p) = found.or_else(|| possible().last()).expect("one is possible");
    (*p, TokenId(id))
}

#[test]
fn mirostat_brings_the_mean_surprise_to_its_target() {
    for (version, tau) in [(1, 3.0), (2, 3.0), (2, 5.0)] {
        let mirostat = Some(Mirostat { version, tau, eta: 0.1 });
        let params = SamplingParams { mirostat, ..Default::default() };
        let (mut sampler, mut state) = (Sampler::new(), SamplerState::new(&params, &[], 0));
        let mut surprises = Vec::new();
        for position in 0..2000 {
            // Zipf's law with an exponent that changes.
            let s = 0.8 + 0.4 * (position as f32 * 0.01).sin();
            let logits: Vec<f32> = (1..2000).map(|rank| -s * (rank as f32).ln()).collect();
            let distribution = sampler.distribution(&mut state, &mut logits.clone(), position);
            let token = distribution.draw(Philox::new(1, 0).uniform(position as u64));
            surprises.push(-distribution.probability(token).log2());
            state.accepted(token);
        }
        let mean = surprises[200..].iter().sum::<f64>() / (surprises.len() - 200) as f64;
        assert!((mean - f64::from(tau)).abs() < 0.1, "version {version}: {mean} of {tau}");
    }
}

#[test]
fn a_token_without_a_row_or_an_alternative_leaves_mirostat_as_it_is() {
    let mirostat = Some(Mirostat { version: 2, tau: 2.0, eta: 1.0 });
    let params = SamplingParams { mirostat, ..Default::default() };
    let logits = random_logits(200, 5.0, 1);
    let fresh = distribution(&mut SamplerState::new(&params, &[], 0), &logits, 0);
    let mut state = SamplerState::new(&params, &[], 0);
    state.accepted(TokenId(3));
    assert_eq!(distribution(&mut state, &logits, 1), fresh);
    let mut forced = vec![f32::NEG_INFINITY; 200];
    forced[7] = 0.0;
    let mut state = SamplerState::new(&params, &[], 0);
    distribution(&mut state, &forced, 0);
    state.accepted(TokenId(7));
    assert_eq!(distribution(&mut state, &logits, 1), fresh);
    // An ordinary token changes it.
    let (_, token) = pick(&fresh, 0.1);
    distribution(&mut state, &logits, 1);
    state.accepted(token);
    assert_ne!(distribution(&mut state, &logits, 2), fresh);
}

#[test]
fn xtc_applies_as_often_as_its_probability_says_whether_drawn_or_verified() {
    const N_DRAWS: usize = 40_000;
    let params = SamplingParams {
        xtc: Xtc { probability: 0.3, threshold: 0.1 },
        seed: 4,
        ..SamplingParams::default()
    };
    let logits = [0.4_f32, 0.3, 0.2, 0.06, 0.04].map(f32::ln);
    let [with, without] =
        [true, false].map(|excludes| naive(&params, &logits, Moment { excludes, mu: None }));
    assert_eq!(with[..2], [0.0, 0.0], "0.2 is the least likely of the top choices");
    let expected: Vec<f64> = with.iter().zip(&without).map(|(a, b)| 0.3 * a + 0.7 * b).collect();
    let (mut sampler, mut state) = (Sampler::new(), SamplerState::new(&params, &[], 0));
    let mut verifier = Verifier::new();
    let mut counts = [[0_u32; 5]; 2];
    for position in 0..N_DRAWS {
        let token = sampler.sample(&mut state, &mut logits.clone(), position).token;
        counts[0][token.0 as usize] += 1;
        let rng = state.rng();
        let mut row = logits;
        let target = sampler.distribution(&mut state, &mut row, position);
        let place = Place { target, rng, position: position as u64 };
        let verdict = verifier.judge(&place, [0, 3].map(TokenId), Proposal::Known);
        counts[1][verdict.token.0 as usize] += 1;
    }
    for counts in counts {
        let expected = expected.iter().map(|p| p * N_DRAWS as f64);
        let chi_square: f64 =
            counts.iter().zip(expected).map(|(&n, e)| (f64::from(n) - e).powi(2) / e).sum();
        // 4 degrees of freedom: a thousandth is above 18.5.
        assert!(chi_square < 18.5, "{chi_square}: {counts:?}");
    }
}

#[test]
fn typical_sampling_does_not_depend_on_where_logits_begin() {
    let params = SamplingParams { typical_p: 0.6, ..SamplingParams::default() };
    for largest in [-2.0, 0.0, 3.0] {
        // Probabilities of 1/2, 1/4, 1/8 and 1/8: their expected surprise is 1.75 bits, so the second
        // is the most typical one. The first and the third are 0.75 and 1.25 bits from it.
        let logits = [0.0, 1.0, 2.0, 2.0].map(|bits: f32| largest - bits * std::f32::consts::LN_2);
        let mut state = SamplerState::new(&params, &[], 0);
        let kept = distribution(&mut state, &logits, 0);
        for (p, expected) in kept.iter().zip([2.0 / 3.0, 1.0 / 3.0, 0.0, 0.0]) {
            assert!((p - expected).abs() < 1e-6, "{largest}: {kept:?}");
        }
    }
}

#[test]
fn temperature_zero_is_greedy_under_every_parameter() {
    let params = SamplingParams {
        temperature: 0.0,
        typical_p: 0.1,
        top_n_sigma: 0.5,
        xtc: Xtc { probability: 1.0, threshold: 0.01 },
        dynatemp: Dynatemp { range: 1.0, exponent: 1.0 },
        mirostat: Some(Mirostat { version: 2, tau: 5.0, eta: 0.1 }),
        min_keep: 9,
        samplers: Some(vec![SamplerStage::Xtc]),
        ..SamplingParams::default()
    };
    let state = SamplerState::new(&params, &[], 0);
    assert!(state.takes_largest());
    let logits = [0.0, 3.0, 3.0];
    assert_eq!(
        distribution(&mut { state }, &logits, 0),
        naive(&params, &logits, Moment::default())
    );
}

#[test]
fn masks_are_honoured_by_greedy_and_staged_requests_alike() {
    let masked = SamplingParams {
        allowed_tokens: Some([5, 1, 9].map(TokenId).to_vec()),
        bad_words: vec![[1, 5].map(TokenId).to_vec(), vec![TokenId(9)]],
        ..SamplingParams::default()
    };
    for params in [
        SamplingParams { temperature: 0.0, ..masked.clone() },
        SamplingParams { typical_p: 0.9, ..masked.clone() },
        masked,
    ] {
        let mut state = SamplerState::new(&params, &[], 0);
        assert!(!state.takes_largest());
        for position in 0..50 {
            let mut logits = random_logits(20, 3.0, position as u64);
            let token = Sampler::new().sample(&mut state, &mut logits, position).token;
            state.accepted(token);
            // After 1 comes no 5, so the sequence is fives until a one, and ones from there on.
            assert!(token == TokenId(5) || token == TokenId(1), "{token}");
            if token == TokenId(1) {
                let mut again = vec![0.0; 20];
                again[5] = 50.0;
                let next = Sampler::new().sample(&mut state, &mut again, position + 1).token;
                assert_eq!(next, TokenId(1));
            }
        }
    }
}
