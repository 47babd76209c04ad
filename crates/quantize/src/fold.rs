//! Factors of AWQ and SmoothQuant: the columns of matrices are multiplied, and what comes before is
//! divided.
//!
//! ```text
//! attention norm ─▶ q, k, v        v ─▶ output projection      (as many value heads as query heads)
//! second norm ────▶ gate, up       up ─▶ down                  (with a gate, which is not divided)
//! latent norm ────▶ q_b; kv_b      kv_b ─▶ output projection   (its rows of values)
//! ```
//!
//! Of experts only up and down are scaled: their norm is read by the router, too.
//!
//! Where nothing can be divided, factors are 1 and only ranges are clipped: norms that something else
//! reads too, values that several query heads share, an activation in between. The same holds where a
//! matrix on either side is kept as it is.
//!
//! Norms and biases are rounded to the type that they are stored in. The factors of a norm are those
//! that its rounded weights have, so nothing is lost by it; rounded biases lose what the type lacks.

use std::collections::BTreeMap;

use half::{bf16, f16};
use pelton_model::{FoldNorm, LayerMatrix, LayerShape, ModelFiles, Reads, StoredRows};
use pelton_quant::solve::{Weights, awq, smooth};
use pelton_tensor::DType;

use crate::hessians::Hessians;
use crate::source::{Matrices, vector};
use crate::{Method, Options, QuantizeError, Result};

/// The thing before some matrices that is divided.
enum Before<'a> {
    Norm(&'a FoldNorm),
    Rows(&'a StoredRows),
}

/// The places whose inputs are divided.
#[derive(Debug, Default)]
pub(crate) struct Folded {
    /// Exponent of the factors of each place.
    pub(crate) alphas: BTreeMap<Reads, f32>,
}

/// Scales the matrices of a layer and what comes before them; the Hessians become those of the
/// divided inputs.
pub(crate) fn fold(
    files: &ModelFiles,
    shape: &LayerShape,
    matrices: &mut Matrices,
    hessians: &mut Hessians,
    options: &Options,
) -> Result<Folded> {
    // Rows are divided before the columns of the same matrix are scaled, so that the search sees the
    // rows as they will be.
    let rows = shape.rows.iter().map(|(reads, rows)| (*reads, Before::Rows(rows)));
    let norms = shape.norms.iter().map(|(reads, norm)| (*reads, Before::Norm(norm)));
    let mut folded = Folded::default();
    for (reads, before) in rows.chain(norms) {
        let readers: Vec<&LayerMatrix> =
            shape.matrices.iter().filter(|matrix| matrix.reads == Some(reads)).collect();
        let Some(hessian) = hessians.get(reads).filter(|_| !readers.is_empty()) else { continue };
        let is_kept = readers.iter().any(|matrix| options.keeps(&matrix.module))
            || matches!(before, Before::Rows(rows) if options.keeps(&rows.module));
        if is_kept {
            continue;
        }
        let weights: Vec<Weights<'_>> = readers
            .iter()
            .map(|m| Weights { shape: m.shape, values: &matrices.values[&m.module] })
            .collect();
        let scales = match options.method {
            Method::SmoothQuant => {
                smooth::scales(&weights, options.grid.group, hessian, options.alpha)
            }
            _ => awq::scales(&weights, &options.grid, hessian),
        };
        let mut scales = scales.map_err(QuantizeError::matrix(&readers[0].module))?;
        match before {
            Before::Norm(norm) => divide_norm(files, norm, matrices, &mut scales.factors)?,
            Before::Rows(rows) => divide_rows(files, shape, rows, matrices, &scales.factors)?,
        }
        let divided = hessian.divided(&scales.factors);
        for reader in readers {
            let values = matrices.values.get_mut(&reader.module).expect("invariant: it was read");
            for row in values.chunks_exact_mut(scales.factors.len()) {
                row.iter_mut().zip(&scales.factors).for_each(|(w, factor)| *w *= factor);
            }
        }
        hessians.insert(reads, divided);
        folded.alphas.insert(reads, scales.alpha);
    }
    Ok(folded)
}

/// Rounds divided norms and biases to the types in which they are stored. Weights of norms are so
/// already.
pub(crate) fn round_vectors(files: &ModelFiles, matrices: &mut Matrices) {
    for (name, values) in &mut matrices.vectors {
        let dtype = files.stored(name).map(|view| view.dtype);
        values.iter_mut().for_each(|x| *x = rounded(dtype, *x));
    }
}

/// A number as a type of floats stores it.
fn rounded(dtype: Option<DType>, x: f32) -> f32 {
    match dtype {
        Some(DType::F16) => f16::from_f32(x).to_f32(),
        Some(DType::Bf16) => bf16::from_f32(x).to_f32(),
        _ => x,
    }
}

fn divide_norm(
    files: &ModelFiles,
    norm: &FoldNorm,
    matrices: &mut Matrices,
    factors: &mut [f32],
) -> Result<()> {
    let FoldNorm { weight, bias, offset } = norm;
    let dtype = files.stored(weight).map(|view| view.dtype);
    let mut values = vector(files, weight)?;
    for (w, factor) in values.iter_mut().zip(factors.iter_mut()) {
        let divided = rounded(dtype, (*w + offset) / *factor - offset);
        let exact = (*w + offset) / (divided + offset);
        // A weight of zero has any factor.
        if exact.is_finite() && exact > 0.0 {
            *factor = exact;
        }
        *w = divided;
    }
    matrices.vectors.insert(weight.clone(), values);
    if let Some(bias) = bias {
        let mut values = vector(files, bias)?;
        values.iter_mut().zip(&*factors).for_each(|(b, factor)| *b /= factor);
        matrices.vectors.insert(bias.clone(), values);
    }
    Ok(())
}

fn divide_rows(
    files: &ModelFiles,
    shape: &LayerShape,
    StoredRows { module, rows, bias }: &StoredRows,
    matrices: &mut Matrices,
    factors: &[f32],
) -> Result<()> {
    let matrix = shape.matrices.iter().find(|matrix| matrix.module == *module);
    let k = matrix.expect("invariant: a matrix of the layer").shape[1];
    let values = matrices.values.get_mut(module).expect("invariant: it was read");
    for (row, factor) in rows.iter().zip(factors) {
        values[row * k..][..k].iter_mut().for_each(|w| *w /= factor);
    }
    if let Some(bias) = bias {
        let mut values = match matrices.vectors.remove(bias) {
            Some(values) => values,
            None => vector(files, bias)?,
        };
        rows.iter().zip(factors).for_each(|(row, factor)| values[*row] /= factor);
        matrices.vectors.insert(bias.clone(), values);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use pelton_base::TokenId;
    use pelton_kernels::Cpu;
    use pelton_model::{CpuDevice, layer_shape};
    use pelton_quant::solve::Group;
    use pelton_testkit::golden::decoders;

    use super::*;
    use crate::Watch;
    use crate::calibrate::{Calibration, Samples};
    use crate::layer::Work;

    /// Folds every layer of a model without rounding anything. Returns how many places were scaled.
    fn fold_all(files: &mut ModelFiles, samples: &Samples, method: Method) -> usize {
        let mut options = Options::new(method);
        options.grid.group = Group::Row;
        let watch = Watch { is_stopped: &|| false, progress: &|_, _| () };
        let most_bytes = crate::hessians::MOST_BYTES;
        let (options, cpu) = (&options, &Cpu::new(Some(1)).expect("kernels"));
        let work = Work { options, bits: None, cpu, n_matrices: 0, most_bytes, watch };
        let device = CpuDevice::with_threads(Some(1)).expect("a device");
        let begun = Calibration::begin(files, device, samples, &|| false);
        let mut calibration = begun.expect("embeds").expect("not stopped");
        let mut n_scaled = 0;
        for layer in 0..files.spec().expect("a spec").layers.len() {
            let shape = layer_shape(files, layer).expect("a layer");
            calibration.load(files, layer).expect("loads");
            let hessians = calibration.gather(files, &shape, None, &work).expect("numbers");
            let mut hessians = hessians.expect("not stopped");
            let mut matrices = Matrices::read(files, &shape).expect("matrices");
            let folded = fold(files, &shape, &mut matrices, &mut hessians, options).expect("folds");
            n_scaled += folded.alphas.values().filter(|alpha| **alpha > 0.0).count();
            let values = shape.matrices.iter().map(|m| Ok((m, matrices.values[&m.module].clone())));
            crate::layer::patch(files, values).expect("patched");
            for (name, values) in &matrices.vectors {
                files.patch(name, values);
            }
            assert!(calibration.advance(files, layer, &work).expect("runs"));
        }
        n_scaled
    }

    #[test]
    fn factors_change_no_logit_of_any_family() {
        let temp = tempfile::tempdir().expect("temp");
        let (mut bad, mut n_models) = (Vec::new(), [0; 2]);
        for golden in decoders() {
            let name = golden.checkpoint.name().to_owned();
            let source = temp.path().join(&name);
            golden.checkpoint.write_bare_folder(&source);
            let mut files = ModelFiles::open(&source).expect(&name);
            let n_layers = files.spec().expect("a spec").layers.len();
            let shapes = (0..n_layers).map(|layer| layer_shape(&files, layer).expect("a layer"));
            let is_float = |m: &LayerMatrix| {
                let dtype = files.stored(&m.tensor()).map(|view| view.dtype);
                matches!(dtype, Some(DType::F32 | DType::F16 | DType::Bf16))
            };
            let is_read = |m: &LayerMatrix| m.reads.is_some() && !m.is_transposed && is_float(m);
            let is_dense = |shape: LayerShape| shape.matrices.iter().all(is_read);
            if !shapes.map(is_dense).collect::<Vec<_>>().into_iter().all(|dense| dense) {
                continue;
            }
            let vocab = files.config().vocab_size as u32;
            let length = files.spec().expect("a spec").max_context.min(24);
            let text: Vec<TokenId> = (0..300_u32).map(|i| TokenId(i * 7919 % vocab)).collect();
            let samples = Samples::choose(&text, &[], length, 4, 0).expect("samples");
            for (method, n_models) in
                [Method::Awq, Method::SmoothQuant].into_iter().zip(&mut n_models)
            {
                files.clear_patches();
                let n_scaled = fold_all(&mut files, &samples, method);
                let rows = golden.rows_of(&files).expect(&name);
                let pairs = rows.concat().into_iter().zip(golden.logits.concat());
                let far = pairs.map(|(a, b)| (a - b).abs());
                let far = far.fold(0.0, f32::max);
                if far.is_nan() || far > 2e-3 {
                    bad.push(format!("{name} {}: {far}", method.name()));
                }
                *n_models += usize::from(n_scaled > 0);
            }
            std::fs::remove_dir_all(&source).expect("removed");
        }
        assert!(bad.is_empty(), "{}", bad.join("\n"));
        assert!(n_models.iter().all(|n| *n >= 20), "{n_models:?} models were scaled");
    }
}
