//! The matrices of a layer by the names of their modules, and what they read: for quantizers.

use std::collections::BTreeMap;

use super::{ExpertSlice, LayerPlan, LinearPlan, Lookup, NormPlan, Part};
use crate::arch::{ArchSpec, LayerSpec, Mixer, Mlp, NormKind, Part as Name, Residual, Wiring};
use crate::decoder::Reads;
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::layer::{Found, MlaPlan, Moe, MoePlan, Planned, TwoPlan};

/// One matrix of a layer, as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerMatrix {
    /// Name of the module.
    pub module: String,
    /// Outputs and inputs, all that are stored.
    pub shape: [usize; 2],
    /// Whether it is stored `[inputs, outputs]`.
    pub is_transposed: bool,
    /// The place in a tensor that holds the matrices of several experts; the module is then the one
    /// that the expert's matrix has in files that hold them apart.
    pub slice: Option<ExpertSlice>,
    /// Where its inputs are read; `None` for those of token shifts and of the ends of layers, and
    /// for projections between others.
    pub reads: Option<Reads>,
}

impl LayerMatrix {
    /// Name of the tensor that it is stored in.
    pub fn tensor(&self) -> String {
        match &self.slice {
            Some(slice) => slice.tensor.clone(),
            None => format!("{}.weight", self.module),
        }
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
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerShape {
    /// Begins the names of all its tensors.
    pub prefix: String,
    /// Matrices of the mixers, without routers; those of experts last, one expert after the other.
    pub matrices: Vec<LayerMatrix>,
    /// The norm before a place, where all that reads it is there.
    pub norms: BTreeMap<Reads, FoldNorm>,
    /// The rows of another matrix before a place: values that each head has for itself, and those
    /// of an up that a gate multiplies.
    pub rows: BTreeMap<Reads, StoredRows>,
    /// The place of the rows that a router divides among experts.
    pub divided: Option<Reads>,
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
    let mut shape = LayerShape { prefix: lookup.naming.own(layer), ..LayerShape::default() };
    shape.add_mixer(&plan.attention);
    shape.add_norms(&spec, layer, &plan);
    shape.add_channels(&plan.mlp);
    // The inputs of a layer's last projections are not shown.
    shape.add_unread(&plan.tail.tensors().linears);
    let moe = match &plan.mlp {
        Mlp::Moe(module) => Some((&module.spec, &module.weights)),
        Mlp::WithExperts(both) => Some((&both.spec.experts, &both.weights.experts)),
        _ => None,
    };
    if let Some(moe) = moe {
        let is_beside = matches!(plan.mlp, Mlp::WithExperts(_));
        let is_apart = is_beside || moe.0.latent_size.is_some();
        shape.divided = Some(if is_apart { Reads::Experts } else { Reads::Mlp });
        shape.add_experts(moe, &lookup, layer);
    }
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
    /// Adds the matrices of a sequence mixer.
    fn add_mixer(&mut self, mixer: &Mixer<Planned<'_>>) {
        match mixer {
            Mixer::Gqa(module) => {
                let tensors = module.weights.tensors();
                let [qkv, out] = tensors.linears[..] else {
                    unreachable!("invariant: two projections")
                };
                self.add(qkv, Some(Reads::Mixer));
                self.add(out, Some(Reads::Attended));
                let values = match &qkv.parts[..] {
                    // A norm takes a factor of values away again.
                    [_, _, v] if v.n() == out.k && !module.spec.norms_values => rows(qkv, v),
                    _ => None,
                };
                self.rows.extend(values.map(|rows| (Reads::Attended, rows)));
            }
            Mixer::Recurrent(_) | Mixer::ShortConv(_) | Mixer::SelectiveScan(_) => {
                let tensors = Mixer::<Planned<'_>>::tensors(mixer);
                let [input, ref between @ .., out] = tensors.linears[..] else {
                    unreachable!("invariant: projections from and to the residual stream")
                };
                self.add(input, Some(Reads::Mixer));
                self.add_unread(between);
                self.add(out, Some(Reads::Attended));
            }
            Mixer::Parallel(_) => {
                // The inputs of each mixer's second projection are not shown.
                let tensors = Mixer::<Planned<'_>>::tensors(mixer);
                for pair in tensors.linears.chunks_exact(2) {
                    self.add(pair[0], Some(Reads::Mixer));
                    self.add(pair[1], None);
                }
            }
            Mixer::Mla(module) => self.add_latent(&module.weights),
            Mixer::Absent(_) => {}
            Mixer::CrossAttention(_) | Mixer::TimeMix(_) | Mixer::ChannelMix(_) => {
                self.add_unread(&Mixer::<Planned<'_>>::tensors(mixer).linears);
            }
        }
    }

    /// Adds the matrices of latent attention.
    fn add_latent(&mut self, plan: &MlaPlan<'_>) {
        let MlaPlan { down, q_norm, q_up, kv_norm, v_up, out, .. } = plan;
        self.add(down, Some(Reads::Mixer));
        if let Some(q_up) = q_up {
            self.add(q_up, Some(Reads::QueryLatent));
        }
        // The matrix of keys and values, or that of values where a file has them apart.
        self.add_part(v_up, None, module(v_up.view.name), Some(Reads::KeyLatent));
        self.add(out, Some(Reads::Attended));
        let norms = [(Reads::QueryLatent, q_norm.as_ref()), (Reads::KeyLatent, Some(kv_norm))];
        let norms = norms.into_iter().filter_map(|(reads, plan)| Some((reads, norm(plan?)?)));
        self.norms.extend(norms);
        let values = StoredRows {
            module: module(v_up.view.name),
            rows: v_up.rows.sources().collect(),
            bias: None,
        };
        self.rows.insert(Reads::Attended, values);
    }

    /// Adds the norms before the mixers that nothing else reads.
    fn add_norms(&mut self, spec: &ArchSpec, layer: usize, plan: &LayerPlan<'_>) {
        let wiring = &spec.layers[layer].wiring;
        if let Residual::OfNorms { .. } = wiring.residual {
            // The stream reads these norms as well as the mixers.
            return;
        }
        // With one norm for both mixers neither has it for itself, and the residual beside
        // attention reads it.
        let is_shared = spec.streams.is_some();
        if !is_shared && plan.mlp_norm.is_some() || !wiring.pre_norm {
            let own = plan.attention_norm.as_ref().and_then(norm);
            self.norms.extend(own.map(|norm| (Reads::Mixer, norm)));
        }
        let own = match &plan.mlp {
            // The router reads it, too.
            Mlp::Moe(_) => None,
            Mlp::WithExperts(both) => norm(&both.weights.mlp_norms[0]),
            _ => plan.mlp_norm.as_ref().and_then(norm),
        };
        self.norms.extend(own.map(|norm| (Reads::Mlp, norm)));
    }

    /// Adds the matrices of a channel mixer that every row goes through.
    fn add_channels(&mut self, mlp: &Mlp<Planned<'_>>) {
        match mlp {
            Mlp::Gated(module) => {
                self.add_perceptron(&module.weights, [Reads::Mlp, Reads::Hidden], true);
            }
            Mlp::Plain(module) => {
                self.add_perceptron(&module.weights, [Reads::Mlp, Reads::Hidden], false);
            }
            Mlp::Moe(module) => {
                let places = [Reads::Mlp, Reads::SharedHidden];
                if let Some(shared) = module.weights.shared() {
                    self.add_perceptron(shared, places, module.spec.has_gates);
                }
                if let Some([down, up]) = &module.weights.latent {
                    self.add(down, Some(Reads::Mlp));
                    self.add(up, Some(Reads::ExpertSum));
                }
            }
            Mlp::WithExperts(both) => {
                self.add_perceptron(&both.weights.mlp, [Reads::Mlp, Reads::Hidden], true);
            }
            Mlp::Absent(_) => {}
        }
    }

    fn add_perceptron(&mut self, plan: &TwoPlan<'_>, places: [Reads; 2], is_gated: bool) {
        self.add(&plan.up, Some(places[0]));
        self.add(&plan.down, Some(places[1]));
        let ups = match &plan.up.parts[..] {
            [_, own] if is_gated => rows(&plan.up, own),
            _ => None,
        };
        self.rows.extend(ups.map(|rows| (places[1], rows)));
    }

    /// Adds the matrices of experts, and the rows that they share.
    fn add_experts(
        &mut self,
        (spec, plan): (&Moe, &MoePlan<'_>),
        lookup: &Lookup<'_, '_>,
        layer: usize,
    ) {
        let ups = [Name::ExpertGate, Name::ExpertUp];
        let ups = if spec.has_gates { &ups[..] } else { &ups[1..] };
        for (expert, own) in plan.experts.iter().enumerate() {
            let TwoPlan { up, down } = own;
            let places = [Reads::Expert(expert), Reads::ExpertHidden(expert)];
            if up.parts.iter().chain(&down.parts).all(|part| part.slice.is_none()) {
                // A bound between up and down is not moved by a factor.
                self.add_perceptron(own, places, spec.has_gates && spec.limit.is_none());
                continue;
            }
            for (nth, (name, part)) in ups.iter().zip(&up.parts).enumerate() {
                let module = lookup.expert_module(*name, layer, expert);
                self.add_part(part, up.biases.get(nth), module, Some(places[0]));
            }
            let module = lookup.expert_module(Name::ExpertDown, layer, expert);
            self.add_part(&down.parts[0], down.biases.first(), module, Some(places[1]));
            if spec.has_gates && spec.limit.is_none() && up.biases.is_empty() {
                let module = lookup.expert_module(Name::ExpertUp, layer, expert);
                let rows = (0..spec.expert.intermediate_size).collect();
                self.rows.insert(places[1], StoredRows { module, rows, bias: None });
            }
        }
    }

    fn add(&mut self, linear: &LinearPlan<'_>, reads: Option<Reads>) {
        if linear.is_exact {
            return;
        }
        for part in &linear.parts {
            self.add_part(part, None, module(part.view.name), reads);
        }
    }

    fn add_part(
        &mut self,
        part: &Part<'_>,
        bias: Option<&Part<'_>>,
        module: String,
        reads: Option<Reads>,
    ) {
        if self.matrices.iter().any(|known| known.module == module) {
            return;
        }
        let slice = ExpertSlice::of(part, bias);
        let n = if slice.is_some() { part.n() } else { part.rows.n_stored };
        let is_transposed = part.is_transposed && slice.is_none();
        let shape = [n, part.k()];
        self.matrices.push(LayerMatrix { module, shape, is_transposed, slice, reads });
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
