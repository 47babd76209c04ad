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
//! A decoding row reads a number of each line of the updates beside the state, because the kernel that
//! follows reads them all. Two Zen 4 cores drop some of the prefetches that stood here: with reads row 32 of
//! a chunk takes 8 % less, and row 64 takes 6 to 12 % (states from memory, 16 heads of 128 x 128; medians
//! of five in turn). Reading the beginning of the next head's state while updates are added saves nothing.
//!
//! Tried and dropped: all prefetches of a row of a strip before its loads, which makes the loop tight. The
//! first row of a chunk took the same time, and the last one 7 % (delta rule) and 17 % (Mamba 2) more.
//!
//! Tried and dropped, too: prefetches of the next head's keys while a state is read. The first row
//! of a chunk took 4 % less, and the last one 2 to 5 % more.
//!
//! In bf16 a state has half of the bytes; it is widened where it is read, and rounded where the fold
//! writes it, so between two borders every number is f32.
//!
//! Not done: the state as `[key_dim][value_dim]`, where the lines of a strip share half of the sets of
//! the cache, and a prompt reads them from the second level.

use super::CHUNK;
use super::dots::GROUPS;
use super::element::{Element, Stored, StoredMut};
use crate::simd::math::decay;
use crate::simd::{LANES, Simd, shells, touch};

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
    pub(super) state: Stored<'a>,
    /// Vectors of a value.
    pub(super) n_vectors: usize,
    /// Rows of `key_dim` elements.
    pub(super) rows: &'a [&'a [f32]],
    /// Data that is read next, and comes from memory meanwhile.
    pub(super) coming: &'a [f32],
    /// `[row][value in whole vectors]`.
    pub(super) out: &'a mut [f32],
}

/// Writes the products of the rows with the state.
#[inline(always)]
fn project<S: Simd>(s: S, task: Project<'_>) {
    match task.state {
        Stored::F32(state) => project_from(s, state, task),
        Stored::Bf16(state) => project_from(s, state, task),
    }
}

/// Writes the products of the rows with a state of one type.
#[inline(always)]
fn project_from<S: Simd, E: Element>(s: S, state: &[E], task: Project<'_>) {
    let Project { n_vectors, rows, coming, out, .. } = task;
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
                4.. => project_rows::<S, E, 4>(s, strip, rows, out, place),
                2.. if S::IS_WIDE => project_rows::<S, E, 2>(s, strip, rows, out, place),
                _ => project_rows::<S, E, 1>(s, strip, rows, out, place),
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
fn project_rows<S: Simd, E: Element, const R: usize>(
    s: S,
    strip: &[[E; LANES]],
    rows: &[&[f32]],
    out: &mut [[f32; LANES]],
    place: Place<'_>,
) -> usize {
    let mut x: [&[f32]; R] = [&[]; R];
    x.copy_from_slice(&rows[place.row..place.row + R]);
    if (S::IS_WIDE || R == 1) && place.width == 4 {
        project_tile::<S, E, R, 4>(s, strip, x, out, place, 0);
    } else if (S::IS_WIDE || R == 1) && place.width > 1 {
        for v in (0..place.width).step_by(2) {
            project_tile::<S, E, R, 2>(s, strip, x, out, place, v);
        }
    } else {
        for v in 0..place.width {
            project_tile::<S, E, R, 1>(s, strip, x, out, place, v);
        }
    }
    R
}

/// Products of `R` rows with `V` vectors of a strip, from vector `from` on.
#[inline(always)]
fn project_tile<S: Simd, E: Element, const R: usize, const V: usize>(
    s: S,
    strip: &[[E; LANES]],
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
            state[v] = E::load(s, &line[v]);
            if R < 4 {
                // A decoding row reads the state from memory, and then the updates. A line of the
                // cache has two vectors of bf16.
                if V == 1 || (v * size_of::<E>()).is_multiple_of(size_of::<f32>()) {
                    s.prefetch(line[v].as_ptr().wrapping_byte_add(AHEAD_BYTES).cast());
                }
                let at = place.first * rows[0].len() + d * place.width + from + v;
                if at < coming.len() {
                    touch(&coming[at][0]);
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
    pub(super) state: StoredMut<'a>,
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
    let Fold { n_vectors, mut keys, updates, decays, sums, scaled, faded, .. } = task;
    let (decays, last) = (decays.as_chunks::<LANES>().0, decays[CHUNK - 1]);
    let mut factors = [[0.0; LANES]; GROUPS];
    for (factors, decays) in factors.iter_mut().zip(decays) {
        s.store(decay(s, s.sub(s.splat(last), s.load(decays))), factors);
    }
    let updates = updates.as_chunks::<LANES>().0.chunks_exact(n_vectors);
    let scaled = scaled.as_chunks_mut::<LANES>().0;
    let rows = scaled.chunks_exact_mut(n_vectors).zip(updates);
    for (factor, (scaled, update)) in factors.as_flattened().iter().zip(rows) {
        for (out, x) in scaled.iter_mut().zip(update) {
            s.store(s.mul(s.splat(*factor), s.load(x)), out);
        }
    }
    let key_dim = keys[0].len();
    let (decays, faded) = faded.split_at_mut(key_dim.next_multiple_of(LANES));
    match sums {
        None => {
            let decay = decay(s, s.splat(last));
            for decays in decays.as_chunks_mut().0 {
                s.store(decay, decays);
            }
        }
        Some(sums) => fade_keys(s, &mut keys, &sums, decays, faded),
    }
    let shared = Folding { keys, scaled, decays, n_vectors, is_first: task.is_first };
    match task.state {
        StoredMut::F32(state) => fold_into(s, state, &shared),
        StoredMut::Bf16(state) => fold_into(s, state, &shared),
    }
}

/// Folds into a state of one type.
#[inline(always)]
fn fold_into<S: Simd, E: Element>(s: S, state: &mut [E], task: &Folding<'_>) {
    let (key_dim, n_vectors) = (task.keys[0].len(), task.n_vectors);
    let state = state.as_chunks_mut::<LANES>().0;
    let mut first = 0;
    while first < n_vectors {
        let width = strip_width(n_vectors - first);
        let strip = &mut state[first * key_dim..(first + width) * key_dim];
        let place = Strip { strip, width, first };
        if S::IS_WIDE && width == 4 {
            fold_strip::<S, E, 4>(s, task, place);
        } else {
            fold_strip::<S, E, 1>(s, task, place);
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
            let decay = decay(s, s.sub(s.splat(decays[d]), s.load(&sums[group][d])));
            s.store(s.mul(decay, s.load(&keys[group][d])), line);
        }
    }
    let lines = &*lines;
    for (keys, lines) in keys.iter_mut().zip(lines.chunks_exact(key_dim)) {
        *keys = lines;
    }
    for decays in decays.as_chunks_mut::<LANES>().0 {
        let decay = decay(s, s.load(decays));
        s.store(decay, decays);
    }
}

/// The parts of a fold that all strips of a state share.
struct Folding<'a> {
    keys: [&'a [[f32; LANES]]; GROUPS],
    scaled: &'a [[f32; LANES]],
    /// Decay of each element of a key.
    decays: &'a [f32],
    n_vectors: usize,
    is_first: bool,
}

/// A strip of a state.
struct Strip<'a, E> {
    strip: &'a mut [[E; LANES]],
    /// Its vectors.
    width: usize,
    /// Its first vector.
    first: usize,
}

/// Folds into a strip, `V` vectors at a time.
#[inline(always)]
fn fold_strip<S: Simd, E: Element, const V: usize>(
    s: S,
    task: &Folding<'_>,
    mut place: Strip<'_, E>,
) {
    let key_dim = task.keys[0].len();
    for from in (0..place.width).step_by(V) {
        let mut d = 0;
        while d + 4 <= key_dim {
            fold_tile::<S, E, 4, V>(s, task, &mut place, d, from);
            d += 4;
        }
        while d < key_dim {
            fold_tile::<S, E, 1, V>(s, task, &mut place, d, from);
            d += 1;
        }
    }
}

/// Folds into `V` vectors of `D` dimensions.
#[inline(always)]
fn fold_tile<S: Simd, E: Element, const D: usize, const V: usize>(
    s: S,
    task: &Folding<'_>,
    place: &mut Strip<'_, E>,
    d: usize,
    from: usize,
) {
    let mut acc = [[s.splat(0.0); V]; D];
    if !task.is_first {
        for (j, acc) in acc.iter_mut().enumerate() {
            let start = (d + j) * place.width + from;
            let decay = s.splat(task.decays[d + j]);
            for (acc, state) in acc.iter_mut().zip(&place.strip[start..start + V]) {
                *acc = s.mul(decay, E::load(s, state));
            }
        }
    }
    let mut updates = task.scaled.chunks_exact(task.n_vectors);
    for keys in task.keys {
        let keys = &keys[d..d + D];
        for (lane, update) in updates.by_ref().take(LANES).enumerate() {
            let update = &update[place.first + from..][..V];
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
        let start = (d + j) * place.width + from;
        for (acc, state) in acc.iter().zip(&mut place.strip[start..start + V]) {
            E::store(s, *acc, state);
        }
    }
}

shells! { pub(super) mod project_shells = project(task: Project<'_>) }
shells! { pub(super) mod fold_shells = fold(task: Fold<'_>) }
