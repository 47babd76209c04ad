//! Quantizes checkpoints: calibration text goes through the model layer by layer, a solver of
//! [`pelton_quant::solve`] chooses the codes, and a Hugging Face folder is written.
//!
//! ```text
//! for each layer:
//!   load it in f32, run all texts, gather the Hessian of every place that matrices read   calibrate
//!   (of experts as many at a time as there may be Hessians in memory)                      hessians
//!   AWQ: fold factors into what comes before                                               fold
//!   solve each matrix; write its tensors to the layer's file                               layer, folder
//!   load the layer with its new weights, and run all texts through it: inputs of the next
//! ```
//!
//! So a layer is solved for what it will read: the output of the quantized layers before it. Memory is
//! that of one layer in f32, of its Hessians, and of one row per token of the calibration; [`Needs`]
//! says how much before anything is loaded. The weights of the source stay mapped.
//!
//! With [`Options::rotate`] each layer is turned before all this (`rotate`).
//!
//! With a [`Target`] the texts go through the model once before: `sensitivity` measures what each matrix
//! loses at each width, and `allocate` divides the budget.
//!
//! The folder has its name only when it is whole. The same source, calibration and seed give the same
//! bytes, on any number of threads, and when a killed run is gone on with: its layers are read back,
//! and the texts are run through them.
//!
//! **Architecture invariant:** nothing here prints, reads flags or listens to signals.
#![forbid(unsafe_code)]

mod allocate;
mod apart;
mod budget;
mod calibrate;
mod card;
mod config;
mod error;
mod fold;
mod folder;
mod hessians;
mod imatrix;
mod layer;
mod method;
mod modules;
mod options;
mod progress;
mod report;
mod rotate;
mod sensitivity;
mod source;
mod written;

use std::path::Path;
use std::time::Instant;

use pelton_kernels::Cpu;
use pelton_model::{CpuDevice, LayerShape, ModelFiles};

pub use calibrate::{Needs, Samples};
pub use error::{QuantizeError, Result};
pub use imatrix::Imatrix;
pub use method::Method;
pub use options::{Options, Target};
pub use report::{MatrixReport, Report};

/// Rows of the calibration below which an expert's matrices are not solved for these rows alone.
pub const LEAST_EXPERT_ROWS: u64 = hessians::LEAST_ROWS;

use calibrate::Calibration;
use folder::Folder;
use hessians::Hessians;
use rotate::Turn;
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

/// A quantization as it is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// Method, bits and groups.
    pub options: &'a Options,
    /// The calibration.
    pub samples: Option<&'a Samples>,
    /// Whether to go on with a folder that was left unfinished, and to leave one.
    pub resume: bool,
    /// The command, for the model card; may be empty.
    pub command: &'a str,
    /// A description of the calibration's text, for the model card.
    pub data: Option<&'a str>,
}

/// Refuses to write where there is something already, or the beginning of a folder that `resume` does
/// not ask for.
///
/// # Errors
///
/// Names what is there.
pub fn check_target(out: &Path, resume: bool) -> Result<()> {
    folder::check_target(out, resume).map(|_| ())
}

/// Quantizes a folder to `out`; `None` when it was stopped.
///
/// # Errors
///
/// A source that is not a folder of plain floats or of a family that the method cannot work on, a
/// matrix that cannot be quantized so, a calibration that says nothing, a budget that cannot be met, a
/// file in the way or one that cannot be written. No error leaves a file behind, unless `resume` asks
/// for it.
pub fn quantize(
    files: &mut ModelFiles,
    job: &Job<'_>,
    cpu: Cpu,
    out: &Path,
    watch: Watch<'_>,
) -> Result<Option<Report>> {
    let (started, options) = (Instant::now(), job.options);
    check_target(out, job.resume)?;
    let layers = source::layers(files, options)?;
    let turn = Turn::new(files, &layers, options)?;
    let n_matrices = source::n_matrices(&layers, options);
    let most_bytes = hessians::MOST_BYTES;
    let work = layer::Work { options, bits: None, cpu: &cpu, n_matrices, most_bytes, watch };
    let bits = match options.target {
        None => None,
        Some(target) => match budget::divide(files, &layers, (target, job.samples), &cpu, &work)? {
            Some(bits) => Some(bits),
            None => return Ok(None),
        },
    };
    let work = layer::Work { bits: bits.as_ref(), ..work };
    let identity = progress::identity(files, options, job.samples);
    let begun = (job.resume, identity);
    let made = (bits.as_ref(), turn.as_ref());
    let mut folder = Folder::create(files, options, made, &layers, out, begun)?;
    let mut calibration = match job.samples {
        None => None,
        Some(samples) => {
            match Calibration::begin(files, CpuDevice::new(cpu.clone()), samples, watch.is_stopped)?
            {
                Some(calibration) => {
                    let mut calibration = calibration.keeping_bf16();
                    if let Some(turn) = &turn {
                        turn.texts(calibration.rows_mut());
                    }
                    Some(calibration)
                }
                None => return Ok(None),
            }
        }
    };
    let n_resumed_layers = folder.n_done();
    for (idx, shape) in layers.iter().enumerate() {
        let is_done = idx < n_resumed_layers;
        let is_whole = match is_done {
            true => run_through(files, idx, shape, &folder, &mut calibration, &work)?,
            false => {
                match solve_layer(files, (idx, shape), turn.as_ref(), &mut calibration, &work)? {
                    None => false,
                    Some(solved) => {
                        folder.add_layer(files, (idx, shape), &solved, options)?;
                        true
                    }
                }
            }
        };
        files.clear_patches();
        if !is_whole {
            return Ok(None);
        }
    }
    let totals = folder.totals();
    let report = Report {
        matrices: totals.matrices,
        n_bytes: totals.n_bytes,
        n_source_bytes: source::n_bytes(files),
        bits_per_weight: totals.n_quantized_bits as f64 / totals.n_weights.max(1) as f64,
        n_resumed_layers,
        seconds: started.elapsed().as_secs_f64(),
    };
    let name = out.file_name().unwrap_or_default().to_string_lossy();
    let card = card::card(&name, options, job.command, job.data, &report);
    folder.publish(&report.without_run(), &card)?;
    Ok(Some(report))
}

/// Runs the texts through a layer that an earlier run wrote. `false` when it was stopped.
fn run_through(
    files: &mut ModelFiles,
    idx: usize,
    shape: &LayerShape,
    folder: &Folder,
    calibration: &mut Option<Calibration>,
    work: &layer::Work<'_>,
) -> Result<bool> {
    // Also shows that the layer's file is whole.
    folder.patch_done(files, idx, shape)?;
    let Some(calibration) = calibration else { return Ok(true) };
    calibration.advance(files, idx, work)
}

/// Gathers, solves, and runs the texts through what came out. `None` when it was stopped.
fn solve_layer(
    files: &mut ModelFiles,
    (idx, shape): (usize, &LayerShape),
    turn: Option<&Turn>,
    calibration: &mut Option<Calibration>,
    work: &layer::Work<'_>,
) -> Result<Option<layer::SolvedLayer>> {
    if let Some(turn) = turn {
        turn.patch(files, shape)?;
    }
    let Some(solved) = solve_parts(files, (idx, shape), turn, calibration, work)? else {
        return Ok(None);
    };
    if let Some(calibration) = calibration {
        solved.patch(files, shape)?;
        if !calibration.advance(files, idx, work)? {
            return Ok(None);
        }
    }
    Ok(Some(solved))
}

/// Solves a layer part by part. `None` when it was stopped.
fn solve_parts(
    files: &ModelFiles,
    (idx, shape): (usize, &LayerShape),
    turn: Option<&Turn>,
    calibration: &mut Option<Calibration>,
    work: &layer::Work<'_>,
) -> Result<Option<layer::SolvedLayer>> {
    let read = |part: &LayerShape| -> Result<Matrices> {
        let mut matrices = Matrices::read(files, part)?;
        if let Some(turn) = turn {
            matrices.vectors = turn.floats(files, part, work.options)?;
        }
        Ok(matrices)
    };
    let Some(calibration) = calibration else {
        let mut matrices = read(shape)?;
        return layer::solve(shape, files, &mut matrices, &mut Hessians::default(), work);
    };
    calibration.load(files, idx)?;
    let mut all: Option<layer::SolvedLayer> = None;
    let mut divided = None;
    for part in hessians::parts(shape, work.most_bytes) {
        let gathered = calibration.gather(files, &part, divided.take(), work)?;
        let Some(mut hessians) = gathered else { return Ok(None) };
        let mut matrices = read(&part)?;
        let solved = layer::solve(&part, files, &mut matrices, &mut hessians, work)?;
        let Some(solved) = solved else { return Ok(None) };
        match &mut all {
            Some(all) => all.extend(solved),
            None => all = Some(solved),
        }
        divided = hessians.into_divided();
    }
    Ok(all)
}
