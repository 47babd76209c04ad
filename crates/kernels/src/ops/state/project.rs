//! Keys and queries through the state at the border, and the fold of a chunk into it.
//!
//! ```text
//! state      [strip of 64 values][key_dim][64]            lanes are values; the last strips are
//!                                                         of 32 and 16 where 64 do not fit
//! project    for 4 rows x 64 values:  acc[r][v] = fma(x[r][d], S[d][v], acc[r][v])      d ascends
//! fold       for 4 dims x 64 values:  acc[d][v] = exp(G) · S[d][v]
//!                                     acc[d][v] = fma(k[i][d], e[i] u[i][v], acc[d][v]) i ascends
//!            by channel:              acc[d][v] = exp(G[d]) · S[d][v]
//!                                     acc[d][v] = fma(e[i][d] k[i][d], u[i][v], acc[d][v])
//! ```
//!
//! A strip of 128 dimensions has 32 KiB without gaps: it stays in the first-level cache while all
//! rows of a prompt pass it. A decoding row reads every strip once for its key and its query, and
//! that is one stream through the whole state.
//!
//! Not done: the state as `[key_dim][value_dim]`, where the lines of a strip share half of the sets of
//! the cache, and a prompt reads them from the second level.

use super::CHUNK;
use super::dots::GROUPS;
use crate::simd::math::exp;
use crate::simd::{LANES, Simd, shells};

/// Vectors of the widest strip.
const STRIP: usize = 4;

/// Distance at which a decoding row asks for the state.
const AHEAD_BYTES: usize = 4096;

/// Vectors of the strip that begins where `rest` are left: 4, 2 or 1.
#[inline(always)]
fn strip_width(rest: usize) -> usize {
    match rest {
        STRIP.. => STRIP,
        2.. => 2,
        _ => 1,
    }
}

/// Rows to be multiplied with a state.
pub(super) struct Project<'a> {
    /// State of one value head, in strips.
    pub(super) state: &'a [f32],
    /// Vectors of a value.
    pub(super) n_vectors: usize,
    /// Rows of `key_dim` elements.
    pub(super) rows: &'a [&'a [f32]],
    /// Data that is read next, to be prefetched.
    pub(super) coming: &'a [f32],
    /// `[row][value in whole vectors]`.
    pub(super) out: &'a mut [f32],
}

/// Writes the products of the rows with the state.
#[inline(always)]
fn project<S: Simd>(s: S, task: Project<'_>) {
    let Project { state, n_vectors, rows, coming, out } = task;
    let coming = coming.as_chunks::<LANES>().0;
    let key_dim = rows.first().map_or(0, |row| row.len());
    let (state, out) = (state.as_chunks::<LANES>().0, out.as_chunks_mut::<LANES>().0);
    let mut first = 0;
    while first < n_vectors {
        let width = strip_width(n_vectors - first);
        let strip = &state[first * key_dim..(first + width) * key_dim];
        let mut at = 0;
        while at < rows.len() {
            let left = rows.len() - at;
            let place = Place { row: at, first, width, n_vectors, coming };
            at += match left {
                4.. => project_rows::<S, 4>(s, strip, rows, out, place),
                2.. if S::IS_WIDE => project_rows::<S, 2>(s, strip, rows, out, place),
                _ => project_rows::<S, 1>(s, strip, rows, out, place),
            };
        }
        first += width;
    }
}

/// First row and vector of a block of results.
#[derive(Clone, Copy)]
struct Place<'a> {
    row: usize,
    first: usize,
    /// Vectors of the strip.
    width: usize,
    n_vectors: usize,
    coming: &'a [[f32; LANES]],
}

/// Products of `R` rows with a strip; returns `R`.
#[inline(always)]
fn project_rows<S: Simd, const R: usize>(
    s: S,
    strip: &[[f32; LANES]],
    rows: &[&[f32]],
    out: &mut [[f32; LANES]],
    place: Place<'_>,
) -> usize {
    let mut x: [&[f32]; R] = [&[]; R];
    x.copy_from_slice(&rows[place.row..place.row + R]);
    if (S::IS_WIDE || R == 1) && place.width == 4 {
        project_tile::<S, R, 4>(s, strip, x, out, place, 0);
    } else if (S::IS_WIDE || R == 1) && place.width > 1 {
        for v in (0..place.width).step_by(2) {
            project_tile::<S, R, 2>(s, strip, x, out, place, v);
        }
    } else {
        for v in 0..place.width {
            project_tile::<S, R, 1>(s, strip, x, out, place, v);
        }
    }
    R
}

/// Products of `R` rows with `V` vectors of a strip, from vector `from` on.
#[inline(always)]
fn project_tile<S: Simd, const R: usize, const V: usize>(
    s: S,
    strip: &[[f32; LANES]],
    rows: [&[f32]; R],
    out: &mut [[f32; LANES]],
    place: Place<'_>,
    from: usize,
) {
    let coming = place.coming;
    let mut acc = [[s.splat(0.0); V]; R];
    for (d, line) in strip.chunks_exact(place.width).enumerate() {
        let line = &line[from..from + V];
        let mut state = [s.splat(0.0); V];
        for v in 0..V {
            state[v] = s.load(&line[v]);
            if R < 4 {
                // A decoding row reads the state from memory, and then the updates.
                s.prefetch(line[v].as_ptr().wrapping_byte_add(AHEAD_BYTES).cast());
                let at = place.first * rows[0].len() + d * place.width + from + v;
                if at < coming.len() {
                    s.prefetch(coming[at].as_ptr().cast());
                }
            }
        }
        for r in 0..R {
            let x = s.splat(rows[r][d]);
            for v in 0..V {
                acc[r][v] = s.fma(x, state[v], acc[r][v]);
            }
        }
    }
    for (r, acc) in acc.iter().enumerate() {
        let start = (place.row + r) * place.n_vectors + place.first + from;
        for (acc, out) in acc.iter().zip(&mut out[start..start + V]) {
            s.store(*acc, out);
        }
    }
}

/// A full chunk of one value head, and its state.
pub(super) struct Fold<'a> {
    /// State in strips; replaced by the one after the chunk.
    pub(super) state: &'a mut [f32],
    /// Whether the state before the chunk is zero, whatever `state` holds.
    pub(super) is_first: bool,
    pub(super) n_vectors: usize,
    /// Keys of the chunk, `[key_dim]` of each group of slots.
    pub(super) keys: [&'a [[f32; LANES]]; GROUPS],
    /// `[CHUNK][value in whole vectors]`.
    pub(super) updates: &'a [f32],
    /// Running sums of log decays.
    pub(super) decays: &'a [f32],
    /// Running sums of the log decays of each element of a key, as `keys` lie, where it has its own;
    /// `decays` are then zeros.
    pub(super) sums: Option<[&'a [[f32; LANES]]; GROUPS]>,
    /// Scratch of the size of `updates`.
    pub(super) scaled: &'a mut [f32],
    /// Scratch for the decays of all elements of a key, then for faded keys where these fade by
    /// channel: `[key_dim in whole vectors]`, `[GROUPS][key_dim][16]`.
    pub(super) faded: &'a mut [f32],
}

/// Folds a full chunk into the state.
#[inline(always)]
fn fold<S: Simd>(s: S, task: Fold<'_>) {
    let Fold { state, is_first, n_vectors, mut keys, updates, decays, sums, scaled, faded } = task;
    let (decays, last) = (decays.as_chunks::<LANES>().0, decays[CHUNK - 1]);
    let mut factors = [[0.0; LANES]; GROUPS];
    for (factors, decays) in factors.iter_mut().zip(decays) {
        s.store(exp(s, s.sub(s.splat(last), s.load(decays))), factors);
    }
    let updates = updates.as_chunks::<LANES>().0.chunks_exact(n_vectors);
    let scaled = scaled.as_chunks_mut::<LANES>().0;
    let rows = scaled.chunks_exact_mut(n_vectors).zip(updates);
    for (factor, (scaled, update)) in factors.as_flattened().iter().zip(rows) {
        for (out, x) in scaled.iter_mut().zip(update) {
            s.store(s.mul(s.splat(*factor), s.load(x)), out);
        }
    }
    let (key_dim, state) = (keys[0].len(), state.as_chunks_mut::<LANES>().0);
    let (decays, faded) = faded.split_at_mut(key_dim.next_multiple_of(LANES));
    match sums {
        None => {
            let decay = exp(s, s.splat(last));
            for decays in decays.as_chunks_mut().0 {
                s.store(decay, decays);
            }
        }
        Some(sums) => fade_keys(s, &mut keys, &sums, decays, faded),
    }
    let mut first = 0;
    while first < n_vectors {
        let width = strip_width(n_vectors - first);
        let strip = &mut state[first * key_dim..(first + width) * key_dim];
        let fold = Folding { strip, keys, scaled, decays, width, first, n_vectors, is_first };
        if S::IS_WIDE && width == 4 {
            fold_strip::<S, 4>(s, fold);
        } else {
            fold_strip::<S, 1>(s, fold);
        }
        first += width;
    }
}

/// Puts keys in place of `keys` that are faded from their slot to the last one, and the decays of the
/// whole chunk in `decays`.
#[inline(always)]
fn fade_keys<'a, S: Simd>(
    s: S,
    keys: &mut [&'a [[f32; LANES]]; GROUPS],
    sums: &[&[[f32; LANES]]; GROUPS],
    decays: &mut [f32],
    faded: &'a mut [f32],
) {
    let key_dim = keys[0].len();
    for (decay, sums) in decays.iter_mut().zip(sums[GROUPS - 1]) {
        *decay = sums[LANES - 1];
    }
    let lines = faded.as_chunks_mut::<LANES>().0;
    for (group, lines) in lines.chunks_exact_mut(key_dim).enumerate() {
        for (d, line) in lines.iter_mut().enumerate() {
            let decay = exp(s, s.sub(s.splat(decays[d]), s.load(&sums[group][d])));
            s.store(s.mul(decay, s.load(&keys[group][d])), line);
        }
    }
    let lines = &*lines;
    for (keys, lines) in keys.iter_mut().zip(lines.chunks_exact(key_dim)) {
        *keys = lines;
    }
    for decays in decays.as_chunks_mut::<LANES>().0 {
        let decay = exp(s, s.load(decays));
        s.store(decay, decays);
    }
}

/// A strip of a state, and the scaled updates of the chunk.
struct Folding<'a> {
    strip: &'a mut [[f32; LANES]],
    keys: [&'a [[f32; LANES]]; GROUPS],
    scaled: &'a [[f32; LANES]],
    /// Decay of each element of a key.
    decays: &'a [f32],
    /// Vectors of the strip.
    width: usize,
    /// First vector of the strip.
    first: usize,
    n_vectors: usize,
    is_first: bool,
}

/// Folds into a strip, `V` vectors at a time.
#[inline(always)]
fn fold_strip<S: Simd, const V: usize>(s: S, mut task: Folding<'_>) {
    let key_dim = task.keys[0].len();
    for from in (0..task.width).step_by(V) {
        let mut d = 0;
        while d + 4 <= key_dim {
            fold_tile::<S, 4, V>(s, &mut task, d, from);
            d += 4;
        }
        while d < key_dim {
            fold_tile::<S, 1, V>(s, &mut task, d, from);
            d += 1;
        }
    }
}

/// Folds into `V` vectors of `D` dimensions.
#[inline(always)]
fn fold_tile<S: Simd, const D: usize, const V: usize>(
    s: S,
    task: &mut Folding<'_>,
    d: usize,
    from: usize,
) {
    let mut acc = [[s.splat(0.0); V]; D];
    if !task.is_first {
        for (j, acc) in acc.iter_mut().enumerate() {
            let start = (d + j) * task.width + from;
            let decay = s.splat(task.decays[d + j]);
            for (acc, state) in acc.iter_mut().zip(&task.strip[start..start + V]) {
                *acc = s.mul(decay, s.load(state));
            }
        }
    }
    let mut updates = task.scaled.chunks_exact(task.n_vectors);
    for keys in task.keys {
        let keys = &keys[d..d + D];
        for (lane, update) in updates.by_ref().take(LANES).enumerate() {
            let update = &update[task.first + from..][..V];
            let mut u = [s.splat(0.0); V];
            for v in 0..V {
                u[v] = s.load(&update[v]);
            }
            for j in 0..D {
                let key = s.splat(keys[j][lane]);
                for v in 0..V {
                    acc[j][v] = s.fma(key, u[v], acc[j][v]);
                }
            }
        }
    }
    for (j, acc) in acc.iter().enumerate() {
        let start = (d + j) * task.width + from;
        for (acc, state) in acc.iter().zip(&mut task.strip[start..start + V]) {
            s.store(*acc, state);
        }
    }
}

shells! { pub(super) mod project_shells = project(task: Project<'_>) }
shells! { pub(super) mod fold_shells = fold(task: Fold<'_>) }
