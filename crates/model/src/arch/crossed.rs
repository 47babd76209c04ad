//! Parts that the families of an encoder and a decoder share.
//!
//! A layer of the decoder is two layers here: self-attention alone, then attention to the source with
//! the perceptron.

use super::{Absent, CrossAttention, Gqa, LayerSpec, Mixer, Mlp};

/// The attention of a layer that Llama's spec has, where a token sees all others if not `is_causal`.
pub(super) fn attention(template: &LayerSpec, is_causal: bool) -> Gqa {
    match template.mixer.clone() {
        Mixer::Gqa(gqa) => Gqa { rope: None, is_causal, ..gqa },
        _ => unreachable!("invariant: Llama has grouped queries"),
    }
}

/// The layers of a decoder with this self-attention and perceptron, wired as `template`; attention to the
/// source has the heads and biases of the self-attention.
pub(super) fn decoder(
    n_layers: usize,
    own: &Gqa,
    mlp: &Mlp,
    template: &LayerSpec,
) -> Vec<LayerSpec> {
    let layer = |mixer, mlp| LayerSpec { mixer, mlp, ..template.clone() };
    let pair = |i| {
        let Gqa { n_heads, head_dim, qkv_bias: bias, scale, .. } = *own;
        let cross = CrossAttention { n_heads, head_dim, bias, scale, kv_of: 2 * i };
        [
            layer(Mixer::Gqa(own.clone()), Mlp::Absent(Absent)),
            layer(Mixer::CrossAttention(cross), mlp.clone()),
        ]
    };
    (0..n_layers).flat_map(pair).collect()
}
