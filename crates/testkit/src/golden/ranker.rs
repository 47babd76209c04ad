//! Golden classifiers: tiny models, and what the reference makes of pairs of texts.

use std::path::Path;

use pelton_tensor::{GgufArray, GgufValue, GgufWriter};
use serde_json::Value;

use super::{Checkpoint, all, root};

/// A classifier, and what the reference makes of pairs.
#[derive(Debug)]
pub struct GoldenRanker {
    /// The model's files.
    pub checkpoint: Checkpoint,
    /// The file of the tokenizer, beside the checkpoints.
    tokenizer: String,
    /// Length to which the reference cuts pairs, in tokens.
    pub max_tokens: usize,
    /// The pairs.
    pub pairs: Vec<GoldenPair>,
}

/// Two texts, and what the reference makes of them.
#[derive(Clone, Debug)]
pub struct GoldenPair {
    /// The first text.
    pub a: String,
    /// The second text.
    pub b: String,
    /// Tokens of the pair.
    pub ids: Vec<u32>,
    /// The kind of each token.
    pub types: Vec<u8>,
    /// One logit per label.
    pub logits: Vec<f32>,
    /// The score by sentence-transformers; of encoders with one label.
    pub score: Option<f64>,
}

/// Every classifier, by name.
///
/// # Panics
///
/// When a file is missing or malformed: this is for tests.
pub fn rankers() -> Vec<GoldenRanker> {
    all("rankers").map(GoldenRanker::read).collect()
}

/// The classifier of this name.
///
/// # Panics
///
/// When there is none, or a file is malformed: this is for tests.
pub fn ranker_named(name: &str) -> GoldenRanker {
    GoldenRanker::read(Checkpoint::at(&root("rankers").join(name)))
}

impl GoldenRanker {
    fn read(checkpoint: Checkpoint) -> Self {
        let text = std::fs::read(checkpoint.file("reference.json")).expect("reference.json");
        let value: Value = serde_json::from_slice(&text).expect("JSON");
        let pairs =
            value["pairs"].as_array().expect("pairs").iter().map(GoldenPair::read).collect();
        Self {
            checkpoint,
            tokenizer: value["tokenizer"].as_str().expect("a name").to_owned(),
            max_tokens: value["max_tokens"].as_u64().expect("a number") as usize,
            pairs,
        }
    }

    /// Writes the model as a folder, with its tokenizer.
    ///
    /// # Panics
    ///
    /// When a file cannot be read or written: this is for tests.
    pub fn write_folder(&self, folder: &Path) {
        self.checkpoint.write_bare_folder(folder);
        let name = format!("tokenizers/{}.json", self.tokenizer);
        let file = root("rankers").join(name);
        std::fs::copy(file, folder.join("tokenizer.json")).expect("tokenizer.json");
    }

    /// Whether there is a GGUF file of the same model.
    pub fn has_gguf(&self) -> bool {
        self.checkpoint.has_gguf()
    }

    /// Writes the GGUF file of the model, with its vocabulary as llama.cpp's converter writes that
    /// of XLM-RoBERTa.
    ///
    /// # Panics
    ///
    /// When there is none, or a file cannot be read or written: this is for tests.
    pub fn write_gguf(&self, path: &Path) {
        self.checkpoint.write_gguf_with(path, add_words);
    }

    /// The number of labels.
    pub fn n_labels(&self) -> usize {
        self.pairs[0].logits.len()
    }
}

/// Adds the words of the tokenizers of this folder, as pieces that begin with a space.
fn add_words(writer: &mut GgufWriter) {
    const N_WORDS: usize = 120;
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"].map(str::to_owned);
    let words = (0..N_WORDS).map(|i| format!("\u{2581}w{i}"));
    let tokens: Vec<Vec<u8>> = special.into_iter().chain(words).map(String::into_bytes).collect();
    let kinds = [3, 2, 3, 3].into_iter().chain([1; N_WORDS]).collect();
    // Pieces of more letters are likelier, so that `w12` is not `w1` and `2`.
    let scores = tokens.iter().map(|token| token.len() as f32 - 20.0).collect();
    writer
        .metadata("tokenizer.ggml.model", GgufValue::String("t5".to_owned()))
        .metadata("tokenizer.ggml.pre", GgufValue::String("default".to_owned()))
        .metadata("tokenizer.ggml.tokens", GgufValue::Array(GgufArray::Strings(tokens)))
        .metadata("tokenizer.ggml.scores", GgufValue::Array(GgufArray::F32(scores)))
        .metadata("tokenizer.ggml.token_type", GgufValue::Array(GgufArray::I32(kinds)))
        .metadata("tokenizer.ggml.add_space_prefix", GgufValue::Bool(true))
        .metadata("tokenizer.ggml.unknown_token_id", GgufValue::U32(1))
        .metadata("tokenizer.ggml.bos_token_id", GgufValue::U32(2))
        .metadata("tokenizer.ggml.eos_token_id", GgufValue::U32(3))
        .metadata("tokenizer.ggml.seperator_token_id", GgufValue::U32(3))
        .metadata("tokenizer.ggml.add_bos_token", GgufValue::Bool(true))
        .metadata("tokenizer.ggml.add_eos_token", GgufValue::Bool(true))
        .metadata("tokenizer.ggml.add_sep_token", GgufValue::Bool(true));
}

impl GoldenPair {
    fn read(value: &Value) -> Self {
        let text = |name: &str| value[name].as_str().expect(name).to_owned();
        let list = |name: &str| value[name].as_array().expect(name).iter();
        let number = |x: &Value| x.as_u64().expect("a number");
        Self {
            a: text("a"),
            b: text("b"),
            ids: list("ids").map(|x| number(x) as u32).collect(),
            types: list("types").map(|x| number(x) as u8).collect(),
            logits: list("logits").map(|x| x.as_f64().expect("a number") as f32).collect(),
            score: value["score"].as_f64(),
        }
    }
}
