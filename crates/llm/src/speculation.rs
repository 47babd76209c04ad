//! How the tokens of an answer are drafted.

use pelton_base::{Drafting, ParamError};
use pelton_engine::SpecMethod;

/// Speculation of one request. The default leaves it to the engine; no choice changes a token of
/// any answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Speculation {
    /// Method that drafts: [`SpecMethod::Off`] for none, [`SpecMethod::Auto`] for the method that
    /// is expected to save most, else the named method alone, which must be loaded.
    pub method: SpecMethod,
    /// Most tokens drafted at once, where that is less than the engine's limit.
    pub max_drafts: Option<usize>,
    /// Whether every draft that can be made is verified, whatever it costs; so anyone can see that
    /// drafts change no token.
    pub always: bool,
}

impl Default for Speculation {
    fn default() -> Self {
        Self { method: SpecMethod::Auto, max_drafts: None, always: false }
    }
}

impl Speculation {
    /// Refuses a number of drafts together with [`SpecMethod::Off`].
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

    /// The same choice in the words of the engine.
    pub(crate) fn drafting(&self) -> Drafting {
        let (most, by) = match self.method {
            SpecMethod::Off => (Some(0), None),
            SpecMethod::Auto => (self.max_drafts, None),
            other => (self.max_drafts, Some(other.name())),
        };
        Drafting { most, by, always: self.always }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_reaches_the_engine_and_nothing_said_is_nothing() {
        assert_eq!(Speculation::default().drafting(), Drafting::default());
        for &method in SpecMethod::ALL {
            let drafting = Speculation { method, max_drafts: Some(3), always: true }.drafting();
            let expected = match method {
                SpecMethod::Off => (Some(0), None),
                SpecMethod::Auto => (Some(3), None),
                _ => (Some(3), Some(method.name())),
            };
            assert_eq!((drafting.most, drafting.by), expected);
            assert!(drafting.always);
        }
        let error =
            Speculation { method: SpecMethod::Off, max_drafts: Some(2), always: false }.validate();
        assert_eq!(error.expect_err("a contradiction").param, "speculation.max_drafts");
        let none = Speculation { method: SpecMethod::Off, max_drafts: Some(0), always: false };
        assert_eq!(none.validate(), Ok(()));
    }
}
