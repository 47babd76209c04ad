//! Matching modules with the groups of a configuration.
//!
//! A group lists the modules that it is for: by name, by regular expression (`re:...`), or by the
//! name of their class (`Linear`). No checkpoint says of which class a module is; every matrix that
//! is asked for is a linear layer, so the name of a class is taken to be that of all of them. Where
//! several groups are for a module, names go before expressions, and these before classes, as the
//! library has it.

use crate::Result;
use crate::checkpoint::patterns::Pattern;
use crate::checkpoint::setting::Setting;

/// The modules that a group is for.
#[derive(Clone, Debug)]
pub(super) struct Targets(Vec<Pattern>);

/// How closely a group matches a module, the closest first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Closeness {
    Name,
    Expression,
    Class,
}

impl Targets {
    /// Reads a list; a group without one is for all modules.
    ///
    /// # Errors
    ///
    /// Names the field where it is no list of texts, or an expression cannot be read.
    pub(super) fn read(field: &Setting<'_>) -> Result<Self> {
        Pattern::all(field).map(Self)
    }

    /// How closely these targets match a module; `None` where they do not.
    pub(super) fn closeness(&self, module: &str) -> Option<Closeness> {
        let of_one = |pattern: &Pattern| match pattern {
            Pattern::Name(name) if name == module => Some(Closeness::Name),
            // A class begins with a capital and has no dots.
            Pattern::Name(name) => {
                let is_class = name.starts_with(char::is_uppercase) && !name.contains('.');
                is_class.then_some(Closeness::Class)
            }
            Pattern::Expression(_) => pattern.begins(module).then_some(Closeness::Expression),
        };
        if self.0.is_empty() {
            return Some(Closeness::Class);
        }
        self.0.iter().filter_map(of_one).min()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_go_before_expressions_and_these_before_classes() {
        let closeness = |targets, module| {
            let value = json!(targets);
            Targets::read(&Setting::new("targets", &value)).expect("targets").closeness(module)
        };
        let q = "model.layers.0.self_attn.q_proj";
        assert_eq!(closeness(vec![], q), Some(Closeness::Class));
        assert_eq!(closeness(vec!["Linear"], q), Some(Closeness::Class));
        assert_eq!(closeness(vec!["Linear", "re:.*q_proj"], q), Some(Closeness::Expression));
        assert_eq!(closeness(vec!["re:.*q_proj", q], q), Some(Closeness::Name));
        assert_eq!(closeness(vec!["re:.*k_proj", "q_proj", "lm_head"], q), None);
        assert!(
            Closeness::Name < Closeness::Expression && Closeness::Expression < Closeness::Class
        );
    }
}
