//! Layer operations of the CPU.

use pelton_base::TokenId;
use pelton_kernels::{
    ActivatedOp, Activations, AttentionInput, DistanceBias, Forms, HeadLayout, Largest, LogitsOp,
    Outputs, PackedMatrix, RopeLayout, StoreKv, StridedRows, Turn,
};

use super::latent::Projector;
use super::linear::{handed_to, in_forms, multiply, read_by};
use super::{CpuDevice, CpuKv};
use crate::arch::{Act, Gqa, Mlp, QkNorm};
use crate::device::{
    AttentionOp, ConvOp, GreedyRows, Head, LatentOp, Ops, RecurrentOp, SelectiveOp, ShiftOp,
    StepRows,
};
use crate::layer::{Linear, MlpWeights, Norm, TwoLayers};
use crate::rope::RopeTable;

impl CpuDevice {
    /// One perceptron of all rows. `out`: `[m, hidden]`.
    pub(super) fn perceptron(
        &mut self,
        layers: &TwoLayers<Self>,
        (act, is_gated, cut): (Act, bool, Option<f32>),
        x: &Activations,
        out: &mut [f32],
    ) {
        let forms = handed_to(&self.cpu, &layers.down);
        self.activate_hidden(layers, (act, is_gated, cut), x, forms);
        multiply(&self.cpu, &mut self.input, &layers.down, &self.activated, out);
    }

    /// The hidden layer of a perceptron behind its activation, to `self.activated`.
    pub(super) fn activate_hidden(
        &mut self,
        layers: &TwoLayers<Self>,
        (act, is_gated, cut): (Act, bool, Option<f32>),
        x: &Activations,
        forms: Forms,
    ) {
        self.activated.reset(layers.down.k, forms);
        let together = activated_outputs(layers, act, is_gated)
            .filter(|op| cut.is_none() && op.fits(&self.activated));
        if let Some(op) = together {
            let read = read_by(&self.cpu, layers.up.weights());
            let x = in_forms(&self.cpu, read, x, &mut self.input.forms);
            self.cpu.matmul_activated(&op, x, &mut self.activated);
        } else {
            self.hidden.resize(x.n_rows() * layers.up.n);
            multiply(&self.cpu, &mut self.input, &layers.up, x, &mut self.hidden);
            if let Some(factor) = cut {
                self.cpu.cut_gates(&mut self.hidden, layers.down.k, factor);
            }
            if is_gated {
                self.cpu.gated_mul(act, &self.hidden, &mut self.activated);
            } else {
                self.cpu.activate(act, &self.hidden, &mut self.activated);
            }
        }
    }
}

/// The first half of a perceptron as one operation, if nothing comes between product and activation
/// and no matrix has outputs of both gate and up but one that has all.
fn activated_outputs(
    layers: &TwoLayers<CpuDevice>,
    act: Act,
    is_gated: bool,
) -> Option<ActivatedOp<'_>> {
    let Linear { pieces, factors, bias, n, .. } = &layers.up;
    let is_plain = pieces.iter().all(|piece| piece.order.is_none() && !piece.adds);
    if !is_plain || !factors.is_empty() || bias.is_some() {
        return None;
    }
    let width = layers.down.k;
    let outputs = |first: usize| {
        let piece = pieces.iter().find(|piece| {
            let own = piece.first_row..piece.first_row + piece.weight.n();
            own.start <= first && first + width <= own.end
        })?;
        Some(Outputs { weight: &piece.weight, first: first - piece.first_row })
    };
    match is_gated {
        true if *n == 2 * width => {
            Some(ActivatedOp { gate: Some(outputs(0)?), up: outputs(width)?, act })
        }
        false if *n == width => Some(ActivatedOp { gate: None, up: outputs(0)?, act }),
        _ => None,
    }
}

/// Where the q, k and v heads lie in a row of the stacked projection.
fn head_layouts(gqa: &Gqa) -> [HeadLayout; 3] {
    let layout = |offset, n_heads| HeadLayout {
        row_stride: gqa.qkv_width(),
        offset,
        n_heads,
        head_dim: gqa.head_dim,
    };
    let keys = gqa.gate_width() + gqa.q_width();
    [
        layout(gqa.gate_width(), gqa.n_heads),
        layout(keys, gqa.n_own_kv_heads()),
        layout(keys + gqa.kv_width(), gqa.n_own_kv_heads()),
    ]
}

impl Ops for CpuDevice {
    /// One wake for all operations of a step, and no other user of the team between them.
    type Turn = Turn;

    fn place_rows<'a>(&mut self, rows: StepRows<'a>) -> StepRows<'a> {
        rows
    }

    fn begin_step(&mut self, rows: StepRows<'_>, ropes: &[RopeTable]) -> Turn {
        let turn = self.cpu.team.turn();
        self.cos_sin.resize_with(ropes.len(), Vec::new);
        for (rope, cos_sin) in ropes.iter().zip(&mut self.cos_sin) {
            let width = 2 * rope.inv_freq.len();
            cos_sin.resize(rows.positions.len() * width, 0.0);
            for (row, &position) in cos_sin.chunks_exact_mut(width).zip(rows.positions) {
                rope.fill(position, row);
            }
        }
        turn
    }

    fn embed(&mut self, table: &PackedMatrix, tokens: &[TokenId], out: &mut Activations) {
        self.ids.clear();
        self.ids.extend(tokens.iter().map(|token| token.0));
        self.cpu.look_up(table, &self.ids, out.floats_mut(tokens.len()));
    }

    fn add(&mut self, x: &mut Activations, y: &Activations) {
        self.cpu.add(x.floats_mut(y.n_rows()), y.floats());
    }

    fn scale(&mut self, x: &mut Activations, factor: f32) {
        let n_rows = x.n_rows();
        self.cpu.scale(x.floats_mut(n_rows), factor);
    }

    fn norm(&mut self, x: &Activations, norm: &Norm<Self>, out: &mut Activations) {
        let Norm { weight, bias, eps } = norm;
        if weight.len() < x.width() {
            let (row_stride, head_dim) = (x.width(), weight.len());
            let n_heads = row_stride / head_dim;
            let heads = HeadLayout { row_stride, offset: 0, n_heads, head_dim };
            let out = out.floats_mut(x.n_rows());
            out.copy_from_slice(x.floats());
            return self.cpu.head_rms_norm(out, &heads, weight, *eps);
        }
        match bias {
            None => self.cpu.rms_norm(x.floats(), weight, *eps, out),
            Some(bias) => self.cpu.layer_norm(x.floats(), weight, bias, *eps, out),
        }
    }

    fn add_norm(
        &mut self,
        residual: &mut Activations,
        delta: &Activations,
        norm: &Norm<Self>,
        out: &mut Activations,
    ) {
        let residual = residual.floats_mut(delta.n_rows());
        let (Norm { weight, bias, eps }, delta) = (norm, delta.floats());
        match bias {
            None => self.cpu.add_rms_norm(residual, delta, weight, *eps, out),
            Some(bias) => {
                self.cpu.add(residual, delta);
                self.cpu.layer_norm(residual, weight, bias, *eps, out);
            }
        }
    }

    fn qkv_rope_store(
        &mut self,
        op: &AttentionOp<'_, Self>,
        x: &Activations,
        kv: &mut CpuKv,
        qkv: &mut Activations,
    ) {
        let qkv = qkv.floats_mut(x.n_rows());
        multiply(&self.cpu, &mut self.input, &op.weights.qkv, x, qkv);
        if let Some(most) = op.gqa.clip {
            self.cpu.clamp(qkv, most);
        }
        let [q, k, v] = head_layouts(op.gqa);
        for (heads, norm) in [(q, &op.weights.q_norm), (k, &op.weights.k_norm)] {
            let (Some(norm), Some(kind)) = (norm, op.gqa.qk_norm) else { continue };
            match kind {
                QkNorm::HeadRms | QkNorm::HeadRmsBare => {
                    self.cpu.head_rms_norm(qkv, &heads, &norm.weight, norm.eps)
                }
                QkNorm::WholeRms => {
                    let whole = HeadLayout { n_heads: 1, head_dim: heads.width(), ..heads };
                    self.cpu.head_rms_norm(qkv, &whole, &norm.weight, norm.eps);
                }
                QkNorm::HeadLayer => self.cpu.head_layer_norm(qkv, &heads, &norm.weight, norm.eps),
            }
        }
        if let Some(norm) = &op.weights.v_norm {
            self.cpu.head_rms_norm(qkv, &v, &norm.weight, norm.eps);
        }
        if let Some(cos_sin) = op.gqa.rope.map(|rope| &self.cos_sin[rope]) {
            // k follows q: one call rotates the heads of both.
            let heads = HeadLayout { n_heads: q.n_heads + k.n_heads, ..q };
            let rotary_dim = cos_sin.len() / op.rows.positions.len();
            self.cpu.rope(
                qkv,
                &RopeLayout { heads, first: 0, rotary_dim, interleaved: false },
                cos_sin,
            );
        }
        if let Some(temperature) = op.gqa.temperature {
            let rows = qkv.chunks_exact_mut(op.gqa.qkv_width()).zip(op.rows.positions);
            for (row, position) in rows {
                let factor = temperature.at(*position);
                row[q.offset..][..op.gqa.q_width()].iter_mut().for_each(|q| *q *= factor);
            }
        }
        if op.gqa.kv_of.is_some() {
            return;
        }
        let rows = |heads: HeadLayout| StridedRows {
            data: qkv,
            stride: heads.row_stride,
            offset: heads.offset,
        };
        let store = StoreKv { k: rows(k), v: Some(rows(v)), slots: op.rows.slots(op.group) };
        let layer = kv.layer(op.place);
        self.cpu.store_kv(&mut kv.pages, layer, &store);
    }

    fn paged_attention(
        &mut self,
        op: &AttentionOp<'_, Self>,
        qkv: &Activations,
        kv: &CpuKv,
        out: &mut Activations,
    ) {
        let Self { cpu, sequences, .. } = self;
        let [q, ..] = head_layouts(op.gqa);
        let out = out.floats_mut(qkv.n_rows());
        sequences.with(&op.rows, op.group, kv.pages.shape().block_size, |sequences| {
            let input = AttentionInput {
                q: StridedRows { data: qkv.floats(), stride: q.row_stride, offset: q.offset },
                n_heads: op.gqa.n_heads,
                sequences,
                scale: op.gqa.scale,
                window: op.gqa.window,
                ahead: match op.gqa.is_causal {
                    true => 0,
                    false => op.gqa.window.map_or(usize::MAX, |n| n.saturating_sub(1)),
                },
                segment: op.gqa.segment,
                softcap: op.gqa.softcap,
                slopes: op.weights.slopes.as_deref(),
                bias: op.gqa.relative.zip(op.weights.bias.as_deref()).map(|(relative, values)| {
                    DistanceBias { values, reach: relative.max_distance }
                }),
                sinks: op.weights.sinks.as_deref(),
            };
            cpu.paged_attention(&kv.pages, kv.layer(op.place), &input, out);
        });
        if op.gqa.is_gated {
            let gate = StridedRows { data: qkv.floats(), stride: q.row_stride, offset: 0 };
            cpu.sigmoid_mul(out, gate, op.gqa.q_width());
        }
    }

    fn latent_project_store(
        &mut self,
        op: &LatentOp<'_, Self>,
        x: &Activations,
        kv: &mut CpuKv,
        q: &mut Activations,
    ) {
        let cos_sin = op.mla.rope.map(|rope| self.cos_sin[rope].as_slice());
        let mut projector = Projector { cpu: &self.cpu, input: &mut self.input, cos_sin };
        let q = q.floats_mut(x.n_rows());
        self.latent.project_store(&mut projector, op, x, &mut kv.pages, q);
    }

    fn latent_attention(
        &mut self,
        op: &LatentOp<'_, Self>,
        q: &Activations,
        kv: &CpuKv,
        out: &mut Activations,
    ) {
        let Self { cpu, latent, sequences, .. } = self;
        let out = out.floats_mut(q.n_rows());
        sequences.with(&op.rows, op.group, kv.pages.shape().block_size, |sequences| {
            latent.attend(cpu, op, sequences, (q.floats(), &kv.pages), out);
        });
    }

    fn recurrence(
        &mut self,
        op: &RecurrentOp<'_, Self>,
        projected: &Activations,
        kv: &mut CpuKv,
        out: &mut Activations,
    ) {
        let Self { cpu, sequences, recurrent, input, .. } = self;
        sequences.with_lanes(&op.rows, |sequences| {
            let states = (projected.floats(), &mut kv.states);
            recurrent.compute((cpu, input), op, sequences, states, out);
        });
    }

    fn selective_scan(
        &mut self,
        op: &SelectiveOp<'_, Self>,
        projected: &Activations,
        kv: &mut CpuKv,
        out: &mut Activations,
    ) {
        let Self { cpu, input, sequences, selection, .. } = self;
        let out = out.floats_mut(projected.n_rows());
        sequences.with_lanes(&op.rows, |sequences| {
            let rows = (projected.floats(), &mut kv.states);
            selection.compute((cpu, input), op, sequences, rows, out);
        });
    }

    fn short_conv(
        &mut self,
        op: &ConvOp<'_, Self>,
        projected: &Activations,
        kv: &mut CpuKv,
        out: &mut Activations,
    ) {
        let Self { cpu, sequences, recurrent, .. } = self;
        let out = out.floats_mut(projected.n_rows());
        sequences.with_lanes(&op.rows, |sequences| {
            recurrent.convolve(cpu, op, sequences, (projected.floats(), &mut kv.states), out);
        });
    }

    fn shift(
        &mut self,
        op: &ShiftOp<'_, Self>,
        x: &Activations,
        first: &mut Activations,
        kv: &mut CpuKv,
        out: &mut Activations,
    ) {
        let Self { cpu, input, sequences, shift, .. } = self;
        sequences.with_lanes(&op.rows, |sequences| {
            let rows = (x, &mut kv.states);
            shift.compute((cpu, input), op, sequences, [first, out], rows);
        });
    }

    fn linear(
        &mut self,
        _rows: StepRows<'_>,
        linear: &Linear<Self>,
        x: &Activations,
        out: &mut Activations,
    ) {
        let out = out.floats_mut(x.n_rows());
        multiply(&self.cpu, &mut self.input, linear, x, out);
    }

    fn mlp(
        &mut self,
        _rows: StepRows<'_>,
        mlp: &MlpWeights<Self>,
        x: &Activations,
        out: &mut Activations,
    ) {
        let out = out.floats_mut(x.n_rows());
        match mlp {
            Mlp::Gated(mlp) => self.perceptron(&mlp.weights, mlp.spec.shape(), x, out),
            Mlp::Plain(mlp) => self.perceptron(&mlp.weights, (mlp.spec.act, false, None), x, out),
            Mlp::Moe(moe) => self.mixture((&moe.spec, &moe.weights), [x, x], out),
            Mlp::WithExperts(both) => self.side_by_side(both, x, out),
            Mlp::Absent(_) => unreachable!("invariant: layers without a perceptron skip it"),
        }
    }

    fn gate_inputs(
        &mut self,
        act: Act,
        gate: &Activations,
        inputs: &Activations,
        first: usize,
        out: &mut Activations,
    ) {
        let (width, n_columns) = (gate.width(), inputs.width());
        self.hidden.resize(gate.n_rows() * 2 * width);
        let rows = gate.floats().chunks_exact(width).zip(inputs.floats().chunks_exact(n_columns));
        for (both, (gate, inputs)) in self.hidden.chunks_exact_mut(2 * width).zip(rows) {
            both[..width].copy_from_slice(gate);
            both[width..].copy_from_slice(&inputs[first..first + width]);
        }
        self.cpu.gated_mul(act, &self.hidden, out);
    }

    fn gather_rows(&mut self, x: &Activations, rows: &[usize], out: &mut Activations) {
        let width = x.width();
        let outs = out.floats_mut(rows.len()).chunks_exact_mut(width);
        for (out, &row) in outs.zip(rows) {
            out.copy_from_slice(&x.floats()[row * width..][..width]);
        }
    }

    fn head(
        &mut self,
        _rows: StepRows<'_>,
        head: &Head<'_, Self>,
        x: &Activations,
        logits: &mut Vec<f32>,
        greedy: GreedyRows<'_>,
    ) {
        let Head { weight, bias, scale, softcap } = *head;
        let GreedyRows { n_rows, n_sampled, tokens } = greedy;
        logits.resize((x.n_rows() - n_rows) * weight.n(), 0.0);
        // Any of these rows may be greedy in the next step.
        self.largest.reserve(x.n_rows().saturating_sub(self.largest.len()));
        self.largest.resize_with(n_rows, Largest::default);
        let x = in_forms(&self.cpu, read_by(&self.cpu, [weight]), x, &mut self.input.forms);
        let bias = bias.map(Vec::as_slice);
        let op = LogitsOp { weight, bias, scale, softcap, n_sampled };
        self.cpu.matmul_largest(&op, x, logits, &mut self.largest);
        tokens.clear();
        let token = |largest: &Largest| largest.index().map(|index| TokenId(index as u32));
        tokens.extend(self.largest.iter().map(token));
    }
}
