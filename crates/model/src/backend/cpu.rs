//! The CPU backend: fused layer operations as calls into [`pelton_kernels`].
//!
//! What the memory need not see again stays in scratch rows that are reused by every layer and
//! step: the int8 copy of a layer input (made once, read by every matrix of that input), the
//! gate·up product and its activation. Nothing is allocated in a step once the largest batch has
//! been seen.

use std::ops::Range;
use std::sync::Arc;

use pelton_base::TokenId;
use pelton_kernels::{
    AttentionInput, Cpu, GatedAct, HeadLayout, KvCache, KvShape, LAYOUT_VERSION, MatmulInput,
    MatmulOutput, PackedMatrix, QuantizedRows, RopeLayout, Storage, StoreKv, StridedRows,
    WeightLayout,
};
use pelton_quant::{Compute, QuantError};
use pelton_tensor::{MappedFile, TensorView};

use super::{AttentionOp, Backend, GatedMlpWeights, Linear, Norm, PackedBytes, PackedForm, Step};
use crate::arch::{Act, Gqa};
use crate::comm::{CommError, Communicator};
use crate::rope::RopeTable;

/// Runs decoders on the CPU.
#[derive(Debug)]
pub struct CpuBackend {
    cpu: Cpu,
    quantized: QuantizedRows,
    gate_up: Vec<f32>,
    activated: Vec<f32>,
    /// `[m, head_dim]`: cosines and sines of this step's positions.
    cos_sin: Vec<f32>,
}

/// Rows of f32 in memory.
#[derive(Debug)]
pub struct CpuBuf {
    data: Vec<f32>,
    width: usize,
}

impl CpuBuf {
    fn resize(&mut self, n_rows: usize) -> &mut [f32] {
        self.data.resize(n_rows * self.width, 0.0);
        &mut self.data
    }

    fn n_rows(&self) -> usize {
        self.data.len() / self.width
    }
}

impl CpuBackend {
    /// A backend on the given kernels and threads.
    pub fn new(cpu: Cpu) -> Self {
        Self {
            cpu,
            quantized: QuantizedRows::new(),
            gate_up: Vec::new(),
            activated: Vec::new(),
            cos_sin: Vec::new(),
        }
    }

    /// The kernels and threads in use.
    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }
}

/// `y = x Wᵀ + b`, dense; `x` is quantized at most once for all parts.
fn multiply(
    cpu: &Cpu,
    quantized: &mut QuantizedRows,
    linear: &Linear<CpuBackend>,
    x: &[f32],
    y: &mut [f32],
) {
    debug_assert_eq!(x.len() / linear.k, y.len() / linear.n);
    let is_quantized = linear.parts.iter().any(PackedMatrix::needs_quantized_input);
    if is_quantized {
        cpu.quantize_rows(x, linear.k, quantized);
    }
    let input = MatmulInput { rows: x, quantized: is_quantized.then_some(&*quantized) };
    let mut offset = 0;
    for part in &linear.parts {
        cpu.matmul(part, input, MatmulOutput { data: y, stride: linear.n, offset });
        offset += part.n();
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
    type Buf = CpuBuf;
    type Weight = PackedMatrix;
    type Vector = Vec<f32>;
    type Kv = KvCache;

    fn pack(&self, parts: &[TensorView<'_>], compute: Compute) -> Result<PackedMatrix, QuantError> {
        pelton_quant::pack(&self.cpu, parts, compute)
    }

    fn vector(&self, values: &[f32]) -> Vec<f32> {
        values.to_vec()
    }

    fn buffer(&self, width: usize) -> CpuBuf {
        assert!(width > 0, "invariant: rows are not empty");
        CpuBuf { data: Vec::new(), width }
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

    fn packed_form(&self) -> Option<&dyn PackedForm<PackedMatrix>> {
        Some(self)
    }

    fn weight_bytes(weight: &PackedMatrix) -> usize {
        weight.n_bytes()
    }

    fn begin_step(&mut self, step: &Step<'_>, rope: &RopeTable) {
        let width = 2 * rope.inv_freq.len();
        self.cos_sin.resize(step.positions.len() * width, 0.0);
        for (row, &position) in self.cos_sin.chunks_exact_mut(width).zip(step.positions) {
            rope.fill(position, row);
        }
    }

    fn embed(&mut self, table: &PackedMatrix, tokens: &[TokenId], out: &mut CpuBuf) {
        let width = out.width;
        let rows = out.resize(tokens.len()).chunks_exact_mut(width);
        for (row, token) in rows.zip(tokens) {
            table.unpack_row_f32(token.0 as usize, row);
        }
    }

    fn rms_norm(&mut self, x: &CpuBuf, norm: &Norm<Self>, out: &mut CpuBuf) {
        self.cpu.rms_norm(&x.data, &norm.weight, norm.eps, out.resize(x.n_rows()));
    }

    fn add_rms_norm(
        &mut self,
        residual: &mut CpuBuf,
        delta: &CpuBuf,
        norm: &Norm<Self>,
        out: &mut CpuBuf,
    ) {
        let out = out.resize(delta.n_rows());
        self.cpu.add_rms_norm(&mut residual.data, &delta.data, &norm.weight, norm.eps, out);
    }

    fn qkv_rope_store(
        &mut self,
        op: &AttentionOp<'_, Self>,
        x: &CpuBuf,
        kv: &mut KvCache,
        qkv: &mut CpuBuf,
    ) {
        let qkv = qkv.resize(x.n_rows());
        multiply(&self.cpu, &mut self.quantized, &op.weights.qkv, &x.data, qkv);
        let [q, k, v] = head_layouts(op.gqa);
        for (heads, norm) in [(q, &op.weights.q_norm), (k, &op.weights.k_norm)] {
            if let Some(norm) = norm {
                self.cpu.head_rms_norm(qkv, &heads, &norm.weight, norm.eps);
            }
        }
        // k follows q: one call rotates the heads of both.
        let heads = HeadLayout { n_heads: q.n_heads + k.n_heads, ..q };
        let rotary_dim = op.gqa.head_dim;
        let layout = RopeLayout { heads, rotary_dim, interleaved: false };
        self.cpu.rope(qkv, &layout, &self.cos_sin);
        let rows = |heads: HeadLayout| StridedRows {
            data: qkv,
            stride: heads.row_stride,
            offset: heads.offset,
        };
        let store = StoreKv { k: rows(k), v: rows(v), slots: op.step.slots };
        self.cpu.store_kv(kv, op.layer, &store);
    }

    fn paged_attention(
        &mut self,
        op: &AttentionOp<'_, Self>,
        qkv: &CpuBuf,
        kv: &KvCache,
        out: &mut CpuBuf,
    ) {
        let [q, ..] = head_layouts(op.gqa);
        let input = AttentionInput {
            q: StridedRows { data: &qkv.data, stride: q.row_stride, offset: q.offset },
            n_heads: op.gqa.n_heads,
            sequences: op.step.sequences,
            scale: (op.gqa.head_dim as f32).sqrt().recip(),
            window: op.gqa.window,
            softcap: None,
        };
        self.cpu.paged_attention(kv, op.layer, &input, out.resize(qkv.n_rows()));
    }

    fn linear(&mut self, linear: &Linear<Self>, x: &CpuBuf, out: &mut CpuBuf) {
        let out = out.resize(x.n_rows());
        multiply(&self.cpu, &mut self.quantized, linear, &x.data, out);
    }

    fn gated_mlp(&mut self, mlp: &GatedMlpWeights<Self>, x: &CpuBuf, out: &mut CpuBuf) {
        let (m, ffn) = (x.n_rows(), mlp.down.k);
        let act = match mlp.act {
            Act::Silu => GatedAct::Silu,
            Act::GeluTanh => GatedAct::GeluTanh,
        };
        self.gate_up.resize(m * 2 * ffn, 0.0);
        self.activated.resize(m * ffn, 0.0);
        multiply(&self.cpu, &mut self.quantized, &mlp.gate_up, &x.data, &mut self.gate_up);
        self.cpu.gated_mul(act, &self.gate_up, ffn, &mut self.activated);
        let out = out.resize(m);
        multiply(&self.cpu, &mut self.quantized, &mlp.down, &self.activated, out);
    }

    fn gather_rows(&mut self, x: &CpuBuf, rows: &[usize], out: &mut CpuBuf) {
        let width = x.width;
        let outs = out.resize(rows.len()).chunks_exact_mut(width);
        for (out, &row) in outs.zip(rows) {
            out.copy_from_slice(&x.data[row * width..][..width]);
        }
    }

    fn head(
        &mut self,
        head: &PackedMatrix,
        x: &CpuBuf,
        softcap: Option<f32>,
        logits: &mut Vec<f32>,
    ) {
        logits.resize(x.n_rows() * head.n(), 0.0);
        let is_quantized = head.needs_quantized_input();
        if is_quantized {
            self.cpu.quantize_rows(&x.data, head.k(), &mut self.quantized);
        }
        let quantized = is_quantized.then_some(&self.quantized);
        let output = MatmulOutput { data: logits, stride: head.n(), offset: 0 };
        self.cpu.matmul(head, MatmulInput { rows: &x.data, quantized }, output);
        if let Some(cap) = softcap {
            for logit in logits {
                *logit = cap * (*logit / cap).tanh();
            }
        }
    }

    fn all_reduce(&mut self, comm: &dyn Communicator, x: &mut CpuBuf) -> Result<(), CommError> {
        comm.all_reduce(&mut x.data)
    }
}
