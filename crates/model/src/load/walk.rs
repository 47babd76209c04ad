//! The weights of one layer, or those before the first, for a walk from layer to layer.

use pelton_quant::Compute;

use super::cache::Cache;
use super::{LayerWeights, LoadOptions, Lookup, Packer, Plan, Weights};
use crate::arch::ArchSpec;
use crate::device::Device;
use crate::error::ModelError;
use crate::files::ModelFiles;

/// Embeddings and what is added to them, as they are stored; no layers, and no head.
pub(crate) fn walk_ends<D: Device>(
    files: &ModelFiles,
    spec: &ArchSpec,
    device: &D,
) -> Result<Weights<D>, ModelError> {
    let mut plan = Plan::padded(files, spec, D::HEAD_ROWS)?;
    if let Some(inputs) = &mut plan.inputs {
        // Tables are looked up as they are stored; a walk multiplies in f32.
        inputs.projection.is_exact = true;
    }
    if let Some(streams) = &mut plan.streams {
        streams.enter.iter_mut().for_each(|linear| linear.is_exact = true);
        // A walk does not come to the end.
        streams.leave.clear();
    }
    let options = LoadOptions::default();
    let mut packer = packer(files, spec, device, &options);
    Ok(Weights {
        embedding: packer.matrix(&plan.embedding)?,
        positions: plan.positions.as_ref().map(|table| packer.matrix(table)).transpose()?,
        token_types: plan.token_types.as_ref().map(|table| packer.matrix(table)).transpose()?,
        embedding_norm: packer.optional_norm(&plan.embedding_norm)?,
        inputs: plan.inputs.as_ref().map(|inputs| packer.inputs(inputs)).transpose()?,
        streams: plan.streams.as_ref().map(|streams| packer.streams(streams)).transpose()?,
        layers: Vec::new(),
        encoder: None,
        final_norm: None,
        head: None,
        head_bias: None,
        n_bytes: packer.n_packed_bytes,
    })
}

/// One layer in f32; where it `keeps_bf16`, matrices that are stored in bf16 are computed in it, patched
/// or not. A layer with experts stays in f32, because what these read is shown as floats.
pub(crate) fn walk_layer<D: Device>(
    files: &ModelFiles,
    spec: &ArchSpec,
    device: &D,
    layer: usize,
    keeps_bf16: bool,
) -> Result<LayerWeights<D>, ModelError> {
    let keeps_bf16 = keeps_bf16 && spec.layers[layer].mlp.experts().is_none();
    let lookup = Lookup::new(files, spec, D::HEAD_ROWS);
    let lookup = Lookup { rounds_patches: keeps_bf16, ..lookup };
    let plan = lookup.layer(layer, &spec.layers[layer])?;
    let options = LoadOptions { compute: Compute::F32, ..LoadOptions::default() };
    let packer = packer(files, spec, device, &options);
    Packer { keeps_bf16, ..packer }.layer(&plan)
}

fn packer<'a, D: Device>(
    files: &'a ModelFiles,
    spec: &'a ArchSpec,
    device: &'a D,
    options: &'a LoadOptions<'a>,
) -> Packer<'a, D> {
    let cache = Cache::Off;
    Packer {
        device,
        options,
        files,
        spec,
        cache,
        keeps_bf16: false,
        n_bytes: 0,
        n_total_bytes: 0,
        n_packed_bytes: 0,
    }
}
