//! Quantized checkpoints: every method against weights and logits made by independent code.
//!
//! `checkpoints/make.py` describes how the fixtures are made.

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::{Golden, argmax, bits, quantized_folders, run_chunks, run_whole, shape_of};
use pelton_kernels::{Cpu, Kernels};
use pelton_model::{
    Compute, KvDtype, LoadOptions, ModelFiles, PackedCache, export_gguf, inspect, load_cpu,
};
use pelton_quant::checkpoint::{METHODS, QuantizedTensor, pack_quantized};
use pelton_tensor::{DType, TensorView, write_safetensors};
use pelton_testkit::golden::crc32;

/// Bound on the worst logit where both sides compute in f32.
const F32_BOUND: f32 = 1e-4;
/// Bound on the root of the mean square error over all logits, relative to that of the logits,
/// where activations are int8 in groups of 32 or keys and values bf16.
const AUTO_BOUND: f32 = 0.06;

/// A fixture and what its `case.json` adds.
struct Case {
    golden: Golden,
    layouts: Vec<String>,
    checksums: BTreeMap<String, u32>,
}

fn cases() -> Vec<Case> {
    let folders = quantized_folders();
    assert!(folders.len() >= 25, "{} fixtures", folders.len());
    folders.iter().map(|folder| case(folder)).collect()
}

fn case(folder: &Path) -> Case {
    let text = std::fs::read(folder.join("case.json")).expect("case.json");
    let facts: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let layouts = facts["layouts"].as_array().expect("layouts").iter();
    let checksums = facts["crc32"].as_object().expect("checksums").iter();
    Case {
        golden: crate::common::open(folder),
        layouts: layouts.map(|name| name.as_str().expect("a name").to_owned()).collect(),
        checksums: checksums
            .map(|(module, crc)| (module.clone(), crc.as_u64().expect("a checksum") as u32))
            .collect(),
    }
}

fn one(name: &str) -> Case {
    case(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints").join(name))
}

/// CRC-32 of the bytes of these weights.
fn checksum(weights: &[f32]) -> u32 {
    let bytes: Vec<u8> = weights.iter().flat_map(|x| x.to_le_bytes()).collect();
    crc32(&bytes)
}

fn find<'a>(files: &'a ModelFiles, module: &str) -> QuantizedTensor<'a> {
    let scheme = files.scheme().expect("quantized");
    let shape = shape_of(files.config(), module);
    let found = scheme.find(files.tensors(), module, shape).expect(module);
    found.unwrap_or_else(|| panic!("{module} is not quantized"))
}

#[test]
fn every_matrix_dequantizes_to_the_bits_of_the_reference() {
    for case in cases() {
        let files = case.golden.files();
        assert_eq!(case.checksums.len(), 7, "{}", case.golden.name);
        for (module, crc) in &case.checksums {
            let weights = find(&files, module).dequantize().expect(module);
            assert_eq!(checksum(&weights), *crc, "{} {module}", case.golden.name);
        }
    }
}

#[test]
fn every_packed_matrix_unpacks_to_what_its_method_specifies() {
    let cpu = Cpu::with(Kernels::best(), 2);
    for case in cases() {
        let files = case.golden.files();
        for module in case.checksums.keys() {
            for compute in [Compute::Auto, Compute::F32] {
                let matrix = find(&files, module);
                let packed = pack_quantized(&cpu, &[&matrix], compute).expect(module);
                let [n, k] = matrix.shape();
                let weights = matrix.dequantize().expect(module);
                let mut row = vec![0.0; k];
                for r in 0..n {
                    packed.unpack_row_f32(r, &mut row);
                    for (j, got) in row.iter().enumerate() {
                        let at = matrix.order().map_or(j, |order| order[j] as usize);
                        let expected = weights[r * k + at];
                        let label = || format!("{} {module} {r} {j}", case.golden.name);
                        assert_eq!(*got, expected, "{}", label());
                    }
                }
            }
        }
    }
}

#[test]
fn every_fixture_computes_the_logits_and_greedy_tokens_of_the_reference() {
    for Case { golden, .. } in cases() {
        let mut decoder = golden.load(&golden.files(), Compute::F32);
        let tokens = golden.tokens();
        let rows = run_whole(&mut decoder, &tokens);
        let error = golden.worst_error(&rows);
        assert!(error < F32_BOUND, "{}: {error:e}", golden.name);
        let chosen: Vec<_> = rows[golden.prompt.len() - 1..].iter().map(|r| argmax(r)).collect();
        assert_eq!(chosen, golden.greedy, "{}", golden.name);

        let mut decoder = golden.load(&golden.files(), Compute::Auto);
        let error = golden.mean_error(&run_whole(&mut decoder, &tokens));
        println!("{:20} {error:.2e}", golden.name);
        assert!(error < AUTO_BOUND, "{}: {error:e}", golden.name);
    }
}

#[test]
fn blocks_of_inputs_are_together_the_whole_matrix() {
    let cpu = Cpu::with(Kernels::best(), 1);
    for (name, n_blocks) in [("fp8-block", [2, 3]), ("ct-fp8-block", [1, 2]), ("awq-g32", [1, 1])] {
        let Case { golden, checksums, .. } = one(name);
        let files = golden.files();
        for module in checksums.keys() {
            let whole = find(&files, module);
            let [n, k] = whole.shape();
            let mut weights = whole.dequantize().expect(module);
            let blocks = whole.split();
            assert_eq!(blocks.len(), n_blocks[k / 128], "{name} {module}");
            for block in &blocks {
                let packed = pack_quantized(&cpu, &[block], Compute::Auto).expect(module);
                assert_eq!(block.shape(), [packed.n(), packed.k()]);
                let mut row = vec![0.0; packed.k()];
                for r in 0..n {
                    packed.unpack_row_f32(r, &mut row);
                    for (j, got) in row.iter().enumerate() {
                        let at = block.order().map_or(j, |order| order[j] as usize);
                        let expected = std::mem::replace(&mut weights[r * k + at], f32::NAN);
                        assert_eq!(*got, expected, "{name} {module} {r} {at}");
                    }
                }
            }
            assert!(weights.iter().all(|weight| weight.is_nan()), "{name} {module}");
        }
    }
}

#[test]
fn chunks_and_batches_change_no_bit_where_inputs_are_reordered() {
    for name in ["gptq-4-act", "gptq-8-act", "ct-w4a16-act", "fp8-block", "ct-fp8-block"] {
        let Case { golden, .. } = one(name);
        let tokens = golden.tokens();
        let mut decoder = golden.load(&golden.files(), Compute::Auto);
        let whole = bits(&run_whole(&mut decoder, &tokens));
        let mut chunks = vec![5, 7];
        chunks.resize(2 + tokens.len() - 12, 1);
        assert!(bits(&run_chunks(&mut decoder, &tokens, &chunks, &[2, 0, 1])) == whole, "{name}");
    }
}

#[test]
fn a_plain_matrix_among_quantized_ones_is_read_as_it_is() {
    for name in ["fp8-block", "gptq-4-act", "awq-g32"] {
        let Case { golden, .. } = one(name);
        let module = "model.layers.0.self_attn.k_proj";
        let file = golden.folder().join("model.safetensors");
        let other = golden.folder().join("other.safetensors");
        {
            let files = golden.files();
            let weights = find(&files, module).dequantize().expect(module);
            let data: Vec<u8> = weights.iter().flat_map(|x| x.to_le_bytes()).collect();
            let weight = format!("{module}.weight");
            let plain =
                TensorView { name: &weight, dtype: DType::F32, shape: &[32, 64], data: &data };
            let names = files.tensors().names();
            let kept = names.into_iter().filter(|name| !name.starts_with(module));
            let mut views: Vec<_> = kept.filter_map(|name| files.tensors().get(name)).collect();
            views.push(plain);
            write_safetensors(&other, &views, &BTreeMap::new()).expect("write");
        }
        std::fs::rename(other, file).expect("rename");
        for (compute, bound) in [(Compute::F32, F32_BOUND), (Compute::Auto, AUTO_BOUND)] {
            let mut decoder = golden.load(&golden.files(), compute);
            let error = golden.mean_error(&run_whole(&mut decoder, &golden.tokens()));
            assert!(error < bound, "{name} {compute:?}: {error:e}");
        }
    }
}

#[test]
fn inspection_names_the_method_and_the_layouts() {
    for Case { golden, layouts, checksums } in cases() {
        let case_modules: Vec<String> = checksums.into_keys().collect();
        let facts = inspect(&golden.files(), KvDtype::Bf16).expect(&golden.name);
        let quantization = facts.quantization.as_ref().expect("quantized");
        let found: Vec<&str> = quantization.layouts.keys().copied().collect();
        assert_eq!(found, layouts, "{}: {}", golden.name, quantization.method);
        let n_matrices: usize = quantization.layouts.values().map(|t| t.n_tensors).sum();
        assert_eq!(n_matrices, 7, "{}", golden.name);
        // Embedding, head and seven matrices, and three norms.
        let files = golden.files();
        let matrix = |module: &String| shape_of(files.config(), module).iter().product::<usize>();
        let n_matrices = case_modules.iter().map(matrix).sum::<usize>();
        let hidden = files.config().hidden_size;
        let n_parameters = (2 * 64 * hidden + n_matrices + 3 * hidden) as u64;
        assert_eq!(facts.n_parameters, n_parameters, "{}", golden.name);
        // Matrices become f32, or keep about their size.
        match golden.name.as_str() {
            "hqq-3" | "quip" => assert!(facts.weight_bytes > 2 * facts.n_bytes),
            "awq-g64" | "bnb-nf4" | "fp8-block" | "marlin" | "ct-mxfp4" | "ct-nvfp4"
            | "gptq-8-act" | "hqq-4" | "hqq-4-round" | "hqq-4-bf16" | "hqq-4-f32" | "hqq-2-row" => {
                assert!(facts.weight_bytes < facts.n_bytes / 4 * 5, "{}", golden.name);
            }
            _ => {}
        }
        assert_eq!(quantization.n_reordered > 0, golden.name.ends_with("-act"), "{}", golden.name);
    }
}

#[test]
fn a_scheme_beside_the_config_means_what_it_would_within_it() {
    for (name, file, weights) in [
        ("gptq-4", "quantize_config.json", "gptq_model-4bit-32g.safetensors"),
        ("awq-g64", "quant_config.json", "model.safetensors"),
        ("gptq-4-marlin", "quantize_config.json", "gptq_model-4bit--1g.safetensors"),
    ] {
        let Case { golden, .. } = one(name);
        let tokens = golden.tokens();
        let logits = |golden: &Golden| {
            bits(&run_whole(&mut golden.load(&golden.files(), Compute::Auto), &tokens))
        };
        let expected = logits(&golden);
        let path = golden.folder().join("config.json");
        let text = std::fs::read(&path).expect("config");
        let mut config: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        let fields = config.as_object_mut().expect("an object");
        let mut scheme = fields.remove("quantization_config").expect("quantized");
        scheme.as_object_mut().expect("an object").remove("quant_method");
        std::fs::write(&path, config.to_string()).expect("config");
        std::fs::write(golden.folder().join(file), scheme.to_string()).expect("scheme");
        let stored = golden.folder().join("model.safetensors");
        std::fs::rename(stored, golden.folder().join(weights)).expect("rename");
        assert!(logits(&golden) == expected, "{name}");

        scheme["group_size"] = serde_json::json!("wide");
        std::fs::write(golden.folder().join(file), scheme.to_string()).expect("scheme");
        let error = ModelFiles::open(golden.folder()).expect_err("refused").to_string();
        assert!(error.contains(file) && error.contains("`group_size`"), "{error}");
    }
}

#[test]
fn every_method_has_a_fixture() {
    let seen: Vec<String> = cases()
        .iter()
        .map(|case| {
            let text = std::fs::read(case.golden.folder().join("config.json")).expect("config");
            let config: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
            let name = config["quantization_config"]["quant_method"].as_str();
            name.unwrap_or("a method that has another place").to_owned()
        })
        .collect();
    for name in METHODS.iter().flat_map(|method| method.names()) {
        assert!(seen.iter().any(|other| other == name), "{name}");
    }
}

#[test]
fn a_cache_of_packed_weights_computes_the_same_bits_and_knows_the_scheme() {
    let Case { golden, .. } = one("gptq-4-act");
    let tokens = golden.tokens();
    let run = |verified: bool| {
        let cached = std::cell::Cell::new(false);
        let progress = |p: pelton_model::LoadProgress| cached.set(cached.get() || p.is_cached);
        let options = LoadOptions {
            n_threads: Some(1),
            packed_cache: Some(&PackedCache::Beside),
            progress: Some(&progress),
            ..Default::default()
        };
        let mut decoder = load_cpu(&golden.files(), &options).expect("loads");
        assert_eq!(cached.get(), verified);
        bits(&run_whole(&mut decoder, &tokens))
    };
    let packed = run(false);
    assert!(run(true) == packed, "the cache computes something else");
    // The same tensors with zero points of the other version are other weights.
    let file = golden.folder().join("config.json");
    let text = std::fs::read_to_string(&file).expect("config");
    std::fs::write(&file, text.replace("\"gptq\",\n    \"bits", "\"gptq_v2\",\n    \"bits"))
        .expect("config");
    assert!(run(false) != packed, "the cache of the other version was used");
}

#[test]
fn a_quantized_checkpoint_is_not_exported() {
    let Case { golden, .. } = one("awq-g32");
    let out = golden.folder().join("out.gguf");
    let text = export_gguf(&golden.files(), "Q8_0", &out, None).expect_err("refused").to_string();
    assert!(text.contains("AWQ"), "{text}");
}
