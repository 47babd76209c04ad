//! A sampler that has seen one row of a vocabulary, and a request whose room is reserved, allocate
//! nothing for the rows that follow, whatever these look like. Nor does who verifies drafts.

#[path = "../../model/tests/counting/mod.rs"]
mod counting;

use counting::count;
use pelton_base::{Dry, Dynatemp, Mirostat, SamplerStage, SamplingParams, TokenId, Xtc};
use pelton_sampling::verify::{Place, Proposal, SiblingScratch, Verifier, draw_siblings};
use pelton_sampling::{KeptDistribution, Sampler, SamplerState};
use std::sync::Arc;

const VOCAB: usize = 5000;
const N_ROWS: usize = 100;

/// Row 0 leaves one token possible, the last ones nearly all of them.
fn row(i: usize) -> Vec<f32> {
    let n_possible = 1 + i * (VOCAB - 1) / N_ROWS;
    (0..VOCAB)
        .map(|id| match id * 7919 % VOCAB {
            rank if rank < n_possible => (id % 100) as f32 * 0.01,
            _ => f32::NEG_INFINITY,
        })
        .collect()
}

/// Choices that few requests ask for.
fn rare(plain: &SamplingParams) -> Vec<(&'static str, SamplingParams)> {
    let dry = Dry { multiplier: 0.8, allowed_length: 0, ..Dry::default() };
    let xtc = Xtc { probability: 0.5, threshold: 0.001 };
    let mirostat = |version| Some(Mirostat { version, tau: 9.0, eta: 0.5 });
    vec![
        ("typical-p", SamplingParams { typical_p: 0.9, ..plain.clone() }),
        ("top-n-sigma", SamplingParams { top_n_sigma: 1.0, ..plain.clone() }),
        ("XTC", SamplingParams { xtc, ..plain.clone() }),
        ("in another order", {
            let samplers = Some(SamplerStage::ALL.iter().rev().copied().collect());
            SamplingParams { samplers, xtc, top_p: 0.9, top_k: 99, min_p: 0.01, ..plain.clone() }
        }),
        ("dynamic temperature", {
            let dynatemp = Dynatemp { range: 0.5, exponent: 1.5 };
            SamplingParams { dynatemp, min_keep: 7, ..plain.clone() }
        }),
        ("Mirostat 1", SamplingParams { mirostat: mirostat(1), ..plain.clone() }),
        ("Mirostat 2", SamplingParams { mirostat: mirostat(2), ..plain.clone() }),
        ("DRY", SamplingParams { dry: dry.clone(), ..plain.clone() }),
        ("late DRY", {
            let dry = Dry { last_n: Some(20), breakers: Arc::new([vec![TokenId(7)]]), ..dry };
            SamplingParams { dry, ..plain.clone() }
        }),
        ("masks", {
            let allowed_tokens = Some((0..4000).map(TokenId).collect());
            let bad_words = vec![[3, 4, 5].map(TokenId).to_vec()];
            SamplingParams { allowed_tokens, bad_words, ..plain.clone() }
        }),
        ("late penalties", {
            let repeat_last_n = Some(20);
            SamplingParams { frequency_penalty: 0.5, repeat_last_n, ..plain.clone() }
        }),
    ]
}

fn later_rows_of_any_shape_allocate_nothing() {
    let mut rows: Vec<Vec<f32>> = (0..=N_ROWS).map(row).collect();
    let plain = SamplingParams::default();
    for (name, params) in [
        ("greedy", SamplingParams::greedy()),
        ("from all", plain.clone()),
        ("min-p", SamplingParams { min_p: 0.1, ..plain.clone() }),
        ("top-k", SamplingParams { top_k: 1000, ..plain.clone() }),
        ("top-k and top-p", SamplingParams { top_k: 50, top_p: 0.9, ..plain.clone() }),
        ("top-p", SamplingParams { top_p: 0.99, ..plain.clone() }),
        ("penalties", SamplingParams { frequency_penalty: 0.5, ..plain.clone() }),
    ]
    .into_iter()
    .chain(rare(&plain))
    {
        let (mut sampler, mut state) = (Sampler::new(), SamplerState::new(&params, &[], 0));
        state.reserve(rows.len());
        let mut n_allocations = 0;
        for (i, logits) in rows.iter_mut().enumerate() {
            let token = count(&mut n_allocations, || {
                let token = sampler.sample(&mut state, logits, i).token;
                state.accepted(token);
                token
            });
            assert!(token < TokenId(VOCAB as u32));
            if i == 0 {
                n_allocations = 0;
            }
        }
        assert_eq!(n_allocations, 0, "{name}: {n_allocations} allocations in {N_ROWS} rows");
    }
}

/// Row 0 has all tokens possible, so that what is kept of it is as large as it gets.
fn later_places_with_drafts_allocate_nothing() {
    let plain = SamplingParams { top_p: 0.99, ..Default::default() };
    for (name, params) in [
        ("from all", SamplingParams::default()),
        ("top-k", SamplingParams { top_k: 50, ..Default::default() }),
        ("top-p", plain.clone()),
        ("typical-p", SamplingParams { typical_p: 0.9, ..Default::default() }),
        ("Mirostat", {
            let mirostat = Some(Mirostat { version: 2, tau: 9.0, eta: 0.5 });
            SamplingParams { mirostat, ..Default::default() }
        }),
    ] {
        let (mut sampler, mut state) = (Sampler::new(), SamplerState::new(&params, &[], 0));
        let (mut drafter, mut draft_state) = (Sampler::new(), SamplerState::new(&plain, &[], 0));
        let (mut verifier, mut scratch) = (Verifier::new(), SiblingScratch::default());
        let (mut kept, mut siblings) = (KeptDistribution::default(), Vec::new());
        let (mut n_allocations, mut n_rejected) = (0, 0);
        for i in (0..=N_ROWS).rev() {
            let (mut logits, mut draft_logits) = (row(i), row(i));
            draft_logits.rotate_left(i % 2);
            count(&mut n_allocations, || {
                let rng = state.rng();
                let draft = drafter.distribution(&mut draft_state, &mut draft_logits, i);
                let place = Place { target: draft, rng, position: i as u64 };
                siblings.clear();
                draw_siblings(&place, 4, &mut scratch, &mut siblings);
                kept.keep(&draft);
                let target = sampler.distribution(&mut state, &mut logits, i);
                let place = Place { target, ..place };
                let q = kept.get().expect("just kept");
                let siblings = siblings.iter().copied();
                let drawn = verifier.judge(&place, siblings.clone(), Proposal::Drawn(q));
                let known = verifier.judge(&place, siblings, Proposal::Known);
                n_rejected += usize::from(drawn.accepted != Some(0) && known.accepted != Some(0));
            });
            if n_rejected <= 1 || i + 10 > N_ROWS {
                n_allocations = 0; // Until the scratch of both kinds was needed once.
            }
        }
        assert!(n_rejected > 20, "{name}: {n_rejected} rejections");
        assert_eq!(n_allocations, 0, "{name}: {n_allocations} allocations in {N_ROWS} places");
    }
}

fn main() {
    later_places_with_drafts_allocate_nothing();
    later_rows_of_any_shape_allocate_nothing();
}
