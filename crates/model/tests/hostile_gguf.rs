//! GGUF files whose metadata lies: each is answered with one line that names the key or the tensor.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::common::{Golden, golden, rewrite};
use pelton_model::{LoadOptions, ModelFiles, check, load_cpu};
use pelton_tensor::{DType, Gguf, GgufArray, GgufValue};
use pelton_testkit::TinyModel;

/// The answer to a file with these edits.
fn answer(edits: &[(&str, Option<GgufValue>)]) -> Result<(), String> {
    let folder = tempfile::tempdir().expect("temp");
    let sound = folder.path().join("sound.gguf");
    TinyModel { tokenizer: false, ..TinyModel::default() }.write_gguf(&sound, DType::F32);
    opened(&sound, edits).map(|_| ())
}

/// A file with these edits, opened and checked.
fn opened(sound: &Path, edits: &[(&str, Option<GgufValue>)]) -> Result<ModelFiles, String> {
    let folder = tempfile::tempdir().expect("temp");
    let path = folder.path().join("edited.gguf");
    rewrite(sound, &path, edits);
    let opened = ModelFiles::open(&path).and_then(|files| check(&files).map(|()| files));
    opened.map_err(|error| error.to_string())
}

#[test]
fn every_lie_of_the_metadata_is_refused_by_its_key() {
    let (n, x) = (GgufValue::U32, GgufValue::F32);
    let text = |text: &str| GgufValue::String(text.to_owned());
    let flags = |flags: &[bool]| GgufValue::Array(GgufArray::Bool(flags.to_vec()));
    let counts = |counts: &[u32]| GgufValue::Array(GgufArray::U32(counts.to_vec()));
    let cases: Vec<(&str, Option<GgufValue>, &str)> = vec![
        ("general.architecture", None, "the name of an architecture"),
        ("general.architecture", Some(n(1)), "a text"),
        ("general.architecture", Some(text("abacus")), "`abacus`"),
        ("general.architecture", Some(text("qwen2")), "`qwen2.embedding_length`"),
        ("llama.embedding_length", None, "missing"),
        ("llama.embedding_length", Some(n(0)), "found 0"),
        ("llama.embedding_length", Some(n(u32::MAX)), "found 4294967295"),
        ("llama.embedding_length", Some(GgufValue::I64(-64)), "found -64"),
        ("llama.embedding_length", Some(text("64")), "found \"64\""),
        ("llama.embedding_length", Some(x(64.5)), "found 64.5"),
        ("llama.embedding_length", Some(x(f32::NAN)), "NaN"),
        ("llama.embedding_length", Some(counts(&[64])), "found [64]"),
        ("llama.block_count", Some(n(0)), "found 0"),
        ("llama.block_count", Some(n(u32::MAX)), "found 4294967295"),
        ("llama.context_length", Some(n(0)), "found 0"),
        ("llama.context_length", Some(GgufValue::U64(u64::MAX)), "18446744073709551615"),
        ("llama.feed_forward_length", None, "missing"),
        ("llama.feed_forward_length", Some(flags(&[true])), "found [true]"),
        ("llama.attention.head_count", Some(n(0)), "found 0"),
        ("llama.attention.head_count", Some(n(7)), "a divisor"),
        ("llama.attention.head_count_kv", Some(n(3)), "a divisor"),
        ("llama.attention.key_length", Some(n(15)), "even"),
        ("llama.attention.value_length", Some(n(8)), "the width of a head"),
        ("llama.rope.dimension_count", Some(n(8)), "the width of a head"),
        ("llama.rope.dimension_count", Some(n(1 << 30)), "found 1073741824"),
        ("llama.attention.layer_norm_rms_epsilon", None, "missing"),
        ("llama.attention.layer_norm_rms_epsilon", Some(x(-1.0)), "found -1"),
        ("llama.attention.layer_norm_rms_epsilon", Some(x(f32::INFINITY)), "inf"),
        ("llama.rope.freq_base", Some(x(0.0)), "found 0"),
        ("llama.rope.scaling.type", Some(text("spiral")), "one of none, linear, yarn"),
        ("llama.rope.scaling.type", Some(text("yarn")), "`llama.rope.scaling.factor`"),
        ("llama.rope.scaling.type", Some(text("longrope")), "`rope_factors_short.weight`"),
        ("llama.rope.scale_linear", Some(x(0.0)), "found 0"),
        ("llama.attention.sliding_window", Some(GgufValue::I32(-1)), "found -1"),
        ("llama.attention.sliding_window_pattern", Some(flags(&[true])), "each of the 2 layers"),
        ("llama.attention.sliding_window_pattern", Some(counts(&[1, 0])), "true or false"),
        ("llama.attention.sliding_window_pattern", Some(flags(&[])), "each of the 2 layers"),
        ("llama.vocab_size", Some(n(289)), "the rows of `token_embd.weight`"),
        ("tokenizer.ggml.eos_token_id", Some(text("two")), "a token id"),
    ];
    for (key, value, expected) in cases {
        let told = answer(&[(key, value.clone())]).err();
        let told = told.unwrap_or_else(|| panic!("{key} = {value:?} was accepted"));
        let is_named = told.contains(key) || expected.starts_with('`');
        assert!(is_named && told.contains(expected), "{key} = {value:?}: {told}");
        assert!(told.contains("edited.gguf") && !told.contains('\n'), "{told:?}");
    }
}

#[test]
fn metadata_that_the_tensors_contradict_names_the_tensor() {
    let n = GgufValue::U32;
    for (key, value, tensor) in [
        ("llama.embedding_length", 128, "token_embd.weight"),
        ("llama.block_count", 3, "blk.2."),
        ("llama.feed_forward_length", 64, "blk.0.ffn_"),
        ("llama.attention.head_count_kv", 4, "blk.0.attn_k.weight"),
    ] {
        let told = answer(&[(key, Some(n(value)))]).expect_err(key);
        assert!(told.contains(tensor) && !told.contains('\n'), "{key}: {told}");
    }
}

#[test]
fn metadata_that_nobody_reads_harms_nobody() {
    let long = GgufValue::Array(GgufArray::U8(vec![7; 1 << 20]));
    for (key, value) in [
        (
            "llama.attention.sliding_window_pattern",
            GgufValue::Array(GgufArray::Bool(vec![true, false])),
        ),
        ("llama.expert_count", GgufValue::U32(0)),
        ("general.name", GgufValue::String("\u{1b}[2J".repeat(1000))),
        ("something.else", long),
        ("tokenizer.ggml.eos_token_id", GgufValue::U32(u32::MAX)),
    ] {
        answer(&[(key, Some(value))]).expect(key);
    }
}

#[test]
fn the_lies_of_other_families_are_refused_by_their_keys() {
    let n = |n| Some(GgufValue::U32(n));
    for (name, key, value, expected) in [
        ("glm4-moe", "glm4moe.expert_gating_func", n(1), "2 (sigmoid)"),
        ("glm4-moe", "glm4moe.nextn_predict_layers", n(4), "from 0 to 3"),
        ("glm4-moe", "glm4moe.nextn_predict_layers", n(0), "`blk.3.attn_norm.weight`"),
        ("glm4-moe", "glm4moe.expert_group_count", n(3), "a divisor of the 8 experts"),
        ("glm4-moe", "glm4moe.expert_shared_count", n(3), "`blk.1.ffn_gate_shexp.weight`"),
        ("glm4-moe", "glm4moe.leading_dense_block_count", n(0), "`blk.0.ffn_gate_inp.weight`"),
        ("minicpm3", "minicpm3.attention.key_length", n(8), "more than 8"),
        ("minicpm3", "minicpm3.attention.key_length", None, "it is missing"),
        ("minicpm3", "minicpm3.attention.value_length", None, "expected shape"),
        ("minicpm3", "minicpm3.attention.kv_lora_rank", n(u32::MAX), "found 4294967295"),
    ] {
        let golden = golden(name);
        let sound = golden.gguf().expect("a file");
        let told = opened(&sound, &[(key, value.clone())]).expect_err(key);
        assert!(told.contains(expected) && !told.contains('\n'), "{key} = {value:?}: {told}");
    }
}

#[test]
fn the_lies_of_hybrid_models_are_refused_by_their_keys() {
    let n = |n| Some(GgufValue::U32(n));
    let counts = |list: &[u32]| Some(GgufValue::Array(GgufArray::U32(list.to_vec())));
    let flags = |list: &[bool]| Some(GgufValue::Array(GgufArray::Bool(list.to_vec())));
    let text = || Some(GgufValue::String("two".to_owned()));
    let mut cases = Vec::new();
    for key in ["conv_kernel", "state_size", "group_count", "time_step_rank", "inner_size"] {
        for name in ["qwen3-5", "granite-hybrid", "mamba2"] {
            let key = format!("ssm.{key}");
            cases.push((name, key.clone(), None, "missing"));
            cases.push((name, key.clone(), n(0), "from 1 to"));
            cases.push((name, key.clone(), n(u32::MAX), "from 1 to"));
            cases.push((name, key, text(), "a whole number"));
        }
    }
    for key in ["conv_kernel", "state_size", "time_step_rank", "inner_size"] {
        for name in ["mamba", "jamba", "falcon-h1-norm"] {
            let key = format!("ssm.{key}");
            cases.push((name, key.clone(), None, "missing"));
            cases.push((name, key.clone(), n(0), "from 1 to"));
            cases.push((name, key.clone(), n(u32::MAX), "from 1 to"));
            cases.push((name, key, text(), "a whole number"));
        }
    }
    for key in [
        "wkv.head_size",
        "attention.decay_lora_rank",
        "attention.iclr_lora_rank",
        "attention.value_residual_mix_lora_rank",
        "attention.gate_lora_rank",
    ] {
        cases.push(("rwkv7", key.to_owned(), None, "missing"));
        cases.push(("rwkv7", key.to_owned(), n(0), "from 1 to"));
        cases.push(("rwkv7", key.to_owned(), n(u32::MAX), "from 1 to"));
        cases.push(("rwkv7", key.to_owned(), text(), "a whole number"));
    }
    for (name, key, value, expected) in [
        ("rwkv7", "wkv.head_size", n(24), "a divisor of the width 32"),
        ("rwkv7", "feed_forward_length", None, "missing"),
        ("gemma3n", "altup.num_inputs", n(0), "from 2 to"),
        ("gemma3n", "altup.num_inputs", n(1000), "from 2 to 16"),
        ("gemma3n", "altup.active_idx", n(4), "from 0 to 3"),
        ("gemma3n", "attention.shared_kv_layers", None, "missing"),
        ("gemma3n", "attention.shared_kv_layers", n(5), "from 0 to 4"),
        ("gemma3n", "embedding_length_per_layer_input", n(0), "from 1 to"),
        ("gemma3n", "feed_forward_length", None, "missing"),
        ("gemma3n", "feed_forward_length", counts(&[64, 96]), "each of the 5 layers"),
        ("gemma3n", "feed_forward_length", counts(&[64, 96, 64, 64, 0]), "from 1 to"),
        ("gemma3n", "activation_sparsity_scale", None, "missing"),
        ("gemma3n", "activation_sparsity_scale", n(1), "each of 5 layers"),
        ("gemma3n", "activation_sparsity_scale", counts(&[1, 1, 1, 1]), "each of 5 layers"),
        ("gemma3n", "activation_sparsity_scale", counts(&[1, 1, 1, 1, 9]), "from -4 to 4"),
        ("gemma4", "attention.sliding_window", n(0), "from 1 to"),
        ("gemma4", "embedding_length_per_layer_input", None, "missing"),
        ("falcon-h1-norm", "ssm.time_step_rank", n(7), "a multiple of the 2"),
        ("mamba", "ssm.dt_b_c_rms", n(1), "true or false"),
        ("jamba", "attention.head_count_kv", counts(&[0, 2]), "each of the 4 layers"),
        ("qwen3-5", "ssm.time_step_rank", n(3), "a multiple of the 2 heads of keys"),
        ("qwen3-5", "ssm.inner_size", n(66), "4 heads of one size"),
        ("qwen3-5", "ssm.inner_size", n(8192), "at most"),
        ("qwen3-5", "full_attention_interval", n(0), "from 1 to"),
        ("qwen3-5", "attention.recurrent_layers", n(3), "each of the 4 layers"),
        ("qwen3-5", "attention.recurrent_layers", counts(&[1, 1, 1, 0]), "each of the 4 layers"),
        ("qwen3-5", "feed_forward_length", None, "missing"),
        ("qwen3-5-moe", "attention.recurrent_layers", flags(&[true; 4]), "each of the 5 layers"),
        ("qwen3-5-moe", "expert_feed_forward_length", n(0), "from 1 to"),
        ("qwen3-5", "ssm.conv_kernel", n(17), "from 1 to 16"),
        ("qwen3-next", "attention.head_count_kv", counts(&[2, 2]), "each of the 4 layers"),
        ("granite-hybrid", "ssm.time_step_rank", n(7), "a multiple of the 2"),
        ("granite-hybrid", "attention.head_count_kv", None, "missing"),
        ("granite-hybrid", "rope.scaling.finetuned", n(1), "true or false"),
        ("granite-hybrid-moe", "expert_shared_feed_forward_length", None, "missing"),
        ("lfm2", "attention.head_count_kv", counts(&[0, 0, 2]), "each of the 4 layers"),
        ("lfm2", "attention.head_count_kv", counts(&[1, 0, 2, 0]), "the same number"),
        ("lfm2", "attention.head_count_kv", counts(&[0, 0, 3, 0]), "a divisor"),
        ("lfm2", "attention.head_count_kv", flags(&[true; 4]), "the same number"),
        ("lfm2", "attention.head_count_kv", None, "missing"),
        ("lfm2", "shortconv.l_cache", None, "missing"),
        ("lfm2", "shortconv.l_cache", n(1000), "found 1000"),
        ("lfm2-moe", "expert_gating_func", n(1), "2 (sigmoid)"),
        ("lfm2-moe", "leading_dense_block_count", None, "missing"),
        ("nemotron-h", "feed_forward_length", counts(&[0, 96, 0, 0, 97]), "the same number"),
        ("nemotron-h", "attention.head_count_kv", counts(&[0; 9]), "each of the 5 layers"),
    ] {
        cases.push((name, key.to_owned(), value, expected));
    }
    let mut sound: BTreeMap<&str, (Golden, PathBuf)> = BTreeMap::new();
    for (name, key, value, expected) in cases {
        let (_, sound) = sound.entry(name).or_insert_with(|| {
            let golden = golden(name);
            let path = golden.gguf().expect("a file");
            (golden, path)
        });
        let arch = Gguf::open(sound).expect("sound").metadata()["general.architecture"].clone();
        let GgufValue::String(arch) = arch else { panic!("{arch:?}") };
        let key = format!("{arch}.{key}");
        let told = opened(sound, &[(&key, value.clone())]).err();
        let told = told.unwrap_or_else(|| panic!("{key} = {value:?} was accepted"));
        assert!(told.contains(&key) && told.contains(expected), "{key} = {value:?}: {told}");
        assert!(!told.contains('\n'), "{told:?}");
    }
}

#[test]
fn layers_that_a_file_lies_about_are_refused_by_their_tensors() {
    let counts = |list: &[u32]| Some(GgufValue::Array(GgufArray::U32(list.to_vec())));
    for (name, key, value, tensor) in [
        ("lfm2", "lfm2.attention.head_count_kv", counts(&[2; 4]), "`blk.0.attn_q.weight`"),
        (
            "lfm2",
            "lfm2.attention.head_count_kv",
            counts(&[0; 4]),
            "`blk.2.shortconv.in_proj.weight`",
        ),
        (
            "qwen3-5",
            "qwen35.full_attention_interval",
            Some(GgufValue::U32(2)),
            "`blk.1.attn_q.weight`",
        ),
        ("qwen3-5", "qwen35.ssm.inner_size", Some(GgufValue::U32(128)), "`blk.0.attn_qkv.weight`"),
        ("jamba", "jamba.ssm.time_step_rank", Some(GgufValue::U32(4)), "`blk.0.ssm_x.weight`"),
        ("mamba", "mamba.ssm.state_size", Some(GgufValue::U32(4)), "`blk.0.ssm_x.weight`"),
        (
            "rwkv7",
            "rwkv7.attention.gate_lora_rank",
            Some(GgufValue::U32(8)),
            "`blk.0.time_mix_g1.weight`",
        ),
        ("mamba2", "mamba2.ssm.group_count", Some(GgufValue::U32(4)), "`blk.0.ssm_in.weight`"),
    ] {
        let golden = golden(name);
        let sound = golden.gguf().expect("a file");
        let told = opened(&sound, &[(key, value.clone())]).expect_err(key);
        assert!(told.contains(tensor) && !told.contains('\n'), "{key} = {value:?}: {told}");
    }
}

#[test]
fn scales_that_a_file_of_minicpm_leaves_out_are_those_of_the_published_models() {
    for (name, n_layers) in [("minicpm", 3.0_f32), ("minicpm3", 3.0)] {
        let golden = golden(name);
        let sound = golden.gguf().expect("a file");
        let keys = ["embedding_scale", "residual_scale", "logit_scale"];
        let keys = keys.map(|key| format!("{name}.{key}"));
        let edits = keys.each_ref().map(|key| (key.as_str(), None));
        let spec = opened(&sound, &edits).expect(name).spec().expect(name);
        let hidden = spec.hidden_size as f32;
        let found = [spec.embedding_scale, spec.layers[0].wiring.scale, spec.logit_scale];
        for (found, expected) in
            found.into_iter().zip([12.0, 1.4 / n_layers.sqrt(), 256.0 / hidden])
        {
            assert!((found - expected).abs() < 1e-5 * expected, "{name}: {found}, not {expected}");
        }
    }
}

#[test]
fn what_a_fuzzer_starts_from_is_sound() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/gguf_model");
    let mut n_seeds = 0;
    for entry in std::fs::read_dir(seeds).expect("seeds") {
        let path = entry.expect("entry").path();
        let opened = ModelFiles::open(&path).and_then(|files| check(&files));
        opened.unwrap_or_else(|error| panic!("{error}"));
        n_seeds += 1;
    }
    assert!(n_seeds >= 6, "{n_seeds} seeds");
}

#[test]
fn a_state_that_would_grow_with_every_token_is_refused_by_its_tensor() {
    let folder = tempfile::tempdir().expect("temp");
    let path = folder.path().join("model.gguf");
    for (name, tensor) in
        [("mamba2", "blk.1.ssm_a"), ("mamba", "blk.0.ssm_a"), ("qwen3-5", "blk.0.ssm_a")]
    {
        let golden = golden(name);
        let sound = golden.gguf().expect("a file");
        let files = ModelFiles::open(&sound).expect(name);
        let rates = files.tensors().get(tensor).expect(tensor).data.to_vec();
        let mut bytes = std::fs::read(&sound).expect("a file");
        let places = bytes.windows(rates.len()).enumerate().filter(|(_, data)| *data == rates);
        let places: Vec<usize> = places.map(|(place, _)| place).collect();
        let [place] = places[..] else { panic!("{name}: its bytes are at {places:?}") };
        // The sign of the last rate.
        bytes[place + rates.len() - 1] ^= 0x80;
        std::fs::write(&path, bytes).expect("written");
        let files = ModelFiles::open(&path).expect(name);
        let error = load_cpu(&files, &LoadOptions::default()).expect_err(name).to_string();
        let expected = format!("tensor `{tensor}`: expected rates of decay, which are at most 0");
        assert!(error.contains(&expected) && !error.contains('\n'), "{error}");
    }
}
