//! A rotation of the residual stream, before anything is rounded: the model computes what it did, and no
//! input of its matrices is much larger than the others.
//!
//! ```text
//! embeddings ·Qᵀ ─▶ x Qᵀ ─┬─▶ norm without weights ─▶ W diag(norm) Qᵀ     q, k, v, gate and up
//!                         ◀──────────────────────────  Q W                output projection and down
//!                         └─▶ norm without weights ─▶ W diag(norm) Qᵀ     the head, from now on its own
//! ```
//!
//! A norm of the root of mean squares commutes with a rotation once its weights are in the matrices behind
//! it. One layer at a time is turned, as a patch of the source, so that everything behind this works as
//! on any model.
//!
//! # Paper
//!
//! Ashkboos et al., *QuaRot: Outlier-Free 4-Bit Inference in Rotated LLMs*, 2024. Here only the stream is
//! turned: the paper also turns values, keys and the inputs of down, some of it at run time.

use std::collections::BTreeMap;

use pelton_model::{
    FoldNorm, LayerMatrix, LayerShape, ModelError, ModelFiles, Reads, StreamEnds, TextRows,
    stream_ends,
};
use pelton_quant::Rotation;

use crate::layer::patch;
use crate::source::{Matrices, vector};
use crate::{Options, QuantizeError, Result};

/// The rotation of a model's residual stream.
pub(crate) struct Turn {
    rotation: Rotation,
    ends: StreamEnds,
}

/// A tensor outside of layers with its new values.
pub(crate) struct Turned {
    pub(crate) name: String,
    /// Name of the stored tensor with its type and shape.
    pub(crate) like: String,
    pub(crate) values: Vec<f32>,
}

impl Turn {
    /// The rotation that the options ask for.
    ///
    /// # Errors
    ///
    /// When something else reads or writes the stream, or no transform of its width is known.
    pub(crate) fn new(
        files: &ModelFiles,
        layers: &[LayerShape],
        options: &Options,
    ) -> Result<Option<Self>> {
        if !options.rotate {
            return Ok(None);
        }
        let refuse = |why: String| QuantizeError::Source {
            path: files.path().to_owned(),
            why: format!("`--rotate`: {why}"),
        };
        let ends = stream_ends(files).map_err(|error| match error {
            ModelError::Export(why) => refuse(why),
            error => error.into(),
        })?;
        for (i, layer) in layers.iter().enumerate() {
            check(files, layer).map_err(|why| refuse(format!("layer {i} {why}")))?;
        }
        let width = files.spec()?.hidden_size;
        let rotation = Rotation::new(width, 0).ok_or_else(|| {
            refuse(format!(
                "no Hadamard transform of width {width} is known: expected a power of two, or one \
                 times 12, 20, 28, 36, 52, 60, 108, 116, 124, 140, 156 or 172"
            ))
        })?;
        Ok(Some(Self { rotation, ends }))
    }

    /// Turns texts behind the embeddings.
    pub(crate) fn texts(&self, rows: &mut [TextRows]) {
        rows.iter_mut().for_each(|rows| self.rotation.rows(&mut rows.x));
    }

    /// Gives the model a layer's turned matrices, norms and biases, until patches are cleared.
    pub(crate) fn patch(&self, files: &mut ModelFiles, shape: &LayerShape) -> Result<()> {
        let mut matrices = Matrices::read(files, shape)?;
        let mut vectors = Vec::new();
        for matrix in &shape.matrices {
            let [_, k] = matrix.shape;
            let values = matrices.values.get_mut(&matrix.module).expect("invariant: it was read");
            if is_written(matrix) {
                self.rotation.columns(values, k);
                let bias = format!("{}.bias", matrix.module);
                if files.tensors().get(&bias).is_some() {
                    let mut values = vector(files, &bias)?;
                    self.rotation.rows(&mut values);
                    vectors.push((bias, values));
                }
                continue;
            }
            if let Some(norm) = matrix.reads.and_then(|reads| shape.norms.get(&reads)) {
                self.read(files, norm, values)?;
            }
        }
        for norm in shape.norms.values() {
            vectors.push((norm.weight.clone(), self.unit(norm)));
        }
        let mut values = |matrix: &LayerMatrix| matrices.values.remove(&matrix.module);
        let own = shape
            .matrices
            .iter()
            .map(|matrix| Ok((matrix, values(matrix).expect("invariant: it was read"))));
        patch(files, own)?;
        vectors.iter().for_each(|(name, values)| files.patch(name, values));
        Ok(())
    }

    /// The tensors of a patched layer that are written as floats: norms, biases and kept matrices.
    pub(crate) fn floats(
        &self,
        files: &ModelFiles,
        shape: &LayerShape,
        options: &Options,
    ) -> Result<BTreeMap<String, Vec<f32>>> {
        let norms = shape.norms.values();
        let mut names: Vec<String> = norms.map(|norm| norm.weight.clone()).collect();
        for matrix in &shape.matrices {
            let bias = format!("{}.bias", matrix.module);
            let is_turned = is_written(matrix) && files.tensors().get(&bias).is_some();
            names.extend(is_turned.then_some(bias));
            names.extend(options.keeps(&matrix.module).then(|| matrix.tensor()));
        }
        names.into_iter().map(|name| Ok((name.clone(), vector(files, &name)?))).collect()
    }

    /// Embeddings, the last norm and the head, each computed when it is asked for.
    pub(crate) fn outside<'a>(
        &'a self,
        files: &'a ModelFiles,
    ) -> impl Iterator<Item = Result<Turned>> + 'a {
        let StreamEnds { embedding, final_norm, head, is_tied } = &self.ends;
        let source = if *is_tied { embedding } else { head };
        let turned = |name: &str, like: &str, values| Turned {
            name: name.to_owned(),
            like: like.to_owned(),
            values,
        };
        [0, 1, 2].into_iter().map(move |part| {
            Ok(match part {
                0 => {
                    let mut values = vector(files, embedding)?;
                    self.rotation.rows(&mut values);
                    turned(embedding, embedding, values)
                }
                1 => turned(&final_norm.weight, &final_norm.weight, self.unit(final_norm)),
                _ => {
                    let mut values = vector(files, source)?;
                    self.read(files, final_norm, &mut values)?;
                    turned(head, source, values)
                }
            })
        })
    }

    /// Puts the weights of a norm into a matrix behind it, and turns its inputs.
    fn read(&self, files: &ModelFiles, norm: &FoldNorm, values: &mut [f32]) -> Result<()> {
        let weights = vector(files, &norm.weight)?;
        for row in values.chunks_exact_mut(weights.len()) {
            row.iter_mut().zip(&weights).for_each(|(w, norm_w)| *w *= norm_w + norm.offset);
        }
        self.rotation.rows(values);
        Ok(())
    }

    /// The stored weights of a norm that multiplies by 1.
    fn unit(&self, norm: &FoldNorm) -> Vec<f32> {
        vec![1.0 - norm.offset; self.rotation.width()]
    }
}

/// Whether the outputs of a matrix are added to the stream.
fn is_written(matrix: &LayerMatrix) -> bool {
    matches!(matrix.reads, Some(Reads::Attended | Reads::Hidden))
}

/// Whether all matrices of a layer, and nothing else, read and write the stream; else what does.
fn check(files: &ModelFiles, layer: &LayerShape) -> std::result::Result<(), String> {
    for matrix in &layer.matrices {
        match matrix.reads {
            Some(reads @ (Reads::Mixer | Reads::Mlp)) if !layer.norms.contains_key(&reads) => {
                return Err(format!("has `{}`, whose norm others read", matrix.module));
            }
            Some(Reads::Mixer | Reads::Mlp | Reads::Attended | Reads::Hidden) => {}
            _ => return Err(format!("has `{}`, which is not followed", matrix.module)),
        }
        if matrix.is_transposed {
            return Err(format!("stores `{}` transposed", matrix.module));
        }
    }
    let tensors = files.tensors();
    let unknown = tensors.names().into_iter().find(|name| {
        name.starts_with(&layer.prefix)
            && tensors.get(name).is_some_and(|view| view.shape.len() > 1)
            && layer.matrices.iter().all(|matrix| matrix.tensor() != **name)
    });
    match unknown {
        None => Ok(()),
        Some(name) => Err(format!("has `{name}`, which is not followed")),
    }
}
