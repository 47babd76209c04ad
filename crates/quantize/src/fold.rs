//! Factors of AWQ: the columns of matrices are multiplied, and what comes before is divided.
//!
//! ```text
//! attention norm ─▶ q, k, v        v ─▶ output projection      (as many value heads as query heads)
//! second norm ────▶ gate, up       up ─▶ down                  (with a gate, which is not divided)
//! ```
//!
//! Where nothing can be divided, factors are 1 and only ranges are clipped: norms that something else
//! reads too, values that several query heads share, an activation in between.

use std::collections::BTreeMap;

use pelton_model::{FoldNorm, LayerShape, ModelFiles, Reads, StoredRows};
use pelton_quant::solve::{Grid, Weights, awq};

use crate::calibrate::Hessians;
use crate::source::{Matrices, vector};
use crate::{QuantizeError, Result};

/// The thing before some matrices that is divided.
enum Before<'a> {
    Norm(&'a FoldNorm),
    Rows(&'a StoredRows),
}

/// Scales the matrices of a layer and what comes before them; the Hessians become those of the
/// divided inputs. Returns the exponent of each place.
pub(crate) fn fold(
    files: &ModelFiles,
    shape: &LayerShape,
    matrices: &mut Matrices,
    hessians: &mut Hessians,
    grid: &Grid,
) -> Result<BTreeMap<Reads, f32>> {
    // Rows are divided before the columns of the same matrix are scaled, so that the search sees the
    // rows as they will be.
    let places = [
        (Reads::Attended, shape.values.as_ref().map(Before::Rows)),
        (Reads::Mixer, shape.mixer_norm.as_ref().map(Before::Norm)),
        (Reads::Hidden, shape.ups.as_ref().map(Before::Rows)),
        (Reads::Mlp, shape.mlp_norm.as_ref().map(Before::Norm)),
    ];
    let mut alphas = BTreeMap::new();
    for (reads, before) in places {
        let readers = shape.matrices.iter().filter(|matrix| matrix.reads == Some(reads));
        let readers: Vec<_> = readers.collect();
        let (Some(before), Some(hessian)) = (before, hessians.get(&reads)) else { continue };
        let weights: Vec<Weights<'_>> = readers
            .iter()
            .map(|m| Weights { shape: m.shape, values: &matrices.values[&m.module] })
            .collect();
        let scales = awq::scales(&weights, grid, hessian)
            .map_err(QuantizeError::matrix(&readers[0].module))?;
        let divided = hessian.divided(&scales.factors);
        for reader in readers {
            let values = matrices.values.get_mut(&reader.module).expect("invariant: it was read");
            for row in values.chunks_exact_mut(scales.factors.len()) {
                row.iter_mut().zip(&scales.factors).for_each(|(w, factor)| *w *= factor);
            }
        }
        match before {
            Before::Norm(norm) => divide_norm(files, norm, matrices, &scales.factors)?,
            Before::Rows(rows) => divide_rows(files, shape, rows, matrices, &scales.factors)?,
        }
        hessians.insert(reads, divided);
        alphas.insert(reads, scales.alpha);
    }
    Ok(alphas)
}

fn divide_norm(
    files: &ModelFiles,
    norm: &FoldNorm,
    matrices: &mut Matrices,
    factors: &[f32],
) -> Result<()> {
    let FoldNorm { weight, bias, offset } = norm;
    let mut values = vector(files, weight)?;
    for (w, factor) in values.iter_mut().zip(factors) {
        *w = (*w + offset) / factor - offset;
    }
    matrices.vectors.insert(weight.clone(), values);
    if let Some(bias) = bias {
        let mut values = vector(files, bias)?;
        values.iter_mut().zip(factors).for_each(|(b, factor)| *b /= factor);
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
    use pelton_model::{
        BlockTables, Compute, CpuDevice, ForwardInput, ForwardSequence, LoadOptions, layer_shape,
        load_cpu,
    };
    use pelton_testkit::golden::decoders;

    use super::*;
    use crate::calibrate::{Calibration, Samples};
    use crate::layer::Work;
    use crate::{Method, Options, Watch};

    /// Folds every layer of a model without rounding anything. Returns how many places were scaled.
    fn fold_all(files: &mut ModelFiles, samples: &Samples) -> usize {
        let grid = Grid { bits: 4, group: None, symmetric: false };
        let options = Options { method: Method::Awq, grid, gptq: Default::default() };
        let watch = Watch { is_stopped: &|| false, progress: &|_, _| () };
        let work = Work { options: &options, n_threads: 1, n_matrices: 0, watch };
        let device = CpuDevice::with_threads(Some(1)).expect("a device");
        let begun = Calibration::begin(files, device, samples, &|| false);
        let mut calibration = begun.expect("embeds").expect("not stopped");
        let mut n_scaled = 0;
        for layer in 0..files.spec().expect("a spec").layers.len() {
            let shape = layer_shape(files, layer).expect("a layer");
            let hessians = calibration.gather(files, layer, &shape, &work).expect("numbers");
            let mut hessians = hessians.expect("not stopped");
            let mut matrices = Matrices::read(files, &shape).expect("matrices");
            let alphas = fold(files, &shape, &mut matrices, &mut hessians, &grid).expect("folds");
            n_scaled += alphas.values().filter(|alpha| **alpha > 0.0).count();
            for (module, values) in &matrices.values {
                files.patch(&format!("{module}.weight"), values);
            }
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
        let (mut bad, mut n_models) = (Vec::new(), 0);
        for golden in decoders() {
            let name = golden.checkpoint.name().to_owned();
            let source = temp.path().join(&name);
            golden.checkpoint.write_bare_folder(&source);
            let mut files = ModelFiles::open(&source).expect(&name);
            let n_layers = files.spec().expect("a spec").layers.len();
            let shapes = (0..n_layers).map(|layer| layer_shape(&files, layer).expect("a layer"));
            let is_dense = |shape: LayerShape| {
                shape.matrices.iter().all(|m| m.reads.is_some() && !m.is_transposed)
            };
            if !shapes.map(is_dense).collect::<Vec<_>>().into_iter().all(|dense| dense) {
                continue;
            }
            let vocab = files.config().vocab_size as u32;
            let length = files.spec().expect("a spec").max_context.min(24);
            let text: Vec<TokenId> = (0..300_u32).map(|i| TokenId(i * 7919 % vocab)).collect();
            let samples = Samples::choose(&text, &[], length, 4, 0).expect("samples");
            let n_scaled = fold_all(&mut files, &samples);

            let options = LoadOptions {
                compute: Compute::F32,
                n_threads: Some(1),
                max_context: golden.max_context,
                ..LoadOptions::default()
            };
            let mut decoder = load_cpu(&files, &options).expect(&name);
            let tokens = golden.tokens();
            let n_blocks = tokens.len().div_ceil(16);
            let mut kv = decoder.new_kv(n_blocks, 16);
            let n_groups = decoder.spec().n_kv_groups();
            let tables: Vec<u32> = (0..n_groups).flat_map(|_| 0..n_blocks as u32).collect();
            let sequence = ForwardSequence {
                rows: 0..tokens.len(),
                first_position: 0,
                block_tables: BlockTables::new(&tables, n_groups),
                tree: None,
            };
            let all: Vec<usize> = (0..tokens.len()).collect();
            let input = ForwardInput { tokens: &tokens, sequences: &[sequence], logits_rows: &all };
            let mut logits = Vec::new();
            decoder.forward(&mut kv, &input, &mut logits);
            let far = logits.iter().zip(golden.logits.concat()).map(|(a, b)| (a - b).abs());
            let far = far.fold(0.0, f32::max);
            if far.is_nan() || far > 2e-3 {
                bad.push(format!("{name}: {far}"));
            }
            n_models += usize::from(n_scaled > 0);
            std::fs::remove_dir_all(&source).expect("removed");
        }
        assert!(bad.is_empty(), "{}", bad.join("\n"));
        assert!(n_models >= 20, "{n_models} models were scaled");
    }
}
