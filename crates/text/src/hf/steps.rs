//! Normalizers and pre-tokenizers of the `tokenizers` crate, their regular expressions bounded.
//!
//! The crate's own steps stay as they are, but for the two that match an expression of the file.

use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use tokenizers::normalizers::replace::ReplacePattern;
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::tokenizer::pattern::Invert;
use tokenizers::{
    NormalizedString, Normalizer, NormalizerWrapper, PreTokenizedString, PreTokenizer,
    PreTokenizerWrapper, SplitDelimiterBehavior,
};

use super::regex::{BoundedRegex, replace};

/// A change of the text before it is split.
#[derive(Clone, Debug)]
pub(crate) enum Normalize {
    Sequence(Vec<Self>),
    Replace { regex: Arc<BoundedRegex>, content: String },
    Other(NormalizerWrapper),
}

impl Normalizer for Normalize {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        match self {
            Self::Sequence(steps) => steps.iter().try_for_each(|step| step.normalize(text)),
            Self::Replace { regex, content } => replace(text, regex, content),
            Self::Other(step) => step.normalize(text),
        }
    }
}

impl From<NormalizerWrapper> for Normalize {
    fn from(step: NormalizerWrapper) -> Self {
        match step {
            NormalizerWrapper::Sequence(steps) => {
                Self::Sequence(steps.into_iter().map(Self::from).collect())
            }
            NormalizerWrapper::Replace(replace) => {
                // The pattern has no getter.
                let state = serde_json::to_value(&replace).unwrap_or_default();
                let pattern =
                    state.get("pattern").and_then(|p| ReplacePattern::deserialize(p).ok());
                let regex = match pattern {
                    Some(ReplacePattern::Regex(regex)) => BoundedRegex::new(&regex),
                    _ => None,
                };
                match regex {
                    Some(regex) => Self::Replace { regex: regex.into(), content: replace.content },
                    None => Self::Other(NormalizerWrapper::Replace(replace)),
                }
            }
            other => Self::Other(other),
        }
    }
}

impl<'de> Deserialize<'de> for Normalize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        NormalizerWrapper::deserialize(deserializer).map(Self::from)
    }
}

/// A way to split the text.
#[derive(Clone, Debug)]
pub(crate) enum PreTokenize {
    Sequence(Vec<Self>),
    Split { regex: Arc<BoundedRegex>, behavior: SplitDelimiterBehavior, invert: bool },
    Other(PreTokenizerWrapper),
}

impl PreTokenizer for PreTokenize {
    fn pre_tokenize(&self, text: &mut PreTokenizedString) -> tokenizers::Result<()> {
        match self {
            Self::Sequence(steps) => steps.iter().try_for_each(|step| step.pre_tokenize(text)),
            Self::Split { regex, behavior, invert: false } => {
                text.split(|_, part| part.split(&**regex, *behavior))
            }
            Self::Split { regex, behavior, invert: true } => {
                text.split(|_, part| part.split(Invert(&**regex), *behavior))
            }
            Self::Other(step) => step.pre_tokenize(text),
        }
    }
}

impl From<PreTokenizerWrapper> for PreTokenize {
    fn from(step: PreTokenizerWrapper) -> Self {
        match step {
            PreTokenizerWrapper::Sequence(steps) => {
                Self::Sequence(steps.into_iter().map(Self::from).collect())
            }
            PreTokenizerWrapper::Split(split) => {
                let regex = match &split.pattern {
                    SplitPattern::Regex(regex) => BoundedRegex::new(regex),
                    SplitPattern::String(_) => None,
                };
                match regex {
                    Some(regex) => Self::Split {
                        regex: regex.into(),
                        behavior: split.behavior,
                        invert: split.invert,
                    },
                    None => Self::Other(PreTokenizerWrapper::Split(split)),
                }
            }
            other => Self::Other(other),
        }
    }
}

impl<'de> Deserialize<'de> for PreTokenize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        PreTokenizerWrapper::deserialize(deserializer).map(Self::from)
    }
}
