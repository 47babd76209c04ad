//! `--spec` and `--draft-model`, which say one thing together.
//!
//! ```text
//! --spec draft:MODEL      the same as --spec draft --draft-model MODEL
//! --spec early-exit:N     drafts by the first N layers
//! --spec METHOD           any other by its name
//! ```
//!
//! A file says the same in the same words. Flags win over a file; the file's draft model is used only
//! with a method that takes one.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

use pelton_llm::{LlmOptions, SpecMethod};

use crate::failure::{Failure, Result};

/// Method and draft model of one source: the command line or the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Drafter {
    /// `--spec`.
    pub(crate) spec: Option<SpecChoice>,
    /// `--draft-model`.
    pub(crate) model: Option<String>,
}

impl Drafter {
    /// These words, completed by those of a file.
    pub(super) fn over(mut self, mut file: Self) -> Self {
        let takes_model = |choice: &SpecChoice| {
            choice.draft_model.is_none()
                && matches!(choice.method, SpecMethod::Draft | SpecMethod::Auto)
        };
        if self.model.is_some() {
            // It replaces the file's model, whether `spec` or `draft_model` named that one.
            if let Some(choice) = &mut file.spec {
                choice.draft_model = None;
            }
            self.spec = self.spec.or(file.spec);
        } else if self.spec.as_ref().is_none_or(takes_model) {
            self.model = match &self.spec {
                None => file.model,
                Some(_) => file.model.or_else(|| file.spec.as_ref()?.draft_model.clone()),
            };
            self.spec = self.spec.or(file.spec);
        }
        self
    }

    /// Writes method and model into the options of a model.
    ///
    /// # Errors
    ///
    /// Two different draft models, or one that is no path and no hub id.
    pub(super) fn apply(&self, options: &mut LlmOptions) -> Result<()> {
        if let Some(choice) = &self.spec {
            options.spec.method = choice.method;
            options.spec.exit_layers = choice.exit_layers;
        }
        let named = self.spec.as_ref().and_then(|choice| choice.draft_model.as_deref());
        let model = match (named, self.model.as_deref()) {
            (Some(one), Some(other)) if one != other => {
                let message = format!(
                    "`--spec draft:{one}` contradicts `--draft-model {other}`: expected one model"
                );
                return Err(Failure::new(message));
            }
            (one, other) => one.or(other),
        };
        if let Some(model) = model {
            options.draft = Some(crate::model::reference(Some(model))?);
        }
        Ok(())
    }

    /// The same in one form: the model apart from the method, and the method of `options`.
    pub(super) fn resolved(self, options: &LlmOptions) -> Self {
        let named = self.spec.and_then(|choice| choice.draft_model);
        let (method, exit_layers) = (options.spec.method, options.spec.exit_layers);
        let spec = SpecChoice { method, draft_model: None, exit_layers };
        Self { spec: Some(spec), model: named.or(self.model) }
    }
}

/// A value of `--spec`: a method, and what it needs where that is part of the value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct SpecChoice {
    /// How drafts are made.
    pub(crate) method: SpecMethod,
    /// The draft model, as in `draft:MODEL`.
    pub(crate) draft_model: Option<String>,
    /// Layers that draft, as in `early-exit:N`.
    pub(crate) exit_layers: Option<usize>,
}

impl SpecChoice {
    /// The forms of a value.
    pub(super) fn possible() -> Vec<String> {
        let mut forms = Vec::new();
        for method in SpecMethod::ALL {
            match method {
                SpecMethod::Draft => forms.extend(["draft".to_owned(), "draft:MODEL".to_owned()]),
                SpecMethod::EarlyExit => forms.push(format!("{}:N", method.name())),
                other => forms.push(other.name().to_owned()),
            }
        }
        forms
    }
}

impl FromStr for SpecChoice {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let possible = || Self::possible().join(", ");
        let (name, rest) = match text.split_once(':') {
            Some((name, rest)) => (name, Some(rest)),
            None => (text, None),
        };
        let plain = |method| Self { method, draft_model: None, exit_layers: None };
        let method = SpecMethod::ALL.iter().copied().find(|method| method.name() == name);
        let method =
            method.ok_or_else(|| format!("expected one of {}, got `{text}`", possible()))?;
        match (method, rest) {
            (SpecMethod::EarlyExit, rest) => {
                let n_layers = rest.and_then(|n| n.parse::<NonZeroUsize>().ok());
                let n_layers = n_layers.ok_or_else(|| {
                    format!(
                        "expected `{name}:N` with N layers that draft, at least 1, got `{text}`"
                    )
                })?;
                Ok(Self { exit_layers: Some(n_layers.get()), ..plain(method) })
            }
            (_, None) => Ok(plain(method)),
            (SpecMethod::Draft, Some("")) => {
                Err(format!("expected `{name}:MODEL` with a model, got `{text}`"))
            }
            (SpecMethod::Draft, Some(model)) => {
                Ok(Self { draft_model: Some(model.to_owned()), ..plain(method) })
            }
            (_, Some(_)) => Err(format!(
                "`{name}` takes nothing after it; expected one of {}, got `{text}`",
                possible()
            )),
        }
    }
}

impl fmt::Display for SpecChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.method.name())?;
        match (&self.draft_model, self.exit_layers) {
            (Some(model), _) => write!(f, ":{model}"),
            (None, Some(n_layers)) => write!(f, ":{n_layers}"),
            (None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafter(spec: Option<&str>, model: Option<&str>) -> Drafter {
        let spec = spec.map(|text| text.parse().expect(text));
        Drafter { spec, model: model.map(str::to_owned) }
    }

    #[test]
    fn every_method_is_read_and_printed_by_its_name() {
        for method in SpecMethod::ALL {
            let text = match method {
                SpecMethod::EarlyExit => format!("{}:4", method.name()),
                other => other.name().to_owned(),
            };
            let choice: SpecChoice = text.parse().expect("a method");
            assert_eq!((choice.method, choice.to_string()), (*method, text));
        }
        let choice: SpecChoice = "draft:org/small:x".parse().expect("a model");
        assert_eq!(choice.draft_model.as_deref(), Some("org/small:x"));
        let choice: SpecChoice = "early-exit:12".parse().expect("layers");
        assert_eq!(choice.exit_layers, Some(12));
    }

    #[test]
    fn what_cannot_be_read_lists_what_can() {
        for text in ["", "magic", "suffix:3", "off:", "Draft"] {
            let error = text.parse::<SpecChoice>().expect_err(text);
            for part in ["off", "auto", "draft:MODEL", "early-exit:N", "suffix"] {
                assert!(error.contains(part), "{part} is missing in {error}");
            }
        }
        for text in ["early-exit", "early-exit:", "early-exit:0", "early-exit:x", "draft:"] {
            let error = text.parse::<SpecChoice>().expect_err(text);
            assert!(error.contains(&format!("got `{text}`")), "{error}");
        }
    }

    #[test]
    fn two_models_contradict_each_other() {
        let mut options = LlmOptions::default();
        let error = drafter(Some("draft:a/a"), Some("b/b")).apply(&mut options);
        let line = error.expect_err("two models").line().expect("a line");
        assert!(line.contains("draft:a/a") && line.contains("--draft-model b/b"), "{line}");
        let fine = drafter(Some("draft:a/a"), Some("a/a")).apply(&mut options);
        fine.expect("the same twice");
        assert!(options.draft.is_some());
    }

    #[test]
    fn flags_win_over_a_file_together_with_what_belongs_to_them() {
        let none = (None, None);
        for (flags, file, expected) in [
            (none, (Some("draft:f"), None), (Some("draft:f"), None)),
            (none, (Some("draft"), Some("f")), (Some("draft"), Some("f"))),
            (none, (Some("draft:f"), Some("g")), (Some("draft:f"), Some("g"))),
            ((Some("draft"), None), (Some("draft:f"), None), (Some("draft"), Some("f"))),
            ((Some("draft:a"), None), (Some("draft"), Some("f")), (Some("draft:a"), None)),
            ((None, Some("a")), (Some("draft:f"), None), (Some("draft"), Some("a"))),
            ((None, Some("a")), (Some("auto"), Some("f")), (Some("auto"), Some("a"))),
            ((Some("suffix"), None), (Some("draft"), Some("f")), (Some("suffix"), None)),
            ((Some("off"), None), (Some("early-exit:2"), None), (Some("off"), None)),
            ((Some("auto"), None), (Some("draft"), Some("f")), (Some("auto"), Some("f"))),
        ] {
            let filled = drafter(flags.0, flags.1).over(drafter(file.0, file.1));
            let spec = filled.spec.map(|choice| choice.to_string());
            let found = (spec.as_deref(), filled.model.as_deref());
            assert_eq!(found, expected, "{flags:?} over {file:?}");
        }
    }
}
