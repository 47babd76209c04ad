//! Modules that a checkpoint says it left alone.

use super::patterns::Pattern;
use super::setting::Setting;
use crate::Result;

/// Modules that are not quantized, as `modules_to_not_convert` or `ignore` list them.
#[derive(Clone, Debug, Default)]
pub(super) struct Ignored(Vec<Pattern>);

impl Ignored {
    /// The entries of all of these lists.
    ///
    /// # Errors
    ///
    /// Names the one that is no list of names, or whose regular expression cannot be read.
    pub(super) fn read(fields: &[Setting<'_>]) -> Result<Self> {
        let lists = fields.iter().map(Pattern::all).collect::<Result<Vec<_>>>()?;
        Ok(Self(lists.concat()))
    }

    /// A list of these patterns.
    pub(super) fn of(patterns: Vec<Pattern>) -> Self {
        Self(patterns)
    }

    /// Adds a pattern.
    pub(super) fn add(&mut self, pattern: Pattern) {
        self.0.push(pattern);
    }

    /// Whether one of the names is that of the module, or a whole part of it: `lm_head`,
    /// `layers.0`, `mlp.gate` name modules; `gate` is not `gate_proj`. Of an expression (`re:...`),
    /// whether it matches.
    pub(super) fn names(&self, module: &str) -> bool {
        let padded = format!(".{module}.");
        self.0.iter().any(|pattern| match pattern {
            Pattern::Name(name) => !name.is_empty() && padded.contains(&format!(".{name}.")),
            Pattern::Expression(_) => pattern.begins(module),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_match_whole_parts_and_expressions_whatever_they_match() {
        let value = json!(["lm_head", "layers.1", "", "gate", "re:.*block_sparse"]);
        let ignored = Ignored::read(&[Setting::new("ignore", &value)]).expect("names");
        assert!(ignored.names("lm_head"));
        assert!(ignored.names("model.layers.1.mlp.up_proj"));
        assert!(!ignored.names("model.layers.11.mlp.up_proj"));
        assert!(!ignored.names("model.layers.0.mlp.gate_proj"));
        assert!(ignored.names("model.layers.0.mlp.gate"));
        assert!(ignored.names("model.layers.7.block_sparse_moe.w1"));
    }
}
