//! An exported file computes the same as its source, and an export that ends early leaves no file.

use std::cell::Cell;
use std::path::Path;

use crate::common::{Golden, all, all_exported, bits, golden, run_whole};
use pelton_base::TokenId;
use pelton_model::{Compute, ExportOptions, ModelError, ModelFiles, export};
use pelton_tensor::{DType, Gguf, TensorSource};
use pelton_testkit::golden::NOT_IN_GGUF;

/// Bound on the root of the mean square error of weights that are rounded to bf16 once more, relative
/// to the logits.
const ROUNDED_BOUND: f32 = 0.01;

fn exported(files: &ModelFiles, options: &ExportOptions<'_>, out: &Path) -> ModelFiles {
    let options = ExportOptions { overwrite: true, ..*options };
    let written = export(files, &options, out).expect("exported").expect("not stopped");
    ModelFiles::open(&written[0]).expect("sound")
}

/// Ends of keys that depend on how many layers guess further tokens.
const COUNTED: [&str; 3] = ["nextn_predict_layers", "block_count", "recurrent_layers"];

fn logits(golden: &Golden, files: &ModelFiles) -> Vec<Vec<u32>> {
    bits(&run_whole(&mut golden.load(files, Compute::Auto), &golden.tokens()))
}

#[test]
fn a_model_exported_as_stored_has_the_logits_of_its_folder() {
    for golden in all_exported() {
        let expected = logits(&golden, &golden.files());
        let temp = tempfile::tempdir().expect("temp");
        let as_stored = ExportOptions::default();
        let whole = exported(&golden.files(), &as_stored, &temp.path().join("whole.gguf"));
        let of_whole = logits(&golden, &whole);
        // Files of this one have in f32 what makes decays, rates and gates of latents.
        if golden.is_exact_in_gguf() && golden.name != "rwkv7" {
            assert!(of_whole == expected, "{}: whole", golden.name);
        } else {
            let mut decoder = golden.load(&whole, Compute::F32);
            let error = golden.mean_error(&run_whole(&mut decoder, &golden.tokens()));
            println!("{:24} {error:.1e}", golden.name);
            assert!(error < ROUNDED_BOUND, "{}: {error:e}", golden.name);
        }
        let small = ExportOptions { max_part_bytes: Some(20_000), ..as_stored };
        let parts = exported(&whole, &small, &temp.path().join("part.gguf"));
        assert!(parts.tensors().files().len() > 2, "{}", golden.name);
        assert!(logits(&golden, &parts) == of_whole, "{}: parts", golden.name);
        let joined = exported(&parts, &as_stored, &temp.path().join("joined.gguf"));
        let (joined, whole) = (joined.gguf().expect("GGUF"), whole.gguf().expect("GGUF"));
        assert_eq!(joined.metadata(), whole.metadata(), "{}", golden.name);
    }
}

#[test]
fn a_model_exported_as_stored_has_the_tensors_of_a_file_of_its_family() {
    let (mut n_files, mut differing) = (0, Vec::new());
    for golden in all_exported() {
        // An older layout: the file keeps keys and values of latent attention in one tensor.
        let Some(path) = golden.gguf().filter(|_| golden.name != "deepseek-v2-lite") else {
            continue;
        };
        let temp = tempfile::tempdir().expect("temp");
        let as_stored = ExportOptions::default();
        let own = exported(&golden.files(), &as_stored, &temp.path().join("own.gguf"));
        let other = ModelFiles::open(&path).expect("sound");
        let (own, other) = (own.gguf().expect("GGUF"), other.gguf().expect("GGUF"));
        // The first layer of this one has an older layout, too.
        let is_older = |name: &str| {
            let parts = ["blk.0.ssm_in.", "blk.0.attn_qkv.", "blk.0.attn_gate."];
            golden.name == "qwen3-next" && parts.iter().any(|part| name.starts_with(part))
        };
        let names = |file: &Gguf| -> Vec<String> {
            let names = file.names().into_iter().filter(|name| !is_older(name));
            names.map(str::to_owned).collect()
        };
        assert_eq!(names(own), names(other), "{}", golden.name);
        for name in names(own) {
            let (a, b) = (own.get(&name).expect("listed"), other.get(&name).expect("listed"));
            // Biases of experts are stored as rows of a matrix, but in f32 as vectors are.
            let is_bias = name.ends_with(".bias") && a.dtype == DType::F32 && b.dtype != DType::F32;
            // A model without rotations has its rows in pairs all the same, which changes no score.
            let is_paired = ["attn_q.", "attn_k."].iter().any(|part| name.contains(part))
                && golden.name == "granite-hybrid-moe";
            let may_differ = is_bias || is_paired;
            if a.shape != b.shape || (!may_differ && (a.dtype, a.data) != (b.dtype, b.data)) {
                differing.push(format!("{}: {name}", golden.name));
            }
        }
        for (key, value) in other.metadata() {
            // Layers that guess further tokens, and the context of models without positions.
            let is_counted = COUNTED.iter().any(|counted| key.ends_with(counted))
                || (key.ends_with("context_length") && golden.is_without_positions());
            let found = own.metadata().get(key);
            if !is_counted && !key.starts_with("general.") && found != Some(value) {
                differing.push(format!("{}: {key}: {found:?}, not {value:?}", golden.name));
            }
        }
        n_files += 1;
    }
    assert!(differing.is_empty(), "{differing:#?}");
    assert!(n_files >= 12, "{n_files} files");
}

#[test]
fn what_files_of_a_family_cannot_say_is_refused_and_nothing_is_written() {
    for (name, expected) in NOT_IN_GGUF {
        let golden = golden(name);
        let temp = tempfile::tempdir().expect("temp");
        let out = temp.path().join("out.gguf");
        let error = export(&golden.files(), &ExportOptions::default(), &out);
        let told = error.expect_err(name).to_string();
        assert!(told.contains(expected) && !out.exists(), "{name}: {told}");
    }
    // Values that no checkpoint has, but a config can say.
    for (name, field, value, expected) in [
        ("gpt-oss", "swiglu_limit", "5.0", "a perceptron in layer 0"),
        ("deepseek-v3", "rope_interleave", "false", "attention in layer 0"),
        ("mixtral", "norm_topk_prob", "false", ""),
        ("granite-hybrid", "time_step_limit", "[0.0, 0.1]", "a recurrence in layer 0"),
        ("falcon-h1-norm", "mamba_norm_before_gate", "true", "a recurrence beside attention"),
        ("falcon-mamba", "mixer_rms_eps", "0.001", "a recurrence in layer 0"),
        ("rwkv7", "norm_eps", "1e-5", "a recurrence in layer 0"),
        ("lfm2", "norm_eps", "1e-4", ""),
    ] {
        let golden = golden(name);
        let config = golden.folder().join("config.json");
        let text = std::fs::read_to_string(&config).expect("a config");
        let mut json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        json[field] = serde_json::from_str(value).expect("JSON");
        std::fs::write(&config, json.to_string()).expect("written");
        let out = golden.folder().join("out.gguf");
        let exported = ModelFiles::open(golden.folder())
            .and_then(|files| export(&files, &ExportOptions::default(), &out));
        match exported {
            Ok(_) => assert_eq!(expected, "", "{name}: {field} = {value}"),
            Err(error) => {
                let told = error.to_string();
                assert!(!expected.is_empty() && told.contains(expected), "{name}: {told}");
            }
        }
        assert_eq!(out.exists(), expected.is_empty(), "{name}");
    }
}

/// The fixtures of these families have a scale of scores that files cannot say; published models have the
/// usual one.
#[test]
fn gemma_models_with_the_usual_scale_of_scores_have_the_tensors_and_keys_of_their_family() {
    for name in ["gemma2", "gemma3"] {
        let golden = golden(name);
        let config = golden.folder().join("config.json");
        let text = std::fs::read_to_string(&config).expect("a config");
        let mut json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        json["query_pre_attn_scalar"] = json["head_dim"].clone();
        std::fs::write(&config, json.to_string()).expect("written");
        let other = ModelFiles::open(&golden.gguf().expect("a file")).expect("sound");
        let temp = tempfile::tempdir().expect("temp");
        let out = temp.path().join("own.gguf");
        let own = exported(&golden.files(), &ExportOptions::default(), &out);
        assert!(logits(&golden, &own) == logits(&golden, &golden.files()), "{name}");
        let (own, other) = (own.gguf().expect("GGUF"), other.gguf().expect("GGUF"));
        assert_eq!(own.names(), other.names(), "{name}");
        // The other file has the unusual scale in queries, or in their norms.
        let is_scaled = |tensor: &str| tensor.contains("attn_q");
        for tensor in own.names().into_iter().filter(|tensor| !is_scaled(tensor)) {
            let (a, b) = (own.get(tensor).expect("listed"), other.get(tensor).expect("listed"));
            assert!((a.dtype, a.shape, a.data) == (b.dtype, b.shape, b.data), "{name}: {tensor}");
        }
        for (key, value) in other.metadata() {
            if !key.starts_with("general.") {
                assert_eq!(own.metadata().get(key), Some(value), "{name}: {key}");
            }
        }
    }
}

#[test]
fn a_table_with_two_factors_is_two_tables_in_a_file() {
    let golden = golden("falcon-h1-norm");
    let config = golden.folder().join("config.json");
    let text = std::fs::read_to_string(&config).expect("a config");
    let mut json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(json["tie_word_embeddings"], true);
    // Powers of two lose no bit of a weight.
    json["embedding_multiplier"] = 2.0.into();
    json["lm_head_multiplier"] = 0.5.into();
    std::fs::write(&config, json.to_string()).expect("written");
    let folder = ModelFiles::open(golden.folder()).expect("sound");
    let out = golden.folder().join("out.gguf");
    let file = exported(&folder, &ExportOptions::default(), &out);
    assert!(logits(&golden, &file) == logits(&golden, &folder));
    let table = |name: &str| file.tensors().get(name).map(|view| view.data.to_vec());
    let (embedding, head) = (table("token_embd.weight"), table("output.weight"));
    assert!(head.is_some() && head != embedding);
}

#[test]
fn a_file_of_any_family_is_split_and_requantized() {
    let mut n_files = 0;
    for golden in all() {
        let Some(path) = golden.gguf() else { continue };
        let files = ModelFiles::open(&path).expect(&golden.name);
        let temp = tempfile::tempdir().expect("temp");
        let small = ExportOptions { max_part_bytes: Some(20_000), ..Default::default() };
        let parts = exported(&files, &small, &temp.path().join("part.gguf"));
        assert!(logits(&golden, &parts) == logits(&golden, &files), "{}: parts", golden.name);
        let to = ExportOptions { format: Some("q8_0"), ..Default::default() };
        let eight_bits = exported(&files, &to, &temp.path().join("q8_0.gguf"));
        for name in eight_bits.tensors().names() {
            let view = eight_bits.tensors().get(name).expect("listed");
            // Norms of each head are a matrix, too, as are learned positions.
            let is_kept = name.contains("norm") || name.starts_with("position_embd");
            let is_kept = is_kept || name.ends_with(".bias") || name.contains("ffn_gate_inp.");
            if is_kept || view.shape.len() == 1 {
                assert_eq!(view.dtype, DType::F32, "{}: {name}", golden.name);
            }
        }
        let mut decoder = golden.load(&eight_bits, Compute::F32);
        let error = golden.mean_error(&run_whole(&mut decoder, &golden.tokens()));
        println!("{:24} {error:.1e}", golden.name);
        // A near tie of a router that rounding decides another way is another expert, and a state
        // keeps what rounding changed.
        let spec = files.spec().expect("a spec");
        let has_experts = spec.layers.iter().any(|layer| layer.mlp.experts().is_some());
        let bound = if has_experts || spec.is_recurrent() { 0.25 } else { 0.06 };
        assert!(error < bound, "{}: {error:e}", golden.name);
        n_files += 1;
    }
    assert!(n_files >= 20, "{n_files} files");
}

#[test]
fn a_requantized_file_has_the_bytes_of_one_quantized_from_the_folder() {
    let golden = golden("llama3");
    let temp = tempfile::tempdir().expect("temp");
    let as_stored = ExportOptions::default();
    let whole = exported(&golden.files(), &as_stored, &temp.path().join("whole.gguf"));
    let to = ExportOptions { format: Some("q5_0"), ..as_stored };
    let direct = exported(&golden.files(), &to, &temp.path().join("direct.gguf"));
    let detour = exported(&whole, &to, &temp.path().join("detour.gguf"));
    let (direct, detour) = (direct.gguf().expect("GGUF"), detour.gguf().expect("GGUF"));
    assert_eq!(direct.names(), detour.names());
    for name in direct.names() {
        let (a, b) = (direct.get(name).expect("listed"), detour.get(name).expect("listed"));
        assert_eq!((a.dtype, a.shape), (b.dtype, b.shape), "{name}");
        assert!(a.data == b.data, "{name}");
        let expected = if a.shape.len() == 1 { DType::F32 } else { DType::Q5_0 };
        assert_eq!(a.dtype, expected, "{name}");
    }
    assert_eq!(detour.u32("general.file_type").expect("a number"), Some(8));
}

#[test]
fn an_export_that_is_stopped_or_fails_changes_no_file() {
    let golden = golden("llama3");
    let temp = tempfile::tempdir().expect("temp");
    let out = temp.path().join("out.gguf");
    std::fs::write(&out, "old").expect("written");
    let n_asked = Cell::new(0);
    let options = ExportOptions {
        overwrite: true,
        stop: Some(&|| {
            n_asked.set(n_asked.get() + 1);
            n_asked.get() > 5
        }),
        ..Default::default()
    };
    let written = export(&golden.files(), &options, &out).expect("no error");
    assert_eq!((written, n_asked.get()), (None, 6));
    let without = ExportOptions::default();
    let error = export(&golden.files(), &without, &out).expect_err("in the way");
    assert!(matches!(&error, ModelError::Exists { file } if *file == out), "{error}");
    let unknown = ExportOptions { format: Some("q9_9"), overwrite: true, ..Default::default() };
    assert!(export(&golden.files(), &unknown, &out).is_err());
    assert_eq!(std::fs::read_to_string(&out).expect("there"), "old");
    assert_eq!(std::fs::read_dir(temp.path()).expect("a folder").count(), 1);
}

#[test]
fn progress_ends_with_everything_written() {
    let golden = golden("llama3");
    let temp = tempfile::tempdir().expect("temp");
    let last = Cell::new(None);
    let options = ExportOptions { progress: Some(&|at| last.set(Some(at))), ..Default::default() };
    let written = exported(&golden.files(), &options, &temp.path().join("out.gguf"));
    let last = last.get().expect("told");
    assert_eq!(last.n_tensors, last.n_total_tensors);
    assert_eq!(last.n_bytes, last.n_total_bytes);
    assert_eq!(last.n_tensors, written.tensors().names().len());
}

#[test]
fn suppressed_tokens_are_read_from_a_folder_and_from_the_file_that_is_made_of_it() {
    let golden = golden("llama");
    let write = |text: &str| {
        std::fs::write(golden.folder().join("generation_config.json"), text).expect("written");
    };
    let ids = |tokens: &[TokenId]| tokens.iter().map(|token| token.0).collect::<Vec<_>>();
    // Ids that no token has are dropped, as those of end tokens are.
    write(r#"{"suppress_tokens": [9, 3, 9, -1, 4000000], "begin_suppress_tokens": [5]}"#);
    let files = golden.files();
    let told = files.suppressed_tokens().expect("lists");
    assert_eq!((ids(&told.always), ids(&told.first)), (vec![3, 9], vec![5]));
    let temp = tempfile::tempdir().expect("temp");
    let file = exported(&files, &ExportOptions::default(), &temp.path().join("whole.gguf"));
    assert_eq!(ids(&file.suppressed_tokens().expect("a list").always), [3, 9]);
    write(r#"{"suppress_tokens": null}"#);
    assert!(golden.files().suppressed_tokens().expect("nothing").is_empty());
    for text in [r#"{"suppress_tokens": 7}"#, r#"{"suppress_tokens": ["a"]}"#] {
        write(text);
        let error = golden.files().suppressed_tokens().expect_err(text).to_string();
        assert!(error.contains("generation_config.json"), "{error}");
        assert!(error.contains("suppress_tokens"), "{error}");
    }
}
