//! Mixtures of experts: the data, and the fields that most configs spell alike.
//!
//! ```text
//! x ── router ──> top_k experts and weights
//! x ── expert e ──> down(act(gate) · up)        for each chosen expert
//! x ── shared ──> down(act(gate) · up)          for every row, some times a sigmoid
//! out = Σ weight · expert + shared
//! ```
//!
//! What routers do differently is in [`Router`]; how files store experts in
//! [`Experts`](super::stored::Experts).

pub use pelton_base::{ExpertGroups, GroupRank, Router, RouterScore};

use super::{ArchSpec, GatedMlp, Mlp};
use crate::config::HfConfig;
use crate::fields::{ConfigError, Field};
use pelton_base::limits;

/// Most experts of a layer; the largest published models have 512.
const MOST_EXPERTS: usize = 1 << 14;

/// Experts behind a router (Shazeer et al., 2017).
#[derive(Clone, Debug, PartialEq)]
pub struct Moe {
    /// How experts are chosen.
    pub router: Router,
    /// Whether the router carries a bias.
    pub router_bias: bool,
    /// Whether a correction is added to scores to rank by (`e_score_correction_bias`).
    pub has_correction: bool,
    /// Whether a weight multiplies the expert's input instead of its output.
    pub weighs_input: bool,
    /// One expert.
    pub expert: GatedMlp,
    /// Bound of gates from above and of ups on both sides, to which one is added then.
    pub limit: Option<f32>,
    /// What every row goes through beside its experts.
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
    /// Elements of all matrices, in a model of this width.
    pub fn n_weights(&self, hidden_size: usize) -> usize {
        self.of_experts(hidden_size, self.router.n_experts)
    }

    /// Elements of the matrices that one row goes through.
    pub fn n_active_weights(&self, hidden_size: usize) -> usize {
        self.of_experts(hidden_size, self.router.top_k)
    }

    /// Parameters of the experts that a row does not go through, biases included.
    pub fn n_idle_parameters(&self, hidden_size: usize) -> usize {
        let (ffn, n_idle) =
            (self.expert.intermediate_size, self.router.n_experts - self.router.top_k);
        let biases = if self.expert.bias { 2 * ffn + hidden_size } else { 0 };
        n_idle * (3 * hidden_size * ffn + biases)
    }

    fn of_experts(&self, hidden_size: usize, n: usize) -> usize {
        let shared = self
            .shared
            .as_ref()
            .map_or(0, |shared| 3 * shared.mlp.intermediate_size + usize::from(shared.is_gated));
        hidden_size * (self.router.n_experts + 3 * n * self.expert.intermediate_size + shared)
    }
}

impl HfConfig {
    /// Experts as `num_experts` (or what families call it), `num_experts_per_tok` and `moe_intermediate_size` describe them; all
    /// else is plain: softmax over all, nothing shared.
    pub(crate) fn moe(&self) -> Result<Moe, ConfigError> {
        let said = ["num_local_experts", "n_routed_experts"].map(|name| self.field(name));
        let said = said.iter().find_map(Field::non_null);
        let n_experts = said.unwrap_or(&self.field("num_experts")).count(MOST_EXPERTS)?;
        let chosen = self.field("num_experts_per_tok");
        let top_k = chosen.count(MOST_EXPERTS)?;
        if top_k > n_experts {
            return Err(chosen.error(format!("at most the {n_experts} experts")));
        }
        Ok(Moe {
            router: Router {
                n_experts,
                top_k,
                score: RouterScore::Softmax,
                groups: None,
                renormalized: self.flag("norm_topk_prob", false)?,
                scale: 1.0,
            },
            router_bias: false,
            has_correction: false,
            weighs_input: false,
            expert: GatedMlp {
                intermediate_size: self.width("moe_intermediate_size")?,
                act: self.hidden_act,
                bias: false,
            },
            limit: None,
            shared: None,
        })
    }

    /// A width of some perceptron; `intermediate_size` where the config does not say.
    pub(crate) fn width(&self, name: &str) -> Result<usize, ConfigError> {
        match self.field(name).non_null() {
            Some(field) => field.count(limits::MODEL_WIDTH),
            None => Ok(self.intermediate_size),
        }
    }

    /// Groups of experts as `n_group` and `topk_group` describe them; `None` for a single one.
    pub(crate) fn expert_groups(
        &self,
        moe: &Moe,
        rank: GroupRank,
    ) -> Result<Option<ExpertGroups>, ConfigError> {
        let (n_field, top_field) = (self.field("n_group"), self.field("topk_group"));
        let Some(n_field) = n_field.non_null() else { return Ok(None) };
        let Router { n_experts, top_k, .. } = moe.router;
        let n_groups = n_field.count(n_experts)?;
        if !n_experts.is_multiple_of(n_groups) {
            return Err(n_field.error(format!("a divisor of the {n_experts} experts")));
        }
        let top_groups = top_field.count(n_groups)?;
        if top_groups * (n_experts / n_groups) < top_k {
            return Err(top_field.error(format!("groups that have {top_k} experts")));
        }
        Ok((n_groups > 1).then_some(ExpertGroups { n_groups, top_groups, rank }))
    }
}

impl ArchSpec {
    /// Experts in the layers that have them.
    pub(crate) fn set_moe(&mut self, moe: &Moe, has_experts: impl Fn(usize) -> bool) {
        for (i, layer) in self.layers.iter_mut().enumerate() {
            if has_experts(i) {
                layer.mlp = Mlp::Moe(moe.clone());
            }
        }
    }
}
