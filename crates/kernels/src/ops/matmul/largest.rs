//! The output head fused with the argmax: the index of the largest logit, without writing the row.
//!
//! ```text
//! blocks of a product: strips of panels x blocks of rows           handed out to threads
//!   tile kernel ──► scratch [rows, strip] of the thread            in its cache
//!   for each row of the block
//!     + bias, · scale, softcap
//!     wanted whole   copied to its row of logits
//!     else           below the largest so far: nothing             one vector pass
//!                    else its first place: merged                  (value, lowest index)
//! ```
//!
//! # Which is the largest
//!
//! The logit that the sampler takes of a whole row: NaN is passed over, plus infinity counts as the
//! largest finite number (of the two, the lower index wins), `-0.0` equals `0.0`, and among equals
//! the lowest index wins. A row without a finite number has none, which ends its request.
//!
//! # Canonical order
//!
//! Logits are those of [`Cpu::matmul`], then of [`Cpu::add_bias`], [`Cpu::scale`] and the cap, bit
//! for bit. The largest logit of a row so far is one 64-bit word, `(order of the value, !index)`,
//! and threads merge by an atomic maximum: the result does not depend on the order of blocks or
//! threads.
//!
//! # Bytes and operations
//!
//! `n_bytes` of weights once per block of rows and `2 · m · n · k` operations, as in a plain
//! product. It saves writing `4 · m · n` bytes, the passes of bias, scale and cap over them, and
//! the 6 bytes per logit that [`Cpu::argmax`] reads: with a vocabulary of 128,256 these are 1.3 MB
//! per row. Beside 279 MB of weights (2048 inputs of 8 bits) that is little for one row and a fifth
//! for 40 rows; and the team does the remaining work, not one thread.
//!
//! Rows that are wanted whole are in the same call, so that a step with both kinds reads the
//! weights once.
//!
//! Considered and not taken (reasoned, not measured): the maximum in the registers of the tile
//! kernels (another copy of each kernel for every layout, to save a pass over lines that are in the
//! first-level cache); one word per thread and row and a merge afterwards (memory per thread, to
//! save atomics that become rare after the first strips, as most logits are below the largest so
//! far).

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{Block, Cut, Target, with_scratch};
use crate::cpu::Cpu;
use crate::layout::{PANEL, PackedMatrix};
use crate::ops::activations::Activations;
use crate::team::Parts;
use crate::tuning::Tuning;

/// The operation that turns rows into logits: `softcap(scale · (x Wᵀ + b))`.
#[derive(Clone, Copy, Debug)]
pub struct LogitsOp<'a> {
    /// `[n, k]`.
    pub weight: &'a PackedMatrix,
    /// `[n]`.
    pub bias: Option<&'a [f32]>,
    /// Factor of the logits.
    pub scale: f32,
    /// `c · tanh(logit / c)`.
    pub softcap: Option<f32>,
    /// Number of leading outputs among which the largest is searched; all of them where this
    /// exceeds their number.
    pub n_sampled: usize,
}

/// Index of the largest logit of a row, merged from several threads.
#[derive(Debug, Default)]
pub struct Largest {
    /// Upper half: the value as an unsigned number in the same order. Lower half: the inverted bits
    /// of the index. Zero while no logit above minus infinity is known.
    known: AtomicU64,
    /// Whether the row has a finite logit; `known` does not say, because plus infinity and the
    /// largest finite number are one value there.
    has_finite: AtomicBool,
}

impl Largest {
    /// The lowest index of the largest logit; `None` when no logit is a finite number.
    pub fn index(&self) -> Option<usize> {
        let known = self.known.load(Ordering::Relaxed);
        let is_one = known != 0 && self.has_finite.load(Ordering::Relaxed);
        is_one.then_some(!(known as u32) as usize)
    }

    /// Merges the logits of the indices from `first` on.
    fn look(&self, cpu: &Cpu, logits: &[f32], first: usize) {
        // SAFETY: the kernels of a `Cpu` are available on this machine.
        let largest = unsafe { (cpu.kernels.rows.largest)(logits) };
        if largest == f32::NEG_INFINITY {
            return;
        }
        let is_known = self.has_finite.load(Ordering::Relaxed);
        if !is_known && (largest.is_finite() || logits.iter().any(|logit| logit.is_finite())) {
            self.has_finite.store(true, Ordering::Relaxed);
        }
        let largest = largest.min(f32::MAX);
        let order = u64::from(ordered(largest)) << 32;
        // The word only grows, so a stale reading can only let a candidate pass in vain.
        if order < self.known.load(Ordering::Relaxed) & !u64::from(u32::MAX) {
            return;
        }
        let at = logits.iter().position(|&logit| logit >= largest);
        let index = (first + at.expect("invariant: the largest is one of them")) as u32;
        self.known.fetch_max(order | u64::from(!index), Ordering::Relaxed);
    }
}

/// An unsigned number in the order of the floats, equal for both zeros; 0 only for a NaN.
fn ordered(x: f32) -> u32 {
    let bits = (x + 0.0).to_bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

/// State of one call of [`Cpu::matmul_largest`].
struct Step<'a> {
    cpu: &'a Cpu,
    op: &'a LogitsOp<'a>,
    x: &'a Activations,
    /// `[n_whole, n]`.
    whole: Parts<'a, f32>,
    n_whole: usize,
    /// Of the rows after the whole ones.
    largest: &'a [Largest],
}

impl Cpu {
    /// Computes the logits of the first rows of `x`, and of the last `largest.len()` rows only the
    /// index of the largest logit.
    ///
    /// # Shapes
    ///
    /// `x`: `[m, k]`; `whole`: `[m - largest.len(), n]`. Any `m`, also 0.
    ///
    /// # Panics
    ///
    /// When the shapes do not fit, there are 2³² outputs, or `x` is not held in the form that the
    /// weights read.
    pub fn matmul_largest(
        &self,
        op: &LogitsOp<'_>,
        x: &Activations,
        whole: &mut [f32],
        largest: &mut [Largest],
    ) {
        let (w, m) = (op.weight, x.n_rows());
        assert_eq!(x.width(), w.k(), "width of the activations");
        assert!(largest.len() <= m, "{} of {m} rows", largest.len());
        assert!(u32::try_from(w.n()).is_ok(), "outputs are counted in 32 bits");
        let n_whole = m - largest.len();
        assert_eq!(Some(whole.len()), n_whole.checked_mul(w.n()), "whole rows of logits");
        assert!(op.bias.is_none_or(|bias| bias.len() == w.n()), "a bias of each output");
        largest.fill_with(Largest::default);
        if m == 0 || w.n() == 0 {
            return;
        }
        let Tuning { strip_panels, min_parallel_bytes, .. } = self.tuning.clamped();
        // Where no row is wanted whole, outputs that are not sampled need not be computed.
        let n_wanted = if n_whole == 0 { op.n_sampled.min(w.n()) } else { w.n() };
        let n_panels = n_wanted.div_ceil(PANEL);
        let cut = Cut::new(self, w, m, n_panels.div_ceil(strip_panels) * m);
        let rows_per_block = cut.rows_beside(cut.strip_panels * PANEL * size_of::<f32>());
        let cut = Cut { n_panels, rows_per_block, ..cut };
        let whole = Parts::new(whole);
        let step = Step { cpu: self, op, x, whole, n_whole, largest };
        let run = |idx: usize| step.block(cut.block(idx));
        if w.n_bytes().saturating_mul(m) < min_parallel_bytes {
            (0..cut.n_blocks()).for_each(run);
        } else {
            cut.hand_out(self, run);
        }
    }
}

impl Step<'_> {
    /// Computes one block.
    fn block(&self, block: Block) {
        let w = self.op.weight;
        let columns = block.panels.start * PANEL..w.n().min(block.panels.end * PANEL);
        with_scratch(block.rows.len() * columns.len(), |scratch| {
            let n = columns.len();
            let y = Target { ptr: scratch.as_mut_ptr(), stride: n, n_columns: n };
            let rows = block.rows.clone();
            self.cpu.multiply_tile(w, self.x, rows.start, block, y);
            for (row, logits) in rows.zip(scratch.chunks_exact_mut(n)) {
                self.finish(row, columns.clone(), logits);
            }
        });
    }

    /// Turns some columns of a row into logits, then copies or merges them.
    fn finish(&self, row: usize, columns: Range<usize>, logits: &mut [f32]) {
        let LogitsOp { weight, bias, scale, softcap, n_sampled } = *self.op;
        let kernels = self.cpu.kernels.rows;
        if let Some(bias) = bias {
            // SAFETY: the kernels of a `Cpu` are available on this machine.
            unsafe { (kernels.add)(logits, &bias[columns.clone()]) };
        }
        if scale != 1.0 {
            // SAFETY: as above.
            unsafe { (kernels.scale)(logits, scale) };
        }
        if let Some(cap) = softcap {
            logits.iter_mut().for_each(|logit| *logit = cap * (*logit / cap).tanh());
        }
        let Some(nth) = row.checked_sub(self.n_whole) else {
            let start = row * weight.n();
            // SAFETY: each column of each row belongs to one block.
            let to = unsafe { self.whole.part(start + columns.start..start + columns.end) };
            return to.copy_from_slice(logits);
        };
        let n = n_sampled.saturating_sub(columns.start).min(logits.len());
        if n > 0 {
            self.largest[nth].look(self.cpu, &logits[..n], columns.start);
        }
    }
}

#[cfg(test)]
#[path = "largest_tests.rs"]
mod tests;
