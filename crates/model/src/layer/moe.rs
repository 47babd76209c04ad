//! Mixtures of experts (Shazeer et al., 2017).
//!
//! ```text
//! x ── router ──> top_k experts and weights
//! x ── expert e ──> down(act(gate) · up)        for each chosen expert
//! x ── shared ──> down(act(gate) · up)          for every row, sometimes times a sigmoid
//! out = Σ weight · expert + shared
//! ```
//!
//! Where experts have no gate, each of them and the shared one is `down(act(up))`.
//!
//! Where experts work in a smaller width (LatentMoE: NVIDIA, *Nemotron 3*, 2025), a projection before
//! them and one after their sum are shared by all; the router and the shared expert read `x`:
//!
//! ```text
//! out = latent up(Σ weight · expert(latent down(x))) + shared(x)
//! ```
//!
//! [`Router`] has what routers do differently; `arch::Experts` has how files store experts.

pub use pelton_base::{ExpertGroups, GroupRank, Router, RouterScore};

use super::kind::Stages;
use super::mlp::{GatedMlp, TwoLayers, TwoPlan};
use super::{Found, Kind, Linear, MlpKind, Module, Packed, PlannedTensors};
use crate::arch::Part as Name;
use crate::device::Device;
use crate::error::ModelError;
use crate::export::{Biased, Listing, Scaled, Source, biased, gate_and_up};
use crate::load::{LinearPlan, Lookup, NormPlan, Packer, Part, Projection, Rows};
use crate::parameters::Parameters;

/// Experts behind a router.
#[derive(Clone, Debug, PartialEq)]
pub struct Moe {
    /// How experts are chosen.
    pub router: Router,
    /// Whether the router carries a bias.
    pub router_bias: bool,
    /// Whether a correction is added to the scores that experts are ranked by
    /// (`e_score_correction_bias`).
    pub has_correction: bool,
    /// Whether each expert has a factor of its weights, after these are normed.
    pub has_scales: bool,
    /// Whether a weight multiplies the expert's input instead of its output.
    pub weighs_input: bool,
    /// Whether the experts and the shared one have the gates that [`GatedMlp`] describes.
    pub has_gates: bool,
    /// One expert.
    pub expert: GatedMlp,
    /// Width of the inputs and outputs of experts, where it is not that of the model; the
    /// projections to and from it have a bias where the experts have one.
    pub latent_size: Option<usize>,
    /// Upper bound of gates, and bound of the magnitude of ups, to which 1 is added afterwards.
    pub limit: Option<f32>,
    /// The perceptron that every row goes through beside its experts.
    pub shared: Option<SharedExpert>,
}

/// A perceptron that every row goes through.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedExpert {
    /// The perceptron; several shared experts are one as wide as all of them.
    pub mlp: GatedMlp,
    /// Whether its output is multiplied by the sigmoid of one more projection.
    pub is_gated: bool,
}

impl Moe {
    /// Parameters of the experts that a row does not go through, biases included.
    pub fn n_idle_parameters(&self, hidden_size: usize) -> usize {
        let (ffn, n_idle) =
            (self.expert.intermediate_size, self.router.n_experts - self.router.top_k);
        let width = self.expert_width(hidden_size);
        let biases = if self.expert.bias { self.n_ups() * ffn + width } else { 0 };
        n_idle * ((self.n_ups() + 1) * width * ffn + biases)
    }

    /// Width of the inputs and outputs of experts.
    pub fn expert_width(&self, hidden_size: usize) -> usize {
        self.latent_size.unwrap_or(hidden_size)
    }

    /// Matrices from the input of an expert to its hidden layer.
    fn n_ups(&self) -> usize {
        1 + usize::from(self.has_gates)
    }

    /// The parameters of an expert, or of the shared one.
    fn perceptron(&self, mlp: &GatedMlp, hidden_size: usize, head_rows: usize) -> Parameters {
        match self.has_gates {
            true => mlp.parameters(hidden_size, head_rows),
            false => mlp.without_gate().parameters(hidden_size, head_rows),
        }
    }

    /// The parameters of the projections to and from the width of the experts.
    fn latent_parameters(&self, hidden_size: usize) -> Parameters {
        let Some(latent) = self.latent_size else { return Parameters::default() };
        Parameters::products(&[[latent, hidden_size], [hidden_size, latent]])
            .vector(self.expert.bias, latent + hidden_size)
    }

    fn of_experts(&self, hidden_size: usize, n: usize) -> usize {
        let n_matrices = self.n_ups() + 1;
        let width = self.expert_width(hidden_size);
        let latent = 2 * self.latent_size.unwrap_or(0);
        let shared = self.shared.as_ref().map_or(0, |shared| {
            n_matrices * shared.mlp.intermediate_size + usize::from(shared.is_gated)
        });
        let experts = n_matrices * n * self.expert.intermediate_size;
        hidden_size * (self.router.n_experts + latent + shared) + width * experts
    }
}

/// Packed weights of a mixture of experts.
#[derive(Debug)]
pub struct MoeWeights<B: Device> {
    /// `[n_experts, hidden]`, in f32 whatever the other weights are.
    pub router: Linear<B>,
    /// Added to the scores that experts are ranked by, `[n_experts]`.
    pub correction: Option<B::Vector>,
    /// The projections to and from the width of the experts, `[latent, hidden]` and
    /// `[hidden, latent]`.
    pub latent: Option<[Linear<B>; 2]>,
    /// Factors of the weights of each expert, `[n_experts]`.
    pub scales: Option<B::Vector>,
    /// One for each expert.
    pub experts: Vec<TwoLayers<B>>,
    /// The perceptron that every row goes through beside its experts.
    pub shared: Option<Module<SharedExpert, SharedWeights<B>>>,
}

/// Packed weights that every row goes through beside its experts.
#[derive(Debug)]
pub struct SharedWeights<B: Device> {
    /// The perceptron.
    pub mlp: TwoLayers<B>,
    /// `[1, hidden]` in f32; the sigmoid of its product multiplies the output.
    pub switch: Option<Linear<B>>,
}

/// Tensors of a mixture of experts.
pub struct MoePlan<'a> {
    router: LinearPlan<'a>,
    correction: Option<NormPlan<'a>>,
    pub(crate) latent: Option<[LinearPlan<'a>; 2]>,
    scales: Option<NormPlan<'a>>,
    pub(crate) experts: Vec<TwoPlan<'a>>,
    shared: Option<Module<SharedExpert, SharedPlan<'a>>>,
}

/// Tensors that every row goes through beside its experts.
struct SharedPlan<'a> {
    mlp: TwoPlan<'a>,
    switch: Option<LinearPlan<'a>>,
}

impl<'a> MoePlan<'a> {
    /// The perceptron that every row goes through beside its experts.
    pub(crate) fn shared(&self) -> Option<&TwoPlan<'a>> {
        self.shared.as_ref().map(|shared| &shared.weights.mlp)
    }
}

impl Kind for Moe {
    type Plan<'a> = MoePlan<'a>;
    type Weights<B: Device> = MoeWeights<B>;

    fn n_weights(&self, hidden_size: usize) -> usize {
        self.of_experts(hidden_size, self.router.n_experts)
    }

    fn parameters(&self, hidden_size: usize, head_rows: usize) -> Parameters {
        let Router { n_experts, top_k, .. } = self.router;
        let width = self.expert_width(hidden_size);
        let shared = self.shared.as_ref().map(|shared| {
            let mlp = self.perceptron(&shared.mlp, hidden_size, head_rows);
            if shared.is_gated { mlp.exact(1, hidden_size) } else { mlp }
        });
        Parameters::default()
            .exact(n_experts, hidden_size)
            .vector(self.router_bias, n_experts)
            .vector(self.has_correction, n_experts)
            .vector(self.has_scales, n_experts)
            .and(self.latent_parameters(hidden_size))
            .and(self.perceptron(&self.expert, width, head_rows).copied(n_experts, top_k))
            .and(shared.unwrap_or_default())
    }
}

impl MlpKind for Moe {
    fn intermediate_size(&self) -> usize {
        self.expert.intermediate_size
    }

    fn n_active_weights(&self, hidden_size: usize) -> usize {
        self.of_experts(hidden_size, self.router.top_k)
    }

    fn active_bytes<B: Device>(&self, weights: &MoeWeights<B>) -> usize {
        let experts = weights.experts.iter().map(TwoLayers::n_bytes).sum::<usize>();
        let all = weights.matrices().into_iter().map(B::weight_bytes).sum::<usize>();
        all - experts + experts / self.router.n_experts * self.router.top_k
    }
}

impl<'a> Found<'a> for MoePlan<'a> {
    fn tensors(&self) -> PlannedTensors<'_, 'a> {
        let shared = self.shared.as_ref().map(|shared| &shared.weights);
        let switch = shared.and_then(|shared| shared.switch.as_ref());
        let perceptrons = self.experts.iter().chain(shared.map(|shared| &shared.mlp));
        let perceptrons = perceptrons.flat_map(TwoPlan::linears);
        let latent = self.latent.iter().flatten();
        let linears = [&self.router].into_iter().chain(switch).chain(latent).chain(perceptrons);
        PlannedTensors {
            linears: linears.collect(),
            vectors: self.correction.iter().chain(&self.scales).collect(),
            ..Default::default()
        }
    }
}

impl<B: Device> MoeWeights<B> {
    /// The projections of each row that are in no expert.
    fn alone(&self) -> impl Iterator<Item = &Linear<B>> {
        let switch = self.shared.iter().filter_map(|shared| shared.weights.switch.as_ref());
        [&self.router].into_iter().chain(switch)
    }

    /// The perceptron that every row goes through.
    fn shared_mlp(&self) -> impl Iterator<Item = &TwoLayers<B>> {
        self.shared.iter().map(|shared| &shared.weights.mlp)
    }
}

impl<B: Device> Packed<B> for MoeWeights<B> {
    fn matrices(&self) -> Vec<&B::Weight> {
        let perceptrons = self.shared_mlp().chain(&self.experts).flat_map(TwoLayers::linears);
        let latent = self.latent.iter().flatten();
        self.alone().chain(latent).chain(perceptrons).flat_map(Linear::weights).collect()
    }

    fn inputs(&self) -> Vec<&Linear<B>> {
        let alone = self.alone().chain(self.shared_mlp().map(|mlp| &mlp.up));
        match &self.latent {
            Some([down, _]) => alone.chain([down]).collect(),
            None => alone.chain(self.experts.iter().map(|mlp| &mlp.up)).collect(),
        }
    }
}

impl Stages for Moe {
    fn plan<'a>(&self, lookup: &Lookup<'a, '_>, layer: usize) -> Result<MoePlan<'a>, ModelError> {
        let (hidden, n_experts) = (lookup.spec.hidden_size, self.router.n_experts);
        let router = Projection { name: Name::Router, rows: Rows::all(n_experts) };
        Ok(MoePlan {
            // A near tie that rounding decides another way is another expert, not another bit.
            router: lookup.linear(layer, &[router], hidden, self.router_bias)?.exact(),
            correction: (self.has_correction)
                .then(|| lookup.vector(Name::RouterCorrection, layer, n_experts))
                .transpose()?,
            scales: (self.has_scales)
                .then(|| lookup.vector(Name::ExpertScale, layer, n_experts))
                .transpose()?,
            latent: self
                .latent_size
                .map(|n| plan_latent(lookup, layer, n, &self.expert))
                .transpose()?,
            experts: lookup.experts(layer, self)?,
            shared: match &self.shared {
                None => None,
                Some(spec) => {
                    let weights = spec.plan(lookup, layer, self.has_gates)?;
                    Some(Module { spec: spec.clone(), weights })
                }
            },
        })
    }

    fn pack<B: Device>(
        &self,
        plan: &MoePlan<'_>,
        packer: &mut Packer<'_, B>,
    ) -> Result<MoeWeights<B>, ModelError> {
        let shared = match &plan.shared {
            None => None,
            Some(Module { spec, weights: SharedPlan { mlp, switch } }) => {
                let mlp = mlp.pack(packer)?;
                let switch = switch.as_ref().map(|switch| packer.linear(switch)).transpose()?;
                Some(Module { spec: spec.clone(), weights: SharedWeights { mlp, switch } })
            }
        };
        Ok(MoeWeights {
            router: packer.linear(&plan.router)?,
            correction: plan.correction.as_ref().map(|plan| packer.vector(plan)).transpose()?,
            latent: match &plan.latent {
                None => None,
                Some([down, up]) => Some([packer.linear(down)?, packer.linear(up)?]),
            },
            scales: plan.scales.as_ref().map(|plan| packer.vector(plan)).transpose()?,
            experts: (plan.experts.iter())
                .map(|expert| expert.pack(packer))
                .collect::<Result<_, _>>()?,
            shared,
        })
    }

    fn list<'a>(
        &self,
        plan: MoePlan<'a>,
        layer: usize,
        list: &mut Listing<'a, '_>,
    ) -> Result<(), ModelError> {
        list.only(Name::Router, layer, plan.router)?;
        if let Some(NormPlan { weights, rows, .. }) = plan.correction {
            let name = list.naming.bias(Name::RouterCorrection, layer);
            list.vector(name, Source::plain(weights, rows));
        }
        for (name, linear) in
            [Name::LatentDown, Name::LatentUp].into_iter().zip(plan.latent.into_iter().flatten())
        {
            list.only(name, layer, linear)?;
        }
        list_experts(plan.experts, self.has_gates, layer, list)?;
        let Some(Module { weights: SharedPlan { mlp, switch }, .. }) = plan.shared else {
            return Ok(());
        };
        if self.has_gates {
            let [gate, up] = gate_and_up(mlp.up);
            list.projection(Name::SharedGate, layer, gate, None)?;
            list.projection(Name::SharedUp, layer, up, None)?;
        } else {
            list.only(Name::SharedUp, layer, mlp.up)?;
        }
        list.only(Name::SharedDown, layer, mlp.down)?;
        for Biased { part, .. } in switch.map(biased).into_iter().flatten() {
            // One row, which files have as a vector.
            let (name, k) = (list.naming.weight(Name::SharedSwitch, layer), part.shape[1]);
            list.matrix(name, vec![part.into()], vec![k], [None; 2])?;
        }
        Ok(())
    }
}

impl SharedExpert {
    fn plan<'a>(
        &self,
        lookup: &Lookup<'a, '_>,
        layer: usize,
        has_gate: bool,
    ) -> Result<SharedPlan<'a>, ModelError> {
        let &GatedMlp { intermediate_size: ffn, bias, .. } = &self.mlp;
        let hidden = lookup.spec.hidden_size;
        let whole = |name, n| Projection { name, rows: Rows::all(n) };
        let up = match lookup.has(&lookup.stem(Name::SharedGateUp, layer)) {
            _ if !has_gate => vec![whole(Name::SharedUp, ffn)],
            true => vec![whole(Name::SharedGateUp, 2 * ffn)],
            false => vec![whole(Name::SharedGate, ffn), whole(Name::SharedUp, ffn)],
        };
        let mlp = TwoPlan {
            up: lookup.linear(layer, &up, hidden, bias)?,
            down: lookup.linear(layer, &[whole(Name::SharedDown, hidden)], ffn, bias)?,
        };
        let switch = self.is_gated.then(|| plan_switch(lookup, layer)).transpose()?;
        Ok(SharedPlan { mlp, switch })
    }
}

/// The projections to and from the width of the experts, `n`.
fn plan_latent<'a>(
    lookup: &Lookup<'a, '_>,
    layer: usize,
    n: usize,
    expert: &GatedMlp,
) -> Result<[LinearPlan<'a>; 2], ModelError> {
    let hidden = lookup.spec.hidden_size;
    let down = Projection { name: Name::LatentDown, rows: Rows::all(n) };
    let up = Projection { name: Name::LatentUp, rows: Rows::all(hidden) };
    Ok([
        lookup.linear(layer, &[down], hidden, expert.bias)?,
        lookup.linear(layer, &[up], n, expert.bias)?,
    ])
}

/// The row whose product goes through a sigmoid: a matrix, or a vector.
fn plan_switch<'a>(lookup: &Lookup<'a, '_>, layer: usize) -> Result<LinearPlan<'a>, ModelError> {
    let hidden = lookup.spec.hidden_size;
    let name = format!("{}.weight", lookup.stem(Name::SharedSwitch, layer));
    if lookup.files.tensors().get(&name).is_none_or(|view| view.shape.len() != 1) {
        let switch = Projection { name: Name::SharedSwitch, rows: Rows::all(1) };
        return lookup.linear(layer, &[switch], hidden, false).map(LinearPlan::exact);
    }
    let view = lookup.find(&name, &[hidden])?;
    let part = Part { shape: vec![1, hidden], rows: Rows::all(1), ..Part::whole(view) };
    Ok(LinearPlan {
        parts: vec![lookup.rounded(part)],
        biases: Vec::new(),
        k: hidden,
        factors: Vec::new(),
        is_exact: true,
    })
}

/// Lists the experts as tensors `[n_experts, ..]`.
fn list_experts<'a>(
    experts: Vec<TwoPlan<'a>>,
    has_gates: bool,
    layer: usize,
    list: &mut Listing<'a, '_>,
) -> Result<(), ModelError> {
    let names = [Name::ExpertGate, Name::ExpertUp, Name::ExpertDown];
    let names = if has_gates { &names[..] } else { &names[1..] };
    let mut stacks: Vec<(Vec<Scaled<'_>>, Vec<Scaled<'_>>)> = Vec::new();
    stacks.resize_with(names.len(), Default::default);
    for expert in experts {
        let up = match has_gates {
            true => gate_and_up(expert.up).into(),
            false => biased(expert.up).collect::<Vec<_>>(),
        };
        let matrices = up.into_iter().chain(biased(expert.down));
        for ((parts, biases), Biased { part, bias, .. }) in stacks.iter_mut().zip(matrices) {
            parts.push(part.into());
            biases.extend(bias.map(Scaled::from));
        }
    }
    for (&name, (parts, biases)) in names.iter().zip(stacks) {
        let shape = [&[parts.len()], parts[0].part.shape.as_slice()].concat();
        list.matrix(list.naming.weight(name, layer), parts, shape, [None; 2])?;
        if let Some(bias) = biases.first() {
            let shape = vec![biases.len(), bias.part.n()];
            list.matrix(list.naming.bias(name, layer), biases, shape, [None; 2])?;
        }
    }
    Ok(())
}
