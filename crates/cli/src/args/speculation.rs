//! Flags that say whether and how tokens are guessed.
//!
//! ```text
//! --spec draft:MODEL      the same as --spec draft --draft-model MODEL
//! --spec early-exit:N     drafts by the first N layers
//! --spec METHOD           any other by its name
//! ```
//!
//! A file says the same in the same words. Where a flag and a file speak of one thing the flag wins,
//! and what the file says about the model that drafts counts only beside a method that takes one.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

use clap::Args;
use pelton_llm::{LlmOptions, SpecConfig, SpecMethod, Verification};

use super::scheduling::choice;

use crate::failure::{Failure, Result};

/// Whether and how tokens are guessed.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct SpecArgs {
    /// Guess tokens and verify several at once, where that pays: by a smaller model (`draft:MODEL`),
    /// by the first layers (`early-exit:N`), from the longest match in what the session holds
    /// (`suffix`), by whichever promises most (`auto`), ...; the answers are the same [default: off]
    #[arg(long, env = "PELTON_SPEC", value_name = "METHOD", value_parser = SpecChoice::from_str)]
    pub(crate) spec: Option<SpecChoice>,
    /// The model that drafts under `--spec draft` or `auto`; of the same vocabulary
    #[arg(long, env = "PELTON_DRAFT_MODEL", value_name = "MODEL")]
    pub(crate) draft_model: Option<String>,
    /// Most tokens guessed at once for one request [default: 8]
    #[arg(long, env = "PELTON_SPEC_MAX", value_name = "N")]
    pub(crate) spec_max: Option<NonZeroUsize>,
    /// A guess is right when plain decoding would say it (`match`), by rejection sampling
    /// (`rejection`: the same distribution, not the same tokens), or when it is likely enough
    /// (`typical-lossy`) [default: match]
    #[arg(long, env = "PELTON_SPEC_VERIFY", value_name = "HOW",
        value_parser = choice::<Verification>())]
    pub(crate) spec_verify: Option<Verification>,
    /// Tokens of recent answers that `suffix` and `auto` also look into, those of other requests of
    /// the same tenant and salt among them [default: 0]
    #[arg(long, env = "PELTON_SPEC_RECENT", value_name = "N")]
    pub(crate) spec_recent: Option<usize>,
}

impl SpecArgs {
    /// Adds these flags to the options of a model.
    ///
    /// # Errors
    ///
    /// Two models that draft; one that is no path and no hub id.
    pub(crate) fn apply(&self, default: LlmOptions) -> Result<LlmOptions> {
        let choice = self.spec.as_ref();
        let named = choice.and_then(|choice| choice.draft_model.as_deref());
        let draft_model = match (named, self.draft_model.as_deref()) {
            (Some(one), Some(other)) if one != other => {
                let message = format!(
                    "`--spec draft:{one}` contradicts `--draft-model {other}`: expected one model"
                );
                return Err(Failure::new(message));
            }
            (one, other) => one.or(other),
        };
        Ok(LlmOptions {
            spec: SpecConfig {
                method: choice.map_or(default.spec.method, |choice| choice.method),
                max_drafts: self.spec_max.map_or(default.spec.max_drafts, NonZeroUsize::get),
                exit_layers: match choice {
                    Some(choice) => choice.exit_layers,
                    None => default.spec.exit_layers,
                },
                verification: self.spec_verify.unwrap_or(default.spec.verification),
                recent_tokens: self.spec_recent.unwrap_or(default.spec.recent_tokens),
                ..default.spec
            },
            draft: match draft_model {
                Some(draft) => Some(crate::model::reference(Some(draft))?),
                None => default.draft,
            },
            ..default
        })
    }

    /// Sets what these flags leave open to what a file says.
    pub(crate) fn fill(&mut self, file: Self) {
        let takes_model = |choice: &SpecChoice| {
            choice.draft_model.is_none()
                && matches!(choice.method, SpecMethod::Draft | SpecMethod::Auto)
        };
        if self.draft_model.is_some() {
            // It takes the place of the file's, in whichever way that was named.
            let mut choice = file.spec;
            if let Some(choice) = &mut choice {
                choice.draft_model = None;
            }
            self.spec = self.spec.take().or(choice);
        } else if self.spec.as_ref().is_none_or(takes_model) {
            self.draft_model = match &self.spec {
                None => file.draft_model,
                Some(_) => file.draft_model.or_else(|| file.spec.as_ref()?.draft_model.clone()),
            };
            self.spec = self.spec.take().or(file.spec);
        }
        self.spec_max = self.spec_max.or(file.spec_max);
        self.spec_verify = self.spec_verify.or(file.spec_verify);
        self.spec_recent = self.spec_recent.or(file.spec_recent);
    }
}

/// A value of `--spec`: a method, and what it needs where that is part of the value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct SpecChoice {
    /// How drafts are made.
    pub(crate) method: SpecMethod,
    /// The model that drafts, as in `draft:MODEL`.
    pub(crate) draft_model: Option<String>,
    /// Layers after which drafts are made, as in `early-exit:N`.
    pub(crate) exit_layers: Option<usize>,
}

impl SpecChoice {
    /// What may be written, for messages.
    fn possible() -> String {
        let forms = SpecMethod::ALL.iter().map(|method| match method {
            SpecMethod::Draft => "draft, draft:MODEL".to_owned(),
            SpecMethod::EarlyExit => format!("{}:N", method.name()),
            other => other.name().to_owned(),
        });
        forms.collect::<Vec<_>>().join(", ")
    }
}

impl FromStr for SpecChoice {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (name, rest) = match text.split_once(':') {
            Some((name, rest)) => (name, Some(rest)),
            None => (text, None),
        };
        let plain = |method| Self { method, draft_model: None, exit_layers: None };
        let method = SpecMethod::ALL.iter().copied().find(|method| method.name() == name);
        let method =
            method.ok_or_else(|| format!("expected one of {}, got `{text}`", Self::possible()))?;
        match (method, rest) {
            (SpecMethod::EarlyExit, rest) => {
                let n_layers = rest.and_then(|n| n.parse::<NonZeroUsize>().ok());
                let n_layers = n_layers.ok_or_else(|| {
                    format!(
                        "expected `{name}:N` with the layers that draft, at least 1, got `{text}`"
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
                Self::possible()
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

    fn args(spec: Option<&str>, draft_model: Option<&str>) -> SpecArgs {
        let spec = spec.map(|text| text.parse().expect(text));
        SpecArgs { spec, draft_model: draft_model.map(str::to_owned), ..SpecArgs::default() }
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
        let error = args(Some("draft:a/a"), Some("b/b")).apply(LlmOptions::default());
        let line = error.expect_err("two models").line().expect("a line");
        assert!(line.contains("draft:a/a") && line.contains("--draft-model b/b"), "{line}");
        let fine = args(Some("draft:a/a"), Some("a/a")).apply(LlmOptions::default());
        assert!(fine.expect("the same twice").draft.is_some());
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
            let mut filled = args(flags.0, flags.1);
            filled.fill(args(file.0, file.1));
            let spec = filled.spec.map(|choice| choice.to_string());
            let found = (spec.as_deref(), filled.draft_model.as_deref());
            assert_eq!(found, expected, "{flags:?} over {file:?}");
        }
    }
}
