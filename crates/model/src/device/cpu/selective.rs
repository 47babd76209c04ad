//! Selective scans on the CPU: the steps between the projections of a layer.
//!
//! ```text
//! projected [m, u | z]
//!     u ── convolution, silu ──> [m, channels] ── selection ──> [m, dt | k | q], normed
//!     dt ── step ──> [m, channels]
//! ── selective scan, gated by z ──> out [m, channels]
//! ```

use pelton_kernels::{
    Activations, ConvInput, ConvWeights, Cpu, Forms, HeadLayout, SelectiveInput, StateSeq,
    StateStore, StridedRows,
};
use pelton_tensor::AlignedVec;

use super::CpuDevice;
use super::linear::{Input, multiply};
use crate::device::SelectiveOp;

/// Scratch of selective scans.
#[derive(Debug)]
pub(super) struct Selection {
    /// Output of the convolution.
    convolved: Activations,
    /// The selected time steps, keys and queries, `[m, selection_width]`.
    selected: AlignedVec<f32>,
    /// The inputs of the projection to time steps, `[m, step_rank]`.
    low: Activations,
    /// Time steps before their softplus, `[m, channels]`.
    steps: Vec<f32>,
}

impl Selection {
    pub(super) fn new() -> Self {
        let rows = || Activations::new(1, Forms::F32);
        Self { convolved: rows(), selected: AlignedVec::new(), low: rows(), steps: Vec::new() }
    }

    /// The selective scan of all rows, gated. `out`: `[m, channels]`.
    pub(super) fn compute(
        &mut self,
        (cpu, scratch): (&Cpu, &mut Input),
        op: &SelectiveOp<'_, CpuDevice>,
        sequences: &[StateSeq<'_>],
        (projected, states): (&[f32], &mut StateStore),
        out: &mut [f32],
    ) {
        let SelectiveOp { scan: spec, weights, layer, .. } = *op;
        let n = spec.channels;
        let m = projected.len() / (2 * n);
        let part = |offset| StridedRows { data: projected, stride: 2 * n, offset };
        let bias = weights.conv_bias.as_deref();
        let conv = ConvWeights { weights: &weights.conv, bias, taps: spec.taps, n_filters: 1 };
        let input = ConvInput { x: part(0), weights: conv, has_silu: true, sequences };
        self.convolved.reset(n, Forms::F32);
        cpu.conv_rows(states, layer, &input, self.convolved.floats_mut(m));
        let width = spec.selection_width();
        self.selected.resize(m * width);
        multiply(cpu, scratch, &weights.selection, &self.convolved, &mut self.selected);
        let selected = spec.selected();
        for (norm, [offset, head_dim]) in weights.norms.iter().flatten().zip(selected) {
            let layout = HeadLayout { row_stride: width, offset, n_heads: 1, head_dim };
            cpu.head_rms_norm(&mut self.selected, &layout, &norm.weight, norm.eps);
        }
        let rank = spec.step_rank;
        self.low.reset(rank, Forms::F32);
        let rows = self.low.floats_mut(m).chunks_exact_mut(rank);
        for (low, selected) in rows.zip(self.selected.chunks_exact(width)) {
            low.copy_from_slice(&selected[..rank]);
        }
        self.steps.resize(m * n, 0.0);
        multiply(cpu, scratch, &weights.step, &self.low, &mut self.steps);
        let [_, [keys, _], [queries, _]] = selected;
        let selected = |offset| StridedRows { data: &self.selected, stride: width, offset };
        let input = SelectiveInput {
            state_dim: spec.state_dim,
            x: StridedRows::dense(self.convolved.floats(), n),
            steps: StridedRows::dense(&self.steps, n),
            keys: selected(keys),
            queries: selected(queries),
            gates: part(n),
            rates: &weights.rates,
            skip: &weights.skip,
            sequences,
        };
        cpu.selective_scan(states, layer, &input, out);
    }
}
