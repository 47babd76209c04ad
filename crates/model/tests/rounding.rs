//! A model that is rounded while it is loaded computes what the file computes that an export in the
//! same format writes.

use std::path::Path;

use crate::common::{Golden, all, all_exported, bits, golden, open, run_whole};
use pelton_base::TokenId;
use pelton_model::{
    Compute, ExportOptions, KvDtype, LoadOptions, ModelError, ModelFiles, PackedCache, RoundTo,
    export, inspect, load, load_cpu, packed_bytes,
};
use pelton_tensor::DType;
use pelton_testkit::golden::encoder_decoders;
use pelton_testkit::{PlainDevice, TinyModel};

fn format(name: &str) -> RoundTo {
    RoundTo::find(name).expect(name)
}

/// The same files, to be rounded.
fn rounded(mut files: ModelFiles, to: &str) -> ModelFiles {
    files.round_to(format(to)).expect("floats");
    files
}

/// The file that an export writes, beside a model.
fn exported(files: &ModelFiles, to: &str, folder: &Path) -> ModelFiles {
    let out = folder.join(format!("{to}.gguf"));
    let options = ExportOptions { format: Some(to), overwrite: true, ..Default::default() };
    let written = export(files, &options, &out).expect("exported").expect("not stopped");
    ModelFiles::open(&written[0]).expect("sound")
}

/// Whether its weights are floats: experts of this fixture are in MXFP4.
fn is_of_floats(golden: &Golden) -> bool {
    golden.name != "gpt-oss-mxfp4"
}

fn logits(golden: &Golden, files: &ModelFiles, compute: Compute) -> Vec<Vec<f32>> {
    run_whole(&mut golden.load(files, compute), &golden.tokens())
}

/// Loads with exactly the memory foretold.
fn check_bytes(files: &ModelFiles, name: &str) -> u64 {
    let told = inspect(files, KvDtype::Bf16).expect(name).weight_bytes;
    assert_eq!(packed_bytes(files, None, Compute::Auto).expect(name), told, "{name}");
    let options =
        LoadOptions { n_threads: Some(1), memory_bytes: Some(told), ..LoadOptions::default() };
    assert_eq!(load_cpu(files, &options).expect(name).memory_bytes(), told, "{name}");
    told
}

#[test]
fn a_folder_rounded_at_a_load_has_the_logits_of_the_file_it_is_converted_to() {
    let mut differing = Vec::new();
    for golden in all_exported().into_iter().filter(is_of_floats) {
        let temp = tempfile::tempdir().expect("temp");
        // Blocks of 32, and blocks that none of these rows is a multiple of.
        for to in ["q4_0", "iq4_xs", "f16"] {
            let file = exported(&golden.files(), to, temp.path());
            let own = rounded(golden.files(), to);
            for compute in [Compute::Auto, Compute::F32] {
                let expected = logits(&golden, &file, compute);
                let got = logits(&golden, &own, compute);
                if golden.is_exact_in_gguf() {
                    if bits(&got) != bits(&expected) {
                        differing.push(format!("{} {to} {compute:?}", golden.name));
                    }
                } else {
                    let [a, b] = [&got, &expected].map(|rows| golden.mean_error(rows));
                    println!("{} {to} {compute:?}: {a:e} {b:e}", golden.name);
                    assert!(a < 2.0 * b + 1e-3, "{} {to} {compute:?}: {a:e} {b:e}", golden.name);
                }
            }
            let foretold = check_bytes(&own, &golden.name);
            if golden.is_exact_in_gguf() {
                let of_file = inspect(&file, KvDtype::Bf16).expect("a model").weight_bytes;
                assert_eq!(foretold, of_file, "{} {to}", golden.name);
            }
        }
    }
    assert!(differing.is_empty(), "{differing:#?}");
}

#[test]
fn a_file_of_floats_rounded_at_a_load_has_the_logits_of_the_file_it_is_converted_to() {
    let mut n_files = 0;
    for golden in all().into_iter().filter(is_of_floats) {
        let Some(path) = golden.gguf() else { continue };
        let files = || ModelFiles::open(&path).expect("sound");
        let temp = tempfile::tempdir().expect("temp");
        for to in ["q4_1", "q5_k"] {
            let expected = logits(&golden, &exported(&files(), to, temp.path()), Compute::Auto);
            let got = logits(&golden, &rounded(files(), to), Compute::Auto);
            assert!(bits(&got) == bits(&expected), "{} {to}", golden.name);
        }
        n_files += 1;
    }
    assert!(n_files >= 20, "{n_files} files");
}

#[test]
fn every_format_is_rounded_to_as_an_export_does() {
    // Rows of whole blocks of every format, and a vocabulary that does not fill its last panel.
    let tiny = TinyModel {
        hidden_size: 256,
        intermediate_size: 512,
        n_layers: 1,
        vocab_size: 301,
        ..TinyModel::default()
    };
    let temp = tempfile::tempdir().expect("temp");
    let folder = temp.path().join("folder");
    tiny.write_folder(&folder);
    let mut sources = vec![(folder, RoundTo::all().to_vec())];
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        let path = temp.path().join(format!("{dtype}.gguf"));
        tiny.write_gguf(&path, dtype);
        sources.push((path, ["bf16", "f16", "q4_0", "q6_k"].map(format).to_vec()));
    }
    let tokens: Vec<TokenId> = (5..29).map(TokenId).collect();
    let logits = |files: &ModelFiles| {
        let options = LoadOptions { n_threads: Some(2), ..LoadOptions::default() };
        bits(&run_whole(&mut load_cpu(files, &options).expect("loads"), &tokens))
    };
    for (source, types) in sources {
        let files = || ModelFiles::open(&source).expect("sound");
        for to in types {
            let file = exported(&files(), to.name(), temp.path());
            let view = file.tensors().get("blk.0.attn_q.weight").expect("listed");
            assert_eq!(view.dtype, to.dtype(), "the export rounds");
            let own = rounded(files(), to.name());
            assert!(logits(&own) == logits(&file), "{to}: {}", source.display());
            check_bytes(&own, to.name());
        }
    }
}

/// Their matrices are rounded where they are multiplied in the arithmetic of the model.
#[test]
fn families_without_files_are_rounded_and_stay_near_the_reference() {
    let mut n_families = 0;
    for golden in all() {
        if golden.files().arch().is_exported() {
            continue;
        }
        let own = rounded(golden.files(), "q8_0");
        let (before, after) =
            (check_bytes(&golden.files(), &golden.name), check_bytes(&own, &golden.name));
        assert!(after < before, "{}: {after} bytes, {before} as stored", golden.name);
        let error = golden.mean_error(&logits(&golden, &own, Compute::F32));
        println!("{:24} {error:.1e}, {after} of {before} bytes", golden.name);
        // A near tie of a router that rounding decides another way is another expert.
        let spec = own.spec().expect("a spec");
        let has_experts = spec.layers.iter().any(|layer| layer.mlp.experts().is_some());
        let bound = if has_experts || spec.is_recurrent() { 0.25 } else { 0.06 };
        assert!(0.0 < error && error < bound, "{}: {error:e}", golden.name);
        n_families += 1;
    }
    for golden in encoder_decoders() {
        let temp = tempfile::tempdir().expect("temp");
        golden.checkpoint.write_bare_folder(temp.path());
        let files = || ModelFiles::open(temp.path()).expect("sound");
        let name = golden.checkpoint.name();
        assert!(
            check_bytes(&rounded(files(), "q8_0"), name) < check_bytes(&files(), name),
            "{name}"
        );
        n_families += 1;
    }
    assert!(n_families >= 15, "{n_families} families");
}

#[test]
fn another_device_rounds_to_the_same_values() {
    for name in ["llama3", "deepseek-v2-lite", "minicpm3", "qwen3-moe"] {
        let golden = golden(name);
        let own = rounded(golden.files(), "q4_0");
        let (compute, max_context) = (Compute::F32, golden.max_context);
        let options = LoadOptions { compute, max_context, ..LoadOptions::default() };
        let mut plain = load(&own, PlainDevice::new(), &options).expect("loads");
        let plain = run_whole(&mut plain, &golden.tokens());
        let cpu = logits(&golden, &own, Compute::F32);
        let pairs = plain.iter().flatten().zip(cpu.iter().flatten());
        let worst = pairs.fold(0.0_f32, |worst, (a, b)| worst.max((a - b).abs()));
        let largest = cpu.iter().flatten().fold(0.0_f32, |most, x| most.max(x.abs()));
        assert!(worst < 1e-4 * largest, "{name}: {worst:e} of {largest:e}");
    }
}

#[test]
fn weights_that_are_quantized_already_are_refused_by_name() {
    let temp = tempfile::tempdir().expect("temp");
    let path = temp.path().join("tiny.gguf");
    TinyModel::default().write_gguf(&path, DType::Q8_0);
    let quantized = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints/ct-w8a8");
    for (mut files, expected) in [
        (ModelFiles::open(&path).expect("sound"), "weight` in Q8_0"),
        (open(&quantized).files(), "compressed-tensors"),
        (golden("gpt-oss-mxfp4").files(), "in MXFP4"),
    ] {
        let error = files.round_to(format("q4_k")).expect_err(expected);
        assert!(matches!(error, ModelError::Rounded { .. }), "{error}");
        let told = error.to_string();
        assert!(told.contains(expected) && told.contains("q4_k"), "{told}");
        assert_eq!(files.rounded_to(), None);
    }
    // Bytes of the source would be written under the type of the rounded ones.
    let own = rounded(golden("llama3").files(), "q4_0");
    let error = export(&own, &ExportOptions::default(), &temp.path().join("out.gguf"));
    assert!(error.expect_err("rounded").to_string().contains("q4_0"));
}

#[test]
fn a_cache_of_other_weights_is_not_used() {
    let temp = tempfile::tempdir().expect("temp");
    let folder = temp.path().join("tiny");
    TinyModel::default().write_folder(&folder);
    let tokens: Vec<TokenId> = (5..29).map(TokenId).collect();
    let run = |to: Option<&str>, cache: Option<&PackedCache>| {
        let files = ModelFiles::open(&folder).expect("sound");
        let files =
            to.map_or_else(|| files, |to| rounded(ModelFiles::open(&folder).expect("sound"), to));
        let is_cached = std::cell::Cell::new(false);
        let progress = |at: pelton_model::LoadProgress| is_cached.set(at.is_cached);
        let options = LoadOptions {
            n_threads: Some(1),
            packed_cache: cache,
            progress: Some(&progress),
            ..LoadOptions::default()
        };
        let mut decoder = load_cpu(&files, &options).expect("loads");
        (bits(&run_whole(&mut decoder, &tokens)), is_cached.get())
    };
    let beside = Some(&PackedCache::Beside);
    // Rows of 64: two of these have the same bytes, and are different caches all the same.
    for to in [None, Some("q4_0"), Some("q8_0"), Some("q4_k"), None] {
        let (expected, _) = run(to, None);
        for is_cached in [false, true] {
            assert_eq!(run(to, beside), (expected.clone(), is_cached), "{to:?}");
        }
    }
}
