//! Operations on rows between the products of a step, and their time where they were measured.
//!
//! ```text
//! per layer   2 norms of sums          hidden
//!             rotation, store          queries and keys; keys and values
//!             output of attention      into the form that quantized weights are multiplied with
//!             activation               middle of the perceptron, of each expert that is chosen
//! ```

use pelton_model::{ArchSpec, Mixer};

use crate::hardware::{Arithmetic, MeasuredLine, MeasuredRows};
use crate::weights::WeightSizes;

/// Elements per row of one operation in one layer.
type Widths = Vec<f64>;

/// Elements per row of the operations of all layers.
pub(crate) struct RowWork {
    norm: Widths,
    quantize: Widths,
    activation: Widths,
    rotation: Widths,
    store: Widths,
}

impl RowWork {
    pub(crate) fn new(spec: &ArchSpec, weights: &WeightSizes) -> Self {
        let of = |width: &dyn Fn(&Mixer) -> usize| -> Widths {
            spec.layers.iter().map(|layer| width(&layer.mixer) as f64).collect()
        };
        let is_quantized = weights.multiplied().any(|m| m.arithmetic == Arithmetic::Int8);
        let stored = |mixer: &Mixer| {
            let heads = mixer.kv_heads();
            heads.map_or(0, |heads| heads.n * (heads.key_dim + heads.value_dim))
        };
        let rotated = |mixer: &Mixer| match mixer {
            Mixer::Gqa(gqa) => {
                gqa.rope.map_or(0, |_| gqa.q_width() + gqa.n_own_kv_heads() * gqa.head_dim)
            }
            Mixer::Mla(mla) => (mla.n_heads + 1) * mla.rope_dim,
            Mixer::Parallel(both) => {
                let gqa = &both.attention;
                gqa.rope.map_or(0, |_| gqa.q_width() + gqa.kv_width())
            }
            Mixer::CrossAttention(_)
            | Mixer::Recurrent(_)
            | Mixer::SelectiveScan(_)
            | Mixer::ShortConv(_)
            | Mixer::TimeMix(_)
            | Mixer::ChannelMix(_)
            | Mixer::Absent(_) => 0,
        };
        Self {
            norm: vec![spec.hidden_size as f64; 2 * spec.layers.len() + 1],
            quantize: if is_quantized { of(&Mixer::out_width) } else { Widths::new() },
            activation: spec.layers.iter().map(|layer| layer.mlp.hidden_width() as f64).collect(),
            rotation: of(&rotated),
            store: of(&stored),
        }
    }

    /// Seconds of `rows` rows.
    pub(crate) fn seconds(&self, measured: &MeasuredRows, rows: f64) -> f64 {
        let MeasuredRows { norm, quantize, activation, rotation, store } = measured;
        let of = |widths: &Widths, line: &MeasuredLine| -> f64 {
            let widths = widths.iter().filter(|width| **width > 0.0);
            widths.map(|width| line.seconds(width * rows)).sum()
        };
        of(&self.norm, norm)
            + of(&self.quantize, quantize)
            + of(&self.activation, activation)
            + of(&self.rotation, rotation)
            + of(&self.store, store)
    }
}
