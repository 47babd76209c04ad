//! Residual streams side by side: configs that say nonsense, and a walk from layer to layer.

use pelton_model::{
    CpuDevice, LayerWalk, ModelFiles, Reads, check, layer_shape, outer_modules, parse_config,
};
use pelton_quant::dequantize_tensor;
use serde_json::{Value, json};

use crate::common::{Golden, golden};

fn config() -> Value {
    let text = std::fs::read_to_string(golden("gemma3n").folder().join("config.json"));
    serde_json::from_str(&text.expect("config")).expect("JSON")
}

/// The error of the config with this field of the text.
fn refusal(field: &str, value: Value) -> String {
    let mut config = config();
    config["text_config"][field] = value;
    refusal_of(&config.to_string())
}

fn refusal_of(text: &str) -> String {
    let config = match parse_config(text.as_bytes()) {
        Ok(config) => config,
        Err(error) => return error.to_string(),
    };
    let arch = pelton_model::arch::find(&config.architecture).expect("registered");
    (arch.spec)(&config).expect_err("nonsense").to_string()
}

#[test]
fn nonsense_is_refused_by_the_name_of_its_field() {
    let sparse = |last: f64| json!([0.8, 0.3, 0.0, 0.0, last]);
    for (field, value, expected) in [
        ("altup_num_inputs", json!(0), "from 2 to 16"),
        ("altup_num_inputs", json!(1), "from 2 to 16"),
        ("altup_num_inputs", json!(1000), "from 2 to 16"),
        ("altup_active_idx", json!(4), "from 0 to 3"),
        ("altup_active_idx", json!(-1), "from 0 to 3"),
        ("altup_correct_scale", json!("yes"), "true or false"),
        ("laurel_rank", json!(0), "from 1 to"),
        ("activation_sparsity_pattern", sparse(1.0), "from 0 to 0.9999"),
        ("activation_sparsity_pattern", sparse(-0.5), "from 0 to 0.9999"),
        ("activation_sparsity_pattern", sparse(1e-7), "0 or at least 0.0001"),
        ("activation_sparsity_pattern", json!([0.5, 0.5]), "a list of 5 numbers"),
        ("activation_sparsity_pattern", json!(0.95), "a list of 5 numbers"),
        ("activation_sparsity_scale", json!([1.0, "inf", 0.0, 0.0, 0.0]), "each of 5 layers"),
        ("intermediate_size", json!([64, 96, 64, 64]), "each of the 5 layers"),
        ("intermediate_size", json!([64, 96, 64, 64, 0]), "from 1 to"),
        ("intermediate_size", json!([]), "a whole number"),
        ("num_kv_shared_layers", json!(5), "from 0 to 4"),
        ("num_kv_shared_layers", json!(3), "without a window"),
        ("hidden_size_per_layer_input", json!(0), "from 1 to"),
        ("vocab_size_per_layer_input", json!(0), "from 1 to"),
        ("use_bidirectional_attention", json!(true), "false"),
        ("layer_types", json!(["full_attention"]), "each of the 5 layers"),
    ] {
        let text = refusal(field, value);
        assert!(
            text.contains(&format!("`{field}`")) || text.contains(&format!(".{field}`")),
            "{text}"
        );
        assert!(text.contains(expected), "{field}: {text}");
    }
    let text = config().to_string();
    let nan = text.replace("[0.8,0.3,0.0,0.0,0.0]", "[0.8,NaN,0.0,0.0,0.0]");
    assert_ne!(nan, text);
    assert!(refusal_of(&nan).contains("activation_sparsity_pattern"), "{}", refusal_of(&nan));
}

#[test]
fn other_families_have_one_width_for_all_layers() {
    let text = json!({
        "architectures": ["Gemma3ForCausalLM"], "hidden_size": 64, "intermediate_size": [64, 64],
        "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 256,
        "max_position_embeddings": 128,
    });
    assert!(refusal_of(&text.to_string()).contains("`intermediate_size`"));
}

#[test]
fn a_config_that_says_little_is_that_of_the_published_model() {
    let text = json!({
        "architectures": ["Gemma3nForConditionalGeneration"],
        "text_config": {"model_type": "gemma3n_text"},
    });
    let config = parse_config(text.to_string().as_bytes()).expect("a config");
    let spec = (pelton_model::arch::find(&config.architecture).expect("registered").spec)(&config);
    let spec = spec.expect("a spec");
    assert_eq!((spec.layers.len(), spec.n_paged_layers()), (35, 20));
    assert_eq!(
        (spec.layers[34].mixer.source(), spec.layers[33].mixer.source()),
        (Some(19), Some(18))
    );
    let streams = spec.streams.expect("streams");
    assert_eq!((streams.n, streams.active, streams.rank, streams.is_scaled), (4, 0, 64, true));
    let cut = |layer: usize| match &spec.layers[layer].mlp {
        pelton_model::layer::Mlp::Gated(mlp) => mlp.cut,
        _ => panic!("a perceptron with a gate"),
    };
    assert!(cut(9).is_some_and(|cut| (cut - 1.644_853_6).abs() < 1e-6));
    assert_eq!(cut(10), None);
    assert_eq!(spec.logit_softcap, Some(30.0));
}

/// A tensor of another shape, which the config of the golden model does not describe.
#[test]
fn tensors_of_another_shape_are_named() {
    for (from, to, tensor) in [
        ("\"laurel_rank\": 8", "\"laurel_rank\": 6", "laurel.linear_left.weight"),
        ("\"altup_num_inputs\": 4", "\"altup_num_inputs\": 5", "altup_projections.3.weight"),
        ("\"altup_num_inputs\": 4", "\"altup_num_inputs\": 3", "altup.modality_router.weight"),
    ] {
        let golden = golden("gemma3n");
        let file = golden.folder().join("config.json");
        let text = std::fs::read_to_string(&file).expect("config");
        let other = text.replace(from, to);
        assert_ne!(text, other);
        std::fs::write(&file, other).expect("config");
        let files = ModelFiles::open(golden.folder()).expect("a config");
        let error = check(&files).expect_err("another shape").to_string();
        assert!(error.contains(tensor), "{error}");
    }
}

fn values(files: &ModelFiles, name: &str) -> Vec<f64> {
    let view = files.tensors().get(name).expect(name);
    dequantize_tensor(&view).expect(name).into_iter().map(f64::from).collect()
}

fn product(weights: &[f64], x: &[f64]) -> Vec<f64> {
    weights.chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
}

fn mean_square(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64
}

/// The end of the model, by its formula, from the streams behind the last layer of a walk.
fn logits(files: &ModelFiles, golden: &Golden, prefix: &str, streams: &[f64]) -> Vec<f64> {
    let n = streams.len() / files.spec().expect("a spec").hidden_size;
    let mut streams = streams.chunks(streams.len() / n);
    let first = streams.next().expect("a stream");
    let mut sum = first.to_vec();
    for (i, stream) in streams.enumerate() {
        let name = format!("{prefix}altup_unembed_projections.{i}.weight");
        let projected = product(&values(files, &name), stream);
        let factor = (mean_square(first) / mean_square(&projected).max(1e-5)).sqrt();
        sum.iter_mut().zip(projected).for_each(|(sum, x)| *sum += x * factor);
    }
    sum.iter_mut().for_each(|x| *x /= n as f64);
    let rms = (mean_square(&sum) + 1e-6).sqrt();
    let weights = values(files, &format!("{prefix}norm.weight"));
    let normed: Vec<f64> = sum.iter().zip(weights).map(|(x, w)| x / rms * w).collect();
    let cap = f64::from(golden.files().spec().expect("a spec").logit_softcap.expect("a cap"));
    let logits = product(&values(files, &format!("{prefix}embed_tokens.weight")), &normed);
    logits.into_iter().map(|x| cap * (x / cap).tanh()).collect()
}

#[test]
fn a_walk_carries_all_streams_to_the_logits_of_the_reference() {
    for (fixture, prefix) in [("gemma3n", "model.language_model."), ("gemma3n-streams", "model.")] {
        let golden = golden(fixture);
        let files = golden.files();
        let device = CpuDevice::with_threads(Some(1)).expect("a device");
        let tokens = &golden.tokens()[..40];
        let mut walk = LayerWalk::new(&files, device, 64).expect("a walk");
        let mut texts = [walk.embed(&tokens[..20]), walk.embed(tokens)];
        walk.drop_embeddings();
        for layer in 0..walk.spec().layers.len() {
            walk.load(&files, layer).expect("a layer");
            // Another text between the layers of this one.
            texts.iter_mut().for_each(|text| walk.run(text, None));
        }
        let streams: Vec<f64> = texts[1].streams().iter().map(|x| f64::from(*x)).collect();
        let rows = streams.chunks(streams.len() / tokens.len());
        for (i, (row, expected)) in rows.zip(&golden.logits).enumerate() {
            let found = golden.columns.of(i, &logits(&files, &golden, prefix, row));
            for (found, expected) in found.iter().zip(expected) {
                assert!(
                    (found - f64::from(*expected)).abs() < 1e-4,
                    "{fixture}: {found} {expected}"
                );
            }
        }
        // The stream that layers read.
        let active = walk.spec().streams.expect("streams").active;
        let hidden = walk.spec().hidden_size;
        let of_last = &texts[1].streams()[texts[1].streams().len() / 40 * 39..];
        assert_eq!(of_last[active * hidden..][..hidden], texts[1].x[39 * hidden..]);
    }
}

#[test]
fn quantizers_see_no_norm_that_the_residual_reads_and_every_matrix_outside_of_layers() {
    let golden = golden("gemma3n-streams");
    let files = golden.files();
    let shape = layer_shape(&files, 1).expect("a layer");
    assert_eq!(shape.norms.get(&Reads::Mixer), None);
    assert!(shape.norms.contains_key(&Reads::Mlp));
    let modules: Vec<_> = shape.matrices.iter().map(|matrix| matrix.module.as_str()).collect();
    assert!(modules.contains(&"model.layers.1.laurel.linear_left"), "{modules:?}");
    assert!(!modules.iter().any(|module| module.contains("altup")), "{modules:?}");
    let outer = outer_modules(&files).expect("modules");
    let expected = [
        "per_layer_model_projection",
        "altup_projections.0",
        "altup_projections.1",
        "altup_unembed_projections.0",
        "altup_unembed_projections.1",
    ];
    assert_eq!(outer, expected.map(|name| format!("model.{name}")));
}
