//! Inner products of the keys of a chunk with the keys and queries of its new rows.
//!
//! ```text
//! keys         [4 groups][key_dim][16 slots]     lanes are slots: no sum crosses lanes
//!
//! 4 groups x (4 rows of k or q, or k and q of a row):
//!                                     acc[r][g] = fma(x[r][d], keys[g][d], acc[r][g])    d ascends
//! ```
//!
//! Where each element of a key has a decay of its own, with `G` its running sum:
//!
//! ```text
//! acc[r][g] = fma(x[r][d], exp(G[r][d] - G[g][d]) · keys[g][d], acc[r][g])              d ascends
//! ```
//!
//! Sums never rise along a path, so these factors are at most 1, however long the chunk fades. That
//! is an exponential per element, slot and row, for the key and the query together. Not done: decays
//! in two factors around a slot between (fewer exponentials, but such a slot would lie elsewhere for
//! a row of a tree of drafts than for the same row of a chain).
//!
//! A lane is a slot, so an inner product does not depend on its slot nor on its neighbours, and a
//! draft of a tree has the products of the same row in a chain. Products with slots after a row's
//! own are computed with it and never read.
//!
//! Tried and dropped: keys as rows, `[CHUNK][key_dim]`, transposed where they are multiplied. A decoding
//! row writes 4 bytes to each of `key_dim` lines here, which are read from memory and written back:
//! 16 KiB beside a state of 64 KiB. As rows this traffic was gone, and one Zen 5 core decoded the
//! first row of a chunk in 41 to 43 microseconds in place of 44 to 45 (16 heads of 128 x 128), with
//! decays by channel in 45 to 47 in place of 54 to 57. But 64 rows of a chunk had to be transposed for
//! each row: the last row took 125 to 150 in place of 100, and 167 to 178 in place of 122 to 129.
//! Only the open group of sixteen slots as rows, transposed where it is multiplied, and in place when
//! it is whole: no difference on two Zen 4 cores (51 and 52 microseconds for the first row, 100 and 97
//! for the last), for a count of whole groups in each lane.
//!
//! A decoding row's key and query are multiplied together, so that enough sums are under way and keys
//! are read once, and each line of keys asks for that of the next head. Two Zen 4 cores take 9, 5 and
//! 5 % less for the first, the middle and the last row of a chunk than with neither, with decays by channel
//! 15, 9 and 9 % (states from memory, 16 heads of 128 x 128; medians in turn, while memory gave 30 GB/s);
//! 15, 13 and 20 %, and 14, 16 and 21 %, while it gave 57.
//! The first alone saves 4 to 10 % of the last row and nothing of the others. Asking 4 KiB ahead in place
//! of a head (8 KiB) saves less: the first line of each head still comes late.

use std::ops::Range;

use super::CHUNK;
use crate::ops::kv::StridedRows;
use crate::simd::math::decay;
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
    /// Decays of the elements of keys, where they have their own.
    pub(super) fading: Option<Fading<'a>>,
    /// One for each row.
    pub(super) out: &'a mut [RowDots],
}

/// Decays of the elements of a key head's keys.
pub(super) struct Fading<'a> {
    /// Running sums of log decays of the rows, `[row][key_dim]`.
    pub(super) rows: &'a [f32],
    /// The same of the slots, as keys lie; those of the rows are written.
    pub(super) slots: [&'a mut [[f32; LANES]]; GROUPS],
    /// Becomes the queries of the rows and then their keys, faded from the border to the row: what
    /// reads the state at the border. `[2 rows][key_dim]`.
    pub(super) faded: &'a mut [f32],
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
    let mut rows: [&[f32]; CHUNK] = [&[]; CHUNK];
    for (i, row) in rows[..n].iter_mut().enumerate() {
        *row = task.source(i, 0);
    }
    store_rows(s, &rows[..n], task.first_slot, &mut task.keys);
    if task.fading.is_some() {
        return fading_dots(s, task);
    }
    let mut i = 0;
    while S::IS_WIDE && i + 4 <= n {
        for which in first..2 {
            let at = [(i, which), (i + 1, which), (i + 2, which), (i + 3, which)];
            products(s, &mut task, at);
        }
        i += 4;
    }
    while i < n {
        if task.is_delta {
            products(s, &mut task, [(i, 0), (i, 1)]);
        } else {
            products(s, &mut task, [(i, 1)]);
        }
        i += 1;
    }
}

/// The inner products of rows whose keys fade by channel, and what of them reads the state.
#[inline(always)]
fn fading_dots<S: Simd>(s: S, mut task: Dots<'_>) {
    let (n, dim) = (task.rows.len(), task.columns.len());
    let Some(fading) = &mut task.fading else { return };
    let sums = fading.rows;
    let mut rows: [&[f32]; CHUNK] = [&[]; CHUNK];
    for (row, sums) in rows.iter_mut().zip(sums.chunks_exact(dim)) {
        *row = sums;
    }
    store_rows(s, &rows[..n], task.first_slot, &mut fading.slots);
    for (which, faded) in [1, 0].into_iter().zip(fading.faded.chunks_exact_mut(n * dim)) {
        for (i, faded) in faded.chunks_exact_mut(dim).enumerate() {
            let from = if which == 0 { &task.k } else { &task.q };
            let x = &from.row(task.rows.start + i, task.columns.end)[task.columns.clone()];
            fade(s, x, rows[i], faded);
        }
    }
    for i in 0..n {
        let n_groups = (task.first_slot + i + 1).div_ceil(LANES);
        let mut group = 0;
        while S::IS_WIDE && group + 2 <= n_groups {
            fading_tile::<S, 2>(s, &mut task, i, group);
            group += 2;
        }
        while group < n_groups {
            fading_tile::<S, 1>(s, &mut task, i, group);
            group += 1;
        }
    }
}

/// `out = x · exp(sums)`, of equal lengths.
#[inline(always)]
fn fade<S: Simd>(s: S, x: &[f32], sums: &[f32], out: &mut [f32]) {
    for at in (0..x.len()).step_by(LANES) {
        let end = x.len().min(at + LANES);
        match (x[at..end].first_chunk(), sums[at..end].first_chunk()) {
            (Some(x), Some(sums)) => {
                let faded = s.mul(s.load(x), decay(s, s.load(sums)));
                if let Some(out) = out[at..end].first_chunk_mut() {
                    s.store(faded, out);
                }
            }
            _ => {
                let (x, sums) = (s.load_part(&x[at..end], 0.0), s.load_part(&sums[at..end], 0.0));
                s.store_part(s.mul(x, decay(s, sums)), &mut out[at..end]);
            }
        }
    }
}

/// Products of the key and the query of the `i`th row with the faded keys of `G` groups.
#[inline(always)]
fn fading_tile<S: Simd, const G: usize>(s: S, task: &mut Dots<'_>, i: usize, first: usize) {
    let dim = task.columns.len();
    let Some(fading) = &task.fading else { return };
    let mut keys: [&[[f32; LANES]]; G] = [&[]; G];
    let mut sums: [&[[f32; LANES]]; G] = [&[]; G];
    for g in 0..G {
        keys[g] = &task.keys[first + g][..dim];
        sums[g] = &fading.slots[first + g][..dim];
    }
    let own = &fading.rows[i * dim..][..dim];
    let is_alone = task.rows.len() == 1;
    let (k, q) = (task.source(i, 0), task.source(i, 1));
    let mut acc = [[s.splat(0.0); G]; 2];
    for d in 0..dim {
        let (own, k, q) = (s.splat(own[d]), s.splat(k[d]), s.splat(q[d]));
        for g in 0..G {
            if is_alone {
                prefetch_next(s, &keys[g][d], dim);
                prefetch_next(s, &sums[g][d], dim);
            }
            let decay = decay(s, s.sub(own, s.load(&sums[g][d])));
            let key = s.mul(decay, s.load(&keys[g][d]));
            acc[0][g] = s.fma(k, key, acc[0][g]);
            acc[1][g] = s.fma(q, key, acc[1][g]);
        }
    }
    for (acc, out) in acc.iter().zip(&mut task.out[i]) {
        let out = &mut out.as_chunks_mut::<LANES>().0[first..];
        for (acc, out) in acc.iter().zip(out) {
            s.store(*acc, out);
        }
    }
}

/// Asks for the same line of the next head, whose keys lie behind this one's: a decoding row reads them
/// from memory, and its thread takes that head next.
#[inline(always)]
fn prefetch_next<S: Simd>(s: S, line: &[f32; LANES], key_dim: usize) {
    s.prefetch(line.as_ptr().wrapping_add(key_dim * LANES).cast());
}

/// Writes rows to the slots from `first_slot` on, whole groups by transposing.
#[inline(always)]
fn store_rows<S: Simd>(
    s: S,
    rows: &[&[f32]],
    first_slot: usize,
    slots: &mut [&mut [[f32; LANES]]; GROUPS],
) {
    let n = rows.len();
    let mut i = 0;
    while i < n {
        let slot = first_slot + i;
        let (group, lane) = (slot / LANES, slot % LANES);
        if lane == 0 && i + LANES <= n {
            let rows = &rows[i..i + LANES];
            let dim = rows[0].len();
            for d in (0..dim).step_by(LANES) {
                let end = dim.min(d + LANES);
                let mut block = [s.splat(0.0); LANES];
                for (x, row) in block.iter_mut().zip(rows) {
                    *x = match row[d..end].first_chunk() {
                        Some(row) => s.load(row),
                        None => s.load_part(&row[d..end], 0.0),
                    };
                }
                s.transpose(&mut block);
                for (out, x) in slots[group][d..end].iter_mut().zip(&block) {
                    s.store(*x, out);
                }
            }
            i += LANES;
            continue;
        }
        for (out, x) in slots[group].iter_mut().zip(rows[i]) {
            out[lane] = *x;
        }
        i += 1;
    }
}

/// Row of a product, and whether it is that of its key (0) or of its query (1).
type At = (usize, usize);

/// Products with all slots up to the row of the last one.
#[inline(always)]
fn products<S: Simd, const R: usize>(s: S, task: &mut Dots<'_>, at: [At; R]) {
    let n_groups = (task.first_slot + at[R - 1].0 + 1).div_ceil(LANES);
    let mut group = 0;
    while S::IS_WIDE && group + 4 <= n_groups {
        tile::<S, R, 4>(s, task, at, group);
        group += 4;
    }
    while group + 2 <= n_groups {
        tile::<S, R, 2>(s, task, at, group);
        group += 2;
    }
    if group < n_groups {
        tile::<S, R, 1>(s, task, at, group);
    }
}

/// Products with `G` groups.
#[inline(always)]
fn tile<S: Simd, const R: usize, const G: usize>(
    s: S,
    task: &mut Dots<'_>,
    at: [At; R],
    first: usize,
) {
    let dim = task.columns.len();
    let mut x: [&[f32]; R] = [&[]; R];
    for (x, (row, which)) in x.iter_mut().zip(at) {
        *x = task.source(row, which);
    }
    let mut keys: [&[[f32; LANES]]; G] = [&[]; G];
    for (g, keys) in keys.iter_mut().enumerate() {
        *keys = &task.keys[first + g][..dim];
    }
    let mut acc = [[s.splat(0.0); G]; R];
    for d in 0..dim {
        let mut k = [s.splat(0.0); G];
        for g in 0..G {
            k[g] = s.load(&keys[g][d]);
            if R < 4 {
                prefetch_next(s, &keys[g][d], dim);
            }
        }
        for r in 0..R {
            let x = s.splat(x[r][d]);
            for g in 0..G {
                acc[r][g] = s.fma(x, k[g], acc[r][g]);
            }
        }
    }
    for (acc, (row, which)) in acc.iter().zip(at) {
        let out = &mut task.out[row][which].as_chunks_mut::<LANES>().0[first..];
        for (acc, out) in acc.iter().zip(out) {
            s.store(*acc, out);
        }
    }
}

shells! { pub(super) mod dots_shells = dots(task: Dots<'_>) }
