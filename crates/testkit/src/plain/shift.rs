//! Mixers of RWKV-7, token by token in f64 from the border of a chunk.

use pelton_model::arch::Act;
use pelton_model::device::{ShiftMixer, ShiftOp};
use pelton_model::layer::{ChannelMixWeights, LowRank, TimeMix, TimeMixWeights};

use super::ops::{activate, layer_norm, linear_row};
use super::recurrent::{State, States};
use super::{PlainDevice, Rows};

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// A row mixed with the row before it: `x + mix ∘ (before - x)`, of which `taps` are the factors of
/// both.
fn mixed(state: &State, rows: &[&[f32]], n: usize, taps: &[f32]) -> Vec<f32> {
    let now = &rows[rows.len() - 1][..n];
    let before = match rows.len() {
        1 => &state.tail[0][..],
        n_rows => &rows[n_rows - 2][..n],
    };
    let (of_before, of_now) = taps.split_at(n);
    (0..n).map(|i| of_before[i] * before[i] + of_now[i] * now[i]).collect()
}

/// The part of a chunk's rows that later rows need: the last input.
fn keep_last(state: &mut State, rows: &[&[f32]], n: usize) {
    state.tail = vec![rows[rows.len() - 1][..n].to_vec()];
}

/// One layer's time mix with its weights. Rows are the inputs of a layer, `[hidden]`, and behind
/// them the values of the first layer where the layer mixes them in.
struct Recurrence<'a> {
    spec: &'a TimeMix,
    weights: &'a TimeMixWeights<PlainDevice>,
    hidden: usize,
}

/// A row of a time mix.
struct Output {
    /// The input of the last projection.
    out: Vec<f32>,
    /// Values, before those of the first layer are mixed in.
    values: Vec<f32>,
}

impl Recurrence<'_> {
    /// The state moved over all of these rows, and the last of them.
    fn run(&self, state: &State, rows: &[&[f32]]) -> (Vec<f64>, Option<Output>) {
        let (mut matrix, mut last) = (state.matrix.clone(), None);
        for n in 1..=rows.len() {
            last = Some(self.step(state, &mut matrix, &rows[..n]));
        }
        (matrix, last)
    }

    /// Takes the last of these rows into the states of all heads, `[head][key][value]`.
    fn step(&self, border: &State, matrix: &mut [f64], rows: &[&[f32]]) -> Output {
        let TimeMixWeights { mixes, receptance, key, value, decay, rate, gate, residual, .. } =
            self.weights;
        let taps: Vec<&[f32]> = mixes.chunks_exact(2 * self.hidden).collect();
        let [x_r, x_w, x_k, x_v, x_a, x_g] =
            std::array::from_fn(|i| mixed(border, rows, self.hidden, taps[i]));
        let low = |low: &LowRank<PlainDevice>, x: &[f32], bend: &dyn Fn(f64) -> f64| {
            let latent = linear_row(&low.down, x);
            let bent: Vec<f32> = latent.iter().map(|x| bend(f64::from(*x)) as f32).collect();
            linear_row(&low.up, &bent)
        };
        let plain = |x: f64| x;
        let values = linear_row(value, &x_v);
        let mut mixed_in = values.clone();
        if let Some(residual) = residual {
            let (first, amount) =
                (&rows[rows.len() - 1][self.hidden..], low(residual, &x_v, &plain));
            for (v, (first, amount)) in mixed_in.iter_mut().zip(first.iter().zip(&amount)) {
                *v = (f64::from(*v) + f64::from(first - *v) * sigmoid(f64::from(*amount))) as f32;
            }
        }
        let row = Projected {
            receptance: linear_row(receptance, &x_r),
            key: linear_row(key, &x_k),
            value: mixed_in,
            decay: low(decay, &x_w, &f64::tanh),
            rate: low(rate, &x_a, &plain),
        };
        let gates = low(gate, &x_g, &sigmoid);
        let heads = (0..self.spec.n_heads).flat_map(|head| self.head(&row, head, matrix));
        let out = heads.zip(&gates).map(|(y, gate)| (y * f64::from(*gate)) as f32).collect();
        Output { out, values }
    }

    /// One head of a row before its gate; its state moves on.
    fn head(&self, row: &Projected, head: usize, matrix: &mut [f64]) -> Vec<f64> {
        let n = self.spec.head_dim;
        let of = |x: &[f32]| -> Vec<f64> {
            x[head * n..(head + 1) * n].iter().map(|x| f64::from(*x)).collect()
        };
        let (r, k, v) = (of(&row.receptance), of(&row.key), of(&row.value));
        let rate: Vec<f64> = of(&row.rate).iter().map(|x| sigmoid(*x)).collect();
        let least = (-0.5_f64).exp();
        let decay: Vec<f64> = of(&row.decay).iter().map(|x| (-least * sigmoid(*x)).exp()).collect();
        let removed: Vec<f64> =
            k.iter().zip(of(&self.weights.removal_scale)).map(|(k, scale)| k * scale).collect();
        let length = removed.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-12);
        let unit: Vec<f64> = removed.iter().map(|x| x / length).collect();
        let scale = of(&self.weights.rate_scale);
        let key: Vec<f64> = (0..n).map(|d| k[d] * (1.0 + (rate[d] - 1.0) * scale[d])).collect();
        let state = &mut matrix[head * n * n..(head + 1) * n * n];
        let mut y = Vec::new();
        for (e, v) in v.iter().enumerate() {
            let known: f64 = (0..n).map(|d| state[d * n + e] * unit[d]).sum();
            let mut sum = 0.0;
            for d in 0..n {
                let s = &mut state[d * n + e];
                *s = *s * decay[d] - known * unit[d] * rate[d] + v * key[d];
                sum += *s * r[d];
            }
            y.push(sum as f32);
        }
        let norm = &self.weights.norm;
        let own = head * n..(head + 1) * n;
        let bias = norm.bias.as_ref().expect("a bias");
        let normed = layer_norm(&y, &norm.weight[own.clone()], &bias[own], norm.eps);
        let bonus = of(&self.weights.bonus);
        let weight: f64 = (0..n).map(|d| r[d] * key[d] * bonus[d]).sum();
        normed.iter().zip(&v).map(|(y, v)| f64::from(*y) + weight * v).collect()
    }
}

/// The projections of the mixtures of a row, with the first layer's values mixed in.
struct Projected {
    receptance: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    decay: Vec<f32>,
    rate: Vec<f32>,
}

/// The hidden layer of a channel mix.
fn perceive(weights: &ChannelMixWeights<PlainDevice>, state: &State, rows: &[&[f32]]) -> Vec<f32> {
    let n = rows[0].len();
    let hidden = linear_row(&weights.key, &mixed(state, rows, n, &weights.mix));
    hidden.iter().map(|x| activate(Act::ReluSquared, *x)).collect()
}

/// A mixer of all rows of a step, but for its last projection.
pub(super) fn shift(
    op: &ShiftOp<'_, PlainDevice>,
    x: &Rows,
    first: &mut Rows,
    states: &mut States,
    out: &mut Rows,
) {
    out.reset(x.n()).for_each(drop);
    let (hidden, width) = (x.width, out.width);
    match op.mixer {
        ShiftMixer::Channel(_, weights) => {
            for sequence in op.rows.sequences {
                let fold = |state: &mut State, rows: &[&[f32]]| keep_last(state, rows, hidden);
                states.walk(op.layer, sequence, x, fold, |row, state, rows| {
                    let own = &mut out.values[row * width..][..width];
                    own.copy_from_slice(&perceive(weights, state, rows));
                });
            }
        }
        ShiftMixer::Time(spec, weights) => {
            let recurrence = Recurrence { spec, weights, hidden };
            let is_first = weights.residual.is_none();
            let mut inputs = Rows { width: hidden, values: x.values.clone() };
            match is_first {
                true => first.reset(x.n()).for_each(drop),
                false => {
                    inputs.width = hidden + width;
                    let both = x.iter().zip(first.iter());
                    inputs.values = both.flat_map(|(x, first)| [x, first].concat()).collect();
                }
            }
            for sequence in op.rows.sequences {
                let fold = |state: &mut State, rows: &[&[f32]]| {
                    let (matrix, _) = recurrence.run(state, rows);
                    keep_last(state, rows, hidden);
                    state.matrix = matrix;
                };
                states.walk(op.layer, sequence, &inputs, fold, |row, state, rows| {
                    let (_, last) = recurrence.run(state, rows);
                    let last = last.expect("a row sees itself");
                    out.values[row * width..][..width].copy_from_slice(&last.out);
                    if is_first {
                        first.values[row * width..][..width].copy_from_slice(&last.values);
                    }
                });
            }
        }
    }
}
