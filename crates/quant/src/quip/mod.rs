//! QuIP#, as its reader and its solver know it: two codebooks, a transform, and the weights that come
//! of them.
//!
//! The layout is drawn in `checkpoint/quip.rs`, and `solve/quip.rs` chooses codes.

mod e81b;
mod e8p;
mod hadamard;

pub(crate) use e8p::{BLOCK, Codebook, Codes, DIM, Nearest, packed};
pub(crate) use e81b::{Finer, WORD as FINER_WORD};
pub(crate) use hadamard::Hadamard;

/// The codebooks whose vectors add up to those of a module.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Books {
    pub(crate) name: &'static str,
    /// `codebook_id`.
    pub(crate) id: f64,
    /// Version of the packing of its codes.
    pub(crate) version: i64,
    /// Bits of a weight.
    pub(crate) bits: usize,
    /// Weights of a row that 64 bits of its codes stand for, and those of the finer matrix.
    pub(crate) word: usize,
    pub(crate) finer_word: Option<usize>,
    /// Divisor of the finer matrix.
    pub(crate) finer: f64,
}

pub(crate) const BOOKS: &[Books] = &[
    Books { name: "E8P12", id: 7.0, version: 1, bits: 2, word: 32, finer_word: None, finer: 1.0 },
    Books {
        name: "E8P12RVQ4B",
        id: 17.0,
        version: 1,
        bits: 4,
        word: 32,
        finer_word: Some(32),
        finer: 3.45,
    },
    Books {
        name: "E8P12RVQ3B",
        id: 18.0,
        version: 0,
        bits: 3,
        word: 32,
        finer_word: Some(FINER_WORD),
        finer: 2.04,
    },
];

/// The numbers that stand beside the codes of a module.
#[derive(Clone, Debug)]
pub(crate) struct Scales {
    /// Signs of inputs, `[k]`.
    pub(crate) su: Vec<f32>,
    /// Signs and scales of outputs, `[n]`.
    pub(crate) sv: Vec<f32>,
    pub(crate) scale: f64,
    /// Divisors of the inputs, `[k]`.
    pub(crate) divisors: Option<Vec<f32>>,
    pub(crate) factor: f64,
}

/// Columns that are transformed together.
const PANEL: usize = 64;

/// All weights of a module of this shape, row-major; `line` writes the vectors of a row.
///
/// # Panics
///
/// When a side has no transform.
pub(crate) fn weights(
    [n, k]: [usize; 2],
    scales: &Scales,
    mut line: impl FnMut(usize, &mut [f64]),
) -> Vec<f32> {
    let [of_outputs, of_inputs] = [n, k].map(|side| Hadamard::new(side).expect("checked"));
    let mut weights = vec![0.0_f32; n * k];
    let mut row_values = vec![0.0_f64; k];
    for (row, out) in weights.chunks_exact_mut(k).enumerate() {
        line(row, &mut row_values);
        of_inputs.apply(&mut row_values, 1);
        out.iter_mut().zip(&row_values).for_each(|(out, x)| *out = *x as f32);
    }
    let root = (n as f64 * k as f64).sqrt();
    in_panels(&mut weights, k, &of_outputs, |row, j, x| {
        let signed = x / root * f64::from(scales.su[j]) * f64::from(scales.sv[row]);
        let divisor = scales.divisors.as_ref().map_or(1.0, |all| f64::from(all[j]));
        signed * scales.scale * scales.factor / divisor
    });
    weights
}

/// Transforms the columns of a matrix with rows of `k`; `finish` gets row, column and value.
pub(crate) fn in_panels(
    matrix: &mut [f32],
    k: usize,
    transform: &Hadamard,
    finish: impl Fn(usize, usize, f64) -> f64,
) {
    let mut panel = Vec::new();
    for first in (0..k).step_by(PANEL) {
        let width = PANEL.min(k - first);
        panel.clear();
        for row in matrix.chunks_exact(k) {
            panel.extend(row[first..][..width].iter().map(|x| f64::from(*x)));
        }
        transform.apply(&mut panel, width);
        for (row, (out, panel)) in
            matrix.chunks_exact_mut(k).zip(panel.chunks_exact(width)).enumerate()
        {
            for (i, (out, x)) in out[first..].iter_mut().zip(panel).enumerate() {
                *out = finish(row, first + i, *x) as f32;
            }
        }
    }
}
