//! The tensors of latent attention.
//!
//! Keys and values of all heads come from one matrix, or, where converters have put them apart, from
//! two `[n_heads, ..]` of which that of the keys is turned already.

use pelton_quant::checkpoint::QuantizedTensor;

use super::{LatentPlan, Lookup, Name, NormPlan, Part, Projection, Rows, Turned};
use crate::arch::Mla;
use crate::error::ModelError;

impl<'a> Lookup<'a, '_> {
    /// What latent attention projects from the residual stream.
    pub(super) fn latents(&self, mla: &Mla) -> Vec<Projection> {
        let q = if mla.q_rank.is_some() { Name::QDown } else { Name::Q };
        let all = |name, n| Projection { name, rows: Rows::all(n) };
        vec![all(q, mla.q_down_width()), all(Name::KvDown, mla.key_dim())]
    }

    /// What latent attention has between its projections.
    pub(super) fn latent(&self, layer: usize, mla: &Mla) -> Result<LatentPlan<'a>, ModelError> {
        let Mla { n_heads, kv_rank, nope_dim, value_dim, .. } = *mla;
        let q_up = mla.q_rank.map(|rank| {
            let up = Projection { name: Name::QUp, rows: Rows::all(mla.q_width()) };
            self.linear(layer, &[up], rank, false)
        });
        let q_up = q_up.transpose()?;
        if self.has(&self.stem(Name::KUp, layer)) {
            let apart = |name, n, k| {
                let view = self.weight(name, layer, &[n_heads, n, k])?;
                let (shape, rows) = (vec![n_heads * n, k], Rows::all(n_heads * n));
                Ok::<_, ModelError>(Part { shape, rows, ..Part::whole(view) })
            };
            let k_up = apart(Name::KUp, kv_rank, nope_dim)?;
            return Ok(LatentPlan { q_up, k_up, v_up: apart(Name::VUp, value_dim, kv_rank)? });
        }
        let n_rows = nope_dim + value_dim;
        let whole = Projection { name: Name::KvUp, rows: Rows::all(n_heads * n_rows) };
        let values = Rows { n: n_heads * value_dim, first: nope_dim, run: value_dim, ..whole.rows };
        let values = Projection { rows: Rows { stride: n_rows, ..values }, ..whole };
        let k_up = self.matrix(&whole, layer, kv_rank)?;
        let v_up = self.matrix(&values, layer, kv_rank)?;
        Ok(LatentPlan {
            q_up,
            k_up: Part {
                shape: vec![n_heads * kv_rank, nope_dim],
                rows: Rows::all(n_heads * kv_rank),
                turned: Some(Turned { n_heads, n_rows, n_taken: nope_dim }),
                // The values have the tensors.
                quantized: k_up.quantized.map(QuantizedTensor::without_views),
                ..k_up
            },
            // A product of heads takes its inputs as they are.
            v_up: Part { quantized: v_up.quantized.map(QuantizedTensor::in_own_order), ..v_up },
        })
    }

    /// The norm of a latent.
    pub(super) fn latent_norm(
        &self,
        name: Name,
        layer: usize,
        n: usize,
    ) -> Result<NormPlan<'a>, ModelError> {
        let view = self.weight(name, layer, &[n])?;
        let offset = self.stored.norm_offset;
        Ok(NormPlan { weights: vec![view], bias: None, rows: Rows::all(n), offset })
    }
}
