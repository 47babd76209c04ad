//! Inner products of the keys of a chunk with the keys and queries of its new rows.
//!
//! ```text
//! keys         [4 groups][key_dim][16 slots]     lanes are slots: no sum crosses lanes
//!
//! for 2 groups x 4 rows of k and q:   acc[r][g] = fma(x[r][d], keys[g][d], acc[r][g])    d ascends
//! ```
//!
//! A lane is a slot, so an inner product does not depend on its slot nor on its neighbours, and a
//! draft of a tree has the products of the same row in a chain. Products with slots after a row's
//! own are computed with it and never read.

use std::ops::Range;

use super::CHUNK;
use crate::ops::kv::StridedRows;
use crate::simd::{LANES, Simd, shells};

/// Groups of sixteen slots in a chunk.
pub(super) const GROUPS: usize = CHUNK / LANES;

/// Inner products of a row with the keys of each slot: of its key, and of its query.
pub(super) type RowDots = [[f32; CHUNK]; 2];

/// The new rows of one chunk and key head.
pub(super) struct Dots<'a> {
    pub(super) k: StridedRows<'a>,
    pub(super) q: StridedRows<'a>,
    /// The rows.
    pub(super) rows: Range<usize>,
    /// Elements of the key head within a row of `k` and `q`.
    pub(super) columns: Range<usize>,
    /// Slot of the first row.
    pub(super) first_slot: usize,
    /// Whether products with keys are needed.
    pub(super) is_delta: bool,
    /// Keys of the chunk, `[key_dim]` of each group; those of the rows are written.
    pub(super) keys: [&'a mut [[f32; LANES]]; GROUPS],
    /// One for each row.
    pub(super) out: &'a mut [RowDots],
}

impl<'a> Dots<'a> {
    /// Key (0) or query (1) of the `i`th row.
    #[inline(always)]
    fn source(&self, i: usize, which: usize) -> &'a [f32] {
        let from = if which == 0 { &self.k } else { &self.q };
        &from.row(self.rows.start + i, self.columns.end)[self.columns.clone()]
    }
}

/// Writes the keys of the rows to their slots, and the products to `out`.
#[inline(always)]
fn dots<S: Simd>(s: S, mut task: Dots<'_>) {
    let n = task.rows.len();
    let first = usize::from(!task.is_delta);
    store_keys(s, &mut task);
    let mut i = 0;
    while S::IS_WIDE && i + 4 <= n {
        for which in first..2 {
            let mut x: [&[f32]; 4] = [&[]; 4];
            for (r, x) in x.iter_mut().enumerate() {
                *x = task.source(i + r, which);
            }
            products(s, &mut task, i, which, x);
        }
        i += 4;
    }
    while i < n {
        for which in first..2 {
            let x = [task.source(i, which)];
            products(s, &mut task, i, which, x);
        }
        i += 1;
    }
}

/// Writes the keys of the rows to their slots, whole groups by transposing.
#[inline(always)]
fn store_keys<S: Simd>(s: S, task: &mut Dots<'_>) {
    let (n, dim) = (task.rows.len(), task.columns.len());
    let mut i = 0;
    while i < n {
        let slot = task.first_slot + i;
        let (group, lane) = (slot / LANES, slot % LANES);
        if lane == 0 && i + LANES <= n {
            let mut rows: [&[f32]; LANES] = [&[]; LANES];
            for (r, row) in rows.iter_mut().enumerate() {
                *row = task.source(i + r, 0);
            }
            for d in (0..dim).step_by(LANES) {
                let end = dim.min(d + LANES);
                let mut block = [s.splat(0.0); LANES];
                for (x, row) in block.iter_mut().zip(&rows) {
                    *x = match row[d..end].first_chunk() {
                        Some(row) => s.load(row),
                        None => s.load_part(&row[d..end], 0.0),
                    };
                }
                s.transpose(&mut block);
                for (key, x) in task.keys[group][d..end].iter_mut().zip(&block) {
                    s.store(*x, key);
                }
            }
            i += LANES;
            continue;
        }
        let key = task.source(i, 0);
        for (out, x) in task.keys[group].iter_mut().zip(key) {
            out[lane] = *x;
        }
        i += 1;
    }
}

/// Products of `R` rows, the first of which is the `i`th, with all slots up to the last of them.
#[inline(always)]
fn products<S: Simd, const R: usize>(
    s: S,
    task: &mut Dots<'_>,
    i: usize,
    which: usize,
    x: [&[f32]; R],
) {
    let n_groups = (task.first_slot + i + R).div_ceil(LANES);
    let mut group = 0;
    if S::IS_WIDE && R == 4 {
        while group + 4 <= n_groups {
            tile::<S, R, 4>(s, task, i, which, x, group);
            group += 4;
        }
    }
    while group + 2 <= n_groups {
        tile::<S, R, 2>(s, task, i, which, x, group);
        group += 2;
    }
    if group < n_groups {
        tile::<S, R, 1>(s, task, i, which, x, group);
    }
}

/// Products of `R` rows with `G` groups.
#[inline(always)]
fn tile<S: Simd, const R: usize, const G: usize>(
    s: S,
    task: &mut Dots<'_>,
    i: usize,
    which: usize,
    x: [&[f32]; R],
    first: usize,
) {
    let dim = task.columns.len();
    let mut keys: [&[[f32; LANES]]; G] = [&[]; G];
    for (g, keys) in keys.iter_mut().enumerate() {
        *keys = &task.keys[first + g][..dim];
    }
    let mut acc = [[s.splat(0.0); G]; R];
    for d in 0..dim {
        let mut k = [s.splat(0.0); G];
        for g in 0..G {
            k[g] = s.load(&keys[g][d]);
        }
        for r in 0..R {
            let x = s.splat(x[r][d]);
            for g in 0..G {
                acc[r][g] = s.fma(x, k[g], acc[r][g]);
            }
        }
    }
    for (acc, out) in acc.iter().zip(&mut task.out[i..]) {
        let out = &mut out[which].as_chunks_mut::<LANES>().0[first..];
        for (acc, out) in acc.iter().zip(out) {
            s.store(*acc, out);
        }
    }
}

shells! { pub(super) mod dots_shells = dots(task: Dots<'_>) }
