//! Modules that a checkpoint says it left alone.

/// Names of modules that are not quantized, as `modules_to_not_convert` or `ignore` list them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Ignored(pub(super) Vec<String>);

impl Ignored {
    /// Whether one of the names is that of the module, or a whole part of it: `lm_head`,
    /// `layers.0`, `mlp.gate` name modules; `gate` is not `gate_proj`.
    ///
    /// Patterns (`re:...`) match nothing here: what is stored decides.
    pub(super) fn names(&self, module: &str) -> bool {
        let padded = format!(".{module}.");
        self.0.iter().any(|name| !name.is_empty() && padded.contains(&format!(".{name}.")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_whole_parts() {
        let ignored =
            Ignored(vec!["lm_head".into(), "layers.1".into(), String::new(), "gate".into()]);
        assert!(ignored.names("lm_head"));
        assert!(ignored.names("model.layers.1.mlp.up_proj"));
        assert!(!ignored.names("model.layers.11.mlp.up_proj"));
        assert!(!ignored.names("model.layers.0.mlp.gate_proj"));
        assert!(ignored.names("model.layers.0.mlp.gate"));
    }
}
