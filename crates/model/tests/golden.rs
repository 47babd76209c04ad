//! Logits against the reference implementation, for every fixture and every weight format.
//!
//! `golden/make.py` describes how the fixtures are made.

use std::path::Path;

use crate::common::{
    Golden, all, all_exported, argmax, bits, golden, run_chunks, run_whole, scattered,
};
use pelton_model::arch::{LayerSpec, Mixer};
use pelton_model::embed::{EmbedSpec, Pooling};
use pelton_model::{ARCHS, Arch, Compute, ModelFiles, export_gguf};
use pelton_quant::{dequantize_tensor, for_name, quantize_tensor};
use pelton_tensor::{DType, Gguf, GgufWriter, TensorSource, TensorView};

/// Bound on the worst logit in f32.
const F32_BOUND: f32 = 1e-4;
/// Bounds on the root of the mean square error over all logits, relative to that of the logits
/// themselves, per stored format and arithmetic. Rounding errors of random weights do not cancel,
/// so the bounds are far above the errors of a trained model.
const BOUNDS: &[(&str, Compute, f32)] = &[
    ("F32", Compute::F32, 1e-5),
    ("BF16", Compute::F32, 1e-5),
    // Keys, values, queries and weights of attention in bf16.
    ("BF16", Compute::Auto, 5e-3),
    ("F16", Compute::Auto, 5e-3),
    // Weights rounded; with `Auto`, activations too.
    ("Q8_0", Compute::F32, 0.03),
    ("Q8_0", Compute::Auto, 0.04),
    ("Q5_1", Compute::Auto, 0.20),
    ("IQ4_NL", Compute::Auto, 0.35),
    ("MXFP4", Compute::Auto, 0.50),
    ("Q4_0", Compute::F32, 0.35),
    ("Q4_0", Compute::Auto, 0.35),
];

/// Factors of bounds and least bounds of unsteady models. In a mixture of experts, rounding can decide a
/// near tie of the router for another expert; the fixtures of latent attention have weights ten times
/// as large as the other fixtures. A recurrence keeps what rounding changed, and norms small queries and
/// keys.
const UNSTEADY: [f32; 2] = [1.5, 0.12];
const RECURRENT: [f32; 2] = [3.0, 0.03];
/// Dense fixtures that feel rounding more: embeddings, rotated queries and keys or what layers add
/// is scaled, norms follow mixers, or activations are squared. As stored their files have the bits
/// of the folders, and are as far off.
const SENSITIVE: (&[&str], f32) = (
    &[
        "cohere2",
        "exaone4",
        "gemma",
        "glm4",
        "minicpm",
        "nemotron",
        "olmo2",
        "olmo3",
        "phi4-longrope",
    ],
    2.5,
);

/// Greatest bound: logits that have nothing to do with the reference are about 1.4 off.
const GREATEST_BOUND: f32 = 0.95;

/// Least bound for weights that are rounded once more, because factors are multiplied into them.
const TWICE_BOUND: f32 = 5e-3;

/// The bound of this model where rounded weights of others have `bound`.
fn loosened(bound: f32, golden: &Golden) -> f32 {
    let spec = golden.files().spec().expect("a spec");
    let is_unsteady =
        |layer: &LayerSpec| layer.mlp.experts().is_some() || matches!(layer.mixer, Mixer::Mla(_));
    let has = [(spec.layers.iter().any(is_unsteady), UNSTEADY), (spec.is_recurrent(), RECURRENT)];
    let apply = |bound: f32, [factor, least]: [f32; 2]| (factor * bound).max(least);
    let all = has.into_iter().filter(|(has, _)| *has).fold(bound, |b, (_, own)| apply(b, own));
    all.min(GREATEST_BOUND.max(bound))
}

fn exported(golden: &Golden, format: &str) -> ModelFiles {
    let path = golden.folder().join(format!("{format}.gguf"));
    export_gguf(&golden.files(), format, &path, None).expect(&golden.name);
    ModelFiles::open(&path).expect(&golden.name)
}

#[test]
fn every_fixture_matches_the_reference_in_f32() {
    let mut far = Vec::new();
    for golden in all() {
        let mut decoder = golden.load(&golden.files(), Compute::F32);
        let error = golden.worst_error(&run_whole(&mut decoder, &golden.tokens()));
        println!("{:24} {error:.1e}", golden.name);
        if error >= F32_BOUND {
            far.push(format!("{}: {error:e}", golden.name));
        }
    }
    assert!(far.is_empty(), "{far:#?}");
}

#[test]
fn every_fixture_generates_tokens_and_is_no_model_for_vectors() {
    for golden in all() {
        let files = golden.files();
        assert!(files.spec().expect("a spec").generates(), "{}", golden.name);
        assert!(!EmbedSpec::is_declared(&files).expect("read"), "{}", golden.name);
        let spec = files.spec().expect("a spec");
        assert_eq!(EmbedSpec::read(&files, &spec).expect("read").pooling, [Pooling::LastToken]);
    }
}

#[test]
fn greedy_decoding_one_token_at_a_time_gives_the_tokens_of_the_reference() {
    for golden in all() {
        let mut decoder = golden.load(&golden.files(), Compute::F32);
        let tokens = golden.tokens();
        let mut chunks = vec![golden.prompt.len()];
        chunks.resize(golden.greedy.len(), 1);
        let rows = run_chunks(&mut decoder, &tokens, &chunks, &scattered(tokens.len()));
        let chosen: Vec<_> = rows[golden.prompt.len() - 1..].iter().map(|r| argmax(r)).collect();
        assert_eq!(chosen, golden.greedy, "{}", golden.name);
    }
}

#[test]
fn a_family_that_gguf_files_are_not_written_of_is_refused_by_name() {
    let golden = golden("gemma4");
    let out = golden.folder().join("model.gguf");
    let error = export_gguf(&golden.files(), "F32", &out, None).expect_err("refused").to_string();
    assert!(error.contains("Gemma4ForCausalLM") && !out.exists(), "{error}");
}

#[test]
fn rows_too_short_for_a_format_are_stored_in_eight_bits() {
    for golden in all_exported() {
        let files = exported(&golden, "Q4_K");
        let eight_bits = exported(&golden, "Q8_0");
        for name in files.tensors().names() {
            let view = files.tensors().get(name).expect("listed");
            let is_whole = view.shape.last().is_some_and(|k| k.is_multiple_of(256));
            if is_whole && view.shape.len() == 2 {
                assert_eq!(view.dtype, DType::Q4K, "{}: {name}", golden.name);
            } else {
                let expected = eight_bits.tensors().get(name).expect("the same tensors");
                assert_eq!((view.dtype, view.data), (expected.dtype, expected.data), "{name}");
            }
        }
    }
}

#[test]
fn every_format_stays_within_its_stated_bound() {
    let mut beyond = Vec::new();
    for golden in all_exported() {
        for &(format, compute, bound) in BOUNDS {
            let mut decoder = golden.load(&exported(&golden, format), compute);
            let error = golden.mean_error(&run_whole(&mut decoder, &golden.tokens()));
            println!("{:24} {format} {compute:?}: {error:.2e}", golden.name);
            let is_rounded_twice = format == "BF16" && !golden.is_exact_in_gguf();
            let bound = if is_rounded_twice { bound.max(TWICE_BOUND) } else { bound };
            let is_rounded = bound > F32_BOUND;
            let bound = if is_rounded { loosened(bound, &golden) } else { bound };
            let is_sensitive = is_rounded && SENSITIVE.0.contains(&golden.name.as_str());
            let bound = if is_sensitive { SENSITIVE.1 * bound } else { bound };
            if error.is_nan() || error >= bound {
                beyond.push(format!("{} {format} {compute:?}: {error:e}", golden.name));
            }
        }
    }
    assert!(beyond.is_empty(), "{beyond:#?}");
}

#[test]
fn a_gguf_file_computes_the_bits_of_the_folder_it_was_made_from() {
    for golden in all_exported() {
        let tokens = golden.tokens();
        let from_folder = run_whole(&mut golden.load(&golden.files(), Compute::F32), &tokens);
        let from_gguf =
            run_whole(&mut golden.load(&exported(&golden, "F32"), Compute::F32), &tokens);
        // Files of these two hold f32 divisors or a ratio of attention factors.
        let has_ratio = ["llama3", "llama-yarn-mscale"].contains(&golden.name.as_str());
        if has_ratio || !golden.is_exact_in_gguf() {
            assert!(golden.worst_error(&from_gguf) < F32_BOUND, "{}", golden.name);
        } else {
            assert_eq!(bits(&from_gguf), bits(&from_folder), "{}", golden.name);
        }
    }
}

#[test]
fn gguf_files_of_every_family_match_the_reference_of_their_folder() {
    let mut far = Vec::new();
    let mut seen = Vec::new();
    for golden in all() {
        let Some(path) = golden.gguf() else { continue };
        let files = ModelFiles::open(&path).expect(&golden.name);
        seen.push(files.config().architecture.clone());
        let mut decoder = golden.load(&files, Compute::F32);
        let error = golden.worst_error(&run_whole(&mut decoder, &golden.tokens()));
        println!("{:24} {error:.1e}", golden.name);
        if error >= F32_BOUND {
            far.push(format!("{}: {error:e}", golden.name));
        }
    }
    assert!(far.is_empty(), "{far:#?}");
    // Files of exported families are read by the test above. A file of SmolLM 3 holds nothing that
    // a file of Llama does not.
    let is_seen = |arch: &Arch| arch.names.iter().any(|name| seen.iter().any(|s| s == name));
    for arch in ARCHS.iter().filter(|arch| !arch.is_exported() && !arch.gguf_names.is_empty()) {
        assert!(is_seen(arch) || arch.names == ["SmolLM3ForCausalLM"], "{:?}", arch.names);
    }
}

/// Two GGUF files: one with its matrices in other formats by turns, one with the floats that their codes
/// stand for.
fn requantized(path: &Path, formats: &[&str]) -> [ModelFiles; 2] {
    let file = Gguf::open(path).expect("a file");
    let mut writers = [GgufWriter::new(), GgufWriter::new()];
    for (key, value) in file.metadata() {
        for writer in &mut writers {
            writer.metadata(key, value.clone());
        }
    }
    let mut tensors = Vec::new();
    let views = file.names().into_iter().filter_map(|name| file.get(name));
    for (i, view) in views.enumerate() {
        let (mut dtype, mut data) = (view.dtype, view.data.to_vec());
        // Converters leave the small matrices of a selective scan as they are.
        let is_whole = view.shape.last().is_some_and(|n| n.is_multiple_of(32));
        if dtype == DType::Bf16 && is_whole {
            let format = for_name(formats[i % formats.len()]).expect("a format");
            data = quantize_tensor(&view, format).expect("rows of whole blocks");
            dtype = format.dtype();
        }
        let floats = dequantize_tensor(&TensorView { dtype, data: &data, ..view });
        let floats = floats.expect("a format").iter().flat_map(|x| x.to_le_bytes()).collect();
        writers[0].tensor(view.name, dtype, view.shape);
        writers[1].tensor(view.name, DType::F32, view.shape);
        tensors.push([data, floats]);
    }
    let mut which = 0..;
    writers.map(|writer| {
        let which = which.next().expect("two files");
        let out = path.with_extension(format!("{which}.gguf"));
        let mut data = writer.create(&out).expect("created");
        for tensor in &tensors {
            data.tensor_data(&tensor[which]).expect("written");
        }
        data.finish().expect("finished");
        ModelFiles::open(&out).expect("opens")
    })
}

#[test]
fn a_quantized_gguf_file_of_a_hybrid_model_is_the_floats_that_its_codes_stand_for() {
    let mut n_seen = 0;
    for golden in all() {
        let Some(path) = golden.gguf() else { continue };
        if !ModelFiles::open(&path).expect("opens").spec().expect("a spec").is_recurrent() {
            continue;
        }
        for formats in [&["Q8_0"][..], &["Q8_0", "Q4_0", "Q5_1"]] {
            let [codes, floats] = requantized(&path, formats)
                .map(|files| run_whole(&mut golden.load(&files, Compute::F32), &golden.tokens()));
            assert_eq!(bits(&codes), bits(&floats), "{} {formats:?}", golden.name);
        }
        n_seen += 1;
    }
    assert!(n_seen >= 9, "{n_seen} files");
}

#[test]
fn every_architecture_has_a_fixture() {
    let seen: Vec<String> =
        all().iter().map(|golden| golden.files().config().architecture.clone()).collect();
    for arch in ARCHS {
        assert!(arch.names.iter().any(|name| seen.iter().any(|s| s == name)), "{:?}", arch.names);
    }
}

#[test]
fn a_wrong_rotation_would_be_noticed() {
    // The scaled variants share weights, so a scaling without effect would pass the other tests.
    let plain = golden("llama");
    for name in ["llama-linear", "llama-dynamic", "llama-yarn", "llama3", "llama-longrope"] {
        let scaled = golden(name);
        let mut decoder = plain.load(&plain.files(), Compute::F32);
        let rows = run_whole(&mut decoder, &scaled.tokens());
        assert!(scaled.worst_error(&rows) > 0.01, "{name}");
    }
}
