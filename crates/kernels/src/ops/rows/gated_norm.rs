//! Norms with a gate: what follows the scan of a recurrent layer.
//!
//! ```text
//! row                 |-- group 0 --|-- group 1 --| ..      a group is a head, or several
//!
//! norm, then gate     out = ((x · r) · w) · silu(z)          r = 1 / sqrt(mean of x² + eps)
//! norm, then sigmoid  out = ((x · r) · w) / (1 + e⁻ᶻ)
//! gate, then norm     y = x · silu(z)                        r of y
//!                     out = (y · r) · w
//! gate alone          out = x · silu(z)
//! ```
//!
//! Sums of squares are those of `norm.rs`, group by group. 16 bytes and about 25 operations per
//! element; rows are shared by the team.
//!
//! # Papers
//!
//! Yang, Kautz and Hatamizadeh, *Gated Delta Networks*, 2024 (norm, then gate); Dao and Gu,
//! *Transformers are SSMs*, 2024 (gate, then norm); Kimi Team, *Kimi Linear*, 2025 (norm, then sigmoid).

use std::cell::RefCell;

use super::act::silu;
use super::norm::{inverse_rms, scale_by};
use crate::Cpu;
use crate::ops::activations::Activations;
use crate::ops::kv::StridedRows;
use crate::simd::math::times_sigmoid;
use crate::simd::shells;
use crate::simd::{LANES, Simd};

/// Whether the gate comes before the norm, after it or without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateOrder {
    /// The norm of `x` is gated (Gated DeltaNet).
    NormThenGate,
    /// The gated `x` is normed (Mamba 2).
    GateThenNorm,
    /// `x` is gated; there is no weight (Falcon-H1).
    GateAlone,
    /// The norm of `x` is multiplied by the sigmoid of the gate (Kimi Delta Attention).
    NormThenSigmoid,
}

/// Rows to be normed group by group, and their gates.
#[derive(Clone, Copy, Debug)]
pub struct GatedNorm<'a> {
    /// Which comes first.
    pub order: GateOrder,
    /// `[m, width]`.
    pub x: &'a [f32],
    /// Gates before their activation, `[m, width]`.
    pub z: StridedRows<'a>,
    /// `[group]`, shared by all groups, or `[width]`; empty without a norm.
    pub weight: &'a [f32],
    /// Elements of a group; they divide the width.
    pub group: usize,
    /// Added to the mean of squares.
    pub eps: f32,
}

/// A group of one row.
pub(super) type Kernel = unsafe fn([&[f32]; 3], f32, &mut [f32]);

/// `x · silu(z)`, or `x` times the sigmoid of `z`.
#[inline(always)]
fn gated<S: Simd, const HAS_SILU: bool>(s: S, x: S::F, z: S::F) -> S::F {
    if HAS_SILU { s.mul(x, silu(s, z)) } else { times_sigmoid(s, x, z) }
}

/// [`gated`] of every element, of equal lengths.
#[inline(always)]
fn gate<S: Simd, const HAS_SILU: bool>(s: S, x: &[f32], z: &[f32], out: &mut [f32]) {
    let (xs, x_tail) = x.as_chunks::<LANES>();
    let (zs, z_tail) = z.as_chunks::<LANES>();
    let (outs, out_tail) = out.as_chunks_mut::<LANES>();
    for ((x, z), out) in xs.iter().zip(zs).zip(outs) {
        s.store(gated::<S, HAS_SILU>(s, s.load(x), s.load(z)), out);
    }
    if !x_tail.is_empty() {
        let (x, z) = (s.load_part(x_tail, 0.0), s.load_part(z_tail, 0.0));
        s.store_part(gated::<S, HAS_SILU>(s, x, z), out_tail);
    }
}

/// Norms and then gates a group, given `x`, `z` and the weight.
#[inline(always)]
fn norm_then_gate<S: Simd>(s: S, group: [&[f32]; 3], eps: f32, out: &mut [f32]) {
    norm_then::<S, true>(s, group, eps, out);
}

/// Norms a group and multiplies it by the sigmoid of its gate, given `x`, `z` and the weight.
#[inline(always)]
fn norm_then_sigmoid<S: Simd>(s: S, group: [&[f32]; 3], eps: f32, out: &mut [f32]) {
    norm_then::<S, false>(s, group, eps, out);
}

/// Norms and then gates a group.
#[inline(always)]
fn norm_then<S: Simd, const HAS_SILU: bool>(s: S, group: [&[f32]; 3], eps: f32, out: &mut [f32]) {
    let [x, z, weight] = group;
    let r = inverse_rms(s, x, eps);
    /// Elements that pass from one to the other on the stack.
    const STRETCH: usize = 16 * LANES;
    let mut normed = [0.0; STRETCH];
    for at in (0..x.len()).step_by(STRETCH) {
        let columns = at..x.len().min(at + STRETCH);
        let normed = &mut normed[..columns.len()];
        scale_by(s, &x[columns.clone()], r, &weight[columns.clone()], normed);
        gate::<S, HAS_SILU>(s, normed, &z[columns.clone()], &mut out[columns]);
    }
}

/// Gates and then norms a group, given `x`, `z` and the weight.
#[inline(always)]
fn gate_then_norm<S: Simd>(s: S, group: [&[f32]; 3], eps: f32, out: &mut [f32]) {
    let [x, z, weight] = group;
    gate::<S, true>(s, x, z, out);
    let r = s.splat(inverse_rms(s, out, eps));
    let (outs, out_tail) = out.as_chunks_mut::<LANES>();
    let (weights, weight_tail) = weight.as_chunks::<LANES>();
    for (out, weight) in outs.iter_mut().zip(weights) {
        s.store(s.mul(s.mul(s.load(out), r), s.load(weight)), out);
    }
    if !out_tail.is_empty() {
        let (y, weight) = (s.load_part(out_tail, 0.0), s.load_part(weight_tail, 0.0));
        s.store_part(s.mul(s.mul(y, r), weight), out_tail);
    }
}

/// Gates a group.
#[inline(always)]
fn gate_alone<S: Simd>(s: S, group: [&[f32]; 3], _eps: f32, out: &mut [f32]) {
    let [x, z, _] = group;
    gate::<S, true>(s, x, z, out);
}

shells! {
    pub(super) mod gate_alone_shells =
        gate_alone(group: [&[f32]; 3], eps: f32, out: &mut [f32])
}
shells! {
    pub(super) mod norm_then_gate_shells =
        norm_then_gate(group: [&[f32]; 3], eps: f32, out: &mut [f32])
}
shells! {
    pub(super) mod norm_then_sigmoid_shells =
        norm_then_sigmoid(group: [&[f32]; 3], eps: f32, out: &mut [f32])
}
shells! {
    pub(super) mod gate_then_norm_shells =
        gate_then_norm(group: [&[f32]; 3], eps: f32, out: &mut [f32])
}

impl Cpu {
    /// Root-mean-square norm of each group of each row, with a SiLU gate before or after it or a sigmoid
    /// after it, in the forms of `out`.
    ///
    /// # Shapes
    ///
    /// `out`: rows of the width of `input.x`.
    ///
    /// # Panics
    ///
    /// When the shapes disagree.
    pub fn gated_norm(&self, input: &GatedNorm<'_>, out: &mut Activations) {
        thread_local! {
            static ROW: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
        }
        let GatedNorm { order, x, z, weight, group, eps } = *input;
        let width = out.width();
        assert!(x.len().is_multiple_of(width), "invariant: whole rows of x");
        assert!(group > 0 && width.is_multiple_of(group), "invariant: whole groups");
        let is_shared = weight.len() == group || order == GateOrder::GateAlone;
        assert!(is_shared || weight.len() == width, "invariant: a weight per element");
        let kernel = self.kernels.rows.gated_norm[order as usize];
        let out = out.writer(self, x.len() / width);
        // An exponential and a division weigh like about four plain elements.
        self.for_each_part(x.len() / width, 4 * width, |rows| {
            ROW.with_borrow_mut(|made| {
                made.resize(width, 0.0);
                for row in rows {
                    let (x, z) = (&x[row * width..(row + 1) * width], z.row(row, width));
                    for (i, made) in made.chunks_exact_mut(group).enumerate() {
                        let own = i * group..(i + 1) * group;
                        let weight = if is_shared { weight } else { &weight[own.clone()] };
                        // SAFETY: the kernels of a `Cpu` are available on this machine.
                        unsafe { kernel([&x[own.clone()], &z[own], weight], eps, made) };
                    }
                    // SAFETY: each row belongs to one tile.
                    unsafe { out.row(row, |columns, out| out.copy_from_slice(&made[columns])) };
                }
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Forms;
    use crate::testing::{Random, bits, row_cpus};

    const ORDERS: [GateOrder; 4] = [
        GateOrder::NormThenGate,
        GateOrder::GateThenNorm,
        GateOrder::NormThenSigmoid,
        GateOrder::GateAlone,
    ];

    fn exact(input: &GatedNorm<'_>, x: &[f32], z: &[f32], out: &mut Vec<f64>) {
        let factor = if input.order == GateOrder::NormThenSigmoid { |_| 1.0 } else { |z: f64| z };
        let silu = |z: f32| factor(f64::from(z)) / (1.0 + (-f64::from(z)).exp());
        let is_before = input.order == GateOrder::GateThenNorm;
        for (i, x) in x.chunks(input.group).enumerate() {
            let z = &z[i * input.group..];
            if input.order == GateOrder::GateAlone {
                out.extend(x.iter().zip(z).map(|(x, z)| f64::from(*x) * silu(*z)));
                continue;
            }
            let weight = &input.weight[i * input.group % input.weight.len()..];
            let y = x
                .iter()
                .zip(z)
                .map(|(x, z)| f64::from(*x) * if is_before { silu(*z) } else { 1.0 });
            let y: Vec<f64> = y.collect();
            let mean = y.iter().map(|y| y * y).sum::<f64>() / y.len() as f64;
            let r = 1.0 / (mean + f64::from(input.eps)).sqrt();
            out.extend(y.iter().zip(z).zip(weight).map(|((y, z), weight)| {
                y * r * f64::from(*weight) * if is_before { 1.0 } else { silu(*z) }
            }));
        }
    }

    #[test]
    fn gated_norms_are_close_to_their_formulas_and_equal_on_every_instruction_set_and_team() {
        let mut random = Random::new(240);
        for (m, n_groups, group) in [(1, 1, 5), (3, 4, 16), (2, 3, 77), (40, 8, 128), (1, 1, 600)] {
            let width = n_groups * group;
            let (x, z) = (random.normals(m * width), random.normals(m * (width + 3)));
            for order in ORDERS {
                for n_weights in [group, width] {
                    let has_norm = order != GateOrder::GateAlone;
                    let weight = random.normals(if has_norm { n_weights } else { 0 });
                    let z = StridedRows { data: &z, stride: width + 3, offset: 2 };
                    let input = GatedNorm { order, x: &x, z, weight: &weight, group, eps: 1e-3 };
                    let mut expected = Vec::new();
                    for (row, x) in x.chunks(width).enumerate() {
                        exact(&input, x, z.row(row, width), &mut expected);
                    }
                    let cpus = row_cpus();
                    let run = |cpu: &Cpu| {
                        let mut out = Activations::new(width, Forms::F32);
                        cpu.gated_norm(&input, &mut out);
                        out.floats().to_vec()
                    };
                    let first = run(&cpus[0]);
                    for (got, exact) in first.iter().zip(&expected) {
                        let off = (f64::from(*got) - exact).abs();
                        assert!(off < 2e-6 * (1.0 + exact.abs()), "{order:?}: {got} not {exact}");
                    }
                    for cpu in &cpus {
                        assert_eq!(bits(&run(cpu)), bits(&first), "{}", cpu.kernels.name);
                    }
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "invariant: whole groups")]
    fn groups_that_do_not_divide_the_row_are_a_broken_invariant() {
        let (x, weight) = ([0.0; 10], [0.0; 3]);
        let z = StridedRows::dense(&x, 10);
        let order = GateOrder::NormThenGate;
        let input = GatedNorm { order, x: &x, z, weight: &weight, group: 3, eps: 0.0 };
        row_cpus()[0].gated_norm(&input, &mut Activations::new(10, Forms::F32));
    }
}
