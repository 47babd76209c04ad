//! Quantizes checkpoints: calibration text goes through the model layer by layer, a solver of
//! [`pelton_quant::solve`] chooses the codes, and a Hugging Face folder is written.
//!
//! ```text
//! for each layer:
//!   load it in f32, run all texts, gather the Hessian of every place that matrices read   calibrate
//!   AWQ: fold factors into what comes before                                               fold
//!   solve each matrix; write its tensors to the layer's file                               layer, folder
//!   load the layer with its new weights, and run all texts through it: inputs of the next
//! ```
//!
//! So a layer is solved for what it will read: the output of the quantized layers before it. Memory is
//! that of one layer in f32, of its Hessians, and of one row per token of the calibration; [`Needs`]
//! says how much before anything is loaded. The weights of the source stay mapped.
//!
//! The folder has its name only when it is whole. The same source, calibration and seed give the same
//! bytes, on any number of threads.
//!
//! **Architecture invariant:** nothing here prints, reads flags or listens to signals.
#![forbid(unsafe_code)]

mod calibrate;
mod error;
mod fold;
mod folder;
mod layer;
mod options;
mod source;

use std::path::Path;
use std::time::Instant;

use pelton_kernels::Cpu;
use pelton_model::{CpuDevice, LayerShape, ModelFiles};
use serde::Serialize;

pub use calibrate::{Needs, Samples};
pub use error::{QuantizeError, Result};
pub use options::{Method, Options};

use calibrate::Calibration;
use folder::Folder;
use source::Matrices;

/// The caller's side of a quantization.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    /// Asked between matrices and texts; `true` ends the work without a trace.
    pub is_stopped: &'a dyn Fn() -> bool,
    /// Called with each matrix that is done, and how many there are.
    pub progress: &'a dyn Fn(&MatrixReport, usize),
}

impl std::fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

/// One matrix that was quantized.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MatrixReport {
    /// Name of the module.
    pub module: String,
    /// Outputs and inputs.
    pub shape: [usize; 2],
    /// Relative error of its output on the calibration when every weight is rounded to nearest;
    /// `None` without a calibration.
    pub error_rounded: Option<f64>,
    /// The same of what was written.
    pub error: Option<f64>,
    /// Exponent of the inputs' factors, for AWQ.
    pub alpha: Option<f32>,
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
    /// Time of all.
    pub seconds: f64,
}

/// Quantizes a folder to `out`; `None` when it was stopped.
///
/// # Errors
///
/// A source that is not a folder of plain floats or of a family that the method cannot work on, a
/// matrix that cannot be quantized so, a calibration that says nothing, a file in the way or one that
/// cannot be written. No error leaves a file behind.
pub fn quantize(
    files: &mut ModelFiles,
    options: &Options,
    samples: Option<&Samples>,
    cpu: Cpu,
    out: &Path,
    watch: Watch<'_>,
) -> Result<Option<Report>> {
    let started = Instant::now();
    let layers = source::layers(files, options)?;
    let n_threads = cpu.team.n_threads();
    let mut folder = Folder::create(files, options, &layers, out)?;
    let mut calibration = match samples {
        None => None,
        Some(samples) => {
            match Calibration::begin(files, CpuDevice::new(cpu), samples, watch.is_stopped)? {
                Some(calibration) => Some(calibration),
                None => return Ok(None),
            }
        }
    };
    let work = layer::Work { options, n_threads, n_matrices: source::n_matrices(&layers), watch };
    let mut matrices = Vec::new();
    for (idx, shape) in layers.iter().enumerate() {
        let Some(solved) = solve_layer(files, idx, shape, &mut calibration, &work)? else {
            return Ok(None);
        };
        folder.add_layer(files, idx, &solved, options)?;
        matrices.extend(solved.into_reports());
        files.clear_patches();
    }
    let (n_bytes, n_quantized_bits, n_weights) = folder.publish()?;
    Ok(Some(Report {
        matrices,
        n_bytes,
        n_source_bytes: source::n_bytes(files),
        bits_per_weight: n_quantized_bits as f64 / (n_weights.max(1)) as f64,
        seconds: started.elapsed().as_secs_f64(),
    }))
}

/// Gathers, solves, and runs the texts through what came out. `None` when it was stopped.
fn solve_layer(
    files: &mut ModelFiles,
    idx: usize,
    shape: &LayerShape,
    calibration: &mut Option<Calibration>,
    work: &layer::Work<'_>,
) -> Result<Option<layer::SolvedLayer>> {
    let hessians = match calibration {
        None => None,
        Some(calibration) => match calibration.gather(files, idx, shape, work)? {
            Some(hessians) => Some(hessians),
            None => return Ok(None),
        },
    };
    let mut matrices = Matrices::read(files, shape)?;
    let Some(solved) = layer::solve(shape, files, &mut matrices, hessians, work)? else {
        return Ok(None);
    };
    if let Some(calibration) = calibration {
        solved.patch(files, shape);
        if !calibration.advance(files, idx, work)? {
            return Ok(None);
        }
    }
    Ok(Some(solved))
}
