//! The CPU backend: fused layer operations as calls into [`pelton_kernels`].
//!
//! What the memory need not see again stays in scratch rows that are reused by every layer and
//! step: the gate·up product, its activation, and layer inputs in the forms that their matrices read
//! (int8, bf16). Norms and activations write these forms themselves; the output of attention is
//! brought into them here. Nothing is allocated in a step once the largest batch has been seen.

use std::ops::Range;
use std::sync::Arc;

use pelton_base::TokenId;
use pelton_kernels::{
    Activations, AttentionInput, Cpu, Forms, HeadLayout, KvCache, KvShape, LAYOUT_VERSION, Largest,
    LogitsOp, MatmulOutput, PANEL, PackedMatrix, RopeLayout, Storage, StoreKv, StridedRows, Turn,
    WeightLayout,
};
use pelton_quant::checkpoint::QuantizedTensor;
use pelton_quant::{Compute, QuantError};
use pelton_tensor::{MappedFile, TensorView};

use super::experts::Experts;
use super::latent::{Device, Latent};
use super::{AttentionOp, Backend, GreedyRows, Head, LatentOp, PackedBytes, PackedForm, Step};
use crate::arch::{Act, Gqa, Mlp, QkNorm};
use crate::comm::SoleRank;
use crate::decoder::Decoder;
use crate::error::ModelError;
use crate::layer::{Linear, MlpWeights, Norm, Piece, TwoLayers};
use crate::rope::RopeTable;

/// Runs decoders on the CPU.
#[derive(Debug)]
pub struct CpuBackend {
    pub(super) cpu: Cpu,
    /// A layer's input as its matrices read it, where its buffer has floats alone.
    pub(super) input: Input,
    /// A perceptron's hidden layer before the activation.
    hidden: Vec<f32>,
    activated: Activations,
    /// What latent attention needs between its operations.
    latent: Latent,
    pub(super) experts: Experts,
    /// `[m, rotary_dim]` for each rotary embedding: cosines and sines of this step's positions.
    cos_sin: Vec<Vec<f32>>,
    /// Of the rows of a step that want no logits.
    largest: Vec<Largest>,
}

/// Scratch rows of a layer's input.
#[derive(Debug)]
pub(super) struct Input {
    /// In the forms that a matrix reads.
    forms: Activations,
    /// Floats in the order that a matrix wants.
    ordered: Vec<f32>,
    /// A product that is added to another.
    sum: Vec<f32>,
}

impl CpuBackend {
    /// A backend on the kernels of this machine, or those that `PELTON_KERNELS` names, and on
    /// `n_threads` threads, by default one per usable core.
    ///
    /// # Errors
    ///
    /// When `PELTON_KERNELS` names kernels that this machine cannot run.
    pub fn with_threads(n_threads: Option<usize>) -> Result<Self, ModelError> {
        Ok(Self::new(Cpu::new(n_threads)?))
    }

    /// A backend on the given kernels and threads.
    pub fn new(cpu: Cpu) -> Self {
        Self {
            cpu,
            input: Input {
                forms: Activations::new(1, Forms::F32),
                ordered: Vec::new(),
                sum: Vec::new(),
            },
            hidden: Vec::new(),
            activated: Activations::new(1, Forms::F32),
            latent: Latent::new(),
            experts: Experts::new(),
            cos_sin: Vec::new(),
            largest: Vec::new(),
        }
    }

    /// One perceptron of all rows. `out`: `[m, hidden]`.
    pub(super) fn perceptron(
        &mut self,
        layers: &TwoLayers<Self>,
        act: Act,
        is_gated: bool,
        x: &Activations,
        out: &mut [f32],
    ) {
        self.hidden.resize(x.n_rows() * layers.up.n, 0.0);
        multiply(&self.cpu, &mut self.input, &layers.up, x, &mut self.hidden);
        self.activated.reset(layers.down.k, handed_to(&self.cpu, &layers.down));
        if is_gated {
            self.cpu.gated_mul(act, &self.hidden, &mut self.activated);
        } else {
            self.cpu.activate(act, &self.hidden, &mut self.activated);
        }
        multiply(&self.cpu, &mut self.input, &layers.down, &self.activated, out);
    }

    /// The kernels and threads in use.
    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }
}

impl Decoder<CpuBackend> {
    /// The layouts of the matrices that a token passes through, with their bytes, largest first.
    pub fn layouts(&self) -> Vec<(WeightLayout, usize)> {
        let mut found: Vec<(WeightLayout, usize)> = Vec::new();
        for matrix in self.matrices() {
            match found.iter_mut().find(|(layout, _)| *layout == matrix.layout()) {
                Some((_, n_bytes)) => *n_bytes += matrix.n_bytes(),
                None => found.push((matrix.layout(), matrix.n_bytes())),
            }
        }
        found.sort_by_key(|(_, n_bytes)| std::cmp::Reverse(*n_bytes));
        found
    }
}

/// The forms of activations that these matrices read.
pub(super) fn read_by<'a>(cpu: &Cpu, weights: impl IntoIterator<Item = &'a PackedMatrix>) -> Forms {
    weights.into_iter().fold(Forms::default(), |forms, w| forms.read_by(cpu, w))
}

/// `x` if it is held in these forms, else `scratch` with its floats in these forms.
fn in_forms<'a>(
    cpu: &Cpu,
    forms: Forms,
    x: &'a Activations,
    scratch: &'a mut Activations,
) -> &'a Activations {
    if x.forms().include(forms) {
        return x;
    }
    scratch.reset(x.width(), forms);
    cpu.write_rows(x.floats(), scratch);
    scratch
}

/// The forms in which a projection is given its input: reordered inputs are read as f32, because
/// quantized groups cannot be permuted.
fn handed_to(cpu: &Cpu, linear: &Linear<CpuBackend>) -> Forms {
    if linear.is_reordered() { Forms::F32 } else { read_by(cpu, linear.weights()) }
}

/// The elements `order` of the rows of `x`, in the forms that `weight` reads.
fn in_order<'a>(
    cpu: &Cpu,
    weight: &PackedMatrix,
    order: &[u32],
    x: &Activations,
    scratch: &'a mut Input,
) -> &'a Activations {
    scratch.ordered.clear();
    for row in x.floats().chunks_exact(x.width()) {
        scratch.ordered.extend(order.iter().map(|j| row[*j as usize]));
    }
    scratch.forms.reset(order.len(), read_by(cpu, [weight]));
    cpu.write_rows(&scratch.ordered, &mut scratch.forms);
    &scratch.forms
}

/// `y = x Wᵀ` where pieces read the inputs in orders of their own; products of the same rows are
/// added in the order of the pieces.
fn multiply_reordered(
    cpu: &Cpu,
    scratch: &mut Input,
    linear: &Linear<CpuBackend>,
    x: &Activations,
    y: &mut [f32],
) {
    let mut sum = std::mem::take(&mut scratch.sum);
    for Piece { weight, first_row, order, adds } in &linear.pieces {
        let (offset, n) = (*first_row, weight.n());
        let input = match order {
            Some(order) => in_order(cpu, weight, order, x, scratch),
            None => in_forms(cpu, read_by(cpu, [weight]), x, &mut scratch.forms),
        };
        if *adds {
            sum.resize(input.n_rows() * n, 0.0);
            cpu.matmul(weight, input, MatmulOutput { data: &mut sum, stride: n, offset: 0 });
            for (y, sum) in y.chunks_exact_mut(linear.n).zip(sum.chunks_exact(n)) {
                y[offset..offset + n].iter_mut().zip(sum).for_each(|(y, sum)| *y += sum);
            }
        } else {
            cpu.matmul(weight, input, MatmulOutput { data: y, stride: linear.n, offset });
        }
    }
    scratch.sum = sum;
}

/// `y = x Wᵀ + b`, dense.
pub(super) fn multiply(
    cpu: &Cpu,
    scratch: &mut Input,
    linear: &Linear<CpuBackend>,
    x: &Activations,
    y: &mut [f32],
) {
    debug_assert_eq!(x.n_rows(), y.len() / linear.n);
    if linear.is_reordered() {
        multiply_reordered(cpu, scratch, linear, x, y);
    } else {
        let x = in_forms(cpu, read_by(cpu, linear.weights()), x, &mut scratch.forms);
        for Piece { weight, first_row, .. } in &linear.pieces {
            let output = MatmulOutput { data: y, stride: linear.n, offset: *first_row };
            cpu.matmul(weight, x, output);
        }
    }
    if let Some(bias) = &linear.bias {
        cpu.add_bias(y, bias);
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
    [
        layout(0, gqa.n_heads),
        layout(gqa.q_width(), gqa.n_kv_heads),
        layout(gqa.q_width() + gqa.kv_width(), gqa.n_kv_heads),
    ]
}

impl PackedForm<PackedMatrix> for CpuBackend {
    fn layout_version(&self) -> u32 {
        LAYOUT_VERSION
    }

    fn describe<'w>(&self, weight: &'w PackedMatrix) -> PackedBytes<'w> {
        PackedBytes {
            layout: weight.layout().name(),
            n: weight.n(),
            k: weight.k(),
            bytes: weight.storage_bytes(),
        }
    }

    fn restore(
        &self,
        layout: &str,
        [n, k]: [usize; 2],
        file: &Arc<MappedFile>,
        range: Range<usize>,
    ) -> Option<PackedMatrix> {
        let layout = *WeightLayout::ALL.iter().find(|known| known.name() == layout)?;
        PackedMatrix::from_storage(layout, n, k, Storage::mapped(file.clone(), range)?)
    }

    fn for_each(&self, n: usize, f: &(dyn Fn(usize) + Sync)) {
        self.cpu.team.for_each_tile(n, f);
    }
}

impl Backend for CpuBackend {
    type Buf = Activations;
    type Weight = PackedMatrix;
    type Vector = Vec<f32>;
    type Kv = KvCache;
    type Comm = SoleRank;
    /// One wake for all operations of a step, and no other user of the team between them.
    type Turn = Turn;

    const HEAD_ROWS: usize = PANEL;

    fn comm(&self) -> &SoleRank {
        &SoleRank
    }

    fn pack(
        &self,
        parts: &[TensorView<'_>],
        compute: Compute,
        done: &mut dyn FnMut(Range<usize>),
    ) -> Result<PackedMatrix, QuantError> {
        pelton_quant::pack_bands(&self.cpu, parts, compute, done)
    }

    fn pack_quantized(
        &self,
        parts: &[&QuantizedTensor<'_>],
        compute: Compute,
    ) -> Result<PackedMatrix, QuantError> {
        pelton_quant::checkpoint::pack_quantized(&self.cpu, parts, compute)
    }

    fn vector(&self, values: &[f32]) -> Vec<f32> {
        values.to_vec()
    }

    fn buffer(&self, width: usize) -> Activations {
        Activations::new(width, Forms::F32)
    }

    fn input_buffer<'a>(
        &self,
        width: usize,
        readers: impl IntoIterator<Item = &'a PackedMatrix>,
    ) -> Activations {
        Activations::new(width, read_by(&self.cpu, readers))
    }

    fn new_kv(&self, shape: &KvShape) -> std::io::Result<KvCache> {
        KvCache::try_new(*shape)
    }

    fn kv_block_bytes(shape: &KvShape) -> usize {
        shape.bytes_per_block()
    }

    fn kv_block_size(kv: &KvCache) -> usize {
        kv.shape().block_size
    }

    fn copy_kv_block(&self, kv: &mut KvCache, from: u32, to: u32) {
        kv.copy_block(from, to);
    }

    fn copy_kv_slot(&self, kv: &mut KvCache, from: u32, to: u32) {
        kv.copy_slot(from, to);
    }

    fn read_kv_block(&self, kv: &KvCache, block: u32, bytes: &mut [u8]) {
        kv.read_block(block, bytes);
    }

    fn write_kv_block(&self, kv: &mut KvCache, block: u32, bytes: &[u8]) {
        kv.write_block(block, bytes);
    }

    fn packed_form(&self) -> Option<&dyn PackedForm<PackedMatrix>> {
        Some(self)
    }

    fn weight_bytes(weight: &PackedMatrix) -> usize {
        weight.n_bytes()
    }

    fn begin_step(&mut self, step: &Step<'_>, ropes: &[RopeTable]) -> Turn {
        let turn = self.cpu.team.turn();
        self.cos_sin.resize_with(ropes.len(), Vec::new);
        for (rope, cos_sin) in ropes.iter().zip(&mut self.cos_sin) {
            let width = 2 * rope.inv_freq.len();
            cos_sin.resize(step.positions.len() * width, 0.0);
            for (row, &position) in cos_sin.chunks_exact_mut(width).zip(step.positions) {
                rope.fill(position, row);
            }
        }
        turn
    }

    fn embed(&mut self, table: &PackedMatrix, tokens: &[TokenId], out: &mut Activations) {
        let width = out.width();
        let rows = out.floats_mut(tokens.len()).chunks_exact_mut(width);
        for (row, token) in rows.zip(tokens) {
            table.unpack_row_f32(token.0 as usize, row);
        }
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
        kv: &mut KvCache,
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
        if let Some(cos_sin) = op.gqa.rope.map(|rope| &self.cos_sin[rope]) {
            // k follows q: one call rotates the heads of both.
            let heads = HeadLayout { n_heads: q.n_heads + k.n_heads, ..q };
            let rotary_dim = cos_sin.len() / op.step.positions.len();
            self.cpu.rope(
                qkv,
                &RopeLayout { heads, first: 0, rotary_dim, interleaved: false },
                cos_sin,
            );
        }
        if let Some(temperature) = op.gqa.temperature {
            let rows = qkv.chunks_exact_mut(op.gqa.qkv_width()).zip(op.step.positions);
            for (row, position) in rows {
                let factor = temperature.at(*position);
                row[..op.gqa.q_width()].iter_mut().for_each(|q| *q *= factor);
            }
        }
        let rows = |heads: HeadLayout| StridedRows {
            data: qkv,
            stride: heads.row_stride,
            offset: heads.offset,
        };
        let store = StoreKv { k: rows(k), v: Some(rows(v)), slots: op.step.slots };
        self.cpu.store_kv(kv, op.layer, &store);
    }

    fn paged_attention(
        &mut self,
        op: &AttentionOp<'_, Self>,
        qkv: &Activations,
        kv: &KvCache,
        out: &mut Activations,
    ) {
        let [q, ..] = head_layouts(op.gqa);
        let input = AttentionInput {
            q: StridedRows { data: qkv.floats(), stride: q.row_stride, offset: q.offset },
            n_heads: op.gqa.n_heads,
            sequences: op.step.sequences,
            scale: op.gqa.scale,
            window: op.gqa.window,
            ahead: match op.gqa.is_causal {
                true => 0,
                false => op.gqa.window.map_or(usize::MAX, |n| n.saturating_sub(1)),
            },
            segment: op.gqa.segment,
            softcap: op.gqa.softcap,
            slopes: op.weights.slopes.as_deref(),
            sinks: op.weights.sinks.as_deref(),
        };
        self.cpu.paged_attention(kv, op.layer, &input, out.floats_mut(qkv.n_rows()));
    }

    fn latent_project_store(
        &mut self,
        op: &LatentOp<'_, Self>,
        x: &Activations,
        kv: &mut KvCache,
        q: &mut Activations,
    ) {
        let cos_sin = &self.cos_sin[op.mla.rope];
        let mut device = Device { cpu: &self.cpu, input: &mut self.input, cos_sin };
        self.latent.project_store(&mut device, op, x, kv, q.floats_mut(x.n_rows()));
    }

    fn latent_attention(
        &mut self,
        op: &LatentOp<'_, Self>,
        q: &Activations,
        kv: &KvCache,
        out: &mut Activations,
    ) {
        self.latent.attend(&self.cpu, op, q.floats(), kv, out.floats_mut(q.n_rows()));
    }

    fn linear(&mut self, linear: &Linear<Self>, x: &Activations, out: &mut Activations) {
        let out = out.floats_mut(x.n_rows());
        multiply(&self.cpu, &mut self.input, linear, x, out);
    }

    fn mlp(&mut self, mlp: &MlpWeights<Self>, x: &Activations, out: &mut Activations) {
        let out = out.floats_mut(x.n_rows());
        match mlp {
            Mlp::Gated(mlp) => self.perceptron(&mlp.weights, mlp.spec.act, true, x, out),
            Mlp::Plain(mlp) => self.perceptron(&mlp.weights, mlp.spec.act, false, x, out),
            Mlp::Moe(moe) => self.mixture(moe, x, out),
        }
    }

    fn gather_rows(&mut self, x: &Activations, rows: &[usize], out: &mut Activations) {
        let width = x.width();
        let outs = out.floats_mut(rows.len()).chunks_exact_mut(width);
        for (out, &row) in outs.zip(rows) {
            out.copy_from_slice(&x.floats()[row * width..][..width]);
        }
    }

    fn read(&self, x: &Activations, out: &mut Vec<f32>) {
        out.clear();
        out.extend_from_slice(x.floats());
    }

    fn head(
        &mut self,
        head: &Head<'_, Self>,
        x: &Activations,
        logits: &mut Vec<f32>,
        greedy: GreedyRows<'_>,
    ) {
        let Head { weight, bias, scale, softcap } = *head;
        let GreedyRows { n_rows, n_sampled, tokens } = greedy;
        logits.resize((x.n_rows() - n_rows) * weight.n(), 0.0);
        // Room for all rows: those that are wanted whole now may be greedy in the next step.
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
