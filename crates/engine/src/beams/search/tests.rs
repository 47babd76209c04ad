//! The bookkeeping against the definition, which lists whole answers.

use super::*;
use pelton_testkit::beams::{NaiveBeam, NaiveBeams};
use proptest::prelude::*;

const VOCAB: u64 = 7;

/// Log probabilities after these tokens, of which many are equal: multiples of an eighth.
fn logprobs(seed: u64, tokens: &[TokenId]) -> Vec<f64> {
    let mix = |x: u64| (x ^ x >> 31).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let state = tokens
        .iter()
        .fold(mix(seed + 1), |state, token| mix(state.rotate_left(23) ^ u64::from(token.0 + 1)));
    let one = |id: u64| match mix(state ^ id << 7) >> 40 {
        x if x % 11 == 0 => f64::NEG_INFINITY,
        x => -((x % 24) as f64) / 8.0,
    };
    (0..VOCAB).map(one).collect()
}

/// The search as the engine drives it: the tokens of each beam, and its likeliest candidates.
fn search(seed: u64, params: BeamParams, bounds: Bounds) -> (Vec<NaiveBeam>, usize) {
    let mut search = BeamSearch::new(params, bounds);
    let mut live: Vec<Vec<TokenId>> = vec![Vec::new()];
    let mut n_steps = 0;
    while !live.is_empty() {
        let seen: Vec<Seen> = live
            .iter()
            .map(|tokens| {
                let all = (0..).map(TokenId).zip(logprobs(seed, tokens));
                let mut all: Vec<_> = all.map(|(token, logprob)| (token, logprob as f32)).collect();
                all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
                all.truncate(2 * params.width);
                // The order among candidates must not matter.
                let n = all.len().max(1);
                all.rotate_left(seed as usize % n);
                Seen { candidates: all, top: None }
            })
            .collect();
        let children = search.advance(&seen);
        assert!(children.len() <= params.width);
        let child = |Child { parent, token }| live[parent].iter().copied().chain([token]).collect();
        live = children.into_iter().map(child).collect();
        n_steps += 1;
        assert!(live.iter().all(|tokens: &Vec<TokenId>| tokens.len() == search.n_tokens()));
    }
    let answer = |beam: Beam| {
        let sum: f64 = beam.logprobs.iter().map(|one| f64::from(one.logprob)).sum();
        assert_eq!(sum, beam.cumulative_logprob);
        assert!(beam.logprobs.iter().map(|one| one.token).eq(beam.tokens.iter().copied()));
        let Beam { tokens, cumulative_logprob, score, finish, .. } = beam;
        let is_stopped = finish == FinishReason::Stop;
        NaiveBeam { tokens, sum: cumulative_logprob, score, is_stopped }
    };
    (search.answers().into_iter().map(answer).collect(), n_steps)
}

fn ends(n: usize) -> Vec<TokenId> {
    [TokenId(2), TokenId(5)][..n].to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn the_answers_are_those_of_the_definition(
        seed in any::<u32>(),
        (width, n_most, n_prompt) in (1..6_usize, 1..9_usize, 1..5_usize),
        length_penalty in prop_oneof![Just(0.0), Just(1.0), -2.0..3.0],
        stops_early in prop_oneof![Just(None), Just(Some(false)), Just(Some(true))],
        n_ends in 0..3_usize,
        n_less in 0..5_usize,
    ) {
        let seed = u64::from(seed);
        let ends = ends(n_ends);
        let early_stopping = match stops_early {
            None => EarlyStopping::Never,
            Some(false) => EarlyStopping::Heuristic,
            Some(true) => EarlyStopping::Always,
        };
        let n = width.saturating_sub(n_less).max(1);
        let params = BeamParams { width, n, length_penalty, early_stopping };
        let (found, n_steps) =
            search(seed, params, Bounds { n_prompt, n_most, ends: ends.clone() });
        let naive = NaiveBeams { width, length_penalty, stops_early, n_prompt, n_most, ends: &ends };
        let mut expected = naive.search(|tokens| logprobs(seed, tokens));
        expected.truncate(n);
        prop_assert_eq!(found, expected);
        prop_assert!(n_steps <= n_most);
    }
}

/// A search by `never` may end before `max_tokens`, with the outcome of one that goes on: the test
/// above compares with one that does. Here it really ends.
#[test]
fn a_search_ends_when_no_beam_can_become_an_answer() {
    let mut search = BeamSearch::new(
        BeamParams { length_penalty: 0.0, ..BeamParams::of_width(1) },
        Bounds { n_prompt: 3, n_most: 1000, ends: ends(1) },
    );
    let seen = |logprobs: [f32; 2]| {
        vec![Seen {
            candidates: vec![(TokenId(2), logprobs[0]), (TokenId(3), logprobs[1])],
            top: None,
        }]
    };
    assert_eq!(search.advance(&seen([-1.0, -0.5])), [Child { parent: 0, token: TokenId(3) }]);
    assert_eq!(search.advance(&seen([-9.0, -0.6])), [], "-1.1 cannot become more than -1.0");
    assert_eq!(search.answers()[0].tokens, [TokenId(2)]);
    assert_eq!(search.n_tokens(), 2);
}

#[test]
fn the_stop_token_counts_for_the_sum_and_not_for_the_length() {
    let answers = |token, n_most| {
        let bounds = Bounds { n_prompt: 2, n_most, ends: ends(1) };
        let mut search = BeamSearch::new(BeamParams::of_width(1), bounds);
        let candidates = vec![(TokenId(token), -3.0)];
        assert_eq!(search.advance(&[Seen { candidates, top: None }]), []);
        search.answers().swap_remove(0)
    };
    let stopped = answers(2, 9);
    assert_eq!((stopped.score, stopped.finish), (-3.0 / 2.0, FinishReason::Stop));
    let cut = answers(3, 1);
    assert_eq!((cut.score, cut.finish), (-3.0 / 3.0, FinishReason::Length));
}

#[test]
fn a_beam_without_candidates_dies_alone() {
    let bounds = Bounds { n_prompt: 2, n_most: 2, ends: Vec::new() };
    let mut search = BeamSearch::new(BeamParams::of_width(2), bounds);
    let seen = |tokens: &[u32]| Seen {
        candidates: tokens.iter().map(|&token| (TokenId(token), -1.0)).collect(),
        top: None,
    };
    assert_eq!(search.advance(&[seen(&[4, 6])]).len(), 2);
    assert_eq!(search.advance(&[seen(&[]), seen(&[1])]), []);
    let answers = search.answers();
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].tokens, [TokenId(6), TokenId(1)]);
}

#[test]
fn no_number_among_the_candidates_is_worse_than_none() {
    let bounds = Bounds { n_prompt: 1, n_most: 1, ends: Vec::new() };
    let mut search = BeamSearch::new(BeamParams::of_width(4), bounds);
    let values = [f32::NAN, f32::NEG_INFINITY, f32::INFINITY, -0.5];
    let candidates = (0..).map(TokenId).zip(values).collect();
    assert_eq!(search.advance(&[Seen { candidates, top: None }]), []);
    let answers = search.answers();
    assert_eq!(answers.len(), 1);
    assert_eq!(answers[0].tokens, [TokenId(3)]);
}

#[test]
fn parameters_out_of_range_are_named() {
    let params = BeamParams::of_width(4);
    for (param, params) in [
        ("beam_width", BeamParams { width: 0, ..params }),
        ("beam_width", BeamParams { width: 33, ..params }),
        ("n", BeamParams { n: 0, ..params }),
        ("n", BeamParams { n: 5, ..params }),
        ("length_penalty", BeamParams { length_penalty: f64::NAN, ..params }),
        ("length_penalty", BeamParams { length_penalty: f64::INFINITY, ..params }),
        ("length_penalty", BeamParams { length_penalty: -10.5, ..params }),
    ] {
        assert_eq!(params.validate().expect_err(param).param, param);
    }
    assert_eq!(BeamParams::of_width(32).validate(), Ok(()));
}
