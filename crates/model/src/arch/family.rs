//! A family of models: the names of its checkpoints, how they are stored, and its spec.

use super::{ArchSpec, ClassHead, Stored, llama};
use crate::config::HfConfig;
use crate::fields::ConfigError;
use pelton_base::limits;

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
    /// Whether `intermediate_size` may be a list with the width of each layer.
    pub(crate) lists_widths: bool,
    /// Kinds of layers, beside those of attention, that `layer_types` may name.
    pub(crate) layer_kinds: &'static [&'static str],
    /// The field that spells the kinds of layers in one word, for configs without `layer_types`.
    pub(crate) layer_pattern: Option<LayerPattern>,
    /// How Hugging Face folders store the tensors.
    pub(crate) hf: Stored,
    /// How GGUF files store the tensors.
    pub(crate) gguf: Stored,
    /// The layers of its models `..ForSequenceClassification`; `None` where these are not read.
    pub(crate) classifier: Option<ClassHead>,
    /// The family's name in the GGUF files that Pelton writes; `None` where it writes none.
    pub(crate) written_as: Option<&'static str>,
    /// The same of models with experts, where that is another name.
    pub(crate) written_with_experts: Option<&'static str>,
    /// Whether the family alone says by what embeddings are scaled, so that files do not.
    pub(crate) implies_embedding_scale: bool,
    /// Builds the spec.
    ///
    /// # Errors
    ///
    /// Names the field that this architecture cannot work with.
    pub spec: fn(&HfConfig) -> Result<ArchSpec, ConfigError>,
}

/// The field that says every how many layers one attends, which files call the same.
pub(crate) const INTERVAL: &str = "full_attention_interval";

/// The field that says whether perceptrons see what attention added, which files call the same.
pub(crate) const PARALLEL: &str = "use_parallel_residual";

/// A field that spells the kinds of layers in one word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerPattern {
    pub(crate) field: &'static str,
    /// The kind that each letter stands for.
    pub(crate) kinds: &'static [(char, &'static str)],
}

impl LayerPattern {
    /// The kinds of a word; a letter that stands for nothing becomes a kind of its own, which no family
    /// has.
    pub(crate) fn read(&self, word: &str) -> Vec<String> {
        let kind = |letter: char| self.kinds.iter().find(|(known, _)| *known == letter);
        let of = |letter| kind(letter).map_or(letter.to_string(), |(_, kind)| (*kind).to_owned());
        word.chars().take(limits::MODEL_LAYERS).map(of).collect()
    }
}

/// The value of a field that a config leaves out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Preset {
    Text(&'static str),
    Number(f64),
    Flag(bool),
    /// This multiple of `hidden_size`.
    TimesHidden(u64),
}

impl Arch {
    /// Whether checkpoints of every quantization method are read. Families that store their
    /// matrices transposed are read only with the methods that are known to transpose them back.
    pub fn reads_quantized(&self) -> bool {
        !self.hf.is_transposed
    }

    /// Whether models of this family can be written as GGUF files.
    pub fn is_exported(&self) -> bool {
        self.written_as.is_some()
    }

    /// Whether files say every how many layers one attends, and not which.
    pub(crate) fn has_interval(&self) -> bool {
        self.has_default(INTERVAL)
    }

    /// Whether configs of the family have this field, said or not.
    pub(crate) fn has_default(&self, field: &str) -> bool {
        self.defaults.iter().any(|(name, _)| *name == field)
    }

    /// The entry of a family without quirks; the other entries are variants of it.
    pub(crate) const PLAIN: Self = Self {
        names: &[],
        model_types: &[],
        gguf_names: &[],
        spellings: &[],
        defaults: &[],
        partial_rotary: false,
        lists_widths: false,
        layer_kinds: &[],
        layer_pattern: None,
        hf: Stored::HF,
        gguf: Stored::GGUF,
        classifier: Some(ClassHead::SCORE),
        written_as: None,
        written_with_experts: None,
        implies_embedding_scale: false,
        spec: llama::spec,
    };
}
