//! Rotary embeddings and their scalings.

use pelton_base::limits;

use crate::fields::{ConfigError, Field};
use crate::rope::{RopeScaling, RopeSpec, Yarn};

const DEFAULT_THETA: f64 = 10_000.0;

/// The facts that the fields of a rotary embedding depend on.
pub(super) struct RopeFields {
    pub(super) head_dim: usize,
    pub(super) n_trained: usize,
}

/// Keys of `rope_parameters` for layers without and with a window.
const GLOBAL: &str = "full_attention";
const LOCAL: &str = "sliding_attention";

impl RopeFields {
    /// The rotation of layers without a window, or of all.
    pub(super) fn read(
        &self,
        root: &Field<'_>,
        may_be_partial: bool,
    ) -> Result<RopeSpec, ConfigError> {
        // `rope_parameters` is how transformers 5 spells `rope_scaling` and `rope_theta` together.
        let table =
            ["rope_scaling", "rope_parameters"].map(|name| root.get(name)).into_iter().find(
                |field| field.value().is_some_and(|v| v.as_object().is_none_or(|o| !o.is_empty())),
            );
        let by_kind = table.as_ref().map(|table| table.get(GLOBAL));
        let table = by_kind.filter(|table| table.value().is_some()).or(table);
        self.read_table(table.as_ref(), root, "rope_theta", may_be_partial)
    }

    /// The rotation of layers with a window, where the config has one.
    pub(super) fn read_local(
        &self,
        root: &Field<'_>,
        may_be_partial: bool,
    ) -> Result<Option<RopeSpec>, ConfigError> {
        let table = root.get("rope_parameters").get(LOCAL);
        let theta = "rope_local_base_freq";
        if table.value().is_none() && root.get(theta).value().is_none() {
            return Ok(None);
        }
        let table = Some(&table).filter(|table| table.value().is_some());
        self.read_table(table, root, theta, may_be_partial).map(Some)
    }

    fn read_table(
        &self,
        table: Option<&Field<'_>>,
        root: &Field<'_>,
        theta: &str,
        may_be_partial: bool,
    ) -> Result<RopeSpec, ConfigError> {
        let theta = table
            .map(|table| table.get("rope_theta"))
            .filter(|field| field.non_null().is_some())
            .unwrap_or_else(|| root.get(theta));
        let theta = match theta.non_null() {
            Some(field) => read_theta(field)?,
            None => DEFAULT_THETA,
        };
        let mut rotary_dim = self.head_dim;
        let kind = table.map(|table| table.get("rope_type"));
        if let Some(table) = table
            && kind.is_some_and(|kind| kind.value().is_some_and(|kind| kind == "proportional"))
        {
            // The part of a head that turns is one of its pairs, and not of its elements.
            let partial = table.get("partial_rotary_factor");
            let turned = partial.non_null().map(|field| field.number(0.0, 1.0)).transpose()?;
            let factor = table.get("factor");
            let factor = factor.non_null().map(read_factor).transpose()?.unwrap_or(1.0);
            let scaling = RopeScaling::Proportional { turned: turned.unwrap_or(1.0), factor };
            return Ok(RopeSpec { rotary_dim, theta, n_trained: self.n_trained, scaling });
        }
        for parent in table.into_iter().chain([root]).rev() {
            let partial = parent.get("partial_rotary_factor");
            if partial.non_null().is_none() {
                continue;
            }
            let factor = partial.number(0.0, 1.0)?;
            if factor != 1.0 && !may_be_partial {
                return Err(partial.error("1: this family rotates all of a head"));
            }
            rotary_dim = (self.head_dim as f64 * factor) as usize;
            if rotary_dim == 0 || !rotary_dim.is_multiple_of(2) {
                let head_dim = self.head_dim;
                return Err(partial.error(format!("an even part of a head of {head_dim}")));
            }
        }
        let n_trained = self.n_trained;
        let scaling = match table {
            Some(table) => ScalingFields { table, root, rotary_dim, n_trained }.read()?,
            None => RopeScaling::Default,
        };
        Ok(RopeSpec { rotary_dim, theta, n_trained, scaling })
    }
}

pub(crate) fn read_theta(field: &Field<'_>) -> Result<f64, ConfigError> {
    field.number(1.0 + 1e-6, 1e15)
}

/// A factor by which a context is stretched.
pub(crate) fn read_factor(field: &Field<'_>) -> Result<f64, ConfigError> {
    field.number(1.0, 1e6)
}

/// The fields of a scaling.
struct ScalingFields<'f, 'a> {
    /// The object that describes it.
    table: &'f Field<'a>,
    root: &'f Field<'a>,
    rotary_dim: usize,
    /// The context that the model declares.
    n_trained: usize,
}

impl ScalingFields<'_, '_> {
    fn read(&self) -> Result<RopeScaling, ConfigError> {
        let table = self.table;
        if table.value().is_some_and(|value| !value.is_object()) {
            return Err(table.error("an object or null"));
        }
        let kind = ["rope_type", "type"]
            .map(|name| table.get(name))
            .into_iter()
            .find(|field| field.non_null().is_some());
        let Some(kind) = kind else {
            // `rope_parameters` may hold `rope_theta` alone; `rope_scaling` must name its kind.
            let kind = table.get("rope_type");
            return if table.get("factor").is_present() {
                Err(kind.error("the kind of scaling"))
            } else {
                Ok(RopeScaling::Default)
            };
        };
        match kind.text()?.unwrap_or_default() {
            "default" => Ok(RopeScaling::Default),
            "linear" => Ok(RopeScaling::Linear { factor: read_factor(&table.get("factor"))? }),
            "dynamic" => Ok(RopeScaling::Dynamic { factor: read_factor(&table.get("factor"))? }),
            "yarn" => self.yarn().map(RopeScaling::Yarn),
            "llama3" => self.llama3(),
            "longrope" | "su" => self.longrope(),
            _ => Err(kind.error("one of default, linear, dynamic, yarn, llama3, longrope")),
        }
    }

    fn optional(&self, name: &str, min: f64, max: f64) -> Result<Option<f64>, ConfigError> {
        self.table.get(name).non_null().map(|field| field.number(min, max)).transpose()
    }

    /// The context before it was stretched; the declared one where the config does not say.
    fn n_original(&self) -> Result<usize, ConfigError> {
        let name = "original_max_position_embeddings";
        let mut fields = [self.root.get(name), self.table.get(name)].into_iter();
        match fields.find(|field| field.non_null().is_some()) {
            Some(field) => field.count(limits::MODEL_CONTEXT),
            None => Ok(self.n_trained),
        }
    }

    /// How many times the original context is stretched.
    fn stretch(&self, n_original: usize) -> Result<f64, ConfigError> {
        match self.table.get("factor").non_null() {
            Some(field) => read_factor(field),
            None => Ok((self.n_trained as f64 / n_original as f64).max(1.0)),
        }
    }

    fn yarn(&self) -> Result<Yarn, ConfigError> {
        let n_original = self.n_original()?;
        let beta = |name, usual: f64| {
            let beta = self.optional(name, 0.0, 1e6)?;
            Ok::<_, ConfigError>(beta.filter(|x| *x > 0.0).unwrap_or(usual))
        };
        Ok(Yarn {
            factor: self.stretch(n_original)?,
            n_original,
            attention_factor: self.optional("attention_factor", 0.0, 1e3)?,
            mscale: self.optional("mscale", 0.0, 1e3)?,
            mscale_all_dim: self.optional("mscale_all_dim", 0.0, 1e3)?,
            beta_fast: beta("beta_fast", 32.0)?,
            beta_slow: beta("beta_slow", 1.0)?,
            truncate: self.table.get("truncate").flag(true)?,
        })
    }

    fn llama3(&self) -> Result<RopeScaling, ConfigError> {
        let low = self.table.get("low_freq_factor").number(1e-6, 1e6)?;
        let high_field = self.table.get("high_freq_factor");
        let high = high_field.number(1e-6, 1e6)?;
        if high <= low {
            return Err(high_field.error(format!("more than `low_freq_factor`, {low}")));
        }
        Ok(RopeScaling::Llama3 {
            factor: read_factor(&self.table.get("factor"))?,
            low_freq_factor: low,
            high_freq_factor: high,
            n_original: self.n_original()?,
        })
    }

    fn longrope(&self) -> Result<RopeScaling, ConfigError> {
        let n_original = self.n_original()?;
        let factors = |name: &str| self.table.get(name).numbers(self.rotary_dim / 2, 1e-6, 1e6);
        Ok(RopeScaling::LongRope {
            factor: self.stretch(n_original)?,
            n_original,
            attention_factor: self.optional("attention_factor", 0.0, 1e3)?,
            short_factors: factors("short_factor")?,
            long_factors: factors("long_factor")?,
        })
    }
}
