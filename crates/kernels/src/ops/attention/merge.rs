//! Partial softmax sums, and how two of them become one.
//!
//! ```text
//! State of n rows   acc [n][padded value_dim] | max [n] | sum [n]          in whole vectors
//!
//! merge(A, B):  m = max(A.max, B.max)   a = exp(A.max - m)   b = exp(B.max - m)
//!               sum = fma(A.sum, a, B.sum · b)     acc[d] = fma(A.acc[d], a, B.acc[d] · b)
//! ```
//!
//! An empty side (no visible position) leaves the other as it is, bit for bit. About 12 bytes and
//! 3 operations per element, once per 256 positions: a few thousandths of the chunk itself.

use crate::simd::math::exp;
use crate::simd::shells;
use crate::simd::{LANES, Simd};

/// Sums over some positions for `n` rows.
///
/// A row that saw no position has `max = -inf` and `sum = 0`.
pub(super) struct State<'a> {
    /// Largest score, `[n]`.
    pub(super) max: &'a mut [f32],
    /// Sum of `exp(score - max)`, `[n]`.
    pub(super) sum: &'a mut [f32],
    /// Sum of `exp(score - max) · value`, `[n, padded value_dim]`.
    pub(super) acc: &'a mut [f32],
}

impl<'a> State<'a> {
    /// Floats that the state of `n` rows takes.
    pub(super) fn n_floats(n: usize, padded_dim: usize) -> usize {
        (n * (2 + padded_dim)).next_multiple_of(LANES)
    }

    /// A state of `n` rows in `memory`, whose contents it takes as they are.
    pub(super) fn over(memory: &'a mut [f32], n: usize, padded_dim: usize) -> Self {
        let (acc, rest) = memory.split_at_mut(n * padded_dim);
        let (max, rest) = rest.split_at_mut(n);
        let sum = &mut rest[..n];
        Self { max, sum, acc }
    }

    /// Empties the state: no position seen.
    pub(super) fn clear(&mut self) {
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
        self.acc.fill(0.0);
    }
}

/// Memory of several states, one behind the other.
pub(super) struct States<'a> {
    pub(super) memory: &'a mut [f32],
    /// Floats of each, as many as the largest needs or more.
    pub(super) stride: usize,
}

impl States<'_> {
    /// The memory of each state.
    pub(super) fn each(&mut self) -> impl Iterator<Item = &mut [f32]> {
        self.memory.chunks_exact_mut(self.stride)
    }
}

/// The reference that scores are taken relative to: finite where all scores are `-inf`.
#[inline(always)]
pub(super) fn reference(max: f32) -> f32 {
    if max == f32::NEG_INFINITY { 0.0 } else { max }
}

#[inline(always)]
fn exp_one<S: Simd>(s: S, x: f32) -> f32 {
    let mut out = [0.0; LANES];
    s.store(exp(s, s.splat(x)), &mut out);
    out[0]
}

/// `into = merge(into, part)` for each row.
#[inline(always)]
fn merge<S: Simd>(s: S, into: &mut State<'_>, part: &State<'_>) {
    let n = into.max.len();
    if n == 0 {
        return;
    }
    let padded = into.acc.len() / n;
    for row in 0..n {
        // A NaN sum is not empty: it must reach the result.
        if part.max[row] == f32::NEG_INFINITY && part.sum[row] == 0.0 {
            continue;
        }
        let acc = &mut into.acc[row * padded..(row + 1) * padded];
        let add = &part.acc[row * padded..(row + 1) * padded];
        if into.max[row] == f32::NEG_INFINITY && into.sum[row] == 0.0 {
            into.max[row] = part.max[row];
            into.sum[row] = part.sum[row];
            acc.copy_from_slice(add);
            continue;
        }
        let (x, y) = (into.max[row], part.max[row]);
        let max = if x > y { x } else { y };
        let a = exp_one(s, x - reference(max));
        let b = exp_one(s, y - reference(max));
        into.max[row] = max;
        into.sum[row] = into.sum[row].mul_add(a, part.sum[row] * b);
        let (a, b) = (s.splat(a), s.splat(b));
        let blocks = acc.as_chunks_mut::<LANES>().0.iter_mut().zip(add.as_chunks::<LANES>().0);
        for (acc, add) in blocks {
            s.store(s.fma(s.load(acc), a, s.mul(s.load(add), b)), acc);
        }
    }
}

/// `out = acc / sum`, or zeros when nothing was seen; `acc` is at least as long as `out`.
#[inline(always)]
fn finish<S: Simd>(s: S, acc: &[f32], sum: f32, out: &mut [f32]) {
    if sum == 0.0 {
        return out.fill(0.0);
    }
    let inverse = s.splat(1.0 / sum);
    let (outs, tail) = out.as_chunks_mut::<LANES>();
    let n_tail = tail.len();
    let (accs, acc_tail) = acc[..outs.len() * LANES + n_tail].as_chunks::<LANES>();
    for (acc, out) in accs.iter().zip(outs) {
        s.store(s.mul(s.load(acc), inverse), out);
    }
    if n_tail > 0 {
        s.store_part(s.mul(s.load_part(acc_tail, 0.0), inverse), tail);
    }
}

shells! { pub(super) mod merge_shells = merge(into: &mut State<'_>, part: &State<'_>) }
shells! { pub(super) mod finish_shells = finish(acc: &[f32], sum: f32, out: &mut [f32]) }
