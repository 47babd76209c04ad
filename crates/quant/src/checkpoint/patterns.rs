//! Names of modules as configurations write them: a name, or `re:` and a regular expression.
//!
//! An expression is Python's, matched from the first character of a module's name and not
//! necessarily to its last. It may look ahead and back, so the matcher is one that backtracks; its
//! steps are bounded, and an expression that runs out of them matches nothing.

use fancy_regex::{Regex, RegexBuilder};

use super::setting::Setting;
use crate::Result;

/// Prefix of a regular expression.
const PREFIX: &str = "re:";
/// Longest expression, in bytes.
const MOST_BYTES: usize = 1 << 12;
/// Most steps that a match may go back.
const MOST_STEPS: usize = 100_000;

/// One entry of a list of modules.
#[derive(Clone, Debug)]
pub(super) enum Pattern {
    /// A name, or a part of one.
    Name(String),
    /// A regular expression for the beginning of a name.
    Expression(Box<Regex>),
}

impl Pattern {
    /// The entry `text` of the list `field`.
    ///
    /// # Errors
    ///
    /// Names the field where an expression cannot be read.
    pub(super) fn read(field: &Setting<'_>, text: String) -> Result<Self> {
        match text.strip_prefix(PREFIX) {
            None => Ok(Self::Name(text)),
            Some(expression) => Self::expression(field, expression),
        }
    }

    /// A regular expression of `field`.
    ///
    /// # Errors
    ///
    /// Names the field where it cannot be read.
    pub(super) fn expression(field: &Setting<'_>, expression: &str) -> Result<Self> {
        if expression.len() > MOST_BYTES {
            return Err(field.error(format!("expressions of at most {MOST_BYTES} bytes")));
        }
        let built =
            RegexBuilder::new(&format!("^(?:{expression})")).backtrack_limit(MOST_STEPS).build();
        match built {
            Ok(regex) => Ok(Self::Expression(Box::new(regex))),
            Err(_) => {
                Err(field.error(format!("a valid regular expression in place of `{expression}`")))
            }
        }
    }

    /// All entries of a list.
    ///
    /// # Errors
    ///
    /// As [`Pattern::read`], and when it is no list of texts.
    pub(super) fn all(field: &Setting<'_>) -> Result<Vec<Self>> {
        field.texts()?.into_iter().map(|text| Self::read(field, text)).collect()
    }

    /// Whether it is an expression that the module's name begins with.
    pub(super) fn begins(&self, module: &str) -> bool {
        match self {
            Self::Name(_) => false,
            Self::Expression(regex) => regex.is_match(module).unwrap_or(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<Pattern> {
        let value = json!([]);
        Pattern::read(&Setting::new("ignore", &value), text.to_owned())
    }

    #[test]
    fn expressions_match_from_the_first_character_and_not_to_the_last() {
        let begins = |text, module| read(text).expect("an expression").begins(module);
        assert!(begins("re:.*lm_head", "lm_head"));
        assert!(begins("re:model.layers.1", "model.layers.12.mlp"));
        assert!(!begins("re:layers.1", "model.layers.1.mlp"));
        assert!(!begins(r"re:.*\.gate$", "model.layers.0.mlp.gate_proj"));
        assert!(begins(r"re:^(?!.*mlp).*q_proj$", "model.layers.0.self_attn.q_proj"));
        assert!(begins("re:a|b", "bc"));
        assert!(!begins("lm_head", "lm_head"));
    }

    #[test]
    fn an_expression_that_cannot_be_read_names_its_field_and_one_without_end_matches_nothing() {
        for text in ["re:(", "re:[", &format!("re:{}", "a".repeat(MOST_BYTES + 1))] {
            assert!(read(text).expect_err("refused").to_string().contains("ignore"));
        }
        let endless = read("re:(?:a|aa)*(?=b)c").expect("an expression");
        assert!(!endless.begins(&"a".repeat(200)));
    }
}
