//! The fields by which most configs describe their experts.

use pelton_base::limits;

use super::{ArchSpec, ExpertGroups, GatedMlp, GroupRank, Mlp, Moe, Router, RouterScore};
use crate::config::HfConfig;
use crate::fields::{ConfigError, Field};

/// Most experts of a layer; the largest published models have 512.
const MOST_EXPERTS: usize = 1 << 14;

impl HfConfig {
    /// Experts as `num_experts` (or the family's name for it), `num_experts_per_tok` and
    /// `moe_intermediate_size` describe them, with a softmax over all experts and no shared expert.
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
            has_scales: false,
            weighs_input: false,
            has_gates: true,
            expert: GatedMlp {
                intermediate_size: self.width("moe_intermediate_size")?,
                act: self.hidden_act,
                bias: false,
                cut: None,
            },
            latent_size: None,
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
