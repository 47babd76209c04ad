//! Quantized checkpoints of every family: what a quantized folder computes is what the same folder
//! computes with the weights that its codes stand for, stored as floats.
//!
//! The golden folders are quantized here, module by module as libraries do it: fused and permuted
//! projections stay as the family stores them. A matrix of plain floats is the reference, which the
//! golden tests compare with independent code.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::{Golden, all, bits, golden, run_whole};
use half::f16;
use pelton_model::{Compute, KvDtype, LoadOptions, inspect, load_cpu};
use pelton_quant::dequantize_tensor;
use pelton_tensor::{DType, Safetensors, TensorSource, TensorView, write_safetensors};
use serde_json::{Value, json};

/// A tensor to be written: name, type, shape, bytes.
struct Owned(String, DType, Vec<usize>, Vec<u8>);

/// A quantized module: the tensors of the method, and the weights that they stand for.
type Quantize = fn(&str, [usize; 2], &[f32]) -> (Vec<Owned>, Vec<f32>);

fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Eight bits with a scale per row: compressed-tensors.
fn by_rows(module: &str, [n, k]: [usize; 2], weights: &[f32]) -> (Vec<Owned>, Vec<f32>) {
    let (mut codes, mut scales, mut stored) = (Vec::new(), Vec::new(), Vec::new());
    for row in weights.chunks_exact(k) {
        let scale = row.iter().fold(1e-6_f32, |m, x| m.max(x.abs())) / 127.0;
        scales.push(scale);
        for x in row {
            let code = (x / scale).round() as i8;
            codes.push(code as u8);
            stored.push(scale * f32::from(code));
        }
    }
    let tensors = vec![
        Owned(format!("{module}.weight"), DType::I8, vec![n, k], codes),
        Owned(format!("{module}.weight_scale"), DType::F32, vec![n, 1], f32_bytes(&scales)),
    ];
    (tensors, stored)
}

fn rows_config() -> Value {
    let weights = json!({"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": true});
    json!({
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    })
}

/// Rows and columns of a block: neither divides the widths of the fixtures or of their heads.
const BLOCK: [usize; 2] = [6, 24];

/// The number of a code of E4M3.
fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match exponent {
        0 => mantissa * 2_f32.powi(-9),
        _ => (8.0 + mantissa) * 2_f32.powi(exponent - 10),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Eight-bit floats with a scale per block: fp8.
fn by_blocks(module: &str, [n, k]: [usize; 2], weights: &[f32]) -> (Vec<Owned>, Vec<f32>) {
    let numbers: Vec<f32> = (0..=0xff).map(e4m3).collect();
    let is_number = |code: &u8| code & 0x7f != 0x7f;
    let mut codes: Vec<u8> = (0..=0xff).filter(is_number).collect();
    codes.sort_by(|a, b| numbers[usize::from(*a)].total_cmp(&numbers[usize::from(*b)]));
    let [rows, columns] = BLOCK;
    let shape = [n.div_ceil(rows), k.div_ceil(columns)];
    let mut largest = vec![1e-6_f32; shape[0] * shape[1]];
    let block = |i: usize| i / k / rows * shape[1] + i % k / columns;
    for (i, x) in weights.iter().enumerate() {
        largest[block(i)] = largest[block(i)].max(x.abs());
    }
    let scales: Vec<f32> = largest.iter().map(|x| x / 448.0).collect();
    let (mut stored_codes, mut stored) = (Vec::new(), Vec::new());
    for (i, x) in weights.iter().enumerate() {
        let scale = scales[block(i)];
        let at = codes.partition_point(|code| numbers[usize::from(*code)] < x / scale);
        let code = codes[at.min(codes.len() - 1)];
        stored_codes.push(code);
        stored.push(scale * numbers[usize::from(code)]);
    }
    let scale_name = format!("{module}.weight_scale_inv");
    let tensors = vec![
        Owned(format!("{module}.weight"), DType::F8E4M3, vec![n, k], stored_codes),
        Owned(scale_name, DType::F32, shape.to_vec(), f32_bytes(&scales)),
    ];
    (tensors, stored)
}

fn blocks_config() -> Value {
    json!({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": BLOCK})
}

/// Codes of 4 bits as words, low ones first, from `code(word, nibble)`.
fn words(n_words: usize, code: impl Fn(usize, usize) -> u32) -> Vec<u8> {
    let word = |i: usize| (0..8).map(|nibble| code(i, nibble) << (4 * nibble)).sum::<u32>();
    (0..n_words).flat_map(|i| word(i).to_le_bytes()).collect()
}

/// Inputs that share a scale of 4 bits.
const GROUP: usize = 16;

/// Weights in 4 bits with a scale (a number of f16) and a zero point per group of inputs.
struct FourBits {
    codes: Vec<u32>,
    /// Of a group and an output: `[groups, n]`.
    scales: Vec<f16>,
    zeros: Vec<u32>,
    stored: Vec<f32>,
}

impl FourBits {
    fn new([n, k]: [usize; 2], weights: &[f32]) -> Self {
        let n_groups = k.div_ceil(GROUP);
        let (mut scales, mut zeros) = (vec![f16::ZERO; n_groups * n], vec![0; n_groups * n]);
        let (mut codes, mut stored) = (vec![0; n * k], vec![0.0; n * k]);
        for row in 0..n {
            for g in 0..n_groups {
                let of_group = row * k + g * GROUP..row * k + k.min((g + 1) * GROUP);
                let all = &weights[of_group.clone()];
                let low = all.iter().fold(0.0_f32, |m, x| m.min(*x));
                let high = all.iter().fold(1e-4_f32, |m, x| m.max(*x));
                let scale = f16::from_f32((high - low) / 15.0);
                let zero = (-low / scale.to_f32()).round().clamp(1.0, 15.0);
                (scales[g * n + row], zeros[g * n + row]) = (scale, zero as u32);
                for at in of_group {
                    let code = (weights[at] / scale.to_f32() + zero).round().clamp(0.0, 15.0);
                    codes[at] = code as u32;
                    stored[at] = scale.to_f32() * (code - zero);
                }
            }
        }
        Self { codes, scales, zeros, stored }
    }

    fn scales(&self, module: &str, n: usize) -> Owned {
        let bytes = self.scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let shape = vec![self.scales.len() / n, n];
        Owned(format!("{module}.scales"), DType::F16, shape, bytes)
    }
}

/// GPTQ: words along the inputs, zero points less one.
fn by_gptq(module: &str, [n, k]: [usize; 2], weights: &[f32]) -> (Vec<Owned>, Vec<f32>) {
    let all = FourBits::new([n, k], weights);
    let n_groups = k.div_ceil(GROUP);
    let codes = words(k / 8 * n, |i, nibble| all.codes[i % n * k + i / n * 8 + nibble]);
    let zeros = words(n_groups * n / 8, |i, nibble| all.zeros[i * 8 + nibble] - 1);
    let tensors = vec![
        Owned(format!("{module}.qweight"), DType::I32, vec![k / 8, n], codes),
        Owned(format!("{module}.qzeros"), DType::I32, vec![n_groups, n / 8], zeros),
        all.scales(module, n),
    ];
    (tensors, all.stored)
}

fn gptq_config() -> Value {
    json!({"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": false})
}

/// AWQ: words along the outputs, in their order.
fn by_awq(module: &str, [n, k]: [usize; 2], weights: &[f32]) -> (Vec<Owned>, Vec<f32>) {
    const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
    let all = FourBits::new([n, k], weights);
    let n_groups = k.div_ceil(GROUP);
    let output = |i: usize, nibble: usize| i % (n / 8) * 8 + ORDER[nibble];
    let codes = words(k * n / 8, |i, nibble| all.codes[output(i, nibble) * k + i / (n / 8)]);
    let zeros = words(n_groups * n / 8, |i, nibble| all.zeros[i / (n / 8) * n + output(i, nibble)]);
    let tensors = vec![
        Owned(format!("{module}.qweight"), DType::I32, vec![k, n / 8], codes),
        Owned(format!("{module}.qzeros"), DType::I32, vec![n_groups, n / 8], zeros),
        all.scales(module, n),
    ];
    (tensors, all.stored)
}

fn awq_config() -> Value {
    json!({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"})
}

/// A table of 4 bits, not that of any kernel.
const TABLE: [f32; 16] =
    [-1.0, -0.7, -0.5, -0.4, -0.3, -0.2, -0.1, 0.0, 0.08, 0.16, 0.25, 0.34, 0.45, 0.56, 0.72, 1.0];

/// bitsandbytes: a scale per 64 weights of the matrix read row by row.
fn by_tables(module: &str, [n, k]: [usize; 2], weights: &[f32]) -> (Vec<Owned>, Vec<f32>) {
    let (mut absmax, mut codes, mut stored) = (Vec::new(), Vec::new(), Vec::new());
    for block in weights.chunks(64) {
        let largest = block.iter().fold(1e-6_f32, |m, x| m.max(x.abs()));
        absmax.push(largest);
        for x in block {
            let distance = |code: &usize| (TABLE[*code] - x / largest).abs();
            let nearest = |a: &usize, b: &usize| distance(a).total_cmp(&distance(b));
            let code = (0..16).min_by(nearest).expect("some");
            codes.push(code as u8);
            stored.push(largest * TABLE[code]);
        }
    }
    let bytes: Vec<u8> =
        codes.chunks(2).map(|pair| pair[0] << 4 | pair.get(1).unwrap_or(&0)).collect();
    let state = json!({"blocksize": 64, "shape": [n, k], "quant_type": "nf4"}).to_string();
    let state_name = format!("{module}.weight.quant_state.bitsandbytes__nf4");
    let tensors = vec![
        Owned(format!("{module}.weight"), DType::U8, vec![bytes.len(), 1], bytes),
        Owned(
            format!("{module}.weight.absmax"),
            DType::F32,
            vec![absmax.len()],
            f32_bytes(&absmax),
        ),
        Owned(format!("{module}.weight.quant_map"), DType::F32, vec![16], f32_bytes(&TABLE)),
        Owned(state_name, DType::U8, vec![state.len()], state.into_bytes()),
    ];
    (tensors, stored)
}

fn tables_config() -> Value {
    json!({"quant_method": "bitsandbytes", "load_in_4bit": true})
}

/// The columns of `[rows, columns]` as rows.
fn turned(values: &[f32], columns: usize) -> Vec<f32> {
    let lines = values.chunks_exact(columns);
    (0..columns).flat_map(|j| lines.clone().map(move |line| line[j])).collect()
}

/// [`by_gptq`] of a matrix that the family stores transposed: turned first, as its library does.
fn by_gptq_turned(module: &str, [k, n]: [usize; 2], weights: &[f32]) -> (Vec<Owned>, Vec<f32>) {
    let (tensors, stored) = by_gptq(module, [n, k], &turned(weights, n));
    (tensors, turned(&stored, k))
}

/// [`by_tables`] of a matrix that the family stores transposed.
fn by_tables_turned(module: &str, [k, n]: [usize; 2], weights: &[f32]) -> (Vec<Owned>, Vec<f32>) {
    let (tensors, stored) = by_tables(module, [n, k], &turned(weights, n));
    (tensors, turned(&stored, k))
}

/// Whether it is the weight of a projection of a layer that methods quantize: one to or from fewer elements
/// than a word has codes, such as the switch of shared experts, they leave alone.
fn is_projection(view: &TensorView<'_>) -> bool {
    let is_in_layer = view.name.split('.').any(|word| word.parse::<usize>().is_ok());
    let is_weight = view.name.ends_with(".weight") && !view.name.contains("norm");
    is_in_layer && is_weight && view.shape.len() == 2 && view.shape.iter().all(|n| *n >= 8)
}

/// Quantizes all projections of a folder, or stores what their codes stand for. Returns how many
/// there are.
fn rewrite(golden: &Golden, quantize: Quantize, config: Option<Value>) -> usize {
    rewrite_some(golden, quantize, config, &|_| true)
}

/// [`rewrite`] of the tensors with these names alone.
fn rewrite_some(
    golden: &Golden,
    quantize: Quantize,
    config: Option<Value>,
    is_meant: &dyn Fn(&str) -> bool,
) -> usize {
    let file = golden.folder().join("model.safetensors");
    let mut tensors = Vec::new();
    let mut n_modules = 0;
    {
        let source = Safetensors::open_file(&file).expect("fixture");
        for view in source.names().into_iter().filter_map(|name| source.get(name)) {
            let name = view.name.to_owned();
            if !is_projection(&view) || !is_meant(view.name) {
                tensors.push(Owned(name, view.dtype, view.shape.to_vec(), view.data.to_vec()));
                continue;
            }
            n_modules += 1;
            let weights = dequantize_tensor(&view).expect("floats");
            let shape = [view.shape[0], view.shape[1]];
            let module = name.trim_end_matches(".weight");
            let (quantized, stored) = quantize(module, shape, &weights);
            match config {
                Some(_) => tensors.extend(quantized),
                None => tensors.push(Owned(name, DType::F32, shape.to_vec(), f32_bytes(&stored))),
            }
        }
    }
    std::fs::remove_file(&file).expect("removed");
    let views: Vec<TensorView<'_>> = tensors
        .iter()
        .map(|Owned(name, dtype, shape, data)| TensorView { name, dtype: *dtype, shape, data })
        .collect();
    write_safetensors(&file, &views, &BTreeMap::new()).expect("written");
    if let Some(quantization) = config {
        let file = golden.folder().join("config.json");
        let text = std::fs::read(&file).expect("config");
        let mut config: Value = serde_json::from_slice(&text).expect("JSON");
        config["quantization_config"] = quantization;
        std::fs::write(file, config.to_string()).expect("config");
    }
    n_modules
}

fn logits(golden: &Golden, compute: Compute) -> Vec<Vec<f32>> {
    run_whole(&mut golden.load(&golden.files(), compute), &golden.tokens())
}

/// Two of every fixture whose family is read quantized: one quantized, one with what the codes stand
/// for; and the number of modules.
fn twins(
    quantize: Quantize,
    config: fn() -> Value,
) -> impl Iterator<Item = (Golden, Golden, usize)> {
    let whole = all().into_iter().filter(|one| one.files().arch().reads_quantized());
    whole.map(move |plain| {
        let quantized = golden(&plain.name);
        rewrite(&plain, quantize, None);
        let n_modules = rewrite(&quantized, quantize, Some(config()));
        (quantized, plain, n_modules)
    })
}

#[test]
fn quantized_rows_of_every_family_compute_the_bits_of_their_floats() {
    for (quantized, plain, _) in twins(by_rows, rows_config) {
        let (got, expected) = (logits(&quantized, Compute::F32), logits(&plain, Compute::F32));
        assert!(bits(&got) == bits(&expected), "{}", plain.name);
    }
}

#[test]
fn the_usual_methods_of_four_bits_compute_the_bits_of_the_floats_of_every_family() {
    let methods: [(Quantize, fn() -> Value); 3] =
        [(by_gptq, gptq_config), (by_awq, awq_config), (by_tables, tables_config)];
    for (quantize, config) in methods {
        for (quantized, plain, n_modules) in twins(quantize, config) {
            let (got, expected) = (logits(&quantized, Compute::F32), logits(&plain, Compute::F32));
            let method = config()["quant_method"].clone();
            assert!(bits(&got) == bits(&expected), "{method} {} {n_modules}", plain.name);
        }
    }
}

#[test]
fn methods_that_turn_transposed_matrices_are_read_of_a_family_that_has_some() {
    let methods: [(Quantize, fn() -> Value); 2] =
        [(by_gptq_turned, gptq_config), (by_tables_turned, tables_config)];
    for (quantize, config) in methods {
        let (quantized, plain) = (golden("gpt2"), golden("gpt2"));
        assert!(rewrite(&quantized, quantize, Some(config())) > 0);
        rewrite(&plain, quantize, None);
        let (got, expected) = (logits(&quantized, Compute::F32), logits(&plain, Compute::F32));
        assert!(bits(&got) == bits(&expected), "{}", config());
    }
}

#[test]
fn quantized_blocks_of_every_family_compute_what_their_floats_do() {
    for (quantized, mut plain, _) in twins(by_blocks, blocks_config) {
        plain.logits = plain.columns.of_all(&logits(&plain, Compute::F32));
        // The sum of each block's products is another order of the same sum.
        let error = plain.mean_error(&logits(&quantized, Compute::F32));
        assert!(error < 1e-5, "{}: {error:e}", plain.name);
        let error = plain.mean_error(&logits(&quantized, Compute::Auto));
        // A near tie of a router that rounding decides another way is another expert.
        let is_near =
            ["gpt-oss", "gpt-oss-mxfp4", "deepseek-v3", "deepseek-v3-yarn", "llama4-scout"];
        let bound = if is_near.contains(&plain.name.as_str()) { 0.1 } else { 0.02 };
        assert!(error < bound, "{}: {error:e}", plain.name);
    }
}

#[test]
fn one_kind_of_module_alone_may_be_quantized() {
    // What reads a layer's norm beside it does so in another form or order.
    let whole = all().into_iter().filter(|one| one.files().arch().reads_quantized());
    for original in whole {
        let files = original.files();
        let source = files.tensors();
        let views = source.names().into_iter().filter_map(|name| source.get(name));
        let kind = |name: &str| name.rsplit('.').nth(1).unwrap_or_default().to_owned();
        let kinds: BTreeSet<String> =
            views.filter(is_projection).map(|view| kind(view.name)).collect();
        for one in kinds {
            let (quantized, mut plain) = (golden(&original.name), golden(&original.name));
            let is_meant = |name: &str| kind(name) == one;
            rewrite_some(&quantized, by_blocks, Some(blocks_config()), &is_meant);
            rewrite_some(&plain, by_blocks, None, &is_meant);
            // Rounded activations decide a near tie of these routers for another expert.
            let is_near = ["deepseek-v2", "kimi-linear"].contains(&plain.name.as_str());
            let (compute, bound) =
                if is_near { (Compute::F32, 1e-5) } else { (Compute::Auto, 0.01) };
            plain.logits = plain.columns.of_all(&logits(&plain, compute));
            let error = plain.mean_error(&logits(&quantized, compute));
            println!("{:24} {one:16} {error:.1e}", plain.name);
            assert!(error < bound, "{} {one}: {error:e}", plain.name);
        }
    }
}

#[test]
fn inspection_counts_fused_modules_once() {
    for (quantize, config) in
        [(by_rows as Quantize, rows_config as fn() -> Value), (by_blocks, blocks_config)]
    {
        for (quantized, plain, n_modules) in twins(quantize, config) {
            let facts = inspect(&quantized.files(), KvDtype::Bf16).expect(&plain.name);
            let expected = inspect(&plain.files(), KvDtype::Bf16).expect(&plain.name);
            assert_eq!(facts.n_parameters, expected.n_parameters, "{}", plain.name);
            let layouts = facts.quantization.expect("quantized").layouts;
            let n_tensors: usize = layouts.values().map(|totals| totals.n_tensors).sum();
            assert_eq!(n_tensors, n_modules, "{}", plain.name);
        }
    }
}

#[test]
fn a_quantized_module_of_a_family_with_transposed_matrices_is_refused_by_name() {
    let golden = golden("gpt2");
    rewrite(&golden, by_rows, Some(rows_config()));
    let options = LoadOptions { n_threads: Some(1), ..Default::default() };
    let text = load_cpu(&golden.files(), &options).expect_err("refused").to_string();
    for part in ["transformer.h.0.attn.c_attn", "compressed-tensors", "plain floats", "transposed"]
    {
        assert!(text.contains(part), "`{part}` is not in: {text}");
    }
    assert!(!text.contains('\n'), "{text}");
}

#[test]
fn plain_matrices_of_a_family_with_transposed_ones_are_read_beside_a_scheme() {
    let golden = golden("gpt2");
    let file = golden.folder().join("config.json");
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(&file).expect("config")).expect("JSON");
    config["quantization_config"] = rows_config();
    std::fs::write(file, config.to_string()).expect("config");
    let error = golden.worst_error(&logits(&golden, Compute::F32));
    assert!(error < 1e-4, "{error:e}");
}
