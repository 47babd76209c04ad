//! Tiny random models, as folders and as GGUF files.

use std::collections::BTreeMap;
use std::path::Path;

use pelton_quant::{WeightFormat, for_dtype};
use pelton_tensor::{DType, GgufArray, GgufValue, GgufWriter, TensorView, write_safetensors};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use crate::tokenizer::{MERGES, SPECIAL, texts, tokenizer_json};

/// A chat template in the usual form.
const TEMPLATE: &str = "{%- for message in messages -%}{{- '<|im_start|>' + message['role'] + \
    '\n' + message['content'] + '<|im_end|>\n' -}}{%- endfor -%}{%- if add_generation_prompt -%}\
    {{- '<|im_start|>assistant\n' -}}{%- endif -%}";

/// A tiny Llama; change a field to change its shape.
#[derive(Clone, Debug)]
pub struct TinyModel {
    /// Seed of the weights.
    pub seed: u64,
    /// Width of the residual stream; a multiple of 32, so that every format can hold it.
    pub hidden_size: usize,
    /// Width of the perceptron's hidden layer; a multiple of 32.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub n_layers: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key/value heads.
    pub n_kv_heads: usize,
    /// Vocabulary in tokens, at least 260; rows beyond the tokenizer's are padding.
    pub vocab_size: usize,
    /// Longest context, in tokens.
    pub max_context: usize,
    /// Whether files carry a tokenizer and a chat template.
    pub tokenizer: bool,
}

impl Default for TinyModel {
    fn default() -> Self {
        Self {
            seed: 0,
            hidden_size: 64,
            intermediate_size: 96,
            n_layers: 2,
            n_heads: 4,
            n_kv_heads: 2,
            vocab_size: 288,
            max_context: 256,
            tokenizer: true,
        }
    }
}

/// A tensor to write: its two names, shape and values.
struct Tensor {
    name: String,
    gguf_name: String,
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl TinyModel {
    /// Writes `config.json`, `model.safetensors` (f32) and, where asked for, `tokenizer.json` and
    /// `tokenizer_config.json`.
    ///
    /// # Panics
    ///
    /// When a file cannot be written: this is for tests.
    pub fn write_folder(&self, folder: &Path) {
        std::fs::create_dir_all(folder).expect("a folder for the model");
        let write = |name: &str, value: &serde_json::Value| {
            std::fs::write(folder.join(name), value.to_string()).expect(name);
        };
        write(
            "config.json",
            &json!({
                "architectures": ["LlamaForCausalLM"], "model_type": "llama",
                "hidden_size": self.hidden_size, "intermediate_size": self.intermediate_size,
                "num_hidden_layers": self.n_layers, "num_attention_heads": self.n_heads,
                "num_key_value_heads": self.n_kv_heads, "vocab_size": self.vocab_size,
                "max_position_embeddings": self.max_context, "rms_norm_eps": 1e-5,
                "rope_theta": 10000.0, "tie_word_embeddings": true,
                "bos_token_id": 0, "eos_token_id": [0, 2],
            }),
        );
        if self.tokenizer {
            write("tokenizer.json", &tokenizer_json());
            write(
                "tokenizer_config.json",
                &json!({ "eos_token": SPECIAL[0], "chat_template": TEMPLATE }),
            );
        }
        let tensors = self.tensors();
        let data: Vec<Vec<u8>> = tensors.iter().map(|tensor| f32_bytes(&tensor.values)).collect();
        let views: Vec<TensorView<'_>> = tensors
            .iter()
            .zip(&data)
            .map(|(tensor, data)| TensorView {
                name: &tensor.name,
                dtype: DType::F32,
                shape: &tensor.shape,
                data,
            })
            .collect();
        write_safetensors(&folder.join("model.safetensors"), &views, &BTreeMap::new())
            .expect("model.safetensors");
    }

    /// Writes a GGUF file whose matrices are stored as `dtype`.
    ///
    /// The weights are those of the folder, but rows of q and k mean what they mean in GGUF files
    /// of Llama, so the two models differ.
    ///
    /// # Panics
    ///
    /// When the file cannot be written, or nothing can encode `dtype`: this is for tests.
    pub fn write_gguf(&self, file: &Path, dtype: DType) {
        let format = for_dtype(dtype).expect("a type that can be written");
        let plain = for_dtype(DType::F32).expect("f32");
        let tensors = self.tensors();
        let format_of = |tensor: &Tensor| -> &'static dyn WeightFormat {
            if tensor.shape.len() == 2 { format } else { plain }
        };
        let mut writer = GgufWriter::new();
        self.write_metadata(&mut writer);
        for tensor in &tensors {
            writer.tensor(&tensor.gguf_name, format_of(tensor).dtype(), &tensor.shape);
        }
        let mut data = writer.create(file).expect("a file for the model");
        for tensor in &tensors {
            let format = format_of(tensor);
            let n_bytes = format.dtype().bytes_for(tensor.values.len()).expect("whole blocks");
            let mut bytes = vec![0; n_bytes];
            format.quantize(&tensor.values, &mut bytes);
            data.tensor_data(&bytes).expect("tensor data");
        }
        data.finish().expect("the model");
    }

    fn write_metadata(&self, writer: &mut GgufWriter) {
        let text = |x: &str| GgufValue::String(x.to_owned());
        let strings = |list: Vec<String>| {
            let bytes = list.into_iter().map(String::into_bytes).collect();
            GgufValue::Array(GgufArray::Strings(bytes))
        };
        writer.metadata("general.architecture", text("llama"));
        for (key, n) in [
            ("context_length", self.max_context),
            ("embedding_length", self.hidden_size),
            ("block_count", self.n_layers),
            ("feed_forward_length", self.intermediate_size),
            ("attention.head_count", self.n_heads),
            ("attention.head_count_kv", self.n_kv_heads),
            ("vocab_size", self.vocab_size),
        ] {
            writer.metadata(format!("llama.{key}"), GgufValue::U32(n as u32));
        }
        writer.metadata("llama.attention.layer_norm_rms_epsilon", GgufValue::F32(1e-5));
        if !self.tokenizer {
            return;
        }
        let mut tokens = texts();
        let mut kinds: Vec<i32> =
            (0..tokens.len()).map(|id| if id < SPECIAL.len() { 3 } else { 1 }).collect();
        for id in tokens.len()..self.vocab_size {
            tokens.push(format!("[PAD{id}]"));
            kinds.push(5);
        }
        let merges = MERGES.iter().map(|(a, b)| format!("{a} {b}")).collect();
        writer
            .metadata("tokenizer.ggml.model", text("gpt2"))
            .metadata("tokenizer.ggml.pre", text("gpt-2"))
            .metadata("tokenizer.ggml.tokens", strings(tokens))
            .metadata("tokenizer.ggml.token_type", GgufValue::Array(GgufArray::I32(kinds)))
            .metadata("tokenizer.ggml.merges", strings(merges))
            .metadata("tokenizer.ggml.bos_token_id", GgufValue::U32(0))
            .metadata("tokenizer.ggml.eos_token_id", GgufValue::U32(0))
            .metadata("tokenizer.ggml.eot_token_id", GgufValue::U32(2))
            .metadata("tokenizer.ggml.add_bos_token", GgufValue::Bool(false))
            .metadata("tokenizer.chat_template", text(TEMPLATE));
    }

    fn tensors(&self) -> Vec<Tensor> {
        let mut rng = StdRng::seed_from_u64(self.seed);
        let mut tensors = Vec::new();
        let mut add = |name: String, gguf_name: String, shape: &[usize]| {
            let n: usize = shape.iter().product();
            let values = match shape {
                [_, k] => {
                    // Variance 1 / k, so that no layer blows up.
                    let scale = (3.0 / *k as f32).sqrt();
                    (0..n).map(|_| rng.random_range(-scale..scale)).collect()
                }
                _ => (0..n).map(|_| rng.random_range(0.5..1.5)).collect(),
            };
            tensors.push(Tensor {
                name: format!("{name}.weight"),
                gguf_name: format!("{gguf_name}.weight"),
                shape: shape.to_vec(),
                values,
            });
        };
        let (hidden, ffn) = (self.hidden_size, self.intermediate_size);
        let kv_width = hidden / self.n_heads * self.n_kv_heads;
        add("model.embed_tokens".into(), "token_embd".into(), &[self.vocab_size, hidden]);
        for layer in 0..self.n_layers {
            let parts: [(&str, &str, &[usize]); 9] = [
                ("input_layernorm", "attn_norm", &[hidden]),
                ("self_attn.q_proj", "attn_q", &[hidden, hidden]),
                ("self_attn.k_proj", "attn_k", &[kv_width, hidden]),
                ("self_attn.v_proj", "attn_v", &[kv_width, hidden]),
                ("self_attn.o_proj", "attn_output", &[hidden, hidden]),
                ("post_attention_layernorm", "ffn_norm", &[hidden]),
                ("mlp.gate_proj", "ffn_gate", &[ffn, hidden]),
                ("mlp.up_proj", "ffn_up", &[ffn, hidden]),
                ("mlp.down_proj", "ffn_down", &[hidden, ffn]),
            ];
            for (name, gguf_name, shape) in parts {
                let name = format!("model.layers.{layer}.{name}");
                add(name, format!("blk.{layer}.{gguf_name}"), shape);
            }
        }
        add("model.norm".into(), "output_norm".into(), &[hidden]);
        tensors
    }
}

fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}
