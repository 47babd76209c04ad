//! How much a model's output changes when one matrix has fewer bits.
//!
//! ```text
//! layer l      clean rows ── each matrix at each width ──> distance of the layer's output       d(m, b)
//!              clean rows ── each matrix at 3 bits ──┐
//! layers l+1.. all rows ─────────────────────────────┴──> distance of the last rows             D(m)
//! loss(m, b) = D(m) · d(m, b) / d(m, 3)
//! ```
//!
//! A small change of the weights changes the output in proportion, and the divergence by its square, so
//! one width is followed to the end and the others are scaled. Distances are squared and relative to
//! the size of each token's row, as the last norm sees them. Codes are those of rounding to nearest.

use pelton_model::{LayerShape, ModelFiles, TextRows};
use pelton_quant::solve::{Grid, Weights, rtn};

use crate::allocate::Width;
use crate::calibrate::{Calibration, Samples};
use crate::layer::{Work, patch};
use crate::source::Matrices;
use crate::{QuantizeError, Result};

/// Widths that a matrix may have.
pub(crate) const WIDTHS: [usize; 5] = [3, 4, 5, 6, 8];
/// The width that is followed to the end.
const PROBE: usize = 3;
/// Tokens that are looked at, where the first text has no more.
pub(crate) const MOST_TOKENS: usize = 1024;

/// Rows of some texts.
type Rows = Vec<TextRows>;

/// The module of a matrix, and what it costs and loses at each width.
pub(crate) type Measured = (String, Vec<Width>);

/// A matrix whose change is followed.
struct Probe {
    module: String,
    shape: [usize; 2],
    /// Distances of its layer's output at each width.
    near: [f64; WIDTHS.len()],
    rows: Rows,
}

/// The module of each matrix that is quantized, with its size in bits and its loss at each width.
/// `None` when it was stopped.
pub(crate) fn measure(
    files: &mut ModelFiles,
    layers: &[LayerShape],
    samples: &Samples,
    device: pelton_model::CpuDevice,
    work: &Work<'_>,
) -> Result<Option<Vec<Measured>>> {
    let samples = samples.first(MOST_TOKENS);
    let is_stopped = work.watch.is_stopped;
    let Some(mut calibration) = Calibration::begin(files, device, &samples, is_stopped)? else {
        return Ok(None);
    };
    let mut probes: Vec<Probe> = Vec::new();
    for (layer, shape) in layers.iter().enumerate() {
        let clean = calibration.rows().clone();
        let mut after = clean.clone();
        calibration.load(files, layer)?;
        calibration.run(&mut after);
        for probe in &mut probes {
            calibration.run(&mut probe.rows);
        }
        let matrices = Matrices::read(files, shape)?;
        for matrix in &shape.matrices {
            if work.options.keeps(&matrix.module) {
                continue;
            }
            let weights = Weights { shape: matrix.shape, values: &matrices.values[&matrix.module] };
            let mut probe = Probe {
                module: matrix.module.clone(),
                shape: matrix.shape,
                near: [0.0; WIDTHS.len()],
                rows: Vec::new(),
            };
            for (bits, near) in WIDTHS.into_iter().zip(&mut probe.near) {
                if is_stopped() {
                    return Ok(None);
                }
                let grid = Grid { bits, ..work.options.grid };
                let solved = rtn::solve(weights, &grid, work.n_threads())
                    .map_err(QuantizeError::matrix(&matrix.module))?;
                patch(files, [Ok((matrix, solved.weights()))])?;
                calibration.load(files, layer)?;
                files.clear_patches();
                let mut rows = clean.clone();
                calibration.run(&mut rows);
                *near = distance(&rows, &after, calibration.width());
                if bits == PROBE {
                    probe.rows = rows;
                }
            }
            probes.push(probe);
        }
        calibration.set_rows(after);
    }
    let (last, width) = (calibration.rows(), calibration.width());
    let loss = |probe: Probe| {
        let far = distance(&probe.rows, last, width);
        let unit = probe.near[0];
        let widths = WIDTHS.into_iter().zip(probe.near).map(|(bits, near)| Width {
            bits,
            size: size(probe.shape, bits, &work.options.grid),
            loss: if unit > 0.0 { far * near / unit } else { 0.0 },
        });
        (probe.module, widths.collect())
    };
    Ok(Some(probes.into_iter().map(loss).collect()))
}

/// Bits that a matrix takes, scales included and [`SHAPE_BITS`] left out.
fn size([n, k]: [usize; 2], bits: usize, grid: &Grid) -> u64 {
    let words = (k * bits).div_ceil(32) * 32;
    (n * (words + k / grid.group.inputs(k) * 16)) as u64
}

/// Bits of the tensor that states a matrix's shape.
pub(crate) const SHAPE_BITS: u64 = 128;

/// The squared distance of two texts' rows, each relative to the size of its row.
fn distance(rows: &[TextRows], clean: &[TextRows], width: usize) -> f64 {
    let texts = rows.iter().zip(clean);
    texts
        .flat_map(|(rows, clean)| rows.x.chunks_exact(width).zip(clean.x.chunks_exact(width)))
        .map(|(row, clean)| {
            let square = |x: f32| f64::from(x).powi(2);
            let far: f64 = row.iter().zip(clean).map(|(a, b)| square(a - b)).sum();
            let size: f64 = clean.iter().map(|x| square(*x)).sum();
            far / size.max(1e-30)
        })
        .sum()
}
