//! Norms, products, perceptrons and the head.

use pelton_base::TokenId;
use pelton_model::arch::{Act, Mlp};
use pelton_model::device::{
    AttentionOp, ConvOp, Head, LatentOp, RecurrentOp, SelectiveOp, ShiftOp, StepRows,
};
use pelton_model::layer::{Linear, MlpWeights, Norm, TwoLayers};
use pelton_model::rope::RopeTable;
use pelton_model::{GreedyRows, Ops};

use super::{Matrix, PlainDevice, PlainKv, Rows, recurrent, selective, shift};

/// `x / sqrt(mean(x²) + eps) · weight` (Zhang and Sennrich, 2019).
pub(super) fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let square: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
    let factor = (square / x.len() as f64 + f64::from(eps)).sqrt().recip();
    x.iter().zip(weight).map(|(x, w)| (f64::from(*x) * factor) as f32 * w).collect()
}

/// `(x - mean) / sqrt(variance + eps) · weight + bias` (Ba et al., 2016).
pub(super) fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f32) -> Vec<f32> {
    let n = x.len() as f64;
    let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
    let variance = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n;
    let factor = (variance + f64::from(eps)).sqrt().recip();
    let norm = |x: &f32| ((f64::from(*x) - mean) * factor) as f32;
    x.iter().zip(weight.iter().zip(bias)).map(|(x, (w, b))| norm(x) * w + b).collect()
}

/// Norm of every row, or of each stretch of it that is as long as the weight.
fn norm_rows(x: &Rows, norm: &Norm<PlainDevice>, out: &mut Rows) {
    let width = norm.weight.len();
    for (x, out) in x.iter().zip(out.reset(x.n())) {
        for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
            out.copy_from_slice(&match &norm.bias {
                None => rms_norm(x, &norm.weight, norm.eps),
                Some(bias) => layer_norm(x, &norm.weight, bias, norm.eps),
            });
        }
    }
}

/// `out = x Wᵀ + b`, piece by piece.
pub(super) fn linear(linear: &Linear<PlainDevice>, x: &Rows, out: &mut Rows) {
    for (x, out) in x.iter().zip(out.reset(x.n())) {
        for piece in &linear.pieces {
            let input: Vec<f32> = match &piece.order {
                None => x.to_vec(),
                Some(order) => order.iter().map(|&j| x[j as usize]).collect(),
            };
            let products = piece.weight.times(&input);
            for (out, product) in out[piece.first_row..].iter_mut().zip(products) {
                *out = if piece.adds { *out + product } else { product };
            }
        }
        for (outputs, factor) in &linear.factors {
            out[outputs.clone()].iter_mut().for_each(|out| *out *= factor);
        }
        if let Some(bias) = &linear.bias {
            out.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias);
        }
    }
}

/// `x Wᵀ + b` of one row.
pub(super) fn linear_row(weights: &Linear<PlainDevice>, x: &[f32]) -> Vec<f32> {
    let mut out = Rows { width: weights.n, values: Vec::new() };
    linear(weights, &Rows { width: x.len(), values: x.to_vec() }, &mut out);
    out.values
}

/// The activation function.
pub(super) fn activate(act: Act, x: f32) -> f32 {
    let x = f64::from(x);
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let y = match act {
        Act::Silu => x * sigmoid(x),
        Act::GeluTanh => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            0.5 * x * (1.0 + u.tanh())
        }
        Act::Gelu => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
        Act::QuickGelu => x * sigmoid(1.702 * x),
        Act::Relu => x.max(0.0),
        Act::ReluSquared => x.max(0.0).powi(2),
    };
    y as f32
}

/// The error function by its Maclaurin series, and 1 where f32 cannot tell it from 1.
fn erf(x: f64) -> f64 {
    if x.abs() > 5.0 {
        return x.signum();
    }
    // erf x = 2/√π · Σ (-1)^n x^(2n+1) / (n! (2n+1))
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

/// `down(act(gate(x)) · up(x))`, or `down(act(up(x)))` without a gate.
pub(super) fn perceptron(
    layers: &TwoLayers<PlainDevice>,
    (act, is_gated, cut): (Act, bool, Option<f32>),
    x: &[f32],
) -> Vec<f32> {
    let mut hidden = linear_row(&layers.up, x);
    if let Some(factor) = cut {
        cut_gates(&mut hidden[..layers.down.k], factor);
    }
    let hidden: Vec<f32> = match is_gated {
        false => hidden.iter().map(|x| activate(act, *x)).collect(),
        true => {
            let (gate, up) = hidden.split_at(hidden.len() / 2);
            gate.iter().zip(up).map(|(gate, up)| activate(act, *gate) * up).collect()
        }
    };
    linear_row(&layers.down, &hidden)
}

/// Takes the mean plus `factor` standard deviations off each gate, and drops what is negative then.
fn cut_gates(gates: &mut [f32], factor: f32) {
    let n = gates.len() as f64;
    let mean = gates.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
    let variance = gates.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n;
    let cut = mean + f64::from(factor) * variance.sqrt();
    gates.iter_mut().for_each(|x| *x = (f64::from(*x) - cut).max(0.0) as f32);
}

/// The likeliest of the first tokens of a row of logits.
fn likeliest(logits: &[f32]) -> Option<TokenId> {
    if !logits.iter().any(|x| x.is_finite()) {
        return None;
    }
    let mut best: Option<(usize, f32)> = None;
    for (i, x) in logits.iter().enumerate().filter(|(_, x)| !x.is_nan()) {
        let x = x.min(f32::MAX);
        if best.is_none_or(|(_, most)| x > most) {
            best = Some((i, x));
        }
    }
    best.map(|(i, _)| TokenId(i as u32))
}

impl Ops for PlainDevice {
    /// Nothing is held.
    type Turn = ();

    fn place_rows<'a>(&mut self, rows: StepRows<'a>) -> StepRows<'a> {
        rows
    }

    fn begin_step(&mut self, _rows: StepRows<'_>, ropes: &[RopeTable]) {
        self.ropes = ropes.to_vec();
    }

    fn embed(&mut self, table: &Matrix, tokens: &[TokenId], out: &mut Rows) {
        for (token, out) in tokens.iter().zip(out.reset(tokens.len())) {
            out.copy_from_slice(table.row(token.0 as usize));
        }
    }

    fn add(&mut self, x: &mut Rows, y: &Rows) {
        x.values.iter_mut().zip(&y.values).for_each(|(x, y)| *x += y);
    }

    fn scale(&mut self, x: &mut Rows, factor: f32) {
        x.values.iter_mut().for_each(|x| *x *= factor);
    }

    fn norm(&mut self, x: &Rows, norm: &Norm<Self>, out: &mut Rows) {
        norm_rows(x, norm, out);
    }

    fn add_norm(&mut self, residual: &mut Rows, delta: &Rows, norm: &Norm<Self>, out: &mut Rows) {
        self.add(residual, delta);
        norm_rows(residual, norm, out);
    }

    fn qkv_rope_store(
        &mut self,
        op: &AttentionOp<'_, Self>,
        x: &Rows,
        kv: &mut PlainKv,
        qkv: &mut Rows,
    ) {
        self.project_grouped(op, x, kv, qkv);
    }

    fn paged_attention(
        &mut self,
        op: &AttentionOp<'_, Self>,
        qkv: &Rows,
        kv: &PlainKv,
        out: &mut Rows,
    ) {
        self.attend_grouped(op, qkv, kv, out);
    }

    fn latent_project_store(
        &mut self,
        op: &LatentOp<'_, Self>,
        x: &Rows,
        kv: &mut PlainKv,
        q: &mut Rows,
    ) {
        self.project_latent(op, x, kv, q);
    }

    fn latent_attention(
        &mut self,
        op: &LatentOp<'_, Self>,
        q: &Rows,
        kv: &PlainKv,
        out: &mut Rows,
    ) {
        self.attend_latent(op, q, kv, out);
    }

    fn recurrence(
        &mut self,
        op: &RecurrentOp<'_, Self>,
        projected: &Rows,
        kv: &mut PlainKv,
        out: &mut Rows,
    ) {
        recurrent::recurrence(op, projected, &mut kv.states, out);
    }

    fn selective_scan(
        &mut self,
        op: &SelectiveOp<'_, Self>,
        projected: &Rows,
        kv: &mut PlainKv,
        out: &mut Rows,
    ) {
        selective::selective_scan(op, projected, &mut kv.states, out);
    }

    fn short_conv(
        &mut self,
        op: &ConvOp<'_, Self>,
        projected: &Rows,
        kv: &mut PlainKv,
        out: &mut Rows,
    ) {
        recurrent::short_conv(op, projected, &mut kv.states, out);
    }

    fn shift(
        &mut self,
        op: &ShiftOp<'_, Self>,
        x: &Rows,
        first: &mut Rows,
        kv: &mut PlainKv,
        out: &mut Rows,
    ) {
        shift::shift(op, x, first, &mut kv.states, out);
    }

    fn linear(&mut self, _rows: StepRows<'_>, weights: &Linear<Self>, x: &Rows, out: &mut Rows) {
        linear(weights, x, out);
    }

    fn mlp(&mut self, _rows: StepRows<'_>, mlp: &MlpWeights<Self>, x: &Rows, out: &mut Rows) {
        for (x, out) in x.iter().zip(out.reset(x.n())) {
            out.copy_from_slice(&match mlp {
                Mlp::Gated(mlp) => perceptron(&mlp.weights, mlp.spec.shape(), x),
                Mlp::Plain(mlp) => perceptron(&mlp.weights, (mlp.spec.act, false, None), x),
                Mlp::Moe(moe) => super::experts::mixture(&moe.spec, &moe.weights, [x, x]),
                Mlp::WithExperts(both) => super::experts::side_by_side(both, x),
                Mlp::Absent(_) => unreachable!("the decoder skips it"),
            });
        }
    }

    fn gate_inputs(&mut self, act: Act, gate: &Rows, inputs: &Rows, first: usize, out: &mut Rows) {
        let rows = gate.iter().zip(inputs.iter());
        for ((gate, inputs), out) in rows.zip(out.reset(gate.n())) {
            let gated = gate.iter().zip(&inputs[first..]).map(|(x, y)| activate(act, *x) * y);
            out.iter_mut().zip(gated).for_each(|(out, x)| *out = x);
        }
    }

    fn gather_rows(&mut self, x: &Rows, rows: &[usize], out: &mut Rows) {
        for (&row, out) in rows.iter().zip(out.reset(rows.len())) {
            out.copy_from_slice(&x.values[row * x.width..][..x.width]);
        }
    }

    fn head(
        &mut self,
        _rows: StepRows<'_>,
        head: &Head<'_, Self>,
        x: &Rows,
        logits: &mut Vec<f32>,
        greedy: GreedyRows<'_>,
    ) {
        logits.clear();
        greedy.tokens.clear();
        let n_whole = x.n() - greedy.n_rows;
        for (i, x) in x.iter().enumerate() {
            let mut row = head.weight.times(x);
            for (j, logit) in row.iter_mut().enumerate() {
                *logit = (*logit + head.bias.map_or(0.0, |bias| bias[j])) * head.scale;
                *logit = head.softcap.map_or(*logit, |cap| cap * (*logit / cap).tanh());
            }
            match i < n_whole {
                true => logits.extend(row),
                false => greedy.tokens.push(likeliest(&row[..greedy.n_sampled.min(row.len())])),
            }
        }
    }
}
