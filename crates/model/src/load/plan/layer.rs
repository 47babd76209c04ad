//! The tensors of a layer, by what its spec says that there is.

use super::{LayerPlan, Lookup, MlpPlan, Name, Projection, Rows, TwoPlan};
use crate::arch::{Fused, Gqa, LayerSpec, Mixer, Mlp, Residual};
use crate::error::ModelError;

impl<'a> Lookup<'a, '_> {
    pub(super) fn layer(
        &self,
        layer: usize,
        spec: &LayerSpec,
    ) -> Result<LayerPlan<'a>, ModelError> {
        let hidden = self.spec.hidden_size;
        let wiring = spec.wiring;
        let norm = |is_there, name| self.optional_norm(is_there, name, layer);
        let has_attention_norm = wiring.pre_norm && (layer > 0 || self.spec.ends.first_norm);
        let has_mlp_norm = wiring.pre_norm && wiring.residual != Residual::ParallelOneNorm;
        let all = |name, n| Projection { name, rows: Rows::all(n) };
        let ffn = spec.mlp.intermediate_size();
        let two = |up: Vec<Projection>, bias| {
            Ok::<_, ModelError>(MlpPlan::Two(TwoPlan {
                up: self.linear(layer, &up, hidden, bias)?,
                down: self.linear(layer, &[all(Name::Down, hidden)], ffn, bias)?,
            }))
        };
        let mlp = || match &spec.mlp {
            Mlp::Plain(mlp) => two(vec![all(Name::Up, ffn)], mlp.bias),
            Mlp::Gated(mlp) if self.stored.is_gate_up_fused => {
                two(vec![all(Name::GateUp, 2 * ffn)], mlp.bias)
            }
            Mlp::Gated(mlp) => two(vec![all(Name::Gate, ffn), all(Name::Up, ffn)], mlp.bias),
            Mlp::Moe(moe) => Ok(MlpPlan::Moe(Box::new(self.moe(layer, moe)?))),
        };
        let (qkv, [qkv_bias, out_bias]) = match &spec.mixer {
            Mixer::Gqa(gqa) => (self.qkv(layer, gqa), [gqa.qkv_bias, gqa.out_bias]),
            Mixer::Mla(mla) => (self.latents(mla), [mla.bias; 2]),
        };
        let [q_norm, k_norm] = match &spec.mixer {
            Mixer::Gqa(gqa) => [
                self.qk_norm(Name::QNorm, layer, gqa, gqa.n_heads)?,
                self.qk_norm(Name::KNorm, layer, gqa, gqa.n_kv_heads)?,
            ],
            Mixer::Mla(mla) => [
                mla.q_rank.map(|n| self.latent_norm(Name::QNorm, layer, n)).transpose()?,
                Some(self.latent_norm(Name::KNorm, layer, mla.kv_rank)?),
            ],
        };
        let latent = match &spec.mixer {
            Mixer::Gqa(_) => None,
            Mixer::Mla(mla) => Some(self.latent(layer, mla)?),
        };
        let out = [all(Name::O, hidden)];
        Ok(LayerPlan {
            attention_norm: norm(has_attention_norm, Name::AttentionNorm)?,
            qkv: self.linear(layer, &qkv, hidden, qkv_bias)?,
            latent,
            q_norm,
            k_norm,
            sinks: match &spec.mixer {
                Mixer::Gqa(gqa) if gqa.has_sinks => {
                    Some(self.vector(Name::Sinks, layer, gqa.n_heads)?)
                }
                _ => None,
            },
            out: self.linear(layer, &out, spec.mixer.out_width(), out_bias)?,
            attention_post_norm: norm(wiring.post_norm, Name::AttentionPostNorm)?,
            mlp_norm: norm(has_mlp_norm, Name::MlpNorm)?,
            mlp: mlp()?,
            mlp_post_norm: norm(wiring.post_norm, Name::MlpPostNorm)?,
        })
    }

    /// q, k and v, each from the tensor that holds it.
    fn qkv(&self, layer: usize, gqa: &Gqa) -> Vec<Projection> {
        let (q, kv, dim) = (gqa.q_width(), gqa.kv_width(), gqa.head_dim);
        let pairs = self.pairs(gqa);
        let is_apart = || self.naming.stems(Name::Q, layer).any(|stem| self.has(&stem));
        let (fused, group) = (q + 2 * kv, gqa.n_heads / gqa.n_kv_heads * dim);
        let of_stack = |n, first, pairs| Projection {
            name: Name::Qkv,
            rows: Rows { n, n_stored: fused, first, run: n, stride: n, pairs },
        };
        let of_groups = |n, first, run, pairs| Projection {
            name: Name::Qkv,
            rows: Rows { n, n_stored: fused, first, run, stride: group + 2 * dim, pairs },
        };
        let alone = |name, n, pairs| Projection { name, rows: Rows { pairs, ..Rows::all(n) } };
        match self.stored.qkv {
            Fused::Stacked if !is_apart() => {
                vec![of_stack(q, 0, pairs), of_stack(kv, q, pairs), of_stack(kv, q + kv, None)]
            }
            Fused::Grouped if !is_apart() => vec![
                of_groups(q, 0, group, pairs),
                of_groups(kv, group, dim, pairs),
                of_groups(kv, group + dim, dim, None),
            ],
            _ => {
                vec![alone(Name::Q, q, pairs), alone(Name::K, kv, pairs), alone(Name::V, kv, None)]
            }
        }
    }

    /// Rows of a head, and how many of them lie in pairs, where any do.
    pub(super) fn pairs(&self, gqa: &Gqa) -> Option<[usize; 2]> {
        let rotary_dim = self.spec.ropes[gqa.rope?].rotary_dim;
        self.stored.is_in_pairs.then_some([gqa.head_dim, rotary_dim])
    }
}
