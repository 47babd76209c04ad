//! Residual streams side by side, of which layers read one.

use super::ArchSpec;
use crate::parameters::Parameters;

/// Copies of the residual stream that a model keeps side by side (Baykal et al., 2023: AltUp), and a
/// residual of low rank beside attention (Menghani et al., 2025: LAuReL).
///
/// ```text
/// start      s[0] = x,  s[i] = in[i] · x, as large as x
/// layer      t = tanh(router · norm(s[active]) / hidden)
///            p[i] = s[i] + Σ_j (predict[i, j] · t) s[j]            h = norm(p[active])
///            x = (p[active] + norm(attention(h)) + h + norm(right · left · h)) / sqrt(2)
///            x = x + norm(mlp(norm(x)))
///            t = tanh(router · norm(x) / hidden)
///            s[i] = p[i] + (correct[i] · t + 1) (x - p[active])
///            s[1 ..] += what the layer makes of the token's vector and of s[active] · scale
/// end        x = mean of s[0] and out[i] · s[i], as large as s[0]
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Streams {
    /// How many there are.
    pub n: usize,
    /// The one that layers read.
    pub active: usize,
    /// Width of the latent of the residual beside attention.
    pub rank: usize,
    /// Whether the active stream is scaled by column where the token's vector is taken in.
    pub is_scaled: bool,
}

impl Streams {
    /// Most streams of a model that is read.
    pub const MOST: usize = 16;

    /// The factor of the sum of attention and the residual beside it.
    pub(crate) const AVERAGED: f32 = std::f32::consts::FRAC_1_SQRT_2;

    /// Elements of the matrices of one layer.
    pub(crate) fn n_layer_weights(&self, hidden: usize) -> usize {
        let n = self.n;
        (n + 2 * self.rank) * hidden + n * n * n + n * n
    }

    /// Elements of the matrices outside of layers.
    fn n_outer_weights(&self, hidden: usize) -> usize {
        2 * (self.n - 1) * hidden * hidden
    }

    /// Parameters outside of layers.
    pub(crate) fn outer(&self, hidden: usize) -> Parameters {
        Parameters::products(&[[hidden, hidden]]).copied(2 * (self.n - 1), 2 * (self.n - 1))
    }

    /// Parameters of one layer.
    pub(crate) fn of_layer(&self, hidden: usize) -> Parameters {
        let Self { n, rank, is_scaled, .. } = *self;
        Parameters::products(&[[rank, hidden], [hidden, rank]])
            .exact(n, hidden)
            .exact(n * n, n)
            .exact(n, n)
            .vector(true, 2 * hidden)
            .vector(is_scaled, hidden)
    }
}

impl ArchSpec {
    /// Elements of the matrices beside the mixers: those that make and take in the tokens' vectors for each
    /// layer, the table left out, and those of streams.
    pub fn n_side_weights(&self) -> usize {
        let (hidden, n_layers) = (self.hidden_size, self.layers.len());
        let width = self.layer_inputs.map_or(0, |inputs| inputs.width);
        let of_streams = self.streams.map_or(0, |streams| {
            streams.n_outer_weights(hidden) + n_layers * streams.n_layer_weights(hidden)
        });
        3 * width * n_layers * hidden + of_streams
    }

    /// Elements of a row between operations that streams take, beside those of one.
    pub fn stream_row_elements(&self) -> usize {
        let row =
            |own: Streams| (2 * own.n + 2) * self.hidden_size + own.rank + own.n * (own.n + 2);
        self.streams.map_or(0, row)
    }
}
