//! A perceptron and experts side by side (Google, 2026: Gemma 4), each between norms of its own.
//!
//! ```text
//! x ─┬─ norm ── perceptron ── norm ─┬─> + ──> delta
//!    ├─ norm ── experts ───── norm ─┘
//!    └─ norm ── router: the experts of a row, and their weights
//! ```
//!
//! It reads the residual stream itself: the layer has no norm before it.

use super::kind::Stages;
use super::mlp::{GatedMlp, TwoLayers, TwoPlan};
use super::{Found, Kind, Linear, MlpKind, Moe, MoeWeights, Norm, Packed, PlannedTensors};
use crate::arch::{NormKind, Part as Name};
use crate::device::Device;
use crate::error::ModelError;
use crate::export::Listing;
use crate::load::{Lookup, NormPlan, Packer};
use crate::parameters::Parameters;

/// A perceptron and experts side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct WithExperts {
    /// The perceptron.
    pub mlp: GatedMlp,
    /// The experts.
    pub experts: Moe,
}

/// Packed weights of a perceptron and of experts beside it.
#[derive(Debug)]
pub struct WithExpertsWeights<B: Device> {
    /// The perceptron.
    pub mlp: TwoLayers<B>,
    /// The experts.
    pub experts: MoeWeights<B>,
    /// Norms of the perceptron's input and output.
    pub mlp_norms: [Norm<B>; 2],
    /// Norms of the experts' input and of their sum.
    pub expert_norms: [Norm<B>; 2],
    /// Norm of the router's input; its weight has the factor `1 / sqrt(hidden)`.
    pub router_norm: Norm<B>,
}

/// Tensors of a perceptron and of experts beside it.
pub struct WithExpertsPlan<'a> {
    pub(crate) mlp: TwoPlan<'a>,
    pub(crate) experts: <Moe as Kind>::Plan<'a>,
    pub(crate) mlp_norms: [NormPlan<'a>; 2],
    expert_norms: [NormPlan<'a>; 2],
    router_norm: NormPlan<'a>,
}

impl WithExperts {
    /// Norms of the width of the residual stream.
    const N_NORMS: usize = 5;
}

impl Kind for WithExperts {
    type Plan<'a> = WithExpertsPlan<'a>;
    type Weights<B: Device> = WithExpertsWeights<B>;

    fn n_weights(&self, hidden_size: usize) -> usize {
        self.mlp.n_weights(hidden_size) + self.experts.n_weights(hidden_size)
    }

    fn parameters(&self, hidden_size: usize, head_rows: usize) -> Parameters {
        (self.mlp.parameters(hidden_size, head_rows))
            .and(self.experts.parameters(hidden_size, head_rows))
            .vector(true, Self::N_NORMS * hidden_size)
    }
}

impl MlpKind for WithExperts {
    fn intermediate_size(&self) -> usize {
        self.mlp.intermediate_size
    }

    fn n_active_weights(&self, hidden_size: usize) -> usize {
        self.mlp.n_weights(hidden_size) + self.experts.n_active_weights(hidden_size)
    }

    fn active_bytes<B: Device>(&self, weights: &WithExpertsWeights<B>) -> usize {
        weights.mlp.n_bytes() + self.experts.active_bytes(&weights.experts)
    }
}

impl<'a> Found<'a> for WithExpertsPlan<'a> {
    fn tensors(&self) -> PlannedTensors<'_, 'a> {
        let mut all = self.experts.tensors();
        all.linears.extend(self.mlp.linears());
        all.vectors.extend(self.mlp_norms.iter().chain(&self.expert_norms));
        all.vectors.push(&self.router_norm);
        all
    }
}

impl<B: Device> Packed<B> for WithExpertsWeights<B> {
    fn matrices(&self) -> Vec<&B::Weight> {
        [self.mlp.matrices(), self.experts.matrices()].concat()
    }

    /// None: what they read are norms of their own.
    fn inputs(&self) -> Vec<&Linear<B>> {
        Vec::new()
    }
}

impl Stages for WithExperts {
    fn plan<'a>(
        &self,
        lookup: &Lookup<'a, '_>,
        layer: usize,
    ) -> Result<WithExpertsPlan<'a>, ModelError> {
        let hidden = lookup.spec.hidden_size;
        let norm = |name| lookup.weight_norm(name, layer, hidden);
        Ok(WithExpertsPlan {
            mlp: self.mlp.plan(lookup, layer)?,
            experts: self.experts.plan(lookup, layer)?,
            mlp_norms: [norm(Name::MlpNorm)?, norm(Name::BesidePostNorm)?],
            expert_norms: [norm(Name::ExpertNorm)?, norm(Name::ExpertPostNorm)?],
            router_norm: lookup.vector(Name::RouterNorm, layer, hidden)?,
        })
    }

    fn pack<B: Device>(
        &self,
        plan: &WithExpertsPlan<'_>,
        packer: &mut Packer<'_, B>,
    ) -> Result<WithExpertsWeights<B>, ModelError> {
        let (hidden, eps) = (packer.spec.hidden_size, packer.spec.norm_eps);
        let factor = (hidden as f64).sqrt().recip() as f32;
        let router = packer.read(&plan.router_norm)?;
        let router: Vec<f32> = router.iter().map(|x| x * factor).collect();
        let mut norm = |norm: &NormPlan<'_>| packer.norm(norm, NormKind::Rms, eps);
        let [mlp_in, mlp_out] = &plan.mlp_norms;
        let [experts_in, experts_out] = &plan.expert_norms;
        Ok(WithExpertsWeights {
            mlp_norms: [norm(mlp_in)?, norm(mlp_out)?],
            expert_norms: [norm(experts_in)?, norm(experts_out)?],
            router_norm: Norm { weight: packer.put(&router), bias: None, eps },
            mlp: self.mlp.pack(&plan.mlp, packer)?,
            experts: self.experts.pack(&plan.experts, packer)?,
        })
    }

    fn list<'a>(
        &self,
        plan: WithExpertsPlan<'a>,
        layer: usize,
        list: &mut Listing<'a, '_>,
    ) -> Result<(), ModelError> {
        self.mlp.list(plan.mlp, layer, list)?;
        self.experts.list(plan.experts, layer, list)
    }
}
