//! Updates and outputs of the new rows of a chunk: the triangular part.
//!
//! ```text
//! for row t, with G the running sum of log decays:
//!   a[i] = exp(G[t] - G[i]) · (k[i]·k[t])       w[i] = exp(G[t] - G[i]) · (k[i]·q[t])
//!   u[t] = beta · (v[t] - (exp(G[t]) · Sᵀk[t] + Σ_{i<t}  a[i] u[i]))      by fma, i ascending
//!   o[t] =                 exp(G[t]) · Sᵀq[t] + Σ_{i<=t} w[i] u[i]        by fma, i ascending
//! ```
//!
//! Four rows of a prompt take the updates before the first of them together, 64 values at a time;
//! then each takes those of the rows between, in order. A single row takes each update once, for
//! `u` and `o` together. A row of a tree takes what lies before the tree, then its ancestors.

use super::CHUNK;
use super::dots::RowDots;
use super::sequence::ancestors;
use crate::simd::math::decay;
use crate::simd::{LANES, Simd, shells};

/// The slots in order.
const SLOTS: [u8; CHUNK] = {
    let mut slots = [0; CHUNK];
    let mut slot = 0;
    while slot < CHUNK {
        slots[slot] = slot as u8;
        slot += 1;
    }
    slots
};

/// The new rows of one chunk and value head.
pub(super) struct Solve<'a> {
    /// Whether updates subtract what the state and the earlier rows know already.
    pub(super) is_delta: bool,
    /// Vectors of a value.
    pub(super) n_vectors: usize,
    /// Slot of the first row.
    pub(super) first_slot: usize,
    /// Parents of the rows where they are a tree.
    pub(super) tree: Option<&'a [u32]>,
    /// One for each row.
    pub(super) dots: &'a [RowDots],
    /// One factor for each row.
    pub(super) beta: &'a [f32],
    /// Running sum of log decays at each slot, those of the rows included.
    pub(super) decays: &'a [f32],
    /// `[CHUNK][value in whole vectors]`: read before the rows; at the rows' slots, values that
    /// become updates.
    pub(super) updates: &'a mut [f32],
    /// `[row][value in whole vectors]`, for keys; empty where there is no delta.
    pub(super) keys: &'a [f32],
    /// The same for queries; becomes the output.
    pub(super) out: &'a mut [f32],
}

/// The slots that one row sees beside its own: all before `dense`, then those of `path`.
#[derive(Clone, Copy)]
struct Seen<'a> {
    row: usize,
    dense: usize,
    path: &'a [u8],
}

/// The factors of one row, by slot.
#[derive(Clone, Copy)]
struct Factors {
    /// Factor of the state.
    state: f32,
    /// Factors of updates, for the row's own update and for its output.
    of: RowDots,
}

const NO_FACTORS: Factors = Factors { state: 0.0, of: [[0.0; CHUNK]; 2] };

/// Turns values into updates, and projected queries into outputs.
#[inline(always)]
fn solve<S: Simd>(s: S, mut task: Solve<'_>) {
    let (n, first_slot) = (task.dots.len(), task.first_slot);
    if let Some(parents) = task.tree {
        let mut path = [0; CHUNK];
        for row in 0..n {
            let nodes = ancestors(parents, row, &mut path);
            let n_nodes = nodes.len();
            for node in &mut path[..n_nodes] {
                *node += first_slot as u8;
            }
            let seen = Seen { row, dense: first_slot, path: &path[..n_nodes] };
            one_row(s, &mut task, seen);
        }
        return;
    }
    let mut row = 0;
    while row < n {
        if S::IS_WIDE && row + 4 <= n {
            rows(s, &mut task, row);
            row += 4;
        } else {
            one_row(s, &mut task, Seen { row, dense: first_slot + row, path: &[] });
            row += 1;
        }
    }
}

/// The factors of row `row`, for all slots up to its own.
#[inline(always)]
fn factors<S: Simd>(s: S, task: &Solve<'_>, row: usize, factors: &mut Factors) {
    let slot = task.first_slot + row;
    let own = s.splat(task.decays[slot]);
    let mut lanes = [0.0; LANES];
    s.store(decay(s, own), &mut lanes);
    factors.state = lanes[0];
    for group in 0..=slot / LANES {
        let decays = &task.decays.as_chunks::<LANES>().0[group];
        let decay = decay(s, s.sub(own, s.load(decays)));
        for which in usize::from(!task.is_delta)..2 {
            let of = &mut factors.of[which];
            let dots = s.load(&task.dots[row][which].as_chunks::<LANES>().0[group]);
            s.store(s.mul(decay, dots), &mut of.as_chunks_mut::<LANES>().0[group]);
        }
    }
}

/// One row.
#[inline(always)]
fn one_row<S: Simd>(s: S, task: &mut Solve<'_>, seen: Seen<'_>) {
    let mut own = NO_FACTORS;
    factors(s, task, seen.row, &mut own);
    let (mut first, n) = (0, task.n_vectors);
    while first < n {
        let left = n - first;
        first += match left {
            4.. if S::IS_WIDE => one_strip::<S, 4>(s, task, &own, seen, first),
            2.. => one_strip::<S, 2>(s, task, &own, seen, first),
            _ => one_strip::<S, 1>(s, task, &own, seen, first),
        };
    }
}

/// `V` vectors of a row; returns `V`.
#[inline(always)]
fn one_strip<S: Simd, const V: usize>(
    s: S,
    task: &mut Solve<'_>,
    factors: &Factors,
    seen: Seen<'_>,
    first: usize,
) -> usize {
    let Seen { row, dense, path } = seen;
    let (slot, at) = (task.first_slot + row, row * task.n_vectors + first);
    let mut sums = [begin::<S, V>(s, factors.state, task.out, at), [s.splat(0.0); V]];
    if task.is_delta {
        sums[1] = begin::<S, V>(s, factors.state, task.keys, at);
        let of = [&factors.of[1], &factors.of[0]];
        add_updates(s, task, of, &SLOTS[..dense], first, &mut sums);
        add_updates(s, task, of, path, first, &mut sums);
        update(s, task, row, first, &sums[1]);
        let mut out = [sums[0]];
        add_updates(s, task, [&factors.of[1]], &SLOTS[slot..=slot], first, &mut out);
        end(s, task, at, &out[0]);
    } else {
        update(s, task, row, first, &sums[1]);
        let mut out = [sums[0]];
        for slots in [&SLOTS[..dense], path, &SLOTS[slot..=slot]] {
            add_updates(s, task, [&factors.of[1]], slots, first, &mut out);
        }
        end(s, task, at, &out[0]);
    }
    V
}

/// Four rows of a chain.
#[inline(always)]
fn rows<S: Simd>(s: S, task: &mut Solve<'_>, row: usize) {
    // A closure would not be inlined, and every instruction in it a call.
    let mut all = [NO_FACTORS; 4];
    for (r, own) in all.iter_mut().enumerate() {
        factors(s, task, row + r, own);
    }
    let (mut first, n) = (0, task.n_vectors);
    while first < n {
        let left = n - first;
        first += match left {
            4.. => strip::<S, 4>(s, task, &all, row, first),
            2.. => strip::<S, 2>(s, task, &all, row, first),
            _ => strip::<S, 1>(s, task, &all, row, first),
        };
    }
}

/// `V` vectors of four rows; returns `V`.
#[inline(always)]
fn strip<S: Simd, const V: usize>(
    s: S,
    task: &mut Solve<'_>,
    factors: &[Factors; 4],
    row: usize,
    first: usize,
) -> usize {
    let dense = task.first_slot + row;
    for which in 0..2 {
        let mut sums = [[s.splat(0.0); V]; 4];
        if which == 1 || task.is_delta {
            let mut of = [&factors[0].of[which]; 4];
            for r in 0..4 {
                let from = if which == 0 { task.keys } else { &*task.out };
                let at = (row + r) * task.n_vectors + first;
                sums[r] = begin::<S, V>(s, factors[r].state, from, at);
                of[r] = &factors[r].of[which];
            }
            add_updates(s, task, of, &SLOTS[..dense], first, &mut sums);
        }
        for r in 0..4 {
            let mut sum = [sums[r]];
            // The output sees the row's own update as well.
            let slots = &SLOTS[dense..dense + r + which];
            if which == 1 || task.is_delta {
                add_updates(s, task, [&factors[r].of[which]], slots, first, &mut sum);
            }
            match which {
                0 => update(s, task, row + r, first, &sum[0]),
                _ => end(s, task, (row + r) * task.n_vectors + first, &sum[0]),
            }
        }
    }
    V
}

/// The decayed projection from which a sum begins.
#[inline(always)]
fn begin<S: Simd, const V: usize>(s: S, factor: f32, from: &[f32], at: usize) -> [S::F; V] {
    let from = &from.as_chunks::<LANES>().0[at..at + V];
    let mut sum = [s.splat(0.0); V];
    for v in 0..V {
        sum[v] = s.mul(s.splat(factor), s.load(&from[v]));
    }
    sum
}

/// Adds the updates of `slots`, in order, to `R` sums.
#[inline(always)]
fn add_updates<S: Simd, const R: usize, const V: usize>(
    s: S,
    task: &Solve<'_>,
    of: [&[f32; CHUNK]; R],
    slots: &[u8],
    first: usize,
    sums: &mut [[S::F; V]; R],
) {
    let updates = task.updates.as_chunks::<LANES>().0;
    for &slot in slots {
        let slot = slot as usize % CHUNK;
        let line = &updates[slot * task.n_vectors + first..][..V];
        let mut u = [s.splat(0.0); V];
        for v in 0..V {
            u[v] = s.load(&line[v]);
        }
        for r in 0..R {
            let factor = s.splat(of[r][slot]);
            for v in 0..V {
                sums[r][v] = s.fma(factor, u[v], sums[r][v]);
            }
        }
    }
}

/// Turns the value of a row into its update, given what is known already.
#[inline(always)]
fn update<S: Simd, const V: usize>(
    s: S,
    task: &mut Solve<'_>,
    row: usize,
    first: usize,
    known: &[S::F; V],
) {
    let beta = s.splat(task.beta[row]);
    let start = (task.first_slot + row) * task.n_vectors + first;
    let line = &mut task.updates.as_chunks_mut::<LANES>().0[start..start + V];
    for v in 0..V {
        let value = s.load(&line[v]);
        let rest = if task.is_delta { s.sub(value, known[v]) } else { value };
        s.store(s.mul(beta, rest), &mut line[v]);
    }
}

/// Writes the output of a row.
#[inline(always)]
fn end<S: Simd, const V: usize>(s: S, task: &mut Solve<'_>, at: usize, sum: &[S::F; V]) {
    let out = &mut task.out.as_chunks_mut::<LANES>().0[at..at + V];
    for v in 0..V {
        s.store(sum[v], &mut out[v]);
    }
}

shells! { pub(super) mod solve_shells = solve(task: Solve<'_>) }
