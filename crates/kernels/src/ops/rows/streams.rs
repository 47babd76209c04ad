//! Residual streams side by side (Baykal et al., 2023: AltUp), and gates of which few stay.
//!
//! ```text
//! streams   | stream 0 [width] | stream 1 [width] | .. | stream n-1 |         one row
//!
//! predict    s[i] += Σ_j c[i n + j] s[j]                      x = s[active]
//! correct    s[i] += (c[i] + 1) (x - s[active])               out = s[active] · scale
//! match      x    *= rms(target) / max(rms(x), sqrt(1e-5))
//! cut        gate  = max(gate - (mean + factor · deviation), 0)           mean and deviation of the row
//! ```
//!
//! **Canonical order.** Sums over `j` start from 0 and ascend; each product is rounded before it is
//! added. Means are those of the norms: element `i` in lane `i % 16`, lanes by halving.
//!
//! A row of streams stays in the second-level cache, and takes `n²` operations per element: for four
//! streams a hundredth of the work of one projection. The vectors that the compiler makes by itself are
//! good enough here.
//!
//! # Paper
//!
//! Baykal, Cutler, Dikkala, Ghosh, Panigrahy and Wang, *Alternating Updates for Efficient Transformers*,
//! NeurIPS 2023.

use crate::Cpu;
use crate::simd::math::tanh;
use crate::simd::{LANES, Scalar, Simd};
use crate::team::Parts;

/// Columns of a row that are mixed at once.
const COLUMNS: usize = 64;

/// Least mean square that rows are divided by the root of.
const LEAST_SQUARE: f32 = 1e-5;

/// How the streams of each row are mixed.
#[derive(Clone, Copy, Debug)]
pub struct StreamRoutes<'a> {
    /// Streams; at most [`MOST`](Self::MOST).
    pub n: usize,
    /// The stream that layers read.
    pub active: usize,
    /// Coefficients of each row: `[m, n · n]` for predictions, `[m, n]` for corrections.
    pub coefficients: &'a [f32],
}

impl StreamRoutes<'_> {
    /// Most streams.
    pub const MOST: usize = LANES;

    fn assert_fits(&self, n_rows: usize, n_coefficients: usize) {
        let Self { n, active, coefficients } = self;
        assert!(
            (1..=Self::MOST).contains(n) && active < n,
            "invariant: streams, one of them active"
        );
        assert_eq!(
            coefficients.len(),
            n_rows * n_coefficients,
            "invariant: coefficients of each row"
        );
    }
}

/// Predicts one row of streams in place.
fn predict(coefficients: &[f32], n: usize, row: &mut [f32]) {
    let width = row.len() / n;
    let mut old = [[0.0; COLUMNS]; LANES];
    for first in (0..width).step_by(COLUMNS) {
        let len = COLUMNS.min(width - first);
        for (j, old) in old[..n].iter_mut().enumerate() {
            old[..len].copy_from_slice(&row[j * width + first..][..len]);
        }
        for (i, coefficients) in coefficients.chunks_exact(n).enumerate() {
            let mut sum = [0.0; COLUMNS];
            for (factor, old) in coefficients.iter().zip(&old) {
                sum.iter_mut().zip(old).for_each(|(sum, old)| *sum += factor * old);
            }
            let out = &mut row[i * width + first..][..len];
            out.iter_mut().zip(&sum).for_each(|(out, sum)| *out += sum);
        }
    }
}

/// Corrects one row of predictions in place by what a layer made of the active one.
fn correct(coefficients: &[f32], active: usize, x: &[f32], row: &mut [f32]) {
    let width = x.len();
    let mut difference = [0.0; COLUMNS];
    for first in (0..width).step_by(COLUMNS) {
        let x = &x[first..width.min(first + COLUMNS)];
        let predicted = &row[active * width + first..][..x.len()];
        for ((difference, x), predicted) in difference.iter_mut().zip(x).zip(predicted) {
            *difference = x - predicted;
        }
        for (i, factor) in coefficients.iter().enumerate() {
            let factor = factor + 1.0;
            let out = &mut row[i * width + first..][..x.len()];
            out.iter_mut().zip(&difference).for_each(|(out, d)| *out += factor * d);
        }
    }
}

impl Cpu {
    /// `x = tanh(x)`, for few elements: on the calling thread, by the formula that all instruction sets
    /// share.
    pub fn tanh(&self, x: &mut [f32]) {
        let mut lanes = [0.0; LANES];
        for x in x.chunks_mut(LANES) {
            lanes[..x.len()].copy_from_slice(x);
            let bent = tanh(Scalar, lanes);
            Scalar.store(bent, &mut lanes);
            x.copy_from_slice(&lanes[..x.len()]);
        }
    }

    /// Predicts what a layer leaves in all streams, and copies the active prediction to `x`.
    ///
    /// # Shapes
    ///
    /// `streams`: `[m, n · width]`; `x`: `[m, width]`.
    ///
    /// # Panics
    ///
    /// When the shapes disagree.
    pub fn predict_streams(
        &self,
        routes: &StreamRoutes<'_>,
        width: usize,
        streams: &mut [f32],
        x: &mut [f32],
    ) {
        let StreamRoutes { n, active, .. } = *routes;
        assert!(width > 0 && x.len().is_multiple_of(width), "invariant: whole rows of x");
        let n_rows = x.len() / width;
        assert_eq!(streams.len(), n * x.len(), "invariant: all streams of each row");
        routes.assert_fits(n_rows, n * n);
        let (streams, x) = (Parts::new(streams), Parts::new(x));
        self.for_each_part(n_rows, n * n * width, |rows| {
            for row in rows {
                // SAFETY: each row belongs to one tile.
                let own = unsafe { streams.part(row * n * width..(row + 1) * n * width) };
                // SAFETY: each row belongs to one tile.
                let x = unsafe { x.part(row * width..(row + 1) * width) };
                predict(&routes.coefficients[row * n * n..][..n * n], n, own);
                x.copy_from_slice(&own[active * width..][..width]);
            }
        });
    }

    /// Corrects predictions by what a layer made of the active one, and writes the corrected active stream,
    /// times `scale` where there is one.
    ///
    /// # Shapes
    ///
    /// `x`, `out`: `[m, width]`; `streams`: `[m, n · width]`; `scale`: `[width]`.
    ///
    /// # Panics
    ///
    /// When the shapes disagree.
    pub fn correct_streams(
        &self,
        routes: &StreamRoutes<'_>,
        scale: Option<&[f32]>,
        x: &[f32],
        streams: &mut [f32],
        out: &mut [f32],
    ) {
        let StreamRoutes { n, active, .. } = *routes;
        let n_rows = routes.coefficients.len() / n.max(1);
        let width = x.len() / n_rows.max(1);
        routes.assert_fits(n_rows, n);
        assert_eq!(streams.len(), n * x.len(), "invariant: all streams of each row");
        assert_eq!([x.len(), out.len()], [n_rows * width; 2], "invariant: whole rows");
        assert!(scale.is_none_or(|scale| scale.len() == width), "invariant: a factor per column");
        let (streams, out) = (Parts::new(streams), Parts::new(out));
        self.for_each_part(n_rows, n * width, |rows| {
            for row in rows {
                // SAFETY: each row belongs to one tile.
                let own = unsafe { streams.part(row * n * width..(row + 1) * n * width) };
                // SAFETY: each row belongs to one tile.
                let out = unsafe { out.part(row * width..(row + 1) * width) };
                let coefficients = &routes.coefficients[row * n..][..n];
                correct(coefficients, active, &x[row * width..][..width], own);
                out.copy_from_slice(&own[active * width..][..width]);
                if let Some(scale) = scale {
                    out.iter_mut().zip(scale).for_each(|(out, factor)| *out *= factor);
                }
            }
        });
    }

    /// Adds `x` to all streams but the first.
    ///
    /// # Shapes
    ///
    /// `x`: `[m, width]`; `streams`: `[m, n · width]`.
    ///
    /// # Panics
    ///
    /// When the shapes disagree.
    pub fn add_to_streams(&self, x: &[f32], width: usize, streams: &mut [f32]) {
        assert!(width > 0 && x.len().is_multiple_of(width), "invariant: whole rows of x");
        let n_rows = x.len() / width;
        let n = streams.len() / x.len().max(1);
        assert_eq!(streams.len(), n * x.len(), "invariant: all streams of each row");
        let kernel = self.kernels.rows.add;
        let streams = Parts::new(streams);
        self.for_each_part(n_rows, n * width, |rows| {
            for row in rows {
                // SAFETY: each row belongs to one tile.
                let own = unsafe { streams.part(row * n * width..(row + 1) * n * width) };
                for stream in own[width..].chunks_exact_mut(width) {
                    // SAFETY: the kernels of a `Cpu` are available on this machine.
                    unsafe { kernel(stream, &x[row * width..][..width]) };
                }
            }
        });
    }

    /// Scales each row of `x` to the root mean square of the same row of `target`.
    ///
    /// # Shapes
    ///
    /// `x`, `target`: `[m, width]`.
    ///
    /// # Panics
    ///
    /// When the shapes disagree.
    pub fn match_rms(&self, x: &mut [f32], target: &[f32], width: usize) {
        assert!(width > 0 && x.len().is_multiple_of(width), "invariant: whole rows of x");
        assert_eq!(x.len(), target.len(), "invariant: a target for each row");
        let (inverse_rms, scale) = (self.kernels.rows.inverse_rms, self.kernels.rows.scale);
        let most = 1.0 / LEAST_SQUARE.sqrt();
        let n_rows = x.len() / width;
        let parts = Parts::new(x);
        self.for_each_part(n_rows, 3 * width, |rows| {
            for row in rows {
                let target = &target[row * width..][..width];
                // SAFETY: each row belongs to one tile; the kernels of a `Cpu` are available.
                unsafe {
                    let row = parts.part(row * width..(row + 1) * width);
                    let inverse = inverse_rms(row, 0.0).min(most);
                    scale(row, inverse / inverse_rms(target, 0.0));
                }
            }
        });
    }

    /// Takes the mean of a row's gates plus `factor` standard deviations off each, and drops what is
    /// negative then; a NaN stays one.
    ///
    /// # Shapes
    ///
    /// `gate_up`: `[m, 2 * ffn]`, the gate first.
    ///
    /// # Panics
    ///
    /// When `gate_up` is not whole rows.
    pub fn cut_gates(&self, gate_up: &mut [f32], ffn: usize, factor: f32) {
        assert!(ffn > 0 && gate_up.len().is_multiple_of(2 * ffn), "invariant: a gate and an up");
        let moments = self.kernels.rows.moments;
        let n_rows = gate_up.len() / (2 * ffn);
        let parts = Parts::new(gate_up);
        self.for_each_part(n_rows, 3 * ffn, |rows| {
            for row in rows {
                let start = row * 2 * ffn;
                // SAFETY: each row belongs to one tile; the kernels of a `Cpu` are available.
                let (gates, [mean, inverse]) = unsafe {
                    let gates = parts.part(start..start + ffn);
                    let moments = moments(gates, 0.0);
                    (gates, moments)
                };
                let cut = mean + factor / inverse;
                for gate in gates {
                    let above = *gate - cut;
                    *gate = if above < 0.0 { 0.0 } else { above };
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, bits, row_cpus};

    #[test]
    fn bent_elements_are_close_to_the_hyperbolic_tangent() {
        let mut random = Random::new(30);
        for n in [0, 1, 16, 37] {
            let x = random.normals(n);
            let mut bent = x.clone();
            row_cpus()[0].tanh(&mut bent);
            for (bent, x) in bent.iter().zip(&x) {
                assert!((f64::from(*bent) - f64::from(*x).tanh()).abs() < 3e-7, "{x}");
            }
        }
    }

    #[test]
    fn streams_are_predicted_and_corrected_by_their_formulas_on_every_set_and_team() {
        let mut random = Random::new(31);
        let shapes = [(1, 8, 2, 1), (3, 70, 4, 0), (40, 300, 3, 2), (2, 130, 16, 5)];
        for (m, width, n, active) in shapes {
            let predicting = random.normals(m * n * n);
            let correcting = random.normals(m * n);
            let old = random.normals(m * n * width);
            let made = random.normals(m * width);
            let scale = random.normals(width);
            let routes = |coefficients| StreamRoutes { n, active, coefficients };
            let run = |cpu: &Cpu| {
                let (mut predicted, mut x) = (old.clone(), vec![9.0; m * width]);
                cpu.predict_streams(&routes(&predicting), width, &mut predicted, &mut x);
                let (mut corrected, mut out) = (predicted.clone(), vec![9.0; m * width]);
                let scale = Some(&scale[..]);
                let by = routes(&correcting);
                cpu.correct_streams(&by, scale, &made, &mut corrected, &mut out);
                let mut sums = corrected.clone();
                cpu.add_to_streams(&made, width, &mut sums);
                [predicted, x, corrected, out, sums]
            };
            let cpus = row_cpus();
            let expected = run(&cpus[0]);
            let [predicted, x, corrected, out, sums] = &expected;
            for row in 0..m {
                let at =
                    |flat: &[f32], i: usize, c: usize| f64::from(flat[(row * n + i) * width + c]);
                for (i, c) in (0..n).flat_map(|i| (0..width).map(move |c| (i, c))) {
                    let mixed = (0..n)
                        .map(|j| f64::from(predicting[(row * n + i) * n + j]) * at(&old, j, c));
                    let exact = mixed.sum::<f64>() + at(&old, i, c);
                    assert!((at(predicted, i, c) - exact).abs() < 1e-4, "{row} {i} {c}");
                    let d = f64::from(made[row * width + c]) - at(predicted, active, c);
                    let exact =
                        (f64::from(correcting[row * n + i]) + 1.0) * d + at(predicted, i, c);
                    assert!((at(corrected, i, c) - exact).abs() < 1e-4, "{row} {i} {c}");
                    let added = if i == 0 { 0.0 } else { made[row * width + c] };
                    assert_eq!(at(sums, i, c) as f32, at(corrected, i, c) as f32 + added);
                }
                for c in 0..width {
                    assert_eq!(x[row * width + c], at(predicted, active, c) as f32);
                    assert_eq!(out[row * width + c], at(corrected, active, c) as f32 * scale[c]);
                }
            }
            for cpu in &cpus {
                for (got, expected) in run(cpu).iter().zip(&expected) {
                    assert_eq!(bits(got), bits(expected), "{} at {m} x {width}", cpu.kernels.name);
                }
            }
        }
    }

    #[test]
    fn rows_take_the_magnitude_of_others_and_small_ones_are_not_blown_up() {
        let mut random = Random::new(32);
        for (m, width) in [(1, 5), (3, 64), (90, 700)] {
            let (mut x, target) = (random.normals(m * width), random.normals(m * width));
            x[..width].fill(1e-4);
            let rms = |x: &[f32]| {
                let squares = x.iter().map(|x| f64::from(*x).powi(2));
                (squares.sum::<f64>() / x.len() as f64).sqrt()
            };
            let run = |cpu: &Cpu| {
                let mut got = x.clone();
                cpu.match_rms(&mut got, &target, width);
                got
            };
            let cpus = row_cpus();
            let expected = run(&cpus[0]);
            for (i, got) in expected.iter().enumerate() {
                let row = i / width * width..(i / width + 1) * width;
                let divisor = rms(&x[row.clone()]).max(f64::from(LEAST_SQUARE).sqrt());
                let exact = f64::from(x[i]) * rms(&target[row]) / divisor;
                assert!((f64::from(*got) - exact).abs() < 1e-6 * (1.0 + exact.abs()), "{i}");
            }
            for cpu in &cpus {
                assert_eq!(bits(&run(cpu)), bits(&expected), "{} at {width}", cpu.kernels.name);
            }
        }
    }
    #[test]
    fn gates_below_the_cut_are_dropped_and_ups_are_left_alone() {
        let mut random = Random::new(33);
        for (m, ffn, factor) in [(1, 7, 0.5), (3, 100, 1.6448536), (60, 900, -0.3)] {
            let x = random.normals(m * 2 * ffn);
            let run = |cpu: &Cpu| {
                let mut got = x.clone();
                cpu.cut_gates(&mut got, ffn, factor);
                got
            };
            let cpus = row_cpus();
            let expected = run(&cpus[0]);
            for (got, x) in expected.chunks(2 * ffn).zip(x.chunks(2 * ffn)) {
                assert_eq!(bits(&got[ffn..]), bits(&x[ffn..]));
                let gates = x[..ffn].iter().map(|x| f64::from(*x));
                let mean = gates.clone().sum::<f64>() / ffn as f64;
                let square = gates.clone().map(|x| (x - mean).powi(2)).sum::<f64>() / ffn as f64;
                let cut = mean + f64::from(factor) * square.sqrt();
                for (got, gate) in got.iter().zip(gates) {
                    assert!((f64::from(*got) - (gate - cut).max(0.0)).abs() < 2e-6, "{gate} {cut}");
                }
            }
            for cpu in &cpus {
                assert_eq!(bits(&run(cpu)), bits(&expected), "{} at {ffn}", cpu.kernels.name);
            }
        }
        let mut same = [3.0, 3.0, f32::NAN, 1.0];
        row_cpus()[0].cut_gates(&mut same[..2], 1, 1.0);
        row_cpus()[0].cut_gates(&mut same[2..], 1, 1.0);
        assert_eq!(same[0], 0.0, "a gate alone is its mean");
        assert!(same[2].is_nan());
    }
}
