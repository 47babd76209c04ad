//! Kernels of one head of one row of [`wkv`](super::wkv).
//!
//! A row is prepared once, `[5][dim in whole vectors]`, and moved into the state from there, so
//! that a row of the open chunk that is taken in again gives the same bits:
//!
//! ```text
//! | decay | removal | return | key | value |
//! ```

use super::conv::load;
use crate::ops::rows::{moments, normalize};
use crate::simd::math::{exp, times_sigmoid};
use crate::simd::{LANES, Simd, shells};

/// Parts of a prepared row.
pub(super) const PARTS: usize = 5;

/// Factor of the sigmoid whose negative is the logarithm of a decay: `exp(-1/2)`, so that no decay
/// is below 0.545.
const LOG_DECAY: f32 = 0.606_530_66;

/// Vectors of values that are moved together, so that their sums do not wait for each other.
const STRIP: usize = 4;

/// One head of a row as it is projected, `[dim]` each.
pub(super) struct Raw<'a> {
    /// Decays before their sigmoid.
    pub(super) decay: &'a [f32],
    pub(super) key: &'a [f32],
    pub(super) value: &'a [f32],
    /// In-context learning rates before their sigmoid.
    pub(super) rate: &'a [f32],
    /// Values of the first layer, and how much of them is mixed in, before its sigmoid.
    pub(super) residual: Option<[&'a [f32]; 2]>,
    /// Factors of keys in removal keys.
    pub(super) removal_scale: &'a [f32],
    /// How much of its rate a key is multiplied with.
    pub(super) rate_scale: &'a [f32],
}

/// A prepared row, and what reads the state behind it.
pub(super) struct Advance<'a> {
    /// `[5][dim in whole vectors]`.
    pub(super) row: &'a [f32],
    /// Elements of a key.
    pub(super) dim: usize,
    /// The receptance, `[dim]`; `None` where only the state moves on.
    pub(super) read: Option<&'a [f32]>,
}

/// One head of a row behind the state, `[dim]` each.
pub(super) struct Finish<'a> {
    /// The sums that the receptance read from the state.
    pub(super) read: &'a [f32],
    pub(super) receptance: &'a [f32],
    /// Prepared.
    pub(super) key: &'a [f32],
    /// Prepared.
    pub(super) value: &'a [f32],
    pub(super) gate: &'a [f32],
    /// Weight of the row's own value in its output.
    pub(super) bonus: &'a [f32],
    /// Weight and bias of the norm.
    pub(super) norm: [&'a [f32]; 2],
    /// Added to the variance.
    pub(super) eps: f32,
}

/// Brings a row into the form in which a state takes it in.
#[inline(always)]
fn prepare<S: Simd>(s: S, raw: &Raw<'_>, out: &mut [f32]) {
    let (dim, padded) = (raw.key.len(), out.len() / PARTS);
    let part = |x: &[f32], at: usize| load(s, &x[at..dim.min(at + LANES)]);
    let removal = |at: usize| s.mul(part(raw.key, at), part(raw.removal_scale, at));
    let mut squares = s.splat(0.0);
    for at in (0..dim).step_by(LANES) {
        let x = removal(at);
        squares = s.fma(x, x, squares);
    }
    let length = s.sum(squares).sqrt();
    let scale = s.splat(1.0 / if length > 1e-12 { length } else { 1e-12 });
    let one = s.splat(1.0);
    for at in (0..dim).step_by(LANES) {
        let rate = times_sigmoid(s, one, part(raw.rate, at));
        let log_decay = times_sigmoid(s, s.splat(-LOG_DECAY), part(raw.decay, at));
        let unit = s.mul(removal(at), scale);
        let less = s.sub(rate, one);
        let key = s.mul(part(raw.key, at), s.fma(less, part(raw.rate_scale, at), one));
        let mut value = part(raw.value, at);
        if let Some([first, mix]) = raw.residual {
            let far = s.sub(part(first, at), value);
            value = s.add(value, times_sigmoid(s, far, part(mix, at)));
        }
        let parts = [exp(s, log_decay), s.sub(s.splat(0.0), unit), s.mul(unit, rate), key, value];
        for (i, x) in parts.into_iter().enumerate() {
            let out = out[i * padded + at..].first_chunk_mut();
            s.store(x, out.expect("invariant: prepared rows are whole vectors"));
        }
    }
}

/// Moves `N` vectors of values of a state, each `[dim][16]`, over a row.
#[inline(always)]
fn strip<S: Simd, const N: usize>(
    s: S,
    task: &Advance<'_>,
    values: &[f32],
    state: &mut [[f32; LANES]],
    out: &mut [f32],
) {
    let (n, padded) = (task.dim, task.row.len() / PARTS);
    let [decay, removal, back, key] = [0, 1, 2, 3].map(|i| &task.row[i * padded..][..n]);
    let values: [S::F; N] = std::array::from_fn(|i| load(s, &values[i * LANES..][..LANES]));
    let mut known = [s.splat(0.0); N];
    for (d, removal) in removal.iter().enumerate() {
        let removal = s.splat(*removal);
        for (i, known) in known.iter_mut().enumerate() {
            *known = s.fma(s.load(&state[i * n + d]), removal, *known);
        }
    }
    let mut sums = [s.splat(0.0); N];
    for d in 0..n {
        let [decay, back, key] = [decay, back, key].map(|x| s.splat(x[d]));
        let read = task.read.map(|read| s.splat(read[d]));
        for i in 0..N {
            let state = &mut state[i * n + d];
            let added = s.fma(known[i], back, s.mul(values[i], key));
            let moved = s.fma(s.load(state), decay, added);
            s.store(moved, state);
            if let Some(read) = read {
                sums[i] = s.fma(moved, read, sums[i]);
            }
        }
    }
    if task.read.is_some() {
        for (sum, out) in sums.into_iter().zip(out.as_chunks_mut().0) {
            s.store(sum, out);
        }
    }
}

/// Moves a state, `[vector of values][dim][16]`, over a row, and reads it where that is wanted.
#[inline(always)]
fn advance<S: Simd>(s: S, task: &Advance<'_>, state: &mut [f32], out: &mut [f32]) {
    let padded = task.row.len() / PARTS;
    let values = &task.row[4 * padded..];
    let state = state.as_chunks_mut::<LANES>().0;
    let n_whole = padded / LANES / STRIP * STRIP;
    for first in (0..n_whole).step_by(STRIP) {
        let vectors = &mut state[first * task.dim..(first + STRIP) * task.dim];
        let at = (first * LANES).min(out.len());
        strip::<S, STRIP>(s, task, &values[first * LANES..], vectors, &mut out[at..]);
    }
    for first in n_whole..padded / LANES {
        let vectors = &mut state[first * task.dim..(first + 1) * task.dim];
        let at = (first * LANES).min(out.len());
        strip::<S, 1>(s, task, &values[first * LANES..], vectors, &mut out[at..]);
    }
}

/// The norm of what was read, the row's own value, and the gate.
#[inline(always)]
fn finish<S: Simd>(s: S, task: &Finish<'_>, out: &mut [f32]) {
    let dim = out.len();
    let part = |x: &[f32], at: usize| load(s, &x[at..dim.min(at + LANES)]);
    normalize(s, task.read, moments(s, task.read, task.eps), task.norm, out);
    let mut own = s.splat(0.0);
    for at in (0..dim).step_by(LANES) {
        let product = s.mul(part(task.receptance, at), part(task.key, at));
        own = s.fma(product, part(task.bonus, at), own);
    }
    let own = s.splat(s.sum(own));
    for at in (0..dim).step_by(LANES) {
        let sum = s.fma(own, part(task.value, at), part(out, at));
        let gated = s.mul(sum, part(task.gate, at));
        let end = dim.min(at + LANES);
        match out[at..end].first_chunk_mut() {
            Some(out) => s.store(gated, out),
            None => s.store_part(gated, &mut out[at..end]),
        }
    }
}

shells! { pub(super) mod prepare_shells = prepare(raw: &Raw<'_>, out: &mut [f32]) }
shells! {
    pub(super) mod advance_shells =
        advance(task: &Advance<'_>, state: &mut [f32], out: &mut [f32])
}
shells! { pub(super) mod finish_shells = finish(task: &Finish<'_>, out: &mut [f32]) }
