//! Codebooks: where they begin, and the vectors that they add up to.

use half::f16;

use super::{DIM, N_ENTRIES};
use crate::solve::SolveError;
use crate::solve::threads::for_chunks;

/// Vectors that k-means looks at, at most.
const SAMPLE: usize = 1 << 14;
/// Rounds of k-means.
const ROUNDS: usize = 10;

/// Codebooks of 256 entries.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Books {
    /// `[n, 256, 8]`.
    pub(super) entries: Vec<f32>,
}

impl Books {
    /// K-means (Lloyd, 1982) of the vectors of rows of `k`, then of what is left of them, and so on.
    /// `importance` weighs inputs, `[k]`.
    pub(super) fn begin(
        values: &[f32],
        k: usize,
        n_books: usize,
        importance: Option<&[f32]>,
        n_threads: usize,
    ) -> Self {
        let vectors = values.as_chunks::<DIM>().0;
        let per_row = k / DIM;
        let weight = |at: usize| match importance {
            None => 1.0,
            Some(all) => all[at % per_row * DIM..][..DIM].iter().sum::<f32>(),
        };
        // Strides that share no factor with a row take vectors of all columns.
        let stride = match vectors.len().div_ceil(SAMPLE) {
            0 | 1 => 1,
            least => (least..).find(|stride| gcd(*stride, per_row) == 1).unwrap_or(1),
        };
        let mut sample: Vec<Point> = (0..vectors.len())
            .step_by(stride)
            .map(|at| Point { x: vectors[at], weight: weight(at), nearest: 0 })
            .collect();
        let mut entries = Vec::with_capacity(n_books * N_ENTRIES * DIM);
        for _ in 0..n_books {
            let centers = means(&mut sample, n_threads);
            for point in &mut sample {
                let center = &centers[point.nearest];
                point.x = std::array::from_fn(|i| point.x[i] - center[i]);
            }
            entries.extend(centers.as_flattened());
        }
        Self { entries }
    }

    /// The entries of each codebook.
    pub(super) fn each(&self) -> impl Iterator<Item = &[f32]> {
        self.entries.chunks_exact(N_ENTRIES * DIM)
    }

    pub(super) fn n(&self) -> usize {
        self.entries.len() / (N_ENTRIES * DIM)
    }

    /// Rounds entries to f16.
    pub(super) fn round(&mut self) {
        self.entries.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32());
    }

    /// The vectors of some codes, `[vectors, n]`.
    pub(super) fn values(&self, codes: &[u8], out: &mut [f32]) {
        for (codes, out) in codes.chunks_exact(self.n()).zip(out.chunks_exact_mut(DIM)) {
            for (m, code) in codes.iter().enumerate() {
                let entry = &self.entries[(m * N_ENTRIES + usize::from(*code)) * DIM..][..DIM];
                match m {
                    0 => out.copy_from_slice(entry),
                    _ => out.iter_mut().zip(entry).for_each(|(out, x)| *out += x),
                }
            }
        }
    }
}

/// The greatest common divisor (Euclid).
fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A vector of the sample.
#[derive(Clone, Copy)]
struct Point {
    x: [f32; DIM],
    weight: f32,
    nearest: usize,
}

/// The centers of a sample, whose points know the nearest one afterwards.
fn means(sample: &mut [Point], n_threads: usize) -> Vec<[f32; DIM]> {
    let n = sample.len().max(1);
    // The golden section spreads the first centers over the sample.
    let first = |e: usize| (e as f64 * 0.618_033_988_749_895).fract() * n as f64;
    let mut centers: Vec<[f32; DIM]> =
        (0..N_ENTRIES).map(|e| sample[first(e) as usize].x).collect();
    for round in 0..=ROUNDS {
        let table = super::Search::plain(&Books { entries: centers.as_flattened().to_vec() });
        let assigned = for_chunks(sample, 512, n_threads, |_, points| {
            for point in points {
                point.nearest = usize::from(table.codes(&point.x).as_slice()[0]);
            }
            Ok::<(), SolveError>(())
        });
        assigned.expect("invariant: nothing here fails");
        if round == ROUNDS {
            break;
        }
        let mut sums = vec![([0.0_f64; DIM], 0.0_f64); N_ENTRIES];
        for Point { x, weight, nearest } in sample.iter() {
            let (sum, total) = &mut sums[*nearest];
            sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += f64::from(x * weight));
            *total += f64::from(*weight);
        }
        for (center, (sum, total)) in centers.iter_mut().zip(&sums) {
            if *total > 0.0 {
                *center = sum.map(|sum| (sum / total) as f32);
            }
        }
    }
    centers
}
