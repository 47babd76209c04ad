//! How far the tokens of an answer are guessed.

use pelton_base::{Drafting, ParamError};
use pelton_engine::SpecMethod;

/// What an answer says about speculation. The default leaves it to the engine; nothing here changes
/// a token of any answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Speculation {
    /// Who guesses: [`SpecMethod::Off`] nobody, [`SpecMethod::Auto`] whoever promises most, any other
    /// that one alone, which the engine must have.
    pub method: SpecMethod,
    /// Most tokens guessed at once, where that is less than the engine's.
    pub max_drafts: Option<usize>,
}

impl Default for Speculation {
    fn default() -> Self {
        Self { method: SpecMethod::Auto, max_drafts: None }
    }
}

impl Speculation {
    /// Refuses what contradicts itself.
    pub(crate) fn validate(&self) -> Result<(), ParamError> {
        match (self.method, self.max_drafts) {
            (SpecMethod::Off, Some(n @ 1..)) => Err(ParamError {
                param: "speculation.max_drafts",
                expected: "0 where `speculation.method` is `off`",
                got: n.to_string(),
            }),
            _ => Ok(()),
        }
    }

    /// The same, as the engine takes it.
    pub(crate) fn drafting(&self) -> Drafting {
        match self.method {
            SpecMethod::Off => Drafting { most: Some(0), by: None },
            SpecMethod::Auto => Drafting { most: self.max_drafts, by: None },
            other => Drafting { most: self.max_drafts, by: Some(other.name()) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_reaches_the_engine_and_nothing_said_is_nothing() {
        assert_eq!(Speculation::default().drafting(), Drafting::default());
        for &method in SpecMethod::ALL {
            let drafting = Speculation { method, max_drafts: Some(3) }.drafting();
            let expected = match method {
                SpecMethod::Off => (Some(0), None),
                SpecMethod::Auto => (Some(3), None),
                _ => (Some(3), Some(method.name())),
            };
            assert_eq!((drafting.most, drafting.by), expected);
        }
        let error = Speculation { method: SpecMethod::Off, max_drafts: Some(2) }.validate();
        assert_eq!(error.expect_err("a contradiction").param, "speculation.max_drafts");
        let none = Speculation { method: SpecMethod::Off, max_drafts: Some(0) };
        assert_eq!(none.validate(), Ok(()));
    }
}
