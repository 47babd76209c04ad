//! Encoder-decoder models.

use pelton_base::TokenId;

use super::{Checkpoint, all, reference, rows, tokens};

/// A model of an encoder and a decoder, and its reference logits.
#[derive(Clone, Debug)]
pub struct GoldenSeq2Seq {
    /// The model's files.
    pub checkpoint: Checkpoint,
    /// The tokens that the encoder reads.
    pub source: Vec<TokenId>,
    /// The tokens that the decoder begins with.
    pub first: Vec<TokenId>,
    /// The tokens that it goes on with.
    pub greedy: Vec<TokenId>,
    /// One row per token of the decoder, without the last one.
    pub logits: Vec<Vec<f32>>,
}

/// Every encoder-decoder model, by name.
///
/// # Panics
///
/// When a file is missing or malformed: this is for tests.
pub fn encoder_decoders() -> Vec<GoldenSeq2Seq> {
    all("seq2seq").map(GoldenSeq2Seq::read).collect()
}

impl GoldenSeq2Seq {
    fn read(checkpoint: Checkpoint) -> Self {
        let reference = reference(&checkpoint);
        Self {
            source: tokens(&reference, "source"),
            first: tokens(&reference, "first"),
            greedy: tokens(&reference, "greedy"),
            logits: rows(&reference, "logits"),
            checkpoint,
        }
    }

    /// `architectures[0]` of its config.
    ///
    /// # Panics
    ///
    /// When the config is no JSON: this is for tests.
    pub fn architecture(&self) -> String {
        let config = std::fs::read(self.checkpoint.file("config.json")).expect("config.json");
        let config: serde_json::Value = serde_json::from_slice(&config).expect("JSON");
        config["architectures"][0].as_str().expect("an architecture").to_owned()
    }

    /// The tokens of a sequence: the source up to a whole block, then those of the decoder without the
    /// last one.
    pub fn tokens(&self, block_size: usize) -> Vec<TokenId> {
        let mut tokens = self.source.clone();
        tokens.resize(tokens.len().next_multiple_of(block_size), TokenId(0));
        tokens.extend_from_slice(&self.first);
        tokens.extend_from_slice(&self.greedy[..self.greedy.len() - 1]);
        tokens
    }
}
