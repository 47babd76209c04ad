//! Selective scans, token by token in f64 from the border of a chunk.

use pelton_model::arch::Act;
use pelton_model::device::SelectiveOp;
use pelton_model::layer::{SelectiveScan, SelectiveWeights};

use super::ops::{activate, linear_row, rms_norm};
use super::recurrent::{State, States, convolve, softplus, tail_behind};
use super::{PlainDevice, Rows};

/// One layer's scan with its weights.
struct Scan<'a> {
    spec: &'a SelectiveScan,
    weights: &'a SelectiveWeights<PlainDevice>,
}

impl Scan<'_> {
    /// Inputs of the convolution.
    fn inputs(&self, rows: &[&[f32]]) -> Vec<Vec<f32>> {
        rows.iter().map(|row| row[..self.spec.channels].to_vec()).collect()
    }

    /// Takes the last of these rows into the states of all channels, `[state_dim][channels]`, and
    /// returns its output before the gate.
    fn step(&self, border: &State, matrix: &mut [f64], rows: &[&[f32]]) -> Vec<f64> {
        let n = self.spec.channels;
        let bias = self.weights.conv_bias.as_deref();
        let mixed = convolve(border, &self.inputs(rows), &self.weights.conv, bias);
        let mixed: Vec<f32> = mixed.iter().map(|x| activate(Act::Silu, *x)).collect();
        let selected = linear_row(&self.weights.selection, &mixed);
        let mut parts = self.spec.selected().map(|[first, n]| selected[first..first + n].to_vec());
        for (part, norm) in parts.iter_mut().zip(self.weights.norms.iter().flatten()) {
            *part = rms_norm(part, &norm.weight, norm.eps);
        }
        let [low, key, query] = parts;
        let steps = linear_row(&self.weights.step, &low);
        let channel = |c: usize| {
            let (x, step) = (f64::from(mixed[c]), softplus(steps[c]));
            let mut sum = f64::from(self.weights.skip[c]) * x;
            for (j, (key, query)) in key.iter().zip(&query).enumerate() {
                let state = &mut matrix[j * n + c];
                let decay = (step * f64::from(self.weights.rates[j * n + c])).exp();
                *state = *state * decay + step * x * f64::from(*key);
                sum += *state * f64::from(*query);
            }
            sum
        };
        (0..n).map(channel).collect()
    }

    /// The states moved over all of these rows, and the output of the last one.
    fn run(&self, state: &State, rows: &[&[f32]]) -> (Vec<f64>, Vec<f64>) {
        let (mut matrix, mut out) = (state.matrix.clone(), Vec::new());
        for n in 1..=rows.len() {
            out = self.step(state, &mut matrix, &rows[..n]);
        }
        (matrix, out)
    }
}

/// The selective scan of all rows of a step.
pub(super) fn selective_scan(
    op: &SelectiveOp<'_, PlainDevice>,
    projected: &Rows,
    states: &mut States,
    out: &mut Rows,
) {
    let scan = Scan { spec: op.scan, weights: op.weights };
    out.reset(projected.n()).for_each(drop);
    let n = op.scan.channels;
    for sequence in op.rows.sequences {
        let fold = |state: &mut State, rows: &[&[f32]]| {
            let (matrix, _) = scan.run(state, rows);
            state.tail = tail_behind(state, &scan.inputs(rows));
            state.matrix = matrix;
        };
        states.walk(op.layer, sequence, projected, fold, |row, state, rows| {
            let (_, sums) = scan.run(state, rows);
            let gates = &rows[rows.len() - 1][n..];
            let outs = out.values[row * n..][..n].iter_mut();
            for ((out, sum), gate) in outs.zip(sums).zip(gates) {
                *out = sum as f32 * activate(Act::Silu, *gate);
            }
        });
    }
}
