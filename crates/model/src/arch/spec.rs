//! The specification of a model, from which the decoder builds it.

use pelton_base::TokenId;

use super::{Act, LayerSpec, Mixer, Mlp, Multipliers, PlainMlp, Streams};
use crate::config::{HfConfig, Window};
use crate::rope::RopeSpec;

/// The specification of a model, from which the decoder builds it.
#[derive(Clone, Debug, PartialEq)]
pub struct ArchSpec {
    /// Width of the residual stream, in elements.
    pub hidden_size: usize,
    /// Rows of the embedding table and length of a row of logits, in tokens.
    pub vocab_size: usize,
    /// Longest sequence served, in tokens.
    pub max_context: usize,
    /// Kind of all norms but those of q and k.
    pub norm: NormKind,
    /// Added to the mean square or variance in every norm.
    pub norm_eps: f32,
    /// Rotary embeddings that layers choose from; none in models with other positions.
    pub ropes: Vec<RopeSpec>,
    /// Learned embeddings of positions, added to those of tokens.
    pub positions: Option<LearnedPositions>,
    /// Factor of the embeddings of tokens.
    pub embedding_scale: f32,
    /// Whether embeddings are normed before the first layer.
    pub embedding_norm: bool,
    /// One entry per decoder layer, so that mixed stacks need no special case.
    pub layers: Vec<LayerSpec>,
    /// The encoder whose rows the layers attend to, in encoder-decoder models.
    pub encoder: Option<EncoderSpec>,
    /// Copies of the residual stream side by side, where there are more than one.
    pub streams: Option<Streams>,
    /// Vectors that each token has for every layer, beside its embedding.
    pub layer_inputs: Option<LayerInputs>,
    /// Whether what a layer leaves is multiplied by a stored number.
    pub scales_layers: bool,
    /// Factors of what the projections of all layers give.
    pub multipliers: Multipliers,
    /// Factor of the logits, before the cap.
    pub logit_scale: f32,
    /// `tanh` soft cap on the logits, or `None`.
    pub logit_softcap: Option<f32>,
    /// Whether the output head carries a bias.
    pub head_bias: bool,
    /// Whether the output head shares the embedding table.
    pub tied_embeddings: bool,
    /// The parts before the first layer and after the last.
    pub ends: Ends,
    /// Token put before a text, if the model was trained with one.
    pub bos_token: Option<TokenId>,
    /// Tokens that end an answer.
    pub eos_tokens: Vec<TokenId>,
}

/// The parts before the first layer and after the last, in which encoders differ from decoders.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ends {
    /// Rows of the table of token types; its first row is added to every embedding. 0 where there
    /// is no such table.
    pub n_token_types: usize,
    /// Whether the first layer norms the input of its attention, in models whose other layers do.
    pub first_norm: bool,
    /// Whether there is a norm after the last layer.
    pub final_norm: bool,
    /// Whether there is a head, so that tokens can be generated.
    pub head: bool,
}

impl Ends {
    /// The ends of decoders.
    pub const DECODER: Self =
        Self { n_token_types: 0, first_norm: true, final_norm: true, head: true };

    /// The ends of BERT, except for the number of token types.
    pub const BERT: Self = Self { final_norm: false, head: false, ..Self::DECODER };
}

/// The encoder of a model whose decoder attends to its rows (Sutskever et al., 2014; Vaswani et al.,
/// 2017).
///
/// It has the decoder's embedding, width and kind of norms. The text that it reads, the *source*, takes
/// the first positions of a sequence, up to a whole block; the decoder's own tokens follow and count
/// their positions from 0 again.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderSpec {
    /// Layers in which a token sees the whole source.
    pub layers: Vec<LayerSpec>,
    /// Learned embeddings of positions, as [`ArchSpec::positions`].
    pub positions: Option<LearnedPositions>,
    /// Whether there is a norm after the last layer.
    pub final_norm: bool,
    /// Longest source, in tokens.
    pub max_source: usize,
    /// Most tokens of the decoder.
    pub max_own: usize,
    /// Tokens that the decoder begins with.
    pub first_tokens: Vec<TokenId>,
}

/// Vectors that each token has for every layer, beside its embedding (Gemma Team, 2025: Gemma 3n).
///
/// ```text
/// input[l] = (norm(projection[l] · x / sqrt(hidden)) + table[token][l] · sqrt(width)) / sqrt(2)
/// at the end of layer l   x += norm(out[l] · (act(gate[l] · x) * input[l]))
/// ```
///
/// `x` in the first line is the scaled embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LayerInputs {
    /// Elements of a vector.
    pub width: usize,
    /// Rows of the table, `[n_rows, n_layers * width]`; tokens beyond them have the first one.
    pub n_rows: usize,
    /// Activation of the gates.
    pub act: Act,
}

/// A table of one learned vector per position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearnedPositions {
    /// Rows of the table.
    pub n_rows: usize,
    /// Row of position 0.
    pub first_row: usize,
}

/// The kind of a norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NormKind {
    /// Divides by the root of the mean square (Zhang and Sennrich, 2019); has a weight.
    Rms,
    /// Takes off the mean and divides by the standard deviation (Ba et al., 2016).
    Layer {
        /// Whether there is a weight.
        weight: bool,
        /// Whether there is a bias.
        bias: bool,
    },
}

impl ArchSpec {
    /// Windows in the layers that the config lists, or in those that the family has them in.
    pub(crate) fn set_windows(&mut self, cfg: &HfConfig, is_usual: impl Fn(usize) -> bool) {
        for (i, layer) in self.layers.iter_mut().enumerate() {
            let has_window =
                cfg.sliding_layers.as_ref().map_or_else(|| is_usual(i), |list| list[i]);
            layer.gqa_mut().window = match cfg.sliding_window {
                Window::Tokens(n) if has_window => Some(n),
                _ => None,
            };
        }
    }

    /// Perceptrons without a gate in all layers.
    pub(crate) fn set_plain_mlp(&mut self, cfg: &HfConfig, bias: bool) {
        let (intermediate_size, act) = (cfg.intermediate_size, cfg.hidden_act);
        for layer in &mut self.layers {
            layer.mlp = Mlp::Plain(PlainMlp { intermediate_size, act, bias });
        }
    }

    /// Whether a token sees only itself and the tokens before it, in every layer.
    pub fn is_causal(&self) -> bool {
        self.layers.iter().all(|layer| layer.mixer.is_causal())
    }

    /// Width of the keys of a source token, and of its values, in encoder-decoder models.
    pub(crate) fn cross_width(&self) -> Option<usize> {
        self.layers.iter().find_map(|layer| match &layer.mixer {
            Mixer::CrossAttention(cross) => Some(cross.width()),
            _ => None,
        })
    }

    /// Whether tokens can be generated; if not, the model is for vectors of texts.
    pub fn generates(&self) -> bool {
        self.ends.head && self.is_causal()
    }

    /// Says in words which rotary frequencies a model serving `max_context` tokens uses and why, for
    /// each embedding that depends on it.
    pub fn rope_choices(&self, max_context: usize) -> Vec<String> {
        let mut choices: Vec<String> =
            self.ropes.iter().filter_map(|rope| rope.choice(max_context)).collect();
        choices.dedup();
        choices
    }

    /// Whether some layers keep a state of a fixed size.
    pub fn is_recurrent(&self) -> bool {
        self.layers.iter().any(|layer| layer.mixer.kept().state.is_some())
    }

    /// Number of memory groups of layers, each with block tables of its own.
    pub fn n_kv_groups(&self) -> usize {
        self.layers.iter().map(|layer| layer.kv_group + 1).max().unwrap_or(1)
    }

    /// Longest context that the positions reach, in tokens; at least what is served by default.
    pub fn longest_context(&self) -> usize {
        let ropes = self.ropes.iter().map(RopeSpec::longest_context);
        ropes.fold(self.max_context, usize::max)
    }
}
