//! What is known of a family: the names of its checkpoints, how these are stored, and its spec.

use super::{ArchSpec, Stored, llama};
use crate::config::HfConfig;
use crate::fields::ConfigError;

/// Registry entry: the names a checkpoint may declare, and how to read its files.
#[derive(Debug)]
pub struct Arch {
    /// Values of `architectures[0]` in `config.json` that select this entry.
    pub names: &'static [&'static str],
    /// Values of `model_type` in `config.json`, used where `architectures` is missing.
    pub model_types: &'static [&'static str],
    /// Values of `general.architecture` in GGUF metadata that select this entry; none where such
    /// files are not read.
    pub gguf_names: &'static [&'static str],
    /// Fields of `config.json` that the family spells in its own way: the usual name, and its own.
    pub(crate) spellings: &'static [(&'static str, &'static str)],
    /// Fields that configs of the family may leave out.
    pub(crate) defaults: &'static [(&'static str, Preset)],
    /// Whether a part of each head may be rotated and the rest left alone.
    pub(crate) partial_rotary: bool,
    /// How Hugging Face folders store the tensors.
    pub(crate) hf: Stored,
    /// How GGUF files store the tensors.
    pub(crate) gguf: Stored,
    /// What GGUF files that are written of this family call it; `None` where none are.
    pub(crate) written_as: Option<&'static str>,
    /// Builds the spec.
    ///
    /// # Errors
    ///
    /// Names the field that this architecture cannot work with.
    pub spec: fn(&HfConfig) -> Result<ArchSpec, ConfigError>,
}

/// What a field is where the config does not say.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Preset {
    Text(&'static str),
    Number(f64),
    Flag(bool),
    /// So many times `hidden_size`.
    TimesHidden(u64),
}

impl Arch {
    /// Whether matrices that a checkpoint's method quantized are read, whatever the method. Where the
    /// family stores its matrices transposed only those methods are that are known to turn them.
    pub fn reads_quantized(&self) -> bool {
        !self.hf.is_transposed
    }

    /// Whether models of this family are written as GGUF files, too.
    pub fn is_exported(&self) -> bool {
        self.written_as.is_some()
    }

    /// The entry of a family without quirks; the other entries are variants of it.
    pub(crate) const PLAIN: Self = Self {
        names: &[],
        model_types: &[],
        gguf_names: &[],
        spellings: &[],
        defaults: &[],
        partial_rotary: false,
        hf: Stored::HF,
        gguf: Stored::GGUF,
        written_as: None,
        spec: llama::spec,
    };
}
