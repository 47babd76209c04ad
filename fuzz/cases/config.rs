//! Any bytes are a config from which an architecture builds a sound spec, or an error of one line;
//! never a panic, never memory that the config merely claims.

use pelton_model::Mixer;
use pelton_model::arch::find;

pub(crate) fn run(bytes: &[u8]) {
    let built = pelton_model::parse_config(bytes).and_then(|config| {
        let arch = find(&config.architecture).expect("a config names a known architecture");
        (arch.spec)(&config)
    });
    match built {
        Ok(spec) => {
            assert!(!spec.layers.is_empty() && spec.hidden_size > 0 && spec.vocab_size > 0);
            assert!(spec.norm_eps.is_finite());
            assert!(spec.ropes.iter().all(|rope| rope.theta.is_finite()));
            for layer in &spec.layers {
                if let Mixer::Gqa(gqa) = &layer.mixer {
                    assert!(gqa.n_kv_heads > 0 && gqa.n_heads % gqa.n_kv_heads == 0);
                    assert!(gqa.head_dim > 0 && gqa.head_dim % 2 == 0);
                }
                // Overflow would panic here.
                let mixer = &layer.mixer;
                let _ = (mixer.query_width(), mixer.out_width(), layer.mlp.intermediate_size() * 2);
            }
        }
        Err(err) => {
            let message = err.to_string();
            assert!(!message.contains('\n'), "{message:?}");
        }
    }
}
