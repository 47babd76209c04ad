//! Latent attention on the CPU: the steps around the attention over latents.
//!
//! ```text
//! x ── down ──> projected [m, q_down | kv_rank | rope]             one product
//!     latents normed, rotated, stored: kv_rank + rope elements per row
//!     q:  norm, up ──> [m, heads x (nope | rope)]                  or projected itself
//!         nope, head by head ── k_up[h] ──┐
//!         rope, rotated ──────────────────┴─> [m, heads x (kv_rank | rope)]     absorbed queries
//! attention over latents ──> [m, heads x kv_rank]
//!     head by head ── v_up[h] ──> [m, heads x value]
//! ```
//!
//! Each head has one product over all rows of the step, and the products of all heads are handed out to
//! threads together. Inputs are summed in ascending order as in every product, so the result of a row
//! does not depend on the number of rows.
//!
//! Scratch holds `heads · (2 · kv_rank + rope + nope)` floats per row, more than the residual
//! stream; a step's rows are bounded by its budget.

use pelton_kernels::{
    Activations, AttentionInput, AttentionSeq, Cpu, Forms, HeadLayout, HeadSlices, KvCache,
    MatmulOutput, PackedMatrix, RopeLayout, StoreKv, StridedRows,
};
use pelton_tensor::AlignedVec;

use super::CpuDevice;
use super::linear::{Input, multiply, read_by};
use crate::arch::Mla;
use crate::device::LatentOp;
use crate::layer::{MixerKind, Norm};

/// Scratch rows of latent attention.
#[derive(Debug)]
pub(super) struct Latent {
    /// Projection of the residual stream.
    projected: AlignedVec<f32>,
    /// The latents of queries, in models that have them.
    q_latents: Activations,
    /// Queries as they were trained.
    q: AlignedVec<f32>,
    /// Inputs of the products of heads.
    by_head: Activations,
    /// Outputs of heads that were padded.
    padded: AlignedVec<f32>,
    /// Weighted sums of latents.
    attended: AlignedVec<f32>,
}

/// The parts of the device that project.
pub(super) struct Projector<'a> {
    pub(super) cpu: &'a Cpu,
    pub(super) input: &'a mut Input,
    /// `[m, rope_dim]`: cosines and sines; absent where nothing is rotated.
    pub(super) cos_sin: Option<&'a [f32]>,
}

impl Latent {
    pub(super) fn new() -> Self {
        let empty = || Activations::new(1, Forms::F32);
        Self {
            projected: AlignedVec::new(),
            q_latents: empty(),
            q: AlignedVec::new(),
            by_head: empty(),
            padded: AlignedVec::new(),
            attended: AlignedVec::new(),
        }
    }

    /// Projects `x`, stores latents and rotated keys, and writes the absorbed queries to `out`.
    pub(super) fn project_store(
        &mut self,
        projector: &mut Projector<'_>,
        op: &LatentOp<'_, CpuDevice>,
        x: &Activations,
        kv: &mut KvCache,
        out: &mut [f32],
    ) {
        let LatentOp { mla, weights, .. } = *op;
        let &mut Projector { cpu, cos_sin, .. } = projector;
        let norm = |rows: &mut [f32], layout: &HeadLayout, norm: &Norm<CpuDevice>| {
            cpu.head_rms_norm(rows, layout, &norm.weight, norm.eps);
        };
        let rotate = |rows: &mut [f32], heads, first| {
            let (rotary_dim, interleaved) = (mla.rope_dim, mla.is_rope_in_pairs);
            if let Some(cos_sin) = cos_sin {
                cpu.rope(rows, &RopeLayout { heads, first, rotary_dim, interleaved }, cos_sin);
            }
        };

        let (m, width, latent_at) = (x.n_rows(), mla.down_width(), mla.q_down_width());
        self.projected.resize(m * width);
        multiply(cpu, projector.input, &weights.down, x, &mut self.projected);
        let part =
            |offset, head_dim| HeadLayout { row_stride: width, offset, n_heads: 1, head_dim };
        norm(&mut self.projected, &part(latent_at, mla.kv_rank), &weights.kv_norm);
        rotate(&mut self.projected, part(latent_at, mla.key_dim()), mla.kv_rank);
        let k = StridedRows { data: &self.projected, stride: width, offset: latent_at };
        cpu.store_kv(kv, op.place.layer, &StoreKv { k, v: None, slots: op.rows.slots(op.group) });

        // Queries as they were trained, at the start of rows of `row_stride`.
        let (trained, row_stride) = match (&weights.q_up, &weights.q_norm, mla.q_rank) {
            (Some(q_up), Some(q_norm), Some(rank)) => {
                norm(&mut self.projected, &part(0, rank), q_norm);
                let from = slices(width, 0, [1, rank], rank);
                self.q_latents.reset(rank, Forms::F32);
                cpu.write_heads(&self.projected, &from, &mut self.q_latents);
                self.q.resize(m * mla.q_width());
                multiply(cpu, projector.input, q_up, &self.q_latents, &mut self.q);
                (&mut self.q, mla.q_width())
            }
            _ => (&mut self.projected, width),
        };
        let (n_heads, head_dim) = (mla.n_heads, mla.nope_dim + mla.rope_dim);
        rotate(trained, HeadLayout { row_stride, offset: 0, n_heads, head_dim }, mla.nope_dim);
        let heads = [n_heads, head_dim];
        let from = slices(row_stride, mla.nope_dim, heads, mla.rope_dim);
        let (stride, head_stride) = (mla.absorbed_width(), mla.key_dim());
        let to = slices(stride, mla.kv_rank, [n_heads, head_stride], mla.rope_dim);
        cpu.copy_heads(trained, &from, out, &to);
        let from = slices(row_stride, 0, heads, mla.nope_dim);
        let output = MatmulOutput { data: out, stride, offset: 0 };
        let x = (&**trained, &from);
        let scratch = (&mut self.by_head, &mut self.padded);
        multiply_heads(cpu, &weights.k_up, x, scratch, output, [mla.kv_rank, head_stride]);
    }

    /// The normed latents of the rows that were projected last, of queries and of keys and values.
    pub(super) fn latents(&self, mla: &Mla, out: [&mut Vec<f32>; 2]) {
        let widths = [mla.q_rank.unwrap_or(0), mla.kv_rank];
        for ((out, width), first) in out.into_iter().zip(widths).zip([0, mla.q_down_width()]) {
            let rows = self.projected.chunks_exact(mla.down_width());
            out.clear();
            out.extend(rows.flat_map(|row| &row[first..first + width]));
        }
    }

    /// Attention of the absorbed queries `q` over latents, and the projections of values.
    pub(super) fn attend(
        &mut self,
        cpu: &Cpu,
        op: &LatentOp<'_, CpuDevice>,
        sequences: &[AttentionSeq<'_>],
        (q, kv): (&[f32], &KvCache),
        out: &mut [f32],
    ) {
        let LatentOp { mla, weights, .. } = *op;
        let (n_heads, stride) = (mla.n_heads, mla.out_width());
        let width = n_heads * mla.kv_rank;
        self.attended.resize(q.len() / mla.absorbed_width() * width);
        let input = AttentionInput {
            q: StridedRows::dense(q, mla.absorbed_width()),
            n_heads,
            sequences,
            scale: mla.scale,
            window: None,
            ahead: 0,
            segment: None,
            softcap: None,
            slopes: None,
            bias: None,
            sinks: None,
        };
        cpu.paged_attention(kv, op.place.layer, &input, &mut self.attended);
        let from = slices(width, 0, [n_heads, mla.kv_rank], mla.kv_rank);
        let output = MatmulOutput { data: out, stride, offset: 0 };
        let x = (&*self.attended, &from);
        let scratch = (&mut self.by_head, &mut self.padded);
        multiply_heads(cpu, &weights.v_up, x, scratch, output, [mla.value_dim; 2]);
    }
}

/// Slices of `width` elements of heads that are `head_stride` apart, the first one at `offset`.
fn slices(
    row_stride: usize,
    offset: usize,
    [n_heads, head_stride]: [usize; 2],
    width: usize,
) -> HeadSlices {
    HeadSlices { row_stride, offset, n_heads, head_stride, width }
}

/// `y[i, h * head_stride ..][.. n] = x[i, h] W[h]ᵀ`, the heads of `x` being slices of its rows; the
/// rows of a head of `w` beyond its first `n` are padding.
fn multiply_heads(
    cpu: &Cpu,
    w: &PackedMatrix,
    (x, from): (&[f32], &HeadSlices),
    (by_head, padded): (&mut Activations, &mut AlignedVec<f32>),
    y: MatmulOutput<'_>,
    [n, head_stride]: [usize; 2],
) {
    by_head.reset(from.width, read_by(cpu, [w]));
    cpu.write_heads(x, from, by_head);
    let n_heads = from.n_heads;
    let n_packed = w.n() / n_heads;
    if n_packed == n {
        return cpu.matmul_heads(w, n_heads, by_head, y, head_stride);
    }
    let width = n_heads * n_packed;
    padded.resize(by_head.n_rows() / n_heads * width);
    let output = MatmulOutput { data: padded, stride: width, offset: 0 };
    cpu.matmul_heads(w, n_heads, by_head, output, n_packed);
    let from = slices(width, 0, [n_heads, n_packed], n);
    let to = slices(y.stride, y.offset, [n_heads, head_stride], n);
    cpu.copy_heads(padded, &from, y.data, &to);
}
