//! States in bf16: what rounding them once in 64 tokens does to the next token's probabilities.

use pelton_base::TokenId;
use pelton_model::{LoadOptions, StateDtype, StateShape, load_cpu};

use crate::common::{all, run_whole};

/// `Σ p (ln p - ln q)` in nats, by logits.
fn divergence(p: &[f32], q: &[f32]) -> f64 {
    let logs = |logits: &[f32]| -> Vec<f64> {
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|x| f64::from(x - most).exp()).sum();
        logits.iter().map(|x| f64::from(x - most) - sum.ln()).collect()
    };
    logs(p).iter().zip(logs(q)).map(|(p, q)| p.exp() * (p - q)).sum()
}

/// With `--nocapture` this prints the figures of `docs/hybrid.md`.
#[test]
fn rounded_states_change_no_row_before_the_first_border_and_later_ones_little() {
    let mut n_models = 0;
    for golden in all() {
        let files = golden.files();
        let spec = files.spec().expect(&golden.name);
        if !spec.is_recurrent() {
            continue;
        }
        let vocab = golden.tokens().iter().map(|token| token.0).max().expect("tokens") + 1;
        let n = spec.max_context.min(500) as u32;
        let tokens: Vec<TokenId> = (0..n).map(|i| TokenId((i * i * 7 + 3 * i) % vocab)).collect();
        let [exact, rounded] = StateDtype::ALL.map(|state_dtype| {
            let options = LoadOptions { state_dtype, n_threads: Some(1), ..LoadOptions::default() };
            let mut decoder = load_cpu(&files, &options).expect(&golden.name);
            run_whole(&mut decoder, &tokens)
        });
        assert!(exact[..64] == rounded[..64], "{}: the first chunk", golden.name);
        let rows = exact[64..].iter().zip(&rounded[64..]);
        let off = rows.clone().flat_map(|(a, b)| a.iter().zip(b).map(|(a, b)| (a - b).abs()));
        let (off, n_rows) = (off.fold(0.0_f32, f32::max), exact.len() - 64);
        let kl = rows.map(|(p, q)| divergence(p, q)).sum::<f64>() / n_rows as f64;
        println!("{:<24}{n_rows:>5} rows: {kl:.1e} nats, logits within {off:.1e}", golden.name);
        let states = StateShape::of(&spec, StateDtype::Bf16);
        // A convolution alone has nothing to round.
        let has_matrix = states.layers.iter().any(|layer| layer.matrix() > 0);
        assert_eq!(off > 0.0, has_matrix, "{}: off by {off}", golden.name);
        assert!(kl < 1e-3, "{}: {kl} nats", golden.name);
        n_models += 1;
    }
    assert!(n_models > 15, "{n_models} models");
}
