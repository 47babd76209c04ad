//! Golden checkpoints: tiny models of every family, and what the reference implementation computes
//! with them.
//!
//! The files are in `crates/model/tests`: `golden` holds decoders, `encoders` holds encoders,
//! `seq2seq` holds models of both, `rankers` holds classifiers, and `make.py` in each folder
//! describes how they are made. Weights are drawn from a seed; those of quantized checkpoints, which
//! are not, are stored once where several have them. GGUF files are written by recipes.
//! None has a tokenizer; [`Checkpoint::write_folder`] and [`Checkpoint::write_gguf`] add one with
//! one token per byte, so that every command of the binary accepts the model.

mod checkpoint;
mod computed;
mod draws;
mod parts;
mod ranker;
mod recipe;
mod seq2seq;
mod tokens;

use std::path::{Path, PathBuf};

use pelton_base::TokenId;
use pelton_tensor::{Safetensors, TensorSource};

pub use checkpoint::Checkpoint;
pub use ranker::{GoldenPair, GoldenRanker, ranker_named, rankers};
pub use recipe::crc32;
pub use seq2seq::{GoldenSeq2Seq, encoder_decoders};

/// Decoders that cannot be written as GGUF although their family can, and the part of the model
/// that the error names: the format has no key for it.
pub const NOT_IN_GGUF: &[(&str, &str)] = &[
    // Rotates halves of a head instead of neighbours.
    ("deepseek-v3-dense", "attention in layer 0"),
    // Scales cosines and sines beside the scores.
    ("deepseek-v3-yarn", "rotary embeddings"),
    // Norms before it gates, and bounds its time steps.
    ("falcon-h1-bias", "a recurrence beside attention in layer 0"),
    // Divide scores by another number than the width of a head, which readers assume in small models.
    ("gemma2", "attention in layer 0"),
    ("gemma3", "attention in layer 0"),
    // Lacks the norms of queries and keys that readers expect with 128 experts.
    ("llama4", "attention in layer 0"),
];

/// A decoder, and its reference logits.
#[derive(Debug)]
pub struct GoldenDecoder {
    /// The model's files.
    pub checkpoint: Checkpoint,
    /// Context that the reference served, in tokens; `None` for all of the model's.
    pub max_context: Option<usize>,
    /// The prompt.
    pub prompt: Vec<TokenId>,
    /// Greedy continuation of the prompt.
    pub greedy: Vec<TokenId>,
    /// One row per token of prompt and continuation, without the last token, with the logits that
    /// `columns` says.
    pub logits: Vec<Vec<f32>>,
    /// Which logits the rows have.
    pub columns: Columns,
}

/// Which logits of a row a reference has: row `i` has those of the tokens `i % n`, `i % n + n`, and
/// so on for some `n`.
///
/// Rows have at least as many logits as hidden states have numbers, so an error in a hidden state
/// shows in its row.
#[derive(Clone, Copy, Debug)]
pub struct Columns {
    stride: usize,
}

impl Columns {
    /// The logits of one row that the reference has.
    pub fn of<T: Copy>(self, row: usize, logits: &[T]) -> Vec<T> {
        logits.iter().skip(row % self.stride).step_by(self.stride).copied().collect()
    }

    /// The logits of all rows that the reference has.
    pub fn of_all(self, rows: &[Vec<f32>]) -> Vec<Vec<f32>> {
        rows.iter().enumerate().map(|(i, row)| self.of(i, row)).collect()
    }
}

/// An encoder, and its reference vectors.
#[derive(Debug)]
pub struct GoldenEncoder {
    /// The model's files.
    pub checkpoint: Checkpoint,
    /// The tokens of each text.
    pub texts: Vec<Vec<TokenId>>,
    /// The mean of each text's rows of the last layer.
    pub means: Vec<Vec<f32>>,
}

/// Every decoder, by name.
///
/// # Panics
///
/// When a file is missing or malformed: this is for tests.
pub fn decoders() -> Vec<GoldenDecoder> {
    all("golden").map(GoldenDecoder::read).collect()
}

/// The decoder of this name.
///
/// # Panics
///
/// When there is none, or a file is malformed: this is for tests.
pub fn decoder_named(name: &str) -> GoldenDecoder {
    decoder_at(&root("golden").join(name))
}

/// The decoder of this folder, which is made as the golden ones are.
///
/// # Panics
///
/// When a file is missing or malformed: this is for tests.
pub fn decoder_at(folder: &Path) -> GoldenDecoder {
    GoldenDecoder::read(Checkpoint::at(folder))
}

/// Every encoder, by name.
///
/// # Panics
///
/// When a file is missing or malformed: this is for tests.
pub fn encoders() -> Vec<GoldenEncoder> {
    all("encoders").map(GoldenEncoder::read).collect()
}

/// The folder of one kind.
fn root(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests").join(kind)
}

/// The checkpoints of one kind.
fn all(kind: &str) -> impl Iterator<Item = Checkpoint> {
    let entries = std::fs::read_dir(root(kind)).expect("the folder of golden checkpoints");
    let mut folders: Vec<PathBuf> = entries
        .map(|entry| entry.expect("a folder entry").path())
        .filter(|path| path.join("config.json").exists())
        .collect();
    folders.sort();
    folders.into_iter().map(|folder| Checkpoint::at(&folder))
}

impl GoldenDecoder {
    fn read(checkpoint: Checkpoint) -> Self {
        let case = std::fs::read(checkpoint.file("case.json")).expect("case.json");
        let case: serde_json::Value = serde_json::from_slice(&case).expect("case.json is JSON");
        let reference = reference(&checkpoint);
        Self {
            max_context: case["max_context"].as_u64().map(|n| n as usize),
            columns: Columns { stride: case["stride"].as_u64().map_or(1, |n| n as usize) },
            prompt: tokens(&reference, "prompt"),
            greedy: tokens(&reference, "greedy"),
            logits: rows(&reference, "logits"),
            checkpoint,
        }
    }

    /// Prompt and continuation without the last token: the input of all reference rows.
    pub fn tokens(&self) -> Vec<TokenId> {
        let n = self.greedy.len() - 1;
        self.prompt.iter().chain(&self.greedy[..n]).copied().collect()
    }
}

impl GoldenEncoder {
    fn read(checkpoint: Checkpoint) -> Self {
        let reference = reference(&checkpoint);
        let mut all = tokens(&reference, "tokens").into_iter();
        let lengths = words(&reference, "lengths").map(u32::from_le_bytes);
        Self {
            texts: lengths.map(|n| all.by_ref().take(n as usize).collect()).collect(),
            means: rows(&reference, "mean"),
            checkpoint,
        }
    }
}

fn reference(checkpoint: &Checkpoint) -> Safetensors {
    Safetensors::open_file(&checkpoint.file("reference.safetensors")).expect("a reference")
}

/// The 32-bit elements of a tensor.
fn words(file: &Safetensors, name: &str) -> impl Iterator<Item = [u8; 4]> {
    file.get(name).expect(name).data.as_chunks::<4>().0.to_vec().into_iter()
}

fn tokens(file: &Safetensors, name: &str) -> Vec<TokenId> {
    words(file, name).map(|word| TokenId(u32::from_le_bytes(word))).collect()
}

fn rows(file: &Safetensors, name: &str) -> Vec<Vec<f32>> {
    let values: Vec<f32> = words(file, name).map(f32::from_le_bytes).collect();
    values.chunks(file.get(name).expect(name).shape[1]).map(<[f32]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reference_has_a_row_per_token() {
        let decoders = decoders();
        assert!(decoders.len() >= 67, "{} decoders", decoders.len());
        for golden in &decoders {
            assert_eq!(golden.logits.len(), golden.tokens().len(), "{}", golden.checkpoint.name());
        }
        let encoders = encoders();
        assert!(encoders.len() >= 8, "{} encoders", encoders.len());
        for golden in &encoders {
            assert_eq!(golden.means.len(), golden.texts.len(), "{}", golden.checkpoint.name());
        }
    }

    #[test]
    fn stored_parts_and_recipes_give_the_original_bytes() {
        let temp = tempfile::tempdir().expect("a folder");
        let mut n_files = 0;
        for checkpoint in
            ["golden", "encoders", "seq2seq", "checkpoints", "rankers"].into_iter().flat_map(all)
        {
            // Both compare the bytes with a checksum of the original file.
            checkpoint.write_bare_folder(&temp.path().join(checkpoint.name()));
            if checkpoint.has_gguf() {
                checkpoint.write_bare_gguf(&temp.path().join("model.gguf"));
                n_files += 1;
            }
        }
        assert!(n_files >= 50, "{n_files} GGUF files");
    }
}
