//! Damaged quantized checkpoints: each is answered with one line that names the tensor or field.

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::{Golden, shape_of};
use pelton_model::{LoadOptions, ModelFiles, load_cpu};
use pelton_tensor::{DType, Safetensors, TensorSource, TensorView, write_safetensors};
use serde_json::{Value, json};

/// One tensor, owned.
#[derive(Clone)]
struct Owned {
    dtype: DType,
    shape: Vec<usize>,
    data: Vec<u8>,
}

type Tensors = BTreeMap<String, Owned>;

fn fixture(name: &str) -> Golden {
    crate::common::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints").join(name))
}

/// The error of opening and loading a folder; it must be one line.
fn refusal(folder: &Path) -> String {
    let options = LoadOptions { n_threads: Some(1), ..Default::default() };
    let error = match ModelFiles::open(folder) {
        Err(error) => error.to_string(),
        Ok(files) => load_cpu(&files, &options).expect_err("refused").to_string(),
    };
    assert!(!error.contains('\n'), "{error}");
    error
}

/// The refusal of a fixture whose tensors were edited.
fn edited(name: &str, edit: &dyn Fn(&mut Tensors)) -> String {
    let golden = fixture(name);
    let file = golden.folder().join("model.safetensors");
    let mut tensors = read(&file);
    edit(&mut tensors);
    write(&file, &tensors);
    refusal(golden.folder())
}

fn read(file: &Path) -> Tensors {
    let stored = Safetensors::open_file(file).expect("fixture");
    let owned = |name: &str| {
        let view = stored.get(name).expect("listed");
        let (dtype, shape, data) = (view.dtype, view.shape.to_vec(), view.data.to_vec());
        (name.to_owned(), Owned { dtype, shape, data })
    };
    stored.names().into_iter().map(owned).collect()
}

fn write(file: &Path, tensors: &Tensors) {
    let views: Vec<TensorView<'_>> = tensors
        .iter()
        .map(|(name, Owned { dtype, shape, data })| TensorView { name, dtype: *dtype, shape, data })
        .collect();
    std::fs::remove_file(file).expect("remove");
    write_safetensors(file, &views, &BTreeMap::new()).expect("write");
}

const Q: &str = "model.layers.0.self_attn.q_proj";

fn tensor<'t>(tensors: &'t mut Tensors, suffix: &str) -> &'t mut Owned {
    tensors.get_mut(&format!("{Q}.{suffix}")).expect(suffix)
}

/// Another shape, the data cut or filled with zeros.
fn reshape(tensors: &mut Tensors, suffix: &str, shape: &[usize]) {
    let tensor = tensor(tensors, suffix);
    let n_bytes = tensor.dtype.bytes_for(shape.iter().product()).expect("small");
    tensor.shape = shape.to_vec();
    tensor.data.resize(n_bytes, 0);
}

fn retype(tensors: &mut Tensors, suffix: &str, dtype: DType) {
    let tensor = tensor(tensors, suffix);
    tensor.dtype = dtype;
    tensor.data = vec![0; dtype.bytes_for(tensor.shape.iter().product()).expect("small")];
}

fn put(tensors: &mut Tensors, suffix: &str, at: usize, bytes: &[u8]) {
    tensor(tensors, suffix).data[at..at + bytes.len()].copy_from_slice(bytes);
}

fn remove(tensors: &mut Tensors, suffix: &str) {
    tensors.remove(&format!("{Q}.{suffix}")).expect(suffix);
}

/// Replaces the JSON beside a matrix of bitsandbytes.
fn restate(tensors: &mut Tensors, from: &str, to: &str) {
    let state = tensor(tensors, "weight.quant_state.bitsandbytes__nf4");
    let text = String::from_utf8(state.data.clone()).expect("text");
    assert!(text.contains(from), "{text}");
    state.data = text.replace(from, to).into_bytes();
    state.shape = vec![state.data.len()];
}

#[test]
fn tensors_at_odds_with_each_other_are_named() {
    type Edit = Box<dyn Fn(&mut Tensors)>;
    let shaped = |suffix: &'static str, shape: &'static [usize]| -> Edit {
        Box::new(move |t| reshape(t, suffix, shape))
    };
    let typed =
        |suffix: &'static str, dtype| -> Edit { Box::new(move |t| retype(t, suffix, dtype)) };
    let gone = |suffix: &'static str| -> Edit { Box::new(move |t| remove(t, suffix)) };
    let bytes = |suffix: &'static str, at: usize, bytes: &'static [u8]| -> Edit {
        Box::new(move |t| put(t, suffix, at, bytes))
    };
    let state =
        |from: &'static str, to: &'static str| -> Edit { Box::new(move |t| restate(t, from, to)) };
    let inf_f16 = &[0x00, 0x7c];
    let nan_f16 = &[0x01, 0x7e];
    let nan_f32 = &[0, 0, 0xc0, 0x7f];
    let one_i32 = &[1, 0, 0, 0];
    let cases: Vec<(&str, Edit, &[&str])> = vec![
        ("gptq-4", shaped("qweight", &[64, 8]), &["q_proj.qweight", "[8, 64]", "[64, 8]"]),
        ("gptq-4", shaped("qweight", &[8, 64, 1]), &["q_proj.qweight", "[8, 64, 1]"]),
        ("gptq-4", shaped("qweight", &[0, 64]), &["q_proj.qweight", "[0, 64]"]),
        ("gptq-4", typed("qweight", DType::F32), &["q_proj.qweight", "I32", "F32"]),
        ("gptq-4", gone("qweight"), &["q_proj.weight", "missing"]),
        ("gptq-4", gone("qzeros"), &["q_proj.qzeros", "missing", "[2, 8]"]),
        ("gptq-4", shaped("qzeros", &[2, 64]), &["q_proj.qzeros", "[2, 8]"]),
        ("gptq-4", gone("scales"), &["q_proj.scales", "missing"]),
        ("gptq-4", shaped("scales", &[64, 2]), &["q_proj.scales", "[2, 64]"]),
        ("gptq-4", typed("scales", DType::I16), &["q_proj.scales", "F16", "I16"]),
        ("gptq-4", bytes("scales", 6, inf_f16), &["q_proj.scales", "inf at element 3"]),
        ("gptq-4", bytes("scales", 0, nan_f16), &["q_proj.scales", "NaN at element 0"]),
        ("gptq-4", shaped("g_idx", &[63]), &["q_proj.g_idx", "[64]", "[63]"]),
        ("gptq-4", bytes("g_idx", 4, &[2, 0, 0, 0]), &["q_proj.g_idx", "0 to 1", "2 at input 1"]),
        ("gptq-4", bytes("g_idx", 0, &[0xff; 4]), &["q_proj.g_idx", "-1 at input 0"]),
        ("gptq-4-act", gone("g_idx"), &["q_proj.g_idx", "missing"]),
        ("awq-g32", shaped("qweight", &[8, 64]), &["q_proj.qweight", "[64, 8]"]),
        ("awq-g32", shaped("qzeros", &[1, 8]), &["q_proj.qzeros", "[2, 8]"]),
        ("awq-g32", gone("qzeros"), &["q_proj.qzeros", "missing"]),
        ("fp8-tensor", gone("weight_scale"), &["q_proj.weight_scale", "missing"]),
        ("fp8-tensor", shaped("weight_scale", &[3]), &["q_proj.weight_scale", "[64, 1]", "[3]"]),
        ("fp8-tensor", typed("weight_scale", DType::I32), &["q_proj.weight_scale", "I32"]),
        ("fp8-tensor", bytes("weight_scale", 0, nan_f32), &["q_proj.weight_scale", "NaN"]),
        ("fp8-tensor", shaped("weight", &[64, 65]), &["q_proj.weight", "[64, 64]", "[64, 65]"]),
        ("fp8-tensor", typed("weight", DType::I8), &["q_proj.weight", "I8"]),
        ("fp8-block", shaped("weight_scale_inv", &[2, 2]), &["q_proj.weight_scale_inv", "[3, 2]"]),
        (
            "fp8-block",
            Box::new(|t| {
                let data = vec![0; 4];
                let second = Owned { dtype: DType::F32, shape: vec![1], data };
                t.insert(format!("{Q}.weight_scale"), second);
            }),
            &["q_proj.weight_scale", "second"],
        ),
        ("bnb-nf4", shaped("weight", &[2047, 1]), &["q_proj.weight", "2048", "2047"]),
        ("bnb-nf4", gone("weight"), &["q_proj.weight", "missing"]),
        ("bnb-nf4", shaped("weight.absmax", &[63]), &["q_proj.weight.absmax", "[64]"]),
        ("bnb-nf4", gone("weight.absmax"), &["q_proj.weight.absmax", "missing"]),
        ("bnb-nf4", shaped("weight.quant_map", &[8]), &["q_proj.weight.quant_map", "[16]"]),
        ("bnb-nf4", bytes("weight.quant_map", 0, nan_f32), &["q_proj.weight.quant_map", "NaN"]),
        ("bnb-nf4", state("{", "["), &["bitsandbytes__nf4", "JSON"]),
        ("bnb-nf4", state("[64, 64]", "[64, 32]"), &["bitsandbytes__nf4", "[64, 32]"]),
        ("bnb-nf4", state("\"blocksize\": 64", "\"blocksize\": 0"), &["blocksize"]),
        ("bnb-nf4", state("\"blocksize\": 64", "\"blocksize\": 32"), &["absmax", "[128]"]),
        ("bnb-nf4", state("\"blocksize\": 64", "\"blocksize\": -1"), &["blocksize"]),
        ("bnb-nf4", state("\"blocksize\"", "\"block\""), &["blocksize", "none"]),
        ("bnb-nf4-nested", gone("weight.nested_absmax"), &["weight.nested_absmax", "missing"]),
        (
            "bnb-nf4-nested",
            shaped("weight.nested_quant_map", &[16]),
            &["nested_quant_map", "[256]"],
        ),
        ("bnb-nf4-nested", state("nested_blocksize", "nested"), &["nested_blocksize"]),
        ("bnb-int8", gone("SCB"), &["q_proj.SCB", "missing"]),
        ("bnb-int8", shaped("SCB", &[1]), &["q_proj.SCB", "[64]"]),
        ("bnb-int8", bytes("weight_format", 0, &[1]), &["q_proj.weight_format"]),
        ("ct-w4a16", bytes("weight_shape", 0, one_i32), &["q_proj.weight_shape", "[64, 64]"]),
        ("ct-w4a16", shaped("weight_packed", &[64, 7]), &["q_proj.weight_packed", "[64, 8]"]),
        ("ct-w4a16", gone("weight_scale"), &["q_proj.weight_scale", "missing"]),
        ("ct-w4a16-asym", gone("weight_zero_point"), &["q_proj.weight_zero_point", "missing"]),
        ("ct-w4a16-asym", shaped("weight_zero_point", &[64, 1]), &["zero_point", "[8, 1]"]),
        ("ct-w4a16-act", bytes("weight_g_idx", 0, &[9, 0, 0, 0]), &["weight_g_idx", "0 to 1"]),
        ("ct-w8a8", gone("weight_scale"), &["q_proj.weight_scale", "missing"]),
        ("ct-w8a8", shaped("weight_scale", &[64, 2]), &["q_proj.weight_scale", "[64, 1]"]),
        ("ct-nvfp4", gone("weight_global_scale"), &["q_proj.weight_global_scale", "missing"]),
        ("ct-nvfp4", gone("weight_scale"), &["q_proj.weight_scale", "missing"]),
        ("ct-nvfp4", shaped("weight_scale", &[64, 2]), &["q_proj.weight_scale", "[64, 4]"]),
        ("ct-nvfp4", bytes("weight_scale", 3, &[0x7f]), &["weight_scale", "NaN at element 3"]),
        ("ct-nvfp4", bytes("weight_global_scale", 0, &[0; 4]), &["global_scale", "divided"]),
        ("ct-nvfp4", shaped("weight_global_scale", &[2]), &["weight_global_scale", "one number"]),
        ("ct-nvfp4", shaped("weight_packed", &[64, 64]), &["q_proj.weight_packed", "[64, 32]"]),
        ("ct-mxfp4", typed("weight_scale", DType::F8E4M3), &["q_proj.weight_scale", "U8"]),
        ("ct-mxfp4", bytes("weight_scale", 1, &[0xff]), &["weight_scale", "NaN at element 1"]),
        ("ct-sparse", bytes("bitmask", 2, &[0x17]), &["q_proj.bitmask", "two of each four"]),
        ("ct-sparse", shaped("bitmask", &[64, 7]), &["q_proj.bitmask", "[64, 8]"]),
        ("ct-sparse", shaped("compressed", &[64, 31]), &["q_proj.compressed", "[64, 32]"]),
        ("ct-sparse", gone("bitmask"), &["q_proj.bitmask", "missing"]),
        ("ct-sparse", gone("shape"), &["q_proj.shape", "missing"]),
        ("ct-sparse", bytes("shape", 0, &[63]), &["q_proj.shape", "[64, 64]", "[63, 64]"]),
        ("ct-sparse", typed("compressed", DType::F8E4M3), &["q_proj.compressed", "F16"]),
        ("ct-sparse-fp8", gone("weight_scale"), &["q_proj.weight_scale", "missing"]),
        ("hqq-4", gone("scale"), &["q_proj.scale", "missing"]),
        ("hqq-4", gone("zero"), &["q_proj.zero", "missing"]),
        ("hqq-4", shaped("scale", &[63, 1]), &["q_proj.scale", "[64, 1]"]),
        ("hqq-4", bytes("scale", 2, inf_f16), &["q_proj.scale", "inf at element 1"]),
        ("hqq-4", shaped("W_q", &[31, 64]), &["q_proj.W_q", "2048 bytes"]),
        ("hqq-4", bytes("group_size", 0, &[0; 4]), &["q_proj.group_size", "divisor", "0"]),
        ("hqq-4", bytes("group_size", 0, &[63, 0, 0, 0]), &["q_proj.group_size", "63"]),
        ("hqq-4", bytes("nbits", 0, &[7, 0, 0, 0]), &["q_proj.nbits", "7"]),
        ("hqq-4", bytes("axis", 0, &[2, 0, 0, 0]), &["q_proj.axis", "0 or 1", "2"]),
        ("hqq-4", bytes("quant_zero", 0, &[1]), &["q_proj.quant_zero", "not quantized"]),
        ("hqq-4", bytes("shape", 0, &[32]), &["q_proj.shape", "[64, 64]"]),
        ("hqq-4-f32", bytes("zero", 4, nan_f32), &["q_proj.zero", "NaN at element 1"]),
        ("hqq-2-row", shaped("zero", &[255, 1]), &["q_proj.zero", "[256, 1]"]),
        ("hqq-3", shaped("W_q", &[7, 63]), &["q_proj.W_q", "1792 bytes"]),
        ("aqlm-2x8", gone("codebooks"), &["q_proj.codebooks", "missing"]),
        ("aqlm-2x8", gone("scales"), &["q_proj.scales", "missing"]),
        ("aqlm-2x8", shaped("codebooks", &[2, 255, 1, 8]), &["q_proj.codebooks", "256"]),
        ("aqlm-2x8", shaped("scales", &[64]), &["q_proj.scales", "[64, 1, 1, 1]"]),
        ("aqlm-2x8", typed("codes", DType::I16), &["q_proj.codes", "I8"]),
        ("aqlm-1x9", bytes("codes", 2, &[0, 1]), &["q_proj.codes", "-256 to 255", "256 at"]),
        ("quip", bytes("codebook_id", 0, &[19]), &["q_proj.codebook_id", "E8P12", "19"]),
        ("quip", bytes("codebook_id", 0, &[18]), &["q_proj.Qidxs", "[64, 3]"]),
        ("quip", gone("codebook_id"), &["q_proj.codebook_id", "missing"]),
        ("quip", gone("SU"), &["q_proj.SU", "missing"]),
        ("quip", gone("SV"), &["q_proj.SV", "missing"]),
        ("quip", shaped("SU", &[63]), &["q_proj.SU", "[64]"]),
        ("quip", typed("Qidxs", DType::I16), &["q_proj.Qidxs", "I64"]),
        ("quip", shaped("Qidxs", &[64, 3]), &["q_proj.Qidxs", "[64, 2]"]),
        ("quip", bytes("Wscale", 0, nan_f32), &["q_proj.Wscale", "NaN"]),
        ("marlin", gone("s"), &["q_proj.s", "missing"]),
        ("marlin", shaped("B", &[4, 64]), &["q_proj.B", "[4, 128]"]),
        ("bitnet", bytes("weight_scale", 0, &[0, 0]), &["q_proj.weight_scale", "inf"]),
        ("bitnet", shaped("weight", &[16, 63]), &["q_proj.weight", "[16, 64]"]),
        ("bitnet", shaped("weight_scale", &[2]), &["q_proj.weight_scale", "[1]"]),
    ];
    for (i, (name, edit, expected)) in cases.iter().enumerate() {
        let text = edited(name, &**edit);
        for part in *expected {
            assert!(text.contains(part), "case {i} of {name}: `{part}` is not in: {text}");
        }
    }
}

/// The refusal of a fixture with another field in its `quantization_config`.
fn configured(name: &str, key: &str, value: Value) -> String {
    let golden = fixture(name);
    let file = golden.folder().join("config.json");
    let text = std::fs::read(&file).expect("config");
    let mut config: Value = serde_json::from_slice(&text).expect("JSON");
    if key.is_empty() {
        config["quantization_config"] = value;
    } else {
        config["quantization_config"][key] = value;
    }
    std::fs::write(file, config.to_string()).expect("config");
    refusal(golden.folder())
}

#[test]
fn settings_that_are_not_supported_are_named_with_what_is() {
    let weights = |bits: u64, kind: &str, strategy: &str| json!({"g": {"weights": {"num_bits": bits, "type": kind, "strategy": strategy, "group_size": 32}}});
    let mut others = weights(4, "int", "group");
    others["g"]["targets"] = json!(["re:.*mlp", "lm_head"]);
    for (name, key, value, expected) in [
        ("gptq-4", "", json!([1]), "an object"),
        ("gptq-4", "", json!({"bits": 4}), "quant_method"),
        ("gptq-4", "quant_method", json!("eetq"), "gptq, awq"),
        ("gptq-4", "quant_method", json!("torchao"), "found \"torchao\""),
        ("gptq-4", "quant_method", json!("quanto"), "compressed-tensors"),
        ("gptq-4", "quant_method", json!(7), "quant_method"),
        ("gptq-4", "bits", json!(5), "2, 3, 4 or 8"),
        ("gptq-4", "bits", json!(4.5), "bits"),
        ("gptq-4", "bits", json!(8), "qweight"),
        ("gptq-4", "group_size", json!(0), "group_size"),
        ("gptq-4", "group_size", json!(-2), "group_size"),
        ("gptq-4", "group_size", json!(u64::MAX), "group_size"),
        ("gptq-4", "group_size", Value::Null, "group_size"),
        ("gptq-4", "group_size", json!(16), "qzeros"),
        ("gptq-4", "desc_act", json!("yes"), "desc_act"),
        ("gptq-4", "checkpoint_format", json!("gptq_v3"), "gptq_v2"),
        ("gptq-4", "checkpoint_format", json!("marlin"), "sym"),
        ("gptq-4", "is_marlin_format", json!(true), "sym"),
        ("gptq-4", "is_marlin_format", json!("yes"), "is_marlin_format"),
        ("gptq-4-row", "is_marlin_format", json!(true), "q_proj.weight"),
        ("gptq-4", "pack_dtype", json!("int16"), "int32"),
        ("gptq-4", "dynamic", json!({"+:.*": {"bits": 8}}), "dynamic"),
        ("gptq-4", "dynamic", json!({"-:(": {}}), "regular expression"),
        ("gptq-4", "dynamic", json!({"-:.*q_proj": {}}), "q_proj.weight"),
        ("gptq-4", "modules_to_not_convert", json!(["re:.*q_proj$"]), "q_proj.weight"),
        ("gptq-4", "modules_to_not_convert", json!(["q_proj"]), "q_proj.weight"),
        ("gptq-4", "modules_to_not_convert", json!([3]), "modules_to_not_convert"),
        ("awq-g32", "bits", json!(8), "bits"),
        ("awq-g32", "version", json!("gemv"), "gemm"),
        ("awq-g32", "backend", json!("llm-awq"), "AutoAWQ"),
        ("awq-g32", "zero_point", json!(false), "zero_point"),
        ("fp8-tensor", "weight_block_size", json!([0, 128]), "weight_block_size"),
        ("fp8-tensor", "weight_block_size", json!([128]), "weight_block_size"),
        ("fp8-tensor", "activation_scheme", json!("none"), "dynamic, static"),
        ("fp8-tensor", "modules_to_not_convert", json!(["self_attn.q_proj"]), "F8_E4M3"),
        ("bnb-nf4", "load_in_8bit", json!(true), "load_in_4bit"),
        ("bnb-nf4", "load_in_4bit", json!(false), "load_in_4bit"),
        ("ct-w4a16", "format", json!("marlin-24"), "pack-quantized, int-quantized"),
        ("ct-w4a16", "format", json!("nvfp4-pack-quantized"), "num_bits"),
        ("ct-w4a16", "ignore", json!(["re:.*q_proj$"]), "q_proj.weight"),
        ("ct-w4a16", "ignore", json!(["re:["]), "ignore"),
        ("ct-w4a16", "format", Value::Null, "format"),
        ("ct-w4a16", "format", json!("int-quantized"), "num_bits"),
        ("ct-w4a16", "sparsity_config", json!({"format": "sparse-bitmask"}), "sparse-24-bitmask"),
        ("ct-w4a16", "config_groups", json!({}), "config_groups"),
        ("ct-w4a16", "config_groups", others, "q_proj.weight"),
        ("ct-w4a16", "config_groups", weights(9, "int", "group"), "num_bits"),
        ("ct-w4a16", "config_groups", weights(4, "float", "group"), "num_bits"),
        ("ct-w4a16", "config_groups", weights(4, "int", "tensor_group"), "strategy"),
        ("ct-nvfp4", "config_groups", weights(4, "float", "tensor_group"), "group_size"),
        ("ct-mxfp4", "format", json!("nvfp4-pack-quantized"), "group_size"),
        ("aqlm-2x8", "in_group_size", json!(0), "in_group_size"),
        ("aqlm-2x8", "num_codebooks", json!(65), "num_codebooks"),
        ("aqlm-2x8", "num_codebooks", json!(3), "q_proj.codes"),
        ("aqlm-2x8", "nbits_per_codebook", json!(17), "nbits_per_codebook"),
        ("aqlm-2x8", "nbits_per_codebook", json!(7), "q_proj.codebooks"),
        ("aqlm-2x8", "in_group_size", json!(7), "vectors of 1 x 7"),
        ("quip", "codebook", json!("D4"), "E8P12"),
        ("quip", "codebook_version", json!(0), "codebook_version"),
        ("quip", "lora_rank", json!(32), "lora_rank"),
        ("marlin", "bits", json!(8), "bits"),
        ("marlin", "group_size", json!(0), "group_size"),
        ("marlin", "group_size", json!(64), "q_proj.s"),
        ("marlin", "sym", json!(false), "sym"),
        ("marlin", "desc_act", json!(true), "desc_act"),
        ("bitnet", "quantization_mode", json!("online"), "offline"),
        ("bitnet", "linear_class", json!("linear"), "autobitlinear"),
    ] {
        let shown = value.to_string();
        let text = configured(name, key, value);
        assert!(text.contains(expected), "{name} {key} {shown}: `{expected}` is not in: {text}");
    }
}

/// Each way to spoil one tensor without making the file itself invalid.
fn damages(tensor: &Owned) -> Vec<Option<Owned>> {
    let with = |dtype: DType, shape: Vec<usize>, fill: u8| {
        let n_bytes = dtype.bytes_for(shape.iter().product())?;
        let mut data = tensor.data.clone();
        data.resize(n_bytes, fill);
        Some(Owned { dtype, shape, data })
    };
    let all_bytes = |byte| Some(Owned { data: vec![byte; tensor.data.len()], ..tensor.clone() });
    let mut all = vec![None, all_bytes(0), all_bytes(0x7f), all_bytes(0xff)];
    let shape = &tensor.shape;
    let mut shapes = vec![Vec::new(), vec![0], shape.iter().rev().copied().collect()];
    for i in 0..shape.len() {
        for len in [0, 1, shape[i].saturating_sub(1), shape[i] + 1, shape[i] * 2] {
            let mut other = shape.clone();
            other[i] = len;
            shapes.push(other);
        }
    }
    shapes.push(shape.iter().copied().chain([1]).collect());
    all.extend(shapes.into_iter().map(|shape| with(tensor.dtype, shape, 0)));
    let dtypes = DType::all().filter(|dtype| dtype.safetensors_name().is_some());
    all.extend(dtypes.map(|dtype| with(dtype, shape.clone(), 1)));
    all
}

/// Whether a tensor is one of those that make the query projection.
fn is_of_q(name: &str) -> bool {
    name.starts_with(Q) || name.contains(".qkv_proj.")
}

#[test]
fn no_damage_to_one_tensor_is_a_panic() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints");
    let mut n_refused = 0;
    for entry in std::fs::read_dir(root).expect("fixtures") {
        let path = entry.expect("entry").path();
        if !path.join("config.json").exists() {
            continue;
        }
        let golden = crate::common::open(&path);
        let whole = golden.files();
        let scheme = whole.scheme().expect("quantized");
        let shape = shape_of(whole.config(), Q);
        let file = golden.folder().join("model.safetensors");
        let tensors: Tensors = read(&file).into_iter().filter(|(name, _)| is_of_q(name)).collect();
        for name in tensors.keys() {
            for damage in damages(&tensors[name]) {
                let mut tensors = tensors.clone();
                match damage {
                    Some(tensor) => tensors.insert(name.clone(), tensor),
                    None => tensors.remove(name),
                };
                let file = golden.folder().join("damaged.safetensors");
                std::fs::write(&file, []).expect("a file to replace");
                write(&file, &tensors);
                let stored = Safetensors::open_file(&file).expect("a valid file");
                let weights = scheme
                    .find(&stored, Q, shape)
                    .and_then(|found| found.map(|matrix| matrix.dequantize()).transpose());
                match weights {
                    Ok(weights) => assert!(weights.is_none_or(|w| w.len() == shape[0] * shape[1])),
                    Err(error) => {
                        n_refused += 1;
                        let text = error.to_string();
                        assert!(text.contains("q_proj") || text.contains("qkv_proj"), "{text}");
                    }
                }
            }
        }
    }
    assert!(n_refused > 1000, "{n_refused}");
}

#[test]
fn weights_that_grow_when_packed_are_measured_packed() {
    // Scales along the outputs are those of no layout: the weights become f32.
    let golden = fixture("hqq-3");
    let files = golden.files();
    let n_bytes: usize = files.tensors().files().iter().map(|file| file.bytes().len()).sum();
    let load = |memory_bytes: usize| {
        let memory_bytes = Some(memory_bytes as u64);
        load_cpu(&files, &LoadOptions { n_threads: Some(1), memory_bytes, ..Default::default() })
    };
    let text = load(2 * n_bytes).expect_err("too large").to_string();
    assert!(text.contains("memory"), "{text}");
    load(6 * n_bytes).expect("fits");
}
