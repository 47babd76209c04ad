//! Time to choose a token from one row: `cargo bench -p pelton-sampling --bench rows`.
//!
//! 151,936 logits, as Qwen's models have, with a few likely tokens and a long tail. The first rows of
//! the table take the fast ways, the others go through stages or have processors besides.

use pelton_base::{Dry, Dynatemp, Mirostat, SamplerStage, SamplingParams, TokenId, Xtc};
use pelton_sampling::{Philox, Sampler, SamplerState};
use std::time::Instant;

const VOCAB: usize = 151_936;
const N_ROWS: usize = 300;

/// A likely token now and then: the exponential of a number that is mostly small.
fn row() -> Vec<f32> {
    let rng = Philox::new(1, 1);
    let noise = |id: usize| {
        (0..3).map(|i| rng.uniform((id * 3 + i) as u64) as f32 - 0.5).sum::<f32>() * 6.0
    };
    (0..VOCAB).map(|id| noise(id) + if id % 5000 == 7 { 9.0 } else { 0.0 }).collect()
}

/// Median microseconds of a row.
fn microseconds(params: &SamplingParams, logits: &[f32]) -> f64 {
    let prompt: Vec<TokenId> = (0..2000).map(|i| TokenId(i * i % 997)).collect();
    let (mut sampler, mut state) = (Sampler::new(), SamplerState::new(params, &prompt, 0));
    let mut times: Vec<f64> = (0..N_ROWS)
        .map(|position| {
            let mut logits = logits.to_vec();
            let started = Instant::now();
            let token = sampler.sample(&mut state, &mut logits, position).token;
            state.accepted(token);
            started.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[N_ROWS / 2]
}

fn main() {
    let plain = SamplingParams::default();
    let samplers = Some({
        use SamplerStage::{MinP, Temperature, TopK, TopP, TypicalP};
        vec![TopK, TypicalP, TopP, MinP, Temperature]
    });
    let usual =
        SamplingParams { top_k: 40, top_p: 0.95, min_p: 0.05, temperature: 0.8, ..plain.clone() };
    let mirostat = |version| Some(Mirostat { version, tau: 5.0, eta: 0.1 });
    let rows = [
        ("greedy", SamplingParams::greedy()),
        ("temperature", SamplingParams { temperature: 0.8, ..plain.clone() }),
        ("top-p 0.95", SamplingParams { top_p: 0.95, ..plain.clone() }),
        ("top-k 40, top-p, min-p", usual.clone()),
        ("frequency penalty", SamplingParams { frequency_penalty: 0.1, ..usual.clone() }),
        ("the order of llama.cpp", SamplingParams { samplers, ..usual.clone() }),
        ("typical-p", SamplingParams { typical_p: 0.9, ..plain.clone() }),
        ("top-n-sigma", SamplingParams { top_n_sigma: 1.0, ..plain.clone() }),
        ("XTC", {
            let xtc = Xtc { probability: 0.5, threshold: 0.01 };
            SamplingParams { xtc, ..plain.clone() }
        }),
        ("dynamic temperature", {
            let dynatemp = Dynatemp { range: 0.5, exponent: 1.0 };
            SamplingParams { dynatemp, ..usual.clone() }
        }),
        ("Mirostat 1", SamplingParams { mirostat: mirostat(1), ..plain.clone() }),
        ("Mirostat 2", SamplingParams { mirostat: mirostat(2), ..plain }),
        ("DRY over 2,000 tokens", {
            let dry = Dry { multiplier: 0.8, ..Dry::default() };
            SamplingParams { dry, ..usual.clone() }
        }),
        ("allowed tokens", {
            let allowed_tokens = Some((0..5000).map(|i| TokenId(i * 30)).collect());
            SamplingParams { allowed_tokens, ..usual }
        }),
    ];
    let logits = row();
    println!("{VOCAB} logits; median microseconds per row");
    for (name, params) in rows {
        println!("{name:<24} {:>8.0}", microseconds(&params, &logits));
    }
}
