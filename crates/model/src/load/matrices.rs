//! The matrices of a layer by the names of their modules, and what they read: for quantizers.

use super::{LinearPlan, Lookup, NormPlan, Part};
use crate::arch::{LayerSpec, Mixer, Mlp, NormKind, Part as Name, Residual, Wiring};
use crate::decoder::Reads;
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::layer::{Found, Planned};

/// One matrix of a layer, as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerMatrix {
    /// Name of the module.
    pub module: String,
    /// Outputs and inputs, all that are stored.
    pub shape: [usize; 2],
    /// Whether it is stored `[inputs, outputs]`.
    pub is_transposed: bool,
    /// Whether it is one expert's part of a tensor.
    pub is_slice: bool,
    /// Where its inputs are read; `None` for those of experts, latent attention, token shifts and the
    /// ends of layers.
    pub reads: Option<Reads>,
}

impl LayerMatrix {
    /// Name of its tensor.
    pub fn tensor(&self) -> String {
        format!("{}.weight", self.module)
    }
}

/// A norm whose weight can be divided, because only matrices of this layer read it.
#[derive(Clone, Debug, PartialEq)]
pub struct FoldNorm {
    /// Name of the weight.
    pub weight: String,
    /// Name of the bias.
    pub bias: Option<String>,
    /// Added to each stored weight.
    pub offset: f32,
}

/// Rows of a matrix that are the inputs of another, each multiplied by something at most.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredRows {
    /// Name of the module.
    pub module: String,
    /// The stored row of each input of the other matrix.
    pub rows: Vec<usize>,
    /// Name of the bias, which has the same rows.
    pub bias: Option<String>,
}

/// A layer as a quantizer sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerShape {
    /// Begins the names of all its tensors.
    pub prefix: String,
    /// Matrices of the mixers, without routers.
    pub matrices: Vec<LayerMatrix>,
    /// The norm before q, k and v.
    pub mixer_norm: Option<FoldNorm>,
    /// The norm before gate and up.
    pub mlp_norm: Option<FoldNorm>,
    /// The values that the output projection reads, where each head has its own.
    pub values: Option<StoredRows>,
    /// The rows of up that down reads, where a gate multiplies them.
    pub ups: Option<StoredRows>,
}

/// Looks up the matrices of a layer.
///
/// # Errors
///
/// As [`load`](crate::load()), when a tensor is missing or misshapen.
pub fn layer_shape(files: &ModelFiles, layer: usize) -> Result<LayerShape, ModelError> {
    let spec = files.spec()?;
    let lookup = Lookup::new(files, &spec, 1);
    let plan = lookup.layer(layer, &spec.layers[layer])?;
    let naming = lookup.naming;
    let prefix = naming.own(layer);
    let mut shape = LayerShape {
        prefix,
        matrices: Vec::new(),
        mixer_norm: None,
        mlp_norm: None,
        values: None,
        ups: None,
    };
    match &plan.attention {
        Mixer::Gqa(module) => {
            let tensors = module.weights.tensors();
            let [qkv, out] = tensors.linears[..] else {
                unreachable!("invariant: two projections")
            };
            shape.add(qkv, Some(Reads::Mixer));
            shape.add(out, Some(Reads::Attended));
            shape.values = match &qkv.parts[..] {
                // A norm takes a factor of values away again.
                [_, _, v] if v.n() == out.k && !module.spec.norms_values => rows(qkv, v),
                _ => None,
            };
        }
        Mixer::Recurrent(_) | Mixer::ShortConv(_) => {
            let tensors = Mixer::<Planned<'_>>::tensors(&plan.attention);
            let [input, ref between @ .., out] = tensors.linears[..] else {
                unreachable!("invariant: two projections, or some between")
            };
            shape.add(input, Some(Reads::Mixer));
            shape.add_unread(between);
            shape.add(out, Some(Reads::Attended));
        }
        Mixer::SelectiveScan(_) => {
            let tensors = Mixer::<Planned<'_>>::tensors(&plan.attention);
            let [input, inner @ .., out] = &tensors.linears[..] else {
                unreachable!("invariant: projections from and to the residual stream")
            };
            shape.add(input, Some(Reads::Mixer));
            shape.add_unread(inner);
            shape.add(out, Some(Reads::Attended));
        }
        Mixer::Parallel(_) => {
            // What the second projection of each mixer reads is not told.
            let tensors = Mixer::<Planned<'_>>::tensors(&plan.attention);
            for pair in tensors.linears.chunks_exact(2) {
                shape.add(pair[0], Some(Reads::Mixer));
                shape.add(pair[1], None);
            }
        }
        Mixer::Absent(_) => {}
        mixer @ (Mixer::CrossAttention(_)
        | Mixer::Mla(_)
        | Mixer::TimeMix(_)
        | Mixer::ChannelMix(_)) => {
            shape.add_unread(&Mixer::<Planned<'_>>::tensors(mixer).linears);
        }
    }
    match &plan.mlp {
        Mlp::Gated(module) => {
            let (up, down) = (&module.weights.up, &module.weights.down);
            shape.add(up, Some(Reads::Mlp));
            shape.add(down, Some(Reads::Hidden));
            shape.ups = match &up.parts[..] {
                [_, own] => rows(up, own),
                _ => None,
            };
        }
        Mlp::Plain(module) => {
            shape.add(&module.weights.up, Some(Reads::Mlp));
            shape.add(&module.weights.down, Some(Reads::Hidden));
        }
        Mlp::Absent(_) => {}
        mlp @ (Mlp::Moe(_) | Mlp::WithExperts(_)) => {
            shape.add_unread(&Mlp::<Planned<'_>>::tensors(mlp).linears)
        }
    }
    // The inputs of a layer's last projections are not told.
    shape.add_unread(&plan.tail.tensors().linears);
    if let Residual::OfNorms { .. } = spec.layers[layer].wiring.residual {
        // The stream reads these norms as well as the mixers.
        return Ok(shape);
    }
    // With one norm for both mixers neither has it for itself, and the residual beside attention reads it.
    let is_shared = spec.streams.is_some();
    if !is_shared && plan.mlp_norm.is_some() || !spec.layers[layer].wiring.pre_norm {
        shape.mixer_norm = plan.attention_norm.as_ref().and_then(norm);
    }
    shape.mlp_norm = plan.mlp_norm.as_ref().and_then(norm);
    Ok(shape)
}

/// Modules outside of layers that rows are multiplied with, the head left out.
///
/// # Errors
///
/// When the configuration cannot be used.
pub fn outer_modules(files: &ModelFiles) -> Result<Vec<String>, ModelError> {
    let spec = files.spec()?;
    let lookup = Lookup::new(files, &spec, 1);
    let projection = |_| lookup.stem(Name::LayerProjection, 0);
    let mut modules: Vec<String> = spec.layer_inputs.map(projection).into_iter().collect();
    for name in [Name::StreamIn, Name::StreamOut] {
        for nth in 1..spec.streams.map_or(1, |streams| streams.n) {
            modules.push(Lookup { expert: Some(nth - 1), ..lookup }.stem(name, 0));
        }
    }
    Ok(modules)
}

/// The parts outside of layers that write and read the residual stream.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamEnds {
    /// Name of the table of embeddings, `[vocab, hidden]`.
    pub embedding: String,
    /// The norm before the head.
    pub final_norm: FoldNorm,
    /// Name of the head's weight, `[vocab, hidden]`; where it shares the embeddings, the name that one of
    /// its own would have.
    pub head: String,
    /// Whether the head shares the embeddings.
    pub is_tied: bool,
}

/// Looks up the ends of a residual stream that can be rotated without changing what the model computes.
///
/// # Errors
///
/// When something reads or writes the stream other than by the matrices and norms of this and of
/// [`layer_shape`]: norms that take off a mean or follow a mixer, learned positions, several streams, an
/// encoder.
pub fn stream_ends(files: &ModelFiles) -> Result<StreamEnds, ModelError> {
    let spec = files.spec()?;
    let is_plain = |layer: &LayerSpec| {
        let Wiring { pre_norm, post_norm, residual, .. } = layer.wiring;
        let is_added = matches!(residual, Residual::Sequential | Residual::ParallelTwoNorms);
        pre_norm && !post_norm && is_added
    };
    let why = match &spec {
        _ if spec.norm != NormKind::Rms => "its norms take off the mean, or have no weight",
        _ if spec.encoder.is_some() => "it has an encoder",
        _ if spec.positions.is_some() => "positions are added to the stream",
        _ if spec.streams.is_some() => "it has several streams",
        _ if spec.embedding_norm => "embeddings are normed",
        _ if spec.layer_inputs.is_some() => "tokens have vectors for each layer",
        _ if !spec.layers.iter().all(is_plain) => "norms follow the mixers, or mixers share one",
        _ if !spec.ends.final_norm || !spec.ends.head => "it has no head behind a norm",
        _ => "",
    };
    if !why.is_empty() {
        return Err(ModelError::Export(format!("the stream cannot be rotated: {why}")));
    }
    let lookup = Lookup::new(files, &spec, 1);
    let final_norm = lookup.optional_norm(true, Name::FinalNorm, 0)?;
    Ok(StreamEnds {
        embedding: format!("{}.weight", lookup.stem(Name::Embedding, 0)),
        final_norm: final_norm.as_ref().and_then(norm).expect("invariant: a norm with a weight"),
        head: format!("{}.weight", lookup.stem(Name::Head, 0)),
        is_tied: spec.tied_embeddings,
    })
}

impl LayerShape {
    fn add(&mut self, linear: &LinearPlan<'_>, reads: Option<Reads>) {
        if linear.is_exact {
            return;
        }
        for part in &linear.parts {
            let module = module(part.view.name);
            if self.matrices.iter().all(|known| known.module != module) {
                let shape = [part.rows.n_stored, part.k()];
                let (is_transposed, is_slice) = (part.is_transposed, part.slice.is_some());
                self.matrices.push(LayerMatrix { module, shape, is_transposed, is_slice, reads });
            }
        }
    }

    fn add_unread(&mut self, linears: &[&LinearPlan<'_>]) {
        linears.iter().for_each(|linear| self.add(linear, None));
    }
}

fn module(tensor: &str) -> String {
    tensor.strip_suffix(".weight").unwrap_or(tensor).to_owned()
}

fn rows<'a>(linear: &LinearPlan<'a>, part: &Part<'a>) -> Option<StoredRows> {
    let place = linear.parts.iter().position(|own| std::ptr::eq(own, part))?;
    let bias = linear.biases.get(place).map(|bias| bias.view.name.to_owned());
    Some(StoredRows { module: module(part.view.name), rows: part.rows.sources().collect(), bias })
}

fn norm(plan: &NormPlan<'_>) -> Option<FoldNorm> {
    let [weight] = &plan.weights[..] else { return None };
    let bias = plan.bias.as_ref().map(|bias| bias.name.to_owned());
    Some(FoldNorm { weight: weight.name.to_owned(), bias, offset: plan.offset })
}
