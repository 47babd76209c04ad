//! Rotary embeddings: keys of their scaling, and tensors of divisors.

use pelton_base::limits;
use pelton_tensor::TensorSource;

use crate::config::{read_factor, read_theta};
use crate::fields::{ConfigError, Field};
use crate::rope::{RopeScaling, RopeSpec, Yarn};

/// How much of a head is rotated.
pub(super) fn read_rotated_width<'a>(
    get: &dyn Fn(&str) -> Field<'a>,
    head_dim: usize,
    may_be_partial: bool,
) -> Result<usize, ConfigError> {
    let value_width = get("attention.value_length");
    let rotated = get("rope.dimension_count");
    for (field, may_be_less) in [(&value_width, false), (&rotated, may_be_partial)] {
        let Some(field) = field.non_null() else { continue };
        let n = field.count(limits::MODEL_WIDTH)?;
        if n > head_dim || (n != head_dim && !may_be_less) || !n.is_multiple_of(2) {
            return Err(field.error(format!("the width of a head, {head_dim}")));
        }
    }
    rotated.non_null().map_or(Ok(head_dim), |field| field.count(limits::MODEL_WIDTH))
}

/// The keys and tensors of a rotary embedding.
struct RopeKeys<'k, 'a> {
    tensors: &'k dyn TensorSource,
    get: &'k dyn Fn(&str) -> Field<'a>,
    rotary_dim: usize,
    n_trained: usize,
    /// The context before it was stretched.
    n_original: usize,
}

/// The rotation that a file describes; `truncates` is what the family does with YaRN where the file
/// does not say.
pub(super) fn read_rope<'a>(
    tensors: &dyn TensorSource,
    get: &dyn Fn(&str) -> Field<'a>,
    rotary_dim: usize,
    n_trained: usize,
    truncates: bool,
) -> Result<RopeSpec, ConfigError> {
    let theta = match get("rope.freq_base").non_null() {
        Some(field) => read_theta(field)?,
        None => 10_000.0,
    };
    let n_original = match get("rope.scaling.original_context_length").non_null() {
        Some(field) => field.count(limits::MODEL_CONTEXT)?,
        None => n_trained,
    };
    let keys = RopeKeys { tensors, get, rotary_dim, n_trained, n_original };
    Ok(RopeSpec { rotary_dim, theta, n_trained, scaling: keys.scaling(truncates)? })
}

impl RopeKeys<'_, '_> {
    fn scaling(&self, truncates: bool) -> Result<RopeScaling, ConfigError> {
        let kind = (self.get)("rope.scaling.type");
        // Files of Phi-3 carry the divisors and do not say what they are for.
        let has_both = self.tensors.get("rope_factors_long.weight").is_some();
        match kind.text()?.or(has_both.then_some("longrope")) {
            None | Some("none" | "") => {
                match read_divisors(self.tensors, "rope_freqs.weight", self.rotary_dim)? {
                    Some(divisors) => Ok(RopeScaling::Divisors(divisors)),
                    None => match (self.get)("rope.scale_linear").non_null() {
                        Some(field) => Ok(RopeScaling::Linear { factor: read_factor(field)? }),
                        None => Ok(RopeScaling::Default),
                    },
                }
            }
            Some("linear") => Ok(RopeScaling::Linear { factor: self.factor()? }),
            Some("dynamic") => Ok(RopeScaling::Dynamic { factor: self.factor()? }),
            Some("yarn") => Ok(RopeScaling::Yarn(self.yarn(truncates)?)),
            Some("longrope") => self.longrope(),
            Some(_) => Err(kind.error("one of none, linear, yarn, longrope, dynamic")),
        }
    }

    fn factor(&self) -> Result<f64, ConfigError> {
        read_factor(&(self.get)("rope.scaling.factor"))
    }

    fn optional(&self, key: &str, min: f64, max: f64) -> Result<Option<f64>, ConfigError> {
        (self.get)(key).non_null().map(|field| field.number(min, max)).transpose()
    }

    fn yarn(&self, truncates: bool) -> Result<Yarn, ConfigError> {
        let factor = self.factor()?;
        let usual = 0.1 * factor.ln() + 1.0;
        // In latent attention scores are multiplied, and not cosines and sines.
        let is_latent = (self.get)("attention.kv_lora_rank").non_null().is_some();
        let of_scores = self.optional("rope.scaling.yarn_log_multiplier", 0.0, 1e3)?;
        // The key scales the usual factor instead of replacing it.
        let own = || self.optional("rope.scaling.attn_factor", 0.0, 1e3);
        let beta = |name: &str| self.optional(&format!("rope.scaling.yarn_beta_{name}"), 1e-6, 1e6);
        Ok(Yarn {
            factor,
            n_original: self.n_original,
            attention_factor: match is_latent {
                true => Some(1.0),
                false => own()?.map(|weight| weight * usual),
            },
            mscale: None,
            mscale_all_dim: of_scores.filter(|_| is_latent).map(|weight| weight * 10.0),
            beta_fast: beta("fast")?.unwrap_or(32.0),
            beta_slow: beta("slow")?.unwrap_or(1.0),
            truncate: (self.get)("rope.scaling.yarn_truncate").flag(truncates)?,
        })
    }

    fn longrope(&self) -> Result<RopeScaling, ConfigError> {
        let divisors = |name: &str| {
            read_divisors(self.tensors, name, self.rotary_dim)?.ok_or_else(|| {
                let expected = format!("a tensor of {} numbers", self.rotary_dim / 2);
                Field::new(name, None).error(expected)
            })
        };
        Ok(RopeScaling::LongRope {
            factor: match (self.get)("rope.scaling.factor").non_null() {
                Some(field) => read_factor(field)?,
                None => (self.n_trained as f64 / self.n_original as f64).max(1.0),
            },
            n_original: self.n_original,
            attention_factor: self.optional("rope.scaling.attn_factor", 0.0, 1e3)?,
            short_factors: divisors("rope_factors_short.weight")?,
            long_factors: divisors("rope_factors_long.weight")?,
        })
    }
}

/// A tensor with one finite positive divisor per rotated pair.
fn read_divisors(
    tensors: &dyn TensorSource,
    name: &str,
    rotary_dim: usize,
) -> Result<Option<Vec<f32>>, ConfigError> {
    let Some(view) = tensors.get(name) else { return Ok(None) };
    let error = |found: String| ConfigError::Field {
        field: name.to_owned(),
        expected: format!("a tensor of {} positive f32", rotary_dim / 2),
        found,
    };
    if view.dtype != pelton_tensor::DType::F32 || view.n_elements() != rotary_dim / 2 {
        return Err(error(format!("{} {:?}", view.dtype, view.shape)));
    }
    let divisors: Vec<f32> =
        view.data.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    // Pairs that do not turn have divisors of 1e30.
    match divisors.iter().find(|x| !(1e-6..=1e6).contains(*x) && **x != 1e30) {
        Some(bad) => Err(error(bad.to_string())),
        None => Ok(Some(divisors)),
    }
}
