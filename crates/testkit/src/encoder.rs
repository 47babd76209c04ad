//! A tiny random encoder, as a folder of sentence-transformers.

use std::collections::BTreeMap;
use std::path::Path;

use pelton_tensor::{DType, TensorView, write_safetensors};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

const HIDDEN: usize = 32;
const FFN: usize = 64;
const VOCAB: usize = 80;

/// A tiny BERT with a WordPiece tokenizer, one token per letter; a text stands between `[CLS]` and
/// `[SEP]`.
#[derive(Clone, Debug)]
pub struct TinyEncoder {
    /// Seed of the weights.
    pub seed: u64,
    /// Longest text, in tokens.
    pub max_tokens: usize,
    /// How rows are pooled, as `1_Pooling/config.json` spells it after `pooling_mode_`.
    pub pooling: &'static str,
    /// Whether vectors are normalised.
    pub normalize: bool,
    /// Prompts by name.
    pub prompts: Vec<(&'static str, &'static str)>,
}

impl Default for TinyEncoder {
    fn default() -> Self {
        Self {
            seed: 0,
            max_tokens: 64,
            pooling: "mean_tokens",
            normalize: true,
            prompts: vec![("query", "query: ")],
        }
    }
}

impl TinyEncoder {
    /// Elements of a vector.
    pub const DIMENSIONS: usize = HIDDEN;

    /// Writes the model, its tokenizer and the files of sentence-transformers.
    ///
    /// # Panics
    ///
    /// When a file cannot be written: this is for tests.
    pub fn write_folder(&self, folder: &Path) {
        std::fs::create_dir_all(folder.join("1_Pooling")).expect("a folder for the model");
        let write = |name: &str, value: Value| {
            std::fs::write(folder.join(name), value.to_string()).expect(name);
        };
        write(
            "config.json",
            json!({
                "architectures": ["BertModel"], "model_type": "bert", "hidden_size": HIDDEN,
                "intermediate_size": FFN, "num_hidden_layers": 2, "num_attention_heads": 2,
                "vocab_size": VOCAB, "max_position_embeddings": self.max_tokens,
                "type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu",
            }),
        );
        write("tokenizer.json", tokenizer());
        let mut modules = vec![
            json!({"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}),
            json!({"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}),
        ];
        if self.normalize {
            let kind = "sentence_transformers.models.Normalize";
            modules.push(json!({"idx": 2, "name": "2", "path": "2_Normalize", "type": kind}));
        }
        write("modules.json", Value::Array(modules));
        let mode = format!("pooling_mode_{}", self.pooling);
        write("1_Pooling/config.json", json!({"word_embedding_dimension": HIDDEN, mode: true}));
        let prompts: serde_json::Map<String, Value> =
            self.prompts.iter().map(|(name, text)| ((*name).to_owned(), json!(text))).collect();
        write("config_sentence_transformers.json", json!({ "prompts": prompts }));
        self.write_weights(folder);
    }

    fn write_weights(&self, folder: &Path) {
        let mut rng = StdRng::seed_from_u64(self.seed);
        let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
        let mut add = |name: String, shape: &[usize], range: std::ops::Range<f32>| {
            let n: usize = shape.iter().product();
            let values = (0..n).flat_map(|_| rng.random_range(range.clone()).to_le_bytes());
            tensors.push((name, shape.to_vec(), values.collect()));
        };
        for (name, n) in [("word", VOCAB), ("position", self.max_tokens), ("token_type", 2)] {
            add(format!("embeddings.{name}_embeddings.weight"), &[n, HIDDEN], -1.0..1.0);
        }
        let mut norms = vec!["embeddings.LayerNorm".to_owned()];
        for layer in 0..2 {
            let stem = format!("encoder.layer.{layer}");
            for (name, n, k) in [
                ("attention.self.query", HIDDEN, HIDDEN),
                ("attention.self.key", HIDDEN, HIDDEN),
                ("attention.self.value", HIDDEN, HIDDEN),
                ("attention.output.dense", HIDDEN, HIDDEN),
                ("intermediate.dense", FFN, HIDDEN),
                ("output.dense", HIDDEN, FFN),
            ] {
                let most = (3.0 / k as f32).sqrt();
                add(format!("{stem}.{name}.weight"), &[n, k], -most..most);
                add(format!("{stem}.{name}.bias"), &[n], -0.1..0.1);
            }
            norms.push(format!("{stem}.attention.output.LayerNorm"));
            norms.push(format!("{stem}.output.LayerNorm"));
        }
        for norm in norms {
            add(format!("{norm}.weight"), &[HIDDEN], 0.5..1.5);
            add(format!("{norm}.bias"), &[HIDDEN], -0.1..0.1);
        }
        let views: Vec<TensorView<'_>> = tensors
            .iter()
            .map(|(name, shape, data)| TensorView { name, dtype: DType::F32, shape, data })
            .collect();
        write_safetensors(&folder.join("model.safetensors"), &views, &BTreeMap::new())
            .expect("model.safetensors");
    }
}

/// A `tokenizer.json` of four special tokens, the letters and digits and what continues them, and a
/// colon.
fn tokenizer() -> Value {
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"];
    let letters = || ('a'..='z').chain('0'..='9');
    let texts = (special.iter().map(|text| (*text).to_owned()))
        .chain(letters().map(String::from))
        .chain(letters().map(|letter| format!("##{letter}")))
        .chain([":".to_owned()]);
    let vocab: serde_json::Map<String, Value> =
        texts.zip(0..).map(|(text, id): (String, u32)| (text, json!(id))).collect();
    let added: Vec<Value> = (special.iter().zip(0..))
        .map(|(text, id): (&&str, u32)| {
            json!({
                "id": id, "content": text, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true,
            })
        })
        .collect();
    let piece = |text: &str| json!({"SpecialToken": {"id": text, "type_id": 0}});
    let sequence = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
    json!({
        // As published: what is cut and padded there is not cut and padded here.
        "version": "1.0", "padding": null, "added_tokens": added,
        "truncation": {
            "direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0,
        },
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true,
        },
        "pre_tokenizer": { "type": "BertPreTokenizer" },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [piece("[CLS]"), sequence("A"), piece("[SEP]")],
            "pair": [piece("[CLS]"), sequence("A"), piece("[SEP]"), sequence("B"), piece("[SEP]")],
            "special_tokens": {
                "[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]},
            },
        },
        "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": true },
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab,
        },
    })
}
