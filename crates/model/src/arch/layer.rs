//! One decoder layer: what it is made of, and how its parts are wired.
//!
//! A layer that has one mixer alone has the norms of that mixer alone, and reads and adds once.

use super::{Ends, Gqa, Mixer, Mlp};

/// One decoder layer: a sequence mixer and a channel mixer on a residual stream.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Mixes information across positions.
    pub mixer: Mixer,
    /// Mixes information across channels.
    pub mlp: Mlp,
    /// How the two read from the residual stream and add to it.
    pub wiring: Wiring,
    /// Memory group of its keys and values, which share block tables: 0 in models of one group.
    pub kv_group: usize,
}

/// How mixers read from the residual stream `x` and add to it.
///
/// ```text
/// sequential   x += post(attention(pre(x)));   x += post(mlp(pre(x)))
/// parallel     x += post(attention(pre(x))) + post(mlp(pre(x)))
/// normed       x = post(x + attention(x));         x = post(x + mlp(x))
/// of norms     x = a · pre(x) + b · attention(pre(x));   x = c · pre(x) + d · mlp(pre(x))
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wiring {
    /// Whether a mixer's input is normed.
    pub pre_norm: bool,
    /// Whether a mixer's output is normed before it is added.
    pub post_norm: bool,
    /// Whether one mixer sees what the other added.
    pub residual: Residual,
    /// Factor of what a mixer adds.
    pub scale: f32,
}

/// Whether the channel mixer sees what the sequence mixer added.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Residual {
    /// It does.
    Sequential,
    /// It does not, and reads the norm that attention reads.
    ParallelOneNorm,
    /// It does not, and has a norm of its own.
    ParallelTwoNorms,
    /// It does, and the norm after a mixer is that of the sum.
    Normed,
    /// It does, and a mixer adds to its normed input.
    OfNorms {
        /// Factors of the normed inputs of the sequence mixer and of the channel mixer.
        kept: [f32; 2],
        /// Factors of what the two add.
        added: [f32; 2],
    },
}

impl Wiring {
    /// A norm before each mixer, one after the other: Llama and most others.
    pub const PRE: Self =
        Self { pre_norm: true, post_norm: false, residual: Residual::Sequential, scale: 1.0 };

    /// Norms before and after each mixer: Gemma 2, GLM-4.
    pub const SANDWICH: Self = Self { post_norm: true, ..Self::PRE };

    /// Norms after each mixer alone: OLMo 2.
    pub const POST: Self = Self { pre_norm: false, ..Self::SANDWICH };

    /// Norms of the residual stream after each addition: BERT.
    pub const NORMED: Self = Self { residual: Residual::Normed, ..Self::POST };
}

impl LayerSpec {
    /// Whether layer `layer` has a norm before its attention, after it, before its perceptron, and after
    /// that.
    pub(crate) fn norms(&self, layer: usize, ends: &Ends) -> [bool; 4] {
        let Wiring { pre_norm, post_norm, residual, .. } = self.wiring;
        let mixes_rows = !matches!(self.mixer, Mixer::Absent(_));
        let mixes_channels = !matches!(self.mlp, Mlp::Absent(_));
        [
            mixes_rows && pre_norm && (layer > 0 || ends.first_norm),
            mixes_rows && post_norm,
            mixes_channels
                && pre_norm
                && !self.mlp.reads_stream()
                && residual != Residual::ParallelOneNorm,
            mixes_channels && post_norm,
        ]
    }

    /// The attention to edit while a family builds its spec; a family that calls this has grouped
    /// queries in every layer.
    pub(crate) fn gqa_mut(&mut self) -> &mut Gqa {
        match &mut self.mixer {
            Mixer::Gqa(gqa) => gqa,
            _ => panic!("invariant: a layer with grouped queries"),
        }
    }
}
