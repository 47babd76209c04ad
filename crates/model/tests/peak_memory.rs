//! Loading holds the packed weights and a band of what is stored, and reads every stored byte once.
//!
//! One test alone in its process, because it is the process that is measured: resident pages of the
//! stored files whenever something has been packed, and the largest resident set of all. The same holds
//! where the weights are rounded while they are packed.
#![cfg(target_os = "linux")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;

use pelton_kernels::BAND_BYTES;
use pelton_model::{LoadOptions, ModelFiles, RoundTo, load_cpu};
use pelton_tensor::{DType, TensorView, write_safetensors};
use serde_json::json;

const HIDDEN: usize = 512;
/// Makes the embedding table and the head three bands each.
const VOCAB: usize = 3 * BAND_BYTES / (4 * HIDDEN);
/// Bytes that pages around a range and the process itself may add.
const SLACK: u64 = 6 << 20;

/// Writes a Llama of one layer in f32, in three shards with a matrix of three bands in two of them.
fn write_model(folder: &Path) -> u64 {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": 1024,
        "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 8,
        "vocab_size": VOCAB, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
        "attention_bias": true, "tie_word_embeddings": false,
    });
    std::fs::write(folder.join("config.json"), config.to_string()).expect("written");
    let square = ["q_proj", "k_proj", "v_proj", "o_proj"].iter().flat_map(|name| {
        let stem = format!("model.layers.0.self_attn.{name}");
        [(format!("{stem}.weight"), vec![HIDDEN, HIDDEN]), (format!("{stem}.bias"), vec![HIDDEN])]
    });
    let mlp =
        [("gate_proj", [1024, HIDDEN]), ("up_proj", [1024, HIDDEN]), ("down_proj", [HIDDEN, 1024])];
    let mlp = mlp.map(|(name, dims)| (format!("model.layers.0.mlp.{name}.weight"), dims.to_vec()));
    let norms = ["layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm"]
        .map(|name| (format!("model.{name}.weight"), vec![HIDDEN]));
    let table = |name: &str| vec![(name.to_owned(), vec![VOCAB, HIDDEN])];
    let shards = [
        table("model.embed_tokens.weight"),
        square.chain(mlp).chain(norms).collect(),
        table("lm_head.weight"),
    ];
    let (mut weight_map, mut n_bytes) = (BTreeMap::new(), 0);
    for (i, shard) in shards.iter().enumerate() {
        let file = format!("model-{i}.safetensors");
        let most = shard.iter().map(|(_, shape)| shape.iter().product::<usize>() * 4).max();
        let zeros = vec![0; most.expect("tensors")];
        let views: Vec<_> = shard
            .iter()
            .map(|(name, shape)| {
                let data = &zeros[..shape.iter().product::<usize>() * 4];
                n_bytes += data.len() as u64;
                weight_map.insert(name.clone(), file.clone());
                TensorView { name, dtype: DType::F32, shape, data }
            })
            .collect();
        write_safetensors(&folder.join(&file), &views, &BTreeMap::new()).expect("written");
    }
    let index = json!({ "weight_map": weight_map });
    std::fs::write(folder.join("model.safetensors.index.json"), index.to_string())
        .expect("written");
    n_bytes
}

/// Bytes behind a name in `/proc/self/status` or in one mapping of `/proc/self/smaps`.
fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("listed by the system");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

fn status(name: &str) -> u64 {
    field(&std::fs::read_to_string("/proc/self/status").expect("status"), name)
}

/// Bytes of the shards that are in this process's memory.
fn resident_bytes(folder: &Path) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
    let name = format!("{}/model-", folder.display());
    smaps.match_indices(&name).map(|(at, _)| field(&smaps[at..], "Rss:")).sum()
}

#[test]
fn a_sharded_model_is_never_there_twice_and_read_once() {
    let folder = tempfile::tempdir().expect("temp");
    let n_stored = write_model(folder.path());
    // The smaller first, so that the allocator has nothing to reuse for the larger.
    for to in [RoundTo::find("q4_k"), None] {
        check(folder.path(), n_stored, to);
    }
}

fn check(folder: &Path, n_stored: u64, to: Option<RoundTo>) {
    let mut files = ModelFiles::open(folder).expect("opens");
    if let Some(to) = to {
        files.round_to(to).expect("floats");
    }
    let (most, last) = (Cell::new(0), Cell::new(None));
    let progress = |at: pelton_model::LoadProgress| {
        most.set(most.get().max(resident_bytes(folder)));
        last.set(Some(at));
    };
    let options =
        LoadOptions { n_threads: Some(2), progress: Some(&progress), ..LoadOptions::default() };
    let before = status("VmRSS:");
    // Forgets the peak of writing; where that is not allowed the peak of loading is above it anyway.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let decoder = load_cpu(&files, &options).expect("loads");
    let (peak, packed) = (status("VmHWM:"), decoder.memory_bytes());

    let last = last.get().expect("progress was told");
    assert_eq!((last.n_bytes, last.n_total_bytes), (n_stored, n_stored), "each byte once");
    let band = BAND_BYTES as u64;
    assert!(most.get() < band + SLACK, "{} bytes of the files in memory", most.get());
    let rest = resident_bytes(folder);
    assert!(rest < SLACK, "{rest} bytes of the files in memory after loading");
    let grown = peak - before;
    assert!(grown < packed + band + SLACK, "{grown} bytes at peak for {packed} of weights");
}
