//! The equality laws through a real decoder: a random two-layer Llama.

use pelton_base::{FinishReason, SamplingParams, TokenId};
use pelton_engine::{
    Engine, EngineConfig, EngineMetrics, KvMemory, ModelExecutor, ModelExecutorConfig, NewRequest,
    TokenStream,
};
use pelton_model::{LoadOptions, ModelFiles, load_cpu};
use pelton_tensor::{DType, TensorView, write_safetensors};
use std::collections::BTreeMap;
use std::path::PathBuf;

const VOCAB: usize = 96;

/// Writes the checkpoint once per test, under the test's own name.
fn checkpoint(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    let config = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 96,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": true, "hidden_act": "silu", "eos_token_id": 0}"#;
    std::fs::write(folder.join("config.json"), config).expect("config.json");
    let mut shapes: Vec<(String, Vec<usize>)> = vec![
        ("model.embed_tokens.weight".into(), vec![VOCAB, 64]),
        ("model.norm.weight".into(), vec![64]),
    ];
    for layer in 0..2 {
        for (part, shape) in [
            ("input_layernorm", vec![64]),
            ("post_attention_layernorm", vec![64]),
            ("self_attn.q_proj", vec![64, 64]),
            ("self_attn.k_proj", vec![32, 64]),
            ("self_attn.v_proj", vec![32, 64]),
            ("self_attn.o_proj", vec![64, 64]),
            ("mlp.gate_proj", vec![96, 64]),
            ("mlp.up_proj", vec![96, 64]),
            ("mlp.down_proj", vec![64, 96]),
        ] {
            shapes.push((format!("model.layers.{layer}.{part}.weight"), shape));
        }
    }
    let mut state = 1_u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let data: Vec<Vec<u8>> = shapes
        .iter()
        .map(|(_, shape)| {
            let n: usize = shape.iter().product();
            (0..n).flat_map(|_| (random() * 0.4).to_le_bytes()).collect()
        })
        .collect();
    let tensors: Vec<TensorView<'_>> = shapes
        .iter()
        .zip(&data)
        .map(|((name, shape), data)| TensorView { name, dtype: DType::F32, shape, data })
        .collect();
    write_safetensors(&folder.join("model.safetensors"), &tensors, &BTreeMap::new())
        .expect("model.safetensors");
    folder
}

fn requests() -> Vec<NewRequest> {
    (0..8_u32)
        .map(|i| NewRequest {
            prompt: (0..3 + i * 5 % 17).map(|j| TokenId((i * 31 + j * 7) % 96)).collect(),
            sampling: SamplingParams {
                temperature: if i % 2 == 0 { 0.0 } else { 1.0 },
                seed: u64::from(i),
                ..SamplingParams::default()
            },
            choice: 0,
            max_tokens: 10 + i as usize,
            stop_tokens: Vec::new(),
        })
        .collect()
}

fn collect(mut stream: TokenStream) -> Vec<TokenId> {
    let mut tokens = Vec::new();
    while let Some(event) = stream.blocking_recv() {
        tokens.extend(event.tokens.iter().map(|sampled| sampled.token));
        if let Some((reason, _)) = event.finish {
            assert_eq!(reason, FinishReason::Length);
        }
    }
    tokens
}

fn answers(
    name: &str,
    n_blocks: u32,
    config: EngineConfig,
    one_by_one: bool,
) -> (Vec<Vec<TokenId>>, EngineMetrics) {
    let files = ModelFiles::open(&checkpoint(name)).expect("a model");
    let options = LoadOptions { n_threads: Some(1), ..LoadOptions::default() };
    let decoder = load_cpu(&files, &options).expect("it loads");
    let memory = ModelExecutorConfig { block_size: 4, memory: KvMemory::Blocks(n_blocks) };
    let executor = ModelExecutor::new(decoder, memory).expect("KV memory");
    let engine = Engine::spawn(executor, config);
    let submit = |request| engine.submit(request).expect("taken");
    let answers = if one_by_one {
        requests().into_iter().map(|request| collect(submit(request))).collect()
    } else {
        let streams: Vec<TokenStream> = requests().into_iter().map(submit).collect();
        streams.into_iter().map(collect).collect()
    };
    engine.shutdown(true);
    engine.join();
    (answers, engine.metrics())
}

#[test]
fn batched_chunked_and_preempted_answer_like_alone_on_a_real_decoder() {
    let plain = EngineConfig::default();
    let (alone, _) = answers("alone", 64, plain.clone(), true);
    assert!(alone.iter().enumerate().all(|(i, tokens)| tokens.len() == 10 + i));
    let (batched, _) = answers("batched", 64, plain.clone(), false);
    assert_eq!(batched, alone);
    let chunks = EngineConfig { max_batch_tokens: 7, max_chunk_tokens: 3, ..plain.clone() };
    assert_eq!(answers("chunked", 64, chunks, false).0, alone);
    let (preempted, metrics) = answers("preempted", 13, plain, false);
    assert!(metrics.n_preemptions > 0, "{metrics:?}");
    assert_eq!(preempted, alone);
}
