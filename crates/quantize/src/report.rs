//! The report of a quantization: of each matrix, and of the whole.

use pelton_quant::solve::gptq;
use serde::{Deserialize, Serialize};

/// One matrix that was quantized. Figures have six digits.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct MatrixReport {
    /// Name of the module.
    pub module: String,
    /// Outputs and inputs.
    pub shape: [usize; 2],
    /// Bits per weight, scales and zero points included.
    pub bits: f64,
    /// Relative error of its output on the calibration when every weight is rounded to nearest,
    /// from at most 256 of its outputs; `None` without a calibration.
    pub error_rounded: Option<f64>,
    /// The same once inputs are scaled, before ranges are clipped.
    pub error_scaled: Option<f64>,
    /// The same of what was written.
    pub error: Option<f64>,
    /// Relative squared error of the weights.
    pub weight_error: f64,
    /// Exponent of the inputs' factors, for AWQ and SmoothQuant.
    pub alpha: Option<f32>,
    /// Whether it is rounded to nearest, because the method needs its inputs and they are not
    /// gathered, or too few of them.
    pub is_unsolved: bool,
    /// Whether its expert saw fewer rows than [`LEAST_EXPERT_ROWS`](crate::LEAST_EXPERT_ROWS): gate
    /// and up are then solved for the rows of all experts, and down is rounded to nearest.
    pub is_few: bool,
    /// The damping of the Hessian that it was solved with; `None` where it was not solved with one. More
    /// than was asked for where the Hessian had no factor, or where less was worse than rounding to nearest.
    #[serde(default)]
    pub damping: Option<f64>,
    /// Whether it is rounded to nearest because it was worse with every damping.
    #[serde(default)]
    pub is_worse: bool,
    /// Rows of the calibration that it read; `None` where they are not gathered.
    pub n_rows: Option<u64>,
    /// Weights of more than six times the root of their mean square.
    pub n_outliers: usize,
    /// Inputs of more than six times the mean size of all.
    pub n_large_inputs: Option<usize>,
    /// Time of the solver.
    pub seconds: f64,
}

/// The folder that was written.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Matrices, in the order of the layers.
    pub matrices: Vec<MatrixReport>,
    /// Bytes of tensors in the folder.
    pub n_bytes: u64,
    /// The same of the source.
    pub n_source_bytes: u64,
    /// Bits per weight of the quantized matrices, scales and zero points included.
    pub bits_per_weight: f64,
    /// Layers that an earlier run had finished.
    pub n_resumed_layers: usize,
    /// Time of all.
    pub seconds: f64,
}

impl Report {
    /// As JSON, without what another run of the same work would have otherwise, times of matrices
    /// excepted.
    pub(crate) fn without_run(&self) -> serde_json::Value {
        let mut value = serde_json::to_value(self).expect("invariant: JSON");
        if let Some(fields) = value.as_object_mut() {
            fields.retain(|name, _| !["n_resumed_layers", "seconds"].contains(&name.as_str()));
        }
        value
    }

    /// Modules that are [unsolved](MatrixReport::is_unsolved) because their inputs are not
    /// gathered: their number and the first few names; `None` where there are none.
    pub fn unsolved(&self) -> Option<String> {
        self.named(|matrix| matrix.is_unsolved && !matrix.is_few)
    }

    /// Modules of experts that saw [few](MatrixReport::is_few) rows, likewise.
    pub fn few(&self) -> Option<String> {
        self.named(|matrix| matrix.is_few)
    }

    /// Modules that were solved with more [damping](MatrixReport::damping) than was asked for, likewise.
    pub fn damped(&self, asked: f64) -> Option<String> {
        // It is raised tenfold, and figures have six digits.
        let most = 2.0 * asked.max(gptq::LEAST_DAMPING);
        self.named(|matrix| matrix.damping.is_some_and(|damping| damping > most))
    }

    /// Modules that are rounded because every damping was [worse](MatrixReport::is_worse), likewise.
    pub fn worse(&self) -> Option<String> {
        self.named(|matrix| matrix.is_worse)
    }

    fn named(&self, is_meant: impl Fn(&&MatrixReport) -> bool) -> Option<String> {
        const MOST: usize = 3;
        let meant = self.matrices.iter().filter(is_meant);
        let names: Vec<&str> = meant.map(|matrix| matrix.module.as_str()).collect();
        let more = if names.len() > MOST { " ..." } else { "" };
        let first = names.iter().take(MOST).copied().collect::<Vec<_>>().join(", ");
        (!names.is_empty()).then(|| format!("{} matrices: {first}{more}", names.len()))
    }

    /// Means of [`error_rounded`](MatrixReport::error_rounded) and of
    /// [`error`](MatrixReport::error) over all matrices; `None` without a calibration.
    pub fn mean_errors(&self) -> Option<[f64; 2]> {
        let errors = self.matrices.iter().filter_map(|m| Some([m.error_rounded?, m.error?]));
        let (n, sums) = errors.fold((0, [0.0; 2]), |(n, [a, b]), [c, d]| (n + 1, [a + c, b + d]));
        (n > 0).then(|| sums.map(|sum| sum / f64::from(n)))
    }
}

/// A figure with six digits, which JSON keeps.
pub(crate) fn six_digits(x: f64) -> f64 {
    format!("{x:.5e}").parse().unwrap_or(x)
}

/// `|Δw|² / |w|²`; zero where all weights are zero.
pub(crate) fn weight_error(weights: &[f32], written: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x).powi(2);
    let delta: f64 = weights.iter().zip(written).map(|(a, b)| square(a - b)).sum();
    let whole: f64 = weights.iter().map(|w| square(*w)).sum();
    if whole > 0.0 { six_digits(delta / whole) } else { 0.0 }
}

/// Multiples of the usual size from which something is an outlier.
const OUTLIER: f64 = 6.0;

/// Weights of more than six times the root of their mean square.
pub(crate) fn n_outliers(weights: &[f32]) -> usize {
    let square = |w: &f32| f64::from(*w).powi(2);
    let mean = weights.iter().map(square).sum::<f64>() / weights.len().max(1) as f64;
    weights.iter().filter(|w| square(w) > OUTLIER * OUTLIER * mean).count()
}

/// Inputs of more than six times the mean size.
pub(crate) fn n_large(sizes: &[f32]) -> usize {
    let sum: f64 = sizes.iter().map(|size| f64::from(*size)).sum();
    let mean = sum / sizes.len().max(1) as f64;
    sizes.iter().filter(|size| f64::from(**size) > OUTLIER * mean).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_survive_json_and_outliers_are_counted() {
        for x in [1.0 / 3.0, 2e-7 / 3.0, 123_456.789, 0.0] {
            let x = six_digits(x);
            let text = serde_json::to_string(&x).expect("JSON");
            assert_eq!(serde_json::from_str::<f64>(&text).expect("JSON").to_bits(), x.to_bits());
        }
        let mut weights = vec![0.1_f32; 1000];
        assert_eq!(n_outliers(&weights), 0);
        weights[7] = 3.0;
        assert_eq!((n_outliers(&weights), n_large(&weights)), (1, 1));
        assert_eq!([weight_error(&[0.0], &[0.0]), weight_error(&[2.0], &[1.0])], [0.0, 0.25]);
    }
}
