//! Single verdicts: the corners where the mathematics has nothing to divide by, and how often drafts
//! are accepted.

#[allow(dead_code)]
mod common;
#[allow(unreachable_pub, dead_code)]
#[path = "../../testkit/src/statistics.rs"]
mod statistics;

use common::random_logits;
use pelton_base::{SamplingParams, TokenId};
use pelton_sampling::verify::{
    Place, Proposal, SiblingScratch, Typical, Verdict, Verifier, draw_siblings, typical_lossy,
};
use pelton_sampling::{Distribution, KeptDistribution, Philox, Sampler, SamplerState, Stream};
use proptest::prelude::*;
use statistics::{combined, p_values_over_sets};

fn distribution(params: &SamplingParams, logits: &[f32]) -> KeptDistribution {
    let mut kept = KeptDistribution::default();
    let mut state = SamplerState::new(params, &[], 0);
    kept.keep(&Sampler::new().distribution(&mut state, &mut logits.to_vec(), 0));
    kept
}

fn plain(logits: &[f32]) -> KeptDistribution {
    distribution(&SamplingParams::default(), logits)
}

fn view(kept: &KeptDistribution) -> Distribution<'_> {
    kept.get().expect("something was kept")
}

fn judge(
    target: &KeptDistribution,
    seed: u64,
    siblings: &[u32],
    proposal: Proposal<'_>,
) -> Verdict {
    let place = Place { target: view(target), rng: Philox::new(seed, 0), position: 0 };
    Verifier::new().judge(&place, siblings.iter().copied().map(TokenId), proposal)
}

const NEVER: f32 = f32::NEG_INFINITY;

#[test]
fn a_greedy_target_is_matched() {
    let target = distribution(&SamplingParams::greedy(), &[0.0, 2.0, 1.0]);
    let draft = plain(&[3.0, 0.0, 1.0]);
    let right = TokenId(1);
    for seed in 0..200 {
        for proposal in [Proposal::Known, Proposal::Drawn(view(&draft))] {
            let verdict = |siblings: &[u32]| judge(&target, seed, siblings, proposal);
            assert_eq!(verdict(&[1]), Verdict { token: right, accepted: Some(0) });
            assert_eq!(verdict(&[0, 2, 1]), Verdict { token: right, accepted: Some(2) });
            assert_eq!(verdict(&[2]), Verdict { token: right, accepted: None });
            assert_eq!(verdict(&[]), Verdict { token: right, accepted: None });
        }
    }
}

#[test]
fn a_mask_that_leaves_one_token_or_none_decides_alone() {
    for (logits, only) in [([NEVER, NEVER, -3.0], 2), ([NEVER; 3], 0), ([f32::NAN; 3], 0)] {
        let target = plain(&logits);
        let draft = plain(&[0.0; 3]);
        for seed in 0..100 {
            for proposal in [Proposal::Known, Proposal::Drawn(view(&draft))] {
                for siblings in [&[0_u32, 1, 2][..], &[1, 0], &[1]] {
                    assert_eq!(judge(&target, seed, siblings, proposal).token, TokenId(only));
                }
            }
        }
    }
}

#[test]
fn tokens_that_cannot_be_do_no_harm_as_drafts() {
    // Beyond the vocabulary, ruled out by the target, ruled out by its own draft, and twice the same.
    let target = plain(&[0.0, 1.0, NEVER, 0.5]);
    let draft = plain(&[NEVER, 0.0, 5.0, NEVER, 0.0, 0.0]);
    for seed in 0..500 {
        for proposal in [Proposal::Known, Proposal::Drawn(view(&draft))] {
            let verdict = judge(&target, seed, &[900, 2, 4, 2, 1, 1], proposal);
            assert!([0, 1, 3].contains(&verdict.token.0), "{verdict:?}");
            assert!(verdict.accepted.is_none_or(|sibling| sibling == 4), "{verdict:?}");
            // All that is possible was offered: one of them must be it.
            let all = judge(&target, seed, &[0, 1, 3], Proposal::Known);
            assert!(all.accepted.is_some(), "{all:?}");
        }
    }
}

#[test]
fn distributions_that_differ_in_the_last_bits_leave_no_trace() {
    let logits = random_logits(5000, 3.0, 1);
    let close: Vec<f32> = logits.iter().map(|&l| f32::from_bits(l.to_bits() ^ 1)).collect();
    let (target, draft) = (plain(&logits), plain(&close));
    let (mut verifier, mut scratch) = (Verifier::new(), SiblingScratch::default());
    for seed in 0..2000 {
        let rng = Philox::new(seed, 0);
        let place = Place { target: view(&draft), rng, position: 0 };
        let mut siblings = Vec::new();
        draw_siblings(&place, 3, &mut scratch, &mut siblings);
        let place = Place { target: view(&target), ..place };
        let verdict = verifier.judge(&place, siblings, Proposal::Drawn(view(&draft)));
        assert_eq!(verdict.accepted, Some(0), "rejected with probability 1e-7");
    }
}

#[test]
fn a_place_without_drafts_gives_what_plain_decoding_gives() {
    let logits = random_logits(3000, 4.0, 2);
    for top_k in [0, 20] {
        let params = SamplingParams { top_k, seed: 9, ..Default::default() };
        let (mut sampler, mut state) = (Sampler::new(), SamplerState::new(&params, &[], 1));
        for position in 0..50 {
            let sampled = sampler.sample(&mut state, &mut logits.clone(), position).token;
            let rng = state.rng();
            let target = sampler.distribution(&mut state, &mut logits.clone(), position);
            let place = Place { target, rng, position: position as u64 };
            let bonus = Verdict { token: sampled, accepted: None };
            assert_eq!(Verifier::new().judge(&place, [], Proposal::Known), bonus);
            let nothing_passes = Typical { epsilon: 2.0, delta: f64::INFINITY };
            assert_eq!(typical_lossy(&place, [TokenId(0)], nothing_passes), bonus);
        }
    }
}

#[test]
fn drafts_are_accepted_as_often_as_the_distributions_overlap() {
    let (target, draft) = (plain(&random_logits(40, 2.0, 3)), plain(&random_logits(40, 2.0, 4)));
    let pairs = (0..40)
        .map(|id| (view(&target).probability(TokenId(id)), view(&draft).probability(TokenId(id))));
    let overlap: f64 = pairs.map(|(p, q)| p.min(q)).sum();
    let (mut verifier, mut scratch) = (Verifier::new(), SiblingScratch::default());
    let p_values = p_values_over_sets(&[overlap, 1.0 - overlap], 20, 2000, |seed| {
        let place = Place { target: view(&draft), rng: Philox::new(seed, 3), position: 5 };
        let mut siblings = Vec::new();
        draw_siblings(&place, 1, &mut scratch, &mut siblings);
        let place = Place { target: view(&target), ..place };
        let verdict = verifier.judge(&place, siblings, Proposal::Drawn(view(&draft)));
        usize::from(verdict.accepted.is_none())
    });
    assert!(combined(&p_values) > 0.01, "{p_values:?}");
}

#[test]
fn siblings_are_drawn_without_replacement_until_there_are_no_more() {
    let draft = plain(&[1.0, 0.0, 2.0, NEVER, 0.5]);
    let q = |id: usize| view(&draft).probability(TokenId(id as u32));
    let pairs: Vec<f64> = (0..25)
        .map(|cell| (cell / 5, cell % 5))
        .map(|(a, b)| if a == b { 0.0 } else { q(a) * q(b) / (1.0 - q(a)) })
        .collect();
    let mut scratch = SiblingScratch::default();
    let p_values = p_values_over_sets(&pairs, 20, 2000, |seed| {
        let place = Place { target: view(&draft), rng: Philox::new(seed, 0), position: 0 };
        let mut siblings = Vec::new();
        draw_siblings(&place, 9, &mut scratch, &mut siblings);
        let mut sorted: Vec<u32> = siblings.iter().map(|token| token.0).collect();
        sorted.sort_unstable();
        assert_eq!(sorted, [0, 1, 2, 4], "every possible token, once");
        siblings[0].0 as usize * 5 + siblings[1].0 as usize
    });
    assert!(combined(&p_values) > 0.01, "{p_values:?}");
}

/// Judges siblings that were drawn without replacement as if each had been drawn from all of `q`.
fn judge_by_all_of(q: &[f64], place: &Place<'_>, siblings: &[TokenId]) -> TokenId {
    let mut p: Vec<f64> = place.target.iter().map(|(_, p)| p).collect();
    for (sibling, &token) in siblings.iter().enumerate() {
        let u = place.rng.uniform_of(Stream::Accept, place.position, sibling as u32);
        if u * q[token.0 as usize] < p[token.0 as usize] {
            return token;
        }
        p.iter_mut().zip(q).for_each(|(p, q)| *p = (*p - q).max(0.0));
        let total: f64 = p.iter().sum();
        p.iter_mut().for_each(|p| *p /= total);
    }
    let mut rest = place.rng.uniform_of(Stream::Recovered, place.position, 0);
    let is_reached = |p: &f64| {
        rest -= p;
        rest < 0.0
    };
    TokenId(p.iter().position(is_reached).expect("they sum to one") as u32)
}

#[test]
fn repetitions_are_passed_over_and_elder_siblings_have_to_be_left_out_of_q() {
    // The target rules out what the draft prefers, so that the second sibling matters.
    let (p, q) = ([0.0, 0.4, 0.3, 0.3], [0.7, 0.2, 0.05, 0.05]);
    let (target, draft) =
        (plain(&p.map(|p: f64| p.ln() as f32)), plain(&q.map(|q: f64| q.ln() as f32)));
    let (mut verifier, mut scratch) = (Verifier::new(), SiblingScratch::default());
    let mut p_value = |is_replaced: bool, is_wrong: bool| {
        combined(&p_values_over_sets(&p, 20, 500, |seed| {
            let place = Place { target: view(&draft), rng: Philox::new(seed, 0), position: 0 };
            let mut siblings = Vec::new();
            if is_replaced {
                let u = |sibling| place.rng.uniform_of(Stream::Draft, 0, sibling);
                siblings.extend([0, 1].map(|sibling| place.target.draw(u(sibling))));
            } else {
                draw_siblings(&place, 2, &mut scratch, &mut siblings);
            }
            let place = Place { target: view(&target), ..place };
            let token = match is_wrong {
                true => judge_by_all_of(&q, &place, &siblings),
                false => verifier.judge(&place, siblings, Proposal::Drawn(view(&draft))).token,
            };
            token.0 as usize
        }))
    };
    assert!(p_value(false, false) > 0.01);
    assert!(p_value(true, false) > 0.01, "drawn with replacement");
    assert!(p_value(false, true) < 1e-9);
}

fn hostile_logits() -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec(
        prop_oneof![4 => -9.0..9.0_f32, 1 => any::<f32>(), 1 => Just(NEVER), 1 => Just(0.0)],
        0..20,
    )
}

fn hostile_params() -> impl Strategy<Value = SamplingParams> {
    let temperature = prop_oneof![Just(0.0_f32), Just(f32::MIN_POSITIVE), 0.01..100.0_f32];
    let top_p = prop_oneof![Just(1.0_f32), 0.05..=1.0_f32];
    (temperature, 0..5_u32, top_p, 0.0..=1.0_f32).prop_map(|(temperature, top_k, top_p, min_p)| {
        SamplingParams { temperature, top_k, top_p, min_p, ..Default::default() }
    })
}

proptest! {
    #[test]
    fn no_verdict_is_impossible_and_none_panics(
        (target, draft) in (
            (hostile_params(), hostile_logits()),
            (hostile_params(), hostile_logits()),
        ),
        siblings in prop::collection::vec(prop_oneof![9 => 0..20_u32, 1 => any::<u32>()], 0..12),
        (epsilon, delta) in (any::<f64>(), any::<f64>()),
        seed in any::<u64>(),
    ) {
        let target = distribution(&target.0, &target.1);
        let draft = distribution(&draft.0, &draft.1);
        let place = Place { target: view(&target), rng: Philox::new(seed, 0), position: seed };
        let tokens: Vec<TokenId> = siblings.iter().copied().map(TokenId).collect();
        let mut verifier = Verifier::new();
        let mut verdicts = vec![typical_lossy(
            &place, tokens.iter().copied(), Typical { epsilon, delta },
        )];
        for proposal in [Proposal::Known, Proposal::Drawn(view(&draft))] {
            let verdict = verifier.judge(&place, tokens.iter().copied(), proposal);
            let fresh = Verifier::new().judge(&place, tokens.iter().copied(), proposal);
            prop_assert_eq!(verdict, fresh, "what was judged before shows");
            verdicts.push(verdict);
        }
        for verdict in verdicts {
            prop_assert!(place.target.probability(verdict.token) > 0.0, "{:?}", verdict);
            if let Some(sibling) = verdict.accepted {
                prop_assert_eq!(tokens[sibling], verdict.token);
            }
        }
    }
}
